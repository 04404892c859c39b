"""Saved calls in a real Redis: a token is used once, and without Redis nothing waits."""

import asyncio
import shutil
import socket
import subprocess
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from offhook.web.config.config import ConfigError
from offhook.web.edge.resume import store_io
from offhook.web.edge.resume.store_io import USED, CallStore, StoreUnavailable
from tests.pipeline.speech.voice.test_audio_cache import redis_server
from tests.support.waiting import HANGS_S

pytestmark = pytest.mark.asyncio


@pytest.fixture(scope="module")
def redis_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    pytest.importorskip("redis")
    with redis_server(tmp_path_factory.mktemp("redis")) as url:
        yield url


@asynccontextmanager
async def store(url: str, found: list[str] | None = None) -> AsyncIterator[CallStore]:
    made = CallStore(url, (found if found is not None else []).append)
    made.start()
    try:
        yield made
    finally:
        await made.close()


async def test_a_call_is_taken_over_once_and_its_old_server_learns_of_it(redis_url: str) -> None:
    taken: list[str] = []
    async with store(redis_url, taken) as one, store(redis_url) as other:
        one.put("k", b"first")
        one.put("k", b"newest")
        assert await one.flush(HANGS_S)
        assert await other.claim("k") == b"newest"
        assert await other.claim("k") == USED
        assert await one.claim("k") == USED
        one.put("k", b"later")
        assert await one.flush(HANGS_S)
        assert taken == ["k"]
        assert await other.claim("k") == USED


async def test_what_waits_is_found_by_the_same_process(redis_url: str) -> None:
    async with store(redis_url) as one, store(redis_url) as other:
        one.put("w", b"state")
        assert await one.claim("w") == b"state"
        assert await other.claim("w") == USED


async def test_a_call_that_has_ended_is_not_taken(redis_url: str) -> None:
    async with store(redis_url) as one, store(redis_url) as other:
        one.put("e", b"state")
        one.end("e")
        assert await one.flush(HANGS_S)
        assert await other.claim("e") == USED
        assert await other.claim("never") is None


async def test_a_saved_call_expires(redis_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store_io, "TTL_S", 1)
    async with store(redis_url) as one, store(redis_url) as other:
        one.put("t", b"state")
        assert await one.flush(HANGS_S)
        await asyncio.sleep(1.2)
        assert await other.claim("t") is None


async def test_without_redis_nothing_waits_and_it_is_said_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    pytest.importorskip("redis")
    monkeypatch.setattr(store_io, "REST_S", 0.01)
    monkeypatch.setattr(store_io, "MAX_WAITING", 5)
    async with store("redis://:secret@127.0.0.1:1/0") as one:
        for number in range(100):
            one.put(f"k{number}", b"state")
        async with asyncio.timeout(HANGS_S):
            while one.failures < 3:
                await asyncio.sleep(0.01)
        assert list(one._waiting) == [f"k{number}" for number in range(95, 100)]
        with pytest.raises(StoreUnavailable):
            await one.claim("k1")
        assert await one.claim("k99") == b"state"
        assert not await one.flush(0.01)
        assert one.up is False
    told = [text for text in caplog.messages if "cannot continue at another server" in text]
    assert len(told) == 1
    assert "secret" not in told[0]
    dropped = [record for record in caplog.records if "is dropped" in record.message]
    assert len(dropped) == 95


async def test_a_silent_redis_does_not_keep_a_returning_caller(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pytest.importorskip("redis")
    monkeypatch.setattr(store_io, "CLAIM_S", 0.5)
    with socket.create_server(("127.0.0.1", 0)) as deaf:
        async with store(f"redis://127.0.0.1:{deaf.getsockname()[1]}/0") as one:
            begin = asyncio.get_running_loop().time()
            with pytest.raises(StoreUnavailable):
                await one.claim("k")
            assert asyncio.get_running_loop().time() - begin < HANGS_S


async def test_calls_are_saved_once_redis_is_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    pytest.importorskip("redis")
    if shutil.which("redis-server") is None:
        pytest.skip("redis-server is not installed")
    monkeypatch.setattr(store_io, "REST_S", 0.05)
    path = tmp_path / "redis.sock"
    async with store(f"unix://{path}") as one:
        one.put("k", b"old")
        async with asyncio.timeout(HANGS_S):
            while one.failures < 2:
                await asyncio.sleep(0.01)
        one.put("k", b"new")
        options = ("--port", "0", "--unixsocket", str(path), "--save", "", "--dir", str(tmp_path))
        server = await asyncio.create_subprocess_exec(
            "redis-server", *options, stdout=subprocess.DEVNULL
        )
        try:
            assert await one.flush(HANGS_S)
            assert one.up is True
            assert await one.claim("k") == b"new"
        finally:
            server.terminate()
            await server.wait()
    assert any("Redis answers again" in text for text in caplog.messages)


async def test_what_is_no_address_says_so() -> None:
    pytest.importorskip("redis")
    with pytest.raises(ConfigError, match=r"server\.redis: no address of a Redis"):
        CallStore("here:6379", lambda key: None)
