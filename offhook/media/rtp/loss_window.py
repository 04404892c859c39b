"""The share of a caller's audio that was lost of late."""

from offhook.media.rtp.receiver import ReceiverStats

LOSS_WINDOW_S = 5.0
"""Window over which a leg's loss and MOS are measured."""


class LossWindow:
    """Measures loss over one window after the other."""

    def __init__(self, now: float) -> None:
        self.loss = 0.0
        """Fraction of the audio of the last window that was concealed."""
        self.due = now + LOSS_WINDOW_S
        """When the window ends: `measure` is called then."""
        self._before = (0, 0)

    def measure(self, stats: ReceiverStats, now: float) -> None:
        """End a window and begin another."""
        played, concealed = stats.played_samples, stats.concealed_samples
        played_before, concealed_before = self._before
        if played > played_before:
            self.loss = (concealed - concealed_before) / (played - played_before)
        self._before = played, concealed
        self.due = now + LOSS_WINDOW_S
