"""Routes of the engine's voices and of voice cloning; see `voices_protocol`."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from aiohttp import web
from loguru import logger

from offhook.pipeline.speech.engines import cloner
from offhook.pipeline.speech.errors import EngineError
from offhook.pipeline.speech.remote.voices_protocol import (
    MAX_SAMPLE_BYTES,
    REFUSALS,
    list_table,
    voice_table,
)
from offhook.pipeline.speech.synthesizer import Synthesizer
from offhook.pipeline.speech.voice_cloning import (
    CONSENT_RULE,
    CloningUnsupported,
    ConsentMissing,
    Sample,
    VoiceCloner,
)
from offhook.web.speech_api.errors import ApiError, unknown_field
from offhook.web.speech_api.http import speech_request
from offhook.web.speech_api.http.form_io import read_form
from offhook.web.speech_api.http.speech_io import Reply, not_possible, respond
from offhook.web.speech_api.http.speech_request import MAX_INPUT_CHARS
from offhook.web.speech_api.http.synthesis_io import spoken
from offhook.web.speech_api.metrics import OF_RECORDING
from offhook.web.speech_api.server_io import CONTEXT, RETRY_AFTER_S, SPEECH
from offhook.web.speech_api.validation import plain_text

MAX_FIELD_BYTES = 4 * MAX_INPUT_CHARS
"""Maximum size of a field other than the recording; with a longer one the form is refused with
413."""
MAX_FORM_BYTES = MAX_SAMPLE_BYTES + 2 * MAX_FIELD_BYTES
"""Maximum body, including the headers of its parts; a longer one is refused with 413."""
YES = ("true", "yes", "1", "on")
NO = ("false", "no", "0", "off", "")
ADDING = ("name", "consent", "text", "ref_text", "language", "type")
CLONING = (
    *("input", "consent", "text", "ref_text", "model", "response_format", "speed", "language"),
    *("instructions", "normalise", "seed", "stream", "stream_format"),
)


async def list_voices(request: web.Request) -> web.Response:
    """GET /v1/audio/voices."""
    synthesizer = await request.app[SPEECH].synthesizer()
    return web.json_response(list_table(await synthesizer.known_voices()))


async def add_voice(request: web.Request) -> web.Response:
    """POST /v1/audio/voices: clones the voice of a recording and stores it."""
    server, context = request.app[SPEECH], request[CONTEXT]
    async with server.request("speech", context, MAX_FORM_BYTES) as turn:
        engine = _that_clones(await server.synthesizer())
        context.stages.mark("loaded")
        form = await _read_voice_form(request, "audio_sample", ADDING)
        if (kind := form.fields.get("type", "audio_sample")) != "audio_sample":
            words = f"type is {kind[:80]!r}: only voices of an audio_sample are made here"
            raise ApiError(400, words, "type")
        name, sample = form.needed("name"), form.sample()
        await turn()
        with refusing():
            voice = await engine.add_voice(name, sample, form.fields.get("language", ""))
        context.stages.mark("inferred")
    logger.info("the voice {} was cloned, with its speaker's consent as the client says", name)
    return web.json_response(voice_table(voice))


async def clone(request: web.Request) -> web.StreamResponse:
    """POST /v1/audio/clone: speaks a text with the voice of a recording, which is not stored."""
    server, context = request.app[SPEECH], request[CONTEXT]
    async with server.request("speech", context, MAX_FORM_BYTES) as turn:
        engine = _that_clones(await server.synthesizer())
        context.stages.mark("loaded")
        form = await _read_voice_form(request, "file", CLONING)
        wanted, sample = form.speech(), form.sample()
        if wanted.model:
            server.check_model("speech", wanted.model)
        await turn()
        with refusing():
            stream = await engine.open_clone(sample, server.prioritized(wanted.voice_options("")))
            reply = Reply(spoken(stream, wanted.input), stream)
            return await respond(request, wanted, reply, OF_RECORDING)


async def remove_voice(request: web.Request) -> web.Response:
    """DELETE /v1/audio/voices/{name}."""
    name = request.match_info["name"]
    engine = _that_clones(await request.app[SPEECH].synthesizer())
    with refusing():
        await engine.remove_voice(name)
    return web.json_response({"object": "audio.voice.deleted", "id": name, "deleted": True})


def _that_clones(synthesizer: Synthesizer) -> VoiceCloner:
    """Returns the synthesizer if it supports cloning. Raises ApiError."""
    if not isinstance(synthesizer, VoiceCloner):
        with refusing():
            raise CloningUnsupported(
                "the speech engine speaks with the voices it has and clones none: that takes the "
                f"engine {cloner().name} with a Base model, such as {cloner().cloning_model}"
            )
    return synthesizer


@contextmanager
def refusing() -> Iterator[None]:
    """Converts voice errors to ApiError."""
    try:
        yield
    except (EngineError, ValueError) as error:
        for kind, (status, code) in REFUSALS.items():
            if isinstance(error, kind):
                wait = RETRY_AFTER_S if status == 503 else None
                raise ApiError(status, str(error), _PARAMS.get(code), code, wait) from error
        if isinstance(error, ValueError):
            raise not_possible(error) from error
        raise


_PARAMS = {"no_consent": "consent", "voice_exists": "name", "voice_not_found": "voice"}


# --- forms ---


@dataclass(frozen=True)
class Form:
    """A recording and the fields beside it."""

    file: bytes
    fields: dict[str, str]

    def needed(self, name: str) -> str:
        """Returns a required field. Raises ApiError."""
        if not (value := self.fields.get(name, "")):
            raise ApiError(400, f"{name} is missing or empty", name)
        return value

    def sample(self) -> Sample:
        """Returns the recording. Raises ApiError, 403 without consent."""
        consent = self.fields.get("consent", "").strip().lower()
        if consent not in YES:
            if consent in NO:
                with refusing():
                    raise ConsentMissing(CONSENT_RULE)
            words = f"consent is {consent[:80]!r}, not true: {CONSENT_RULE}"
            raise ApiError(403, words, "consent", "no_consent")
        text = self.fields.get("text") or self.fields.get("ref_text", "")
        return Sample(self.file, text, True)

    def speech(self) -> speech_request.SpeechRequest:
        """Parses the fields of a speech request. Raises ApiError."""
        table = {
            name: value
            for name, value in self.fields.items()
            if name not in ("consent", "text", "ref_text") and value
        }
        return speech_request.of_fields(table, strings=True)


async def _read_voice_form(request: web.Request, file: str, fields: tuple[str, ...]) -> Form:
    """Reads a form with a recording of this name. Raises ApiError."""
    lenient = request.app[SPEECH].settings.lenient

    def most_of(name: str) -> int:
        if name != file and name not in fields and not lenient:
            raise unknown_field(name, (file, *fields))
        return MAX_SAMPLE_BYTES if name == file else MAX_FIELD_BYTES

    parts = await read_form(request, MAX_FORM_BYTES, most_of)
    known = {name: _decoded(name, parts[name]) for name in fields if name in parts}
    if not (sound := parts.get(file)):
        raise ApiError(400, f"{file} is missing or empty: send the recording in it", file)
    return Form(sound, known)


def _decoded(name: str, data: bytes) -> str:
    try:
        text = data.decode()
    except UnicodeDecodeError as error:
        raise ApiError(400, f"{name} is not UTF-8", name) from error
    try:
        plain_text(text)
    except ValueError as error:
        raise ApiError(400, f"{name} {error}", name) from error
    return text
