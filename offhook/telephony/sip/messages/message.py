"""SIP messages: parsing, responding and serializing (RFC 3261 §7, §8.2.6, §20)."""

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import TypeVar

from offhook.telephony.sip.messages.grammar import SipError, is_token, parse_number
from offhook.telephony.sip.messages.headers import (
    MAX_LINE_BYTES,
    MAX_LIST_VALUES,
    CSeq,
    Headers,
    NameAddr,
    Via,
    media_type,
    read_headers,
    unfold,
)
from offhook.telephony.sip.messages.multipart import part_of
from offhook.telephony.sip.messages.reasons import CLASS_REASONS, REASONS
from offhook.telephony.sip.messages.uri import Uri

MAX_MESSAGE_BYTES = 65_536
"""Maximum size of header and body together, the largest UDP datagram; a longer message on a stream
or WebSocket closes the connection, and any other request is refused with 513."""
MAX_SEPARATORS = 4_096
"""Maximum separators and escapes in a header, each of which needs time to parse; a message with
more is dropped. A REGISTER response with a hundred phones has about a thousand."""

_T = TypeVar("_T")

_SEPARATORS = (b";", b",", b'"', b"<", b"\\", b"%", b"&")
_LINE_BREAKS = re.compile(rb"(?:\r\n)+")
_MAKES_DIALOG = frozenset({"INVITE", "SUBSCRIBE", "REFER"})
_ONCE = ("From", "To", "Call-ID", "CSeq", "Max-Forwards", "Content-Length", "Content-Type")
_SCHEMES = frozenset({"sip", "sips", "tel"})
"""Schemes a request may be for; others are answered with 416 (§8.2.2.1)."""


class Message:
    """Common part of requests and responses: header fields and a body.

    Properties of a message returned by parse_message do not raise; those of one built here raise
    SipError if the header field is missing or malformed.
    """

    headers: Headers
    body: bytes

    @property
    def via(self) -> Via:
        """The topmost Via."""
        return self._vias[0]

    @property
    def vias(self) -> list[Via]:
        return list(self._vias)

    @property
    def _vias(self) -> tuple[Via, ...]:
        return self.headers.typed("Via", _read_vias)

    @property
    def from_(self) -> NameAddr:
        return self.headers.typed("From", _read_from)

    @property
    def to(self) -> NameAddr:
        return self.headers.typed("To", _read_to)

    @property
    def call_id(self) -> str:
        return _required(self.headers, "Call-ID")

    @property
    def cseq(self) -> CSeq:
        return self.headers.typed("CSeq", _read_cseq)

    @property
    def contacts(self) -> list[NameAddr]:
        """Empty also for "*", with which a REGISTER removes all bindings."""
        return list(self.headers.typed("Contact", _read_contacts))

    @property
    def routes(self) -> list[NameAddr]:
        return list(self.headers.typed("Route", _read_routes))

    @property
    def record_routes(self) -> list[NameAddr]:
        return list(self.headers.typed("Record-Route", _read_record_routes))

    @property
    def max_forwards(self) -> int | None:
        """0..255; None if absent, as from senders older than RFC 3261."""
        value = self.headers.get("Max-Forwards")
        return None if value is None else parse_number(value, 255)

    @property
    def expires(self) -> int | None:
        """Seconds, at most 32 bits; None if absent or not a number (§20.19)."""
        value = self.headers.get("Expires") or ""
        if not (value.isascii() and value.isdigit()):
            return None
        digits = value.lstrip("0")
        return min(int(digits or "0"), 2**32 - 1) if len(digits) <= 10 else 2**32 - 1

    @property
    def content_type(self) -> str:
        """Type and subtype in lower case; "" if absent."""
        return media_type(self.headers.get("Content-Type") or "")

    @property
    def supported(self) -> list[str]:
        """Option tags of Supported, in lower case."""
        return [tag.lower() for tag in self.headers.all("Supported")]

    @property
    def require(self) -> list[str]:
        """Option tags of Require, in lower case."""
        return [tag.lower() for tag in self.headers.all("Require")]

    @property
    def allow(self) -> list[str]:
        """Methods of Allow."""
        return self.headers.all("Allow")

    def _start_line(self) -> str:
        raise NotImplementedError

    def serialize(self) -> bytes:
        """Return the message as sent, with the right Content-Length."""
        lines = [self._start_line().replace("\r", " ").replace("\n", " ")]
        length = f"Content-Length: {len(self.body)}"
        for name, value in self.headers.items():
            lines.append(f"{name}: {value}" if name != "Content-Length" else length)
        if "Content-Length" not in self.headers:
            lines.append(length)
        lines.append("\r\n")
        return "\r\n".join(lines).encode("utf-8", "surrogateescape") + self.body


@dataclass
class Request(Message):
    method: str
    """Case-sensitive (§7.1)."""
    uri: Uri
    headers: Headers = field(default_factory=Headers)
    body: bytes = field(default=b"", repr=False)

    def _start_line(self) -> str:
        return f"{self.method} {self.uri} SIP/2.0"


@dataclass
class Response(Message):
    status: int
    """100..699."""
    reason: str
    headers: Headers = field(default_factory=Headers)
    body: bytes = field(default=b"", repr=False)

    def _start_line(self) -> str:
        return f"SIP/2.0 {self.status} {self.reason}"


class MessageError(SipError):
    """Received data is not a SIP message, or is one that must be rejected."""

    def __init__(self, status: int, reason: str, request: Request | None) -> None:
        super().__init__(f"{status} {reason}")
        self.status = status
        self.reason = reason
        self.request = request
        """Request to pass to respond(), None if no response can or may be sent. Its topmost Via is
        valid; its other header fields may be missing or malformed."""


def parse_message(data: bytes) -> Request | Response:
    """Parse one datagram, or one message from a stream. Leading line breaks and bytes beyond the
    body's length are ignored (§7.5, §18.3). Raises MessageError."""
    head, body, problem = _split_message(data)
    lines = unfold(head)
    headers, trouble = read_headers(lines[1:])
    message: Request | Response
    if lines[0][:4].upper() == "SIP/":
        message, start_problem = _read_status_line(lines[0], headers)
    else:
        message, start_problem = _read_request_line(lines[0], headers)
    problem = problem or start_problem or ((400, trouble) if trouble else None)
    problem = problem or _check(message) or _set_body(message, body)
    if problem:
        raise MessageError(*problem, _answerable(message))
    return message


_Problem = tuple[int, str] | None
"""Status and reason of the response that rejects the message."""


def _split_message(data: bytes) -> tuple[bytes, bytes, _Problem]:
    """Split header and body. Raises MessageError for a header that would take too long to parse."""
    problem: _Problem = None
    if len(data) > MAX_MESSAGE_BYTES:
        data, problem = data[:MAX_MESSAGE_BYTES], (513, REASONS[513])
    breaks = _LINE_BREAKS.match(data)
    start = breaks.end() if breaks else 0
    end = data.find(b"\r\n\r\n", start)
    if end < 0:
        end, problem = len(data), problem or (400, "No Empty Line After the Header")
    head = data[start:end]
    if sum(map(head.count, _SEPARATORS)) > MAX_SEPARATORS:
        raise MessageError(400, "Too Many Values and Parameters", None)
    if not head.count(b"\r\n") == head.count(b"\r") == head.count(b"\n"):
        problem = problem or (400, "Bare CR or LF in the Header")
    return head, data[end + 4 :], problem


def _read_request_line(line: str, headers: Headers) -> tuple[Request, _Problem]:
    """Parse a request line: single spaces between the three parts and none around them (§7.1)."""
    method, _, rest = line.partition(" ")
    address, _, version = rest.partition(" ")
    request = Request(method if is_token(method) else "", Uri("sip"), headers)
    if len(line) > MAX_LINE_BYTES:
        return request, (414, REASONS[414])
    if not request.method or not version or " " in version:
        return request, (400, "Malformed Request-Line")
    if version.upper() != "SIP/2.0":
        known = version[:4].upper() == "SIP/"
        return request, (505, REASONS[505]) if known else (400, "Malformed Request-Line")
    try:
        request.uri = Uri.parse(address)
    except SipError:
        return request, (400, "Malformed Request-URI")
    if request.uri.headers:
        return request, (400, "Header Fields in the Request-URI")  # §19.1.1
    if request.uri.scheme not in _SCHEMES:
        return request, (416, REASONS[416])
    return request, None


def _read_status_line(line: str, headers: Headers) -> tuple[Response, _Problem]:
    """Parse a status line (§7.2). The reason, and then its space, may be missing."""
    version, _, rest = line.partition(" ")
    code, _, reason = rest.partition(" ")
    response = Response(0, reason, headers)
    if version.upper() != "SIP/2.0":
        return response, (505, REASONS[505])
    if not (len(code) == 3 and code.isascii() and code.isdigit() and "1" <= code[0] <= "6"):
        return response, (400, "Malformed Status-Line")
    response.status = int(code)
    return response, None


def _check(message: Request | Response) -> _Problem:
    """Check that all header fields with a property are valid."""
    headers = message.headers
    for name in _ONCE:
        if headers.count(name) > 1:
            return 400, f"More Than One {name}"
    for name, read in _CHECKS:
        try:
            read(message)
        except SipError:
            return 400, f"{'Malformed' if name in headers else 'Missing'} {name}"
    if isinstance(message, Request) and message.cseq.method != message.method:
        return 400, "Method of CSeq Is Not the Request's"
    return None


def _set_body(message: Message, body: bytes) -> _Problem:
    """Cut the body to Content-Length; without one, a datagram's body extends to its end (§18.3)."""
    length = message.headers.get("Content-Length")
    size = len(body)
    if length is not None:
        try:
            size = parse_number(length, MAX_MESSAGE_BYTES)
        except SipError:
            return 400, "Malformed Content-Length"
    if size > len(body):
        return 400, "Body Shorter Than Content-Length"
    message.body = body[:size]
    return None


def _answerable(message: Request | Response) -> Request | None:
    """The request, if its sender waits for a response and can be reached: not for an ACK (§17)."""
    if not isinstance(message, Request) or message.method == "ACK":
        return None
    try:
        message.via  # noqa: B018
    except SipError:
        return None
    return message


def _required(headers: Headers, name: str) -> str:
    value = headers.get(name)
    if not value:
        raise SipError(f"no {name}")
    return value


def _read_vias(headers: Headers) -> tuple[Via, ...]:
    values = _read_list(headers, "Via", Via.parse)
    if not values:
        raise SipError("no Via")
    return values


def _read_from(headers: Headers) -> NameAddr:
    return NameAddr.parse(_required(headers, "From"))


def _read_to(headers: Headers) -> NameAddr:
    return NameAddr.parse(_required(headers, "To"))


def _read_cseq(headers: Headers) -> CSeq:
    return CSeq.parse(_required(headers, "CSeq"))


def _read_contacts(headers: Headers) -> tuple[NameAddr, ...]:
    if headers.get("Contact") == "*":
        return ()
    return _read_list(headers, "Contact", NameAddr.parse)


def _read_routes(headers: Headers) -> tuple[NameAddr, ...]:
    return _read_list(headers, "Route", NameAddr.parse)


def _read_record_routes(headers: Headers) -> tuple[NameAddr, ...]:
    return _read_list(headers, "Record-Route", NameAddr.parse)


def _read_list(headers: Headers, name: str, parse: Callable[[str], _T]) -> tuple[_T, ...]:
    values = headers.all(name, MAX_LIST_VALUES + 1)
    if len(values) > MAX_LIST_VALUES:
        raise SipError(f"more than {MAX_LIST_VALUES} values of {name}")
    return tuple(parse(value) for value in values)


_CHECKS: tuple[tuple[str, Callable[[Message], object]], ...] = (
    ("Via", lambda message: message.via),
    ("From", lambda message: message.from_),
    ("To", lambda message: message.to),
    ("Call-ID", lambda message: message.call_id),
    ("CSeq", lambda message: message.cseq),
    ("Max-Forwards", lambda message: message.max_forwards),
    ("Contact", lambda message: message.headers.typed("Contact", _read_contacts)),
    ("Route", lambda message: message.headers.typed("Route", _read_routes)),
    ("Record-Route", lambda message: message.headers.typed("Record-Route", _read_record_routes)),
)


def respond(
    request: Request,
    status: int,
    reason: str = "",
    *,
    to_tag: str = "",
    headers: Iterable[tuple[str, str]] = (),
    body: bytes = b"",
    content_type: str = "",
) -> Response:
    """Build a response (§8.2.6): Via, From, To, Call-ID and CSeq are copied, `to_tag` is added to a
    To without one, and Record-Route is copied if a dialog may result (§12.1.1).

    Also usable for the request of a MessageError. `reason` defaults to the standard phrase.
    """
    copied = ["Via", "From", "To", "Call-ID", "CSeq"]
    if request.method in _MAKES_DIALOG and 101 <= status <= 299:
        copied.append("Record-Route")
    if status == 100:
        copied.append("Timestamp")
    items: list[tuple[str, str]] = []
    for name in copied:
        items += [(name, value) for value in request.headers.all(name)]
    answer = Headers(items)
    if to_tag:
        _add_tag(answer, to_tag)
    for name, value in headers:
        answer.add(name, value)
    if content_type:
        answer.add("Content-Type", content_type)
    reason = reason or REASONS.get(status) or CLASS_REASONS[status // 100]
    return Response(status, reason, answer, body)


def _add_tag(headers: Headers, tag: str) -> None:
    to = headers.get("To") or ""
    try:
        tagged = NameAddr.parse(to).parameter("tag") is not None
    except SipError:
        return  # sent back unchanged
    if not tagged:
        headers.set("To", f"{to};tag={tag}")


def sdp_of(message: Message) -> str | None:
    """Return the session description in the body, or in a part of a multipart body; None if there
    is none."""
    encoding = message.headers.get("Content-Encoding") or "identity"
    if not message.body or encoding.lower() != "identity":
        return None
    part = part_of(message.headers.get("Content-Type") or "", message.body, "application/sdp")
    return None if part is None else part.decode("utf-8", "surrogateescape")
