"""Callers on a street and quiet callers, with the detectors and the recognizer of a call."""

from collections.abc import AsyncIterator

import numpy as np
import pytest
import pytest_asyncio

from benchmarks.calls.recordings.noisy_words import LEAD_S, CallResult, call, last_loud, line
from benchmarks.speech.recordings import read_16k, speech_folder
from benchmarks.speech.transcript import words
from offhook.media.pcm import RATE_IN, Pcm, dbfs
from offhook.pipeline.conversation.turns.user_turn_io import TurnDetection
from offhook.pipeline.engines.embedded.pocketsphinx_io import PocketSphinxRecognizer
from offhook.pipeline.speech.vad.smart_turn_io import SmartTurn
from offhook.pipeline.speech.vad.vad_io import VadBatch

pytestmark = pytest.mark.skipif(not speech_folder().is_dir(), reason="no recorded speech here")
QUIET = "none"
STREET = "street"


class Caller:
    """Plays recordings into calls."""

    def __init__(self, recognizer: PocketSphinxRecognizer) -> None:
        self._recognizer = recognizer
        self._turns = TurnDetection(VadBatch(), SmartTurn())
        self.line: Pcm

    async def says(
        self, name: str, noise: str = QUIET, level: float = -26, way: str = "both"
    ) -> CallResult:
        """Noise is 10 dB below the voice."""
        speech = read_16k(speech_folder() / f"{name}.wav")
        self.line = line(speech, noise, 10.0, level, np.random.default_rng(0), [])
        span = LEAD_S, LEAD_S + last_loud(speech) / RATE_IN
        return await call(self.line, span, way, self._turns, self._recognizer)

    async def close(self) -> None:
        await self._turns.close()


@pytest_asyncio.fixture
async def caller() -> AsyncIterator[Caller]:
    recognizer = PocketSphinxRecognizer(1)
    await recognizer.start()
    caller = Caller(recognizer)
    yield caller
    await caller.close()
    await recognizer.close()


@pytest.mark.slow
async def test_ten_decibels_of_street_noise_change_no_words(caller: Caller) -> None:
    """Without suppression these days "ago on forever"."""
    quiet, noisy = await caller.says("forever"), await caller.says("forever", STREET)
    said = ["feels", "like", "these", "days", "go", "on", "forever"]
    assert words(quiet.text)[: len(said)] == said
    assert words(noisy.text)[: len(said)] == said
    assert (quiet.suppressed_ms, noisy.suppressed_ms > 5000) == (0, True)
    assert (noisy.ended, noisy.false_starts) == (True, 0)


async def test_minus_fifty_is_heard_like_minus_twenty(caller: Caller) -> None:
    usual = await caller.says("something", level=-20)
    assert np.concatenate(usual.fed).tobytes() in caller.line.tobytes(), "bit for bit"
    quiet = await caller.says("something", level=-50)
    assert quiet.text == usual.text == "go somewhere and do something"
    loudest = [max(map(dbfs, result.fed)) for result in (usual, quiet)]
    assert abs(loudest[0] - loudest[1]) < 6
    assert usual.gain == 0
    assert quiet.gain > 20
