"""The maximum length of a call."""

import asyncio
from collections.abc import Awaitable


class TimeLimit:
    """The limit of one call, which may continue another."""

    def __init__(self, limit_s: float | None, before_s: float) -> None:
        """The call may last `limit_s`, of which `before_s` are over when it starts; None: any
        time."""
        self.before_s = before_s
        self._left_s = None if limit_s is None else max(0.0, limit_s - before_s)
        self._deadline: float | None = None

    def start(self) -> None:
        if self._left_s is not None:
            self._deadline = asyncio.get_running_loop().time() + self._left_s

    async def wait_for(self, over: Awaitable[object]) -> bool:
        """Wait for `over`; return whether the limit was reached before."""
        try:
            async with asyncio.timeout_at(self._deadline):
                await over
        except TimeoutError:
            return True
        return False
