"""Which folder may import which."""

import ast
import re
from collections import defaultdict
from collections.abc import Iterator
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "offhook"
MAY_IMPORT = {
    "processes": set(),
    "media": {"processes"},
    "signaling": {"processes", "media"},
    "telephony": {"processes", "media"},
    "pipeline": {"processes", "media"},
    "web": {"processes", "media", "signaling", "telephony", "pipeline"},
    "testing": {"processes", "media", "pipeline", "web"},
}
SPEECH = ("speech", "engines")
"""The folders of `pipeline` that know no call; the first does not know the second either."""
LAYERS = (
    "http",
    "campaigns",
    "records",
    "config",
    "speech_api",
    "tools",
    "realtime",
    "workers",
    "edge",
    "app",
)
"""The folders of `web`, from the lowest: each imports only those before it."""
MAX_FILES = 20
MORE_FILES = {"offhook/telephony/sip": 22}
"""Folders with more, until they are divided."""
FILES = sorted(p for p in PACKAGE.rglob("*.py") if p.parent != PACKAGE)
BENCHMARKS = sorted((ROOT / "benchmarks").rglob("*.py"))
MODULES = {".".join(p.relative_to(ROOT).with_suffix("").parts): p for p in (*FILES, *BENCHMARKS)}


@cache
def imported(path: Path) -> frozenset[str]:
    """Modules and, of those that are ours, also names that are modules."""
    tree = ast.parse(path.read_text())
    modules = {a.name for n in ast.walk(tree) if isinstance(n, ast.Import) for a in n.names}
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom):
            module = node.module or ""
            named = {f"{module}.{alias.name}" for alias in node.names}
            modules |= (named & MODULES.keys()) or {module}
    return frozenset(modules)


def imports_between_files() -> Iterator[tuple[str, str]]:
    for name, path in MODULES.items():
        for other in imported(path) & MODULES.keys():
            yield name, other


def test_imports_go_one_way() -> None:
    for path in FILES:
        room = path.relative_to(PACKAGE).parts[0]
        for module in imported(path):
            if module.startswith("offhook."):
                other = module.split(".")[1]
                assert other == room or other in MAY_IMPORT[room], f"{path} imports {module}"


def test_nothing_needs_what_is_not_installed_with_it() -> None:
    """The benchmarks are a package beside offhook; tests are in no package."""
    for paths, beside in ((FILES, {"benchmarks", "tests"}), (BENCHMARKS, {"tests"})):
        for path in paths:
            found = {module.split(".")[0] for module in imported(path)} & beside
            assert not found, f"{path} imports {found}"


def test_speech_knows_no_call() -> None:
    for path in FILES:
        if path.relative_to(PACKAGE).parts[:2] in [("pipeline", room) for room in SPEECH]:
            calls = [m for m in imported(path) if m.startswith("offhook.pipeline.conversation")]
            assert not calls, f"{path} imports {calls}"


def test_speech_knows_no_engine() -> None:
    for path in FILES:
        if path.relative_to(PACKAGE).parts[:2] == ("pipeline", "speech"):
            engines = [m for m in imported(path) if m.startswith("offhook.pipeline.engines")]
            assert not engines, f"{path} imports {engines}"


def test_layers_of_the_front_door_look_down() -> None:
    assert {p.name for p in (PACKAGE / "web").iterdir() if (p / "__init__.py").exists()} == set(
        LAYERS
    )
    for path in FILES:
        room, *layers = path.relative_to(PACKAGE).parts
        if room != "web" or len(layers) < 2:
            continue
        below = LAYERS[: LAYERS.index(layers[0]) + 1]
        for module in imported(path):
            if module.startswith("offhook.web."):
                assert module.split(".")[2] in below, f"{path} imports {module}"


def test_no_circle_of_files() -> None:
    graph = defaultdict(set)
    for one, other in imports_between_files():
        graph[one].add(other)
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as circle:
        pytest.fail(" -> ".join(circle.args[1]))


def test_no_circle_of_folders() -> None:
    """Beside one another; a folder and those within it are one."""
    graph = defaultdict(set)
    for one, other in imports_between_files():
        above, beneath = one.split(".")[:-1], other.split(".")[:-1]
        same = 0
        while same < min(len(above), len(beneath)) and above[same] == beneath[same]:
            same += 1
        if same < min(len(above), len(beneath)):
            graph[".".join(above[: same + 1])].add(".".join(beneath[: same + 1]))
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as circle:
        pytest.fail(" -> ".join(circle.args[1]))


def test_folders_can_be_looked_over() -> None:
    for folder in {path.parent for path in MODULES.values()}:
        files, name = len(list(folder.glob("*.py"))), str(folder.relative_to(ROOT))
        assert files <= MORE_FILES.get(name, MAX_FILES), f"{name}: {files} files"


def test_constants_name_their_unit_in_one_way() -> None:
    """Seconds end in _S, milliseconds in _MS."""
    others = re.compile(r"\b(?!OFFHOOK_)[A-Z_]+(?:_SECONDS|_SECS|_MILLIS)\b")
    for path in MODULES.values():
        names = set(others.findall(path.read_text()))
        assert not names, f"{path} names {names}"


def test_torch_stays_with_the_models() -> None:
    for path in FILES:
        inside = path.relative_to(PACKAGE).parts[:2]
        if inside != ("pipeline", "engines"):
            packages = {module.split(".")[0] for module in imported(path)}
            assert not packages & {"torch", "transformers"}, path


def test_sockets_clocks_and_loops_live_in_io_files() -> None:
    # rtp_leg reads the wall clock for sender reports; leg offers an asyncio iterator of frames.
    allowed = {"offhook/media/leg.py": {"asyncio"}, "offhook/media/rtp/rtp_leg.py": {"time"}}
    for path in FILES:
        if path.stem.endswith(("_io", "_worker")) or path.stem == "main":
            continue
        found = imported(path) & {"asyncio", "socket", "threading", "time", "aiohttp", "subprocess"}
        rest = found - allowed.get(str(path.relative_to(PACKAGE.parent)), set())
        assert not rest, f"{path} imports {rest}"
