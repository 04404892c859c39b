"""An agent that writes without end, or without a space: it is spoken, and holds up nobody."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest

from offhook.media.tasks_io import TaskSet
from offhook.pipeline.conversation.services_io import AHEAD_CHARACTERS, PIECE_CHARACTERS
from offhook.pipeline.engines.embedded.flite_io import FliteSynthesizer
from offhook.pipeline.speech.synthesizer import (
    DEFAULT_VOICE,
    Speech,
    SynthesizerStream,
    VoiceOptions,
)
from tests.pipeline.conversation.phone import Answerer, phone_call

pytestmark = pytest.mark.usefixtures("nothing_left")

CHARACTERS = 200_000
TEXTS = {
    "no space": "abcdefghij" * (CHARACTERS // 10),
    "one letter": "a" * CHARACTERS,
    "digits": "7" * CHARACTERS,
    "no full stop": "word " * (CHARACTERS // 5),
    "sentences": "This is a sentence, and it goes on. " * (CHARACTERS // 36),
    "new lines": "\n" * (CHARACTERS // 2) + "a" * (CHARACTERS // 2),
}


class Loop:
    """Counts how often the event loop has come round."""

    def __init__(self) -> None:
        self.rounds = 0

    async def run(self) -> None:
        while True:
            self.rounds += 1
            await asyncio.sleep(0)


class WatchedStream:
    def __init__(self, stream: SynthesizerStream, loop: Loop) -> None:
        self._stream, self._loop = stream, loop
        self.written: list[tuple[int, int]] = []
        """Characters, and the round of the event loop in which they came."""
        self.said = 0

    def write(self, text: str) -> None:
        self.written.append((len(text), self._loop.rounds))
        self._stream.write(text)

    def end(self) -> None:
        self._stream.end()

    def cancel(self) -> None:
        self._stream.cancel()

    async def __aiter__(self) -> AsyncIterator[Speech]:
        async for speech in self._stream:
            self.said += len(speech.text)
            yield speech


class WatchedFlite(FliteSynthesizer):
    def __init__(self, loop: Loop) -> None:
        super().__init__()
        self._loop = loop
        self.streams: list[WatchedStream] = []

    def open(self, options: VoiceOptions = DEFAULT_VOICE) -> Any:
        self.streams.append(WatchedStream(super().open(options), self._loop))
        return self.streams[-1]


@pytest.fixture
def errors(caplog: pytest.LogCaptureFixture) -> Iterator[list[str]]:
    """What was logged of level ERROR."""
    found: list[str] = []
    yield found
    found += [record.message for record in caplog.records if record.levelname == "ERROR"]
    assert not found, found[:3]


@pytest.mark.parametrize("text", TEXTS.values(), ids=TEXTS)
async def test_a_text_of_any_length_is_spoken_piece_by_piece(text: str, errors: list[str]) -> None:
    loop, tasks = Loop(), TaskSet()
    tasks.spawn(loop.run(), "rounds")
    voice, agent = WatchedFlite(loop), Answerer(text)
    await voice.start()
    async with phone_call(lambda call: agent.agent(), synthesizer=voice) as phone:
        await phone.until(lambda: phone.leg.said > 100)
        (stream,) = voice.streams
        await phone.until(lambda: sum(size for size, _ in stream.written) > AHEAD_CHARACTERS)
        await phone.pass_ms(1000)
    sizes = [size for size, _ in stream.written]
    assert max(sizes) <= PIECE_CHARACTERS
    assert sum(sizes) - stream.said <= AHEAD_CHARACTERS + PIECE_CHARACTERS
    rounds = [at for _, at in stream.written]
    assert len(set(rounds)) == len(rounds), "others had no turn between two pieces"
    await tasks.close()
