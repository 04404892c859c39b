"""The states of an engine that `auto` brings in: from the offer to the calls it takes.

Until it is ready, and whenever it is not, new calls use the embedded engine.
"""

from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from offhook.pipeline.engines.shared.progress import DOWNLOADING


class LoadState(StrEnum):
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
    Sign.SILENT: (LoadState.STARTING, News.NONE),
    Sign.DOWNLOADS: (LoadState.DOWNLOADING, News.BEGUN),
    Sign.LOADS: (LoadState.LOADING, News.BEGUN),
    Sign.SERVES: (LoadState.READY, News.MOVED),
    Sign.FAILS: (LoadState.FAILED, News.FAILED),
}
TABLE: dict[tuple[LoadState, Sign], tuple[LoadState, News]] = {
    (LoadState.OFFERED, Sign.WANTED): (LoadState.STARTING, News.BEGUN),
    **{(LoadState.STARTING, sign): then for sign, then in _LOADS.items()},
    **{(LoadState.DOWNLOADING, sign): then for sign, then in _LOADS.items()},
    (LoadState.DOWNLOADING, Sign.DOWNLOADS): (LoadState.DOWNLOADING, News.NONE),
    **{(LoadState.LOADING, sign): then for sign, then in _LOADS.items()},
    (LoadState.LOADING, Sign.LOADS): (LoadState.LOADING, News.NONE),
    **{(LoadState.FAILED, sign): then for sign, then in _LOADS.items()},
    (LoadState.FAILED, Sign.SILENT): (LoadState.FAILED, News.NONE),
    (LoadState.FAILED, Sign.FAILS): (LoadState.FAILED, News.NONE),
    # The worker has crashed, or hangs: its calls wait for the next one, new ones do not.
    (LoadState.READY, Sign.SILENT): (LoadState.STARTING, News.LOST),
    (LoadState.READY, Sign.DOWNLOADS): (LoadState.DOWNLOADING, News.LOST),
    (LoadState.READY, Sign.LOADS): (LoadState.LOADING, News.LOST),
    (LoadState.READY, Sign.SERVES): (LoadState.READY, News.NONE),
    (LoadState.READY, Sign.FAILS): (LoadState.FAILED, News.LOST),
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
    offline: bool = False
    """Whether it fails because nothing can be downloaded."""


SILENT = Look(Sign.SILENT)


def look_of(status: int, told: Any) -> Look:
    """Interprets the status and JSON body of GET /healthz on the worker's socket."""
    if not isinstance(told, dict):
        return SILENT
    if status != 200:
        fault = str(told.get("error", ""))
        retry_s, offline = float(told.get("retry_s", 0)), told.get("offline") is True
        return Look(Sign.FAILS, fault=fault, retry_s=retry_s, offline=offline)
    if told.get("status") == "loading":
        doing, fraction = str(told.get("doing", "")), float(told.get("fraction", 0))
        sign = Sign.DOWNLOADS if doing.startswith(DOWNLOADING) else Sign.LOADS
        return Look(sign, fraction, doing)
    return Look(Sign.SERVES, 1.0) if told.get("status") == "ok" else SILENT
