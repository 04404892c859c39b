"""Calls in which something goes wrong on either side, over real sockets: nothing is left behind,
and all that cost something is on record."""

import asyncio
from time import monotonic

import pytest

from offhook.media.leg import LegError
from offhook.signaling.peer_io import PeerLeg
from offhook.telephony import call_progress_io
from offhook.telephony.sip import incoming_calls_io
from offhook.telephony.sip.network import transport_io
from offhook.telephony.sip.trunks.trunks import Trunk
from tests.attack.phones import calling, slow_tls_clients, voice_before_the_caller_speaks
from tests.support.listening import Listening
from tests.support.ports import free_port
from tests.support.waiting import HANGS_S, until
from tests.telephony.sip.endpoint.test_endpoint_refer import (
    asked_to_transfer,
    in_a_call,
    notify,
    takes,
)
from tests.telephony.sip.phones import ToneHost, endpoint, port_of, write_certificate
from tests.telephony.sip.scripted_peer import udp_peer
from tests.telephony.sip.scripted_sound import sound

BROWSER = (
    "a=ice-ufrag:abcd\r\na=ice-pwd:aaaaaaaaaaaaaaaaaaaaaaaa\r\na=fingerprint:sha-256 "
    + ":".join(["AB"] * 32)
    + "\r\na=setup:actpass\r\na=rtcp-mux"
)


def bridging(call) -> None:
    """What the trunk does when it is asked to transfer."""
    object.__setattr__(call.sip.stack.settings.trunks[0], "transfer", "bridge")


async def all_is_over(call) -> None:
    await until(lambda: not call.sip.calls)
    await until(lambda: not call.sip.user_agent.sessions)


async def test_a_target_that_declines_is_not_called_again_from_here():
    async with in_a_call() as call:
        asked, refer = await asked_to_transfer(call)
        call.far.reply(refer, 202)
        notify(call, "603 Decline", "terminated;reason=noresource")
        with pytest.raises(LegError, match="603"):
            await asked
        await asyncio.sleep(0.1)
        assert "INVITE" not in call.target.came
        await call.is_as_before()


async def test_who_leaves_before_the_transfer_was_taken_on_was_not_transferred():
    async with in_a_call() as call:
        asked, _ = await asked_to_transfer(call)
        await call.far.hang_up()
        with pytest.raises(LegError, match="ended"):
            await asked
        await until(lambda: call.host.records)
        assert not call.host.records[0].transferred_to


async def test_a_call_made_to_connect_somebody_is_on_record():
    async with in_a_call() as call:
        bridging(call)
        asked = asyncio.create_task(call.host.talks[0].leg.transfer(call.target.uri))
        call.host.leave(call.host.talks[0])
        await takes(call)
        await asked
        assert len(call.sip.calls) == 2
        await call.target.hang_up()
        await call.far.is_hung_up()
        await until(lambda: len(call.host.records) == 2)
        outbound = next(r for r in call.host.records if r.direction == "outbound")
        assert outbound.called == "far"
        assert outbound.answered
        assert outbound.ended_by == "remote"
        assert outbound.transport == "UDP"
        await all_is_over(call)


async def test_a_call_to_connect_somebody_that_was_refused_is_on_record_too():
    async with in_a_call() as call:
        bridging(call)
        asked = asyncio.create_task(call.host.talks[0].leg.transfer(call.target.uri))
        call.target.reply(await call.target.asked("INVITE"), 486)
        with pytest.raises(LegError, match="busy"):
            await asked
        [record] = call.host.records
        assert (record.direction, record.status, record.answered) == ("outbound", 486, None)
        assert "busy" in record.end_reason
        await call.is_as_before()


async def test_nobody_is_called_for_a_caller_who_has_gone():
    async with in_a_call() as call:
        bridging(call)
        asked = asyncio.create_task(call.host.talks[0].leg.transfer(call.target.uri))
        invite = await call.target.asked("INVITE")
        call.target.reply(invite, 180)
        await asyncio.sleep(0.05)
        await call.far.hang_up()
        call.target.reply(await call.target.asked("CANCEL"), 200)
        call.target.reply(invite, 487)
        with pytest.raises(LegError, match="ended"):
            await asked
        await all_is_over(call)


async def test_an_agent_that_gives_up_an_attended_transfer_leaves_no_call_behind():
    async with in_a_call() as call:
        object.__setattr__(call.sip.stack.settings.trunks[0], "transfer", "attended")
        asked = asyncio.create_task(call.host.talks[0].leg.transfer(call.target.uri))
        await takes(call)
        await call.far.asked("REFER")
        asked.cancel()
        await call.target.is_hung_up()
        await until(lambda: len(call.sip.calls) == 1)


class DeafLeg(PeerLeg):
    """A browser's line that never comes up."""

    async def answer(self, sdp: str) -> str:
        await asyncio.Event().wait()
        return ""


class DeafHost(ToneHost):
    def webrtc_leg(self, call_id: str) -> PeerLeg:
        return DeafLeg(call_id)


async def test_a_browsers_line_that_never_comes_up_does_not_keep_its_call(monkeypatch):
    monkeypatch.setattr(incoming_calls_io, "ANSWER_TIMEOUT_S", 0.1)
    async with endpoint(DeafHost()) as (sip, host), udp_peer(sip) as far:
        with sound() as line:
            far.invite(line.sdp("111", BROWSER, protocol="UDP/TLS/RTP/SAVPF"))
            far.ack_refusal(await far.response(500))
        await until(lambda: host.records)
        assert not sip.calls


async def test_an_agent_that_fails_at_a_key_ends_its_call_and_no_other():
    async with endpoint() as (sip, host), udp_peer(sip) as far, udp_peer(sip) as other:
        with sound() as line, sound() as second:
            await far.call(line.sdp())
            await other.call(second.sdp())
            talk = await host.talk()
            talk.leg.listener = Listening(on_dtmf=lambda key: 1 / 0)
            await host.talk(1)
            far.ask("INFO", body=("application/dtmf-relay", "Signal=5\r\n"))
            await far.is_hung_up()
            other.ask("INFO", body=("application/dtmf-relay", "Signal=7\r\n"))
            await other.response(200, "INFO")
            assert host.talks[1].keys == "7"
            await other.hang_up()


async def test_what_callers_call_themselves_stays_on_its_line():
    async with endpoint() as (sip, host), udp_peer(sip) as far:
        with sound() as line:
            far.uri = "sip:evil%0A%1B%5B2J%FFcaller@127.0.0.1"
            await far.call(line.sdp())
            info = (await host.talk()).leg.info
            assert info.caller.isprintable()
            info.caller.encode()
            await far.hang_up()
        await until(lambda: host.records)
        assert "\n" not in host.records[0].line()


async def test_a_call_is_as_long_as_it_was_and_not_as_its_clearing_up(monkeypatch):
    class SlowHost(ToneHost):
        """Takes an hour to clear up after a call."""

        async def run_call(self, leg, agent):
            await super().run_call(leg, agent)
            monkeypatch.setattr(call_progress_io, "monotonic", lambda: monotonic() + 3600)

    async with endpoint(SlowHost()) as (sip, host), udp_peer(sip) as far:
        with sound() as line:
            await far.call(line.sdp())
            await host.talk()
            await far.hang_up()
        await until(lambda: host.records)
        assert host.records[0].duration_seconds < 3600


async def test_somebody_elses_address_may_not_speak_for_a_call():
    """Two trunks of one machine, by the addresses they call from."""
    trunks = (Trunk("one", addresses=("127.0.0.1",)), Trunk("two", addresses=("127.0.0.2",)))
    async with endpoint(trunks=trunks) as (sip, host), udp_peer(sip) as far:
        with sound() as line:
            await far.call(line.sdp())
            talk = await host.talk()
            bye = far.request("BYE", cseq=90)
            loop = asyncio.get_running_loop()
            thief, _ = await loop.create_datagram_endpoint(
                asyncio.DatagramProtocol,
                local_addr=("127.0.0.2", 0),
                remote_addr=("127.0.0.1", sip.bound[0][2]),
            )
            thief.sendto(bye.serialize())
            await asyncio.sleep(0.1)
            thief.close()
            assert talk.leg.closed is None
            await far.hang_up()


async def test_a_scanner_does_not_wash_the_calls_out_of_the_trace():
    trunks = (Trunk("far", addresses=("127.0.0.2",)),)
    async with endpoint(trunks=trunks) as (sip, _), udp_peer(sip) as scanner:
        for _ in range(300):
            scanner.ask("OPTIONS")
        await until(lambda: sip.user_agent.access.dropped == 300)
        assert 1 <= len(sip.stack.trace.as_dicts()) < 5


async def test_whoever_sends_first_does_not_get_the_agents_voice():
    """The caller's address in SDP is the one it signals from: there is no NAT to see through."""
    async with endpoint() as (sip, _):
        server = ("127.0.0.1", port_of(sip, "UDP"))
        for stranger in ("127.0.0.2", "127.0.0.1"):
            got = await voice_before_the_caller_speaks("http://127.0.0.1", 0.5, server[1], stranger)
            assert got == "got 0 of the agent's packets"
        await until(lambda: not sip.calls)
        async with calling(server) as caller:  # and one who is quiet is spoken to
            async with asyncio.timeout(HANGS_S):
                for _ in range(20):
                    await caller.rtp.received.get()


@pytest.mark.parametrize("media_from", ["sdp", "anywhere"])
async def test_a_trunk_whose_media_come_from_elsewhere_says_so(media_from):
    trunk = Trunk("loopback", addresses=("127.0.0.0/8",), media_from=media_from)
    async with endpoint(trunks=(trunk,)) as (sip, _):
        port = port_of(sip, "UDP")
        got = await voice_before_the_caller_speaks("http://127.0.0.1", 1.0, port)
        assert (got == "got 0 of the agent's packets") == (media_from == "sdp")


async def test_slow_tls_clients_take_no_place_that_others_need(tmp_path, monkeypatch):
    """Each says half a ClientHello and then a byte a second; there are more than there is room."""
    monkeypatch.setattr(transport_io, "MAX_CONNECTIONS", 60)
    monkeypatch.setattr(transport_io, "MAX_CONNECTIONS_PER_SOURCE", 20)
    monkeypatch.setattr(transport_io, "HANDSHAKE_TIMEOUT_S", 2.0)
    certificate, key = write_certificate(tmp_path)
    trunk = Trunk("pbx", addresses=("127.0.0.1",))
    port = free_port()
    tls = {"tls": port, "certificate": certificate, "key": key}
    async with endpoint(trunks=(trunk,), **tls) as (sip, _):
        transports = sip.stack.transports
        attack = slow_tls_clients("http://127.0.0.1", 1.0, port, sources=5, each=20)
        assert await attack == "100 connections; another client is answered 'SIP/2.0 200 OK'"
        await until(lambda: not transports._connections)  # and it takes no time for ever
        assert not transports._sources
