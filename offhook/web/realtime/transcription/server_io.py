"""WS /v1/realtime: live transcription by the protocols of vLLM and OpenAI with any recognizer."""

import asyncio
import time
from collections.abc import Iterable
from functools import partial
from typing import Protocol

from aiohttp import WSMessage, WSMsgType, web

from offhook.media.untrusted_json import read_json
from offhook.pipeline.speech.recognizer import StreamOptions
from offhook.pipeline.speech.remote.worker_protocol import ErrorCode
from offhook.web.http.access import Token
from offhook.web.http.access_io import GRANT
from offhook.web.realtime.connection_io import MAX_EVENT_BYTES
from offhook.web.realtime.protocol.client_events import Dialect
from offhook.web.realtime.protocol.frozen import CODE, NONE_FROZEN, FrozenFields
from offhook.web.realtime.transcription.session import (
    MAX_ERRORS,
    Action,
    Begin,
    Cancel,
    Feed,
    Finish,
    Pause,
    RealtimeSession,
    Send,
)
from offhook.web.speech_api.errors import ApiError
from offhook.web.speech_api.sockets.asr_stream_io import LiveStream
from offhook.web.speech_api.sockets.stream_host_io import MakeStream, StreamHost
from offhook.web.speech_api.sockets.transcribe_socket_io import stream_request
from offhook.web.speech_api.sockets.worker_stream_io import Refused

PATH = "/v1/realtime"
PROTOCOLS = ("realtime",)
"""WebSocket subprotocols that OpenAI's browser clients request."""
FEED_SAMPLES = 1 << 14
"""Samples (1 s) fed to the recognizer before its backlog is checked."""


class Conversations(Protocol):
    """Serves what is no transcription, where there are agents to talk to."""

    def wants(self, request: web.Request) -> bool: ...

    def frozen_for(self, request: web.Request) -> FrozenFields: ...

    async def serve(self, request: web.Request) -> web.StreamResponse: ...

    async def serve_opened(
        self, request: web.Request, socket: web.WebSocketResponse, event: str
    ) -> None: ...


CONVERSATIONS: web.AppKey[Conversations] = web.AppKey("conversations")


async def realtime(request: web.Request) -> web.StreamResponse:
    """Handle GET /v1/realtime. Raises ApiError 400, 404, 426, 429 or 503 before the upgrade."""
    conversations = request.app.get(CONVERSATIONS)
    if conversations is not None and conversations.wants(request):
        return await conversations.serve(request)
    if "speech" not in request[GRANT].scopes:
        raise ApiError(403, "this key is not for transcription", code="insufficient_scope")
    host = StreamHost(request, "transcription")
    server, query = host.server, dict(request.query)
    model, intent = query.pop("model", ""), query.pop("intent", "")
    if intent not in ("", "transcription"):
        raise ApiError(400, "intent: this server knows transcription only", "intent")
    wanted = stream_request(query)
    if "rate" in query:
        raise ApiError(400, "rate belongs in audio.input.format of a session.update", "rate")
    secret = request[GRANT].secret
    frozen = NONE_FROZEN
    if secret is not None and conversations is not None:
        frozen = conversations.frozen_for(request)
    if query and frozen.touch("audio.input.transcription"):
        words = "the session is frozen: with a client secret the address has no options"
        raise ApiError(400, words, next(iter(query)), CODE)
    if frozen.touch("audio.input.transcription.model"):
        model = ""
    if model:
        server.check_model("transcription", model)
    session = RealtimeSession(
        Dialect.OPENAI if intent else None,
        wanted.options,
        model,
        lambda name: server.check_model("transcription", name),
        lenient=server.settings.lenient,
        frozen=frozen,
    )

    open_to_both = not (model or intent or secret) and "call" in request[GRANT].scopes
    if conversations is None or not open_to_both:
        prepare: MakeStream = partial(RealtimeStream, host, session, secret, None)
        return await host.serve(lambda: prepare, session.error_text, MAX_EVENT_BYTES, PROTOCOLS)
    return await _serve_either(request, host, session, conversations)


async def _serve_either(
    request: web.Request, host: StreamHost, session: RealtimeSession, conversations: Conversations
) -> web.StreamResponse:
    """Serves a client whose first event says whether it wants a conversation or transcripts."""
    begun: asyncio.Future[str] = asyncio.get_running_loop().create_future()

    async def converse(socket: web.WebSocketResponse) -> None:
        if begun.done():
            await conversations.serve_opened(request, socket, begun.result())

    prepare: MakeStream = partial(RealtimeStream, host, session, None, begun)
    return await host.serve(
        lambda: prepare, session.error_text, MAX_EVENT_BYTES, PROTOCOLS, then=converse
    )


def begins_conversation(text: str) -> bool:
    """Returns whether an event is a session.update of a conversation."""
    try:
        event = read_json(text)
    except ValueError:
        return False
    match event:
        case {"type": "session.update", "session": {"type": "realtime"}}:
            return True
    return False


class RealtimeStream(LiveStream):
    """A realtime connection; opens its recognizer with the first audio, until which the client can
    configure it."""

    def __init__(
        self,
        host: StreamHost,
        session: RealtimeSession,
        secret: Token | None,
        conversation: asyncio.Future[str] | None,
        socket: web.WebSocketResponse,
    ) -> None:
        """`conversation` is set to the first event, and the stream ends, if that begins one."""
        super().__init__(host, socket)
        self._session = session
        self._conversation = conversation
        self._secret = secret
        """The client's, whose session object is its first update."""
        loop = asyncio.get_running_loop()
        self._options: asyncio.Future[StreamOptions] = loop.create_future()

    async def run(self) -> None:
        await self.send(self._session.created(time.time()))
        if self._secret is not None:
            await self._perform(self._session.begin(self._secret.session or {}))
        await super().run()

    async def receive(self, message: WSMessage) -> bool:
        match message.type:
            case WSMsgType.TEXT:
                conversation, self._conversation = self._conversation, None
                if conversation is not None and begins_conversation(message.data):
                    conversation.set_result(message.data)
                    return False
                await self._perform(self._session.receive(message.data))
            case WSMsgType.BINARY:
                await self._perform(self._session.receive_bytes(message.data))
            case _:
                return False
        if self._session.is_over:
            raise Refused(ErrorCode.BAD_REQUEST, f"{MAX_ERRORS} events were wrong")
        return True

    async def _perform(self, actions: Iterable[Action]) -> None:
        for action in actions:
            match action:
                case Send(text):
                    await self.send(text)
                case Begin(options):
                    self._options.set_result(options)
                case Feed(pcm):
                    for at in range(0, len(pcm), FEED_SAMPLES):
                        self.recognition.feed(pcm[at : at + FEED_SAMPLES])
                        await self.wait_for_room()
                case Pause():
                    await asyncio.sleep(0)
                case Finish():
                    self.recognition.flush()
                case Cancel():
                    self.recognition.cancel()

    async def send_results(self) -> None:
        await self.open(await self._options)
        async for number, event in self.recognition.events():
            for text in self._session.recognized(number, event):
                await self.send(text)
