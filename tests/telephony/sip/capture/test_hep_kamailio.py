"""What Kamailio's collector, whose reader of HEP is not ours, makes of a call's copies."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from offhook.telephony.sip.capture.hep_settings import HepSettings
from tests.support.ports import free_port
from tests.support.waiting import HANGS_S, until
from tests.telephony.sip.phones import endpoint, needs_kamailio
from tests.telephony.sip.scripted_peer import udp_peer
from tests.telephony.sip.scripted_sound import sound

pytestmark = needs_kamailio

CONFIGURATION = """#!KAMAILIO
debug=0
log_stderror=yes
children=1
disable_tcp=yes
auto_aliases=no
listen=udp:127.0.0.1:{port}
loadmodule "pv.so"
loadmodule "xlog.so"
loadmodule "db_flatstore.so"
loadmodule "sipcapture.so"
modparam("db_flatstore", "flush", 1)
modparam("sipcapture", "db_url", "flatstore:{directory}")
modparam("sipcapture", "hep_capture_on", 1)
modparam("sipcapture", "capture_on", 1)
request_route {{
    xlog("L_ERR", "COPY $si:$sp $proto $rm $ci $fU\\n");
    drop;
}}
onreply_route {{
    xlog("L_ERR", "COPY $si:$sp $proto $rs $ci $fU\\n");
    drop;
}}
"""


@asynccontextmanager
async def collector() -> AsyncIterator[tuple[int, Path]]:
    """Its port, and the file that it writes a line to for each message."""
    with TemporaryDirectory() as folder:  # the collector dies of a path of 60 characters
        async with _collecting(Path(folder)) as (port, log):
            yield port, log


@asynccontextmanager
async def _collecting(directory: Path) -> AsyncIterator[tuple[int, Path]]:
    port, log = free_port(), directory / "collector.log"
    file = directory / "collector.cfg"
    file.write_text(CONFIGURATION.format(port=port, directory=directory))
    with log.open("wb") as out:
        process = await asyncio.create_subprocess_exec(
            *("kamailio", "-f", str(file), "-DD", "-E", "-m", "32", "-M", "4"),
            *("-P", str(directory / "collector.pid"), "-w", str(directory)),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=out,
            stderr=out,
            start_new_session=True,
        )
        try:
            yield port, log
        finally:
            process.terminate()
            await process.wait()


def reports(directory: Path) -> list[list[str]]:
    """The rows that the collector has written of RTCP, column by column."""
    files = directory.glob("rtcp_capture_*.log")
    return [row.split("|") for file in files for row in file.read_text().splitlines()]


async def test_kamailio_reads_the_copies_of_a_call():
    async with collector() as (port, log):
        directory = log.parent
        settings = {"hep": HepSettings(f"127.0.0.1:{port}", agent_id=7, auth_key="key")}
        async with endpoint(**settings) as (sip, host), udp_peer(sip) as far:

            def copies() -> list[list[str]]:
                lines = log.read_text(errors="replace").splitlines()
                return [line.split("COPY ")[1].split() for line in lines if "COPY " in line]

            async def heard() -> None:  # it takes a while to start
                while not copies():
                    far.ask("OPTIONS")
                    await far.response(200)
                    await asyncio.sleep(0.1)

            async with asyncio.timeout(HANGS_S):
                await heard()
            far.call_id = "the-call"
            with sound() as line:
                await far.call(line.sdp())
                await host.talk()
                await until(lambda: reports(directory))
                await far.hang_up()

            def of_call() -> list[list[str]]:
                return [copy for copy in copies() if copy[3] == "the-call"]

            await until(lambda: len(of_call()) >= 5)
        ours = next(p for name, _, p in sip.bound if name == "UDP")
        phone, server = f"127.0.0.1:{far.port}", f"127.0.0.1:{ours}"
        assert [copy[:3] for copy in of_call()] == [
            [phone, "udp", "INVITE"],
            [server, "udp", "200"],
            [phone, "udp", "ACK"],
            [phone, "udp", "BYE"],
            [server, "udp", "200"],
        ]
        assert {copy[4] for copy in of_call()} == {"far"}
        for _, _, call_id, source, _, destination, _, proto, family, kind, node, report in reports(
            directory
        ):
            assert (call_id, source, destination) == ("the-call", "127.0.0.1", "127.0.0.1")
            assert (proto, family, kind, node) == ("1", "2", "3", "homer01:7")
            assert json.loads(report)["type"] in (200, 201)
