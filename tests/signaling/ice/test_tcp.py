"""ICE-TCP: a real peer behind a firewall that lets no UDP through, and who else connects."""

import asyncio
import re

import pytest
from aioice import stun

from offhook.media.clock_io import PacketClock
from offhook.signaling.ice import tcp_io
from offhook.signaling.ice.framing import Deframer, frame
from offhook.signaling.ice.port_io import IcePort
from offhook.signaling.peer_io import PeerLeg
from tests.signaling.ice.test_demultiplexer import Agent, check
from tests.support.ice import Caller, bare, datagrams, talk
from tests.support.waiting import HANGS_S, until

pytestmark = pytest.mark.usefixtures("loopback", "nothing_left")


class Bridge(asyncio.Protocol):
    """Datagrams of a peer, framed onto a TCP connection, and back: the TCP of a browser."""

    def __init__(self, port: int) -> None:
        self.port = port
        self.peer: tuple[str, int] | None = None
        self.deframer = Deframer()
        self.tcp: asyncio.Transport | None = None
        self.checked = False
        """Whether a check was sent over this connection."""

    async def open(self) -> "Bridge":
        self.udp = await datagrams(self._forward)
        await self.connect()
        return self

    def _forward(self, data: bytes, peer: tuple[str, int]) -> None:
        self.peer = peer
        # A browser sends nothing over a new connection before a check (RFC 7983: 0 to 3).
        self.checked |= data[0] < 4
        if self.tcp is not None and self.checked:
            self.tcp.write(frame(data))

    async def connect(self) -> None:
        self.deframer, self.checked = Deframer(), False
        self.tcp, _ = await asyncio.get_running_loop().create_connection(
            lambda: self, "127.0.0.1", self.port
        )

    def data_received(self, data: bytes) -> None:
        for packet in self.deframer.receive(data):
            if self.peer is not None:
                self.udp.sendto(packet, self.peer)

    def connection_lost(self, error: Exception | None) -> None:
        self.tcp, self.checked = None, False

    def close(self) -> None:
        self.udp.close()
        if self.tcp is not None:
            self.tcp.abort()


async def call(port: IcePort, bridge: Bridge) -> Caller:
    """A call over the bridge alone."""
    host, number = bridge.udp.get_extra_info("sockname")
    near = f"a=candidate:1 1 udp 1 {host} {number} typ host\r\n"
    caller = Caller(PeerLeg("callee", ice_port=port))
    answer = await caller.call(
        bare, lambda sdp: bare(sdp).replace("a=ice-ufrag", near + "a=ice-ufrag")
    )
    assert f"127.0.0.1 {port.port} typ host tcptype passive" in answer
    udp, tcp = (
        [int(p) for p in re.findall(rf"1 {kind} (\d+) ", answer)] for kind in ("udp", "tcp")
    )
    assert max(tcp) < min(udp)
    assert await asyncio.wait_for(caller.leg.until_connected(), HANGS_S)
    return caller


async def test_a_call_over_tcp_outlives_its_connection(port: IcePort) -> None:
    bridge, clock = await Bridge(port.port).open(), PacketClock()
    caller = await call(port, bridge)
    clock.add(caller.leg)
    await talk(caller)
    assert not any(udp.local.paths for udp in port.sockets.values())
    for connection in tuple(port.tcp.connections):
        connection.abort()
    await until(lambda: bridge.tcp is None)
    await asyncio.sleep(0.2)  # we talk into nothing
    assert caller.leg.closed is None
    await bridge.connect()
    await caller.nominate()
    await talk(caller)
    assert caller.leg.srtp_failures == 0
    await caller.close()
    clock.remove(caller.leg)
    bridge.close()
    await until(lambda: not port.tcp.connections)


@pytest.mark.parametrize(
    "sent",
    [
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",  # TLS
        b"GET / HTTP/1.1\r\n\r\n",
        frame(bytes([22, 254, 253, 0, 0])),  # DTLS without a check
        frame(bytes([128, 111]) + bytes(20)),
        frame(check("nobody")),
        frame(check("alice", "q" * 24)),
        frame(b""),
    ],
)
async def test_who_does_not_begin_with_a_check_is_disconnected(port: IcePort, sent: bytes) -> None:
    session = port.demultiplexer.register(Agent(), "alice", "p" * 24)
    reader, writer = await asyncio.open_connection("127.0.0.1", port.port)
    writer.write(sent)
    with pytest.raises((ConnectionError, asyncio.IncompleteReadError)):
        await asyncio.wait_for(reader.readexactly(1), HANGS_S)
    writer.close()
    port.demultiplexer.unregister(session, 0.0)


async def test_who_says_nothing_is_disconnected(port: IcePort, monkeypatch) -> None:
    monkeypatch.setattr(tcp_io, "FIRST_CHECK_S", 0.1)
    reader, writer = await asyncio.open_connection("127.0.0.1", port.port)
    with pytest.raises((ConnectionError, asyncio.IncompleteReadError)):
        await asyncio.wait_for(reader.readexactly(1), HANGS_S)
    writer.close()


async def test_the_silent_give_way_to_those_who_come_later(port: IcePort, monkeypatch) -> None:
    monkeypatch.setattr(tcp_io, "MAX_UNCHECKED", 3)
    opened = [await asyncio.open_connection("127.0.0.1", port.port) for _ in range(8)]
    await until(lambda: len(port.tcp.connections) == 3)
    session = port.demultiplexer.register(agent := Agent(), "alice", "p" * 24)
    opened[-1][1].write(frame(check("alice")))
    await until(lambda: agent.requests)
    assert len(port.tcp.unchecked) == 2
    for _, writer in opened:
        writer.close()
    await until(lambda: not port.tcp.connections)
    assert session.paths == set()
    port.demultiplexer.unregister(session, 0.0)


async def test_a_connection_ends_with_the_last_call_on_it(port: IcePort, monkeypatch) -> None:
    """Else a caller could leave behind any number of them."""
    monkeypatch.setattr(tcp_io, "GOODBYE_S", 0.1)
    sessions = [port.demultiplexer.register(Agent(), u, "p" * 24) for u in ("alice", "bob")]
    reader, writer = await asyncio.open_connection("127.0.0.1", port.port)
    writer.write(frame(check("alice")))
    await until(lambda: sessions[0].paths)
    port.demultiplexer.unregister(sessions[0], 0.0, heir=sessions[1])  # an ICE restart
    assert sessions[1].paths
    assert len(port.tcp.connections) == 1
    port.demultiplexer.unregister(sessions[1], 0.0)
    with pytest.raises((ConnectionError, asyncio.IncompleteReadError)):
        await asyncio.wait_for(reader.readexactly(1), HANGS_S)
    await until(lambda: not port.tcp.connections)
    writer.close()


async def test_a_peer_that_does_not_read_holds_no_memory(port: IcePort) -> None:
    """RTP is dropped; what may not be dropped ends the connection."""
    session = port.demultiplexer.register(agent := Agent(), "alice", "p" * 24)
    _, writer = await asyncio.open_connection("127.0.0.1", port.port)
    writer.transport.pause_reading()
    writer.write(frame(check("alice")))
    await until(lambda: agent.requests)
    (connection,) = port.tcp.connections
    rtp, dtls = bytes([128]) + bytes(1000), bytes([22]) + bytes(1000)
    for _ in range(20_000):
        connection.sendto(rtp, ("", 0))
    assert connection.dropped > 15_000
    unsent = connection._transport.get_write_buffer_size()
    assert unsent < tcp_io.RTP_BUFFER_BYTES + 2000
    for _ in range(20_000):
        connection.sendto(dtls, ("", 0))
    await until(lambda: not port.tcp.connections)
    assert session.paths == set()
    writer.close()
    port.demultiplexer.unregister(session, 0.0)


async def test_the_answer_to_a_check_is_framed(port: IcePort) -> None:
    leg = PeerLeg("callee", ice_port=port)
    caller = PeerLeg("caller")
    await leg.answer(await caller.offer())
    agent = leg._agents[0]
    reader, writer = await asyncio.open_connection("127.0.0.1", port.port)
    message = stun.Message(stun.Method.BINDING, stun.Class.REQUEST)
    message.attributes["USERNAME"] = f"{agent.local_username}:{agent.remote_username}"
    message.add_message_integrity(agent.local_password.encode())
    writer.write(frame(bytes(message)))
    length = int.from_bytes(await asyncio.wait_for(reader.readexactly(2), HANGS_S), "big")
    response = stun.parse_message(await reader.readexactly(length))
    assert response.transaction_id == message.transaction_id
    assert response.message_class is stun.Class.RESPONSE
    assert response.attributes["XOR-MAPPED-ADDRESS"] == writer.get_extra_info("sockname")
    writer.close()
    await asyncio.gather(leg.hang_up(""), caller.hang_up(""))
    await until(lambda: not port.tcp.connections)
