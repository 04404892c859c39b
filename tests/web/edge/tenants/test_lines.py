"""Lines of two customers: whose a call is, and how many each may have."""

import asyncio
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest
from aiohttp import ClientSession

from offhook.telephony.call_progress_io import DialError
from offhook.web.app.callers.twilio.caller_io import TwilioCaller
from offhook.web.app.callers.twilio.webhook_io import Refused
from offhook.web.app.callers.way import Way
from offhook.web.edge.reload_io import use
from tests.support.waiting import HANGS_S, until
from tests.telephony.sip.extensions.desks import Desk
from tests.telephony.sip.scripted_peer import udp_peer
from tests.telephony.sip.scripted_sound import sound
from tests.web.edge.tenants.shared_server import shared_server, table


async def test_whose_a_call_is(tmp_path: Path) -> None:
    async with shared_server(tmp_path) as server, AsyncExitStack() as calls:
        for tenant, called in (("acme", "1"), ("beta", "2"), ("", "+4930222017"), ("", "100")):
            await calls.enter_async_context(server.phoned(tenant, called))
        by_phone = {call["called"]: call["tenant"] for call in await server.live("operator")}
        assert by_phone == {"1": "acme", "2": "beta", "+4930222017": "beta", "100": ""}
        assert {call["called"] for call in await server.live("acme")} == {"1"}
        assert {call["called"] for call in await server.live("beta")} == {"2", "+4930222017"}
        status, body = await server.browser("shop")
        assert status == 200
        assert [c["call_id"] for c in await server.live("acme") if c["edge"] == "webrtc"] == [
            body["pc_id"]
        ]
        _, metrics = await server.ask("", "GET", "/metrics")
        assert 'offhook_tenant_lines{tenant="beta"} 2.0' in metrics
        # The record of a call that is over has it too.
        await calls.aclose()
        await until(lambda: len(server.edge.records.ended) == 4)
        await server.written()
        _, found = await server.ask("operator", "GET", "/calls?tenant=beta&state=ended")
        assert {call["called"] for call in found["calls"]} == {"2", "+4930222017"}


async def test_an_agent_of_another_tenant_is_not_reached(tmp_path: Path) -> None:
    async with shared_server(tmp_path) as server:
        async with server.phoned("", "+49999") as far:  # nobody's call, beta's agent: it is beta's
            assert 200 in far.came
            assert [call["tenant"] for call in await server.live("operator")] == ["beta"]
        async with server.phoned("beta", "+4930111001") as far:  # routed to acme's
            assert 403 in far.came


async def test_an_extension_of_another_tenant_is_not_reached(tmp_path: Path) -> None:
    async with (
        shared_server(tmp_path) as server,
        server.desk("101") as ann,
        server.desk("102") as bob,
        server.desk("103") as cleo,  # nobody's
    ):
        await ann.begins_to_call("102")
        ann.far.ack_refusal(await ann.far.response(403, "INVITE"))
        await cleo.begins_to_call("102")
        await bob.answers()
        await cleo.is_answered()
        bob.far.ask("REFER", ("Refer-To", "<sip:101@127.0.0.1>"))
        await bob.far.response(603)
        (call,) = (c for c in server.sip.calls.values() if c.info.trunk == "ext:102")
        with pytest.raises(DialError, match="cannot be called"):
            await server.sip.extension_calls.add(call, "101")
        await bob.far.hang_up()
        await cleo.far.is_hung_up()


async def test_one_tenant_floods_and_the_others_calls_are_all_taken(tmp_path: Path) -> None:
    async with shared_server(tmp_path) as server, AsyncExitStack() as calls:
        flood = [await calls.enter_async_context(server.phoned("acme")) for _ in range(6)]
        assert [200 in far.came for far in flood] == [True] * 2 + [False] * 4
        assert all(486 in far.came for far in flood[2:])
        status, body = await server.browser("shop")
        assert (status, body["reason"]) == (503, "tenant")
        status, body = await server.ask(
            "acme", "POST", "/calls", {"to": "+491", "trunk": "acme-line", "agent": "shop"}
        )
        assert (status, body["reason"]) == (503, "tenant")
        others = [await calls.enter_async_context(server.phoned("beta")) for _ in range(4)]
        assert all(200 in far.came for far in others)
        assert (await server.browser("night"))[0] == 200
        assert (await server.browser("desk"))[0] == 200
        _, metrics = await server.ask("", "GET", "/metrics")
        assert 'offhook_calls_refused_total{reason="tenant"} 6.0' in metrics


async def test_a_call_stays_whose_it_is_when_the_tenants_are_others(tmp_path: Path) -> None:
    async with shared_server(tmp_path) as server, server.phoned("acme", "1"):
        [call] = await server.live("acme")
        of_both = server.edge.config.tenants
        trunks = (*of_both["beta"].trunks, *of_both["acme"].trunks)
        beta = of_both["beta"].model_copy(update={"trunks": trunks})
        use(server.edge, server.edge.config.model_copy(update={"tenants": {"beta": beta}}))
        assert (await server.ask("acme", "GET", "/calls"))[0] == 401
        assert (await server.ask("beta", "GET", f"/calls/{call['call_id']}"))[0] == 404
        async with server.phoned("acme", "2"):
            calls = {call["called"]: call["tenant"] for call in await server.live("operator")}
            assert calls == {"1": "acme", "2": "beta"}
            assert [call["called"] for call in await server.live("beta")] == ["2"]


async def test_a_carriers_calls_are_its_tenants(tmp_path: Path) -> None:
    tenants = table(tmp_path)["tenants"]
    tenants["beta"]["max_calls"] = 1
    async with shared_server(tmp_path, tenants=tenants) as server:
        url = f"{server.url}/carriers/twilio/voice"
        caller, another = (TwilioCaller(url, "secret", Way()) for _ in range(2))
        await caller.call()
        try:
            await until(lambda: server.edge.calls)
            assert [call["edge"] for call in await server.live("beta")] == ["twilio"]
            assert await server.live("acme") == []
            with pytest.raises(Refused):
                await another.call()
            assert (await server.browser("night"))[1]["reason"] == "tenant"
            assert (await server.browser("shop"))[0] == 200
        finally:
            await caller.leg.hang_up("over")
            await caller.close()
            await another.close()


async def test_realtime_sessions_are_of_the_tenant_of_their_agent(tmp_path: Path) -> None:
    async with shared_server(tmp_path) as server, ClientSession() as http:
        _, given = await server.ask("beta", "POST", "/tokens", {"agent": "night"})
        headers = {"Authorization": f"Bearer {given['token']}"}
        async with http.ws_connect(f"{server.url}/v1/realtime", headers=headers):
            assert [call.leg.info.tenant for call in server.edge.calls.values()] == ["beta"]


async def test_the_calls_of_a_campaign_are_its_tenants(tmp_path: Path) -> None:
    async with shared_server(tmp_path) as server:

        async def ended(key: str, **asked: str) -> dict[str, Any]:
            """The campaign, once its only recipient was called."""
            once = {"retries": {"no_answer": {"times": 0}}, "recipients": [{"number": "+49171"}]}
            status, begun = await server.ask(key, "POST", "/campaigns", once | asked)
            assert status == 201, begun
            async with asyncio.timeout(HANGS_S):
                while True:
                    path = f"/campaigns/{begun['campaign_id']}"
                    _, campaign = await server.ask(key, "GET", path)
                    if campaign["ended"] is not None:
                        return campaign
                    for call in await server.live(key):  # nobody would ever answer
                        await server.ask(key, "DELETE", f"/calls/{call['call_id']}")
                    await asyncio.sleep(0.05)

        campaign = await ended("acme", trunk="acme-line", agent="shop")
        assert campaign["tenant"] == "acme"
        _, found = await server.ask("acme", "GET", "/calls?state=ended")
        assert [(c["called"], c["direction"]) for c in found["calls"]] == [("+49171", "outbound")]
        assert (await server.ask("beta", "GET", "/calls?state=ended"))[1]["calls"] == []
        # Whoever asks for it, an agent does not speak over another tenant's trunk.
        campaign = await ended("operator", trunk="acme-line", agent="night")
        assert campaign["outcomes"] == {"refused": 1}


async def test_a_phone_of_another_tenant_does_not_ring(tmp_path: Path) -> None:
    sections = table(tmp_path)["sip"]
    sections["extensions"] = {
        number: {"password": f"pass-{number}"} for number in ("101", "102", "103")
    }
    async with shared_server(tmp_path, sip=sections) as server, AsyncExitStack() as open_:
        sip = server.edge.sip
        assert sip is not None

        async def desk(number: str) -> Desk:
            far = await open_.enter_async_context(udp_peer(sip))
            phone = Desk(sip, far, open_.enter_context(sound()), number)
            await phone.register()
            return phone

        ann, bob, cleo = [await desk(number) for number in ("101", "102", "103")]
        await ann.begins_to_call("102")  # beta's
        ann.far.ack_refusal(await ann.far.response(403))
        await cleo.begins_to_call("101")  # of nobody's, who may call both
        await ann.answers()
        await cleo.is_answered()
        await cleo.far.hang_up()
        await ann.far.is_hung_up()
        await cleo.begins_to_call("102")
        await bob.answers()
        await cleo.is_answered()
        await cleo.far.hang_up()
        await bob.far.is_hung_up()
