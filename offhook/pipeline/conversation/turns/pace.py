"""How long one caller pauses within turns, as learned from turns that were ended too early."""

MARGIN_MS = 120
"""ms by which the learned silence exceeds the pause that was too long."""
CUT_OFF_MS = 1500
"""Longest pause in ms after which more speech continues the turn; after a longer one, the caller
interrupts the reply."""
KEPT = 0.6
"""Share of the learned silence that is left after a turn without a pause to learn from."""
LEAST_MS = 100
"""A learned silence below this is forgotten: every turn waits for longer anyway."""


class Pace:
    """The silence that ends one caller's turns, learned from the pauses that ended them too
    early."""

    def __init__(self) -> None:
        self.wait_ms = 0
        """Least silence in ms to wait for; 0 while nothing is learned."""
        self._paused = False
        """Whether this turn has taught anything."""

    def cut_off(self, pause_ms: int) -> None:
        """Learn that the caller went on, `pause_ms` after the words that ended the last turn."""
        if pause_ms <= CUT_OFF_MS:
            self.wait_ms = max(self.wait_ms, pause_ms + MARGIN_MS)
            self._paused = True

    def pause(self, pause_ms: int) -> None:
        """Learn that a caller who was cut off before went on within a turn, after a pause that was
        waited for."""
        if self.wait_ms:
            self.cut_off(pause_ms)

    def end_turn(self) -> None:
        """Forget a little, at the end of a turn that taught nothing."""
        if not self._paused:
            self.wait_ms = int(self.wait_ms * KEPT)
        if self.wait_ms < LEAST_MS:
            self.wait_ms = 0
        self._paused = False
