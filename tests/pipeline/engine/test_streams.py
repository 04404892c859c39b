"""The stream of an engine that runs in a thread of its own."""

import asyncio
import threading
from collections.abc import Callable
from typing import Any

import numpy as np

from offhook.media.pcm import Pcm
from offhook.pipeline.engine.streams_io import EngineRecognizer, EngineStream, Tell
from offhook.pipeline.speech.recognizer import Final, Partial, StreamOptions

SOON = 60
SOUND = np.zeros(1600, np.int16)


class CountingEngine:
    """Tells at once how often the utterance was fed."""

    def __init__(self, tell: Tell) -> None:
        self.heard = threading.Semaphore(0)
        self._tell = tell
        self._fed = self._utterance = 0

    def open(self, options: StreamOptions) -> int:
        return 1

    def feed(self, number: int, pcm: Pcm, came: float) -> None:
        self._fed += 1
        self._tell(number, Partial(f"{self._utterance}: {self._fed}", 0, 0))
        self.heard.release()

    def finish(self, number: int, came: float) -> None:
        self._tell(number, Final(f"{self._utterance}: {self._fed}.", 0))
        self._next()

    def cancel(self, number: int) -> None:
        self._next()

    def _next(self) -> None:
        self._utterance, self._fed = self._utterance + 1, 0
        self.heard.release()

    def close(self, number: int) -> None: ...

    def turn(self, clock: Callable[[], float]) -> bool:
        return False

    def timer(self) -> float | None:
        return None


async def opened(turns: Any = None) -> tuple[EngineRecognizer, CountingEngine, EngineStream]:
    engines: list[CountingEngine] = []

    def load(tell: Tell, order: object) -> CountingEngine:
        engines.append(CountingEngine(tell))
        return engines[0]

    recognizer = EngineRecognizer("counting", load)
    recognizer.turns = turns
    await recognizer.start()
    return recognizer, engines[0], await recognizer.open()


class Unloadable:
    """What judges turns, of another network."""

    def load(self) -> None:
        raise ValueError("its graph is another one")


async def test_an_engine_does_without_what_judges_turns() -> None:
    recognizer, _, stream = await opened(Unloadable())
    assert recognizer.turns is None
    await stream.close()
    await recognizer.close()


async def read(stream: EngineStream, last: str) -> list[str]:
    """Texts up to that one."""
    texts: list[str] = []
    async with asyncio.timeout(SOON):
        async for event in stream.events():
            texts.append(event.text)
            if event.text == last:
                break
    return texts


def wait(engine: CountingEngine) -> None:
    """For the engine's next step, while the event loop stands still."""
    assert engine.heard.acquire(timeout=SOON)


async def test_what_is_under_way_when_its_utterance_is_cancelled_is_not_of_the_next() -> None:
    recognizer, engine, stream = await opened()
    stream.feed(SOUND)
    wait(engine)  # the partial waits for the event loop
    stream.cancel()
    reading = asyncio.ensure_future(read(stream, "1: 1."))
    for _ in range(3):
        await asyncio.sleep(0)
    stream.feed(SOUND)
    stream.finish()
    assert "0: 1" not in await reading
    await recognizer.close()


async def test_a_final_under_way_when_the_next_utterance_is_cancelled_comes() -> None:
    recognizer, engine, stream = await opened()
    stream.feed(SOUND)
    stream.finish()
    stream.feed(SOUND)
    for _ in range(3):
        wait(engine)
    stream.cancel()
    stream.feed(SOUND)
    stream.feed(SOUND)
    for _ in range(3):
        wait(engine)
    assert await read(stream, "2: 2") == ["0: 1.", "2: 2"]
    stream.finish()
    assert await read(stream, "2: 2.") == ["2: 2."]
    await recognizer.close()
