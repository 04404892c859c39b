"""JavaScript SIP clients in Chromium, over WSS: signalling by our SIP edge, sound by WebRTC."""

import asyncio
import subprocess
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from offhook.telephony.sip.endpoint_io import SipEndpoint
from offhook.telephony.sip.trunks.trunks import Trunk
from tests.browser.conftest import HERE, MICROPHONE_RATE
from tests.support.cutting import way_to
from tests.support.waiting import until
from tests.telephony.sip.phones import (
    OUR_TONE,
    THEIR_TONE,
    ToneHost,
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


@asynccontextmanager
async def edge(directory: Path) -> AsyncIterator[tuple[SipEndpoint, ToneHost]]:
    """Ours, for browsers with a password."""
    certificate, key = write_certificate(directory)
    trunk = Trunk("browsers", username="alice", password="secret")
    settings = {"wss": 0, "certificate": certificate, "key": key, "browsers": True}
    async with endpoint(trunks=(trunk,), **settings) as ours:
        yield ours


def call_of(directory: Path, url: str, port: int) -> dict[str, Any]:
    """What a script needs for the browser's call to this port."""
    microphone = directory / "microphone.wav"
    write_tone(microphone, THEIR_TONE, MICROPHONE_RATE)
    server = f"wss://127.0.0.1:{port}"
    who = {"target": "sip:100@browser.invalid", "user": "alice", "password": "secret"}
    return {"url": url, "microphone": str(microphone), "call": {"server": server, **who}}


async def test_a_browser_calls_talks_presses_keys_holds_and_hangs_up(
    tmp_path, bundle, drive, loopback
):
    async with edge(tmp_path) as (sip, host), page(bundle) as url:
        told = await drive("sip_calls.mjs", **call_of(tmp_path, url, port_of(sip, "WSS")))
        talk = host.talks[0]
        assert talk.hears(THEIR_TONE)
    assert told["hz"] == pytest.approx(OUR_TONE, abs=10)
    assert told["again"] == pytest.approx(OUR_TONE, abs=10)
    assert told["takesKeys"]
    assert talk.keys == "7#42*"
    assert told["events"][:3] == ["connected", "hold", "unhold"]
    assert not told["troubles"]
    record = host.records[0]
    assert record.ended_by == "remote"
    assert record.transport == "WSS"
    assert record.trunk == "browsers"


@pytest.mark.parametrize("ways", [["re-INVITE"], ["INFO"], []])
async def test_a_browser_whose_websocket_is_cut_talks_on_and_is_hung_up(
    tmp_path, bundle, drive, loopback, ways
):
    async with (
        edge(tmp_path) as (sip, host),
        way_to(port_of(sip, "WSS")) as way,
        page(bundle) as url,
    ):
        options = {**call_of(tmp_path, url, way.port), "ways": ways}
        driving = asyncio.create_task(drive("sip_cut.mjs", **options))
        talk = await host.talk()
        await until(lambda: talk.keys.startswith("1") and talk.hears(THEIR_TONE))
        way.cut()
        await until(lambda: talk.keys.endswith("2"))
        await until(lambda: talk.hears(THEIR_TONE))
        await talk.leg.hang_up("done")
        told = await driving
    assert way.connections == 2
    assert told["inCall"]
    for when in ("before", "between", "after"):
        assert told[when] == pytest.approx(OUR_TONE, abs=10), when
    assert host.records[0].ended_by == "local"
