"""`offhook bench asr --parts settings`: what each setting of torch and of the machine is
worth.

Weights are random at the real dimensions. A setting is timed on and off in one run, in turn, and
gives a JSON line: `on_ms` is with it, `off_ms` without, `ratio` is off / on, so that over 1 the
setting helps. What this machine lacks is `skipped` with the reason; what breaks is an `error`, and
the rest goes on. Without a GPU only what means something there is timed.
"""

import argparse
import asyncio
import gc
import json
import os
import queue
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from benchmarks.recognition import asr_alternatives
from benchmarks.recognition.asr_passes import MODELS, calls
from benchmarks.recognition.asr_timing import (
    Bench,
    Clock,
    Row,
    Skip,
    capture,
    rounded,
    sound,
    windows,
)
from offhook.pipeline.engines.qwen3_asr.model.model import (
    AsrConfig,
    AsrDecoderConfig,
    EncoderConfig,
)
from offhook.pipeline.engines.qwen3_asr.runner import SECOND_FRAMES, WINDOW_TOKENS, Runner
from offhook.pipeline.engines.shared import affinity_io
from offhook.pipeline.engines.shared.model import mel as log_mel

TINY = AsrConfig(
    EncoderConfig(d_model=32, layers=2, heads=2, ffn=48, output_dim=24, conv_channels=8),
    AsrDecoderConfig(24, 40, layers=2, heads=4, kv_heads=2, head_dim=16, vocab_size=10_000),
)
"""To see that all of this runs."""
LIMIT_S = 115.0
"""A setting is not begun when it would probably end later."""
HAND_OVERS = 500

# --- numbers ---


def tf32(bench: Bench) -> Iterator[Row]:
    """fp32 products in TF32. The filters of the mel are the only ones there are."""
    pcm = torch.from_numpy(sound(bench.streams)).to(bench.device).float() / 32768
    front = log_mel.LogMel(bench.device)

    def under(precision: str, run: Callable[[], Any]) -> Any:
        torch.set_float32_matmul_precision(precision)
        try:
            return run()
        finally:
            torch.set_float32_matmul_precision("highest")

    def scaled() -> Tensor:
        mel = front(pcm)
        return log_mel.scale(mel, mel.amax((1, 2)))

    exact, blurred = under("highest", scaled), under("high", scaled)
    most = exact.abs().max()
    yield bench.row(
        f"mel of {bench.streams} s",
        under("high", lambda: bench.device_time(lambda: front(pcm))),
        under("highest", lambda: bench.device_time(lambda: front(pcm))),
        relative_error=rounded((blurred - exact).abs().max() / most),
        relative_error_of_bf16=rounded((exact.bfloat16() - exact).abs().max() / most),
    )
    x, starts = windows(bench, [WINDOW_TOKENS] * bench.streams)
    encode = lambda: bench.model.encoder(x, starts, WINDOW_TOKENS)  # noqa: E731
    yield bench.row(
        f"encoder in {str(bench.dtype).removeprefix('torch.')}, {len(x)} tokens",
        under("high", lambda: bench.device_time(encode, 2)),
        under("highest", lambda: bench.device_time(encode, 2)),
    )


def cudnn_benchmark(bench: Bench) -> Iterator[Row]:
    """cuDNN tries its algorithms for a convolution of the stem instead of guessing the best."""

    @torch.no_grad()
    def clock(mel: Tensor) -> Clock:
        return bench.device_time(lambda: bench.model.encoder.convolve(mel))

    for seconds in (1, bench.streams):
        mel = torch.randn(seconds, bench.config.encoder.mel_bins, SECOND_FRAMES)
        mel = mel.to(bench.device, bench.dtype)

        def under(wanted: bool, mel: Tensor = mel) -> Clock:
            # A new thread, because torch keeps a plan for each size and thread, however chosen.
            torch.backends.cudnn.benchmark = wanted
            try:
                with ThreadPoolExecutor(1) as thread:
                    return thread.submit(clock, mel).result()
            finally:
                torch.backends.cudnn.benchmark = False

        yield bench.row(f"stem of {seconds} s", under(True), under(False))


# --- host ---


def pinned(bench: Bench) -> Iterator[Row]:
    """PCM of a batch to the device from page-locked memory, not waited for; `host_*`: how long the
    thread is held."""
    pcm = torch.from_numpy(sound(bench.streams))
    there = torch.empty_like(pcm, device=bench.device)
    locked = pcm.pin_memory()

    def asynchronous() -> None:
        there.copy_(locked, non_blocking=True)

    def pageable() -> None:
        there.copy_(pcm)

    def held(run: Callable[[], None]) -> Clock:
        def clock() -> float:
            bench.synchronize()
            began = time.perf_counter()
            run()
            return 1000 * (time.perf_counter() - began)

        return clock

    host_on, host_off = bench.against(held(asynchronous), held(pageable))
    yield bench.row(
        f"PCM of {bench.streams} s, {pcm.nbytes >> 10} KiB",
        bench.wall(asynchronous),
        bench.wall(pageable),
        host_on_ms=rounded(host_on),
        host_off_ms=rounded(host_off),
    )


def cuda_graphs(bench: Bench) -> Iterator[Row]:
    """A stage with its packing and waiting, replayed or kernel by kernel."""
    for streams in (1, bench.streams):
        replayed = calls(bench.runner, bench.passes(streams))
        eager = calls(bench.eager, bench.passes(streams, bench.eager))
        for name in ("mel", "stem", "encoder", "prefill", "decode"):
            yield bench.row(
                f"{name} of {streams} streams", bench.wall(replayed[name]), bench.wall(eager[name])
            )


def warm_up(bench: Bench) -> Iterator[Row]:
    """The first update of speech-like noise, when its sizes were captured before it (on) or would
    be for it (off: with what of Triton's cache was there); `steady_ms`: of later ones."""
    runner = Runner(bench.model, bench.streams, 4 * bench.streams + 1)
    began = time.perf_counter()
    capture(runner, bench.streams, graphs=True)
    captured_ms = 1000 * (time.perf_counter() - began)
    stages = calls(runner, bench.passes(bench.streams, runner))
    clock = bench.wall(lambda: [stages[name]() for name in stages])
    first = clock()
    steady = float(np.median([clock() for _ in range(bench.repeats)]))
    what = f"first update of {bench.streams} streams"
    yield Row(what, first, captured_ms + first, {"steady_ms": rounded(steady)})


def gc_freeze(bench: Bench) -> Iterator[Row]:
    """A full garbage collection with the model loaded, its objects frozen or not."""
    assert bench.runner

    def median() -> float:
        clock = bench.wall(gc.collect)
        return float(np.median([clock() for _ in range(max(3, bench.repeats // 4))]))

    gc.collect()
    off, objects = median(), len(gc.get_objects())
    gc.freeze()
    try:
        yield Row("gc.collect()", median(), off, {"objects": objects})
    finally:
        gc.unfreeze()


def no_cleanup(bench: Bench) -> Iterator[Row]:
    """An update that leaves memory alone, against one that collects and empties the cache."""
    update = bench.update(bench.passes(1))

    def cleaned() -> None:
        update()
        gc.collect()
        if bench.cuda:
            torch.cuda.empty_cache()

    yield bench.row("update of 1 stream", bench.wall(update), bench.wall(cleaned))


def own_thread(bench: Bench) -> Iterator[Row]:
    """From the event loop to the inference thread and back, by a queue of its own or by the loop's
    executor; ms a round trip."""
    orders: queue.SimpleQueue[Callable[[], Any] | None] = queue.SimpleQueue()

    def serve() -> None:
        while (order := orders.get()) is not None:
            order()

    async def by_queue() -> None:
        loop = asyncio.get_running_loop()
        for _ in range(HAND_OVERS):
            done: asyncio.Future[None] = loop.create_future()
            answer = partial(loop.call_soon_threadsafe, done.set_result, None)
            orders.put(answer)
            await done

    async def by_executor() -> None:
        loop = asyncio.get_running_loop()
        for _ in range(HAND_OVERS):
            await loop.run_in_executor(None, lambda: None)

    thread = threading.Thread(target=serve, name="inference")
    thread.start()
    try:
        on, off = bench.against(
            bench.wall(lambda: asyncio.run(by_queue())),
            bench.wall(lambda: asyncio.run(by_executor())),
        )
    finally:
        orders.put(None)
        thread.join()
    yield Row("hand-over and back", on / HAND_OVERS, off / HAND_OVERS)


def one_thread(bench: Bench) -> Iterator[Row]:
    """The host's part of an update, packing and launching, with one thread of torch or all."""
    passes, most = bench.passes(bench.streams), torch.get_num_threads()
    if most == 1:
        raise Skip("torch has one thread here")

    def under(threads: int) -> Clock:
        def clock() -> float:
            torch.set_num_threads(threads)
            bench.synchronize()
            began = time.perf_counter()
            verdicts = bench.runner.prefill(passes)
            took = time.perf_counter() - began
            verdicts()
            return 1000 * took

        return clock

    try:
        yield bench.row(f"prefill of {bench.streams}, 1 thread or {most}", under(1), under(most))
    finally:
        torch.set_num_threads(most)


def affinity(bench: Bench) -> Iterator[Row]:
    """An update by a thread on the CPUs of the GPU's NUMA node, or wherever it is put."""
    allowed = os.sched_getaffinity(0)
    near = affinity_io.numa_cpus(affinity_io.pci_address(bench.device)) & allowed
    if not near or near == allowed:
        raise Skip(
            f"one NUMA node, or not known which is the GPU's: no effect ({len(allowed)} CPUs)"
        )
    run = bench.update(bench.passes(bench.streams))
    try:
        yield bench.row(
            f"update of {bench.streams} streams, {len(near)} of {len(allowed)} CPUs",
            bench.wall(run, lambda: os.sched_setaffinity(0, near)),
            bench.wall(run, lambda: os.sched_setaffinity(0, allowed)),
        )
    finally:
        os.sched_setaffinity(0, allowed)


# --- all of them ---


class Setting(NamedTuple):
    name: str
    run: Callable[[Bench], Iterator[Row]]
    gpu: bool = True
    """Means nothing without one."""
    seconds: float = 5.0
    """May take so long."""


SETTINGS = (
    Setting("warm-up", warm_up),
    Setting("TF32", tf32),
    Setting("cudnn.benchmark", cudnn_benchmark),
    Setting("attention: ours, SDPA", asr_alternatives.attention_sdpa),
    Setting("attention: ours, varlen_attn", asr_alternatives.attention_varlen),
    Setting("attention: ours, flash-attn", asr_alternatives.attention_flash_attn),
    Setting("CUDA graphs", cuda_graphs),
    Setting("pinned, asynchronous copies", pinned),
    Setting("gc.freeze", gc_freeze, gpu=False),
    Setting("no empty_cache, no gc", no_cleanup, gpu=False),
    Setting("a thread of its own", own_thread, gpu=False),
    Setting("one CPU thread", one_thread),
    Setting("CPU affinity", affinity),
    Setting("ONNX Runtime", asr_alternatives.onnx_runtime, gpu=False, seconds=20.0),
    Setting("TensorRT", asr_alternatives.tensorrt, seconds=40.0),
    Setting("torch.compile", asr_alternatives.compiled, seconds=30.0),
    Setting("torch.compile, autotuned", asr_alternatives.compiled_autotuned, seconds=60.0),
)


def say(setting: str, **fields: Any) -> None:
    print(json.dumps({"setting": setting, **fields}), flush=True)


@torch.no_grad()
def measure(bench: Bench) -> None:
    """A line or more of each setting."""
    for setting in SETTINGS:
        if setting.gpu and not bench.cuda:
            say(setting.name, skipped="needs a GPU")
            continue
        elapsed = time.perf_counter() - bench.began
        if elapsed + setting.seconds > LIMIT_S:
            say(setting.name, skipped=f"{elapsed:.0f} s have gone, it may take {setting.seconds:g}")
            continue
        try:
            for row in setting.run(bench):
                ratio = rounded(row.off_ms / row.on_ms)
                times = {"on_ms": rounded(row.on_ms), "off_ms": rounded(row.off_ms)}
                say(setting.name, what=row.what, **times, ratio=ratio, **row.more)
        except Skip as reason:
            say(setting.name, skipped=str(reason))
        except Exception as error:
            say(setting.name, error=f"{type(error).__name__}: {error}"[:400])


def main(argv: Sequence[str] | None = None) -> int:
    models = {**MODELS, "tiny": TINY}
    prog = "offhook bench asr --parts settings"
    parser = argparse.ArgumentParser(prog=prog, description=__doc__)
    parser.add_argument("--model", choices=tuple(models), default="0.6B")
    parser.add_argument("--device", choices=("auto", "cpu", "cuda"), default="auto")
    arguments = parser.parse_args(argv)
    kind = arguments.device
    if kind == "auto":
        kind = "cuda" if torch.cuda.is_available() else "cpu"
    device = torch.device(kind)
    streams, repeats = (32, 20) if kind == "cuda" else (2, 3)
    bench = Bench(models[arguments.model], device, streams, repeats)
    say("machine", what=machine(device), model=arguments.model, torch=torch.__version__)
    measure(bench)
    say("end", what=f"{time.perf_counter() - bench.began:.0f} s in all")
    return 0


def machine(device: torch.device) -> str:
    return torch.cuda.get_device_name(device) if device.type == "cuda" else f"{os.cpu_count()} CPUs"


if __name__ == "__main__":
    raise SystemExit(main())
