"""Parts of other packages: what an entry point, or an import path in its place, names.

Entry points are read as names: a package is imported only where one of its parts is used.
"""

import re
from functools import cache
from importlib.metadata import entry_points

IMPORT_PATH = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*")
"""Matches an import path, module:name."""


@cache
def entry_paths(group: str) -> dict[str, str]:
    """Returns the import paths of other packages' parts by name."""
    return {entry.name: entry.value for entry in entry_points(group=group)}


def path_of(group: str, name: str) -> str | None:
    """Returns the import path of a part by its name, or by its import path; None if no package
    offers it."""
    return name if IMPORT_PATH.fullmatch(name) else entry_paths(group).get(name)
