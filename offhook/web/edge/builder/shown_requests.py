"""The request that went to a language model, as the operator's page shows it: cut to what a page
can take, and without keys."""

import json
from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import urlsplit

from offhook.pipeline.speech.redact import MASK

MAX_TEXT_CHARS = 8000
"""Maximum characters of a text of a request to a language model that the page shows; the rest is
left out."""
MAX_SHOWN_CHARS = 40_000
"""Maximum characters of all messages of a request to a language model that the page shows; of more
the oldest after the first are left out."""
MIN_SECRET_CHARS = 6
"""Shorter ones are parts of ordinary words."""


def shown_request(request: Mapping[str, Any], secrets: Sequence[str]) -> dict[str, Any]:
    """Returns what the page shows of a request, in JSON. Secrets of the model's configuration are
    masked wherever they stand."""
    shown = {
        "model": request["model"],
        "server": urlsplit(request["base_url"]).netloc,
        "parameters": dict(request["parameters"]),
        "tools": [_name_of(tool) for tool in request["tools"]],
    }
    messages, left_out = _cut([_short(message) for message in request["messages"]])
    masked = json.dumps({**shown, "messages": messages, "left_out": left_out}, default=str)
    for secret in sorted(filter(None, secrets), key=len, reverse=True):
        if len(secret) >= MIN_SECRET_CHARS:
            masked = masked.replace(json.dumps(secret)[1:-1], MASK)
    read: dict[str, Any] = json.loads(masked)
    return read


def _name_of(tool: Any) -> str:
    function = tool.get("function") if isinstance(tool, dict) else None
    return str(function.get("name")) if isinstance(function, dict) else "?"


def _short(value: Any) -> Any:
    """Returns a value of JSON whose texts have MAX_TEXT_CHARS at most."""
    if isinstance(value, Mapping):
        return {str(key): _short(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [_short(one) for one in value]
    if isinstance(value, str) and len(value) > MAX_TEXT_CHARS:
        return f"{value[:MAX_TEXT_CHARS]}… ({len(value) - MAX_TEXT_CHARS} characters more)"
    return value


def _cut(messages: list[Any]) -> tuple[list[Any], int]:
    """Returns the first message and the last ones, and how many there are between them."""
    sizes = [len(json.dumps(message, default=str)) for message in messages]
    keep, room = len(messages), MAX_SHOWN_CHARS - sum(sizes[:1])
    while keep > 1 and room >= sizes[keep - 1]:
        keep -= 1
        room -= sizes[keep]
    first = messages[:1] if keep > 0 else []
    return [*first, *messages[max(keep, 1) :]], max(keep - 1, 0)
