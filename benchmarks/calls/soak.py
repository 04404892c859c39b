"""Calls for many minutes against a real server: does anything grow, and is everything given back?

    python -m benchmarks.calls.soak --calls 20 --minutes 10 [--scripted] [--json]

Callers talk and interrupt; each group of them hangs up and is replaced every minute. After each
third of the time all hang up, and once the garbage is collected what the server still holds is
compared: the first third warms it up, and over the others it may grow by no more than a few KB a
call and half a KB a turn. Then one more caller is killed, to see how long the server takes to
notice.
"""

import asyncio
import json
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field

import aiohttp

from benchmarks.calls.edge import WORDS
from benchmarks.command import command
from benchmarks.processes.memory import HeapUsage
from benchmarks.processes.process import START_S, Child, Footprint, child, get_json
from benchmarks.table import percentiles
from offhook.web.config.config import Log
from offhook.web.http.logs_io import set_up
from offhook.web.http.loop_io import run as run_loop

GROUP_CALLS = 5
"""Callers of one process, which come and go together."""
GROUP_S = 60.0
SAMPLE_S = 5.0
TEAR_DOWN_S = 30.0
"""The longest that calls which hung up may leave something behind."""
KILLED_S = 45.0
"""The longest waited for the server to notice a caller that was killed."""
PARTS = 3
LEAK_KB_PER_CALL = 10.0
LEAK_KB_PER_TURN = 0.5
"""More left behind than this is a leak."""
NOISE_KB = 200
"""By this much two rests of a server without a leak may differ."""
RSS_GROWTH = 0.05
"""Of the resident size between the rests: more is a leak too, of memory that malloc does not know
of."""


@dataclass(frozen=True)
class Sample:
    """The server at one moment, its child processes included."""

    at_s: float
    calls: int
    rss_mb: float
    threads: int
    files: int
    processes: int
    tasks: int
    lag_p99_ms: float


@dataclass(frozen=True)
class Rest:
    """The server without calls."""

    held: HeapUsage
    calls: int
    """Placed so far."""
    turns: int
    """Answered so far."""


@dataclass(frozen=True)
class Left:
    """What is left behind of the calls between two rests."""

    calls: int
    turns: int
    kb: float
    """At most; what may be noise is taken off."""
    objects: int
    rss_growth: float

    @classmethod
    def between(cls, first: Rest, last: Rest) -> "Left":
        grown = (last.held.at_most_bytes - first.held.at_most_bytes) / 1024
        return cls(
            last.calls - first.calls,
            last.turns - first.turns,
            max(0.0, round(grown - NOISE_KB, 1)),
            last.held.objects - first.held.objects,
            round(last.held.rss_mb / first.held.rss_mb - 1, 4),
        )

    @property
    def conclusive(self) -> bool:
        """So many calls and turns that a leak of twice the limit is seen above the noise."""
        return (
            self.calls * LEAK_KB_PER_CALL >= NOISE_KB and self.turns * LEAK_KB_PER_TURN >= NOISE_KB
        )

    @property
    def leaks(self) -> bool:
        allowed = min(LEAK_KB_PER_CALL * self.calls, LEAK_KB_PER_TURN * self.turns)
        return (self.conclusive and self.kb > allowed) or self.rss_growth > RSS_GROWTH


@dataclass
class Soak:
    series: list[Sample] = field(default_factory=list)
    before: Sample | None = None
    """After one call, so that what is loaded late is loaded."""
    after: Sample | None = None
    """All calls hung up."""
    rests: list[Rest] = field(default_factory=list)
    """After each part."""
    calls_placed: int = 0
    calls_refused: int = 0
    refusals: int = 0
    """Attempts refused, most of them followed by one that was not."""
    calls_cut: int = 0
    """Ended by the server."""
    answered: int = 0
    lines: int = 0
    interruptions: int = 0
    late_ms: dict[str, float] = field(default_factory=dict)
    torn_down_s: list[float | None] = field(default_factory=list)
    """From the last hang-up of each part to no call and no more tasks than before; None: never."""
    killed_noticed_s: float | None = None
    """From kill -9 of a caller to the end of its call; None: never."""

    @property
    def left(self) -> Left:
        """Since the first part."""
        return Left.between(self.rests[0], self.rests[-1])

    @property
    def left_behind(self) -> dict[str, int]:
        """More than before the calls."""
        assert self.before is not None
        assert self.after is not None
        names = ("tasks", "threads", "files", "processes")
        return {n: getattr(self.after, n) - getattr(self.before, n) for n in names}

    @property
    def passed(self) -> bool:
        return (
            None not in self.torn_down_s
            and self.killed_noticed_s is not None
            and not self.left.leaks
            and self.calls_cut == 0
            and self.left_behind["files"] <= 0
        )


class Server:
    """The server under test, from outside."""

    def __init__(self, running: Child, http: aiohttp.ClientSession) -> None:
        self.url = f"http://127.0.0.1:{running.hello['port']}"
        self._pid = running.pid
        self._http = http
        self._started = time.monotonic()

    async def sample(self) -> Sample:
        state = await get_json(self._http, f"{self.url}/readyz")
        stats = await get_json(self._http, f"{self.url}/stats")
        footprint = asdict(Footprint.of(self._pid))
        at_s = round(time.monotonic() - self._started, 1)
        lag = stats["lag_ms"]["p99"]
        return Sample(at_s, state["calls"], **footprint, tasks=stats["tasks"], lag_p99_ms=lag)

    async def held(self) -> HeapUsage:
        return HeapUsage(**await get_json(self._http, f"{self.url}/memory"))

    async def until(self, seconds: float, reached: Callable[[Sample], bool]) -> float | None:
        """How long it took; None when it did not come to it."""
        started = time.monotonic()
        while (passed := time.monotonic() - started) < seconds:
            if reached(await self.sample()):
                return round(passed, 2)
            await asyncio.sleep(0.1)
        return None


def _load(server: Server, calls: int, first: int, manner: str = "interrupting") -> list[str]:
    numbers = ("--calls", str(calls), "--first", str(first))
    return ["benchmarks.callers.browsers", server.url, "--manner", manner, *numbers]


class Group:
    """A seat for some callers; they are replaced until time is up."""

    def __init__(self, server: Server, calls: int, result: Soak, late_ms: list[float]) -> None:
        self._server, self._calls, self._result = server, calls, result
        self._late_ms = late_ms

    async def keep(self, delay: float, until: float, first: int) -> None:
        await asyncio.sleep(delay)
        while (left := until - time.monotonic()) > 0:
            async with child(*_load(self._server, self._calls, first)) as callers:
                callers.send("measure")
                await asyncio.sleep(min(GROUP_S, left))
                callers.send("report")
                self._count(callers.hello, await callers.line(START_S))
            first += 1000

    def _count(self, hello: dict[str, int], report: dict[str, dict[str, object]]) -> None:
        counts, result = report["counts"], self._result
        result.calls_placed += hello["connected"]
        result.calls_refused += self._calls - hello["connected"]
        result.refusals += hello["refusals"]
        for name, key in (("calls_cut", "hung_up"), ("answered", "answered"), ("lines", "lines")):
            setattr(result, name, getattr(result, name) + counts[key])
        result.interruptions += int(str(counts["interruptions"]))
        late = counts["late_ms"]
        assert isinstance(late, list)
        self._late_ms += late


async def _sampling(server: Server, result: Soak, show: Callable[[Sample], None]) -> None:
    while True:
        result.series.append(await server.sample())
        show(result.series[-1])
        await asyncio.sleep(SAMPLE_S)


async def _talk(
    server: Server,
    calls: int,
    seconds: float,
    result: Soak,
    late_ms: list[float],
    show: Callable[[Sample], None],
) -> None:
    """All groups until time is up, a sample every few seconds."""
    until = time.monotonic() + seconds
    shares = [min(GROUP_CALLS, calls - done) for done in range(0, calls, GROUP_CALLS)]
    sampling = asyncio.create_task(_sampling(server, result, show))
    try:
        async with asyncio.TaskGroup() as groups:
            for i, share in enumerate(shares):
                delay = min(GROUP_S, seconds / 2) * i / len(shares)
                group = Group(server, share, result, late_ms)
                groups.create_task(group.keep(delay, until, i * GROUP_CALLS))
    finally:
        sampling.cancel()


async def _rest(server: Server, result: Soak) -> None:
    """After a part: until nothing of its calls runs any more, and what is still held then."""
    before = result.before
    assert before is not None
    took = await server.until(
        TEAR_DOWN_S, lambda sample: sample.calls == 0 and sample.tasks <= before.tasks
    )
    result.torn_down_s.append(took)
    await asyncio.sleep(1)
    result.rests.append(Rest(await server.held(), result.calls_placed, result.answered))


async def _one_call(server: Server, seconds: float) -> None:
    async with child(*_load(server, 1, 1, "talking")):
        await asyncio.sleep(seconds)


async def _kill_one(server: Server) -> float | None:
    """A caller's process is killed in mid-call."""
    async with child(*_load(server, 1, 2, "talking")) as caller:
        await asyncio.sleep(2)
        caller.process.kill()
        await caller.process.wait()
        return await server.until(KILLED_S, lambda sample: sample.calls == 0)


async def soak(calls: int, seconds: float, scripted: bool, show: Callable[[Sample], None]) -> Soak:
    engines = "scripted" if scripted else "embedded"
    result, late_ms = Soak(), list[float]()
    async with (
        child("benchmarks.servers.edge_server", engines, "--words", str(WORDS)) as running,
        aiohttp.ClientSession() as http,
    ):
        server = Server(running, http)
        await _one_call(server, min(10.0, seconds))
        await server.until(TEAR_DOWN_S, lambda sample: sample.calls == 0)
        await asyncio.sleep(1)
        result.before = await server.sample()
        for _ in range(PARTS):
            await _talk(server, calls, seconds / PARTS, result, late_ms, show)
            await _rest(server, result)
        result.late_ms = percentiles(late_ms)
        result.after = await server.sample()
        result.killed_noticed_s = await _kill_one(server)
    return result


def _show(sample: Sample) -> None:
    print(
        f"{sample.at_s:7.0f} s {sample.calls:4} calls {sample.rss_mb:8.1f} MB "
        f"{sample.threads:4} threads {sample.files:5} files {sample.processes:3} processes "
        f"{sample.tasks:5} tasks, loop {sample.lag_p99_ms:.1f} ms late (p99)",
        flush=True,
    )


def _print(result: Soak) -> None:
    rests = ", ".join(f"{rest.held.rss_mb}" for rest in result.rests)
    print(
        f"{result.calls_placed} calls, {result.calls_refused} not taken, {result.refusals} "
        f"refusals, {result.calls_cut} cut; "
        f"{result.answered} of {result.lines} lines answered, {result.interruptions} replies "
        f"interrupted; packets late by {result.late_ms} ms\n"
        f"all torn down after {result.torn_down_s} s; left behind: {result.left_behind}\n"
        f"a killed caller was noticed after {result.killed_noticed_s} s\n"
        f"without calls and garbage the server holds {rests} MB\n"
        f"{_judgement(result.left)}\n"
        f"{'passed' if result.passed else 'FAILED'}"
    )


def _judgement(left: Left) -> str:
    text = (
        f"judged: of {left.calls} calls with {left.turns} turns it kept {left.kb} KB at most, "
        f"beyond {NOISE_KB} KB that may be noise ({LEAK_KB_PER_CALL} KB a call and "
        f"{LEAK_KB_PER_TURN} KB a turn are allowed), and {left.objects} objects; its resident "
        f"size changed by {left.rss_growth:+.1%} ({RSS_GROWTH:+.0%} is allowed)"
    )
    few = (
        ""
        if left.conclusive
        else "\nso few calls and turns prove nothing: soak longer, or more callers"
    )
    return text + few


def main(argv: Sequence[str] | None = None) -> int:
    parser = command("soak", __doc__)
    parser.add_argument("--calls", type=int, default=20)
    parser.add_argument("--minutes", type=float, default=10)
    parser.add_argument("--scripted", action="store_true", help="dummy engines and agent")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args(argv)
    set_up(Log(level="WARNING"))
    show: Callable[[Sample], None] = (lambda sample: None) if arguments.json else _show
    result = run_loop(soak(arguments.calls, arguments.minutes * 60, arguments.scripted, show))
    if arguments.json:
        print(json.dumps({**asdict(result), "left": asdict(result.left), "passed": result.passed}))
    else:
        _print(result)
    return int(not result.passed)


if __name__ == "__main__":
    raise SystemExit(main())
