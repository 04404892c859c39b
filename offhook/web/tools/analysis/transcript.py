"""A call's events as a model is told them: numbered lines, as data."""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

MAX_LINE_CHARS = 2000
"""Maximum characters of one text of a call, such as the result of a tool; the rest is cut off."""
MAX_CALL_CHARS = 60_000
"""Maximum characters of a call as a model is told it, over an hour of conversation. Of a longer one
the middle is left out, and its analysis says how much."""
BEGINNING = 0.3
"""Share of these for how a long call begins; the rest is for how it ends."""


@dataclass(frozen=True)
class TranscriptLine:
    """Something that was said or done."""

    number: int
    at_ms: int
    turn: int | None
    """The turn of the caller in which it was, as events have it."""
    fields: Mapping[str, Any]

    @property
    def text(self) -> str:
        """Returns it as JSON, so that no words of a caller can end it, or begin another one."""
        return json.dumps({"n": self.number, **self.fields}, ensure_ascii=False)


@dataclass(frozen=True)
class Transcript:
    lines: tuple[TranscriptLine, ...]
    """All of them."""
    text: str
    """What the model is told."""
    left_out: int
    """Lines in the middle that it is not told."""

    def line(self, number: int | None) -> TranscriptLine | None:
        """Returns a line by its number; None if there is none."""
        known = number is not None and 1 <= number <= len(self.lines)
        return self.lines[number - 1] if number is not None and known else None


def transcript_of(timeline: Sequence[Mapping[str, Any]]) -> Transcript:
    """Returns what was said and done in a call, by its events in order."""
    lines: list[TranscriptLine] = []
    turn: int | None = None
    for event in timeline:
        turn = event.get("turn", turn)
        for fields in _fields_of(event):
            lines.append(TranscriptLine(len(lines) + 1, event["at_ms"], turn, fields))
    texts = [line.text for line in lines]
    first, last = _room(texts)
    left_out = len(texts) - first - last
    shown = texts
    if left_out:
        gap = json.dumps({"left_out": f"{left_out} lines of this call are left out here"})
        shown = [*texts[:first], gap, *texts[len(texts) - last :]]
    return Transcript(tuple(lines), "\n".join(shown), left_out)


def _room(texts: Sequence[str]) -> tuple[int, int]:
    """Returns how many lines from the beginning and from the end there is room for."""
    if sum(map(len, texts)) <= MAX_CALL_CHARS:
        return len(texts), 0
    counts = []
    for share, ordered in ((BEGINNING, texts), (1 - BEGINNING, texts[::-1])):
        left, count = share * MAX_CALL_CHARS, 0
        while count < len(ordered) and len(ordered[count]) <= left:
            left -= len(ordered[count])
            count += 1
        counts.append(count)
    return counts[0], counts[1]


def _fields_of(event: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    match event:
        case {"event": "caller_turn" | "caller_typed", "text": str(text)}:
            yield {"who": "caller", "says": _cut(text)}
        case {"event": "member_turn", "member": who, "text": str(text)}:
            yield {"who": who, "says": _cut(text)}
        case {"event": "agent_turn", "text": str(text)}:
            cut = {"was_interrupted": True} if event.get("interrupted") else {}
            yield {"who": "agent", "says": _cut(text), **cut}
        case {"event": "tool_used", "name": name}:
            result = "error" if event.get("failed") else "result"
            about = {"tool": name, "arguments": _cut(event.get("arguments", ""))}
            yield {**about, result: _cut(event.get("result", ""))}
        case {"event": "agent_changed", "agent": agent, "before": before}:
            yield {"handed_over_to": agent, "by": before}
        case {"event": "detail_noted", "name": name, "text": str(text)}:
            yield {"noted": name, "value": _cut(text)}
        case {"event": "call_transferred", "target": target}:
            yield {"transferred_to": target}
        case {"event": "transfer_failed", "target": target, "reason": reason}:
            yield {"transfer_failed": target, "reason": reason}
        case {"event": "call_ended", "reason": reason}:
            yield {"ended": str(reason)}


def _cut(text: str) -> str:
    text = " ".join(text.split())  # some signs look to a model like the end of a line
    return text if len(text) <= MAX_LINE_CHARS else f"{text[:MAX_LINE_CHARS]}…"
