"""Simulated TTS runners for tests and benchmarks: one without a model or device, and one whose
random model ends its segments.

`SimulatedRunner` takes the time of a `SpeechCost` on a given clock and checks every call: a step
must find in its slot's pages what was written for it, codes must still be in the ring when the
codec needs them, and nothing may block. The audio identifies itself: sample 0 of every frame is
minus the segment's number, sample 1 minus the frame's number.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

from offhook.media.pcm import Pcm
from offhook.pipeline.engines.shared.pages import PAGE_SIZE
from offhook.pipeline.engines.shared.synthesis.messages import (
    FRAME_SAMPLES,
    MAX_TOKENS,
    MIN_FRAMES,
    PIECE_FRAMES,
    Piece,
    Prompt,
    PromptPosition,
    Sampling,
    SpeechCost,
    Step,
)

LOUD = 8000
"""Peak of a frame that is not silent."""
LOOK_FRAMES = 5
"""Interval in frames at which a segment's pages are checked; corruption in them persists."""
CODEC_SHARE = 0.5
"""Share of the codec's time by which concurrent steps are slowed down."""
T = TypeVar("T")


@dataclass
class SimulatedSegment:
    """One run of the simulated model."""

    number: int
    slot: int
    seed: int
    sampling: Sampling
    reference: object | None
    context: list[PromptPosition] = field(default_factory=list)
    """Positions that the first frame found in the cache."""
    texts: list[int] = field(default_factory=list)
    """Text token of each frame."""
    decoded: int = 0


Ends = Callable[[SimulatedSegment], bool]
"""Returns whether the model ends the segment with the frame whose text was added last."""


class Simulated(Generic[T]):
    """A simulated launch; implements `messages.Launched`."""

    def __init__(self, result: T, ends: float, clock: Callable[[], float]) -> None:
        self._result = result
        self.ends = ends
        self._clock = clock
        self.taken = False

    def ready(self) -> bool:
        return self._clock() >= self.ends

    def __call__(self) -> T:
        assert self.ready(), "the engine waits for the device"
        assert not self.taken
        self.taken = True
        return self._result


class SimulatedRunner:
    """Implements `RunnerProtocol`. `quiet(segment, frame)` returns whether a frame is silent."""

    ring = 32

    def __init__(
        self,
        slots: int,
        pages: int,
        cost: SpeechCost,
        clock: Callable[[], float],
        codec_eos: int,
        ends: Ends,
        quiet: Callable[[SimulatedSegment, int], bool] = lambda segment, frame: False,
    ) -> None:
        self.slots = slots
        self.pages = pages
        self.max_batch = cost.steps[-1][0]
        self.segments: list[SimulatedSegment] = []
        """All segments that were started."""
        self.batches: list[list[Step]] = []
        self.pieces: list[Piece] = []
        self.prefills: list[int] = []
        """Rows of each prefill."""
        self._cost = cost
        self._clock = clock
        self._eos = codec_eos
        self._ends = ends
        self._quiet = quiet
        self._of_slot: dict[int, SimulatedSegment] = {}
        self._assigned: dict[int, list[int]] = {}
        # The content of every position, and what each slot has written, as numbers.
        self._cache = np.zeros((pages, PAGE_SIZE), np.int64)
        self._written = np.zeros((slots + 1, MAX_TOKENS), np.int64)
        self._rows: dict[PromptPosition, int] = {}
        self._row_of: list[PromptPosition] = [PromptPosition()]
        self._stamps = -1
        self._steps: list[Simulated[Sequence[int]]] = []
        self._sounds: list[Simulated[Sequence[Pcm]]] = []
        self.steps_until = 0.0
        self.sounds_until = 0.0

    # --- the cache ---

    def assign(self, slot: int, pages: Sequence[int]) -> None:
        assert 0 < slot <= self.slots
        assert len(set(pages)) == len(pages) <= MAX_TOKENS // PAGE_SIZE
        assert 0 not in pages
        self._assigned[slot] = list(pages)

    def copy(self, pages_from: Sequence[int], pages_to: Sequence[int]) -> None:
        assert len(set(pages_to)) == len(pages_to) == len(pages_from)
        assert not set(pages_from) & set(pages_to)
        self._cache[list(pages_to)] = self._cache[list(pages_from)]

    def prefill(self, prompts: Sequence[Prompt]) -> None:
        pages = [page for prompt in prompts for page in self._assigned[prompt.slot]]
        assert len(set(pages)) == len(pages), "two prompts are written to one page"
        rows = sum(len(prompt.rows) for prompt in prompts)
        self.prefills.append(rows)
        self._spend(self._cost.prefill_ms + (rows - 1) * self._cost.prefill_row_ms)
        for prompt in prompts:
            for i, row in enumerate(prompt.rows):
                if row not in self._rows:
                    self._rows[row] = len(self._row_of)
                    self._row_of.append(row)
                self._write(prompt.slot, prompt.start + i, self._rows[row])

    def _write(self, slot: int, position: int, stamp: int) -> None:
        page = self._assigned[slot][position // PAGE_SIZE]
        self._cache[page, position % PAGE_SIZE] = stamp

    def _read(self, slot: int, count: int) -> NDArray[np.int64]:
        """Returns the content of the slot's first positions."""
        pages = self._assigned[slot][: -(-count // PAGE_SIZE)]
        found: NDArray[np.int64] = self._cache[pages].reshape(-1)[:count]
        return found

    # --- frames ---

    def begin(
        self, slot: int, seed: int, sampling: Sampling, reference: object | None = None
    ) -> None:
        segment = SimulatedSegment(len(self.segments), slot, seed, sampling, reference)
        self.segments.append(segment)
        self._of_slot[slot] = segment

    def step(self, steps: Sequence[Step]) -> Simulated[Sequence[int]]:
        assert 0 < len({step.slot for step in steps}) == len(steps) <= self.max_batch
        self.batches.append(list(steps))
        ms = next(ms for size, ms in self._cost.steps if size >= len(steps))
        self._spend(ms)
        flight: Simulated[Sequence[int]] = Simulated(
            [self._step(step) for step in steps], self.steps_until, self._clock
        )
        self._under_way(self._steps, flight)
        return flight

    def _step(self, step: Step) -> int:
        segment = self._of_slot[step.slot]
        assert step.frame == len(segment.texts)
        written = self._written[step.slot]
        if step.frame % LOOK_FRAMES == 0:
            found = self._read(step.slot, step.position)
            if step.frame == 0:
                assert found.min() > 0, "the first frame finds somebody's frames"
                segment.context = [self._row_of[stamp] for stamp in found]
                written[: step.position] = found
            same = (found == written[: step.position]).all()
            assert same, "somebody wrote into the slot's pages"
        written[step.position] = self._stamps
        self._write(step.slot, step.position, self._stamps)
        self._stamps -= 1
        segment.texts.append(step.text)
        may_end = step.frame >= MIN_FRAMES
        return self._eos if may_end and self._ends(segment) else step.text % 2048

    # --- sound ---

    def decode(self, pieces: Sequence[Piece]) -> Simulated[Sequence[Pcm]]:
        assert 0 < len({piece.slot for piece in pieces}) == len(pieces)
        self.pieces += pieces
        frames = sum(piece.count for piece in pieces)
        ms = self._cost.codec_ms + (frames - 1) * self._cost.codec_frame_ms
        begins = max(self._clock(), self.steps_until, self.sounds_until)
        self.sounds_until = begins + ms / 1000
        self.steps_until += CODEC_SHARE * ms / 1000
        flight: Simulated[Sequence[Pcm]] = Simulated(
            [self._sound(piece) for piece in pieces], self.sounds_until, self._clock
        )
        self._under_way(self._sounds, flight)
        return flight

    def _sound(self, piece: Piece) -> Pcm:
        segment = self._of_slot[piece.slot]
        assert piece.count in PIECE_FRAMES
        assert piece.first == segment.decoded < len(segment.texts)
        assert piece.first >= len(segment.texts) - self.ring, "the codes were overwritten"
        segment.decoded += piece.count
        pcm = np.zeros((piece.count, FRAME_SAMPLES), np.int16)
        for i, frame in enumerate(range(piece.first, piece.first + piece.count)):
            pcm[i, :2] = -(segment.number % 32768), -frame
            pcm[i, 2] = 0 if self._quiet(segment, frame) else LOUD
        return pcm.reshape(-1)

    def _spend(self, ms: float) -> None:
        self.steps_until = max(self.steps_until, self._clock()) + ms / 1000

    def _under_way(self, flights: "list[Simulated[T]]", flight: "Simulated[T]") -> None:
        flights.append(flight)
        flights[:] = [f for f in flights if not f.taken]
        assert len(flights) <= 2, "more under way than there are buffers for"
