"""Tools of an agent that are HTTP requests: over a call, with a real server that may misbehave."""

import asyncio
import gzip
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any

import pytest
from aiohttp import web

from offhook.media.leg import CallInfo
from offhook.pipeline.conversation.agents.agent_faults import Fault
from offhook.pipeline.conversation.events import AgentFailed
from offhook.web.config.agents import Agent
from offhook.web.config.tools import HttpTool
from offhook.web.edge.edge_io import Edge
from offhook.web.tools.http_tool_io import MAX_RESPONSE_BYTES
from offhook.web.tools.tool_result import MAX_RESULT_CHARS
from tests.pipeline.conversation.phone import calls, model, says
from tests.support.waiting import until
from tests.web.edge.agents.test_agent import Page, called

pytestmark = pytest.mark.asyncio(loop_scope="module")
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
SECRET = "Bearer not-to-be-seen"


@asynccontextmanager
async def shop(handler: Handler) -> AsyncIterator[str]:
    """A server that responds to every path so; yields its URL."""
    application = web.Application()
    application.router.add_route("*", "/{path:.*}", handler)
    runner = web.AppRunner(application, shutdown_timeout=0.1)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        yield f"http://127.0.0.1:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()


async def conversation(
    edge: Edge, handler: Handler, page: Page | None = None, **tool: Any
) -> tuple[Any, list[Any]]:
    """A call in which the model calls the tool once and then answers. Returns what the model got,
    and the faults."""
    page = page or Page()
    faults: list[Any] = []
    arguments = {"number": "A/7 ü", "count": 2}
    async with shop(handler) as url, model() as endpoint:
        endpoint.answers = [[calls("order_status", **arguments)], [says("It comes tomorrow.")]]
        about = {
            "name": "order_status",
            "description": "Looks up an order.",
            "parameters": {
                "number": "the order's number",
                "count": {"type": "integer", "description": "how many", "optional": True},
            },
            "url": f"{url}/orders/{{number}}?by={{{{caller}}}}",
            **tool,
        }
        agent = Agent(
            kind="openai",
            base_url=endpoint.url,
            model="scripted",
            greeting="Hello.",
            tools=(HttpTool.model_validate(about),),
        )
        page.info = CallInfo(edge="webrtc", caller="+49 301&x")
        async with called(edge, {"desk": agent}, page):
            await until(lambda: page.words() == "Hello.")
            edge.conversations[page.call_id].listeners.append(
                lambda event: faults.append(event) if isinstance(event, AgentFailed) else None
            )
            page.hear(type="send-text", id="1", data={"content": "Where is my order?"})
            await until(lambda: page.words().endswith("It comes tomorrow."))
        (result,) = endpoint.results()
        told = next(
            t for t in endpoint.requests[0]["tools"] if t["function"]["name"] == about["name"]
        )
    assert told["function"]["parameters"] == {
        "type": "object",
        "properties": {
            "number": {"type": "string", "description": "the order's number"},
            "count": {"type": "integer", "description": "how many"},
        },
        "required": ["number"],
    }
    return result, faults


def responds(**options: Any) -> Handler:
    async def handler(request: web.Request) -> web.StreamResponse:
        return web.Response(**options)

    return handler


JSON = "application/json"


async def test_a_model_calls_a_tool_and_tells_the_caller_its_result(
    edge: Edge, capsys: pytest.CaptureFixture[str]
) -> None:
    asked: list[Any] = []

    async def answer(request: web.Request) -> web.Response:
        asked.append((request.method, request.raw_path, await request.text(), request.headers))
        return web.json_response({"status": "sent", "eta": "tomorrow", "cost": 12})

    result, faults = await conversation(
        *(edge, answer),
        headers={"Authorization": SECRET},
        secret="whsec_" + "A" * 32,
        fields=["status", "eta"],
    )
    assert result == {"status": "sent", "eta": "tomorrow"}
    ((method, path, body, headers),) = asked
    assert (method, path) == ("POST", "/orders/A%2F7%20%C3%BC?by=%2B49%20301%26x")
    assert json.loads(body) == {"count": 2}
    assert headers["Authorization"] == SECRET
    assert headers["webhook-signature"].startswith("v1,")
    assert faults == []
    assert SECRET not in capsys.readouterr().err


async def test_get_puts_the_other_arguments_into_the_query(edge: Edge) -> None:
    paths: list[str] = []

    async def answer(request: web.Request) -> web.Response:
        paths.append(request.raw_path)
        return web.Response(text="sent yesterday")

    result, _ = await conversation(edge, answer, method="GET", fields=["eta"])
    assert paths == ["/orders/A%2F7%20%C3%BC?by=%2B49+301%26x&count=2"]
    assert result == {"text": "sent yesterday"}


@pytest.mark.parametrize(
    ("text", "result"),
    [
        ("[]", {"result": []}),
        ("{}", {"result": {}}),
        ("null", {"result": None}),
        ("0", {"result": 0}),
        ('[{"id": 1}]', {"result": [{"id": 1}]}),
        (" ", {"status": "done"}),
    ],
)
async def test_after_any_result_the_model_answers(edge: Edge, text: str, result: Any) -> None:
    got, faults = await conversation(edge, responds(text=text, content_type=JSON))
    assert (got, faults) == (result, [])


async def test_what_is_not_known_of_a_call_is_empty_in_the_query(edge: Edge) -> None:
    paths: list[str] = []

    async def answer(request: web.Request) -> web.Response:
        paths.append(request.raw_path)
        return web.json_response({"status": "sent"})

    page = Page()
    async with shop(answer) as url:
        address = f"{url}/orders/{{number}}?name={{{{caller_name}}}}"
        _, faults = await conversation(edge, hangs, page, url=address)
    assert paths == ["/orders/A%2F7%20%C3%BC?name="]
    assert faults == []


async def test_whoever_waits_for_a_tool_hears_so(edge: Edge) -> None:
    page = Page()

    async def answer(request: web.Request) -> web.Response:
        await until(lambda: "please." in page.words())
        return web.json_response([])

    await conversation(edge, answer, page, say="One {{trunk}}moment, please.", say_after=0.0)
    assert page.words() == "Hello. One moment, please. It comes tomorrow."


async def hangs(request: web.Request) -> web.StreamResponse:
    await asyncio.sleep(3600)
    raise AssertionError


async def breaks(request: web.Request) -> web.StreamResponse:
    assert request.transport is not None
    request.transport.abort()
    return web.Response()


async def drips(request: web.Request) -> web.StreamResponse:
    response = web.StreamResponse(headers={"Content-Type": "application/json"})
    await response.prepare(request)
    while True:
        await response.write(b" ")
        await asyncio.sleep(0.05)


async def endless(request: web.Request) -> web.StreamResponse:
    response = web.StreamResponse(headers={"Content-Type": "application/json"})
    await response.prepare(request)
    while True:
        await response.write(b"[" * 65_536)


TOO_LONG = json.dumps("x" * MAX_RESULT_CHARS)
BOMB = gzip.compress(b" " * 10_000_000)


@pytest.mark.parametrize(
    ("handler", "says"),
    [
        (hangs, "no response within 0.5 s"),
        (drips, "no response within 0.5 s"),
        (endless, f"the response is over {MAX_RESPONSE_BYTES // 1024} kB"),
        (responds(status=500, text="<b>x</b>", content_type="text/html"), "HTTP 500"),
        (responds(status=404, text="no\nsuch order"), "HTTP 404: no such order"),
        (responds(status=302, headers={"Location": "http://127.0.0.1:1/"}), "HTTP 302"),
        (
            responds(text="<b>x</b>", content_type="text/html"),
            "the response is text/html, not JSON",
        ),
        (responds(text='{"a"', content_type=JSON), "the response is no JSON"),
        (responds(text="[" * 100_000, content_type=JSON), "the response is no JSON"),
        (responds(text=TOO_LONG, content_type=JSON), f"the result has over {MAX_RESULT_CHARS}"),
        (
            responds(body=BOMB, headers={"Content-Encoding": "gzip", "Content-Type": JSON}),
            "the response is compressed, which was not asked for",
        ),
        (responds(text='{"a": 1}', content_type=JSON), "the result has none of the fields eta"),
        (breaks, "its server broke the connection off"),
    ],
)
async def test_what_fails_is_told_to_the_model_and_the_call_goes_on(
    edge: Edge, handler: Handler, says: str
) -> None:
    result, (fault,) = await conversation(edge, handler, seconds=0.5, fields=["eta"])
    assert result["error"].startswith(says)
    assert fault.fault is Fault.TOOL_FAILED


async def test_a_server_that_is_not_there_is_told_to_the_model(edge: Edge) -> None:
    url = "http://127.0.0.1:1/orders/{number}"
    result, (fault,) = await conversation(edge, hangs, url=url)
    assert result == {"error": "its server cannot be reached"}
    assert "127.0.0.1:1" in fault.cause


async def asked_twice(
    edge: Edge, second: dict[str, Any], statuses: Sequence[int] = (200, 200), **tool: Any
) -> tuple[list[Any], list[Any], str]:
    """A call in which the model calls the tool in two turns, and its server responds with these
    statuses. Returns what the model got each time, the requests, and what the caller heard."""
    asked: list[Any] = []

    async def answer(request: web.Request) -> web.Response:
        asked.append(await request.json())
        return web.json_response({"status": "booked"}, status=statuses[len(asked) - 1])

    first = {"day": "Monday"}
    page = Page()
    async with shop(answer) as url, model() as endpoint:
        endpoint.answers = [
            *([calls("book", **first)], [says("Monday, is that right?")]),
            *([calls("book", **second)], [says("It is booked.")]),
        ]
        about = {
            "name": "book",
            "description": "Books a day.",
            "parameters": {"day": "which"},
            "url": url,
            **tool,
        }
        agent = Agent(
            kind="openai",
            base_url=endpoint.url,
            model="scripted",
            greeting="Hello.",
            tools=(HttpTool.model_validate(about),),
        )
        async with called(edge, {"desk": agent}, page):
            await until(lambda: page.words() == "Hello.")
            for number, (text, heard) in enumerate(
                (("On Monday.", "right?"), ("Yes.", "It is booked."))
            ):
                page.hear(type="send-text", id=str(number), data={"content": text})
                await until(lambda heard=heard: page.words().endswith(heard))
        return endpoint.results(), asked, page.words()


async def test_a_tool_that_needs_agreement_runs_when_the_caller_has_given_it(edge: Edge) -> None:
    results, asked, _ = await asked_twice(edge, {"day": "Monday"}, confirm=True)
    assert "ask whether they are right" in results[0]["status"]
    assert (results[1], asked) == ({"status": "booked"}, [{"day": "Monday"}])


async def test_other_arguments_need_another_agreement(edge: Edge) -> None:
    results, asked, _ = await asked_twice(edge, {"day": "Tuesday"}, confirm=True)
    assert all("ask whether they are right" in result["status"] for result in results)
    assert asked == []


async def test_what_is_done_once_is_not_done_again(edge: Edge) -> None:
    results, asked, _ = await asked_twice(edge, {"day": "Tuesday"}, once=True)
    assert asked == [{"day": "Monday"}]
    assert results[1]["error"].startswith("this was done already")
    assert results[1]["result"] == {"status": "booked"}


async def test_what_is_done_once_is_tried_again_if_it_has_failed(edge: Edge) -> None:
    results, asked, _ = await asked_twice(edge, {"day": "Tuesday"}, (500, 200), once=True)
    assert asked == [{"day": "Monday"}, {"day": "Tuesday"}]
    assert results[0]["error"].startswith("HTTP 500")
    assert results[1] == {"status": "booked"}


async def test_a_model_cannot_agree_in_the_callers_place(edge: Edge) -> None:
    page, asked = Page(), []

    async def answer(request: web.Request) -> web.Response:
        asked.append(1)
        return web.json_response({"status": "booked"})

    async with shop(answer) as url, model() as endpoint:
        endpoint.answers = [[calls("book")], [calls("book")], [says("Is that right?")]]
        about = {"name": "book", "description": "Books.", "url": url, "confirm": True}
        agent = Agent(
            kind="openai",
            base_url=endpoint.url,
            model="scripted",
            greeting="Hello.",
            tools=(HttpTool.model_validate(about),),
        )
        async with called(edge, {"desk": agent}, page):
            await until(lambda: page.words() == "Hello.")
            page.hear(type="send-text", id="1", data={"content": "Book it."})
            await until(lambda: page.words().endswith("Is that right?"))
        results = endpoint.results()
    assert len(results) == 2
    assert all("ask whether they are right" in result["status"] for result in results)
    assert asked == []


async def test_what_is_said_when_a_tool_fails_is_heard_without_the_model(edge: Edge) -> None:
    page, faults = Page(), []
    async with shop(responds(status=500)) as url, model() as endpoint:
        endpoint.answers = [[calls("book")], [says("Anything else?")]]
        about = {"name": "book", "description": "Books.", "url": url}
        tool = HttpTool.model_validate({**about, "on_failure": "Our calendar is down, {{caller}}."})
        agent = Agent(
            kind="openai",
            base_url=endpoint.url,
            model="scripted",
            greeting="Hello.",
            tools=(tool,),
        )
        page.info = CallInfo(edge="webrtc", caller="Ada")
        async with called(edge, {"desk": agent}, page):
            await until(lambda: page.words() == "Hello.")
            edge.conversations[page.call_id].listeners.append(faults.append)
            page.hear(type="send-text", id="1", data={"content": "Book it."})
            await until(lambda: page.words() == "Hello. Our calendar is down, Ada.")
            assert len(endpoint.requests) == 1
            page.hear(type="send-text", id="2", data={"content": "Oh."})
            await until(lambda: page.words().endswith("Anything else?"))
        told = json.dumps(endpoint.requests[1]["messages"])
    assert "HTTP 500" in told
    assert "Our calendar is down, Ada." in told
    assert any(isinstance(e, AgentFailed) and e.fault is Fault.TOOL_FAILED for e in faults)


async def test_a_tool_can_end_the_turn(edge: Edge) -> None:
    page = Page()
    async with shop(responds(text="noted", content_type="text/plain")) as url, model() as endpoint:
        endpoint.answers = [[says("I write that down. "), calls("note")], [says("Sure.")]]
        about = {"name": "note", "description": "Notes.", "url": url, "end_turn": True}
        agent = Agent(
            kind="openai",
            base_url=endpoint.url,
            model="scripted",
            greeting="Hello.",
            tools=(HttpTool.model_validate(about),),
        )
        async with called(edge, {"desk": agent}, page):
            await until(lambda: page.words() == "Hello.")
            page.hear(type="send-text", id="1", data={"content": "Note it."})
            await until(lambda: page.words().endswith("write that down."))
            page.hear(type="send-text", id="2", data={"content": "And?"})
            await until(lambda: page.words().endswith("Sure."))
        assert len(endpoint.requests) == 2
        assert endpoint.results() == [{"text": "noted"}]


async def test_what_is_said_meanwhile_is_no_answer_for_the_model(edge: Edge) -> None:
    """A request that ends with the assistant has some models call the tool again."""
    page, asked = Page(), []

    async def answer(request: web.Request) -> web.Response:
        asked.append(1)
        await until(lambda: page.words().endswith("looking that up."))
        return web.json_response({"status": "sent"})

    async with shop(answer) as url, model() as endpoint:
        endpoint.answers = [[calls("look")], [says("It was sent.")]]
        about = {"name": "look", "description": "Looks it up.", "url": url, "say_after": 0}
        tool = HttpTool.model_validate({**about, "say": "One moment, I am looking that up."})
        agent = Agent(
            kind="openai", base_url=endpoint.url, model="m", greeting="Hello.", tools=(tool,)
        )
        async with called(edge, {"desk": agent}, page):
            await until(lambda: page.words() == "Hello.")
            page.hear(type="send-text", id="1", data={"content": "Where is it?"})
            await until(lambda: page.words().endswith("It was sent."))
    assert endpoint.requests[1]["messages"][-1]["role"] == "tool"
    assert len(asked) == 1
