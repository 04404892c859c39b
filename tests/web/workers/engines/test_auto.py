"""An engine that takes over from an embedded one: a real worker on a socket, lost and back."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from threading import Event

import numpy as np
import pytest
from loguru import logger

from offhook.pipeline.engines.embedded.pocketsphinx_io import PocketSphinxRecognizer
from offhook.pipeline.speech.recognizer import Progress, Recognizer, StreamOptions
from offhook.web.speech_api.sockets.engine_metrics import AsrMetrics
from offhook.web.workers.engines import auto_io
from offhook.web.workers.engines.auto_io import AutoEngine, auto_recognizer
from offhook.web.workers.engines.auto_state import (
    SILENT,
    TABLE,
    LoadState,
    Look,
    News,
    Sign,
    look_of,
)
from offhook.web.workers.engines.choice import AutoWorker, Choice
from offhook.web.workers.worker_io import Worker, WorkerSettings
from tests.support.waiting import until
from tests.web.workers.workers import LosableServer

CHOICE = Choice("nemotron", "a/model", "this machine has a test")


def test_every_sign_of_a_wanted_worker_has_a_row() -> None:
    signs = set(Sign) - {Sign.WANTED}
    assert {pair for pair in TABLE if pair[0] is not LoadState.OFFERED} == {
        (state, sign) for state in LoadState if state is not LoadState.OFFERED for sign in signs
    }
    for (before, _), (after, news) in TABLE.items():
        assert (news is News.LOST) == (before is LoadState.READY and after is not LoadState.READY)
        assert (news is News.MOVED) == (before is not LoadState.READY and after is LoadState.READY)


@pytest.mark.parametrize(
    ("status", "told", "look"),
    [
        (200, {"status": "ok", "streams": 0}, Look(Sign.SERVES, 1.0)),
        (200, {"status": "draining"}, SILENT),
        (
            200,
            {"status": "loading", "fraction": 0.4, "doing": "downloading a/model"},
            Look(Sign.DOWNLOADS, 0.4, "downloading a/model"),
        ),
        (200, {"status": "loading", "doing": "importing"}, Look(Sign.LOADS, 0, "importing")),
        (503, {"error": "no hub", "retry_s": 9}, Look(Sign.FAILS, fault="no hub", retry_s=9)),
        (200, [], SILENT),
    ],
)
def test_what_a_worker_tells_is_understood(status: int, told: object, look: Look) -> None:
    assert look_of(status, told) == look


class SlowRecognizer(PocketSphinxRecognizer):
    """Loads when it may, telling of a download first."""

    def __init__(self, told: Progress, may_load: Event) -> None:
        super().__init__()
        self._told, self._may_load = told, may_load

    async def start(self) -> None:
        self._told(0.4, "downloading a/model")
        await asyncio.to_thread(self._may_load.wait)
        await super().start()


@pytest.fixture
def said() -> list[str]:
    return []


@pytest.fixture
async def server(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, said: list[str]
) -> AsyncIterator[LosableServer]:
    monkeypatch.setattr(auto_io, "LOOK_S", 0.02)
    sink = logger.add(lambda message: said.append(message.record["message"]))
    yield LosableServer(tmp_path / "asr.sock")
    logger.remove(sink)


def new_worker(may_load: Event) -> Worker[SlowRecognizer]:
    settings = WorkerSettings("nemotron", "a/model", audio_cache="off")
    return Worker(settings, lambda told: SlowRecognizer(told, may_load), AsrMetrics())


def brought_in(server: LosableServer, options: StreamOptions) -> AutoEngine[Recognizer]:
    worker = AutoWorker("asr", CHOICE, server.url, wanted=False)
    return auto_recognizer(worker, options, lambda: "pocketsphinx")[0]


async def test_new_calls_move_over_when_it_is_ready_and_back_when_it_is_lost(
    server: LosableServer, said: list[str]
) -> None:
    may_load = Event()
    engine = brought_in(server, StreamOptions())
    assert (engine.state, engine.engine) == (LoadState.OFFERED, None)
    try:
        engine.want()
        assert engine.worker.wanted
        await until(lambda: engine.state is LoadState.STARTING)
        await server.serve(new_worker(may_load))
        await until(lambda: engine.state is LoadState.DOWNLOADING)
        assert engine.engine is None
        health = engine.health()
        assert (health["engine"], health["fraction"]) == ("nemotron", 0.4)
        assert "fault" not in health  # it may name hosts
        may_load.set()
        await until(lambda: engine.engine)
        recognizer = engine.engine
        assert recognizer is not None
        stream = await recognizer.open()
        stream.feed(np.zeros(1600, np.int16))
        await stream.close()
        await server.down()
        await until(lambda: engine.engine is None)
        await server.serve(new_worker(may_load))
        await until(lambda: engine.engine)
    finally:
        await engine.close()
        await server.down()
    moved = "auto: new calls hear with nemotron (a/model)"
    lost = "auto: nemotron (a/model) is away: until it is back, new calls hear with pocketsphinx"
    assert [words for words in said if words in (moved, lost)] == [moved, lost, moved]


async def test_an_engine_that_refuses_the_options_of_calls_does_not_take_them(
    server: LosableServer, said: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(auto_io, "REFUSED_S", 0.01)
    may_load = Event()
    may_load.set()
    engine = brought_in(server, StreamOptions(language="de"))
    await server.serve(new_worker(may_load))
    try:
        engine.want()
        await until(lambda: engine.state is LoadState.FAILED)
        assert engine.engine is None
        assert "PocketSphinx hears English (en) only, not de" in engine.report()["fault"]
        await until(lambda: sum("hears English (en) only" in words for words in said) > 2)
    finally:
        await engine.close()
        await server.down()
    assert sum("is tried again" in words for words in said) == 1
