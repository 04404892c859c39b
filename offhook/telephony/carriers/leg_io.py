"""A carrier's stream as a Leg: one for all providers.

In: sound becomes RTP packets and goes through the receive path of every other line. Out: what is
queued in the playout is sent up to `lead_ms` ahead of when it is played, since a carrier plays what
it has and knows no jitter buffer that we could fill. The playout goes on counting what the far end
plays, by a model of the carrier's buffer that its marks keep true, so that a caller who breaks in
has heard what we take for heard:

    sent at the far end    ======================|--- lead --->|
    playout.sent                                 ^             ^ _wire

A pause or a flush of the playout takes the lead back in the same call, and sound goes on from
`playout.sent` later, within the word. Of carriers that cannot take sound back the lead is played.
"""

import asyncio
import contextlib
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import Protocol

import numpy as np
from loguru import logger

from offhook.media.codecs.codec import CodecError, Decoder, Encoder
from offhook.media.codecs.g711 import PcmaDecoder, PcmaEncoder, PcmuDecoder, PcmuEncoder
from offhook.media.codecs.l16 import L16Decoder, L16Encoder
from offhook.media.codecs.opus import OpusDecoder, OpusEncoder, OpusSettings
from offhook.media.dtmf import DIGITS, DtmfError, KeyPresses
from offhook.media.leg import CallInfo, Leg, LegError, LegStatistics
from offhook.media.pcm import PACKET_MS, RATE_IN, RATE_OUT, SAMPLES_IN, SAMPLES_OUT, Pcm
from offhook.media.playout import Playout, PlayoutState
from offhook.media.rtp.quality import mos
from offhook.media.rtp.receiver import AudioReceiver
from offhook.media.rtp.rtcp import ReceptionStatistics
from offhook.telephony.call_record import EndedBy
from offhook.telephony.carriers.streams.far_buffer import FarBuffer
from offhook.telephony.carriers.streams.packets import PAYLOAD_TYPE, Packetizer
from offhook.telephony.carriers.streams.stream import (
    Answer,
    CarrierError,
    CarrierStream,
    Congested,
    Event,
    Format,
    Held,
    Message,
    Played,
    Pressed,
    Sound,
    Started,
    Stopped,
)

MARK_SAMPLES = RATE_OUT * 100 // 1000
"""Sound between two marks, 100 ms."""
TAIL_SAMPLES = RATE_OUT * 40 // 1000
"""An end that does not fill a message is sent 40 ms before it is due and not sooner: more may be
written until then, and would sound cut off behind the padding."""
LOSS_WINDOW_S = 5.0
"""Loss on the line and its MOS are of the last seconds, not of the whole call."""
GOODBYE_S = 1.0
"""How long hanging up waits for the last words to be played, and for the far end to close."""

_SILENCE = np.zeros(SAMPLES_IN, np.int16)
_PAUSE = np.zeros(SAMPLES_OUT, np.int16)


class CarrierControl(Protocol):
    """The call of a leg, as its provider's REST API knows it."""

    def started(self, leg: "CarrierLeg", started: Started) -> None:
        """The stream says who calls whom: once, before the leg connects. Raises CarrierError when
        the stream is not of this call."""

    async def hang_up(self) -> None:
        """Raises LegError."""

    async def transfer(self, target: str) -> None:
        """Raises LegError."""


def _make_decoder(format: Format) -> Callable[[], Decoder]:
    match format.encoding:
        case "pcmu":
            return PcmuDecoder
        case "pcma":
            return PcmaDecoder
        case "opus":
            return OpusDecoder
        case "l16":
            return partial(L16Decoder, format.rate, format.big_endian)


def _make_encoder(format: Format, opus: OpusSettings | None) -> Callable[[], Encoder]:
    match format.encoding:
        case "pcmu":
            return PcmuEncoder
        case "pcma":
            return PcmaEncoder
        case "opus":
            return partial(OpusEncoder, opus)
        case "l16":
            return partial(L16Encoder, format.rate, format.big_endian)


def _nowhere(message: Message) -> None:
    pass


def _nothing() -> None:
    pass


class CarrierLeg(Leg):
    """Silent until its stream has started."""

    def __init__(
        self,
        call_id: str,
        stream: CarrierStream,
        send: Callable[[Message], None],
        control: CarrierControl | None = None,
        opus: OpusSettings | None = None,
    ) -> None:
        """`send` takes each message and neither blocks nor raises. Without `control` a call is
        hung up by its stream alone, and cannot be transferred."""
        super().__init__(call_id)
        self.stream = stream
        self.codec = ""
        """Of what is heard; "" before the stream has started."""
        self.ended_by: EndedBy = "local"
        """Once it is closed."""
        self._emit = send
        self._read: Callable[[], None] = _nothing
        self._control = control
        self._opus = opus
        self._started = False
        self._now = 0.0
        """Of the present tick."""
        self._ending: str | None = None
        """Why we hang up."""
        self._call_is_ours = True
        """It has not ended and was not handed over: hanging up ends it."""
        self._keys = KeyPresses()
        self._presses: deque[list[Message]] = deque()
        """What the keys waiting are to the provider."""
        self._packetizer: Packetizer
        self._receiver: AudioReceiver
        self._reception: ReceptionStatistics
        self._window_started = 0.0
        self._window_base = (0, 0)
        self._loss = 0.0
        self._make_encoder: Callable[[], Encoder]
        self._encoder: Encoder
        self._packet = 0
        """Samples in one message..."""
        self._longer = 0
        """...and in one where so many wait."""
        self._silence: list[Message] = []
        """20 ms of it, where it has to be sent."""
        self._far = FarBuffer()
        self._wire = 0
        """Sound sent, as a value of `playout.sent`."""
        self._marked = 0
        """Of that, what is before the last mark."""
        self._flowing = False
        """The far end has sound that it has not played."""
        self._congested = False
        self._packets_sent = 0
        self._all_played: asyncio.Event | None = None
        self.playout = Playout(on_cut=self._cut)

    # --- messages in ---

    def open(self, read: Callable[[], None] = _nothing) -> None:
        """The socket is open: say what the provider expects first. `read` is called as each tick
        begins, to hand over the messages that wait."""
        self._read = read
        self._say(self.stream.opening())

    def receive(self, data: Message, now: float) -> None:
        """Take one message. Raises CarrierError: the stream cannot go on, the caller closes its
        socket and this line."""
        if self.closed is not None:
            return
        for event in self.stream.receive(data):
            self._take_event(event, now)
            if self.closed is not None:
                return

    def _take_event(self, event: Event, now: float) -> None:
        match event:
            case Sound():
                self._hear_sound(event, now)
            case Played(name):
                self._far.played(name, now)
                if self._all_played is not None and not self._far.pending:
                    self._all_played.set()
            case Started():
                self._start(event, now)
            case Pressed(digit):
                self.listener.on_dtmf(digit)
            case Answer(message):
                self._emit(message)
            case Held(held):
                self.set_held(held)
            case Congested(congested):
                self._congested = congested
            case Stopped(reason):
                self._call_is_ours = False
                self.close(reason, "remote")

    def _start(self, started: Started, now: float) -> None:
        stream, heard, said = self.stream, started.format_in, started.format_out
        make_decoder = _make_decoder(heard)
        self._make_encoder = _make_encoder(said, self._opus)
        try:
            decoder, self._encoder = make_decoder(), self._make_encoder()
        except CodecError as error:
            raise CarrierError(f"{stream.provider}: {error}") from error
        self._packetizer = Packetizer(heard)
        self._receiver = AudioReceiver({PAYLOAD_TYPE: make_decoder})
        self._reception = ReceptionStatistics(0, decoder.clock_rate)
        self.codec = heard.encoding
        self._packet = RATE_OUT * stream.packet_ms // 1000
        self._longer = RATE_OUT * stream.longer_ms // 1000 or self._packet
        if stream.silence_too:
            self._silence = stream.sound(self._make_encoder().encode(_PAUSE))
        self._window_started = now
        self._started = True
        self.info = CallInfo(
            stream.provider,
            caller=started.caller,
            called=started.called,
            variables=started.parameters,
        )
        if self._control is not None:
            self._control.started(self, started)
        if self.closed is None:
            self.connect()

    def _hear_sound(self, sound: Sound, now: float) -> None:
        packets = self._packetizer.packets(sound)
        for packet in packets:
            self._receiver.receive(packet, now)
        if packets:
            first = packets[0]
            self._reception.receive(first.sequence_number, first.timestamp, now)

    # --- ticks ---

    def catch_up(self) -> None:
        self._read()

    def _receive(self, now: float) -> Pcm:
        self._now = now
        return self._receiver.pull(now) if self._started else _SILENCE

    def _take(self) -> Pcm | None:
        """What the far end plays in this tick, as far as we can tell."""
        playout = self.playout
        if not self._started:
            return playout.take()
        if self._wire > playout.sent:
            said = None
            for _ in range(self._far.due(self._now, playout.sent, self._wire)):
                if self._wire > playout.sent:
                    said = playout.take()
            return said
        if self._flowing:
            self._ran_dry()
        return None if self._waits_to_be_sent() else playout.take()

    def _waits_to_be_sent(self) -> bool:
        """There is sound to play that the far end does not have."""
        playout = self.playout
        if not playout.queued or playout.state is PlayoutState.PAUSED:
            return False
        return playout.queued >= SAMPLES_OUT or playout.peek(0, self._packet) is not None

    def _send(self, said: Pcm | None, now: float) -> None:
        if not self._started or self.closed is not None or self._ending is not None:
            return
        if self._keys.busy:
            self._press()
        if now - self._window_started >= LOSS_WINDOW_S:
            self._measure_loss(now)
        if self._congested:
            return
        sent = self._packets_sent
        if self.playout.queued:
            self._send_ahead(now)
        if self._silence and sent == self._packets_sent and not self._far_has_sound(now):
            self._say(self._silence)

    def _send_ahead(self, now: float) -> None:
        playout = self.playout
        lead = RATE_OUT * self.stream.lead_ms // 1000
        if self._flowing:
            lead += self._far.held_by_habit(playout.sent)
        ahead = self._wire - playout.sent
        while ahead < lead:
            left = playout.queued - ahead
            packet = self._longer if left >= self._longer else self._packet
            if left < packet and ahead > TAIL_SAMPLES:
                return
            sound = playout.peek(ahead, packet)
            if sound is None:
                return
            if not self._flowing:
                self._begin_flow(now)
            self._say(self.stream.sound(self._encoder.encode(sound)))
            self._packets_sent += 1
            self._wire += min(left, packet)
            ahead = self._wire - playout.sent
            if self._wire - self._marked >= MARK_SAMPLES:
                self._mark(now)

    def _begin_flow(self, now: float) -> None:
        self._flowing = True
        self._far.start(self._wire, now)
        self._mark(now)
        self._marked -= MARK_SAMPLES  # the next one soon, to see whether the far end begins late

    def _ran_dry(self) -> None:
        """The far end has played all, if it is as we think."""
        self._flowing = False
        if self._marked < self._wire:
            self._mark(self._now)

    def _mark(self, now: float) -> None:
        self._marked = self._wire
        if self.stream.acknowledges:
            self._say(self.stream.mark(self._far.mark(self._wire, now)))

    def _far_has_sound(self, now: float) -> bool:
        return self._flowing and self._far.clock(now) < self._wire

    def _say(self, messages: Sequence[Message]) -> None:
        for message in messages:
            self._emit(message)

    def _cut(self) -> None:
        """The playout was paused or flushed: what was sent ahead shall not be heard now."""
        if self.stream.clears:
            if self._started and (self._flowing or self._far.pending):
                self._say(self.stream.clear())
                self._encoder = self._make_encoder()  # what it keeps of the past is not heard
            self._wire = self.playout.sent
            self._flowing = False
            self._far.cut()
        elif not self.playout.queued:
            self._wire = self.playout.sent
            self._flowing = False

    # --- keys ---

    def send_dtmf(self, digits: str) -> None:
        """The keys are told to the provider, which presses them beside what is being said."""
        if not self._started or self.closed is not None:
            raise LegError("keys cannot be pressed: the line is not up")
        presses = [self.stream.press(key) for key in digits.upper() if key in DIGITS]
        try:
            self._keys.press(digits)
        except DtmfError as error:
            raise LegError(str(error)) from error
        self._presses.extend(presses)

    def _press(self) -> None:
        key = self._keys.tick()
        if key is not None and key.tick == 0:
            self._say(self._presses.popleft())

    def send_message(self, text: str) -> bool:
        """No carrier hands messages on."""
        return False

    # --- the end ---

    async def transfer(self, target: str) -> None:
        if self._control is None:
            raise LegError("this line cannot be transferred")
        await self._control.transfer(target)
        self._call_is_ours = False

    async def hang_up(self, reason: str) -> None:
        """Once the last words have been played the far end is told, by the stream and by the
        provider's REST API. A line whose socket broke is hung up too: its call may go on without
        it."""
        if self._ending is not None:
            return
        self._ending = reason
        await self._play_out()
        if self.closed is None and (goodbye := self.stream.hang_up(reason)):
            self._say(goodbye)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(GOODBYE_S):
                    await self.until_closed()
        if self._control is not None and self._call_is_ours:
            self._call_is_ours = False
            try:
                await self._control.hang_up()
            except LegError as error:
                logger.warning("{}: x the call was not hung up: {}", self.call_id, error)
        self.close(reason)

    async def _play_out(self) -> None:
        """Wait for the marks of what was said last."""
        if self.closed is None and not self.playout.queued and self._far.pending:
            self._all_played = asyncio.Event()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(GOODBYE_S):
                    await self._all_played.wait()

    def close(self, reason: str, ended_by: EndedBy = "local") -> None:
        if self.closed is None and self._ending is None:
            self.ended_by = ended_by
        super().close(self._ending or reason)
        # Calls that ended hold on to nothing, and Python need not stop all others to find out.
        self._emit = _nowhere
        self._read = self.playout.on_cut = _nothing
        if self._all_played is not None:
            self._all_played.set()

    # --- statistics ---

    def _measure_loss(self, now: float) -> None:
        stats = self._receiver.stats
        played, concealed = stats.played_samples, stats.concealed_samples
        played_before, concealed_before = self._window_base
        if played > played_before:
            self._loss = (concealed - concealed_before) / (played - played_before)
        self._window_base = played, concealed
        self._window_started = now

    def statistics(self) -> LegStatistics:
        if not self._started:
            return LegStatistics()
        stats, round_trip = self._receiver.stats, self._far.round_trip_ms
        one_way = (round_trip or 0.0) / 2 + stats.delay_ms + PACKET_MS
        return LegStatistics(
            packets_received=stats.received,
            packets_lost=stats.lost,
            packets_late=stats.late,
            concealed_ms=stats.concealed_samples * 1000 // RATE_IN,
            loss=self._loss,
            jitter_ms=self._reception.jitter_ms,
            buffer_ms=stats.delay_ms,
            round_trip_ms=round_trip,
            packets_sent=self._packets_sent,
            mos=mos(one_way, self._loss, codec=self.codec) if stats.received else None,
        )
