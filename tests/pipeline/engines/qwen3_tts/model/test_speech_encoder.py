"""The speech encoder gives the codes that the published package gives."""

import json
from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("safetensors")

from safetensors.torch import load_file, save_file  # noqa: E402

from offhook.pipeline.engines.qwen3_tts.model import speech_encoder  # noqa: E402
from offhook.pipeline.engines.qwen3_tts.model.speech_encoder import (  # noqa: E402
    SpeechEncoder,
    SpeechEncoderConfig,
)
from offhook.pipeline.speech.errors import EngineError  # noqa: E402
from tests.pipeline.engines.qwen3_tts.model import make_cloning_golden as golden  # noqa: E402

torch.set_num_threads(1)

UNUSED = (
    "encoder.quantizer.acoustic_residual_vector_quantizer.layers.15.codebook.embed_sum",
    "encoder.quantizer.acoustic_residual_vector_quantizer.output_proj.weight",
    "encoder.quantizer.semantic_residual_vector_quantizer.layers.0.codebook.initialized",
    "decoder.pre_conv.conv.weight",
)
"""Some of what a checkpoint has beside what is read."""


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    return write(tmp_path)


def write(folder: Path) -> Path:
    """A small random checkpoint, as far as the encoder goes."""
    (folder / speech_encoder.FOLDER).mkdir()
    config = SpeechEncoderConfig.from_json(golden.CODEC)
    weights = {
        f"encoder.{name}": torch.from_numpy(golden.weight(f"encoder.{name}", *place.shape))
        for name, place in speech_encoder._places(SpeechEncoder(config))
    }
    save_file(weights | {name: torch.ones(2) for name in UNUSED}, weights_of(folder))
    config_of(folder).write_text(json.dumps(golden.CODEC))
    return folder


def weights_of(folder: Path) -> Path:
    return folder / speech_encoder.FOLDER / "model.safetensors"


def config_of(folder: Path) -> Path:
    return folder / speech_encoder.FOLDER / "config.json"


@pytest.mark.parametrize("chunk", [speech_encoder.CHUNK_FRAMES, 3, 1])
@pytest.mark.parametrize("samples", golden.CODED_SAMPLES)
def test_codes_of_the_published_package(
    checkpoint: Path, samples: int, chunk: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(speech_encoder, "CHUNK_FRAMES", chunk)
    encoder = speech_encoder.load(checkpoint, "cpu")
    codes = encoder.encode(torch.from_numpy(golden.sound(samples)))
    assert codes.dtype == torch.int64
    assert codes.shape == (-(-samples // 1920), 16)
    np.testing.assert_array_equal(codes.numpy(), np.load(golden.GOLDEN)[f"codes_{samples}"])


def test_what_comes_later_changes_no_code(checkpoint: Path) -> None:
    encoder = speech_encoder.load(checkpoint, "cpu")
    pcm = torch.from_numpy(golden.sound(1920 * 16))
    whole = encoder.encode(pcm)
    for frames in (1, 7, 15):
        assert torch.equal(encoder.encode(pcm[: 1920 * frames]), whole[:frames])


def test_the_published_configuration() -> None:
    published = golden.ENCODER | {
        "codebook_dim": 256,
        "codebook_size": 2048,
        "head_dim": 64,
        "hidden_size": 512,
        "intermediate_size": 2048,
        "num_attention_heads": 8,
        "num_filters": 64,
        "num_hidden_layers": 8,
        "num_key_value_heads": 8,
        "num_quantizers": 32,
        "sliding_window": 250,
        "vector_quantization_hidden_dimension": 256,
    }
    config = SpeechEncoderConfig.from_json(golden.CODEC | {"encoder_config": published})
    assert config == SpeechEncoderConfig()
    assert config.frame_samples == 1920
    assert config.reach_samples == 2 * 1920


# --- what is wrong ---


def test_missing_tensor_is_named(checkpoint: Path) -> None:
    weights = load_file(weights_of(checkpoint))
    del weights["encoder.encoder.layers.4.block.3.conv.bias"]
    save_file(weights, weights_of(checkpoint))
    with pytest.raises(EngineError, match=r"lacks tensors: encoder\.encoder\.layers\.4\.block\.3"):
        speech_encoder.load(checkpoint, "cpu")


def test_unknown_tensor_is_named(checkpoint: Path) -> None:
    weights = load_file(weights_of(checkpoint))
    name = "encoder.encoder_transformer.layers.0.self_attn.q_proj.bias"
    save_file(weights | {name: torch.ones(2)}, weights_of(checkpoint))
    with pytest.raises(EngineError, match=rf"unknown tensors: {name}"):
        speech_encoder.load(checkpoint, "cpu")


def test_wrong_shape_is_named(checkpoint: Path) -> None:
    weights = load_file(weights_of(checkpoint))
    save_file(weights | {"encoder.downsample.conv.weight": torch.ones(3)}, weights_of(checkpoint))
    with pytest.raises(EngineError, match=r"downsample\.conv\.weight is \[3\].* \[24, 24, 4\]"):
        speech_encoder.load(checkpoint, "cpu")


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"model_type": "qwen3_tts_tokenizer_25hz"}, "'qwen3_tts_tokenizer_25hz' codec"),
        ({"encoder_valid_num_quantizers": 21}, "21 quantizers of 20"),
        ({"encoder_config": {}}, "lacks 'num_attention_heads'"),
        ({"encoder_config": golden.ENCODER | {"hidden_act": "relu"}}, "hidden_act is 'relu'"),
        ({"encoder_config": golden.ENCODER | {"use_causal_conv": False}}, "use_causal_conv is Fal"),
    ],
)
def test_other_codecs_are_refused(checkpoint: Path, changes: dict[str, object], words: str) -> None:
    config_of(checkpoint).write_text(json.dumps(golden.CODEC | changes))
    with pytest.raises(EngineError, match=words):
        speech_encoder.load(checkpoint, "cpu")


def test_a_folder_without_codec(tmp_path: Path) -> None:
    with pytest.raises(EngineError, match="is no checkpoint"):
        speech_encoder.load(tmp_path, "cpu")
