"""What else may come in a stream of sound: key presses, comfort noise, other codecs and packet
lengths, clocks that jump. Nothing of it may cost sound, or count as loss."""

from random import Random

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from offhook.media.codecs.g711 import PcmaDecoder, PcmaEncoder, PcmuDecoder, PcmuEncoder
from offhook.media.codecs.g722 import G722Decoder, G722Encoder
from offhook.media.codecs.opus import OpusDecoder, OpusEncoder
from offhook.media.pcm import SAMPLES_IN, dbfs
from offhook.media.rtp.receiver import AudioReceiver
from offhook.media.rtp.rtp import RtpPacket

PCMU, PCMA, G722, CN, OPUS, EVENT = 0, 8, 9, 13, 96, 101
DECODERS = {PCMU: PcmuDecoder, PCMA: PcmaDecoder, G722: G722Decoder, OPUS: OpusDecoder}
ENCODERS = {PCMU: PcmuEncoder, PCMA: PcmaEncoder, G722: G722Encoder, OPUS: OpusEncoder}
HZ = 500
LOUD = -18
"""dBFS that every 20 ms of the tone reach; whole ones have -15.3."""


class Phone:
    """A far end that sends a tone, or other things, and the receiver that hears it, on one clock
    of 20 ms."""

    def __init__(self, payload_type=PCMU, comfort_noise=(CN,)):
        self.receiver = AudioReceiver(DECODERS, comfort_noise)
        self.now = 0.0
        self.sequence_number, self.timestamp = 65_500, (1 << 32) - 4000
        self.heard = []
        self._at = 0
        self.use(payload_type)

    def use(self, payload_type):
        self._payload_type = payload_type
        self._encoder = ENCODERS[payload_type]()
        self._clock_rate = self._encoder.clock_rate

    def packet(self, payload_type, payload, timestamp=None):
        """The next packet in sequence, not given to anybody."""
        self.sequence_number += 1
        timestamp = self.timestamp if timestamp is None else timestamp
        number = self.sequence_number & 0xFFFF
        return RtpPacket(payload_type, number, timestamp & 0xFFFFFFFF, 7, payload)

    def sound(self, ms=20):
        """A packet of tone; time at the far end goes on."""
        at = self._at + np.arange(24 * ms)
        self._at += 24 * ms
        tone = (8000 * np.sin(2 * np.pi * HZ * at / 24_000)).astype(np.int16)
        packet = self.packet(self._payload_type, self._encoder.encode(tone))
        self.pass_time(ms)
        return packet

    def pass_time(self, ms=20):
        self.timestamp += self._clock_rate * ms // 1000

    def pull(self, count=1):
        for _ in range(count):
            self.heard.append(self.receiver.pull(self.now + 0.005))
            self.now += 0.02

    def talk(self, count):
        for _ in range(count):
            self.receiver.receive(self.sound(), self.now)
            self.pull()

    def silence(self, count):
        for _ in range(count):
            self.pass_time()
            self.pull()

    def levels(self):
        return [dbfs(pcm) for pcm in self.heard]

    @property
    def losses(self):
        stats = self.receiver.stats
        return stats.lost, stats.late, stats.concealed_samples, stats.malformed


def test_sound_among_key_presses_is_heard_as_without_them():
    """Senders may let the sound go on while they tell of an event (RFC 4733 §2.5.1.1)."""
    plain, busy = Phone(), Phone()
    plain.talk(100)
    for n in range(100):
        if 40 <= n < 60:
            # At 48 kHz, out of the sound's clock altogether.
            busy.receiver.ignore(busy.packet(EVENT, b"\x05\x0a\x03\xc0", timestamp=n // 10))
        busy.talk(1)
    np.testing.assert_array_equal(np.concatenate(busy.heard), np.concatenate(plain.heard))
    assert busy.losses == (0, 0, 0, 0)
    assert busy.receiver.stats.target_ms == plain.receiver.stats.target_ms


@pytest.mark.parametrize("overtaken", [False, True])
def test_sound_left_out_for_key_presses_is_not_lost(overtaken):
    phone = Phone()
    phone.talk(50)
    began, held = phone.timestamp, []
    for _ in range(7):
        held.append(phone.packet(EVENT, b"\x05\x0a\x03\xc0", timestamp=began))
        if not overtaken:
            phone.receiver.ignore(held.pop())
        phone.silence(1)
    phone.receiver.receive(phone.sound(), phone.now)  # overtakes the events, if they are held
    for packet in held:
        phone.receiver.ignore(packet)
    phone.pull()
    phone.talk(49)
    assert phone.losses == (0, 0, 0, 0)
    levels = phone.levels()
    assert min(levels[4:48]) > LOUD
    assert min(levels[62:]) > LOUD
    assert phone.receiver.stats.delay_ms < 45


def test_real_loss_beside_key_presses_is_counted_as_before():
    phone = Phone()
    phone.talk(50)
    for n in range(10):
        phone.receiver.ignore(phone.packet(EVENT, b"\x05\x0a\x03\xc0"))
        packet = phone.sound()
        if n != 4:
            phone.receiver.receive(packet, phone.now)
        phone.pull()
    phone.talk(10)
    assert phone.receiver.stats.lost == 1
    assert 300 <= phone.receiver.stats.concealed_samples <= 340


def noise_of(phone, start, stop):
    return np.concatenate(phone.heard[start:stop])


@pytest.mark.parametrize("level", [30, 50, 65])
def test_silence_left_out_is_noise_as_loud_as_the_sender_says(level):
    phone = Phone()
    phone.talk(50)
    phone.receiver.receive(phone.packet(CN, bytes([level])), phone.now)
    phone.silence(50)
    phone.talk(50)
    assert dbfs(noise_of(phone, 54, 100)) == pytest.approx(-level, abs=1.0)
    assert min(phone.levels()[54:100]) > -level - 4
    assert min(phone.levels()[102:]) > LOUD
    assert phone.losses == (0, 0, 0, 0)
    assert phone.receiver.stats.target_ms == 20


def test_without_word_of_noise_there_is_silence():
    phone = Phone()
    phone.talk(50)
    phone.silence(50)
    phone.talk(10)
    assert not noise_of(phone, 62, 100).any()
    assert phone.losses == (0, 0, 0, 0)


def test_noise_is_told_anew_within_a_silence_and_ends_with_it():
    phone = Phone()
    phone.talk(50)
    phone.receiver.receive(phone.packet(CN, bytes([40])), phone.now)
    phone.silence(100)
    late = phone.packet(CN, bytes([50]))
    phone.receiver.receive(phone.packet(CN, bytes([60])), phone.now)
    phone.receiver.receive(late, phone.now)  # told before, comes after
    phone.silence(100)
    phone.talk(50)
    phone.silence(50)
    assert dbfs(noise_of(phone, 60, 150)) == pytest.approx(-40, abs=1)
    assert dbfs(noise_of(phone, 160, 250)) == pytest.approx(-60, abs=1)
    assert not noise_of(phone, 312, 350).any()  # of this silence nothing was said
    assert phone.losses == (0, 0, 0, 0)


@pytest.mark.parametrize("timestamp", ["silence's", "last", "astray"])
def test_timestamps_of_comfort_noise_do_no_harm(timestamp):
    phone = Phone()
    phone.talk(50)
    stamp = {"silence's": 0, "last": -160, "astray": 77_000_000}[timestamp] + phone.timestamp
    phone.receiver.receive(phone.packet(CN, bytes([40]), stamp), phone.now)
    phone.silence(30)
    phone.talk(30)
    assert dbfs(noise_of(phone, 54, 79)) == pytest.approx(-40, abs=1)
    assert min(phone.levels()[82:]) > LOUD
    assert phone.losses == (0, 0, 0, 0)


def test_sound_lost_at_the_edge_of_a_silence_is_not_played_as_noise():
    phone = Phone()
    phone.talk(50)
    phone.sound()  # lost
    phone.receiver.receive(phone.packet(CN, bytes([40])), phone.now)
    phone.silence(20)
    phone.talk(30)
    assert phone.receiver.stats.lost == 1
    assert phone.losses[1:] == (0, 0, 0)


def above_4_khz(pcm):
    spectrum = np.abs(np.fft.rfft(pcm * np.hanning(len(pcm)))) ** 2
    edge = len(spectrum) * 4200 // 8000
    return spectrum[edge:].sum() / spectrum.sum()


@pytest.mark.parametrize(("payload_type", "share"), [(PCMU, 0), (G722, 0.5)])
def test_noise_has_the_band_of_the_sound(payload_type, share):
    phone = Phone(payload_type)
    phone.talk(50)
    phone.receiver.receive(phone.packet(CN, bytes([40])), phone.now)
    phone.silence(50)
    assert above_4_khz(noise_of(phone, 55, 100)) == pytest.approx(share, abs=0.06)


@pytest.mark.parametrize(
    ("payload_type", "ms"),
    [
        (pt, ms)
        for pt, make in ENCODERS.items()
        for ms in (10, 20, 30, 40, 60)
        if ms in make.packets_ms
    ],
)
def test_packets_of_any_length_are_heard_without_a_hole(payload_type, ms):
    phone = Phone(payload_type)
    due = 0
    for tick in range(150):
        while due + ms <= tick * 20:  # sent when it is full
            due += ms
            phone.receiver.receive(phone.sound(ms), phone.now)
        phone.pull()
    levels = phone.levels()
    assert min(levels[10:]) > LOUD
    assert phone.losses == (0, 0, 0, 0)


@pytest.mark.parametrize(("first", "second"), [(PCMU, PCMA), (PCMU, G722), (G722, PCMA)])
def test_the_codec_may_change_between_two_packets(first, second):
    phone = Phone(first)
    phone.talk(50)
    phone.use(second)
    phone.talk(50)
    assert min(phone.levels()[4:]) > LOUD
    assert phone.losses == (0, 0, 0, 0)


@pytest.mark.parametrize(("first", "second"), [(PCMU, OPUS), (OPUS, G722)])
def test_a_change_of_clock_within_a_stream_costs_a_moment(first, second):
    """RFC 7160 wants another SSRC; some senders know nothing of it."""
    phone = Phone(first)
    phone.talk(50)
    straggler = phone.sound()
    phone.use(second)
    phone.talk(10)
    phone.receiver.receive(straggler, phone.now)
    phone.talk(40)
    levels = phone.levels()
    assert min(levels[4:50]) > LOUD
    assert min(levels[54:]) > LOUD
    assert phone.receiver.stats.ignored == 1
    assert phone.receiver.clock_rate == ENCODERS[second].clock_rate
    assert phone.losses[1:] == (0, 0, 0)


@pytest.mark.parametrize("jump_s", [-100_000, -3, -1.5, -0.5, -0.1, 0.1, 0.5, 1.5, 3, 100_000])
@pytest.mark.parametrize("payload_type", [PCMU, OPUS])
def test_a_sender_that_sets_its_clock_is_heard_again_at_once(payload_type, jump_s):
    phone = Phone(payload_type)
    phone.talk(100)
    before = phone.receiver.stats.delay_ms
    phone.timestamp += int(jump_s * phone._clock_rate)
    phone.talk(200)
    levels = phone.levels()
    assert min(levels[4:100]) > LOUD
    assert min(levels[106:]) > LOUD
    assert phone.receiver.stats.delay_ms == pytest.approx(before, abs=25)


def test_after_a_change_of_formats_the_stream_goes_on():
    phone = Phone(PCMU)
    phone.talk(50)
    phone.receiver.change({PCMA: PcmaDecoder, OPUS: OpusDecoder})
    under_way = [phone.sound(), phone.sound()]
    for packet in under_way:  # of the format given up
        phone.receiver.receive(packet, phone.now)
        phone.pull()
    phone.use(PCMA)
    phone.talk(50)
    assert min(phone.levels()[4:]) > LOUD
    assert phone.losses == (0, 0, 0, 0)
    phone.receiver.receive(phone.packet(CN, bytes([40])), phone.now)
    phone.silence(50)
    assert not noise_of(phone, -30, None).any()  # it was not agreed on again


def test_a_payload_type_may_get_another_meaning():
    phone = Phone(PCMU, comfort_noise=())
    phone.talk(50)
    phone.receiver.change({PCMU: PcmaDecoder}, comfort_noise=(OPUS,))
    encoder = PcmaEncoder()
    tone = (8000 * np.sin(2 * np.pi * HZ * np.arange(480) / 24_000)).astype(np.int16)
    for _ in range(50):
        phone.receiver.receive(phone.packet(PCMU, encoder.encode(tone)), phone.now)
        phone.pass_time()
        phone.pull()
    heard = noise_of(phone, 60, 100).astype(float)
    spectrum = np.abs(np.fft.rfft(heard))
    assert np.argmax(spectrum) * 16_000 / len(heard) == pytest.approx(HZ, abs=30)
    assert dbfs(heard) == pytest.approx(dbfs(tone), abs=0.5)
    phone.receiver.receive(phone.packet(OPUS, bytes([40])), phone.now)
    phone.silence(30)
    assert dbfs(noise_of(phone, -20, None)) == pytest.approx(-40, abs=2)


packets = st.tuples(
    st.sampled_from([PCMU, PCMA, G722, CN, OPUS, EVENT]),
    st.one_of(st.integers(0, 40), st.integers(0xFFF0, 0xFFFF)),
    st.one_of(st.integers(0, 40).map(lambda n: n * 160), st.integers(0, 0xFFFFFFFF)),
    st.sampled_from([7, 7, 7, 8]),
    st.binary(max_size=400),
)
steps = st.one_of(packets, st.floats(0, 0.5), st.sampled_from([(CN,), (CN, EVENT), (PCMA,)]))


@given(st.lists(steps, max_size=120), st.randoms())
@example([(8, 0, 0, 7, b""), (8,), (8,)], Random(0))
def test_whatever_comes_in_whatever_format_320_samples_go_out(events, random: Random):
    receiver = AudioReceiver(DECODERS, (CN,))
    now = 0.0
    for event in events:
        if isinstance(event, float):
            now += event
        elif len(event) < 5:
            receiver.change(DECODERS, event)
        elif random.random() < 0.1:
            receiver.ignore(RtpPacket(*event))
        else:
            receiver.receive(RtpPacket(*event), now)
        if random.random() < 0.5:
            now += 0.02
            pcm = receiver.pull(now)
            assert (pcm.dtype, len(pcm)) == (np.int16, SAMPLES_IN)
    stats = receiver.stats
    assert min(stats.lost, stats.late, stats.concealed_samples) >= 0
