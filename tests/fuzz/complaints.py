"""What a server logs as an error while it is sent what nobody should."""

import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from aiohttp.http_exceptions import HttpProcessingError
from loguru import logger

from tests.fuzz.result import Result


@contextmanager
def complaints(result: Result) -> Iterator[None]:
    """What is logged as an error meanwhile counts as raised."""

    class Handler(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            error = record.exc_info[1] if record.exc_info else None
            if isinstance(error, HttpProcessingError):
                return  # anyone can send invalid HTTP; `logs` leaves it out too
            found = error if isinstance(error, Exception) else RuntimeError(record.getMessage())
            result.raised(found, record.getMessage())

    def note(message: Any) -> None:
        error = message.record["exception"]
        found = error.value if error else RuntimeError(message.record["message"])
        result.raised(found, message.record["message"])

    handler = Handler(logging.ERROR)
    logging.getLogger().addHandler(handler)
    logger.remove()
    sink = logger.add(note, level="ERROR")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logger.remove(sink)
        logging.getLogger().removeHandler(handler)
