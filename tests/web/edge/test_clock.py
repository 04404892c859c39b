"""The wall clock is set while people talk: forward and back, by an hour and by a year."""

import asyncio
import json
import struct
from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime
from itertools import pairwise
from pathlib import Path

import aiohttp
import pytest

from tests.attack.phones import calling, rtp
from tests.support.ports import free_port
from tests.support.waiting import HANGS_S
from tests.web.edge.test_processes import TwoProcesses

LIBRARY = next(Path("/usr/lib").glob("*/faketime/libfaketimeMT.so.1"), None)
BOT = """
import numpy as np

async def bot(arguments):
    leg = arguments.webrtc_connection
    seconds = np.arange(24000 * 60) / 24000
    leg.playout.write((8000 * np.sin(2 * np.pi * 880 * seconds)).astype(np.int16))
    await leg.until_closed()
"""
HOUR, YEAR = 3600, 365 * 86_400

pytestmark = [
    pytest.mark.asyncio,
    pytest.mark.skipif(LIBRARY is None, reason="libfaketime is not installed"),
]


async def heard(caller, count: int) -> list[int]:
    """The sequence numbers of the next packets, as the caller sends its own."""
    numbers = []
    async with asyncio.timeout(HANGS_S):
        while len(numbers) < count:
            data = await caller.rtp.received.get()
            numbers.append(struct.unpack_from("!H", data, 2)[0])
            caller.speak(rtp(len(numbers), 0xCA11))
    return numbers


async def until_it_is(url: str, wanted: datetime) -> None:
    """Until the server's clock says so."""
    async with aiohttp.ClientSession(url) as http, asyncio.timeout(HANGS_S):
        while True:
            async with http.get("/healthz") as answer:
                assert answer.status == 200
                said = parsedate_to_datetime(answer.headers["Date"])
            if abs(said - wanted) < timedelta(minutes=5):
                return
            await asyncio.sleep(0.02)


async def test_a_call_goes_on_whatever_the_clock_is_set_to(tmp_path, monkeypatch):
    offset, calls = tmp_path / "offset", tmp_path / "calls.jsonl"
    offset.write_text("+0")
    (tmp_path / "bot.py").write_text(BOT)
    port = free_port()
    (tmp_path / "offhook.toml").write_text(
        f"[sip]\nhost = '127.0.0.1'\nudp = {port}\ntcp = false\n"
        "[[sip.trunks]]\nname = 'pbx'\naddresses = ['127.0.0.1']\n"
        f"[log]\ncalls = '{calls}'\n"
    )
    with monkeypatch.context() as patched:  # the wall clock alone; a server's monotonic one goes on
        patched.setenv("LD_PRELOAD", str(LIBRARY))
        patched.setenv("FAKETIME_TIMESTAMP_FILE", str(offset))
        patched.setenv("FAKETIME_NO_CACHE", "1")
        patched.setenv("FAKETIME_DONT_FAKE_MONOTONIC", "1")
        bot = str(tmp_path / "bot.py")
        server = TwoProcesses(tmp_path, "--bot", bot, SERVER_PROCESSES="1")
    try:
        await server.ready()
        async with calling(("127.0.0.1", port)) as caller:
            numbers = await heard(caller, 25)
            for seconds in (HOUR, -HOUR, YEAR, -YEAR, 0):
                offset.write_text(f"{seconds:+d}")
                await until_it_is(server.url, datetime.now(UTC) + timedelta(seconds=seconds))
                numbers += await heard(caller, 25)
            steps = {(b - a) & 0xFFFF for a, b in pairwise(numbers)}
            assert steps == {1}  # not one is left out or late
            async with calling(("127.0.0.1", port)) as another:
                await heard(another, 10)
        async with asyncio.timeout(HANGS_S):
            while not calls.exists() or len(calls.read_text().splitlines()) < 2:
                await asyncio.sleep(0.02)
        for record in map(json.loads, calls.read_text().splitlines()):
            assert record["ended_by"] == "remote"
            assert 0 < record["duration_seconds"] < HANGS_S
        warned = [line for line in server.lines() if line["level"] in ("ERROR", "CRITICAL")]
        assert warned == []
    finally:
        server.process.terminate()
        server.process.wait()
