"""Garbage into the compiled path of packets: nothing is raised, read or written out of bounds."""

import shlex
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

from tests.fuzz import packets, sanitized
from tests.media.native.paths import needs_compiled, path


@needs_compiled
def test_garbage_comes_to_the_same_on_both_paths() -> None:
    found = []
    for compiled in (False, True):
        with path(compiled):
            found.append(packets.run(len(packets.KINDS) * packets.CALL_PACKETS, 6))
    assert found[0] == found[1]
    assert len(found[0]) == len(packets.KINDS) + 6
    assert min(found[0].values()) > 20


@pytest.mark.slow
@pytest.mark.skipif(
    shutil.which("cc") is None or not Path(sysconfig.get_path("include"), "Python.h").exists(),
    reason="no C compiler here",
)
@pytest.mark.parametrize(
    "fuzzer",
    [
        "tests.fuzz.packets --packets 100000",
        "pytest tests/media/native -k 'not compiler and not demanded'",
        "pytest tests/signaling/test_compiled_port.py",
        "pytest tests/telephony/sip/media/test_compiled_ports.py",
        "pytest tests/fuzz/test_fuzz.py -k 'a_leg_takes or sound_of_another'",
    ],
)
def test_sanitizers_find_nothing(fuzzer: str) -> None:
    """More packets, which take hours: see `sanitized`."""
    try:
        sanitized.environment()
    except (OSError, subprocess.CalledProcessError) as error:
        pytest.skip(str(error))
    command = [sys.executable, "-m", "tests.fuzz.sanitized", *shlex.split(fuzzer)]
    done = subprocess.run(command, cwd=sanitized.ROOT, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]
