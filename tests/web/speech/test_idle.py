"""What a gateway holds while nobody asks: itself, and nothing of any engine."""

import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from urllib.request import urlopen

import pytest

from tests.web.test_idle_memory import START_SECONDS, resident_mb
from tests.web.workers import children

MOST_MB = 60
"""Above an interpreter that has imported aiohttp."""
HEAVY = ("torch", "av", "onnxruntime", "pipecat", "pocketsphinx", "openai", "scipy")
ROOT = Path(__file__).parents[3]

pytestmark = pytest.mark.skipif(
    not Path("/proc/self/smaps_rollup").exists(), reason="the system does not tell"
)


def environment() -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if "OFFHOOK_" not in name}
    return {**kept, "PYTHONPATH": str(ROOT)}


@pytest.fixture
def gateway(tmp_path: Path) -> Iterator[tuple[int, str]]:
    """The process and the address of `offhook speech`."""
    log = tmp_path / "log"
    with log.open("wb") as output:
        process = subprocess.Popen(
            [sys.executable, "-m", "offhook.web.cli", "speech", "--listen", "127.0.0.1:0"],
            cwd=tmp_path,
            env=environment(),
            stderr=output,
        )
    try:
        deadline = time.monotonic() + START_SECONDS
        while (found := re.search(r"for programs at (\S+)", log.read_text())) is None:
            assert process.poll() is None, log.read_text()
            assert time.monotonic() < deadline, log.read_text()
            time.sleep(0.05)
        yield process.pid, found[1]
    finally:
        process.terminate()
        process.wait(20)


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
        with urlopen(f"{address}/{path}", timeout=10) as answer:
            assert answer.read()
    assert not children(pid)
    assert resident_mb(pid) < interpreter_mb() + MOST_MB


def test_a_gateway_imports_nothing_of_an_engine() -> None:
    looks = f"""
import sys
import offhook.web.cli, offhook.web.speech.gateway_io
found = [name for name in {HEAVY} if name in sys.modules]
assert not found, found
"""
    subprocess.run([sys.executable, "-c", looks], env=environment(), check=True, timeout=60)
