"""Our audio in a carrier's stream: the playout, sent up to `lead_ms` ahead of time, since a carrier
plays what it has and offers no jitter buffer to fill.

The playout counts what the far end plays, by a model of the carrier's buffer that is corrected by
its marks, so that an interruption is placed where the caller heard it:

    sent at the far end    ======================|--- lead --->|
    playout.sent                                 ^             ^ position

A pause or flush of the playout clears the lead at once, and audio later resumes from
`playout.sent`, within the word. Carriers that cannot clear their buffer play the lead.
"""

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import islice

import numpy as np

from offhook.media import native
from offhook.media.codecs.codec import Encoder
from offhook.media.codecs.g711 import PcmaEncoder, PcmuEncoder
from offhook.media.codecs.l16 import L16Encoder
from offhook.media.codecs.opus import OpusEncoder, OpusSettings
from offhook.media.pcm import PACKET_MS, RATE_OUT, SAMPLES_OUT, Pcm
from offhook.media.playout import Playout, PlayoutState
from offhook.telephony.carriers.streams.far_buffer import FarBuffer
from offhook.telephony.carriers.streams.stream import CarrierStream, Format, Message

MARK_SAMPLES = RATE_OUT * 100 // 1000
"""Audio between two marks, 100 ms."""
MAX_NOW_S = 0.1
"""Seconds of what others say at this moment that may wait at the far end: after a stall several
packets leave at once, and all later ones would wait behind them."""
TAIL_SAMPLES = RATE_OUT * 40 // 1000
"""An incomplete last message is sent only 40 ms before it is due: more audio may be written until
then, and its padding would cut that off."""

_PAUSE = np.zeros(SAMPLES_OUT, np.int16)


class SoundOut:
    """Sends the audio of one stream, from when it has started."""

    def __init__(
        self,
        stream: CarrierStream,
        playout: Playout,
        format: Format,
        opus: OpusSettings | None,
        send: Callable[[Sequence[Message]], None],
        write: Callable[[bytes], None] | None,
    ) -> None:
        """`send` is called with messages; a WebSocket's `write` with frames that are messages of
        sound. Raises CodecError."""
        self.position = playout.sent
        """End of the audio sent, as a value of `playout.sent`."""
        self.packets_sent = 0
        self.congested = False
        """The carrier takes nothing more for now."""
        self.far_buffer = FarBuffer()
        self._stream = stream
        self._playout = playout
        self._send = send
        self._write = write
        self._media_writer: native.MediaWriter | None = None
        """Encodes media messages into the socket's data; only on the compiled path."""
        self._make_encoder = _make_encoder(format, opus)
        self._encoder = self._begin_encoding()
        self._packet = RATE_OUT * stream.packet_ms // 1000
        """Samples in one message..."""
        self._long_packet = RATE_OUT * stream.long_packet_ms // 1000 or self._packet
        """...and in one when at least that many are queued."""
        self._silence: list[Message] = []
        """Messages of 20 ms of silence, for providers that need it."""
        if stream.needs_silence:
            self._silence = stream.sound(self._make_encoder().encode(_PAUSE))
        self._background: deque[Pcm] = deque()
        """What the far end has of the background and has not played, 20 ms each."""
        self._marked_position = 0
        """Position of the last mark."""
        self._said_now: list[Pcm] = []
        """What was given to `send_now` and is less than a message."""
        self._plays_until = 0.0
        """Until when the far end plays what was sent so, if it has lost no time."""
        self._flowing = False
        """The far end has audio it has not played."""

    def _begin_encoding(self) -> Encoder:
        """Make an encoder without a past. Raises CodecError."""
        encoder = self._make_encoder()
        around, compiled = self._stream.around_sound(), getattr(encoder, "compiled", None)
        if around is None or self._write is None or not native.BUILT:
            return encoder
        if isinstance(compiled, native.G711Encoder):
            before, after = around
            self._media_writer = native.MediaWriter(before.encode(), after.encode(), compiled)
        return encoder

    def next_packet(self, now: float) -> Pcm | None:
        """Return what the far end plays in this tick, by our model of its buffer."""
        playout = self._playout
        if self.position > playout.sent:
            due = self.far_buffer.due(now, playout.sent, self.position)
            said = playout.pop() if due else None
            if due > 1 and self.position > playout.sent:
                said = playout.pop()
            return said
        if self._flowing:
            self._buffer_empty(now)
        if self._has_unsent_audio():
            return None
        said = playout.pop()
        return self._background.popleft() if said is None and self._background else said

    def _has_unsent_audio(self) -> bool:
        """Audio is queued that the far end does not have."""
        playout = self._playout
        if not playout.queued or playout.state is PlayoutState.PAUSED:
            return False
        return playout.queued >= SAMPLES_OUT or playout.peek(0, self._packet) is not None

    def tick(self, background: Iterator[Pcm] | None, now: float) -> None:
        """Send what is due ahead of time; `background` is played whenever nothing else is."""
        if self.congested:
            return
        sent = self.packets_sent
        if self._playout.queued:
            self._send_ahead(now)
        elif background is not None and not self._flowing:
            self._send_background(background)
        if self._silence and sent == self.packets_sent and not self._far_end_is_playing(now):
            self._send(self._silence)

    def send_now(self, sound: Pcm | None, now: float) -> None:
        """Send 20 ms that others say at this moment, or nothing: no part of the playout. What would
        make the far end fall behind them is discarded."""
        if self.congested:
            return
        if sound is None:
            self._said_now.clear()
            if self._silence and now >= self._plays_until:
                self._send(self._silence)
            return
        plays_until = max(self._plays_until, now) + PACKET_MS / 1000
        if plays_until - now > MAX_NOW_S:
            return
        self._plays_until = plays_until
        self._said_now.append(sound)
        if len(self._said_now) * SAMPLES_OUT >= self._packet:
            self._send_sound(np.concatenate(self._said_now))
            self._said_now.clear()
            self.packets_sent += 1

    def _send_background(self, background: Iterator[Pcm]) -> None:
        """Send as far ahead as speech is, but not through the playout: nobody speaks."""
        lead = max(RATE_OUT * self._stream.lead_ms // 1000, self._packet)
        while len(self._background) * SAMPLES_OUT < lead:
            sound = list(islice(background, self._packet // SAMPLES_OUT))
            self._send_sound(np.concatenate(sound))
            self.packets_sent += 1
            self._background.extend(sound)

    def end_background(self) -> None:
        """Clear what the far end has of it."""
        if self._background:
            self._background.clear()
            if self._stream.clears:
                self._clear()

    def _send_ahead(self, now: float) -> None:
        playout = self._playout
        lead = RATE_OUT * self._stream.lead_ms // 1000
        if self._flowing and self.far_buffer.assumed_lag:
            lead += self.far_buffer.assumed_start_lag(playout.sent)
        ahead = self.position - playout.sent
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
            self.packets_sent += 1
            self.position += min(left, packet)
            ahead = self.position - playout.sent
            if self.position - self._marked_position >= MARK_SAMPLES:
                self._mark(now)

    def _send_sound(self, sound: Pcm) -> None:
        if self._media_writer is not None and self._write is not None:
            self._write(self._media_writer.frame(sound))
        else:
            self._send(self._stream.sound(self._encoder.encode(sound)))

    def _start_flow(self, now: float) -> None:
        self.end_background()
        self._flowing = True
        self.far_buffer.start(self.position, now)
        self._mark(now)
        # The next mark is soon, to detect a late start at the far end.
        self._marked_position -= MARK_SAMPLES

    def _buffer_empty(self, now: float) -> None:
        """The far end has played everything, by our model."""
        self._flowing = False
        if self._marked_position < self.position:
            self._mark(now)

    def _mark(self, now: float) -> None:
        self._marked_position = self.position
        if self._stream.acknowledges:
            self._send(self._stream.mark(self.far_buffer.mark(self.position, now)))

    def _far_end_is_playing(self, now: float) -> bool:
        return self._flowing and self.far_buffer.clock(now) < self.position

    def cut(self) -> None:
        """Clear what was sent ahead: the playout was paused or flushed."""
        if self._stream.clears:
            if self._flowing or self.far_buffer.pending:
                self._clear()
            self.position = self._playout.sent
            self._flowing = False
            self.far_buffer.cut()
        elif not self._playout.queued:
            self.position = self._playout.sent
            self._flowing = False

    def restart(self) -> None:
        """The playout is sent again, from where it is."""
        self.position = self._marked_position = self._playout.sent
        self._flowing = False

    def _clear(self) -> None:
        self._send(self._stream.clear())
        # The encoder's past is audio that is not heard.
        self._encoder = self._begin_encoding()

    def close(self) -> None:
        """Send nothing more, and drop references to the leg."""
        self._send = _discard
        self._write = self._media_writer = None


def _discard(messages: Sequence[Message]) -> None:
    pass


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
