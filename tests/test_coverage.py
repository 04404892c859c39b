"""The modules that decide by tables and timers: each branch is run by tests of their own."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
TESTED = {
    "offhook/processes/restarts.py": "tests/processes/test_restarts.py",
    "offhook/pipeline/conversation/turns/turn.py": "tests/pipeline/conversation/turns/test_turn.py",
    "offhook/pipeline/conversation/turns/end_of_turn.py": (
        "tests/pipeline/conversation/turns/test_turn.py"
    ),
    "offhook/pipeline/conversation/turns/utterance_feed.py": (
        "tests/pipeline/conversation/turns/test_utterance_feed.py"
    ),
    "offhook/telephony/sip/sessions/session_table.py": (
        "tests/telephony/sip/sessions/test_session.py"
    ),
    "offhook/telephony/sip/sessions/session_timer.py": (
        "tests/telephony/sip/sessions/test_session_timer.py"
    ),
    "offhook/media/rtp/jitter.py": "tests/media/rtp/test_jitter.py",
    "offhook/web/realtime/conversation/response.py": "tests/web/realtime/conversation",
    "offhook/web/realtime/conversation/input_buffer.py": "tests/web/realtime/conversation",
}

FROZEN = "tests/web/realtime/conversation/test_frozen.py"
"""It gives every event every field, and reaches no branch that others do not."""


@pytest.mark.slow
@pytest.mark.parametrize("tests", sorted(set(TESTED.values())))
def test_each_branch_is_run_by_tests_of_its_own(tests: str, tmp_path: Path) -> None:
    modules = [module for module, its in TESTED.items() if its == tests]
    command = (sys.executable, "-m", "coverage")
    environment = {**os.environ, "COVERAGE_FILE": str(tmp_path / "coverage")}
    run = ("run", "--branch", f"--include={','.join(modules)}", "-m", "pytest", tests)
    options = ("-q", "-m", "not slow", "-p", "no:cacheprovider", "--ignore", FROZEN)
    ran = subprocess.run((*command, *run, *options), cwd=ROOT, env=environment, capture_output=True)
    assert ran.returncode == 0, ran.stdout.decode()
    found = tmp_path / "found.json"
    report = (*command, "json", "-q", "-o", str(found))
    subprocess.run(report, cwd=ROOT, env=environment, check=True)
    missing = {
        module: (file["missing_lines"], file["missing_branches"])
        for module, file in json.loads(found.read_text())["files"].items()
    }
    assert missing == {module: ([], []) for module in modules}
