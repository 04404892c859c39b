"""Works through what waits in the store, as webhooks and analyses do."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

from loguru import logger

from offhook.media.tasks_io import TaskSet
from offhook.web.records.errors import StoreError

LOOK_S = 1.0
"""Interval in s at which the store is asked for what waits."""

Work = TypeVar("Work")


class StoreQueues:
    """The queues of one store that a process works on, each at its own pace."""

    def __init__(self, ready: Callable[[], bool]) -> None:
        """`ready` says whether the store's tables are there."""
        self._ready = ready
        self._tasks = TaskSet()

    def serve(
        self,
        name: str,
        claim: Callable[[float], Sequence[Work]],
        handle: Callable[[Work], Awaitable[object]],
        look: Callable[[], object] = lambda: None,
    ) -> None:
        """Has what is due handled, all of it at once, then what is due next. `claim` returns it,
        given the time in s since 1970, and blocks; both may raise StoreError. `look` is called
        before, on the loop, for what `claim` has to know of calls in progress."""
        self._tasks.spawn(self._serve(name, claim, handle, look), name)

    async def close(self) -> None:
        """Ends all work; what is not done waits in the store."""
        await self._tasks.close()

    async def _serve(
        self,
        name: str,
        claim: Callable[[float], Sequence[Work]],
        handle: Callable[[Work], Awaitable[object]],
        look: Callable[[], object],
    ) -> None:
        while not self._ready():
            await asyncio.sleep(LOOK_S)
        while True:
            due: Sequence[Work] = ()
            try:
                look()
                due = await asyncio.to_thread(claim, time.time())
                await asyncio.gather(*map(handle, due))
            except StoreError as error:  # the writer tells of it too
                logger.bind(a_minute=name).warning("{} wait: {}", name, error)
                due = ()
            except Exception:
                logger.bind(a_minute=name).exception("{} wait", name)
                due = ()
            if not due:
                await asyncio.sleep(LOOK_S)
