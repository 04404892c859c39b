"""What a server holds while it waits for its first call, and that giving the rest back is safe."""

import json
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from urllib.request import Request, urlopen

import pytest

from offhook.media.memory_io import _as_in_files
from offhook.web.workers.engines.engines_io import at_hand
from tests.support.environment import environment
from tests.support.waiting import HANGS_S

MOST_MB = 136
IDLE_S = 4.0
MOST_WAKES = 2
"""In IDLE_S: five in ten seconds."""

pytestmark = pytest.mark.skipif(
    not Path("/proc/self/smaps_rollup").exists(), reason="the system does not tell"
)


def running(
    folder: Path, says: str, *command: str, **settings: str
) -> AbstractContextManager[tuple[int, str]]:
    """The process and the address of an `offhook`, once it `says` where it is. With -u it is not
    forked from a process that has imported more than it needs."""
    return running_python(folder, says, "-u", "-m", "offhook", *command, **settings)


@contextmanager
def running_python(
    folder: Path, says: str, *words: str, **settings: str
) -> Iterator[tuple[int, str]]:
    log = folder / "log"
    with log.open("wb") as output:
        process = subprocess.Popen(
            [sys.executable, *words],
            cwd=folder,
            env=environment(**settings),
            stderr=output,
        )
    try:
        deadline = time.monotonic() + HANGS_S
        while (found := re.search(rf"{says} (\S+)", log.read_text())) is None:
            assert process.poll() is None, log.read_text()
            assert time.monotonic() < deadline, log.read_text()
            time.sleep(0.05)
        yield process.pid, found[1]
    finally:
        process.terminate()
        process.wait(20)


@pytest.fixture
def server(tmp_path: Path) -> Iterator[tuple[int, str]]:
    """The process and the address of an edge whose recogniser is a worker that is not there."""
    settings = {
        "OFFHOOK_SERVER_PORT": "0",
        "OFFHOOK_ASR_ENGINE": "qwen3-asr",
        "OFFHOOK_ASR_URL": f"unix:{tmp_path}/nobody.sock",
        "OFFHOOK_ASR_PRELOAD": "false",
    }
    with running(tmp_path, "call me at", "serve", **settings) as server:
        yield server


def resident_mb(pid: int) -> float:
    rollup = Path(f"/proc/{pid}/smaps_rollup").read_text()
    found = re.search(r"^Rss: +(\d+) kB", rollup, re.MULTILINE)
    assert found is not None
    return int(found[1]) / 1024


def test_a_server_that_waits_for_its_first_call_is_small(server: tuple[int, str]) -> None:
    pid, address = server
    time.sleep(0.5)
    for path in ("", "healthz", "metrics", "page/style.css"):
        with urlopen(f"{address}{path}", timeout=HANGS_S) as answer:
            assert answer.read()
    assert resident_mb(pid) < MOST_MB


RESTS_AFTER_A_SECOND = """
from offhook.web.workers import gateway_io
from offhook.web.app.cli.main import main
gateway_io.REST_S = 1.0
main(["speech", "--listen", "127.0.0.1:0"])
"""


def test_a_gateway_that_was_used_is_small_again(tmp_path: Path) -> None:
    settings = {"OFFHOOK_ASR_ENGINE": "pocketsphinx", "OFFHOOK_TTS_ENGINE": at_hand("embedded")}
    body = json.dumps({"input": "Hello.", "response_format": "mp3"}).encode()
    program = "-c", RESTS_AFTER_A_SECOND
    with running_python(tmp_path, "programs at", *program, **settings) as (pid, address):
        time.sleep(1.0)
        before = resident_mb(pid)
        said = Request(f"{address}/v1/audio/speech", body, {"Content-Type": "application/json"})
        with urlopen(said, timeout=HANGS_S) as answer:
            assert answer.read()
        assert resident_mb(pid) > before + 10
        deadline = time.monotonic() + HANGS_S
        while resident_mb(pid) > before + 10:
            assert time.monotonic() < deadline
            time.sleep(0.5)


def wakes(pid: int) -> int:
    """How often its threads have gone to sleep, all together."""
    status = (path.read_text() for path in Path(f"/proc/{pid}/task").glob("*/status"))
    return sum(int(re.findall(r"^voluntary_ctxt_switches:\t(\d+)", s, re.M)[0]) for s in status)


def test_a_server_with_phones_that_waits_for_its_first_call_sleeps(tmp_path: Path) -> None:
    settings = {"SERVER_PORT": "0", "SIP_UDP": "0", "SIP_TCP": "false"}
    named = {f"OFFHOOK_{name}": value for name, value in settings.items()}
    with running(tmp_path, "call me at", "serve", **named) as (pid, _):
        counts = []
        for _ in range(4):  # it may still be starting
            before = wakes(pid)
            time.sleep(IDLE_S)
            counts.append(wakes(pid) - before)
            if counts[-1] <= MOST_WAKES:
                break
        assert counts[-1] <= MOST_WAKES, counts


def test_what_let_go_of_comes_back_when_it_is_used() -> None:
    used_again = """
import numpy as np
from offhook.media.memory_io import release_code_pages
from tests.web.workers.test_idle_memory import resident_mb
def work():
    return np.fft.rfft(np.sin(np.arange(4096.0))).sum(), np.linalg.svd(np.eye(50) + 2)[1].sum()
before, held = work(), resident_mb("self")
release_code_pages()
assert resident_mb("self") < held - 5, (held, resident_mb("self"))
assert work() == before
"""
    subprocess.run(
        [sys.executable, "-c", used_again], cwd=Path(__file__).parents[3], check=True, timeout=60
    )


def mapping(permissions: str, inode: int, anonymous: int = 0, swapped: int = 0) -> str:
    return (
        f"7f0000001000-7f0000003000 {permissions} 00000000 fe:00 {inode}    /usr/lib/a library.so\n"
        f"Rss: 8 kB\nAnonymous: {anonymous} kB\nSwap: {swapped} kB\nVmFlags: rd ex mr mw me\n"
    )


@pytest.mark.parametrize(
    ("changed", "taken"),
    [
        (mapping("r-xp", 260386), True),
        (mapping("r--p", 260386), True),
        (mapping("r-xp", 260386, anonymous=4), False),  # a debugger's breakpoint
        (mapping("r--p", 260386, swapped=4), False),  # relocated, and swapped out since
        (mapping("rw-p", 260386), False),
        (mapping("r-xp", 0), False),  # code made by a compiler in this process
    ],
)
def test_only_what_is_in_its_file_is_let_go_of(changed: str, taken: bool) -> None:
    around = mapping("rw-p", 0, anonymous=8)
    assert (
        list(_as_in_files(around + changed + around)) == [(0x7F0000001000, 0x7F0000003000)] * taken
    )
