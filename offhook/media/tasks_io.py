"""Tasks and who owns them."""

import asyncio
from collections.abc import Coroutine
from typing import Any


class TaskSet(set[asyncio.Task[Any]]):
    """Tasks of one owner, who closes it. A task that is done leaves it by itself; one that fails
    does not end the others, as it would in a TaskGroup."""

    def spawn(self, work: Coroutine[Any, Any, Any], name: str) -> asyncio.Task[Any]:
        task = asyncio.create_task(work, name=name)
        self.add(task)
        task.add_done_callback(self.discard)
        return task

    async def close(self) -> None:
        """Cancels what still runs and waits until it has ended."""
        for task in self:
            task.cancel()
        await asyncio.gather(*self, return_exceptions=True)
