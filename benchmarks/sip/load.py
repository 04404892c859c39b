"""Load and overload by SIP: see `offhook bench sip load --help` and `... overload --help`."""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import asdict, dataclass
from typing import Any

from benchmarks.callers.pair import CpuShares, Pair, ResourceUse, cpus, paired
from benchmarks.processes.process import get_json
from benchmarks.servers.kamailio import kamailio

OPTIONS = 8_000
"""Fewer than the maximum transactions, each of which is kept for 32 s."""
OPTIONS_WINDOW = 32


@dataclass(frozen=True)
class Row:
    """One server under one load for some seconds."""

    server: str
    phase: str
    """"held": the calls continue; "churn": they come and go; "before" and "during" an overload."""
    asked: int
    calls: int
    """Established calls at the end."""
    seconds: float
    setups: int
    setup_ms: dict[str, float]
    refused: dict[str, int]
    """Refused calls by status."""
    told_when: int
    """Calls refused with 503 and a Retry-After."""
    cut: int
    """Established calls that were cut off."""
    packets: int
    """Packets received by the callers."""
    missing: int
    late_ms: dict[str, float]
    late_percent: dict[str, float]
    """Of the packets, by how many ms they were later than the most punctual of their call."""
    spent: ResourceUse
    cpu_per_call_percent: float
    mb_per_call: float | None
    rss_growth_mb: float
    """What the server's memory grew by meanwhile."""
    own: dict[str, Any]
    """The callers' own CPU share, sending lateness and loop lag."""
    shares: CpuShares | None = None
    """Set with several edges; the other values are then sums or maxima."""


@dataclass(frozen=True)
class Answers:
    """OPTIONS at maximum speed."""

    count: int
    statuses: dict[str, int]
    lost: int
    per_second: float
    server_us: float
    """CPU time of the server per request."""
    server_percent: float
    own_percent: float
    """CPU share of the sender; near 100 it is the bottleneck."""


@dataclass(frozen=True)
class Load:
    """The result of `load`."""

    ramp: dict[str, Any]
    """Setup of the calls at the start."""
    rows: list[Row]
    setup_cpu_ms: float | None
    """CPU time of starting and ending a call: the additional cost of churn over held calls. None if
    the number of calls differed."""
    options: Answers | None


PAUSES = {"echo": 1.0, "vad": 1.0, "scripted": 6.0}
"""Pause in s between a caller's lines. A scripted reply takes 4 s and is heard to its end."""
WORDS = 13
"""Of such a reply."""


@asynccontextmanager
async def pair(
    kind: str,
    rate: float,
    pin: bool,
    server_options: Sequence[str] = (),
    edges: int = 1,
    loss: float = 0.0,
) -> AsyncIterator[Pair]:
    """Starts server and callers, `kind` as in `edge_server`; several edges run behind Kamailio.
    `loss` is the percentage of the callers' packets that get lost. Raises ChildError,
    KamailioError."""
    server = ("benchmarks.servers.edge_server", kind, "--sip", "--words", str(WORDS))
    async with AsyncExitStack() as stack:

        async def callers(both: Pair) -> tuple[str, ...]:
            ports = [(await get_json(edge.http, "/lines"))["port"] for edge in both.edges]
            if edges > 1:
                both.proxy = await stack.enter_async_context(kamailio(ports))
            port = ports[0] if both.proxy is None else both.proxy.port
            said = ("--rate", str(rate), "--pause", str(PAUSES[kind]), "--loss", str(loss))
            return ("benchmarks.sip.callers", str(port), *said)

        servers = [(*server, *server_options)] * edges
        yield await stack.enter_async_context(paired(servers, callers, cpus(pin, edges)))


async def _row(
    both: Pair, server: str, phase: str, asked: int, seconds: float, mb_per_call: float | None
) -> Row:
    """Measures the next `seconds`."""
    filled = both.footprint()
    first, last, report = await both.observe(seconds)
    spent = ResourceUse.between(first.whole, last.whole)
    packets = max(1, report["packets"])
    return Row(
        server=server,
        phase=phase,
        asked=asked,
        calls=report["up"],
        seconds=seconds,
        setups=report["calls"],
        setup_ms=report["setup_ms"],
        refused=report["refused"],
        told_when=report["told_when"],
        cut=report["cut"],
        packets=report["packets"],
        missing=report["missing"],
        late_ms=report["late_ms"],
        late_percent={ms: round(100 * n / packets, 3) for ms, n in report["late"].items()},
        spent=spent,
        cpu_per_call_percent=round(spent.cpu_percent / max(1, report["up"]), 3),
        mb_per_call=mb_per_call,
        rss_growth_mb=round(both.footprint().rss_mb - filled.rss_mb, 1),
        own=report["own"],
        shares=CpuShares.between(first, last) if both.proxy is not None else None,
    )


async def load(
    server: str,
    calls: int,
    rate: float,
    seconds: float,
    pin: bool,
    options: int,
    show: Callable[[Row], None],
    edges: int = 1,
    loss: float = 0.0,
) -> Load:
    """With a new server, sets up calls, holds them, then lets them come and go. With several edges
    there are no OPTIONS, since Kamailio answers them itself."""
    async with pair(server, rate, pin, edges=edges, loss=loss) as both:
        await both.warm_up(edges)
        empty = both.footprint().rss_mb
        ramp = await both.fill(calls)
        mb = (both.footprint().rss_mb - empty) / max(1, ramp["up"])
        rows = [await _row(both, server, "held", calls, seconds, round(mb, 3))]
        show(rows[-1])
        both.callers.send(f"churn {calls}")
        await asyncio.sleep(calls / rate)
        rows.append(await _row(both, server, "churn", calls, seconds, None))
        show(rows[-1])
        await both.ask("empty")
        asked = await _options(both, options) if options and edges == 1 else None
    return Load(ramp, rows, _setup_cpu_ms(*rows), asked)


def _setup_cpu_ms(held: Row, churn: Row) -> float | None:
    if churn.refused or not churn.setups or held.calls < held.asked:
        return None
    more = (churn.spent.cpu_percent - held.spent.cpu_percent) / 100
    return round(1000 * more * churn.seconds / churn.setups, 2)


async def _options(both: Pair, count: int) -> Answers:
    first = await both.usage()
    answer = await both.ask(f"options {count} {OPTIONS_WINDOW}")
    last = await both.usage()
    answered, seconds = sum(answer["statuses"].values()), answer["seconds"]
    cpu = last.cpu_s - first.cpu_s
    return Answers(
        count,
        answer["statuses"],
        answer["lost"],
        round(answered / seconds, 0),
        round(1e6 * cpu / max(1, answered), 1),
        round(100 * cpu / (last.wall_s - first.wall_s), 1),
        answer["own"]["cpu_percent"],
    )


async def overload(
    admits: int, rate: float, seconds: float, pin: bool, show: Callable[[Row], None]
) -> list[Row]:
    """Fills a server with calls, then has as many further callers try, one after another."""
    async with pair("vad", rate, pin, ("--max-calls", str(admits))) as both:
        await both.warm_up(1)
        await both.fill(admits)
        rows = [await _row(both, "vad", "before", admits, seconds, None)]
        show(rows[-1])
        both.callers.send(f"attempt {max(admits, round(rate * seconds))}")
        rows.append(await _row(both, "vad", "during", 2 * admits, seconds, None))
        show(rows[-1])
        await both.ask("empty")
    return rows


HEADER = (
    f"{'server':9}{'phase':8}{'calls':>9}{'new':>6}{'set-up p50':>11}{'p95':>7}{'refused':>16}"
    f"{'cut':>5}{'lost':>6}{'>20 ms':>8}{'>40 ms':>8}{'late p50':>9}{'p99':>7}{'max':>7}"
    f"{'in lost':>8}{'late':>6}{'conc.':>8}{'MOS':>6}{'least':>6}{'% core':>8}{'/call':>7}"
    f"{'MB/call':>8}{'grew':>6}{'tick p99':>9}{'callers: %':>11}{'sends p99':>10}{'max':>7}"
)


def line(row: Row) -> str:
    spent, late, own = row.spent, row.late_ms, row.own
    calls = f"{row.calls}" if row.calls == row.asked else f"{row.calls}/{row.asked}"
    refused = " ".join(f"{n}x{status}" for status, n in row.refused.items()) or "-"
    mb = "-" if row.mb_per_call is None else f"{row.mb_per_call:.2f}"
    sends = own["sends_late_ms"]
    return (
        f"{row.server:9}{row.phase:8}{calls:>9}{row.setups:>6}"
        f"{row.setup_ms.get('p50', 0):11.1f}{row.setup_ms.get('p95', 0):7.1f}{refused:>16}"
        f"{row.cut:>5}{row.missing:>6}{row.late_percent['20']:7.2f}%{row.late_percent['40']:7.2f}%"
        f"{late.get('p50', 0):9.1f}{late.get('p99', 0):7.1f}{late.get('max', 0):7.1f}"
        f"{spent.lost:>8}{spent.late:>6}{spent.concealed_percent:7.2f}%"
        f"{spent.mos_mean:6.2f}{spent.mos_least:6.2f}{spent.cpu_percent:8.1f}"
        f"{row.cpu_per_call_percent:7.3f}{mb:>8}"
        f"{row.rss_growth_mb:6.1f}{spent.tick_late_ms:9.1f}"
        f"{own['cpu_percent']:11.0f}{sends.get('p99', 0):10.1f}{sends.get('max', 0):7.1f}"
    )


def summary(kind: str, found: Load) -> str:
    """Summarizes what the rows do not show."""
    setup = found.ramp["setup_ms"]
    cost = "?" if found.setup_cpu_ms is None else f"{found.setup_cpu_ms}"
    text = (
        f"{kind}: the first {found.ramp['up']} calls were set up in p50 {setup.get('p50', 0)} p95 "
        f"{setup.get('p95', 0)} ms, refused {found.ramp['refused'] or 0}; a call's coming and "
        f"going costs the server {cost} ms of CPU"
    )
    if (asked := found.options) is not None:
        text += (
            f"\n{kind}: {asked.per_second:.0f} OPTIONS a second, {asked.server_us} us of CPU each "
            f"(server at {asked.server_percent:.0f} % of a core, asker at {asked.own_percent:.0f} "
            f"%), answered {asked.statuses}, lost {asked.lost}"
        )
    return "\n".join([text, *(shares_line(row) for row in found.rows if row.shares is not None)])


def shares_line(row: Row) -> str:
    """Formats the CPU share of each process."""
    assert row.shares is not None
    calls, cpu = row.shares.calls, row.shares.cpu_percent
    edges = ", ".join(f"{n} calls {percent} %" for n, percent in zip(calls, cpu, strict=True))
    return (
        f"{row.server} {row.phase}: of one core each, edges: {edges}; "
        f"kamailio {row.shares.proxy_percent} %"
    )


def as_dict(row: Row) -> dict[str, Any]:
    """Returns a JSON object; shares only with several edges."""
    return {name: value for name, value in asdict(row).items() if (name, value) != ("shares", None)}


def overload_summary(rows: list[Row]) -> str:
    before, during = rows
    refusals = sum(during.refused.values())
    others = {status: n for status, n in during.refused.items() if status != "503"}
    return (
        f"{refusals} calls refused, {during.told_when} of them told when to try again by a 503; "
        f"otherwise {others or 'none'}; calls taken beyond the limit {during.setups}; of the "
        f"{before.calls} there were {during.cut} cut\n"
        f"their packets, before and during: lost {before.missing} and {during.missing}, late p99 "
        f"{before.late_ms.get('p99')} and {during.late_ms.get('p99')} ms, over 20 ms "
        f"{before.late_percent['20']} and {during.late_percent['20']} %, over 40 ms "
        f"{before.late_percent['40']} and {during.late_percent['40']} %"
    )
