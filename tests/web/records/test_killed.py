"""A server with calls whose database, one of its processes and the receiver of whose webhooks are
gone meanwhile: nobody hears that, and every call is kept and told of."""

import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest

from offhook.web.records.store import CRASHED
from tests.deploy import site
from tests.support.ports import free_port
from tests.support.waiting import until
from tests.web.edge.test_processes import TwoProcesses, callers
from tests.web.edge.test_webhooks import SECRET, Receiver
from tests.web.records.conftest import Postgres, emptied

pytestmark = [pytest.mark.asyncio, pytest.mark.slow]


async def ended(server: TwoProcesses) -> dict[str, dict[str, Any]]:
    """The calls that are over, by id; none while the database is down."""
    _, answer = await server.ask("GET", "/calls?state=ended")
    return {call["call_id"]: call for call in answer.get("calls", [])}


def spools(folder: Path) -> list[Path]:
    return list(folder.glob("calls-spool/*"))


async def test_every_call_is_kept_and_told_whatever_is_killed(
    postgres: Postgres, tmp_path: Path
) -> None:
    emptied(postgres)
    program, port = Receiver(), free_port()
    hook = {"url": f"http://127.0.0.1:{port}/hook", "secrets": [SECRET]}
    server = TwoProcesses(
        tmp_path,
        SERVER_PORT=str(free_port()),
        SERVER_MAX_CALLS="5",
        RECORDS_URL=postgres.url,
        RECORDS_WEBHOOKS=json.dumps([hook]),
    )
    try:
        await server.ready()
        async with callers(server, 4) as before:
            for caller in before:
                await caller.hears()
            postgres.kill()
            try:
                async with callers(server, 4) as meanwhile:
                    for caller in (*before, *meanwhile):
                        await caller.hears()
                    await until(lambda: len(spools(tmp_path)) == 2)
                    os.kill(server.line("started")["pid"], signal.SIGKILL)
                    for caller in (*before, *meanwhile):
                        if caller.process == "1":
                            await caller.hears()
            finally:
                postgres.start()
        everybody = {caller.pc_id: caller.process for caller in (*before, *meanwhile)}
        assert set(everybody.values()) == {"1", "2"}

        async def all_have_ended() -> bool:
            return (await ended(server)).keys() == everybody.keys()

        await site.until(all_have_ended)
        for call_id, call in (await ended(server)).items():
            assert (call["end_reason"] == CRASHED) == (everybody[call_id] == "2")
        async with program.running(port):
            await until(lambda: {e["call_id"] for e in program.of("call.ended")} == set(everybody))
        program.check_signatures()
        told = [line["message"] for line in server.lines()]
        assert any("calls cannot be kept, and wait in" in line for line in told)
        assert any("calls are kept again" in line for line in told)
        assert not spools(tmp_path)
    finally:
        server.process.kill()
        server.process.wait()
