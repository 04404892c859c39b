"""How much of something a peer may do to us in a second."""


class Budget:
    """A token bucket: so many in a second, and so many at once after some silence."""

    __slots__ = ("_at", "_burst", "_left", "_per_second")

    def __init__(self, per_second: float, burst: float) -> None:
        self._per_second = per_second
        self._burst = burst
        self._left = burst
        self._at = float("-inf")

    def spend(self, count: float, now: float) -> bool:
        """Returns whether there is as much left, and takes it if so. `now` is in s of any clock."""
        self._left = min(self._burst, self._left + (now - self._at) * self._per_second)
        self._at = now
        if self._left < count:
            return False
        self._left -= count
        return True
