"""The log's setup, and its sink, which writes to standard error."""

import json
import logging
import math
import sys
import traceback
import warnings
from datetime import UTC, datetime
from time import monotonic
from typing import Any

from aiohttp.http_exceptions import HttpProcessingError
from aiohttp.multipart import BadContentDispositionHeader, BadContentDispositionParam
from loguru import logger

from offhook.pipeline.speech.redact import redacted
from offhook.web.http.logs import NOISY, Log, Repeats, escaped, safe


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
            line = record["name"] or "", record["line"]
            site = line if kind is None else (*line, kind)
            if not self._repeats.admit(site, text, now, record["level"].name):
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
            line = {"time": moment, "level": level, "message": text, **safe(extra)}
            if trace:
                line["exception"] = "\n".join(map(escaped, trace.split("\n")))
            sys.stderr.write(json.dumps(line, ensure_ascii=False, default=str) + "\n")
            return
        # Traceback lines are indented, so an exception's text cannot look like one of our lines.
        lines = [f"  {escaped(one)}" for one in trace.rstrip().split("\n") if trace]
        head = f"{at:%Y-%m-%d %H:%M:%S}.{at.microsecond // 1000:03} {level: <7} {text}"
        sys.stderr.write("\n".join((head, *lines)) + "\n")

    def _say_over(self, at: datetime, now: float) -> None:
        for level, text in self._repeats.over(now):
            self._put(at, level, text, {}, "")


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
