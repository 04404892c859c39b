"""The WebSocket that a carrier opened, as one leg's line."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from struct import pack
from time import monotonic

from aiohttp import WSMsgType, web

from offhook.telephony.carriers.leg_io import CarrierLeg
from offhook.telephony.carriers.stream import CarrierError, Message

WRITE_BUFFER_BYTES = 128 * 1024
"""What waits to be sent, some 4 s of sound in JSON with its marks. A carrier that does not read
for so long has lost the call."""
MAX_MESSAGE_BYTES = 512 * 1024
"""More than a message of any provider has; aiohttp closes the socket (1009) on what is longer."""
HEARTBEAT_SECONDS = 20.0
"""Between WebSocket pings: a carrier whose machine is gone says nothing, and one whose caller is
silent may not either."""
CLOSE_SECONDS = 2.0
"""For the far end to close after us."""


def frame(message: Message) -> bytes:
    """A whole message in one frame, from a server: unmasked (RFC 6455 §5.2)."""
    if isinstance(message, str):
        first, payload = 0x80 | WSMsgType.TEXT, message.encode()
    else:
        first, payload = 0x80 | WSMsgType.BINARY, message
    length = len(payload)
    if length < 126:
        return bytes((first, length)) + payload
    if length < 65_536:
        return pack("!BBH", first, 126, length) + payload
    return pack("!BBQ", first, 127, length) + payload


class StreamSocket:
    """Reads into a leg, and sends what the leg says at once.

    What is sent goes from the packet clock straight to the transport. By aiohttp's own methods,
    which may wait, it would need a queue and a task that is woken for each 20 ms of each call.
    """

    def __init__(self, protocols: tuple[str, ...] = ()) -> None:
        self.websocket = web.WebSocketResponse(
            protocols=protocols,
            max_msg_size=MAX_MESSAGE_BYTES,
            heartbeat=HEARTBEAT_SECONDS,
            compress=False,
            timeout=CLOSE_SECONDS,
        )
        self._transport: asyncio.WriteTransport | None = None
        self._leg: CarrierLeg | None = None

    async def accept(self, request: web.Request) -> None:
        """Raises HTTPBadRequest for what is no WebSocket."""
        await self.websocket.prepare(request)
        self._transport = request.transport

    def send(self, message: Message) -> None:
        """At once, and not at all when the socket is closed. Closes the line when too much
        waits."""
        transport = self._transport
        if transport is None or transport.is_closing() or self.websocket.closed:
            return
        if transport.get_write_buffer_size() > WRITE_BUFFER_BYTES:
            if self._leg is not None:
                self._leg.close("the carrier does not read")
            return
        transport.write(frame(message))

    @asynccontextmanager
    async def line(self, leg: CarrierLeg) -> AsyncIterator[None]:
        """Within it the leg hears and speaks. At the end what was said last is still sent, and
        the socket is closed, as it is when the leg closes first or the far end does."""
        self._leg = leg
        leg.open()
        reading = asyncio.create_task(self._read(leg), name=f"read {leg.call_id}")
        try:
            yield
        finally:
            leg.close("the server closed the stream")
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(CLOSE_SECONDS):
                    await self.websocket.close()
            reading.cancel()
            await asyncio.gather(reading, return_exceptions=True)

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
