"""An MCP server of an agent's tools: `python -m tests.support.mcp_tools_server stdio`, or with a
port for streamable HTTP on it. What it does is written to the file that its second argument names;
a third one names what is ill about it.
"""

import asyncio
import contextlib
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

import uvicorn
from mcp.server.mcpserver import Context, Image, MCPServer

server = MCPServer("shop")
notes = Path(os.devnull)


def note(text: str) -> None:
    with notes.open("a") as file:
        file.write(text + "\n")


@server.tool()
async def order_status(number: str) -> dict[str, Any]:
    """Says where an order is."""
    note(f"order_status {number}")
    return {"status": "sent", "number": number}


@server.tool(name="shop.hours")
async def hours() -> str:
    """Says when the shop is open."""
    return "nine to five"


@server.tool()
async def slow() -> str:
    """Takes an hour."""
    note("slow begins")
    try:
        await asyncio.sleep(3_600)
    except asyncio.CancelledError:
        note("slow is cancelled")
        raise
    return "late"


@server.tool()
async def soon(file: str) -> str:
    """Returns once a file is there."""
    while not Path(file).exists():  # noqa: ASYNC240
        await asyncio.sleep(0.05)
    return "here it is"


@server.tool()
async def broken() -> str:
    """Fails."""
    raise ValueError("out of order")


@server.tool()
async def long(chars: int) -> str:
    """Returns much."""
    return "x" * chars


@server.tool(structured_output=False)
async def picture() -> list[Any]:
    """Returns a picture, and what is on it."""
    return ["a red bicycle", Image(data=b"\x89PNG", format="png")]


@server.tool()
async def empty() -> None:
    """Returns nothing."""


@server.tool()
async def environment() -> str:
    """Returns the names of its environment's variables."""
    return " ".join(sorted(os.environ))


@server.tool()
async def grow(ctx: Context[Any, Any]) -> str:
    """Gets one tool more."""

    async def grown() -> str:
        """Is new."""
        return "new"

    server.add_tool(grown)
    await ctx.session.send_tool_list_changed()
    await ctx.notify_tools_changed()
    return "grown"


@server.tool()
async def die() -> str:
    """Ends the server."""
    os._exit(3)


def never_ends() -> None:
    """Ignores the end of its input, and SIGTERM."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    with contextlib.suppress(BaseException):
        asyncio.run(server.run_stdio_async())
    while True:
        time.sleep(1)


def garbage() -> None:
    """Writes what is no message, as fast as it can."""
    while True:
        os.write(1, b"not a message\n" * 4096)


def chatty() -> None:
    """Writes a line that is no message, and then works."""
    os.write(1, b"Welcome to the shop!\n\n[1]\n")
    server.run("stdio")


def endless_line() -> None:
    """Writes 100 MB without a line break."""
    for _ in range(100):
        os.write(1, b"x" * 1_000_000)
    time.sleep(3_600)


def notifies() -> None:
    """Says without end that its tools are others."""
    line = b'{"jsonrpc": "2.0", "method": "notifications/tools/list_changed"}\n'
    while True:
        os.write(1, line * 1000)


def silent() -> None:
    """Never answers."""
    time.sleep(3_600)


def complains() -> None:
    """Ends at once, and says why."""
    sys.exit("the shop's database is missing")


ILLS = {
    f.__name__: f for f in (never_ends, garbage, chatty, endless_line, notifies, silent, complains)
}

if __name__ == "__main__":
    kind, *more = sys.argv[1:]
    if more:
        notes = Path(more[0])
        note(f"pid {os.getpid()}")
    if len(more) > 1:
        ILLS[more[1]]()
    elif kind == "stdio":
        server.run("stdio")
    else:
        uvicorn.run(
            server.streamable_http_app(), host="127.0.0.1", port=int(kind), log_level="critical"
        )
