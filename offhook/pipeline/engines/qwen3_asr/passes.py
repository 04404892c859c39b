"""What the runner computes for one stream in one batch, as integers and samples without tensors."""

from dataclasses import dataclass, field
from typing import NamedTuple

from offhook.media.pcm import Pcm

SECOND_SAMPLES = 16_240
"""Samples of a second including the reach of its outermost mel frames: 99 hops of 160 plus a window
of 400."""


class Second(NamedTuple):
    """One second of audio: its number in the utterance, its samples, and its valid mel frames (the
    rest is padding)."""

    number: int
    pcm: Pcm
    """Up to SECOND_SAMPLES samples around the second, then silence; see `shared.model.mel`."""
    frames: int


class Stem(NamedTuple):
    """A second whose mel is on the device and is to pass through the convolutional stem."""

    number: int
    frames: int
    maximum: float
    """Maximum log-mel value from the utterance's start to the end of the window, or to now."""


class Span(NamedTuple):
    """A range of audio tokens within one window, counted from the utterance's start."""

    window: int
    tokens: int


@dataclass
class Pass:
    """One stream's part of a batch. Stages whose lists are empty are skipped."""

    slot: int
    seconds: list[Second] = field(default_factory=list)
    stems: list[Stem] = field(default_factory=list)
    encode: list[Span] = field(default_factory=list)
    start: int = 0
    """Tokens already in the KV cache; the first token below has this position."""
    before: list[int] = field(default_factory=list)
    """Token ids before the audio: the header, if it is not cached yet."""
    audio: list[Span] = field(default_factory=list)
    after: list[int] = field(default_factory=list)
    """Token ids after the audio: end of audio, the assistant's turn and the stable text."""
    draft: list[int] = field(default_factory=list)
    """The remaining tokens of the previous hypothesis, to be verified."""
    decode: bool = True
    """Whether to decode text; otherwise only the cache is filled and `after` and `draft` are
    empty."""

    @property
    def tokens(self) -> int:
        text = len(self.before) + len(self.after) + len(self.draft)
        return text + sum([span.tokens for span in self.audio])

    @property
    def rows(self) -> int:
        return len(self.draft) + 1 if self.decode else 0


class Verdict(NamedTuple):
    """The result of a prefill: how many draft tokens were accepted, and the next token."""

    slot: int
    accepted: int
    token: int
