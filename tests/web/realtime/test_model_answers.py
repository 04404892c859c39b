"""What a Realtime client gets of a model's answers that are more, or less, than text and calls."""

from typing import Any

from tests.pipeline.conversation.agents.test_model_dialects import (
    answers_with,
    streamed,
)
from tests.pipeline.conversation.phone import model
from tests.web.realtime.test_openai_python import Conversation, conversation


async def respond(talk: Conversation, **response: Any) -> Any:
    await talk.send(type="response.create", response=response)
    return (await talk.until("response.done")).response


async def test_reasoning_is_not_of_the_answer() -> None:
    async with model() as there, conversation(there) as talk:
        answers_with(there, streamed("<think>Hm.</think>At nine."))
        await talk.update(output_modalities=["text"])
        await talk.say("When do you open?")
        done = await respond(talk)
        assert done.output[0].content[0].text == "At nine."
