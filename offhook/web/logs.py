"""Logs: one line an event, readable or JSON, by loguru, which Pipecat logs with too."""

import json
import logging
import re
import sys
import traceback
from pathlib import Path
from typing import Any, Literal

from loguru import logger
from pydantic import BaseModel, ConfigDict

NOISY = ("pipecat",)
"""Libraries whose own chatter is shown from WARNING up, unless the level is DEBUG or TRACE."""


class Log(BaseModel):
    """The section [log] of the configuration."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    level: Literal["TRACE", "DEBUG", "INFO", "WARNING", "ERROR"] = "INFO"
    json_lines: bool = False
    calls: Path | None = None
    """File that gets a line of JSON for every call of a phone or a carrier that ended."""


class _ToLoguru(logging.Handler):
    """Standard-library logging (aiohttp, aiortc) into the same stream."""

    def emit(self, record: logging.LogRecord) -> None:
        logger.opt(exception=record.exc_info).log(record.levelname, record.getMessage())


def set_up(log: Log) -> None:
    """Send all logs to standard error, as configured."""
    detailed = log.level in ("DEBUG", "TRACE")

    def wanted(record: Any) -> bool:
        quiet = record["name"].startswith(NOISY) and not detailed
        return not quiet or record["level"].no >= logging.WARNING

    def as_json(message: Any) -> None:
        record = message.record
        line = {
            "time": record["time"].isoformat(timespec="milliseconds"),
            "level": record["level"].name,
            "message": record["message"],
            **record["extra"],
        }
        if record["exception"] is not None:
            line["exception"] = "".join(traceback.format_exception(record["exception"].value))
        sys.stderr.write(json.dumps(line, ensure_ascii=False, default=str) + "\n")

    logger.remove()
    if log.json_lines:
        logger.add(as_json, level=log.level, filter=wanted)
    else:
        form = "{time:HH:mm:ss.SSS} {level: <7} {message}"
        # Tracebacks without the values of variables: there are keys and callers' words among them.
        logger.add(
            sys.stderr,
            level=log.level,
            filter=wanted,
            format=form,
            diagnose=False,
            backtrace=False,
        )
    logging.basicConfig(handlers=[_ToLoguru()], level=logging.WARNING, force=True)


def kind(event: object) -> str:
    """CallerTurn -> caller_turn: the name of an event in logs and timelines."""
    return re.sub(r"(?<!^)(?=[A-Z])", "_", type(event).__name__).lower()
