"""For benchmarks: a Nemotron with random weights that seems to transcribe.

Random weights say labels at no sensible rate. Here all the work is done for real, the likeliest
label included, and then the label is replaced by one of a script: how many are said at which frame
of an utterance is drawn once, at the rate of English speech. The labels that are said go into the
prediction network as real ones do.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from offhook.pipeline.engine.nemotron.runner import NemotronRunner
from offhook.pipeline.models.nemotron.model import Nemotron, NemotronConfig
from offhook.pipeline.models.nemotron.rnnt import likeliest

FRAMES = 4096
"""After so many the script begins again."""
FRAMES_PER_SECOND = 12.5


@dataclass(frozen=True)
class Speech:
    """How people seem to speak."""

    labels_per_second: float = 4.5
    """English: about 3 words, 1.5 labels each."""
    first_frame: int = 1
    """Of an utterance, the first in which something is said: 1 has all of the first 80 ms."""


class SimulatedLabels:
    """A tokenizer for a simulated model: each label is a word."""

    def text(self, ids: Sequence[int]) -> str:
        return " ".join(f"w{id}" for id in ids)

    def begins_word(self, id: int) -> bool:
        return True

    def language(self, ids: Sequence[int]) -> str | None:
        return None


class Script:
    """Which labels are said; a `Pick` of `rnnt`."""

    def __init__(self, config: NemotronConfig, speech: Speech, device: torch.device) -> None:
        generator = torch.Generator().manual_seed(0)
        rate = torch.full((FRAMES,), speech.labels_per_second / FRAMES_PER_SECOND)
        counts = torch.poisson(rate, generator=generator).long()
        counts[: speech.first_frame] = 0
        counts[speech.first_frame] = 1
        labels = torch.randint(0, config.blank, (FRAMES,), generator=generator)
        self._counts, self._labels = counts.to(device), labels.to(device)
        self._blank = config.blank

    def __call__(self, real: Tensor, position: Tensor, at: Tensor, said: Tensor) -> Tensor:
        here = (position + at) % FRAMES
        label = torch.where(said < self._counts[here], self._labels[here], self._blank)
        return torch.where(real < 0, real, label)  # never, but the real one must be there


class SimulatedNemotron(NemotronRunner):
    """A runner whose labels come from a script, at the cost of the real ones; without one they are
    those of the random weights."""

    def __init__(
        self, model: Nemotron, streams: int, speech: Speech | None, graphs: bool = True
    ) -> None:
        device = next(model.parameters()).device
        pick = Script(model.config, speech, device) if speech else likeliest
        super().__init__(model, streams, pick, graphs)
