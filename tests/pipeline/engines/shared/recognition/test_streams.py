"""The stream of an engine that runs in a thread of its own, used in its process or another."""

import asyncio
import threading
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from offhook.media.pcm import RATE_IN, Pcm
from offhook.pipeline.engines.shared.recognition.engine_stream_io import EngineStream
from offhook.pipeline.engines.shared.recognition.far_recognizer_io import (
    FarRecognizer,
    RecognizerDoor,
)
from offhook.pipeline.engines.shared.recognition.streams_io import EngineRecognizer, Tell
from offhook.pipeline.speech.errors import EngineFailed, EngineOverloaded
from offhook.pipeline.speech.recognizer import (
    Final,
    Partial,
    Recognizer,
    StreamOptions,
    TurnAnswers,
)
from offhook.pipeline.speech.vad.smart_turn_io import TurnQuestions
from tests.support.waiting import HANGS_S

SOUND = np.zeros(1600, np.int16)


class CountingEngine:
    """Tells at once how often the utterance was fed."""

    def __init__(self, tell: Tell) -> None:
        self.heard = threading.Semaphore(0)
        self.open_streams = 0
        self._tell = tell
        self._fed = self._utterance = 0

    def open(self, options: StreamOptions) -> int:
        if options.context == "none":
            raise EngineOverloaded("all streams are open")
        self.open_streams += 1
        return self.open_streams

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

    def close(self, number: int) -> None:
        self.open_streams -= 1
        self.heard.release()

    def turn(self, clock: Callable[[], float]) -> bool:
        return False

    def timer(self) -> float | None:
        return None


@dataclass
class Opened:
    recognizer: EngineRecognizer
    engine: CountingEngine
    used: Recognizer
    """It, or what stands for it in another process."""
    stream: EngineStream

    async def close(self) -> None:
        await self.recognizer.close()


Open = Callable[..., Awaitable[Opened]]


@pytest.fixture(params=["here", "far"])
def opened(request: pytest.FixtureRequest) -> Open:
    async def opened(turns: Any = None) -> Opened:
        engines: list[CountingEngine] = []

        def load(tell: Tell, order: object) -> CountingEngine:
            engines.append(CountingEngine(tell))
            return engines[0]

        used: EngineRecognizer | FarRecognizer
        used = recognizer = EngineRecognizer("counting", load)
        recognizer.turns = turns
        await recognizer.start()
        if request.param == "far":
            used = far_of(recognizer)[0]
        return Opened(recognizer, engines[0], used, await used.open())

    return opened


def far_of(recognizer: EngineRecognizer) -> tuple[FarRecognizer, RecognizerDoor]:
    """Returns what two processes have, without a link between them."""
    door = recognizer.door(lambda said: far.receive(said))
    far = FarRecognizer(recognizer.far_settings, door.receive)
    return far, door


class Unloadable:
    """What judges turns, of another network."""

    def load(self) -> None:
        raise ValueError("its graph is another one")


async def test_an_engine_does_without_what_judges_turns(opened: Open) -> None:
    o = await opened(Unloadable())
    assert o.recognizer.turns is None
    assert getattr(o.used, "turns") is None  # noqa: B009 - both have it
    await o.stream.close()
    await o.close()


async def test_a_stream_that_cannot_be_opened_says_why(opened: Open) -> None:
    o = await opened()
    with pytest.raises(EngineOverloaded, match="all streams are open"):
        await o.used.open(StreamOptions(context="none"))
    await o.close()


async def test_a_closed_stream_is_closed_in_the_engine(opened: Open) -> None:
    o = await opened()
    await o.stream.close()
    wait(o.engine)
    assert o.engine.open_streams == 0
    o.stream.feed(SOUND)
    assert [event async for event in o.stream.events()] == []
    await o.close()


async def test_an_engine_that_breaks_fails_its_streams(opened: Open) -> None:
    o = await opened()
    o.engine.turn = lambda clock: 1 // 0 > 0  # type: ignore[method-assign]
    o.stream.feed(SOUND)
    with pytest.raises(EngineFailed, match="modulo by zero"):
        await read(o.stream, "nothing")
    with pytest.raises(EngineFailed):
        await o.used.open()
    await o.close()


async def test_streams_of_sockets_that_are_gone_are_closed() -> None:
    recognizer = EngineRecognizer("counting", lambda tell, order: CountingEngine(tell))
    await recognizer.start()
    engine = recognizer.engine
    assert isinstance(engine, CountingEngine)
    far, door = far_of(recognizer)
    await far.open()
    opening = asyncio.create_task(far.open())
    await asyncio.sleep(0)
    await door.close()
    for _ in range(2):
        wait(engine)
    assert engine.open_streams == 0
    opening.cancel()
    await asyncio.gather(opening, return_exceptions=True)
    await recognizer.close()


class Judge(TurnQuestions):
    """Says how much sound it was asked about, in s."""

    def __init__(self) -> None:
        super().__init__(max_batch=8, max_waiting=8)

    def load(self) -> None: ...

    def judge_all(self, questions: Sequence[Pcm]) -> Sequence[float]:
        return [len(pcm) / RATE_IN for pcm in questions]


async def test_the_engine_says_whether_turns_are_over(opened: Open) -> None:
    o = await opened(Judge())
    turns: TurnAnswers = getattr(o.used, "turns")  # noqa: B009 - both have it
    assert await turns.probability(SOUND, o.stream) == 0.1
    asking = [turns.probability(SOUND[:samples], o.stream) for samples in (1600, 1200, 800)]
    assert await asyncio.gather(*asking) == [0.1, None, 0.05]  # the second was replaced
    await o.close()


async def read(stream: EngineStream, last: str) -> list[str]:
    """Texts up to that one."""
    texts: list[str] = []
    async with asyncio.timeout(HANGS_S):
        async for event in stream.events():
            texts.append(event.text)
            if event.text == last:
                break
    return texts


def wait(engine: CountingEngine) -> None:
    """For the engine's next step, while the event loop stands still."""
    assert engine.heard.acquire(timeout=HANGS_S)


async def test_what_is_under_way_when_its_utterance_is_cancelled_is_not_of_the_next(
    opened: Open,
) -> None:
    o = await opened()
    engine, stream = o.engine, o.stream
    stream.feed(SOUND)
    wait(engine)  # the partial waits for the event loop
    stream.cancel()
    reading = asyncio.ensure_future(read(stream, "1: 1."))
    for _ in range(3):
        await asyncio.sleep(0)
    stream.feed(SOUND)
    stream.finish()
    assert "0: 1" not in await reading
    await o.close()


async def test_a_final_under_way_when_the_next_utterance_is_cancelled_comes(opened: Open) -> None:
    o = await opened()
    engine, stream = o.engine, o.stream
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
    await o.close()
