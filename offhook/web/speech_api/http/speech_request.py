"""The JSON body of POST /v1/audio/speech: OpenAI's fields and our own."""

import re
from collections.abc import Sequence
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, Field, WithJsonSchema
from pydantic.dataclasses import dataclass

from offhook.media.untrusted_json import read_json
from offhook.pipeline.speech.streams.languages import CODES
from offhook.pipeline.speech.synthesizer import (
    MAX_INSTRUCTIONS_CHARS,
    MAX_SEED,
    MAX_SPEED,
    MAX_VOICE_CHARS,
    MIN_SPEED,
    VoiceOptions,
)
from offhook.web.http.json_size import check_values
from offhook.web.speech_api.errors import ApiError
from offhook.web.speech_api.http.audio_encoder import Format
from offhook.web.speech_api.validation import PLAIN, STRICT, Text, build, expected, shown

MAX_INPUT_CHARS = 100_000
"""Maximum input, about two hours of speech; a longer one is refused with 400. OpenAI's limit is
4096."""
MAX_BODY_BYTES = 12 * MAX_INPUT_CHARS + (1 << 16)
"""Maximum body, with every character written as two escapes, and the other fields; a longer one is
refused with 413."""
LEAST_SPEED, MOST_SPEED = 0.25, 4.0
"""OpenAI's range of speeds; beyond an engine's own range the audio's tempo is changed."""
SHOWN_VOICES = 50
"""Maximum voices listed in the message about an unknown one; of the others only the number is
given."""
OPENAI_VOICES = frozenset(
    (
        "alloy",
        "ash",
        "ballad",
        "cedar",
        "coral",
        "echo",
        "fable",
        "marin",
        "nova",
        "onyx",
        "sage",
        "shimmer",
        "verse",
    )
)
"""OpenAI's voices, which map to the engine's default voice unless it has one of that name."""

StreamFormat = Literal["audio", "sse"]
_NAMED = {"Auto": "", **CODES}
"""Languages by the names in which Qwen3-TTS has them; clients of vLLM-Omni send those."""
_NAME = "|".join(f"[{name[0]}{name[0].lower()}]{name[1:]}" for name in _NAMED)
_LANGUAGE = re.compile(f"([a-z]{{2,3}})(-[A-Za-z]{{2,4}})?|{_NAME}")


def not_blank(text: str) -> str:
    if not text.strip():
        raise ValueError("is missing or empty: give the text to say")
    return text


def _name(value: object) -> object:
    """Accepts a voice as a name or as an object, as OpenAI's clients send it."""
    match value:
        case str():
            return value
        case {"id": str(name), **rest} if not rest:
            return name
    raise expected('a name or {"id": a name}')


def _of_tag(text: str) -> str:
    """Returns the code of a tag such as en-US or of a name such as English."""
    found = _LANGUAGE.fullmatch(text)
    if text and not found:
        raise expected("a code such as 'en'")
    return found[1] or _NAMED[text.capitalize()] if found else ""


VOICE_NAME = {"type": "string", "maxLength": MAX_VOICE_CHARS, "pattern": PLAIN}
VOICE_ID = {
    "type": "object",
    "required": ["id"],
    "properties": {"id": VOICE_NAME},
    "additionalProperties": False,
}


@dataclass(frozen=True, config=STRICT)
class SpeechRequest:
    """The body of POST /v1/audio/speech: a text, and how to speak it."""

    input: Annotated[
        Text,
        AfterValidator(not_blank),
        Field(max_length=MAX_INPUT_CHARS, json_schema_extra={"minLength": 1}),
    ]
    model: Text = ""
    """Name of the model; empty: any."""
    voice: Annotated[
        Text, BeforeValidator(_name), WithJsonSchema({"anyOf": [VOICE_NAME, VOICE_ID]})
    ] = ""
    """Name of the voice; empty: the engine's default."""
    instructions: Annotated[
        Text, Field(json_schema_extra={"maxLength": MAX_INSTRUCTIONS_CHARS})
    ] = ""
    response_format: Format = "mp3"
    speed: Annotated[float, Field(ge=LEAST_SPEED, le=MOST_SPEED)] = 1.0
    """Speed as a factor."""
    stream_format: StreamFormat = "audio"
    stream: bool = True
    """Whether to send audio as it is produced rather than all at once with its length."""
    language: Annotated[
        Text,
        AfterValidator(_of_tag),
        Field(json_schema_extra={"pattern": f"^({_LANGUAGE.pattern})?$"}),
    ] = ""
    """ISO 639 code, BCP 47 tag or English name; empty or "Auto": detected from the text."""
    non_streaming_mode: bool = True
    """Whether the voice knows the whole text before it begins, as vLLM-Omni calls it."""
    normalise: bool = True
    seed: Annotated[
        int | None, WithJsonSchema({"type": "integer", "minimum": 0, "maximum": MAX_SEED})
    ] = None

    def voice_options(self, voice: str) -> VoiceOptions:
        """Returns the options with one of the engine's voices, or "". Raises ApiError."""
        try:
            return VoiceOptions(
                voice=voice,
                language=self.language,
                instructions=self.instructions,
                speed=min(max(self.speed, MIN_SPEED), MAX_SPEED),
                normalise=self.normalise,
                live=self.stream,
                seed=self.seed,
                whole_text=self.non_streaming_mode,
            )
        except ValueError as error:
            raise ApiError(400, str(error), str(error).partition(" ")[0]) from error

    @property
    def faster(self) -> float:
        """Returns the tempo change to apply to the engine's audio for this speed."""
        return self.speed / min(max(self.speed, MIN_SPEED), MAX_SPEED)


def parse(body: bytes, form: Format | None = None, *, lenient: bool = False) -> SpeechRequest:
    """Parses a JSON body; `form` is the only format of its path, if any. `lenient` ignores unknown
    fields. Raises ApiError 400 that names the field."""
    return of_fields(_json_object(body), form, lenient=lenient)


def of_fields(
    table: dict[str, Any],
    form: Format | None = None,
    *,
    lenient: bool = False,
    strings: bool = False,
) -> SpeechRequest:
    """Validates the fields of a request as `parse` does; `strings`: they are those of a form."""
    if form:
        asked = table.setdefault("response_format", form)
        if asked not in (form, None):
            raise ApiError(400, f"response_format is {shown(asked)}, not {form}", "response_format")
        table["response_format"] = form
    if table.get("input") is None:
        table["input"] = ""
    request = build(SpeechRequest, table, lenient=lenient, strings=strings)
    if request.stream_format == "sse" and not request.stream:
        raise ApiError(400, "stream_format sse is a stream: leave stream out", "stream")
    request.voice_options("")
    return request


def find_voice(name: str, voices: Sequence[str]) -> str:
    """Resolves a voice name; "" is the default voice. Raises ApiError 400."""
    if not name or name in voices:
        return name
    for voice in voices:
        if voice.lower() == name.lower():
            return voice
    if name.lower() in OPENAI_VOICES:
        return ""
    known = ", ".join(voices[:SHOWN_VOICES])
    if len(voices) > SHOWN_VOICES:
        known += f" and {len(voices) - SHOWN_VOICES} more, see /v1/audio/voices"
    words = f"there is no voice {shown(name)}: the voices here are {known}"
    raise ApiError(400, words, "voice", "voice_not_found")


def _json_object(body: bytes) -> dict[str, Any]:
    try:
        check_values(body)
        value = read_json(body.decode("utf-8"))
    except UnicodeDecodeError as error:
        raise ApiError(400, f"the body is not UTF-8: byte {error.start}") from error
    except ValueError as error:
        raise ApiError(400, f"the body is not JSON: {error}") from error
    if not isinstance(value, dict):
        raise ApiError(400, 'the body is not a JSON object, as {"input": "Hello."}')
    return value
