"""Media settings of a call, and the plan that offer and answer make of them."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from offhook.telephony.sip.media.keying import Policy, Security
from offhook.telephony.sip.messages.grammar import quote

Direction = Literal["sendrecv", "sendonly", "recvonly", "inactive"]

_WARNINGS = {
    301: "Incompatible network address formats",
    302: "Incompatible transport protocol",
    304: "Media type not available",
    305: "Incompatible media format",
}
"""Codes of the Warning header (RFC 3261 §20.43)."""


def warning(code: int, text: str) -> str:
    """Return the value of a Warning header (RFC 3261 §20.43)."""
    printable = "".join(char if char.isprintable() else " " for char in text)
    return f"{code} offhook {quote(printable)}"


class NotAcceptable(Exception):
    """The two ends have no media in common; `status` is the response to an offer."""

    def __init__(self, code: int, detail: str, status: int = 488) -> None:
        super().__init__(f"{_WARNINGS[code]}: {detail}")
        self.status = status
        self.warning = warning(code, str(self))
        """Value of a Warning header."""


@dataclass(frozen=True)
class MediaSettings:
    """The codecs and encryption a call may use."""

    codecs: tuple[str, ...] = ("opus", "g722", "pcmu", "pcma")
    """In the order of our offers; answers follow the far end's order."""
    srtp: Policy = "optional"
    dtls: bool = True
    """Accept DTLS-SRTP if offered."""
    tones: bool | None = None
    """Whether DTMF is heard as tones; None: if the far end sends no telephone events."""
    ptime_ms: int = 20
    opus_fmtp: str = "minptime=10;useinbandfec=1;stereo=0"


@dataclass(frozen=True)
class Codec:
    """The codec we send."""

    name: str
    """"opus", "g722", "pcmu" or "pcma"."""
    payload_type: int
    """Payload type the far end assigned to it."""
    clock_rate: int
    """Hz of the RTP timestamp."""
    fmtp: str = ""
    """The far end's format parameters, as written."""


@dataclass(frozen=True)
class SavedMedia:
    """The media of a call as another server continues them. No keys: these are made anew."""

    description: str
    """Our last SDP, without keys."""
    crypto_tag: int = 0
    suite: str = ""
    """SDES suite of the call, one of sdes.SUITES; "" for plain RTP."""


@dataclass(frozen=True)
class MediaPlan:
    """The negotiated media of a call."""

    remote: tuple[str, int]
    """Far end's address from SDP, even if private; nothing is sent to an unspecified one."""
    remote_rtcp: tuple[str, int]
    rtcp_mux: bool
    codec: Codec
    receive: Mapping[int, str]
    """Payload type → codec that may arrive: our numbers, those of our previous description while it
    is being replaced (RFC 3264 §8.3.2), and theirs, which some use both ways."""
    events_out: tuple[int, int] | None
    """Payload type and clock rate of the telephone events we send."""
    events_in: Mapping[int, int]
    """Payload type → clock rate of telephone events that may arrive."""
    comfort_noise: frozenset[int]
    """Payload types of comfort noise that may arrive."""
    ptime_ms: int
    """Audio in each packet we send: 10, 20, 30, 40 or 60."""
    direction: Direction
    """Our direction."""
    tones: bool
    """DTMF is heard as tones."""
    security: Security
