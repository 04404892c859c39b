"""Nemotron as users have it: files, a worker's streams, a call. The model is tiny and babbles."""

import asyncio
import json
import re
from collections.abc import AsyncIterator
from pathlib import Path

import numpy as np
import pytest
import pytest_asyncio
from aiohttp.test_utils import TestServer

from offhook.media.pcm import RATE_IN, Pcm
from offhook.pipeline.engines.shared.asr_models import AsrModels
from offhook.pipeline.speech.errors import EngineError
from offhook.pipeline.speech.recognizer import Final, Partial, Recognizer, StreamOptions
from offhook.pipeline.speech.remote.recognizer_io import RemoteRecognizer
from offhook.pipeline.speech.streams.speech_gate_io import GatedRecognizer
from offhook.web.app.cli import main as cli
from offhook.web.app.cli.caller_io import ScriptedCall, ScriptLine
from offhook.web.config.config import Config
from offhook.web.config.engines import Asr
from offhook.web.config.server import Server, WebRtc
from offhook.web.edge.edge_io import Edge
from offhook.web.edge.server_io import application
from offhook.web.workers.engines.engines_io import open_recognizer
from offhook.web.workers.local_worker_io import local_workers, on_demand
from offhook.web.workers.worker_child_io import ChildSettings
from tests.support.waiting import HANGS_S
from tests.web.speech_api.recordings import spoken, write_wav

pytest.importorskip("torch")
# A transformers that knows no Nemotron does not do.
tiny_nemotron = pytest.importorskip(
    "tests.pipeline.engines.nemotron.model.tiny", exc_type=ImportError
)

module_loop = pytest.mark.asyncio(loop_scope="module")


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(tiny_nemotron.write(tmp_path_factory.mktemp("nemotron")))


@pytest.fixture(scope="module")
def several_languages(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("nemotron")
    return str(tiny_nemotron.write(folder, tiny_nemotron.MULTILINGUAL))


@pytest.fixture(scope="module")
def noise() -> Pcm:
    """3 s, now louder, now lower."""
    sound = np.random.default_rng(2).normal(0, 3000, 3 * RATE_IN)
    return (sound * (1 + np.sin(np.arange(len(sound)) / 3000))).astype(np.int16)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def worker(model: str) -> AsyncIterator[RemoteRecognizer]:
    async with on_demand(ChildSettings("nemotron", AsrModels(model, "cpu"), 8, 0, "INFO")) as url:
        recognizer = RemoteRecognizer(url)
        async with asyncio.timeout(HANGS_S):
            await recognizer.start()
        yield recognizer
        await recognizer.close()


async def heard(
    recognizer: Recognizer, pcm: Pcm, options: StreamOptions
) -> tuple[list[Partial], Final]:
    """Fed 20 ms at a time."""
    stream = await recognizer.open(options)
    partials: list[Partial] = []
    async with asyncio.timeout(HANGS_S):
        for at in range(0, len(pcm), 320):
            stream.feed(pcm[at : at + 320])
            await asyncio.sleep(0.002)
        stream.finish()
        async for event in stream.events():
            if isinstance(event, Final):
                break
            partials.append(event)
    await stream.close()
    assert isinstance(event, Final)
    return partials, event


@module_loop
@pytest.mark.parametrize("update_ms", [80, 400, 1120])
async def test_a_worker_hears_what_the_engine_hears(
    worker: RemoteRecognizer, model: str, noise: Pcm, update_ms: int
) -> None:
    options = StreamOptions(update_ms=update_ms)
    partials, final = await heard(worker, noise, options)
    alone = open_recognizer("nemotron", AsrModels(model, "cpu"))
    await alone.start()
    _, wanted = await heard(alone, noise, options)
    await alone.close()
    assert final == wanted
    assert final.text
    assert all(final.text.startswith(partial.text) for partial in partials)
    assert [word.text for word in final.words] == final.text.split()
    for times in zip(*((word.start_ms, word.end_ms) for word in final.words), strict=True):
        assert list(times) == sorted(times)


@module_loop
async def test_the_right_context_is_chosen_by_the_stream(
    worker: RemoteRecognizer, noise: Pcm
) -> None:
    """The words of one worker differ by it, and do so for everybody alike."""
    texts = {}
    for update_ms in (80, 160, 400, 559, 560, 1120):
        _, final = await heard(worker, noise, StreamOptions(update_ms=update_ms))
        texts[update_ms] = final.text
    # On a CPU 560 ms at least; `test_engine` has the others.
    assert texts[80] == texts[160] == texts[400] == texts[559] == texts[560] != texts[1120]


@module_loop
async def test_english_only_is_said(worker: RemoteRecognizer, noise: Pcm) -> None:
    with pytest.raises(EngineError, match="hears English only, not 'de'"):
        await worker.start(StreamOptions(language="de"))
    _, final = await heard(worker, noise, StreamOptions(language="en"))
    assert (final.language, final.text != "") == ("en", True)


async def test_a_language_is_a_prompt(several_languages: str, noise: Pcm) -> None:
    recognizer = open_recognizer("nemotron", AsrModels(several_languages, "cpu"))
    await recognizer.start()
    assert isinstance(recognizer, GatedRecognizer)
    assert {"en", "de", "zh"} <= set(recognizer.languages)
    try:
        texts = [
            (await heard(recognizer, noise, StreamOptions(language=language)))[1].text
            for language in ("en", "de", None)
        ]
        assert len(set(texts)) == 3
        with pytest.raises(EngineError, match=r"does not know 'xx'; it knows af, .*zh"):
            await recognizer.open(StreamOptions(language="xx"))
    finally:
        await recognizer.close()


def test_a_file_is_written_down_with_times_of_words(
    model: str, noise: Pcm, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = write_wav(tmp_path / "noise.wav", noise)
    command = ["transcribe", "--engine", "nemotron", "--model", model, "--device", "cpu"]
    assert cli.main([*command, "--json", str(path)]) == 0
    (segment,) = json.loads(capsys.readouterr().out)["segments"]
    assert segment["words"]
    assert " ".join(word["text"] for word in segment["words"]) == segment["text"]
    assert cli.main([*command, "--language", "de", str(path)]) == 1
    assert "hears English only" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (("--final-model", "x"), "Nemotron has no second model"),
        (("--aligner", "x"), "Nemotron has no aligner"),
        (
            ("--precision", "int8-weights"),
            "Nemotron on a CPU has the precisions auto, .*int8, not",
        ),
        (("--model", "/nowhere"), "no folder /nowhere"),
    ],
)
def test_what_it_has_not_is_said(
    model: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    options: tuple[str, str],
    says: str,
) -> None:
    path = write_wav(tmp_path / "silence.wav", np.zeros(RATE_IN, np.int16))
    command = ["transcribe", "--engine", "nemotron", "--model", model, "--device", "cpu"]
    assert cli.main([*command, *options, str(path)]) == 1
    assert re.search(says, capsys.readouterr().err)


@pytest.mark.slow
@pytest.mark.usefixtures("loopback")
async def test_a_caller_is_heard_and_answered(model: str) -> None:
    """By a server that starts the worker of its own."""
    asr = Asr(engine="nemotron", model=model, device="cpu", update_ms=80, preload=True)
    config = Config(webrtc=WebRtc(addresses=["127.0.0.1"]), server=Server(port=0), asr=asr)
    async with local_workers(config) as served, asyncio.timeout(HANGS_S):
        edge = Edge(served)
        await edge.start()
        server = TestServer(application(edge))
        await server.start_server()
        try:
            while not edge.ready:
                await asyncio.sleep(0.05)
            question = ScriptLine("a question", spoken("are you open on sunday"))
            report = await ScriptedCall(str(server.make_url("/")), [question]).run()
        finally:
            await server.close()
            await edge.close()
    (turn,) = report.turns
    assert turn.heard
    assert turn.reply
