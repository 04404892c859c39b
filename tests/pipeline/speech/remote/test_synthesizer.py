"""A voice behind a worker: whatever happens to the connection, every word is spoken, and once."""

import asyncio
import json
import logging
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import numpy as np
import pytest
from aiohttp import web
from hypothesis import given, settings
from hypothesis import strategies as st

from offhook.media.pcm import RATE_OUT
from offhook.pipeline.speech.errors import EngineError, EngineFailed
from offhook.pipeline.speech.remote import synthesizer_io as remote_synthesizer_io
from offhook.pipeline.speech.remote import tts_connection_io
from offhook.pipeline.speech.remote.pool import WorkerAddress, WorkerEvent
from offhook.pipeline.speech.remote.pool_io import Workers
from offhook.pipeline.speech.remote.synthesizer_io import Attempt, RemoteSpeech, RemoteSynthesizer
from offhook.pipeline.speech.remote.tts_connection_io import ConnectionPool
from offhook.pipeline.speech.remote.tts_protocol import MAX_WAITING_CHARS, End, Text
from offhook.pipeline.speech.remote.worker_client_io import SILENCE_S, WorkerClient
from offhook.pipeline.speech.streams import retry
from offhook.pipeline.speech.synthesizer import (
    DEFAULT_VOICE,
    Speech,
    SynthesizerStream,
    TextTooLong,
    VoiceOptions,
)
from offhook.web.speech_api.sockets.engine_metrics import TtsMetrics
from offhook.web.workers.worker_io import Worker, WorkerSettings
from tests.pipeline.conversation.speller import LETTER, Speller, spelt
from tests.support.waiting import HANGS_S, until
from tests.web.workers.workers import LosableServer


class Server(LosableServer):
    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.voice = Speller()
        self.connections = 0
        """That were made."""

    async def up(self, **settings: object) -> None:
        given = WorkerSettings("speller", "1", drain_seconds=0, **settings)  # type: ignore[arg-type]
        worker = Worker(given, lambda progress: self.voice, TtsMetrics())
        await self.serve(worker, self._count)

    @web.middleware
    async def _count(self, request: web.Request, handler: Callable) -> web.StreamResponse:  # type: ignore[type-arg]
        self.connections += 1
        answer: web.StreamResponse = await handler(request)
        return answer


@pytest.fixture
async def server(tmp_path: Path) -> AsyncIterator[Server]:
    server = Server(tmp_path / "s")
    await server.up()
    yield server
    await server.down()


@asynccontextmanager
async def connected(server: Server, name: str = "") -> AsyncIterator[RemoteSynthesizer]:
    synthesizer = RemoteSynthesizer(server.url, name=name)
    yield synthesizer
    await synthesizer.close()
    await asyncio.sleep(0)
    left = [task for task in asyncio.all_tasks() if task.get_name().startswith("speech worker")]
    assert not left


async def pieces(reply: SynthesizerStream) -> list[Speech]:
    async with asyncio.timeout(HANGS_S):
        return [piece async for piece in reply]


async def pieces_until(reply: SynthesizerStream, sound: str, text: str = "") -> list[Speech]:
    """Until it has said this, by its sound and its marks; and not more."""
    heard: list[Speech] = []
    async with asyncio.timeout(HANGS_S):
        async for piece in reply:
            heard.append(piece)
            marks, letters = said(heard)
            if len(letters) >= len(sound) and len(marks) >= len(text):
                break
    assert said(heard)[1] == sound
    return heard


def said(heard: list[Speech]) -> tuple[str, str]:
    """By its marks, and by its sound."""
    pcm = np.concatenate([np.zeros(0, np.int16), *(piece.pcm for piece in heard)])
    return "".join(piece.text for piece in heard), spelt(pcm)


async def say(
    synthesizer: RemoteSynthesizer, *texts: str, options: VoiceOptions = DEFAULT_VOICE
) -> tuple[str, str]:
    reply = synthesizer.open(options)
    for text in texts:
        reply.write(text)
    reply.end()
    return said(await pieces(reply))


async def test_a_reply_is_spoken_as_by_an_engine_of_this_process(server: Server) -> None:
    options = VoiceOptions("small", "de", "Zoë & co", 1.5, False, False, 7)
    async with connected(server) as synthesizer:
        texts = ("Gu", "ten ", "Tag,\n", " Zoë 5", "€ ", "!")
        heard = await say(synthesizer, *texts, options=options)
        assert heard == ("Guten Tag,\n Zoë 5€ !", "GutenTag,Zoë5€!")
        assert server.voice.replies[0].options == options
        assert synthesizer.voices() == ["capital", "small"]
        local = server.voice.open(options)
        for text in texts:
            local.write(text)
        local.end()
        assert said(await pieces(local)) == heard


async def test_a_word_and_its_sound_arrive_while_the_rest_is_not_written(server: Server) -> None:
    async with connected(server) as synthesizer:
        reply = synthesizer.open()
        reply.write("Hi the")
        await pieces_until(reply, "Hi", "Hi ")
        rest = asyncio.ensure_future(anext(aiter(reply)))
        await asyncio.sleep(0.02)
        assert not rest.done(), "a reply without text waits"
        reply.write("re")
        reply.end()
        assert (await rest).pcm[0] == ord("t")


async def test_replies_share_a_connection_and_a_cancelled_one_is_not_heard_in_the_next(
    server: Server,
) -> None:
    async with connected(server) as synthesizer:
        await synthesizer.start()
        assert synthesizer.name == "speller"
        for number in range(5):
            assert await say(synthesizer, f"number {number}") == (
                f"number {number}",
                f"number{number}",
            )
            server.voice.hold_after = server.voice.letters + 4
            cut = synthesizer.open()
            cut.write("never to be heard as a whole ")
            await pieces_until(cut, "ne")
            cut.cancel()
            server.voice.may_speak.set()
            assert await pieces(cut) == []
        assert server.connections == 1
        assert await say(synthesizer, "last") == ("last", "last")
        await until(lambda: not server.worker.busy)
        assert [reply.cancelled for reply in server.voice.replies].count(False) == 0


async def test_replies_at_once_have_connections_of_their_own_and_few_are_kept(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tts_connection_io, "MAX_SPARE", 2)
    async with connected(server) as synthesizer:
        server.voice.may_speak.clear()
        saying = [asyncio.create_task(say(synthesizer, f"reply {n}")) for n in range(5)]
        await until(lambda: len(server.worker.busy) == 5)
        server.voice.may_speak.set()
        assert [text for text, _ in await asyncio.gather(*saying)] == [
            f"reply {n}" for n in range(5)
        ]
        await until(lambda: len(server.worker.streams) == 2)
        await asyncio.gather(*(say(synthesizer, "again") for _ in range(2)))
        assert server.connections == 5


async def test_cancelling_frees_the_worker_at_once(server: Server) -> None:
    async with connected(server) as synthesizer:
        reply = synthesizer.open()
        reply.write("a word and more ")
        await pieces_until(reply, "aword")
        assert server.worker.busy
        reply.cancel()
        async with asyncio.timeout(HANGS_S):  # the voice says no more by itself
            while server.worker.busy:
                await asyncio.sleep(0)
        assert server.voice.replies[0].cancelled


async def test_what_is_said_before_the_worker_is_there_waits_for_it(tmp_path: Path) -> None:
    server = Server(tmp_path / "s")
    async with connected(server) as synthesizer:
        reply = synthesizer.open()
        reply.write("good ")
        dropped = synthesizer.open()
        dropped.write("never")
        await asyncio.sleep(0.12)
        dropped.cancel()
        await server.up()
        reply.write("morning")
        reply.end()
        assert said(await pieces(reply)) == ("good morning", "goodmorning")
        assert len(server.voice.replies) == 1
        await server.down()


async def test_of_a_lost_connection_only_the_word_in_progress_is_heard_again(
    server: Server,
) -> None:
    async with connected(server) as synthesizer:
        server.voice.hold_after = len("onetwothr")
        reply = synthesizer.open()
        reply.write("one two three four ")
        heard = await pieces_until(reply, "onetwothr", "one two ")
        await server.down()
        reply.write("five")
        server.voice.may_speak.set()
        await server.up()
        reply.end()
        heard += await pieces(reply)
        assert said(heard) == ("one two three four five", "onetwothr" + "threefourfive")
        assert server.voice.replies[1].written == "three four five"


async def test_of_a_lost_connection_sound_nobody_took_is_not_heard_twice(server: Server) -> None:
    async with connected(server) as synthesizer:
        server.voice.hold_after = len("onetwothr")
        reply = synthesizer.open()
        reply.write("one two three")
        reply.end()
        await until(lambda: reply._unread_samples == LETTER * len("onetwothr"))
        await server.down()
        server.voice.may_speak.set()
        await server.up()
        assert said(await pieces(reply)) == ("one two three", "onetwothree")


async def test_a_reply_survives_any_number_of_losses_with_words_between(server: Server) -> None:
    async with connected(server) as synthesizer:
        reply = synthesizer.open()
        for number in range(retry.MAX_LOSSES + 2):
            reply.write(f"number {number} ")
            await pieces_until(reply, f"number{number}", f"number {number} ")
            await server.down()
            await server.up()
        reply.end()
        assert await pieces(reply) == []


async def test_a_drain_in_the_middle_of_a_reply_is_not_heard_and_nothing_new_goes_there(
    server: Server,
) -> None:
    async with connected(server) as synthesizer:
        idle = synthesizer.open()
        server.voice.hold_after = len("onetwothr")
        reply = synthesizer.open()
        reply.write("one two three four ")
        heard = await pieces_until(reply, "onetwothr", "one two ")
        idle.cancel()
        draining = asyncio.create_task(server.worker.drain(HANGS_S))
        await until(lambda: len(server.worker.streams) == 1)  # the idle connection is closed
        reply.write("five")
        reply.end()
        server.voice.may_speak.set()
        heard += await pieces(reply)
        assert said(heard) == ("one two three four five", "onetwothreefourfive")
        async with asyncio.timeout(HANGS_S):
            await draining
        await until(lambda: not server.worker.streams)


@asynccontextmanager
async def relay(server: Server) -> AsyncIterator[tuple[str, asyncio.Event]]:
    """A TCP address for the worker; the connections before the event is set then carry nothing any
    more, as if the node had vanished, and those after it reach a worker."""
    vanished = asyncio.Event()
    carrying: set[asyncio.Task[None]] = set()

    async def carry(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while (data := await reader.read(1 << 16)) or not vanished.is_set():
            writer.write(data)
            await writer.drain()

    async def connect(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        was_vanished = vanished.is_set()
        path = server.url.removeprefix("unix:")
        behind = await asyncio.open_unix_connection(path)
        both = {
            asyncio.create_task(carry(reader, behind[1])),
            asyncio.create_task(carry(behind[0], writer)),
        }
        carrying.update(both)
        if not was_vanished:
            await vanished.wait()
            for task in both:
                task.cancel()

    listening = await asyncio.start_server(connect, "127.0.0.1", 0)
    port = listening.sockets[0].getsockname()[1]
    yield f"http://127.0.0.1:{port}", vanished
    vanished.set()
    for task in carrying:
        task.cancel()
    listening.close()


async def test_a_worker_that_vanishes_without_a_word_is_noticed_in_a_second(
    server: Server,
) -> None:
    async with relay(server) as (url, vanished):
        synthesizer = RemoteSynthesizer(url)
        server.voice.hold_after = len("onetwothr")
        reply = synthesizer.open()
        reply.write("one two three four ")
        heard = await pieces_until(reply, "onetwothr", "one two ")
        vanished.set()
        server.voice.may_speak.set()
        reply.write("five")
        reply.end()
        async with asyncio.timeout(SILENCE_S / 2):
            heard += [piece async for piece in reply]
        assert said(heard) == ("one two three four five", "onetwothr" + "threefourfive")
        await synthesizer.close()


async def test_the_end_of_the_text_cuts_no_word(server: Server) -> None:
    async with connected(server) as synthesizer:
        server.voice.hold_after = 2
        reply = synthesizer.open()
        reply.write("one ")
        await until(lambda: not server.voice.may_speak.is_set())
        reply.end()
        server.voice.may_speak.set()
        assert said(await pieces(reply)) == ("one ", "one")


async def test_a_reply_lost_after_its_last_word_is_over(server: Server) -> None:
    async with connected(server) as synthesizer:
        reply = synthesizer.open()
        reply.write("one two ")
        heard = await pieces_until(reply, "onetwo", "one two ")
        await server.down()
        reply.end()
        heard += await pieces(reply)
        assert said(heard) == ("one two ", "onetwo")
        await server.up()


@pytest.mark.parametrize("within_s", [0.0, retry.LOSSES_S])
async def test_words_that_no_worker_survives_are_given_up_but_not_at_once(
    server: Server, monkeypatch: pytest.MonkeyPatch, within_s: float
) -> None:
    monkeypatch.setattr(retry, "LOSSES_S", within_s)
    async with connected(server) as synthesizer:
        reply = synthesizer.open()
        heard: list[Speech] = []
        for loss in range(retry.MAX_LOSSES):
            server.voice.hold_after = server.voice.letters + (3 if loss else 4)
            server.voice.may_speak.set()
            reply.write("" if loss else "x poison")
            reply.end()
            await until(lambda: not server.voice.may_speak.is_set())
            heard += await pieces_until(reply, "poi" if loss else "x", "" if loss else "x ")
            await server.down()
            await server.up()
        if within_s:
            assert reply._pause > within_s / 2, "it is tried once more when the time is over"
            reply.cancel()
        else:
            with pytest.raises(EngineError, match="lost 3 times over the same words"):
                await pieces(reply)
        assert said(heard)[0] == "x "
        server.voice.may_speak.set()
        assert await say(synthesizer, "go on") == ("go on", "goon")


READY = {"type": "ready", "engine": "e", "model": "m", "rate": RATE_OUT}
SOUND = b"\0\0"


@pytest.mark.parametrize(
    ("messages", "says"),
    [
        ([{**READY, "rate": 8000}], "the first message is not ready for 24000 Hz"),
        ([SOUND], "the first message is not ready"),
        (["hello"], "not JSON"),
        ([READY, SOUND], "it speaks without a reply"),
        ([READY, None, b"\0"], "a sample has two"),
        ([READY, None, {"type": "done", "reply": 1, "samples": 0, "reason": "end"}], "reply 1"),
        (
            [READY, None, {"type": "mark", "reply": 0, "samples": 0, "text": "ho"}],
            "does not match the text",
        ),
        ([READY, None, {"type": "error", "code": "bad_request", "message": "no"}], "no$"),
    ],
)
async def test_a_worker_that_speaks_otherwise_is_given_up(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    messages: list[dict[str, object] | bytes | str | None],
    says: str,
) -> None:
    """It says these to every connection; None: once it has been told something."""
    monkeypatch.setattr(remote_synthesizer_io, "GIVE_UP_S", 0.1)
    monkeypatch.setattr(retry, "LOSSES_S", 0.0)

    async def speak(request: web.Request) -> web.WebSocketResponse:
        socket = web.WebSocketResponse()
        await socket.prepare(request)
        for message in messages:
            if message is None:
                await socket.receive()
            elif isinstance(message, bytes):
                await socket.send_bytes(message)
            else:
                text = message if isinstance(message, str) else json.dumps(message)
                await socket.send_str(text)
        async for _ in socket:
            pass
        return socket

    app = web.Application()
    app.router.add_get("/ws/speak", speak)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    await web.UnixSite(runner, str(tmp_path / "s")).start()
    async with connected(Server(tmp_path / "s")) as synthesizer:
        with pytest.raises(EngineError, match=says):
            await say(synthesizer, "hi")
    await runner.cleanup()


async def test_without_a_worker_a_reply_fails_in_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(remote_synthesizer_io, "GIVE_UP_S", 0.1)
    async with connected(Server(tmp_path / "nobody")) as synthesizer:
        with pytest.raises(EngineError, match=r"the speech worker at unix:.*nobody"):
            await say(synthesizer, "hello?")


async def test_an_engine_that_breaks_loses_no_word(server: Server) -> None:
    async with connected(server) as synthesizer:
        reply = synthesizer.open()
        reply.write("one ")
        heard = await pieces_until(reply, "one", "one ")
        server.voice.fault = EngineFailed("the device is lost")
        reply.write("two")
        reply.end()
        await until(lambda: server.worker.broken.done())
        assert str(server.worker.broken.exception()) == "the device is lost"
        await server.down()  # as such a worker does by itself
        server.voice.fault = None
        await server.up()
        heard += await pieces(reply)
        assert said(heard) == ("one two", "onetwo")


async def test_an_engine_that_fails_fails_the_reply_and_not_the_next(server: Server) -> None:
    async with connected(server) as synthesizer:
        reply = synthesizer.open()
        reply.write("one ")
        await pieces_until(reply, "one", "one ")
        server.voice.fault = EngineError("it has a cold")
        reply.write("two ")
        with pytest.raises(EngineError, match="it has a cold"):
            await pieces(reply)
        reply.write("nobody minds")
        reply.end()
        server.voice.fault = None
        assert await say(synthesizer, "three") == ("three", "three")


async def test_what_cannot_be_is_said_when_it_is_asked_for(server: Server) -> None:
    async with connected(server) as synthesizer:
        nobody = VoiceOptions("nobody")
        with pytest.raises(EngineError, match="speller has no voice 'nobody'"):
            await say(synthesizer, "hello", options=nobody)
        with pytest.raises(EngineError, match="speller has no voice 'nobody'"):
            await synthesizer.start(nobody)
        reply = synthesizer.open()
        reply.write("a" * MAX_WAITING_CHARS)
        with pytest.raises(TextTooLong):
            reply.write("b")


async def test_a_full_worker_has_started_and_speaks_when_another_reply_ends(
    server: Server,
) -> None:
    await server.down()
    await server.up(max_streams=1)
    async with connected(server) as synthesizer:
        await asyncio.gather(synthesizer.start(), synthesizer.start())  # two that wait
        first = synthesizer.open()
        first.write("one ")
        await pieces_until(first, "one", "one ")
        second = asyncio.create_task(say(synthesizer, "two"))
        third = asyncio.create_task(say(synthesizer, "three"))
        await asyncio.sleep(0.1)
        await synthesizer.start()
        assert not second.done()
        first.end()
        assert await pieces(first) == []
        assert await second == ("two", "two")
        assert await third == ("three", "three")


async def test_a_listener_that_stops_holds_the_worker_and_loses_nothing(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(remote_synthesizer_io, "MAX_UNREAD_S", 0.1)
    text = "a" * (30 * RATE_OUT // LETTER)  # 30 s, three times what sockets hold
    async with connected(server) as synthesizer:
        reply = synthesizer.open()
        reply.write(text)
        reply.end()
        await until(lambda: reply._unread_samples > RATE_OUT // 10)
        spoken = -1
        while server.voice.letters != spoken:
            spoken = server.voice.letters
            await asyncio.sleep(0.2)
        assert spoken < len(text)
        assert reply._unread_samples <= RATE_OUT // 10 + LETTER
        assert said(await pieces(reply)) == (text, text)


async def test_nothing_to_say_needs_no_worker(tmp_path: Path) -> None:
    async with connected(Server(tmp_path / "nobody")) as synthesizer:
        assert await say(synthesizer) == ("", "")
        assert await say(synthesizer, " \n", "  ") == (" \n  ", "")


async def test_closing_fails_the_replies_in_progress(server: Server) -> None:
    async with connected(server) as synthesizer:
        speaking, waiting = synthesizer.open(), RemoteSynthesizer("unix:/nobody")
        speaking.write("one ")
        await pieces_until(speaking, "one")
        unheard = waiting.open()
        await asyncio.gather(synthesizer.close(), waiting.close())
        for reply in (speaking, unheard):
            with pytest.raises(EngineError, match="the synthesizer is closed"):
                await pieces(reply)


async def test_start_says_what_is_wrong(server: Server, tmp_path: Path) -> None:
    async def fault(url: str, key: str = "") -> str:
        synthesizer = RemoteSynthesizer(url, key)
        with pytest.raises(EngineError) as caught:
            await synthesizer.start()
        await synthesizer.close()
        return str(caught.value)

    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        port = closed.getsockname()[1]
    assert "Start one there with `offhook worker tts`" in await fault(f"http://127.0.0.1:{port}")
    assert "no speech worker" in await fault(f"unix:{tmp_path / 'nobody'}")
    await server.down()
    await server.up(api_key="secret")
    assert "[tts] api_key" in await fault(server.url, "wrong")


async def test_words_are_in_no_log(server: Server, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    async with connected(server) as synthesizer:
        server.voice.hold_after = 1
        reply = synthesizer.open()
        reply.write("confidential")
        reply.end()
        await until(lambda: not server.voice.may_speak.is_set())
        await server.down()
        server.voice.may_speak.set()
        await server.up()
        assert said(await pieces(reply))[0] == "confidential"
    assert "the speech worker at" in caplog.text
    assert "confidential" not in caplog.text


class Unconnected:
    """The connection of a reply whose worker is played by the test."""

    is_lost, options = False, DEFAULT_VOICE

    def __init__(self, worker: WorkerClient | None = None) -> None:
        self.worker = worker or WorkerClient("tts", "unix:/nobody", "")
        self.attempt: Attempt
        self.was_left = self.was_abandoned = False

    def begin(self, attempt: Attempt) -> None:
        self.attempt = attempt

    def wake(self) -> None: ...

    def leave(self, attempt: Attempt) -> None:
        assert attempt is self.attempt
        self.was_left = True

    def abandon(self) -> None:
        self.was_abandoned = True

    def texts(self) -> str:
        """What is sent to the worker now."""
        sent = ""
        while isinstance(command := self.attempt.next_command(), Text):
            sent += command.text
        return sent


def unconnected() -> tuple[RemoteSpeech, Unconnected]:
    """A reply whose worker is played by the test."""
    connections = ConnectionPool(Workers("tts", "unix:/nobody", ""))
    connections.connect = lambda options, avoid: asyncio.sleep(60)  # type: ignore[method-assign, assignment, return-value]
    reply, connection = RemoteSpeech(connections, DEFAULT_VOICE), Unconnected()
    reply._begin(connection)  # type: ignore[arg-type]
    return reply, connection


async def test_a_worker_lost_before_it_says_that_it_is_done_is_not_needed_again() -> None:
    reply, connection = unconnected()
    attempt = connection.attempt
    reply.write("hi ")
    reply.end()
    assert [attempt.next_command(), attempt.next_command()] == [Text("hi "), End()]
    await attempt.receive_audio(np.full(LETTER, ord("h"), np.int16))
    attempt.mark("hi ")
    attempt.lose(ConnectionError("gone"))
    assert said(await pieces(reply)) == ("hi ", "h")


@pytest.mark.parametrize("awakes", [True, False])
async def test_while_a_worker_is_silent_the_first_of_two_to_answer_is_heard(awakes: bool) -> None:
    """Nothing is repeated if the first had only paused."""
    reply, silent = unconnected()
    other = Unconnected()
    reply.write("one two ")
    assert silent.texts() == "one two "
    await silent.attempt.receive_audio(np.full(LETTER, ord("o"), np.int16))
    reply._begin_hedge(other)  # type: ignore[arg-type]
    assert other.texts() == "one two "
    reply.write("three ")
    assert (silent.texts(), other.texts()) == ("three ", "three ")
    first = silent if awakes else other
    for letter in "ne" if awakes else "one":
        await first.attempt.receive_audio(np.full(LETTER, ord(letter), np.int16))
    first.attempt.mark("one ")
    assert (silent.was_abandoned, other.was_left) == (not awakes, awakes)
    for word in ("two ", "three "):
        await first.attempt.receive_audio(np.full(LETTER, ord(word[0]), np.int16))
        first.attempt.mark(word)
    reply.end()
    first.attempt.finish()
    assert said(await pieces(reply)) == ("one two three ", "onett")
    await reply._connections.close()


async def test_when_the_second_worker_is_silent_as_well_a_third_is_asked_and_no_fourth() -> None:
    urls = [f"unix:/{name}" for name in "abcd"]
    connections = ConnectionPool(Workers("tts", urls, ""))
    connections.connect = lambda options, avoid: asyncio.sleep(60)  # type: ignore[method-assign, assignment, return-value]
    clients = [connections.workers._client(WorkerAddress(url)) for url in urls]
    first, second, third, fourth = (Unconnected(client) for client in clients)
    connections._spare = [first]  # type: ignore[list-item]
    reply = RemoteSpeech(connections, DEFAULT_VOICE)
    reply.write("one ")
    for worker, other in ((first, second), (second, third)):
        assert worker.texts() == "one "
        connections._spare = [other]  # type: ignore[list-item]
        connections.workers.report(worker.worker, WorkerEvent.UNANSWERED)
        assert worker.attempt.hedge()
    connections.workers.report(third.worker, WorkerEvent.UNANSWERED)
    assert (first.was_abandoned, second.was_abandoned) == (False, True)
    connections._spare = [fourth]  # type: ignore[list-item]
    assert not third.attempt.hedge(), "the words may be what hangs them"
    assert not first.attempt.hedge()
    assert third.texts() == "one "
    await third.attempt.receive_audio(np.full(LETTER, ord("o"), np.int16))
    assert first.was_abandoned
    third.attempt.mark("one ")
    reply.end()
    third.attempt.finish()
    assert said(await pieces(reply)) == ("one ", "o")
    await connections.close()


async def test_a_second_attempt_given_up_while_it_connects_makes_no_room_for_two_others() -> None:
    reply, silent = unconnected()

    async def connecting(*arguments: object) -> None:
        try:
            await asyncio.sleep(60)
        finally:
            await asyncio.sleep(0.01)  # until a socket has closed

    reply._connections.connect = connecting  # type: ignore[method-assign, assignment]
    reply.write("one ")
    assert silent.texts() == "one "
    assert silent.attempt.hedge()
    await asyncio.sleep(0)
    await silent.attempt.receive_audio(np.full(LETTER, ord("o"), np.int16))
    assert silent.attempt.hedge()
    await asyncio.sleep(0.05)
    assert not silent.attempt.hedge(), "it connects already"
    await reply._connections.close()


ACTIONS = st.lists(
    st.one_of(
        st.text("ab \n", max_size=6).map(lambda text: ("write", text)),
        st.sampled_from([("send", 0), ("speak", 1), ("speak", 3), ("lose", 0), ("take", 2)]),
        st.sampled_from([("hedge", 0), ("send", 1), ("speak", 2), ("lose", 1)]),
    ),
    max_size=40,
)


@settings(max_examples=60)
@given(ACTIONS)
def test_every_text_is_marked_once_whatever_is_lost_when(actions: list[tuple[str, object]]) -> None:
    asyncio.run(_every_text_once(actions))


async def _every_text_once(actions: list[tuple[str, object]]) -> None:
    reply, first = unconnected()
    heard = aiter(reply)
    written, marks = "", ""
    at_worker = {first: ""}
    """The text that each connection in use was sent and has not marked; the second is the hedge."""
    for action, value in actions:
        number = value % 2 if isinstance(value, int) and action != "take" else 0
        connection = list(at_worker)[min(number, len(at_worker) - 1)]
        if action == "write":
            written += str(value)
            reply.write(str(value))
        elif action == "send":
            at_worker[connection] += connection.texts()
        elif action == "speak":
            assert isinstance(value, int)
            spoken = at_worker[connection][:value]
            await connection.attempt.receive_audio(np.zeros(LETTER, np.int16))
            if spoken:
                connection.attempt.mark(spoken)
            at_worker = {connection: at_worker[connection][value:]}
        elif action == "hedge":
            reply._begin_hedge(another := Unconnected())  # type: ignore[arg-type]
            at_worker = {silent: at_worker[silent] for silent in list(at_worker)[:1]}
            at_worker[another] = ""
        elif action == "lose":
            reply._losses.clear()
            connection.attempt.lose(ConnectionError("gone"))
            del at_worker[connection]
            if not at_worker:
                assert reply._connecting is not None
                reply._connecting.cancel()
                reply._begin(another := Unconnected())  # type: ignore[arg-type]
                at_worker[another] = ""
        elif action == "take" and reply._pieces:
            marks += (await anext(heard)).text
    reply.end()
    connection = next(iter(at_worker))
    connection.texts()
    if not reply._over:
        connection.attempt.finish()
    marks += "".join([piece.text async for piece in heard])
    assert marks == written
    assert connection.was_left == bool(connection.attempt.begun or written.strip())
    await reply._connections.close()
