"""The cache of replies: what is played again, and that it never stands in the way."""

import asyncio
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from offhook.pipeline.speech.errors import EngineError
from offhook.pipeline.speech.synthesizer import Speech, VoiceOptions
from offhook.pipeline.speech.voice import audio_cache_io
from offhook.pipeline.speech.voice.audio_cache import (
    AudioCache,
    pack,
    reply_key,
    size_bytes,
    unpack,
)
from offhook.pipeline.speech.voice.audio_cache_io import PREFIX, ReplyCache
from tests.support.waiting import HANGS_S

REPLIES = st.lists(
    st.builds(
        lambda samples, text: Speech(np.array(samples, np.int16), text),
        st.lists(st.integers(-32768, 32767), max_size=50),
        st.text(max_size=20),
    ),
    max_size=8,
)


def reply(seconds: float, seed: int = 0) -> list[Speech]:
    """A reply of 80 ms pieces."""
    rng = np.random.default_rng(seed)
    count = round(seconds / 0.08)
    return [Speech(rng.integers(-9999, 9999, 1920, np.int16), f"word{n} ") for n in range(count)]


def same(one: list[Speech] | None, other: list[Speech]) -> bool:
    return one is not None and [(p.text, p.pcm.tolist()) for p in one] == [
        (p.text, p.pcm.tolist()) for p in other
    ]


@given(REPLIES)
def test_a_reply_survives_packing(pieces: list[Speech]) -> None:
    packed = pack(pieces)
    assert same(unpack(packed), pieces)
    assert len(packed) <= size_bytes(pieces) + 3 * sum(len(piece.text) for piece in pieces)


@given(REPLIES.filter(bool), st.integers(1, 10_000))
def test_a_broken_reply_is_refused(pieces: list[Speech], cut: int) -> None:
    packed = pack(pieces)
    whole = {0}
    for count in range(1, len(pieces)):
        whole.add(len(pack(pieces[:count])))
    kept = len(packed) - 1 - cut % len(packed)
    if kept not in whole:
        with pytest.raises(ValueError, match=r"breaks off|codec"):
            unpack(packed[:kept])


@settings(max_examples=50)
@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 4), st.booleans()), max_size=60))
def test_the_least_recently_used_go_first(steps: list[tuple[int, int, bool]]) -> None:
    cache = AudioCache(20_000)
    kept: dict[str, list[Speech]] = {}
    for number, pieces, puts in steps:
        key = str(number)
        if not puts:
            assert (found := cache.get(key)) is None or same(found, kept[key])
            assert (found is None) == (key not in kept)
            if key in kept:
                kept[key] = kept.pop(key)
            continue
        new = reply(0.08 * pieces, number)
        cache.put(key, new)
        if size_bytes(new) > 5_000:
            continue
        kept.pop(key, None)
        kept[key] = new
        while sum(map(size_bytes, kept.values())) > 20_000:
            del kept[next(iter(kept))]
        assert cache.bytes == sum(map(size_bytes, kept.values())) <= 20_000
        assert len(cache) == len(kept)


def test_what_is_asked_for_stays() -> None:
    cache = AudioCache(4 * size_bytes(reply(0.08)))
    for number in range(6):
        cache.put(str(number), reply(0.08, number))
        assert same(cache.get("0"), reply(0.08, 0))
    assert [cache.get(str(number)) is not None for number in range(6)] == [
        *(True, False, False),
        *(True, True, True),
    ]
    assert cache.counts.evicted == 2


def test_counts() -> None:
    cache = AudioCache(1_000_000)
    assert cache.get("a") is None
    cache.put("a", reply(1))
    assert cache.get("a") is not None
    cache.put("b", reply(60))
    counts = cache.counts
    assert (counts.hits, counts.misses, counts.evicted) == (1, 1, 0)
    assert cache.get("b") is None


@pytest.mark.slow
def test_a_reply_is_found_at_once() -> None:
    cache = AudioCache(1 << 30)
    for number in range(300):
        cache.put(str(number), reply(2, number))
    times = []
    for number in range(300):
        begin = time.thread_time()
        assert cache.get(str(number)) is not None
        times.append(time.thread_time() - begin)
    assert sorted(times)[150] < 0.001


def test_whatever_changes_the_sound_changes_the_key() -> None:
    options = [
        VoiceOptions(),
        VoiceOptions(voice="x"),
        VoiceOptions(language="de"),
        VoiceOptions(instructions="slowly"),
        VoiceOptions(speed=1.5),
        VoiceOptions(normalise=False),
        VoiceOptions(seed=0),
        VoiceOptions(seed=1),
    ]
    keys = {
        reply_key(engine, text, option)
        for engine in ("a", "b")
        for text in ("hi", "hi ")
        for option in options
    }
    assert len(keys) == 4 * len(options)
    assert reply_key("a", "hi", VoiceOptions(live=False)) == reply_key("a", "hi", VoiceOptions())


def accepts(path: Path) -> bool:
    """Returns whether somebody listens there; a socket's file is there a moment earlier."""
    with socket.socket(socket.AF_UNIX) as client:
        return client.connect_ex(str(path)) == 0


@contextmanager
def redis_server(folder: Path) -> Iterator[str]:
    """Its address. Skips the test where there is none."""
    server = shutil.which("redis-server")
    if server is None:
        pytest.skip("redis-server is not installed")
    path = folder / "redis.sock"
    options = ("--port", "0", "--unixsocket", str(path), "--save", "", "--dir", str(folder))
    process = subprocess.Popen((server, *options), stdout=subprocess.DEVNULL)
    try:
        begin = time.monotonic()
        while not accepts(path):
            assert time.monotonic() - begin < HANGS_S, "redis-server does not start"
            time.sleep(0.05)
        yield f"unix://{path}"
    finally:
        process.terminate()
        process.wait(10)


@pytest.fixture(scope="module")
def redis_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    pytest.importorskip("redis")
    with redis_server(tmp_path_factory.mktemp("redis")) as url:
        yield url


async def test_another_process_finds_the_reply(redis_url: str) -> None:
    pieces = reply(3)
    cache = ReplyCache(1 << 20, redis_url)
    assert await cache.fetch("k") is None
    cache.put("k", pieces)
    await cache.close()
    other = ReplyCache(1 << 20, redis_url)
    assert same(await other.fetch("k"), pieces)
    assert same(other.get("k"), pieces)
    assert (other.shared_hits, other.failures) == (1, 0)
    assert other._redis is not None
    remaining = await other._redis.ttl(PREFIX + "k")
    assert audio_cache_io.TTL_S - 60 < remaining <= audio_cache_io.TTL_S
    await other.close()


async def test_a_damaged_reply_is_spoken_anew(redis_url: str) -> None:
    cache = ReplyCache(1 << 20, redis_url)
    assert cache._redis is not None
    await cache._redis.set(PREFIX + "bad", b"no reply")
    assert await cache.fetch("bad") is None
    assert cache.failures == 1
    await cache.close()


async def test_without_redis_the_memory_serves() -> None:
    pytest.importorskip("redis")
    cache = ReplyCache(1 << 20, "redis://127.0.0.1:1/0")
    assert await cache.fetch("k") is None
    cache.put("k", reply(1))
    assert same(cache.get("k"), reply(1))
    assert cache.failures == 1
    assert await cache.fetch("other") is None
    assert cache.failures == 1, "a failed Redis is left alone for a while"
    await cache.close()


def test_what_is_no_address_says_so() -> None:
    pytest.importorskip("redis")
    with pytest.raises(EngineError, match="no address of a Redis"):
        ReplyCache(1 << 20, "here:6379")


async def test_a_silent_redis_keeps_nobody_waiting() -> None:
    pytest.importorskip("redis")
    with socket.create_server(("127.0.0.1", 0)) as deaf:
        url = f"redis://127.0.0.1:{deaf.getsockname()[1]}/0"
        cache = ReplyCache(1 << 20, url)
        async with asyncio.timeout(HANGS_S):  # it never answers
            assert await cache.fetch("k") is None
        assert cache.failures == 1
        await asyncio.wait_for(cache.close(), HANGS_S)
