"""A campaign of a thousand whose server is killed twice, and one of which two servers have a share
and one is killed: nobody is called twice."""

import asyncio
import csv
import io
import json
from collections import Counter
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from offhook.web.campaigns.plan import RETRIES
from tests.support.ports import free_port
from tests.support.waiting import until
from tests.web.edge.callees import Callees
from tests.web.edge.test_processes import TwoProcesses
from tests.web.records.conftest import Postgres, emptied, postgres

__all__ = ["postgres"]

pytestmark = [pytest.mark.asyncio, pytest.mark.slow]

NUMBER, AT_ONCE, PER_SECOND = 1000, 12, 20
KILLED_AT = (300, 650)
"""Calls after which the server is killed."""
ASLEEP = 10
"""Recipients where it is night."""
KINDS = ("human",) * 4 + ("machine",) * 3 + ("busy", "no answer", "refused")
OUTCOMES = {
    "human": "answered",
    "machine": "machine",
    "busy": "busy",
    "no answer": "no_answer",
    "refused": "refused",
}


def kind_of(number: str, times: int) -> str:
    return KINDS[int(number) % len(KINDS)]


def serve(folder: Path, ports: tuple[int, int], far: str, url: str = "") -> TwoProcesses:
    trunk = {"name": "pbx", "server": far, "machine_detection": "detect"}
    return TwoProcesses(
        folder,
        SERVER_PORT=str(ports[0]),
        SERVER_PROCESSES="1",
        SERVER_MAX_CALLS="30",
        AGENT_KIND="silent",
        SIP_UDP=str(ports[1]),
        SIP_TCP=str(ports[1]),
        SIP_TRUNKS=json.dumps([trunk]),
        RECORDS_URL=url or f"sqlite:///{folder}/calls.db",
        RECORDS_SPOOL=str(folder / "spool"),
    )


async def begin(server: TwoProcesses, file: str, **settings: Any) -> None:
    retries = json.dumps({name: {"times": 0} for name in RETRIES})
    async with (
        aiohttp.ClientSession(server.url) as http,
        http.post(
            "/campaigns",
            params={"at_once": AT_ONCE, "per_second": PER_SECOND, "retries": retries, **settings},
            data=file,
            headers={"Content-Type": "text/csv"},
        ) as answer,
    ):
        assert answer.status == 201, await answer.text()


async def rows_of(server: TwoProcesses, campaign: str) -> list[dict[str, str]]:
    async with (
        aiohttp.ClientSession(server.url) as http,
        http.get(f"/campaigns/{campaign}/report.csv") as answer,
    ):
        return list(csv.DictReader(io.StringIO(await answer.text())))


def kill(server: TwoProcesses) -> None:
    server.process.kill()
    server.process.wait()


def window(now: datetime) -> str:
    """From an hour before to three after, in UTC."""
    return f"daily {now - timedelta(hours=1):%H}:00-{now + timedelta(hours=4):%H}:00"


async def test_nobody_is_called_twice_when_the_server_is_killed_twice(tmp_path: Path) -> None:
    far, ports = Callees(kind_of, talks_s=0.5), (free_port(), free_port())
    file = "number,time_zone\n"
    file += "".join(f"{4930000000 + n},\n" for n in range(NUMBER))
    file += "".join(f"{4940000000 + n},Etc/GMT-10\n" for n in range(ASLEEP))
    server: TwoProcesses | None = None
    async with far.running() as where:
        try:
            server = await asyncio.to_thread(serve, tmp_path, ports, where)
            await server.ready()
            when = {"windows": window(datetime.now(UTC)), "time_zone": "UTC"}
            await begin(server, file, id="thousand", **when)
            for calls in KILLED_AT:
                await until(lambda calls=calls: len(far.called) >= calls)
                kill(server)
                far.server_died()
                server = await asyncio.to_thread(serve, tmp_path, ports, where)
                await server.ready()
            while True:
                _, found = await server.ask("GET", "/campaigns/thousand")
                if found["states"]["waiting"] == ASLEEP and not found["states"]["dialling"]:
                    break
                await asyncio.sleep(0.5)
            rows = await rows_of(server, "thousand")
        finally:
            if server is not None:
                kill(server)
    check(far, found["outcomes"], rows)


def check(far: Callees, outcomes: dict[str, int], rows: list[dict[str, str]]) -> None:
    called = far.times_of()
    assert max(called.values()) == 1
    assert not [number for number in called if number.startswith("494")]
    assert far.most_at_once <= AT_ONCE
    assert sum(outcomes.values()) == NUMBER
    unknown = [row for row in rows if row["outcome"] == "unknown"]
    assert len(unknown) <= len(KILLED_AT) * AT_ONCE
    awake = [row for row in rows if row["state"] != "waiting"]
    assert len(rows) - len(awake) == ASLEEP
    for row in awake:
        if row not in unknown:
            assert row["outcome"] == OUTCOMES[kind_of(row["number"], 0)], row
            assert called[row["number"]] == 1
    seconds = Counter(row["last_call"][:19] for row in awake)
    assert max(seconds.values()) <= PER_SECOND


async def test_another_server_goes_on_when_one_is_killed(
    tmp_path: Path, postgres: Postgres
) -> None:
    emptied(postgres)
    far, number = Callees(kind_of, talks_s=0.5), 200
    servers: list[TwoProcesses] = []
    async with far.running() as where:
        try:
            for name in "ab":
                (tmp_path / name).mkdir()
                ports = (free_port(), free_port())
                started = (serve, tmp_path / name, ports, where, postgres.url)
                servers.append(await asyncio.to_thread(*started))
            for server in servers:
                await server.ready()
            file = "number\n" + "".join(f"{4930000000 + n}\n" for n in range(number))
            await begin(servers[0], file, id="shared")
            await until(lambda: len(far.called) >= number // 2)
            assert far.most_at_once <= AT_ONCE
            kill(servers[0])
            found: dict[str, Any] = {}
            while not found.get("ended"):  # it is missed after a minute
                _, found = await servers[1].ask("GET", "/campaigns/shared")
                await asyncio.sleep(0.5)
            rows = await rows_of(servers[1], "shared")
        finally:
            for server in servers:
                kill(server)
    assert max(far.times_of().values()) == 1
    assert sum(found["outcomes"].values()) == number
    assert found["outcomes"].get("unknown", 0) <= AT_ONCE
    for row in rows:
        if row["outcome"] != "unknown":
            assert row["outcome"] == OUTCOMES[kind_of(row["number"], 0)], row
    for server in servers:
        assert "we called" in server.text()
