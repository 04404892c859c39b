"""Tests that an agent must pass, in calls by text: greeting, turns, interruptions and the line are
those of the phone, and a word of the agent takes 20 ms.

    class TestClerk(AgentTests):
        kind = "offhook_morse.clerk:CLERK"
        question = "What hath God wrought?"
"""

import asyncio
from abc import ABC
from collections.abc import AsyncIterator, Coroutine, Mapping
from contextlib import asynccontextmanager
from typing import Any, ClassVar, TypeVar

import pytest
from pipecat.frames.frames import LLMRunFrame

from offhook.media.leg import CallInfo
from offhook.pipeline.conversation.agents.kinds.kinds import kind_of
from offhook.pipeline.conversation.events import AgentFailed, AgentTurn, Event, Interrupted
from offhook.web.config.config import Agent, Config, ConfigError
from offhook.web.config.plugins import check_agents
from offhook.web.edge.text.text_edge_io import TextConversation, conversation, text_edge
from offhook.web.edge.text.text_engines_io import WORD

NAME = "tested"
TEST_S = 300.0
"""Time in s that a test may take, on however busy a machine."""
POLL_S = 0.01
CALLS = 5
"""Calls at once."""
HEARD_WORDS = 3
"""Words of an answer that are heard before it is interrupted."""
ATTEMPTS = 5
"""Answers that a test tries to interrupt."""
T = TypeVar("T")


class AgentTests(ABC):
    """What every agent does that converses with the voice of [tts]."""

    kind: ClassVar[str]
    """As in the configuration: a name, or the import path of an `AgentKind`."""
    question: ClassVar[str]
    """Something that it answers with ten words or more."""

    def table(self) -> Mapping[str, Any]:
        """Returns further keys of its table, such as `settings`."""
        return {}

    def run(self, test: Coroutine[Any, Any, T]) -> T:
        """Runs a coroutine to its end."""
        return asyncio.run(asyncio.wait_for(test, TEST_S))

    def test_its_kind_has_a_name_and_a_title(self) -> None:
        kind = kind_of(self.kind)
        assert kind.name
        assert kind.title
        assert not kind.title.endswith(".")

    def test_a_setting_that_it_does_not_have_is_refused(self) -> None:
        settings = {**self.table().get("settings", {}), "nobody has this": 1}
        agent = Agent.model_validate({**self.table(), "kind": self.kind, "settings": settings})
        with pytest.raises(ConfigError, match="settings"):
            check_agents(Config(agents={NAME: agent}))

    def test_it_greets(self) -> None:
        async def greeting() -> str:
            async with self._call() as call:
                return (await call.listen()).text

        assert self.run(greeting())

    def test_it_answers_again_and_again(self) -> None:
        async def answers() -> list[str]:
            async with self._call() as call:
                await call.listen()
                return [(await call.say(self.question)).text for _ in range(3)]

        assert all(self.run(answers()))

    def test_an_interruption_ends_the_answer_and_the_next_question_is_answered(self) -> None:
        async def interrupted() -> bool:
            events: list[Event] = []
            async with self._call() as call:
                await call.listen()
                whole = await call.say(self.question)
                assert len(whole.text.split()) >= 10, f"too short to interrupt: {whole.text!r}"
                call.call.listeners.append(events.append)
                call.leg.type(self.question)
                heard = call.leg.playout.sent + HEARD_WORDS * len(WORD)
                while call.leg.playout.sent < heard:
                    await asyncio.sleep(POLL_S)
                await call.say(self.question)
            kinds = [type(event) for event in events]
            if Interrupted not in kinds:
                return False
            after = events[kinds.index(Interrupted) :]
            whole_turns = [e for e in after if isinstance(e, AgentTurn) and not e.interrupted]
            assert len(whole_turns) == 1, "one answer follows an interruption, to what was said"
            return True

        # A busy machine notices too late that the agent speaks.
        assert any(self.run(interrupted()) for _ in range(ATTEMPTS)), "it is not interrupted"

    def test_without_words_of_the_caller_it_stays_able_to_answer(self) -> None:
        async def answer() -> str:
            async with self._call() as call:
                await call.listen()
                for _ in range(2):
                    call.call.queue(LLMRunFrame())
                    await call.listen()
                return (await call.say(self.question)).text

        assert self.run(answer())

    def test_a_caller_may_leave_while_it_speaks(self) -> None:
        async def left() -> None:
            async with self._call() as call:
                await call.listen()
                call.leg.type(self.question)
                while call.leg.first_word_at is None:
                    await asyncio.sleep(POLL_S)

        self.run(left())

    def test_calls_at_once_are_independent(self) -> None:
        async def answers() -> list[str]:
            async with text_edge(self._config()) as edge:

                async def one() -> str:
                    async with conversation(edge, NAME, CallInfo("text"), str) as call:
                        await call.listen()
                        return (await call.say(self.question)).text

                return await asyncio.gather(*(one() for _ in range(CALLS)))

        assert all(self.run(answers()))

    def _config(self) -> Config:
        return Config(agents={NAME: Agent.model_validate({**self.table(), "kind": self.kind})})

    @asynccontextmanager
    async def _call(self) -> AsyncIterator[TextConversation]:
        """Yields a call in which nothing fails."""
        events: list[Event] = []
        async with (
            text_edge(self._config()) as edge,
            conversation(edge, NAME, CallInfo("text"), str) as call,
        ):
            call.call.listeners.append(events.append)
            yield call
        assert not [event for event in events if isinstance(event, AgentFailed)]
