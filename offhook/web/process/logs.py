"""Logging: one line per event, as text or JSON, through loguru, which Pipecat also uses.

Log lines contain untrusted text, such as a caller's name, so all are escaped here: no value can
start another line.
"""

import json
import logging
import math
import re
import sys
import traceback
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from time import monotonic
from typing import Any, Literal

from aiohttp.http_exceptions import HttpProcessingError
from aiohttp.multipart import BadContentDispositionHeader, BadContentDispositionParam
from loguru import logger
from pydantic import BaseModel, ConfigDict

from offhook.pipeline.speech.redact import MASK, redacted

NOISY = ("pipecat",)
"""Libraries whose messages are shown from WARNING on, unless the level is DEBUG or TRACE. Those
that use the standard library are always shown from WARNING on, since aiortc logs every packet below
it."""
BURST = 10
RELAY_BURST = 200
BURST_S = 10.0
"""Rate limit: a call site may log BURST warnings or errors per BURST_S. The rest are counted in one
line, so that a misbehaving peer cannot fill the disk."""
MINUTE_S = 60.0
"""Time in s in which lines that strangers can cause, those bound with `a_minute`, are written once
for each kind: the value that is bound. The next minute's line counts those left out."""
RELAYS = ("offhook.web.worker.local_worker_io",)
"""Call sites that relay another process's lines may log RELAY_BURST, since a traceback has many
lines."""
WORDS = ("text", "heard", "unheard")
"""Event fields with what the caller or the agent said."""


class Log(BaseModel):
    """The configuration section [log]."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    level: Literal["TRACE", "DEBUG", "INFO", "WARNING", "ERROR"] = "INFO"
    """Minimum level of logged messages."""
    json_lines: bool = False
    """Whether each line is a JSON object instead of text."""
    words: bool | None = None
    """Whether to log what callers and the agent say. Unset: only at the levels DEBUG and TRACE.
    DTMF digits and long numbers are always masked."""
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


def _safe(value: Any) -> Any:
    """Returns a bound value as JSON-compatible and escaped."""
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
    """Masks numbers of four or more digits, spoken or written, and DTMF digits: a PIN, a card
    number."""
    for pattern, mask in ((_PRESSED, f"[pressed {MASK}]"), (_NUMBER, MASK), (_SPOKEN_NUMBER, MASK)):
        words = pattern.sub(mask, words)
    return words


def for_log(fields: Mapping[str, Any], has_words: bool) -> dict[str, Any]:
    """Returns the fields of an event for the log, with words masked or replaced by their number."""
    shown = dict(fields)
    for name in WORDS:
        if said := shown.get(name):
            shown[name] = masked(said) if has_words else f"({len(said.split())} words)"
    if "digit" in shown:
        shown["digit"] = "*"
    return shown


def brief(fields: dict[str, Any]) -> str:
    """Returns the fields of an event for a line of the log, e.g. "text='Hello.' language='en'"."""
    hidden = ("at_ms", "statistics", "headers", "variables")  # the last two come from outside
    shown = (f"{k}={v!r}" for k, v in fields.items() if k not in hidden and v != "")
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


class Repeats:
    """Limits the lines of each call site and counts suppressed ones; `now` is in seconds of one
    clock."""

    def __init__(self) -> None:
        self._windows: dict[Site, _Window] = {}

    def admit(self, site: Site, text: str, now: float) -> bool:
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
        window.suppressed, window.last = window.suppressed + 1, text
        return False

    def over(self, now: float) -> list[str]:
        """Returns and clears the summaries of ended windows; called before the next line is
        logged."""
        summaries = []
        for site, window in list(self._windows.items()):
            if now < window.ends:
                continue
            del self._windows[site]
            if not window.suppressed:
                continue
            where = f"{window.seconds:g} s ({site[0]}:{site[1]})"
            summaries.append(f"{window.suppressed} more like this in {where}: {window.last}")
            if len(site) == 3:  # the summary is the line of the next minute
                self._windows[site] = _Window(now + MINUTE_S, 0, MINUTE_S)
        return summaries


# --- sinks ---


class _ToLoguru(logging.Handler):
    """Forwards standard-library logging (aiohttp, aiortc) to loguru."""

    def emit(self, record: logging.LogRecord) -> None:
        if record.exc_info and isinstance(record.exc_info[1], HttpProcessingError):
            return  # anyone can send invalid HTTP, which gets a 400

        def site(of_ours: Any) -> None:
            of_ours.update(name=record.name, line=record.lineno)

        line = logger.opt(exception=record.exc_info).patch(site)
        try:
            level: str | int = logger.level(record.levelname).name
        except ValueError:  # a custom level
            level = record.levelno
        line.log(level, record.getMessage())


class _Lines:
    """A loguru sink, called with one line at a time."""

    def __init__(self, as_json: bool) -> None:
        self._as_json = as_json
        self._repeats = Repeats()

    def write(self, message: Any) -> None:
        record = message.record
        at: datetime = record["time"]
        now = monotonic()  # the clock of the lines may be set, also back by a year
        self._say_over(at, now)
        text = escaped(redacted(record["message"]))
        extra = dict(record["extra"])
        kind = extra.pop("a_minute", None)
        if kind is not None or record["level"].no >= logging.WARNING:
            site = record["name"] or "", record["line"]
            if not self._repeats.admit(site if kind is None else (*site, kind), text, now):
                return
        trace = extra.pop("exception", "")  # of another process, as text
        if record["exception"] is not None:
            # Without the values of variables, which include keys and callers' words.
            trace = "".join(traceback.format_exception(record["exception"].value))
        self._put(at, record["level"].name, text, extra, redacted(trace))

    def stop(self) -> None:
        """Called at the end of logging or of the process."""
        self._say_over(datetime.now(UTC).astimezone(), math.inf)

    def _put(self, at: datetime, level: str, text: str, extra: dict[str, Any], trace: str) -> None:
        if self._as_json:
            moment = at.isoformat(timespec="milliseconds")
            line = {"time": moment, "level": level, "message": text, **_safe(extra)}
            if trace:
                line["exception"] = "\n".join(map(escaped, trace.split("\n")))
            sys.stderr.write(json.dumps(line, ensure_ascii=False, default=str) + "\n")
            return
        # Traceback lines are indented, so an exception's text cannot look like one of our lines.
        lines = [f"  {escaped(one)}" for one in trace.rstrip().split("\n") if trace]
        head = f"{at:%H:%M:%S}.{at.microsecond // 1000:03} {level: <7} {text}"
        sys.stderr.write("\n".join((head, *lines)) + "\n")

    def _say_over(self, at: datetime, now: float) -> None:
        for text in self._repeats.over(now):
            self._put(at, "WARNING", text, {}, "")


class _Configured:
    log = Log()


def configured() -> Log:
    """Returns what `set_up` got last."""
    return _Configured.log


def set_up(log: Log) -> None:
    """Sends all logs to standard error, as configured."""
    _Configured.log = log
    # Pipecat's messages contain both sides of the conversation
    chatter = log.detailed and log.has_words

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
    # Python's own warnings would go to standard error as they are, line breaks included.
    logging.captureWarnings(True)
    # Any form can have a header that aiohttp warns of; Python would keep each text, too.
    for category in (BadContentDispositionHeader, BadContentDispositionParam):
        warnings.simplefilter("ignore", category)
    # A page's key is sent as an unknown subprotocol, about which aiohttp warns.
    logging.getLogger("aiohttp.websocket").setLevel(logging.ERROR)
    # It logs what servers answer; `mcp_io` reports failures.
    logging.getLogger("mcp").setLevel(logging.CRITICAL)


def kind(event: object) -> str:
    """Returns an event's name in logs and timelines: CallerTurn -> caller_turn."""
    return re.sub(r"(?<!^)(?=[A-Z])", "_", type(event).__name__).lower()
