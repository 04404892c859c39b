"""The form fields of a transcription request, as OpenAI's clients send them.

OpenAI's `temperature`, `chunking_strategy` and `include` are validated but have no effect: no
engine samples, audio is always split at quiet places, and log-probabilities are unavailable.
"""

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import pydantic.dataclasses
from pydantic import AfterValidator, BeforeValidator, Field

from offhook.media.untrusted_json import read_json
from offhook.pipeline.speech.recognizer import MAX_CONTEXT_CHARS, StreamOptions, canonical_tag
from offhook.pipeline.speech.streams.languages import CODES
from offhook.web.speech_api.errors import ApiError, unknown_field
from offhook.web.speech_api.http.transcript import Format, Granularity, Task
from offhook.web.speech_api.validation import build, expected

SPEAKERS = "known_speaker_names", "known_speaker_references"
_LANGUAGES = {name.lower(): code for name, code in CODES.items()}


def _not_diarized(text: object) -> object:
    if text == "diarized_json":
        raise ValueError("is diarized_json: speaker diarization is not supported")
    return text


def _strategy(text: str) -> str:
    try:
        is_object = isinstance(read_json(text), dict)
    except ValueError:
        is_object = False
    if text != "auto" and not is_object:
        raise expected("auto or an object")
    return text


@pydantic.dataclasses.dataclass(frozen=True)
class TranscriptionForm:
    """The form fields besides the file. A list may be sent as repeated fields, or by OpenAI's
    clients with [] after the name."""

    model: str = ""
    language: Annotated[str, Field(description="en, en-US, english; empty: detected")] = ""
    prompt: Annotated[str, Field(json_schema_extra={"maxLength": MAX_CONTEXT_CHARS})] = ""
    response_format: Annotated[Format, BeforeValidator(_not_diarized)] = "json"
    temperature: Annotated[float, Field(ge=0, le=1, allow_inf_nan=False)] = 0
    stream: bool = False
    chunking_strategy: Annotated[str, AfterValidator(_strategy)] = "auto"
    timestamp_granularities: Annotated[
        tuple[Granularity, ...],
        Field(description="for verbose_json; ignored with formats without times"),
    ] = ()
    include: tuple[Literal["logprobs"], ...] = ()
    keywords: tuple[str, ...] = ()
    languages: tuple[str, ...] = ()


WITHOUT_COMMAS = ("timestamp_granularities", "include", "languages")
"""Lists that may also be sent as one field, separated by commas or as JSON."""
ABSENT = ("", "null", "undefined")
"""What forms made by JavaScript and others send for a field that has no value."""
LISTS = ("timestamp_granularities", "include", "keywords", "languages")
FIELDS = [
    "file",
    *(f.name + "[]" * (f.name in LISTS) for f in dataclasses.fields(TranscriptionForm)),
]


@dataclass(frozen=True)
class TranscriptionRequest:
    options: StreamOptions
    model: str = ""
    """Name of the model; empty: any."""
    format: Format = "json"
    granularities: frozenset[Granularity] = frozenset()
    stream: bool = False
    task: Task = "transcribe"

    @property
    def wants_times(self) -> bool:
        return self.format in ("srt", "vtt", "verbose_json")


def parse(
    fields: Sequence[tuple[str, str]],
    task: Task = "transcribe",
    *,
    by_segment: bool = False,
    lenient: bool = False,
) -> TranscriptionRequest:
    """Parses the form fields. `by_segment` is for the endpoint that always returns segments;
    `lenient` ignores unknown fields. Raises ApiError 400 that names the field."""
    table: dict[str, Any] = {}
    for full_name, value in fields:
        name = full_name.removesuffix("[]")
        if name.startswith("chunking_strategy["):
            continue  # an object, one field per member
        if name in LISTS:
            entries = _entries(value) if name in WITHOUT_COMMAS else [value]
            table.setdefault(name, []).extend(one for one in entries if one not in ABSENT)
        elif name in FIELDS:
            if name in table:
                raise ApiError(400, f"{name} is given twice", name)
            table[name] = value
        elif name in SPEAKERS:
            raise ApiError(400, "speaker diarization is not supported: leave it out", name)
        elif not lenient:
            raise unknown_field(full_name, FIELDS)
    form = build(
        TranscriptionForm, {name: value for name, value in table.items() if value not in ABSENT}
    )
    stream, format = by_segment or form.stream, form.response_format
    granularities: frozenset[Granularity] = frozenset()
    if format == "verbose_json" or by_segment:
        # Other formats have no times; AI SDK sends granularities with each.
        granularities = frozenset(form.timestamp_granularities)
    if stream and format not in ("json", "text"):
        words = "a stream is of events: leave response_format out"
        if not by_segment:
            words += ", or ask POST /v1/audio/transcriptions/stream for segments with their times"
        raise ApiError(400, words, "response_format")
    has_language = table.get("language", "") not in ABSENT
    options = _options(form, granularities, has_language=has_language)
    return TranscriptionRequest(options, form.model, format, granularities, stream, task)


def language_tag(text: str) -> str | None:
    """Returns "en", "EN", "en-US", "en_US" or "english" as a tag; None if empty. Raises
    ApiError."""
    plain = text.strip().lower()
    if not plain or plain == "auto":
        return None
    if plain in _LANGUAGES:
        return _LANGUAGES[plain]
    try:
        return canonical_tag(plain)
    except ValueError as error:
        raise ApiError(400, f"{error}, or a name we know", "language") from error


def _entries(text: str) -> list[str]:
    """Returns the entries of a list that is sent as `["a", "b"]`, `a,b` or `a`."""
    if text.lstrip().startswith("["):
        try:
            entries = read_json(text)
        except ValueError:
            return [text]
        return entries if all(isinstance(one, str) for one in entries) else [text]
    return [one.strip() for one in text.split(",")]


def _options(
    form: TranscriptionForm, granularities: frozenset[Granularity], *, has_language: bool
) -> StreamOptions:
    languages = (form.language,) if has_language else form.languages
    tags = [language_tag(language) for language in languages]
    try:
        return StreamOptions(
            context="\n".join(filter(None, (form.prompt, ", ".join(form.keywords)))),
            # Among several candidates, the engine detects the language.
            language=tags[0] if len(tags) == 1 else None,
            words="word" in granularities,
            live=False,
        )
    except ValueError as error:
        raise ApiError(400, str(error).replace("context", "prompt"), "prompt") from error
