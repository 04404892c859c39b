"""From the embedded engines to a downloaded one: a hub on this machine, a tiny random Nemotron, a
worker process, and calls meanwhile."""

import asyncio
import json
import os
import signal
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp.test_utils import TestClient, TestServer
from loguru import logger

from offhook.pipeline.engines.shared.model.instructions import Instructions
from offhook.pipeline.speech.engine_spec import TORCH_PACKAGES
from offhook.pipeline.speech.engines import packages
from offhook.processes.child_io import Child
from offhook.web.app.cli.caller_io import ScriptedCall, ScriptLine
from offhook.web.config.config import Config, ConfigError
from offhook.web.config.engines import AUTO, Asr, AsrEngine, Tts, TtsEngine
from offhook.web.config.server import Server, WebRtc
from offhook.web.edge.edge_io import Edge
from offhook.web.edge.server_io import application
from offhook.web.workers import local_worker_io
from offhook.web.workers.engines import auto_io
from offhook.web.workers.engines.choice import GIB, Machine
from offhook.web.workers.local_worker_io import LocalWorker, auto_workers, local_workers
from offhook.web.workers.worker_child_io import UNREACHABLE
from tests.support import tiny_sherpa
from tests.support.hub_stand_in import Hub, of_folder, running
from tests.support.processes import gone
from tests.support.waiting import HANGS_S, until
from tests.web.speech_api.recordings import spoken
from tests.web.workers.workers import Client, children_started

pytest.importorskip("torch")
pytest.importorskip("huggingface_hub", minversion="1.0")
# A transformers that knows no Nemotron does not do.
auto_server = pytest.importorskip("tests.support.auto_server", exc_type=ImportError)

MODEL = auto_server.NEMOTRON
KROKO = "csukuangfj/sherpa-onnx-streaming-zipformer-en-kroko-2025-08-06"
LAPTOP = Machine(4, 8 * GIB, Instructions.VNNI, packages=frozenset(TORCH_PACKAGES))
ALL = packages()
ARGUMENTS = ("--engines", "auto")


@pytest.fixture(scope="module")
def repositories(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, bytes]]:
    return auto_server.repositories(tmp_path_factory.mktemp("hub"))


@pytest.fixture
def hub(
    repositories: dict[str, dict[str, bytes]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Hub]:
    with running(Hub(others=repositories)) as hub:
        for name, value in auto_server.environment(hub, tmp_path / "cache").items():
            monkeypatch.setenv(name, value)
        monkeypatch.setattr(local_worker_io, "look", lambda: LAPTOP)
        monkeypatch.setattr(local_worker_io, "AUTO_RETRY_S", 0.5)
        yield hub


@pytest.fixture
def said() -> Iterator[list[str]]:
    lines: list[str] = []
    sink = logger.add(lambda message: lines.append(message.record["message"]), level="INFO")
    yield lines
    logger.remove(sink)


@asynccontextmanager
async def serving(
    asr: AsrEngine = AUTO, tts: TtsEngine = "flite"
) -> AsyncIterator[tuple[Client, Edge]]:
    config = Config(
        webrtc=WebRtc(addresses=["127.0.0.1"]),
        server=Server(port=0, drain_seconds=0),
        asr=Asr(engine=asr, device="cpu"),
        tts=Tts(engine=tts, device="cpu"),
    )
    async with local_workers(config) as config, auto_workers(config) as auto:
        edge = Edge(config, auto=auto)
        await edge.start()
        async with TestClient(TestServer(application(edge))) as client:
            yield client, edge
            await edge.close()


async def engine(client: Client) -> dict[str, Any]:
    async with client.get("/healthz") as answer:
        return dict((await answer.json()).get("engines", {}).get("asr", {}))


async def until_state(client: Client, *states: str) -> list[dict[str, Any]]:
    """Waits for one of the states; returns all that was seen on the way."""
    seen: list[dict[str, Any]] = []
    async with asyncio.timeout(HANGS_S):
        while not seen or seen[-1]["state"] not in states:
            if (now := await engine(client)) not in seen:
                seen.append(now)
            await asyncio.sleep(0.05)
    return seen


async def hears(client: Client) -> str:
    async with client.get("/status") as answer:
        return str((await answer.json())["answers"]["hears"])


@pytest.mark.usefixtures("loopback")
@pytest.mark.slow
async def test_a_model_comes_while_the_server_takes_calls(hub: Hub, said: list[str]) -> None:
    hub.bytes_per_second = 3 << 20
    async with serving() as (client, edge):
        assert edge.ready
        assert (await engine(client))["uses"] == "pocketsphinx"
        seen = await until_state(client, "ready")
        order = list(dict.fromkeys(state["state"] for state in seen))
        fractions = [s["fraction"] for s in seen if s["state"] == "downloading"]
        assert [s for s in order if s != "loading"] == ["starting", "downloading", "ready"]
        assert order.index("loading") < order.index("ready")
        assert fractions == sorted(fractions)
        assert any(0 < fraction < 1 for fraction in fractions)
        assert {s["uses"] for s in seen[:-1]} == {"pocketsphinx"}
        assert seen[-1]["uses"] == "nemotron"
        assert await hears(client) == "nemotron"
        async with client.get("/metrics") as answer:
            text = await answer.text()
        assert 'offhook_engine_in_use{engine="nemotron",kind="asr"} 1.0' in text
        assert 'offhook_auto_engine{kind="asr",state="ready"} 1.0' in text
        async with client.get("/v1/models") as answer:
            assert MODEL in [model["id"] for model in (await answer.json())["data"]]
    assert f"auto: new calls hear with nemotron ({MODEL})" in said


@pytest.fixture
def small_hub(
    tmp_path: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Hub]:
    """A hub with a tiny model in the place of the small one, for a laptop with all packages."""
    folder = tmp_path_factory.mktemp("small")
    tiny_sherpa.zipformer2(folder / KROKO)
    with running(Hub(others=of_folder(folder))) as hub:
        for name, value in auto_server.environment(hub, tmp_path / "cache").items():
            monkeypatch.setenv(name, value)
        monkeypatch.setattr(local_worker_io, "look", lambda: replace(LAPTOP, packages=ALL))
        monkeypatch.setattr(local_worker_io, "AUTO_RETRY_S", 0.5)
        monkeypatch.setattr(auto_io, "LOOK_S", 0.05)  # sees what lasts half a second
        yield hub


@pytest.mark.usefixtures("loopback", "small_hub")
async def test_without_a_word_about_engines_a_small_model_comes_by_itself(said: list[str]) -> None:
    async with serving(Asr().engine) as (client, edge):
        assert edge.ready
        assert (await engine(client))["uses"] == "pocketsphinx"
        assert (await until_state(client, "ready"))[-1]["uses"] == "sherpa"
        assert await hears(client) == "sherpa"
        async with client.get("/status") as answer:
            offer = (await answer.json())["engines"]["asr"]
        # A better one, which is large, waits for the operator's word.
        assert (offer["state"], offer["engine"], offer["uses"]) == ("offered", "nemotron", "sherpa")
        edge.engines.auto[0].want()
        await until_state(client, "failed")  # this hub has none
        assert await hears(client) == "sherpa"
    assert said.count(f"auto: new calls hear with sherpa ({KROKO})") == 1


@pytest.mark.usefixtures("loopback")
async def test_a_machine_without_a_network_stays_as_it_is_with_one_line(
    small_hub: Hub, said: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    attempts: list[int | None] = []
    pauses: list[float] = []
    run_once, crashed = LocalWorker._run_once, LocalWorker._crashed

    async def counted(worker: LocalWorker) -> Child:
        child = await run_once(worker)
        attempts.append(child.poll())
        return child

    def paused(worker: LocalWorker, child: Child, now: float) -> float:
        pause = crashed(worker, child, now)
        pauses.append(worker._given_up_until - now)
        return pause

    monkeypatch.setattr(LocalWorker, "_run_once", counted)
    monkeypatch.setattr(LocalWorker, "_crashed", paused)
    async with serving(Asr().engine) as (client, _):
        assert (await until_state(client, "failed"))[-1]["uses"] == "pocketsphinx"
        async with client.get("/status") as answer:
            assert (await answer.json())["engines"]["asr"]["offline"]
        await until(lambda: len(attempts) == 3)
        told = list(said)
        monkeypatch.setenv("HF_ENDPOINT", small_hub.url)
        await until_state(client, "ready")
    assert attempts[:3] == [UNREACHABLE] * 3
    assert pauses[0] < pauses[1] < pauses[2]
    line = f"auto: sherpa ({KROKO}) cannot be downloaded without a network: calls hear with"
    assert len([words for words in told if words.startswith(line)]) == 1
    assert told[-1].startswith(line)
    assert f"auto: new calls hear with sherpa ({KROKO})" in said


@pytest.mark.usefixtures("loopback")
async def test_a_machine_without_a_network_does_not_pretend_to_hear_another_language(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(local_worker_io, "look", lambda: replace(LAPTOP, offline=True))
    with pytest.raises(ConfigError, match=r"asr.language: pocketsphinx hears en, not 'de'"):
        async with auto_workers(Config(asr=Asr(language="de"))):
            pass


@pytest.mark.slow
@pytest.mark.usefixtures("loopback")
async def test_an_offer_is_the_operators_and_a_stop_in_the_download_is_at_once(
    hub: Hub, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(local_worker_io, "END_S", 3600)  # for whoever does not stop when told
    hub.stalls[auto_server.PADDING] = auto_server.PADDING_BYTES // 2
    async with asyncio.timeout(2 * HANGS_S), serving("pocketsphinx") as (client, _):
        assert await engine(client) == {}
        async with client.get("/status") as answer:
            offer = (await answer.json())["engines"]["asr"]
        assert (offer["state"], offer["engine"], offer["model"]) == ("offered", "nemotron", MODEL)
        assert offer["licence"] == "NVIDIA Open Model License"
        assert offer["bytes"] > 1e9
        caller = {"X-Forwarded-For": "192.0.2.7"}
        async with client.get("/status", headers=caller) as answer:
            assert "engines" not in await answer.json()
        async with client.post("/engines", json={}, headers=caller) as answer:
            assert answer.status == 403
        with children_started() as pids:
            async with client.post("/engines", json={}) as answer:
                assert answer.status == 202
                assert (await answer.json())["engines"]["asr"]["state"] == "starting"
            await until_state(client, "downloading")
        assert await hears(client) == "pocketsphinx"
    assert all(gone(pid) for pid in pids)


@pytest.mark.slow
@pytest.mark.usefixtures("loopback")
async def test_what_fails_is_told_and_tried_again(hub: Hub, said: list[str]) -> None:
    """First the hub has gone, then a file comes damaged for good, then all is well."""
    hub.refuses = (404, "RepoNotFound")
    async with serving() as (client, edge):
        failed = (await until_state(client, "failed"))[-1]
        assert failed["uses"] == "pocketsphinx"
        assert "fault" not in failed
        async with client.get("/status") as answer:
            told = (await answer.json())["engines"]["asr"]
        assert "the hub has no model" in told["fault"]
        hub.damaged.add("model.safetensors")
        hub.refuses = (0, "")
        await until(lambda: any("came damaged" in words for words in said))
        assert await hears(client) == "pocketsphinx"
        hub.damaged.clear()
        await until_state(client, "ready")
        assert edge.ready
    assert sum("has failed; calls hear with pocketsphinx" in words for words in said) >= 1


@pytest.mark.slow
@pytest.mark.usefixtures("loopback")
async def test_a_call_keeps_its_engine_and_the_next_has_the_new_one(
    hub: Hub, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither what hears the first call nor its voice changes."""
    monkeypatch.setattr(local_worker_io, "look", lambda: replace(LAPTOP, packages=ALL))
    hub.bytes_per_second = 3 << 20
    calls: list[dict[str, Any]] = []
    warnings: list[str] = []
    sink_of_warnings = logger.add(
        lambda message: warnings.append(message.record["message"]), level="WARNING"
    )
    sink = logger.add(
        lambda message: calls.append(message.record["extra"]),
        filter=lambda record: "event" in record["extra"],
        level=0,
    )

    def events(kind: str, call: str = "") -> list[dict[str, Any]]:
        return [e for e in calls if e["event"] == kind and call in ("", e["call"])]

    lines = [ScriptLine(f"line {n}", spoken("are you open on sunday")) for n in range(30)]
    async with serving(tts=AUTO) as (client, edge):
        url = str(client.make_url("/"))
        first = asyncio.create_task(ScriptedCall(url, lines).run())
        try:
            await until(lambda: events("caller_turn"))
            [began] = events("call_started")
            assert (began["recognizer"], began["synthesizer"]) == ("pocketsphinx", "flite")
            await until_state(client, "ready")
            await until(lambda: all(engine.engine for engine in edge.engines.auto))
            turns = len(events("caller_turn", began["call"]))
            second = await ScriptedCall(url, lines[:1]).run()
            used = [(e["recognizer"], e["synthesizer"]) for e in events("call_started")]
            assert used[1:] == [("nemotron", "pocket")]
            assert second.turns[0].reply
            await until(lambda: len(events("caller_turn", began["call"])) > turns)
            assert not events("call_ended", began["call"])
        finally:
            first.cancel()
            await asyncio.wait((first,))
    logger.remove(sink)
    logger.remove(sink_of_warnings)
    assert not [words for words in warnings if "failed" in words]


async def state_at(url: str) -> dict[str, Any]:
    async with aiohttp.ClientSession() as http, http.get(f"{url}/healthz") as answer:
        return dict((await answer.json())["engines"]["asr"])


async def until_state_at(url: str, wanted: str, least: float = 0.0) -> dict[str, Any]:
    async with asyncio.timeout(HANGS_S):
        while True:
            state = await state_at(url)
            if state["state"] == wanted and state["fraction"] >= least:
                return state
            await asyncio.sleep(0.05)


@pytest.mark.slow
async def test_a_server_killed_in_the_download_goes_on_with_it(hub: Hub, tmp_path: Path) -> None:
    hub.stalls[auto_server.PADDING] = auto_server.PADDING_BYTES // 2
    async with auto_server.serving(tmp_path, *ARGUMENTS) as (url, log, pid):
        await until_state_at(url, "downloading", 0.2)
        os.kill(pid, signal.SIGKILL)
    workers = [json.loads(line)["pid"] for line in log.read_text().splitlines() if '"pid"' in line]
    await until(lambda: all(gone(worker) for worker in workers))
    async with auto_server.serving(tmp_path, *ARGUMENTS) as (url, _, _):
        assert (await until_state_at(url, "ready"))["uses"] == "nemotron"
    ranges = [begin for path, begin in hub.asked if path.endswith(auto_server.PADDING) and begin]
    assert len(ranges) == 1
    assert int(ranges[0].removeprefix("bytes=").rstrip("-")) >= auto_server.PADDING_BYTES // 3


@pytest.mark.slow
async def test_processes_share_one_download_and_one_worker(hub: Hub, tmp_path: Path) -> None:
    hub.bytes_per_second = 3 << 20
    two = {"OFFHOOK_SERVER_PROCESSES": "2"}
    async with auto_server.serving(tmp_path, *ARGUMENTS, **two) as (
        url,
        log,
        _,
    ):
        await until_state_at(url, "ready")
        moved = "auto: new calls hear with nemotron"
        await until(lambda: log.read_text().count(moved) == 2)
        assert log.read_text().count("asr worker started") == 1
    assert sum(path.endswith(auto_server.PADDING) for path, _ in hub.asked) == 1


@pytest.mark.slow
async def test_an_offer_is_taken_by_all_processes(hub: Hub, tmp_path: Path) -> None:
    hub.stalls[auto_server.PADDING] = auto_server.PADDING_BYTES // 2
    two = {"OFFHOOK_SERVER_PROCESSES": "2"}
    async with auto_server.serving(tmp_path, **two) as (url, log, _):
        async with aiohttp.ClientSession() as http:
            while True:  # the other process starts later
                async with http.get(f"{url}/readyz") as answer:
                    if answer.status == 200:
                        break
                await asyncio.sleep(0.1)
            async with http.post(f"{url}/engines", json={}) as answer:
                assert answer.status == 202
        await until_state_at(url, "downloading")
        begun = f"auto: nemotron ({MODEL}) is starting"
        assert log.read_text().count(begun) == 2
        assert log.read_text().count("asr worker started") == 1
