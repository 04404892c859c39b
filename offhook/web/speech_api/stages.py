"""Timing of one request by stage."""

from collections.abc import Callable, Iterator
from typing import Literal, get_args

Stage = Literal[
    "received", "queued", "loaded", "first", "inferred", "encoded", "first_byte", "done"
]
"""received: the body is complete. queued: its turn came. loaded: the engine is available. first,
inferred: the first and last result of the engine. encoded: the encoder is done. first_byte: of the
response body. done: the response is complete."""
STAGES: tuple[Stage, ...] = get_args(Stage)
ONCE = ("first", "first_byte")
"""Stages whose first mark counts; for others the last one does."""
BEHIND: dict[Stage, tuple[Stage, ...]] = {
    "received": (),
    "queued": ("received",),
    "loaded": ("received", "queued"),
    "inferred": ("received", "queued", "loaded"),
    "encoded": ("inferred",),
}
"""The stages that each stage follows: its duration counts from the last of them, or from the
start."""
HEADERS: dict[Stage, str] = {
    "queued": "X-Latency-Queue-Ms",
    "loaded": "X-Latency-Load-Ms",
    "inferred": "X-Latency-Infer-Ms",
    "encoded": "X-Latency-Encode-Ms",
}
TOTAL = "X-Latency-Total-Ms"


class Stages:
    """Times at which a request reached each stage; `now` is a clock in seconds."""

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self.began = now()
        self._at: dict[Stage, float] = {}

    def mark(self, stage: Stage) -> None:
        if stage not in ONCE or stage not in self._at:
            self._at[stage] = self._now()

    def seconds(self, stage: Stage) -> float | None:
        """Returns the duration of a stage; None if it was not reached."""
        end = self._at.get(stage)
        if end is None:
            return None
        starts = [at for s in BEHIND.get(stage, ()) if (at := self._at.get(s, end)) < end]
        return end - max(starts, default=self.began)

    def total(self) -> float:
        """Returns the seconds so far."""
        return self._at.get("done", self._now()) - self.began

    def headers(self) -> dict[str, str]:
        """Returns the headers of the stages known so far."""
        known = {name: self.seconds(stage) for stage, name in HEADERS.items()}
        known[TOTAL] = self.total()
        return {name: _ms(took) for name, took in known.items() if took is not None}

    def as_dict(self) -> dict[str, float]:
        """Returns the milliseconds of each stage reached, by the names used in logs and final
        events."""
        took = {f"{stage}_ms": took for stage, took in self._all()}
        return {name: round(1000 * value, 1) for name, value in took.items()}

    def _all(self) -> Iterator[tuple[Stage, float]]:
        for stage in STAGES:
            if (took := self.seconds(stage)) is not None:
                yield stage, took


def _ms(seconds: float) -> str:
    return f"{1000 * seconds:.1f}"
