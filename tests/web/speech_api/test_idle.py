"""What a gateway holds while nobody asks: itself, and nothing of any engine; `-rP` shows it."""

import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from urllib.request import urlopen

import pytest

from tests.support.waiting import HANGS_S
from tests.web.workers.test_idle_memory import environment, resident_mb, running
from tests.web.workers.workers import children

MOST_MB = 60
"""Above an interpreter that has imported aiohttp."""
HEAVY = ("torch", "av", "onnxruntime", "pipecat", "pocketsphinx", "openai", "scipy")

pytestmark = pytest.mark.skipif(
    not Path("/proc/self/smaps_rollup").exists(), reason="the system does not tell"
)


@pytest.fixture
def gateway(tmp_path: Path) -> Iterator[tuple[int, str]]:
    """The process and the address of `offhook speech`."""
    with running(tmp_path, "for programs at", "speech", "--listen", "127.0.0.1:0") as gateway:
        yield gateway


def interpreter_mb() -> float:
    """Of Python with aiohttp."""
    waits = "import aiohttp.web, sys; print('x', flush=True); sys.stdin.read()"
    with subprocess.Popen(
        [sys.executable, "-c", waits], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        process.stdout.readline()
        resident = resident_mb(process.pid)
        process.kill()
    return resident


def test_a_gateway_that_waits_for_its_first_request_is_small(gateway: tuple[int, str]) -> None:
    pid, address = gateway
    time.sleep(0.5)
    for path in ("healthz", "readyz", "metrics", "v1/models", "openapi.json"):
        with urlopen(f"{address}/{path}", timeout=HANGS_S) as answer:
            assert answer.read()
    assert not children(pid)
    gateway_mb, without_mb = resident_mb(pid), interpreter_mb()
    sys.stdout.write(f"{gateway_mb:.0f} MB; Python with aiohttp takes {without_mb:.0f} of them\n")
    assert gateway_mb < without_mb + MOST_MB


def test_a_gateway_imports_nothing_of_an_engine() -> None:
    looks = f"""
import sys
import offhook.web.app.cli.main, offhook.web.workers.gateway_io
found = [name for name in {HEAVY} if name in sys.modules]
assert not found, found
"""
    subprocess.run([sys.executable, "-c", looks], env=environment(), check=True, timeout=HANGS_S)
