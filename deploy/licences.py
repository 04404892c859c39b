"""The licences of what is installed with offhook, by the packages' own metadata.

`python -m deploy.licences` writes the tables in docs/licences.md; with --check it says what is
wrong with them, and which licence nobody has looked at. Run it in the environment of `make test`,
where all of the locked packages are that this platform has.
"""

import re
import sys
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

from deploy.locked import locked

ROOT = Path(__file__).parents[1]
DOCUMENT = ROOT / "docs/licences.md"
PARTS = (
    *("base", "espeak", "knowledge", "mcp", "postgres", "qwen", "redis", "s3", "tracing"),
    "wyoming",
)
"""What is shipped or installed for users; a package is listed with the first that has it."""

SPDX = {
    "Apache 2.0": "Apache-2.0",
    "Apache licensed, as found in the LICENSE file": "Apache-2.0",
    "Apache License, Version 2.0": "Apache-2.0",
    "Apache Software License": "Apache-2.0",
    "3-Clause BSD License": "BSD-3-Clause",
    "BSD 3-Clause License": "BSD-3-Clause",
    "BSD License": "BSD",
    "MIT License": "MIT",
}
"""What metadata says before it was SPDX."""
SAID_HERE = {
    "async-timeout": "Apache-2.0",
    "audioop-lts": "PSF-2.0",
    "colorama": "BSD-3-Clause",
    "httpx2-jsfetch": "BSD-3-Clause",
    "python-dateutil": "Apache-2.0 OR BSD-3-Clause",
    "pywin32": "PSF-2.0",
    "tzdata": "Apache-2.0",
    "win32-setctime": "MIT",
    "espeakng-loader": "GPL-3.0-or-later",
}
"""Of packages for other platforms or versions of Python, or whose metadata does not say."""
FINE = {
    *("0BSD", "Apache-2.0", "BSD", "BSD-2-Clause", "BSD-3-Clause", "CC0-1.0", "ISC", "LGPL"),
    *(
        "LGPL-2.1-or-later",
        "LGPL-3.0-only",
        "MIT",
        "MIT-0",
        "MIT-CMU",
        "MPL-2.0",
        "PSF-2.0",
        "Zlib",
    ),
}
"""That a program under Apache-2.0 may stand on; LGPL and MPL as libraries of their own."""
KNOWN = {"espeakng-loader"}
"""Others, of which docs/licences.md says what is done about them."""

Row = tuple[str, str, str]


def licence_of(name: str) -> str:
    """As an SPDX expression, as far as the package has one; "" if it is not known."""
    if name in SAID_HERE:
        return SAID_HERE[name]
    try:
        metadata = distribution(name).metadata
    except PackageNotFoundError:
        return ""
    said = metadata.get("License-Expression") or (metadata.get("License") or "").strip()
    if not said or "\n" in said:
        classes = (c for c in metadata.get_all("Classifier") or () if c.startswith("License"))
        said = " AND ".join(sorted(SPDX.get(n, n) for n in (c.split(" :: ")[-1] for c in classes)))
    return SPDX.get(said, said)


def is_fine(licence: str) -> bool:
    """Every part of the expression; of OR, any."""
    plain = licence.replace("(", "").replace(")", "")
    return all(
        any(each.strip() in FINE for each in part.split(" OR ")) for part in plain.split(" AND ")
    )


def libraries_in(name: str) -> str:
    """Shared libraries of others that its wheel for this platform brings."""
    files = distribution(name).files or ()
    inside = (Path(file) for file in files if Path(file).parent.name.endswith(".libs"))
    return ", ".join(sorted({re.split(r"-[0-9a-f]{8}|\.so", path.name)[0] for path in inside}))


def tables() -> tuple[str, list[str]]:
    """Markdown, and what is wrong."""
    seen: set[str] = set()
    lines, faults = [], []
    for part in PARTS:
        rows = sorted(locked(part, torch=False).keys() - seen)
        seen |= set(rows)
        lines += [f"### {part}", "", "| package | licence |", "|---|---|"]
        for name in rows:
            licence = licence_of(name)
            if not licence:
                faults.append(f"{name}: its licence is not known")
            elif not is_fine(licence) and name not in KNOWN:
                faults.append(f"{name}: {licence}: is that fine? then say so in {__file__}")
            lines.append(f"| {name} | {licence} |")
        lines.append("")
    lines += ["### Libraries within the wheel of PyAV (Linux, x86-64)", "", libraries_in("av"), ""]
    return "\n".join(lines), faults


def main() -> None:
    text = DOCUMENT.read_text()
    mark = "<!-- from here on written by deploy/licences.py -->\n"
    head, _, _ = text.partition(mark)
    table, faults = tables()
    written = f"{head}{mark}\n{table}"
    if "--check" not in sys.argv:
        DOCUMENT.write_text(written)
    elif text != written:
        faults.append(f"{DOCUMENT} is not up to date: python -m deploy.licences")
    if faults:
        sys.exit("\n".join(faults))


if __name__ == "__main__":
    main()
