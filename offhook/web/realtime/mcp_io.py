"""The MCP servers that a conversation's tools are of.

A server is connected to with the first request and until the call is over. One that does not
answer, or answers with too much, fails its request and nothing else.
"""

import asyncio
from collections.abc import Awaitable, Callable, Collection
from time import monotonic
from typing import Any, TypeVar

import httpx2
from loguru import logger
from mcp import Client
from mcp_types import Tool

from offhook.media.tasks_io import TaskSet
from offhook.media.untrusted_json import read_json
from offhook.web.config.mcp import OWN_HEADERS
from offhook.web.realtime.protocol.items import McpListedTool, McpToolError
from offhook.web.realtime.protocol.tools import MAX_DESCRIPTION_CHARS, McpTool
from offhook.web.tools.mcp_connection_io import (
    Failure,
    HttpTransport,
    McpConnection,
    call_tool,
    list_tools,
    text_of,
)

LIST_TIMEOUT_S = 10.0
"""Time limit in s for connecting to a server and listing its tools; then the listing fails, and the
client gets an error."""
CALL_TIMEOUT_S = 30.0
"""Time limit in s for a call, since the caller is waiting; then the call fails, and client and
model get an error."""
CLOSE_TIMEOUT_S = 1.0
"""Time limit in s for ending the sessions with all servers when a conversation is over; then their
connections are dropped."""
MAX_SERVERS = 16
"""Connections of one conversation at a time; a request to a further server fails with an error."""
MAX_CALLS = 16
"""Requests of one conversation at a time; a further one fails with an error."""
MAX_OUTPUT_CHARS = 1 << 16
"""Longest result that the model is given; of a longer one it gets the beginning."""
T = TypeVar("T")
Origin = tuple[str, str, int | None]


class Refused(Exception):
    """A request that is not made; the message is for clients."""


class McpConnections:
    """The MCP servers of one conversation."""

    def __init__(self, allowed: Collection[str], call_id: str) -> None:
        """`allowed`: the origins that may be connected to. `call_id` is for the log."""
        self._allowed = {_origin(httpx2.URL(origin)) for origin in allowed}
        self._call_id = call_id
        self._servers: dict[Any, _Server] = {}
        self._tasks = TaskSet()
        self._requests = 0

    async def close(self) -> None:
        """Ends all connections."""
        for server in self._servers.values():
            server.connection.close()
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=CLOSE_TIMEOUT_S)
        await self._tasks.close()

    async def list_tools(self, tool: McpTool) -> tuple[McpListedTool, ...] | McpToolError:
        """Returns the tools of a server that may be used, or why they are not known."""
        return await self._request(tool, "tools/list", LIST_TIMEOUT_S, lambda c: _list(c, tool))

    async def call(self, tool: McpTool, name: str, arguments: str) -> str | McpToolError:
        """Returns the result of a call, or why there is none; `arguments` in JSON."""
        try:
            given = read_json(arguments or "{}")
        except ValueError:
            return _failure("the arguments are not valid JSON")
        if not isinstance(given, dict):
            return _failure("the arguments are no JSON object")
        return await self._request(tool, name, CALL_TIMEOUT_S, lambda c: _call(c, name, given))

    async def _request(
        self,
        tool: McpTool,
        what: str,
        limit_s: float,
        ask: Callable[[Client], Awaitable[T | McpToolError]],
    ) -> T | McpToolError:
        begun = monotonic()
        self._requests += 1
        try:
            result = await self._ask(tool, limit_s, ask)
        finally:
            self._requests -= 1
        spent_ms = round(1000 * (monotonic() - begun))
        how = "failed" if isinstance(result, McpToolError) else "done"
        words = "{}: MCP {!r} {!r}: {} in {} ms"
        logger.info(words, self._call_id, tool.server_label, what, how, spent_ms)
        return result

    async def _ask(
        self, tool: McpTool, limit_s: float, ask: Callable[[Client], Awaitable[T | McpToolError]]
    ) -> T | McpToolError:
        try:
            server = self._server(tool)
        except Refused as refusal:
            logger.warning("{}: MCP: {}", self._call_id, refusal)
            return _failure(str(refusal))
        server.users += 1
        try:
            async with asyncio.timeout(limit_s):
                return await ask(await asyncio.shield(server.connection.client))
        except Exception as error:
            server.retired = True
            failure = server.connection.failure(error, limit_s)
            # What the server says may hold what was said.
            words = failure.message if failure.type != "protocol_error" else f"code {failure.code}"
            logger.warning("{}: MCP {}: {}", self._call_id, tool.server_label, words)
            return McpToolError(
                type=failure.type, message=failure.message, code=failure.code or None
            )
        finally:
            server.users -= 1
            if server.retired:  # the next request opens another connection
                if self._servers.get(server.key) is server:
                    del self._servers[server.key]
                if not server.users:
                    server.connection.close()

    def _server(self, tool: McpTool) -> "_Server":
        """Returns the connection to a tool's server, which may be beginning. Raises Refused."""
        if tool.server_url is None:
            raise Refused("this server connects to MCP servers by their server_url only")
        try:
            url = httpx2.URL(tool.server_url)
        except (httpx2.InvalidURL, ValueError) as error:
            raise Refused("server_url is not a URL") from error
        if url.userinfo or _origin(url) not in self._allowed:
            shown = f"{url.scheme}://{url.netloc.rpartition(b'@')[2].decode('ascii', 'replace')}"
            raise Refused(f"{shown} is none of the MCP servers that this server connects to")
        headers = dict(tool.headers or {})
        for name in headers:
            if name.lower() in OWN_HEADERS:
                raise Refused(f"headers: {name} cannot be set")
        if tool.authorization is not None:
            headers["Authorization"] = f"Bearer {tool.authorization}"
        if self._requests > MAX_CALLS:
            raise Refused(f"{MAX_CALLS} requests to MCP servers are in progress")
        key = (tool.server_url, frozenset(headers.items()))
        if (known := self._servers.get(key)) is not None:
            return known
        if len(self._servers) >= MAX_SERVERS:
            raise Refused(f"a conversation connects to {MAX_SERVERS} MCP servers at most")
        server = self._servers[key] = _Server(key, tool.server_url, headers)
        self._tasks.spawn(server.connection.run(), f"MCP server of {self._call_id}")
        return server


class _Server:
    """A connection to a server, and how it is used."""

    def __init__(self, key: Any, url: str, headers: dict[str, str]) -> None:
        self.key = key
        self.connection = McpConnection(HttpTransport(url, headers))
        self.users = 0
        """Requests in progress."""
        self.retired = False
        """It has failed: no further requests."""


async def _list(client: Client, tool: McpTool) -> tuple[McpListedTool, ...] | McpToolError:
    """Raises mcp's exceptions."""

    def allows(each: Tool) -> bool:
        return tool.allows(each.name, read_only=_listed(each).is_read_only)

    try:
        return tuple(map(_listed, await list_tools(client, allows, "choose allowed_tools")))
    except Failure as failure:
        return _failure(failure.message)


def _listed(tool: Tool) -> McpListedTool:
    return McpListedTool(
        name=tool.name,
        input_schema=tool.input_schema,
        description=(tool.description or "")[:MAX_DESCRIPTION_CHARS],
        annotations=None
        if tool.annotations is None
        else tool.annotations.model_dump(mode="json", by_alias=True, exclude_none=True),
    )


async def _call(client: Client, name: str, arguments: dict[str, Any]) -> str | McpToolError:
    """Raises mcp's exceptions."""
    result = await call_tool(client, name, arguments)
    text = text_of(result)
    if len(text) > MAX_OUTPUT_CHARS:
        left_out = len(text) - MAX_OUTPUT_CHARS
        text = f"{text[:MAX_OUTPUT_CHARS]}\n[{left_out} characters more are left out]"
    return _failure(text) if result.is_error else text


def _failure(message: str) -> McpToolError:
    return McpToolError(type="tool_execution_error", message=message)


def _origin(url: httpx2.URL) -> Origin:
    return url.scheme, url.host, url.port
