"""What is expected of a whole conversation, where a model plays the caller and nobody knows before
what comes when: expectations are met in any order."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from offhook.web.app.evals.checks import ANSWER, Check, check_of
from offhook.web.app.evals.sounds import Sounds

WHOLE_KEYS = (
    *("event", "text_contains", "text_excludes", "eval", "absent", "calls"),
    *("heard", "answer_within_ms", "silence_under_ms"),
)
"""Keys of such an expectation."""
_ANSWERS = (ANSWER, "llm_response")
Events = Sequence[Mapping[str, Any]]


@dataclass(frozen=True)
class Expected:
    """One expectation of a whole conversation."""

    number: int
    event: str
    contains: str | None = None
    excludes: str | None = None
    criterion: str = ""
    """What a model judges of the conversation; empty: nothing."""
    calls: tuple[tuple[str, Mapping[str, Any]], ...] = ()
    """Functions, each with some of its arguments."""
    is_absent: bool = False
    check: Check | None = None

    @property
    def where(self) -> str:
        return f"expectation {self.number} ({self.event}): "


def expected_of(number: int, table: Any) -> Expected:
    """Reads an expectation. Raises ValueError."""
    if not isinstance(table, dict) or not isinstance(table.get("event"), str):
        raise ValueError(f"expect: {table!r} has no event")
    if table.get("absent") and table.get("eval"):
        raise ValueError("expect: absent is not for eval")
    return Expected(
        number,
        table["event"],
        table.get("text_contains"),
        table.get("text_excludes"),
        str(table.get("eval") or ""),
        tuple((call["name"], call.get("args") or {}) for call in table.get("calls") or ()),
        bool(table.get("absent")),
        check_of(0, number, table),
    )


def unmet(
    expected: Sequence[Expected], events: Events, heard: Sequence[str], sounds: Sounds
) -> Iterator[str]:
    """Yields why a conversation fails, but for what a model judges. `heard` are the replies that
    the caller has heard."""
    for one in expected:
        if one.check is not None and one.check.heard:
            texts = list(heard)
        else:
            texts = [_text(event) for event in events if _is_of(event, one.event)]
        if one.is_absent:
            if any(_fits(event, one) for event in events):
                yield f"{one.where}it came"
            continue
        if not one.calls:
            yield from _of_texts(one, texts)
        for name, arguments in one.calls:
            if not any(_is_call(event, one.event, name, arguments) for event in events):
                yield f"{one.where}{name}({_words(arguments)}) was not called"
        yield from _of_times(one, sounds)


def _of_texts(one: Expected, texts: Sequence[str]) -> Iterator[str]:
    said = " ".join(" ".join(texts).split())
    if not texts:
        yield f"{one.where}it did not come"
    elif one.contains is not None and " ".join(one.contains.split()) not in said:
        yield f"{one.where}{said!r} does not contain {one.contains!r}"
    elif one.excludes is not None and " ".join(one.excludes.split()) in said:
        yield f"{one.where}{said!r} contains {one.excludes!r}"


def _of_times(one: Expected, sounds: Sounds) -> Iterator[str]:
    if one.check is None:
        return
    answered = [turn for turn in range(sounds.turns) if sounds.answer_ms(turn) is not None]
    limits = (
        ("answered after", one.check.answer_within_ms, sounds.answer_ms),
        ("silent for", one.check.silence_under_ms, sounds.silence_ms),
    )
    for what, limit, taken in limits:
        if limit is None:
            continue
        longest = max((taken(turn) or 0 for turn in answered), default=None)
        if longest is None:
            yield f"{one.where}the caller heard no answer"
        elif longest > limit:
            yield f"{one.where}{what} {longest} ms, not within {limit} ms"


def _is_of(event: Mapping[str, Any], kind: str) -> bool:
    return event["type"] == kind or (kind in _ANSWERS and event["type"] in _ANSWERS)


def _text(event: Mapping[str, Any]) -> str:
    return str(event.get("text") or event.get("transcript") or "")


def _is_call(event: Mapping[str, Any], kind: str, name: str, arguments: Mapping[str, Any]) -> bool:
    given = event.get("args") or {}
    fits = all(key in given and given[key] == value for key, value in arguments.items())
    return event["type"] == kind and event.get("name") == name and fits


def _fits(event: Mapping[str, Any], one: Expected) -> bool:
    """Whether an event is one that an expectation wants not to come."""
    if not _is_of(event, one.event):
        return False
    if one.calls:
        return any(_is_call(event, one.event, name, args) for name, args in one.calls)
    return one.contains is None or one.contains in _text(event)


def _words(arguments: Mapping[str, Any]) -> str:
    return ", ".join(f"{name}={value!r}" for name, value in arguments.items())
