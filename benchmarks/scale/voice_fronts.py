"""`offhook bench voice_fronts`: what Python takes for a voice, with fronts and without.

A worker whose GPU is simulated (see engines/random_workers.py: real shapes, noise for sound) speaks
sentences to clients in this process, which write them token by token as conversations do, or with
--http send each as a request for speech on a connection that they keep; so it needs no GPU.
Columns: fronts of the worker; frames of 80 ms spoken, and due in the time; us of CPU time for each:
all, of the process with the engine, of that its event loop, and of the fronts.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager

import aiohttp

from benchmarks.command import command
from benchmarks.processes.process import ChildError, child, cpu_s
from benchmarks.scale.conversation_callers import TOKEN_S, tokens
from benchmarks.scale.conversations import own_s, thread_s
from benchmarks.speech.texts import SENTENCES
from benchmarks.table import Table, progress
from offhook.media.tasks_io import TaskSet
from offhook.pipeline.engines.shared.synthesis.messages import FRAME_S, FRAME_SAMPLES
from offhook.pipeline.speech.remote.synthesizer_io import RemoteSpeech, RemoteSynthesizer
from offhook.web.http.loop_io import run

WORKER = "benchmarks.engines.random_workers"
LOAD_S = 120.0
STAGGER_S = 0.05
"""Time in s from one voice's first sentence to the next one's."""
SETTLE_S = 4.0
COLUMNS = "fronts voices frames frames_due all_us engine_process_us loop_us fronts_us"


class Speaker:
    """Voices that speak one sentence after another."""

    def __init__(self, frames_of: Callable[[str], AsyncIterator[float]]) -> None:
        """`frames_of` speaks a text and yields the frames of each piece that comes."""
        self._frames_of = frames_of
        self.frames = 0.0

    async def speak(self, number: int) -> None:
        """Speaks until cancelled."""
        await asyncio.sleep(number * STAGGER_S)
        while True:
            over = time.monotonic()
            async for frames in self._frames_of(SENTENCES[number % len(SENTENCES)]):
                self.frames += frames
                over += frames * FRAME_S
            number += 1
            await asyncio.sleep(max(0.0, over - time.monotonic()))


@asynccontextmanager
async def _sockets(address: str) -> AsyncIterator[Speaker]:
    synthesizer = RemoteSynthesizer(address)

    async def frames_of(text: str) -> AsyncIterator[float]:
        reply = synthesizer.open()
        writing = asyncio.create_task(_write(reply, text))
        async for speech in reply:
            yield len(speech.pcm) / FRAME_SAMPLES
        await writing

    yield Speaker(frames_of)
    await synthesizer.close()


@asynccontextmanager
async def _requests(address: str) -> AsyncIterator[Speaker]:
    async with aiohttp.ClientSession(address, connector=aiohttp.TCPConnector(limit=0)) as session:

        async def frames_of(text: str) -> AsyncIterator[float]:
            wanted = {"input": text, "response_format": "pcm", "stream": True}
            async with session.post("/v1/audio/speech", json=wanted) as response:
                response.raise_for_status()
                async for data in response.content.iter_any():
                    yield len(data) / 2 / FRAME_SAMPLES

        yield Speaker(frames_of)


async def _write(reply: RemoteSpeech, text: str) -> None:
    for token in tokens(text):
        reply.write(token)
        await asyncio.sleep(TOKEN_S)
    reply.end()


async def _measure(fronts: int, voices: int, seconds: float, http: bool, table: Table) -> None:
    """Raises ChildError."""
    options = ("--model", "simulated", "--listen", "127.0.0.1:0", "--max-streams", str(voices))
    async with AsyncExitStack() as stack:
        line = ("tts", *options, "--fronts", str(fronts), "--log-level", "WARNING")
        worker = await stack.enter_async_context(child(WORKER, *line))
        await worker.line(LOAD_S)
        speakers = (_requests if http else _sockets)(worker.hello["listening"])
        speaker = await stack.enter_async_context(speakers)
        speaking = TaskSet()
        stack.push_async_callback(speaking.close)
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
    parser = command("voice_fronts", __doc__)
    parser.add_argument("--fronts", default="0,2", metavar="N,…", help="(0,2)")
    parser.add_argument("--voices", type=int, default=48, help="all speaking (48)")
    parser.add_argument("--seconds", type=float, default=10.0, help="of each (10)")
    parser.add_argument("--http", action="store_true", help="requests instead of WebSockets")
    parser.add_argument("--json", action="store_true", help="a JSON line a row")
    options = parser.parse_args(argv)
    table = Table("voice_fronts", "simulated GPU, sound is noise", COLUMNS, options.json)
    try:
        for fronts in map(int, options.fronts.split(",")):
            run(_measure(fronts, options.voices, options.seconds, options.http, table))
    except ChildError as error:
        progress(f"x {error}")
        return 1
    return 0
