"""Whom the device's time goes to, by the clock of a simulated one."""

import random
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest

from offhook.pipeline.engines.qwen3_tts.simulated import Simulated
from offhook.pipeline.engines.shared.synthesis.messages import Spoken, Step
from offhook.pipeline.engines.shared.synthesis.scheduler import LEAD
from tests.pipeline.engines.qwen3_tts.stage import COST, SIZES, Stage


def arrivals(rate: float, seconds: float, seed: int) -> Iterator[float]:
    """Times at which somebody comes, on average so many a second."""
    pick = random.Random(seed)
    now = 0.0
    while (now := now + pick.expovariate(rate)) < seconds:
        yield now


def first_sounds(stage: Stage, numbers: dict[int, float]) -> list[float]:
    """ms from when the text was there until the first sound of each."""
    return [(stage.first_sound(number) - came) * 1000 for number, came in numbers.items()]


def voices(stage: Stage, count: int, seconds: float) -> list[int]:
    """So many that begin within some seconds and speak for long."""
    numbers = []
    for _ in range(count):
        numbers.append(stage.speak(80))
        stage.run(seconds / count)
    return numbers


def gaps(stage: Stage, number: int) -> list[float]:
    """s between pieces for which nothing was to be heard of a stream."""
    heard_until = None
    found = []
    for time, spoken in stage.spoken(number):
        if heard_until is not None and time > heard_until:
            found.append(time - heard_until)
        heard_until = max(time, heard_until or 0.0) + len(spoken.pcm) / 24_000
    return found


@pytest.mark.slow
def test_a_thousand_voices_speak_without_a_gap() -> None:
    """1000 frames, 0.05 ms each and 4 ms a launch, and their codec: 80 ms are just enough."""
    cost = replace(COST, steps=[(n, 4 + 0.05 * n) for n in SIZES])
    stage = Stage(slots=1000, pages=14_000, cost=cost)
    numbers = voices(stage, 1000, 2.0)
    stage.run(2.0)
    counters = stage.engine.counters
    assert counters.frames > 1000 * 2 * 12.5
    assert counters.late_frames <= 0.001 * counters.frames
    assert sum(bool(gaps(stage, number)) for number in numbers) <= 1


def test_the_first_sound_of_who_comes_at_random() -> None:
    """Ten a second, each of whom speaks for some 10 s: a hundred voices at a time. A frame alone
    and its sound take 4.5 ms; 8 ms of others' are before it at most, and the launches."""
    stage = Stage(slots=300, pages=4000)
    came = {}
    for time in arrivals(10, 20, seed=1):
        stage.run(time - stage.now)
        came[stage.speak(36)] = stage.now
    stage.run()
    times = first_sounds(stage, came)
    assert np.percentile(times, 50) < 7
    assert np.percentile(times, 95) < 13
    assert stage.engine.counters.late_frames == 0


def test_a_crowd_of_new_voices_does_not_make_the_others_late() -> None:
    stage = Stage(slots=700, pages=9000)
    running = voices(stage, 500, 1.0)
    stage.run(2.0)
    came = {stage.speak(30): stage.now for _ in range(50)}
    stage.run(3.0)
    assert stage.engine.counters.late_frames == 0
    assert not any(gaps(stage, number) for number in running)
    assert max(first_sounds(stage, came)) < 40


def test_the_others_wait_while_somebody_begins() -> None:
    """A short batch, filled up to the size that is captured."""
    stage = Stage(slots=300, pages=4000)
    voices(stage, 200, 1.0)
    stage.run(2.0)
    launched = len(stage.runner.batches)
    slot = 201
    stage.speak(30)
    stage.run(0.03)
    batches = [
        batch for batch in stage.runner.batches[launched:] if slot in {s.slot for s in batch}
    ]
    assert [len(batch) for batch in batches[:4]] == [1, 1, 1, 1]


def test_files_get_what_is_left_and_no_more() -> None:
    stage = Stage(slots=300, pages=4000)
    files = [stage.speak(1500, live=False) for _ in range(8)]
    came = {}
    for time in arrivals(10, 10, seed=2):
        stage.run(time - stage.now)
        came[stage.speak(36)] = stage.now
    made = [stage.seconds(file) for file in files]
    assert min(made) > 0.9 * max(made)
    assert sum(made) > 100  # while some 60 others spoke
    assert stage.engine.counters.late_frames == 0
    stage.run(20.0)
    assert np.percentile(first_sounds(stage, came), 95) < 17


def test_the_codec_is_not_run_away_from() -> None:
    """Codes are kept for 32 frames; the simulated runner looks whether they still are."""
    slow = replace(COST, codec_ms=400.0)
    stage = Stage(cost=slow)
    number = stage.speak(60, live=False)
    stage.run()
    assert stage.seconds(number) == 210 * 0.08


def test_a_slow_device_is_asked_only_now_and_then() -> None:
    """A turn that finds nothing done costs the host time."""
    stage = Stage(cost=replace(COST, steps=[(n, 40.0) for n in SIZES]))
    stage.speak(20)
    turns = 0
    turn = stage.engine.turn

    def counted(now: float) -> bool:
        nonlocal turns
        turns += 1
        return turn(now)

    stage.engine.turn = counted  # type: ignore[method-assign]
    stage.run()
    assert turns < 6 * len(stage.runner.batches)


def test_text_that_comes_while_a_step_is_under_way_is_in_the_next() -> None:
    """40 ms a step, one after another; the next is launched only when this one ends."""
    stage = Stage(cost=replace(COST, steps=[(n, 40.0) for n in SIZES]))
    stage.speak(1000, live=False)
    for _ in range(20):
        stage.run(1.013)
        came = stage.now
        number = stage.speak(3)
        stage.run(0.5)
        assert stage.first_sound(number) - came < 0.04 + 0.04 + 0.005
        stage.engine.cancel(number)


def test_the_device_does_not_stand_still() -> None:
    """3.04 ms a frame, and a little for the codec beside it; launching takes 0.3 ms."""
    stage = Stage()
    file = stage.speak(2000, live=False)
    stage.run(5.0)
    assert stage.seconds(file) / 0.08 > 0.97 * 5.0 / 0.00315


def test_sound_is_not_told_before_it_is_known_whether_it_counts() -> None:
    """The codec may be done with what the model had ended before anybody looks at that."""
    stage = Stage()
    step = stage.runner.step

    def seen_late(steps: Sequence[Step]) -> Simulated[Sequence[int]]:
        flight = step(steps)
        flight.ends += 0.01
        return flight

    stage.runner.step = seen_late  # type: ignore[method-assign]
    numbers = {stage.speak(words): words for words in range(2, 20)}
    stage.run()
    for number, words in numbers.items():
        assert len(stage.frames(number)) == int(3.5 * words)


def test_nothing_is_launched_while_everybody_is_far_ahead() -> None:
    stage = Stage()
    stage.speak(100)
    stage.run(0.3)
    launched = len(stage.runner.batches)
    assert stage.engine.timer() is not None
    stage.run(0.05)
    assert len(stage.runner.batches) <= launched + 1
    steps = [time for time, told in stage.told if isinstance(told, Spoken)]
    stage.run(3.0)
    assert all(b - a < LEAD for a, b in pairwise(steps))
