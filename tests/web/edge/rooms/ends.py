"""Far ends of every kind that meet in a room, each of which says a tone of its own when asked."""

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import numpy as np

from offhook.media.clock_io import PacketClock
from offhook.media.end_reason import End
from offhook.media.leg import Leg
from offhook.media.pcm import RATE_IN, RATE_OUT, SAMPLES_OUT, Pcm
from offhook.telephony.carriers.settings import CarrierSettings
from offhook.telephony.sip.trunks.trunks import Route, SipSettings, Trunk
from offhook.web.app.callers.caller_sip_io import SipCaller
from offhook.web.app.callers.caller_webrtc_io import CallerLeg
from offhook.web.app.callers.twilio.caller_io import TwilioCaller
from offhook.web.app.callers.twilio.webhook_io import CallFacts
from offhook.web.app.callers.way import Way
from offhook.web.app.evals.eval_line_io import NO_REST
from offhook.web.config.config import Config
from tests.support.waiting import until
from tests.telephony.sip.phones import ToneHost, endpoint, port_of
from tests.web.edge.phones import Served

HOST = "127.0.0.1"
SECRET = "0123456789abcdef0123456789abcdef"
BLOCKS = 25
"""Packets, half a second, in which it is looked for tones."""
FAINT_DB = -40.0
"""Level, relative to that of a tone as it is sent, above which it counts as heard."""
PEAK = 6000


def with_doors(config: Config, phone: int = 0) -> Config:
    """Adds phones by SIP, one of whose trunks calls the phone at this port, and a carrier."""
    trunks = (
        Trunk("phones", addresses=(HOST,)),
        Trunk("desk", server=f"{HOST}:{phone or 9}"),
    )
    sip = SipSettings(host=HOST, udp=0, tcp=None, trunks=trunks, routes=(Route(),))
    carrier = CarrierSettings(
        "twilio", secret=SECRET, account=CallFacts().account, rest_url=NO_REST
    )
    return config.model_copy(update={"sip": sip, "carriers": (carrier,)})


class FarEnd:
    """One far end: what it hears, and a tone that it says while `says`."""

    def __init__(self, leg: Leg, hz: float) -> None:
        self.leg, self.hz, self.says = leg, hz, False
        self.heard: list[Pcm] = []
        self._phase = 0
        leg.listen(self._tick)

    def _tick(self, heard: Pcm, said: Pcm | None, now: float) -> None:
        self.heard.append(heard.copy())
        if self.says and self.leg.playout.queued < SAMPLES_OUT:
            self.leg.playout.write(sine(self.hz, self._phase))
        self._phase += SAMPLES_OUT

    def level(self, hz: float) -> float:
        """Of a tone in what it heard last, in dB relative to one that is sent."""
        return level(np.concatenate(self.heard[-BLOCKS:]), hz)

    async def listens(self, packets: int = BLOCKS) -> None:
        """So much sound passes."""
        before = len(self.heard)
        await until(lambda: len(self.heard) >= before + packets)


def sine(hz: float, phase: int = 0, samples: int = SAMPLES_OUT) -> Pcm:
    at = np.arange(phase, phase + samples) / RATE_OUT
    return (PEAK * np.sin(2 * np.pi * hz * at)).astype(np.int16)


def level(pcm: Pcm, hz: float, rate: int = RATE_IN) -> float:
    """Of a tone in a sound, in dB relative to one that is sent."""
    at = np.arange(len(pcm)) / rate
    window = np.hanning(len(pcm))
    found = np.abs(np.dot(pcm * window, np.exp(-2j * np.pi * hz * at))) * 2 / window.sum()
    return float(20 * np.log10(found / PEAK + 1e-9))


def who_hears_whom(ends: Mapping[str, FarEnd], tones: Mapping[str, float]) -> dict[str, set[str]]:
    """Whose tones each of them hears now."""
    return {
        name: {other for other, hz in tones.items() if end.level(hz) > FAINT_DB}
        for name, end in ends.items()
    }


class Ends:
    """All far ends of a test, on one clock."""

    def __init__(self, server: Served, stack: AsyncExitStack) -> None:
        self.server, self._stack = server, stack
        self.clock = PacketClock()
        self.by_name: dict[str, FarEnd] = {}

    def _add(self, name: str, leg: Leg, hz: float, *, clocked: bool = True) -> FarEnd:
        end = self.by_name[name] = FarEnd(leg, hz)
        if clocked:
            self.clock.add(leg)
            self._stack.callback(self.clock.remove, leg)
        return end

    async def by_twilio(self, name: str, hz: float) -> str:
        """Calls by a carrier's stream; returns the id of the call."""
        caller = TwilioCaller(f"{self.server.url}/carriers/twilio/voice", SECRET, Way())
        return await self._calls(name, caller, hz)

    async def by_sip(self, name: str, hz: float) -> str:
        """Calls by SIP; returns the id of the call."""
        caller = SipCaller(f"sip:shop@{HOST}:{self.server.port}", PacketClock())
        return await self._calls(name, caller, hz)

    async def _calls(self, name: str, caller: TwilioCaller | SipCaller, hz: float) -> str:
        before = set(self.server.edge.calls)
        await caller.call()
        self._stack.push_async_callback(caller.close)
        self._stack.push_async_callback(caller.leg.hang_up, End.CALLER_HUNG_UP)
        self._add(name, caller.leg, hz)
        await until(lambda: self.server.edge.calls.keys() - before)
        [call_id] = self.server.edge.calls.keys() - before
        return call_id

    async def from_browser(self, call_id: str, name: str, hz: float, **fields: Any) -> FarEnd:
        """Joins the room of a call from a browser, with the operator's key."""
        leg = CallerLeg(name)
        answer = await self.joins(call_id, name=name, sdp=await leg.offer(), **fields)
        await leg.accept(answer["sdp"])
        assert await leg.until_connected()
        self._stack.push_async_callback(leg.hang_up, End.CALLER_HUNG_UP)
        end = self._add(name, leg, hz)
        await self.has_joined(call_id, name)
        return end

    async def dialled(
        self, call_id: str, name: str, hz: float, phone: "DeskPhone", **fields: Any
    ) -> FarEnd:
        """Joins the room of a call by phone: it is called, and answers."""
        dial = {"to": "4711", "trunk": "desk"}
        await self.joins(call_id, name=name, dial=dial, **fields)
        end = self._add(name, await phone.answered(), hz, clocked=False)
        await self.has_joined(call_id, name)
        return end

    async def joins(self, call_id: str, **fields: Any) -> dict[str, Any]:
        answer = await self.server.client.post(f"/calls/{call_id}/members", json=fields)
        assert answer.status == 201, await answer.text()
        body: dict[str, Any] = await answer.json()
        return body

    async def members(self, call_id: str) -> dict[str, dict[str, Any]]:
        shown = await self.server.get(f"/calls/{call_id}/members")
        return {member["name"]: member for member in shown["members"]}

    async def has_joined(self, call_id: str, name: str) -> None:
        while (await self.members(call_id))[name]["state"] != "joined":
            await asyncio.sleep(0.02)

    async def change(self, call_id: str, name: str, **fields: Any) -> None:
        path = f"/calls/{call_id}/members/{name}"
        answer = await self.server.client.patch(path, json=fields)
        assert answer.status == 200, await answer.text()


class DeskPhone(ToneHost):
    """A phone that answers, and says nothing of its own."""

    def __init__(self) -> None:
        super().__init__()
        self._legs: asyncio.Queue[Leg] = asyncio.Queue()

    async def run_call(self, leg: Leg, agent: str) -> None:
        self.clock.add(leg)
        self._legs.put_nowait(leg)
        try:
            await leg.until_closed()
        finally:
            self.clock.remove(leg)

    async def answered(self) -> Leg:
        return await self._legs.get()


@asynccontextmanager
async def desk_phone() -> AsyncIterator[tuple[DeskPhone, int]]:
    """A phone, and the port at which it is called."""
    phone = DeskPhone()
    async with endpoint(phone) as (sip, _):
        yield phone, port_of(sip, "UDP")
