"""A worker that speaks, as its clients see it, and as the server that keeps it."""

import asyncio
import json
import os
import random
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import aiohttp
import numpy as np
import pytest
from aiohttp import web
from loguru import logger

from offhook.media.pcm import RATE_OUT
from offhook.pipeline.engines.shared.tts_models import TtsModels
from offhook.pipeline.speech.errors import EngineError, EngineFailed, EngineOverloaded
from offhook.pipeline.speech.recognizer import Progress
from offhook.pipeline.speech.remote import synthesizer_io as remote_synthesizer_io
from offhook.pipeline.speech.remote import tts_protocol, worker_protocol
from offhook.pipeline.speech.remote.synthesizer_io import RemoteSynthesizer
from offhook.pipeline.speech.synthesizer import Speech, Synthesizer, VoiceOptions
from offhook.web.config.config import Config, ConfigError
from offhook.web.config.engines import Tts
from offhook.web.config.server import WebRtc
from offhook.web.edge.edge_io import Edge
from offhook.web.speech_api.sockets import worker_stream_io
from offhook.web.speech_api.sockets.engine_metrics import TtsMetrics
from offhook.web.workers import local_worker_io
from offhook.web.workers.engines.engines_io import at_hand
from offhook.web.workers.local_worker_io import on_demand
from offhook.web.workers.worker_child_io import ChildSettings
from offhook.web.workers.worker_io import Worker, WorkerSettings
from tests.pipeline.conversation.speller import LETTER, Speller, spelt
from tests.pipeline.speech.voice.test_audio_cache import redis_server
from tests.support.processes import gone
from tests.support.waiting import HANGS_S, until
from tests.web.workers.workers import (
    Client,
    Socket,
    children_started,
    command,
    open_stream,
    served,
    told,
    worker_app,
)

TEXT = "Good morning, this is the front desk. We are open from nine in the morning until six."


@pytest.fixture
def started() -> Iterator[list[int]]:
    with children_started() as pids:
        yield pids


def child(idle_seconds: float = 0) -> ChildSettings:
    return ChildSettings(at_hand("embedded"), TtsModels(""), 8, idle_seconds, "INFO")


async def speak(
    synthesizer: Synthesizer, text: str, midway: Callable[[], object] = lambda: None
) -> list[Speech]:
    """`midway` is called in the middle of the words."""
    reply = synthesizer.open()
    heard: list[Speech] = []
    half, rest = text[: len(text) // 2], text[len(text) // 2 :]
    reply.write(half)
    async with asyncio.timeout(HANGS_S):
        async for piece in reply:
            heard.append(piece)
            if sum(bool(p.text) for p in heard) == 3:
                break
        midway()
        reply.write(rest)
        reply.end()
        heard += [piece async for piece in reply]
    return heard


def text_of(heard: list[Speech]) -> str:
    return "".join(piece.text for piece in heard)


def seconds_of(heard: list[Speech]) -> float:
    return sum(len(piece.pcm) for piece in heard) / RATE_OUT


# --- kept by the server ---


COLLECTING = """
import gc
from offhook.web.workers import worker_child_io

gc.set_threshold(1)
worker_child_io.main()
"""


async def test_a_worker_killed_in_the_middle_of_a_reply_is_hardly_heard(
    started: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    # Nothing that is needed may be garbage.
    monkeypatch.setattr(local_worker_io, "COMMAND", (sys.executable, "-c", COLLECTING))
    async with on_demand(child()) as url:
        synthesizer = RemoteSynthesizer(url)
        assert not started
        undisturbed = await speak(synthesizer, TEXT)
        assert text_of(undisturbed) == TEXT
        disturbed = await speak(synthesizer, TEXT, lambda: os.kill(started[0], signal.SIGKILL))
        assert text_of(disturbed) == TEXT
        # A sentence that begins anew may take a breath, and one word may have begun twice.
        assert seconds_of(disturbed) == pytest.approx(seconds_of(undisturbed), abs=0.7)
        assert len(started) == 2
        await synthesizer.close()
    assert all(gone(pid) for pid in started)
    assert not Path(url.removeprefix("unix:")).parent.exists()


async def test_a_worker_nobody_needs_ends_though_connections_wait_and_comes_back(
    started: list[int],
) -> None:
    async with on_demand(child(idle_seconds=0.3)) as url:
        synthesizer = RemoteSynthesizer(url)
        await synthesizer.start()
        assert text_of(await speak(synthesizer, TEXT)) == TEXT
        await until(lambda: gone(started[0]))
        await asyncio.sleep(0.2)
        assert len(started) == 1
        assert text_of(await speak(synthesizer, TEXT)) == TEXT
        assert len(started) == 2
        await synthesizer.close()


async def test_what_is_configured_reaches_the_child() -> None:
    tts = Tts(engine="qwen3-tts", model="m", voices="v", audio_cache="redis://here:6379/1")
    [settings] = local_worker_io._wanted(Config(tts=tts))
    known = TtsModels("m", "auto", "v", "redis://here:6379/1")
    assert settings.models == replace(known, max_streams=200, memory_share=1.0)
    assert ChildSettings.from_json(settings.to_json()) == settings
    with pytest.raises(ValueError, match="not redis://host:port/db"):
        Tts(audio_cache="here:6379")
    assert Tts(audio_cache="off").models("").audio_cache == "off"


# --- as a server of its own ---


async def test_a_worker_speaks_as_many_requests_at_once_as_it_has_streams() -> None:
    speller = Speller()
    speller.may_speak.clear()
    async with serving(lambda told: speller, max_streams=40) as (client, _):
        sound = {"input": TEXT, "response_format": "pcm"}
        async with asyncio.TaskGroup() as group:
            posts = [client.post("/v1/audio/speech", json=sound) for _ in range(40)]
            answers = [group.create_task(post.__aenter__()) for post in posts]
            await until(lambda: len(speller.replies) == 40)
            speller.may_speak.set()
        for answer in answers:
            heard = np.frombuffer(await answer.result().read(), "<i2")
            assert spelt(heard) == TEXT.replace(" ", "")


async def test_the_command_serves_and_ends_when_told(tmp_path: Path) -> None:
    async with command(tmp_path, "tts", at_hand("embedded"), "127.0.0.1:0") as (url, process):
        synthesizer = RemoteSynthesizer(url)
        assert text_of(await speak(synthesizer, TEXT)) == TEXT
        assert synthesizer.voices() == list(
            {"flite": ["slt", "rms", "awb"], "espeak": ["en-us"]}[at_hand("embedded")]
        )
        process.terminate()
        assert await asyncio.wait_for(process.wait(), HANGS_S) == 0
        await synthesizer.close()
    assert TEXT[:12] not in (tmp_path / "log").read_text()


async def test_workers_share_what_they_said_whatever_their_engine(tmp_path: Path) -> None:
    pytest.importorskip("redis")
    engine, said = at_hand("embedded"), {"input": "Welcome.", "response_format": "wav"}
    found = []
    with redis_server(tmp_path) as cache:
        for _ in range(2):
            worker = command(tmp_path, "tts", engine, "127.0.0.1:0", "--audio-cache", cache)
            async with worker as (url, _process), aiohttp.ClientSession(url) as client:
                for _ in range(2):
                    async with client.post("/v1/audio/speech", json=said) as answer:
                        assert answer.status == 200
                        found.append(answer.headers["X-Cache"])
                        await answer.read()
    assert found == ["miss", "hit", "hit", "hit"]


def talking(client: Client, **query: str) -> AbstractAsyncContextManager[Socket]:
    return open_stream(client, tts_protocol.PATH, **query)


def serving(
    make: Callable[[Progress], Synthesizer], **settings: Any
) -> AbstractAsyncContextManager[tuple[Client, Worker[Synthesizer]]]:
    return served(Worker(WorkerSettings("speller", "1", **settings), make, TtsMetrics()))


async def write(socket: Socket, *texts: str) -> None:
    for text in texts:
        await socket.send_json({"type": "text", "text": text})


async def order(socket: Socket, kind: str) -> None:
    await socket.send_json({"type": kind})


async def reply_of(socket: Socket) -> tuple[str, str, dict[str, Any]]:
    """What its sound says, what its marks say, and its done."""
    sound, marks = b"", ""
    async with asyncio.timeout(HANGS_S):
        while True:
            frame = await socket.receive()
            if frame.type is aiohttp.WSMsgType.BINARY:
                sound += frame.data
                continue
            message = frame.json()
            if message["type"] == "mark":
                marks += message["text"]
                assert message["samples"] == len(sound) // 2
            elif message["type"] == "done":
                assert message["samples"] == len(sound) // 2
                return spelt(np.frombuffer(sound, "<i2")), marks, message
            else:
                assert message["type"] == "ready", message


async def test_replies_follow_one_another_with_their_numbers() -> None:
    async with serving(lambda told: Speller()) as (client, worker), talking(client) as socket:
        ready = await told(socket, "ready")
        assert (ready["engine"], ready["rate"], ready["voices"]) == (
            "speller",
            24_000,
            ["capital", "small"],
        )
        await write(socket, "one tw", "o")
        await order(socket, "end")
        await order(socket, "end")
        await write(socket, "thr")
        await write(socket, "ee")
        await order(socket, "end")
        replies = [await reply_of(socket) for _ in range(3)]
        assert [(sound, marks) for sound, marks, _ in replies] == [
            ("onetwo", "one two"),
            ("", ""),
            ("three", "three"),
        ]
        assert [(d["reply"], d["reason"]) for *_, d in replies] == [
            (0, "end"),
            (1, "end"),
            (2, "end"),
        ]
        await order(socket, "close")
        assert (await socket.receive()).type is aiohttp.WSMsgType.CLOSE
        await until(lambda: not worker.streams)


async def test_cancelling_drops_all_that_is_not_spoken_and_each_reply_is_answered() -> None:
    voice = Speller()
    voice.hold_after = 2
    async with serving(lambda told: voice) as (client, worker), talking(client) as socket:
        await order(socket, "cancel")  # of nothing
        await write(socket, "one two")
        await order(socket, "end")
        await write(socket, "never")
        await until(lambda: voice.letters == 2)
        await order(socket, "cancel")
        await until(lambda: voice.replies[0].cancelled)
        voice.may_speak.set()
        await write(socket, "three")
        await order(socket, "end")
        replies = [await reply_of(socket) for _ in range(3)]
        assert [(sound, d["reply"], d["reason"]) for sound, _, d in replies] == [
            ("on", 0, "cancel"),
            ("", 1, "cancel"),
            ("three", 2, "end"),
        ]
        assert len(voice.replies) == 2
        await until(lambda: not worker.busy)


async def test_loading_is_told_and_text_waits_for_it() -> None:
    loaded = threading.Event()

    def make(progress: Progress) -> Synthesizer:
        progress(0.4, "reading weights")
        loaded.wait(HANGS_S)
        return Speller()

    async with serving(make) as (client, _), talking(client) as socket:
        await write(socket, "hello")
        await order(socket, "end")
        await asyncio.sleep(0.05)
        health = await (await client.get("/healthz")).json()
        assert health == {"status": "loading", "fraction": 0.4, "doing": "reading weights"}
        assert (await client.get("/readyz")).status == 503
        loaded.set()
        assert (await reply_of(socket))[0] == "hello"
        assert (await client.get("/readyz")).status == 200
        scrape = await (await client.get("/metrics")).text()
        assert "offhook_tts_loaded 1.0" in scrape
        assert 'offhook_tts_replies_total{reason="end"} 1.0' in scrape
        assert "offhook_tts_first_sound_seconds_count 1.0" in scrape
        assert f"offhook_tts_audio_seconds_total {5 * LETTER / RATE_OUT}" in scrape


async def test_only_replies_use_the_worker_up() -> None:
    voice = Speller()
    async with (
        serving(lambda told: voice, max_streams=1) as (client, worker),
        talking(client) as first,
        talking(client) as second,
    ):
        for socket in (first, second):
            await told(socket, "ready")
        await write(first, "one ")
        await until(lambda: worker.busy)
        assert (await (await client.get("/readyz")).json())["streams"] == 1
        await write(second, "two ")
        assert (await second.receive_json())["code"] == "full"
        async with talking(client) as third:
            assert (await third.receive_json())["code"] == "full"
        await order(first, "end")
        await reply_of(first)
        async with talking(client) as fourth:
            await write(fourth, "four ")
            await order(fourth, "end")
            assert (await reply_of(fourth))[0] == "four"


async def test_connections_that_wait_are_bounded_too() -> None:
    async with serving(lambda told: Speller(), max_streams=1) as (client, _), AsyncExitStack() as s:
        waiting = [await s.enter_async_context(talking(client)) for _ in range(5)]
        for socket in waiting[:4]:
            await told(socket, "ready")
        assert (await waiting[4].receive_json())["code"] == "full"


ENDLESS = worker_protocol.MAX_TEXT_CHARS


@pytest.mark.parametrize(
    ("query", "send", "code", "says"),
    [
        ({"speed": "3"}, [], "bad_request", "speed is 3.0"),
        ({"voice": "nobody"}, [], "bad_request", "no voice 'nobody'"),
        ({}, [b"\0\0"], "bad_request", "2 bytes that are not text: this worker speaks"),
        ({}, ["end"], "bad_request", "not JSON"),
        ({}, ['{"type":"flush"}'], "bad_request", "type is 'flush'"),
        (
            {},
            ['{"type":"text","text":["secret"]}'],
            "bad_request",
            "text.text is not a valid",
        ),
        ({}, ['{"type":"text","text":"secret","x":1}'], "bad_request", "no field 'x'"),
        ({}, ["x" * (ENDLESS + 1)], "too_long", "a message of 65537 characters"),
        ({}, [json.dumps({"type": "text", "text": "x" * 60_000})] * 2, "behind", "write slower"),
        ({}, ['{"type":"end"}'] * 18, "behind", "16 replies wait"),
        ({}, [], "idle", "nothing came"),
        ({}, ['{"type":"text","text":"a"}'], "engine", "it has a cold"),
        ({}, ['{"type":"text","text":"a"}'], "full", "4 streams speak: try again later"),
        ({}, ['{"type":"text","text":"a"}'], "stopping", "the device is lost"),
    ],
)
async def test_what_ends_a_stream_is_said_in_words_and_not_what_was_written(
    monkeypatch: pytest.MonkeyPatch,
    query: dict[str, str],
    send: list[str | bytes],
    code: str,
    says: str,
) -> None:
    lines: list[str] = []
    sink = logger.add(lambda line: lines.append(str(line)), level="DEBUG")
    voice = Speller()
    if code == "idle":
        monkeypatch.setattr(worker_stream_io, "IDLE_S", 0.1)
    elif code == "engine":
        voice.fault = EngineError(says)
    elif code == "full":
        voice.fault = EngineOverloaded("4 streams speak")
    elif code == "stopping":
        voice.fault = EngineFailed(says)
    else:
        voice.may_speak.clear()
    async with serving(lambda told: voice) as (client, worker), talking(client, **query) as socket:
        if code == "behind" and "replies" in says:
            await write(socket, "held")
        for message in send:
            if isinstance(message, bytes):
                await socket.send_bytes(message)
            else:
                await socket.send_str(message)
        if code in ("engine", "full", "stopping"):
            await order(socket, "end")
        async with asyncio.timeout(HANGS_S):
            while (message := await socket.receive_json())["type"] != "error":
                pass
        assert message["code"] == code
        assert says in message["message"]
        assert (await socket.receive()).type is aiohttp.WSMsgType.CLOSE
        await until(lambda: not worker.streams)
        assert not worker.busy
        assert worker.broken.done() == (code == "stopping")
        worker.broken.cancel() if not worker.broken.done() else worker.broken.exception()
    logger.remove(sink)
    assert any(says in line for line in lines)
    assert "secret" not in "".join(lines)


async def test_an_engine_with_room_for_fewer_than_the_worker_holds_a_reply_until_there_is() -> None:
    voice = Speller()
    voice.fault = EngineOverloaded("4 streams speak")
    async with serving(lambda told: voice) as (client, _):
        synthesizer = RemoteSynthesizer(str(client.make_url("")))
        speaking = asyncio.create_task(speak(synthesizer, TEXT))
        await until(lambda: len(voice.replies) == 2)  # tried again
        voice.fault = None
        assert text_of(await speaking) == TEXT
        await synthesizer.close()


async def test_a_reply_is_not_held_for_ever_by_an_engine_that_stays_full(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(remote_synthesizer_io, "GIVE_UP_S", 0.3)
    voice = Speller()
    voice.fault = EngineOverloaded("4 streams speak")
    async with serving(lambda told: voice) as (client, _):
        synthesizer = RemoteSynthesizer(str(client.make_url("")))
        with pytest.raises(EngineError, match="4 streams speak"):
            await speak(synthesizer, TEXT)
        assert len(voice.replies) > 1
        await synthesizer.close()


async def test_a_client_that_only_listens_is_not_idle(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker_stream_io, "IDLE_S", 0.4)
    voice = Speller()
    voice.may_speak.clear()
    async with serving(lambda told: voice) as (client, _), talking(client) as socket:
        await write(socket, "one two")
        await order(socket, "end")
        await asyncio.sleep(1)
        voice.may_speak.set()
        assert (await reply_of(socket))[0] == "onetwo"
    async with serving(lambda told: voice) as (client, worker), talking(client) as socket:
        await write(socket, "one and")  # which it never ends
        assert "nothing came" in str((await error_of(socket))["message"])
        assert voice.letters == len("onetwo" + "one")
        await until(lambda: not worker.busy)


async def error_of(socket: Socket) -> dict[str, Any]:
    async with asyncio.timeout(HANGS_S):
        while True:
            frame = await socket.receive()
            if frame.type is aiohttp.WSMsgType.TEXT and frame.json()["type"] == "error":
                return dict(frame.json())


async def test_a_slow_reader_holds_the_engine_and_not_the_memory(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(worker_stream_io, "MAX_UNREAD_S", 0.5)
    monkeypatch.setattr("offhook.web.speech_api.sockets.worker_stream_io.CLOSE_S", 0.1)
    voice = Speller()
    text = "a" * 60_000  # ten minutes
    async with serving(lambda told: voice) as (client, worker):
        _, writer = await asyncio.open_connection(client.host, client.port, limit=1024)
        writer.write(
            f"GET {tts_protocol.PATH} HTTP/1.1\r\nHost: {client.host}:{client.port}\r\n"
            "Upgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Version: 13\r\n"
            "Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n\r\n".encode()
        )
        for command in ({"type": "text", "text": text}, {"type": "end"}):
            data = json.dumps(command).encode()
            head = b"\x81\xff" + len(data).to_bytes(8, "big")
            writer.write(head + bytes(4) + data)  # masked with zeros
        await until(lambda: worker.busy)
        spoken = -1
        while voice.letters != spoken:
            spoken = voice.letters
            await asyncio.sleep(0.1)
        assert 0 < spoken < len(text) // 2
        await until(lambda: not worker.streams)
        scrape = await (await client.get("/metrics")).text()
        assert 'offhook_tts_streams_ended_total{code="behind"} 1.0' in scrape
        writer.close()


async def test_any_order_of_commands_is_answered_reply_by_reply() -> None:
    """Texts, ends and cancels as they come, with a voice that is held now and then."""
    chance = random.Random(5)
    voice = Speller()
    async with serving(lambda told: voice) as (client, worker), talking(client) as socket:
        written: list[str] = []
        cancelled: set[int] = set()
        open_text: str | None = None
        done: list[tuple[str, str, dict[str, Any]]] = []
        for _ in range(150):
            match chance.choice(("text", "text", "end", "cancel", "hold", "wait")):
                case "text":
                    more = chance.choice(("a ", "bc", "d e ", " "))
                    await write(socket, more)
                    open_text = (open_text or "") + more
                case "end":
                    await order(socket, "end")
                    written.append(open_text or "")
                    open_text = None
                case "cancel":
                    await order(socket, "cancel")
                    if open_text is not None:
                        written.append(open_text)
                        cancelled.add(len(written) - 1)
                        open_text = None
                    cancelled |= set(range(len(done), len(written)))
                case "hold":
                    voice.hold_after = voice.letters + 2
                case "wait":
                    voice.hold_after = None
                    voice.may_speak.set()
                    while len(done) < len(written):
                        done.append(await reply_of(socket))
        await order(socket, "end")
        written.append(open_text or "")
        voice.hold_after = None
        voice.may_speak.set()
        while len(done) < len(written):
            done.append(await reply_of(socket))
        await until(lambda: not worker.busy)
    assert [d["reply"] for *_, d in done] == list(range(len(written)))
    assert any(d["reason"] == "cancel" for *_, d in done)
    for number, ((sound, marks, answer), text) in enumerate(zip(done, written, strict=True)):
        assert text.startswith(marks)
        assert "".join(text.split()).startswith(sound)
        if answer["reason"] == "end":
            assert marks == text
        else:
            assert number in cancelled


async def test_who_may_ask() -> None:
    path = tts_protocol.PATH

    async def status(client: Client, **headers: str) -> int:
        async with client.get(path, headers=headers) as answer:
            assert (await answer.json())["error"]
            return int(answer.status)

    async with serving(lambda told: Speller(), api_key="secret") as (client, _):
        assert await status(client) == 401
        assert await status(client, Authorization="Bearer secret") == 426
    async with serving(lambda told: Speller()) as (client, _):
        assert await status(client, Host="rebound.example") == 403
        assert await status(client, Origin="https://elsewhere.example") == 403


async def test_stopping_lets_replies_end_and_waits_for_no_connection() -> None:
    voice = Speller()
    async with (
        serving(lambda told: voice, drain_seconds=5) as (client, worker),
        talking(client) as speaking,
        talking(client) as waiting,
    ):
        await told(waiting, "ready")
        await write(speaking, "one ")
        await until(lambda: worker.busy)
        draining = asyncio.create_task(worker.drain(5))
        await asyncio.sleep(0)
        await write(waiting, "late")
        assert (await waiting.receive_json())["code"] == "stopping"
        await write(speaking, "two")
        await order(speaking, "end")
        assert (await reply_of(speaking))[0] == "onetwo"
        await asyncio.wait_for(draining, HANGS_S)


# --- the edge ---


async def test_an_edge_whose_voice_is_elsewhere_is_ready_when_that_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("offhook.web.workers.engines.remote_engine_io.WORKER_RETRY_S", 0.05)
    monkeypatch.setattr("aioice.ice.get_host_addresses", lambda *_: [])
    path = tmp_path / "s"
    tts = Tts(url=f"unix:{path}", voice="small", speed=1.5)
    edge = Edge(Config(webrtc=WebRtc(addresses=["127.0.0.1"]), tts=tts))
    await edge.start()
    await asyncio.sleep(0.1)
    assert not edge.ready
    voice = Speller()
    worker = Worker(WorkerSettings("speller", "1"), lambda told: voice, TtsMetrics())
    runner = web.AppRunner(worker_app(worker), shutdown_timeout=0.1)
    await runner.setup()
    await web.UnixSite(runner, str(path)).start()
    await until(lambda: edge.ready)
    assert edge.engines.configured.synthesizer.name == "speller"
    reply = edge.engines.configured.synthesizer.open(edge.engines.configured.speaking)
    reply.write("hi")
    reply.end()
    assert text_of([piece async for piece in reply]) == "hi"
    assert voice.replies[0].options == VoiceOptions("small", speed=1.5)
    await edge.close()
    await runner.cleanup()
    await worker.close()


@pytest.mark.parametrize("key", ["voice", "language"])
async def test_a_voice_that_cannot_be_stops_the_edge(key: str) -> None:
    edge = Edge(Config(tts=Tts.model_validate({key: "xx"})))
    with pytest.raises(ConfigError, match=rf"^tts\.{key}: .*'xx'"):
        await edge.engines.open()
