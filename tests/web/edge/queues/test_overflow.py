"""Callers who cannot wait: an agent takes them over, such as a voicemail of the queue."""

from pathlib import Path
from typing import Any

import pytest
from aiohttp.test_utils import TestClient, TestServer

from offhook.media.leg import LegError
from offhook.pipeline.conversation.events import AgentChanged, VoicemailLeft
from offhook.web.config.config import Config
from offhook.web.edge.server_io import application
from tests.support.waiting import until
from tests.web.edge.queues.test_queues_io import order, queue, quick, waits
from tests.web.edge.transfers.people import Office, office

__all__ = ["quick"]

WORDS = "No."
"""What is said after the tone."""


def table(folder: Path, **more: Any) -> dict[str, Any]:
    mailbox = {"kind": "voicemail", "greeting": "Nobody is free. Leave a message."}
    return {
        **queue("does_not_answer.1", overflow="agent:mailbox", announce_seconds=0, **more),
        "agents": {"mailbox": mailbox},
        "records": {"url": f"sqlite:///{folder}/calls.db", "spool": folder / "spool"},
        "recording": {"directory": folder / "sounds"},
    }


async def leaves_a_message(there: Office, number: str, to: str) -> dict[str, Any]:
    """Returns it as a program gets it."""
    line = there.callers.lines[number]
    await until(lambda: any(isinstance(e, AgentChanged) for e in there.edge.events))
    await line.is_briefed()
    line.says(WORDS)
    await until(lambda: any(isinstance(e, VoicemailLeft) for e in there.edge.events))
    async with TestClient(TestServer(application(there.edge))) as http:
        found: list[dict[str, Any]] = []
        while not found:
            answer = await http.get("/voicemails", params={"mailbox": to, "heard": "false"})
            found = (await answer.json())["voicemails"]
        recorded = await http.get(found[0]["recording"])
        assert (await recorded.read())[:4] == b"OggS"
    return found[0]


async def test_who_finds_the_queue_full_leaves_a_message_for_it(tmp_path: Path) -> None:
    async with office(table(tmp_path, max_length=1)) as there:
        first, second = await waits(there, "491"), await waits(there, "492")
        message = await leaves_a_message(there, "492", "queue:support")
        assert (message["caller"], message["text"]) == ("492", WORDS)
        assert second.done()
        assert isinstance(second.exception(), LegError)
        assert order(there) == ["491"]
        assert not there.callers.lines["491"].leg.closed
        first.cancel()


@pytest.mark.slow
async def test_who_waits_for_too_long_leaves_a_message_for_it(tmp_path: Path) -> None:
    async with office(table(tmp_path, max_wait_seconds=3)) as there:
        waiting = await waits(there, "491")
        await there.callers.lines["491"].hears("music")
        message = await leaves_a_message(there, "491", "queue:support")
        assert message["mailbox"] == "queue:support"
        assert order(there) == []
        assert there.people_are_gone(1)
        with pytest.raises(LegError, match="mailbox takes the call over"):
            await waiting


@pytest.mark.parametrize(
    ("overflow", "words"),
    [
        ("agent:nobody", "no agent is called 'nobody'"),
        ("agent:silent", "'silent' cannot take a call over"),
    ],
)
def test_an_agent_that_cannot_take_callers_over(overflow: str, words: str) -> None:
    trunk = {"name": "people", "server": "127.0.0.2"}
    settings = {"members": ["+4930"], "overflow": overflow}
    agents = {"silent": {"kind": "silent"}}
    with pytest.raises(ValueError, match=f"queues.support.overflow: {words}"):
        Config.model_validate(
            {"agents": agents, "sip": {"trunks": [trunk]}, "queues": {"support": settings}}
        )
