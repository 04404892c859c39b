"""One frame of Qwen3-TTS by the official package, qwen-tts, eager: talker and code predictor.

Run where the package and its transformers 4.57.3 can be imported, as a program:
``python -m benchmarks.voices.tts_peers 0.6B --frames 20``. One JSON line. Weights are random at
the real dimensions; the codes are not made into sound. A frame is what each of so many more frames
takes `generate`; what comes before the first is not in it.
"""

import argparse
import json
import os
import subprocess
import sys
import time
import types
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from statistics import median
from typing import Any

import torch

SECONDS = 120.0
"""The longest the program may take."""
SIZES = {"0.6B": (1024, 3072, 28, 5), "1.7B": (2048, 6144, 28, 5), "tiny": (64, 64, 2, 1)}
"""Hidden size and ffn of the talker, its layers and the predictor's."""
LANGUAGE, SPEAKER = ("english", 2050), ("ryan", 3061)
ROLE, CLOSE = (151644, 77091, 198), (151645, 198, 151644, 77091, 198)
"""Tokens around a text: of the assistant's turn before it, and of the next one after it."""
TEXT_TOKENS = 40
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


class PeerFailed(RuntimeError):
    """It cannot be measured here; says why."""


def official_frame_ms(size: str, path: str, frames: int = 20) -> float:
    """In a process of its own, with the folder `path` before all others. Raises PeerFailed."""
    paths = os.pathsep.join(p for p in (path, os.environ.get("PYTHONPATH", "")) if p)
    command = [sys.executable, "-m", "benchmarks.voices.tts_peers", size, "--frames", str(frames)]
    try:
        done = subprocess.run(
            command,
            env={**os.environ, "PYTHONPATH": paths},
            capture_output=True,
            text=True,
            timeout=SECONDS,
        )
    except subprocess.TimeoutExpired:
        raise PeerFailed(f"took over {SECONDS:.0f} s") from None
    if done.returncode:
        raise PeerFailed(done.stderr.strip().rpartition("\n")[2][:200])
    return float(json.loads(done.stdout.strip().rpartition("\n")[2])["ms"])


def official(size: str) -> Any:
    """The model of the package, with random weights."""
    spec = find_spec("qwen_tts")
    if spec is None or spec.submodule_search_locations is None:
        raise SystemExit("qwen-tts is not installed here: pip install qwen-tts==0.1.1")
    import transformers  # noqa: F401  (looks around for what is installed, before the stubs)

    # The package's front imports all that has to do with sound; these models need none of it.
    root = Path(spec.submodule_search_locations[0])
    for name in ("", ".core", ".inference"):
        package = types.ModuleType(f"qwen_tts{name}")
        package.__path__ = [str(root / name.removeprefix("."))]
        sys.modules[package.__name__] = package
    stub("qwen_tts.inference.qwen3_tts_tokenizer", Qwen3TTSTokenizer=object)
    if find_spec("librosa") is None:
        stub("librosa").__path__ = []
        stub("librosa.filters", mel=None)
    models: Any = import_module("qwen_tts.core.models")
    config = models.Qwen3TTSConfig(**config_json(size))
    kind = models.Qwen3TTSForConditionalGeneration
    with torch.device(DEVICE):
        return kind._from_config(config, dtype=torch.bfloat16).eval()


def stub(name: str, **contents: Any) -> types.ModuleType:
    module = types.ModuleType(name)
    vars(module).update(contents)
    sys.modules[name] = module
    return module


def config_json(size: str) -> dict[str, Any]:
    hidden, ffn, layers, predictor_layers = SIZES[size]

    def decoder(hidden: int, ffn: int, layers: int) -> dict[str, Any]:
        return dict(
            hidden_size=hidden,
            intermediate_size=ffn,
            num_hidden_layers=layers,
            num_attention_heads=16,
            num_key_value_heads=8,
            head_dim=128,
            num_code_groups=16,
            rope_theta=1e6,
            rms_norm_eps=1e-6,
            max_position_embeddings=32768,
            hidden_act="silu",
            attention_bias=False,
            use_sliding_window=False,
        )

    scaling = dict(
        rope_type="default", type="default", interleaved=True, mrope_section=[24, 20, 20]
    )
    talker = dict(
        **decoder(hidden, ffn, layers),
        rope_scaling=scaling,
        vocab_size=3072,
        text_vocab_size=151936,
        text_hidden_size=2048,
        codec_bos_id=2149,
        codec_eos_token_id=2150,
        codec_pad_id=2148,
        codec_think_id=2154,
        codec_nothink_id=2155,
        codec_think_bos_id=2156,
        codec_think_eos_id=2157,
        codec_language_id=dict([LANGUAGE]),
        spk_id=dict([SPEAKER]),
        spk_is_dialect={SPEAKER[0]: False},
        code_predictor_config=dict(
            **decoder(min(hidden, 1024), min(ffn, 3072), predictor_layers),
            rope_scaling=None,
            vocab_size=2048,
        ),
    )
    return dict(
        tokenizer_type="qwen3_tts_tokenizer_12hz",
        tts_model_type="custom_voice",
        tts_model_size="",
        tts_bos_token_id=151672,
        tts_eos_token_id=151673,
        tts_pad_token_id=151671,
        talker_config=talker,
    )


def generate_ms(model: Any, frames: int) -> float:
    """So many, and what comes before them."""
    text = range(1000, 1000 + TEXT_TOKENS)
    _wait()
    began = time.perf_counter()
    model.generate(
        input_ids=[torch.tensor([[*ROLE, *text, *CLOSE]], device=DEVICE)],
        languages=[LANGUAGE[0]],
        speakers=[SPEAKER[0]],
        non_streaming_mode=False,
        max_new_tokens=frames,
        eos_token_id=3071,  # never drawn: nothing ends it early
    )
    _wait()
    return 1000 * (time.perf_counter() - began)


def _wait() -> None:
    if DEVICE == "cuda":
        torch.cuda.synchronize()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("size", choices=tuple(SIZES))
    parser.add_argument("--frames", type=int, default=20)
    parser.add_argument("--repeats", type=int, default=3)
    arguments = parser.parse_args()
    torch.manual_seed(0)
    model = official(arguments.size)
    few, more = 3, 3 + arguments.frames
    generate_ms(model, few)
    times = [
        (generate_ms(model, more) - generate_ms(model, few)) / arguments.frames
        for _ in range(arguments.repeats)
    ]
    before = generate_ms(model, few)
    row = {"size": arguments.size, "device": DEVICE, "torch": torch.__version__}
    print(json.dumps({**row, "ms": round(median(times), 2), "three_frames_ms": round(before, 1)}))


if __name__ == "__main__":
    main()
