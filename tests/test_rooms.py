"""Which folder may import which."""

import ast
from collections import defaultdict
from collections.abc import Iterator
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "offhook"
MAY_IMPORT = {
    "media": set(),
    "signaling": {"media"},
    "telephony": {"media"},
    "pipeline": {"media"},
    "web": {"media", "signaling", "telephony", "pipeline"},
    "bench": {"media", "signaling", "telephony", "pipeline", "web"},
}
SPEECH = ("models", "engine", "speech")
"""The folders of `pipeline` that know no call."""
MAX_FILES = 21
FILES = sorted(p for p in PACKAGE.rglob("*.py") if p.parent != PACKAGE)
MODULES = {".".join(p.relative_to(ROOT).with_suffix("").parts): p for p in FILES}


def imported(path: Path) -> set[str]:
    """Modules and, of those that are ours, also names that are modules."""
    tree = ast.parse(path.read_text())
    modules = {a.name for n in ast.walk(tree) if isinstance(n, ast.Import) for a in n.names}
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom):
            module = node.module or ""
            named = {f"{module}.{alias.name}" for alias in node.names}
            modules |= (named & MODULES.keys()) or {module}
    return modules


def imports_between_files() -> Iterator[tuple[str, str]]:
    for name, path in MODULES.items():
        for other in imported(path) & MODULES.keys():
            yield name, other


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(PACKAGE)))
def test_imports_go_one_way(path: Path) -> None:
    room = path.relative_to(PACKAGE).parts[0]
    for module in imported(path):
        if module.startswith("offhook."):
            other = module.split(".")[1]
            assert other == room or other in MAY_IMPORT[room], f"{room} imports {module}"


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(PACKAGE)))
def test_speech_knows_no_call(path: Path) -> None:
    if path.relative_to(PACKAGE).parts[:2] in [("pipeline", room) for room in SPEECH]:
        assert not any(m.startswith("offhook.pipeline.conversation") for m in imported(path))


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
    for folder in {path.parent for path in FILES}:
        files = [p.name for p in folder.glob("*.py") if p.name != "__init__.py"]
        assert len(files) <= MAX_FILES, f"{folder.relative_to(ROOT)}: {len(files)} files"


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(PACKAGE)))
def test_constants_name_their_unit_in_one_way(path: Path) -> None:
    """Seconds end in _S, milliseconds in _MS."""
    names = {n.id for n in ast.walk(ast.parse(path.read_text())) if isinstance(n, ast.Name)}
    assert not {name for name in names if name.endswith(("_SECONDS", "_SECS", "_MILLIS"))}


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(PACKAGE)))
def test_torch_stays_with_the_models(path: Path) -> None:
    inside = path.relative_to(PACKAGE).parts[:2]
    if inside[0] != "bench" and inside not in (("pipeline", "engine"), ("pipeline", "models")):
        assert not any(m.split(".")[0] in ("torch", "transformers") for m in imported(path))


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(PACKAGE)))
def test_sockets_clocks_and_loops_live_in_io_files(path: Path) -> None:
    room = path.relative_to(PACKAGE).parts[0]
    if path.stem.endswith(("_io", "_worker")) or room == "bench" or path.stem == "main":
        return
    # rtp_leg reads the wall clock for sender reports; leg offers an asyncio iterator of frames.
    allowed = {"offhook/media/leg.py": {"asyncio"}, "offhook/media/rtp/rtp_leg.py": {"time"}}
    found = imported(path) & {"asyncio", "socket", "threading", "time", "aiohttp", "subprocess"}
    rest = found - allowed.get(str(path.relative_to(PACKAGE.parent)), set())
    assert not rest, f"{path.name} imports {rest}"
