"""The codec of Qwen3-TTS by our kernels, beside the same network in plain torch and compiled by
torch: the time of one frame of so many voices on a GPU, each in a CUDA graph.

Weights are random, sizes those of the published model.
"""

import json
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from benchmarks.command import command
from benchmarks.recognition.asr_timing import captured
from benchmarks.recognition.stages import replay_ms
from offhook.pipeline.engines.qwen3_tts.model import codec_stream
from offhook.pipeline.engines.qwen3_tts.model.codec import QWEN3_CODEC
from offhook.pipeline.engines.qwen3_tts.model.codec_weights import random_codec

VOICES = (1, 64, 512)
REPEATS = 50


def frame_ms(run: Callable[[], Tensor]) -> float:
    """Median of replaying a graph of one frame."""
    return replay_ms(captured(run), REPEATS)


@torch.inference_mode()
def measure(voices: int) -> dict[str, Any]:
    torch._dynamo.reset()
    codec = random_codec(QWEN3_CODEC, "cuda", torch.bfloat16)
    state = codec.new_state(voices, frames=1)
    codes = torch.randint(QWEN3_CODEC.codebook_size, (voices, QWEN3_CODEC.codebooks, 1))
    slots = torch.arange(1, voices + 1, device="cuda")
    given = codes.cuda(), slots, torch.full_like(slots, 20), state
    row: dict[str, Any] = {
        "voices": voices,
        "offhook": frame_ms(lambda: codec_stream.stream(codec, *given)),
        "torch": frame_ms(lambda: codec.stream(*given)),
    }
    compiled = torch.compile(codec.stream, dynamic=False)
    row["compiled"] = frame_ms(lambda: compiled(*given))
    return row


def main(words: list[str]) -> int:
    parser = command("tts_compiled", __doc__)
    parser.add_argument("--voices", type=int, nargs="*", default=VOICES)
    options = parser.parse_args(words)
    for voices in options.voices:
        row = measure(voices)
        print(json.dumps({name: round(value, 3) for name, value in row.items()}), flush=True)
    return 0
