"""A real Asterisk as registrar, PBX and source of streams: OFFHOOK_ASTERISK names its program, else
it is looked for in PATH. It identifies accounts by the user in From, as its default is."""

import asyncio
import json
import os
import shutil
import wave
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import numpy as np
import pytest

from offhook.media.codecs.resample import Resampler
from offhook.media.leg import LegError
from offhook.media.pcm import RATE_OUT
from offhook.telephony.sip.outgoing_calls_io import Dial
from offhook.telephony.sip.trunks.trunks import Trunk
from offhook.web.app.cli.caller_io import read_audio, spoken, trimmed
from offhook.web.config.config import Config
from offhook.web.edge.edge_io import Edge
from offhook.web.edge.server_io import application
from offhook.web.workers.engines.engines_io import open_synthesizer
from tests.support.ports import free_port
from tests.support.waiting import HANGS_S, until
from tests.telephony.sip.phones import (
    OUR_TONE,
    THEIR_TONE,
    ToneHost,
    endpoint,
    registered,
)

PROGRAM = shutil.which(os.environ.get("OFFHOOK_ASTERISK", "asterisk"))
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        PROGRAM is None, reason="no Asterisk: put it into PATH, or name it by OFFHOOK_ASTERISK"
    ),
]

TARGET_TONE = 620
STRANGER = "4930555"

ACCOUNT = """
[{name}]
type = endpoint
context = numbers
disallow = all
allow = ulaw
auth = {name}
aors = {name}
direct_media = no
allow_transfer = yes
trust_id_inbound = yes
trust_id_outbound = yes
send_pai = yes
[{name}]
type = auth
auth_type = userpass
username = {name}
password = secret
[{name}]
type = aor
max_contacts = 1
remove_existing = yes
"""

FILES = {
    "asterisk.conf": """
[directories]
astetcdir => {etc}
astmoddir => {modules}
astvarlibdir => {data}
astdatadir => {data}
astdbdir => {work}
astkeydir => {work}
astspooldir => {work}
astrundir => {work}
astlogdir => {work}
[options]
verbose = 3
""",
    "modules.conf": "[modules]\nautoload = yes\n",
    "logger.conf": "[logfiles]\nmessages => notice,warning,error,verbose\n",
    "rtp.conf": "[general]\nrtpstart = {rtp}\nrtpend = {rtp_end}\n",
    "pjsip.conf": """
[udp]
type = transport
protocol = udp
bind = 127.0.0.1:{port}
"""
    + "".join(ACCOUNT.format(name=name) for name in ("offhook", "caller", "target")),
    # 300 presses the keys of the number that calls, 301 is busy. Who calls us by 700 is a stranger.
    "extensions.conf": """
[numbers]
exten => 200,1,Dial(PJSIP/target,20)
exten => 300,1,Answer()
 same => n,Wait(1)
 same => n,SendDTMF(${{CALLERID(num)}},150,120)
 same => n,Wait(30)
exten => 301,1,Hangup(17)
exten => 700,1,Set(CALLERID(all)="Ann Lee" <{stranger}>)
 same => n,Dial(PJSIP/offhook,20)

[streams]
exten => ask,1,Answer()
 same => n,MixMonitor({work}/stream-mix.wav,r({work}/stream-hears.wav))
 same => n,Wait(2)
 same => n,Playback({work}/question)
 same => n,Wait(12)
 same => n,Hangup()
""",
    "http.conf": "[general]\nenabled = no\n",
    "chan_websocket.conf": "[general]\n",
    "websocket_client.conf": """
[offhook]
type = websocket_client
uri = {url}
protocols = media
connection_type = per_call_config
tls_enabled = no
""",
}


class Asterisk:
    """One that runs."""

    def __init__(self, work: Path, port: int, settings: Path) -> None:
        self.work, self.port = work, port
        self._settings = settings

    async def does(self, command: str) -> str:
        """A command of its console."""
        assert PROGRAM is not None
        process = await asyncio.create_subprocess_exec(
            *(PROGRAM, "-C", str(self._settings), "-rx", command),
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
        )
        output, _ = await asyncio.wait_for(process.communicate(), HANGS_S)
        return output.decode(errors="replace")

    async def quiet(self) -> None:
        """No call is left."""
        async with asyncio.timeout(HANGS_S):
            while "0 active channels" not in await self.does("core show channels count"):
                await asyncio.sleep(0.2)


def directories(program: str) -> dict[str, Path]:
    """Of its modules and its data, as it is installed."""
    prefix = Path(program).resolve().parent.parent
    modules = [prefix / "lib/asterisk/modules", *Path("/usr/lib").glob("**/asterisk/modules")]
    data = (prefix / "var/lib/asterisk", Path("/usr/share/asterisk"), Path("/var/lib/asterisk"))
    return {
        "modules": next(path for path in modules if path.is_dir()),
        "data": next(path for path in data if (path / "documentation").is_dir()),
    }


@asynccontextmanager
async def asterisk(work: Path, url: str = "ws://127.0.0.1:9/") -> AsyncIterator[Asterisk]:
    """`url`: where its streams go by WebSocket."""
    assert PROGRAM is not None
    etc, rtp = work / "etc", free_port()
    etc.mkdir()
    values = {
        "etc": etc,
        "work": work,
        **directories(PROGRAM),
        "port": free_port(),
        "rtp": rtp,
        "rtp_end": rtp + 200,
        "stranger": STRANGER,
        "url": url,
    }
    for name, text in FILES.items():
        (etc / name).write_text(text.format(**values))
    with (work / "output").open("wb") as log:
        process = await asyncio.create_subprocess_exec(
            *(PROGRAM, "-f", "-C", str(etc / "asterisk.conf")),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=log,
            stderr=log,
        )
        running = Asterisk(work, int(str(values["port"])), etc / "asterisk.conf")
        try:
            async with asyncio.timeout(HANGS_S):
                while "fully booted" not in await running.does("core waitfullybooted"):
                    assert process.returncode is None, (work / "output").read_text()
                    await asyncio.sleep(0.2)
            yield running
        finally:
            if process.returncode is None:
                process.terminate()
            await process.wait()


@asynccontextmanager
async def account(pbx: Asterisk, name: str, hz: float, **settings: object) -> AsyncIterator[tuple]:
    """An endpoint of ours that is registered by password, and whose agent is a tone."""
    trunk = Trunk(
        "pbx",
        server=f"127.0.0.1:{pbx.port}",
        username=name,
        password="secret",
        register=True,
        codecs=("pcmu",),
        **settings,
    )
    async with endpoint(ToneHost(hz), trunks=(trunk,)) as (sip, host):
        await registered(sip)
        yield sip, host


@asynccontextmanager
async def a_stranger_calls(work: Path, **settings: object) -> AsyncIterator[tuple]:
    """Our side of the call, and the two other parties: who calls, and who may be given the call."""
    async with (
        asterisk(work) as pbx,
        account(pbx, "offhook", OUR_TONE, **settings) as (sip, host),
        account(pbx, "target", TARGET_TONE) as (_, target),
        account(pbx, "caller", THEIR_TONE) as (stranger, caller),
    ):
        stranger.dial(Dial("700"))
        talk, theirs = await host.talk(seconds=HANGS_S), await caller.talk(seconds=HANGS_S)
        await until(lambda: talk.hears(THEIR_TONE) and theirs.hears(OUR_TONE))
        yield talk, theirs, target
        await theirs.leg.hang_up("enough")
        await pbx.quiet()
        await until(lambda: not sip.calls and host.records)
        assert sip.user_agent.sessions == 0


@pytest.mark.parametrize("transfer", ["blind", "attended", "bridge"])
async def test_a_strangers_call_is_given_to_somebody_at_the_pbx(tmp_path, transfer):
    settings = {"transfer": transfer, "trust_identity": True}
    async with a_stranger_calls(tmp_path, **settings) as (talk, theirs, target):
        info = talk.leg.info
        assert (info.caller, info.caller_name) == (STRANGER, "Ann Lee")
        if transfer == "bridge":
            talk.stop()
            talk.leg.playout.flush()
        async with asyncio.timeout(HANGS_S):
            await talk.leg.transfer("200")
        taken = await target.talk(seconds=HANGS_S)
        assert (transfer == "bridge") is (talk.leg.closed is None)
        await until(lambda: theirs.hears(TARGET_TONE) and taken.hears(THEIR_TONE))
        assert taken.leg.info.caller == STRANGER


@pytest.mark.parametrize("transfer", ["attended", "bridge"])
async def test_a_busy_target_leaves_the_call_as_it_was(tmp_path, transfer):
    async with a_stranger_calls(tmp_path, transfer=transfer) as (talk, theirs, _):
        with pytest.raises(LegError, match=r"busy|486"):
            async with asyncio.timeout(HANGS_S):
                await talk.leg.transfer("301")
        assert talk.leg.closed is None
        before = len(talk.sound)
        await until(lambda: len(talk.sound) > before + 32_000)
        assert talk.hears(THEIR_TONE)
        assert theirs.hears(OUR_TONE)


async def test_the_number_that_is_to_be_shown_is_shown(tmp_path):
    async with (
        asterisk(tmp_path) as pbx,
        account(pbx, "offhook", OUR_TONE) as (sip, host),
    ):
        sip.dial(Dial("300", caller="0123456789"))
        talk = await host.talk(seconds=HANGS_S)
        await until(lambda: talk.keys == "0123456789")
        await talk.leg.hang_up("done")
        await pbx.quiet()


async def test_who_is_busy_is_busy(tmp_path):
    async with (
        asterisk(tmp_path) as pbx,
        account(pbx, "offhook", OUR_TONE) as (sip, host),
    ):
        call = sip.dial(Dial("301"))
        ended = [progress async for progress in call.events()][-1]
        assert (ended.status, ended.reason) == (486, "busy")
        await until(lambda: host.records)


# --- streams ---


async def question(path: Path) -> None:
    """What the caller says, as Asterisk plays it: 8 kHz."""
    synthesizer = open_synthesizer()
    await synthesizer.start()
    pcm = trimmed(await spoken(synthesizer, "What are your opening hours?"))
    await synthesizer.close()
    with wave.open(str(path), "wb") as file:
        file.setparams((1, 2, 8000, 0, "NONE", ""))
        file.writeframes(Resampler(RATE_OUT, 8000).process(pcm).tobytes())


@pytest.mark.parametrize(
    ("provider", "channel"),
    [
        ("audiosocket", "AudioSocket/127.0.0.1:{port}/{uuid}/c(slin)"),
        ("chan_websocket", "WebSocket/offhook/c(slin16)"),
    ],
)
async def test_asterisk_streams_a_call_and_its_caller_interrupts(tmp_path, provider, channel):
    from aiohttp.test_utils import TestServer

    port = free_port()
    config = Config.model_validate(
        {
            "server": {"port": 0},
            "webrtc": {"addresses": ["127.0.0.1"]},
            "recording": {"enabled": True, "directory": tmp_path / "calls"},
            "carriers": [{"provider": provider, "name": "asterisk", "port": port}],
        }
    )
    await question(tmp_path / "question.wav")
    edge = Edge(config)
    await edge.start()
    server = TestServer(application(edge))
    await server.start_server()
    try:
        url = str(server.make_url("/carriers/asterisk/stream")).replace("http", "ws", 1)
        async with asterisk(tmp_path, url) as pbx:
            name = channel.format(port=port, uuid="40325ec2-5efd-4bd3-805f-53576e581d13")
            await pbx.does(f"channel originate {name} extension ask@streams")
            await until(lambda: edge.legs)
            await until(lambda: not edge.legs)
            await pbx.quiet()
        (timeline,) = (tmp_path / "calls").glob("*.jsonl")
        events = [json.loads(text) for text in timeline.read_text().splitlines()]
    finally:
        await server.close()
        await edge.close()
    kinds = [event["kind"] for event in events]
    assert "interrupted" in kinds
    answer = [event["text"].lower() for event in events if event["kind"] == "agent_turn"][-1]
    assert "open" in answer
    assert "sunday" in answer
    assert pauses(read_audio(tmp_path / "stream-hears.wav")) >= 1  # the greeting, cut; the answer


def pauses(pcm: np.ndarray) -> int:
    """Of half a second and more, between sounds."""
    steps = pcm[: len(pcm) // 2400 * 2400].reshape(-1, 2400).astype(float)  # of 100 ms
    loud = "".join("#" if level > 300 else "." for level in np.sqrt((steps**2).mean(1)))
    return loud.strip(".").count("#.....")
