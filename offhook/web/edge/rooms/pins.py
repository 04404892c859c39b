"""How often a PIN may be guessed. Sans-io."""

from collections import deque
from hmac import compare_digest

MAX_TRIES = 3
"""Tries of one call; then it is ended."""
MAX_FAILURES = 20
"""Wrong PINs of all callers within WINDOW_S after which none is right for the rest of it. So a PIN
of six digits lasts for months against somebody who calls again and again, one of four for days."""
WINDOW_S = 600.0


class PinGuard:
    """The PIN of one conference."""

    def __init__(self) -> None:
        self._failures: deque[float] = deque(maxlen=MAX_FAILURES)
        """Times in s of wrong PINs."""

    def admits(self, pin: str, given: str, now: float) -> bool:
        """Return whether the digits given are the PIN, and may be tried now."""
        while self._failures and now - self._failures[0] > WINDOW_S:
            self._failures.popleft()
        if len(self._failures) == MAX_FAILURES:
            return False
        right = compare_digest(pin, given)
        if not right:
            self._failures.append(now)
        return right
