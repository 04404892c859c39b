"""When noise is suppressed, and what that does to sound."""

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.speech.noises import STEADY, at_power
from offhook.media.pcm import RATE_IN, SAMPLES_IN, Pcm, dbfs
from offhook.pipeline.speech.enhancement.enhancer import (
    CallerQuiet,
    EnhancementEvent,
    EnhancementSettings,
    Enhancer,
    LineClean,
    LineNoisy,
)
from offhook.pipeline.speech.enhancement.levels import NOISE_WINDOWS, LineLevels
from offhook.pipeline.speech.enhancement.noise import (
    CLEAN_WINDOWS,
    NOISY_WINDOWS,
    LineState,
    NoiseDecision,
    NoiseSuppression,
)

Window = tuple[float, float]
"""Speech probability and level."""

SECOND = 31
"""Windows."""


def noise(level: float, windows: int) -> list[Window]:
    return [(0.01, level)] * windows


def voice(level: float, windows: int) -> list[Window]:
    return [(0.95, level)] * windows


def states(windows: list[Window]) -> list[LineState]:
    levels, decision = LineLevels(), NoiseDecision()
    found = []
    for probability, level in windows:
        levels.window(probability, level, learn_speech=True)
        decision.window(levels)
        found.append(decision.state)
    return found


def test_a_noisy_line_is_known_a_second_and_a_half_into_the_call() -> None:
    found = states(noise(-36, 100))
    assert found.index(LineState.NOISY) == NOISE_WINDOWS + NOISY_WINDOWS - 2


@pytest.mark.parametrize("level", [-90, -65, -46])
def test_a_clean_line_stays_as_it_is(level: float) -> None:
    call = noise(level, 3 * SECOND) + 10 * (voice(-26, 2 * SECOND) + noise(level, SECOND))
    assert set(states(call)) == {LineState.CLEAN}


def test_a_caller_who_drowns_out_the_noise_needs_no_suppression() -> None:
    call = noise(-36, 3 * SECOND) + 5 * (voice(-10, 2 * SECOND) + noise(-36, SECOND))
    found = states(call)
    assert found[3 * SECOND - 1] is LineState.NOISY
    assert found[-1] is LineState.CLEAN


def test_a_noise_that_ends_and_one_that_pauses() -> None:
    pause = noise(-36, 3 * SECOND) + noise(-70, 20) + noise(-36, 3 * SECOND)
    assert states(pause)[-1] is LineState.NOISY
    assert states(pause + noise(-70, 5 * SECOND))[-1] is LineState.CLEAN


def test_voices_in_the_background_are_not_suppressed() -> None:
    """The suppressor takes them for the speaker and makes more of them."""
    assert set(states([(0.9, -36.0), (0.6, -38.0), (0.05, -40.0)] * 200)) == {LineState.CLEAN}
    joined_later = noise(-36, 3 * SECOND) + [(0.9, -36.0)] * 10 * SECOND
    assert states(joined_later)[-1] is LineState.CLEAN


@given(st.lists(st.tuples(st.floats(0, 1), st.floats(-90, 6)), max_size=600), st.booleans())
def test_the_state_changes_no_faster_than_it_may(windows: list[Window], learn: bool) -> None:
    levels, decision = LineLevels(), NoiseDecision()
    changes = []
    for at, (probability, level) in enumerate(windows):
        levels.window(probability, level, learn)
        before = decision.state
        assert decision.window(levels) == (decision.state is not before)
        if decision.state is not before:
            changes.append(at)
    assert all(change >= NOISE_WINDOWS + NOISY_WINDOWS - 2 for change in changes)
    assert all(later - earlier >= NOISY_WINDOWS for earlier, later in pairwise(changes))
    for noisy, clean in zip(changes[::2], changes[1::2], strict=False):
        assert clean - noisy >= CLEAN_WINDOWS
    assert 0 <= levels.babble <= 1
    assert levels.speech is None or (learn and -90 <= levels.speech <= 6.001)


# --- sound ---


def ticks(pcm: Pcm) -> list[Pcm]:
    return [pcm[at : at + SAMPLES_IN] for at in range(0, len(pcm), SAMPLES_IN)]


def suppressed(pcm: Pcm, before: Pcm = np.zeros(0, np.int16)) -> Pcm:  # noqa: B008
    suppression = NoiseSuppression()
    suppression.start(before)
    return np.concatenate([suppression.process(tick) for tick in ticks(pcm)])


def steady(kind: str, level: float, seconds: int = 3) -> Pcm:
    sound = STEADY[kind](seconds * RATE_IN, np.random.default_rng(1))
    return np.rint(at_power(sound, (32768 * 10 ** (level / 20)) ** 2)).astype(np.int16)


@pytest.mark.parametrize("kind", STEADY)
def test_steady_noise_becomes_quieter(kind: str) -> None:
    pcm = steady(kind, -36)
    late = slice(RATE_IN, None)
    assert dbfs(suppressed(pcm)[late]) < dbfs(pcm[late]) - 8


def test_audio_before_the_start_teaches_it_the_noise() -> None:
    pcm = steady("fan", -36)
    half = RATE_IN // 2
    untaught, taught = suppressed(pcm[half:]), suppressed(pcm[half:], pcm[:half])
    early = slice(SAMPLES_IN, RATE_IN // 4)
    assert dbfs(taught[early]) < dbfs(untaught[early]) - 3


def test_while_it_is_off_the_very_same_audio_passes() -> None:
    tick = steady("street", -20)[:SAMPLES_IN]
    assert NoiseSuppression().process(tick) is tick


def test_it_fades_in_and_out_without_a_click() -> None:
    pcm = (3000 * np.sin(2 * np.pi * 200 / RATE_IN * np.arange(RATE_IN))).astype(np.int16)
    suppression, out = NoiseSuppression(), []
    for number, tick in enumerate(ticks(pcm)):
        if number == 10:
            suppression.start(np.concatenate(out))
        elif number == 30:
            suppression.stop()
        out.append(suppression.process(tick))
        assert suppression.on == (10 <= number < 30)
    steepest = np.abs(np.diff(pcm.astype(int))).max()
    assert np.abs(np.diff(np.concatenate(out).astype(int))).max() < 1.5 * steepest
    assert out[5] is not out[20]
    np.testing.assert_array_equal(np.concatenate(out[31:]), pcm[31 * SAMPLES_IN :])


def test_silence_stays_silence() -> None:
    assert not suppressed(np.zeros(RATE_IN, np.int16)).any()


@pytest.mark.parametrize(
    "pcm",
    [
        np.tile(np.repeat(np.array([32767, -32768], np.int16), 40), 400),
        np.full(32000, -32768, np.int16),
        np.random.default_rng(2).integers(-32768, 32768, 32000).astype(np.int16),
    ],
    ids=["square", "offset", "noise"],
)
def test_the_loudest_sounds_stay_in_range(pcm: Pcm) -> None:
    """Nothing wraps around: what comes out is like what goes in, or quieter."""
    out = suppressed(pcm)
    assert out.dtype == np.int16
    assert len(out) == len(pcm)
    assert dbfs(out) < 0.1
    square = pcm[40] != pcm[0] and abs(int(pcm[0])) > 32000 and len(set(pcm.tolist())) == 2
    if square:  # 6 ms late: the fundamental keeps its phase
        late = out[RATE_IN + 96 :].astype(float)
        assert np.dot(late, pcm[RATE_IN : RATE_IN + len(late)].astype(float)) > 0


@settings(max_examples=20)
@given(st.lists(st.integers(1, 15), min_size=1, max_size=20))
def test_the_length_of_what_it_has_heard_before_does_not_matter(frames: list[int]) -> None:
    """WebRTC's frames are 10 ms: any number of them at a time gives the same sound."""
    from pywebrtc_audio import NoiseSuppressor

    pcm = steady("street", -30)[: sum(frames) * 160]
    one, other = NoiseSuppressor(RATE_IN, 1, 1), NoiseSuppressor(RATE_IN, 1, 1)
    whole = np.concatenate([one.process(pcm[at : at + 160]) for at in range(0, len(pcm), 160)])
    ends = (np.cumsum(frames) * 160).tolist()
    parts = [other.process(pcm[a:b]) for a, b in pairwise([0, *ends])]
    np.testing.assert_array_equal(np.concatenate(parts), whole)


# --- what a call is told ---


def told(enhancer: Enhancer, windows: list[Window], learn: bool = True) -> list[EnhancementEvent]:
    return [event for p, level in windows for event in enhancer.window(p, level, learn)]


def test_each_setting() -> None:
    noisy, quiet = noise(-36, 100), noise(-75, 100) + voice(-50, 100)
    auto = Enhancer(EnhancementSettings())
    assert [type(event) for event in told(auto, noisy)] == [LineNoisy]
    assert [type(event) for event in told(auto, noise(-70, 200))] == [LineClean]
    assert [type(event) for event in told(Enhancer(EnhancementSettings()), quiet)] == [CallerQuiet]
    off = Enhancer(EnhancementSettings("off", automatic_gain=False))
    assert told(off, noisy + quiet) == []
    assert off.gain == 0
    always = Enhancer(EnhancementSettings("on"))
    assert always.suppression.on
    assert told(always, noisy) == []
    assert [e.suppresses_for("pocketsphinx") for e in (auto, always)] == [True, True]
    assert [e.suppresses_for("nemotron") for e in (auto, always)] == [False, True]


def test_an_echo_raises_nothing() -> None:
    enhancer = Enhancer(EnhancementSettings())
    assert told(enhancer, noise(-75, 100) + voice(-50, 100), learn=False) == []
    assert enhancer.gain == 0
