"""Session descriptions (RFC 8866): parsing and formatting.

What calls need is typed (origin, connection, media, the attributes of RFC 3264, 3605, 4568, 5761,
8122); every attribute is kept in order, known or not. Lines irrelevant to calls (i= u= e= p= t= r=
z= k=) are skipped. Malformed attributes are kept but treated as absent: the description is still
usable for a call without them.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from offhook.telephony.sip.messages.grammar import SipError

MAX_SDP_CHARACTERS = 65_536
"""Maximum length of a description, as long as a SIP message may be; an offer that is longer is
refused with 400, and a call with such an answer ends."""
MAX_LINES = 1_000
"""Maximum lines of a description, of which a browser's of audio and video has about 150; an offer
with more is refused with 400, and a call with such an answer ends."""
MAX_MEDIA = 32
"""Maximum media of a description; an offer with more is refused with 400, and a call with such an
answer ends."""
MAX_FORMATS = 128
"""Maximum formats in one m= line, as a payload type has seven bits: an offer with more is refused
with 400. Of a=rtpmap lines below it as many are read, and the rest is ignored."""

Attributes = tuple[tuple[str, str | None], ...]
"""(name, value) in order: names in lower case, None for a flag such as a=rtcp-mux."""

DIRECTIONS = ("sendrecv", "sendonly", "recvonly", "inactive")


_INHERITED = frozenset(
    ("direction", "fingerprint", "setup", "ice-ufrag", "ice-pwd", "ptime", "maxptime")
)


class SdpError(SipError):
    """The text is not a valid session description."""


@dataclass(frozen=True, slots=True)
class Origin:
    """The o= line (RFC 8866 §5.2)."""

    session_id: int
    version: int
    address: str
    username: str = "-"


@dataclass(frozen=True, slots=True)
class RtpMap:
    """Encoding name, clock rate and channels of a payload type (RFC 8866 §6.6)."""

    name: str
    """Lower case: "pcmu", "telephone-event"."""
    clock_rate: int
    """Hz."""
    channels: int = 1


STATIC_TYPES = {
    0: RtpMap("pcmu", 8000),
    8: RtpMap("pcma", 8000),
    9: RtpMap("g722", 8000),
    13: RtpMap("cn", 8000),
}
"""Static payload types (RFC 3551 §6) that are supported. G.722 counts at 8 kHz (§4.5.2)."""


@dataclass(frozen=True, slots=True)
class Media:
    """One m= line with the lines below it (RFC 8866 §5.14)."""

    kind: str
    """Lower case: "audio", "video"."""
    port: int
    """0 if the stream is rejected or ended (RFC 3264 §6)."""
    protocol: str
    """As received, "RTP/AVP" or "udptl": an answer repeats it (RFC 3264 §6), and some compare it as
    text. Use `profile` for comparisons."""
    formats: tuple[str, ...]
    connection: str | None = None
    """Address of its own c= line without TTL; None if it has none."""
    bandwidths: tuple[str, ...] = ()
    attributes: Attributes = field(default=(), repr=False)
    """Not in the repr: SRTP keys are among them."""

    @property
    def profile(self) -> str:
        """The protocol in upper case."""
        return self.protocol.upper()

    def attribute(self, name: str) -> str | None:
        """Return the first attribute of that name; "" for a flag, None if absent."""
        return next((value or "" for key, value in self.attributes if key == name), None)

    def attribute_values(self, name: str) -> list[str]:
        return [value or "" for key, value in self.attributes if key == name]

    @property
    def payloads(self) -> dict[int, RtpMap]:
        """Payload type → format in the m= line's order, including static types (RFC 3551 §6)
        without an rtpmap. 64 to 95 are left out: they would be taken for RTCP (RFC 5761 §4)."""
        mapped = dict(STATIC_TYPES)
        mapped.update(_rtpmaps(self.attribute_values("rtpmap")[:MAX_FORMATS]))
        numbers = (_number(text, 127) for text in self.formats)
        return {n: mapped[n] for n in numbers if n is not None and n in mapped and not 64 <= n < 96}

    @property
    def fmtp(self) -> dict[int, str]:
        """Payload type → format parameters (RFC 8866 §6.15)."""
        found: dict[int, str] = {}
        for value in self.attribute_values("fmtp"):
            number, _, parameters = value.partition(" ")
            payload_type = _number(number, 127)
            if payload_type is not None:
                found.setdefault(payload_type, parameters.strip())
        return found

    @property
    def ptime(self) -> int | None:
        """Milliseconds of audio per packet that the sender prefers (RFC 8866 §6.4)."""
        return _number(self.attribute("ptime") or "", 1000)

    @property
    def maxptime(self) -> int | None:
        return _number(self.attribute("maxptime") or "", 1000)

    @property
    def direction(self) -> str:
        """One of DIRECTIONS, from the sender's view; sendrecv by default (RFC 3264 §5.1)."""
        return next((name for name, _ in self.attributes if name in DIRECTIONS), "sendrecv")

    @property
    def rtcp(self) -> tuple[int, str | None] | None:
        """Port and, if different from the stream's, address of RTCP (RFC 3605)."""
        fields = (self.attribute("rtcp") or "").split()
        port = _number(fields[0], 65_535) if fields else None
        if not port:
            return None
        return port, fields[3].partition("/")[0] or None if len(fields) > 3 else None

    @property
    def rtcp_mux(self) -> bool:
        return self.attribute("rtcp-mux") is not None

    @property
    def setup(self) -> str | None:
        """DTLS role (RFC 4145 §4), in lower case."""
        value = self.attribute("setup")
        return None if value is None else value.lower()

    @property
    def fingerprints(self) -> tuple[tuple[str, str], ...]:
        """(Lower-case hash function, upper-case hex digest with colons) of the certificates its
        DTLS may use (RFC 8122 §5)."""
        found = []
        for value in self.attribute_values("fingerprint"):
            function, _, digest = value.partition(" ")
            found.append((function.lower(), digest.strip().upper()))
        return tuple(found)


@dataclass(frozen=True, slots=True)
class Description:
    """One session description."""

    origin: Origin | None = None
    """None if the o= line is missing or malformed; nothing here depends on it."""
    name: str = "-"
    connection: str | None = None
    """Address of the session's c= line without TTL."""
    bandwidths: tuple[str, ...] = ()
    attributes: Attributes = field(default=(), repr=False)
    media: tuple[Media, ...] = ()

    def resolved(self) -> tuple[Media, ...]:
        """Return the media with session-level defaults filled in: connection, direction, packet
        length, DTLS and ICE."""
        return tuple(self._resolve(media) for media in self.media)

    def _resolve(self, media: Media) -> Media:
        own = {_group(name) for name, _ in media.attributes}
        inherited = tuple(
            pair
            for pair in self.attributes
            if _group(pair[0]) in _INHERITED and _group(pair[0]) not in own
        )
        return replace(
            media,
            connection=media.connection or self.connection,
            attributes=media.attributes + inherited,
        )

    def __str__(self) -> str:
        lines = ["v=0"]
        if self.origin:
            o = self.origin
            address = _address(o.address)
            lines.append(f"o={o.username} {o.session_id} {o.version} {address}")
        lines.append(f"s={self.name}")
        lines += _common_lines(self.connection, self.bandwidths)
        lines.append("t=0 0")
        lines += _attribute_lines(self.attributes)
        for media in self.media:
            formats = "".join(f" {name}" for name in media.formats)
            lines.append(f"m={media.kind} {media.port} {media.protocol}{formats}")
            lines += _common_lines(media.connection, media.bandwidths)
            lines += _attribute_lines(media.attributes)
        return "\r\n".join(lines) + "\r\n"


def parse(text: str) -> Description:
    """Parse a description with lines ended by CRLF, LF or CR. Raises SdpError if it is too long,
    not version 0, or has a malformed m= or c= line."""
    if len(text) > MAX_SDP_CHARACTERS:
        raise SdpError(f"SDP is longer than {MAX_SDP_CHARACTERS} characters")
    lines = [
        line for line in text.replace("\r\n", "\n").replace("\r", "\n").split("\n") if line.strip()
    ]
    if len(lines) > MAX_LINES:
        raise SdpError(f"SDP has more than {MAX_LINES} lines")
    if not lines or lines[0].rstrip() != "v=0":
        raise SdpError("SDP does not start with v=0")
    reader = _Reader()
    for line in lines[1:]:
        if line[1:2] == "=":
            reader.read_line(line[0], line[2:].strip())
    return reader.description()


class _Section:
    """The lines of the session or of one media section, during parsing."""

    def __init__(self) -> None:
        self.connection: str | None = None
        self.bandwidths: list[str] = []
        self.attributes: list[tuple[str, str | None]] = []

    def read_line(self, letter: str, value: str) -> None:
        if letter == "c" and self.connection is None:
            self.connection = _connection(value)
        elif letter == "b":
            self.bandwidths.append(value)
        elif letter == "a":
            name, colon, text = value.partition(":")
            name = name.strip().lower()
            if name or colon:
                self.attributes.append((name, text.strip() if colon else None))


class _Reader:
    def __init__(self) -> None:
        self._origin: Origin | None = None
        self._name = "-"
        self._session = _Section()
        self._media: list[tuple[Media, _Section]] = []
        self._section = self._session

    def read_line(self, letter: str, value: str) -> None:
        if letter == "m":
            if len(self._media) == MAX_MEDIA:
                raise SdpError(f"SDP has more than {MAX_MEDIA} media")
            self._section = _Section()
            self._media.append((_media(value), self._section))
        elif letter == "o" and not self._origin:
            self._origin = _origin(value)
        elif letter == "s":
            self._name = value
        else:
            self._section.read_line(letter, value)

    def description(self) -> Description:
        return Description(
            self._origin,
            self._name,
            self._session.connection,
            tuple(self._session.bandwidths),
            tuple(self._session.attributes),
            tuple(
                replace(
                    media,
                    connection=section.connection,
                    bandwidths=tuple(section.bandwidths),
                    attributes=tuple(section.attributes),
                )
                for media, section in self._media
            ),
        )


def _origin(value: str) -> Origin | None:
    """Parse from the end: some phones put a name with spaces in the user field."""
    fields = value.split()
    if len(fields) < 6:
        return None
    *user, session_id, version, _, _, address = fields
    # More than 64 bits occur in practice and are harmless.
    numbers = [_number(text, 10**30) for text in (session_id, version)]
    if numbers[0] is None or numbers[1] is None:
        return None
    return Origin(numbers[0], numbers[1], address, " ".join(user))


def _connection(value: str) -> str:
    """Parse c=IN IP4 192.0.2.1, for multicast with /TTL (RFC 8866 §5.7)."""
    fields = value.split()
    address = fields[2].partition("/")[0] if len(fields) > 2 else ""
    if not address:
        raise SdpError(f"c={value[:60]!a} has no address")
    return address


def _media(value: str) -> Media:
    fields = value.split()
    if len(fields) < 3 or len(fields) > 3 + MAX_FORMATS or not value.isascii():
        raise SdpError(f"m={value[:60]!a} is malformed")
    kind, port_text, protocol, *formats = fields
    port = _number(port_text.partition("/")[0], 65_535)
    if port is None:
        raise SdpError(f"m={value[:60]!a} has no port")
    return Media(kind.lower(), port, protocol, tuple(formats))


def _rtpmaps(values: Iterable[str]) -> dict[int, RtpMap]:
    """Parse a=rtpmap:96 opus/48000/2; the first for a number counts."""
    found: dict[int, RtpMap] = {}
    for value in values:
        number, _, encoding = value.partition(" ")
        payload_type = _number(number, 127)
        name, *rest = (part.strip() for part in encoding.split("/", 3))
        clock_rate = _number(rest[0], 1_000_000) if rest else None
        if payload_type is None or not name or not clock_rate:
            continue
        channels = _number(rest[1], 255) if len(rest) > 1 else None
        found.setdefault(payload_type, RtpMap(name.lower(), clock_rate, channels or 1))
    return found


def _group(name: str) -> str:
    """Attributes that replace each other on the media level: the directions are one group."""
    return "direction" if name in DIRECTIONS else name


def _number(text: str, most: int) -> int | None:
    """A decimal number from 0 to `most`; None if it is anything else."""
    text = text.strip()
    if not (text.isascii() and text.isdigit() and len(text) <= 30):
        return None
    value = int(text)
    return value if value <= most else None


def _address(address: str) -> str:
    return f"IN {'IP6' if ':' in address else 'IP4'} {address}"


def _common_lines(connection: str | None, bandwidths: Iterable[str]) -> list[str]:
    lines = [f"c={_address(connection)}"] if connection else []
    return lines + [f"b={bandwidth}" for bandwidth in bandwidths]


def _attribute_lines(attributes: Attributes) -> list[str]:
    return [f"a={name}" if value is None else f"a={name}:{value}" for name, value in attributes]
