"""SmallWebRTC signalling as Pipecat clients use it: JSON bodies in, values out.

`POST /start`, `POST` and `PATCH /api/offer`, as @pipecat-ai/small-webrtc-transport sends them.
"""

from dataclasses import dataclass, field
from typing import Any

from offhook.media.untrusted_json import read_json

MAX_BODY_BYTES = 256 * 1024
"""Maximum body of a request; a longer one is refused with 413. A session description with video and
hundreds of candidates is under a tenth of this."""
MAX_CANDIDATES = 64
"""Maximum candidates in one request, of which a client sends a handful; one with more is refused
with 400."""


class RequestError(ValueError):
    """A request body is malformed; the message names the field."""


@dataclass(frozen=True)
class Offer:
    sdp: str
    pc_id: str | None
    """The peer connection to renegotiate; None for a new call."""
    restart_pc: bool
    """Create a new peer connection for the same call."""
    request_data: dict[str, Any]


@dataclass(frozen=True)
class Candidate:
    candidate: str
    """Empty if there are no more candidates (RFC 8840 §4.4)."""
    sdp_mid: str | None
    sdp_mline_index: int | None


@dataclass(frozen=True)
class Candidates:
    pc_id: str
    candidates: tuple[Candidate, ...]


@dataclass(frozen=True)
class Start:
    default_ice_servers: bool
    body: dict[str, Any] = field(default_factory=dict)


def _object(body: bytes) -> dict[str, Any]:
    try:
        value = read_json(body)
    except ValueError as error:
        raise RequestError(f"the body is not valid JSON: {error}") from error
    if not isinstance(value, dict):
        raise RequestError("the body is not a JSON object")
    return value


def _field(value: dict[str, Any], name: str, kind: type, default: Any = None) -> Any:
    found = value.get(name, default)
    if found is None:
        found = default
    wrong = not isinstance(found, kind) or (isinstance(found, bool) and kind is not bool)
    if found is not None and wrong:
        raise RequestError(f"{name} is not a {kind.__name__}")
    return found


def _required(value: dict[str, Any], name: str, kind: type) -> Any:
    found = _field(value, name, kind)
    if found is None:
        raise RequestError(f"{name} is missing")
    return found


def parse_offer(body: bytes) -> Offer:
    """Parse the body of `POST /api/offer`. Raises RequestError."""
    value = _object(body)
    if _required(value, "type", str) != "offer":
        raise RequestError("type is not 'offer'")
    data = _field(value, "requestData", dict) or _field(value, "request_data", dict, {})
    return Offer(
        sdp=_required(value, "sdp", str),
        pc_id=_field(value, "pc_id", str),
        restart_pc=_field(value, "restart_pc", bool, False),
        request_data=data,
    )


def parse_candidates(body: bytes) -> Candidates:
    """Parse the body of `PATCH /api/offer`. Raises RequestError."""
    value = _object(body)
    listed = _required(value, "candidates", list)
    if len(listed) > MAX_CANDIDATES:
        raise RequestError(f"more than {MAX_CANDIDATES} candidates")
    return Candidates(_required(value, "pc_id", str), tuple(_candidate(c) for c in listed))


def _candidate(value: Any) -> Candidate:
    if not isinstance(value, dict):
        raise RequestError("a candidate is not a JSON object")
    return Candidate(
        _required(value, "candidate", str),
        _field(value, "sdp_mid", str),
        _field(value, "sdp_mline_index", int),
    )


def parse_start(body: bytes) -> Start:
    """Parse the body of `POST /start`, which may be empty. Raises RequestError."""
    value = _object(body or b"{}")
    return Start(
        _field(value, "enableDefaultIceServers", bool, False), _field(value, "body", dict, {})
    )
