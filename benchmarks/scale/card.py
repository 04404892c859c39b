"""Child of `conversations`: workers with random weights on one device, in one process.

    python -m benchmarks.scale.card --memory-share SHARE [--fronts N] KIND:MODEL:STREAMS=HOST:PORT…

KIND and MODEL are those of engines/random_workers.py, STREAMS the most, 0: as many as the worker
finds. A recognizer needs a stream for each conversation, in use while its caller speaks, a voice
one for each reply. The process says a line when it has begun, another when all have loaded, and
ends when its input closes.
"""

import argparse
import asyncio
from collections.abc import Sequence
from dataclasses import dataclass

from benchmarks.engines.random_workers import worker
from benchmarks.processes.process import input_lines, say
from offhook.pipeline.engines.shared import capacity
from offhook.pipeline.engines.shared.tts_models import NO_CACHE
from offhook.web.config.config import Log
from offhook.web.http.listening_io import Address, listener
from offhook.web.http.logs_io import set_up
from offhook.web.http.loop_io import run
from offhook.web.http.stop_io import Stop
from offhook.web.workers.worker_io import WorkerSettings, serve


@dataclass(frozen=True)
class Part:
    """One worker of the process."""

    kind: str
    model: str
    streams: int
    listen: str

    @classmethod
    def parse(cls, text: str) -> "Part":
        what, _, listen = text.partition("=")
        kind, model, streams = what.split(":")
        return cls(kind, model, int(streams), listen)

    def settings(self, fronts: int | None) -> WorkerSettings:
        return WorkerSettings(
            self.kind, self.model, self.streams, audio_cache=NO_CACHE, fronts=fronts
        )


async def card(parts: Sequence[Part], memory_share: float, fronts: int | None) -> None:
    """Loads one worker after another: nothing may be captured while another works."""
    say({"listen": [part.listen for part in parts]})
    async with asyncio.TaskGroup() as tasks:
        serving = []
        for part in parts:
            one = worker(part.kind, part.model, part.settings(fronts), memory_share)
            listen = listener(Address.parse(part.listen))
            serving.append(tasks.create_task(serve(one, listen, Stop())))
            await asyncio.shield(one.loading)
        say({"loaded": True})
        await (await input_lines()).read()
        for task in serving:
            task.cancel()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--memory-share", type=float, default=capacity.SHARED, help="of each")
    parser.add_argument("--fronts", type=int, metavar="N", help="of a voice")
    parser.add_argument("parts", nargs="+", type=Part.parse, metavar="KIND:MODEL:STREAMS=HOST:PORT")
    arguments = parser.parse_args()
    set_up(Log(level="INFO"))
    run(card(arguments.parts, arguments.memory_share, arguments.fronts))


if __name__ == "__main__":
    main()
