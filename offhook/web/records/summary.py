"""What the row of a call says of its events."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from statistics import median
from typing import Any

SEARCHED = {
    "caller_turn": "text",
    "caller_typed": "text",
    "agent_turn": "text",
    "member_turn": "text",
    "interrupted": "unheard",
}
"""The words that a search looks through, by kind of event: also what was not heard any more."""


@dataclass
class Summary:
    turns: int = 0
    interruptions: int = 0
    failures: int = 0
    latencies: list[int] = field(default_factory=list)
    agents: list[str] = field(default_factory=list)
    words: list[str] = field(default_factory=list)
    noted: dict[str, Any] = field(default_factory=dict)
    """Details of the caller, as they were noted last."""

    @classmethod
    def of(cls, events: Iterable[tuple[str, Mapping[str, Any]]]) -> "Summary":
        """Sums up kinds of events and their fields."""
        summary = cls()
        for kind, fields in events:
            summary.add(kind, fields)
        return summary

    def add(self, kind: str, fields: Mapping[str, Any]) -> None:
        match kind:
            case "caller_turn" | "caller_typed" | "member_turn":
                self.turns += 1
            case "interrupted":
                self.interruptions += 1
            case "agent_failed" | "words_missing":
                self.failures += 1
            case "turn_latency":
                self.latencies.append(fields["total_ms"])
            case "agent_changed":
                self.agents.append(fields["agent"])
            case "detail_noted" if "text" in fields:
                self.noted[fields["name"]] = fields["text"]
        if words := fields.get(SEARCHED.get(kind, "")):
            self.words.append(words)

    def columns(self) -> dict[str, Any]:
        """Returns the columns of the call's row."""
        return {
            "turns": self.turns,
            "interruptions": self.interruptions,
            "failures": self.failures,
            "latency_ms": round(median(self.latencies)) if self.latencies else None,
            "latency_max_ms": max(self.latencies, default=None),
        }
