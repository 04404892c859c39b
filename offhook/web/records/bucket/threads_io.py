"""Threads for what may wait long for a server: the process does not wait for them when it ends, and
they take no thread from what calls need."""

import asyncio
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any, TypeVar

T = TypeVar("T")


async def in_own_thread(name: str, work: Callable[..., T], *arguments: Any) -> T:
    """Returns what a function returns that blocks, or raises what it raises."""
    loop = asyncio.get_running_loop()
    done: asyncio.Future[T] = loop.create_future()

    def settle(result: Any, error: BaseException | None) -> None:
        if done.done():  # nobody waits for it any more
            return
        if error is None:
            done.set_result(result)
        else:
            done.set_exception(error)

    def run() -> None:
        result: T | None = None
        fault: BaseException | None = None
        try:
            result = work(*arguments)
        except BaseException as error:
            fault = error
        with suppress(RuntimeError):  # the loop has ended
            loop.call_soon_threadsafe(settle, result, fault)

    threading.Thread(target=run, name=name, daemon=True).start()
    return await done
