"""Desks: phones of extensions in web pages, of which Chromium plays several at a real server."""

import asyncio
from pathlib import Path

import pytest
from aiohttp import ClientSession

from tests.browser.conftest import serving
from tests.browser.firefox_io import firefox
from tests.support.cutting import way_to
from tests.support.ports import free_port
from tests.support.waiting import until
from tests.telephony.sip.phones import Baresip, is_tone, needs_baresip

pytestmark = pytest.mark.browser

PEOPLE = {"101": "Ann", "102": "Bob", "103": "Cleo"}


def config(folder: Path, more: str = "") -> str:
    """The file of a server with three extensions, and an agent at 500."""
    people = "".join(
        f'[sip.extensions.{number}]\npassword = "pass-{number}"\nname = "{name}"\n'
        for number, name in PEOPLE.items()
    )
    file = folder / "offhook.toml"
    file.write_text(
        f"""
[agent]
kind = "silent"

[sip]
udp = 0
tcp = 0

{people}
[[sip.routes]]
called = "500"
{more}"""
    )
    return str(file)


@pytest.mark.parametrize("processes", ["1", pytest.param("2", marks=pytest.mark.slow)])
async def test_a_team_calls_holds_and_transfers(tmp_path, drive, processes):
    settings = {"OFFHOOK_SERVER_PROCESSES": processes, "OFFHOOK_SERVER_MAX_CALLS": "8"}
    async with serving("--config", config(tmp_path), **settings) as server:
        told = await drive("desk.mjs", url=server.url)
        wrong = [fault for fault in server.faults() if "PocketSphinx" not in fault]
        assert wrong == ["desk: a wrong password from 127.0.0.1"]
    said = told["said"]
    assert said == {
        **{name: [] for name in said if name.startswith("axe")},
        "talk": [620, 440],
        "muted": 0,
        "held": 0,
        "again": [620, 440],
        "transferred": [740, 440],
        "asked": [740, 0],
        "consulted": [740, 440],
        "declined": "102: Declined.",
        "missed": "Ann: Missed.",
        "unknown": "999: You may not call this number.",
        "own": "That is your own number: dial another one.",
        "left": "Ann: The other side has hung up.",
    }
    turns = server.events("caller_turn")  # of the call to the agent, and of the one given to it
    assert ["pressed" in turn["text"] for turn in turns] == [True, True]
    # A wrong password; and what is asked of a call that is over by then.
    expected = "(Unauthorized)", "(Not Found)"
    assert [trouble for trouble in told["troubles"] if not trouble.endswith(expected)] == []


async def test_a_server_that_comes_back_has_its_phones_back(tmp_path, drive):
    file, port = config(tmp_path), str(free_port())
    stopped, back = tmp_path / "stopped", tmp_path / "back"
    async with serving("--config", file, OFFHOOK_SERVER_PORT=port) as server:
        options = {"url": server.url, "stopped": str(stopped), "back": str(back)}
        driving = asyncio.create_task(drive("desk_restart.mjs", **options))
        await until(lambda: stopped.exists() or driving.done())
    async with serving("--config", file, OFFHOOK_SERVER_PORT=port) as server:
        back.touch()
        told = await driving
    assert told == {"offline": "No connection", "talk": [620, 440]}


async def test_a_desk_whose_connection_is_cut_talks_on(tmp_path, drive):
    async with (
        serving("--config", config(tmp_path)) as server,
        way_to(int(server.url.rpartition(":")[2])) as way,
    ):
        cut, healed = tmp_path / "cut", tmp_path / "healed"
        options = {"url": f"http://localhost:{way.port}", "cut": str(cut), "healed": str(healed)}
        driving = asyncio.create_task(drive("desk_cut.mjs", **options))
        await until(lambda: cut.exists() or driving.done())
        way.cut()
        came = "registered phones: 1"
        await until(lambda: sum(came in line["message"] for line in server.log) == 4)
        healed.touch()
        told = await driving
    assert told == {"before": [620, 440], "meanwhile": [620, 440], "held": 0, "over": True}


@needs_baresip
async def test_a_desk_calls_a_telephone_on_another_desk(tmp_path, drive):
    port = str(free_port())
    account = (
        f"<sip:102@127.0.0.1:{port};transport=udp>;auth_user=102;auth_pass=pass-102"
        ";regint=60;answermode=auto"
    )
    phone = Baresip(tmp_path / "102", account=account, hz=620)
    async with (
        serving("--config", config(tmp_path), OFFHOOK_SIP_UDP=port) as server,
        phone.running(),
    ):
        await until(lambda: any("extension 102: reg" in line["message"] for line in server.log))
        told = await drive("desk_call.mjs", url=server.url)
        await phone.event("CALL_CLOSED")
    assert told == {"heard": 620}
    heard = phone.heard()
    assert any(is_tone(heard[at : at + 4000], 8000, 440) for at in range(0, len(heard), 2000))


PEERS = """() => {
  window.peers = [];
  const Native = RTCPeerConnection;
  window.RTCPeerConnection = function (settings) {
    const peer = new Native(settings);
    peers.push(peer);
    return peer;
  };
}"""
HEARD = """peers.at(-1).getStats().then((all) =>
  [...all.values()].find(({ type }) => type === "inbound-rtp")?.totalAudioEnergy)"""
"""The energy of what was heard in the latest call (W3C webrtc-stats)."""


@pytest.mark.slow
async def test_a_desk_in_firefox_calls_and_is_called(program, tmp_path):
    profile = tmp_path / "profile"
    profile.mkdir()
    shows = "document.querySelector('.call')?.textContent.includes('{}')".format
    async with (
        serving("--config", config(tmp_path), OFFHOOK_AGENT_KIND="frontdesk") as server,
        firefox(program, profile) as page,
        ClientSession(server.url) as http,
    ):
        await page.before_every_page(PEERS)
        await page.goto(f"{server.url}/desk")
        await page.until("document.getElementById('password')")
        await page.evaluate("document.getElementById('number').value = '101'")
        await page.evaluate("document.getElementById('password').value = 'pass-101'")
        await page.click(".sign-in button")
        await page.until("document.getElementById('line').dataset.state === 'up'")
        await page.evaluate("document.getElementById('dial').value = '500'")
        await page.click("#call")
        for _ in range(2):  # called the second time
            await page.until(shows("Connected"))
            await page.until(f"(await {HEARD}) > 0.001")
            await page.click("[data-does=hold]")
            await page.until(shows("On hold"))
            await page.click("[data-does=hold]")
            await page.until(shows("Connected"))
            before = await page.evaluate("peers.length")
            await page.click("[data-does=hang-up]")
            await page.until("!document.querySelector('.call')")
            async with http.post(
                "/calls", json={"to": "101", "machine_detection": "off"}
            ) as placed:
                assert placed.status == 201
            await page.until(shows("Calls you"))
            await page.click("[data-does=answer]")
            await page.until(f"peers.length > {before}")
        troubles = page.troubles
    assert troubles == []
