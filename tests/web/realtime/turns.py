"""A long talk of a stock client with a scripted model: ten turns, a tool, two interruptions."""

from itertools import chain
from typing import Any

import pytest
from aiohttp import web

from offhook.web.realtime.calls_io import RealtimeCalls
from tests.pipeline.conversation.phone import COUNT, Model, calls, says

SAID = (
    "There are twelve bells.",
    "We mend bicycles.",
    COUNT,
    "We are open on Monday.",
    "We close at six.",
    COUNT,
    "It costs nine pounds.",
    "You may pay by card.",
    "We sell lamps.",
    "Goodbye then.",
)
"""What is answered to each turn; the count is interrupted by the next one."""
TURNS = ([says("Good morning.")], [calls("stock", what="bells")], *([says(text)] for text in SAID))
"""The answers of the model: to the greeting, to the first turn a call of the tool, and the rest."""
HEARD_S = 1.5
"""How much of the count is heard before the next turn."""
MAX_FRAME_BYTES = 256 << 10


def observed(monkeypatch: pytest.MonkeyPatch) -> tuple[list[int], list[str]]:
    """Lists that fill with the sizes of what is sent by WebSocket, and with the sessions opened."""
    sizes, sessions = list[int](), list[str]()
    send, open_ = web.WebSocketResponse.send_str, RealtimeCalls.open

    async def send_str(socket: web.WebSocketResponse, text: str, *more: Any) -> None:
        sizes.append(len(text.encode()))
        await send(socket, text, *more)

    def opened(calls: RealtimeCalls, call_id: str, *more: Any) -> Any:
        sessions.append(call_id)
        return open_(calls, call_id, *more)

    monkeypatch.setattr(web.WebSocketResponse, "send_str", send_str)
    monkeypatch.setattr(RealtimeCalls, "open", opened)
    return sizes, sessions


def check_turns(there: Model, sizes: list[int], sessions: list[str]) -> None:
    """One session, frames of a bearable size, every turn answered once, and of what was interrupted
    the words that were heard."""
    assert len(sessions) == 1
    assert 1000 < max(sizes) < MAX_FRAME_BYTES
    assert there.answers == []
    said = [m.get("content") for m in there.requests[-1]["messages"] if m["role"] == "assistant"]
    counted = [text for text in said if text and COUNT.startswith(text)]
    assert len(counted) == 2
    assert all(1 <= len(text.split()) < len(COUNT.split()) for text in counted)
    plain = chain(SAID[:2], SAID[3:5], SAID[6:-1])
    assert [text for text in said if text in SAID] == list(plain)
