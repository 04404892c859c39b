"""`offhook bench turn_cost`: what an agent's tools, variables and documents cost a turn, and the
memory of a server that waits.

The same agent answers by text, with a model on loopback that answers at once: plain, with
variables in its instructions, with a tool of each kind that it calls in every turn, with documents
that it searches in every turn, and with passages of them in each request. A turn with a tool asks
the model twice. Speech engines and packets have no part in it. All agents have one turn after the
other, round by round, so that whatever else the machine does meets them alike.

Columns: ms from the caller's words to the first word of the answer; the same as a ratio to the
plain agent's; MB of a process `offhook serve` with this agent, ten seconds after it is ready.
"""

import asyncio
import json
import os
import sys
import tempfile
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any
from uuid import uuid4

from aiohttp import web

from benchmarks.calls.knowledge import QUERY_WORDS, Language, write
from benchmarks.command import command
from benchmarks.processes.own_server import HOST, free_port, is_ready, started
from benchmarks.table import Table, percentile, progress
from offhook.media.leg import CallInfo
from offhook.web.config.config import Config, load
from offhook.web.edge.text.text_edge_io import TextConversation, conversation, text_edge
from offhook.web.http.logs import Log
from offhook.web.http.logs_io import set_up
from offhook.web.http.loop_io import run

COLUMNS = "agent first_word_p50 first_word_p95 ratio idle_mb"
MODULE = "turn_cost_tools"
"""Of the Python function."""
PAGES = 200
IDLE_S = 10.0
READY_S = 120.0
ANSWER = "It is in the workshop and will be ready on Friday."
ARGUMENTS: Mapping[str, dict[str, Any]] = {
    "order_status": {"number": 4711},
    "search_knowledge": {"query": ""},
}
"""What the model calls tools with; the query is the caller's words."""
PLAIN = "You answer for a bike shop. Speak in one or two short sentences."
FILLED = """
You answer for a bike shop. {{caller}} calls {{called}} by {{trunk}} on {{weekday}}, {{now}}, and
has the plan {{plan}} since {{since}}. Speak in one or two short sentences.
"""
TOOL = 'name = "order_status"\ndescription = "Looks an order up."\n'
FUNCTION = '''
async def order_status(number: int) -> dict:
    """Looks an order up."""
    return {"status": "in the workshop", "ready": "on Friday"}
'''
SERVER = '''
from mcp.server.mcpserver import MCPServer

server = MCPServer("orders")


@server.tool()
def order_status(number: int) -> dict[str, str]:
    """Looks an order up."""
    return {"status": "in the workshop", "ready": "on Friday"}


server.run()
'''


@dataclass
class Kind:
    """An agent of the comparison."""

    name: str
    instructions: str = PLAIN
    agent: str = ""
    """Further keys of its table."""
    more: str = ""
    """Further tables, with NAME in place of the agent's name."""
    tool: str = ""
    """What it calls in every turn; "" for nothing."""
    turns_ms: list[float] = field(default_factory=list)


def kinds(shop: str, folder: Path) -> list[Kind]:
    """Returns the agents; `shop` is the URL of an order."""
    given = 'parameters = {number = {type = "integer"}}'
    by_url = f'{TOOL}{given}\nurl = "{shop}"\nmethod = "GET"\n'
    program = f'[mcp.orders]\ncommand = ["{sys.executable}", "{folder}/server.py"]\n'
    variables = 'variables = {plan = "none", since = "today"}\n'
    documents = f'knowledge = "{folder}/pages"\n'
    return [
        Kind("plain"),
        Kind("variables", FILLED, variables),
        Kind("http_tool", more=f"[[agents.NAME.tools]]\n{by_url}", tool="order_status"),
        Kind(
            "python_tool",
            more='[[agents.NAME.tools]]\nfunction = "turn_cost_tools:order_status"\n',
            tool="order_status",
        ),
        Kind(
            "mcp_tool",
            more=f'[[agents.NAME.tools]]\nmcp = "orders"\n\n{program}',
            tool="order_status",
        ),
        Kind("documents", agent=documents, tool="search_knowledge"),
        Kind("passages", agent=f"{documents}knowledge_in_prompt = true\n"),
    ]


def table_of(kind: Kind, model: str) -> str:
    """Returns the agent in TOML."""
    head = f'[agents.{kind.name}]\nkind = "openai"\nmodel = "{kind.tool or "none"}"\n'
    words = f"base_url = {json.dumps(model)}\ninstructions = {json.dumps(kind.instructions)}\n"
    return head + words + kind.agent + kind.more.replace("NAME", kind.name)


class Model:
    """OpenAI's chat API, and a shop behind a tool. The name of the model is the tool that it calls
    before it answers."""

    async def complete(self, request: web.Request) -> web.StreamResponse:
        asked = await request.json()
        tool, last = asked["model"], asked["messages"][-1]
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        if tool in ARGUMENTS and last["role"] == "user":
            given = dict(ARGUMENTS[tool])
            if "query" in given:
                given["query"] = last["content"]
            function = {"name": tool, "arguments": json.dumps(given)}
            call = {
                "index": 0,
                "id": f"call_{uuid4().hex}",
                "type": "function",
                "function": function,
            }
            deltas: list[dict[str, Any]] = [{"role": "assistant", "tool_calls": [call]}]
        else:
            deltas = [{"role": "assistant", "content": f"{word} "} for word in ANSWER.split()]
        for delta in deltas:
            choice = {"index": 0, "delta": delta, "finish_reason": None}
            chunk = {"id": "bench", "object": "chat.completion.chunk", "created": 0, "model": tool}
            await response.write(f"data: {json.dumps({**chunk, 'choices': [choice]})}\n\n".encode())
        await response.write(b"data: [DONE]\n\n")
        return response

    async def order(self, request: web.Request) -> web.Response:
        return web.json_response({"status": "in the workshop", "ready": "on Friday"})

    @asynccontextmanager
    async def served(self) -> AsyncIterator[str]:
        """Serves it on loopback while inside; gives its URL."""
        app = web.Application(client_max_size=1 << 24)
        app.router.add_post("/v1/chat/completions", self.complete)
        app.router.add_get("/orders/{number}", self.order)
        runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
        await runner.setup()
        try:
            await web.TCPSite(runner, HOST, 0).start()
            yield f"http://{HOST}:{runner.addresses[0][1]}"
        finally:
            await runner.cleanup()


async def turns(config: Config, agents: Sequence[Kind], rounds: int) -> None:
    """Measures so many turns of each."""
    language = Language(2)
    async with text_edge(config) as edge, AsyncExitStack() as stack:
        talks: list[tuple[Kind, TextConversation]] = []
        for kind in agents:
            info = CallInfo(edge="text", caller="+4930555", variables={"plan": "gold"})
            talk = conversation(edge, kind.name, info, lambda what: None)
            talks.append((kind, await stack.enter_async_context(talk)))
            await talks[-1][1].listen()
        for number in range(rounds + 1):
            for kind, talking in talks:
                exchange = await talking.say(f"{language.words(QUERY_WORDS)}?")
                if exchange.faults or exchange.first_word_ms is None:
                    raise SystemExit(f"{kind.name}: {exchange.faults or 'no answer'}")
                called = [tool.name for tool in exchange.tools]
                if called != ([kind.tool] if kind.tool else []):
                    raise SystemExit(f"{kind.name}: called {called}")
                if number:  # the first one opens connections
                    kind.turns_ms.append(exchange.first_word_ms)


async def idle_mb(path: Path) -> float:
    """Returns the memory of a server with this configuration that waits for its first call."""
    port = free_port()
    line = ("serve", "--config", str(path), "--port", str(port))
    there = partial(is_ready, f"http://{HOST}:{port}")
    modules = {**os.environ, "PYTHONPATH": str(path.parent)}
    async with started(line, there, READY_S, f"{path} does not start", modules) as server:
        await asyncio.sleep(IDLE_S)
        return _rss_mb(server.pid)


def _rss_mb(pid: int) -> float:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) / 1024 for line in lines if line.startswith("VmRSS"))


async def measure(rounds: int, as_json: bool) -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "pages").mkdir()
        write(folder / "pages", PAGES, "md", Language(1))
        (folder / "server.py").write_text(SERVER)
        (folder / f"{MODULE}.py").write_text(FUNCTION)
        sys.path.insert(0, name)
        async with Model().served() as url:
            agents = kinds(f"{url}/orders/{{number}}", folder)
            path = folder / "offhook.toml"
            tables = [table_of(kind, f"{url}/v1") for kind in agents]
            path.write_text("\n".join(tables))
            await turns(load(path, {}), agents, rounds)
            shown = Table("turn_cost", f"{rounds} turns of each agent", COLUMNS, as_json)
            usual = percentile(agents[0].turns_ms, 50)
            for kind, table in zip(agents, tables, strict=True):
                progress(f"a server with {kind.name} that waits")
                alone = folder / f"{kind.name}.toml"
                alone.write_text(table)
                p50 = percentile(kind.turns_ms, 50)
                shown.row(
                    agent=kind.name,
                    first_word_p50=p50,
                    first_word_p95=percentile(kind.turns_ms, 95),
                    ratio=p50 / usual,
                    idle_mb=await idle_mb(alone),
                )


def main(options: Sequence[str]) -> int:
    parser = command("turn_cost", __doc__)
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args(options)
    set_up(Log(level="WARNING"))
    run(measure(arguments.rounds, arguments.json))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
