"""The engine of Pocket TTS: turns the clauses of many streams into audio with one runner.

One thread owns it and calls `turn` repeatedly. A turn makes a frame of 80 ms for each stream that
needs one, those whose audio runs out first before the others (see `tts.scheduler`); none is made
further ahead than LEAD, so nobody waits for a stream that has enough, and cancelling one takes
effect with the next turn.

A stream has a row of the runner only while it speaks a clause. So more streams may be open than
there are rows: one that finds none waits until the next clause of another has been spoken, and what
is short of time gets longer pauses between clauses, rather than holes in its words. At most one
clause is begun in a turn, since that takes as long as a frame or two.

Silence at the ends of a clause is the model's accident: it is cut off, and the pause that its
punctuation asks for follows.
"""

from collections import deque
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

import numpy as np
from loguru import logger

from offhook.media.pcm import RATE_OUT, Pcm
from offhook.pipeline.engines.pocket.messages import (
    Clause,
    ClauseSound,
    FrameProtocol,
    PocketEvent,
    RunnerProtocol,
)
from offhook.pipeline.engines.pocket.model.config import frame_limit
from offhook.pipeline.engines.qwen3_tts.streams import RAMP_FRAMES
from offhook.pipeline.engines.shared.synthesis.messages import Ended, Reason
from offhook.pipeline.engines.shared.synthesis.scheduler import NEW, Speaker, TtsScheduler
from offhook.pipeline.speech.errors import EngineError, EngineOverloaded
from offhook.pipeline.speech.synthesizer import MAX_SEED
from offhook.pipeline.speech.voice.voice_sound import VoiceSound

LEAD, WAKE = 1.0, 0.7
"""Audio in s that streams are given beyond what has been heard, and below which frames are made
again: other work on a CPU holds the engine up for longer than on a GPU."""
STREAMS_PER_ROW = 4
"""Streams that may be open per row."""

V = TypeVar("V", bound=Hashable)


@dataclass(frozen=True)
class Speaking(Generic[V]):
    """How a stream speaks."""

    voice: V
    seed: int
    temperature: float
    speed: float = 1.0
    gain: float = 1.0
    """Gain with which it begins."""
    live: bool = True
    exact: bool = False
    """Whether the audio must not depend on when the text arrived: pauses have their full length
    even if the listener has waited."""


class Stream(Speaker, Generic[V]):
    __slots__ = (
        "begun",
        "clause",
        "clauses",
        "ended",
        "frames",
        "how",
        "made",
        "number",
        "pause_ms",
        "quiet_since",
        "reason",
        "row",
        "silent",
        "sound",
        "tokens",
    )

    def __init__(self, number: int, how: Speaking[V]) -> None:
        super().__init__(how.live)
        self.number = number
        self.how = how
        self.sound = VoiceSound(how.speed, how.gain)
        self.clauses: deque[Clause] = deque()
        self.ended = False
        """No more clauses follow."""
        self.clause: Clause | None = None
        """The clause being spoken."""
        self.row = -1
        self.frames = 0
        """Frames of the clause."""
        self.begun = 0
        """Clauses begun so far, and their tokens."""
        self.tokens = 0
        self.made = 0
        """Frames of all clauses."""
        self.pause_ms = 0.0
        """Pause due before the next audio."""
        self.silent = True
        """All audio has been played, as far as known, or there was none."""
        self.quiet_since = 0.0
        """When it ended, if so, in s."""
        self.reason = Reason.SPOKEN


@dataclass
class Counters:
    """Totals since the engine started."""

    steps: int = 0
    frames: int = 0
    clauses: int = 0
    late_frames: int = 0
    """Frames of live streams made after the preceding audio had run out."""
    budget_ends: int = 0
    """Clauses that the model did not end."""


class PocketEngine(Generic[V]):
    """Speaks numbered streams. Call all methods from one thread; `tell` and `fail` must not call
    any. Times are seconds of one monotonic clock. Numbers are not reused, and calls for an ended
    stream are ignored."""

    def __init__(
        self,
        runner: RunnerProtocol[V],
        live_rows: int,
        steps: Sequence[tuple[int, float]],
        tell: Callable[[PocketEvent], None],
        fail: Callable[[int, EngineError], None],
    ) -> None:
        """Live streams use the first `live_rows` rows, others the rest. `steps` are pairs (rows in
        a step, ms), ascending up to all rows."""
        self.counters = Counters()
        self._runner = runner
        self._tell, self._fail = tell, fail
        self._scheduler = TtsScheduler(steps, runner.rows, LEAD, WAKE)
        self._most = STREAMS_PER_ROW * live_rows
        self._free = {
            True: list(range(live_rows)),
            False: list(range(live_rows, runner.rows)),
        }
        self._waiting: list[Stream[V]] = []
        """Streams that found no free row."""
        self._streams: dict[int, Stream[V]] = {}
        self._numbers = 0
        # The batch being prepared:
        self._batch: list[Stream[V]] = []
        self._later: list[Stream[V]] = []
        self._began = False

    # --- streams ---

    @property
    def open_streams(self) -> int:
        return len(self._streams)

    def open(self, how: Speaking[V]) -> int:
        """Opens a stream and returns its number. Raises EngineOverloaded."""
        if len(self._streams) >= self._most:
            raise EngineOverloaded(f"{self._most} streams are open, the most there may be")
        self._numbers += 1
        self._streams[self._numbers] = Stream(self._numbers, how)
        return self._numbers

    def write(self, number: int, part: Clause, now: float) -> None:
        """Adds a clause."""
        stream = self._streams.get(number)
        if stream is None or stream.ended:
            return
        stream.clauses.append(part)
        if stream.clause is None and len(stream.clauses) == 1:
            if stream.ends <= now:
                stream.silent, stream.quiet_since = True, stream.ends
                stream.ends = now + NEW
            self._scheduler.want(stream)

    def end(self, number: int, now: float) -> None:
        """Marks the end of the stream's text."""
        stream = self._streams.get(number)
        if stream is not None:
            stream.ended = True
            if stream.clause is None and not stream.clauses:
                self._over(stream)

    def cancel(self, number: int) -> None:
        """Cancels the stream; no further events follow."""
        stream = self._streams.get(number)
        if stream is not None:
            self._close(stream)

    def timer(self) -> float | None:
        """Returns when `turn` has work without further input, in s; None for never."""
        return self._scheduler.due()

    # --- one turn ---

    def turn(self, clock: Callable[[], float]) -> bool:
        """Makes the frames that are due and returns whether there were any."""
        now = clock()
        due = self._scheduler.due()
        if due is None or due > now:
            return False
        self._batch, self._later, self._began = [], [], False
        self._scheduler.batch(now, lambda speaker: self._join(speaker, now))
        for stream in self._later:
            self._scheduler.want(stream)
        if self._batch:
            frames = self._runner.step([stream.row for stream in self._batch])
            self.counters.steps += 1
            self.counters.frames += len(frames)
            now = clock()
            for stream, frame in zip(self._batch, frames, strict=True):
                self._collect(stream, frame, now)
        return bool(self._batch) or self._began

    def _join(self, speaker: Speaker, now: float) -> bool:
        """Adds a stream to the batch, if it has a clause to speak and a row for it."""
        assert isinstance(speaker, Stream)
        stream: Stream[V] = speaker
        if stream.clause is None and not self._begin(stream, now):
            return False
        self._batch.append(stream)
        return True

    def _begin(self, stream: Stream[V], now: float) -> bool:
        free = self._free[stream.live]
        if not free:
            self._waiting.append(stream)
            return False
        if self._began:
            self._later.append(stream)
            return False
        self._began = True
        clause, how = stream.clauses.popleft(), stream.how
        try:
            seed = (how.seed + stream.begun) & MAX_SEED
            self._runner.begin(free[-1], how.voice, clause.tokens, seed, how.temperature)
        except Exception as error:
            logger.exception("a clause of {} tokens could not begin", len(clause.tokens))
            self._close(stream)
            told = error if isinstance(error, EngineError) else EngineError(f"{error}")
            self._fail(stream.number, told)
            return False
        self.counters.clauses += 1
        stream.row, stream.clause, stream.frames = free.pop(), clause, 0
        stream.begun += 1
        stream.tokens += len(clause.tokens)
        if stream.silent and not how.exact:
            # The listener has had silence since the last clause.
            stream.pause_ms = max(0.0, stream.pause_ms - 1000 * (now - stream.quiet_since))
        return True

    def _collect(self, stream: Stream[V], frame: FrameProtocol, now: float) -> None:
        clause = stream.clause
        assert clause is not None
        stream.frames += 1
        stream.made += 1
        stream.ramping = stream.made < RAMP_FRAMES
        pcm, last = stream.sound.push(frame.pcm), frame.ended
        if last:
            if stream.frames >= frame_limit(len(clause.tokens)):
                stream.reason = Reason.BUDGET
                self.counters.budget_ends += 1
            pcm = np.concatenate([pcm, stream.sound.finish()])
        self._deliver(stream, pcm, last, now)
        if not last:
            self._scheduler.want(stream)
            return
        stream.pause_ms = clause.pause_ms / stream.how.speed
        self._leave_row(stream)
        if stream.clauses:
            self._scheduler.want(stream)
        elif stream.ended:
            self._over(stream)

    def _deliver(self, stream: Stream[V], pcm: Pcm, last: bool, now: float) -> None:
        """Tells the audio of a frame, after the pause before it, and counts how long it lasts."""
        if len(pcm):
            pause = np.zeros(round(RATE_OUT * stream.pause_ms / 1000), np.int16)
            stream.pause_ms = 0.0
            if len(pause):
                pcm = np.concatenate([pause, pcm])
            if stream.live and stream.ends < now and not stream.silent:
                self.counters.late_frames += 1
            begins = now if stream.silent else max(now, stream.ends)
            stream.silent, stream.ends = False, begins + len(pcm) / RATE_OUT
        if len(pcm) or last:
            sound = ClauseSound(stream.number, pcm, stream.tokens, last, stream.sound.gain)
            self._tell(sound)

    def _leave_row(self, stream: Stream[V]) -> None:
        if stream.clause is None:
            return
        stream.clause = None
        self._free[stream.live].append(stream.row)
        for waiting in self._waiting:
            self._scheduler.want(waiting)
        self._waiting.clear()

    def _over(self, stream: Stream[V]) -> None:
        """Ends a stream after all of its text."""
        self._close(stream)
        self._tell(Ended(stream.number, stream.reason))

    def _close(self, stream: Stream[V]) -> None:
        del self._streams[stream.number]
        self._scheduler.drop(stream)
        if stream in self._waiting:
            self._waiting.remove(stream)
        self._leave_row(stream)
