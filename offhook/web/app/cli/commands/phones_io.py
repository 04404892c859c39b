"""`offhook call`, `dial`, `queues`, `extensions` and `sip-trace`: calls of a running server."""

import asyncio
import json
from argparse import Namespace
from pathlib import Path
from typing import Any

from offhook.web.app.cli.terminal import Terminal
from offhook.web.http.loop_io import run


def _running_server(arguments: Namespace) -> tuple[str, str]:
    """Returns URL and key of the server from the arguments or the configuration."""
    from offhook.web.config import config as configuration

    if arguments.url:
        return arguments.url, arguments.api_key
    server = configuration.load(arguments.config).server
    return server.url, arguments.api_key or server.api_key


def call(arguments: Namespace, terminal: Terminal) -> int:
    from offhook.web.app.cli.caller_io import (
        CallReport,
        ScriptedCall,
        ScriptLine,
        read_audio,
        spoken,
        trimmed,
    )
    from offhook.web.config.config import Log
    from offhook.web.http.logs_io import set_up
    from offhook.web.workers.engines.engines_io import open_synthesizer

    set_up(Log(level="WARNING"))
    url, api_key = _running_server(arguments)

    def show(text: str) -> None:
        if not arguments.json:
            terminal.show(text)

    async def place() -> CallReport:
        lines = []
        for kind, value in arguments.script or []:
            if kind == "play":
                pcm = await asyncio.to_thread(read_audio, Path(value))
                lines.append(ScriptLine(value, trimmed(pcm)))
            else:
                synthesizer = open_synthesizer()
                await synthesizer.start()
                lines.append(ScriptLine(value, trimmed(await spoken(synthesizer, value))))
                await synthesizer.close()
        call = ScriptedCall(url, lines, arguments.interrupt_after, api_key, show)
        try:
            return await call.run()
        finally:
            if arguments.record:
                call.save(arguments.record)

    report = run(place())
    terminal.show(
        json.dumps(report.as_dict(), indent=1) if arguments.json else _table(report.as_dict())
    )
    return 0


def _table(report: dict[str, Any]) -> str:
    """Returns the latencies of the turns, one per line."""
    rows = [f"{'turn':>4} {'here':>7} {'server':>7}  spans (ms)"]
    for number, turn in enumerate(report["turns"], 1):
        spans = turn["latency"].get("spans", [])
        listed = "  ".join(f"{s['name']} {s['ms']}" for s in spans)
        here, there = turn["response_ms"], turn["latency"].get("total_ms")
        rows.append(f"{number:>4} {here or '-':>7} {there or '-':>7}  {listed}")
    return "\n".join(rows)


def dial(arguments: Namespace, terminal: Terminal) -> int:
    from offhook.web.app.cli.dial_io import DialProgress, Phones, in_words

    a = arguments
    asked = {
        "to": a.to,
        "trunk": a.trunk,
        "carrier": a.carrier,
        "caller": a.caller,
        "caller_name": a.caller_name,
        "agent": a.agent,
        "ring_seconds": a.ring_seconds,
        "machine_detection": a.machine_detection or ("message" if a.message else None),
        "message": a.message,
        "variables": a.variables or {},
        "headers": a.headers or {},
    }
    answered_at: float | None = None

    def show(happened: DialProgress) -> None:
        nonlocal answered_at
        if happened.state == "answered":
            answered_at = happened.at
        line = json.dumps(happened.as_dict()) if a.json else in_words(happened, answered_at)
        terminal.show(line)

    return int(not run(Phones(*operator(a)).dial(asked, show)))


def sip_trace(arguments: Namespace, terminal: Terminal) -> int:
    from offhook.web.app.cli.dial_io import Phones

    a = arguments
    phones = Phones(*operator(a))
    if a.pcap is not None:
        a.pcap.write_bytes(run(phones.capture(a.call)))
    else:
        terminal.show(run(phones.trace(a.call, a.json)).rstrip("\n"))
    return 0


def queues(arguments: Namespace, terminal: Terminal) -> int:
    from offhook.web.app.cli.dial_io import Phones, queue_lines

    a = arguments
    phones = Phones(*operator(a))
    if a.action in ("pause", "ready"):
        found = [run(phones.pause(a.queue, a.member, a.action == "pause"))]
    else:
        shown = run(phones.queues(a.queue))
        found = [shown] if a.queue else shown
    for queue in found:
        terminal.show(json.dumps(queue) if a.json else "\n".join(queue_lines(queue)))
    if not found and not a.json:
        terminal.show("the server has no queues")
    return 0


def extensions(arguments: Namespace, terminal: Terminal) -> int:
    from offhook.web.app.cli.dial_io import Phones, extension_lines

    a = arguments
    found = run(Phones(*operator(a)).ask("GET", "/extensions"))["extensions"]
    for each in found:
        terminal.show(json.dumps(each) if a.json else "\n".join(extension_lines(each)))
    if not found and not a.json:
        terminal.show("the server has no extensions: see [sip.extensions] in offhook.toml")
    return 0


def operator(arguments: Namespace) -> tuple[str, str]:
    """Returns the operator's URL and key from the arguments or this machine's configuration, whose
    key is sent to no other server."""
    from offhook.web.config import config as configuration

    a = arguments
    if a.url:
        return a.url, a.admin_key
    server = configuration.load(a.config).server
    return server.operator_url, a.admin_key or server.admin_key
