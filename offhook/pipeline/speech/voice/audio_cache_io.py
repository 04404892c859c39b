"""The reply cache: memory, backed by an optional Redis shared by several processes or machines.

Redis is best effort: while it fails or is slow, replies are synthesized again.
"""

import asyncio
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

from loguru import logger

from offhook.media.tasks_io import TaskSet
from offhook.pipeline.speech.errors import EngineError
from offhook.pipeline.speech.synthesizer import Speech
from offhook.pipeline.speech.voice.audio_cache import AudioCache, pack, unpack

if TYPE_CHECKING:
    from redis.asyncio import Redis

PREFIX = "offhook:reply:"
TTL_S = 7 * 24 * 3600
"""Expiry in s, renewed each time the reply is played."""
ANSWER_S = 0.1
"""Maximum time in s that a caller waits for Redis; then the reply is synthesized."""
STORE_S = 2.0
REST_S = 10.0
"""Time in s after a failure during which Redis is not asked."""
MAX_WORDS_CHARS = 200
"""Maximum characters of an error from Redis that are written to the log; the rest is cut off."""
MOST_STORING = 16
"""Maximum replies being stored in Redis at once; more are not stored."""


class ReplyCache(AudioCache):
    """Replies in memory, `limit_bytes` in total, and in the Redis at `url` unless that is "".
    Raises EngineError if redis-py is not installed or the URL is invalid."""

    def __init__(self, limit_bytes: int, url: str = "") -> None:
        super().__init__(limit_bytes)
        self._redis = redis_client(url) if url else None
        self._rests_until = 0.0
        self._storing = TaskSet()
        self.shared_hits = 0
        self.failures = 0

    @property
    def is_shared(self) -> bool:
        """Whether a Redis is used."""
        return self._redis is not None

    async def fetch(self, key: str) -> list[Speech] | None:
        """Loads a reply from Redis into memory and returns its pieces; None if it is missing or
        Redis is too slow."""
        if (packed := await self.recall(key)) is None:
            return None
        try:
            if not (pieces := unpack(packed)):
                raise ValueError("a reply of nothing")
        except ValueError as error:
            self.failed(error)
            return None
        self.shared_hits += 1
        super().put(key, pieces)
        return pieces

    def put(self, key: str, pieces: Sequence[Speech]) -> None:
        """Caches a reply in memory and stores it in Redis in the background."""
        super().put(key, pieces)
        if self.is_shared:
            self.share(key, pack(pieces))

    async def recall(self, key: str) -> bytes | None:
        """Returns what is in Redis; None if nothing is, or it is too slow."""
        if self._redis is None or self._rests():
            return None
        try:
            async with asyncio.timeout(ANSWER_S):
                found = await self._redis.getex(PREFIX + key, ex=TTL_S)
            if found is None or isinstance(found, bytes):
                return found
            raise TypeError(f"an answer of the kind {type(found).__name__}")
        except Exception as error:
            self.failed(error)
            return None

    def share(self, key: str, value: bytes) -> None:
        """Stores a value in Redis in the background, if there is one."""
        if self._redis is None or self._rests() or len(self._storing) >= MOST_STORING:
            return
        self._storing.spawn(self._store(self._redis, key, value), "store a reply")

    async def close(self) -> None:
        """Waits up to STORE_S for replies being stored."""
        await asyncio.gather(*self._storing)
        if self._redis is not None:
            await self._redis.aclose()

    async def _store(self, redis: "Redis", key: str, value: bytes) -> None:
        try:
            async with asyncio.timeout(STORE_S):
                await redis.set(PREFIX + key, value, ex=TTL_S)
        except Exception as error:
            self.failed(error)

    def _rests(self) -> bool:
        return time.monotonic() < self._rests_until

    def failed(self, error: Exception) -> None:
        """Leaves Redis alone for a while, since it does not answer or has a damaged value."""
        # Speech goes on whatever fails here: redis-py raises its own errors, OSError and timeouts,
        # and a damaged value raises ValueError.
        self.failures += 1
        if not self._rests():
            words = repr(error)[:MAX_WORDS_CHARS]
            line = logger.bind(a_minute="reply cache")
            line.warning("the cache in Redis fails and rests {:.0f} s: {}", REST_S, words)
        self._rests_until = time.monotonic() + REST_S


def redis_client(url: str) -> "Redis":
    """Returns a client that connects when it is used. Raises EngineError if redis-py is not
    installed or the URL is invalid."""
    try:
        from redis import asyncio as client

        from offhook.pipeline.speech.voice.redis_replies_io import BoundedParser
    except ImportError as error:
        raise EngineError("Redis needs redis-py: pip install redis") from error
    try:
        return client.Redis.from_url(
            url,
            socket_connect_timeout=ANSWER_S,
            socket_timeout=STORE_S,
            protocol=2,
            parser_class=BoundedParser,
        )
    except ValueError as error:
        raise EngineError(f"no address of a Redis: {error}") from error
