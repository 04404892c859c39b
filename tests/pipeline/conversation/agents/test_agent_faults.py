"""A language model that fails, in every way and at every moment: what the caller hears."""

import asyncio
import shutil
import socket
import subprocess
import wave
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from time import monotonic
from typing import Any

import numpy as np
import pytest
from aiohttp import web

from offhook.media.leg import LegError
from offhook.media.pcm import Pcm
from offhook.pipeline.conversation.agents.agent_faults import (
    FALL_BACK_S,
    TABLE,
    Action,
    AgentFaults,
    Decision,
    Fault,
    Limits,
    Place,
)
from offhook.pipeline.conversation.agents.openai_agent_io import (
    OpenAIAgentSettings,
    model_connections,
    openai_agent,
)
from offhook.pipeline.conversation.agents.openai_model_io import OpenAIModel
from offhook.pipeline.conversation.agents.supervision_io import GAVE_UP
from offhook.pipeline.conversation.events import AgentFailed, AgentTurn, CallEnded, CallerTurn
from offhook.pipeline.conversation.sentences import SENTENCES, Occasion
from offhook.pipeline.speech.recognizer import DEFAULT_OPTIONS, StreamOptions
from offhook.pipeline.speech.synthesizer import Synthesizer
from tests.pipeline.conversation.phone import (
    Answerer,
    Model,
    Phone,
    PhoneLeg,
    Words,
    WordsStream,
    calls,
    chunk,
    model,
    phone_call,
    says,
    stream,
)
from tests.pipeline.conversation.speller import EnglishOnly

pytestmark = pytest.mark.usefixtures("nothing_left")

SECRET = "sk-proj-0123456789abcdefghijklmnop"
WORDS = f"Incorrect API key provided: {SECRET}"
"""What no caller may read."""
LONG = Limits(first_token_seconds=30, between_tokens_seconds=30)
SHORT = Limits(first_token_seconds=4, between_tokens_seconds=2)
"""For models that stall: other faults are noticed without them."""
HEARD_WITHIN_S = 8
WORD_PACKETS = 15
PREFIX = "the price of it is"
ENGLISH = SENTENCES["en"]
NAME = "model.test"


@dataclass
class Ills:
    """How the server of a model misbehaves: before an answer has begun, and in its middle."""

    silent: Callable[[web.Request], Awaitable[web.StreamResponse]]
    speaking: Callable[[web.StreamResponse, web.Request], Awaitable[None]]
    fault: Fault
    later: Fault | None = None
    """In the middle of an answer; None: the same."""


def status(code: int, fault: Fault, **headers: str) -> Ills:
    error = {"message": WORDS, "type": "error", "code": code}

    async def silent(request: web.Request) -> web.Response:
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        return web.json_response({"error": error}, status=code, headers=named)

    async def speaking(response: web.StreamResponse, request: web.Request) -> None:
        await response.write(b'data: {"error": {"message": "%s"}}\n\n' % WORDS.encode())

    return Ills(silent, speaking, fault, Fault.SERVER_ERROR)


def sends(data: bytes, fault: Fault, *, kind: str = "", then_stalls: bool = False) -> Ills:
    async def speaking(response: web.StreamResponse, request: web.Request) -> None:
        await response.write(data)
        if then_stalls:
            await asyncio.sleep(60)

    async def silent(request: web.Request) -> web.StreamResponse:
        if kind:
            return web.Response(body=data, content_type=kind)
        response = await stream(request)
        await speaking(response, request)
        return response

    return Ills(silent, speaking, fault)


async def hangs_up(response: web.StreamResponse, request: web.Request) -> None:
    assert request.transport is not None
    request.transport.abort()


async def hangs_up_at_once(request: web.Request) -> web.StreamResponse:
    await hangs_up(web.StreamResponse(), request)
    return web.Response()


async def stands_still(request: web.Request) -> web.StreamResponse:
    await asyncio.sleep(60)
    return web.Response()


async def only_says_that_it_lives(response: web.StreamResponse, request: web.Request) -> None:
    while True:
        await response.write(b": still here\n\n")
        await asyncio.sleep(0.05)


async def demands_tls(response: web.StreamResponse, request: web.Request) -> None:
    assert request.transport is not None
    request.transport.write(b"\x15\x03\x01\x00\x02\x02\x46")
    request.transport.close()


async def demands_tls_at_once(request: web.Request) -> web.StreamResponse:
    await demands_tls(web.StreamResponse(), request)
    return web.Response()


DONE = b"data: [DONE]\n\n"
BROKEN_TOOL = calls("send_dtmf")
BROKEN_TOOL["tool_calls"][0]["function"]["arguments"] = '{"digits": "1'
STALLED = Ills(stands_still, only_says_that_it_lives, Fault.FIRST_TOKEN_LATE, Fault.STALLED)
UNREACHABLE = Ills(hangs_up_at_once, hangs_up, Fault.UNREACHABLE)
FAULTS: dict[str, Ills] = {
    "500": status(500, Fault.SERVER_ERROR),
    "429": status(429, Fault.RATE_LIMITED, Retry_After="60"),
    "401": status(401, Fault.UNAUTHORIZED),
    "404": status(404, Fault.NO_MODEL),
    "invalid JSON": sends(b'data: {"choices": [{"delta"\n\n', Fault.BAD_ANSWER),
    "another shape": sends(chunk({"content": {"text": "hello"}}), Fault.BAD_ANSWER),
    "HTML": sends(b"data: <html>Welcome to nginx!</html>\n\n", Fault.BAD_ANSWER),
    "empty answer": replace(
        sends(DONE, Fault.EMPTY), speaking=only_says_that_it_lives, later=Fault.STALLED
    ),
    "connection refused": UNREACHABLE,
    "TLS": replace(UNREACHABLE, silent=demands_tls_at_once, speaking=demands_tls),
    "no such name": replace(UNREACHABLE, fault=Fault.NO_NAME, later=Fault.UNREACHABLE),
    "stall": STALLED,
    "bad tool call": sends(chunk(BROKEN_TOOL) + DONE, Fault.BAD_TOOL_CALL),
}


class Names:
    """The DNS, which knows the model's server as long as it works."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.work = True
        self._real = socket.getaddrinfo
        monkeypatch.setattr(socket, "getaddrinfo", self.look_up)

    def look_up(self, host: Any, *rest: Any, **options: Any) -> Any:
        if host in (NAME, NAME.encode()):
            if not self.work:
                raise socket.gaierror(-2, "Name or service not known")
            host = "127.0.0.1"
        return self._real(host, *rest, **options)

    async def fail(self) -> None:
        self.work = False


def fall_ill(endpoint: Model, name: str, place: Place, names: Names | None = None) -> None:
    """The model has the fault as soon as its script is over."""
    ills = FAULTS[name]

    async def speaking(request: web.Request) -> web.StreamResponse:
        response = await stream(request)
        await response.write(chunk(says(PREFIX)))
        await asyncio.sleep(0.05)
        await ills.speaking(response, request)
        return response

    if place is Place.SPEAKING:
        endpoint.ill = speaking
    elif name == "connection refused":
        endpoint.on_last = endpoint.shut
    elif names is not None and name == "no such name":
        endpoint.on_last = names.fail
    else:
        endpoint.ill = ills.silent


async def recover(endpoint: Model, names: Names) -> None:
    endpoint.ill = endpoint.on_last = None
    names.work = True
    if not endpoint.runner.sites:
        await endpoint.open()


async def heard(phone: Phone, occasion: Occasion) -> None:
    """The caller has heard the sentence to its end."""
    text = ENGLISH[occasion]
    await phone.until(lambda: any(turn.text.endswith(text) for turn in phone.of(AgentTurn)))


@asynccontextmanager
async def talking(
    endpoint: Model,
    limits: Limits = LONG,
    leg: PhoneLeg | None = None,
    standby: Answerer | None = None,
    voice: Synthesizer | None = None,
    **settings: Any,
) -> AsyncIterator[Phone]:
    usual = {"model": "scripted", "base_url": endpoint.url, "api_key": "key"}
    about = OpenAIAgentSettings(instructions="Be kind.", limits=limits, **usual | settings)
    other = standby.agent() if standby is not None else None
    async with (
        model_connections() as connections,
        phone_call(
            lambda call: openai_agent(about, call, connections, other), leg, synthesizer=voice
        ) as phone,
    ):
        yield phone


def limits_for(name: str, place: Place) -> Limits:
    """Short ones if nothing else ends the answer."""
    ills = FAULTS[name]
    speaking = place is Place.SPEAKING and ills.later is Fault.STALLED
    return SHORT if speaking or ills.fault is Fault.FIRST_TOKEN_LATE else LONG


async def a_failing_model(
    name: str, place: Place, limits: Limits, monkeypatch: pytest.MonkeyPatch
) -> float:
    """Returns the time in s from the caller's turn to the first packet of the sentence."""
    script = [[says("hello")]]
    if place is Place.TOOL:
        script.append([calls("send_dtmf", digits="1")])
    names = Names(monkeypatch)
    async with model(*script) as endpoint:
        fall_ill(endpoint, name, place, names)
        url = endpoint.url.replace("127.0.0.1", NAME)
        async with talking(endpoint, limits, base_url=url) as phone:
            leg = phone.leg
            await phone.until(lambda: phone.of(AgentTurn))
            await phone.press("1#")
            await phone.until(lambda: phone.of(CallerTurn))
            began, said = monotonic(), leg.said
            prefix = PREFIX if place is Place.SPEAKING else ""
            await phone.until(lambda: leg.said > said + WORD_PACKETS * len(prefix.split()))
            heard_s = monotonic() - began
            await heard(phone, Occasion.BROKEN_OFF if prefix else Occasion.TROUBLE)
            assert phone.of(AgentTurn)[1].text.startswith(prefix)
            await recover(endpoint, names)
            await phone.press("2#")
            await phone.until(lambda: phone.of(AgentTurn)[-1].text == "And now?")
    failed = phone.of(AgentFailed)
    fault = FAULTS[name].later if prefix else None
    assert {event.fault for event in failed} == {fault or FAULTS[name].fault}
    assert {event.place for event in failed} == {place}
    assert failed[-1].action == Action.SAY
    return heard_s


@pytest.mark.parametrize(
    ("name", "place"),
    [  # all of them; quickly, each fault at one place
        pytest.param(name, place, marks=() if at % 3 == number % 3 else pytest.mark.slow)
        for number, name in enumerate(FAULTS)
        for at, place in enumerate(Place)
    ],
)
async def test_the_caller_hears_a_sentence_and_the_next_turn_works(
    name: str, place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    await a_failing_model(name, place, limits_for(name, place), monkeypatch)


class Slow(Words):
    """Has no word for some time after the end of the sound, and before it none at all."""

    async def open(self, options: StreamOptions = DEFAULT_OPTIONS) -> "SlowStream":
        return SlowStream(self._sentences)


class SlowStream(WordsStream):
    def feed(self, pcm: Pcm) -> None:
        pass

    def finish(self) -> None:
        asyncio.get_running_loop().call_later(0.1, super().finish)


@pytest.mark.parametrize("words", ["are you there", "yes"])
@pytest.mark.parametrize("begun", [True, False])
async def test_who_speaks_into_the_silence_of_a_stalled_answer_is_answered(
    words: str, begun: bool, voice: Pcm
) -> None:
    limits = Limits(first_token_seconds=60, between_tokens_seconds=60)
    async with model([says("hello")]) as endpoint:
        fall_ill(endpoint, "stall", Place.SPEAKING if begun else Place.START)
        about = OpenAIAgentSettings("scripted", endpoint.url, "key", "Be kind.", limits=limits)
        recognizer = Slow(words)
        async with (
            model_connections() as connections,
            phone_call(
                lambda call: openai_agent(about, call, connections), recognizer=recognizer
            ) as phone,
        ):
            await phone.until(lambda: phone.of(AgentTurn))
            await phone.press("1#")
            await phone.until(lambda: len(endpoint.requests) == 2)
            await phone.pass_ms(4000)
            endpoint.ill = None
            phone.leg.feed(voice)
            await phone.until(lambda: phone.of(AgentTurn)[-1].text == "And now?")
    assert [turn.text for turn in phone.of(CallerTurn)] == ["[pressed 1#]", words]


@pytest.fixture(scope="module")
def voice(tmp_path_factory: pytest.TempPathFactory) -> Pcm:
    """Somebody says it, in less than the time that is an interruption by itself."""
    if shutil.which("flite") is None:
        pytest.skip("needs the flite command")
    path = tmp_path_factory.mktemp("voice") / "said.wav"
    subprocess.run(["flite", "-voice", "slt", "-t", "Are you?", "-o", str(path)], check=True)
    with wave.open(str(path)) as said:
        return np.frombuffer(said.readframes(said.getnframes()), np.int16)


@pytest.mark.slow
@pytest.mark.parametrize("place", list(Place))
@pytest.mark.parametrize("name", FAULTS)
async def test_with_the_usual_limits_the_caller_hears_it_within_eight_seconds(
    name: str, place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert await a_failing_model(name, place, Limits(), monkeypatch) < HEARD_WITHIN_S


@pytest.mark.parametrize("name", FAULTS)
async def test_the_caller_is_greeted_when_the_model_fails_at_the_start(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = Names(monkeypatch)
    async with model() as endpoint:
        fall_ill(endpoint, name, Place.START, names)
        if endpoint.on_last is not None:
            await endpoint.on_last()
        url = endpoint.url.replace("127.0.0.1", NAME)
        async with talking(endpoint, limits_for(name, Place.START), base_url=url) as phone:
            await heard(phone, Occasion.GREETING)
            await recover(endpoint, names)
            await phone.press("1#")
            await phone.until(lambda: phone.of(AgentTurn)[-1].text == "And now?")


async def test_after_three_turns_without_an_answer_the_agent_says_goodbye() -> None:
    async with model() as endpoint:
        endpoint.ill = FAULTS["401"].silent
        async with talking(endpoint) as phone:
            await heard(phone, Occasion.GREETING)
            await phone.press("1#")
            await heard(phone, Occasion.TROUBLE)
            await phone.press("2#")
            await heard(phone, Occasion.GOODBYE)
            await phone.until(phone.running.done)
    assert [event.reason for event in phone.of(CallEnded)] == [GAVE_UP]
    assert len(endpoint.requests) == 3


@pytest.mark.parametrize("refusal", ["", "busy"])
async def test_where_there_is_somebody_the_caller_is_transferred(refusal: str) -> None:
    leg = PhoneLeg()

    async def transfer() -> None:
        if refusal:
            raise LegError(refusal)

    leg.transfer_takes = transfer
    async with model() as endpoint:
        endpoint.ill = FAULTS["500"].silent
        limits = replace(LONG, failures=1)
        async with talking(endpoint, limits, leg, gives_up_to="+4930555") as phone:
            await phone.until(lambda: leg.done)
            assert leg.done == ["transfer +4930555"]
            assert leg.said >= WORD_PACKETS * len(ENGLISH[Occasion.TRANSFER].split())
            if refusal:
                await heard(phone, Occasion.GOODBYE)
                await phone.until(phone.running.done)


async def test_another_model_answers_in_its_place() -> None:
    async with model() as endpoint, model([says("hello from the other")]) as other:
        endpoint.ill = FAULTS["500"].silent
        fallback = OpenAIModel("other", other.url, "key of the other")
        async with talking(endpoint, fallback=fallback) as phone:
            await phone.until(lambda: phone.of(AgentTurn))
            assert phone.of(AgentTurn)[0].text == "hello from the other"
            await phone.press("1#")
            await phone.until(lambda: len(phone.of(AgentTurn)) == 2)
    assert [event.action for event in phone.of(AgentFailed)] == [Action.RETRY, Action.FALL_BACK]
    assert len(endpoint.requests) == 2  # and not asked again for a while
    assert [request["model"] for request in other.requests] == ["other", "other"]


async def test_a_stalled_model_is_given_half_of_the_time_when_another_stands_by() -> None:
    async with model() as endpoint, model([says("hello")]) as other:
        endpoint.ill = stands_still
        fallback = OpenAIModel("other", other.url, "key")
        async with talking(endpoint, SHORT, fallback=fallback) as phone:
            await phone.until(lambda: phone.of(AgentTurn))
    (failed,) = phone.of(AgentFailed)
    assert (failed.fault, failed.action) == (Fault.FIRST_TOKEN_LATE, Action.FALL_BACK)


async def test_an_agent_without_a_model_answers_in_its_place() -> None:
    desk = Answerer("this is the desk", "we open at nine")
    async with model() as endpoint:
        endpoint.ill = FAULTS["no such name"].silent
        async with talking(endpoint, standby=desk) as phone:
            await phone.until(lambda: phone.of(AgentTurn))
            await phone.press("1#")
            await phone.until(lambda: len(phone.of(AgentTurn)) == 2)
    assert [turn.text for turn in phone.of(AgentTurn)] == ["this is the desk", "we open at nine"]
    assert desk.turns == ["[pressed 1#]"]


async def test_tools_work_while_another_agent_stands_by() -> None:
    desk = Answerer("this is the desk")
    script = [says("hello")], [calls("send_dtmf", digits="1")]
    async with model(*script) as endpoint, talking(endpoint, standby=desk) as phone:
        await phone.until(lambda: phone.of(AgentTurn))
        await phone.press("1#")
        await phone.until(lambda: len(phone.of(AgentTurn)) == 2)
    assert phone.of(AgentTurn)[1].text == "And now?"


async def test_a_failing_tool_is_not_asked_for_for_ever() -> None:
    leg = PhoneLeg()
    leg.refuses = "the line is on hold"
    again = [[calls("send_dtmf", digits="1")] for _ in range(200)]
    async with model([says("hello")], *again) as endpoint, talking(endpoint, leg=leg) as phone:
        await phone.until(lambda: phone.of(AgentTurn))
        await phone.press("1#")
        await heard(phone, Occasion.TROUBLE)
    assert len(endpoint.requests) == 2 + LONG.tool_rounds
    assert phone.of(AgentFailed)[-1].fault == Fault.TOO_MANY_ROUNDS
    tools = [event for event in phone.of(AgentFailed) if event.fault == Fault.TOOL_FAILED]
    assert len(tools) == 1 + LONG.tool_rounds


async def test_a_tool_that_hangs_is_given_up_and_the_caller_told_to_wait() -> None:
    class Hanging(PhoneLeg):
        async def hold(self) -> None:
            await asyncio.sleep(60)

    limits = replace(LONG, first_token_seconds=3, tool_seconds=6)
    script = [says("hello")], [calls("hold_call")]
    async with model(*script) as endpoint, talking(endpoint, limits, Hanging()) as phone:
        await phone.until(lambda: phone.of(AgentTurn))
        await phone.press("1#")
        await heard(phone, Occasion.WAIT)
        await phone.until(lambda: phone.of(AgentTurn)[-1].text == "And now?")
    assert endpoint.results() == [{"error": "it took longer than 6 s"}]
    assert [event.fault for event in phone.of(AgentFailed)] == [Fault.TOOL_FAILED]


async def test_an_answer_ends_where_it_is_too_long() -> None:
    sentence = "and on it goes again. "
    limits = replace(LONG, answer_characters=100)
    answer = [says(sentence) for _ in range(500)]
    async with model(answer) as endpoint, talking(endpoint, limits) as phone:
        await phone.until(lambda: phone.of(AgentTurn))
    assert phone.of(AgentTurn)[0].text == (5 * sentence).strip()
    (failed,) = phone.of(AgentFailed)
    assert (failed.fault, failed.action) == (Fault.TOO_LONG, Action.CUT)


async def test_a_rate_limit_that_is_over_soon_is_waited_for() -> None:
    async with model() as endpoint:
        limited = status(429, Fault.RATE_LIMITED, Retry_After="1").silent
        over: list[str] = []

        async def once(request: web.Request) -> web.StreamResponse:
            endpoint.ill = None
            asyncio.get_running_loop().call_later(1, over.append, "a second")
            return await limited(request)

        endpoint.ill = once
        async with talking(endpoint) as phone:
            await phone.until(lambda: phone.of(AgentTurn))
            assert over
    assert phone.of(AgentTurn)[0].text == "And now?"


async def test_a_server_without_a_key_is_not_sent_the_one_of_the_environment(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", SECRET)
    keys = []
    async with model() as endpoint:

        async def note(request: web.Request) -> web.StreamResponse:
            keys.append(request.headers.get("Authorization"))
            return web.json_response({}, status=401)

        endpoint.ill = note
        about = OpenAIAgentSettings("scripted", endpoint.url, "", "Be kind.")
        async with (
            model_connections() as connections,
            phone_call(lambda call: openai_agent(about, call, connections)) as phone,
        ):
            await heard(phone, Occasion.GREETING)
    assert keys == [None]


# --- the table alone ---


def test_every_fault_has_a_row_at_every_place() -> None:
    for fault in Fault:
        for place in Place:
            decision = AgentFaults(Limits()).failed(fault, place, now=0.0)
            assert isinstance(decision, Decision)
            if decision.action is Action.SAY:
                assert decision.occasion is not None
    for row in TABLE:
        assert row.tries[-1] not in (Action.RETRY, Action.FALL_BACK)
        assert row.why


def test_all_tries_of_a_round_end_in_time() -> None:
    faults = AgentFaults(Limits(first_token_seconds=6), stands_by=True)
    faults.begin(100.0, tool_round=False, greeting=False)
    assert faults.first_token_by(100.0) == 103.0
    decision = faults.failed(Fault.RATE_LIMITED, Place.START, 100.5, after_s=60)
    assert decision.action is Action.FALL_BACK
    assert faults.first_token_by(100.5) == 106.0
    assert faults.failed(Fault.SERVER_ERROR, Place.START, 101.0).action is Action.SAY
    faults.begin(110.0, tool_round=False, greeting=False)
    assert faults.fell_back
    faults.begin(101.0 + FALL_BACK_S, tool_round=False, greeting=False)
    assert not faults.fell_back


def test_an_answer_makes_good_what_failed_before() -> None:
    faults = AgentFaults(Limits(failures=2))
    for _ in range(3):
        faults.begin(0.0, tool_round=False, greeting=False)
        assert faults.failed(Fault.EMPTY, Place.TOOL, 5.9).action is Action.SAY
        faults.answered()


# --- what the voice cannot say ---

CHINESE = "我们九点开门。"


async def test_an_answer_that_the_voice_cannot_say_is_a_fault() -> None:
    async with (
        model([says("hello")], [says(CHINESE)]) as endpoint,
        talking(endpoint, voice=EnglishOnly()) as phone,
    ):
        await phone.until(lambda: phone.of(AgentTurn))
        await phone.press("1#")
        await heard(phone, Occasion.TROUBLE)
        await phone.press("2#")
        await phone.until(lambda: phone.of(AgentTurn)[-1].text == "And now?")
    [failed] = phone.of(AgentFailed)
    assert (failed.fault, failed.place, failed.action) == (
        *(Fault.UNSPEAKABLE, Place.START, Action.SAY),
    )
    texts = [event.text for event in phone.of(AgentTurn)]
    assert texts == ["hello", ENGLISH[Occasion.TROUBLE], "And now?"]
    assert CHINESE not in str(endpoint.requests[-1]["messages"])


async def test_an_end_that_the_voice_cannot_say_is_an_answer_that_breaks_off() -> None:
    async with (
        model([says("hello")], [says(f"So it is. {CHINESE}")]) as endpoint,
        talking(endpoint, voice=EnglishOnly()) as phone,
    ):
        await phone.until(lambda: phone.of(AgentTurn))
        await phone.press("1#")
        await heard(phone, Occasion.BROKEN_OFF)
        await phone.press("2#")
        await phone.until(lambda: phone.of(AgentTurn)[-1].text == "And now?")
    assert [(event.fault, event.place) for event in phone.of(AgentFailed)] == [
        (Fault.UNSPEAKABLE, Place.SPEAKING)
    ]
    assert CHINESE not in str(endpoint.requests[-1]["messages"])


async def test_a_long_answer_without_sound_is_broken_off() -> None:
    async def answers_for_ever(request: web.Request) -> web.StreamResponse:
        response = await stream(request)
        while True:
            await response.write(chunk(says(f"{CHINESE} ")))
            await asyncio.sleep(0.01)

    async with model([says("hello")]) as endpoint:
        endpoint.ill = answers_for_ever
        async with talking(endpoint, voice=EnglishOnly()) as phone:
            await phone.until(lambda: phone.of(AgentTurn))
            await phone.press("1#")
            await heard(phone, Occasion.TROUBLE)
    assert [event.fault for event in phone.of(AgentFailed)] == [Fault.UNSPEAKABLE]


@pytest.mark.parametrize("kind", ["model", "standby"])
async def test_the_fallback_answers_what_the_voice_cannot_say(kind: str) -> None:
    async with model([says("hello")], [says(CHINESE)]) as endpoint, model() as other:
        about: dict[str, Any] = {"standby": Answerer("At nine.")}
        if kind == "model":
            about = {"fallback": OpenAIModel("other", other.url, "")}
        async with talking(endpoint, voice=EnglishOnly(), **about) as phone:
            await phone.until(lambda: phone.of(AgentTurn))
            await phone.press("1#")
            await phone.until(lambda: len(phone.of(AgentTurn)) == 2)
    assert phone.of(AgentTurn)[-1].text == ("And now?" if kind == "model" else "At nine.")
    assert [event.action for event in phone.of(AgentFailed)] == [Action.FALL_BACK]


async def test_an_agent_that_the_voice_can_never_say_gives_up() -> None:
    answers = [[says(CHINESE)]] * 3
    async with (
        model([says("hello")], *answers) as endpoint,
        talking(endpoint, voice=EnglishOnly()) as phone,
    ):
        await phone.until(lambda: phone.of(AgentTurn))
        for key in "12":
            before = len(phone.of(AgentTurn))
            await phone.press(f"{key}#")
            await phone.until(lambda before=before: len(phone.of(AgentTurn)) > before)
        await phone.press("3#")
        await heard(phone, Occasion.GOODBYE)
        await phone.until(lambda: phone.of(CallEnded))
    assert phone.of(CallEnded)[0].reason == GAVE_UP


async def test_a_sentence_that_the_voice_cannot_say_is_said_in_its_language() -> None:
    chinese = SENTENCES["zh"][Occasion.TROUBLE]
    about = Limits(first_token_seconds=30, between_tokens_seconds=30)
    async with model([says("hello")]) as endpoint:
        fall_ill(endpoint, "404", Place.START)
        async with talking(endpoint, about, voice=EnglishOnly()) as phone:
            await phone.until(lambda: phone.of(AgentTurn))
            phone.call.hearing.reader.language = "zh"
            assert phone.call.sentence(Occasion.TROUBLE) == chinese
            await phone.press("1#")
            await heard(phone, Occasion.TROUBLE)
    assert [event.fault for event in phone.of(AgentFailed)] == [Fault.NO_MODEL]


@pytest.mark.parametrize("nothing", ["🙂 !", "—", "**", "… \n"])
async def test_an_answer_without_anything_to_say_is_an_empty_one(nothing: str) -> None:
    """It is asked for again, and then the caller hears that it did not work."""
    async with (
        model([says("hello")], [says(nothing)], [says("Again.")]) as endpoint,
        talking(endpoint, voice=EnglishOnly()) as phone,
    ):
        await phone.until(lambda: phone.of(AgentTurn))
        await phone.press("1#")
        await phone.until(lambda: phone.of(AgentTurn)[-1].text == "Again.")
        endpoint.ill = sends(chunk(says(nothing)) + DONE, Fault.EMPTY).silent
        await phone.press("2#")
        await heard(phone, Occasion.TROUBLE)
    assert len(endpoint.requests) == 5
    failed = [(event.fault, event.place, event.action) for event in phone.of(AgentFailed)]
    assert failed == [
        (Fault.EMPTY, Place.START, action) for action in (Action.RETRY, Action.RETRY, Action.SAY)
    ]


async def test_a_face_before_a_tool_call_is_no_fault() -> None:
    face = {"content": "🙂", **calls("send_dtmf", digits="1")}
    async with (
        model([says("hello")], [face], [says("Done.")]) as endpoint,
        talking(endpoint, voice=EnglishOnly()) as phone,
    ):
        await phone.until(lambda: phone.of(AgentTurn))
        await phone.press("1#")
        await phone.until(lambda: phone.of(AgentTurn)[-1].text == "Done.")
    assert phone.of(AgentFailed) == []


async def test_other_agents_apologize_for_what_the_voice_cannot_say() -> None:
    answerer = Answerer("hello", CHINESE, "At nine.")
    async with phone_call(lambda call: answerer.agent(), synthesizer=EnglishOnly()) as phone:
        await phone.until(lambda: phone.of(AgentTurn))
        await phone.press("1#")
        await heard(phone, Occasion.TROUBLE)
        await phone.press("2#")
        await phone.until(lambda: phone.of(AgentTurn)[-1].text == "At nine.")
    assert [event.fault for event in phone.of(AgentFailed)] == [Fault.UNSPEAKABLE]
