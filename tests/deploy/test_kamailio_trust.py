"""Kamailio as deploy/kamailio has it: who may call whom through it, and phones with a password."""

import asyncio
from pathlib import Path

import pytest

from benchmarks.callers.rtp import offer
from benchmarks.processes.own_server import HOST
from benchmarks.servers.kamailio import kamailio
from offhook.telephony.sip.outgoing_calls_io import Dial
from offhook.telephony.sip.trunks.trunks import Trunk
from tests.deploy.site import (
    OTHER,
    PHONES,
    QUICK,
    Site,
    aim,
    scripted,
    site,
    until,
)
from tests.support.ports import free_port
from tests.telephony.sip.phones import (
    THEIR_TONE,
    Baresip,
    endpoint,
    needs_baresip,
    needs_kamailio,
)
from tests.telephony.sip.scripted_peer import udp_peer

pytestmark = needs_kamailio

# --- who may call whom ---


@pytest.mark.parametrize("transport", ["UDP", "TCP"])
async def test_an_edge_calls_a_trunk_through_the_proxy(transport):
    """What is too long for UDP goes by TCP as far as the proxy, which then records both."""
    headers = {"X-Order": "17" * 500 if transport == "TCP" else "17"}
    async with site(10) as here, scripted(here) as peer:
        edge = here.edges[0]
        call = edge.sip.dial(Dial(f"sip:200@{HOST}:{peer.port}", headers=headers))
        invite = await peer.take(offer(free_port()))
        assert len(invite.record_routes) == (2 if transport == "TCP" else 1)
        await until(lambda: call.state == "answered")
        peer.routes = [str(route) for route in invite.record_routes]
        peer.ask("INFO", body=("application/dtmf-relay", "Signal=7\r\n"))
        await peer.response(200, "INFO")
        await call.hang_up("done")
        await peer.is_hung_up()
        await until(lambda: edge.sip.trunk_states()[0].state == "up")


async def test_a_trunk_is_listed_by_its_name_too():
    """Then it is looked up, here in vain."""
    async with site(10, listed=(HOST, "provider.invalid")) as here:
        call = here.edges[0].sip.dial(Dial("sip:200@provider.invalid"))
        last = [progress async for progress in call.events()][-1]
        assert last.status == 478


@pytest.mark.parametrize("uri", ["sip:200@192.0.2.1", "sip:200@provider.invalid"])
async def test_an_edge_calls_nobody_else(uri):
    async with site(10) as here:
        call = here.edges[0].sip.dial(Dial(uri))
        last = [progress async for progress in call.events()][-1]
        assert last.status == 403


async def test_strangers_get_no_answer():
    async with kamailio([free_port()], trunks=(OTHER,), **QUICK) as proxy:
        here = Site(proxy, [])
        async with scripted(here) as peer:
            aim(peer, here)
            for method in ("INVITE", "OPTIONS", "REGISTER", "BYE"):
                peer.ask(method)
            peer.ask("BYE", to_tag="made-up")
            peer.send_bytes(b"nonsense\r\n\r\n")
            await asyncio.sleep(0.4)
            assert peer.came == []


async def test_the_proxy_is_no_relay():
    """From outside, whatever a request says of its way, it goes to an edge or nowhere."""
    async with site(10) as here, scripted(here) as peer, udp_peer() as victim:
        us = f"<sip:{HOST}:{here.proxy.port};lr>"
        away = f"<sip:{HOST}:{victim.port};lr>"
        for target, routes in (
            (f"sip:x@{HOST}:{victim.port}", [us]),
            (f"sip:{HOST}:{here.proxy.edges[0]}", [us, away]),
            (f"sip:{HOST}:{here.proxy.edges[0]};alias={HOST}~{victim.port}~1", [us]),
            (f"sip:x@{HOST}:{here.proxy.port}", [us, away]),
        ):
            peer.target, peer.routes = target, routes
            for method in ("BYE", "INVITE", "ACK"):
                peer.ask(method, to_tag="made-up")
        aim(peer, here)
        peer.routes = [us, away]
        peer.call_id += "-first"
        peer.invite(offer(free_port()))
        await peer.response(200, "INVITE")
        assert "\nRoute:" not in here.edges[0].sip.stack.trace.render("")
        peer.routes = []
        peer.ask("REGISTER")
        await peer.response(405)
        await asyncio.sleep(0.2)
        assert victim.came == []
        assert here.calls == [1]


# --- phones with a password ---

ANN = Trunk("ann", username="ann", password="secret")


def anns_phone(folder: Path, here: Site) -> Baresip:
    account = f"<sip:ann@{PHONES}:{here.proxy.port}>;regint=0;auth_user=ann;auth_pass=secret"
    return Baresip(folder, account=account)


@needs_baresip
async def test_a_phone_proves_itself_to_the_edge(tmp_path):
    async with site(10, 10, trunks=(ANN,), PHONES_ADDRESS=PHONES) as here:
        await here.asked()
        phone = anns_phone(tmp_path / "phone", here)
        async with phone.running():
            await phone.dial(f"sip:agent@{PHONES}:{here.proxy.port}")
            edge = next(e for e in here.edges if e.host.talks)
            talk = edge.host.talks[0]
            await asyncio.sleep(0.8)
            await until(lambda: talk.hears(THEIR_TONE, 0.5))
            assert edge.asked[:2] == ["INVITE", "401"]
            await talk.leg.hang_up("goodbye")
            await phone.event("CALL_CLOSED")
        assert talk.leg.info.trunk == "ann"
        assert sum(edge.asked.count("INVITE") for edge in here.edges) == 2


@needs_baresip
async def test_a_phone_is_asked_again_by_another_edge_when_the_first_has_no_line(tmp_path):
    async with site(10, 10, trunks=(ANN,), PHONES_ADDRESS=PHONES) as here:
        for full, other in (here.edges, reversed(here.edges)):
            full.host.full, other.host.full = True, False
            phone = anns_phone(tmp_path / f"phone{full.sip.bound[0][2]}", here)
            async with phone.running():
                await phone.dial(f"sip:agent@{PHONES}:{here.proxy.port}")
                await phone.hang_up()
            assert len(other.host.talks) == 1
        assert "503" in here.edges[0].asked + here.edges[1].asked


async def test_who_guesses_passwords_is_not_heard_any_more():
    async with site(10, trunks=(ANN,), PHONES_ADDRESS=PHONES) as here:
        guessing = Trunk(
            "us",
            server=f"{PHONES}:{here.proxy.port}",
            username="ann",
            password="guess",
            options_seconds=0,
        )
        async with endpoint(trunks=(guessing,)) as (far, _):
            for _ in range(6):
                call = far.dial(Dial("agent"))
                assert [progress async for progress in call.events()][-1].status == 401
            asked = len(here.edges[0].asked)
            call = far.dial(Dial("agent"))
            await asyncio.sleep(0.7)
            assert call.state == "dialing"
            assert len(here.edges[0].asked) == asked
    assert here.calls == [0]
