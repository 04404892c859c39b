"""Those who listen to a voice: what plays on when, and where silence was instead."""

from math import ceil

from offhook.pipeline.engines.shared.synthesis.messages import FRAME_S


class Tally:
    """What several listeners heard while it was counted."""

    def __init__(self) -> None:
        self.counting = True
        self.first_ms: list[float] = []
        """From the text to the first sound, as its client had it."""
        self.engine_ms: list[float] = []
        """To when the engine told it."""
        self.frames = 0.0
        self.gaps: list[float] = []
        """s of silence in the speech."""

    @property
    def late_frames(self) -> int:
        """Frames of silence."""
        return sum(ceil(gap / FRAME_S) for gap in self.gaps)

    @property
    def late_share(self) -> float:
        return self.late_frames / max(1, self.frames)


class Listener:
    """Begins to play `buffer` s after the first sound has come, and waits where there is none."""

    def __init__(self, tally: Tally, buffer: float) -> None:
        self.frames = 0.0
        self.plays_until = 0.0
        """When all sound that came will have been heard."""
        self.gaps = 0
        self._tally = tally
        self._buffer = buffer

    def hear(self, frames: float, now: float) -> None:
        late = 0.0
        if not self.frames:
            self.plays_until = now + self._buffer
        elif now > self.plays_until:
            late = now - self.plays_until
            self.plays_until = now
            self.gaps += 1
        self.frames += frames
        self.plays_until += frames * FRAME_S
        if self._tally.counting:
            self._tally.frames += frames
            if late:
                self._tally.gaps.append(late)

    def unheard(self, now: float) -> float:
        """s of sound that came and was not played yet."""
        return max(0.0, self.plays_until - now)
