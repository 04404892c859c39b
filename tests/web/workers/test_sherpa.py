"""The engine sherpa as users have it: a worker of the server, files, and models that end it."""

import asyncio
import json
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import aiohttp
import numpy as np
import pytest
import pytest_asyncio
from aiohttp.test_utils import TestServer
from loguru import logger

pytest.importorskip("sherpa_onnx")

from offhook.pipeline.engines.shared.asr_models import AsrModels
from offhook.pipeline.speech.errors import EngineError
from offhook.pipeline.speech.recognizer import Final, Partial, StreamOptions
from offhook.pipeline.speech.remote.recognizer_io import RemoteRecognizer
from offhook.web.app.cli import main as cli
from offhook.web.app.cli.caller_io import ScriptedCall, ScriptLine
from offhook.web.app.cli.transcribe_io import in_worker
from offhook.web.config.config import Config
from offhook.web.config.engines import Asr, Tts
from offhook.web.config.programs import Speech
from offhook.web.config.server import Server, WebRtc
from offhook.web.edge.edge_io import Edge
from offhook.web.edge.server_io import application
from offhook.web.http.listening_io import Address
from offhook.web.workers import gateway_io, local_worker_io
from offhook.web.workers.local_worker_io import local_workers, on_demand
from offhook.web.workers.worker_child_io import ChildSettings
from tests.support import tiny_sherpa
from tests.support.processes import gone
from tests.support.tiny_sherpa import sound, text
from tests.support.waiting import HANGS_S, until
from tests.web.speech_api.recordings import spoken, write_wav
from tests.web.workers.workers import children_started

module_loop = pytest.mark.asyncio(loop_scope="module")
MELODIES = [(0, 1, 2, 3), (6, 5, 4), (2, 7, 0, 5, 1)]
BLIND = """
from offhook.pipeline.engines.sherpa import model_files
from offhook.web.workers import worker_child_io

model_files._need = lambda *of: None
worker_child_io.main()
"""
"""A worker that does not see what is wrong with a model: sherpa-onnx does."""


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(tiny_sherpa.zipformer2(tmp_path_factory.mktemp("sherpa") / "tones-en"))


@pytest.fixture
def started() -> Iterator[list[int]]:
    with children_started() as pids:
        yield pids


@pytest.fixture
def log() -> Iterator[list[str]]:
    lines: list[str] = []
    sink = logger.add(lambda message: lines.append(str(message)), level="ERROR")
    yield lines
    logger.remove(sink)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def worker(model: str) -> AsyncIterator[RemoteRecognizer]:
    async with on_demand(ChildSettings("sherpa", AsrModels(model), 8, 0, "INFO")) as url:
        recognizer = RemoteRecognizer(url)
        async with asyncio.timeout(HANGS_S):
            await recognizer.start()
        yield recognizer
        await recognizer.close()


async def heard(
    recognizer: RemoteRecognizer, labels: tuple[int, ...], options: StreamOptions
) -> tuple[list[str], Final]:
    stream = await recognizer.open(options)
    pcm, partials = sound(*labels), []
    for at in range(0, len(pcm), 320):
        stream.feed(pcm[at : at + 320])
        await asyncio.sleep(0)
    stream.finish()
    async with asyncio.timeout(HANGS_S):
        async for event in stream.events():
            if isinstance(event, Final):
                break
            assert isinstance(event, Partial)
            partials.append(event.text)
    await stream.close()
    return partials, event


@module_loop
async def test_callers_of_a_worker_are_heard_each_as_alone(worker: RemoteRecognizer) -> None:
    options = StreamOptions(language="en-GB")
    found = await asyncio.gather(*(heard(worker, labels, options) for labels in MELODIES))
    for (partials, final), labels in zip(found, MELODIES, strict=True):
        assert (final.text, final.language) == (text(*labels), "en")
        assert [word.text for word in final.words] == final.text.split()
        assert all(final.text.startswith(partial) for partial in partials)


@module_loop
async def test_another_language_is_refused(worker: RemoteRecognizer) -> None:
    with pytest.raises(EngineError, match="hears en, not 'de': another language needs another"):
        await worker.start(StreamOptions(language="de"))


def test_a_file_is_written_down_with_times_of_words(
    model: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = write_wav(tmp_path / "chords.wav", np.concatenate([sound(*MELODIES[0])] * 3))
    assert (
        cli.main(["transcribe", "--engine", "sherpa", "--model", model, "--json", str(path)]) == 0
    )
    written = json.loads(capsys.readouterr().out)
    assert written["text"] == " ".join([text(*MELODIES[0])] * 3)
    assert written["language"] == "en"
    words = [word for segment in written["segments"] for word in segment["words"]]
    assert [word["text"] for word in words] == written["text"].split()


# --- models that are wrong ---


async def test_a_model_that_is_wrong_is_told_before_it_is_loaded(
    tmp_path: Path, started: list[int]
) -> None:
    folder = tiny_sherpa.zipformer2(tmp_path)
    (folder / "encoder.onnx").write_bytes(b"\x00garbage" * 1000)
    with pytest.raises(EngineError, match=r"encoder\.onnx cannot be used: it is not ONNX"):
        async with asyncio.timeout(HANGS_S), in_worker("sherpa", AsrModels(str(folder))):
            pass
    assert len(started) == 1


async def test_a_model_that_ends_the_worker_ends_nothing_else_and_the_reason_is_told(
    tmp_path: Path, started: list[int], log: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tiny_sherpa.zipformer2(tmp_path, drop=["num_heads"])
    monkeypatch.setattr(local_worker_io, "COMMAND", (sys.executable, "-c", BLIND))
    config = Config(
        asr=Asr(engine="sherpa", model=str(folder), preload=False),
        tts=Tts(engine="flite"),
        speech=Speech(enabled=True),
    )
    async with (
        asyncio.timeout(HANGS_S),
        gateway_io.opened(config, [Address.parse("127.0.0.1:0")]) as g,
    ):
        url = g.listening[0]
        form = {"model": str(folder), "file": tiny_wav(tmp_path)}
        async with aiohttp.ClientSession(url) as client:
            for _ in range(2):
                async with client.post("/v1/audio/transcriptions", data=as_form(form)) as answer:
                    assert answer.status == 503
                async with client.get("/healthz") as answer:
                    assert answer.status == 200
    (told,) = (line for line in log if "given up" in line)
    assert f"the model {folder} was refused: 'num_heads' does not exist in the metadata" in told
    assert "ended with status 255" in told
    assert len(started) == 1
    await until(lambda: gone(started[0]))


def tiny_wav(folder: Path) -> bytes:
    return Path(write_wav(folder / "tone.wav", sound(0))).read_bytes()


def as_form(fields: dict[str, str | bytes]) -> aiohttp.FormData:
    form = aiohttp.FormData()
    for name, content in fields.items():
        named = {"filename": "tone.wav"} if isinstance(content, bytes) else {}
        form.add_field(name, content, **named)
    return form


@pytest.mark.slow
@pytest.mark.usefixtures("loopback")
@pytest.mark.parametrize("wrong", [False, True])
async def test_a_caller_is_answered_also_where_the_model_is_wrong(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, wrong: bool
) -> None:
    """Speech makes the model say some chords; a wrong one says nothing, and the caller is told."""
    folder = tiny_sherpa.zipformer2(tmp_path, drop=["num_heads"] if wrong else [])
    if wrong:
        monkeypatch.setattr(local_worker_io, "COMMAND", (sys.executable, "-c", BLIND))
    config = Config(
        webrtc=WebRtc(addresses=["127.0.0.1"]),
        server=Server(port=0),
        asr=Asr(engine="sherpa", model=str(folder), preload=False),
    )
    async with local_workers(config) as here, asyncio.timeout(3 * HANGS_S):
        edge = Edge(here)
        await edge.start()
        server = TestServer(application(edge))
        await server.start_server()
        try:
            question = ScriptLine("a question", spoken("are you open on sunday"))
            report = await ScriptedCall(str(server.make_url("/")), [question]).run()
            assert edge.ready
        finally:
            await server.close()
            await edge.close()
    (turn,) = report.turns
    assert bool(turn.heard) is not wrong
    assert turn.reply
