"""A worker as its clients see it, and as the server that keeps it: real processes, real speech."""

import asyncio
import os
import signal
import socket
import sys
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

import aiohttp
import numpy as np
import pytest
import pytest_asyncio
from aiohttp import web
from loguru import logger

from offhook import __version__
from offhook.media.codecs.resample import Resampler
from offhook.media.pcm import RATE_IN, Pcm
from offhook.pipeline.engines.embedded.flite_io import FliteSynthesizer
from offhook.pipeline.engines.embedded.pocketsphinx_io import PocketSphinxRecognizer
from offhook.pipeline.engines.shared.asr_models import AsrModels
from offhook.pipeline.speech.errors import EngineError
from offhook.pipeline.speech.recognizer import Final, Partial, Progress, Recognizer
from offhook.pipeline.speech.remote import asr_protocol, worker_protocol
from offhook.pipeline.speech.remote.recognizer_io import RemoteRecognizer
from offhook.pipeline.speech.remote.worker_client_io import WorkerClient
from offhook.pipeline.speech.remote.worker_list_io import UNIX
from offhook.pipeline.speech.streams import utterance_queue
from offhook.pipeline.speech.streams.retry import RetryPolicy
from offhook.web.config.config import Config
from offhook.web.config.engines import Asr
from offhook.web.config.server import WebRtc
from offhook.web.edge.edge_io import Edge
from offhook.web.http.listening_io import Address, listener
from offhook.web.speech_api.server_io import DRAIN_CHECK_S
from offhook.web.speech_api.sockets import worker_stream_io
from offhook.web.speech_api.sockets.engine_metrics import AsrMetrics, TtsMetrics
from offhook.web.workers import local_worker_io
from offhook.web.workers.local_worker_io import LocalWorker, on_demand
from offhook.web.workers.routes_io import listening
from offhook.web.workers.worker_child_io import ChildSettings
from offhook.web.workers.worker_io import Worker, WorkerSettings
from tests.pipeline.conversation.speller import Speller
from tests.support.processes import gone
from tests.support.waiting import HANGS_S, until
from tests.web.workers.workers import (
    ROOT,
    Client,
    Socket,
    children,
    children_started,
    command,
    open_stream,
    served,
    told,
    worker_app,
)

UNDERSTANDS = {"Offhook-Accept": "draining"}
POCKETSPHINX = ChildSettings("pocketsphinx", AsrModels("en-us"), 8, 0, "INFO")
module_loop = pytest.mark.asyncio(loop_scope="module")


@pytest.fixture(scope="module")
def phrase() -> Pcm:
    """Words at 16 kHz, whichever they are, with a little silence around."""
    try:
        sound = FliteSynthesizer().sound(["tell", "me", "about", "your", "opening", "hours"], "slt")
    except EngineError as error:
        pytest.skip(str(error))
    places = np.arange(0, len(sound.pcm) - 1, sound.rate / RATE_IN)
    pcm = np.interp(places, np.arange(len(sound.pcm)), sound.pcm).astype(np.int16)
    return np.pad(pcm, RATE_IN // 5)


@pytest.fixture
def started() -> Iterator[list[int]]:
    with children_started() as pids:
        yield pids


async def hear(
    recognizer: Recognizer, pcm: Pcm, midway: Callable[[], None] = lambda: None
) -> Final:
    """In pieces of 100 ms; `midway` is called when there are words."""
    stream = await recognizer.open()
    pieces = [pcm[at : at + 1600] for at in range(0, len(pcm), 1600)]
    events = stream.events()
    async with asyncio.timeout(HANGS_S):
        for piece in pieces[: len(pieces) // 2]:
            stream.feed(piece)
        async for event in events:
            if isinstance(event, Partial):
                break
        midway()
        for piece in pieces[len(pieces) // 2 :]:
            stream.feed(piece)
        stream.finish()
        final = [event async for event in _to_final(events)][-1]
    await stream.close()
    return final


async def _to_final(events: AsyncIterator[Partial | Final]) -> AsyncIterator[Final]:
    async for event in events:
        if isinstance(event, Final):
            yield event
            return


# --- kept by the server ---


async def test_a_worker_killed_in_the_middle_of_an_utterance_is_not_heard(
    phrase: Pcm, started: list[int]
) -> None:
    async with on_demand(POCKETSPHINX) as url:
        recognizer = RemoteRecognizer(url)
        assert not started
        undisturbed = await hear(recognizer, phrase)
        assert len(undisturbed.text.split()) >= 4
        disturbed = await hear(recognizer, phrase, lambda: os.kill(started[0], signal.SIGKILL))
        assert disturbed == undisturbed
        assert len(started) == 2
        await recognizer.close()
    assert all(gone(pid) for pid in started)
    assert not Path(url.removeprefix("unix:")).parent.exists()


async def test_a_worker_that_hangs_is_killed_and_the_utterance_heard_by_another(
    phrase: Pcm, started: list[int]
) -> None:
    async with on_demand(POCKETSPHINX) as url:
        recognizer = RemoteRecognizer(url)
        undisturbed = await hear(recognizer, phrase)
        disturbed = await hear(recognizer, phrase, lambda: os.kill(started[0], signal.SIGSTOP))
        assert disturbed == undisturbed
        assert len(started) == 2
        assert sum(recognizer.losses.values()) == 1
        await recognizer.close()
    assert all(gone(pid) for pid in started)


BREAKING = """
import sys
from pathlib import Path
from offhook.pipeline.speech.errors import EngineFailed
from offhook.web.workers import worker_child_io

broke = Path(sys.argv[1])
opens = worker_child_io.open_recognizer

def open_recognizer(*wanted):
    recognizer = opens(*wanted)
    opens_stream = recognizer.open

    async def open(options):
        stream = await opens_stream(options)
        events = stream.events

        async def until_broken():
            async for event in events():
                yield event
                if not broke.exists():
                    broke.touch()
                    raise EngineFailed("the device is lost")

        stream.events = until_broken
        return stream

    recognizer.open = open
    return recognizer

worker_child_io.open_recognizer = open_recognizer
worker_child_io.main()
"""


async def test_an_engine_that_breaks_in_the_middle_of_an_utterance_is_not_heard(
    phrase: Pcm, started: list[int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[str] = []
    sink = logger.add(lambda message: said.append(str(message)), level="ERROR")
    broke = tmp_path / "broke"
    command = (sys.executable, "-c", BREAKING, str(broke))
    monkeypatch.setattr(local_worker_io, "COMMAND", command)
    async with on_demand(POCKETSPHINX) as url:
        recognizer = RemoteRecognizer(url)
        disturbed = await hear(recognizer, phrase)
        assert broke.exists()
        assert len(started) == 2
        assert await hear(recognizer, phrase) == disturbed
        assert len(started) == 2
        await recognizer.close()
    logger.remove(sink)
    assert len(disturbed.text.split()) >= 4
    assert "asr worker ended with status 2: the device is lost" in "".join(said)


async def test_a_worker_nobody_needs_ends_and_comes_back(phrase: Pcm, started: list[int]) -> None:
    idle = ChildSettings("pocketsphinx", AsrModels("en-us"), 8, 0.2, "INFO")
    async with on_demand(idle) as url:
        recognizer = RemoteRecognizer(url)
        first = await hear(recognizer, phrase)
        await until(lambda: gone(started[0]))
        assert await hear(recognizer, phrase) == first
        assert len(started) == 2
        await recognizer.close()


async def test_an_engine_that_does_not_load_is_given_up_and_says_why(
    started: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(local_worker_io, "RESTART_S", 0.05)
    said: list[str] = []
    sink = logger.add(lambda message: said.append(str(message)), level="ERROR")
    async with on_demand(ChildSettings("pocketsphinx", AsrModels("xx"), 8, 0, "INFO")) as url:
        recognizer = RemoteRecognizer(url)
        for _ in range(2):
            with pytest.raises(EngineError):
                await recognizer.start()
            await until(lambda: "given up" in "".join(said))
        await recognizer.close()
    logger.remove(sink)
    assert len(started) == 1
    assert "given up for 60 s: pocketsphinx has the model en-us only, not xx" in "".join(said)


async def test_a_request_that_comes_late_gets_the_reason_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    connect = aiohttp.UnixConnector.connect

    async def connect_slowly(*arguments: Any, **options: Any) -> Any:
        connection = await connect(*arguments, **options)
        await asyncio.sleep(0.1)
        return connection

    monkeypatch.setattr(aiohttp.UnixConnector, "connect", connect_slowly)
    settings = ChildSettings("pocketsphinx", AsrModels("xx"), 8, 0, "INFO")
    path = str(tmp_path / "asr.sock")
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(path)
        server.listen()
        server.setblocking(False)
        worker = LocalWorker(settings, server, RetryPolicy(first_s=60))
        worker._given_up_until = asyncio.get_running_loop().time() + 60
        worker._why = "no such model"
        running = asyncio.create_task(worker.run())
        client = WorkerClient("asr", UNIX + path, "")
        async with await client.ask("GET", "/healthz") as answer:
            assert answer.status == 503
            assert (await answer.json())["error"] == "no such model"
        await client.close()
        running.cancel()


KEEPER = """
import asyncio
from loguru import logger
from offhook.pipeline.engines.shared.asr_models import AsrModels
from offhook.pipeline.speech.remote.recognizer_io import RemoteRecognizer
from offhook.web.workers.local_worker_io import on_demand
from offhook.web.workers.worker_child_io import ChildSettings
logger.remove()
def show(message):
    print(message.record["extra"]["pid"], flush=True)
logger.add(show, filter=lambda record: "pid" in record["extra"])
async def main():
    async with on_demand(ChildSettings("pocketsphinx", AsrModels("en-us"), 8, 0, "INFO")) as url:
        await RemoteRecognizer(url).start()
        print("ready", flush=True)
        await asyncio.sleep(60)
asyncio.run(main())
"""


@pytest.mark.skipif(not Path("/proc").is_dir(), reason="looks at /proc")
async def test_nothing_is_left_behind_when_the_server_is_killed(tmp_path: Path) -> None:
    environment = {**os.environ, "TMPDIR": str(tmp_path), "PYTHONPATH": str(ROOT)}
    keeper = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", KEEPER), env=environment, stdout=asyncio.subprocess.PIPE
    )
    assert keeper.stdout is not None
    pid = int(await keeper.stdout.readline())
    assert await keeper.stdout.readline() == b"ready\n"
    family = [pid, *children(pid)]
    assert len(family) == 2  # the worker, and the process of PocketSphinx
    keeper.kill()
    await keeper.wait()
    await until(lambda: all(gone(pid) for pid in family))


# --- as a server of its own ---


@pytest.mark.parametrize(
    "listen", [pytest.param("127.0.0.1:0", marks=pytest.mark.slow), "unix:worker.sock"]
)
async def test_the_command_serves_and_ends_when_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, phrase: Pcm, listen: str
) -> None:
    monkeypatch.chdir(tmp_path)
    async with command(tmp_path, "asr", "pocketsphinx", listen) as (url, process):
        recognizer = RemoteRecognizer(url)
        assert (await hear(recognizer, phrase)).text
        assert "worker.sock" not in url or os.stat("worker.sock").st_mode & 0o077 == 0
        await recognizer.close()
        process.terminate()
        assert await asyncio.wait_for(process.wait(), HANGS_S) == 0


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def engine() -> AsyncIterator[PocketSphinxRecognizer]:
    engine = PocketSphinxRecognizer(1)
    await engine.start()
    yield engine
    await engine.close()


class Kept(Recognizer):
    """The engine of this module, which no worker closes."""

    max_streams: int | None = None
    max_open_streams: int | None = None

    def __init__(self, engine: PocketSphinxRecognizer) -> None:
        self.name = engine.name
        self.open = engine.open

    async def start(self) -> None: ...

    async def close(self) -> None: ...


def talking(client: Client, **query: str) -> AbstractAsyncContextManager[Socket]:
    return open_stream(client, asr_protocol.PATH, **query)


def serving(
    make: Callable[[Progress], Recognizer], **settings: Any
) -> AbstractAsyncContextManager[tuple[Client, Worker[Recognizer]]]:
    return served(Worker(WorkerSettings("pocketsphinx", "en-us", **settings), make, AsrMetrics()))


async def say(socket: aiohttp.ClientWebSocketResponse, pcm: Pcm) -> str:
    for at in range(0, len(pcm), 1601):
        await socket.send_bytes(pcm[at : at + 1601].astype("<i2").tobytes())
    await socket.send_json({"type": "flush"})
    return str((await told(socket, "final"))["text"])


@module_loop
async def test_two_streams_at_once_at_other_rates_hear_the_same(
    engine: PocketSphinxRecognizer, phrase: Pcm
) -> None:
    fast = Resampler(16_000, 48_000).process(phrase)
    slow = Resampler(16_000, 8_000).process(phrase)
    async with (
        serving(lambda progress: Kept(engine)) as (client, worker),
        talking(client, rate="48000") as first,
        talking(client, rate="8000", words="true") as second,
    ):
        ready = await told(first, "ready")
        assert (ready["engine"], ready["rate"]) == ("pocketsphinx", 48_000)
        texts = await asyncio.gather(say(first, fast), say(second, slow))
        assert len(worker.streams) == 2
    direct = (await hear(engine, phrase)).text.split()
    for text in texts:
        assert len(set(text.split()) & set(direct)) >= len(direct) // 2, (text, direct)


@module_loop
async def test_loading_is_told_and_a_stream_waits_for_it(
    engine: PocketSphinxRecognizer, phrase: Pcm
) -> None:
    loaded = threading.Event()

    def make(progress: Progress) -> Recognizer:
        progress(0.4, "reading weights")
        loaded.wait(HANGS_S)
        return Kept(engine)

    async with serving(make, max_streams=1) as (client, _), talking(client) as socket:
        await asyncio.sleep(0.05)
        health = await (await client.get("/healthz")).json()
        assert health == {"status": "loading", "fraction": 0.4, "doing": "reading weights"}
        assert (await client.get("/readyz")).status == 503
        await socket.send_bytes(phrase.tobytes())
        loaded.set()
        await told(socket, "ready")
        assert (await client.get("/readyz")).status == 200
        await socket.send_json({"type": "flush"})
        assert (await told(socket, "final"))["text"]
        async with talking(client) as refused:
            error = await refused.receive_json()
            assert (error["code"], refused.closed) == ("full", False)
            assert "all 1 streams are open" in error["message"]
            await refused.receive()
            assert refused.close_code == aiohttp.WSCloseCode.TRY_AGAIN_LATER
        scrape = await (await client.get("/metrics")).text()
        assert 'offhook_asr_streams_ended_total{code="full"} 1.0' in scrape
        assert "offhook_asr_final_seconds_count 1.0" in scrape


@pytest.mark.parametrize(("wanted", "followed", "most"), [(4, 1, 1), (0, 1, 1), (1, 3, 1)])
@module_loop
async def test_no_more_streams_than_the_engine_follows(
    engine: PocketSphinxRecognizer, wanted: int, followed: int, most: int
) -> None:
    def make(progress: Progress) -> Recognizer:
        recognizer = Kept(engine)
        recognizer.max_streams = followed
        return recognizer

    async with serving(make, max_streams=wanted) as (client, worker):
        await worker.loading
        assert (await (await client.get("/readyz")).json())["max_streams"] == most
        assert f"offhook_asr_max_streams {most}.0" in await (await client.get("/metrics")).text()
        async with talking(client) as taken, talking(client) as refused:
            await told(taken, "ready")
            error = await refused.receive_json()
            assert error["code"] == "full"
            what = "the number of workers" if most < (wanted or 2) else "--max-streams"
            assert f"all {most} streams are open" in error["message"]
            assert f"raise {what}" in error["message"]


@module_loop
async def test_a_stream_is_in_use_while_its_caller_speaks(
    engine: PocketSphinxRecognizer, phrase: Pcm
) -> None:
    def make(progress: Progress) -> Recognizer:
        recognizer = Kept(engine)
        recognizer.max_streams, recognizer.max_open_streams = 1, 3
        return recognizer

    async with serving(make) as (client, worker), talking(client) as one, talking(client) as other:
        for socket in (one, other):
            await told(socket, "ready")
        state = await (await client.get("/readyz")).json()
        assert (state["streams"], state["open_streams"]) == (0, 2)
        assert (state["max_streams"], state["max_open_streams"]) == (1, 3)
        for at in range(0, len(phrase), 1600):  # both speak, though the engine follows one
            for socket in (one, other):
                await socket.send_bytes(phrase[at : at + 1600].tobytes())
        await until(lambda: len(worker.busy) == 2)
        async with talking(client) as refused:
            error = await refused.receive_json()
            assert (error["code"], "all 1 streams are in use" in error["message"]) == ("full", True)
        for socket in (one, other):
            await socket.send_json({"type": "flush"})
            assert (await told(socket, "final"))["text"]
        await until(lambda: not worker.busy)
        async with talking(client) as third:
            await told(third, "ready")
            await third.send_bytes(phrase.tobytes())
            await until(lambda: len(worker.busy) == 1)
            await third.send_json({"type": "cancel"})
            await until(lambda: not worker.busy)


@module_loop
@pytest.mark.parametrize(
    ("query", "send", "code", "says"),
    [
        ({"rate": "44100"}, None, "bad_request", "rate is 44100"),
        ({"language": "de"}, None, "bad_request", "English"),
        ({}, b"odd", "bad_request", "a sample has two"),
        ({}, "flush", "bad_request", "not JSON"),
        ({}, '{"type":"stop"}', "bad_request", "type is 'stop'"),
        ({}, b"\0" * (asr_protocol.MAX_AUDIO_BYTES + 2), "too_long", "bytes of audio"),
        ({}, "x" * (worker_protocol.MAX_TEXT_CHARS + 1), "too_long", "characters"),
        ({}, b"", "idle", "nothing came"),
        ({}, b"\0" * 96_000, "behind", "flush sooner"),
    ],
)
async def test_what_ends_a_stream_is_said_in_words(
    engine: PocketSphinxRecognizer,
    monkeypatch: pytest.MonkeyPatch,
    query: dict[str, str],
    send: str | bytes | None,
    code: str,
    says: str,
) -> None:
    monkeypatch.setattr(utterance_queue, "MAX_UNHEARD_S", 2)
    if code == "idle":
        monkeypatch.setattr(worker_stream_io, "IDLE_S", 0.1)
    async with (
        serving(lambda progress: Kept(engine)) as (client, worker),
        talking(client, **query) as socket,
    ):
        if isinstance(send, bytes):
            await socket.send_bytes(send)
        elif send is not None:
            await socket.send_str(send)
        async with asyncio.timeout(HANGS_S):
            while (message := await socket.receive_json())["type"] != "error":
                pass
        assert message["code"] == code
        assert says in message["message"]
        assert (await socket.receive()).type is aiohttp.WSMsgType.CLOSE
        await until(lambda: not worker.streams)


@module_loop
async def test_more_than_may_wait_is_read_when_a_final_makes_room(
    engine: PocketSphinxRecognizer, phrase: Pcm, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(utterance_queue, "MAX_UNHEARD_S", 3)
    async with serving(lambda progress: Kept(engine)) as (client, _), talking(client) as socket:
        for _ in range(3):
            await socket.send_bytes(phrase.tobytes())
            await socket.send_json({"type": "flush"})
        finals = [await told(socket, "final") for _ in range(3)]
    assert [final["utterance"] for final in finals] == [0, 1, 2]
    assert all(final["text"] for final in finals)


@module_loop
async def test_who_may_ask(engine: PocketSphinxRecognizer) -> None:
    path = asr_protocol.PATH

    async def status(client: Any, **headers: str) -> int:
        async with client.get(path, headers=headers) as answer:
            assert (await answer.json())["error"]
            return int(answer.status)

    async with serving(lambda progress: Kept(engine), api_key="secret") as (client, _):
        assert await status(client) == 401
        assert await status(client, Authorization="Bearer secre") == 401
        assert await status(client, Authorization="Bearer secret") == 426
        assert await status(client, Authorization="BEARER secret") == 426
        assert (await client.get("/readyz")).status in (200, 503)
        for method, where, code in (("GET", "/v1/x", 401), ("PUT", "/v1/models", 401)):
            async with client.request(method, where) as answer:
                assert (answer.status, (await answer.json())["error"]["type"]) == (
                    code,
                    "authentication_error",
                )
                assert answer.headers["X-Request-Id"]
        key = {"Authorization": "Bearer secret"}
        for method, where, code in (("GET", "/v1/x", 404), ("PUT", "/v1/models", 405)):
            async with client.request(method, where, headers=key) as answer:
                assert (answer.status, (await answer.json())["error"]["type"]) == (
                    code,
                    "invalid_request_error",
                )
                assert answer.headers["X-Request-Id"]
        assert (await client.get("/metrics")).status == 200
    async with serving(lambda progress: Kept(engine), api_key="secret", metrics="key") as (
        client,
        _,
    ):
        assert (await client.get("/metrics")).status == 401
        assert (await client.get("/healthz")).status == 200
    async with serving(lambda progress: Kept(engine)) as (client, _):
        assert await status(client) == 426
        assert await status(client, Host="rebound.example") == 403
        assert await status(client, Origin="https://elsewhere.example") == 403
        here = f"{client.host}:{client.port}"
        assert await status(client, Origin=f"http://{here}") == 426


@module_loop
async def test_stopping_lets_streams_end_and_tells_those_that_do_not(
    engine: PocketSphinxRecognizer, phrase: Pcm
) -> None:
    async with (
        serving(lambda progress: Kept(engine), drain_seconds=5) as (client, worker),
        talking(client) as socket,
    ):
        await told(socket, "ready")
        draining = asyncio.create_task(worker.drain(5))
        await asyncio.sleep(0)
        async with talking(client) as late:
            assert (await late.receive_json())["code"] == "stopping"
        await asyncio.sleep(2 * DRAIN_CHECK_S)
        assert not draining.done()  # whose caller is silent has a stream, too
        assert await say(socket, phrase)
        await socket.send_json({"type": "close"})
        await asyncio.wait_for(draining, HANGS_S)


@module_loop
async def test_a_drain_is_told_to_every_stream_that_understands_and_the_stream_goes_on(
    engine: PocketSphinxRecognizer, phrase: Pcm
) -> None:
    async with (
        serving(lambda progress: Kept(engine), max_streams=4) as (client, worker),
        client.ws_connect(asr_protocol.PATH, headers=UNDERSTANDS) as new,
        client.ws_connect(asr_protocol.PATH, headers=UNDERSTANDS) as another,
        talking(client) as old,
    ):
        ready = [await told(socket, "ready") for socket in (new, another, old)]
        assert {message["id"] for message in ready} == {worker.id}
        assert all(0.7 <= message["free"] <= 0.9 for message in ready)
        state = await (await client.get("/readyz")).json()
        expected = {"id": worker.id, "version": __version__, "free": 0.7, "draining": False}
        assert expected.items() <= state.items()
        worker.begin_drain()
        answer = await client.get("/readyz")
        assert answer.status == 503
        assert {"free": 0.0, "draining": True}.items() <= (await answer.json()).items()
        for socket in (new, another):
            assert await told(socket, "draining") == {"type": "draining", "free": 0.0}
            assert await say(socket, phrase)
        for at in range(0, len(phrase), 1600):
            await old.send_bytes(phrase[at : at + 1600].tobytes())
        await old.send_json({"type": "flush"})
        async with asyncio.timeout(HANGS_S):
            while (message := await old.receive_json())["type"] != "final":
                assert message["type"] == "partial", "others do not know the message"


@pytest.mark.parametrize("text", ["7870", "host:", "host:99999", "unix:", "host:port"])
def test_an_address_that_is_none_says_so(text: str) -> None:
    with pytest.raises(ValueError, match="give HOST:PORT or unix:PATH"):
        Address.parse(text)


async def test_four_hundred_who_come_back_at_once_are_all_served() -> None:
    """As after the death of another worker, while this one is busy for a moment."""
    settings = WorkerSettings("spelling", "1")
    worker = Worker(settings, lambda progress: Speller(), TtsMetrics())
    clients = []
    access = settings.access()
    async with listening(worker, lambda: access, [listener(Address())]) as (url,):
        host, _, port = url.removeprefix("http://").partition(":")
        for _ in range(400):  # nothing is accepted meanwhile: the loop does not run
            clients.append(socket.create_connection((host, int(port)), timeout=HANGS_S))
        for client in clients:
            client.sendall(b"GET /healthz HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
        for client in clients:
            client.settimeout(HANGS_S)
            answer = await asyncio.to_thread(client.recv, 15)
            assert answer == b"HTTP/1.1 200 OK"
            client.close()


def test_addresses() -> None:
    assert Address.parse("[::1]:80") == Address("::1", 80)
    assert Address.parse("unix:/run/asr").path == "/run/asr"
    assert [Address.parse(a).local for a in ("127.0.0.1:1", "0.0.0.0:1", "unix:a")] == [
        True,
        False,
        True,
    ]


# --- the edge ---


@module_loop
async def test_an_edge_whose_worker_is_elsewhere_is_ready_when_that_is(
    engine: PocketSphinxRecognizer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("offhook.web.workers.engines.remote_engine_io.WORKER_RETRY_S", 0.05)
    monkeypatch.setattr("aioice.ice.get_host_addresses", lambda *_: [])
    path = tmp_path / "s"
    asr = Asr(url=f"unix:{path}", context="opening hours")
    edge = Edge(Config(webrtc=WebRtc(addresses=["127.0.0.1"]), asr=asr))
    await edge.start()
    await asyncio.sleep(0.1)
    assert not edge.ready
    worker = Worker(
        WorkerSettings("pocketsphinx", "en-us"), lambda progress: Kept(engine), AsrMetrics()
    )
    runner = web.AppRunner(worker_app(worker), shutdown_timeout=0.1)
    await runner.setup()
    await web.UnixSite(runner, str(path)).start()
    await until(lambda: edge.ready)
    assert edge.engines.configured.recognizer.name == "pocketsphinx"
    await edge.close()
    await runner.cleanup()
    await worker.close()
