"""Logs: one line an event, readable or JSON, by loguru, which Pipecat logs with too.

What a line says may come from anybody: the name of a caller, the type of a message, the reason of a
far end. So it is escaped here, where every line passes: none can end its line and write another.
"""

import json
import logging
import math
import re
import sys
import traceback
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal

from aiohttp.http_exceptions import HttpProcessingError
from loguru import logger
from pydantic import BaseModel, ConfigDict

from offhook.pipeline.speech.redact import MASK, redacted

NOISY = ("pipecat",)
"""Libraries whose own chatter is shown from WARNING up, unless the level is DEBUG or TRACE. Those
that log by the standard library are shown from WARNING up always: below it aiortc has a line for
every packet."""
BURST = 10
RELAY_BURST = 200
BURST_S = 10.0
"""A call site may write BURST warnings or errors in BURST_S. The rest are counted, and the
count is one line: a peer who sends what we complain of must not fill the disk."""
RELAYS = ("offhook.web.worker.local_worker_io",)
"""Call sites that pass on the lines of another process may write RELAY_BURST: a traceback of a
library is one line after another there."""
WORDS = ("text", "heard", "unheard")
"""Fields of events that hold what the caller or the agent said."""


class Log(BaseModel):
    """The section [log] of the configuration."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    level: Literal["TRACE", "DEBUG", "INFO", "WARNING", "ERROR"] = "INFO"
    """The least severe level that is logged."""
    json_lines: bool = False
    """Whether each line is a JSON object instead of text."""
    words: bool | None = None
    """Whether the log has what callers and the agent say. Unset: only with the levels DEBUG and
    TRACE. Keys pressed and long numbers are masked in any case."""
    calls: Path | None = None
    """File that gets a line of JSON for every call of a phone or a carrier that ended."""

    @property
    def has_words(self) -> bool:
        return self.detailed if self.words is None else self.words

    @property
    def detailed(self) -> bool:
        return self.level in ("DEBUG", "TRACE")


# --- what a line may say ---

_UNSAFE = re.compile("[\x00-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")
"""Control characters, line and paragraph separators, changes of the writing direction, and halves
of surrogate pairs, which no terminal can be sent."""
_NUMBER = re.compile(r"\d(?:[ .,/-]{0,2}\d){3,}")
_PRESSED = re.compile(r"\[pressed [^\]]*\]")
_SPOKEN_DIGIT = "(?:zero|oh|one|two|three|four|five|six|seven|eight|nine|double|triple)"
_SPOKEN_NUMBER = re.compile(rf"(?i)\b{_SPOKEN_DIGIT}(?:[ ,.-]+{_SPOKEN_DIGIT}){{3,}}\b")


def escaped(text: str) -> str:
    """The text as part of one line, whoever wrote it: "\\n" for a line break, "\\x1b" for ESC."""
    return _UNSAFE.sub(lambda found: found[0].encode("unicode_escape").decode(), text)


def _safe(value: Any) -> Any:
    """A bound value as JSON can hold it, escaped."""
    match value:
        case str():
            return escaped(redacted(value))
        case None | bool() | int() | float():
            return value
        case Mapping():
            return {escaped(str(name)): _safe(one) for name, one in value.items()}
        case list() | tuple() | set() | frozenset():
            return [_safe(one) for one in value]
    return escaped(redacted(str(value)))


def masked(words: str) -> str:
    """What somebody said, without numbers of four digits or more, spoken or written, and without
    the keys they pressed: a PIN, a card."""
    for pattern, mask in ((_PRESSED, f"[pressed {MASK}]"), (_NUMBER, MASK), (_SPOKEN_NUMBER, MASK)):
        words = pattern.sub(mask, words)
    return words


def for_log(fields: Mapping[str, Any], has_words: bool) -> dict[str, Any]:
    """The fields of an event as the log may have them: words masked, or only how many."""
    shown = dict(fields)
    for name in WORDS:
        if said := shown.get(name):
            shown[name] = masked(said) if has_words else f"({len(said.split())} words)"
    if "digit" in shown:
        shown["digit"] = "*"
    return shown


# --- how often ---

Site = tuple[str, int]
"""Module and line of the source."""


@dataclass
class _Window:
    ends: float
    written: int = 0
    suppressed: int = 0
    last: str = ""


class Repeats:
    """Which lines of a call site are written, and how many were not. `now` in seconds of one
    clock."""

    def __init__(self) -> None:
        self._windows: dict[Site, _Window] = {}

    def admit(self, site: Site, text: str, now: float) -> bool:
        """Whether this line is written."""
        window = self._windows.get(site)
        if window is None or now >= window.ends:
            window = self._windows[site] = _Window(now + BURST_S)
        window.written += 1
        if window.written <= (RELAY_BURST if site[0] in RELAYS else BURST):
            return True
        window.suppressed, window.last = window.suppressed + 1, text
        return False

    def over(self, now: float) -> list[str]:
        """What is to be said of the windows that have ended; they are forgotten. Whatever is logged
        next says it."""
        ended = [site for site, window in self._windows.items() if now >= window.ends]
        windows = [(site, self._windows.pop(site)) for site in ended]
        return [
            f"{window.suppressed} more like this in {BURST_S:g} s ({module}:{line}): {window.last}"
            for (module, line), window in windows
            if window.suppressed
        ]


# --- where they go ---


class _ToLoguru(logging.Handler):
    """Standard-library logging (aiohttp, aiortc) into the same stream."""

    def emit(self, record: logging.LogRecord) -> None:
        if record.exc_info and isinstance(record.exc_info[1], HttpProcessingError):
            return  # not a fault of ours: anybody can send what is no HTTP, and gets a 400

        def site(of_ours: Any) -> None:
            of_ours.update(name=record.name, line=record.lineno)

        line = logger.opt(exception=record.exc_info).patch(site)
        try:
            level: str | int = logger.level(record.levelname).name
        except ValueError:  # a level of the library's own
            level = record.levelno
        line.log(level, record.getMessage())


class _Lines:
    """A sink of loguru, which calls it for one line at a time."""

    def __init__(self, as_json: bool) -> None:
        self._as_json = as_json
        self._repeats = Repeats()

    def write(self, message: Any) -> None:
        record = message.record
        at: datetime = record["time"]
        self._say_over(at, at.timestamp())
        text = escaped(redacted(record["message"]))
        if record["level"].no >= logging.WARNING:
            site = record["name"] or "", record["line"]
            if not self._repeats.admit(site, text, at.timestamp()):
                return
        extra = dict(record["extra"])
        trace = extra.pop("exception", "")  # of another process, as text
        if record["exception"] is not None:
            # Without the values of variables: there are keys and callers' words among them.
            trace = "".join(traceback.format_exception(record["exception"].value))
        self._put(at, record["level"].name, text, extra, redacted(trace))

    def stop(self) -> None:
        """The end of the log, or of the process."""
        self._say_over(datetime.now(UTC).astimezone(), math.inf)

    def _put(self, at: datetime, level: str, text: str, extra: dict[str, Any], trace: str) -> None:
        if self._as_json:
            moment = at.isoformat(timespec="milliseconds")
            line = {"time": moment, "level": level, "message": text, **_safe(extra)}
            if trace:
                line["exception"] = "\n".join(map(escaped, trace.split("\n")))
            sys.stderr.write(json.dumps(line, ensure_ascii=False, default=str) + "\n")
            return
        # Lines of a traceback are set in: what an exception says cannot look like a line of ours.
        lines = [f"  {escaped(one)}" for one in trace.rstrip().split("\n") if trace]
        head = f"{at:%H:%M:%S}.{at.microsecond // 1000:03} {level: <7} {text}"
        sys.stderr.write("\n".join((head, *lines)) + "\n")

    def _say_over(self, at: datetime, now: float) -> None:
        for text in self._repeats.over(now):
            self._put(at, "WARNING", text, {}, "")


def set_up(log: Log) -> None:
    """Send all logs to standard error, as configured."""
    chatter = log.detailed and log.has_words  # Pipecat's has both sides of the conversation

    def wanted(record: Any) -> bool:
        quiet = record["name"].startswith(NOISY) and not chatter
        return not quiet or record["level"].no >= logging.WARNING

    logger.remove()
    logger.add(
        _Lines(log.json_lines),
        level=log.level,
        filter=wanted,
        format="{message}",
        diagnose=False,
        backtrace=False,
    )
    logging.basicConfig(handlers=[_ToLoguru()], level=logging.WARNING, force=True)
    # A page's key is a subprotocol that no server knows, of which aiohttp warns.
    logging.getLogger("aiohttp.websocket").setLevel(logging.ERROR)


def kind(event: object) -> str:
    """CallerTurn -> caller_turn: the name of an event in logs and timelines."""
    return re.sub(r"(?<!^)(?=[A-Z])", "_", type(event).__name__).lower()
