"""`make cpu` installs torch for CPUs, never gigabytes of CUDA unasked. The index is a folder."""

import zipfile
from pathlib import Path

import pytest

from deploy import cpu_torch

CUDA = (
    'Requires-Dist: nvidia-cublas==13.0.0; platform_system == "Linux"\n'
    'Requires-Dist: nvidia-cudnn==9.0.0; platform_system == "Darwin"\n'
)
ELSEWHERE = 'Requires-Dist: nvidia-cublas==13.0.0; platform_system == "Windows"\n'


def write_wheel(folder: Path, version: str, requires: str) -> None:
    info = f"torch-{version}.dist-info"
    metadata = f"Metadata-Version: 2.1\nName: torch\nVersion: {version}\n{requires}"
    with zipfile.ZipFile(folder / f"torch-{version}-py3-none-any.whl", "w") as wheel:
        wheel.writestr("torch/__init__.py", f"__version__ = {version!r}\n")
        wheel.writestr(f"{info}/METADATA", metadata)
        wheel.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nTag: py3-none-any\n")
        wheel.writestr(f"{info}/RECORD", "")


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where pip looks, and a machine without torch; it installs into `installed`."""
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path))
    monkeypatch.setenv("PIP_TARGET", str(tmp_path / "installed"))
    monkeypatch.delenv("TORCH_INDEX", raising=False)
    monkeypatch.setattr(cpu_torch, "version", lambda name: "0.0")
    return tmp_path


def test_the_build_for_gpus_is_not_taken_unasked(
    index: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    write_wheel(index, cpu_torch.locked_version(), CUDA)
    assert cpu_torch.main() == 1
    said = capfd.readouterr().err
    assert "about 3 GB of CUDA libraries" in said
    assert "make cpu TORCH_INDEX=ADDRESS" in said
    assert not (index / "installed").exists()


@pytest.mark.parametrize(
    ("build", "requires"), [("+cpu", ""), pytest.param("", ELSEWHERE, marks=pytest.mark.slow)]
)
def test_the_build_for_cpus_is_taken(
    index: Path, build: str, requires: str, capfd: pytest.CaptureFixture[str]
) -> None:
    """Also where the other one is offered beside it."""
    wanted = cpu_torch.locked_version()
    if build:
        write_wheel(index, wanted, CUDA)
    write_wheel(index, wanted + build, requires)
    assert cpu_torch.main() == 0
    assert "about 200 MB" in capfd.readouterr().out
    module = (index / "installed/torch/__init__.py").read_text()
    assert repr(wanted + build) in module


def test_any_build_that_is_installed_will_do(
    index: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(cpu_torch, "version", lambda name: cpu_torch.locked_version() + "+cu130")
    assert cpu_torch.main() == 0
    assert capfd.readouterr() == ("", "")


def test_another_index_is_asked_too() -> None:
    assert cpu_torch.index({"TORCH_INDEX": "https://index.example/cpu"}) == (
        "--extra-index-url",
        "https://index.example/cpu",
    )
    assert cpu_torch.index({"TORCH_INDEX": ""}) == ()
