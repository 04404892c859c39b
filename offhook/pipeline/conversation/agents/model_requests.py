"""Requests to a chat model as its server takes them: without the parameters that it refuses, and
with what it wants back of its own tool calls. Sans-io; all input is untrusted."""

import json
import re
from collections.abc import Iterable, Mapping
from typing import Any

from offhook.media.untrusted_json import read_json
from offhook.pipeline.conversation.agents.completion import Completion
from offhook.pipeline.conversation.agents.tool_calls import ToolCall

REFUSAL_STATUSES = (400, 422, 500, 501)
"""Statuses with which servers refuse a parameter; llama.cpp uses 500."""
MAX_REFUSAL_CHARACTERS = 4000
"""Characters of a server's error that are searched for the name of a parameter."""
MAX_KEPT_CALLS = 64
"""Maximum tool calls of a conversation of which the reasoning is returned; that of older ones is
forgotten."""
MAX_KEPT_CHARACTERS = 400_000
"""Maximum characters of what is returned with all tool calls of a conversation; with more, the
oldest is forgotten."""
_REQUIRED = frozenset(("model", "messages", "stream", "tools", "extra_body"))
_THOUGHTS = ("reasoning_content", "reasoning")
_SAME = {"max_tokens": "max_completion_tokens", "max_completion_tokens": "max_tokens"}
"""Two names of one parameter."""
_OF_TOOLS = ("tools", "tool_choice", "parallel_tool_calls")
_NO_TOOLS = re.compile(
    r"(?i)(?:not|n't) support (?:the )?(?:tools?|functions?)\b"
    r"|\btools?\b\W{0,3} (?:is|are) not supported"
    r"|\btool.choice requires|\btools param requires"
)
"""As Ollama, vLLM and llama.cpp say that a model, or the server as it was started, has no tools."""
_REASONS = re.compile(r"(?i)(?<![a-z0-9])(?<!non-)(?:r1|qwq|thinking|reason(?:er|ing))(?![a-z0-9])")
_CONTEXT = re.compile(r"(?i)\bcontext.(?:length|window|size)")
"""The conversation is too long: no parameter is at fault."""


class ModelTraits:
    """What the answers of a model have taught: learned by one call, known to all later ones."""

    def __init__(self, model: str) -> None:
        self.thinks_first = _REASONS.search(model) is not None
        """Whether its content begins inside the reasoning; of a model that has not answered yet,
        whether its name says that it reasons."""
        self._left_out: set[str] = set()
        self._renamed: dict[str, str] = {}

    def accepted(self, params: Mapping[str, Any]) -> dict[str, Any]:
        """Returns the parameters that the server takes, by the names it takes them."""
        request = {name: params[name] for name in params if name not in self._left_out}
        for name, other in self._renamed.items():
            if name in request:
                request[other] = request.pop(name)
        extra = request.get("extra_body") or {}
        request["extra_body"] = {n: v for n, v in extra.items() if n not in self._left_out}
        if unwanted := self._left_out.intersection(_THOUGHTS):
            request["messages"] = [
                {name: value for name, value in message.items() if name not in unwanted}
                for message in request["messages"]
            ]
        return request

    def learn(self, status: int, body: str, request: Mapping[str, Any]) -> str | None:
        """Learns from the error with which a server answers a request; returns the parameter that
        is not sent any more, or by another name. None: no parameter is refused."""
        if status not in REFUSAL_STATUSES:
            return None
        words, param = _error(body)
        name = _refused(words, param, _optional(request))
        if name is None:
            if "tools" not in request or not _NO_TOOLS.search(words):
                return None
            self._left_out.update(_OF_TOOLS)
            return "tools"
        other = _SAME.get(name, "")
        if name in self._renamed.values():  # by neither name
            self._left_out.update((name, other))
        elif other and re.search(rf"\b{other}\b", words):
            self._renamed[name] = other
        else:
            self._left_out.add(name)
        return name


class CallDetails:
    """What came with a model's tool calls and has to be sent back with them: DeepSeek refuses a
    call of its own without the `reasoning_content`, Gemini one without `extra_content`, which has
    the signature of a thought."""

    def __init__(self) -> None:
        self._of: dict[str, tuple[dict[str, str], Any]] = {}
        """By the id of the call: fields of the message, and `extra_content` of the call."""

    def keep(self, answer: Completion, calls: Iterable[ToolCall]) -> None:
        """Keeps what came with the calls of an answer."""
        thoughts = {name: text for name, text in answer.thoughts.items() if name in _THOUGHTS}
        for call in calls:
            if thoughts or call.extra_content:
                self._of[call.id] = (thoughts, call.extra_content)
        while len(self._of) > MAX_KEPT_CALLS or self._characters() > MAX_KEPT_CHARACTERS:
            del self._of[next(iter(self._of))]

    def added(self, messages: Iterable[Any]) -> list[Any]:
        """Returns the messages with what belongs to their calls."""
        return [self._with_details(message) for message in messages]

    def _characters(self) -> int:
        return sum(len(str(details)) for details in self._of.values())

    def _with_details(self, message: dict[str, Any]) -> dict[str, Any]:
        calls = message.get("tool_calls")
        if not calls or not self._of:
            return message
        thoughts: dict[str, str] = {}
        complete = []
        for call in calls:
            known, extra = self._of.get(call.get("id", ""), ({}, None))
            thoughts |= known
            complete.append({**call, "extra_content": extra} if extra else call)
        return {**message, **thoughts, "tool_calls": complete}


def _optional(request: Mapping[str, Any]) -> set[str]:
    """Returns the names of what a request could do without."""
    names = {*request, *(request.get("extra_body") or ())} - _REQUIRED
    return names | {n for m in request["messages"] for n in _THOUGHTS if n in m}


def _error(body: str) -> tuple[str, str]:
    """Returns the words of an error, and the parameter that it names: `error.param` as of OpenAI,
    `detail[].loc` as of FastAPI. Both may be empty."""
    try:
        value = read_json(body)
    except ValueError:
        return body[:MAX_REFUSAL_CHARACTERS], ""
    error = value.get("error", value) if isinstance(value, dict) else value
    param: Any = ""
    if isinstance(error, dict):
        param = error.get("param")
        detail = error.get("detail")
        if isinstance(detail, list) and detail and isinstance(detail[0], dict):
            location = detail[0].get("loc")
            param = location[-1] if isinstance(location, list) and location else ""
        error = error.get("message") or error
    words = error if isinstance(error, str) else json.dumps(error)
    return words[:MAX_REFUSAL_CHARACTERS], param if isinstance(param, str) else ""


def _refused(words: str, param: str, optional: set[str]) -> str | None:
    """Returns the optional parameter that an error is about: the one it names, else the first that
    its words contain."""
    if param in optional:
        return param
    if _CONTEXT.search(words):
        return None
    found = ((re.search(rf"(?<!\w){re.escape(name)}(?!\w)", words), name) for name in optional)
    places = sorted((match.start(), name) for match, name in found if match)
    return places[0][1] if places else None
