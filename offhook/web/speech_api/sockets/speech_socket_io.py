"""WS /v1/audio/speech/ws and /ws/speak: streaming text to audio, on any synthesizer."""

from dataclasses import replace
from functools import partial

from aiohttp import web
from aiohttp.hdrs import SEC_WEBSOCKET_PROTOCOL

from offhook.pipeline.speech.remote.tts_protocol import parse_query
from offhook.pipeline.speech.remote.worker_protocol import ProtocolError
from offhook.web.speech_api.errors import ApiError
from offhook.web.speech_api.sockets import live_speech
from offhook.web.speech_api.sockets.live_speech import LiveSpeech
from offhook.web.speech_api.sockets.live_speech_io import LiveSpeechStream
from offhook.web.speech_api.sockets.speech_socket import (
    PATH,
    Commands,
    Parse,
    SpeechSocket,
    known_voice,
)
from offhook.web.speech_api.sockets.stream_host_io import MakeStream, StreamHost
from offhook.web.speech_api.sockets.tts_stream_io import TtsStream


async def speech_socket(request: web.Request) -> web.StreamResponse:
    """Serves /ws/speak, which only accepts the worker protocol, so that `url` of [tts] may name any
    of our servers. Raises ApiError 400, 404, 426, 429, 503."""
    host = StreamHost(request, "speech")
    if (response := await host.server.handed_over(request)) is not None:
        return response
    server, query = host.server, dict(request.query)
    model = query.pop("model", "")
    internal = request.path != PATH
    parse = partial(server.request_to_speak, form="pcm")
    if not internal and live_speech.PROTOCOL in request.headers.get(SEC_WEBSOCKET_PROTOCOL, ""):
        return await _live(host, parse, bool(query or model))
    public = SpeechSocket(host.voices, parse, bool(query))

    def prepare() -> MakeStream:
        if model:
            server.check_model("speech", model)
        try:
            options = server.prioritized(parse_query(query))
        except ProtocolError as error:
            raise ApiError(400, str(error)) from error
        if internal:
            return lambda socket: TtsStream(host, socket, options, Commands())
        named = replace(options, voice=server.voice_called(options.voice))
        return lambda socket: TtsStream(host, socket, named, public)

    if internal:
        return await host.serve(prepare, internal=True)
    return await host.serve(prepare, public.error_text)


async def _live(host: StreamHost, parse: Parse, given_in_query: bool) -> web.StreamResponse:
    """Raises ApiError 400, 429, 503."""

    def prepare() -> MakeStream:
        if given_in_query:
            raise ApiError(400, f"{live_speech.START} has the options, not the address")
        protocol = LiveSpeech(parse, lambda name: known_voice(name, host.voices()))
        return lambda socket: LiveSpeechStream(host, socket, protocol)

    return await host.serve(prepare, live_speech.error_text, protocols=(live_speech.PROTOCOL,))
