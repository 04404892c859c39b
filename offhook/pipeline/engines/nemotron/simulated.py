"""A simulated Nemotron with random weights, for benchmarks.

Random weights emit labels at no sensible rate. All the work is done for real, including the argmax,
and then the label is replaced by one from a script, drawn once at the rate of English speech. The
emitted labels enter the prediction network as real ones do.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from offhook.pipeline.engines.nemotron.model.model import Nemotron, NemotronConfig
from offhook.pipeline.engines.nemotron.model.rnnt import likeliest
from offhook.pipeline.engines.nemotron.runner import NemotronRunner

FRAMES = 4096
"""Length of the script in frames, after which it repeats."""
FRAMES_PER_SECOND = 12.5


@dataclass(frozen=True)
class Speech:
    """The speaking rate that the script simulates."""

    labels_per_second: float = 4.5
    """English has about 3 words per second of 1.5 labels each."""
    first_frame: int = 1
    """First frame of an utterance with a label; 1 means after the first 80 ms."""


class SimulatedLabels:
    """A tokenizer for the simulated model: each label is a word."""

    def text(self, ids: Sequence[int]) -> str:
        return " ".join(f"w{id}" for id in ids)

    def begins_word(self, id: int) -> bool:
        return True

    def language(self, ids: Sequence[int]) -> str | None:
        return None


class Script:
    """The scripted labels, a `Pick` of `nemotron.model.rnnt`."""

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
        # never taken, but the real label must be computed
        return torch.where(real < 0, real, label)


class SimulatedNemotron(NemotronRunner):
    """A runner with scripted labels at the real cost; without a script, labels come from the random
    weights."""

    def __init__(
        self, model: Nemotron, streams: int, speech: Speech | None, graphs: bool = True
    ) -> None:
        device = next(model.parameters()).device
        pick = Script(model.config, speech, device) if speech else likeliest
        super().__init__(model, streams, pick, graphs)
