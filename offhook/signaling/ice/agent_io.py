"""ICE agents that share a port, that can restart, and that hear nobody but their peer: aioice and
aiortc, extended at their joints.

aiortc 1.16.0 keeps one `aioice.Connection` for the life of a transport, and aioice 0.13.0 binds a
socket of its own for each. An `IceAgent` stands where aiortc has a Connection and outlives those
that it uses: one, and after an ICE restart another. `use_agents` puts it there. All private names
of the two libraries that this relies on are in this file; tests/signaling/ice/test_agent.py fails
if one of them moves.
"""

import asyncio
from collections import defaultdict
from collections.abc import Callable, Sequence
from time import monotonic
from typing import Any

import aioice.ice
from aioice import Candidate, Connection, ConnectionClosed, stun
from aioice.candidate import candidate_priority
from aioice.mdns import is_mdns_hostname
from aiortc import RTCIceServer, RTCPeerConnection
from aiortc.rtcdtlstransport import RTCDtlsTransport
from aiortc.rtcicetransport import RTCIceCandidate, candidate_to_aioice, connection_kwargs
from loguru import logger

from offhook.media import native
from offhook.media.budget import Budget
from offhook.media.rtp.dtls import records
from offhook.media.tasks_io import first_of
from offhook.signaling.ice.demultiplexer import (
    MAX_ADDRESSES,
    PASSWORD_CHARACTERS,
    UFRAG_CHARACTERS,
    Address,
    IceSession,
    Local,
    random_credential,
    ssrc_of,
)
from offhook.signaling.ice.port_io import IcePort

RESTART_TIMEOUT_S = 30.0
"""Time limit in s from a restart to a nominated pair of its own; then the call stays on the old
one."""
OVERLAP_S = 2.0
"""How long the old connection still receives after a restart: packets on their way."""
MAX_QUEUED = 256
"""DTLS records that wait; further ones are dropped."""
MAX_DTLS_BYTES = 1500
"""Maximum size of a datagram with DTLS; longer ones are dropped. aiortc reads so much of a record
at a time, and paths carry no more."""
RECORDS_PER_SECOND = 1000
"""DTLS records of a peer that are decrypted; what comes beyond is dropped, as on a narrow line."""
RECORDS_AT_ONCE = 1000
"""DTLS records that are decrypted at once after some silence."""


class _PortProtocol(aioice.ice.StunProtocol):
    """A Connection's share of a socket that it does not own."""

    def __init__(self, connection: "PortConnection", local: Local, candidate: Candidate) -> None:
        super().__init__(connection)
        self.transport = local.transport
        self.local_candidate = candidate
        self._demultiplexer = connection.port.demultiplexer
        self._connection = connection

    async def request(
        self,
        request: stun.Message,
        addr: Address,
        integrity_key: bytes | None = None,
        retransmissions: int | None = None,
    ) -> tuple[stun.Message, Address]:
        if self._connection.session is None:
            raise stun.TransactionTimeout
        self._demultiplexer.expect(request.transaction_id, self._connection.session)
        try:
            return await super().request(request, addr, integrity_key, retransmissions)
        finally:
            self._demultiplexer.forget(request.transaction_id)

    async def close(self) -> None:
        """Leaves the socket open."""


class _AgentConnection(Connection):
    """A Connection whose datagrams go to an agent, if they come from an address of its peer: one
    from which there was a check with our password, or a right answer to ours (RFC 8445 §7.3, §7.2).
    That is so before a pair is nominated, as browsers send DTLS by then, and for each path of a
    peer with several. What comes from elsewhere would end the handshake, and is dropped."""

    def __init__(self, agent: "IceAgent", **settings: Any) -> None:
        super().__init__(**settings)
        self.agent = agent
        self._sources: dict[aioice.ice.StunProtocol, set[Address]] = defaultdict(set)
        """The peer's addresses, by the socket of this connection that has heard them."""
        self._checked: set[Address] = set()
        """Addresses that were checked because the peer's RTP seemed to come from there."""

    async def gather_candidates(self) -> None:
        """Gathers our candidates; closes what was opened for them if the connection has been closed
        meanwhile, which could not know of it."""
        await self._gather()
        if self._closing:
            await self.close()

    async def _gather(self) -> None:
        await super().gather_candidates()

    def receive(self, data: bytes, remote: Address, protocol: aioice.ice.StunProtocol) -> None:
        """Handles a datagram that is not STUN, from a socket of this connection."""
        if remote in self._sources[protocol]:
            self.agent.data_received(data, 1)
            return
        self.agent.strangers += 1
        if remote not in self._checked and len(self._checked) < MAX_ADDRESSES:
            ssrc = ssrc_of(data)
            if ssrc is not None and self.agent.is_remote_ssrc(ssrc):
                self._checked.add(remote)
                self._check(protocol, remote)

    def data_received(self, data: bytes, component: int) -> None:
        """Drops what begins like STUN and is none."""
        _count_malformed()

    def check_incoming(
        self, message: stun.Message, addr: Address, protocol: aioice.ice.StunProtocol
    ) -> None:
        """Handles a check whose MESSAGE-INTEGRITY was right. A peer has at most MAX_ADDRESSES on a
        socket: aioice keeps each of them."""
        sources = self._sources[protocol]
        if addr in sources or len(sources) < MAX_ADDRESSES:
            sources.add(addr)
            super().check_incoming(message, addr, protocol)

    def check_complete(self, pair: aioice.ice.CandidatePair) -> None:
        if pair.state is aioice.ice.CandidatePair.State.SUCCEEDED:
            self._sources[pair.protocol].add(pair.remote_addr)  # an ICE-lite peer sends no checks
        super().check_complete(pair)

    def _check(self, protocol: aioice.ice.StunProtocol, remote: Address) -> None:
        """Takes a packet as the sign that the peer has nominated this path: if the peer answers our
        check, it is used."""
        if self._nominated and not self.ice_controlling:
            attributes = {"PRIORITY": candidate_priority(1, "prflx"), "USE-CANDIDATE": None}
            sign = stun.Message(stun.Method.BINDING, stun.Class.REQUEST, attributes=attributes)
            super().check_incoming(sign, remote, protocol)

    async def query_consent(self) -> None:
        """Asks for the peer's consent to send (RFC 7675), if the agent needs it."""
        if self.agent.needs_consent:
            await super().query_consent()

    def protocol_lost(self, protocol: aioice.ice.StunProtocol) -> None:
        """Nothing: the loss of consent ends a connection."""

    def hand_over(self, heir: "_AgentConnection") -> None:
        """Leaves what this connection has learned to the one after a restart."""


_malformed: list[Callable[[], None]] = []


def on_malformed_stun(count: Callable[[], None]) -> None:
    """Calls `count` for every datagram on a socket of an agent that looks like STUN but cannot be
    parsed. Only the last callback registered is called."""
    _malformed[:] = [count]


def _count_malformed() -> None:
    for count in _malformed:
        count()


def _guard_sockets() -> None:
    """Has aioice's sockets hand on the source of what is not STUN, and keeps them from raising on
    malformed STUN, which would log a traceback for each."""
    parse = aioice.ice.StunProtocol.datagram_received

    def datagram_received(
        self: aioice.ice.StunProtocol, data: bytes | str, addr: tuple[Any, ...]
    ) -> None:
        assert isinstance(data, bytes)
        remote = addr if len(addr) == 2 else addr[:2]
        if isinstance(self.receiver, _AgentConnection) and (not data or data[0] > 3):
            self.receiver.receive(data, remote, self)  # RFC 7983 §7
            return
        try:
            parse(self, data, remote)
        except Exception:  # struct.error, KeyError, …: whatever the parser raises
            _count_malformed()

    aioice.ice.StunProtocol.datagram_received = datagram_received  # type: ignore[method-assign]


_guard_sockets()


class PortConnection(_AgentConnection):
    """A Connection that shares a port."""

    def __init__(self, agent: "IceAgent", port: IcePort, **settings: Any) -> None:
        super().__init__(agent, **settings)
        self.port = port
        self.session: IceSession | None = None
        """While the port knows it."""
        self._heir: IceSession | None = None
        self._shares: dict[Local, _PortProtocol] = {}

    async def _gather(self) -> None:
        """Takes the candidates of the port; only a relayed one needs a socket."""
        if self._local_candidates_start:
            return
        self._local_candidates_start = True
        demultiplexer = self.port.demultiplexer
        self.session = demultiplexer.register(self, self.local_username, self.local_password)
        for udp, candidate in self.port.candidates():
            self._protocols.append(self._share(udp.local, candidate))
        unique: dict[tuple[str, str], Candidate] = {}  # behind a NAT, sockets share an address
        for candidate in (c.local_candidate for c in self._protocols):
            unique.setdefault((candidate.transport, candidate.host), candidate)
        for candidate in self.port.tcp_candidates():
            unique.setdefault((candidate.transport, candidate.host), candidate)
        self._local_candidates += unique.values()
        if self.turn_server is not None:
            self._local_candidates += await self.get_component_candidates(1, [])
        self._local_candidates_end = True

    def _share(self, local: Local, candidate: Candidate) -> _PortProtocol:
        share = self._shares[local] = _PortProtocol(self, local, candidate)
        return share

    def receive_data(self, data: bytes) -> None:
        self.agent.data_received(data, 1)

    def receive_request(self, message: stun.Message, local: Local, remote: Address) -> None:
        share = self._shares.get(local)
        if share is None:  # the first on a TCP connection
            share = self._share(local, self.port.tcp_candidates()[0])
        self.request_received(message, remote, share)

    def receive_response(self, message: stun.Message, local: Local, remote: Address) -> bool:
        share, key = self._shares.get(local), self.remote_password or ""
        if share is None or not message.check_message_integrity(key.encode()):
            return False
        transaction = share.transactions.get(message.transaction_id)
        if transaction is None:  # a check that was answered on another socket
            return False
        transaction.response_received(message, remote)
        return True

    def close_local(self, local: Local) -> None:
        self._shares.pop(local, None)

    def sends(self, ssrc: int) -> bool:
        return self.agent.is_remote_ssrc(ssrc)

    def check_address(self, local: Local, remote: Address) -> None:
        share = self._shares.get(local)
        if share is not None:
            self._check(share, remote)

    def hand_over(self, heir: _AgentConnection) -> None:
        if isinstance(heir, PortConnection):
            self._heir = heir.session

    async def close(self) -> None:
        if self.session is not None:
            now = asyncio.get_running_loop().time()
            self.port.demultiplexer.unregister(self.session, now, self._heir)
            self.session = None
        self._shares.clear()
        await super().close()


async def _add_by_name(connection: Connection, candidate: Candidate) -> None:
    try:
        await connection.add_remote_candidate(candidate)
    except OSError as error:  # another program has the port of mDNS for itself
        logger.debug("{} cannot be looked up: {}", candidate.host, error)


class IceConnections:
    """The connections of one agent: one at a time, two during a restart."""

    def __init__(
        self, make: Callable[[bool], _AgentConnection], on_end: Callable[[], None]
    ) -> None:
        """`make` makes a connection, controlling or not; `on_end` is called once at the end."""
        self.current = make(False)
        self.pending: _AgentConnection | None = None
        """The connection of a restart, until it has a nominated pair."""
        self.ended = asyncio.Event()
        self._previous: _AgentConnection | None = None
        """The connection before a restart, until its last packets are there."""
        self._make = make
        self._on_end = on_end
        self._runs: dict[_AgentConnection, asyncio.Task[None]] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._started = False
        self._restarting = asyncio.Lock()
        self._connected = asyncio.Event()

    @property
    def newest(self) -> _AgentConnection:
        return self.pending or self.current

    async def add(self, connection: _AgentConnection, candidate: Candidate) -> None:
        """Adds a candidate, unless it is for RTCP alone (component 2), which shares the path of RTP
        here. Nobody waits for the address of an mDNS name, which pages without a microphone have
        for theirs: outside their network it takes a second to find none."""
        if candidate.component != 1:
            return
        if is_mdns_hostname(candidate.host):
            self._later(_add_by_name(connection, candidate))
        else:
            await connection.add_remote_candidate(candidate)

    async def connect(self) -> None:
        """Waits for a nominated pair. Raises ConnectionError if the agent is closed before."""
        self._started = True
        for connection in filter(None, (self.current, self.pending)):
            self._run(connection)
        await first_of(self._connected.wait(), self.ended.wait())
        if not self._connected.is_set():
            raise ConnectionError("ICE has failed")

    async def close(self) -> None:
        """Closes all connections. Idempotent."""
        self._end()
        tasks = [*self._runs.values(), *self._tasks]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for connection in (self.current, self.pending, self._previous):
            if connection is not None:
                await connection.close()
        self.pending = self._previous = None

    async def restart(
        self, ufrag: str, password: str, candidates: Sequence[Candidate] = ()
    ) -> None:
        """Begins an ICE restart (RFC 8445 §9) to a peer's new credentials: our own are new, too,
        and media stays on the old pair until there is a new one. Another restart replaces it."""
        async with self._restarting:  # the one before may still open its sockets
            await self.cancel_restart()
            if self.ended.is_set():
                raise ConnectionError("the ICE connection has ended")
            pending = self._make(self.current.ice_controlling)
            pending.remote_is_lite = self.current.remote_is_lite
            pending.remote_username, pending.remote_password = ufrag, password
            self.pending = pending
            await pending.gather_candidates()
            if self.pending is not pending:  # closed, or cancelled, while it opened them
                await pending.close()
                raise ConnectionError("the ICE restart was cancelled")
            for candidate in candidates:
                await self.add(pending, candidate)
            if self._started and self.pending is pending:
                self._run(pending)

    async def cancel_restart(self) -> None:
        """Ends a restart that has not connected; the call stays on the old pair."""
        if self.pending is not None:
            pending, self.pending = self.pending, None
            await self._stop(pending)

    def _run(self, connection: _AgentConnection) -> None:
        if connection not in self._runs and not self.ended.is_set():
            self._runs[connection] = asyncio.create_task(self._follow(connection), name="ICE")

    async def _follow(self, connection: _AgentConnection) -> None:
        """Runs a connection to its end."""
        limit = RESTART_TIMEOUT_S if connection is self.pending else None
        try:
            async with asyncio.timeout(limit):
                await connection.connect()
        except (ConnectionError, TimeoutError) as error:
            logger.debug("an ICE connection has failed: {}", str(error) or type(error).__name__)
        else:
            self._use(connection)
            await connection.get_event()
        if connection is self.pending:
            self.pending = None
            self._later(connection.close())
        if connection is self.current and self.pending is None:
            self._end()
        elif self.pending is None and not self.current._nominated:
            self._end()  # the restart was the last hope

    def _use(self, connection: _AgentConnection) -> None:
        """Sends on this connection from now on."""
        if connection is self.pending:
            if self._previous is not None:
                self._later(self._previous.close())
            self._previous, self.current, self.pending = self.current, connection, None
            self._previous.hand_over(connection)
            self._later(self._retire(self._previous))
        self._connected.set()

    async def _retire(self, connection: _AgentConnection) -> None:
        await asyncio.sleep(OVERLAP_S)
        await self._stop(connection)
        if self._previous is connection:
            self._previous = None

    async def _stop(self, connection: _AgentConnection) -> None:
        run = self._runs.pop(connection, None)
        if run is not None:
            run.cancel()
            await asyncio.gather(run, return_exceptions=True)
        await connection.close()

    def _later(self, work: Any) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _end(self) -> None:
        if not self.ended.is_set():
            self.ended.set()
            self._on_end()


class IceAgent:
    """What aiortc takes for a Connection: one at a time, two during a restart."""

    def __init__(
        self, port: IcePort | None, servers: Sequence[RTCIceServer], needs_consent: bool = True
    ) -> None:
        """Without a port, its connections have sockets of their own."""
        self._port = port
        self.needs_consent = needs_consent
        """Whether the agent fails once the peer no longer answers checks."""
        self._settings = connection_kwargs(list(servers))
        self.is_remote_ssrc: Callable[[int], bool] = lambda ssrc: False
        """Whether the peer's RTP has this SSRC; set once media is there."""
        self.strangers = 0
        """Datagrams dropped because they were not from the peer, on sockets of its own."""
        self.inbound: native.Inbound | None = None
        """Takes RTP in place of `data_received` when it is read on the compiled path."""
        self._queue: asyncio.Queue[bytes | None] = asyncio.Queue(MAX_QUEUED + 1)
        self._budget = Budget(RECORDS_PER_SECOND, RECORDS_AT_ONCE)
        # There is always room for the one that ends the queue.
        self.connections = IceConnections(self._connection, lambda: self._queue.put_nowait(None))

    def _connection(self, controlling: bool) -> _AgentConnection:
        if self._port is None:
            ufrag = random_credential(UFRAG_CHARACTERS)
            password = random_credential(PASSWORD_CHARACTERS)
        else:
            ufrag, password = self._port.demultiplexer.credentials()
        settings = {
            **self._settings,
            "ice_controlling": controlling,
            "local_username": ufrag,
            "local_password": password,
        }
        if self._port is None:
            return _AgentConnection(self, **settings)
        return PortConnection(self, self._port, **settings)

    # --- what aiortc asks of a Connection ---

    @property
    def ice_controlling(self) -> bool:
        return self.connections.newest.ice_controlling

    @ice_controlling.setter
    def ice_controlling(self, controlling: bool) -> None:
        self.connections.newest.ice_controlling = controlling

    @property
    def remote_is_lite(self) -> bool:
        return self.connections.newest.remote_is_lite

    @remote_is_lite.setter
    def remote_is_lite(self, lite: bool) -> None:
        self.connections.newest.remote_is_lite = lite

    @property
    def remote_username(self) -> str | None:
        return self.connections.newest.remote_username

    @remote_username.setter
    def remote_username(self, ufrag: str | None) -> None:
        self.connections.newest.remote_username = ufrag

    @property
    def remote_password(self) -> str | None:
        return self.connections.newest.remote_password

    @remote_password.setter
    def remote_password(self, password: str | None) -> None:
        self.connections.newest.remote_password = password

    @property
    def local_username(self) -> str:
        return self.connections.newest.local_username

    @property
    def local_password(self) -> str:
        return self.connections.newest.local_password

    @property
    def local_candidates(self) -> list[Candidate]:
        return self.connections.newest.local_candidates

    @property
    def has_gathered(self) -> bool:
        """Whether all local candidates are known."""
        return self.connections.newest._local_candidates_end

    @property
    def remote_candidates(self) -> list[Candidate]:
        return self.connections.newest.remote_candidates

    @property
    def _nominated(self) -> dict[int, aioice.ice.CandidatePair]:
        return self.connections.current._nominated

    async def gather_candidates(self) -> None:
        await self.connections.newest.gather_candidates()

    async def add_remote_candidate(self, candidate: Candidate | None) -> None:
        """Adds a candidate. The end of candidates is ignored: with it aioice fails at once if there
        were none that it can use, while the peer's checks may still come; whoever calls has a time
        limit."""
        if candidate is not None:
            await self.connections.add(self.connections.newest, candidate)

    async def connect(self) -> None:
        """Waits for a nominated pair. Raises ConnectionError if the agent is closed before."""
        await self.connections.connect()

    async def get_event(self) -> ConnectionClosed:
        """Waits for the end."""
        await self.connections.ended.wait()
        return ConnectionClosed()

    def data_received(self, data: bytes, component: int) -> None:
        """Queues a datagram's DTLS records for `recv`, each for itself: aiortc reads one at a time,
        and others would pile up in OpenSSL's buffer."""
        if len(data) > MAX_DTLS_BYTES:
            return
        for record in records(data):
            if self._queue.qsize() < MAX_QUEUED and self._budget.spend(1, monotonic()):
                self._queue.put_nowait(record)

    async def recv(self) -> bytes:
        """Returns the next DTLS record. Raises ConnectionError at the end."""
        data = None if self.connections.ended.is_set() else await self._queue.get()
        if data is None:
            raise ConnectionError("the ICE connection has ended")
        return data

    async def send(self, data: bytes) -> None:
        """Sends a datagram. Raises ConnectionError without a nominated pair."""
        await self.connections.current.send(data)

    async def close(self) -> None:
        """Closes all connections. Idempotent."""
        await self.connections.close()


def use_agents(
    connection: RTCPeerConnection,
    port: IcePort | None,
    servers: Sequence[RTCIceServer],
    needs_consent: bool = True,
) -> list[IceAgent]:
    """Has a peer connection without transports so far use IceAgents; returns the list of them.

    Each transport gets credentials of its own, so that m-lines outside a bundle can share a port.
    """
    agents: list[IceAgent] = []
    create = connection._RTCPeerConnection__createDtlsTransport  # type: ignore[attr-defined]

    def create_with_agent() -> RTCDtlsTransport:
        dtls: RTCDtlsTransport = create()
        ice: Any = dtls.transport
        agent = IceAgent(port, servers, needs_consent)
        agents.append(agent)
        ice._connection = ice.iceGatherer._connection = agent
        ice._recv, ice._send = agent.recv, agent.send

        async def add(candidate: RTCIceCandidate | None) -> None:
            if candidate is not None:  # after a restart there are more
                await agent.add_remote_candidate(candidate_to_aioice(candidate))

        ice.addRemoteCandidate = add
        return dtls

    connection._RTCPeerConnection__createDtlsTransport = create_with_agent  # type: ignore[attr-defined]
    return agents
