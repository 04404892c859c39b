"""Connections to a worker that speaks: one WebSocket each, for one reply after another.

A connection whose reply is over waits for the next, so that it begins without a handshake. So does
one whose reply is cancelled: what is still under way of that reply is passed over when it comes.
"""

import asyncio
from collections import deque
from collections.abc import Coroutine
from contextlib import suppress
from typing import Any, Protocol

import aiohttp

from offhook.media.pcm import RATE_OUT, Pcm
from offhook.media.tasks_io import TaskSet
from offhook.pipeline.speech.remote.tts_protocol import (
    PATH,
    Cancel,
    Command,
    Mark,
    Ready,
    ServerMessage,
    Sound,
    command_text,
    parse_server,
    parse_sound,
    query,
)
from offhook.pipeline.speech.remote.worker_client_io import (
    LOST,
    PING_S,
    SILENCE_S,
    START_TIMEOUT_S,
    Refused,
    WorkerClient,
    message_of,
)
from offhook.pipeline.speech.remote.worker_protocol import Error, ProtocolError
from offhook.pipeline.speech.synthesizer import VoiceOptions

MAX_SPARE = 16
"""Connections that wait for a reply; the one that waited longest gives way."""


class Reply(Protocol):
    """Whose a connection is, from `begin` to `leave` or to its loss."""

    def next_command(self) -> Command | None:
        """What the worker is to be told next."""

    async def hear(self, pcm: Pcm) -> None:
        """More sound. Nothing more is read until this returns."""

    def mark(self, text: str) -> None:
        """It has been spoken. Raises ProtocolError."""

    def finish(self) -> None:
        """All of it has been spoken."""

    def lose(self, error: Exception) -> None:
        """The connection is gone."""


class Connections:
    """Of one client: those in use, and those that wait."""

    def __init__(self, client: WorkerClient) -> None:
        self.client = client
        self.closed = False
        self.voices: tuple[str, ...] = ()
        """Of the worker, as it said last."""
        self._spare: list[Connection] = []
        """The one used last at the end."""
        self._tasks = TaskSet()

    def run(self, coroutine: Coroutine[Any, Any, None], name: str) -> "asyncio.Task[None]":
        """A task that ends with `close` at the latest."""
        return self._tasks.spawn(coroutine, f"speech worker {name}")

    def take(self, options: VoiceOptions) -> "Connection | None":
        """One that waits."""
        for connection in reversed(self._spare):
            if connection.options == options:
                self._spare.remove(connection)
                return connection
        return None

    async def connect(self, options: VoiceOptions) -> "Connection":
        """A new one, of a worker that has loaded. Raises what is in LOST."""
        socket = await self.client.connect(PATH, query(options))
        try:
            ready = _parsed(await message_of(socket, START_TIMEOUT_S))
            if isinstance(ready, Error):
                raise Refused(ready)
            if not isinstance(ready, Ready) or ready.rate != RATE_OUT:
                raise ProtocolError(f"the first message is not ready for {RATE_OUT} Hz")
        except BaseException:
            with suppress(*LOST):
                await socket.close()
            raise
        self.voices = ready.voices
        return Connection(self, socket, options, ready)

    def spare(self, connection: "Connection") -> None:
        """Its reply is over."""
        self._spare.append(connection)
        if len(self._spare) > MAX_SPARE:
            self._spare.pop(0).hang_up()

    def forget(self, connection: "Connection") -> None:
        """It is lost."""
        if connection in self._spare:
            self._spare.remove(connection)

    async def close(self) -> None:
        self.closed = True
        while tasks := [task for task in self._tasks if not task.done()]:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        await self.client.close()


class Connection:
    """One WebSocket, from `ready` to its loss. At most one reply has it at a time."""

    def __init__(
        self,
        pool: Connections,
        socket: aiohttp.ClientWebSocketResponse,
        options: VoiceOptions,
        ready: Ready,
    ) -> None:
        self.options = options
        self.ready = ready
        self._pool = pool
        self._socket = socket
        self._reply: Reply | None = None
        """Whose it is."""
        self._on_wire: deque[Reply | None] = deque()
        """Replies without a done, oldest first; None: cancelled."""
        self._first = 0
        """The number of the oldest."""
        self._to_cancel = False
        self._news = asyncio.Event()
        """Something is to be sent."""
        self._receiving = pool.run(self._receive(), "receive")
        self._sending = pool.run(self._send(), "send")

    def begin(self, reply: Reply) -> None:
        self._reply = reply
        self._news.set()

    def tell(self) -> None:
        """The reply has something to send."""
        self._news.set()

    def leave(self, reply: Reply) -> None:
        """The reply does not want it any more, whether or not it is over."""
        self._reply = None
        if reply in self._on_wire:
            self._on_wire[-1] = None
            self._to_cancel = True
            self._news.set()
        self._pool.spare(self)

    def hang_up(self) -> None:
        self._receiving.cancel()

    # --- from the worker ---

    async def _receive(self) -> None:
        error: Exception = ConnectionError("the synthesizer is closed")
        try:
            while True:
                await self._take(_parsed(await message_of(self._socket, SILENCE_S)))
        except LOST as lost:
            error = lost
        finally:
            self._sending.cancel()
            self._pool.forget(self)
            if self._reply is not None:
                self._reply.lose(error)
            with suppress(*LOST):
                await self._socket.close()

    async def _take(self, message: ServerMessage | Sound) -> None:
        """Raises Refused, ProtocolError."""
        if isinstance(message, Error):
            raise Refused(message)
        if not self._on_wire or isinstance(message, Ready):
            raise ProtocolError("it speaks without a reply")
        reply = self._on_wire[0]
        if isinstance(message, Sound):
            if reply is not None:
                await reply.hear(message.pcm)
            return
        if message.reply != self._first:
            raise ProtocolError(f"reply {message.reply} where {self._first} is due")
        if isinstance(message, Mark):
            if reply is not None:
                reply.mark(message.text)
            return
        self._on_wire.popleft()
        self._first += 1
        if reply is not None:
            reply.finish()

    # --- to the worker ---

    async def _send(self) -> None:
        with suppress(*LOST):  # which the other way finds out too
            while True:
                self._news.clear()
                while (command := self._next_command()) is not None:
                    await self._socket.send_str(command_text(command))
                try:
                    async with asyncio.timeout(PING_S):
                        await self._news.wait()
                except TimeoutError:
                    await self._socket.ping()

    def _next_command(self) -> Command | None:
        if self._to_cancel:
            self._to_cancel = False
            return Cancel()
        reply = self._reply
        if reply is None or (command := reply.next_command()) is None:
            return None
        if not self._on_wire or self._on_wire[-1] is not reply:
            self._on_wire.append(reply)
        return command


def _parsed(data: str | bytes) -> ServerMessage | Sound:
    """Raises ProtocolError."""
    return parse_sound(data) if isinstance(data, bytes) else parse_server(data)
