"""What callers of `bench stream` found, as it goes from their processes to the benchmark's and into
its tables."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, fields
from typing import Any

from offhook.bench.speech.table import percentile

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
    """The first text of one utterance, in ms of its way from the first sample to the client."""

    total: float
    audio: float
    """Until the sound that the text needed had been sent."""
    network: float
    """What is left: to the server, in it before its engine, and back."""
    queued: float
    gpu: float
    routed: float
    sent: float
    update: int
    """It was so many updates after the utterance began; 0: it came with the final."""
    sound: float
    """ms of the utterance that the text covers."""


@dataclass
class Update:
    """A partial, in ms."""

    total: float
    """From when the newest sound of it was sent."""
    queued: float
    gpu: float
    routed: float
    sent: float


@dataclass
class Result:
    firsts: list[First] = field(default_factory=list)
    updates: list[Update] = field(default_factory=list)
    due: int = 0
    """Updates of update_ms: a text may cover several."""
    late: int = 0
    """Of those, later than one update after their sound."""
    finals: list[float] = field(default_factory=list)
    """ms from the flush."""
    client_late: list[float] = field(default_factory=list)
    """ms: of each piece of sound, how much later it was sent than it was due."""
    without_text: int = 0
    """Utterances."""
    errors: dict[str, int] = field(default_factory=dict)

    def fail(self, words: str) -> None:
        self.errors[words] = self.errors.get(words, 0) + 1

    def as_json(self) -> dict[str, Any]:
        """Rows without names: there are many."""
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
        """Of each column by itself: the parts of a row are not those of one utterance."""
        rows = []
        for q in QUANTILES:
            parts = {f"{part}_ms": _of(self.firsts, part, q) for part in PARTS}
            rows.append({"of": f"p{q}", "first_ms": _of(self.firsts, "total", q), **parts})
            rows[-1] |= {"update_no": _of(self.firsts, "update", q)}
            rows[-1] |= {"sound_ms": _of(self.firsts, "sound", q)}
        rows[0]["utterances"] = len(self.firsts)
        return rows

    def later_rows(self) -> list[dict[str, Any]]:
        """Updates, finals and the clients themselves."""
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
