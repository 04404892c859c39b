"""Voice sound: what is played of what a voice model makes."""

import asyncio
from functools import cache

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from offhook.media.pcm import RATE_OUT, Pcm, dbfs
from offhook.pipeline.engines.embedded.espeak_io import EspeakSynthesizer
from offhook.pipeline.speech.synthesizer import Speech, VoiceOptions
from offhook.pipeline.speech.voice.silence import HELD_SILENCE, MOST_HELD, TAIL
from offhook.pipeline.speech.voice.voice_sound import VoiceSound

PIECE = 1920
TEXT = "Good morning, this is the front desk. How can I help you? Please turn left at the lights."


@cache
def pieces() -> list[Speech]:
    async def say() -> list[Speech]:
        synthesizer = EspeakSynthesizer()
        stream = synthesizer.open(VoiceOptions())
        stream.write(TEXT)
        stream.end()
        return [piece async for piece in stream]

    return asyncio.run(say())


def speech(level_dbfs: float = -20.0) -> Pcm:
    sound = np.concatenate([piece.pcm for piece in pieces()])
    return (sound * 10 ** ((level_dbfs - dbfs(sound)) / 20)).astype(np.int16)


def silence(ms: int) -> Pcm:
    noise = np.random.default_rng(0).normal(0, 8, RATE_OUT * ms // 1000)
    return noise.astype(np.int16)


def played(voice: VoiceSound, pcm: Pcm, piece: int = PIECE) -> list[Pcm]:
    """What each push gives, and the end."""
    starts = range(0, len(pcm), piece)
    return [*(voice.push(pcm[start : start + piece]) for start in starts), voice.finish()]


def tone(hz: float, seconds: float, amplitude: float = 5000) -> Pcm:
    return (amplitude * np.sin(2 * np.pi * hz * np.arange(seconds * RATE_OUT) / RATE_OUT)).astype(
        np.int16
    )


def frequency(sound: Pcm) -> float:
    spectrum = np.abs(np.fft.rfft(sound * np.hanning(len(sound)), 1 << 20))
    return float(np.argmax(spectrum)) * RATE_OUT / (1 << 20)


def jumps(sound: Pcm) -> int:
    """The largest step between two samples: a click is one."""
    return int(np.abs(np.diff(sound.astype(int))).max())


def test_no_silence_before_and_little_after() -> None:
    sound = tone(300, 1)
    out = played(VoiceSound(), np.concatenate([silence(350), sound, silence(350)]))
    assert [len(piece) for piece in out[:4]] == [0] * 4
    joined = np.concatenate(out)
    loud = np.flatnonzero(np.abs(joined.astype(int)) > 500)
    assert loud[0] < RATE_OUT * 25 // 1000
    assert len(sound) <= len(joined) <= len(sound) + RATE_OUT * 25 // 1000 + TAIL
    assert abs(int(joined[0])) + abs(int(joined[-1])) < 10


@pytest.mark.parametrize("speed", [1.0, 1.5])
def test_what_follows_an_end_begins_without_silence_and_with_the_gain(speed: float) -> None:
    voice = VoiceSound(speed)
    clause = np.concatenate([silence(350), tone(300, 2, 2000), silence(350)])
    first = np.concatenate(played(voice, clause))
    gain = voice.gain
    assert gain > 1.2
    second = np.concatenate(played(voice, clause))
    for joined in (first, second):
        assert np.flatnonzero(np.abs(joined.astype(int)) > 500)[0] < RATE_OUT * 25 // 1000
        assert len(joined) == pytest.approx(2 * RATE_OUT / speed, rel=0.1)
    assert np.abs(second[: RATE_OUT // 4].astype(int)).max() > 0.9 * gain * 2000


def test_the_first_that_is_heard_goes_out_with_its_piece() -> None:
    voice = VoiceSound()
    assert not len(voice.push(silence(160)))
    first = np.concatenate([silence(70), tone(300, 0.01)])
    assert RATE_OUT // 100 <= len(voice.push(first)) <= RATE_OUT * 25 // 1000


def test_what_is_heard_goes_out_at_once() -> None:
    voice, sound = VoiceSound(), tone(300, 2)
    for start in range(0, len(sound), PIECE):
        assert len(voice.push(sound[start : start + PIECE])) == PIECE


def test_a_pause_goes_out_with_what_follows_it() -> None:
    voice = VoiceSound()
    voice.push(tone(300, 0.4))
    assert len(voice.push(silence(160))) == 0
    assert len(voice.push(tone(300, 0.08))) == RATE_OUT * 240 // 1000
    pause = silence(2000)
    held = len(pause) - len(np.concatenate([voice.push(pause[:24000]), voice.push(pause[24000:])]))
    assert held == HELD_SILENCE


def test_silence_alone_is_nothing() -> None:
    assert not len(np.concatenate(played(VoiceSound(), silence(2000))))
    assert not len(np.concatenate(played(VoiceSound(1.5), silence(2000))))
    assert not len(VoiceSound().finish())


@settings(max_examples=25)
@given(
    st.lists(st.tuples(st.sampled_from([0, 8, 60, 3000, 20000]), st.integers(1, 6000)), max_size=8),
    st.lists(st.integers(0, 5000), min_size=1, max_size=40),
    st.sampled_from([1.0, 1.0, 0.7, 1.6]),
)
def test_the_sound_does_not_depend_on_the_pieces(
    parts: list[tuple[int, int]], cuts: list[int], speed: float
) -> None:
    rng = np.random.default_rng(len(parts))
    sound = np.concatenate(
        [np.empty(0)] + [np.clip(rng.normal(0, rms, n), -32768, 32767) for rms, n in parts]
    ).astype(np.int16)
    whole = np.concatenate(played(VoiceSound(speed), sound, max(1, len(sound))))
    voice, out, start = VoiceSound(speed), [], 0
    for cut in cuts:
        out.append(voice.push(sound[start : start + cut]))
        start += cut
    out += played(voice, sound[start:])
    joined = np.concatenate(out)
    if speed == 1:
        assert np.array_equal(joined, whole)
    else:
        assert abs(len(joined) - len(whole)) <= TAIL + HELD_SILENCE
        steady = max(0, min(len(joined), len(whole)) - TAIL - HELD_SILENCE)
        assert np.array_equal(joined[:steady], whole[:steady])


@pytest.mark.parametrize("level", [-32.0, -20.0, -14.0])
def test_one_loudness(level: float) -> None:
    voice = VoiceSound()
    out = np.concatenate(played(voice, np.tile(speech(level), 3)))
    assert abs(dbfs(out[-len(out) // 3 :]) + 20) < 1.5
    again = np.concatenate(played(VoiceSound(gain=voice.gain), speech(level)))
    assert abs(dbfs(again) + 20) < 1.5


def test_the_gain_moves_slowly_and_never_in_a_pause() -> None:
    sound = np.concatenate([tone(300, 1, 1000), silence(300), tone(300, 1, 1000)])
    out = np.concatenate(played(VoiceSound(), sound)).astype(float)
    windows = out[: len(out) // 480 * 480].reshape(-1, 480)
    rms = np.sqrt(np.square(windows).mean(axis=1))
    loud = rms[rms > 500]
    steps = 20 * np.log10(loud[2:-2] / loud[1:-3])
    assert np.abs(steps).max() < 1.5
    assert 20 * np.log10(loud[48] / loud[2]) == pytest.approx(3 * 46 / 50, abs=0.4)
    assert 20 * np.log10(loud[-3] / loud[48]) == pytest.approx(3, abs=0.6)


def test_nothing_is_clipped() -> None:
    sound = tone(200, 1, 32700)
    out = np.concatenate(played(VoiceSound(gain=2.0), sound))
    assert np.abs(out.astype(int)).max() < 32767
    assert jumps(out) < 6000
    assert frequency(out) == pytest.approx(200, rel=0.002)


@pytest.mark.parametrize("speed", [0.5, 0.8, 1.3, 2.0])
def test_speed_keeps_the_pitch(speed: float) -> None:
    out = np.concatenate(played(VoiceSound(speed), tone(220, 4, 4630)))
    assert len(out) / RATE_OUT == pytest.approx(4 / speed, rel=0.02)
    assert frequency(out[4800:-4800]) == pytest.approx(220, rel=0.01)
    assert jumps(out[4800:-4800]) < 1.2 * jumps(tone(220, 1, 4630))


def test_fast_speech_is_as_loud_and_no_rougher() -> None:
    slow = np.concatenate(played(VoiceSound(), speech()))
    fast = np.concatenate(played(VoiceSound(1.4), speech()))
    assert len(fast) == pytest.approx(len(slow) / 1.4, rel=0.05)
    assert abs(dbfs(fast) - dbfs(slow)) < 1
    assert jumps(fast) < 1.3 * jumps(slow)


def test_a_starved_voice_stops_between_words() -> None:
    said = [number for number, piece in enumerate(pieces()) if piece.text]
    cut = sum(len(piece.pcm) for piece in pieces()[: said[9]])
    cut = (cut + len(pieces()[said[9]].pcm) // 2) // PIECE * PIECE
    sound = speech()
    voice = VoiceSound()
    voice.starved(True)
    out = [voice.push(sound[start : start + PIECE]) for start in range(0, cut, PIECE)]
    released = np.concatenate(out)
    assert 0.4 * cut < len(released) < cut
    assert dbfs(released[-480:]) < -35
    voice.starved(False)
    rest = voice.push(sound[cut : cut + PIECE])
    assert abs(len(released) + len(rest) - cut - PIECE) <= RATE_OUT // 50
    whole = np.concatenate([released, rest, *played(voice, sound[cut + PIECE :])])
    assert np.array_equal(whole, np.concatenate(played(VoiceSound(), sound)))


def test_a_starved_voice_does_not_hold_for_ever() -> None:
    voice = VoiceSound()
    voice.starved(True)
    sound, out = tone(150, 5), 0
    for start in range(0, len(sound), PIECE):
        out += len(voice.push(sound[start : start + PIECE]))
        assert start + PIECE - out <= MOST_HELD + PIECE
    assert out > len(sound) / 2
