"""`offhook bench sip PART`: phones.

    load       calls set up at a rate, standing, then coming and going: an echo server, and one
               that hears every call with the voice detector; also OPTIONS
    overload   as many callers again as there is room for: how they are refused, and whether those
               there are notice
    cost       CPU time by message, without network
    turns      a spoken conversation with interruptions by SIP beside the same by WebRTC
    soak       calls that come and go for minutes, with loss and beside busy processes if wanted:
               whether any is refused or cut, whether the lines in use are the calls alive, and
               what is left of memory, tasks, files and ports; exits with 1 if anything is amiss
    timers     eight hours of calls on an accelerated clock, in memory: what is left

Server and callers are processes of their own on 127.0.0.1, each kept to a core where there are
enough. `load --edges 2` has two server processes behind Kamailio, set up as in deploy/kamailio, and
one set of callers; what the server took is then the sum of the two, and Kamailio's stands beside.
What limits the callers is printed beside: their share of their core, and how late they sent. While
both are low, what is late or lost is the server's doing.
"""

import argparse
import json
from collections.abc import Callable, Sequence
from dataclasses import asdict

from benchmarks.command import command
from benchmarks.processes.process import run as run_loop
from benchmarks.servers.kamailio import KamailioError
from benchmarks.sip import cost as sip_cost
from benchmarks.sip import load as sip_load
from benchmarks.sip import soak as sip_soak
from benchmarks.sip import timers as sip_timers
from benchmarks.sip import turns as sip_turns
from offhook.web.config.config import Log
from offhook.web.config.server import MAX_CALLS
from offhook.web.http.logs_io import set_up

KINDS = ("echo", "vad", "scripted")


def _load(a: argparse.Namespace) -> int:
    show = _shown(a, lambda row: print(sip_load.line(row), flush=True))
    found = []
    if not a.json:
        print(sip_load.HEADER, flush=True)
    for number, kind in enumerate(a.servers.split(",")):
        options = sip_load.OPTIONS if number == 0 and not a.no_options else 0
        load = sip_load.load(
            *(kind, a.calls, a.rate, a.seconds, not a.no_pin, options, show, a.edges, a.loss)
        )
        found.append(run_loop(load))
    if a.json:
        loads = [{**asdict(one), "rows": [sip_load.as_dict(r) for r in one.rows]} for one in found]
        print(json.dumps({"load": loads}))
        return 0
    for kind, one in zip(a.servers.split(","), found, strict=True):
        print(sip_load.summary(kind, one))
    return 0


def _overload(a: argparse.Namespace) -> int:
    show = _shown(a, lambda row: print(sip_load.line(row), flush=True))
    if not a.json:
        print(sip_load.HEADER, flush=True)
    rows = run_loop(sip_load.overload(a.admits, a.rate, a.seconds, not a.no_pin, show))
    if a.json:
        print(json.dumps([sip_load.as_dict(row) for row in rows]))
    else:
        print(sip_load.overload_summary(rows))
    return 0


def _cost(a: argparse.Namespace) -> int:
    steps = sip_cost.measure()
    if a.json:
        print(json.dumps([asdict(step) for step in steps]))
    else:
        sip_cost.print_steps(steps)
    return 0


def _turns(a: argparse.Namespace) -> int:
    ways = run_loop(sip_turns.measure(a.rounds, a.interruptions))
    if a.json:
        print(json.dumps([asdict(way) for way in ways]))
    else:
        sip_turns.print_ways(ways)
    return 0


def _soak(a: argparse.Namespace) -> int:
    show = _shown(a, sip_soak.print_sample)
    seconds = a.minutes * 60
    result = run_loop(
        sip_soak.soak(
            *(a.server, a.calls, a.rate, seconds, not a.no_pin, show), loss=a.loss, busy=a.busy
        )
    )
    if a.json:
        print(json.dumps(sip_soak.as_dict(result)))
    else:
        sip_soak.print_result(result)
    return int(not result.passed)


def _timers(a: argparse.Namespace) -> int:
    result = sip_timers.measure(a.hours, a.calls_per_hour, a.seed)
    if a.json:
        print(json.dumps(sip_timers.report(result)))
    else:
        sip_timers.print_result(result)
    return int(not result.passed)


def _shown(a: argparse.Namespace, show: Callable[..., None]) -> Callable[..., None]:
    return (lambda *arguments: None) if a.json else show


def _parser() -> argparse.ArgumentParser:
    parser = command("sip", __doc__)
    parts = parser.add_subparsers(dest="part", required=True, metavar="PART")

    load = parts.add_parser("load", help="many calls")
    load.add_argument("--servers", default="echo,vad", help=f"of {', '.join(KINDS)}")
    load.add_argument("--calls", type=int, default=200, help="at once")
    load.add_argument("--rate", type=float, default=20.0, help="new calls a second")
    load.add_argument("--seconds", type=float, default=20.0, help="each row is counted")
    load.add_argument(
        "--edges", type=int, default=1, help="processes behind Kamailio (deploy/kamailio)"
    )
    load.add_argument(
        "--loss", type=float, default=0.0, help="percent of the callers' packets and messages"
    )
    load.add_argument("--no-options", action="store_true", help="leave out OPTIONS")
    load.set_defaults(run=_load)

    overload = parts.add_parser("overload", help="twice as many callers as there is room for")
    overload.add_argument("--admits", type=int, default=50, help="calls that the server takes")
    overload.add_argument("--rate", type=float, default=20.0, help="new calls a second")
    overload.add_argument("--seconds", type=float, default=20.0, help="before, and during")
    overload.set_defaults(run=_overload)

    cost = parts.add_parser("cost", help="CPU by message")
    cost.set_defaults(run=_cost)

    turns = parts.add_parser("turns", help="a conversation, beside WebRTC")
    turns.add_argument("--rounds", type=int, default=2, help="of the five sentences, each way")
    turns.add_argument("--interruptions", type=int, default=10, help="of a long reply, each way")
    turns.set_defaults(run=_turns)

    soak = parts.add_parser("soak", help="calls for minutes")
    soak.add_argument("--minutes", type=float, default=10.0)
    soak.add_argument("--server", choices=KINDS, default="scripted")
    soak.add_argument("--calls", type=int, default=40, help="at once")
    soak.add_argument("--rate", type=float, default=2.0, help="new calls a second")
    soak.add_argument("--loss", type=float, default=0.0, help="percent of packets and messages")
    soak.add_argument("--busy", type=int, default=0, help="other processes, each busy on a core")
    soak.set_defaults(run=_soak)

    timers = parts.add_parser("timers", help="hours of calls on an accelerated clock")
    timers.add_argument("--hours", type=float, default=8.0)
    timers.add_argument("--calls-per-hour", type=float, default=400.0)
    timers.add_argument("--seed", type=int, default=1)
    timers.set_defaults(run=_timers)

    for part in (load, overload, soak):
        part.add_argument("--no-pin", action="store_true", help="let the processes run anywhere")
    for part in parts.choices.values():
        part.add_argument("--json", action="store_true")
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    parser = _parser()
    arguments = parser.parse_args(argv)
    most = max(getattr(arguments, "calls", 0), getattr(arguments, "admits", 0))
    edges = getattr(arguments, "edges", 1)
    if edges < 1:
        parser.error("there is one edge at least")
    if most > MAX_CALLS * edges:
        parser.error(f"one process holds {MAX_CALLS} calls")
    set_up(Log(level="WARNING"))
    try:
        code: int = arguments.run(arguments)
    except KamailioError as error:
        parser.exit(1, f"{error}\n")
    return code


if __name__ == "__main__":
    raise SystemExit(main())
