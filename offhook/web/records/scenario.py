"""A scenario made from a call that is kept: the caller says the same again, tools answer as they
did then, and the same functions are expected."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

import yaml

from offhook.media.untrusted_json import read_json
from offhook.web.records.entries import NOT_KEPT

COLUMNS = 10**9
"""So that YAML stays on one line."""
_HEAD = """\
# Made from call {call}. The caller says what was said then, and tools answer as they did. The
# agent's words stand in comments: replace `{{event: response}}` by what has to be in an answer, as
# text_contains: "tomorrow", or eval: "says when the order comes".
"""
_WITHHELD = """\
# {turns} of the caller's are missing, as nothing was kept while the recording was paused: a comment
# stands where each was. Write what is to be said there, such as a card number for tests.
"""


def scenario_of(call: str, timeline: Sequence[Mapping[str, Any]]) -> str:
    """Returns a file of scenarios. Raises ValueError if the caller has said nothing, or words are
    not kept."""
    turns = _turns(timeline)
    withheld = sum(turn.withheld for turn in turns)
    if not any(turn.user for turn in turns):
        raise ValueError("the caller has said nothing in it, or words are not kept")
    name = _quoted(f"call-{call}")
    lines = [_HEAD.format(call=call)]
    if withheld:
        lines.append(_WITHHELD.format(turns="1 turn" if withheld == 1 else f"{withheld} turns"))
    lines.append(f"name: {name}")
    if stubs := _stubs(timeline):
        lines.append("stubs:")
        lines += [f"  {_quoted(tool)}: {answers}" for tool, answers in stubs.items()]
    lines += ["scenarios:", f"  - name: {name}", "    turns:"]
    for turn in turns:
        lines += turn.lines()
    return "\n".join(lines) + "\n"


class _Turn:
    def __init__(self, user: str = "", *, withheld: bool = False) -> None:
        self.user = user
        self.withheld = withheld
        """Whether the caller has said something that was not kept."""
        self.calls: list[str] = []
        self.answers: list[str] = []

    def lines(self) -> list[str]:
        said = [f"      - user: {_quoted(self.user)}"] if self.user else []
        begins = "        " if said else "      - "
        missing = [f'      # - user: "{NOT_KEPT}"'] if self.withheld else []
        expected = [f"          - {{event: function_call, calls: [{call}]}}" for call in self.calls]
        if self.answers:
            expected += [f"          # {_quoted(answer)}" for answer in self.answers]
            expected.append("          - {event: response}")
        return [*missing, *said, *([f"{begins}expect:", *expected] if expected else ())]


def _turns(timeline: Sequence[Mapping[str, Any]]) -> list[_Turn]:
    turns = [_Turn()]
    for event in timeline:
        match event:
            case {"event": "caller_turn" | "caller_typed", "text": str(text)} if text.strip():
                withheld = text == NOT_KEPT
                turns.append(_Turn("" if withheld else text, withheld=withheld))
            case {"event": "agent_turn", "text": str(text)}:
                turns[-1].answers.append(text)
            case {"event": "tool_used", "name": str(name), "arguments": str(arguments)}:
                args = f", args: {_quoted(read_json(arguments))}" if _is_json(arguments) else ""
                turns[-1].calls.append(f"{{name: {_quoted(name)}{args}}}")
    return [turn for turn in turns if turn.user or turn.answers or turn.withheld]


def _stubs(timeline: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    """Returns the answers of each tool, in the format of scenarios. What was cut off, as its JSON
    shows, is left out: the tool itself answers then."""
    found: dict[str, list[str]] = defaultdict(list)
    for event in timeline:
        if event["event"] == "tool_used" and _is_json(event.get("result", "")):
            result = read_json(event["result"])
            failed = event.get("failed") and isinstance(result, dict) and "error" in result
            found[event["name"]].append(
                f"{{failure: {_quoted(str(result['error']))}}}"
                if failed
                else f"{{result: {_quoted(result)}}}"
            )
    return {
        tool: answers[0] if len(answers) == 1 else f"{{answers: [{', '.join(answers)}]}}"
        for tool, answers in found.items()
    }


def _is_json(text: str) -> bool:
    try:
        read_json(text)
    except ValueError:
        return False
    return True


def _quoted(value: Any) -> str:
    """Returns a value as YAML on one line."""
    text = yaml.safe_dump(
        [value],
        default_flow_style=True,
        default_style='"' if isinstance(value, str) else None,
        width=COLUMNS,
        allow_unicode=True,
    )
    return str(text).strip()[1:-1]
