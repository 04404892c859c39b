"""Decides which streams make a frame in the next batch.

The criterion is a stream's lead: how long its audio will last from now on. A batch takes the
streams with the smallest lead first. A live stream makes frames until its lead is `lead`; while no
lead is below `wake` nothing is launched, so that streams are batched together and the device is
free for new ones. A new stream counts as having a lead of NEW from the moment its text arrives, so
it precedes all but those about to run dry.

The size of a batch depends on its streams:

- if a stream that has spoken for a while is below BEHIND, the device is overloaded and large
  batches have the best throughput: as many as fit;
- if a stream is just starting: as few as possible, for a short batch, but a captured size is filled
  up, which costs nothing;
- otherwise as many as keep the batch within BATCH_MS, so that new streams do not wait long.

Files get the rest in turn: free places in a batch, and the idle device, FILE_BATCH_MS at a time.

Times are float seconds. Everything is O(log n) for each stream in the batch.
"""

from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Sequence
from heapq import heappop, heappush

from offhook.pipeline.engines.shared.synthesis.messages import FRAME_S, PIECE_FRAMES

LEAD = 0.6
"""Target lead in s of the audio made over the audio heard, on a GPU."""
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
        """When its audio made so far will have been played, in s."""
        self.ramping = True
        """Whether it has just started to speak."""
        self.entry = 0
        """Its valid queue entry; 0: not queued."""


class TtsScheduler:
    def __init__(
        self,
        steps: Sequence[tuple[int, float]],
        max_batch: int,
        lead: float = LEAD,
        wake: float = WAKE,
    ) -> None:
        """`steps` is that of `SpeechCost`."""
        steps = [(size, ms) for size, ms in steps if size <= max_batch]
        self._lead, self._wake = lead, wake
        self._sizes = [size for size, _ in steps]
        self._step_ms = [ms for _, ms in steps]
        self._normal = self._within(BATCH_MS)
        self._files_alone = self._within(FILE_BATCH_MS)
        self._heap: list[tuple[float, int, Speaker]] = []
        self._files: deque[tuple[int, Speaker]] = deque()
        self._entries = 0

    def step_ms(self, streams: int) -> float:
        """Returns the duration of a step with `streams` streams, in ms."""
        return self._step_ms[bisect_left(self._sizes, streams)]

    def want(self, speaker: Speaker) -> None:
        """Queues a stream that can make a frame."""
        self._entries += 1
        speaker.entry = self._entries
        if speaker.live:
            heappush(self._heap, (speaker.ends, self._entries, speaker))
        else:
            self._files.append((self._entries, speaker))

    def drop(self, speaker: Speaker) -> None:
        """Removes a stream that can no longer make a frame."""
        speaker.entry = 0

    def due(self) -> float | None:
        """Returns when a batch should start, in s; None if nothing is queued."""
        if self._first_file() is not None:
            return 0.0
        first = self._first()
        return None if first is None else first[0] - self._wake

    def batch(self, now: float, step: Callable[[Speaker], bool]) -> None:
        """Calls `step` for the streams of the next batch; it returns whether the stream joined.
        Joined streams are no longer queued until `want` is called after the batch."""
        heap = self._heap
        count, limit = 0, self._sizes[-1]
        behind = relaxed = False
        while count < limit and (first := self._first()) is not None:
            lead = first[0] - now
            if lead >= self._lead:
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
        """Returns the captured size that holds `streams` streams."""
        return self._sizes[bisect_left(self._sizes, streams)]

    def _within(self, ms: float) -> int:
        """Returns the largest size that takes at most `ms`, or twice as long as one stream if that
        is more."""
        most = max(ms, 2 * self._step_ms[0])
        return max(s for s, taken in zip(self._sizes, self._step_ms, strict=True) if taken <= most)


# --- pieces ---
# Few launches of the codec with many frames use the device best, but waiting for more frames adds
# latency: a new stream is decoded frame by frame, one with a lead four frames at a time, a file in
# the largest pieces.

SAFE = 0.1
"""Audio in s that the listener should still have when more is delivered; covers a step, the codec
and the delivery."""
MOST = PIECE_FRAMES[-1]
_WAITING = range(1, MOST + 1)
_WHOLE = (0, *(max(n for n in PIECE_FRAMES if n <= waiting) for waiting in _WAITING))
_ENOUGH = (0, *(min(n for n in PIECE_FRAMES if n >= waiting) for waiting in _WAITING))
_NEXT = (
    0,
    *(min((n for n in PIECE_FRAMES if n > waiting), default=0) for waiting in _WAITING),
)


def is_due(waiting: int, lead: float, live: bool) -> bool:
    """Returns whether pending frames should be decoded now. `lead` is the time in s until the
    stream's audio, including these frames, runs out. They wait for more if those arrive in time
    even at real-time speed."""
    if waiting >= MOST:
        return True
    return live and lead < _NEXT[waiting] * FRAME_S + SAFE


def whole(waiting: int) -> int:
    """Returns the frames of the largest piece that can be filled."""
    return _WHOLE[waiting] if waiting < MOST else MOST


def enough(waiting: int) -> int:
    """Returns the frames of the smallest piece that holds all pending ones, or of the largest."""
    return _ENOUGH[waiting] if waiting < MOST else MOST
