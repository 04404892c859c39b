"""The unit of systemd, as systemd reads it."""

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from offhook.web.config.server import Server
from offhook.web.edge import processes_io
from offhook.web.edge.calls import draining_io
from tests.deploy.servers import DEPLOY
from tests.support.waiting import HANGS_S

UNIT = DEPLOY / "systemd" / "offhook.service"


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="without systemd-analyze")
def test_systemd_understands_every_line(tmp_path: Path) -> None:
    unit = tmp_path / "offhook.service"
    unit.write_text(UNIT.read_text().replace("/opt/offhook/bin/offhook", sys.executable))
    command = ["systemd-analyze", "verify", "--man=no", str(unit)]
    checked = subprocess.run(command, capture_output=True, text=True, timeout=HANGS_S, check=False)
    of_ours = [line for line in checked.stderr.splitlines() if "offhook" in line]
    assert of_ours == []


def test_it_waits_for_the_last_goodbye() -> None:
    found = re.search(r"^TimeoutStopSec=(\d+)$", UNIT.read_text(), re.M)
    assert found is not None
    drain = Server().drain_seconds + draining_io.FAREWELL_S
    assert int(found[1]) >= drain + processes_io.END_S
    assert "ExecReload=/bin/kill -HUP $MAINPID" in UNIT.read_text()
