"""A message that the front desk takes: in the call's record, and in a log that has words."""

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from loguru import logger

from offhook.pipeline.conversation.agents.frontdesk import StoreMessage
from offhook.pipeline.conversation.agents.kinds.frontdesk_io import make
from offhook.pipeline.conversation.events import DetailNoted
from offhook.web.config.config import Config
from offhook.web.edge.agents_io import _log

pytestmark = pytest.mark.asyncio(loop_scope="module")

MESSAGE = StoreMessage("Peter Miller", "5551234", "call me back")


@pytest.fixture
def lines() -> Iterator[list[str]]:
    written: list[str] = []
    sink = logger.add(lambda line: written.append(str(line)), format="{message} {extra}")
    yield written
    logger.remove(sink)


async def test_it_is_noted_as_details_of_the_call() -> None:
    emitted: list[Any] = []
    leg = SimpleNamespace(collected={}, heard_ms=700, info=SimpleNamespace(caller=""))
    logged: list[Any] = []
    context: Any = SimpleNamespace(
        call=SimpleNamespace(leg=leg, emit=emitted.append, wait_until_heard=None),
        settings=Config().frontdesk,
        log=logged.append,
    )
    await make(context).processor._on_action(MESSAGE)  # type: ignore[attr-defined]
    assert leg.collected == {
        "name": "Peter Miller",
        "number": "5551234",
        "message": "call me back",
    }
    assert emitted == [
        DetailNoted(700, "name", "Peter Miller"),
        DetailNoted(700, "number", "5551234"),
        DetailNoted(700, "message", "call me back"),
    ]
    assert logged == [MESSAGE]


@pytest.mark.parametrize("has_words", [False, True])
async def test_the_log_has_it_where_it_has_words(lines: list[str], has_words: bool) -> None:
    _log("call", has_words, MESSAGE)
    [line] = lines
    assert "store_message" in line
    assert ("Peter Miller" in line) == ("call me back" in line) == has_words
    assert "5551234" not in line
