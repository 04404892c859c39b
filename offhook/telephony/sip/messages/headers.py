"""Header fields: the typed values and the list of them in a message (RFC 3261 §7.3, §20)."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from offhook.telephony.sip.messages.grammar import (
    Params,
    SipError,
    end_of_quoted,
    find_parameter,
    format_host_port,
    format_parameters,
    is_token,
    parse_host_port,
    parse_number,
    parse_parameters,
    quote,
    replace_parameter,
    split_list,
    unquote,
)
from offhook.telephony.sip.messages.uri import Uri

MAX_HEADERS = 100
"""Lines of the header of a message, folded ones counted once."""
MAX_LINE_BYTES = 8_192
"""Of the start line or of one header line, unfolded; a character of UTF-8 counts as one."""
MAX_LIST_VALUES = 100
"""Values of one header field that is a list, over all its lines. A request has passed at most as
many proxies as its Max-Forwards allowed, by default 70."""
MAX_SEQUENCE_NUMBER = 2**31 - 1
"""Of a CSeq (§8.1.1.5)."""

_T = TypeVar("_T")

_NAMES = """
Accept Accept-Contact Accept-Encoding Accept-Language Alert-Info Allow Allow-Events
Authentication-Info Authorization Call-ID Call-Info Contact Content-Disposition Content-Encoding
Content-ID Content-Language Content-Length Content-Transfer-Encoding Content-Type CSeq Date
Diversion Error-Info Event Expires From Geolocation History-Info Identity Identity-Info
In-Reply-To Join Max-Forwards MIME-Version Min-Expires Min-SE Organization P-Access-Network-Info
P-Asserted-Identity P-Charging-Vector P-Preferred-Identity Path Priority Privacy
Proxy-Authenticate Proxy-Authorization Proxy-Require RAck Reason Record-Route Recv-Info Refer-Sub
Refer-To Referred-By Reject-Contact Remote-Party-ID Replaces Reply-To Request-Disposition Require
Retry-After Route RSeq Server Service-Route Session-Expires SIP-ETag SIP-If-Match Subject
Subscription-State Supported Target-Dialog Timestamp To Unsupported User-Agent User-to-User Via
Warning WWW-Authenticate
"""

COMPACT_NAMES = {
    "a": "accept-contact",  # RFC 3841
    "b": "referred-by",  # RFC 3892
    "c": "content-type",
    "d": "request-disposition",  # RFC 3841
    "e": "content-encoding",
    "f": "from",
    "i": "call-id",
    "j": "reject-contact",  # RFC 3841
    "k": "supported",
    "l": "content-length",
    "m": "contact",
    "n": "identity-info",  # RFC 4474
    "o": "event",  # RFC 6665
    "r": "refer-to",  # RFC 3515
    "s": "subject",
    "t": "to",
    "u": "allow-events",  # RFC 6665
    "v": "via",
    "x": "session-expires",  # RFC 4028
    "y": "identity",  # RFC 8224
}
"""Those without a number: RFC 3261 §7.3.3."""

_LISTS = """
accept accept-contact accept-encoding accept-language alert-info allow allow-events call-info
contact content-encoding content-language diversion error-info geolocation history-info
in-reply-to p-asserted-identity p-preferred-identity path proxy-require reason record-route
recv-info reject-contact request-disposition require route service-route supported unsupported via
warning
"""
"""Header fields whose grammar is a comma-separated list. Credentials and dates have commas too but
are not among them."""

_LIST_KEYS = frozenset(_LISTS.split())
_SPELLING = {name.lower(): name for name in _NAMES.split()}
_KEYS = {
    **{name: name.lower() for name in _NAMES.split()},
    **{name.lower(): name.lower() for name in _NAMES.split()},
    **COMPACT_NAMES,
}


@dataclass(frozen=True, slots=True)
class NameAddr:
    """A name and a URI with parameters, as in From, To, Contact, Route and Refer-To (§20)."""

    uri: Uri
    display_name: str = ""
    parameters: Params = ()
    """Of the header field, not of the URI."""

    @classmethod
    def parse(cls, text: str) -> "NameAddr":
        """Read one value. Raises SipError. Spaces inside <> and unquoted names of any characters
        but quotes are let pass."""
        opening = text.find("<")
        if opening < 0:
            return cls._parse_bare(text)
        name = text[:opening].strip(" \t")
        if name.startswith('"'):
            end = end_of_quoted(text, text.index('"'))
            opening = text.find("<", end)
            if opening < 0 or text[end:opening].strip(" \t"):
                raise SipError("no <URI> follows the display name")
            display_name = unquote(text[:end].lstrip(" \t"))
        elif '"' in name:
            raise SipError("a display name has a quote inside")
        else:
            display_name = name
        closing = text.find(">", opening)
        if closing < 0:
            raise SipError("a URI is not closed by >")
        uri = Uri.parse(text[opening + 1 : closing].strip(" \t"))
        return cls(uri, display_name, parse_parameters(text[closing + 1 :]))

    @classmethod
    def _parse_bare(cls, text: str) -> "NameAddr":
        """A URI without <>: its parameters are the header field's, and it may have neither a
        comma nor a question mark (§20.10)."""
        address, semicolon, rest = text.strip(" \t").partition(";")
        if "," in address or "?" in address:
            raise SipError("a URI with a comma or a question mark is not in <>")
        return cls(Uri.parse(address.rstrip(" \t")), "", parse_parameters(semicolon + rest))

    def __str__(self) -> str:
        name = f"{quote(self.display_name)} " if self.display_name else ""
        return f"{name}<{self.uri}>{format_parameters(self.parameters)}"

    def parameter(self, name: str) -> str | None:
        """The value of a parameter (name in lower case), "" for one without a value."""
        return find_parameter(self.parameters, name)

    def with_parameter(self, name: str, value: str | None) -> "NameAddr":
        """With the parameter set; None for one without a value."""
        return replace(self, parameters=replace_parameter(self.parameters, name, value))

    @property
    def tag(self) -> str:
        """ "" when there is none."""
        return self.parameter("tag") or ""


@dataclass(frozen=True, slots=True)
class Via:
    """One hop a request has come by, and its response goes back by (§20.42)."""

    transport: str
    """In upper case: "UDP", "TCP", "TLS", "WS", "WSS" or one unknown here."""
    host: str
    port: int | None = None
    parameters: Params = ()

    @classmethod
    def parse(cls, text: str) -> "Via":
        """Read one value. Raises SipError. The version is not looked at: the start line's is what
        a message is refused for."""
        protocol, _, rest = text.partition("/")
        version, slash, rest = rest.partition("/")
        if (
            not slash
            or protocol.strip(" \t").upper() != "SIP"
            or not is_token(version.strip(" \t"))
        ):
            raise SipError(f"{text[:24]!r} does not begin a Via")
        sent_by, semicolon, parameters = rest.strip(" \t").partition(";")
        transport, _, place = sent_by.replace("\t", " ").partition(" ")
        if not is_token(transport):
            raise SipError(f"{transport[:24]!r} is not a transport")
        host, port = parse_host_port(place.strip(" "))
        return cls(transport.upper(), host, port, parse_parameters(semicolon + parameters))

    def __str__(self) -> str:
        place = format_host_port(self.host, self.port)
        return f"SIP/2.0/{self.transport} {place}{format_parameters(self.parameters)}"

    def parameter(self, name: str) -> str | None:
        """The value of a parameter (name in lower case), "" for one without a value."""
        return find_parameter(self.parameters, name)

    @property
    def branch(self) -> str | None:
        return self.parameter("branch")

    @property
    def received(self) -> str | None:
        """The address the request came from (§18.2.1)."""
        return self.parameter("received")

    @property
    def rport(self) -> str | None:
        """The port the request came from; "" while it is only asked for (RFC 3581)."""
        return self.parameter("rport")


@dataclass(frozen=True, slots=True)
class CSeq:
    """The place of a request in its dialog (§20.16)."""

    number: int
    method: str

    @classmethod
    def parse(cls, text: str) -> "CSeq":
        """Raises SipError."""
        parts = text.replace("\t", " ").split(" ")
        parts = [part for part in parts if part] if len(parts) != 2 else parts
        if len(parts) != 2 or not is_token(parts[1]):
            raise SipError("a CSeq is not a number and a method")
        return cls(parse_number(parts[0], MAX_SEQUENCE_NUMBER), parts[1])

    def __str__(self) -> str:
        return f"{self.number} {self.method}"


class Headers:
    """The header fields of a message in their order.

    Names are found in any case and in their compact form, and are written in their usual spelling.
    Values are text as it came, without the white space around it; bytes that are not UTF-8 are
    kept (surrogateescape). A line break in a value given here becomes a space: it may have come
    out of a peer's URI, and would otherwise begin a header field of its own.
    """

    __slots__ = ("_items", "_typed")

    def __init__(self, items: Iterable[tuple[str, str]] = ()) -> None:
        """Raises SipError when a name is not one."""
        self._items = [_item(name, value) for name, value in items]
        self._typed: dict[str, Any] = {}

    def get(self, name: str) -> str | None:
        """The value of the first line of this name, whole also when it is a list."""
        key = _key(name)
        for other, _, value in self._items:
            if other == key:
                return value
        return None

    def all(self, name: str, limit: int = MAX_LIST_VALUES) -> list[str]:
        """The values of all lines of this name, lists taken apart; the first `limit` of them."""
        key = _key(name)
        lines = [value for other, _, value in self._items if other == key]
        if key not in _LIST_KEYS:
            return lines[:limit]
        values: list[str] = []
        for line in lines:
            values += split_list(line, limit - len(values))
        return values

    def count(self, name: str) -> int:
        """How many lines have this name."""
        key = _key(name)
        return sum(other == key for other, _, _ in self._items)

    def typed(self, name: str, parse: Callable[["Headers"], _T]) -> _T:
        """What `parse` makes of the header fields of this name, kept until one of them changes."""
        key = _key(name)
        try:
            value: _T = self._typed[key]
        except KeyError:
            value = self._typed[key] = parse(self)
        return value

    def add(self, name: str, value: str) -> None:
        """As the last line. Raises SipError when the name is not one."""
        item = _item(name, value)
        self._items.append(item)
        self._typed.pop(item[0], None)

    def prepend(self, name: str, value: str) -> None:
        """As the first line, as Via, Route and Record-Route are pushed. Raises SipError."""
        item = _item(name, value)
        self._items.insert(0, item)
        self._typed.pop(item[0], None)

    def set(self, name: str, *values: str) -> None:
        """In place of the first line of this name, or as the last; its other lines go. Raises
        SipError when the name is not one."""
        key = _key(name)
        places = [i for i, item in enumerate(self._items) if item[0] == key]
        at = places[0] if places else len(self._items)
        self.remove(name)
        self._items[at:at] = [_item(name, value) for value in values]

    def remove(self, name: str) -> None:
        """All lines of this name, if there are any."""
        key = _key(name)
        self._items = [item for item in self._items if item[0] != key]
        self._typed.pop(key, None)

    def items(self) -> list[tuple[str, str]]:
        return [(name, value) for _, name, value in self._items]

    def copy(self) -> "Headers":
        headers = Headers()
        headers._items = list(self._items)
        headers._typed = dict(self._typed)
        return headers

    def __contains__(self, name: str) -> bool:
        key = _key(name)
        return any(item[0] == key for item in self._items)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Headers) and self._items == other._items

    def __repr__(self) -> str:
        """Names only: values may be credentials."""
        return f"Headers({', '.join(name for _, name, _ in self._items)})"


def _key(name: str) -> str:
    key = _KEYS.get(name)
    if key is None:
        lower = name.lower()
        key = _KEYS.get(lower, lower)
    return key


def _item(name: str, value: str) -> tuple[str, str, str]:
    key = _key(name)
    spelling = _SPELLING.get(key)
    if spelling is None:
        if not is_token(name):
            raise SipError(f"{name[:24]!r} is not the name of a header field")
        spelling = name
    if "\n" in value or "\r" in value:
        value = value.replace("\r", " ").replace("\n", " ")
    return key, spelling, value


def unfold(head: bytes) -> list[str]:
    """The lines of a header. One that begins with white space goes on with the one before it
    (§7.3.1)."""
    text = head.decode("utf-8", "surrogateescape")
    return text.replace("\r\n ", "  ").replace("\r\n\t", "  ").split("\r\n")


def read_headers(lines: list[str]) -> tuple[Headers, str]:
    """The header fields as far as they can be read, and what is wrong with the first that cannot,
    "" when nothing is."""
    headers = Headers()
    trouble = "Too Many Header Fields" if len(lines) > MAX_HEADERS else ""
    for line in lines[:MAX_HEADERS]:
        name, colon, value = line.partition(":")
        if len(line) > MAX_LINE_BYTES:
            trouble = trouble or "Header Field Too Long"
        elif not colon:
            trouble = trouble or "Header Field Without a Colon"
        else:
            try:
                headers.add(name.rstrip(" \t"), value.strip(" \t"))
            except SipError:
                trouble = trouble or "Malformed Header Field Name"
    return headers, trouble


def media_type(value: str) -> str:
    """The type a Content-Type or Content-Disposition begins with, in lower case."""
    return value.partition(";")[0].strip(" \t").lower()
