"""The states of an engine that `auto` brings in: from the offer to the calls it takes.

Until it is ready, and whenever it is not, new calls use the embedded engine.
"""

from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from offhook.pipeline.engine.progress import DOWNLOADING


class State(StrEnum):
    OFFERED = "offered"
    """Nobody has asked for it yet."""
    STARTING = "starting"
    """Its worker has been started and says nothing yet."""
    DOWNLOADING = "downloading"
    LOADING = "loading"
    """Reads its weights, or warms up."""
    READY = "ready"
    """New calls use it."""
    FAILED = "failed"
    """Its worker has ended; it is started again after a pause."""


class Sign(StrEnum):
    """What is seen of the worker."""

    WANTED = "wanted"
    """The operator wants the engine."""
    SILENT = "silent"
    """There is no answer: no worker runs, or none that can answer."""
    DOWNLOADS = "downloads"
    LOADS = "loads"
    SERVES = "serves"
    """It has loaded and takes streams."""
    FAILS = "fails"
    """It could not load, and is not tried for a while."""


class News(StrEnum):
    """What a transition means to the operator."""

    NONE = ""
    BEGUN = "begun"
    """A step of loading has begun."""
    MOVED = "moved"
    """New calls now use the engine."""
    LOST = "lost"
    """New calls use the embedded engine again, until the worker is back."""
    FAILED = "failed"


_LOADS = {
    Sign.SILENT: (State.STARTING, News.NONE),
    Sign.DOWNLOADS: (State.DOWNLOADING, News.BEGUN),
    Sign.LOADS: (State.LOADING, News.BEGUN),
    Sign.SERVES: (State.READY, News.MOVED),
    Sign.FAILS: (State.FAILED, News.FAILED),
}
TABLE: dict[tuple[State, Sign], tuple[State, News]] = {
    (State.OFFERED, Sign.WANTED): (State.STARTING, News.BEGUN),
    **{(State.STARTING, sign): then for sign, then in _LOADS.items()},
    **{(State.DOWNLOADING, sign): then for sign, then in _LOADS.items()},
    (State.DOWNLOADING, Sign.DOWNLOADS): (State.DOWNLOADING, News.NONE),
    **{(State.LOADING, sign): then for sign, then in _LOADS.items()},
    (State.LOADING, Sign.LOADS): (State.LOADING, News.NONE),
    **{(State.FAILED, sign): then for sign, then in _LOADS.items()},
    (State.FAILED, Sign.SILENT): (State.FAILED, News.NONE),
    (State.FAILED, Sign.FAILS): (State.FAILED, News.NONE),
    # The worker has crashed, or hangs: its calls wait for the next one, new ones do not.
    (State.READY, Sign.SILENT): (State.STARTING, News.LOST),
    (State.READY, Sign.DOWNLOADS): (State.DOWNLOADING, News.LOST),
    (State.READY, Sign.LOADS): (State.LOADING, News.LOST),
    (State.READY, Sign.SERVES): (State.READY, News.NONE),
    (State.READY, Sign.FAILS): (State.FAILED, News.LOST),
}
"""Other pairs do not occur: a worker is looked at once it is wanted."""


@dataclass(frozen=True)
class Look:
    """An answer of the worker, or of the server in its place."""

    sign: Sign
    fraction: float = 0.0
    """Of loading, 0..1."""
    doing: str = ""
    fault: str = ""
    """Why it fails, for the operator."""
    retry_s: float = 0.0
    """Time in s until it is tried again."""


SILENT = Look(Sign.SILENT)


def look_of(status: int, told: Any) -> Look:
    """Interprets the status and JSON body of GET /healthz on the worker's socket."""
    if not isinstance(told, dict):
        return SILENT
    if status != 200:
        fault = str(told.get("error", ""))
        return Look(Sign.FAILS, fault=fault, retry_s=float(told.get("retry_s", 0)))
    if told.get("status") == "loading":
        doing, fraction = str(told.get("doing", "")), float(told.get("fraction", 0))
        sign = Sign.DOWNLOADS if doing.startswith(DOWNLOADING) else Sign.LOADS
        return Look(sign, fraction, doing)
    return Look(Sign.SERVES if told.get("status") == "ok" else Sign.SILENT)
