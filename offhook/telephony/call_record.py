"""The record of a finished call: one line of JSON."""

import json
from dataclasses import asdict, dataclass, field
from typing import Literal

from offhook.media.leg import Collected

_DIGITS = {"cost": 6}
"""Digits after the point, where they are not three."""

EndedBy = Literal["local", "remote", "timeout", "transport"]


@dataclass(frozen=True, slots=True)
class Attempt:
    """One INVITE we sent, and its outcome."""

    sip_call_id: str
    server: str
    """host:port and transport."""
    media: str
    """The profile offered: RTP/AVP, RTP/SAVP, UDP/TLS/RTP/SAVP."""
    status: int
    reason: str


@dataclass(frozen=True, slots=True)
class CallRecord:
    """The record of one finished call. Times of day are ISO 8601 strings."""

    call_id: str
    """Our id, as in the log."""
    edge: str
    """"sip", or the carrier's provider."""
    remote_call_id: str
    """The other side's id: the SIP Call-ID, or a carrier's id of the call."""
    direction: Literal["inbound", "outbound", "recorded"]
    started: str
    """When the INVITE, or the carrier's request, was received or sent."""
    ended: str
    end_reason: str
    """Why the call ended, as a sentence."""
    ended_by: EndedBy
    status: int
    """The final response to the INVITE, or a carrier's equivalent; 0 if there was none."""
    answered: str | None = None
    duration_seconds: float = 0.0
    """From the answer to the end."""
    setup_ms: float | None = None
    """From the INVITE to the answer; None if it was not answered."""
    trunk: str = ""
    """Trunk, or the carrier's name."""
    caller: str = ""
    called: str = ""
    diverted_from: str = ""
    """Number or address whose calls were forwarded to us."""
    agent: str = ""
    transport: str = ""
    """SIP transport."""
    codec: str = ""
    """Empty if no media was negotiated."""
    srtp: str = ""
    """SRTP suite; "" for plain RTP."""
    packets_sent: int = 0
    packets_received: int = 0
    packets_lost: int = 0
    jitter_ms: float = 0.0
    mos: float | None = None
    """Estimated, 1..5; None if nothing was received."""
    input_tokens: int = 0
    """Of the language models that have answered, as their servers report them."""
    cached_tokens: int = 0
    """Of these, such as the servers had in a cache."""
    output_tokens: int = 0
    cost: float | None = None
    """Of these tokens, by the prices of the configuration; None if a model that has answered has no
    price."""
    answered_by: str = ""
    """Of a call that we placed, who or what has answered, see `answer_status.Result`; "" if that
    was not asked."""
    answered_by_ms: int = 0
    """Time in ms from the answer until that was known."""
    message_left: bool = False
    """Whether a message was left on a machine, to its end."""
    collected: Collected = field(default_factory=dict)
    """Details that agents have noted, by their names in the configuration."""
    transferred_to: str = ""
    tenant: str = ""
    """Whose call it was, where several customers share the server."""
    attempts: tuple[Attempt, ...] = ()
    """Attempts of an outbound call, in order: several if a server failed or required other
    media."""

    def as_dict(self) -> dict[str, object]:
        """Return the record as JSON-compatible values."""
        return {
            name: _readable(value, _DIGITS.get(name, 3)) for name, value in asdict(self).items()
        }

    def line(self) -> str:
        """Return the record as one line of ASCII JSON."""
        return json.dumps(self.as_dict(), allow_nan=False)


def _readable(value: object, digits: int = 3) -> object:
    """Round numbers, and replace a peer's bytes that are not UTF-8 (surrogates here): JSON cannot
    hold them."""
    if isinstance(value, float):
        return round(value, digits)
    if isinstance(value, str):
        return value.encode("utf-8", "replace").decode()
    if isinstance(value, dict):
        return {name: _readable(one) for name, one in value.items()}
    if isinstance(value, tuple):
        return [_readable(one) for one in value]
    return value
