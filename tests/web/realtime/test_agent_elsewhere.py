"""openai-python talks with an agent of ours that is itself a Realtime model, at another edge."""

import asyncio

import pytest
from aiohttp.test_utils import TestServer
from openai import AsyncOpenAI

from offhook.media.pcm import Pcm
from offhook.web.config.config import Agent, Config
from offhook.web.config.server import Server
from offhook.web.edge.edge_io import Edge
from offhook.web.edge.server_io import application
from tests.pipeline.conversation.phone import calls, model, says
from tests.web.realtime.test_openai_python import Conversation, question
from tests.web.realtime.test_phone import TOOL
from tests.web.realtime.test_webrtc import edge_for

__all__ = ["question"]


@pytest.mark.slow
async def test_words_tools_and_speech_reach_the_model_elsewhere(question: Pcm) -> None:
    answers = (
        [calls("stock", what="bells")],
        [says("We have twelve.")],
        [says("We are open on Sunday.")],
    )
    async with model(*answers) as there, edge_for(there) as (_, url):
        base_url = url.removesuffix("/realtime")
        agent = Agent(kind="realtime", base_url=base_url, model="gpt-realtime")
        edge = Edge(Config(agent=agent, server=Server(port=0)))
        await edge.start()
        server = TestServer(application(edge))
        await server.start_server()
        client = AsyncOpenAI(base_url=str(server.make_url("/v1")), api_key="none")
        async with client.realtime.connect(model="gpt-realtime") as connection:
            talk = Conversation(connection)
            vad = {"turn_detection": {"type": "server_vad"}}
            await talk.update(instructions="You sell bells.", tools=[TOOL], audio={"input": vad})
            await talk.say("How many bells have you got?")
            await talk.send(type="response.create")
            (call,) = (await talk.until("response.done")).response.output
            output = {"type": "function_call_output", "call_id": call.call_id, "output": "12"}
            await talk.send(type="conversation.item.create", item=output)
            await talk.send(type="response.create")
            done = await talk.until("response.done")
            assert done.response.output[0].content[0].transcript == "We have twelve."
            await asyncio.sleep(3)  # until it is played, or the question would interrupt it
            await talk.append(question)
            done = await talk.until("response.done")
            assert done.response.output[0].content[0].transcript == "We are open on Sunday."
        await client.close()
        await server.close()
        await edge.close()
    instructions, asked, called, told, said, heard = there.requests[-1]["messages"]
    assert instructions["content"] == "You sell bells."
    assert asked["content"] == "How many bells have you got?"
    assert called["tool_calls"][0]["function"]["name"] == "stock"
    assert told["content"] == "12"
    assert said["content"] == "We have twelve."
    assert "opening" in heard["content"] or "hours" in heard["content"]
