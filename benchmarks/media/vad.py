"""What a window of the voice detector costs: the network in ONNX Runtime and as matrix products,
and all of it with a call's samples going in and its probabilities coming out.

CPU time of one thread, in µs a window; the median of interleaved rounds. `evicted` clears the CPU's
caches before each batch, as the other work of a server may.
"""

import asyncio
import json
from collections.abc import Callable, Sequence
from statistics import median
from time import process_time, thread_time

import numpy as np

from benchmarks.command import command
from offhook.media.pcm import SAMPLES_IN
from offhook.pipeline.speech.vad.onnx_io import OnnxModel, package_file
from offhook.pipeline.speech.vad.silero import CONTEXT, STATE
from offhook.pipeline.speech.vad.vad import WINDOW
from offhook.pipeline.speech.vad.vad_io import VadBatch, load_silero

BATCHES = (1, 2, 3, 4, 8, 25, 64)
ROUNDS = 40
WINDOWS = 200
"""Windows of a round without eviction, of all streams."""
TICKS = 800
CACHE = 64 << 20
"""Bytes written to evict everything else."""


def _cost_us(run: Callable[[], object], batch: int, evict: np.ndarray | None) -> float:
    repeats = 1 if evict is not None else max(1, WINDOWS // batch)
    if evict is not None:
        evict += 1
    began = thread_time()
    for _ in range(repeats):
        run()
    return (thread_time() - began) / repeats / batch * 1e6


def networks(batch: int) -> dict[str, float]:
    """Returns the cost of each network by its name."""
    rows = np.random.default_rng(1).normal(0, 0.05, (batch, CONTEXT + WINDOW)).astype(np.float32)
    onnx = OnnxModel(package_file("pipecat", "audio/vad/data/silero_vad.onnx"))
    states = np.zeros((2, batch, STATE // 2), np.float32)
    inputs = {"input": rows, "state": states, "sr": np.array(16_000, np.int64)}
    ours, zeros = load_silero(), np.zeros((batch, STATE), np.float32)
    evict = np.zeros(CACHE // 4, np.float32)
    runs: dict[str, Callable[[], object]] = {
        "onnx": lambda: onnx.run(inputs),
        "products": lambda: ours.run(rows, zeros),
    }
    costs: dict[str, list[float]] = {}
    for number in range(ROUNDS + 1):
        for name, run in runs.items():
            for label, cache in ((name, None), (f"{name}, evicted", evict)):
                cost = _cost_us(run, batch, cache)
                if number:  # the first one warms up
                    costs.setdefault(label, []).append(cost)
    return {name: median(found) for name, found in costs.items()}


async def whole(streams: int) -> float:
    """Returns the cost of a window with everything around it: samples fed every 20 ms, levels,
    states, and the call back. All threads count."""
    vad, heard = VadBatch(), 0

    def take(_probability: float, _level: float, _end: int) -> None:
        nonlocal heard
        heard += 1

    calls = [vad.open(take) for _ in range(streams)]
    sound = np.random.default_rng(2).normal(0, 1500, SAMPLES_IN).astype(np.int16)
    began = 0.0
    for tick in range(TICKS):
        if tick == TICKS // 10:
            began, heard = process_time(), 0
        for call in calls:
            call.feed(sound)
        vad.run()
        await asyncio.sleep(0)
    return (process_time() - began) / heard * 1e6


def main(options: Sequence[str]) -> int:
    parser = command("vad", __doc__)
    parser.parse_args(options)
    for batch in BATCHES:
        costs = networks(batch) | {"whole": asyncio.run(whole(batch))}
        print(json.dumps({"batch": batch} | {k: round(v, 1) for k, v in costs.items()}), flush=True)
    return 0
