"""Kamailio in front of edges on this machine, configured like deploy/kamailio."""

import asyncio
import signal
import tempfile
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from benchmarks.processes.own_server import HOST, free_port
from benchmarks.processes.process import cpu_s
from offhook.processes.child_io import ending_with_us

CONFIGURATION = Path(__file__).parents[2] / "deploy" / "kamailio" / "kamailio.cfg"
START_S = 10.0
LOOK_S = 0.05


class KamailioError(RuntimeError):
    """Raised if Kamailio is missing or does not start; the message ends with its output."""


@dataclass(frozen=True)
class Kamailio:
    """A running Kamailio."""

    port: int
    """SIP port on 127.0.0.1, UDP and TCP."""
    edges: tuple[int, ...]
    """SIP ports of the edges."""
    pid: int
    control: str
    """Socket for kamcmd."""
    log: Path

    def cpu_s(self) -> float:
        """CPU time in s of all its processes so far."""
        return cpu_s(self.pid)


@asynccontextmanager
async def kamailio(
    edges: Sequence[int],
    trunks: Sequence[str] = (HOST,),
    max_load: int = 0,
    **defines: str | int,
) -> AsyncIterator[Kamailio]:
    """`edges` are SIP ports on 127.0.0.1, `trunks` addresses that may call and be called,
    `max_load` the maximum calls of an edge (0: unlimited), and `defines` values of the
    configuration, with strings quoted. Raises KamailioError."""
    if not CONFIGURATION.exists():
        raise KamailioError(f"{CONFIGURATION} is not there: this needs a checkout")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "edges").write_text(
            "".join(
                f"1 sip:{HOST}:{port} 0 0 duid=edge-{number};maxload={max_load}\n"
                for number, port in enumerate(edges, 1)
            )
        )
        (folder / "trunks").write_text("".join(f"1 {address} 32 0 test\n" for address in trunks))
        control, port = f"unix:{folder}/control", free_port()
        defines = {
            "LISTEN_PORT": port,
            "EDGES_FILE": f'"{folder}/edges"',
            "TRUNKS_FILE": f'"{folder}/trunks"',
            "CONTROL": f'"{control}"',
            **defines,
        }
        log = folder / "log"
        with log.open("wb") as output:
            try:
                process = await asyncio.create_subprocess_exec(
                    *("kamailio", "-f", str(CONFIGURATION), "-DD", "-E", "-m", "64", "-M", "8"),
                    *("-P", f"{folder}/pid", "-w", name),
                    *(word for key, value in defines.items() for word in ("-A", f"{key}={value}")),
                    stdin=asyncio.subprocess.DEVNULL,
                    stdout=output,
                    stderr=output,
                    preexec_fn=ending_with_us(signal.SIGTERM),  # it ends its own children
                )
            except FileNotFoundError:
                raise KamailioError("kamailio is not installed") from None
        try:
            if not await _listens(port, process):
                raise KamailioError(f"kamailio did not start:\n{log.read_text()[-2000:]}")
            yield Kamailio(port, tuple(edges), process.pid, control, log)
        finally:
            if process.returncode is None:
                process.terminate()
            await process.wait()


async def _listens(port: int, process: asyncio.subprocess.Process) -> bool:
    give_up = asyncio.get_running_loop().time() + START_S
    while process.returncode is None and asyncio.get_running_loop().time() < give_up:
        with suppress(OSError):
            _, writer = await asyncio.open_connection(HOST, port)
            writer.close()
            return True
        await asyncio.sleep(LOOK_S)
    return False
