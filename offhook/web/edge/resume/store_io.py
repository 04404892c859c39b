"""Saved calls in Redis, written by a task of its own: no call ever waits for Redis to be saved.

The newest state of a call wins. A key is empty once its call has ended or continues elsewhere, so
that a token is used once.
"""

import asyncio
from collections.abc import Callable
from contextlib import suppress
from itertools import islice
from typing import TYPE_CHECKING, Any

from loguru import logger

from offhook.pipeline.speech.errors import EngineError
from offhook.pipeline.speech.voice.audio_cache_io import redis_client
from offhook.web.config.config import ConfigError

if TYPE_CHECKING:
    from redis.asyncio import Redis

PREFIX = "offhook:call:"
TTL_S = 180
"""Expiry in s of a call that is not saved again."""
CLAIM_S = 2.0
"""Maximum time in s that a returning caller waits for Redis; then the call does not continue and a
new one begins."""
WRITE_S = 2.0
"""Time limit in s of one exchange with Redis by the task that writes; then Redis counts as failing,
a warning is logged once, and the exchange is repeated after REST_S."""
REST_S = 1.0
"""Time in s between attempts to write while Redis fails."""
MAX_WAITING = 1000
"""Calls that wait to be written, and as many phone calls; beyond it the one that waits longest is
dropped, and a warning is logged."""
BATCH = 64
"""Calls written in one exchange."""

MAX_WORDS_CHARS = 200
"""Maximum characters of a reply or an error from Redis that are written to the log; of an error the
rest is cut off, and a longer reply is left out."""

USED = b""
"""Value of a call that has ended or continues elsewhere."""
SAVED, TAKEN = b"offhook:saved", b"offhook:taken"
"""Replies of the script that saves a call. Words of ours: a call ends by the second one, so it must
be nothing that something else than Redis, or a broken one, says of everything."""

# An edge that lives on must not save a call anew that another one has taken.
_SAVE = f"""
if redis.call('GET', KEYS[1]) == '' then return '{TAKEN.decode()}' end
redis.call('SET', KEYS[1], ARGV[1], 'EX', ARGV[2])
return '{SAVED.decode()}'
"""


class StoreUnavailable(Exception):
    """Redis does not answer in time, or with an error."""


class UnexpectedReply(Exception):
    """Redis answers what it was not asked for."""

    def __init__(self, reply: object) -> None:
        short = len(reply) < MAX_WORDS_CHARS if isinstance(reply, bytes) else isinstance(reply, int)
        words = repr(reply) if short else f"a {type(reply).__name__}"
        super().__init__(f"it answers what it was not asked for: {words}")


def make_room(waiting: dict[str, Any]) -> None:
    """Drops the call that waits longest, if so many wait that there is no room for another."""
    if len(waiting) >= MAX_WAITING:
        del waiting[next(iter(waiting))]
        logger.bind(a_minute="saved calls dropped").warning(
            "over {} calls wait to be saved: the state of the oldest is dropped", MAX_WAITING
        )


class CallStore:
    """Saves calls by their keys. Raises ConfigError if redis-py is missing or the URL is
    invalid."""

    def __init__(self, url: str, on_taken: Callable[[str], None]) -> None:
        """`on_taken` is called with the key of a call that another server has taken over."""
        try:
            self._redis: Redis = redis_client(url)
        except EngineError as error:
            raise ConfigError(f"server.redis: {error}") from error
        self._on_taken = on_taken
        self.up: bool | None = None
        """Whether Redis answers; None before it was asked."""
        self.failures = 0
        self._waiting: dict[str, bytes] = {}
        """Newest state by key, longest waiting first."""
        self._work = asyncio.Event()
        self._written = asyncio.Event()
        """Set while nothing waits to be written."""
        self._written.set()
        self._writing: asyncio.Task[None]

    def start(self) -> None:
        self._writing = asyncio.create_task(self._write(), name="saved calls")

    async def close(self) -> None:
        """Stops writing; what is not written is lost."""
        self._writing.cancel()
        await asyncio.gather(self._writing, return_exceptions=True)
        with suppress(Exception):
            await self._redis.aclose()

    def put(self, key: str, state: bytes) -> None:
        """Saves a call in the background, in place of any state before."""
        if key not in self._waiting:
            make_room(self._waiting)
        self._waiting[key] = state
        self._written.clear()
        self._work.set()

    def end(self, key: str) -> None:
        """Makes the call's token useless, in the background."""
        self.put(key, USED)

    async def claim(self, key: str) -> bytes | None:
        """Returns a saved call, once: its token is useless then. USED if it has ended or was
        claimed before, None if it is unknown or has expired. Raises StoreUnavailable within
        CLAIM_S."""
        waiting = self._waiting.pop(key, None)
        try:
            async with asyncio.timeout(CLAIM_S):
                stored = await self._redis.set(
                    PREFIX + key, USED, ex=TTL_S, xx=waiting is None, get=True
                )
                if not isinstance(stored, bytes | None):
                    raise UnexpectedReply(stored)
        except Exception as error:  # redis-py's own, OSError, TimeoutError
            if waiting:  # saved by this very process
                return waiting
            self._failed(error)
            raise StoreUnavailable from error
        if USED in (stored, waiting):
            return USED
        return waiting or stored

    async def flush(self, limit_s: float) -> bool:
        """Waits until everything is written; returns whether it is."""
        with suppress(TimeoutError):
            async with asyncio.timeout(limit_s):
                await self._written.wait()
        return self._written.is_set()

    async def _write(self) -> None:
        while True:
            try:
                async with asyncio.timeout(WRITE_S):
                    if self.up is not True and (pong := await self._redis.ping()) is not True:
                        raise UnexpectedReply(pong)
                    await self._write_batch()
            except Exception as error:  # as above
                self._failed(error)
                await asyncio.sleep(REST_S)
                continue
            self._answered()
            if not self._waiting:
                self._written.set()
                self._work.clear()
                await self._work.wait()

    async def _write_batch(self) -> None:
        batch = dict(islice(self._waiting.items(), BATCH))
        if not batch:
            return
        async with self._redis.pipeline(transaction=False) as pipe:
            for key, state in batch.items():
                if state == USED:
                    pipe.set(PREFIX + key, USED, ex=TTL_S)
                else:
                    pipe.eval(_SAVE, 1, PREFIX + key, state, TTL_S)
            results = await pipe.execute()
        for (key, state), result in zip(batch.items(), results, strict=True):
            if result not in ((True,) if state == USED else (SAVED, TAKEN)):
                raise UnexpectedReply(result)
            if self._waiting.get(key) is state:
                del self._waiting[key]
            if result == TAKEN:
                self._on_taken(key)

    def _failed(self, error: Exception) -> None:
        self.failures += 1
        if self.up is not False:
            logger.bind(a_minute="saved calls").warning(
                "calls go on, but cannot continue at another server: Redis fails: {}",
                repr(error)[:MAX_WORDS_CHARS],
            )
        self.up = False

    def _answered(self) -> None:
        if self.up is False:
            line = logger.bind(a_minute="saved calls again")
            line.info("Redis answers again: calls can continue at another server")
        self.up = True
