"""How late the packets of the last moments left. Sans-io; `now` is in monotonic seconds."""

from collections import deque
from math import ceil

WINDOW_S = 1.5
"""Time that the percentile covers. Lateness that ends is forgotten after as long."""
PERCENTILE = 95
"""The percentile of lateness that is reported: of 75 to 150 wake-ups in WINDOW_S the
99th would be that of a single stall."""
MAX_WAKES = 512
"""Wake-ups that are remembered, several times what there are in WINDOW_S, as more would mean that
the clock runs wild; the oldest are forgotten."""


class RecentLateness:
    """The lateness of the packet clock's wake-ups, each of which sends the packets due.

    A wake-up counts once, however many packets it sends late: after a single stall of a tenth of a
    second most packets of that moment were late, but those that follow are not, and one call more
    would not make a difference.
    """

    def __init__(self) -> None:
        self._wakes: deque[tuple[float, float]] = deque(maxlen=MAX_WAKES)
        """When, and how late in s."""
        self._since: float | None = None
        """The first wake-up since the clock runs."""

    def wake(self, now: float, late_s: float) -> None:
        """Records a wake-up."""
        if self._since is None:
            self._since = now
        self._wakes.append((now, late_s))

    def clear(self) -> None:
        """Forgets all: the clock stops."""
        self._wakes.clear()
        self._since = None

    def percentile_ms(self, now: float) -> float:
        """Returns the PERCENTILE of the last WINDOW_S in ms; 0 until the clock has run as long for
        the first time."""
        wakes = self._wakes
        while wakes and wakes[0][0] < now - WINDOW_S:
            wakes.popleft()
        if not wakes or self._since is None or now - self._since < WINDOW_S:
            return 0.0
        late = sorted(late_s for _, late_s in wakes)
        return late[ceil(PERCENTILE / 100 * (len(late) - 1))] * 1000
