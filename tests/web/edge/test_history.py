"""Calls that are kept: what a conversation leaves, and who is told of it over HTTP."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import pytest_asyncio
import yaml

from offhook.media.end_reason import End
from offhook.web.config.config import Config, load
from offhook.web.config.records import Records
from offhook.web.edge.edge_io import Edge
from offhook.web.edge.server_io import application
from offhook.web.http.listening_io import Runner
from offhook.web.records.entries import Recorded
from tests.pipeline.conversation.phone import calls, model, says
from tests.support.waiting import until
from tests.web.conftest import CONFIG
from tests.web.edge.agents.test_agent import called
from tests.web.records.made_calls import RECORD, call_of

pytestmark = pytest.mark.asyncio(loop_scope="module")

ADMIN, READER = {"Authorization": "Bearer operator"}, {"Authorization": "Bearer reader"}


TOOL = '''
def order(number: int) -> str:
    """Looks an order up."""
    return "on its way"
'''


def shop(folder: Path, url: str, tools: str = "") -> dict[str, Any]:
    """An agent with a model at this address."""
    path = folder / "offhook.toml"
    path.write_text(
        f'[agents.shop]\nkind = "openai"\nmodel = "m"\nbase_url = "{url}"\n'
        f'api_key = "k"\ngreeting = "Hello there."\n{tools}'
    )
    return dict(load(path).agents)


def records(folder: Path, **more: Any) -> Config:
    url = f"sqlite:///{folder}/calls.db"
    kept = Records.model_validate({"url": url, "spool": folder / "spool", **more})
    return CONFIG.model_copy(update={"records": kept})


@asynccontextmanager
async def keeping(edge: Edge, config: Config) -> AsyncIterator[None]:
    """The edge keeps calls meanwhile."""
    edge.records.open_store(config)
    try:
        yield
    finally:
        assert edge.records.kept is not None
        await edge.records.stop_queues()
        assert edge.records.live is not None
        await edge.records.live.close()
        await asyncio.to_thread(edge.records.kept.close)
        edge.records.kept = edge.records.live = None


def bytes_of(folder: Path) -> bytes:
    """All that a store has on the disk."""
    return b"".join(path.read_bytes() for path in folder.glob("calls.db*"))


async def written(edge: Edge) -> None:
    kept = edge.records.kept
    assert kept is not None
    await until(lambda: kept.behind == 0)


async def test_a_conversation_is_there_with_its_tool_and_without_keys(
    edge: Edge, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "kept_shop.py").write_text(TOOL)
    async with (
        model([calls("order", number=4711)], [says("It is lost.")]) as scripted,
        keeping(edge, records(tmp_path)),
    ):
        tool = '[[agents.shop.tools]]\nfunction = "kept_shop:order"\n'
        async with called(edge, shop(tmp_path, scripted.url, tool)) as page:
            await until(lambda: "Hello there." in page.words())
            page.hear(type="send-text", id="1", data={"content": "where is my order"})
            await until(lambda: "lost" in page.words())
            page.listener.on_dtmf("7")
            page.close(End.CALLER_HUNG_UP)
        await written(edge)
        assert edge.records.kept is not None
        store = edge.records.kept.store
        call, timeline = store.show(page.call_id), store.timeline(page.call_id)
    assert call is not None
    assert (call["agents"], call["end_reason"]) == (["shop"], End.CALLER_HUNG_UP)
    told = [(e["event"], e["text"]) for e in timeline if e.get("text")]
    assert ("agent_turn", "Hello there.") in told
    assert ("caller_typed", "where is my order") in told
    [used] = [e for e in timeline if e["event"] == "tool_used"]
    assert (used["name"], used["arguments"], used["failed"]) == ("order", '{"number": 4711}', False)
    assert "on its way" in used["result"]
    assert [e["digit"] for e in timeline if e["event"] == "dtmf"] == ["*"]


async def test_without_words_only_times_are_kept(edge: Edge, tmp_path: Path) -> None:
    kept_without = records(tmp_path, words=False)
    async with model([says("It is lost.")]) as scripted, keeping(edge, kept_without):
        async with called(edge, shop(tmp_path, scripted.url)) as page:
            await until(lambda: "Hello there." in page.words())
            page.hear(type="send-text", id="1", data={"content": "where is my order"})
            await until(lambda: "lost" in page.words())
        await written(edge)
        assert edge.records.kept is not None
        timeline = edge.records.kept.store.timeline(page.call_id)
    assert "caller_typed" in [event["event"] for event in timeline]
    kept = bytes_of(tmp_path)
    for words in (b"Hello there", b"my order", b"is lost"):
        assert words not in kept


# --- over HTTP ---


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def server(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[str]:
    """An edge with an operator's and a reader's key, and calls that are over."""
    folder = tmp_path_factory.mktemp("kept")
    keys = {"admin_key": "operator", "reader_key": "reader", "port": 0, "api_key": "caller"}
    edge = Edge(Config.model_validate({"server": keys}))
    edge.records.open_store(records(folder))
    kept = edge.records.kept
    assert kept is not None
    sound = folder / "c0.ogg"
    sound.write_bytes(b"OggS" + bytes(1000))
    for number in range(3):
        for entry in call_of(f"c{number}", "my card is lost", at=1_790_000_000.0 + number):
            kept.add(entry)
    kept.add(Recorded(RECORD, "the caller hung up"))
    await until(lambda: kept.behind == 0)
    with kept.store._engine.begin() as connection:
        connection.exec_driver_sql(f"UPDATE calls SET recording = '{sound}' WHERE id = 'c0'")
    runner = Runner(application(edge))
    await runner.setup()
    await runner.listen("127.0.0.1", 0)
    yield f"http://127.0.0.1:{runner.addresses[0][1]}"
    await edge.records.close()
    await runner.cleanup()


async def asked(
    url: str, method: str = "GET", headers: Any = ADMIN, body: Any = None
) -> tuple[int, Any]:
    async with (
        aiohttp.ClientSession() as http,
        http.request(method, url, headers=headers, json=body) as response,
    ):
        if response.content_type == "text/event-stream":
            return response.status, None  # it goes on
        data = await response.read()
        is_json = response.content_type == "application/json"
        return response.status, json.loads(data) if is_json else data


async def test_calls_are_found_shown_and_heard(server: str) -> None:
    _, found = await asked(f"{server}/calls?text=card&limit=2")
    assert [call["call_id"] for call in found["calls"]] == ["c2", "c1"]
    _, rest = await asked(f"{server}/calls?text=card&limit=2&cursor={found['cursor']}")
    assert [call["call_id"] for call in rest["calls"]] == ["c0"]
    assert rest["cursor"] == ""
    _, call = await asked(f"{server}/calls/c0/record")
    assert call["end_reason"] == "the caller hung up"
    assert await asked(f"{server}/calls/c0") == (200, call)
    _, told = await asked(f"{server}/calls/c0/timeline")
    assert told["timeline"][0]["text"] == "my card is lost"
    whole = b"OggS" + bytes(1000)
    for asked_for, answer in (
        ("bytes=0-3", (206, b"OggS")),
        ("Bytes=-4", (206, bytes(4))),
        ("bytes=1-1", (206, b"g")),
        ("bytes=-5000", (206, whole)),
        (f"bytes=0-{'9' * 18}", (206, whole)),
        ("bytes=+0-3", (200, whole)),
        ("bytes=0 - 3", (200, whole)),
        ("bytes=5-2", (200, whole)),  # none that is one, so as without (RFC 9110 §14.2)
        ("bytes=x-", (200, whole)),
        ("bytes=-", (200, whole)),
        ("seconds=0-3", (200, whole)),
        ("bytes=0-1,3-4", (200, whole)),
        (f"bytes={'9' * 5000}-", (200, whole)),
    ):
        ranged = {**ADMIN, "Range": asked_for}
        assert await asked(f"{server}/calls/c0/recording", headers=ranged) == answer, asked_for
    for nothing in ("bytes=2000-", "bytes=1004-", "bytes=-0"):
        ranged = {**ADMIN, "Range": nothing}
        assert (await asked(f"{server}/calls/c0/recording", headers=ranged))[0] == 416, nothing
    _, sums = await asked(f"{server}/calls/numbers?from=2026-09-21&to=2026-09-22")
    assert (sums["all"]["calls"], sums["all"]["latency_p95_ms"]) == (4, 400)
    assert await asked(f"{server}/calls") == (200, {"calls": []})  # in progress


async def test_a_call_is_there_as_a_file_and_as_a_scenario(server: str) -> None:
    async with aiohttp.ClientSession(headers=ADMIN) as http:
        async with http.get(f"{server}/calls/c0/export") as response:
            assert response.headers["Content-Disposition"] == 'attachment; filename="c0.json"'
            whole = await response.json()
        async with http.get(f"{server}/calls/c0/scenario") as response:
            assert response.headers["Content-Disposition"] == 'attachment; filename="c0.yaml"'
            text = await response.text()
    assert whole["end_reason"] == "the caller hung up"
    assert whole["timeline"][0]["text"] == "my card is lost"
    [scenario] = yaml.safe_load(text)["scenarios"]
    assert [turn["user"] for turn in scenario["turns"]] == ["my card is lost"]


@pytest.mark.parametrize(
    ("path", "status", "words"),
    [
        ("/calls?nonsense=1", 400, "no such parameter"),
        ("/calls?limit=9999", 400, "limit"),
        ("/calls?agent=front&agent=back", 400, "agent: is there twice"),
        ("/calls/numbers?from=1h&from=2h", 400, "from: is there twice"),
        ("/agents?from=1h&from=2h", 400, "from: is there twice"),
        ("/calls/numbers?from=soon", 400, "from"),
        ("/calls/numbers?from=1h&to=2h", 400, "before"),
        ("/calls/nobody", 404, "unknown"),
        ("/calls/nobody/record", 404, "unknown"),
        ("/calls/nobody/timeline", 404, "unknown"),
        ("/calls/nobody/export", 404, "unknown"),
        ("/calls/nobody/scenario", 404, "unknown"),
        ("/calls/call/scenario", 409, "the caller has said nothing"),
        ("/calls/c1/recording", 404, "not recorded"),
    ],
)
async def test_what_is_not_there_is_said(server: str, path: str, status: int, words: str) -> None:
    found, body = await asked(server + path)
    assert found == status
    assert words in body["error"]


async def test_a_session_is_a_browsers_of_this_site(server: str) -> None:
    origin = {"Origin": server}
    assert (await asked(f"{server}/console/session", "POST", origin, {"key": "no"}))[0] == 401
    sessions, foreign = f"{server}/console/session", {"Origin": "https://elsewhere.example"}
    assert (await asked(sessions, "POST", foreign, {"key": "operator"}))[0] == 403
    for key, listens in (("operator", 206), ("reader", 403)):
        jar = aiohttp.CookieJar(unsafe=True)
        async with aiohttp.ClientSession(cookie_jar=jar, headers=origin) as http:
            async with http.post(sessions, json={"key": key}) as response:
                assert response.status == 200
                cookie = response.headers["Set-Cookie"]
                assert "HttpOnly" in cookie
                assert "SameSite=Strict" in cookie
                assert key not in cookie
            async with http.get(f"{server}/calls?limit=1") as response:
                assert response.status == 200
            part = {"Range": "bytes=0-3"}
            async with http.get(f"{server}/calls/c0/recording", headers=part) as response:
                assert response.status == listens
            async with http.get(f"{server}/calls?limit=1", headers=foreign) as response:
                assert response.status == 403
        async with (
            aiohttp.ClientSession(cookie_jar=jar) as http,  # no page: without an Origin
            http.post(f"{server}/calls/forget", json={"call_id": "x"}) as response,
        ):
            assert response.status == 401


@pytest.mark.parametrize("cookie", ["", "x", "9999999999.a.b", "a" * 5000, "9e99..", "=;=;"])
async def test_a_forged_session_is_none(server: str, cookie: str) -> None:
    headers = {"Cookie": f"offhook_session={cookie}", "Origin": server}
    assert (await asked(f"{server}/calls?limit=1", headers=headers))[0] == 401


@pytest.mark.parametrize(
    "body", [None, [], {}, {"number": 5}, {"number": ""}, {"number": "1", "call_id": "2"}, "x"]
)
async def test_nothing_is_forgotten_by_mistake(server: str, body: Any) -> None:
    assert (await asked(f"{server}/calls/forget", "POST", body=body))[0] in (400, 415)


async def test_a_number_is_forgotten_with_its_recording(server: str) -> None:
    for nothing in ({"call_id": "+49301234567"}, {"number": "c0"}, {"number": "1-49301234567"}):
        status, done = await asked(f"{server}/calls/forget", "POST", body=nothing)
        assert (status, done["calls"]) == (200, 0)
    status, done = await asked(f"{server}/calls/forget", "POST", body={"number": "+49 30 1234567"})
    assert (status, done) == (200, {"calls": 4, "recordings": 1, "recordings_waiting": 0})
    assert (await asked(f"{server}/calls/c0/recording"))[0] == 404
    assert (await asked(f"{server}/calls?text=card"))[1]["calls"] == []
    assert len((await asked(f"{server}/calls?from=2026-01-01"))[1]["calls"]) == 4


async def test_a_server_that_keeps_nothing_says_so(edge: Edge) -> None:
    runner = Runner(application(edge))
    await runner.setup()
    try:
        await runner.listen("127.0.0.1", 0)
        url = f"http://127.0.0.1:{runner.addresses[0][1]}"
        for path in ("/calls?limit=1", "/calls/x/timeline"):
            status, body = await asked(url + path, headers={})
            assert status == 409
            assert "[records] url" in body["error"]
    finally:
        await runner.cleanup()
