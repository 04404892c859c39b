"""`offhook bench calls`: whole conversations, many at once, judged at the callers' own ears.

Callers from browsers (WebRTC), phones (SIP) and a carrier (Twilio Media Streams), 25 in each of
several processes, speak, listen, interrupt, press keys, hang up and call again. Without --url it
starts its own servers: edges (`offhook serve`), workers and a language model, each a process, where
speech consists of number words, so that every word lost or said twice is counted
(`benchmarks.speech.number_words`). With --url they speak recordings, or lines of the embedded
voice, to a running server.

    offhook bench calls --calls 20 --loss 2 --jitter 20 --report out.html
    offhook bench calls --calls 100 --edges 2 --workers 2 --minutes 5 --loss 2 --report out.html
    offhook bench calls --url https://voice.example.org --calls 10 --minutes 1
    offhook bench calls --calls 40 --workers 2 --kill worker --at 60s

--beside pipecat runs the same calls on a stock Pipecat bot as well, with fewer and fewer until it
holds them.

--kill ends a part of its own servers in the middle of a run and prints what callers noticed beside
a run without that; several of them make a run each. `offhook bench failover` is the same with short
runs of browsers.
"""

import argparse
import asyncio
import json
import socket
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import asdict
from math import ceil
from pathlib import Path
from time import monotonic
from typing import Any

from benchmarks.callers.caller import Habits, heard_in
from benchmarks.callers.process import Plan
from benchmarks.callers.records import KINDS, Kind, Report
from benchmarks.callers.report import page
from benchmarks.callers.servers import (
    FAULTS,
    LINKED,
    Fault,
    OwnServers,
    Servers,
    own_servers,
    stock_servers,
)
from benchmarks.callers.summary import (
    FAILOVER_HEAD,
    Noticed,
    Result,
    failover_row,
    noticed,
    table,
)
from benchmarks.processes.node import missing
from benchmarks.processes.process import Child, ChildError, children
from benchmarks.processes.process import run as run_loop
from benchmarks.processes.usage import Usage
from benchmarks.servers.kamailio import KamailioError
from benchmarks.table import percentiles, progress
from offhook.web.config.config import Log
from offhook.web.http.logs_io import set_up

CALLERS = 25
"""Callers per process."""
MIX = "webrtc=60,sip=30,twilio=10"
ALL = "all"
"""The value of --kill for everything that can happen."""
START_S = 3.0
"""Time in s from the plan to the first call: the callers encode their lines."""
FINISH_S = 60.0
"""Time in s for the callers to hang up and report."""


def shares(mix: str, calls: int) -> dict[Kind, int]:
    """Divides the calls by weights, as "webrtc=60,sip=40". Raises ValueError."""
    weights: dict[Kind, float] = {}
    for part in mix.split(","):
        name, _, weight = part.partition("=")
        if name not in KINDS:
            raise ValueError(f"{name!r} is none of {', '.join(KINDS)}")
        weights[name] = float(weight or 1)
    total = sum(weights.values())
    if total <= 0:
        raise ValueError("the weights are all 0")
    exact = {kind: calls * weight / total for kind, weight in weights.items()}
    whole = {kind: int(share) for kind, share in exact.items()}
    by_rest = sorted(exact, key=lambda kind: whole[kind] - exact[kind])
    for kind in by_rest[: calls - sum(whole.values())]:
        whole[kind] += 1
    return {kind: n for kind, n in whole.items() if n}


def divided(calls: dict[Kind, int], processes: int) -> list[dict[Kind, int]]:
    """Divides the calls of each kind over processes of callers."""
    parts: list[dict[Kind, int]] = [{} for _ in range(processes)]
    slots = [kind for kind, n in calls.items() for _ in range(n)]
    for number, kind in enumerate(slots):
        part = parts[number % processes]
        part[kind] = part.get(kind, 0) + 1
    return parts


def seconds(text: str) -> float:
    """Reads "60s", "60" or "1.5m"."""
    scale = 60.0 if text.endswith("m") else 1.0
    return float(text.removesuffix("s").removesuffix("m")) * scale


# --- a run ---


async def measure(
    a: argparse.Namespace, servers: Servers, name: str, number: int, fault: Fault | None = None
) -> Result:
    """Makes `number` calls at once. Raises ChildError."""
    calls = shares(a.mix, number)
    processes = ceil(number / CALLERS)
    usage = Usage(servers.pids)
    async with children(processes, "benchmarks.callers.process") as callers:
        began = monotonic() + START_S
        until = began + 60 * a.minutes
        for index, (part, each) in enumerate(zip(divided(calls, processes), callers, strict=True)):
            plan = Plan(
                part,
                index * CALLERS,
                a.rate / processes,
                until,
                servers.web,
                servers.sip,
                servers.twilio,
                servers.secret,
                a.api_key,
                a.numbers,
                a.loss / 100,
                a.jitter,
                Habits(a.interrupting / 100, a.pressing / 100, a.call_seconds),
            )
            each.send(json.dumps(asdict(plan)))
        watching = asyncio.create_task(usage.watch())
        ending = asyncio.create_task(_apply(servers, fault, began + a.at)) if fault else None
        try:
            tables = await asyncio.gather(*(_report(each, until) for each in callers))
            fault_at = await ending if ending is not None else None
        finally:
            watching.cancel()
            if ending is not None:
                ending.cancel()
    options = {
        "calls": number,
        "mix": a.mix,
        "rate": a.rate,
        "minutes": a.minutes,
        "loss %": a.loss,
        "jitter ms": a.jitter,
        **(_own_options(a) if isinstance(servers, OwnServers) else {}),
    }
    report = Report.of(list(tables))
    if (heard := await servers.heard()) is not None:
        for call in report.calls:
            if call.number and call.setup_ms is not None:
                call.transcript = heard_in(heard.get(call.number, ""))
    taken = list(usage.processes.values()), list(usage.gpus.values())
    return Result(name, options, began, until - began, report, *taken, fault_at)


def _own_options(a: argparse.Namespace) -> dict[str, int]:
    return {"edges": a.edges, "processes of each": a.processes, "workers": a.workers}


async def _report(callers: Child, until: float) -> dict[str, Any]:
    return await callers.line(until - monotonic() + FINISH_S)


async def _apply(servers: Servers, fault: Fault, at: float) -> float:
    assert isinstance(servers, OwnServers)
    await asyncio.sleep(max(0.0, at - monotonic()))
    when = monotonic()
    await servers.apply(fault)
    return when


@asynccontextmanager
async def _servers(a: argparse.Namespace, fault: Fault | None) -> AsyncIterator[Servers]:
    if a.url:
        webhooks = [f"{url.rstrip('/')}/carriers/twilio/voice" for url in a.url]
        yield Servers(a.url, a.sip, webhooks, a.twilio_secret)
        return
    each = f" of {a.processes} processes" if a.processes > 1 else ""
    progress(f"starting {a.edges} edges{each} and {a.workers} workers of each kind")
    async with own_servers(a.edges, a.workers, fault, a.processes) as running:
        yield running


def faults_of(kill: Sequence[str]) -> list[Fault]:
    """Returns what happens to the servers, one after another."""
    if ALL not in kill:
        return [fault for fault in FAULTS if fault in kill]
    lacking = missing()
    if lacking:
        progress(f"without {', '.join(LINKED)}: {lacking}")
    return [fault for fault in FAULTS if not lacking or fault not in LINKED]


async def _run(a: argparse.Namespace) -> int:
    results: list[Result] = []
    rows: list[Noticed] = []
    faults = faults_of(a.kill)
    names: list[tuple[str, Fault | None]] = [("control", None), *((one, one) for one in faults)]
    for name, fault in names if a.kill else [("calls", None)]:
        async with _servers(a, fault) as servers:
            progress(f"{name}: {a.calls} calls for {a.minutes:g} minutes")
            results.append(await measure(a, servers, name, a.calls, fault))
        if a.kill:
            rows.append(_row(a, results[0], results[-1]))
        await _report_on(a, results, rows)
        if a.json:
            continue
        if len(faults) < 2:
            print(table(results[-1]), flush=True)
        else:  # as soon as it is known: what is printed stays if a later one fails
            head = [FAILOVER_HEAD] if len(rows) == 1 else []
            print("\n".join([*head, *_lines(results[-1], rows[-1])]), flush=True)
    if a.beside:
        results += await _beside(a)
        await _report_on(a, results, rows)
        if not a.json:
            print(_held(results))
    if a.json:
        runs = [result.as_dict() for result in results]
        print(json.dumps({"runs": runs, "failover": [asdict(row) for row in rows]}))
    elif len(faults) == 1:
        told = [line for one, row in zip(results, rows, strict=True) for line in _lines(one, row)]
        print("\n".join([FAILOVER_HEAD, *told]))
    if a.report:
        progress(f"report: {a.report}")
    return 0


def _row(a: argparse.Namespace, control: Result, result: Result) -> Noticed:
    """Returns what callers noticed in a run beside the control run."""
    finals = [t.final_ms for t in control.report.turns if t.final_ms is not None]
    usual = percentiles(finals).get("p50", 0.0)
    return noticed(result.name, result.report, result.began + a.at, usual)


def _lines(result: Result, row: Noticed) -> list[str]:
    """Returns the lines of a run under FAILOVER_HEAD."""
    limit = [f"x {result.name}: {result.limit}"] if result.limit else []
    return [*limit, failover_row(row)]


async def _report_on(
    a: argparse.Namespace, results: Sequence[Result], rows: Sequence[Noticed]
) -> None:
    """Writes the report of the runs so far: what they say stays if a later one fails."""
    if a.report:
        await asyncio.to_thread(a.report.write_text, page(results, rows))


async def _beside(a: argparse.Namespace) -> list[Result]:
    """Runs the calls on stock Pipecat, half as many each time until it holds them."""
    results: list[Result] = []
    number = a.calls
    while number:
        async with stock_servers() as servers:
            progress(f"pipecat: {number} calls for {a.minutes:g} minutes")
            results.append(await measure(a, servers, "pipecat", number))
        if not a.json:
            print(table(results[-1]), flush=True)
        if results[-1].holds:
            break
        number //= 2
    return results


def _held(results: Sequence[Result]) -> str:
    lines = []
    for result in results:
        verb = "holds" if result.holds else "does not hold"
        unsure = ", but the load generator is the limit" if result.limit else ""
        name = "pipecat" if result.name == "pipecat" else "offhook"
        lines.append(f"{name} {verb} {result.options['calls']} calls{unsure}")
    return "\n".join(lines)


# --- the command ---


def _parser(prog: str) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog=prog, description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--calls", type=int, default=20, help="at once (20)")
    add("--mix", default=None, help=f"shares of the kinds of callers ({MIX}; with --url webrtc)")
    add("--rate", type=float, default=5.0, help="new calls a second (5)")
    add("--minutes", type=float, default=1.0, help="(1)")
    add("--loss", type=float, default=0.0, help="%% of the packets dropped, each way (0)")
    add("--jitter", type=float, default=0.0, help="ms by which packets are delayed at most (0)")
    add("--call-seconds", type=float, default=60.0, help="mean length of a call (60)")
    add("--interrupting", type=float, default=20.0, help="%% of the replies interrupted (20)")
    add("--pressing", type=float, default=5.0, help="%% of the turns that are a key (5)")
    own = parser.add_argument_group("servers of its own")
    own.add_argument("--edges", type=int, default=1, help="(1)")
    own.add_argument("--processes", type=int, default=1, help="of an edge (1)")
    own.add_argument("--workers", type=int, default=1, help="of each kind (1)")
    faults = "; ".join(f"{name}: {what}" for name, what in FAULTS.items())
    several = f"{ALL}: each of them. Several happen in turn, beside one control run"
    kinds = (*FAULTS, ALL)
    own.add_argument("--kill", nargs="+", choices=kinds, default=[], help=f"{faults}; {several}")
    beside = "the same calls on a stock Pipecat bot, too: from browsers, without keys"
    own.add_argument("--beside", choices=("pipecat",), help=beside)
    own.add_argument("--at", type=seconds, default=None, metavar="60s", help="when (half-time)")
    other = parser.add_argument_group("running servers")
    other.add_argument("--url", nargs="+", default=[], help="for browsers and carriers")
    other.add_argument("--sip", nargs="+", default=[], metavar="HOST:PORT", help="for phones")
    other.add_argument("--twilio-secret", default="", help="auth token of the [[carriers]] entry")
    other.add_argument("--api-key", default="", help="if they want one")
    other.add_argument(
        "--numbers", action="store_true", help="their workers hear and speak number words"
    )
    add("--report", type=Path, metavar="FILE", help="an HTML page with plots")
    add("--json", action="store_true")
    return parser


def _check(parser: argparse.ArgumentParser, a: argparse.Namespace) -> None:
    a.mix = a.mix or ("webrtc" if a.url or a.beside else MIX)
    if a.beside:
        a.pressing = 0.0  # a Pipecat bot gets no keys
    a.at = 30 * a.minutes if a.at is None else a.at
    a.numbers = a.numbers or not a.url
    try:
        kinds = shares(a.mix, a.calls)
    except ValueError as error:
        parser.error(f"--mix: {error}")
    counts = a.calls, a.edges, a.processes, a.workers
    if min(counts) < 1 or a.rate <= 0 or a.minutes <= 0:
        parser.error("there is one of everything at least")
    if a.url and a.kill:
        parser.error("--kill is for servers that this command starts, not for those at --url")
    if a.beside and (a.url or a.kill or set(kinds) != {"webrtc"}):
        parser.error("--beside is for browsers and servers that this command starts, all alive")
    if a.url and "sip" in kinds and not a.sip:
        parser.error("phones need --sip")
    try:
        a.sip = [_ipv4(server) for server in a.sip]
    except (OSError, ValueError) as error:
        parser.error(f"--sip: {error}")
    if a.url and "twilio" in kinds and not a.twilio_secret:
        parser.error("Twilio's callers need --twilio-secret")
    if len(a.kill) > 1 or ALL in a.kill:
        a.edges, a.workers = max(2, a.edges), max(2, a.workers)
    linked = [fault for fault in LINKED if fault in a.kill]
    if linked and (lacking := missing()):
        parser.error(f"--kill {linked[0]}: {lacking}; --kill hang needs nothing")
    if a.kill and a.at >= 60 * a.minutes:
        parser.error("--at is after the end")


def _ipv4(server: str) -> str:
    """Returns HOST:PORT with the address of the host. Raises OSError, ValueError."""
    host, _, port = server.rpartition(":")
    if not host or not port.isdecimal():
        raise ValueError(f"{server} is not HOST:PORT")
    return f"{socket.gethostbyname(host)}:{port}"


def main(
    argv: Sequence[str] | None = None, prog: str = "offhook bench calls", **defaults: object
) -> int:
    parser = _parser(prog)
    parser.set_defaults(**defaults)
    a = parser.parse_args(argv)
    _check(parser, a)
    set_up(Log(level="WARNING"))
    try:
        code: int = run_loop(_run(a))
    except (ChildError, KamailioError, RuntimeError) as error:
        parser.exit(1, f"x {error}\n")
    return code


if __name__ == "__main__":
    raise SystemExit(main())
