"""`offhook bench understood`: whether a voice is understood.

The voice of the configuration says sentences, or replies that are hard to say, a recogniser
transcribes them, and the words that differ are counted (substitutions, insertions and deletions, a
number as its digits). The figure means nothing by itself: it is there to be compared with that of
another voice, speed or line, by the same recogniser.
"""

import argparse
import asyncio
import os
from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path

import numpy as np
import soxr

from benchmarks.calls.call_words import WHISPER, ear
from benchmarks.command import command
from benchmarks.speech.http_load import texts
from benchmarks.speech.spoken_words import spoken_words, word_errors
from benchmarks.speech.transcript import recognise
from benchmarks.speech.whisper import missing
from benchmarks.table import Table
from offhook.media.pcm import RATE_IN, RATE_OUT, Pcm
from offhook.pipeline.speech.openai.recognizer_io import OpenAiRecognizer
from offhook.web.app.cli.caller_io import spoken
from offhook.web.config.config import load
from offhook.web.workers.engines.remote_engines_io import recognizer_of, synthesizer_of
from offhook.web.workers.local_worker_io import local_workers

COLUMNS = "words wrong wrong_percent right seconds text"
HARD = Path(__file__).with_name("hard_replies.txt")


def hard_replies() -> list[tuple[str, str]]:
    """Returns texts, and the words that should be heard of them."""
    lines = HARD.read_text().splitlines()
    pairs = (line.split(" => ") for line in lines if not line.startswith("#"))
    return [(text, said) for text, said in pairs]


def through(pcm: Pcm, rate: int) -> Pcm:
    """24 kHz sound at 16 kHz, after a line of so many Hz."""
    sound: Pcm = soxr.resample(soxr.resample(pcm, RATE_OUT, rate), rate, RATE_IN).astype(np.int16)
    return sound


async def _run(a: argparse.Namespace) -> None:
    # OFFHOOK_SPEECH is a folder of the benchmarks, and no section of a configuration.
    environment = {name: value for name, value in os.environ.items() if name != "OFFHOOK_SPEECH"}
    async with AsyncExitStack() as open_until:
        workers = local_workers(load(a.config, environment), gateway=True)
        config = await open_until.enter_async_context(workers)
        judge = await open_until.enter_async_context(ear(a.judge))
        recognizer = OpenAiRecognizer(judge) if judge else recognizer_of(config.asr)
        open_until.push_async_callback(recognizer.close)
        synthesizer = synthesizer_of(config.tts)
        open_until.push_async_callback(synthesizer.close)
        voice = replace(config.tts.options(), speed=a.speed, live=False, normalise=not a.as_written)
        voice = replace(voice, voice=a.voice or voice.voice)
        hearing = replace(config.asr.options(), live=False)
        await recognizer.start(hearing)
        await synthesizer.start(voice)
        note = f"{synthesizer.name} at {a.rate} Hz, heard by {a.judge or recognizer.name}"
        table, total = Table("understood", note, COLUMNS, a.json), [0, 0, 0, 0.0]
        said = hard_replies() if a.hard else [(text, text) for text in texts()]
        for text, expected in said[: a.sentences]:
            pcm = through(await spoken(synthesizer, text, voice), a.rate)
            heard = (await recognise(recognizer, pcm, hearing)).text
            wrong = word_errors(heard, expected)
            row = [len(spoken_words(expected)), wrong, not wrong, len(pcm) / RATE_IN]
            total = [one + more for one, more in zip(total, row, strict=True)]
            _tell(table, row, f"{text} -> {heard}" if a.hard else heard)
        _tell(table, total, "all of them")


def _tell(table: Table, row: Sequence[float], text: str) -> None:
    count, wrong, right, seconds = row
    table.row(
        words=count,
        wrong=wrong,
        wrong_percent=100 * wrong / count,
        right=int(right),
        seconds=seconds,
        text=text,
    )


def main(argv: Sequence[str] | None = None) -> int:
    parser = command("understood", __doc__)
    add = parser.add_argument
    add("--config", type=Path)
    add("--hard", action="store_true", help="replies with numbers, codes, times and addresses")
    add("--as-written", action="store_true", help="the voice itself reads numbers and signs")
    add("--judge", default="", help="whisper, or the URL of an OpenAI-compatible server")
    add("--sentences", type=int, metavar="N", help="the first so many")
    add("--voice", default="", help="in place of the configured one")
    add("--speed", type=float, default=1.0)
    add("--rate", type=int, default=RATE_IN, help="of the line: 8000 for a phone")
    add("--json", action="store_true", help="a JSON line a row")
    a = parser.parse_args(argv)
    if a.judge == WHISPER and (lacking := missing()):
        parser.error(lacking)
    asyncio.run(_run(a))
    return 0
