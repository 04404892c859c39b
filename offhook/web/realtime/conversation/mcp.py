"""Tools of MCP servers: listing them, and calls with or without the client's approval. The tools of
the agent's own configuration are shown to clients as those of a server that needs no listing."""

from collections.abc import Sequence

from offhook.web.config.mcp import function_name
from offhook.web.realtime.conversation.actions import ListMcpTools, McpCall, McpFunction
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
MAX_KNOWN = 64
"""MCP servers whose tools are remembered; the oldest are forgotten."""
OF_AGENT = McpTool(type="mcp", server_label="agent", server_url="agent:", require_approval="never")
"""Stands for the tools of the agent's own configuration, which each session has."""


class McpTools:
    """What a conversation does with MCP servers; the calls themselves are actions."""

    def __init__(self, scope: ConversationScope) -> None:
        self._scope = scope
        self._listing: dict[str, McpTool] = {}
        """Servers that are being asked for their tools, by the ids of their items."""
        self._known: list[tuple[McpTool, tuple[McpListedTool, ...]]] = []
        """Servers that have listed their tools."""
        self._of_agent: tuple[McpListedTool, ...] = ()
        self._requests: dict[str, tuple[McpFunction, McpApprovalRequest]] = {}
        """Calls that wait for the client's approval."""

    # --- lists ---

    def offer(self, tools: Sequence[McpListedTool]) -> None:
        """Offer the agent's own tools to the model from the next response on."""
        self._of_agent = tuple(tools)

    def list_tools(self, tools: Sequence[Tool]) -> None:
        """List the tools of the servers that have not listed them."""
        for tool in tools:
            if isinstance(tool, McpTool) and not self._is_known(tool):
                item_id = new_id("item")
                label = tool.server_label
                self._listing[item_id] = tool
                item = McpListTools(id=item_id, type="mcp_list_tools", server_label=label)
                self._scope.items.add(item, done=False)
                self._scope.out.send("mcp_list_tools.in_progress", item_id=item_id)
                self._scope.out.add(ListMcpTools(item_id, tool))

    def is_listing(self, tools: Sequence[Tool]) -> bool:
        """Whether a server of these is being asked for its tools."""
        return any(tool in tools for tool in self._listing.values())

    def listed(self, item_id: str, tools: Sequence[McpListedTool]) -> None:
        """The tools of a server are known."""
        if (server := self._listing.pop(item_id, None)) is not None:
            self._known = [*self._known, (server, tuple(tools))][-MAX_KNOWN:]
            self._complete(item_id, "completed", {"tools": tuple(tools)})

    def list_failed(self, item_id: str, message: str) -> None:
        """A server did not list its tools."""
        if self._listing.pop(item_id, None) is not None:
            self._complete(item_id, "failed", {"error": message})

    def _is_known(self, tool: McpTool) -> bool:
        return tool in self._listing.values() or any(tool == known for known, _ in self._known)

    def _complete(self, item_id: str, what: str, changes: dict[str, object]) -> None:
        item = self._scope.items.get(item_id)
        if isinstance(item, McpListTools):
            self._scope.out.send(f"mcp_list_tools.{what}", item_id=item_id)
            self._scope.items.replace(item.model_copy(update=changes), done=True)

    def functions(self, tools: Sequence[Tool], *, of_agent: bool) -> tuple[McpFunction, ...]:
        """Return the tools of the MCP servers among `tools`, as far as they are known, and the
        agent's own if wanted. A name that is taken gets the label of its server in front."""
        taken = {tool.name for tool in tools if not isinstance(tool, McpTool)}
        found = list[McpFunction]()
        known = [(server, listed) for server, listed in self._known if server in tools]
        if of_agent:
            known.append((OF_AGENT, self._of_agent))
        for server, listed in known:
            for each in listed:
                names = map(function_name, (each.name, f"{server.server_label}_{each.name}"))
                name = next((name for name in names if name not in taken), None)
                if name is not None:
                    taken.add(name)
                    found.append(McpFunction(name, server, each))
        return tuple(found)

    # --- calls ---

    def call(self, response: Response, function: McpFunction, arguments: str) -> None:
        """A response calls a tool."""
        label, name = function.server.server_label, function.tool.name
        if function.server.needs_approval(name, read_only=function.tool.is_read_only):
            request = McpApprovalRequest(
                id=new_id("mcpr"),
                type="mcp_approval_request",
                server_label=label,
                name=name,
                arguments=arguments,
            )
            self._requests[request.key] = (function, request)
            if len(self._requests) > MAX_REQUESTS:
                del self._requests[next(iter(self._requests))]
            response.mcp_item(request)
            return
        item = McpCallItem(
            id=new_id("mcp"),
            type="mcp_call",
            server_label=label,
            name=name,
            arguments=arguments,
        )
        response.mcp_call(item)
        self._scope.out.add(McpCall(item.key, function.server, name, arguments, response.id))

    def answered(self, answer: McpApprovalResponse) -> None:
        """The client has answered a request: make the call that it approves."""
        waiting = self._requests.pop(answer.approval_request_id, None)
        if waiting is None or not answer.approve:
            return
        function, request = waiting
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
        self._scope.out.add(McpCall(item.key, function.server, request.name, request.arguments))

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
