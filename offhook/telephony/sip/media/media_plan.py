"""What one call's sound may be and, after offer and answer, is: settings in, plan out."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from offhook.telephony.sip.media.keying import Policy, Security

Direction = Literal["sendrecv", "sendonly", "recvonly", "inactive"]

_WARNINGS = {
    301: "Incompatible network address formats",
    302: "Incompatible transport protocol",
    304: "Media type not available",
    305: "Incompatible media format",
}
"""Codes of the Warning header (RFC 3261 §20.43)."""


class NotAcceptable(Exception):
    """The two ends have nothing in common for sound; `status` answers an offer."""

    def __init__(self, code: int, detail: str, status: int = 488) -> None:
        super().__init__(f"{_WARNINGS[code]}: {detail}")
        self.status = status
        self.warning = f'{code} offhook "{_WARNINGS[code]}: {detail}"'
        """Value of a Warning header (RFC 3261 §20.43)."""


@dataclass(frozen=True)
class MediaSettings:
    """What one line may speak."""

    codecs: tuple[str, ...] = ("opus", "g722", "pcmu", "pcma")
    """In the order we offer them; in answers the far end's order counts."""
    srtp: Policy = "optional"
    dtls: bool = True
    """Take DTLS-SRTP where it is offered."""
    ptime_ms: int = 20
    opus_fmtp: str = "minptime=10;useinbandfec=1;stereo=0"


@dataclass(frozen=True)
class Codec:
    """What we send."""

    name: str
    """"opus", "g722", "pcmu" or "pcma"."""
    payload_type: int
    """As the far end wants it numbered."""
    clock_rate: int
    """Hz of the RTP timestamp."""
    fmtp: str = ""
    """The far end's format parameters, as written."""


@dataclass(frozen=True)
class MediaPlan:
    """What the two ends have agreed."""

    remote: tuple[str, int]
    """As the far end says, be it private or unspecified; with an unspecified one we do not send."""
    remote_rtcp: tuple[str, int]
    rtcp_mux: bool
    codec: Codec
    receive: Mapping[int, str]
    """Payload type → codec that may arrive: our numbers, those of our last description while it is
    being replaced (RFC 3264 §8.3.2), and theirs, which some use both ways."""
    events_out: tuple[int, int] | None
    """Payload type and clock rate of the telephone-events we send."""
    events_in: Mapping[int, int]
    """Payload type → clock rate of telephone-events that may arrive."""
    comfort_noise: frozenset[int]
    """Payload types of comfort noise that may arrive."""
    ptime_ms: int
    """Sound in each packet we send: 10, 20, 30, 40 or 60."""
    direction: Direction
    """Ours."""
    security: Security
