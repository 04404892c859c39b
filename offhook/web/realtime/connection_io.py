"""One client of a Realtime conversation: a WebSocket that is read and written side by side."""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable

from aiohttp import WSMsgType, web

MAX_QUEUED_CHARS = 32 << 20
"""Characters of events that may wait for a client that reads slowly: minutes of audio. Beyond it,
the connection is closed."""
MAX_EVENT_BYTES = 16 << 20
"""Largest client event: OpenAI allows 15 MiB of audio in one."""
WRITE_TIMEOUT_S = 30.0
"""Time limit in s for one write, after which the client counts as gone."""
SLOW_READER = 1013
"""WebSocket close code "try again later" (IANA registry) for a client that reads too slowly."""


class Connection:
    """Sends events in order; closes the socket of a client that cannot keep up."""

    def __init__(self, socket: web.WebSocketResponse) -> None:
        self._socket = socket
        self._waiting: deque[str] = deque()
        self._chars = 0
        self._wake = asyncio.Event()
        self._close: tuple[int, str] | None = None
        """Code and reason to close with once all events are sent."""

    def send(self, text: str) -> None:
        """Queues an event."""
        if self._close is not None:
            return
        if self._chars + len(text) > MAX_QUEUED_CHARS:
            self._waiting.clear()
            self.close(SLOW_READER, "events are read too slowly")
            return
        self._waiting.append(text)
        self._chars += len(text)
        self._wake.set()

    def close(self, code: int, reason: str) -> None:
        """Closes the socket once the queued events are sent."""
        if self._close is None:
            self._close = code, reason
            self._wake.set()

    async def run(
        self, receive: Callable[[str], Awaitable[None]], refuse: Callable[[], None]
    ) -> None:
        """Reads and writes until either side closes. `receive` handles a text message, `refuse` a
        binary one; the next message is read when it returns."""
        writer = asyncio.create_task(self._write(), name="realtime writer")
        try:
            async for message in self._socket:
                if message.type is WSMsgType.TEXT:
                    await receive(message.data)
                elif message.type is WSMsgType.BINARY:
                    refuse()
                await asyncio.sleep(0)  # a client that floods must not hold up the calls
        finally:
            writer.cancel()
            await asyncio.gather(writer, return_exceptions=True)

    async def _write(self) -> None:
        while True:
            await self._wake.wait()
            self._wake.clear()
            try:
                async with asyncio.timeout(WRITE_TIMEOUT_S):
                    while self._waiting:
                        text = self._waiting.popleft()
                        self._chars -= len(text)
                        await self._socket.send_str(text)
                    if self._close is not None:
                        code, reason = self._close
                        await self._socket.close(code=code, message=reason.encode())
                        return
            except (TimeoutError, ConnectionError):
                await self._socket.close()
                return
