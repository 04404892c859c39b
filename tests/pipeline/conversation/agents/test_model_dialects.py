"""What servers of language models send, each in its dialect, and what the caller hears of it."""

import asyncio
import json
import re
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any

import pytest
from aiohttp import web
from loguru import logger

from offhook.pipeline.conversation.agents import openai_agent_io
from offhook.pipeline.conversation.agents.agent_faults import Fault, Limits, Place
from offhook.pipeline.conversation.agents.model_options import ModelOptions
from offhook.pipeline.conversation.agents.prompt import BEGINNING
from offhook.pipeline.conversation.events import AgentFailed, AgentTurn, CallerTurn
from offhook.pipeline.conversation.sentences import Occasion
from tests.pipeline.conversation.agents.test_agent_faults import (
    DONE,
    ENGLISH,
    LONG,
    SECRET,
    WORD_PACKETS,
    heard,
    talking,
)
from tests.pipeline.conversation.agents.test_spoken_content import CONTENTS
from tests.pipeline.conversation.phone import (
    Model,
    Phone,
    calls,
    chunk,
    model,
    says,
    stream,
)

pytestmark = pytest.mark.usefixtures("nothing_left")

Answering = Callable[[web.StreamResponse], Awaitable[None]]


def answers_with(endpoint: Model, *answers: bytes | Answering, kind: str = "") -> None:
    """After its script the model's server answers with these bodies, and then asks "And now?".
    `kind`: the content type, of one that does not stream."""
    left = list(answers)

    async def answer(request: web.Request) -> web.StreamResponse:
        body = left.pop(0) if left else chunk(says("And now?")) + DONE
        if kind and isinstance(body, bytes):
            return web.Response(body=body, content_type=kind)
        response = await stream(request)
        if isinstance(body, bytes):
            await response.write(body)
        else:
            await body(response)
        return response

    endpoint.ill = answer


def streamed(text: str) -> bytes:
    """A content in deltas of a word each, or of a piece of a tag."""
    deltas = re.findall(r"\s*\w+[.,:]?|\S|\s+", text)
    return b"".join(chunk(says(delta)) for delta in deltas) + DONE


async def turn(phone: Phone, key: str = "1") -> str:
    """The caller has a turn; returns what the agent answered."""
    before = len(phone.of(AgentTurn))
    await phone.press(f"{key}#")
    await phone.until(lambda: len(phone.of(AgentTurn)) > before)
    text: str = phone.of(AgentTurn)[-1].text
    return text


# --- reasoning ---


@pytest.mark.parametrize(
    "content",
    [text for text, answer in CONTENTS.items() if answer == "At nine." and text[0] != "O"],
)
async def test_only_the_answer_reaches_voice_captions_and_the_model(content: str) -> None:
    async with model([says("hello")]) as endpoint:
        answers_with(endpoint, streamed(content))
        async with talking(endpoint) as phone:
            await phone.until(lambda: phone.of(AgentTurn))
            assert await turn(phone) == "At nine."
            assert phone.leg.said == WORD_PACKETS * 3
            assert await turn(phone) == "And now?"
    answers = [m["content"] for m in endpoint.requests[-1]["messages"] if m["role"] == "assistant"]
    assert answers == ["hello", "At nine."]


REASONING = "Okay, they ask when we open, so I have to look at all of our hours, which are these: "


async def test_reasoning_that_nothing_opens_is_cut_off_and_held_from_then_on() -> None:
    ends = asyncio.Event()

    async def reasons(response: web.StreamResponse) -> None:
        await response.write(chunk(says(REASONING * 20)))
        await ends.wait()
        await response.write(streamed("and so on.</think>\n\nAt nine."))

    async with model([says("hello")]) as endpoint:
        again = streamed(f"{REASONING}</think>\n\nAt ten.")
        answers_with(endpoint, reasons, again, streamed("At eleven."))
        async with talking(endpoint) as phone:
            await phone.until(lambda: phone.of(AgentTurn))
            await phone.press("1#")
            await phone.until(lambda: "Okay" in phone.call.hearing.reply.spoken)
            ends.set()
            await phone.until(lambda: phone.of(AgentTurn)[-1].text == "At nine.")
            cut = phone.of(AgentTurn)[-2]
            assert cut.interrupted
            assert len(cut.text.split()) < 20 * len(REASONING.split())
            assert await turn(phone, "2") == "At ten."
            assert await turn(phone, "3") == "At eleven."
            assert await turn(phone, "4") == "And now?"
    assert "Okay" not in str(endpoint.requests[2]["messages"])
    assert "At ten." in str(endpoint.requests[-1]["messages"])
    assert phone.of(AgentFailed) == []


NAMES = [
    *("deepseek-ai/DeepSeek-R1-Distill-Qwen-7B", "deepseek-r1:7b", "Qwen/QwQ-32B"),
    *("Qwen/Qwen3-30B-A3B-Thinking-2507", "deepseek-reasoner"),
]


@pytest.mark.parametrize("name", NAMES)
async def test_the_first_reasoning_of_a_model_whose_name_says_that_it_reasons_is_held(
    name: str,
) -> None:
    async with model() as endpoint:
        answers_with(endpoint, streamed(f"{REASONING}</think>hello"), streamed("At nine."))
        async with talking(endpoint, model=name) as phone:
            await phone.until(lambda: phone.of(AgentTurn))
            assert phone.of(AgentTurn)[0].text == "hello"
            assert phone.leg.said == WORD_PACKETS
            assert await turn(phone, "1") == "At nine."
    assert phone.of(AgentFailed) == []


@pytest.mark.parametrize("name", [*NAMES, "grok-4-fast-non-reasoning", "qwen3-8b", "r100"])
async def test_an_answer_is_held_for_no_reasoning_that_comes_apart(name: str) -> None:
    ends = asyncio.Event()

    async def reasons(response: web.StreamResponse) -> None:
        if name in NAMES:
            await response.write(chunk({"reasoning_content": "Hm."}))
        await response.write(chunk(says("At nine, and at ")))
        await ends.wait()
        await response.write(streamed("ten."))

    async with model() as endpoint:
        answers_with(endpoint, reasons)
        async with talking(endpoint, model=name) as phone:
            await phone.until(lambda: phone.leg.said)
            ends.set()
            await phone.until(lambda: phone.of(AgentTurn))
    assert phone.of(AgentTurn)[0].text == "At nine, and at ten."


@pytest.mark.parametrize("field", ["content", "reasoning_content"])
async def test_who_waits_for_a_model_that_thinks_is_asked_to_wait_and_answered(field: str) -> None:
    ends = asyncio.Event()

    async def thinks(response: web.StreamResponse) -> None:
        await response.write(chunk({field: "<think>" if field == "content" else "Hm"}))
        while not ends.is_set():
            await response.write(chunk({field: "hm, "}))
            await asyncio.sleep(0.05)
        await response.write(streamed("</think>At nine." if field == "content" else "At nine."))

    limits = Limits(first_token_seconds=3, between_tokens_seconds=30)
    wait = ENGLISH[Occasion.WAIT]
    async with model([says("hello")]) as endpoint:
        answers_with(endpoint, thinks)
        async with talking(endpoint, limits) as phone:
            await phone.until(lambda: phone.of(AgentTurn))
            said = phone.leg.said
            await phone.press("1#")
            await phone.until(lambda: phone.leg.said == said + WORD_PACKETS * len(wait.split()))
            assert len(endpoint.requests) == 2
            ends.set()
            await phone.until(lambda: phone.of(AgentTurn)[-1].text == f"{wait} At nine.")
            await turn(phone, "2")
    assert phone.of(AgentFailed) == []
    assert endpoint.requests[-1]["messages"][-2] == {"role": "assistant", "content": "At nine."}


async def test_reasoning_without_end_is_a_stall(monkeypatch: pytest.MonkeyPatch) -> None:
    async def thinks(response: web.StreamResponse) -> None:
        while True:
            await response.write(chunk({"reasoning_content": "hm, "}))
            await asyncio.sleep(0.05)

    monkeypatch.setattr(openai_agent_io, "MAX_THINKING_S", 4.0)
    async with model([says("hello")]) as endpoint:
        answers_with(endpoint, thinks)
        async with talking(endpoint, replace(LONG, first_token_seconds=3)) as phone:
            await phone.until(lambda: phone.of(AgentTurn))
            await phone.press("1#")
            await heard(phone, Occasion.TROUBLE)
            assert await turn(phone, "2") == "And now?"
    assert [event.fault for event in phone.of(AgentFailed)] == [Fault.STALLED]


# --- calls of tools ---


def tool(index: Any = None, call_id: Any = None, name: Any = None, arguments: Any = None) -> Any:
    """An element of `tool_calls`; what is None is not there."""
    function = {"name": name, "arguments": arguments}
    whole = {"index": index, "id": call_id, "type": "function"}
    whole["function"] = {key: value for key, value in function.items() if value is not None}
    return {key: value for key, value in whole.items() if value is not None}


PRESS_1, PRESS_2 = '{"digits": "1"}', '{"digits": "2"}'
DTMF = "send_dtmf"
CALLS: dict[str, list[list[Any]]] = {
    "as OpenAI": [
        [tool(0, "a", DTMF, "")],
        [tool(0, arguments='{"digits"')],
        [tool(0, arguments=': "1"}')],
    ],
    "no id": [[tool(0, None, DTMF, PRESS_1)]],
    "an empty id": [[tool(0, "", DTMF, PRESS_1)]],
    "the id before the name": [[tool(0, "a")], [tool(0, None, DTMF, PRESS_1)]],
    "the id after the name": [[tool(0, None, DTMF)], [tool(0, "a", None, PRESS_1)]],
    "begins with index 1": [[tool(1, "a", DTMF, "")], [tool(1, arguments=PRESS_1)]],
    "no index": [[tool(None, "a", DTMF, '{"digits":')], [tool(arguments=' "1"}')]],
    "the name with each delta": [
        [tool(0, "a", DTMF, '{"digits":')],
        [tool(0, "a", DTMF, ' "1"}')],
    ],
    "arguments as an object": [[tool(0, "a", DTMF, {"digits": "1"})]],
    "the name in pieces": [[tool(0, "a", "send_")], [tool(0, None, "dtmf", PRESS_1)]],
    "the arguments again at the end": [
        [tool(0, "a", DTMF, PRESS_1)],
        [tool(0, "a", DTMF, PRESS_1)],
    ],
}
TWO_CALLS: dict[str, list[list[Any]]] = {
    "in one delta": [[tool(0, "a", DTMF, PRESS_1), tool(1, "b", DTMF, PRESS_2)]],
    "in one delta, both with index 0": [[tool(0, "a", DTMF, PRESS_1), tool(0, "b", DTMF, PRESS_2)]],
    "in one delta, without index or id": [
        [tool(name=DTMF, arguments=PRESS_1), tool(name=DTMF, arguments=PRESS_2)]
    ],
    "one after the other": [[tool(0, "a", DTMF, PRESS_1)], [tool(1, "b", DTMF, PRESS_2)]],
    "one after the other, both with index 0": [
        [tool(0, "a", DTMF, PRESS_1)],
        [tool(0, "b", DTMF, PRESS_2)],
    ],
    "interleaved": [
        [tool(0, "a", DTMF, '{"digits":')],
        [tool(1, "b", DTMF, '{"digits":')],
        [tool(0, arguments=' "1"}')],
        [tool(1, arguments=' "2"}')],
    ],
}


@pytest.mark.parametrize("dialect", [*CALLS, *TWO_CALLS])
async def test_every_tool_that_a_model_calls_is_called(dialect: str) -> None:
    expected = ["1"] if dialect in CALLS else ["1", "2"]
    deltas = (CALLS | TWO_CALLS)[dialect]
    body = b"".join(chunk({"content": None, "tool_calls": delta}) for delta in deltas) + DONE
    async with model([says("hello")]) as endpoint:
        answers_with(endpoint, chunk({"role": "assistant", "content": "So. "}) + body)
        async with talking(endpoint) as phone:
            await phone.until(lambda: phone.of(AgentTurn))
            await phone.press("9#")
            await phone.until(lambda: phone.of(AgentTurn)[-1].text == "And now?")
            assert sorted(phone.leg.pressed) == expected
    assert [event.text for event in phone.of(AgentTurn)] == ["hello", "So.", "And now?"]
    assert phone.of(AgentFailed) == []
    messages = endpoint.requests[-1]["messages"]
    ids = [call["id"] for m in messages for call in m.get("tool_calls", ())]
    assert len({*ids}) == len(expected)
    assert all(ids)
    assert sorted(m["tool_call_id"] for m in messages if m["role"] == "tool") == sorted(ids)


async def test_a_function_that_exists_is_called_beside_one_that_does_not() -> None:
    both = [*calls("sing")["tool_calls"], tool(1, "b", DTMF, PRESS_1)]
    async with model([says("hello")]) as endpoint:
        answers_with(endpoint, chunk({"tool_calls": both}) + DONE)
        async with talking(endpoint) as phone:
            await phone.until(lambda: phone.of(AgentTurn))
            assert await turn(phone, "9") == "And now?"
            assert phone.leg.pressed == ["1"]


async def test_words_in_the_same_delta_as_a_call_are_spoken() -> None:
    async with model([says("hello")]) as endpoint:
        answers_with(endpoint, chunk(says("I press one.") | calls(DTMF, digits="1")) + DONE)
        async with talking(endpoint) as phone:
            await phone.until(lambda: phone.of(AgentTurn))
            assert await turn(phone, "9") == "I press one."
            await phone.until(lambda: phone.of(AgentTurn)[-1].text == "And now?")
            assert phone.leg.pressed == ["1"]


NO_CALL = {
    "without a name": chunk({"tool_calls": [tool(0, "a", None, "{}")]}),
    "as text": chunk(says('<tool_call>{"name": "send_dtmf"}</tool_call>')),
    "announced": b'data: {"choices": [{"delta": {}, "finish_reason": "tool_calls"}]}\n\n',
}


@pytest.mark.parametrize("kind", NO_CALL)
@pytest.mark.parametrize("before", ["", "Let me see."])
async def test_a_call_that_cannot_be_made_is_a_fault(kind: str, before: str) -> None:
    body = (chunk(says(before)) if before else b"") + NO_CALL[kind] + DONE
    async with model([says("hello")]) as endpoint:
        answers_with(endpoint, body, body)
        async with talking(endpoint) as phone:
            await phone.until(lambda: phone.of(AgentTurn))
            await phone.press("9#")
            await heard(phone, Occasion.BROKEN_OFF if before else Occasion.TROUBLE)
    place = Place.SPEAKING if before else Place.START
    assert {(event.fault, event.place) for event in phone.of(AgentFailed)} == {(Fault.EMPTY, place)}


async def test_a_function_that_does_not_exist_is_answered_to_the_model_once() -> None:
    unknown = chunk(calls("sing", song="Hey")) + DONE
    async with model([says("hello")]) as endpoint:
        answers_with(endpoint, unknown, streamed("I cannot sing."), unknown, unknown)
        async with talking(endpoint) as phone:
            await phone.until(lambda: phone.of(AgentTurn))
            assert await turn(phone) == "I cannot sing."
            *_, call, result = endpoint.requests[-1]["messages"]
            assert call["tool_calls"][0]["function"]["name"] == "sing"
            assert result["tool_call_id"] == call["tool_calls"][0]["id"]
            assert json.loads(result["content"])["error"] == "there is no such function"
            before = len(endpoint.requests)
            await phone.press("2#")
            await phone.until(lambda: phone.of(AgentTurn)[-1].text == "And now?")
    assert [event.fault for event in phone.of(AgentFailed)] == [Fault.EMPTY]
    assert len(endpoint.requests) == before + 3


# --- what the model is sent ---


def assert_strict(messages: list[dict[str, Any]]) -> None:
    """As the templates of Mistral and Gemma want it."""
    roles = [m["role"] for m in messages if m["role"] != "tool" and not m.get("tool_calls")]
    assert roles[0] == "system"
    assert roles[1::2] == ["user"] * len(roles[1::2])
    assert roles[2::2] == ["assistant"] * len(roles[2::2])


async def test_a_strict_template_is_content_from_the_greeting_on() -> None:
    async def strict(request: web.Request) -> web.StreamResponse:
        try:
            assert_strict(endpoint.requests[-1]["messages"])
        except AssertionError:
            return web.json_response({"error": {"message": "roles must alternate"}}, status=400)
        return await answer(request)

    async with model() as endpoint:
        answers_with(endpoint, streamed("hello"), DONE, DONE, streamed("At nine."))
        assert endpoint.ill is not None
        answer, endpoint.ill = endpoint.ill, strict
        async with talking(endpoint) as phone:
            await phone.until(lambda: phone.of(AgentTurn))
            assert endpoint.requests[0]["messages"][1:] == [{"role": "user", "content": BEGINNING}]
            assert await turn(phone, "1") == ENGLISH[Occasion.TROUBLE]
            assert await turn(phone, "2") == "At nine."
            assert await turn(phone, "3") == "And now?"
    assert {event.fault for event in phone.of(AgentFailed)} == {Fault.EMPTY}
    assert endpoint.requests[-1]["messages"][1:] == [
        {"role": "user", "content": BEGINNING},
        {"role": "assistant", "content": "hello"},
        {"role": "user", "content": "[pressed 1#] [pressed 2#]"},
        {"role": "assistant", "content": "At nine."},
        {"role": "user", "content": "[pressed 3#]"},
    ]


# --- what the model's server takes ---


def error(status: int, message: str, **more: Any) -> tuple[int, Any]:
    return status, {"error": {"message": message, **more}}


def extra_field(name: str) -> tuple[int, Any]:
    """As FastAPI says it, Mistral's server among others."""
    return 422, {"detail": [{"type": "extra_forbidden", "loc": ["body", name], "msg": "Extra"}]}


OPTIONS = ModelOptions(
    *(0.3, 0.9, 200, "low"), extra_body={"chat_template_kwargs": {"enable_thinking": False}}
)
SENT: dict[str, Any] = {
    "temperature": 0.3,
    "top_p": 0.9,
    "max_tokens": 200,
    "reasoning_effort": "low",
    "stream_options": {"include_usage": True},
    "chat_template_kwargs": {"enable_thinking": False},
}
REFUSALS: dict[str, tuple[str, tuple[int, Any], dict[str, Any]]] = {
    "stream_options, Groq": (
        "stream_options",
        error(400, "property 'stream_options' is unsupported", type="invalid_request_error"),
        {},
    ),
    "stream_options, FastAPI": ("stream_options", extra_field("stream_options"), {}),
    "stream_options, plain text": ("stream_options", (400, "unknown field stream_options"), {}),
    "max_tokens, OpenAI": (
        "max_tokens",
        error(
            400,
            "Unsupported parameter: 'max_tokens' is not supported with this model. Use "
            "'max_completion_tokens' instead.",
            param="max_tokens",
            code="unsupported_parameter",
        ),
        {"max_completion_tokens": 200},
    ),
    "max_tokens, too many": (
        "max_tokens",
        error(400, "max_tokens must be less than or equal to 100"),
        {},
    ),
    "temperature, OpenAI": (
        "temperature",
        error(
            400,
            "Unsupported value: 'temperature' does not support 0.3 with this model. Only the "
            "default (1) value is supported.",
            param="temperature",
        ),
        {},
    ),
    "top_p, Anthropic": (
        "top_p",
        error(
            400, "`temperature` and `top_p` cannot both be specified for this model.", param="top_p"
        ),
        {},
    ),
    "reasoning_effort, xAI": (
        "reasoning_effort",
        (400, {"code": "400", "error": "Model m does not support parameter reasoning_effort."}),
        {},
    ),
    "extra_body": ("chat_template_kwargs", extra_field("chat_template_kwargs"), {}),
    "tools, Ollama": ("tools", error(400, "library/gemma does not support tools"), {}),
    "tools, vLLM": (
        "tools",
        error(
            400,
            '"auto" tool choice requires --enable-auto-tool-choice and --tool-call-parser',
        ),
        {},
    ),
    "tools, llama.cpp": ("tools", error(500, "tools param requires --jinja flag"), {}),
}


@pytest.mark.parametrize("dialect", REFUSALS)
async def test_a_parameter_that_the_server_refuses_is_not_sent_again(dialect: str) -> None:
    name, (status, body), instead = REFUSALS[dialect]

    def refuse(asked: dict[str, Any]) -> web.Response | None:
        if name not in asked:
            return None
        text = body if isinstance(body, str) else json.dumps(body)
        return web.Response(status=status, text=text)

    async with model() as endpoint:
        endpoint.refuses = refuse
        for _ in range(2):
            async with talking(endpoint, options=OPTIONS) as phone:
                await phone.until(lambda: phone.of(AgentTurn))
                assert await turn(phone) == "And now?"
            assert phone.of(AgentFailed) == []
    assert len(endpoint.refused) == 1
    assert SENT.items() <= endpoint.refused[0].items()
    assert "tools" in endpoint.refused[0]
    expected = {n: v for n, v in SENT.items() if n != name} | instead
    for asked in endpoint.requests:
        assert expected.items() <= asked.items()
        assert name not in asked


async def test_each_parameter_that_a_reasoning_model_refuses_is_left_out() -> None:
    refused = ("max_tokens", "max_completion_tokens", "temperature", "top_p", "stream_options")

    def refuse(asked: dict[str, Any]) -> web.Response | None:
        for name in refused:
            if name in asked:
                words = f"{name} is unknown. Use max_completion_tokens."
                return web.json_response({"error": words}, status=400)
        return None

    async with model() as endpoint:
        endpoint.refuses = refuse
        async with talking(endpoint, options=OPTIONS) as phone:
            await phone.until(lambda: phone.of(AgentTurn))
            assert await turn(phone) == "And now?"
    assert len(endpoint.refused) == len(refused)
    for asked in endpoint.requests:
        assert not {*refused} & {*asked}
        assert asked["reasoning_effort"] == "low"


@pytest.mark.parametrize(
    "words",
    [
        "conversation roles must alternate",
        "Please reduce max_tokens: the maximum context length is 4096 tokens",
        "invalid schema of the function send_dtmf in tools[0]",
    ],
)
async def test_an_error_about_something_else_is_a_refusal(words: str) -> None:
    async with model() as endpoint:
        endpoint.refuses = lambda asked: web.json_response({"error": words}, status=400)
        async with talking(endpoint, options=OPTIONS) as phone:
            await heard(phone, Occasion.GREETING)
    assert [event.fault for event in phone.of(AgentFailed)] == [Fault.REFUSED]
    assert len(endpoint.refused) == 1


async def test_a_model_is_addressed_as_azure_wants_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    lines: list[str] = []
    handler = logger.add(lines.append, format="{message}")
    monkeypatch.setenv("OPENAI_API_KEY", SECRET)
    key, signature = "0123456789abcdef", "fedcba9876543210"
    options = ModelOptions(
        headers={"api-key": key}, query={"api-version": "2024-10-21", "sig": signature}
    )

    def refuse(asked: dict[str, Any]) -> web.Response:
        words = f"Access denied: {key}, {signature}, 2024-10-21"
        return web.json_response({"error": {"message": words}}, status=401)

    async with model() as endpoint:
        url = endpoint.url.replace("/v1", "/openai/deployments/desk")
        async with talking(endpoint, api_key="", base_url=url, options=options) as phone:
            await phone.until(lambda: phone.of(AgentTurn))
            endpoint.refuses = refuse
            await phone.press("1#")
            await heard(phone, Occasion.TROUBLE)
    logger.remove(handler)
    for headers, asked in zip(endpoint.headers, endpoint.urls, strict=True):
        assert asked.path == "/openai/deployments/desk/chat/completions"
        assert dict(asked.query) == dict(options.query)
        assert headers["api-key"] == key
        assert "Authorization" not in headers
    log = "".join(lines)
    assert "Access denied" in log
    assert "2024-10-21" in log
    assert key not in log
    assert signature not in log


THOUGHTS = {
    "DeepSeek": ({"reasoning_content": "They want a key."}, {}),
    "vLLM": ({"reasoning": "They want a key."}, {}),
    "Gemini": ({}, {"extra_content": {"google": {"thought_signature": "c2lnbmVk"}}}),
}


@pytest.mark.parametrize("dialect", THOUGHTS)
async def test_what_came_with_a_tool_call_is_returned_with_it(dialect: str) -> None:
    thought, extra = THOUGHTS[dialect]
    called = chunk({"tool_calls": [tool(0, "a", DTMF, PRESS_1) | extra]}) + DONE

    def strict(asked: dict[str, Any]) -> web.Response | None:
        for message in asked["messages"]:
            for call in message.get("tool_calls", ()):
                if not (thought.items() <= message.items() and extra.items() <= call.items()):
                    words = "the reasoning of the call must be passed back"
                    return web.json_response({"error": {"message": words}}, status=400)
        return None

    async with model([says("hello")]) as endpoint:
        endpoint.refuses = strict
        pieces = [chunk({n: t[:6]}) + chunk({n: t[6:]}) for n, t in thought.items()]
        answers_with(endpoint, b"".join(pieces) + called)
        async with talking(endpoint) as phone:
            await phone.until(lambda: phone.of(AgentTurn))
            assert await turn(phone, "9") == "And now?"
            assert await turn(phone, "8") == "And now?"
            assert phone.leg.pressed == ["1"]
    assert phone.of(AgentFailed) == []
    assert endpoint.refused == []


async def test_reasoning_that_the_server_does_not_want_back_is_not_returned() -> None:
    thought = chunk({"reasoning_content": "They want a key."})

    def refuse(asked: dict[str, Any]) -> web.Response | None:
        if any("reasoning_content" in message for message in asked["messages"]):
            return web.json_response({"error": "reasoning_content is not allowed"}, status=400)
        return None

    async with model([says("hello")]) as endpoint:
        endpoint.refuses = refuse
        answers_with(endpoint, thought + chunk(calls(DTMF, digits="1")) + DONE)
        async with talking(endpoint) as phone:
            await phone.until(lambda: phone.of(AgentTurn))
            assert await turn(phone, "9") == "And now?"
            assert await turn(phone, "8") == "And now?"
    assert phone.of(AgentFailed) == []
    assert len(endpoint.refused) == 1


# --- how answers end, and other shapes of them ---


def ended(reason: str) -> bytes:
    return b'data: {"choices": [{"index": 0, "delta": {}, "finish_reason": "%s"}]}\n\n' % (
        reason.encode()
    )


@pytest.mark.parametrize(
    ("text", "reason", "occasion"),
    [
        ("We open at", "length", Occasion.CUT_SHORT),
        ("We open at", "content_filter", Occasion.FILTERED),
        ("We open.", "content_filter", Occasion.FILTERED),
        ("We open.", "length", None),
        ("", "content_filter", Occasion.FILTERED),
        ("We open at", "stop", None),
    ],
)
async def test_an_answer_that_the_server_cuts_off_ends_with_a_sentence(
    text: str, reason: str, occasion: Occasion | None
) -> None:
    expected = text
    if occasion is not None:
        end = "" if text.endswith(".") or not text else "."
        expected = f"{text}{end} {ENGLISH[occasion]}".strip()
    async with model([says("hello")]) as endpoint:
        answers_with(endpoint, chunk(says(text)) + ended(reason) + DONE)
        async with talking(endpoint) as phone:
            await phone.until(lambda: phone.of(AgentTurn))
            assert await turn(phone) == expected
            await turn(phone, "2")
    assert phone.of(AgentFailed) == []
    if text:
        said = endpoint.requests[-1]["messages"][-2]["content"]
        assert said.rstrip(".") == text.rstrip(".")


def event(**choice: Any) -> bytes:
    about = {"id": "1", "object": "chat.completion.chunk", "created": 1, "model": "m"}
    return b"data: " + json.dumps({**about, "choices": [choice]}).encode() + b"\n\n"


def whole(**message: Any) -> bytes:
    choices = [{"index": 0, "message": {"role": "assistant", **message}, "finish_reason": "stop"}]
    return json.dumps({"id": "1", "model": "m", "choices": choices}, indent=1).encode()


NINE = [{"type": "text", "text": "At "}, {"type": "text", "text": "nine."}]
THOUGHT = {"type": "thinking", "thinking": [{"type": "text", "text": "Hm."}]}
SHAPES: dict[str, tuple[bytes, str]] = {
    "a refusal": (event(index=0, delta={"refusal": "At nine."}) + DONE, ""),
    "choices from index 1": (event(index=1, delta=says("At nine.")) + DONE, ""),
    "a choice without an index": (event(delta=says("At nine.")) + DONE, ""),
    "several choices": (
        b"".join(event(index=i, delta=says(text)) for text in ("At ", "nine.") for i in (0, 1))
        + DONE,
        "",
    ),
    "message instead of delta": (event(index=0, message=says("At nine.")) + DONE, ""),
    "a list of parts": (event(index=0, delta={"content": NINE}) + DONE, ""),
    "a list with reasoning": (event(index=0, delta={"content": [THOUGHT, *NINE]}) + DONE, ""),
    "a byte order mark": (b"\xef\xbb\xbf" + streamed("At nine."), ""),
    "lines that end with CRLF": (streamed("At nine.").replace(b"\n", b"\r\n"), ""),
    "no [DONE]": (chunk(says("At nine.")), ""),
    "no blank line at the end": (chunk(says("At nine.")).rstrip(), ""),
    "a JSON body": (whole(content="At nine."), "application/json"),
    "a JSON body of parts": (whole(content=NINE), "application/json"),
    "a JSON body as an event stream": (whole(content="At nine."), "text/event-stream"),
    "a JSON body with a byte order mark": (
        b"\xef\xbb\xbf" + whole(content="<think>Hm.</think>At nine."),
        "application/json",
    ),
    "Azure's first event": (
        b'data: {"choices": [], "prompt_filter_results": []}\n\n' + streamed("At nine."),
        "",
    ),
    "usage at the end": (
        chunk(says("At nine."))
        + b'data: {"choices": [], "usage": {"prompt_tokens": 9, "completion_tokens": "3"}}\n\n'
        + DONE,
        "",
    ),
}


@pytest.mark.parametrize("shape", SHAPES)
async def test_an_answer_is_spoken_in_whatever_shape_it_comes(shape: str) -> None:
    body, kind = SHAPES[shape]
    async with model([says("hello")]) as endpoint:
        answers_with(endpoint, body, kind=kind)
        async with talking(endpoint, LONG) as phone:
            await phone.until(lambda: phone.of(AgentTurn))
            assert await turn(phone) == "At nine."
            assert await turn(phone, "2") == "And now?"
    assert phone.of(AgentFailed) == []
    assert len(phone.of(CallerTurn)) == 2


async def test_a_tool_of_a_json_body_is_called() -> None:
    body = whole(content="So.", tool_calls=[tool(None, "a", DTMF, {"digits": "1"})])
    async with model([says("hello")]) as endpoint:
        answers_with(endpoint, body, kind="application/json")
        async with talking(endpoint) as phone:
            await phone.until(lambda: phone.of(AgentTurn))
            assert await turn(phone, "9") == "So."
            await phone.until(lambda: phone.of(AgentTurn)[-1].text == "And now?")
            assert phone.leg.pressed == ["1"]
