"""What every handler of the speech API stands on: the engines, who may ask, whose turn it is.

The routes are in `routes_io`. Handlers are plain; `guard` runs each as a task that ends when its
client leaves, and answers what it raises.
"""

import asyncio
import re
import time
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, replace
from typing import Any, Generic, TypeVar

from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError
from loguru import logger
from prometheus_client import CollectorRegistry

from offhook.pipeline.engine.tts_models import NO_CACHE
from offhook.pipeline.speech.recognizer import (
    EngineBroken,
    EngineError,
    EngineFault,
    EngineFull,
    NotPossible,
    Recognizer,
)
from offhook.pipeline.speech.synthesizer import Synthesizer, VoiceOptions
from offhook.web.config.config import Speech
from offhook.web.http.access import Refusal
from offhook.web.http.access_io import admit
from offhook.web.http.listening_io import BodyTimeoutError
from offhook.web.speech_api.admission import Admission, ByteBudget, KeyLimits, Kind, Limits
from offhook.web.speech_api.disconnect_io import ClientDisconnected, has_left, run
from offhook.web.speech_api.errors import ApiError, engine_fault
from offhook.web.speech_api.http.audio_encoder import Format
from offhook.web.speech_api.http.speech_request import SpeechRequest, parse
from offhook.web.speech_api.metrics import SpeechMetrics
from offhook.web.speech_api.reply_cache_io import ReplyCache
from offhook.web.speech_api.sockets.worker_stream_io import WorkerStream
from offhook.web.speech_api.stages import Stages

LOADING_S = 300.0
"""The longest a request waits for its engine to load."""
RETRY_AFTER_S = 5
"""When to come again, where nothing says how long it will take."""
GONE = 499
"""The status in logs of a request whose client left; nobody is told."""
ALIASES: dict[Kind, tuple[str, ...]] = {
    "transcription": (
        *("whisper-1", "gpt-4o-transcribe", "gpt-4o-mini-transcribe", "gpt-transcribe"),
        *("gpt-live-transcribe", "gpt-realtime-whisper"),
    ),
    "speech": ("tts-1", "tts-1-hd", "gpt-4o-mini-tts"),
}
"""OpenAI's names, which programs send unless told otherwise: whatever runs here. More come from
[speech] aliases."""

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
Turn = Callable[[], Awaitable[None]]
"""Waits for the request's turn, once its body is received."""
E_co = TypeVar("E_co", covariant=True)


@dataclass(frozen=True)
class EngineHandle(Generic[E_co]):
    """An engine, and how to get it."""

    get: Callable[[], Awaitable[E_co]]
    """Waits for it to have loaded. Raises EngineError."""
    name: Callable[[], str]
    """As "qwen3-asr"."""
    model: Callable[[], str]
    """"" while it is not known."""


Hears = EngineHandle[Recognizer]
Speaks = EngineHandle[Synthesizer]


class RequestContext:
    """One request; `request[ASKED]`, made by guard."""

    def __init__(self, request: web.Request) -> None:
        given = request.headers.get("X-Request-Id", "")
        self.id = given if re.fullmatch(r"[\w.-]{1,64}", given, re.ASCII) else uuid.uuid4().hex
        self.key = ""
        """The name of the API key."""
        self.stages = Stages(time.monotonic)
        self.kind: Kind | None = None
        """Once it has asked for a turn, or a stream."""
        self.format = ""
        """Of the answer's sound: a label of the time to encode it."""
        self.audio_s = 0.0
        """Sound heard or made: see SpeechServer.count_audio."""
        self.has_begun = False
        """Its answer's head is on the way."""
        self._request = request
        self._continued = False

    async def proceed(self) -> None:
        """Let the body come, when the client waits to be told (RFC 9110 §10.1.1)."""
        expects = self._request.headers.get("Expect", "").lower() == "100-continue"
        if expects and not self._continued and self._request.version >= (1, 1):
            self._continued = True
            writer = self._request.writer
            await writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
            writer.output_size = 0  # the answer has not begun


class SpeechServer:
    """The engines of one process, as programs use them.

    `audio_cache`: tts_audio_cache, a Redis or "off". Raises EngineError when that cannot be.
    """

    def __init__(
        self,
        settings: Speech,
        hears: Hears | None,
        speaks: Speaks | None,
        registry: CollectorRegistry | None = None,
        audio_cache: str = "",
    ) -> None:
        self.settings = settings
        self.draining = False
        """No more requests are taken."""
        self.streams: set[WorkerStream] = set()
        """WebSockets in conversation, to be stopped before the server is."""
        self.calls_come_first = False
        """Nothing that programs ask for goes before a call's."""
        self.on_broken: Callable[[EngineBroken], None] = lambda error: None
        """Told when the engine cannot go on."""
        self._hears, self._speaks = hears, speaks
        running: dict[Kind, int] = {
            "transcription": settings.transcriptions,
            "speech": settings.speeches,
        }
        limits = Limits(running, settings.queue, settings.streams)
        self.admission = Admission(limits, _limits_of(settings))
        self.uploads = ByteBudget(settings.transcriptions * settings.max_upload_mb << 20)
        """What lies on disk of all that was uploaded."""
        registry = registry or CollectorRegistry()
        self.metrics = SpeechMetrics(registry, self.admission)
        keeps = speaks is not None and audio_cache != NO_CACHE
        self.replies = ReplyCache(audio_cache, registry) if keeps else None

    def use_keys(self, settings: Speech) -> None:
        """Other keys, or other limits of theirs; who may ask is for the access policy to say."""
        self.admission.use_keys(_limits_of(settings))

    async def close(self) -> None:
        if self.replies is not None:
            await self.replies.close()

    # --- engines ---

    async def recognizer(self) -> Recognizer:
        """Waits for it to have loaded. Raises EngineError; ApiError 501 when there is none."""
        return await _loaded(self._hears, "hear")

    async def synthesizer(self) -> Synthesizer:
        """As `recognizer`."""
        return await _loaded(self._speaks, "speak")

    def spoken(self, options: VoiceOptions) -> VoiceOptions:
        """The options with which a request's text is spoken here."""
        return replace(options, live=options.live and not self.calls_come_first)

    @property
    def asr_name(self) -> str:
        return self._hears.name() if self._hears is not None else ""

    @property
    def asr_model(self) -> str:
        return self._hears.model() if self._hears is not None else ""

    @property
    def tts_name(self) -> str:
        return self._speaks.name() if self._speaks is not None else ""

    @property
    def tts_model(self) -> str:
        return self._speaks.model() if self._speaks is not None else ""

    def kinds(self) -> list[Kind]:
        """What there is an engine for."""
        served: dict[Kind, object] = {"transcription": self._hears, "speech": self._speaks}
        return [kind for kind, engine in served.items() if engine is not None]

    def own_models(self, kind: Kind) -> list[str]:
        """The names by which the engine of this kind is known, its model's first."""
        served = self._hears if kind == "transcription" else self._speaks
        names = (served.model(), served.name()) if served is not None else ()
        return list(dict.fromkeys(name for name in names if name))

    def aliases(self, kind: Kind) -> list[str]:
        """Other names of it: OpenAI's, and those of the configuration."""
        ours = [name for name, meant in self.settings.aliases.items() if meant == kind]
        return [*ALIASES[kind], *ours]

    def voice_called(self, name: str) -> str:
        """The engine's name of a voice that has another in the configuration, else the name."""
        meant = self.settings.aliases.get(name, name)
        return name if meant in ALIASES else meant

    def check_model(self, kind: Kind, name: str) -> None:
        """Raises ApiError 404 for a model that is not here. One elsewhere whose model we do not
        know yet takes any name."""
        own, aliases = self.own_models(kind), self.aliases(kind)
        if name not in (*own, *aliases) and own:
            there = ", ".join((*own, *aliases))
            words = f"there is no model {name[:200]!r} for {kind} here (there: {there})"
            raise ApiError(404, words, "model", "model_not_found")

    def request_to_speak(self, body: bytes, form: Format | None = None) -> SpeechRequest:
        """What a body of POST /v1/audio/speech asks for, with the engine's name of the voice; as
        `speech_request.parse`. Raises ApiError 400, 404."""
        request = parse(body, form, lenient=self.settings.lenient)
        if request.model:
            self.check_model("speech", request.model)
        return replace(request, voice=self.voice_called(request.voice))

    # --- admission ---

    @asynccontextmanager
    async def request(self, kind: Kind, asked: RequestContext) -> AsyncIterator[Turn]:
        """Inside, a request is received, and then, once what is yielded has been awaited, it is its
        turn. Raises ApiError 429, 503 before the body is asked for when there is no room to wait,
        and 503 when there is none any more."""
        self._check_open()
        asked.kind = kind
        ticket = self.admission.come(kind, asked.key, time.monotonic())

        async def turn() -> None:
            asked.stages.mark("received")
            come = asyncio.get_running_loop().create_future()
            self.admission.ask(ticket, time.monotonic(), lambda: _set(come))
            await come
            asked.stages.mark("queued")

        try:
            await asked.proceed()
            yield turn
        finally:
            self.admission.leave(ticket, time.monotonic())

    @contextmanager
    def stream(self, kind: Kind, asked: RequestContext) -> Iterator[None]:
        """Inside, a WebSocket is open; to be entered before the upgrade. Raises ApiError 429,
        503."""
        self._check_open()
        asked.kind = kind
        ticket = self.admission.open(kind, asked.key, time.monotonic())
        try:
            yield
        finally:
            self.admission.leave(ticket, time.monotonic())

    def _check_open(self) -> None:
        if self.draining:
            raise ApiError(503, "the server is stopping: ask again", retry_after_s=RETRY_AFTER_S)

    def count_audio(self, asked: RequestContext, seconds: float) -> None:
        """So much more sound was heard or made for it."""
        if asked.kind is not None:
            asked.audio_s += seconds
            self.metrics.audio[asked.kind].inc(seconds)

    # --- what was done ---

    def note(self, request: web.Request, asked: RequestContext, status: int) -> None:
        """A request is over: into metrics and log."""
        stages, endpoint = asked.stages, _endpoint(request)
        stages.mark("done")
        labels = (endpoint, str(status))
        self.metrics.requests.labels(*labels).inc()
        self.metrics.request.labels(*labels).observe(stages.total())
        if status == GONE:
            self.metrics.cancelled.labels(endpoint).inc()
        if (first := stages.seconds("first_byte")) is not None:
            self.metrics.first_byte.labels(endpoint).observe(first)
        if (encoded := stages.seconds("encoded")) is not None:
            self.metrics.encode.labels(asked.format or "none").observe(encoded)
        if asked.kind is not None:
            if (queued := stages.seconds("queued")) is not None:
                self.metrics.queue.labels(asked.kind).observe(queued)
            if (inferred := stages.seconds("inferred")) is not None:
                self.metrics.inference.labels(asked.kind).observe(inferred)
        line = logger.bind(
            endpoint=endpoint,
            status=status,
            key=asked.key,
            kind=asked.kind,
            audio_s=round(asked.audio_s, 3),
            **stages.as_dict(),
        )
        times = " ".join(f"{name} {value}" for name, value in stages.as_dict().items())
        level = "INFO" if asked.kind is not None else "DEBUG"
        line.log(level, "{} {} {}: {}; {}", request.method, endpoint, status, times, asked.id)


SPEECH: web.AppKey[SpeechServer] = web.AppKey("speech", SpeechServer)
ASKED: web.RequestKey[RequestContext] = web.RequestKey("asked", RequestContext)
TAKE_TURNS: web.AppKey[frozenset[Any]] = web.AppKey("take_turns")
"""Handlers that let the body come themselves, when there is room for it."""


def _limits_of(settings: Speech) -> dict[str, KeyLimits]:
    return {k.name: KeyLimits(k.max_requests, k.requests_per_minute) for k in settings.keys}


def _set(future: "asyncio.Future[None]") -> None:
    if not future.done():
        future.set_result(None)


async def _loaded(served: EngineHandle[E_co] | None, what: str) -> E_co:
    if served is None:
        raise ApiError(501, f"this server has no engine to {what} with")
    try:
        async with asyncio.timeout(LOADING_S):
            return await served.get()
    except EngineFull:
        raise
    except EngineError as error:
        fault: EngineFault = "unloaded" if error.fault == "failed" else error.fault
        raise EngineError(f"the engine does not load: {error}", fault) from error
    except TimeoutError as error:
        raise EngineError(f"the engine did not load in {LOADING_S:g} s", "loading") from error


def _endpoint(request: web.Request) -> str:
    resource = request.match_info.route.resource
    return resource.canonical if resource is not None else "none"


# --- guard ---


@web.middleware
async def guard(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Who may ask, and plain answers to what cannot be done."""
    server = request.app[SPEECH]
    asked = RequestContext(request)
    request[ASKED] = asked
    with logger.contextualize(request=asked.id):
        status = GONE
        try:
            response = await _answer(server, request, handler)
            status = response.status
            return response
        except ConnectionError:  # also Left
            return web.Response(status=GONE)
        finally:
            server.note(request, asked, status)


async def _answer(
    server: SpeechServer, request: web.Request, handler: Handler
) -> web.StreamResponse:
    """Raises ConnectionError when the client has gone."""
    asked = request[ASKED]
    try:
        asked.key = admit(request).key
        if request.match_info.handler not in request.app[TAKE_TURNS]:
            await asked.proceed()
        response = await run(request, handler)
        if not asked.has_begun:
            asked.stages.mark("first_byte")
        return response
    except Exception as error:
        if isinstance(error, ConnectionError) and (asked.has_begun or has_left(request)):
            raise  # another is not the client's
        if isinstance(error, EngineBroken):
            server.on_broken(error)
        fault = fault_of(error, asked.id)
        if isinstance(error, EngineError):
            logger.warning("x {}: {}", _endpoint(request), error)
        if fault.status == 500:
            logger.opt(exception=error).error("{} failed", _endpoint(request))
        if asked.has_begun:  # too late for another answer: its end is missing, as it should be
            logger.error("{} ended early: {}", _endpoint(request), error)
            raise _hung_up(request) from error
        response = answer_of(fault)
        if isinstance(error, web.HTTPMethodNotAllowed):
            response.headers["Allow"] = error.headers["Allow"]
        return response


def _hung_up(request: web.Request) -> ConnectionError:
    if request.transport is not None:
        request.transport.abort()
    return ClientDisconnected("the answer could not be completed")


def answer_of(fault: ApiError, **headers: str) -> web.Response:
    more = {**fault.headers(), **headers}
    return web.json_response(fault.as_dict(), status=fault.status, headers=more)


def fault_of(error: Exception, request_id: str) -> ApiError:
    """What the client is told. The words of an EngineError are for the caller to log."""
    match error:
        case ApiError():
            return error
        case NotPossible():
            return ApiError(400, str(error), code="not_possible")
        case EngineError():
            return engine_fault(error.fault, request_id, RETRY_AFTER_S)
        case Refusal():
            return ApiError(error.status, str(error), code=error.code or None)
        case BodyTimeoutError():
            return ApiError(408, str(error))
        case web.HTTPRequestEntityTooLarge():
            return ApiError(413, "the body is too large")
        case web.RequestPayloadError() | HttpProcessingError():
            return ApiError(400, "the body is broken: it is not what its headers say")
        case web.HTTPNotFound():
            return ApiError(404, "there is no such path here: /openapi.json has them")
        case web.HTTPMethodNotAllowed():
            allowed = ", ".join(sorted(error.allowed_methods))
            return ApiError(405, f"{error.method} is not possible here, only {allowed}")
        case web.HTTPException():
            return ApiError(
                error.status, (error.text or error.reason).removeprefix(f"{error.status}: ")
            )
    return ApiError(500, "the server failed; its log says why")


async def on_prepare(request: web.Request, response: web.StreamResponse) -> None:
    """The headers that every answer has."""
    asked = request.get(ASKED)
    if asked is None:
        return
    asked.has_begun = True
    server = request.app[SPEECH]
    extra: Mapping[str, str] = {
        "X-Request-Id": asked.id,
        "X-Content-Type-Options": "nosniff",
        **(asked.stages.headers() if asked.kind is not None else {}),
        **server.admission.headers(asked.key, time.monotonic()),
    }
    response.headers.update(extra)
