"""Splits a byte stream into SIP messages (RFC 3261 §18.3, §7.5; RFC 5626 §3.5.1)."""

import re
from dataclasses import dataclass

from offhook.telephony.sip.messages.grammar import SipError, parse_number
from offhook.telephony.sip.messages.message import MAX_MESSAGE_BYTES

_CONTENT_LENGTH = re.compile(rb"\r\n(?:content-length|l)[ \t]*:([^\r\n]*)", re.IGNORECASE)
_FIRST_BYTES = frozenset(
    b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-.!%*_+`'~"
)
"""First bytes a method or SIP version may have."""
_LINE_BREAKS = re.compile(rb"(?:\r\n)+")
_CR = 13


class FramingError(SipError):
    """The next message boundary cannot be found: close the connection."""

    complete: "list[bytes | Ping]"
    """Complete messages received before the error."""


@dataclass(frozen=True)
class Ping:
    """Line breaks between messages: a keep-alive ping (RFC 5626 §3.5.1).

    Only the side that opened the connection pings, and is answered with one line break. On a
    connection we opened it is two of the answers to our own pings.
    """


class StreamFramer:
    """Splits the bytes of a TCP, TLS or WebSocket connection into messages."""

    def __init__(self) -> None:
        self._buffer = bytearray()
        self._searched = 0
        """Bytes at the start of the buffer without an end of header."""
        self._message_bytes = 0
        """Size of the current message once its header is complete; 0 before."""
        self._line_break = False
        """A single line break was received since the last message."""

    def receive(self, data: bytes) -> list[bytes | Ping]:
        """Return the messages completed by this data, and pings, in order; consecutive pings are
        merged. Raises FramingError; the framer cannot be used afterwards."""
        self._buffer += data
        complete: list[bytes | Ping] = []
        try:
            del self._buffer[: self._split(complete)]
        except FramingError as error:
            error.complete = complete
            raise
        return complete

    def _split(self, complete: "list[bytes | Ping]") -> int:
        """Append what is complete. Returns where in the buffer the rest begins."""
        start = 0
        while True:
            if not self._searched:
                start, pings = self._skip_line_breaks(start)
                complete += [Ping()] * min(pings, 1)
            end = self._end_of_message(start)
            if end is None:
                return start
            complete.append(bytes(self._buffer[start:end]))
            start, self._searched, self._message_bytes = end, 0, 0

    def _skip_line_breaks(self, start: int) -> tuple[int, int]:
        """Return where the line breaks end, and the number of pairs."""
        breaks = _LINE_BREAKS.match(self._buffer, start)
        if not breaks:
            return start, 0
        count = (breaks.end() - start) // 2 + self._line_break
        self._line_break = count % 2 == 1
        return breaks.end(), count // 2

    def _end_of_message(self, start: int) -> int | None:
        """Return where the message that begins at `start` ends; None if it is incomplete."""
        available = len(self._buffer) - start
        if not self._message_bytes:
            self._message_bytes = self._read_length(start, available)
        if not self._message_bytes or available < self._message_bytes:
            return None
        return start + self._message_bytes

    def _read_length(self, start: int, available: int) -> int:
        """Size of the message, header and body; 0 until its header is complete."""
        if not available or (available == 1 and self._buffer[start] == _CR):
            return 0
        if self._buffer[start] not in _FIRST_BYTES:
            raise FramingError("the data does not start like a SIP message")
        self._line_break = False
        # The end of the header may have arrived in two pieces.
        end = self._buffer.find(b"\r\n\r\n", start + max(0, self._searched - 3))
        self._searched = available
        if end < 0 and available <= MAX_MESSAGE_BYTES:
            return 0
        size = end + 4 - start
        if end >= 0 and size <= MAX_MESSAGE_BYTES:
            size += _content_length(self._buffer[start:end])
        if end < 0 or size > MAX_MESSAGE_BYTES:
            raise FramingError(f"a message exceeds {MAX_MESSAGE_BYTES} bytes")
        return size


def _content_length(head: bytearray) -> int:
    """Read Content-Length, which is required on a stream, exactly once (§20.14)."""
    unfolded = head.replace(b"\r\n ", b"  ").replace(b"\r\n\t", b"  ")
    lengths = _CONTENT_LENGTH.findall(unfolded)
    if len(lengths) != 1:
        raise FramingError(f"a message on a stream has {len(lengths)} Content-Lengths, not one")
    try:
        return parse_number(lengths[0].decode("latin-1").strip(" \t"), MAX_MESSAGE_BYTES)
    except SipError:
        raise FramingError("the Content-Length of a message is not a number") from None
