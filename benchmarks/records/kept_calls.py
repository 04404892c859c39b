"""`offhook bench records`: a store of a million calls, and how long it takes to find some of them.

Fills an empty store with made-up calls of a year: rows, two turns of words each, and the index of
words. Then asks what people ask in the console, each question many times with other values, and
says the median and the 95th percentile in ms; and writes calls as a server does, a batch five times
a second or faster, and says how many entries a second that makes.

With --up 20 it then asks the same over HTTP, as the console does, of a server on this store that
has 20 talking calls meanwhile, in turn for --seconds; and has as many calls on a server that keeps
none, to show by how much its packets leave later than theirs.

The store is SQLite in a folder that is deleted afterwards, or the one at --url, which must be
empty. --keep leaves it there, so that a server can be started on it.
"""

import argparse
import json
import random
import shutil
import sys
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import asdict, fields, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import aiohttp
from sqlalchemy import text

from benchmarks.calls import edge
from benchmarks.command import command
from benchmarks.processes.process import run
from benchmarks.table import Table
from offhook.media.leg import CallInfo
from offhook.web.records.analyses import VERDICTS
from offhook.web.records.entries import Began, Entry, Happened, Over, digits_key
from offhook.web.records.search import Search
from offhook.web.records.store import CallStore, Writer
from offhook.web.records.tables import analysis_criteria, call_agents, calls, events

YEAR_S = 365 * 86_400.0
AT_ONCE = 5000
"""Rows of one statement while the store is filled."""
AGENTS = ("front", "billing", "repairs", "sales", "night")
REASONS = (
    "the caller hung up",
    "the agent hung up",
    "transferred",
    "nothing heard from the caller",
)
COMMON = ("order", "appointment", "address", "invoice", "delivery", "please", "thanks", "number")
"""Words of every tenth call or so."""
WORDS = tuple(f"{a}{b}{c}" for a in "bdfgklmnprst" for b in "aeiou" for c in "bdfgklmnprst")
"""720 words that others are drawn from."""
QUESTIONS = 200
"""Of each kind."""
LIMIT_MS = 150
"""Which 95 of 100 answers may take while calls are up."""
HERE = Writer("bench:1")


def sentence(draw: random.Random, number: int) -> str:
    words = [*draw.choices(WORDS, k=10), draw.choice(COMMON), f"word{number % 100_000}"]
    draw.shuffle(words)
    return " ".join(words)


def call_id(number: int) -> str:
    return f"{number:012x}"


def rows(number: int, draw: random.Random, end: float, total: int) -> tuple[Any, ...]:
    """Returns the rows of a call: its own, its agent's, its events', its words."""
    call, agent = call_id(number), AGENTS[number % len(AGENTS)]
    started = end - YEAR_S * (total - number) / total
    caller, latency = f"+4930{draw.randrange(10**7):07}", 300 + int(draw.expovariate(0.005))
    said = (sentence(draw, number), sentence(draw, number + 1))
    own = {
        "id": call,
        "state": "ended",
        "server": "bench:1",
        "process": 1,
        "edge": "sip",
        "direction": "inbound",
        "caller": caller,
        "caller_key": digits_key(caller),
        "called": "+493055500",
        "called_key": digits_key("+493055500"),
        "trunk": "line",
        "caller_name": "",
        "agent": agent,
        "started": started,
        "answered": started,
        "ended": started + 60,
        "seconds": 60.0,
        "end": draw.choice(REASONS),
        "ended_by": "",
        "end_reason": "the caller hung up",
        "turns": 1,
        "interruptions": 0,
        "failures": int(draw.random() < 0.01),
        "latency_ms": latency,
        "latency_max_ms": latency,
        "mos": 4.2,
        "input_tokens": 0,
        "output_tokens": 0,
        "cost": None,
        "details": "{}",
        "transferred_to": "",
        "recording": "",
        "forgotten": None,
        "outcome": draw.choices(VERDICTS, (90, 2, 8))[0],
        "analysis_cost": 0.01,
    }
    turns = [
        {"call": call, "position": at, "at_ms": 1000 * at, "kind": kind, "fields": fields}
        for at, kind, fields in (
            (1, "caller_turn", f'{{"turn": 1, "text": "{said[0]}"}}'),
            (2, "agent_turn", f'{{"turn": 1, "text": "{said[1]}"}}'),
        )
    ]
    words = {"id": call, "words": "\n".join(said)}
    return own, {"agent": agent, "started": started, "call": call}, turns, words


def fill(store: CallStore, total: int) -> float:
    """Fills the store; returns how many calls a second that made."""
    draw, end, began = random.Random(1), time.time(), time.perf_counter()
    for first in range(0, total, AT_ONCE):
        part = [rows(n, draw, end, total) for n in range(first, min(first + AT_ONCE, total))]
        with store._engine.begin() as connection:
            connection.execute(calls.insert(), [own for own, *_ in part])
            connection.execute(call_agents.insert(), [agent for _, agent, *_ in part])
            connection.execute(events.insert(), [turn for _, _, turns, _ in part for turn in turns])
            connection.execute(text(store.kind.add_words), [words for *_, words in part])
            judged = [
                {"criterion": "booked", "verdict": own["outcome"], **agent}
                for own, agent, *_ in part
            ]
            for row in judged:
                del row["agent"]
            connection.execute(analysis_criteria.insert(), judged)
        print(f"\r{min(first + AT_ONCE, total):,} of {total:,} calls", end="", file=sys.stderr)
    print(file=sys.stderr)
    if store.kind.shared:
        with store._engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
            connection.execute(text("SET statement_timeout = 0"))
            connection.execute(text("VACUUM ANALYZE"))
    return total / (time.perf_counter() - began)


def questions(total: int) -> dict[str, Iterator[Search]]:
    """Returns what is asked, by what it is; each with other values every time."""
    draw, end = random.Random(2), time.time()

    def asked(**more: Any) -> Iterator[Search]:
        while True:
            values = {name: value() if callable(value) else value for name, value in more.items()}
            yield Search(**values)

    def moment() -> float:
        return end - draw.random() * YEAR_S

    return {
        "the last calls": asked(),
        "a day of the year": asked(end=moment),
        "an agent, from then": asked(agent=lambda: draw.choice(AGENTS), end=moment),
        "a number": asked(number=lambda: f"+4930{draw.randrange(10**7):07}"),
        "the end of a number": asked(number=lambda: f"{draw.randrange(10**6):06}"),
        "where something failed": asked(failed=True, end=moment),
        "answers over 2 s": asked(min_latency=2000, end=moment),
        "failures, from then": asked(analysis="failure", end=moment),
        "a criterion that failed": asked(criterion="booked", analysis="failure", end=moment),
        "a criterion that holds": asked(criterion="booked", analysis="success"),
        "an agent's, too": asked(
            criterion="booked", analysis="failure", agent=lambda: draw.choice(AGENTS)
        ),
        "a reason": asked(reason=lambda: draw.choice(REASONS), end=moment),
        "a word of every tenth call": asked(text=lambda: draw.choice(COMMON)),
        "a word of ten calls": asked(text=lambda: f"word{draw.randrange(min(total, 100_000))}"),
        "three words": asked(text=lambda: " ".join(draw.sample(WORDS, 2)) + " order"),
        "a common word, from then": asked(text=lambda: draw.choice(COMMON), end=moment),
        "a word and an agent": asked(
            text=lambda: draw.choice(WORDS), agent=lambda: draw.choice(AGENTS)
        ),
    }


def entries_of(number: int) -> list[Entry]:
    """A call of ten turns as a server writes it."""
    call, info = f"w{number}", replace(CallInfo("sip"), caller="+49301234567", called="100")
    turns: list[Entry] = [Began(call, time.time(), "front", asdict(info))]
    for at in range(10):
        fields = {"turn": at, "text": "what are your opening hours on the third of may"}
        turns.append(Happened(call, 2 * at, 1000 * at, "caller_turn", fields))
        turns.append(Happened(call, 2 * at + 1, 1000 * at, "agent_turn", fields))
    return [*turns, Over(call, time.time(), REASONS[0], REASONS[0], "remote", {"mos": 4.2})]


def written_a_second(store: CallStore, seconds: float = 5.0) -> float:
    """Writes calls one after the other, a transaction each; returns entries a second."""
    began, entries, number = time.perf_counter(), 0, 0
    while time.perf_counter() - began < seconds:
        batch = entries_of(number)
        store.write(batch, HERE, time.time())
        entries += len(batch)
        number += 1
    return entries / (time.perf_counter() - began)


def measure(store: CallStore, total: int, as_json: bool) -> None:
    lines = Table("found", "questions of the console", "question found p50_ms p95_ms", as_json)
    for name, searches in questions(total).items():
        took, found = [], 0
        for search, _ in zip(searches, range(QUESTIONS), strict=False):
            began = time.perf_counter()
            found += len(store.find(search)[0])
            took.append(1000 * (time.perf_counter() - began))
        show(lines, name, found, took)
    draw, took = random.Random(3), []
    for _ in range(QUESTIONS):
        call, began = call_id(draw.randrange(total)), time.perf_counter()
        assert store.show(call) is not None
        store.timeline(call)
        took.append(1000 * (time.perf_counter() - began))
    show(lines, "one call, with its words", QUESTIONS, took)


def show(lines: Table, name: str, found: int, took: list[float]) -> None:
    """Prints how long answers took, in ms."""
    took.sort()
    p50, p95 = took[len(took) // 2], took[int(len(took) * 0.95)]
    lines.row(question=name, found=found / len(took), p50_ms=p50, p95_ms=p95)


# --- while calls are up ---


def query_of(search: Search) -> dict[str, str]:
    """Returns the parameters of GET /calls that ask for the same."""
    query = {"limit": str(search.limit)}
    for item in fields(Search):
        value = getattr(search, item.name)
        if value == item.default:
            continue
        if item.name in ("start", "end"):
            name = {"start": "from", "end": "to"}[item.name]
            query[name] = datetime.fromtimestamp(value, UTC).isoformat()
        else:
            query[item.name] = "true" if value is True else str(value)
    return query


class Console:
    """Asks a server what people ask in the console, one question after the other."""

    def __init__(self, total: int, seconds: float) -> None:
        self.took: dict[str, list[float]] = defaultdict(list)
        """ms of the answers to each question."""
        self.found: Counter[str] = Counter()
        self._questions, self._seconds = questions(total), seconds

    async def ask(self, http: aiohttp.ClientSession) -> None:
        end = time.perf_counter() + self._seconds
        while True:
            for name, searches in self._questions.items():
                began = time.perf_counter()
                if began >= end:
                    return
                async with http.get("/calls", params=query_of(next(searches))) as response:
                    response.raise_for_status()
                    self.found[name] += len((await response.json())["calls"])
                self.took[name].append(1000 * (time.perf_counter() - began))


async def measure_up(url: str, total: int, up: int, seconds: float, as_json: bool) -> int:
    """Measures answers while calls are up, and these beside calls that are not kept. Returns 1 if
    an answer took longer than it may."""
    console = Console(total, seconds)
    kept = await edge.measure("kept", "talking", up, seconds, ("--kept", url), console.ask)
    alone = await edge.measure("edge", "talking", up, seconds)
    title = f"questions of the console while {up} calls are up"
    lines = Table("asked", title, "question found p50_ms p95_ms", as_json)
    for name, took in console.took.items():
        show(lines, name, console.found[name], took)
    if as_json:
        print(json.dumps({"kept": asdict(kept), "edge": asdict(alone)}))
    else:
        print(edge.HEADER, edge.line(kept), edge.line(alone), sep="\n")
    slow = [name for name, took in console.took.items() if took[int(len(took) * 0.95)] > LIMIT_MS]
    held = kept.holds and alone.holds and console.took and not slow
    if not as_json:
        print(
            f"held: p95 at most {LIMIT_MS} ms, no gap" if held else f"not held: {slow or 'calls'}"
        )
    return 0 if held else 1


def main(argv: Sequence[str] | None = None) -> int:
    parser = command("records", __doc__)
    parser.add_argument("--calls", type=int, default=1_000_000)
    parser.add_argument("--url", default="", help="an empty store; default: SQLite in a folder")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--up", type=int, default=0, help="talking calls meanwhile; default: none")
    parser.add_argument("--seconds", type=float, default=60.0, help="for which they are measured")
    parser.add_argument("--keep", type=Path, help="folder in which the file of SQLite stays")
    arguments: argparse.Namespace = parser.parse_args(argv)
    folder = arguments.keep or Path(tempfile.mkdtemp(prefix="offhook-records-"))
    store = CallStore(arguments.url or f"sqlite:///{folder}/calls.db")
    try:
        store.prepare()
        filled = fill(store, arguments.calls)
        number, size = store.size()
        print(f"{store.kind.title}: {number:,} calls, {size / 1e6:,.0f} MB, {filled:,.0f} calls/s")
        measure(store, arguments.calls, arguments.json)
        print(f"written: {written_a_second(store):,.0f} entries/s, a call of ten turns at a time")
        a = arguments
        if a.up:
            return run(measure_up(store.url, a.calls, a.up, a.seconds, a.json))
    finally:
        store.close()
        if arguments.keep is None:
            shutil.rmtree(folder, ignore_errors=True)
    return 0
