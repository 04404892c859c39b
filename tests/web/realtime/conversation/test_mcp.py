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


def calling(approval: object = "never", **fields: Any) -> tuple[Client, list[Event]]:
    client = Client(session={"tools": [server(approval, **fields)]})
    client.turn()
    args = ("docs", "search", '{"q":"x"}')
    return client, client.report("response_mcp_call", client.response_id, *args)


def test_tools_are_listed() -> None:
    client = Client()
    events = client(update(tools=[server()]))
    assert kinds(events) == [
        "session.updated",
        "conversation.item.added",
        "mcp_list_tools.in_progress",
    ]
    listing = client.actions[-1]
    assert isinstance(listing, ListMcpTools)
    tool = McpListedTool(name="search", input_schema={"type": "object"})
    events = client.report("mcp_tools", listing.item_id, [tool])
    assert kinds(events) == ["mcp_list_tools.completed", "conversation.item.done"]
    assert events[1]["item"]["tools"][0]["name"] == "search"
    assert kinds(client(update(tools=[server()], instructions="x"))) == ["session.updated"]


def test_a_session_may_begin_with_a_server_that_does_not_answer() -> None:
    client = Client(session={"tools": [server()]})
    client.take(client.core.started())
    [listing] = client.actions
    assert isinstance(listing, ListMcpTools)
    assert kinds(client.report("mcp_tools_failed", listing.item_id)) == [
        "mcp_list_tools.failed",
        "conversation.item.done",
    ]


def test_a_call_and_its_result() -> None:
    client, events = calling()
    assert kinds(events) == CALL
    [call] = client.actions
    assert isinstance(call, McpCall)
    assert (call.name, call.arguments, call.tool.server_label) == ("search", '{"q":"x"}', "docs")
    assert client.done() == []  # the call has not returned
    events = client.report("mcp_call_done", call.item_id, "found")
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
    [call] = client.actions
    client.report("mcp_call_done", call.item_id, "found")  # type: ignore[union-attr]
    assert client(respond(metadata={"n": "2"})) == []
    [event] = client(respond())
    assert event["error"]["code"] == "conversation_already_has_active_response"
    events = client.done()
    assert kinds(events) == [*DONE, "response.created"]
    assert events[-1]["response"]["metadata"] == {"n": "2"}


def test_a_call_that_fails() -> None:
    client, _ = calling()
    [call] = client.actions
    client.done()
    events = client.report("mcp_call_failed", call.item_id, FAILED)  # type: ignore[union-attr]
    assert events[0]["type"] == "response.mcp_call.failed"
    item = one(events, "response.done")["response"]["output"][0]
    assert item["error"] == {"type": "http_error", "code": 502, "message": "no answer"}


def test_a_tool_that_is_not_allowed_is_not_called() -> None:
    client, events = calling(allowed_tools=["fetch"])
    assert client.actions == []
    assert "response.mcp_call.failed" in kinds(events)
    assert kinds(client.done()) == DONE


def test_a_call_is_cancelled_with_its_response() -> None:
    client, _ = calling()
    [call] = client.actions
    client.done()
    events = client(CANCEL)
    assert kinds(events)[0] == "response.mcp_call.failed"
    assert one(events, "response.done")["response"]["status"] == "cancelled"
    assert client.report("mcp_call_done", call.item_id, "late") == []  # type: ignore[union-attr]


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
    [call] = client.actions
    assert isinstance(call, McpCall)
    events = client.report("mcp_call_done", call.item_id, "found")
    assert kinds(events) == ["response.mcp_call.completed", "conversation.item.done"]
    assert events[1]["item"]["approval_request_id"] == request["id"]
    [event] = client(answer(request["id"], True))
    assert event["error"]["param"] == "item.approval_request_id"


def test_a_call_that_is_not_approved_is_not_made() -> None:
    client, events = calling({"never": {"tool_names": ["fetch"]}})
    client.done()
    assert len(client(answer(events[-1]["item"]["id"], False))) == 2
    assert client.actions == []
