"""The WebSockets of a speech server, from upgrade to close, and their use of the server's engine,
admission and metrics."""

from collections.abc import Awaitable, Callable, Iterator
from contextlib import ExitStack, contextmanager

from aiohttp import web
from loguru import logger

from offhook.pipeline.speech.recognizer import (
    EngineError,
    EngineFailed,
    Recognizer,
    UnsupportedRequest,
)
from offhook.pipeline.speech.remote.worker_protocol import Error, ErrorCode
from offhook.pipeline.speech.synthesizer import Synthesizer
from offhook.web.speech_api.admission import Kind, Ticket
from offhook.web.speech_api.errors import ApiError
from offhook.web.speech_api.server_io import CONTEXT, SPEECH, fault_of
from offhook.web.speech_api.sockets.engine_metrics import AsrMetrics, TtsMetrics
from offhook.web.speech_api.sockets.worker_stream_io import (
    MAX_MESSAGE_BYTES,
    Refused,
    WorkerStream,
    refusing,
    run_socket,
    upgraded,
)

MakeStream = Callable[[web.WebSocketResponse], WorkerStream]


class StreamHost:
    """The server's side of one WebSocket: its engine of `kind`, admission and metrics."""

    def __init__(self, request: web.Request, kind: Kind) -> None:
        """Raises ApiError 426 if the request is not a WebSocket upgrade."""
        if not web.WebSocketResponse().can_prepare(request):
            raise ApiError(426, f"{request.path} is a WebSocket")
        self.server = request.app[SPEECH]
        self._request, self._context, self._kind = request, request[CONTEXT], kind
        self._ticket: Ticket
        self._synthesizer: Synthesizer | None = None

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
            self.server.streams.discard(stream)

    def _ended(self, code: str) -> None:
        if (metrics := self.server.engine_metrics) is not None:
            metrics.ended.labels(code).inc()

    def error_words(self, error: EngineError) -> str:
        """Returns the message for the client: on a worker the engine's own, otherwise a general one
        with the id under which the log has the reason."""
        if self.server.engine_metrics is not None:
            return f"{error}: try again later" if error.fault == "full" else str(error)
        logger.warning("x stream: {}", error)
        return str(fault_of(error, self._context.id))

    # --- the engine ---

    @property
    def engine(self) -> str:
        return self.server.name(self._kind)

    @property
    def model(self) -> str:
        return self.server.model(self._kind)

    async def recognizer(self) -> Recognizer:
        """Returns the recognizer. Raises EngineError."""
        recognizer = await self.server.recognizer()
        self._context.stages.mark("loaded")
        return recognizer

    async def synthesizer(self) -> Synthesizer:
        """Returns the synthesizer. Raises EngineError."""
        self._synthesizer = await self.server.synthesizer()
        self._context.stages.mark("loaded")
        return self._synthesizer

    def voices(self) -> list[str]:
        """Returns the synthesizer's voices; empty before it has loaded."""
        return self._synthesizer.voices() if self._synthesizer is not None else []

    @contextmanager
    def in_use(self) -> Iterator[None]:
        """Marks the stream as using the engine. Raises Refused if there is no capacity."""
        with refusing(), self.server.in_use(self._ticket):
            yield

    # --- counts ---

    def count_audio(self, seconds: float) -> None:
        self.server.count_audio(self._context, seconds)
        if (metrics := self.server.engine_metrics) is not None:
            metrics.audio.inc(seconds)

    def final_sent(self, seconds: float) -> None:
        """Records the time from a flush to its final."""
        if isinstance(metrics := self.server.engine_metrics, AsrMetrics):
            metrics.final.observe(seconds)

    def reply_began(self, seconds: float) -> None:
        """Records the time from a reply's start to its first audio."""
        self._context.stages.mark("first")
        if isinstance(metrics := self.server.engine_metrics, TtsMetrics):
            metrics.first_sound.observe(seconds)

    def reply_ended(self, reason: str) -> None:
        self._context.stages.mark("inferred")
        if isinstance(metrics := self.server.engine_metrics, TtsMetrics):
            metrics.replies.labels(reason).inc()
