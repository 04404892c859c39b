"""A far end over a real connection: WebSocket (ws:, wss:) or TCP (tcp:), with the way in between.

A connection keeps its messages in order, so a way has delay and jitter; Telnyx, which promises no
order, takes the disorder as an option of its far end.
"""

import asyncio
from asyncio import StreamReader, StreamWriter
from collections.abc import Mapping
from dataclasses import dataclass
from random import Random
from time import monotonic
from typing import Protocol
from urllib.parse import urlsplit

import aiohttp
import numpy as np
import soxr

from benchmarks.carriers.far_ends.far_end import FarEnd, Message
from benchmarks.carriers.far_ends.far_end_asterisk import AudioSocket, ChanWebSocket
from benchmarks.carriers.far_ends.far_end_binary import Genesys, Vonage
from benchmarks.carriers.far_ends.far_end_json import Exotel, Plivo, Telnyx, Twilio
from offhook.media.pcm import Pcm
from offhook.web.app.callers.twilio.webhook_io import CONNECT_S as CONNECT_S
from offhook.web.app.callers.twilio.webhook_io import Refused as Refused

FAR_ENDS: dict[str, type[FarEnd]] = {
    kind.provider: kind
    for kind in (Twilio, Telnyx, Plivo, Exotel, Vonage, Genesys, AudioSocket, ChanWebSocket)
}
READ_BYTES = 65_536


def at_rate(pcm: Pcm, rate_in: int, rate_out: int) -> Pcm:
    """A whole sound at another rate, of best quality."""
    return pcm if rate_in == rate_out else soxr.resample(pcm, rate_in, rate_out).astype(np.int16)


@dataclass(frozen=True)
class Way:
    """What lies between far end and application, in each direction."""

    delay_ms: float = 0.0
    jitter_ms: float = 0.0
    """Up to so much is added to each message's delay."""


class Wire(Protocol):
    async def send(self, message: Message) -> None: ...

    async def receive(self) -> Message | None:
        """None at the end."""

    async def close(self) -> None: ...


class WebSocketWire:
    def __init__(self, http: aiohttp.ClientSession, socket: aiohttp.ClientWebSocketResponse):
        self._http, self._socket = http, socket

    @classmethod
    async def connect(
        cls, url: str, headers: Mapping[str, str], protocols: tuple[str, ...] = ()
    ) -> "WebSocketWire":
        http = aiohttp.ClientSession()
        try:
            async with asyncio.timeout(CONNECT_S):
                socket = await http.ws_connect(
                    url, headers=headers, protocols=protocols, max_msg_size=0
                )
        except (aiohttp.ClientError, TimeoutError) as error:
            await http.close()
            raise Refused(f"{url}: {error or 'no answer'}") from error
        return cls(http, socket)

    async def send(self, message: Message) -> None:
        if isinstance(message, bytes):
            await self._socket.send_bytes(message)
        else:
            await self._socket.send_str(message)

    async def receive(self) -> Message | None:
        message = await self._socket.receive()
        if message.type in (aiohttp.WSMsgType.TEXT, aiohttp.WSMsgType.BINARY):
            data: Message = message.data
            return data
        return None

    async def close(self) -> None:
        await self._socket.close()
        await self._http.close()


class TcpWire:
    def __init__(self, reader: StreamReader, writer: StreamWriter) -> None:
        self._reader, self._writer = reader, writer

    @classmethod
    async def connect(cls, host: str, port: int) -> "TcpWire":
        try:
            async with asyncio.timeout(CONNECT_S):
                return cls(*await asyncio.open_connection(host, port))
        except (OSError, TimeoutError) as error:
            raise Refused(f"{host}:{port}: {error or 'no answer'}") from error

    async def send(self, message: Message) -> None:
        assert isinstance(message, bytes)
        self._writer.write(message)
        await self._writer.drain()

    async def receive(self) -> Message | None:
        return await self._reader.read(READ_BYTES) or None

    async def close(self) -> None:
        self._writer.close()
        await asyncio.gather(self._writer.wait_closed(), return_exceptions=True)


async def connect(url: str, headers: Mapping[str, str] | None = None) -> Wire:
    """Raises Refused."""
    parts = urlsplit(url)
    if parts.scheme == "tcp":
        return await TcpWire.connect(parts.hostname or "", parts.port or 0)
    return await WebSocketWire.connect(url, headers or {})


class FarEndCall:
    """One far end and its connection."""

    def __init__(self, far_end: FarEnd, way: Way | None = None, clocked: bool = True) -> None:
        """`clocked`: the far end's clock is kept here; else somebody calls its `tick`, and `flush`
        afterwards."""
        self.far_end = far_end
        self.ended = asyncio.Event()
        """The connection is closed, from either side."""
        self.came = 0
        """Messages of the application."""
        self._way = way or Way()
        self._clocked = clocked
        self._chance = Random(1)
        self._there = self._back = 0.0
        """When the last message on its way arrives."""
        self._wire: Wire | None = None
        self._due: asyncio.Queue[tuple[float, Message | None]] = asyncio.Queue()
        self._timer: asyncio.TimerHandle | None = None
        self._tasks: list[asyncio.Task[None]] = []

    async def start(self, url: str, headers: Mapping[str, str] | None = None) -> None:
        """Raises Refused."""
        self._wire = await connect(url, headers)
        self.far_end.open(monotonic())
        self._tasks = [asyncio.create_task(self._read()), asyncio.create_task(self._write())]
        self._work()

    async def close(self) -> None:
        """The caller hangs up if the call still is."""
        if not self.ended.is_set() and self._wire is not None:
            if self.far_end.closed is None:
                self.far_end.hang_up()
            self.flush()
            await self._settle()
        await self._shut()

    async def _settle(self) -> None:
        """For what is said at the end, and what is answered to it."""
        wait = (4 * (self._way.delay_ms + self._way.jitter_ms)) / 1000 + 0.5
        try:
            async with asyncio.timeout(wait):
                while self.far_end.closed is None or not self._due.empty():
                    await asyncio.sleep(0.005)
                await asyncio.sleep(2 * self._way.delay_ms / 1000)
        except TimeoutError:
            pass

    async def _shut(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self._wire is not None:
            await self._wire.close()
        self.ended.set()

    # --- the two ways ---

    def _arrives(self, after: float) -> float:
        delay = self._way.delay_ms + self._chance.uniform(0, self._way.jitter_ms)
        return max(after, monotonic() + delay / 1000)

    async def _read(self) -> None:
        assert self._wire is not None
        loop = asyncio.get_running_loop()
        while (message := await self._wire.receive()) is not None:
            self._back = self._arrives(self._back)
            wait = self._back - monotonic()
            if wait > 0:
                loop.call_later(wait, self._arrived, message)
            else:
                self._arrived(message)
        self.ended.set()

    def _arrived(self, message: Message) -> None:
        self.came += 1
        self.far_end.receive(message, monotonic())
        self._work()

    async def _write(self) -> None:
        assert self._wire is not None
        while True:
            at, message = await self._due.get()
            if (wait := at - monotonic()) > 0:
                await asyncio.sleep(wait)
            if message is None:
                break
            try:
                await self._wire.send(message)
            except (OSError, aiohttp.ClientError):
                break
        await self._wire.close()
        self.ended.set()

    def flush(self) -> None:
        """What the far end has to say goes on its way."""
        for message in self.far_end.messages_to_send():
            self._there = self._arrives(self._there)
            self._due.put_nowait((self._there, message))
        if self.far_end.closed is not None and not self.ended.is_set():
            self._there = self._arrives(self._there)
            self._due.put_nowait((self._there, None))

    def _work(self) -> None:
        if self._clocked:
            self.far_end.handle_timer(monotonic())
        self.flush()
        at = self.far_end.get_timer() if self._clocked else None
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if at is not None:
            wait = max(0.0, at - monotonic())
            self._timer = asyncio.get_running_loop().call_later(wait, self._work)

    # --- the caller ---

    def say(self, pcm: Pcm, rate: int) -> None:
        self.far_end.say(at_rate(pcm, rate, self.far_end.rate))

    async def said(self) -> None:
        """Until all has been said, or the call is over."""
        while self.far_end.saying and not self.ended.is_set():
            await asyncio.sleep(0.01)
