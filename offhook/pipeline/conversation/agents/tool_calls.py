"""Tool calls as OpenAI-compatible servers stream them, in their dialects.

OpenAI numbers the calls of an answer by `index`, and sends id and name once, in the first delta of
each. Others send no index or always 0, no id, the id after the name, the name with every delta, the
arguments as an object, or several complete calls at once.
"""

import json
import uuid
from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Any

from offhook.media.untrusted_json import read_json
from offhook.pipeline.conversation.agents.agent_faults import AgentFailure, Fault

MAX_TOOL_CALLS = 64
"""Maximum tool calls of one answer; an answer with more is a fault, as one that is too long."""


@dataclass
class ToolCall:
    """A call of a function, as far as it was received."""

    id: str = ""
    name: str = ""
    arguments: str = ""
    """JSON, or a beginning of it."""
    extra_content: dict[str, Any] = field(default_factory=dict)
    """What Gemini adds: the signature of the thought behind the call."""

    @property
    def is_complete(self) -> bool:
        """Whether the arguments are a whole JSON object."""
        try:
            return isinstance(read_json(self.arguments), dict)
        except ValueError:
            return False

    def parsed(self) -> dict[str, Any]:
        """Returns the arguments. Raises AgentFailure if they are no JSON object."""
        try:
            parsed = read_json(self.arguments.strip() or "{}")
        except ValueError as error:
            raise AgentFailure(Fault.BAD_TOOL_CALL, f"arguments of a tool: {error}") from error
        if not isinstance(parsed, dict):
            raise AgentFailure(Fault.BAD_TOOL_CALL, "arguments of a tool: no object")
        return parsed


class ToolCalls:
    """The tool calls of one answer. `functions` are the names of those it may call."""

    def __init__(self, functions: Collection[str]) -> None:
        self._functions = functions
        self._calls: list[ToolCall] = []
        self._by_index: dict[int, ToolCall] = {}
        self.characters = 0
        """Characters of all arguments."""

    def __bool__(self) -> bool:
        return bool(self._calls)

    def add(self, delta: Any) -> None:
        """Adds an element of a delta's `tool_calls`. Raises AgentFailure if it is none."""
        if not isinstance(delta, dict):
            raise _other_shape()
        function = delta.get("function") or {}
        if not isinstance(function, dict):
            raise _other_shape()
        index, call_id = delta.get("index"), delta.get("id") or ""
        name, arguments = function.get("name") or "", function.get("arguments")
        if isinstance(arguments, dict):
            arguments = json.dumps(arguments)
        arguments = arguments or ""
        if not all(isinstance(text, str) for text in (call_id, name, arguments)):
            raise _other_shape()
        call = self._call_of(index, call_id, name, arguments)
        if not arguments.strip() or not call.is_complete:  # some repeat them whole at the end
            call.arguments += arguments
            self.characters += len(arguments)
        call.id = call.id or call_id
        if isinstance(extra := delta.get("extra_content"), dict):
            call.extra_content = extra
        if name != call.name:
            call.name += name

    def finished(self) -> list[ToolCall]:
        """Returns the calls that have a name, each with an id, once all deltas are known."""
        calls = [call for call in self._calls if call.name]
        for call in calls:
            call.id = call.id or f"call_{uuid.uuid4().hex[:24]}"
        return calls

    def _call_of(self, index: Any, call_id: str, name: str, arguments: str) -> ToolCall:
        """Returns the call that a delta belongs to."""
        if call_id:
            for known in self._calls:
                if known.id == call_id:
                    return known
        call = self._calls[-1] if self._calls else None
        if isinstance(index, int):
            call = self._by_index.get(index)
        if call is None or self._is_another(call, call_id, name, arguments):
            if len(self._calls) == MAX_TOOL_CALLS:
                raise AgentFailure(Fault.TOO_LONG, f"more than {MAX_TOOL_CALLS} tool calls")
            call = ToolCall()
            self._calls.append(call)
        if isinstance(index, int):
            self._by_index[index] = call
        return call

    def _is_another(self, call: ToolCall, call_id: str, name: str, arguments: str) -> bool:
        """Whether a delta begins a call other than the one before it at its place."""
        if not name or not call.name:
            return False
        if call_id and call.id:
            return True
        if name != call.name and call.name in self._functions:
            return True
        return bool(arguments.strip()) and call.is_complete


def _other_shape() -> AgentFailure:
    return AgentFailure(Fault.BAD_TOOL_CALL, "a tool call of another shape")
