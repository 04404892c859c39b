"""`offhook speech --wyoming`, and `offhook serve` with [speech] wyoming, as processes."""

import asyncio
import os
import signal
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from wyoming.audio import AudioStop
from wyoming.client import AsyncClient
from wyoming.info import Describe, Info
from wyoming.tts import Synthesize

from tests.support.ports import free_port
from tests.support.waiting import HANGS_S
from tests.web.workers.workers import ROOT


@asynccontextmanager
async def running(folder: Path, *arguments: str) -> AsyncIterator[Process]:
    """The command, in an empty folder."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-m", "offhook", *arguments]
    process = await asyncio.create_subprocess_exec(
        *command, cwd=folder, env=environment, stdout=PIPE, stderr=PIPE
    )
    try:
        yield process
    finally:
        if process.returncode is None:
            process.kill()
        await process.communicate()


async def described(port: int) -> tuple[Info, int]:
    """As Home Assistant does it: asks until there is an answer. The bytes of a sentence besides."""
    async with asyncio.timeout(HANGS_S):
        while True:
            try:
                async with AsyncClient.from_uri(f"tcp://127.0.0.1:{port}") as client:
                    await client.write_event(Describe().event())
                    event = await client.read_event()
                    if event is not None and Info.is_type(event.type):
                        break
            except OSError:
                await asyncio.sleep(0.2)
        size = 0
        async with AsyncClient.from_uri(f"tcp://127.0.0.1:{port}") as client:
            await client.write_event(Synthesize("Good morning.").event())
            while (spoken := await client.read_event()) is not None:
                size += len(spoken.payload or b"")
                if AudioStop.is_type(spoken.type):
                    break
        return Info.from_event(event), size


async def test_the_gateway_serves_its_workers(tmp_path: Path) -> None:
    port = free_port()
    listen = ("--listen", f"unix:{tmp_path}/speech.sock")
    async with running(tmp_path, "speech", *listen, "--wyoming", str(port)) as process:
        info, size = await described(port)
        assert info.asr[0].models[0].languages == ["en"]
        assert info.tts[0].voices[0].languages == ["en"]
        assert size > 10_000
        process.send_signal(signal.SIGTERM)
        assert await asyncio.wait_for(process.wait(), HANGS_S) == 0


@pytest.mark.slow
async def test_a_server_of_calls_serves_them_too(tmp_path: Path) -> None:
    ports = free_port(), free_port()
    text = f"[server]\nport = {ports[0]}\nprocesses = 2\n[speech]\nwyoming = {ports[1]}\n"
    (tmp_path / "offhook.toml").write_text(text)
    async with running(tmp_path, "serve"):
        info, size = await described(ports[1])
        assert info.asr[0].models[0].languages == ["en"]
        assert size > 10_000


async def test_what_would_stand_open_does_not_start(tmp_path: Path) -> None:
    async with running(tmp_path, "speech", "--wyoming", "0.0.0.0:10300") as process:
        _, errors = await asyncio.wait_for(process.communicate(), HANGS_S)
        assert process.returncode == 1
        assert b"the protocol has no keys: set wyoming_networks" in errors
