"""The files that a configuration names, as far as it can be read: also one that is wrong names the
files in which that may be put right."""

import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

from offhook.pipeline.speech.entry_points import path_of
from offhook.web.config.reading.toml_text import read_toml
from offhook.web.config.tools import GROUP

FILE_KEYS = ("instructions_file", "flow", "lexicon")
"""Keys of agents, and of [tts], that name a file which is read with the configuration."""
OURS = "offhook"


def named_files(text: str, folder: Path) -> set[Path]:
    """Returns the files that a configuration names: instructions, flows, lexicons, and the modules
    of functions. Relative paths begin at `folder`, in which the server was started."""
    table = read_toml(text).table
    found: set[Path] = set()
    for section in _tables(table):
        for key in FILE_KEYS:
            if isinstance(name := section.get(key), str) and name:
                found.add(folder / Path(name).expanduser())
        tools = section.get("tools")
        for tool in tools if isinstance(tools, list) else ():
            if isinstance(tool, dict) and isinstance(function := tool.get("function"), str):
                found |= set(_files_of_module(function, folder))
    return found


def _tables(table: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    agents = table.get("agents")
    more = agents.values() if isinstance(agents, dict) else ()
    yield from (one for one in (table.get("agent"), table.get("tts"), *more) if _is_table(one))


def _is_table(value: Any) -> bool:
    return isinstance(value, dict)


def _files_of_module(function: str, folder: Path) -> Iterator[Path]:
    module = (path_of(GROUP, function) or "").partition(":")[0]
    if module:
        path = folder.joinpath(*module.split("."))
        yield from (path.with_suffix(".py"), path / "__init__.py")


def own_modules(folder: Path) -> dict[str, ModuleType]:
    """Returns the modules that were imported from a folder, by their names: those of the builder,
    not of packages that are installed below it."""
    found = {}
    for name, module in tuple(sys.modules.items()):
        file = getattr(module, "__file__", None)
        if name.partition(".")[0] in (OURS, "__main__") or not isinstance(file, str):
            continue
        path = Path(file)
        if path.is_relative_to(folder) and "site-packages" not in path.parts:
            found[name] = module
    return found
