"""Replies shared by several processes or machines through Redis, behind the cache in memory.

Redis is a help and never a need: while it fails or is slow, replies are spoken anew.
"""

import asyncio
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

from loguru import logger

from offhook.media.tasks_io import TaskSet
from offhook.pipeline.speech.recognizer import EngineError
from offhook.pipeline.speech.synthesizer import Speech
from offhook.pipeline.speech.voice.audio_cache import AudioCache, pack, unpack

if TYPE_CHECKING:
    from redis.asyncio import Redis

PREFIX = "offhook:reply:"
TTL_S = 7 * 24 * 3600
"""A reply that nobody asks for so long is forgotten; each time it is played it stays anew."""
ANSWER_S = 0.1
"""The longest that a caller waits for Redis before the reply is spoken anew."""
STORE_S = 2.0
REST_S = 10.0
"""After a failure Redis is not asked for so long."""
MOST_STORING = 16
"""Replies on their way to Redis at once; of more, the later are not stored."""


class SharedAudioCache:
    """Redis behind an `AudioCache`. Raises EngineError when redis-py is not installed, or the
    address is none."""

    def __init__(self, url: str, near: AudioCache) -> None:
        try:
            from redis import asyncio as client
        except ImportError as error:
            raise EngineError("the cache in Redis needs redis-py: pip install redis") from error
        try:
            self._redis: Redis = client.Redis.from_url(
                url, socket_connect_timeout=ANSWER_S, socket_timeout=STORE_S
            )
        except ValueError as error:
            raise EngineError(f"the cache has no address of a Redis: {error}") from error
        self._near = near
        self._rests_until = 0.0
        self._storing = TaskSet()
        self.shared_hits = 0
        self.failures = 0

    async def get(self, key: str) -> list[Speech] | None:
        """The pieces of a reply that memory has not, which then has them; None when Redis has not
        either, or not in time."""
        if self._rests():
            return None
        try:
            async with asyncio.timeout(ANSWER_S):
                packed = await self._redis.getex(PREFIX + key, ex=TTL_S)
            if packed is None:
                return None
            assert isinstance(packed, bytes)
            pieces = unpack(packed)
        except Exception as error:
            self._failed(error)
            return None
        self.shared_hits += 1
        self._near.put(key, pieces)
        return pieces

    def put(self, key: str, pieces: Sequence[Speech]) -> None:
        """Keep a reply in memory; it goes to Redis by and by."""
        self._near.put(key, pieces)
        if self._rests() or len(self._storing) >= MOST_STORING:
            return
        self._storing.spawn(self._store(key, pack(pieces)), "store a reply")

    async def close(self) -> None:
        """Wait for what is on its way, STORE_S at most."""
        await asyncio.gather(*self._storing)
        await self._redis.aclose()

    async def _store(self, key: str, packed: bytes) -> None:
        try:
            async with asyncio.timeout(STORE_S):
                await self._redis.set(PREFIX + key, packed, ex=TTL_S)
        except Exception as error:
            self._failed(error)

    def _rests(self) -> bool:
        return time.monotonic() < self._rests_until

    def _failed(self, error: Exception) -> None:
        # Whatever goes wrong here, speech goes on: redis-py raises errors of its own, of sockets
        # and of time, and a damaged value raises ValueError.
        self.failures += 1
        if not self._rests():
            logger.warning(f"the cache in Redis fails and rests {REST_S:.0f} s: {error!r}")
        self._rests_until = time.monotonic() + REST_S
