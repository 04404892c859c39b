"""The Nemotron engine: which chunks of which streams go into a batch, and what words come of it.

One thread owns it and calls `turn` again and again. A stream's next chunk falls due when all of its
sound is there, or when its utterance has ended: then zeros stand for what is missing. A batch is of
one right context, whoever fell due first before the others; the end of an utterance, for which
somebody waits, goes before all. Files are heard when no live stream is due.

Nobody waits while the device has nothing to do: what falls due while a batch runs goes together
into the next, and the more speak, the more that is. A chunk that is due can be made to wait for
company, up to `max_wait`, but not when the batch is full, when it is for the end of an utterance,
or when nobody else of its right context speaks. Only where so many wait that the device would idle
between batches is the next one launched before the last one is read.

What a label says stands: the text only grows.
"""

from collections import Counter, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import Enum, auto
from itertools import islice
from typing import NamedTuple, Protocol

from offhook.media.pcm import RATE_IN, Pcm
from offhook.pipeline.engine.nemotron.runner import Label, Part
from offhook.pipeline.engine.nemotron.utterance import LabelText, NemotronUtterance
from offhook.pipeline.speech.recognizer import AudioOverrun, EngineFull, Final, Partial, Timing

MAX_WAITING = 180 * RATE_IN
"""Samples of a stream that no batch has taken. A live caller comes near it only where the machine
is far too slow; a file is to be fed as its text comes. Beyond it `feed` raises AudioOverrun."""
MAX_LABELS = 1024
"""Of one Final, some four minutes of speech: a longer utterance goes on in the next."""
FILE_WAIT = 0.25
"""s that a file waits at most while others speak without a pause."""
AHEAD = 64
"""Streams that are due at which the next batch is launched before the last one is read."""


class HearsChunks(Protocol):
    """A batch under way; see nemotron_runner.Hearing."""

    def labels(self) -> list[list[Label]]: ...


class RunsChunks(Protocol):
    """What the engine needs of a runner; see nemotron_runner.NemotronRunner."""

    @property
    def largest(self) -> dict[int, int]: ...

    def encode(self, lookahead: int, parts: Sequence[Part]) -> HearsChunks: ...


class StreamState(Enum):
    """Of a stream."""

    IDLE = auto()
    """Nothing due."""
    DUE = auto()
    """A chunk waits for a batch."""
    HEARD = auto()
    """A chunk is in the batch under way."""
    CLOSING = auto()
    """The same, and the stream is closed after it."""


@dataclass(eq=False)
class _Stream:
    number: int
    slot: int
    lookahead: int
    live: bool
    prompt: int
    timing: bool
    language: str
    state: StreamState = StreamState.IDLE
    due: float = 0.0
    """When the chunk that waits fell due."""
    utterances: deque[NemotronUtterance] = field(default_factory=deque)
    """Without a Final, oldest first; only the last may be going on."""
    samples: int = 0
    """Of the stream, in utterances before the last one."""
    waiting: int = 0
    """Samples that no batch has taken."""
    speaks: bool = False
    """Counted among those that another may wait for."""

    @property
    def frames(self) -> int:
        return self.lookahead + 1


class _Work(NamedTuple):
    """One stream's part of a batch."""

    stream: _Stream
    utterance: NemotronUtterance
    position: int
    begun: float
    due: float


@dataclass(frozen=True)
class _Batch:
    lookahead: int
    works: list[_Work]
    started: float
    hearing: HearsChunks


class NemotronEngine:
    """Streams in, words out. All methods are to be called by one thread.

    `tell(stream, event)` is called for every event. Times are seconds of time.monotonic().
    """

    def __init__(
        self,
        runner: RunsChunks,
        tokenizer: LabelText,
        max_streams: int,
        max_files: int,
        tell: Callable[[int, Partial | Final], None],
        max_wait: float = 0.0,
    ) -> None:
        """max_wait: s that a chunk may wait for company."""
        self._runner = runner
        self._tokenizer = tokenizer
        self._room = {True: max_streams, False: max_files}
        self._tell = tell
        self._max_wait = max_wait
        self._streams: dict[int, _Stream] = {}
        self._count = 0
        self._free_slots = list(range(max_streams + max_files, 0, -1))
        self._ends: dict[int, dict[int, _Stream]] = {r: {} for r in runner.largest}
        """By right context, of those with a chunk due: live, the last of an utterance; in the order
        in which they fell due, as the next two."""
        self._live: dict[int, dict[int, _Stream]] = {r: {} for r in runner.largest}
        self._files: dict[int, dict[int, _Stream]] = {r: {} for r in runner.largest}
        self._speaking: Counter[int] = Counter()
        """Live streams that sound is coming of, by right context."""
        self._under_way: _Batch | None = None
        self.batches = 0

    # --- streams ---

    def open(
        self,
        lookahead: int,
        live: bool = True,
        prompt: int = 0,
        timing: bool = False,
        language: str = "",
    ) -> int:
        """A new stream with this right context; raises EngineFull. language: ISO 639 code of
        what is spoken; empty: told by the tags that the model writes."""
        if not self._room[live]:
            raise EngineFull(
                f"all {'streams' if live else 'files'} that there is room for are open"
            )
        self._room[live] -= 1
        self._count += 1
        slot = self._free_slots.pop()
        stream = _Stream(self._count, slot, lookahead, live, prompt, timing, language)
        self._streams[stream.number] = stream
        return stream.number

    def feed(self, number: int, pcm: Pcm, now: float) -> None:
        """16 kHz samples of the stream's utterance, which came at `now`. Raises AudioOverrun,
        taking none."""
        stream = self._streams[number]
        if stream.waiting + len(pcm) > MAX_WAITING:
            raise AudioOverrun(f"{stream.waiting // RATE_IN} s of sound wait to be heard")
        if not len(pcm):
            return
        self._current(stream).feed(pcm, now)
        stream.waiting += len(pcm)
        self._consider(stream, now)

    def finish(self, number: int, now: float) -> None:
        """The utterance ends here; its Final comes."""
        stream = self._streams[number]
        utterance = self._current(stream)
        utterance.ended = True
        stream.samples += utterance.fed
        if stream.state is StreamState.DUE and stream.utterances[0] is utterance:
            self._leave_queue(stream)
        self._consider(stream, now)

    def cancel(self, number: int) -> None:
        """Drop the utterance in progress, if there is one; no Final comes."""
        stream = self._streams[number]
        if not stream.utterances or stream.utterances[-1].ended:
            return
        utterance = stream.utterances.pop()
        stream.samples += utterance.fed
        stream.waiting -= utterance.unheard
        if stream.state is StreamState.DUE and not stream.utterances:
            self._leave_queue(stream)
        self._count_speaker(stream)

    def close(self, number: int) -> None:
        stream = self._streams.get(number)
        if stream is None:
            return
        if stream.state is StreamState.DUE:
            self._leave_queue(stream)
        stream.utterances.clear()
        self._count_speaker(stream)
        if stream.state is StreamState.HEARD:
            stream.state = StreamState.CLOSING  # its slot is in use until the batch is through
        elif stream.state is StreamState.IDLE:
            self._drop(stream)

    def _drop(self, stream: _Stream) -> None:
        del self._streams[stream.number]
        self._free_slots.append(stream.slot)
        self._room[stream.live] += 1

    def _current(self, stream: _Stream) -> NemotronUtterance:
        """The utterance in progress; a new one when there is none."""
        if not stream.utterances or stream.utterances[-1].ended:
            new = NemotronUtterance(stream.samples, self._tokenizer, stream.language)
            stream.utterances.append(new)
        return stream.utterances[-1]

    # --- what is due ---

    def _consider(self, stream: _Stream, now: float) -> None:
        """Queue the stream's next chunk if it is due; end what is over."""
        while stream.state is StreamState.IDLE and stream.utterances:
            utterance = stream.utterances[0]
            if utterance.over:
                stream.utterances.popleft()
                self._tell(stream.number, utterance.final(None))
            elif utterance.is_due(stream.frames):
                stream.state, stream.due = StreamState.DUE, now
                self._queue(stream)[stream.number] = stream
            else:
                break
        self._count_speaker(stream)

    def _queue(self, stream: _Stream) -> dict[int, _Stream]:
        """Where the stream waits with the utterance that is its first now."""
        if not stream.live:
            return self._files[stream.lookahead]
        ends = stream.utterances[0].ended
        return (self._ends if ends else self._live)[stream.lookahead]

    def _leave_queue(self, stream: _Stream) -> None:
        for queues in (self._ends, self._live, self._files):
            queues[stream.lookahead].pop(stream.number, None)
        stream.state = StreamState.IDLE

    def _count_speaker(self, stream: _Stream) -> None:
        """A chunk waits for others only while sound is coming of them."""
        utterances = stream.utterances
        speaks = stream.live and bool(utterances) and not utterances[-1].ended
        self._speaking[stream.lookahead] += speaks - stream.speaks
        stream.speaks = speaks

    def timer(self) -> float | None:
        """When `turn` has something to do though nothing new is fed. s."""
        waits = [next(iter(queue.values())).due for queue in self._live.values() if queue]
        return min(waits) + self._max_wait if waits else None

    def _next(self, now: float) -> tuple[int, list[_Stream]] | None:
        """The streams of the next batch and their right context; None: nothing is to be done yet.
        Takes them out of their queues."""
        live = {r: len(self._ends[r]) + len(self._live[r]) for r in self._live}
        ready = [r for r, count in live.items() if count and self._is_ready(r, now)]
        files = [r for r, queue in self._files.items() if queue]
        oldest_file = min(files, key=self._first_file, default=None)
        kept_waiting = oldest_file is not None and now > self._first_file(oldest_file) + FILE_WAIT
        if ready and not kept_waiting:
            lookahead = min(ready, key=self._first_live)
            queues = [self._ends[lookahead], self._live[lookahead]]
        elif oldest_file is not None:
            lookahead = oldest_file
            queues = [self._files[lookahead]]
        else:
            return None
        streams: list[_Stream] = []
        for queue in queues:
            room = self._runner.largest[lookahead] - len(streams)
            taken = list(islice(queue.values(), room))
            for stream in taken:
                del queue[stream.number]
            streams += taken
        return lookahead, streams

    def _is_ready(self, lookahead: int, now: float) -> bool:
        """Nothing is gained by waiting, or it has waited long enough."""
        queue = self._live[lookahead]
        if self._ends[lookahead] or len(queue) >= self._runner.largest[lookahead]:
            return True
        alone = len(queue) >= self._speaking[lookahead]
        return alone or now >= next(iter(queue.values())).due + self._max_wait

    def _first_live(self, lookahead: int) -> float:
        """When the one fell due that has waited longest; those at an utterance's end first."""
        ends, live = self._ends[lookahead], self._live[lookahead]
        return float("-inf") if ends else next(iter(live.values())).due

    def _first_file(self, lookahead: int) -> float:
        return next(iter(self._files[lookahead].values())).due

    # --- a batch ---

    def turn(self, clock: Callable[[], float]) -> bool:
        """Launch what is to be heard, read what was; whether there was anything."""
        before = self._under_way
        waiting = sum(map(len, (*self._ends.values(), *self._live.values())))
        self._under_way = None
        if before is None or waiting >= AHEAD:
            found = self._next(clock())
            if found is not None:
                self._under_way = self._launch(*found, clock())
        if before is not None:
            self._read(before, clock)
        return before is not None or self._under_way is not None

    def _launch(self, lookahead: int, streams: list[_Stream], now: float) -> _Batch:
        works, parts = [], []
        for stream in streams:
            utterance = stream.utterances[0]
            position, unheard = utterance.position, utterance.unheard
            works.append(_Work(stream, utterance, position, utterance.begun, stream.due))
            pcm = utterance.pop_chunk(stream.frames, now)
            parts.append(Part(stream.slot, position, pcm, stream.prompt))
            stream.waiting -= unheard - utterance.unheard
            stream.state = StreamState.HEARD
        self.batches += 1
        return _Batch(lookahead, works, now, self._runner.encode(lookahead, parts))

    def _read(self, batch: _Batch, clock: Callable[[], float]) -> None:
        labels = batch.hearing.labels()
        now = clock()
        for work, new in zip(batch.works, labels, strict=True):
            stream, utterance = work.stream, work.utterance
            if stream.state is StreamState.CLOSING:
                self._drop(stream)
                continue
            stream.state = StreamState.IDLE
            if stream.utterances and stream.utterances[0] is utterance:  # else it was cancelled
                timing = Timing(work.begun, work.due, batch.started, now) if stream.timing else None
                self._collect(work, new, timing)
            self._consider(stream, now)

    def _collect(self, work: _Work, new: list[Label], timing: Timing | None) -> None:
        stream, utterance = work.stream, work.utterance
        utterance.say(work.position, new)
        if utterance.over:
            stream.utterances.popleft()
            self._tell(stream.number, utterance.final(timing))
            return
        if utterance.labels > MAX_LABELS:
            self._tell(stream.number, utterance.cut(timing))
        if stream.live:
            self._tell(stream.number, utterance.partial(timing))
