"""Tests that an engine must pass: a recognizer as a call feeds it, a voice as an agent writes to
it. The engine is loaded once for a class.

    class TestEars(RecognizerTests):
        def engine(self) -> Recognizer:
            return Ears(AsrModels(""), lambda fraction, doing: None)

        def speech(self) -> tuple[Pcm, str]:
            return read_wav("good_morning.wav"), "good morning"
"""

import asyncio
import re
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Coroutine, Iterable
from typing import Any, ClassVar, TypeVar

import numpy as np

from offhook.media.pcm import RATE_IN, Pcm
from offhook.pipeline.speech.recognizer import (
    DEFAULT_OPTIONS,
    Final,
    Partial,
    Recognizer,
    RecognizerStream,
    StreamOptions,
)
from offhook.pipeline.speech.synthesizer import (
    DEFAULT_VOICE,
    Speech,
    Synthesizer,
    SynthesizerStream,
    UnknownVoice,
    VoiceOptions,
)

PIECES = (320, 1600, 333)
"""Samples of the pieces in which an utterance is fed: packets, updates, and what fits neither."""
HURRY = 20
"""Utterances fed at once, without waiting for an answer."""
REPLIES = 4
"""Replies cancelled one after the other, of an engine that does not say how many it speaks."""
STARVED_S = 1.0
"""Time in s that a reply gets no text."""
TEST_S = 300.0
"""Time in s that a test may take, on however busy a machine."""
T = TypeVar("T")


class EngineTests(ABC):
    """What the tests of both kinds share: an engine and an event loop for the class."""

    _loops: ClassVar[dict[type, tuple[asyncio.Runner, Any]]] = {}

    @abstractmethod
    def engine(self) -> Any:
        """Returns the engine, not yet started."""

    def run(self, test: Coroutine[Any, Any, T]) -> T:
        """Runs a coroutine on the event loop of the engine."""
        runner, _ = self._started()
        return runner.run(asyncio.wait_for(test, TEST_S))

    def _started(self) -> tuple[asyncio.Runner, Any]:
        if type(self) not in self._loops:
            runner, engine = asyncio.Runner(), self.engine()
            runner.run(engine.start())
            self._loops[type(self)] = runner, engine
        return self._loops[type(self)]

    @classmethod
    def teardown_class(cls) -> None:
        """Closes the engine; pytest calls it."""
        if cls in cls._loops:
            runner, engine = cls._loops.pop(cls)
            runner.run(engine.close())
            runner.close()

    def test_it_has_a_name(self) -> None:
        _, engine = self._started()
        assert engine.name

    def test_its_limits_are_numbers_or_unknown(self) -> None:
        _, engine = self._started()
        assert all(isinstance(language, str) for language in engine.languages)
        assert engine.max_streams is None or engine.max_streams > 0


class RecognizerTests(EngineTests):
    """What every `Recognizer` does."""

    options: StreamOptions = DEFAULT_OPTIONS

    @abstractmethod
    def engine(self) -> Recognizer: ...

    @abstractmethod
    def speech(self) -> tuple[Pcm, str]:
        """Returns an utterance, 16 kHz, and the words that the engine recognizes in it, which are
        compared without case and punctuation."""

    def test_it_recognizes_the_words(self) -> None:
        pcm, words = self.speech()
        assert _words(self.run(self._heard([pcm])).text) == _words(words)

    def test_any_segmentation_of_the_audio_gives_the_same_words(self) -> None:
        pcm, _ = self.speech()
        whole = self.run(self._heard([pcm])).text
        for size in PIECES:
            assert self.run(self._heard(_cut(pcm, size))).text == whole, f"in pieces of {size}"

    def test_partials_never_change_their_stable_prefix(self) -> None:
        pcm, _ = self.speech()

        async def partials() -> list[Partial]:
            stream = await self._open()
            reading = asyncio.create_task(_until_final(stream))
            for piece in _cut(pcm, PIECES[1]):
                stream.feed(piece)
                await asyncio.sleep(0)
            stream.finish()
            found = await reading
            await stream.close()
            return [event for event in found if isinstance(event, Partial)]

        stable = ""
        for event in self.run(partials()):
            assert event.stable_chars <= len(event.text)
            assert event.text.startswith(stable), f"{stable!r} was stable, now {event.text!r}"
            stable = event.text[: event.stable_chars]

    def test_what_is_cancelled_has_no_final_and_the_next_utterance_has_its_own(self) -> None:
        pcm, words = self.speech()

        async def after_cancel() -> Final:
            stream = await self._open()
            for piece in _cut(pcm[: len(pcm) // 2], PIECES[0]):
                stream.feed(piece)
            stream.cancel()
            stream.feed(pcm)
            stream.finish()
            final = (await _until_final(stream))[-1]
            await stream.close()
            assert isinstance(final, Final)
            return final

        assert _words(self.run(after_cancel()).text) == _words(words)

    def test_under_load_it_answers_later_and_drops_nothing(self) -> None:
        pcm, words = self.speech()

        async def hurried() -> list[str]:
            stream = await self._open()
            for _ in range(HURRY):
                stream.feed(pcm)
                stream.finish()
            texts = [(await _until_final(stream))[-1].text for _ in range(HURRY)]
            await stream.close()
            return texts

        assert [_words(text) for text in self.run(hurried())] == [_words(words)] * HURRY

    def test_streams_are_independent(self) -> None:
        pcm, words = self.speech()

        async def both() -> list[str]:
            one, other = await self._open(), await self._open()
            silence = np.zeros(PIECES[0], np.int16)
            for piece in _cut(pcm, PIECES[0]):
                one.feed(piece)
                other.feed(silence)
            finals = []
            for stream in (one, other):
                stream.finish()
                finals.append((await _until_final(stream))[-1].text)
                await stream.close()
            return finals

        heard, nothing = self.run(both())
        assert _words(heard) == _words(words)
        assert _words(nothing) != _words(words)

    def test_words_have_their_times_in_order(self) -> None:
        pcm, _ = self.speech()
        final = self.run(self._heard([pcm]))
        ends = [0]
        for word in final.words:
            assert ends[-1] <= word.start_ms <= word.end_ms
            ends.append(word.start_ms)
        if final.words:
            assert final.words[-1].end_ms <= 1000 * len(pcm) // RATE_IN
            assert _words(" ".join(word.text for word in final.words)) == _words(final.text)

    def test_closing_a_stream_ends_its_events(self) -> None:
        pcm, _ = self.speech()

        async def closed() -> None:
            stream = await self._open()
            reading = asyncio.create_task(_until_end(stream))
            stream.feed(pcm)
            await asyncio.sleep(0)
            await stream.close()
            await reading

        self.run(closed())

    async def _open(self) -> RecognizerStream:
        _, engine = self._started()
        stream: RecognizerStream = await engine.open(self.options)
        return stream

    async def _heard(self, pieces: Iterable[Pcm]) -> Final:
        """Returns the final of an utterance, fed piece by piece."""
        stream = await self._open()
        for piece in pieces:
            stream.feed(piece)
        stream.finish()
        final = (await _until_final(stream))[-1]
        await stream.close()
        assert isinstance(final, Final)
        return final


class SynthesizerTests(EngineTests):
    """What every `Synthesizer` does."""

    options: VoiceOptions = DEFAULT_VOICE

    @abstractmethod
    def engine(self) -> Synthesizer: ...

    def text(self) -> str:
        """Returns a text of several sentences that the engine can say."""
        return "Good morning. This is the first sentence of three. Here is the last one."

    def test_it_lists_its_voices(self) -> None:
        _, engine = self._started()
        known = self.run(engine.known_voices())
        assert engine.voices()
        assert [voice.name for voice in known] == engine.voices()

    def test_the_pieces_have_the_text_as_it_was_written(self) -> None:
        text = self.text()
        for written in ([text], re.findall(r"\S+\s*", text), list(text)):
            pieces = self.run(self._spoken(written))
            assert "".join(piece.text for piece in pieces) == text
            assert sum(len(piece.pcm) for piece in pieces) > 0

    def test_the_sound_is_one_channel_of_int16(self) -> None:
        for piece in self.run(self._spoken([self.text()])):
            assert piece.pcm.dtype == np.int16
            assert piece.pcm.ndim == 1

    def test_without_text_the_voice_waits_and_goes_on(self) -> None:
        async def starved() -> str:
            stream, text = self._open(), self.text()
            half = text.index(".") + 2
            stream.write(text[:half])
            reading = asyncio.create_task(_all(stream))
            await asyncio.sleep(STARVED_S)
            assert not reading.done(), "the reply ended for lack of text"
            stream.write(text[half:])
            stream.end()
            return "".join(piece.text for piece in await reading)

        assert self.run(starved()) == self.text()

    def test_a_cancelled_reply_ends_and_frees_its_place(self) -> None:
        async def cancelled() -> str:
            _, engine = self._started()
            for _ in range((engine.max_streams or REPLIES) + 1):
                stream = self._open()
                stream.write(self.text())
                await anext(aiter(stream))
                stream.cancel()
                await _all(stream)
            return "".join(piece.text for piece in await self._spoken([self.text()]))

        assert self.run(cancelled()) == self.text()

    def test_a_reply_without_text_ends(self) -> None:
        pieces = self.run(self._spoken([]))
        assert "".join(piece.text for piece in pieces) == ""

    def test_an_unknown_voice_is_refused(self) -> None:
        async def refused() -> bool:
            _, engine = self._started()
            try:
                engine.open(VoiceOptions("a voice that nobody has"))
            except UnknownVoice:
                return True
            return False

        assert self.run(refused())

    def _open(self) -> SynthesizerStream:
        _, engine = self._started()
        stream: SynthesizerStream = engine.open(self.options)
        return stream

    async def _spoken(self, written: Iterable[str]) -> list[Speech]:
        """Returns the pieces of a reply, written part by part."""
        stream = self._open()
        for part in written:
            stream.write(part)
        stream.end()
        return await _all(stream)


def _words(text: str) -> list[str]:
    return re.findall(r"[^\W_]+", text.lower())


def _cut(pcm: Pcm, size: int) -> Iterable[Pcm]:
    return (pcm[at : at + size] for at in range(0, len(pcm), size))


async def _until_final(stream: RecognizerStream) -> list[Partial | Final]:
    """Returns the events of an utterance, or of what it is continued by, up to its final."""
    found: list[Partial | Final] = []
    async for event in stream.events():
        found.append(event)
        if isinstance(event, Final) and not event.continues:
            break
    return found


async def _until_end(stream: RecognizerStream) -> None:
    async for _ in stream.events():
        pass


async def _all(stream: AsyncIterator[Speech] | SynthesizerStream) -> list[Speech]:
    return [piece async for piece in stream]
