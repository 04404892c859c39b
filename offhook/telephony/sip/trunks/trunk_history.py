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

    told: tuple[str, str] = "", ""
    """State and detail that were reported last."""

    def turned(self, state: str, detail: str) -> bool:
        """Return whether the trunk has come up or gone down since this was asked last, or is down
        for another reason."""
        seen = (state, detail if state == "down" else "")
        if state not in ("up", "down") or seen == self.told:
            return False
        self.told = seen
        return True

    def note(self, state: str, detail: str, now: float) -> None:
        """Take what is seen of the trunk."""
        if state != self.state:
            self.state, self.since = state, now
        if detail and detail != self.fault:
            self.fault, self.fault_at = detail, now
