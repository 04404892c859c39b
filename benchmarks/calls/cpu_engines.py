"""Children of `cpu_calls`: workers with random weights of the real size on the CPU, and an edge.

asr         Nemotron in int8; its labels are scripted (see engine/nemotron/simulated.py)
tts         Pocket TTS in int8; the length of a clause is scripted, and a buzz is its sound
edge A T    a server whose recognition and voice are those workers, with a scripted agent

A worker says its URL, and another line when it has loaded. A line "day N" on its input has the
engine do N utterances or replies of a second as fast as it can; then it says its memory meanwhile.
"""

import argparse
import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import numpy as np

from benchmarks.engines.cpu import resident_mb
from benchmarks.engines.random_workers import nemotron, nemotron_config
from benchmarks.processes.process import input_lines, say
from offhook.media.pcm import RATE_IN, RATE_OUT
from offhook.media.tasks_io import first_of
from offhook.pipeline.engines.shared.asr_models import AsrModels
from offhook.pipeline.engines.shared.tts_models import NO_CACHE, TtsModels
from offhook.pipeline.speech.errors import EngineOverloaded
from offhook.pipeline.speech.recognizer import Final, Progress, Recognizer
from offhook.pipeline.speech.synthesizer import Synthesizer, VoiceOptions
from offhook.web.config.config import Config, Log
from offhook.web.config.engines import Asr, Tts
from offhook.web.config.server import Server, WebRtc
from offhook.web.http.listening_io import Address, Runner, listener
from offhook.web.http.logs_io import set_up
from offhook.web.http.loop_io import run
from offhook.web.http.stop_io import Stop
from offhook.web.speech_api.sockets.engine_metrics import AsrMetrics, TtsMetrics
from offhook.web.workers.worker_io import Worker, WorkerSettings, serve

WORDS = 12
"""Words of a reply."""
TOKEN_CHARS = 4
FRAMES_PER_TOKEN = 3
"""Frames of 80 ms: 12 words take four seconds."""
DAY_STREAMS = 4
FULL_S = 0.05
DAY_WORDS = 3
"""Of a reply, for a second; utterances are as long."""
DAY_LOOKS = 0.1, 0.5, 1
"""Shares of the day after which the memory is read."""
MAX_CALLS = 64


def recognizer(progress: Progress) -> Recognizer:
    return nemotron(nemotron_config("0.6B"), AsrModels("random weights", "cpu"), progress)


def synthesizer(progress: Progress) -> Synthesizer:
    from offhook.pipeline.engines.pocket.loading_io import PocketLoading
    from offhook.pipeline.engines.pocket.model.config import FRAME_SAMPLES
    from offhook.pipeline.engines.pocket.model.model import PocketModel
    from offhook.pipeline.engines.pocket.model.published import PIECES, random_model
    from offhook.pipeline.engines.pocket.model.tokenizer import PocketTokenizer
    from offhook.pipeline.engines.pocket.model.voices import VoiceState
    from offhook.pipeline.engines.pocket.runner import Frame, PocketRunner
    from offhook.pipeline.engines.pocket.synthesizer_io import PocketSynthesizer
    from offhook.pipeline.engines.shared.model.int8 import Instructions

    t = np.arange(3 * FRAME_SAMPLES * 5) / RATE_OUT  # whole periods of 120 Hz
    harmonics = sum(np.sin(2 * np.pi * 120 * k * t + k * k) / k for k in range(1, 16))
    buzz = (5000 * np.asarray(harmonics)).astype(np.int16).reshape(-1, FRAME_SAMPLES)

    def encode(text: str) -> list[int]:
        return [ord(text[i]) % PIECES for i in range(0, len(text), TOKEN_CHARS)]

    class SimulatedPocket(PocketRunner):
        """All the work is done; then length and sound are replaced."""

        def begin(
            self,
            row: int,
            voice: VoiceState,
            tokens: Sequence[int],
            seed: int,
            temperature: float | None = None,
        ) -> None:
            super().begin(row, voice, tokens, seed, temperature)
            self._clauses[row].limit = FRAMES_PER_TOKEN * len(tokens)

        def step(self, rows: Sequence[int]) -> list[Frame]:
            places = [self._clauses[row].frames % len(buzz) for row in rows]
            frames = super().step(rows)
            pairs = zip(places, frames, strict=True)
            return [Frame(buzz[place], frame.ended) for place, frame in pairs]

    class RandomLoading(PocketLoading):
        def _read(self, int8: Instructions | None) -> PocketModel:
            model = random_model("english", int8=int8)
            model.tokenizer = PocketTokenizer(model.config, encode, lambda tokens: "", PIECES)
            return model

        def _runner(self, rows: int) -> PocketRunner:
            return SimulatedPocket(self.model, rows)

    class RandomPocket(PocketSynthesizer):
        def __init__(self, models: TtsModels) -> None:
            super().__init__(models, progress)
            self._loading = RandomLoading(models, progress)

    return RandomPocket(TtsModels("random weights", "cpu", audio_cache=NO_CACHE))


async def transcribe(engine: Recognizer) -> None:
    """One utterance of noise, in a stream of its own, once there is room for one."""
    while True:
        try:
            stream = await engine.open()
            break
        except EngineOverloaded:
            await asyncio.sleep(FULL_S)
    sound = np.random.default_rng(0).standard_normal(RATE_IN) * 3000
    stream.feed(sound.astype(np.int16))
    stream.finish()
    async for event in stream.events():
        if isinstance(event, Final):
            break
    await stream.close()


async def speak(engine: Synthesizer) -> None:
    """One reply, not slowed down to the pace of a listener."""
    reply = engine.open(VoiceOptions(live=False, cache=False))
    reply.write(" ".join(["word"] * DAY_WORDS))
    reply.end()
    async for _ in reply:
        pass


async def day(engine: Any, once: Callable[[Any], Awaitable[None]], count: int) -> None:
    await once(engine)
    began, memory, begun, ended = time.monotonic(), [resident_mb()], 0, 0
    looks = {int(share * count) for share in DAY_LOOKS}

    async def one_after_another() -> None:
        nonlocal begun, ended
        while begun < count:
            begun += 1
            await once(engine)
            ended += 1
            if ended in looks:
                memory.append(resident_mb())

    await asyncio.gather(*(one_after_another() for _ in range(DAY_STREAMS)))
    say({"done": ended, "seconds": time.monotonic() - began, "mb": memory})


async def work(kind: str) -> None:
    settings = WorkerSettings(kind, "random weights", MAX_CALLS, audio_cache=NO_CACHE)
    worker: Worker[Any]
    if kind == "asr":
        worker = Worker(settings, recognizer, AsrMetrics())
    else:
        worker = Worker(settings, synthesizer, TtsMetrics())

    async def listen(runner: Runner) -> str:
        where = await listener(Address.parse("127.0.0.1:0"))(runner)
        say({"url": where})
        return where

    async def obey() -> None:
        engine = await asyncio.shield(worker.loading)
        say({"loaded": True})
        reader = await input_lines()
        while line := (await reader.readline()).split():
            await day(engine, transcribe if kind == "asr" else speak, int(line[1]))

    await first_of(serve(worker, listen, Stop()), obey())


async def edge(asr: str, tts: str) -> None:
    from benchmarks.servers.edge_server import AnsweringEdge
    from benchmarks.servers.edge_server import serve as serve_edge

    config = Config(
        server=Server(max_calls=MAX_CALLS, drain_seconds=0),
        webrtc=WebRtc(addresses=["127.0.0.1"]),
        asr=Asr(engine="nemotron", url=asr),
        tts=Tts(engine="pocket", url=tts),
    )
    await serve_edge(AnsweringEdge(config, WORDS))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("kind", choices=("asr", "tts", "edge"))
    parser.add_argument("urls", nargs="*")
    arguments = parser.parse_args()
    set_up(Log(level="INFO"))
    run(edge(*arguments.urls) if arguments.kind == "edge" else work(arguments.kind))


if __name__ == "__main__":
    main()
