"""One update of Qwen3-ASR by others: the official package and transformers' own port, eager.

Run in the environment of the peer (the two exclude each other's transformers), as a program:
``python -m benchmarks.recognition.asr_peers official 0.6B --seconds 4,10,60,600``. One JSON line a
row. Weights are random at the real dimensions; the audio is noise; exactly `--tokens` tokens are
made. Both re-feed the whole audio at every update, as the official streaming example does.
"""

import argparse
import json
import sys
import time
import types
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from statistics import median
from typing import Any

import torch

ENCODER: dict[str, dict[str, int]] = {
    "0.6B": dict(
        d_model=896,
        encoder_layers=18,
        encoder_attention_heads=14,
        encoder_ffn_dim=3584,
        output_dim=1024,
    ),
    "1.7B": dict(
        d_model=1024,
        encoder_layers=24,
        encoder_attention_heads=16,
        encoder_ffn_dim=4096,
        output_dim=2048,
    ),
}
DECODER: dict[str, dict[str, Any]] = {
    name: dict(
        hidden_size=hidden,
        intermediate_size=ffn,
        num_hidden_layers=28,
        num_attention_heads=16,
        num_key_value_heads=8,
        head_dim=128,
        vocab_size=151936,
        max_position_embeddings=65536,
        tie_word_embeddings=True,
    )
    for name, (hidden, ffn) in {"0.6B": (1024, 3072), "1.7B": (2048, 6144)}.items()
}
AUDIO_START, AUDIO_END, AUDIO = 151669, 151670, 151676
SUFFIX = (151645, 198, 151644, 77091, 198)
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
Update = Callable[[torch.Tensor, torch.Tensor, int], Any]


def official(size: str) -> Update:
    """The transformers backend of the package `qwen-asr`."""
    spec = find_spec("qwen_asr")
    if spec is None or spec.submodule_search_locations is None:
        raise SystemExit("qwen-asr is not installed here: pip install qwen-asr==0.0.6")
    # Its front imports web demos and text tools of other languages; the model needs none of it.
    for name, folder in (("qwen_asr", ""), ("qwen_asr.core", "core")):
        package = types.ModuleType(name)
        package.__path__ = [str(Path(spec.submodule_search_locations[0]) / folder)]
        sys.modules[name] = package
    from qwen_asr.core.transformers_backend import (
        Qwen3ASRConfig,
        Qwen3ASRForConditionalGeneration,
    )

    rope = {"mrope_section": [24, 20, 20], "interleaved": True, "rope_type": "default"}
    config = Qwen3ASRConfig(
        thinker_config={
            "audio_config": {
                **ENCODER[size],
                "n_window": 50,
                "n_window_infer": 800,
                "num_mel_bins": 128,
            },
            "text_config": {**DECODER[size], "rope_theta": 1e6, "rope_scaling": rope},
            "audio_token_id": AUDIO,
            "audio_start_token_id": AUDIO_START,
        }
    )
    return _updating(Qwen3ASRForConditionalGeneration, config, "feature_attention_mask")


def native(size: str) -> Update:
    """transformers >= 5.13."""
    from transformers import Qwen3ASRConfig, Qwen3ASRForConditionalGeneration

    rope = {"rope_type": "default", "rope_theta": 1e6}
    config = Qwen3ASRConfig(
        audio_config=ENCODER[size],
        text_config={**DECODER[size], "model_type": "qwen3", "rope_parameters": rope},
        audio_token_id=AUDIO,
    )
    return _updating(Qwen3ASRForConditionalGeneration, config, "input_features_mask")


def _updating(kind: Any, config: Any, mask: str) -> Update:
    """A random model of this class; `mask` is what its `generate` calls the mask of the mel."""
    with torch.device(DEVICE):
        model = kind._from_config(config, dtype=torch.bfloat16)
    model.eval()

    def update(ids: torch.Tensor, mel: torch.Tensor, tokens: int) -> Any:
        return model.generate(
            input_ids=ids,
            attention_mask=torch.ones_like(ids),
            input_features=mel,
            max_new_tokens=tokens,
            min_new_tokens=tokens,
            do_sample=False,
            pad_token_id=151643,
            **{mask: torch.ones_like(mel[:, 0], dtype=torch.long)},
        )

    return update


def _wait() -> None:
    if DEVICE == "cuda":
        torch.cuda.synchronize()


def audio_tokens(frames: int) -> int:
    whole, rest = divmod(frames, 100)
    for _ in range(3):
        rest = (rest + 1) // 2
    return 13 * whole + rest


def row(update: Update, seconds: float, tokens: int, repeats: int) -> dict[str, float]:
    frames = int(seconds * 100)
    mel = torch.randn(1, 128, frames, device=DEVICE, dtype=torch.bfloat16)
    prompt = [151644, 8948, 198, 151645, 198, 151644, 872, 198, AUDIO_START]
    prompt += [AUDIO] * audio_tokens(frames) + [AUDIO_END, *SUFFIX]
    ids = torch.tensor([prompt], device=DEVICE)
    times = []
    for _ in range(repeats + 1):
        _wait()
        began = time.perf_counter()
        update(ids, mel, tokens)
        _wait()
        times.append(1000 * (time.perf_counter() - began))
    return {"seconds": seconds, "tokens": tokens, "ms": round(median(times[1:]), 2)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("peer", choices=("official", "native"))
    parser.add_argument("size", choices=tuple(ENCODER))
    parser.add_argument("--seconds", default="4,10,60,600")
    parser.add_argument("--tokens", type=int, default=7)
    parser.add_argument("--repeats", type=int, default=5)
    arguments = parser.parse_args()
    torch.manual_seed(0)
    with torch.inference_mode():
        update = {"official": official, "native": native}[arguments.peer](arguments.size)
        for seconds in map(float, arguments.seconds.split(",")):
            figures = row(update, seconds, arguments.tokens, arguments.repeats)
            print(json.dumps({"peer": arguments.peer, "size": arguments.size, **figures}))


if __name__ == "__main__":
    main()
