"""The receive path of one call's audio: RTP packets in as they arrive, 20 ms of 16 kHz PCM out per
pull.

The puller's clock is the clock of the call. The sender's clock drifts against it and the delay that
jitter requires changes; both are absorbed by time-stretching speech by a pitch period. Lost packets
are repaired from the packet after them (FEC) or concealed. When the sender suppresses silence, its
comfort noise is played, or silence if it sends none.

Delay has two parts. *Slack* is how long a packet had been due when it was fetched for decoding: it
protects against lateness and moves in whole pulls. Audio *left over* in front of the fetched packet
protects against nothing, so it is trimmed when that is inaudible.
"""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from math import ceil, floor, inf

import numpy as np

from offhook.media import native
from offhook.media.codecs.codec import CodecError, Decoder
from offhook.media.codecs.comfort_noise import ComfortNoise
from offhook.media.pcm import RATE_IN, SAMPLES_IN, Pcm
from offhook.media.rtp.jitter import Arrival, JitterBuffer, Queued, new_buffer
from offhook.media.rtp.rtcp import ReceptionStatistics
from offhook.media.rtp.rtp import RtpPacket, uint32_diff
from offhook.media.rtp.stretch import GOOD_FIT, MIN_PERIOD, accelerate, expand

FADE_PULLS = 6
"""Pulls of 20 ms over which continuous loss fades to silence: 120 ms. The first is not faded."""
RESUME_SAMPLES = 80
"""5 ms over which real audio replaces what was synthesized for it."""
TOLERANCE = 0.002
"""Seconds of missing slack that are tolerated: timers and arrivals vary by this much."""
REPAIR_DELAY = 0.040
"""Seconds above the target up to which a repaired packet is played although its time has passed in
silence: losing words is worse than a delay that time-stretching removes again."""
BACKLOG = 0.400
"""Seconds of audio that may queue before any of a stream is played; older audio is skipped. Later,
after a pause, all of it is played: losing words is worse than a delay (REPAIR_DELAY)."""
RETRY_PULLS = 4
"""Pulls between two attempts to stretch by less than one pull; larger ones are tried every pull."""
FIT_STEP = 0.05
"""How much each failed attempt lowers the required fit..."""
LEAST_FIT = 0.2
"""...down to this, which noise reaches too."""
SAMPLES_10_MS = RATE_IN // 100
"""Packet durations are multiples of this; other lengths do not update the packet length."""
OLD_SOURCE_GUARD = 1.0
"""Seconds after a change of SSRC in which packets of the old one are ignored."""

_FADE_SAMPLES = SAMPLES_IN * (FADE_PULLS - 1)
_FADE = (
    np.clip(1 - (np.arange(SAMPLES_IN * FADE_PULLS) + 1 - SAMPLES_IN) / _FADE_SAMPLES, 0, 1)
    .reshape(FADE_PULLS, SAMPLES_IN)
    .astype(np.float32)
)
_RESUME = (np.arange(RESUME_SAMPLES, dtype=np.float32) + 0.5) / RESUME_SAMPLES
_NOTHING = np.zeros(0, np.int16)


@dataclass
class ReceiverStats:
    """Receive counters since the start of the call; delays in ms."""

    received: int = 0
    """Audio packets received, duplicates included."""
    ignored: int = 0
    """Packets without audio or comfort noise, and late ones of a previous SSRC or clock."""
    lost: int = 0
    """Packets missing when they were due that have not arrived since."""
    late: int = 0
    """Packets discarded because they came too late, too early, or too many at once."""
    malformed: int = 0
    """Packets their codec could not decode."""
    fec_recovered: int = 0
    """Lost packets repaired from the packet that followed."""
    concealed_samples: int = 0
    """Samples synthesized or silent because a packet was lost or late. Silence suppressed by the
    sender is not counted."""
    accelerated_samples: int = 0
    expanded_samples: int = 0
    played_samples: int = 0
    """Samples pulled since the first packet."""
    played_packets: int = 0
    delay_ms: float = 0.0
    """Of the last packet: from when the fastest would have arrived to the pull of its audio."""
    target_ms: float = 0.0
    """The target slack."""
    wait_ms: float = 0.0
    """Time from arrival to pull of the last packet."""


class AudioReceiver:
    """The receiver of one call's audio. `decoders` maps payload types to decoder factories;
    `comfort_noise` holds the payload types of comfort noise (RFC 3389)."""

    def __init__(
        self,
        decoders: Mapping[int, Callable[[], Decoder]],
        comfort_noise: Collection[int] = (),
    ) -> None:
        self.stats = self._new_stats()
        self.reception: ReceptionStatistics | None = None
        """Of the stream, for `accept`."""
        self.clock_rate = 0
        """Timestamp rate of the stream in Hz; 0 before the first packet."""
        self._factories = dict(decoders)
        self._comfort_noise = comfort_noise
        self._noise = ComfortNoise()
        self._noise_number = -inf  # unwrapped sequence number of its last packet
        self._decoders: dict[int, Decoder] = {}
        self._decoder: Decoder | None = None
        self._buffer: JitterBuffer | native.JitterBuffer
        self._buffer = new_buffer(RATE_IN)  # until the first packet gives the clock rate
        self._ssrc: int | None = None
        self._old_ssrc: int | None = None
        self._switched = 0.0
        self._dropped = 0  # how many of the buffer's drops are accounted for
        self._ready: Pcm = _NOTHING  # decoded and not yet pulled
        self._tail = 0  # the last sample produced
        self._quiet = True  # its block is silence or comfort noise
        self._spliced = False  # the next block does not continue the last
        self._playing = False
        self._begun = False  # a packet of the stream has been played
        self._last_number = 0  # of the last one: its unwrapped sequence number
        self._last_non_audio = 0  # and the packets without audio before it
        self._packet_samples = SAMPLES_IN
        self._concealed = 0  # samples synthesized or silent since the last decoded audio
        self._slack = self._slack_before = inf  # at the last two fetches
        self._fit = GOOD_FIT
        self._pulls_to_retry = 0
        self._unread_since: float | None = None

    @property
    def timestamp(self) -> int | None:
        """RTP timestamp, unwrapped from the stream's first, of the first sample of the next pull;
        None before the first packet. It does not advance while loss is concealed."""
        position = self._buffer.position
        if position is None:
            return None
        return position - len(self._ready) * self._buffer.clock_rate // RATE_IN

    def change(
        self,
        decoders: Mapping[int, Callable[[], Decoder]],
        comfort_noise: Collection[int] = (),
    ) -> None:
        """Apply formats renegotiated within the call. The stream continues, and packets in the
        previous formats that are still on their way are decoded (RFC 3264 §8.3.2)."""
        for payload_type, make in decoders.items():
            if payload_type not in comfort_noise and self._factories.get(payload_type) != make:
                self._decoders.pop(payload_type, None)
        self._factories |= decoders
        for payload_type in comfort_noise:
            self._factories.pop(payload_type, None)
        self._comfort_noise = comfort_noise

    def accept(self, data: bytes, now: float) -> bool:
        """Accept a datagram that is the next RTP packet of the stream in the format played last,
        and count it in `reception`. False if it is not, or must be looked at more closely; then
        nothing has happened."""
        return False

    def receive(self, packet: RtpPacket, now: float) -> None:
        """Accept a packet that arrived at `now` (seconds). Never raises."""
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
        arrival = self._buffer.insert(packet, self._arrived(packet, now))
        self._count(arrival)

    def unread_since(self, at: float | None) -> None:
        """From now on packets may have waited unread since `at`; None: they are received as they
        arrive."""
        self._unread_since = at

    def _arrived(self, packet: RtpPacket, now: float) -> float:
        """Return when a packet received `now` has arrived. One that has waited unread is taken to
        have been fast: the wait is no jitter, for which later packets would be delayed and speech
        expanded."""
        since, buffer = self._unread_since, self._buffer
        if since is None or buffer.position is None:
            return now
        timestamp = buffer.position + uint32_diff(packet.timestamp, buffer.position)
        return min(now, max(since, now - buffer.slack(timestamp, now)))

    def ignore(self, packet: RtpPacket) -> None:
        """Account for a packet without playing it, so that it does not count as lost."""
        self.stats.ignored += 1
        if packet.ssrc == self._ssrc:
            self._buffer.skip_non_audio(packet.sequence_number)

    def pull(self, now: float) -> Pcm:
        """Return the next 20 ms: always 320 samples. Call it every 20 ms of the local clock."""
        steady = self._pull_steady(now)
        if steady is not None:
            return steady
        played = self.stats.played_packets
        ready = self._fill(self._ready, now)
        if played != self.stats.played_packets and not self._concealed:
            ready = self._fill(self._stretch(ready), now)
        if self._begun:
            self.stats.played_samples += SAMPLES_IN
        self._ready = ready[SAMPLES_IN:]
        return ready[:SAMPLES_IN]

    def _pull_steady(self, now: float) -> Pcm | None:
        """Return the next 20 ms if the packet for them is there and only to be decoded. None
        otherwise; then nothing has happened."""
        return None

    def _new_stats(self) -> ReceiverStats:
        return ReceiverStats()

    def _fill(self, ready: Pcm, now: float) -> Pcm:
        """Extend `ready` until it holds a whole pull."""
        while len(ready) < SAMPLES_IN:
            sound = self._next(now, len(ready))
            if quiet := sound is None:
                sound = self._silence(SAMPLES_IN - len(ready))
            self._tail, self._quiet = int(sound[-1]), quiet
            ready = np.concatenate((ready, sound)) if len(ready) else sound
        return ready

    # sources, payload types, counters

    def _switch_source(self, packet: RtpPacket, now: float) -> bool:
        if packet.payload_type not in self._factories:
            return False
        if packet.ssrc == self._old_ssrc and now - self._switched < OLD_SOURCE_GUARD:
            return False
        self._old_ssrc, self._ssrc, self._switched = self._ssrc, packet.ssrc, now
        self._decoders.clear()
        self._new_stream(self._decoder_of(packet.payload_type).clock_rate)
        return True

    def _receive_noise(self, packet: RtpPacket) -> None:
        """Handle a packet without audio: comfort noise or an unknown payload type."""
        if packet.payload_type not in self._comfort_noise:
            self.ignore(packet)
            return
        number = self._buffer.skip_non_audio(packet.sequence_number)
        if number is not None and number > self._noise_number:
            rate = self._decoder.sound_rate if self._decoder else RATE_IN
            self._noise.update(packet.payload, rate)
            self._noise_number = number

    @property
    def _in_comfort_noise(self) -> bool:
        """The sender has sent comfort noise since the audio played last."""
        return self._begun and self._noise_number > self._last_number

    def _decoder_of(self, payload_type: int) -> Decoder:
        decoder = self._decoders.get(payload_type)
        if decoder is None:
            decoder = self._decoders[payload_type] = self._factories[payload_type]()
        return decoder

    def _new_stream(self, clock_rate: int) -> None:
        self._buffer = new_buffer(clock_rate)
        self.clock_rate = clock_rate
        self._packet_samples = SAMPLES_IN
        self._dropped = 0
        self._reset_sequence()

    def _reset_sequence(self) -> None:
        self._playing = False
        self._begun = False
        self._noise_number = -inf

    def _count(self, arrival: Arrival) -> None:
        stats = self.stats
        stats.received += 1
        if arrival is Arrival.LATE:
            stats.late += 1
            stats.lost = max(0, stats.lost - 1)  # it was counted as lost
        elif arrival is Arrival.OUT_OF_RANGE:
            stats.late += 1
        elif arrival is Arrival.RESTARTED:
            self._reset_sequence()

    # producing audio

    def _next(self, now: float, left_over: int) -> Pcm | None:
        """Return the next block of audio, of any length; None if there is none."""
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
        """The first packet whose time has not passed."""
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
        if not self._begun:
            return 0
        gap = head.sequence_number - self._last_number - 1
        non_audio = head.non_audio - self._last_non_audio
        return max(0, gap - non_audio - (self._buffer.dropped - self._dropped))

    def _is_pause(self, head: Queued) -> bool:
        """Whether the gap before `head` is silence suppressed by the sender (RFC 3551 §4.1): longer
        than the missing packets can account for."""
        assert self._buffer.position is not None
        ticks = head.timestamp - self._buffer.position
        samples = ticks * RATE_IN // self._buffer.clock_rate
        return samples > self._missing(head) * max(self._packet_samples, SAMPLES_IN)

    def _start(self, now: float, left_over: int) -> Pcm | None:
        """Return the first audio after a pause, once it has waited for the target delay."""
        buffer = self._buffer
        while not self._begun and buffer.backlog() > BACKLOG:
            buffer.pop()
            self.stats.late += 1
        head = buffer.head
        assert head is not None
        if buffer.slack(head.timestamp, now) < buffer.target - TOLERANCE:
            return self._conceal() if self._playing else None
        meant = not self._begun or self._is_pause(head)
        self._playing = True
        self._slack = inf
        return self._play(buffer.pop(), now, left_over, meant)

    def _play(self, packet: Queued, now: float, left_over: int, meant: bool = False) -> Pcm | None:
        """Decode a packet; `meant` if the gap before it was suppressed silence."""
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
        self._buffer.packet_ticks = max(1, ticks)
        self._buffer.position = packet.timestamp + self._buffer.packet_ticks
        if not samples:
            self.stats.malformed += 1
            return self._conceal()
        return self._join(pcm, meant)

    def _account(self, packet: Queued, now: float, left_over: int) -> None:
        stats, buffer = self.stats, self._buffer
        stats.lost += self._missing(packet)
        if buffer.dropped != self._dropped:
            stats.late += buffer.dropped - self._dropped
            self._dropped = buffer.dropped
            self._spliced = True
        self._begun = True
        self._last_number, self._last_non_audio = packet.sequence_number, packet.non_audio
        self._slack_before, self._slack = self._slack, buffer.slack(packet.timestamp, now)
        ahead = left_over / RATE_IN
        stats.delay_ms = (self._slack + ahead) * 1000
        stats.wait_ms = (now - packet.arrived + ahead) * 1000
        stats.target_ms = buffer.target * 1000
        stats.played_packets += 1

    def _fill_gap(self, head: Queued, ticks: int, now: float) -> Pcm | None:
        """Return audio for the lost packets before `head`; None once enough has been made, or once
        concealment has faded out."""
        buffer = self._buffer
        left = ticks * RATE_IN // buffer.clock_rate - self._concealed
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
        return self._join(pcm, meant=False)

    def _conceal(self) -> Pcm | None:
        """Synthesize 20 ms of missing audio; None once faded out, and in comfort noise."""
        pulls = self._concealed // SAMPLES_IN
        if pulls >= FADE_PULLS or self._decoder is None or self._in_comfort_noise:
            self._playing = False
            return None
        self._concealed += SAMPLES_IN
        pcm = self._decoder.conceal(SAMPLES_IN)
        return (pcm * _FADE[pulls]).astype(np.int16) if pulls else pcm

    def _silence(self, samples: int) -> Pcm:
        """Return silence, or comfort noise if the sender has sent any."""
        self._concealed += samples
        pcm = (
            self._noise.next_samples(samples)
            if self._in_comfort_noise
            else np.zeros(samples, np.int16)
        )
        step = self._tail - int(pcm[0])
        if step and not self._quiet:  # audio was cut off: fade instead of stepping
            fall = pcm[:RESUME_SAMPLES] + step * (1 - _RESUME[:samples])
            pcm = pcm.copy()
            pcm[: len(fall)] = np.clip(fall, -32768, 32767)
        return pcm

    def _join(self, pcm: Pcm, meant: bool) -> Pcm:
        """Join decoded audio to what was pulled before it."""
        if not self._concealed and not self._spliced:
            return pcm
        if not meant:
            self.stats.concealed_samples += self._concealed
        level = min(1.0, max(0.0, 1 - (self._concealed - SAMPLES_IN) / _FADE_SAMPLES))
        self._concealed = 0
        self._spliced = False
        rise = _RESUME[: len(pcm)]
        head = pcm[: len(rise)] * (level + (1 - level) * rise)
        head += (self._tail - head[0]) * (1 - rise)
        joined = pcm.copy()
        joined[: len(rise)] = np.clip(head, -32768, 32767)
        return joined

    # delay

    def _stretch(self, ready: Pcm) -> Pcm:
        """Stretch the audio towards the target delay, if it is off and the audio allows it."""
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
            self._slack = inf  # measurements before the change no longer apply
        return ready

    def _follows(self) -> bool:
        """Whether the packet after the one last fetched has arrived."""
        head = self._buffer.head
        return head is not None and head.timestamp == self._buffer.position


if native.BUILT:

    class CompiledStats(native.ReceiverStats, ReceiverStats):
        pass

    class CompiledReceiver(native.Receiver, AudioReceiver):
        """Takes the usual packet, and the pull that it is due in, in one step each, once one of the
        same payload type was played."""

        def __init__(
            self,
            decoders: Mapping[int, Callable[[], Decoder]],
            comfort_noise: Collection[int] = (),
        ) -> None:
            self._steady_type = -1
            AudioReceiver.__init__(self, decoders, comfort_noise)

        def change(
            self,
            decoders: Mapping[int, Callable[[], Decoder]],
            comfort_noise: Collection[int] = (),
        ) -> None:
            self._steady_type = -1
            super().change(decoders, comfort_noise)

        def unread_since(self, at: float | None) -> None:
            self._steady_type = -1
            super().unread_since(at)

        def _new_stats(self) -> ReceiverStats:
            return CompiledStats()

        def _reset_sequence(self) -> None:
            self._steady_type = -1
            super()._reset_sequence()

        def _play(
            self, packet: Queued, now: float, left_over: int, meant: bool = False
        ) -> Pcm | None:
            played = super()._play(packet, now, left_over, meant)
            self._steady = getattr(self._decoder, "compiled", None)
            self._steady_type = -1 if self._steady is None else packet.payload_type
            return played


def new_receiver(
    decoders: Mapping[int, Callable[[], Decoder]], comfort_noise: Collection[int] = ()
) -> AudioReceiver:
    """Return the receiver of a new call."""
    make = CompiledReceiver if native.used else AudioReceiver
    return make(decoders, comfort_noise)
