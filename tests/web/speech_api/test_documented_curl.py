"""Every curl command of the documents, pasted as it stands against a server of that moment."""

import asyncio
import re
import shutil
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
import pytest_asyncio

from offhook.media.pcm import RATE_OUT
from tests.support.waiting import HANGS_S
from tests.web.speech_api.conftest import Quick, Served, quickly_served
from tests.web.speech_api.http.test_alignments import aligning
from tests.web.speech_api.recordings import QUESTION, encoded, spoken, write_video, write_wav

ROOT = Path(__file__).parents[3]
DOCUMENT = ROOT / "docs/speech-api.md"
PLAYERS = re.compile(r"\| (ffplay|aplay) .*")
NEEDS_CLONES = ("/v1/audio/clone", "-F name=anna", "/voices/anna")
"""What the embedded voices cannot do: they say so."""

pytestmark = pytest.mark.asyncio(loop_scope="module")
needs_curl = pytest.mark.skipif(not shutil.which("curl"), reason="curl is not installed")


def commands() -> Iterator[str]:
    """Commands of the speech API, each in one line."""
    text = DOCUMENT.read_text()
    for language, block in re.findall(r"^```(\w*)\n(.*?)^```", text, re.DOTALL | re.MULTILINE):
        if language not in ("", "sh"):
            continue
        for line in block.replace("\\\n", " ").splitlines():
            if line.startswith("curl ") and "/v1/audio" in line:
                yield " ".join(line.partition("  #")[0].split())


ALL = sorted(set(commands()))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """With the files that the commands name."""
    folder = tmp_path_factory.mktemp("files")
    speech = spoken()
    (folder / "talk.raw").write_bytes(speech.astype("<i2").tobytes())
    write_wav(folder / "anna.wav", speech)
    (folder / "hello.mp3").write_bytes(encoded(speech, "mp3", "libmp3lame"))
    write_video(folder / "talk.mp4", speech)
    return folder


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def hearing() -> AsyncIterator[Quick]:
    """A server that hears the same in every recording, and at once."""
    async with quickly_served() as server:
        server.ears.says = [QUESTION]
        yield server


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def aligner() -> AsyncIterator[Quick]:
    async with quickly_served() as server:
        aligning(server)
        yield server


async def test_there_are_examples():
    assert len(ALL) >= 8


@needs_curl
@pytest.mark.parametrize("command", ALL)
async def test_a_documented_command_does_what_is_said(
    command: str, hearing: Quick, aligner: Quick, speech_server: Served, folder: Path
) -> None:
    scripted = {"transcriptions": hearing, "alignments": aligner}
    asked = command.partition("/v1/audio/")[2].partition(" ")[0].partition("/")[0]
    url = (scripted.get(asked) or speech_server).url
    there = re.sub(r"(http://)?localhost:7862", url, command)
    there = PLAYERS.sub("", there)
    process = await asyncio.create_subprocess_shell(
        there.replace("curl ", "curl -sS ", 1),
        cwd=folder,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    async with asyncio.timeout(HANGS_S):
        out, err = await process.communicate()
    assert (process.returncode, err) == (0, b"")
    if any(part in command for part in NEEDS_CLONES):
        assert b"cannot_clone" in out or (folder / "hello.wav").exists()
        return
    if "-o " in command:
        out = (folder / command.partition("-o ")[2].split()[0]).read_bytes()
    assert out
    assert b'"error"' not in out
    if "/transcriptions" in command:
        assert b"opening" in out
    if "/speech/pcm" in command:
        assert len(out) > RATE_OUT
