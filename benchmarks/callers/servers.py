"""The servers of `offhook bench calls` when it is given none: real edges (`offhook serve`), workers
that hear and speak number words, and a language model that repeats them, all on loopback.

Parts of it can be ended as they end in production; whoever minds them in production starts them
again, and so does this.
"""

import asyncio
import os
import signal
import tempfile
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from shutil import which
from typing import Literal

import aiohttp
from aiohttp import web

from benchmarks.processes.node import Node, node
from benchmarks.processes.own_server import free_port, free_ports, is_ready, started
from benchmarks.processes.process import all_of, child, get_json
from benchmarks.servers.kamailio import kamailio
from benchmarks.table import progress
from offhook.processes.child_io import ending_with_us
from offhook.web.http.listening_io import Runner

Fault = Literal["worker", "hang", "link", "node", "drain", "upgrade", "edge", "drain-edge", "head"]
FAULTS: Mapping[Fault, str] = {
    "worker": "SIGKILL to one worker for recognition and one for speech; started again",
    "hang": "SIGSTOP to both; they go on after a while",
    "link": "the link to the machine of both goes down, without a FIN or RST",
    "node": "the same, and it is back after a while, with the same processes",
    "drain": "SIGTERM to both, which drain; started again",
    "upgrade": "all workers, one of each kind after another, drain and are started again",
    "edge": "SIGKILL to one edge with its calls; started again",
    "drain-edge": "SIGTERM to one edge with its calls, which drains; started again",
    "head": "the directory of the workers ends, and with it healing and scaling",
}
LINKED: Sequence[Fault] = ("link", "node")
"""Those that need another machine for a worker of each kind."""
START_S = 120.0
RECOVERY_S = 3
"""Time in s after which another edge continues the phone calls of one that has died."""
RESTART_S = 5.0
"""Time in s from the end of a process until it is started again."""
AWAY_S = 20.0
"""Time in s for which workers hang, or a machine is away."""
DRAIN_S = 10.0
CALLS = 250
"""Maximum calls of an edge, and streams of a worker."""
SECRET = "0123456789abcdef0123456789abcdef"
ACCOUNT = "AC0123456789abcdef0123456789abcdef"
RTP_PORTS = 2_000
"""UDP ports of an edge for the audio of phones."""
WORKER_MODULE = "benchmarks.speech.number_words"


@dataclass
class Servers:
    """What callers call, and what may be ended."""

    web: list[str] = field(default_factory=list)
    sip: list[str] = field(default_factory=list)
    twilio: list[str] = field(default_factory=list)
    secret: str = SECRET
    pids: dict[str, int] = field(default_factory=dict)
    """Processes to be measured, by name."""

    async def heard(self) -> dict[str, str] | None:
        """Returns what the agent knows of each call with a telephone number, by that number; None
        if it cannot be asked."""
        return None


@asynccontextmanager
async def stock_servers() -> AsyncIterator[Servers]:
    """Starts a stock Pipecat bot, which hears and speaks number words in its own process, and the
    same language model. Raises ChildError."""
    async with (
        child("benchmarks.servers.model") as model,
        child(
            "benchmarks.servers.stock_server",
            "numbers",
            "--model",
            f"http://127.0.0.1:{model.hello['port']}/v1",
        ) as stock,
    ):
        url = f"http://127.0.0.1:{stock.hello['port']}"
        yield Servers(web=[url], pids={"model": model.pid, "pipecat": stock.pid})


class OwnServers(Servers):
    """Edges, workers and a model, running."""

    def __init__(self, stack: AsyncExitStack, folder: Path, other: Node | None) -> None:
        super().__init__()
        self._stack = stack
        self._folder = folder
        self._node = other
        """The machine of the first worker of each kind, if not this one."""
        self._processes: dict[str, asyncio.subprocess.Process] = {}
        self._arguments: dict[str, tuple[str, list[str], str, Sequence[str]]] = {}
        """What `_start` is given for each process, to start it again."""
        self._restarts: list[asyncio.Task[None]] = []
        self._directory: Runner | None = None
        self.redis = ""
        """URL, if calls are saved."""
        self._model = 0
        """Port of the language model."""

    async def start_model(self) -> None:
        model = await self._stack.enter_async_context(child("benchmarks.servers.model"))
        self.pids["model"], self._model = model.pid, model.hello["port"]

    async def heard(self) -> dict[str, str] | None:
        async with aiohttp.ClientSession() as http:
            return await get_json(http, f"http://127.0.0.1:{self._model}/heard")

    async def _start(
        self,
        name: str,
        module: str,
        arguments: Sequence[str],
        url: str,
        within: Sequence[str] = (),
    ) -> None:
        self.pids.setdefault(name, 0)  # in the order of their starts, not of their being ready
        there = partial(is_ready, url)
        process = await self._stack.enter_async_context(
            started(arguments, there, START_S, f"no {name}", module=module, within=within)
        )
        self._arguments[name] = module, list(arguments), url, within
        self._processes[name], self.pids[name] = process, process.pid

    async def start_worker(self, kind: str, number: int, port: int) -> str:
        other = self._node if number == 1 else None
        address = f"{other.address if other else '127.0.0.1'}:{port}"
        arguments = [kind, "--listen", address, "--max-streams", str(4 * CALLS)]
        arguments += ["--drain-seconds", str(DRAIN_S)]
        url = f"http://{address}"
        within = other.within if other else ()
        await self._start(f"{kind} worker {number}", WORKER_MODULE, arguments, url, within)
        return url

    async def start_redis(self) -> None:
        """Calls of an edge that ends go on at another one."""
        port = free_port()
        process = await asyncio.create_subprocess_exec(
            *("redis-server", "--bind", "127.0.0.1", "--port", str(port)),
            *("--save", "", "--dir", str(self._folder)),
            stdout=asyncio.subprocess.DEVNULL,
            preexec_fn=ending_with_us(),
        )
        self._stack.push_async_callback(process.wait)
        self._stack.callback(process.terminate)
        self.pids["redis"] = process.pid
        self.redis = f"redis://127.0.0.1:{port}/0"

    async def start_directory(self, workers: Mapping[str, Sequence[str]]) -> dict[str, str]:
        """Lists the workers of each kind at a URL."""
        app = web.Application()
        for kind, urls in workers.items():
            listed = {"workers": [{"url": url} for url in urls]}
            app.router.add_get(f"/{kind}", partial(_answer, listed))
        self._directory = Runner(app)
        await self._directory.setup()
        self._stack.push_async_callback(self._directory.cleanup)
        await self._directory.listen("127.0.0.1", 0)
        port = self._directory.addresses[0][1]
        return {kind: f"http://127.0.0.1:{port}/{kind}" for kind in workers}

    async def start_edge(
        self, number: int, processes: int, port: int, sip: int, asr: str, tts: str
    ) -> str:
        """`asr` and `tts` are values of `url`, in TOML. Returns its URL."""
        config = self._folder / f"edge-{number}.toml"
        low = 16_384 + number * RTP_PORTS
        config.write_text(
            _CONFIGURATION.format(
                **locals(),
                model=self._model,
                calls=CALLS,
                secret=SECRET,
                account=ACCOUNT,
                high=low + RTP_PORTS - 1,
                redis=self.redis,
                recovery=RECOVERY_S if self.redis else 0,
            )
        )
        url = f"http://127.0.0.1:{port}"
        await self._start(f"edge {number}", "offhook", ["serve", "--config", str(config)], url)
        return url

    # --- what may happen to them ---

    async def apply(self, fault: Fault) -> None:
        """Ends a part of them; returns at once."""
        match fault:
            case "worker":
                self._end(("asr worker 1", "tts worker 1"), signal.SIGKILL)
            case "drain":
                self._end(("asr worker 1", "tts worker 1"), signal.SIGTERM)
            case "upgrade":
                self._restarts.append(asyncio.create_task(self._upgrade()))
            case "edge":
                self._end(("edge 1",), signal.SIGKILL)
            case "drain-edge":
                self._end(("edge 1",), signal.SIGTERM)
            case "link" | "node" if self._node is not None:
                await self._node.set_link("down")
                if fault == "node":
                    self._restarts.append(asyncio.create_task(_come_back(self._node)))
            case "hang":
                pids = [self.pids["asr worker 1"], self.pids["tts worker 1"]]
                for pid in pids:
                    os.kill(pid, signal.SIGSTOP)
                self._restarts.append(asyncio.create_task(_wake(pids)))
            case "head" if self._directory is not None:
                await self._directory.cleanup()

    def _end(self, names: Sequence[str], number: signal.Signals) -> None:
        for name in names:
            self._processes[name].send_signal(number)
            self._restarts.append(asyncio.create_task(self._start_again(name, RESTART_S)))

    async def _start_again(self, name: str, after_s: float) -> None:
        await self._processes[name].wait()
        await asyncio.sleep(after_s)
        await self._start(name, *self._arguments[name])

    async def _upgrade(self) -> None:
        """Returns once all workers have been started again."""
        workers = [name for name in self._processes if "worker" in name]
        for number in sorted({name.rpartition(" ")[2] for name in workers}, key=int):
            names = [name for name in workers if name.endswith(f" {number}")]
            for name in names:
                self._processes[name].terminate()
            await asyncio.gather(*(self._start_again(name, 0) for name in names))
        progress("all workers have been upgraded")

    async def close(self) -> None:
        """Ends what would start parts again. Reports parts that could not be."""
        for task in self._restarts:
            task.cancel()
        for result in await asyncio.gather(*self._restarts, return_exceptions=True):
            if isinstance(result, Exception):
                progress(f"x {result}")


async def _wake(pids: Sequence[int]) -> None:
    try:
        await asyncio.sleep(AWAY_S)
    finally:
        for pid in pids:
            os.kill(pid, signal.SIGCONT)


async def _come_back(other: Node) -> None:
    await asyncio.sleep(AWAY_S)
    await other.set_link("up")


async def _answer(listed: Mapping[str, object], request: web.Request) -> web.Response:
    return web.json_response(listed)


_CONFIGURATION = """
[server]
port = {port}
processes = {processes}
max_calls = {calls}
drain_seconds = 2
redis = "{redis}"
[webrtc]
addresses = ["127.0.0.1"]
[asr]
url = {asr}
update_ms = 200
noise_suppression = "off"
automatic_gain = false
[tts]
url = {tts}
audio_cache = "off"
[agent]
kind = "openai"
base_url = "http://127.0.0.1:{model}/v1"
api_key = "none"
model = "number-words"
[sip]
udp = {sip}
tcp = false
rtp_ports = [{low}, {high}]
max_calls = {calls}
recovery_seconds = {recovery}
requests_per_second = 1000
invites_per_second = 1000
[[sip.trunks]]
name = "loopback"
addresses = ["127.0.0.0/8"]
[[carriers]]
provider = "twilio"
account = "{account}"
secret = "{secret}"
[log]
level = "WARNING"
"""


def _in_toml(urls: Sequence[str]) -> str:
    if len(urls) == 1:
        return f'"{urls[0]}"'
    return "[" + ", ".join(f'"{url}"' for url in urls) + "]"


@asynccontextmanager
async def own_servers(
    edges: int, workers: int, fault: Fault | None = None, processes: int = 1
) -> AsyncIterator[OwnServers]:
    """Starts `workers` workers of each kind and the edges, each of `processes`, ready for `fault`;
    with several edges phones call Kamailio, where it is installed. Raises RuntimeError, ChildError,
    KamailioError."""
    async with AsyncExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        other = await stack.enter_async_context(node()) if fault in LINKED else None
        running = OwnServers(stack, folder, other)
        await running.start_model()
        ports = iter(free_ports(2 * (workers + edges)))
        numbers = range(1, workers + 1)
        urls = {
            kind: await all_of(
                running.start_worker(kind, number, next(ports)) for number in numbers
            )
            for kind in ("asr", "tts")
        }
        found = {kind: _in_toml(listed) for kind, listed in urls.items()}
        if fault == "head":
            at = await running.start_directory(urls)
            found = {kind: f'"{url}"' for kind, url in at.items()}
        if edges > 1 and which("redis-server"):
            await running.start_redis()
        sip = [next(ports) for _ in range(edges)]
        running.web = await all_of(
            running.start_edge(number, processes, next(ports), port, found["asr"], found["tts"])
            for number, port in enumerate(sip, 1)
        )
        running.twilio = [f"{url}/carriers/twilio/voice" for url in running.web]
        if edges > 1 and which("kamailio"):
            proxy = await stack.enter_async_context(kamailio(sip))
            running.pids["kamailio"] = proxy.pid
            sip = [proxy.port]
        running.sip = [f"127.0.0.1:{port}" for port in sip]
        try:
            yield running
        finally:
            await running.close()
