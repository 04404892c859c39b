"""What answers tools in a scenario, in place of what they are: so no backend is needed, and faults
of one can be played.

stubs:
  order_status: {result: {status: "sent"}, delay_ms: 1500}
  cancel_order: {failure: "HTTP 503"}
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

NOTHING: Mapping[str, Any] = {}
ANSWER_KEYS = ("result", "failure", "delay_ms")
STUB_KEYS = (*ANSWER_KEYS, "answers", "description", "parameters")
"""Keys of a stub."""
MAX_DELAY_MS = 60_000
"""Longest delay in ms: as long as a tool may last."""


@dataclass(frozen=True)
class StubAnswer:
    """What comes of one call of a tool."""

    result: Any = None
    """What the tool gives, as JSON; None: it is done."""
    failure: str = ""
    """Why it fails, for the model; empty: it does not."""
    delay_ms: int = 0


@dataclass(frozen=True)
class Stub:
    """What answers one tool."""

    answers: tuple[StubAnswer, ...]
    """One after the other; the last of them again and again."""
    description: str = ""
    parameters: Mapping[str, Any] | None = field(default=None, hash=False)
    """Of a tool whose MCP server is not there to describe it; None: it is."""

    def answer(self, call: int) -> StubAnswer:
        """Returns what comes of a call; the first is 0."""
        return self.answers[min(call, len(self.answers) - 1)]


def stubs_of(table: Any) -> dict[str, Stub]:
    """Reads the `stubs` of a scenario, None if it has none. Raises ValueError."""
    if table is None:
        return {}
    if not isinstance(table, dict):
        raise ValueError("stubs: has to be a table, as {order_status: {result: sent}}")
    return {str(name): _stub(f"stubs: {name}: ", about) for name, about in table.items()}


def _stub(where: str, about: Any) -> Stub:
    if not isinstance(about, dict):
        raise ValueError(f"{where}has to be a table, as {{result: sent}}")
    answers = about.get("answers")
    if answers is None:
        answers = [{key: value for key, value in about.items() if key in ANSWER_KEYS}]
    elif any(key in about for key in ANSWER_KEYS):
        raise ValueError(f"{where}answers has result, failure and delay_ms of each call")
    if not isinstance(answers, list) or not answers:
        raise ValueError(f"{where}answers has to be a list of {{result: …}} or {{failure: …}}")
    parameters = about.get("parameters")
    if parameters is not None and not isinstance(parameters, dict):
        raise ValueError(f"{where}parameters has to be a table, as that of an HTTP tool")
    return Stub(
        tuple(_answer(where, answer) for answer in answers),
        str(about.get("description", "")),
        parameters,
    )


def _answer(where: str, given: Any) -> StubAnswer:
    if not isinstance(given, dict):
        raise ValueError(f"{where}{given!r} is no {{result: …}} and no {{failure: …}}")
    failure, delay_ms = given.get("failure", ""), given.get("delay_ms", 0)
    if "result" in given and failure:
        raise ValueError(f"{where}result and failure exclude each other")
    if not isinstance(failure, str) or ("failure" in given and not failure):
        raise ValueError(f"{where}failure: says why, as a text for the model")
    if type(delay_ms) is not int or not 0 <= delay_ms <= MAX_DELAY_MS:
        raise ValueError(f"{where}delay_ms: {delay_ms!r} is not from 0 to {MAX_DELAY_MS}")
    return StubAnswer(given.get("result"), failure, delay_ms)
