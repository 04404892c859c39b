"""Tools of MCP servers in a conversation."""

from typing import Any

from offhook.web.realtime.conversation.actions import ListMcpTools, McpCall
from offhook.web.realtime.protocol.items import McpListedTool, McpToolError
from tests.web.realtime.conversation.client import (
    CANCEL,
    Client,
    Event,
    created,
    kinds,
    one,
    respond,
    update,
)

CALL = [
    "response.output_item.added",
    "conversation.item.added",
    "response.mcp_call_arguments.delta",
    "response.mcp_call_arguments.done",
    "response.mcp_call.in_progress",
]
DONE = ["response.done", "rate_limits.updated"]
FAILED = McpToolError(type="http_error", code=502, message="no answer")


def server(approval: object = "never", **fields: Any) -> Event:
    url = "https://mcp.example.com"
    return {
        "type": "mcp",
        "server_label": "docs",
        "server_url": url,
        "require_approval": approval,
        **fields,
    }


SEARCH = McpListedTool(
    name="search", input_schema={"type": "object"}, annotations={"readOnlyHint": True}
)


def listing(approval: object = "never", *tools: McpListedTool, **fields: Any) -> Client:
    """A session with a server that has listed its tools."""
    client = Client(session={"tools": [server(approval, **fields)]})
    client.take(client.core.started())
    [asked] = client.actions
    assert isinstance(asked, ListMcpTools)
    client.report("mcp_tools", asked.item_id, tools or [SEARCH])
    return client


def call(client: Client, name: str = "search") -> list[Event]:
    """The model calls a function."""
    args = client.response_id, "call_1", name, '{"q":"x"}'
    return client.report("response_function_call", *args)


def calling(approval: object = "never") -> tuple[Client, list[Event]]:
    client = listing(approval)
    client.turn()
    return client, call(client)


def test_tools_are_listed() -> None:
    client = Client()
    events = client(update(tools=[server()]))
    assert kinds(events) == [
        "session.updated",
        "conversation.item.added",
        "mcp_list_tools.in_progress",
    ]
    asked = client.actions[-1]
    assert isinstance(asked, ListMcpTools)
    events = client.report("mcp_tools", asked.item_id, [SEARCH])
    assert kinds(events) == ["mcp_list_tools.completed", "conversation.item.done"]
    assert events[1]["item"]["tools"][0]["name"] == "search"
    assert kinds(client(update(tools=[server()], instructions="x"))) == ["session.updated"]


def test_a_session_may_begin_with_a_server_that_does_not_answer() -> None:
    client = Client(session={"tools": [server()]})
    client.take(client.core.started())
    [asked] = client.actions
    assert isinstance(asked, ListMcpTools)
    events = client.report("mcp_tools_failed", asked.item_id, "no answer")
    assert kinds(events) == ["mcp_list_tools.failed", "conversation.item.done"]
    assert events[1]["item"]["error"] == "no answer"
    client.turn()
    assert client.generated[-1].mcp == ()
    client.done()
    assert "mcp_list_tools.in_progress" in kinds(client(update(tools=[server()])))  # once more


def test_the_model_is_offered_tools_under_names_that_are_free() -> None:
    dotted = McpListedTool(name="who.calls", input_schema={})
    client = listing("never", SEARCH, dotted)
    mine = {"type": "function", "name": "search"}
    client(update(tools=[server(), mine]))
    client.turn()
    offered = client.generated[-1].mcp
    assert [(each.name, each.tool.name) for each in offered] == [
        ("docs_search", "search"),
        ("who_calls", "who.calls"),
    ]
    assert "response.function_call_arguments.done" in kinds(call(client))
    events = call(client, "who_calls")
    assert events[0]["item"]["name"] == "who.calls"


def test_a_response_with_tools_of_its_own_waits_until_they_are_listed() -> None:
    client = Client()
    events = client(respond(tools=[server()]))
    assert kinds(events) == [
        "response.created",
        "conversation.item.added",
        "mcp_list_tools.in_progress",
    ]
    assert client.generated == []
    [asked] = client.actions
    assert isinstance(asked, ListMcpTools)
    client.report("mcp_tools", asked.item_id, [SEARCH])
    assert [each.name for each in client.generated[-1].mcp] == ["search"]
    client.done()
    client(respond())
    assert client.generated[-1].mcp == ()


def test_a_call_and_its_result() -> None:
    client, events = calling()
    assert kinds(events) == CALL
    [made] = client.actions
    assert isinstance(made, McpCall)
    assert (made.name, made.arguments, made.tool.server_label) == ("search", '{"q":"x"}', "docs")
    assert client.done() == []  # the call has not returned
    events = client.report("mcp_called", made.item_id, "found")
    assert kinds(events) == [
        "response.mcp_call.completed",
        "conversation.item.done",
        "response.output_item.done",
        *DONE,
    ]
    assert events[2]["item"]["output"] == "found"
    client(respond())
    assert client.context[-1].output == "found"  # type: ignore[union-attr]


def test_the_next_response_may_be_asked_for_before_this_one_is_over() -> None:
    client, _ = calling()
    [made] = client.actions
    client.report("mcp_called", made.item_id, "found")  # type: ignore[union-attr]
    assert client(respond(metadata={"n": "2"})) == []
    [event] = client(respond())
    assert event["error"]["code"] == "conversation_already_has_active_response"
    events = client.done()
    assert kinds(events) == [*DONE, "response.created"]
    assert events[-1]["response"]["metadata"] == {"n": "2"}


def test_a_call_that_fails() -> None:
    client, _ = calling()
    [made] = client.actions
    client.done()
    events = client.report("mcp_called", made.item_id, FAILED)  # type: ignore[union-attr]
    assert events[0]["type"] == "response.mcp_call.failed"
    item = one(events, "response.done")["response"]["output"][0]
    assert item["error"] == {"type": "http_error", "code": 502, "message": "no answer"}


def test_approval_by_what_a_tool_does() -> None:
    """A server says which of its tools change nothing."""
    order = McpListedTool(name="order", input_schema={})
    client = listing({"never": {"read_only": True}}, SEARCH, order)
    client.turn()
    assert call(client)[0]["item"]["type"] == "mcp_call"
    assert call(client, "order")[0]["item"]["type"] == "mcp_approval_request"


def test_a_call_is_cancelled_with_its_response() -> None:
    client, _ = calling()
    [made] = client.actions
    client.done()
    events = client(CANCEL)
    assert kinds(events)[0] == "response.mcp_call.failed"
    assert one(events, "response.done")["response"]["status"] == "cancelled"
    assert client.report("mcp_called", made.item_id, "late") == []  # type: ignore[union-attr]


def answer(request_id: str, approve: bool) -> Event:
    fields = {"approval_request_id": request_id, "approve": approve}
    return created({"type": "mcp_approval_response", **fields})


def test_an_approved_call() -> None:
    client, events = calling("always")
    assert kinds(events)[-2:] == ["conversation.item.done", "response.output_item.done"]
    request = events[-1]["item"]
    assert (request["type"], request["name"]) == ("mcp_approval_request", "search")
    assert client.actions == []
    assert kinds(client.done()) == DONE
    events = client(answer(request["id"], True))
    assert kinds(events) == [
        "conversation.item.added",
        "conversation.item.done",
        "conversation.item.added",
        "response.mcp_call.in_progress",
    ]
    [made] = client.actions
    assert isinstance(made, McpCall)
    events = client.report("mcp_called", made.item_id, "found")
    assert kinds(events) == ["response.mcp_call.completed", "conversation.item.done"]
    assert events[1]["item"]["approval_request_id"] == request["id"]
    [event] = client(answer(request["id"], True))
    assert event["error"]["param"] == "item.approval_request_id"


def test_a_call_that_is_not_approved_is_not_made() -> None:
    client, events = calling({"never": {"tool_names": ["fetch"]}})
    client.done()
    assert len(client(answer(events[-1]["item"]["id"], False))) == 2
    assert client.actions == []
