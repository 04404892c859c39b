"""SIP over WebSocket (RFC 7118). Browsers connect to us, never we to them."""

import asyncio
from collections import deque
from collections.abc import Callable
from functools import partial
from time import monotonic

from aiohttp import StreamReader, WSMsgType, web
from aiohttp.abc import AbstractStreamWriter
from aiohttp.http import RawRequestMessage
from loguru import logger

from offhook.media.fair_websocket_io import FairWebSocket
from offhook.telephony.sip.messages.flow import Flow
from offhook.telephony.sip.messages.message import MAX_MESSAGE_BYTES
from offhook.telephony.sip.network.stream_io import (
    FIRST_MESSAGE_TIMEOUT_S,
    IDLE_TIMEOUT_S,
    PONG,
    WRITE_BUFFER_BYTES,
    ConnectionOwner,
    probe,
)

SUBPROTOCOL = "sip"
HEARTBEAT_S = 30.0
"""Interval of our WebSocket pings; a browser that does not answer within half of it is gone."""
UPGRADE_TIMEOUT_S = 10.0
"""Time limit in s from the connection to the upgrade, after which the connection is closed; TLS has
its own limit."""
MAX_HEADERS = 64
"""Maximum headers of an upgrade request; one with more is refused with 400."""
MAX_HEADER_BYTES = 8 << 10
"""Maximum bytes of each header of an upgrade request, and of its first line; a request with a
longer one is refused with 400."""


class WebSocketConnection:
    """The connection of one browser."""

    def __init__(self, flow: Flow, owner: ConnectionOwner) -> None:
        self.flow = flow
        self.on_end: Callable[[], object] = lambda: None
        self._owner = owner
        self._transport: asyncio.Transport | None = None
        self._open = False
        """The upgrade is complete."""
        self._closed = False
        self._outbox: deque[bytes] = deque()
        self._bytes = 0
        """Bytes in the outbox."""
        self._more = asyncio.Event()
        self._active_at = monotonic()
        self._message_received = False

    def send(self, data: bytes) -> None:
        if self._closed:
            return
        self._active_at = monotonic()
        self._queue(data)

    def _queue(self, data: bytes) -> None:
        self._bytes += len(data)
        if self._bytes > WRITE_BUFFER_BYTES:
            logger.info("{} {}: peer does not read", self.flow.transport, self.flow.remote)
            self.abort()
        else:
            self._outbox.append(data)
            self._more.set()

    def abort(self) -> None:
        if self._transport is not None:
            self._transport.abort()
        self.closed()

    def closed(self) -> None:
        """Report the end of the connection. Idempotent."""
        if not self._closed:
            self._closed = True
            self.on_end()
            self._owner.ended(self)

    def check(self, now: float) -> None:
        if self._transport is None:
            return
        limit = IDLE_TIMEOUT_S
        if not self._message_received:
            limit = FIRST_MESSAGE_TIMEOUT_S if self._open else UPGRADE_TIMEOUT_S
        if now - self._active_at > limit:
            logger.debug("{} {}: idle", self.flow.transport, self.flow.remote)
            self.abort()

    def made(self, transport: asyncio.Transport) -> None:
        self._transport = transport
        self._active_at = monotonic()
        probe(transport.get_extra_info("socket"))

    async def serve(self, socket: web.WebSocketResponse) -> None:
        """Serve the connection from the upgrade to its end."""
        self._open = True
        writer = asyncio.create_task(self._write(socket), name="SIP over WebSocket")
        try:
            async for message in socket:
                if message.type is WSMsgType.TEXT:
                    self._receive(message.data.encode())
                elif message.type is WSMsgType.BINARY:
                    self._receive(message.data)
        finally:
            writer.cancel()
            await asyncio.gather(writer, return_exceptions=True)

    def _receive(self, data: bytes) -> None:
        """Handle a WebSocket message: one SIP message (RFC 7118 §5), or a keep-alive (§6)."""
        if self._closed:
            return
        if data.strip():
            self._active_at = monotonic()
            self._message_received = True
            self._owner.received(data, self.flow)
        elif data:
            self._active_at = monotonic() if self._message_received else self._active_at
            self._queue(PONG)

    async def _write(self, socket: web.WebSocketResponse) -> None:
        while True:
            await self._more.wait()
            self._more.clear()
            while self._outbox:
                data = self._outbox[0]
                try:
                    text = data.decode()
                except UnicodeDecodeError:
                    sending = socket.send_bytes(data)
                else:
                    sending = socket.send_str(text)
                try:
                    await sending
                except (OSError, RuntimeError):  # closing, or closed
                    return
                self._outbox.popleft()
                self._bytes -= len(data)


def offers_sip(request: web.BaseRequest) -> bool:
    """Return whether the subprotocols of an upgrade request have SIP among them."""
    offered = request.headers.get("Sec-WebSocket-Protocol", "")
    return SUBPROTOCOL in [name.strip().lower() for name in offered.split(",")]


def sip_websocket() -> FairWebSocket:
    """Return a WebSocket for SIP, for an upgrade request to be prepared with."""
    return FairWebSocket(
        protocols=[SUBPROTOCOL],
        max_msg_size=MAX_MESSAGE_BYTES,
        heartbeat=HEARTBEAT_S,
        autoping=True,
    )


class _Request(web.BaseRequest):
    """A request whose response does not say which server sent it."""

    async def _prepare_hook(self, response: web.StreamResponse) -> None:
        response.headers.popall("Server", None)


class WebSocketServer(web.Server):
    """HTTP server of one listening socket, for WebSocket upgrades only."""

    def __init__(self) -> None:
        super().__init__(
            self._handle,
            access_log=None,
            # aiohttp would decompress bodies on the event loop, and read those that nobody wants.
            auto_decompress=False,
            lingering_time=0.0,
            max_headers=MAX_HEADERS,
            max_line_size=MAX_HEADER_BYTES,
            max_field_size=MAX_HEADER_BYTES,
        )
        self._peers: dict[web.RequestHandler, WebSocketConnection] = {}

    def _make_request(
        self,
        message: RawRequestMessage,
        payload: StreamReader,
        protocol: web.RequestHandler,
        writer: AbstractStreamWriter,
        task: "asyncio.Task[None]",
    ) -> web.BaseRequest:
        return _Request(message, payload, protocol, writer, task, self._loop)

    def protocol_for(self, connection: WebSocketConnection) -> web.RequestHandler:
        """Return the protocol for asyncio to serve the accepted connection with."""
        protocol = self()
        self._peers[protocol] = connection
        connection.on_end = partial(self._peers.pop, protocol, None)
        return protocol

    def connection_made(self, handler: web.RequestHandler, transport: asyncio.Transport) -> None:
        super().connection_made(handler, transport)
        connection = self._peers.get(handler)
        if connection is None:  # closed during the handshake
            # not at once, as aiohttp's task would miss the server of a connection that is lost
            self._loop.call_soon(transport.abort)
        else:
            connection.made(transport)

    def connection_lost(
        self, handler: web.RequestHandler, exc: BaseException | None = None
    ) -> None:
        super().connection_lost(handler, exc)
        connection = self._peers.get(handler)
        if connection is not None:
            connection.closed()

    async def _handle(self, request: web.BaseRequest) -> web.StreamResponse:
        if not request.content.is_eof():
            raise web.HTTPBadRequest(text="an upgrade to SIP over WebSocket has no body\n")
        if not offers_sip(request):
            raise web.HTTPBadRequest(text="SIP over WebSocket only (subprotocol sip)\n")
        socket = sip_websocket()
        await socket.prepare(request)
        connection = self._peers.get(request.protocol)
        if connection is not None:
            await connection.serve(socket)
        return socket
