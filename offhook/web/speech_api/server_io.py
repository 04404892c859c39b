"""The speech server: its engines, admission of requests, and the guard around every handler.

The routes are in `web.workers.routes_io`. `guard` runs each handler as a task that is cancelled
when its client disconnects, and answers the errors that it raises.
"""

import asyncio
import re
import secrets
import time
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, replace
from typing import Any, Generic, TypeVar, cast

from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError
from loguru import logger
from prometheus_client import CollectorRegistry

from offhook import __version__
from offhook.pipeline.engines.shared.tts_models import CACHE_MB, NO_CACHE
from offhook.pipeline.speech.errors import (
    EngineError,
    EngineFailed,
    EngineFault,
    EngineOverloaded,
    UnsupportedRequest,
)
from offhook.pipeline.speech.recognizer import Recognizer, TurnAnswers
from offhook.pipeline.speech.script.lexicon import NO_LEXICON
from offhook.pipeline.speech.synthesizer import Synthesizer, VoiceOptions
from offhook.web.config.programs import Speech
from offhook.web.http.access import Refusal
from offhook.web.http.access_io import admit, holders_of
from offhook.web.http.connection_io import has_disconnected
from offhook.web.http.listening_io import BodyTimeoutError
from offhook.web.http.shares import NOBODY, Holders, Shares
from offhook.web.speech_api.admission import Admission, ByteBudget, KeyLimits, Kind, Limits, Ticket
from offhook.web.speech_api.disconnect_io import ClientDisconnected, run
from offhook.web.speech_api.errors import ApiError, engine_fault, too_large
from offhook.web.speech_api.http.audio_encoder import Format
from offhook.web.speech_api.http.speech_request import SpeechRequest, parse
from offhook.web.speech_api.metrics import Labels, SpeechMetrics
from offhook.web.speech_api.reply_cache_io import Keep, ResolvedVoices, SpeechCache
from offhook.web.speech_api.sockets.engine_metrics import AsrMetrics, TtsMetrics
from offhook.web.speech_api.sockets.worker_stream_io import WorkerStream
from offhook.web.speech_api.stages import Stages

LOADING_S = 300.0
"""Maximum time in s that a request waits for its engine to load; then it is refused with 503 and
Retry-After."""
RETRY_AFTER_S = 5
"""Default Retry-After in s."""
GONE = 499
"""Logged status of a request whose client disconnected; never sent."""
REFUSED = (*range(400, 500), 503)
"""Statuses of requests that are wrong, break off or find no room; of each endpoint and key they are
logged once a minute, as are streams of less than USED_S."""
USED_S = 1.0
"""Audio in s."""
SWITCHING = 101
"""Status of a WebSocket."""
DRAIN_CHECK_S = 0.05
ALIASES: dict[Kind, tuple[str, ...]] = {
    "transcription": (
        *("whisper-1", "gpt-4o-transcribe", "gpt-4o-mini-transcribe", "gpt-transcribe"),
        *("gpt-live-transcribe", "gpt-realtime-whisper"),
    ),
    "speech": ("tts-1", "tts-1-hd", "gpt-4o-mini-tts"),
}
"""OpenAI's model names, mapped to the local engines; [speech] aliases adds more."""

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
Turn = Callable[[], Awaitable[None]]
"""Waits until the request may run; await it once the body is received."""
E_co = TypeVar("E_co", covariant=True)


@dataclass(frozen=True)
class EngineHandle(Generic[E_co]):
    """An engine that may still have to be loaded."""

    get: Callable[[], Awaitable[E_co]]
    """Returns the engine once it has loaded. Raises EngineError."""
    name: Callable[[], str]
    """Returns the engine's name, e.g. "qwen3-asr"."""
    model: Callable[[], str]
    """Returns the model; empty while unknown."""
    languages: Callable[[], Sequence[str]] = tuple
    """Returns the languages of a recognizer as BCP 47 tags; empty while unknown."""


class RequestContext:
    """The state of one request, whatever protocol it came by."""

    def __init__(self, given_id: str = "") -> None:
        """`given_id` is the client's, used if it is a valid one."""
        is_valid = re.fullmatch(r"[\w.-]{1,64}", given_id, re.ASCII)
        self.id = given_id if is_valid else uuid.uuid4().hex
        self.key = ""
        """Name of the API key."""
        self.holders: Holders = NOBODY
        """Those for whom the stream is counted."""
        self.stages = Stages(time.monotonic)
        self.kind: Kind | None = None
        """Set when the request enters `SpeechServer.request` or `.stream`."""
        self.labels = Labels()
        """Of its metrics."""
        self.audio_s = 0.0
        """Seconds of audio recognized or synthesized; see SpeechServer.count_audio."""
        self.keep: Keep | None = None
        """Called with the whole reply if another process caches it."""


class HttpContext(RequestContext):
    """The state of one HTTP request, `request[CONTEXT]`, created by the guard."""

    def __init__(self, request: web.Request) -> None:
        super().__init__(request.headers.get("X-Request-Id", ""))
        self.request = request
        self.has_begun = False
        """Whether the head of its response has been sent."""
        self._continued = False

    async def proceed(self) -> None:
        """Sends 100 Continue if the client waits for it (RFC 9110 §10.1.1)."""
        expects = self.request.headers.get("Expect", "").lower() == "100-continue"
        if expects and not self._continued and self.request.version >= (1, 1):
            self._continued = True
            writer = self.request.writer
            await writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
            writer.output_size = 0  # the response has not started


class SpeechServer:
    """Offers speech engines to programs over HTTP and WebSocket.

    It serves the speech API of an edge, the gateway (`gateway_io.Gateway`) and a worker
    (`worker_io.Worker`). `audio_cache` is "" for a cache in memory, a Redis URL, or "off". Raises
    EngineError if the cache cannot be used.
    """

    engine_metrics: AsrMetrics | TtsMetrics | None = None
    """Set in a worker, whose clients are our own servers: they get an engine's own error messages,
    errors on the socket rather than as HTTP status, and connections count only while in use."""
    calls_come_first = False
    """Whether calls have priority over requests."""
    loading_s: float | None = LOADING_S
    """Maximum time in s that a request waits for its engine to load; None: unlimited."""
    ready = True
    """Whether every required engine has loaded."""

    def __init__(
        self,
        settings: Speech,
        recognizer: EngineHandle[Recognizer] | None,
        synthesizer: EngineHandle[Synthesizer] | None,
        registry: CollectorRegistry | None = None,
        audio_cache: str = "",
        limits: Limits | None = None,
        audio_cache_mb: int = CACHE_MB,
    ) -> None:
        self.settings = settings
        self.id = secrets.token_hex(8)
        """Random name of this server, by which clients know that it was started anew."""
        self.draining = False
        """Whether new requests are rejected."""
        self.streams: set[WorkerStream] = set()
        """Open WebSockets, stopped before the server is."""
        handles: dict[Kind, EngineHandle[Any] | None] = {
            "transcription": recognizer,
            "speech": synthesizer,
        }
        self.engines = {kind: handle for kind, handle in handles.items() if handle is not None}
        self.ports: Sequence[int] = ()
        """Ports of the workers of this machine, where /workers lists them."""
        self.admission = Admission(limits or limits_of(settings), _limits_of(settings))
        self.uploads = ByteBudget(settings.transcriptions * settings.max_upload_mb << 20)
        """Budget of all uploads on disk."""
        registry = registry or CollectorRegistry()
        self.metrics = SpeechMetrics(registry, self.admission)
        keeps = synthesizer is not None and audio_cache != NO_CACHE
        self.replies = SpeechCache(audio_cache, audio_cache_mb, registry) if keeps else None
        self.resolved = ResolvedVoices()
        self.lexicon = NO_LEXICON
        """How words are said."""

    def use_keys(self, settings: Speech, shares: Shares) -> None:
        """Replaces the rate limits of the API keys and the callers' shares; the access policy
        decides which keys are valid."""
        self.admission.use_keys(_limits_of(settings))
        self.admission.shares = shares

    # --- life ---

    def begin_drain(self) -> None:
        """Rejects new requests and tells the clients of open streams."""
        self.draining = True
        for stream in self.streams:
            stream.announce_drain()

    @property
    def is_used(self) -> bool:
        """Returns whether there are requests or streams in progress. A silent caller's stream is
        one; a connection on which no voice is being made is not."""
        return self.admission.is_busy or bool(self.admission.lanes["transcription"].idle)

    async def drain(self, seconds: float) -> None:
        """Rejects new requests and waits up to `seconds` for what is in progress."""
        self.begin_drain()
        until = time.monotonic() + seconds
        while self.is_used and time.monotonic() < until:
            await asyncio.sleep(DRAIN_CHECK_S)

    def stop_streams(self) -> None:
        """Ends the open WebSockets; their clients are told to reconnect."""
        for stream in self.streams:
            stream.stop()

    async def close(self) -> None:
        if self.replies is not None:
            await self.replies.close()

    @property
    def turns(self) -> TurnAnswers | None:
        """What answers whether speakers' turns are over; None: nothing does."""
        return None

    async def handed_over(self, request: web.Request) -> web.StreamResponse | None:
        """Leaves a WebSocket to another process until it closes, and returns its response; None if
        this process serves it."""
        return None

    async def spoken_elsewhere(
        self, request: web.Request, body: bytes, keep: Keep | None
    ) -> web.StreamResponse | None:
        """Leaves a request for speech, whose turn has come, to another process until it has
        answered, and returns its response; None if this process answers. `keep` gets the reply."""
        return None

    def engine_broke(self, error: EngineFailed) -> None:
        """Called when an engine has failed for good."""

    def health(self) -> dict[str, Any]:
        """Returns the body of GET /healthz."""
        lanes = self.admission.lanes
        return {
            "status": "draining" if self.draining else "ok",
            "running": {kind: len(lane.running) for kind, lane in lanes.items()},
            "waiting": {kind: len(lane.waiting) for kind, lane in lanes.items()},
            "streams": {kind: len(lane.streams) for kind, lane in lanes.items()},
        }

    def readiness(self) -> dict[str, Any]:
        """Returns the body of GET /readyz; `ready` decides its status."""
        ready = self.ready and not self.draining
        names = {"asr": self.name("transcription"), "tts": self.name("speech")}
        return {"ready": ready, **names, **self.identity()}

    def identity(self) -> dict[str, Any]:
        """Returns what clients that choose among servers ask for, part of /readyz."""
        free = min(map(self.free, self.engines), default=0.0)
        version, draining = __version__, self.draining
        return {"id": self.id, "version": version, "free": free, "draining": draining}

    def free(self, kind: Kind) -> float:
        """Returns the free share of the streams of a kind; 0.0 while draining."""
        return 0.0 if self.draining else round(self.admission.free_share(kind), 4)

    # --- engines ---

    async def recognizer(self) -> Recognizer:
        """Returns the recognizer once it has loaded. Raises EngineError; ApiError 501 if there is
        none."""
        return cast(Recognizer, await self._loaded("transcription", "ASR"))

    async def synthesizer(self) -> Synthesizer:
        """Returns the synthesizer once it has loaded. Raises EngineError; ApiError 501 if there is
        none."""
        return cast(Synthesizer, await self._loaded("speech", "TTS"))

    async def _loaded(self, kind: Kind, what: str) -> object:
        handle = self.engines.get(kind)
        if handle is None:
            raise ApiError(501, f"no {what} engine is configured")
        try:
            async with asyncio.timeout(self.loading_s):
                return await handle.get()
        except EngineOverloaded:
            raise
        except EngineError as error:
            fault: EngineFault = "unloaded" if error.fault == "failed" else error.fault
            raise EngineError(f"the engine could not be loaded: {error}", fault) from error
        except TimeoutError as error:
            words = f"the engine did not load in {self.loading_s} s"
            raise EngineError(words, "loading") from error

    def name(self, kind: Kind) -> str:
        """Returns the engine's name, e.g. "qwen3-asr"; empty without an engine."""
        return self.engines[kind].name() if kind in self.engines else ""

    def model(self, kind: Kind) -> str:
        """Returns the engine's model; empty while unknown."""
        return self.engines[kind].model() if kind in self.engines else ""

    def languages(self, kind: Kind) -> Sequence[str]:
        """Returns the languages that the engine recognizes; empty while unknown."""
        return self.engines[kind].languages() if kind in self.engines else ()

    def prioritized(self, options: VoiceOptions) -> VoiceOptions:
        """Returns the request's options, not live if calls have priority."""
        return replace(options, live=options.live and not self.calls_come_first)

    def own_models(self, kind: Kind) -> list[str]:
        """Returns the names of this kind's engine: its model's, then its own."""
        names = self.model(kind), self.name(kind)
        return list(dict.fromkeys(name for name in names if name))

    def aliases(self, kind: Kind) -> list[str]:
        """Returns further names of this kind's engine: OpenAI's, and those of [speech] aliases."""
        ours = [name for name, meant in self.settings.aliases.items() if meant == kind]
        return [*ALIASES[kind], *ours]

    def voice_called(self, name: str) -> str:
        """Resolves a voice alias of the configuration; other names are returned unchanged."""
        meant = self.settings.aliases.get(name, name)
        return name if meant in ALIASES else meant

    def check_model(self, kind: Kind, name: str) -> None:
        """Raises ApiError 404 for an unknown model; any name is accepted while a remote engine's
        model is unknown."""
        own, aliases = self.own_models(kind), self.aliases(kind)
        if name not in (*own, *aliases) and own:
            there = ", ".join((*own, *aliases))
            words = f"there is no model {name[:200]!r} for {kind} here (there: {there})"
            raise ApiError(404, words, "model", "model_not_found")

    def request_to_speak(self, body: bytes, form: Format | None = None) -> SpeechRequest:
        """Parses a body of POST /v1/audio/speech and resolves the voice alias. Raises ApiError 400,
        404."""
        request = parse(body, form, lenient=self.settings.lenient)
        if request.model:
            self.check_model("speech", request.model)
        return replace(request, voice=self.voice_called(request.voice))

    # --- admission ---

    @asynccontextmanager
    async def request(
        self, kind: Kind, context: HttpContext, most_bytes: int
    ) -> AsyncIterator[Turn]:
        """Admits a request: inside, its body is received; after awaiting the yielded function, it
        runs. Raises ApiError 413 if it announces more than `most_bytes`, 429, 503 before the body
        is requested, and 503 if the queue has filled up meanwhile."""
        self._check_open()
        if (context.request.content_length or 0) > most_bytes:
            raise too_large(most_bytes)
        context.kind = kind
        now = time.monotonic()
        ticket = self.admission.receive(kind, context.key, now, holders=context.holders)

        async def turn() -> None:
            context.stages.mark("received")
            come = asyncio.get_running_loop().create_future()
            self.admission.enqueue(ticket, time.monotonic(), lambda: _set(come))
            await come
            context.stages.mark("queued")

        try:
            await context.proceed()
            yield turn
        finally:
            self.admission.release(ticket, time.monotonic())

    @contextmanager
    def stream(self, kind: Kind, context: RequestContext) -> Iterator[Ticket]:
        """Admits a WebSocket, as idle on a worker, where our own servers keep some ready: there
        nobody has a share. Raises ApiError 429, 503."""
        self._check_open()
        context.kind = kind
        key, now = context.key, time.monotonic()
        if self.engine_metrics is not None:
            ticket = self.admission.open(kind, key, now, idle=True)
        else:
            ticket = self.admission.open(kind, key, now, holders=context.holders)
        try:
            yield ticket
        finally:
            self.admission.release(ticket, time.monotonic())

    @asynccontextmanager
    async def in_use(self, ticket: Ticket) -> AsyncIterator[None]:
        """Marks a stream as using the engine. Raises ApiError 503."""
        if ticket.lane in ("stream", "left"):  # in use as long as it is open
            yield
            return
        self.use(ticket)
        try:
            yield
        finally:
            self.rest(ticket)

    def use(self, ticket: Ticket, *, always: bool = False) -> None:
        """Marks an idle stream as using the engine. Raises ApiError 503, but not if it is to be
        used `always`."""
        if not always:
            self._check_open()
        self.admission.use(ticket, always=always)

    def rest(self, ticket: Ticket) -> None:
        self.admission.rest(ticket, time.monotonic())

    def _check_open(self) -> None:
        if self.draining:
            words = "the server is stopping: connect again"
            raise ApiError(503, words, retry_after_s=RETRY_AFTER_S)

    def count_audio(self, context: RequestContext, seconds: float) -> None:
        """Adds seconds of audio recognized or synthesized for the request."""
        if context.kind is not None:
            context.audio_s += seconds
            self.metrics.audio[context.kind].inc(seconds)

    def count_stream_audio(self, seconds: float) -> None:
        """Adds seconds of audio of a worker's stream."""
        if self.engine_metrics is not None:
            self.engine_metrics.audio.inc(seconds)

    def reply_began(self, seconds: float) -> None:
        """Counts a reply whose first audio took so long."""
        if isinstance(self.engine_metrics, TtsMetrics):
            self.engine_metrics.first_sound.observe(seconds)

    def reply_ended(self, reason: str) -> None:
        if isinstance(self.engine_metrics, TtsMetrics):
            self.engine_metrics.replies.labels(reason).inc()

    def final_sent(self, seconds: float) -> None:
        """Counts a final that came so long after the end of its utterance."""
        if isinstance(self.engine_metrics, AsrMetrics):
            self.engine_metrics.final.observe(seconds)

    def turn_judged(self, seconds: float, answered: bool) -> None:
        """Counts a question whether a turn is over, which took so long."""
        if isinstance(self.engine_metrics, AsrMetrics):
            if answered:
                self.engine_metrics.turn.observe(seconds)
            else:
                self.engine_metrics.turns_unanswered.inc()

    def stream_ended(self, code: str) -> None:
        """Counts a stream that has ended with this error code, or `none`."""
        if self.engine_metrics is not None:
            self.engine_metrics.ended.labels(code).inc()

    # --- records ---

    def record(self, method: str, endpoint: str, context: RequestContext, status: int) -> None:
        """Records a finished request in metrics and log."""
        stages = context.stages
        stages.mark("done")
        labels = (endpoint, str(status))
        self.metrics.requests.labels(*labels).inc()
        self.metrics.request.labels(*labels).observe(stages.total())
        if status == GONE:
            self.metrics.cancelled.labels(endpoint).inc()
        if (first := stages.seconds("first_byte")) is not None:
            self.metrics.first_byte.labels(endpoint).observe(first)
        if (encoded := stages.seconds("encoded")) is not None:
            self.metrics.encode.labels(context.labels.format or "none").observe(encoded)
        if context.kind is not None:
            if (queued := stages.seconds("queued")) is not None:
                self.metrics.queue.labels(context.kind).observe(queued)
            if (inferred := stages.seconds("inferred")) is not None:
                self.metrics.count_inference(context.kind, context.labels, inferred)
        line = logger.bind(
            endpoint=endpoint,
            status=status,
            key=context.key,
            kind=context.kind,
            audio_s=round(context.audio_s, 3),
            **stages.as_dict(),
        )
        times = " ".join(f"{name} {value}" for name, value in stages.as_dict().items())
        internal = context.kind is None or (self.engine_metrics is not None and status == 101)
        level = "DEBUG" if internal else "INFO"
        unused = status == SWITCHING and context.audio_s < USED_S
        if unused or status in REFUSED:  # which anyone can have written, as often as they like
            line = line.bind(a_minute=f"{endpoint} {status} {context.key}")
        line.log(level, "{} {} {}: {}; {}", method, endpoint, status, times, context.id)


SPEECH: web.AppKey[SpeechServer] = web.AppKey("speech", SpeechServer)
CONTEXT: web.RequestKey[HttpContext] = web.RequestKey("context", HttpContext)
QUEUED: web.AppKey[frozenset[Any]] = web.AppKey("queued")
"""Handlers that enter `SpeechServer.request`, which requests the body."""


def limits_of(settings: Speech) -> Limits:
    running: dict[Kind, int] = {
        "transcription": settings.transcriptions,
        "speech": settings.speeches,
    }
    return Limits(running, settings.queue, settings.streams)


def _limits_of(settings: Speech) -> dict[str, KeyLimits]:
    return {k.name: KeyLimits(k.max_requests, k.requests_per_minute) for k in settings.keys}


def _set(future: "asyncio.Future[None]") -> None:
    if not future.done():
        future.set_result(None)


def _endpoint(request: web.Request) -> str:
    resource = request.match_info.route.resource
    return resource.canonical if resource is not None else "none"


# --- guard ---


@web.middleware
async def guard(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Authorizes a request, runs its handler, and converts exceptions to responses."""
    server = request.app[SPEECH]
    context = HttpContext(request)
    request[CONTEXT] = context
    with logger.contextualize(request=context.id):
        status = GONE
        try:
            response = await _answer(server, request, handler)
            status = response.status
            return response
        except ConnectionError:  # including ClientDisconnected
            return web.Response(status=GONE)
        finally:
            server.record(request.method, _endpoint(request), context, status)


async def _answer(
    server: SpeechServer, request: web.Request, handler: Handler
) -> web.StreamResponse:
    """Raises ConnectionError if the client has disconnected."""
    context = request[CONTEXT]
    try:
        context.key = admit(request).key
        if server.engine_metrics is None:
            context.holders = holders_of(request)
        if request.match_info.handler not in request.app[QUEUED]:
            await context.proceed()
        response = await run(request, handler)
        if not context.has_begun:
            context.stages.mark("first_byte")
        return response
    except Exception as error:
        if isinstance(error, ConnectionError) and (context.has_begun or has_disconnected(request)):
            raise  # not the client's
        if isinstance(error, EngineFailed):
            server.engine_broke(error)
        fault = fault_of(error, context.id)
        if isinstance(error, web.HTTPNotFound) and request.path.endswith("/"):
            fault = ApiError(404, "no such path: leave out the / at its end")
        if isinstance(error, EngineError):
            logger.warning("{}: {}", _endpoint(request), error)
        if fault.status == 500:
            logger.opt(exception=error).error("{} failed", _endpoint(request))
        if context.has_begun:  # too late for an error: the response is left incomplete
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
    """Returns the error for the client; an EngineError's own message is only logged."""
    match error:
        case ApiError():
            return error
        case UnsupportedRequest():
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
            return ApiError(400, "the body does not match its headers")
        case web.HTTPNotFound():
            return ApiError(404, "no such path: see /openapi.json")
        case web.HTTPMethodNotAllowed():
            allowed = ", ".join(sorted(error.allowed_methods))
            return ApiError(405, f"{error.method} is not allowed, only {allowed}")
        case web.HTTPException():
            return ApiError(
                error.status, (error.text or error.reason).removeprefix(f"{error.status}: ")
            )
    return ApiError(500, "internal server error; see the server log")


async def on_prepare(request: web.Request, response: web.StreamResponse) -> None:
    """Adds the headers common to all responses."""
    context = request.get(CONTEXT)
    if context is None:
        return
    context.has_begun = True
    server = request.app[SPEECH]
    extra: Mapping[str, str] = {
        "X-Request-Id": context.id,
        **(context.stages.headers() if context.kind is not None else {}),
        **server.admission.headers(context.key, time.monotonic()),
    }
    response.headers.update(extra)
