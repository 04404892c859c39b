"""The common interface of all calls: one caller's leg, whatever edge it arrived by.

Every edge creates legs, and nothing above needs to know which edge. A leg is driven by the packet
clock: each tick it receives exactly 20 ms (320 samples at 16 kHz) and sends 20 ms or nothing. One
tick counts both directions, so input, playout and recording share one time base.
"""

import asyncio
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

import numpy as np

from offhook.media.answer_status import AnswerStatus
from offhook.media.end_reason import EndReason
from offhook.media.line_recording import LineRecording
from offhook.media.pcm import PACKET_MS, SAMPLES_IN, Pcm
from offhook.media.playout import Playout
from offhook.media.telephone_tones.dtmf_detector import DtmfDetector

TickListener = Callable[[Pcm, Pcm | None, float], None]
"""Called once a tick with the received audio (320 samples at 16 kHz), the audio sent (480 samples
at 24 kHz, or None) and the time. Runs on the packet clock: it must return within microseconds and
never raise."""

_NOTHING = np.zeros(SAMPLES_IN, np.int16)

SAME_DIGIT_TICKS = 50
"""Ticks within which a digit that comes as a signal and as a tone is one: a second, for the jitter
buffer, and gateways that report a digit at its end."""
MAX_UNMATCHED_DIGITS = 64
"""Digits remembered for that; the oldest are forgotten, and would be reported twice."""
MAX_UNREAD_MESSAGES = 64
"""Messages from the caller's program kept until there is a reader; the oldest are dropped."""
FRAME_QUEUE_MS = 2000
"""Audio that `Leg.frames` keeps for a slow reader; older frames are dropped."""


class LegError(RuntimeError):
    """The leg cannot perform an operation; the message says why. The leg itself is unchanged."""


class NoPorts(RuntimeError):
    """There is no UDP port for another leg: all are in use or resting, or the system has none; the
    message says which."""


@dataclass(frozen=True)
class CallInfo:
    """Who calls whom, and how the call arrived."""

    edge: str = "webrtc"
    direction: Literal["inbound", "outbound", "recorded"] = "inbound"
    """"recorded": others talk, and we record them."""
    caller: str = ""
    """Caller's number or address; empty if withheld or unknown."""
    caller_name: str = ""
    called: str = ""
    trunk: str = ""
    headers: Mapping[str, str] = field(default_factory=dict)
    """The signalling headers that the trunk's configuration passes on."""
    variables: Mapping[str, Any] = field(default_factory=dict)
    """Variables given by the program that placed the call."""
    diverted_from: str = ""
    """Number or address whose calls were forwarded to us; empty if nobody's were or it is
    withheld."""
    tenant: str = ""
    """Whose call it is, where several customers share the server; empty for nobody's."""


@dataclass(frozen=True)
class LegStatistics:
    """Media statistics of a leg. Times in ms; loss as a fraction over the last seconds."""

    packets_received: int = 0
    packets_lost: int = 0
    packets_late: int = 0
    concealed_ms: int = 0
    loss: float = 0.0
    jitter_ms: float = 0.0
    buffer_ms: float = 0.0
    round_trip_ms: float | None = None
    remote_loss: float = 0.0
    """Loss of our packets, as reported by the far end."""
    packets_sent: int = 0
    mos: float | None = None

    def as_dict(self) -> dict[str, float | int | None]:
        return asdict(self)


Collected = dict[str, str | float | bool]
"""Details that agents have noted of a caller, by their names."""


@dataclass
class ModelTokens:
    """What the language models of a call have taken so far."""

    input: int = 0
    cached: int = 0
    """Of the input, such as their servers had in a cache."""
    output: int = 0
    priced: float | None = None
    """What those models cost that have a price, in its currency; None if none that has answered
    has one."""
    unpriced: set[str] = field(default_factory=set)
    """Models that have answered and have no price."""

    @property
    def cost(self) -> float | None:
        """What all of it costs; None if that is not known, as a model has no price."""
        return None if self.unpriced else self.priced

    def restore(self, saved: "ModelTokens") -> None:
        """Goes on with what a call has taken before it came here, unless that is known here."""
        if saved.input + saved.output > self.input + self.output:
            self.input, self.cached, self.output = saved.input, saved.cached, saved.output
            self.priced, self.unpriced = saved.priced, set(saved.unpriced)


@dataclass(frozen=True, slots=True)
class Claim:
    """For whom a line is counted, and since when, in monotonic seconds."""

    holders: frozenset[Any]
    since: float


class LegListener:
    """Notified of a leg's events other than audio. Each method does nothing unless overridden."""

    def on_connected(self) -> None:
        """The leg has connected. Called once."""

    def on_closed(self, reason: EndReason) -> None:
        """The leg has closed. Called once."""

    def on_message(self, text: str) -> None:
        """A text message arrived from the caller's program (over the WebRTC data channel)."""

    def on_dtmf(self, digit: str) -> None:
        """A DTMF digit, one of 0-9 * # A-D, was received. Called once per digit, at its start."""

    def on_held(self, held: bool) -> None:
        """The far end has put the call on hold or resumed it."""


class _UnreadMessages(LegListener):
    """Keeps the newest messages of a leg that has no listener yet."""

    def __init__(self) -> None:
        self.texts: deque[str] = deque(maxlen=MAX_UNREAD_MESSAGES)

    def on_message(self, text: str) -> None:
        self.texts.append(text)


class _Digits:
    """Digits that come both as signals and as tones, each told once."""

    def __init__(self) -> None:
        self._unmatched: deque[tuple[str, bool, int]] = deque(maxlen=MAX_UNMATCHED_DIGITS)

    def is_new(self, digit: str, by_tone: bool, tick: int) -> bool:
        """Return whether a digit of this tick was not reported the other way before."""
        while self._unmatched and tick - self._unmatched[0][2] > SAME_DIGIT_TICKS:
            self._unmatched.popleft()
        for report in self._unmatched:
            if report[:2] == (digit, not by_tone):
                self._unmatched.remove(report)
                return False
        self._unmatched.append((digit, by_tone, tick))
        return True


class Leg(ABC):
    """One caller's leg: audio in and out, DTMF, messages, hold, transfer and hang-up."""

    mixed = False
    """Whether a room mixes what is sent; see `use_mix`."""
    fills = False
    """What was sent in this tick is what plays while nothing else does."""
    place = ""
    """The queue in which the caller waits, and the ticket there: "support/TICKET"; "": none."""

    def __init__(self, call_id: str) -> None:
        self.call_id = call_id
        self.info = CallInfo()
        self.tokens = ModelTokens()
        self.collected: Collected = {}
        self.recording = LineRecording()
        """Whether it is recorded now, and what is said kept."""
        self.answered_by = ""
        """Name of the agent that has answered, whoever was called; "" for the default."""
        self.playout = Playout()
        """What the call's agent says."""
        self.answer_status = AnswerStatus()
        """Of a call that we place: whether it is a person."""
        self.ticks = 0
        self.sound_in: Pcm = _NOTHING
        """The audio received in this tick."""
        self._background: Iterator[Pcm] | None = None
        """See `playing`."""
        self.closed: EndReason | None = None
        """Why the leg ended; None while it is up."""
        self.connected = False
        self.held = False
        """The far end has put the call on hold."""
        self.part = 1
        """Number of this line among those that its call has had, one after the other."""
        self.claim: Claim | None = None
        """For whom admission counts the line; None: for a trunk, which has a limit of its own."""
        self.is_operators = False
        """The far end is a page of the operator's, which is told what fails and why."""
        self.idle = False
        """Nothing was received in this tick, on a leg without a continuous stream: the silence
        returned for it is no input."""
        self.hurries = False
        """Audio of the far end waits that is read faster than it was spoken: whoever hears it must
        be done with each packet before the next."""
        self.shown_to: Callable[[Mapping[str, Any], Sequence[str]], object] | None = None
        """Is told each request to a language model, with the secrets that must not be shown: a
        page of the operator's that builds an agent; None: nobody."""
        self.overheard_by: Callable[[str], object] | None = None
        """Is told the messages of a line that carries none to its caller: an eval, which runs in
        this process; None: nobody."""
        self.transfer_by: Callable[[str], Awaitable[None]] | None = None
        """Transfers the far end, on a leg whose signalling is somebody else's; None: nobody can."""
        self.destinations: Mapping[str, Callable[[], Awaitable[None]]] = {}
        """What connects the far end here with people whom the configuration names, by that name.
        Each raises LegError, and the call then continues."""
        self.accompanied: Mapping[str, Callable[[], None]] = {}
        """What begins that while the agent goes on with the far end. Each raises LegError."""
        self._tones: DtmfDetector | None = None
        self._digits = _Digits()
        self._unread = _UnreadMessages()
        self.listener: LegListener = self._unread
        """Notified of events from now on; `attach` also reports earlier ones."""
        self._settled = asyncio.Event()
        """Set once the leg has connected, or closed without connecting."""
        self._down = asyncio.Event()
        self._sent_ahead: deque[Pcm | None] = deque()
        """What was sent before its tick."""
        self._listeners: list[TickListener] = []
        self._readers: list[asyncio.Queue[Pcm | None]] = []

    @property
    def waits(self) -> bool:
        """Whether nothing has come from the far end yet that could be answered."""
        return not self.connected

    def listen(self, listener: TickListener) -> Callable[[], None]:
        """Call `listener` every tick from now on. Returns a function that removes it."""
        self._listeners.append(listener)
        return lambda: self._listeners.remove(listener)

    def begin_tick(self) -> None:  # noqa: B027 -- most legs have no pending input
        """Begin a tick of 20 ms: read pending input. Called only by the packet clock, before
        `receive_tick`."""

    def unread_since(self, at: float | None) -> None:  # noqa: B027 -- some legs have no packets
        """From now on packets may have waited unread since `at`, while the process stood still;
        None: they are read as they come. Called only by the packet clock."""

    def receive_tick(self, now: float) -> None:
        """First half of a tick: receive 20 ms. Called only by the packet clock, with the time at
        which the tick was due: audio moves on by 20 ms a tick, however late the ticks are."""
        heard = self._receive(now)
        self.sound_in = heard if self._tones is None else self._tones.process(heard)

    def send_tick(self, now: float) -> None:
        """Second half of a tick: send 20 ms, unless that was sent ahead. Called only by the packet
        clock."""
        if self._sent_ahead:
            said = self._sent_ahead.popleft()
        else:
            said = self._next_packet()
            self._send(said, now)
        self.ticks += 1
        for listener in tuple(self._listeners):
            listener(self.sound_in, said, now)

    def use_mix(self, mixed: bool) -> None:
        """From now on a room ticks this leg, with `send_mixed`; False: no longer."""
        self.mixed = mixed

    def send_mixed(self, mix: Pcm | None, heard: Pcm, said: Pcm | None, now: float) -> None:
        """Second half of a tick in a room: send its mix, 480 samples, or nothing. Listeners get
        what the agent hears and says there. Called only by the room."""
        if self._sent_ahead:
            self._sent_ahead.popleft()
        else:
            if mix is None and self._background is not None:
                mix = next(self._background)
            self._send_mix(mix, now)
        self.ticks += 1
        for listener in tuple(self._listeners):
            listener(heard, said, now)

    def _send_mix(self, mix: Pcm | None, now: float) -> None:
        self._send(mix, now)

    def send_ahead(self, now: float) -> None:  # noqa: B027 -- some legs always send ahead
        """Send now what one of the next ticks would. Called only by the packet clock."""

    def tick(self, now: float) -> None:
        """Run one whole tick of this leg alone."""
        self.begin_tick()
        self.receive_tick(now)
        self.send_tick(now)

    async def frames(self, frame_ms: int = 100) -> AsyncIterator[Pcm]:
        """Yield received audio in frames of `frame_ms` (a multiple of 20) until the leg closes."""
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
        """Milliseconds received since the leg was created: its own time base."""
        return self.ticks * PACKET_MS

    def connect(self) -> None:
        """Mark the leg connected and notify its owner, once."""
        if not self.connected:
            self.connected = True
            self._settled.set()
            self.listener.on_connected()

    def close(self, reason: str) -> None:
        """Mark the leg closed and notify its owner, once."""
        if self.closed is None:
            self.closed = EndReason.of(reason)
            for queue in self._readers:
                _put(queue, None)
            self._settled.set()
            self._down.set()
            self.listener.on_closed(self.closed)

    async def until_connected(self) -> bool:
        """Wait until the leg connects or closes. Returns whether it is up."""
        await self._settled.wait()
        return self.connected and self.closed is None

    def attach(self, listener: LegListener) -> None:
        """Set the listener and report earlier events to it: that the leg is on hold, connected or
        closed, and the unread messages."""
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
        """Wait until the leg closes. Returns why."""
        await self._down.wait()
        assert self.closed is not None
        return self.closed

    def set_held(self, held: bool) -> None:
        """Record that the far end put the call on hold or resumed it; notify the owner of a
        change."""
        if held is not self.held:
            self.held = held
            self.listener.on_held(held)

    def listen_for_tones(self, wanted: bool) -> None:
        """Report digits that the far end sends as tones, and take them out of its audio."""
        if not wanted:
            self._tones = None
        elif self._tones is None:
            self._tones = DtmfDetector(lambda digit: self.receive_digit(digit, by_tone=True))

    def receive_digit(self, digit: str, by_tone: bool = False) -> None:
        """Report a digit to the listener, once if it comes as a signal and as a tone; the key that
        pauses a recording is no digit."""
        is_new = self._tones is None or self._digits.is_new(digit, by_tone, self.ticks)
        if is_new and not self.recording.press(digit):
            self.listener.on_dtmf(digit)

    def send_dtmf(self, digits: str) -> None:
        """Queue DTMF digits, 0-9 * # A-D, behind those not yet sent; "," pauses for half a second.
        Raises LegError if they are invalid or cannot be sent."""
        raise LegError("this leg cannot send DTMF")

    async def transfer(self, target: str) -> None:
        """Transfer the far end to `target`, a number or URI; returns once the transfer is accepted.
        Raises LegError, and the call then continues."""
        if self.transfer_by is None or self.closed is not None:
            raise LegError("this leg cannot be transferred")
        await self.transfer_by(target)

    async def hold(self) -> None:
        """Put the far end on hold. Raises LegError."""
        raise LegError("this leg cannot be put on hold")

    async def resume(self) -> None:
        """Take the far end off hold. Raises LegError."""
        raise LegError("this leg cannot be put on hold")

    @contextmanager
    def playing(self, sound: Iterator[Pcm]) -> Iterator[None]:
        """Play a sound to the far end while inside, 480 samples a tick, whenever nothing else is
        played: a tone, music. It must not end. The last one begun is the one that is played."""
        self._background = sound
        try:
            yield
        finally:
            if self._background is sound:
                self._background = None

    def _next_packet(self) -> Pcm | None:
        """Return the audio to send in this tick: 480 samples, or None."""
        said = self.playout.pop()
        self.fills = said is None and self._background is not None
        return said if said is not None or self._background is None else next(self._background)

    @abstractmethod
    def _receive(self, now: float) -> Pcm:
        """Return the 320 samples received in this tick."""

    @abstractmethod
    def _send(self, said: Pcm | None, now: float) -> None:
        """Send the 480 samples of this tick, or nothing."""

    @property
    def carries_messages(self) -> bool:
        """Whether `send_message` may reach the caller's program: there is one, and a channel to it
        is open or may still be opened."""
        return self.overheard_by is not None

    def send_message(self, text: str) -> bool:
        """Send text to the caller's program. Returns False if no channel is open."""
        if self.overheard_by is None:
            return False
        self.overheard_by(text)
        return True

    def statistics(self) -> LegStatistics:
        """Return what is known of the line's quality; this one has no packets."""
        return LegStatistics()

    async def hang_up(self, reason: str) -> None:
        """End the call gracefully: pending packets are sent and the far end is notified, where
        there is one."""
        self.close(reason)


def _put(queue: asyncio.Queue[Pcm | None], frame: Pcm | None) -> None:
    if queue.full():
        queue.get_nowait()
    queue.put_nowait(frame)
