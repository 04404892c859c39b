"""The narrow waist: one caller's line, whatever edge it came in by.

Every edge makes Legs and nothing above knows which edge. A leg is driven by the packet clock: each
tick it hears exactly 20 ms (320 samples at 16 kHz) and says 20 ms or nothing. Both sides are
counted by the same tick, so hearing, playout and recording share one time base.
"""

import asyncio
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

import numpy as np

from offhook.media.end_reason import EndReason
from offhook.media.pcm import PACKET_MS, SAMPLES_IN, Pcm
from offhook.media.playout import Playout

TickListener = Callable[[Pcm, Pcm | None, float], None]
"""Called once a tick with what was heard (320 samples), what was said (480 samples or None) and
the time. Runs on the packet clock: it must return within microseconds and never raise."""

_NOTHING = np.zeros(SAMPLES_IN, np.int16)

UNREAD_MESSAGES = 64
"""Kept from the caller's program until somebody reads; the oldest are dropped beyond."""
FRAME_QUEUE_MS = 2000
"""How much sound `Leg.frames` keeps for a reader that falls behind; older frames are dropped."""


class LegError(RuntimeError):
    """The line cannot do what was asked; the message says why. The line itself is as before."""


@dataclass(frozen=True)
class CallInfo:
    """Who calls whom, and how the call came."""

    edge: str = "webrtc"
    direction: Literal["inbound", "outbound"] = "inbound"
    caller: str = ""
    """Number or address; empty when withheld or unknown."""
    caller_name: str = ""
    called: str = ""
    trunk: str = ""
    headers: Mapping[str, str] = field(default_factory=dict)
    """Of the signalling, those the trunk hands on."""
    variables: Mapping[str, Any] = field(default_factory=dict)
    """What the program that placed the call gave along."""


@dataclass(frozen=True)
class LegStatistics:
    """How a line is doing. Times in ms, loss as a fraction of the last seconds."""

    packets_received: int = 0
    packets_lost: int = 0
    packets_late: int = 0
    concealed_ms: int = 0
    loss: float = 0.0
    jitter_ms: float = 0.0
    buffer_ms: float = 0.0
    round_trip_ms: float | None = None
    remote_loss: float = 0.0
    """What the far end reports of our packets."""
    packets_sent: int = 0
    mos: float | None = None

    def as_dict(self) -> dict[str, float | int | None]:
        return asdict(self)


class LegListener:
    """Told what happens on a line besides its sound. Each method does nothing unless overridden."""

    def on_connected(self) -> None:
        """The line is up. Called once."""

    def on_closed(self, reason: EndReason) -> None:
        """The line is down. Called once."""

    def on_message(self, text: str) -> None:
        """The caller's program sent a text (over the data channel of WebRTC)."""

    def on_dtmf(self, digit: str) -> None:
        """A key was pressed: one of 0-9 * # A-D. Called once for each press, as it begins."""

    def on_held(self, held: bool) -> None:
        """The far end has put the line on hold, or has taken it back."""


class _UnreadMessages(LegListener):
    """Keeps the newest messages of a line that nobody listens to yet."""

    def __init__(self) -> None:
        self.texts: deque[str] = deque(maxlen=UNREAD_MESSAGES)

    def on_message(self, text: str) -> None:
        self.texts.append(text)


class Leg(ABC):
    """One caller's line: sound in, sound out, key presses, messages, hold, transfer, hang-up."""

    def __init__(self, call_id: str) -> None:
        self.call_id = call_id
        self.info = CallInfo()
        self.playout = Playout()
        self.ticks = 0
        self._heard: Pcm = _NOTHING
        """In this tick."""
        self.closed: EndReason | None = None
        """Why the line ended; None while it is up."""
        self.connected = False
        self.held = False
        """The far end has put the line on hold."""
        self._unread = _UnreadMessages()
        self.listener: LegListener = self._unread
        """Told what happens from now on; `attach` also tells what has happened before."""
        self._settled = asyncio.Event()
        """The line came up, or never will."""
        self._down = asyncio.Event()
        self._listeners: list[TickListener] = []
        self._readers: list[asyncio.Queue[Pcm | None]] = []

    def listen(self, listener: TickListener) -> Callable[[], None]:
        """Hear every tick from now on; the returned function stops it."""
        self._listeners.append(listener)
        return lambda: self._listeners.remove(listener)

    def catch_up(self) -> None:  # noqa: B027 -- most lines have nothing waiting
        """20 ms pass: a line whose packets wait somewhere reads them. Called by the packet clock
        only, before `hear`."""

    def hear(self, now: float) -> None:
        """20 ms pass, first half: what came. Called by the packet clock only."""
        self._heard = self._receive(now)

    def say(self, now: float) -> None:
        """20 ms pass, second half: what goes out. Called by the packet clock only."""
        said = self._take()
        self._send(said, now)
        self.ticks += 1
        for listener in tuple(self._listeners):
            listener(self._heard, said, now)

    def tick(self, now: float) -> None:
        """All of it, for a line alone."""
        self.catch_up()
        self.hear(now)
        self.say(now)

    async def frames(self, frame_ms: int = 100) -> AsyncIterator[Pcm]:
        """What is heard, in frames of `frame_ms` (a multiple of 20), until the line closes."""
        per_frame = frame_ms // PACKET_MS
        frame = np.empty(per_frame * SAMPLES_IN, np.int16)
        queue: asyncio.Queue[Pcm | None] = asyncio.Queue(FRAME_QUEUE_MS // frame_ms)
        filled = 0

        def gather(heard: Pcm, said: Pcm | None, now: float) -> None:
            nonlocal filled
            frame[filled * SAMPLES_IN : (filled + 1) * SAMPLES_IN] = heard
            filled += 1
            if filled == per_frame:
                filled = 0
                _put(queue, frame.copy())

        stop = self.listen(gather)
        self._readers.append(queue)
        try:
            while self.closed is None and (gathered := await queue.get()) is not None:
                yield gathered
        finally:
            stop()
            self._readers.remove(queue)

    @property
    def heard_ms(self) -> int:
        """The line's own time: ms heard since it came up."""
        return self.ticks * PACKET_MS

    def connect(self) -> None:
        """The line is up: tell whoever listens, once."""
        if not self.connected:
            self.connected = True
            self._settled.set()
            self.listener.on_connected()

    def close(self, reason: str) -> None:
        """The line is down: tell whoever listens, once."""
        if self.closed is None:
            self.closed = EndReason.of(reason)
            for queue in self._readers:
                _put(queue, None)
            self._settled.set()
            self._down.set()
            self.listener.on_closed(self.closed)

    async def until_connected(self) -> bool:
        """Waits until the line is up, or down before it ever was; whether it is up."""
        await self._settled.wait()
        return self.connected and self.closed is None

    def attach(self, listener: LegListener) -> None:
        """Make it the listener, and tell it what has happened before: that the line is on hold, up
        or down, and the messages that nobody has read."""
        self.listener = listener
        if self.held:
            listener.on_held(True)
        if self.connected:
            listener.on_connected()
        while self._unread.texts:
            listener.on_message(self._unread.texts.popleft())
        if self.closed is not None:
            listener.on_closed(self.closed)

    async def until_closed(self) -> EndReason:
        """Waits until the line is down; why, it says."""
        await self._down.wait()
        assert self.closed is not None
        return self.closed

    def set_held(self, held: bool) -> None:
        """The far end put the line on hold or took it back: tell whoever listens, once."""
        if held is not self.held:
            self.held = held
            self.listener.on_held(held)

    def send_dtmf(self, digits: str) -> None:
        """Press keys, 0-9 * # A-D, one after the other and after those not yet sent; "," waits
        for half a second. Raises LegError."""
        raise LegError("this line cannot send DTMF")

    async def transfer(self, target: str) -> None:
        """Hand the far end over to `target`, a number or URI; returns when it has been taken.
        Raises LegError; the line then goes on."""
        raise LegError("this line cannot be transferred")

    async def hold(self) -> None:
        """Put the far end on hold. Raises LegError."""
        raise LegError("this line cannot be put on hold")

    async def resume(self) -> None:
        """Take the far end back from hold. Raises LegError."""
        raise LegError("this line cannot be put on hold")

    def _take(self) -> Pcm | None:
        """What is to be said in this tick: 480 samples, or nothing."""
        return self.playout.take()

    @abstractmethod
    def _receive(self, now: float) -> Pcm:
        """The 320 samples of this tick."""

    @abstractmethod
    def _send(self, said: Pcm | None, now: float) -> None:
        """Send the 480 samples of this tick, or nothing."""

    @abstractmethod
    def send_message(self, text: str) -> bool:
        """Send text to the caller's program; False when there is no channel for it now."""

    @abstractmethod
    def statistics(self) -> LegStatistics: ...

    @abstractmethod
    async def hang_up(self, reason: str) -> None:
        """End the line gracefully: the far end is told, packets already due are sent."""


def _put(queue: asyncio.Queue[Pcm | None], frame: Pcm | None) -> None:
    if queue.full():
        queue.get_nowait()
    queue.put_nowait(frame)
