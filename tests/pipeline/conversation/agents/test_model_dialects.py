"""What servers of language models send, each in its dialect, and what the caller hears of it."""

import asyncio
import re
from collections.abc import Awaitable, Callable
from dataclasses import replace

import pytest
from aiohttp import web

from offhook.pipeline.conversation.agents import openai_agent_io
from offhook.pipeline.conversation.agents.agent_faults import Fault, Limits
from offhook.pipeline.conversation.events import AgentFailed, AgentTurn
from offhook.pipeline.conversation.sentences import Occasion
from tests.pipeline.conversation.agents.test_agent_faults import (
    DONE,
    ENGLISH,
    LONG,
    WORD_PACKETS,
    heard,
    talking,
)
from tests.pipeline.conversation.agents.test_spoken_content import CONTENTS
from tests.pipeline.conversation.phone import (
    Model,
    Phone,
    chunk,
    model,
    says,
    stream,
)

pytestmark = pytest.mark.usefixtures("nothing_left")

Answering = Callable[[web.StreamResponse], Awaitable[None]]


def answers_with(endpoint: Model, *answers: bytes | Answering, kind: str = "") -> None:
    """After its script the model's server answers with these bodies, and then asks "And now?".
    `kind`: the content type, of one that does not stream."""
    left = list(answers)

    async def answer(request: web.Request) -> web.StreamResponse:
        body = left.pop(0) if left else chunk(says("And now?")) + DONE
        if kind and isinstance(body, bytes):
            return web.Response(body=body, content_type=kind)
        response = await stream(request)
        if isinstance(body, bytes):
            await response.write(body)
        else:
            await body(response)
        return response

    endpoint.ill = answer


def streamed(text: str) -> bytes:
    """A content in deltas of a word each, or of a piece of a tag."""
    deltas = re.findall(r"\s*\w+[.,:]?|\S|\s+", text)
    return b"".join(chunk(says(delta)) for delta in deltas) + DONE


async def turn(phone: Phone, key: str = "1") -> str:
    """The caller has a turn; returns what the agent answered."""
    before = len(phone.of(AgentTurn))
    await phone.press(f"{key}#")
    await phone.until(lambda: len(phone.of(AgentTurn)) > before)
    text: str = phone.of(AgentTurn)[-1].text
    return text


# --- reasoning ---


@pytest.mark.parametrize(
    "content",
    [text for text, answer in CONTENTS.items() if answer == "At nine." and text[0] != "O"],
)
async def test_only_the_answer_reaches_voice_captions_and_the_model(content: str) -> None:
    async with model([says("hello")]) as endpoint:
        answers_with(endpoint, streamed(content))
        async with talking(endpoint) as phone:
            await phone.until(lambda: phone.of(AgentTurn))
            assert await turn(phone) == "At nine."
            assert phone.leg.said == WORD_PACKETS * 3
            assert await turn(phone) == "And now?"
    answers = [m["content"] for m in endpoint.requests[-1]["messages"] if m["role"] == "assistant"]
    assert answers == ["hello", "At nine."]


REASONING = "Okay, they ask when we open, so I have to look at all of our hours, which are these: "


async def test_reasoning_that_nothing_opens_is_cut_off_and_held_from_then_on() -> None:
    ends = asyncio.Event()

    async def reasons(response: web.StreamResponse) -> None:
        await response.write(chunk(says(REASONING * 20)))
        await ends.wait()
        await response.write(streamed("and so on.</think>\n\nAt nine."))

    async with model([says("hello")]) as endpoint:
        again = streamed(f"{REASONING}</think>\n\nAt ten.")
        answers_with(endpoint, reasons, again, streamed("At eleven."))
        async with talking(endpoint) as phone:
            await phone.until(lambda: phone.of(AgentTurn))
            await phone.press("1#")
            await phone.until(lambda: "Okay" in phone.call.hearing.reply.spoken)
            ends.set()
            await phone.until(lambda: phone.of(AgentTurn)[-1].text == "At nine.")
            cut = phone.of(AgentTurn)[-2]
            assert cut.interrupted
            assert len(cut.text.split()) < 20 * len(REASONING.split())
            assert await turn(phone, "2") == "At ten."
            assert await turn(phone, "3") == "At eleven."
            assert await turn(phone, "4") == "And now?"
    assert "At ten." in str(endpoint.requests[-1]["messages"])
    assert phone.of(AgentFailed) == []


@pytest.mark.parametrize("field", ["content", "reasoning_content"])
async def test_who_waits_for_a_model_that_thinks_is_asked_to_wait_and_answered(field: str) -> None:
    ends = asyncio.Event()

    async def thinks(response: web.StreamResponse) -> None:
        await response.write(chunk({field: "<think>" if field == "content" else "Hm"}))
        while not ends.is_set():
            await response.write(chunk({field: "hm, "}))
            await asyncio.sleep(0.05)
        await response.write(streamed("</think>At nine." if field == "content" else "At nine."))

    limits = Limits(first_token_seconds=3, between_tokens_seconds=30)
    wait = ENGLISH[Occasion.WAIT]
    async with model([says("hello")]) as endpoint:
        answers_with(endpoint, thinks)
        async with talking(endpoint, limits) as phone:
            await phone.until(lambda: phone.of(AgentTurn))
            said = phone.leg.said
            await phone.press("1#")
            await phone.until(lambda: phone.leg.said == said + WORD_PACKETS * len(wait.split()))
            assert len(endpoint.requests) == 2
            ends.set()
            await phone.until(lambda: phone.of(AgentTurn)[-1].text == f"{wait} At nine.")
            await turn(phone, "2")
    assert phone.of(AgentFailed) == []


async def test_reasoning_without_end_is_a_stall(monkeypatch: pytest.MonkeyPatch) -> None:
    async def thinks(response: web.StreamResponse) -> None:
        while True:
            await response.write(chunk({"reasoning_content": "hm, "}))
            await asyncio.sleep(0.05)

    monkeypatch.setattr(openai_agent_io, "MAX_THINKING_S", 4.0)
    async with model([says("hello")]) as endpoint:
        answers_with(endpoint, thinks)
        async with talking(endpoint, replace(LONG, first_token_seconds=3)) as phone:
            await phone.until(lambda: phone.of(AgentTurn))
            await phone.press("1#")
            await heard(phone, Occasion.TROUBLE)
            assert await turn(phone, "2") == "And now?"
    assert [event.fault for event in phone.of(AgentFailed)] == [Fault.STALLED]
