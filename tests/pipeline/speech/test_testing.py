"""What `offhook.testing` asks of other people's engines, ours do; and it finds what is wrong."""

import asyncio
from collections.abc import AsyncIterator

import numpy as np
import pytest

from offhook.media.pcm import RATE_IN, Pcm
from offhook.pipeline.engines.embedded.espeak_io import EspeakSynthesizer
from offhook.pipeline.engines.embedded.flite_io import FliteSynthesizer
from offhook.pipeline.engines.embedded.pocketsphinx_io import PocketSphinxRecognizer
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
    VoiceOptions,
)
from offhook.testing import RecognizerTests, SynthesizerTests

UTTERANCE = np.full(RATE_IN, 1000, np.int16)
TAKEN_BACK = "test_partials_never_change_their_stable_prefix"
BY_PIECES = "test_any_segmentation_of_the_audio_gives_the_same_words"
CANCELLED = "test_what_is_cancelled_has_no_final_and_the_next_utterance_has_its_own"


class TestPocketSphinx(RecognizerTests):
    def engine(self) -> Recognizer:
        return PocketSphinxRecognizer(1)

    def speech(self) -> tuple[Pcm, str]:
        """What it takes eSpeak's words for."""
        sound = EspeakSynthesizer().sound(["go", "forward", "ten", "meters"], "en-us")
        places = np.arange(0, len(sound.pcm) - 1, sound.rate / RATE_IN)
        pcm = np.interp(places, np.arange(len(sound.pcm)), sound.pcm).astype(np.int16)
        return pcm, self.run(self._heard([pcm])).text


class TestFlite(SynthesizerTests):
    def engine(self) -> Synthesizer:
        return FliteSynthesizer()


# --- engines with a fault ---


class Counting(Recognizer):
    """Says a word for each second; `fault` is a test that it does not pass."""

    name = "counting"

    def __init__(self, fault: str) -> None:
        self.fault = fault

    async def start(self) -> None: ...

    async def open(self, options: StreamOptions = DEFAULT_OPTIONS) -> "CountingStream":
        return CountingStream(self.fault)

    async def close(self) -> None: ...


class CountingStream(RecognizerStream):
    def __init__(self, fault: str) -> None:
        self._fault = fault
        self._samples = self._pieces = 0
        self._events: asyncio.Queue[Partial | Final | None] = asyncio.Queue()

    def feed(self, pcm: Pcm) -> None:
        self._samples += len(pcm)
        self._pieces += 1
        text = "other" if self._fault == TAKEN_BACK and self._pieces % 2 else self._text()
        self._events.put_nowait(Partial(text, len(text), self._audio_ms()))

    def finish(self) -> None:
        self._events.put_nowait(Final(self._text(), self._audio_ms()))
        self._samples = self._pieces = 0

    def cancel(self) -> None:
        if self._fault == CANCELLED:
            self._events.put_nowait(Final("what was cancelled", self._audio_ms()))
        self._samples = self._pieces = 0

    async def events(self) -> AsyncIterator[Partial | Final]:
        while (event := await self._events.get()) is not None:
            yield event

    async def close(self) -> None:
        self._events.put_nowait(None)

    def _text(self) -> str:
        in_pieces = self._pieces if self._fault == BY_PIECES else self._samples // RATE_IN
        return " ".join(["word"] * in_pieces)

    def _audio_ms(self) -> int:
        return 1000 * self._samples // RATE_IN


class OfCounting(RecognizerTests):
    fault = ""

    def engine(self) -> Recognizer:
        return Counting(self.fault)

    def speech(self) -> tuple[Pcm, str]:
        return UTTERANCE, "word"


@pytest.mark.parametrize("fault", [TAKEN_BACK, BY_PIECES, CANCELLED])
def test_a_recognizer_with_a_fault_does_not_pass(fault: str) -> None:
    class Faulty(OfCounting):
        pass

    for name, passes in (("", True), (fault, False)):
        Faulty.fault = name
        try:
            if passes:
                getattr(Faulty(), fault)()
            else:
                with pytest.raises(AssertionError):
                    getattr(Faulty(), fault)()
        finally:
            Faulty.teardown_class()


class Hasty(Synthesizer):
    """Ends a reply when there is no text, whoever may still write."""

    name = "hasty"

    def voices(self) -> list[str]:
        return ["hasty"]

    async def start(self) -> None: ...

    def open(self, options: VoiceOptions = DEFAULT_VOICE) -> "HastyStream":
        return HastyStream()

    async def close(self) -> None: ...


class HastyStream(SynthesizerStream):
    def __init__(self) -> None:
        self._text = ""

    def write(self, text: str) -> None:
        self._text += text

    def end(self) -> None: ...

    def cancel(self) -> None:
        self._text = ""

    async def __aiter__(self) -> AsyncIterator[Speech]:
        while text := self._text:
            self._text = ""
            yield Speech(np.zeros(240, np.int16), text.upper())


@pytest.mark.parametrize(
    "fault",
    [
        "test_without_text_the_voice_waits_and_goes_on",
        "test_the_pieces_have_the_text_as_it_was_written",
        "test_an_unknown_voice_is_refused",
    ],
)
def test_a_voice_with_a_fault_does_not_pass(fault: str) -> None:
    class OfHasty(SynthesizerTests):
        def engine(self) -> Synthesizer:
            return Hasty()

    try:
        with pytest.raises(AssertionError):
            getattr(OfHasty(), fault)()
    finally:
        OfHasty.teardown_class()
