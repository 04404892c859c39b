"""Signal handling of a server."""

import asyncio
import signal
from collections.abc import Callable, Coroutine

from loguru import logger

from offhook.media.tasks_io import first_of


def _nothing_to_reload() -> None:
    logger.info("SIGHUP: there is nothing to read again here")


class Stop:
    """SIGTERM and SIGINT: the first requests draining, the second an immediate end. SIGHUP requests
    a reload and never ends anything."""

    def __init__(self, reload: Callable[[], object] = _nothing_to_reload) -> None:
        self.drain = asyncio.Event()
        self.end = asyncio.Event()
        self.reload = reload

    def on_signals(self) -> None:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self.ask)
        loop.add_signal_handler(signal.SIGHUP, lambda: self.reload())

    def ask(self) -> None:
        (self.end if self.drain.is_set() else self.drain).set()

    async def until_drained(self, drain: Callable[[], Coroutine[None, None, None]]) -> None:
        """Returns when a first signal has arrived and `drain` has ended, or on a second signal."""
        await self.drain.wait()
        await first_of(drain(), self.end.wait())
