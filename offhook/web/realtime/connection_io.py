"""One client of a Realtime conversation: a WebSocket that is read and written side by side."""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from contextlib import suppress

from aiohttp import WSMessage, WSMsgType, web

MAX_QUEUED_CHARS = 32 << 20
"""Characters of events that may wait for a client that reads slowly: minutes of audio. Beyond it,
the connection is closed."""
MAX_EVENT_BYTES = 16 << 20
"""Maximum size of a client's message; for a longer one the connection is closed with code 1009.
OpenAI allows 15 MiB of audio in one."""
MAX_UNHANDLED = 16
"""Messages that may wait to be handled, as before a call is answered; then no more are read."""
LARGE_BYTES = 1 << 20
"""Size of a message until whose end no more are read."""
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
        self,
        receive: Callable[[str], Awaitable[None]],
        refuse: Callable[[], None],
        first: str | None = None,
    ) -> None:
        """Reads and writes until either side closes. `receive` handles a text message, `refuse` a
        binary one; the next message is handled when it returns. Pings are answered meanwhile,
        unless MAX_UNHANDLED messages wait. `first`: a message that was read before."""
        unhandled: asyncio.Queue[WSMessage | None] = asyncio.Queue(MAX_UNHANDLED)
        if first is not None:
            unhandled.put_nowait(WSMessage(WSMsgType.TEXT, first, None))
        reader = asyncio.create_task(self._read(unhandled), name="realtime reader")
        writer = asyncio.create_task(self._write(), name="realtime writer")
        try:
            while (message := await unhandled.get()) is not None:
                if message.type is WSMsgType.TEXT:
                    await receive(message.data)
                else:
                    refuse()
                unhandled.task_done()
                await asyncio.sleep(0)  # a client that floods must not hold up the calls
        finally:
            for task in (reader, writer):
                task.cancel()
            await asyncio.gather(reader, writer, return_exceptions=True)

    async def _read(self, unhandled: asyncio.Queue[WSMessage | None]) -> None:
        with suppress(ConnectionError):
            async for message in self._socket:
                if message.type is WSMsgType.PING:
                    await self._socket.pong(message.data)
                elif message.type is not WSMsgType.PONG:
                    await unhandled.put(message)
                    if len(message.data) > LARGE_BYTES:
                        await unhandled.join()
        await unhandled.put(None)

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
