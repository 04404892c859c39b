"""The operator joins a call from the console."""

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from offhook.media.clock_io import PacketClock
from offhook.media.end_reason import End
from offhook.web.app.callers.caller_webrtc_io import CallerLeg, WebRtcCaller
from tests.browser.conftest import serving
from tests.web.edge.rooms.ends import FarEnd

pytestmark = pytest.mark.browser

KEY = "the-operators-key"


async def test_an_operator_listens_speaks_and_takes_over(
    tmp_path: Path, drive: Callable[..., Any]
) -> None:
    environment = {
        "OFFHOOK_RECORDS_URL": f"sqlite:///{tmp_path}/calls.db",
        "OFFHOOK_RECORDS_SPOOL": str(tmp_path / "spool"),
        "OFFHOOK_SERVER_ADMIN_KEY": KEY,
    }
    async with serving(**environment) as server:
        caller, clock = WebRtcCaller(server.url), PacketClock()
        await caller.call()
        clock.add(caller.leg)
        FarEnd(caller.leg, 450).says = True
        headers = {"Authorization": f"Bearer {KEY}"}
        async with aiohttp.ClientSession(server.url, headers=headers) as http:
            [call] = (await (await http.get("/calls")).json())["calls"]
            desk = CallerLeg("desk")
            body = {"name": "desk", "role": "listen", "sdp": await desk.offer()}
            members = f"/calls/{call['call_id']}/members"
            await desk.accept((await (await http.post(members, json=body)).json())["sdp"])
            assert await desk.until_connected()
            clock.add(desk)
            while "joined" not in str((await (await http.get(members)).json())["members"][1]):
                await asyncio.sleep(0.02)
            desk.send_dtmf("*5")
            url = f"{server.url}/console#/call/{call['call_id']}"
            found = await drive("supervise.mjs", url=url, key=KEY)
            events = await (await http.get(f"/calls/{call['call_id']}/timeline")).json()
        clock.remove(desk)
        await desk.hang_up(End.CALLER_HUNG_UP)
        clock.remove(caller.leg)
        await caller.leg.hang_up(End.CALLER_HUNG_UP)
        await caller.close()
    assert found == {"axe": [], "troubles": []}
    wanted = "member_joined", "member_changed", "agent_left", "agent_returned", "member_left"
    of_page = [event for event in events["timeline"] if event.get("member") != "desk"]
    assert [event["event"] for event in of_page if event["event"] in wanted] == list(wanted)
    of_desk = [event for event in events["timeline"] if event.get("member") == "desk"]
    hands = "member_raised_hand", "member_changed", "member_lowered_hand"
    assert [event["event"] for event in of_desk if event["event"] in hands] == list(hands)
