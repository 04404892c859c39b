"""Leases and claims in a real Redis: each call is claimed by one edge."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager

import pytest
from redis import Redis

from offhook.web.config.config import ConfigError
from offhook.web.edge.resume.recovery import MAX_CLAIMS
from offhook.web.edge.resume.recovery_store_io import CALLS, LEASES, RecoveryStore
from tests.pipeline.speech.voice.test_audio_cache import redis_server

pytestmark = pytest.mark.asyncio

SHORT_S = 0.05
LONG_S = 60.0


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with redis_server(tmp_path_factory.mktemp("redis")) as url:
        yield url


@pytest.fixture
def redis_url(server: str) -> str:
    redis = Redis.from_url(server)
    redis.flushall()
    redis.close()
    return server


@asynccontextmanager
async def stores(url: str, *names: str) -> AsyncIterator[list[RecoveryStore]]:
    made = [RecoveryStore(url, name) for name in names]
    try:
        yield made
    finally:
        for one in made:
            await one.close()


async def test_every_call_of_a_dead_edge_is_claimed_once(redis_url: str) -> None:
    calls = {f"call {n}": b"state %d" % n for n in range(50)}
    async with stores(redis_url, "dead", "b", "c") as (dead, b, c):
        assert await dead.renew(LONG_S, calls) == (50, [], [])
        await b.renew(LONG_S, {})
        assert await b.claim(8) == []  # its lease still runs
        await dead.renew(SHORT_S, {})
        await asyncio.sleep(2 * SHORT_S)
        found: list[tuple[str, bytes]] = []
        while claimed := [x for xs in await asyncio.gather(b.claim(8), c.claim(8)) for x in xs]:
            assert len(claimed) <= 16
            found += claimed
        assert len(found) == 50
        assert {x for one in (b, c) for x in await one.held()} == calls.items()
        assert dict(found) == calls
        # It wakes up: it learns which calls it has lost, and cannot save them.
        renewal = await dead.renew(LONG_S, {"call 1": b"later", "new": b"n"})
        assert renewal.held == 1
        assert set(renewal.claimed) == calls.keys()
        assert renewal.refused == ["call 1"]
        await dead.settled(renewal.claimed)
        assert await dead.renew(LONG_S, {"new": None}) == (0, [], [])


async def test_calls_of_a_draining_edge_are_claimed_at_once(redis_url: str) -> None:
    async with stores(redis_url, "a", "b") as (a, b):
        await a.renew(LONG_S, {"one": b"1", "two": b"2", "ended": b"3"})
        await a.renew(LONG_S, {"ended": None})
        assert await b.claim(8) == []
        await a.offer()
        await a.renew(0, {})  # which does not give it the lease back
        assert len(await b.claim(1)) == 1
        ((claimed,), held) = (await a.withdraw(), await a.renew(0, {}))
        assert claimed in ("one", "two")
        assert held.held == 0
        assert await b.claim(8) == []


async def test_what_ends_edges_is_given_up(redis_url: str) -> None:
    names = [f"edge {n}" for n in range(MAX_CLAIMS + 2)]
    async with stores(redis_url, *names) as edges:
        await edges[0].renew(SHORT_S, {"bad": b"state"})
        for edge in edges[1 : MAX_CLAIMS + 1]:
            await asyncio.sleep(2 * SHORT_S)
            assert await edge.claim(8) == [("bad", b"state")]
            await edge.renew(SHORT_S, {})  # and it dies
        await asyncio.sleep(2 * SHORT_S)
        assert await edges[-1].claim(8) == [("bad", b"")]
        assert await edges[-1].claim(8) == []


async def test_foreign_values_do_not_stop_claims(redis_url: str) -> None:
    raw = Redis.from_url(redis_url)
    async with stores(redis_url, "a", "b") as (a, b):
        await a.renew(SHORT_S, {"good": b"state"})
        raw.set(CALLS + "text", "x")
        raw.zadd(LEASES, {"text": 1, "gone": 2})
        raw.hset(CALLS + "a", "no call", "words")
        await asyncio.sleep(2 * SHORT_S)
        assert dict(await b.claim(8)) == {"good": b"state", "no call": b""}
        assert raw.zrange(LEASES, 0, -1) == []
    raw.close()


async def test_without_redis_py_or_with_another_url_it_is_said() -> None:
    with pytest.raises(ConfigError, match=r"server.redis"):
        RecoveryStore("http://x", "a")
