"""What the keys of two customers reach: every route of the operator's, with everybody's key."""

import re
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from typing import Any, NamedTuple

import pytest
import pytest_asyncio

from offhook.web.edge.server_io import application
from offhook.web.http.access import OF_TENANTS, SAFE, Role
from tests.support.waiting import until
from tests.web.edge.tenants.shared_server import KEYS, SharedServer, shared_server
from tests.web.records.made_calls import HERE, NOON, Happened, call_of

pytestmark = pytest.mark.asyncio(loop_scope="module")

DIAL = {"to": "+4917", "trunk": "acme-line", "agent": "shop"}
OWN: dict[tuple[str, str], Any] = {
    ("GET", "/calls"): None,
    ("POST", "/calls"): {},
    ("GET", "/calls/events"): None,
    ("GET", "/calls/numbers"): None,
    ("POST", "/calls/forget"): {"call_id": "{call}"},
    ("GET", "/calls/{call}"): None,
    ("DELETE", "/calls/{call}"): None,
    ("GET", "/calls/{call}/events"): None,
    ("GET", "/calls/{call}/record"): None,
    ("GET", "/calls/{call}/timeline"): None,
    ("GET", "/calls/{call}/export"): None,
    ("GET", "/calls/{call}/scenario"): None,
    ("GET", "/calls/{call}/recording"): None,
    ("POST", "/calls/{call}/recording"): {"action": "pause"},
    ("GET", "/calls/{call}/members"): None,
    ("POST", "/calls/{call}/members"): {"role": "speak", "call": "{call}"},
    ("PATCH", "/calls/{call}/members/{member}"): {"muted": True},
    ("DELETE", "/calls/{call}/members/{member}"): None,
    ("POST", "/calls/{call}/agent"): {"action": "leave"},
    ("GET", "/campaigns"): None,
    ("POST", "/campaigns"): {},
    ("GET", "/campaigns/{campaign}"): None,
    ("POST", "/campaigns/{campaign}"): {"action": "pause"},
    ("POST", "/campaigns/{campaign}/recipients"): {"recipients": [{"number": "+49172"}]},
    ("GET", "/campaigns/{campaign}/report.csv"): None,
    ("GET", "/voicemails"): None,
    ("DELETE", "/voicemails/{call}"): None,
    ("GET", "/do-not-call"): None,
    ("POST", "/do-not-call"): {"numbers": ["+49173"]},
    ("POST", "/do-not-call/{number}"): {},
    ("DELETE", "/do-not-call/{number}"): None,
    ("GET", "/trunks"): None,
    ("GET", "/extensions"): None,
    ("GET", "/agents"): None,
    ("GET", "/queues"): None,
    ("GET", "/queues/{name}"): None,
    ("POST", "/queues/{name}/members"): {"member": "+4930222900", "paused": True},
    ("POST", "/tokens"): {"agent": "shop"},
}
"""Routes that tenants' keys reach too, each with a body."""
ALONE = {
    *(("GET", "/engines"), ("POST", "/engines"), ("GET", "/sip/trace")),
    *(("GET", "/builder"), ("POST", "/builder/toml")),
}
"""Routes that are the operator's alone."""
READ_ONLY = {("GET", path) for method, path in OWN if method == "GET"} - {
    ("GET", "/calls/{call}/recording")
}


class Ids(NamedTuple):
    """What somebody has."""

    call: str
    campaign: str
    name: str


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def server(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[SharedServer]:
    """Two tenants, each with a call in progress, a call that is kept, a message and a campaign."""
    folder = tmp_path_factory.mktemp("tenants")
    sections = {"rooms": {}}
    async with shared_server(folder, **sections) as shared, AsyncExitStack() as calls:
        for number, tenant in enumerate(("acme", "beta", "")):
            kept = call_of(f"kept-{tenant}", "my card is lost", at=NOON + number, tenant=tenant)
            message = Happened(f"kept-{tenant}", 9, 0, "voicemail_left", {"mailbox": tenant})
            shared.store.write([*kept, message], HERE, NOON + 60)
            await calls.enter_async_context(shared.phoned(tenant))
        for tenant, agent in (("acme", "shop"), ("beta", "night")):
            asked = {"id": "spring", "agent": agent, "trunk": f"{tenant}-line", "paused": True}
            asked |= {"recipients": [{"number": "+49171"}]}
            status, body = await shared.ask(tenant, "POST", "/campaigns", asked)
            assert (status, body["campaign_id"]) == (201, f"{tenant}.spring"), body
        await shared.written()
        await until(lambda: len(shared.edge.calls) == 3)
        yield shared


async def ids_of(server: SharedServer, tenant: str, *, live: bool) -> Ids:
    calls = [call["call_id"] for call in await server.live(tenant)]
    queue = {"acme": "sales", "beta": "support"}[tenant]
    return Ids(calls[0] if live else f"kept-{tenant}", f"{tenant}.spring", queue)


def filled(value: Any, ids: Ids) -> Any:
    if isinstance(value, dict):
        return {name: filled(one, ids) for name, one in value.items()}
    if not isinstance(value, str):
        return value
    for name, known in ids._asdict().items():
        value = value.replace(f"{{{name}}}", known)
    return re.sub(r"{\w+}", "x", value)


async def test_every_route_has_a_row(server: SharedServer) -> None:
    policy, found = server.edge.access, set()
    for resource in application(server.edge).router.resources():
        for route in resource:
            if route.method not in ("HEAD", "OPTIONS") and policy.role_of(resource.canonical) in (
                *(Role.OPERATOR, Role.RECORDS),
            ):
                found.add((route.method, resource.canonical))
    assert found == {*OWN, *ALONE}
    assert {path for _, path in OWN} == OF_TENANTS


@pytest.mark.parametrize("key", ["", "wrong", *KEYS])
async def test_who_reaches_what(server: SharedServer, key: str) -> None:
    nobodys = Ids("unknown", "unknown", "unknown")
    for method, path in (*OWN, *ALONE):
        body = filled(OWN.get((method, path), {} if method == "POST" else None), nobodys)
        status, answer = await server.ask(key, method, filled(path, nobodys), body)
        where = f"{key}: {method} {path}: {status} {answer}"
        if key in ("", "wrong"):
            assert status == 401, where
        elif key.endswith("reader"):
            may = (method, path) in READ_ONLY
            if key == "reader":
                may = may or (method in SAFE and (method, path) in ALONE and status != 403)
            assert (status != 403) == may, where
        elif key == "beta" and path == "/tokens":
            assert status == 403, where  # the agent is acme's
        else:
            refused = (method, path) in ALONE and KEYS[key] != ""
            assert (status == 403) == refused, where


@pytest.mark.parametrize("live", [True, False])
@pytest.mark.parametrize("tenant", ["acme", "beta"])
async def test_what_is_anothers_looks_as_what_is_unknown(
    server: SharedServer, tenant: str, live: bool
) -> None:
    own = await ids_of(server, tenant, live=live)
    other = await ids_of(server, {"acme": "beta", "beta": "acme"}[tenant], live=live)
    unknown = Ids("0123456789ab", f"{tenant}.autumn", "nothing")
    before = server.store.show(other.call)
    for (method, path), body in OWN.items():
        if not any(f"{{{name}}}" in f"{path} {body}" for name in Ids._fields):
            continue
        asked = [
            await server.ask(tenant, method, filled(path, ids), filled(body, ids))
            for ids in (unknown, other)
        ]
        [nothing, foreign] = asked
        assert foreign == nothing, f"{method} {path}"
        assert nothing[0] in (404, 409, 200), f"{method} {path}: {nothing}"
        assert "{" not in path or nothing[0] != 200, f"{method} {path}: {nothing}"
    assert server.store.show(other.call) == before
    assert [call["state"] for call in await server.live("operator")] == ["answered"] * 3
    if live:  # nor does it come into a call of one's own
        path = filled("/calls/{call}/members", own)
        for call in (unknown.call, other.call):
            joined = {"role": "speak", "call": call}
            status, body = await server.ask(tenant, "POST", path, joined)
            assert (status, body["error"]) == (409, f"call: {call!r} is not in progress here")
    for path in ("/calls/{call}", "/campaigns/{campaign}", "/queues/{name}"):
        status, _ = await server.ask(tenant, "GET", filled(path, own))
        assert status == 200, path


async def test_lists_have_what_is_the_tenants(server: SharedServer) -> None:
    async def listed(key: str, path: str) -> Any:
        status, body = await server.ask(key, "GET", path)
        assert status == 200, body
        [found] = [value for value in body.values() if isinstance(value, list)][:1]
        return found

    for key, its in (("acme", ["acme"]), ("acme-reader", ["acme"]), ("beta", ["beta"])):
        assert [call["tenant"] for call in await listed(key, "/calls")] == its
        found = await listed(key, "/calls?text=card")
        assert [call["call_id"] for call in found] == [f"kept-{its[0]}"]
        assert [one["mailbox"] for one in await listed(key, "/voicemails")] == its
        assert [one["campaign_id"] for one in await listed(key, "/campaigns")] == [
            f"{its[0]}.spring"
        ]
        trunks, agents = await listed(key, "/trunks"), await listed(key, "/agents")
        carriers = {"acme": [], "beta": ["twilio"]}[its[0]]
        assert [trunk["name"] for trunk in trunks] == [f"{its[0]}-line", *carriers]
        assert [agent["name"] for agent in agents] == [{"acme": "shop", "beta": "night"}[its[0]]]
        [extension] = await listed(key, "/extensions")
        assert extension["number"] == {"acme": "101", "beta": "102"}[its[0]]
        queues = await listed(key, "/queues")
        assert [q["name"] for q in queues] == [{"acme": "sales", "beta": "support"}[its[0]]]
        _, sums = await server.ask(key, "GET", "/calls/numbers?from=2026-09-01")
        assert sums["all"]["calls"] == 2
        status, _ = await server.ask(key, "GET", "/calls/events")
        assert status == 200
    assert len(await listed("operator", "/calls")) == 3
    assert len(await listed("operator", "/voicemails")) == 3
    assert len(await listed("operator", "/extensions")) == 3
    assert [c["call_id"] for c in await listed("operator", "/calls?tenant=beta&text=card")] == [
        "kept-beta"
    ]
    states = ("/trunks", "/extensions", "/agents", "/queues")
    for path in ("/calls?text=card", "/voicemails", "/campaigns", *states):
        its = await listed("operator", f"{path}{'&' if '?' in path else '?'}tenant=acme")
        assert its == await listed("acme", path), path
        status, _ = await server.ask("beta", "GET", f"{path.partition('?')[0]}?tenant=acme")
        assert status == 403


async def test_each_tenant_has_a_do_not_call_list(server: SharedServer) -> None:
    async def states(tenant: str) -> dict[str, int]:
        _, body = await server.ask(tenant, "GET", f"/campaigns/{tenant}.quiet")
        return {state: number for state, number in body["states"].items() if number}

    for tenant, agent in (("acme", "shop"), ("beta", "night")):
        asked = {"id": "quiet", "agent": agent, "trunk": f"{tenant}-line", "paused": True}
        asked |= {"recipients": [{"number": "+49174"}, {"number": "+49175"}]}
        assert (await server.ask(tenant, "POST", "/campaigns", asked))[0] == 201
    keys = ("acme", "beta", "operator")
    before = [(await server.ask(key, "GET", "/do-not-call"))[1]["total"] for key in keys]
    added = await server.ask("acme", "POST", "/do-not-call", {"numbers": ["0049 174"]})
    assert added == (200, {"added": 1, "known": 0})
    assert (await states("acme"), await states("beta")) == (
        {"waiting": 1, "blocked": 1},
        {"waiting": 2},
    )
    after = [(await server.ask(key, "GET", "/do-not-call"))[1]["total"] for key in keys]
    assert [new - old for new, old in zip(after, before, strict=True)] == [1, 0, 1]
    assert (await server.ask("beta", "DELETE", "/do-not-call/+49174"))[0] == 404
    assert (await server.ask("beta", "GET", "/do-not-call?tenant=acme"))[0] == 403
    # What the operator adds is for all.
    await server.ask("operator", "POST", "/do-not-call", {"numbers": ["+49174", "+49175"]})
    assert (await states("acme"), await states("beta")) == ({"blocked": 2}, {"blocked": 2})
    assert (await server.ask("acme", "DELETE", "/do-not-call/+49174"))[0] == 200
    assert (await server.ask("acme", "DELETE", "/do-not-call/+49174"))[0] == 404


async def test_a_screen_shows_the_calls_of_the_tenant(server: SharedServer) -> None:
    feed = server.edge.records.live
    assert feed is not None
    with feed.of("acme").listening() as acme, feed.of("beta").listening() as beta:
        for listener, own in ((acme, "acme"), (beta, "beta")):
            [call] = await server.live(own)
            text = (await listener.next(60)).decode()
            assert call["call_id"] in text
            assert text.count('"call_id"') == 1
            assert f"{own}.spring" in text
            assert "campaign_id" not in text.replace(f'"campaign_id": "{own}', "")


@pytest.mark.parametrize(
    ("key", "asked", "status"),
    [
        ("acme", {"trunk": "acme-line", "agent": "shop"}, 201),
        ("acme", {"trunk": "acme-line"}, 403),  # the default agent is nobody's
        ("acme", {"trunk": "acme-line", "agent": "night"}, 403),
        ("acme", {"trunk": "beta-line", "agent": "shop"}, 403),
        ("acme", {"trunk": "shared-line", "agent": "shop"}, 403),
        ("acme", {"trunk": "shared-line", "agent": "shop", "caller": "+4930222017"}, 403),
        ("acme", {"trunk": "shared-line", "agent": "shop", "caller": "+4930111017"}, 201),
        ("acme", {"trunk": "no-line", "agent": "shop", "caller": "+4930111017"}, 403),
        ("acme", {"agent": "shop"}, 403),
        ("acme", {"carrier": "twilio", "agent": "shop"}, 403),
        ("acme-reader", {"trunk": "acme-line", "agent": "shop"}, 403),
        ("beta", {"trunk": "acme-line", "agent": "shop"}, 403),
        ("operator", {"trunk": "acme-line", "agent": "night"}, 409),
        ("operator", {"trunk": "shared-line", "agent": "night"}, 201),
    ],
)
async def test_who_may_place_which_calls(
    server: SharedServer, key: str, asked: dict[str, str], status: int
) -> None:
    found, body = await server.ask(key, "POST", "/calls", {"to": "+4917", **asked})
    assert found == status, body
    if status == 201:
        await server.ask("operator", "DELETE", f"/calls/{body['call_id']}")
        await until(lambda: body["call_id"] not in server.edge.call_ids())
    if status == 403:
        campaign = {**asked, "recipients": [{"number": "+49171"}]}
        found, body = await server.ask(key, "POST", "/campaigns", campaign)
        assert found == status, body


async def test_tokens_are_for_agents_of_the_tenant(server: SharedServer) -> None:
    for asked in ({"agent": "night"}, {}, {"agent": "shop", "scope": ["call", "speech"]}):
        assert (await server.ask("acme", "POST", "/tokens", asked))[0] == 403
    status, _ = await server.ask("acme", "POST", "/tokens", {"agent": "shop"})
    assert status == 201


async def test_the_console_is_signed_in_for_a_tenant(server: SharedServer) -> None:
    for key, role, tenant in (
        ("operator", "admin", ""),
        ("acme", "admin", "acme"),
        ("acme-reader", "reader", "acme"),
    ):
        origin = {"Origin": server.url}
        status, body = await server.ask("", "POST", "/console/session", {"key": key}, **origin)
        assert (status, body) == (200, {"who": role, "tenant": tenant})


async def test_what_a_tenant_forgets_is_its_own(server: SharedServer) -> None:
    for call in ("forget-acme", "forget-beta"):
        tenant = call.removeprefix("forget-")
        made = call_of(call, "goodbye", caller="+49 30 555", tenant=tenant)
        server.store.write(made, HERE, NOON + 90)
    _, body = await server.ask("acme", "POST", "/calls/forget", {"number": "+49 30 555"})
    assert body["calls"] == 1
    assert (server.store.show("forget-acme") or {})["caller"] == ""
    assert (server.store.show("forget-beta") or {})["caller"] == "+49 30 555"
