"""Who may do what at each route of calls and of the console: a table of all of them."""

import re
from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import asynccontextmanager
from enum import Enum, auto
from typing import Any

import aiohttp
import pytest

from offhook.web.config.config import Config
from offhook.web.edge.edge_io import Edge
from offhook.web.edge.server_io import application
from offhook.web.http.access import SAFE
from offhook.web.http.listening_io import Runner
from tests.web.edge.test_history import ADMIN, READER, server

__all__ = ["server"]
pytestmark = pytest.mark.asyncio(loop_scope="module")


class Use(Enum):
    """What a route is for."""

    PAGE = auto()
    """Files, and who is signed in: for everybody. Pages of other sites cannot read the answer."""
    SIGN_IN = auto()
    """For everybody but pages of other sites."""
    READ = auto()
    """For the operator and for readers."""
    OPERATE = auto()
    """For the operator."""
    DESK = auto()
    """For whoever has signed in with an extension's password: not even for the operator."""


TABLE = {
    ("GET", "/console"): Use.PAGE,
    ("GET", "/console/{name}"): Use.PAGE,
    ("GET", "/console/session"): Use.PAGE,
    ("POST", "/console/session"): Use.SIGN_IN,
    ("DELETE", "/console/session"): Use.SIGN_IN,
    ("GET", "/desk"): Use.PAGE,
    ("GET", "/desk/{name}"): Use.PAGE,
    ("GET", "/desk/session"): Use.PAGE,
    ("POST", "/desk/session"): Use.SIGN_IN,
    ("DELETE", "/desk/session"): Use.SIGN_IN,
    ("GET", "/desk/sip"): Use.DESK,
    ("GET", "/desk/events"): Use.DESK,
    ("POST", "/desk/calls/{call}/decision"): Use.DESK,
    ("GET", "/desk/calls/{call}/history"): Use.DESK,
    ("POST", "/desk/calls/{call}/notes"): Use.DESK,
    ("POST", "/desk/calls/{call}/members"): Use.DESK,
    ("POST", "/desk/queues/{name}"): Use.DESK,
    ("GET", "/calls"): Use.READ,
    ("POST", "/calls"): Use.OPERATE,
    ("GET", "/calls/events"): Use.READ,
    ("GET", "/calls/numbers"): Use.READ,
    ("POST", "/calls/forget"): Use.OPERATE,
    ("GET", "/calls/{call}"): Use.READ,
    ("DELETE", "/calls/{call}"): Use.OPERATE,
    ("GET", "/calls/{call}/events"): Use.READ,
    ("GET", "/calls/{call}/record"): Use.READ,
    ("GET", "/calls/{call}/timeline"): Use.READ,
    ("GET", "/calls/{call}/export"): Use.READ,
    ("GET", "/calls/{call}/scenario"): Use.READ,
    ("GET", "/calls/{call}/recording"): Use.OPERATE,
    ("POST", "/calls/{call}/recording"): Use.OPERATE,
    ("GET", "/calls/{call}/members"): Use.READ,
    ("POST", "/calls/{call}/members"): Use.OPERATE,
    ("PATCH", "/calls/{call}/members/{member}"): Use.OPERATE,
    ("DELETE", "/calls/{call}/members/{member}"): Use.OPERATE,
    ("POST", "/calls/{call}/agent"): Use.OPERATE,
    ("GET", "/campaigns"): Use.READ,
    ("POST", "/campaigns"): Use.OPERATE,
    ("GET", "/campaigns/{campaign}"): Use.READ,
    ("POST", "/campaigns/{campaign}"): Use.OPERATE,
    ("POST", "/campaigns/{campaign}/recipients"): Use.OPERATE,
    ("GET", "/campaigns/{campaign}/report.csv"): Use.READ,
    ("GET", "/do-not-call"): Use.READ,
    ("POST", "/do-not-call"): Use.OPERATE,
    ("POST", "/do-not-call/{number}"): Use.OPERATE,
    ("DELETE", "/do-not-call/{number}"): Use.OPERATE,
    ("GET", "/voicemails"): Use.READ,
    ("DELETE", "/voicemails/{call}"): Use.OPERATE,
    ("GET", "/trunks"): Use.READ,
    ("GET", "/extensions"): Use.READ,
    ("GET", "/engines"): Use.READ,
    ("POST", "/engines"): Use.OPERATE,
    ("GET", "/agents"): Use.READ,
    ("GET", "/queues"): Use.READ,
    ("GET", "/queues/{name}"): Use.READ,
    ("POST", "/queues/{name}/members"): Use.OPERATE,
}
"""Every route below these roots; HEAD is as GET."""
OURS = re.compile(
    r"/(calls|campaigns|do-not-call|console|desk|voicemails|trunks|extensions|engines|agents|queues)(/.*)?"
)
REFUSED = (401, 403)

FOREIGN = {"Origin": "https://elsewhere.example"}
REBOUND = {"Host": "elsewhere.example"}
CALLER = {"Authorization": "Bearer caller"}
ALL = set(Use) - {Use.DESK}
PUBLIC, READING = {Use.PAGE, Use.SIGN_IN}, {Use.PAGE, Use.SIGN_IN, Use.READ}


def routes_of(app: aiohttp.web.Application) -> dict[tuple[str, str], str]:
    """The routes of the table, each with a path that can be asked for."""
    found: dict[tuple[str, str], str] = {}
    for route in app.router.routes():
        path = route.resource.canonical if route.resource is not None else ""
        if not OURS.fullmatch(path) or route.method == "OPTIONS":
            continue
        method = "GET" if route.method == "HEAD" else route.method
        asked = path.replace("{call}", "nobody").replace("{name}", "console.js")
        asked = asked.replace("{member}", "nobody")
        asked = asked.replace("{campaign}", "none").replace("{number}", "4711")
        found[method, path] = asked
    return found


async def test_every_route_has_a_row(edge: Edge) -> None:
    assert routes_of(application(edge)).keys() == TABLE.keys()


async def check(
    url: str, paths: Mapping[tuple[str, str], str], headers: Any, may: Iterable[Use]
) -> None:
    """Asks for every route; those of these uses are not refused, whatever else they answer."""
    may = set(may)
    async with aiohttp.ClientSession(headers=headers) as http:
        for (method, row), use in TABLE.items():
            for asked in ("GET", "HEAD") if method == "GET" else (method,):
                body = {} if method in ("POST", "PATCH") else None
                async with http.request(asked, url + paths[method, row], json=body) as response:
                    admitted = response.status not in REFUSED
                assert admitted == (use in may), f"{asked} {row}: {response.status}"


@pytest.mark.parametrize(
    ("headers", "may"),
    [
        ({}, PUBLIC),
        (CALLER, PUBLIC),
        ({"Authorization": "Bearer wrong"}, PUBLIC),
        (READER, READING),
        (READER | FOREIGN, {Use.PAGE}),
        (ADMIN, ALL),
        (ADMIN | REBOUND, ALL),  # a page does not know the key
        (ADMIN | FOREIGN, {Use.PAGE}),
        (ADMIN | {"Origin": "null"}, {Use.PAGE}),
    ],
)
async def test_keys(server: str, edge: Edge, headers: Any, may: set[Use]) -> None:
    await check(server, routes_of(application(edge)), headers, may)


async def cookie_of(server: str, key: str) -> dict[str, str]:
    """The header of somebody who has signed in."""
    async with (
        aiohttp.ClientSession(headers={"Origin": server}) as http,
        http.post(f"{server}/console/session", json={"key": key}) as response,
    ):
        assert response.status == 200
        return {"Cookie": response.headers["Set-Cookie"].partition(";")[0]}


@pytest.mark.parametrize(
    ("key", "origin", "may"),
    [
        ("operator", "own", ALL),
        ("operator", "foreign", {Use.PAGE}),
        ("reader", "own", READING),
        ("reader", "foreign", {Use.PAGE}),
        ("reader", "none", READING),
    ],
)
async def test_sessions(server: str, edge: Edge, key: str, origin: str, may: set[Use]) -> None:
    own = {"own": {"Origin": server}, "foreign": FOREIGN, "none": {}}[origin]
    headers = await cookie_of(server, key) | own
    await check(server, routes_of(application(edge)), headers, may)


async def test_a_session_without_an_origin_changes_nothing(server: str, edge: Edge) -> None:
    """As a form of another site would send it, if a browser sent the cookie with that."""
    headers, paths = await cookie_of(server, "operator"), routes_of(application(edge))
    async with aiohttp.ClientSession(headers=headers) as http:
        for (method, row), use in TABLE.items():
            async with http.request(
                method,
                server + paths[method, row],
                json={} if method in ("POST", "PATCH") else None,
            ) as response:
                changes = method not in SAFE and use is not Use.SIGN_IN
                refused = changes or use is Use.DESK
                assert (response.status == 401) == refused, f"{method} {row}: {response.status}"


@asynccontextmanager
async def without_keys() -> AsyncIterator[tuple[str, dict[tuple[str, str], str]]]:
    edge = Edge(Config.model_validate({"server": {"port": 0}}))
    app = application(edge)
    runner = Runner(app)
    await runner.setup()
    await runner.listen("127.0.0.1", 0)
    try:
        yield f"http://127.0.0.1:{runner.addresses[0][1]}", routes_of(app)
    finally:
        await edge.records.close()
        await runner.cleanup()


@pytest.mark.parametrize(
    ("headers", "may"),
    [
        ({}, ALL),
        (REBOUND, ()),
        (REBOUND | {"Origin": "http://elsewhere.example"}, ()),
        (FOREIGN, {Use.PAGE}),
        ({"X-Forwarded-For": "203.0.113.9"}, ()),
        ({"Authorization": "Bearer any"}, PUBLIC),
        ({"Cookie": "offhook_session=9999999999.a.b"}, ALL),  # says nothing here
    ],
)
async def test_without_keys_this_user_is_the_operator(headers: Any, may: Iterable[Use]) -> None:
    async with without_keys() as (url, paths):
        await check(url, paths, headers, may)
