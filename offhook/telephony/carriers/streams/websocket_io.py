"""The WebSocket a carrier opened, connected to one leg.

There is no task per call that wakes up every 20 ms, which would cost as much as the audio itself.
Data is read before a tick (`connections_io.py`), or as it comes and then processed in the leg's
next tick, when its audio is needed. What the leg sends in a tick is written after the ticks of all
legs: running the same code for many legs in a row keeps the CPU caches warm.
"""

import asyncio
import contextlib
from base64 import b64decode, b64encode
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from hashlib import sha1
from time import monotonic

from aiohttp import web
from loguru import logger

from offhook.media.budget import Budget
from offhook.media.end_reason import End
from offhook.telephony.call_record import EndedBy
from offhook.telephony.carriers.leg_io import CarrierLeg
from offhook.telephony.carriers.streams.connections_io import Connection, Connections
from offhook.telephony.carriers.streams.frames import (
    Close,
    CloseCode,
    Control,
    FrameReader,
    Opcode,
    Ping,
    Pong,
    Violation,
    close_payload,
    control_frame,
    frame,
)
from offhook.telephony.carriers.streams.stream import CarrierError, Message

WRITE_BUFFER_BYTES = 128 * 1024
"""Maximum unsent data, about 4 s of audio in JSON; beyond it the call ends."""
FRAMES_PER_SECOND, FRAMES_BURST = 500.0, 2_000.0
"""Maximum frames of a carrier in a second, and at once after a pause, besides sound; then the
stream ends with code 1008. Usual are 50."""
MAX_MESSAGE_BYTES = 512 * 1024
"""Maximum size of a message, longer than any provider's; for a longer one the socket is closed with
code 1009."""
MAX_UNREAD_BYTES = 64 * 1024
"""Limit of data waiting for a tick; beyond it, data is read at once."""
HEARTBEAT_S = 20.0
"""Idle time before we ping: neither a dead carrier nor a silent caller sends anything."""
PONG_TIMEOUT_S = 10.0
"""Time limit in s for the pong, or any other data; then the call ends."""
CLOSE_TIMEOUT_S = 2.0
"""Time limit in s for the far end's close; then the connection is dropped."""

_ACCEPT = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11"
"""GUID that proves a server understood the handshake (RFC 6455 §1.3)."""


def handshake(request: web.Request, protocols: tuple[str, ...]) -> dict[str, str]:
    """Return the headers that accept a WebSocket (RFC 6455 §4.2.2), with the first of `protocols`
    that the client offers. Raises HTTPBadRequest; HTTPUpgradeRequired if the version is not 13."""
    headers = request.headers
    connection = {name.strip().lower() for name in headers.get("Connection", "").split(",")}
    if headers.get("Upgrade", "").strip().lower() != "websocket" or "upgrade" not in connection:
        raise web.HTTPBadRequest(text="expected a WebSocket upgrade")
    if headers.get("Sec-WebSocket-Version", "").strip() != "13":
        version = {"Sec-WebSocket-Version": "13"}
        raise web.HTTPUpgradeRequired(text="WebSocket version must be 13", headers=version)
    key = headers.get("Sec-WebSocket-Key", "").strip()
    try:
        fits = len(b64decode(key, validate=True)) == 16
    except ValueError:
        fits = False
    if not fits:
        raise web.HTTPBadRequest(text="Sec-WebSocket-Key is not 16 bytes in base64")
    accept = b64encode(sha1(key.encode() + _ACCEPT).digest()).decode()
    answer = {"Upgrade": "websocket", "Connection": "Upgrade", "Sec-WebSocket-Accept": accept}
    offered = [n.strip() for n in headers.get("Sec-WebSocket-Protocol", "").split(",")]
    if (chosen := next((name for name in protocols if name in offered), None)) is not None:
        answer["Sec-WebSocket-Protocol"] = chosen
    return answer


class StreamSocket:
    """Passes received messages to a leg, and sends the leg's messages."""

    def __init__(
        self, protocols: tuple[str, ...] = (), connections: Connections | None = None
    ) -> None:
        """`connections` are those of all calls; None: this one is by itself."""
        self.response = web.StreamResponse(status=101)
        """The response that the request's handler must return."""
        self._protocols = protocols
        self._connections = connections or Connections()
        self._request: web.Request | None = None
        self._transport: asyncio.Transport | None = None
        self._connection: Connection | None = None
        self._reader = FrameReader(MAX_MESSAGE_BYTES)
        self._frames = Budget(FRAMES_PER_SECOND, FRAMES_BURST)
        self._leg: CarrierLeg | None = None
        self._unread: list[tuple[float, bytes]] = []
        """Data received since the last tick, with its arrival in monotonic seconds."""
        self._unread_bytes = 0
        self._unsent: list[bytes] = []
        """Data to be written in this iteration of the event loop."""
        self._received_at = 0.0
        """Monotonic seconds of the last data received."""
        self._heartbeat: asyncio.TimerHandle | None = None
        self._closing = False
        """Our close frame was sent: nothing may follow it."""
        self._ended = asyncio.Event()
        """The far end has closed too, or is gone."""

    async def accept(self, request: web.Request) -> None:
        """Complete the handshake. Raises HTTPException if the request is no WebSocket upgrade."""
        self.response.headers.update(handshake(request, self._protocols))
        self.response.force_close()  # it is no longer HTTP
        await self.response.prepare(request)
        request.protocol.keep_alive(False)
        self._request, self._transport = request, request.transport

    def send(self, message: Message) -> None:
        """Send a message; dropped if the socket is closed. Closes the leg if too much is queued."""
        self._write(frame(message))

    def _write(self, data: bytes) -> None:
        if self._transport is None or self._closing:
            return
        if not self._unsent:
            self._connections.flush_soon(self._flush)
        self._unsent.append(data)

    def _flush(self) -> None:
        transport, unsent = self._transport, self._unsent
        if not unsent:
            return
        data = unsent[0] if len(unsent) == 1 else b"".join(unsent)
        unsent.clear()
        if transport is None or transport.is_closing() or self._connection is None:
            return
        if transport.get_write_buffer_size() > WRITE_BUFFER_BYTES:
            self._hang_up(End.CARRIER_SILENT + " read", "transport")
            return
        self._connection.write(data)

    @asynccontextmanager
    async def line(self, leg: CarrierLeg) -> AsyncIterator[None]:
        """Connect the leg to the socket within the context. On exit the remaining messages are sent
        and the socket is closed, unless the leg or the far end has closed it before."""
        assert self._request is not None
        self._leg = leg
        if self._transport is not None:
            self._connection = Connection(self._transport, self._receive)
        leg.open(self._read, self._write)
        self._received_at = monotonic()
        self._schedule_heartbeat(HEARTBEAT_S)
        self._request.protocol.set_parser(self)  # type: ignore[arg-type]
        if self._transport is None:
            self.feed_eof()
        elif self._connection is not None:
            self._connections.add(self._connection)
        try:
            yield
        finally:
            leg.close("the server closed the stream")
            await self._finish()

    async def _finish(self) -> None:
        """Close the connection with the closing handshake, if the far end takes part."""
        assert self._heartbeat is not None
        self._read()
        transport = self._transport
        self._close(CloseCode.NORMAL)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(CLOSE_TIMEOUT_S):
                await self._ended.wait()
        self._heartbeat.cancel()
        self._leave()
        if transport is not None and not self._ended.is_set():
            transport.abort()

    # --- received data, as aiohttp's protocol passes it on ---

    def feed_data(self, data: bytes) -> tuple[bool, bytes]:
        """Receive data. Returns (not at end of stream, nothing left over)."""
        leg = self._leg
        assert leg is not None
        self._received_at = now = monotonic()
        self._unread.append((now, data))
        self._unread_bytes += len(data)
        if self._must_read_now(leg):
            self._read()
        return False, b""

    def _must_read_now(self, leg: CarrierLeg) -> bool:
        """Whether received data cannot wait for the leg's next tick. Where ticks have a reader of
        their own, the event loop reads only while there are none."""
        read_at_ticks = self._connection is not None and self._connection.read_at_ticks
        waits = leg.ticks and leg.closed is None and not read_at_ticks
        return not waits or self._unread_bytes > MAX_UNREAD_BYTES

    def feed_eof(self) -> None:
        """Handle the loss of the connection."""
        self._leave()
        self._read()
        self._transport = None
        self._hang_up(End.STREAM_CLOSED, "remote")
        self._ended.set()

    def _leave(self) -> None:
        if self._connection is not None:
            self._connections.remove(self._connection)

    def _read(self) -> None:
        """Pass the received data to the leg."""
        if not self._unread:
            return
        unread, self._unread, self._unread_bytes = self._unread, [], 0
        for now, data in unread:
            self._receive(data, now)

    def _receive(self, data: bytes, now: float) -> None:
        """Pass data to the leg that arrived at this time."""
        leg = self._leg
        assert leg is not None
        self._received_at = now
        try:
            if self._reader.between_messages:
                read = leg.receive_frames(data, now)
                if read == len(data):
                    return
                data = data[read:]
            items = self._reader.receive(data)
            if not self._frames.spend(len(items), now):
                words = f": more than {FRAMES_PER_SECOND:g} frames a second"
                return self._end(CloseCode.POLICY_VIOLATION, End.SOCKET + words, "transport")
            for item in items:
                if isinstance(item, tuple):
                    self._handle_control(item)
                else:
                    leg.receive(item, now)
        except CarrierError as error:
            leg.close(str(error), "transport")
        except Exception:
            logger.exception("{}: leg failed", leg.call_id)
            leg.close(End.LINE_FAILED)
        if self._connection is not None:
            between = self._reader.between_messages
            self._connection.reader = leg.media_reader if between else None

    def _handle_control(self, item: Control) -> None:
        match item:
            case Ping(payload):
                self._write(control_frame(Opcode.PONG, payload))
            case Pong():
                pass
            case Close(code):
                self._end(code, End.STREAM_CLOSED, "remote")
            case Violation(code, text):
                self._end(code, End.SOCKET + f": {text}", "transport")

    def _end(self, code: int, reason: str, ended_by: EndedBy) -> None:
        """Stop reading. The server must close the connection (RFC 6455 §7.1.1)."""
        self._hang_up(reason, ended_by)
        self._close(code)
        self._ended.set()
        if self._transport is not None:
            self._transport.close()

    def _hang_up(self, reason: str, ended_by: EndedBy) -> None:
        if self._leg is not None:
            self._leg.close(reason, ended_by)

    def _close(self, code: int) -> None:
        self._write(control_frame(Opcode.CLOSE, close_payload(code)))
        self._flush()
        self._closing = True

    # --- heartbeat ---

    def _schedule_heartbeat(self, seconds: float) -> None:
        self._heartbeat = asyncio.get_running_loop().call_later(seconds, self._check_heartbeat)

    def _check_heartbeat(self) -> None:
        read_at = 0.0 if self._connection is None else self._connection.read_at
        silent = monotonic() - max(self._received_at, read_at)
        if silent < HEARTBEAT_S:
            self._schedule_heartbeat(HEARTBEAT_S - silent)
        elif silent < HEARTBEAT_S + PONG_TIMEOUT_S:
            self._write(control_frame(Opcode.PING))
            self._schedule_heartbeat(HEARTBEAT_S + PONG_TIMEOUT_S - silent)
        else:
            self._hang_up(End.CARRIER_SILENT + " answer", "timeout")
            if self._transport is not None:
                self._transport.abort()
