"""What goes out on the wire: numbering, talkspurts, silence, and what a far end decodes of it."""

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from offhook.media.codecs.g711 import PcmaEncoder, PcmuDecoder, PcmuEncoder
from offhook.media.codecs.g722 import G722Decoder, G722Encoder
from offhook.media.codecs.opus import OpusDecoder, OpusEncoder, libopus
from offhook.media.rtp.rtp import RtpPacket, uint16_diff, uint32_diff
from offhook.media.rtp.sender import KEEP_ALIVE_TICKS, SILENCE_TICKS, AudioSender
from offhook.media.rtp.telephone_event import EventReceiver
from offhook.media.telephone_tones.dtmf import DtmfQueue

TICK = 0.02


def voice(ticks):
    """Blocks of 20 ms of four syllables a second at 24 kHz, without a pause."""
    t = np.arange(ticks * 480) / 24_000
    phase = 2 * np.pi * np.cumsum(120 + 20 * np.sin(2 * np.pi * t)) / 24_000
    sound = sum(np.sin(k * phase + k * k) * 0.9**k for k in range(1, 25))
    sound *= 0.55 - 0.45 * np.cos(2 * np.pi * 4 * t)
    pcm = (sound / np.abs(sound).max() * 16_000).astype(np.int16)
    return np.split(pcm, ticks)


class Line:
    """Collects the packets sent, with the tick of each."""

    def __init__(self, encoder, payload_type=96, dtx=True, ptime_ms=20):
        self.packets = []
        self.ticks = 0
        self.sender = AudioSender(
            encoder, payload_type, 0xDECAFBAD, self._send, dtx=dtx, ptime_ms=ptime_ms
        )

    def _send(self, data):
        self.packets.append((self.ticks, RtpPacket.parse(data)))

    def run(self, blocks):
        for pcm in blocks:
            self.sender.tick(pcm, self.ticks * TICK)
            self.ticks += 1

    def press(self, digits):
        keys = DtmfQueue()
        keys.press(digits)
        while keys.busy:
            self.sender.tick_digit(keys.tick(), self.ticks * TICK)
            self.ticks += 1

    def hold(self, ticks):
        for _ in range(ticks):
            self.sender.tick_held(self.ticks * TICK)
            self.ticks += 1

    def between(self, start, stop):
        return [packet for tick, packet in self.packets if start <= tick < stop]


def test_speech_is_a_packet_every_tick():
    line = Line(OpusEncoder())
    line.run(voice(100))
    packets = line.between(0, 100)
    assert len(packets) == 100
    assert {packet.ssrc for packet in packets} == {0xDECAFBAD}
    assert {packet.payload_type for packet in packets} == {96}
    assert [packet.marker for packet in packets] == [True] + [False] * 99
    assert packets[0].sequence_number < 1 << 15


@given(
    st.lists(st.tuples(st.booleans(), st.integers(1, 60)), max_size=12),
    st.sampled_from([OpusEncoder, PcmuEncoder]),
    st.booleans(),
)
@settings(max_examples=settings.default.max_examples // 5)
def test_numbers_follow_packets_and_timestamps_follow_time(spurts, encoder, dtx):
    line = Line(encoder(), dtx=dtx)
    line.sender.sequence_number, line.sender.timestamp = 65_530, (1 << 32) - 5000
    speech = voice(60)
    for speaking, ticks in spurts:
        line.run(speech[:ticks] if speaking else [None] * ticks)
    step = line.sender.timestamp
    assert uint32_diff(step, (1 << 32) - 5000) == line.ticks * encoder.clock_rate // 50
    for (tick, packet), (next_tick, following) in pairwise(line.packets):
        assert uint16_diff(following.sequence_number, packet.sequence_number) == 1
        elapsed = uint32_diff(following.timestamp, packet.timestamp)
        assert elapsed == (next_tick - tick) * encoder.clock_rate // 50
        assert next_tick - tick <= KEEP_ALIVE_TICKS
        # A marker means: a talkspurt begins. A gap is never without one when speech follows.
        assert not following.marker or (dtx and len(following.payload) > 2)
    assert line.sender.packets == len(line.packets)
    assert line.sender.octets == sum(len(packet.payload) for _, packet in line.packets)
    if not dtx:
        assert [tick for tick, _ in line.packets] == list(range(line.ticks))


def test_after_speech_the_decoder_comes_to_rest_and_then_hears_every_400_ms():
    line = Line(OpusEncoder())
    line.run(voice(50))
    line.run([None] * 500)
    silence = [tick for tick, _ in line.packets if tick >= 50]
    contiguous = [tick for n, tick in enumerate(silence) if tick == 50 + n]
    assert 3 <= len(contiguous) <= SILENCE_TICKS
    last = contiguous[-1]
    assert silence[len(contiguous) :] == list(range(last + 20, 550, KEEP_ALIVE_TICKS))
    assert not any(packet.marker for packet in line.between(50, 550))
    decoder = OpusDecoder()
    heard = {tick: decoder.decode(packet.payload) for tick, packet in line.packets}
    assert np.abs(heard[45]).max() > 5000
    assert np.abs(heard[last]).max() < 20
    assert max(np.abs(heard[tick]).max() for tick in silence if tick > last) < 20


def test_the_decoder_is_told_that_the_gap_is_silence():
    line = Line(OpusEncoder())
    line.run(voice(50))
    line.run([None] * 19)
    assert len(line.packets[-1][1].payload) <= 2


@pytest.mark.parametrize("pause", [1, 5, 16, 40, 41, 47])
def test_speech_after_a_gap_is_a_talkspurt_and_comes_through(pause):
    line = Line(OpusEncoder())
    line.run(voice(50))
    line.run([None] * pause)
    line.run(voice(50))
    spurt = line.between(50 + pause, 100 + pause)
    assert len(spurt) == 50
    assert spurt[0].marker is (pause > SILENCE_TICKS)
    assert not any(packet.marker for packet in spurt[1:])
    decoder = OpusDecoder()
    heard = [decoder.decode(packet.payload) for _, packet in line.packets][-50:]
    assert np.abs(np.concatenate(heard[:5])).max() > 5000


def test_a_steady_sound_is_not_taken_for_silence():
    """libopus with its own discontinuous transmission on sends one packet in seven of this."""
    t = np.arange(300 * 480) / 24_000
    dial_tone = 6000 * (np.sin(2 * np.pi * 350 * t) + np.sin(2 * np.pi * 440 * t))
    line = Line(OpusEncoder())
    line.run(voice(10))
    line.run([None] * 50)
    line.run(np.split(dial_tone.astype(np.int16), 300))
    packets = line.between(60, 360)
    assert len(packets) == 300
    decoder = OpusDecoder()
    heard = np.concatenate([decoder.decode(packet.payload) for packet in packets])
    assert heard[16_000:].std() == pytest.approx(dial_tone.std(), rel=0.1)


def test_steady_sound_is_not_taken_for_silence():
    """libopus with DTX on would leave out most of a dial tone."""
    at = np.arange(480 * 100) / 24_000
    tone = sum(5000 * np.sin(2 * np.pi * f * at) for f in (350, 440)).astype(np.int16)
    line = Line(OpusEncoder())
    line.run(list(tone.reshape(-1, 480)))
    assert len(line.between(0, 100)) == 100


def test_a_call_that_starts_silent_is_alive_from_its_first_tick():
    line = Line(OpusEncoder())
    line.run([None] * 100)
    assert [tick for tick, _ in line.packets] == [0, 20, 40, 60, 80]


@pytest.mark.parametrize(("encoder", "silence"), [(PcmuEncoder, 0xFF), (PcmaEncoder, 0xD5)])
def test_without_dtx_silence_is_a_packet_every_tick(encoder, silence):
    line = Line(encoder(), payload_type=0, dtx=False)
    line.run(voice(50))
    line.run([None] * 100)
    line.run(voice(50))
    assert [tick for tick, _ in line.packets] == list(range(200))
    assert {packet.payload for packet in line.between(52, 150)} == {bytes([silence]) * 160}
    assert not any(packet.marker for _, packet in line.packets)


@pytest.mark.parametrize(
    ("encoder", "decoder"), [(PcmuEncoder, PcmuDecoder), (G722Encoder, G722Decoder)]
)
def test_the_short_cut_for_silence_is_not_heard(encoder, decoder):
    """What the far end decodes is to the sample what encoding every silent packet gives."""
    blocks = [*voice(50), *[None] * 100, *voice(50)]
    line = Line(encoder(), payload_type=0, dtx=False)
    line.run(blocks)
    encoder, plain, decoder = encoder(), decoder(), decoder()
    silence = np.zeros(480, np.int16)
    for pcm, (_, packet) in zip(blocks, line.packets, strict=True):
        expected = plain.decode(encoder.encode(silence if pcm is None else pcm))
        np.testing.assert_array_equal(decoder.decode(packet.payload), expected)


def test_the_codec_changes_within_a_call():
    line = Line(PcmuEncoder(), payload_type=0, dtx=False)
    line.run(voice(10))
    line.sender.change_codec(G722Encoder(), 9)
    line.run(voice(10))
    packets = line.between(0, 20)
    assert [packet.payload_type for packet in packets] == [0] * 10 + [9] * 10
    assert {uint32_diff(b.timestamp, a.timestamp) for a, b in pairwise(packets)} == {160}
    with pytest.raises(ValueError, match="SSRC"):
        line.sender.change_codec(OpusEncoder(), 96)
    line.sender.change_codec(OpusEncoder(), 96, ssrc=7)
    assert (line.sender.packets, line.sender.octets) == (0, 0)
    line.run(voice(1))
    packet = line.packets[-1][1]
    assert (packet.payload_type, packet.ssrc, line.sender.packets) == (96, 7, 1)


def test_sender_reports_know_the_timestamp_of_the_last_tick():
    line = Line(OpusEncoder())
    assert line.sender.timestamp_at is None
    line.run(voice(10))
    assert line.sender.timestamp == line.packets[-1][1].timestamp
    assert line.sender.timestamp_at == pytest.approx(9 * TICK)
    line.run([None] * 90)
    assert uint32_diff(line.sender.timestamp, line.packets[0][1].timestamp) == 99 * 960
    assert line.sender.timestamp_at == pytest.approx(99 * TICK)


def redundancy(packets):
    has = libopus().opus_packet_has_lbrr
    return np.mean([has(packet.payload, len(packet.payload)) == 1 for packet in packets])


def test_reported_loss_brings_redundancy_at_once_and_takes_it_back_slowly():
    line = Line(OpusEncoder())
    line.run(voice(50))
    assert redundancy(line.between(0, 50)) == 0
    line.sender.report_loss(0.1)
    assert line.sender.loss == pytest.approx(0.05)
    line.run(voice(50))
    assert redundancy(line.between(55, 100)) > 0.6
    line.sender.report_loss(0.0)
    line.run(voice(50))
    assert redundancy(line.between(105, 150)) > 0.6
    for _ in range(30):
        line.sender.report_loss(0.0)
    line.run(voice(50))
    assert redundancy(line.between(155, 200)) == 0


def test_a_congested_line_gets_less_and_keeps_its_redundancy():
    line = Line(OpusEncoder())
    line.run(voice(200))
    for _ in range(4):
        line.sender.report_loss(0.2)
    line.run(voice(200))
    for _ in range(30):
        line.sender.report_loss(0.01)
    line.run(voice(200))
    full, less, again = (
        8 * sum(len(packet.payload) for packet in line.between(start, start + 200)) / 4
        for start in (0, 200, 400)
    )
    assert less == pytest.approx(24_000, rel=0.2)
    assert less < 0.75 * min(full, again)
    assert redundancy(line.between(210, 400)) > 0.6


CODECS = [(OpusEncoder, OpusDecoder), (PcmuEncoder, PcmuDecoder), (G722Encoder, G722Decoder)]


@pytest.mark.parametrize("ptime_ms", [10, 20, 30, 40, 50, 60])
@pytest.mark.parametrize(("encoder", "decoder"), CODECS)
def test_packets_last_as_long_as_the_far_end_wants_them(encoder, decoder, ptime_ms):
    """20 ms where the codec has no such packets: Opus has none of 30 and 50 ms."""
    line = Line(encoder(), dtx=False, ptime_ms=ptime_ms)
    line.run(voice(60))
    ms = 20 if encoder is OpusEncoder and ptime_ms in (30, 50) else ptime_ms
    packets = line.between(0, 60)
    assert len(packets) == 60 * 20 // ms
    step = encoder.clock_rate * ms // 1000
    assert {uint32_diff(b.timestamp, a.timestamp) for a, b in pairwise(packets)} == {step}
    assert {uint16_diff(b.sequence_number, a.sequence_number) for a, b in pairwise(packets)} == {1}
    decoder = decoder()
    assert {len(decoder.decode(packet.payload)) for packet in packets} == {16 * ms}


@pytest.mark.parametrize("ptime_ms", [10, 30, 40, 50, 60])
@pytest.mark.parametrize(("encoder", "decoder"), CODECS[1:])
def test_the_cutting_into_packets_is_not_heard(encoder, decoder, ptime_ms):
    blocks = [*voice(45), *[None] * 60, *voice(45)]
    streams = []
    for ms in (20, ptime_ms):
        line = Line(encoder(), dtx=False, ptime_ms=ms)
        line.run(blocks)
        far = decoder()
        streams.append(
            np.concatenate([far.decode(packet.payload) for packet in line.between(0, 150)])
        )
    np.testing.assert_array_equal(*streams)


@pytest.mark.parametrize("ptime_ms", [10, 20, 30, 40, 60])
@pytest.mark.parametrize("encoder", [OpusEncoder, PcmuEncoder])
@pytest.mark.parametrize("pause", [1, 7, 60, 61])
def test_packets_of_any_length_stay_on_the_clock_through_silence(encoder, ptime_ms, pause):
    line = Line(encoder(), dtx=True, ptime_ms=ptime_ms)
    line.run([*voice(20), *[None] * pause, *voice(20), None, None, None])
    ms = 20 if encoder is OpusEncoder and ptime_ms == 30 else ptime_ms
    start = uint32_diff(line.sender.timestamp, 0) - (line.ticks - 1) * encoder.clock_rate // 50
    per_ms = encoder.clock_rate // 1000
    for tick, packet in line.packets:
        begins = uint32_diff(packet.timestamp, start) // per_ms
        assert begins % ms == 0
        assert begins + ms <= (tick + 1) * 20  # not of what is yet to come
        assert begins + ms > tick * 20  # and sent as soon as it is full
    spurt = [packet for tick, packet in line.packets if packet.marker]
    assert len(spurt) == (2 if pause > 59 else 1)


def test_sound_gathered_before_a_key_is_not_lost():
    line = Line(PcmuEncoder(), payload_type=0, dtx=False, ptime_ms=60)
    line.sender.use_events(101, 8000)
    line.run(voice(4))
    line.press("1")
    sound = [packet for packet in line.between(0, 5) if packet.payload_type == 0]
    assert len(sound) == 2
    assert uint32_diff(sound[1].timestamp, sound[0].timestamp) == 480
    heard = PcmuDecoder().decode(sound[1].payload)
    assert np.abs(heard[:320]).max() > 500
    assert np.abs(heard[400:]).max() < 20  # what is left of the 60 ms is silence


@pytest.mark.parametrize("ptime_ms", [10, 20, 60])
@pytest.mark.parametrize(("encoder", "clock_rate"), [(PcmuEncoder, 8000), (OpusEncoder, 48000)])
def test_keys_go_out_among_the_sound_in_its_numbers_and_on_its_clock(encoder, clock_rate, ptime_ms):
    line = Line(encoder(), dtx=False, ptime_ms=ptime_ms)
    line.sender.use_events(101, clock_rate)
    line.run(voice(30))
    line.press("42")
    line.run(voice(30))
    packets = [packet for _, packet in line.packets]
    numbers = [uint16_diff(b.sequence_number, a.sequence_number) for a, b in pairwise(packets)]
    assert set(numbers) == {1}
    events = [(tick, packet) for tick, packet in line.packets if packet.payload_type == 101]
    assert [tick for tick, _ in events] == [*range(30, 37), *range(40, 47)]
    start = packets[0].timestamp
    assert [uint32_diff(p.timestamp, start) for _, p in events] == [
        *[30 * clock_rate // 50] * 7,
        *[40 * clock_rate // 50] * 7,
    ]
    # No sound of the time of an event, and the first after it begins a talkspurt.
    after = [p for tick, p in line.packets if tick >= 47 and p.payload_type == 96]
    assert after[0].marker
    assert not any(p.payload_type == 96 for p in line.between(30, 37))
    receiver = EventReceiver()
    assert (
        "".join(receiver.receive(packet) for packet in packets if packet.payload_type > 96) == "42"
    )
    assert line.sender.packets == len(packets)


def test_events_of_another_clock_keep_the_streams_timestamps():
    """Opus counts at 48 kHz; a far end that knows events at 8 kHz only has their durations so."""
    line = Line(OpusEncoder())
    line.sender.use_events(101, 8000)
    line.run(voice(10))
    line.press("1")
    (first, *_, last) = [p for _, p in line.packets if p.payload_type == 101]
    assert uint32_diff(first.timestamp, line.packets[0][1].timestamp) == 10 * 960
    assert int.from_bytes(last.payload[2:], "big") == 800


@pytest.mark.parametrize("dtx", [False, True])
@pytest.mark.parametrize("ptime_ms", [20, 60])
def test_after_a_hold_the_clock_has_gone_on_and_the_marker_says_so(dtx, ptime_ms):
    line = Line(PcmuEncoder(), dtx=dtx, ptime_ms=ptime_ms)
    line.run(voice(20))
    line.hold(500)
    line.run(voice(20))
    assert not line.between(20, 520)
    before = line.between(0, 20)[-1]
    after = line.between(520, 540)
    assert uint16_diff(after[0].sequence_number, before.sequence_number) == 1
    assert uint32_diff(after[0].timestamp, line.packets[0][1].timestamp) == 520 * 160
    assert [packet.marker for packet in after] == [True] + [False] * (len(after) - 1)


def test_a_change_of_packet_length_loses_no_sound():
    line = Line(PcmuEncoder(), payload_type=0, dtx=False, ptime_ms=60)
    line.run(voice(20))
    line.sender.change_codec(line.sender.encoder, 0)
    line.run(voice(20))
    packets = [packet for _, packet in line.packets]
    assert [len(packet.payload) for packet in packets] == [480] * 7 + [160] * 20
    # The seventh was full only in part: the packet after it begins where its sound ended.
    ends = uint32_diff(packets[7].timestamp, packets[0].timestamp)
    assert ends == 20 * 160


def test_another_ssrc_begins_its_numbers_low():
    """Or the rollover counter of SRTP could be in doubt (RFC 3711 §3.3.1)."""
    line = Line(PcmuEncoder())
    line.sender.sequence_number = 65_000
    line.sender.change_codec(OpusEncoder(), 96, ssrc=8)
    line.run(voice(1))
    assert line.packets[-1][1].sequence_number < 1 << 15
