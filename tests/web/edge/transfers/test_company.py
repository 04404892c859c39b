"""An agent that keeps the caller company while people are called: what it says, what the caller
hears, and what its model is told."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from aiohttp import web

from benchmarks.servers import scripted
from offhook.media.leg import LegError
from offhook.media.pcm import RATE_OUT
from offhook.pipeline.conversation.events import CallTransferred
from offhook.web.edge import admission_io
from offhook.web.edge.transfers import music_io
from offhook.web.edge.transfers.phrases import Phrase, phrase
from tests.pipeline.conversation.phone import Model, calls, model, says
from tests.support.waiting import until
from tests.telephony.sip.ends import tone
from tests.web.edge.transfer_sounds import BLOCK, RATE
from tests.web.edge.transfers.people import MUSIC_HZ, Office, office, speech

ASKS = "While you wait, what is your order number?"
NOTED, SORRY = "Noted.", "Sorry, nobody is free."
CONNECTING = phrase(Phrase.CONNECTING, "en")
MAX_SILENCE = 2 * RATE // BLOCK
"""Blocks of sound beside the caller's own words: 2 s, as a busy machine leaves holes."""


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """A word of the agents takes 80 ms, music is a tone, and a busy process has time left for
    another call."""
    music = tone(MUSIC_HZ, 1.0)
    monkeypatch.setattr(music_io, "hold_music", lambda: music)
    word = scripted.word_sound()[: 24 * 80]
    monkeypatch.setattr(scripted, "word_sound", lambda: word)
    monkeypatch.setattr(admission_io, "BUSY_SHARE", 100.0)


def no_summary(asked: dict[str, Any]) -> web.Response | None:
    """People are briefed by a fixed sentence, so that the answers are the caller's alone."""
    return None if asked.get("tools") else web.json_response({}, status=400)


@asynccontextmanager
async def talking(target: str, table: dict[str, Any]) -> AsyncIterator[tuple[Office, Model]]:
    """A model whose first answer is the transfer."""
    async with model([calls("transfer_call", target=target)], [says(ASKS)]) as asked:
        asked.refuses = no_summary
        agent = {
            "kind": "openai",
            "base_url": asked.url,
            "model": "scripted",
            "api_key": "none",
            "greeting": "Hello, one moment.",
            "transfers": [target],
        }
        async with office({"agent": agent, **table}) as there:
            yield there, asked


def to(*people: str, **more: Any) -> dict[str, Any]:
    addresses = [f"sip:{one}@{{people}}" for one in people]
    return {"transfers": {"sales": {"to": addresses, "meanwhile": "agent", **more}}}


def queue(*people: str, **more: Any) -> dict[str, Any]:
    members = [f"sip:{one}@{{people}}" for one in people]
    return {"queues": {"support": {"members": members, "meanwhile": "agent", **more}}}


async def begins(there: Office) -> None:
    """The caller asks for somebody, and the agent keeps the caller company."""
    await there.calls("491")
    there.callers.lines["491"].says("Yes.")
    await said(there, ASKS)


async def said(there: Office, words: str) -> None:
    await until(lambda: any(words in text for text in there.edge.turns()))


@pytest.mark.slow
async def test_the_agent_talks_with_the_caller_until_somebody_accepts() -> None:
    table = to("does_not_answer.1", "accepts_by_key.1", ring_seconds=8)
    async with talking("sales", table) as (there, asked):
        asked.answers.append([says(NOTED)])
        await begins(there)
        line = there.callers.lines["491"]
        await line.hears("music")
        line.says("No.")
        await said(there, NOTED)
        await line.hears("person", 5)
        heard = line.heard
        assert heard.order[0] == "agent"
        assert heard.order[-1] == "person"
        assert "music" in heard.order
        own = len(speech("No.")) * RATE // RATE_OUT // BLOCK
        assert heard.longest_silence <= own + MAX_SILENCE
        said_all = there.edge.turns()
        assert said_all.index(ASKS) < said_all.index(NOTED) < said_all.index(CONNECTING)
        assert [e.target for e in there.edge.events if isinstance(e, CallTransferred)][-1:] == [
            "sales"
        ]
        (person,) = there.people.of(1)
        await person.hears("caller", 3)


@pytest.mark.slow
async def test_the_model_is_told_that_nobody_has_accepted() -> None:
    async with talking("sales", to("is_busy.1")) as (there, asked):
        asked.answers.append([says(SORRY)])
        await begins(there)
        await said(there, SORRY)
        assert "The transfer to sales has failed" in str(asked.requests[-1]["messages"])
        call = there.edge.call
        assert not call.away
        call.leg.accompanied["sales"]()  # it may be tried again
        with pytest.raises(LegError, match="people are being called already"):
            call.leg.accompanied["sales"]()


@pytest.mark.slow
async def test_the_place_in_a_queue_is_said_by_the_agent() -> None:
    table = queue("does_not_answer.1", announce_seconds=5, max_wait_seconds=12)
    async with talking("queue:support", table) as (there, asked):
        asked.answers.append([says(SORRY)])
        await begins(there)
        await said(there, "You are next.")
        await said(there, SORRY)
        assert "You are next." in str(asked.requests[-1]["messages"])
        assert "The transfer to queue:support has failed" in str(asked.requests[-1]["messages"])


@pytest.mark.slow
async def test_who_hangs_up_meanwhile_has_left_the_queue() -> None:
    async with talking("queue:support", queue("listens.1")) as (there, _):
        await begins(there)
        await until(lambda: there.people.lines.get("listens.1"))
        (person,) = there.people.lines["listens.1"]
        await person.hears("agent", 3)
        await there.callers.lines["491"].leg.hang_up("the caller hung up")
        await person.leg.until_closed()
        await until(lambda: not there.edge.queues._queue("support").order)
        await until(lambda: not there.edge.conversations)
