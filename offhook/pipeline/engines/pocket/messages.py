"""Messages between the engine of Pocket TTS, its runner and its streams: integers and samples, no
tensors."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol, TypeVar

from offhook.media.pcm import Pcm
from offhook.pipeline.engines.shared.synthesis.messages import Ended


class Clause(NamedTuple):
    """Text that the model speaks in one run."""

    tokens: list[int]
    pause_ms: float
    """Pause after it, if another follows, at normal speed."""


class FrameProtocol(Protocol):
    """80 ms of a row."""

    @property
    def pcm(self) -> Pcm:
        """1920 samples of 24 kHz."""

    @property
    def ended(self) -> bool:
        """Whether it is the last of its clause."""


V_contra = TypeVar("V_contra", contravariant=True)


class RunnerProtocol(Protocol[V_contra]):
    """Runs the model for rows 0..rows-1, of which each has the state of one clause."""

    @property
    def rows(self) -> int: ...

    def begin(
        self, row: int, voice: V_contra, tokens: list[int], seed: int, temperature: float
    ) -> None:
        """Begins a clause in a row, whatever was there before; the runner ends it after
        `frame_limit` frames at the latest."""

    def step(self, rows: Sequence[int]) -> Sequence[FrameProtocol]:
        """Advances these rows, each of which has begun and not ended, by one frame."""


@dataclass(frozen=True, slots=True)
class ClauseSound:
    """The next samples of a stream's clause, 24 kHz."""

    number: int
    pcm: Pcm
    tokens: int
    """Tokens of all clauses of the stream that have begun."""
    last: bool
    """Whether the clause ends with it."""
    gain: float
    """Gain of the voice at its end."""


PocketEvent = ClauseSound | Ended
