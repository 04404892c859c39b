"""Asks the server that runs with the configuration, if there is one, how it is doing."""

import asyncio
from collections.abc import Iterator
from typing import Any

import aiohttp

from offhook.web.app.doctor.finding import Finding
from offhook.web.config.config import Config

ANSWER_S = 1.0
"""Time in s within which a server that runs answers."""


async def ask_server(config: Config, path: str) -> dict[str, Any]:
    """Returns the JSON object that a server of this configuration answers; empty without one."""
    limit = aiohttp.ClientTimeout(ANSWER_S)
    try:
        async with (
            aiohttp.ClientSession(timeout=limit) as http,
            http.get(f"{config.server.url}{path}") as answer,
        ):
            return dict(await answer.json())
    except (aiohttp.ClientError, TimeoutError, ValueError, TypeError, RecursionError):
        return {}


def examine_calls(config: Config) -> Iterator[Finding]:
    """Yields how many lines of a running server are in use, and whether it refuses calls."""
    state = asyncio.run(ask_server(config, "/readyz"))
    if not {"calls", "max_calls"} <= state.keys():
        return
    calls, most = state["calls"], state["max_calls"]
    lines = f"{calls} of {most} lines of the running server are in use"
    if state.get("overloaded"):
        late = "packets leave late, and new calls are refused until they leave in time"
        yield Finding("calls", "note", f"{lines}, but it is overloaded: {late}")
    elif calls >= most:
        yield Finding("calls", "note", f"{lines}: new calls are refused until one ends")
    else:
        yield Finding("calls", "ok", lines)
