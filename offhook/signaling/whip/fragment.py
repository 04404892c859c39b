"""Trickle ICE fragments (application/trickle-ice-sdpfrag, RFC 8840 §9): the bodies of PATCH in WHIP
and WHEP (RFC 9725 §4.3.1)."""

from dataclasses import dataclass

MEDIA_TYPE = "application/trickle-ice-sdpfrag"
MAX_LINES = 500
"""Maximum lines of a fragment, of which a browser sends a dozen; one with more is refused with
400."""
MAX_CREDENTIAL = 256
"""Maximum characters of a ufrag and of a pwd (RFC 8839 §5.4); a fragment with a longer one is
refused with 400."""


class FragmentError(ValueError):
    """The fragment is malformed; the message says why in SDP terms."""


@dataclass(frozen=True, slots=True)
class TrickledCandidate:
    """A candidate of the m-line `mid`; without an `a=mid`, of the m-line at `index`."""

    candidate: str
    """The attribute as in SDP, from "candidate:" on."""
    mid: str | None
    index: int

    @property
    def transport(self) -> str:
        """The transport protocol in lower case; empty if the candidate is malformed."""
        return "".join(self.candidate.lower().split()[2:3])


@dataclass(frozen=True, slots=True)
class Fragment:
    """One fragment. The credentials are those of the first m-line that has any, or of the session;
    empty if there are none: all m-lines are bundled."""

    ufrag: str = ""
    pwd: str = ""
    candidates: tuple[TrickledCandidate, ...] = ()
    ended: bool = False
    """No more candidates follow."""
    options: tuple[str, ...] = ()
    """ICE options (RFC 8839 §5.6); "ice2" e.g."""


def parse_fragment(text: str) -> Fragment:
    """Parse a fragment; attributes that are not ICE's are ignored. Raises FragmentError."""
    lines = text.splitlines()
    if len(lines) > MAX_LINES:
        raise FragmentError(f"more than {MAX_LINES} lines")
    ufrag = pwd = ""
    index = -1
    found: list[tuple[str, int]] = []
    mids: dict[int, str] = {}
    options: tuple[str, ...] = ()
    ended = False
    for line in filter(None, lines):
        kind, equals, value = line.partition("=")
        if not equals or len(kind) != 1:
            raise FragmentError(f"not an SDP line: {line[:80]!r}")
        if kind == "m":
            index += 1
        if kind != "a":
            continue
        name, _, argument = value.partition(":")
        match name:
            case "ice-ufrag":
                ufrag = ufrag or _credential(name, argument, 4)
            case "ice-pwd":
                pwd = pwd or _credential(name, argument, 22)
            case "ice-options":
                options = tuple(argument.split())
            case "mid" if index >= 0:
                mids[index] = argument.strip()
            case "candidate":
                if index < 0:
                    raise FragmentError("a candidate before the first m-line")
                found.append((value, index))
            case "end-of-candidates":
                ended = True
    candidates = tuple(TrickledCandidate(value, mids.get(at), at) for value, at in found)
    return Fragment(ufrag, pwd, candidates, ended, options)


def _credential(name: str, value: str, least: int) -> str:
    value = value.strip()
    if not least <= len(value) <= MAX_CREDENTIAL or not value.isascii() or not value.isprintable():
        raise FragmentError(f"invalid {name}")
    return value


def write_fragment(fragment: Fragment, kind: str, mid: str) -> str:
    """Write a fragment whose candidates are all of one m-line, the first of a bundle."""
    lines = [f"a=ice-options:{' '.join(fragment.options)}"] if fragment.options else []
    lines += [f"m={kind} 9 UDP/TLS/RTP/SAVPF 0", f"a=mid:{mid}"]
    lines += [f"a=ice-ufrag:{fragment.ufrag}", f"a=ice-pwd:{fragment.pwd}"]
    lines += [f"a={c.candidate}" for c in fragment.candidates]
    if fragment.ended:
        lines.append("a=end-of-candidates")
    return "".join(f"{line}\r\n" for line in lines)
