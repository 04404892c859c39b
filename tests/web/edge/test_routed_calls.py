"""Calls by phone whose routes ask for lists of callers and hours: who answers, who is refused."""

import asyncio
from pathlib import Path

import pytest

from offhook.web.config.config import Config
from offhook.web.edge.reload_io import use
from tests.support.ports import free_port
from tests.support.waiting import HANGS_S
from tests.telephony.sip.scripted_peer import udp_peer
from tests.telephony.sip.scripted_sound import sound
from tests.web.edge.phones import TABLE, Served, served

pytestmark = pytest.mark.asyncio
ROUTES = (
    {"callers": "blocked", "refuse": 603},
    {"callers": "vip", "agent": "desk"},
    {"hours": "never", "agent": "desk"},
    {"refuse": 486},
)
NEVER = {"open": ["daily 08:00-09:00"], "holidays": ["01-01..12-31"]}


def with_lists(blocked: Path) -> Config:
    port = free_port()
    trunk = {"name": "pbx", "addresses": ["127.0.0.1"]}
    return Config.model_validate(
        {
            **TABLE,
            "hours": {"never": NEVER},
            "callers": {"blocked": {"file": blocked}, "vip": {"numbers": ["ann"]}},
            "sip": {"udp": port, "tcp": port, "trunks": [trunk], "routes": ROUTES},
        }
    )


async def called(server: Served, caller: str) -> int | str:
    """The agent that takes a call of this caller, or the status with which it is refused."""
    async with udp_peer(server.sip) as peer:
        peer.uri = f"sip:{caller}@127.0.0.1"
        with sound() as line:
            peer.invite(line.sdp())
            async with asyncio.timeout(HANGS_S):
                while not (finals := [m for m in peer.came if isinstance(m, int) and m >= 200]):
                    await asyncio.sleep(0.01)
            response = await peer.response(finals[0])
            if response.status != 200:
                peer.ack_refusal(response)
                return response.status
            peer.ack(response)
            (call,) = server.sip.calls.values()
            await peer.hang_up()
            while server.sip.calls:
                await asyncio.sleep(0.01)
            return call.agent


async def test_lists_and_hours_decide_who_answers(tmp_path: Path) -> None:
    blocked = tmp_path / "blocked.txt"
    blocked.write_text("eve  # calls every day\n+1900*\n")
    async with served(with_lists(blocked)) as server:
        assert await called(server, "eve") == 603
        assert await called(server, "001900123") == 603
        assert await called(server, "ann") == "desk"
        assert await called(server, "bob") == 486  # nobody is there at this hour


async def test_a_reload_reads_the_lists_again(tmp_path: Path) -> None:
    blocked = tmp_path / "blocked.txt"
    blocked.write_text("eve\n")
    async with served(with_lists(blocked)) as server:
        assert await called(server, "ann") == "desk"
        blocked.write_text("eve\nann\n")
        use(server.edge, with_lists(blocked))
        assert await called(server, "ann") == 603
