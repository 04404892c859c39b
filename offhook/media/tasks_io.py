"""Background tasks and their owner."""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Iterable
from typing import Any, TypeVar

from loguru import logger

END_S = 10.0
"""Seconds for cancelled tasks to end. One that goes on is named in the log, counted in
`offhook_tasks_unended`, and left to itself: its owner must end too."""

Task = asyncio.Task[Any]
T = TypeVar("T")
U = TypeVar("U")

_unended: set[Task] = set()


def unended() -> int:
    """Return how many tasks go on that their owners have cancelled and left."""
    return len(_unended)


async def end_all(running: Callable[[], Iterable[Task]], end_s: float = END_S) -> None:
    """Cancel the tasks that `running` returns, also those that begin while others end, and wait
    until all have ended, `end_s` at most. The current task is left alone."""
    loop, current = asyncio.get_running_loop(), asyncio.current_task()
    until = loop.time() + end_s
    while left := {task for task in running() if task is not current and not task.done()}:
        for task in left:
            task.cancel()
        done, left = await asyncio.wait(left, timeout=max(0.0, until - loop.time()))
        for task in done:  # whoever wanted to know what failed is gone
            if not task.cancelled():
                task.exception()
        if left:
            _leave(left)
            return


def _leave(tasks: set[Task]) -> None:
    names = ", ".join(sorted({task.get_name() for task in tasks}))
    logger.warning("{} tasks do not end though they are cancelled: {}", len(tasks), names)
    for task in tasks:
        _unended.add(task)
        task.add_done_callback(_unended.discard)


async def first_of(one: Awaitable[T], other: Awaitable[U]) -> tuple[T | None, U | None]:
    """Await both until one has ended, and cancel the other. Return their results, None for one that
    has not ended; raise the exception of one that has failed."""
    first, second = asyncio.ensure_future(one), asyncio.ensure_future(other)
    try:
        await asyncio.wait((first, second), return_when=asyncio.FIRST_COMPLETED)
        return first.result() if first.done() else None, second.result() if second.done() else None
    finally:
        first.cancel()
        second.cancel()
        await asyncio.gather(first, second, return_exceptions=True)


class TaskSet(set[Task]):
    """The tasks of one owner, who must close it. A finished task removes itself; unlike in a
    TaskGroup, one that fails does not cancel the others."""

    def spawn(self, work: Coroutine[Any, Any, Any], name: str) -> Task:
        task = asyncio.create_task(work, name=name)
        self.add(task)
        task.add_done_callback(self.discard)
        return task

    async def close(self) -> None:
        """Cancel the running tasks and wait until they have ended, END_S at most."""
        await end_all(lambda: self)
