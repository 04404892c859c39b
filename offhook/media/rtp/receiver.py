"""The receive path of one call's sound: RTP packets as they come, 20 ms of 16 kHz PCM as pulled.

The puller's clock is the clock of the call. The sender's clock and the delay that the jitter asks
for both differ from it, and both differences are taken up by playing speech a pitch period longer
or shorter. What is missing is repaired from the packet after it, or concealed. Where the sender
leaves out its silence there is comfort noise, if it says what kind, and silence if it does not.

Delay has two parts. *Slack* is how long a packet had been due when it was fetched for decoding:
it is what protects against lateness, and it moves in whole pulls. Sound *left over* in front of
the fetched packet protects against nothing, so it is trimmed away when that is not heard.
"""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from math import ceil, floor, inf

import numpy as np

from offhook.media.codecs.codec import CodecError, Decoder
from offhook.media.codecs.comfort_noise import ComfortNoise
from offhook.media.pcm import RATE_IN, SAMPLES_IN, Pcm
from offhook.media.rtp.jitter import Arrival, JitterBuffer, Queued
from offhook.media.rtp.rtp import RtpPacket
from offhook.media.rtp.stretch import GOOD_FIT, MIN_PERIOD, accelerate, expand

FADE_PULLS = 6
"""Pulls of 20 ms over which continuous loss fades to silence: 120 ms. The first is unfaded."""
RESUME_SAMPLES = 80
"""5 ms in which sound takes over from what was invented in its place."""
TOLERANCE = 0.002
"""s of slack that may lack before something is done: timers and arrivals waver by this much."""
REPAIR_DELAY = 0.040
"""s above the target up to which a repaired packet is played although its time has passed in
silence: words are worth a delay that stretching takes back."""
BACKLOG = 0.400
"""s of sound that may have gathered while nothing was played; older sound is skipped."""
RETRY_PULLS = 4
"""Pulls between two attempts to stretch by less than one pull; larger ones are made every pull."""
FIT_STEP = 0.05
"""By how much each attempt that found no fit makes the next less choosy..."""
LEAST_FIT = 0.2
"""...down to this, which noise reaches too."""
SAMPLES_10_MS = RATE_IN // 100
"""Packets last a multiple of this; other lengths are not taken for a packet's length."""
STRAGGLER = 1.0
"""s after a change of source in which packets of the old source do not take the stream back."""

_FADE_SAMPLES = SAMPLES_IN * (FADE_PULLS - 1)
_FADE = (
    np.clip(1 - (np.arange(SAMPLES_IN * FADE_PULLS) + 1 - SAMPLES_IN) / _FADE_SAMPLES, 0, 1)
    .reshape(FADE_PULLS, SAMPLES_IN)
    .astype(np.float32)
)
_RESUME = (np.arange(RESUME_SAMPLES, dtype=np.float32) + 0.5) / RESUME_SAMPLES
_NOTHING = np.zeros(0, np.int16)


@dataclass(slots=True)
class ReceiverStats:
    """Counters since the start; delays in ms."""

    received: int = 0
    """Packets with sound for us, duplicates included."""
    ignored: int = 0
    """Packets without sound for us, but for comfort noise, and stragglers of a source or of a
    clock left."""
    lost: int = 0
    """Packets that had not come when they were due, and have not come since."""
    late: int = 0
    """Packets discarded because they came too late, too early, or too many at once."""
    malformed: int = 0
    """Packets their codec refused."""
    fec_recovered: int = 0
    """Lost packets repaired from the packet that followed."""
    concealed_samples: int = 0
    """Samples invented, or silent, because a packet was lost or late. Silence that the sender
    meant is not counted."""
    accelerated_samples: int = 0
    expanded_samples: int = 0
    played_samples: int = 0
    """Samples pulled from the first packet on."""
    played_packets: int = 0
    delay_ms: float = 0.0
    """From when the fastest packet would have come to when the sound is pulled, last packet."""
    target_ms: float = 0.0
    """The slack now aimed at."""
    wait_ms: float = 0.0
    """Wall time from the arrival to the pull of the last packet."""


class AudioReceiver:
    """One call's incoming sound. `decoders` makes, per payload type, the decoder of a stream;
    `comfort_noise` are the payload types of RFC 3389."""

    def __init__(
        self,
        decoders: Mapping[int, Callable[[], Decoder]],
        comfort_noise: Collection[int] = (),
    ) -> None:
        self.stats = ReceiverStats()
        self.clock_rate = 0
        """Hz of the stream's timestamps; 0 before the first packet."""
        self._factories = dict(decoders)
        self._comfort_noise = comfort_noise
        self._noise = ComfortNoise()
        self._noise_number = -inf  # sequence number, unwrapped, of its last packet
        self._decoders: dict[int, Decoder] = {}
        self._decoder: Decoder | None = None
        self._buffer = JitterBuffer(RATE_IN)  # until the first packet names its clock
        self._ssrc: int | None = None
        self._old_ssrc: int | None = None
        self._switched = 0.0
        self._dropped = 0  # of the buffer's, those accounted for
        self._ready: Pcm = _NOTHING  # decoded and not yet pulled
        self._tail: Pcm = np.zeros(1, np.int16)  # the piece of sound made last
        self._quiet = True  # that piece is silence or comfort noise
        self._spliced = False  # the next sound does not follow from the last
        self._playing = False
        self._last: Queued | None = None  # played
        self._packet_samples = SAMPLES_IN
        self._hidden = 0  # samples invented or silent since the last sound
        self._slack = self._slack_before = inf  # at the last two fetches
        self._fit = GOOD_FIT
        self._pulls_to_retry = 0

    @property
    def timestamp(self) -> int | None:
        """RTP timestamp, unwrapped from the stream's first, of the sample that the next pull
        begins with; None before the first packet. It stands still while loss is concealed."""
        position = self._buffer.position
        if position is None:
            return None
        return position - len(self._ready) * self._buffer.clock_rate // RATE_IN

    def change(
        self,
        decoders: Mapping[int, Callable[[], Decoder]],
        comfort_noise: Collection[int] = (),
    ) -> None:
        """Other formats were agreed within the call. The stream goes on, and packets of formats
        given up, which may be on their way, are still understood (RFC 3264 §8.3.2)."""
        for payload_type, make in decoders.items():
            if payload_type not in comfort_noise and self._factories.get(payload_type) != make:
                self._decoders.pop(payload_type, None)
        self._factories |= decoders
        for payload_type in comfort_noise:
            self._factories.pop(payload_type, None)
        self._comfort_noise = comfort_noise

    def receive(self, packet: RtpPacket, now: float) -> None:
        """Take a packet that arrived at `now`. Never raises, whatever the packet holds."""
        if packet.ssrc != self._ssrc and not self._switch_source(packet, now):
            self.stats.ignored += 1
            return
        if packet.payload_type not in self._factories:
            self._receive_noise(packet)
            return
        decoder = self._decoder_of(packet.payload_type)
        if decoder.clock_rate != self.clock_rate:
            if self._buffer.is_behind(packet.sequence_number):
                self.stats.ignored += 1
                return
            self._new_stream(decoder.clock_rate)
        arrival = self._buffer.insert(packet, now)
        self._count(arrival)

    def ignore(self, packet: RtpPacket) -> None:
        """Take a packet that shall not be heard: only its number is told from a loss."""
        self.stats.ignored += 1
        if packet.ssrc == self._ssrc:
            self._buffer.foreign(packet.sequence_number)

    def pull(self, now: float) -> Pcm:
        """The next 20 ms: always 320 samples. To be called every 20 ms of the local clock."""
        played = self.stats.played_packets
        ready = self._fill(self._ready, now)
        if played != self.stats.played_packets and not self._hidden:
            ready = self._fill(self._stretch(ready), now)
        if self._last is not None:
            self.stats.played_samples += SAMPLES_IN
        self._ready = ready[SAMPLES_IN:]
        return ready[:SAMPLES_IN]

    def _fill(self, ready: Pcm, now: float) -> Pcm:
        """Add to `ready` until a pull can be served."""
        while len(ready) < SAMPLES_IN:
            sound = self._next(now, len(ready))
            if quiet := sound is None:
                sound = self._silence(SAMPLES_IN - len(ready))
            self._tail, self._quiet = sound, quiet
            ready = np.concatenate((ready, sound)) if len(ready) else sound
        return ready

    # sources, payload types, counters

    def _switch_source(self, packet: RtpPacket, now: float) -> bool:
        if packet.payload_type not in self._factories:
            return False
        if packet.ssrc == self._old_ssrc and now - self._switched < STRAGGLER:
            return False
        self._old_ssrc, self._ssrc, self._switched = self._ssrc, packet.ssrc, now
        self._decoders.clear()
        self._new_stream(self._decoder_of(packet.payload_type).clock_rate)
        return True

    def _receive_noise(self, packet: RtpPacket) -> None:
        """A packet of the stream without sound, of comfort noise or of something unknown."""
        if packet.payload_type not in self._comfort_noise:
            self.ignore(packet)
            return
        number = self._buffer.foreign(packet.sequence_number)
        if number is not None and number > self._noise_number:
            rate = self._decoder.sound_rate if self._decoder else RATE_IN
            self._noise.update(packet.payload, rate)
            self._noise_number = number

    @property
    def _resting(self) -> bool:
        """Comfort noise is what the sender sent after the sound played last."""
        return self._last is not None and self._noise_number > self._last.sequence_number

    def _decoder_of(self, payload_type: int) -> Decoder:
        decoder = self._decoders.get(payload_type)
        if decoder is None:
            decoder = self._decoders[payload_type] = self._factories[payload_type]()
        return decoder

    def _new_stream(self, clock_rate: int) -> None:
        self._buffer = JitterBuffer(clock_rate)
        self.clock_rate = clock_rate
        self._packet_samples = SAMPLES_IN
        self._dropped = 0
        self._new_numbers()

    def _new_numbers(self) -> None:
        self._playing = False
        self._last = None
        self._noise_number = -inf

    def _count(self, arrival: Arrival) -> None:
        stats = self.stats
        stats.received += 1
        if arrival is Arrival.LATE:
            stats.late += 1
            stats.lost = max(0, stats.lost - 1)  # it was given up as lost
        elif arrival is Arrival.ASTRAY:
            stats.late += 1
        elif arrival is Arrival.RESTARTED:
            self._new_numbers()

    # the next piece of sound

    def _next(self, now: float, left_over: int) -> Pcm | None:
        """Sound to follow what is ready, in pieces of any length; None when there is none."""
        buffer = self._buffer
        head = self._head()
        if head is None:
            return self._conceal() if self._playing else None
        position = buffer.position
        assert position is not None
        if not self._playing or head.timestamp > position:
            if not self._playing or self._is_pause(head):
                return self._start(now, left_over)
            lost = self._fill_gap(head, head.timestamp - position, now)
            if lost is not None or not self._playing:
                return lost
        return self._play(buffer.pop(), now, left_over)

    def _head(self) -> Queued | None:
        """The first packet not past its time."""
        buffer = self._buffer
        while (head := buffer.head) is not None:
            assert buffer.position is not None
            if head.timestamp >= buffer.position:
                break
            buffer.pop()
            self.stats.late += 1
        return head

    def _missing(self, head: Queued) -> int:
        """Packets lost between the last one played and `head`."""
        if self._last is None:
            return 0
        gap = head.sequence_number - self._last.sequence_number - 1
        foreign = head.foreign - self._last.foreign
        return max(0, gap - foreign - (self._buffer.dropped - self._dropped))

    def _is_pause(self, head: Queued) -> bool:
        """Whether the time before `head` is silence the sender did not send (RFC 3551 §4.1):
        more than the missing packets can have filled."""
        assert self._buffer.position is not None
        ticks = head.timestamp - self._buffer.position
        samples = ticks * RATE_IN // self._buffer.clock_rate
        return samples > self._missing(head) * max(self._packet_samples, SAMPLES_IN)

    def _start(self, now: float, left_over: int) -> Pcm | None:
        """The first sound after a pause, once it has waited for as long as the jitter asks."""
        buffer = self._buffer
        while buffer.backlog() > BACKLOG:
            buffer.pop()
            self.stats.late += 1
        head = buffer.head
        assert head is not None
        if buffer.slack(head.timestamp, now) < buffer.target - TOLERANCE:
            return self._conceal() if self._playing else None
        meant = self._last is None or self._is_pause(head)
        self._playing = True
        self._slack = inf
        return self._play(buffer.pop(), now, left_over, meant)

    def _play(self, packet: Queued, now: float, left_over: int, meant: bool = False) -> Pcm | None:
        """Decode a packet; `meant` if what came before it was silence the sender meant."""
        self._account(packet, now, left_over)
        decoder = self._decoder = self._decoder_of(packet.payload_type)
        try:
            pcm = decoder.decode(packet.payload)
        except CodecError:
            pcm = _NOTHING
        samples = len(pcm)
        if samples and samples % SAMPLES_10_MS == 0:
            self._packet_samples = samples
        ticks = (samples or self._packet_samples) * decoder.clock_rate // RATE_IN
        self._buffer.position = packet.timestamp + max(1, ticks)
        if not samples:
            self.stats.malformed += 1
            return self._conceal()
        return self._sound(pcm, meant)

    def _account(self, packet: Queued, now: float, left_over: int) -> None:
        stats, buffer = self.stats, self._buffer
        stats.lost += self._missing(packet)
        if buffer.dropped != self._dropped:
            stats.late += buffer.dropped - self._dropped
            self._dropped = buffer.dropped
            self._spliced = True
        self._last = packet
        self._slack_before, self._slack = self._slack, buffer.slack(packet.timestamp, now)
        ahead = left_over / RATE_IN
        stats.delay_ms = (self._slack + ahead) * 1000
        stats.wait_ms = (now - packet.arrived + ahead) * 1000
        stats.target_ms = buffer.target * 1000
        stats.played_packets += 1

    def _fill_gap(self, head: Queued, ticks: int, now: float) -> Pcm | None:
        """Sound for the lost packets before `head`; None once there has been enough of it, or
        when there shall be none any more."""
        buffer = self._buffer
        left = ticks * RATE_IN // buffer.clock_rate - self._hidden
        if left > self._packet_samples:
            return self._conceal()
        decoder = self._decoder
        slack = buffer.slack(head.timestamp, now)
        if decoder is self._decoder_of(head.payload_type) and (
            left > 0 or slack < buffer.target + REPAIR_DELAY
        ):
            repaired = self._repair(decoder, head)
            if repaired is not None:
                return repaired
        if left > 0:
            return self._conceal()
        buffer.position = head.timestamp
        return None

    def _repair(self, decoder: Decoder, following: Queued) -> Pcm | None:
        try:
            pcm = decoder.recover(following.payload, self._packet_samples)
        except CodecError:
            return None
        if pcm is None:
            return None
        self.stats.fec_recovered += 1
        self._buffer.repairable = True
        self._buffer.position = following.timestamp
        return self._sound(pcm, meant=False)

    def _conceal(self) -> Pcm | None:
        """20 ms for sound that is not there; None when it has faded to silence, and when the
        sender meant it not to be there."""
        pulls = self._hidden // SAMPLES_IN
        if pulls >= FADE_PULLS or self._decoder is None or self._resting:
            self._playing = False
            return None
        self._hidden += SAMPLES_IN
        pcm = self._decoder.conceal(SAMPLES_IN)
        return (pcm * _FADE[pulls]).astype(np.int16) if pulls else pcm

    def _silence(self, samples: int) -> Pcm:
        """Nothing, or the noise that the sender hears."""
        self._hidden += samples
        pcm = self._noise.take(samples) if self._resting else np.zeros(samples, np.int16)
        step = int(self._tail[-1]) - int(pcm[0])
        if step and not self._quiet:  # sound was cut off: let it fall instead of stepping
            fall = pcm[:RESUME_SAMPLES] + step * (1 - _RESUME[:samples])
            pcm = pcm.copy()
            pcm[: len(fall)] = np.clip(fall, -32768, 32767)
        return pcm

    def _sound(self, pcm: Pcm, meant: bool) -> Pcm:
        """Join decoded sound to what was pulled before it."""
        if not self._hidden and not self._spliced:
            return pcm
        if not meant:
            self.stats.concealed_samples += self._hidden
        level = min(1.0, max(0.0, 1 - (self._hidden - SAMPLES_IN) / _FADE_SAMPLES))
        self._hidden = 0
        self._spliced = False
        rise = _RESUME[: len(pcm)]
        head = pcm[: len(rise)] * (level + (1 - level) * rise)
        head += (int(self._tail[-1]) - head[0]) * (1 - rise)
        joined = pcm.copy()
        joined[: len(rise)] = np.clip(head, -32768, 32767)
        return joined

    # delay

    def _stretch(self, ready: Pcm) -> Pcm:
        """Bring the delay nearer to what it should be, if it is off and the sound allows it."""
        quantum = min(self._packet_samples, SAMPLES_IN)
        left_over = (len(ready) - SAMPLES_IN) % quantum
        excess = min(self._slack, self._slack_before) - self._buffer.target
        quanta = floor(excess * RATE_IN / quantum) if excess >= 0 else 0
        if excess < -TOLERANCE:
            change = quantum * ceil(-excess * RATE_IN / quantum) - left_over
        else:
            change = left_over + (quantum * quanta if self._follows() else 0)
            if change < MIN_PERIOD:
                self._fit = GOOD_FIT
                return ready
        if self._pulls_to_retry and change < quantum:
            self._pulls_to_retry -= 1
            return ready
        self._pulls_to_retry = RETRY_PULLS
        if excess < -TOLERANCE:
            ready, changed = expand(ready, change, self._fit)
            self.stats.expanded_samples += changed
        else:
            ready, changed = accelerate(ready, change, self._fit)
            self.stats.accelerated_samples += changed
        self._fit = GOOD_FIT if changed else max(LEAST_FIT, self._fit - FIT_STEP)
        if changed:
            self._slack = inf  # what was measured before the change says nothing after it
        return ready

    def _follows(self) -> bool:
        """Whether the packet after the one last fetched is there."""
        head = self._buffer.head
        return head is not None and head.timestamp == self._buffer.position
