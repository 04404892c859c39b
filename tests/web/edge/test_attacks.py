"""What strangers try at the front door, over real sockets, while somebody else's call goes on.

Each attack is one of a table and is made many times. It must be refused, must not write a line of
log each time, and the call must go on. Routes are taken from the running application, so a new one
is attacked without being named here.
"""

import asyncio
import base64
import contextlib
import io
import json
import logging
import os
import re
import socket
import subprocess
import sys
import wave
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aioice.ice
import pytest
import pytest_asyncio
from aiohttp import ClientSession, FormData, UnixConnector
from loguru import logger

from offhook.media.clock_io import PacketClock
from offhook.signaling import peer_io
from offhook.signaling.peer_io import PeerLeg
from offhook.web.config.config import Config
from offhook.web.edge.edge_io import Edge
from offhook.web.edge.server_io import application
from offhook.web.http import shares
from offhook.web.http.access import ROUTES, Role
from offhook.web.http.listening_io import Runner
from offhook.web.http.logs import Log
from offhook.web.http.logs_io import set_up
from offhook.web.http.shares import WAITING_SHARE, few_of
from tests.support.waiting import HANGS_S, until
from tests.web.edge.test_processes import TwoProcesses
from tests.web.edge.test_roles import TABLE as ROLES
from tests.web.edge.test_roles import Use

pytestmark = pytest.mark.asyncio(loop_scope="module")

AGAIN = 20
"""How often each attack is made."""
LINES = 12
"""Of the log that all the attacks of a test may write together."""
NOBODY = 65534
"""The user of the proxy that says nothing."""

TABLE: dict[str, Any] = {
    "server": {"host": "0.0.0.0", "port": 0, "drain_seconds": 0},
    "webrtc": {"addresses": ["127.0.0.1"]},
    "opus": {"dtx": False},
    "agent": {"kind": "silent"},
    "tts": {"engine": "espeak"},
    "sip": {
        "udp": 0,
        "tcp": 0,
        "trunks": [{"name": "premium", "server": "127.0.0.1:9", "options_seconds": 0}],
    },
    "carriers": [
        {"provider": "chan_websocket", "account": "asterisk", "secret": "secret"},
        {"provider": "twilio", "account": "AC1", "secret": "s", "public_url": "https://v.example"},
    ],
}
UPGRADE = {
    "Upgrade": "websocket",
    "Connection": "Upgrade",
    "Sec-WebSocket-Version": "13",
    "Sec-WebSocket-Key": "AAAAAAAAAAAAAAAAAAAAAA==",
    "Sec-WebSocket-Protocol": "media",
}
OPERATORS = [
    *(route for route, use in ROLES.items() if use in (Use.READ, Use.OPERATE)),
    *(("GET", "/sip/trace"), ("POST", "/tokens")),
    *(("GET", "/builder"), ("POST", "/builder/toml")),
]


@dataclass
class Target:
    """A server that stands in the network without any key, and a call that it has."""

    edge: Edge
    port: int
    caller: PeerLeg
    routes: list[tuple[str, str]] = field(default_factory=list)
    """Method and path of each, as the application has them."""
    answer: str = ""
    """The SDP that the caller was given."""

    def path(self, pattern: str) -> str:
        """With the call that goes on, and for streams the carrier that signs none."""
        carrier = "chan_websocket" if "/stream" in pattern else "twilio"
        known = {"{call}": self.caller_id, "{name}": carrier}
        for name, value in known.items():
            pattern = pattern.replace(name, value)
        return re.sub(r"{\w+}", "x", pattern)

    @property
    def caller_id(self) -> str:
        return next(iter(self.edge.calls), "x")


async def ask(
    port: int,
    method: str,
    path: str,
    headers: dict[str, str] | None = None,
    address: str = "127.0.0.1",
    version: str = "1.1",
    body: bytes = b"{}",
) -> tuple[int, str]:
    """Status and text of the answer; the request is just what is said here."""
    body = body if method in ("POST", "PATCH") else b""
    wanted = {
        "Host": f"localhost:{port}",
        "Content-Type": "application/json",
        "Content-Length": str(len(body)),
        "Connection": "close",
        **(headers or {}),
    }
    lines = [f"{method} {path} HTTP/{version}", *(f"{n}: {v}" for n, v in wanted.items())]
    reader, writer = await asyncio.open_connection(address, port)
    try:
        async with asyncio.timeout(HANGS_S):
            writer.write("\r\n".join([*lines, "", ""]).encode() + body)
            answered = (await reader.readuntil(b"\r\n\r\n")).decode()
            length = re.search(r"content-length: (\d+)", answered, re.IGNORECASE)
            text = await reader.readexactly(int(length[1]) if length is not None else 0)
        return int(answered.split()[1]), text.decode()
    finally:
        writer.close()
        with contextlib.suppress(ConnectionError):
            await writer.wait_closed()


@asynccontextmanager
async def standing() -> AsyncIterator[Target]:
    host_addresses = aioice.ice.get_host_addresses
    edge = Edge(Config.model_validate(TABLE))
    await edge.start()
    app = application(edge)
    runner = Runner(app)
    await runner.setup()
    clock, caller = PacketClock(), PeerLeg("caller")
    try:
        await runner.listen("0.0.0.0", 0)
        port = runner.addresses[0][1]
        found = {
            (route.method, resource.canonical)
            for resource in app.router.resources()
            for route in resource
            if route.method not in ("HEAD", "OPTIONS")
        }
        yield Target(edge, port, caller, sorted(found))
    finally:
        await caller.hang_up("test over")
        clock.remove(caller)
        await edge.close()
        await runner.cleanup()
        aioice.ice.get_host_addresses = host_addresses


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def target() -> AsyncIterator[Target]:
    """One for all tests of this file, with a call in progress."""
    async with standing() as server:
        clock, caller = PacketClock(), server.caller
        url = f"http://127.0.0.1:{server.port}/api/offer"
        async with ClientSession() as http:
            offer = {"sdp": await caller.offer(), "type": "offer"}
            async with http.post(url, json=offer) as answer:
                assert answer.status == 200, await answer.text()
                server.answer = (await answer.json())["sdp"]
                await caller.accept(server.answer)
        clock.add(caller)
        async with asyncio.timeout(HANGS_S):
            while not caller.connected:
                await asyncio.sleep(0.01)
        yield server
        clock.remove(caller)


@asynccontextmanager
async def unharmed(target: Target, lines: int = LINES) -> AsyncIterator[None]:
    """Meanwhile the log stays short, and ours, and the call goes on."""
    stream = io.StringIO()
    with contextlib.redirect_stderr(stream):
        set_up(Log())
        try:
            yield
        finally:
            logger.remove()
            logging.basicConfig(handlers=[logging.NullHandler()], force=True)
    log = stream.getvalue().splitlines()
    assert all(re.match(r"[\d-]{10} \d\d:\d\d:\d\d\.\d+ [A-Z]+ ", line) for line in log), log
    assert len(log) <= lines, log
    after = target.caller.statistics()
    async with asyncio.timeout(HANGS_S):
        while target.caller.statistics().packets_received < after.packets_received + 50:
            await asyncio.sleep(0.02)
    assert target.caller.closed is None


def own_address() -> str:
    """By which others reach this machine."""
    found = aioice.ice.get_host_addresses(use_ipv4=True, use_ipv6=False)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect(("192.0.2.250", 9))
        own = probe.getsockname()[0]
    if own.startswith("127.") and found == ["127.0.0.1"]:
        pytest.skip("this machine has no address but loopback")
    return str(own)


# --- the operator's routes ---


async def test_the_table_has_every_route_that_there_is(target: Target) -> None:
    segments = {path.removeprefix("/").partition("/")[0] for _, path in target.routes}
    assert segments <= ROUTES.keys()
    roles = {p: target.edge.access.role_of(p) for _, p in target.routes}
    of_operator = {(m, p) for m, p in target.routes if roles[p] in OPERATOR}
    assert of_operator == set(OPERATORS)


OPERATOR = (Role.OPERATOR, Role.RECORDS)


async def test_nothing_of_the_operators_is_open_to_the_network(target: Target) -> None:
    address = own_address()
    async with unharmed(target):
        for method, pattern in OPERATORS * AGAIN:
            for host in (f"{address}:{target.port}", "localhost", "127.0.0.1"):
                status, text = await ask(
                    target.port, method, target.path(pattern), {"Host": host}, address
                )
                assert status == 403, (method, pattern, host, text)
                assert "[server] admin_key" in text
    assert not target.edge.sip.calls


TRACES = [
    {"X-Forwarded-For": "198.51.100.7"},
    {"X-Real-IP": "198.51.100.7"},
    {"Forwarded": "for=198.51.100.7"},
    {"Via": "1.1 proxy"},
]


async def test_a_proxy_on_this_machine_opens_nothing_of_the_operators(target: Target) -> None:
    """nginx's plain proxy_pass: HTTP/1.0, the upstream's name as Host, no header of its own."""
    plain = {"Host": f"127.0.0.1:{target.port}"}
    async with unharmed(target):
        for method, pattern in OPERATORS * AGAIN:
            path = target.path(pattern)
            assert (await ask(target.port, method, path, plain, version="1.0"))[0] == 403
            for trace in TRACES:
                assert (await ask(target.port, method, path, {**plain, **trace}))[0] == 403
    assert not target.edge.sip.calls


PROXY = """
import asyncio, sys

async def pump(reader, writer):
    while data := await reader.read(65536):
        writer.write(data)
    writer.close()

async def serve(reader, writer):
    there = await asyncio.open_connection("127.0.0.1", int(sys.argv[1]))
    await asyncio.gather(pump(reader, there[1]), pump(there[0], writer))

async def main():
    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()

asyncio.run(main())
"""


@pytest.mark.skipif(
    os.geteuid() != 0 or not os.path.exists("/proc/net/tcp"),
    reason="needs root, to be another user",
)
async def test_a_proxy_that_says_nothing_but_is_another_user_opens_nothing(target: Target) -> None:
    proxy = await asyncio.create_subprocess_exec(
        *("/usr/bin/env", "python3", "-c", PROXY, str(target.port)),
        stdout=subprocess.PIPE,
        user=NOBODY,
        cwd="/",
    )
    assert proxy.stdout is not None
    try:
        port = int(await asyncio.wait_for(proxy.stdout.readline(), HANGS_S))
        async with unharmed(target):
            for method, pattern in OPERATORS:
                host = {"Host": f"127.0.0.1:{target.port}"}
                status, text = await ask(port, method, target.path(pattern), host)
                assert status == 403
                assert "another user" in text
    finally:
        proxy.kill()
        await proxy.wait()


async def test_who_runs_the_server_is_let_in(target: Target) -> None:
    """From this machine, directly: so the refusals above are for what they say."""
    for path in ("/calls", "/sip/trace"):
        assert (await ask(target.port, "GET", path))[0] == 200


# --- pages in the browsers of people on this machine or its network ---


def changes(method: str, pattern: str) -> bool:
    """Whether it changes something or opens a socket."""
    sockets = ("/ws/", "/v1/realtime", "/v1/audio/speech/ws", "/carriers/{name}/stream")
    return method != "GET" or pattern.startswith(sockets)


def refusals(pattern: str) -> tuple[int, ...]:
    """A carrier has not each of the carriers' routes."""
    return (403, 404) if pattern.startswith("/carriers/{name}/transfer") else (403,)


async def test_a_name_that_was_rebound_to_this_machine_opens_nothing(target: Target) -> None:
    probes = ("/healthz", "/readyz", "/health")
    asked = [(m, p) for m, p in target.routes if p not in probes]
    async with unharmed(target):
        for method, pattern in asked * 2:
            for headers in ({}, UPGRADE) if method == "GET" else ({},):
                rebound = {**headers, "Host": "rebound.evil.example:7860"}
                status, text = await ask(target.port, method, target.path(pattern), rebound)
                assert status in refusals(pattern), (method, pattern, text)
    assert target.edge.carriers is not None
    assert not target.edge.carriers.calls.in_progress()


@pytest.mark.parametrize("origin", ["https://evil.example", "null"])
async def test_a_page_of_another_site_changes_nothing_and_opens_no_socket(
    target: Target, origin: str
) -> None:
    asked = [(m, p) for m, p in target.routes if changes(m, p)]
    assert ("GET", "/ws/transcribe") in asked
    async with unharmed(target):
        for method, pattern in asked * 2:
            headers = {**(UPGRADE if method == "GET" else {}), "Origin": origin}
            status, text = await ask(target.port, method, target.path(pattern), headers)
            assert status in refusals(pattern), (method, pattern, text)
            preflight = {"Origin": origin, "Access-Control-Request-Method": method}
            status, _ = await ask(target.port, "OPTIONS", target.path(pattern), preflight)
            assert status in (403, 405), (method, pattern)
    assert target.edge.carriers is not None
    assert not target.edge.carriers.calls.in_progress()
    assert len(target.edge.legs) == 1


async def test_an_asterisk_is_let_in(target: Target) -> None:
    """By address, without a password: what the pages above would have had. With its password by
    whatever name."""
    path = "/carriers/chan_websocket/stream"
    assert (await ask(target.port, "GET", path, UPGRADE))[0] == 101
    named = {**UPGRADE, "Host": "voice.example.org"}
    for user, status in (("asterisk:secret", 101), ("asterisk:wrong", 403)):
        basic = f"Basic {base64.b64encode(user.encode()).decode()}"
        assert (await ask(target.port, "GET", path, {**named, "Authorization": basic}))[0] == status


async def test_a_server_for_this_machine_alone_answers_to_no_proxy(target: Target) -> None:
    config = target.edge.config
    local = config.server.model_copy(update={"host": "127.0.0.1"})
    target.edge.config = config.model_copy(update={"server": local})
    callers = [("POST", "/start"), ("POST", "/api/offer"), ("GET", "/"), ("GET", "/v1/models")]
    try:
        async with unharmed(target):
            for method, path in callers * AGAIN:
                assert (await ask(target.port, method, path))[0] in (200, 400)
                assert (await ask(target.port, method, path, version="1.0"))[0] == 403
                for trace in TRACES:
                    status, text = await ask(target.port, method, path, trace)
                    assert status == 403
                    assert "proxy" in text
    finally:
        target.edge.config = config


# --- floods, and what is not a request ---


async def test_a_caller_cannot_write_lines_of_the_log(target: Target) -> None:
    forged = "x\n12:00:00.000 INFO     call me at http://evil.example/\r\x1b[2J\u2028"
    async with unharmed(target, 40):
        for number in range(300):
            kind = {"label": "rtvi-ai", "type": f"{forged}{number}", "id": forged, "data": forged}
            target.caller.send_message(json.dumps(kind))
        path = f"/{number}%0a12:00:00.000%20INFO%20%1b[2J"
        for _ in range(AGAIN):
            headers = {"User-Agent": "x\x1b[2J", "Accept": "\x1b[31m"}
            assert (await ask(target.port, "GET", path, headers))[0] in (400, 404)
        await asyncio.sleep(1)


@pytest.mark.parametrize("body", [b"[" * 50_000, rb'{"key": "\ud800", "text": "\ud800"}'])
async def test_no_body_is_a_fault_of_the_server(target: Target, body: bytes) -> None:
    found = {
        pattern: (await ask(target.port, method, target.path(pattern), body=body))[0]
        for method, pattern in target.routes
        if method in ("POST", "PATCH")
    }
    assert {path for path, status in found.items() if status == 500} == set()


async def test_noise_at_a_calls_port_is_neither_logged_nor_felt(target: Target) -> None:
    found = re.search(r"candidate:\S+ 1 udp \d+ 127\.0\.0\.1 (\d+)", target.answer)
    assert found is not None
    cookie = bytes.fromhex("2112a442") + bytes(12)
    noise = [
        bytes.fromhex("00010008") + cookie + bytes.fromhex("0024000200000000"),
        bytes.fromhex("00010008") + cookie + bytes.fromhex("8029000100000000"),
        bytes.fromhex("0101ffff") + cookie,
        bytes.fromhex("0001") + cookie,
        bytes.fromhex("80ff0001") + os.urandom(200),
        bytes.fromhex("16feff") + os.urandom(100),
        b"",
    ]
    async with unharmed(target):
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as stranger:
            for _ in range(300):
                for packet in noise:
                    stranger.sendto(packet, ("127.0.0.1", int(found[1])))
                await asyncio.sleep(0.002)
        await asyncio.sleep(0.5)


async def test_uploads_that_never_end_keep_no_program_from_the_engine(target: Target) -> None:
    assert target.edge.speech is not None
    lane = target.edge.speech.admission.lanes["transcription"]
    head = (
        "POST /v1/audio/transcriptions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9000000\r\n"
        "Content-Type: multipart/form-data; boundary=b\r\n\r\n--b\r\n"
        'Content-Disposition: form-data; name="file"; filename="a.wav"\r\n\r\nRIFF'
    )
    writers = []
    async with unharmed(target):
        for _ in range(16):
            _, writer = await asyncio.open_connection("127.0.0.1", target.port)
            writer.write(head.encode())
            writers.append(writer)
        for _ in range(5):
            for writer in writers:
                writer.write(bytes(600))
            await asyncio.sleep(0.1)
        assert not lane.running
        form = FormData({"model": "whisper-1"})
        form.add_field("file", silence(), filename="a.wav")
        url = f"http://127.0.0.1:{target.port}/v1/audio/transcriptions"
        async with (
            asyncio.timeout(HANGS_S),
            ClientSession() as http,
            http.post(url, data=form) as answer,
        ):
            assert answer.status == 200, await answer.text()
        for writer in writers:
            writer.close()


def silence() -> bytes:
    """A second of it, as a WAV file."""
    file = io.BytesIO()
    with wave.open(file, "wb") as sound:
        sound.setnchannels(1)
        sound.setsampwidth(2)
        sound.setframerate(16_000)
        sound.writeframes(bytes(32_000))
    return file.getvalue()


async def test_callers_who_never_connect_take_few_lines_and_no_agent(
    target: Target, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(peer_io, "CONNECT_TIMEOUT_S", 3600.0)  # however long the offers need here
    monkeypatch.setattr(shares, "PATIENCE_S", 3600.0)
    leg = PeerLeg("nobody")
    offer = {"sdp": await leg.offer(), "type": "offer"}
    before = len(target.edge.legs)
    most = few_of(WAITING_SHARE, target.edge.config.server.max_calls)
    url = f"http://127.0.0.1:{target.port}/api/offer"
    begun: list[Any] = []
    async with unharmed(target):
        sink = logger.add(lambda message: begun.append(message.record["extra"].get("event")))
        async with ClientSession() as http:
            held = []
            for _ in range(AGAIN):
                async with http.post(url, json=offer) as answer:
                    said = await answer.json()
                    held += [said["pc_id"]] if answer.status == 200 else []
                    assert answer.status == 200 or answer.headers["Retry-After"]
            assert len(held) == most == len(target.edge.legs) - before
            assert "call_started" not in begun
            for pc_id in held:
                async with http.delete(f"{url}/{pc_id}") as answer:
                    assert answer.status == 200
        await until(lambda: len(target.edge.legs) == before)
        logger.remove(sink)
    await leg.hang_up("test over")


# --- a server that would stand open ---


def started(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "offhook", *arguments],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=120,
    )


@pytest.mark.parametrize("processes", ["1", pytest.param("2", marks=pytest.mark.slow)])
async def test_a_server_that_would_stand_open_does_not_start(tmp_path: Any, processes: str) -> None:
    (tmp_path / "offhook.toml").write_text(
        '[server]\nhost = "0.0.0.0"\nport = 0\n'
        '[sip]\nudp = 0\ntcp = 0\n[[sip.trunks]]\nname = "premium"\nserver = "127.0.0.1:9"\n'
    )
    file = str(tmp_path / "offhook.toml")
    done = await asyncio.to_thread(
        started, "serve", "--config", file, OFFHOOK_SERVER_PROCESSES=processes
    )
    assert done.returncode == 1
    assert "premium" in done.stderr
    assert "[server] admin_key" in done.stderr
    assert len(done.stderr.splitlines()) == 1


async def test_processes_that_share_a_port_open_nothing_to_one_another(tmp_path: Path) -> None:
    """A stream that is handed over to a sibling, and refused there, leaves a connection behind."""
    (tmp_path / "offhook.toml").write_text(
        '[[carriers]]\nprovider = "twilio"\nsecret = "s"\n[agent]\nkind = "silent"\n'
    )
    socket_path = tmp_path / "admin.sock"
    server = TwoProcesses(tmp_path, SERVER_ADMIN_LISTEN=f"unix:{socket_path}")
    try:
        await server.ready()
        (said,) = (line["message"] for line in server.lines() if "who may use" in line["message"])
        assert said.endswith(f"whoever reaches unix:{socket_path}")
        port = int(server.url.rpartition(":")[2])
        handed_over = 0
        for _ in range(8):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            for path, headers in (("/carriers/twilio/stream/2-x", UPGRADE), ("/calls", {})):
                lines = [f"{name}: {value}" for name, value in headers.items()]
                head = [f"GET {path} HTTP/1.1", "Host: localhost", *lines, "", ""]
                writer.write("\r\n".join(head).encode())
                async with asyncio.timeout(HANGS_S):
                    answered = (await reader.readuntil(b"\r\n\r\n")).decode()
                    length = re.search(r"content-length: (\d+)", answered, re.IGNORECASE)
                    assert length is not None
                    text = await reader.readexactly(int(length[1]))
                assert answered.split()[1] == "403", (path, answered)
                handed_over += path == "/calls" and b"admin.sock" in text
            writer.close()
        assert handed_over == 8
        unix = UnixConnector(str(socket_path))
        async with (
            ClientSession("http://localhost", connector=unix) as operator,
            operator.get("/calls") as answer,
        ):
            assert await answer.json() == {"calls": []}
    finally:
        server.process.terminate()
        await asyncio.to_thread(server.process.wait, 30)
