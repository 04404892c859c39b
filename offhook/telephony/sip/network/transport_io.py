"""The sockets of the SIP edge: UDP, TCP, TLS, WS and WSS (RFC 3261 §18, RFC 7118).

Nothing here blocks, and nothing that a peer does is raised: a message that cannot be sent ends in
`on_closed` for its flow. IPv4 and IPv6 sockets are apart, so that an address is never a mapped one.
"""

import asyncio
import errno
import socket
import ssl
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from ipaddress import ip_address
from itertools import count
from time import monotonic

from loguru import logger

from offhook.media.tasks_io import TaskSet
from offhook.telephony.sip.messages.flow import Flow, TransportName
from offhook.telephony.sip.network.connection_errors import no_connection
from offhook.telephony.sip.network.stream_io import (
    CONNECT_S,
    Connection,
    StreamConnection,
    client_context,
)
from offhook.telephony.sip.network.udp_io import UdpSocket, family_of, host_port, local_address_for
from offhook.telephony.sip.network.websocket_io import WebSocketConnection, WebSocketServer

MAX_CONNECTIONS = 1000
"""Of peers, over all transports; further ones are closed at once."""
MAX_CONNECTIONS_PER_SOURCE = 100
"""Of one address (IPv6: one /64), which may be an office of browsers behind a NAT."""
MAX_ROUTES = 500
"""Peers we connect to; beyond it the longest unused gives way, and when all are connected what
needs another fails."""
HANDSHAKE_S = 10.0
"""For a peer's TLS handshake."""
CHECK_S = 1.0
"""How often all connections are looked at for what takes too long."""
ACCEPT_PAUSE_S = 1.0
"""When there are no file descriptors left."""
BACKLOG = 256
"""Connections that wait in the kernel to be accepted."""


def _source(host: str) -> str:
    """What connections are counted by."""
    address = ip_address(host)
    return f"{int(address) >> 64:x}/64" if address.version == 6 else host


@dataclass(frozen=True)
class _Listener:
    transport: TransportName
    sock: socket.socket
    ssl_context: ssl.SSLContext | None
    websockets: WebSocketServer | None
    task: "asyncio.Task[None]"


@dataclass(frozen=True)
class _Route:
    """Where we connect to; its flow holds over one connection after another."""

    flow: Flow
    server_name: str
    verify: bool

    @property
    def key(self) -> "_RouteKey":
        return (self.flow.transport, self.flow.remote, self.server_name, self.verify)


_RouteKey = tuple[TransportName, tuple[str, int], str, bool]


class Transports:
    """All sockets of one process."""

    def __init__(
        self,
        on_message: Callable[[bytes, Flow], None],
        on_closed: Callable[[Flow], None],
        alpn: Sequence[str] = (),
        authorities: ssl.SSLContext | None = None,
    ) -> None:
        """`on_message`: one message as it came; must not raise. `on_closed`: a connection is gone
        or could not be made, or a datagram could not be sent; never called from within `send`.
        `authorities`: the context of TLS connections of ours that are verified, in place of the
        system's authorities."""
        self._on_message = on_message
        self._on_closed = on_closed
        self._alpn = alpn
        self._contexts = {} if authorities is None else {True: authorities}
        """Of TLS connections of ours, by whether they are verified."""
        self._udp: dict[tuple[str, int], UdpSocket] = {}
        self._listeners: list[_Listener] = []
        self._connections: dict[int, Connection] = {}
        self._ids = count(1)
        self._peers: Counter[str] = Counter()
        """Connections that peers have made, by source."""
        self._sources: dict[int, str] = {}
        """Of these, by id."""
        self._by_remote: dict[tuple[str, int], Flow] = {}
        """TCP connections that peers have made, by where from."""
        self._routes: dict[int, _Route] = {}
        """By id; the last used is last."""
        self._route_ids: dict[_RouteKey, int] = {}
        self._faults: dict[int, str] = {}
        """Of routes, why there was no connection the last time, in words."""
        self._unnamed: dict[int, set[Flow]] = {}
        """Flows without an id that are carried by a connection of ours."""
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
        """Listen on a numeric address and port, 0 for any; says which. Raises OSError when it is
        taken, ValueError when the host is not numeric."""
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
        """Close everything; nothing is called back any more."""
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
        """The context of TLS connections of ours that are verified, in place of the system's
        authorities."""
        self._contexts[True] = authorities

    # --- sending ---

    def flow_to(
        self,
        transport: TransportName,
        host: str,
        port: int,
        server_name: str = "",
        verify: bool = True,
    ) -> Flow:
        """The way to a peer: by the UDP socket we listen on, or a connection there, which is made
        when something is sent and made anew when it is gone. `host` is numeric (ValueError
        otherwise); over TLS the certificate must be for `server_name`, by default the address.

        What is sent to a WebSocket peer by such a flow fails: browsers cannot be connected to.
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

    def send(self, data: bytes, flow: Flow) -> None:
        """Send one message, never waiting for the peer. A stream without a connection gets one."""
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
            connection.send(data)

    def fault_of(self, flow: Flow) -> str:
        """Why there is no connection to a flow's far end, in words; "" when that is not known."""
        unnamed = self._route_ids.get((flow.transport, flow.remote, "", True), 0)
        return self._faults.get(flow.connection or unnamed, "")

    def _local(self, family: socket.AddressFamily) -> tuple[str, int]:
        """Of the first UDP socket of the family; sending from it fails when there is none."""
        return next((u.local for u in self._udp.values() if u.family == family), ("", 0))

    def _fail(self, flow: Flow) -> None:
        def tell() -> None:
            if not self._closing:
                self._on_closed(flow)

        asyncio.get_running_loop().call_soon(tell)

    # --- connections of ours ---

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
        """Begin a connection of ours; what is sent waits in it."""
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
            async with asyncio.timeout(CONNECT_S):
                tls = transport == "TLS"
                context = await self._client_context(route.verify) if tls else None
                await asyncio.get_running_loop().create_connection(
                    lambda: connection,
                    host,
                    port,
                    ssl=context,
                    server_hostname=route.server_name or host if tls else None,
                )
        except (OSError, ValueError) as error:  # ValueError: a server name that cannot be one
            fault = no_connection(error, route.server_name or host)
            self._faults[route.flow.connection] = fault
            logger.info("x {} {}: {}", transport, route.flow.remote, fault)
            connection.closed()

    async def _client_context(self, verify: bool) -> ssl.SSLContext:
        context = self._contexts.get(verify)
        if context is None:
            context = await asyncio.to_thread(client_context, verify, self._alpn)
            self._contexts[verify] = context
        return context

    # --- connections of peers ---

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
                    logger.warning("x {}: cannot accept connections: {}", transport, error)
                    await asyncio.sleep(ACCEPT_PAUSE_S)
                continue  # a peer that has gone before it was accepted
            remote = host_port(address)
            source = _source(remote[0])
            full = len(self._sources) >= MAX_CONNECTIONS
            if full or self._peers[source] >= MAX_CONNECTIONS_PER_SOURCE:
                logger.debug("x {} {}: too many connections", transport, remote)
                accepted.close()
                continue
            flow = Flow(transport, remote, local, next(self._ids))
            self._peers[source] += 1
            self._sources[flow.connection] = source
            if transport == "TCP":
                self._by_remote[remote] = flow
            serving = self._serve(flow, accepted, context, websockets)
            self._tasks.spawn(serving, f"SIP {transport} handshake")

    async def _serve(
        self,
        flow: Flow,
        accepted: socket.socket,
        context: ssl.SSLContext | None,
        websockets: WebSocketServer | None,
    ) -> None:
        """Hand an accepted socket to its protocol, through the TLS handshake."""
        connection: StreamConnection | WebSocketConnection
        protocol: asyncio.BaseProtocol
        if websockets is None:
            connection = protocol = StreamConnection(flow, self)
        else:
            connection = WebSocketConnection(flow, self, websockets)
            protocol = connection.protocol
        self._add(connection)
        try:
            await asyncio.get_running_loop().connect_accepted_socket(
                lambda: protocol,
                accepted,
                ssl=context,
                ssl_handshake_timeout=None if context is None else HANDSHAKE_S,
            )
        except OSError as error:  # ssl.SSLError among them
            reason = str(error) or type(error).__name__
            logger.debug("x {} {}: {}", flow.transport, flow.remote, reason)
            accepted.close()
            connection.closed()

    # --- what connections tell (stream_io.Owner) ---

    def received(self, data: bytes, flow: Flow) -> None:
        if not self._closing:
            self._on_message(data, flow)

    def ended(self, connection: Connection) -> None:
        flow = connection.flow
        del self._connections[flow.connection]
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

    # --- owning ---

    def _add(self, connection: Connection) -> None:
        self._connections[connection.flow.connection] = connection
        if self._check is None:
            loop = asyncio.get_running_loop()
            self._check = loop.call_later(CHECK_S, self._check_all)

    def _check_all(self) -> None:
        now = monotonic()
        for connection in tuple(self._connections.values()):
            connection.check(now)
        self._check = None
        if self._connections:
            loop = asyncio.get_running_loop()
            self._check = loop.call_later(CHECK_S, self._check_all)
