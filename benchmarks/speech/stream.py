"""`offhook bench stream`: how long a word takes from the speaker's mouth to a text, and where.

So many callers at a time talk to WS /ws/transcribe in real time, in pieces of --chunk-ms, and say
what the worker tells of its stages (`timing=true`). Of each utterance the time from its first
sample to the first text at the client, and of that: waiting for the sound which the text needed,
the network, waiting for a batch, the model, the way to the stream's mailbox, and to the socket. Of
each update the time from its newest sound's leaving to its coming; what share of the updates came
later than one update after their sound; of each utterance the time from its end to its final.

The callers are in processes of their own, 50 in each. The server is the one at --url, or an
`offhook worker asr` of its own. What is said are the recordings at 16 kHz in the folder
OFFHOOK_SPEECH or ../shared/speech, phrase by phrase, each from the first of its voice on; where
there are none, something like a voice, of which an engine may make no words.
"""

import argparse
import asyncio
import json
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager, nullcontext
from dataclasses import asdict
from math import ceil

import aiohttp
import numpy as np
from loguru import logger

from benchmarks.command import command, numbers
from benchmarks.processes.own_server import free_port, is_ready, started
from benchmarks.processes.process import ChildError, children
from benchmarks.processes.process import run as run_loop
from benchmarks.speech.http_live import transcribe_file
from benchmarks.speech.http_load import Failed, LoadInputs, Overloaded, Requests, long_recording
from benchmarks.speech.stream_callers import FINALS_S, READY_S, Plan, spoken_phrases
from benchmarks.speech.stream_result import FIRST_COLUMNS, LATER_COLUMNS, Result
from benchmarks.table import Table, percentile, progress

CALLERS = 50
"""Callers per process: 2500 chunks per second take a tenth of a core."""
LOADING_S = 600.0
CONNECT_S = 1.0
"""Time in s from the start of the callers to the first audio, plus CONNECT_EACH_S for each."""
CONNECT_EACH_S = 0.005
STAGGER_S = 2.0
"""Or the duration of a point, if shorter."""
FILES = 10
FILE_COLUMNS = "way seconds p50_ms p95_ms errors"


def _parser() -> argparse.ArgumentParser:
    parser = command("stream", __doc__)
    add = parser.add_argument
    add("--url", default="", help="of a running worker, as http://localhost:7870")
    add("--api-key", default="", help="when it wants one")
    add("--engine", default="pocketsphinx", help="of the worker that is started here")
    add("--model", default="", help="an id or a folder")
    add("--device", choices=("auto", "cpu", "cuda"), default="auto")
    add("--concurrency", type=numbers, default=[1, 10, 50, 100, 200], metavar="N,…")
    add("--update-ms", type=int, default=80, help="of sound between two partials (80)")
    add("--chunk-ms", type=int, default=20, help="of sound in one message (20)")
    add("--seconds", type=float, default=20.0, help="of each point, after all have begun (20)")
    add("--file", type=float, default=0.0, metavar="S", help="then a file of S seconds, 10 times")
    add("--json", action="store_true", help="a JSON line a row")
    return parser


# --- the server ---


@asynccontextmanager
async def own_worker(a: argparse.Namespace) -> AsyncIterator[str]:
    """Runs `offhook worker asr` on loopback and yields its URL once it has loaded. Raises
    RuntimeError."""
    address = f"127.0.0.1:{free_port()}"
    progress(f"loading {a.engine}")
    options = {"--engine": a.engine, "--model": a.model, "--device": a.device, "--listen": address}
    # A stream that has ended may still count briefly.
    options["--max-streams"] = str(2 * max(a.concurrency))
    given = [word for pair in options.items() for word in pair]
    url = f"http://{address}"
    arguments, absent = ["worker", "asr", *given], "the worker does not load"
    async with started(arguments, lambda: is_ready(url), LOADING_S, absent):
        yield url


# --- the runs ---


async def point(streams: int, a: argparse.Namespace) -> Result:
    """Measures `streams` concurrent callers. Raises ChildError."""
    found = Result()
    count = ceil(streams / CALLERS)
    async with children(count, "benchmarks.speech.stream_callers") as processes:
        at = time.monotonic() + CONNECT_S + streams * CONNECT_EACH_S
        stagger_s = min(STAGGER_S, a.seconds) if streams > 1 else 0.0
        until = at + stagger_s + a.seconds
        for number, each in enumerate(processes):
            first = number * CALLERS
            callers = min(CALLERS, streams - first)
            every = (a.update_ms, a.chunk_ms, at, stagger_s, until)
            plan = Plan(a.server, a.api_key, first, callers, *every)
            each.send(json.dumps(asdict(plan)))
        within_s = until - time.monotonic() + READY_S + 2 * FINALS_S
        for table in await asyncio.gather(*(each.line(within_s) for each in processes)):
            found.add(Result.of(table))
    return found


async def _sweep(a: argparse.Namespace) -> None:
    note = f"updates of {a.update_ms} ms, {a.chunk_ms} ms a message, {a.seconds:g} s a point"
    first = Table("first text", f"{note}, {a.server}", FIRST_COLUMNS, a.json)
    rows = []
    for streams in a.concurrency:
        progress(f"{streams} streams")
        found = await point(streams, a)
        for row in found.first_rows():
            first.row(streams=streams, **row)
        rows += [{"streams": streams, **row} for row in found.later_rows()]
        for words, times in Counter(found.errors).most_common(5):
            progress(f"  x {times} times: {words}")
        if a.json:
            _later(rows, note, a)
            rows.clear()
    if rows:
        _later(rows, note, a)


def _later(rows: Sequence[dict[str, object]], note: str, a: argparse.Namespace) -> None:
    later = Table("updates and finals", note, LATER_COLUMNS, a.json)
    for row in rows:
        later.row(**row)


async def _files(http: aiohttp.ClientSession, a: argparse.Namespace) -> None:
    """Transcribes files one at a time, sent at once: as a form, and on a socket that is not
    live."""
    recordings = [np.frombuffer(line, np.int16) for line in spoken_phrases()]
    clip = long_recording(recordings, a.file)
    requests = Requests(http, LoadInputs((), [clip]))

    async def on_socket() -> float:
        return (await requests.transcription_socket(0)).total

    note = f"{FILES} times one of {a.file:g} s, one after another, {a.server}"
    table = Table("file", note, FILE_COLUMNS, a.json)
    ways = {"POST": lambda: transcribe_file(http, clip), "WebSocket": on_socket}
    for way, ask in ways.items():
        took, errors = await _times(ask)
        p50, p95 = (1000 * percentile(took, q) for q in (50, 95))
        table.row(way=way, seconds=a.file, p50_ms=p50, p95_ms=p95, errors=sum(errors.values()))
        for words, times in errors.most_common(5):
            progress(f"  x {times} times: {words}")


async def _times(ask: Callable[[], Awaitable[float]]) -> tuple[list[float], Counter[str]]:
    """Times FILES requests after one that does not count; returns seconds and errors."""
    took, errors = [], Counter[str]()
    for number in range(1 + FILES):
        try:
            seconds = await ask()
        except (aiohttp.ClientError, Failed, Overloaded, OSError) as error:
            errors[str(error) or type(error).__name__] += 1
        else:
            took += [seconds] if number else []
    return took, errors


async def _bench(a: argparse.Namespace) -> None:
    await _sweep(a)
    if a.file:
        headers = {"Authorization": f"Bearer {a.api_key}"} if a.api_key else {}
        limits = aiohttp.ClientTimeout(total=None)
        async with aiohttp.ClientSession(a.server, headers=headers, timeout=limits) as http:
            await _files(http, a)


async def _run(a: argparse.Namespace) -> None:
    async with nullcontext(a.url) if a.url else own_worker(a) as a.server:
        await _bench(a)


def main(argv: Sequence[str] | None = None) -> int:
    a = _parser().parse_args(argv)
    logger.remove()
    logger.add(sys.stderr, level="WARNING")
    try:
        run_loop(_run(a))
    except (ChildError, RuntimeError) as error:
        print(f"x {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
