"""What a Realtime client gets of a model's answers that are more, or less, than text and calls."""

from typing import Any

import pytest

from tests.pipeline.conversation.agents.test_agent_faults import DONE
from tests.pipeline.conversation.agents.test_model_dialects import (
    NO_CALL,
    answers_with,
    ended,
    streamed,
    whole,
)
from tests.pipeline.conversation.phone import calls, chunk, model, says
from tests.web.realtime.test_openai_python import Conversation, conversation
from tests.web.realtime.test_phone import TOOL


async def respond(talk: Conversation, **response: Any) -> Any:
    await talk.send(type="response.create", response=response)
    return (await talk.until("response.done")).response


@pytest.mark.parametrize("kind", NO_CALL)
async def test_a_call_that_cannot_be_made_completes_no_response(kind: str) -> None:
    async with model() as there, conversation(there) as talk:
        answers_with(there, NO_CALL[kind] + DONE, NO_CALL[kind] + DONE)
        await talk.update(output_modalities=["text"], tools=[TOOL])
        await talk.say("How many bells have you got?")
        failed = await respond(talk)
        assert (failed.status, failed.output) == ("failed", [])
        assert "empty" in failed.status_details.error.message
        assert (await respond(talk)).output[0].content[0].text == "And now?"


async def test_a_function_that_does_not_exist_is_no_business_of_the_client() -> None:
    async with model() as there, conversation(there) as talk:
        answers_with(there, chunk(calls("sing")) + DONE, streamed("We have twelve."))
        await talk.update(output_modalities=["text"], tools=[TOOL])
        await talk.say("How many bells have you got?")
        done = await respond(talk)
        assert [item.type for item in done.output] == ["message"]
        assert done.output[0].content[0].text == "We have twelve."
        assert (await respond(talk)).output[0].content[0].text == "And now?"
    assert len(there.requests) == 3
    assert talk.of("response.function_call_arguments.done") == []


async def test_the_reasoning_of_a_call_is_returned_with_the_clients_result() -> None:
    async with model() as there, conversation(there) as talk:
        thought = chunk({"reasoning_content": "They want to know how many."})
        answers_with(there, thought + chunk(calls("bells")) + DONE)
        await talk.update(output_modalities=["text"], tools=[{**TOOL, "name": "bells"}])
        await talk.say("How many bells have you got?")
        [call] = (await respond(talk)).output
        item = {"type": "function_call_output", "call_id": call.call_id, "output": "12"}
        await talk.send(type="conversation.item.create", item=item)
        assert (await respond(talk)).output[0].content[0].text == "And now?"
    [made] = [m for m in there.requests[-1]["messages"] if m.get("tool_calls")]
    assert made["reasoning_content"] == "They want to know how many."


@pytest.mark.parametrize("beside", [False, True])
@pytest.mark.parametrize(
    ("reason", "reported"), [("length", "max_output_tokens"), ("content_filter", "content_filter")]
)
async def test_an_answer_that_is_cut_off_is_incomplete(
    reason: str, reported: str, beside: bool
) -> None:
    async with model() as there, conversation(there) as talk:
        body, kind = chunk(says("We open at")) + ended(reason) + DONE, ""
        if beside:
            body = whole(content="We open at").replace(b'"stop"', f'"{reason}"'.encode())
            kind = "application/json"
        answers_with(there, body, kind=kind)
        await talk.update(output_modalities=["text"])
        await talk.say("When do you open?")
        more: Any = {"conversation": "none"} if beside else {"max_output_tokens": 5}
        done = await respond(talk, **more)
        assert done.status == "incomplete"
        assert done.status_details.reason == reported
        assert done.output[0].content[0].text.startswith("We open at")


@pytest.mark.parametrize("beside", [False, True])
async def test_reasoning_is_not_of_the_answer(beside: bool) -> None:
    async with model() as there, conversation(there) as talk:
        body, kind = streamed("<think>Hm.</think>At nine."), ""
        if beside:
            body, kind = whole(content="Hm.</think>\n\nAt nine."), "application/json"
        answers_with(there, body, kind=kind)
        await talk.update(output_modalities=["text"])
        await talk.say("When do you open?")
        done = await respond(talk, **({"conversation": "none"} if beside else {}))
        assert done.output[0].content[0].text == "At nine."


async def test_an_answer_that_the_voice_cannot_say_completes_no_response() -> None:
    async with model([says("我们九点开门。")]) as there, conversation(there) as talk:
        await talk.update(output_modalities=["audio"])
        await talk.say("When do you open?")
        failed = await respond(talk)
        assert failed.status == "failed"
        assert "the voice makes no sound" in failed.status_details.error.message
        done = await respond(talk)
        assert done.status == "completed"
        assert done.output[0].content[0].transcript == "And now?"
