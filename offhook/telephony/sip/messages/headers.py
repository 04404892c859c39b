"""Header fields: typed values, and the list of them in a message (RFC 3261 §7.3, §20)."""

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
"""Maximum header lines in a message, folded ones counted once; a request with more is refused with
400, and a response is dropped."""
MAX_LINE_BYTES = 8_192
"""Maximum length of the start line or one unfolded header line, in which a UTF-8 character counts
as one; a request with a longer one is refused with 414 or 400, and a response is dropped."""
MAX_LIST_VALUES = 100
"""Maximum values in one list header, over all its lines; a request with more Via, Contact, Route or
Record-Route values is refused with 400, and of other headers the rest is ignored. A request has
passed at most as many proxies as its Max-Forwards allowed, by default 70."""
MAX_SEQUENCE_NUMBER = 2**31 - 1
"""Largest number in a CSeq (§8.1.1.5); a request with a larger one is refused with 400, and a
response is dropped."""

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
"""Compact forms; those without a comment are from RFC 3261 §7.3.3."""

_LISTS = """
accept accept-contact accept-encoding accept-language alert-info allow allow-events call-info
contact content-encoding content-language diversion error-info geolocation history-info
in-reply-to p-asserted-identity p-preferred-identity path proxy-require reason record-route
recv-info reject-contact request-disposition require route service-route supported unsupported via
warning
"""
"""Header fields whose grammar is a comma-separated list. Credentials and dates contain commas too
but are not lists."""

_LIST_KEYS = frozenset(_LISTS.split())
_SPELLING = {name.lower(): name for name in _NAMES.split()}
_KEYS = {
    **{name: name.lower() for name in _NAMES.split()},
    **{name.lower(): name.lower() for name in _NAMES.split()},
    **COMPACT_NAMES,
}


@dataclass(frozen=True, slots=True)
class NameAddr:
    """A name and URI with parameters, as in From, To, Contact, Route and Refer-To (§20)."""

    uri: Uri
    display_name: str = ""
    parameters: Params = ()
    """Parameters of the header field, not of the URI."""

    @classmethod
    def parse(cls, text: str) -> "NameAddr":
        """Parse one value. Raises SipError. Spaces inside <> and unquoted names of any characters
        but quotes are accepted."""
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
        """A URI without <>: its parameters are the header field's, and it may not contain a comma
        or a question mark (§20.10)."""
        address, semicolon, rest = text.strip(" \t").partition(";")
        if "," in address or "?" in address:
            raise SipError("a URI with a comma or a question mark is not in <>")
        return cls(Uri.parse(address.rstrip(" \t")), "", parse_parameters(semicolon + rest))

    def __str__(self) -> str:
        name = f"{quote(self.display_name)} " if self.display_name else ""
        return f"{name}<{self.uri}>{format_parameters(self.parameters)}"

    def parameter(self, name: str) -> str | None:
        """Return a parameter's value (name in lower case); "" if it has no value, None if
        absent."""
        return find_parameter(self.parameters, name)

    def with_parameter(self, name: str, value: str | None) -> "NameAddr":
        """Return a copy with the parameter set; None for one without a value."""
        return replace(self, parameters=replace_parameter(self.parameters, name, value))

    @property
    def tag(self) -> str:
        """The tag parameter; "" if there is none."""
        return self.parameter("tag") or ""


@dataclass(frozen=True, slots=True)
class Via:
    """One hop that a request has passed and its response passes back (§20.42)."""

    transport: str
    """Upper case: "UDP", "TCP", "TLS", "WS", "WSS" or an unknown one."""
    host: str
    port: int | None = None
    parameters: Params = ()

    @classmethod
    def parse(cls, text: str) -> "Via":
        """Parse one value. Raises SipError. The version is not checked: the start line's is what a
        message is rejected for."""
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
        """Return a parameter's value (name in lower case); "" if it has no value, None if
        absent."""
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
        """The port the request came from; "" while it is only requested (RFC 3581)."""
        return self.parameter("rport")


@dataclass(frozen=True, slots=True)
class CSeq:
    """The sequence number and method of a request (§20.16)."""

    number: int
    method: str

    @classmethod
    def parse(cls, text: str) -> "CSeq":
        """Parse the value. Raises SipError."""
        parts = text.replace("\t", " ").split(" ")
        parts = [part for part in parts if part] if len(parts) != 2 else parts
        if len(parts) != 2 or not is_token(parts[1]):
            raise SipError("a CSeq is not a number and a method")
        return cls(parse_number(parts[0], MAX_SEQUENCE_NUMBER), parts[1])

    def __str__(self) -> str:
        return f"{self.number} {self.method}"


class Headers:
    """The header fields of a message, in order.

    Names are matched in any case and in compact form, and written in their usual spelling. Values
    are the text received, without surrounding white space; bytes that are not UTF-8 are preserved
    (surrogateescape). A line break in a value set here becomes a space: it may come from a peer's
    URI, and would otherwise start a header field of its own.
    """

    __slots__ = ("_items", "_typed")

    def __init__(self, items: Iterable[tuple[str, str]] = ()) -> None:
        """Raises SipError for an invalid name."""
        self._items = [_item(name, value) for name, value in items]
        self._typed: dict[str, Any] = {}

    def get(self, name: str) -> str | None:
        """Return the value of the first line of this name, a list unsplit; None if absent."""
        key = _key(name)
        for other, _, value in self._items:
            if other == key:
                return value
        return None

    def all(self, name: str, limit: int = MAX_LIST_VALUES) -> list[str]:
        """Return the values of all lines of this name, lists split; the first `limit` of them."""
        key = _key(name)
        lines = [value for other, _, value in self._items if other == key]
        if key not in _LIST_KEYS:
            return lines[:limit]
        values: list[str] = []
        for line in lines:
            values += split_list(line, limit - len(values))
        return values

    def count(self, name: str) -> int:
        """Return how many lines have this name."""
        key = _key(name)
        return sum(other == key for other, _, _ in self._items)

    def typed(self, name: str, parse: Callable[["Headers"], _T]) -> _T:
        """Return what `parse` makes of the header fields of this name, cached until one of them
        changes."""
        key = _key(name)
        try:
            value: _T = self._typed[key]
        except KeyError:
            value = self._typed[key] = parse(self)
        return value

    def add(self, name: str, value: str) -> None:
        """Append a line. Raises SipError for an invalid name."""
        item = _item(name, value)
        self._items.append(item)
        self._typed.pop(item[0], None)

    def prepend(self, name: str, value: str) -> None:
        """Insert as the first line, as Via, Route and Record-Route are pushed. Raises SipError."""
        item = _item(name, value)
        self._items.insert(0, item)
        self._typed.pop(item[0], None)

    def set(self, name: str, *values: str) -> None:
        """Replace all lines of this name, at the place of the first, or append. Raises SipError for
        an invalid name."""
        key = _key(name)
        places = [i for i, item in enumerate(self._items) if item[0] == key]
        at = places[0] if places else len(self._items)
        self.remove(name)
        self._items[at:at] = [_item(name, value) for value in values]

    def remove(self, name: str) -> None:
        """Remove all lines of this name, if any."""
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
    """Split a header into lines. A line that starts with white space continues the previous one
    (§7.3.1)."""
    text = head.decode("utf-8", "surrogateescape")
    return text.replace("\r\n ", "  ").replace("\r\n\t", "  ").split("\r\n")


def read_headers(lines: list[str]) -> tuple[Headers, str]:
    """Parse the valid header fields. Also returns what is wrong with the first invalid one, or
    ""."""
    headers = Headers()
    problem = "Too Many Header Fields" if len(lines) > MAX_HEADERS else ""
    for line in lines[:MAX_HEADERS]:
        name, colon, value = line.partition(":")
        if len(line) > MAX_LINE_BYTES:
            problem = problem or "Header Field Too Long"
        elif not colon:
            problem = problem or "Header Field Without a Colon"
        else:
            try:
                headers.add(name.rstrip(" \t"), value.strip(" \t"))
            except SipError:
                problem = problem or "Malformed Header Field Name"
    return headers, problem


def media_type(value: str) -> str:
    """Return the type of a Content-Type or Content-Disposition, in lower case without
    parameters."""
    return value.partition(";")[0].strip(" \t").lower()
