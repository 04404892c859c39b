"""What the speech engine asks of its runner, and what it tells of its streams: integers and
samples, no tensors.

A stream speaks one or more segments. A segment is one run of the model: the prefix of the voice,
then a frame (80 ms) a step, each with the next token of text, until the model says that it is over.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import NamedTuple, Protocol, TypeVar

from offhook.media.pcm import Pcm

FRAME_SAMPLES = 1920
"""At 24 kHz (media.pcm.RATE_OUT)."""
FRAME_S = 0.08
MAX_TOKENS = 1024
"""Positions of one segment, its prefix included; 16 pages."""
MIN_FRAMES = 2
"""A segment has at least so many frames before its end; the runner does not let the model end it
earlier."""
PIECE_FRAMES = (1, 2, 4, 8)
"""How many frames of a stream go through the codec at once."""

T_co = TypeVar("T_co", covariant=True)


# --- asked of the runner ---


class PromptPosition(NamedTuple):
    """One position of a prompt: the sum of what is not -1."""

    text: int = -1
    """Token whose projected text embedding it is."""
    codec: int = -1
    """Row of the talker's codec embedding."""
    vector: int = -1
    """Row of the prompt's `vectors`."""


@dataclass(frozen=True)
class Prompt:
    """Rows whose keys and values are written at positions `start`.. of the pages assigned to the
    slot; nothing is sampled."""

    slot: int
    start: int
    rows: Sequence[PromptPosition]
    vectors: object | None = None
    """Of the voice, a tensor [n, hidden] on the device. The engine passes it on as it came."""


@dataclass(frozen=True)
class Sampling:
    temperature: float = 0.9
    top_k: int = 50
    penalty: float = 1.05
    """Repetition penalty of the first codebook."""
    predictor_temperature: float = 0.9
    predictor_top_k: int = 50


class Step(NamedTuple):
    """One frame of one slot."""

    slot: int
    text: int
    """Token that goes in with this frame."""
    frame: int
    """From 0 in this segment."""
    position: int
    """In the KV cache."""


class Piece(NamedTuple):
    """Frames of one slot for the codec. What follows a frame that ended its segment may be among
    them: any codes at all, whose sound is thrown away, and after which the slot's next piece has
    `first` 0."""

    slot: int
    first: int
    """In this segment; 0: the codec begins afresh."""
    count: int  # type: ignore[assignment]  # hides tuple.count, which nobody needs
    """One of PIECE_FRAMES."""


class Launched(Protocol[T_co]):
    """Work that the device is doing. `ready` never waits; calling it waits and gives the result,
    once."""

    def ready(self) -> bool: ...

    def __call__(self) -> T_co: ...


class RunnerProtocol(Protocol):
    """What the engine needs of a runner. One thread calls everything; nothing but a `Launched`
    waits for the device.

    Everything up to `step` happens on the device in the order of the calls, so a page or a slot
    may be given to somebody else at once: whatever was launched before writes before. `decode`
    follows the last `step` launched before it, and the `decode`s follow one another; steps launched
    later do not wait for it.
    """

    slots: int
    """Streams at once: slots 1..slots. Slot 0 is scratch."""
    pages: int
    """Of the KV cache, 64 positions each, the scratch page 0 included."""
    ring: int
    """Frames of a slot whose codes are kept for the codec. The engine never runs so far ahead."""
    max_batch: int
    """Steps in one launch, at most."""

    def assign(self, slot: int, pages: Sequence[int]) -> None:
        """These hold the slot's positions, for whatever is launched from now on."""

    def prefill(self, prompts: Sequence[Prompt]) -> None:
        """Write keys and values. No two prompts have the same slot."""

    def copy(self, pages_from: Sequence[int], pages_to: Sequence[int]) -> None:
        """Whole KV pages, each to its counterpart."""

    def begin(
        self, slot: int, seed: int, sampling: Sampling, reference: object | None = None
    ) -> None:
        """The slot's next step is frame 0 of a new segment: no codebook entry has been said yet,
        and the frame before is codec_bos alone. With a `reference` (VoicePrompt.reference) the
        frame before is the reference's last one, and the codec has heard the reference. Costs no
        launch of its own without a reference."""

    def step(self, steps: Sequence[Step]) -> Launched[Sequence[int]]:
        """Make a frame for each; the first code of each comes back, in order, codec_eos for the end
        of a segment. A slot is at most once in it, but may be again in the next before the result
        of this one is known."""

    def decode(self, pieces: Sequence[Piece]) -> Launched[Sequence[Pcm]]:
        """Sound of each: 24 kHz int16, 1920 * count samples, in order; the arrays are the caller's
        to keep. A slot is at most once in it."""


@dataclass(frozen=True)
class SpeechCost:
    """ms that things take on the device, measured when the models were loaded."""

    steps: Sequence[tuple[int, float]]
    """Streams in a step, ascending, and its ms; a step between two takes as long as the larger."""
    codec_ms: float
    """A launch of the codec for one frame."""
    codec_frame_ms: float
    """Each further frame in it."""
    prefill_ms: float
    """A prefill of one row."""
    prefill_row_ms: float
    """Each further row in it."""
    launch_ms: float = 0.3
    """The host's time to launch a step and the codec behind it, for one stream."""
    launch_stream_ms: float = 0.004
    """Each further stream."""


# --- told by the engine ---


class Break(IntEnum):
    """What ends with the tokens of a `write`."""

    WORD = 0
    CLAUSE = 1
    """A comma or the like: a long sentence may be cut here."""
    SENTENCE = 2


class Reason(IntEnum):
    """Why a stream's speech is over."""

    SPOKEN = 0
    """All of its text was said."""
    BUDGET = 1
    """The model did not end; it had more frames than any text of that length needs."""
    SILENCE = 2
    """The model did not end; nothing but silence came after the text."""
    EARLY = 3
    """The model ended again and again before its text did."""


@dataclass(frozen=True, slots=True)
class Spoken:
    """The stream's next samples, 24 kHz."""

    number: int
    pcm: Pcm
    first_frame: int
    """Of the stream, over all its segments."""
    tokens: int
    """Tokens of the stream's text that have gone into the model up to the end of this sound. What
    is heard lags behind: some 3.5 frames are spoken for each."""


@dataclass(frozen=True, slots=True)
class Starved:
    """The stream has no text left that the model has not had, and its end has not been said. It is
    held; the sound of what it had may still come. It goes on with the next `write` or `end`."""

    number: int


@dataclass(frozen=True, slots=True)
class Ended:
    """The last of a stream; not told of one that was cancelled."""

    number: int
    reason: Reason


EngineEvent = Spoken | Starved | Ended
