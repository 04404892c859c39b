"""Sizes of the published Pocket TTS models, and models of these sizes with random weights, for
benchmarks."""

from dataclasses import replace

import torch

from offhook.pipeline.engines.pocket.model.checkpoint import random_network
from offhook.pipeline.engines.pocket.model.config import CONFIGS
from offhook.pipeline.engines.pocket.model.model import PocketModel
from offhook.pipeline.engines.pocket.model.sizes import (
    ConvolutionSizes,
    DecoderSizes,
    FlowSizes,
    LmSizes,
    PocketSizes,
    StageSizes,
)
from offhook.pipeline.engines.pocket.model.tokenizer import PocketTokenizer
from offhook.pipeline.engines.pocket.model.transformer import LayerSizes
from offhook.pipeline.engines.pocket.model.voices import VoiceState
from offhook.pipeline.engines.shared.model.int8 import Instructions
from offhook.pipeline.speech.synthesizer import UnknownVoice

PIECES = 4000
VOICE = "random"
VOICE_POSITIONS = 127
"""Of the voice alba, ten seconds of sound."""


def _decoder(
    filters: int, layers: int, layer: LayerSizes, context: int, kernel: int
) -> DecoderSizes:
    width = layer.width
    first = ConvolutionSizes(width, 8 * filters, kernel)
    stages = tuple(
        StageSizes(
            ConvolutionSizes(2 * wide * filters, wide * filters, 2 * ratio), wide * filters // 2, 3
        )
        for wide, ratio in ((4, 6), (2, 5), (1, 4))
    )
    return DecoderSizes(
        32, 16, layers, layer, context, first, stages, ConvolutionSizes(filters, 1, 3)
    )


_LARGE = PocketSizes(
    LmSizes(
        latent=32,
        vocabulary=PIECES + 1,
        rank=0,
        layers=6,
        layer=LayerSizes(1024, 16, 16, 64, 4096),
        bottleneck=0,
        flow=FlowSizes(512, 6, times=2, frequencies=256, adds_noise=True),
    ),
    _decoder(64, 2, LayerSizes(512, 8, 8, 64, 2048), context=250, kernel=7),
)


def _small(
    layer: LayerSizes, rank: int, flow: FlowSizes, filters: int, decoder_layers: int
) -> PocketSizes:
    return PocketSizes(
        LmSizes(32, PIECES + 1, rank, layers=8, layer=layer, bottleneck=64, flow=flow),
        _decoder(filters, decoder_layers, LayerSizes(128, 4, 4, 32, 384), context=50, kernel=3),
    )


_FLOW = FlowSizes(192, 4, times=0, frequencies=0, adds_noise=False)
SIZES = {
    "english": _LARGE,
    "english_2026-09_24l": replace(_LARGE, lm=_LARGE.lm._replace(layers=24)),
    "english_18m_refl_2026-10": _small(LayerSizes(512, 8, 8, 64, 512), 0, _FLOW, 32, 12),
    "english_7m_refl_2026-10": _small(LayerSizes(224, 8, 2, 64, 224), 64, _FLOW, 32, 12),
    "english_2m_refl_2026-10": _small(
        LayerSizes(112, 3, 1, 64, 96), 32, _FLOW._replace(width=64, adds_noise=True), 24, 4
    ),
}
"""One name of `CONFIGS` for each size."""


class _RandomVoice:
    def __init__(self, sizes: LmSizes, device: torch.device | str) -> None:
        layer = sizes.layer
        shape = (sizes.layers, 2, layer.kv_heads, VOICE_POSITIONS, layer.head_size)
        generator = torch.Generator(device).manual_seed(0)
        state = torch.randn(shape, generator=generator, device=device)
        self._state = VoiceState(VOICE, state)

    @property
    def names(self) -> list[str]:
        return [VOICE]

    @property
    def longest(self) -> int:
        return VOICE_POSITIONS

    def voice(self, name: str) -> VoiceState:
        if name != VOICE:
            raise UnknownVoice(f"no voice {name!r}; there is {VOICE}")
        return self._state


def random_model(
    name: str,
    device: torch.device | str = "cpu",
    int8: Instructions | None = None,
    end: bool = False,
) -> PocketModel:
    """Returns a model of a name in SIZES with random weights at the real cost; its sound is noise.
    Each letter is a token. Its clauses end as late as they may, or with `end` as early."""
    config, sizes = CONFIGS[name], SIZES[name]
    network = random_network(sizes, device, int8)
    threshold = float("-inf") if end else float("inf")
    config = replace(config, end_threshold=threshold)
    voices = _RandomVoice(sizes.lm, device)
    return PocketModel(config, network, PocketTokenizer(config, _encode, _decode, PIECES), voices)


def _encode(text: str) -> list[int]:
    return [ord(character) % PIECES for character in text]


def _decode(tokens: list[int]) -> str:
    return "word " * len(tokens)
