"""The WebSocket that a carrier opened, as one leg's line."""

import asyncio
import contextlib
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from time import monotonic

from aiohttp import WSMsgType, web

from offhook.telephony.carriers.leg_io import CarrierLeg
from offhook.telephony.carriers.stream import CarrierError, Message

SEND_QUEUE = 300
"""Messages that wait to be sent, some 3 s of sound with its marks. A carrier that does not read
for so long has lost the call."""
MAX_MESSAGE_BYTES = 512 * 1024
"""More than a message of any provider has; aiohttp closes the socket (1009) on what is longer."""
HEARTBEAT_SECONDS = 20.0
"""Between WebSocket pings: a carrier whose machine is gone says nothing, and one whose caller is
silent may not either."""
CLOSE_SECONDS = 2.0
"""For the far end to close after us."""


class StreamSocket:
    """Reads into a leg, and sends what the leg says without holding it up."""

    def __init__(self, protocols: tuple[str, ...] = ()) -> None:
        self.websocket = web.WebSocketResponse(
            protocols=protocols,
            max_msg_size=MAX_MESSAGE_BYTES,
            heartbeat=HEARTBEAT_SECONDS,
            compress=False,
            timeout=CLOSE_SECONDS,
        )
        self._queue: deque[Message] = deque()
        self._queued = asyncio.Event()
        self._leg: CarrierLeg | None = None

    def send(self, message: Message) -> None:
        """Soon. Closes the line when too much waits."""
        if len(self._queue) >= SEND_QUEUE:
            if self._leg is not None:
                self._leg.close("the carrier does not read")
            return
        self._queue.append(message)
        self._queued.set()

    @asynccontextmanager
    async def line(self, leg: CarrierLeg) -> AsyncIterator[None]:
        """Within it the leg hears and speaks. At the end what was said last is still sent, and
        the socket is closed, as it is when the leg closes first or the far end does."""
        self._leg = leg
        leg.open()
        reading = asyncio.create_task(self._read(leg), name=f"read {leg.call_id}")
        writing = asyncio.create_task(self._write(), name=f"write {leg.call_id}")
        try:
            yield
        finally:
            leg.close("the server closed the stream")
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(CLOSE_SECONDS):
                    while self._queue and not writing.done():
                        await asyncio.sleep(0.01)
                    await self.websocket.close()
            for task in (reading, writing):
                task.cancel()
            await asyncio.gather(reading, writing, return_exceptions=True)

    async def _read(self, leg: CarrierLeg) -> None:
        try:
            async for message in self.websocket:
                if message.type not in (WSMsgType.TEXT, WSMsgType.BINARY):
                    break
                leg.receive(message.data, monotonic())
                if leg.closed is not None:
                    break
        except CarrierError as error:
            leg.close(str(error))
        finally:
            fault = self.websocket.exception()
            leg.close("the carrier closed the stream" if fault is None else f"the socket: {fault}")

    async def _write(self) -> None:
        with contextlib.suppress(ConnectionError):
            while True:
                await self._queued.wait()
                self._queued.clear()
                while self._queue:
                    message = self._queue.popleft()
                    if isinstance(message, str):
                        await self.websocket.send_str(message)
                    else:
                        await self.websocket.send_bytes(message)
