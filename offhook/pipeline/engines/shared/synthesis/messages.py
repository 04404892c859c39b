"""Messages between the TTS engine, its runner and its streams: integers and samples, no tensors.

A stream speaks one or more segments. A segment is one run of the model: the prefix of the voice,
then one 80 ms frame per step, each with the next text token, until the model ends it.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import NamedTuple, Protocol, TypeVar

from offhook.media.pcm import Pcm

FRAME_SAMPLES = 1920
"""Samples of a frame at 24 kHz (media.pcm.RATE_OUT)."""
FRAME_S = 0.08
MAX_TOKENS = 1024
"""Maximum positions of one segment including its prefix: 16 pages."""
MIN_FRAMES = 2
"""Minimum frames of a segment; the runner does not let the model end it earlier."""
PIECE_FRAMES = (1, 2, 4, 8)
"""Possible numbers of frames of a stream in one codec launch."""

T_co = TypeVar("T_co", covariant=True)


# --- to the runner ---


class PromptPosition(NamedTuple):
    """One prompt position: the sum of the embeddings whose index is not -1."""

    text: int = -1
    """Text token, embedded and projected."""
    codec: int = -1
    """Row of the talker's codec embedding."""
    vector: int = -1
    """Row of the prompt's `vectors`."""


@dataclass(frozen=True)
class Prompt:
    """Prompt rows to prefill at positions `start`.. of the slot's pages; nothing is sampled."""

    slot: int
    start: int
    rows: Sequence[PromptPosition]
    vectors: object | None = None
    """The voice's vectors, a tensor [n, hidden] on the device, opaque to the engine."""


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
    """Text token fed with this frame."""
    frame: int
    """Frame number in the segment, from 0."""
    position: int
    """Position in the KV cache."""


class Piece(NamedTuple):
    """Frames of one slot for the codec. It may include frames after the end of the segment, with
    arbitrary codes; their audio is discarded, and the slot's next piece has `first` 0."""

    slot: int
    first: int
    """First frame in the segment; 0 resets the codec state."""
    count: int  # type: ignore[assignment]  # hides tuple.count, which nobody needs
    """Number of frames, one of PIECE_FRAMES."""


class Launched(Protocol[T_co]):
    """Work in flight on the device. `ready` never blocks; calling the object blocks and returns the
    result, once."""

    def ready(self) -> bool: ...

    def __call__(self) -> T_co: ...


class RunnerProtocol(Protocol):
    """The model runner's interface. One thread calls everything; only a `Launched` waits for the
    device.

    Everything up to `step` runs on the device in call order, so a page or slot may be reassigned at
    once: earlier launches have written before. A `decode` follows the last `step` launched before
    it and the previous `decode`; later steps do not wait for it.
    """

    slots: int
    """Streams at once, in slots 1..slots; slot 0 is scratch."""
    pages: int
    """KV pages of 64 positions, including scratch page 0."""
    ring: int
    """Frames per slot whose codes are kept for the codec; the engine never runs further ahead."""
    max_batch: int
    """Maximum steps in one launch."""

    def assign(self, slot: int, pages: Sequence[int]) -> None:
        """Assigns the KV pages of a slot for everything launched from now on."""

    def prefill(self, prompts: Sequence[Prompt]) -> None:
        """Writes keys and values of the prompts, which must have different slots."""

    def copy(self, pages_from: Sequence[int], pages_to: Sequence[int]) -> None:
        """Copies whole KV pages."""

    def begin(
        self, slot: int, seed: int, sampling: Sampling, reference: object | None = None
    ) -> None:
        """Starts a new segment: the slot's next step is frame 0, with codec_bos as the previous
        frame and no repetition history. With a `reference` (VoicePrompt.reference) the previous
        frame is the reference's last one and the codec state includes the reference; only then does
        it launch anything."""

    def step(self, steps: Sequence[Step]) -> Launched[Sequence[int]]:
        """Computes one frame for each slot and returns the first codes in order, codec_eos for the
        end of a segment. A slot occurs at most once, but may be in the next step before this result
        is known."""

    def decode(self, pieces: Sequence[Piece]) -> Launched[Sequence[Pcm]]:
        """Decodes each piece to 1920 * count samples of 24 kHz int16, in order. A slot occurs at
        most once; the caller owns the arrays."""


@dataclass(frozen=True)
class SpeechCost:
    """Durations in ms on the device, measured at load time."""

    steps: Sequence[tuple[int, float]]
    """Pairs (streams in a step, ms), ascending; sizes in between cost as much as the next
    larger."""
    codec_ms: float
    """One codec launch with one frame."""
    codec_frame_ms: float
    """Each further frame of a codec launch."""
    prefill_ms: float
    """A prefill of one row."""
    prefill_row_ms: float
    """Each further row of a prefill."""
    launch_ms: float = 0.3
    """Host time to launch a step and its codec launch for one stream."""
    launch_stream_ms: float = 0.004
    """Host time for each further stream."""


# --- from the engine ---


class Break(IntEnum):
    """The boundary after the tokens of a `write`."""

    WORD = 0
    CLAUSE = 1
    """A comma or similar; a long sentence may be split here."""
    SENTENCE = 2


class Reason(IntEnum):
    """Why a stream ended."""

    SPOKEN = 0
    """All of its text was spoken."""
    BUDGET = 1
    """The model did not stop within the frame budget of the text."""
    SILENCE = 2
    """The model did not stop; after the text only silence followed."""
    EARLY = 3
    """The model repeatedly stopped before the end of the text."""


class Spoken(NamedTuple):
    """The stream's next samples, 24 kHz."""

    number: int
    pcm: Pcm
    first_frame: int
    """First frame, counted over all segments of the stream."""
    tokens: int
    """Text tokens fed to the model by the end of this audio. Speech lags behind by about 3.5 frames
    per token."""


class Starved(NamedTuple):
    """The model has consumed all text so far and the stream has not ended. The stream is suspended
    until the next `write` or `end`; audio of earlier text may still follow."""

    number: int


class Ended(NamedTuple):
    """The last event of a stream; not sent for a cancelled one."""

    number: int
    reason: Reason


EngineEvent = Spoken | Starved | Ended
