"""OpenAI's agents SDK for Python in a Realtime session of ours: it validates strictly."""

import asyncio
from typing import Any

import pytest

from offhook.media.pcm import RATE_OUT, Pcm
from tests.pipeline.conversation.phone import calls, model, says
from tests.web.realtime.test_openai_python import SOON_S, question
from tests.web.realtime.test_webrtc import edge_for

agents: Any = pytest.importorskip("agents")
realtime: Any = pytest.importorskip("agents.realtime")

__all__ = ["question"]


async def test_a_session_calls_a_tool_and_hears(question: Pcm) -> None:
    asked: list[str] = []

    @agents.function_tool
    def stock(what: str) -> str:
        """How many are in stock."""
        asked.append(what)
        return "12"

    agent = realtime.RealtimeAgent(name="desk", instructions="Sell.", tools=[stock])
    answers = (
        [calls("stock", what="bells")],
        [says("There are twelve.")],
        [says("From nine to six.")],
    )
    seen: list[Any] = []
    async with model(*answers) as there, edge_for(there) as (_, url):
        runner = realtime.RealtimeRunner(agent)
        where = {"api_key": "none", "url": f"{url.replace('http', 'ws')}?model=gpt-realtime"}
        async with await runner.run(model_config=where) as session:

            async def until(kind: str, count: int = 1) -> None:
                async for event in session:
                    seen.append(event)
                    if sum(one.type == kind for one in seen) >= count:
                        return

            async with asyncio.timeout(SOON_S):
                await session.send_message("How many bells?")
                await until("audio_end", 1)
                await asyncio.sleep(1.5)
                for at in range(0, len(question), 2400):
                    await session.send_audio(question[at : at + 2400].tobytes())
                await until("audio_end", 2)
    assert asked == ["bells"]
    errors = [event for event in seen if event.type == "error"]
    assert errors == []
    raw = [event.data for event in seen if event.type == "raw_model_event"]
    assert not [event for event in raw if event.type == "error"]
    audio = sum(len(event.audio.data) for event in seen if event.type == "audio")
    assert audio > 2 * RATE_OUT
    assert there.requests[0]["messages"][0]["content"] == "Sell."
