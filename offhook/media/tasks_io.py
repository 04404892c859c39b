"""Background tasks and their owner."""

import asyncio
from collections.abc import Coroutine
from typing import Any


class TaskSet(set[asyncio.Task[Any]]):
    """The tasks of one owner, who must close it. A finished task removes itself; unlike in a
    TaskGroup, one that fails does not cancel the others."""

    def spawn(self, work: Coroutine[Any, Any, Any], name: str) -> asyncio.Task[Any]:
        task = asyncio.create_task(work, name=name)
        self.add(task)
        task.add_done_callback(self.discard)
        return task

    async def close(self) -> None:
        """Cancel the running tasks and wait until they have ended."""
        for task in self:
            task.cancel()
        await asyncio.gather(*self, return_exceptions=True)
