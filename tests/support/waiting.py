"""How long a test waits for what takes a moment."""

import asyncio
import time
from collections.abc import Callable

HANGS_S = 300
"""Seconds after which what a test waits for is not coming. On a calm machine it takes a moment; the
rest is for a machine that does much else."""

LOOK_S = 0.01


async def until(condition: Callable[[], object], seconds: float = HANGS_S) -> None:
    """Returns once the condition holds. Raises TimeoutError."""
    async with asyncio.timeout(seconds):
        while not condition():
            await asyncio.sleep(LOOK_S)


def wait_until(condition: Callable[[], object], seconds: float = HANGS_S) -> None:
    """The same for tests without an event loop. Blocks."""
    for _ in range(round(seconds / LOOK_S)):
        if condition():
            return
        time.sleep(LOOK_S)
    raise TimeoutError
