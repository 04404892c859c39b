"""The findings of `offhook doctor` on the MCP servers whose tools agents have."""

import asyncio
from collections.abc import Iterator

from offhook.web.app.doctor.finding import Finding
from offhook.web.config.config import Config, ConfigError
from offhook.web.edge.edge_io import check_mcp

SHOWN = 20
"""Tools of a server that are named."""


def examine_mcp(config: Config) -> Iterator[Finding]:
    """Connects to each server and lists its tools; then says what agents lack of them."""
    try:
        check_mcp(config)
    except ConfigError as error:
        yield Finding("mcp", "fails", str(error))
        return
    if not config.mcp:
        return
    from offhook.web.tools.mcp_functions import faults_of_tools
    from offhook.web.tools.mcp_server_io import Examined, examine_server

    async def examine() -> list[Examined]:
        return await asyncio.gather(*(examine_server(config, name) for name in config.mcp))

    found = dict(zip(config.mcp, asyncio.run(examine()), strict=True))
    for name, one in found.items():
        more = ", …" if len(one.names) > SHOWN else ""
        tools = f"{len(one.names)} tools: {', '.join(one.names[:SHOWN])}{more}"
        yield Finding(f"mcp {name}", "fails" if one.fault else "ok", one.fault or tools)
        for fault in one.unfit:
            yield Finding(f"mcp {name}", "note", fault)
    listed = {name: one.functions for name, one in found.items() if not one.fault}
    for fault in faults_of_tools(config, listed):
        yield Finding("tools", "fails", fault)
