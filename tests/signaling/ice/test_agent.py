"""The joints of aioice 0.13.0 and aiortc 1.16.0 that `agent_io` relies on.

Each test fails when a new version has moved its joint: read agent_io.py anew, then change the pins.
"""

import asyncio
import inspect
import os
import re
import sys
from importlib.metadata import version

import aioice.ice
import pytest
from aioice import Candidate, stun
from aiortc import RTCPeerConnection, rtcdtlstransport, rtcicetransport, rtcpeerconnection

from offhook.signaling.ice.agent_io import IceAgent, PortConnection, use_agents
from offhook.signaling.ice.port_io import IcePort
from tests.support.ports import free_port
from tests.support.waiting import HANGS_S

pytestmark = pytest.mark.usefixtures("loopback")

RECORD = b"\x17\xfe\xfd" + bytes(8) + b"\0\1x"
"""Of DTLS, with application data."""


def test_the_versions_are_those_that_were_read() -> None:
    assert (version("aiortc"), version("aioice")) == ("1.16.0", "0.13.0")


def test_an_agent_has_all_that_aiortc_asks_of_a_connection() -> None:
    source = inspect.getsource(rtcicetransport) + inspect.getsource(rtcpeerconnection)
    asked = set(re.findall(r"\b_connection\.(\w+)", source))
    assert {"connect", "recv", "send", "close", "get_event", "local_username"} <= asked
    assert asked <= {name for name in dir(IceAgent) if not name.startswith("__")}


async def test_every_transport_of_a_peer_connection_has_an_agent() -> None:
    pc = RTCPeerConnection()
    agents = use_agents(pc, None, [])
    pc.addTransceiver("audio")
    pc.createDataChannel("chat")
    transports = [pc.getTransceivers()[0].receiver.transport.transport, pc.sctp.transport.transport]
    assert [t._connection for t in transports] == agents
    assert [t.iceGatherer._connection for t in transports] == agents
    assert [t._recv for t in transports] == [agent.recv for agent in agents]
    assert [t._send for t in transports] == [agent.send for agent in agents]
    await pc.close()


def test_dtls_reads_and_sends_by_the_names_that_are_replaced() -> None:
    source = inspect.getsource(rtcdtlstransport.RTCDtlsTransport)
    assert re.findall(r"transport\._(?:connection|recv|send)\b", source) == [
        "transport._recv",
        "transport._recv",
        "transport._send",
        "transport._send",
    ]
    gather = inspect.getsource(rtcicetransport.RTCIceGatherer.gather)
    assert "self._connection.gather_candidates()" in gather


async def test_gathering_takes_the_ports_candidates_and_opens_no_socket(monkeypatch) -> None:
    port = IcePort(free_port())
    await port.open()
    agent = IceAgent(port, [])

    def no_socket(*args, **settings):
        raise AssertionError("a socket was opened")

    monkeypatch.setattr("asyncio.base_events.BaseEventLoop.create_datagram_endpoint", no_socket)
    await agent.gather_candidates()
    await agent.gather_candidates()
    assert [(c.transport, c.port) for c in agent.local_candidates] == [
        ("udp", port.port),
        ("tcp", port.port),
    ]
    assert len(port.demultiplexer) == 1
    await agent.close()
    assert len(port.demultiplexer) == 0
    await port.close()


def test_connections_are_made_of_the_parts_that_are_used() -> None:
    connection = aioice.ice.Connection
    names = {*re.findall(r"self\.(_\w+)", inspect.getsource(connection.__init__))}
    assert {
        "_local_candidates",
        "_local_candidates_start",
        "_local_candidates_end",
        "_protocols",
        "_nominated",
    } <= names
    assert list(inspect.signature(connection.get_component_candidates).parameters) == [
        "self",
        "component",
        "addresses",
        "timeout",
    ]
    assert list(inspect.signature(connection.request_received).parameters) == [
        "self",
        "message",
        "addr",
        "protocol",
    ]
    assert "await self.close()" in inspect.getsource(connection.query_consent)
    assert 'message.attributes["PRIORITY"]' in inspect.getsource(connection.check_incoming)
    assert "get_host_addresses(" in inspect.getsource(connection.gather_candidates)
    assert PortConnection.request_received is connection.request_received
    assert list(inspect.signature(connection.check_incoming).parameters) == [
        "self",
        "message",
        "addr",
        "protocol",
    ]
    checked = inspect.getsource(connection.request_received)
    assert checked.index("check_message_integrity(") < checked.index("self.check_incoming(")
    assert "self.check_incoming(*early_check)" in inspect.getsource(connection.connect)
    assert list(inspect.signature(connection.check_complete).parameters) == ["self", "pair"]
    assert "self.check_complete(pair)" in inspect.getsource(connection.check_start)
    received = inspect.getsource(aioice.ice.StunProtocol)
    assert "self.receiver = receiver" in received
    assert "asyncio.DatagramProtocol" in received
    request = inspect.signature(aioice.ice.StunProtocol.request).parameters
    assert list(request) == ["self", "request", "addr", "integrity_key", "retransmissions"]
    assert "self.transactions[request.transaction_id]" in inspect.getsource(
        aioice.ice.StunProtocol.request
    )
    assert "self.transport.sendto(" in inspect.getsource(aioice.ice.StunProtocol.send_stun)
    assert list(inspect.signature(stun.Transaction.response_received).parameters) == [
        "self",
        "message",
        "addr",
    ]


async def test_credentials_of_agents_differ_with_and_without_a_port() -> None:
    port = IcePort(free_port())
    await port.open()
    for shared in (None, port):
        agents = [IceAgent(shared, []) for _ in range(20)]
        assert len({agent.local_username for agent in agents}) == 20
        assert min(len(agent.local_username) for agent in agents) >= 8
        assert min(len(agent.local_password) for agent in agents) >= 22
        for agent in agents:
            await agent.close()
    await port.close()


async def test_a_closed_agent_says_so_to_whoever_waits() -> None:
    agent = IceAgent(None, [])
    agent.data_received(RECORD, 1)
    assert await agent.recv() == RECORD
    await agent.close()
    await agent.close()
    with pytest.raises(ConnectionError):
        await agent.recv()
    with pytest.raises(ConnectionError):
        await agent.send(b"x")
    with pytest.raises(ConnectionError):
        await agent.connect()
    assert isinstance(await agent.get_event(), aioice.ConnectionClosed)


async def test_nobody_waits_for_the_address_of_a_name(monkeypatch) -> None:
    """Chromium hides the addresses of pages without a microphone behind mDNS."""
    answered = asyncio.Event()

    async def resolve(self, hostname: str) -> str:
        await answered.wait()
        return "192.0.2.7"

    monkeypatch.setattr("aioice.mdns.MDnsProtocol.resolve", resolve)
    agent = IceAgent(None, [])
    name = "4dc0bd64-0d0b-4f4c-9d8d-000000000001.local"
    line = f"1 1 udp 1 {name} 50000 typ host"
    async with asyncio.timeout(HANGS_S):
        await agent.add_remote_candidate(Candidate.from_sdp(line))
        await agent.connections.restart("abcd", "p" * 24, [Candidate.from_sdp(line)])
        assert agent.remote_candidates == []
        answered.set()
        while not agent.remote_candidates:
            await asyncio.sleep(0.01)
    assert [c.host for c in agent.remote_candidates] == [name]
    answered.clear()
    await agent.add_remote_candidate(Candidate.from_sdp(line.replace("01.local", "02.local")))
    await agent.close()


async def test_a_name_that_cannot_be_looked_up_harms_nothing(monkeypatch) -> None:
    """Port 5353 is another program's."""

    async def taken(receiver: object) -> None:
        raise OSError("in use")

    monkeypatch.setattr("aioice.ice.get_or_create_mdns_protocol", taken)
    agent = IceAgent(None, [])
    await agent.add_remote_candidate(Candidate.from_sdp("1 1 udp 1 a-b.local 50000 typ host"))
    await asyncio.sleep(0)
    assert agent.remote_candidates == []
    await agent.close()


async def test_datagrams_before_dtls_are_bounded() -> None:
    agent = IceAgent(None, [])
    for _ in range(5000):
        agent.data_received(RECORD, 1)
    assert agent._queue.qsize() == 256
    await agent.close()


def descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


@pytest.mark.skipif(sys.platform != "linux", reason="counts in /proc")
@pytest.mark.parametrize("closes", [False, True])
async def test_restarts_at_the_same_time_leave_no_sockets(closes: bool) -> None:
    before = descriptors()
    agent = IceAgent(None, [])
    await agent.gather_candidates()
    restarts = [
        asyncio.create_task(agent.connections.restart(f"ufrag{n}", "p" * 22)) for n in range(10)
    ]
    if closes:
        await asyncio.sleep(0)
        await agent.close()
    await asyncio.gather(*restarts, return_exceptions=True)
    await agent.close()
    async with asyncio.timeout(HANGS_S):
        while descriptors() > before:
            await asyncio.sleep(0.01)
