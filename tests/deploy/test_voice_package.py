"""What `make run` installs where there is no voice."""

import stat
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("flite", [True, False])
def test_the_gpl_voice_is_installed_only_where_flite_is_not(tmp_path: Path, flite: bool) -> None:
    """A Python that says whether Flite loads, and notes what it is to install."""
    python = tmp_path / "python"
    python.write_text(
        f'#!/bin/sh\n[ "$1" = -c ] && exit {int(not flite)}\necho "$@" >> {tmp_path}/asked\n'
    )
    python.chmod(python.stat().st_mode | stat.S_IEXEC)
    script = str(ROOT / "deploy/install-voice.sh")
    done = subprocess.run(["sh", script, str(python)], capture_output=True, text=True, check=True)
    if flite:
        assert done.stdout == ""
        assert not (tmp_path / "asked").exists()
    else:
        assert "GPL" in done.stdout
        asked = (tmp_path / "asked").read_text()
        assert "locked.py espeak" in asked
        assert "--require-hashes" in asked
