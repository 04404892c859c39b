"""WebSocket frames as a server reads and writes them (RFC 6455 §5), without extensions. Sans-io:
bytes in; messages and control items out.

Calls send 50 frames a second, so a frame that arrives alone and complete is not buffered.
"""

from enum import IntEnum
from struct import Struct
from typing import NamedTuple

from offhook.telephony.carriers.streams.stream import Message

MAX_CONTROL_BYTES = 125
"""Longest payload of a control frame (RFC 6455 §5.5); with a longer one the connection is closed
with code 1002."""

_FIN = 0x80
_RESERVED = 0x70
_MASKED = 0x80
_LENGTH_16, _LENGTH_64 = 126, 127
_SHORT, _MIDDLE, _LONG = Struct("!BB"), Struct("!BBH"), Struct("!BBQ")


class Opcode(IntEnum):
    CONTINUATION = 0x0
    TEXT = 0x1
    BINARY = 0x2
    CLOSE = 0x8
    PING = 0x9
    PONG = 0xA


_OPCODES = frozenset(int(opcode) for opcode in Opcode)
_CONTROL = int(Opcode.CLOSE)
"""The first opcode of a control frame."""


class CloseCode(IntEnum):
    """Why a connection is closed (RFC 6455 §7.4.1)."""

    NORMAL = 1000
    PROTOCOL_ERROR = 1002
    NO_STATUS = 1005
    """No status code was received; never sent."""
    INVALID_DATA = 1007
    POLICY_VIOLATION = 1008
    TOO_BIG = 1009


_SENT_CODES = frozenset((*range(1000, 1004), *range(1007, 1015)))
"""Codes below 3000 allowed in a close frame (RFC 6455 §7.4.2 and the IANA registry)."""


class Ping(NamedTuple):
    payload: bytes


class Pong(NamedTuple):
    payload: bytes


class Close(NamedTuple):
    """The far end closes the connection."""

    code: int
    reason: str


class Violation(NamedTuple):
    """The far end violated the protocol; close the connection with this code."""

    code: int
    text: str


Control = Ping | Pong | Close | Violation
Item = Message | Control


class _ProtocolError(Exception):
    """Aborts reading with a protocol violation."""

    def __init__(self, code: int, text: str) -> None:
        super().__init__(text)
        self.violation = Violation(code, text)


def frame(message: Message) -> bytes:
    """Encode a whole message as one unmasked frame."""
    if isinstance(message, str):
        payload = message.encode()
        first = _FIN | Opcode.TEXT
    else:
        payload = message
        first = _FIN | Opcode.BINARY
    return _header(first, len(payload)) + payload


def control_frame(opcode: Opcode, payload: bytes = b"") -> bytes:
    """Encode a ping, a pong, or a close whose payload `close_payload` makes."""
    return _header(_FIN | opcode, len(payload)) + payload


def close_payload(code: int) -> bytes:
    return b"" if code == CloseCode.NO_STATUS else code.to_bytes(2, "big")


def _header(first: int, length: int) -> bytes:
    if length < _LENGTH_16:
        return _SHORT.pack(first, length)
    if length < 1 << 16:
        return _MIDDLE.pack(first, _LENGTH_16, length)
    return _LONG.pack(first, _LENGTH_64, length)


def unmasked(payload: bytes, mask: bytes) -> bytes:
    """XOR each byte with its byte of the mask (RFC 6455 §5.3); masking is the same."""
    size = len(payload)
    repeated = (mask * (size // 4 + 1))[:size]
    whole = int.from_bytes(payload, "little") ^ int.from_bytes(repeated, "little")
    return whole.to_bytes(size, "little")


MAX_FRAMES_AT_ONCE = 4_000
"""Maximum frames in what is read at once, more than a minute of sound; with more, the socket is
closed with code 1008."""


class FrameReader:
    """Reads the frames a client sends on one connection."""

    def __init__(self, max_bytes: int) -> None:
        """`max_bytes` limits one message, in one frame or many."""
        self._max_bytes = max_bytes
        self._buffer = bytearray()
        """An incomplete frame."""
        self._needed = 0
        """Bytes needed before reading on."""
        self._message = bytearray()
        """Fragments received of a message."""
        self._opcode: int | None = None
        """Opcode of that message; None outside one."""
        self._closed = False

    @property
    def between_messages(self) -> bool:
        """Whether what comes next begins a message, if it is no control frame."""
        return not (self._buffer or self._closed) and self._opcode is None

    def receive(self, data: bytes) -> list[Item]:
        """Read some bytes. A Close or Violation is the last item; data after it is ignored."""
        if self._buffer:
            self._buffer += data
            if len(self._buffer) < self._needed:
                return []
            data = bytes(self._buffer)
            self._buffer.clear()
        items: list[Item] = []
        try:
            at = frames = 0
            while not self._closed:
                after = self._read(data, at, items)
                if after is None:
                    self._buffer += data[at:]
                    break
                at, frames = after, frames + 1
                if frames > MAX_FRAMES_AT_ONCE:
                    words = f"more than {MAX_FRAMES_AT_ONCE} frames at once"
                    raise _ProtocolError(CloseCode.POLICY_VIOLATION, words)
        except _ProtocolError as error:
            self._closed = True
            items.append(error.violation)
        return items

    def _read(self, data: bytes, at: int, items: list[Item]) -> int | None:
        """Read the frame at `at`. Returns where it ends, or None if it is incomplete."""
        left = len(data) - at
        if left < 2:
            self._needed = 2
            return None
        first, second = data[at], data[at + 1]
        if first & _RESERVED:
            raise _ProtocolError(CloseCode.PROTOCOL_ERROR, "reserved bits are set")
        opcode = first & 0x0F
        if opcode not in _OPCODES:
            raise _ProtocolError(CloseCode.PROTOCOL_ERROR, f"opcode {opcode} is not defined")
        if second < _MASKED:
            raise _ProtocolError(CloseCode.PROTOCOL_ERROR, "a client's frames must be masked")
        length, header = second & 0x7F, 6
        if opcode >= _CONTROL and (length > MAX_CONTROL_BYTES or not first & _FIN):
            raise _ProtocolError(
                CloseCode.PROTOCOL_ERROR, "a control frame is too long or fragmented"
            )
        if length >= _LENGTH_16:
            header = 8 if length == _LENGTH_16 else 14
            if left < header:
                self._needed = header
                return None
            length = int.from_bytes(data[at + 2 : at + header - 4], "big")
            if length + len(self._message) > self._max_bytes:
                raise _ProtocolError(CloseCode.TOO_BIG, f"message exceeds {self._max_bytes} bytes")
        if left < header + length:
            self._needed = header + length
            return None
        start = at + header
        end = start + length
        payload = unmasked(data[start:end], data[start - 4 : start])
        if opcode >= _CONTROL:
            items.append(self._control(opcode, payload))
        elif (message := self._assemble(first & _FIN, opcode, payload)) is not None:
            items.append(message)
        return end

    def _assemble(self, fin: int, opcode: int, payload: bytes) -> Message | None:
        """Add a frame to its message. Returns the message once complete (RFC 6455 §5.4)."""
        if self._opcode is None:
            if opcode == Opcode.CONTINUATION:
                raise _ProtocolError(CloseCode.PROTOCOL_ERROR, "a continuation without a message")
            if fin:
                return _message(opcode, payload)
            self._opcode = opcode
        elif opcode != Opcode.CONTINUATION:
            raise _ProtocolError(CloseCode.PROTOCOL_ERROR, "a message starts within another")
        self._message += payload
        if len(self._message) > self._max_bytes:
            raise _ProtocolError(CloseCode.TOO_BIG, f"message exceeds {self._max_bytes} bytes")
        if not fin:
            return None
        opcode, self._opcode = self._opcode, None
        payload = bytes(self._message)
        self._message.clear()
        return _message(opcode, payload)

    def _control(self, opcode: int, payload: bytes) -> Ping | Pong | Close:
        if opcode == Opcode.PING:
            return Ping(payload)
        if opcode == Opcode.PONG:
            return Pong(payload)
        self._closed = True
        if not payload:
            return Close(CloseCode.NO_STATUS, "")
        code = int.from_bytes(payload[:2], "big")
        if len(payload) == 1 or not (code in _SENT_CODES or 3000 <= code < 5000):
            raise _ProtocolError(CloseCode.PROTOCOL_ERROR, "a close frame with an invalid code")
        return Close(code, _text(payload[2:]))


def _message(opcode: int, payload: bytes) -> Message:
    return _text(payload) if opcode == Opcode.TEXT else payload


def _text(payload: bytes) -> str:
    try:
        return payload.decode()
    except UnicodeDecodeError as error:
        raise _ProtocolError(CloseCode.INVALID_DATA, "text is not valid UTF-8") from error
