"""GET /trunks, /engines and /agents: what the operator sees of the parts of a server."""

from pathlib import Path
from typing import Any

import pytest
from prometheus_client import CollectorRegistry, Histogram

from offhook.media.end_reason import End
from offhook.telephony.sip.trunks import registration
from offhook.web.config.agents import Agent, handoff_tool
from offhook.web.config.config import Config, load
from offhook.web.edge.console.agent_states import agent_states, version_of
from offhook.web.edge.edge_io import Edge
from offhook.web.http.metrics import LATENCY_BUCKETS
from offhook.web.records.live_look import AgentSums
from offhook.web.tools.agent_tools_io import AgentTools
from offhook.web.workers.engines import engine_states
from tests.pipeline.conversation.phone import model, says
from tests.support.waiting import until
from tests.web.edge.agents.test_agent import called
from tests.web.edge.phones import ScriptedPhone, configured, served
from tests.web.edge.test_history import asked, keeping, records, shop
from tests.web.edge.test_live_events import reached

pytestmark = pytest.mark.asyncio(loop_scope="module")

SECRET = "a-very-secret-word"


# --- trunks ---


async def test_a_trunk_is_down_and_up_again_with_its_reason(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(registration, "REFUSED_S", 0.1)
    phone = ScriptedPhone(register=403)
    async with phone.running() as where:
        provider = {"name": "line", "server": where, "register": True, "username": "u"}
        provider |= {"password": SECRET, "max_calls": 7}
        phones = {"name": "desk", "username": "desk", "password": SECRET}
        async with served(configured(where, trunks=[provider, phones])) as server:

            async def shown() -> Any:
                found = await server.get("/trunks")
                assert SECRET not in str(found)
                line, desk = found["trunks"]
                assert (desk["name"], desk["state"], desk["server"]) == ("desk", "", "")
                return line

            await until(lambda: any(s.failed for s in server.sip.registrations()))
            line = await shown()
            assert (line["state"], line["registration"]) == ("down", "failed")
            assert "403" in line["fault"]
            assert (line["lines"], line["max_lines"]) == (0, 7)
            since = line["since"]
            phone._register = 200
            await until(lambda: server.sip.registrations()[0].standing == "registered")
            line = await shown()
            assert (line["state"], line["registration"]) == ("up", "registered")
            assert line["since"] >= since
            assert "403" in line["fault"]  # the last one, and when it was
            assert line["fault_at"] <= line["since"]


async def test_lines_in_use_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    phone = ScriptedPhone(180)
    async with phone.running() as where, served(configured(where)) as server:
        call = await server.place("100")
        await server.state(call, "ringing")
        assert [trunk["lines"] for trunk in (await server.get("/trunks"))["trunks"]] == [1]
        await server.client.delete(f"/calls/{call}")
        await server.state(call, "ended")
        assert [trunk["lines"] for trunk in (await server.get("/trunks"))["trunks"]] == [0]


async def test_a_server_without_trunks_has_none(edge: Edge) -> None:
    async with reached(edge) as target:
        assert await asked(f"{target.url}/trunks", headers={}) == (200, {"trunks": []})


# --- engines ---


async def test_engines_are_there_with_their_streams_and_speed(edge: Edge, tmp_path: Path) -> None:
    async with model([says("It is lost.")]) as scripted, reached(edge) as target:

        async def shown() -> dict[str, Any]:
            status, found = await asked(f"{target.url}/engines", headers={})
            assert status == 200
            return {each["kind"]: each for each in found["engines"]}

        hears, speaks = (await shown())["asr"], (await shown())["tts"]
        assert (hears["engine"], hears["state"], hears["in_use"]) == ("pocketsphinx", "ready", True)
        assert (speaks["state"], speaks["streams"]) == ("ready", 0)
        answers = speaks["answers"]
        async with called(edge, shop(tmp_path, scripted.url)) as page:
            await until(lambda: "Hello there." in page.words())
            assert [each["streams"] for each in (await shown()).values()] == [1, 1]
            page.hear(type="send-text", id="1", data={"content": "where is my order"})
            await until(lambda: "lost" in page.words())
            page.close(End.CALLER_HUNG_UP)
        speaks = (await shown())["tts"]
        assert speaks["streams"] == 0
        assert (speaks["latency_ms"] is None) == (speaks["answers"] == 0)
        assert speaks["answers"] >= answers


async def test_a_median_is_found_within_its_bucket() -> None:
    registry = CollectorRegistry()
    spans = Histogram("s", "s", ["span"], buckets=LATENCY_BUCKETS, registry=registry)
    assert engine_states.median_of(spans, "asr_final") == (0, None)
    for seconds in (0.06, 0.07, 0.16, 0.9):
        spans.labels("asr_final").observe(seconds)
    assert engine_states.median_of(spans, "asr_final") == (4, 100)
    spans.labels("other").observe(1000)
    assert engine_states.median_of(spans, "other") == (1, 10_000)


async def test_engines_of_several_processes_are_one() -> None:
    one = {"kind": "asr", "engine": "nemotron", "model": "m", "streams": 2, "state": "ready"}
    one |= {"answers": 3, "latency_ms": 100, "why": ""}
    two = {**one, "streams": 1, "state": "failed", "why": "no room", "answers": 1}
    two["latency_ms"] = 200
    [found] = engine_states.merged([[one], [two], [{**one, "answers": 0, "latency_ms": None}]])
    assert (found["streams"], found["state"], found["why"]) == (5, "failed", "no room")
    assert (found["answers"], found["latency_ms"]) == (4, 125)


async def test_an_engine_without_a_worker_is_not_called_ready() -> None:
    states = {
        ("ready", 1): "ready",
        ("full", 1): "ready",
        ("loading", 1): "loading",
        ("suspected", 2): "failed",
        ("unknown", 1): "starting",
    }
    for (state, number), wanted in states.items():
        assert engine_states._of_workers({state: number}, idles=False)["state"] == wanted
    assert engine_states._of_workers({}, idles=False)["state"] == "failed"
    assert engine_states._of_workers({"unknown": 1}, idles=True)["state"] == "offered"


# --- agents ---


def agents_of(folder: Path, text: str) -> Config:
    file = folder / "offhook.toml"
    file.write_text(text)
    return load(file)


SHOP = f"""
[agents.shop]
kind = "openai"
model = "m"
base_url = "https://models.example/v1"
api_key = "{SECRET}"
headers = {{X-Key = "{SECRET}"}}
handoffs = ["agent"]
[[agents.shop.tools]]
name = "order"
description = "looks an order up"
url = "https://shop.example/order"
headers = {{Authorization = "{SECRET}"}}
"""


async def test_an_agents_version_is_its_settings_without_its_keys(tmp_path: Path) -> None:
    shown = agents_of(tmp_path, SHOP)
    version = version_of(shown.agents["shop"])
    other = agents_of(tmp_path, SHOP.replace(SECRET, "another"))
    assert version_of(other.agents["shop"]) == version
    for before, after in (('"m"', '"n"'), ("looks an", "finds an")):
        changed = agents_of(tmp_path, SHOP.replace(before, after))
        assert version_of(changed.agents["shop"]) != version
    found = agent_states(shown, None, [], ["shop"], AgentTools().names)
    assert SECRET not in str(found)
    desk, shop = found["agents"]
    assert (desk["name"], desk["is_default"], desk["model"]) == ("agent", True, "")
    assert (shop["kind"], shop["model"], shop["version"]) == ("openai", "m", version)
    assert (shop["tools"], shop["handoffs"]) == (["order", handoff_tool("agent")], ["agent"])
    assert shop["built_in_tools"] == [
        *("end_call", "gather_digits", "send_dtmf", "hold_call", "resume_call")
    ]
    assert (desk["tools"], desk["built_in_tools"]) == ([], [])
    assert shop["fault"] == "its model does not answer"
    assert not found["kept"]
    assert "calls" not in shop


async def test_calls_of_an_agent_that_is_gone_are_not_lost() -> None:
    config = Config(agents={"desk": Agent()})
    sums = {"desk": AgentSums(2, 9, 1, 400), "before": AgentSums(0, 3)}
    found = agent_states(config, sums, [], [], AgentTools().names)
    assert [each["calls"] for each in found["agents"]] == [0, 9]
    assert [(each["name"], each["calls"]) for each in found["others"]] == [("before", 3)]


async def test_agents_have_their_calls(edge: Edge, tmp_path: Path) -> None:
    async with (
        model([says("It is lost.")]) as scripted,
        keeping(edge, records(tmp_path)),
        reached(edge) as target,
    ):
        async with called(edge, shop(tmp_path, scripted.url)) as page:
            await until(lambda: "Hello there." in page.words())
            kept = edge.records.kept
            assert kept is not None
            await until(lambda: kept.behind == 0)
            _, found = await asked(f"{target.url}/agents", headers={})
            by_name = {each["name"]: each for each in found["agents"]}
            assert (by_name["shop"]["in_progress"], by_name["shop"]["calls"]) == (1, 1)
            assert by_name["agent"]["calls"] == 0
        assert (await asked(f"{target.url}/agents?from=soon", headers={}))[0] == 400
