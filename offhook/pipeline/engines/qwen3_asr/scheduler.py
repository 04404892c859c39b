"""Decides which streams the next batch updates.

A live stream is updated once enough new audio has arrived (FIRST_UPDATE_MS, then every update_ms)
and then processes all of it. Updates run earliest deadline first: the deadline is the time an
update became due plus its slack, and never moves, so no stream starves. The end of a turn, which a
caller waits for, has no slack and is put FINISH_HEAD_START_S ahead. A batch that is chosen while
another one runs keeps room for ends of turns, which join it just before it runs, or take the place
of their stream's update in it.

Files use the remaining capacity. While callers speak, files run in short batches of their own, only
where the next live update is expected later: speech arrives in real time, so a speaker is due again
update_ms after the last update. If there are too many speakers for such gaps, a little file work is
added to their batches now and then. Among files, the one with the least service goes first.

Times are float seconds; audio is counted in 16 kHz samples. All operations are O(log n), except
`evict`, which scans all files.
"""

from collections import Counter, deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum, auto
from heapq import heappop, heappush
from typing import NamedTuple

from offhook.media.pcm import RATE_IN
from offhook.pipeline.engines.qwen3_asr.windows import (
    WINDOW_FRAMES,
    WINDOW_SAMPLES,
    WINDOW_TOKENS,
    encoder_tokens,
    final_frames,
    samples_for,
)
from offhook.pipeline.speech.errors import EngineOverloaded

FIRST_UPDATE_MS = 160
"""Audio in ms before the first update of an utterance: about the shortest word, and early enough to
distinguish a barge-in from a cough."""
SLACK = 0.5
"""Slack of an update as a share of its update_ms."""
FINISH_HEAD_START_S = 1.0
"""Head start in s of the end of a turn over updates that are due at the same time. Updates more
than a second late still go first, so none starves under overload."""
BATCH_MS = 50.0
"""Target duration of a batch in ms, since the end of a turn waits for the running batch. Twice an
empty batch on machines where even that takes long."""
JOIN_SHARE = 0.2
"""Share of the tokens of a batch chosen ahead that is kept for ends of turns."""
MAX_REPLACING_TOKENS = 3 * WINDOW_TOKENS
"""Encoder tokens of the end of a turn that takes the place of an update. It is one prefill, and the
runner keeps eight encoded windows of a stream."""
FILE_BATCH_MS = 5.0
"""File work in ms, besides `Cost.batch_ms`, in a batch of its own while callers speak; short,
because batches are not interrupted and a turn may end at any time."""
FILE_RIDE_MS = 1.0
"""File work in ms added to a batch of live streams, which delays them; never added to one with the
end of a turn."""
FILE_RIDE_AFTER = 0.02
"""Time in s without file work after which some is added to live batches."""
EXPECTED_LATE = 0.05
"""Time in s after which an expected update is no longer waited for: the caller fell silent, or the
network is late."""
FILE_WINDOWS = 8
"""Maximum windows of a file in one batch."""
TEXT_TOKENS = 60
"""Predicted prefill tokens of an update besides its audio: the tail (8), a draft (10 to 20) and
half of a typical prefix."""
FILE_TEXT_TOKENS = 120
"""The same for a file, whose draft is the whole text while a chunk is decoding."""
DECODE_STEPS = 16
"""Decode steps in one batch. An unfinished text continues in the next batch with its beginning as
the draft, so a long one does not delay the others."""
NO_PAGES_WAIT = 0.1
"""Time in s before a stream that found no pages, or was evicted, tries again."""


class StreamState(Enum):
    __hash__ = object.__hash__  # members are looked up many times an update: without Python
    IDLE = auto()
    """Nothing is due."""
    WAITING = auto()
    """An update is due."""
    RUNNING = auto()
    """An update is in the batch."""
    ENDING = auto()
    """An update is in the batch and the utterance has ended in the meantime."""
    FINISHING = auto()
    """The last update is due."""
    LAST = auto()
    """The last update is in the batch."""
    DISCARDING = auto()
    """An update is in the batch, but its result will be discarded."""
    CLOSING = auto()
    """As DISCARDING, and the stream is closed afterwards."""
    CLOSED = auto()


class Event(Enum):
    __hash__ = object.__hash__
    DUE = auto()
    START = auto()
    START_LAST = auto()
    DONE = auto()
    MORE = auto()
    """The batch is done, but the text has not ended."""
    FINISH = auto()
    CANCEL = auto()
    CLOSE = auto()
    EVICT = auto()
    """Its pages are taken away and its job is removed from the batch."""


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
        # The device still writes to its pages: they are free when the batch is done.
        Event.CANCEL: StreamState.DISCARDING,
        Event.CLOSE: StreamState.CLOSING,
        Event.EVICT: StreamState.WAITING,
    },
    StreamState.ENDING: {
        # Before the batch runs, its last update takes the place of the one in it.
        Event.START_LAST: StreamState.LAST,
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
"""Transitions missing from the table cannot happen: a KeyError is a bug in the caller."""

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


class Job(NamedTuple):
    """One stream's part of a batch."""

    stream: int
    end: int
    """The update uses the utterance's samples up to here: Windows.step(end, ended=final)."""
    final: bool
    """Whether it is the last update of the utterance."""
    live: bool
    """Whether the stream is live. A file's job that is not final covers whole windows and yields no
    text."""
    encoder_tokens: int
    """Predicted encoder tokens."""
    prefill_tokens: int


def _ended(job: Job, fed: int) -> Job:
    """Returns the last job of a stream, whose utterance has ended after `fed` samples, in place of
    one for an update."""
    more = encoder_tokens(final_frames(fed, True)) - encoder_tokens(final_frames(job.end, False))
    tokens = job.encoder_tokens + more, job.prefill_tokens + more
    return Job(job.stream, fed, True, job.live, *tokens)


@dataclass(frozen=True)
class Cost:
    """Cost model of a batch in ms: a line fitted at warm-up."""

    batch_ms: float
    """Fixed cost: launches and the usual decode steps."""
    encoder_token_ms: float
    prefill_token_ms: float

    def work_ms(self, encoder_tokens: int, prefill_tokens: int) -> float:
        """Returns a job's share of the cost in ms, without `batch_ms`."""
        return self.encoder_token_ms * encoder_tokens + self.prefill_token_ms * prefill_tokens


@dataclass
class _Stream:
    number: int
    live: bool
    update_ms: int
    state: StreamState = StreamState.IDLE
    fed: int = 0
    """Samples of the utterance so far."""
    heard: int = 0
    """Samples covered by the last update."""
    due: float | None = None
    """When the pending update became due, in s."""
    running_due: float = 0.0
    """When the update in the batch became due, in s."""
    service: float = 0.0
    """Files only: work done in ms, relative to the least served file when this one was opened."""
    entry: int = 0
    """Number of its valid queue entry; older entries are ignored."""
    expected: float | None = None
    """When the next update will be due if audio keeps arriving; None if the stream is silent."""
    slack: float = field(init=False)
    """Slack of an update in s."""

    def __post_init__(self) -> None:
        self.slack = self.update_ms * SLACK / 1000

    def enough_audio(self) -> bool:
        """Whether enough new audio has arrived for an update."""
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
    """A priority queue of streams, smallest key first; the latest entry of a stream is the valid
    one."""

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
    """Schedules numbered streams, each with one utterance after another. After `finish` or
    `cancel`, the next utterance may begin once `settled` returns True.

    A batch holds up to `max_batch` streams and `max_tokens` prefill tokens; a stream that needs
    more tokens than that gets a batch of its own.
    """

    def __init__(
        self, cost: Cost, max_streams: int, max_files: int, max_batch: int, max_tokens: int
    ) -> None:
        self.late = 0
        """Live updates completed after their slack."""
        self._cost = cost
        self._most = {True: max_streams, False: max_files}
        self._open = {True: 0, False: 0}
        self._max_batch = max_batch
        self._max_tokens = max_tokens
        self._streams: dict[int, _Stream] = {}
        self._numbers = 0
        self._live = _Queue()
        self._files = _Queue()
        self._served = 0.0  # service of the file chosen last
        self._files_at = float("-inf")  # when a batch last had file work
        self._expected: list[tuple[float, int]] = []  # `_Stream.expected` and its outdated values
        # slacks of the live streams that are in an utterance
        self._slacks: Counter[float] = Counter()
        self._batch_ms = max(BATCH_MS, 2 * cost.batch_ms)
        self._no_pages: deque[tuple[float, _Stream]] = deque()

    def open(self, update_ms: int = 320) -> int:
        """Opens a live stream, updated every `update_ms` (80 to 1120). Raises EngineOverloaded."""
        return self._admit(_Stream(0, True, update_ms))

    def open_file(self) -> int:
        """Opens a file, recognized chunk by chunk, each as one utterance. Raises
        EngineOverloaded."""
        return self._admit(_Stream(0, False, 0))

    def _admit(self, stream: _Stream) -> int:
        if self._open[stream.live] >= self._most[stream.live]:
            what = "streams" if stream.live else "files"
            raise EngineOverloaded(f"{self._most[stream.live]} {what} are open, the maximum")
        self._open[stream.live] += 1
        self._numbers += 1
        stream.number = self._numbers
        self._streams[stream.number] = stream
        return stream.number

    @property
    def has_live_speech(self) -> bool:
        """Whether any live stream is in an utterance."""
        return bool(self._slacks)

    def state(self, stream: int) -> StreamState:
        known = self._streams.get(stream)
        return known.state if known else StreamState.CLOSED

    def settled(self, stream: int) -> bool:
        """Returns whether no earlier utterance is pending, so that audio may be added; for a closed
        stream, whether nothing of it is left."""
        return self.state(stream) in SETTLED

    def audio(self, stream: int, samples: int, now: float) -> None:
        """Records that `samples` more samples of the utterance have arrived."""
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
        """Ends the utterance; its last update is the most urgent kind."""
        known = self._streams[stream]
        known.due = now if known.due is None else min(known.due, now)
        known.expected = None
        self._queue(known, Event.FINISH)

    def cancel(self, stream: int) -> None:
        """Discards the utterance."""
        known = self._streams[stream]
        self._move(known, Event.CANCEL)
        self._end_utterance(known)

    def close(self, stream: int) -> None:
        """Closes the stream; its number is not reused. A job in the batch must still be reported
        with `done`."""
        known = self._streams[stream]
        self._move(known, Event.CLOSE)
        self._end_utterance(known)
        self._remove_closed(known)

    def next_batch(self, now: float, ahead: bool = False) -> list[Job]:
        """Returns the jobs to run now, most urgent first and files last; empty if nothing is due.
        Report each with `done` after the batch. With `ahead` the batch runs after another one, so
        ends of turns may `join` it by then, future live updates are unknown, and files are not held
        back for them."""
        while self._no_pages and self._no_pages[0][0] <= now:
            _, stream = self._no_pages.popleft()
            if stream.state in QUEUED:
                self._push(stream)
        self._expire_expected(now)
        jobs: list[Job] = []
        ms, tokens, time_left = self._cost.batch_ms, 0, float("inf")
        max_tokens = self._max_tokens * (1 - JOIN_SHARE) if ahead else self._max_tokens
        while first := self._live.first():
            job = first.job(first.fed, first.state is StreamState.FINISHING)
            ms += self._cost.work_ms(job.encoder_tokens, job.prefill_tokens)
            tokens += job.prefill_tokens
            full = len(jobs) == self._max_batch or tokens > max_tokens or ms > self._batch_ms
            if jobs and full:
                return jobs
            self._start(first, job)
            jobs.append(job)
            time_left = min(time_left, first.running_due + first.slack - now)
        if not (ahead and self.has_live_speech):
            self._add_files(jobs, ms, time_left * 1000 - ms, self._max_tokens - tokens, now)
        return jobs

    def join(self, jobs: Sequence[Job]) -> list[Job]:
        """Returns the ends of turns that are due by now and go into a batch of `jobs` that was
        chosen earlier with `ahead`: those of streams in the batch, where each replaces the
        stream's job, and others as far as they fit. Report each with `done` after that batch."""
        room = self._max_tokens - sum(job.prefill_tokens for job in jobs)
        replacing: list[Job] = []
        for job in jobs:
            stream = self._streams[job.stream]
            if not stream.live or stream.state is not StreamState.ENDING:
                continue
            last = _ended(job, stream.fed)
            more = last.prefill_tokens - job.prefill_tokens
            if more <= room and last.encoder_tokens <= MAX_REPLACING_TOKENS:
                self._move(stream, Event.START_LAST)
                stream.heard, stream.due = last.end, None
                replacing.append(last)
                room -= more
        joined: list[Job] = []
        while (first := self._live.first()) and first.state is StreamState.FINISHING:
            job = first.job(first.fed, True)
            if len(jobs) + len(joined) == self._max_batch or job.prefill_tokens > room:
                break
            self._start(first, job)
            joined.append(job)
            room -= job.prefill_tokens
        return replacing + joined

    def _expect(self, stream: _Stream, when: float) -> None:
        stream.expected = when
        heappush(self._expected, (when, stream.number))

    def _expire_expected(self, now: float) -> None:
        """Drops expected updates that have arrived, ended or timed out."""
        while self._expected:
            when, number = self._expected[0]
            stream = self._streams.get(number)
            if stream and stream.expected == when > now - EXPECTED_LATE:
                return
            heappop(self._expected)

    def _add_files(
        self, jobs: list[Job], ms: float, spare_ms: float, tokens: int, now: float
    ) -> None:
        """Adds up to `tokens` tokens of file work to a batch of `ms` whose live streams have
        `spare_ms` to spare."""
        slack = min(self._slacks, default=None)
        if slack is None:
            spare_ms = self._batch_ms - ms
        elif jobs:
            if now < self._files_at + FILE_RIDE_AFTER or any(job.final for job in jobs):
                return
            spare_ms = min(spare_ms, FILE_RIDE_MS)
        else:
            # A stream that falls due meanwhile needs a batch of its own in time.
            next_due = self._expected[0][0] if self._expected else float("inf")
            gap = min(slack, max(0.0, next_due - now))
            most_ms = max(FILE_BATCH_MS, self._cost.batch_ms)
            spare_ms = min(spare_ms, most_ms, gap * 1000 - self._cost.batch_ms - ms)
        while len(jobs) < self._max_batch and (stream := self._files.first()):
            # With no live speech, a file makes progress however slow the machine is.
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
        """Returns a job for as many windows of a file as fit, or None."""
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
        """Reports that the batch with the stream's job has run. If not `complete`, the text
        continues in a later batch with the same urgency. Returns whether the result is still
        wanted, i.e. not after `cancel` or `close`."""
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
        """Removes the stream's job from the batch being prepared because it found no pages (no
        `done`); it is retried a little later."""
        known = self._streams[stream]
        known.due = known.running_due
        self._move(known, Event.MORE)
        self._wait_for_pages(known, now)

    def evict(self, now: float) -> int | None:
        """Evicts the most recently opened file that has pages, for a live stream, and returns its
        number, or None (then `postpone` the stream). The file restarts its chunk later with new
        `Windows`, and its job is removed from the batch being prepared (no `done`); older files
        always make progress."""
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
        stream.entry = 0  # not queued until then
        self._no_pages.append((now + NO_PAGES_WAIT, stream))
        self._remove_closed(stream)

    def timer(self) -> float | None:
        """Returns when `next_batch` may have work without further input, in s; None for never."""
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
        """Changes the state and queues the stream if an update became due."""
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
