"""Tools of MCP servers: listing them, and calls with or without the client's approval."""

from collections.abc import Collection, Sequence

from offhook.web.realtime.conversation.actions import ListMcpTools, McpCall
from offhook.web.realtime.conversation.response import Response
from offhook.web.realtime.conversation.scope import ConversationScope
from offhook.web.realtime.protocol.items import (
    McpApprovalRequest,
    McpApprovalResponse,
    McpCallItem,
    McpListedTool,
    McpListTools,
    McpToolError,
)
from offhook.web.realtime.protocol.server_events import new_id
from offhook.web.realtime.protocol.tools import McpTool, Tool

MAX_REQUESTS = 128
"""Requests for approval that may be unanswered; the oldest is forgotten."""


class McpTools:
    """What a conversation does with MCP servers; the calls themselves are actions."""

    def __init__(self, scope: ConversationScope) -> None:
        self._scope = scope
        self._requests: dict[str, tuple[McpTool, McpApprovalRequest]] = {}
        """Calls that wait for the client's approval."""

    def list_tools(self, tools: Sequence[Tool], known: Collection[Tool]) -> None:
        """List the tools of the servers that are new."""
        for tool in tools:
            if isinstance(tool, McpTool) and tool not in known:
                item_id = new_id("item")
                label = tool.server_label
                item = McpListTools(id=item_id, type="mcp_list_tools", server_label=label)
                self._scope.items.add(item, done=False)
                self._scope.out.send("mcp_list_tools.in_progress", item_id=item_id)
                self._scope.out.add(ListMcpTools(item_id, tool))

    def listed(self, item_id: str, tools: Sequence[McpListedTool]) -> None:
        """The tools of a server are known."""
        item = self._scope.items.get(item_id)
        if isinstance(item, McpListTools):
            self._scope.out.send("mcp_list_tools.completed", item_id=item_id)
            self._scope.items.replace(item.model_copy(update={"tools": tuple(tools)}), done=True)

    def list_failed(self, item_id: str) -> None:
        """A server did not list its tools."""
        item = self._scope.items.get(item_id)
        if isinstance(item, McpListTools):
            self._scope.out.send("mcp_list_tools.failed", item_id=item_id)
            self._scope.items.replace(item, done=True)

    def call(self, response: Response, server_label: str, name: str, arguments: str) -> None:
        """A response calls a tool."""
        tool = next(
            (
                each
                for each in response.generate.tools
                if isinstance(each, McpTool) and each.server_label == server_label
            ),
            None,
        )
        if tool is not None and tool.allows(name) and tool.needs_approval(name):
            request = McpApprovalRequest(
                id=new_id("mcpr"),
                type="mcp_approval_request",
                server_label=server_label,
                name=name,
                arguments=arguments,
            )
            self._requests[request.key] = (tool, request)
            if len(self._requests) > MAX_REQUESTS:
                del self._requests[next(iter(self._requests))]
            response.mcp_item(request)
            return
        item = McpCallItem(
            id=new_id("mcp"),
            type="mcp_call",
            server_label=server_label,
            name=name,
            arguments=arguments,
        )
        response.mcp_call(item)
        if tool is None or not tool.allows(name):
            words = f"there is no tool {name} of {server_label}"
            response.mcp_result(
                item.key, None, McpToolError(type="tool_execution_error", message=words)
            )
        else:
            self._scope.out.add(McpCall(item.key, tool, name, arguments))

    def answered(self, answer: McpApprovalResponse) -> None:
        """The client has answered a request: make the call that it approves."""
        waiting = self._requests.pop(answer.approval_request_id, None)
        if waiting is None or not answer.approve:
            return
        tool, request = waiting
        item = McpCallItem(
            id=new_id("mcp"),
            type="mcp_call",
            server_label=request.server_label,
            name=request.name,
            arguments=request.arguments,
            approval_request_id=request.key,
        )
        self._scope.items.add(item, done=False)
        self._scope.out.send("response.mcp_call.in_progress", item_id=item.key, output_index=0)
        self._scope.out.add(McpCall(item.key, tool, request.name, request.arguments))

    def returned(self, item_id: str, output: str | None, error: McpToolError | None) -> bool:
        """An approved call is over; returns False if it was made by a running response."""
        item = self._scope.items.get(item_id)
        if not isinstance(item, McpCallItem) or item.approval_request_id is None:
            return False
        if item.output is None and item.error is None:
            what = "completed" if error is None else "failed"
            self._scope.out.send(f"response.mcp_call.{what}", item_id=item_id, output_index=0)
            changes = {"output": output, "error": error}
            self._scope.items.replace(item.model_copy(update=changes), done=True)
        return True
