"""A connection to an MCP server, over HTTP or with a process of ours.

What a server sends is bounded and paced, whatever it is: one that does not answer, answers with too
much or never stops talking fails its own requests and nothing else.
"""

import asyncio
import importlib
import json
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from time import monotonic
from typing import Any, Literal, Protocol, Self

import httpx2
from mcp import Client, MCPError
from mcp.client.sse import sse_client
from mcp.client.streamable_http import streamable_http_client
from mcp.shared.message import SessionMessage
from mcp_types import (
    CONNECTION_CLOSED,
    CallToolRequest,
    CallToolRequestParams,
    CallToolResult,
    EmbeddedResource,
    ResourceLink,
    ServerNotification,
    TextContent,
    TextResourceContents,
    Tool,
    ToolListChangedNotification,
)
from mcp_types.version import MODERN_PROTOCOL_VERSIONS
from pydantic import ValidationError

from offhook.web.http.json_size import MAX_JSON_VALUES, count_values

HTTP_TIMEOUT_S = 30.0
"""Time limit in s for connecting to a server and for sending a request; then the connection
fails."""
HTTP_SILENCE_S = 90.0
"""Time in s after which a response that says nothing is given up, and the connection with it; calls
of tools have a shorter limit of their own."""
MAX_MESSAGE_BYTES = 4 << 20
"""Maximum size of an MCP server's message, of at most MAX_JSON_VALUES values; with a longer one the
request fails, and with a process its connection."""
MAX_MESSAGES_PER_S = 100
"""Messages of an MCP server that are read in a second; more of them wait, and so does it."""
MAX_BYTES_PER_S = 1 << 20
"""Maximum bytes of an MCP server that are read in a second; more of them wait."""
MIN_CHUNK_BYTES = 4096
"""Bytes that a chunk of an MCP server's response counts as at least, of MAX_BYTES_PER_S: each takes
time, however short it is."""
MAX_STREAMS_PER_S = 1
"""Streams of notifications that are opened to an MCP server in a second, at most: it may end them
at once."""
MAX_LIST_CHARS = 100_000
"""Maximum length of an MCP server's list of tools, as JSON, of those that are wanted; a longer one
fails with an error that suggests to choose."""
MAX_PAGES = 16
"""Maximum pages of a list of tools; a longer one fails with an error."""
MAX_ERROR_CHARS = 500
"""Characters of an MCP server's error that are passed on, at most."""

_EVENT_ENDS = (b"\n\n", b"\r\n\r\n", b"\r\r")

importlib.import_module("jsonschema")  # mcp would load it in the middle of a call


FailureType = Literal["tool_execution_error", "http_error", "protocol_error"]


class Failure(Exception):
    """Raised when a request has no result; the message is for clients and models."""

    def __init__(
        self, message: str, of: FailureType = "tool_execution_error", code: int = 0
    ) -> None:
        """`code` is the HTTP status or JSON-RPC code, of the types that have one."""
        super().__init__(message)
        self.message, self.type, self.code = message, of, code


class Pace:
    """Lets so much through in a second, and has the rest wait."""

    def __init__(self, per_s: int) -> None:
        self._per_s = self._left = per_s
        self._until = 0.0

    async def acquire(self, amount: int = 1) -> None:
        now = monotonic()
        if now >= self._until:
            self._left, self._until = self._per_s, now + 1
        self._left -= amount
        if self._left < 0:
            await asyncio.sleep(self._until - now)


class Transport(Protocol):
    """What messages to a server and from it go over."""

    mode: Literal["auto", "legacy"]
    """How the version of the protocol is agreed on."""

    def open(self) -> AbstractAsyncContextManager[Any]:
        """Opens it for mcp's client: a stream of messages in and one out. Raises OSError."""
        ...

    def failure(self, error: Exception) -> Failure | None:
        """Returns what it knows of the cause of an error; None: nothing."""
        ...


class HttpTransport:
    """Streamable HTTP; the older transport where the URL ends in `/sse`."""

    def __init__(self, url: str, headers: Mapping[str, str]) -> None:
        self._url = url
        self._headers = headers
        self._is_legacy = httpx2.URL(url).path.endswith("/sse")
        self.mode: Literal["auto", "legacy"] = "legacy" if self._is_legacy else "auto"
        self._status = 0
        """HTTP status of the last response to a POST."""
        self._bytes = Pace(MAX_BYTES_PER_S)
        self._streams = Pace(MAX_STREAMS_PER_S)

    @asynccontextmanager
    async def open(self) -> AsyncIterator[Any]:
        if self._is_legacy:
            async with sse_client(self._url, httpx_client_factory=self._http) as streams:
                yield streams
            return
        async with (
            self._http() as http,
            streamable_http_client(
                self._url, http_client=http, max_sse_event_size=MAX_MESSAGE_BYTES
            ) as streams,
        ):
            yield streams

    def _http(self, *_: Any, **__: Any) -> httpx2.AsyncClient:
        return httpx2.AsyncClient(
            headers={**self._headers, "Accept-Encoding": "identity"},
            timeout=httpx2.Timeout(HTTP_TIMEOUT_S, read=HTTP_SILENCE_S),
            trust_env=False,
            event_hooks={"request": [self._on_request], "response": [self._on_response]},
        )

    async def _on_request(self, request: httpx2.Request) -> None:
        if request.method == "GET":
            await self._streams.acquire()

    async def _on_response(self, response: httpx2.Response) -> None:
        if response.request.method == "POST":
            self._status = response.status_code
        if response.headers.get("content-encoding", "identity") != "identity":
            raise httpx2.DecodingError("the response is compressed")
        is_stream = response.headers.get("content-type", "").startswith("text/event-stream")
        assert isinstance(response.stream, httpx2.AsyncByteStream)
        response.stream = _Body(response.stream, self._bytes, has_events=is_stream)

    def failure(self, error: Exception) -> Failure | None:
        if isinstance(error, httpx2.ConnectError | httpx2.ConnectTimeout):
            return Failure("the MCP server cannot be reached")
        if isinstance(error, httpx2.HTTPStatusError):
            self._status = error.response.status_code
        if self._status < 400 or isinstance(error, TimeoutError):
            return None
        words = f"the MCP server answers with HTTP status {self._status}"
        return Failure(words, "http_error", self._status)


class _Body(httpx2.AsyncByteStream):
    """The body of a response, of a stream of events or of at most MAX_MESSAGE_BYTES."""

    def __init__(self, stream: httpx2.AsyncByteStream, pace: Pace, *, has_events: bool) -> None:
        self._stream, self._pace, self._has_events = stream, pace, has_events

    async def __aiter__(self) -> AsyncIterator[bytes]:
        size = values = 0
        async for chunk in self._stream:
            size += len(chunk)
            if self._has_events and (end := max(map(chunk.rfind, _EVENT_ENDS))) >= 0:
                values = count_values(chunk[end:])  # of the event that has begun
            else:
                values += count_values(chunk)
            if size > MAX_MESSAGE_BYTES and not self._has_events:  # events have a limit already
                raise httpx2.ReadError(f"the response is over {MAX_MESSAGE_BYTES} bytes")
            if values > MAX_JSON_VALUES:
                raise httpx2.ReadError(f"the response has more than {MAX_JSON_VALUES} values")
            await self._pace.acquire(max(len(chunk), MIN_CHUNK_BYTES))
            yield chunk

    async def aclose(self) -> None:
        await self._stream.aclose()


class _PacedMessages:
    """The messages of a server, in its pace but no faster than MAX_MESSAGES_PER_S."""

    def __init__(self, stream: Any, at_end: Callable[[], None]) -> None:
        self._stream, self._at_end = stream, at_end
        self._pace = Pace(MAX_MESSAGES_PER_S)

    async def receive(self) -> SessionMessage | Exception:
        message: SessionMessage | Exception = await self._stream.receive()
        await self._pace.acquire()
        return message

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> SessionMessage | Exception:
        try:
            message: SessionMessage | Exception = await self._stream.__anext__()
        except StopAsyncIteration:
            self._at_end()
            raise
        await self._pace.acquire()
        return message

    async def aclose(self) -> None:
        await self._stream.aclose()

    async def __aenter__(self) -> Self:
        await self._stream.__aenter__()
        return self

    async def __aexit__(self, *error: Any) -> None:
        await self._stream.__aexit__(*error)


class McpConnection:
    """A connection to a server, held by the task of `run`."""

    def __init__(self, transport: Transport, on_changed: Callable[[], None] = lambda: None) -> None:
        """`on_changed` is called when the server says that its tools are others."""
        self._transport = transport
        self._on_changed = on_changed
        self.client: asyncio.Future[Client] = asyncio.get_running_loop().create_future()
        """Set once it is connected; cancelled if that was not waited for."""
        self.client.add_done_callback(lambda client: client.cancelled() or client.exception())
        self._closing = asyncio.Event()
        self._ended = asyncio.Event()

    @property
    def has_ended(self) -> bool:
        """Whether a request would fail."""
        return self._ended.is_set()

    def close(self) -> None:
        """Ends `run`."""
        self._closing.set()
        self._ended.set()

    async def run(self) -> None:
        """Connects and returns when the connection has ended, by whichever side."""
        connecting = asyncio.ensure_future(self._connect())
        closing = asyncio.ensure_future(self._closing.wait())
        try:
            await asyncio.wait((connecting, closing), return_when=asyncio.FIRST_COMPLETED)
            if self.client.done():
                await asyncio.wait((connecting,))
        finally:
            for task in (connecting, closing):
                task.cancel()
            await asyncio.gather(connecting, closing, return_exceptions=True)
            self.client.cancel()

    async def _connect(self) -> None:
        try:
            mode = self._transport.mode
            client = Client(self._open(), mode=mode, cache=None, message_handler=self._on_message)
            async with client:
                self.client.set_result(client)
                await self._ended.wait()
        except Exception as error:
            if not self.client.done():
                self.client.set_exception(error)
        finally:
            self._ended.set()

    @asynccontextmanager
    async def _open(self) -> AsyncIterator[Any]:
        async with self._transport.open() as (messages, out):
            yield _PacedMessages(messages, self._ended.set), out

    async def _on_message(self, message: ServerNotification | Exception) -> None:
        if isinstance(message, ToolListChangedNotification):
            self._on_changed()

    def failure(self, error: Exception, limit_s: float) -> Failure:
        """Returns what clients are told of a request that failed, nothing of its headers."""
        while isinstance(error, ExceptionGroup):
            error = error.exceptions[0]
        if isinstance(error, Failure):
            return error
        if (known := self._transport.failure(error)) is not None:
            return known
        if isinstance(error, TimeoutError):
            return Failure(f"the MCP server has not answered within {limit_s:g} s")
        if isinstance(error, ValidationError):
            return Failure("what the MCP server answers is not as the protocol says")
        if isinstance(error, MCPError) and error.code == CONNECTION_CLOSED:
            words = "the MCP server has broken the connection off"
            return Failure(words, "protocol_error", error.code)
        if isinstance(error, MCPError):
            return Failure(error.message[:MAX_ERROR_CHARS], "protocol_error", error.code)
        return Failure(f"the request to the MCP server failed: {type(error).__name__}")


async def watch_list(client: Client, on_changed: Callable[[], None]) -> None:
    """Has a server of the newer protocol, which sends no notifications unasked, say that its tools
    are others; returns when it does so no more. Raises mcp's exceptions."""
    async with client.listen(tools_list_changed=True) as events:
        async for _ in events:
            on_changed()


def is_modern(client: Client) -> bool:
    """Returns whether the connection is of the newer protocol."""
    return client.protocol_version in MODERN_PROTOCOL_VERSIONS


async def list_tools(client: Client, wants: Callable[[Tool], bool], hint: str) -> list[Tool]:
    """Returns the tools of a server that are wanted. Raises Failure if they are too many, with a
    hint how to choose, and mcp's exceptions."""
    found = list[Tool]()
    chars, cursor = 0, None
    for _ in range(MAX_PAGES):
        page = await client.list_tools(cursor=cursor)
        for tool in filter(wants, page.tools):
            found.append(tool)
            chars += len(tool.model_dump_json(include={"name", "description", "input_schema"}))
        if chars > MAX_LIST_CHARS:
            raise Failure(f"the list of tools is over {MAX_LIST_CHARS} characters: {hint}")
        if (cursor := page.next_cursor) is None:
            return found
    raise Failure(f"the list of tools is over {MAX_PAGES} pages")


async def call_tool(client: Client, name: str, arguments: dict[str, Any]) -> CallToolResult:
    """Returns the result of a call, which may be an error. Raises mcp's exceptions.

    mcp's own `call_tool` would check it against the schema that the server has given, whose regular
    expressions and references may take any time."""
    params = CallToolRequestParams(name=name, arguments=arguments)
    return await client.session.send_request(CallToolRequest(params=params), CallToolResult)


def text_of(result: CallToolResult) -> str:
    """Returns a result as a text, with a note in place of images and sounds."""
    parts = list[str]()
    for part in result.content:
        match part:
            case TextContent(text=text):
                parts.append(text)
            case EmbeddedResource(resource=TextResourceContents(text=text)):
                parts.append(text)
            case ResourceLink(name=name, uri=uri):
                parts.append(f"[{name}: {uri}]")
            case _:
                parts.append(f"[{part.type} left out]")
    if not parts and result.structured_content is not None:
        return json.dumps(result.structured_content, ensure_ascii=False)
    return "\n".join(parts)
