"""Speech of a benchmark's callers: recordings or synthetic babble, split into phrases."""

import json
import os
import re
import wave
from collections.abc import Iterator, Sequence
from itertools import groupby
from pathlib import Path

import numpy as np
import numpy.typing as npt

from offhook.media.pcm import RATE_IN, RATE_OUT, Pcm

Packets = tuple[bytes, ...]
"""Consecutive payloads of 20 ms."""
TICKS = 960
"""RTP ticks per packet."""
SECONDS = 30
FRAME = RATE_IN // 100
"""Samples of a 10 ms frame."""
QUIET_DB = 20
"""Level below the loudest frame at which a frame is not speech; agrees with Silero VAD on these
recordings to a few hundredths of a second, without its model."""
LOUD_FRAMES = 3
"""Consecutive loud frames that start a phrase; a click has fewer."""
PAUSE_FRAMES = 12
PHRASE_FRAMES = 80
"""Minimum frames of a phrase; a shorter one is merged with the next, or dropped at the end of a
recording."""
VOWELS = ((730, 1090, 2440), (530, 1840, 2480), (570, 840, 2410), (300, 870, 2240))
"""Formants in Hz of men (Peterson and Barney 1952)."""
VOWELS_S = (0.75, 1.25, 1.5)


def speech_folder() -> Path:
    """Returns the folder of recordings that OFFHOOK_SPEECH names, or ../shared/speech."""
    return Path(os.environ.get("OFFHOOK_SPEECH", "../shared/speech"))


def no_recordings() -> str:
    """Returns what to say where they are needed and there are none."""
    return (
        f"no recordings: name their folder in OFFHOOK_SPEECH (not {speech_folder()}); "
        "`offhook bench recordings FOLDER` fetches them"
    )


def references(folder: Path) -> dict[Path, str]:
    """Returns the words of each recording."""
    index = folder / "index.json"
    if index.exists():
        named = [(row["file"], row["text"]) for row in json.loads(index.read_text())]
    else:
        readme = (folder / "README.md").read_text()
        named = re.findall(r"^\| (\S+\.wav) \| (.+?) \|$", readme, re.MULTILINE)
    return {folder / name: text for name, text in named}


def read_16k(path: Path) -> Pcm:
    """Returns the samples of a file, which is taken to be mono."""
    with wave.open(str(path)) as file:
        return np.frombuffer(file.readframes(file.getnframes()), np.int16)


def recorded() -> list[Pcm]:
    """Returns the recordings of the folder that are at 16 kHz."""
    found = []
    for path in sorted(speech_folder().glob("*.wav")):
        with wave.open(str(path)) as file:
            if file.getframerate() == RATE_IN:
                found.append(np.frombuffer(file.readframes(file.getnframes()), np.int16))
    return found


def babbled(seconds: float) -> Pcm:
    """Returns 16 kHz babble for use without recordings: four vowels per second, which the VAD takes
    for speech."""
    t = np.arange(round(seconds * RATE_IN)) / RATE_IN
    pitch = 120 + 15 * np.sin(2 * np.pi * 0.7 * t)
    formants = np.array(VOWELS)[(t * 4).astype(int) % len(VOWELS)]
    smooth = np.hanning(RATE_IN * 60 // 1000)
    edges = (len(smooth) // 2, len(smooth) // 2 - 1)
    phase, sound = 2 * np.pi * np.cumsum(pitch) / RATE_IN, np.zeros(len(t))
    glides = [np.convolve(np.pad(f, edges, "edge"), smooth, "valid") for f in formants.T]
    for k in range(1, 28):
        gain = sum(1 / (1 + ((k * pitch - f / smooth.sum()) / 90) ** 2) for f in glides)
        sound += gain / k**0.5 * np.sin(k * phase)
    sound *= np.abs(np.sin(4 * np.pi * t)) ** 0.5
    pcm: Pcm = (sound / np.abs(sound).max() * 12_000).astype(np.int16)
    return pcm


def phrases(recordings: Sequence[Pcm]) -> list[Pcm]:
    """Splits recordings at pauses; each phrase starts and ends with speech, to 10 ms."""
    return [pcm[begin:end] for pcm in recordings for begin, end in _phrases(pcm)]


def _phrases(pcm: Pcm) -> Iterator[tuple[int, int]]:
    frames = pcm[: len(pcm) // FRAME * FRAME].reshape(-1, FRAME).astype(np.float64)
    power = np.mean(frames**2, axis=1)
    loud = power > power.max() / 10 ** (QUIET_DB / 10)
    begin: int | None = None
    at = end = said = 0
    for is_loud, run in groupby(loud.tolist()):
        length = len(list(run))
        if is_loud and (begin is not None or length >= LOUD_FRAMES):
            begin = at if begin is None else begin
            end = at + length
        elif begin is not None and length >= PAUSE_FRAMES and end - begin >= PHRASE_FRAMES:
            yield begin * FRAME, end * FRAME
            begin, said = None, said + 1
        at += length
    if begin is not None and (end - begin >= PHRASE_FRAMES or not said):
        yield begin * FRAME, end * FRAME


def resample(sound: npt.NDArray[np.generic], rate: int, to: int) -> Pcm:
    """Resamples a whole recording via its spectrum."""
    spectrum = np.fft.rfft(sound.astype(np.float64))
    samples = len(sound) * to // rate
    out = np.fft.irfft(spectrum[: samples // 2 + 1], samples) * (to / rate)
    return np.clip(np.rint(out), -32768, 32767).astype(np.int16)


def load_speech(seconds: int = SECONDS) -> Pcm:
    """Returns 24 kHz audio: the concatenated recordings of the folder, or a speech-like buzz if
    there are none."""
    parts = [read_16k(path) for path in sorted(speech_folder().glob("*.wav"))]
    speech = np.concatenate(parts) if parts else _buzz(seconds)
    speech = np.resize(speech, seconds * RATE_IN)
    return resample(speech, RATE_IN, RATE_OUT)


def _buzz(seconds: int) -> Pcm:
    """Returns 16 kHz harmonics of a gliding pitch with four syllables per second."""
    t = np.arange(seconds * RATE_IN) / RATE_IN
    phase = 2 * np.pi * (130 * t + 8 * np.sin(2 * np.pi * 0.7 * t))
    voice = sum(np.sin(k * phase) / k for k in range(1, 20))
    syllables = np.clip(np.sin(2 * np.pi * 4 * t) + 0.7, 0, 1)
    pcm: Pcm = (2500 * voice * syllables).astype(np.int16)
    return pcm
