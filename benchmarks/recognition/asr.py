"""`offhook bench asr`: the Qwen3-ASR engine at the real dimensions on this machine's GPU.

Weights are random; how many tokens are said and how many of a draft hold is simulated (see
engine/simulated.py). Everything else is the engine as it serves calls. Parts: `stages` (each stage
alone beside its floor), `update` (one stream, how long an update takes, at the beginning of an
utterance and ten minutes into it), `streams` (how many live streams are held in real time), `files`
(live streams while files are transcribed), `exact` (batched against alone, graphs against eager),
`settings` (what TF32, cuDNN's choice, torch.compile and others are worth, see asr_settings.py).
"""

import heapq
import math
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch

from benchmarks.command import command
from benchmarks.recognition.asr_passes import MODELS, average_passes, calls, noise
from benchmarks.recognition.stages import Floor, by_kernel, gpu_ms, say, warmed_up
from benchmarks.table import percentiles
from offhook.pipeline.engines.qwen3_asr.engine import AsrEngine, TextUpdate
from offhook.pipeline.engines.qwen3_asr.loading_io import measured_cost, measured_streams
from offhook.pipeline.engines.qwen3_asr.model.checkpoint import random_model
from offhook.pipeline.engines.qwen3_asr.model.model import AsrConfig
from offhook.pipeline.engines.qwen3_asr.passes import Pass
from offhook.pipeline.engines.qwen3_asr.runner import WINDOW_TOKENS
from offhook.pipeline.engines.qwen3_asr.scheduler import FIRST_UPDATE_MS
from offhook.pipeline.engines.qwen3_asr.simulated import SimulatedRunner, Simulation, WordTokenizer
from offhook.pipeline.engines.shared.graphs import Pending


def make_runner(
    model: str, streams: int, pages: int, simulation: Simulation, graphs: bool = True
) -> SimulatedRunner:
    weights = random_model(MODELS[model], "cuda", torch.bfloat16)
    runner = SimulatedRunner(weights, streams, pages, WordTokenizer(), simulation, graphs)
    say("ready", model=model, **warmed_up(runner))
    return runner


def make_engine(
    runner: SimulatedRunner, tell: Callable[[TextUpdate], None], live: int, files: int = 0
) -> AsrEngine:
    cost = measured_cost(runner)
    most = (runner.max_batch, runner.max_tokens)
    return AsrEngine(runner, WordTokenizer(), runner.pages, cost, live, files, *most, tell)


# --- stages ---


def floors(
    config: AsrConfig, streams: int, tokens: int, rows: int, seconds: int
) -> dict[str, Floor]:
    e, d = config.encoder, config.decoder
    layer = 4 * e.d_model**2 + 2 * e.d_model * e.ffn
    encoder = e.layers * layer + e.d_model**2 + e.d_model * e.output_dim
    conv = 9 * e.conv_channels + 18 * e.conv_channels**2 + 7680 * e.d_model
    of_conv = 2 * (9 * 480 * 64 * 50 + 9 * 480**2 * (32 * 25 + 16 * 13) + 7680 * e.d_model * 13)
    heads = (d.heads + 2 * d.kv_heads) * d.head_dim + d.heads * d.head_dim
    decoder = d.layers * (d.hidden_size * heads + 3 * d.hidden_size * d.ffn)
    head = d.vocab_size * d.hidden_size
    heard = streams * WINDOW_TOKENS / 2
    return {
        "stem": Floor(2 * conv, of_conv * seconds),
        "encoder": Floor(2 * encoder, 2 * encoder * heard),
        "prefill": Floor(2 * (decoder + head), 2 * decoder * tokens + 2 * head * rows),
        "decode": Floor(2 * (decoder + head), 2 * (decoder + head) * streams),
    }


def stages(
    runner: SimulatedRunner, model: str, batches: Sequence[int], repeats: int, kernels: int
) -> None:
    """How long each takes at several numbers of streams, beside its floor, and which kernels take
    longest."""
    for streams in batches:
        passes = average_passes(runner, streams)
        tokens, rows = sum(p.tokens for p in passes), sum(p.rows for p in passes)
        floor = floors(MODELS[model], streams, tokens, rows, streams)
        for name, run in calls(runner, passes).items():
            row = {"model": model, "streams": streams, "ms": wall_ms(runner, run, repeats)}
            row["gpu_ms"] = gpu_ms(getattr(runner, f"{name}_stage"), repeats)
            if name in floor:
                row["floor_ms"] = round(floor[name].ms, 3)
            say(f"stage {name}", **row)
            for kernel in by_kernel(getattr(runner, f"{name}_stage"), kernels):
                say(f"stage {name}", model=model, streams=streams, **kernel)


def wall_ms(runner: SimulatedRunner, run: Callable[[], Any], repeats: int) -> float:
    """Median of a call with everything: packing, copies, launch, waiting."""
    times = []
    for _ in range(repeats + 3):
        runner.synchronize()
        began = time.perf_counter()
        run()
        runner.synchronize()
        times.append(time.perf_counter() - began)
    return round(1000 * float(np.median(times[3:])), 3)


# --- exactness ---


def outputs(runner: SimulatedRunner, passes: list[Pass]) -> tuple[torch.Tensor, torch.Tensor]:
    """What the encoder and the prefill of the passes give, fp32."""
    runner.mel(passes)
    runner.encode(passes)
    runner.prefill(passes)()
    runner.synchronize()
    return runner.outputs(passes)


def exact(runner: SimulatedRunner, model: str) -> None:
    """Relative differences in bf16: a batch against each stream alone, graphs against kernels
    launched one by one."""
    eager = SimulatedRunner(
        runner.model, runner.streams, runner.pages, WordTokenizer(), Simulation(), graphs=False
    )
    eager.warm_up()
    passes = average_passes(runner, 8)
    average_passes(eager, 8)
    together = outputs(runner, passes)
    one_by_one = [outputs(runner, [p]) for p in passes]
    alone = tuple(torch.cat(parts) for parts in zip(*one_by_one, strict=True))
    plain = outputs(eager, passes)
    for name, other in (("batch against alone", alone), ("graphs against eager", plain)):
        differences = [
            round(float((a - b).norm() / b.norm()), 6) for a, b in zip(together, other, strict=True)
        ]
        say("exact", model=model, of=name, encoder=differences[0], prefill=differences[1])


# --- one stream ---


@contextmanager
def waits() -> Iterator[list[float]]:
    """How long the host waits for results of the device, ms each; the rest is its own work."""
    waited: list[float] = []
    wait = Pending.numpy

    def timed(pending: Pending) -> Any:
        began = time.perf_counter()
        result = wait(pending)
        waited.append(1000 * (time.perf_counter() - began))
        return result

    Pending.numpy = timed  # type: ignore[method-assign, assignment]
    try:
        yield waited
    finally:
        Pending.numpy = wait  # type: ignore[method-assign]


def update(runner: SimulatedRunner, model: str, update_ms: int, points: Sequence[float]) -> None:
    """Updates of one endless utterance, timed for five seconds after some points of it. `host` is
    what of them is not spent waiting for the device."""
    results: list[TextUpdate] = []
    engine = make_engine(runner, results.append, live=1)
    stream = engine.open(update_ms)
    audio, sound = 0.0, noise(update_ms / 1000)
    for point in points:
        times, host = [], []
        while audio < point + 5.0:
            engine.feed(stream, sound, audio)
            audio += update_ms / 1000
            told = len(results)
            with waits() as waited:
                began = time.perf_counter()
                while len(results) == told and engine.turn(time.perf_counter):
                    pass
                took = 1000 * (time.perf_counter() - began)
            if audio > point and len(results) > told:
                times.append(took)
                host.append(took - sum(waited))
        fields = {"model": model, "update_ms": update_ms, "at_s": point, "updates": len(times)}
        say("update", **fields, ms=percentiles(times, 2), host=percentiles(host, 2))
    engine.close(stream)


# --- many streams ---


UTTERANCE_S = 10.0
PIECE_MS = 80
"""Sound of a caller comes in pieces of this length."""
FILE_S = 27.0
SETTLE_S = 11.0
"""Until every caller has begun; what is measured comes after it."""


class Caller:
    """One who speaks all the time, in utterances of UTTERANCE_S."""

    def __init__(self, stream: int, begins: float, update_ms: int) -> None:
        self.stream = stream
        self.update_ms = update_ms
        self.begins = begins
        """When the utterance began."""
        self.pieces = 0
        self.heard_ms = 0
        """Covered by the last update."""

    @property
    def next_piece(self) -> float:
        return self.begins + (self.pieces + 1) * PIECE_MS / 1000

    def wait_ms(self, now: float, heard_ms: int) -> float:
        """From when the update fell due - its sound had come - to its text."""
        wanted = self.heard_ms + (self.update_ms if self.heard_ms else FIRST_UPDATE_MS)
        due_ms = math.ceil(wanted / PIECE_MS) * PIECE_MS
        self.heard_ms = math.ceil(heard_ms / PIECE_MS) * PIECE_MS
        return 1000 * (now - self.begins) - due_ms


def streams(
    runner: SimulatedRunner, model: str, count: int, update_ms: int, seconds: float, files: int = 0
) -> None:
    """`count` callers, beginning staggered. An update is late when its text comes more than
    `update_ms` after it fell due: then the next one is due already, and the two become one."""
    clock = time.perf_counter
    waits: list[float] = []
    finals: list[float] = []
    idle_files: list[int] = []
    callers: dict[int, Caller] = {}
    ended: dict[int, float] = {}

    def tell(said: TextUpdate) -> None:
        caller = callers.get(said.stream)
        if caller is None:
            if said.final:
                idle_files.append(said.stream)
        elif said.final:
            finals.append(1000 * (clock() - ended[said.stream]))
        elif said.heard.audio_ms > caller.heard_ms:
            waits.append(caller.wait_ms(clock(), said.heard.audio_ms))

    engine = make_engine(runner, tell, count, files)
    piece, recording = noise(PIECE_MS / 1000), noise(FILE_S)
    began = clock() + 0.2
    heap: list[tuple[float, int]] = []
    for i in range(count):
        stream = engine.open(update_ms)
        callers[stream] = Caller(stream, began + UTTERANCE_S * i / count, update_ms)
        heap.append((callers[stream].next_piece, stream))
    heapq.heapify(heap)
    idle_files += [engine.open(live=False) for _ in range(files)]
    busy, file_s = 0.0, 0.0
    while (now := clock()) < began + SETTLE_S + seconds:
        while heap[0][0] <= now:
            caller = callers[heap[0][1]]
            engine.feed(caller.stream, piece, now)
            caller.pieces += 1
            if caller.pieces * PIECE_MS >= UTTERANCE_S * 1000:
                engine.finish(caller.stream, now)
                ended[caller.stream] = heap[0][0]
                caller.begins, caller.pieces, caller.heard_ms = heap[0][0], 0, 0
            heapq.heapreplace(heap, (caller.next_piece, caller.stream))
        while idle_files:
            stream = idle_files.pop()
            engine.feed(stream, recording, now)
            engine.finish(stream, now)
            file_s += FILE_S
        if now < began + SETTLE_S:
            waits.clear()
            finals.clear()
            busy = file_s = 0.0
        if engine.turn(clock):
            busy += clock() - now
        else:
            time.sleep(0.0002)
    expected = count * seconds * (UTTERANCE_S * 1000 // update_ms) / UTTERANCE_S
    row: dict[str, Any] = {"model": model, "streams": count, "update_ms": update_ms, "files": files}
    row |= {"updates": len(waits), "of_about": round(expected)}
    row["late_share"] = round(sum(w > update_ms for w in waits) / max(1, len(waits)), 5)
    row |= {"partial_ms": percentiles(waits, 2), "final_ms": percentiles(finals, 2)}
    row["busy"] = round(busy / seconds, 2)
    if files:
        row["file_seconds_per_second"] = round(file_s / seconds, 1)
    say("streams", **row)


def _ladder(text: str) -> Iterator[int]:
    return (int(n) for n in text.split(",") if n)


def main(argv: Sequence[str] | None = None) -> int:
    parser = command("asr", __doc__)
    parser.add_argument("--model", choices=tuple(MODELS), default="0.6B")
    parser.add_argument("--parts", default="stages,update,streams")
    parser.add_argument("--batches", default="1,8,32,64")
    parser.add_argument("--streams", default="100,400,800,400@160", help="COUNT[@UPDATE_MS],…")
    parser.add_argument("--update-ms", type=int, default=400)
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--points", default="2,10,60,600")
    parser.add_argument("--files", type=int, default=0)
    parser.add_argument("--repeats", type=int, default=30)
    parser.add_argument(
        "--revised", type=int, default=1, help="tokens at the end that every update says otherwise"
    )
    parser.add_argument("--kernels", type=int, default=0, help="of each stage, the longest first")
    parser.add_argument("--pages", type=int, default=0, help="of the KV cache; 0: 5 a stream")
    arguments = parser.parse_args(argv)
    loads = [
        (int(count), int(ms or arguments.update_ms))
        for count, _, ms in (one.partition("@") for one in arguments.streams.split(","))
    ]
    parts = arguments.parts.split(",")
    if "settings" in parts:
        from benchmarks.recognition import asr_settings

        asr_settings.main(["--model", arguments.model])
        if parts == ["settings"]:
            return 0
    most = max([n for n, _ in loads] + list(_ladder(arguments.batches)))
    slots = max(2, most) + arguments.files
    pages = arguments.pages or 5 * slots + 64
    runner = make_runner(arguments.model, slots, pages, Simulation(revised=arguments.revised))
    if "stages" in parts:
        batches = list(_ladder(arguments.batches))
        stages(runner, arguments.model, batches, arguments.repeats, arguments.kernels)
    if "exact" in parts:
        exact(runner, arguments.model)
    if "update" in parts:
        points = [float(p) for p in arguments.points.split(",")]
        update(runner, arguments.model, arguments.update_ms, points)
    if "streams" in parts:
        say("admitted", model=arguments.model, streams=measured_streams(runner))
        for count, update_ms in loads:
            for files in sorted({0, arguments.files}):
                streams(runner, arguments.model, count, update_ms, arguments.seconds, files)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
