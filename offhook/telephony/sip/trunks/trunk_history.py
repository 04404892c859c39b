"""Since when a trunk is as it is, and what was wrong with it last."""

from dataclasses import dataclass


@dataclass
class TrunkHistory:
    """What is remembered of a trunk's state; times are seconds since 1970."""

    state: str = ""
    since: float = 0.0
    """When it became so, as far as it was looked at."""
    fault: str = ""
    """What was wrong with it last, also if it is up again; "" if nothing was."""
    fault_at: float | None = None
    """When that was seen first."""

    def note(self, state: str, detail: str, now: float) -> None:
        """Take what is seen of the trunk."""
        if state != self.state:
            self.state, self.since = state, now
        if detail and detail != self.fault:
            self.fault, self.fault_at = detail, now
