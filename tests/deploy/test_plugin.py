"""Engines, an agent and a tool of another package, installed from its wheel beside offhook."""

import asyncio
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
from tests.pipeline.conversation.phone import calls, model, says
from tests.support.environment import environment
from tests.support.waiting import HANGS_S

PLUGIN = ROOT / "examples/plugin"
TEXT = "what hath god wrought"
WITNESS = """
import os
with open(os.environ["WITNESS"], "a") as file:
    file.write(f"{os.getpid()} {__name__}\\n")
"""
"""Added to each module, so that it is known which processes import it."""
ENGINES = {"offhook_morse.ears", "offhook_morse.voice"}
AGENT = """[agent]
kind = "telegraph"
settings = {office = "the office in Baltimore"}
"""
EXAMINE = """
import sys
from pathlib import Path
from offhook.web.app.doctor.report_io import examine

found = {f.subject: str(f) for f in examine(Path("offhook.toml"))}
print(*found.values(), sep="\\n")
print(sorted(name for name in sys.modules if name.startswith("offhook_morse")))
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
    for module in (folder / "site/offhook_morse").glob("*.py"):
        with module.open("a") as file:
            file.write(WITNESS)
    return folder / "site"


@pytest.fixture
def plugged(site: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The environment of offhook's processes that find the package; the file of the witness."""
    monkeypatch.setenv("WITNESS", str(tmp_path / "witness"))
    monkeypatch.setenv("PYTHONPATH", f"{site}{os.pathsep}{ROOT}")
    (tmp_path / "witness").touch()
    return tmp_path / "witness"


def imported(witness: Path) -> dict[str, set[int]]:
    """The processes that have imported each module of the package."""
    found: dict[str, set[int]] = {}
    for line in witness.read_text().splitlines():
        pid, name = line.split()
        found.setdefault(name, set()).add(int(pid))
    return found


def run(folder: Path, *arguments: str) -> str:
    done = subprocess.run(
        [sys.executable, *arguments],
        cwd=folder,
        env=environment(PYTHONPATH=os.environ["PYTHONPATH"]),
        capture_output=True,
        text=True,
        timeout=HANGS_S,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_it_passes_the_tests_of_every_engine_agent_and_tool(plugged: Path) -> None:
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


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ('[asr]\nengine = "morze"\n', '2: asr.engine: must be one of "qwen3-asr", '),
        ('[agent]\nkind = "telegram"\n', '2: agent.kind: must be one of "frontdesk", '),
        (
            f"{AGENT}[agents.b]\nkind = 'offhook_morse.clerk:CLERK'\n"
            "[agents.b.settings]\ncents_word = 2\n",
            "7: agents.b.settings.cents_word: there is no such key; did you mean cents_a_word?",
        ),
        (
            f"{AGENT}[agents.b]\nkind = 'telegraph'\nsettings = {{cents_a_word = -1}}\n",
            "6: agents.b.settings.cents_a_word: must be a whole number from 0 to 1000, not -1",
        ),
        (
            "[agent]\nkind = 'openai'\n[[agent.tools]]\nfunction = 'in_morse'\n"
            "settings = {dit = 'o'}\n",
            "5: agent.tools.0.settings.dit: there is no such key; did you mean dot?",
        ),
        (
            "[agent]\nkind = 'openai'\n[[agent.tools]]\nfunction = 'in_morze'\n",
            "4: agent.tools.0.function: no package offers 'in_morze'",
        ),
        ("[agent]\nkind = 'offhook_morse:NOBODY'\n", "2: agent.kind: offhook_morse:NOBODY cannot"),
        (f"{AGENT}temperature = 1\n", '4: agent.temperature: only for kind = "openai"'),
    ],
)
def test_what_does_not_fit_is_said_with_its_place(plugged: Path, text: str, fault: str) -> None:
    (plugged.parent / "offhook.toml").write_text(text)
    done = subprocess.run(
        [sys.executable, "-m", "offhook", "serve"],
        cwd=plugged.parent,
        env=environment(PYTHONPATH=os.environ["PYTHONPATH"]),
        capture_output=True,
        text=True,
        timeout=HANGS_S,
    )
    assert done.returncode == 1
    assert f"offhook.toml:{fault}" in done.stderr


@pytest.mark.slow
def test_a_server_hears_and_speaks_with_it_in_workers(plugged: Path) -> None:
    """The doctor and the server know its name and never import it."""
    folder = plugged.parent
    (folder / "offhook.toml").write_text(
        '[asr]\nengine = "morse"\n[tts]\nengine = "offhook_morse.voice:Voice"\n'
    )
    found = run(folder, "-c", EXAMINE)
    assert "morse, in a worker started by the first call" in found
    assert "offhook_morse.voice:Voice, in a worker started by the first reply" in found
    assert not imported(plugged)
    with ExitStack() as stack:
        server, log = start(stack, folder, "edge", path=Path(os.environ["PYTHONPATH"]))
        base = f"http://{address(server, log)}"
        body = json.dumps({"input": TEXT, "response_format": "wav", "voice": "high"}).encode()
        asked = Request(f"{base}/v1/audio/speech", body, {"Content-Type": "application/json"})
        with urlopen(asked, timeout=HANGS_S) as answer:
            said = answer.read()
        form = (
            b'--b\r\nContent-Disposition: form-data; name="file"; filename="said.wav"\r\n'
            b"Content-Type: audio/wav\r\n\r\n" + said + b"\r\n--b--\r\n"
        )
        of_form = {"Content-Type": "multipart/form-data; boundary=b"}
        asked = Request(f"{base}/v1/audio/transcriptions", form, of_form)
        with urlopen(asked, timeout=HANGS_S) as answer:
            assert json.load(answer)["text"].split() == TEXT.split()
        (hears,), (speaks,) = (imported(plugged)[name] for name in sorted(ENGINES))
        assert len({server.pid, hears, speaks}) == 3
        assert server.pid not in imported(plugged)["offhook_morse"]


@pytest.mark.slow
def test_an_agent_of_it_answers_calls(plugged: Path) -> None:
    """The server imports the agent, and no engine; the doctor what describes it."""
    folder = plugged.parent
    (folder / "offhook.toml").write_text(AGENT)
    assert "['offhook_morse', 'offhook_morse.clerk']" in run(folder, "-c", EXAMINE)
    said = run(folder, "-m", "offhook", "chat", "--say", "What hath God wrought?")
    assert "This is the office in Baltimore." in said
    assert "I have: What hath God wrought, stop. That is 20 cents." in said
    plugged.write_text("")
    with ExitStack() as stack:
        server, log = start(stack, folder, "edge", path=Path(os.environ["PYTHONPATH"]))
        base = f"http://{address(server, log)}"
        with urlopen(f"{base}/status", timeout=HANGS_S) as answer:
            assert json.load(answer)["answers"]["title"] == "A telegraph clerk answers"
        report = run(
            folder, "-m", "offhook", "call", base, "--json", "--say", "What are your opening hours?"
        )
        assert "This is the office in Baltimore." in report
        assert imported(plugged)["offhook_morse.clerk_io"] == {server.pid}
        assert not ENGINES & imported(plugged).keys()


@pytest.mark.slow
def test_a_model_calls_a_tool_of_it(plugged: Path) -> None:
    folder = plugged.parent

    async def said() -> str:
        async with model() as endpoint:
            endpoint.answers = [[calls("in_morse", text="sos")], [says("There it is.")]]
            (folder / "offhook.toml").write_text(
                f'[agent]\nkind = "openai"\nmodel = "m"\nbase_url = "{endpoint.url}"\n'
                'greeting = "Hello."\n[[agent.tools]]\nfunction = "in_morse"\n'
                'settings = {dot = "*"}\n'
            )
            return await asyncio.to_thread(run, folder, "-m", "offhook", "chat", "--say", "SOS!")

    told = asyncio.run(said())
    assert '-> in_morse {"text": "sos"}' in told
    assert '<- {"code": "*** --- ***"}' in told
    found = run(folder, "-c", EXAMINE)
    assert "agent in_morse" in found
    assert "in_morse(text)" in found
