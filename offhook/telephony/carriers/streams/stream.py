"""What the streams of all carriers have in common: the vocabulary, and one class a provider fills.

A carrier hands the sound of a call over a WebSocket (AudioSocket: over TCP), each in messages of
its own. A CarrierStream is one such protocol without its socket: messages in, events out; what is
to be said in, messages out. One leg drives them all, so a provider module knows of messages only.

Sound of ours is queued at the carrier, not here: it takes what it is sent at once and plays it by
its own clock. So that a caller who breaks in is heard at once, a stream says how much sound may be
kept there (`lead_ms`), whether it can be taken back (`clears`) and whether the carrier tells when
it has been played (`acknowledges`).
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar, Literal

from offhook.media.leg import LegError

Message = str | bytes
"""One text or binary WebSocket message; of AudioSocket, bytes of the TCP stream."""


class CarrierError(ValueError):
    """The stream cannot go on; the text says why in the provider's terms."""


@dataclass(frozen=True, slots=True)
class Format:
    """How sound is coded, mono."""

    encoding: Literal["pcmu", "pcma", "l16", "opus"]
    rate: int
    """Hz: 8000 for pcmu and pcma, 48000 for opus."""
    big_endian: bool = False
    """Byte order of l16."""


@dataclass(frozen=True, slots=True)
class Started:
    """The stream is up: exactly once, before any Sound."""

    stream_id: str
    call_id: str
    """The provider's id of the call."""
    format_in: Format
    format_out: Format
    account: str = ""
    caller: str = ""
    called: str = ""
    parameters: Mapping[str, str] = field(default_factory=dict)
    """What the webhook's answer gave the stream along."""


@dataclass(slots=True)
class Sound:
    """The far end was heard. Not frozen: that would have each take three times as long to make."""

    payload: bytes
    """In `Started.format_in`, of any length above 0."""
    sequence: int | None = None
    """Number of the media message, counting by 1, where the provider numbers them."""
    timestamp_ms: int | None = None
    """Of its first sample on the stream's own clock, where the provider tells."""


@dataclass(frozen=True, slots=True)
class Pressed:
    """A key was pressed at the far end."""

    digit: str
    """One of 0-9 * # A-D."""


@dataclass(frozen=True, slots=True)
class Played:
    """A mark of ours came back: the sound sent before it was played, or was cleared."""

    name: str


@dataclass(frozen=True, slots=True)
class Cleared:
    """The provider says that nothing of ours is queued any more."""


@dataclass(frozen=True, slots=True)
class Held:
    """The far end put the stream on hold, so that nobody hears us or speaks, or took it back."""

    held: bool


@dataclass(frozen=True, slots=True)
class Congested:
    """The provider asks that no sound be sent for now, or that it be sent again."""

    congested: bool


@dataclass(frozen=True, slots=True)
class Answer:
    """A message that the protocol asks to be sent at once."""

    message: Message


@dataclass(frozen=True, slots=True)
class Stopped:
    """The far end ended the stream; its socket may be closed."""

    reason: str


Event = Started | Sound | Pressed | Played | Cleared | Held | Congested | Answer | Stopped


class CarrierStream(ABC):
    """One stream of one provider. Sans-io: it keeps no time and sends nothing itself."""

    provider: ClassVar[str]
    """As in the configuration: "twilio"."""
    acknowledges: bool
    """Marks come back once the sound before them has been played. This and the next may turn out
    only within the stream."""
    clears: bool
    """Sound queued at the carrier can be taken back."""
    silence_too: ClassVar[bool] = False
    """Sound must be sent all the time, silence where there is none."""
    lead_ms: int = 120
    """ms of sound kept in the carrier's buffer."""
    packet_ms: ClassVar[int] = 20
    """ms of sound in one message that we send."""
    longer_ms: ClassVar[int] = 0
    """ms of sound in one message where so much waits to be sent, which costs less; 0 where there
    is no such choice."""
    malformed: int = 0
    """Messages that were not understood and passed over."""

    @abstractmethod
    def receive(self, data: Message) -> list[Event]:
        """Take one message. Raises CarrierError, and nothing else whatever the message holds."""

    @abstractmethod
    def sound(self, payload: bytes) -> list[Message]:
        """The messages that carry `payload`, which is in `Started.format_out`."""

    def mark(self, name: str) -> list[Message]:
        """Ask to be told (Played) when the sound sent so far has been played."""
        return []

    def clear(self) -> list[Message]:
        """Take back the sound that is queued and not yet played."""
        return []

    def press(self, digit: str) -> list[Message]:
        """Press a key, one of 0-9 * # A-D. Raises LegError."""
        raise LegError("this line cannot send DTMF")

    def hang_up(self, reason: str) -> list[Message]:
        """Said before the socket is closed."""
        return []

    def opening(self) -> list[Message]:
        """Said when the socket opens."""
        return []
