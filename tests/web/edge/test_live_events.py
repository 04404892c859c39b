"""GET /calls/events: what live screens are sent, and what becomes of those that do not read."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import pytest_asyncio

from offhook.media.end_reason import End
from offhook.web.config.config import Config
from offhook.web.edge.console import live_events_io, live_feed_io
from offhook.web.edge.edge_io import Edge
from offhook.web.edge.server_io import application
from offhook.web.http.listening_io import Runner
from offhook.web.records.entries import Entry
from offhook.web.records.errors import StoreError
from tests.pipeline.conversation.phone import model, says
from tests.support.waiting import HANGS_S, until
from tests.web.edge.agents.test_agent import called
from tests.web.edge.test_history import keeping, records, shop
from tests.web.records.made_calls import begun, over, said

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live_feed_io, "LOOK_S", 0.02)


class Target:
    """An edge that keeps calls, and its address."""

    def __init__(self, edge: Edge, url: str) -> None:
        self.edge, self.url = edge, url

    def add(self, *entries: Entry) -> None:
        assert self.edge.records.kept is not None
        for entry in entries:
            self.edge.records.kept.add(entry)


@asynccontextmanager
async def reached(edge: Edge) -> AsyncIterator[Target]:
    """The edge over HTTP."""
    runner = Runner(application(edge))
    await runner.setup()
    await runner.listen("127.0.0.1", 0)
    try:
        yield Target(edge, f"http://127.0.0.1:{runner.addresses[0][1]}")
    finally:
        if edge.records.live is not None:
            await edge.records.live.close()
        await runner.cleanup()


@pytest_asyncio.fixture(loop_scope="module")
async def target(tmp_path: Path) -> AsyncIterator[Target]:
    edge = Edge(Config())
    edge.records.open_store(records(tmp_path))
    async with reached(edge) as target:
        yield target
    await edge.records.close()


class Stream:
    """One who listens."""

    def __init__(self, response: aiohttp.ClientResponse) -> None:
        self._response = response

    def leave(self) -> None:
        self._response.close()

    async def next(self) -> tuple[str, Any]:
        """The next event, its kind and its data; ("", None) at the end."""
        kind = ""
        async with asyncio.timeout(HANGS_S):
            async for line in self._response.content:
                name, _, value = line.decode().rstrip("\n").partition(": ")
                if name == "event":
                    kind = value
                elif name == "data":
                    return kind, json.loads(value)
        return "", None

    async def until(self, wanted: str) -> Any:
        """The data of the next event of that kind."""
        while True:
            kind, data = await self.next()
            assert kind, f"the stream ended before {wanted}"
            if kind == wanted:
                return data


@asynccontextmanager
async def listening(url: str) -> AsyncIterator[Stream]:
    async with (
        aiohttp.ClientSession(read_bufsize=1 << 20) as http,
        http.get(f"{url}/calls/events") as response,
    ):
        assert response.status == 200
        assert response.content_type == "text/event-stream"
        yield Stream(response)


async def test_a_screen_sees_calls_begin_talk_and_end(target: Target) -> None:
    target.add(begun("early"))
    async with listening(target.url) as one:
        snapshot = await one.until("snapshot")
        while not snapshot["calls"]:  # the store was looked at before it was written to
            snapshot["calls"] = [await one.until("started")]
        target.add(begun("late"), said("late", 1, "caller", "hello"))
        assert (await one.until("started"))["call_id"] == "late"
        assert (await one.until("turn"))["text"] == "hello"
        async with listening(target.url) as two:  # who comes later has the same before them
            calls = {c["call_id"]: c for c in (await two.until("snapshot"))["calls"]}
            assert calls.keys() == {"early", "late"}
            assert [turn["text"] for turn in calls["late"]["last_turns"]] == ["hello"]
            target.add(over("late"))
            for listener in (one, two):
                assert (await listener.until("ended"))["end_reason"] == "the caller hung up"


async def test_a_conversation_is_followed(edge: Edge, tmp_path: Path) -> None:
    async with (
        model([says("It is lost.")]) as scripted,
        keeping(edge, records(tmp_path)),
        reached(edge) as target,
        listening(target.url) as screen,
    ):
        await screen.until("snapshot")
        async with called(edge, shop(tmp_path, scripted.url)) as page:
            assert (await screen.until("started"))["agent"] == "shop"
            await until(lambda: "Hello there." in page.words())
            assert (await screen.until("turn"))["text"] == "Hello there."
            page.hear(type="send-text", id="1", data={"content": "where is my order"})
            assert (await screen.until("turn"))["text"] == "where is my order"
            assert (await screen.until("turn"))["text"] == "It is lost."
            page.close(End.CALLER_HUNG_UP)
        assert (await screen.until("ended"))["call_id"] == page.call_id


async def test_nobody_looks_without_a_listener(target: Target) -> None:
    feed = target.edge.records.live
    assert feed is not None
    async with listening(target.url) as screen:
        await screen.until("snapshot")
        assert feed._looking is not None
    await until(lambda: feed._looking is None)
    async with listening(target.url) as screen:
        await screen.until("snapshot")


async def test_a_store_that_fails_is_said_and_all_is_there_again(
    target: Target, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = target.edge.records.kept
    assert kept is not None
    target.add(begun("call"))
    await until(lambda: kept.ready and kept.behind == 0)

    def fails(*known: Any) -> None:
        raise StoreError("the database is away")

    async with listening(target.url) as screen:
        assert len((await screen.until("snapshot"))["calls"]) == 1
        with monkeypatch.context() as broken:
            broken.setattr(kept.store.live, "look", fails)
            assert (await screen.until("unavailable"))["error"] == "the database is away"
            async with listening(target.url) as another:
                assert (await another.next())[0] == "unavailable"
        assert len((await screen.until("snapshot"))["calls"]) == 1


async def test_who_does_not_read_is_dropped_and_asked_to_come_back(
    target: Target, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(live_feed_io, "MAX_WAITING", 3)
    feed = target.edge.records.live
    assert feed is not None
    with feed.listening() as slow:
        async with listening(target.url) as quick:
            await quick.until("snapshot")
            target.add(begun("call"), *(said("call", n, "caller", str(n)) for n in range(1, 9)))
            await until(lambda: slow.ended)
    assert "come back" in slow.ended
    assert await slow.next(HANGS_S) == b""
    for _ in range(3):
        slow.put(b"more")
    assert await slow.next(HANGS_S) == b""


async def test_who_does_not_read_at_all_is_disconnected(
    target: Target, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(live_events_io, "WRITE_S", 0.1)
    feed = target.edge.records.live
    assert feed is not None
    port = int(target.url.rpartition(":")[2])
    reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=1024)
    writer.write(b"GET /calls/events HTTP/1.1\r\nHost: localhost\r\n\r\n")
    await until(lambda: feed._listeners)
    [listener] = feed._listeners
    listener.put(bytes(1 << 26))  # more than systems buffer
    await until(lambda: not feed._listeners)
    writer.close()
    del reader


async def test_a_stream_ends_after_a_while_and_says_so(
    target: Target, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(live_events_io, "STREAM_S", 0.0)
    async with listening(target.url) as screen:
        assert "come back" in (await screen.until("reconnect"))["why"]
        assert await screen.next() == ("", None)


async def test_a_server_that_stops_ends_the_streams(target: Target) -> None:
    feed = target.edge.records.live
    assert feed is not None
    async with listening(target.url) as screen:
        await screen.until("snapshot")
        await feed.close()
        assert "stops" in (await screen.until("reconnect"))["why"]


async def test_of_sixty_screens_fifty_have_a_place_though_one_never_reads(target: Target) -> None:
    feed = target.edge.records.live
    assert feed is not None
    port = int(target.url.rpartition(":")[2])
    _, deaf = await asyncio.open_connection("127.0.0.1", port, limit=1024)
    deaf.write(b"GET /calls/events HTTP/1.1\r\nHost: localhost\r\n\r\n")
    await until(lambda: feed._listeners)
    [unread] = feed._listeners
    async with AsyncExitStack() as there, aiohttp.ClientSession() as http:
        screens = [await there.enter_async_context(listening(target.url)) for _ in range(49)]
        for screen in screens:
            await screen.until("snapshot")
        for _ in range(10):
            async with http.get(f"{target.url}/calls/events") as response:
                assert response.status == 503
                assert response.headers["Retry-After"]
                assert "live screens" in (await response.json())["error"]
        for _ in range(3 * live_feed_io.MAX_WAITING):  # as an hour of many calls
            unread.put(bytes(1 << 16))
        assert len(unread._waiting) <= live_feed_io.MAX_WAITING
        target.add(begun("call"))
        for screen in screens:
            assert (await screen.until("started"))["call_id"] == "call"
        screens[0].leave()
        await until(lambda: not feed.is_full)
    deaf.close()


async def test_without_a_store_it_says_which_setting_is_missing(edge: Edge) -> None:
    async with (
        reached(edge) as target,
        aiohttp.ClientSession() as http,
        http.get(f"{target.url}/calls/events") as response,
    ):
        assert response.status == 409
        assert "[records] url" in (await response.json())["error"]
