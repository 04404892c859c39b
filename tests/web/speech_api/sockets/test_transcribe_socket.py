"""WS /ws/transcribe as its clients see it: on the embedded engine, and on one that does as told."""

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
import pytest

from offhook.media.codecs.resample import Resampler
from offhook.media.pcm import Pcm
from offhook.pipeline.speech.errors import EngineError
from offhook.pipeline.speech.recognizer import Recognizer, StreamOptions
from offhook.pipeline.speech.remote.asr_protocol import (
    MAX_AUDIO_BYTES,
    PATH,
    RATES,
)
from offhook.pipeline.speech.remote.recognizer_io import RemoteRecognizer
from offhook.pipeline.speech.remote.worker_protocol import MAX_TEXT_CHARS
from offhook.pipeline.speech.streams import utterance_queue
from offhook.web.config.programs import Speech as Settings
from offhook.web.config.programs import SpeechKey
from offhook.web.speech_api.server_io import EngineHandle as ServedEngine
from offhook.web.speech_api.server_io import SpeechServer
from offhook.web.speech_api.sockets import worker_stream_io
from offhook.web.speech_api.sockets.engine_metrics import AsrMetrics
from offhook.web.workers.worker_io import Worker, WorkerSettings
from tests.support.waiting import HANGS_S, until
from tests.web.speech_api.conftest import (
    Quick,
    ScriptedRecognizer,
    Served,
    listening,
    quickly_served,
)
from tests.web.speech_api.recordings import QUESTION, spoken
from tests.web.workers.workers import served

module_loop = pytest.mark.asyncio(loop_scope="module")
Socket = aiohttp.ClientWebSocketResponse


@asynccontextmanager
async def talking(client: aiohttp.ClientSession, **query: str) -> AsyncIterator[Socket]:
    async with client.ws_connect(PATH, params=query) as socket:
        yield socket


async def told(socket: Socket, kind: str) -> dict[str, Any]:
    async with asyncio.timeout(HANGS_S):
        while (message := await socket.receive_json())["type"] != kind:
            assert message["type"] != "error", message
    return dict(message)


async def say(socket: Socket, pcm: Pcm, piece: int = 1601) -> dict[str, Any]:
    for at in range(0, len(pcm), piece):
        await socket.send_bytes(pcm[at : at + piece].astype("<i2").tobytes())
    await socket.send_json({"type": "flush"})
    return await told(socket, "final")


async def refusal(
    client: aiohttp.ClientSession, query: Mapping[str, str], **headers: str
) -> tuple[int, dict[str, Any]]:
    upgrade = {
        "Connection": "Upgrade",
        "Upgrade": "websocket",
        "Sec-WebSocket-Version": "13",
        "Sec-WebSocket-Key": "AAAAAAAAAAAAAAAAAAAAAA==",
    }
    async with client.get(PATH, params=query, headers={**upgrade, **headers}) as answer:
        error = (await answer.json())["error"]
        assert set(error) == {"message", "type", "param", "code"}
        return answer.status, {**error, "retry": answer.headers.get("Retry-After")}


# --- the embedded engine ---


@module_loop
@pytest.mark.parametrize("rate", RATES)
async def test_words_are_heard_at_every_rate(speech_server: Served, rate: int) -> None:
    phrase = spoken()
    pcm = Resampler(16_000, rate).process(phrase) if rate != 16_000 else phrase
    async with talking(speech_server.client, rate=str(rate)) as socket:
        ready = await told(socket, "ready")
        assert (ready["engine"], ready["model"], ready["rate"]) == ("pocketsphinx", "en-us", rate)
        final = await say(socket, pcm)
    assert len(set(final["text"].split()) & set(QUESTION.split())) >= 4, final
    assert abs(final["audio_ms"] - len(phrase) // 16) < 30


@module_loop
async def test_one_stream_hears_one_utterance_after_another(speech_server: Served) -> None:
    async with talking(speech_server.client, words="true") as socket:
        finals = [await say(socket, spoken()) for _ in range(2)]
        assert [final["utterance"] for final in finals] == [0, 1]
        await socket.send_bytes(spoken().tobytes())
        await socket.send_json({"type": "cancel"})
        last = await say(socket, spoken())
    assert last["utterance"] == 3
    assert last["words"][0]["start_ms"] >= 3 * len(spoken()) // 16


@module_loop
async def test_nothing_is_compressed_whatever_the_client_offers(speech_server: Served) -> None:
    async with speech_server.client.ws_connect(PATH, compress=15) as socket:
        assert not socket.compress
        assert (await told(socket, "ready"))["type"] == "ready"


# --- refused before the upgrade ---


@pytest.mark.parametrize(
    ("query", "param", "says"),
    [
        ({"rate": "44100"}, "rate", "not one of 8000"),
        ({"update_ms": "5"}, "update_ms", "not 80..1120"),
        ({"language": "English"}, "language", "not a code"),
        ({"gate": "perhaps"}, "gate", "not true or false"),
        ({"sample_rate": "16000"}, None, "unknown parameter 'sample_rate'"),
        ({"context": "x" * 4001}, "context", "over 4000"),
    ],
)
async def test_a_query_that_cannot_be_served_is_refused_in_openais_words(
    quick_server: Quick, query: dict[str, str], param: str | None, says: str
) -> None:
    status, error = await refusal(quick_server.client, query)
    assert (status, error["param"], error["type"]) == (400, param, "invalid_request_error")
    assert says in error["message"]
    assert not quick_server.ears.opened


async def test_more_streams_than_there_may_be_are_told_when_to_come_again() -> None:
    async with quickly_served(Settings(streams=1)) as quick:
        async with talking(quick.client) as first:
            await told(first, "ready")
            status, error = await refusal(quick.client, {})
            assert (status, error["code"]) == (503, "streams_full")
            assert int(error["retry"]) >= 1
        await until(lambda: not quick.server.admission.lanes["transcription"].streams)
        async with talking(quick.client) as second:
            await told(second, "ready")


async def test_who_may_ask() -> None:
    keys = (SpeechKey(name="shop", key="secret"),)
    async with quickly_served(Settings(keys=keys)) as quick:
        assert (await refusal(quick.client, {}))[0] == 401
        key = {"Authorization": "Bearer secret"}
        async with quick.client.get(PATH, headers=key) as plain:
            assert plain.status == 426
        async with quick.client.ws_connect(PATH, headers=key) as socket:
            await told(socket, "ready")


# --- what ends a stream ---


@pytest.mark.parametrize(
    ("send", "code", "says", "closed"),
    [
        (b"odd", "bad_request", "a sample has two", 1008),
        ("flush", "bad_request", "not JSON", 1008),
        ('{"type":"stop"}', "bad_request", "type is 'stop'", 1008),
        ('{"type":"flush","now":1}', "bad_request", "no field 'now'", 1008),
        (b"\0" * (MAX_AUDIO_BYTES + 2), "too_long", "bytes of audio", 1009),
        ("x" * (MAX_TEXT_CHARS + 1), "too_long", "characters", 1009),
        (b"\0" * 96_000, "behind", "flush sooner", 1008),
        (b"", "idle", "nothing came", 1008),
    ],
)
async def test_what_ends_a_stream_is_said_in_words(
    quick_server: Quick,
    monkeypatch: pytest.MonkeyPatch,
    send: str | bytes,
    code: str,
    says: str,
    closed: int,
) -> None:
    monkeypatch.setattr(utterance_queue, "MAX_UNHEARD_S", 2)
    if code == "idle":
        monkeypatch.setattr(worker_stream_io, "IDLE_S", 0.1)
    async with talking(quick_server.client) as socket:
        await told(socket, "ready")
        await (socket.send_bytes(send) if isinstance(send, bytes) else socket.send_str(send))
        message = await socket.receive_json()
        assert (message["type"], message["code"]) == ("error", code)
        assert says in message["message"]
        await socket.receive()
        assert socket.close_code == closed
    await until(lambda: not quick_server.ears.open_streams)


@pytest.mark.parametrize(
    ("fault", "code", "closed"),
    [("full", "full", 1013), ("fails", "engine", 1011), ("fails_within", "engine", 1011)],
)
async def test_an_engine_that_cannot_is_said(
    quick_server: Quick, fault: str, code: str, closed: int
) -> None:
    setattr(quick_server.ears, fault, True if fault == "full" else "it broke")
    async with talking(quick_server.client) as socket:
        await socket.send_bytes(bytes(3200))
        await socket.send_json({"type": "flush"})
        async with asyncio.timeout(HANGS_S):
            while (message := await socket.receive_json())["type"] != "error":
                pass
        assert message["code"] == code
        sentence = "has too much to do" if fault == "full" else "failed"
        assert f"the speech engine {sentence}" in message["message"]
        await socket.receive()
        assert socket.close_code == closed


# --- loading ---


@asynccontextmanager
async def late_server(
    engine: ScriptedRecognizer,
) -> AsyncIterator[tuple[aiohttp.ClientSession, asyncio.Event]]:
    loaded = asyncio.Event()

    async def get() -> Recognizer:
        await loaded.wait()
        if engine.fails:
            raise EngineError(engine.fails)
        return engine

    hears = ServedEngine(get, lambda: "scripted", lambda: "m")
    server = SpeechServer(Settings(), hears, None)
    async with listening(server) as url, aiohttp.ClientSession(url) as client:
        yield client, loaded


async def test_what_is_said_while_the_engine_loads_is_heard_then() -> None:
    engine = ScriptedRecognizer(says=["one", "two"])
    async with late_server(engine) as (client, loaded), talking(client) as socket:
        for _ in range(3):
            await socket.send_bytes(bytes(3200))
        await socket.send_json({"type": "flush"})
        await socket.send_bytes(bytes(640))
        await socket.send_json({"type": "cancel"})
        await socket.send_bytes(bytes(640))
        await socket.send_json({"type": "flush"})
        await socket.ping(b"are you there")  # answered, or clients hang up while a model loads
        with pytest.raises(TimeoutError):
            await socket.receive(0.1)
        loaded.set()
        assert (await socket.receive_json())["type"] == "ready"
        finals = [await told(socket, "final") for _ in range(2)]
    assert [(f["utterance"], f["text"], f["audio_ms"]) for f in finals] == [
        (0, "one", 300),
        (2, "two", 20),
    ]


async def test_pings_keep_a_quiet_stream(
    quick_server: Quick, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worker_stream_io, "IDLE_S", 0.5)
    async with talking(quick_server.client) as socket:
        await told(socket, "ready")
        for _ in range(8):
            await asyncio.sleep(0.1)
            await socket.ping()
        await socket.send_json({"type": "flush"})
        await told(socket, "final")
        assert (await socket.receive_json())["code"] == "idle"


async def test_a_client_that_leaves_while_the_engine_loads_is_noticed() -> None:
    engine = ScriptedRecognizer()
    async with late_server(engine) as (client, loaded):
        async with talking(client) as socket:
            await socket.send_bytes(bytes(3200))
        loaded.set()
        await asyncio.sleep(0.05)
        assert not engine.opened


async def test_an_engine_that_does_not_load_is_said() -> None:
    engine = ScriptedRecognizer(fails="no such model")
    async with late_server(engine) as (client, loaded), talking(client) as socket:
        loaded.set()
        message = await socket.receive_json()
    assert (message["type"], message["code"]) == ("error", "engine")
    assert "the speech engine could not be loaded" in message["message"]


# --- clients that take or give too much ---


async def test_a_client_that_leaves_frees_the_engine_at_once(quick_server: Quick) -> None:
    async with talking(quick_server.client) as socket:
        await told(socket, "ready")
        await socket.send_bytes(bytes(3200))
        await until(lambda: quick_server.ears.open_streams == 1)
    await until(lambda: not quick_server.ears.open_streams)


async def test_no_more_utterances_wait_than_are_kept(quick_server: Quick) -> None:
    quick_server.ears.slow_s = 0.002
    count = 5 * utterance_queue.MAX_WAITING
    waiting = 0
    async with talking(quick_server.client) as socket:
        await told(socket, "ready")
        sending = asyncio.create_task(_flush_often(socket, count))
        for number in range(count):
            assert (await told(socket, "final"))["utterance"] == number
            waiting = max(waiting, quick_server.ears.opened[0]._finals.qsize())
        await sending
    assert 10 < waiting <= utterance_queue.MAX_WAITING


async def _flush_often(socket: Socket, count: int) -> None:
    for _ in range(count):
        await socket.send_str('{"type": "flush"}')


async def test_a_client_that_does_not_read_is_left(
    quick_server: Quick, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worker_stream_io, "MAX_UNREAD_S", 0.2)
    monkeypatch.setattr(worker_stream_io, "CLOSE_S", 0.2)
    quick_server.ears.says = ["words " * 2000]
    host, port = quick_server.url.removeprefix("http://").split(":")
    _, writer = await asyncio.open_connection(host, int(port), limit=1024)
    writer.write(
        (
            f"GET {PATH} HTTP/1.1\r\nHost: {host}:{port}\r\nUpgrade: websocket\r\n"
            "Connection: Upgrade\r\nSec-WebSocket-Version: 13\r\n"
            "Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n\r\n"
        ).encode()
    )
    writer.write(b"\x82\xfe\x0c\x80" + bytes(4) + bytes(3200))  # binary, masked with zeros
    flush = b'{"type": "flush"}'
    writer.write(b"\x81" + bytes([0x80 | len(flush)]) + bytes(4) + flush)
    lane = quick_server.server.admission.lanes["transcription"]
    await until(lambda: lane.streams)
    await until(lambda: not lane.streams)
    assert not quick_server.ears.open_streams
    writer.close()


# --- a gateway before a worker ---


async def test_options_reach_the_engine_behind_a_gateway() -> None:
    ears = ScriptedRecognizer(says=["hello there"])
    worker = Worker(WorkerSettings("scripted", "m"), lambda progress: ears, AsrMetrics())
    async with served(worker) as (beyond, _):
        remote = RemoteRecognizer(f"http://{beyond.host}:{beyond.port}")

        async def get() -> Recognizer:
            return remote

        hears = ServedEngine(get, lambda: "scripted", lambda: "m")
        server = SpeechServer(Settings(), hears, None)
        async with listening(server) as url, aiohttp.ClientSession(url) as client:
            asked = {"rate": "8000", "update_ms": "120", "gate": "true", "context": "a b"}
            asked["timing"] = "true"
            async with talking(client, **asked) as socket:
                await told(socket, "ready")
                for _ in range(10):
                    await socket.send_bytes(bytes(1600))
                await socket.send_json({"type": "flush"})
                assert (await told(socket, "final"))["text"] == "hello there"
        await remote.close()
    [stream] = ears.opened
    assert stream.options == StreamOptions(update_ms=120, context="a b", gate=True, timing=True)
    assert stream.samples == 16_000
