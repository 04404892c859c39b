"""`offhook bench nemotron`: the Nemotron engine at the real dimensions on this GPU.

Weights are random; how often a label is said is simulated (see engine/nemotron_simulated.py).
Everything else is the engine as it serves calls. Parts: `stages` (a chunk of so many streams, its
time on the device beside its floor), `streams` (how many live streams are held in real time, and
how long an utterance's last words take), `file` (a recording that is there as a whole), `exact`
(batched against alone, graphs against eager).
"""

import heapq
import time
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import torch

from benchmarks.command import command
from benchmarks.recognition.asr_passes import noise
from benchmarks.recognition.stages import Floor, by_kernel, say, warmed_up
from benchmarks.table import percentiles
from offhook.media.pcm import RATE_IN
from offhook.pipeline.engines.nemotron.engine import NemotronEngine
from offhook.pipeline.engines.nemotron.model.checkpoint import random_model
from offhook.pipeline.engines.nemotron.model.model import Nemotron, NemotronConfig
from offhook.pipeline.engines.nemotron.recognizer_io import measured_streams_of_gpu
from offhook.pipeline.engines.nemotron.runner import (
    InFlightBatch,
    Label,
    NemotronRunner,
    Part,
    chunk_begin,
    chunk_end,
    chunk_samples,
)
from offhook.pipeline.engines.nemotron.simulated import SimulatedLabels, SimulatedNemotron, Speech
from offhook.pipeline.engines.nemotron.utterance import FRAME_MS
from offhook.pipeline.engines.shared.capacity import MAX_FILES
from offhook.pipeline.speech.recognizer import Final, Partial

UTTERANCE_S = 8.0
SETTLE_S = 2.0
"""After all have begun; what is measured comes after it."""
IDLE_SLEEP_S = 0.0002
EXACT_CHUNKS = 12
EXACT_STREAMS = 64
FILE_S = 60.0
MAX_STAGGER_S = 4.0


def floor(config: NemotronConfig, lookahead: int, streams: int) -> Floor:
    """The least that a chunk of each stream takes: weights, keys and values read once, and the
    multiplications of encoder and one step of the decoder a frame."""
    e = config.encoder
    layer = 4 * e.hidden_size**2 + 4 * e.hidden_size * e.ffn + 3 * e.hidden_size**2
    weights = e.layers * layer + e.subsampled_bins * e.subsampling_channels * e.hidden_size
    weights += 2 * 4 * 2 * config.predictor_size**2 + config.predictor_size * config.vocab_size
    seen = e.left_context * e.hidden_size * 2 * e.layers
    frames = streams * (lookahead + 1)
    return Floor(2 * (weights + streams * seen), 2 * weights * frames)


def parts(streams: int, frames: int, position: int, first_slot: int = 1) -> list[Part]:
    """Of streams in the middle of speech."""
    count = chunk_samples(frames)
    lead = max(0, -chunk_begin(position))
    found = []
    for slot in range(first_slot, first_slot + streams):
        pcm = noise(count / RATE_IN, slot * 1000 + position)
        pcm[:lead] = 0
        found.append(Part(slot, position, pcm))
    return found


def stages(
    runner: NemotronRunner, lookahead: int, batches: Sequence[int], repeats: int, kernels: int
) -> None:
    frames = lookahead + 1
    for streams in batches:
        if streams > runner.largest[lookahead]:
            continue
        batch = parts(streams, frames, 100 * frames)
        runner.encode(lookahead, batch).labels()
        stage = runner.stages[lookahead]
        graph = stage.last_graph
        assert graph is not None
        runner.synchronize()
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        for _ in range(repeats):
            graph.replay()
        end.record()
        runner.synchronize()
        device_ms = begin.elapsed_time(end) / repeats
        whole = []
        for _ in range(repeats):
            began = time.perf_counter()
            runner.encode(lookahead, batch).labels()
            whole.append(1000 * (time.perf_counter() - began))
        least = floor(runner.model.config, lookahead, streams).ms
        say(
            "stage",
            chunk_ms=frames * FRAME_MS,
            streams=streams,
            device_ms=round(device_ms, 3),
            floor_ms=round(least, 3),
            of_floor=round(device_ms / least, 1),
            with_host_ms=round(float(np.median(whole)), 3),
        )
        for kernel in by_kernel(stage, kernels):
            say("stage", chunk_ms=frames * FRAME_MS, streams=streams, **kernel)


class Caller:
    """One who speaks all the time, in utterances of UTTERANCE_S. The sound comes a chunk at a time,
    just when the chunk is complete, and ends in the middle of one."""

    __slots__ = ("_begins", "_come", "_pieces", "chunk", "ended", "last", "piece", "slot")

    def __init__(self, slot: int, pieces: list[int]) -> None:
        """`pieces` are the samples of an utterance that come at a time."""
        self.slot = slot
        self.ended = 0.0
        self._pieces = pieces

    def begin(self, at: float) -> float:
        """Begins an utterance and returns when its first piece has come: s."""
        self._begins, self._come, self.chunk = at, 0, -1
        return self.next()

    def next(self) -> float:
        """Goes on to the next piece and returns when it has come: s."""
        self.chunk += 1
        self.piece = self._pieces[self.chunk]
        self.last = self.chunk + 1 == len(self._pieces)
        self._come += self.piece
        return self._begins + self._come / RATE_IN


def pieces(frames: int) -> list[int]:
    """Returns the samples of an utterance that come at a time in chunks of so many frames."""
    chunks = max(2, round(UTTERANCE_S * 1000 / (frames * FRAME_MS)))
    ends = [0, *(chunk_end(i * frames, frames) for i in range(chunks))]
    found = [after - before for before, after in pairwise(ends)]
    return [*found[:-1], found[-1] // 2]


class Watched:
    """A runner that tells how long after it was complete each chunk of a live stream was heard."""

    def __init__(self, runner: NemotronRunner, clock: Callable[[], float]) -> None:
        self.largest = runner.largest
        self.waits_ms: list[float] = []
        self.complete: dict[tuple[int, int], float] = {}
        """When, by slot and position."""
        self._runner, self._clock = runner, clock

    def encode(self, lookahead: int, batch: Sequence[Part]) -> "WatchedHearing":
        return WatchedHearing(self, batch, self._runner.encode(lookahead, batch))

    def heard(self, batch: Sequence[Part]) -> None:
        now = self._clock()
        for part in batch:
            complete = self.complete.pop((part.slot, part.position), None)
            if complete is not None:
                self.waits_ms.append(1000 * (now - complete))


class WatchedHearing:
    def __init__(self, watched: Watched, batch: Sequence[Part], hearing: InFlightBatch) -> None:
        self._watched, self._batch, self._hearing = watched, batch, hearing

    def labels(self) -> list[list[Label]]:
        labels = self._hearing.labels()
        self._watched.heard(self._batch)
        return labels


def streams(
    runner: NemotronRunner,
    lookahead: int,
    count: int,
    seconds: float,
    max_wait: float,
    files: int = 0,
) -> None:
    """`count` callers, beginning staggered. A chunk is late when it is heard more than its own
    length after it was complete: then the next one is complete already."""
    clock = time.perf_counter
    frames = lookahead + 1
    chunk_s = frames * FRAME_MS / 1000
    finals: list[float] = []
    callers: dict[int, Caller] = {}
    idle_files: list[int] = []

    def tell(number: int, event: Partial | Final) -> None:
        caller = callers.get(number)
        if isinstance(event, Final):
            if caller is None:
                idle_files.append(number)
            else:
                finals.append(1000 * (clock() - caller.ended))

    watched = Watched(runner, clock)
    engine = NemotronEngine(watched, SimulatedLabels(), count, MAX_FILES, tell, max_wait)
    sound, recording = noise(2 * chunk_s), noise(FILE_S)
    began = clock() + 0.2
    stagger = min(UTTERANCE_S, MAX_STAGGER_S)
    heap: list[tuple[float, int]] = []
    said = pieces(frames)
    for i in range(count):
        number = engine.open(lookahead)
        callers[number] = Caller(i + 1, said)
        heap.append((callers[number].begin(began + stagger * i / count), number))
    heapq.heapify(heap)
    idle_files += [engine.open(max(runner.largest), live=False) for _ in range(files)]
    busy = longest = file_s = 0.0
    batches = 0
    settled = began + stagger + SETTLE_S
    while (now := clock()) < settled + seconds:
        while heap[0][0] <= now:
            due, number = heap[0]
            caller = callers[number]
            engine.feed(number, sound[: caller.piece], due)
            if caller.last:
                caller.ended = due
                engine.finish(number, due)
                comes = caller.begin(due)
            else:
                watched.complete[caller.slot, caller.chunk * frames] = due
                comes = caller.next()
            heapq.heapreplace(heap, (comes, number))
        while idle_files:
            number = idle_files.pop()
            engine.feed(number, recording, now)
            engine.finish(number, now)
            file_s += FILE_S
        if now < settled:
            watched.waits_ms.clear()
            finals.clear()
            busy = longest = file_s = 0.0
            batches = engine.batches
        if engine.turn(clock):
            busy += clock() - now
            longest = max(longest, clock() - now)
        else:
            time.sleep(IDLE_SLEEP_S)
    waits = watched.waits_ms
    row: dict[str, Any] = {
        "chunk_ms": frames * FRAME_MS,
        "streams": count,
        "max_wait_ms": 1000 * max_wait,
        "chunks": len(waits),
        "late_share": round(sum(w > 1000 * chunk_s for w in waits) / max(1, len(waits)), 5),
        "heard_ms": percentiles(waits, 2),
        "final_ms": percentiles(finals, 2),
        "streams_a_batch": round(len(waits) / max(1, engine.batches - batches), 1),
        "busy": round(busy / seconds, 2),
        "longest_turn_ms": round(1000 * longest, 1),
    }
    if files:
        row |= {"files": files, "file_seconds_per_second": round(file_s / seconds, 1)}
    say("streams", **row)


def file(runner: NemotronRunner, seconds: float, repeats: int) -> None:
    """A recording of so many seconds, from its first sample to its last word."""
    took = []
    pcm = noise(seconds)
    done: list[float] = []
    engine = NemotronEngine(
        runner, SimulatedLabels(), 1, 1, lambda number, event: done.append(time.perf_counter())
    )
    number = engine.open(max(runner.largest), live=False)
    for _ in range(repeats):
        done.clear()
        began = time.perf_counter()
        engine.feed(number, pcm, began)
        engine.finish(number, began)
        while not done:
            engine.turn(time.perf_counter)
        took.append(1000 * (done[0] - began))
    say("file", seconds=seconds, ms=percentiles(took, 2))


def exact(model: Nemotron, runner: NemotronRunner, together: int) -> None:
    """Labels of the random weights, the same sound: alone, among others, and without graphs. bf16
    rounds otherwise in products of another size, so labels may differ; how many do is said."""
    eager = SimulatedNemotron(model, together, None, graphs=False)
    eager.warm_up()
    for lookahead in model.config.lookaheads:
        frames = lookahead + 1
        said: dict[str, list[list[Label]]] = {}
        for name, of, streams in (
            ("alone", runner, 1),
            ("again", runner, 1),
            ("eager", eager, 1),
            ("together", runner, together),
        ):
            said[name] = [
                of.encode(lookahead, parts(streams, frames, chunk * frames)).labels()[0]
                for chunk in range(EXACT_CHUNKS)
            ]
        labels = sum(map(len, said["alone"]))
        same = {name: _agreeing(said["alone"], other) for name, other in said.items()}
        del same["alone"]
        say("exact", chunk_ms=frames * FRAME_MS, labels=labels, same_labels=same)


def _agreeing(one: list[list[Label]], other: list[list[Label]]) -> int:
    pairs = zip(one, other, strict=True)
    return sum(a == b for first, second in pairs for a, b in zip(first, second, strict=False))


def _counts(text: str) -> list[int]:
    return [int(n) for n in text.split(",") if n]


def main(argv: Sequence[str] | None = None) -> int:
    parser = command("nemotron", __doc__)
    parser.add_argument("--parts", default="stages,streams,file,exact")
    parser.add_argument("--batches", default="1,8,64,128,256,512")
    parser.add_argument(
        "--streams", default="100@80,1000@80,1000@160,3000@560,6000@1120", help="COUNT@CHUNK_MS,…"
    )
    parser.add_argument("--seconds", type=float, default=8.0)
    parser.add_argument("--max-batch-latency-ms", default="10", help="one or more")
    parser.add_argument("--files", type=int, default=0)
    parser.add_argument("--repeats", type=int, default=30)
    parser.add_argument("--kernels", type=int, default=0, help="of each stage, the longest first")
    parser.add_argument("--labels-per-second", type=float, default=4.5)
    arguments = parser.parse_args(argv)
    loads = [
        (int(n), int(ms)) for n, ms in (one.split("@") for one in arguments.streams.split(","))
    ]
    most = max(n for n, _ in loads) + MAX_FILES
    config = NemotronConfig()
    model = random_model(config, "cuda", torch.bfloat16)
    runner = SimulatedNemotron(model, most, Speech(arguments.labels_per_second))
    say("ready", streams=most, **warmed_up(runner))
    wanted = arguments.parts.split(",")
    if "stages" in wanted:
        for lookahead in config.lookaheads:
            batches = _counts(arguments.batches)
            stages(runner, lookahead, batches, arguments.repeats, arguments.kernels)
    if "file" in wanted:
        for seconds in (5.0, 60.0):
            file(runner, seconds, 10)
    if "streams" in wanted:
        admitted = measured_streams_of_gpu(runner, SimulatedLabels(), min(config.lookaheads))
        say("admitted", streams=admitted)
        for count, ms in loads:
            for wait in arguments.max_batch_latency_ms.split(","):
                for files in sorted({0, arguments.files}):
                    of = (ms // FRAME_MS - 1, count, arguments.seconds, float(wait) / 1000)
                    streams(runner, *of, files)
    if "exact" in wanted:
        plain = SimulatedNemotron(model, EXACT_STREAMS, None)
        plain.warm_up()
        exact(model, plain, EXACT_STREAMS)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
