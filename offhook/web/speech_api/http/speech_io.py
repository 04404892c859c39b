"""POST /v1/audio/speech, /speech/stream and /speech/pcm: synthesizes a text and streams the audio.

The response starts with the first audio, in every format; earlier failures are HTTP errors. Later
failures are an event in an event stream; plain audio is cut off.
"""

import asyncio
import base64
import json
import math
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from io import SEEK_END
from tempfile import SpooledTemporaryFile
from typing import Any, ParamSpec, TypeVar

from aiohttp import web
from loguru import logger

from offhook.media.pcm import RATE_OUT, Pcm
from offhook.pipeline.conversation.agents.spoken_content import spoken_text
from offhook.pipeline.speech.errors import EngineError, UnsupportedRequest
from offhook.pipeline.speech.script.script_io import open_speech
from offhook.pipeline.speech.streams.languages import NAMES
from offhook.pipeline.speech.synthesizer import Speech, Synthesizer, SynthesizerStream, UnknownVoice
from offhook.web.http.connection_io import allow_body
from offhook.web.speech_api.errors import ApiError, too_large
from offhook.web.speech_api.http.audio_encoder import (
    MEDIA_TYPES,
    Format,
    StreamEncoder,
    is_quick,
    open_encoder,
)
from offhook.web.speech_api.http.speech_request import MAX_BODY_BYTES, SpeechRequest
from offhook.web.speech_api.http.synthesis_io import AudioBuffer, buffered, played, spoken
from offhook.web.speech_api.metrics import Labels
from offhook.web.speech_api.reply_cache_io import REPLIES, Keep, ResolvedVoice, SpeechCache, choose
from offhook.web.speech_api.server_io import CONTEXT, SPEECH, RequestContext, SpeechServer, fault_of

BODY_S = 20.0
"""Time limit in s for the whole body; a slower one is refused with 408."""
UNREAD_S = 60.0
"""Time in s without reading after which a client is disconnected."""
IN_MEMORY_BYTES = 4 << 20
"""Size up to which a non-streamed response is kept in memory; a longer one is stored on disk."""
BLOCK_BYTES = 1 << 18
SHORT_CHARS = 2000
"""Characters of a text that is read at once; a longer one is read in a thread."""
CHARS_PER_TOKEN = 4
TOKENS_PER_S = 12.5
"""`usage` assumes English text and Qwen3-TTS's token rate, whichever engine is used."""
P = ParamSpec("P")
T = TypeVar("T")


@dataclass
class Reply:
    """The audio of a response, and its source."""

    pieces: AsyncIterator[Speech]
    stream: SynthesizerStream | None = None
    """The engine's stream that produces the pieces; None: they come from the cache."""
    keep: Keep | None = None
    """Called with all pieces once the engine has finished."""


async def speech(request: web.Request) -> web.StreamResponse:
    return await _speak(request)


async def speech_stream(request: web.Request) -> web.StreamResponse:
    return await _speak(request, always=True)


async def speech_pcm(request: web.Request) -> web.StreamResponse:
    return await _speak(request, "pcm")


async def _speak(
    request: web.Request, form: Format | None = None, *, always: bool = False
) -> web.StreamResponse:
    """`form` is the only format of this path; `always` means that the path always streams."""
    server, context = request.app[SPEECH], request[CONTEXT]
    async with server.request("speech", context, MAX_BODY_BYTES) as turn:
        body = await _body(request)
        wanted = await _readable(server.request_to_speak(body, form))
        if always and not wanted.stream:
            words = "this path always streams: POST /v1/audio/speech does not have to"
            raise ApiError(400, words, "stream")
        await turn()
        cache = None if _has_directive(request, "no-store") else request.app.get(REPLIES)
        voice = await _voice(server, context, wanted, cache)
        anew = _has_directive(request, "no-cache")
        # A remote engine must not use its cache either.
        options = replace(wanted.voice_options(voice.name), cache=cache is not None and not anew)
        keep = context.keep
        if cache is not None and (
            key := cache.key(
                f"{_engine(server)}{server.lexicon.digest}", wanted.input, voice, options
            )
        ):
            if not anew and (known := await cache.find(key)) is not None:
                return await respond(request, wanted, Reply(played(known)), voice.name)
            keep = partial(cache.put, key)
        if (response := await server.spoken_elsewhere(request, body, keep)) is not None:
            return response
        synthesizer = await _loaded(server, context)
        try:
            stream = open_speech(synthesizer, server.prioritized(options), server.lexicon)
        except ValueError as error:
            raise not_possible(error) from error
        reply = Reply(spoken(stream, wanted.input), stream, keep)
        return await respond(request, wanted, reply, voice.name)


async def _readable(wanted: SpeechRequest) -> SpeechRequest:
    """Returns the request without what a language model writes beside its answer: reasoning, tool
    calls, special tokens."""
    text = wanted.input
    spoken = await (asyncio.to_thread if len(text) > SHORT_CHARS else _here)(spoken_text, text)
    return wanted if spoken == text else replace(wanted, input=spoken)


async def _body(request: web.Request) -> bytes:
    kind = request.content_type
    if not (kind == "application/json" or kind.endswith("+json")) and "Content-Type" in (
        request.headers
    ):
        words = f"the body is {kind[:80]}: send JSON, with Content-Type: application/json"
        raise ApiError(415, words)
    allow_body(request, MAX_BODY_BYTES)
    data = bytearray()
    try:
        async with asyncio.timeout(BODY_S):
            async for block in request.content.iter_any():
                data += block
                if len(data) > MAX_BODY_BYTES:
                    raise too_large(MAX_BODY_BYTES)
    except web.HTTPRequestEntityTooLarge as error:
        raise too_large(MAX_BODY_BYTES) from error
    except TimeoutError as error:
        raise ApiError(408, f"the body did not come in {BODY_S:g} s") from error
    return bytes(data)


def _has_directive(request: web.Request, name: str) -> bool:
    """Returns whether Cache-Control has the directive: no-store, the reply is not cached; no-cache,
    it is synthesized again (RFC 9111 §5.2.1)."""
    said = request.headers.get("Cache-Control", "").lower().split(",")
    return name in (directive.strip() for directive in said)


async def _voice(
    server: SpeechServer,
    context: RequestContext,
    wanted: SpeechRequest,
    cache: SpeechCache | None,
) -> ResolvedVoice:
    """Resolves the request's voice. Raises ApiError, EngineError."""
    voice = server.resolved.find(_engine(server), wanted.voice)
    if voice is None and cache is not None:
        voice = await cache.find_voice(_engine(server), wanted.voice)
    if voice is None:
        voice = await choose(await _loaded(server, context), wanted.voice)
        if cache is not None:
            cache.share_voice(_engine(server), wanted.voice, voice)
    server.resolved.remember(_engine(server), wanted.voice, voice)
    return voice


def _engine(server: SpeechServer) -> str:
    return f"{server.name('speech')} {server.model('speech')}"


async def _loaded(server: SpeechServer, context: RequestContext) -> Synthesizer:
    synthesizer = await server.synthesizer()
    if context.stages.seconds("loaded") is None:
        context.stages.mark("loaded")
    return synthesizer


def not_possible(error: ValueError) -> ApiError:
    """Returns what a client is told of options that the engine cannot follow."""
    param = "voice" if isinstance(error, UnknownVoice) else None
    code = "not_possible" if isinstance(error, UnsupportedRequest) else None
    return ApiError(400, str(error), param, code)


# --- the response ---


async def respond(
    request: web.Request, wanted: SpeechRequest, reply: Reply, voice: str
) -> web.StreamResponse:
    """Sends the reply in the requested form. `voice` names its voice in the metrics. Raises
    ApiError, EngineError while nothing has been sent."""
    server, context = request.app[SPEECH], request[CONTEXT]
    about = wanted.response_format, voice, wanted.language, wanted.input
    context.labels = Labels.of_speech(*about)
    try:
        async with buffered(_measured(server, context, reply)) as buffer:
            response = _Response(request, wanted, reply, buffer)
            return await (response.as_made() if wanted.stream else response.at_once())
    finally:
        if reply.stream is not None:
            reply.stream.cancel()


async def _measured(
    server: SpeechServer, context: RequestContext, reply: Reply
) -> AsyncIterator[Speech]:
    """Yields the pieces, measures them, and caches the complete reply. Raises ApiError,
    EngineError."""
    made: list[Speech] = []
    try:
        async for piece in reply.pieces:
            if len(piece.pcm):
                context.stages.mark("first")
                server.count_audio(context, len(piece.pcm) / RATE_OUT)
            if reply.keep is not None:
                made.append(piece)
            yield piece
    except ValueError as error:
        raise not_possible(error) from error
    context.stages.mark("inferred")
    if reply.keep is not None and any(len(piece.pcm) for piece in made):
        reply.keep(made)


class _Response:
    """One response."""

    def __init__(
        self, request: web.Request, wanted: SpeechRequest, reply: Reply, buffer: AudioBuffer
    ) -> None:
        self._request = request
        self._context: RequestContext = request[CONTEXT]
        self._wanted = wanted
        self._buffer = buffer
        self._samples = 0
        events = wanted.stream_format == "sse"
        self._response = web.StreamResponse(
            headers={
                "Content-Type": "text/event-stream"
                if events
                else MEDIA_TYPES[wanted.response_format],
                "Cache-Control": "no-store",
                "X-Accel-Buffering": "no",  # prevents buffering in nginx
                "X-Cache": "hit" if reply.stream is None else "miss",
            }
        )
        self._wrapped = _delta if events else bytes

    async def as_made(self) -> web.StreamResponse:
        wanted = self._wanted
        form = wanted.response_format, wanted.faster
        run = _here if is_quick(*form) else asyncio.to_thread
        # FFmpeg is loaded while the engine produces the first audio.
        encoder = await run(StreamEncoder, *form)
        sound: Pcm | None = await self._first()
        await self._response.prepare(self._request)
        try:
            while sound is not None:
                await self._send(await run(encoder.push, sound))
                sound = await self._next()
        except (EngineError, ApiError) as error:
            if wanted.stream_format == "audio":
                raise
            logger.warning("speech: {}", error)
            fault = {"type": "error", **fault_of(error, self._context.id).as_dict()}
            await self._write(b"event: error\n" + _event(fault))
            return self._response
        await self._send(await run(encoder.finish))
        self._context.stages.mark("encoded")
        if wanted.stream_format == "sse":
            await self._write(_event(self._done()))
        return self._response

    async def at_once(self) -> web.StreamResponse:
        """Sends the complete response with its length."""
        wanted = self._wanted
        sound: Pcm | None = await self._first()
        with SpooledTemporaryFile(IN_MEMORY_BYTES) as file:
            encoder = await asyncio.to_thread(
                open_encoder, wanted.response_format, file, wanted.faster
            )
            while sound is not None:
                await asyncio.to_thread(encoder.write, sound)
                sound = await self._next()
            await asyncio.to_thread(encoder.close)
            self._context.stages.mark("encoded")
            self._response.content_length = file.seek(0, SEEK_END)
            await self._response.prepare(self._request)
            file.seek(0)
            while block := await asyncio.to_thread(file.read, BLOCK_BYTES):
                await self._write(block)
        return self._response

    async def _first(self) -> Pcm:
        """Returns the first audio. Raises ApiError 400 if there is none."""
        sound = await self._next()
        if sound is None:
            languages = self._request.app[SPEECH].languages("speech")
            raise ApiError(400, _no_sound(self._wanted.input, languages), "input")
        return sound

    async def _next(self) -> Pcm | None:
        sound = await self._buffer.read()
        self._samples += 0 if sound is None else len(sound)
        return sound

    async def _send(self, data: bytes) -> None:
        if data:
            await self._write(self._wrapped(data))

    async def _write(self, data: bytes) -> None:
        """Raises TimeoutError if the client does not read."""
        async with asyncio.timeout(UNREAD_S):
            await self._response.write(data)
        self._context.stages.mark("first_byte")

    def _done(self) -> dict[str, Any]:
        seconds = self._samples / RATE_OUT / self._wanted.faster
        read = -(-len(self._wanted.input) // CHARS_PER_TOKEN)
        made = math.ceil(seconds * TOKENS_PER_S)
        usage = {"input_tokens": read, "output_tokens": made, "total_tokens": read + made}
        return {
            "type": "speech.audio.done",
            "usage": usage,
            "seconds": round(seconds, 3),
            "latency": self._context.stages.as_dict(),
        }


def _no_sound(text: str, languages: Sequence[str]) -> str:
    """Says why a voice with these languages makes no sound of a text."""
    if not any(map(str.isalnum, text)):
        return "there is nothing to say in this text"
    names = [NAMES.get(code, code) for code in languages]
    if len(names) == 1:
        return f"this voice speaks {names[0]} only: it can say nothing of this text"
    spoken = f", it speaks {', '.join(names)}" if names else ""
    return f"this voice can say nothing of this text{spoken}"


async def _here(work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    return work(*args, **kwargs)


def _delta(data: bytes) -> bytes:
    return _event({"type": "speech.audio.delta", "audio": base64.b64encode(data).decode()})


def _event(event: dict[str, Any]) -> bytes:
    return f"data: {json.dumps(event)}\n\n".encode()
