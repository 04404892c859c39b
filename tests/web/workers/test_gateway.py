"""`offhook speech` with real workers: started by a request, ended when idle, killed in between."""

import asyncio
import io
import json
import os
import signal
import stat
import sys
import wave
from asyncio.subprocess import Process
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from itertools import count
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import aiohttp
import numpy as np
import pytest
from openai import AsyncOpenAI

from benchmarks.speech.number_words import worker
from offhook.media.pcm import RATE_OUT
from offhook.pipeline.engines.embedded.flite_io import FliteSynthesizer
from offhook.pipeline.speech.errors import EngineError
from offhook.pipeline.speech.recognizer import StreamOptions
from offhook.pipeline.speech.remote import recognizer_io as remote_recognizer_io
from offhook.pipeline.speech.remote.recognizer_io import RemoteRecognizer
from offhook.processes.child_io import oom_kills
from offhook.web.config.config import Config, ConfigError
from offhook.web.http.listening_io import Address
from offhook.web.workers.gateway_io import Gateway, opened
from offhook.web.workers.worker_io import WorkerSettings
from tests.support.memory_group import memory_group, move
from tests.support.processes import gone
from tests.support.waiting import HANGS_S, until
from tests.web.speech_api.conftest import client_of
from tests.web.workers.workers import ROOT, LosableServer, children, children_started

QUESTION = "What are your opening hours?"
WORDS = {"what", "are", "your", "opening", "hours"}
TALE = " ".join(
    [
        "The house stands at the end of the road.",
        "Nobody has lived in it for twenty years.",
        "In the evening the windows are dark.",
        "But sometimes a man comes and looks at the door.",
    ]
)


@pytest.fixture(autouse=True)
def _flite() -> None:
    try:
        FliteSynthesizer().load()
    except EngineError as error:
        pytest.skip(str(error))


@pytest.fixture
def started() -> Iterator[list[int]]:
    with children_started() as pids:
        yield pids


class Client:
    """A program that uses a gateway."""

    def __init__(self, gateway: Gateway, url: str, http: aiohttp.ClientSession) -> None:
        self.gateway, self.url, self.http = gateway, url, http

    async def speak(self, text: str, form: str = "wav") -> bytes:
        asked = {"model": "tts-1", "voice": "slt", "input": text, "response_format": form}
        async with self.http.post("/v1/audio/speech", json=asked) as answer:
            data = await answer.read()
            assert answer.status == 200, data
            return data

    async def hear(self, file: bytes) -> str:
        async with self.http.post("/v1/audio/transcriptions", data=form_of(file)) as answer:
            table = await answer.json()
            assert answer.status == 200, table
            return str(table["text"])

    async def ready(self) -> dict[str, Any]:
        async with self.http.get("/readyz") as answer:
            return {"status": answer.status, **await answer.json()}


def form_of(file: bytes) -> aiohttp.FormData:
    form = aiohttp.FormData({"model": "whisper-1"})
    form.add_field("file", file, filename="speech.wav")
    return form


@asynccontextmanager
async def gateway(**engines: Any) -> AsyncIterator[Client]:
    """`engines`: asr_KEY and tts_KEY of the configuration."""
    sections: dict[str, dict[str, Any]] = {"asr": {"processes": 1}, "tts": {}}
    for name, value in engines.items():
        section, _, key = name.partition("_")
        sections[section][key] = value
    config = Config.model_validate(sections)
    async with opened(config, [Address("127.0.0.1", 0)]) as there:
        url = there.listening[0]
        async with aiohttp.ClientSession(url) as http:
            yield Client(there, url, http)


def words(text: str) -> set[str]:
    return set(text.lower().strip("?. ").split())


def silence(seconds: float) -> bytes:
    file = io.BytesIO()
    with wave.open(file, "wb") as writer:
        writer.setparams((1, 2, 16000, 0, "NONE", ""))
        writer.writeframes(np.zeros(int(16000 * seconds), "<i2").tobytes())
    return file.getvalue()


# --- coming and going ---


async def test_workers_start_with_the_first_request_that_needs_them(started: list[int]) -> None:
    async with gateway() as client:
        state = {"status": 200, "ready": True, "asr": "pocketsphinx", "tts": "", "free": 1.0}
        assert state.items() <= (await client.ready()).items()
        models = [model.id for model in (await client_of(client.url).models.list()).data]
        assert models[0] == "en-us"
        await asyncio.sleep(0.2)
        assert not started
        file = await client.speak(QUESTION)
        assert len(started) == 1
        assert len(words(await client.hear(file)) & WORDS) >= 4
        assert len(started) == 2
        assert len(words(await client.hear(await client.speak(QUESTION))) & WORDS) >= 4
        assert len(started) == 2
        assert (await client.ready())["tts"] == "flite"
    assert all(gone(pid) for pid in started)


async def test_many_first_requests_at_once_start_one_worker(started: list[int]) -> None:
    async with gateway() as client:
        texts = [f"{QUESTION} {number}" for number in ("one", "two", "three", "four")]
        assert all(await asyncio.gather(*map(client.speak, texts)))
        assert len(started) == 1


@pytest.mark.slow
async def test_a_worker_that_nobody_needs_ends_and_comes_back(started: list[int]) -> None:
    async with gateway(tts_idle_seconds=0.5) as client:
        await client.speak(QUESTION)
        await until(lambda: gone(started[0]))
        assert (await client.ready())["ready"]
        await client.speak(f"{QUESTION} Please.")
        assert len(started) == 2


async def test_a_worker_is_not_idle_in_the_middle_of_a_long_file(started: list[int]) -> None:
    async with gateway(asr_idle_seconds=0.3) as client:
        file = await client.speak(TALE[: len(TALE) // 2])
        assert len((await client.hear(file)).split()) > 12
        assert len(started) == 2


async def test_preloaded_workers_are_there_before_the_first_request(started: list[int]) -> None:
    async with gateway(tts_preload=True) as client:
        async with asyncio.timeout(HANGS_S):
            while (state := await client.ready())["status"] == 503:
                await asyncio.sleep(0.02)
        assert (state["ready"], state["tts"]) == (True, "flite")
        assert len(started) == 1


# --- crashes ---


async def test_a_worker_killed_in_the_middle_of_a_transcription_is_not_heard(
    started: list[int],
) -> None:
    async with gateway() as client:
        file = await client.speak(TALE)
        undisturbed = await client.hear(file)
        assert len(undisturbed.split()) > 25
        pid = started[-1]
        path = "/v1/audio/transcriptions/stream"
        texts, killed = [], False
        async with asyncio.timeout(HANGS_S), client.http.post(path, data=form_of(file)) as answer:
            async for line in answer.content:
                if not line.startswith(b"data:"):
                    continue
                event = json.loads(line.removeprefix(b"data:"))
                assert "error" not in event["type"], event
                texts += [event["text"]] if "segment" in event["type"] else []
                if texts and not killed:
                    os.kill(pid, signal.SIGKILL)
                    killed = True
        assert killed
        assert len(started) == 3
        assert sum(len(text.split()) for text in texts) == pytest.approx(
            len(undisturbed.split()), abs=4
        )


async def test_a_worker_killed_in_the_middle_of_a_speech_says_all_the_same(
    started: list[int],
) -> None:
    text = " ".join([TALE] * 3)
    async with gateway() as client:
        asked = {"model": "tts-1", "voice": "slt", "input": text}
        path = "/v1/audio/speech/pcm"
        async with asyncio.timeout(HANGS_S):
            async with client.http.post(path, json=asked) as answer:
                undisturbed = len(await answer.read())
            asked["input"] = f"{text} "  # not from the cache
            async with client.http.post(path, json=asked) as answer:
                sound = await answer.content.readexactly(RATE_OUT)
                os.kill(started[-1], signal.SIGKILL)
                sound += await answer.content.read()
        assert len(started) == 2
        # The word in which it happened may be said twice.
        assert undisturbed - RATE_OUT < len(sound) < undisturbed + 3 * RATE_OUT


async def test_a_worker_without_memory_is_not_heard_and_the_log_says_why(
    started: list[int], caplog: pytest.LogCaptureFixture
) -> None:
    """The kernel kills it in the midst of replies."""
    before = oom_kills()
    with memory_group() as group:
        async with gateway() as client:
            undisturbed = len(await client.speak(f"{TALE} zero"))
            move(started[0], group, 4096)
            async with asyncio.timeout(HANGS_S):
                for number in count(1):
                    texts = [f"{TALE} zero {number} {caller}" for caller in range(4)]
                    for sound in await asyncio.gather(*map(client.speak, texts)):
                        assert len(sound) > undisturbed
                    if gone(started[0]):
                        break
            assert len(started) == 2
    assert oom_kills() > before
    said = [text for text in caplog.messages if "killed by signal 9" in text]
    assert said[0].startswith("tts worker was killed by signal 9: out of memory: ")
    assert len(said) == 1


async def test_a_worker_that_always_dies_is_a_clear_error_and_soon(started: list[int]) -> None:
    async with gateway() as client:

        async def kill() -> None:
            killed = 0
            while True:
                await asyncio.sleep(0.01)
                for pid in started[killed:]:
                    os.kill(pid, signal.SIGKILL)
                    killed += 1

        killing = asyncio.create_task(kill())
        try:
            async with asyncio.timeout(HANGS_S):
                path = "/v1/audio/transcriptions"
                async with client.http.post(path, data=form_of(silence(1))) as answer:
                    error = (await answer.json())["error"]
                    assert answer.status == 503
                    assert answer.headers["Retry-After"]
        finally:
            killing.cancel()
        assert "the speech engine could not be loaded" in error["message"]
        assert error["code"] == "engine_unavailable"


async def test_what_an_engine_cannot_do_keeps_the_gateway_from_starting() -> None:
    with pytest.raises(ConfigError, match=r"asr\.model: pocketsphinx has the model en-us"):
        async with gateway(asr_engine="pocketsphinx", asr_model="klingon"):
            pass


async def test_an_engine_that_cannot_load_is_a_clear_error_and_at_once(tmp_path: Path) -> None:
    model = str(tmp_path)  # an empty folder
    async with gateway(asr_engine="sherpa", asr_model=model) as client, asyncio.timeout(HANGS_S):
        path = "/v1/audio/transcriptions"
        for _ in range(2):
            async with client.http.post(path, data=form_of(silence(1))) as answer:
                error = (await answer.json())["error"]
                assert answer.status == 503
                assert error["code"] == "engine_unavailable"


async def test_no_worker_at_the_address_is_a_clear_error(tmp_path: Path) -> None:
    nobody = f"unix:{tmp_path}/nobody.sock"
    async with gateway(tts_url=nobody, tts_preload=False) as client, asyncio.timeout(HANGS_S):
        asked = {"model": "tts-1", "voice": "slt", "input": QUESTION}
        async with client.http.post("/v1/audio/speech", json=asked) as answer:
            assert answer.status == 503
            assert (await answer.json())["error"]["code"] == "engine_unreachable"


async def test_a_file_is_not_taken_for_silence_when_its_worker_is_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A call goes on without the words of a turn; who sent a file must know."""
    monkeypatch.setattr(remote_recognizer_io, "GIVE_UP_S", 0.3)
    recognizer = RemoteRecognizer(f"unix:{tmp_path}/nobody.sock")
    for live in (True, False):
        stream = await recognizer.open(StreamOptions(live=live))
        stream.feed(np.zeros(16_000, np.int16))
        stream.finish()
        async with asyncio.timeout(HANGS_S):
            if live:
                assert (await anext(stream.events())).text == ""
            else:
                with pytest.raises(EngineError, match=r"nobody\.sock"):
                    await anext(stream.events())
        await stream.close()
    await recognizer.close()


async def test_without_preload_off_a_gateway_waits_for_its_workers_elsewhere(
    tmp_path: Path,
) -> None:
    async with gateway(tts_url=f"unix:{tmp_path}/nobody.sock") as client:
        assert (await client.ready())["status"] == 503


async def test_of_several_workers_one_may_be_lost(tmp_path: Path, started: list[int]) -> None:
    servers = [LosableServer(tmp_path / name) for name in "ab"]
    for server in servers:
        await server.serve(worker("asr", WorkerSettings("number-words", "")))
    async with gateway(asr_url=[server.url for server in servers]) as client:

        async def until_counted(**states: int) -> None:
            async with asyncio.timeout(HANGS_S):
                while True:
                    async with client.http.get("/healthz") as answer:
                        if (await answer.json())["workers"] == {"asr": states}:
                            return
                    await asyncio.sleep(0.1)

        async with asyncio.timeout(HANGS_S):
            while (await client.ready())["status"] != 200:
                await asyncio.sleep(0.1)
        await until_counted(ready=2)
        await servers[0].down()
        await until_counted(ready=1, gone=1)
        assert (await client.ready())["asr"] == "number-words"
        async with client.http.get("/metrics") as answer:
            metrics = await answer.text()
        assert 'offhook_workers{kind="asr",state="gone"} 1.0' in metrics
    assert not started
    await servers[1].down()


@pytest.mark.slow
async def test_a_gateway_may_be_the_worker_of_another(started: list[int]) -> None:
    async with gateway() as inner, gateway(asr_url=inner.url, tts_url=inner.url) as outer:
        file = await outer.speak(QUESTION)
        assert len(words(await outer.hear(file)) & WORDS) >= 4
    assert len(started) == 2


# --- the command ---


@asynccontextmanager
async def command(
    folder: Path, *options: str, **environment: str
) -> AsyncIterator[tuple[Process, Path]]:
    log = folder / "log"
    with log.open("wb") as output:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "offhook", "speech", *options),
            env={
                **os.environ,
                "PYTHONPATH": str(ROOT),
                "OFFHOOK_LOG_JSON_LINES": "true",
                **environment,
            },
            cwd=folder,
            stderr=output,
        )
    try:
        yield process, log
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


def lines(log: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in log.read_text().splitlines() if line.endswith("}")]


@pytest.mark.slow
async def test_the_command_listens_at_several_places_and_logs_requests_as_json(
    tmp_path: Path,
) -> None:
    path = tmp_path / "speech.sock"
    async with command(tmp_path, "--listen", "127.0.0.1:0", "--listen", f"unix:{path}") as (
        process,
        log,
    ):
        await until(lambda: sum("listening" in line for line in lines(log)) == 2)
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        url = next(line["listening"] for line in lines(log) if "listening" in line)
        connector = aiohttp.UnixConnector(str(path))
        async with (
            aiohttp.ClientSession("http://localhost", connector=connector) as by_socket,
            AsyncOpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0) as by_port,
        ):
            speech = await by_port.audio.speech.create(
                model="tts-1", voice="alloy", input=QUESTION, response_format="wav"
            )
            asked = {"X-Request-Id": "by-socket"}
            async with by_socket.post(
                "/v1/audio/transcriptions", data=form_of(speech.content), headers=asked
            ) as answer:
                assert len(words((await answer.json())["text"]) & WORDS) >= 4
        assert len(children(process.pid)) == 2
        (heard,) = [line for line in lines(log) if line.get("request") == "by-socket"]
        assert (heard["endpoint"], heard["status"]) == ("/v1/audio/transcriptions", 200)
        assert {"queued_ms", "received_ms", "loaded_ms", "inferred_ms", "done_ms"} <= heard.keys()
        assert heard["audio_s"] > 1
        workers = children(process.pid)
        process.terminate()
        async with asyncio.timeout(HANGS_S):
            assert await process.wait() == 0
        await until(lambda: all(gone(pid) for pid in workers))


async def test_a_request_in_progress_is_finished_before_the_end(tmp_path: Path) -> None:
    async with command(tmp_path, "--listen", "127.0.0.1:0") as (process, log):
        await until(lambda: any("listening" in line for line in lines(log)))
        url = next(line["listening"] for line in lines(log) if "listening" in line)
        async with aiohttp.ClientSession(url) as http, asyncio.timeout(HANGS_S):
            asked = {"model": "tts-1", "voice": "slt", "input": " ".join([TALE] * 3)}
            async with http.post("/v1/audio/speech/pcm", json=asked) as answer:
                first = await answer.content.readexactly(RATE_OUT)
                process.terminate()
                await until(lambda: not _connects(url))
                sound = first + await answer.content.read()
            assert len(sound) > 25 * 2 * RATE_OUT
            assert await process.wait() == 0


def _connects(url: str) -> bool:
    try:
        with urlopen(f"{url}/readyz", timeout=HANGS_S) as answer:
            return bool(answer.status == 200)
    except OSError:  # also 503
        return False


async def test_sockets_are_told_when_the_server_ends(tmp_path: Path) -> None:
    async with command(tmp_path, "--listen", "127.0.0.1:0", OFFHOOK_SERVER_DRAIN_SECONDS="0.5") as (
        process,
        log,
    ):
        await until(lambda: any("listening" in line for line in lines(log)))
        url = next(line["listening"] for line in lines(log) if "listening" in line)
        async with (
            aiohttp.ClientSession(url) as http,
            http.ws_connect("/ws/transcribe") as hearing,
            asyncio.timeout(HANGS_S),
        ):
            assert (await hearing.receive_json())["type"] == "ready"
            process.terminate()
            error = await hearing.receive_json()
            assert (error["type"], error["code"]) == ("error", "stopping")
            await hearing.receive()
            assert hearing.close_code == 1001
        async with asyncio.timeout(HANGS_S):
            assert await process.wait() == 0


async def test_an_address_that_is_none_ends_the_command_with_a_word(tmp_path: Path) -> None:
    async with command(tmp_path, "--listen", "nowhere") as (process, log):
        async with asyncio.timeout(HANGS_S):
            assert await process.wait() == 1
        assert "--listen nowhere: give HOST:PORT or unix:PATH" in log.read_text()


async def test_sighup_reads_the_keys_again_and_ends_nothing(tmp_path: Path) -> None:
    file = tmp_path / "offhook.toml"
    file.write_text('[server]\napi_key = "old"\n')
    options = ("--config", str(file), "--listen", "127.0.0.1:0")
    async with command(tmp_path, *options) as (process, log):
        await until(lambda: any("listening" in line for line in lines(log)))
        url = next(line["listening"] for line in lines(log) if "listening" in line)

        async def status(key: str) -> int:
            headers = {"Authorization": f"Bearer {key}"}
            async with (
                aiohttp.ClientSession(url, headers=headers) as http,
                http.get("/v1/models") as answer,
            ):
                return answer.status

        assert (await status("old"), await status("new")) == (200, 401)
        file.write_text('[server]\napi_key = "new"\n')
        process.send_signal(signal.SIGHUP)
        async with asyncio.timeout(HANGS_S):
            while await status("new") != 200:
                await asyncio.sleep(0.05)
        assert await status("old") == 401
        assert process.returncode is None
