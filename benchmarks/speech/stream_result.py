"""Results of `bench stream`: passed from the callers' processes to the benchmark and its tables."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, fields
from typing import Any

from benchmarks.table import percentile

PARTS = ("audio", "network", "queued", "gpu", "routed", "sent")
FIRST_COLUMNS = " ".join(
    ("streams of first_ms", *(f"{part}_ms" for part in PARTS), "update_no sound_ms utterances")
)
LATER_COLUMNS = (
    "streams of update_ms queued_ms gpu_ms routed_ms sent_ms final_ms client_late_ms late_percent "
    "updates finals without_text errors"
)
QUANTILES = (50, 95, 99)


@dataclass
class First:
    """The first text of one utterance: ms by stage from the first sample to the client."""

    total: float
    audio: float
    """Time until the audio that the text needed had been sent."""
    network: float
    """The remaining time: to the server, in it before its engine, and back."""
    queued: float
    gpu: float
    routed: float
    sent: float
    update: int
    """Number of updates after the start of the utterance; 0: it came with the final."""
    sound: float
    """ms of the utterance that the text covers."""


@dataclass
class Update:
    """The times of one partial text of a stream, in ms."""

    total: float
    """Time since its newest audio was sent."""
    queued: float
    gpu: float
    routed: float
    sent: float


@dataclass
class Result:
    firsts: list[First] = field(default_factory=list)
    updates: list[Update] = field(default_factory=list)
    due: int = 0
    """Updates of update_ms; a text may cover several."""
    late: int = 0
    """Updates later than one update after their audio."""
    finals: list[float] = field(default_factory=list)
    """Time in ms from the flush."""
    client_late: list[float] = field(default_factory=list)
    """Lateness in ms at which each chunk of audio was sent."""
    without_text: int = 0
    """Utterances without any text."""
    errors: dict[str, int] = field(default_factory=dict)

    def fail(self, words: str) -> None:
        self.errors[words] = self.errors.get(words, 0) + 1

    def as_json(self) -> dict[str, Any]:
        """Returns compact rows without names."""
        table = vars(self).copy()
        table["firsts"] = [list(asdict(first).values()) for first in self.firsts]
        table["updates"] = [list(asdict(update).values()) for update in self.updates]
        return table

    @classmethod
    def of(cls, table: dict[str, Any]) -> "Result":
        firsts = [First(*row) for row in table["firsts"]]
        return cls(**{**table, "firsts": firsts, "updates": [Update(*r) for r in table["updates"]]})

    def add(self, other: "Result") -> None:
        self.firsts += other.firsts
        self.updates += other.updates
        self.due += other.due
        self.late += other.late
        self.finals += other.finals
        self.client_late += other.client_late
        self.without_text += other.without_text
        for words, times in other.errors.items():
            self.errors[words] = self.errors.get(words, 0) + times

    def first_rows(self) -> list[dict[str, Any]]:
        """Returns percentiles of each column; the parts of a row belong to different utterances."""
        rows = []
        for q in QUANTILES:
            parts = {f"{part}_ms": _of(self.firsts, part, q) for part in PARTS}
            rows.append({"of": f"p{q}", "first_ms": _of(self.firsts, "total", q), **parts})
            rows[-1] |= {"update_no": _of(self.firsts, "update", q)}
            rows[-1] |= {"sound_ms": _of(self.firsts, "sound", q)}
        rows[0]["utterances"] = len(self.firsts)
        return rows

    def later_rows(self) -> list[dict[str, Any]]:
        """Returns rows of updates, finals and the clients themselves."""
        rows: list[dict[str, Any]] = []
        for q in QUANTILES:
            row = {f"{e.name}_ms": _of(self.updates, e.name, q) for e in fields(Update)}
            row["update_ms"] = row.pop("total_ms")
            row["final_ms"] = percentile(self.finals, q)
            row["client_late_ms"] = percentile(self.client_late, q)
            rows.append({"of": f"p{q}", **row})
        rows[0] |= {
            "late_percent": 100 * self.late / self.due if self.due else float("nan"),
            "updates": len(self.updates),
            "finals": len(self.finals),
            "without_text": self.without_text,
            "errors": sum(self.errors.values()),
        }
        return rows


def _of(rows: Sequence[First] | Sequence[Update], name: str, percent: float) -> float:
    return percentile([getattr(row, name) for row in rows], percent)
