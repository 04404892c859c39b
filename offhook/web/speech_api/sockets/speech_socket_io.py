"""WS /v1/audio/speech/ws: text in as it comes, sound out, on any synthesizer: `speech_socket`."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial

from aiohttp import web
from loguru import logger

from offhook.pipeline.speech.recognizer import EngineError
from offhook.pipeline.speech.remote.tts_protocol import parse_query
from offhook.pipeline.speech.remote.worker_protocol import Error, ProtocolError
from offhook.pipeline.speech.synthesizer import Synthesizer
from offhook.web.speech_api.errors import ApiError
from offhook.web.speech_api.server_io import ASKED, SPEECH, RequestContext, SpeechServer, fault_of
from offhook.web.speech_api.sockets.speech_socket import PATH, Commands, SpeechSocket
from offhook.web.speech_api.sockets.transcribe_socket_io import check_upgrade, nobody_counts, run
from offhook.web.speech_api.sockets.tts_stream_io import TtsStream
from offhook.web.speech_api.sockets.worker_stream_io import WorkerStream, held, opened


async def speech_socket(request: web.Request) -> web.StreamResponse:
    """At the path of workers with nothing but their protocol, so that a tts_url may name us."""
    server, asked = request.app[SPEECH], request[ASKED]
    check_upgrade(request, request.path)
    query = dict(request.query)
    if model := query.pop("model", ""):
        server.check_model("speech", model)
    try:
        options = server.spoken(parse_query(query))
    except ProtocolError as error:
        raise ApiError(400, str(error)) from error
    with server.stream("speech", asked):
        host = SocketHost(server, asked)
        dialect: Commands | SpeechSocket = Commands()
        in_words: Callable[[Error], str] = Error.to_text
        if request.path == PATH:
            dialect = own = SpeechSocket(
                host.voices, partial(server.request_to_speak, form="pcm"), bool(query)
            )
            options = replace(options, voice=server.voice_called(options.voice))
            in_words = own.error_text
        socket = await opened(request)
        stream = TtsStream(host, socket, options, dialect)
        await held(request, socket, run(server, asked, stream), nobody_counts, in_words)
    return socket


class SocketHost:
    """The `Host` of one stream of the speech API."""

    def __init__(self, server: SpeechServer, asked: RequestContext) -> None:
        self._server = server
        self._asked = asked
        self._synthesizer: Synthesizer | None = None

    @property
    def engine(self) -> str:
        return self._server.tts_name

    @property
    def model(self) -> str:
        return self._server.tts_model

    def voices(self) -> list[str]:
        return self._synthesizer.voices() if self._synthesizer is not None else []

    async def synthesizer(self) -> Synthesizer:
        self._synthesizer = await self._server.synthesizer()
        self._asked.stages.mark("loaded")
        return self._synthesizer

    @contextmanager
    def in_use(self, stream: WorkerStream) -> Iterator[None]:
        yield  # the whole stream was admitted

    def told(self, error: EngineError) -> str:
        logger.warning("x reply: {}", error)
        return str(fault_of(error, self._asked.id))

    def began(self, seconds: float) -> None:
        self._asked.stages.mark("first")

    def spoke(self, seconds: float) -> None:
        self._server.count_audio(self._asked, seconds)

    def replied(self, reason: str) -> None:
        self._asked.stages.mark("inferred")
