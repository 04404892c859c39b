"""Whisper, where somebody has it: an engine by URL, and a good ear to judge others by.

OFFHOOK_WHISPER names the folder of a model for CTranslate2 (`model.bin`, `tokenizer.json`, …), and
OFFHOOK_WHISPER_PYTHON a Python that has `faster-whisper`, if this one has not.
"""

import os
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from importlib.util import find_spec
from pathlib import Path

from benchmarks.processes.process import program

SERVER = Path(__file__).with_name("whisper_server.py")


def missing() -> str:
    """Returns what Whisper lacks here, in words; "" if nothing."""
    folder = os.environ.get("OFFHOOK_WHISPER", "")
    if not folder or not (Path(folder) / "model.bin").exists():
        return f"no Whisper: OFFHOOK_WHISPER={folder} is not the folder of a CTranslate2 model"
    if "OFFHOOK_WHISPER_PYTHON" not in os.environ and find_spec("faster_whisper") is None:
        return "no faster-whisper: name a Python that has it in OFFHOOK_WHISPER_PYTHON"
    return ""


@asynccontextmanager
async def whisper() -> AsyncIterator[str]:
    """Serves Whisper, and yields the URL for `[asr] url`. Raises ChildError."""
    python = os.environ.get("OFFHOOK_WHISPER_PYTHON", sys.executable)
    threads = {"OMP_NUM_THREADS": "1"}
    command = (python, str(SERVER), os.environ["OFFHOOK_WHISPER"])
    async with program(*command, environment=threads) as server:
        yield f"http://127.0.0.1:{server.hello['port']}/v1"
