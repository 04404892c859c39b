"""Loads Pocket TTS from a folder of one language as in Kyutai's repository on the hub:
model.safetensors, tokenizer.json or tokenizer.model, embeddings/VOICE.safetensors."""

import re
from collections.abc import Callable
from itertools import count
from pathlib import Path

import torch
from torch import nn

from offhook.media.memory_io import trim_heap
from offhook.pipeline.engines.pocket.model.config import config_of
from offhook.pipeline.engines.pocket.model.model import PocketModel, PocketNetwork
from offhook.pipeline.engines.pocket.model.sizes import PocketSizes
from offhook.pipeline.engines.pocket.model.tokenizer import PocketTokenizer
from offhook.pipeline.engines.pocket.model.voices import Voices
from offhook.pipeline.engines.shared.model import checkpoint
from offhook.pipeline.engines.shared.model.int8 import Instructions
from offhook.pipeline.speech.errors import EngineError

UNUSED = re.compile(
    r"mimi\.(encoder|encoder_transformer|downsample)\..*"
    r"|flow_lm\.(speaker_proj_weight|bos_before_voice|flow_net\.time_embed\.\d\.freqs)"
)
"""Tensors that make voices of recordings, and constants."""


def load_model(
    folder: Path, device: torch.device | str = "cpu", int8: Instructions | None = None
) -> PocketModel:
    """Loads a model for inference in fp32, with the language model's layers in 8 bits if the CPU's
    `int8` instructions are given. Raises EngineError if the folder's name is no model of
    `config.CONFIGS`, or if files or tensors are missing, damaged or do not fit each other."""
    config = config_of(folder)
    sizes = PocketSizes.read(_read_shapes(folder), config)
    tokenizer = PocketTokenizer.load(folder, config)
    if sizes.lm.vocabulary != tokenizer.vocab_size + 1:
        raise EngineError(
            f"the tokenizer in {folder} has {tokenizer.vocab_size} pieces, the model "
            f"{sizes.lm.vocabulary - 1}: they are not of the same model"
        )
    voices = Voices(folder, sizes.lm, config.language, device)
    network = checkpoint.build(lambda: PocketNetwork(sizes), "meta", torch.float32)
    wanted = {f"{name}.{of}" for name, part in network.parts() for of, _ in part.named_parameters()}
    checkpoint.check_names(folder, wanted, ours=lambda name: not UNUSED.fullmatch(name))

    def read(name: str, part: nn.Module) -> None:
        places = {f"{name}.{of_part}": place for of_part, place in part.named_parameters()}
        checkpoint.fill(folder, places, ours=lambda other: False)

    _make(network, device, int8, read)
    return PocketModel(config, network, tokenizer, voices)


def random_network(
    sizes: PocketSizes,
    device: torch.device | str = "cpu",
    int8: Instructions | None = None,
) -> PocketNetwork:
    """Returns a network with random weights at the real cost, for benchmarks; its sound is
    noise."""
    network = checkpoint.build(lambda: PocketNetwork(sizes), "meta", torch.float32)
    seeds = count()

    def draw(_: str, part: nn.Module) -> None:
        for vector in part.parameters():
            vector.fill_(1.0)
        checkpoint.randomise(part, device, next(seeds))

    _make(network, device, int8, draw)
    return network


def _read_shapes(folder: Path) -> dict[str, list[int]]:
    sources, shapes = checkpoint.find_tensors(folder), {}
    for path in sorted(set(sources.values())):
        with checkpoint.opened(path) as file:
            names = set(file.keys())
            shapes.update({name: file.get_slice(name).get_shape() for name in names})
    return shapes


def _make(
    network: PocketNetwork,
    device: torch.device | str,
    int8: Instructions | None,
    fill: Callable[[str, nn.Module], None],
) -> None:
    """Fills and prepares a network part by part, so that no more than one part is in memory
    twice."""
    for name, part in network.parts():
        part.to_empty(device=device)
        fill(name, part)
        network.prepare(part, int8)
        trim_heap()  # of the part as it was read
