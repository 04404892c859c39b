"""Four `offhook serve` on one PostgreSQL, behind Kamailio: one list of calls, at each of them."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from benchmarks.servers.kamailio import kamailio
from offhook.web.records.store import CRASHED
from tests.deploy.site import QUICK, Site, until
from tests.deploy.test_kamailio_serve import serving
from tests.support.ports import free_port
from tests.telephony.sip.phones import needs_kamailio
from tests.web.edge.test_processes import TwoProcesses
from tests.web.records.conftest import Postgres, emptied

pytestmark = [needs_kamailio, pytest.mark.asyncio, pytest.mark.slow]

CALLS = 8


async def found(server: TwoProcesses, state: str) -> list[dict[str, Any]]:
    status, answer = await server.ask("GET", f"/calls?state={state}")
    assert status == 200, answer
    calls: list[dict[str, Any]] = answer["calls"]
    return calls


async def test_all_calls_are_in_the_list_of_each_server(postgres: Postgres, tmp_path: Path) -> None:
    emptied(postgres)
    ports = [free_port() for _ in range(4)]
    starting = [  # a store knows servers by their host and port, so each needs a port of its own
        asyncio.to_thread(
            serving,
            *(tmp_path / name, port),
            RECORDS_URL=postgres.url,
            SERVER_PORT=str(free_port()),
        )
        for name, port in zip("abcd", ports, strict=True)
    ]
    servers = await asyncio.gather(*starting)
    try:
        for server in servers:
            await server.ready()
        async with kamailio(ports, **QUICK) as proxy, Site(proxy, []).callers() as callers:
            assert (await callers.fill(CALLS))["up"] == CALLS
            for server in servers:
                await until(lambda server=server: _has(server, "live", CALLS))
            lists = [{call["call_id"] for call in await found(s, "live")} for s in servers]
            assert all(one == lists[0] for one in lists)
            of_servers = {call["server"] for call in await found(servers[0], "live")}
            assert len(of_servers) == len(servers)

            servers[3].process.kill()  # its two calls are closed by another one
            for server in servers[:3]:
                await until(lambda server=server: _has(server, "ended", 2))
            crashed = await found(servers[0], "ended")
            assert [call["end_reason"] for call in crashed] == [CRASHED] * 2
        for server in servers[:3]:
            await until(lambda server=server: _has(server, "ended", CALLS))
        lists = [{call["call_id"] for call in await found(s, "ended")} for s in servers[:3]]
        assert all(one == lists[0] for one in lists)
    finally:
        for server in servers:
            if server.process.poll() is None:
                server.process.kill()
            server.process.wait()


async def _has(server: TwoProcesses, state: str, number: int) -> bool:
    return len(await found(server, state)) == number
