"""Where the words of a Realtime model's speech are placed in it."""

import asyncio

import numpy as np
import pytest

from offhook.media.pcm import RATE_OUT
from offhook.pipeline.conversation.agents.realtime_speech_io import RemoteSpeech, SpeakingRate
from offhook.pipeline.speech.recognizer import EngineError
from offhook.pipeline.speech.synthesizer import Speech

TEXT = "One two three four five six."


def seconds(count: float) -> np.ndarray:
    return np.ones(round(count * RATE_OUT), np.int16)


async def placed(speech: RemoteSpeech) -> list[tuple[str, float]]:
    """Each word, and the second at which it ends."""
    samples, found = 0, []
    async for piece in speech:
        samples += len(piece.pcm)
        found += [(word, round(samples / RATE_OUT, 2)) for word in piece.text.split()]
    return found


async def test_words_are_placed_by_the_speaking_rate_and_the_last_one_ends_it() -> None:
    rate = SpeakingRate()
    rate.samples_per_char = RATE_OUT / 10
    speech = RemoteSpeech(rate)
    speech.write(TEXT)
    for _ in range(30):
        speech.add(seconds(0.1))
    speech.finish(len(TEXT))
    speech.end()
    per_char = 3 / len(TEXT)  # known by then
    assert await placed(speech) == [
        ("One", round(4 * per_char, 2)),
        ("two", round(8 * per_char, 2)),
        ("three", round(14 * per_char, 2)),
        ("four", round(19 * per_char, 2)),
        ("five", round(24 * per_char, 2)),
        ("six.", 3.0),
    ]
    assert rate.samples_per_char == pytest.approx(3 * RATE_OUT / len(TEXT))


async def test_audio_does_not_wait_for_its_words() -> None:
    speech = RemoteSpeech(SpeakingRate())
    pieces: list[Speech] = []

    async def play() -> None:
        async for piece in speech:
            pieces.append(piece)

    playing = asyncio.create_task(play())
    speech.add(seconds(1))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert sum(len(piece.pcm) for piece in pieces) == RATE_OUT
    speech.write(TEXT)
    speech.add(seconds(1))
    speech.finish(len(TEXT))
    speech.end()
    await playing
    assert "".join(piece.text for piece in pieces) == TEXT


async def test_words_without_audio_of_a_broken_reply_were_not_spoken() -> None:
    speech = RemoteSpeech(SpeakingRate())
    speech.write(TEXT)
    speech.add(seconds(0.6))
    speech.fail("it has gone")
    words: list[str] = []

    async def play() -> None:
        async for piece in speech:
            words.extend(piece.text.split())

    with pytest.raises(EngineError, match="it has gone"):
        await play()
    assert words == ["One", "two"]


async def test_a_cancelled_reply_ends_at_once() -> None:
    speech = RemoteSpeech(SpeakingRate())
    speech.write(TEXT)
    speech.add(seconds(1))
    speech.cancel()
    speech.add(seconds(1))
    assert await placed(speech) == []
