"""Average updates of live recognition streams, for every benchmark of Qwen3-ASR."""

from collections.abc import Callable
from typing import Any

import numpy as np

from offhook.media.pcm import RATE_IN, Pcm
from offhook.pipeline.engines.qwen3_asr.model.model import QWEN3_ASR_0_6B, QWEN3_ASR_1_7B
from offhook.pipeline.engines.qwen3_asr.passes import SECOND_SAMPLES, Pass, Second, Span, Stem
from offhook.pipeline.engines.qwen3_asr.runner import WINDOW_TOKENS, Runner

MODELS = {"0.6B": QWEN3_ASR_0_6B, "1.7B": QWEN3_ASR_1_7B}


def noise(seconds: float, seed: int = 0) -> Pcm:
    """Sound as loud as speech: what it is does not matter to the cost."""
    rng = np.random.default_rng(seed)
    pcm: Pcm = (rng.standard_normal(round(seconds * RATE_IN)) * 3000).astype(np.int16)
    return pcm


def average_passes(runner: Runner, streams: int) -> list[Pass]:
    """Of an average update: half a window heard, a second of it new, a draft of 12 tokens."""
    rng = np.random.default_rng(0)
    pages_each = 4
    passes = []
    for slot in range(1, streams + 1):
        first = 1 + (slot - 1) * pages_each
        runner.assign(slot, range(first, first + pages_each))
        heard = [Span(0, WINDOW_TOKENS // 2)]
        passes.append(
            Pass(
                slot,
                seconds=[Second(3, noise(SECOND_SAMPLES / RATE_IN, slot), 100)],
                stems=[Stem(3, 100, 1.0)],
                encode=heard,
                start=9,
                audio=heard,
                after=list(range(20, 26)),
                draft=rng.integers(1000, 9000, 12).tolist(),
            )
        )
    return passes


def calls(runner: Runner, passes: list[Pass]) -> dict[str, Callable[[], Any]]:
    """Every stage by itself."""
    stems = [Pass(p.slot, stems=p.stems) for p in passes]
    encode = [Pass(p.slot, encode=p.encode) for p in passes]
    slots = [p.slot for p in passes]
    return {
        "mel": lambda: runner.mel(passes),
        "stem": lambda: runner.encode(stems),
        "encoder": lambda: runner.encode(encode),
        "prefill": lambda: runner.prefill(passes)(),
        "decode": lambda: runner.decode(slots)(),
    }
