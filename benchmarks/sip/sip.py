"""`python -m benchmarks sip PART`: phones, what `offhook bench sip` leaves out.

    cost       CPU time by message, without network
    turns      a spoken conversation with interruptions by SIP beside the same by WebRTC
    soak       calls that come and go for minutes: what is left of memory, tasks, files and ports
    timers     eight hours of calls on an accelerated clock, in memory: what is left

Server and callers are processes of their own on 127.0.0.1, each kept to a core where there are
enough.
"""

import argparse
import json
from collections.abc import Callable, Sequence
from dataclasses import asdict

from benchmarks.sip import cost as sip_cost
from benchmarks.sip import soak as sip_soak
from benchmarks.sip import timers as sip_timers
from benchmarks.sip import turns as sip_turns
from offhook.bench.sip import KINDS
from offhook.web.config.config import MAX_CALLS, Log
from offhook.web.http.logs_io import set_up
from offhook.web.http.loop_io import run as run_loop


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
        print(json.dumps(sip_turns.as_dicts(ways)))
    else:
        sip_turns.print_ways(ways)
    return 0


def _soak(a: argparse.Namespace) -> int:
    show = _shown(a, sip_soak.print_sample)
    seconds = a.minutes * 60
    result = run_loop(sip_soak.soak(a.server, a.calls, a.rate, seconds, not a.no_pin, show))
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
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks sip",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parts = parser.add_subparsers(dest="part", required=True, metavar="PART")

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
    soak.set_defaults(run=_soak)

    soak.add_argument("--no-pin", action="store_true", help="let the processes run anywhere")
    timers = parts.add_parser("timers", help="hours of calls on an accelerated clock")
    timers.add_argument("--hours", type=float, default=8.0)
    timers.add_argument("--calls-per-hour", type=float, default=400.0)
    timers.add_argument("--seed", type=int, default=1)
    timers.set_defaults(run=_timers)

    for part in (cost, turns, soak, timers):
        part.add_argument("--json", action="store_true")
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    parser = _parser()
    arguments = parser.parse_args(argv)
    if getattr(arguments, "calls", 0) > MAX_CALLS:
        parser.error(f"one process holds {MAX_CALLS} calls")
    set_up(Log(level="WARNING"))
    code: int = arguments.run(arguments)
    return code
