"""People whom a carrier calls, for a caller by phone: over the carrier's webhook and stream, as its
documents have them, and a real line of SIP."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from aiohttp import ClientSession, web

from benchmarks.carriers.far_ends.far_end import CallFacts
from benchmarks.carriers.far_ends.far_end_io import FarEndCall
from benchmarks.carriers.far_ends.far_end_json import Twilio
from offhook.media.leg import LegError
from offhook.pipeline.conversation.events import TransferProgress
from offhook.web.edge import admission_io
from offhook.web.edge.edge_io import Edge
from offhook.web.edge.server_io import application
from tests.support.waiting import until
from tests.telephony.carriers.rest.fake_rest import FakeRest
from tests.telephony.sip.phones import is_tone, write_tone
from tests.web.edge.test_carriers import loud, stream_url, tone, webhook
from tests.web.edge.transfers.people import CALLER_HZ, MUSIC_HZ, PERSON_HZ, Office, office

pytestmark = pytest.mark.asyncio
PERSON = "+491701234567"


@pytest.fixture(autouse=True)
def busy(monkeypatch: pytest.MonkeyPatch) -> None:
    """A busy process has time left for another call."""
    monkeypatch.setattr(admission_io, "BUSY_SHARE", 100.0)


@asynccontextmanager
async def front_door(edge: Edge) -> AsyncIterator[Any]:
    runner = web.AppRunner(application(edge), access_log=None, handle_signals=False)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        url = f"http://127.0.0.1:{runner.addresses[0][1]}"
        async with ClientSession(url) as client:
            yield SimpleNamespace(client=client, url=url)
    finally:
        await runner.cleanup()


@asynccontextmanager
async def by_carrier(folder: Path) -> AsyncIterator[tuple[Office, FakeRest, Any]]:
    """An office whose people are called by Twilio."""
    music = folder / "music.wav"
    await asyncio.to_thread(write_tone, music, MUSIC_HZ, 8000, 1)
    async with FakeRest() as rest:
        known = rest.settings("twilio")
        carrier = {
            "provider": "twilio",
            "account": known.account,
            "secret": known.secret,
            "rest_url": rest.url,
            "number": known.number,
            "public_url": "http://127.0.0.1:1",
            "insecure": True,
            "port": 0,
        }
        sales = {"to": [PERSON], "carrier": "twilio", "music": str(music)}
        table = {"carriers": [carrier], "transfers": {"sales": sales}}
        async with office(table) as there, front_door(there.edge) as server:
            yield there, rest, server


async def is_called(there: Office, rest: FakeRest) -> tuple[str, str]:
    """Our id of the call to the person, and the carrier's."""
    await until(lambda: rest.calls)
    [placed] = rest.calls.values()
    assert placed.values["To"] == PERSON
    assert there.edge.carriers is not None
    [call] = there.edge.carriers.calls.in_progress()
    return call.call_id, placed.id


async def test_a_person_is_briefed_accepts_by_key_and_is_connected(tmp_path: Path) -> None:
    async with by_carrier(tmp_path) as (there, rest, server):
        call = await there.calls("491")
        states: list[str] = []
        call.listeners.append(
            lambda e: states.append(e.state) if isinstance(e, TransferProgress) else None
        )
        transferring = asyncio.create_task(call.transfer("sales"))
        ours, theirs = await is_called(there, rest)
        line = there.callers.lines["491"]
        await line.hears("music")
        text = await webhook(server, "twilio", theirs, path=f"voice/{ours}")
        url, parameters = stream_url("twilio", text)
        person = FarEndCall(Twilio(CallFacts(call_id=theirs, parameters=parameters)))
        await person.start(server.url.replace("http", "ws") + url.partition(":1")[2])
        rate, played = person.far_end.rate, person.far_end.player.played
        await until(lambda: len(loud(played, rate)) > rate)  # who calls, and why
        person.far_end.press("1")
        await transferring
        await until(lambda: is_tone(loud(played, rate)[-rate:], rate, CALLER_HZ))
        person.say(tone(PERSON_HZ, 16_000, 30), 16_000)
        await line.hears("person", 3)
        await person.close()
        await line.leg.until_closed()
        await until(lambda: states[-1] == "completed")
        assert states == ["requested", "ringing", "briefing", "accepted", "bridged", "completed"]
        assert not person.far_end.faults


async def test_a_person_who_is_busy_gives_the_caller_back_to_the_agent(tmp_path: Path) -> None:
    async with by_carrier(tmp_path) as (there, rest, server):
        call = await there.calls("491")
        transferring = asyncio.create_task(call.transfer("sales"))
        ours, theirs = await is_called(there, rest)
        await webhook(server, "twilio", theirs, path=f"status/{ours}", CallStatus="busy")
        with pytest.raises(LegError, match="nobody accepted"):
            await transferring
        assert call.leg.closed is None
        await there.callers.lines["491"].leg.hang_up("the caller hung up")
        await until(lambda: call.leg.closed is not None)
