"""What is written down about a call when it is over: one line of JSON."""

import json
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from typing import Literal

EndedBy = Literal["local", "remote", "timeout", "transport"]


@dataclass(frozen=True, slots=True)
class Attempt:
    """One INVITE of ours, and what came of it."""

    sip_call_id: str
    server: str
    """host:port, and the transport."""
    media: str
    """The profile offered: RTP/AVP, RTP/SAVP, UDP/TLS/RTP/SAVP."""
    status: int
    reason: str


@dataclass(frozen=True, slots=True)
class CallRecord:
    """One call, ended. Times of day are ISO 8601 strings."""

    call_id: str
    """Ours, as in the log."""
    edge: str
    """How it came or went: "sip", "twilio"."""
    remote_call_id: str
    """The other side's name for it: SIP's Call-ID, Twilio's call SID."""
    direction: Literal["inbound", "outbound"]
    started: str
    """When the INVITE, or the carrier's request, came or was sent."""
    ended: str
    end_reason: str
    """In words."""
    ended_by: EndedBy
    status: int
    """The final response to the INVITE, or what says the same of a carrier's call; 0 when there
    was none."""
    answered: str | None = None
    duration_seconds: float = 0.0
    """From the answer to the end."""
    setup_ms: float | None = None
    """From the INVITE to the answer; None when there was none."""
    trunk: str = ""
    """Or the carrier's name."""
    caller: str = ""
    called: str = ""
    agent: str = ""
    transport: str = ""
    """SIP's."""
    codec: str = ""
    """"" when no media was agreed on."""
    srtp: str = ""
    """The suite, "" for plain RTP."""
    packets_sent: int = 0
    packets_received: int = 0
    packets_lost: int = 0
    jitter_ms: float = 0.0
    mos: float | None = None
    """1..5, as estimated; None when nothing was received."""
    transferred_to: str = ""
    attempts: tuple[Attempt, ...] = ()
    """Of a call that we placed, in order: more than one where a server was not there, or wanted
    other media."""

    def as_dict(self) -> dict[str, object]:
        """As JSON can hold it, whatever the peer called itself."""
        return {
            name: _rounded(value) if isinstance(value, float) else _readable(value)
            for name, value in asdict(self).items()
        }

    def line(self) -> str:
        """JSON in ASCII without a line break."""
        return json.dumps(self.as_dict(), allow_nan=False)


def wall_clock() -> str:
    """Now, as records have it."""
    return datetime.now(UTC).isoformat(timespec="milliseconds")


def _rounded(value: float) -> float:
    return round(value, 3)


def _readable(value: object) -> object:
    """Bytes of a peer that are no UTF-8 (surrogates in our strings) are not JSON either."""
    if isinstance(value, str):
        return value.encode("utf-8", "replace").decode()
    if isinstance(value, dict):
        return {name: _readable(one) for name, one in value.items()}
    if isinstance(value, tuple):
        return [_readable(one) for one in value]
    return value
