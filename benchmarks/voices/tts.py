"""`offhook bench tts`: the Qwen3-TTS engine at the real dimensions on this machine's GPU.

Weights are random, and how long a text takes to say is simulated: 3.5 frames of 80 ms a token.
Everything else is the engine as it serves replies. Parts: `frame` (every stage beside its floor,
one voice beside the official package, text to first sound), `voices` (how many are held in real
time), `open` (requests at random, beside published figures), `llm` (text as a language model writes
it), `barge` (replies cancelled at random moments), `hour` (an hour of speech in every voice, as
fast as it can be made), `marks` (words marked in the sound of an hour). With --simulated nothing is
measured: all but `frame` is rehearsed on a cost model.
"""

import argparse
import sys
import time
from collections.abc import Callable, Sequence

from loguru import logger

from benchmarks.command import command, numbers
from benchmarks.table import Table, progress
from benchmarks.voices import tts_door, tts_frame, tts_hour, tts_parts
from benchmarks.voices.tts_parts import TEXTS, Point
from benchmarks.voices.tts_runners import MODELS, Machine, description, ready

PARTS = ("frame", "voices", "open", "llm", "barge", "hour", "marks")
HOUR_S = 900.0
"""After which `hour` and `marks` are given up."""


def _points(text: str) -> list[Point]:
    """RATE[@SECONDS][/TEXT],…"""
    found = []
    for one in text.split(","):
        load, _, kind = one.partition("/")
        rate, _, seconds = load.partition("@")
        if kind and kind not in TEXTS:
            raise argparse.ArgumentTypeError(f"{kind!r} is none of {', '.join(TEXTS)}")
        found.append(Point(float(rate), float(seconds or 20), kind or "whole"))
    return found


def _names(known: Sequence[str]) -> Callable[[str], list[str]]:
    def names(text: str) -> list[str]:
        found = [name for name in text.split(",") if name]
        if unknown := [name for name in found if name not in known]:
            raise argparse.ArgumentTypeError(f"{unknown[0]!r} is none of {', '.join(known)}")
        return found

    return names


def _parser() -> argparse.ArgumentParser:
    parser = command("tts", __doc__)
    add = parser.add_argument
    add("--model", choices=tuple(MODELS), default="0.6B")
    add("--parts", type=_names(PARTS), default=list(PARTS), metavar="PART,…")
    add(
        "--buckets",
        type=numbers,
        default=[1, 4, 16, 64, 128, 256, 512],
        metavar="N,…",
        help="sizes of batches to compile (default %(default)s)",
    )
    add("--simulated", action="store_true", help="a rehearsal on a cost model, without a GPU")
    add("--json", action="store_true", help="a JSON line a row")
    add("--kernels", type=int, default=0, help="of the stages of frame, the longest first")
    add("--repeats", type=int, default=30, help="of what is timed by itself (default %(default)s)")
    add("--starts", type=int, default=50, help="of a voice that is hot, and cold")
    add("--peers", metavar="DIR", help="folder with qwen-tts and its transformers, for frame")
    add("--points", type=numbers, default=[64, 128, 192, 256, 384, 500], metavar="N,…")
    add("--seconds", type=float, default=10.0, help="of voices at each point, and of barge")
    add("--settle", type=float, default=5.0, help="s in which the voices of a point begin")
    requests = "1,2,4,8,10,12,16,20,10/words,20/words,1/file,10/file,20/file"
    add(
        "--requests",
        type=_points,
        default=_points(requests),
        metavar="RATE[@SECONDS][/TEXT],…",
        help=f"a second, of open; TEXT is one of {', '.join(TEXTS)} (default {requests})",
    )
    add(
        "--through",
        type=_names(tts_door.DOORS),
        default=[],
        metavar="DOOR,…",
        help=f"open again, at the sockets of a worker: {', '.join(tts_door.DOORS)}",
    )
    add("--tokens", type=numbers, default=[2, 20, 50, 100], metavar="N,…", help="a second, of llm")
    add("--voices", type=int, default=32, help="of barge and hour (default %(default)s)")
    add("--minutes", type=float, default=60.0, help="of hour and marks (default %(default)s)")
    return parser


def _run(part: str, machine: Machine, a: argparse.Namespace) -> None:
    if part == "frame":
        tts_frame.one_voice(machine, a.repeats, a.peers, a.json)
        tts_frame.starts(machine, a.starts, a.json)
        tts_frame.stages(machine, a.repeats, a.kernels, a.json)
    elif part == "voices":
        points = sorted({min(n, machine.streams) for n in a.points})
        tts_parts.voices(machine, points, a.seconds, a.settle, a.json)
    elif part == "open":
        tts_parts.open_loop(machine, a.requests, a.json)
        if a.through:
            tts_door.through(a.model, machine.streams, a.through, a.requests, a.json)
    elif part == "llm":
        tts_parts.llm(machine, a.tokens, a.json)
    elif part == "barge":
        tts_parts.barge(machine, a.voices, a.seconds, a.json)
    elif part == "hour":
        tts_hour.hour(machine, a.voices, a.minutes, HOUR_S, a.json)
    else:
        from benchmarks.voices import tts_marks

        tts_marks.marks(machine, a.minutes, HOUR_S, a.json)


def main(argv: Sequence[str] | None = None) -> int:
    a = _parser().parse_args(argv)
    logger.remove()
    logger.add(sys.stderr, level="WARNING")
    if a.simulated and a.through:
        raise ValueError("a rehearsal on a cost model has no sockets: use --model tiny")
    parts = [part for part in a.parts if not (a.simulated and part == "frame")]
    wanted = {"voices": max(a.points), "barge": a.voices, "hour": a.voices}
    wanted["llm"] = 2 * len(a.tokens)
    most = max([wanted.get(part, 1) for part in parts], default=1)
    began = time.monotonic()

    def tell(doing: str) -> None:
        progress(f"{time.monotonic() - began:6.1f} s  {doing}")

    machine = ready(a.model, a.buckets, most, a.simulated, lambda fraction, doing: tell(doing))
    note = "random weights at the real dimensions, speech of 3.5 frames a token"
    if a.simulated:
        note = "a SIMULATION: nothing is measured"
    about = {"model": a.model, **description(machine), "ready_s": time.monotonic() - began}
    Table(f"Qwen3-TTS {a.model}", note, " ".join(about), a.json).row(**about)
    broken = 0
    for part in parts:
        tell(part)
        try:
            _run(part, machine, a)
        except Exception as error:  # the other parts go on
            logger.exception("{} broke: {}", part, error)
            broken += 1
    tell("done")
    return int(broken > 0)


if __name__ == "__main__":
    raise SystemExit(main())
