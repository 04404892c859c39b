"""Calls of real aiortc peers on one port."""

import asyncio
import contextlib
import itertools
import random
import re
import socket
import threading

import aioice.ice
import pytest
from aioice import stun
from aiortc import RTCSessionDescription
from aiortc.mediastreams import AudioStreamTrack

from offhook.media.clock_io import PacketClock
from offhook.signaling.ice import agent_io
from offhook.signaling.ice.demultiplexer import MAX_ADDRESSES
from offhook.signaling.ice.port_io import IcePort
from offhook.signaling.peer_io import PeerLeg, use_addresses
from offhook.signaling.sdp import OfferError
from tests.support.ice import Caller, Nat, bare, calls, talk, tone
from tests.support.ports import free_port
from tests.support.waiting import HANGS_S, until

pytestmark = pytest.mark.usefixtures("loopback", "nothing_left")


async def _many_calls(port: IcePort, number: int, hosts: int = 1) -> None:
    async with calls(port, number) as callers:
        assert len(port.demultiplexer) == number
        [udp] = port.sockets.values()
        assert len({host for host, _ in udp.local.paths}) == hosts
        await talk(*callers)
        assert {c.leg.srtp_failures for c in callers} == {0}
        await callers[0].close()
        await until(lambda: len(port.demultiplexer) == number - 1)
        await talk(*callers[1:])


async def test_calls_share_a_port_and_hear_their_own(port: IcePort) -> None:
    await _many_calls(port, 4)


@pytest.mark.slow
async def test_fifty_calls_of_two_hosts_share_a_port(port: IcePort, monkeypatch) -> None:
    hosts = itertools.cycle(("127.0.0.1", "127.0.0.2"))
    monkeypatch.setattr(aioice.ice, "get_host_addresses", lambda use_ipv4, use_ipv6: [next(hosts)])
    await _many_calls(port, 50, 2)


async def test_callers_of_two_hosts_over_ipv4_and_ipv6_share_a_port() -> None:
    use_addresses(["127.0.0.1", "127.0.0.2", "::1"])
    port = IcePort(free_port())
    await port.open()
    try:
        for family in ("127.0.0.1", "127.0.0.2", "::1"):
            use_addresses([family])
            caller = Caller(PeerLeg("callee", ice_port=port))
            answer = await caller.call(bare)
            assert await asyncio.wait_for(caller.leg.until_connected(), HANGS_S)
            assert {port.port} == {int(p) for p in re.findall(r"udp \d+ \S+ (\d+) typ", answer)}
            remotes = [r[0] for udp in port.sockets.values() for r in udp.local.paths]
            assert family in remotes
            await caller.close()
        assert not any(udp.local.paths for udp in port.sockets.values())
    finally:
        await port.close()


async def test_an_offer_without_candidates_is_answered_by_the_peers_checks(port: IcePort) -> None:
    """openai-agents-js, OBS and FFmpeg send none, and nothing that ends them."""
    async with calls(port, 1, bare) as (caller,):
        await talk(caller)


async def test_an_offer_that_ends_its_candidates_without_any_connects_as_well(
    port: IcePort,
) -> None:
    """aioice alone fails at once."""
    change = lambda sdp: bare(sdp).replace("a=ice-ufrag", "a=end-of-candidates\r\na=ice-ufrag")  # noqa: E731
    async with calls(port, 1, change) as (caller,):
        assert caller.leg.closed is None


async def test_who_never_checks_is_given_up_and_forgotten(port: IcePort, monkeypatch) -> None:
    monkeypatch.setattr("offhook.signaling.peer_io.CONNECT_TIMEOUT_S", 0.2)
    caller = Caller(PeerLeg("callee", ice_port=port))
    caller.pc.addTrack(AudioStreamTrack())
    await caller.pc.setLocalDescription(await caller.pc.createOffer())
    await caller.leg.answer(bare(caller.pc.localDescription.sdp))
    assert len(port.demultiplexer) == 1
    await until(lambda: caller.leg.closed == "the caller did not connect in time")
    await caller.close()


async def test_m_lines_outside_a_bundle_share_the_port(port: IcePort) -> None:
    """Each has a transport of its own, which only its ufrag tells apart. (aiortc as the caller uses
    one for both whatever the answer says, so the second never connects here.)"""
    unbundled = lambda sdp: re.sub(r"a=group:BUNDLE[^\r]*\r\n", "", sdp)  # noqa: E731
    caller = Caller(PeerLeg("callee", ice_port=port))
    answer = await caller.call(unbundled)
    assert len(set(re.findall(r"a=ice-ufrag:(\S+)", answer))) == 2
    assert len(port.demultiplexer) == 2
    audio = caller.leg._pc.getTransceivers()[0].receiver.transport
    await until(lambda: audio.state == "connected")
    await caller.close()


async def test_a_refused_offer_leaves_nothing_on_the_port(port: IcePort) -> None:
    leg = PeerLeg("callee", ice_port=port)
    with pytest.raises(OfferError):
        await leg.answer("v=0\r\nm=audio 9 UDP/TLS/RTP/SAVPF 0\r\n")
    await leg.hang_up("refused")


async def test_a_source_port_can_be_used_by_the_next_call_at_once(
    port: IcePort, monkeypatch
) -> None:
    """The first caller is not even gone: its program died, and the next has its port."""
    first = Caller(PeerLeg("first", ice_port=port))
    await first.call()
    await until(lambda: first.leg.connected)
    ours = first.port
    connection = first.ice._connection
    for protocol in connection._protocols:  # dies without a goodbye
        protocol.transport.abort()
    await asyncio.sleep(0.05)

    loop = asyncio.get_running_loop()
    create = loop.create_datagram_endpoint

    def at_the_same_port(factory, local_addr, **more):
        return create(factory, local_addr=(local_addr[0], ours), **more)

    monkeypatch.setattr(loop, "create_datagram_endpoint", at_the_same_port)
    second = Caller(PeerLeg("second", ice_port=port))
    await second.call()
    await until(lambda: second.leg.connected)
    assert second.port == ours
    clock = PacketClock()
    clock.add(second.leg)
    before = first.leg.srtp_failures
    await talk(second)
    assert first.leg.srtp_failures == before
    assert second.leg.srtp_failures == 0
    await first.close()
    await talk(second)  # what the first leaves behind is not the second's
    await second.close()
    clock.remove(second.leg)


async def test_a_caller_whose_address_changes_is_heard_again_soon(
    port: IcePort, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Browsers check each 2.5 s what works, and nominate it again; media is there before."""
    monkeypatch.setattr(aioice.ice, "CONSENT_INTERVAL", 3600)
    nat, clock = await Nat(port.port).open(), PacketClock()
    caller = Caller(PeerLeg("callee", ice_port=port))
    await caller.call(bare, nat.before)
    await until(lambda: caller.leg.connected)
    clock.add(caller.leg)
    await talk(caller)
    await nat.rebind()
    (udp,) = port.sockets.values()
    await until(lambda: nat.address in udp.local.paths)  # without aiortc's next consent check
    await talk(caller)
    assert caller.leg.srtp_failures == 0
    await caller.close()
    clock.remove(caller.leg)
    nat.close()


async def test_a_stranger_is_not_answered_and_harms_no_call(port: IcePort, caplog) -> None:
    """Damaged, unsigned and foreign checks: no reply, no log line, no path."""
    async with calls(port, 1) as (caller,):
        agent = caller.leg._agents[0]
        unsigned = stun.Message(stun.Method.BINDING, stun.Class.REQUEST)
        unsigned.attributes["USERNAME"] = f"{agent.local_username}:x"
        forged = stun.Message(stun.Method.BINDING, stun.Class.REQUEST)
        forged.attributes["USERNAME"] = f"{agent.local_username}:x"
        forged.add_message_integrity(b"q" * 24)
        foreign = stun.Message(stun.Method.BINDING, stun.Class.REQUEST)
        foreign.attributes["USERNAME"] = "nobody:x"
        foreign.add_message_integrity(b"q" * 24)
        datagrams = [bytes(m) for m in (unsigned, forged, foreign)]
        datagrams += [b"", b"\0", bytes(20), bytes([128, 0]) + bytes(50), datagrams[0][:-3]]
        caplog.clear()
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as stranger:
            stranger.setblocking(False)
            for data in datagrams * 20:
                stranger.sendto(data, ("127.0.0.1", port.port))
            await talk(caller)
            with pytest.raises(BlockingIOError):
                stranger.recv(100)
        assert [r for r in caplog.records if r.levelname != "DEBUG"] == []
        dropped = port.demultiplexer.dropped
        assert dropped.unauthenticated == 40
        assert dropped.unknown_ufrag == 20
        assert dropped.unknown_address == 20
        assert dropped.malformed == 80


@pytest.mark.slow
async def test_a_flood_of_foreign_checks_harms_no_call(port: IcePort, caplog) -> None:
    """10,000 a second for three seconds, with ufrags of nobody."""
    foreign = stun.Message(stun.Method.BINDING, stun.Class.REQUEST)
    foreign.attributes["USERNAME"] = "nobody:x"
    foreign.add_message_integrity(b"q" * 24)
    data, over = bytes(foreign), threading.Event()

    def flood() -> None:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as stranger:
            for _ in range(300):
                for _ in range(100):
                    stranger.sendto(data, ("127.0.0.1", port.port))
                over.wait(0.01)

    async with calls(port, 2) as callers:
        await talk(*callers)
        caplog.clear()
        flooding = asyncio.create_task(asyncio.to_thread(flood))
        await asyncio.sleep(0.5)
        await talk(*callers)
        over.set()
        await flooding
        assert port.demultiplexer.dropped.unknown_ufrag > 5000
        assert [r for r in caplog.records if r.levelname != "DEBUG"] == []
        for caller in callers:
            assert caller.leg.closed is None
            assert caller.leg.srtp_failures == 0
            assert caller.leg.statistics().packets_lost < 50


async def test_a_hostile_peer_of_one_call_harms_no_other(port: IcePort, caplog) -> None:
    """It knows its password, and signs checks that make no sense, from many addresses."""
    faults: list[object] = []
    asyncio.get_running_loop().set_exception_handler(lambda loop, fault: faults.append(fault))
    chance = random.Random(5)
    attributes = {
        "PRIORITY": 1 << 31,
        "USE-CANDIDATE": None,
        "ICE-CONTROLLING": (1 << 64) - 1,
        "ICE-CONTROLLED": (1 << 64) - 1,
        "XOR-MAPPED-ADDRESS": ("192.0.2.7", 1),
        "ERROR-CODE": (487, "Role Conflict"),
    }
    async with calls(port, 2) as (hostile, other):
        agent = hostile.leg._agents[0]
        caplog.clear()
        with contextlib.ExitStack() as stack:
            sockets = [
                stack.enter_context(socket.socket(socket.AF_INET, socket.SOCK_DGRAM))
                for _ in range(80)
            ]
            for number in range(3000):
                method = chance.choice([stun.Method.BINDING] * 9 + list(stun.Method))
                kind = chance.choice([stun.Class.REQUEST] * 9 + list(stun.Class))
                message = stun.Message(method, kind)
                name = chance.choice([agent.remote_username] * 4 + ["x", ""])
                message.attributes["USERNAME"] = f"{agent.local_username}:{name}"
                chosen = [item for item in attributes.items() if chance.random() < 0.4]
                message.attributes |= dict(chosen)
                message.add_message_integrity(agent.local_password.encode())
                chance.choice(sockets).sendto(bytes(message), ("127.0.0.1", port.port))
                if number % 50 == 0:
                    await asyncio.sleep(0)
            await talk(other)
        dropped = port.demultiplexer.dropped
        assert dropped.too_many_addresses > 0
        assert len(agent.remote_candidates) <= MAX_ADDRESSES + 1
        assert [r for r in caplog.records if r.levelname != "DEBUG"] == []
        assert other.leg.srtp_failures == 0
    assert faults == []


async def test_a_candidate_of_another_component_is_left_out(port: IcePort) -> None:
    """aioice raises when a check comes from its address: a traceback for each."""
    faults: list[object] = []
    asyncio.get_running_loop().set_exception_handler(lambda loop, fault: faults.append(fault))
    async with calls(port, 1) as (caller,):
        agent = caller.leg._agents[0]
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as peer:
            peer.bind(("127.0.0.1", 0))
            peer.settimeout(HANGS_S)
            host, number = peer.getsockname()
            await caller.leg.ice.add_candidate(
                f"candidate:1 2 udp 1 {host} {number} typ host", "0", None
            )
            check = stun.Message(stun.Method.BINDING, stun.Class.REQUEST)
            check.attributes["USERNAME"] = f"{agent.local_username}:{agent.remote_username}"
            check.attributes["PRIORITY"] = 1
            check.add_message_integrity(agent.local_password.encode())
            peer.sendto(bytes(check), ("127.0.0.1", port.port))
            response = await asyncio.to_thread(peer.recv, 1000)
        assert stun.parse_message(response).transaction_id == check.transaction_id
        assert [c.port for c in agent.remote_candidates].count(number) == 1
        await talk(caller)
    assert faults == []


async def test_a_check_without_priority_connects(port: IcePort, monkeypatch) -> None:
    """FFmpeg before 8.1 leaves it out; aioice alone fails with a KeyError."""
    build = aioice.ice.Connection.build_request

    def without(self, pair, nominate):
        request = build(self, pair, nominate)
        if not isinstance(self, agent_io.PortConnection):
            del request.attributes["PRIORITY"]
        return request

    monkeypatch.setattr(aioice.ice.Connection, "build_request", without)
    async with calls(port, 1, bare) as (caller,):
        assert caller.leg.closed is None


# --- restart ---


async def restart(caller: Caller) -> None:
    """A restart by the caller, whose aiortc cannot: its agent is replaced beneath its DTLS."""
    ice = caller.ice
    old = ice._connection
    new = aioice.ice.Connection(ice_controlling=True)
    await new.gather_candidates()
    description = await caller.leg.ice.restart(
        new.local_username, new.local_password, [c.to_sdp() for c in new.local_candidates]
    )
    new.remote_username, new.remote_password = description.ufrag, description.password
    for line in description.candidates:
        await new.add_remote_candidate(aioice.Candidate.from_sdp(line))
    new._queue = old._queue
    await new.connect()
    ice._connection, ice._recv, ice._send = new, new.recv, new.send
    old.data_received, old._queue = new.data_received, asyncio.Queue()
    caller.old = old  # type: ignore[attr-defined]


async def test_ice_restarts_beneath_a_call_that_goes_on(port: IcePort, monkeypatch) -> None:
    monkeypatch.setattr(agent_io, "OVERLAP_S", 0.2)
    async with calls(port, 1) as (caller,):
        await talk(caller)
        agent = caller.leg._agents[0]
        before = agent.local_username, agent.local_password
        dtls = caller.leg._srtp_out
        await restart(caller)
        assert agent.local_username != before[0]
        assert agent.local_password != before[1]
        await until(lambda: agent.connections.pending is None)
        await talk(caller)
        await until(lambda: len(port.demultiplexer) == 1)  # the old credentials are gone
        await caller.old.close()  # and the old socket
        await talk(caller)
        assert caller.leg._srtp_out is dtls
        assert caller.leg.srtp_failures == 0
        assert caller.leg.closed is None


async def test_restarts_one_after_the_other_leave_one_call(port: IcePort, monkeypatch) -> None:
    """Whether each is used or replaced by the next one at once."""
    monkeypatch.setattr(agent_io, "OVERLAP_S", 0.2)
    async with calls(port, 1) as (caller,):
        agent, keys, old = caller.leg._agents[0], caller.leg._srtp_out, []
        for number in range(12):
            for _ in range(number % 3):
                await caller.leg.ice.restart(f"nobody{number}", "n" * 24)
            await restart(caller)
            old.append(caller.old)
            assert len(port.demultiplexer) <= 3
        await until(lambda: agent.connections.pending is None and len(port.demultiplexer) == 1)
        for connection in old:
            await connection.close()
        await talk(caller)
        assert caller.leg._srtp_out is keys
        assert caller.leg.closed is None


async def test_a_restart_that_fails_keeps_the_call(port: IcePort, monkeypatch) -> None:
    monkeypatch.setattr(agent_io, "RESTART_TIMEOUT_S", 0.3)
    async with calls(port, 1) as (caller,):
        agent = caller.leg._agents[0]
        before = agent.local_username
        for _ in range(5):  # each replaces the one before
            await caller.leg.ice.restart("nobody", "n" * 24)
        assert len(port.demultiplexer) == 2
        await talk(caller)
        await until(lambda: len(port.demultiplexer) == 1)
        assert agent.local_username == before
        await talk(caller)
        for broken in (["x"], ["1 1 udp 1 a b typ host"], ["1"] * 500):
            with pytest.raises(OfferError):
                await caller.leg.ice.restart("nobody", "n" * 24, broken)
        assert len(port.demultiplexer) == 1
        assert caller.leg.closed is None


@pytest.mark.parametrize("shared", [True, False])
async def test_an_offer_with_new_credentials_restarts(port: IcePort, shared: bool) -> None:
    """A browser's restartIce() and a new offer; on ports of its own as well as on a shared one."""
    caller = PeerLeg("caller")
    callee = PeerLeg("callee", ice_port=port if shared else None)
    clock = PacketClock()
    await caller.accept(await callee.answer(await caller.offer()))
    await until(lambda: caller.connected and callee.connected)
    clock.add(caller)
    clock.add(callee)
    (theirs, ours), keys = (caller._agents[0], callee._agents[0]), callee._srtp_out
    old = ours.local_username
    same = await callee.answer(await renegotiated(caller))
    assert f"a=ice-ufrag:{old}" in same
    await caller._pc.setRemoteDescription(RTCSessionDescription(same, "answer"))

    await theirs.connections.restart("unknown-yet", "x" * 24)
    answer = await callee.answer(await renegotiated(caller))
    new = re.search(r"a=ice-ufrag:(\S+)", answer)[1]
    assert new == ours.local_username != old
    theirs.remote_username = new
    theirs.remote_password = re.search(r"a=ice-pwd:(\S+)", answer)[1]
    await caller._pc.setRemoteDescription(RTCSessionDescription(answer, "answer"))
    await until(lambda: ours.connections.pending is None and theirs.connections.pending is None)
    received = callee.statistics().packets_received
    caller.playout.write(tone(440, 2))
    await until(lambda: callee.statistics().packets_received > received + 20)
    assert callee._srtp_out is keys
    assert (caller.closed, callee.closed) == (None, None)
    await asyncio.gather(caller.hang_up("test over"), callee.hang_up("test over"))
    clock.remove(caller)
    clock.remove(callee)


async def renegotiated(leg: PeerLeg) -> str:
    await leg._pc.setLocalDescription(await leg._pc.createOffer())
    return leg._pc.localDescription.sdp
