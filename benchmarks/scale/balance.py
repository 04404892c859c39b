"""`offhook bench balance`: how evenly edges spread calls over workers, simulated.

Ten thousand calls and more on a virtual clock, with the real pool and admission (`simulation`).
Rows are those of docs/scale.md: streams held by the most loaded worker ÷ their mean, before
something happens (median and worst of all seconds) and 1, 10 and 60 s after it; the same of the
streams in use, where chance alone makes the difference in parentheses; how long callers who spoke
had no worker; the streams that moved, and those that moved again.
"""

import json
import time
from collections.abc import Sequence
from dataclasses import asdict, replace
from math import erf, sqrt
from statistics import median

import numpy as np
from loguru import logger

from benchmarks.command import command
from benchmarks.scale.simulation import (
    LISTENS_S,
    SETTLED_S,
    SPEAKS_S,
    Result,
    Scenario,
    Simulation,
)

AT_S = 40.0
"""When something happens, in s."""
SPEAKING = SPEAKS_S / (SPEAKS_S + LISTENS_S)
USUAL = Scenario("nothing happens")
LOSS = replace(USUAL, used=0.6, event_s=AT_S)
"""A third of the workers is less than the rest can take over at 70 %."""
SCENARIOS = (
    USUAL,
    replace(USUAL, name="polls each 5 s", poll_s=5.0),
    replace(USUAL, name="subset of 2", subset=2),
    replace(USUAL, name="subset of 8", subset=8),
    replace(USUAL, name="subset of 16", subset=16),
    replace(USUAL, name="free by streams in use only", in_use_only=True),
    replace(LOSS, name="7 of 20 killed", kill=7),
    replace(LOSS, name="… free said to polls only", kill=7, polls_only=True),
    replace(
        LOSS,
        name="… and by streams in use only",
        kill=7,
        polls_only=True,
        in_use_only=True,
    ),
    replace(LOSS, name="7 of 20 vanish", vanish=7),
    replace(LOSS, name="… the list a minute late", vanish=7, list_lag_s=60.0),
    replace(LOSS, name="1 of 20 vanishes, used to 70 %", vanish=1, used=0.7),
    replace(LOSS, name="7 of 20 killed, used to 70 %", kill=7, used=0.7),
    replace(LOSS, name="5 added to 20", add=5, used=0.7, seconds=260.0),
    replace(LOSS, name="… the list a minute late", add=5, used=0.7, list_lag_s=60.0, seconds=260.0),
    replace(USUAL, name="4 edges", edges=4, calls=100),
    replace(USUAL, name="10 edges", edges=10, calls=250),
    replace(USUAL, name="… subset of 16", edges=10, calls=250, subset=16),
    replace(USUAL, name="40 edges", edges=40, calls=1000),
    replace(USUAL, name="… subset of 16", edges=40, calls=1000, subset=16),
    replace(USUAL, name="200 workers", workers=200),
    replace(USUAL, name="… subset of 16", workers=200, subset=16),
    replace(USUAL, name="2,000 workers", workers=2000, seconds=50.0),
    replace(USUAL, name="… subset of 16", workers=2000, subset=16, seconds=50.0),
    replace(USUAL, name="200 workers, 4,000 edges", workers=200, edges=4000, calls=100_000),
)
HEADS = (
    "",
    "calls, edges, workers",
    "held, p50, worst",
    "after 1, 10, 60 s",
    "in use, p50 (chance)",
    "without a worker p50, max",
    "moved once, more often",
    "refused, waited",
)


def chance_of_most(streams: float, workers: int) -> float:
    """Returns most ÷ mean of the streams in use if each worker holds as many `streams`: the median
    of the largest of `workers` normal deviations."""
    low, high = 0.0, 10.0
    while high - low > 1e-3:
        middle = (low + high) / 2
        if ((1 + erf(middle / sqrt(2))) / 2) ** workers < 0.5:
            low = middle
        else:
            high = middle
    return 1 + low * sqrt((1 - SPEAKING) / (SPEAKING * streams))


def row(result: Result) -> dict[str, object]:
    """Returns what a scenario showed."""
    s = result.scenario
    until = s.event_s or s.seconds
    held = result.ratios("held", SETTLED_S, until)
    after = {
        f"{seconds:g}": round(ratios[0], 3)
        for seconds in (1, 10, 60)
        if s.event_s
        and (ratios := result.ratios("held", s.event_s + seconds, s.event_s + seconds + 1))
    }
    outages = result.outages_s
    return {
        **asdict(s),
        "held": [round(median(held), 3), round(max(held), 3)],
        "held_after": after,
        "in_use": round(median(result.ratios("in_use", SETTLED_S, until)), 3),
        "in_use_by_chance": round(chance_of_most(s.calls / s.workers, s.workers), 3),
        "outage_s": [round(float(np.quantile(outages, q)), 2) for q in (0.5, 1)] if outages else [],
        "moved": [result.moves[1], sum(n for often, n in result.moves.items() if often > 1)],
        "refusals": result.refusals,
        "waited": result.waited,
        "calls_refused": result.calls_refused,
    }


def line(r: dict[str, object]) -> str:
    """Returns a row of Markdown."""
    after, held, moved, outage = r["held_after"], r["held"], r["moved"], r["outage_s"]
    assert isinstance(after, dict)
    assert isinstance(held, list)
    assert isinstance(moved, list)
    assert isinstance(outage, list)
    cells = (
        r["name"],
        f"{r['calls']:,}, {r['edges']:,}, {r['workers']:,}",
        f"{held[0]:.2f}, {held[1]:.2f}",
        ", ".join(f"{ratio:.2f}" for ratio in after.values()),
        f"{r['in_use']:.2f} ({r['in_use_by_chance']:.2f})",
        f"{outage[0]:.2f}, {outage[1]:.2f} s" if outage else "",
        f"{moved[0]:,}, {moved[1]:,}",
        f"{r['refusals']:,}, {r['waited']:,}",
    )
    return f"| {' | '.join(map(str, cells))} |"


def main(argv: Sequence[str]) -> int:
    parser = command("balance", __doc__)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--short", action="store_true", help="only scenarios of some seconds")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args(argv)
    logger.remove()
    scenarios = [s for s in SCENARIOS if not options.short or s.workers <= 20]
    rows = []
    if not options.json:
        print(f"| {' | '.join(HEADS)} |\n|{'---|' * len(HEADS)}", flush=True)
    began = time.monotonic()
    for scenario in scenarios:
        rows.append(row(Simulation(replace(scenario, seed=options.seed)).run()))
        if not options.json:
            print(line(rows[-1]), flush=True)
    if options.json:
        print(json.dumps(rows, indent=1))
    else:
        print(f"\n{len(rows)} scenarios in {time.monotonic() - began:.0f} s")
    return 0
