"""A server that thinks its machine a laptop, and a hub on this machine with tiny random models for
it."""

import asyncio
import json
import os
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from tests.pipeline.engines.nemotron.model import tiny as tiny_nemotron
from tests.support import pocket_checkpoint
from tests.support.hub_stand_in import Hub, of_folder
from tests.support.waiting import until
from tests.web.workers.workers import ROOT

NEMOTRON = "nvidia/nemotron-speech-streaming-en-0.6b"
POCKET = "kyutai/pocket-tts-without-voice-cloning"
PADDING = "padding.safetensors"
"""A file of Nemotron's repository that is large enough to take a while."""
PADDING_BYTES = 6 << 20
SERVER = """
import sys
from offhook.pipeline.engines.shared.model.instructions import Instructions
from offhook.pipeline.speech.engines import all_specs
from offhook.web.app.cli import main
from offhook.web.workers.engines.choice import Machine
from offhook.web.workers import local_worker_io

specs = [spec for spec in all_specs() if spec.name in {engines!r}]
packages = frozenset(package for spec in specs for package in spec.packages)
local_worker_io.look = lambda: Machine(4, 8 << 30, Instructions.VNNI, packages=packages)
sys.exit(main.main(sys.argv[1:]))
"""


def repositories(folder: Path) -> dict[str, dict[str, bytes]]:
    tiny_nemotron.write(folder / NEMOTRON)
    (folder / NEMOTRON / PADDING).write_bytes(os.urandom(PADDING_BYTES))
    pocket_checkpoint.write(folder / POCKET)
    return of_folder(folder)


def environment(hub: Hub, cache: Path) -> dict[str, str]:
    """What makes every process take `hub` for the hub, with a cache of its own."""
    return {
        "HF_ENDPOINT": hub.url,
        "HF_HUB_CACHE": str(cache),
        "HF_HUB_OFFLINE": "0",
        "OFFHOOK_ENGINES_OFFLINE": "false",
    }


@asynccontextmanager
async def serving(
    folder: Path, *arguments: str, engines: tuple[str, ...] = ("nemotron",), **settings: str
) -> AsyncIterator[tuple[str, Path, int]]:
    """`offhook serve` on a laptop with the packages of `engines`; yields its URL, its log and its
    process id."""
    log = folder / f"log-{time.monotonic_ns()}"
    with log.open("wb") as output:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-c", SERVER.format(engines=engines), "serve", *arguments),
            cwd=folder,
            stderr=output,
            env={
                **os.environ,
                "PYTHONPATH": str(ROOT),
                "OFFHOOK_SERVER_PORT": "0",
                "OFFHOOK_SERVER_DRAIN_SECONDS": "0",
                "OFFHOOK_WEBRTC_ADDRESSES": '["127.0.0.1"]',
                "OFFHOOK_LOG_JSON_LINES": "true",
                **settings,
            },
        )
    try:
        await until(lambda: "call me at" in log.read_text() or process.returncode is not None)
        lines = [json.loads(line) for line in log.read_text().splitlines() if line[:1] == "{"]
        port = next(line["port"] for line in lines if "port" in line)
        yield f"http://localhost:{port}", log, process.pid
    finally:
        if process.returncode is None:
            process.terminate()
        await process.wait()
