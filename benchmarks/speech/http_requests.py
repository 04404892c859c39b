"""`offhook bench http`: the speech API under load, as programs use it.

Sweeps so many clients at a time over POST /v1/audio/speech (streamed), POST
/v1/audio/transcriptions (as events) and the two sockets: first byte, whole answer, real-time factor
(processing by sound), requests a second, those turned away (503, 429) and errors. With --live N, N
people talk to /ws/transcribe in real time, alone and while a long file is transcribed: what their
finals wait. Beside each point is what it cost the process that is asked, by its own /metrics: CPU a
request and memory; workers behind it have their own. The part "formats" has one reply, spoken
before, in each format: how large it is and how long it takes to make.

The server is the one at --url, or an `offhook speech` of its own. What is heard are the recordings
at 16 kHz in the folder OFFHOOK_SPEECH or ../shared/speech, or, where there are none or with
--spoken, the benchmark's own sentences said by Flite or eSpeak NG.
"""

import argparse
import asyncio
import os
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, nullcontext
from pathlib import Path

import aiohttp
import numpy as np
import soxr
from loguru import logger

from benchmarks.command import command, numbers
from benchmarks.processes.own_server import free_port, started
from benchmarks.processes.process import run as run_loop
from benchmarks.speech.http_live import Live, live_run, transcribe_file
from benchmarks.speech.http_load import (
    Answer,
    Cost,
    Failed,
    LoadInputs,
    Overloaded,
    Requests,
    in_formats,
    long_recording,
    sweep,
    texts,
)
from benchmarks.speech.recordings import recorded
from benchmarks.table import Table, progress
from offhook.media.pcm import RATE_IN, RATE_OUT, Pcm
from offhook.web.workers.engines.engines_io import open_synthesizer

START_S = 120.0
"""Time limit in s for the server to start and for each engine's first response, which may include
loading."""
SPOKEN = 8
"""Sentences synthesized if there are no recordings."""
FORMATS_PART = "formats"
PARTS = ("speech", "transcriptions", "speech-socket", "transcribe-socket", FORMATS_PART)
COLUMNS = (
    "clients requests a_second first_p50_ms first_p95_ms total_p50_ms total_p95_ms rtf_p50 "
    "audio_s_a_s turned_away errors cpu_ms rss_mb"
)
FORMAT_COLUMNS = "format kbytes kbit_s of_wav total_ms"
LIVE_COLUMNS = (
    "streams beside finals final_p50_ms final_p95_ms final_max_ms client_late_p95_ms errors file_s "
    "file_rtf"
)


def _parts(text: str) -> list[str]:
    found = [part for part in text.split(",") if part]
    if unknown := [part for part in found if part not in PARTS]:
        raise argparse.ArgumentTypeError(f"{unknown[0]!r} is none of {', '.join(PARTS)}")
    return found


def _parser() -> argparse.ArgumentParser:
    parser = command("http", __doc__)
    add = parser.add_argument
    add("--url", default="", help="of a running server, as http://localhost:7862")
    add("--api-key", default="", help="when it wants one")
    add("--config", type=Path, help="of the server that is started here")
    add("--parts", type=_parts, default=list(PARTS), metavar="PART,…")
    add("--clients", type=numbers, default=[1, 10, 50, 100, 200], metavar="N,…")
    add("--seconds", type=float, default=10.0, help="of each point, and of --live alone")
    add("--live", type=int, default=0, metavar="N", help="people who talk; then no sweeps")
    add("--file", type=float, default=300.0, metavar="S", help="of the file beside them (300)")
    add("--spoken", action="store_true", help="say what is heard, though there are recordings")
    add("--json", action="store_true", help="a JSON line a row")
    return parser


# --- what is said and heard ---


async def material(say: bool) -> LoadInputs:
    recordings = [] if say else recorded()
    if not recordings:
        from offhook.web.app.cli.caller_io import spoken  # with WebRTC and all

        synthesizer = open_synthesizer()
        await synthesizer.start()
        try:
            for text in texts()[:SPOKEN]:
                recordings.append(_at_16k(await spoken(synthesizer, text)))
        finally:
            await synthesizer.close()
    return LoadInputs(texts(), recordings)


def _at_16k(pcm: Pcm) -> Pcm:
    sound: Pcm = soxr.resample(pcm, RATE_OUT, RATE_IN).astype(np.int16)
    return sound


# --- the server ---


@asynccontextmanager
async def own_server(config: Path | None) -> AsyncIterator[str]:
    """Runs `offhook speech` on loopback and yields its URL. Raises RuntimeError."""
    port = free_port()
    options = ("--config", str(config)) if config else ()
    # OFFHOOK_SPEECH is our folder of recordings rather than a configuration section.
    environment = {name: value for name, value in os.environ.items() if name != "OFFHOOK_SPEECH"}

    async def answers() -> bool:
        try:
            _, writer = await asyncio.open_connection("127.0.0.1", port)
        except OSError:
            return False
        writer.close()
        return True

    arguments = ["speech", "--listen", f"127.0.0.1:{port}", *options]
    absent = "offhook speech is not there"
    async with started(arguments, answers, START_S, absent, environment):
        yield f"http://127.0.0.1:{port}"


async def _warm(ask: Callable[[int], Awaitable[Answer]], name: str) -> None:
    """Waits for the first response, for which an engine may have to load. Raises RuntimeError."""
    words = "it answers nothing"
    until = time.monotonic() + START_S
    while time.monotonic() < until:
        try:
            async with asyncio.timeout(START_S):
                await ask(0)
            return
        except Overloaded as away:
            words = "it turns us away"
            await asyncio.sleep(away.retry_after_s)
        except aiohttp.ClientConnectorError as error:
            raise RuntimeError(f"no server there: {error}") from error
        except (Failed, aiohttp.ClientError, OSError, TimeoutError) as error:
            words = str(error) or type(error).__name__
            await asyncio.sleep(1.0)
    raise RuntimeError(f"{name}: {words}")


# --- the runs ---


async def _sweeps(requests: Requests, a: argparse.Namespace) -> None:
    asking = {
        "speech": requests.speech,
        "transcriptions": requests.transcription,
        "speech-socket": requests.speech_socket,
        "transcribe-socket": requests.transcription_socket,
    }
    for part in a.parts:
        progress(part)
        if part == FORMATS_PART:
            table = Table(part, f"one reply, {a.server}", FORMAT_COLUMNS, a.json)
            async for row in in_formats(requests.http):
                table.row(**row)
            continue
        await _warm(asking[part], part)
        table = Table(part, f"{a.seconds:g} s a point, {a.server}", COLUMNS, a.json)
        for clients in a.clients:
            before = await Cost.of(requests.http)
            tally = await sweep(asking[part], clients, a.seconds)
            after = await Cost.of(requests.http)
            table.row(clients=clients, **tally.row(), **after.since(before, len(tally.answers)))
            _say_errors(tally.said)


async def _live(http: aiohttp.ClientSession, known: LoadInputs, a: argparse.Namespace) -> None:
    progress("loading")
    await _warm(Requests(http, known).transcription_socket, "transcribe-socket")
    note = f"real time, a file of {a.file:g} s, {a.server}"
    table = Table("live", note, LIVE_COLUMNS, a.json)
    sound = long_recording(known.recordings, a.file)
    until = time.monotonic() + a.seconds
    alone = await live_run(http, a.live, known.recordings, lambda: time.monotonic() > until)
    table.row(streams=a.live, beside="nothing", **alone.row())
    _say_errors(alone.said)
    took, beside = await _beside(http, known, sound, a)
    table.row(streams=a.live, beside="a file", **beside.row(), file_s=took, file_rtf=took / a.file)
    _say_errors(beside.said)


async def _beside(
    http: aiohttp.ClientSession, known: LoadInputs, sound: Pcm, a: argparse.Namespace
) -> tuple[float, Live]:
    """Returns the seconds that the file took, and the streams' results meanwhile."""
    transcribing = asyncio.create_task(transcribe_file(http, sound))
    try:
        live = await live_run(http, a.live, known.recordings, transcribing.done)
        return await transcribing, live
    finally:
        transcribing.cancel()


def _say_errors(said: Mapping[str, int]) -> None:
    for words, times in Counter(said).most_common(5):
        progress(f"  x {times} times: {words}")


async def _bench(a: argparse.Namespace) -> None:
    known = await material(a.spoken)
    headers = {"Authorization": f"Bearer {a.api_key}"} if a.api_key else {}
    connector = aiohttp.TCPConnector(limit=0)
    # Nothing waits longer than a request may, which has its own limit.
    limits = aiohttp.ClientTimeout(total=None)
    async with aiohttp.ClientSession(
        a.server, headers=headers, connector=connector, timeout=limits
    ) as http:
        if a.live:
            await _live(http, known, a)
        else:
            await _sweeps(Requests(http, known), a)


async def _run(a: argparse.Namespace) -> None:
    async with nullcontext(a.url) if a.url else own_server(a.config) as a.server:
        await _bench(a)


def main(argv: Sequence[str] | None = None) -> int:
    a = _parser().parse_args(argv)
    logger.remove()
    logger.add(sys.stderr, level="WARNING")
    run_loop(_run(a))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
