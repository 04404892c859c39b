"""`offhook campaigns`: campaigns of a running server."""

import json
import sys
from argparse import Namespace
from collections.abc import Iterator
from typing import Any
from urllib.parse import quote

from offhook.web.app.cli.commands.phones_io import operator
from offhook.web.app.cli.terminal import Terminal
from offhook.web.http.loop_io import run

NAMED = (
    *("id", "name", "agent", "trunk", "carrier", "caller", "time_zone", "machine_detection"),
    *("message", "windows", "holidays"),
)
NUMBERS = ("at_once", "per_second", "ring_seconds")
"""Options of `start` that are fields of `POST /campaigns`."""


def campaigns(arguments: Namespace, terminal: Terminal) -> int:
    from offhook.web.app.cli.dial_io import Phones

    a, server = arguments, Phones(*operator(arguments))
    path = "/campaigns"
    if campaign := getattr(a, "campaign", ""):
        path += f"/{quote(campaign, safe='')}"

    def ask(method: str, path: str, **options: Any) -> Any:
        return run(server.ask(method, path, **options))

    match a.action:
        case "start":
            found = ask("POST", path, **_begun(a))
            twice = ", {known} were there twice" if found["known"] else ""
            line = "campaign {campaign_id} is {state}: {added} recipients" + twice
        case "list":
            found = ask("GET", path)
            line = "\n".join(_table(found["campaigns"]))
        case "show":
            found = ask("GET", path)
            line = "\n".join(_story(found))
        case "append":
            found = ask("POST", f"{path}/recipients", **_file(a))
            line = "campaign {campaign_id}: {added} added, {known} were there"
        case "report":
            terminal.show(ask("GET", f"{path}/report.csv"), end="")
            return 0
        case "do-not-call":
            return _do_not_call(a, terminal, ask)
        case action:
            found = ask("POST", path, json={"action": action})
            line = "campaign {campaign_id} is {state}"
    if a.json:
        terminal.show(json.dumps(found, ensure_ascii=False))
    else:
        terminal.show(line if a.action in ("list", "show") else line.format(**found))
    return 0


def _do_not_call(a: Namespace, terminal: Terminal, ask: Any) -> int:
    if a.add:
        found = ask("POST", "/do-not-call", json={"numbers": a.add, "reason": a.reason})
        lines = [f"{found['added']} added, {found['known']} were there"]
    elif a.remove:
        for number in a.remove:
            found = ask("DELETE", f"/do-not-call/{quote(number, safe='')}")
        lines = [f"{len(a.remove)} removed"]
    else:
        found = ask("GET", "/do-not-call")
        lines = [
            f"{one['number']:<20} {one['added'][:10]}  {one['reason']} {one['tenant']}".rstrip()
            for one in found["numbers"]
        ]
        lines.append(f"numbers that are not called: {found['total']}")
    terminal.show(json.dumps(found, ensure_ascii=False) if a.json else "\n".join(lines))
    return 0


def _begun(a: Namespace) -> dict[str, Any]:
    """Returns the options of the request that begins a campaign."""
    fields = {name: getattr(a, name) for name in NAMED if getattr(a, name)}
    fields |= {name: _number(getattr(a, name)) for name in NUMBERS if getattr(a, name)}
    if a.retries:
        fields["retries"] = {name: _retry(name, text) for name, text in a.retries.items()}
    if a.paused:
        fields["paused"] = True
    sent = _file(a)
    if "json" in sent:
        return {"json": {**sent["json"], **fields}}
    query = [
        (name, each if isinstance(each, str) else json.dumps(each))
        for name, value in fields.items()
        for each in (value if isinstance(value, list) else [value])
    ]
    return {**sent, "params": query}


def _number(text: str) -> float:
    """Raises ValueError."""
    return int(text) if text.isdecimal() else float(text)


def _retry(outcome: str, text: str) -> dict[str, float]:
    """Reads TIMES[/MINUTES]. Raises ValueError."""
    times, _, minutes = text.partition("/")
    try:
        retry = {"times": _number(times)}
        return {**retry, "after_minutes": _number(minutes)} if minutes else retry
    except ValueError:
        raise ValueError(f"--retry {outcome}={text}: is not OUTCOME=TIMES[/MINUTES]") from None


def _file(a: Namespace) -> dict[str, Any]:
    """Returns a file as options of a request. Raises ValueError, OSError."""
    data = sys.stdin.buffer.read() if str(a.file) == "-" else a.file.read_bytes()
    if a.file.suffix.lower() != ".json":
        return {"data": data, "headers": {"Content-Type": "text/csv"}}
    try:
        found = json.loads(data)
    except ValueError as error:
        raise ValueError(f"{a.file}: is no JSON: {error}") from error
    if not isinstance(found, dict):
        raise ValueError(f"{a.file}: an object with recipients is wanted")
    return {"json": found}


# --- for people ---


def _table(found: list[dict[str, Any]]) -> Iterator[str]:
    if not found:
        yield "no campaigns"
        return
    yield f"{'CAMPAIGN':<16} {'STATE':<10} {'CALLED':>13} {'NOW':>4}  NAME"
    for one in found:
        states = one["states"]
        called = one["recipients"] - states["waiting"] - states["dialling"]
        of = f"{called} of {one['recipients']}"
        yield (
            f"{one['campaign_id']:<16} {one['state']:<10} {of:>13} {states['dialling']:>4}  "
            f"{one['name']}"
        )


def _story(one: dict[str, Any]) -> Iterator[str]:
    name = f" ({one['name']})" if one["name"] else ""
    yield f"campaign {one['campaign_id']}{name} is {one['state']}"
    states = ", ".join(f"{number} {state}" for state, number in one["states"].items() if number)
    yield f"recipients: {states or 'none'}"
    outcomes = (f"{number} {name.replace('_', ' ')}" for name, number in one["outcomes"].items())
    yield f"outcomes: {', '.join(outcomes) or 'none yet'}; {one['calls']} calls in all"
    if one["next_call"]:
        yield f"next call: {one['next_call']}"
    for name, value in one["settings"].items():
        yield f"  {name}: {value if isinstance(value, str) else json.dumps(value)}"
