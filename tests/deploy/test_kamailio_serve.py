"""Two `offhook serve` behind Kamailio, of which one is told to end while it has calls."""

import asyncio
import json
import signal
from pathlib import Path

import pytest

from benchmarks.processes.own_server import HOST
from benchmarks.servers.kamailio import kamailio
from tests.deploy.site import QUICK, Site, until
from tests.support.ports import free_port
from tests.support.waiting import HANGS_S
from tests.telephony.sip.phones import needs_kamailio
from tests.web.edge.test_processes import TwoProcesses

pytestmark = needs_kamailio

BOT = "async def bot(arguments):\n    await arguments.webrtc_connection.until_closed()\n"


def serving(folder: Path, port: int, **more: str) -> TwoProcesses:
    """A server whose port of SIP is known; `more` are further settings, as RECORDS_URL="…"."""
    folder.mkdir()
    (folder / "bot.py").write_text(BOT)
    settings = {
        "SERVER_PROCESSES": "1",
        "SERVER_MAX_CALLS": "10",
        "SERVER_DRAIN_SECONDS": "60",
        "SIP_UDP": str(port),
        "SIP_TCP": str(port),
        "SIP_TRUNKS": json.dumps([{"name": "proxy", "addresses": [HOST]}]),
        **more,
    }
    return TwoProcesses(folder, "--bot", str(folder / "bot.py"), **settings)


async def calls_of(server: TwoProcesses) -> int:
    return len((await server.ask("GET", "/calls"))[1]["calls"])


@pytest.mark.slow
async def test_while_one_drains_its_calls_go_on_and_new_ones_come_to_the_other(tmp_path):
    ports = free_port(), free_port()
    starting = [
        asyncio.to_thread(serving, tmp_path / name, port)
        for name, port in zip("ab", ports, strict=True)
    ]
    servers = await asyncio.gather(*starting)
    try:
        for server in servers:
            await server.ready()
        async with kamailio(ports, **QUICK) as proxy:
            async with Site(proxy, []).callers() as callers:
                assert (await callers.fill(4))["up"] == 4
                assert [await calls_of(server) for server in servers] == [2, 2]
                servers[0].process.send_signal(signal.SIGTERM)
                await servers[0].ready(503)
                filled = await callers.fill(8)
                assert (filled["up"], filled["refused"], filled["cut"]) == (8, {}, 0)
                assert [await calls_of(server) for server in servers] == [2, 6]
            await until(lambda: servers[0].process.poll() is not None)
            assert servers[0].process.wait(HANGS_S) == 0
    finally:
        for server in servers:
            if server.process.poll() is None:
                server.process.kill()
            server.process.wait()
