"""Offers of WHIP and WHEP clients: what we can answer, and what is refused with which HTTP status
(RFC 9725 §4.2 and §4.4, draft-ietf-wish-whep §4.2)."""

import re
from dataclasses import dataclass
from enum import Enum

MEDIA_TYPE = "application/sdp"
MAX_LINES = 1000
"""Maximum lines of an offer, of which a browser sends 150; one with more is refused with 400."""
DIRECTIONS = ("sendrecv", "sendonly", "recvonly", "inactive")


class Protocol(Enum):
    """The two protocols, as their paths name them."""

    WHIP = "whip"
    """The client publishes: the caller's voice comes in."""
    WHEP = "whep"
    """The client plays: the agent's voice goes out."""


ALLOWED = {
    Protocol.WHIP: ("sendonly", "sendrecv"),
    Protocol.WHEP: ("recvonly", "sendrecv"),
}
"""Directions of an offered m-line. A sendrecv one is answered in one direction as well."""


class OfferRefusal(ValueError):
    """The offer is refused with `status`: 400 if it cannot be read, 422 if its media is not what
    we take."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


@dataclass(frozen=True, slots=True)
class MediaLine:
    kind: str
    mid: str
    direction: str
    ufrag: str


def check_offer(sdp: str, protocol: Protocol) -> tuple[MediaLine, ...]:
    """Returns the m-lines: one audio m-line and at most one of video, in the protocol's direction,
    and one of data channels, which mediamtx's player opens; all bundled. Raises OfferRefusal."""
    offered, bundle = _parse(sdp)
    kinds = [media.kind for media in offered]
    if not {"audio", "video", "application"}.issuperset(kinds):
        raise OfferRefusal(422, "audio only: an m-line is neither audio, video nor data channels")
    if kinds.count("audio") != 1 or len(set(kinds)) < len(kinds):
        raise OfferRefusal(422, "audio only: the offer needs one audio m-line, at most one video")
    for media in offered:
        if media.kind == "application":  # has no direction
            continue
        allowed = ALLOWED[protocol] if media.kind == "audio" else (*ALLOWED[protocol], "inactive")
        if media.direction not in allowed:
            words = f"a {protocol.name} offer is {' or '.join(ALLOWED[protocol])}"
            raise OfferRefusal(422, f"{words}, not {media.direction}")
    if len(offered) > 1 and not {m.mid for m in offered} <= bundle:
        raise OfferRefusal(422, "the m-lines are not bundled (RFC 9725 §4.4)")
    if not offered[0].ufrag:
        raise OfferRefusal(400, "no a=ice-ufrag")
    return offered


def _parse(sdp: str) -> tuple[tuple[MediaLine, ...], set[str]]:
    """Returns the m-lines and the mids of the BUNDLE group. Raises OfferRefusal."""
    lines = sdp.splitlines()
    if not lines or lines[0].strip() != "v=0":
        raise OfferRefusal(400, "the body is not a session description: v=0 is missing")
    if len(lines) > MAX_LINES:
        raise OfferRefusal(400, f"more than {MAX_LINES} lines")
    sections: list[list[str]] = [[]]
    for line in lines:
        if line.startswith("m="):
            sections.append([])
        sections[-1].append(line.strip())
    session, *media = sections
    default = _attributes(session)
    found = []
    for section in media:
        attributes = {**default, **_attributes(section)}
        direction = attributes.get("direction", "sendrecv")  # RFC 8866 §6.7
        kind = section[0][2:].partition(" ")[0]
        ufrag = attributes.get("ice-ufrag", "")
        found.append(MediaLine(kind, attributes.get("mid", ""), direction, ufrag))
    if not found:
        raise OfferRefusal(400, "no m-line")
    bundle = {mid for line in session if line.startswith("a=group:BUNDLE") for mid in line.split()}
    return tuple(found), bundle


def _attributes(section: list[str]) -> dict[str, str]:
    """Returns the attributes that matter by name; the direction as "direction"."""
    found = {}
    for line in section:
        name, _, value = line.removeprefix("a=").partition(":")
        if line.startswith("a=") and name in ("mid", "ice-ufrag"):
            found[name] = value.strip()
        elif line.startswith("a=") and name in DIRECTIONS:
            found["direction"] = name
    return found


def ipv4_first(sdp: str) -> str:
    """Returns the answer with the IPv4 host candidates first in each m-line: FFmpeg checks only
    the first host candidate."""

    def ordered(match: re.Match[str]) -> str:
        return "".join(sorted(match[0].splitlines(keepends=True), key=_rank))

    return re.sub(r"(?:a=candidate:[^\n]*\n)+", ordered, sdp)


def _rank(line: str) -> bool:
    """Orders a candidate line (RFC 8839 §5.1): UDP and IPv4 before all others."""
    fields = line.split()
    return not (len(fields) > 7 and fields[2].lower() == "udp" and "." in fields[4])
