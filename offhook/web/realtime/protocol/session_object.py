"""The session object of WS /v1/realtime, as received from and returned to clients.

A `session.update` holds part of it; omitted fields keep their values (`merged`). Source: OpenAI's
openapi.yaml, RealtimeTranscriptionSessionCreateRequest.
"""

import operator
from dataclasses import replace
from typing import Annotated, Any, Literal, TypeVar

import numpy as np
import pybase64
from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationInfo,
    field_serializer,
    field_validator,
    model_serializer,
    model_validator,
)

from offhook.media.codecs.g711 import ALAW_LEVELS, ULAW_LEVELS
from offhook.media.pcm import RATE_OUT, Pcm
from offhook.pipeline.speech.recognizer import StreamOptions, canonical_tag
from offhook.pipeline.speech.remote.asr_protocol import RATES
from offhook.web.speech_api.validation import expected

MAX_KEYWORDS = 100
"""Maximum entries of a list of words; more are refused as an invalid value."""
MAX_SILENCE_MS = 10_000
"""Maximum of `silence_duration_ms`; more is refused as an invalid value."""
MAX_PADDING_MS = 2_000
"""Maximum of `prefix_padding_ms`; more is refused as an invalid value."""
MIN_IDLE_MS, MAX_IDLE_MS = 5_000, 30_000
"""Range that OpenAI allows for idle_timeout_ms."""
MAX_DEPTH = 64
"""Maximum levels of an object that is only passed on; a deeper one is refused as an invalid
value."""
PCM: Literal["audio/pcm"] = "audio/pcm"
G711_LEVELS = {"audio/pcmu": ULAW_LEVELS, "audio/pcma": ALAW_LEVELS}
G711_RATE = 8_000
SILENCE_OF_EAGERNESS = {"low": 1_500, "medium": 800, "auto": 800, "high": 400}
"""ms of silence that end a turn per `eagerness` of `semantic_vad`, which is approximated by
silence: the process that serves this API has no semantic end-of-turn model."""
Delay = Literal["minimal", "low", "medium", "high", "xhigh"]
UPDATE_MS_OF_DELAY: dict[Delay, int] = dict(minimal=80, low=160, medium=400, high=800, xhigh=1_120)
"""ms of audio between two partial transcripts per `transcription.delay`."""
OBJECTS = {"session", "audio", "input", "format", "transcription", "turn_detection"}
"""Names of fields with object values, for which null is a value; any other null field counts as
absent."""


class EventError(Exception):
    """A client event is invalid or unsupported. `param` is the path of the invalid field,
    `event_id` the client's id of the event, if any."""

    def __init__(
        self,
        message: str,
        code: str = "invalid_value",
        param: str | None = None,
        event_id: str | None = None,
    ) -> None:
        super().__init__(message)
        self.code = code
        self.param = param
        self.event_id = event_id


class Object(BaseModel):
    """Base class of JSON objects from clients; unknown fields are an error."""

    model_config = ConfigDict(strict=True, hide_input_in_errors=True, extra="forbid", frozen=True)


O = TypeVar("O", bound=Object)  # noqa: E741


def merged(old: O, new: O) -> O:
    """Return `old` updated with the fields set in `new`. Format and turn detection are replaced as
    a whole."""
    changes = {name: getattr(new, name) for name in new.model_fields_set}
    for name, value in tuple(changes.items()):
        if name in ("audio", "input", "transcription"):
            changes[name] = merged(getattr(old, name), value)
        elif value is None and name != "turn_detection":
            del changes[name]
    return old.model_copy(update=changes)


def _language(text: str | None) -> str | None:
    try:
        return canonical_tag(text) if text else None
    except ValueError as error:
        raise expected("a code such as 'en' or 'pt-BR'") from error


def is_unicode(text: str) -> bool:
    """Return whether there are no lone surrogates, which JSON escapes can contain."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _unicode(text: str) -> str:
    if not is_unicode(text):
        raise expected("a string")
    return text


def _off(value: object) -> None:
    """Accept a setting without effect; the returned session reports it as off."""


def _bounded(table: dict[str, Any]) -> dict[str, Any]:
    """Reject an object that could not be sent back: too deep, or with lone surrogates."""
    left: list[tuple[Any, int]] = [(table, 0)]
    while left:
        value, depth = left.pop()
        if depth > MAX_DEPTH:
            raise expected(f"an object of at most {MAX_DEPTH} levels")
        if isinstance(value, dict):
            left += [(each, depth + 1) for pair in value.items() for each in pair]
        elif isinstance(value, list):
            left += [(each, depth + 1) for each in value]
        elif isinstance(value, str):
            _unicode(value)
    return table


Language = Annotated[str | None, AfterValidator(_language)]
Text = Annotated[str, AfterValidator(_unicode)]
Strings = Annotated[tuple[Text, ...], Field(strict=False, max_length=MAX_KEYWORDS)]
JsonObject = Annotated[dict[str, Any], AfterValidator(_bounded)]
"""Any JSON object, such as a JSON Schema."""
Ignored = Annotated[object, AfterValidator(_off)]


class AudioFormat(Object):
    """Encoding of the audio in `input_audio_buffer.append`."""

    type: Literal["audio/pcm", "audio/pcmu", "audio/pcma"] = PCM
    rate: int = Field(default_factory=lambda data: _rates(data.get("type"))[0])
    """Sample rate in Hz; usually 24000, always 8000 for G.711."""

    @field_validator("rate")
    @classmethod
    def _check_rate(cls, rate: int, info: ValidationInfo) -> int:
        if rate not in (rates := _rates(info.data.get("type"))):
            raise expected(f"one of {', '.join(map(str, sorted({*rates})))} Hz")
        return rate

    @model_serializer
    def _as_openai(self) -> dict[str, Any]:
        return {"type": self.type, **({"rate": self.rate} if self.type == PCM else {})}

    def decode(self, audio: object) -> Pcm:
        """Decode the audio of `input_audio_buffer.append` to samples. Raises EventError."""
        if not isinstance(audio, str):
            raise EventError("audio is missing: a string of base64", "invalid_audio", "audio")
        try:
            data = pybase64.b64decode(audio, validate=True)
        except ValueError as error:  # binascii.Error is one
            raise EventError(f"audio is not base64: {error}", "invalid_audio", "audio") from error
        if self.type != PCM:
            return G711_LEVELS[self.type][np.frombuffer(data, np.uint8)]
        if len(data) % 2:
            words = f"audio has {len(data)} bytes: a sample has two"
            raise EventError(words, "invalid_audio", "audio")
        return np.frombuffer(data, "<i2").astype(np.int16, copy=False)


def _rates(encoding: str | None) -> tuple[int, ...]:
    """Return the sample rates in Hz that the encoding supports, the default first."""
    return (G711_RATE,) if encoding in G711_LEVELS else (RATE_OUT, *RATES)


class Transcription(Object):
    """Settings passed to the recognizer."""

    model: Text | None = None
    language: Language = None
    prompt: Text = ""
    keywords: Annotated[Strings, Field(exclude_if=operator.not_)] = ()
    delay: Annotated[Delay | None, Field(exclude_if=operator.not_)] = None
    """None uses `update_ms` of the URL."""
    languages: Annotated[Strings, Field(exclude=True)] = ()
    """A single language is set; with several the recognizer detects which is spoken."""

    @model_validator(mode="before")
    @classmethod
    def _only_language(cls, table: Any) -> Any:
        match table:
            case {"languages": [language]} if not table.get("language"):
                return {**table, "language": language}
        return table

    def stream_options(self, options: StreamOptions) -> StreamOptions:
        """Return `options` with the settings made here. Raises EventError."""
        parts = (options.context, self.prompt, ", ".join(self.keywords))
        try:
            return replace(
                options,
                language=self.language,
                context=" ".join(filter(None, parts)),
                update_ms=UPDATE_MS_OF_DELAY[self.delay] if self.delay else options.update_ms,
            )
        except ValueError as error:
            raise EventError(str(error), param="session.audio.input.transcription") from error


class ServerVad(Object):
    """Turn detection by audio level: see `TurnDetector`."""

    type: Literal["server_vad"] = "server_vad"
    threshold: Annotated[float, Field(ge=0, le=1)] = 0.5
    """Sensitivity threshold; the higher, the more speech must stand out of the noise."""
    prefix_padding_ms: Annotated[int, Field(ge=0, le=MAX_PADDING_MS)] = 300
    silence_duration_ms: Annotated[int, Field(ge=0, le=MAX_SILENCE_MS)] = 500
    idle_timeout_ms: Annotated[
        int | None, Field(ge=MIN_IDLE_MS, le=MAX_IDLE_MS), AfterValidator(_off)
    ] = None
    create_response: Annotated[Ignored, Field(exclude=True)] = None
    interrupt_response: Annotated[Ignored, Field(exclude=True)] = None


class SemanticVad(Object):
    """Accepts semantic turn detection; its turns end after a silence that depends on
    `eagerness`."""

    type: Literal["semantic_vad"]
    eagerness: Literal["low", "medium", "high", "auto"] = "auto"
    create_response: Ignored = None
    interrupt_response: Ignored = None


def _not_off(transcription: object) -> object:
    if transcription is None:
        raise ValueError("is null: a transcription session transcribes")
    return transcription


class AudioInput(Object):
    """Format, transcription and turn detection of the input audio."""

    format: AudioFormat = AudioFormat()
    noise_reduction: Ignored = None
    transcription: Annotated[Transcription, BeforeValidator(_not_off)] = Transcription()
    turn_detection: Annotated[ServerVad | SemanticVad, Field(discriminator="type")] | None = None
    """None: the client commits each turn."""

    @property
    def server_vad(self) -> ServerVad | None:
        """The turn detection in effect, or None."""
        vad = self.turn_detection
        if isinstance(vad, SemanticVad):
            return ServerVad(silence_duration_ms=SILENCE_OF_EAGERNESS[vad.eagerness])
        return vad

    @field_serializer("turn_detection")
    def _as_done(self, _: object) -> ServerVad | None:
        return self.server_vad


class Audio(Object):
    """Audio settings of a session by direction."""

    input: AudioInput = AudioInput()


class Session(Object):
    """A transcription session."""

    type: Literal["transcription"]
    include: Annotated[
        tuple[Literal["item.input_audio_transcription.logprobs"], ...] | None,
        Field(strict=False),
        AfterValidator(_off),
    ] = None
    audio: Audio = Audio()
