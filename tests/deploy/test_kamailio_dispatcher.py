"""Kamailio as deploy/kamailio has it, before real edges: who takes which call, and what happens to
it later; edges that are full, gone or draining; who may call whom."""

import asyncio
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

import aiohttp
import pytest

from benchmarks.callers.rtp import offer
from benchmarks.processes.own_server import HOST
from benchmarks.processes.process import child, get_json
from benchmarks.servers.kamailio import CONFIGURATION, kamailio
from offhook.telephony.sip.messages.message import Request, parse_message, respond
from offhook.telephony.sip.messages.uri import Uri
from tests.deploy.site import (
    QUICK,
    Site,
    aim,
    called,
    kamcmd,
    scripted,
    site,
    states,
    until,
)
from tests.support.ports import free_port
from tests.telephony.sip.phones import (
    OUR_TONE,
    THEIR_TONE,
    Baresip,
    endpoint,
    needs_baresip,
    needs_kamailio,
)

pytestmark = needs_kamailio

# --- which edge ---


async def test_calls_are_spread_and_end_where_they_are():
    async with site(10, 10) as here, here.callers() as callers:
        assert (await callers.fill(6))["up"] == 6
        assert here.calls == [3, 3]
        for call in callers._up.copy():
            callers.hang_up(call)
        await until(lambda: here.calls == [0, 0])
    for edge in here.edges:
        assert {record.ended_by for record in edge.host.records} == {"remote"}


async def test_who_has_the_fewest_calls_gets_the_next():
    async with site(10, 10) as here, here.callers() as callers:
        await callers.fill(4)
        for talk in tuple(here.edges[0].host.talks):  # an edge hangs up: its BYE counts too
            await talk.leg.hang_up("enough")
        await until(lambda: here.calls == [0, 2])
        await callers.attempt(2)
        await until(lambda: here.calls == [2, 2])


async def test_an_edge_that_is_full_is_left_out_of_that_call():
    async with site(1, 10) as here, here.callers() as callers:
        filled = await callers.fill(5)
        assert (filled["up"], filled["refused"]) == (5, {})
        assert here.calls == [1, 4]
        assert here.edges[0].asked.count("503") >= 1
        await here.active(True, True)


async def test_when_all_are_full_the_caller_is_told_when_to_try_again():
    async with site(1, 1) as here, here.callers() as callers:
        filled = await callers.fill(3)
        assert (filled["up"], filled["refused"], filled["told_when"]) == (2, {503: 1}, 1)
        callers.hang_up(callers._up[0])
        await until(lambda: sum(len(edge.sip.calls) for edge in here.edges) == 1)
        await callers.attempt(1)
        await until(lambda: sum(here.calls) == 2)


async def test_more_calls_than_the_list_allows_are_not_even_asked_for():
    async with site(10, 10, max_load=1) as here, here.callers() as callers:
        filled = await callers.fill(3)
        assert (filled["up"], filled["refused"], filled["told_when"]) == (2, {503: 1}, 1)
        assert [edge.asked.count("INVITE") for edge in here.edges] == [1, 1]


async def test_a_call_that_is_given_up_or_refused_counts_no_longer():
    async with site(10, max_load=1) as here, scripted(here) as peer:
        aim(peer, here)
        peer.invite("this is no SDP")
        refusal = await peer.response(400)
        peer.ack_refusal(refusal)
        peer.call_id += "-again"
        await called(peer)
        await peer.hang_up()


async def test_the_lists_as_they_stand_are_read():
    folder = CONFIGURATION.parent
    lists = {
        "EDGES_FILE": f'"{folder}/dispatcher.list"',
        "TRUNKS_FILE": f'"{folder}/address.list"',
    }
    async with kamailio([], **lists) as proxy:
        assert set(await states(proxy)) == {"5070", "5071"}
        assert "softphone" in await kamcmd(proxy, "permissions.addressDump")


# --- later in a call ---


@pytest.mark.parametrize("transport", ["UDP", "TCP"])
async def test_what_comes_later_in_a_call_reaches_its_edge(transport):
    async with (
        site(10, 10) as here,
        scripted(here, transport) as one,
        scripted(here, transport) as other,
    ):
        for peer in (one, other):
            aim(peer, here)
            await called(peer)
        await until(lambda: all("ACK" in edge.asked for edge in here.edges))
        assert here.calls == [1, 1]
        mine = here.proxy.edges.index(Uri.parse(one.target).port)
        edge, elsewhere = here.edges[mine], here.edges[1 - mine]
        before = list(elsewhere.asked)
        one.ask("INVITE", sdp=offer(free_port()))
        one.ack(await one.response(200, "INVITE"))
        one.ask("INFO", body=("application/dtmf-relay", "Signal=5\r\nDuration=160\r\n"))
        await one.response(200, "INFO")
        assert edge.host.talks[0].keys == "5"
        await one.hang_up()
        await until(lambda: edge.host.talks[0].over.is_set())
        assert elsewhere.asked == before
        await elsewhere.host.talks[0].leg.hang_up("goodbye")  # and the other way
        bye = await other.is_hung_up()
        assert len(bye.headers.all("Via")) == 2


@needs_baresip
@pytest.mark.parametrize("transport", ["udp", pytest.param("tcp", marks=pytest.mark.slow)])
async def test_a_real_phone_talks_with_an_edge_and_their_sound_goes_directly(tmp_path, transport):
    async with site(10, 10) as here:
        phone = Baresip(tmp_path / "phone")
        async with phone.running():
            await phone.dial(f"sip:agent@{HOST}:{here.proxy.port};transport={transport}")
            talk = await next(e for e in here.edges if e.host.talks).host.talk()
            await asyncio.sleep(1.2)
            assert talk.hears(THEIR_TONE, 0.6)
            await phone.command("hold")
            await until(lambda: talk.leg.held)
            await phone.command("resume")
            await until(lambda: not talk.leg.held)
            await asyncio.sleep(0.8)
            await talk.leg.hang_up("goodbye")
            await phone.event("CALL_CLOSED")
        assert phone.hears(OUR_TONE)
        assert talk.leg.info.headers == {"X-Source": HOST, "X-Trunk": "test"}


# --- edges come and go ---


@contextmanager
def silent_edge(port: int) -> Iterator[Callable[[], int]]:
    """An edge that says nothing; yields what counts the INVITEs that came since the last count."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as edge:
        edge.bind((HOST, port))
        edge.setblocking(False)

        def invites() -> int:
            count = 0
            with suppress(BlockingIOError):
                while True:
                    count += edge.recv(1 << 16).startswith(b"INVITE")
            return count

        yield invites


async def test_a_killed_edge_is_noticed_and_calls_go_on_at_the_other():
    port = free_port()
    with_echo = child("benchmarks.servers.edge_server", "echo", "--sip")
    async with with_echo as server, endpoint(udp=port) as (_, host):
        async with aiohttp.ClientSession(f"http://{HOST}:{server.hello['port']}") as http:
            killed = (await get_json(http, "/lines"))["port"]
        async with kamailio([killed, port], **QUICK) as proxy:
            here = Site(proxy, [])
            async with here.callers() as callers:
                assert (await callers.fill(4))["up"] == 4
                assert len(host.talks) == 2
                server.process.kill()
                callers.measure()
                filled = await callers.fill(8)
                assert (filled["up"], filled["refused"]) == (8, {})
                await here.active(False, True)
                with silent_edge(killed) as invites:
                    await callers.fill(12)
                    assert invites() == 0
                assert len(host.talks) == 10
                async with endpoint(udp=killed) as (_, back):
                    await here.active(True, True)
                    await callers.fill(16)
                    assert back.talks


async def test_only_the_first_call_waits_for_an_edge_that_says_nothing():
    """Long before it would be asked whether it is there."""
    port, silent = free_port(), free_port()
    async with (
        endpoint(udp=port) as (_, host),
        kamailio([silent, port], **{**QUICK, "PING_SECONDS": 3600}) as proxy,
        Site(proxy, []).callers() as callers,
    ):
        with silent_edge(silent) as invites:
            assert (await callers.fill(2))["up"] == 2
            assert invites() > 0
            assert (await callers.fill(4))["up"] == 4
            assert invites() == 0
        assert len(host.talks) == 4


async def test_an_edge_taken_out_by_hand_keeps_its_calls():
    async with site(10, 10) as here, here.callers() as callers:
        await callers.fill(4)
        uri = f"sip:{HOST}:{here.proxy.edges[0]}"
        assert "Ok" in await kamcmd(here.proxy, "dispatcher.set_state", "d", "1", uri)
        await callers.fill(6)
        await until(lambda: here.calls == [2, 4])  # one that an edge answered late was sent again
        await callers.empty()
        await until(lambda: here.calls == [0, 0])


class FakeEdge(asyncio.DatagramProtocol):
    """Says `status` to everything."""

    def __init__(self, status: int) -> None:
        self.status = status
        self.asked: list[str] = []

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport

    def datagram_received(self, data: bytes, address: tuple[str, int]) -> None:
        request = parse_message(data)
        assert isinstance(request, Request)
        self.asked.append(request.method)
        self._transport.sendto(  # type: ignore[attr-defined]
            respond(request, self.status, to_tag="fake").serialize(), address
        )


async def test_an_edge_that_says_it_takes_no_calls_is_left_out():
    """As one that is draining does."""
    port, other = free_port(), free_port()
    loop = asyncio.get_running_loop()
    transport, fake = await loop.create_datagram_endpoint(
        lambda: FakeEdge(503), local_addr=(HOST, port)
    )
    try:
        async with kamailio([port, other], **QUICK) as proxy:
            here = Site(proxy, [])
            async with endpoint(udp=other), here.callers() as callers:
                await here.active(False, True)
                assert (await callers.fill(2))["up"] == 2
                assert set(fake.asked) == {"OPTIONS"}
                fake.status = 200
                await here.active(True, True)
    finally:
        transport.close()


async def test_without_an_edge_the_proxy_says_so_itself():
    async with kamailio([free_port()], **QUICK) as proxy:
        here = Site(proxy, [])
        await here.active(False)
        async with here.callers() as callers:
            filled = await callers.fill(1)
            assert (filled["refused"], filled["told_when"]) == ({503: 1}, 1)
        async with scripted(here) as peer:
            peer.target = f"sip:{HOST}:{proxy.port}"
            peer.ask("OPTIONS")
            assert (await peer.response(503)).headers.get("Retry-After")
