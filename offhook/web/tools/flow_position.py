"""Where a conversation is in its flow, and where a call of a function leads.

the model calls                               the conversation
a function of the node it was asked in,       goes on in that function's next node
  whose arguments choose one
a function of a node that was left already    stays, and the model is told so
a function that the node does not have        likewise
one whose arguments choose none               likewise
any, while details that the node collects are  likewise
  not noted
any, after MAX_MOVES without the caller       likewise
"""

from collections.abc import Container, Mapping
from dataclasses import dataclass
from typing import Any

from offhook.web.config.flows import Flow

MAX_MOVES = 8
"""Maximum nodes entered one after the other while the caller says nothing; then the model is told
to talk to them."""


@dataclass(frozen=True)
class Position:
    """Where a conversation is."""

    node: str
    moves: int = 0
    """Nodes entered since the caller has last said something."""


class FlowTable:
    """The functions of a flow's nodes, and where they lead."""

    def __init__(self, flow: Flow) -> None:
        self._flow = flow
        self.start = Position(flow.initial)
        self._functions = {
            (node, function.name): function
            for node in flow.nodes
            for function in flow.functions_of(node)
        }

    def missing(self, node: str, noted: Container[str]) -> list[str]:
        """Returns the details that a node collects and that are not noted."""
        return [name for name in self._flow.nodes[node].collect if name not in noted]

    def next(
        self,
        at: Position,
        node: str,
        function: str,
        arguments: Mapping[str, Any],
        noted: Container[str] = (),
    ) -> Position | str:
        """Returns where the conversation goes on when its model calls a function of a `node`, or
        why it stays. `noted` has the names of the details that are known."""
        called = self._functions.get((node, function))
        if called is None or not called.targets:
            return "there is no such function here"
        if at.node != node:
            return "the conversation goes on elsewhere already"
        if at.moves >= MAX_MOVES:
            return "too many functions one after the other: talk to the caller first"
        if missing := self.missing(node, noted):
            return f"first find out and note: {', '.join(missing)}"
        if isinstance(called.next, str):
            return Position(called.next, at.moves + 1)
        chosen = arguments.get(called.next_by)
        target = called.next.get(chosen) if isinstance(chosen, str) else None
        if target is None:
            return f"{called.next_by} must be one of {', '.join(called.next)}"
        return Position(target, at.moves + 1)
