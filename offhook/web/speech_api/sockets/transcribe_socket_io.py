"""WS /ws/transcribe: the protocol of `asr_protocol`, on any recognizer."""

from collections.abc import Iterator
from contextlib import contextmanager

from aiohttp import web
from loguru import logger

from offhook.pipeline.speech.recognizer import (
    EngineBroken,
    EngineError,
    NotPossible,
    Recognizer,
)
from offhook.pipeline.speech.remote.asr_protocol import PATH, Request
from offhook.pipeline.speech.remote.worker_protocol import ErrorCode, ProtocolError
from offhook.web.speech_api.errors import ApiError
from offhook.web.speech_api.server_io import ASKED, SPEECH, RequestContext, SpeechServer, fault_of
from offhook.web.speech_api.sockets.asr_stream_io import AsrStream
from offhook.web.speech_api.sockets.worker_stream_io import (
    Refused,
    WorkerStream,
    held,
    opened,
    refusing,
)


async def transcribe_socket(request: web.Request) -> web.StreamResponse:
    """What cannot be is refused before the upgrade. Raises ApiError 400, 426, 429, 503."""
    server, asked = request.app[SPEECH], request[ASKED]
    check_upgrade(request, PATH)
    wanted = stream_request(dict(request.query))
    with server.stream("transcription", asked):
        host = SpeechHost(server, asked)
        socket = await opened(request)
        stream = AsrStream(host, socket, wanted)
        await held(request, socket, run(server, asked, stream), nobody_counts)
    return socket


def check_upgrade(request: web.Request, path: str) -> None:
    """Raises ApiError 426."""
    if not web.WebSocketResponse().can_prepare(request):
        raise ApiError(426, f"{path} is a WebSocket")


def stream_request(query: dict[str, str]) -> Request:
    """Raises ApiError 400."""
    try:
        return Request.parse(query)
    except ProtocolError as error:
        named = str(error).partition(" ")[0]
        raise ApiError(400, str(error), named if named in query else None) from error


def nobody_counts(code: str) -> None:
    """The guard counts requests."""


async def run(server: SpeechServer, asked: RequestContext, stream: WorkerStream) -> None:
    """Raises Refused, ConnectionError."""
    server.streams.add(stream)
    with refusing():
        try:
            await stream.run()
        except EngineError as error:
            logger.warning("x stream: {}", error)
            code = ErrorCode.BAD_REQUEST if isinstance(error, NotPossible) else ErrorCode.ENGINE
            if error.fault == "full":
                code = ErrorCode.FULL
            if isinstance(error, EngineBroken):
                server.on_broken(error)
                code = ErrorCode.STOPPING
            raise Refused(code, str(fault_of(error, asked.id))) from error
        finally:
            server.streams.discard(stream)


class SpeechHost:
    """The `Host` of one stream of the speech API."""

    def __init__(self, server: SpeechServer, asked: RequestContext) -> None:
        self._server = server
        self._asked = asked

    @property
    def engine(self) -> str:
        return self._server.asr_name

    @property
    def model(self) -> str:
        return self._server.asr_model

    async def recognizer(self) -> Recognizer:
        recognizer = await self._server.recognizer()
        self._asked.stages.mark("loaded")
        return recognizer

    @contextmanager
    def in_use(self, stream: WorkerStream) -> Iterator[None]:
        yield  # the whole stream was admitted

    def took(self, seconds: float) -> None:
        self._server.count_audio(self._asked, seconds)

    def answered(self, seconds: float) -> None:
        """The worker counts this, where the engine is."""
