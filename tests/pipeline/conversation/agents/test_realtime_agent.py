"""An agent whose model is a Realtime server: what fails there, and what callers hear."""

import asyncio
import base64
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import numpy as np
import pytest
from aiohttp import web

from offhook.media.pcm import RATE_OUT, Pcm
from offhook.pipeline.conversation.agents.agent_faults import Fault, Limits, Place
from offhook.pipeline.conversation.agents.realtime import realtime_agent_io
from offhook.pipeline.conversation.agents.realtime.realtime_agent_io import (
    RealtimeAgentSettings,
    realtime_agent,
)
from offhook.pipeline.conversation.events import (
    AgentFailed,
    AgentTurn,
    CallEnded,
    CallerTurn,
    Interrupted,
)
from offhook.pipeline.conversation.sentences import SENTENCES, Occasion
from tests.pipeline.conversation.agents.test_agent_faults import voice
from tests.pipeline.conversation.phone import Answerer, Phone, Words, phone_call

__all__ = ["voice"]
pytestmark = pytest.mark.usefixtures("nothing_left")

LONG = Limits(first_token_seconds=30, between_tokens_seconds=30)
SHORT = Limits(first_token_seconds=4, between_tokens_seconds=2)
"""For a model that falls silent: other faults are noticed without them."""
ENGLISH = SENTENCES["en"]
SECRET = "sk-0123456789abcdef"
PREFIX = "the price of it is "


class Model:
    """A Realtime server that says what its script has, and then "And now?", unless it is ill."""

    def __init__(self, *texts: str) -> None:
        self.texts = list(texts)
        self.upgrades: Callable[[web.Request], Awaitable[web.StreamResponse]] | None = None
        """Answers instead of the socket."""
        self.ill: Callable[[Session], Awaitable[None]] | None = None
        """What it does in place of a response."""
        self.sessions: list[Session] = []
        self.word_s = 0.3
        self.keeps_words = True
        self.url = ""

    async def serve(self, request: web.Request) -> web.StreamResponse:
        if self.upgrades is not None:
            return await self.upgrades(request)
        assert request.query["model"] == "scripted"
        assert request.headers["Authorization"] == f"Bearer {SECRET}"
        socket = web.WebSocketResponse()
        await socket.prepare(request)
        session = Session(self, socket)
        self.sessions.append(session)
        await session.run()
        return socket

    @property
    def received(self) -> list[dict[str, Any]]:
        """All events of all sessions."""
        return [event for session in self.sessions for event in session.received]

    def items(self, session: int = -1) -> list[dict[str, Any]]:
        """The items that were added to a session."""
        events = self.sessions[session].received
        return [e["item"] for e in events if e["type"] == "conversation.item.create"]

    def messages(self) -> list[tuple[str, str]]:
        """The messages that were added to the last session."""
        messages = [item for item in self.items() if item["type"] == "message"]
        return [(item["role"], item["content"][0]["text"]) for item in messages]

    def of(self, kind: str) -> list[dict[str, Any]]:
        return [event for event in self.received if event["type"] == kind]


class Session:
    def __init__(self, model: Model, socket: web.WebSocketResponse) -> None:
        self.model, self.socket = model, socket
        self.received: list[dict[str, Any]] = []
        self.responses = 0

    async def send(self, kind: str, **fields: Any) -> None:
        await self.socket.send_json({"type": kind, "event_id": "e", **fields})

    async def run(self) -> None:
        await self.send("session.created", session={"type": "realtime"})
        async for message in self.socket:
            event = json.loads(message.data)
            self.received.append(event)
            await self.handle(event)

    async def handle(self, event: dict[str, Any]) -> None:
        match event["type"]:
            case "response.create":
                self.responses += 1
                await self.send("response.created", response={"id": self.response_id})
                if self.model.ill is not None and not self.model.texts:
                    return await self.model.ill(self)
                text = self.model.texts.pop(0) if self.model.texts else "And now?"
                await self.speak(text)
                await self.done()
            case "conversation.item.truncate":
                await self.send("conversation.item.truncated", item_id=event["item_id"])
            case "conversation.item.retrieve":
                words = "exactly these" if self.model.keeps_words else None
                content = [{"type": "output_audio", "transcript": words}]
                item = {"id": event["item_id"], "content": content}
                await self.send("conversation.item.retrieved", item=item)

    @property
    def response_id(self) -> str:
        return f"resp_{self.responses}"

    async def speak(self, text: str) -> None:
        """The transcript ahead of the audio, as OpenAI does."""
        about = {"response_id": self.response_id, "item_id": f"item_{self.responses}"}
        for word in text.split():
            kind = "response.output_audio_transcript.delta"
            await self.send(kind, **about, delta=f"{word} ")
        t = np.arange(round(self.model.word_s * RATE_OUT)) / RATE_OUT
        syllable = 8000 * np.sin(4000 * t) * (1 - np.cos(2 * np.pi * t / self.model.word_s))
        audio = base64.b64encode(syllable.astype("<i2").tobytes()).decode()
        for _ in text.split():
            await self.send("response.output_audio.delta", **about, delta=audio)

    async def call(self, name: str, arguments: str) -> None:
        item = {"type": "function_call", "call_id": f"call_{self.responses}", "name": name}
        item["arguments"] = arguments
        await self.send("response.output_item.done", response_id=self.response_id, item=item)

    async def done(self, **fields: Any) -> None:
        response = {"id": self.response_id, "status": "completed", **fields}
        await self.send("response.done", response=response)

    async def close(self) -> None:
        assert self.socket._req is not None
        assert self.socket._req.transport is not None
        self.socket._req.transport.abort()


@asynccontextmanager
async def model(*texts: str) -> AsyncIterator[Model]:
    made = Model(*texts)
    app = web.Application()
    app.router.add_get("/v1/realtime", made.serve)
    runner = web.AppRunner(app, shutdown_timeout=0.1, handler_cancellation=True)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    made.url = f"http://127.0.0.1:{runner.addresses[0][1]}/v1"
    try:
        yield made
    finally:
        await runner.cleanup()


@asynccontextmanager
async def talking(
    there: Model, *heard: str, standby: Answerer | None = None, **settings: Any
) -> AsyncIterator[Phone]:
    about = RealtimeAgentSettings(
        *("scripted", there.url, SECRET, "Be kind."), **{"limits": LONG, **settings}
    )
    other = standby.agent() if standby is not None else None
    async with phone_call(
        lambda call: realtime_agent(about, call, other), recognizer=Words(*heard)
    ) as phone:
        yield phone


async def status(request: web.Request, code: int) -> web.Response:
    return web.json_response({"error": {"message": f"Bad key: {SECRET}"}}, status=code)


def failing(code: str) -> Callable[[Session], Awaitable[None]]:
    async def fail(session: Session) -> None:
        await session.send("error", error={"type": "x", "code": code, "message": SECRET})
        await session.socket.close(code=4000)

    return fail


async def fails(session: Session) -> None:
    error = {"type": "server_error", "code": "server_error", "message": SECRET}
    await session.done(status="failed", status_details={"type": "failed", "error": error})


async def calls_badly(session: Session) -> None:
    await session.call("send_dtmf", '{"digits": "1')
    await session.done()


async def is_silent(session: Session) -> None:
    await session.send("rate_limits.updated", rate_limits=[])


async def sends_no_json(session: Session) -> None:
    await session.socket.send_str("<html>Welcome to nginx!</html>")


ILLS: dict[str, tuple[Callable[[Session], Awaitable[None]], Fault]] = {
    "a failed response": (fails, Fault.SERVER_ERROR),
    "an empty response": (Session.done, Fault.EMPTY),
    "a lost connection": (Session.close, Fault.UNREACHABLE),
    "silence": (is_silent, Fault.FIRST_TOKEN_LATE),
    "no JSON": (sends_no_json, Fault.BAD_ANSWER),
    "a bad tool call": (calls_badly, Fault.BAD_TOOL_CALL),
    "no quota": (failing("insufficient_quota"), Fault.RATE_LIMITED),
    "a wrong model": (failing("invalid_model"), Fault.NO_MODEL),
}


def limits_for(name: str) -> Limits:
    return SHORT if name == "silence" else LONG


def is_part(text: str) -> bool:
    """Whether it is what may have been heard of the sentence that breaks off."""
    return PREFIX.startswith(text) and len(text.split()) >= 2


async def heard(phone: Phone, occasion: Occasion) -> None:
    """The caller has heard the sentence to its end."""
    text = ENGLISH[occasion]
    await phone.until(lambda: any(turn.text.endswith(text) for turn in phone.of(AgentTurn)))


@pytest.mark.parametrize("name", ILLS)
async def test_the_caller_hears_a_sentence_and_the_next_turn_works(name: str) -> None:
    async with model("hello") as there:
        there.ill, fault = ILLS[name]
        async with talking(there, limits=limits_for(name)) as phone:
            await phone.until(lambda: phone.of(AgentTurn))
            await phone.press("1#")
            await heard(phone, Occasion.TROUBLE)
            there.ill = None
            await phone.press("2#")
            await phone.until(lambda: phone.of(AgentTurn)[-1].text == "And now?")
    failed = phone.of(AgentFailed)
    assert {(event.fault, event.place) for event in failed} == {(fault, Place.START)}
    assert ("user", "[pressed 2#]") in there.messages()


@pytest.mark.parametrize("name", ["a failed response", "a lost connection", "silence"])
async def test_in_mid_sentence_the_caller_hears_why_it_ended(name: str) -> None:
    async def breaks_off(session: Session) -> None:
        await session.speak(PREFIX)
        await ILLS[name][0](session)

    async with model("hello") as there:
        there.ill = breaks_off
        async with talking(there, limits=limits_for(name)) as phone:
            await phone.until(lambda: phone.of(AgentTurn))
            await phone.press("1#")
            await heard(phone, Occasion.BROKEN_OFF)
            assert is_part(phone.of(AgentTurn)[1].text)
            there.ill = None
            await phone.press("2#")
            await phone.until(lambda: phone.of(AgentTurn)[-1].text == "And now?")
    fault = Fault.STALLED if name == "silence" else ILLS[name][1]
    assert [(e.fault, e.place) for e in phone.of(AgentFailed)] == [(fault, Place.SPEAKING)]


@pytest.mark.parametrize(
    ("code", "fault"),
    [(401, "unauthorized"), (404, "no_model"), (429, "rate_limited"), (503, "server_error")],
)
async def test_a_server_that_refuses_has_the_fallback_greet(code: int, fault: str) -> None:
    standby = Answerer("good morning", "nine to six")
    async with model() as there:
        there.upgrades = lambda request: status(request, code)
        async with talking(there, standby=standby) as phone:
            await phone.until(lambda: phone.of(AgentTurn))
            assert phone.of(AgentTurn)[0].text == "good morning"
            await phone.press("1#")
            await phone.until(lambda: len(phone.of(AgentTurn)) == 2)
    assert {event.fault for event in phone.of(AgentFailed)} == {fault}
    assert phone.of(AgentFailed)[-1].action == "fall_back"
    assert standby.turns == ["[pressed 1#]"]


async def test_a_fallback_takes_over_in_mid_sentence_and_tells_the_model_later(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("offhook.pipeline.conversation.agents.agent_faults.FALL_BACK_S", 0.5)

    async def breaks_off(session: Session) -> None:
        await session.speak(PREFIX)
        await session.close()

    standby = Answerer("nine to six")
    async with model("hello") as there:
        there.ill = breaks_off
        async with talking(there, standby=standby) as phone:
            await phone.until(lambda: phone.of(AgentTurn))
            await phone.press("1#")
            await heard(phone, Occasion.BROKEN_OFF)
            monkeypatch.setattr("offhook.pipeline.conversation.agents.agent_faults.FALL_BACK_S", 60)
            await phone.press("2#")
            await phone.until(lambda: phone.of(AgentTurn)[-1].text == "nine to six")
            there.ill = None
            monkeypatch.setattr("offhook.pipeline.conversation.agents.agent_faults.FALL_BACK_S", 0)
            await phone.press("3#")
            await phone.until(lambda: phone.of(AgentTurn)[-1].text == "And now?")
    told = there.messages()
    assert is_part(told[2][1])
    assert told == [
        ("assistant", "hello"),
        ("user", "[pressed 1#]"),
        ("assistant", told[2][1]),
        ("assistant", ENGLISH[Occasion.BROKEN_OFF]),
        ("user", "[pressed 2#]"),
        ("assistant", "nine to six"),
        ("user", "[pressed 3#]"),
    ]


async def test_who_interrupts_has_the_model_told_what_was_heard(voice: Pcm) -> None:
    async with model("hello", "one two three four five six seven eight nine ten") as there:
        there.word_s = 1.0
        async with talking(there, "stop please now") as phone:
            await phone.until(lambda: phone.of(AgentTurn))
            await phone.press("1#")
            await phone.until(lambda: phone.speaking)
            await phone.pass_ms(3000)
            begins = phone.leg.playout.sent
            phone.leg.feed(voice)
            await phone.until(lambda: phone.of(Interrupted))
            sent = phone.leg.playout.sent
            await phone.until(lambda: len(phone.of(AgentTurn)) == 2)
            await phone.until(lambda: phone.of(AgentTurn)[-1].text == "And now?")
    (truncate,) = there.of("conversation.item.truncate")
    hello = round(RATE_OUT * 1.0)
    assert begins < sent
    assert truncate["audio_end_ms"] == (sent - hello) * 1000 // RATE_OUT
    assert phone.of(AgentTurn)[1].text == "exactly these"
    assert phone.of(AgentTurn)[1].interrupted
    assert len(there.of("input_audio_buffer.commit")) == 1
    assert there.of("response.cancel") == []  # it was complete already
    assert not any(item["role"] == "user" and "stop" in str(item) for item in there.items())


async def test_without_the_servers_words_the_speaking_rate_tells_them(voice: Pcm) -> None:
    async with model("hello", "one two three four five six seven eight nine ten") as there:
        there.word_s, there.keeps_words = 1.0, False
        async with talking(there, "stop please now") as phone:
            await phone.until(lambda: phone.of(AgentTurn))
            await phone.press("1#")
            await phone.until(lambda: phone.speaking)
            await phone.pass_ms(3000)
            phone.leg.feed(voice)
            await phone.until(lambda: len(phone.of(AgentTurn)) == 2)
    text = phone.of(AgentTurn)[1].text
    assert text.startswith("one two")
    assert "ten" not in text


async def test_tools_run_and_their_results_are_answered() -> None:
    async def calls_a_tool(session: Session) -> None:
        session.model.ill = None
        await session.call("send_dtmf", '{"digits": "12"}')
        await session.done()

    async with model("hello") as there:
        there.ill = calls_a_tool
        async with talking(there) as phone:
            await phone.until(lambda: phone.of(AgentTurn))
            await phone.press("1#")
            await phone.until(lambda: phone.of(AgentTurn)[-1].text == "And now?")
            assert phone.leg.pressed == ["12"]
    tools = there.of("session.update")[0]["session"]["tools"]
    assert {"send_dtmf", "end_call"} < {tool["name"] for tool in tools}
    (output,) = (item for item in there.items() if item["type"] == "function_call_output")
    assert (output["call_id"], json.loads(output["output"])) == ("call_2", {"status": "sent"})


async def test_three_failures_end_the_call() -> None:
    async with model() as there:
        there.ill = failing("invalid_api_key")
        async with talking(there) as phone:
            for key in "123":
                await phone.until(lambda key=key: len(phone.of(AgentFailed)) >= int(key))
                await phone.pass_ms(1000)
                await phone.press(f"{key}#")
            await phone.until(lambda: phone.of(CallEnded))
    assert phone.of(CallEnded)[0].reason == "the language model failed"
    assert len(phone.of(CallerTurn)) >= 2


async def test_a_session_is_renewed_when_nobody_speaks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(realtime_agent_io, "QUIET_POLL_S", 0.05)
    async with model("hello", "you have pressed one") as there, talking(there) as phone:
        await phone.until(lambda: phone.of(AgentTurn))
        await phone.press("1#")
        await phone.until(lambda: len(phone.of(AgentTurn)) == 2)
        monkeypatch.setattr(realtime_agent_io, "RENEW_S", 0.1)
        await phone.until(lambda: len(there.sessions) == 2 and len(there.items()) == 3)
        monkeypatch.setattr(realtime_agent_io, "RENEW_S", 60)
        await phone.press("2#")
        await phone.until(lambda: phone.of(AgentTurn)[-1].text == "And now?")
    told = there.messages()
    assert told[:3] == [
        ("assistant", "hello"),
        ("user", "[pressed 1#]"),
        ("assistant", "you have pressed one"),
    ]
    assert told[-1] == ("user", "[pressed 2#]")
    assert phone.of(AgentFailed) == []


async def test_nothing_that_goes_wrong_is_told_to_the_caller() -> None:
    async with model("hello") as there:
        there.ill = fails
        async with talking(there) as phone:
            await phone.until(lambda: phone.of(AgentTurn))
            await phone.press("1#")
            await heard(phone, Occasion.TROUBLE)
            await asyncio.sleep(0)
    assert SECRET not in " ".join(turn.text for turn in phone.of(AgentTurn))
