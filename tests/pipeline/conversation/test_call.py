"""A call on the telephone: keys, hold and transfer, as the caller and the agent live them."""

import asyncio

import numpy as np
import pytest
from pipecat.runner.types import RunnerArguments

from benchmarks.servers.scripted import ScriptedRecognizer, ScriptedRecognizerStream
from offhook.media.bridge_io import Bridge
from offhook.media.leg import CallInfo, LegError
from offhook.media.pcm import SAMPLES_OUT, Pcm
from offhook.media.playout import PlayoutState
from offhook.pipeline.conversation.agents.agents_io import FrontDeskAgent
from offhook.pipeline.conversation.agents.frontdesk import Action, Hangup, Transfer
from offhook.pipeline.conversation.agents.frontdesk_business import DEMO
from offhook.pipeline.conversation.bot_io import BotCall
from offhook.pipeline.conversation.call import announcements_io
from offhook.pipeline.conversation.call.history import Message
from offhook.pipeline.conversation.call_io import Agent, Call
from offhook.pipeline.conversation.digits import INTER_KEY_MS, GatherOptions
from offhook.pipeline.conversation.events import (
    AgentTurn,
    CallEnded,
    CallerTurn,
    CallHeld,
    CallResumed,
    CallStarted,
    CallTransferred,
    Dtmf,
    Interrupted,
    PlayoutPaused,
    PlayoutResumed,
    TransferFailed,
    TurnLatency,
)
from offhook.pipeline.conversation.sentences import SENTENCES, Occasion, sentence
from offhook.pipeline.speech.recognizer import DEFAULT_OPTIONS, Final, Partial, StreamOptions
from tests.pipeline.conversation.phone import COUNT, Answerer, Phone, PhoneLeg, Words, phone_call
from tests.support.waiting import HANGS_S

pytestmark = pytest.mark.usefixtures("nothing_left")
LONG = "one two three four five six seven eight nine ten"
WORD_PACKETS = 15


# --- keys ---


async def test_keys_are_a_turn_of_the_caller_and_each_is_told() -> None:
    agent = Answerer("hello", "thank you")
    async with phone_call(lambda call: agent.agent()) as phone:
        await phone.until(lambda: phone.speaking)
        await phone.until(lambda: not phone.speaking)
        await phone.press("12*4#")
        await phone.until(lambda: agent.turns and phone.speaking)
    assert agent.turns == ["[pressed 12*4#]"]
    assert [event.digit for event in phone.of(Dtmf)] == list("12*4#")
    assert [event.text for event in phone.of(CallerTurn)] == ["[pressed 12*4#]"]
    (latency,) = phone.of(TurnLatency)
    assert latency.turn == 1


async def test_without_a_finish_key_the_turn_is_over_when_no_key_follows() -> None:
    agent = Answerer()
    async with phone_call(lambda call: agent.agent()) as phone:
        await phone.press("12", every_ms=INTER_KEY_MS - 100)
        assert agent.turns == []
        await phone.pass_ms(80)
        assert phone.of(CallerTurn) == []
        await phone.until(lambda: agent.turns)
    assert agent.turns == ["[pressed 12]"]
    assert len(phone.of(CallerTurn)) == 1


async def test_a_key_cuts_the_agent_at_once_and_the_words_heard_are_known() -> None:
    agent = Answerer(LONG, "yes")
    async with phone_call(lambda call: agent.agent()) as phone:
        await phone.until(lambda: phone.leg.said > 2 * WORD_PACKETS)
        await phone.press("1", every_ms=40)
        said = phone.leg.said
        assert phone.of(Interrupted)[0].heard == "one two"
        assert phone.of(Interrupted)[0].unheard.startswith("three four")
        await phone.pass_ms(1000)
        assert phone.leg.said == said
        await phone.until(lambda: agent.turns)
        messages = phone.call.context.messages
    assert next(m["content"] for m in messages if m["role"] == "assistant") == "one two"
    assert phone.of(PlayoutPaused) == []


async def test_a_key_cuts_a_reply_that_has_not_begun_to_sound() -> None:
    agent = Answerer("", "one", "two")
    agent.thinks_s = 0.2
    async with phone_call(lambda call: agent.agent()) as phone:
        await phone.press("1#")
        await phone.until(lambda: len(agent.replies) == 1)
        await phone.press("2#")
        await phone.until(lambda: len(phone.call.context.messages) == 3)
    assert agent.turns == ["[pressed 1#]", "[pressed 2#]"]
    assert [m["content"] for m in phone.call.context.messages] == [*agent.turns, "two"]


async def test_keys_after_words_are_one_turn_with_them(voice: Pcm) -> None:
    agent = Answerer()
    async with phone_call(lambda call: agent.agent()) as phone:
        await phone.pass_ms(200)
        phone.leg.feed(voice[: 2 * 16_000])
        await phone.pass_ms(1500)
        await phone.press("55#")
        await phone.until(lambda: agent.turns)
    assert agent.turns == ["please tell me what you can do [pressed 55#]"]


async def test_who_goes_on_speaking_after_the_keys_is_heard(voice: Pcm) -> None:
    agent = Answerer()
    async with phone_call(lambda call: agent.agent()) as phone:
        await phone.pass_ms(200)
        phone.leg.listener.on_dtmf("1")
        phone.leg.feed(voice)
        phone.leg.listener.on_dtmf("#")
        await phone.until(lambda: len(agent.turns) == 2)
    assert agent.turns == ["[pressed 1#]", "please tell me what you can do"]


async def test_the_caller_is_not_prompted_while_keys_come(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(announcements_io, "IDLE_S", 0.3)
    agent = Answerer("hello")
    async with phone_call(lambda call: agent.agent()) as phone:
        await phone.until(lambda: phone.speaking)
        await phone.until(lambda: not phone.speaking)
        phone.call.gather(GatherOptions(4, inter_key_ms=10_000))
        await phone.press("123")
        await asyncio.sleep(0.6)  # the prompt is timed by Pipecat, on the wall clock
        await phone.pass_ms(100)
        assert agent.prompts == 0
        await phone.press("4")
        await phone.until(lambda: agent.turns)
    assert agent.turns == ["[pressed 1234]"]


async def test_keys_of_a_call_that_ended_harm_nobody() -> None:
    async with phone_call(lambda call: Answerer().agent()) as phone:
        await phone.pass_ms(100)
        phone.leg.close("gone")
        await phone.running
        phone.leg.listener.on_dtmf("1")
        phone.leg.set_held(True)
    assert phone.of(Dtmf, CallHeld) == []


# --- hold by the far end ---


async def held_while_speaking(phone: Phone) -> None:
    await phone.until(lambda: phone.leg.said > WORD_PACKETS)
    phone.leg.set_held(True)
    await phone.pass_ms(40)


async def test_nothing_is_said_into_a_line_on_hold_and_no_word_is_lost() -> None:
    agent = Answerer(LONG)
    async with phone_call(lambda call: agent.agent()) as phone:
        await held_while_speaking(phone)
        said = phone.leg.said
        await phone.pass_ms(2000)
        assert phone.leg.said == said
        phone.leg.set_held(False)
        await phone.until(lambda: len(phone.call.context.messages) == 1)
        (message,) = phone.call.context.messages
    assert message["content"] == LONG
    kinds = CallHeld, CallResumed
    assert [(type(e), e.by) for e in phone.of(*kinds)] == [(kind, "caller") for kind in kinds]


async def test_music_on_hold_is_no_turn_and_no_interruption(voice: Pcm) -> None:
    agent = Answerer(LONG, "yes")
    async with phone_call(lambda call: agent.agent()) as phone:
        await held_while_speaking(phone)
        phone.leg.feed(voice)
        await phone.pass_ms(len(voice) // 16 + 1000)
        phone.leg.set_held(False)
        await phone.until(lambda: len(phone.call.context.messages) == 1)
        assert phone.of(CallerTurn, Interrupted, PlayoutPaused) == []
        phone.leg.feed(voice)
        await phone.until(lambda: agent.turns)


async def test_a_reply_to_the_last_words_before_a_hold_waits_for_its_end(voice: Pcm) -> None:
    agent = Answerer("", "yes of course")
    async with phone_call(lambda call: agent.agent()) as phone:
        await phone.pass_ms(200)
        phone.leg.feed(voice)
        await phone.until(lambda: not phone.leg.sound)
        phone.leg.set_held(True)
        await phone.until(lambda: agent.turns)
        await phone.pass_ms(1000)
        assert phone.leg.said == 0
        phone.leg.set_held(False)
        await phone.until(lambda: phone.leg.said >= 3 * WORD_PACKETS)


async def test_a_caller_on_hold_is_not_asked_whether_they_are_there(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(announcements_io, "IDLE_S", 0.3)
    agent = Answerer("hello")
    async with phone_call(lambda call: agent.agent()) as phone:
        await phone.until(lambda: phone.speaking)
        await phone.until(lambda: not phone.speaking)
        phone.leg.set_held(True)
        await asyncio.sleep(0.7)
        assert agent.prompts == 0
        phone.leg.set_held(False)
        await phone.until(lambda: agent.prompts)


# --- transfer ---


async def test_a_bridged_call_lasts_as_long_as_its_line_without_the_agent() -> None:
    leg, other, agent = PhoneLeg(), PhoneLeg(), Answerer("hello")

    async def bridge() -> None:
        Bridge(leg, other)

    def speak() -> None:
        leg.playout.write(np.full(20 * SAMPLES_OUT, 1000, np.int16))  # whoever is there now

    leg.transfer_takes = bridge
    async with phone_call(lambda call: agent.agent(), leg) as phone:
        await phone.until(lambda: phone.speaking)
        await phone.until(lambda: not phone.speaking)
        said = leg.said
        await phone.call.transfer("200")
        speak()
        await phone.pass_ms(500)
        assert leg.said == said + 20
        assert not phone.running.done()
        assert phone.of(CallEnded) == []
        for _ in range(10):
            other.tick(0.0)
            leg.tick(0.0)
        assert leg.said >= said + 29
        assert other.said >= 9
        leg.listener.on_dtmf("1")
        leg.close("the caller hung up")
        await asyncio.wait_for(phone.running, HANGS_S)
    assert other.pressed == ["1"]
    assert leg.done == ["transfer 200"]
    assert [e.target for e in phone.of(CallTransferred)] == ["200"]
    assert [e.reason for e in phone.of(CallEnded)] == ["transferred to 200"]
    assert phone.of(Dtmf) == []


async def test_an_agent_that_was_speaking_is_not_heard_after_the_transfer() -> None:
    leg, other = PhoneLeg(), PhoneLeg()
    agent = Answerer("This is what I was about to say when you were transferred to a colleague.")

    async def bridge() -> None:
        assert leg.playout.queued
        Bridge(leg, other)

    leg.transfer_takes = bridge
    async with phone_call(lambda call: agent.agent(), leg) as phone:
        await phone.until(lambda: phone.speaking)
        await phone.call.transfer("200")
        said = leg.said
        await phone.pass_ms(500)
        assert leg.said - said <= 1  # its last packet fades out
        leg.close("the caller hung up")


async def test_a_line_that_ends_with_its_transfer_ended_by_it() -> None:
    """As after a REFER: the far end is gone before the transfer has returned."""
    leg = PhoneLeg()

    async def refer() -> None:
        leg.close("transferred")
        await asyncio.sleep(0.1)

    leg.transfer_takes = refer
    async with phone_call(lambda call: Answerer().agent(), leg) as phone:
        await phone.pass_ms(100)
        await phone.call.transfer("sip:bob@example.com")
        await asyncio.wait_for(phone.running, HANGS_S)
    assert [e.reason for e in phone.of(CallEnded)] == ["transferred to sip:bob@example.com"]


async def test_a_caller_who_hangs_up_during_a_transfer_ends_it() -> None:
    leg, left = PhoneLeg(), []

    async def ring() -> None:
        try:
            await asyncio.sleep(60)
        finally:
            left.append("not ringing any more")

    leg.transfer_takes = ring
    async with phone_call(lambda call: Answerer().agent(), leg) as phone:
        await phone.pass_ms(100)
        transfer = asyncio.create_task(phone.call.transfer("200"))
        await phone.pass_ms(100)
        leg.close("the caller hung up")
        await asyncio.wait_for(phone.running, HANGS_S)
        assert left
        await asyncio.gather(transfer, return_exceptions=True)
    assert [e.reason for e in phone.of(CallEnded)] == ["the caller hung up"]


async def test_a_refused_transfer_leaves_everything_as_it_was(voice: Pcm) -> None:
    leg, agent = PhoneLeg(), Answerer("hello", "yes")
    over = asyncio.Event()

    async def refuse() -> None:
        await over.wait()
        raise LegError("486 Busy Here")

    leg.transfer_takes = refuse
    async with phone_call(lambda call: agent.agent(), leg) as phone:
        await phone.until(lambda: phone.speaking)
        await phone.until(lambda: not phone.speaking)
        transfer = asyncio.create_task(phone.call.transfer("200"))
        await phone.until(lambda: leg.done)
        leg.feed(voice)  # to whoever is there; not to the agent
        await phone.press("12#")
        await phone.pass_ms(3000)
        with pytest.raises(LegError, match="under way"):
            await phone.call.transfer("300")
        over.set()
        with pytest.raises(LegError, match="Busy"):
            await transfer
        assert phone.of(CallerTurn) == []
        leg.feed(voice)
        await phone.until(lambda: agent.turns and phone.speaking)
    (failed,) = phone.of(TransferFailed)
    assert (failed.target, failed.reason) == ("200", "486 Busy Here")
    assert phone.of(CallTransferred) == []


async def test_a_bridged_call_that_is_forgotten_ends_at_the_longest_duration() -> None:
    leg = PhoneLeg()

    async def bridge() -> None:
        pass

    leg.transfer_takes = bridge
    async with phone_call(lambda call: Answerer().agent(), leg, limit_s=0.5) as phone:
        await phone.pass_ms(100)
        await phone.call.transfer("200")
        await asyncio.wait_for(phone.running, HANGS_S)
    assert leg.closed == "the call reached its longest duration"


# --- the front desk ---


def front_desk(call: Call) -> Agent:
    async def act(action: Action) -> None:
        if isinstance(action, Transfer):
            await call.transfer(action.to)
        elif isinstance(action, Hangup):
            await call.hang_up()

    desk = FrontDeskAgent(DEMO, act, call.wait_until_heard, call.leg.info.caller)
    return Agent(
        *("frontdesk", desk), on_cut=desk.cut, on_idle=desk.prompt, on_returned=desk.returned
    )


async def ask(phone: Phone, voice: Pcm, turn: int) -> None:
    """The caller waits for the desk to finish, says something, and has the answer."""
    await phone.until(lambda: phone.speaking)
    await phone.until(lambda: not phone.speaking)
    phone.leg.feed(voice)
    await phone.until(lambda: len(phone.of(CallerTurn)) == turn)


async def test_the_desk_transfers_when_its_words_have_been_heard(voice: Pcm) -> None:
    leg = PhoneLeg()

    async def bridge() -> None:
        assert not leg.playout.queued

    leg.transfer_takes = bridge
    words = Words("can i talk to sales", "yes please")
    async with phone_call(front_desk, leg, words) as phone:
        await ask(phone, voice, 1)
        await ask(phone, voice, 2)
        assert leg.done == []
        await phone.until(lambda: phone.of(CallTransferred))
        leg.close("the caller hung up")
        await asyncio.wait_for(phone.running, HANGS_S)
    assert leg.done == [f"transfer {DEMO.departments['sales'].number}"]


async def test_the_desk_says_that_a_transfer_failed_and_takes_a_message(voice: Pcm) -> None:
    words = Words("can i talk to sales", "yes please", "yes")
    async with phone_call(front_desk, PhoneLeg(), words) as phone:
        await ask(phone, voice, 1)
        await ask(phone, voice, 2)
        await phone.until(lambda: phone.of(TransferFailed))
        await ask(phone, voice, 3)
        await phone.until(lambda: len(phone.of(AgentTurn)) == 5)
        said = [turn.text for turn in phone.of(AgentTurn)]
    assert "cannot be reached" in said[3]
    assert "message" in said[3]
    assert "name" in said[4]


async def test_the_desk_stays_when_its_goodbye_is_interrupted(voice: Pcm) -> None:
    leg, words = PhoneLeg(), Words("goodbye", "what time do you open", "goodbye")
    async with phone_call(front_desk, leg, words) as phone:
        await ask(phone, voice, 1)
        await phone.until(lambda: phone.speaking)
        leg.feed(voice)
        await phone.until(lambda: len(phone.of(CallerTurn)) == 2)
        await ask(phone, voice, 3)
        assert leg.done == []
        await phone.until(phone.running.done)
        said = [turn.text for turn in phone.of(AgentTurn)]
    assert "open" in said[-2]
    assert leg.done == ["hang up: the agent hung up"]


# --- what is known of the call ---


async def test_a_users_own_bot_gets_to_know_who_calls() -> None:
    bodies = []

    async def bot(arguments: RunnerArguments) -> None:
        bodies.append(arguments.body)

    await BotCall(bot, PhoneLeg(), {"a": 1}).run()
    await BotCall(bot, PhoneLeg(CallInfo()), {"a": 1}).run()
    (from_a_phone, from_a_browser) = bodies
    assert from_a_phone["a"] == 1
    assert from_a_phone["call"]["caller"] == "+4930555123"
    assert from_a_browser == {"a": 1}


async def test_a_call_begins_with_who_calls_whom() -> None:
    info = CallInfo(
        edge="sip", direction="outbound", caller="100", caller_name="Us", called="+4930555123",
        trunk="office", headers={"X-Id": "7"}, variables={"name": "Ada", "tries": 2},
    )  # fmt: skip
    async with phone_call(lambda call: Answerer().agent(), PhoneLeg(info)) as phone:
        await phone.pass_ms(100)
    (started,) = phone.of(CallStarted)
    assert (started.edge, started.direction, started.trunk) == ("sip", "outbound", "office")
    assert (started.caller, started.caller_name, started.called) == ("100", "Us", "+4930555123")
    assert (started.headers, started.variables) == ({"X-Id": "7"}, {"name": "Ada", "tries": 2})


# --- sentences of the call's own ---


async def test_a_sentence_is_said_without_the_agent_and_its_end_is_known() -> None:
    agent = Answerer("hello", "yes")
    async with phone_call(lambda call: agent.agent()) as phone:
        await phone.until(lambda: phone.leg.said >= WORD_PACKETS)
        saying = asyncio.create_task(phone.call.say("one moment please"))
        await phone.until(saying.done)
        assert phone.leg.said == 4 * WORD_PACKETS
        await phone.press("1#")
        await phone.until(lambda: phone.leg.said == 5 * WORD_PACKETS)
        messages = phone.call.context.messages
    said = [message["content"] for message in messages if message["role"] == "assistant"]
    assert " ".join(said).startswith("hello one moment please")
    assert phone.of(TurnLatency)


async def test_a_sentence_takes_the_place_of_what_the_agent_says() -> None:
    agent = Answerer(LONG)
    async with phone_call(lambda call: agent.agent()) as phone:
        await phone.until(lambda: phone.leg.said > 2 * WORD_PACKETS)
        await phone.while_doing(phone.call.say("we must end", instead=True))
        assert phone.of(Interrupted)[0].heard == "one two"
        assert 5 * WORD_PACKETS <= phone.leg.said <= 6 * WORD_PACKETS
        assert phone.of(AgentTurn)[-1].text == "we must end"


async def test_a_sentence_that_the_caller_interrupts_is_over() -> None:
    agent = Answerer("hello")
    async with phone_call(lambda call: agent.agent()) as phone:
        await phone.until(lambda: phone.leg.said >= WORD_PACKETS)
        saying = asyncio.create_task(phone.call.say(LONG))
        await phone.until(lambda: phone.leg.said > 3 * WORD_PACKETS)
        await phone.press("1")
        await phone.until(saying.done)
        assert phone.leg.said < 5 * WORD_PACKETS


def test_every_language_has_every_sentence() -> None:
    for language, table in SENTENCES.items():
        assert set(table) == set(Occasion), language
    assert sentence(Occasion.WAIT, "de-AT") == SENTENCES["de"][Occasion.WAIT]
    assert sentence(Occasion.WAIT, "tlh") == SENTENCES["en"][Occasion.WAIT]
    assert sentence(Occasion.WAIT, "de", {Occasion.WAIT: "Moment!"}) == "Moment!"


# --- words that do not come ---


class Slow(ScriptedRecognizer):
    """Its words come when the test says so."""

    def __init__(self) -> None:
        self.asked = 0

    async def open(self, options: StreamOptions = DEFAULT_OPTIONS) -> "SlowStream":
        self.stream = SlowStream(self)
        return self.stream


class SlowStream(ScriptedRecognizerStream):
    def __init__(self, recognizer: Slow) -> None:
        super().__init__()
        self._recognizer = recognizer

    def feed(self, pcm: Pcm) -> None:
        pass

    def finish(self) -> None:
        self._recognizer.asked += 1

    def guess(self, text: str) -> None:
        self._events.put_nowait(Partial(text, 0, 1000))

    def tell(self, text: str, *, lost: bool = False) -> None:
        self._events.put_nowait(Final(text, 1000, lost=lost))


def last_said(phone: Phone) -> str:
    return next((event.text for event in reversed(phone.of(AgentTurn))), "")


async def test_a_caller_whose_words_are_late_is_asked_to_wait_and_then_answered(voice: Pcm) -> None:
    agent, recognizer = Answerer("", "tomorrow at nine"), Slow()
    async with phone_call(lambda call: agent.agent(), recognizer=recognizer) as phone:
        phone.leg.feed(voice)
        await phone.until(lambda: recognizer.asked)
        await phone.until(lambda: phone.speaking)
        assert agent.turns == []
        await phone.until(lambda: not phone.speaking)
        wait = SENTENCES["en"][Occasion.WAIT]
        await phone.until(lambda: last_said(phone) == wait)
        assert not phone.of(Interrupted)
        recognizer.stream.tell("when are you open")
        await phone.until(
            lambda: [e.text for e in phone.of(AgentTurn)][-1:] == ["tomorrow at nine"]
        )
    assert agent.turns == ["when are you open"]
    assert len(phone.of(CallerTurn)) == 1


async def test_a_caller_whose_words_are_lost_is_asked_to_say_them_again(voice: Pcm) -> None:
    agent, recognizer = Answerer("", "tomorrow at nine"), Slow()
    async with phone_call(lambda call: agent.agent(), recognizer=recognizer) as phone:
        phone.leg.feed(voice)
        await phone.until(lambda: recognizer.asked)
        recognizer.stream.tell("", lost=True)
        again = SENTENCES["en"][Occasion.NOT_HEARD]
        await phone.until(lambda: last_said(phone) == again)
        phone.leg.feed(voice)
        await phone.until(lambda: recognizer.asked == 2)
        recognizer.stream.tell("when are you open")
        await phone.until(lambda: agent.turns == ["when are you open"])


async def spoken_over(phone: Phone, recognizer: Slow, voice: Pcm) -> None:
    """The caller has a turn, and says something short over the answer, whose words do not come in
    time: the agent goes on."""
    phone.leg.feed(voice)
    await phone.until(lambda: recognizer.asked)
    recognizer.stream.tell("count please")
    await phone.until(lambda: phone.speaking)
    await phone.pass_ms(4000)  # shows that the line has no echo
    phone.leg.feed(voice[4000:14_000])
    await phone.until(lambda: recognizer.asked == 2)
    assert phone.leg.playout.state is PlayoutState.PAUSED
    recognizer.stream.guess("uh huh")
    await phone.until(lambda: phone.leg.playout.state is PlayoutState.LOWERED)
    await phone.until(lambda: phone.of(PlayoutResumed))
    assert phone.leg.playout.state is PlayoutState.PLAYING
    assert len(phone.of(PlayoutPaused)) == 1
    assert phone.speaking


async def test_words_over_the_agent_interrupt_it_though_they_come_late(voice: Pcm) -> None:
    agent, recognizer = Answerer("", COUNT, "at nine"), Slow()
    async with phone_call(lambda call: agent.agent(), recognizer=recognizer) as phone:
        await spoken_over(phone, recognizer, voice)
        recognizer.stream.tell("when do you open")
        await phone.until(lambda: last_said(phone) == "at nine")
        assert len(phone.of(Interrupted)) == 1
    assert agent.turns == ["count please", "when do you open"]


async def test_a_late_assent_changes_nothing(voice: Pcm) -> None:
    agent, recognizer = Answerer("", COUNT, "at nine"), Slow()
    async with phone_call(lambda call: agent.agent(), recognizer=recognizer) as phone:
        await spoken_over(phone, recognizer, voice)
        recognizer.stream.tell("uh huh")
        await phone.until(lambda: last_said(phone) == COUNT)
        phone.leg.feed(voice)
        await phone.until(lambda: recognizer.asked == 3)
        recognizer.stream.tell("when do you open")
        await phone.until(lambda: len(agent.turns) == 2)
        assert not phone.of(Interrupted)
    assert agent.turns == ["count please", "when do you open"]


async def test_words_over_the_agent_that_come_after_its_end_are_answered(voice: Pcm) -> None:
    agent, recognizer = Answerer("", COUNT, "at nine"), Slow()
    async with phone_call(lambda call: agent.agent(), recognizer=recognizer) as phone:
        await spoken_over(phone, recognizer, voice)
        await phone.until(lambda: last_said(phone) == COUNT)
        await phone.pass_ms(500)
        recognizer.stream.tell("when do you open")
        await phone.until(lambda: last_said(phone) == "at nine")
        assert not phone.of(Interrupted)
    assert agent.turns == ["count please", "when do you open"]


async def test_late_words_and_those_after_them_are_one_turn(voice: Pcm) -> None:
    agent, recognizer = Answerer("", COUNT, "at nine"), Slow()
    async with phone_call(lambda call: agent.agent(), recognizer=recognizer) as phone:
        await spoken_over(phone, recognizer, voice)
        await phone.until(lambda: last_said(phone) == COUNT)
        phone.leg.feed(voice)
        await phone.until(lambda: recognizer.asked == 3)
        for words in ("when do you", "open tomorrow"):
            recognizer.stream.tell(words)
        await phone.until(lambda: last_said(phone) == "at nine")
    assert agent.turns == ["count please", "when do you open tomorrow"]


async def test_a_call_that_lasts_too_long_ends_with_a_word() -> None:
    agent = Answerer(LONG)
    async with phone_call(lambda call: agent.agent(), limit_s=2.0) as phone:
        await phone.until(lambda: phone.speaking)
        await phone.until(phone.running.done)
        assert phone.of(AgentTurn)[-1].text == SENTENCES["en"][Occasion.CLOSING]
        assert phone.leg.closed == "the call reached its longest duration"


async def test_a_caller_who_is_cut_off_is_told_so() -> None:
    agent = Answerer(LONG)
    async with phone_call(lambda call: agent.agent()) as phone:
        await phone.until(lambda: phone.speaking)
        ending = asyncio.create_task(phone.call.end_with_a_word())
        await phone.until(ending.done)
        assert phone.of(AgentTurn)[-1].text == SENTENCES["en"][Occasion.CLOSING]


# --- a call that continues another one ---

BEFORE: list[Message] = [("assistant", "Hello."), ("user", "Where are you?")]


async def test_what_was_unanswered_elsewhere_is_answered_here() -> None:
    agent = Answerer("In the old town.")
    async with phone_call(lambda call: agent.agent(), history=BEFORE) as phone:
        await phone.until(lambda: phone.of(AgentTurn))
        assert phone.call.transcript() == [*BEFORE, ("assistant", "In the old town.")]


@pytest.mark.parametrize("last", ["Connect me.", "I will connect you."])
async def test_a_caller_who_was_transferred_in_vain_is_told_so(last: str) -> None:
    """The agent does not answer again what it was asked before: it would transfer again."""
    agent = Answerer("Never said.")
    before: list[Message] = [*BEFORE, ("assistant" if "you" in last else "user", last)]
    back = Occasion.NOT_TRANSFERRED
    async with phone_call(lambda call: agent.agent(), history=before, opening=back) as phone:
        await phone.until(lambda: phone.of(AgentTurn))
        said = SENTENCES["en"][Occasion.NOT_TRANSFERRED]
        assert [turn.text for turn in phone.of(AgentTurn)] == [said]
        assert phone.call.transcript() == [*before, ("assistant", said)]


async def test_a_desk_whose_transfer_was_in_vain_offers_to_take_a_message() -> None:
    async with phone_call(front_desk, history=BEFORE, opening=Occasion.NOT_TRANSFERRED) as phone:
        await phone.until(lambda: phone.of(AgentTurn))
        [turn] = phone.of(AgentTurn)
        assert "cannot be reached" in turn.text


async def test_a_call_that_continues_another_has_what_is_left_of_its_time() -> None:
    agent = Answerer()
    async with phone_call(lambda call: agent.agent(), limit_s=100, before_s=100) as phone:
        await phone.until(phone.running.done)
        assert phone.leg.closed == "the call reached its longest duration"


async def test_a_caller_whose_turn_it_was_is_told_to_go_on() -> None:
    agent = Answerer("Never said.")
    before: list[Message] = [*BEFORE, ("assistant", "In the old town.")]
    async with phone_call(lambda call: agent.agent(), history=before) as phone:
        await phone.until(lambda: phone.of(AgentTurn))
        resumed = SENTENCES["en"][Occasion.RESUMED]
        assert [turn.text for turn in phone.of(AgentTurn)] == [resumed]
        assert phone.call.transcript() == [*before, ("assistant", resumed)]
