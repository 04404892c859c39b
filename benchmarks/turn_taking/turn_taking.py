"""Turn-taking in virtual time: how many callers who pause are cut off, how long those wait who are
done, and whether short answers at the end of the agent's question are lost.

The callers' sentences are in `texts/`, and are spoken by the voices of `speak.py` beforehand. The
lists and constants of the policy were chosen on the half of the texts with even numbers; the half
with odd ones, `--half held-out`, is what counts.

A caller is cut off if the agent is heard before the last word is over. A turn that was given to the
agent too early, and whose answer was dropped before anything of it was heard, is taken back.
"""

import argparse
import asyncio
import json
import random
import re
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import openai

from benchmarks.calls.call_words import settings_of
from benchmarks.command import command
from benchmarks.processes.process import run as run_loop
from benchmarks.speech.transcript import prefix_distances
from benchmarks.turn_taking.engines import ByUrl, Engine, KnownWords, PocketSphinx, Transcripts
from benchmarks.turn_taking.eot import DataError
from benchmarks.turn_taking.eot import bench as eot_figures
from benchmarks.turn_taking.lines import LINES
from benchmarks.turn_taking.play import Heard, Options, play
from benchmarks.turn_taking.real_answers import by_offset, real_answers
from benchmarks.turn_taking.script import (
    AGENT_LEVEL,
    OVER_MS,
    Utterance,
    answers,
    is_held_out,
    over_the_agent,
    utterances,
)
from benchmarks.turn_taking.signals import PATIENT, table
from benchmarks.turn_taking.stock import play_stock
from offhook.media.pcm import PACKET_MS, RATE_IN
from offhook.pipeline.conversation.turns.turn import TurnSettings
from offhook.pipeline.speech.vad.turn_model_io import SMART_TURN
from offhook.web.config.engines import OPENAI

HALVES = ("held-out", "tuned", "all")
POCKETSPHINX = "pocketsphinx"
LATENCIES_MS = (100, 500, 1000)
CALLERS = 12
"""Of each kind, who say the turns one after another."""
DICTATED = ("email", "number", "phone", "spell")
"""Kinds of turns of which every letter counts."""
DIGITS = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")


def row(name: str, heard: Sequence[Heard]) -> dict[str, Any]:
    delays = [h.delay_ms for h in heard if h.delay_ms is not None]
    middle, most = np.percentile(delays, [50, 95]) if delays else (0, 0)
    return {
        "kind": name,
        "turns": len(heard),
        "cut off": sum(h.cut_off for h in heard),
        "taken back": sum(h.given_early and not h.cut_off for h in heard),
        "unanswered": len(heard) - len(delays),
        "delay p50 ms": round(middle),
        "delay p95 ms": round(most),
        "max": max(delays, default=0),
    }


def how_of(options: argparse.Namespace) -> Options:
    changed: dict[str, Any] = {key: int(ms) for key, ms in (one.split("=") for one in options.turn)}
    settings = TurnSettings(**changed)
    known = KnownWords() if options.latency is None else KnownWords(options.latency)
    return Options(known, options.reply, settings, turn_model=options.turn_model)


def engine_of(options: argparse.Namespace) -> Engine | None:
    """Returns the real recognizer that is asked for, or None."""
    if options.url:
        transcripts = Transcripts(options.url, options.model)
        return ByUrl(transcripts, options.latency, partials=not options.no_partials)
    return PocketSphinx(options.latency) if options.engine == POCKETSPHINX else None


def of_half(options: argparse.Namespace) -> list[Utterance]:
    line = LINES[options.line]
    return [
        replace(one, sound=line(one.sound))
        for one in utterances(options.sounds, options.texts)
        if options.half == "all" or is_held_out(one) == (options.half == "held-out")
    ]


def ends(options: argparse.Namespace) -> list[dict[str, Any]]:
    """Ends of turns, by kind, and together; beside them those with a real recognizer, and those of
    stock Pipecat."""
    said, how = of_half(options), how_of(options)
    judged = options.sounds / "judged.npz"
    played = [("", asyncio.run(play(said, how, judged)))]
    if (engine := engine_of(options)) is not None:
        heard = asyncio.run(play(said, replace(how, engine=engine), judged))
        middle, most = np.percentile(engine.finals_ms, [50, 95])
        played.insert(0, (f"finals after {middle:.0f}, {most:.0f} ms: ", heard))
        played[1] = ("words known: ", played[1][1])
    if options.stock:
        stock = asyncio.run(play_stock(said, options.reply, options.latency))
        played.append(("Pipecat: ", stock))
    kinds = defaultdict(list)
    for one in played[0][1]:
        kinds[one.utterance.kind].append(one)
    rows = [row(kind, of_kind) for kind, of_kind in sorted(kinds.items())]
    for name, of in played:
        rows.append(row(f"{name}all with pauses", [h for h in of if h.utterance.pauses]))
        rows.append(row(f"{name}all without", [h for h in of if not h.utterance.pauses]))
    return rows


def signals(options: argparse.Namespace) -> list[dict[str, Any]]:
    """What each signal alone could reach."""
    how = replace(how_of(options), settings=PATIENT)
    heard = asyncio.run(play(of_half(options), how, options.sounds / "judged.npz"))
    return table(heard, options.reply)


def callers(options: argparse.Namespace) -> list[dict[str, Any]]:
    """The same turns as those of callers who say one after another, and from whose pauses the
    server learns: by the kind of caller, first turns and later ones."""
    said = list(utterances(options.sounds, options.texts))
    random.Random(1).shuffle(said)
    how = replace(how_of(options), callers=CALLERS)
    kinds = {
        "pauses in each turn": [one for one in said if one.pauses],
        "pauses in some": said,
        "pauses in none": [one for one in said if not one.pauses],
    }
    rows = []
    for name, turns in kinds.items():
        heard = asyncio.run(play(turns, how, options.sounds / "judged.npz"))
        rows.append(row(f"{name}, first turn", heard[:CALLERS]))
        rows.append(row(f"{name}, later turns", heard[CALLERS:]))
    return rows


def short_answers(options: argparse.Namespace) -> list[dict[str, Any]]:
    """Answers at the end of the agent's question, by the recognizer's latency; or in real calls, by
    when they begin."""
    if options.calls:
        settings = settings_of(OPENAI if options.url else POCKETSPHINX, options.url)
        if options.url:
            partials = json.dumps(not options.no_partials)
            settings |= {"OFFHOOK_ASR_LANGUAGE": "en", "OFFHOOK_ASR_PARTIALS": partials}
        return by_offset(run_loop(real_answers(options.sounds, options.calls, settings)))
    said = list(answers(options.sounds))[:: options.every]
    judged = options.sounds / "judged.npz"
    rows = []
    for latency in LATENCIES_MS:
        how = replace(how_of(options), engine=KnownWords(latency))
        rows.append(row(f"recognizer of {latency} ms", asyncio.run(play(said, how, judged))))
    return rows


FULL, SILENT = 0.7, 0.02
"""Shares of the agent's level from which it is heard as before, and below which it is silent."""


def over(options: argparse.Namespace) -> list[dict[str, Any]]:
    """Sounds of the caller over the agent, by their kind and the recognizer's latency: for how
    long the agent was lowered or silent, and how soon it was silent at an interruption."""
    said, rows = list(over_the_agent(options.sounds)), []
    for latency in LATENCIES_MS:
        how = replace(how_of(options), engine=KnownWords(latency))
        heard = asyncio.run(play(said, how, options.sounds / "judged.npz"))
        for kind in ("backchannel", "noise", "interruption"):
            of_kind = [one for one in heard if one.utterance.kind == kind]
            rows.append({"recognizer ms": latency, "kind": kind, **_over_row(kind, of_kind)})
    return rows


def _over_row(kind: str, heard: Sequence[Heard]) -> dict[str, Any]:
    stopped = sum(one.interrupted_ms is not None for one in heard)
    wrong = len(heard) - stopped if kind == "interruption" else stopped
    lowered, silent, until = [], [], []
    for one in heard:
        began = one.utterance.words[0].start * 1000 // RATE_IN
        end = OVER_MS if one.interrupted_ms is None else one.interrupted_ms
        levels = np.array(one.levels[began // PACKET_MS : end // PACKET_MS])
        levels /= AGENT_LEVEL / np.sqrt(2)
        lowered.append(PACKET_MS * int((levels < FULL).sum()))
        silent.append(PACKET_MS * int((levels < SILENT).sum()))
        quiet = np.flatnonzero(levels < SILENT)
        until.append(PACKET_MS * int(quiet[0]) if len(quiet) else end - began)
    told: dict[str, Any] = {"sounds": len(heard), "wrong": wrong}
    for name, values in (("quiet", lowered), ("silent", silent), ("until silent", until)):
        middle, most = np.percentile(values, [50, 95])
        told |= {f"{name} p50": round(middle), f"{name} p95": round(most)}
    return told


def understood(options: argparse.Namespace) -> list[dict[str, Any]]:
    """What a server that hears utterances as wholes understands of turns with pauses: of each turn
    as a whole, and in its parts."""
    said = [one for one in utterances(options.sounds, options.texts) if one.kind in DICTATED]
    asked = Transcripts(options.url, options.model)
    rows = []
    for whole in (False, True):
        engine = ByUrl(asked, options.latency, partials=not options.no_partials, whole_turns=whole)
        how = replace(how_of(options), engine=engine)
        heard = asyncio.run(play(said[:: options.every], how, options.sounds / "judged.npz"))
        kinds = defaultdict(list)
        for one in heard:
            kinds[one.utterance.kind].append(one)
        rows += [
            {
                "turns": "as wholes" if whole else "in parts",
                "kind": kind,
                "number": len(of_kind),
                "right": sum(not errors(one) for one in of_kind),
                "letters off %": round(100 * _share_off(of_kind), 1),
            }
            for kind, of_kind in [*sorted(kinds.items()), ("all", heard)]
        ]
    return rows


def _share_off(heard: Sequence[Heard]) -> float:
    return sum(map(errors, heard)) / sum(len(letters(one.utterance.text)) for one in heard)


def letters(text: str) -> str:
    """Returns the letters of a text, with digits as words: recognizers write numbers and spelled
    names in many ways."""
    spoken = re.sub(r"\d", lambda digit: DIGITS[int(digit[0])], text.lower())
    return re.sub(r"[^a-z]", "", spoken)


def errors(heard: Heard) -> int:
    """Returns the letters by which the turns differ from what was said."""
    turns = " ".join(text for _, text in heard.commits)
    return prefix_distances(letters(turns), letters(heard.utterance.text))[-1]


def eot(options: argparse.Namespace) -> list[dict[str, Any]]:
    """The figures of eot-bench, on its data set or one like it."""
    return asyncio.run(eot_figures(options.sounds, options.language, engine_of(options)))


SETS = {
    "ends": ends,
    "signals": signals,
    "callers": callers,
    "answers": short_answers,
    "over": over,
    "dictated": understood,
    "eot": eot,
}


def main(words: list[str]) -> int:
    parser = command("turn_taking", __doc__)
    parser.add_argument("set", choices=SETS)
    parser.add_argument(
        "sounds",
        type=Path,
        help="the folder that speak.py has written; for eot, that of a data set",
    )
    parser.add_argument("--language", default="en")
    parser.add_argument("--texts", help="a file of texts/, by default that of the language")
    parser.add_argument("--half", choices=HALVES, default=HALVES[0])
    parser.add_argument("--line", choices=LINES, default="clean", help="for ends")
    parser.add_argument(
        "--engine",
        choices=(POCKETSPHINX,),
        help="hears the turns instead of known words, for ends and eot",
    )
    parser.add_argument(
        "--url",
        default="",
        help="of a server that hears the turns, for ends, eot, dictated and real calls",
    )
    parser.add_argument("--model", default="whisper-1", help="of that server")
    parser.add_argument("--no-partials", action="store_true", help="of that server")
    parser.add_argument(
        "--latency",
        type=int,
        metavar="MS",
        help="of the recognizer; default: 100, or what the real one takes",
    )
    parser.add_argument("--reply", type=int, default=400, help="until the agent is heard, in ms")
    parser.add_argument("--turn-model", default=SMART_TURN, help='or "words", or an ONNX file')
    parser.add_argument(
        *("--turn", "-t"), action="append", default=[], metavar="KEY=MS", help="of [turn]"
    )
    parser.add_argument("--stock", action="store_true", help="stock Pipecat beside, for ends")
    parser.add_argument(
        "--calls", type=int, default=0, help="for answers: so many real calls, one after another"
    )
    parser.add_argument("--every", type=int, default=1, help="every so manyth of the turns")
    parser.add_argument("--json", action="store_true", help="a line of JSON a row")
    options = parser.parse_args(words)
    options.texts = options.texts or options.language
    try:
        rows = SETS[options.set](options)
    except DataError as error:
        parser.error(str(error))
    except openai.APIError as error:
        parser.error(f"{options.url} does not transcribe: {error}")
    if options.json:
        for one in rows:
            print(json.dumps(one))
        return 0
    print("| " + " | ".join(rows[0]) + " |\n|" + "---|" * len(rows[0]))
    for one in rows:
        print("| " + " | ".join(str(one.get(name, "")) for name in rows[0]) + " |")
    return 0
