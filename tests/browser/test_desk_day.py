"""A day of a team without a PBX: two desks in Chromium, baresip and linphonec, one queue."""

import asyncio
import json
from pathlib import Path

import pytest

from tests.browser.conftest import Server, serving
from tests.support.ports import free_port
from tests.support.waiting import until
from tests.telephony.sip.linphone import Linphone, needs_linphone
from tests.telephony.sip.phones import Baresip, is_tone, needs_baresip

pytestmark = [pytest.mark.browser, pytest.mark.slow, needs_baresip, needs_linphone]

TALK_S = 4
TEAM = Path(__file__).parents[2] / "examples/team.toml"


class Telephones:
    """Does with the two telephones what the page's script asks for."""

    def __init__(
        self, folder: Path, server: Server, port: int, cleo: Baresip, dan: Linphone
    ) -> None:
        self._folder, self._server, self._port = folder, server, port
        self._cleo, self._dan = cleo, dan
        self._ends = 0

    async def work(self) -> None:
        number = 1
        while True:
            await until(lambda n=number: (self._folder / f"{n}.asked").exists())
            who, *does = json.loads((self._folder / f"{number}.new").read_text())
            await getattr(self, f"_{who}_{does[0].replace(' ', '_')}")(*does[1:])
            (self._folder / f"{number}.done").touch()
            number += 1

    async def _dan_calls(self, number: str) -> None:
        connected = self._dan.output.count("connected")
        await self._dan.command(f"call {number}")
        await self._dan.says("connected", connected + 1)
        await self._dan.plays()

    async def _dan_is_alone(self) -> None:
        self._ends += 1
        await self._dan.says(" ended ", self._ends)

    async def _dan_hangs_up(self) -> None:
        await self._dan.command("terminate")
        await self._dan_is_alone()

    async def _dan_leaves(self) -> None:
        await self._dan.command("unregister")
        await until(lambda: "extension 104: registered phones: 0" in str(self._server.log))

    async def _cleo_calls(self, number: str) -> None:
        await self._cleo.dial(f"sip:{number}@127.0.0.1:{self._port}")

    async def _cleo_hears_and_hangs_up(self, hz: int) -> None:
        await self._dan.plays()
        await asyncio.sleep(TALK_S)
        await self._cleo.hang_up()
        heard = self._cleo.heard()[-8000 * TALK_S :]
        assert any(is_tone(heard[at : at + 4000], 8000, hz) for at in range(0, len(heard), 2000))


async def test_a_day(tmp_path, drive):
    port, folder = free_port(), tmp_path / "script"
    folder.mkdir()
    account = (
        f"<sip:103@127.0.0.1:{port};transport=udp>;auth_user=103;auth_pass=cleo-has-a-telephone"
        ";regint=60;answermode=auto"
    )
    cleo = Baresip(tmp_path / "103", account=account, hz=740)
    dan = Linphone(tmp_path / "104", "104", "dan-has-a-telephone", port, 870)
    settings = {
        "OFFHOOK_SIP_UDP": str(port),
        "OFFHOOK_RECORDS_URL": f"sqlite:///{tmp_path}/calls.db",
        "OFFHOOK_RECORDS_SPOOL": str(tmp_path / "spool"),
        "OFFHOOK_RECORDING_DIRECTORY": str(tmp_path / "recordings"),
    }
    async with (
        serving("--config", str(TEAM), **settings) as server,
        cleo.running(),
        dan.running(),
    ):
        for number in ("103", "104"):
            await until(lambda n=number: f"extension {n}: reg" in str(server.log))
        telephones = asyncio.create_task(Telephones(folder, server, port, cleo, dan).work())
        driving = asyncio.create_task(drive("desk_day.mjs", url=server.url, folder=str(folder)))
        await asyncio.wait((telephones, driving), return_when=asyncio.FIRST_COMPLETED)
        if not driving.done():
            driving.cancel()
            telephones.result()
        telephones.cancel()
        told = await driving
    assert told["said"] == {
        "briefing": "Hello, I have a call for you from Dan, 104.",
        "ann hears dan": 870,
        "ann asks bob": [620, 440],
        "bob hears dan": 870,
        "ann hears cleo": 740,
        "ann has whom bob passes on": 870,
        "ann calls cleo": 740,
    }
    assert not told["troubles"]
    agents = [line["agent"] for line in server.events("call_started") if line["edge"] == "sip"]
    assert agents == [*["announcement", "briefing"] * 3, "voicemail"]
