"""Who may look into whom."""

import ast
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parent.parent / "offhook"
MAY_IMPORT = {
    "media": set(),
    "signaling": {"media"},
    "telephony": {"media"},
    "pipeline": {"media"},
    "web": {"media", "signaling", "telephony", "pipeline"},
    "bench": {"media", "signaling", "telephony", "pipeline", "web"},
}
FILES = sorted(p for p in PACKAGE.rglob("*.py") if p.parent != PACKAGE)


def imported(path: Path) -> set[str]:
    tree = ast.parse(path.read_text())
    modules = {a.name for n in ast.walk(tree) if isinstance(n, ast.Import) for a in n.names}
    return modules | {n.module or "" for n in ast.walk(tree) if isinstance(n, ast.ImportFrom)}


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(PACKAGE)))
def test_imports_go_one_way(path: Path) -> None:
    room = path.relative_to(PACKAGE).parts[0]
    for module in imported(path):
        if module.startswith("offhook."):
            other = module.split(".")[1]
            assert other == room or other in MAY_IMPORT[room], f"{room} imports {module}"


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(PACKAGE)))
def test_torch_stays_with_the_models(path: Path) -> None:
    inside = path.relative_to(PACKAGE).parts[:2]
    if inside[0] != "bench" and inside not in (("pipeline", "engine"), ("pipeline", "models")):
        assert not any(m.split(".")[0] in ("torch", "transformers") for m in imported(path))


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(PACKAGE)))
def test_sockets_clocks_and_loops_live_in_io_files(path: Path) -> None:
    if path.stem.endswith(("_io", "_worker")) or path.parts[-2] in ("bench",) or path.stem == "cli":
        return
    # rtp_leg reads the wall clock for sender reports; leg offers an asyncio iterator of frames.
    allowed = {"offhook/media/leg.py": {"asyncio"}, "offhook/media/rtp_leg.py": {"time"}}
    found = imported(path) & {"asyncio", "socket", "threading", "time", "aiohttp", "subprocess"}
    rest = found - allowed.get(str(path.relative_to(PACKAGE.parent)), set())
    assert not rest, f"{path.name} imports {rest}"
