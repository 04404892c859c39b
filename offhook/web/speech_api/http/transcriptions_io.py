"""POST /v1/audio/transcriptions, /translations and /transcriptions/stream: files to text.

With `stream`, emitted text never changes: a delta is the text of a completed piece. Engines'
partials are not used: PocketSphinx revises even "stable" words in a third of its Finals, and most
engines make no partials for files. Instead the first pieces are short.
"""

import asyncio
import json
import time
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import Any

from aiohttp import web
from loguru import logger

from offhook.media.files.decoding_io import DecoderUnavailable
from offhook.pipeline.speech.errors import EngineError, UnsupportedRequest
from offhook.pipeline.speech.recognizer import Recognizer, RecognizerStream, StreamOptions
from offhook.pipeline.speech.remote.recognizer_io import RemoteRecognizer
from offhook.web.speech_api.errors import ApiError
from offhook.web.speech_api.http.file_transcription_io import (
    CAPTION_S,
    EARLY_S,
    PIECE_S,
    FileError,
    FileTranscription,
    Pieces,
    SegmentProgress,
)
from offhook.web.speech_api.http.transcript import Segment, Task, Transcript, name_of, openai_word
from offhook.web.speech_api.http.transcription_request import TranscriptionRequest, parse
from offhook.web.speech_api.http.translation_io import Translator
from offhook.web.speech_api.http.upload_io import MAX_FIELDS_BYTES, Upload, receive
from offhook.web.speech_api.server_io import (
    CONTEXT,
    RETRY_AFTER_S,
    SPEECH,
    RequestContext,
    SpeechServer,
    fault_of,
)

LOG_S = 10.0
"""Interval in s of log lines about the progress of a long file."""
PROGRESS_S = 0.5
"""Minimum interval in s between progress events."""
UNREAD_S = 60.0
"""Time in s without reading after which a client is disconnected."""
TYPES = {"text": "text/plain", "srt": "application/x-subrip", "vtt": "text/vtt"}
GRANULARITIES = "timestamp_granularities[]"


async def transcriptions(request: web.Request) -> web.StreamResponse:
    return await _transcribe(request, "transcribe")


async def translations(request: web.Request) -> web.StreamResponse:
    return await _transcribe(request, "translate")


async def _transcribe(request: web.Request, task: Task) -> web.StreamResponse:
    async with _opened(request, task) as job:
        if job.wanted.stream:
            return await _deltas(request, job)
        async with aclosing(job.run()) as segments:
            async for _ in segments:
                pass
        body = job.transcript.render(job.wanted.format, job.wanted.granularities, task)
        if isinstance(body, str):
            return web.Response(text=body, content_type=TYPES[job.wanted.format], charset="utf-8")
        return web.json_response(body, dumps=_json)


async def transcriptions_stream(request: web.Request) -> web.StreamResponse:
    """Sends an event per completed segment."""
    async with _opened(request, "transcribe", by_segment=True) as job:
        events, count, sent_at = _Events(request), 0, 0.0
        async with events, aclosing(job.run()) as segments:
            async for segment, _, progress in segments:
                if segment.text:
                    await events.send(_segment(count, segment), "segment")
                    count += 1
                if time.monotonic() - sent_at >= PROGRESS_S:
                    sent_at = time.monotonic()
                    await events.send(_progress(progress), "progress")
            await events.send(_done(job), "done")
        return events.response


async def _deltas(request: web.Request, job: "_Job") -> web.StreamResponse:
    """Streams a transcription like OpenAI, with the duration beside the text: `usage` of this event
    counts tokens there, which are unknown here, and typed clients would reject other fields."""
    events = _Events(request)
    async with events, aclosing(job.run()) as segments:
        async for _, added, _ in segments:
            if added:
                await events.send({"type": "transcript.text.delta", "delta": added})
        done = {"type": "transcript.text.done", "text": job.transcript.text}
        await events.send({**done, "duration": round(job.transcript.duration, 3)})
    return events.response


def _segment(number: int, segment: Segment) -> dict[str, Any]:
    return {
        "type": "segment",
        "id": number,
        "start": round(segment.start, 3),
        "end": round(segment.end, 3),
        "text": segment.text,
        "language": segment.language,
        "words": [openai_word(word) for word in segment.words],
    }


def _progress(progress: SegmentProgress) -> dict[str, Any]:
    total = None if progress.total is None else round(progress.total, 3)
    done = None if progress.done is None else round(progress.done, 4)
    seconds = round(progress.segment.end, 3)
    return {"type": "progress", "fraction": done, "seconds": seconds, "duration": total}


def _done(job: "_Job") -> dict[str, Any]:
    transcript = job.transcript
    return {
        "type": "done",
        "text": transcript.text,
        "language": name_of(transcript.language),
        "duration": round(transcript.duration, 3),
        "usage": transcript.usage(),
        "stages": job.context.stages.as_dict(),
    }


# --- one file ---


@dataclass
class _Job:
    server: SpeechServer
    context: RequestContext
    wanted: TranscriptionRequest
    upload: Upload
    file: FileTranscription
    translator: Translator | None
    transcript: Transcript = field(default_factory=Transcript)

    async def run(self) -> AsyncGenerator[tuple[Segment, str, SegmentProgress]]:
        """Each piece: its segment, what it adds to the text, and how far the file is. Raises
        ApiError, EngineError."""
        logged_at = time.monotonic()
        try:
            async with aclosing(self.file.segments()) as pieces:
                async for progress in pieces:
                    self.context.stages.mark("first")
                    segment, began = progress.segment, self.transcript.duration
                    if self.translator is not None:
                        segment = await self.translator.translated(segment)
                    self.server.count_audio(self.context, segment.end - began)
                    added = self.transcript.add(segment)
                    if time.monotonic() - logged_at >= LOG_S:
                        logged_at = time.monotonic()
                        part = "" if progress.done is None else f", {progress.done:.0%}"
                        logger.info("heard {:.0f} s of a file{}", segment.end, part)
                    yield segment, added, progress
        except (FileError, DecoderUnavailable) as error:
            raise bad_file(error, self.upload) from error
        self.context.stages.mark("inferred")


@asynccontextmanager
async def _opened(
    request: web.Request, task: Task, *, by_segment: bool = False
) -> AsyncIterator[_Job]:
    """Opens the uploaded file, with its first piece read, and a stream of the engine. Raises
    ApiError, EngineError."""
    server, context = request.app[SPEECH], request[CONTEXT]
    settings = server.settings
    most_bytes = settings.max_upload_mb << 20
    async with (
        server.request("transcription", context, most_bytes + MAX_FIELDS_BYTES) as turn,
        receive(request, most_bytes, server.uploads) as upload,
    ):
        wanted = parse(upload.fields, task, by_segment=by_segment, lenient=settings.lenient)
        if wanted.model:
            server.check_model("transcription", wanted.model)
        await turn()
        recognizer = await server.recognizer()
        context.stages.mark("loaded")
        stream = await _stream(recognizer, wanted)
        most_s = 60 * settings.max_audio_minutes
        pieces = Pieces(upload.path, _lengths(wanted), upload.raw, most_s)
        file = FileTranscription(stream, pieces, early=wanted.stream)
        try:
            async with Translator(settings) as translator:
                await file.begin()
                yield _Job(
                    server,
                    context,
                    wanted,
                    upload,
                    file,
                    translator if task == "translate" else None,
                )
        except (FileError, DecoderUnavailable) as error:
            raise bad_file(error, upload) from error
        finally:
            await stream.close()
            await file.close()


def _lengths(wanted: TranscriptionRequest) -> Sequence[float]:
    if wanted.stream:
        return EARLY_S
    return (CAPTION_S if wanted.wants_times else PIECE_S,)


def bad_file(error: FileError | DecoderUnavailable, upload: Upload) -> ApiError:
    """Returns what a client is told of a file that cannot be decoded."""
    if isinstance(error, DecoderUnavailable):
        logger.bind(a_minute="decoder").warning("transcription: {}", error)
        words = "files cannot be decoded now: try again later"
        return ApiError(503, words, "file", "decoder_unavailable", RETRY_AFTER_S)
    return ApiError(400, f"the file: {str(error).removeprefix(f'{upload.path}: ')}", "file")


async def _stream(recognizer: Recognizer, wanted: TranscriptionRequest) -> RecognizerStream:
    """Opens a stream. Raises EngineError, and ApiError 400 for unsupported options."""
    options = wanted.options
    ways = [options]
    if wanted.wants_times and not options.words:
        # Captions are better with word times, but possible without.
        ways.insert(0, replace(options, words=True))
    for way in ways:
        try:
            return await _open(recognizer, way)
        except UnsupportedRequest as error:
            fault = error
    param = "language" if not options.words else GRANULARITIES if not options.language else None
    raise ApiError(400, str(fault), param) from fault


async def _open(recognizer: Recognizer, options: StreamOptions) -> RecognizerStream:
    """Opens a stream. Raises UnsupportedRequest, EngineError."""
    if isinstance(recognizer, RemoteRecognizer) and (options.language or options.words):
        # a remote engine opens streams without checking; this verifies the options
        await recognizer.start(options)
    return await recognizer.open(options)


# --- events ---


def _json(table: object) -> str:
    return json.dumps(table, ensure_ascii=False)


class _Events:
    """A response of server-sent events, used as a context: once it has started, with the first
    event, an exception inside becomes its last event."""

    def __init__(self, request: web.Request) -> None:
        self._request = request
        self._context = request[CONTEXT]
        self.response = web.StreamResponse(
            headers={
                "Content-Type": "text/event-stream",
                "Cache-Control": "no-store",
                "X-Accel-Buffering": "no",  # prevents buffering in nginx
            }
        )

    async def __aenter__(self) -> None:
        pass

    async def __aexit__(self, kind: object, error: BaseException | None, trace: object) -> bool:
        if not self.response.prepared or not isinstance(error, ApiError | EngineError):
            return False
        logger.warning("transcription: {}", error)
        await self.send({"type": "error", **fault_of(error, self._context.id).as_dict()}, "error")
        return True

    async def send(self, table: dict[str, Any], event: str = "") -> None:
        """Sends an event. Raises ConnectionError if the client does not read."""
        head = f"event: {event}\n" if event else ""
        data = f"{head}data: {_json(table)}\n\n".encode()
        try:
            async with asyncio.timeout(UNREAD_S):
                if not self.response.prepared:
                    await self.response.prepare(self._request)
                await self.response.write(data)
        except TimeoutError as error:
            raise ConnectionError(f"the client took nothing for {UNREAD_S:g} s") from error
        self._context.stages.mark("first_byte")
