"""A simulated Qwen3-ASR with random weights, for benchmarks.

Random weights never repeat a text and never end it. All the work is done for real, including the
argmax over the vocabulary, and then the token is replaced by one from a script: a fixed number per
second of audio, of which the last few change with the next update.
"""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from offhook.pipeline.engines.qwen3_asr.model.model import Qwen3Asr
from offhook.pipeline.engines.qwen3_asr.passes import Pass, Verdict
from offhook.pipeline.engines.qwen3_asr.runner import (
    SECOND_TOKENS,
    WINDOW_TOKENS,
    Runner,
    encoded_rows,
)
from offhook.pipeline.engines.shared.graphs import on

SCRIPT_TOKENS = 4096
"""Scripted tokens per utterance; none occurs twice."""


@dataclass(frozen=True)
class Simulation:
    """How the simulated model transcribes."""

    tokens_per_second: float = 4.5
    """Tokens per second of speech; English has about 3 words of 1.4 tokens."""
    revised: int = 1
    """Trailing tokens that the next update changes."""


class WordTokenizer:
    """A tokenizer for the simulated model: every word is one token, control tokens keep their
    published ids."""

    im_start, im_end, audio_start, audio_end, asr_text = 151644, 151645, 151669, 151670, 151704

    def __init__(self) -> None:
        self._ids: dict[str, int] = {}
        self._words = {self.asr_text: "<asr_text>"}

    def encode(self, text: str) -> list[int]:
        ids = []
        for word in re.findall(r"\n|[^ \n]+", text):
            if word not in self._ids:
                self._ids[word] = 10 + len(self._ids)
                self._words[self._ids[word]] = f" {word}"
            ids.append(self._ids[word])
        return ids

    def decode(self, ids: Sequence[int]) -> str:
        return "".join(self._words.get(i) or f" w{i}" for i in ids)


class SimulatedRunner(Runner):
    """A runner with scripted tokens at the real cost."""

    def __init__(
        self,
        model: Qwen3Asr,
        streams: int,
        pages: int,
        words: WordTokenizer,
        simulation: Simulation,
        graphs: bool = True,
    ) -> None:
        super().__init__(model, streams, pages, self._say, graphs)
        self._simulation = simulation
        self._tail = len(words.encode("\nassistant\n")) + 3
        names = words.encode("language English")
        self._header = [*names, words.asr_text]
        generator = torch.Generator().manual_seed(0)
        ids = torch.randperm(140_000, generator=generator)[: 2 * SCRIPT_TOKENS] + 1000
        self._text, other = ids.view(2, SCRIPT_TOKENS)
        self._text[: len(self._header)] = torch.tensor(self._header)
        self._index = {int(t): i for i, t in enumerate(self._text.tolist())}
        self._index |= {int(t): i for i, t in enumerate(other.tolist())}
        self._sure_text, self._other_text = self._text.to(self.device), other.to(self.device)
        # Per slot: text start, its script index, first unstable token, end.
        self._plan = torch.zeros(streams + 1, 4, dtype=torch.int64, device=self.device)

    def prefill(self, passes: Sequence[Pass]) -> Callable[[], list[Verdict]]:
        rows = []
        for p in passes:
            text = p.after[self._tail :] + p.draft
            begin = p.start + p.tokens - len(text)
            first = self._index.get(text[0], 0) if text else 0
            if text and text[0] == self._header[0] and len(text) > len(self._header):
                first = self._index[text[len(self._header)]] - len(self._header)
            heard = p.audio[-1].window * WINDOW_TOKENS + p.audio[-1].tokens if p.audio else 0
            said = len(self._header) + int(
                heard / SECOND_TOKENS * self._simulation.tokens_per_second
            )
            rows.append([begin, first, said - self._simulation.revised, said])
        with on(self._speak), torch.inference_mode():
            slots = torch.tensor([p.slot for p in passes], device=self.device)
            self._plan[slots] = torch.tensor(rows, device=self.device)
        return super().prefill(passes)

    def _say(self, real: Tensor, slots: Tensor, positions: Tensor) -> Tensor:
        begin, first, sure, end = self._plan[slots].unbind(-1)
        index = (positions + 1 - begin + first).clamp(0, SCRIPT_TOKENS - 1)
        said = torch.where(index < sure, self._sure_text[index], self._other_text[index])
        said = torch.where(index < end, said, WordTokenizer.im_end)
        return torch.where(real < 0, real, said)

    def outputs(self, passes: Sequence[Pass]) -> tuple[Tensor, Tensor]:
        """Returns what the last encoder and prefill left on the device for the passes, as fp32; for
        tests."""
        rows = np.concatenate([encoded_rows(p.slot, span) for p in passes for span in p.encode])
        heard = self._heard[torch.from_numpy(rows).to(self.device)]
        read = self._read[: sum(p.tokens for p in passes)]
        return heard.float(), read.float().clone()
