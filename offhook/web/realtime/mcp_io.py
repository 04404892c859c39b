"""Connections to the MCP servers that a conversation's tools are of.

A server is connected to with the first request and until the call is over. One that does not
answer, or answers with too much, fails its request and nothing else.
"""

import asyncio
import importlib
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Collection
from time import monotonic
from typing import Any, TypeVar

import httpx2
from loguru import logger
from mcp import Client, MCPError
from mcp.client.sse import sse_client
from mcp.client.streamable_http import streamable_http_client
from mcp_types import CallToolResult, EmbeddedResource, TextContent, TextResourceContents

from offhook.media.tasks_io import TaskSet
from offhook.web.realtime.protocol.items import McpListedTool, McpToolError
from offhook.web.realtime.protocol.tools import MAX_DESCRIPTION_CHARS, McpTool

LIST_TIMEOUT_S = 10.0
"""Time limit in s for connecting to a server and listing its tools; then the listing fails, and the
client gets an error."""
CALL_TIMEOUT_S = 30.0
"""Time limit in s for a call, since the caller is waiting; then the call fails, and client and
model get an error."""
HTTP_TIMEOUT_S = 30.0
"""Time limit in s for each step of an HTTP request; then the request and its connection fail."""
CLOSE_TIMEOUT_S = 1.0
"""Time limit in s for ending the sessions with all servers when a conversation is over; then their
connections are dropped."""
MAX_SERVERS = 16
"""Connections of one conversation at a time; a request to a further server fails with an error."""
MAX_CALLS = 16
"""Requests of one conversation at a time; a further one fails with an error."""
MAX_BODY_BYTES = 4 << 20
"""Maximum size of an answer, or of an event of a streamed one; with a longer one the request
fails."""
MAX_OUTPUT_CHARS = 1 << 16
"""Longest result that the model is given; of a longer one it gets the beginning."""
MAX_LIST_CHARS = 100_000
"""Maximum length of a list of tools, as JSON; a longer one fails with an error that suggests
`allowed_tools`."""
MAX_PAGES = 16
"""Maximum pages of a list of tools; a longer one fails with an error."""
OWN_HEADERS = {
    *("accept-encoding", "connection", "content-length", "host", "te", "trailer"),
    *("transfer-encoding", "upgrade"),
}
"""Headers that a tool cannot set: they choose what is reached at a server's address, or how."""
T = TypeVar("T")
Origin = tuple[str, str, int | None]

importlib.import_module("jsonschema")  # mcp would load it in the middle of a call


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
            server.close()
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=CLOSE_TIMEOUT_S)
        await self._tasks.close()

    async def list_tools(self, tool: McpTool) -> tuple[McpListedTool, ...] | McpToolError:
        """Returns the tools of a server that may be used, or why they are not known."""
        return await self._request(tool, "tools/list", LIST_TIMEOUT_S, lambda c: _list(c, tool))

    async def call(self, tool: McpTool, name: str, arguments: str) -> str | McpToolError:
        """Returns the result of a call, or why there is none; `arguments` in JSON."""
        try:
            given = json.loads(arguments or "{}")
        except (ValueError, RecursionError):
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
                return await ask(await asyncio.shield(server.client))
        except Exception as error:
            server.retired = True
            failure = server.failure(error, limit_s)
            # What the server says may hold what was said.
            words = failure.message if failure.type != "protocol_error" else f"code {failure.code}"
            logger.warning("{}: MCP {}: {}", self._call_id, tool.server_label, words)
            return failure
        finally:
            server.users -= 1
            if server.retired:  # the next request opens another connection
                if self._servers.get(server.key) is server:
                    del self._servers[server.key]
                if not server.users:
                    server.close()

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
        self._tasks.spawn(server.run(), f"MCP server of {self._call_id}")
        return server


class _Server:
    """A connection to a server, held by the task of `run`."""

    def __init__(self, key: Any, url: str, headers: dict[str, str]) -> None:
        self.key = key
        self._url = url
        self._headers = headers
        self.client: asyncio.Future[Client] = asyncio.get_running_loop().create_future()
        """Set once it is connected."""
        self.client.add_done_callback(lambda client: client.cancelled() or client.exception())
        self.users = 0
        """Requests in progress."""
        self.retired = False
        """It has failed: no further requests."""
        self._ended = asyncio.Event()
        self._status = 0
        """HTTP status of the last answer to a POST."""

    def close(self) -> None:
        """Ends `run`."""
        self._ended.set()

    async def run(self) -> None:
        connecting = asyncio.ensure_future(self._connect())
        ended = asyncio.ensure_future(self._ended.wait())
        try:
            await asyncio.wait((connecting, ended), return_when=asyncio.FIRST_COMPLETED)
            if self.client.done():
                await asyncio.wait((connecting,))
        finally:
            for task in (connecting, ended):
                task.cancel()
            await asyncio.gather(connecting, ended, return_exceptions=True)
            self.client.cancel()

    async def _connect(self) -> None:
        legacy = httpx2.URL(self._url).path.endswith("/sse")
        try:
            if legacy:
                transport: Any = sse_client(self._url, httpx_client_factory=self._http)
                async with Client(transport, mode="legacy", cache=None) as client:
                    await self._serve(client)
            else:
                async with self._http() as http:
                    transport = streamable_http_client(
                        self._url, http_client=http, max_sse_event_size=MAX_BODY_BYTES
                    )
                    async with Client(transport, cache=None) as client:
                        await self._serve(client)
        except Exception as error:
            if not self.client.done():
                self.client.set_exception(error)

    async def _serve(self, client: Client) -> None:
        self.client.set_result(client)
        await self._ended.wait()

    def _http(self, *_: Any, **__: Any) -> httpx2.AsyncClient:
        return httpx2.AsyncClient(
            headers={**self._headers, "Accept-Encoding": "identity"},
            timeout=httpx2.Timeout(HTTP_TIMEOUT_S),
            trust_env=False,
            event_hooks={"response": [self._answered]},
        )

    async def _answered(self, response: httpx2.Response) -> None:
        if response.request.method == "POST":
            self._status = response.status_code
        if response.headers.get("content-encoding", "identity") != "identity":
            raise httpx2.DecodingError("the answer is compressed")
        if not response.headers.get("content-type", "").startswith("text/event-stream"):
            # Events have a limit of their own.
            assert isinstance(response.stream, httpx2.AsyncByteStream)
            response.stream = _Bounded(response.stream)

    def failure(self, error: Exception, limit_s: float) -> McpToolError:
        """Returns what clients are told of a request that failed, nothing of its headers."""
        while isinstance(error, ExceptionGroup):
            error = error.exceptions[0]
        if isinstance(error, TimeoutError):
            return _failure(f"the MCP server has not answered within {limit_s:g} s")
        if isinstance(error, httpx2.HTTPStatusError):
            self._status = error.response.status_code
        if self._status >= 400:
            words = f"the MCP server answers with HTTP status {self._status}"
            return McpToolError(type="http_error", code=self._status, message=words)
        if isinstance(error, MCPError):
            words = error.message[:MAX_DESCRIPTION_CHARS]
            return McpToolError(type="protocol_error", code=error.code, message=words)
        return _failure(f"the request to the MCP server failed: {type(error).__name__}")


class _Bounded(httpx2.AsyncByteStream):
    """The body of an answer, up to MAX_BODY_BYTES."""

    def __init__(self, stream: httpx2.AsyncByteStream) -> None:
        self._stream = stream

    async def __aiter__(self) -> AsyncIterator[bytes]:
        size = 0
        async for chunk in self._stream:
            size += len(chunk)
            if size > MAX_BODY_BYTES:
                raise httpx2.ReadError(f"the answer is over {MAX_BODY_BYTES} bytes")
            yield chunk

    async def aclose(self) -> None:
        await self._stream.aclose()


async def _list(client: Client, tool: McpTool) -> tuple[McpListedTool, ...] | McpToolError:
    found = list[McpListedTool]()
    chars, cursor = 0, None
    for _ in range(MAX_PAGES):
        page = await client.list_tools(cursor=cursor)
        for each in page.tools:
            listed = McpListedTool(
                name=each.name,
                input_schema=each.input_schema,
                description=(each.description or "")[:MAX_DESCRIPTION_CHARS],
                annotations=None
                if each.annotations is None
                else each.annotations.model_dump(mode="json", by_alias=True, exclude_none=True),
            )
            if tool.allows(listed.name, read_only=listed.is_read_only):
                found.append(listed)
                chars += len(listed.model_dump_json())
        if chars > MAX_LIST_CHARS:
            words = f"the list of tools is over {MAX_LIST_CHARS} characters: choose allowed_tools"
            return _failure(words)
        if (cursor := page.next_cursor) is None:
            return tuple(found)
    return _failure(f"the list of tools is over {MAX_PAGES} pages")


async def _call(client: Client, name: str, arguments: dict[str, Any]) -> str | McpToolError:
    result = await client.call_tool(name, arguments)
    text = _text_of(result)
    if len(text) > MAX_OUTPUT_CHARS:
        left_out = len(text) - MAX_OUTPUT_CHARS
        text = f"{text[:MAX_OUTPUT_CHARS]}\n[{left_out} characters more are left out]"
    return _failure(text) if result.is_error else text


def _text_of(result: CallToolResult) -> str:
    parts = list[str]()
    for part in result.content:
        match part:
            case TextContent(text=text):
                parts.append(text)
            case EmbeddedResource(resource=TextResourceContents(text=text)):
                parts.append(text)
            case _:
                parts.append(f"[{part.type}]")
    if not parts and result.structured_content is not None:
        return json.dumps(result.structured_content, ensure_ascii=False)
    return "\n".join(parts)


def _failure(message: str) -> McpToolError:
    return McpToolError(type="tool_execution_error", message=message)


def _origin(url: httpx2.URL) -> Origin:
    return url.scheme, url.host, url.port
