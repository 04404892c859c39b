"""The alignment of a known text with its audio, over HTTP: what is asked and answered, as values.

    POST   /v1/audio/alignments     form: file, text, language; model

Words are those of OpenAI's verbose transcriptions, errors its errors. This module is text only; the
sockets are in web/speech_api/http/alignments_io and in `alignments_io`.
"""

from dataclasses import dataclass
from typing import Any

from pydantic import TypeAdapter

from offhook.pipeline.speech.engines import no_aligner
from offhook.pipeline.speech.errors import EngineError, UnsupportedRequest
from offhook.pipeline.speech.openai.answers import plain
from offhook.pipeline.speech.recognizer import Word
from offhook.pipeline.speech.redact import without_locations
from offhook.pipeline.speech.remote.worker_protocol import parse_json, refusal

ALIGNMENTS_PATH = "/v1/audio/alignments"


def words_table(words: tuple[Word, ...]) -> list[dict[str, Any]]:
    return [{"word": w.text, "start": w.start_ms / 1000, "end": w.end_ms / 1000} for w in words]


@dataclass(frozen=True)
class _Word:
    word: str
    start: float
    end: float


@dataclass(frozen=True)
class _Alignment:
    words: tuple[_Word, ...]


_ALIGNMENT = TypeAdapter(_Alignment)


def parse_words(text: str) -> tuple[Word, ...]:
    """Parses an answer. Raises ProtocolError."""
    found = parse_json(_ALIGNMENT, text).words
    return tuple(Word(w.word, round(w.start * 1000), round(w.end * 1000)) for w in found)


def error_of(status: int, text: str) -> EngineError:
    """Converts a response other than 200."""
    try:
        message, _ = refusal(status, text)
    except EngineError as error:
        return error
    if status == 400:
        return UnsupportedRequest(message if without_locations(message) else no_aligner())
    return EngineError(f"it answered {status}: {plain(message)}")
