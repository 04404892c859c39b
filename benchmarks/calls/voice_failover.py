"""What callers hear when a worker of the agent's voice dies, hangs or drains in mid-reply.

Real worker processes speak words that can be counted (`number_words`) to many replies at once.
Each reply is played as a caller hears it: sound that comes later than the sound before it has been
played is silence added. Every event is shown beside a control run, in which nothing happens.
"""

import argparse
import asyncio
import json
import os
import signal
import socket
import sys
from asyncio.subprocess import Process
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from itertools import pairwise
from random import Random
from time import monotonic

import aiohttp
import numpy as np

from benchmarks.command import command
from benchmarks.speech.number_words import (
    LETTERS,
    Comparison,
    WordCounter,
    compare,
    level_of,
)
from offhook.media.pcm import RATE_OUT, Pcm
from offhook.pipeline.speech.errors import EngineError
from offhook.pipeline.speech.remote.synthesizer_io import RemoteSynthesizer

START_S = 60.0
WRITE_S = 0.03
"""Interval in s at which a reply's words are written."""
HEARD_S = 0.02
"""Silence added in s from which on a reply counts as disturbed: a packet."""


@dataclass
class Row:
    event: str
    replies: int = 0
    given_up: int = 0
    words: Comparison = field(default_factory=Comparison)
    silences_s: list[float] = field(default_factory=list)
    """Silence added, per reply."""
    first_s: list[float] = field(default_factory=list)
    """Time to first sound, per reply."""

    def table(self) -> dict[str, object]:
        silences = np.array(self.silences_s or [0.0])
        firsts = np.array(self.first_s or [0.0])
        return {
            "event": self.event,
            "replies": self.replies,
            "given up": self.given_up,
            **asdict(self.words),
            "disturbed": int((silences > HEARD_S).sum()),
            "silence p99 ms": round(1000 * float(np.quantile(silences, 0.99))),
            "silence max ms": round(1000 * float(silences.max())),
            "first sound p99 ms": round(1000 * float(np.quantile(firsts, 0.99))),
            "first sound max ms": round(1000 * float(firsts.max())),
        }


class Workers:
    """Worker processes at addresses of their own."""

    def __init__(self, pace: float) -> None:
        self._pace = pace
        self.processes: dict[str, Process] = {}

    async def start(self, address: str = "") -> str:
        if not address:
            with socket.socket() as free:
                free.bind(("127.0.0.1", 0))
                address = f"127.0.0.1:{free.getsockname()[1]}"
        command = (sys.executable, "-m", "benchmarks.speech.number_words", "tts")
        options = ("--listen", address, "--pace", str(self._pace))
        url = f"http://{address}"
        self.processes[url] = await asyncio.create_subprocess_exec(*command, *options)
        async with aiohttp.ClientSession() as http, asyncio.timeout(START_S):
            while True:
                try:
                    async with http.get(f"{url}/readyz") as answer:
                        if answer.status == 200:
                            return url
                except aiohttp.ClientError:
                    await asyncio.sleep(0.05)

    def signal(self, url: str, which: signal.Signals) -> None:
        self.processes[url].send_signal(which)

    async def upgrade(self) -> None:
        """Drains and replaces one after another."""
        for url, process in list(self.processes.items()):
            process.terminate()
            await process.wait()
            await self.start(url.removeprefix("http://"))
            await asyncio.sleep(1.5)

    async def close(self) -> None:
        for process in self.processes.values():
            if process.returncode is None:
                process.kill()
                await process.wait()


async def speak(synthesizer: RemoteSynthesizer, chance: Random, row: Row) -> None:
    """Speaks one reply and plays it as it comes."""
    drawn = [chance.choice(LETTERS) for _ in range(chance.randint(15, 40))]
    # Adjacent words differ, so that each can be counted.
    words = [word for word, following in pairwise((*drawn, "")) if word != following]
    reply = synthesizer.open()
    asked = monotonic()

    async def write() -> None:
        for word in words:
            reply.write(f"{word} ")
            await asyncio.sleep(WRITE_S)
        reply.end()

    writing = asyncio.create_task(write())
    heard: list[Pcm] = []
    played_until = silence_s = 0.0
    try:
        async for piece in reply:
            if not len(piece.pcm):
                continue
            now = monotonic()
            if not heard:
                row.first_s.append(now - asked)
                played_until = now
            silence_s += max(0.0, now - played_until)
            played_until = max(played_until, now) + len(piece.pcm) / RATE_OUT
            heard.append(piece.pcm)
    except EngineError:
        row.given_up += 1
    await writing
    counter = WordCounter(RATE_OUT)
    if heard:
        counter.feed(np.concatenate(heard))
    row.words += compare([level_of(word) for word in words], counter.levels)
    row.replies += 1
    row.silences_s.append(silence_s)


async def run_event(name: str, a: argparse.Namespace) -> Row:
    row, workers = Row(name), Workers(a.pace)
    try:
        urls = await asyncio.gather(*(workers.start() for _ in range(a.workers)))
        synthesizer = RemoteSynthesizer(urls)
        await synthesizer.start()
        until = monotonic() + a.seconds

        async def voice(number: int) -> None:
            chance = Random(number)
            await asyncio.sleep(chance.uniform(0, 2))
            while monotonic() < until:
                await speak(synthesizer, chance, row)
                await asyncio.sleep(chance.uniform(0.2, 1.5))

        voices = [asyncio.create_task(voice(number)) for number in range(a.voices)]
        await asyncio.sleep(a.seconds / 3)
        events: dict[str, Callable[[], object]] = {
            "none": lambda: None,
            "kill": lambda: workers.signal(urls[0], signal.SIGKILL),
            "stop": lambda: workers.signal(urls[0], signal.SIGSTOP),
            "drain": lambda: workers.signal(urls[0], signal.SIGTERM),
        }
        if name == "upgrade":
            await workers.upgrade()
            until = monotonic() + 1
        else:
            events[name]()
        await asyncio.gather(*voices)
        await synthesizer.close()
    finally:
        await workers.close()
    return row


EVENTS = ("none", "kill", "stop", "drain", "upgrade")


def main(argv: Sequence[str] | None = None) -> int:
    parser = command("voice_failover", __doc__)
    parser.add_argument("--voices", type=int, default=40)
    parser.add_argument("--workers", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=15.0)
    parser.add_argument("--pace", type=float, default=0.5, help="synthesis s per s of sound")
    parser.add_argument("--events", nargs="+", choices=EVENTS, default=EVENTS)
    a = parser.parse_args(argv)
    print(f"load {os.getloadavg()[0]:.1f}", file=sys.stderr)
    for name in a.events:
        print(json.dumps(asyncio.run(run_event(name, a)).table()), flush=True)
    return 0
