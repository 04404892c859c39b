"""Speech of words before it is certain that they are said: what is heard is what was written."""

import asyncio
from collections.abc import AsyncIterator

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from offhook.pipeline.speech.errors import EngineError
from offhook.pipeline.speech.synthesizer import Speech
from offhook.pipeline.speech.voice.speech_ahead_io import SpeechAhead
from tests.support.waiting import HANGS_S

NO_SOUND = np.zeros(0, np.int16)


class Voice:
    """Speaks each character as it is written, and fails at "#"."""

    def __init__(self) -> None:
        self.replies: list[str] = []

    def open(self) -> "Reply":
        self.replies.append("")
        return Reply(self, len(self.replies) - 1)


class Reply:
    def __init__(self, voice: Voice, number: int) -> None:
        self._voice, self._number = voice, number
        self._text: asyncio.Queue[str | None] = asyncio.Queue()

    def write(self, text: str) -> None:
        self._voice.replies[self._number] += text
        for character in text:
            self._text.put_nowait(character)

    def end(self) -> None:
        self._text.put_nowait(None)

    def cancel(self) -> None:
        while not self._text.empty():
            self._text.get_nowait()
        self._text.put_nowait(None)

    async def __aiter__(self) -> AsyncIterator[Speech]:
        while (character := await self._text.get()) is not None:
            if character == "#":
                raise EngineError("the voice is gone")
            yield Speech(NO_SOUND, "")
            yield Speech(NO_SOUND, character)


class Listener:
    def __init__(self, voice: Voice) -> None:
        self.ahead = SpeechAhead(voice.open)
        self.heard = ""
        self.running = asyncio.create_task(self.ahead.run())
        self.listening = asyncio.create_task(self._listen())

    async def _listen(self) -> None:
        async for speech in self.ahead:
            self.heard += speech.text

    async def ends(self) -> None:
        async with asyncio.timeout(HANGS_S):
            await asyncio.gather(self.running, self.listening)


async def some_time() -> None:
    for _ in range(50):
        await asyncio.sleep(0)


async def test_what_is_expected_is_spoken_and_heard_as_it_is_written() -> None:
    voice = Voice()
    listener = Listener(voice)
    listener.ahead.expect("At nine. ")
    await some_time()
    assert (voice.replies, listener.heard) == (["At nine. "], "")
    listener.ahead.write("At ")
    await some_time()
    assert listener.heard == "At "
    listener.ahead.write("nine. Or")
    listener.ahead.write(" ten.")
    listener.ahead.end()
    await listener.ends()
    assert listener.heard == "At nine. Or ten."
    assert voice.replies == ["At nine. Or ten."]


async def test_from_a_word_that_differs_on_it_is_spoken_anew() -> None:
    voice = Voice()
    listener = Listener(voice)
    listener.ahead.expect("At nine.", end=True)
    listener.ahead.write("At ")
    await some_time()
    listener.ahead.write("ten.")
    listener.ahead.end()
    await listener.ends()
    assert listener.heard == "At ten."
    assert voice.replies == ["At nine.", "ten."]


async def test_a_reply_that_is_dropped_ends() -> None:
    listener = Listener(Voice())
    listener.ahead.expect("At nine.")
    await some_time()
    listener.ahead.cancel()
    await listener.ends()
    assert listener.heard == ""


async def test_a_voice_that_fails_ahead_fails_where_it_is_heard() -> None:
    listener = Listener(Voice())
    listener.ahead.expect("At #nine.")
    await some_time()
    assert not listener.listening.done()
    listener.ahead.write("At #nine.")
    with pytest.raises(EngineError, match="gone"):
        await listener.ends()
    assert listener.heard == "At "


async def test_a_voice_that_fails_over_other_words_is_asked_again() -> None:
    listener = Listener(Voice())
    listener.ahead.expect("#")
    await some_time()
    listener.ahead.write("At nine.")
    listener.ahead.end()
    await listener.ends()
    assert listener.heard == "At nine."


TEXT = st.text("ab ", max_size=6)


@given(st.lists(TEXT, max_size=4), st.booleans(), st.lists(TEXT, max_size=6), st.data())
def test_what_is_heard_is_what_is_written(
    expected: list[str], complete: bool, written: list[str], data: st.DataObject
) -> None:
    async def speak() -> str:
        listener = Listener(Voice())
        for text in expected:
            listener.ahead.expect(text)
        if complete:
            listener.ahead.expect("", end=True)
        for text in written:
            if data.draw(st.booleans()):
                await some_time()
                assert "".join(written).startswith(listener.heard)
            listener.ahead.write(text)
        listener.ahead.end()
        await listener.ends()
        return listener.heard

    assert asyncio.run(speak()) == "".join(written)
