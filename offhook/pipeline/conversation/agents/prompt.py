"""The messages that a chat model is sent, as the strictest chat templates want them: system, then
user and assistant in turn, beginning with the user. Sans-io."""

from collections.abc import Iterable, Iterator
from functools import lru_cache
from itertools import pairwise
from typing import Any

BEGINNING = "(the call begins)"
"""What the user says where the conversation begins with the assistant."""
TAKEN_OVER = "(the call is handed over to you)"
"""What the user says where an assistant has spoken last and another one is to go on."""
GOES_ON = "(the conversation goes on)"
"""The same where the same one goes on."""
SILENCE = "…"
"""What the assistant says to a tool's result where it said nothing and the user goes on."""
MIN_PREFIX_WORDS = 2
"""Words from which a message counts as the beginning of a sentence that is left out."""

Message = dict[str, Any]
"""A message of OpenAI's chat completions."""


def in_turn(
    messages: Iterable[Any], left_out: Iterable[str] = (), *, cue: str = ""
) -> list[Message]:
    """Returns the messages with neighbours of one role merged, and with a line of the user before
    the first of the assistant, and with the line `cue` behind the last one, if there is any.
    `left_out`: what was spoken to the caller and is no answer of the
    model; it may have been interrupted."""
    texts = tuple(sorted(filter(None, map(_plain, left_out)), key=len, reverse=True))
    merged: list[Message] = []
    for message in messages:
        message = dict(message)
        if message.get("role") == "assistant":
            message = _without(message, texts)
            if not message.get("content") and not message.get("tool_calls"):
                continue
        if merged and merged[-1].get("role") == message.get("role") != "tool":
            merged[-1] = _joined(merged[-1], message)
        else:
            merged.append(message)
    merged = list(_with_answers(merged))
    first = next((i for i, m in enumerate(merged) if m.get("role") != "system"), len(merged))
    if first == len(merged) or merged[first].get("role") == "assistant":
        merged.insert(first, {"role": "user", "content": BEGINNING})
    if cue and merged[-1].get("role") == "assistant":
        merged.append({"role": "user", "content": cue})
    return merged


def _with_answers(messages: list[Message]) -> Iterator[Message]:
    """Yields the messages with an answer between a tool's result and a line of the user: templates
    count no message that calls a tool. It is what was said with the call."""
    call: Message = {}
    for before, message in pairwise([{}, *messages]):
        if before.get("role") == "tool" and message.get("role") == "user":
            yield {"role": "assistant", "content": call.pop("content", "") or SILENCE}
        if message.get("tool_calls"):
            call = message
        yield message


def _plain(text: str) -> str:
    return " ".join(text.split())


def _without(message: Message, texts: tuple[str, ...]) -> Message:
    content = message.get("content")
    if not isinstance(content, str) or not content:
        return message
    return {**message, "content": _left(content, texts)}


@lru_cache(1024)  # each request has all messages of the ones before
def _left(content: str, texts: tuple[str, ...]) -> str:
    """Returns what of a message's content is none of the texts."""
    rest = _plain(content)
    if not any(text in rest or text.startswith(rest) for text in texts):
        return content
    for text in texts:
        rest = rest.replace(text, "")
        if text.startswith(rest) and len(rest.split()) >= MIN_PREFIX_WORDS:
            rest = ""
    return _plain(rest)


def _joined(one: Message, other: Message) -> Message:
    both = {**one, **other}
    contents = [m["content"] for m in (one, other) if m.get("content")]
    if all(isinstance(content, str) for content in contents):
        if contents:
            both["content"] = " ".join(contents)
    else:
        both["content"] = [part for content in contents for part in _parts(content)]
    calls = [*(one.get("tool_calls") or ()), *(other.get("tool_calls") or ())]
    if calls:
        both["tool_calls"] = calls
    return both


def _parts(content: Any) -> list[Any]:
    return [{"type": "text", "text": content}] if isinstance(content, str) else list(content)
