"""Calls from a speakerphone: the agent never takes its own voice for the caller's, and hears the
caller over it."""

import pytest

from offhook.pipeline.conversation.events import CallerTurn, Interrupted, PlayoutPaused
from offhook.pipeline.conversation.turns.echo import EchoDetector
from tests.pipeline.conversation.phone import Answerer, Phone, phone_call
from tests.pipeline.conversation.speakerphone import Ear, Speakerphone, Voice

GREETING = (
    "Good morning, this is the automatic front desk of Lighthouse Bicycles. We are a small bicycle "
    "shop by the harbour. How can I help you?"
)
HOURS = (
    "Our opening hours are Monday to Friday from nine to six, Saturday from ten to two and Sunday "
    "closed. Every Saturday morning there is a free class on mending a flat tyre."
)
TOMORROW = "Yes, we are open tomorrow from nine to six."
TAIL_MS = 1600
"""After the agent's last word, the longest in which it may come back."""
PAUSED_WITHIN_MS = 1000
"""From the caller's first word, the line's own delay of up to 300 ms included."""
STALL_MS = 300
"""Comes on top on a busy machine: its event loop sleeps, and jitter buffers have grown."""


async def heard_out(phone: Phone) -> None:
    """The agent says what it has to say, to the end, and what comes back of it is over."""
    cuts, turns = len(phone.of(Interrupted)), len(phone.of(CallerTurn))
    await phone.until(lambda: phone.speaking)
    await phone.until(lambda: not phone.speaking)
    await phone.pass_ms(TAIL_MS)
    assert len(phone.of(Interrupted)) == cuts, "the agent interrupted itself"
    assert len(phone.of(CallerTurn)) == turns, "the agent answered itself"


async def talks(edge: str, level: float, delay_ms: int, seed: int, busy: bool) -> int:
    """A call with a question, and another over its answer; how often the agent paused in vain."""
    leg = Speakerphone(edge, level, delay_ms, seed, busy)
    agent = Answerer(GREETING, HOURS, TOMORROW)
    async with phone_call(lambda call: agent.agent(), leg, Ear(leg), Voice()) as phone:
        await heard_out(phone)
        leg.caller_says("Hello, I would like to know your opening hours please")
        await phone.until(lambda: phone.of(CallerTurn))
        await phone.until(lambda: phone.speaking)
        await phone.pass_ms(2500)
        assert phone.of(Interrupted) == [], "the agent interrupted itself"
        in_vain, began = len(phone.of(PlayoutPaused)), leg.heard_ms
        leg.caller_says("Stop please, I would like to know when you are open tomorrow")
        await phone.until(lambda: phone.of(Interrupted) or not phone.speaking)
        assert phone.of(Interrupted), "the caller was not heard over the agent"
        paused = [event.at_ms for event in phone.of(PlayoutPaused)]
        within = PAUSED_WITHIN_MS + STALL_MS * busy
        assert any(began < at < began + within for at in paused)
        await phone.until(lambda: len(phone.of(CallerTurn)) == 2)
        before = len(phone.of(PlayoutPaused))
        await heard_out(phone)
        in_vain += len(phone.of(PlayoutPaused)) - before
    assert [turn.count("open") > 0 for turn in agent.turns] == [True, True]
    assert busy or agent.turns[1].startswith("stop"), "the agent's last words are the caller's"
    return in_vain


@pytest.mark.parametrize(
    ("edge", "level", "delay_ms"),
    [
        ("webrtc", -12, 150),
        ("sip", -6, 400),
        pytest.param("sip", -20, 50, marks=pytest.mark.slow),
    ],
)
async def test_the_agent_does_not_interrupt_itself_and_hears_the_caller(
    edge: str, level: float, delay_ms: int
) -> None:
    await talks(edge, level, delay_ms, seed=1, busy=False)


@pytest.mark.parametrize("wrong", [3, 5])
async def test_a_caller_who_is_taken_for_echo_once_is_heard_from_the_first_word(
    monkeypatch: pytest.MonkeyPatch, wrong: int
) -> None:
    """Of persons over the agent's voice some checks say echo. The third is just after the agent
    has paused, and what is dropped then is heard again; by the fifth there were words, which the
    rest of the sentence follows."""
    leg = Speakerphone("webrtc", -20, 50, seed=1)
    agent = Answerer(HOURS)
    checks: list[bool] = []

    def is_echo(detector: EchoDetector, ago: int = 0) -> bool:
        if not leg.telephone.voice:
            return check(detector, ago)
        checks.append(check(detector, ago))
        return checks[-1] or checks.count(False) == wrong

    check = EchoDetector.is_echo
    monkeypatch.setattr(EchoDetector, "is_echo", is_echo)
    async with phone_call(lambda call: agent.agent(), leg, Ear(leg), Voice()) as phone:
        await phone.until(lambda: phone.speaking)
        await phone.pass_ms(2500)
        leg.caller_says("Stop please, where are you?")
        await phone.until(lambda: phone.of(CallerTurn))
    assert len(agent.turns) == 1
    assert len(agent.turns[0].split()) >= 6 - (wrong == 5)  # one in 250 ms, whole ones


@pytest.mark.slow
@pytest.mark.parametrize("busy", [False, True])
@pytest.mark.parametrize("level", [-20, -12, -6])
@pytest.mark.parametrize("delay_ms", [50, 150, 400])
@pytest.mark.parametrize("edge", ["webrtc", "sip"])
async def test_twenty_calls_of_each(edge: str, delay_ms: int, level: float, busy: bool) -> None:
    """Ten on an idle machine, and ten on one whose event loop often stalls for a quarter of a
    second, with packets late by up to 30 ms: there it may hesitate, but not stop."""
    in_vain = [await talks(edge, level, delay_ms, seed, busy) for seed in range(10)]
    assert sum(in_vain) <= (40 if busy else 10)
