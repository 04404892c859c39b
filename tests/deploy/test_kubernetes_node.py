"""Containers of deploy/kubernetes start, are probed, and drain as the kubelet would have it."""

import asyncio
import json
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager

import aiohttp
import pytest

from tests.deploy.cluster import HAS_KUSTOMIZE, SECRETS, container
from tests.deploy.node import ADDRESS, MISSING, Node, Running, node
from tests.deploy.servers import ROOT
from tests.support.waiting import HANGS_S
from tests.telephony.sip.phones import needs_kamailio

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not HAS_KUSTOMIZE, reason="no kubectl or kustomize"),
    pytest.mark.skipif(bool(MISSING), reason=MISSING),
]
CONTAINERS = [
    *(container("cpu", name) for name in ("redis", "asr", "tts", "edge")),
    *(container("site", name) for name in ("edges", "kamailio", "edge")),
]


@pytest.fixture(scope="module")
def here(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    with node(tmp_path_factory.mktemp("node"), CONTAINERS) as running:
        yield running


@pytest.fixture(scope="module")
def pods(here: Node) -> dict[str, Running]:
    """Redis and the workers, ready."""
    started = {it.name: here.start(it) for it in CONTAINERS[:3]}
    for running in started.values():
        running.starts()
    return started


def caller(*lines: str) -> "subprocess.Popen[str]":
    """Who calls from this machine, and says these lines."""
    said = [word for line in lines for word in ("--say", line)]
    url = f"http://{ADDRESS}:7860"
    command = [sys.executable, "-m", "offhook", "call", url, "--api-key", SECRETS["api-key"]]
    return subprocess.Popen(
        [*command, "--json", *said], cwd=ROOT, stdout=subprocess.PIPE, text=True
    )


def test_redis_wants_its_password(here: Node, pods: dict[str, Running]) -> None:
    ping = ["redis-cli", "-h", "redis", "ping"]
    assert "NOAUTH" in here.run(ping).stdout
    with_key = ["redis-cli", "--no-auth-warning", "-a", SECRETS["redis-password"], *ping[1:]]
    assert here.run(with_key).stdout == "PONG\n"


def test_an_edge_is_called_and_drains_with_the_call(here: Node, pods: dict[str, Running]) -> None:
    edge = here.start(CONTAINERS[3])
    edge.starts()
    assert edge.status("/calls") == 401
    calling = caller("What are your opening hours?", "And where are you?", "Thank you, goodbye.")
    edge.until(lambda: in_progress(edge) == 1, HANGS_S)
    edge.drains()
    said, _ = calling.communicate(timeout=HANGS_S * 3)
    report = json.loads(said)
    assert calling.returncode == 0
    assert len(report["turns"]) == 3
    assert all(turn["response_ms"] for turn in report["turns"])  # heard by asr, spoken by tts
    edge.ends()


def in_progress(edge: Running) -> int:
    metrics = f"http://{ADDRESS}:7860/metrics"
    text = subprocess.run(["curl", "-s", metrics], capture_output=True, text=True).stdout
    lines = [line for line in text.splitlines() if line.startswith("offhook_calls_in_progress ")]
    return int(float(lines[0].split()[1])) if lines else 0


@needs_kamailio
def test_kamailio_finds_the_edges(here: Node, pods: dict[str, Running]) -> None:
    finder, proxy = (here.start(it) for it in CONTAINERS[4:6])
    finder.starts()
    proxy.starts()
    asked = ["kamcmd", "-s", "unix:/run/kamailio/kamailio_ctl", "dispatcher.list"]

    def state() -> str:
        words = here.run(asked).stdout.split()
        places = [place for place, word in enumerate(words) if word == "FLAGS:"]
        return words[places[0] + 1] if places else ""

    assert f"sip:{ADDRESS}:5070" in here.run(asked).stdout
    proxy.until(lambda: state()[:1] in ("I", "T"), HANGS_S)  # nobody is there
    edge = here.start(CONTAINERS[6])
    edge.starts()
    proxy.until(lambda: state() == "AP", HANGS_S)
    edge.process.terminate()
    edge.ends()
    finder.process.terminate()
    finder.ends()


@asynccontextmanager
async def stream(worker: Running, path: str) -> AsyncIterator[aiohttp.ClientWebSocketResponse]:
    url = f"http://{ADDRESS}:{worker.container.ports['http']}{path}"
    headers = {"Authorization": f"Bearer {SECRETS['worker-key']}"}
    async with aiohttp.ClientSession(headers=headers) as http, http.ws_connect(url) as socket:
        assert (await socket.receive_json(timeout=HANGS_S))["type"] == "ready"
        yield socket


async def test_a_worker_that_hears_drains(pods: dict[str, Running]) -> None:
    asr = pods["asr"]
    async with stream(asr, "/ws/transcribe") as socket:
        await socket.send_bytes(bytes(16_000))
        await asyncio.to_thread(asr.drains)
        await socket.send_json({"type": "flush"})
        while (await socket.receive_json(timeout=HANGS_S))["type"] != "final":
            pass
        await socket.send_json({"type": "close"})
    await asyncio.to_thread(asr.ends)


async def test_a_worker_that_speaks_drains(pods: dict[str, Running]) -> None:
    tts = pods["tts"]
    async with stream(tts, "/ws/speak") as socket:
        await socket.send_json({"type": "text", "text": "Good morning. "})
        await asyncio.to_thread(tts.drains)
        await socket.send_json({"type": "end"})
        sound = 0
        while True:
            message = await socket.receive(timeout=HANGS_S)
            if message.type is aiohttp.WSMsgType.BINARY:
                sound += len(message.data)
            elif json.loads(message.data)["type"] == "done":
                break
        assert sound > 24_000  # half a second
        await socket.send_json({"type": "close"})
    await asyncio.to_thread(tts.ends)
