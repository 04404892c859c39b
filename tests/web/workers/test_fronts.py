"""A worker whose WebSockets are in other processes is one worker to its clients."""

import asyncio
import os
import pickle
import signal
import socket
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
from aiohttp import WSMsgType
from loguru import logger

torch = pytest.importorskip("torch")

from benchmarks.engines.random_workers import worker  # noqa: E402
from benchmarks.speech.texts import frames_of  # noqa: E402
from offhook.pipeline.engines.shared.synthesis.messages import FRAME_SAMPLES  # noqa: E402
from offhook.pipeline.engines.shared.tts_models import NO_CACHE  # noqa: E402
from offhook.pipeline.speech.errors import EngineFailed  # noqa: E402
from offhook.pipeline.speech.remote.worker_protocol import (  # noqa: E402
    ACCEPT_HEADER,
    DRAINING,
)
from offhook.web.speech_api.admission import Kind  # noqa: E402
from offhook.web.workers import fronts_io  # noqa: E402
from offhook.web.workers.front_protocol import (  # noqa: E402
    MAX_CONNECTION_BYTES,
    Connection,
)
from offhook.web.workers.worker_io import Worker, WorkerSettings  # noqa: E402
from tests.support.processes import gone  # noqa: E402
from tests.support.waiting import HANGS_S, until  # noqa: E402
from tests.web.workers.workers import Client, Socket, children_started, open_stream, served, told  # noqa: E402

TRANSCRIBE = "/ws/transcribe"
NOISE = (np.random.default_rng(1).standard_normal(1280) * 3000).astype(np.int16)
"""80 ms of a caller."""
TEXT = "The tree."
FRAMES = frames_of(3)  # two words and a mark


@asynccontextmanager
async def fronted(
    streams: int = 8, fronts: int = 2, cache: str = NO_CACHE
) -> AsyncIterator[tuple[Client, Worker[Any]]]:
    settings = WorkerSettings("qwen3-tts", "random", streams, audio_cache=cache, fronts=fronts)
    async with served(worker("tts", "simulated", settings)) as (client, one):
        async with asyncio.timeout(HANGS_S):
            await one.loading
        assert one.fronts is not None
        await until(lambda: len(one.fronts.running) == fronts)
        yield client, one


async def begin(socket: Socket, text: str) -> None:
    await socket.send_json({"type": "text", "text": text})


async def rest_of_reply(
    socket: Socket, between: list[str] | None = None
) -> tuple[int, str, dict[str, Any]]:
    """Returns the samples, the text of the marks and the last message of a reply, and adds the
    types of messages `between` that are not of the reply. Raises ConnectionError."""
    samples, marked = 0, ""
    while True:
        message = await socket.receive(HANGS_S)
        if message.type not in (WSMsgType.BINARY, WSMsgType.TEXT):
            raise ConnectionError("lost")
        if isinstance(message.data, bytes):
            samples += len(message.data) // 2
            continue
        said = message.json()
        if said["type"] == "draining" and between is not None:
            between.append(said["type"])
            continue
        if said["type"] != "mark":
            return samples, marked, said
        assert said["samples"] == samples
        marked += said["text"]


async def spoken(socket: Socket, text: str = TEXT) -> int:
    """Speaks a reply and returns its samples."""
    await begin(socket, text)
    await socket.send_json({"type": "end"})
    samples, marked, last = await rest_of_reply(socket)
    assert (marked, last["type"], last["reason"]) == (text, "done", "end")
    return samples


async def metrics(client: Client) -> dict[str, float]:
    text = await (await client.get("/metrics")).text()
    lines = (line.rsplit(" ", 1) for line in text.splitlines() if not line.startswith("#"))
    return {name: float(value) for name, value in lines}


def held(one: Worker[Any]) -> list[int]:
    """The connections of each front."""
    assert one.fronts is not None
    return sorted(len(front.connections) for front in one.fronts.running)


async def test_replies_sound_and_are_counted_as_those_of_one_worker() -> None:
    async with fronted() as (client, one):
        async with open_stream(client, "/ws/speak") as a, open_stream(client, "/ws/speak") as b:
            ready = await told(a, "ready")
            assert ready["id"] == one.id
            assert ready["voices"] == one.engine.voices()
            await told(b, "ready")
            assert held(one) == [1, 1]
            for socket in (a, b, a):
                samples = await spoken(socket)
                assert samples == pytest.approx(FRAMES * FRAME_SAMPLES, abs=2 * FRAME_SAMPLES)
            await until(lambda: not one.busy)  # of the last reply
            await begin(a, "One")
            await until(lambda: len(one.busy) == 1)
            state = await (await client.get("/readyz")).json()
            assert (state["ready"], state["streams"], state["max_streams"]) == (True, 1, 8)
            await a.send_json({"type": "cancel"})
            assert (await rest_of_reply(a))[2]["reason"] == "cancel"
            await until(lambda: not one.busy)
        await until(lambda: held(one) == [0, 0])
        counted = await metrics(client)
        assert counted['offhook_tts_replies_total{reason="end"}'] == 3
        assert counted['offhook_tts_replies_total{reason="cancel"}'] == 1
        assert counted["offhook_tts_first_sound_seconds_count"] >= 3
        assert counted["offhook_tts_audio_seconds_total"] > 3 * (FRAMES - 2) * 0.08


async def test_admission_is_that_of_the_worker() -> None:
    async with fronted(streams=1) as (client, one):
        async with open_stream(client, "/ws/speak") as a, open_stream(client, "/ws/speak") as b:
            await told(a, "ready")
            await told(b, "ready")
            await begin(a, "One")
            await until(lambda: len(one.busy) == 1)
            await begin(b, "Two")
            refused = await b.receive_json(timeout=HANGS_S)
            assert (refused["type"], refused["code"]) == ("error", "full")
        with pytest.raises(Exception, match="400"):  # before the upgrade, as without fronts
            async with open_stream(client, "/v1/audio/speech/ws", speed="9"):
                pass
        answer = await client.get("/v1/models")
        assert answer.status == 200


async def test_a_front_that_dies_loses_its_streams_and_no_others() -> None:
    with children_started() as pids:
        async with fronted() as (client, one):
            async with open_stream(client, "/ws/speak") as a, open_stream(client, "/ws/speak") as b:
                for socket in (a, b):
                    await told(socket, "ready")
                    await begin(socket, "One two")
                await until(lambda: len(one.busy) == 2)
                await until(lambda: engine_streams(one) == 2)
                os.kill(pids[0], signal.SIGKILL)
                await until(lambda: len(one.busy) == 1)
                await until(lambda: engine_streams(one) == 1)
                found = []
                for socket in (a, b):
                    with suppress(ConnectionError):
                        await socket.send_json({"type": "end"})
                        found.append(await rest_of_reply(socket))
                (samples, marked, last) = found[0]
                assert len(found) == 1
                assert (marked, last["type"]) == ("One two", "done")
                assert samples
            await until(lambda: len(pids) == 3)  # another has begun
            assert one.fronts is not None
            await until(lambda: len(one.fronts.running) == 2)
            async with open_stream(client, "/ws/speak") as c, open_stream(client, "/ws/speak") as d:
                for socket in (c, d):
                    await told(socket, "ready")
                    await spoken(socket)
    await until(lambda: all(map(gone, pids)))


@pytest.mark.slow
async def test_a_front_that_hangs_is_replaced() -> None:
    with children_started() as pids:
        async with fronted(fronts=1) as (client, one):
            async with open_stream(client, "/ws/speak") as socket:
                await told(socket, "ready")
                os.kill(pids[0], signal.SIGSTOP)
                with pytest.raises(ConnectionError):
                    await rest_of_reply(socket)
            await until(lambda: gone(pids[0]))
            await until(lambda: len(pids) == 2)
            assert one.fronts is not None
            await until(lambda: one.fronts.running)


async def test_a_front_that_never_begins_is_ended_and_another_is_started(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    said: list[str] = []
    sink = logger.add(lambda message: said.append(str(message)), level="ERROR")
    monkeypatch.setattr(fronts_io, "COMMAND", (sys.executable, "-c", "while True: pass"))
    monkeypatch.setattr(fronts_io, "BEGIN_S", 0.3)
    with children_started() as pids:

        async def mend() -> None:
            await until(lambda: pids and gone(pids[0]))
            monkeypatch.undo()

        mending = asyncio.create_task(mend())
        async with fronted(fronts=1) as (client, _):
            await mending
            async with open_stream(client, "/ws/speak") as socket:
                await told(socket, "ready")
                await spoken(socket)
    logger.remove(sink)
    assert "a front does not begin: was not ready within 0.3 s" in said[0]


async def test_a_draining_worker_tells_the_clients_of_its_fronts_and_stops_them() -> None:
    headers = {ACCEPT_HEADER: DRAINING}
    async with (
        fronted(fronts=1) as (client, one),
        client.ws_connect("/ws/speak", headers=headers) as socket,
    ):
        await told(socket, "ready")
        await begin(socket, "One two")
        await until(lambda: one.busy)
        draining = asyncio.create_task(one.drain(HANGS_S))
        await until(lambda: one.draining)
        await socket.send_json({"type": "end"})
        between: list[str] = []
        assert (await rest_of_reply(socket, between))[1] == "One two"
        assert between == ["draining"]
        await draining
        await begin(socket, "Three")
        assert (await socket.receive_json(timeout=HANGS_S))["code"] == "stopping"
        async with open_stream(client, "/ws/speak") as late:
            assert (await late.receive_json(timeout=HANGS_S))["code"] == "stopping"


async def test_streams_end_when_the_worker_stops() -> None:
    async with fronted(fronts=1) as (client, one), open_stream(client, "/ws/speak") as socket:
        await told(socket, "ready")
        await begin(socket, "One two")
        await until(lambda: one.busy)
        one.stop_streams()
        assert (await last_words(socket))["code"] == "stopping"


async def test_an_engine_that_breaks_ends_the_worker_and_its_clients_know(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def broken(now: float) -> bool:
        raise RuntimeError("CUDA error")

    async with fronted(fronts=1) as (client, one), open_stream(client, "/ws/speak") as socket:
        await told(socket, "ready")
        monkeypatch.setattr(one.engine._engine, "turn", broken)
        await begin(socket, "One two")
        with pytest.raises(EngineFailed, match="CUDA error"):
            async with asyncio.timeout(HANGS_S):
                await one.broken
        assert (await last_words(socket))["code"] == "stopping"


# --- of a recognizer ---


@asynccontextmanager
async def hearing(fronts: int = 2) -> AsyncIterator[tuple[Client, Worker[Any]]]:
    settings = WorkerSettings("qwen3-asr", "random", 0, fronts=fronts)
    async with served(worker("asr", "tiny", settings)) as (client, one):
        async with asyncio.timeout(HANGS_S):
            await one.loading
        yield client, one


async def say(socket: Socket, seconds: float = 2.0) -> None:
    for _ in range(round(seconds / 0.08)):
        await socket.send_bytes(NOISE.tobytes())


async def heard(socket: Socket) -> str:
    """Returns the words of an utterance."""
    while (message := await socket.receive_json(timeout=HANGS_S))["type"] != "final":
        assert message["type"] == "partial"
    return str(message["text"])


async def utterance(socket: Socket) -> str:
    await say(socket)
    await socket.send_json({"type": "flush"})
    return await heard(socket)


async def test_words_are_heard_and_counted_as_by_one_worker() -> None:
    async with hearing(fronts=0) as (client, _), open_stream(client, TRANSCRIBE) as socket:
        await told(socket, "ready")
        alone = [await utterance(socket), await utterance(socket)]
    async with (
        hearing() as (client, one),
        open_stream(client, TRANSCRIBE) as a,
        open_stream(client, TRANSCRIBE, timing="true") as b,
    ):
        for socket in (a, b):
            assert (await told(socket, "ready"))["id"] == one.id
        assert held(one) == [1, 1]
        state = await (await client.get("/readyz")).json()
        assert (state["streams"], state["open_streams"]) == (0, 2)
        for socket in (a, b):
            assert [await utterance(socket), await utterance(socket)] == alone
        await say(a)
        await until(lambda: len(one.busy) == 1)
        await a.send_json({"type": "cancel"})
        await until(lambda: not one.busy)
        assert (await utterance(a)).split() == alone[0].split()
        for socket in (a, b):
            await socket.send_json({"type": "close"})
        await until(lambda: held(one) == [0, 0])
        counted = await metrics(client)
        assert counted["offhook_asr_final_seconds_count"] == 5
        assert counted["offhook_asr_audio_seconds_total"] == pytest.approx(12)
        assert counted['offhook_asr_stage_seconds_count{stage="gpu"}'] >= 2
        assert counted['offhook_asr_streams_ended_total{code="none"}'] == 2


async def test_what_a_recognizer_refuses_is_told_by_its_front() -> None:
    async with hearing(fronts=1) as (client, _):
        async with open_stream(client, TRANSCRIBE, language="xx") as socket:
            assert (await socket.receive_json(timeout=HANGS_S))["code"] == "bad_request"
        async with AsyncExitStack() as stack:
            for _ in range(8):  # of a tiny model on a CPU
                socket = await stack.enter_async_context(open_stream(client, TRANSCRIBE))
                await told(socket, "ready")
            ninth = await stack.enter_async_context(open_stream(client, TRANSCRIBE))
            assert (await ninth.receive_json(timeout=HANGS_S))["code"] == "full"


async def test_callers_of_a_front_that_dies_leave_nothing_in_the_engine() -> None:
    with children_started() as pids:
        async with hearing() as (client, one):
            async with open_stream(client, TRANSCRIBE) as a, open_stream(client, TRANSCRIBE) as b:
                for socket in (a, b):
                    await told(socket, "ready")
                    await say(socket)
                await until(lambda: len(one.busy) == 2)
                os.kill(pids[0], signal.SIGKILL)
                await until(lambda: len(one.busy) == 1)
                found = []
                for socket in (a, b):
                    with suppress(ConnectionError, TypeError):  # it has closed
                        await socket.send_json({"type": "flush"})
                        found.append(await heard(socket))
                assert len(found) == 1
                assert found[0]
            async with AsyncExitStack() as stack:
                for _ in range(8):  # all that there are
                    socket = await stack.enter_async_context(open_stream(client, TRANSCRIBE))
                    await told(socket, "ready")


@pytest.mark.parametrize(
    ("kind", "streams", "cores", "fronts"),
    [
        ("speech", 127, 64, 0),
        ("speech", 128, 64, 1),
        ("speech", 900, 16, 4),
        ("speech", 900, 3, 0),
        ("transcription", 255, 64, 0),
        ("transcription", 777, 64, 3),
    ],
)
def test_fronts_follow_from_streams_and_cores(
    monkeypatch: pytest.MonkeyPatch, kind: Kind, streams: int, cores: int, fronts: int
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: set(range(cores)))
    assert fronts_io.fronts_for(kind, streams) == fronts


def test_a_request_that_a_front_would_read_in_part_is_not_handed_over() -> None:
    front = fronts_io.RunningFront(Mock(), "speech", Mock())
    with front._handover as ours, front._far_handover as far:
        ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 2 * MAX_CONNECTION_BYTES)
        transport = Mock(get_extra_info=Mock(return_value=far))
        assert not front._send(transport, Connection(1, bytes(MAX_CONNECTION_BYTES)))
        assert front._send(transport, Connection(2, b"GET / HTTP/1.1"))
        assert pickle.loads(far.recv(MAX_CONNECTION_BYTES)).number == 2


def test_a_front_needs_no_torch() -> None:
    asks = (
        "import sys, offhook.web.workers.front_io, offhook.pipeline.engines.qwen3_tts.replies_io, "
        "offhook.pipeline.engines.shared.recognition.far_recognizer_io; "
        "sys.exit('torch' in sys.modules)"
    )
    subprocess.run([sys.executable, "-c", asks], check=True)


async def last_words(socket: Socket) -> dict[str, Any]:
    """Returns the last text message before the connection closes."""
    said: dict[str, Any] = {}
    while (message := await socket.receive(HANGS_S)).type in (WSMsgType.BINARY, WSMsgType.TEXT):
        if message.type is WSMsgType.TEXT:
            said = message.json()
    return said


def engine_streams(one: Worker[Any]) -> int:
    return int(one.engine._engine.streams)
