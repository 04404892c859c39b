"""A tiny random Base model, whole: what speaks, and both encoders that make clones."""

import json
from dataclasses import replace
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file

from offhook.pipeline.engines.qwen3_tts.model import speaker_encoder, speech_encoder
from tests.pipeline.engines.qwen3_tts import tiny_tts
from tests.pipeline.engines.qwen3_tts.model import make_cloning_golden as golden


def write(model: Path) -> Path:
    """A checkpoint, in a folder that is there."""
    torch.set_num_threads(1)
    base = replace(tiny_tts.CONFIG, kind="base", speakers={}, dialects={})
    tiny_tts.write(model, base)
    speaker = {**golden.SPEAKER, "enc_dim": base.talker.hidden_size}
    codes = {**golden.ENCODER, "codebook_size": base.codebook_size}
    codec = {**golden.CODEC, "encoder_config": codes}
    for path, more in (
        (model / "config.json", {"speaker_encoder_config": speaker}),
        (model / "speech_tokenizer" / "config.json", codec),
    ):
        path.write_text(json.dumps({**json.loads(path.read_text()), **more}))
    voice = speaker_encoder.SpeakerEncoder(
        speaker_encoder.SpeakerEncoderConfig.from_json(
            json.loads((model / "config.json").read_text())
        )
    )
    sound = speech_encoder.SpeechEncoder(speech_encoder.SpeechEncoderConfig.from_json(codec))
    for path, prefix, places in (
        (model / "model.safetensors", "speaker_encoder.", voice.named_parameters()),
        (
            model / "speech_tokenizer" / "model.safetensors",
            "encoder.",
            speech_encoder._places(sound),
        ),
    ):
        weights = load_file(path)
        for name, place in places:
            weights[prefix + name] = torch.from_numpy(golden.weight(prefix + name, *place.shape))
        save_file(weights, path)
    return model
