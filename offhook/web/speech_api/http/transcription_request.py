"""The form fields of a transcription, as OpenAI's clients send them, strictly.

Of OpenAI's fields `temperature`, `chunking_strategy` and `include` are taken and change nothing: no
engine here samples, sound is always cut where it is quiet, and none tells log-probabilities.
"""

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import cast

from offhook.pipeline.speech.recognizer import StreamOptions, canonical_tag
from offhook.pipeline.speech.streams.languages import CODES
from offhook.web.speech_api.errors import MAX_SHOWN_CHARS, ApiError, unknown_field
from offhook.web.speech_api.http.transcript import FORMATS, Format, Granularity, Task

LISTS = ("timestamp_granularities", "include", "keywords", "languages")
"""Fields that may come more than once, by OpenAI's clients with [] behind the name."""
SINGLES = (
    "model",
    "language",
    "prompt",
    "response_format",
    "temperature",
    "stream",
    "chunking_strategy",
)
SPEAKERS = "known_speaker_names", "known_speaker_references"
_LANGUAGES = {name.lower(): code for name, code in CODES.items()}


@dataclass(frozen=True)
class TranscriptionRequest:
    options: StreamOptions
    model: str = ""
    """Empty: whatever is there."""
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
    """`by_segment`: for the endpoint that answers with segments always; `lenient`: fields that are
    not known are passed over. Raises ApiError that names the field."""
    lists: dict[str, list[str]] = {name: [] for name in LISTS}
    single: dict[str, str] = {}
    for full_name, value in fields:
        name = full_name.removesuffix("[]")
        if name.startswith("chunking_strategy["):
            continue  # an object, a field for each member
        if name in lists:
            lists[name].append(value)
        elif name in SINGLES:
            if name in single:
                raise ApiError(400, f"{name} is given twice", name)
            single[name] = value
        elif name in SPEAKERS:
            raise ApiError(400, "speakers are not told apart here: leave it out", name)
        elif not lenient:
            raise unknown_field(full_name, ("file", *SINGLES, *(f"{name}[]" for name in LISTS)))
    _check_unused(single, lists)
    form = _format(single.get("response_format") or "json")
    granularities = _granularities(lists["timestamp_granularities"], form, by_segment)
    stream = by_segment or _flag("stream", single.get("stream", "false"))
    if stream and form not in ("json", "text"):
        words = "a stream is of events: leave response_format out"
        if not by_segment:
            words += ", or ask POST /v1/audio/transcriptions/stream for segments with their times"
        raise ApiError(400, words, "response_format")
    options = _options(single, lists, words="word" in granularities)
    return TranscriptionRequest(options, single.get("model", ""), form, granularities, stream, task)


def language_tag(text: str) -> str | None:
    """ "en", "EN", "en-US", "en_US" and "english" as a tag; None for nothing. Raises ApiError."""
    plain = text.strip().lower()
    if not plain or plain == "auto":
        return None
    if plain in _LANGUAGES:
        return _LANGUAGES[plain]
    try:
        return canonical_tag(plain)
    except ValueError as error:
        raise ApiError(400, f"{error}, or a name we know", "language") from error


def _options(single: dict[str, str], lists: dict[str, list[str]], *, words: bool) -> StreamOptions:
    languages = list(lists["languages"])
    if "language" in single:
        languages = [single["language"]]
    tags = [language_tag(language) for language in languages]
    parts = [single.get("prompt", ""), ", ".join(lists["keywords"])]
    try:
        return StreamOptions(
            context="\n".join(filter(None, parts)),
            # Of several that it may be, the engine finds out which.
            language=tags[0] if len(tags) == 1 else None,
            words=words,
            live=False,
        )
    except ValueError as error:
        raise ApiError(400, str(error).replace("context", "prompt"), "prompt") from error


def _format(text: str) -> Format:
    if text in FORMATS:
        return text
    words = f"response_format is {_shown(text)}, not one of {', '.join(FORMATS)}"
    if text == "diarized_json":
        words = f"speakers are not told apart here: response_format is one of {', '.join(FORMATS)}"
    raise ApiError(400, words, "response_format")


def _granularities(values: list[str], form: Format, by_segment: bool) -> frozenset[Granularity]:
    name = "timestamp_granularities[]"
    for value in values:
        if value not in ("word", "segment"):
            raise ApiError(400, f"{name} is {_shown(value)}, not word or segment", name)
    if values and form != "verbose_json" and not by_segment:
        raise ApiError(400, f"{name} needs response_format verbose_json", name)
    return frozenset(cast(list[Granularity], values))


def _flag(name: str, text: str) -> bool:
    values = {"true": True, "1": True, "false": False, "0": False, "": False}
    if text.lower() not in values:
        raise ApiError(400, f"{name} is {_shown(text)}, not true or false", name)
    return values[text.lower()]


def _check_unused(single: dict[str, str], lists: dict[str, list[str]]) -> None:
    """What changes nothing shall still be right."""
    text = single.get("temperature") or "0"
    try:
        temperature = float(text)
    except ValueError:
        temperature = math.nan
    if not 0 <= temperature <= 1:
        raise ApiError(400, f"temperature is {_shown(text)}, not a number 0..1", "temperature")
    for value in lists["include"]:
        if value != "logprobs":
            raise ApiError(400, f"include[] is {_shown(value)}, not logprobs", "include[]")
    strategy = single.get("chunking_strategy") or "auto"
    if strategy != "auto" and not _is_object(strategy):
        words = f"chunking_strategy is {_shown(strategy)}, not auto or an object"
        raise ApiError(400, words, "chunking_strategy")


def _is_object(text: str) -> bool:
    try:
        return isinstance(json.loads(text), dict)
    except (ValueError, RecursionError):
        return False


def _shown(text: str) -> str:
    return repr(text if len(text) <= MAX_SHOWN_CHARS else text[:MAX_SHOWN_CHARS] + "…")
