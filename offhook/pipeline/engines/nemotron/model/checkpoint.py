"""Loads Nemotron streaming from a checkpoint (see `hub_io.find`) in the transformers layout:
config.json, safetensors, processor_config.json.

The repositories also contain the weights as a .nemo file, which is neither downloaded nor opened,
because it holds pickles.
"""

import re
from collections.abc import Callable, Mapping
from itertools import count
from pathlib import Path
from typing import Any

import torch
from torch import nn

from offhook.media.memory_io import trim_heap
from offhook.pipeline.engines.nemotron.model.mel import FFT, HOP, PREEMPHASIS, WINDOW
from offhook.pipeline.engines.nemotron.model.model import EncoderConfig, Nemotron, NemotronConfig
from offhook.pipeline.engines.shared.model import checkpoint
from offhook.pipeline.engines.shared.model.instructions import Instructions
from offhook.pipeline.engines.shared.model.int8 import quantize
from offhook.pipeline.engines.shared.qwen3.config import require
from offhook.pipeline.speech.errors import EngineError

NEMOTRON_0_6B = NemotronConfig()
"""Configuration of nvidia/nemotron-speech-streaming-en-0.6b."""
NEMOTRON_3_5_0_6B = NemotronConfig(
    EncoderConfig(left_context=56),
    vocab_size=13_088,
    blank=13_087,
    lookaheads=(0, 3, 6, 13),
    prompts=128,
    prompt_size=2048,
    default_prompt=101,
)
"""Configuration of nvidia/nemotron-3.5-asr-streaming-0.6b, except for the languages."""
ENGLISH = "nemotron_asr_streaming"
MULTILINGUAL = "nemotron3_5_asr"
PROCESSOR = "processor_config.json"
SOUND = {
    "sampling_rate": 16_000,
    "n_fft": FFT,
    "win_length": WINDOW,
    "hop_length": HOP,
    "preemphasis": PREEMPHASIS,
}
"""Required audio settings (see `mel`), by their names in processor_config.json."""
LOCALE = re.compile("([a-z]{2,3})(-[A-Z]{2})?")
NORWEGIAN = {"no": "nb"}
"""A macrolanguage and the language used for it: the prompt "no" was not trained, those of nb-NO and
nn-NO were."""


def read_config(folder: Path) -> NemotronConfig:
    """Reads the configuration. Raises EngineError if config.json or processor_config.json is
    missing, damaged, or of another model."""
    if not (folder / "config.json").is_file() and (nemo := sorted(folder.glob("*.nemo"))):
        raise EngineError(
            f"{folder} has only {nemo[0].name}, which is not opened: name the hub's repository "
            "instead of the folder, or put its config.json, model.safetensors, tokenizer.json and "
            f"{PROCESSOR} there"
        )
    config = checkpoint.read_json(folder / "config.json")
    _check_kind(config)
    processor = checkpoint.read_json(folder / PROCESSOR)
    try:
        return _config(config, processor)
    except KeyError as error:
        raise EngineError(f"the configuration in {folder} lacks {error.args[0]!r}") from error


def load_model(
    folder: Path, device: torch.device | str, dtype: torch.dtype, int8: Instructions | None = None
) -> Nemotron:
    """Loads a model for inference, with linear layers in 8 bits if the CPU's `int8` instructions
    are given. Raises EngineError naming the tensors if the checkpoint is incomplete or does not
    match config.json."""
    config = read_config(folder)
    model = checkpoint.build(lambda: Nemotron(config), "meta", dtype)
    checkpoint.check_names(folder, {name for name, _ in model.named_parameters()})

    def read(name: str, part: nn.Module) -> None:
        places = {f"{name}.{of_part}": place for of_part, place in part.named_parameters()}
        checkpoint.fill(folder, places, ours=lambda other: False)

    _make(model, device, int8, read)
    return model


def random_model(
    config: NemotronConfig,
    device: torch.device | str,
    dtype: torch.dtype,
    seed: int = 0,
    int8: Instructions | None = None,
) -> Nemotron:
    """Returns a model with random weights at the real cost, for benchmarks; its output is
    meaningless."""
    model = checkpoint.build(lambda: Nemotron(config), "meta", dtype)
    seeds = count(seed * 1000)

    def draw(_: str, part: nn.Module) -> None:
        for norm in part.modules():
            if isinstance(norm, nn.LayerNorm):
                norm.reset_parameters()
        checkpoint.randomise(part, device, next(seeds))

    _make(model, device, int8, draw)
    return model


def _make(
    model: Nemotron,
    device: torch.device | str,
    int8: Instructions | None,
    fill: Callable[[str, nn.Module], None],
) -> None:
    """Fills, prepares and quantizes a model part by part, so that no more than one part is in
    memory twice."""
    for name, part in model.parts():
        part.to_empty(device=device)
        fill(name, part)
        model.prepare(part)
        if int8 is not None:
            quantize(part, int8)
            trim_heap()  # of the part as it was read
    if int8 is not None:
        quantize(model, int8)  # the parts that are layers themselves


def _check_kind(config: Mapping[str, Any]) -> None:
    """Raises EngineError."""
    kind = str(config.get("model_type"))
    if kind in (ENGLISH, MULTILINGUAL):
        return
    hint = ""
    if kind.startswith("qwen3_asr"):
        hint = "; the engine qwen3-asr reads it"
    elif kind.startswith("parakeet"):
        hint = ": Parakeet hears whole recordings, and streams nothing"
    raise EngineError(f"config.json is of a {kind!r} model, not of Nemotron streaming{hint}")


def _config(config: Mapping[str, Any], processor: Mapping[str, Any]) -> NemotronConfig:
    """Raises EngineError, and KeyError for what is missing."""
    encoder = _encoder_config(config["encoder_config"])
    require(config, "hidden_act", "relu")
    prompts = config["num_prompts"] if config["model_type"] == MULTILINGUAL else 0
    return NemotronConfig(
        encoder=encoder,
        vocab_size=config["vocab_size"],
        blank=config["blank_token_id"],
        predictor_size=config["decoder_hidden_size"],
        predictor_layers=config["num_decoder_layers"],
        max_symbols=config["max_symbols_per_step"],
        lookaheads=_lookaheads(processor["supported_num_lookahead_tokens"], encoder),
        prompts=prompts,
        prompt_size=config["prompt_intermediate_size"] if prompts else 0,
        default_prompt=config["default_prompt_id"] if prompts else 0,
        languages=_languages(processor["prompt_dictionary"], prompts) if prompts else {},
        mel_in_bf16=_mel_in_bf16(processor["feature_extractor"], encoder),
    )


def _encoder_config(c: Mapping[str, Any]) -> EncoderConfig:
    require(c, "hidden_act", "silu")
    require(c, "subsampling_factor", 8)
    require(c, "subsampling_conv_kernel_size", 3)
    require(c, "subsampling_conv_stride", 2)
    if c["hidden_size"] % c["num_attention_heads"]:
        raise EngineError(
            f"config.json: {c['num_attention_heads']} heads do not share {c['hidden_size']} "
            "channels evenly"
        )
    return EncoderConfig(
        hidden_size=c["hidden_size"],
        layers=c["num_hidden_layers"],
        heads=c["num_attention_heads"],
        ffn=c["intermediate_size"],
        conv_kernel=c["conv_kernel_size"],
        mel_bins=c["num_mel_bins"],
        subsampling_channels=c["subsampling_conv_channels"],
        left_context=c["sliding_window"] - 1,
        attention_bias=c["attention_bias"],
        convolution_bias=c["convolution_bias"],
        scale_input=c["scale_input"],
    )


def _lookaheads(trained: Any, encoder: EncoderConfig) -> tuple[int, ...]:
    """Returns the trained lookaheads. Frames see whole chunks of the past, so chunks must divide
    the left context."""
    frames = sorted(set(trained))
    if not frames or frames[0] < 0:
        raise EngineError(f"{PROCESSOR}: supported_num_lookahead_tokens is {trained}")
    for lookahead in frames:
        if encoder.left_context % (lookahead + 1):
            raise EngineError(
                f"{PROCESSOR}: chunks of {lookahead + 1} frames do not fill a left context of "
                f"{encoder.left_context}"
            )
    return tuple(frames)


def _languages(prompts: Mapping[str, int], count: int) -> dict[str, int]:
    """Maps language tags ("pt") and regions with another prompt ("pt-BR") to prompts. If only
    regions are listed, the first one represents the language. Other names are ignored."""
    found: dict[str, int] = {}
    for name, prompt in sorted(prompts.items(), key=lambda item: ("-" in item[0], item[1])):
        if not 0 <= prompt < count:
            raise EngineError(f"{PROCESSOR}: the prompt of {name!r} is {prompt}, of {count}")
        if (locale := LOCALE.fullmatch(name)) and found.setdefault(locale[1], prompt) != prompt:
            found[name] = prompt
    for language, written in NORWEGIAN.items():
        if written in found:
            found[language] = found[written]
    return found


def _mel_in_bf16(c: Mapping[str, Any], encoder: EncoderConfig) -> bool:
    require(c, "feature_size", encoder.mel_bins, PROCESSOR)
    for name, value in SOUND.items():
        require(c, name, value, PROCESSOR)
    rounded: bool = c.get("mel_filters_dtype") == "bfloat16"
    return rounded
