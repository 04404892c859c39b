"""A real nginx with deploy/nginx/offhook.conf before a server."""

import asyncio
import json
import shutil
import ssl
import subprocess
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

import aiohttp
import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from tests.deploy.servers import DEPLOY
from tests.support.ports import free_port
from tests.support.waiting import HANGS_S

NEEDED = ("nginx", "openssl", "curl")
pytestmark = pytest.mark.skipif(
    any(shutil.which(name) is None for name in NEEDED), reason=f"without {', '.join(NEEDED)}"
)
MAIN = """
daemon off; worker_processes 1; pid {folder}/pid; error_log {folder}/error.log;
events {{ worker_connections 64; }}
http {{
    access_log off;
    client_body_temp_path {folder}/body; proxy_temp_path {folder}/proxy;
    fastcgi_temp_path {folder}/f; uwsgi_temp_path {folder}/u; scgi_temp_path {folder}/s;
    include {folder}/offhook.conf;
}}
"""


@dataclass
class Front:
    url: str
    certificate: Path
    client: aiohttp.ClientSession
    first_heard: asyncio.Event
    """Only then does a voice say the second part."""


async def refuse(request: web.Request) -> web.Response:
    """Before the body is there."""
    return web.Response(status=503, headers={"Retry-After": "5"})


async def repeat(request: web.Request) -> web.WebSocketResponse:
    talk = web.WebSocketResponse()
    await talk.prepare(request)
    async for message in talk:
        await talk.send_str(f"{request.headers['X-Forwarded-Proto']}: {message.data}")
    return talk


async def say_host(request: web.Request) -> web.Response:
    return web.json_response([request.host, request.headers["X-Forwarded-Host"]])


def server(name: str, first_heard: asyncio.Event) -> TestServer:
    async def speak(request: web.Request) -> web.StreamResponse:
        answer = web.StreamResponse()
        await answer.prepare(request)
        await answer.write(b"first")
        await first_heard.wait()
        await answer.write(b"second")
        return answer

    async def say_path(request: web.Request) -> web.Response:
        return web.Response(text=f"{name} {request.path}")

    app = web.Application()
    app.router.add_post("/v1/audio/speech/stream", speak)
    app.router.add_post("/v1/audio/transcriptions", refuse)
    app.router.add_get("/ws/transcribe", repeat)
    app.router.add_get("/host", say_host)
    app.router.add_get("/{path:.*}", say_path)
    return TestServer(app)


@pytest.fixture
def certificate(tmp_path: Path) -> Path:
    """Its key is beside it."""
    file = tmp_path / "cert.pem"
    kind = "-newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 2 -subj /CN=localhost"
    command = f"openssl req -x509 {kind} -addext subjectAltName=DNS:localhost".split()
    files = ("-keyout", str(tmp_path / "key.pem"), "-out", str(file))
    subprocess.run([*command, *files], check=True, capture_output=True)
    return file


@pytest.fixture
async def front(tmp_path: Path, certificate: Path) -> AsyncIterator[Front]:
    port, heard = free_port(), asyncio.Event()
    async with server("edge", heard) as edge, server("speech", heard) as speech:
        text = (DEPLOY / "nginx/offhook.conf").read_text()
        for written, here in (
            ("edge:7860", f"127.0.0.1:{edge.port}"),
            ("speech:7862", f"127.0.0.1:{speech.port}"),
            ("/etc/nginx/certificates", str(tmp_path)),
            ("listen 443 ", f"listen 127.0.0.1:{port} "),
            ("listen [::]:443 ", f"listen [::1]:{port} "),
        ):
            assert written in text
            text = text.replace(written, here)
        (tmp_path / "offhook.conf").write_text(text)
        (tmp_path / "nginx.conf").write_text(MAIN.format(folder=tmp_path))
        process = await asyncio.create_subprocess_exec(
            *("nginx", "-p", str(tmp_path), "-c", str(tmp_path / "nginx.conf"))
        )
        try:
            await until_open(port, process)
            trusted = ssl.create_default_context(cafile=str(certificate))
            connector = aiohttp.TCPConnector(ssl=trusted)
            async with aiohttp.ClientSession(connector=connector) as client:
                yield Front(f"https://localhost:{port}", certificate, client, heard)
        finally:
            process.terminate()
            await process.wait()


async def until_open(port: int, process: asyncio.subprocess.Process) -> None:
    async with asyncio.timeout(HANGS_S):
        while True:
            assert process.returncode is None
            try:
                _, writer = await asyncio.open_connection("127.0.0.1", port)
            except OSError:
                await asyncio.sleep(0.02)
            else:
                writer.close()
                return


async def test_programs_get_http_2(front: Front) -> None:
    command = ["curl", "-s", "--http2", "--cacert", str(front.certificate)]
    curl = await asyncio.create_subprocess_exec(
        *command, "-w", " %{http_version}", f"{front.url}/v1/models", stdout=subprocess.PIPE
    )
    said, _ = await curl.communicate()
    assert said.decode() == "speech /v1/models 2"


@pytest.mark.parametrize(
    ("path", "where"),
    [
        ("/", "edge"),
        ("/embed.js", "edge"),
        ("/v1/audio/voices", "speech"),
        ("/v1/realtime", "edge"),
        ("/v1/realtime/calls", "edge"),
        ("/v1/realtime/calls/rtc_1/accept", "edge"),
        ("/v1/realtime/client_secrets", "edge"),
    ],
)
async def test_what_is_of_calls_goes_to_the_edge(front: Front, path: str, where: str) -> None:
    async with front.client.get(front.url + path) as answer:
        assert await answer.text() == f"{where} {path}"


async def test_the_server_sees_the_host_and_port_that_a_pages_origin_has(front: Front) -> None:
    name = front.url.removeprefix("https://")
    async with front.client.get(f"{front.url}/host") as answer:
        assert await answer.json() == [name, name]
    command = ["curl", "-s", "--http2", "--cacert", str(front.certificate), f"{front.url}/host"]
    curl = await asyncio.create_subprocess_exec(*command, stdout=subprocess.PIPE)
    said, _ = await curl.communicate()
    assert json.loads(said) == [name, name]


async def test_sound_goes_on_as_it_comes(front: Front) -> None:
    async with front.client.post(f"{front.url}/v1/audio/speech/stream", json={}) as answer:
        first = await asyncio.wait_for(answer.content.readany(), HANGS_S)
        front.first_heard.set()
        rest = await answer.content.read()
    assert (first, rest) == (b"first", b"second")


async def test_an_upload_is_refused_before_it_is_there(front: Front) -> None:
    async def forever() -> AsyncIterator[bytes]:
        yield b"x" * 1000
        await asyncio.sleep(60)

    async with asyncio.timeout(HANGS_S):
        url = f"{front.url}/v1/audio/transcriptions"
        async with front.client.post(url, data=forever()) as answer:
            assert answer.status == 503
            assert answer.headers["Retry-After"] == "5"


async def test_websockets_pass(front: Front) -> None:
    async with front.client.ws_connect(f"{front.url}/ws/transcribe") as talk:
        await talk.send_str("hello")
        assert await talk.receive_str() == "https: hello"


async def test_what_prometheus_reads_is_not_for_the_world(front: Front) -> None:
    async with front.client.get(f"{front.url}/metrics") as answer:
        assert answer.status == 404
    async with front.client.get(f"{front.url}/readyz") as answer:
        assert await answer.text() == "edge /readyz"


@pytest.mark.parametrize(
    "path", ["/", "/api/offer", "/v1/audio/speech", "/v1/audio/transcriptions"]
)
async def test_compressed_bodies_are_refused(front: Front, path: str) -> None:
    for coding, status in (("gzip", 415), ("br", 415), ("identity", 200)):
        headers = {"Content-Encoding": coding}
        async with front.client.get(front.url + path, headers=headers) as answer:
            assert (answer.status == 415) == (status == 415)


async def test_only_uploads_are_large(front: Front) -> None:
    large = bytes(3 << 20)
    for path, most in (
        ("/api/offer", True),
        ("/v1/realtime/calls", True),
        ("/v1/audio/voices", False),
    ):
        async with front.client.post(front.url + path, data=large) as answer:
            assert (answer.status == 413) == most
