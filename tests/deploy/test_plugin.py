"""Engines of another package, installed from its wheel beside offhook."""

import json
import os
import shutil
import subprocess
import sys
import wave
from contextlib import ExitStack
from pathlib import Path
from urllib.request import Request, urlopen

import pytest

from tests.deploy.servers import ROOT, address, start
from tests.support.environment import environment

PLUGIN = ROOT / "examples/plugin"
TEXT = "what hath god wrought"
WITNESS = """
import os
with open(os.environ["WITNESS"], "a") as file:
    file.write(f"{os.getpid()}\\n")
"""
"""Added to the package, so that it is known which processes import it."""
EXAMINE = """
import sys
from pathlib import Path
from offhook.web.app.doctor.report_io import examine

found = {f.subject: str(f) for f in examine(Path("offhook.toml"))}
print(found["hearing"], found["speaking"])
assert "offhook_morse" not in sys.modules
"""


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the package as its wheel installs it, and offhook beside it."""
    folder = tmp_path_factory.mktemp("plugin")
    shutil.copytree(PLUGIN, folder / "tree", ignore=shutil.ignore_patterns("__pycache__"))
    pip = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check"]
    build = ["wheel", "--no-deps", "--no-build-isolation", "--wheel-dir", folder, folder / "tree"]
    subprocess.run([*pip, *build], check=True)
    (wheel,) = folder.glob("*.whl")
    subprocess.run([*pip, "install", "--no-deps", "--target", folder / "site", wheel], check=True)
    with (folder / "site/offhook_morse/__init__.py").open("a") as file:
        file.write(WITNESS)
    return folder / "site"


@pytest.fixture
def plugged(site: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The environment of offhook's processes that find the package; the file of the witness."""
    monkeypatch.setenv("WITNESS", str(tmp_path / "witness"))
    monkeypatch.setenv("PYTHONPATH", f"{site}{os.pathsep}{ROOT}")
    (tmp_path / "witness").touch()
    return tmp_path / "witness"


def run(folder: Path, *arguments: str) -> str:
    done = subprocess.run(
        [sys.executable, *arguments],
        cwd=folder,
        env=environment(PYTHONPATH=os.environ["PYTHONPATH"]),
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_it_passes_the_tests_of_every_engine(plugged: Path) -> None:
    tests = str(PLUGIN / "tests")
    run(plugged.parent, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-o", "addopts=", tests)


@pytest.mark.parametrize(
    ("ears", "voice"),
    [("morse", "morse"), ("offhook_morse.ears:Ears", "offhook_morse.voice:Voice")],
)
def test_the_command_line_speaks_and_hears_with_it(plugged: Path, ears: str, voice: str) -> None:
    """By its name, or by an import path."""
    folder = plugged.parent
    run(folder, "-m", "offhook", "speak", TEXT, "--engine", voice, "-o", "said.wav")
    with wave.open(str(folder / "said.wav")) as file:
        assert file.getnframes() > file.getframerate()
    heard = run(folder, "-m", "offhook", "transcribe", "said.wav", "--engine", ears)
    assert heard.split() == TEXT.split()


def test_a_name_that_nobody_has_is_refused(plugged: Path) -> None:
    (plugged.parent / "offhook.toml").write_text('[asr]\nengine = "morze"\n')
    done = subprocess.run(
        [sys.executable, "-m", "offhook", "serve"],
        cwd=plugged.parent,
        env=environment(PYTHONPATH=os.environ["PYTHONPATH"]),
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 1
    assert 'offhook.toml:2: asr.engine: must be one of "qwen3-asr", ' in done.stderr
    assert 'not "morze"' in done.stderr


def test_a_server_hears_and_speaks_with_it_in_workers(plugged: Path) -> None:
    """The doctor and the server know its name and never import it."""
    folder = plugged.parent
    (folder / "offhook.toml").write_text(
        '[asr]\nengine = "morse"\n[tts]\nengine = "offhook_morse.voice:Voice"\n'
    )
    found = run(folder, "-c", EXAMINE)
    assert "morse, in a worker started by the first call" in found
    assert "offhook_morse.voice:Voice, in a worker started by the first reply" in found
    assert not plugged.read_text()
    with ExitStack() as stack:
        server, log = start(stack, folder, "edge", path=Path(os.environ["PYTHONPATH"]))
        base = f"http://{address(server, log)}"
        body = json.dumps({"input": TEXT, "response_format": "wav", "voice": "high"}).encode()
        asked = Request(f"{base}/v1/audio/speech", body, {"Content-Type": "application/json"})
        with urlopen(asked, timeout=300) as answer:
            said = answer.read()
        form = (
            b'--b\r\nContent-Disposition: form-data; name="file"; filename="said.wav"\r\n'
            b"Content-Type: audio/wav\r\n\r\n" + said + b"\r\n--b--\r\n"
        )
        of_form = {"Content-Type": "multipart/form-data; boundary=b"}
        asked = Request(f"{base}/v1/audio/transcriptions", form, of_form)
        with urlopen(asked, timeout=300) as answer:
            assert json.load(answer)["text"].split() == TEXT.split()
        imported = {int(pid) for pid in plugged.read_text().split()}
        assert len(imported) == 2  # a worker that hears, and one that speaks
        assert server.pid not in imported
