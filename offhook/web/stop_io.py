"""SIGTERM and SIGINT as a server understands them."""

import asyncio
import signal


class Stop:
    """What the signals ask for: the first to drain, the second to end at once."""

    def __init__(self) -> None:
        self.drain = asyncio.Event()
        self.end = asyncio.Event()

    def on_signals(self) -> None:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self.ask)

    def ask(self) -> None:
        (self.end if self.drain.is_set() else self.drain).set()
