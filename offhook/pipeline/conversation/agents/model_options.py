"""How a model is queried, as the configuration has it. The agents, which use it, are large to
import; this is not."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

_NAMES_KEY = re.compile(r"(?i)key|token|secret|sig|code|password")


@dataclass(frozen=True)
class ModelOptions:
    """How a model is queried; None and what is empty is not sent."""

    temperature: float | None = None
    top_p: float | None = None
    max_tokens: int | None = None
    reasoning_effort: str = ""
    extra_body: Mapping[str, Any] = field(default_factory=dict)
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    query: Mapping[str, str] = field(default_factory=dict, repr=False)

    def parameters(self) -> dict[str, Any]:
        """Returns the parameters of a request's body."""
        given = {
            "temperature": self.temperature,
            "top_p": self.top_p,
            "max_tokens": self.max_tokens,
            "reasoning_effort": self.reasoning_effort or None,
        }
        return {name: value for name, value in given.items() if value is not None}

    def secrets(self) -> tuple[str, ...]:
        """Returns what may be a key: all headers, and what the query calls one."""
        query = (value for name, value in self.query.items() if _NAMES_KEY.search(name))
        return *self.headers.values(), *query
