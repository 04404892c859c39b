"""The speech API of servers that have something else to do: edges with calls, and workers."""

import asyncio
import io
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import aiohttp
import pytest
import pytest_asyncio
from aiohttp.test_utils import TestClient, TestServer

from offhook.pipeline.engines.shared.tts_models import TtsModels
from offhook.pipeline.speech.synthesizer import VoiceOptions
from offhook.web.config.programs import Speech, SpeechKey
from offhook.web.edge.edge_io import Edge
from offhook.web.edge.server_io import application
from offhook.web.workers.local_worker_io import on_demand
from offhook.web.workers.worker_child_io import ChildSettings
from tests.support.processes import gone
from tests.support.waiting import until
from tests.web.conftest import CONFIG
from tests.web.speech_api.conftest import client_of
from tests.web.workers.workers import Client, children_started, command

pytestmark = pytest.mark.asyncio(loop_scope="module")

QUESTION = "What are your opening hours?"
WORDS = {"what", "are", "your", "opening", "hours"}
ASKED = {"model": "tts-1", "voice": "alloy", "input": QUESTION, "response_format": "wav"}


@pytest_asyncio.fixture(loop_scope="module")
async def client(edge: Edge) -> AsyncIterator[Client]:
    async with TestClient(TestServer(application(edge))) as client:
        yield client


def words(text: str) -> set[str]:
    return set(text.lower().strip("?. ").split())


async def test_an_edge_hears_and_speaks_for_the_stock_client(client: Client) -> None:
    async with client_of(str(client.make_url("")).rstrip("/")) as openai:
        speech = await openai.audio.speech.create(
            model="tts-1", voice="alloy", input=QUESTION, response_format="wav"
        )
        heard = await openai.audio.transcriptions.create(
            model="whisper-1", file=("a.wav", io.BytesIO(speech.content))
        )
    assert len(words(heard.text) & WORDS) >= 4
    metrics = await (await client.get("/metrics")).text()
    assert 'offhook_speech_requests_total{endpoint="/v1/audio/speech",status="200"}' in metrics
    assert "offhook_calls_in_progress" in metrics


async def test_an_edge_refuses_programs_in_the_shape_they_know(client: Client) -> None:
    """Also where it has no route; its own paths have a shape of their own."""
    for method, path, status in (
        ("GET", "/v1/nothing", 404),
        ("POST", "/v1/nothing", 404),
        ("DELETE", "/v1/models", 405),
        ("POST", "/v1/audio/speech", 415),
    ):
        headers = {"Content-Type": "text/plain"} if status == 415 else {}
        async with client.request(method, path, data=b"", headers=headers) as answer:
            assert answer.status == status
            assert set((await answer.json())["error"]) == {"message", "type", "param", "code"}
            assert answer.headers["X-Request-Id"]
    assert (await client.head("/v1/models")).status == 200
    assert isinstance((await (await client.post("/start", data=b"")).json())["error"], str)


async def test_what_an_edge_asks_of_other_requests_it_does_not_ask_of_these(
    client: Client,
) -> None:
    response = await client.post("/start", data=b"x", headers={"Content-Type": "text/plain"})
    assert response.status == 415
    form = aiohttp.FormData({"model": "whisper-1"})
    form.add_field("file", b"not sound", filename="a.wav")
    response = await client.post("/v1/audio/transcriptions", data=form)
    assert response.status == 400
    assert (await response.json())["error"]["type"] == "invalid_request_error"


async def test_a_page_of_another_site_may_not_use_an_edge(client: Client) -> None:
    for headers in ({"Origin": "https://elsewhere.example"}, {"Host": "evil.example"}):
        response = await client.post("/v1/audio/speech", json=ASKED, headers=headers)
        assert response.status == 403


async def test_calls_come_before_programs(edge: Edge) -> None:
    assert edge.speech is not None
    live = VoiceOptions(live=True, seed=7)
    assert edge.speech.prioritized(live) == replace(live, live=False)


async def test_an_edge_that_drains_takes_no_more_requests(edge: Edge, client: Client) -> None:
    await edge.drain()
    try:
        response = await client.post("/v1/audio/speech", json=ASKED)
        assert (response.status, "Retry-After" in response.headers) == (503, True)
    finally:
        assert edge.speech is not None
        edge.draining = edge.speech.draining = False


async def test_an_edge_may_be_for_calls_alone() -> None:
    edge = Edge(CONFIG.model_copy(update={"speech": Speech(enabled=False)}))
    await edge.start()
    try:
        async with TestClient(TestServer(application(edge))) as client:
            assert (await client.post("/v1/audio/speech", json=ASKED)).status == 404
            answer = await client.get("/v1/models")
            assert answer.status == 404
            assert answer.headers["X-Request-Id"]
            assert (await answer.json())["error"]["type"] == "invalid_request_error"
    finally:
        await edge.close()


async def test_keys_of_programs_do_not_open_the_rest_of_an_edge() -> None:
    speech = Speech(keys=(SpeechKey(name="one", key="theirs"),))
    server = CONFIG.server.model_copy(update={"api_key": "ours", "admin_key": "the operator's"})
    edge = Edge(CONFIG.model_copy(update={"speech": speech, "server": server}))
    await edge.start()
    try:
        async with TestClient(TestServer(application(edge))) as client:
            for path, key, status in (
                ("/v1/models", "theirs", 200),
                ("/v1/models", "ours", 200),
                ("/v1/models", "wrong", 401),
                ("/v1/models", "the operator's", 200),
                ("/calls", "ours", 401),
                ("/calls", "theirs", 401),
                ("/calls", "the operator's", 200),
            ):
                headers = {"Authorization": f"Bearer {key}"}
                assert (await client.get(path, headers=headers)).status == status
    finally:
        await edge.close()


# --- workers ---


async def test_a_worker_is_a_speech_server_of_its_kind(tmp_path: Path) -> None:
    async with (
        command(tmp_path, "tts", "flite", "127.0.0.1:0") as (url, _),
        aiohttp.ClientSession(url) as http,
    ):
        async with http.post("/v1/audio/speech", json=ASKED) as answer:  # while it still loads
            assert answer.status == 200
            assert (await answer.read()).startswith(b"RIFF")
        async with http.get("/v1/models") as answer:
            names = [model["id"] for model in (await answer.json())["data"]]
            assert names[0] == "flite"
            assert "whisper-1" not in names
        async with http.post("/v1/audio/transcriptions", data={"model": "x"}) as answer:
            assert answer.status == 404
        async with http.get("/metrics") as answer:
            text = await answer.text()
            assert "offhook_tts_loaded 1.0" in text
            assert "offhook_speech_requests_total" in text


async def test_a_request_keeps_a_worker_from_ending() -> None:
    """As a stream does: it is in use until the answer is complete, and idle from then on."""
    settings = ChildSettings("flite", TtsModels(""), 8, 0.4, "INFO")
    text = " ".join(["The house stands at the end of the road."] * 40)
    asked = {**ASKED, "input": text, "response_format": "pcm"}
    with children_started() as started:
        async with on_demand(settings) as url:
            connector = aiohttp.UnixConnector(url.removeprefix("unix:"))
            async with (
                aiohttp.ClientSession("http://localhost", connector=connector) as http,
                http.post("/v1/audio/speech", json=asked) as answer,
            ):
                sound = await answer.content.readexactly(48_000)
                await asyncio.sleep(1.2)  # more than it makes ahead, so that it waits for us
                async with http.get("/readyz") as state:
                    assert state.status == 200
                assert len(started) == 1
                sound += await answer.content.read()
            assert len(sound) > 60 * 48_000
            await until(lambda: gone(started[0]))
