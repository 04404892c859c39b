"""The part of the lock that an installation needs: `locked.py PART...` prints it for pip.

A PART is `base` (what offhook itself imports), an extra or a dependency group of pyproject.toml.
requirements.lock holds them all; an extra that cannot be installed beside the rest has a lock of
its own, requirements-EXTRA.lock. `--without-torch` leaves out torch and what only torch needs:
which build of it fits depends on the machine.
"""

import re
import sys
import tomllib
from pathlib import Path

LOCKS = Path(__file__).parent
ROOT = LOCKS.parent


def _name(requirement: str) -> str:
    """The package that a requirement names, in lower case with hyphens."""
    found = re.match(r"[\w.-]+", requirement)
    assert found, requirement
    return re.sub(r"[-_.]+", "-", found[0]).lower()


def locked(*parts: str, torch: bool = True) -> dict[str, str]:
    """Entries of the lock, by package: those that the parts name, and all that these need.

    An entry has a line for each version (there may be one for each version of Python), hashes, and
    the packages it is there for, as uv notes them: "# via". Raises KeyError for an unknown part.
    """
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    named = {
        "base": project["project"]["dependencies"],
        **project["project"]["optional-dependencies"],
        **project["dependency-groups"],
    }
    wanted = {_name(each) for part in parts for each in named[part]}
    own = [path for part in parts if (path := LOCKS / f"requirements-{part}.lock").exists()]
    text = (own or [LOCKS / "requirements.lock"])[0].read_text()
    entries: dict[str, str] = {}
    for entry in re.findall(r"^\w.*\n(?: .*\n)*", text, re.MULTILINE):
        name = _name(entry)
        entries[name] = entries.get(name, "") + entry
    needed_by = {
        name: set(re.findall(r"^ +# +(?:via )?([a-z0-9-]+)$", entry, re.MULTILINE))
        for name, entry in entries.items()
    }
    if not torch:
        entries.pop("torch", None)
    included: set[str] = set()
    while found := {
        name for name in entries.keys() - included if name in wanted or needed_by[name] & included
    }:
        included |= found
    return {name: entry for name, entry in entries.items() if name in included}


def main() -> None:
    parts = [each for each in sys.argv[1:] if each != "--without-torch"]
    sys.stdout.writelines(locked(*parts, torch="--without-torch" not in sys.argv).values())


if __name__ == "__main__":
    main()
