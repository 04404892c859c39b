"""How long a test waits for what takes a moment."""

import asyncio
from collections.abc import Callable

HANGS_S = 300
"""Seconds after which what a test waits for is not coming. On a calm machine it takes a moment; the
rest is for a machine that does much else."""


async def until(condition: Callable[[], object], seconds: float = HANGS_S) -> None:
    """Returns once the condition holds. Raises TimeoutError."""
    async with asyncio.timeout(seconds):
        while not condition():
            await asyncio.sleep(0.01)
