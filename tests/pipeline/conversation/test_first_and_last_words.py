"""What an agent says without being asked: its greeting, words in a silence, and its goodbye."""

from dataclasses import replace
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from offhook.media.end_reason import End
from offhook.media.pcm import Pcm
from offhook.pipeline.conversation.call.silences import Silences, SilenceStep
from offhook.pipeline.conversation.call_io import Agent
from offhook.pipeline.conversation.events import AgentTurn, CallEnded, CallerTurn, Interrupted
from offhook.pipeline.conversation.sentences import SENTENCES, Occasion
from tests.pipeline.conversation.phone import COUNT, Answerer, Words, phone_call

STILL_THERE = SilenceStep(0.2, "Are you still there?")


def agent(answerer: Answerer, **more: Any) -> Agent:
    return replace(answerer.agent(), **more)


async def test_the_greeting_is_spoken_without_asking_the_agent_which_knows_it(voice: Pcm) -> None:
    answerer = Answerer("We close at six.")
    greeting = "Lighthouse Bicycles, good morning."
    async with phone_call(
        lambda call: agent(answerer, greeting=greeting), recognizer=Words("when do you close")
    ) as phone:
        await phone.until(lambda: phone.of(AgentTurn))
        assert answerer.turns == []
        phone.leg.feed(voice)
        await phone.until(lambda: len(phone.of(AgentTurn)) == 2)
        messages = [(m["role"], m["content"]) for m in phone.call.context.messages]
    assert messages == [
        ("assistant", greeting),
        ("user", "when do you close"),
        ("assistant", "We close at six."),
    ]


async def test_a_caller_interrupts_the_greeting(voice: Pcm) -> None:
    answerer = Answerer("yes")
    async with phone_call(lambda call: agent(answerer, greeting=COUNT)) as phone:
        await phone.until(lambda: phone.leg.said > 20)
        phone.leg.feed(voice)
        await phone.until(lambda: answerer.turns)
    assert phone.of(Interrupted)


async def test_a_greeting_that_cannot_be_interrupted_is_heard_whole_and_what_was_said_answered(
    voice: Pcm,
) -> None:
    answerer = Answerer("yes")
    make = agent(answerer, greeting=COUNT, greeting_interruptible=False)
    async with phone_call(lambda call: make) as phone:
        await phone.until(lambda: phone.leg.said > 20)
        phone.leg.feed(voice)
        await phone.until(lambda: len(phone.of(AgentTurn)) == 2)
        assert phone.call.hearing.agent.interruptible
        known = [(m["role"], m["content"]) for m in phone.call.context.messages]
    assert not phone.of(Interrupted)
    assert [(turn.turn, turn.text) for turn in phone.of(AgentTurn)] == [(0, COUNT), (1, "yes")]
    # As the agent was asked, while the greeting was still to be heard.
    assert answerer.known == [("assistant", COUNT), ("user", answerer.turns[0])]
    assert known == [*answerer.known, ("assistant", "yes")]


async def test_after_the_greeting_the_agent_can_be_interrupted(voice: Pcm) -> None:
    answerer = Answerer(COUNT, "yes")
    make = agent(answerer, greeting="Hello.", greeting_interruptible=False)
    async with phone_call(lambda call: make) as phone:
        await phone.until(lambda: phone.of(AgentTurn))
        phone.leg.feed(voice)
        await phone.until(lambda: answerer.turns and phone.speaking)
        phone.leg.feed(voice)
        await phone.until(lambda: len(answerer.turns) == 2)
    assert phone.of(Interrupted)


async def test_a_call_that_continues_is_not_greeted_again() -> None:
    answerer = Answerer("We close at six.")
    history = [("assistant", "Good morning."), ("user", "when do you close")]
    async with phone_call(
        lambda call: agent(answerer, greeting="Good morning."), history=history
    ) as phone:
        await phone.until(lambda: phone.of(AgentTurn))
    assert [turn.text for turn in phone.of(AgentTurn)] == ["We close at six."]


async def test_who_says_nothing_is_asked_and_then_told_goodbye() -> None:
    answerer = Answerer("Hello.")
    steps = (STILL_THERE, SilenceStep(0.2, hang_up=True))
    make = agent(answerer, silences=steps, goodbye="Goodbye then.")
    async with phone_call(lambda call: make) as phone:
        await phone.until(lambda: phone.of(CallEnded))
    assert [turn.text for turn in phone.of(AgentTurn)] == [
        "Hello.",
        "Are you still there?",
        "Goodbye then.",
    ]
    (ended,) = phone.of(CallEnded)
    assert ended.reason == End.CALLER_SILENT
    assert answerer.turns == []
    assert answerer.prompts == 0


async def test_who_speaks_again_is_asked_again_before_the_call_ends(voice: Pcm) -> None:
    answerer = Answerer("Hello.", "Good.")
    steps = (STILL_THERE, SilenceStep(0.2, "Hello?"), SilenceStep(0.2, hang_up=True))
    async with phone_call(lambda call: agent(answerer, silences=steps)) as phone:
        await phone.until(lambda: len(phone.of(AgentTurn)) == 2)
        phone.leg.feed(voice)
        await phone.until(lambda: phone.of(CallEnded))
    texts = [turn.text for turn in phone.of(AgentTurn)]
    (turn,) = phone.of(CallerTurn)
    before = [text for text in texts[: texts.index("Good.")] if text != "Hello?"]
    assert before == ["Hello.", "Are you still there?"]
    assert texts[texts.index("Good.") :] == ["Good.", "Are you still there?", "Hello?"]
    assert turn.text


async def test_after_the_last_step_nothing_more_is_said() -> None:
    answerer = Answerer("Hello.")
    async with phone_call(lambda call: agent(answerer, silences=(STILL_THERE,))) as phone:
        await phone.until(lambda: len(phone.of(AgentTurn)) == 2)
        await phone.pass_ms(2000)
        assert phone.call._announcements.silences.after_s == 0
    assert len(phone.of(AgentTurn)) == 2


async def test_at_its_longest_a_call_ends_with_the_goodbye_of_its_agent() -> None:
    answerer = Answerer("Hello.")
    make = agent(answerer, goodbye="Our time is over.")
    async with phone_call(lambda call: make, limit_s=0.5) as phone:
        await phone.until(lambda: phone.of(CallEnded))
    assert phone.of(AgentTurn)[-1].text == "Our time is over."
    assert phone.of(CallEnded)[0].reason == End.TOO_LONG
    assert SENTENCES["en"][Occasion.CLOSING] != "Our time is over."


@given(st.lists(st.sampled_from(["idle", "speech"]), max_size=30), st.integers(0, 4))
def test_every_silence_begins_with_the_first_step(events: list[str], count: int) -> None:
    steps = [SilenceStep(n + 1.0, f"step {n}") for n in range(count)]
    silences, taken = Silences(steps), 0
    for event in events:
        assert silences.after_s == (taken + 1.0 if taken < count else 0.0)
        if event == "speech":
            assert silences.spoken() == (taken > 0)
            taken = 0
        else:
            assert silences.step() == (steps[taken] if taken < count else None)
            taken = min(count, taken + 1)
        assert silences.lasts == (taken > 0)
