"""The operator tries an agent's settings in a call of the page's, and sees what goes to its
model."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from offhook.signaling.peer_io import PeerLeg
from offhook.signaling.smallwebrtc import RequestError
from offhook.web.config.agents import Agent
from offhook.web.config.config import Config
from offhook.web.edge.builder.drafts import as_toml, draft_of
from offhook.web.edge.builder.shown_requests import MAX_SHOWN_CHARS, MAX_TEXT_CHARS, shown_request
from offhook.web.edge.edge_io import Edge
from offhook.web.edge.server_io import application
from offhook.web.edge.siblings_io import SLACK_CALLS, NumberedEdge, Siblings, socket_path
from offhook.web.http.access_io import OPERATOR_HEADER
from offhook.web.http.listening_io import Runner
from tests.pipeline.conversation.agents.test_agent_faults import SECRET
from tests.pipeline.conversation.phone import PhoneLeg, calls, model, says
from tests.support.waiting import HANGS_S, until
from tests.web.conftest import CONFIG
from tests.web.edge.agents.test_agent import Page
from tests.web.edge.scripted_edge import ScriptedEdge, ScriptedEngines

pytestmark = pytest.mark.asyncio(loop_scope="module")
FLOW = """initial = "reason"
global_functions = ["end_call"]
[nodes.reason]
task = "Find out what the caller wants."
[[nodes.reason.functions]]
name = "wants"
description = "d"
parameters = {what = "what"}
next_by = "what"
next = {booking = "day", person = "desk"}
[nodes.day]
task = "Ask for the day."
functions = [{name = "back", description = "d", next = "reason"}]
[nodes.desk]
pre_actions = [{say = "One moment."}, {transfer = "+4930555100"}]
"""


# --- a call with a draft ---


@asynccontextmanager
async def trying(edge: Edge, config: Config, wanted: dict[str, Any]) -> AsyncIterator[Page]:
    """A call of the operator's page with this draft."""
    edge.config = config
    page, draft = Page(), draft_of(wanted, config)
    call = edge.hold(page, draft.route)
    call.try_out(draft)
    running = edge.begin(call)
    page.connect()
    try:
        yield page
    finally:
        page.close("the test is over")
        await asyncio.wait_for(running, HANGS_S)
        edge.config = CONFIG


def of_type(page: Page, kind: str) -> list[dict[str, Any]]:
    """The data of the messages of a type, RTVI's or ours."""
    found = []
    for message in page.told:
        data = message.get("data") or {}
        if kind in (message.get("type"), data.get("type")):
            found.append(data)
    return found


def config_with(**agents: Any) -> Config:
    return CONFIG.model_copy(
        update={"agents": {n: Agent.model_validate(a) for n, a in agents.items()}}
    )


async def test_the_call_has_the_draft_and_the_next_one_has_not(edge: Edge) -> None:
    config = config_with(desk={"greeting": "Hello there."})
    tried = {"agent": "desk", "settings": {"greeting": "Ahoy there."}}
    async with trying(edge, config, tried) as page:
        await until(lambda: page.words() == "Ahoy there.")
        assert edge.config.agents["desk"].greeting == "Hello there."
        other = Page()
        other.call_id = "other"
        running = asyncio.create_task(edge.run_call(other, "desk"))
        other.connect()
        await until(lambda: other.words() == "Hello there.")
        other.close("the test is over")
        await running
        assert not of_type(other, "model-request")


async def test_the_operator_sees_requests_and_functions_and_no_key(edge: Edge) -> None:
    async with model() as endpoint:
        endpoint.answers = [[calls("end_call")], [says("Goodbye.")]]
        agent = {
            "kind": "openai",
            "base_url": endpoint.url,
            "model": "m",
            "api_key": SECRET,
            "greeting": "Hello.",
            "instructions": f"The key is {SECRET}. Speak of bicycles.",
        }
        tried = {"agent": "desk", "settings": {"temperature": 0.5}}
        async with trying(edge, config_with(desk=agent), tried) as page:
            await until(lambda: page.words() == "Hello.")
            page.hear(type="send-text", id="1", data={"content": "Goodbye."})
            await until(lambda: of_type(page, "llm-function-call-stopped"))
            (request, *_) = of_type(page, "model-request")
            sent = endpoint.requests[0]
        assert request["model"] == "m"
        assert request["server"] == f"127.0.0.1:{endpoint.url.split(':')[2].split('/')[0]}"
        assert request["parameters"]["temperature"] == sent["temperature"] == 0.5
        assert "end_call" in request["tools"]
        assert [one["role"] for one in request["messages"]] == [
            one["role"] for one in sent["messages"]
        ]
        assert request["messages"][-1] == sent["messages"][-1]
        assert "Speak of bicycles." in request["messages"][0]["content"]
        assert SECRET not in json.dumps(page.told)
        (called,) = of_type(page, "llm-function-call-in-progress")
        assert (called["function_name"], called["arguments"]) == ("end_call", {})
        (stopped,) = of_type(page, "llm-function-call-stopped")
        assert stopped["result"] == {"status": "the call has ended"}


async def test_a_caller_sees_none_of_it(edge: Edge) -> None:
    async with model() as endpoint:
        endpoint.answers = [[calls("end_call")], [says("Goodbye.")]]
        agent = {"kind": "openai", "base_url": endpoint.url, "model": "m", "greeting": "Hello."}
        edge.config = config_with(desk=agent)
        page = Page()
        running = asyncio.create_task(edge.run_call(page, "desk"))
        page.connect()
        await until(lambda: page.words() == "Hello.")
        page.hear(type="send-text", id="1", data={"content": "Goodbye."})
        await until(lambda: page.closed)
        await running
    assert not of_type(page, "model-request")
    assert "end_call" not in json.dumps(page.told)


async def test_who_is_handed_back_the_call_is_still_the_draft(edge: Edge) -> None:
    back = [calls("hand_over_to_agent", reason="they want the desk")]
    there = [calls("hand_over_to_night", reason="they want the night")]
    async with model(there, [says("So.")]) as desk, model(back) as night:
        settings = {"kind": "openai", "model": "m", "greeting": ""}
        table = {
            "agent": {**settings, "base_url": desk.url, "handoffs": ["night"]},
            "agents": {"night": {**settings, "base_url": night.url, "handoffs": ["agent"]}},
        }
        config = CONFIG.model_copy(update=dict(Config.model_validate(table)))
        tried = {"settings": {"instructions": "You are tried."}}
        async with trying(edge, config, tried):
            await until(lambda: len(desk.requests) == 2)
        told = [request["messages"][0]["content"] for request in desk.requests]
        assert [words.startswith("You are tried.") for words in told] == [True, True]


# --- what can be tried ---


@pytest.mark.parametrize(
    ("wanted", "says"),
    [
        ([], "builder is not a JSON object"),
        ({"agent": "nobody"}, "no agent is called 'nobody'"),
        ({"agent": "asks"}, "'asks' answers no calls by itself"),
        ({"settings": {"base_url": "http://127.0.0.1:1/v1"}}, "base_url cannot be tried here"),
        ({"settings": {"api_key": "k"}}, "api_key cannot be tried here"),
        ({"settings": {"instructions": "x"}}, "instructions cannot be tried here"),  # frontdesk
        ({"agent": "desk", "settings": {"speed": 9}}, "desk.speed: must be a number from"),
        (
            {"agent": "model", "settings": {"temperature": "warm"}},
            'model.temperature: must be a number from 0 to 2, not "warm"',
        ),
        (
            {"agent": "model", "settings": {"greeting": "Hello {{who}}."}},
            "model.greeting has {{who}}, which is none of caller,",
        ),
    ],
)
async def test_what_cannot_be_tried_is_said(wanted: Any, says: str) -> None:
    hook = {"kind": "webhook", "url": "https://app.example/hook", "secrets": ["s" * 20]}
    config = config_with(desk={}, model={"kind": "openai"}, asks=hook)
    with pytest.raises(RequestError) as refused:
        draft_of(wanted, config)
    assert says in str(refused.value)


async def test_what_is_tried_can_be_written_into_the_configuration(tmp_path: Path) -> None:
    prompt = tmp_path / "prompt.txt"
    prompt.write_text("Speak of boats.")
    config = config_with(
        desk={"kind": "openai", "greeting": "Hello.", "temperature": 0.2},
        file={"kind": "openai", "instructions_file": str(prompt)},
    )
    settings = {
        "greeting": 'Say "Ahoy".',
        "instructions": "One.\nTwo.",
        "temperature": None,
        "max_tokens": 200,
    }
    toml = as_toml(draft_of({"agent": "desk", "settings": settings}, config), config.agents["desk"])
    assert toml == (
        '[agents.desk]\ninstructions = """\nOne.\nTwo."""\ngreeting = "Say \\"Ahoy\\"."\n'
        "# without temperature\nmax_tokens = 200\n"
    )
    wanted = {"agent": "file", "settings": {"instructions": "Speak of bicycles."}}
    assert as_toml(draft_of(wanted, config), config.agents["file"]) == (
        f"[agents.file]\n# in {prompt}, in place of what it says:\n# Speak of bicycles.\n"
    )


async def test_a_long_conversation_is_shown_cut() -> None:
    request = {
        "model": "m",
        "base_url": "https://user:pass@model.example/v1",
        "tools": [],
        "parameters": {},
        "messages": [
            {"role": "system", "content": "s" * (MAX_TEXT_CHARS + 7)},
            *({"role": "user", "content": f"{n} {'w' * 5000}"} for n in range(30)),
        ],
    }
    shown = shown_request(request, ["another"])
    assert shown["messages"][0]["content"].endswith("… (7 characters more)")
    assert shown["messages"][-1]["content"].startswith("29 ")
    assert shown["left_out"] + len(shown["messages"]) == 31
    assert len(json.dumps(shown)) < MAX_SHOWN_CHARS + 1000


# --- over HTTP ---


@asynccontextmanager
async def listening(config: Config, door: Any = "public") -> AsyncIterator[tuple[Edge, str]]:
    edge = ScriptedEdge(config)
    await edge.start()
    runner = Runner(application(edge, door))
    await runner.setup()
    try:
        await runner.listen("127.0.0.1", 0)
        yield edge, f"http://127.0.0.1:{runner.addresses[0][1]}"
    finally:
        await edge.close()
        await runner.cleanup()


def served(**server: Any) -> Config:
    table = {
        "server": {"port": 0, "drain_seconds": 0, **server},
        "webrtc": {"addresses": ["127.0.0.1"]},
        "agents": {"desk": {"greeting": "Hello there."}},
    }
    return Config.model_validate(table)


async def offered(url: str, headers: dict[str, str] | None = None, **builder: Any) -> Any:
    """What comes of an offer with this draft."""
    leg = PeerLeg("caller")
    body = {"sdp": await leg.offer(), "type": "offer", "requestData": {"builder": builder}}
    async with aiohttp.ClientSession() as client:
        answer = await client.post(f"{url}/api/offer", json=body, headers=headers)
        told = await answer.json()
        if answer.status == 200:
            await client.delete(f"{url}/api/offer/{told['pc_id']}", headers=headers)
    await leg.hang_up("the test is over")
    return answer.status, told


async def test_the_operators_page_brings_a_draft_and_a_caller_gets_403() -> None:
    config = served(admin_key="operator", api_key="caller")
    draft = {"agent": "desk", "settings": {"greeting": "Ahoy."}}
    async with listening(config) as (edge, url):
        as_caller = {"Authorization": "Bearer caller"}
        status, told = await offered(url, as_caller, **draft)
        assert (status, told["error"]) == (403, "only the operator may try an agent's settings")
        assert not edge.calls
        as_operator = {"Authorization": "Bearer operator"}
        assert (await offered(url, as_operator, **draft))[0] == 200
        wrong = {"agent": "desk", "settings": {"speed": 9}}
        status, told = await offered(url, as_operator, **wrong)
        assert status == 400
        assert told["error"].startswith("desk.speed: must be a number from")


async def test_the_routes_are_the_operators() -> None:
    config = served(admin_key="operator", api_key="caller")
    async with listening(config) as (_, url), aiohttp.ClientSession() as client:
        for key, status in (("caller", 401), ("", 401), ("operator", 200)):
            headers = {"Authorization": f"Bearer {key}"} if key else {}
            assert (await client.get(f"{url}/builder", headers=headers)).status == status
            asked = await client.post(f"{url}/builder/toml", json={}, headers=headers)
            assert asked.status == status


@pytest.mark.parametrize(
    "headers",
    [
        {"Host": "attacker.example"},
        {"Origin": "https://attacker.example"},
        {"X-Forwarded-For": "10.0.0.9"},
        {"Authorization": "Bearer wrong"},
    ],
)
async def test_without_a_key_only_this_machine_and_user_builds(headers: dict[str, str]) -> None:
    async with listening(served()) as (_, url), aiohttp.ClientSession() as client:
        assert (await client.get(f"{url}/builder")).status == 200
        assert (await offered(url, agent="desk"))[0] == 200
        assert (await client.get(f"{url}/builder", headers=headers)).status == 403
        asked = await client.post(f"{url}/builder/toml", json={}, headers=headers)
        assert asked.status == 403
        assert (await offered(url, headers, agent="desk"))[0] == 403


async def test_a_form_of_another_site_sends_nothing() -> None:
    async with listening(served()) as (_, url), aiohttp.ClientSession() as client:
        form = await client.post(f"{url}/builder/toml", data={"agent": "desk"})
        assert form.status == 415


async def test_a_sibling_says_who_the_operator_is(tmp_path: Path) -> None:
    """What it forwards has neither the caller's address nor their Host."""
    edge = ScriptedEdge(served())
    await edge.start()
    runner = Runner(application(edge, "siblings"))
    await runner.setup()
    path = str(tmp_path / "2.sock")
    await runner.listen_unix(path)
    try:
        async with aiohttp.ClientSession(connector=aiohttp.UnixConnector(path)) as client:
            for said, status in ((None, 403), ("no", 403), ("yes", 200)):
                leg = PeerLeg("caller")
                body = {"sdp": await leg.offer(), "type": "offer"}
                headers = {OPERATOR_HEADER: said} if said else {}
                answer = await client.post(
                    "http://localhost/api/offer",
                    json={**body, "requestData": {"builder": {"agent": "desk"}}},
                    headers=headers,
                )
                assert answer.status == status
                await leg.hang_up("the test is over")
    finally:
        await edge.close()
        await runner.cleanup()


@asynccontextmanager
async def two_processes(folder: Path, config: Config) -> AsyncIterator[str]:
    """The address of a process that has calls enough to give new ones to its sibling."""
    runners: list[Runner] = []
    edges = [NumberedEdge(config, None, number) for number in (1, 2)]
    siblings = [Siblings(edge, folder) for edge in edges]
    for edge in edges:
        edge.engines = ScriptedEngines(edge.config, edge.metrics)
        await edge.start()
        runners.append(Runner(application(edge, "siblings")))
        await runners[-1].setup()
        await runners[-1].listen_unix(socket_path(folder, edge.number))
    full, public = edges[0], application(edges[0])
    public.middlewares.append(siblings[0].share)
    runners.append(Runner(public))
    await runners[-1].setup()
    await runners[-1].listen("127.0.0.1", 0)
    held = []
    for number in range(SLACK_CALLS + 3):
        leg = PhoneLeg()
        leg.call_id = f"1-{number}"
        held.append(full.hold(leg))
    try:
        yield f"http://127.0.0.1:{runners[-1].addresses[0][1]}"
    finally:
        for call in held:
            call.discard()
        for edge in edges:
            await edge.close()
        for runner in runners:
            await runner.cleanup()
        for one in siblings:
            await one.close()


async def test_whoever_is_given_to_another_process_stays_who_they_are(tmp_path: Path) -> None:
    """What is forwarded has not the Host by which a caller is told from the operator."""
    config = served(processes=2, names=["voice.example"], max_calls=20)
    async with two_processes(tmp_path, config) as url:
        status, told = await offered(url, {"Host": "voice.example"}, agent="desk")
        assert (status, told["error"]) == (403, "only the operator may try an agent's settings")
        status, told = await offered(url, agent="desk")
        assert (status, told["pc_id"][:2]) == (200, "2-")


async def test_the_agents_are_told_with_their_flows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "flow.toml").write_text(FLOW)
    agents = {
        "repairs": {"kind": "openai", "model": "m", "api_key": SECRET, "flow": "flow.toml"},
        "asks": {"kind": "webhook", "url": "https://a.example/", "secrets": ["s" * 20]},
    }
    config = served().model_copy(update=dict(Config.model_validate({"agents": agents})))
    async with listening(config) as (_, url), aiohttp.ClientSession() as client:
        text = await (await client.get(f"{url}/builder")).text()
    assert SECRET not in text
    told = json.loads(text)
    assert told["voices"] == []  # the scripted voice has no name
    usual, repairs = told["agents"]
    assert (usual["name"], usual["kind"], usual["flow"]) == ("agent", "frontdesk", None)
    assert "model" not in usual["settings"]
    assert repairs["settings"]["model"] == "m"
    nodes = {node["name"]: node for node in repairs["flow"]["nodes"]}
    assert repairs["flow"]["initial"] == "reason"
    assert [(one["to"], one["when"]) for one in nodes["reason"]["edges"]] == [
        ("day", "what is booking"),
        ("desk", "what is person"),
    ]
    assert nodes["reason"]["functions"] == ["wants", "end_call"]
    assert nodes["desk"]["functions"] == []  # the model is not asked there
    assert nodes["desk"]["before"] == [
        {"does": "say", "with": "One moment."},
        {"does": "transfer", "with": "+4930555100"},
    ]
