"""The answer that begins while the caller pauses: the same words sooner, and nothing else."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from aiohttp import web

from benchmarks.servers.scripted import (
    TEXT,
    ScriptedRecognizer,
    ScriptedRecognizerStream,
    ScriptedSynthesizer,
    ScriptedSynthesizerStream,
)
from offhook.media.pcm import Pcm
from offhook.pipeline.conversation.agents import early_answer_io
from offhook.pipeline.conversation.agents.agent_faults import Limits
from offhook.pipeline.conversation.agents.completion import Completion
from offhook.pipeline.conversation.agents.early_answer_io import EarlyAnswer, FirstSentence
from offhook.pipeline.conversation.agents.openai_agent_io import (
    OpenAIAgentSettings,
    model_connections,
    openai_agent,
)
from offhook.pipeline.conversation.events import (
    AgentFailed,
    AgentTurn,
    AnswerDropped,
    CallEnded,
    CallerTurn,
)
from offhook.pipeline.conversation.turns import end_of_turn
from offhook.pipeline.conversation.turns.patience import Doubt
from offhook.pipeline.speech.recognizer import DEFAULT_OPTIONS, Partial, StreamOptions
from offhook.pipeline.speech.synthesizer import DEFAULT_VOICE, VoiceOptions
from tests.pipeline.conversation.phone import Model, Phone, calls, chunk, model, phone_call, says
from tests.support.waiting import HANGS_S

pytestmark = pytest.mark.usefixtures("nothing_left")


@pytest.fixture(autouse=True)
def the_caller_hesitates(monkeypatch: pytest.MonkeyPatch) -> None:
    """So there is time to go on before the turn is over."""
    monkeypatch.setattr(end_of_turn, "doubt", lambda *about: Doubt.HESITANT)


LONG = Limits(first_token_seconds=30, between_tokens_seconds=30)


class Sure(ScriptedRecognizer):
    """Knows the words from the beginning."""

    async def open(self, options: StreamOptions = DEFAULT_OPTIONS) -> "SureStream":
        return SureStream()


class SureStream(ScriptedRecognizerStream):
    def feed(self, pcm: Pcm) -> None:
        super().feed(pcm)
        self._events.put_nowait(Partial(TEXT, 0, self._ms))


class Voice(ScriptedSynthesizer):
    """Keeps what it was given to speak, reply by reply."""

    def __init__(self) -> None:
        self.replies: list[str] = []

    def open(self, options: VoiceOptions = DEFAULT_VOICE) -> "VoiceStream":
        self.replies.append("")
        return VoiceStream(self.replies)


class VoiceStream(ScriptedSynthesizerStream):
    def __init__(self, replies: list[str]) -> None:
        super().__init__()
        self._replies, self._number = replies, len(replies) - 1

    def write(self, text: str) -> None:
        self._replies[self._number] += text
        super().write(text)


@asynccontextmanager
async def talking(
    endpoint: Model, voice: Voice | None = None, **settings: Any
) -> AsyncIterator[Phone]:
    about = OpenAIAgentSettings(
        *("scripted", endpoint.url, "key", "Be kind."),
        limits=LONG,
        **{"think_ahead": True, "speak_ahead": True, **settings},
    )
    async with (
        model_connections() as connections,
        phone_call(
            lambda call: openai_agent(about, call, connections),
            recognizer=Sure(),
            synthesizer=voice,
        ) as phone,
    ):
        await heard(phone, "Hello.")
        await phone.until(lambda: not phone.speaking)
        yield phone


async def heard(phone: Phone, text: str) -> None:
    await phone.until(lambda: any(turn.text.endswith(text) for turn in phone.of(AgentTurn)))


async def pauses(phone: Phone, voice: Pcm, endpoint: Model) -> None:
    """The caller speaks, and pauses until the model has been asked."""
    asked = len(endpoint.requests) + len(endpoint.refused)
    phone.leg.feed(voice)
    await phone.until(lambda: not phone.leg.sound and phone.call.hearing._turn.thoughts)
    async with asyncio.timeout(HANGS_S):
        while len(endpoint.requests) + len(endpoint.refused) == asked:
            await asyncio.sleep(0.01)


async def test_the_answer_has_begun_when_the_turn_is_over(voice: Pcm) -> None:
    async with model([says("Hello.")], [says("Nine to six.")]) as endpoint:
        async with talking(endpoint) as phone:
            await pauses(phone, voice, endpoint)
            assert not phone.of(CallerTurn)
            await heard(phone, "Nine to six.")
            assert not phone.of(AnswerDropped, AgentFailed)
        assert len(endpoint.requests) == 2
        messages = endpoint.requests[1]["messages"]
    assert (messages[-1]["role"], messages[-1]["content"]) == ("user", TEXT)


async def test_who_goes_on_hears_nothing_of_it(voice: Pcm) -> None:
    script = [says("Hello.")], [says("Too early.")], [says("Nine to six.")]
    async with model(*script) as endpoint, talking(endpoint) as phone:
        await pauses(phone, voice, endpoint)
        await pauses(phone, voice, endpoint)
        await heard(phone, "Nine to six.")
        (dropped,) = phone.of(AnswerDropped)
        assert dropped.characters == len("Too early.")
        (turn,) = phone.of(CallerTurn)
        assert turn.text == f"{TEXT} {TEXT}"
        assert not any("early" in str(turn) for turn in phone.of(AgentTurn))
        assert "early" not in str(phone.call.context.messages)
        assert len(endpoint.requests) == 3


async def test_tools_run_once_the_turn_is_over(voice: Pcm) -> None:
    script = [says("Hello.")], [calls("send_dtmf", digits="42")], [says("Pressed.")]
    async with model(*script) as endpoint, talking(endpoint) as phone:
        await pauses(phone, voice, endpoint)
        await asyncio.sleep(0.1)
        assert phone.leg.pressed == []
        await heard(phone, "Pressed.")
        assert "".join(phone.leg.pressed) == "42"


async def test_one_that_is_under_way_ends_with_the_call(voice: Pcm) -> None:
    script = [says("Hello.")], [says("Too early.")]
    async with model(*script) as endpoint, talking(endpoint) as phone:
        await pauses(phone, voice, endpoint)
        phone.leg.close("the caller hung up")
        await phone.while_doing(phone.running)
        assert isinstance(phone.events[-1], CallEnded)


async def test_one_that_fails_is_asked_for_again(voice: Pcm) -> None:
    script = [says("Hello.")], [says("Nine to six.")]
    async with model(*script) as endpoint, talking(endpoint) as phone:
        fails = [web.json_response({"error": {"message": "busy"}}, status=503)]
        endpoint.refuses = lambda asked: fails.pop() if fails else None
        await pauses(phone, voice, endpoint)
        await heard(phone, "Nine to six.")
        assert not phone.of(AgentFailed)


async def test_nothing_is_asked_early_if_that_is_not_wanted(voice: Pcm) -> None:
    async with model([says("Hello.")], [says("Nine to six.")]) as endpoint:
        async with talking(endpoint, think_ahead=False) as phone:
            phone.leg.feed(voice)
            await phone.until(lambda: phone.call.hearing._turn.thoughts)
            await asyncio.sleep(0.1)
            assert len(endpoint.requests) == 1
            await heard(phone, "Nine to six.")
        assert len(endpoint.requests) == 2


async def test_the_voice_has_begun_when_the_turn_is_over(voice: Pcm) -> None:
    speaker = Voice()
    script = [says("Hello.")], [says("Nine "), says("to six."), says(" Anything"), says(" else?")]
    async with model(*script) as endpoint, talking(endpoint, speaker) as phone:
        await pauses(phone, voice, endpoint)
        async with asyncio.timeout(HANGS_S):
            while len(speaker.replies) < 2 or not speaker.replies[1].startswith("Nine to six."):
                await asyncio.sleep(0.01)
        assert not phone.of(CallerTurn)
        await heard(phone, "Nine to six. Anything else?")
        assert speaker.replies == ["Hello.", "Nine to six. Anything else?"]


async def test_the_voice_begins_later_if_that_is_not_wanted(voice: Pcm) -> None:
    speaker = Voice()
    script = [says("Hello.")], [says("Nine to six.")]
    async with model(*script) as endpoint, talking(endpoint, speaker, speak_ahead=False) as phone:
        await pauses(phone, voice, endpoint)
        await asyncio.sleep(0.1)
        assert speaker.replies == ["Hello."]
        await heard(phone, "Nine to six.")


async def test_what_the_voice_has_prepared_is_not_said_of_other_words(voice: Pcm) -> None:
    speaker = Voice()
    script = [says("Hello.")], [says("Too early.")], [says("Nine to six.")]
    async with model(*script) as endpoint, talking(endpoint, speaker) as phone:
        await pauses(phone, voice, endpoint)
        await phone.until(lambda: "Too early." in speaker.replies)
        await pauses(phone, voice, endpoint)
        await heard(phone, "Nine to six.")
        assert speaker.replies == ["Hello.", "Too early.", "Nine to six."]
        assert not any("early" in str(turn) for turn in phone.of(AgentTurn))


# --- its first sentence ---

FIRST = (
    ([says("Yes. "), says("And"), says(" no.")], "Yes. ", False),
    ([says("Yes"), says("."), says(" And")], "Yes. And", False),
    ([says("Yes.")], "Yes.", True),
    ([says("a" * 60), says("b" * 60), says("c")], "a" * 60 + "b" * 60, False),
    ([says("<think>Hm."), says("</think>Yes.")], "Yes.", True),
    ([says("One moment."), calls("look")], "One moment.", False),
    ([], "", False),
)


@pytest.mark.parametrize(("deltas", "spoken", "complete"), FIRST)
def test_the_first_sentence_is_spoken(
    deltas: list[dict[str, Any]], spoken: str, complete: bool
) -> None:
    sentence = FirstSentence(Completion(1000))
    bodies = [*map(chunk, deltas), b"data: [DONE]\n\n", None]
    assert "".join(map(sentence.feed, bodies)) == spoken
    assert sentence.is_complete is complete


@pytest.mark.parametrize("body", [b"data: {\n\n", b'data: {"error": "busy"}\n\n', b"{"])
def test_nothing_is_spoken_of_what_is_no_answer(body: bytes) -> None:
    sentence = FirstSentence(Completion(1000))
    assert [sentence.feed(body), sentence.feed(None), sentence.feed(None)] == ["", "", ""]
    assert not sentence.is_complete


# --- one answer ---


class Stream:
    """As the client's, with a body of these chunks."""

    def __init__(self, *chunks: bytes, more: asyncio.Event | None = None) -> None:
        self.chunks, self.more, self.closed = chunks, more, False
        self.response = self

    async def aiter_bytes(self) -> AsyncIterator[bytes]:
        for piece in self.chunks:
            yield piece
        if self.more is not None:
            await self.more.wait()

    async def close(self) -> None:
        self.closed = True


async def body_of(early: EarlyAnswer) -> bytes:
    async with asyncio.timeout(HANGS_S):
        return b"".join([chunk async for chunk in early.body()])


async def test_only_the_same_request_has_this_answer() -> None:
    body = Stream(b"one", b"two")

    async def create(params: dict[str, Any]) -> Any:
        return body

    early = EarlyAnswer({"messages": [1]}, create)
    assert not early.claim({"messages": [1, 2]})
    assert early.claim({"messages": [1]})
    assert await body_of(early) == b"onetwo"
    assert body.closed
    await early.close()


async def test_one_that_nobody_claims_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(early_answer_io, "EARLY_S", 0.05)
    body = Stream(b"one", more=asyncio.Event())

    async def create(params: dict[str, Any]) -> Any:
        return body

    early = EarlyAnswer({}, create)
    async with asyncio.timeout(HANGS_S):
        while not body.closed:
            await asyncio.sleep(0.01)
    assert not early.claim({})
    await early.close()


async def test_a_body_that_breaks_off_is_an_error_behind_what_came() -> None:
    async def create(params: dict[str, Any]) -> Any:
        raise OSError("no route")

    early = EarlyAnswer({}, create)
    assert early.claim({})
    with pytest.raises(OSError, match="no route"):
        await body_of(early)
    await early.close()
