"""Which session descriptions can be answered (RFC 8866, and for WebRTC RFC 8839, 8841 and 8842).

aiortc reads much of an offer when a call has begun, and fails then, or takes what nobody can
connect to. So each line that it reads is compared with its form here, and each m-line with what a
connection needs, before anything is opened; what is refused is said in the terms of SDP. Attributes
that nobody here reads are ignored.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from ipaddress import ip_address

MAX_LINES = 1000
"""Maximum lines of a session description, of which a browser sends about 200; one with more is
refused with 400. aiortc blocks the event loop for seconds on thousands."""
MAX_MEDIA_SECTIONS = 8
"""Maximum m-lines of a session description, of which a browser sends 3; one with more is refused
with 400, as aiortc opens a socket for every one."""
MAX_CANDIDATES = 128
"""Maximum ICE candidates of a session description, and trickled ones of a call, of which a browser
sends 20; a request with more is refused with 400."""
MAX_QUOTED = 60
"""Maximum characters of a line that a message quotes; the rest is cut off."""
FINGERPRINT_BYTES = {"sha-256": 32, "sha-384": 48, "sha-512": 64}
"""Hashes of fingerprints that we can compare (RFC 8122 §5)."""
KINDS = ("audio", "video", "application")
SETUP = ("actpass", "active", "passive")
PROTOCOLS = {
    "audio": re.compile(r"(UDP/TLS/|TCP/DTLS/|TCP/TLS/)?RTP/SAVPF?"),
    "video": re.compile(r"(UDP/TLS/|TCP/DTLS/|TCP/TLS/)?RTP/SAVPF?"),
    "application": re.compile(r"(UDP/|TCP/)?DTLS/SCTP"),
}

_INTEGERS = ("apt", "max-fr", "max-fs", "maxplaybackrate", "minptime", "stereo", "useinbandfec")
"""Format parameters that are numbers to aiortc."""
_RTCP_TYPES = range(72, 77)
"""Payload types that RTCP's take (RFC 5761 §4)."""


class OfferError(ValueError):
    """The session description cannot be answered; the message says why in SDP terms."""


@dataclass(slots=True)
class _Section:
    """An m-line with its attributes, or what precedes the first."""

    kind: str = ""
    number: int = 0
    """From 1."""
    protocol: str = ""
    attributes: dict[str, list[str]] = field(default_factory=dict)
    """Values of the attributes by name."""

    def get(self, name: str) -> str | None:
        """The value that counts: the last, as aiortc has it."""
        values = self.attributes.get(name)
        return values[-1] if values else None

    @property
    def words(self) -> str:
        return f"m-line {self.number} ({_quoted(self.kind)})"


def check_offer(sdp: str) -> None:
    """Raises OfferError unless the offer can be answered, provided that there is a codec in
    common."""
    try:
        _check(sdp, SETUP)
    except OfferError as error:
        raise OfferError(f"cannot answer the offer: {error}") from None


def check_answer(sdp: str) -> None:
    """Raises OfferError unless the answer can be used."""
    try:
        _check(sdp, SETUP[1:])
    except OfferError as error:
        raise OfferError(f"cannot use the answer: {error}") from None


def check_candidate(value: str) -> None:
    """Raises OfferError unless this is the value of an a=candidate that can be used (RFC 8839
    §5.1)."""
    if not _is_candidate(value):
        raise OfferError(f"a=candidate:{_quoted(value)} is not {_FORMS['candidate'].words}")


def _check(sdp: str, setup: tuple[str, ...]) -> None:
    session, *media = _sections(sdp)
    if len(media) > MAX_MEDIA_SECTIONS:
        raise OfferError(f"more than {MAX_MEDIA_SECTIONS} m-lines")
    if not any(m.kind == "audio" for m in media):
        raise OfferError("no audio m-line")
    if sum(len(m.attributes.get("candidate", ())) for m in media) > MAX_CANDIDATES:
        raise OfferError(f"more than {MAX_CANDIDATES} ICE candidates")
    _check_bundle(session, media)
    for section in media:
        _check_transport(session, section, setup)
        _check_formats(section)


# --- what a connection needs ---


def _check_transport(session: _Section, media: _Section, setup: tuple[str, ...]) -> None:
    for name, words in (("ice-ufrag", "username fragment"), ("ice-pwd", "password")):
        if media.get(name) is None and session.get(name) is None:
            raise OfferError(f"{media.words} has no ICE {words}: a={name} (RFC 8839 §5.4)")
    # Those of the session and of the m-line together, all of which aiortc compares.
    values = [v for part in (session, media) for v in part.attributes.get("fingerprint", ())]
    if not values:
        raise OfferError(f"{media.words} has no a=fingerprint (RFC 8842 §5.1)")
    if not any(value.split()[0].lower() in FINGERPRINT_BYTES for value in values):
        known = ", ".join(FINGERPRINT_BYTES)
        raise OfferError(f"{media.words} has no a=fingerprint of {known} (RFC 8122 §5)")
    role = media.get("setup") or session.get("setup")
    if role is None:
        raise OfferError(f"{media.words} has no a=setup (RFC 8842 §5.1)")
    if role not in setup:
        words = f"a=setup is {' or '.join(setup)} here (RFC 8842 §5.2)"
        raise OfferError(f"{media.words} has a=setup:{role}; {words}")


def _check_formats(media: _Section) -> None:
    mapped = {value.split()[0] for value in media.attributes.get("rtpmap", ())}
    for value in media.attributes.get("fmtp", ()):
        if value.split()[0] not in mapped:
            raise OfferError(f"a=fmtp:{_quoted(value)} has no a=rtpmap (RFC 8866 §6.15)")
    if media.kind == "application":
        if media.get("sctp-port") is None and media.protocol != "DTLS/SCTP":
            raise OfferError(f"{media.words} has no a=sctp-port (RFC 8841 §5.1)")
        return
    if media.get("rtcp-mux") is None:
        raise OfferError(f"{media.words} has no RTCP mux: a=rtcp-mux (RFC 5761 §5.1.1)")


def _check_bundle(session: _Section, media: list[_Section]) -> None:
    mids = [m.get("mid") for m in media]
    if len(media) > 1:
        for section in media:
            if section.get("mid") is None:
                raise OfferError(f"{section.words} has no a=mid (RFC 8843 §7.1)")
        if len(set(mids)) < len(mids):
            raise OfferError("two m-lines have the same a=mid (RFC 5888 §4)")
    for group in session.attributes.get("group", ()):
        semantics, *members = group.split()
        if semantics != "BUNDLE":
            continue
        for mid in members:
            if mid not in mids:
                raise OfferError(f"no m-line has the mid '{_quoted(mid)}' of the BUNDLE group")
        if len(set(members)) < len(members):
            raise OfferError("the BUNDLE group names a mid twice (RFC 8843 §7.1)")


# --- lines ---


def _sections(sdp: str) -> list[_Section]:
    """Returns what precedes the first m-line, and the m-lines."""
    lines = sdp.splitlines()
    if len(lines) > MAX_LINES:
        raise OfferError(f"more than {MAX_LINES} lines")
    sections = [_Section()]
    for line in lines:
        kind, _, value = line.partition("=")
        if kind == "m":
            sections.append(_media(value, len(sections)))
        elif kind == "a":
            name, _, argument = value.partition(":")
            _check_form(name, argument)
            sections[-1].attributes.setdefault(name, []).append(argument)
        elif kind == "c" and not _CONNECTION.fullmatch(value):
            raise OfferError(f"c={_quoted(value)} is not IN IP4|IP6 ADDRESS (RFC 8866 §5.7)")
        elif kind == "v" and value.strip() != "0":
            raise OfferError(f"v={_quoted(value)} is not v=0 (RFC 8866 §5.1)")
    return sections


def _media(value: str, number: int) -> _Section:
    found = _MEDIA.fullmatch(value)
    if found is None:
        raise OfferError(f"m={_quoted(value)} is not MEDIA PORT PROTO FMT… (RFC 8866 §5.14)")
    kind, port, protocol, formats = found.groups()
    section = _Section(kind, number, protocol)
    if kind not in KINDS:
        raise OfferError(f"{section.words} is neither audio, video nor data channels (application)")
    if int(port) > 65535:
        raise OfferError(f"{section.words} has the port {port}")
    if not PROTOCOLS[kind].fullmatch(protocol):
        words = "SRTP over DTLS" if kind != "application" else "SCTP over DTLS"
        raise OfferError(f"{section.words} is {_quoted(protocol)}, and not {words}")
    if kind != "application" or protocol == "DTLS/SCTP":
        highest = 65535 if kind == "application" else 127
        for fmt in formats.split():
            if not _is_number(fmt, highest) or (highest == 127 and int(fmt) in _RTCP_TYPES):
                raise OfferError(f"{section.words} has the format {_quoted(fmt)}")
    return section


def _check_form(name: str, value: str) -> None:
    form = _FORMS.get(name)
    if form is not None and not form.fits(value):
        raise OfferError(f"a={name}:{_quoted(value)} is not {form.words}")


def _quoted(value: str) -> str:
    """The start of a value, printable."""
    shown = value[:MAX_QUOTED] + ("…" if len(value) > MAX_QUOTED else "")
    return "".join(c if c.isprintable() else "�" for c in shown)


# --- forms of attributes ---


@dataclass(frozen=True, slots=True)
class _Form:
    words: str
    fits: Callable[[str], object]


def _form(words: str, pattern: str) -> _Form:
    return _Form(words, re.compile(pattern, re.ASCII).fullmatch)


def _is_number(text: str, highest: int) -> bool:
    return len(text) <= 10 and text.isascii() and text.isdigit() and int(text) <= highest


def _is_candidate(value: str) -> bool:
    fields = value.split()
    if len(fields) < 8 or fields[6] != "typ" or not _TOKEN.fullmatch(fields[2]):
        return False
    numbers = ((fields[1], 256), (fields[3], 2**32 - 1), (fields[5], 65535))
    if not all(_is_number(text, highest) for text, highest in numbers):
        return False
    extensions = dict(zip(fields[8::2], fields[9::2], strict=False))
    return _is_address(fields[4]) and _is_number(extensions.get("rport", "0"), 65535)


def _is_address(text: str) -> bool:
    """Whether this is an IP address without a zone, or a name."""
    try:
        return "%" not in text and bool(ip_address(text).packed)
    except ValueError:
        return _NAME.fullmatch(text) is not None


def _is_fingerprint(value: str) -> bool:
    found = re.fullmatch(r"([\w-]+) ([0-9A-Fa-f]{2}(?::[0-9A-Fa-f]{2})*)\s*", value, re.ASCII)
    if found is None:
        return False
    size = FINGERPRINT_BYTES.get(found[1].lower())
    return size is None or len(found[2]) == 3 * size - 1


def _is_rtpmap(value: str) -> bool:
    return _RTPMAP.fullmatch(value) is not None and _is_number(value.split()[0], 127)


def _is_fmtp(value: str) -> bool:
    payload_type, space, parameters = value.partition(" ")
    pairs = [p.partition("=") for p in parameters.split(";")]
    return (
        bool(space)
        and _is_number(payload_type, 127)
        and all(_is_number(number.strip(), 2**31) for name, _, number in pairs if name in _INTEGERS)
    )


_MEDIA = re.compile(r"([^ ]+) (\d{1,5}) ([A-Z/]+) (.*\S.*)", re.ASCII)
_RTPMAP = re.compile(r"\d{1,3} [^/\s]+/\d{1,7}(/\d{1,3})?", re.ASCII)
_CONNECTION = re.compile(r"IN (IP4|IP6) [^ ]+")
_TOKEN = re.compile(r"[\w.+-]{1,32}", re.ASCII)
_NAME = re.compile(r"[\w.-]{1,253}", re.ASCII)
_FORMS = {
    "candidate": _Form(
        "FOUNDATION COMPONENT TRANSPORT PRIORITY ADDRESS PORT typ TYPE (RFC 8839 §5.1)",
        _is_candidate,
    ),
    "extmap": _form("ID URI (RFC 8285 §8)", r"\d{1,4}(/\w+)? \S+"),
    "fingerprint": _Form("HASH HEX:HEX:… of the hash's length (RFC 8122 §5)", _is_fingerprint),
    "fmtp": _Form("FORMAT PARAMETERS (RFC 8866 §6.15)", _is_fmtp),
    "group": _form("SEMANTICS MID… (RFC 5888 §5)", r"\S+( \S+)*\s*"),
    "ice-pwd": _form("22 to 256 of A-Za-z0-9+/ (RFC 8839 §5.4)", r"[A-Za-z0-9+/]{22,256}"),
    "ice-ufrag": _form("4 to 256 of A-Za-z0-9+/ (RFC 8839 §5.4)", r"[A-Za-z0-9+/]{4,256}"),
    "max-message-size": _form("a number (RFC 8841 §6.1)", r"\d{1,10}"),
    "mid": _form("a token (RFC 5888 §4)", r"[!#-'*+.\w^`{-~-]{1,64}"),
    "msid": _form("ID [APPDATA] (RFC 8830 §2)", r"\S+( \S+)?"),
    "msid-semantic": _form("SEMANTICS ID… (RFC 8830)", r" ?\S+( \S+)*\s*"),
    "rtcp": _form("PORT [IN IP4|IP6 ADDRESS] (RFC 3605 §2.1)", r"\d{1,5}( IN IP[46] \S+)?"),
    "rtcp-fb": _form("FORMAT VALUE (RFC 4585 §4.2)", r"(\*|\d{1,3}) \S.*"),
    "rtpmap": _Form("FORMAT NAME/CLOCKRATE (RFC 8866 §6.6)", _is_rtpmap),
    "sctp-port": _Form(
        "a port (RFC 8841 §5.1)", lambda value: _is_number(value, 65535) and int(value) > 0
    ),
    "sctpmap": _form("PORT NAME", r"\d{1,5} .+"),
    "setup": _form(
        "active, passive, actpass or holdconn (RFC 8842 §5)", r"act(ive|pass)|passive|holdconn"
    ),
    "ssrc": _form("SSRC ATTRIBUTE:VALUE (RFC 5576 §4.1)", r"\d{1,10} [^:\s]+:.*"),
    "ssrc-group": _form("SEMANTICS SSRC… (RFC 5576 §4.2)", r"\S+( \d{1,10})*\s*"),
}
"""The attributes that aiortc reads."""
