"""Scenarios in Pipecat's format on agents of ours, by Pipecat's harness and by the command."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import aiohttp
import pytest
from aiohttp import web
from pipecat.evals.session import EvalSession

from offhook.web.app.evals.eval_door_io import eval_door
from offhook.web.app.evals.evaluation_io import Outcome, evaluate
from offhook.web.app.evals.junit import junit
from offhook.web.app.evals.scenarios_io import scenarios_in
from offhook.web.config.agents import Agent
from offhook.web.config.config import Config, ConfigError
from offhook.web.config.language_models.analysis import Analysis
from offhook.web.config.tools import HttpTool
from offhook.web.edge.text.text_edge_io import TextEdge
from tests.pipeline.conversation.phone import calls, chunk, completion, says
from tests.support.waiting import HANGS_S
from tests.web.app.cli.test_init import run

SCENARIOS = """
name: shop
scenarios:
  - name: order
    turns:
      - user: "Where is my order?"
        expect: [{event: response, text_contains: "number"}]
      - user: "Seven."
        expect:
          - {event: function_call, calls: [{name: order_status, args: {number: "7"}}]}
          - {event: response, text_contains: "tomorrow"}
"""
Told = list[dict[str, Any]]


def answer(messages: Told) -> list[dict[str, Any]]:
    """The model of a shop."""
    said = [str(m.get("content")) for m in messages if m["role"] == "user"]
    if messages[-1]["role"] == "tool":
        return [says("It comes tomorrow.")]
    match said[-1] if said else "":
        case "Where is my order?":
            return [says("What is its number?")]
        case "Seven.":
            return [calls("order_status", number="7")]
        case "What do you sell?":
            return [says("We sell bikes.")]
    return [says("Pardon?")]


CRITERIA = {"day": "The agent says when the order comes.", "sale": "The agent sells something."}


def verdict(messages: Told) -> dict[str, Any]:
    """What the model finds of a conversation."""
    lines = [json.loads(line) for line in messages[-1]["content"].splitlines()]
    [day] = [line["n"] for line in lines if line.get("says") == "It comes tomorrow."]
    asked = {name for name in CRITERIA if f"- {name}: " in messages[0]["content"]}
    found = {
        "day": {"verdict": "success", "reason": "It comes tomorrow.", "n": day},
        "sale": {"verdict": "failure", "reason": "Nothing was sold.", "n": None},
    }
    return says(json.dumps({"criteria": {name: found[name] for name in asked}}))


@asynccontextmanager
async def shop() -> AsyncIterator[Config]:
    """A configuration with a shop's agent, and its model."""

    async def complete(request: web.Request) -> web.StreamResponse:
        asked = await request.json()
        messages = asked["messages"]
        if "response_format" in asked:
            return web.json_response(completion([verdict(messages)]))
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        for part in answer(messages):
            await response.write(chunk(part))
        await response.write(b"data: [DONE]\n\n")
        return response

    async def status(request: web.Request) -> web.Response:
        return web.json_response({"status": "sent"})

    app = web.Application()
    app.router.add_post("/v1/chat/completions", complete)
    app.router.add_get("/orders/{number}", status)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    url = f"http://127.0.0.1:{runner.addresses[0][1]}"
    tool = {
        "name": "order_status",
        "description": "Looks up an order.",
        "parameters": {"number": "its number"},
        "url": f"{url}/orders/{{number}}",
        "method": "GET",
    }
    agent = Agent(
        kind="openai",
        base_url=f"{url}/v1",
        model="m",
        greeting="Hello.",
        think_ahead=False,
        tools=(HttpTool.model_validate(tool),),
        analysis=Analysis(success=CRITERIA),
    )
    try:
        yield Config(agents={"shop": agent})
    finally:
        await runner.cleanup()


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "shop.yaml"
    path.write_text(SCENARIOS)
    return path


async def test_pipecats_own_harness_calls_the_door(file: Path) -> None:
    [order, *_] = scenarios_in([file])
    async with shop() as config:
        edge = TextEdge(config)
        await edge.start()
        try:
            async with eval_door(edge) as door:
                url = door.url
                result = await EvalSession.from_scenario(order.script, f"{url}/shop").run()
                assert result.passed, result.failures
                kinds = [event["type"] for event in result.events_seen]
                assert "function_call" in kinds
                assert await refused(url, "/nobody") == 404
                assert await refused(url, "/shop", Origin="https://evil.example") == 403
        finally:
            await edge.close()


async def refused(url: str, path: str, **headers: str) -> int:
    async with aiohttp.ClientSession() as http:
        with pytest.raises(aiohttp.WSServerHandshakeError) as refusal:
            await http.ws_connect(url + path, headers=headers)
    return refusal.value.status


NONSENSE: tuple[str, ...] = (
    "",
    "{",
    "[]",
    "7",
    '{"label": "rtvi-ai"}',
    '{"label": "rtvi-ai", "type": "raw-audio", "data": {"base64Audio": "A", "sampleRate": 16000}}',
    '{"label": "rtvi-ai", "type": "raw-audio", "data": {"base64Audio": "AAA=", "sampleRate": 1}}',
    '{"label": "rtvi-ai", "type": "dtmf", "data": {"buttons": ["x", 7, "55"]}}',
    '{"label": "rtvi-ai", "type": "client-message", "data": {"t": "eval-context", "d": 7}}',
    '{"label": "rtvi-ai", "type": "client-message", "data": {"t": "eval-nothing"}}',
    '{"label": "rtvi-ai", "type": "client-message", "id": "1", "data": 7}',
)


async def test_nonsense_ends_no_call() -> None:
    async with shop() as config:
        edge = TextEdge(config)
        await edge.start()
        try:
            async with (
                eval_door(edge) as door,
                aiohttp.ClientSession() as http,
                http.ws_connect(f"{door.url}/shop") as socket,
            ):
                for text in NONSENSE:
                    await socket.send_str(text)
                await socket.send_bytes(b"\x00")
                data = {"content": "What do you sell?"}
                asked = {"label": "rtvi-ai", "type": "send-text", "id": "1", "data": data}
                await socket.send_str(json.dumps(asked))
                words = ""
                async with asyncio.timeout(HANGS_S):
                    while "We sell bikes." not in words:
                        message = await socket.receive_json()
                        if message["type"] == "bot-tts-text":
                            words += message["data"]["text"] + " "
            async with asyncio.timeout(HANGS_S):
                while edge.calls:
                    await asyncio.sleep(0.02)
        finally:
            await edge.close()


def test_outcomes_are_junits_too() -> None:
    outcomes = [
        Outcome("a", 1, passed=True, duration_ms=1500),
        Outcome("a", 2, passed=False, failures=["turn 0: <no> & never"]),
        Outcome("b", 1, passed=False, skipped="no sound"),
    ]
    suite = ElementTree.fromstring(junit(outcomes))
    assert (suite.get("tests"), suite.get("failures"), suite.get("skipped")) == ("3", "1", "1")
    assert [case.get("name") for case in suite] == ["a", "a (2)", "b"]
    assert suite[1][0].text == "turn 0: <no> & never"


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("name: x\nscenarios: []\n", "'scenarios:' must be a non-empty list"),
        ("{", "shop.yaml: "),
        ("name: x\nscenarios: [{name: a, turns: [{usr: hi}]}]", "did you mean user?"),
        (
            "name: x\nscenarios: [{name: a, turns: [{user: hi, expect: [{event: respnse}]}]}]",
            "scenario a: turn 0: there is no event respnse (did you mean response?)",
        ),
        (
            "name: x\nscenarios: [{name: a, turns: [{user: hi, expct: [], send_after: {x: 1}}]}]",
            "did you mean expect?",
        ),
    ],
)
def test_a_file_that_is_none_is_said_with_its_name(tmp_path: Path, text: str, says: str) -> None:
    path = tmp_path / "shop.yaml"
    path.write_text(text)
    with pytest.raises(ConfigError) as fault:
        scenarios_in([path])
    assert str(fault.value).startswith(str(path))
    assert says in str(fault.value)


def test_a_folder_without_scenarios_and_an_unknown_agent_are_said(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no scenario is there"):
        scenarios_in([tmp_path])
    with pytest.raises(ConfigError, match=r"no agent is called 'x' \(there: agent\)"):
        asyncio.run(evaluate(Config(), "x", []))


DESK = """
name: desk
scenarios:
  - name: hours
    turns:
      - expect: [{event: response, text_contains: "Lighthouse"}]
      - user: "What are your opening hours?"
        expect: [{event: response, text_contains: "Monday to Friday", within_ms: 60000}]
  - name: wrong
    turns:
      - user: "What are your opening hours?"
        expect: [{event: response, text_contains: "never", within_ms: 2000}]
"""


def test_the_command_exits_with_1_if_one_fails(tmp_path: Path) -> None:
    (tmp_path / "desk.yaml").write_text(DESK)
    tried = run(tmp_path, "eval", "desk.yaml", "--json", "--runs", "2", "--junit", "out.xml")
    assert tried.returncode == 1, tried.stderr
    verdicts: list[tuple[str, int, bool]] = []
    *lines, summary = map(json.loads, tried.stdout.splitlines())
    for outcome in lines:
        verdicts.append((outcome["scenario"], outcome["run"], outcome["passed"]))
    assert sorted(verdicts) == [
        *(("desk/hours", 1, True), ("desk/hours", 2, True)),
        *(("desk/wrong", 1, False), ("desk/wrong", 2, False)),
    ]
    assert (summary["passed"], summary["failed"], summary["skipped"]) == (2, 2, 0)
    assert summary["answers_ms"]["desk/hours"]["answers"] == 2
    assert ElementTree.parse(tmp_path / "out.xml").getroot().get("failures") == "2"


@pytest.mark.slow
def test_one_scenario_may_be_run_by_its_name(tmp_path: Path) -> None:
    (tmp_path / "desk.yaml").write_text(DESK)
    tried = run(tmp_path, "eval", "desk.yaml", "--only", "*/hours")
    assert tried.returncode == 0, tried.stderr
    assert tried.stdout.splitlines()[-1] == "1 passed, 0 failed, 0 skipped"
    tried = run(tmp_path, "eval", "desk.yaml", "--only", "nothing")
    assert tried.returncode == 1
    assert "no scenario is called 'nothing' (there: desk/hours, desk/wrong)" in tried.stderr


SPOKEN = """
name: spoken
user:
  modality: audio
  speech: {factory: offhook.web.app.evals.services_io.caller_voice, voice: rms}
scenarios:
  - name: hours
    turns:
      - expect: [{event: response, text_contains: "Lighthouse"}]
      - user: "What are your opening hours?"
        expect:
          - {event: user_transcription, text_contains: "opening hours"}
          - {event: response, text_contains: "Monday to Friday"}
"""


async def test_a_scenario_is_spoken_and_heard(tmp_path: Path) -> None:
    (tmp_path / "spoken.yaml").write_text(SPOKEN)
    [outcome] = await evaluate(Config(), "", scenarios_in([tmp_path]))
    assert outcome.passed, outcome.failures


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing of the harness's is kept in the home of whoever runs the tests."""
    monkeypatch.setenv("PIPECAT_EVALS_CACHE_DIR", str(tmp_path / "voices"))


@pytest.mark.parametrize(
    ("criteria", "failures"),
    [
        ("[day]", []),
        ("all", ["sale: failure: Nothing was sold."]),
        ("[day, sale]", ["sale: failure: Nothing was sold."]),
    ],
)
async def test_the_criteria_of_an_agents_analysis_judge_a_scenario(
    tmp_path: Path, criteria: str, failures: list[str]
) -> None:
    file = tmp_path / "shop.yaml"
    file.write_text(SCENARIOS.replace("    turns:", f"    criteria: {criteria}\n    turns:"))
    async with shop() as config:
        [outcome] = await evaluate(config, "shop", scenarios_in([file]))
    assert outcome.failures == failures
    assert outcome.passed is not bool(failures)


@pytest.mark.parametrize(
    ("criteria", "words"),
    [("[price]", r"no agent's analysis has price \(there: day, sale\)"), ("7", "a list of names")],
)
async def test_a_criterion_that_no_agent_has_is_told_before(
    tmp_path: Path, criteria: str, words: str
) -> None:
    file = tmp_path / "shop.yaml"
    file.write_text(SCENARIOS.replace("    turns:", f"    criteria: {criteria}\n    turns:"))
    async with shop() as config:
        with pytest.raises(ConfigError, match=words):
            await evaluate(config, "shop", scenarios_in([file]))
