"""Turn-taking in virtual time: how many callers who pause are cut off, how long those wait who are
done, and whether short answers at the end of the agent's question are lost.

The callers' sentences are in `texts/`, and are spoken by the voices of `speak.py` beforehand. The
lists and constants of the policy were chosen on the half of the texts with even numbers; the half
with odd ones, `--half held-out`, is what counts.
"""

import argparse
import asyncio
import json
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.turn_taking.play import Heard, Options, play
from benchmarks.turn_taking.script import answers, is_held_out, utterances

HALVES = ("held-out", "tuned", "all")
LATENCIES_MS = (100, 500, 1000)


def row(name: str, heard: Sequence[Heard]) -> dict[str, Any]:
    delays = [h.delay_ms for h in heard if h.delay_ms is not None]
    middle, most = np.percentile(delays, [50, 95]) if delays else (0, 0)
    return {
        "kind": name,
        "turns": len(heard),
        "cut off": sum(h.cut_off for h in heard),
        "talked over": sum(h.talked_over for h in heard),
        "unanswered": len(heard) - len(delays),
        "delay p50 ms": round(middle),
        "delay p95 ms": round(most),
        "max": max(delays, default=0),
    }


def ends(options: argparse.Namespace) -> list[dict[str, Any]]:
    """Ends of turns, by kind, and together."""
    said = [
        one
        for one in utterances(options.sounds, options.language)
        if options.half == "all" or is_held_out(one) == (options.half == "held-out")
    ]
    how = Options(options.latency, options.reply)
    heard = asyncio.run(play(said, how, options.sounds / "judged.npz"))
    kinds = defaultdict(list)
    for one in heard:
        kinds[one.utterance.kind].append(one)
    return [
        *(row(kind, of_kind) for kind, of_kind in sorted(kinds.items())),
        row("all with pauses", [h for h in heard if h.utterance.pauses]),
        row("all without", [h for h in heard if not h.utterance.pauses]),
    ]


def short_answers(options: argparse.Namespace) -> list[dict[str, Any]]:
    """Answers at the end of the agent's question, by the recognizer's latency."""
    said = list(answers(options.sounds))[:: options.every]
    return [
        row(f"recognizer of {latency} ms", asyncio.run(play(said, Options(latency), judged)))
        for judged in (options.sounds / "judged.npz",)
        for latency in LATENCIES_MS
    ]


def main(words: list[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks turn_taking",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("set", choices=("ends", "answers"))
    parser.add_argument("sounds", type=Path, help="the folder that speak.py has written")
    parser.add_argument("--language", default="en")
    parser.add_argument("--half", choices=HALVES, default=HALVES[0])
    parser.add_argument("--latency", type=int, default=100, help="of the recognizer, in ms")
    parser.add_argument("--reply", type=int, default=400, help="until the agent is heard, in ms")
    parser.add_argument("--every", type=int, default=1, help="every so manyth of the answers")
    parser.add_argument("--json", action="store_true", help="a line of JSON a row")
    options = parser.parse_args(words)
    rows = ends(options) if options.set == "ends" else short_answers(options)
    if options.json:
        for one in rows:
            print(json.dumps(one))
        return 0
    print("| " + " | ".join(rows[0]) + " |\n|" + "---|" * len(rows[0]))
    for one in rows:
        print("| " + " | ".join(map(str, one.values())) + " |")
    return 0
