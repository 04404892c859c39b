"""Calls that we place, and who answers them: what the one who answers hears, and when. The line,
the turns, the detector of voices and the pipeline are real; the clock is the test's."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import cache
from typing import Any

import numpy as np
import pytest

from benchmarks.answers.scenes import silence, tone
from benchmarks.answers.voices import trimmed, voices_of
from offhook.media.answer_status import AnswerStatus
from offhook.media.leg import CallInfo
from offhook.media.pcm import Pcm
from offhook.pipeline.conversation.answering.policy import AnswerPolicy
from offhook.pipeline.conversation.call.agent import Agent
from offhook.pipeline.conversation.call.answer_watch_io import SCREENING
from offhook.pipeline.conversation.events import (
    AgentTurn,
    AnsweredBy,
    CallEnded,
    CallerTurn,
    MessageLeft,
)
from tests.pipeline.conversation.phone import Answerer, Phone, PhoneLeg, Words, phone_call

pytestmark = pytest.mark.asyncio
GREETING = "Good morning, this is Ann of the garage."
MESSAGE = "Your car is ready. Goodbye."
LONG = " ".join([MESSAGE] * 3)
MAILBOX = "You have reached Tom. Please leave a message after the tone."


@cache
def said(text: str) -> Pcm:
    """The text as Flite reads it, 16 kHz."""
    return trimmed(voices_of("en")[0][1](text)).astype(np.int16)


def quiet(ms: int) -> Pcm:
    return silence(ms).astype(np.int16)


def beep(ms: int = 400) -> Pcm:
    return tone((1000.0,), ms).astype(np.int16)


class OurLeg(PhoneLeg):
    """A line of a call that we place; it keeps when we were heard."""

    def __init__(self) -> None:
        super().__init__(CallInfo(edge="sip", direction="outbound", called="4711"))
        self.sent_at: list[int] = []

    def _send(self, said: Pcm | None, now: float) -> None:
        super()._send(said, now)
        if said is not None and np.abs(said).max() > 100:
            self.sent_at.append(self.heard_ms)


@asynccontextmanager
async def answered(
    *words: str,
    agent: Answerer | None = None,
    greeting: str = GREETING,
    interruptible: bool = True,
    **policy: Any,
) -> AsyncIterator[Phone]:
    leg, answerer = OurLeg(), agent or Answerer()

    def make(call: Any) -> Agent:
        made = answerer.agent()
        made.greeting, made.greeting_interruptible = greeting, interruptible
        return made

    def before(call: Any) -> None:
        vad = call.engines.turn_detection.vad
        given = AnswerPolicy(**{"mode": "detect", **policy})
        call.opening.watch_answer(call, vad, given)

    async with phone_call(make, leg, Words(*words, *[""] * 9), before=before) as phone:
        yield phone


def results(phone: Phone) -> list[str]:
    return [event.by for event in phone.of(AnsweredBy)]


async def test_a_person_is_greeted_at_once_and_the_hello_is_a_turn() -> None:
    async with answered("Hello?") as phone:
        phone.leg.feed(quiet(400))
        phone.leg.feed(said("Hello?"))
        over = 400 + len(said("Hello?")) // 16
        await phone.until(lambda: phone.of(AnsweredBy))
        verdict = phone.of(AnsweredBy)[0]
        assert verdict.by == "human"
        assert verdict.after_ms in range(over, over + 301)
        await phone.until(lambda: phone.of(AgentTurn))
        assert [turn.text for turn in phone.of(CallerTurn)] == ["Hello?"]
        assert phone.of(AgentTurn)[0].text == GREETING
        assert phone.call.transcript()[:1] == [("user", "Hello?")]


async def test_an_agent_without_a_greeting_answers_the_hello() -> None:
    agent = Answerer("Hello, this is Ann.")
    async with answered("Hello?", agent=agent, greeting="") as phone:
        phone.leg.feed(quiet(300))
        phone.leg.feed(said("Hello?"))
        await phone.until(lambda: phone.of(AgentTurn))
        assert agent.turns == ["Hello?"]
        assert phone.of(AgentTurn)[0].text == "Hello, this is Ann."


async def test_nobody_is_kept_in_silence() -> None:
    async with answered() as phone:
        await phone.until(lambda: phone.of(AgentTurn))
        assert results(phone) == ["unknown"]
        assert phone.of(AgentTurn)[0].text == GREETING


async def test_a_machine_is_hung_up_on() -> None:
    async with answered(MAILBOX) as phone:
        phone.leg.feed(np.concatenate((quiet(300), said(MAILBOX))))
        await phone.until(lambda: phone.of(CallEnded))
        assert results(phone)[-1] == "machine"
        assert phone.of(CallEnded)[0].reason == "a machine answered (machine)"
        assert phone.leg.sent_at == []


async def test_a_message_is_left_whole_after_the_beep() -> None:
    async with answered(MAILBOX, mode="message", message=MESSAGE) as phone:
        phone.leg.feed(np.concatenate((quiet(300), said(MAILBOX), quiet(900), beep())))
        beeped = 300 + len(said(MAILBOX)) // 16 + 900 + 400
        await phone.until(lambda: phone.of(CallEnded))
        assert results(phone)[-2:] == ["machine", "machine_end"]
        assert [event.text for event in phone.of(MessageLeft)] == [MESSAGE]
        assert [turn.text for turn in phone.of(AgentTurn)] == [MESSAGE]
        assert min(phone.leg.sent_at) >= beeped
        assert phone.leg.answer_status == AnswerStatus(
            result="machine_end", after_ms=phone.leg.answer_status.after_ms, message_left=True
        )
        assert phone.of(CallEnded)[0].reason == "the message was left"


async def test_a_beep_that_comes_late_has_the_message_said_again() -> None:
    async with answered(MAILBOX, mode="message", message=LONG) as phone:
        phone.leg.feed(np.concatenate((quiet(300), said(MAILBOX))))
        await phone.until(lambda: phone.leg.sent_at)
        await phone.pass_ms(400)
        phone.leg.feed(beep())
        await phone.until(lambda: phone.of(CallEnded))
        assert [turn.text for turn in phone.of(AgentTurn)][-1] == LONG
        assert len(phone.of(MessageLeft)) == 1


async def test_a_message_that_the_machine_cuts_off_is_not_left() -> None:
    async with answered(MAILBOX, mode="message", message=LONG) as phone:
        phone.leg.feed(np.concatenate((quiet(300), said(MAILBOX), quiet(500), beep())))
        await phone.until(lambda: phone.leg.sent_at)
        phone.leg.close("the other end hung up")
        await phone.until(phone.running.done)
        assert phone.of(MessageLeft) == []
        assert not phone.leg.answer_status.message_left


async def test_a_person_gets_no_message() -> None:
    async with answered("Hello?", mode="message", message=MESSAGE) as phone:
        phone.leg.feed(np.concatenate((quiet(300), said("Hello?"))))
        await phone.until(lambda: phone.of(AgentTurn))
        assert phone.of(AgentTurn)[0].text == GREETING
        assert phone.of(MessageLeft) == []


async def test_the_hi_of_a_greeting_is_corrected() -> None:
    rest = "This is Tom. Please leave a message after the tone."
    async with answered("Hi", rest, mode="message", message=MESSAGE) as phone:
        parts = quiet(300), said("Hi."), quiet(500), said(rest), quiet(700), beep()
        phone.leg.feed(np.concatenate(parts))
        await phone.until(lambda: phone.of(CallEnded))
        assert results(phone)[0] == "human"
        assert results(phone)[-1] == "machine_end"
        assert [turn.text for turn in phone.of(AgentTurn) if not turn.interrupted][-1] == MESSAGE
        assert len(phone.of(MessageLeft)) == 1


async def test_a_greeting_that_nobody_interrupts_ends_where_a_machine_is_known() -> None:
    rest = "This is Tom. Please leave a message after the tone."
    long = " ".join([GREETING] * 5)
    async with answered("Hi", rest, greeting=long, interruptible=False) as phone:
        phone.leg.feed(np.concatenate((quiet(300), said("Hi."), quiet(600), said(rest))))
        await phone.until(lambda: phone.of(CallEnded))
        assert results(phone)[0] == "human"
        assert phone.of(CallEnded)[0].reason == "a machine answered (machine)"
        assert [turn.text for turn in phone.of(AgentTurn) if not turn.interrupted] == []


async def test_a_screening_service_hears_who_calls_and_then_the_agent_listens() -> None:
    asks = "Please record your name and reason for calling."
    agent = Answerer("Hello, your car is ready.")
    who = "This is Ann of the garage, about the car."
    async with answered(asks, "Hello?", agent=agent, on_screening=who, has_model=True) as phone:
        phone.leg.feed(np.concatenate((quiet(300), said(asks))))
        await phone.until(lambda: phone.of(AgentTurn))
        assert results(phone)[-1] == "screening"
        assert phone.of(AgentTurn)[0].text == who
        phone.leg.feed(np.concatenate((quiet(1500), said("Hello?"))))
        await phone.until(lambda: len(phone.of(AgentTurn)) == 2)
        assert agent.turns[-1] == "Hello?"
        assert agent.known[0] == ("system", f"{SCREENING} You have said: {who}")


async def test_what_a_carrier_says_counts() -> None:
    async with answered(mode="message", message=MESSAGE) as phone:
        await phone.pass_ms(200)
        phone.leg.answer_status.by_carrier = "machine_end"
        await phone.until(lambda: phone.of(CallEnded))
        assert len(phone.of(MessageLeft)) == 1


async def test_a_carrier_does_not_have_a_person_hung_up_on() -> None:
    async with answered("Hello?") as phone:
        phone.leg.feed(np.concatenate((quiet(300), said("Hello?"))))
        await phone.until(lambda: phone.of(AgentTurn))
        phone.leg.answer_status.by_carrier = "machine"
        await phone.pass_ms(2000)
        assert phone.of(CallEnded) == []
        assert results(phone) == ["human"]


async def test_a_fax_machine_is_hung_up_on() -> None:
    async with answered() as phone:
        phone.leg.feed(np.concatenate((quiet(500), tone((2100.0,), 3000).astype(np.int16))))
        await phone.until(lambda: phone.of(CallEnded))
        assert results(phone) == ["fax"]
