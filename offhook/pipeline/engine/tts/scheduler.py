"""Which streams make a frame in the next batch.

What counts is a stream's lead: for how long the sound that was made for it lasts from now on. The
batch takes the streams with the least lead first. A live stream makes frames until its lead is
LEAD; when nobody's is under WAKE, nothing is launched, so that streams come to be made together
and the device is free for whoever comes next. A new stream counts as one with a lead of NEW, from
the moment its text came: it goes before all but those that are about to run dry.

How many go into a batch depends on who is in it:

- somebody who has spoken for a while is under BEHIND: there is too much to do, and large batches
  do most in the time: as many as fit;
- somebody is just beginning: as few as possible, for a short batch; but the size that is captured
  is filled, which costs nothing;
- else so many that whoever begins meanwhile does not wait long: BATCH_MS.

Files take what is left, in turn: places in a batch that cost nothing, and the device where no live
stream needs it, FILE_BATCH_MS at a time.

Times are float seconds. Everything is O(log n) for each stream in the batch.
"""

from bisect import bisect_left
from collections import deque
from collections.abc import Callable
from heapq import heappop, heappush

from offhook.pipeline.engine.tts.messages import SpeechCost

LEAD = 0.6
"""s of sound that are made ahead of what is heard."""
WAKE = 0.4
BEHIND = 0.3
NEW = 0.1
BATCH_MS = 8.0
FILE_BATCH_MS = 8.0


class Speaker:
    """A stream as the scheduler sees it."""

    __slots__ = ("ends", "entry", "live", "ramping")

    def __init__(self, live: bool) -> None:
        self.live = live
        self.ends = 0.0
        """When the sound that was made for it will be over. s."""
        self.ramping = True
        """It has only begun to speak."""
        self.entry = 0
        """Of the queue, the one that counts; 0: in none."""


class TtsScheduler:
    def __init__(self, cost: SpeechCost, max_batch: int) -> None:
        steps = [(size, ms) for size, ms in cost.steps if size <= max_batch]
        self._sizes = [size for size, _ in steps]
        self._step_ms = [ms for _, ms in steps]
        self._normal = self._within(BATCH_MS)
        self._files_alone = self._within(FILE_BATCH_MS)
        self._heap: list[tuple[float, int, Speaker]] = []
        self._files: deque[tuple[int, Speaker]] = deque()
        self._entries = 0

    def step_ms(self, streams: int) -> float:
        """How long a step of so many takes."""
        return self._step_ms[bisect_left(self._sizes, streams)]

    def want(self, speaker: Speaker) -> None:
        """It can make a frame. It is in no queue."""
        self._entries += 1
        speaker.entry = self._entries
        if speaker.live:
            heappush(self._heap, (speaker.ends, self._entries, speaker))
        else:
            self._files.append((self._entries, speaker))

    def drop(self, speaker: Speaker) -> None:
        """It cannot any more."""
        speaker.entry = 0

    def due(self) -> float | None:
        """When there is something for a batch; None: not as things are."""
        if self._first_file() is not None:
            return 0.0
        first = self._first()
        return None if first is None else first[0] - WAKE

    def batch(self, now: float, step: Callable[[Speaker], bool]) -> None:
        """`step` those who are to be in the next batch; it says whether they are, as somebody may
        not be able to. They are in no queue then, until `want` is called after the batch."""
        heap = self._heap
        count, limit = 0, self._sizes[-1]
        behind = relaxed = False
        while count < limit and (first := self._first()) is not None:
            lead = first[0] - now
            if lead >= LEAD:
                break
            if lead >= BEHIND and not relaxed:
                relaxed = True
                if not behind:
                    limit = self._fit(count) if count else self._normal
                    continue
            heappop(heap)
            speaker = first[2]
            speaker.entry = 0
            if step(speaker):
                count += 1
                behind |= lead < BEHIND and not speaker.ramping
        if count == 0:
            self._add_files(self._files_alone, step)
        elif not behind:
            self._add_files(self._fit(count) - count, step)

    def _add_files(self, most: int, step: Callable[[Speaker], bool]) -> None:
        for _ in range(len(self._files)):
            if most <= 0 or (speaker := self._first_file()) is None:
                return
            self._files.popleft()
            speaker.entry = 0
            most -= step(speaker)

    def _first(self) -> tuple[float, int, Speaker] | None:
        heap = self._heap
        while heap:
            first = heap[0]
            if first[2].entry == first[1]:
                return first
            heappop(heap)
        return None

    def _first_file(self) -> Speaker | None:
        while self._files:
            entry, speaker = self._files[0]
            if speaker.entry == entry:
                return speaker
            self._files.popleft()
        return None

    def _fit(self, streams: int) -> int:
        """The size captured that holds so many."""
        return self._sizes[bisect_left(self._sizes, streams)]

    def _within(self, ms: float) -> int:
        """The largest size that takes so long at most; where one stream takes long already, twice
        as long as that."""
        most = max(ms, 2 * self._step_ms[0])
        return max(s for s, taken in zip(self._sizes, self._step_ms, strict=True) if taken <= most)
