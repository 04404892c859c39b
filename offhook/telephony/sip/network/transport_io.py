"""The sockets of the SIP endpoint: UDP, TCP, TLS, WS and WSS (RFC 3261 §18, RFC 7118).

Nothing here blocks or raises because of a peer: a message that cannot be sent results in
`on_closed` for its flow. IPv4 and IPv6 have separate sockets, so that addresses are never
IPv4-mapped.
"""

import asyncio
import errno
import socket
import ssl
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from ipaddress import ip_address
from itertools import count
from pathlib import Path
from time import monotonic

from aiohttp import web
from loguru import logger

from offhook.media.tasks_io import TaskSet
from offhook.telephony.sip.messages.flow import Flow, TransportName
from offhook.telephony.sip.network.connection_errors import no_connection
from offhook.telephony.sip.network.stream_io import (
    CONNECT_TIMEOUT_S,
    Connection,
    StreamConnection,
    client_context,
)
from offhook.telephony.sip.network.udp_io import UdpSocket, family_of, host_port, local_address_for
from offhook.telephony.sip.network.websocket_io import WebSocketConnection, WebSocketServer
from offhook.telephony.sip.trunks.extension import trunk_name

MAX_CONNECTIONS = 1000
"""Limit of peers' connections, over all transports. Beyond it the oldest to which nothing was sent
yet makes room: its handshake drips, or we do not know who it is. If there is none, further ones are
closed at once."""
MAX_CONNECTIONS_PER_SOURCE = 100
"""Maximum connections of a source address (IPv6: of a /64), which may be an office of browsers
behind a NAT; further ones are closed at once."""
MAX_CONNECTIONS_OF_EXTENSION = 16
"""Maximum connections of an extension's desks, which do not count for the address: many may come
through one proxy. Further ones are closed at once."""
MAX_ROUTES = 500
"""Limit of peers we connect to; beyond it the least recently used idle one is dropped, and if all
are connected, sending to another fails."""
HANDSHAKE_TIMEOUT_S = 10.0
"""Time limit in s of a peer's TLS handshake; then its connection is closed."""
CHECK_INTERVAL_S = 1.0
"""Interval in s at which connections are checked for being idle or silent."""
ACCEPT_PAUSE_S = 1.0
"""Pause after running out of file descriptors."""
BACKLOG = 256
"""Kernel backlog of connections to accept."""


def _source(flow: Flow) -> tuple[str, int]:
    """Return what a connection is counted by, and how many there may be."""
    if flow.extension:
        return trunk_name(flow.extension), MAX_CONNECTIONS_OF_EXTENSION
    address = ip_address(flow.remote[0])
    source = f"{int(address) >> 64:x}/64" if address.version == 6 else flow.remote[0]
    return source, MAX_CONNECTIONS_PER_SOURCE


@dataclass(frozen=True)
class _Listener:
    transport: TransportName
    sock: socket.socket
    ssl_context: ssl.SSLContext | None
    websockets: WebSocketServer | None
    task: "asyncio.Task[None]"


@dataclass(frozen=True)
class _Route:
    """A peer we connect to; its flow stays the same over successive connections."""

    flow: Flow
    server_name: str
    verify: bool

    @property
    def key(self) -> "_RouteKey":
        return (self.flow.transport, self.flow.remote, self.server_name, self.verify)


_RouteKey = tuple[TransportName, tuple[str, int], str, bool]


class Transports:
    """All SIP sockets of one process."""

    def __init__(
        self,
        on_message: Callable[[bytes, Flow], None],
        on_closed: Callable[[Flow], None],
        alpn: Sequence[str] = (),
        authorities: ssl.SSLContext | None = None,
    ) -> None:
        """`on_message` receives each message and must not raise. `on_closed` reports that a
        connection is gone or could not be made, or a datagram could not be sent; it is never called
        from within `send`. `authorities` replaces the system's CAs when verifying servers."""
        self._on_message = on_message
        self._on_closed = on_closed
        self._alpn = alpn
        self._contexts = {} if authorities is None else {True: authorities}
        """Contexts of our TLS connections, by whether they verify."""
        self._identity: tuple[Path, Path] | None = None
        """Certificate chain and key that servers get which ask for them."""
        self._udp: dict[tuple[str, int], UdpSocket] = {}
        self._listeners: list[_Listener] = []
        self._connections: dict[int, Connection] = {}
        self._ids = count(1)
        self._peers: Counter[str] = Counter()
        """Number of peers' connections by source."""
        self._sources: dict[int, str] = {}
        """Source of each of these, by connection id."""
        self._unanswered: dict[int, socket.socket] = {}
        """Those of them to which nothing was sent, the oldest first."""
        self._by_remote: dict[tuple[str, int], Flow] = {}
        """Peers' TCP connections by remote address."""
        self._routes: dict[int, _Route] = {}
        """By id, the most recently used last."""
        self._route_ids: dict[_RouteKey, int] = {}
        self._faults: dict[int, str] = {}
        """Why the last connection attempt of a route failed."""
        self._unnamed: dict[int, set[Flow]] = {}
        """Flows without an id that use one of our connections."""
        self._tasks = TaskSet()
        self._check: asyncio.TimerHandle | None = None
        self._closing = False

    # --- life ---

    async def listen(
        self,
        transport: TransportName,
        host: str,
        port: int,
        ssl_context: ssl.SSLContext | None = None,
    ) -> tuple[str, int]:
        """Listen on a numeric address and port, 0 for any. Returns the address and port bound.
        Raises OSError if it is in use, ValueError if the host is not numeric."""
        secure = transport in ("TLS", "WSS")
        assert secure == (ssl_context is not None), "TLS and WSS need a context, others none"
        kind = socket.SOCK_DGRAM if transport == "UDP" else socket.SOCK_STREAM
        family = family_of(host)
        sock = socket.socket(family, kind)
        try:
            sock.setblocking(False)
            if family == socket.AF_INET6:
                sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            if transport != "UDP":
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            sock.bind((host, port))
            if transport != "UDP":
                sock.listen(BACKLOG)
        except OSError:
            sock.close()
            raise
        bound = host_port(sock.getsockname())
        if transport == "UDP":
            self._udp[bound] = UdpSocket(sock, self._on_message)
            return bound
        websockets = WebSocketServer() if transport in ("WS", "WSS") else None
        accepting = self._accept(transport, sock, ssl_context, websockets)
        task = asyncio.create_task(accepting, name=f"SIP {transport} listener")
        self._listeners.append(_Listener(transport, sock, ssl_context, websockets, task))
        return bound

    async def close(self) -> None:
        """Close everything; no callback follows."""
        self._closing = True
        if self._check is not None:
            self._check.cancel()
        for listener in self._listeners:
            listener.task.cancel()
        for udp in self._udp.values():
            udp.close()
        for connection in tuple(self._connections.values()):
            connection.abort()
        own = [listener.task for listener in self._listeners]
        await asyncio.gather(*own, self._tasks.close(), return_exceptions=True)
        for listener in self._listeners:
            listener.sock.close()
            if listener.websockets is not None:
                await listener.websockets.shutdown(0)
        self._listeners.clear()
        self._udp.clear()

    def trust(self, authorities: ssl.SSLContext) -> None:
        """Set the context used to verify servers, in place of the system's CAs."""
        self._contexts[True] = authorities

    def identify(self, certificate: Path, key: Path) -> None:
        """Show this certificate chain from now on to servers that ask for one (mutual TLS). Raises
        OSError, ssl.SSLError among others."""
        self._identity = certificate, key
        for context in self._contexts.values():
            context.load_cert_chain(certificate, key)

    # --- sending ---

    def flow_to(
        self,
        transport: TransportName,
        host: str,
        port: int,
        server_name: str = "",
        verify: bool = True,
    ) -> Flow:
        """Return the flow to a peer: the UDP socket we listen on, or a connection that is made when
        something is sent, and again after it is lost. `host` must be numeric (ValueError
        otherwise); over TLS the certificate must match `server_name`, by default the address.

        Sending to a WebSocket peer over such a flow fails: browsers cannot be connected to.
        """
        family = family_of(host)
        remote = (host, port)
        if transport == "UDP":
            return Flow("UDP", remote, self._local(family))
        if transport == "TCP":
            if remote in self._by_remote:
                return self._by_remote[remote]
            server_name, verify = "", True
        elif transport != "TLS":
            return Flow(transport, remote, (local_address_for(host), 0))
        number = self._route_ids.get((transport, remote, server_name, verify))
        if number is not None:
            return self._routes[number].flow
        return self._new_route(transport, remote, server_name, verify)

    def later_flows(self, flow: Flow) -> list[Flow]:
        """Return the flows of the connections that peers have opened from the address of a flow, by
        its transport, after it was opened."""
        peers = (c.flow for n, c in self._connections.items() if n in self._sources)
        return [
            peer
            for peer in peers
            if (peer.transport, peer.remote[0]) == (flow.transport, flow.remote[0])
            and peer.connection > flow.connection
        ]

    def send(self, data: bytes, flow: Flow) -> None:
        """Send one message, without waiting for the peer. A stream not connected yet is
        connected."""
        if self._closing:
            return
        if flow.transport == "UDP":
            udp = self._udp.get(flow.local)
            if udp is None or not udp.send(data, flow.remote):
                self._fail(flow)
            return
        number = flow.connection
        if not number and flow.transport in ("TCP", "TLS"):
            number = self.flow_to(flow.transport, *flow.remote).connection
            self._unnamed.setdefault(number, set()).add(flow)
        connection = self._connections.get(number) or self._open(number)
        if connection is None:
            self._unnamed.pop(number, None)
            self._fail(flow)
        else:
            self._unanswered.pop(number, None)
            connection.send(data)

    def fault_of(self, flow: Flow) -> str:
        """Return why there is no connection to a flow's far end; "" if unknown."""
        unnamed = self._route_ids.get((flow.transport, flow.remote, "", True), 0)
        return self._faults.get(flow.connection or unnamed, "")

    def _local(self, family: socket.AddressFamily) -> tuple[str, int]:
        """Address of the first UDP socket of the family; without one, sending will fail."""
        return next((u.local for u in self._udp.values() if u.family == family), ("", 0))

    def _fail(self, flow: Flow) -> None:
        def report() -> None:
            if not self._closing:
                self._on_closed(flow)

        asyncio.get_running_loop().call_soon(report)

    # --- connections opened by us ---

    def _new_route(
        self, transport: TransportName, remote: tuple[str, int], server_name: str, verify: bool
    ) -> Flow:
        local = (local_address_for(remote[0]), 0)
        if len(self._routes) >= MAX_ROUTES:
            idle = next((n for n in self._routes if n not in self._connections), None)
            if idle is None:
                return Flow(transport, remote, local)
            del self._route_ids[self._routes.pop(idle).key]
            self._faults.pop(idle, None)
        route = _Route(Flow(transport, remote, local, next(self._ids)), server_name, verify)
        self._routes[route.flow.connection] = route
        self._route_ids[route.key] = route.flow.connection
        return route.flow

    def _open(self, number: int) -> Connection | None:
        """Start connecting; messages are queued meanwhile."""
        route = self._routes.pop(number, None)
        if route is None:
            return None
        self._routes[number] = route
        connection = StreamConnection(route.flow, self, ours=True)
        self._add(connection)
        self._tasks.spawn(
            self._connect(connection, route), f"SIP {route.flow.transport} connection"
        )
        return connection

    async def _connect(self, connection: StreamConnection, route: _Route) -> None:
        transport, (host, port) = route.flow.transport, route.flow.remote
        self._faults.pop(route.flow.connection, None)
        try:
            async with asyncio.timeout(CONNECT_TIMEOUT_S):
                tls = transport == "TLS"
                context = await self._client_context(route.verify) if tls else None
                await asyncio.get_running_loop().create_connection(
                    lambda: connection,
                    host,
                    port,
                    ssl=context,
                    server_hostname=route.server_name or host if tls else None,
                )
        except (OSError, ValueError) as error:  # ValueError: an invalid server name
            fault = no_connection(error, route.server_name or host)
            self._faults[route.flow.connection] = fault
            logger.info("{} {}: {}", transport, route.flow.remote, fault)
            connection.closed()

    async def _client_context(self, verify: bool) -> ssl.SSLContext:
        context = self._contexts.get(verify)
        if context is None:
            context = await asyncio.to_thread(client_context, verify, self._alpn)
            if self._identity is not None:
                context.load_cert_chain(*self._identity)
            self._contexts[verify] = context
        return context

    # --- connections opened by peers ---

    async def _accept(
        self,
        transport: TransportName,
        sock: socket.socket,
        context: ssl.SSLContext | None,
        websockets: WebSocketServer | None,
    ) -> None:
        loop = asyncio.get_running_loop()
        while True:
            try:
                accepted, address = await loop.sock_accept(sock)
                local = host_port(accepted.getsockname())
            except OSError as error:
                if error.errno in (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM):
                    logger.warning("{}: cannot accept connections: {}", transport, error)
                    await asyncio.sleep(ACCEPT_PAUSE_S)
                continue  # the peer has closed before it was accepted
            remote = host_port(address)
            flow = Flow(transport, remote, local, next(self._ids))
            if not self._admit(flow):
                accepted.close()
                continue
            self._unanswered[flow.connection] = accepted
            if transport == "TCP":
                self._by_remote[remote] = flow
            serving = self._serve(flow, accepted, context, websockets)
            self._tasks.spawn(serving, f"SIP {transport} handshake")

    def _admit(self, flow: Flow) -> bool:
        """Count the connection of a peer, unless there are too many."""
        source, most = _source(flow)
        if self._peers[source] >= most or not self._make_room():
            logger.debug("{} {}: too many connections", flow.transport, flow.remote)
            return False
        self._peers[source] += 1
        self._sources[flow.connection] = source
        return True

    async def serve_desk(
        self, socket: web.WebSocketResponse, transport: asyncio.Transport, flow: Flow
    ) -> None:
        """Serve the WebSocket that an HTTP server has accepted from an extension's desk, until it
        closes. The flow names the extension, and has no connection yet."""
        flow = replace(flow, connection=next(self._ids))
        if self._closing or not self._admit(flow):
            return
        connection = WebSocketConnection(flow, self)
        connection.made(transport)
        self._add(connection)
        try:
            await connection.serve(socket)
        finally:
            connection.closed()

    def close_desks(self, extensions: Collection[str]) -> None:
        """Close the connections of these extensions' desks."""
        for connection in tuple(self._connections.values()):
            if connection.flow.extension in extensions:
                connection.abort()

    def _make_room(self) -> bool:
        """Return whether there is room for another connection of a peer."""
        if len(self._sources) < MAX_CONNECTIONS:
            return True
        number = next(iter(self._unanswered), None)
        if number is None:
            return False
        accepted = self._unanswered.pop(number)
        with suppress(OSError):  # not connected any more
            accepted.shutdown(socket.SHUT_RDWR)  # which ends a TLS handshake too
        connection = self._connections.get(number)
        if connection is not None:
            connection.abort()
        return True

    async def _serve(
        self,
        flow: Flow,
        accepted: socket.socket,
        context: ssl.SSLContext | None,
        websockets: WebSocketServer | None,
    ) -> None:
        """Pass an accepted socket to its protocol, after the TLS handshake."""
        connection: StreamConnection | WebSocketConnection
        protocol: asyncio.BaseProtocol
        if websockets is None:
            connection = protocol = StreamConnection(flow, self)
        else:
            connection = WebSocketConnection(flow, self)
            protocol = websockets.protocol_for(connection)
        self._add(connection)
        try:
            await asyncio.get_running_loop().connect_accepted_socket(
                lambda: protocol,
                accepted,
                ssl=context,
                ssl_handshake_timeout=None if context is None else HANDSHAKE_TIMEOUT_S,
            )
        except OSError as error:  # including ssl.SSLError
            reason = str(error) or type(error).__name__
            logger.debug("{} {}: {}", flow.transport, flow.remote, reason)
            accepted.close()
            connection.closed()

    # --- called by connections (stream_io.Owner) ---

    def received(self, data: bytes, flow: Flow) -> None:
        if not self._closing:
            self._on_message(data, flow)

    def ended(self, connection: Connection, error: Exception | None = None) -> None:
        flow = connection.flow
        del self._connections[flow.connection]
        route = self._routes.get(flow.connection)
        if route is not None and isinstance(error, ssl.SSLError):
            # With TLS 1.3 the handshake is over before a server refuses our certificate.
            fault = no_connection(error, route.server_name or flow.remote[0])
            self._faults[flow.connection] = fault
            logger.info("{} {}: {}", flow.transport, flow.remote, fault)
        self._unanswered.pop(flow.connection, None)
        source = self._sources.pop(flow.connection, None)
        if source is not None:
            self._peers[source] -= 1
            if not self._peers[source]:
                del self._peers[source]
            if self._by_remote.get(flow.remote) == flow:
                del self._by_remote[flow.remote]
        for other in self._unnamed.pop(flow.connection, ()):
            self._fail(other)
        self._fail(flow)

    # --- bookkeeping ---

    def _add(self, connection: Connection) -> None:
        self._connections[connection.flow.connection] = connection
        if self._check is None:
            loop = asyncio.get_running_loop()
            self._check = loop.call_later(CHECK_INTERVAL_S, self._check_all)

    def _check_all(self) -> None:
        now = monotonic()
        for connection in tuple(self._connections.values()):
            connection.check(now)
        self._check = None
        if self._connections:
            loop = asyncio.get_running_loop()
            self._check = loop.call_later(CHECK_INTERVAL_S, self._check_all)
