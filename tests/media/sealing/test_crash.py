"""A process that is killed while it records leaves what can be played."""

import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from offhook.media.pcm import PACKET_MS
from offhook.media.sealing.files_io import LocalFile, StoredFile
from offhook.media.sealing.keyring import Keyring, new_key
from tests.media.test_recording import decode

SECONDS = 12
RECORDS = """
import os, signal, sys, time
from pathlib import Path
import numpy as np
from offhook.media.recording_io import RecordingWriter
from offhook.media.sealing.keyring import Keyring
from offhook.media.pcm import SAMPLES_IN, SAMPLES_OUT

keys = Keyring.parse(sys.argv[2]) if sys.argv[2] else None
writer = RecordingWriter(Path(sys.argv[1]), keys=keys)
recorder = writer.open("call", time.time())
noise = np.random.default_rng(1)
for second in range(int(sys.argv[3])):
    for _ in range(50):
        heard = noise.normal(0, 3000, SAMPLES_IN).astype(np.int16)
        recorder.tick(heard, noise.normal(0, 3000, SAMPLES_OUT).astype(np.int16))
    recorder.timeline.write("note", recorder.now_ms, text="x" * 1500)
    while recorder._queue:
        time.sleep(0.05)
os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.parametrize("sealed", [True, False])
def test_a_killed_process_costs_the_last_chunk(tmp_path: Path, sealed: bool) -> None:
    key = new_key() if sealed else ""
    command = (sys.executable, "-c", RECORDS, str(tmp_path), key, str(SECONDS))
    assert subprocess.run(command, check=False).returncode == -signal.SIGKILL
    suffix = ".sealed" if sealed else ""
    stored = StoredFile(
        LocalFile(tmp_path / f"call.ogg{suffix}"), Keyring.parse(key) if sealed else None
    )
    assert stored.complete != sealed
    sound = decode(stored.read(0, stored.length))
    stored.close()
    assert sound.shape[1] / 48_000 > SECONDS - 4
    stored = StoredFile(
        LocalFile(tmp_path / f"call.jsonl{suffix}"), Keyring.parse(key) if sealed else None
    )
    lines = stored.read(0, stored.length).splitlines()
    stored.close()
    assert json.loads(lines[0])["kind"] == "header"
    assert json.loads(lines[-2])["at_ms"] >= (SECONDS - 5) * 50 * PACKET_MS
