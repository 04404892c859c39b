"""How several voices become one: who is heard, nothing clipped, nobody cut off."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from offhook.media import native
from offhook.media.pcm import SAMPLES_IN, SAMPLES_OUT, dbfs
from offhook.media.rooms.mixing import CEILING, MAX_VOICES, Limiter, Voice


def loud(level):
    """20 ms at 16 kHz of this magnitude."""
    return np.resize(np.array([level, -level], np.int16), SAMPLES_IN)


def heard(voices, *levels):
    """Numbers of those who are heard in a tick in which they are this loud."""
    for voice, level in zip(voices, levels, strict=True):
        voice.receive(loud(level))
    chosen = Voice.loudest(voices)
    return [number for number, voice in enumerate(voices) if voice in chosen]


def test_all_are_heard_who_speak_and_no_silent_line():
    voices = [Voice() for _ in range(5)]
    assert heard(voices, 1000, 0, 5, 3000, 0) == [0, 3]


def test_of_many_the_loudest_three():
    voices = [Voice() for _ in range(5)]
    assert heard(voices, 100, 4000, 3000, 200, 2000) == [1, 2, 4]


def test_a_voice_that_is_heard_stays_until_another_is_clearly_louder():
    voices = [Voice() for _ in range(4)]
    assert heard(voices, 3000, 3000, 1000, 0) == [0, 1, 2]
    assert heard(voices, 3000, 3000, 1000, 1200) == [0, 1, 2]
    assert heard(voices, 3000, 3000, 1000, 2000) == [0, 1, 3]


def test_a_pause_between_words_does_not_take_its_place():
    voices = [Voice() for _ in range(4)]
    heard(voices, 3000, 3000, 3000, 300)
    assert heard(voices, 0, 3000, 3000, 300) == [0, 1, 2]


def test_who_is_silenced_loses_the_place_at_once():
    voices = [Voice() for _ in range(4)]
    heard(voices, 3000, 3000, 3000, 300)
    voices[0].silence()
    for voice, level in zip(voices[1:], (3000, 3000, 300), strict=True):
        voice.receive(loud(level))
    assert Voice.loudest(voices) == voices[1:]


def sine(hz, peak, ticks=50):
    at = np.arange(ticks * SAMPLES_OUT) / 24_000
    return (peak * np.sin(2 * np.pi * hz * at)).astype(np.int16)


def test_one_sound_is_passed_on_as_it_is():
    sound = sine(400, 32767, 1)
    assert Limiter().mix([sound]) is sound
    assert Limiter().mix([]) is None


def test_a_sum_is_exact_where_it_fits():
    a, b = sine(400, 9000, 1), sine(700, 9000, 1)
    np.testing.assert_array_equal(Limiter().mix([a, b]), a + b)


def distortion_db(pcm, *tones):
    """What there is beside these tones, in dB of the whole."""
    power = np.abs(np.fft.rfft(pcm * np.hanning(len(pcm)))) ** 2
    hz = np.fft.rfftfreq(len(pcm), 1 / 24_000)
    own = np.any([np.abs(hz - tone) < 10 for tone in tones], axis=0)
    return 10 * np.log10(power[~own].sum() / power.sum() + 1e-12)


def test_loud_voices_together_are_lowered_not_clipped():
    tones = 400, 730, 1170
    sounds = [sine(hz, 32767) for hz in tones]
    limiter = Limiter()
    mixed = np.concatenate(
        [
            limiter.mix([sound[at : at + SAMPLES_OUT] for sound in sounds])
            for at in range(0, len(sounds[0]), SAMPLES_OUT)
        ]
    )
    assert np.abs(mixed.astype(int)).max() <= CEILING
    clipped = np.clip(sum(sound.astype(int) for sound in sounds), -32768, 32767)
    settled = mixed[12_000:]
    assert distortion_db(settled, *tones) < -30 < distortion_db(clipped[12_000:], *tones)
    assert dbfs(settled) > -12


def test_the_gain_comes_back():
    limiter = Limiter()
    limiter.mix([sine(400, 32767, 1), sine(400, 32767, 1)])
    quiet = sine(400, 1000, 1)
    mixed = [limiter.mix([quiet]) for _ in range(60)]
    levels = [dbfs(one) for one in mixed]
    assert levels == sorted(levels)
    assert mixed[-1] is quiet


packets = st.lists(
    st.lists(st.integers(-32768, 32767), min_size=1, max_size=6), max_size=MAX_VOICES + 2
)


@given(st.lists(packets, max_size=5))
def test_no_sum_is_ever_larger_than_the_ceiling(ticks):
    limiter = Limiter()
    for tick in ticks:
        sounds = [np.resize(np.array(one, np.int16), SAMPLES_OUT) for one in tick]
        mixed = limiter.mix(sounds)
        assert (mixed is None) == (not sounds)
        if len(sounds) > 1:
            assert np.abs(mixed.astype(int)).max() <= CEILING


@pytest.mark.parametrize("level", [1, 30])
def test_noise_of_a_line_is_silence(level):
    voice = Voice()
    voice.receive(loud(level))
    assert voice.sound is None


SOUNDS = st.lists(
    st.binary(min_size=2 * SAMPLES_OUT, max_size=2 * SAMPLES_OUT).map(
        lambda data: np.frombuffer(data, np.int16)
    )
    | st.integers(-32768, 32767).map(lambda level: np.full(SAMPLES_OUT, level, np.int16)),
    max_size=5,
)


@pytest.mark.skipif(not native.BUILT, reason="nothing was compiled")
@given(st.lists(st.tuples(SOUNDS, st.integers(0, 14)), min_size=1, max_size=6))
def test_the_compiled_mix_is_that_of_python(ticks):
    """Ticks one after the other, since a loud one lowers those that follow."""
    mixes = []
    for compiled in (True, False):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(native, "used", compiled)
            limiter = Limiter()
            said = [[sound >> shift for sound in sounds] for sounds, shift in ticks]
            mixes.append([limiter.mix(sounds) for sounds in said])
    for mine, other in zip(*mixes, strict=True):
        assert (mine is None) == (other is None)
        assert mine is None or np.array_equal(mine, other)


@pytest.mark.skipif(not native.BUILT, reason="nothing was compiled")
@given(SOUNDS.filter(bool))
def test_the_compiled_level_is_that_of_python(sounds):
    for sound in sounds:
        x = sound.astype(np.float64)
        assert native.mean_square(sound) == np.dot(x, x) / len(x)


@pytest.mark.skipif(not native.BUILT, reason="nothing was compiled")
def test_the_compiled_mix_leaves_what_is_unusual_to_python():
    tick = np.zeros(SAMPLES_OUT, np.int16)
    assert native.mix_unlimited([], CEILING) is None
    assert native.mix_unlimited([tick, tick[:-1]], CEILING) is None
    assert native.mix_unlimited([np.zeros(SAMPLES_OUT + 1, np.int16)], CEILING) is None
    assert native.mix_unlimited([tick] * 200, CEILING) is None
    assert native.mix_unlimited([tick + 1, tick + 2], 3) is not None
    assert native.mix_unlimited([tick - 1, tick - 3], 3) is None
    for wrong in ((), ([tick],), ((tick,), 1), ([b""], 1), ([tick.astype(np.float32)], 1)):
        with pytest.raises(TypeError):
            native.mix_unlimited(*wrong)
    with pytest.raises(OverflowError):
        native.mix_unlimited([tick], 1 << 80)
