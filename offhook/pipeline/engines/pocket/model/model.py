"""Pocket TTS in plain torch: a language model of latents, and a decoder from them to sound.

Parameters are named as in Kyutai's checkpoints. Load and `prepare` one of `PocketNetwork.parts`
after the other: so a part is in memory in its final form before the next is read.
"""

from collections.abc import Iterator, Sequence
from typing import Protocol

import torch
from torch import nn

from offhook.pipeline.engines.pocket.model.config import PocketConfig
from offhook.pipeline.engines.pocket.model.decoder import Decoder
from offhook.pipeline.engines.pocket.model.flow_lm import FlowHead, FlowLm
from offhook.pipeline.engines.pocket.model.sizes import PocketSizes
from offhook.pipeline.engines.pocket.model.tokenizer import PocketTokenizer
from offhook.pipeline.engines.pocket.model.transformer import Layer
from offhook.pipeline.engines.pocket.model.voices import VoiceState
from offhook.pipeline.engines.shared.model.int8 import Instructions, quantize
from offhook.pipeline.engines.shared.model.packed import pack, packs


class PocketNetwork(nn.Module):
    """The weights. Only the language model's layers can be in 8 bits, if they are large enough to
    gain from it: the errors of the flow head and the decoder would be heard at once."""

    def __init__(self, sizes: PocketSizes) -> None:
        super().__init__()
        self.sizes = sizes
        self.flow_lm = FlowLm(sizes.lm)
        self.mimi = Decoder(sizes.decoder)

    def parts(self) -> Iterator[tuple[str, nn.Module]]:
        """Yields all parts with the prefix of their parameters' names."""
        lm = self.flow_lm
        yield "flow_lm", lm.latents
        for i, layer in enumerate(lm.transformer.layers):
            yield f"flow_lm.transformer.layers.{i}", layer
        for name, part in lm.named_children():
            if part not in (lm.latents, lm.transformer):
                yield f"flow_lm.{name}", part
        yield "mimi", self.mimi

    @torch.no_grad()
    def prepare(self, part: nn.Module, int8: Instructions | None) -> None:
        """Derives what inference uses of a part, in its order in `parts`."""
        match part:
            case Layer():
                if int8 is not None:
                    quantize(part, int8)
            case FlowHead():
                part.prepare()
            case Decoder():
                part.prepare(self.flow_lm.latents.emb_mean, self.flow_lm.latents.emb_std)
                if packs(self.flow_lm.latents.bos_emb.device):
                    pack(self)


class VoiceSource(Protocol):
    """Voices of a model; `voices.Voices` implements it."""

    @property
    def names(self) -> list[str]: ...

    @property
    def longest(self) -> int: ...

    def voice(self, name: str) -> VoiceState: ...


class PocketModel:
    """A model with its tokenizer and voices."""

    def __init__(
        self,
        config: PocketConfig,
        network: PocketNetwork,
        tokenizer: PocketTokenizer,
        voices: VoiceSource,
    ) -> None:
        self.config, self.network = config, network
        self.tokenizer = tokenizer
        self._voices = voices

    @property
    def device(self) -> torch.device:
        return self.network.flow_lm.latents.bos_emb.device

    @property
    def voices(self) -> Sequence[str]:
        """Names of the voices, the default one first."""
        return self._voices.names

    @property
    def longest_voice(self) -> int:
        """Positions of the voice that takes most."""
        return self._voices.longest

    def voice(self, name: str = "") -> VoiceState:
        """Returns a voice, the default one if the name is empty. Raises UnknownVoice, and
        EngineError if its file is damaged or of another model."""
        return self._voices.voice(name or self.voices[0])
