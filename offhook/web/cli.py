"""The command line: `offhook serve | call | doctor | bench`."""

import argparse
import asyncio
import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from loguru import logger

from offhook import __version__
from offhook.web.loop_io import run


class _InOrder(argparse.Action):
    """--say and --play into one list, in the order given."""

    def __call__(self, parser: Any, namespace: Any, values: Any, option: Any = None) -> None:
        namespace.script = [*(namespace.script or []), (option.lstrip("-"), values)]


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="offhook", description="A self-hosted real-time voice server."
    )
    parser.add_argument("--version", action="version", version=f"offhook {__version__}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")

    serve = commands.add_parser("serve", help="take calls")
    serve.add_argument("--config", type=Path, help="default: offhook.toml, if there is one")
    serve.add_argument("--host", help="address to listen on (default 127.0.0.1)")
    serve.add_argument("--port", type=int, help="default 7860")
    serve.add_argument("--bot", type=Path, metavar="FILE", help="run this Pipecat bot file")
    serve.set_defaults(run=_serve)

    call = commands.add_parser("call", help="place a scripted call and report")
    call.add_argument("url", help="where the server is, as http://localhost:7860")
    call.add_argument("--say", dest="script", action=_InOrder, metavar="TEXT")
    call.add_argument("--play", dest="script", action=_InOrder, metavar="FILE")
    call.add_argument(
        "--interrupt-after",
        type=float,
        metavar="S",
        help="start the next line S seconds into the reply instead of waiting for its end",
    )
    call.add_argument("--record", type=Path, metavar="DIR", help="keep sound and events here")
    call.add_argument("--api-key", default="", help="when the server wants one")
    call.add_argument("--json", action="store_true", help="one JSON object on standard output")
    call.set_defaults(run=_call)

    doctor = commands.add_parser("doctor", help="what this machine can run, and why not")
    doctor.add_argument("--config", type=Path)
    doctor.add_argument("--json", action="store_true")
    doctor.set_defaults(run=_doctor)

    bench = commands.add_parser("bench", help="measure, beside a peer in the same run")
    bench.add_argument("name", choices=("media", "edge", "loss", "turns", "words", "soak"))
    bench.add_argument("options", nargs=argparse.REMAINDER, help="see offhook bench NAME --help")
    bench.set_defaults(run=_bench)
    return parser


def _serve(arguments: argparse.Namespace) -> int:
    from offhook.web import config as configuration
    from offhook.web.logs import set_up

    given = {"HOST": arguments.host, "PORT": arguments.port}
    options = {f"OFFHOOK_SERVER_{k}": str(v) for k, v in given.items() if v is not None}
    config = configuration.load(arguments.config, {**os.environ, **options})
    set_up(config.log)
    if config.server.processes > 1:
        from offhook.web.processes_io import serve_all as serve
    else:
        from offhook.web.server_io import serve
    run(serve(config, arguments.bot))
    return 0


def _call(arguments: argparse.Namespace) -> int:
    from offhook.web.caller_io import CallReport, Line, ScriptedCall, read_audio, spoken, trimmed
    from offhook.web.config import Log
    from offhook.web.engines_io import open_synthesizer
    from offhook.web.logs import set_up

    set_up(Log(level="WARNING"))

    async def place() -> CallReport:
        lines = []
        for kind, value in arguments.script or []:
            if kind == "play":
                pcm = await asyncio.to_thread(read_audio, Path(value))
                lines.append(Line(value, trimmed(pcm)))
            else:
                synthesizer = await open_synthesizer("auto")
                lines.append(Line(value, trimmed(await spoken(synthesizer, value))))
                await synthesizer.close()
        show = (lambda text: None) if arguments.json else print
        call = ScriptedCall(
            arguments.url, lines, arguments.interrupt_after, arguments.api_key, show
        )
        try:
            return await call.run()
        finally:
            if arguments.record:
                call.save(arguments.record)

    report = run(place())
    print(json.dumps(report.as_dict(), indent=1) if arguments.json else _table(report.as_dict()))
    return 0


def _table(report: dict[str, Any]) -> str:
    """Latencies of the turns, one a line."""
    rows = [f"{'turn':>4} {'here':>7} {'server':>7}  spans (ms)"]
    for number, turn in enumerate(report["turns"], 1):
        spans = turn["latency"].get("spans", [])
        listed = "  ".join(f"{s['name']} {s['ms']}" for s in spans)
        here, there = turn["response_ms"], turn["latency"].get("total_ms")
        rows.append(f"{number:>4} {here or '-':>7} {there or '-':>7}  {listed}")
    return "\n".join(rows)


def _doctor(arguments: argparse.Namespace) -> int:
    from offhook.web.doctor_io import examine

    findings = examine(arguments.config)
    if arguments.json:
        print(json.dumps([f.as_dict() for f in findings], indent=1))
    else:
        for finding in findings:
            print(finding)
    return int(any(f.verdict == "fails" for f in findings))


def _bench(arguments: argparse.Namespace) -> int:
    from importlib import import_module

    result: int = import_module(f"offhook.bench.{arguments.name}").main(arguments.options)
    return result


def main(argv: Sequence[str] | None = None) -> int:
    arguments = _parser().parse_args(argv)
    logger.remove()  # Pipecat logs a banner when it is imported, before logs are set up
    try:
        code: int = arguments.run(arguments)
    except KeyboardInterrupt:
        return 130
    except (RuntimeError, ValueError, OSError) as error:
        # What the user can mend: configuration, engines, a server that is not there.
        print(f"offhook: {error or type(error).__name__}", file=sys.stderr)
        return 1
    return code


if __name__ == "__main__":
    sys.exit(main())
