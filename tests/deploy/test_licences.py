"""Whose work comes with ours, and that it is said."""

import json
import platform
import re
import subprocess
import sys
from pathlib import Path

import pytest

from deploy import licences
from deploy.locked import locked
from tests.deploy.servers import ROOT

AUDIT = ROOT / "deploy/audit.py"
DOCUMENT = (ROOT / "docs/licences.md").read_text()


def test_the_project_has_a_licence() -> None:
    assert "Apache License" in (ROOT / "LICENSE").read_text()
    assert 'license = "Apache-2.0"' in (ROOT / "pyproject.toml").read_text()
    assert "licences.md" in (ROOT / "NOTICE").read_text()


def test_every_locked_package_is_in_the_document() -> None:
    rows = set(re.findall(r"^\| ([a-z0-9._-]+) \| \S", DOCUMENT, re.MULTILINE))
    assert locked(*licences.PARTS, torch=False).keys() <= rows


def test_no_gpl_is_in_the_base() -> None:
    base = locked("base")
    assert not [name for name in base if "GPL" in licences.licence_of(name).replace("LGPL", "")]
    assert "espeakng-loader" not in locked("base", "mcp", "qwen", "redis", "tracing")


@pytest.mark.skipif(
    (sys.platform, platform.machine()) != ("linux", "x86_64"),
    reason="the document lists what is in this platform's wheel of PyAV",
)
def test_the_document_is_what_the_packages_say() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "deploy.licences", "--check"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stderr == ""
    assert "libx264" in DOCUMENT
    assert "libx265" in DOCUMENT


@pytest.mark.parametrize(
    ("licence", "fine"),
    [
        ("MIT", True),
        ("BSD-3-Clause AND (MIT OR GPL-2.0-only)", True),
        ("MIT AND GPL-3.0-or-later", False),
        ("AGPL-3.0-only", False),
        ("Some words of somebody", False),
        ("", False),
    ],
)
def test_a_licence_that_nobody_looked_at_is_found(licence: str, fine: bool) -> None:
    assert licences.is_fine(licence) is fine


@pytest.mark.parametrize(
    ("report", "code", "says"),
    [
        (None, 0, "cannot be reached"),
        ([{"name": "a", "skip_reason": "not found"}], 0, "cannot be reached"),
        ([{"name": "a", "version": "1", "vulns": []}], 0, "1 of 1 packages known there, 0"),
        (
            [
                {"name": "a", "version": "1", "vulns": [{"id": "CVE-1"}]},
                {"name": "b", "skip_reason": "not found"},
            ],
            1,
            "a 1: CVE-1",
        ),
    ],
)
def test_what_pip_audit_says_is_not_taken_for_more_than_it_is(
    tmp_path: Path, report: list[object] | None, code: int, says: str
) -> None:
    """A pip-audit of the test's, which writes the report that is asked for, or none."""
    answer = None if report is None else json.dumps({"dependencies": report})
    (tmp_path / "pip_audit.py").write_text(
        "import sys\nfrom pathlib import Path\n"
        f"if (answer := {answer!r}) is not None:\n    Path(sys.argv[-1]).write_text(answer)\n"
    )
    done = subprocess.run(
        [sys.executable, str(AUDIT), "deploy/requirements.lock"],
        capture_output=True,
        text=True,
        check=False,
        env={"PYTHONPATH": str(tmp_path)},
    )
    assert (done.returncode, done.stderr) == (code, "")
    assert says in done.stdout
