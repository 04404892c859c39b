"""The vocabulary of all carrier streams, and the base class that each provider implements.

A carrier sends the audio of a call over a WebSocket, or over TCP, in its own messages. A
CarrierStream is one such protocol without the socket: messages in, events out; audio in, messages
out. One leg class drives them all, so a provider module deals with messages only.

Our audio is queued at the carrier, not here: it accepts audio at once and plays it by its own
clock. So that an interruption takes effect at once, a stream declares how much audio may be queued
there (`lead_ms`), whether it can be cleared (`clears`) and whether the carrier reports when it has
been played (`acknowledges`).
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar, Literal

from offhook.media.leg import LegError
from offhook.telephony.carriers.streams.media_form import MediaForm

Message = str | bytes
"""One text or binary WebSocket message; bytes of a TCP stream."""


Encoding = Literal["pcmu", "pcma", "l16", "opus"]


class CarrierError(ValueError):
    """The stream cannot continue; the text says why in the provider's terms."""


@dataclass(frozen=True, slots=True)
class Format:
    """Audio format, mono."""

    encoding: Encoding
    rate: int
    """Sample rate in Hz: 8000 for pcmu and pcma, 48000 for opus."""
    big_endian: bool = False
    """Byte order of l16."""


@dataclass(frozen=True, slots=True)
class Started:
    """The stream has started: exactly once, before any Sound."""

    stream_id: str
    call_id: str
    """The provider's id of the call."""
    format_in: Format
    format_out: Format
    caller: str = ""
    called: str = ""
    parameters: Mapping[str, str] = field(default_factory=dict)
    """Parameters given to the stream by the webhook's response."""


@dataclass(slots=True)
class Sound:
    """Audio received. Not frozen, as that would make it three times as slow to create."""

    payload: bytes
    """In `Started.format_in`, of any length above 0."""
    sequence: int | None = None
    """Number of the media message, counting by 1, if the provider numbers them."""
    timestamp_ms: int | None = None
    """Time of its first sample on the stream's own clock, if the provider gives it."""


@dataclass(frozen=True, slots=True)
class DtmfReceived:
    """The caller pressed a key."""

    digit: str
    """One of 0-9 * # A-D."""


@dataclass(frozen=True, slots=True)
class Played:
    """A mark came back: the audio before it was played, or cleared."""

    name: str


@dataclass(frozen=True, slots=True)
class Cleared:
    """The provider reports that its queue is empty."""


@dataclass(frozen=True, slots=True)
class Held:
    """The far end put the stream on hold, or resumed it."""

    held: bool


@dataclass(frozen=True, slots=True)
class Congested:
    """The provider asks to stop sending audio, or to resume."""

    congested: bool


@dataclass(frozen=True, slots=True)
class Answer:
    """A message that the protocol requires to be sent at once."""

    message: Message


@dataclass(frozen=True, slots=True)
class Stopped:
    """The far end ended the stream; the socket may be closed."""

    reason: str


Event = Started | Sound | DtmfReceived | Played | Cleared | Held | Congested | Answer | Stopped


class CarrierStream(ABC):
    """One stream of one provider. Sans-io: it keeps no time and sends nothing itself."""

    provider: ClassVar[str]
    """Provider name as in the configuration."""
    acknowledges: bool
    """Marks come back once the audio before them has been played. This and `clears` may become
    known only during the stream."""
    clears: bool
    """Audio queued at the carrier can be cleared."""
    needs_silence: ClassVar[bool] = False
    """Audio must be sent continuously, silence if there is none."""
    lead_ms: int = 120
    """Audio to keep in the carrier's buffer, in ms."""
    packet_ms: ClassVar[int] = 20
    """Audio per message we send, in ms."""
    long_packet_ms: ClassVar[int] = 0
    """Audio per message when that much is queued, in ms, which is cheaper; 0 for no such choice."""
    malformed: int = 0
    """Messages that could not be parsed and were skipped."""
    last_error: str = ""
    """The last error that the provider reported about a message of ours, and went on."""
    form: MediaForm | None = None
    """How the carrier writes its media messages, once known; None once it sends no more."""

    @property
    def title(self) -> str:
        """The provider's name in sentences."""
        return self.provider.capitalize()

    @abstractmethod
    def receive(self, data: Message) -> list[Event]:
        """Process one message. Raises CarrierError and nothing else, whatever the message holds."""

    @abstractmethod
    def sound(self, payload: bytes) -> list[Message]:
        """Return the messages that carry `payload`, which is in `Started.format_out`."""

    def around_sound(self) -> tuple[str, str] | None:
        """Return the text before and after the payload, in base64, of the message that `sound`
        returns; None if it returns others. Constant once the stream has started."""
        return None

    def mark(self, name: str) -> list[Message]:
        """Ask for a `Played` event once the audio sent so far has been played."""
        return []

    def clear(self) -> list[Message]:
        """Clear the audio that is queued and not yet played."""
        return []

    def press(self, digit: str) -> list[Message]:
        """Send a DTMF digit, 0-9 * # A-D. Raises LegError."""
        raise LegError("this carrier's stream cannot send DTMF")

    def hang_up(self, reason: str) -> list[Message]:
        """Return the messages to send before the socket is closed."""
        return []

    def opening(self) -> list[Message]:
        """Return the messages to send when the socket opens."""
        return []
