"""Fronts of a worker: processes with its WebSockets and voices, before the one with the engine.

A process runs one thread of Python at a time, and what a voice costs between the engine and the
socket is several times what its frames cost; a recognizer's sockets take half as much of it as
its inference. So a worker with many streams leaves its WebSockets and its requests for speech to
others: it reads each request and admits it, then hands the connection over to the front that has
the fewest, and keeps its place in the admission until the front says that it has closed. After a
request for speech the connection is the worker's again: it has kept it, and reads on. A front that
ends is started again; its connections are lost, the streams of their replies are freed, and all
others go on.
"""

import asyncio
import os
import pickle
import socket
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import count
from typing import Any, Protocol, runtime_checkable

from aiohttp import web
from loguru import logger

from offhook.media.tasks_io import first_of
from offhook.pipeline.engines.shared.process_link_io import Failed, ProcessLink
from offhook.pipeline.engines.shared.recognition.far_recognizer_io import FromRecognizer
from offhook.pipeline.engines.shared.synthesis.far_streams_io import FromEngine
from offhook.pipeline.speech.errors import EngineFailed
from offhook.pipeline.speech.synthesizer import Speech
from offhook.processes.child_io import Child, until_silent
from offhook.processes.restarts import Restarts
from offhook.web.http.handed_over_io import HandedOver, packed_head
from offhook.web.http.logs_io import configured
from offhook.web.speech_api.admission import Kind, Ticket
from offhook.web.speech_api.disconnect_io import ELSEWHERE
from offhook.web.speech_api.errors import ApiError
from offhook.web.speech_api.reply_cache_io import Keep
from offhook.web.speech_api.server_io import CONTEXT, SpeechServer
from offhook.web.speech_api.sockets.engine_metrics import AsrMetrics
from offhook.web.workers.front_protocol import (
    BEAT_S,
    MAX_CONNECTION_BYTES,
    Answered,
    Beat,
    Begun,
    Closed,
    Connection,
    Counted,
    Drain,
    Granted,
    Rest,
    Setup,
    Spoken,
    Stop,
    ToFront,
    ToWorker,
    Use,
)

COMMAND: Sequence[str] = (sys.executable, "-m", "offhook.web.workers.front_io")
STREAMS_PER_FRONT: Mapping[Kind, int] = {"speech": 128, "transcription": 256}
"""Streams in use of a worker for each front; with fewer it has none. Sound that comes costs less
than sound that leaves."""
CORES_PER_FRONT = 4
"""Cores of the machine for each: the engine, recognizers and edges need some, too."""
BEGIN_S = 60.0
"""Time limit in s for a front to begin; then it is ended, an error is logged, and another is
started."""
AGAIN_S = 0.5
"""First pause in s before a front that has ended is started again; it doubles with each crash of
the last STEADY_S."""
STEADY_S = 60.0
"""Uptime in s from which a front's earlier crashes do not count."""
END_S = 5.0
MAX_MISSED_BEATS = 10
"""Beats that may be missed before a front counts as hung and is killed."""
MAX_REQUEST_BYTES = 1 << 17
"""Maximum request for speech, with its body, that a front gets; a longer one does not fit through
the socket, and the worker answers it."""
REQUEST_ID = b"x-request-id"
FRAMING = (b"content-length", b"transfer-encoding", b"content-encoding", b"expect")
"""Headers of a body as it came, which is handed over as it is."""


def fronts_for(kind: Kind, streams: int) -> int:
    """Returns how many fronts a worker with so many streams has on this machine."""
    cores = len(os.sched_getaffinity(0)) if sys.platform == "linux" else 0
    return min(streams // STREAMS_PER_FRONT[kind], cores // CORES_PER_FRONT)


@runtime_checkable
class ServesFar(Protocol):
    """An engine whose streams may be used in other processes."""

    @property
    def far_settings(self) -> Any:
        """What its `connect(send)` returns there is the engine as it is there, and what receives
        the messages for it."""

    def door(self, send: Callable[[Any], None]) -> "Door": ...


class Door(Protocol):
    """An engine's streams for one other process."""

    def receive(self, said: Any) -> None: ...

    async def close(self) -> None:
        """Frees them: the other process has ended."""


class SpokenByFront(HandedOver):
    """That to a request for speech, after which the client may send another."""

    def __init__(
        self, status: int, transport: asyncio.Transport, closed: "asyncio.Future[bool]"
    ) -> None:
        super().__init__(status)
        self._transport, self._closed = transport, closed
        self._reusable = False

    async def write_eof(self, data: bytes = b"") -> None:
        """Waits until the front has sent all of it. Raises ConnectionError."""
        self._reusable = await self._closed
        if self._reusable:
            self._transport.resume_reading()

    @property
    def keep_alive(self) -> bool:
        return self._reusable


@dataclass(eq=False)
class HandedOverConnection:
    closed: "asyncio.Future[bool]"
    """The front has closed it: whether the client may send another request on it."""
    ticket: Ticket | None = None
    """Of a WebSocket; None: refused, or no WebSocket."""
    answered: "asyncio.Future[Answered] | None" = None
    """Of a request for speech."""
    keep: Keep | None = None
    """Caches its reply."""

    def fail(self, error: ConnectionError) -> None:
        for future in (self.closed, self.answered):
            if future is not None and not future.done():
                future.set_exception(error)
                future.exception()  # nobody may wait for it any more


class RunningFront:
    """One front, from its start to its end."""

    def __init__(self, server: SpeechServer, kind: Kind, engine: ServesFar) -> None:
        self.connections: dict[int, HandedOverConnection] = {}
        self.begun = asyncio.Event()
        self._server, self._kind = server, kind
        self._numbers = count()
        self._door = engine.door(self._report)
        self._engine = engine
        self._child: Child | None = None
        self._link: ProcessLink | None = None
        self._ended = asyncio.Event()
        self._connections_lost = 0
        self._beats = 0
        self._handover, self._far_handover = socket.socketpair(
            socket.AF_UNIX, socket.SOCK_SEQPACKET
        )

    async def start(self, settings: Any) -> None:
        """Starts the process and waits until it takes connections. Raises OSError."""
        ours, its = socket.socketpair()
        self._handover.setblocking(False)
        with its, self._far_handover as far:
            # our standard output may be read by somebody
            child = self._child = Child(COMMAND, stdout=2, sockets=(its, far))
        logger.bind(pid=child.pid).info("front started (pid {})", child.pid)
        self._link = await ProcessLink.over(ours, self._receive, self._lost)
        far = self._engine.far_settings
        self.send(Setup(settings, far, self._kind, self._server.id, configured()))
        await child.until_ready(self.begun.wait(), BEGIN_S)

    def send(self, message: ToFront) -> None:
        if self._link is not None:
            self._link.send(message)

    def _report(self, said: FromEngine | FromRecognizer) -> None:
        if isinstance(said, Failed) and isinstance(said.error, EngineFailed):
            self._server.engine_broke(said.error)
        self.send(said)

    async def serve(self, request: web.Request) -> web.StreamResponse | None:
        """Hands the connection over and returns when it has closed; None if it cannot."""
        transport, context = request.transport, request[CONTEXT]
        if transport is None:
            raise ConnectionResetError("the client has gone")
        number, refused, ticket = next(self._numbers), None, None
        with ExitStack() as admitted:
            try:
                ticket = admitted.enter_context(self._server.stream(self._kind, context))
            except ApiError as error:
                refused = error  # the front answers, on the socket if that is the protocol
            free = self._server.free(self._kind)
            if not self._pass(transport, Connection(number, _packed(request), free, refused)):
                return None
            connection = HandedOverConnection(asyncio.get_running_loop().create_future(), ticket)
            self.connections[number] = connection
            try:
                await connection.closed
            finally:
                del self.connections[number]
                transport.abort()
        return HandedOver(101)

    async def speak(
        self, request: web.Request, body: bytes, keep: Keep | None
    ) -> web.StreamResponse | None:
        """Hands a request for speech over, whose turn has come, and returns when the front has
        answered; None if it cannot. Raises ConnectionError."""
        transport, context = request.transport, request[CONTEXT]
        if transport is None:
            raise ConnectionResetError("the client has gone")
        number, packed = next(self._numbers), _packed(request, body)
        if len(packed) > MAX_REQUEST_BYTES:
            return None
        stages, loop = context.stages, asyncio.get_running_loop()
        handed = Connection(number, packed, stages=stages, kept=keep is not None)
        if not self._pass(transport, handed):
            return None
        request[ELSEWHERE] = True
        answered: asyncio.Future[Answered] = loop.create_future()
        connection = HandedOverConnection(loop.create_future(), answered=answered, keep=keep)
        self.connections[number] = connection
        try:
            answer = await answered
        except BaseException:
            self.connections.pop(number, None)
            transport.abort()
            raise
        context.stages, context.labels = answer.stages, answer.labels
        self._server.count_audio(context, answer.audio_s)
        return SpokenByFront(answer.status, transport, connection.closed)

    def _pass(self, transport: asyncio.Transport, connection: Connection) -> bool:
        """Passes the connection on, of which no more is read; returns whether the front takes
        it."""
        transport.pause_reading()
        if self._send(transport, connection):
            return True
        transport.resume_reading()
        return False

    def _send(self, transport: asyncio.Transport, connection: Connection) -> bool:
        file, packed = transport.get_extra_info("socket").fileno(), pickle.dumps(connection)
        if len(packed) > MAX_CONNECTION_BYTES:
            return False
        try:
            socket.send_fds(self._handover, [packed], [file])
        except OSError as error:  # it hangs, or has ended
            logger.warning("a front takes no connection: {}", error)
            return False
        return True

    # --- what it says ---

    def _receive(self, message: ToWorker) -> None:
        match message:
            case Counted():
                self._count(message)
            case Use(number, always):
                self._use(number, always=always)
            case Rest(number):
                self._rest(number)
            case Spoken(number, pieces):
                self._keep(number, pieces)
            case Answered():
                self._answered(message)
            case Closed(number, reusable):
                self._connection_closed(number, reusable)
            case Begun():
                self.begun.set()
                self._beats += 1
            case Beat():
                self._beats += 1
            case _:
                self._door.receive(message)

    def _use(self, number: int, *, always: bool) -> None:
        if (connection := self.connections.get(number)) is None:
            return
        assert connection.ticket is not None
        refused = None
        try:
            self._server.use(connection.ticket, always=always)
        except ApiError as error:
            refused = error
        if not always:
            self.send(Granted(number, refused))

    def _rest(self, number: int) -> None:
        connection = self.connections.get(number)
        if connection is not None and connection.ticket and connection.ticket.lane == "stream":
            self._server.rest(connection.ticket)

    def _keep(self, number: int, pieces: Sequence[Speech]) -> None:
        connection = self.connections.get(number)
        if connection is not None and connection.keep is not None:
            connection.keep(pieces)

    def _answered(self, answer: Answered) -> None:
        connection = self.connections.get(answer.number)
        if connection is not None and connection.answered is not None:
            connection.answered.set_result(answer)

    def _connection_closed(self, number: int, reusable: bool) -> None:
        if (connection := self.connections.get(number)) is None or connection.closed.done():
            return
        connection.closed.set_result(reusable)
        if connection.answered is not None:
            del self.connections[number]
            if not connection.answered.done():
                connection.answered.set_exception(ConnectionResetError("the client has gone"))

    def _count(self, counted: Counted) -> None:
        server = self._server
        server.metrics.audio[self._kind].inc(counted.audio_s)
        server.count_stream_audio(counted.audio_s)
        if counted.first_s >= 0:
            server.reply_began(counted.first_s)
        if counted.reply:
            server.reply_ended(counted.reply)
        if counted.final_s >= 0:
            server.final_sent(counted.final_s)
        if counted.turn_s >= 0:
            server.turn_judged(counted.turn_s, counted.turn_answered)
        if counted.stages is not None and isinstance(server.engine_metrics, AsrMetrics):
            server.engine_metrics.observe(counted.stages)
        if counted.stream:
            server.stream_ended(counted.stream)

    # --- its end ---

    async def watch(self) -> None:
        """Waits until it has ended, and kills it if it hangs."""
        await first_of(self._ended.wait(), self._until_hung())

    async def _until_hung(self) -> None:
        await until_silent(lambda: self._beats, BEAT_S, MAX_MISSED_BEATS)
        logger.error("a front hangs: it is killed")
        assert self._child is not None
        self._child.kill()

    def _lost(self) -> None:
        self._connections_lost = len(self.connections)
        for connection in self.connections.values():
            connection.fail(ConnectionResetError("its front has ended"))
        self._ended.set()

    @property
    def how_ended(self) -> str:
        assert self._child is not None
        return f"a front {self._child.how_ended}, with {self._connections_lost} connections"

    async def close(self) -> None:
        """Ends the process, which ends when the link does."""
        await self._door.close()
        self._handover.close()
        self._far_handover.close()
        if self._link is not None:
            self._link.close()
        if self._child is not None:
            await self._child.end(END_S)


class Fronts:
    """The fronts of a worker; those that end are started again."""

    def __init__(self, server: SpeechServer, kind: Kind, engine: ServesFar, settings: Any) -> None:
        self._server, self._kind = server, kind
        self._engine, self._settings = engine, settings
        self.running: list[RunningFront] = []
        self._keeping: list[asyncio.Task[None]] = []

    async def start(self, number: int) -> None:
        """Starts so many; one that does not begin now does so later."""
        first = [asyncio.Event() for _ in range(number)]
        self._keeping = [asyncio.create_task(self._keep(tried), name="front") for tried in first]
        for tried in first:
            await tried.wait()

    async def _keep(self, tried: asyncio.Event) -> None:
        loop, restarts = asyncio.get_running_loop(), Restarts(AGAIN_S, STEADY_S)
        while True:
            front, fault = RunningFront(self._server, self._kind, self._engine), ""
            try:
                await front.start(self._settings)
                self.running.append(front)
                tried.set()
                await front.watch()
            except OSError as error:
                fault = f"a front does not begin: {error}"
            finally:
                tried.set()
                if front in self.running:
                    self.running.remove(front)
                await front.close()
            logger.error("{}", fault or front.how_ended)
            await asyncio.sleep(restarts.next_s(loop.time()))

    async def serve(self, request: web.Request) -> web.StreamResponse | None:
        """Leaves the connection to a front; None if none takes it."""
        for front in self._least_busy_first():
            if (response := await front.serve(request)) is not None:
                return response
        return None

    async def speak(
        self, request: web.Request, body: bytes, keep: Keep | None
    ) -> web.StreamResponse | None:
        """Leaves a request for speech to a front; None if none takes it. Raises
        ConnectionError."""
        for front in self._least_busy_first():
            if (response := await front.speak(request, body, keep)) is not None:
                return response
        return None

    def _least_busy_first(self) -> list[RunningFront]:
        return sorted(self.running, key=lambda one: len(one.connections))

    def drain(self) -> None:
        for front in self.running:
            front.send(Drain())

    def stop(self) -> None:
        for front in self.running:
            front.send(Stop())

    async def close(self) -> None:
        for task in self._keeping:
            task.cancel()
        await asyncio.gather(*self._keeping, return_exceptions=True)


def _packed(request: web.Request, body: bytes | None = None) -> bytes:
    """Returns the request as it came, with the id under which the worker logs it, and the body
    that has been read, if there is one."""
    without = {REQUEST_ID, *(FRAMING if body is not None else ())}
    more = [b"X-Request-Id: " + request[CONTEXT].id.encode()]
    if body is not None:
        more.append(b"Content-Length: %d" % len(body))
    return packed_head(request, without, more) + (body or b"")
