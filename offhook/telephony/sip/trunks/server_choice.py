"""Which of a trunk's servers a registration is made at (RFC 3263 §4.3)."""

MAX_TARGETS = 16
"""Servers tried in one round; further ones are not tried."""


class ServerChoice:
    """The servers of a trunk by number, and those tried in this round."""

    def __init__(self) -> None:
        self.number = 1
        """How many there are."""
        self.current = 0
        """The server in use now, or used last."""
        self._back: int | None = None
        """The one before it that is back, and that the next round starts with."""
        self._tried: set[int] = set()
        self._busy_until: dict[int, float] = {}
        """Servers that sent Retry-After."""

    def start_round(self, now: float) -> None:
        """Start with the server used last unless it is busy, or one before it is back."""
        if self._back is not None:
            self.current, self._back = self._back, None
        self._tried.clear()
        self._busy_until = {t: until for t, until in self._busy_until.items() if until > now}
        if self.current in self._busy_until or self.current >= self.number:
            free = (t for t in range(self.number) if t not in self._busy_until)
            self.current = next(free, 0)

    def next(self, now: float) -> bool:
        """The server in use has failed: choose another that was not tried and is not busy. Returns
        whether there is one."""
        self._tried.add(self.current)
        for target in range(min(self.number, MAX_TARGETS)):
            if target not in self._tried and self._busy_until.get(target, now) <= now:
                self.current = target
                return True
        return False

    def back(self, target: int) -> bool:
        """A server is back: the next round starts with it if it comes before the one in use.
        Returns whether it does."""
        if before := target < min(self.current, MAX_TARGETS):
            self._back = target
        return before

    def busy_until(self, until: float) -> None:
        """The server in use wants no request before."""
        self._busy_until[self.current] = until

    @property
    def all_busy_until(self) -> float | None:
        """Until when none is free, if all have asked for a pause."""
        if self._busy_until.keys() >= set(range(min(self.number, MAX_TARGETS))):
            return min(self._busy_until.values())
        return None
