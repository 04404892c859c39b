"""A recognizer with several workers, processes that die, hang, drain and leave the list in
mid-utterance: no word is lost or said twice."""

import asyncio
import signal
from asyncio.subprocess import Process
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial
from random import Random

import aiohttp
import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from benchmarks.processes.node import node
from benchmarks.speech.number_words import line, sound
from offhook.media.pcm import RATE_IN
from offhook.pipeline.speech.recognizer import Final
from offhook.pipeline.speech.remote import asr_connection_io, pool_io, worker_list_io
from offhook.pipeline.speech.remote.pool import LOOK_S, SILENT_LOOKS
from offhook.pipeline.speech.remote.recognizer_io import RemoteRecognizer, RemoteStream
from tests.support.waiting import HANGS_S, until
from tests.web.workers.workers import needs_node, number_workers, streams

CALLERS = 6
WORDS = 20
PIECE = RATE_IN // 10
HOUR_S = 3600
MOMENT_S = 1.2


@asynccontextmanager
async def directory() -> AsyncIterator[tuple[str, list[str]]]:
    """A URL that lists workers, and the list."""
    listed: list[str] = []

    async def answer(request: web.Request) -> web.Response:
        return web.json_response({"workers": [{"url": url} for url in listed]})

    app = web.Application()
    app.router.add_get("/workers/asr", answer)
    async with TestServer(app) as server:
        yield str(server.make_url("/workers/asr")), listed


class Caller:
    def __init__(self, stream: RemoteStream, number: int) -> None:
        self.stream = stream
        self._chance = Random(number)
        self._events = stream.events()

    @property
    def worker(self) -> str:
        """Its address; empty while there is none."""
        connection = self.stream._connection
        return connection.client.url if connection is not None else ""

    async def say(self, reached: Callable[[], None]) -> None:
        """Says a line, calls `reached` in its middle, and checks what was heard."""
        words = line(WORDS, self._chance)
        pcm = sound(words, RATE_IN)
        for number, start in enumerate(range(0, len(pcm), PIECE)):
            self.stream.feed(pcm[start : start + PIECE])
            await asyncio.sleep(0.01)
            if number == WORDS // 2:
                reached()
        self.stream.finish()
        async for event in self._events:
            if isinstance(event, Final):
                assert not event.lost
                assert event.text.split() == words
                return


async def all_say(callers: list[Caller], disturb: Callable[[], None] = lambda: None) -> None:
    """All say a line; `disturb` is called once all are in its middle."""
    left = len(callers)

    def reached() -> None:
        nonlocal left
        left -= 1
        if not left:
            disturb()

    async with asyncio.timeout(HANGS_S):
        await asyncio.gather(*(caller.say(reached) for caller in callers))


async def a_third_is_asked_when_two_are_silent(
    processes: dict[str, Process], monkeypatch: pytest.MonkeyPatch
) -> None:
    """With nothing else that would end the wait for the second."""
    with monkeypatch.context() as patched:
        patched.setattr(pool_io, "POLL_S", HOUR_S)
        patched.setattr(asr_connection_io, "HUNG_LOOKS", HOUR_S)
        patched.setattr(asr_connection_io, "SILENCE_S", HOUR_S)
        patched.setattr(asr_connection_io, "SPARES", 3)
        recognizer = RemoteRecognizer(list(processes))
        caller = Caller(await recognizer.open(), CALLERS)
        await all_say([caller])
        await until(lambda: len(recognizer.connections._spare) == 3)
        await until(lambda: recognizer.workers.counts()["ready"] == 3)
        stream, first = caller.stream, caller.worker

        def signal_all(number: signal.Signals, but: tuple[str, ...] = ()) -> None:
            for url in processes.keys() - but:
                processes[url].send_signal(number)

        async def third_goes_on() -> str:
            await until(lambda: stream._other)
            assert stream._other is not None
            second = stream._other.client.url
            signal_all(signal.SIGCONT, but=(first, second))
            return second

        going_on = asyncio.create_task(third_goes_on())
        try:
            await all_say([caller], lambda: signal_all(signal.SIGSTOP))
            second = await going_on
            assert caller.worker in processes.keys() - {first, second}
        finally:
            going_on.cancel()
            signal_all(signal.SIGCONT)
            await stream.close()
            await recognizer.close()


async def test_no_word_is_lost_or_said_twice_whatever_happens_to_a_worker(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(worker_list_io, "RESOLVE_S", 0.2)
    monkeypatch.setattr(worker_list_io, "DIRECTORY_S", 0.2)
    async with number_workers("asr", 3) as processes, directory() as (url, listed):
        await a_third_is_asked_when_two_are_silent(processes, monkeypatch)
        first, second, _ = processes
        listed += [first, second]
        recognizer = RemoteRecognizer(url)
        await recognizer.start()
        callers = [Caller(await recognizer.open(), number) for number in range(CALLERS)]
        await all_say(callers)
        assert {caller.worker for caller in callers} <= {first, second}

        hung = callers[0].worker
        await all_say(callers, lambda: processes[hung].send_signal(signal.SIGSTOP))
        assert recognizer.losses["hung"] >= 1
        assert callers[0].worker != hung
        processes[hung].send_signal(signal.SIGCONT)
        await all_say(callers)

        await until(lambda: recognizer.workers.counts()["ready"] == 2)
        removed = callers[0].worker
        listed[:] = [url for url in processes if url != removed]
        await all_say(callers)
        await until(lambda: all(caller.worker not in ("", removed) for caller in callers))

        drained, losses = callers[0].worker, recognizer.losses.total()
        await all_say(callers, lambda: processes[drained].send_signal(signal.SIGTERM))
        await until(lambda: all(caller.worker not in ("", drained) for caller in callers))
        await until(lambda: processes[drained].returncode == 0)
        assert recognizer.losses.total() == losses, "nothing was played again"

        listed[:] = processes
        await until(lambda: recognizer.workers.counts()["ready"] == 2)
        killed = callers[0].worker
        await all_say(callers, lambda: processes[killed].send_signal(signal.SIGKILL))
        await all_say(callers)
        for caller in callers:
            await caller.stream.close()
        await recognizer.close()

        # One address: the silent worker may be behind a balancer, or only pause, as here.
        (left,) = set(processes) - {drained, killed}
        alone = RemoteRecognizer(left)
        caller = Caller(await alone.open(), CALLERS)

        def pause() -> None:
            processes[left].send_signal(signal.SIGSTOP)
            resume = partial(processes[left].send_signal, signal.SIGCONT)
            asyncio.get_running_loop().call_later(2 * LOOK_S * SILENT_LOOKS, resume)

        await all_say([caller], pause)
        await all_say([caller])
        await caller.stream.close()
        await alone.close()


@pytest.mark.slow
@needs_node
async def test_a_machine_that_vanishes_and_comes_back_costs_no_word_and_repeats_none() -> None:
    """Its link goes down for long, and then for so short a time that both workers answer."""
    async with node() as other, number_workers("asr", 2, on=other) as processes:
        there, here = processes
        recognizer = RemoteRecognizer(list(processes))
        await recognizer.start()
        callers: list[Caller] = []
        changes: list[asyncio.Task[None]] = []

        def change_link(state: str) -> None:
            changes.append(asyncio.create_task(other.set_link(state)))

        def down_for_a_moment() -> None:
            change_link("down")
            asyncio.get_running_loop().call_later(MOMENT_S, change_link, "up")

        async def call_there() -> None:
            """Opens streams until there are some."""
            await until(lambda: recognizer.workers.counts()["ready"] == 2)
            while sum(caller.worker == there for caller in callers) < CALLERS:
                callers.append(Caller(await recognizer.open(), len(callers)))
                await until(lambda: callers[-1].worker)

        await call_there()
        await all_say(callers)
        await all_say(callers, lambda: change_link("down"))
        assert {caller.worker for caller in callers} == {here}
        assert recognizer.losses == {"hung": CALLERS}, "nothing said that it was gone"
        await until(lambda: recognizer.workers.counts()["gone"])
        await all_say(callers)
        await other.set_link("up")
        await until(lambda: recognizer.workers.counts()["ready"] == 2)
        async with aiohttp.ClientSession() as http:
            while await streams(http, there):  # until what it had heard half has reached an end
                await all_say(callers)
        assert {caller.worker for caller in callers} == {here}
        for _ in range(3):
            await call_there()
            await all_say(callers, down_for_a_moment)
            await all_say(callers)
        await asyncio.gather(*changes)
        assert processes[there].returncode is None
        for caller in callers:
            await caller.stream.close()
        await recognizer.close()
