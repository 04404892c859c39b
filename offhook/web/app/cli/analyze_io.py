"""`offhook calls analyze`: has kept calls analysed, or analysed again, without a server."""

import asyncio
import time
from collections.abc import Callable, Iterable
from typing import Any

from offhook.web.config.config import Config
from offhook.web.edge.calls.store_queues.analyst_io import Analyst
from offhook.web.records.analyses import AT_ONCE
from offhook.web.records.store import CallStore

NOTHING = (
    "none of its agents has an analysis, or the caller has said nothing, or its words were deleted"
)


async def analyze(
    store: CallStore,
    config: Config,
    calls: Iterable[str],
    show: Callable[[dict[str, Any]], object],
) -> bool:
    """Analyses calls, AT_ONCE at a time, and shows each as it is then. Returns whether all could
    be. Raises StoreError."""
    analyst = Analyst(store, "the command line", lambda: config)
    room = asyncio.Semaphore(AT_ONCE)

    async def one(call: str) -> bool:
        async with room:
            timeline = await asyncio.to_thread(store.timeline, call)
            known = await asyncio.to_thread(store.show, call)
            changes = [event["agent"] for event in timeline if event["event"] == "agent_changed"]
            agents = [(known or {}).get("agent", ""), *changes]
            waiting = await asyncio.to_thread(store.analyses.ask_again, call, agents, time.time())
            if waiting is None:
                show({"call_id": call, "analysis": None, "fault": NOTHING})
                return False
            outcome = await analyst.handle(waiting)
            known = await asyncio.to_thread(store.show, call)
            show({"call_id": call, "analysis": (known or {}).get("analysis")})
            return outcome not in ("error", "waiting")

    return all(await asyncio.gather(*map(one, calls)))


def in_words(shown: dict[str, Any]) -> str:
    """Returns what was found of a call, for people."""
    found = shown["analysis"]
    if found is None:
        return f"{shown['call_id']}: not analysed: {shown.get('fault') or NOTHING}"
    words = f"{shown['call_id']}: {found['outcome']}"
    if found.get("fault"):
        return f"{words}: {found['fault']}"
    why = [one["name"] for one in found["criteria"] if one["verdict"] == found["outcome"]]
    return f"{words} ({', '.join(why)})" if found["outcome"] in ("failure", "unknown") else words
