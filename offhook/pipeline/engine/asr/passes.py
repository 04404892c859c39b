"""What is asked of the runner for one stream in one batch: integers and samples, no tensors."""

from dataclasses import dataclass, field

from offhook.media.pcm import Pcm

SECOND_SAMPLES = 16_240
"""Of a second with what its outermost mel frames reach over: 99 hops of 160 and a window of 400."""


@dataclass(frozen=True)
class Second:
    """One second of sound: its number since the utterance's start, its samples, the mel frames that
    count (the rest is padding)."""

    number: int
    pcm: Pcm
    """SECOND_SAMPLES around the second; see models.mel."""
    frames: int


@dataclass(frozen=True)
class Stem:
    """A second whose mel is on the device, to go through the convolutions."""

    number: int
    frames: int
    maximum: float
    """The loudest log-mel from the utterance's start to the end of the window, or to now."""


@dataclass(frozen=True)
class Span:
    """Audio tokens of one window, counted from the utterance's start."""

    window: int
    tokens: int


@dataclass
class Pass:
    """One stream's part of a batch. Stages with nothing in their lists are left out."""

    slot: int
    seconds: list[Second] = field(default_factory=list)
    stems: list[Stem] = field(default_factory=list)
    encode: list[Span] = field(default_factory=list)
    start: int = 0
    """Tokens already in the KV cache and kept; the first token below has this position."""
    before: list[int] = field(default_factory=list)
    """Token ids before the audio: the header, when it is not in the cache yet."""
    audio: list[Span] = field(default_factory=list)
    after: list[int] = field(default_factory=list)
    """Token ids after the audio: end of audio, assistant's turn, text that stands."""
    draft: list[int] = field(default_factory=list)
    """The old hypothesis' other tokens, verified."""
    decode: bool = True
    """Whether text is wanted; else only the cache is filled (`after` and `draft` are empty)."""

    @property
    def tokens(self) -> int:
        heard = sum(span.tokens for span in self.audio)
        return len(self.before) + heard + len(self.after) + len(self.draft)

    @property
    def rows(self) -> int:
        return len(self.draft) + 1 if self.decode else 0


@dataclass(frozen=True)
class Verdict:
    """What a prefill says of a stream: so much of the draft stands, then comes `token`."""

    slot: int
    accepted: int
    token: int
