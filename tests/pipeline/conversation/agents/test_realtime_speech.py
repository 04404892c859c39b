"""Where the words of a Realtime model's speech are placed in it."""

import asyncio

import numpy as np
import pytest

from offhook.media.pcm import RATE_OUT, Pcm
from offhook.pipeline.conversation.agents.realtime.realtime_speech_io import RemoteSpeech
from offhook.pipeline.speech.errors import EngineError
from offhook.pipeline.speech.synthesizer import Speech
from offhook.pipeline.speech.voice.word_marks import Pace

TEXT = "One two three four five six."


def seconds(count: float) -> Pcm:
    """A tone with four dips a second, as syllables have."""
    t = np.arange(round(count * RATE_OUT)) / RATE_OUT
    return (8000 * np.sin(2 * np.pi * 600 * t) * (1 - np.cos(8 * np.pi * t))).astype(np.int16)


async def placed(speech: RemoteSpeech) -> list[tuple[str, float]]:
    """Each word, and the second at which it ends."""
    samples, found = 0, []
    async for piece in speech:
        samples += len(piece.pcm)
        found += [(word, round(samples / RATE_OUT, 2)) for word in piece.text.split()]
    return found


async def test_words_are_found_along_the_audio_and_the_last_one_ends_it() -> None:
    speech = RemoteSpeech(Pace())
    speech.write(TEXT)
    for _ in range(15):
        speech.add(seconds(0.1))
    speech.finish()
    speech.end()
    found = await placed(speech)
    assert [word for word, _ in found] == TEXT.split()
    ends = [end for _, end in found]
    assert ends == sorted(ends)
    assert 0 < ends[0] < 0.6
    assert ends[-1] == 1.5


async def test_a_slow_voice_is_known_by_its_first_reply() -> None:
    pace = Pace()
    for _ in range(2):
        speech = RemoteSpeech(pace)
        speech.write(TEXT)
        speech.add(seconds(4))
        speech.finish()
        speech.end()
        found = await placed(speech)
    assert pace.slowness > 1.2
    assert found[2][1] > 1


async def test_audio_does_not_wait_for_its_words() -> None:
    speech = RemoteSpeech(Pace())
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
    speech.finish()
    speech.end()
    await playing
    assert "".join(piece.text for piece in pieces) == TEXT


async def test_words_without_audio_of_a_broken_reply_were_not_spoken() -> None:
    speech = RemoteSpeech(Pace())
    speech.write(TEXT)
    speech.add(seconds(0.6))
    speech.fail("it has gone")
    words: list[str] = []

    async def play() -> None:
        async for piece in speech:
            words.extend(piece.text.split())

    with pytest.raises(EngineError, match="it has gone"):
        await play()
    assert 0 < len(words) < 5


async def test_a_cancelled_reply_ends_at_once() -> None:
    speech = RemoteSpeech(Pace())
    speech.write(TEXT)
    speech.add(seconds(1))
    speech.cancel()
    speech.add(seconds(1))
    assert await placed(speech) == []
