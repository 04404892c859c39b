"""Servers to be attacked, as people run them, each with an innocent user."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp

from benchmarks.processes.own_server import is_ready, started
from tests.attack.attacks import CALLS
from tests.support.environment import environment
from tests.support.ports import free_port
from tests.support.waiting import HANGS_S

ATTACKER = "198.51.100.7"
"""The attacker's address, as a proxy on this machine says it."""
SECRET = "0123456789abcdef0123456789abcdef"
CONFIG = """
[server]
host = "0.0.0.0"
port = {port}
processes = {processes}
admin_key = "{secret}"
drain_seconds = 0
[webrtc]
addresses = ["127.0.0.1"]
[opus]
dtx = false
[sip]
host = "127.0.0.1"
udp = {sip}
tcp = {sip}
rtp_ports = [{rtp}, {last}]
[[sip.trunks]]
name = "known"
addresses = ["127.0.0.1"]
[[carriers]]
provider = "audiosocket"
port = {audiosocket}
[[carriers]]
provider = "chan_websocket"
account = "asterisk"
secret = "{secret}"
[[carriers]]
provider = "twilio"
account = "AC1"
secret = "{secret}"
public_url = "https://voice.example"
"""
RTP_PORTS = 100


@dataclass
class Target:
    """A running server."""

    name: str
    base: str
    pid: int
    log: Path
    user: Sequence[str]
    """Arguments of `innocent` for who uses it: a kind, and on how many processes."""
    offers: Mapping[str, Any] = field(default_factory=dict)
    """Arguments of attacks, by their names."""

    @property
    def processes(self) -> int:
        """How many write its log: edges, or a server of the speech API and two beside it."""
        return int(self.offers.get("processes", 3))


@asynccontextmanager
async def _running(
    folder: Path,
    name: str,
    port: int,
    arguments: Sequence[str],
    user: Sequence[str],
    offers: Mapping[str, Any],
    module: str = "offhook",
) -> AsyncIterator[Target]:
    base, log = f"http://127.0.0.1:{port}", folder / f"{name}.log".replace(" ", "-")
    there = started(
        *(arguments, lambda: is_ready(base), HANGS_S, f"no {name}"),
        environment=environment(TMPDIR=str(folder)),
        module=module,
        log=log,
    )
    async with there as process:
        yield Target(name, base, process.pid, log, user, {"pid": process.pid, **offers})


def _edge(folder: Path, name: str, processes: int) -> AbstractAsyncContextManager[Target]:
    port, sip, audiosocket = free_port(8), free_port(4), free_port(4)
    rtp = free_port(RTP_PORTS)
    last = rtp + RTP_PORTS - 1
    config = folder / f"{processes}.toml"
    config.write_text(CONFIG.format(secret=SECRET, **locals()))
    offers = {
        CALLS: True,
        "sip_port": sip,
        "port": audiosocket,
        "address": ATTACKER,
        "secret": SECRET,
        "processes": processes,
    }
    arguments = ["serve", "--config", str(config)]
    return _running(folder, name, port, arguments, ("call", str(processes)), offers)


def edge(folder: Path) -> AbstractAsyncContextManager[Target]:
    return _edge(folder, "edge", 1)


def processes(folder: Path) -> AbstractAsyncContextManager[Target]:
    """Two edges with one port, and a call on each."""
    return _edge(folder, "two processes", 2)


def gateway(folder: Path) -> AbstractAsyncContextManager[Target]:
    """The speech API, whose engines are in processes of their own."""
    port, wyoming = free_port(), free_port()
    config = folder / "speech.toml"
    config.write_text(f'[server]\nadmin_key = "{SECRET}"\n')
    at = ["--listen", f"0.0.0.0:{port}", "--wyoming", f"127.0.0.1:{wyoming}"]
    offers = {"wyoming_port": wyoming, "address": ATTACKER}
    arguments = ["speech", "--config", str(config), *at]
    return _running(folder, "gateway", port, arguments, ("speak",), offers)


def worker(folder: Path) -> AbstractAsyncContextManager[Target]:
    """A voice without a GPU, which costs what one does, with its WebSockets in two other
    processes."""
    port = free_port()
    arguments = ["tts", "--model", "simulated", "--fronts", "2", "--max-streams", "64"]
    arguments += ["--listen", f"127.0.0.1:{port}"]
    module = "benchmarks.engines.random_workers"
    return _running(folder, "worker", port, arguments, ("speak",), {}, module)


TARGETS: Mapping[str, Callable[[Path], AbstractAsyncContextManager[Target]]] = {
    "edge": edge,
    "processes": processes,
    "gateway": gateway,
    "worker": worker,
}


async def warm_up(target: Target) -> None:
    """What a server does for the first time takes memory that it keeps, and starts what decodes
    and recognizes files."""
    speech = {"model": "tts-1", "voice": "alloy", "input": "Hello.", "response_format": "wav"}
    asked: tuple[tuple[str, str, Any], ...] = (
        *(("GET", path, None) for path in ("/", "/healthz", "/metrics", "/v1/models", "/nothing")),
        ("POST", "/v1/audio/speech", speech),
        ("POST", "/api/offer", {"sdp": "v=0", "type": "offer"}),
        ("POST", "/v1/nothing", {}),
    )
    sound = b""
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(60)) as http:
        for method, path, body in asked * 3:
            data = None if body is None else json.dumps(body)
            headers = {"Content-Type": "application/json"}
            async with http.request(
                method, target.base + path, data=data, headers=headers
            ) as answer:
                read = await answer.read()
                sound = read if body is speech else sound
        for _ in range(3 * target.processes):
            form = aiohttp.FormData({"model": "whisper-1"})
            form.add_field("file", sound, filename="hello.wav")
            headers = {"Connection": "close"}  # each may meet another process
            where = f"{target.base}/v1/audio/transcriptions"
            async with http.post(where, data=form, headers=headers) as answer:
                await answer.read()
    await asyncio.sleep(1)
