"""A worker for each GPU of a machine, in real processes without any GPU."""

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from offhook.pipeline.engines.shared.asr_models import AsrModels
from offhook.pipeline.engines.shared.capacity import ALONE, SHARED
from offhook.pipeline.speech.errors import EngineError
from offhook.web.config.config import Config, ConfigError
from offhook.web.http.listening_io import Address
from offhook.web.http.stop_io import Stop
from offhook.web.workers import gpu_workers_io, local_worker_io
from offhook.web.workers.engines import machine_io
from offhook.web.workers.gpu_workers_io import serve_gpus
from offhook.web.workers.local_worker_io import local_workers
from offhook.web.workers.worker_child_io import ChildSettings, Door
from tests.support.waiting import HANGS_S

GPUS = ("GPU-aaaa", "GPU-bbbb")


@pytest.fixture(autouse=True)
def two_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(local_worker_io, "gpus", lambda: GPUS)


def settings(key: str = "") -> ChildSettings:
    door = Door(key, True, "open", ())
    return ChildSettings("pocketsphinx", AsrModels("en-us"), 3, 0, "INFO", door=door)


class Machine:
    """The workers, as a client sees them."""

    def __init__(self, http: aiohttp.ClientSession, port: int) -> None:
        self._http = http
        self.list = f"http://127.0.0.1:{port}/workers"

    async def urls(self) -> list[str]:
        async with self._http.get(self.list) as answer:
            return [worker["url"] for worker in (await answer.json())["workers"]]

    async def ready(self, url: str) -> dict[str, Any]:
        """Waits until a worker is ready and returns what it says of itself."""
        async with asyncio.timeout(HANGS_S):
            while True:
                async with self._http.get(f"{url}/readyz") as answer:
                    state: dict[str, Any] = await answer.json()
                    if answer.status == 200:
                        return state
                await asyncio.sleep(0.05)


@asynccontextmanager
async def machine(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Machine]:
    stop, ports = Stop(), []
    listen = gpu_workers_io._listen

    def listening(host: str, port: int) -> Any:
        found = listen(host, port)
        ports.append(found.getsockname()[1])
        return found

    monkeypatch.setattr(gpu_workers_io, "_listen", listening)
    serving = asyncio.create_task(serve_gpus(settings(), Address("127.0.0.1", 0), stop))
    try:
        async with asyncio.timeout(HANGS_S):
            while len(ports) < len(GPUS):
                await asyncio.sleep(0.01)
        async with aiohttp.ClientSession() as http:
            yield Machine(http, ports[0])
    finally:
        stop.drain.set()
        await serving


def children() -> dict[str, int]:
    """Returns the process id of each child of this process by its GPU."""
    found = {}
    for name in Path("/proc/self/task").glob("*/children"):
        for pid in name.read_text().split():
            try:
                environment = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
            except OSError:
                continue
            for one in environment:
                if one.startswith(b"CUDA_VISIBLE_DEVICES=GPU-"):
                    found[one.partition(b"=")[2].decode()] = int(pid)
    return found


async def test_each_gpu_has_a_worker_and_one_address_lists_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with machine(monkeypatch) as of:
        urls = await of.urls()
        assert len(set(urls)) == 2
        assert all(url.startswith("http://127.0.0.1:") for url in urls)
        assert [(await of.ready(url))["max_streams"] for url in urls] == [3, 3]
        assert await Machine(of._http, int(urls[1].rpartition(":")[2])).urls() == urls
        before = children()
        assert before.keys() == set(GPUS)
        os.kill(before[GPUS[1]], signal.SIGKILL)  # the other one goes on; this one comes again
        async with asyncio.timeout(HANGS_S):
            while children().get(GPUS[1], before[GPUS[1]]) == before[GPUS[1]]:
                await asyncio.sleep(0.05)
        assert (await of.ready(urls[1]))["ready"]
        assert children()[GPUS[0]] == before[GPUS[0]]
    assert not children()


def test_settings_reach_the_child() -> None:
    told = settings("secret")
    assert ChildSettings.from_json(told.to_json().strip()) == ChildSettings.from_json(
        told.to_json()
    )
    assert "secret" not in repr(told)
    door = ChildSettings.from_json(told.to_json()).door
    assert door is not None
    assert (door.api_key, door.local, list(door.ports)) == ("secret", True, [])


def configured(**asr: Any) -> Config:
    return Config.model_validate({"asr": {"engine": "qwen3-asr", "device": "all", **asr}})


async def test_a_server_has_a_worker_on_each_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(local_worker_io, "check_engine", lambda kind, engine: None)
    async with local_workers(configured()) as config:
        assert len(config.asr.urls) == 2
        assert all(url.startswith("unix:") for url in config.asr.urls)
    wanted = list(local_worker_io._wanted(configured()))
    assert [each.gpu for each in wanted] == list(GPUS)
    assert {(each.models.device, each.idle_seconds) for each in wanted} == {("cuda", 0)}
    assert {each.models.memory_share for each in wanted} == {ALONE}
    both = configured().model_copy(
        update={"tts": Config.model_validate({"tts": {"engine": "qwen3-tts"}}).tts}
    )
    assert {each.models.memory_share for each in local_worker_io._wanted(both)} == {SHARED}


def test_without_a_gpu_there_is_none_for_each(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(local_worker_io, "gpus", lambda: ())
    with pytest.raises(EngineError, match='device = "all": this machine has no NVIDIA GPU'):
        list(local_worker_io._wanted(configured()))


def test_engines_of_the_cpu_have_no_device_all() -> None:
    with pytest.raises((ConfigError, ValueError), match="device all is for qwen3-asr, nemotron"):
        configured(engine="pocketsphinx")


@pytest.mark.parametrize(
    ("visible", "found"), [("0,2", ("0", "2")), ("", ()), ("-1", ()), ("GPU-x", ("GPU-x",))]
)
def test_gpus_are_those_that_this_process_may_use(
    monkeypatch: pytest.MonkeyPatch, visible: str, found: tuple[str, ...]
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert machine_io.gpus() == found
