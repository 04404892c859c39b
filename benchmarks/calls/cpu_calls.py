"""`offhook bench cpu_calls`: whole calls on this machine's CPU, recognition and voice too.

Nemotron and Pocket TTS in int8 have their real size and random weights, each in a worker; words,
lengths and sound are scripted (see cpu_engines). A server with a scripted agent uses them. Callers
by WebRTC on loopback say recorded lines and hear replies of 12 words, more calls row by row until
packets are late. All of it, the callers too, runs on the same cores.

Columns: lines, the share of them answered within five seconds, and how many replies began inside
a line, in its pauses; ms from the end of a line to the first sound of the other replies; the share
of the time in which a caller speaks; packets of the agent's voice over 20 ms late and their
lateness in ms; holes a minute of its voice; the share of one core and the MB of each process.
`--day N` has both engines do N utterances or replies of a second without pause instead, four at
once, and shows its MB after the first, after a tenth and half of them, and at the end.
"""

import asyncio
import os
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.calls.edge import ANSWER_S, SETTLE_S
from benchmarks.command import command
from benchmarks.processes.process import Child, Footprint, child
from benchmarks.speech.lines import short_recordings
from benchmarks.table import Table, percentile, progress
from offhook.media.pcm import RATE_OUT
from offhook.web.http.loop_io import run

ENGINES = "benchmarks.calls.cpu_engines"
LOAD_S = 300
MOST_S = 5
"""Of an utterance or reply of a second."""
LATE_MS = 20
MOST_LATE_PERCENT = 1.0
"""Packets over LATE_MS late with which more calls are still tried."""
PACKETS_PER_S = 50
COLUMNS = (
    "calls connected lines answered inside first_p50_ms first_p95_ms speaking late_20_% "
    "late_p99_ms holes_min edge_core asr_core tts_core callers_core "
    "edge_mb asr_mb tts_mb callers_mb"
)


@asynccontextmanager
async def worker(kind: str) -> AsyncIterator[Child]:
    """A worker that has loaded."""
    began = time.monotonic()
    async with child(ENGINES, kind) as running:
        await running.line(LOAD_S)
        took, mb = time.monotonic() - began, Footprint.of(running.pid).rss_mb
        progress(f"{kind}: ready {took:.1f} s after its start, {mb:.0f} MB")
        yield running


def cpu_s(running: Child) -> float:
    fields = Path(f"/proc/{running.pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


async def measure(
    processes: Mapping[str, Child], calls: int, seconds: float, line_s: float
) -> dict[str, Any]:
    url = f"http://127.0.0.1:{processes['edge'].hello['port']}"
    async with child("benchmarks.callers.browsers", url, "--calls", str(calls)) as callers:
        every = {**processes, "callers": callers}
        await asyncio.sleep(SETTLE_S)
        callers.send("measure")
        before, began = {name: cpu_s(one) for name, one in every.items()}, time.monotonic()
        await asyncio.sleep(seconds)
        callers.send("report")
        heard = (await callers.line(ANSWER_S))["counts"]
        wall = time.monotonic() - began
        cores = {f"{name}_core": (cpu_s(one) - before[name]) / wall for name, one in every.items()}
        memory = {f"{name}_mb": round(Footprint.of(one.pid).rss_mb) for name, one in every.items()}
    first = [ms for ms in heard["response_ms"] if ms]
    late, speech_min = heard["late_ms"], heard["speech_packets"] / PACKETS_PER_S / 60
    return {
        "calls": calls,
        "connected": callers.hello["connected"],
        "lines": heard["lines"],
        "answered": heard["answered"] / heard["lines"] if heard["lines"] else 0.0,
        "inside": len(heard["response_ms"]) - len(first),
        "first_p50_ms": percentile(first, 50),
        "first_p95_ms": percentile(first, 95),
        "speaking": heard["lines"] * line_s / calls / seconds,
        "late_20_%": 100 * float(np.mean([ms > LATE_MS for ms in late])) if late else float("nan"),
        "late_p99_ms": percentile(late, 99),
        "holes_min": heard["holes"] / speech_min if speech_min else float("nan"),
        **{name: round(share, 2) for name, share in cores.items()},
        **memory,
    }


async def calls(counts: Sequence[int], seconds: float, as_json: bool) -> None:
    line_s = float(np.mean([len(line) / RATE_OUT for line in short_recordings()] or [float("nan")]))
    async with (
        worker("asr") as asr,
        worker("tts") as tts,
        child(ENGINES, "edge", asr.hello["url"], tts.hello["url"]) as edge,
    ):
        processes = {"edge": edge, "asr": asr, "tts": tts}
        table = Table("cpu_calls", "random weights, all on the same cores", COLUMNS, as_json)
        for count in counts:
            row = await measure(processes, count, seconds, line_s)
            table.row(**row)
            if row["late_20_%"] > MOST_LATE_PERCENT:
                break


async def day(count: int, as_json: bool) -> None:
    columns = "engine done seconds first_mb tenth_mb half_mb end_mb"
    table = Table("day", "utterances and replies of a second", columns, as_json)

    async def engine(kind: str) -> None:
        async with worker(kind) as running:
            running.send(f"day {count}")
            told = await running.line(LOAD_S + count * MOST_S)
            memory = dict(zip(columns.split()[3:], told.pop("mb"), strict=True))
            table.row(engine=kind, **told, **memory)

    await asyncio.gather(engine("asr"), engine("tts"))


def main(argv: Sequence[str] | None = None) -> int:
    parser = command("cpu_calls", __doc__)
    parser.add_argument("--calls", default="1,2,4,8,12,16")
    parser.add_argument("--seconds", type=float, default=30.0, help="of each row")
    parser.add_argument("--day", type=int, metavar="N")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args(argv)
    if arguments.day:
        run(day(arguments.day, arguments.json))
    else:
        counts = [int(count) for count in arguments.calls.split(",")]
        run(calls(counts, arguments.seconds, arguments.json))
    return 0
