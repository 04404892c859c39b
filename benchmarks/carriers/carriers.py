"""`offhook bench carriers PART`: the streams of Twilio and its like.

    load       calls that stand, then come and go, by Twilio: our echo server, one that hears every
               call with the voice detector, and stock Pipecat with its TwilioFrameSerializer
    turns      a spoken conversation with interruptions over a provider's stream: response times,
               and the words kept in the context beside the words that the caller heard

Server and callers are processes of their own on 127.0.0.1, each kept to a core where there are two
and the server is one process.
The callers are far ends written from the providers' documents: they buffer what they are sent, play
it by their own clock and give marks back. What limits the callers is printed beside: their share of
their core, and how late they sent. While both are low, what is late is the server's doing.
"""

import argparse
import json
from collections.abc import Callable, Sequence
from dataclasses import asdict

from benchmarks.carriers import load as carrier_load
from benchmarks.carriers import turns as carrier_turns
from benchmarks.carriers.far_ends.far_end_io import Way
from benchmarks.command import command
from benchmarks.sip.turns import print_ways
from offhook.web.config.config import Log
from offhook.web.config.server import MAX_CALLS
from offhook.web.http.logs_io import set_up
from offhook.web.http.loop_io import run as run_loop


def _load(a: argparse.Namespace) -> int:
    show = _shown(a, lambda row: print(carrier_load.line(row), flush=True))
    steps = [int(n) for n in a.calls.split(",")]
    if not a.json:
        print(carrier_load.HEADER, flush=True)
    rows = [
        row
        for kind in a.servers.split(",")
        for row in run_loop(
            carrier_load.load(
                kind, steps, a.rate, a.seconds, not a.no_pin, show, _processes(kind, a)
            )
        )
    ]
    if a.json:
        print(json.dumps([asdict(row) for row in rows]))
    return 0


def _processes(kind: str, a: argparse.Namespace) -> int:
    """Stock Pipecat has one."""
    return 1 if kind == "pipecat" else int(a.processes)


def _turns(a: argparse.Namespace) -> int:
    way = Way(a.delay, a.jitter)
    ways = run_loop(carrier_turns.measure(a.providers.split(","), way, a.rounds, a.interruptions))
    if a.json:
        print(json.dumps([asdict(way) for way in ways]))
    else:
        print_ways(ways)
    return 0


def _shown(a: argparse.Namespace, show: Callable[..., None]) -> Callable[..., None]:
    return (lambda *arguments: None) if a.json else show


def _parser() -> argparse.ArgumentParser:
    parser = command("carriers", __doc__)
    parts = parser.add_subparsers(dest="part", required=True, metavar="PART")

    load = parts.add_parser("load", help="many calls")
    servers = ",".join(carrier_load.SERVERS)
    load.add_argument("--servers", default=servers, help=f"of {servers}")
    load.add_argument("--calls", default="20,50,100", help="at once, step by step")
    load.add_argument("--rate", type=float, default=5.0, help="new calls a second")
    load.add_argument("--seconds", type=float, default=20.0, help="each row is counted")
    load.add_argument("--processes", type=int, default=1, help="of our server, on one port")
    load.add_argument("--no-pin", action="store_true", help="let the processes run anywhere")
    load.set_defaults(run=_load)

    turns = parts.add_parser("turns", help="a conversation")
    providers = ",".join(carrier_turns.PROVIDERS)
    turns.add_argument("--providers", default="twilio", help=f"of {providers}")
    turns.add_argument("--rounds", type=int, default=2, help="of the five sentences, each")
    turns.add_argument("--interruptions", type=int, default=10, help="of a long reply, each")
    turns.add_argument("--delay", type=float, default=40.0, help="ms, one way")
    turns.add_argument("--jitter", type=float, default=10.0, help="ms, one way, on top")
    turns.set_defaults(run=_turns)

    for part in (load, turns):
        part.add_argument("--json", action="store_true")
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    parser = _parser()
    arguments = parser.parse_args(argv)
    if arguments.part == "load":
        if unknown := set(arguments.servers.split(",")) - set(carrier_load.SERVERS):
            parser.error(f"no such server: {', '.join(sorted(unknown))}")
        most = MAX_CALLS * max(1, arguments.processes)
        if arguments.processes < 1 or max(int(n) for n in arguments.calls.split(",")) > most:
            parser.error(f"one process holds {MAX_CALLS} calls")
    elif unknown := set(arguments.providers.split(",")) - set(carrier_turns.PROVIDERS):
        parser.error(f"no such provider: {', '.join(sorted(unknown))}")
    set_up(Log(level="WARNING"))
    code: int = arguments.run(arguments)
    return code


if __name__ == "__main__":
    raise SystemExit(main())
