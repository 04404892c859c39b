"""What happens when nobody speaks, step by step."""

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class SilenceStep:
    after_s: float
    """Time in s of silence before it."""
    say: str = ""
    hang_up: bool = False


class Silences:
    """The steps of one silence after another: each begins with the first step."""

    def __init__(self, steps: Sequence[SilenceStep]) -> None:
        self._steps = steps
        self._next = 0

    @property
    def after_s(self) -> float:
        """Time in s until the next step; 0: there is none."""
        return self._steps[self._next].after_s if self._next < len(self._steps) else 0.0

    @property
    def lasts(self) -> bool:
        """Whether a step has been taken, and the caller has not spoken since."""
        return self._next > 0

    def step(self) -> SilenceStep | None:
        """Takes the next step; None after the last one."""
        if self._next >= len(self._steps):
            return None
        self._next += 1
        return self._steps[self._next - 1]

    def spoken(self) -> bool:
        """The caller has spoken. Returns whether steps had been taken."""
        lasted, self._next = self.lasts, 0
        return lasted
