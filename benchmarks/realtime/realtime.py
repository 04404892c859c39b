"""`offhook bench realtime`: Realtime sessions by WebSocket, beside peers.

    serve      one caller of `offhook serve` with its built-in engines: connection, answer,
               interruption, by WebSocket and by WebRTC
    dummy      the same by WebSocket with engines that cost nothing, ours and the peers
    load       many sessions with those engines: CPU time and answers of each server

All servers get the same sound and end a turn after the same silence. Ours and Hugging Face's
speech-to-speech speak OpenAI's events and keep a conversation; Pipecat speaks its own frames and
keeps none. Server and callers are processes of their own on 127.0.0.1. What limits the callers is
printed beside: their share of a core, and the lag of their loop.

speech-to-speech is run from a copy of its source, and needs scipy besides what is installed here:
    git clone https://github.com/huggingface/speech-to-speech /tmp/s2s
    pip install --no-deps --target /tmp/scipy scipy
    PYTHONPATH=/tmp/scipy offhook bench realtime --huggingface /tmp/s2s/src
"""

import argparse
import asyncio
import json
import sys
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass
from statistics import median

import aiohttp

from benchmarks.calls.call_turns import server
from benchmarks.command import command
from benchmarks.processes.process import Child, ChildError, Footprint, child, get_json
from benchmarks.realtime.sessions import DIALECTS, OpenAI, Session
from benchmarks.realtime.webrtc import WebRtcCaller
from benchmarks.speech.lines import voiced
from offhook.web.config.config import Log
from offhook.web.config.server import MAX_CALLS
from offhook.web.http.logs_io import set_up
from offhook.web.http.loop_io import run as run_loop

LINE = "Tell me about yourself."
CUT_IN = "Stop please, I have got another question for you."
CUT_AFTER_S = 1.5
"""How long the agent is heard before the caller cuts in."""
QUIET_S = 2.0
"""Silence after which the agent has finished."""
WORDS = 40
"""Length of the answers that are interrupted, with dummy engines."""
LOAD_WORDS = 8
"""The same of those under load."""
ALL_S = 120.0
"""Time limit in s for all callers to be there, beyond their ramp."""


@dataclass(frozen=True)
class Caller:
    """What one caller met, in ms: median and worst."""

    server: str
    connect: tuple[float, float]
    answer: tuple[float, float]
    """From the end of speech to the first sound."""
    cut: tuple[float, float]
    """From the onset of the caller's speech over the agent's until the client is told to stop
    playing, or the server's own playout is cleared."""
    truncated: tuple[float, float] | None = None
    """The same until the server has truncated the item."""


@dataclass(frozen=True)
class Load:
    server: str
    sessions: int
    cpu: float
    """Percent of a core for each session."""
    rss_mb: float
    """For each session, with the server's own share."""
    lag_p99_ms: float
    """Of the server's event loop."""
    answer: tuple[float, float]
    """p50 and p99 in ms from the end of speech to the first sound."""
    unanswered: int
    callers_core: float
    callers_lag_ms: float


def middle(values: Sequence[float]) -> tuple[float, float]:
    return round(median(values), 1), round(max(values), 1)


# --- one caller ---


async def by_websocket(
    name: str, url: str, dialect: type[Session], rounds: int, truncates: bool = True
) -> Caller:
    line, cut_in = map(dialect.chunks, (await voiced(LINE, CUT_IN)).values())
    connects, answers, cuts, truncations = (
        list[float](),
        list[float](),
        list[float](),
        list[float](),
    )
    async with aiohttp.ClientSession() as http:
        for _ in range(rounds):
            session = dialect()
            await session.open(http, url)
            connects.append(session.connect_ms)
            try:
                await asyncio.sleep(1.0)
                await _until_quiet(session)  # of a greeting
                await session.say(line)
                answered = await session.next("audio", session.spoken_at)
                answers.append((answered - session.spoken_at) * 1000)
                await asyncio.sleep(CUT_AFTER_S)
                session.begin_to_say(cut_in)
                while not session.onset_at:
                    await asyncio.sleep(0.001)
                onset = session.onset_at
                cuts.append((await session.next("cut", onset) - onset) * 1000)
                if truncates and isinstance(session, OpenAI):
                    await session.truncate()
                    told = session.came("conversation.item.truncated")
                    truncations.append((told - onset) * 1000)
            finally:
                await session.close()
    truncated = middle(truncations) if truncations else None
    return Caller(name, middle(connects), middle(answers), middle(cuts), truncated)


async def _until_quiet(session: Session) -> None:
    while time.monotonic() - session.came("audio") < QUIET_S:
        await asyncio.sleep(0.1)


async def by_webrtc(name: str, url: str, rounds: int) -> Caller:
    line, cut_in = (await voiced(LINE, CUT_IN)).values()
    connects, answers, cuts = list[float](), list[float](), list[float]()
    for _ in range(rounds):
        caller = WebRtcCaller()
        try:
            connects.append(await caller.call(url))
            await asyncio.sleep(1.0)
            caller.microphone.say(line)
            answered = await caller.until("output_audio_buffer.started")
            answers.append((answered - caller.microphone.spoken_at) * 1000)
            await asyncio.sleep(CUT_AFTER_S)
            caller.microphone.say(cut_in)
            cleared = await caller.until("output_audio_buffer.cleared")
            cuts.append((cleared - caller.microphone.onset_at) * 1000)
        finally:
            await caller.close()
    return Caller(name, middle(connects), middle(answers), middle(cuts))


async def _serve(rounds: int) -> list[Caller]:
    async with server() as url:
        stream = f"{url.replace('http', 'ws')}/v1/realtime?model=gpt-realtime"
        return [
            await by_websocket("serve, WebSocket", stream, DIALECTS["openai"], rounds),
            await by_webrtc("serve, WebRTC", url, rounds),
        ]


# --- with dummy engines ---


@dataclass(frozen=True)
class Server:
    """A kind of server with dummy engines."""

    dialect: str
    command: tuple[str, ...]
    """The module, and its arguments."""


SERVERS = {
    "offhook": Server("openai", ("benchmarks.servers.edge_server", "scripted")),
    "pipecat": Server("pipecat", ("benchmarks.realtime.stock_pipecat",)),
}


def hugging_face(source: str, sessions: int) -> Server:
    module = "benchmarks.realtime.stock_hf"
    return Server("openai", (module, source, "--pipelines", str(sessions)))


@asynccontextmanager
async def dummy(kind: str, at: Server, words: int) -> AsyncIterator[tuple[Child, str, str]]:
    """A server with dummy engines: its process, its URL, and that of its streams."""
    async with child(*at.command, "--words", str(words)) as running:
        url = f"http://127.0.0.1:{running.hello['port']}"
        stream = f"{url.replace('http', 'ws')}/v1/realtime?model=gpt-realtime"
        if kind != "offhook":
            async with aiohttp.ClientSession() as http:
                stream = (await get_json(http, f"{url}/streams"))["stream"]
        yield running, url, stream


async def _dummy(kind: str, at: Server, rounds: int) -> Caller:
    async with dummy(kind, at, WORDS) as (_, _, stream):
        dialect, truncates = DIALECTS[at.dialect], kind == "offhook"
        return await by_websocket(f"{kind}, dummy", stream, dialect, rounds, truncates)


async def load(kind: str, at: Server, sessions: int, seconds: float) -> Load:
    callers_of = ("benchmarks.realtime.callers", at.dialect, str(sessions), str(seconds))
    async with (
        dummy(kind, at, LOAD_WORDS) as (running, url, stream),
        aiohttp.ClientSession() as http,
        child(*callers_of, stream) as callers,
    ):
        await callers.line(ALL_S + sessions)
        before = await get_json(http, f"{url}/stats")
        told = await callers.line(ALL_S + seconds)
        after = await get_json(http, f"{url}/stats")
        rss_mb = Footprint.of(running.pid).rss_mb
    cpu = (after["cpu_s"] - before["cpu_s"]) / (after["wall_s"] - before["wall_s"])
    answers = told["answer_ms"] or [0.0]
    return Load(
        kind,
        sessions,
        round(100 * cpu / sessions, 2),
        round(rss_mb / sessions, 2),
        after["lag_ms"]["p99"],
        (answers[len(answers) // 2], answers[len(answers) * 99 // 100]),
        told["unanswered"],
        told["callers_core"],
        told["callers_lag_ms"],
    )


# --- the command ---


def _callers(rows: Sequence[Caller]) -> None:
    print(
        f"{'ms, median and worst':24} {'connect':>15} {'answer':>15} {'cut':>15} {'truncated':>15}"
    )
    for row in rows:
        cells = (row.connect, row.answer, row.cut, row.truncated)
        shown = (f"{one[0]:.0f}, {one[1]:.0f}" if one else "-" for one in cells)
        print(f"{row.server:24} " + " ".join(f"{text:>15}" for text in shown), flush=True)


def _loads(rows: Sequence[Load]) -> None:
    print(
        f"{'server':16} {'sessions':>8} {'% of a core':>12} {'MB':>6} {'lag p99 ms':>11} "
        f"{'answer p50, p99 ms':>20} {'unanswered':>11} {'callers: core, lag':>19}"
    )
    for row in rows:
        answer = f"{row.answer[0]:.0f}, {row.answer[1]:.0f}"
        callers = f"{row.callers_core:.2f}, {row.callers_lag_ms:.0f} ms"
        print(
            f"{row.server:16} {row.sessions:>8} {row.cpu:>12.2f} {row.rss_mb:>6.1f} "
            f"{row.lag_p99_ms:>11.1f} {answer:>20} {row.unanswered:>11} {callers:>19}",
            flush=True,
        )


def _servers(a: argparse.Namespace, sessions: int) -> dict[str, Server]:
    """All servers that are compared, for so many sessions at most."""
    if a.huggingface is None:
        return SERVERS
    return {**SERVERS, "speech-to-speech": hugging_face(a.huggingface, sessions)}


def main(argv: Sequence[str] | None = None) -> int:
    parser = command("realtime", __doc__)
    parser.add_argument("--parts", default="serve,dummy,load")
    parser.add_argument("--huggingface", metavar="DIR", help="the folder src of speech-to-speech")
    parser.add_argument("--rounds", type=int, default=10, help="calls of the one caller")
    parser.add_argument("--sessions", default="50,200", help="at once, step by step")
    parser.add_argument("--seconds", type=float, default=30.0, help="each row of load is counted")
    parser.add_argument("--json", action="store_true")
    a = parser.parse_args(argv)
    steps = [int(number) for number in a.sessions.split(",")]
    if unknown := {*a.parts.split(",")} - {"serve", "dummy", "load"}:
        parser.error(f"unknown: {', '.join(sorted(unknown))}")
    if max(steps) > MAX_CALLS:
        parser.error(f"one process holds {MAX_CALLS} calls")
    set_up(Log(level="WARNING"))
    one, many = list[Caller](), list[Load]()
    if "serve" in a.parts:
        one += run_loop(_serve(a.rounds))
    if "dummy" in a.parts:
        one += [run_loop(_dummy(kind, at, a.rounds)) for kind, at in _servers(a, a.rounds).items()]
    if one and not a.json:
        _callers(one)
    if "load" in a.parts:
        for step in steps:
            for kind, at in _servers(a, step).items():
                try:
                    many.append(run_loop(load(kind, at, step, a.seconds)))
                except ChildError as error:
                    print(f"{kind} does not hold {step} sessions: {error}", file=sys.stderr)
    if many and not a.json:
        _loads(many)
    if a.json:
        print(json.dumps([*map(asdict, one), *map(asdict, many)]))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
