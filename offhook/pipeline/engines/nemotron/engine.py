"""The Nemotron streaming engine: batches chunks of audio and turns labels into text.

One thread owns it and calls `turn` repeatedly. A stream's next chunk is due when all of its audio
has arrived, or when its utterance has ended (zero-padded). All chunks of a batch have the same
right context (lookahead); the longest-waiting chunk goes first, and the end of an utterance, which
a caller waits for, before all others. Files run when no live stream is due.

While a batch runs, the chunks that become due form the next one, so batches grow with load. A due
chunk may also wait up to `max_wait` for others, but not when the batch is full, at the end of an
utterance, or when no other caller with its lookahead speaks. The next batch is launched before the
last is read only if so many chunks are due that the device would otherwise idle.

Labels are final: the text only grows.
"""

from collections import Counter, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import Enum, auto
from itertools import islice
from typing import Protocol

from offhook.media.pcm import RATE_IN, Pcm
from offhook.pipeline.engines.nemotron.runner import Label, Part
from offhook.pipeline.engines.nemotron.utterance import LabelText, NemotronUtterance
from offhook.pipeline.speech.errors import AudioOverrun, EngineOverloaded
from offhook.pipeline.speech.recognizer import Final, Partial, Timing

MAX_WAITING = 180 * RATE_IN
"""Limit of a stream's samples not yet in a batch; beyond it `feed` raises AudioOverrun. A live
stream comes near it only on a machine that is far too slow; files are fed as their text arrives."""
MAX_LABELS = 1024
"""Maximum labels of one Final, about four minutes of speech; a longer utterance continues in the
next Final."""
FILE_WAIT = 0.25
"""Maximum time in s that a file waits while others speak without a pause."""
AHEAD = 64
"""Number of due streams from which the next batch is launched before the last one is read."""


class PendingLabels(Protocol):
    """A batch in flight; `runner.InFlightBatch` implements it."""

    def labels(self) -> list[list[Label]]: ...


class ChunkRunner(Protocol):
    """The model runner's interface; `runner.NemotronRunner` implements it."""

    @property
    def largest(self) -> dict[int, int]: ...

    def encode(self, lookahead: int, parts: Sequence[Part]) -> PendingLabels: ...


class StreamState(Enum):
    """Scheduling state of a stream."""

    IDLE = auto()
    """No chunk is due."""
    DUE = auto()
    """A chunk is due and queued."""
    HEARD = auto()
    """A chunk is in the batch in flight."""
    CLOSING = auto()
    """As HEARD, and the stream is closed afterwards."""


@dataclass(eq=False, slots=True)
class _Stream:
    number: int
    slot: int
    lookahead: int
    frames: int
    """Encoder frames of a chunk."""
    live: bool
    prompt: int
    timing: bool
    language: str
    state: StreamState = StreamState.IDLE
    due: float = 0.0
    """When its due chunk became due, in s."""
    utterances: deque[NemotronUtterance] = field(default_factory=deque)
    """Utterances without a Final, oldest first; only the last may be in progress."""
    samples: int = 0
    """Samples of the stream in utterances before the last one."""
    waiting: int = 0
    """Samples not yet in a batch."""
    speaks: bool = False
    """Whether chunks of other streams may wait for this one."""


@dataclass(frozen=True)
class _Batch:
    works: list[tuple[_Stream, NemotronUtterance]]
    started: float
    hearing: PendingLabels


class NemotronEngine:
    """Audio streams in, recognition events out. Call all methods from one thread.

    `tell(stream, event)` is called for every event. Times are seconds of time.monotonic().
    """

    def __init__(
        self,
        runner: ChunkRunner,
        tokenizer: LabelText,
        max_streams: int,
        max_files: int,
        tell: Callable[[int, Partial | Final], None],
        max_wait: float = 0.0,
    ) -> None:
        """`max_wait` is the time in s that a due chunk may wait for others."""
        self._runner = runner
        self._tokenizer = tokenizer
        self._room = {True: max_streams, False: max_files}
        self._tell = tell
        self._max_wait = max_wait
        self._streams: dict[int, _Stream] = {}
        self._count = 0
        self._free_slots = list(range(max_streams + max_files, 0, -1))
        self._ends: dict[int, dict[int, _Stream]] = {r: {} for r in runner.largest}
        """Streams with a due chunk by lookahead, in the order in which they became due; these are
        live and at the end of an utterance."""
        self._live: dict[int, dict[int, _Stream]] = {r: {} for r in runner.largest}
        self._files: dict[int, dict[int, _Stream]] = {r: {} for r in runner.largest}
        self._speaking: Counter[int] = Counter()
        """Live streams that are receiving audio, by lookahead."""
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
        """Opens a stream with this lookahead and returns its number. `language` is an ISO 639 code;
        empty: taken from the model's language tags. Raises EngineOverloaded."""
        if not self._room[live]:
            raise EngineOverloaded(
                f"all {'streams' if live else 'files'} that there is room for are open"
            )
        self._room[live] -= 1
        self._count += 1
        slot = self._free_slots.pop()
        frames = lookahead + 1
        stream = _Stream(self._count, slot, lookahead, frames, live, prompt, timing, language)
        self._streams[stream.number] = stream
        return stream.number

    def feed(self, number: int, pcm: Pcm, now: float) -> None:
        """Adds 16 kHz samples that arrived at `now`. Raises AudioOverrun, adding none."""
        stream = self._streams[number]
        if stream.waiting + len(pcm) > MAX_WAITING:
            raise AudioOverrun(f"{stream.waiting // RATE_IN} s of audio are pending")
        if not len(pcm):
            return
        self._current(stream).audio.feed(pcm, now)
        stream.waiting += len(pcm)
        if stream.state is StreamState.IDLE:
            self._consider(stream, now)

    def finish(self, number: int, now: float) -> None:
        """Ends the utterance; its Final follows."""
        stream = self._streams[number]
        utterance = self._current(stream)
        utterance.ended = True
        stream.samples += utterance.audio.fed
        if stream.state is StreamState.DUE and stream.utterances[0] is utterance:
            self._leave_queue(stream)
        self._count_speaker(stream)
        self._consider(stream, now)

    def cancel(self, number: int) -> None:
        """Discards the utterance in progress, if any; no Final follows."""
        stream = self._streams[number]
        if not stream.utterances or stream.utterances[-1].ended:
            return
        utterance = stream.utterances.pop()
        stream.samples += utterance.audio.fed
        stream.waiting -= utterance.audio.unheard
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
            stream.state = StreamState.CLOSING  # its slot is in use until the batch is done
        elif stream.state is StreamState.IDLE:
            self._drop(stream)

    def _drop(self, stream: _Stream) -> None:
        del self._streams[stream.number]
        self._free_slots.append(stream.slot)
        self._room[stream.live] += 1

    def _current(self, stream: _Stream) -> NemotronUtterance:
        """Returns the utterance in progress, a new one if there is none."""
        if not stream.utterances or stream.utterances[-1].ended:
            start, language = stream.samples, stream.language
            new = NemotronUtterance(stream.frames, start, self._tokenizer, language)
            stream.utterances.append(new)
            self._count_speaker(stream)
        return stream.utterances[-1]

    # --- what is due ---

    def _consider(self, stream: _Stream, now: float) -> None:
        """Queues the stream's next chunk if it is due and completes ended utterances."""
        while stream.state is StreamState.IDLE and stream.utterances:
            utterance = stream.utterances[0]
            if not utterance.is_due:
                break
            if utterance.over:
                stream.utterances.popleft()
                self._tell(stream.number, utterance.final(None))
            else:
                stream.state, stream.due = StreamState.DUE, now
                self._queue(stream)[stream.number] = stream

    def _queue(self, stream: _Stream) -> dict[int, _Stream]:
        """Returns the queue in which the stream waits with its oldest utterance."""
        if not stream.live:
            return self._files[stream.lookahead]
        ends = stream.utterances[0].ended
        return (self._ends if ends else self._live)[stream.lookahead]

    def _leave_queue(self, stream: _Stream) -> None:
        for queues in (self._ends, self._live, self._files):
            queues[stream.lookahead].pop(stream.number, None)
        stream.state = StreamState.IDLE

    def _count_speaker(self, stream: _Stream) -> None:
        """Updates whether others may wait for the stream: only while it is receiving audio."""
        utterances = stream.utterances
        speaks = stream.live and bool(utterances) and not utterances[-1].ended
        self._speaking[stream.lookahead] += speaks - stream.speaks
        stream.speaks = speaks

    def timer(self) -> float | None:
        """Returns when `turn` has work without further input, in s; None for never."""
        waits = [next(iter(queue.values())).due for queue in self._live.values() if queue]
        return min(waits) + self._max_wait if waits else None

    def _next(self, now: float) -> tuple[int, list[_Stream]] | None:
        """Removes the streams of the next batch from their queues and returns them with their
        lookahead; None if nothing is due yet."""
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
        """Whether waiting gains nothing, or the wait is over."""
        queue = self._live[lookahead]
        if self._ends[lookahead] or len(queue) >= self._runner.largest[lookahead]:
            return True
        alone = len(queue) >= self._speaking[lookahead]
        return alone or now >= next(iter(queue.values())).due + self._max_wait

    def _first_live(self, lookahead: int) -> float:
        """Returns when the longest-waiting chunk became due, ends of utterances first."""
        ends, live = self._ends[lookahead], self._live[lookahead]
        return float("-inf") if ends else next(iter(live.values())).due

    def _first_file(self, lookahead: int) -> float:
        return next(iter(self._files[lookahead].values())).due

    # --- a batch ---

    def turn(self, clock: Callable[[], float]) -> bool:
        """Launches the next batch, reads the last, and returns whether there was anything to do."""
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
            audio = utterance.audio
            position, unheard = audio.position, audio.unheard
            parts.append(Part(stream.slot, position, audio.pop_chunk(now), stream.prompt))
            works.append((stream, utterance))
            stream.waiting -= unheard - audio.unheard
            stream.state = StreamState.HEARD
        self.batches += 1
        return _Batch(works, now, self._runner.encode(lookahead, parts))

    def _read(self, batch: _Batch, clock: Callable[[], float]) -> None:
        labels = batch.hearing.labels()
        now = clock()
        for (stream, utterance), new in zip(batch.works, labels, strict=True):
            if stream.state is StreamState.CLOSING:
                self._drop(stream)
                continue
            stream.state = StreamState.IDLE
            # otherwise it was cancelled
            if stream.utterances and stream.utterances[0] is utterance:
                timing = None
                if stream.timing:
                    timing = Timing(utterance.audio.chunk_begun, stream.due, batch.started, now)
                self._collect(stream, utterance, new, timing)
            self._consider(stream, now)

    def _collect(
        self,
        stream: _Stream,
        utterance: NemotronUtterance,
        new: list[Label],
        timing: Timing | None,
    ) -> None:
        if new:
            utterance.say(new)
        if utterance.over:
            stream.utterances.popleft()
            self._tell(stream.number, utterance.final(timing))
            return
        if utterance.labels > MAX_LABELS:
            self._tell(stream.number, utterance.cut(timing))
        if stream.live:
            self._tell(stream.number, utterance.partial(timing))
