"""The detector on real voices: what it says, when, and what it does not fall for."""

import os
import shutil
import subprocess
import wave
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from offhook.media.pcm import Pcm, dbfs
from offhook.pipeline.speech.vad.vad import (
    WINDOW,
    NoiseFloor,
    SpeechDetector,
    SpeechDismissed,
    SpeechEvent,
    SpeechStart,
    SpeechStop,
    SpeechSuspected,
)
from offhook.pipeline.speech.vad.vad_io import VadBatch

SPEECH = Path(os.environ.get("OFFHOOK_SPEECH", Path(__file__).parents[5] / "shared/speech"))

Heard = list[tuple[int, SpeechEvent]]


@cache
def model() -> VadBatch:
    return VadBatch()


def voice(tmp_path: Path, text: str, level: float = -25.0) -> Pcm:
    """flite's `slt` saying `text` at 16 kHz."""
    if shutil.which("flite") is None:
        pytest.skip("needs the flite command")
    path = tmp_path / "said.wav"
    subprocess.run(["flite", "-voice", "slt", "-t", text, "-o", str(path)], check=True)
    with wave.open(str(path)) as said:
        assert said.getframerate() == 16_000
        pcm = np.frombuffer(said.readframes(said.getnframes()), np.int16)
    return at_level(pcm, level)


def at_level(pcm: Pcm, level: float) -> Pcm:
    return (pcm * 10 ** ((level - dbfs(pcm)) / 20)).clip(-32768, 32767).astype(np.int16)


def white(seconds: float, level: float, seed: int = 1) -> Pcm:
    noise = np.random.default_rng(seed).standard_normal(int(seconds * 16_000))
    return (noise * 10 ** (level / 20) * 32768).clip(-32768, 32767).astype(np.int16)


def listen(pcm: Pcm) -> Heard:
    """Every event, with the end of the window that brought it."""
    detector = SpeechDetector()
    heard: Heard = []
    for i, probability in enumerate(model().probabilities(pcm)):
        end = (i + 1) * WINDOW
        level = dbfs(pcm[end - WINDOW : end])
        heard += [(end, event) for event in detector.window(float(probability), level, end)]
    return heard


def onset(pcm: Pcm) -> int:
    """Where a clean recording rises within 30 dB of its loud parts for 30 ms."""
    frames = pcm[: len(pcm) // 160 * 160].reshape(-1, 160).astype(float)
    level = 10 * np.log10((frames**2).mean(1) + 1)
    loud = level > max(np.percentile(level, 98) - 30, np.percentile(level, 5) + 8)
    return int(np.flatnonzero(loud[:-2] & loud[1:-1] & loud[2:])[0]) * 160


def test_voice_is_one_start_and_one_stop(tmp_path: Path) -> None:
    said = voice(tmp_path, "Can you hear me?")
    line = white(3 + len(said) / 16_000 + 1, -60)
    line[32_000 : 32_000 + len(said)] += said
    begin = 32_000 + onset(said)
    end = 32_000 + len(said) - onset(said[::-1])
    heard = listen(line)
    assert [type(event) for _, event in heard] == [SpeechSuspected, SpeechStart, SpeechStop]
    (suspected, _), (started, start), (_, stop) = heard
    assert suspected - begin < 100 * 16
    assert started - begin < 130 * 16
    assert abs(start.at_sample - begin) < 60 * 16
    assert abs(stop.at_sample - end) < 150 * 16


@pytest.mark.parametrize("level", [-50, -30, -15])
def test_noise_of_any_level_is_no_speech(level: float) -> None:
    assert listen(white(10, level)) == []


def test_clicks_and_thumps_are_no_speech() -> None:
    line = white(10, -65).astype(float)
    rng = np.random.default_rng(2)
    for at in rng.integers(0, len(line) - 4000, 30):
        size = int(rng.integers(16, 4000))
        burst = rng.standard_normal(size) * np.exp(-np.arange(size) / size * 5)
        line[at : at + size] += burst * 32768 * 10 ** (rng.uniform(-25, -8) / 20)
    assert not [e for _, e in listen(line.clip(-32768, 32767).astype(np.int16)) if not dull(e)]


def dull(event: SpeechEvent) -> bool:
    return isinstance(event, SpeechSuspected | SpeechDismissed)


def test_voice_far_below_a_phones_level_is_no_speech(tmp_path: Path) -> None:
    assert listen(voice(tmp_path, "This is the television in the next room.", -62)) == []


def test_murmur_behind_the_caller_neither_starts_nor_holds_speech(tmp_path: Path) -> None:
    """Many voices at -45 dBFS, one at -25: only the one counts, and it ends."""
    rng = np.random.default_rng(3)
    one = voice(tmp_path, "We were talking about something else entirely, as you may well know.")
    murmur = np.zeros(16_000 * 12)
    for _ in range(12):
        murmur += np.resize(np.roll(one[::-1], rng.integers(len(one))), len(murmur))
    line = at_level((murmur / 12).astype(np.int16), -45)
    said = voice(tmp_path, "Can you hear me?")
    line[128_000 : 128_000 + len(said)] += said
    settled = [(t, e) for t, e in listen(line) if t > 80_000 and not dull(e)]
    assert [type(event) for _, event in settled] == [SpeechStart, SpeechStop]
    assert abs(settled[0][1].at_sample - (128_000 + onset(said))) < 250 * 16


def test_suspicion_is_confirmed_or_dismissed_in_time() -> None:
    detector = SpeechDetector()
    feed = iter(range(WINDOW, 10**9, WINDOW))
    assert detector.window(0.8, -20, next(feed)) == [SpeechSuspected(0)]
    assert detector.window(0.4, -20, next(feed)) == []
    assert detector.window(0.1, -20, at := next(feed)) == [SpeechDismissed(at)]
    assert detector.silence_ms == at // 16


def test_silence_and_speech_are_counted_in_ms() -> None:
    detector = SpeechDetector()
    for i in range(1, 31):
        detector.window(0.0, -70, i * WINDOW)
    assert (detector.silence_ms, detector.speech_ms) == (960, 0)
    for i in range(31, 41):
        detector.window(1.0, -20, i * WINDOW)
    assert (detector.silence_ms, detector.speech_ms) == (0, 320)
    for i in range(41, 46):
        assert detector.window(0.0, -70, i * WINDOW) == []
    assert (detector.silence_ms, detector.speech_ms) == (160, 320)
    assert detector.window(0.0, -70, 46 * WINDOW) == [SpeechStop(40 * WINDOW)]
    assert detector.speech_ms == 0


def test_floor_follows_the_room_but_not_the_talker() -> None:
    floor = NoiseFloor()
    for _ in range(125):
        floor.add(-60)
    for i in range(125):
        floor.add(-55 if i % 5 == 0 else -20)
    assert floor.level == -55
    for _ in range(125):
        floor.add(-40)
    assert floor.level == -40


@given(st.lists(st.tuples(st.floats(0, 1), st.floats(-96, 0)), max_size=120))
def test_events_always_alternate_and_never_go_back(windows: list[tuple[float, float]]) -> None:
    detector = SpeechDetector()
    follows: dict[type, set[type]] = {
        SpeechSuspected: {SpeechDismissed, SpeechStart},
        SpeechDismissed: {SpeechSuspected, SpeechStart},
        SpeechStart: {SpeechStop},
        SpeechStop: {SpeechSuspected, SpeechStart},
    }
    allowed, voiced_until, began = follows[SpeechStop], 0, 0
    for i, (probability, level) in enumerate(windows, 1):
        for event in detector.window(probability, level, i * WINDOW):
            assert type(event) in allowed
            assert voiced_until <= event.at_sample <= i * WINDOW
            if isinstance(event, SpeechStart):
                began = event.at_sample
            if isinstance(event, SpeechStop):
                assert event.at_sample > began
                voiced_until = event.at_sample
            allowed = follows[type(event)]
        assert detector.silence_ms >= 0
        assert detector.speech_ms >= 0


@pytest.mark.speech
@pytest.mark.skipif(not SPEECH.is_dir(), reason="no recorded speech")
def test_people_are_noticed_within_a_tenth_of_a_second_in_noise() -> None:
    delays = []
    for path in sorted(SPEECH.glob("*.wav")):
        with wave.open(str(path)) as recorded:
            pcm = np.frombuffer(recorded.readframes(recorded.getnframes()), np.int16)
        clean = at_level(pcm, -25)
        line = white(2 + len(clean) / 16_000, -45)
        line[32_000:] += clean[: len(line) - 32_000]
        starts = [t for t, e in listen(line) if isinstance(e, SpeechStart)]
        delays.append((starts[0] - 32_000 - onset(clean)) / 16)
    assert np.median(delays) < 110
    assert max(delays) < 250
