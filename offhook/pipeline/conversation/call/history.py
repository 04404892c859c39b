"""What was said in a call, as the agent knows it."""

from collections.abc import Iterable, Sequence
from typing import Any, Literal

from pipecat.processors.aggregators.llm_context import LLMContext

CONTEXT_MESSAGES = 400
"""Maximum messages of the conversation; beyond it the older half is dropped, which bounds the
memory and the prompt of an endless call."""

Message = tuple[Literal["user", "assistant"], str]
"""Who spoke, and the words."""


class History:
    """The conversation of one call, in a context that Pipecat's aggregators add to."""

    def __init__(self, words: Sequence[Message], tools: Sequence[Any]) -> None:
        """`words` were said before."""
        self.context = LLMContext(tools=list(tools)) if tools else LLMContext()
        self.context.set_messages(_messages(words))

    def transcript(self) -> list[Message]:
        """Return the conversation as it was heard, without the calls of tools."""
        return _words(self.context.messages)

    def bound(self) -> None:
        """Drop the older half of a conversation that has become too long."""
        if len(self.context.messages) > CONTEXT_MESSAGES:
            self.context.set_messages(_newer_half(self.context.messages))

    def correct(self, estimate: str, text: str) -> None:
        """Correct what the conversation says of the last reply."""
        for message in reversed(self.context.messages):
            if isinstance(message, dict) and message.get("content") == estimate:
                message["content"] = text
                break

    def drop_last(self, text: str) -> None:
        """Drop the greeting where it comes for the second time: the conversation begins with it."""
        messages: list[Any] = list(self.context.messages)
        found = [n for n, m in enumerate(messages) if n and m.get("content") == text]
        if found:
            self.context.set_messages(messages[: found[-1]] + messages[found[-1] + 1 :])

    def hand_over(self, known: int, tools: list[Any], *, keeps: bool) -> None:
        """Give the conversation to an agent with other tools, which knows of its first `known`
        messages what was said, or nothing."""
        messages: list[Any] = list(self.context.messages)
        before = _messages(_words(messages[:known])) if keeps else []
        self.context.set_messages([*before, *messages[known:]])
        self.context.set_tools(tools)


def since_last_turn(messages: Sequence[Any]) -> list[Any]:
    """Return the messages from the last one of the caller on; all, if there is none."""
    turns = [n for n, message in enumerate(messages) if _role(message) == "user"]
    return list(messages[turns[-1] if turns else 0 :])


def last_turn(messages: Sequence[Any]) -> Any:
    """Return the last message of the caller; None if there is none."""
    return next((m for m in reversed(messages) if _role(m) == "user"), None)


def _role(message: Any) -> Any:
    return message.get("role") if isinstance(message, dict) else None


def _messages(words: Iterable[Message]) -> list[Any]:
    """Return what was said as messages of a context."""
    return [{"role": role, "content": text} for role, text in words]


def _words(messages: Iterable[Any]) -> list[Message]:
    """Return what was said in messages of a context, without the calls of tools."""
    found: list[Message] = []
    for message in messages:
        if not isinstance(message, dict):
            continue
        role, content = message.get("role"), message.get("content")
        if isinstance(content, list):
            texts = (part.get("text") for part in content if isinstance(part, dict))
            content = " ".join(text for text in texts if isinstance(text, str))
        if role in ("user", "assistant") and isinstance(content, str) and content:
            found.append((role, content))
    return found


def _newer_half(messages: list[Any]) -> list[Any]:
    """Return the newer half, starting with a user message so that no tool result loses its call."""
    half = messages[len(messages) // 2 :]
    starts = (i for i, m in enumerate(half) if isinstance(m, dict) and m.get("role") == "user")
    return half[next(starts, 0) :]
