"""What somebody gets who installs offhook as a Python package."""

import ast
import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
import venv
from contextlib import ExitStack
from importlib.metadata import PackageNotFoundError, packages_distributions, requires
from pathlib import Path
from urllib.request import urlopen
from zipfile import ZipFile

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from deploy.locked import locked
from tests.deploy.servers import ROOT, address, start
from tests.support.environment import environment
from tests.support.waiting import HANGS_S

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
BENCHMARKS = tomllib.loads((ROOT / "benchmarks/pyproject.toml").read_text())
EXTRAS = PROJECT["project"]["optional-dependencies"]
DECLARED = {"base": PROJECT["project"]["dependencies"], **EXTRAS, **PROJECT["dependency-groups"]}
TESTED = [extra for extra in EXTRAS if not (ROOT / f"deploy/requirements-{extra}.lock").exists()]
"""Extras that are installed here."""
NOT_LOCKED = {*PROJECT["tool"]["uv"]["exclude-dependencies"], "numba"}
"""Listed by packages that never import them here."""
UNDER_ANOTHER = {
    "annotated_types": "pydantic",
    "jsonschema": "mcp",
    "mcp_types": "mcp",
    "pydantic_core": "pydantic",
    "starlette": "ray",
    "transformers": "qwen-tts",
    "triton": "torch",
    "urllib3": "botocore",
    "wait_for2": "pipecat-ai",
}
"""Modules of packages that always come with the listed one, in the version that it wants."""
TESTING = {"pytest"}
"""What runs the tests of `offhook.testing`, which authors of packages have."""
PEERS = {"pesq", "piper", "speech_to_speech"}
"""What single benchmarks compare with or ask, and say how to install."""


@pytest.mark.parametrize(
    ("room", "more", "ours"),
    [
        ("offhook", [], {"offhook", *TESTING}),
        (
            "benchmarks",
            BENCHMARKS["project"]["optional-dependencies"]["peers"],
            {"offhook", "benchmarks", *PEERS},
        ),
    ],
)
def test_every_module_that_is_imported_is_a_dependency(
    room: str, more: list[str], ours: set[str]
) -> None:
    """Or an extra: nothing is there only because another package happens to need it."""
    listed = {
        canonicalize_name(Requirement(each).name)
        for each in (*(each for part in ("base", *EXTRAS) for each in DECLARED[part]), *more)
    }
    provided = packages_distributions()
    for path in (ROOT / room).rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            names = [each.name for each in node.names] if isinstance(node, ast.Import) else []
            if isinstance(node, ast.ImportFrom) and node.module and not node.level:
                names = [node.module]
            for module in {name.partition(".")[0] for name in names} - ours:
                if module not in sys.stdlib_module_names:
                    from_packages = provided.get(module, [module])
                    found = {canonicalize_name(each) for each in from_packages}
                    assert found & listed or UNDER_ANOTHER.get(module) in listed, (path, module)


@pytest.mark.parametrize("part", DECLARED)
def test_the_lock_has_what_is_declared(part: str) -> None:
    """In versions that are allowed; or `make lock` was forgotten."""
    entries = locked(part)
    for requirement in map(Requirement, DECLARED[part]):
        entry = entries[canonicalize_name(requirement.name)]
        versions = re.findall(r"^[\w.-]+==([^ ;]+)", entry, re.MULTILINE)
        assert versions
        enough = all if requirement.marker is None else any
        assert enough(map(requirement.specifier.contains, versions))


@pytest.mark.parametrize("extra", ["base", *TESTED])
def test_the_lock_has_all_that_its_packages_need(extra: str) -> None:
    """As they are installed without resolving."""
    entries = locked("base", extra)
    for name in locked("base", extra, torch=False):
        try:
            needed = [Requirement(each) for each in requires(name) or ()]
        except PackageNotFoundError:
            continue  # of another platform
        for each in needed:
            if each.marker is None or each.marker.evaluate({"extra": ""}):
                assert canonicalize_name(each.name) in entries.keys() | NOT_LOCKED, (name, each)


def test_the_official_packages_have_locks_of_their_own() -> None:
    assert EXTRAS.keys() - TESTED == {"qwen-asr-official", "qwen-tts-official", "ray"}
    for extra in EXTRAS.keys() - TESTED - {"ray"}:
        entries = locked("base", extra)
        assert {"aiortc", "numba", "torch", "transformers"} <= entries.keys()
        (package,) = EXTRAS[extra]
        assert any(entry.startswith(f"{package} ") for entry in entries.values())
        assert entries.keys().isdisjoint(NOT_LOCKED - {"numba"})


def test_the_lock_of_ray_has_the_versions_of_the_other() -> None:
    """And not the program under the GPL that comes with it."""
    ours, others = locked("base", "ray", torch=False), locked("base")
    assert {"aiortc", "ray"} <= ours.keys()
    assert ours.keys().isdisjoint(NOT_LOCKED)
    for name in others:
        assert ours[name].split()[0] == others[name].split()[0]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built from a copy: a folder `build` in the tree would be taken along."""
    folder = tmp_path_factory.mktemp("wheel")
    without = shutil.ignore_patterns("*.so")
    shutil.copytree(ROOT / "offhook", folder / "tree/offhook", ignore=without)
    for name in ("pyproject.toml", "README.md", "LICENSE", "NOTICE"):
        shutil.copy(ROOT / name, folder / "tree")
    _pip(sys.executable, "wheel", "--no-deps", "--wheel-dir", folder, folder / "tree")
    (built,) = folder.glob("*.whl")
    return built


def _pip(python: str | Path, *arguments: str | Path) -> None:
    command = [python, "-m", "pip", *arguments, "--quiet", "--disable-pip-version-check"]
    subprocess.run(command, check=True)


def _tracked(folder: str) -> set[str]:
    listed = ["git", "-C", str(ROOT), "ls-files", folder]
    return {*subprocess.run(listed, capture_output=True, text=True, check=True).stdout.split()}


def test_the_wheel_has_every_file(wheel: Path) -> None:
    """Pages, tables of the front desk and kernels beside the modules; no benchmarks."""
    with ZipFile(wheel) as archive:
        names = {*archive.namelist()}
    assert _tracked("offhook") <= names
    assert {name.partition("/")[0] for name in names if ".dist-info/" not in name} == {"offhook"}


@pytest.mark.slow
def test_the_benchmarks_are_a_wheel_of_their_own(tmp_path: Path) -> None:
    """With all their files, and found by `offhook bench` where they are installed."""
    without = shutil.ignore_patterns("build", "*.egg-info", "__pycache__")
    shutil.copytree(ROOT / "benchmarks", tmp_path / "tree", ignore=without)
    _pip(sys.executable, "wheel", "--no-deps", "--wheel-dir", tmp_path, tmp_path / "tree")
    (built,) = tmp_path.glob("*.whl")
    with ZipFile(built) as archive:
        assert _tracked("benchmarks") - {"benchmarks/pyproject.toml"} <= {*archive.namelist()}
    _pip(sys.executable, "install", "--no-deps", "--target", tmp_path / "site", built)
    done = subprocess.run(
        [sys.executable, "-m", "offhook", "bench", "balance", "--help"],
        cwd=tmp_path,
        env=environment(PYTHONPATH=os.pathsep.join((str(tmp_path / "site"), str(ROOT)))),
        capture_output=True,
        text=True,
        check=True,
    )
    assert "offhook bench balance" in done.stdout


@pytest.mark.skipif(
    shutil.which(os.environ.get("CC", "cc")) is None or os.environ.get("CC") == "false",
    reason="no C compiler here",
)
def test_the_wheel_has_the_compiled_path_of_packets(wheel: Path) -> None:
    """For every Python from 3.11 on."""
    assert "-cp311-abi3-" in wheel.name
    with ZipFile(wheel) as archive:
        assert "offhook/media/native/_native.abi3.so" in archive.namelist()


@pytest.mark.parametrize(
    "packages", ["of-the-tests", pytest.param("locked", marks=pytest.mark.slow)]
)
def test_the_wheel_takes_a_call(wheel: Path, tmp_path: Path, packages: str) -> None:
    """Beside the packages of the tests, or in an environment with nothing but the lock's base."""
    python, site = Path(sys.executable), tmp_path / "site"
    if packages == "of-the-tests":
        _pip(python, "install", "--no-deps", "--target", site, wheel)
    else:
        venv.create(tmp_path / "venv", with_pip=True)
        python = tmp_path / "venv/bin/python"
        (tmp_path / "locked.txt").write_text("".join(locked("base").values()))
        _pip(python, "install", "--no-deps", "--require-hashes", "-r", tmp_path / "locked.txt")
        _pip(python, "install", "--no-deps", wheel)

    def run(*arguments: str) -> str:
        done = subprocess.run(
            [python, *arguments],
            cwd=tmp_path,
            env=environment(PYTHONPATH=str(site)),
            capture_output=True,
            text=True,
            timeout=120,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    where = Path(run("-c", "import offhook; print(offhook.__file__)").strip())
    assert where.is_relative_to(tmp_path)
    assert "Silero VAD" in run("-m", "offhook", "doctor")
    with ExitStack() as stack:
        server = f"http://{address(*start(stack, tmp_path, 'edge', python, site))}"
        assert "<title>" in _got(f"{server}/").decode()
        for file in (ROOT / "offhook/web/edge/page/static").iterdir():
            if file.name != "index.html":
                assert _got(f"{server}/page/{file.name}") == file.read_bytes()
        asked = ("--say", "What are your opening hours?", "--json")
        call = json.loads(run("-m", "offhook", "call", server, *asked))
    assert "the automatic front desk of Lighthouse Bicycles" in call["greeting"]
    assert call["turns"][0]["reply"]
    assert call["ended_by"] == "caller"


def _got(url: str) -> bytes:
    with urlopen(url, timeout=HANGS_S) as answer:
        body: bytes = answer.read()
        return body
