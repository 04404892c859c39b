"""All attacks on all kinds of servers, and what an innocent user of each noticed meanwhile.

    python -m tests.attack [--target edge] [--attack known.stun_flood] [--seconds 5] [--json]

    edge        one process with calls: WebRTC, SIP, carriers, Realtime, the speech API
    processes   two of them with one port; a call on each
    gateway     the speech API with its engines in other processes
    worker      a voice whose WebSockets are in two processes beside it

Servers, attackers and innocent users are processes of their own; attackers are niced. Before each
attack the machine is quiet for as long as it rests afterwards: the longest gap of that time stands
beside the one during the attack. A gap is the time between two packets of a call, or two chunks of
a reply; an answer that from a question to the agent's voice; healthz the longest answer to
GET /healthz. An exclamation mark: more than GAP_MS beyond the quiet machine's, more than
HEALTHZ_MS, more than MEMORY of growth after the rest, more than one line of the log a minute of a
kind from a process, but for what a call or a request that was served has written, a traceback, a
task that was destroyed, or an innocent user cut off.
The first row of each table is no attack, only a busy neighbour.
"""

import argparse
import asyncio
import fnmatch
import json
import math
import re
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.processes.process import Child, ChildError, Footprint, child, run
from tests.attack.attacks import Found, all_attacks
from tests.attack.targets import TARGETS, Target, warm_up

GAP_MS = 60.0
"""Beyond the longest gap of the quiet machine."""
HEALTHZ_MS = 100.0
"""Or twice the quiet machine's, if that is busy itself."""
MEMORY = 1.1
"""Of the resident memory before, after the rest and RETURN_S at most."""
RETURN_S = 60.0
"""In which what calls have left is collected, and freed memory given back."""
SECONDS = 5.0
REST_S = 4.0
SAMPLE_S = 0.2
WORD_S = 20.0
"""For an innocent user to say what it has noticed."""
NOTHING = "known.nothing_at_all"
_LINE = re.compile(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d+ ([A-Z]+) +(.*)")
_SERVED = re.compile(r"(?:\[\d+\] )?(?:\S+: |\S+ \S+ (?:101|2\d\d): |\d+ more like this )")
"""Lines of a call, with its id before them, of a request that was answered, and of counted lines
that were left out."""
_VARIES = re.compile(
    r"'[^']*'|\"[^\"]*\"|\b[0-9a-f]{6,}\b|(?<!\d)(?!\d{3}: )\d+(?:[.:]\d+)*|\S*/\S+"
)
"""What differs between lines of a kind: not the status of a response, which makes it another."""


@dataclass
class Row:
    """One attack on one server."""

    target: str
    attack: str
    got: str = "not applicable"
    gap_ms: float = 0.0
    quiet_gap_ms: float = 0.0
    answer_ms: float = 0.0
    quiet_answer_ms: float = 0.0
    healthz_ms: float = 0.0
    quiet_healthz_ms: float = 0.0
    memory_mb: tuple[float, float, float] = (0.0, 0.0, 0.0)
    """Before, at most meanwhile, and after the rest; with the processes that a server started."""
    lines: dict[str, int] = field(default_factory=dict)
    """Of the log, by level and kind, but for kinds that innocent users alone lead to."""
    tracebacks: int = 0
    destroyed: int = 0
    lost: list[str] = field(default_factory=list)
    """Why innocent users were cut off or refused."""
    processes: int = 1
    seconds: float = 0.0
    """That `lines` cover: the attack and the rest after it."""

    @property
    def applies(self) -> bool:
        return self.got != "not applicable"

    def misses(self) -> list[str]:
        """What is not within the limits."""
        before, _, after = self.memory_mb
        minutes = self.seconds / 60
        checks = {
            "gap": self.gap_ms > self.quiet_gap_ms + GAP_MS,
            "healthz": self.healthz_ms > max(HEALTHZ_MS, 2 * self.quiet_healthz_ms),
            "memory": after > before * MEMORY,
            "log": any(n > math.ceil(minutes) * self.processes for n in self.lines.values()),
            "traceback": self.tracebacks > 0,
            "destroyed": self.destroyed > 0,
            "cut off": bool(self.lost),
        }
        return [name for name, missed in checks.items() if missed]

    def cells(self) -> tuple[str, ...]:
        if not self.applies:
            return (self.attack, self.got, *("",) * 7)
        missed = self.misses()

        def marked(name: str, text: str) -> str:
            return f"{text} !" if name in missed else text

        top = max(self.lines.items(), key=lambda item: item[1], default=("", 0))
        per_minute = sum(self.lines.values()) / max(self.seconds, 1e-9) * 60
        log = f"{per_minute:.0f}/min" + (f", {top[1]} × {top[0][:50]}" if top[1] > 1 else "")
        before, most, after = self.memory_mb
        return (
            self.attack,
            self.got[:70],
            marked("gap", f"{self.gap_ms:.0f} ({self.quiet_gap_ms:.0f})"),
            f"{self.answer_ms:.0f} ({self.quiet_answer_ms:.0f})",
            marked("healthz", f"{self.healthz_ms:.0f} ({self.quiet_healthz_ms:.0f})"),
            marked("memory", f"{before:.0f} > {most:.0f} > {after:.0f}"),
            marked("log", log),
            marked("traceback", marked("destroyed", f"{self.tracebacks}, {self.destroyed}")),
            marked("cut off", "; ".join(self.lost)[:60]),
        )


HEADS = (
    *("attack", "what it got", "gap ms (quiet)", "answer ms (quiet)", "healthz ms (quiet)"),
    *("memory MB", "log", "tracebacks, destroyed", "innocent"),
)


def kinds_of(log: str) -> Counter[str]:
    """Lines of a log by level and what stays the same of the message."""
    found = Counter[str]()
    for line in log.splitlines():
        match = _LINE.match(line)
        if match and not (match[1] == "INFO" and _SERVED.match(match[2])):
            found[f"{match[1]} {_VARIES.sub('#', match[2])[:80]}"] += 1
    return found


class Users:
    """The innocent users of a target, in processes of their own."""

    def __init__(self, user: Child, probe: Child) -> None:
        self._user, self._probe = user, probe

    async def look(self) -> tuple[dict[str, Any], dict[str, Any]]:
        """What users and probe have noticed since the last look, the worst of several."""
        for one in (self._user, self._probe):
            one.send("look")
        said = [await one.line(WORD_S) for one in (self._user, self._probe)]
        return _worst(said[0]["noticed"]), _worst(said[1]["noticed"])


def _worst(noticed: Sequence[dict[str, Any]]) -> dict[str, Any]:
    return {
        **{name: max(one[name] for one in noticed) for name in ("longest_ms", "answer_ms")},
        "events": min(one["events"] for one in noticed),
        "why": [why for one in noticed for why in one["why"]],
    }


async def attacked(
    target: Target, users: Users, attack: Found, seconds: float, rest_s: float
) -> Row:
    """Attacks a target once. Raises ChildError."""
    row = Row(target.name, attack.name, processes=target.processes)
    arguments = attack.arguments(target.offers)
    if arguments is None:
        return row
    command = (attack.name, target.base, str(seconds), json.dumps(arguments))
    async with child("tests.attack.attacker", *command) as attacker:
        await users.look()
        rested = target.log.stat().st_size
        await asyncio.sleep(rest_s)
        quiet, probe = await users.look()
        row.quiet_gap_ms, row.quiet_answer_ms = quiet["longest_ms"], quiet["answer_ms"]
        row.quiet_healthz_ms, before = probe["longest_ms"], _rss_mb(target)
        began, logged = time.monotonic(), target.log.stat().st_size
        attacker.send("now")
        most = before
        got = asyncio.create_task(attacker.line(seconds + 90))
        while not got.done():
            await asyncio.wait((got,), timeout=SAMPLE_S)
            most = max(most, _rss_mb(target))
        try:
            row.got = (await got)["got"]
        except ChildError as error:
            row.got = f"the attacker died: {str(error).splitlines()[-1]}"
        noticed, probe = await users.look()
    row.gap_ms, row.answer_ms = noticed["longest_ms"], noticed["answer_ms"]
    row.healthz_ms, row.lost = probe["longest_ms"], [*noticed["why"], *probe["why"]]
    await asyncio.sleep(rest_s)
    for _ in range(int(RETURN_S)):
        if _rss_mb(target) <= before * MEMORY:
            break
        await asyncio.sleep(1)
    row.memory_mb = before, most, _rss_mb(target)
    row.seconds = round(time.monotonic() - began, 1)
    usual, log = (text.decode(errors="replace") for text in _parts(target.log, rested, logged))
    of_users = kinds_of(usual).keys()
    found = [(kind, n) for kind, n in kinds_of(log).most_common() if kind not in of_users]
    row.lines = dict(found[:8])
    row.tracebacks, row.destroyed = log.count("Traceback ("), log.count("was destroyed")
    return row


def _parts(log: Path, first: int, second: int) -> tuple[bytes, bytes]:
    """Of a log, from one size to the other and from there on."""
    with log.open("rb") as file:
        file.seek(first)
        return file.read(second - first), file.read()


def _rss_mb(target: Target) -> float:
    with suppress(OSError, KeyError, ValueError):
        return Footprint.of(target.pid).rss_mb
    return 0.0


async def table(
    name: str, attacks: Sequence[Found], seconds: float, rest_s: float, as_json: bool
) -> list[Row]:
    """Starts a target, attacks it by each, and shows a row of each. Raises RuntimeError and
    ChildError."""
    rows: list[Row] = []
    with tempfile.TemporaryDirectory() as folder:
        async with TARGETS[name](Path(folder)) as target:
            await warm_up(target)
            if not as_json:
                print(f"\n## {target.name}\n\n| {' | '.join(HEADS)} |\n|{'---|' * len(HEADS)}")
            kind, *count = target.user
            async with (
                child("tests.attack.innocent", kind, target.base, *count) as user,
                child("tests.attack.innocent", "health", target.base) as probe,
            ):
                users = Users(user, probe)
                for attack in attacks:
                    rows.append(await attacked(target, users, attack, seconds, rest_s))
                    _show(rows[-1], as_json)
    return rows


def _show(row: Row, as_json: bool) -> None:
    if as_json:
        print(json.dumps({**asdict(row), "misses": row.misses() if row.applies else []}))
    else:
        print("| " + " | ".join(cell.replace("|", "/") for cell in row.cells()) + " |")
    sys.stdout.flush()


def matrix(rows: Sequence[Row]) -> str:
    """Attacks by targets: what was beyond its limit."""
    targets = list(dict.fromkeys(row.target for row in rows))
    cells = {(row.attack, row.target): row for row in rows}
    lines = [f"| attack | {' | '.join(targets)} |", "|---" * (1 + len(targets)) + "|"]
    for attack in dict.fromkeys(row.attack for row in rows):
        shown = []
        for target in targets:
            row = cells.get((attack, target))
            applies = row is not None and row.applies
            missed = ", ".join(row.misses()) if row is not None and applies else ""
            shown.append((f"! {missed}" if missed else "within") if applies else "-")
        lines.append(f"| {attack} | {' | '.join(shown)} |")
    return "\n".join(lines)


async def attack_all(
    targets: Sequence[str], attacks: Sequence[Found], seconds: float, rest_s: float, as_json: bool
) -> list[Row]:
    """Raises RuntimeError if a server does not start."""
    rows = [row for name in targets for row in await table(name, attacks, seconds, rest_s, as_json)]
    if not as_json:
        print(f"\n## All\n\n{matrix(rows)}")
    return rows


def chosen(patterns: Sequence[str]) -> list[Found]:
    """Attacks by name or pattern; all without any."""
    known = all_attacks()
    return [
        found
        for name, found in known.items()
        if not patterns or any(fnmatch.fnmatch(name, pattern) for pattern in patterns)
    ]


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser("python -m tests.attack", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    add = parser.add_argument
    add("--target", action="append", choices=TARGETS, help="all without it")
    add("--attack", action="append", metavar="PATTERN", help="as known.*; all without it")
    add("--seconds", type=float, default=SECONDS, help=f"of each attack ({SECONDS:g})")
    add("--rest", type=float, default=REST_S, help=f"in s, before and after each ({REST_S:g})")
    add("--json", action="store_true", help="a line of JSON a row")
    a = parser.parse_args(argv)
    attacks = chosen(a.attack or [])
    rows = run(attack_all(a.target or list(TARGETS), attacks, a.seconds, a.rest, a.json))
    return 1 if any(row.applies and row.misses() for row in rows if row.attack != NOTHING) else 0


if __name__ == "__main__":
    raise SystemExit(main())
