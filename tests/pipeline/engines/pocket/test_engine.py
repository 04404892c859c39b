"""Who speaks when: the engine on a simulated runner and clock."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import pytest

from offhook.media.pcm import RATE_OUT, Pcm
from offhook.pipeline.engines.pocket.engine import (
    LEAD,
    STREAMS_PER_ROW,
    PocketEngine,
    Speaking,
)
from offhook.pipeline.engines.pocket.messages import Clause, ClauseSound, PocketEvent
from offhook.pipeline.engines.pocket.model.config import frame_limit
from offhook.pipeline.engines.shared.synthesis.messages import Ended, Reason
from offhook.pipeline.speech.errors import EngineError, EngineOverloaded

FRAME_S = 0.08


class Frame(NamedTuple):
    pcm: Pcm
    ended: bool


@dataclass
class Begun:
    voice: str
    tokens: list[int]
    seed: int
    frames: int = 0


class Runner:
    """A clause of n tokens has n frames, at most its limit; all are equally loud. A token of -1
    cannot be begun."""

    def __init__(self, rows: int, clock: "Clock", ms: float, begin_ms: float = 0.0) -> None:
        self.rows = rows
        self.began: list[Begun] = []
        self.batches: list[list[int]] = []
        self._clock, self._ms, self._begin_ms = clock, ms, begin_ms
        self._of_row: dict[int, Begun] = {}

    def begin(self, row: int, voice: str, tokens: list[int], seed: int, temperature: float) -> None:
        if -1 in tokens:
            raise ValueError("no such token")
        self._clock.now += self._begin_ms / 1000
        self._of_row[row] = Begun(voice, tokens, seed)
        self.began.append(self._of_row[row])

    def step(self, rows: Sequence[int]) -> list[Frame]:
        assert len(set(rows)) == len(rows) > 0
        self.batches.append(list(rows))
        self._clock.now += self._ms / 1000
        return [self._frame(row) for row in rows]

    def _frame(self, row: int) -> Frame:
        clause = self._of_row[row]
        clause.frames += 1
        count = len(clause.tokens)
        most = frame_limit(count) if 0 in clause.tokens else count
        assert clause.frames <= most, "a row goes on after its end"
        if clause.frames == most:
            del self._of_row[row]
        wave = 8000 * np.sin(np.arange(1920) * 0.1)
        return Frame(wave.astype(np.int16), clause.frames == most)


@dataclass
class Clock:
    now: float = 100.0

    def __call__(self) -> float:
        return self.now


@dataclass
class Stage:
    """An engine that runs until it has nothing to do."""

    live_rows: int = 2
    ms: float = 10.0
    begin_ms: float = 0.0
    clock: Clock = field(default_factory=Clock)
    told: list[PocketEvent] = field(default_factory=list)
    failed: dict[int, EngineError] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.runner = Runner(self.live_rows + 1, self.clock, self.ms, self.begin_ms)
        steps = [(rows, self.ms) for rows in range(1, self.live_rows + 2)]
        self.engine: PocketEngine[str] = PocketEngine(
            self.runner, self.live_rows, steps, self.told.append, self.failed.__setitem__
        )

    def speak(self, *clauses: int, ended: bool = True, **how: object) -> int:
        """Opens a stream with clauses of so many frames."""
        given: dict[str, object] = {"voice": "anna", "seed": 1, "temperature": 0.3, **how}
        number = self.engine.open(Speaking(**given))  # type: ignore[arg-type]
        for frames in clauses:
            self.write(number, frames)
        if ended:
            self.engine.end(number, self.clock.now)
        return number

    def write(self, number: int, frames: int, pause_ms: float = 100.0) -> None:
        self.engine.write(number, Clause([7] * frames, pause_ms), self.clock.now)

    def run(self, until: float = 1e9) -> None:
        """Runs until a time in s from the start, or to the end."""
        while (at := self.engine.timer()) is not None:
            if max(at, self.clock.now) >= 100 + until:
                break
            self.clock.now = max(self.clock.now, at)
            self.engine.turn(self.clock)
        if until < 1e9:
            self.clock.now = max(self.clock.now, 100 + until)

    def sound(self, number: int) -> Pcm:
        pieces = [e.pcm for e in self.told if isinstance(e, ClauseSound) and e.number == number]
        return np.concatenate([np.zeros(0, np.int16), *pieces])

    def seconds(self, number: int) -> float:
        return len(self.sound(number)) / RATE_OUT

    def ended(self) -> Iterator[tuple[int, Reason]]:
        return ((e.number, e.reason) for e in self.told if isinstance(e, Ended))


def test_a_reply_has_all_its_clauses_with_pauses_between() -> None:
    stage = Stage()
    number = stage.speak(10, 5)
    stage.run()
    assert list(stage.ended()) == [(number, Reason.SPOKEN)]
    assert stage.seconds(number) == pytest.approx(15 * FRAME_S + 0.1, abs=0.01)
    pause = int(10.5 * FRAME_S * RATE_OUT)
    quiet = np.flatnonzero(np.abs(stage.sound(number)) > 100)
    assert np.diff(quiet).max() == pytest.approx(0.1 * RATE_OUT, abs=400)
    assert len(stage.sound(number)) > pause
    assert [begun.seed for begun in stage.runner.began] == [1, 2]
    assert stage.engine.open_streams == 0
    assert stage.engine.timer() is None


def test_nobody_is_far_ahead_and_nobody_runs_dry() -> None:
    stage = Stage(live_rows=3, ms=60.0)
    numbers = [stage.speak(50, 50) for _ in range(3)]
    begun = {}
    while stage.engine.timer() is not None:
        stage.clock.now = max(stage.clock.now, stage.engine.timer() or 0)
        stage.engine.turn(stage.clock)
        for number in numbers:
            made = stage.seconds(number)
            if made and number not in begun:
                begun[number] = stage.clock.now - made
            if made:
                assert begun[number] + made - stage.clock.now < LEAD + 2 * FRAME_S + 0.1
    assert stage.engine.counters.late_frames == 0
    assert max(map(len, stage.runner.batches)) == 3


def test_a_new_reply_goes_before_those_that_have_enough() -> None:
    stage = Stage(ms=30.0)
    stage.speak(100)
    stage.run(2)
    new = stage.speak(100)
    began = stage.clock.now
    stage.run(2.2)
    assert stage.seconds(new) > 0
    first = next(e for e in stage.told if isinstance(e, ClauseSound) and e.number == new)
    assert len(first.pcm)
    assert stage.clock.now - began < 0.25


def test_who_finds_no_row_waits_for_the_end_of_a_clause() -> None:
    stage = Stage(live_rows=1)
    one, other = stage.speak(20, 20, 20), stage.speak(20)
    stage.run()
    assert {number for number, _ in stage.ended()} == {one, other}
    assert stage.seconds(other) == pytest.approx(20 * FRAME_S, abs=0.01)
    assert stage.seconds(one) == pytest.approx(60 * FRAME_S, abs=0.3)
    order = [e.number for e in stage.told if isinstance(e, ClauseSound) and e.last]
    assert order.index(other) < len(order) - 1  # it did not wait for the whole of the first
    assert all(len(batch) == 1 for batch in stage.runner.batches)


def test_more_streams_than_can_wait_are_refused() -> None:
    stage = Stage(live_rows=1)
    numbers = [stage.speak(ended=False) for _ in range(STREAMS_PER_ROW)]
    with pytest.raises(EngineOverloaded):
        stage.speak()
    stage.engine.cancel(numbers[0])
    stage.speak(3)


def test_a_cancelled_stream_makes_no_further_frame() -> None:
    stage = Stage(live_rows=1)
    one, other = stage.speak(50), stage.speak(5)
    stage.run(0.1)
    told = len(stage.told)
    assert stage.runner.batches
    stage.engine.cancel(one)
    stage.engine.cancel(one)
    stage.run()
    assert not [e for e in stage.told[told:] if e.number == one]
    assert (other, Reason.SPOKEN) in stage.ended()


def test_a_cancelled_stream_that_waits_for_a_row_does_not_come_back() -> None:
    stage = Stage(live_rows=1)
    one, other = stage.speak(10), stage.speak(10)
    stage.run(0.1)
    stage.engine.cancel(other)
    stage.run()
    assert list(stage.ended()) == [(one, Reason.SPOKEN)]
    assert not len(stage.sound(other))


def test_a_clause_that_cannot_begin_hurts_only_its_reply() -> None:
    stage = Stage()
    one = stage.speak(20)
    broken = stage.speak(5, ended=False)
    stage.engine.write(broken, Clause([-1], 0.0), stage.clock.now)
    stage.engine.end(broken, stage.clock.now)
    stage.run()
    assert list(stage.ended()) == [(one, Reason.SPOKEN)]
    assert str(stage.failed[broken]) == "no such token"
    again = stage.speak(20)
    stage.run()
    assert np.array_equal(stage.sound(again), stage.sound(one))


def test_a_clause_that_does_not_end_is_reported() -> None:
    stage = Stage()
    number = stage.speak(ended=False)
    stage.engine.write(number, Clause([0] * 3, 0.0), stage.clock.now)
    stage.engine.end(number, stage.clock.now)
    stage.run()
    assert list(stage.ended()) == [(number, Reason.BUDGET)]
    assert stage.engine.counters.budget_ends == 1


def test_only_one_clause_begins_between_two_frames() -> None:
    stage = Stage(live_rows=4, begin_ms=80.0)
    for _ in range(4):
        stage.speak(10)
    turns = 0
    while len(stage.runner.began) < 4:
        assert stage.engine.turn(stage.clock)
        turns += 1
        assert len(stage.runner.began) == turns
        assert len(stage.runner.batches) == turns


def test_the_voice_holds_without_text_and_goes_on() -> None:
    stage = Stage()
    number = stage.speak(10, ended=False)
    stage.run(5)
    assert stage.seconds(number) == pytest.approx(0.8, abs=0.01)
    assert stage.engine.timer() is None
    stage.write(number, 10)
    stage.engine.end(number, stage.clock.now)
    stage.run()
    # The listener has had silence enough.
    assert stage.seconds(number) == pytest.approx(1.6, abs=0.01)
    assert list(stage.ended()) == [(number, Reason.SPOKEN)]


def test_with_a_seed_pauses_do_not_depend_on_when_text_came() -> None:
    stage = Stage()
    slow, quick = stage.speak(10, ended=False, exact=True), stage.speak(10, 10, exact=True)
    stage.run(5)
    stage.write(slow, 10)
    stage.engine.end(slow, stage.clock.now)
    stage.run()
    assert np.array_equal(stage.sound(slow), stage.sound(quick))


def test_a_file_takes_what_live_replies_leave() -> None:
    stage = Stage(live_rows=1, ms=70.0)
    file = stage.speak(200, live=False)
    live = stage.speak(50)
    stage.run()
    assert stage.engine.counters.late_frames == 0
    ends = [number for number, _ in stage.ended()]
    assert ends == [live, file]


def test_a_fast_voice_is_made_as_fast_as_it_is_heard() -> None:
    stage = Stage(ms=30.0)
    fast, usual = stage.speak(60, speed=2.0), stage.speak(60)
    stage.run()
    assert stage.seconds(fast) == pytest.approx(stage.seconds(usual) / 2, rel=0.1)
    assert stage.engine.counters.late_frames == 0


def test_calls_for_an_ended_stream_are_ignored() -> None:
    stage = Stage()
    number = stage.speak()
    assert list(stage.ended()) == [(number, Reason.SPOKEN)]
    stage.write(number, 5)
    stage.engine.end(number, 0.0)
    stage.engine.cancel(number)
    stage.run()
    assert not stage.runner.began
