"""A Redis that lies: calls go on, the operator reads one line, and nothing grows."""

import asyncio
from collections.abc import Awaitable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("redis")

from offhook.pipeline.speech.voice.audio_cache_io import ReplyCache
from offhook.web.edge.resume import store_io
from offhook.web.edge.resume.recovery_store_io import RecoveryStore
from offhook.web.edge.resume.store_io import CallStore, StoreUnavailable
from tests.support.lying_redis import LIES, lying_redis
from tests.support.waiting import until
from tests.web.edge.resume.test_resume import pair

pytestmark = pytest.mark.asyncio

ALL = [*LIES, "gone", "slow"]
MAX_LINE = 300
GROWN_MB = 100
WAIT_S = 0.4


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store_io, "CLAIM_S", WAIT_S)
    monkeypatch.setattr(store_io, "WRITE_S", WAIT_S)
    monkeypatch.setattr(store_io, "REST_S", 0.01)


def resident_mb() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) // 256


async def answered(work: Awaitable[Any]) -> Any:
    """Returns what a store makes of an answer; None if it raises, as `Recovery` takes it."""
    try:
        async with asyncio.timeout(WAIT_S):
            return await work
    except Exception:  # redis-py's own, and of any kind
        return None


@pytest.mark.parametrize("lie", ALL)
async def test_no_call_is_lost_and_one_line_says_why(
    lie: str, caplog: pytest.LogCaptureFixture
) -> None:
    taken: list[str] = []
    before = resident_mb()
    async with lying_redis(lie) as liar:
        store = CallStore(liar.url, taken.append)
        store.start()
        for number in range(5):
            store.put(f"k{number}", b"state")
        await until(lambda: store.failures >= 2)
        assert store.up is False
        assert not store._writing.done()
        try:
            claimed = await store.claim("another")
        except StoreUnavailable:
            claimed = None
        assert claimed is None or isinstance(claimed, bytes)
        await store.close()
    assert not taken
    lines = [text for text in caplog.messages if "Redis" in text]
    assert len(lines) == 1
    assert "calls go on, but cannot continue at another server" in lines[0]
    assert len(lines[0]) < MAX_LINE
    assert "\x1b" not in lines[0]
    assert resident_mb() - before < GROWN_MB


@pytest.mark.parametrize("lie", ALL)
async def test_phone_calls_of_others_are_calls_or_an_error(lie: str) -> None:
    before = resident_mb()
    async with lying_redis(lie) as liar:
        store = RecoveryStore(liar.url, "edge")
        renewed = await answered(store.renew(5.0, {"one": b"saved", "two": None}))
        assert renewed is None
        for found in (store.claim(3), store.held()):
            calls = await answered(found) or []
            assert len(calls) <= 3
            assert all(isinstance(c, str) and isinstance(saved, bytes) for c, saved in calls)
        assert not await answered(store.withdraw())
        await store.close()
    assert resident_mb() - before < GROWN_MB


@pytest.mark.parametrize("lie", ALL)
async def test_replies_are_made_anew(lie: str) -> None:
    async with lying_redis(lie) as liar:
        cache = ReplyCache(1 << 20, liar.url)
        assert await cache.fetch("key") is None
        await cache.close()


@pytest.mark.usefixtures("loopback", "quick")
@pytest.mark.parametrize("lie", ["0 to everything", "calls that are none", "silence"])
async def test_a_call_goes_on_beside_it(lie: str) -> None:
    async with lying_redis(lie) as liar, pair(liar.url) as two:
        edge, client = two.edges[0], two.client()
        await client.call(two.http[0])
        await until(edge.turns)
        for said in range(1, 4):
            client.type("Is anybody there?")
            await until(lambda said=said: len(edge.turns()) > said)
        assert not edge.ends()
        assert liar.commands
