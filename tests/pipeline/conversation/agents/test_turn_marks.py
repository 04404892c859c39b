"""A model that says whether the caller has finished: who has not is waited for in silence."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.servers.scripted import TEXT
from offhook.media.pcm import Pcm
from offhook.pipeline.conversation.agents import turn_marks
from offhook.pipeline.conversation.agents.agent_faults import Limits
from offhook.pipeline.conversation.agents.completion import Completion
from offhook.pipeline.conversation.agents.openai_agent_io import (
    OpenAIAgentSettings,
    model_connections,
    openai_agent,
)
from offhook.pipeline.conversation.agents.turn_marks import SILENT, TurnMark
from offhook.pipeline.conversation.events import AgentFailed, AgentTurn, CallerTurn
from tests.pipeline.conversation.phone import Model, Phone, calls, model, phone_call, says

pytestmark = pytest.mark.usefixtures("nothing_left")
LONG = Limits(first_token_seconds=30, between_tokens_seconds=30)
HELLO = [says("● Hello.")]


def read(content: str, cuts: list[int]) -> Completion:
    """An answer that comes in pieces."""
    answer = Completion(1000, marked=True)
    at = sorted(cut % (len(content) + 1) for cut in cuts)
    for begin, end in zip([0, *at], [*at, len(content)], strict=True):
        answer.add({"choices": [{"delta": says(content[begin:end])}]})
    answer.end()
    return answer


@pytest.mark.parametrize(
    ("content", "spoken", "mark"),
    [
        ("● At nine.", "At nine.", TurnMark.COMPLETE),
        ("  ●At nine. ●", "At nine. ●", TurnMark.COMPLETE),
        ("At nine ◐.", "At nine ◐.", None),
        ("◐", "", TurnMark.CUT_OFF),
        ("◐ Go on.", "", TurnMark.CUT_OFF),
        ("○\n", "", TurnMark.NEEDS_TIME),
        ("<think>◐?</think>● At nine.", "At nine.", TurnMark.COMPLETE),
        ("", "", None),
    ],
)
@given(cuts=st.lists(st.integers(0, 40), max_size=4))
def test_a_mark_is_read_and_never_spoken(
    content: str, spoken: str, mark: TurnMark | None, cuts: list[int]
) -> None:
    answer = read(content, cuts)
    assert (answer.text, answer.mark) == (spoken, mark)
    assert answer.waits == (mark in (TurnMark.CUT_OFF, TurnMark.NEEDS_TIME))


def test_a_tool_is_called_whatever_the_mark() -> None:
    answer = Completion(1000, marked=True)
    answer.add({"choices": [{"delta": {**says("◐"), **calls("look")}}]})
    assert not answer.waits


@asynccontextmanager
async def talking(
    endpoint: Model, monkeypatch: pytest.MonkeyPatch, wait_s: float
) -> AsyncIterator[Phone]:
    for mark in turn_marks.WAITS_S:
        monkeypatch.setitem(turn_marks.WAITS_S, mark, wait_s)
    about = OpenAIAgentSettings(
        *("scripted", endpoint.url, "key", "Be kind."), limits=LONG, judges_turns=True
    )
    async with (
        model_connections() as connections,
        phone_call(lambda call: openai_agent(about, call, connections)) as phone,
    ):
        await heard(phone, "Hello.")
        await phone.until(lambda: not phone.speaking)
        yield phone


async def heard(phone: Phone, text: str) -> None:
    await phone.until(lambda: any(turn.text.endswith(text) for turn in phone.of(AgentTurn)))


async def speaks(phone: Phone, voice: Pcm) -> None:
    turns = len(phone.of(CallerTurn))
    phone.leg.feed(voice)
    await phone.until(lambda: len(phone.of(CallerTurn)) > turns)


async def test_who_goes_on_is_answered_once_and_whole(
    voice: Pcm, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with (
        model(HELLO, [says("◐")], [says("● Nine to six.")]) as endpoint,
        talking(endpoint, monkeypatch, 300) as phone,
    ):
        said = phone.leg.said
        await speaks(phone, voice)
        await phone.until(lambda: len(endpoint.requests) == 2)
        await phone.pass_ms(500)
        assert phone.leg.said == said
        await speaks(phone, voice)
        await heard(phone, "Nine to six.")
        assert not phone.of(AgentFailed)
    last = endpoint.requests[-1]["messages"][-1]
    assert (last["role"], last["content"]) == ("user", f"{TEXT} {TEXT}")
    assert len(endpoint.requests) == 3
    assert "◐" in endpoint.requests[-1]["messages"][0]["content"]


async def test_who_says_no_more_is_answered_then(
    voice: Pcm, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with (
        model(HELLO, [says("○")], [says("● Take your time.")]) as endpoint,
        talking(endpoint, monkeypatch, 0.05) as phone,
    ):
        await speaks(phone, voice)
        await heard(phone, "Take your time.")
        assert not phone.of(AgentFailed)
    last = endpoint.requests[-1]["messages"][-1]
    assert (last["role"], last["content"]) == ("user", f"{TEXT} {SILENT}")
    assert "○" not in str(phone.call.context.messages)


async def test_a_model_that_never_finds_the_end_is_a_fault(
    voice: Pcm, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = [says("◐")], [says("◐")], [says("◐")], [says("◐")]
    async with (
        model(HELLO, *script) as endpoint,
        talking(endpoint, monkeypatch, 0.05) as phone,
    ):
        await speaks(phone, voice)
        await phone.until(lambda: phone.of(AgentFailed))
