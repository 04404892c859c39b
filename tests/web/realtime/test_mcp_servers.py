"""Tools of a real MCP server, a program of its own, in conversations of the unmodified
openai-python."""

import asyncio
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import pytest
from openai import AsyncOpenAI

from offhook.web.app.doctor.mcp_io import examine_mcp
from offhook.web.config.config import Config, ConfigError
from offhook.web.config.programs import Realtime
from offhook.web.config.server import Server
from offhook.web.edge import reload_io
from offhook.web.edge.edge_io import Edge
from offhook.web.realtime.protocol.tools import McpTool
from tests.pipeline.conversation.phone import calls, model, says
from tests.support.waiting import HANGS_S
from tests.web.edge.test_call_control import KEY, Program
from tests.web.realtime.test_openai_python import Conversation, conversation
from tests.web.realtime.test_phone import PatientCall, edge_of_program, lines_of

mcp_io = pytest.importorskip("offhook.web.realtime.mcp_io", reason="needs the mcp package")
from mcp_types import ListToolsResult, Tool  # noqa: E402

from offhook.web.tools import mcp_connection_io  # noqa: E402


@pytest.fixture(scope="module")
def origin() -> Iterator[str]:
    command = [sys.executable, "-m", "tests.support.mcp_server"]
    out, err = subprocess.PIPE, subprocess.DEVNULL
    with subprocess.Popen(command, stdout=out, stderr=err, text=True) as process:
        try:
            assert process.stdout is not None
            yield f"http://127.0.0.1:{int(process.stdout.readline())}"
        finally:
            process.kill()


@asynccontextmanager
async def talking(origin: str, *answers: Sequence[Any]) -> AsyncIterator[tuple[Conversation, Any]]:
    realtime = Realtime(mcp_servers=frozenset({origin}))
    async with model(*answers) as there, conversation(there, realtime) as talk:
        yield talk, there


async def listed(talk: Conversation, url: str, **fields: Any) -> Any:
    """The session gets the tools of a server; returns its item."""
    server = {"type": "mcp", "server_label": "shop", "server_url": url, **fields}
    await talk.update(tools=[server], output_modalities=["text"])
    done = await talk.until("conversation.item.done", lambda e: e.item.type == "mcp_list_tools")
    return done.item


async def answered(talk: Conversation, words: str = "How many bells?") -> Any:
    """The user writes something; returns the response."""
    await talk.say(words)
    await talk.send(type="response.create")
    return (await talk.until("response.done")).response


async def test_tools_are_listed_and_called(origin: str) -> None:
    answers = [calls("stock", what="bells")], [says("There are twelve.")]
    async with talking(origin, *answers) as (talk, there):
        item = await listed(talk, f"{origin}/mcp", require_approval="never")
        assert {"stock", "order", "broken", "long"} <= {tool.name for tool in item.tools}
        assert [e.type for e in talk.events if e.type.startswith("mcp")] == [
            "mcp_list_tools.in_progress",
            "mcp_list_tools.completed",
        ]
        (call,) = (await answered(talk)).output
        assert (call.type, call.server_label, call.name) == ("mcp_call", "shop", "stock")
        assert (call.arguments, call.output) == ('{"what": "bells"}', "twelve bells")
        await talk.send(type="response.create")
        done = await talk.until("response.done")
    assert done.response.output[0].content[0].text == "There are twelve."
    offered = {t["function"]["name"]: t["function"] for t in there.requests[0]["tools"]}
    assert {"stock", "who_calls"} <= offered.keys()
    assert "street" in offered["order"]["parameters"]["$defs"]["Parcel"]["properties"]
    *_, asked, result = there.requests[1]["messages"]
    assert asked["tool_calls"][0]["function"]["name"] == "stock"
    assert result["content"] == "twelve bells"
    assert "mcp_list_tools" not in str(there.requests)


async def test_a_call_waits_for_approval(origin: str) -> None:
    answers = (
        [calls("order", what="bell")],
        [calls("order", what="horn")],
        [says("Only the bell is ordered.")],
    )
    async with talking(origin, *answers) as (talk, there):
        await listed(talk, f"{origin}/mcp", require_approval={"never": {"read_only": True}})
        (request,) = (await answered(talk, "Order both.")).output
        assert (request.type, request.name) == ("mcp_approval_request", "order")
        approval = {"type": "mcp_approval_response", "approval_request_id": request.id}
        yes = {**approval, "approve": True}
        await talk.send(type="conversation.item.create", item=yes)
        done = await talk.until("conversation.item.done", lambda e: e.item.type == "mcp_call")
        assert done.item.output == "ordered bell"
        assert done.item.approval_request_id == request.id
        await talk.send(type="response.create")
        (request,) = (await talk.until("response.done")).response.output
        no = {**approval, "approval_request_id": request.id, "approve": False, "reason": "Too loud"}
        await talk.send(type="conversation.item.create", item=no)
        await talk.send(type="response.create")
        done = await talk.until("response.done")
    assert done.response.output[0].content[0].text == "Only the bell is ordered."
    results = [m["content"] for m in there.requests[2]["messages"] if m["role"] == "tool"]
    assert results == ["ordered bell", "The call was not approved. Too loud"]


async def test_a_tool_that_fails_and_one_that_returns_much(origin: str) -> None:
    answers = [calls("broken")], [calls("long", chars=1_000_000)], [says("Done.")]
    async with talking(origin, *answers) as (talk, there):
        chosen = ["broken", "long"]
        url = f"{origin}/mcp"
        item = await listed(talk, url, require_approval="never", allowed_tools=chosen)
        assert {tool.name for tool in item.tools} == set(chosen)
        (call,) = (await answered(talk)).output
        assert call.error.type == "tool_execution_error"
        assert "broken" in call.error.message
        (call,) = (await answered(talk)).output
        assert len(call.output) < mcp_io.MAX_OUTPUT_CHARS + 100
        assert call.output.endswith("characters more are left out]")
        await answered(talk)
    results = [m["content"] for m in there.requests[2]["messages"] if m["role"] == "tool"]
    assert results[-1] == call.output


@pytest.mark.parametrize(("pages", "fits"), [(2, True), (3, False)])
async def test_a_list_of_too_many_pages_fails(
    monkeypatch: pytest.MonkeyPatch, pages: int, fits: bool
) -> None:
    monkeypatch.setattr(mcp_connection_io, "MAX_PAGES", 2)

    class Server:
        async def list_tools(self, *, cursor: str | None) -> ListToolsResult:
            page = int(cursor or 1)
            tools = [Tool(name=f"tool_{page}", input_schema={"type": "object"})]
            next_cursor = str(page + 1) if page < pages else None
            return ListToolsResult(tools=tools, next_cursor=next_cursor)

    server = McpTool(type="mcp", server_label="shop", server_url="http://127.0.0.1")
    found = await mcp_io._list(Server(), server)
    if fits:
        assert [tool.name for tool in found] == ["tool_1", "tool_2"]
    else:
        assert "over 2 pages" in found.message


async def test_a_server_that_stalls_fails_its_own_requests(
    origin: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mcp_io, "LIST_TIMEOUT_S", 2.5)
    monkeypatch.setattr(mcp_io, "CALL_TIMEOUT_S", 0.5)
    answers = [says("Hello.")], [calls("slow")], [says("It takes too long.")]
    async with talking(origin, *answers) as (talk, _):
        item = await listed(talk, f"{origin}/mcp", require_approval="never")
        stalled = {"type": "mcp", "server_label": "dead", "server_url": f"{origin}/stalled"}
        shop = {"type": "mcp", "server_label": "shop", "server_url": f"{origin}/mcp"}
        await talk.update(tools=[{**shop, "require_approval": "never"}, stalled])
        assert (await answered(talk, "Hello?")).status == "completed"
        assert talk.of("mcp_list_tools.failed") == []  # it is still being waited for
        done = await talk.until("conversation.item.done", lambda e: e.item.id != item.id)
        while done.item.type != "mcp_list_tools":
            done = await talk.until("conversation.item.done")
        assert "2.5 s" in done.item.error
        (call,) = (await answered(talk)).output
        assert "0.5 s" in call.error.message
        assert (await answered(talk)).output[0].content[0].text == "It takes too long."


async def test_servers_that_are_not_to_be_had(origin: str) -> None:
    async with talking(origin, [says("Hello.")]) as (talk, there):
        for url, error in {
            "http://127.0.0.2:9/mcp": "127.0.0.2:9 is none of the MCP servers",
            f"http://user@{origin.removeprefix('http://')}/mcp": "none of the MCP servers",
            f"{origin}/elsewhere": "not followed",
            f"{origin}/nothing": "HTTP status 404",
        }.items():
            assert error in (await listed(talk, url)).error
        assert "Host cannot be set" in (await listed(talk, origin, headers={"Host": "i"})).error
        assert (await answered(talk)).status == "completed"
    assert "tools" not in there.requests[0]


async def test_a_session_whose_operator_names_no_server(origin: str) -> None:
    async with model([says("Hello.")]) as there, conversation(there) as talk:
        assert "its operator has not named any" in (await listed(talk, origin)).error
        assert (await answered(talk)).status == "completed"


async def test_the_key_of_a_tool_goes_to_its_server_and_nowhere_else(origin: str) -> None:
    async with talking(origin, [calls("who_calls")]) as (talk, _):
        url = f"{origin}/mcp"
        await listed(talk, url, authorization="key of the shop", require_approval="never")
        (call,) = (await answered(talk)).output
        assert call.output == "Bearer key of the shop"
        shown = "".join(e.model_dump_json() for e in talk.events)
        assert shown.count("key of the shop") == shown.count("Bearer key of the shop")


async def test_the_older_transport_and_a_response_with_tools_of_its_own(origin: str) -> None:
    async with talking(origin, [calls("stock", what="bells")]) as (talk, _):
        await talk.update(output_modalities=["text"])
        server = {"type": "mcp", "server_label": "shop", "server_url": f"{origin}/sse"}
        own = {"tools": [{**server, "require_approval": "never"}], "tool_choice": "required"}
        await talk.send(type="response.create", response=own)
        (call,) = (await talk.until("response.done")).response.output
    assert call.output == "twelve bells"


async def test_connections_end_with_their_session(origin: str) -> None:
    async with talking(origin) as (talk, _):
        await listed(talk, f"{origin}/mcp")
        running = {task.get_name() for task in asyncio.all_tasks()}
        assert any(name.startswith("MCP server of") for name in running)
    running = {task.get_name() for task in asyncio.all_tasks()}
    assert not any(name.startswith("MCP") for name in running)


async def test_tools_of_a_phone_call_are_those_that_it_was_accepted_with(origin: str) -> None:
    program, lines = Program(), await lines_of("How many bells have you got?")
    realtime = Realtime(mcp_servers=frozenset({origin}))
    async with (
        model() as there,
        program.running(),
        edge_of_program(there, program.url, realtime=realtime) as (url, phone),
        AsyncOpenAI(base_url=url, api_key=KEY) as client,
    ):
        calling = asyncio.create_task(PatientCall(phone, lines).run())
        call_id = (await program.event()).data.call_id
        shop = {"type": "mcp", "server_label": "shop", "server_url": f"{origin}/mcp"}
        by_client: Any = {"input": {"turn_detection": None}}
        accepted: Any = {"type": "realtime", "model": "model", "tools": [shop], "audio": by_client}
        await client.realtime.calls.accept(call_id, **accepted)
        async with asyncio.timeout(HANGS_S), client.realtime.connect(call_id=call_id) as beside:
            talk, offered = Conversation(beside), set[str]()
            while "stock" not in offered:
                await talk.send(type="response.create", response={"output_modalities": ["text"]})
                await talk.until("response.done")
                offered = {tool["function"]["name"] for tool in there.requests[-1].get("tools", ())}
        await client.realtime.calls.hangup(call_id)
        await asyncio.wait_for(calling, HANGS_S)


async def test_a_server_without_the_package_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "offhook.web.realtime.mcp_io")
    monkeypatch.delitem(sys.modules, "offhook.web.tools.mcp_connection_io")
    monkeypatch.setitem(sys.modules, "mcp", None)
    servers = Realtime(mcp_servers=frozenset({"http://mcp.example"}))
    config = Config(server=Server(port=0), realtime=servers)
    with pytest.raises(ConfigError, match="pip install mcp"):
        await Edge(config).start()
    running = Edge(Config(server=Server(port=0)))
    with pytest.raises(ConfigError, match="pip install mcp"):
        reload_io.use(running, config)
    assert not running.config.realtime.mcp_servers
    of_agents = Config.model_validate({"mcp": {"shop": {"url": "http://mcp.example"}}})
    with pytest.raises(ConfigError, match=r"\[mcp\] needs the mcp package: .*pip install mcp"):
        await Edge(of_agents).start()
    assert [finding.verdict for finding in examine_mcp(of_agents)] == ["fails"]
