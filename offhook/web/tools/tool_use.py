"""Whether a tool may run now: once a call, or when the caller has agreed.

calls of the model          with `confirm`             with `once`
the first, or new arguments ask the caller             run
again, the caller spoke     run                        tell the first result
again, the caller did not   ask the caller             tell the first result
"""

from collections.abc import Mapping
from typing import Any

ASK = (
    "nothing has been done yet: repeat these details to the caller in one sentence and ask whether "
    "they are right; once the caller has agreed, call this function again with the same arguments"
)


def has_succeeded(result: Any) -> bool:
    """Returns whether a tool has run and not failed, by what the model is told."""
    return not isinstance(result, Mapping) or ("error" not in result and result != {"status": ASK})


class ToolUse:
    """The calls of one tool in one conversation."""

    def __init__(self, *, confirm: bool = False, once: bool = False) -> None:
        self._confirm, self._once = confirm, once
        self._asked: tuple[dict[str, Any], int] | None = None
        """The arguments that the caller is asked about, and the caller's turns until then."""
        self._result: Any = None
        self._done = False

    def begin(self, arguments: Mapping[str, Any], turns: int) -> dict[str, Any] | None:
        """Returns what the model is told instead of a result; None if the tool may run. `turns`
        is how often the caller has spoken."""
        if self._once and self._done:
            return {"error": "this was done already in this call", "result": self._result}
        if not self._confirm:
            return None
        asked, self._asked = self._asked, (dict(arguments), turns)
        if asked is not None and asked[0] == arguments and turns > asked[1]:
            self._asked = None
            return None
        return {"status": ASK}

    def end(self, result: Any) -> None:
        """Keeps the result of a call that has succeeded."""
        self._done = True
        if self._once:
            self._result = result
