"""The times of one request: what it waited for, and how long."""

from collections.abc import Callable, Iterator
from typing import Literal, get_args

Stage = Literal[
    "received", "queued", "loaded", "first", "inferred", "encoded", "first_byte", "done"
]
"""received: the body is complete. queued: its turn came. loaded: the engine is there. first,
inferred: the first and the last result of the engine. encoded: the encoder is done. first_byte:
of the answer's body. done: nothing more comes."""
STAGES: tuple[Stage, ...] = get_args(Stage)
ONCE = ("first", "first_byte")
"""The first mark counts; of the others the last."""
BEHIND: dict[Stage, tuple[Stage, ...]] = {
    "received": (),
    "queued": ("received",),
    "loaded": ("received", "queued"),
    "inferred": ("received", "queued", "loaded"),
    "encoded": ("inferred",),
}
"""What a stage may have to wait for: it takes from the last of them, or from the beginning, to its
own mark. The rest is counted from the beginning."""
HEADERS: dict[Stage, str] = {
    "queued": "X-Latency-Queue-Ms",
    "loaded": "X-Latency-Load-Ms",
    "inferred": "X-Latency-Infer-Ms",
    "encoded": "X-Latency-Encode-Ms",
}
TOTAL = "X-Latency-Total-Ms"


class Stages:
    """When one request reached what. `now` is a clock, in seconds."""

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self.began = now()
        self._at: dict[Stage, float] = {}

    def mark(self, stage: Stage) -> None:
        if stage not in ONCE or stage not in self._at:
            self._at[stage] = self._now()

    def seconds(self, stage: Stage) -> float | None:
        """What the stage took; None when it was not reached."""
        end = self._at.get(stage)
        if end is None:
            return None
        starts = [at for s in BEHIND.get(stage, ()) if (at := self._at.get(s, end)) < end]
        return end - max(starts, default=self.began)

    def total(self) -> float:
        """Seconds so far."""
        return self._at.get("done", self._now()) - self.began

    def headers(self) -> dict[str, str]:
        """Of those known so far."""
        known = {name: self.seconds(stage) for stage, name in HEADERS.items()}
        known[TOTAL] = self.total()
        return {name: _ms(took) for name, took in known.items() if took is not None}

    def as_dict(self) -> dict[str, float]:
        """Milliseconds of each stage reached, by names as in logs and last events of streams."""
        took = {f"{stage}_ms": took for stage, took in self._all()}
        return {name: round(1000 * value, 1) for name, value in took.items()}

    def _all(self) -> Iterator[tuple[Stage, float]]:
        for stage in STAGES:
            if (took := self.seconds(stage)) is not None:
                yield stage, took


def _ms(seconds: float) -> str:
    return f"{1000 * seconds:.1f}"
