"""Parses responses of OpenAI-compatible audio servers; all input is untrusted.

Shapes follow OpenAI's openapi.yaml; `/v1/realtime` follows vLLM, which only transcribes and differs
from OpenAI's: `session.created`, `transcription.delta`, `transcription.done`, `error`. vLLM passes
on the model's raw output: Qwen3-ASR puts "language English<asr_text>" before every segment and may
loop.
"""

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any

from offhook.media.untrusted_json import read_json
from offhook.pipeline.speech.errors import EngineFault
from offhook.pipeline.speech.recognizer import Word
from offhook.pipeline.speech.redact import redacted
from offhook.pipeline.speech.streams.languages import CODES
from offhook.pipeline.speech.streams.retry import AttemptFailed
from offhook.pipeline.speech.streams.transcript import fix_repetitions, open_tail, strip_tags

MAX_WORDS_CHARS = 300
"""Maximum characters of a server's message quoted in our errors; the rest is cut off."""
MAX_TEXT_CHARS = 1 << 16
"""Maximum text of one utterance; a longer response is not speech, and the request has failed."""
MAX_WORDS = 1 << 14
"""Maximum words of a response; further ones are ignored."""
MAX_VOICES = 1000
"""Maximum voices of a server's list; further ones are ignored."""
MAX_NAME_CHARS = 200
"""Maximum length of a voice's name; one with a longer name is ignored."""
PASSING = (408, 409, 425, 429)
"""4xx statuses worth a retry, like all 5xx."""
NO_CREDIT = "insufficient_quota"
_HEADER_OPENS = "language "
_HEADER_GOES_ON = re.compile(r"[A-Za-z]{0,30}(<[a-z_]{0,8})?")
HEADER_CHARS = 50
"""Maximum length of a header; longer text is passed on as speech."""


@dataclass(frozen=True)
class Transcript:
    """The response to one transcription request."""

    text: str
    words: tuple[Word, ...] = ()
    """Words with times in ms of the audio sent."""
    language: str = ""
    """ISO 639 code; empty if not given."""


@dataclass(frozen=True)
class Created:
    """vLLM's start of session; an OpenAI session has another shape."""


@dataclass(frozen=True)
class Delta:
    text: str


@dataclass(frozen=True)
class Done:
    text: str
    language: str = ""


@dataclass(frozen=True)
class Refusal:
    words: str


@dataclass(frozen=True)
class Other:
    """A message that needs no handling."""


Message = Created | Delta | Done | Refusal | Other


def plain(text: object) -> str:
    """Sanitizes a server's message for a log line; servers may echo the key they reject."""
    words = " ".join(redacted(str(text)[: 4 * MAX_WORDS_CHARS]).split())
    words = "".join(char for char in words if char.isprintable())
    return words if len(words) <= MAX_WORDS_CHARS else words[:MAX_WORDS_CHARS] + "…"


def table(data: bytes | str) -> dict[str, Any]:
    """Parses a JSON object. Raises AttemptFailed."""
    try:
        value = read_json(data)
    except ValueError as error:
        raise AttemptFailed("the response is not valid JSON") from error
    if not isinstance(value, dict):
        raise AttemptFailed("the response is not a JSON object")
    return value


def error_words(value: object) -> tuple[str, str]:
    """Returns message and code of an error: {"error": {"message", "code"}} (OpenAI), {"error": "…"}
    or {"message": "…"} (vLLM), {"detail": "…"} (FastAPI)."""
    if isinstance(value, dict):
        for key in ("error", "message", "detail"):
            inner = value.get(key)
            if isinstance(inner, dict):
                code = inner.get("code") or inner.get("type")
                return plain(inner.get("message", "")), plain(code or "")
            if inner:
                return plain(inner), plain(value.get("code") or value.get("type") or "")
    return "", ""


def failure(status: int, headers: Mapping[str, str], body: bytes, now: datetime) -> AttemptFailed:
    """Converts a response other than 2xx to an AttemptFailed."""
    try:
        words, code = error_words(read_json(body))
    except ValueError:
        page = body.lstrip().startswith((b"<", b"{", b"["))  # of a proxy, or cut off
        words, code = "" if page else plain(body.decode(errors="replace")), ""
    said = f"{status}: {words}" if words else f"{status}"
    after_s = retry_after_s(headers, now)
    if 300 <= status < 400:
        place = plain(headers.get("Location", "elsewhere"))
        words = f"it redirects to {place} ({status}): use that URL"
        return AttemptFailed(words, hopeless=True, fault="refused")
    if status in (401, 403):
        words = f"it wants a valid API key ({said})"
        return AttemptFailed(words, hopeless=True, status=status, fault="refused")
    if status == 404:
        hint = words or "does the URL end with /v1?"
        words = f"not found (404): {hint}"
        return AttemptFailed(words, hopeless=True, status=status, fault="refused")
    if status == 429:
        broke = NO_CREDIT in (code, words)
        what = "the account has no credit" if broke else "it is overloaded"
        words = f"{what} ({said})"
        fault: EngineFault = "refused" if broke else "full"
        return AttemptFailed(words, hopeless=broke, after_s=after_s, status=status, fault=fault)
    if status >= 500 or status in PASSING:
        return AttemptFailed(f"it has failed ({said})", after_s=after_s, status=status)
    return AttemptFailed(f"it refuses ({said})", hopeless=True, status=status, fault="refused")


def retry_after_s(headers: Mapping[str, str], now: datetime) -> float:
    """Returns the delay from Retry-After (RFC 9110, section 10.2.3) or OpenAI's retry-after-ms
    header, in s; 0 if neither is valid."""
    for name, unit in (("retry-after-ms", 1000.0), ("Retry-After", 1.0)):
        try:
            seconds = float(headers.get(name, "")) / unit
        except ValueError:
            continue
        if math.isfinite(seconds):
            return max(0.0, seconds)
    try:
        at = parsedate_to_datetime(headers.get("Retry-After", ""))
    except (ValueError, TypeError, IndexError, OverflowError):
        return 0.0
    at = at if at.tzinfo else at.replace(tzinfo=UTC)
    return max(0.0, (at - now).total_seconds())


def language_code(value: object) -> str:
    """Normalizes a language ("english" from OpenAI, "en" from others) to an ISO 639 code; empty if
    unknown."""
    name = value.strip() if isinstance(value, str) else ""
    if name.capitalize() in CODES:
        return CODES[name.capitalize()]
    code = name.lower().partition("-")[0]
    return code if re.fullmatch("[a-z]{2,3}", code) else ""


def transcript(data: bytes, audio_ms: int) -> Transcript:
    """Parses the response to a transcription request for audio of this length. Raises
    AttemptFailed."""
    value = table(data)
    text = value.get("text")
    if not isinstance(text, str):
        words, _ = error_words(value)
        raise AttemptFailed(words or "the response has no text")
    if len(text) > MAX_TEXT_CHARS:
        raise AttemptFailed(f"it answers {len(text)} characters to {audio_ms // 1000} s of sound")
    text = cleaned_text(text)
    words_said = _words(value.get("words"), audio_ms)
    return Transcript(text, words_said, language_code(value.get("language")))


def _words(value: object, audio_ms: int) -> tuple[Word, ...]:
    """Returns the words with valid times, clamped to the audio and put in order."""
    words: list[Word] = []
    last = 0
    for item in value[:MAX_WORDS] if isinstance(value, list) else ():
        if not isinstance(item, dict):
            continue
        text = item.get("word")
        start, end = _seconds(item.get("start")), _seconds(item.get("end"))
        if not isinstance(text, str) or not text.strip():
            continue
        if start is None or end is None:
            continue
        start_ms = min(max(round(start * 1000), last), audio_ms)
        last = min(max(round(end * 1000), start_ms), audio_ms)
        words.append(Word(text.strip(), start_ms, last))
    return tuple(words)


def _seconds(value: object) -> float | None:
    """Returns a valid time in s; None for anything else, e.g. NaN."""
    if isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < 1e9:
        return float(value)
    return None


def cleaned_text(text: str) -> str:
    """Removes headers, control tokens and repetition loops from a whole text."""
    return fix_repetitions(strip_tags(text)).strip()


def _begins_header(text: str) -> bool:
    rest = text.removeprefix(_HEADER_OPENS)
    return _HEADER_OPENS.startswith(text) or (
        rest != text and _HEADER_GOES_ON.fullmatch(rest) is not None
    )


class HeaderFilter:
    """Removes Qwen3-ASR's "language English<asr_text>" and other control tokens from streamed
    text."""

    def __init__(self) -> None:
        self._held = ""

    def write(self, text: str) -> str:
        """Adds text and returns what is certain; a possible start of a header or control token is
        held back."""
        text = strip_tags(self._held + text)
        first = max(0, len(text) - HEADER_CHARS)
        sure = len(text) - open_tail(text)
        at = next((n for n in range(first, sure) if _begins_header(text[n:])), sure)
        self._held = text[at:]
        return text[:at]

    def end(self) -> str:
        held, self._held = self._held, ""
        return held


def message(data: str) -> Message:
    """Parses a message of vLLM's `/v1/realtime`. Raises AttemptFailed."""
    value = table(data)
    match value.get("type"):
        case "session.created":
            # OpenAI's has only a session object: another protocol at the same path.
            return Created() if "created" in value else Other()
        case "transcription.delta":
            delta = value.get("delta")
            if not isinstance(delta, str):
                raise AttemptFailed("a delta without text")
            return Delta(delta)
        case "transcription.done":
            text = value.get("text")
            if not isinstance(text, str):
                raise AttemptFailed("a transcription without text")
            return Done(text, language_code(value.get("language")))
        case "error":
            words, _ = error_words(value)
            return Refusal(words or "an error without words")
    return Other()


def model_ids(data: bytes) -> list[str]:
    """Parses GET /models; returns the ids usable as names. Raises AttemptFailed."""
    return _names(table(data).get("data"))


def voice_names(data: bytes) -> list[str]:
    """Parses GET /audio/voices, which OpenAI does not have: {"voices": […]} or {"data": […]} of
    names or objects. Raises AttemptFailed."""
    value = table(data)
    return _names(value.get("voices") or value.get("data"))


def _names(value: object) -> list[str]:
    names: list[str] = []
    for item in value[:MAX_VOICES] if isinstance(value, list) else ():
        if isinstance(item, dict):
            item = item.get("id") or item.get("voice_id") or item.get("name")
        if isinstance(item, str) and 0 < len(item) <= MAX_NAME_CHARS and item not in names:
            names.append(item)
    return names


def sound_fault(content_type: str, head: bytes) -> str:
    """Returns why a response is not raw PCM; empty if it may be. Some servers label everything
    audio/mpeg, so the type alone only proves text."""
    kind = content_type.partition(";")[0].strip().lower()
    if kind.startswith("text/") or kind.endswith(("json", "xml", "html")):
        return f"it sends {plain(kind)} instead of sound"
    for magic, name in ((b"RIFF", "WAV"), (b"OggS", "Ogg"), (b"fLaC", "FLAC"), (b"ID3", "MP3")):
        if head.startswith(magic):
            return f"it sends {name}, though raw PCM (response_format pcm) was asked for"
    if kind in ("audio/mpeg", "audio/mp3") and head[:1] == b"\xff" and head[1:2] >= b"\xe0":
        return "it sends MP3, though raw PCM (response_format pcm) was asked for"
    return ""


def sound_rate(content_type: str, usual: int) -> int:
    """Returns the sample rate in Hz from a type such as audio/L16;rate=16000, else the usual
    one."""
    said = re.search(r"rate\s*=\s*\"?(\d{4,6})", content_type, re.IGNORECASE)
    rate = int(said.group(1)) if said else usual
    return rate if 8000 <= rate <= 192_000 else usual
