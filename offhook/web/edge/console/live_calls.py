"""What live screens show: the calls in progress, and what changes in them. Sans-io."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from offhook.web.records.live_look import SPOKEN, Followed, LiveLook

LAST_TURNS = 6
"""Maximum turns of a call that a snapshot has; older ones are dropped, and are in its timeline."""


@dataclass(frozen=True)
class LiveEvent:
    """What listeners get: a kind, and its data as JSON has them."""

    kind: str
    data: Mapping[str, Any]


@dataclass
class _Live:
    """A call in progress."""

    row: dict[str, Any]
    position: int = -1
    """Of its last event."""
    turns: list[dict[str, Any]] = field(default_factory=list)
    """The last ones, with who said what."""


class LiveCalls:
    """Keeps what was seen at the last look, and finds what is new in the next one."""

    def __init__(self) -> None:
        self._calls: dict[str, _Live] = {}
        self._campaigns: dict[str, dict[str, Any]] = {}
        self._number = 0

    @property
    def positions(self) -> dict[str, int]:
        """Returns the calls that are followed, each with the position of its last event."""
        return {call_id: call.position for call_id, call in self._calls.items()}

    @property
    def campaigns(self) -> list[str]:
        """Returns the campaigns that are followed."""
        return [*self._campaigns]

    def snapshot(self) -> LiveEvent:
        """Returns all calls as they are now, the last first."""
        shown = [{**call.row, "last_turns": [*call.turns]} for call in self._calls.values()]
        shown.sort(key=lambda row: row["started"], reverse=True)
        campaigns = [*self._campaigns.values()]
        data = {"calls": shown, "number": self._number, "campaigns": campaigns}
        return LiveEvent("snapshot", data)

    def update(self, look: LiveLook) -> list[LiveEvent]:
        """Returns what has changed since the look before."""
        changes = list(self._begun(look))
        happened: dict[str, list[Followed]] = {}
        for event in look.events:
            happened.setdefault(event.call, []).append(event)
        for call_id, events in happened.items():
            changes += self._happened(call_id, events)
        changes += self._gone(look)
        changes += self._progress(look)
        if look.number != self._number:
            self._number = look.number
            changes.append(LiveEvent("number", {"number": look.number}))
        return changes

    def _progress(self, look: LiveLook) -> Iterator[LiveEvent]:
        for row in look.campaigns:
            if row != self._campaigns.get(row["campaign_id"]):
                yield LiveEvent("campaign", row)
        under_way = (row for row in look.campaigns if row["ended"] is None)
        self._campaigns = {row["campaign_id"]: row for row in under_way}

    def _begun(self, look: LiveLook) -> Iterator[LiveEvent]:
        for row in reversed(look.calls):
            if row["call_id"] not in self._calls:
                shown = {**row, "turns_so_far": 0, "last_words": "", "on_hold": False, "hands": []}
                self._calls[row["call_id"]] = _Live(shown)
                yield LiveEvent("started", dict(shown))

    def _happened(self, call_id: str, events: list[Followed]) -> Iterator[LiveEvent]:
        call = self._calls.get(call_id)
        for event in events if call is not None else ():
            assert call is not None
            call.position = max(call.position, event.position)
            change = _change(call, event)
            yield LiveEvent(change.kind, {"call_id": call_id, "at_ms": event.at_ms, **change.data})

    def _gone(self, look: LiveLook) -> Iterator[LiveEvent]:
        there = {row["call_id"] for row in look.calls}
        over = {row["call_id"]: row for row in look.over}
        for call_id in [each for each in self._calls if each not in there]:
            del self._calls[call_id]
            if call_id in over:
                yield LiveEvent("ended", over[call_id])
            else:  # others have begun, and it is not followed any more
                yield LiveEvent("left_out", {"call_id": call_id})


def _change(call: _Live, event: Followed) -> LiveEvent:
    """Applies an event to a call, and returns it as listeners get it."""
    fields, row = event.fields, call.row
    if event.kind in SPOKEN:
        who = "agent" if event.kind == "agent_turn" else fields.get("member", "caller")
        turn = {"who": who, "text": fields.get("text"), "at_ms": event.at_ms}
        call.turns = [*call.turns, turn][-LAST_TURNS:]
        row["last_words"] = turn["text"] or ""
        row["turns_so_far"] += event.number if who != "agent" else 0
        return LiveEvent("turn", {**turn, "turns_so_far": row["turns_so_far"]})
    match event.kind:
        case "agent_changed":
            row["agent"] = fields["agent"]
            return LiveEvent("agent", {"agent": fields["agent"], "before": fields["before"]})
        case "turn_latency":
            row["latency_ms"] = fields["total_ms"]
            return LiveEvent("latency", {"latency_ms": fields["total_ms"]})
        case "agent_failed":
            row["failures"] += event.number
            shown = {name: fields.get(name, "") for name in ("place", "fault", "action")}
            return LiveEvent("failed", {**shown, "failures": row["failures"]})
        case "member_raised_hand":
            row["hands"] = [*row["hands"], fields["member"]]
            return LiveEvent("hands", {"hands": row["hands"]})
        case "member_lowered_hand" | "member_left":
            row["hands"] = [name for name in row["hands"] if name != fields["member"]]
            return LiveEvent("hands", {"hands": row["hands"]})
    row["on_hold"] = event.kind == "call_held"
    return LiveEvent("hold", {"on_hold": row["on_hold"]})
