"""The routes of the speech API, and how an application gets them."""

from dataclasses import dataclass
from typing import Literal

from aiohttp import web

from offhook.web.speech_api.http.speech_io import speech, speech_pcm, speech_stream
from offhook.web.speech_api.http.transcriptions_io import (
    transcriptions,
    transcriptions_stream,
    translations,
)
from offhook.web.speech_api.models_io import described, listed_models, one_model
from offhook.web.speech_api.realtime.server_io import realtime
from offhook.web.speech_api.reply_cache_io import REPLIES
from offhook.web.speech_api.server_io import (
    SPEECH,
    TAKE_TURNS,
    Handler,
    SpeechServer,
    on_prepare,
)
from offhook.web.speech_api.sockets.speech_socket_io import speech_socket
from offhook.web.speech_api.sockets.transcribe_socket_io import transcribe_socket
from offhook.web.speech_api.voices_io import add_voice, clone, list_voices, remove_voice


@dataclass(frozen=True)
class Route:
    needs: Literal["transcription", "speech", None]
    """The engine without which it is not there."""
    method: str
    path: str
    handler: Handler
    takes_turn: bool = False
    """It enters `SpeechServer.request`, which lets the body come."""
    heads: bool = False
    """It answers HEAD as it does GET, without the body; a WebSocket cannot."""


ROUTES = (
    Route("transcription", "POST", "/v1/audio/transcriptions", transcriptions, True),
    Route("transcription", "POST", "/v1/audio/translations", translations, True),
    Route("transcription", "POST", "/v1/audio/transcriptions/stream", transcriptions_stream, True),
    Route("transcription", "GET", "/ws/transcribe", transcribe_socket),
    Route("transcription", "GET", "/v1/realtime", realtime),
    Route("speech", "POST", "/v1/audio/speech", speech, True),
    Route("speech", "POST", "/v1/audio/speech/stream", speech_stream, True),
    Route("speech", "POST", "/v1/audio/speech/pcm", speech_pcm, True),
    Route("speech", "GET", "/v1/audio/speech/ws", speech_socket),
    Route("speech", "GET", "/ws/speak", speech_socket),
    Route("speech", "GET", "/v1/audio/voices", list_voices, heads=True),
    Route("speech", "POST", "/v1/audio/voices", add_voice, True),
    Route("speech", "DELETE", "/v1/audio/voices/{name}", remove_voice),
    Route("speech", "POST", "/v1/audio/clone", clone, True),
    Route(None, "GET", "/v1/models", listed_models, heads=True),
    Route(None, "GET", "/v1/models/{model:.+}", one_model, heads=True),
    Route(None, "GET", "/openapi.json", described, heads=True),
)
OF_SPEECH = frozenset(route.handler for route in ROUTES)
"""Handlers that `server_io.guard` guards."""


def is_of_speech(request: web.Request) -> bool:
    """Whether `server_io.guard` guards it: a route of the speech API, or a path where one could
    be, so that a program is refused in the shape it knows."""
    if request.match_info.handler in OF_SPEECH:
        return True
    return SPEECH in request.app and request.path.startswith("/v1/")


async def _in_turn(request: web.Request) -> None:
    """The body comes when the guard, or `SpeechServer.request`, lets it: see Asked.proceed."""


def mount(app: web.Application, server: SpeechServer) -> None:
    """Give `app` the routes of the engines that there are; its guard must be, or lead these
    handlers to, `server_io.guard`."""
    kinds = server.kinds()
    app[SPEECH] = server
    app[TAKE_TURNS] = frozenset(route.handler for route in ROUTES if route.takes_turn)
    app.on_response_prepare.append(on_prepare)
    if server.replies is not None:
        app[REPLIES] = server.replies
    taken = {resource.canonical for resource in app.router.resources()}  # a worker's own socket
    for route in ROUTES:
        if (route.needs is None or route.needs in kinds) and route.path not in taken:
            for method in (route.method, *(["HEAD"] if route.heads else [])):
                app.router.add_route(method, route.path, route.handler, expect_handler=_in_turn)
