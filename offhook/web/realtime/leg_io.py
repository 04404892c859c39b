"""The leg of a session whose audio travels in the events of its WebSocket.

The client plays what it is sent, so the playout here is a model of the client's: it counts what the
client has played if it plays without a pause. Input comes in bursts: pauses of the network are
waited for, and what came early is read faster than real time.

    appended    ======================|
    read        =================|    |  <- backlog: more than READ_AHEAD is read at once
"""

from collections import deque
from collections.abc import Callable

import numpy as np

from offhook.media.leg import CallInfo, Leg, LegStatistics
from offhook.media.pcm import PACKET_MS, RATE_IN, SAMPLES_IN, Pcm
from offhook.web.speech_api.sockets.input_resampler import InputResampler

MAX_BACKLOG_S = 600
"""Audio in s that a client may append ahead of its processing; an event's audio beyond it is
dropped, and the client gets an error. Above FULL_S no further events are read."""
FULL_S = 300
"""Backlog in s above which no more events of the client are read."""
READ_AHEAD = 4 * SAMPLES_IN
"""Samples that may wait as the jitter of a client that streams in real time."""
MAX_PACKETS_A_TICK = 16
"""20 ms packets read in one tick at most, 3 ms of the event loop, mostly the voice detector's; the
others wait for the next tick."""
MAX_HELD_MS = 4000
"""Time in ms for which what came early waits for words of what was read; then it is read in real
time."""
PIECES_PER_S = 10
"""A second of what was appended is resampled in so many pieces: an event may have minutes."""
GRACE_MS = 400
"""Time in ms without input after which the client counts as silent: its turn can then end."""

_SILENCE = np.zeros(SAMPLES_IN, np.int16)


class Backlog(BufferError):
    """More audio was appended than MAX_BACKLOG_S ahead; none of it was taken."""


class SocketLeg(Leg):
    """Input is appended by `feed`; output is discarded, since the client has it already."""

    def __init__(self, call_id: str) -> None:
        super().__init__(call_id)
        self.info = CallInfo("realtime")
        self.waits_for_input = False
        """Whether a client that sends nothing is waited for instead of heard as silent."""
        self.may_hurry: Callable[[], bool] = lambda: True
        """Returns whether what came early may be read now: not while something is still to be said
        of what was read, or a pause in it would be over before its turn is."""
        self._chunks: deque[tuple[Pcm, int] | Callable[[], None]] = deque()
        """Audio with its sample rate in Hz, and actions between."""
        self._resampler, self._rate = InputResampler(RATE_IN), RATE_IN
        self._queued = 0
        self._rest = _SILENCE[:0]
        self._starved_ms = GRACE_MS
        self._held_ms = 0
        """Time for which nothing was read."""
        self._packets = 0
        self._asked = False
        """Whether the client has asked for an answer by other means than audio."""
        self._ticked_at: float | None = None

    @property
    def waits(self) -> bool:
        return not (self._packets or self._asked)

    def ask(self) -> None:
        """Records that the client has written something, or asked for a response."""
        self._asked = True

    @property
    def is_ahead(self) -> bool:
        """Whether the client should wait before it appends more."""
        return self._waiting > FULL_S * RATE_IN

    def feed(self, pcm: Pcm, rate: int = RATE_IN) -> None:
        """Appends audio of the sample rate in Hz; it is resampled when it is read. Raises
        Backlog."""
        piece = rate // PIECES_PER_S
        pieces = [(pcm[at : at + piece], rate) for at in range(0, len(pcm), piece)]
        samples = sum(_samples(*one) for one in pieces)
        if self._waiting + samples > MAX_BACKLOG_S * RATE_IN:
            raise Backlog(f"more than {MAX_BACKLOG_S} s of audio wait to be processed")
        self._chunks.extend(pieces)
        self._queued += samples
        self._packets += 1

    @property
    def _waiting(self) -> int:
        """Samples at 16 kHz that were appended and not read."""
        return self._queued + len(self._rest)

    def when_read(self, action: Callable[[], None]) -> None:
        """Calls `action` in a tick, once all audio appended so far has been read."""
        self._chunks.append(action)

    def close(self, reason: str) -> None:
        super().close(reason)
        self._chunks.clear()  # megabytes, of a call that stays until a full collection

    def clear(self) -> None:
        """Drops the audio that was not read yet."""
        self._chunks = deque(filter(callable, self._chunks))
        self._resampler.reset()
        self._drop_rest()
        self._queued = 0

    # --- ticks ---

    def _receive(self, now: float) -> Pcm:
        self.hurries = self._waiting > READ_AHEAD
        if self.may_hurry():
            self._held_ms = 0
        elif self.hurries and self._held_ms < MAX_HELD_MS:
            self._held_ms += PACKET_MS
            self.idle = True
            return _SILENCE
        packet = self._next_input()
        if packet is not None:
            self._starved_ms = 0
            self.idle = False
            return packet
        self._starved_ms += PACKET_MS
        self.idle = self.waits_for_input or self._starved_ms < GRACE_MS
        return _SILENCE

    def _next_input(self) -> Pcm | None:
        """Returns the next 20 ms, None if less was appended. Runs the actions that come before."""
        while len(self._rest) < SAMPLES_IN:
            if not self._chunks:
                return None
            chunk = self._chunks.popleft()
            if callable(chunk):
                self._drop_rest()  # less than a packet
                chunk()
            else:
                self._read(*chunk)
        packet, self._rest = self._rest[:SAMPLES_IN], self._rest[SAMPLES_IN:]
        return packet

    def _read(self, pcm: Pcm, rate: int) -> None:
        self._queued -= _samples(pcm, rate)
        if rate != self._rate:
            self._resampler, self._rate = InputResampler(rate), rate
        sound = self._resampler.process(pcm)
        self._rest = np.concatenate((self._rest, sound)) if len(self._rest) else sound

    def _drop_rest(self) -> None:
        self._rest = _SILENCE[:0]

    def send_tick(self, now: float) -> None:
        super().send_tick(now)
        if now == self._ticked_at:
            return  # one of several missed ticks
        self._ticked_at = now
        for _ in range(MAX_PACKETS_A_TICK - 1):
            if self.idle or self._waiting <= READ_AHEAD or not self.may_hurry():
                break
            if (packet := self._next_input()) is None:
                break
            self.ticks += 1
            for listener in tuple(self._listeners):
                listener(packet, None, now)

    def _send(self, said: Pcm | None, now: float) -> None:
        """The client was sent it when it was synthesized."""

    # --- the rest of a leg ---

    def send_message(self, text: str) -> bool:
        return False

    def statistics(self) -> LegStatistics:
        return LegStatistics(packets_received=self._packets)


def _samples(pcm: Pcm, rate: int) -> int:
    """At 16 kHz, rounded up."""
    return -(-len(pcm) * RATE_IN // rate)
