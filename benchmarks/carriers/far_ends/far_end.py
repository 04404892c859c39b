"""The far side of a carrier's stream, for benchmarks and tests: what a provider sends, and how it
treats what it gets. Written from the providers' own documents and from nothing of our server's.

A far end is one call without its socket:

    open(now)             the connection is up
    receive(message, now) what the application sent
    handle_timer(now)     time passes
    get_timer()           when it has to be called again
    messages_to_send()    what is due to the application

`say`, `press` and `hang_up` are the caller's doing. What the caller hears is `player.played`: the
far end's own clock plays it, not the application's.

Beside each behaviour stands the document that says so. Where none was found it says "assumed".
Every breach of the protocol by the application is counted in `faults` in plain words.
"""

import json
from abc import ABC, abstractmethod
from collections import Counter, deque
from collections.abc import Mapping
from typing import Any, ClassVar, Literal

import numpy as np

from benchmarks.carriers.far_ends.player import Player
from offhook.media.codecs.g711 import ALAW_CODES, ALAW_LEVELS, ULAW_CODES, ULAW_LEVELS
from offhook.media.pcm import PACKET_MS, Pcm
from offhook.web.app.callers.twilio.webhook_io import CallFacts as CallFacts

Message = str | bytes
Encoding = Literal["pcmu", "pcma", "l16"]

TICK_S = PACKET_MS / 1000
JITTER_MS = 60
"""Usual depth of a carrier's jitter buffer before playing starts (assumed)."""


class FarEnd(ABC):
    """One call at a provider."""

    provider: ClassVar[str]
    packet_ms: ClassVar[int] = PACKET_MS
    """ms of the caller's sound in one message."""
    rates: ClassVar[tuple[int, ...]] = (8_000,)
    encodings: ClassVar[tuple[Encoding, ...]] = ("pcmu",)
    """The usual ones first."""
    jitter_ms: ClassVar[int] = JITTER_MS
    room_ms: ClassVar[int | None] = None

    def __init__(
        self,
        facts: CallFacts | None = None,
        rate: int | None = None,
        encoding: Encoding | None = None,
        jitter_ms: int | None = None,
    ) -> None:
        """Raises ValueError for a format that this provider does not have."""
        self.facts = facts or CallFacts()
        self.rate = rate or self.rates[0]
        self.encoding: Encoding = encoding or self.encodings[0]
        if self.rate not in self.rates or self.encoding not in self.encodings:
            raise ValueError(f"{self.provider} has no {self.encoding} at {self.rate} Hz")
        jitter = self.jitter_ms if jitter_ms is None else jitter_ms
        self.player = Player(self.rate, jitter, self.room_ms)
        self.faults: Counter[str] = Counter()
        """What the application did wrong."""
        self.closed: str | None = None
        """Why the call is over; the socket is then to be closed."""
        self.pressed = ""
        """Keys that the application pressed."""
        self.opened_at: float | None = None
        """When the stream was up: sample n of what is played is played n / rate s later."""
        self.first_sound_at: float | None = None
        """When the application's first sound came."""
        self._caller: deque[Pcm] = deque()
        self._unsent: list[Pcm] = []
        """The caller's ticks that do not fill a message yet."""
        self._tick_at: float | None = None
        self._heard_ms = 0
        """Of the caller, until the message to be sent next."""
        self._out: list[Message] = []

    # --- time ---

    def open(self, now: float) -> None:
        self._begin(now)
        self._start(now)

    def _begin(self, now: float) -> None:
        """Media flows from now on."""
        self.opened_at = now
        self._tick_at = now + TICK_S

    def get_timer(self) -> float | None:
        return self._tick_at if self.closed is None else None

    def handle_timer(self, now: float) -> None:
        """A tick that is late is made up, at its own time: the clock is the far end's own."""
        while self._tick_at is not None and self._tick_at <= now and self.closed is None:
            due = self._tick_at
            self._tick_at = due + TICK_S
            self.tick(due)

    def tick(self, due: float) -> None:
        """20 ms pass; for who keeps the far end's clock instead of `handle_timer`."""
        if self.opened_at is None or self.closed is not None:
            return
        self.player.tick(due)
        self._tell_reached()
        self._unsent.append(self._of_caller())
        if len(self._unsent) * PACKET_MS >= self.packet_ms:
            pcm = np.concatenate(self._unsent)
            self._unsent = []
            self._send_sound(self.encode(pcm))
            self._heard_ms += self.packet_ms

    def messages_to_send(self) -> list[Message]:
        out, self._out = self._out, []
        return out

    # --- the caller ---

    def say(self, pcm: Pcm) -> None:
        """Samples at `rate`, after those said before; silence where there are none."""
        if len(pcm):
            self._caller.append(pcm)

    @property
    def saying(self) -> int:
        """Samples still to be said."""
        return sum(map(len, self._caller))

    def _of_caller(self) -> Pcm:
        frame = np.zeros(self.player.frame, np.int16)
        filled = 0
        while self._caller and filled < len(frame):
            first = self._caller.popleft()
            piece = first[: len(frame) - filled]
            frame[filled : filled + len(piece)] = piece
            filled += len(piece)
            if len(piece) < len(first):
                self._caller.appendleft(first[len(piece) :])
        return frame

    @abstractmethod
    def press(self, digit: str) -> None:
        """The caller presses a key."""

    @abstractmethod
    def hang_up(self) -> None:
        """The caller hangs up."""

    # --- the provider's protocol ---

    @abstractmethod
    def _start(self, now: float) -> None:
        """Send what opens the stream."""

    @abstractmethod
    def _send_sound(self, payload: bytes) -> None:
        """Send `packet_ms` of the caller."""

    @abstractmethod
    def receive(self, message: Message, now: float) -> None:
        """Take what the application sent. Nothing it can send raises."""

    def _send_mark(self, name: str) -> None:
        """All before a mark has been played."""
        raise AssertionError(f"{self.provider} has no marks")

    def _tell_reached(self) -> None:
        for name in self.player.reached():
            self._send_mark(name)

    def _mark(self, name: str) -> None:
        self.player.mark(name)
        self._tell_reached()

    def _play(self, payload: bytes, now: float) -> None:
        if self.first_sound_at is None:
            self.first_sound_at = now
        if self.encoding == "l16" and len(payload) % 2:
            self._fault("sound of an odd number of bytes")
            payload = payload[:-1]
        if not payload:
            self._fault("empty sound")
            return
        self.player.write(self.decode(payload), now)

    def _fault(self, what: str) -> None:
        self.faults[what] += 1

    def _send(self, message: Mapping[str, Any]) -> None:
        self._out.append(json.dumps(message))

    def _read(self, message: Message) -> dict[str, Any] | None:
        """A JSON object in a text message."""
        if isinstance(message, bytes):
            self._fault("a binary message")
            return None
        try:
            read = json.loads(message)
        except ValueError:
            read = None
        if isinstance(read, dict):
            return read
        self._fault("a text message that is not a JSON object")
        return None

    # --- codecs ---

    def encode(self, pcm: Pcm) -> bytes:
        match self.encoding:
            case "pcmu":
                return ULAW_CODES[pcm.view(np.uint16)].tobytes()
            case "pcma":
                return ALAW_CODES[pcm.view(np.uint16)].tobytes()
        return pcm.astype("<i2").tobytes()

    def decode(self, payload: bytes) -> Pcm:
        match self.encoding:
            case "pcmu":
                return ULAW_LEVELS[np.frombuffer(payload, np.uint8)]
            case "pcma":
                return ALAW_LEVELS[np.frombuffer(payload, np.uint8)]
        return np.frombuffer(payload, "<i2").astype(np.int16)
