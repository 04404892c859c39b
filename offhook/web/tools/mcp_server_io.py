"""An MCP server whose tools agents have, and the connection to it.

The connection is opened at the start and again when it is lost, with pauses that grow; meanwhile
calls have the other tools.
"""

import asyncio
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from time import monotonic
from typing import Any

from jsonschema import Draft202012Validator, SchemaError
from loguru import logger
from mcp import Client, MCPError
from mcp.client.subscriptions import SubscriptionLost
from mcp_types import CONNECTION_CLOSED, CallToolResult, Tool

from offhook.media.tasks_io import first_of
from offhook.pipeline.speech.streams.retry import SPREAD_S, RetryPolicy
from offhook.web.config.config import Config
from offhook.web.config.mcp import McpServer as Settings
from offhook.web.tools.mcp_connection_io import (
    MAX_ERROR_CHARS,
    Failure,
    HttpTransport,
    McpConnection,
    call_tool,
    is_modern,
    list_tools,
    text_of,
    watch_list,
)
from offhook.web.tools.mcp_functions import (
    MAX_DESCRIPTION_CHARS,
    McpFunction,
    wanted_tools,
)
from offhook.web.tools.mcp_process_io import ProcessTransport
from offhook.web.tools.tool_result import ToolFailed, shown

CONNECT_S = 10.0
"""Time limit in s for connecting to an MCP server and listing its tools; then it is tried again."""
CLOSE_S = 7.0
"""Time limit in s for ending a connection to an MCP server, and its process; then it is
dropped."""
RETRY_S = 0.5
"""Pause in s before an MCP server is tried again, which doubles up to RETRY_MAX_S."""
RETRY_MAX_S = 60.0
"""Maximum pause in s between attempts to connect to an MCP server."""
STEADY_S = 30.0
"""Time in s that a connection has to last for the pauses to begin anew."""
LIST_S = 60.0
"""Interval in s at which the tools of a server are listed again, which shows whether it is still
there: not all say that their tools are others."""
CHANGED_S = 1.0
"""Pause in s before a server is asked for its tools because they are others: it may say so without
end."""
MAX_CALLS = 100
"""Maximum calls of an MCP server's tools at a time; further ones wait within their time."""
MAX_TOOLS = 128
"""Maximum tools of an MCP server that agents have, as many as models take; of more it has none, and
the log suggests to choose."""


class ListedServer:
    """A server and its tools, as they were listed last."""

    def __init__(self, name: str, settings: Settings) -> None:
        self.name, self.settings = name, settings
        self.functions: tuple[McpFunction, ...] = ()
        self.unfit: dict[str, str] = {}
        """Tools that models cannot have, and why."""

    def transport(self) -> HttpTransport | ProcessTransport:
        """Returns a way to the server."""
        settings = self.settings
        if settings.url:
            return HttpTransport(settings.url, settings.headers)
        return ProcessTransport(settings.command, settings.env)

    async def refresh(self, client: Client, wants: Callable[[Tool], bool]) -> None:
        """Asks for the tools that are wanted. Raises Failure and mcp's exceptions."""
        hint = "choose some by names"
        tools = await list_tools(client, wants, hint)
        if len(tools) > MAX_TOOLS:
            raise Failure(f"it has over {MAX_TOOLS} tools: {hint}")
        known = {function.tool: function for function in self.functions}
        functions, unfit = dict[str, McpFunction](), dict[str, str]()
        for tool in tools:
            words = (tool.description or tool.title or tool.name)[:MAX_DESCRIPTION_CHARS]
            function = McpFunction(tool.name, words, tool.input_schema)
            if function != known.get(tool.name) and (
                fault := await asyncio.to_thread(_fault_of_schema, tool.input_schema)
            ):
                unfit[tool.name] = fault
            else:
                functions[tool.name] = function
        self.functions, self.unfit = tuple(functions.values()), unfit

    def faults(self) -> list[str]:
        """Returns which tools models cannot have, a line each."""
        return [f"its tool {name} is left out: {why}" for name, why in self.unfit.items()]


@dataclass(frozen=True)
class Examined:
    """What a server has, for the doctor."""

    names: tuple[str, ...] = ()
    """All its tools."""
    functions: tuple[McpFunction, ...] = ()
    """Those that agents want, and can have."""
    unfit: tuple[str, ...] = ()
    """Why they cannot have the others, a line each."""
    fault: str = ""
    """Why its tools are not known; empty: they are."""


async def examine_server(config: Config, name: str) -> Examined:
    """Connects to a server of the configuration once, and lists its tools."""
    server = ListedServer(name, config.mcp[name])
    transport = server.transport()
    connection = McpConnection(transport)
    wanted = wanted_tools(config, name)
    names: list[str] = []

    def wants(tool: Tool) -> bool:
        names.append(tool.name)
        return wanted is None or tool.name in wanted

    running = asyncio.create_task(connection.run())
    try:
        async with asyncio.timeout(CONNECT_S):
            await server.refresh(await asyncio.shield(connection.client), wants)
    except Exception as error:
        return Examined(
            fault=_with_last_words(str(connection.failure(error, CONNECT_S)), transport)
        )
    finally:
        await _end(connection, running)
    return Examined(tuple(names), server.functions, tuple(server.faults()))


def _with_last_words(why: str, transport: HttpTransport | ProcessTransport) -> str:
    """Returns why a connection has ended, with what its process has said last."""
    said = transport.last_words if isinstance(transport, ProcessTransport) else ""
    return f"{why} ({said})" if said else why


async def _end(connection: McpConnection, running: asyncio.Task[None]) -> None:
    connection.close()
    await asyncio.wait((running,), timeout=CLOSE_S)
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)


class SharedServer(ListedServer):
    """A server and the connection to it that all calls share, held by the task of `run`."""

    task: asyncio.Task[None]

    def __init__(
        self,
        name: str,
        settings: Settings,
        wants: Callable[[Tool], bool],
        on_listed: Callable[[], None],
    ) -> None:
        super().__init__(name, settings)
        self._wants, self._on_listed = wants, on_listed
        self.changed = asyncio.Event()
        """Its tools may be others than those that are known."""
        self.tried = asyncio.Event()
        """It has listed its tools, or failed to."""
        self.has_listed = False
        self.why = ""
        """Why the last attempt to connect failed, or how the connection has ended."""
        self._live = _unknown()
        self._places = asyncio.Semaphore(MAX_CALLS)
        self._calls = 0
        """Calls of its tools in progress."""

    # --- the connection ---

    async def run(self) -> None:
        """Runs until cancelled."""
        try:
            await self._keep_connected()
        finally:
            self._fail()

    async def _keep_connected(self) -> None:
        retry = RetryPolicy(first_s=RETRY_S, max_s=RETRY_MAX_S, spread_s=SPREAD_S)
        while True:
            began, said = monotonic(), self.why
            why = self.why = await self._connect()
            self.tried.set()
            if monotonic() - began > STEADY_S:
                retry.reset()
            level = "DEBUG" if why == said else "WARNING"
            words = "the MCP server {}: {}; it is tried again"
            logger.log(level, words, self.name, why)
            await asyncio.sleep(retry.next_s())

    async def _connect(self) -> str:
        """Connects, and returns why that failed or how it has ended."""
        transport = self.transport()
        connection = McpConnection(transport, self.changed.set)
        running = asyncio.create_task(connection.run(), name=f"MCP connection {self.name}")
        try:
            async with asyncio.timeout(CONNECT_S):
                client = await asyncio.shield(connection.client)
                await self._list(client)
        except Exception as error:
            self._fail()
            why = str(connection.failure(error, CONNECT_S))
        else:
            why = await self._hold(connection, client, running)
        finally:
            self._lose(connection)
            await _end(connection, running)
        return _with_last_words(why, transport)

    async def _hold(
        self, connection: McpConnection, client: Client, running: asyncio.Task[None]
    ) -> str:
        """Has calls use the connection, and returns how it has ended."""
        if self._live.done():
            self._live = _unknown()
        self._live.set_result((connection, client))
        logger.info("the MCP server {} has {} tools", self.name, len(self.functions))
        try:
            following = first_of(self._keep_listed(client), self._listen(client))
            await first_of(asyncio.wait((running,)), following)
        except Exception as error:
            return str(connection.failure(error, CONNECT_S))
        ended = MCPError(CONNECTION_CLOSED, "the connection has ended")
        return str(connection.failure(ended, CONNECT_S))

    def _lose(self, connection: McpConnection) -> None:
        """Has calls wait for another connection."""
        if self._live.done() and (live := self._live.result()) and live[0] is connection:
            self._live = _unknown()
            connection.close()

    def _fail(self) -> None:
        """Has calls fail until there is a connection."""
        if not self._live.done():
            self._live.set_result(None)

    # --- its tools ---

    async def _list(self, client: Client) -> None:
        """Raises Failure and mcp's exceptions."""
        await self.refresh(client, self._wants)
        self.has_listed = True
        self.tried.set()
        self._on_listed()

    async def _keep_listed(self, client: Client) -> None:
        """Raises Failure and mcp's exceptions."""
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(LIST_S):
                    await self.changed.wait()
            await asyncio.sleep(CHANGED_S)
            self.changed.clear()
            try:
                async with asyncio.timeout(CONNECT_S):
                    await self._list(client)
            except TimeoutError:
                if not self._calls:  # some do one thing at a time
                    raise

    async def _listen(self, client: Client) -> None:
        while True:
            if is_modern(client):
                with suppress(MCPError, SubscriptionLost):
                    await watch_list(client, self.changed.set)
                self.changed.set()
            await asyncio.sleep(LIST_S)

    # --- calls ---

    async def call(self, tool: str, arguments: Mapping[str, Any]) -> Any:
        """Returns a tool's result as the model gets it. Raises ToolFailed."""
        limit_s = self.settings.seconds
        try:
            async with asyncio.timeout(limit_s), self._places:
                result = await self._ask(tool, dict(arguments), limit_s)
        except TimeoutError as error:
            raise ToolFailed(f"no response within {limit_s:g} s") from error
        return _read(result)

    async def _ask(self, tool: str, arguments: dict[str, Any], limit_s: float) -> CallToolResult:
        """Raises ToolFailed, TimeoutError."""
        again = False
        while True:
            live = await asyncio.shield(self._live)
            if live is None:
                raise ToolFailed("its server cannot be reached")
            connection, client = live
            if connection.has_ended:
                self._lose(connection)
                continue
            self._calls += 1
            try:
                return await call_tool(client, tool, arguments)
            except Exception as error:
                failure = connection.failure(error, limit_s)
                if (failure.type, failure.code) != ("http_error", 404) or again:
                    words = " ".join(str(failure).split())
                    raise ToolFailed(words[:MAX_ERROR_CHARS]) from error
                again = True  # it has been restarted, and has not done anything
                self._lose(connection)
            finally:
                self._calls -= 1


def _unknown() -> "asyncio.Future[tuple[McpConnection, Client] | None]":
    """Returns a connection that is waited for; None, once there is none to be had."""
    return asyncio.get_running_loop().create_future()


def _fault_of_schema(schema: dict[str, Any]) -> str:
    """Returns why this object is no JSON Schema; empty if it is."""
    try:
        Draft202012Validator.check_schema(schema)
    except SchemaError as error:
        return f"its schema is none: {error.message[:MAX_ERROR_CHARS]}"
    except RecursionError:
        return "its schema is too deep"
    return ""


def _read(result: CallToolResult) -> Any:
    """Returns what the model sees of a result. Raises ToolFailed."""
    text = text_of(result)
    if result.is_error:
        raise ToolFailed(" ".join(text.split())[:MAX_ERROR_CHARS] or "it failed")
    if result.structured_content is not None:
        return shown(result.structured_content)
    return shown({"result": text} if text.strip() else {"status": "done"})
