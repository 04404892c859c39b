"""What a session of WS /v1/realtime is set to, and how clients say it: JSON objects to values.

Sources: OpenAI's openapi.yaml, RealtimeTranscriptionSessionCreateRequest.
"""

import base64
import binascii
from collections.abc import Iterable
from dataclasses import dataclass, replace
from enum import Enum
from typing import Any

import numpy as np

from offhook.media.codecs.g711 import ALAW_LEVELS, ULAW_LEVELS
from offhook.media.pcm import RATE_IN, RATE_OUT, Pcm
from offhook.pipeline.speech.recognizer import StreamOptions
from offhook.pipeline.speech.remote.asr_protocol import RATES
from offhook.pipeline.speech.remote.worker_protocol import shown
from offhook.web.speech_api.errors import did_you_mean

MAX_KEYWORDS = 100
MAX_SILENCE_MS = 10_000
MAX_PADDING_MS = 2_000
G711_RATE = 8_000
LOGPROBS = "item.input_audio_transcription.logprobs"
IDLE_MS = (5_000, 30_000)
"""What OpenAI allows for idle_timeout_ms, from and to."""
SILENCE_OF_EAGERNESS = {"low": 1_500, "medium": 800, "auto": 800, "high": 400}
"""ms of silence that end a turn, for `semantic_vad`, which is not here: the process that answers
programs has no model to judge by what was said."""
UPDATE_MS_OF_DELAY = {"minimal": 80, "low": 160, "medium": 400, "high": 800, "xhigh": 1_120}
"""ms of sound between two updates of the words, for `transcription.delay`."""

Table = dict[str, Any]


class Dialect(Enum):
    VLLM = "vllm"
    OPENAI = "openai"


class EventError(Exception):
    """An event is wrong, or asks for what cannot be; `param` names the field."""

    def __init__(self, message: str, code: str = "invalid_value", param: str | None = None) -> None:
        super().__init__(message)
        self.code = code
        self.param = param


class Encoding(Enum):
    PCM = "audio/pcm"
    PCMU = "audio/pcmu"
    PCMA = "audio/pcma"


@dataclass(frozen=True)
class AudioFormat:
    encoding: Encoding
    rate: int

    def decode(self, audio: object) -> Pcm:
        """The sound of an `append`. Raises EventError."""
        if not isinstance(audio, str):
            raise EventError("audio is missing: a text of base64", "invalid_audio", "audio")
        try:
            data = base64.b64decode(audio, validate=True)
        except (binascii.Error, ValueError) as error:
            raise EventError(f"audio is not base64: {error}", "invalid_audio", "audio") from error
        if self.encoding is not Encoding.PCM:
            levels = ULAW_LEVELS if self.encoding is Encoding.PCMU else ALAW_LEVELS
            return levels[np.frombuffer(data, np.uint8)]
        if len(data) % 2:
            words = f"audio has {len(data)} bytes: a sample has two"
            raise EventError(words, "invalid_audio", "audio")
        return np.frombuffer(data, "<i2").astype(np.int16, copy=False)

    def as_dict(self) -> Table:
        rate = {"rate": self.rate} if self.encoding is Encoding.PCM else {}
        return {"type": self.encoding.value, **rate}


@dataclass(frozen=True)
class ServerVad:
    """Turns are found by the level of the sound: see `TurnDetector`."""

    threshold: float = 0.5
    """0..1; the higher, the more a voice must stand out."""
    prefix_padding_ms: int = 300
    silence_duration_ms: int = 500

    def as_dict(self) -> Table:
        return {
            "type": "server_vad",
            "threshold": self.threshold,
            "prefix_padding_ms": self.prefix_padding_ms,
            "silence_duration_ms": self.silence_duration_ms,
            "idle_timeout_ms": None,
        }


@dataclass(frozen=True)
class Settings:
    format: AudioFormat
    options: StreamOptions
    model: str = ""
    prompt: str = ""
    keywords: tuple[str, ...] = ()
    delay: str = ""
    """A name of UPDATE_MS_OF_DELAY; empty: as the options have it."""
    turns: ServerVad | None = None

    @property
    def stream_options(self) -> StreamOptions:
        """Raises EventError."""
        parts = (self.options.context, self.prompt, ", ".join(self.keywords))
        update_ms = UPDATE_MS_OF_DELAY.get(self.delay, self.options.update_ms)
        try:
            return replace(self.options, context=" ".join(filter(None, parts)), update_ms=update_ms)
        except ValueError as error:
            raise EventError(str(error), param="session.audio.input.transcription") from error

    def as_dict(self) -> Table:
        """The `audio` of OpenAI's session."""
        transcription: Table = {"model": self.model or None, "language": self.options.language}
        transcription["prompt"] = self.prompt
        if self.keywords:
            transcription["keywords"] = list(self.keywords)
        if self.delay:
            transcription["delay"] = self.delay
        return {
            "input": {
                "format": self.format.as_dict(),
                "noise_reduction": None,
                "transcription": transcription,
                "turn_detection": self.turns.as_dict() if self.turns is not None else None,
            }
        }


USUAL_FORMAT = {
    Dialect.VLLM: AudioFormat(Encoding.PCM, RATE_IN),
    Dialect.OPENAI: AudioFormat(Encoding.PCM, RATE_OUT),
}


class Fields:
    """A JSON object that is taken apart; what is left is not known, which is passed over when
    `lenient`. Raises EventError."""

    def __init__(self, table: object, path: str, *, lenient: bool = False) -> None:
        if not isinstance(table, dict):
            raise EventError(f"{path} is {shown(table)}, not an object", param=path)
        self._table = dict(table)
        self._path = path
        self._lenient = lenient
        self._known: list[str] = []

    def place(self, name: str) -> str:
        return f"{self._path}.{name}" if self._path else name

    def has(self, name: str) -> bool:
        self._known.append(name)
        return name in self._table

    def take(self, name: str) -> Any:
        self._known.append(name)
        return self._table.pop(name, None)

    def inner(self, name: str) -> "Fields":
        return self.of(name, self.take(name))

    def of(self, name: str, table: object) -> "Fields":
        """`table`, which was taken as `name`."""
        return Fields(table, self.place(name), lenient=self._lenient)

    def text(self, name: str, usual: str) -> str:
        value = self.take(name)
        if value is not None and not _is_text(value):
            raise self.wrong(name, value, "a text")
        return usual if value is None else str(value)

    def integer(self, name: str, usual: int, most: int, least: int = 0) -> int:
        value = self.take(name)
        if value is None:
            return usual
        if type(value) is not int or not least <= value <= most:
            raise self.wrong(name, value, f"a number from {least} to {most}")
        return value

    def one_of(self, name: str, allowed: Iterable[str], usual: str) -> str:
        value = self.take(name)
        if value is None:
            return usual
        if not isinstance(value, str) or value not in allowed:
            raise self.wrong(name, value, f"one of {', '.join(allowed)}")
        return value

    def texts(self, name: str) -> tuple[str, ...]:
        value = self.take(name)
        if value is None:
            return ()
        fits = isinstance(value, list) and all(map(_is_text, value))
        if not fits or len(value) > MAX_KEYWORDS:
            raise self.wrong(name, value, f"at most {MAX_KEYWORDS} texts")
        return tuple(value)

    def wrong(self, name: str, value: object, wanted: str) -> EventError:
        place = self.place(name)
        return EventError(f"{place} is {shown(value)}, not {wanted}", param=place)

    def end(self, *accepted: str) -> None:
        """Nothing is left but what is taken without effect, or is off."""
        if self._lenient:
            return
        for name, value in self._table.items():
            if name not in accepted and value is not None:
                place = self.place(name)
                words = f"{place[:100]} is not known here{did_you_mean(name, self._known)}"
                raise EventError(words, "unknown_parameter", place)


def _is_text(value: object) -> bool:
    """JSON may have halves of characters in it."""
    return isinstance(value, str) and not any("\ud800" <= each <= "\udfff" for each in value)


def updated(settings: Settings, session: object, *, lenient: bool = False) -> Settings:
    """What OpenAI's `session.update` makes of them: what it leaves out stays. `lenient`: fields
    that are not known are passed over. Raises EventError."""
    fields = Fields(session, "session", lenient=lenient)
    if (kind := fields.take("type")) != "transcription":
        raise fields.wrong("type", kind, "transcription: this server only transcribes here")
    for name in fields.texts("include"):  # there are none, as session.updated says
        if name != LOGPROBS:
            raise fields.wrong("include", name, LOGPROBS)
    if fields.has("audio"):
        audio = fields.inner("audio")
        if audio.has("input"):
            settings = _updated_input(settings, audio.inner("input"))
        audio.end()
    fields.end()
    return settings


def _updated_input(settings: Settings, fields: Fields) -> Settings:
    if fields.has("format"):
        settings = replace(settings, format=_format(fields.inner("format")))
    if fields.has("transcription"):
        settings = _transcription(settings, fields)
    if fields.has("turn_detection"):
        settings = replace(settings, turns=_turns(fields))
    fields.end("noise_reduction")  # there is none, as session.updated says
    return settings


def _format(fields: Fields) -> AudioFormat:
    kind = fields.text("type", Encoding.PCM.value)
    known = {encoding.value: encoding for encoding in Encoding}
    if kind not in known:
        raise fields.wrong("type", kind, f"one of {', '.join(known)}")
    usual = RATE_OUT if kind == Encoding.PCM.value else G711_RATE
    rates = RATES if kind == Encoding.PCM.value else (G711_RATE,)
    rate = fields.integer("rate", usual, max(RATES))
    if rate not in rates:
        raise fields.wrong("rate", rate, f"one of {', '.join(map(str, rates))} Hz")
    fields.end()
    return AudioFormat(known[kind], rate)


def _transcription(settings: Settings, outer: Fields) -> Settings:
    place = outer.place("transcription")
    table = outer.take("transcription")
    if table is None:
        raise EventError("a transcription session transcribes", param=place)
    fields = outer.of("transcription", table)
    language = fields.text("language", settings.options.language or "") or None
    languages = fields.texts("languages")
    if language is None and len(languages) == 1:
        language = languages[0]
    keywords = fields.texts("keywords") if fields.has("keywords") else settings.keywords
    changed = replace(
        settings,
        model=fields.text("model", settings.model),
        prompt=fields.text("prompt", settings.prompt),
        keywords=keywords,
        delay=fields.one_of("delay", UPDATE_MS_OF_DELAY, settings.delay),
    )
    fields.end()
    return with_language(changed, language, f"{place}.language")


def with_language(settings: Settings, language: str | None, place: str) -> Settings:
    """Raises EventError."""
    try:
        return replace(settings, options=replace(settings.options, language=language))
    except ValueError as error:
        raise EventError(str(error), param=place) from error


def _turns(outer: Fields) -> ServerVad | None:
    """What is done for a `semantic_vad` is a `server_vad`, as session.updated says."""
    table = outer.take("turn_detection")
    if table is None:
        return None
    fields = outer.of("turn_detection", table)
    usual = ServerVad()
    kind = fields.take("type")
    if kind == "semantic_vad":
        eagerness = fields.one_of("eagerness", SILENCE_OF_EAGERNESS, "auto")
        turns = replace(usual, silence_duration_ms=SILENCE_OF_EAGERNESS[eagerness])
    elif kind == "server_vad":
        threshold = fields.take("threshold")
        threshold = usual.threshold if threshold is None else threshold
        if type(threshold) not in (int, float) or not 0 <= threshold <= 1:
            raise fields.wrong("threshold", threshold, "a number from 0 to 1")
        padding = fields.integer("prefix_padding_ms", usual.prefix_padding_ms, MAX_PADDING_MS)
        silence = fields.integer("silence_duration_ms", usual.silence_duration_ms, MAX_SILENCE_MS)
        # Who says nothing is asked nothing here: it has no effect, as session.updated says.
        fields.integer("idle_timeout_ms", IDLE_MS[0], IDLE_MS[1], IDLE_MS[0])
        turns = ServerVad(float(threshold), padding, silence)
    else:
        raise fields.wrong("type", kind, "server_vad, semantic_vad, or null for turns you commit")
    fields.end("create_response", "interrupt_response")  # nothing responds here
    return turns
