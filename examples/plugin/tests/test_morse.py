"""What every engine, agent and tool does, these do.

`pip install pytest`, then `pytest` in this folder.
"""

import asyncio
from typing import Any

import numpy as np
import soxr
from offhook_morse.ears import Ears
from offhook_morse.keyer import Settings, in_morse
from offhook_morse.voice import Voice

from offhook.media.pcm import RATE_IN, RATE_OUT, Pcm
from offhook.pipeline.engines.shared.asr_models import AsrModels
from offhook.pipeline.engines.shared.tts_models import TtsModels
from offhook.testing import AgentTests, RecognizerTests, SynthesizerTests, ToolTests

WORDS = "what hath god wrought"


def silent(fraction: float, doing: str) -> None: ...


async def keyed(text: str) -> Pcm:
    stream = Voice(TtsModels(""), silent).open()
    stream.write(text)
    stream.end()
    pcm = np.concatenate([piece.pcm async for piece in stream])
    heard: Pcm = soxr.resample(pcm, RATE_OUT, RATE_IN)
    return heard


class TestEars(RecognizerTests):
    def engine(self) -> Ears:
        return Ears(AsrModels(""), silent)

    def speech(self) -> tuple[Pcm, str]:
        return asyncio.run(keyed(WORDS)), WORDS


class TestVoice(SynthesizerTests):
    def engine(self) -> Voice:
        return Voice(TtsModels(""), silent)


class TestClerk(AgentTests):
    kind = "offhook_morse.clerk:CLERK"
    question = "What hath God wrought?"

    def table(self) -> dict[str, Any]:
        return {"settings": {"office": "the office in Baltimore"}}


class TestInMorse(ToolTests):
    function = "offhook_morse.keyer:in_morse"

    def arguments(self) -> dict[str, Any]:
        return {"text": "sos"}

    def settings(self) -> dict[str, Any]:
        return {"dot": "·"}


def test_the_code_is_right() -> None:
    told = asyncio.run(in_morse("Ship SOS", Settings(dot="·")))
    assert told == {"code": "··· ···· ·· ·--· / ··· --- ···"}
