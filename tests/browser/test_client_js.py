"""Pipecat's own JavaScript client, as it comes from npm, against our server."""

import subprocess
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp import web

from tests.browser.conftest import HERE, microphone, serving

pytestmark = pytest.mark.browser

PAGE = HERE / "client"


@pytest.fixture
def bundle(packages: Path, tmp_path: Path) -> Path:
    """The client and its transport as one script."""
    out = tmp_path / "client.js"
    esbuild = packages / ".bin" / "esbuild"
    command = [str(esbuild), str(PAGE / "client.js"), "--bundle", f"--outfile={out}"]
    subprocess.run(command, check=True, capture_output=True, text=True, cwd=HERE)
    return out


@asynccontextmanager
async def application(bundle: Path, server: str) -> AsyncIterator[str]:
    """A web application of its own with our server behind it, as a proxy puts them."""
    async with aiohttp.ClientSession(server) as http:

        async def forward(request: web.Request) -> web.Response:
            kind = {"Content-Type": request.headers["Content-Type"]}
            body = await request.read()
            async with http.request(request.method, request.path, data=body, headers=kind) as got:
                return web.Response(
                    status=got.status, body=await got.read(), content_type=got.content_type
                )

        app = web.Application()
        for path, file in (("/", PAGE / "index.html"), ("/client.js", bundle)):
            app.router.add_get(path, partial(send, file))
        for path in ("/start", "/api/offer", "/sessions/{session}/api/offer"):
            app.router.add_route("*", path, forward)
        runner = web.AppRunner(app)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        try:
            yield f"http://localhost:{runner.addresses[0][1]}"
        finally:
            await runner.cleanup()


async def send(file: Path, request: web.Request) -> web.FileResponse:
    return web.FileResponse(file)


def texts(call: dict[str, Any], event: str) -> list[str]:
    return [data["text"] for name, data in call["told"] if name == event]


async def test_the_stock_client_calls(
    drive: Callable[..., Any], bundle: Path, tmp_path: Path
) -> None:
    wav = await microphone(tmp_path / "caller.wav", (6.5, "What are your opening hours?", 60.0))
    async with serving() as server, application(bundle, server.url) as url:
        report = await drive("client_calls.mjs", url=f"{url}/", microphone=str(wav))
    assert report["troubles"] == []
    assert server.faults() == []

    for call in (report["talk"], report["camera"]):
        assert call["ready"]["version"].startswith("2.")
        assert call["states"] == ["ready", "disconnected"]
        assert call["loudness"] > 0.02
        names = [name for name, _ in call["told"]]
        assert names.index("botReady") < names.index("botTtsText")
        assert "deviceError" not in names
        assert "error" not in names

    talk = report["talk"]
    finals = [
        data["text"] for name, data in talk["told"] if name == "userTranscript" and data["final"]
    ]
    assert finals == [event["text"] for event in server.events("caller_turn")]
    assert "hours" in finals[0]
    greeting, hours, place = (
        e["text"] for e in server.events("agent_turn") if e["call"] == server.calls()[0]
    )
    said = " ".join(texts(talk, "botTtsText"))
    assert said == f"{greeting} {hours} {place}"
    assert talk["microphone"] is False
    assert talk["about"]["call_id"] == server.calls()[0]
    assert talk["about"]["agent"] == "frontdesk"
    assert "'what is this' is not a request" in talk["unknown"]["error"]
