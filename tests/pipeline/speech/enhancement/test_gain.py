"""How loud callers become."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from offhook.media.pcm import RATE_IN, Pcm, dbfs
from offhook.pipeline.speech.enhancement.gain import (
    DEAD_BAND,
    LOUD,
    MAX_GAIN,
    STEP,
    TARGET,
    AutomaticGain,
    amplified,
)
from offhook.pipeline.speech.enhancement.levels import KNOWN_WINDOWS, LineLevels


class Caller:
    def __init__(self) -> None:
        self.levels, self.gain = LineLevels(), AutomaticGain()
        for _ in range(40):
            self.levels.window(0.01, -75, learn_speech=True)

    def speaks(self, level: float, windows: int = 60) -> list[float]:
        """The gain after each window."""
        gains = []
        for number in range(windows):
            syllable = level + (3, 0, -3, -20)[number % 4]
            if self.levels.window(0.9, syllable, learn_speech=True):
                self.gain.window(self.levels, syllable)
            gains.append(self.gain.db)
        return gains

    def pauses(self, windows: int = 60) -> None:
        for _ in range(windows):
            assert not self.levels.window(0.02, -75, learn_speech=True)


@pytest.mark.parametrize("level", [-10, -20, -30, -35])
def test_ordinary_callers_are_not_touched(level: float) -> None:
    caller = Caller()
    assert not any(caller.speaks(level, 300))
    pcm = np.arange(320, dtype=np.int16)
    assert amplified(pcm, 0.0, caller.gain.db) is pcm


@pytest.mark.parametrize("level", [-40, -45, -50])
def test_a_quiet_caller_becomes_an_ordinary_one_within_a_third_of_a_second(level: float) -> None:
    gains = Caller().speaks(level)
    assert not any(gains[: KNOWN_WINDOWS - 1])
    assert abs(level + gains[2 * KNOWN_WINDOWS] - TARGET) < DEAD_BAND + 2


def test_the_gain_is_limited() -> None:
    assert max(Caller().speaks(-57)) == MAX_GAIN
    assert not any(Caller().speaks(-70)), "as quiet as the noise of a line may be"


def test_pauses_do_not_breathe_and_sentences_do_not_pump() -> None:
    caller = Caller()
    caller.speaks(-46)
    settled = []
    for _ in range(10):
        caller.pauses()
        settled += caller.speaks(-46)
    assert max(settled) - min(settled) < DEAD_BAND


def test_who_takes_the_phone_nearer_is_turned_down_at_once() -> None:
    caller = Caller()
    caller.speaks(-48)
    first = caller.speaks(-15, 1)
    assert -15 + 3 + first[0] <= LOUD
    assert caller.speaks(-15, 300)[-1] == 0


def test_a_television_behind_an_ordinary_caller_is_not_raised() -> None:
    caller = Caller()
    caller.speaks(-22, 100)
    assert not any(caller.speaks(-46, 200))


@given(st.lists(st.tuples(st.floats(0, 1), st.floats(-90, 6)), max_size=300))
def test_whatever_comes_the_gain_is_bounded_and_moves_slowly_upwards(
    windows: list[tuple[float, float]],
) -> None:
    levels, gain, rises = LineLevels(), AutomaticGain(), 0
    for probability, level in windows:
        before = gain.db
        if levels.window(probability, level, learn_speech=True):
            gain.window(levels, level)
        assert 0 <= gain.db <= MAX_GAIN
        rises += gain.db > before + STEP + 1e-9
    assert rises <= 1


def test_a_gain_that_moves_makes_no_step() -> None:
    pcm = np.full(RATE_IN // 10, 100, np.int16)
    out = amplified(pcm, 0.0, 20.0)
    assert (out[0], out[-1]) == (100, 1000)
    assert np.abs(np.diff(out)).max() <= 2


@given(st.floats(0, MAX_GAIN), st.floats(0, MAX_GAIN))
def test_full_scale_is_limited_and_never_wraps(a: float, b: float) -> None:
    square: Pcm = np.tile(np.repeat(np.array([32767, -32768], np.int16), 8), 20)
    out = amplified(square, a, b)
    np.testing.assert_array_equal(out, square)


def test_minus_fifty_becomes_minus_twenty() -> None:
    pcm = np.rint(32768 * 10 ** (-50 / 20) * np.random.default_rng(1).standard_normal(RATE_IN))
    assert dbfs(amplified(pcm.astype(np.int16), 30.0, 30.0)) == pytest.approx(-20, abs=0.1)
