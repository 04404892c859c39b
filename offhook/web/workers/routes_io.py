"""The routes of the speech API, and the application of a speech server."""

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Literal

from aiohttp import web

from offhook.pipeline.speech.remote.alignments_protocol import ALIGNMENTS_PATH
from offhook.web.http.access import AccessPolicy
from offhook.web.http.access_io import open_door
from offhook.web.http.health_io import Health, add_health_routes
from offhook.web.http.listening_io import Listen, Runner
from offhook.web.realtime.transcription.server_io import realtime
from offhook.web.speech_api.http.alignments_io import alignments
from offhook.web.speech_api.http.speech_io import speech, speech_pcm, speech_stream
from offhook.web.speech_api.http.transcriptions_io import (
    transcriptions,
    transcriptions_stream,
    translations,
)
from offhook.web.speech_api.models_io import described, listed_models, one_model
from offhook.web.speech_api.reply_cache_io import REPLIES
from offhook.web.speech_api.server_io import (
    QUEUED,
    SPEECH,
    Handler,
    SpeechServer,
    guard,
    on_prepare,
)
from offhook.web.speech_api.sockets.speech_socket_io import speech_socket
from offhook.web.speech_api.sockets.transcribe_socket_io import transcribe_socket
from offhook.web.speech_api.sockets.worker_stream_io import CLOSE_S
from offhook.web.speech_api.voices_io import add_voice, clone, list_voices, remove_voice


@dataclass(frozen=True)
class Route:
    needs: Literal["transcription", "speech", None]
    """The engine that the route requires."""
    method: str
    path: str
    handler: Handler
    queued: bool = False
    """Whether it enters `SpeechServer.request`, which requests the body."""
    heads: bool = False
    """Whether it answers HEAD like GET without the body; a WebSocket cannot."""


ROUTES = (
    Route("transcription", "POST", "/v1/audio/transcriptions", transcriptions, True),
    Route("transcription", "POST", "/v1/audio/translations", translations, True),
    Route("transcription", "POST", "/v1/audio/transcriptions/stream", transcriptions_stream, True),
    Route("transcription", "POST", ALIGNMENTS_PATH, alignments, True),
    Route("transcription", "GET", "/ws/transcribe", transcribe_socket),
    Route("transcription", "GET", "/v1/realtime", realtime),
    Route("transcription", "GET", "/v1/realtime/", realtime),
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
MAX_BODY_BYTES = 1 << 20
"""Maximum body of a request read as a whole; a longer one is refused with 413. Uploads have their
own limit."""
PORTS: web.AppKey[Sequence[int]] = web.AppKey("ports")
HANDLERS = frozenset(route.handler for route in ROUTES)


def is_speech_route(request: web.Request) -> bool:
    """Returns whether `server_io.guard` applies: a speech API path, existing or not, so that
    clients get errors in OpenAI's format."""
    if request.match_info.handler in HANDLERS:
        return True
    return SPEECH in request.app and request.path.startswith("/v1/")


async def _no_continue(request: web.Request) -> None:
    """The guard, or `SpeechServer.request`, requests the body; see RequestContext.proceed."""


def mount(app: web.Application, server: SpeechServer) -> None:
    """Adds the routes of the server's engines; the application's guard must be `server_io.guard`,
    or call it for these handlers."""
    app[SPEECH] = server
    app[QUEUED] = frozenset(route.handler for route in ROUTES if route.queued)
    app.on_response_prepare.append(on_prepare)
    if server.replies is not None:
        app[REPLIES] = server.replies
    for route in ROUTES:
        if route.needs is None or route.needs in server.engines:
            for method in (route.method, *(["HEAD"] if route.heads else [])):
                app.router.add_route(method, route.path, route.handler, expect_handler=_no_continue)


def application(server: SpeechServer, access: Callable[[], AccessPolicy]) -> web.Application:
    """Returns the application of a speech server with health and metrics. `access` returns the
    current policy."""
    app = web.Application(middlewares=[guard], client_max_size=MAX_BODY_BYTES)
    health = Health(server.health, server.readiness, server.metrics.registry)
    add_health_routes(app, health)
    if server.ports:
        app[PORTS] = server.ports
        app.router.add_get("/workers", _workers)
    mount(app, server)
    open_door(app, access)
    return app


async def _workers(request: web.Request) -> web.Response:
    """Lists the workers of this machine by the name it was asked by, for `[asr] url`."""
    try:
        origin = request.url.origin()
    except ValueError as fault:
        raise web.HTTPBadRequest(text="the Host header is not host[:port]") from fault
    urls = [str(origin.with_port(port)) for port in request.app[PORTS]]
    return web.json_response({"workers": [{"url": url} for url in urls]})


@asynccontextmanager
async def listening(
    server: SpeechServer, access: Callable[[], AccessPolicy], listeners: Sequence[Listen]
) -> AsyncIterator[list[str]]:
    """Serves while inside and closes the server at the end. Yields the addresses. Raises
    OSError."""
    runner = Runner(application(server, access), shutdown_timeout=CLOSE_S)
    await runner.setup()
    try:
        yield [await listen(runner) for listen in listeners]
    finally:
        server.stop_streams()
        await runner.cleanup()
        await server.close()
