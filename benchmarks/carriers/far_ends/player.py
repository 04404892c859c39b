"""The sound queued at a carrier for one call, played by the carrier's own clock.

What an application sends waits here and is played in order, 20 ms at a time; where nothing is
queued, silence is played. All of it is kept, so that what a caller heard is known sample by sample.
"""

from collections import deque

import numpy as np

from offhook.media.pcm import PACKET_MS, Pcm

STARVED_S = 0.5
"""Sound that goes on within this time after it ran dry has a hole in it; later it is new sound."""


class Player:
    """One call's queue of sound and marks. Sans-io: `tick` is called once every 20 ms."""

    def __init__(self, rate: int, jitter_ms: int = 0, room_ms: int | None = None) -> None:
        """`jitter_ms` pass from the first sound in an empty queue until it is played; sound beyond
        `room_ms` is dropped."""
        self.rate = rate
        self.frame = rate * PACKET_MS // 1000
        """Samples of a tick."""
        self.queued = 0
        """Samples."""
        self.dropped = 0
        """Samples for which there was no room."""
        self.holes = 0
        """How often the sound ran dry and went on soon after."""
        self.hole_ticks = 0
        """Ticks of silence in those holes."""
        self.played: list[Pcm] = []
        """All ticks, `frame` samples each."""
        self.paused = False
        """Silence is played, and what is queued stays."""
        self.sounding = False
        """In this tick something is played."""
        self._jitter_s = jitter_ms / 1000
        self._room = None if room_ms is None else rate * room_ms // 1000
        self._queue: deque[Pcm | str] = deque()
        self._offset = 0
        """Samples of the first sound already played."""
        self._begins_at: float | None = None
        """When what is queued may be played; None while nothing is."""
        self._dry_ticks = 0
        """Since the sound ran dry."""
        self._ran_dry = False
        self._ending: list[str] = []
        """Marks whose sound is over with this tick."""
        self._reached: list[str] = []

    def write(self, pcm: Pcm, now: float) -> None:
        if self._room is not None and self.queued + len(pcm) > self._room:
            kept = max(0, self._room - self.queued)
            self.dropped += len(pcm) - kept
            pcm = pcm[:kept]
        if not len(pcm):
            return
        if self._begins_at is None:
            self._begins_at = now + self._jitter_s
        self._queue.append(pcm)
        self.queued += len(pcm)

    def mark(self, name: str) -> None:
        """To be told of when all that is queued has been played: at once where that is nothing."""
        if self.queued:
            self._queue.append(name)
        elif self.sounding:
            self._ending.append(name)
        else:
            self._reached.append(name)

    def clear(self) -> list[str]:
        """Forget what is queued; its marks, in order."""
        marks = [*self._ending, *(item for item in self._queue if isinstance(item, str))]
        self._queue.clear()
        self._ending = []
        self._offset = self.queued = 0
        self._begins_at = None
        self._ran_dry = False
        return marks

    def reached(self) -> list[str]:
        """Marks whose sound has been played since the last call of this."""
        reached, self._reached = self._reached, []
        return reached

    def tick(self, now: float) -> Pcm:
        """The next 20 ms."""
        self._reached += self._ending
        self._ending = []
        frame = np.zeros(self.frame, np.int16)
        waiting = self._begins_at is None or now < self._begins_at - 1e-9
        filled = 0 if waiting or self.paused else self._fill(frame)
        self.sounding = filled > 0
        self._watch_holes(filled)
        if self._begins_at is not None and not self.queued and not filled:
            self._begins_at = None
        self.played.append(frame)
        return frame

    def _fill(self, frame: Pcm) -> int:
        filled = 0
        while self._queue and filled < len(frame):
            item = self._queue[0]
            if isinstance(item, str):
                self._ending.append(item)
                self._queue.popleft()
                continue
            piece = item[self._offset : self._offset + len(frame) - filled]
            frame[filled : filled + len(piece)] = piece
            filled += len(piece)
            self._offset += len(piece)
            if self._offset == len(item):
                self._queue.popleft()
                self._offset = 0
        while self._queue and isinstance(mark := self._queue[0], str):
            self._ending.append(mark)
            self._queue.popleft()
        self.queued -= filled
        return filled

    def _watch_holes(self, filled: int) -> None:
        if filled:
            if self._ran_dry and self._dry_ticks:
                self.holes += 1
                self.hole_ticks += self._dry_ticks
            self._ran_dry, self._dry_ticks = True, 0
        elif self._ran_dry and not self.paused:
            self._dry_ticks += 1
            if self._dry_ticks * PACKET_MS > STARVED_S * 1000:
                self._ran_dry = False

    def sound(self) -> Pcm:
        """All that was played so far, in one piece: sample n was played n / rate s after the first
        tick."""
        return np.concatenate(self.played) if self.played else np.zeros(0, np.int16)
