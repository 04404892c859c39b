"""The part `open` of `offhook bench tts` through the sockets of a worker: see tts.py.

The worker has random weights (see random_workers.py) and a process of its own; the clients are in
this one, on the same machine. Doors:

http      POST /v1/audio/speech, streamed PCM
gateway   the same, with `offhook speech` before the worker
socket    WS /v1/audio/speech/ws, a request a message, on a connection of its own
commands  the same address by the protocol of workers, a word in 10 ms
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from time import monotonic
from typing import Any

import aiohttp

from benchmarks.processes.own_server import free_port, is_ready, started
from benchmarks.processes.process import cpu_s
from benchmarks.speech.http_load import Failed, check
from benchmarks.speech.texts import Talk
from benchmarks.table import Table, percentile
from benchmarks.voices.listening import Listener, Tally
from benchmarks.voices.tts_parts import PUBLISHED_P95_MS, WORD_S, Point
from benchmarks.voices.tts_runners import MODELS
from offhook.pipeline.engines.shared.synthesis.messages import FRAME_SAMPLES

LOAD_S = 600.0
"""Time limit for a worker to load, which compiles its kernels the first time."""
REPLY_S = 60.0
DOORS = ("http", "gateway", "socket", "commands")
SPEECH, SOCKET = "/v1/audio/speech", "/v1/audio/speech/ws"
CONFIG = """[asr]
url = "{url}"
[tts]
engine = "qwen3-tts"
url = "{url}"
[speech]
speeches = {streams}
streams = {streams}
"""


@dataclass
class Ask:
    """One request, from its client's side."""

    text: str
    listener: Listener
    tally: Tally
    began: float = 0.0
    heard: bool = False

    def begin(self) -> None:
        self.began = monotonic()

    def hear(self, sound: bytes) -> None:
        now = monotonic()
        if not self.heard and sound:
            self.heard = True
            self.tally.first_ms.append(1000 * (now - self.began))
        self.listener.hear(len(sound) / 2 / FRAME_SAMPLES, now)


@dataclass
class Outcome:
    """Of the requests of one point."""

    tally: Tally = field(default_factory=Tally)
    asks: list[Ask] = field(default_factory=list)
    lag_ms: list[float] = field(default_factory=list)
    """Of the client: how much later than planned it asked."""
    under_way: int = 0
    peak: int = 0
    """Requests at once."""
    failed: list[str] = field(default_factory=list)


Say = Callable[[aiohttp.ClientSession, Ask], Coroutine[Any, Any, None]]


async def by_request(http: aiohttp.ClientSession, ask: Ask) -> None:
    """Raises Failed, and aiohttp's exceptions."""
    body = {"input": ask.text, "voice": "aiden", "language": "en", "response_format": "pcm"}
    ask.begin()
    async with http.post(SPEECH, json=body) as response:
        await check(response)
        async for data in response.content.iter_any():
            ask.hear(data)


async def by_message(http: aiohttp.ClientSession, ask: Ask) -> None:
    """Raises Failed, and aiohttp's exceptions."""
    async with http.ws_connect(SOCKET, compress=0) as socket:
        ask.begin()
        await socket.send_json({"input": ask.text, "voice": "aiden", "language": "en"})
        await _listen(socket, ask, "event")


async def by_commands(http: aiohttp.ClientSession, ask: Ask) -> None:
    """Raises Failed, and aiohttp's exceptions."""
    async with http.ws_connect(f"{SOCKET}?voice=aiden&language=en", compress=0) as socket:
        listening = asyncio.create_task(_listen(socket, ask, "type"))
        words = ask.text.split(" ")
        ask.begin()
        for number, word in enumerate(words):
            await asyncio.sleep(ask.began + number * WORD_S - monotonic())
            space = " " if number < len(words) - 1 else ""
            await socket.send_json({"type": "text", "text": word + space})
        await socket.send_json({"type": "end"})
        await listening


async def _listen(socket: aiohttp.ClientWebSocketResponse, ask: Ask, kind: str) -> None:
    """Hears one reply to its end. Raises Failed."""
    async for frame in socket:
        if frame.type is aiohttp.WSMsgType.BINARY:
            ask.hear(frame.data)
            continue
        event = frame.json()
        if event[kind] == "done":
            return
        if event[kind] == "error":
            raise Failed(str(event))
    raise Failed(f"the socket closed ({socket.close_code})")


async def _arrivals(http: aiohttp.ClientSession, say: Say, model: str, point: Point) -> Outcome:
    """Requests that come however many are there already (Poisson), with the same texts at the same
    times as without a socket."""
    outcome, random = Outcome(), Random(point.rate)
    talk = Talk(MODELS[model], 1)
    at = began = monotonic()
    async with asyncio.TaskGroup() as group:
        while (at := at + random.expovariate(point.rate)) < began + point.seconds:
            text = "".join(word.text for word in talk.sentence()).strip()
            ask = Ask(text, Listener(outcome.tally, 0.0), outcome.tally)
            await asyncio.sleep(max(0.0, at - monotonic()))
            outcome.lag_ms.append(1000 * (monotonic() - at))
            outcome.asks.append(ask)
            group.create_task(_ask(http, say, ask, outcome))
    return outcome


async def _ask(http: aiohttp.ClientSession, say: Say, ask: Ask, outcome: Outcome) -> None:
    outcome.under_way += 1
    outcome.peak = max(outcome.peak, outcome.under_way)
    try:
        async with asyncio.timeout(REPLY_S):
            await say(http, ask)
    except (Failed, aiohttp.ClientError, TimeoutError) as error:
        outcome.failed.append(str(error) or type(error).__name__)
    finally:
        outcome.under_way -= 1


# --- servers ---


@dataclass(frozen=True)
class Door:
    """Servers that were started, and how a request goes through them."""

    name: str
    url: str
    pids: tuple[int, ...]
    say: Say

    def cpu_s(self) -> float:
        return sum(map(cpu_s, self.pids))


@asynccontextmanager
async def _opened(model: str, streams: int, names: Sequence[str]) -> AsyncIterator[list[Door]]:
    """Raises RuntimeError if a server does not start."""
    async with AsyncExitStack() as stack:
        address = f"127.0.0.1:{free_port()}"
        url = f"http://{address}"
        options = ("tts", "--model", model, "--max-streams", str(streams), "--listen", address)
        there = partial(is_ready, url)
        module = "benchmarks.engines.random_workers"
        absent = "the worker did not load"
        worker = await stack.enter_async_context(
            started((*options, "--log-level", "WARNING"), there, LOAD_S, absent, module=module)
        )
        ways: dict[str, Say] = {"http": by_request, "socket": by_message, "commands": by_commands}
        doors = [Door(n, url, (worker.pid,), ways[n]) for n in names if n in ways]
        if "gateway" in names:
            listen = f"127.0.0.1:{free_port()}"
            config = Path(stack.enter_context(TemporaryDirectory())) / "offhook.toml"
            config.write_text(CONFIG.format(url=url, streams=streams))
            gateway = await stack.enter_async_context(
                started(
                    ("speech", "--config", str(config), "--listen", listen),
                    partial(is_ready, f"http://{listen}"),
                    LOAD_S,
                    "the gateway did not start",
                )
            )
            pids = worker.pid, gateway.pid
            doors.append(Door("gateway", f"http://{listen}", pids, by_request))
        yield doors


async def _through(
    model: str, streams: int, names: Sequence[str], points: Sequence[Point], table: Table
) -> None:
    async with _opened(model, streams, names) as doors:
        for door in doors:
            timeout = aiohttp.ClientTimeout(total=None)
            connector = aiohttp.TCPConnector(limit=0)
            async with aiohttp.ClientSession(
                door.url, connector=connector, timeout=timeout
            ) as http:
                await _ask(http, door.say, Ask("Good morning.", *_nobody()), Outcome())
                for point in points:
                    before = door.cpu_s()
                    outcome = await _arrivals(http, door.say, model, point)
                    table.row(**_row(door, point, outcome, door.cpu_s() - before))


def _nobody() -> tuple[Listener, Tally]:
    tally = Tally()
    return Listener(tally, 0.0), tally


def _row(door: Door, point: Point, outcome: Outcome, spent_s: float) -> dict[str, Any]:
    first_ms, asks = outcome.tally.first_ms, outcome.asks
    return {
        "through": door.name,
        "a_second": point.rate,
        "requests": len(asks),
        "first_p50_ms": percentile(first_ms, 50),
        "first_p95_ms": percentile(first_ms, 95),
        "published_p95_ms": PUBLISHED_P95_MS.get(point.rate),
        "underruns": sum(ask.listener.gaps > 0 for ask in asks),
        "peak": outcome.peak,
        "failed": len(outcome.failed),
        "fault": next(iter(outcome.failed), ""),
        "cpu_ms": 1000 * spent_s / max(1, len(asks)),
        "client_lag_p95_ms": percentile(outcome.lag_ms, 95),
    }


def through(
    model: str, streams: int, names: Sequence[str], points: Sequence[Point], as_json: bool
) -> None:
    """Raises RuntimeError if a server does not start."""
    columns = (
        "through a_second requests first_p50_ms first_p95_ms published_p95_ms underruns peak "
        "failed cpu_ms client_lag_p95_ms"
    )
    note = (
        "the same texts at the same times through the sockets of a worker. first: from the request "
        "to the first sound at its client; underruns: requests whose listener, playing at once, "
        "had to wait; cpu: of the servers, for each request"
    )
    table = Table("open through", note, columns, as_json)
    whole = [point for point in points if point.text == "whole"]
    asyncio.run(_through(model, streams, names, whole, table))
