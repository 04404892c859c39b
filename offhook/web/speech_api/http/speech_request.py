"""The JSON body of POST /v1/audio/speech, as OpenAI defines it, with fields of our own."""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeVar, get_args

from offhook.pipeline.speech.synthesizer import MAX_SPEED, MIN_SPEED, VoiceOptions
from offhook.web.speech_api.errors import ApiError, unknown_field
from offhook.web.speech_api.http.audio_encoder import FORMATS, Format

MAX_INPUT_CHARS = 100_000
"""About two hours of speech; OpenAI takes 4096."""
MAX_BODY_BYTES = 12 * MAX_INPUT_CHARS + (1 << 16)
"""Of a body of which every character is written as two escapes, and its other fields."""
LEAST_SPEED, MOST_SPEED = 0.25, 4.0
"""As OpenAI has it. What an engine's own speed does not reach is made of its sound."""
SHOWN_VOICES = 50
"""In the words about one that is not there."""
SHOWN_CHARS = 80
"""Of what was sent, in those words."""
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
"""What programs send that know OpenAI's voices only: the engine's usual one, unless it has one of
that name."""

StreamFormat = Literal["audio", "sse"]
T = TypeVar("T", bound=str)
_LANGUAGE = re.compile("([a-z]{2,3})(-[A-Za-z]{2,4})?")
_CONTROL = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f]")
_SURROGATE = re.compile("[\ud800-\udfff]")


@dataclass(frozen=True)
class SpeechRequest:
    """What is to be said, and how."""

    input: str
    model: str = ""
    """Empty: whatever is there."""
    voice: str = ""
    """By name; empty: the engine's usual one."""
    instructions: str = ""
    response_format: Format = "mp3"
    speed: float = 1.0
    """0.25..4."""
    stream_format: StreamFormat = "audio"
    stream: bool = True
    """Whether the sound leaves as it is made. Otherwise all at once, with a length."""
    language: str = ""
    """ISO 639 code; empty: found out from the text."""
    normalise: bool = True
    seed: int | None = None

    def voice_options(self, voice: str) -> VoiceOptions:
        """With one of the engine's voices, or "". Raises ApiError."""
        try:
            return VoiceOptions(
                voice=voice,
                language=self.language,
                instructions=self.instructions,
                speed=min(max(self.speed, MIN_SPEED), MAX_SPEED),
                normalise=self.normalise,
                live=self.stream,
                seed=self.seed,
                whole_text=True,
            )
        except ValueError as error:
            raise ApiError(400, str(error), str(error).partition(" ")[0]) from error

    @property
    def faster(self) -> float:
        """How many times faster than the engine's sound, with these options, it is to be."""
        return self.speed / min(max(self.speed, MIN_SPEED), MAX_SPEED)


def parse(body: bytes, form: Format | None = None, *, lenient: bool = False) -> SpeechRequest:
    """The request; `form` is the only format that its path can answer with, if there is one.
    `lenient`: fields that are not known are passed over. Raises ApiError 400 that names the
    field."""
    fields = Fields(_json_object(body))
    request = SpeechRequest(
        input=_text(fields),
        model=fields.text("model"),
        voice=_voice(fields),
        instructions=fields.text("instructions"),
        response_format=fields.one_of(
            "response_format", (form,) if form else FORMATS, form or "mp3"
        ),
        speed=_speed(fields),
        stream_format=fields.one_of("stream_format", get_args(StreamFormat), "audio"),
        stream=fields.flag("stream", usual=True),
        language=_language(fields),
        normalise=fields.flag("normalise", usual=True),
        seed=fields.whole_number("seed"),
    )
    if not lenient:
        fields.check_all_known()
    if request.stream_format == "sse" and not request.stream:
        raise ApiError(400, "stream_format sse is a stream: leave stream out", "stream")
    request.voice_options("")
    return request


def find_voice(name: str, voices: Sequence[str]) -> str:
    """The engine's voice that `name` means; "" for its usual one. Raises ApiError 400."""
    if not name or name in voices:
        return name
    for voice in voices:
        if voice.lower() == name.lower():
            return voice
    if name.lower() in OPENAI_VOICES:
        return ""
    shown = ", ".join(voices[:SHOWN_VOICES])
    if len(voices) > SHOWN_VOICES:
        shown += f" and {len(voices) - SHOWN_VOICES} more, see /v1/audio/voices"
    words = f"there is no voice {_shown(name)}: the voices here are {shown}"
    raise ApiError(400, words, "voice", "voice_not_found")


def _json_object(body: bytes) -> Mapping[str, Any]:
    try:
        value = json.loads(body.decode("utf-8"))
    except UnicodeDecodeError as error:
        raise ApiError(400, f"the body is not UTF-8: byte {error.start}") from error
    except RecursionError as error:
        raise ApiError(400, "the body is nested too deeply") from error
    except ValueError as error:
        raise ApiError(400, f"the body is not JSON: {error}") from error
    if not isinstance(value, dict):
        raise ApiError(400, 'the body is not a JSON object, as {"input": "Hello."}')
    return value


class Fields:
    """The members of a JSON object, each of the type that is asked for. null is as if absent.
    Raises ApiError."""

    def __init__(self, values: Mapping[str, Any]) -> None:
        self._values = values
        self._known: list[str] = []

    def value(self, name: str) -> Any:
        self._known.append(name)
        return self._values.get(name)

    def text(self, name: str) -> str:
        value = self.value(name)
        if value is None:
            return ""
        if not isinstance(value, str):
            raise _wrong(name, value, "a string")
        check_text(name, value)
        return value

    def one_of(self, name: str, allowed: Sequence[T], usual: T) -> T:
        value = self.value(name)
        if value is None:
            return usual
        for each in allowed:
            if value == each:
                return each
        raise _wrong(name, value, " or ".join(allowed))

    def flag(self, name: str, *, usual: bool) -> bool:
        value = self.value(name)
        if value is None:
            return usual
        if not isinstance(value, bool):
            raise _wrong(name, value, "true or false")
        return value

    def whole_number(self, name: str) -> int | None:
        value = self.value(name)
        if value is None or (isinstance(value, int) and not isinstance(value, bool)):
            return value
        raise _wrong(name, value, "a whole number")

    def check_all_known(self) -> None:
        for name in self._values:
            if name not in self._known:
                raise unknown_field(name, self._known)


def check_text(name: str, text: str) -> None:
    """Raises ApiError for what nobody can say."""
    if found := _SURROGATE.search(text):
        words = f"{name} is not Unicode: half a surrogate pair at character {found.start()}"
        raise ApiError(400, words, name)
    if found := _CONTROL.search(text):
        words = f"{name} has the control character {found.group()!r} at {found.start()}"
        raise ApiError(400, words, name)


def _text(fields: Fields) -> str:
    text = fields.text("input")
    if not text.strip():
        raise ApiError(400, "input is missing or empty: give the text to say", "input")
    if len(text) > MAX_INPUT_CHARS:
        words = f"input has {len(text)} characters, not at most {MAX_INPUT_CHARS}"
        raise ApiError(400, words, "input", "string_above_max_length")
    return text


def _voice(fields: Fields) -> str:
    value = fields.value("voice")
    match value:
        case None:
            return ""
        case str():
            name = value
        case {"id": str(name)} if len(value) == 1:
            pass
        case _:
            raise _wrong("voice", value, 'a name or {"id": a name}')
    check_text("voice", name)
    return name


def _speed(fields: Fields) -> float:
    value = fields.value("speed")
    if value is None:
        return 1.0
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise _wrong("speed", value, "a number")
    if not LEAST_SPEED <= value <= MOST_SPEED:
        raise _wrong("speed", value, f"{LEAST_SPEED:g}..{MOST_SPEED:g}")
    return float(value)


def _language(fields: Fields) -> str:
    """Of a tag such as en-US, the language."""
    value = fields.text("language")
    if not value:
        return ""
    if not (found := _LANGUAGE.fullmatch(value)):
        raise _wrong("language", value, "a code such as 'en'")
    return found[1]


def _wrong(name: str, value: Any, wanted: str) -> ApiError:
    return ApiError(400, f"{name} is {_shown(value)}, not {wanted}", name, "invalid_value")


def _shown(value: Any) -> str:
    """As it was sent, cut short; of ASCII, because it goes out again."""
    match value:
        case dict():
            return "an object"
        case list():
            return "an array"
    text = json.dumps(value)
    return text if len(text) <= SHOWN_CHARS else text[:SHOWN_CHARS] + "..."
