"""`offhook bench sip PART`: phones.

    load       calls set up at a rate, standing, then coming and going: an echo server, and one
               that hears every call with the voice detector; also OPTIONS
    overload   as many callers again as there is room for: how they are refused, and whether those
               there are notice

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

from offhook.bench.phones import load as sip_load
from offhook.bench.phones.kamailio import KamailioError
from offhook.bench.process import run as run_loop
from offhook.web.config.config import MAX_CALLS, Log
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


def _shown(a: argparse.Namespace, show: Callable[..., None]) -> Callable[..., None]:
    return (lambda *arguments: None) if a.json else show


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="offhook bench sip",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parts = parser.add_subparsers(dest="part", required=True, metavar="PART")

    load = parts.add_parser("load", help="many calls")
    load.add_argument("--servers", default="echo,vad", help=f"of {', '.join(KINDS)}")
    load.add_argument("--calls", type=int, default=200, help="at once")
    load.add_argument("--rate", type=float, default=20.0, help="new calls a second")
    load.add_argument("--seconds", type=float, default=20.0, help="each row is counted")
    load.add_argument(
        "--edges", type=int, default=1, help="processes behind Kamailio (deploy/kamailio)"
    )
    load.add_argument("--loss", type=float, default=0.0, help="percent of the callers' packets")
    load.add_argument("--no-options", action="store_true", help="leave out OPTIONS")
    load.set_defaults(run=_load)

    overload = parts.add_parser("overload", help="twice as many callers as there is room for")
    overload.add_argument("--admits", type=int, default=50, help="calls that the server takes")
    overload.add_argument("--rate", type=float, default=20.0, help="new calls a second")
    overload.add_argument("--seconds", type=float, default=20.0, help="before, and during")
    overload.set_defaults(run=_overload)

    for part in (load, overload):
        part.add_argument("--no-pin", action="store_true", help="let the processes run anywhere")
    for part in (load, overload):
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
