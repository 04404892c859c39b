"""Pooled connections to TTS workers: one WebSocket each, for one reply after another.

After a reply, even a cancelled one, its connection is kept for the next, which saves the handshake;
what still arrives for a cancelled reply is ignored. Where there are several workers, a reply in
progress has an idle connection to another one beside it, so that failing over costs no handshake.
"""

import asyncio
from collections import deque
from collections.abc import Collection, Coroutine
from contextlib import suppress
from typing import Any, Protocol

import aiohttp
import numpy as np

from offhook.media.pcm import RATE_OUT, Pcm
from offhook.media.tasks_io import TaskSet
from offhook.pipeline.speech.remote.pool import WorkerEvent
from offhook.pipeline.speech.remote.pool_io import Workers
from offhook.pipeline.speech.remote.tts_protocol import (
    PATH,
    Cancel,
    Command,
    Mark,
    Ready,
    ServerMessage,
    command_text,
    parse_server,
    query,
)
from offhook.pipeline.speech.remote.worker_client_io import (
    CLOSE_TIMEOUT_S,
    LOST,
    PING_S,
    SILENCE_S,
    START_TIMEOUT_S,
    WorkerClient,
    WorkerRefused,
    content_of,
    message_of,
)
from offhook.pipeline.speech.remote.worker_protocol import (
    Draining,
    Error,
    ProtocolError,
    samples_of,
)
from offhook.pipeline.speech.streams.quarantine_io import Quarantine
from offhook.pipeline.speech.synthesizer import VoiceOptions

MAX_SPARE = 16
"""Maximum idle connections; the one idle the longest is closed."""


class Reply(Protocol):
    """The user of a connection from `begin` to `leave` or its loss."""

    def next_command(self) -> Command | None:
        """Returns the next command for the worker."""

    async def receive_audio(self, pcm: Pcm) -> None:
        """Adds audio; nothing more is read until this returns."""

    def mark(self, text: str) -> None:
        """Marks text as spoken. Raises ProtocolError."""

    def finish(self) -> None:
        """Completes the reply."""

    def lose(self, error: Exception) -> None:
        """Handles the loss of the connection."""

    def hedge(self) -> bool:
        """Requests what has no mark from another worker as well, since this one is silent; returns
        whether it was not doing so already."""


class ConnectionPool:
    """The connections to the workers, in use and idle."""

    def __init__(self, workers: Workers) -> None:
        self.workers = workers
        self.closed = False
        self.voices: tuple[str, ...] = ()
        """The worker's voices, as last reported."""
        self._spare: list[Connection] = []
        """Idle connections, most recently used last."""
        self._opening: set[VoiceOptions] = set()
        """Options for which a further connection is being opened."""
        self.quarantine = Quarantine()
        self._tasks = TaskSet()

    def run(self, coroutine: Coroutine[Any, Any, None], name: str) -> "asyncio.Task[None]":
        """Starts a task that is cancelled by `close`."""
        return self._tasks.spawn(coroutine, f"speech worker {name}")

    def acquire(
        self, options: VoiceOptions, avoid: Collection[WorkerClient] = ()
    ) -> "Connection | None":
        """Returns an idle connection for these options to a worker that is ready, or None."""
        idle = [
            connection
            for connection in self._spare
            if connection.options == options and connection.worker not in avoid
        ]
        chosen = self.workers.choose_among({connection.worker for connection in idle})
        for connection in reversed(idle):
            if connection.worker is chosen:
                self._spare.remove(connection)
                return connection
        return None

    async def connect(
        self, options: VoiceOptions, avoid: Collection[WorkerClient] = ()
    ) -> "Connection":
        """Opens a connection to a loaded worker. Raises any of LOST."""
        asked = query(options)
        worker, socket, ready = await self.workers.connect(
            PATH, asked, _ready_of, avoid, autoping=False
        )
        self.voices = ready.voices
        return Connection(self, worker, socket, options, ready)

    def prepare_other(self, connection: "Connection") -> None:
        """Makes sure that there is an idle connection to a worker other than that of
        `connection`."""
        options = connection.options
        if not self.workers.several or options in self._opening:
            return
        if all(s.options != options or s.worker is connection.worker for s in self._spare):
            self._opening.add(options)
            self.run(self._open_other(connection), "spare")

    async def _open_other(self, connection: "Connection") -> None:
        options = connection.options
        try:
            with suppress(*LOST):
                self.spare(await self.connect(options, (connection.worker,)))
        finally:
            self._opening.discard(options)

    def spare(self, connection: "Connection") -> None:
        """Returns a connection to the pool after its reply."""
        if connection.is_draining:
            connection.hang_up()
            return
        self._spare.append(connection)
        if len(self._spare) > MAX_SPARE:
            self._spare.pop(0).hang_up()

    def forget(self, connection: "Connection") -> None:
        """Removes a lost connection."""
        if connection in self._spare:
            self._spare.remove(connection)

    def drain(self, connection: "Connection") -> None:
        """Closes a connection to a draining worker, if it is idle."""
        if connection in self._spare:
            self._spare.remove(connection)
            connection.hang_up()

    async def close(self) -> None:
        self.closed = True
        while tasks := [task for task in self._tasks if not task.done()]:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        await self.workers.close()


class Connection:
    """One WebSocket, from `ready` to its loss, used by at most one reply at a time."""

    def __init__(
        self,
        pool: ConnectionPool,
        worker: WorkerClient,
        socket: aiohttp.ClientWebSocketResponse,
        options: VoiceOptions,
        ready: Ready,
    ) -> None:
        self.worker = worker
        self.options = options
        self.ready = ready
        self.is_draining = False
        """Whether the worker will stop; the connection is used for no further reply."""
        self._pool = pool
        self._socket = socket
        self._reply: Reply | None = None
        """The current user."""
        self._on_wire: deque[Reply | None] = deque()
        """Replies without a done, oldest first; None: cancelled."""
        self._first = 0
        """Number of the oldest reply."""
        self._to_cancel = False
        self._is_throttled = False
        """Whether it is not read, because enough audio is unread."""
        self._error: Exception = ConnectionError("the synthesizer is closed")
        self._news = asyncio.Event()
        """Set when there is something to send."""
        self._receiving = pool.run(self._receive(), "receive")
        self._sending = pool.run(self._send(), "send")
        pool.workers.join(worker, self)

    @property
    def is_lost(self) -> bool:
        return self._receiving.done()

    def begin(self, reply: Reply) -> None:
        self._reply = reply
        self._news.set()

    def wake(self) -> None:
        """Signals that the reply has something to send."""
        self._news.set()

    def leave(self, reply: Reply) -> None:
        """Releases the connection, whether or not the reply is complete."""
        self._reply = None
        if reply in self._on_wire:
            self._on_wire[-1] = None
            self._to_cancel = True
            self._news.set()
        self._pool.spare(self)

    def abandon(self) -> None:
        """Closes the connection, whose reply goes on elsewhere."""
        self._reply = None
        self.hang_up()

    def hang_up(self) -> None:
        self._receiving.cancel()

    # --- see pool_io.WorkerStream ---

    def is_awaited(self) -> bool:
        return bool(self._on_wire) and not self._is_throttled

    def ping(self) -> None:
        if not self.is_lost:
            self._pool.run(self._ping(), "ping")

    async def _ping(self) -> None:
        with suppress(*LOST):
            async with asyncio.timeout(CLOSE_TIMEOUT_S):
                await self._socket.ping()

    def replay(self) -> bool:
        return self._reply is not None and self._reply.hedge()

    def move(self) -> bool:
        """The next reply uses another connection."""
        was_draining, self.is_draining = self.is_draining, True
        self._pool.drain(self)
        return not was_draining

    # --- from the worker ---

    async def _receive(self) -> None:
        workers = self._pool.workers
        try:
            while True:
                frame = await self._socket.receive(SILENCE_S)
                if frame.type is aiohttp.WSMsgType.PING:
                    await self._socket.pong(frame.data)
                elif frame.type is not aiohttp.WSMsgType.PONG:
                    message = _parsed(content_of(self._socket, frame))
                    workers.report(self.worker, WorkerEvent.DATA)
                    await self._handle(message)
                    continue
                workers.report(self.worker, WorkerEvent.DATA)
        except LOST as lost:
            self._error = lost
            workers.report_failure(self.worker, lost)
        finally:
            self._sending.cancel()
            workers.leave(self.worker, self)
            self._pool.forget(self)
            if self._reply is not None:
                self._reply.lose(self._error)
            with suppress(*LOST):
                await self._socket.close()

    async def _handle(self, message: ServerMessage | Pcm) -> None:
        """Handles a message. Raises WorkerRefused, ProtocolError."""
        if isinstance(message, Error):
            raise WorkerRefused(message)
        if isinstance(message, Draining):
            self.move()
            self._pool.workers.report(self.worker, WorkerEvent.DRAINING)
            return
        if not self._on_wire or isinstance(message, Ready):
            raise ProtocolError("it speaks without a reply")
        reply = self._on_wire[0]
        if isinstance(message, np.ndarray):
            if reply is not None:
                self._is_throttled = True
                await reply.receive_audio(message)
                self._is_throttled = False
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
        with suppress(*LOST):  # the receiving side detects it too
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


async def _ready_of(socket: aiohttp.ClientWebSocketResponse) -> Ready:
    """Waits until the worker has loaded. Raises any of LOST."""
    ready = _parsed(await message_of(socket, START_TIMEOUT_S))
    if isinstance(ready, Error):
        raise WorkerRefused(ready)
    if not isinstance(ready, Ready) or ready.rate != RATE_OUT:
        raise ProtocolError(f"the first message is not ready for {RATE_OUT} Hz")
    return ready


def _parsed(data: str | bytes) -> ServerMessage | Pcm:
    """Parses a message. Raises ProtocolError."""
    return samples_of(data) if isinstance(data, bytes) else parse_server(data)
