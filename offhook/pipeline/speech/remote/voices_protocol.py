"""The voices of a server over HTTP: what is asked and answered, as values.

    GET    /v1/audio/voices             all of them, the usual one first
    POST   /v1/audio/voices             form: name, audio_sample, consent; text, language
    DELETE /v1/audio/voices/{name}
    POST   /v1/audio/clone              form: file, input, consent; text, response_format, and what
                                        a request for speech has beside

The shapes are OpenAI's where it has one: a voice is an `audio.voice`, errors are its errors, with a
code of `REFUSALS`. This module is text only; the sockets are in web/speech/voices_io and in
`remote_voices_io`.
"""

from dataclasses import dataclass
from typing import Any

from pydantic import TypeAdapter

from offhook.pipeline.speech.errors import EngineError
from offhook.pipeline.speech.openai.answers import plain
from offhook.pipeline.speech.redact import without_locations
from offhook.pipeline.speech.remote.worker_protocol import Count, parse_json, refusal
from offhook.pipeline.speech.synthesizer import KnownVoice, UnknownVoice
from offhook.pipeline.speech.voice_cloning import (
    CONSENT_RULE,
    LENGTH_RULE,
    NAME_RULE,
    CloningUnsupported,
    ConsentMissing,
    TooManyClones,
    VoiceError,
    VoiceExists,
)

VOICES_PATH = "/v1/audio/voices"
CLONE_PATH = "/v1/audio/clone"
MAX_SAMPLE_BYTES = 10 << 20
"""Maximum size of an uploaded recording, of which a minute of WAV at 48 kHz has 6 MB; a larger one
is refused with 413."""

REFUSALS: dict[type[Exception], tuple[int, str]] = {
    ConsentMissing: (403, "no_consent"),
    CloningUnsupported: (501, "cannot_clone"),
    VoiceExists: (409, "voice_exists"),
    TooManyClones: (503, "too_many_clones"),
    UnknownVoice: (404, "voice_not_found"),
    VoiceError: (400, "invalid_voice"),
}
"""HTTP status and error code of each exception; the base class comes last."""
_ERRORS: dict[str, tuple[type[Exception], str]] = {
    "no_consent": (ConsentMissing, CONSENT_RULE),
    "cannot_clone": (
        CloningUnsupported,
        "the speech engine clones no voices",
    ),
    "voice_exists": (VoiceExists, "there is a voice of that name already"),
    "too_many_clones": (TooManyClones, "too many voices are being cloned: try again later"),
    "voice_not_found": (UnknownVoice, "there is no such voice"),
    "invalid_voice": (
        VoiceError,
        f"the speech engine cannot do that: {NAME_RULE}; {LENGTH_RULE}, loud and clear, in an "
        "audio or video file; and voices of the model itself stay",
    ),
}
"""Exception of each error code, and the message used if the worker's own may not be shown."""
_TYPES = {"speaker": "speaker", "design": "prompt", "clone": "audio_sample"}
_KINDS = {type_: kind for kind, type_ in _TYPES.items()}


def voice_table(voice: KnownVoice) -> dict[str, Any]:
    return {
        "object": "audio.voice",
        "id": voice.name,
        "name": voice.name,
        "type": _TYPES[voice.kind],
        "languages": list(voice.languages),
        "created_at": voice.created_s,
        **({"licence": voice.licence} if voice.licence else {}),
    }


def list_table(voices: list[KnownVoice]) -> dict[str, Any]:
    """Returns OpenAI's list format; `default` is the default voice, and chat front ends read
    `voices`."""
    return {
        "object": "list",
        "data": [voice_table(voice) for voice in voices],
        "default": voices[0].name if voices else None,
        "voices": [{"id": voice.name, "name": voice.name} for voice in voices],
    }


@dataclass(frozen=True)
class _Voice:
    name: str
    type: str = "speaker"
    languages: tuple[str, ...] = ()
    created_at: Count = 0
    licence: str = ""

    def known(self) -> KnownVoice:
        kind = _KINDS.get(self.type, "speaker")
        return KnownVoice(self.name, kind, self.languages, self.created_at, self.licence)


@dataclass(frozen=True)
class _Voices:
    data: tuple[_Voice, ...]


_VOICE, _VOICES = TypeAdapter(_Voice), TypeAdapter(_Voices)


def parse_voice(text: str) -> KnownVoice:
    """Parses a voice. Raises ProtocolError."""
    return parse_json(_VOICE, text).known()


def parse_list(text: str) -> list[KnownVoice]:
    """Parses a list of voices. Raises ProtocolError."""
    return [voice.known() for voice in parse_json(_VOICES, text).data]


def error_of(status: int, text: str) -> Exception:
    """Converts a response other than 200 to one of REFUSALS or EngineError."""
    try:
        message, code = refusal(status, text)
    except EngineError as error:
        return error
    kind, ours = _ERRORS.get(code if status != 400 else "invalid_voice", (EngineError, ""))
    if kind is EngineError:
        return EngineError(f"it answered {status}: {plain(message)}")
    return kind(message if without_locations(message) else ours)
