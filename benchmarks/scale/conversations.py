"""`offhook bench conversations`: how many whole conversations one card holds.

A recognizer and a voice with random weights at the real dimensions share the GPU, each in a worker
process or (`--together`) both in one; far edges, in processes of their own, hold conversations with
them through the clients that edges use. A caller says 2 to 6 s in real time, the agent answers with
a sentence, written token by token and played as it comes; one reply in five is interrupted. That is
about 40 % of the time each. The silence that ends a turn and the language model are a fixed second
between the two and do not count; packets, codecs and turn detection are not part of it. Lengths of
texts and of speech are scripted (see engines/random_workers.py). With `--workers 2` there are two
recognizers and two voices on the card, with `--gpus 2` one of each on each of two cards; the edges
choose one for each conversation and reply. `--kill` ends a recognizer and a voice in the middle of
the last count, with SIGKILL; they do not come back.

Columns: conversations at once; held, when no frame of the agent's voice came late and the server's
share of a turn is at most 120 ms in 95 % of them; turns counted; ms from the end of an utterance to
its final words, from the first token of the reply to its first sound, and both together (share);
partials more than an update late; frames of silence in the voice, as played with a buffer of 80 ms,
and the longest silence in ms; turns that failed or were refused; the share of the time in which a
caller and the agent speak; the GPU's use and memory; cores of each worker, of that the event loop
of the process with the engine, and its fronts, the processes with its sockets; cores of all
callers; ms that a caller's own audio was late, p99 and at most; the price of an hour of one
conversation.
"""

import argparse
import asyncio
import json
import os
import shutil
import time
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import asdict, dataclass, field
from math import ceil, inf
from pathlib import Path
from statistics import mean
from typing import Any

from benchmarks.command import command
from benchmarks.processes.own_server import free_port
from benchmarks.processes.process import Child, ChildError, all_of, child, children, cpu_s
from benchmarks.scale.conversation_callers import TURN_S, EdgePlan
from benchmarks.table import Table, percentile, progress
from offhook.pipeline.engines.shared.capacity import SHARED
from offhook.pipeline.engines.shared.synthesis.messages import FRAME_S
from offhook.web.http.loop_io import run

CARD = "benchmarks.scale.card"
CALLERS = "benchmarks.scale.conversation_callers"
LOAD_S = 240.0
UNEVEN = 1.15
"""Streams of the most loaded of several workers by their mean,"""
SPARE = 32
"""and more, for a reply that has ended and is not known to have."""
VOICES_SHARE = 0.55
"""Replies at once, at most, by conversations."""
CONNECT_EACH_S = 0.002
"""Time in s for each new conversation to connect, before they settle."""
SETTLE_S = TURN_S + 3
ANSWER_S = 30.0
GPU_LOOK_S = 1.0
MOST_SHARE_MS = 120
"""p95 of the server's share of a turn with which conversations are held."""
COLUMNS = (
    "conversations held turns final_p50 final_p95 final_p99 first_p50 first_p95 first_p99 "
    "share_p50 share_p95 share_p99 update_p95 updates_late_% frames frames_late gap_max failed "
    "caller_% agent_% interrupted gpu_% gpu_gib asr_core asr_loop tts_core tts_loop "
    "tts_fronts card_core card_loop card_fronts callers_core caller_late_p99 caller_late_max "
    "conversation_hour"
)


# --- the workers ---


@dataclass
class Workers:
    """Their URLs, and the processes that were started here, by what is in them."""

    asr: list[str] = field(default_factory=list)
    tts: list[str] = field(default_factory=list)
    processes: dict[str, list[Child]] = field(default_factory=dict)

    def kill_last(self) -> None:
        """Ends the last process of each kind with SIGKILL; its fronts end with it."""
        for processes in self.processes.values():
            processes[-1].process.kill()


@asynccontextmanager
async def started(options: argparse.Namespace) -> AsyncIterator[Workers]:
    """Starts the workers and waits until they have loaded. Raises ChildError."""
    if options.asr_url:
        yield Workers(options.asr_url.split(","), options.tts_url.split(","))
        return
    workers, most = Workers(), max(options.conversations)
    kind, model = ("nemotron", "0.6B") if options.asr == "nemotron" else ("asr", options.asr)
    count = options.workers * options.gpus
    uneven = UNEVEN if count > 1 else 1.0
    each = most if options.kill else ceil(uneven * most / count)
    each += SPARE
    voices = ceil(VOICES_SHARE * each) + SPARE
    lines: list[tuple[str, int, Sequence[str]]] = []
    for number in range(count):
        gpu = number % options.gpus
        hears, speaks = (f"127.0.0.1:{free_port()}" for _ in range(2))
        workers.asr.append(f"http://{hears}")
        workers.tts.append(f"http://{speaks}")
        parts = f"{kind}:{model}:0={hears}", f"tts:{options.tts}:{voices}={speaks}"
        if options.together:
            lines.append(("card", gpu, parts))
        else:
            lines += [("asr", gpu, parts[:1]), ("tts", gpu, parts[1:])]
    async with AsyncExitStack() as stack:
        began = time.monotonic()
        how = ["--memory-share", str(SHARED / options.workers)]
        how += [] if options.fronts is None else ["--fronts", str(options.fronts)]
        starts = []
        for _, gpu, line in lines:
            only = {"CUDA_VISIBLE_DEVICES": str(gpu)} if options.gpus > 1 else {}
            starts.append(stack.enter_async_context(child(CARD, *how, *line, environment=only)))
        for (name, *_), process in zip(lines, await all_of(starts), strict=True):
            workers.processes.setdefault(name, []).append(process)
        every = [one for processes in workers.processes.values() for one in processes]
        await asyncio.gather(*(one.line(LOAD_S) for one in every))
        progress(f"{len(every)} processes of workers ready in {time.monotonic() - began:.0f} s")
        yield workers


# --- what they use ---


def thread_s(pid: int) -> float:
    """Returns the CPU time in s of a process's first thread, on which its event loop runs."""
    return _stat_s(Path(f"/proc/{pid}/task/{pid}/stat"))


def own_s(pid: int) -> float:
    """Returns the CPU time in s of a process without its children."""
    return _stat_s(Path(f"/proc/{pid}/stat"))


def _stat_s(path: Path) -> float:
    fields = path.read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


class Usage:
    """Cores used by each kind of processes since its creation; of workers also by their loops."""

    def __init__(self, workers: Workers, callers: Sequence[Child]) -> None:
        self._workers = workers.processes
        self._callers = callers
        self._at, self._before = time.monotonic(), self._read()

    def _read(self) -> dict[str, float]:
        spent = {"callers_core": sum(cpu_s(one.pid) for one in self._callers)}
        for name, processes in self._workers.items():
            spent[f"{name}_core"] = sum(cpu_s(one.pid) for one in processes)
            spent[f"{name}_loop"] = sum(thread_s(one.pid) for one in processes)
            own = sum(own_s(one.pid) for one in processes)
            spent[f"{name}_fronts"] = spent[f"{name}_core"] - own
        return spent

    def cores(self) -> dict[str, float]:
        seconds = time.monotonic() - self._at
        return {name: (now - self._before[name]) / seconds for name, now in self._read().items()}


class GpuLooks:
    """What nvidia-smi says meanwhile of the first `gpus`, on average; nothing without it."""

    def __init__(self, gpus: int) -> None:
        self._gpus = gpus
        self._looks: list[tuple[float, float]] = []

    async def watch(self) -> None:
        """Runs until cancelled."""
        command = shutil.which("nvidia-smi")
        query = ("--query-gpu=utilization.gpu,memory.used", "--format=csv,noheader,nounits")
        while command is not None:
            process = await asyncio.create_subprocess_exec(
                command, *query, stdout=asyncio.subprocess.PIPE
            )
            output, _ = await process.communicate()
            for line in output.decode().splitlines()[: self._gpus]:
                use, mib = line.split(",")
                self._looks.append((float(use), float(mib) / 1024))
            await asyncio.sleep(GPU_LOOK_S)

    def row(self) -> dict[str, float]:
        if not self._looks:
            return {}
        use, gib = zip(*self._looks, strict=True)
        return {"gpu_%": mean(use), "gpu_gib": max(gib)}


# --- the far edges ---


class FarEdges:
    """Processes of callers; they grow from one count to the next."""

    def __init__(self, children: Sequence[Child], most: int) -> None:
        self.children = children
        self._most = most

    def shares(self, count: int) -> list[int]:
        """Returns how many of `count` conversations each process holds."""
        each, more = divmod(count, len(self.children))
        return [each + (number < more) for number in range(len(self.children))]

    async def begin(self, workers: Workers, options: argparse.Namespace) -> None:
        """Connects all of them, without conversations yet."""
        for number, one in enumerate(self.children):
            plan = EdgePlan(
                url=",".join(workers.asr),
                voice_url=",".join(workers.tts),
                api_key="",
                first=number * self._most,
                callers=0,
                update_ms=options.update_ms,
                chunk_ms=options.chunk_ms,
                at=0.0,
                stagger_s=TURN_S,
                until=inf,
            )
            one.send(json.dumps(asdict(plan)))

    def grow(self, count: int) -> None:
        for one, share in zip(self.children, self.shares(count), strict=True):
            one.send(str(share))

    def send(self, order: str) -> None:
        for one in self.children:
            one.send(order)

    async def report(self) -> list[dict[str, Any]]:
        """Raises ChildError."""
        self.send("report")
        return await asyncio.gather(*(one.line(ANSWER_S) for one in self.children))


def together(reports: Sequence[dict[str, Any]], name: str) -> list[float]:
    return [value for report in reports for value in report[name]]


def total(reports: Sequence[dict[str, Any]], name: str) -> float:
    return float(sum(report[name] for report in reports))


def row(
    count: int, seconds: float, reports: Sequence[dict[str, Any]], price: float
) -> dict[str, Any]:
    """Returns what the callers saw; `price` is that of an hour of the machine."""
    times = {"final": "finals", "first": "firsts", "share": "shares"}
    latencies = {
        f"{name}_p{q}": percentile(together(reports, of), q)
        for name, of in times.items()
        for q in (50, 95, 99)
    }
    shares, due = together(reports, "shares"), total(reports, "updates_due")
    late = int(total(reports, "frames_late"))
    failed = sum(sum(report["failures"].values()) for report in reports)
    held = bool(shares) and late == failed == 0 and latencies["share_p95"] <= MOST_SHARE_MS
    return {
        "conversations": count,
        "held": "yes" if held else "no",
        "turns": len(shares),
        **latencies,
        "update_p95": percentile(together(reports, "updates"), 95),
        "updates_late_%": 100 * total(reports, "updates_late") / due if due else float("nan"),
        "frames": int(total(reports, "frames")),
        "frames_late": late,
        "gap_max": 1000 * max(together(reports, "gaps"), default=0.0),
        "failed": failed,
        "caller_%": 100 * total(reports, "uttered_s") / count / seconds,
        "agent_%": 100 * total(reports, "frames") * FRAME_S / count / seconds,
        "interrupted": int(total(reports, "interruptions")),
        "caller_late_p99": percentile(together(reports, "caller_late"), 99),
        "caller_late_max": max(together(reports, "caller_late"), default=0.0),
        "conversation_hour": price / count,
    }


# --- the runs ---


async def measure(
    workers: Workers, edges: FarEdges, count: int, options: argparse.Namespace
) -> dict[str, Any]:
    """Grows to `count` conversations, lets them settle and measures. Raises ChildError."""
    kill = options.kill and count == max(options.conversations)
    edges.grow(count)
    await asyncio.sleep(options.settle + count * CONNECT_EACH_S)
    gpu = GpuLooks(options.gpus)
    looking = asyncio.create_task(gpu.watch())
    usage = Usage(workers, edges.children)
    edges.send("measure")
    await asyncio.sleep(options.seconds / 2)
    if kill:
        workers.kill_last()
    await asyncio.sleep(options.seconds / 2)
    cores = {} if kill else usage.cores()
    reports = await edges.report()
    looking.cancel()
    await asyncio.gather(looking, return_exceptions=True)
    failures = Counter[str]()
    for report in reports:
        failures.update(report["failures"])
    for words, times in failures.most_common(3):
        progress(f"  x {times} times: {words}")
    return {**row(count, options.seconds, reports, options.price), **gpu.row(), **cores}


async def conversations(options: argparse.Namespace) -> None:
    """Raises ChildError."""
    most = max(options.conversations)
    processes = ceil(most / options.callers)
    async with started(options) as workers, children(processes, CALLERS) as callers:
        edges = FarEdges(callers, options.callers)
        await edges.begin(workers, options)
        where = "in one process" if options.together else "in a process each"
        note = (
            f"random weights, recognizer {options.asr}, voice {options.tts}, {options.workers} of "
            f"each on {options.gpus} GPU {where}, updates of {options.update_ms} ms, "
            f"{options.chunk_ms} ms a message, "
            f"{options.seconds:g} s each, price {options.price:g} an hour"
        )
        table = Table("conversations", note, COLUMNS, options.json)
        for count in options.conversations:
            found = await measure(workers, edges, count, options)
            table.row(asr=options.asr, tts=options.tts, **found)


def _numbers(text: str) -> list[int]:
    return sorted(int(n) for n in text.split(","))


def main(argv: Sequence[str] | None = None) -> int:
    parser = command("conversations", __doc__)
    add = parser.add_argument
    add("--asr", choices=("0.6B", "1.7B", "tiny", "nemotron"), default="0.6B")
    add("--tts", choices=("0.6B", "1.7B", "tiny", "simulated"), default="0.6B")
    add("--asr-url", default="", help="of workers that run already, with --tts-url")
    add("--tts-url", default="")
    add("--together", action="store_true", help="a recognizer and a voice share a process")
    add("--workers", type=int, default=1, metavar="N", help="recognizers, and voices, a GPU (1)")
    add("--gpus", type=int, default=1, metavar="N", help="the first N GPUs (1)")
    add("--kill", action="store_true", help="a recognizer and a voice, during the last count")
    add("--fronts", type=int, metavar="N", help="processes with the sockets of each voice")
    add("--conversations", type=_numbers, default="200,400,800,1200,1600", metavar="N,…")
    add("--seconds", type=float, default=20.0, help="of each count (20)")
    add("--settle", type=float, default=SETTLE_S, help="before it, in s (13)")
    add("--update-ms", type=int, default=400, help="of sound between two partials (400)")
    add("--chunk-ms", type=int, default=80, help="of sound in one message (80)")
    add("--callers", type=int, default=64, help="most conversations of one process of callers (64)")
    add("--price", type=float, default=3.0, help="of an hour of the machine (3)")
    add("--json", action="store_true", help="a JSON line a row")
    options = parser.parse_args(argv)
    try:
        run(conversations(options))
    except ChildError as error:
        progress(f"x {error}")
        return 1
    return 0
