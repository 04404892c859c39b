"""An MCP server, as a program that prints its port: `python -m tests.support.mcp_server`.

Its tools sleep, fail and return much; /sse speaks the older transport, /stalled never answers,
/elsewhere redirects.
"""

import asyncio
import socket
from typing import Any

import uvicorn
from mcp.server.mcpserver import Context, MCPServer
from mcp.types import ToolAnnotations
from pydantic import BaseModel
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

server = MCPServer("stock")


@server.tool(annotations=ToolAnnotations(read_only_hint=True))
def stock(what: str) -> str:
    """How many are in stock."""
    return f"twelve {what}"


class Parcel(BaseModel):
    """Its schema is a definition that the tool's refers to."""

    street: str


@server.tool()
def order(what: str, to: Parcel | None = None) -> str:
    """Orders one."""
    return f"ordered {what}"


@server.tool()
def broken() -> str:
    """Fails."""
    raise ValueError("out of order")


@server.tool()
def long(chars: int) -> str:
    """Returns much."""
    return "x" * chars


@server.tool()
async def slow(ctx: Context[Any, Any]) -> str:
    """Takes an hour."""
    await asyncio.sleep(3_600)
    return "late"


@server.tool(name="who.calls")
def who_calls(ctx: Context[Any, Any]) -> str:
    """Returns the key of the request."""
    request = ctx.request_context.request
    return str(request.headers.get("authorization")) if request is not None else "nobody"


def app() -> Starlette:
    found = server.streamable_http_app()
    found.routes.extend(server.sse_app().routes)

    async def stalled(request: Request) -> Response:
        await asyncio.sleep(3_600)
        return Response()

    async def elsewhere(request: Request) -> Response:
        return RedirectResponse("http://127.0.0.2:9/mcp", 307)

    found.add_route("/stalled", stalled, ["GET", "POST"])
    found.add_route("/elsewhere", elsewhere, ["GET", "POST"])
    return found


if __name__ == "__main__":
    listening = socket.create_server(("127.0.0.1", 0))
    print(listening.getsockname()[1], flush=True)  # noqa: T201
    uvicorn.run(app(), fd=listening.fileno(), log_level="critical")
