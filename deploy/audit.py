"""Known vulnerabilities of what is locked, as pip-audit finds them: `audit.py LOCK...`.

It exits with 1 when there are any. Where no database can be reached it says so and exits with 0:
pip-audit itself would call that free of known vulnerabilities.
"""

import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

LIMIT_S = 300


def found(lock: str) -> list[dict[str, Any]]:
    """What pip-audit says of each package; nothing when it could not ask."""
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder, "report")
        command = [
            *(sys.executable, "-m", "pip_audit", "--progress-spinner", "off", "--disable-pip"),
            *("--require-hashes", "-r", lock, "-f", "json", "-o", str(report)),
        ]
        try:
            subprocess.run(command, capture_output=True, timeout=LIMIT_S, check=False)
        except subprocess.TimeoutExpired:
            return []
        packages: list[dict[str, Any]] = (
            json.loads(report.read_text())["dependencies"] if (report.exists()) else []
        )
        return packages


def main() -> None:
    code = 0
    for lock in sys.argv[1:]:
        packages = found(lock)
        asked = [package for package in packages if "skip_reason" not in package]
        if not asked:
            print(f"{lock}: not checked, the database of vulnerabilities cannot be reached here")
            continue
        bad = [package for package in asked if package["vulns"]]
        for package in bad:
            ids = ", ".join(each["id"] for each in package["vulns"])
            print(f"{lock}: {package['name']} {package['version']}: {ids}")
        print(
            f"{lock}: {len(asked)} of {len(packages)} packages known there, {len(bad)} vulnerable"
        )
        code = code or int(bool(bad))
    sys.exit(code)


if __name__ == "__main__":
    main()
