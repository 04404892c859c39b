"""`offhook bench pocket`: what Pocket TTS costs on this machine's CPU, beside the package
pocket-tts of its authors in the same run.

Models have their real sizes and random weights; a clause has 30 tokens and ends as late as it may.
Columns: CPU seconds of one core per second of sound and voice (less is better), for one voice and
for several at once; CPU time in ms from a clause's tokens to its first 80 ms of sound. The package
decodes a frame at a time, as it streams when there is somebody listening. The smallest of RUNS runs
counts: others shared the machine.
"""

import copy
import gc
import json
import logging
import tempfile
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from threading import Event
from time import process_time
from typing import Any

import torch
from tokenizers import Tokenizer, models, pre_tokenizers

from benchmarks.command import command
from offhook.media.pcm import RATE_OUT
from offhook.pipeline.engines.pocket.model.config import FRAME_SAMPLES
from offhook.pipeline.engines.pocket.model.published import (
    PIECES,
    SIZES,
    VOICE_POSITIONS,
    random_model,
)
from offhook.pipeline.engines.pocket.runner import PocketRunner
from offhook.pipeline.engines.shared.model.int8 import instructions

RUNS = 3
FRAMES = 24
TOKENS = list(range(1, 31))
VOICES = (1, 4)
FRAME_S = FRAME_SAMPLES / RATE_OUT
MODELS = ("english", "english_18m_refl_2026-10", "english_7m_refl_2026-10")


def ours(name: str, int8: bool) -> None:
    """Prints a row for each number of voices."""
    model = random_model(name, int8=instructions() if int8 else None)
    runner = PocketRunner(model, max(VOICES))
    runner.warm_up()
    for voices in VOICES:
        costs, firsts = [], []
        for _ in range(RUNS):
            began = process_time()
            for row in range(voices):
                runner.begin(row, model.voice(), TOKENS, seed=row)
            runner.step(range(voices))
            firsts.append(process_time() - began)
            began = process_time()
            for _ in range(FRAMES):
                runner.step(range(voices))
            costs.append((process_time() - began) / FRAMES / FRAME_S / voices)
        _say(name, f"offhook {'int8' if int8 else 'fp32'}", voices, costs, firsts)


@torch.no_grad()
def package(name: str, int8: bool) -> None:
    """Prints the row of the package."""
    model = _package_model(name, int8)
    model.max_decoder_frames_per_call = 1
    layer = SIZES[name].lm.layer
    shape = (2, 1, VOICE_POSITIONS, layer.kv_heads, layer.head_size)
    voice = {
        f"transformer.layers.{i}.self_attn": {
            "cache": torch.randn(shape),
            "offset": torch.tensor([VOICE_POSITIONS]),
        }
        for i in range(SIZES[name].lm.layers)
    }
    costs, firsts = [], []
    for _ in range(RUNS):
        began, samples = process_time(), []
        text = " ".join(f"w{token}" for token in TOKENS)
        state = copy.deepcopy(voice)
        for sound in model._generate_audio_stream_short_text(state, text, 3, False, Event()):
            samples.append(len(sound))
            if len(samples) == 1:
                firsts.append(process_time() - began)
                began = process_time()
        costs.append((process_time() - began) / (sum(samples[1:]) / RATE_OUT))
    _say(name, f"pocket-tts {'int8' if int8 else 'fp32'}", 1, costs, firsts)


def _package_model(name: str, int8: bool) -> Any:
    """Returns the package's model with random weights, and a tokenizer of made-up words."""
    settings: Any = import_module("pocket_tts.utils.config")
    config = settings.load_config(settings.CONFIGS_DIR / f"{name}.yaml").model_dump()
    config["weights_path"] = config["weights_path_without_voice_cloning"] = None
    words = Tokenizer(models.WordLevel({f"w{i}": i for i in range(PIECES)}, unk_token="w0"))
    words.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    with tempfile.TemporaryDirectory() as folder:
        tokenizer, path = Path(folder, "tokenizer.json"), Path(folder, "config.yaml")
        words.save(str(tokenizer))
        table = {"tokenizer": "tokenizers", "tokenizer_path": str(tokenizer)}
        config["flow_lm"]["lookup_table"].update(table)
        path.write_text(json.dumps(config), "utf-8")
        tts_model: Any = import_module("pocket_tts").TTSModel
        return tts_model.load_model(config=path, eos_threshold=1e9, quantize=int8)


def _say(
    name: str, what: str, voices: int, costs: Sequence[float], firsts: Sequence[float]
) -> None:
    gc.collect()
    first = f"{1000 * min(firsts):4.0f} ms" if voices == 1 else ""
    print(f"{name:26} {what:16} {voices:2} voices  {min(costs):.3f}  {first}", flush=True)


def main(argv: Sequence[str]) -> int:
    parser = command("pocket", __doc__)
    parser.add_argument("--models", nargs="+", choices=SIZES, default=MODELS)
    parser.add_argument("--threads", type=int, default=1)
    options = parser.parse_args(argv)
    logging.disable(logging.WARNING)
    for name in options.models:
        for run in (package, ours):
            for int8 in (False, True):
                torch.set_num_threads(options.threads)  # the package sets it when imported
                run(name, int8)
    return 0
