"""`offhook chat`: talks by text with an agent of the configuration, in the terminal."""

import asyncio
import json
import sys
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict
from typing import Any

from offhook.media.leg import CallInfo, ModelTokens
from offhook.web.config.config import Config
from offhook.web.edge.text.text_edge_io import Exchange, ToolCall, conversation, text_edge

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
        if as_json:
            show(json.dumps({"said": said, **asdict(exchange)}, ensure_ascii=False))
            return
        for fault in exchange.faults:
            show(f"  ! {fault}")
        if exchange.ended:
            show(f"  [the call is over: {exchange.ended}]")
        elif not exchange.words:
            show("agent says nothing")

    def act(what: str) -> None:
        if not as_json:
            show(f"  [{what}]")

    def words(text: str, after_ms: int | None) -> None:
        show(f"agent: {text}" + (f"  ({after_ms} ms)" if after_ms is not None else ""))

    def tool(called: ToolCall) -> None:
        show(f"  -> {called.name} {_short(called.arguments)}")
        show(f"  <- {_short(called.result)}")

    async with text_edge(config) as edge, conversation(edge, agent, info, act) as talk:
        if not as_json:
            talk.on_words, talk.on_tool = words, tool
        exchange = await talk.listen()
        exchange.faults[:0] = edge.agents.faults()
        report("", exchange)
        well = not exchange.faults
        typed = _given(lines) if lines else _typed()
        async for line in typed:
            if exchange.ended:
                break
            if not as_json and (lines or not sys.stdin.isatty()):
                show(f"you: {line}")
            exchange = await talk.say(line)
            report(line, exchange)
            well &= not exchange.faults
        if not as_json and (taken := talk.leg.tokens).input:
            show(_taken(taken))
    return well


def _taken(tokens: ModelTokens) -> str:
    """Returns what the models have taken, for people."""
    cached = f" ({tokens.cached:,} of them cached)" if tokens.cached else ""
    return f"{tokens.input:,} tokens in{cached}, {tokens.output:,} out{_cost(tokens)}"


def _cost(tokens: ModelTokens) -> str:
    if tokens.priced is None:
        return ""
    if not tokens.unpriced:
        return f", which cost {tokens.priced:.6f}"
    without = ", ".join(sorted(tokens.unpriced))
    return f", which cost at least {tokens.priced:.6f} (no price of {without})"


async def _given(lines: Sequence[str]) -> AsyncIterator[str]:
    for line in lines:
        yield line


async def _typed() -> AsyncIterator[str]:
    """Yields what is typed until an empty line or the end of input."""
    prompt = "you: " if sys.stdin.isatty() else ""
    with suppress(EOFError):
        while line := (await asyncio.to_thread(input, prompt)).strip():
            yield line


def _short(value: Any) -> str:
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return text if len(text) <= MAX_SHOWN else f"{text[:MAX_SHOWN]}…"
