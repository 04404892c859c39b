"""A Pipecat user's bot file, unchanged, on our edge; only its chat model is a stand-in."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
import numpy as np
import pytest
from aiohttp import web

from offhook.media.pcm import PACKET_MS, SAMPLES_OUT, Pcm, dbfs
from offhook.pipeline.engines.embedded.flite_io import FliteSynthesizer
from offhook.pipeline.engines.embedded.pocketsphinx_io import PocketSphinxRecognizer
from offhook.pipeline.speech.errors import EngineError
from offhook.pipeline.speech.recognizer import Final
from offhook.web.app.cli.caller_io import AUDIBLE_DBFS, ScriptedCall, ScriptLine, spoken, trimmed
from tests.browser.conftest import ROOT, serving

pytestmark = pytest.mark.slow

GREETING = "Welcome to the harbour."
HOURS = "We are open on Monday from nine to five."
STORY = "This is a long story about a bicycle. " * 12
ASKED = "What are your opening hours?"
INTERRUPTED = "Please stop, what are your opening hours?"
TOKEN_S = 0.02
STORY_S = 2.5
"""How much of it the caller listens to."""
SILENT_WITHIN_MS = 1000
PAUSE_TICKS = 400 // PACKET_MS
"""No pause inside the story is as long."""
END_S = 3
"""From the caller's leaving; the server would wait longer before it stops a bot itself."""


class ChatModel:
    """An OpenAI-compatible chat endpoint: streams what it was told to, keeps what it was asked."""

    def __init__(self, *replies: str) -> None:
        self.asked: list[list[dict[str, Any]]] = []
        self._replies = list(replies)

    async def complete(self, request: web.Request) -> web.StreamResponse:
        asked = await request.json()
        self.asked.append(asked["messages"])
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        for word in self._replies.pop(0).split():
            await response.write(_chunk(asked["model"], {"content": word + " "}, None))
            await asyncio.sleep(TOKEN_S)
        await response.write(_chunk(asked["model"], {}, "stop"))
        await response.write(b"data: [DONE]\n\n")
        return response

    def words_of_caller(self) -> list[str]:
        return [m["content"] for m in self.asked[-1] if m["role"] == "user"]

    def words_of_agent(self) -> list[str]:
        return [m["content"] for m in self.asked[-1] if m["role"] == "assistant"]


def _chunk(model: str, delta: dict[str, str], finish: str | None) -> bytes:
    chunk = {
        "id": "chat-1",
        "object": "chat.completion.chunk",
        "created": 0,
        "model": model,
        "choices": [{"index": 0, "delta": delta, "finish_reason": finish}],
    }
    return b"data: " + json.dumps(chunk).encode() + b"\n\n"


@asynccontextmanager
async def chat_server(model: ChatModel) -> AsyncIterator[str]:
    app = web.Application()
    app.router.add_post("/v1/chat/completions", model.complete)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    try:
        yield f"http://127.0.0.1:{runner.addresses[0][1]}/v1"
    finally:
        await runner.cleanup()


async def lines(*texts: str) -> list[ScriptLine]:
    synthesizer = FliteSynthesizer()
    await synthesizer.start()
    said = [ScriptLine(text, trimmed(await spoken(synthesizer, text))) for text in texts]
    await synthesizer.close()
    return said


async def recognised(pcm: Pcm) -> str:
    """The words in 16 kHz sound."""
    recognizer = PocketSphinxRecognizer(1)
    await recognizer.start()
    stream = await recognizer.open()
    stream.feed(pcm)
    stream.finish()
    async for event in stream.events():
        if isinstance(event, Final):
            break
    await stream.close()
    await recognizer.close()
    return event.text


async def calls_in_progress(url: str) -> int:
    async with aiohttp.ClientSession() as http, http.get(f"{url}/readyz") as response:
        return int((await response.json())["calls"])


async def test_a_stock_bot_talks_is_interrupted_and_ends() -> None:
    try:
        script = await lines(ASKED, INTERRUPTED)
    except EngineError as missing:
        pytest.skip(str(missing))
    model = ChatModel(GREETING, STORY, HOURS)
    bot = str(ROOT / "examples" / "pipecat_bot.py")
    async with (
        chat_server(model) as url,
        serving("--bot", bot, OPENAI_API_KEY="none", OPENAI_BASE_URL=url) as server,
    ):
        call = ScriptedCall(server.url, script, interrupt_after=STORY_S)
        report = await call.run()
        async with asyncio.timeout(END_S):
            while await calls_in_progress(server.url):
                await asyncio.sleep(0.05)
    assert server.faults() == []

    assert report.ended_by == "caller"
    assert [turn.heard for turn in report.turns] == model.words_of_caller()
    asked, interrupted = model.words_of_caller()
    assert asked.startswith("what are your")
    assert interrupted.startswith("please stop")

    # What was cut off is not in the context, and what is there was heard.
    greeting, story = model.words_of_agent()
    assert greeting == GREETING
    assert STORY.startswith(story)
    assert 2 < len(story.split()) < len(STORY.split()) / 2

    audible = [dbfs(pcm) > AUDIBLE_DBFS for pcm in call.leg.heard]
    speaking = [bool(pcm.any()) for pcm in call.leg.said]
    interrupts = len(speaking) - 1 - speaking[::-1].index(True) - len(script[1].pcm) // SAMPLES_OUT
    falls_silent = next(
        tick
        for tick in range(interrupts, len(audible))
        if not any(audible[tick : tick + PAUSE_TICKS])
    )
    assert (falls_silent - interrupts) * PACKET_MS < SILENT_WITHIN_MS
    before = await recognised(np.concatenate(call.leg.heard[:falls_silent]))
    assert before.startswith("welcome to the harbour")
    assert "long story" in before
    after = await recognised(np.concatenate(call.leg.heard[falls_silent:]))
    assert after.endswith("from nine to five")
    assert "story" not in after
