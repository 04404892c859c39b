"""The trace of recent SIP messages: as a ladder diagram and in full.

Secrets are masked before a message is stored: digest responses, media keys, passwords in URIs, and
bodies not about call setup (text messages, dialled digits). Anything not known to be harmless
counts as secret.

What is stored can be shown, written as a pcap file, and exported to a collector as it comes.
"""

import re
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime

from offhook.telephony.sip.auth.credentials import parse_parameters
from offhook.telephony.sip.capture.packet import Captured
from offhook.telephony.sip.capture.pcap import capture
from offhook.telephony.sip.messages.flow import Flow, TransportName
from offhook.telephony.sip.messages.grammar import SipError, quote

MAX_MESSAGE_BYTES = 16_384
"""Limit of one stored message; the rest is cut off."""
MAX_BYTES = 8 * 1024 * 1024
"""Limit of all stored messages; the oldest are dropped."""
FIRST_LINE_WIDTH = 60
CALL_ID_WIDTH = 16
"""Width of the Call-ID in the ladder, in characters."""
MASK = "***"

_SHOWN_PARAMETERS = frozenset({"username", "realm", "uri", "algorithm", "qop", "nc"})
"""Parameters of credentials that are shown; response, cnonce and nonce could be used to guess the
password."""
_BODIES = ("application/sdp", "multipart/", "message/sipfrag")
"""Content types whose bodies are shown."""
_CRYPTO_NAME = re.compile(r"a=crypto:[0-9]{1,9} [A-Z0-9_]{1,40}(?= )")
_SDP_SECRETS = ("a=ice-pwd:", "a=key-mgmt:", "k=")
_LENGTH = re.compile(r"(^(?:Content-Length|l)[ \t]{0,8}:[ \t]{0,8})[0-9]{1,10}", re.I | re.M)
# bounded quantifiers keep matching linear in the text
_URI_PASSWORD = re.compile(r'(sips?:[^@\s:<>"]{1,256}):[^@\s<>"]{1,256}@', re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class TraceEntry:
    """One message sent or received, without its secrets."""

    time: float
    """Seconds since 1970."""
    sent: bool
    transport: TransportName
    local: tuple[str, int]
    """Numeric address and port."""
    remote: tuple[str, int]
    first_line: str
    cseq: str
    call_id: str
    text: str

    def captured(self) -> Captured:
        """Return the message as a packet: as it was on the wire, but for its secrets, a
        Content-Length that fits what is left of the body, and characters that are not UTF-8."""
        head, _, body = self.text.partition("\n\n")
        payload = (body.replace("\n", "\r\n") + "\r\n").encode() if body else b""
        head = _LENGTH.sub(rf"\g<1>{len(payload)}", head, count=1)
        message = (head.replace("\n", "\r\n") + "\r\n\r\n").encode() + payload
        source, destination = (self.local, self.remote) if self.sent else (self.remote, self.local)
        return Captured(self.time, self.transport, source, destination, message)


class Trace:
    """Stores the last `limit_messages` messages; 0 stores none."""

    def __init__(self, limit_messages: int) -> None:
        self.export: Callable[[TraceEntry], None] | None = None
        """Called with each message; None if they are only stored."""
        self._limit = limit_messages
        self._entries: deque[TraceEntry] = deque()
        self._bytes = 0

    def record(self, data: bytes, flow: Flow, sent: bool, wall_time: float) -> None:
        """Record a message, or anything received instead. `wall_time` is seconds since 1970."""
        if not self._limit and self.export is None:
            return
        entry = _read(data, flow, sent, wall_time)
        if self.export is not None:
            self.export(entry)
        self._entries.append(entry)
        self._bytes += len(entry.text)
        while len(self._entries) > self._limit or self._bytes > MAX_BYTES:
            self._bytes -= len(self._entries.popleft().text)

    def render(self, call_id: str | tuple[str, ...] | None = None) -> str:
        """Return the ladder, one line per message. For calls whose Call-ID starts with `call_id`,
        or one of them, the full messages follow."""
        entries = list(self._matching(call_id))
        if not entries:
            return "No messages.\n"
        lines = _ladder(entries)
        for entry in entries if call_id is not None else ():
            lines += ["", f"{_clock(entry.time)} {_way(entry)} {entry.transport}", entry.text]
        return "\n".join(lines) + "\n"

    def as_dicts(
        self, call_id: str | tuple[str, ...] | None = None
    ) -> list[dict[str, str | float | bool]]:
        """Return the same as JSON-compatible values."""
        return [
            {
                **{name: getattr(entry, name) for name in TraceEntry.__slots__},
                "local": _address(entry.local),
                "remote": _address(entry.remote),
            }
            for entry in self._matching(call_id)
        ]

    def as_pcap(self, call_id: str | tuple[str, ...] | None = None) -> bytes:
        """Return the same as a pcap file."""
        return capture(entry.captured() for entry in self._matching(call_id))

    def _matching(self, call_id: str | tuple[str, ...] | None) -> Iterator[TraceEntry]:
        return (e for e in self._entries if call_id is None or e.call_id.startswith(call_id))


def _ladder(entries: list[TraceEntry]) -> list[str]:
    rows: list[tuple[str, ...]] = [("TIME (UTC)", "WHO", "", "BY", "MESSAGE", "CSEQ", "CALL-ID")]
    for entry in entries:
        rows.append(
            (
                _clock(entry.time),
                *_way(entry).split(" ", 1),
                entry.transport,
                _shortened(entry.first_line, FIRST_LINE_WIDTH),
                entry.cseq,
                _shortened(entry.call_id, CALL_ID_WIDTH),
            )
        )
    widths = [max(len(row[i]) for row in rows) for i in range(7)]
    return ["  ".join(t.ljust(w) for t, w in zip(r, widths, strict=True)).rstrip() for r in rows]


def _way(entry: TraceEntry) -> str:
    """Direction of a message; we are always on the left, so that sent and received are easy to tell
    apart."""
    way = "──▶" if entry.sent else "◀──"
    return f"{_address(entry.local)} {way} {_address(entry.remote)}"


def _clock(time: float) -> str:
    return datetime.fromtimestamp(time, UTC).strftime("%H:%M:%S.%f")[:-3]


def _shortened(text: str, width: int) -> str:
    return text if len(text) <= width else text[: width - 1] + "…"


def _read(data: bytes, flow: Flow, sent: bool, wall_time: float) -> TraceEntry:
    lines = _lines(data[:MAX_MESSAGE_BYTES].decode("utf-8", "replace"))
    end = lines.index("") if "" in lines else len(lines)
    fields = [_field(line) for line in _unfolded(lines[1:end])]
    values = {name: value for name, _, value in reversed(fields)}
    body = _shown_body(lines[0], values, lines[end + 1 :])
    kept = [lines[0], *(_masked_field(*field) for field in fields), "", *body]
    if len(data) > MAX_MESSAGE_BYTES:
        kept.append(f"(truncated, {len(data)} bytes in total)")
    text = _URI_PASSWORD.sub(rf"\1:{MASK}@", "\n".join(kept)).rstrip("\n")
    return TraceEntry(
        wall_time,
        sent,
        flow.transport,
        flow.local,
        flow.remote,
        text.partition("\n")[0],
        values.get("cseq", ""),
        values.get("call-id", ""),
        text,
    )


def _lines(text: str) -> list[str]:
    """At least one line, without control characters that could affect a terminal."""
    # line breaks before a message are allowed, RFC 3261 §7.5
    text = text.replace("\r\n", "\n").replace("\r", "\n").replace("\t", " ").lstrip("\n")
    lines = text.split("\n")
    if not "".join(lines).isprintable():
        lines = ["".join(c if c.isprintable() else "·" for c in line) for line in lines]
    return lines


def _shown_body(first_line: str, values: dict[str, str], body: list[str]) -> list[str]:
    method = values.get("cseq", "").rpartition(" ")[2] or first_line.partition(" ")[0]
    kind = values.get("content-type", "")
    if not any(body) or (method.upper() != "MESSAGE" and kind.lower().startswith(_BODIES)):
        return [_masked_body(line) for line in _unfolded(body)]
    size = sum(len(line) for line in body)
    return [f"({kind or 'a body'}, about {size} characters, not stored)"]


def _address(address: tuple[str, int]) -> str:
    host, port = address
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _unfolded(lines: list[str]) -> list[str]:
    """Join header lines with their continuations (RFC 3261 §7.3.1)."""
    whole: list[list[str]] = []
    for line in lines:
        if line.startswith(" ") and whole:
            whole[-1].append(line)
        else:
            whole.append([line])
    return [" ".join(parts) for parts in whole]


_COMPACT = {"i": "call-id", "c": "content-type"}


def _field(line: str) -> tuple[str, str, str]:
    """Lower-case full name, name as written, value."""
    shown, _, value = line.partition(":")
    name = shown.strip().lower()
    return _COMPACT.get(name, name), shown, value.strip()


def _masked_field(name: str, shown: str, value: str) -> str:
    if "authorization" in name:
        return f"{shown}: {_masked_credentials(value)}"
    if "authentication-info" in name:
        return f"{shown}: {MASK}"
    return f"{shown}: {value}"


def _masked_credentials(value: str) -> str:
    try:
        scheme, parameters = parse_parameters(value)
    except SipError:
        return MASK
    if scheme.lower() != "digest":  # the first word may itself be the secret
        return MASK
    shown = (
        f"{name}={quote(text) if name in _SHOWN_PARAMETERS else MASK}"
        for name, text in parameters.items()
    )
    return f"{scheme} {', '.join(shown)}"


def _masked_body(line: str) -> str:
    """Mask SDP keys: RFC 4568 (tag and suite are shown), RFC 8839, RFC 4567, RFC 8866 §5.12; and
    the header fields of embedded messages."""
    bare = line.strip().lower()
    if bare.startswith("a=crypto:"):
        named = _CRYPTO_NAME.match(line)
        return f"{named[0] if named else 'a=crypto:'} {MASK}"
    for secret in _SDP_SECRETS:
        if bare.startswith(secret):
            return f"{secret}{MASK}"
    return _masked_field(*_field(line)) if "auth" in bare else line
