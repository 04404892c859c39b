"""`python -m benchmarks understood`: whether a voice is understood.

The voice of the configuration says sentences, its recogniser transcribes them, and the words that
differ are counted (substitutions, insertions and deletions). The figure means nothing by itself: it
is there to be compared with that of another voice, speed or line, by the same recogniser.
"""

import argparse
import asyncio
import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import soxr

from offhook.bench.speech.http_load import texts
from offhook.bench.speech.table import Table
from offhook.bench.transcript import prefix_distances, recognise, words
from offhook.media.pcm import RATE_IN, RATE_OUT, Pcm
from offhook.web.cli.caller_io import spoken
from offhook.web.config.config import load
from offhook.web.engines.remote_engines_io import recognizer_of, synthesizer_of
from offhook.web.worker.local_worker_io import local_workers

COLUMNS = "words wrong wrong_percent seconds text"


def through(pcm: Pcm, rate: int) -> Pcm:
    """24 kHz sound at 16 kHz, after a line of so many Hz."""
    sound: Pcm = soxr.resample(soxr.resample(pcm, RATE_OUT, rate), rate, RATE_IN).astype(np.int16)
    return sound


def wrong(said: str, heard: str) -> int:
    return prefix_distances(words(heard), words(said))[-1]


async def _run(a: argparse.Namespace) -> None:
    # OFFHOOK_SPEECH is a folder of the benchmarks, and no section of a configuration.
    environment = {name: value for name, value in os.environ.items() if name != "OFFHOOK_SPEECH"}
    async with local_workers(load(a.config, environment), gateway=True) as config:
        recognizer, synthesizer = recognizer_of(config.asr), synthesizer_of(config.tts)
        voice = replace(config.tts.options(), speed=a.speed, live=False)
        voice = replace(voice, voice=a.voice or voice.voice)
        hearing = replace(config.asr.options(), live=False)
        try:
            await recognizer.start(hearing)
            await synthesizer.start(voice)
            note = f"{synthesizer.name} at {a.rate} Hz, heard by {recognizer.name}"
            table, total = Table("understood", note, COLUMNS, a.json), [0, 0, 0.0]
            for text in texts()[: a.sentences]:
                pcm = through(await spoken(synthesizer, text, voice), a.rate)
                heard = (await recognise(recognizer, pcm, hearing)).text
                row = [len(words(text)), wrong(text, heard), len(pcm) / RATE_IN]
                total = [one + more for one, more in zip(total, row, strict=True)]
                _tell(table, row, heard)
            _tell(table, total, "all of them")
        finally:
            await recognizer.close()
            await synthesizer.close()


def _tell(table: Table, row: Sequence[float], text: str) -> None:
    count, wrong, seconds = row
    percent = 100 * wrong / count
    table.row(words=count, wrong=wrong, wrong_percent=percent, seconds=seconds, text=text)


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks understood", description=__doc__)
    parser.add_argument("--config", type=Path)
    parser.add_argument("--sentences", type=int, default=len(texts()), metavar="N")
    parser.add_argument("--voice", default="", help="in place of the configured one")
    parser.add_argument("--speed", type=float, default=1.0)
    parser.add_argument("--rate", type=int, default=RATE_IN, help="of the line: 8000 for a phone")
    parser.add_argument("--json", action="store_true", help="a JSON line a row")
    asyncio.run(_run(parser.parse_args(argv)))
    return 0
