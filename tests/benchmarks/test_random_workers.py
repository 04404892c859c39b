"""Workers with random weights are workers in all but their words and their sound."""

import asyncio
import json
from contextlib import nullcontext
from typing import Any

import aiohttp
import numpy as np
import pytest

torch = pytest.importorskip("torch")

from benchmarks.engines.random_workers import ENGINES, worker  # noqa: E402
from benchmarks.processes.process import child  # noqa: E402
from benchmarks.speech.http_load import Failed  # noqa: E402
from benchmarks.speech.texts import frames_of  # noqa: E402
from benchmarks.voices.listening import Listener, Tally  # noqa: E402
from benchmarks.voices.tts_door import (  # noqa: E402
    Ask,
    by_commands,
    by_message,
    by_request,
)
from offhook.media.pcm import RATE_IN, RATE_OUT  # noqa: E402
from offhook.pipeline.engines.shared.tts_models import NO_CACHE  # noqa: E402
from offhook.pipeline.speech.recognizer import Final  # noqa: E402
from offhook.pipeline.speech.remote.recognizer_io import RemoteRecognizer  # noqa: E402
from offhook.pipeline.speech.remote.synthesizer_io import RemoteSynthesizer  # noqa: E402
from offhook.web.workers.worker_io import Worker, WorkerSettings  # noqa: E402
from tests.support.waiting import HANGS_S  # noqa: E402
from tests.web.workers.workers import Client, served  # noqa: E402

FRAME_SAMPLES = RATE_OUT * 8 // 100


def tiny(kind: str) -> Worker[Any]:
    return worker(kind, "tiny", WorkerSettings(ENGINES[kind], "random", 4, audio_cache=NO_CACHE))


def url_of(client: Client) -> str:
    return str(client.make_url("")).rstrip("/")


@pytest.mark.parametrize(("kind", "fewest"), [("asr", 7), ("nemotron", 4)])
async def test_two_seconds_of_noise_have_words(kind: str, fewest: int) -> None:
    noise = np.random.default_rng(0).standard_normal(2 * RATE_IN) * 3000
    async with served(tiny(kind)) as (client, _), asyncio.timeout(HANGS_S):
        recognizer = RemoteRecognizer(url_of(client))
        await recognizer.start()
        stream = await recognizer.open()
        stream.feed(noise.astype(np.int16))
        stream.finish()
        async for event in stream.events():
            if isinstance(event, Final):
                break
        assert fewest <= len(event.text.split()) <= 14  # 4.5 a second, drawn
        await stream.close()
        await recognizer.close()


def ask(text: str) -> Ask:
    tally = Tally()
    return Ask(text, Listener(tally, 0.0), tally)


@pytest.mark.slow
async def test_a_word_takes_as_long_as_it_is_planned_to() -> None:
    text = "The tree."
    frames = frames_of(3)  # two words and a mark
    request = {"input": text, "voice": "Ryan", "response_format": "pcm"}
    async with served(tiny("tts")) as (client, _), asyncio.timeout(HANGS_S):
        async with client.post("/v1/audio/speech", json=request) as answer:
            assert answer.status == 200
            sound = np.frombuffer(await answer.read(), np.int16)
        synthesizer = RemoteSynthesizer(url_of(client))
        await synthesizer.start()
        reply = synthesizer.open()
        reply.write(text)
        reply.end()
        said = [speech async for speech in reply]
        await synthesizer.close()
        async with aiohttp.ClientSession(url_of(client)) as http:
            for way in (by_request, by_message, by_commands):
                heard, wrong = ask(text), ask(" ")
                await way(http, heard)
                assert len(heard.tally.first_ms) == 1
                assert heard.listener.frames == pytest.approx(frames, abs=2)
                with pytest.raises(Failed) if way is not by_commands else nullcontext():
                    await way(http, wrong)
                assert not wrong.heard
    assert "".join(speech.text for speech in said) == text
    assert len(sound) == pytest.approx(frames * FRAME_SAMPLES, abs=2 * FRAME_SAMPLES)
    total = sum(len(speech.pcm) for speech in said)
    assert total == pytest.approx(frames * FRAME_SAMPLES, abs=2 * FRAME_SAMPLES)


@pytest.mark.slow
async def test_a_process_says_where_it_listens_and_when_it_is_ready() -> None:
    arguments = ("nemotron", "--model", "tiny", "--listen", "127.0.0.1:0", "--max-streams", "3")
    async with child("benchmarks.engines.random_workers", *arguments) as running:
        where = running.hello["listening"]
        assert await running.line(HANGS_S) == {"ready": True}
        async with aiohttp.ClientSession() as http, http.get(f"{where}/readyz") as answer:
            assert answer.status == 200
            assert json.loads(await answer.text())["max_streams"] == 3
        running.process.terminate()
        assert await running.process.wait() == 0


async def test_nemotron_has_one_size() -> None:
    with pytest.raises(ValueError, match="Nemotron has"):
        worker("nemotron", "1.7B", WorkerSettings("nemotron", ""))
