"""Pocket TTS as users have it: a worker's streams, its voices over HTTP, a file, a call. The model
is tiny and says noise."""

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path

import aiohttp
import numpy as np
import pytest
import pytest_asyncio
from aiohttp.test_utils import TestServer

from offhook.media.pcm import RATE_OUT, Pcm
from offhook.pipeline.engines.shared.tts_models import TtsModels
from offhook.pipeline.speech.errors import EngineError
from offhook.pipeline.speech.remote.synthesizer_io import RemoteSynthesizer
from offhook.pipeline.speech.synthesizer import Speech, Synthesizer, VoiceOptions
from offhook.web.app.cli import main as cli
from offhook.web.app.cli.caller_io import ScriptedCall, ScriptLine
from offhook.web.config.config import Config
from offhook.web.config.engines import Tts
from offhook.web.config.server import Server, WebRtc
from offhook.web.edge.edge_io import Edge
from offhook.web.edge.server_io import application
from offhook.web.workers.engines.engines_io import open_synthesizer
from offhook.web.workers.local_worker_io import on_demand
from offhook.web.workers.worker_child_io import ChildSettings
from tests.support.waiting import HANGS_S
from tests.web.speech_api.recordings import spoken as recorded

pytest.importorskip("torch")
pocket_checkpoint = pytest.importorskip("tests.support.pocket_checkpoint", exc_type=ImportError)

module_loop = pytest.mark.asyncio(loop_scope="module")
TEXT = "Hello there, how are you today? I am fine, and it costs $5."
SEEDED = VoiceOptions(seed=5, cache=False)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(pocket_checkpoint.write(tmp_path_factory.mktemp("pocket")))


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def worker(model: str) -> AsyncIterator[RemoteSynthesizer]:
    async with on_demand(ChildSettings("pocket", TtsModels(model), 8, 0, "INFO")) as url:
        synthesizer = RemoteSynthesizer(url)
        async with asyncio.timeout(HANGS_S):
            await synthesizer.start()
        yield synthesizer
        await synthesizer.close()


async def said(
    synthesizer: Synthesizer, text: str = TEXT, options: VoiceOptions = SEEDED
) -> list[Speech]:
    """Written word by word, as an agent does."""
    reply = synthesizer.open(options)
    for word in text.split(" "):
        reply.write(word if text.endswith(word) else f"{word} ")
        await asyncio.sleep(0)
    reply.end()
    async with asyncio.timeout(HANGS_S):
        return [piece async for piece in reply]


def sound(pieces: list[Speech]) -> Pcm:
    return np.concatenate([piece.pcm for piece in pieces])


@module_loop
async def test_a_worker_says_what_the_engine_says(worker: RemoteSynthesizer, model: str) -> None:
    pieces, other = await asyncio.gather(
        said(worker), said(worker, options=VoiceOptions("marius", seed=6, cache=False))
    )
    assert "".join(piece.text for piece in pieces) == TEXT
    alone = open_synthesizer("pocket", TtsModels(model))
    await alone.start()
    wanted = await said(alone)
    await alone.close()
    assert np.array_equal(sound(pieces), sound(wanted))
    assert not np.array_equal(sound(pieces), sound(other))
    marks = np.cumsum([len(piece.pcm) for piece in pieces if piece.text])
    assert len(marks) > 1
    assert (np.diff(marks) >= 0).all()


@module_loop
async def test_a_reply_that_is_cancelled_leaves_the_worker_free(worker: RemoteSynthesizer) -> None:
    reply = worker.open(SEEDED)
    reply.write(f"{TEXT} " * 50)
    reply.end()
    async with asyncio.timeout(HANGS_S):
        async for _ in reply:
            reply.cancel()
    assert "".join(piece.text for piece in await said(worker)) == TEXT


@module_loop
async def test_what_it_cannot_do_is_said(worker: RemoteSynthesizer) -> None:
    with pytest.raises(EngineError, match="no voice 'jean', only alba, marius, estelle"):
        await worker.start(VoiceOptions("jean"))
    with pytest.raises(EngineError, match="speaks 'en' only, not 'fr'"):
        await worker.start(VoiceOptions(language="fr"))


@module_loop
@pytest.mark.usefixtures("loopback")
async def test_a_caller_hears_it_and_its_voices_are_listed(worker: RemoteSynthesizer) -> None:
    url = worker._connections.workers.url
    config = Config(
        webrtc=WebRtc(addresses=["127.0.0.1"]),
        server=Server(port=0),
        tts=Tts(url=url, voice="marius"),
    )
    edge = Edge(config)
    await edge.start()
    server = TestServer(application(edge))
    await server.start_server()
    try:
        async with asyncio.timeout(HANGS_S):
            while not edge.ready:
                await asyncio.sleep(0.05)
            async with (
                aiohttp.ClientSession(server.make_url("/")) as client,
                client.get("/v1/audio/voices") as response,
            ):
                voices = await response.json()
            question = ScriptLine("a question", recorded("are you open on sunday"))
            report = await ScriptedCall(str(server.make_url("/")), [question]).run()
    finally:
        await server.close()
        await edge.close()
    assert voices["default"] == "alba"
    listed = {voice["name"]: (voice["languages"], voice["licence"]) for voice in voices["data"]}
    assert listed["marius"] == (["en"], "CC0-1.0")
    assert report.greeting
    (turn,) = report.turns
    assert turn.reply


def test_a_text_becomes_a_file(
    model: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    command = ["speak", TEXT, "--engine", "pocket", "--model", model]
    assert cli.main([*command, "--voice", "marius", "--precision", "fp32", "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert result["voice"] == "marius"
    assert "".join(word["text"] for word in result["words"]) == TEXT
    ends = [word["end_ms"] for word in result["words"]]
    assert ends == sorted(ends)
    assert 1000 * result["seconds"] >= ends[-1]
    assert result["seconds"] * RATE_OUT > 10_000
    assert cli.main([*command, "--voice", "nobody"]) == 1
    assert "no voice 'nobody'" in capsys.readouterr().err
