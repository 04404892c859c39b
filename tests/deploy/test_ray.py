"""Workers on Ray Serve (deploy/ray): placed, counted, upgraded, and healed, without a cut stream.

The figures of docs/ray.md are this file's with `-o junit_family=xunit1 --junitxml FILE`, that of a
head gone for 10 min with OFFHOOK_RAY_OUTAGE_S=600.
"""

import ast
import asyncio
import os
import re
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from pathlib import Path
from random import Random
from typing import Any

import aiohttp
import pytest
import yaml

from benchmarks.speech import number_words as nw
from offhook.media.pcm import RATE_IN
from offhook.pipeline.speech.recognizer import Final
from offhook.pipeline.speech.remote.recognizer_io import RemoteRecognizer
from offhook.web.app.cli.parser import parser
from tests.deploy.servers import DEPLOY, ROOT
from tests.support.environment import environment
from tests.support.ports import free_port
from tests.support.processes import gone
from tests.support.waiting import HANGS_S
from tests.web.workers.workers import told

FOLDER = DEPLOY / "ray"
CONFIGS = sorted(FOLDER.glob("*.yaml"))
RAY = Path(os.environ.get("OFFHOOK_RAY") or ROOT / ".venv-ray")
needs_ray = pytest.mark.skipif(
    not (RAY / "bin/ray").exists(), reason="no Ray: `make ray`, or name its folder in OFFHOOK_RAY"
)
needs_redis = pytest.mark.skipif(shutil.which("redis-server") is None, reason="no redis-server")
KEY, PASSWORD = secrets.token_hex(16), secrets.token_hex(16)
OUTAGE_S = float(os.environ.get("OFFHOOK_RAY_OUTAGE_S", "30"))
"""Time in s for which the head, or its Redis, is gone."""
NODE = ("--num-cpus=8", "--num-gpus=2")  # Ray only counts
SECOND = "another"
"""The second node, in the one test that has one."""
Record = Callable[[str, object], None]


# --- the files ---


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.name)
def test_configurations_name_what_there_is(path: Path) -> None:
    tree = ast.parse((ROOT / "offhook/web/workers/ray_io.py").read_text())
    names = {n.name for n in tree.body if isinstance(n, ast.ClassDef | ast.FunctionDef)}
    config = yaml.safe_load(path.read_text())
    assert config["proxy_location"] == "HeadOnly"
    assert config["http_options"]["host"] != "0.0.0.0"
    for application in config["applications"]:
        module, _, function = application["import_path"].partition(":")
        assert (module, function in names) == ("offhook.web.workers.ray_io", True)
        command = application["args"]["command"]
        assert parser().parse_args(command[1:]).kind == application["name"]
        for deployment in application["deployments"]:
            assert deployment["name"] in names
            scaling = deployment["autoscaling_config"]
            module, _, function = scaling["policy"]["policy_function"].partition(":")
            assert (module, function in names) == ("offhook.web.workers.ray_io", True)
            most = parser().parse_args(command[1:]).max_streams
            assert scaling["target_ongoing_requests"] <= 0.7 * most


def test_the_script_says_how_it_is_called() -> None:
    done = subprocess.run([FOLDER / "start", "tail"], capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "deploy/ray/start head ADDRESS" in done.stderr
    assert "deploy/ray/start node ADDRESS HEAD" in done.stderr


# --- a cluster ---


class Cluster:
    """A head that holds no workers, and a node, both on this machine, started by deploy/ray/start;
    the head's state is in a Redis."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.max_streams = 40
        self.redis, self.port, self.dashboard, self.http = (free_port() for _ in range(4))
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
            probe.connect(("192.0.2.1", 9))  # sends nothing; Ray does not stay on loopback
            self.address: str = probe.getsockname()[0]
        self._environment = environment() | {
            "PATH": f"{RAY / 'bin'}:{os.environ['PATH']}",
            "PYTHONPATH": str(ROOT),
            "RAY_TMPDIR": str(folder),
            "RAY_PORT": str(self.port),
            "RAY_REDIS_ADDRESS": f"127.0.0.1:{self.redis}",
            "RAY_REDIS_PASSWORD": PASSWORD,
            "RAY_AUTH_MODE": "token",
            "RAY_AUTH_TOKEN": secrets.token_hex(32),
            "OFFHOOK_WORKER_API_KEY": KEY,
        }
        self.start_redis()

    def start_redis(self) -> None:
        """With what it has on its disk."""
        self._redis = subprocess.Popen(
            [
                *("redis-server", "--port", str(self.redis), "--bind", "127.0.0.1", "--save", ""),
                *("--requirepass", PASSWORD, "--appendonly", "yes"),
            ],
            stdout=subprocess.DEVNULL,
            cwd=self.folder,
        )

    def kill_redis(self) -> None:
        self._redis.kill()
        self._redis.wait()

    def start_head(self) -> None:
        dashboard = f"--dashboard-port={self.dashboard}", "--dashboard-agent-listen-port=0"
        self._run("head", FOLDER / "start", "head", self.address, *dashboard)

    def start_node(self, role: str = "node") -> None:
        self._run(role, FOLDER / "start", "node", self.address, self.address, *NODE)

    def deploy(self, command: list[str], **options: Any) -> None:
        """Replaces what runs; returns before it does. Each deployment has another limit of streams,
        by which its workers are known."""
        self.max_streams += 1
        application = {
            "name": "asr",
            "route_prefix": "/asr",
            "import_path": "offhook.web.workers.ray_io:app",
            "args": {"command": [*command, "--max-streams", str(self.max_streams)]},
            "deployments": [{"name": "Worker", **options}],
        }
        config = {
            "proxy_location": "HeadOnly",
            "http_options": {"host": self.address, "port": self.http},
            "applications": [application],
        }
        path = self.folder / "config.yaml"
        path.write_text(yaml.safe_dump(config))
        self._run("user", "serve", "deploy", "-a", f"http://127.0.0.1:{self.dashboard}", path)

    def _run(self, role: str, *command: str | Path) -> None:
        environment = self._environment | {"OFFHOOK_TEST": f"{self.folder} {role}"}
        with (self.folder / f"{role}.log").open("ab") as log:
            subprocess.run(
                command, env=environment, stdout=log, stderr=log, timeout=HANGS_S, check=True
            )

    def pids(self, role: str) -> set[int]:
        """Processes started in a role, and what these have started."""
        children: dict[int, list[int]] = {}
        found = []
        for path in Path("/proc").glob("[0-9]*"):
            with suppress(OSError):
                parent = int(path.joinpath("stat").read_text().rpartition(")")[2].split()[1])
                children.setdefault(parent, []).append(int(path.name))
                if f"OFFHOOK_TEST={self.folder} {role}".encode() in (path / "environ").read_bytes():
                    found.append(int(path.name))
        every: set[int] = set()
        while found:
            pid = found.pop()
            every.add(pid)
            found += [child for child in children.get(pid, ()) if child not in every]
        return every

    def control(self) -> list[int]:
        """The processes of Ray's control service."""
        return [
            pid
            for pid in self.pids("head")
            if Path(_command_line(Path(f"/proc/{pid}")).partition(b"\0")[0].decode()).name
            == "gcs_server"
        ]

    def kill(self, role: str) -> int:
        """Returns how many processes there were."""
        pids = self.pids(role)
        for pid in pids:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        return len(pids)

    def close(self) -> None:
        for role in ("head", "node", SECOND):
            while self.kill(role):
                time.sleep(0.2)
        self.kill_redis()

    # --- what edges see ---

    async def listed(self) -> list[str]:
        """The workers' addresses; empty while the directory does not answer."""
        try:
            async with (
                aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=5)) as http,
                http.get(f"http://{self.address}:{self.http}/asr") as answer,
            ):
                if answer.status != 200:
                    return []
                return [worker["url"] for worker in (await answer.json())["workers"]]
        except (aiohttp.ClientError, TimeoutError):
            return []

    async def until_listed(self, right: Callable[[list[str]], bool]) -> tuple[list[str], float]:
        """The list once it is right and all in it are ready and of the last deployment, and the
        time in s until then."""
        began = time.monotonic()
        async with asyncio.timeout(HANGS_S):
            while True:
                urls = await self.listed()
                if right(urls) and all([await limit(url) == self.max_streams for url in urls]):
                    return urls, round(time.monotonic() - began, 1)
                await asyncio.sleep(0.1)

    def process(self, url: str) -> int:
        """The process id of a worker."""
        end = url.removeprefix("http://").encode() + b"\0"
        (pid,) = (
            int(path.name)
            for path in Path("/proc").glob("[0-9]*")
            if _command_line(path).endswith(b"--listen\0" + end)
        )
        return pid

    def variables(self, url: str) -> dict[bytes, bytes]:
        """The environment of a worker."""
        text = Path(f"/proc/{self.process(url)}/environ").read_bytes()
        return dict(re.findall(rb"(\w+)=([^\0]*)", text))

    def parent(self, url: str) -> int:
        """The process id of the replica that minds a worker."""
        stat = Path(f"/proc/{self.process(url)}/stat").read_text()
        return int(stat.rpartition(")")[2].split()[1])


def _command_line(path: Path) -> bytes:
    try:
        return (path / "cmdline").read_bytes()
    except OSError:
        return b""


async def limit(url: str) -> int:
    """Of a worker's streams; 0 if it is not ready."""
    try:
        async with (
            aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=5)) as http,
            http.get(f"{url}/readyz") as answer,
        ):
            return int((await answer.json())["max_streams"]) if answer.status == 200 else 0
    except (aiohttp.ClientError, TimeoutError):
        return 0


async def until(true: Callable[[], object]) -> float:
    """Returns how long it took, in s."""
    began = time.monotonic()
    async with asyncio.timeout(HANGS_S):
        while not true():
            await asyncio.sleep(0.02)
    return round(time.monotonic() - began, 2)


@asynccontextmanager
async def streams(urls: list[str]) -> AsyncIterator[list[aiohttp.ClientWebSocketResponse]]:
    """One to each address, ready for sound."""
    async with AsyncExitStack() as stack:
        http = await stack.enter_async_context(aiohttp.ClientSession())
        headers = {"Authorization": f"Bearer {KEY}"}
        opened = [
            await stack.enter_async_context(
                http.ws_connect(f"{url}/ws/transcribe?rate=16000", headers=headers, compress=0)
            )
            for url in urls
        ]
        for each in opened:
            await told(each, "ready")
        yield opened


async def recognized(sockets: list[aiohttp.ClientWebSocketResponse]) -> None:
    """Every stream takes an utterance and answers it."""
    for each in sockets:
        await each.send_bytes(bytes(3200))
        await each.send_json({"type": "flush"})
    for each in sockets:
        await told(each, "final")


async def talk(sockets: list[aiohttp.ClientWebSocketResponse]) -> None:
    while True:
        await recognized(sockets)
        await asyncio.sleep(2)


WORKER = [sys.executable, "-m", "offhook", "worker", "asr", "--engine", "pocketsphinx"]
NUMBER_WORKER = [sys.executable, "-m", "benchmarks.speech.number_words", "asr"]
BY_STREAMS = {
    "policy": {"policy_function": "offhook.web.workers.ray_io:by_streams"},
    "target_ongoing_requests": 4,
    "min_replicas": 1,
    "max_replicas": 3,
    "metrics_interval_s": 1,
    "look_back_period_s": 2,
    "upscale_delay_s": 0,
    "downscale_delay_s": 5,
}


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with tempfile.TemporaryDirectory(prefix="ray", dir="/tmp") as folder:  # sockets: short paths
        running = Cluster(Path(folder))
        try:
            running.start_head()
            running.start_node()
            yield running
        finally:
            running.close()


def on_ray(test: Any) -> Any:
    for mark in (pytest.mark.slow, needs_ray, needs_redis):
        test = mark(test)
    return test


@on_ray
async def test_a_worker_is_listed_and_asks_for_its_key(
    cluster: Cluster, record_property: Record
) -> None:
    began = time.monotonic()
    cluster.deploy(WORKER, num_replicas=1)
    (url,), _ = await cluster.until_listed(lambda urls: len(urls) == 1)
    record_property("deployed_s", round(time.monotonic() - began, 1))
    assert url.startswith(f"http://{cluster.address}:")
    async with streams([url]) as open_now:
        await recognized(open_now)
    async with aiohttp.ClientSession() as http:
        with pytest.raises(aiohttp.WSServerHandshakeError, match="401"):
            await http.ws_connect(f"{url}/ws/transcribe?rate=16000")
    assert os.getpriority(os.PRIO_PROCESS, cluster.process(url)) == os.getpriority(
        os.PRIO_PROCESS, 0
    )
    logs = [path for path in cluster.folder.rglob("*") if path.is_file()]
    assert any(b"pocketsphinx at" in path.read_bytes() for path in logs)
    for secret in (KEY, PASSWORD):
        assert not [path for path in logs if secret.encode() in path.read_bytes()]


@on_ray
async def test_a_killed_worker_is_started_again_by_its_minder(
    cluster: Cluster, record_property: Record
) -> None:
    cluster.deploy(WORKER, num_replicas=1)
    (url,), _ = await cluster.until_listed(lambda urls: len(urls) == 1)
    replica, process = cluster.parent(url), cluster.process(url)
    os.kill(process, signal.SIGKILL)
    await until(lambda: gone(process))
    _, took = await cluster.until_listed(lambda urls: urls == [url])
    record_property("worker_killed_ready_again_s", took)
    assert cluster.parent(url) == replica


@on_ray
async def test_a_worker_that_hangs_is_replaced(cluster: Cluster, record_property: Record) -> None:
    cluster.deploy(WORKER, num_replicas=1)
    (url,), _ = await cluster.until_listed(lambda urls: len(urls) == 1)
    process = cluster.process(url)
    os.kill(process, signal.SIGSTOP)
    _, took = await cluster.until_listed(lambda urls: len(urls) == 1 and urls != [url])
    record_property("worker_hung_other_ready_s", took)
    await until(lambda: gone(process))


@on_ray
async def test_a_killed_replica_takes_its_worker_along_and_another_is_listed(
    cluster: Cluster, record_property: Record
) -> None:
    cluster.deploy(WORKER, num_replicas=2)
    urls, _ = await cluster.until_listed(lambda urls: len(urls) == 2)
    lost, left = urls
    process = cluster.process(lost)
    async with streams([left]) as open_now:
        os.kill(cluster.parent(lost), signal.SIGKILL)
        record_property("replica_killed_worker_gone_s", await until(lambda: gone(process)))
        now, took = await cluster.until_listed(lambda urls: len(urls) == 2 and lost not in urls)
        record_property("replica_killed_two_ready_s", took)
        assert left in now
        await recognized(open_now)


@on_ray
async def test_workers_follow_the_streams_held(cluster: Cluster, record_property: Record) -> None:
    cluster.deploy(WORKER, autoscaling_config=BY_STREAMS)
    (url,), _ = await cluster.until_listed(lambda urls: len(urls) == 1)
    async with streams([url] * 10) as open_now:
        for each in open_now:  # a stream counts while its caller speaks
            await each.send_bytes(bytes(3200))
        urls, took = await cluster.until_listed(lambda urls: len(urls) == 3)
        record_property("three_workers_s", took)
        assert url in urls
        await recognized(open_now)
    _, took = await cluster.until_listed(lambda urls: len(urls) == 1)
    record_property("one_worker_s", took)


@on_ray
async def test_workers_share_gpus_by_fractions(cluster: Cluster) -> None:
    cluster.deploy(WORKER, num_replicas=4, ray_actor_options={"num_gpus": 0.5})
    urls, _ = await cluster.until_listed(lambda urls: len(urls) == 4)
    gpus = [cluster.variables(url)[b"CUDA_VISIBLE_DEVICES"] for url in urls]
    assert sorted(gpus) == [b"0", b"0", b"1", b"1"]


@on_ray
async def test_an_upgrade_cuts_no_stream(cluster: Cluster, record_property: Record) -> None:
    cluster.deploy(WORKER, num_replicas=2)
    old, _ = await cluster.until_listed(lambda urls: len(urls) == 2)
    processes = [cluster.process(url) for url in old]
    fewest = 2

    def upgraded(urls: list[str]) -> bool:
        nonlocal fewest
        fewest = min(fewest, len(urls))
        return len(urls) == 2 and not {*urls} & {*old}

    async with streams(old * 2) as open_now:
        cluster.deploy(WORKER, num_replicas=2)
        new, took = await cluster.until_listed(upgraded)
        record_property("upgraded_s", took)
        assert fewest == 2
        await recognized(open_now)
        async with streams(new) as others:
            await recognized(others)
    ended = await until(lambda: all(gone(process) for process in processes))
    record_property("old_ended_after_their_last_stream_s", ended)


async def call(recognizer: RemoteRecognizer, chance: Random, over: asyncio.Event) -> nw.Comparison:
    """Speaks lines of two seconds as they last, and counts what was recognized."""
    stream = await recognizer.open()
    finals = (event async for event in stream.events() if isinstance(event, Final))
    total = nw.Comparison()
    while not over.is_set():
        line = nw.line(20, chance)
        for number, word in enumerate(line):
            stream.feed(nw.sound([word], RATE_IN, number))
            await asyncio.sleep(nw.WORD_MS / 1000)
        stream.finish()
        heard = (await anext(finals)).text.split()
        total += nw.compare([*map(nw.level_of, line)], [*map(nw.level_of, heard)])
    await stream.close()
    return total


class Edge:
    """An edge that knows the directory only; its calls speak until it closes."""

    def __init__(self, cluster: Cluster) -> None:
        self._recognizer = RemoteRecognizer(f"http://{cluster.address}:{cluster.http}/asr")
        self._over = asyncio.Event()
        self._calls: list[asyncio.Task[nw.Comparison]] = []

    def call(self, count: int) -> None:
        for number in range(len(self._calls), len(self._calls) + count):
            work = call(self._recognizer, Random(number), self._over)
            self._calls.append(asyncio.create_task(work))

    def listed(self) -> set[str]:
        return {address.url for address in self._recognizer.workers._list.addresses}

    async def close(self) -> None:
        self._over.set()
        await asyncio.gather(*self._calls, return_exceptions=True)
        await self._recognizer.close()

    async def words(self) -> nw.Comparison:
        """Of all its calls, which end."""
        self._over.set()
        return sum(await asyncio.gather(*self._calls), nw.Comparison())


@asynccontextmanager
async def edge_with(cluster: Cluster, calls: int) -> AsyncIterator[Edge]:
    edge = Edge(cluster)
    edge.call(calls)
    try:
        yield edge
    finally:
        await edge.close()


@on_ray
async def test_an_upgrade_and_a_loss_cost_edges_no_word(
    cluster: Cluster, record_property: Record
) -> None:
    cluster.deploy(NUMBER_WORKER, num_replicas=2)
    old, _ = await cluster.until_listed(lambda urls: len(urls) == 2)
    async with edge_with(cluster, calls=20) as edge:
        await asyncio.sleep(5)
        await asyncio.to_thread(cluster.deploy, NUMBER_WORKER, num_replicas=2)
        new, _ = await cluster.until_listed(lambda urls: len(urls) == 2)
        assert not {*new} & {*old}
        await asyncio.sleep(10)
        os.kill(cluster.parent(new[0]), signal.SIGKILL)
        await asyncio.sleep(10)
        total = await edge.words()
    record_property("words", total)
    assert (total.lost, total.twice, total.wrong) == (0, 0, 0)
    assert total.right > 20 * 10 * 5


@on_ray
async def test_a_lost_node_costs_edges_no_word_and_is_replaced(
    cluster: Cluster, record_property: Record
) -> None:
    cluster.start_node(SECOND)
    cluster.deploy(NUMBER_WORKER, num_replicas=2)
    urls, _ = await cluster.until_listed(lambda urls: len(urls) == 2)
    on_second = {url for url in urls if cluster.process(url) in cluster.pids(SECOND)}
    assert len(on_second) == 1, "Serve spreads them"
    async with edge_with(cluster, calls=10) as edge:
        await asyncio.sleep(5)
        cluster.kill(SECOND)
        await until(lambda: not cluster.kill(SECOND))
        _, took = await cluster.until_listed(lambda urls: len({*urls} - on_second) == 2)
        record_property("node_lost_two_ready_s", took)
        await asyncio.sleep(5)
        total = await edge.words()
    record_property("words", total)
    assert (total.lost, total.twice, total.wrong) == (0, 0, 0)


@on_ray
@pytest.mark.parametrize("lost", ["head", "redis"])
async def test_streams_outlive_the_head_and_a_new_one_takes_over(
    cluster: Cluster, record_property: Record, lost: str
) -> None:
    """Without its Redis the head's control service ends by itself."""
    cluster.deploy(NUMBER_WORKER, num_replicas=2)
    urls, _ = await cluster.until_listed(lambda urls: len(urls) == 2)
    kept, killed = urls
    process = cluster.process(killed)
    async with edge_with(cluster, calls=4) as edge, streams([kept] * 3) as open_now:
        talking = asyncio.create_task(talk(open_now))
        await until(lambda: edge.listed() == {*urls})
        staying = asyncio.create_task(stays_listed(edge, urls))
        if lost == "redis":
            cluster.kill_redis()
            await until(lambda: not cluster.control())
        else:
            record_property("head_processes", cluster.kill("head"))
            await until(lambda: not cluster.kill("head"))
        gone_at = time.monotonic()
        os.kill(process, signal.SIGKILL)  # its minder needs no head
        await until(lambda: gone(process))
        async with asyncio.timeout(HANGS_S):
            while not await limit(killed):
                await asyncio.sleep(0.1)
        edge.call(4)
        await asyncio.sleep(max(0.0, gone_at + OUTAGE_S - time.monotonic()))
        assert not cluster.control()
        edge.call(4)
        if lost == "redis":
            await until(lambda: not cluster.kill("head"))
            cluster.start_redis()
        record_property("outage_s", round(time.monotonic() - gone_at))
        began = time.monotonic()
        await asyncio.to_thread(cluster.start_head)
        record_property("head_started_s", round(time.monotonic() - began, 1))
        same, took = await cluster.until_listed(lambda urls: len(urls) == 2)
        record_property("list_again_s", took)
        assert {*same} == {*urls}
        for task in (talking, staying):
            assert not task.done(), task.exception()
        staying.cancel()
        os.kill(cluster.parent(killed), signal.SIGKILL)
        _, took = await cluster.until_listed(lambda urls: len(urls) == 2 and killed not in urls)
        record_property("heals_again_s", took)
        assert not talking.done(), talking.exception()
        talking.cancel()
        total = await edge.words()
    record_property("words", total)
    assert (total.lost, total.twice, total.wrong) == (0, 0, 0)
    assert total.right > 4 * OUTAGE_S, "calls went on"


async def stays_listed(edge: Edge, urls: list[str]) -> None:
    while True:
        assert edge.listed() == {*urls}
        await asyncio.sleep(0.5)
