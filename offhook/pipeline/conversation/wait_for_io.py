"""`asyncio.wait_for` where Pipecat replaces it: before Python 3.12."""

import asyncio
import sys
from collections.abc import Awaitable
from typing import TypeVar

T = TypeVar("T")

if sys.version_info < (3, 12):
    import wait_for2  # type: ignore[import-untyped]

    async def wait_for(awaitable: Awaitable[T], timeout: float | None) -> T:  # noqa: ASYNC109
        """Does what `asyncio.wait_for` does from Python 3.12 on. Before, Pipecat puts in its place
        that of wait_for2, whose own kind of CancelledError `asyncio.timeout` does not turn into a
        TimeoutError: whoever waits, for Redis perhaps, would end as if cancelled."""
        async with asyncio.timeout(timeout):
            return await awaitable

    # Pipecat may have been imported before, or be imported later.
    asyncio.wait_for = wait_for2.wait_for = wait_for  # type: ignore[assignment]
