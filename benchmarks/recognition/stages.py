"""Stages of a model on a GPU: how long they take, beside the least they can take, and which kernels
take longest. Benchmarks print what they find as a JSON line each."""

import json
import time
from collections import Counter
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch.profiler import ProfilerActivity, profile

from offhook.web.http.loop_io import YOUNG_OF_STREAMS, freeze_loaded_objects

BANDWIDTH = 4.3e12
"""Bytes a second an H200 copies, measured."""
ARITHMETIC = 790e12
"""bf16 operations a second of an H200, measured."""


def say(what: str, **fields: Any) -> None:
    print(json.dumps({"what": what, **fields}), flush=True)


@dataclass(frozen=True)
class Floor:
    """The least time a stage can take, ms: weights read once, multiplications at the full rate."""

    bytes: float
    operations: float

    @property
    def ms(self) -> float:
        return 1000 * max(self.bytes / BANDWIDTH, self.operations / ARITHMETIC)


def warmed_up(runner: Any) -> dict[str, float]:
    """Captures every size of a runner, and returns how long it took and the GPU's memory in use.
    From then on garbage is collected as in a worker."""
    began = time.perf_counter()
    runner.warm_up()
    runner.synchronize()
    took = time.perf_counter() - began
    freeze_loaded_objects(YOUNG_OF_STREAMS)
    memory = torch.cuda.max_memory_allocated() / 2**30
    return {"warm_up_s": round(took, 1), "gpu_gib": round(memory, 1)}


def gpu_ms(stage: Any, repeats: int) -> float:
    """Median of replaying the graph that the stage last launched."""
    graph = stage.last_graph
    if graph is None:
        return float("nan")
    return round(replay_ms(graph, repeats), 3)


def replay_ms(graph: torch.cuda.CUDAGraph, repeats: int) -> float:
    """Median of replaying a graph."""
    times = []
    for _ in range(repeats):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        graph.replay()
        end.record()
        end.synchronize()
        times.append(start.elapsed_time(end))
    return float(np.median(times))


def by_kernel(stage: Any, most: int) -> list[dict[str, Any]]:
    """Returns launches and ms of all kernels of the graph that the stage last launched, and of at
    most `most` that take longest; nothing for 0."""
    graph = stage.last_graph
    if graph is None or most == 0:
        return []
    graph.replay()
    torch.cuda.synchronize()
    with profile(activities=[ProfilerActivity.CUDA]) as seen:
        graph.replay()
        torch.cuda.synchronize()
    spans = [
        (event.time_range.start, event.time_range.end, event.name[:70])
        for event in seen.events()
        if event.device_type.name == "CUDA" and not event.name.startswith("Mem")
    ]
    launches: Counter[str] = Counter(name for *_, name in spans)
    us: Counter[str] = Counter()
    for begun, ended, name in spans:
        us[name] += ended - begun
    rows = [("all", len(spans), us.total())]
    rows += [(name, launches[name], took) for name, took in us.most_common(most)]
    return [{"kernel": name, "launches": n, "ms": round(took / 1000, 3)} for name, n, took in rows]
