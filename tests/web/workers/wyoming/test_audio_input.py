"""PCM of other formats becomes 16 kHz mono of the same pitch and level."""

import numpy as np
import pytest

from offhook.media.pcm import RATE_IN, Pcm
from offhook.pipeline.speech.remote.worker_protocol import ProtocolError
from offhook.web.workers.wyoming.audio_input import RATES, AudioFormat, AudioInput

HZ = 500


def tone(form: AudioFormat, seconds: float = 1.0) -> bytes:
    """Of HZ at half the full scale, on the first channel twice as loud as on all in the mean."""
    at = np.arange(int(seconds * form.rate)) / form.rate
    wave = 0.5 * np.sin(2 * np.pi * HZ * at)
    if form.width == 1:
        samples = (128 + 127 * wave).astype(np.uint8).reshape(-1, 1)
    else:
        scaled = (wave * ((1 << 8 * form.width - 1) - 1)).astype("<i8")
        samples = scaled.view(np.uint8).reshape(-1, 8)[:, : form.width]
    return np.repeat(samples, form.channels, axis=0).tobytes()


def converted(form: AudioFormat, data: bytes, chunk: int) -> Pcm:
    audio = AudioInput(form)
    frame = form.width * form.channels
    cut = [data[at : at + chunk * frame] for at in range(0, len(data), chunk * frame)]
    return np.concatenate([pcm for piece in cut for pcm in audio.process(piece)])


@pytest.mark.parametrize(
    ("rate", "width", "channels"),
    [(16_000, 1, 1), (16_000, 4, 2), (48_000, 2, 2), (44_100, 2, 1), (8_000, 3, 1), (22_050, 4, 6)],
)
def test_a_tone_keeps_its_pitch_and_level(rate: int, width: int, channels: int) -> None:
    form = AudioFormat(rate, width, channels)
    pcm = converted(form, tone(form), 1000)
    assert abs(len(pcm) - RATE_IN) < RATE_IN / 50
    spectrum = np.abs(np.fft.rfft(pcm * np.hanning(len(pcm))))
    assert abs(int(spectrum.argmax()) * RATE_IN / len(pcm) - HZ) < 5
    assert 0.45 < np.abs(pcm[1000:-1000]).max() / 32768 < 0.55


def test_chunks_of_any_size_give_the_same() -> None:
    form = AudioFormat(48_000, 2, 2)
    data = tone(form)
    assert np.array_equal(converted(form, data, 1), converted(form, data, 48_000))


@pytest.mark.parametrize(
    "asked", [(0, 2, 1), (44_099, 2, 1), (16_000, 0, 1), (16_000, 5, 1), (16_000, 2, 0)]
)
def test_unusual_formats_are_refused(asked: tuple[int, int, int]) -> None:
    with pytest.raises(ProtocolError, match="not"):
        AudioFormat(*asked)


def test_half_a_sample_is_refused() -> None:
    with pytest.raises(ProtocolError, match="5 bytes of audio: 4 are a sample of each channel"):
        list(AudioInput(AudioFormat(RATES[0], 2, 2)).process(bytes(5)))
