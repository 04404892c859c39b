"""Logging: one line per event, as text or JSON, through loguru, which Pipecat also uses.

Log lines contain untrusted text, such as a caller's name, so all are escaped here: no value can
start another line.
"""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict

from offhook.pipeline.speech.redact import MASK, redacted

NOISY = ("pipecat",)
"""Libraries whose messages are shown from WARNING on, unless the level is DEBUG or TRACE. Those
that use the standard library are always shown from WARNING on, since aiortc logs every packet below
it."""
BURST = 10
"""Maximum warnings and errors that a call site may log per BURST_S; the rest are counted in one
line, so that a misbehaving peer cannot fill the disk."""
RELAY_BURST = 200
"""The same limit for a call site that relays another process's lines; the rest are counted in one
line."""
BURST_S = 10.0
"""Period in s of these limits, after which that line is written and further ones are logged."""
MINUTE_S = 60.0
"""Time in s in which lines that strangers can cause, those bound with `a_minute`, are written once
for each kind: the value that is bound. The next minute's line counts those left out."""
RELAYS = ("offhook.web.workers.local_worker_io",)
"""Call sites that relay another process's lines may log RELAY_BURST, since a traceback has many
lines."""
WORDS = ("text", "heard", "unheard", "arguments", "result")
"""Event fields with what the caller or the agent said, or what a tool was told and answered."""


class Log(BaseModel):
    """The configuration section [log]."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    level: Literal["TRACE", "DEBUG", "INFO", "WARNING", "ERROR"] = "INFO"
    """Minimum level of logged messages."""
    json_lines: bool = False
    """Whether each line is a JSON object instead of text."""
    words: bool | None = None
    """Whether to log what callers and the agent say, and have it in traces. Unset: only at the
    levels DEBUG and TRACE. DTMF digits and long numbers are always masked."""
    calls: Path | None = None
    """File to which a JSON line is appended for every ended phone or carrier call."""

    @property
    def has_words(self) -> bool:
        return self.detailed if self.words is None else self.words

    @property
    def detailed(self) -> bool:
        return self.level in ("DEBUG", "TRACE")


# --- content of a line ---

_UNSAFE = re.compile("[\x00-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")
"""Control characters, line and paragraph separators, direction marks, and lone surrogates, which
cannot be encoded."""
_NUMBER = re.compile(r"\d(?:[ .,/-]{0,2}\d){3,}")
_PRESSED = re.compile(r"\[pressed [^\]]*\]")
_SPOKEN_DIGIT = "(?:zero|oh|one|two|three|four|five|six|seven|eight|nine|double|triple)"
_SPOKEN_NUMBER = re.compile(rf"(?i)\b{_SPOKEN_DIGIT}(?:[ ,.-]+{_SPOKEN_DIGIT}){{3,}}\b")


def escaped(text: str) -> str:
    """Returns the text escaped for use within a line: "\\n" for a line break, "\\x1b" for ESC."""
    return _UNSAFE.sub(lambda found: found[0].encode("unicode_escape").decode(), text)


def safe(value: Any) -> Any:
    """Returns a bound value as JSON-compatible and escaped."""
    match value:
        case str():
            return escaped(redacted(value))
        case None | bool() | int() | float():
            return value
        case Mapping():
            return {escaped(str(name)): safe(one) for name, one in value.items()}
        case list() | tuple() | set() | frozenset():
            return [safe(one) for one in value]
    return escaped(redacted(str(value)))


def masked(words: str) -> str:
    """Masks numbers of four or more digits, spoken or written, and DTMF digits: a PIN, a card
    number."""
    for pattern, mask in ((_PRESSED, f"[pressed {MASK}]"), (_NUMBER, MASK), (_SPOKEN_NUMBER, MASK)):
        words = pattern.sub(mask, words)
    return words


def for_log(
    fields: Mapping[str, Any], has_words: bool, words: Sequence[str] = WORDS
) -> dict[str, Any]:
    """Returns the fields of an event for the log, those with `words` masked or replaced by their
    number."""
    shown = dict(fields)
    for name in words:
        if said := shown.get(name):
            shown[name] = masked(said) if has_words else f"({len(said.split())} words)"
    if "digit" in shown:
        shown["digit"] = "*"
    return shown


def for_recording(fields: Mapping[str, Any], has_keys: bool) -> dict[str, Any]:
    """Returns the fields of an event for a recording's timeline, whose words are those of the
    sound; the keys pressed are in it only if `has_keys`."""
    if has_keys:
        return dict(fields)
    shown = {
        name: _PRESSED.sub(f"[pressed {MASK}]", value) if isinstance(value, str) else value
        for name, value in fields.items()
    }
    return {**shown, "digit": "*"} if "digit" in shown else shown


def brief(fields: dict[str, Any]) -> str:
    """Returns the fields of an event for a line of the log, e.g. `text="Hello." language="en"`."""
    hidden = ("at_ms", "statistics", "headers", "variables")  # the last two come from outside
    shown = (
        f"{name}={json.dumps(value, ensure_ascii=False, default=str)}"
        for name, value in fields.items()
        if name not in hidden and value not in ("", None)
    )
    return " ".join(shown)


# --- rate limit ---

Site = tuple[str, int] | tuple[str, int, str]
"""Module and line of the source, and the kind of a line that is written once a minute."""


@dataclass
class _Window:
    ends: float
    most: int
    seconds: float
    written: int = 0
    suppressed: int = 0
    last: str = ""
    level: str = ""


class Repeats:
    """Limits the lines of each call site and counts suppressed ones; `now` is in seconds of one
    clock."""

    def __init__(self) -> None:
        self._windows: dict[Site, _Window] = {}

    def admit(self, site: Site, text: str, now: float, level: str = "WARNING") -> bool:
        """Returns whether this line is to be written."""
        window = self._windows.get(site)
        if window is None or now >= window.ends:
            most, seconds = RELAY_BURST if site[0] in RELAYS else BURST, BURST_S
            if len(site) == 3:
                most, seconds = 1, MINUTE_S
            window = self._windows[site] = _Window(now + seconds, most, seconds)
        window.written += 1
        if window.written <= window.most:
            return True
        window.suppressed, window.last, window.level = window.suppressed + 1, text, level
        return False

    def over(self, now: float) -> list[tuple[str, str]]:
        """Returns and clears the summaries of ended windows, each with its level; called before the
        next line is logged."""
        summaries = []
        for site, window in list(self._windows.items()):
            if now < window.ends:
                continue
            del self._windows[site]
            if not window.suppressed:
                continue
            where = f"{window.seconds:g} s ({site[0]}:{site[1]})"
            words = f"{window.suppressed} more like this in {where}: {window.last}"
            summaries.append((window.level, words))
            if len(site) == 3:  # the summary is the line of the next minute
                self._windows[site] = _Window(now + MINUTE_S, 0, MINUTE_S)
        return summaries


def kind(event: object) -> str:
    """Returns an event's name in logs and timelines: CallerTurn -> caller_turn."""
    return re.sub(r"(?<!^)(?=[A-Z])", "_", type(event).__name__).lower()
