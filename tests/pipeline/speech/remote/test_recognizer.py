"""A recogniser behind a worker: whatever happens to the connection, the words are whole."""

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from offhook.media.pcm import RATE_IN, Pcm
from offhook.pipeline.speech.errors import EngineError
from offhook.pipeline.speech.recognizer import (
    DEFAULT_OPTIONS,
    Final,
    Partial,
    Recognizer,
    StreamOptions,
    Word,
)
from offhook.pipeline.speech.remote import pool_io
from offhook.pipeline.speech.remote import recognizer_io as remote_recognizer_io
from offhook.pipeline.speech.remote.asr_sender import UtteranceSender
from offhook.pipeline.speech.remote.recognizer_io import (
    RemoteRecognizer,
    RemoteStream,
)
from offhook.pipeline.speech.remote.worker_client_io import WorkerClient
from offhook.pipeline.speech.streams import quarantine_io, retry, utterance_queue
from offhook.web.speech_api.sockets.engine_metrics import AsrMetrics
from offhook.web.workers.worker_io import Worker, WorkerSettings
from tests.support.waiting import HANGS_S, until
from tests.web.workers.workers import LosableServer, worker_app

TENTH = RATE_IN // 10


class Counter(Recognizer):
    """Hears a word in every tenth of a second: the value of its first sample."""

    name = "counter"

    def __init__(self) -> None:
        self.streams: list[CounterStream] = []
        self.asked: list[StreamOptions] = []

    async def start(self) -> None:
        pass

    async def open(self, options: StreamOptions = DEFAULT_OPTIONS) -> "CounterStream":
        if options.language == "xx":
            raise EngineError("it hears no xx")
        self.asked.append(options)
        self.streams.append(CounterStream())
        return self.streams[-1]

    async def close(self) -> None:
        pass


class CounterStream:
    def __init__(self) -> None:
        self._events: asyncio.Queue[Partial | Final | None] = asyncio.Queue()
        self._pcm: list[Pcm] = []
        self._fed = 0
        self.mute = False
        self.finishes = 0
        self.closed = False

    def _heard(self) -> tuple[str, int, int]:
        pcm = np.concatenate(self._pcm) if self._pcm else np.zeros(0, np.int16)
        words = [str(value) for value in pcm[: len(pcm) // TENTH * TENTH : TENTH]]
        return " ".join(words), len(pcm) * 1000 // RATE_IN, (self._fed - len(pcm)) // TENTH * 100

    def feed(self, pcm: Pcm) -> None:
        self._pcm.append(pcm.copy())
        self._fed += len(pcm)
        text, audio_ms, _ = self._heard()
        if not self.mute:
            self._events.put_nowait(Partial(text, len(text), audio_ms))

    def finish(self) -> None:
        text, audio_ms, start = self._heard()
        starts = range(start, start + audio_ms, 100)
        words = tuple(Word(w, at, at + 100) for w, at in zip(text.split(), starts, strict=False))
        self._pcm.clear()
        self.finishes += 1
        if not self.mute:
            self._events.put_nowait(Final(text, audio_ms, words, "zz"))

    def cancel(self) -> None:
        self._pcm.clear()

    async def events(self) -> AsyncIterator[Partial | Final]:
        while (event := await self._events.get()) is not None:
            yield event

    async def close(self) -> None:
        self.closed = True
        self._events.put_nowait(None)


def sound(*values: int) -> Pcm:
    return np.repeat(np.array(values, np.int16), TENTH)


def awaited(stream: RemoteStream) -> bool:
    return stream._connection is not None and stream._connection.sender.is_awaited


class Server(LosableServer):
    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.engine = Counter()

    async def up(self, **settings: object) -> None:
        given = WorkerSettings("counter", "1", drain_seconds=0, **settings)  # type: ignore[arg-type]
        await self.serve(Worker(given, lambda progress: self.engine, AsrMetrics()))

    async def stream(self) -> CounterStream:
        """The one that was opened last, waited for."""
        await until(lambda: self.engine.streams)
        return self.engine.streams[-1]


@pytest.fixture
async def server(tmp_path: Path) -> AsyncIterator[Server]:
    server = Server(tmp_path / "s")
    await server.up()
    yield server
    if server._runner is not None:
        await server.down()


@asynccontextmanager
async def connected(
    server: Server, options: StreamOptions = DEFAULT_OPTIONS
) -> AsyncIterator[RemoteStream]:
    recognizer = RemoteRecognizer(server.url)
    stream = await recognizer.open(options)
    try:
        yield stream
    finally:
        await stream.close()
        await recognizer.close()


async def finals(stream: RemoteStream, count: int = 1) -> list[Final]:
    found: list[Final] = []
    async with asyncio.timeout(HANGS_S):
        async for event in stream.events():
            found += [event] if isinstance(event, Final) else []
            if len(found) == count:
                break
    return found


async def partial(stream: RemoteStream, text: str) -> Partial:
    async with asyncio.timeout(HANGS_S):
        async for event in stream.events():
            if isinstance(event, Partial) and event.text == text:
                return event
    raise AssertionError


@pytest.mark.usefixtures("nothing_left")
async def test_utterances_follow_one_another_as_with_an_engine_of_this_process(
    server: Server,
) -> None:
    options = StreamOptions(80, "Zoë & co", "zz", True, False)
    async with connected(server, options) as stream:
        stream.feed(sound(1, 2))
        stream.finish()
        stream.finish()
        stream.feed(sound(7, 8, 9))
        stream.cancel()
        stream.feed(sound(3))
        stream.finish()
        first, empty, last = await finals(stream, 3)
    assert first == Final("1 2", 200, (Word("1", 0, 100), Word("2", 100, 200)), "zz")
    assert (empty.text, empty.audio_ms) == ("", 0)
    assert last == Final("3", 100, (Word("3", 500, 600),), "zz")
    assert server.engine.asked == [options]
    await until(lambda: server.engine.streams[0].closed)


async def test_what_is_said_before_the_worker_is_there_waits_for_it(tmp_path: Path) -> None:
    server = Server(tmp_path / "s")
    async with connected(server) as stream:
        stream.feed(sound(1, 2))
        stream.finish()
        stream.feed(sound(5))
        stream.cancel()
        stream.feed(sound(3))
        await asyncio.sleep(0.12)
        await server.up()
        stream.finish()
        assert [final.text for final in await finals(stream, 2)] == ["1 2", "3"]
        await server.down()


async def test_a_lost_connection_is_not_heard_in_the_words(server: Server) -> None:
    async with connected(server) as stream:
        stream.feed(sound(1))
        stream.finish()
        await finals(stream)
        stream.feed(sound(2, 3))
        assert (await partial(stream, "2 3")).stable_chars == 3
        await server.down()
        stream.feed(sound(4))
        await server.up()
        stream.feed(sound(5))
        stream.finish()
        (final,) = await finals(stream)
    words = tuple(Word(str(n), 100 * n - 100, 100 * n) for n in (2, 3, 4, 5))
    assert final == Final("2 3 4 5", 400, words, "zz")


async def test_finished_utterances_that_were_lost_are_heard_again_in_order(
    server: Server,
) -> None:
    async with connected(server) as stream:
        (await server.stream()).mute = True
        for value in (1, 2, 3):
            stream.feed(sound(value))
            stream.finish()
        ears = await server.stream()
        await until(lambda: ears.finishes == 3)
        await server.down()
        await server.up()
        assert [final.text for final in await finals(stream, 3)] == ["1", "2", "3"]


async def test_a_final_under_way_when_its_utterance_is_cancelled_is_nobodys(
    server: Server,
) -> None:
    async with connected(server) as stream:
        ears = await server.stream()
        ears.mute = True
        stream.feed(sound(1))
        stream.finish()
        await until(lambda: ears.finishes)
        stream.cancel()
        ears.mute = False
        ears._events.put_nowait(Final("1", 100))
        stream.feed(sound(2))
        stream.finish()
        assert [final.text for final in await finals(stream)] == ["2"]


async def test_losses_in_quick_succession_cost_no_words(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with connected(server) as stream:
        for value in range(retry.MAX_LOSSES):
            stream.feed(sound(value))
            await until(lambda: awaited(stream))
            await server.down()
            await server.up()
        (utterance,) = stream.queue
        assert utterance.losses.count == retry.MAX_LOSSES
        monkeypatch.setattr(retry, "LOSSES_S", 0.0)  # the pause before the last attempt is over
        stream.feed(sound(3))
        stream.finish()
        assert [(final.text, final.lost) for final in await finals(stream)] == [("0 1 2 3", False)]


async def test_suspects_are_tried_again_one_at_a_time(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(quarantine_io, "ALONE_S", 60.0)
    recognizer = RemoteRecognizer(server.url)
    streams = [await recognizer.open() for _ in range(3)]
    for _ in range(retry.SUSPECT_LOSSES):
        for number, stream in enumerate(streams):
            stream.feed(sound(number))
        await until(lambda: all(awaited(stream) for stream in streams))
        await server.down()
        await server.up()
    heard: list[str] = []
    for _ in streams:
        await until(lambda: any(awaited(stream) for stream in streams))
        await asyncio.sleep(0.2)
        (alone,) = [stream for stream in streams if awaited(stream)]
        alone.finish()
        heard += [final.text for final in await finals(alone)]
    assert sorted(heard) == ["0 0", "1 1", "2 2"]
    for stream in streams:
        await stream.close()
    await recognizer.close()


async def test_sound_that_no_worker_survives_is_given_up(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(retry, "LOSSES_S", 0.0)
    async with connected(server) as stream:
        for _ in range(retry.MAX_LOSSES):
            stream.feed(sound(1))
            await until(lambda: awaited(stream))
            await server.down()
            await server.up()
        (final,) = await finals(stream)
        assert (final.text, final.continues) == ("", True)
        stream.feed(sound(4))
        stream.finish()
        assert (await finals(stream))[0].text == "4"


async def test_without_a_worker_finished_utterances_are_given_up_in_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(remote_recognizer_io, "GIVE_UP_S", 0.1)
    async with connected(Server(tmp_path / "nobody")) as stream:
        stream.feed(sound(1, 2))
        stream.finish()
        assert await finals(stream) == [Final("", 200, language="und")]


async def test_where_one_worker_is_full_or_gone_another_recognizes(tmp_path: Path) -> None:
    servers = [Server(tmp_path / name) for name in "ab"]
    await servers[0].up(max_streams=1)
    await servers[1].up()
    recognizer = RemoteRecognizer([server.url for server in servers])
    streams = [await recognizer.open() for _ in range(3)]
    for number, stream in enumerate(streams):
        stream.feed(sound(number, number))
    await until(lambda: all(awaited(stream) for stream in streams))
    for number, stream in enumerate(streams):
        stream.finish()
        assert [final.text for final in await finals(stream)] == [f"{number} {number}"]
    for number, stream in enumerate(streams):
        stream.feed(sound(number, 7))
    await servers[1].down()
    await servers[0].down()
    await servers[1].up()
    for number, stream in enumerate(streams):
        stream.finish()
        assert [final.text for final in await finals(stream)] == [f"{number} 7"]
        await stream.close()
    await recognizer.close()
    await servers[1].down()


async def test_an_endless_utterance_is_ended_and_goes_on(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(utterance_queue, "MAX_UTTERANCE_S", 1)
    async with connected(server) as stream:
        stream.feed(sound(*range(25)))
        stream.finish()
        first, second, third = await finals(stream, 3)
    assert [f.audio_ms for f in (first, second, third)] == [1000, 1000, 500]
    assert [f.continues for f in (first, second, third)] == [True, True, False]
    assert " ".join((first.text, second.text, third.text)) == " ".join(map(str, range(25)))


async def test_sound_beyond_the_bound_is_dropped_until_a_final_comes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(utterance_queue, "MAX_KEPT_S", 1)
    server = Server(tmp_path / "s")
    async with connected(server) as stream:
        for value in range(20):
            stream.feed(sound(value))
        stream.finish()
        await server.up()
        assert (await finals(stream))[0].text == " ".join(map(str, range(10)))
        stream.feed(sound(99))
        stream.finish()
        assert (await finals(stream))[0].text == "99"
        await server.down()


async def test_start_says_what_is_wrong(server: Server, tmp_path: Path) -> None:
    async def fault(url: str, key: str = "", options: StreamOptions = DEFAULT_OPTIONS) -> str:
        recognizer = RemoteRecognizer(url, key)
        with pytest.raises(EngineError) as caught:
            await recognizer.start(options)
        await recognizer.close()
        return str(caught.value)

    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        port = closed.getsockname()[1]
    assert "Start one there with `offhook worker asr`" in await fault(f"http://127.0.0.1:{port}")
    assert "no speech worker" in await fault(f"unix:{tmp_path / 'nobody'}")
    assert "it hears no xx" in await fault(server.url, options=StreamOptions(language="xx"))
    await server.down()
    await server.up(api_key="secret")
    assert "[asr] api_key" in await fault(server.url, "wrong")
    recognizer = RemoteRecognizer(server.url, "secret")
    await recognizer.start()
    assert recognizer.name == "counter"
    await recognizer.close()


async def test_a_worker_full_of_streams_has_started_and_takes_one_when_another_ends(
    server: Server,
) -> None:
    await server.down()
    await server.up(max_streams=1)
    async with connected(server) as first:
        first.feed(sound(1))
        first.finish()
        await finals(first)
        recognizer = RemoteRecognizer(server.url)
        await recognizer.start()
        second = await recognizer.open()
        second.feed(sound(2))
        second.finish()
        await asyncio.sleep(0.05)
        await first.close()
        assert (await finals(second))[0].text == "2"
        await second.close()
        await recognizer.close()


class Played:
    """A connection whose worker is played by the test."""

    def __init__(self) -> None:
        self.client = WorkerClient("asr", "unix:/nobody", "")
        self.sender = UtteranceSender()

    def wake(self) -> None: ...

    def hang_up(self) -> None: ...

    async def close(self) -> None: ...


async def test_a_connection_given_up_while_it_opens_makes_no_room_for_two_others() -> None:
    recognizer, opened = RemoteRecognizer("unix:/nobody"), 0

    async def opening(*arguments: object, **options: object) -> None:
        nonlocal opened
        opened += 1
        try:
            await asyncio.sleep(HANGS_S)
        finally:
            await asyncio.sleep(0.01)  # until a socket has closed

    recognizer.connections.open = opening  # type: ignore[method-assign, assignment]
    stream = await recognizer.open()
    connection: Any = Played()
    await until(lambda: opened == 1)
    stream._connection = connection
    assert stream.replay(connection)
    await until(lambda: opened == 2)
    stream._drop_other()  # the worker has answered
    assert stream.replay(connection)
    await asyncio.sleep(0.05)
    assert not stream.move(connection)
    await asyncio.sleep(0)
    assert opened == 3
    await stream.close()
    await recognizer.close()


async def test_one_address_is_not_polled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pool_io, "POLL_S", 0.01)
    asked: list[str] = []

    @web.middleware
    async def note(request: web.Request, handler: Any) -> web.StreamResponse:
        asked.append(request.path)
        response: web.StreamResponse = await handler(request)
        return response

    settings = WorkerSettings("counter", "1", drain_seconds=0)
    worker = Worker(settings, lambda progress: Counter(), AsrMetrics())
    app = worker_app(worker)
    app.middlewares.append(note)
    async with TestServer(app, host="127.0.0.1") as server:
        recognizer = RemoteRecognizer(f"http://127.0.0.1:{server.port}")
        await recognizer.start()
        stream = await recognizer.open()
        stream.feed(sound(1, 2))
        stream.finish()
        assert [final.text for final in await finals(stream)] == ["1 2"]
        await asyncio.sleep(0.1)
        assert asked == ["/ws/transcribe"] * 2
        await stream.close()
        await recognizer.close()
    await worker.close()
