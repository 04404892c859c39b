"""What `offhook.testing` asks of other people's agents, ours do; and it finds what is wrong."""

from typing import Any

import pytest
from pipecat.frames.frames import (
    Frame,
    LLMContextFrame,
    LLMFullResponseEndFrame,
    LLMFullResponseStartFrame,
    LLMTextFrame,
)
from pipecat.processors.frame_processor import FrameDirection, FrameProcessor

from offhook.pipeline.conversation.agents.kinds.agent_kind import AgentContext, AgentKind
from offhook.pipeline.conversation.call_io import Agent
from offhook.testing import AgentTests

END = "when the bicycle is ready."
ANSWER = f"That takes us until Thursday, and I shall call you {END}"
GREETS = "test_it_greets"
INTERRUPTED = "test_an_interruption_ends_the_answer_and_the_next_question_is_answered"
EMPTY = "test_without_words_of_the_caller_it_stays_able_to_answer"


class TestFrontDesk(AgentTests):
    kind = "frontdesk"
    question = "What are your opening hours?"

    def test_a_setting_that_it_does_not_have_is_refused(self) -> None:
        with pytest.raises(ValueError, match='settings: kind = "frontdesk" has none'):
            super().test_a_setting_that_it_does_not_have_is_refused()


class Faulty(FrameProcessor):
    """Answers; `fault` is the test that it does not pass."""

    def __init__(self, fault: str) -> None:
        super().__init__()
        self._fault = fault
        self._broken = False

    async def process_frame(self, frame: Frame, direction: FrameDirection) -> None:
        await super().process_frame(frame, direction)
        if not isinstance(frame, LLMContextFrame):
            return await self.push_frame(frame, direction)
        said: list[Any] = [m for m in frame.context.messages if isinstance(m, dict)]
        nothing = not said or said[-1].get("role") != "user"
        cut = any(m.get("role") == "assistant" and not m["content"].endswith(END) for m in said)
        if (nothing and self._fault == GREETS) or (cut and self._fault == INTERRUPTED):
            return
        if self._broken:
            return
        self._broken = self._fault == EMPTY and nothing and bool(said)
        await self.push_frame(LLMFullResponseStartFrame())
        await self.push_frame(LLMTextFrame(ANSWER))
        await self.push_frame(LLMFullResponseEndFrame())


def make(context: AgentContext) -> Agent:
    return Agent("faulty", Faulty(context.instructions))


FAULTY = AgentKind("faulty", "Somebody answers", f"{__name__}:make")


@pytest.mark.parametrize("fault", [GREETS, INTERRUPTED, EMPTY])
def test_a_fault_is_found(fault: str) -> None:
    class Tests(AgentTests):
        kind = f"{__name__}:FAULTY"
        question = "When is it ready?"

        def table(self) -> dict[str, Any]:
            return {"instructions": fault}

    tests: Any = Tests()
    tests.test_it_answers_again_and_again()
    with pytest.raises((AssertionError, ValueError, TimeoutError)):
        getattr(tests, fault)()


def test_without_a_fault_none_is_found() -> None:
    class Tests(AgentTests):
        kind = f"{__name__}:FAULTY"
        question = "When is it ready?"

    tests: Any = Tests()
    for name in (GREETS, INTERRUPTED, EMPTY):
        getattr(tests, name)()
