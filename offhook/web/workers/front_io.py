"""A front: a process with WebSockets and voices of a worker, beside the one with its engine.

For replies it reads text, levels and encodes sound and finds where words end, and the engine gives
it frames; for callers it reads sound, which the engine gets, and writes the words. The worker hands
the connections over: with a WebSocket until it closes, with a request for speech until it is
answered. Admission, cache, metrics, health and everything else stay with the worker. It ends when
the worker does. It inherits two sockets, see `fronts_io`: the link, and that for connections.
"""

import asyncio
import os
import pickle
import socket
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from typing import Any

from aiohttp import web
from aiohttp.web_protocol import RequestHandler

from offhook.media.tasks_io import TaskSet
from offhook.pipeline.engines.shared.process_link_io import ProcessLink
from offhook.pipeline.engines.shared.tts_models import NO_CACHE
from offhook.pipeline.speech.recognizer import TurnAnswers
from offhook.pipeline.speech.streams.speech_gate_io import GatedRecognizer
from offhook.pipeline.speech.synthesizer import Speech
from offhook.pipeline.speech.timing import Stages
from offhook.processes.child_io import inherited_sockets
from offhook.web.config import programs
from offhook.web.http.handed_over_io import Adopted
from offhook.web.http.listening_io import Runner
from offhook.web.http.logs_io import set_up
from offhook.web.http.loop_io import YOUNG_OF_STREAMS, freeze_loaded_objects, run
from offhook.web.speech_api.admission import Kind, Ticket
from offhook.web.speech_api.server_io import (
    GONE,
    EngineHandle,
    Handler,
    HttpContext,
    RequestContext,
    SpeechServer,
    Turn,
)
from offhook.web.speech_api.sockets.engine_metrics import AsrMetrics, TtsMetrics
from offhook.web.speech_api.sockets.worker_stream_io import CLOSE_S
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
from offhook.web.workers.routes_io import application


class FrontServer(SpeechServer):
    """The speech server of a front. It admits what the worker has admitted, and what it counts goes
    there."""

    loading_s = None

    def __init__(self, setup: Setup, engine: Any, link: ProcessLink) -> None:
        async def loaded() -> Any:
            return engine

        of = setup.worker
        handle: EngineHandle[Any] = EngineHandle(loaded, lambda: of.engine, lambda: of.model)
        hears = setup.kind == "transcription"
        self.engine_metrics = metrics = ForwardedMetrics(self) if hears else TtsMetrics()
        hearing, speaking = (handle, None) if hears else (None, handle)
        super().__init__(programs.Speech(), hearing, speaking, metrics.registry, NO_CACHE)
        self._turns: TurnAnswers | None = engine.turns if hears else None
        self.id = setup.server_id
        self.connections: dict[RequestHandler, Connection] = {}
        self.sent: set[RequestHandler] = set()
        """Those with a response of which all has been sent, so that the client may send another
        request."""
        self._link = link
        self._asked: dict[int, asyncio.Future[None]] = {}
        """For the use of the engine, by connection."""
        self._audio_s = 0.0
        """Audio sent and not told."""
        self._free = 1.0

    def send(self, message: ToWorker) -> None:
        self._link.send(message)

    # --- admission ---

    def _find(self, context: RequestContext) -> Connection | None:
        """Returns the connection; None if it has closed."""
        assert isinstance(context, HttpContext)
        return self.connections.get(context.request.protocol)

    def _connection(self, context: RequestContext) -> Connection:
        """Raises ConnectionError if it has closed."""
        connection = self._find(context)
        if connection is None:
            raise ConnectionResetError("the client has gone")
        return connection

    @asynccontextmanager
    async def request(
        self, kind: Kind, context: HttpContext, most_bytes: int
    ) -> AsyncIterator[Turn]:
        connection = self._connection(context)
        assert connection.stages is not None
        context.kind, context.stages = kind, connection.stages
        if connection.kept:

            def keep(pieces: Sequence[Speech]) -> None:
                self.send(Spoken(connection.number, pieces))

            context.keep = keep

        async def turn() -> None:
            """It has come; of the connection no more is read."""
            if (transport := context.request.transport) is not None:
                transport.pause_reading()

        yield turn

    @contextmanager
    def stream(self, kind: Kind, context: RequestContext) -> Iterator[Ticket]:
        connection = self._connection(context)
        self._free = connection.free
        if connection.refused is not None:
            raise connection.refused
        context.kind = kind
        yield FrontTicket(kind, connection.number)

    @asynccontextmanager
    async def in_use(self, ticket: Ticket) -> AsyncIterator[None]:
        assert isinstance(ticket, FrontTicket)
        granted = self._asked[ticket.number] = asyncio.get_running_loop().create_future()
        self.send(Use(ticket.number))
        try:
            await granted
            yield
        finally:
            del self._asked[ticket.number]
            self.send(Rest(ticket.number))

    def use(self, ticket: Ticket, *, always: bool = False) -> None:
        """Marks a stream as using the engine, which is always granted."""
        assert always
        assert isinstance(ticket, FrontTicket)
        ticket.lane = "stream"
        self.send(Use(ticket.number, always=True))

    def rest(self, ticket: Ticket) -> None:
        assert isinstance(ticket, FrontTicket)
        ticket.lane = "idle"
        self.send(Rest(ticket.number))

    def granted(self, answer: Granted) -> None:
        asked = self._asked.get(answer.number)
        if asked is None or asked.done():
            return
        if answer.refused is not None:
            asked.set_exception(answer.refused)
        else:
            asked.set_result(None)

    def free(self, kind: Kind) -> float:
        return 0.0 if self.draining else self._free

    @property
    def turns(self) -> TurnAnswers | None:
        return self._turns

    # --- what is counted ---

    def count_stream_audio(self, seconds: float) -> None:
        self._audio_s += seconds

    def reply_began(self, seconds: float) -> None:
        self.send(Counted(self._uncounted_audio_s(), first_s=seconds))

    def reply_ended(self, reason: str) -> None:
        self.send(Counted(self._uncounted_audio_s(), reply=reason))

    def final_sent(self, seconds: float) -> None:
        self.send(Counted(self._uncounted_audio_s(), final_s=seconds))

    def turn_judged(self, seconds: float, answered: bool) -> None:
        self.send(Counted(self._uncounted_audio_s(), turn_s=seconds, turn_answered=answered))

    def text_sent(self, stages: Stages) -> None:
        self.send(Counted(self._uncounted_audio_s(), stages=stages))

    def stream_ended(self, code: str) -> None:
        self.send(Counted(self._uncounted_audio_s(), stream=code))

    def record(self, method: str, endpoint: str, context: RequestContext, status: int) -> None:
        connection = self._find(context)
        if connection is None and method == "POST":
            return  # The worker, which has the connection too, records that its client has gone.
        if connection is None or not connection.is_request:
            super().record(method, endpoint, context, status)
            return
        more = context.labels, context.audio_s
        self.send(Answered(connection.number, status, context.stages, *more))

    def _uncounted_audio_s(self) -> float:
        seconds, self._audio_s = self._audio_s, 0.0
        return seconds


class ForwardedMetrics(AsrMetrics):
    """Metrics of recognition, which the worker has."""

    def __init__(self, server: FrontServer) -> None:
        super().__init__()
        self._server = server

    def observe(self, stages: Stages) -> None:
        self._server.text_sent(stages)


class FrontTicket(Ticket):
    """That of a connection, which the worker has."""

    def __init__(self, kind: Kind, number: int) -> None:
        super().__init__(kind, "", "idle", lambda: None)
        self.number = number


class Front:
    """The process: a server without a listener."""

    def __init__(self, handover: socket.socket) -> None:
        self.ended = asyncio.Event()
        self._handover = handover
        self._tasks = TaskSet()
        self._receive_engine: Callable[[Any], None]
        """For messages of the engine."""
        self._link: ProcessLink
        self._server: FrontServer
        self._runner: Runner

    async def begin(self, link: socket.socket) -> None:
        self._link = await ProcessLink.over(link, self._receive, self.ended.set)

    def _receive(self, message: ToFront) -> None:
        match message:
            case Granted():
                self._server.granted(message)
            case Drain():
                self._server.begin_drain()
            case Stop():
                self._server.stop_streams()
            case Setup():
                self._tasks.spawn(self._serve(message), "serve")
            case _:
                self._receive_engine(message)

    async def _serve(self, setup: Setup) -> None:
        set_up(setup.log)
        engine, self._receive_engine = await setup.engine.connect(self._link.send)
        if setup.kind == "transcription":
            engine = GatedRecognizer(engine)
        self._server = FrontServer(setup, engine, self._link)
        access = setup.worker.access()
        app = application(self._server, lambda: access)
        app.on_response_prepare.append(self._close_after)
        app.middlewares.insert(0, self._send_all)
        self._runner = Runner(app, shutdown_timeout=CLOSE_S)
        await self._runner.setup()
        server = self._runner.server
        assert server is not None
        connection_lost = server.connection_lost

        def note_end(handler: RequestHandler, error: BaseException | None = None) -> None:
            connection_lost(handler, error)
            if (connection := self._server.connections.pop(handler, None)) is not None:
                self._link.send(Closed(connection.number, handler in self._server.sent))
            self._server.sent.discard(handler)

        setattr(server, "connection_lost", note_end)  # noqa: B010 - see Runner.setup
        freeze_loaded_objects(YOUNG_OF_STREAMS)
        self._handover.setblocking(False)
        asyncio.get_running_loop().add_reader(self._handover.fileno(), self._accept)
        self._link.send(Begun())
        while True:
            await asyncio.sleep(BEAT_S)
            self._link.send(Beat())

    def _accept(self) -> None:
        """Takes connections that the worker hands over."""
        while True:
            try:
                data, files, _, _ = socket.recv_fds(self._handover, MAX_CONNECTION_BYTES, 1)
            except BlockingIOError:
                return
            if not data:
                asyncio.get_running_loop().remove_reader(self._handover.fileno())
                return
            connection: Connection = pickle.loads(data)
            take = self._answer if connection.is_request else self._open
            self._tasks.spawn(take(connection, files[0]), "connection")

    async def _open(self, connection: Connection, file: int) -> None:
        """Serves the connection of a WebSocket as if its request came here."""
        server = self._runner.server
        assert server is not None
        loop, handler = asyncio.get_running_loop(), server()
        self._server.connections[handler] = connection
        adopted = Adopted(lambda: handler, connection.request)
        try:
            await loop.connect_accepted_socket(lambda: adopted, socket.socket(fileno=file))
        except OSError:
            server.connection_lost(handler)

    async def _answer(self, connection: Connection, file: int) -> None:
        """Answers a request for speech. No more is read: the next request is the worker's, and
        whether the client disconnects is asked of the socket, see `disconnect_io`. aiohttp resumes
        reading where a body ends and where its handler reads it, so it is paused after both."""
        server = self._runner.server
        assert server is not None
        loop, handler, early = asyncio.get_running_loop(), server(), _Early()
        try:
            transport, _ = await loop.connect_accepted_socket(
                lambda: early, socket.socket(fileno=file)
            )
        except OSError:
            self._link.send(Closed(connection.number, reusable=False))
            return
        transport.set_protocol(handler)
        # Whoever sent more before has to send it again, on another connection (RFC 9112 §9.3.2).
        self._server.connections[handler] = connection._replace(reusable=not early.received)
        handler.connection_made(transport)
        handler.data_received(connection.request)
        transport.pause_reading()
        handler.close()  # after the response

    @web.middleware
    async def _send_all(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Notes that all of a response for speech has been sent."""
        response, transport = await handler(request), request.transport
        connection = self._server.connections.get(request.protocol)
        if transport is None or connection is None or not connection.is_request:
            return response
        if response.status == GONE:
            return response
        transport.set_write_buffer_limits(high=0)
        with suppress(ConnectionError):  # aiohttp will notice, too
            await response.prepare(request)
            await response.write_eof()
            await request.writer.drain()
            if response.keep_alive and connection.reusable:
                self._server.sent.add(request.protocol)
        return response

    async def _close_after(self, request: web.Request, response: web.StreamResponse) -> None:
        """Closes the connection of a refused WebSocket: a further request is the worker's."""
        connection = self._server.connections.get(request.protocol)
        if response.status != 101 and not (connection is not None and connection.is_request):
            response.force_close()
            response.headers["Connection"] = "close"


class _Early(asyncio.Protocol):
    """Notices what is read of a connection before reading can be paused: uvloop begins to read
    however early that is asked for."""

    received = False

    def data_received(self, data: bytes) -> None:
        self.received = True


async def _main() -> None:
    link, handover = inherited_sockets()
    front = Front(handover)
    await front.begin(link)
    await front.ended.wait()
    os._exit(0)  # the streams go with the worker that had the engine


if __name__ == "__main__":
    run(_main())
