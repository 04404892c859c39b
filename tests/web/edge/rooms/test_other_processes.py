"""Members of a room whose lines another process of the server has: real processes, real lines."""

import asyncio
import json
import os
import signal
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from offhook.media.clock_io import PacketClock
from offhook.media.end_reason import End
from offhook.web.app.callers.caller_sip_io import SipCaller
from tests.support.ports import free_port
from tests.support.waiting import HANGS_S, until
from tests.web.edge.phones import ScriptedPhone
from tests.web.edge.rooms.ends import FAINT_DB, HOST, DeskPhone, FarEnd, desk_phone
from tests.web.edge.test_processes import TwoProcesses, callers

pytestmark = pytest.mark.slow
BUSY, RINGS = free_port(), free_port()


class Call:
    """A browser's call in the second process, a phone that can be called, and one that calls."""

    def __init__(self, server: TwoProcesses, call_id: str, browser: FarEnd) -> None:
        self.server, self.id, self.browser = server, call_id, browser

    async def asks(self, method: str, path: str, **body: Any) -> dict[str, Any]:
        status, answer = await self.server.ask(method, f"/calls/{self.id}{path}", **body)
        assert status < 300, answer
        return answer

    async def members(self) -> dict[str, dict[str, Any]]:
        members = (await self.asks("GET", "/members"))["members"]
        return {member["name"]: member for member in members}

    async def until_member(self, name: str, state: str | None) -> None:
        async with asyncio.timeout(HANGS_S):
            while (await self.members()).get(name, {}).get("state") != state:
                await asyncio.sleep(0.02)

    async def dials(self, phone: DeskPhone, **fields: Any) -> FarEnd:
        dial = {"to": "4711", "trunk": "desk"}
        await self.asks("POST", "/members", name="desk", dial=dial, **fields)
        end = FarEnd(await phone.answered(), 1500)
        await self.until_member("desk", "joined")
        return end

    async def timeline(self) -> list[dict[str, Any]]:
        events: list[dict[str, Any]] = (await self.asks("GET", "/timeline"))["timeline"]
        return events


@asynccontextmanager
async def calling(folder: Path) -> AsyncIterator[tuple[Call, DeskPhone, int]]:
    async with AsyncExitStack() as stack:
        phone, port = await stack.enter_async_context(desk_phone())
        sip = free_port()
        trunks = [
            {"name": "desk", "server": f"{HOST}:{port}"},
            {"name": "phones", "addresses": [HOST]},
            {"name": "busy", "server": f"{HOST}:{BUSY}"},
            {"name": "rings", "server": f"{HOST}:{RINGS}"},
        ]
        settings = {
            "SIP_UDP": str(sip),
            "SIP_TCP": "0",
            "SIP_TRUNKS": json.dumps(trunks),
            "SIP_ROUTES": "[{}]",
            "SIP_HOST": HOST,
            "RECORDS_URL": "sqlite:///calls.db",
            "SERVER_MAX_CALLS": "8",
        }
        server = TwoProcesses(folder, **settings)
        stack.callback(server.process.wait)
        stack.callback(server.process.kill)
        await server.ready()
        group = await stack.enter_async_context(callers(server, 4))
        one = next(caller for caller in group if caller.process == "2")
        yield Call(server, one.pc_id, FarEnd(one.leg, 450)), phone, sip


async def hears(end: FarEnd, hz: float) -> None:
    await until(lambda: len(end.heard) > 30 and end.level(hz) > FAINT_DB / 2)


async def test_a_phone_is_called_into_a_room_of_any_process(tmp_path: Path) -> None:
    async with calling(tmp_path) as (call, phone, _):
        desk = await call.dials(phone)
        desk.says = call.browser.says = True
        await hears(call.browser, 1500)
        await hears(desk, 450)
        await call.asks("PATCH", "/members/desk", role="listen")
        await until(lambda: call.browser.level(1500) < FAINT_DB)
        desk.leg.send_dtmf("*5")
        async with asyncio.timeout(HANGS_S):
            while not (await call.members())["desk"]["hand"]:
                await asyncio.sleep(0.02)
        await desk.leg.hang_up("enough")
        await call.until_member("desk", None)
        desk = await call.dials(phone)
        await call.asks("DELETE", "/members/desk")
        await until(lambda: desk.leg.closed)
        refused = await call.server.ask(
            "POST", f"/calls/{call.id}/members", dial={"to": "1", "trunk": "none"}
        )
        assert refused[0] == 409
        assert "none" in refused[1]["error"]
        assert [e["event"] for e in await call.timeline()].count("member_left") == 2


async def test_who_does_not_answer_leaves(tmp_path: Path) -> None:
    async with (
        calling(tmp_path) as (call, _, _),
        ScriptedPhone(486).running(BUSY),
        ScriptedPhone(180).running(RINGS),
    ):
        dial = {"to": "1", "trunk": "busy"}
        await call.asks("POST", "/members", name="busy", dial=dial)
        await call.until_member("busy", None)
        dial = {"to": "1", "trunk": "rings"}
        await call.asks("POST", "/members", name="rings", dial=dial)
        await call.until_member("rings", "connecting")
        await call.asks("DELETE", "/members/rings")
        await call.until_member("rings", None)
        left = [e for e in await call.timeline() if e["event"] == "member_left"]
        assert [event["member"] for event in left] == ["busy", "rings"]
        assert "486" in left[0]["reason"] or "busy" in left[0]["reason"].lower()
        async with asyncio.timeout(HANGS_S):
            while "sip" in str((await call.server.ask("GET", "/calls"))[1]):
                await asyncio.sleep(0.05)


async def test_a_call_of_another_process_is_brought_in_and_goes_on(tmp_path: Path) -> None:
    async with calling(tmp_path) as (call, _, sip):
        clock = PacketClock()
        caller = SipCaller(f"sip:shop@{HOST}:{sip}", clock)
        await caller.call()
        friend = FarEnd(caller.leg, 700)
        clock.add(caller.leg)
        friend.says = call.browser.says = True
        listed = (await call.server.ask("GET", "/calls"))[1]["calls"]
        [other] = [one["call_id"] for one in listed if one["edge"] == "sip"]
        await kept(call, other, "call_started")
        await call.asks("POST", "/members", name="friend", call=other)
        await call.until_member("friend", "joined")
        await hears(friend, 450)
        await hears(call.browser, 700)
        for pid in _second(call.server):
            os.kill(pid, signal.SIGKILL)
        await kept(call, other, "agent_returned")
        assert caller.leg.closed is None
        clock.remove(caller.leg)
        await caller.leg.hang_up(End.CALLER_HUNG_UP)
        await caller.close()


async def kept(call: Call, call_id: str, kind: str) -> None:
    """Returns once the record of a call has such an event."""
    async with asyncio.timeout(HANGS_S):
        while kind not in str(await call.server.ask("GET", f"/calls/{call_id}/timeline")):
            await asyncio.sleep(0.05)


def _second(server: TwoProcesses) -> list[int]:
    """The process beside the first one."""
    children = Path(f"/proc/{server.process.pid}/task/{server.process.pid}/children")
    pids = map(int, children.read_text().split())
    return [pid for pid in pids if b"processes_io" in Path(f"/proc/{pid}/cmdline").read_bytes()]
