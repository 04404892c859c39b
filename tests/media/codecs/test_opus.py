"""libopus as we use it: straight to 16 kHz, redundancy on demand, any bytes are safe."""

import av
import numpy as np
import pytest
from av.audio.frame import AudioFrame
from hypothesis import given
from hypothesis import strategies as st

from offhook.media.codecs.codec import CodecError
from offhook.media.codecs.opus import OpusDecoder, OpusEncoder, OpusSettings, libopus

DELAY_MS = 6.5
"""Look-ahead of the encoder and delay of the decoder's resampler."""


def voice(seconds, rate):
    """Syllables of a gliding voiced sound."""
    t = np.arange(int(seconds * rate)) / rate
    phase = 2 * np.pi * np.cumsum(110 + 25 * np.sin(2 * np.pi * 0.7 * t)) / rate
    sound = sum(np.sin(k * phase + k * k) * (0.9**k) for k in range(1, 30))
    syllables = np.maximum(0.05, np.sin(2 * np.pi * 2.5 * t)) ** 0.7
    return (sound * syllables / np.abs(sound).max() * 20_000).astype(np.int16)


def encode(encoder, sound):
    return [encoder.encode(block) for block in np.split(sound, len(sound) // 480)]


def level(pcm):
    return np.sqrt(np.mean(pcm.astype(float) ** 2))


def snr(reference, heard):
    noise = heard.astype(float) - reference
    return 10 * np.log10(np.sum(reference.astype(float) ** 2) / np.sum(noise**2))


def test_a_voice_comes_through_at_16_khz():
    payloads = encode(OpusEncoder(), voice(2, 24_000))
    decoder = OpusDecoder()
    packets = [decoder.decode(payload) for payload in payloads]
    assert {len(packet) for packet in packets} == {320}
    heard, sent = np.concatenate(packets), voice(2, 16_000)
    likeness = [
        np.corrcoef(heard[1000 + lag : 30_000 + lag], sent[1000:30_000])[0, 1] for lag in range(200)
    ]
    assert max(likeness) > 0.85
    assert 1000 * np.argmax(likeness) / 16_000 == pytest.approx(DELAY_MS, abs=1.5)


@pytest.mark.parametrize("ms", [10, 40, 60])
def test_packets_of_other_lengths_sound_alike(ms):
    sound = voice(1.2, 24_000)
    encoder, decoder = OpusEncoder(), OpusDecoder()
    payloads = [encoder.encode(block) for block in np.split(sound, 1200 // ms)]
    packets = [decoder.decode(payload) for payload in payloads]
    assert {len(packet) for packet in packets} == {16 * ms}
    heard, sent = np.concatenate(packets), voice(1.2, 16_000)
    likeness = [
        np.corrcoef(heard[1000 + lag : 18_000 + lag], sent[1000:18_000])[0, 1] for lag in range(200)
    ]
    assert max(likeness) > 0.8


def test_the_bitrate_is_kept():
    for bitrate in (16_000, 32_000, 48_000):
        payloads = encode(OpusEncoder(OpusSettings(bitrate=bitrate)), voice(4, 24_000))
        assert 8 * sum(map(len, payloads)) / 4 == pytest.approx(bitrate, rel=0.25)


@pytest.mark.parametrize("frame_ms", [10, 20, 40, 60])
def test_frames_of_any_length_decode(frame_ms):
    context = av.CodecContext.create("libopus", "w")
    context.sample_rate, context.layout, context.format = 24_000, "mono", "s16"
    context.options = {"frame_duration": str(frame_ms)}
    frame = AudioFrame.from_ndarray(voice(0.24, 24_000)[None], format="s16", layout="mono")
    frame.sample_rate = 24_000
    decoder = OpusDecoder()
    payloads = [bytes(packet) for packet in context.encode(frame)]
    assert len(payloads) >= 240 // frame_ms - 1
    assert {len(decoder.decode(payload)) for payload in payloads} == {16 * frame_ms}


CELT_ONLY = 16
"""The first configuration of the TOC byte that is CELT alone (RFC 6716, table 2)."""


def celt(payload):
    return payload[0] >> 3 >= CELT_ONLY


def test_speech_is_celt_at_the_full_bitrate_and_without_loss_only():
    encoder, sound = OpusEncoder(), voice(0.5, 24_000)
    assert all(map(celt, encode(encoder, sound)))
    encoder.set_loss(0.02)
    assert not any(map(celt, encode(encoder, sound)[1:]))
    encoder.set_loss(0.0)
    assert all(map(celt, encode(encoder, sound)[2:]))
    encoder.set_bitrate(24_000)
    assert not any(map(celt, encode(encoder, sound)[1:]))
    encoder.set_bitrate(encoder.bitrate)
    assert all(map(celt, encode(encoder, sound)[2:]))
    assert not any(map(celt, encode(OpusEncoder(OpusSettings(bitrate=32_000)), sound)))


def test_a_change_of_mode_is_not_heard():
    sound = voice(2, 24_000)
    encoder, decoder, heard = OpusEncoder(), OpusDecoder(), []
    for number, block in enumerate(np.split(sound, 100)):
        encoder.set_loss(0.02 if number // 10 % 2 else 0.0)
        heard.append(decoder.decode(encoder.encode(block)))
    heard, sent = np.concatenate(heard), voice(2, 16_000)
    delay = round(DELAY_MS * 16)
    levels = [
        (level(heard[at + delay : at + delay + 320]), level(sent[at : at + 320]))
        for at in range(3200, 30_000, 320)
    ]
    assert all(0.5 * there < here < 2 * there for here, there in levels)


def redundant(payload):
    return libopus().opus_packet_has_lbrr(payload, len(payload)) == 1


def test_redundancy_comes_with_reported_loss_and_goes_with_it():
    encoder, sound = OpusEncoder(), voice(2, 24_000)
    assert not any(map(redundant, encode(encoder, sound)))
    encoder.set_loss(0.1)
    assert np.mean([redundant(payload) for payload in encode(encoder, sound)[5:]]) > 0.5
    encoder.set_loss(0.0)
    assert not any(map(redundant, encode(encoder, sound)[5:]))


def test_a_lost_packet_is_recovered_from_the_following_and_better_than_concealed():
    encoder = OpusEncoder()
    encoder.set_loss(0.1)
    payloads = encode(encoder, voice(4, 24_000))
    clean = OpusDecoder()
    reference = [clean.decode(payload) for payload in payloads]
    recovering, concealing = OpusDecoder(), OpusDecoder()
    recovered, concealed, lost = [], [], []
    for number, payload in enumerate(payloads[:-1]):
        if number % 10 == 5 and redundant(payloads[number + 1]):
            recovered.append(recovering.recover(payloads[number + 1], 320))
            concealed.append(concealing.conceal(320))
            lost.append(reference[number])
        else:
            recovering.decode(payload)
            concealing.decode(payload)
    assert len(lost) > 10
    lost, recovered, concealed = map(np.concatenate, (lost, recovered, concealed))
    assert snr(lost, recovered) > 6
    assert snr(lost, recovered) > snr(lost, concealed) + 3


def test_without_redundancy_there_is_nothing_to_recover():
    payloads = encode(OpusEncoder(), voice(1, 24_000))
    decoder = OpusDecoder()
    assert decoder.recover(payloads[10], 320) is None
    assert decoder.recover(b"", 320) is None


def test_concealment_goes_on_and_fades():
    decoder = OpusDecoder()  # of SILK; CELT's fades to the noise that was in the background
    for payload in encode(OpusEncoder(OpusSettings(bitrate=32_000)), voice(0.3, 24_000))[:8]:
        last = decoder.decode(payload)
    levels = [level(decoder.conceal(320)) for _ in range(15)]
    assert levels[0] > 0.3 * level(last)
    assert levels[-1] < 0.05 * level(last)


def test_silence_stops_the_encoder_and_the_decoder_stays_silent():
    encoder, decoder = OpusEncoder(), OpusDecoder()
    encoder.set_dtx(True)
    payloads = encode(encoder, np.concatenate([voice(1, 24_000), np.zeros(24_000, np.int16)]))
    sizes = [len(payload) for payload in payloads]
    assert min(sizes[:20]) > 2
    assert max(sizes[65:70]) <= 2
    heard = [decoder.decode(payload) for payload in payloads]
    assert {len(packet) for packet in heard} == {320}
    assert max(level(packet) for packet in heard[65:]) < 10


def test_an_empty_payload_is_an_error():
    with pytest.raises(CodecError):
        OpusDecoder().decode(b"")


@given(st.lists(st.binary(max_size=200), max_size=8))
def test_any_bytes_are_sound_or_a_codec_error(payloads):
    decoder = OpusDecoder()
    for payload in payloads:
        for attempt in (decoder.decode, lambda data: decoder.recover(data, 320)):
            try:
                pcm = attempt(payload)
            except CodecError:
                continue
            assert pcm is None or (pcm.dtype == np.int16 and len(pcm) <= 1920)
    good = OpusEncoder().encode(voice(0.02, 24_000))
    assert len(decoder.decode(good)) == 320


def test_what_was_decoded_is_not_overwritten():
    decoder = OpusDecoder()
    payloads = encode(OpusEncoder(), voice(0.3, 24_000))
    decoder.decode(payloads[0])
    first = decoder.decode(payloads[1])
    kept = first.copy()
    for payload in payloads[2:]:
        decoder.decode(payload)
    np.testing.assert_array_equal(first, kept)


def stereo_packets(left, right):
    """As a sender that was told nothing of `stereo=0` makes them."""
    encoder = av.CodecContext.create("libopus", "w")
    encoder.sample_rate, encoder.layout, encoder.format = 48_000, "stereo", "s16"
    encoder.options = {"frame_duration": "20"}
    packets = []
    pairs = np.stack((left, right), 1).reshape(-1)
    for block in np.split(pairs, len(pairs) // 1920):
        frame = AudioFrame.from_ndarray(block[None], format="s16", layout="stereo")
        frame.sample_rate = 48_000
        packets += [bytes(packet) for packet in encoder.encode(frame)]
    return packets


@pytest.mark.parametrize("sign", [1, -1])
def test_stereo_in_whatever_phase_is_heard(sign):
    sound = voice(1, 48_000)
    packets = stereo_packets(sound, sign * sound)
    assert all(packet[0] & 4 for packet in packets)
    decoder = OpusDecoder()
    heard = np.concatenate([decoder.decode(packet) for packet in packets])
    assert len(heard) == 320 * len(packets)
    assert level(heard) == pytest.approx(level(sound), rel=0.2)
    assert len(decoder.conceal(320)) == 320
    mono = encode(OpusEncoder(), voice(1, 24_000))
    heard = np.concatenate([decoder.decode(packet) for packet in mono])
    assert level(heard[3200:]) == pytest.approx(level(voice(1, 24_000)), rel=0.3)
