"""The OpenAPI 3.1 description of the speech API, served at /openapi.json; the
schemas of requests are generated from their models."""

from typing import Any

from offhook import __version__
from offhook.pipeline.speech.remote.alignments_protocol import ALIGNMENTS_PATH
from offhook.web.speech_api.http.alignments_io import AlignmentForm
from offhook.web.speech_api.http.audio_encoder import FORMATS
from offhook.web.speech_api.http.speech_request import MAX_INPUT_CHARS, VOICE_NAME, SpeechRequest
from offhook.web.speech_api.http.transcription_request import TranscriptionForm
from offhook.web.speech_api.validation import schema

Table = dict[str, Any]

ERROR: Table = {
    "type": "object",
    "required": ["error"],
    "properties": {
        "error": {
            "type": "object",
            "required": ["message", "type", "param", "code"],
            "properties": {
                "message": {"type": "string"},
                "type": {"type": "string"},
                "param": {"type": ["string", "null"]},
                "code": {"type": ["string", "null"]},
            },
        }
    },
}
REFUSALS = {
    "400": "a field is wrong: `param` names it",
    "401": "a valid API key is required as a bearer token",
    "403": "this caller may not ask, or the speaker has not agreed",
    "404": "no such model or voice",
    "408": "the body did not come",
    "409": "there is a voice of that name",
    "413": "the body is too large",
    "415": "the body is of another type",
    "429": "this key asks too often",
    "501": "the engine cannot do that",
    "502": "the server that translates fails",
    "503": "all places are taken, or the engine cannot run: Retry-After says when to try again",
}

TRANSCRIPTION = schema(TranscriptionForm, form=True)
TRANSCRIPTION["required"] = ["file"]
TRANSCRIPTION["properties"]["file"] = {"type": "string", "format": "binary"}
ALIGNMENT = schema(AlignmentForm, form=True)
ALIGNMENT["required"] = ["file", "text", "language"]
ALIGNMENT["properties"]["file"] = {"type": "string", "format": "binary"}
SPEECH = schema(SpeechRequest)
VOICE: Table = {
    "type": "object",
    "required": ["name", "consent", "audio_sample"],
    "properties": {
        "name": VOICE_NAME,
        "consent": {"type": "string"},
        "audio_sample": {"type": "string", "format": "binary"},
        "text": {"type": "string"},
    },
}
CLONE: Table = {
    "type": "object",
    "required": ["file", "input", "consent"],
    "properties": {
        "file": {"type": "string", "format": "binary"},
        "input": {"type": "string", "minLength": 1, "maxLength": MAX_INPUT_CHARS},
        "consent": {"type": "string"},
        "text": {"type": "string"},
        "response_format": {"enum": list(FORMATS)},
    },
}
AUDIO = {"audio/*": {"schema": {"type": "string", "format": "binary"}}}
EVENTS: Table = {"text/event-stream": {}}
JSON_OBJECT = {"application/json": {"schema": {"type": "object"}}}
TRANSCRIPT = {**JSON_OBJECT, **EVENTS, "text/plain": {"schema": {"type": "string"}}}


FORM = "multipart/form-data"


def _operation(summary: str, answer: Table, body: Table | None = None, of: str = "") -> Table:
    refusals = {
        status: {"description": words, "content": {"application/json": {"schema": ERROR}}}
        for status, words in REFUSALS.items()
    }
    operation: Table = {
        "summary": summary,
        "responses": {"200": {"description": "done", "content": answer}, **refusals},
    }
    if body is not None:
        operation["requestBody"] = {"required": True, "content": {of: {"schema": body}}}
    return operation


def _heard(summary: str, answer: Table) -> Table:
    return {"post": _operation(summary, answer, TRANSCRIPTION, FORM)}


def _documented(summary: str, answer: Table) -> Table:
    return {"post": _operation(summary, answer, SPEECH, "application/json")}


HEARING: Table = {
    "/v1/audio/transcriptions": _heard("What a file says", TRANSCRIPT),
    "/v1/audio/translations": _heard("What a file says, in English", TRANSCRIPT),
    "/v1/audio/transcriptions/stream": _heard("Each segment as it is done", EVENTS),
    ALIGNMENTS_PATH: {
        "post": _operation(
            "When the words of a known text are spoken", JSON_OBJECT, ALIGNMENT, FORM
        )
    },
}
SPEAKING: Table = {
    "/v1/audio/speech": _documented("A text as sound", {**AUDIO, **EVENTS}),
    "/v1/audio/speech/stream": _documented("The same, as it is made", {**AUDIO, **EVENTS}),
    "/v1/audio/speech/pcm": _documented(
        "The same, 16-bit little-endian mono at 24 kHz", {**AUDIO, **EVENTS}
    ),
    "/v1/audio/voices": {
        "get": _operation("The engine's voices", JSON_OBJECT),
        "post": _operation("Keep a voice cloned from a recording", JSON_OBJECT, VOICE, FORM),
    },
    "/v1/audio/voices/{name}": {
        "delete": _operation("Forget a voice", JSON_OBJECT),
        "parameters": [{"name": "name", "in": "path", "required": True, "schema": VOICE_NAME}],
    },
    "/v1/audio/clone": {
        "post": _operation("A text in the voice of a recording", AUDIO, CLONE, FORM)
    },
}
BOTH: Table = {
    "/v1/models": {"get": _operation("What may be given as model", JSON_OBJECT)},
    "/v1/models/{model}": {
        "get": _operation("One of them", JSON_OBJECT),
        "parameters": [
            {"name": "model", "in": "path", "required": True, "schema": {"type": "string"}}
        ],
    },
}


def description(*, asr: bool, tts: bool) -> Table:
    """Returns the description of a server with recognition, synthesis or both. OpenAPI does not
    cover WebSockets."""
    return {
        "openapi": "3.1.0",
        "info": {"title": "offhook speech", "version": __version__},
        "paths": {**BOTH, **(HEARING if asr else {}), **(SPEAKING if tts else {})},
        "components": {"securitySchemes": {"key": {"type": "http", "scheme": "bearer"}}},
        "security": [{"key": []}, {}],
    }
