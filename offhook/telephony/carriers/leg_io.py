"""A carrier's media stream as a leg: one class for all providers.

In: audio becomes RTP packets and passes through the same receiver as every other leg. Out: the
playout is sent up to `lead_ms` ahead of time, since a carrier plays what it has and offers no
jitter buffer to fill. The playout counts what the far end plays, by a model of the carrier's buffer
that is corrected by its marks, so that an interruption is placed where the caller heard it:

    sent at the far end    ======================|--- lead --->|
    playout.sent                                 ^             ^ _sent_position

A pause or flush of the playout clears the lead at once, and audio later resumes from
`playout.sent`, within the word. Carriers that cannot clear their buffer play the lead.
"""

import asyncio
import contextlib
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Protocol

import numpy as np
from loguru import logger

from offhook.media import native
from offhook.media.codecs.codec import CodecError, Decoder, Encoder
from offhook.media.codecs.g711 import PcmaDecoder, PcmaEncoder, PcmuDecoder, PcmuEncoder
from offhook.media.codecs.l16 import L16Decoder, L16Encoder
from offhook.media.codecs.opus import OpusDecoder, OpusEncoder, OpusSettings
from offhook.media.dtmf import DIGITS, DtmfError, DtmfQueue
from offhook.media.leg import CallInfo, Leg, LegError, LegStatistics
from offhook.media.pcm import PACKET_MS, RATE_IN, RATE_OUT, SAMPLES_IN, SAMPLES_OUT, Pcm
from offhook.media.playout import Playout, PlayoutState
from offhook.media.rtp.quality import mos
from offhook.media.rtp.receiver import AudioReceiver, new_receiver
from offhook.media.rtp.rtcp import ReceptionStatistics, new_reception
from offhook.telephony.call_record import EndedBy
from offhook.telephony.carriers.streams.far_buffer import FarBuffer
from offhook.telephony.carriers.streams.packets import PAYLOAD_TYPE, Packetizer, new_packetizer
from offhook.telephony.carriers.streams.stream import (
    Answer,
    CarrierError,
    CarrierStream,
    Congested,
    DtmfReceived,
    Event,
    Format,
    Held,
    Message,
    Played,
    Sound,
    Started,
    Stopped,
)

MARK_SAMPLES = RATE_OUT * 100 // 1000
"""Audio between two marks, 100 ms."""
TAIL_SAMPLES = RATE_OUT * 40 // 1000
"""An incomplete last message is sent only 40 ms before it is due: more audio may be written until
then, and its padding would cut that off."""
COMPILED = ("pcmu", "pcma")
"""Codecs whose packets the receiver takes on the compiled path, one sample a byte."""
LOSS_WINDOW_S = 5.0
"""Window over which a leg's loss and MOS are measured."""
HANG_UP_TIMEOUT_S = 1.0
"""Maximum time in s that hanging up waits for the last audio to be played, and then for the far end
to close; after that the call ends all the same."""

_SILENCE = np.zeros(SAMPLES_IN, np.int16)
_PAUSE = np.zeros(SAMPLES_OUT, np.int16)


class CarrierControl(Protocol):
    """The owner of a leg's call, with the provider's REST operations on it."""

    def started(self, leg: "CarrierLeg", started: Started) -> None:
        """The stream has started and names the caller and the callee; called once, before the leg
        connects. Raises CarrierError if the stream belongs to another call."""

    async def hang_up(self) -> None:
        """End the call. Raises LegError."""

    async def transfer(self, target: str) -> None:
        """Transfer the call to `target`. Raises LegError."""


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


def _discard(message: Message) -> None:
    pass


def _no_op() -> None:
    pass


class CarrierLeg(Leg):
    """The leg of one carrier stream. Silent until the stream has started."""

    def __init__(
        self,
        call_id: str,
        stream: CarrierStream,
        send: Callable[[Message], None],
        control: CarrierControl | None = None,
        opus: OpusSettings | None = None,
    ) -> None:
        """`send` is called with each message and must neither block nor raise. Without `control`,
        hanging up only closes the stream, and the call cannot be transferred."""
        super().__init__(call_id)
        self.stream = stream
        self.codec = ""
        """Codec of the received audio; "" before the stream has started."""
        self.ended_by: EndedBy = "local"
        """Valid once the leg is closed."""
        self._send_message = send
        self._read: Callable[[], None] = _no_op
        self._write: Callable[[bytes], None] | None = None
        self._control = control
        self._opus = opus
        self._signs = 0
        """Keys that the caller pressed, and marks that the far end has played."""
        self._started = False
        self._now = 0.0
        """Time of the current tick."""
        self._hang_up_reason: str | None = None
        """Why we are hanging up; None while we are not."""
        self._owns_call = True
        """The call has neither ended nor been transferred: hanging up ends it."""
        self._dtmf_queue = DtmfQueue()
        self._dtmf_messages: deque[list[Message]] = deque()
        """The provider's messages for the queued digits."""
        self._packetizer: Packetizer
        self._receiver: AudioReceiver
        self._reception: ReceptionStatistics
        self.media_reader: native.MediaReader | None = None
        """Reads media messages of the stream's form from the socket's data..."""
        self._media_writer: native.MediaWriter | None = None
        """...and encodes them into it; only on the compiled path."""
        self._window_started = 0.0
        self._window_base = (0, 0)
        self._loss = 0.0
        self._make_encoder: Callable[[], Encoder]
        self._encoder: Encoder
        self._packet = 0
        """Samples in one message..."""
        self._long_packet = 0
        """...and in one when at least that many are queued."""
        self._silence: list[Message] = []
        """Messages of 20 ms of silence, for providers that need it."""
        self._far_buffer = FarBuffer()
        self._sent_position = 0
        """End of the audio sent, as a value of `playout.sent`."""
        self._marked_position = 0
        """Position of the last mark."""
        self._flowing = False
        """The far end has audio it has not played."""
        self._congested = False
        self._packets_sent = 0
        self._all_played: asyncio.Event | None = None
        self.playout = Playout(on_cut=self._cut)

    # --- messages in ---

    def open(
        self, read: Callable[[], None] = _no_op, write: Callable[[bytes], None] | None = None
    ) -> None:
        """Send the messages the provider expects first, once the socket is open. `read` is called
        at the start of each tick to deliver pending messages; a WebSocket's `write` is called with
        frames that are messages of sound."""
        self._read, self._write = read, write
        self._send_messages(self.stream.opening())

    def receive(self, data: Message, now: float) -> None:
        """Process one message. Raises CarrierError if the stream cannot continue; the caller then
        closes its socket and this leg."""
        if self.closed is not None:
            return
        form = self.stream.form
        for event in self.stream.receive(data):
            self._handle_event(event, now)
            if self.closed is not None:
                return
        if form is not self.stream.form:
            self.media_reader = self._make_media_reader()

    @property
    def activity(self) -> int:
        """A number that changes with everything that comes from the caller, is played to them, or
        passes while they are on hold; 0 until something came."""
        if not self._started:
            return 0
        return self._receiver.stats.received + self._signs + (self.ticks if self.held else 0)

    @property
    def waits(self) -> bool:
        return not self.activity

    def receive_frames(self, data: bytes, now: float) -> int:
        """Process the media messages at the start of a WebSocket's data, between two messages, on
        the compiled path. Returns how many bytes they are; what follows is for `receive`."""
        return 0 if self.media_reader is None else self.media_reader.read(data, now)

    def _make_media_reader(self) -> "native.MediaReader | None":
        form, packetizer, receiver = self.stream.form, self._packetizer, self._receiver
        if form is None or not native.BUILT or not isinstance(packetizer, native.Packetizer):
            return None
        if not isinstance(receiver, native.Receiver) or self.codec not in COMPILED:
            return None
        fields = "".join(field.value for field in form.fields)
        literals = tuple(literal.encode() for literal in form.literals)
        return native.MediaReader(literals, fields, packetizer, receiver)

    def _handle_event(self, event: Event, now: float) -> None:
        match event:
            case Sound():
                self._receive_sound(event, now)
            case Played(name):
                self._signs += 1
                self._far_buffer.played(name, now)
                if self._all_played is not None and not self._far_buffer.pending:
                    self._all_played.set()
            case Started():
                self._start(event, now)
            case DtmfReceived(digit):
                self._signs += 1
                self.receive_digit(digit)
            case Answer(message):
                self._send_message(message)
            case Held(held):
                self.set_held(held)
            case Congested(congested):
                self._congested = congested
            case Stopped(reason):
                self._owns_call = False
                self.close(reason, "remote")

    def _start(self, started: Started, now: float) -> None:
        stream, heard, said = self.stream, started.format_in, started.format_out
        make_decoder = _make_decoder(heard)
        self._make_encoder = _make_encoder(said, self._opus)
        try:
            decoder = make_decoder()
            self._begin_encoding()
        except CodecError as error:
            raise CarrierError(f"{stream.provider}: {error}") from error
        self._packetizer = new_packetizer(heard)
        self._receiver = new_receiver({PAYLOAD_TYPE: make_decoder})
        self._reception = self._receiver.reception = new_reception(0, decoder.clock_rate)
        self.codec = heard.encoding
        self._packet = RATE_OUT * stream.packet_ms // 1000
        self._long_packet = RATE_OUT * stream.long_packet_ms // 1000 or self._packet
        if stream.needs_silence:
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

    def _begin_encoding(self) -> None:
        """Make an encoder without a past. Raises CodecError."""
        self._encoder = self._make_encoder()
        around, compiled = self.stream.around_sound(), getattr(self._encoder, "compiled", None)
        if around is None or self._write is None or not native.BUILT:
            return
        if isinstance(compiled, native.G711Encoder):
            before, after = around
            self._media_writer = native.MediaWriter(before.encode(), after.encode(), compiled)

    def _receive_sound(self, sound: Sound, now: float) -> None:
        packets = self._packetizer.packets(sound)
        for packet in packets:
            self._receiver.receive(packet, now)
        if packets:
            first = packets[0]
            self._reception.receive(first.sequence_number, first.timestamp, now)

    # --- ticks ---

    def unread_since(self, at: float | None) -> None:
        if self._started:
            self._receiver.unread_since(at)

    def begin_tick(self) -> None:
        self._read()

    def _receive(self, now: float) -> Pcm:
        self._now = now
        return self._receiver.pull(now) if self._started else _SILENCE

    def _next_packet(self) -> Pcm | None:
        """Return what the far end plays in this tick, by our model of its buffer."""
        playout = self.playout
        if not self._started:
            return playout.pop()
        if self._sent_position > playout.sent:
            due = self._far_buffer.due(self._now, playout.sent, self._sent_position)
            said = playout.pop() if due else None
            if due > 1 and self._sent_position > playout.sent:
                said = playout.pop()
            return said
        if self._flowing:
            self._buffer_empty()
        return None if self._has_unsent_audio() else playout.pop()

    def _has_unsent_audio(self) -> bool:
        """Audio is queued that the far end does not have."""
        playout = self.playout
        if not playout.queued or playout.state is PlayoutState.PAUSED:
            return False
        return playout.queued >= SAMPLES_OUT or playout.peek(0, self._packet) is not None

    def _send(self, said: Pcm | None, now: float) -> None:
        if not self._started or self.closed is not None or self._hang_up_reason is not None:
            return
        if self._dtmf_queue.busy:
            self._send_due_digit()
        if now - self._window_started >= LOSS_WINDOW_S:
            self._measure_loss(now)
        if self._congested:
            return
        if self._background is not None:
            self._queue_background(self._background)
        sent = self._packets_sent
        if self.playout.queued:
            self._send_ahead(now)
        if self._silence and sent == self._packets_sent and not self._far_end_is_playing(now):
            self._send_messages(self._silence)

    @contextlib.contextmanager
    def playing(self, sound: Iterator[Pcm]) -> Iterator[None]:
        try:
            with super().playing(sound):
                yield
        finally:
            self.playout.flush()  # what the far end has of it

    def _queue_background(self, background: Iterator[Pcm]) -> None:
        """Fill the playout as far as it is sent ahead, which only what is queued can be."""
        lead = max(RATE_OUT * self.stream.lead_ms // 1000, self._packet)
        while self.playout.queued < lead:
            self.playout.write(next(background))

    def _send_ahead(self, now: float) -> None:
        playout = self.playout
        lead = RATE_OUT * self.stream.lead_ms // 1000
        if self._flowing and self._far_buffer.assumed_lag:
            lead += self._far_buffer.assumed_start_lag(playout.sent)
        ahead = self._sent_position - playout.sent
        while ahead < lead:
            left = playout.queued - ahead
            packet = self._long_packet if left >= self._long_packet else self._packet
            if left < packet and ahead > TAIL_SAMPLES:
                return
            sound = playout.peek(ahead, packet)
            if sound is None:
                return
            if not self._flowing:
                self._start_flow(now)
            self._send_sound(sound)
            self._packets_sent += 1
            self._sent_position += min(left, packet)
            ahead = self._sent_position - playout.sent
            if self._sent_position - self._marked_position >= MARK_SAMPLES:
                self._mark(now)

    def _send_sound(self, sound: Pcm) -> None:
        if self._media_writer is not None and self._write is not None:
            self._write(self._media_writer.frame(sound))
        else:
            self._send_messages(self.stream.sound(self._encoder.encode(sound)))

    def _start_flow(self, now: float) -> None:
        self._flowing = True
        self._far_buffer.start(self._sent_position, now)
        self._mark(now)
        self._marked_position -= (
            MARK_SAMPLES  # the next one soon, to detect a late start at the far end
        )

    def _buffer_empty(self) -> None:
        """The far end has played everything, by our model."""
        self._flowing = False
        if self._marked_position < self._sent_position:
            self._mark(self._now)

    def _mark(self, now: float) -> None:
        self._marked_position = self._sent_position
        if self.stream.acknowledges:
            self._send_messages(self.stream.mark(self._far_buffer.mark(self._sent_position, now)))

    def _far_end_is_playing(self, now: float) -> bool:
        return self._flowing and self._far_buffer.clock(now) < self._sent_position

    def _send_messages(self, messages: Sequence[Message]) -> None:
        for message in messages:
            self._send_message(message)

    def _cut(self) -> None:
        """Clear what was sent ahead: the playout was paused or flushed."""
        if self.stream.clears:
            if self._started and (self._flowing or self._far_buffer.pending):
                self._send_messages(self.stream.clear())
                self._begin_encoding()  # the encoder's past is audio that is not heard
            self._sent_position = self.playout.sent
            self._flowing = False
            self._far_buffer.cut()
        elif not self.playout.queued:
            self._sent_position = self.playout.sent
            self._flowing = False

    # --- DTMF ---

    def send_dtmf(self, digits: str) -> None:
        """Send digits through the provider, which plays them alongside the audio."""
        if not self._started or self.closed is not None:
            raise LegError("cannot send DTMF: the leg is not connected")
        presses = [self.stream.press(key) for key in digits.upper() if key in DIGITS]
        try:
            self._dtmf_queue.press(digits)
        except DtmfError as error:
            raise LegError(str(error)) from error
        self._dtmf_messages.extend(presses)

    def _send_due_digit(self) -> None:
        key = self._dtmf_queue.tick()
        if key is not None and key.tick == 0:
            self._send_messages(self._dtmf_messages.popleft())

    def send_message(self, text: str) -> bool:
        """Carriers pass on no messages: always False."""
        return False

    # --- the end ---

    async def transfer(self, target: str) -> None:
        if self._control is None:
            raise LegError("this leg cannot be transferred")
        await self._control.transfer(target)
        self._owns_call = False

    async def hang_up(self, reason: str) -> None:
        """Wait for the last audio, then end the call through the stream and the provider's REST
        API. Also needed if the socket is lost: the call may go on without it."""
        if self._hang_up_reason is not None:
            return
        self._hang_up_reason = reason
        await self._drain()
        if self.closed is None and (goodbye := self.stream.hang_up(reason)):
            self._send_messages(goodbye)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(HANG_UP_TIMEOUT_S):
                    await self.until_closed()
        if self._control is not None and self._owns_call:
            self._owns_call = False
            try:
                await self._control.hang_up()
            except LegError as error:
                logger.warning("{}: hanging up failed: {}", self.call_id, error)
        self.close(reason)

    def release(self, reason: str) -> None:
        """Closes the stream and leaves the call to the carrier, which follows its instructions."""
        self._owns_call = False
        self.close(reason)

    async def _drain(self) -> None:
        """Wait until the marks of the last audio have come back."""
        if self.closed is None and not self.playout.queued and self._far_buffer.pending:
            self._all_played = asyncio.Event()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(HANG_UP_TIMEOUT_S):
                    await self._all_played.wait()

    def close(self, reason: str, ended_by: EndedBy = "local") -> None:
        if self.closed is None and self._hang_up_reason is None:
            self.ended_by = ended_by
        super().close(self._hang_up_reason or reason)
        # Drop references, so that ended calls are freed without a pause for garbage collection.
        self._send_message = _discard
        self._write = self.media_reader = self._media_writer = None
        self._read = self.playout.on_cut = _no_op
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
        stats, round_trip = self._receiver.stats, self._far_buffer.round_trip_ms
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
