"""JavaScript SIP clients in Chromium, over WSS: signalling by our SIP edge, sound by WebRTC."""

import subprocess
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from aiohttp import web

from offhook.telephony.sip.trunks.trunks import Trunk
from tests.browser.conftest import HERE, MICROPHONE_RATE
from tests.telephony.sip.phones import (
    OUR_TONE,
    THEIR_TONE,
    endpoint,
    port_of,
    write_certificate,
    write_tone,
)

pytestmark = pytest.mark.browser


@pytest.fixture(params=["jssip", pytest.param("sipjs", marks=pytest.mark.slow)])
def bundle(request: pytest.FixtureRequest, packages: Path, tmp_path: Path) -> Path:
    """Each of the clients, with a script that uses it."""
    out = tmp_path / "client.js"
    esbuild = packages / ".bin" / "esbuild"
    command = [str(esbuild), str(HERE / f"sip/{request.param}.js"), "--bundle", f"--outfile={out}"]
    subprocess.run(command, check=True, capture_output=True, text=True, cwd=HERE)
    return out


@asynccontextmanager
async def page(bundle: Path):
    async def index(request: web.Request) -> web.FileResponse:
        return web.FileResponse(HERE / "sip/index.html")

    async def script(request: web.Request) -> web.FileResponse:
        return web.FileResponse(bundle)

    app = web.Application()
    app.router.add_get("/", index)
    app.router.add_get("/client.js", script)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    try:
        yield f"http://localhost:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()


async def test_a_browser_calls_talks_presses_keys_holds_and_hangs_up(
    tmp_path, bundle, drive, loopback
):
    certificate, key = write_certificate(tmp_path)
    write_tone(tmp_path / "microphone.wav", THEIR_TONE, MICROPHONE_RATE)
    trunk = Trunk("browsers", username="alice", password="secret")
    settings = {"wss": 0, "certificate": certificate, "key": key, "browsers": True}
    async with endpoint(trunks=(trunk,), **settings) as (sip, host), page(bundle) as url:
        port = port_of(sip, "WSS")
        told = await drive(
            "sip_calls.mjs",
            url=url,
            microphone=str(tmp_path / "microphone.wav"),
            call={
                "server": f"wss://127.0.0.1:{port}",
                "target": "sip:100@browser.invalid",
                "user": "alice",
                "password": "secret",
            },
        )
        talk = host.talks[0]
        assert talk.hears(THEIR_TONE)
    assert told["hz"] == pytest.approx(OUR_TONE, abs=10)
    assert told["again"] == pytest.approx(OUR_TONE, abs=10)
    assert told["takesKeys"]
    assert talk.keys == "7#42*"
    assert told["events"][:2] == ["hold", "unhold"]
    assert not told["troubles"]
    record = host.records[0]
    assert record.ended_by == "remote"
    assert record.transport == "WSS"
    assert record.trunk == "browsers"
