"""The speaker encoder gives the vectors that the published package gives."""

import json
from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("safetensors")

from safetensors.torch import load_file, save_file  # noqa: E402

from offhook.pipeline.engines.qwen3_tts.model import speaker_encoder  # noqa: E402
from offhook.pipeline.engines.qwen3_tts.model.speaker_encoder import (  # noqa: E402
    LogMel,
    SpeakerEncoder,
    SpeakerEncoderConfig,
)
from offhook.pipeline.speech.errors import EngineError  # noqa: E402
from tests.pipeline.engines.qwen3_tts.model import make_cloning_golden as golden  # noqa: E402

torch.set_num_threads(1)

CONFIG = {
    "tts_model_type": "base",
    "speaker_encoder_config": golden.SPEAKER,
    "talker_config": {"hidden_size": golden.SPEAKER["enc_dim"]},
}


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    return write(tmp_path)


def write(folder: Path) -> Path:
    """A small random checkpoint, as far as the speaker encoder goes."""
    weights = {
        f"speaker_encoder.{name}": torch.from_numpy(
            golden.weight(f"speaker_encoder.{name}", *place.shape)
        )
        for name, place in SpeakerEncoder(SpeakerEncoderConfig.from_json(CONFIG)).named_parameters()
    }
    save_file(weights | {"talker.codec_head.weight": torch.ones(2)}, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps(CONFIG))
    return folder


@pytest.mark.parametrize("samples", golden.EMBEDDED_SAMPLES)
def test_vector_of_the_published_package(checkpoint: Path, samples: int) -> None:
    encoder = speaker_encoder.load(checkpoint, "cpu")
    vector = encoder.embed(torch.from_numpy(golden.sound(samples)))
    assert vector.dtype == torch.float32
    wanted = np.load(golden.GOLDEN)[f"embedding_{samples}"]
    assert np.ptp(wanted) > 1
    np.testing.assert_allclose(vector.numpy(), wanted, rtol=0, atol=1e-5)


@pytest.mark.parametrize("samples", golden.EMBEDDED_SAMPLES)
def test_mel_of_the_published_package(samples: int) -> None:
    """librosa's filters and torch.stft."""
    mel = LogMel(128, "cpu")(torch.from_numpy(golden.sound(samples)))
    assert mel.shape == (128, samples // 256)
    wanted = np.load(golden.GOLDEN)[f"mel_{samples}"]
    np.testing.assert_allclose(mel[:, ::4].numpy(), wanted, rtol=0, atol=1e-4)


def test_silence_has_a_vector(checkpoint: Path) -> None:
    """Of no use, but of numbers."""
    assert speaker_encoder.load(checkpoint, "cpu").embed(torch.zeros(24_000)).isfinite().all()


@pytest.mark.parametrize("width", [1024, 2048])
def test_the_published_sizes(width: int) -> None:
    config = SpeakerEncoderConfig.from_json(
        {
            "tts_model_type": "base",
            "speaker_encoder_config": {"enc_dim": width, "sample_rate": 24000},
            "talker_config": {"hidden_size": width},
        }
    )
    assert config == SpeakerEncoderConfig(width)
    with torch.device("meta"):
        encoder = SpeakerEncoder(config)
    assert encoder.mfa.conv.in_channels == 1536


# --- what is wrong ---


def test_missing_and_unknown_tensors_are_named(checkpoint: Path) -> None:
    path = checkpoint / "model.safetensors"
    weights = load_file(path)
    bias = weights.pop("speaker_encoder.asp.tdnn.conv.bias")
    save_file(weights, path)
    with pytest.raises(EngineError, match=r"lacks tensors: speaker_encoder\.asp\.tdnn\.conv\.bias"):
        speaker_encoder.load(checkpoint, "cpu")
    weights |= {
        "speaker_encoder.asp.tdnn.conv.bias": bias,
        "speaker_encoder.asp.norm": torch.ones(2),
    }
    save_file(weights, path)
    with pytest.raises(EngineError, match=r"unknown tensors: speaker_encoder\.asp\.norm"):
        speaker_encoder.load(checkpoint, "cpu")


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"tts_model_type": "custom_voice"}, "custom_voice model .* cannot clone .* Base"),
        ({"talker_config": {"hidden_size": 1024}}, "gives 24 channels, the talker takes 1024"),
        ({"speaker_encoder_config": golden.SPEAKER | {"sample_rate": 16000}}, "24000 Hz"),
        ({"speaker_encoder_config": {}}, "lacks 'enc_dim'"),
    ],
)
def test_other_models_are_refused(checkpoint: Path, changes: dict[str, object], words: str) -> None:
    (checkpoint / "config.json").write_text(json.dumps(CONFIG | changes))
    with pytest.raises(EngineError, match=words):
        speaker_encoder.load(checkpoint, "cpu")
