"""The servers of compose.yaml as processes of this machine, without their containers."""

import re
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from urllib.request import urlopen

from tests.support.environment import environment
from tests.support.ports import free_port
from tests.support.waiting import HANGS_S

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
COMMANDS = {
    "edge": ("serve", "--port", "0"),
    "speech": ("speech", "--listen", "127.0.0.1:0"),
    "asr": ("worker", "asr", "--engine", "pocketsphinx", "--listen", "127.0.0.1:0"),
    "tts": ("worker", "tts", "--engine", "espeak", "--listen", "127.0.0.1:0"),
}
"""By the names of Prometheus' jobs."""


@contextmanager
def servers(folder: Path) -> Iterator[dict[str, str]]:
    """The address of each job's server; the edge has phones, and one port for WebRTC."""
    (folder / "offhook.toml").write_text(
        f'[sip]\nudp = {free_port()}\ntcp = false\n[tts]\nengine = "espeak"\n'
        f"[webrtc]\nport = {free_port()}\n"
    )
    with ExitStack() as stack:
        started = {job: start(stack, folder, job) for job in COMMANDS}
        yield {job: address(*running) for job, running in started.items()}


def start(
    stack: ExitStack,
    folder: Path,
    job: str,
    python: str | Path = sys.executable,
    path: Path = ROOT,
) -> tuple["subprocess.Popen[bytes]", Path]:
    """The server of a job, until the stack is closed, and its log."""
    log = folder / f"{job}.log"
    process = subprocess.Popen(
        [python, "-m", "offhook", *COMMANDS[job]],
        cwd=folder,
        env=environment(PYTHONPATH=str(path)),
        stderr=stack.enter_context(log.open("wb")),
    )
    stack.callback(process.wait, 20)
    stack.callback(process.terminate)
    return process, log


def address(process: "subprocess.Popen[bytes]", log: Path) -> str:
    """Host and port, once the server listens."""
    deadline = time.monotonic() + HANGS_S
    while (found := re.search(r"at http://(\S+:\d+)", log.read_text())) is None:
        assert process.poll() is None, log.read_text()
        assert time.monotonic() < deadline, log.read_text()
        time.sleep(0.05)
    return found[1]


def series(address: str) -> set[str]:
    """The names of all series that a server has, those without a sample yet included."""
    with urlopen(f"http://{address}/metrics", timeout=HANGS_S) as answer:
        text = answer.read().decode()
    parts = {"histogram": ("_bucket", "_sum", "_count"), "summary": ("_sum", "_count")}
    types = re.findall(r"^# TYPE (\S+) (\w+)$", text, re.MULTILINE)
    return {name + part for name, kind in types for part in parts.get(kind, ("",))}


def named(expression: str) -> set[str]:
    """Our series in a PromQL expression, and those of the process."""
    return set(re.findall(r"\b(?:offhook|process)_\w+", expression))
