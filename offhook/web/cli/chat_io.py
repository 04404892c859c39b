"""`offhook chat`: talks by text with an agent of the configuration, in the terminal."""

import asyncio
import json
import sys
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict
from typing import Any

from offhook.media.leg import CallInfo
from offhook.web.config.config import Config
from offhook.web.text.text_edge_io import Exchange, conversation, text_edge

MAX_SHOWN = 300
"""Characters of a function's arguments and of its result that are shown."""


async def chat(
    config: Config,
    agent: str,
    lines: Sequence[str],
    show: Callable[[str], object],
    *,
    caller: str = "",
    variables: Mapping[str, Any] | None = None,
    as_json: bool = False,
) -> bool:
    """Says the lines, or what is typed if there are none, and shows what comes of them. Returns
    whether nothing has failed. Raises ConfigError."""
    info = CallInfo(edge="text", caller=caller, variables=dict(variables or {}))

    def report(said: str, exchange: Exchange) -> None:
        fields = {"said": said, **asdict(exchange)}
        show(json.dumps(fields, ensure_ascii=False) if as_json else in_words(exchange))

    def act(what: str) -> None:
        if not as_json:
            show(f"  [{what}]")

    async with text_edge(config) as edge, conversation(edge, agent, info, act) as talk:
        exchange = await talk.listen()
        report("", exchange)
        well = not exchange.faults
        typed = _given(lines, (lambda text: None) if as_json else show) if lines else _typed()
        async for line in typed:
            if exchange.ended:
                break
            exchange = await talk.say(line)
            report(line, exchange)
            well &= not exchange.faults
    return well


async def _given(lines: Sequence[str], show: Callable[[str], object]) -> AsyncIterator[str]:
    for line in lines:
        show(f"you: {line}")
        yield line


async def _typed() -> AsyncIterator[str]:
    """Yields what is typed until an empty line or the end of input."""
    prompt = "you: " if sys.stdin.isatty() else ""
    with suppress(EOFError):
        while line := (await asyncio.to_thread(input, prompt)).strip():
            yield line


def in_words(exchange: Exchange) -> str:
    """Returns an exchange as lines for a reader."""
    lines = []
    for tool in exchange.tools:
        lines.append(f"  -> {tool.name} {_short(tool.arguments)}")
        lines.append(f"  <- {_short(tool.result)}")
    lines += [f"  [handed over to {agent}]" for agent in exchange.agents]
    lines += [f"  ! {fault}" for fault in exchange.faults]
    waited = f"  ({exchange.first_word_ms} ms)" if exchange.first_word_ms is not None else ""
    if exchange.words:
        lines.append(f"agent: {exchange.text}{waited}")
    elif not exchange.ended:
        lines.append("agent says nothing")
    if exchange.ended:
        lines.append(f"  [the call is over: {exchange.ended}]")
    return "\n".join(lines)


def _short(value: Any) -> str:
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return text if len(text) <= MAX_SHOWN else f"{text[:MAX_SHOWN]}…"
