"""Whose packets reach DTLS and SRTP on sockets of a call's own: those of addresses that ICE has
validated. Who is heard on a port that calls share is in test_port.py and test_demultiplexer.py."""

import inspect
import socket
from typing import Any

import aioice.ice
import aioice.turn
import pytest
from aioice import Candidate, stun

from offhook.media.clock_io import PacketClock
from offhook.signaling.ice.agent_io import IceAgent, on_malformed_stun
from offhook.signaling.ice.demultiplexer import MAX_ADDRESSES
from offhook.signaling.peer_io import PeerLeg
from tests.support.ice import Caller, Nat, bare, talk
from tests.support.waiting import until

pytestmark = pytest.mark.usefixtures("loopback", "nothing_left")

RECORD = b"\x16\xfe\xfd" + bytes(8) + b"\0\1x"
HEADER = bytes.fromhex("80600001") + bytes(4)
PASSWORD = "remotepasswordremotepassword"


async def gathered() -> tuple[IceAgent, Any]:
    """An agent with a socket, and that socket's protocol."""
    agent = IceAgent(None, [])
    agent.remote_username, agent.remote_password = "remoteufrag", PASSWORD
    await agent.gather_candidates()
    return agent, agent.connections.current._protocols[0]


def check(agent: IceAgent, password: str = "") -> bytes:
    """A connectivity check of the peer, not nominating."""
    message = stun.Message(stun.Method.BINDING, stun.Class.REQUEST)
    message.attributes["USERNAME"] = f"{agent.local_username}:remoteufrag"
    message.attributes["PRIORITY"] = 1
    message.attributes["ICE-CONTROLLING"] = 1
    message.add_message_integrity((password or agent.local_password).encode())
    return bytes(message)


async def test_dtls_is_heard_from_where_a_check_came_before_any_pair_is_nominated() -> None:
    agent, protocol = await gathered()
    agent.connections._run(agent.connections.current)
    await until(lambda: agent.connections.current._early_checks_done)
    for peer in (("127.0.0.1", 5001), ("127.0.0.1", 5002)):  # a peer has several paths
        protocol.datagram_received(RECORD, peer)
        assert agent._queue.empty()
        protocol.datagram_received(check(agent), peer)
        protocol.datagram_received(RECORD, peer)
        assert agent._queue.get_nowait() == RECORD
    protocol.datagram_received(RECORD, ("127.0.0.1", 5003))
    protocol.datagram_received(check(agent, "another password of 22 ch"), ("127.0.0.1", 5003))
    protocol.datagram_received(RECORD, ("127.0.0.1", 5003))
    protocol.datagram_received(RECORD, ("127.0.0.2", 5001))
    assert agent._queue.empty()
    assert agent.strangers == 5
    assert not agent._nominated
    await agent.close()


async def test_an_address_is_valid_on_the_socket_that_has_heard_it_alone() -> None:
    """Relayed candidates too: a TURN server hands on what anybody of a permitted address sends."""
    agent, protocol = await gathered()
    agent.connections._run(agent.connections.current)
    await until(lambda: agent.connections.current._early_checks_done)
    assert "self.receiver.datagram_received(" in inspect.getsource(aioice.turn)
    relayed = aioice.ice.StunProtocol(agent.connections.current)
    relayed.local_candidate = Candidate.from_sdp("1 1 udp 1 192.0.2.9 3478 typ relay")
    relayed.transport = protocol.transport
    peer = "127.0.0.1", 5001
    relayed.datagram_received(check(agent), peer)
    protocol.datagram_received(RECORD, peer)
    assert agent._queue.empty()
    relayed.datagram_received(RECORD, peer)
    assert agent._queue.get_nowait() == RECORD
    await agent.close()


async def test_checks_from_ever_new_addresses_leave_few_behind() -> None:
    """Only the peer can send them, and aioice keeps each address and checks it in turn."""
    agent, protocol = await gathered()
    agent.connections._run(agent.connections.current)
    await until(lambda: agent.connections.current._early_checks_done)
    for number in range(3 * MAX_ADDRESSES):
        protocol.datagram_received(check(agent), ("127.0.0.1", 20_000 + number))
    assert len(agent.connections.current._check_list) == MAX_ADDRESSES
    assert len(agent.connections.current._remote_candidates) == MAX_ADDRESSES
    await agent.close()


async def test_what_begins_like_stun_and_is_none_is_counted_and_goes_no_further() -> None:
    agent, protocol = await gathered()
    counted: list[None] = []
    on_malformed_stun(lambda: counted.append(None))
    for data in (b"\0", b"\1\2\3", bytes(20), b"\0\1\0\x10" + bytes(30)):
        protocol.datagram_received(data, ("127.0.0.1", 5001))
    assert len(counted) == 4
    protocol.datagram_received(b"", ("127.0.0.1", 5001))
    assert agent._queue.empty()
    on_malformed_stun(lambda: None)
    await agent.close()


async def test_a_caller_whose_address_changes_is_heard_again_without_its_next_check(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As on a shared port: RTP with its SSRC has the new address checked."""
    monkeypatch.setattr(aioice.ice, "CONSENT_INTERVAL", 3600)
    nat, clock = await Nat(0).open(), PacketClock()
    caller = Caller(PeerLeg("callee"))

    def before(answer: str) -> str:
        nat._server = "127.0.0.1", int(answer.partition(" 127.0.0.1 ")[2].split()[0])
        return nat.before(answer)

    await caller.call(bare, before)
    await until(lambda: caller.leg.connected)
    clock.add(caller.leg)
    await talk(caller)
    agent = caller.leg._agents[0]
    await nat.rebind()
    await until(lambda: agent._nominated[1].remote_addr == nat.address)
    await talk(caller)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as stranger:
        before_noise = agent.strangers
        ssrc = caller.leg._rtcp.reception.ssrc.to_bytes(4, "big")  # type: ignore[union-attr]
        for _ in range(20):
            stranger.sendto(HEADER + ssrc + bytes(40), nat._server)
        await until(lambda: agent.strangers >= before_noise + 20)
        await talk(caller)
        assert agent._nominated[1].remote_addr == nat.address
    assert caller.leg.srtp_failures == 0
    await caller.close()
    clock.remove(caller.leg)
    nat.close()
