"""The voice pipeline of OpenAI's Agents SDK, as it comes: its sessions, its models, its voice."""

from collections.abc import AsyncIterator
from typing import Any

import numpy as np
import pytest

from offhook.media.codecs.resample import Resampler
from offhook.media.pcm import RATE_IN, RATE_OUT, Pcm
from tests.web.speech_api.conftest import Served
from tests.web.speech_api.recordings import QUESTION, spoken

voice: Any = pytest.importorskip(
    "agents.voice", reason="openai-agents, of the group oracles, is not here"
)
pytestmark = pytest.mark.asyncio(loop_scope="module")
WORDS = set(QUESTION.split())


class Parrot(voice.VoiceWorkflowBase):  # type: ignore[misc]
    """An agent that says what it heard."""

    def __init__(self) -> None:
        self.heard: list[str] = []

    async def run(self, transcription: str) -> AsyncIterator[str]:
        self.heard.append(transcription)
        yield f"You said: {transcription}."


def pipeline_on(server: Served) -> tuple[Any, Parrot]:
    parrot = Parrot()
    models = voice.OpenAIVoiceModelProvider(base_url=f"{server.url}/v1", api_key="none")
    config = voice.VoicePipelineConfig(model_provider=models, tracing_disabled=True)
    return voice.VoicePipeline(workflow=parrot, config=config), parrot


def asked() -> Pcm:
    """A question at the 24 kHz of the SDK, between silence."""
    around = np.zeros(RATE_IN, np.int16)
    return Resampler(RATE_IN, RATE_OUT).process(np.concatenate((around, spoken(), around)))


async def answer_of(result: Any) -> Pcm:
    blocks = [
        event.data async for event in result.stream() if event.type == "voice_stream_event_audio"
    ]
    return np.concatenate(blocks)


async def test_a_question_is_heard_and_answered_aloud(speech_server: Served) -> None:
    pipeline, parrot = pipeline_on(speech_server)
    sound = await answer_of(await pipeline.run(voice.AudioInput(buffer=asked())))
    assert len(set(parrot.heard[0].split()) & WORDS) >= 4
    assert len(sound) > RATE_OUT
    assert np.abs(sound.astype(int)).max() > 3000


async def test_a_stream_is_heard_turn_by_turn(speech_server: Served) -> None:
    """By a realtime session with the `semantic_vad` that the SDK asks for."""
    pipeline, parrot = pipeline_on(speech_server)
    given = voice.StreamedAudioInput()
    result = await pipeline.run(given)
    for _ in range(2):
        for block in np.array_split(asked(), 20):
            await given.add_audio(block)
    await given.add_audio(None)
    sound = await answer_of(result)
    assert len(parrot.heard) == 2
    assert all(len(set(heard.split()) & WORDS) >= 4 for heard in parrot.heard)
    assert len(sound) > 2 * RATE_OUT
