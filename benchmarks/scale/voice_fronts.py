"""`python -m benchmarks voice_fronts`: what Python takes for a voice, with fronts and without.

A worker whose GPU is simulated (see engines/random_workers.py: real shapes, noise for sound) speaks
sentences to clients in this process, which write them token by token as conversations do; so it
needs no GPU. Columns: fronts of the worker; frames of 80 ms spoken, and due in the time; us of CPU
time for each: all, of the process with the engine, of that its event loop, and of the fronts.
"""

import argparse
import asyncio
import time
from collections.abc import Sequence
from contextlib import AsyncExitStack

from benchmarks.scale.conversation_callers import TOKEN_S, tokens
from benchmarks.scale.conversations import own_s, thread_s
from offhook.bench.process import ChildError, child, cpu_s
from offhook.bench.speech.table import Table, progress
from offhook.bench.speech.texts import SENTENCES
from offhook.media.tasks_io import TaskSet
from offhook.pipeline.engine.tts.messages import FRAME_S, FRAME_SAMPLES
from offhook.pipeline.speech.remote.synthesizer_io import RemoteSpeech, RemoteSynthesizer
from offhook.web.process.loop_io import run

WORKER = "benchmarks.engines.random_workers"
LOAD_S = 120.0
STAGGER_S = 0.05
"""Time in s from one voice's first sentence to the next one's."""
SETTLE_S = 4.0
COLUMNS = "fronts voices frames frames_due all_us engine_process_us loop_us fronts_us"


class Speaker:
    """Voices that speak one sentence after another."""

    def __init__(self, synthesizer: RemoteSynthesizer) -> None:
        self._synthesizer = synthesizer
        self.frames = 0.0

    async def speak(self, number: int) -> None:
        """Speaks until cancelled."""
        await asyncio.sleep(number * STAGGER_S)
        while True:
            text = SENTENCES[number % len(SENTENCES)]
            number += 1
            reply, over = self._synthesizer.open(), time.monotonic()
            writing = asyncio.create_task(_write(reply, text))
            async for speech in reply:
                self.frames += len(speech.pcm) / FRAME_SAMPLES
                over += len(speech.pcm) / FRAME_SAMPLES * FRAME_S
            await writing
            await asyncio.sleep(max(0.0, over - time.monotonic()))


async def _write(reply: RemoteSpeech, text: str) -> None:
    for token in tokens(text):
        reply.write(token)
        await asyncio.sleep(TOKEN_S)
    reply.end()


async def _measure(fronts: int, voices: int, seconds: float, table: Table) -> None:
    """Raises ChildError."""
    options = ("--model", "simulated", "--listen", "127.0.0.1:0", "--max-streams", str(voices))
    async with AsyncExitStack() as stack:
        line = ("tts", *options, "--fronts", str(fronts), "--log-level", "WARNING")
        worker = await stack.enter_async_context(child(WORKER, *line))
        await worker.line(LOAD_S)
        synthesizer = RemoteSynthesizer(worker.hello["listening"])
        stack.push_async_callback(synthesizer.close)
        speaking = TaskSet()
        stack.push_async_callback(speaking.close)
        speaker = Speaker(synthesizer)
        for number in range(voices):
            speaking.spawn(speaker.speak(number), "voice")
        await asyncio.sleep(voices * STAGGER_S + SETTLE_S)

        def spent() -> tuple[float, float, float, float]:
            whole, own = cpu_s(worker.pid), own_s(worker.pid)
            return whole, own, thread_s(worker.pid), whole - own

        before, frames = spent(), speaker.frames
        await asyncio.sleep(seconds)
        frames = speaker.frames - frames
        took = [1e6 * (b - a) / frames for a, b in zip(before, spent(), strict=True)]
        names = ("all_us", "engine_process_us", "loop_us", "fronts_us")
        table.row(
            fronts=fronts,
            voices=voices,
            frames=round(frames),
            frames_due=round(voices * seconds / FRAME_S),
            **dict(zip(names, took, strict=True)),
        )


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks voice_fronts",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--fronts", default="0,2", metavar="N,…", help="(0,2)")
    parser.add_argument("--voices", type=int, default=48, help="all speaking (48)")
    parser.add_argument("--seconds", type=float, default=10.0, help="of each (10)")
    parser.add_argument("--json", action="store_true", help="a JSON line a row")
    options = parser.parse_args(argv)
    table = Table("voice_fronts", "simulated GPU, sound is noise", COLUMNS, options.json)
    try:
        for fronts in map(int, options.fronts.split(",")):
            run(_measure(fronts, options.voices, options.seconds, table))
    except ChildError as error:
        progress(f"x {error}")
        return 1
    return 0
