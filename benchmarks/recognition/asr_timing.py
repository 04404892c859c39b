"""What `asr_settings` measures with: a model with random weights, batches of it, and clocks."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from benchmarks.recognition.asr_passes import average_passes, calls, noise
from offhook.media.pcm import RATE_IN
from offhook.pipeline.engines.qwen3_asr.model.checkpoint import random_model
from offhook.pipeline.engines.qwen3_asr.model.model import AsrConfig, Qwen3Asr
from offhook.pipeline.engines.qwen3_asr.passes import SECOND_SAMPLES, Pass
from offhook.pipeline.engines.qwen3_asr.runner import Runner
from offhook.pipeline.engines.shared.graphs import WARM_UP_RUNS, Size
from offhook.pipeline.engines.shared.pages import PAGE_SIZE
from offhook.pipeline.engines.shared.qwen3.body import Batch, KVCache
from offhook.pipeline.engines.shared.qwen3.config import DecoderConfig

KV_TOKENS = 200
"""Of each stream in a decode step: half a minute of sound would be 400."""

Clock = Callable[[], float]
"""Runs something once and returns how long it took, in ms."""


class Skip(Exception):
    """This machine has not what the setting is about."""


class Row(NamedTuple):
    what: str
    on_ms: float
    off_ms: float
    more: dict[str, Any] = {}  # noqa: RUF012 (never written)


@dataclass
class Bench:
    """A model on a device, and batches of average updates for it."""

    config: AsrConfig
    device: torch.device
    streams: int
    repeats: int
    began: float = field(default_factory=time.perf_counter)

    @property
    def cuda(self) -> bool:
        return self.device.type == "cuda"

    @property
    def dtype(self) -> torch.dtype:
        return torch.bfloat16 if self.cuda else torch.float32

    @cached_property
    def model(self) -> Qwen3Asr:
        return random_model(self.config, self.device, self.dtype)

    @cached_property
    def runner(self) -> Runner:
        return self.ready(graphs=True)

    @cached_property
    def eager(self) -> Runner:
        return self.ready(graphs=False)

    def ready(self, graphs: bool) -> Runner:
        """A runner that has the sizes for one stream and for `streams`, captured on a GPU."""
        runner = Runner(self.model, self.streams, 4 * self.streams + 1, graphs=graphs)
        if self.cuda:
            for streams in (1, self.streams):
                capture(runner, streams, graphs)
        return runner

    def passes(self, streams: int, runner: Runner | None = None) -> list[Pass]:
        return average_passes(runner or self.runner, streams)

    def update(self, passes: list[Pass]) -> Callable[[], None]:
        stages = calls(self.runner, passes)
        names = ("mel", "stem", "encoder", "prefill", "decode")

        def run() -> None:
            for name in names:
                stages[name]()

        return run

    # --- clocks ---

    def wall(self, run: Callable[[], Any], before: Callable[[], Any] = lambda: None) -> Clock:
        """By the host's clock until the device is done."""

        def clock() -> float:
            before()
            self.synchronize()
            began = time.perf_counter()
            run()
            self.synchronize()
            return 1000 * (time.perf_counter() - began)

        return clock

    def device_time(self, run: Callable[[], Any], times: int = 5) -> Clock:
        """By the device's clock, replayed from a CUDA graph; on a CPU as `wall`."""
        if not self.cuda:
            return self.wall(run)
        graph = captured(run, times)

        def clock() -> float:
            start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            start.record()
            graph.replay()
            end.record()
            end.synchronize()
            return float(start.elapsed_time(end)) / times

        return clock

    def synchronize(self) -> None:
        if self.cuda:
            torch.cuda.synchronize()

    def against(self, on: Clock, off: Clock) -> tuple[float, float]:
        """Medians of the two, run in turn; what the device does meanwhile meets both."""
        on(), off()
        pairs = [(on(), off()) for _ in range(self.repeats)]
        on_ms, off_ms = np.median(np.array(pairs), axis=0)
        return float(on_ms), float(off_ms)

    def row(self, what: str, on: Clock, off: Clock, **more: Any) -> Row:
        return Row(what, *self.against(on, off), more)


def captured(run: Callable[[], Any], times: int = 1) -> torch.cuda.CUDAGraph:
    torch.cuda.synchronize()
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        for _ in range(WARM_UP_RUNS):
            run()
        stream.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=stream):
            for _ in range(times):
                run()
    return graph


def capture(runner: Runner, streams: int, graphs: bool) -> None:
    """What an average update of so many streams takes."""
    passes = average_passes(runner, streams)
    heard = sum(span.tokens for p in passes for span in p.encode)
    tokens, rows = sum(p.tokens for p in passes), sum(p.rows for p in passes)
    sizes = {
        runner.mel_stage: Size(streams),
        runner.stem_stage: Size(streams),
        runner.encoder_stage: Size(heard, streams),
        runner.prefill_stage: Size(tokens, streams),
        runner.verify_stage: Size(rows, streams),
        runner.decode_stage: Size(streams),
    }
    torch.cuda.synchronize()
    with torch.inference_mode(), torch.cuda.stream(torch.cuda.Stream()):
        for stage, size in sizes.items():
            stage.capture(stage.fit(size), torch.cuda.graph_pool_handle(), graphs)
    torch.cuda.synchronize()


# --- inputs ---


def sound(seconds: int) -> NDArray[np.int16]:
    """int16 [seconds, SECOND_SAMPLES]."""
    return noise(seconds * SECOND_SAMPLES / RATE_IN).reshape(seconds, SECOND_SAMPLES)


def windows(bench: Bench, lengths: Sequence[int]) -> tuple[Tensor, Tensor]:
    """Random tokens of windows, packed, and their starts."""
    x = torch.randn(sum(lengths), bench.config.encoder.d_model, device=bench.device)
    starts = torch.tensor([0, *np.cumsum(lengths)], device=bench.device, dtype=torch.int32)
    return x.to(bench.dtype), starts


def heads(bench: Bench, lengths: Sequence[int]) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """q, k and v as the encoder has them, cut from one product, and the starts."""
    e = bench.config.encoder
    _, starts = windows(bench, lengths)
    qkv = torch.randn(sum(lengths), 3, e.heads, e.d_model // e.heads, device=bench.device)
    q, k, v = qkv.to(bench.dtype).unbind(1)
    return q, k, v, starts


def decode_step(
    bench: Bench,
) -> tuple[Tensor, tuple[Tensor, Tensor], Batch, tuple[Tensor, Tensor]]:
    """One token each of streams that have KV_TOKENS in the cache of one layer."""
    d, streams = bench.config.decoder, bench.streams
    each = -(-KV_TOKENS // PAGE_SIZE)
    one = DecoderConfig(d.hidden_size, d.ffn, 1, d.heads, d.kv_heads, d.head_dim)
    cache = KVCache(one, 1 + each * streams, PAGE_SIZE, bench.device, bench.dtype)
    table = 1 + torch.arange(each * streams, device=bench.device).view(streams, each)
    at = KV_TOKENS - 1
    positions = torch.full((streams,), at, device=bench.device)
    batch = Batch(
        positions=positions,
        slots=table[:, at // PAGE_SIZE] * PAGE_SIZE + at % PAGE_SIZE,
        page_table=table.to(torch.int32),
        q_starts=torch.arange(streams + 1, device=bench.device, dtype=torch.int32),
        kv_lengths=(positions + 1).to(torch.int32),
        max_q=1,
    )
    x = torch.randn(streams, d.hidden_size, device=bench.device).to(bench.dtype)
    decoder = bench.model.decoder
    return x, (decoder.cos[positions], decoder.sin[positions]), batch, (cache.k[0], cache.v[0])


def rounded(value: Any) -> float:
    return float(f"{float(value):.4g}")
