"""Files to transcribe, made here: spoken by Flite, or of nothing but a tone, in any container."""

import io
import wave
from fractions import Fraction
from functools import cache
from pathlib import Path
from typing import IO

import av
import numpy as np
import pytest

from offhook.media.pcm import RATE_IN, Pcm
from offhook.pipeline.engines.embedded.flite_io import FliteSynthesizer
from offhook.pipeline.speech.errors import EngineError

QUESTION = "tell me about your opening hours"


@cache
def spoken(text: str = QUESTION) -> Pcm:
    """At 16 kHz. Skips the test where Flite is not."""
    try:
        sound = FliteSynthesizer().sound(text.split(), "slt")
    except EngineError as error:
        pytest.skip(str(error))
    places = np.arange(0, len(sound.pcm) - 1, sound.rate / RATE_IN)
    return np.interp(places, np.arange(len(sound.pcm)), sound.pcm).astype(np.int16)


def tone(seconds: float, hz: float = 440) -> Pcm:
    """Louder and quieter twice a second, as speech is."""
    at = np.arange(int(seconds * RATE_IN)) / RATE_IN
    swell = 0.55 + 0.45 * np.sin(4 * np.pi * at)
    return (9000 * swell * np.sin(2 * np.pi * hz * at)).astype(np.int16)


def write_wav(path: Path, pcm: Pcm, channels: int = 1) -> Path:
    path.write_bytes(wav(pcm, channels))
    return path


def wav(pcm: Pcm, channels: int = 1, rate: int = RATE_IN) -> bytes:
    data = io.BytesIO()
    with wave.open(data, "wb") as file:
        file.setnchannels(channels)
        file.setsampwidth(2)
        file.setframerate(rate)
        file.writeframes(np.repeat(pcm, channels).tobytes())
    return data.getvalue()


def write_video(path: Path, pcm: Pcm) -> Path:
    """Pictures and sound, as a telephone makes them."""
    with av.open(str(path), "w") as container:
        pictures = container.add_stream("mpeg4", rate=5)
        pictures.width, pictures.height, pictures.pix_fmt = 64, 48, "yuv420p"
        sound = container.add_stream("aac", rate=RATE_IN)
        for _ in range(len(pcm) * 5 // RATE_IN):
            picture = av.VideoFrame.from_ndarray(np.zeros((48, 64, 3), np.uint8), format="rgb24")
            container.mux(pictures.encode(picture))
        _encode(container, sound, pcm, RATE_IN)
        container.mux(pictures.encode(None))
    return path


def write_pictures(path: Path) -> Path:
    """A film without sound."""
    with av.open(str(path), "w") as container:
        pictures = container.add_stream("mpeg4", rate=5)
        pictures.width, pictures.height, pictures.pix_fmt = 64, 48, "yuv420p"
        picture = av.VideoFrame.from_ndarray(np.zeros((48, 64, 3), np.uint8), format="rgb24")
        container.mux(pictures.encode(picture))
        container.mux(pictures.encode(None))
    return path


def encoded(pcm: Pcm, form: str, codec: str, rate: int = RATE_IN) -> bytes:
    """In the container `form`, as ogg, by the codec, as libopus. `rate` is what the samples are
    said to be at."""
    data: IO[bytes] = io.BytesIO()
    with av.open(data, "w", format=form) as container:
        _encode(container, container.add_stream(codec, rate=rate), pcm, rate)
    data.seek(0)
    return data.read()


def _encode(container: object, stream: object, pcm: Pcm, rate: int) -> None:
    for at in range(0, len(pcm), 1024):
        block = av.AudioFrame.from_ndarray(pcm[None, at : at + 1024], "s16", "mono")
        block.sample_rate, block.pts, block.time_base = rate, at, Fraction(1, rate)
        container.mux(stream.encode(block))
    container.mux(stream.encode(None))
