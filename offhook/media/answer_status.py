"""What is known, and asked for, of who answers a call that we place."""

from dataclasses import dataclass
from typing import Literal

Result = Literal[
    "human", "machine", "machine_end", "screening", "menu", "unavailable", "fax", "unknown"
]
"""A person; a machine that speaks; one that records from now on; a service that asks who calls and
why; a menu of keys; an announcement that nobody can be reached; a fax machine; nothing that could
be told."""
Mode = Literal["off", "detect", "message"]
"""Nobody is asked who has answered; the agent is told; or a text is left on a machine."""


@dataclass
class AnswerStatus:
    """Of one call: what was asked for, and what became of it."""

    mode: Mode | None = None
    """None: as the trunk or the agent has it."""
    message: str = ""
    """What is left on a machine; "" for the agent's."""
    by_carrier: Result | None = None
    """What the carrier says, once it has said it."""
    result: Result | None = None
    """None: it was not asked for, or not known before the call was over."""
    after_ms: int = 0
    """Time in ms from the answer to the result."""
    message_left: bool = False
    """Whether the message was played to its end."""

    def report(self, by_carrier: Result | None) -> None:
        """Add what a carrier says; None: it does not say anything of it."""
        self.by_carrier = by_carrier or self.by_carrier
