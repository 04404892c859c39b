"""The WebSockets of a speech server, from upgrade to close, and their use of the server's engine,
admission and metrics."""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import ExitStack, asynccontextmanager

from aiohttp import web

from offhook.media.silence_io import SilenceWatch
from offhook.pipeline.speech.errors import EngineError, EngineFailed, UnsupportedRequest
from offhook.pipeline.speech.remote.worker_protocol import (
    ACCEPT_HEADER,
    DRAINING,
    Draining,
    Error,
    ErrorCode,
)
from offhook.web.speech_api.admission import Kind, Ticket
from offhook.web.speech_api.errors import ApiError
from offhook.web.speech_api.server_io import CONTEXT, SPEECH
from offhook.web.speech_api.sockets.engine_use_io import EngineUse
from offhook.web.speech_api.sockets.worker_stream_io import (
    MAX_MESSAGE_BYTES,
    Refused,
    WorkerStream,
    refusing,
    run_socket,
    upgraded,
)

MakeStream = Callable[[web.WebSocketResponse], WorkerStream]


class StreamHost(EngineUse):
    """The server's side of one WebSocket: its engine of `kind`, admission and metrics."""

    def __init__(self, request: web.Request, kind: Kind) -> None:
        """Raises ApiError 426 if the request is not a WebSocket upgrade."""
        if not web.WebSocketResponse().can_prepare(request):
            raise ApiError(426, f"{request.path} is a WebSocket")
        super().__init__(request.app[SPEECH], request[CONTEXT], kind)
        self._request = request
        self._ticket: Ticket

    async def serve(
        self,
        prepare: Callable[[], MakeStream],
        error_text: Callable[[Error], str] = Error.to_text,
        max_bytes: int = MAX_MESSAGE_BYTES,
        protocols: tuple[str, ...] = (),
        *,
        then: Callable[[web.WebSocketResponse], Awaitable[None]] | None = None,
        internal: bool = False,
    ) -> web.WebSocketResponse:
        """Upgrades the connection and runs its stream to the end. `prepare` checks the request and
        raises ApiError. Requests that cannot be served are rejected before the upgrade; but on an
        `internal` path of a worker on the socket, where our own clients read the reason. `then` has
        the socket after the stream, which takes no capacity any more."""
        if internal and self.server.engine_metrics is not None:
            socket = await upgraded(self._request, max_bytes, protocols)
            await run_socket(
                self._request, socket, self._admit_and_run(prepare, socket), self._ended
            )
            return socket
        make = prepare()
        with ExitStack() as admitted:
            admission = self.server.stream(self._kind, self._context)
            self._ticket = admitted.enter_context(admission)
            socket = await upgraded(self._request, max_bytes, protocols)

            async def run() -> None:
                await self._run(make(socket))
                admitted.close()
                if then is not None:
                    await then(socket)

            await run_socket(self._request, socket, run(), self._ended, error_text)
        return socket

    async def _admit_and_run(
        self, prepare: Callable[[], MakeStream], socket: web.WebSocketResponse
    ) -> None:
        """Raises Refused, ConnectionError."""
        with refusing(), self.server.stream(self._kind, self._context) as self._ticket:
            await self._run(prepare()(socket))

    async def _run(self, stream: WorkerStream) -> None:
        """Raises Refused, ConnectionError."""
        self.server.streams.add(stream)
        # Our own servers keep connections ready at their workers, and at a server in front of them.
        pooled = self.server.engine_metrics is not None or ACCEPT_HEADER in self._request.headers
        self._ticket.give_way = stream.give_way
        watch = None if pooled else SilenceWatch(lambda: stream.activity, stream.end_silent)
        try:
            with refusing():
                await stream.run()
        except EngineError as error:
            code = (
                ErrorCode.BAD_REQUEST if isinstance(error, UnsupportedRequest) else ErrorCode.ENGINE
            )
            if error.fault == "full":
                code = ErrorCode.FULL
            if isinstance(error, EngineFailed):
                self.server.engine_broke(error)
                code = ErrorCode.STOPPING
            raise Refused(code, self.error_words(error)) from error
        finally:
            if watch is not None:
                watch.stop()
            self.server.streams.discard(stream)

    @asynccontextmanager
    async def in_use(self) -> AsyncIterator[None]:
        """Marks the stream as using the engine. Raises Refused if there is no capacity."""
        self._ticket.waits = False
        with refusing():
            async with self.server.in_use(self._ticket):
                yield

    def begin_use(self) -> None:
        self._ticket.waits = False
        if self._ticket.lane == "idle":
            self.server.use(self._ticket, always=True)

    def end_use(self) -> None:
        if self.server.engine_metrics is not None:  # elsewhere it is in use as long as it is open
            self.server.rest(self._ticket)

    @property
    def draining_text(self) -> str:
        """Returns what tells the client that the server drains; empty if it does not understand."""
        accepts = self._request.headers.get(ACCEPT_HEADER, "") == DRAINING
        return Draining().to_text() if accepts else ""

    def _ended(self, code: str) -> None:
        self.server.stream_ended(code)
