"""Two customers of a server with two processes: whichever is asked knows whose a call is."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from offhook.signaling.peer_io import PeerLeg
from tests.support.waiting import HANGS_S
from tests.web.edge.test_processes import TwoProcesses

SETTINGS = """
[server]
admin_key = "operator"
[tts]
engine = "espeak"
[agents.shop]
kind = "silent"
[agents.night]
kind = "silent"
[tenants.acme]
key = "acme"
agents = ["shop"]
[tenants.beta]
key = "beta"
agents = ["night"]
"""


async def ask(
    server: TwoProcesses, key: str, method: str, path: str, **body: Any
) -> tuple[int, Any]:
    """On a connection of its own: which process takes it is the system's choice."""
    headers = {"Authorization": f"Bearer {key}"}
    async with (
        aiohttp.ClientSession(server.url, headers=headers) as http,
        http.request(method, path, json=body or None) as answer,
    ):
        return answer.status, await answer.json()


@asynccontextmanager
async def calling(server: TwoProcesses, agent: str) -> AsyncIterator[str]:
    """The id of a call to an agent by somebody with a token of its tenant."""
    key = {"shop": "acme", "night": "beta"}[agent]
    _, given = await ask(server, key, "POST", "/tokens", agent=agent)
    leg = PeerLeg("browser")
    try:
        sdp = await leg.offer()
        status, body = await ask(
            server, given["token"], "POST", "/api/offer", sdp=sdp, type="offer"
        )
        assert status == 200, body
        await leg.accept(body["sdp"])
        yield body["pc_id"]
    finally:
        await leg.hang_up("test over")


@pytest.mark.slow
async def test_each_process_knows_whose_a_call_is(tmp_path: Path) -> None:
    (tmp_path / "offhook.toml").write_text(SETTINGS)
    server = TwoProcesses(tmp_path)
    try:
        async with asyncio.timeout(HANGS_S):
            while (await server.ask("GET", "/readyz"))[0] != 200:
                await asyncio.sleep(0.05)
        async with (
            calling(server, "shop") as one,
            calling(server, "night") as two,
            calling(server, "shop") as three,
        ):
            assert len({call[0] for call in (one, two, three)}) == 2  # both have some
            for _ in range(12):  # some come to the process of the call, some to the other one
                for key, its in (("acme", {one, three}), ("beta", {two})):
                    status, body = await ask(server, key, "GET", "/calls")
                    assert {call["call_id"] for call in body["calls"]} == its
                    for call in (one, two, three):
                        for path in (f"/calls/{call}", f"/calls/{call}/members"):
                            status, body = await ask(server, key, "GET", path)
                            assert (status == 404) == (call not in its), body
                    forged = {"X-Offhook-Tenant": "beta", "X-Offhook-Operator": "yes"}
                    async with (
                        aiohttp.ClientSession(server.url, headers=forged) as http,
                        http.get(
                            f"/calls/{two}", headers={"Authorization": "Bearer acme"}
                        ) as answer,
                    ):
                        assert answer.status == 404
            for room in (one, three):  # one of them is in another process than the call
                status, body = await ask(server, "acme", "POST", f"/calls/{room}/members", call=two)
                assert (status, body) == (409, {"error": f"call: {two!r} is not in progress here"})
            assert len((await ask(server, "operator", "GET", "/calls"))[1]["calls"]) == 3
    finally:
        server.process.terminate()
        server.process.wait(HANGS_S)
