"""What a scenario asks that Pipecat's harness does not know: words that were really heard, and the
time that the caller waits. Checked when the conversation is over."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from offhook.web.app.evals.sounds import Sounds

CHECK_KEYS = ("heard", "answer_within_ms", "silence_under_ms")
"""Those keys of an expectation."""
ANSWER = "response"
"""The event of an expectation that may have them."""


@dataclass(frozen=True)
class Check:
    """One expectation of a turn's answer."""

    turn: int
    expectation: int
    heard: bool = False
    """Whether the texts are looked for in the words that the caller heard."""
    contains: str | None = None
    excludes: str | None = None
    answer_within_ms: int | None = None
    silence_under_ms: int | None = None


def check_of(turn: int, number: int, expectation: Mapping[str, Any]) -> Check | None:
    """Reads the keys of an expectation; None: it has none of them. Raises ValueError."""
    if not any(key in expectation for key in CHECK_KEYS):
        return None
    key = next(key for key in CHECK_KEYS if key in expectation)
    if expectation.get("event") != ANSWER or expectation.get("absent"):
        raise ValueError(f"{key}: is only for an expectation of event: {ANSWER}")
    heard = expectation.get("heard", False)
    if not isinstance(heard, bool):
        raise ValueError(f"heard: {heard!r} is neither true nor false")
    if heard and expectation.get("eval"):
        raise ValueError("heard: is for text_contains and text_excludes, not for eval")
    contains, excludes = expectation.get("text_contains"), expectation.get("text_excludes")
    if heard and contains is None and excludes is None:
        raise ValueError("heard: needs text_contains or text_excludes")
    return Check(
        *(turn, number, heard, contains if heard else None, excludes if heard else None),
        answer_within_ms=_milliseconds("answer_within_ms", expectation),
        silence_under_ms=_milliseconds("silence_under_ms", expectation),
    )


def _milliseconds(name: str, expectation: Mapping[str, Any]) -> int | None:
    value = expectation.get(name)
    if value is not None and (type(value) is not int or value <= 0):
        raise ValueError(f"{name}: {value!r} is no number of milliseconds above 0")
    return value


def failures_of(
    checks: Sequence[Check], heard: Mapping[int, Sequence[str]], sounds: Sounds
) -> Iterator[str]:
    """Yields why a conversation fails. `heard` are the agent's words that the caller has heard, by
    the turn that they answer. Turns that were not reached fail for other reasons."""
    for check in checks:
        if check.turn >= sounds.turns:
            continue
        where = f"turn {check.turn} expectation {check.expectation} ({ANSWER}): "
        words = " ".join(heard.get(check.turn, ()))
        if check.contains is not None and not _has(words, check.contains):
            yield f"{where}the caller heard {words!r}, without {check.contains!r}"
        if check.excludes is not None and _has(words, check.excludes):
            yield f"{where}the caller heard {words!r}, with {check.excludes!r}"
        limits = (
            ("answered after", check.answer_within_ms, sounds.answer_ms(check.turn)),
            ("silent for", check.silence_under_ms, sounds.silence_ms(check.turn)),
        )
        for what, limit, took in limits:
            if limit is not None and took is None:
                yield f"{where}the caller heard no answer"
            elif limit is not None and took is not None and took > limit:
                yield f"{where}{what} {took} ms, not within {limit} ms"


def _has(words: str, looked_for: str) -> bool:
    return " ".join(looked_for.split()) in " ".join(words.split())
