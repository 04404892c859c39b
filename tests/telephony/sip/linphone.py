"""linphonec, a telephone of another project that is worked from its command line."""

import asyncio
import contextlib
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from tests.support.ports import free_port
from tests.telephony.sip.phones import ENDS_S, write_tone

needs_linphone = pytest.mark.skipif(
    not shutil.which("linphonec"), reason="linphonec is not installed: apt-get install linphone-cli"
)


class Linphone:
    """A phone of an extension: says a tone, answers by itself."""

    def __init__(self, directory: Path, number: str, password: str, port: int, hz: float) -> None:
        """`port` is the server's, of UDP at this machine."""
        self._directory = directory
        (directory / ".local/share/linphone").mkdir(parents=True)
        write_tone(directory / "tone.wav", hz, 16_000)
        (directory / "config").write_text(
            f"""[sip]
default_proxy=0
sip_port={free_port()}
sip_tcp_port=0
[proxy_0]
reg_proxy=<sip:127.0.0.1:{port}>
reg_identity=sip:{number}@127.0.0.1:{port}
reg_sendregister=1
[auth_info_0]
username={number}
passwd={password}
[rtp]
audio_rtp_port={free_port(2)}
"""
        )
        self._log = directory / "log"
        self._process: asyncio.subprocess.Process

    @asynccontextmanager
    async def running(self) -> AsyncIterator["Linphone"]:
        with self._log.open("wb") as log:
            self._process = await asyncio.create_subprocess_exec(
                *("linphonec", "-c", "config", "-a", "-d", "0"),
                cwd=self._directory,
                env={"HOME": str(self._directory), "PATH": "/usr/bin:/bin"},
                stdin=asyncio.subprocess.PIPE,
                stdout=log,
                stderr=log,
            )
            try:
                await self.command("soundcard use files")
                yield self
            finally:
                with contextlib.suppress(ConnectionError):
                    await self.command("quit")
                try:
                    async with asyncio.timeout(ENDS_S):
                        await self._process.wait()
                except TimeoutError:
                    self._process.kill()
                    await self._process.wait()

    async def command(self, words: str) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(f"{words}\n".encode())
        await self._process.stdin.drain()

    @property
    def output(self) -> str:
        return self._log.read_text(errors="replace")

    async def says(self, words: str, times: int = 1, seconds: float = 60) -> None:
        """Wait until it has printed this so often."""
        async with asyncio.timeout(seconds):
            while self.output.count(words) < times:
                await asyncio.sleep(0.05)

    async def plays(self) -> None:
        """Have the far end hear the tone from now on."""
        await self.command(f"play {self._directory}/tone.wav")
