"""A stream over an engine that hears whole utterances: each has one final, whatever it does."""

import asyncio

import numpy as np
import pytest

from offhook.media.pcm import RATE_IN
from offhook.pipeline.speech.errors import EngineError
from offhook.pipeline.speech.recognizer import Final, StreamOptions
from offhook.pipeline.speech.streams.retry import AttemptFailed
from offhook.pipeline.speech.streams.utterance_queue import MAX_WAITING
from offhook.pipeline.speech.streams.utterance_stream_io import (
    Tell,
    UtteranceStream,
    WholeUtterance,
)
from tests.support.waiting import HANGS_S

SECOND = np.ones(RATE_IN, np.int16)


class Engine:
    """It answers as soon as there is sound, though the utterance goes on; without any, never."""

    name = "engine"

    async def recognize(
        self, utterance: WholeUtterance, options: StreamOptions, tell: Tell
    ) -> Final:
        while not utterance.pcm:
            await asyncio.sleep(0.01)
        return Final("heard", utterance.audio_ms, continues=True)

    def explain(self, failed: AttemptFailed) -> str:
        return str(failed)


async def finals(stream: UtteranceStream, count: int) -> list[Final]:
    found: list[Final] = []
    async with asyncio.timeout(HANGS_S):
        async for event in stream.events():
            assert isinstance(event, Final)
            found.append(event)
            if len(found) == count:
                break
    return found


async def test_an_engine_that_ends_by_itself_has_not_ended_the_utterance() -> None:
    stream = UtteranceStream(Engine(), StreamOptions())
    stream.feed(SECOND)
    (first,) = await finals(stream, 1)
    assert (first.audio_ms, first.continues) == (1000, True)
    stream.feed(SECOND)
    stream.finish()
    (last,) = await finals(stream, 1)
    assert (last.audio_ms, last.continues) == (1000, False)
    await stream.close()


async def test_too_many_utterances_that_nobody_hears_are_given_up_oldest_first() -> None:
    stream = UtteranceStream(Engine(), StreamOptions())
    for _ in range(MAX_WAITING + 3):
        stream.finish()
    assert len(list(stream.queue)) == MAX_WAITING
    assert [final.lost for final in await finals(stream, 3)] == [True] * 3
    await stream.close()


async def test_a_file_in_too_many_utterances_fails() -> None:
    stream = UtteranceStream(Engine(), StreamOptions(live=False))
    for _ in range(MAX_WAITING + 1):
        stream.finish()
    with pytest.raises(EngineError, match="64 utterances behind"):
        await finals(stream, 1)
    await stream.close()
