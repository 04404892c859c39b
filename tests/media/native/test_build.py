"""The compiled path is built where that can be done, and left out where not."""

import os
import shutil
import subprocess
import sys
import sysconfig
from importlib.metadata import version
from pathlib import Path

import pytest

from tests.deploy.servers import ROOT

BUILD = "import setuptools; setuptools.setup()"


def build(folder: Path, compiler: str) -> list[Path]:
    """Builds from a copy with this compiler; returns the modules made."""
    shutil.copytree(ROOT / "offhook/media/native", folder / "offhook/media/native")
    for made in folder.rglob("*.so"):
        made.unlink()
    (folder / "README.md").touch()
    for name in ("pyproject.toml", "LICENSE", "NOTICE"):
        shutil.copy(ROOT / name, folder)
    command = [sys.executable, "-c", BUILD, "-q", "build_ext", "--inplace"]
    environment = {**os.environ, "CC": compiler}
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return [*folder.glob("offhook/media/native/*.so")]


@pytest.mark.skipif(
    int(version("setuptools").partition(".")[0]) < 77, reason="pyproject.toml wants setuptools 77"
)
@pytest.mark.parametrize("compiler", ["false", pytest.param("cc", marks=pytest.mark.slow)])
def test_without_a_compiler_nothing_is_built_and_nothing_fails(
    tmp_path: Path, compiler: str
) -> None:
    headers = Path(sysconfig.get_path("include"), "Python.h").exists()
    can = compiler == "cc" and shutil.which("cc") is not None and headers
    assert len(build(tmp_path, compiler)) == can


def test_python_can_be_demanded() -> None:
    code = "from offhook.media import native; print(native.used, native.description())"
    environment = {**os.environ, "OFFHOOK_COMPILED": "0"}
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True
    )
    assert done.stdout.startswith("False in Python")


IMPORT_ALL = """
import sys; sys.modules["offhook.media.native._native"] = None
from importlib import import_module
from pkgutil import walk_packages

for room in ("media", "signaling", "telephony", "web.edge"):
    package = import_module(f"offhook.{room}")
    for module in walk_packages(package.__path__, f"offhook.{room}."):
        if not module.name.endswith("._native"):
            import_module(module.name)
assert not import_module("offhook.media.native").BUILT
"""


def test_everything_can_be_imported_where_nothing_was_built() -> None:
    """Names of the compiled module are for those who have it."""
    subprocess.run([sys.executable, "-c", IMPORT_ALL], cwd=ROOT, check=True)
