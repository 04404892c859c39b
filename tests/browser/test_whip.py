"""WHIP publishers and WHEP players in Chromium, on a page of another site."""

import asyncio
import json
import os
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from tests.browser.conftest import HERE, ROOT, bundled, microphone, page_of_another_site, serving
from tests.support.waiting import HANGS_S

pytestmark = [pytest.mark.browser, pytest.mark.slow]

QUESTION = "What are your opening hours?"


@asynccontextmanager
async def examples() -> AsyncIterator[str]:
    """The folder of examples as a site."""
    app = web.Application()
    app.router.add_static("/", ROOT / "examples")
    runner = web.AppRunner(app)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        yield f"http://localhost:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()


async def test_the_example_is_a_call(drive: Callable[..., Any], tmp_path: Path) -> None:
    line = await microphone(tmp_path / "question.wav", [0.3, QUESTION, 0.5])
    async with (
        examples() as url,
        serving(
            OFFHOOK_SERVER_ORIGINS=json.dumps([url]), OFFHOOK_SERVER_API_KEY="sesame"
        ) as server,
    ):
        asked = {"server": server.url, "key": "sesame", "client": "example", "line": str(line)}
        seen = await drive("whip_page.mjs", url=f"{url}/whip.html", **asked)
    assert server.faults() == []
    assert seen["troubles"] == []
    assert seen["greeting"] > 0.05
    assert seen["answer"] > 0.05
    assert seen["states"] == ["connected"]
    assert "hours" in server.events("caller_turn")[0]["text"]


async def test_the_pages_of_mediamtx(drive: Callable[..., Any], tmp_path: Path) -> None:
    """Its scripts, unmodified: with AV1 beside the voice, data channels at the player, and the key
    with POST alone."""
    folder = os.environ.get("OFFHOOK_MEDIAMTX_PAGES")
    if not folder:
        pytest.skip(
            "set OFFHOOK_MEDIAMTX_PAGES: internal/servers/webrtc of github.com/bluenviron/mediamtx"
        )
    scripts = [
        Path(folder) / "publisher.js",
        Path(folder) / "reader.js",
        HERE / "client" / "mediamtx.js",
    ]
    script = tmp_path / "client.js"
    script.write_text("\n".join(f"{{{file.read_text()}}}" for file in scripts))
    line = await microphone(tmp_path / "question.wav", [0.3, QUESTION, 0.5])
    turn = {"urls": "turn:127.0.0.1:9?transport=udp", "username": "u", "credential": "c"}
    async with (
        page_of_another_site(script) as url,
        serving(
            OFFHOOK_SERVER_ORIGINS=json.dumps([url]),
            OFFHOOK_SERVER_API_KEY="sesame",
            OFFHOOK_WEBRTC_ICE_SERVERS=json.dumps([turn]),
        ) as server,
    ):
        asked = {"server": server.url, "key": "sesame", "room": "r", "client": "mediamtx"}
        seen = await drive("whip_page.mjs", url=f"{url}/", **asked, line=str(line))
        async with asyncio.timeout(HANGS_S):
            while not server.events("call_ended"):
                await asyncio.sleep(0.1)
    assert server.faults() == []
    assert seen["errors"] == []
    assert seen["troubles"] == []
    assert seen["greeting"] > 0.05
    assert seen["answer"] > 0.05
    assert seen["states"] == ["connected", "connected"]
    [asked] = server.events("caller_turn")
    assert "hours" in asked["text"]
    statuses = {(method, status) for method, status in seen["responses"]}
    assert statuses == {("OPTIONS", 204), ("POST", 201), ("PATCH", 204)}
    assert len(server.calls()) == 1


@pytest.mark.parametrize("client", ["stock", "plain"])
async def test_a_page_publishes_and_plays(
    client: str, drive: Callable[..., Any], packages: Path, tmp_path: Path
) -> None:
    """The package whip-whep, which also restarts ICE, and a page without any; with video lines."""
    line = await microphone(tmp_path / "question.wav", [0.3, QUESTION, 0.5])
    servers = [{"urls": "stun:127.0.0.1:9"}] if client == "plain" else []
    async with (
        page_of_another_site(bundled(packages, "whip.js", tmp_path)) as url,
        serving(
            OFFHOOK_SERVER_ORIGINS=json.dumps([url]),
            OFFHOOK_SERVER_API_KEY="sesame",
            OFFHOOK_WEBRTC_ICE_SERVERS=json.dumps(servers),
        ) as server,
    ):
        asked = {"server": server.url, "key": "sesame", "room": "r", "client": client}
        options = {**asked, "line": str(line), "restart": client == "stock"}
        seen = await drive("whip_page.mjs", url=f"{url}/", **options)
        async with asyncio.timeout(HANGS_S):
            while not server.events("call_ended"):
                await asyncio.sleep(0.1)
    assert server.faults() == []
    assert seen["troubles"] == []
    assert seen["greeting"] > 0.05
    assert seen["answer"] > 0.05
    assert seen["states"] == ["connected", "connected"]
    [turn] = server.events("caller_turn")
    assert "hours" in turn["text"]
    [ended] = server.events("call_ended")
    assert ended["reason"] == "the caller hung up"
    statuses = {(method, status) for method, status in seen["responses"]}
    expected = {("POST", 201), ("PATCH", 204), ("DELETE", 200)}
    if client == "stock":
        assert seen["restarted"]
        expected |= {("PATCH", 200)}
    else:
        assert seen["links"] == '<stun:127.0.0.1:9>; rel="ice-server"'
        expected |= {("OPTIONS", 204)}
    assert {s for s in statuses if s[0] != "OPTIONS" or client == "plain"} == expected
