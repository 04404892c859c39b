"""Sound in the formats of the speech API: what goes in is heard again, and soon."""

import io
import struct

import av
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from offhook.media.pcm import RATE_OUT, Pcm
from offhook.web.speech_api.http.audio_encoder import (
    ENDLESS,
    FORMATS,
    MEDIA_TYPES,
    Format,
    StreamEncoder,
    open_encoder,
)

FRAME_MS: dict[Format, float] = {
    "mp3": 24,
    "opus": 20,
    "aac": 1024 / 24,
    "flac": 20,
    "wav": 0,
    "pcm": 0,
}
PRIMING: dict[Format, int] = {"mp3": 1105, "aac": 1024}
"""Samples that the codec puts before the sound. An MP3 whose header could be put right says so, and
they are cut off."""


def tone(seconds: float, hz: float = 440) -> Pcm:
    wave = 8000 * np.sin(2 * np.pi * hz * np.arange(int(seconds * RATE_OUT)) / RATE_OUT)
    return wave.astype(np.int16)


def decoded(data: bytes, form: Format) -> tuple[Pcm, int]:
    """The samples and their rate."""
    if form == "pcm":
        return np.frombuffer(data, "<i2").astype(np.int16), RATE_OUT
    with av.open(io.BytesIO(data), "r") as container:
        rate = container.streams.audio[0].rate
        resampler = av.AudioResampler("s16", "mono", rate)
        frames = [f for frame in container.decode(audio=0) for f in resampler.resample(frame)]
    return np.concatenate([frame.to_ndarray()[0] for frame in frames]), rate


def loudest_hz(pcm: Pcm, rate: int) -> float:
    spectrum = np.abs(np.fft.rfft(pcm * np.hanning(len(pcm))))
    return float(np.argmax(spectrum) * rate / len(pcm))


def streamed(pcm: Pcm, form: Format, step: int) -> bytes:
    encoder = StreamEncoder(form)
    parts = [encoder.push(pcm[at : at + step]) for at in range(0, len(pcm), step)]
    return b"".join([*parts, encoder.finish()])


@pytest.mark.parametrize("form", FORMATS)
@pytest.mark.parametrize("step", [97, 5000, RATE_OUT * 9])
def test_a_stream_is_heard_again_with_its_length_and_its_tone(form: Format, step: int) -> None:
    pcm = tone(1.5)
    heard, rate = decoded(streamed(pcm, form, step), form)
    assert rate == (48_000 if form == "opus" else RATE_OUT)
    seconds = len(heard) / rate - PRIMING.get(form, 0) / RATE_OUT
    assert 0 <= 1000 * (seconds - 1.5) <= FRAME_MS[form] + 0.1
    assert loudest_hz(heard, rate) == pytest.approx(440, abs=1)
    middle = heard[len(heard) // 4 : -len(heard) // 4].astype(float)
    assert np.sqrt(np.mean(middle**2)) == pytest.approx(8000 / np.sqrt(2), rel=0.1)


@pytest.mark.parametrize("form", FORMATS)
def test_a_whole_file_has_its_length_in_its_header(form: Format) -> None:
    file = io.BytesIO()
    encoder = open_encoder(form, file)
    for _ in range(3):
        encoder.write(tone(0.5))
    encoder.close()
    assert not file.closed
    heard, rate = decoded(file.getvalue(), form)
    seconds = len(heard) / rate - (PRIMING["aac"] / RATE_OUT if form == "aac" else 0)
    assert 1000 * abs(seconds - 1.5) <= (FRAME_MS[form] if form == "aac" else 0.1)
    if form in ("pcm", "aac"):  # which have no header
        return
    with av.open(io.BytesIO(file.getvalue()), "r") as container:
        assert container.duration is not None
        assert container.duration / 1_000_000 == pytest.approx(1.5, abs=0.06)


def test_a_wav_says_its_length_when_it_is_known() -> None:
    file = io.BytesIO()
    encoder = open_encoder("wav", file)
    encoder.write(tone(0.5))
    encoder.close()
    data = file.getvalue()
    assert struct.unpack_from("<I", data, 4)[0] == len(data) - 8
    assert struct.unpack_from("<I", data, 40)[0] == len(data) - 44 == 24_000
    endless = streamed(tone(0.5), "wav", 1000)
    assert struct.unpack_from("<I", endless, 40)[0] == ENDLESS
    assert endless[44:] == data[44:]


def frames_of(data: bytes, form: Format) -> int:
    """How many samples a decoder gets of a file that is not complete."""
    if form == "mp3":
        return len(data) // 192 * 576  # 64 kbit/s
    if form == "aac":
        count = at = 0
        while at + 7 <= len(data):
            at += (data[at + 3] & 3) << 11 | data[at + 4] << 3 | data[at + 5] >> 5
            count += 1
        return count * 1024
    if len(data) < 50 or (form == "opus" and data.count(b"OggS") < 3):
        return 0
    heard, rate = decoded(data, form)
    return len(heard) * RATE_OUT // rate


DELAY_MS: dict[Format, int] = {"mp3": 94, "opus": 47, "aac": 128, "flac": 20}
"""The most sound that is in the encoder and not yet in the file. Frames are 24, 20, 43 and 20 ms;
of Opus one page waits until the next is begun."""


@pytest.mark.parametrize("form", FORMATS)
def test_no_more_sound_is_held_back_than_said(form: Format) -> None:
    encoder, data, step, pcm = StreamEncoder(form), b"", 48, tone(0.4)
    held = []
    for at in range(0, len(pcm), step):
        data += encoder.push(pcm[at : at + step])
        out = max(0, frames_of(data, form) - PRIMING.get(form, 0))
        held.append(1000 * (at + step - out) / RATE_OUT)
    encoder.finish()
    if form not in ("wav", "pcm"):
        assert DELAY_MS[form] - 4 <= max(held) <= DELAY_MS[form]


def test_the_first_of_many_frames_leaves_long_before_the_last() -> None:
    for form in FORMATS:
        encoder = StreamEncoder(form)
        assert len(encoder.push(tone(0.2))) > 100, form
        assert len(encoder.push(tone(0.2))) > 100, form
        encoder.finish()


@pytest.mark.parametrize("faster", [0.5, 2.0])
def test_a_faster_voice_keeps_its_pitch(faster: float) -> None:
    encoder = StreamEncoder("pcm", faster)
    data = b"".join(encoder.push(tone(0.25)) for _ in range(8)) + encoder.finish()
    heard = np.frombuffer(data, "<i2").astype(np.int16)
    assert len(heard) / RATE_OUT == pytest.approx(2 / faster, rel=0.03)
    assert loudest_hz(heard, RATE_OUT) == pytest.approx(440, abs=6)


@settings(max_examples=40)
@given(cuts=st.lists(st.integers(0, 4800), max_size=12), form=st.sampled_from(("wav", "pcm")))
def test_how_sound_is_cut_makes_no_difference(cuts: list[int], form: Format) -> None:
    pcm = tone(0.2)
    encoder, data, at = StreamEncoder(form), b"", 0
    for cut in sorted(cuts):
        data += encoder.push(pcm[at:cut])
        at = max(at, cut)
    data += encoder.push(pcm[at:]) + encoder.finish()
    assert data == streamed(pcm, form, len(pcm))


@pytest.mark.parametrize("form", FORMATS)
def test_no_sound_at_all_is_a_file_too(form: Format) -> None:
    encoder = StreamEncoder(form)
    encoder.push(np.empty(0, np.int16))
    encoder.finish()
    assert MEDIA_TYPES[form].startswith("audio/")
