"""Where the order of a queue is kept: in this process, or in the Redis by which calls continue at
other servers, and then all servers have one order.

    offhook:queue:NAME    the state as JSON; a change replaces it if nobody else has meanwhile

While Redis fails, each server goes on with what it knew last; its own callers have their places
again once Redis answers.
"""

import asyncio
from collections import defaultdict
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from loguru import logger

from offhook.media.tasks_io import TaskSet
from offhook.pipeline.speech.errors import EngineError
from offhook.pipeline.speech.voice.audio_cache_io import redis_client
from offhook.web.config.config import ConfigError
from offhook.web.edge.queues.queue import KEPT_S, Queue

if TYPE_CHECKING:
    from redis.asyncio import Redis

PREFIX = "offhook:queue:"
TTL_S = 10 * KEPT_S
"""Expiry in s of a queue that nobody changes; presence of members is forgotten then."""
EXCHANGE_S = 2.0
"""Time limit in s of a change in Redis; then it counts as failing."""
MAX_TRIES = 20
"""Times that a change is tried while other servers change the same queue."""

Result = TypeVar("Result")
Change = Callable[[Queue], Result]
_Due = tuple[Change[Any], asyncio.Future[Any]]

_REPLACE = """
if (redis.call('GET', KEYS[1]) or '') ~= ARGV[1] then return 0 end
redis.call('SET', KEYS[1], ARGV[2], 'EX', ARGV[3])
return 1
"""


class Orders(Protocol):
    """The orders of all queues."""

    async def change(self, name: str, queue: Queue, change: Change[Result]) -> Result:
        """Apply a change to a queue, whose state `queue` has from the last one. It may be applied
        more than once, each time to a newer state."""

    async def close(self) -> None: ...


class LocalOrders:
    """In this process."""

    async def change(self, name: str, queue: Queue, change: Change[Result]) -> Result:
        return change(queue)

    async def close(self) -> None:
        """There is nothing to close."""


class RedisOrders:
    """In Redis: all changes of one moment are one exchange, so that those of one server never wait
    for each other. Raises ConfigError if redis-py is missing or the URL is invalid."""

    def __init__(self, url: str) -> None:
        try:
            self._redis: Redis = redis_client(url)
        except EngineError as error:
            raise ConfigError(f"server.redis: {error}") from error
        self._due: dict[str, list[_Due]] = {}
        """Changes that wait for the exchange before, by queue."""
        self._locks: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)
        self._tasks = TaskSet()

    async def change(self, name: str, queue: Queue, change: Change[Result]) -> Result:
        made: asyncio.Future[Result] = asyncio.get_running_loop().create_future()
        due = self._due.setdefault(name, [])
        due.append((change, made))
        if len(due) == 1:
            self._tasks.spawn(self._make_due(name, queue), f"change queue {name}")
        return await made

    async def _make_due(self, name: str, queue: Queue) -> None:
        async with self._locks[name]:
            due = self._due.pop(name)
            results = await self._exchange(
                name, queue, lambda queue: [change(queue) for change, _ in due]
            )
            for (_, made), result in zip(due, results, strict=True):
                if not made.done():  # whoever has asked for it may be gone
                    made.set_result(result)

    async def _exchange(self, name: str, queue: Queue, change: Change[Result]) -> Result:
        try:
            async with asyncio.timeout(EXCHANGE_S):
                for _ in range(MAX_TRIES):
                    before = await self._redis.get(PREFIX + name) or ""
                    if before:
                        queue.load(before)
                    result = change(queue)
                    keys = PREFIX + name, before, queue.dump(), round(TTL_S)
                    if await self._redis.eval(_REPLACE, 1, *keys) == 1:
                        return result
                raise TimeoutError("others change it all the time")
        except Exception as error:  # redis-py's own, OSError, TimeoutError, ValueError
            logger.bind(a_minute="queues").warning(
                "queue {}: this server goes on alone, Redis fails: {}",
                name,
                str(error) or type(error).__name__,
            )
            return change(queue)

    async def close(self) -> None:
        await self._tasks.close()
        await self._redis.aclose()
