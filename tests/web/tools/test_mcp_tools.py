"""Tools of MCP servers in calls: real servers of the official package, over HTTP and as processes,
and servers that misbehave."""

import asyncio
import gzip
import os
import signal
import socket
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from offhook.pipeline.conversation.agents.agent_faults import Fault
from offhook.pipeline.conversation.events import AgentFailed
from offhook.web.app.doctor.mcp_io import examine_mcp
from offhook.web.config.config import Config
from offhook.web.config.tools import OWN
from offhook.web.edge.edge_io import Edge
from tests.pipeline.conversation.phone import calls, model, says
from tests.support.processes import gone
from tests.support.waiting import until
from tests.web.conftest import CONFIG
from tests.web.edge.agents.test_agent import Page, called
from tests.web.edge.agents.test_realtime_agent import agent_at, elsewhere

mcp_server_io = pytest.importorskip(
    "offhook.web.tools.mcp_server_io", reason="needs the mcp package"
)
from offhook.web.tools.mcp_connection_io import (  # noqa: E402
    MAX_BYTES_PER_S,
    MAX_LIST_CHARS,
    MAX_PAGES,
    MIN_CHUNK_BYTES,
    Pace,
    _Body,
)
from offhook.web.tools.mcp_process_io import INHERITED  # noqa: E402
from offhook.web.tools.mcp_servers_io import McpServers  # noqa: E402
from offhook.web.tools.tool_result import MAX_RESULT_CHARS, ToolFailed  # noqa: E402

pytestmark = pytest.mark.asyncio(loop_scope="module")
ROOT = Path(__file__).parents[3]


def program(notes: Path, ill: str = "") -> dict[str, Any]:
    """The settings of a server that is a process; what it does is written to `notes`."""
    arguments = ["-m", "tests.support.mcp_tools_server", "stdio", str(notes), *filter(None, [ill])]
    return {"command": [sys.executable, *arguments], "env": {"PYTHONPATH": str(ROOT)}}


@asynccontextmanager
async def website(notes: Path, port: int = 0) -> AsyncIterator[str]:
    """The same server at an address, which is yielded."""
    if not port:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
    arguments = ["-m", "tests.support.mcp_tools_server", str(port), str(notes)]
    process = await asyncio.create_subprocess_exec(sys.executable, *arguments, cwd=ROOT)
    try:
        while True:
            try:
                _, writer = await asyncio.open_connection("127.0.0.1", port)
            except OSError:
                await asyncio.sleep(0.05)
            else:
                writer.close()
                break
        yield f"http://127.0.0.1:{port}/mcp"
    finally:
        with suppress(ProcessLookupError):
            process.kill()
        await process.wait()


def said(notes: Path) -> list[str]:
    """What a server has written of what it does."""
    return notes.read_text().splitlines() if notes.exists() else []


def pids(notes: Path) -> list[int]:
    """The processes of a server, the last one last."""
    return [int(line.split()[1]) for line in said(notes) if line.startswith("pid")]


def configuration(url: str = "http://127.0.0.1:1", tools: Any = (), **servers: Any) -> Config:
    """A server with an agent that has these tools, and these MCP servers."""
    agent = {"kind": "openai", "base_url": url, "model": "scripted", "greeting": "Hello."}
    tools = tools or [{"mcp": name} for name in servers]
    return Config.model_validate({"agents": {"desk": {**agent, "tools": tools}}, "mcp": servers})


class Talk:
    """A call to an agent that has tools of MCP servers."""

    def __init__(self, edge: Edge, page: Page, endpoint: Any) -> None:
        self.page, self.endpoint = page, endpoint
        self.faults: list[AgentFailed] = []
        edge.conversations[page.call_id].listeners.append(self._on_event)

    def _on_event(self, event: Any) -> None:
        if isinstance(event, AgentFailed):
            self.faults.append(event)

    def ask(self, words: str = "Where is my order?") -> None:
        self.page.hear(type="send-text", id="1", data={"content": words})

    async def result(self, tool: str, **arguments: Any) -> Any:
        """The model calls a tool, and then answers; returns what it got."""
        self.endpoint.answers += [[calls(tool, **arguments)], [says("Here it is.")]]
        before = self.page.words()
        self.ask()
        await until(lambda: self.page.words().removeprefix(before).endswith("Here it is."))
        return self.endpoint.results()[-1]

    def offered(self) -> set[str]:
        """The names of the tools that the model was last told of, without our own."""
        told = [tool["function"]["name"] for tool in self.endpoint.requests[-1]["tools"]]
        assert len(set(told)) == len(told)
        return set(told) - set(OWN)


@asynccontextmanager
async def talking(
    edge: Edge, tools: Any = (), listed: set[str] | None = None, **servers: Any
) -> AsyncIterator[Talk]:
    """A call, once these servers have listed their tools; None: all of them."""
    async with model() as endpoint:
        endpoint.answers = []
        config = configuration(endpoint.url, tools, **servers)
        edge.agents.use(config)
        try:
            mcp = edge.agents._tools._mcp
            assert mcp is not None
            await mcp.started()
            known = mcp._servers
            await until(lambda: all(known[name].has_listed for name in listed or servers))
            async with called(edge, config.agents) as page:
                await until(lambda: page.words() == "Hello.")
                yield Talk(edge, page, endpoint)
        finally:
            edge.agents.use(CONFIG)


@pytest.fixture
def notes(tmp_path: Path) -> Path:
    return tmp_path / "notes"


async def test_a_model_calls_tools_of_a_process(edge: Edge, notes: Path) -> None:
    tools = [{"mcp": "shop", "names": ["order_status", "shop.hours"]}]
    async with talking(edge, tools, shop=program(notes)) as talk:
        sent = {"status": "sent", "number": "A7"}
        assert await talk.result("order_status", number="A7") == sent
        assert talk.offered() == {"order_status", "shop_hours"}
        assert await talk.result("shop_hours") == {"result": "nine to five"}
        assert talk.faults == []
    assert "order_status A7" in said(notes)
    (pid,) = pids(notes)
    await until(lambda: gone(pid))


async def test_a_model_calls_tools_of_a_website(edge: Edge, notes: Path) -> None:
    async with website(notes) as url, talking(edge, shop={"url": url}) as talk:
        sent = {"status": "sent", "number": "A7"}
        assert await talk.result("order_status", number="A7") == sent
        assert {"order_status", "shop_hours", "long"} <= talk.offered()
        (asked,) = [t for t in talk.endpoint.requests[0]["tools"] if "order" in str(t)]
        assert asked["function"]["parameters"]["required"] == ["number"]
        assert asked["function"]["description"] == "Says where an order is."


async def test_a_speech_to_speech_model_has_them_too(edge: Edge, notes: Path) -> None:
    answers = [says("Good morning.")], [calls("shop_hours")], [says("Nine to five.")]
    async with model(*answers) as there, elsewhere(there) as wire:
        shop = configuration(shop=program(notes))
        edge.agents.use(shop)
        mcp = edge.agents._tools._mcp
        assert mcp is not None
        await until(lambda: mcp._servers["shop"].has_listed)
        tools = shop.agents["desk"].tools
        async with called(edge, {"there": agent_at(wire, tools=tools)}) as page:
            await until(lambda: page.words() == "Good morning.")
            page.hear(type="send-text", id="1", data={"content": "When are you open?"})
            await until(lambda: page.words().endswith("Nine to five."))
        assert there.results() == [{"result": "nine to five"}]
        edge.agents.use(CONFIG)


async def test_any_result_is_told_to_the_model(edge: Edge, notes: Path) -> None:
    async with talking(edge, shop={**program(notes), "seconds": 2}) as talk:
        assert await talk.result("picture") == {"result": "a red bicycle\n[image left out]"}
        assert await talk.result("empty") == {"result": None}
        too_long = f"the result has over {MAX_RESULT_CHARS} characters"
        assert await talk.result("long", chars=1_000_000) == {"error": too_long}
        assert "broken" in (await talk.result("broken"))["error"]
        assert await talk.result("slow") == {"error": "no response within 2 s"}
        assert "number" in (await talk.result("order_status"))["error"]
        assert [fault.fault for fault in talk.faults] == [Fault.TOOL_FAILED] * 4
        assert "long of the MCP server shop" in talk.faults[0].cause
        assert len(pids(notes)) == 1, "one connection for all of it"


async def test_who_waits_for_a_tool_hears_so(edge: Edge, notes: Path, tmp_path: Path) -> None:
    tools = [{"mcp": "shop", "say": "One {{trunk}}moment, please.", "say_after": 0.0}]
    file = tmp_path / "found"
    async with talking(edge, tools, shop={**program(notes), "seconds": 60}) as talk:
        asking = asyncio.create_task(talk.result("soon", file=str(file)))
        await until(lambda: talk.page.words() == "Hello. One moment, please.")
        file.touch()
        assert await asking == {"result": "here it is"}


@pytest.mark.parametrize("kind", ["process", "website"])
async def test_an_interruption_cancels_the_request(edge: Edge, notes: Path, kind: str) -> None:
    async with website(notes) as url:
        shop = {"url": url} if kind == "website" else program(notes)
        async with talking(edge, shop={**shop, "seconds": 60}) as talk:
            talk.endpoint.answers += [[calls("slow")], [says("As you like.")]]
            talk.ask()
            await until(lambda: "slow begins" in said(notes))
            talk.ask("Never mind.")
            await until(lambda: "slow is cancelled" in said(notes))
            await until(lambda: talk.page.words().endswith("As you like."))


async def test_a_process_that_was_killed_is_started_again(edge: Edge, notes: Path) -> None:
    async with talking(edge, shop={**program(notes), "seconds": 60}) as talk:
        await talk.result("order_status", number="1")
        os.kill(pids(notes)[0], signal.SIGKILL)
        await until(lambda: len(pids(notes)) == 2)
        assert await talk.result("order_status", number="2") == {"status": "sent", "number": "2"}
        assert talk.faults == []


async def test_a_process_that_ends_in_a_call_of_its_tool(edge: Edge, notes: Path) -> None:
    async with talking(edge, shop={**program(notes), "seconds": 60}) as talk:
        gone = {"error": "the MCP server has broken the connection off"}
        assert await talk.result("die") == gone
        assert await talk.result("order_status", number="2") == {"status": "sent", "number": "2"}


async def test_a_website_that_was_restarted_is_found_again(edge: Edge, notes: Path) -> None:
    async with website(notes) as url, talking(edge, shop={"url": url, "seconds": 60}) as talk:
        await talk.result("order_status", number="1")
        os.kill(pids(notes)[-1], signal.SIGKILL)
        await until(lambda: gone(pids(notes)[-1]))
        port = int(url.split(":")[2].partition("/")[0])
        async with website(notes, port):
            sent = {"status": "sent", "number": "2"}
            while await talk.result("order_status", number="2") != sent:
                pass


async def test_what_a_server_has_more_the_next_call_has(edge: Edge, notes: Path) -> None:
    servers = McpServers()
    servers.use(configuration(shop=program(notes)))
    await servers.started()
    shop = servers._servers["shop"]
    assert "grown" not in {function.name for function in shop.functions}
    assert await shop.call("grow", {}) == {"result": "grown"}
    await until(lambda: "grown" in {function.name for function in shop.functions})
    await servers.close()


async def test_a_process_has_nothing_of_our_environment_but_what_programs_need(
    edge: Edge, notes: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("OFFHOOK_SERVER_API_KEY", "AWS_SECRET_ACCESS_KEY", "LD_PRELOAD_OF_OURS"):
        monkeypatch.setenv(name, "secret")
    async with talking(edge, shop=program(notes)) as talk:
        found = set((await talk.result("environment"))["result"].split())
    assert "PYTHONPATH" in found, "what its section has"
    assert found <= {*INHERITED, "PYTHONPATH"}


@pytest.mark.parametrize(
    ("ill", "works"),
    [
        *(("garbage", False), ("endless_line", False), ("notifies", False), ("silent", False)),
        *(("complains", False), ("never_ends", True), ("chatty", True)),
    ],
)
async def test_an_ill_process_takes_nothing_from_calls(
    edge: Edge, tmp_path: Path, ill: str, works: bool
) -> None:
    bad, good = tmp_path / "bad", tmp_path / "good"
    tools = [{"mcp": "bad", "names": ["shop.hours"]}, {"mcp": "good", "names": ["order_status"]}]
    servers = {"bad": program(bad, ill), "good": program(good)}
    async with talking(edge, tools, listed={"good", *(["bad"] * works)}, **servers) as talk:
        sent = {"status": "sent", "number": "A7"}
        assert await talk.result("order_status", number="A7") == sent
        assert talk.offered() == {"order_status", *(["shop_hours"] * works)}
        if works:
            assert await talk.result("shop_hours") == {"result": "nine to five"}
        assert talk.faults == []
        await until(lambda: pids(bad))
    await until(lambda: all(map(gone, pids(bad))))


Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
numbers = count()
ID = web.RequestKey("id", Any)
OBJECT = {"type": "object", "properties": {}}


@asynccontextmanager
async def site(answer: Handler, other: Mapping[str, Handler] = {}) -> AsyncIterator[str]:
    """An MCP server at an address that begins as it should and then answers so; methods of `other`
    in another way."""

    async def handler(request: web.Request) -> web.StreamResponse:
        if request.method in other:
            return await other[request.method](request)
        if request.method != "POST":
            return web.Response(status=405)
        asked = await request.json()
        request[ID] = asked.get("id")
        if asked["method"] in other:
            return await other[asked["method"]](request)
        match asked["method"]:
            case "initialize":
                about = {"capabilities": {"tools": {}}, "serverInfo": {"name": "s", "version": "1"}}
                version = asked["params"]["protocolVersion"]
                begun = replies(request, {"protocolVersion": version, **about})
                begun.headers["mcp-session-id"] = f"session-{next(numbers)}"
                return begun
            case "notifications/initialized" | "notifications/cancelled":
                return web.Response(status=202)
            case "tools/list" | "tools/call":
                return await answer(request)
        error = {"code": -32601, "message": "unknown"}
        return web.json_response({"jsonrpc": "2.0", "id": request[ID], "error": error})

    async with any_site(handler) as url:
        yield url


@asynccontextmanager
async def any_site(handler: Handler) -> AsyncIterator[str]:
    application = web.Application()
    application.router.add_route("*", "/mcp", handler)
    runner = web.AppRunner(application, shutdown_timeout=0.1)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        yield f"http://127.0.0.1:{runner.addresses[0][1]}/mcp"
    finally:
        await runner.cleanup()


def replies(request: web.Request, result: Any) -> web.Response:
    return web.json_response({"jsonrpc": "2.0", "id": request[ID], "result": result})


async def result_of(request: web.Request, result: Any) -> web.StreamResponse:
    return replies(request, result)


def lists(*tools: dict[str, Any], **more: Any) -> Handler:
    async def handler(request: web.Request) -> web.StreamResponse:
        return replies(request, {"tools": tools, **more})

    return handler


def responds(**options: Any) -> Handler:
    async def handler(request: web.Request) -> web.StreamResponse:
        return web.Response(**options)

    return handler


async def hangs(request: web.Request) -> web.StreamResponse:
    await asyncio.sleep(3_600)
    raise AssertionError


def endless(content_type: str, chunk: bytes) -> Handler:
    async def handler(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": content_type})
        await response.prepare(request)
        while True:
            await response.write(chunk)

    return handler


async def breaks(request: web.Request) -> web.StreamResponse:
    assert request.transport is not None
    request.transport.abort()
    return web.Response()


def tool(name: str, schema: Any = OBJECT, **more: Any) -> dict[str, Any]:
    return {"name": name, "inputSchema": schema, **more}


JSON = "application/json"
EVENTS = "text/event-stream"
BOMB = gzip.compress(b" " * 10_000_000)
COMPRESSED = {"Content-Encoding": "gzip", "Content-Type": JSON}


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (hangs, "has not answered within 3 s"),
        (endless(EVENTS, b": still here\n\n"), "has not answered within 3 s"),
        (endless(EVENTS, b"data: " + b"[" * 65_536), "broken the connection off"),
        (endless(JSON, b"x" * 65_536), "has not answered within 3 s"),
        (endless(JSON, b"[" * 65_536), "broken the connection off"),
        (breaks, "broken the connection off"),
        (responds(status=500, text="<b>x</b>", content_type="text/html"), "HTTP status 500"),
        (responds(text="<b>x</b>", content_type="text/html"), "Unexpected content type"),
        (responds(status=307, headers={"Location": "http://127.0.0.2:1/mcp"}), "not followed"),
        (responds(text="[" * 1000, content_type=JSON), "Failed to parse"),
        (responds(body=BOMB, headers=COMPRESSED), "broken the connection off"),
        (lists(tool("a"), nextCursor="again"), f"the list of tools is over {MAX_PAGES} pages"),
        (
            lists(*(tool(f"t{n}", description="x" * 2_000) for n in range(100))),
            f"over {MAX_LIST_CHARS} characters: choose some by names",
        ),
        (lists(*(tool(f"t{n}") for n in range(200))), "over 128 tools: choose some by names"),
        (lists({"name": "a", "inputSchema": []}), "not as the protocol says"),
        (lists({"inputSchema": OBJECT}), "not as the protocol says"),
        (lists(tool("a", {"type": "array"})), "not as the protocol says"),
        (lists(tool("a", {"type": "object", "properties": [1]})), "not as the protocol says"),
        (lists(tool("a", {"type": "object", "required": "all"})), "not as the protocol says"),
    ],
)
async def test_a_list_that_is_none_is_no_tool_and_has_a_reason(
    monkeypatch: pytest.MonkeyPatch, answer: Handler, words: str
) -> None:
    monkeypatch.setattr(mcp_server_io, "CONNECT_S", 3.0)
    async with site(answer) as url:
        found = await mcp_server_io.examine_server(configuration(shop={"url": url}), "shop")
    assert words in found.fault
    assert found.functions == ()


ELSEWHERE = "http://127.0.0.1:1/mcp"
HUGE = {"content": [{"type": "text", "text": "x" * 5_000_000}]}


async def too_many_values(request: web.Request) -> web.StreamResponse:
    return replies(request, {"structuredContent": [0] * 500_000, "content": []})


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (hangs, "no response within 1 s"),
        (endless(EVENTS, b": still here\n\n"), "no response within 1 s"),
        (endless(JSON, b"[" * 65_536), "broken the connection off"),
        (breaks, "broken the connection off"),
        (responds(status=307, headers={"Location": ELSEWHERE}), "not followed"),
        (responds(status=500, text="<b>x</b>", content_type="text/html"), "HTTP status 500"),
        (responds(text="<b>x</b>", content_type="text/html"), "Unexpected content type"),
        (responds(text="[" * 1000, content_type=JSON), "Failed to parse"),
        (responds(body=BOMB, headers=COMPRESSED), "broken the connection off"),
        (lambda request: result_of(request, HUGE), "no response within 1 s"),
        (too_many_values, "broken the connection off"),
        (lambda request: result_of(request, {"content": "text"}), "not as the protocol says"),
        (lambda request: result_of(request, []), "Failed to parse"),
    ],
)
async def test_of_a_hostile_result_the_model_learns_why_and_the_caller_is_answered(
    edge: Edge, answer: Handler, words: str
) -> None:
    async def handler(request: web.Request) -> web.StreamResponse:
        if (await request.json())["method"] == "tools/list":
            return replies(request, {"tools": [tool("look")]})
        return await answer(request)

    shop = {"seconds": 1 if "within 1 s" in words else 60}
    async with site(handler) as url, talking(edge, shop={"url": url, **shop}) as talk:
        result = await talk.result("look")
        assert words in result["error"]
        (fault,) = talk.faults
        assert fault.fault is Fault.TOOL_FAILED
        assert fault.cause == f"look of the MCP server shop: {result['error']}"


async def test_short_chunks_without_end_are_read_in_a_pace_that_leaves_calls_their_time() -> None:
    async def chunks() -> AsyncIterator[bytes]:
        while True:
            read.append(1)
            yield b":\n\n"

    async def read_all() -> None:
        async for _ in _Body(chunks(), Pace(MAX_BYTES_PER_S), has_events=True):  # type: ignore[arg-type]
            pass

    read: list[int] = []
    reading = asyncio.create_task(read_all())
    await asyncio.sleep(0)
    assert 0 < len(read) <= 2 * MAX_BYTES_PER_S // MIN_CHUNK_BYTES
    reading.cancel()
    await asyncio.gather(reading, return_exceptions=True)


@pytest.mark.parametrize("method", ["initialize", "tools/list", "tools/call", "GET"])
@pytest.mark.parametrize("status", [302, 307])
async def test_nothing_follows_a_redirect_to_another_server(status: int, method: str) -> None:
    async def taken(request: web.Request) -> web.StreamResponse:
        visits.append(request.headers.get("Authorization", ""))
        return web.Response(status=202)

    async def redirect(request: web.Request) -> web.StreamResponse:
        redirected.set()
        return web.Response(status=status, headers={"Location": there})

    async def handler(request: web.Request) -> web.StreamResponse:
        if (await request.json())["method"] == "tools/list":
            return replies(request, {"tools": [tool("look")]})
        return replies(request, {"content": [{"type": "text", "text": "found"}]})

    visits: list[str] = []
    redirected = asyncio.Event()
    async with any_site(taken) as there, site(handler, {method: redirect}) as url:
        servers = McpServers()
        headers = {"Authorization": "Bearer a-key"}
        servers.use(configuration(shop={"url": url, "headers": headers, "seconds": 5}))
        await servers.started()
        shop = servers._servers["shop"]
        with suppress(ToolFailed):
            await shop.call("look", {})
        await redirected.wait()
        await servers.close()
    assert visits == []


async def test_a_tool_with_a_schema_that_is_none_is_left_out() -> None:
    ill = {
        "kind": {"type": "object", "properties": {"a": {"type": "banana"}}},
        "length": {"type": "object", "properties": {"a": {"minLength": "long"}}},
    }
    tools = [tool(name, schema) for name, schema in ill.items()]
    async with site(lists(tool("fine"), *tools)) as url:
        found = await mcp_server_io.examine_server(configuration(shop={"url": url}), "shop")
    assert [function.name for function in found.functions] == ["fine"], found.fault
    assert [fault.split(" is left out")[0] for fault in found.unfit] == [
        f"its tool {name}" for name in ill
    ]


async def test_a_session_that_a_server_has_forgotten_is_begun_again() -> None:
    sessions: list[str] = []

    async def answer(request: web.Request) -> web.StreamResponse:
        sessions.append(request.headers["mcp-session-id"])
        if (await request.json())["method"] == "tools/list":
            return replies(request, {"tools": [tool("a")]})
        if sessions[0] == sessions[-1]:
            return web.Response(status=404)
        return replies(request, {"content": [{"type": "text", "text": "found"}]})

    async with site(answer) as url:
        servers = McpServers()
        servers.use(configuration(shop={"url": url, "seconds": 60}))
        await servers.started()
        assert await servers._servers["shop"].call("a", {}) == {"result": "found"}
        await servers.close()


async def test_headers_go_to_the_server_and_into_no_log(
    capsys: pytest.CaptureFixture[str],
) -> None:
    seen: list[str] = []

    async def answer(request: web.Request) -> web.StreamResponse:
        seen.append(request.headers["Authorization"])
        return web.Response(status=401)

    async with site(answer) as url:
        shop = {"url": url, "headers": {"Authorization": "Bearer not-to-be-seen"}}
        config = configuration(shop=shop)
        servers = McpServers()
        servers.use(config)
        await servers.started()
        await servers.close()
    assert seen[0] == "Bearer not-to-be-seen"
    assert "not-to-be-seen" not in capsys.readouterr().err + repr(config)


async def test_a_name_that_no_server_has_and_one_that_two_have_are_told(edge: Edge) -> None:
    tools = [{"mcp": "a", "names": ["fine", "gone"]}, {"mcp": "b"}]
    async with (
        site(lists(tool("fine"), tool("other"))) as a,
        site(lists(tool("fine"), tool("end_call"), tool("more"))) as b,
        talking(edge, tools, a={"url": a}, b={"url": b}) as talk,
    ):
        talk.endpoint.answers += [[says("Here it is.")]]
        talk.ask()
        await until(lambda: talk.page.words().endswith("Here it is."))
        assert talk.offered() == {"fine", "more"}
        config = configuration(tools=tools, a={"url": a}, b={"url": b})
        findings = await asyncio.to_thread(lambda: [str(f) for f in examine_mcp(config)])
    assert findings == [
        "   ok  mcp a: 2 tools: fine, other",
        "   ok  mcp b: 3 tools: fine, end_call, more",
        "fails  tools: agents.desk: the MCP server a has no tool gone, or none that can be used",
        *(
            f"fails  tools: agents.desk: two tools are called {name}: "
            "that of the MCP server b is left out"
            for name in ("fine", "end_call")
        ),
    ]


async def test_the_doctor_says_why_a_server_is_not_there(notes: Path) -> None:
    shop = program(notes, "complains")
    config = configuration(shop=shop, lost={"command": ["no-such-program"]})
    findings = await asyncio.to_thread(lambda: [str(f) for f in examine_mcp(config)])
    assert findings == [
        "fails  mcp shop: the MCP server has broken the connection off "
        "(the shop's database is missing)",
        "fails  mcp lost: no-such-program cannot be started: No such file or directory",
    ]
