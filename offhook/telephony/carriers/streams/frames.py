"""WebSocket frames as a server reads and writes them (RFC 6455 §5), without extensions. Sans-io:
bytes in, messages and what controls the connection out.

The bytes of a call come frame by frame, 50 times a second, so a frame that comes alone and whole
passes without being kept.
"""

from enum import IntEnum
from struct import Struct
from typing import NamedTuple

from offhook.telephony.carriers.streams.stream import Message

MAX_CONTROL_BYTES = 125
"""Of the payload of a control frame (RFC 6455 §5.5)."""

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
    """The close frame says nothing; is never sent."""
    INVALID_DATA = 1007
    TOO_BIG = 1009


_SENT_CODES = frozenset((*range(1000, 1004), *range(1007, 1015)))
"""Those below 3000 that may stand in a close frame (RFC 6455 §7.4.2 and the IANA's registry)."""


class Ping(NamedTuple):
    payload: bytes


class Pong(NamedTuple):
    payload: bytes


class Close(NamedTuple):
    """The far end closes."""

    code: int
    reason: str


class Violation(NamedTuple):
    """The far end broke the protocol: the connection is to be closed with this code."""

    code: int
    text: str


Control = Ping | Pong | Close | Violation
Item = Message | Control


class _Broken(Exception):
    """Ends the reading."""

    def __init__(self, code: int, text: str) -> None:
        super().__init__(text)
        self.violation = Violation(code, text)


def frame(message: Message) -> bytes:
    """A whole message in one frame, unmasked."""
    if isinstance(message, str):
        payload = message.encode()
        first = _FIN | Opcode.TEXT
    else:
        payload = message
        first = _FIN | Opcode.BINARY
    return _header(first, len(payload)) + payload


def control_frame(opcode: Opcode, payload: bytes = b"") -> bytes:
    """A ping, a pong, or a close whose payload `close_payload` makes."""
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
    """Each byte with its byte of the mask (RFC 6455 §5.3); the same masks."""
    size = len(payload)
    repeated = (mask * (size // 4 + 1))[:size]
    whole = int.from_bytes(payload, "little") ^ int.from_bytes(repeated, "little")
    return whole.to_bytes(size, "little")


class FrameReader:
    """What a client sends on one connection."""

    def __init__(self, max_bytes: int) -> None:
        """`max_bytes`: of one message, in one frame or many."""
        self._max_bytes = max_bytes
        self._held = bytearray()
        """The beginning of a frame."""
        self._needed = 0
        """Bytes that make it worth looking at again."""
        self._message = bytearray()
        """What came of a message in several frames."""
        self._opcode: int | None = None
        """Of that message; None outside one."""
        self._over = False

    def receive(self, data: bytes) -> list[Item]:
        """Take some bytes. After a Close or a Violation, which is the last item then, nothing is
        taken any more."""
        if self._held:
            self._held += data
            if len(self._held) < self._needed:
                return []
            data = bytes(self._held)
            self._held.clear()
        items: list[Item] = []
        try:
            at = 0
            while not self._over:
                after = self._read(data, at, items)
                if after is None:
                    self._held += data[at:]
                    break
                at = after
        except _Broken as broken:
            self._over = True
            items.append(broken.violation)
        return items

    def _read(self, data: bytes, at: int, items: list[Item]) -> int | None:
        """Read the frame at `at`; says where it ends, None if that has not come."""
        left = len(data) - at
        if left < 2:
            self._needed = 2
            return None
        first, second = data[at], data[at + 1]
        if first & _RESERVED:
            raise _Broken(CloseCode.PROTOCOL_ERROR, "reserved bits are set")
        opcode = first & 0x0F
        if opcode not in _OPCODES:
            raise _Broken(CloseCode.PROTOCOL_ERROR, f"opcode {opcode} is not defined")
        if second < _MASKED:
            raise _Broken(CloseCode.PROTOCOL_ERROR, "a client's frames are to be masked")
        length, header = second & 0x7F, 6
        if opcode >= _CONTROL and (length > MAX_CONTROL_BYTES or not first & _FIN):
            raise _Broken(CloseCode.PROTOCOL_ERROR, "a control frame is too long or in fragments")
        if length >= _LENGTH_16:
            header = 8 if length == _LENGTH_16 else 14
            if left < header:
                self._needed = header
                return None
            length = int.from_bytes(data[at + 2 : at + header - 4], "big")
            if length + len(self._message) > self._max_bytes:
                raise _Broken(CloseCode.TOO_BIG, f"a message of over {self._max_bytes} bytes")
        if left < header + length:
            self._needed = header + length
            return None
        start = at + header
        end = start + length
        payload = unmasked(data[start:end], data[start - 4 : start])
        if opcode >= _CONTROL:
            items.append(self._control(opcode, payload))
        elif (message := self._gather(first & _FIN, opcode, payload)) is not None:
            items.append(message)
        return end

    def _gather(self, fin: int, opcode: int, payload: bytes) -> Message | None:
        """A frame of a message: the message when it is the last (RFC 6455 §5.4)."""
        if self._opcode is None:
            if opcode == Opcode.CONTINUATION:
                raise _Broken(CloseCode.PROTOCOL_ERROR, "nothing is there to be continued")
            if fin:
                return _message(opcode, payload)
            self._opcode = opcode
        elif opcode != Opcode.CONTINUATION:
            raise _Broken(CloseCode.PROTOCOL_ERROR, "a message begins within another")
        self._message += payload
        if len(self._message) > self._max_bytes:
            raise _Broken(CloseCode.TOO_BIG, f"a message of over {self._max_bytes} bytes")
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
        self._over = True
        if not payload:
            return Close(CloseCode.NO_STATUS, "")
        code = int.from_bytes(payload[:2], "big")
        if len(payload) == 1 or not (code in _SENT_CODES or 3000 <= code < 5000):
            raise _Broken(CloseCode.PROTOCOL_ERROR, "a close frame without a valid code")
        return Close(code, _text(payload[2:]))


def _message(opcode: int, payload: bytes) -> Message:
    return _text(payload) if opcode == Opcode.TEXT else payload


def _text(payload: bytes) -> str:
    try:
        return payload.decode()
    except UnicodeDecodeError as error:
        raise _Broken(CloseCode.INVALID_DATA, "text that is not UTF-8") from error
