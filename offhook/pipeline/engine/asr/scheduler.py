"""Which streams the next batch updates.

A live stream is updated when enough new audio has come (FIRST_UPDATE_MS, then its update_ms each
time) and takes all there is, however late it is. Who is due first is served first: the queue is
ordered by deadline, the time an update fell due plus the slack it has, and a deadline never moves,
so nobody is overtaken for ever. The end of a turn, for which somebody waits, has none and is put
FINISH_HEAD_START ahead.

Files take what is left. While somebody speaks they have batches of their own, short ones, where
the next live update is expected only after they are done: speech comes at its own pace, so whoever
speaks is due again update_ms after the last time. Where so many speak that there is no such gap, a
little of the files' work rides along with theirs now and then. Among files, whoever has had the
least work done goes first.

Times are float seconds, audio is counted in samples of 16 kHz. All operations are O(log n), except
`evict`, which looks at every file.
"""

from collections import Counter, deque
from dataclasses import dataclass
from enum import Enum, auto
from heapq import heappop, heappush

from offhook.media.pcm import RATE_IN
from offhook.pipeline.engine.asr.windows import (
    WINDOW_FRAMES,
    WINDOW_SAMPLES,
    WINDOW_TOKENS,
    encoder_tokens,
    final_frames,
    samples_for,
)
from offhook.pipeline.speech.recognizer import EngineFull

FIRST_UPDATE_MS = 160
"""ms of an utterance after which it is first recognised: the least that a word fits in, and early
enough for a barge-in to be told from a cough."""
SLACK = 0.5
"""Share of its update_ms within which an update should be done after it fell due."""
FINISH_HEAD_START_S = 1.0
"""s by which the end of a turn goes before updates that fell due with it. Only those more than a
second late still go first, so that nobody starves when there is too much of everything."""
BATCH_MS = 50.0
"""ms that a batch should take at most: the end of a turn waits for the one before it. Where a
batch of one takes long already, twice as long as an empty one."""
FILE_BATCH_MS = 5.0
"""ms of work on files, besides `Cost.batch_ms` and no less than that, in a batch of their own while
somebody speaks: a batch is not interrupted, and the end of a turn may come at any time."""
FILE_RIDE_MS = 1.0
"""ms of work on files that ride along in a batch of live streams, who wait so much longer: not in
one with the end of a turn."""
FILE_RIDE_AFTER = 0.02
"""s without any work on files after which some rides along."""
EXPECTED_LATE = 0.05
"""s after which an update that was expected is not waited for: the caller fell silent, or the line
lags."""
FILE_WINDOWS = 8
"""Windows of a file in one batch, at most."""
TEXT_TOKENS = 60
"""Prefill tokens of an update besides its audio, for predictions: the tail (8), a draft (10 to 20)
and half of a usual prefix."""
FILE_TEXT_TOKENS = 120
"""The same of a file: while the text of a chunk goes on, all there is of it is the draft."""
DECODE_STEPS = 16
"""Decode steps of one batch. The text that is not at its end by then goes on in the next, its
beginning as the draft: one that writes much does not hold up the others."""
NO_PAGES_WAIT = 0.1
"""s until a stream that found no pages, or gave its own away, tries again."""


class StreamState(Enum):
    IDLE = auto()
    """Nothing due."""
    WAITING = auto()
    """An update is due."""
    RUNNING = auto()
    """An update is in the batch."""
    ENDING = auto()
    """The same, and the utterance has ended meanwhile."""
    FINISHING = auto()
    """The last update is due."""
    LAST = auto()
    """The last update is in the batch."""
    DISCARDING = auto()
    """In the batch, but nobody wants the result any more."""
    CLOSING = auto()
    """The same, and the stream is closed after it."""
    CLOSED = auto()


class Event(Enum):
    DUE = auto()
    START = auto()
    START_LAST = auto()
    DONE = auto()
    MORE = auto()
    """Done, but its text was not at its end."""
    FINISH = auto()
    CANCEL = auto()
    CLOSE = auto()
    EVICT = auto()
    """Its pages are taken away; what was in the batch is taken out of it."""


TRANSITIONS = {
    StreamState.IDLE: {
        Event.DUE: StreamState.WAITING,
        Event.FINISH: StreamState.FINISHING,
        Event.CANCEL: StreamState.IDLE,
        Event.CLOSE: StreamState.CLOSED,
        Event.EVICT: StreamState.IDLE,
    },
    StreamState.WAITING: {
        Event.START: StreamState.RUNNING,
        Event.FINISH: StreamState.FINISHING,
        Event.CANCEL: StreamState.IDLE,
        Event.CLOSE: StreamState.CLOSED,
        Event.EVICT: StreamState.WAITING,
    },
    StreamState.RUNNING: {
        Event.DONE: StreamState.IDLE,
        Event.MORE: StreamState.WAITING,
        Event.FINISH: StreamState.ENDING,
        # The device still writes to its pages: they are free when it is done.
        Event.CANCEL: StreamState.DISCARDING,
        Event.CLOSE: StreamState.CLOSING,
        Event.EVICT: StreamState.WAITING,
    },
    StreamState.ENDING: {
        Event.DONE: StreamState.FINISHING,
        Event.MORE: StreamState.FINISHING,
        Event.CANCEL: StreamState.DISCARDING,
        Event.CLOSE: StreamState.CLOSING,
        Event.EVICT: StreamState.FINISHING,
    },
    StreamState.FINISHING: {
        # A file's last chunk that is too long for this batch.
        Event.START: StreamState.ENDING,
        Event.START_LAST: StreamState.LAST,
        Event.CANCEL: StreamState.IDLE,
        Event.CLOSE: StreamState.CLOSED,
        Event.EVICT: StreamState.FINISHING,
    },
    StreamState.LAST: {
        Event.DONE: StreamState.IDLE,
        Event.MORE: StreamState.FINISHING,
        Event.CANCEL: StreamState.DISCARDING,
        Event.CLOSE: StreamState.CLOSING,
        Event.EVICT: StreamState.FINISHING,
    },
    StreamState.DISCARDING: {
        Event.DONE: StreamState.IDLE,
        Event.MORE: StreamState.IDLE,
        Event.CANCEL: StreamState.DISCARDING,
        Event.CLOSE: StreamState.CLOSING,
        Event.EVICT: StreamState.IDLE,
    },
    StreamState.CLOSING: {
        Event.DONE: StreamState.CLOSED,
        Event.MORE: StreamState.CLOSED,
        Event.EVICT: StreamState.CLOSED,
    },
    StreamState.CLOSED: {},
}
"""What is not in the table does not happen: a KeyError is a fault of the caller."""

QUEUED = frozenset({StreamState.WAITING, StreamState.FINISHING})
BATCHED = frozenset(
    {
        StreamState.RUNNING,
        StreamState.ENDING,
        StreamState.LAST,
        StreamState.DISCARDING,
        StreamState.CLOSING,
    }
)
UNWANTED = frozenset({StreamState.DISCARDING, StreamState.CLOSING})
SETTLED = frozenset(
    {StreamState.IDLE, StreamState.WAITING, StreamState.RUNNING, StreamState.CLOSED}
)


@dataclass(frozen=True)
class Job:
    """One stream's part of a batch."""

    stream: int
    end: int
    """The utterance's samples up to here are used: Windows.step(end, ended=final)."""
    final: bool
    """The last update of the utterance."""
    live: bool
    """A file's job that is not final covers whole windows, and nobody reads its text."""
    encoder_tokens: int
    """Predicted, as is the next."""
    prefill_tokens: int


@dataclass(frozen=True)
class Cost:
    """What a batch takes, in ms: a line fitted at warm-up."""

    batch_ms: float
    """Whatever is in it: launches and the usual decode steps."""
    encoder_token_ms: float
    prefill_token_ms: float

    def work_ms(self, encoder_tokens: int, prefill_tokens: int) -> float:
        """A job's share, besides `batch_ms`."""
        return self.encoder_token_ms * encoder_tokens + self.prefill_token_ms * prefill_tokens


@dataclass
class _Stream:
    number: int
    live: bool
    update_ms: int
    state: StreamState = StreamState.IDLE
    fed: int = 0
    """Samples of the utterance."""
    heard: int = 0
    """Samples that the last update had."""
    due: float | None = None
    """When the update that waits fell due."""
    running_due: float = 0.0
    """The same of the update in the batch."""
    service: float = 0.0
    """Files: ms of work done, counted from the least served one when this one came."""
    entry: int = 0
    """Its valid entry in the queue; older ones are passed over."""
    expected: float | None = None
    """When the next update will fall due if sound goes on coming; None: nobody speaks."""

    @property
    def slack(self) -> float:
        """s that an update may take from when it fell due."""
        return self.update_ms * SLACK / 1000

    def enough_audio(self) -> bool:
        """An update would be worth its while."""
        if not self.live:
            return self.fed >= samples_for(WINDOW_FRAMES * (self.windows + 1))
        wanted_ms = self.update_ms if self.heard else FIRST_UPDATE_MS
        return (self.fed - self.heard) * 1000 >= wanted_ms * RATE_IN

    @property
    def windows(self) -> int:
        """Windows completed at the last update."""
        return self.heard // WINDOW_SAMPLES

    def job(self, end: int, final: bool) -> Job:
        frames = final_frames(end, final)
        tokens = max(0, encoder_tokens(frames) - self.windows * WINDOW_TOKENS)
        text = self.text_tokens if self.live or final else 0
        return Job(self.number, end, final, self.live, tokens, tokens + text)

    @property
    def text_tokens(self) -> int:
        return TEXT_TOKENS if self.live else FILE_TEXT_TOKENS


class _Queue:
    """Streams by the smallest key first. Of several entries of one the last counts."""

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, _Stream]] = []
        self._entries = 0

    def push(self, key: float, stream: _Stream) -> None:
        self._entries += 1
        stream.entry = self._entries
        heappush(self._heap, (key, self._entries, stream))

    def first(self) -> _Stream | None:
        while self._heap:
            _, entry, stream = self._heap[0]
            if stream.entry == entry and stream.state in QUEUED:
                return stream
            heappop(self._heap)
        return None


class Scheduler:
    """Streams are known by a number. They hear one utterance after another: after `finish` or
    `cancel`, the next one is told of when `settled` says so.

    `max_batch` streams and `max_tokens` prefill tokens go into a batch, but a stream that needs
    more tokens than that for itself is alone in one.
    """

    def __init__(
        self, cost: Cost, max_streams: int, max_files: int, max_batch: int, max_tokens: int
    ) -> None:
        self.late = 0
        """Updates of live streams that were done after their slack."""
        self._cost = cost
        self._most = {True: max_streams, False: max_files}
        self._open = {True: 0, False: 0}
        self._max_batch = max_batch
        self._max_tokens = max_tokens
        self._streams: dict[int, _Stream] = {}
        self._numbers = 0
        self._live = _Queue()
        self._files = _Queue()
        self._served = 0.0  # service of the file last chosen
        self._files_at = float("-inf")  # when there last was work on files in a batch
        self._expected: list[tuple[float, int]] = []  # `_Stream.expected`, and older values of it
        self._slacks: Counter[float] = Counter()  # of the live streams within an utterance
        self._batch_ms = max(BATCH_MS, 2 * cost.batch_ms)
        self._no_pages: deque[tuple[float, _Stream]] = deque()

    def open(self, update_ms: int = 320) -> int:
        """A live stream, updated after every `update_ms` (80 to 1120). Raises EngineFull."""
        return self._admit(_Stream(0, True, update_ms))

    def open_file(self) -> int:
        """A file, recognised chunk by chunk, each an utterance. Raises EngineFull."""
        return self._admit(_Stream(0, False, 0))

    def _admit(self, stream: _Stream) -> int:
        if self._open[stream.live] >= self._most[stream.live]:
            what = "streams" if stream.live else "files"
            raise EngineFull(f"{self._most[stream.live]} {what} are open, the most there may be")
        self._open[stream.live] += 1
        self._numbers += 1
        stream.number = self._numbers
        self._streams[stream.number] = stream
        return stream.number

    @property
    def somebody_speaks(self) -> bool:
        """A live stream is within an utterance."""
        return bool(self._slacks)

    def state(self, stream: int) -> StreamState:
        known = self._streams.get(stream)
        return known.state if known else StreamState.CLOSED

    def settled(self, stream: int) -> bool:
        """Nothing of an earlier utterance is still to be finished or thrown away, so audio may be
        told of; or, once closed, nothing of the stream is left."""
        return self.state(stream) in SETTLED

    def audio(self, stream: int, samples: int, now: float) -> None:
        """So many more samples of the utterance have come."""
        known = self._streams[stream]
        if known.live and not known.fed and samples:
            self._slacks[known.slack] += 1
            self._expect(known, now + FIRST_UPDATE_MS / 1000 - samples / RATE_IN)
        known.fed += samples
        if known.due is None and known.enough_audio():
            known.due = now
            if known.state is StreamState.IDLE:
                self._queue(known, Event.DUE)

    def finish(self, stream: int, now: float) -> None:
        """The utterance has ended: its last update is the most urgent of all."""
        known = self._streams[stream]
        known.due = now if known.due is None else min(known.due, now)
        known.expected = None
        self._queue(known, Event.FINISH)

    def cancel(self, stream: int) -> None:
        """Nobody wants the utterance any more."""
        known = self._streams[stream]
        self._move(known, Event.CANCEL)
        self._end_utterance(known)

    def close(self, stream: int) -> None:
        """Its number is not used again. What it has in the batch must still be `done`."""
        known = self._streams[stream]
        self._move(known, Event.CLOSE)
        self._end_utterance(known)
        self._remove_closed(known)

    def next_batch(self, now: float, ahead: bool = False) -> list[Job]:
        """What to run now, the most urgent first, files last; nothing if nothing is due. Every
        job is answered by `done` when the batch has run. `ahead`: it runs after another one, so
        who will be due by then is not known, and files do not get in their way."""
        while self._no_pages and self._no_pages[0][0] <= now:
            _, stream = self._no_pages.popleft()
            if stream.state in QUEUED:
                self._push(stream)
        self._expire_expected(now)
        jobs: list[Job] = []
        ms, tokens, time_left = self._cost.batch_ms, 0, float("inf")
        while first := self._live.first():
            job = first.job(first.fed, first.state is StreamState.FINISHING)
            ms += self._cost.work_ms(job.encoder_tokens, job.prefill_tokens)
            tokens += job.prefill_tokens
            full = len(jobs) == self._max_batch or tokens > self._max_tokens or ms > self._batch_ms
            if jobs and full:
                return jobs
            self._start(first, job)
            jobs.append(job)
            time_left = min(time_left, first.running_due + first.slack - now)
        if not (ahead and self.somebody_speaks):
            self._add_files(jobs, ms, time_left * 1000 - ms, self._max_tokens - tokens, now)
        return jobs

    def _expect(self, stream: _Stream, when: float) -> None:
        stream.expected = when
        heappush(self._expected, (when, stream.number))

    def _expire_expected(self, now: float) -> None:
        """Of those first in line, who came, ended or did not come."""
        while self._expected:
            when, number = self._expected[0]
            stream = self._streams.get(number)
            if stream and stream.expected == when > now - EXPECTED_LATE:
                return
            heappop(self._expected)

    def _add_files(
        self, jobs: list[Job], ms: float, spare_ms: float, tokens: int, now: float
    ) -> None:
        """Add work on files, up to so many tokens, to a batch of `ms` whose live streams can wait
        for `spare_ms` more."""
        slack = min(self._slacks, default=None)
        if slack is None:
            spare_ms = self._batch_ms - ms
        elif jobs:
            if now < self._files_at + FILE_RIDE_AFTER or any(job.final for job in jobs):
                return
            spare_ms = min(spare_ms, FILE_RIDE_MS)
        else:
            # Whoever falls due while the batch runs needs one of his own in time.
            next_due = self._expected[0][0] if self._expected else float("inf")
            gap = min(slack, max(0.0, next_due - now))
            most_ms = max(FILE_BATCH_MS, self._cost.batch_ms)
            spare_ms = min(spare_ms, most_ms, gap * 1000 - self._cost.batch_ms - ms)
        while len(jobs) < self._max_batch and (stream := self._files.first()):
            # With nobody speaking, a file makes progress however slow the machine is.
            job = self._file_job(stream, spare_ms, tokens, slack is None and not jobs)
            if job is None:
                return
            work = self._cost.work_ms(job.encoder_tokens, job.prefill_tokens)
            self._start(stream, job)
            self._files_at = now
            self._served = stream.service
            stream.service += work
            jobs.append(job)
            spare_ms -= work
            tokens -= job.prefill_tokens

    def _file_job(self, stream: _Stream, ms: float, tokens: int, alone: bool) -> Job | None:
        """As many windows of a file as fit."""
        window_ms = self._cost.work_ms(WINDOW_TOKENS, WINDOW_TOKENS)
        text = stream.text_tokens
        text_ms = self._cost.work_ms(0, text)
        fit = min((ms - text_ms) / window_ms, (tokens - text) / WINDOW_TOKENS, FILE_WINDOWS)
        windows = max(int(fit), int(alone))
        if windows < 1:
            return None
        ended = stream.state is StreamState.FINISHING
        frames = final_frames(stream.fed, ended)
        if ended and frames <= (stream.windows + windows) * WINDOW_FRAMES:
            return stream.job(stream.fed, True)
        until = min(stream.windows + windows, frames // WINDOW_FRAMES)
        return stream.job(samples_for(until * WINDOW_FRAMES), False)

    def done(self, stream: int, now: float, complete: bool = True) -> bool:
        """The batch with the stream's job has run. `complete`: the text is at its end; otherwise
        it goes on in one of the next batches, as urgently. Returns whether the result is wanted:
        not after `cancel` or `close`."""
        known = self._streams[stream]
        before = known.state
        wanted = before not in UNWANTED
        if not complete and wanted:
            known.due = known.running_due
        elif before is StreamState.LAST:
            self._end_utterance(known)
        elif known.due is None and not known.live and known.enough_audio():
            known.due = now
        self.late += known.live and wanted and now > known.running_due + known.slack
        self._queue(known, Event.DONE if complete else Event.MORE)
        if known.state is StreamState.IDLE and known.due is not None:
            self._queue(known, Event.DUE)
        self._remove_closed(known)
        return wanted

    def postpone(self, stream: int, now: float) -> None:
        """It found no pages: its job, taken out of the batch that is being prepared (no `done`),
        comes again a little later."""
        known = self._streams[stream]
        known.due = known.running_due
        self._move(known, Event.MORE)
        self._wait_for_pages(known, now)

    def evict(self, now: float) -> int | None:
        """A live stream finds no page: the file that came last gives its own back and begins its
        chunk again a little later, with new `Windows` fed again; so the file that came first
        always gets on. Its job, if the batch that is being prepared has one, is taken out of it
        (no `done`). None: no file has pages; the stream is to `postpone`."""
        files = (s for s in self._streams.values() if not s.live)
        holding = [s for s in files if s.heard or s.state in BATCHED]
        if not holding:
            return None
        stream = max(holding, key=lambda s: s.number)
        self._move(stream, Event.EVICT)
        stream.heard = 0
        if stream.state is StreamState.IDLE and stream.enough_audio():
            self._move(stream, Event.DUE)
        stream.due = now
        self._wait_for_pages(stream, now)
        return stream.number

    def _wait_for_pages(self, stream: _Stream, now: float) -> None:
        stream.entry = 0  # not in the queue until then
        self._no_pages.append((now + NO_PAGES_WAIT, stream))
        self._remove_closed(stream)

    def timer(self) -> float | None:
        """`next_batch` may have something at this time though nothing happens until then. s."""
        times = [self._no_pages[0][0]] if self._no_pages else []
        if self._expected and self._files.first():
            times.append(self._expected[0][0] + EXPECTED_LATE)
        return min(times, default=None)

    def _start(self, stream: _Stream, job: Job) -> None:
        self._move(stream, Event.START_LAST if job.final else Event.START)
        stream.heard = job.end
        stream.running_due, stream.due = stream.due or 0.0, None
        if stream.live and not job.final:
            self._expect(stream, stream.running_due + stream.update_ms / 1000)

    def _move(self, stream: _Stream, event: Event) -> None:
        stream.state = TRANSITIONS[stream.state][event]

    def _queue(self, stream: _Stream, event: Event) -> None:
        """Move, and queue if that makes an update due."""
        idle = stream.state is StreamState.IDLE
        self._move(stream, event)
        if idle:
            stream.service = max(stream.service, self._served)
        if stream.state in QUEUED:
            self._push(stream)

    def _push(self, stream: _Stream) -> None:
        due = stream.due or 0.0
        if not stream.live:
            self._files.push(stream.service, stream)
        elif stream.state is StreamState.FINISHING:
            self._live.push(due - FINISH_HEAD_START_S, stream)
        else:
            self._live.push(due + stream.slack, stream)

    def _end_utterance(self, stream: _Stream) -> None:
        if stream.live and stream.fed:
            self._slacks[stream.slack] -= 1
            if not self._slacks[stream.slack]:
                del self._slacks[stream.slack]
        stream.fed = stream.heard = 0
        stream.due = stream.expected = None

    def _remove_closed(self, stream: _Stream) -> None:
        if stream.state is StreamState.CLOSED:
            del self._streams[stream.number]
            self._open[stream.live] -= 1
