"""A carrier's media stream as a leg: one class for all providers.

Its audio is received by `streams/sound_in.py` and sent by `streams/sound_out.py`.
"""

import asyncio
import contextlib
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Protocol

import numpy as np
from loguru import logger

from offhook.media import native
from offhook.media.codecs.codec import CodecError
from offhook.media.codecs.opus import OpusSettings
from offhook.media.leg import CallInfo, Leg, LegError, LegStatistics
from offhook.media.pcm import PACKET_MS, RATE_IN, SAMPLES_IN, Pcm
from offhook.media.playout import Playout
from offhook.media.rtp.quality import mos
from offhook.media.telephone_tones.dtmf import DIGITS, DtmfError, DtmfQueue
from offhook.telephony.call_record import EndedBy
from offhook.telephony.carriers.streams.sound_in import SoundIn
from offhook.telephony.carriers.streams.sound_out import SoundOut
from offhook.telephony.carriers.streams.stream import (
    Answer,
    CarrierError,
    CarrierStream,
    Congested,
    DtmfReceived,
    Event,
    Held,
    Message,
    Played,
    Sound,
    Started,
    Stopped,
)

HANG_UP_TIMEOUT_S = 1.0
"""Maximum time in s that hanging up waits for the last audio to be played, and then for the far end
to close; after that the call ends all the same."""

_SILENCE = np.zeros(SAMPLES_IN, np.int16)


class CarrierControl(Protocol):
    """The owner of a leg's call, with the provider's REST operations on it."""

    def started(self, leg: "CarrierLeg", started: Started) -> None:
        """The stream has started and names the caller and the callee; called once, before the leg
        connects. Raises CarrierError if the stream belongs to another call."""

    async def hang_up(self) -> None:
        """End the call. Raises LegError."""

    async def transfer(self, target: str) -> None:
        """Transfer the call to `target`. Raises LegError."""


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
        self._in: SoundIn | None = None
        self._out: SoundOut | None = None
        """Both from when the stream has started."""
        self._signs = 0
        """Keys that the caller pressed, and marks that the far end has played."""
        self._now = 0.0
        """Time of the current tick."""
        self._hang_up_reason: str | None = None
        """Why we are hanging up; None while we are not."""
        self._owns_call = True
        """The call has neither ended nor been transferred: hanging up ends it."""
        self._dtmf_queue = DtmfQueue()
        self._dtmf_messages: deque[list[Message]] = deque()
        """The provider's messages for the queued digits."""
        self.media_reader: native.MediaReader | None = None
        """Reads media messages of the stream's form from the socket's data, on the compiled
        path."""
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
        if form is not self.stream.form and self._in is not None:
            self.media_reader = self._in.media_reader(self.stream.form)

    @property
    def activity(self) -> int:
        """A number that changes with everything that comes from the caller, is played to them, or
        passes while they are on hold; 0 until something came."""
        if self._in is None:
            return 0
        return self._in.receiver.stats.received + self._signs + (self.ticks if self.held else 0)

    @property
    def waits(self) -> bool:
        return not self.activity

    def receive_frames(self, data: bytes, now: float) -> int:
        """Process the media messages at the start of a WebSocket's data, between two messages, on
        the compiled path. Returns how many bytes they are; what follows is for `receive`."""
        return 0 if self.media_reader is None else self.media_reader.read(data, now)

    def _handle_event(self, event: Event, now: float) -> None:
        match event:
            case Sound() if self._in is not None:
                self._in.receive(event, now)
            case Played(name):
                self._signs += 1
                if self._out is not None:
                    self._out.far_buffer.played(name, now)
                    if self._all_played is not None and not self._out.far_buffer.pending:
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
            case Congested(congested) if self._out is not None:
                self._out.congested = congested
            case Stopped(reason):
                self._owns_call = False
                self.close(reason, "remote")

    def _start(self, started: Started, now: float) -> None:
        stream, format, send = self.stream, started.format_out, self._send_messages
        try:
            sound_in = SoundIn(started.format_in, now)
            sound_out = SoundOut(stream, self.playout, format, self._opus, send, self._write)
        except CodecError as error:
            raise CarrierError(f"{stream.provider}: {error}") from error
        self._in, self._out = sound_in, sound_out
        self.codec = sound_in.codec
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

    # --- ticks ---

    def unread_since(self, at: float | None) -> None:
        if self._in is not None:
            self._in.receiver.unread_since(at)

    def begin_tick(self) -> None:
        self._read()

    def _receive(self, now: float) -> Pcm:
        self._now = now
        return self._in.pull(now) if self._in is not None else _SILENCE

    def _next_packet(self) -> Pcm | None:
        """Return what the far end plays in this tick."""
        return self.playout.pop() if self._out is None else self._out.next_packet(self._now)

    def _send(self, said: Pcm | None, now: float) -> None:
        if self._in is None or self._out is None:
            return
        if self.closed is not None or self._hang_up_reason is not None:
            return
        if self._dtmf_queue.busy:
            self._send_due_digit()
        if now >= self._in.window.due:
            self._in.window.measure(self._in.receiver.stats, now)
        if self.mixed:
            self._out.send_now(said, now)
        else:
            self._out.tick(self._background, now)

    def use_mix(self, mixed: bool) -> None:
        """What was sent ahead is cleared: in the room it is played again."""
        if self._out is not None and mixed:
            self._out.cut()
            self._out.end_background()
        elif self._out is not None:
            self._out.restart()
        super().use_mix(mixed)

    @contextlib.contextmanager
    def playing(self, sound: Iterator[Pcm]) -> Iterator[None]:
        try:
            with super().playing(sound):
                yield
        finally:
            if self._out is not None:
                self._out.end_background()

    def _send_messages(self, messages: Sequence[Message]) -> None:
        for message in messages:
            self._send_message(message)

    def _cut(self) -> None:
        """Clear what was sent ahead: the playout was paused or flushed."""
        if self._out is not None and not self.mixed:
            self._out.cut()

    # --- DTMF ---

    def send_dtmf(self, digits: str) -> None:
        """Send digits through the provider, which plays them alongside the audio."""
        if self._out is None or self.closed is not None:
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
        pending = self._out is not None and self._out.far_buffer.pending
        if self.closed is None and not self.playout.queued and pending:
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
        self._write = self.media_reader = None
        if self._out is not None:
            self._out.close()
        self._read = self.playout.on_cut = _no_op
        if self._all_played is not None:
            self._all_played.set()

    # --- statistics ---

    def statistics(self) -> LegStatistics:
        if self._in is None or self._out is None:
            return LegStatistics()
        stats, round_trip = self._in.receiver.stats, self._out.far_buffer.round_trip_ms
        loss = self._in.window.loss
        one_way = (round_trip or 0.0) / 2 + stats.delay_ms + PACKET_MS
        return LegStatistics(
            packets_received=stats.received,
            packets_lost=stats.lost,
            packets_late=stats.late,
            concealed_ms=stats.concealed_samples * 1000 // RATE_IN,
            loss=loss,
            jitter_ms=self._in.reception.jitter_ms,
            buffer_ms=stats.delay_ms,
            round_trip_ms=round_trip,
            packets_sent=self._out.packets_sent,
            mos=mos(one_way, loss, codec=self.codec) if stats.received else None,
        )
