"""Calls placed over SIP, and who answers them: real lines both ways, and what the one who answered
has heard, on his own clock."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import cache
from typing import Any

import numpy as np
import pytest
from aiohttp import ClientSession, web

from benchmarks.answers.scenes import silence, tone
from benchmarks.answers.voices import trimmed, voices_of
from offhook.media.codecs.resample import Resampler
from offhook.media.leg import Leg
from offhook.media.pcm import RATE_IN, RATE_OUT, SAMPLES_OUT, Pcm
from offhook.pipeline.conversation.events import AgentTurn, AnsweredBy, MessageLeft
from offhook.web.config.config import Config
from offhook.web.edge.server_io import application
from tests.support.ports import free_port
from tests.support.waiting import HANGS_S
from tests.telephony.sip.phones import ToneHost, endpoint, port_of
from tests.web.edge.phones import Served
from tests.web.edge.scripted_edge import ScriptedEdge

pytestmark = pytest.mark.asyncio
GREETING = "This is Ann of the garage."
MESSAGE = "Your car is ready, this was Ann of the garage."
AUDIBLE = 500


@cache
def said(text: str) -> Pcm:
    """The text as Flite reads it, 16 kHz."""
    return trimmed(voices_of("en")[0][1](text)).astype(np.int16)


def line(*parts: Any) -> Pcm:
    """What is heard of these, texts and sounds, at 24 kHz in whole packets."""
    sounds = [said(part) if isinstance(part, str) else part.astype(np.int16) for part in parts]
    sound = np.concatenate(sounds)
    sound = Resampler(RATE_IN, RATE_OUT).process(sound[: len(sound) // 2 * 2])
    return sound[: len(sound) // SAMPLES_OUT * SAMPLES_OUT]


class Answering(ToneHost):
    """Answers with a sound, and keeps what it hears tick by tick."""

    def __init__(self, sound: Pcm) -> None:
        super().__init__()
        self.sound = sound
        self.heard_at: list[int] = []
        """Ticks since the answer in which we were heard."""
        self.spoken = len(sound) // SAMPLES_OUT
        """Ticks of the sound."""
        self.over = asyncio.Event()

    async def run_call(self, leg: Leg, agent: str) -> None:
        ticks = 0

        def tick(heard: Pcm, said: Pcm | None, now: float) -> None:
            nonlocal ticks
            ticks += 1
            if np.abs(heard).max() > AUDIBLE:
                self.heard_at.append(ticks)

        leg.playout.write(self.sound)
        leg.listen(tick)
        self.clock.add(leg)
        try:
            await leg.until_closed()
        finally:
            self.clock.remove(leg)
            self.over.set()


class Placed:
    """A server that calls somebody."""

    def __init__(self, server: Served, edge: ScriptedEdge, far: Answering) -> None:
        self.server, self.edge, self.far = server, edge, far

    def of(self, kind: type[Any]) -> list[Any]:
        return [event for event in self.edge.events if isinstance(event, kind)]

    async def record(self, call_id: str) -> dict[str, Any]:
        """The record of the call, once it is over."""
        async with asyncio.timeout(HANGS_S):
            while "record" not in (call := await self.server.get(f"/calls/{call_id}")):
                await asyncio.sleep(0.02)
        record: dict[str, Any] = call["record"]
        return record

    async def until(self, kind: type[Any]) -> Any:
        async with asyncio.timeout(HANGS_S):
            while not self.of(kind):
                await asyncio.sleep(0.02)
        return self.of(kind)[0]


@asynccontextmanager
async def placing(sound: Pcm, agent: dict[str, Any], **trunk: Any) -> AsyncIterator[Placed]:
    far = Answering(sound)
    async with endpoint(far) as (sip, _):
        port, where = free_port(), f"127.0.0.1:{port_of(sip, 'UDP')}"
        table = {
            "server": {"port": 0, "drain_seconds": 0},
            "agent": {"greeting": GREETING, **agent},
            "sip": {
                "udp": port,
                "tcp": port,
                "trunks": [{"name": "pbx", "server": where, "codecs": ["pcmu"], **trunk}],
            },
        }
        edge = ScriptedEdge(Config.model_validate(table))
        await edge.start()
        runner = web.AppRunner(application(edge), access_log=None, handle_signals=False)
        await runner.setup()
        try:
            await web.TCPSite(runner, "127.0.0.1", 0).start()
            url = f"http://127.0.0.1:{runner.addresses[0][1]}"
            async with ClientSession(url) as client:
                yield Placed(Served(edge, client, url), edge, far)
        finally:
            await edge.close()
            await runner.cleanup()


async def test_a_person_hears_the_agent_and_the_record_has_it() -> None:
    async with placing(line(silence(400), "Hello?"), {"machine_detection": "detect"}) as placed:
        call_id = await placed.server.place("100")
        assert (await placed.until(AnsweredBy)).by == "human"
        assert (await placed.until(AgentTurn)).text == GREETING
        assert placed.far.heard_at[0] > placed.far.spoken
        await placed.server.client.delete(f"/calls/{call_id}")
        record = await placed.record(call_id)
        assert record["answered_by"] == "human"
        assert not record["message_left"]


async def test_a_voicemail_gets_the_whole_message_after_its_beep() -> None:
    greeting = "We are not at home so tell us what you want and when we can ring you."
    beeped = line(silence(300), greeting, silence(500), tone((900.0,), 500))
    async with placing(beeped, {}) as placed:
        asked = {"machine_detection": "message", "message": MESSAGE}
        call_id = await placed.server.place("100", **asked)
        await asyncio.wait_for(placed.far.over.wait(), HANGS_S)
        record = await placed.record(call_id)
        assert record["answered_by"] == "machine_end"
        assert record["message_left"]
        assert record["end_reason"] == "the message was left"
        assert [event.text for event in placed.of(MessageLeft)] == [MESSAGE]
        assert [event.text for event in placed.of(AgentTurn)] == [MESSAGE]
        assert placed.far.heard_at[0] > placed.far.spoken


async def test_a_trunk_decides_and_a_call_decides_otherwise() -> None:
    fax = line(silence(300), tone((2100.0,), 3000))
    async with placing(fax, {}, machine_detection="detect") as placed:
        call_id = await placed.server.place("100")
        record = await placed.record(call_id)
        assert record["answered_by"] == "fax"
        assert record["end_reason"] == "a machine answered (fax)"
    async with placing(fax, {}, machine_detection="detect") as placed:
        call_id = await placed.server.place("100", machine_detection="off")
        assert (await placed.until(AgentTurn)).text == GREETING
        assert placed.of(AnsweredBy) == []


async def test_what_is_wrong_with_a_request_is_said() -> None:
    async with placing(line(silence(100)), {}) as placed:
        refused = placed.server.refused
        words = await refused(400, to="100", machine_detection="beep")
        assert words.startswith("machine_detection: ")
        words = await refused(400, to="100", message="Call back.")
        assert words == 'message: needs "machine_detection": "message"'
        words = await refused(400, to="100", machine_detection="message")
        assert words.startswith("message: ")
