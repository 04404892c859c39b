"""Two processes on one port: real servers, real calls; whichever process a request reaches."""

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from zlib import crc32

import aiohttp
import pytest
from aiortc import RTCPeerConnection
from prometheus_client import generate_latest
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.samples import Sample

from offhook.media.clock_io import PacketClock
from offhook.media.end_reason import End
from offhook.pipeline.conversation.events import CallEnded, CallStarted
from offhook.signaling.peer_io import use_addresses
from offhook.web.app.cli.caller_io import CallerLeg
from offhook.web.config.config import Config
from offhook.web.config.server import Server
from offhook.web.edge import server_io
from offhook.web.edge.siblings_io import merged
from offhook.web.http.metrics import Metrics
from tests.media.files.decoders import children
from tests.support.environment import environment
from tests.support.listening import Listening
from tests.support.processes import gone
from tests.support.waiting import HANGS_S, until

HOST = "127.0.0.1"
ROOMS = ("one", "two", "three")
READY = {"label": "rtvi-ai", "type": "client-ready", "id": "1", "data": {"version": "2.1.0"}}


class TwoProcesses:
    """`offhook serve` with two processes, and its log."""

    def __init__(self, folder: Path, *options: str, **settings: str) -> None:
        """`settings`: as SERVER_PORT="0"."""
        self._log = folder / "log"
        own = {
            "OFFHOOK_SERVER_PORT": "0",
            "OFFHOOK_SERVER_PROCESSES": "2",
            "OFFHOOK_SERVER_MAX_CALLS": "2",
            "OFFHOOK_SERVER_DRAIN_SECONDS": "20",
            "OFFHOOK_WEBRTC_ADDRESSES": '["127.0.0.1"]',
            "OFFHOOK_LOG_JSON_LINES": "true",
            "TMPDIR": str(folder),
            **{f"OFFHOOK_{name}": value for name, value in settings.items()},
        }
        with self._log.open("wb") as output:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "offhook", "serve", *options],
                cwd=folder,
                env=environment(**own),
                stderr=output,
            )
        self.folder = folder
        self.url = f"http://127.0.0.1:{self.line('port')['port']}"

    def text(self) -> str:
        return self._log.read_text()

    def lines(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self._log.read_text().splitlines() if line[:1] == "{"]

    def line(self, key: str) -> dict[str, Any]:
        """The latest line with this field, waited for."""
        until = time.monotonic() + HANGS_S
        while not (found := [line for line in self.lines() if key in line]):
            assert self.process.poll() is None, self._log.read_text()
            assert time.monotonic() < until, self._log.read_text()
            time.sleep(0.05)
        return found[-1]

    async def ask(self, method: str, path: str, **body: Any) -> tuple[int, dict[str, Any]]:
        """On a connection of its own: which process takes it is the system's choice."""
        async with (
            aiohttp.ClientSession(self.url) as http,
            http.request(method, path, json=body or None) as answer,
        ):
            return answer.status, await answer.json()

    async def ready(self, wanted: int = 200) -> dict[str, Any]:
        async with asyncio.timeout(HANGS_S):
            while (answer := await self.ask("GET", "/readyz"))[0] != wanted:
                await asyncio.sleep(0.05)
        return answer[1]

    async def samples(self, family: str) -> list[Sample]:
        async with aiohttp.ClientSession(self.url) as http, http.get("/metrics") as scrape:
            families = text_string_to_metric_families(await scrape.text())
        return next(f.samples for f in families if f.name == family)

    async def candidate(self, pc_id: str) -> int:
        line = {"candidate": "", "sdp_mid": "0", "sdp_mline_index": 0}
        return (await self.ask("PATCH", "/api/offer", pc_id=pc_id, candidates=[line]))[0]


class Caller:
    def __init__(self, clock: PacketClock) -> None:
        self.leg = CallerLeg("caller")
        self.offer: dict[str, Any] = {}
        self.pc_id = ""
        self._clock = clock

    @property
    def process(self) -> str:
        return self.pc_id[0]

    async def call(self, server: TwoProcesses) -> None:
        connected = asyncio.Event()
        self.leg.listener = Listening(on_connected=connected.set)
        self.offer = {"sdp": await self.leg.offer(), "type": "offer"}
        async with asyncio.timeout(HANGS_S):
            while (found := await server.ask("POST", "/api/offer", **self.offer))[0] == 503:
                await asyncio.sleep(0.2)
        status, answer = found
        assert status == 200, answer
        self.pc_id = answer["pc_id"]
        await self.leg.accept(answer["sdp"])
        await asyncio.wait_for(connected.wait(), HANGS_S)
        self._clock.add(self.leg)
        self.leg.send_message(json.dumps(READY))

    async def hears(self) -> None:
        """Something, from now on."""
        before = len(self.leg.sounded)
        async with asyncio.timeout(HANGS_S):
            while len(self.leg.sounded) < before + 10:
                await asyncio.sleep(0.02)


@asynccontextmanager
async def callers(server: TwoProcesses, count: int) -> AsyncIterator[list[Caller]]:
    use_addresses(["127.0.0.1"])
    clock = PacketClock()
    group = [Caller(clock) for _ in range(count)]
    try:
        for caller in group:
            await caller.call(server)
        yield group
    finally:
        for caller in group:
            await caller.leg.hang_up("goodbye")
            clock.remove(caller.leg)


async def no_calls(server: TwoProcesses) -> None:
    async with asyncio.timeout(HANGS_S):
        while (await server.ready())["calls"]:
            await asyncio.sleep(0.05)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TwoProcesses]:
    folder = tmp_path_factory.mktemp("processes")
    running = TwoProcesses(folder, RECORDS_URL="sqlite:///calls.db")
    yield running
    if running.process.poll() is None:
        running.process.kill()
    running.process.wait()


async def test_every_process_has_the_speech_api(server: TwoProcesses) -> None:
    await server.ready()
    asked = {"model": "tts-1", "voice": "alloy", "input": "Hello.", "response_format": "wav"}
    answered: set[int] = set()
    async with (
        asyncio.timeout(HANGS_S),
        aiohttp.ClientSession(connector=aiohttp.TCPConnector(force_close=True)) as http,
    ):
        while answered != {1, 2}:
            async with http.post(f"{server.url}/v1/audio/speech", json=asked) as answer:
                assert answer.status == 200
                assert (await answer.read()).startswith(b"RIFF")
            answered = {line["process"] for line in server.lines() if line.get("kind") == "speech"}
        text = await (await http.get(f"{server.url}/metrics")).text()
    for process in (1, 2):
        assert f'offhook_speech_requests_total{{process="{process}",' in text


async def test_live_screens_of_any_process_see_the_calls_of_all(server: TwoProcesses) -> None:
    await server.ready()
    async with (
        asyncio.timeout(HANGS_S),
        aiohttp.ClientSession(connector=aiohttp.TCPConnector(force_close=True)) as http,
    ):
        streams = [await http.get(f"{server.url}/calls/events") for _ in range(6)]
        assert {stream.status for stream in streams} == {200}
        async with callers(server, 3) as group:
            wanted = {caller.pc_id for caller in group}
            assert {caller.process for caller in group} == {"1", "2"}
            for stream in streams:
                seen = ""
                while not all(f'"call_id": "{pc_id}"' in seen for pc_id in wanted):
                    seen += (await stream.content.readline()).decode()
        for stream in streams:
            stream.close()
    await no_calls(server)


async def test_engines_of_all_processes_are_told_as_one(server: TwoProcesses) -> None:
    async with callers(server, 3):
        async with asyncio.timeout(HANGS_S):
            streams = 0
            while streams != 3:
                status, found = await server.ask("GET", "/engines")
                assert status == 200
                hears = [each for each in found["engines"] if each["kind"] == "asr"]
                streams = sum(each["streams"] for each in hears)
    await no_calls(server)


async def test_a_publisher_and_its_players_meet_whichever_process_they_reach(
    server: TwoProcesses,
) -> None:
    """Rooms of both processes; each request on a connection of its own."""
    assert {crc32(room.encode()) % 2 for room in ROOMS} == {0, 1}
    await server.ready()
    peer = RTCPeerConnection()
    peer.addTransceiver("audio", direction="sendonly")
    await peer.setLocalDescription(await peer.createOffer())
    publish = peer.localDescription.sdp
    play = publish.replace("a=sendonly", "a=recvonly")
    await peer.close()
    sdp = {"Content-Type": "application/sdp"}
    fragment = {"Content-Type": "application/trickle-ice-sdpfrag", "If-Match": "*"}
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(force_close=True)) as http:
        for room in ROOMS:
            sessions = []
            for url, offer in ((f"/whip/{room}", publish), *[(f"/whep/{room}", play)] * 3):
                async with http.post(server.url + url, data=offer, headers=sdp) as answer:
                    assert answer.status == 201, await answer.text()
                    assert answer.headers["ETag"]
                    assert answer.headers["Accept-Patch"]
                    assert answer.headers.getall("Content-Type") == ["application/sdp"]
                    sessions.append(server.url + answer.headers["Location"])
            for session in sessions:
                async with http.patch(session, data="", headers=fragment) as answer:
                    assert answer.status == 204
            for session in reversed(sessions):
                for status in (200, 200):
                    async with http.delete(session) as answer:
                        assert answer.status == status
                async with http.get(session) as answer:
                    assert answer.status == 404
    async with asyncio.timeout(HANGS_S):
        while (await server.ready())["calls"]:
            await asyncio.sleep(0.05)


async def test_calls_land_on_both_and_are_found_through_either(server: TwoProcesses) -> None:
    assert await server.ready() == {
        "ready": True,
        "calls": 0,
        "max_calls": 4,
        "overloaded": False,
    }
    async with callers(server, 3) as group:
        spread = Counter(caller.process for caller in group)
        assert set(spread) == {"1", "2"}
        assert (await server.ready())["calls"] == 3
        for caller in group:
            for _ in range(5):
                assert await server.candidate(caller.pc_id) == 200
                again = {**caller.offer, "pc_id": caller.pc_id}
                status, answer = await server.ask("POST", "/api/offer", **again)
                assert (status, answer["pc_id"]) == (200, caller.pc_id)
        await asyncio.gather(*(caller.hears() for caller in group))
        calls = await server.samples("offhook_calls_in_progress")
        assert {sample.labels["process"]: sample.value for sample in calls} == spread
    await no_calls(server)


async def test_a_page_that_leaves_is_heard_through_either(server: TwoProcesses) -> None:
    async with callers(server, 3) as group:
        assert {caller.process for caller in group} == {"1", "2"}
        for caller in group:
            path = f"/v1/realtime/calls/rtc_{caller.pc_id}/leave"
            answers = []
            async with aiohttp.ClientSession(server.url) as http:
                for _ in range(5):  # each on a process of the system's choice
                    async with http.post(path, headers={"Connection": "close"}) as answer:
                        answers.append(answer.status)
            assert answers[0] == 200
            assert set(answers[1:]) <= {404}
            await asyncio.wait_for(caller.leg.until_closed(), HANGS_S)
    await no_calls(server)


@pytest.mark.parametrize("pc_id", ["1-nobody", "2-nobody", "9-nobody", "nobody", "", "9" * 5000])
async def test_unknown_calls_are_not_found(server: TwoProcesses, pc_id: str) -> None:
    for _ in range(3):
        assert await server.candidate(pc_id) == 404


async def test_a_full_process_passes_calls_on_until_all_are_full(server: TwoProcesses) -> None:
    async with callers(server, 3) as group:
        assert sorted(Counter(caller.process for caller in group).values()) == [1, 2]
        for _ in range(10):
            await server.ask("POST", "/start", body={})
        refused: Counter[str] = Counter()
        for sample in await server.samples("offhook_calls_refused"):
            refused[sample.labels["reason"]] += int(sample.value)
        # On a busy machine the process with room may be late; then the full one refuses too.
        assert refused["full"] <= refused["late"]
        async with callers(server, 1):
            for path in ("/api/offer", "/start"):
                assert (await server.ask("POST", path, **group[0].offer))[0] == 503
    await no_calls(server)


async def test_a_killed_process_comes_back_and_the_other_goes_on(server: TwoProcesses) -> None:
    async with callers(server, 3) as group:
        lost = next(caller for caller in group if caller.process == "2")
        kept = next(caller for caller in group if caller.process == "1")
        pid = server.line("started")["pid"]
        os.kill(pid, signal.SIGKILL)
        try:
            await server.ready(503)
        except aiohttp.ClientConnectionError:  # it was waiting at the killed process
            await server.ready(503)
        await kept.hears()
        again = {**lost.offer, "pc_id": lost.pc_id, "restart_pc": True}
        async with asyncio.timeout(HANGS_S):
            while (found := await server.ask("POST", "/api/offer", **again))[0] == 503:
                await asyncio.sleep(0.2)
        assert found[0] == 200  # not 404, after which a client would not try again
        assert (await server.ask("DELETE", f"/api/offer/{found[1]['pc_id']}"))[0] == 200
        assert await server.candidate(kept.pc_id) == 200
        assert await server.candidate(lost.pc_id) == 404
        await server.ready()
        assert server.line("started")["pid"] != pid
        assert any("process 2 was killed by signal 9" in line["message"] for line in server.lines())
        assert await server.candidate(lost.pc_id) == 404
        assert await server.candidate(kept.pc_id) == 200
        async with callers(server, 2) as more:
            assert "2" in {caller.process for caller in more}
    await no_calls(server)


async def test_sigterm_lets_calls_end_and_then_all_processes(server: TwoProcesses) -> None:
    async with callers(server, 3) as group:
        server.process.terminate()
        async with asyncio.timeout(HANGS_S):
            while len([line for line in server.lines() if "draining" in line["message"]]) < 2:
                await asyncio.sleep(0.05)
        assert (await server.ready(503))["calls"] == 3
        status, _ = await server.ask("POST", "/api/offer", **group[0].offer)
        assert status == 503
        for caller in group:
            assert await server.candidate(caller.pc_id) == 200
            assert caller.leg.closed is None
    assert await asyncio.to_thread(server.process.wait, HANGS_S) == 0
    with pytest.raises(ProcessLookupError):
        os.kill(server.line("started")["pid"], 0)
    assert not list(server.folder.glob("offhook-*"))
    assert {line["process"] for line in server.lines() if "event" in line} == {1, 2}


async def test_nothing_is_left_when_the_first_process_is_killed(tmp_path: Path) -> None:
    server = TwoProcesses(tmp_path)
    await server.ready()
    family = descendants(server.process.pid)
    assert server.line("started")["pid"] in family
    assert len(family) >= 3  # both have PocketSphinx
    server.process.kill()
    server.process.wait()
    await until(lambda: all(map(gone, family)))


def descendants(pid: int) -> list[int]:
    return [one for child in children(pid) for one in (child, *descendants(child))]


REASON = 'the caller said "{ \u2028 goodbye"'


def test_one_scrape_has_the_series_of_every_process() -> None:
    texts = {}
    for number in (1, 2):
        metrics = Metrics(list, lambda: 0.0)
        for _ in range(number):
            metrics.record(CallStarted(0, "a", "b", "c"))
        metrics.record(CallStarted(0, "a", "b", "c"))
        metrics.record(CallEnded(0, End.HUNG_UP))
        metrics.calls_total.labels(REASON).inc()
        texts[number] = generate_latest(metrics.registry).decode()
    scrape = {f.name: f for f in text_string_to_metric_families(merged(texts))}
    alone = {f.name: f for f in text_string_to_metric_families(texts[1])}
    assert {(f.name, f.type, len(f.samples)) for f in scrape.values()} == {
        (f.name, f.type, 2 * len(f.samples)) for f in alone.values()
    }
    calls = scrape["offhook_calls_in_progress"].samples
    assert [(s.labels, s.value) for s in calls] == [({"process": "1"}, 1), ({"process": "2"}, 2)]
    ended = scrape["offhook_calls_ended"].samples
    assert {"process": "2", "reason": REASON} in [sample.labels for sample in ended]


@pytest.mark.parametrize("processes", [pytest.param("1", marks=pytest.mark.slow), "2"])
async def test_sighup_reads_the_keys_again_and_ends_nothing(tmp_path: Path, processes: str) -> None:
    file = tmp_path / "offhook.toml"
    file.write_text('[server]\napi_key = "old"\n[agent]\nkind = "silent"\n')
    server = TwoProcesses(tmp_path, "--config", str(file), SERVER_PROCESSES=processes)
    try:

        async def answers(key: str) -> set[int]:
            """To ten connections: any process may take one."""
            async with aiohttp.ClientSession(
                headers={"Authorization": f"Bearer {key}"},
                connector=aiohttp.TCPConnector(force_close=True),
            ) as http:
                asked = [http.post(f"{server.url}/start", json={}) for _ in range(10)]
                return {answer.status for answer in await asyncio.gather(*asked)}

        await server.ready()
        assert await answers("old") == {200}
        file.write_text('[server]\napi_key = "new"\nmax_call_minutes = 3\n[agent]\n')
        server.process.send_signal(signal.SIGHUP)
        async with asyncio.timeout(HANGS_S):
            while await answers("new") != {200}:
                await asyncio.sleep(0.1)
        assert await answers("old") == {401}
        said = next(one for one in server.lines() if "takes a restart" in one["message"])
        assert said["message"].endswith("takes a restart: [server] max_call_minutes")
        async with aiohttp.ClientSession(headers={"Authorization": "Bearer new"}) as http:
            for _ in range(10):
                async with http.get(f"{server.url}/status") as status:
                    assert (await status.json())["answers"]["agent"] == "frontdesk"
        file.write_text("[server]\nmax_call_minutes = -1\n")
        server.process.send_signal(signal.SIGHUP)
        async with asyncio.timeout(HANGS_S):
            while "is unchanged" not in server.text():
                await asyncio.sleep(0.05)
        assert await answers("new") == {200}
        assert server.process.poll() is None
    finally:
        server.process.terminate()
        assert server.process.wait(HANGS_S) == 0


async def test_the_port_is_nobody_elses_while_processes_begin_to_listen() -> None:
    async with server_io.kept_addresses(Config(server=Server(port=0))) as port:
        taken = {await a_free_port() for _ in range(20)}
        assert port not in taken
        both = [await asyncio.start_server(ignore, HOST, port, reuse_port=True) for _ in range(2)]
        with pytest.raises(OSError, match=f"server.port: {HOST}:{port} is in use: .* another"):
            async with server_io.kept_addresses(Config(server=Server(port=port))):
                pass
        for one in both:
            one.close()


async def a_free_port() -> int:
    async with await asyncio.start_server(ignore, HOST, 0) as server:
        port: int = server.sockets[0].getsockname()[1]
        return port


def ignore(*streams: object) -> None:
    pass


def test_what_keeps_processes_from_starting_is_told_in_a_line(tmp_path: Path) -> None:
    with socket.create_server((HOST, 0)) as other:
        carrier = f'[[carriers]]\nprovider = "audiosocket"\nport = {other.getsockname()[1]}\n'
        (tmp_path / "offhook.toml").write_text(carrier)
        ended = subprocess.run(
            [sys.executable, "-m", "offhook", "serve"],
            cwd=tmp_path,
            env=environment(OFFHOOK_SERVER_PORT="0", OFFHOOK_SERVER_PROCESSES="2"),
            stderr=subprocess.PIPE,
            text=True,
            timeout=HANGS_S,
            check=False,
        )
    assert ended.returncode == 1
    assert "Traceback" not in ended.stderr
    assert " is in use: " in ended.stderr.splitlines()[-1]
