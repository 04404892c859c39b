"""Desks at a real edge: who may sign in, what a session opens, and how it ends."""

import time
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import pytest_asyncio
from aiohttp import web

from offhook.telephony.sip.admission.rate_limiter import MAX_FAILURES
from offhook.telephony.sip.extensions.ringing_io import CALL_HEADER
from offhook.telephony.sip.messages.message import Request
from offhook.telephony.sip.network import transport_io
from offhook.web.config.config import Config
from offhook.web.edge.reload_io import use
from offhook.web.edge.server_io import application
from offhook.web.http.session_cookie import DESK_COOKIE, issue_desk_session
from tests.support.waiting import until
from tests.web.edge.desk.signed_in import SipSocket, cookie_of, sign_in, sip_socket
from tests.web.edge.phones import Served, configured, served
from tests.web.edge.test_processes import TwoProcesses
from tests.web.edge.test_roles import REFUSED, TABLE, Use, routes_of

pytestmark = pytest.mark.asyncio
FOREIGN = "https://elsewhere.example"


def people(**others: str) -> dict[str, dict[str, str]]:
    """The extensions of a team."""
    return {n: {"password": f"pass-{n}", "name": f"Person {n}"} for n in ("101", "102")} | {
        number: {"password": password} for number, password in others.items()
    }


def office_config(**sip: Any) -> Config:
    return configured("127.0.0.1:9", **{"extensions": people(), "trunks": [], **sip})


@pytest_asyncio.fixture
async def server() -> AsyncIterator[Served]:
    async with served(office_config()) as found:
        yield found


async def test_a_session_says_whose_desk_it_is(server: Served) -> None:
    assert await server.get("/desk/session") == {"number": "", "name": ""}
    found = await server.get("/desk/session", Cookie=await cookie_of(server.url, "101"))
    assert (found["number"], found["name"]) == ("101", "Person 101")


@pytest.mark.parametrize(
    ("number", "password"),
    [("101", "pass-102"), ("101", ""), ("999", ""), ("999", "pass-999"), ("101", "\ud800")],
)
async def test_wrong_passwords_and_unknown_numbers_get_the_same_answer(
    server: Served, number: str, password: str
) -> None:
    body = {"number": number, "password": password}
    async with server.client.post("/desk/session", json=body) as answer:
        assert answer.status == 401
        assert await answer.json() == {
            "error": "there is no extension with this number and password"
        }
        assert "Set-Cookie" not in answer.headers


@pytest.mark.parametrize(
    "body", ["", "[]", "[" * 50_000, "{}", '{"number": 101, "password": 1}', '"x"']
)
async def test_what_is_no_number_and_password_is_refused(server: Served, body: str) -> None:
    headers = {"Content-Type": "application/json"}
    async with server.client.post("/desk/session", data=body, headers=headers) as answer:
        assert answer.status == 400


async def test_guessing_is_limited_for_the_address_by_page_and_by_phone(server: Served) -> None:
    guessed = [
        (await sign_in(server.url, "101", f"guess {n}")).status for n in range(MAX_FAILURES + 1)
    ]
    assert guessed == [401] * len(guessed)
    late = await sign_in(server.url, "101", "pass-101")
    assert late.status == 429
    assert "Retry-After" in late.headers


async def test_guesses_through_a_proxy_are_of_who_is_behind_it(server: Served) -> None:
    for n in range(MAX_FAILURES + 1):
        await sign_in(server.url, "101", f"guess {n}", **{"X-Forwarded-For": "198.51.100.7"})
    blocked = {"X-Forwarded-For": "198.51.100.7"}
    assert (await sign_in(server.url, "101", "pass-101", **blocked)).status in (403, 429)
    assert (await sign_in(server.url, "101", "pass-101")).status == 200


async def test_a_page_of_another_site_neither_signs_in_nor_opens_a_phone(server: Served) -> None:
    assert (await sign_in(server.url, "101", "pass-101", Origin=FOREIGN)).status == 403
    cookie = await cookie_of(server.url, "101")
    for headers, status in (
        ({"Cookie": cookie, "Origin": FOREIGN}, 403),
        ({"Cookie": cookie, "Origin": "null"}, 403),
        ({"Origin": server.url}, 401),
        ({"Cookie": f"{DESK_COOKIE}=9999999999.a.101.b", "Origin": server.url}, 401),
        ({"Cookie": f"{DESK_COOKIE}=x", "Origin": server.url}, 401),
    ):
        with pytest.raises(aiohttp.WSServerHandshakeError) as refused:
            await server.client.ws_connect("/desk/sip", protocols=["sip"], headers=headers)
        assert refused.value.status == status


@pytest.mark.parametrize(
    ("number", "password", "expires_in"),
    [("101", "pass-102", 60), ("101", "pass-101", -1), ("102", "pass-101", 60), ("103", "", 60)],
)
async def test_only_the_password_of_the_number_signs_a_session(
    server: Served, number: str, password: str, expires_in: int
) -> None:
    value = issue_desk_session(number, password, int(time.time()) + expires_in)
    found = await server.get("/desk/session", Cookie=f"{DESK_COOKIE}={value}")
    assert found["number"] == ""


async def test_a_session_opens_desk_routes_and_nothing_else() -> None:
    config = office_config().model_copy()
    config = config.model_copy(
        update={"server": config.server.model_copy(update={"admin_key": "operator"})}
    )
    async with served(config) as server:
        headers = {"Cookie": await cookie_of(server.url, "101"), "Origin": server.url}
        for (method, row), path in routes_of(application(server.edge)).items():
            body = {} if method in ("POST", "PATCH") else None
            async with server.client.request(method, path, json=body, headers=headers) as answer:
                admitted = answer.status not in REFUSED
            use_of = TABLE[method, row]
            assert admitted == (use_of in (Use.PAGE, Use.SIGN_IN, Use.DESK)), f"{method} {row}"


async def test_a_desk_registers_for_itself_alone(server: Served) -> None:
    async with sip_socket(server.url, "101") as ann:
        assert (await ann.register("102")).status == 403
        assert (await ann.register()).status == 200
        registrar = server.sip.user_agent.phones.registrar
        (binding,) = registrar.bindings("101")
        assert binding.flow.extension == "101"
    await until(lambda: not registrar.bindings("101"))


async def test_a_desk_behind_a_unix_socket_calls_too(server: Served, tmp_path: Path) -> None:
    runner = web.AppRunner(application(server.edge, "admin"))
    await runner.setup()
    await web.UnixSite(runner, str(tmp_path / "admin.sock")).start()
    url = "http://localhost"
    headers = {"Cookie": await cookie_of(server.url, "101"), "Origin": url}
    async with (
        aiohttp.ClientSession(
            connector=aiohttp.UnixConnector(str(tmp_path / "admin.sock"))
        ) as http,
        http.ws_connect(f"{url}/desk/sip", protocols=["sip"], headers=headers) as socket,
        sip_socket(server.url, "102") as bob,
    ):
        ann = SipSocket(socket, "101")
        assert (await ann.register()).status == 200
        await bob.register()
        await ann.send("INVITE", "102")
        assert isinstance(await bob.next(), Request)
    await runner.cleanup()


async def test_who_calls_from_a_desk_is_not_what_the_from_says(server: Served) -> None:
    async with sip_socket(server.url, "101") as ann, sip_socket(server.url, "102") as bob:
        assert (await bob.register()).status == 200
        ann.number = "999"
        await ann.send("INVITE", "102")
        invite = await bob.next()
        assert isinstance(invite, Request)
        assert (invite.from_.uri.user, invite.from_.display_name) == ("101", "Person 101")
        assert invite.headers.get(CALL_HEADER) in server.sip.calls


async def test_nobody_else_speaks_in_the_call_of_a_desk(server: Served) -> None:
    """Not even who knows its Call-ID and tags, at the same address."""
    async with sip_socket(server.url, "101") as ann, sip_socket(server.url, "102") as bob:
        await bob.register()
        await ann.send("INVITE", "102", "Call-ID: of-ann")
        await bob.next()
        routes = server.sip.user_agent.routes
        (session,) = (route.of for route in routes if route.of.call_id == "of-ann")
        await bob.send("BYE", "102", "Call-ID: of-ann", tag=session.local_tag)
        await bob.register()  # after which the BYE has been seen
        assert len(server.sip.calls) == 2
        await ann.send("BYE", "102", "Call-ID: of-ann", tag=session.local_tag)
        await until(lambda: not server.sip.calls)


async def test_a_desk_that_asks_too_much_is_slowed_down(server: Served) -> None:
    async with sip_socket(server.url, "101") as ann, sip_socket(server.url, "102") as bob:
        for _ in range(200):
            await ann.send("REGISTER", "101")
        statuses = []
        while 503 not in statuses:
            statuses.append((await ann.next()).status)
        assert statuses[0] == 200
        assert (await bob.register()).status == 200  # from the same address


async def test_too_many_connections_of_an_extension_are_closed_and_no_others(
    server: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transport_io, "MAX_CONNECTIONS_OF_EXTENSION", 1)
    monkeypatch.setattr(transport_io, "MAX_CONNECTIONS_PER_SOURCE", 1)
    async with sip_socket(server.url, "101"), sip_socket(server.url, "101") as second:
        await second.closed()
        async with sip_socket(server.url, "102") as bob:  # from the same address
            assert (await bob.register()).status == 200


@pytest.mark.parametrize("now", [people() | {"101": {"password": "new"}}, {"102": people()["102"]}])
async def test_another_password_ends_the_session_and_its_phone(server: Served, now: Any) -> None:
    cookie = await cookie_of(server.url, "101")
    async with sip_socket(server.url, "101", cookie) as ann, sip_socket(server.url, "102") as bob:
        assert (await ann.register()).status == 200
        assert (await bob.register()).status == 200
        changed = Config.model_validate({**dict(server.edge.config), "sip": {"extensions": now}})
        assert changed.sip is not None
        before = server.edge.config.sip
        kept = {name: getattr(before, name) for name in ("udp", "tcp")}
        use(server.edge, changed.model_copy(update={"sip": replace(changed.sip, **kept)}))
        await ann.closed()
        assert (await server.get("/desk/session", Cookie=cookie))["number"] == ""
        assert (await bob.register()).status == 200


async def test_a_session_that_is_over_closes_its_phone(server: Served) -> None:
    value = issue_desk_session("101", "pass-101", int(time.time()) + 2)
    async with sip_socket(server.url, "101", f"{DESK_COOKIE}={value}") as ann:
        await ann.closed()


async def test_any_process_leads_to_the_one_with_the_phones(tmp_path: Any) -> None:
    extensions = '{"101": {"password": "pass-101"}}'
    running = TwoProcesses(
        tmp_path, SIP_UDP="0", SIP_TCP="0", SIP_EXTENSIONS=extensions, AGENT_KIND="silent"
    )
    try:
        await running.ready()
        for _ in range(8):  # the system chooses who takes a connection
            cookie = await cookie_of(running.url, "101")
            async with aiohttp.ClientSession(headers={"Cookie": cookie}) as http:
                async with http.get(f"{running.url}/desk/session") as answer:
                    assert (await answer.json())["number"] == "101"
                async with http.get(f"{running.url}/desk") as answer:
                    assert answer.status == 200
            async with sip_socket(running.url, "101", cookie) as ann:
                assert (await ann.register()).status == 200
            assert (await sign_in(running.url, "101", "wrong", Origin=FOREIGN)).status == 403
    finally:
        running.process.kill()
        running.process.wait()
