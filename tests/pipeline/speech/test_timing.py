"""What is told of the way from sound to text: the same by every engine, and over the wire."""

import asyncio
import json
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry

from benchmarks.speech.recordings import babbled
from offhook.media.pcm import RATE_IN, Pcm
from offhook.pipeline.engines.embedded.pocketsphinx_io import PocketSphinxRecognizer
from offhook.pipeline.engines.official.recognizer_io import OfficialRecognizer
from offhook.pipeline.engines.shared.asr_models import AsrModels
from offhook.pipeline.speech.openai.recognizer_io import OpenAiRecognizer
from offhook.pipeline.speech.recognizer import (
    DEFAULT_OPTIONS,
    Final,
    Partial,
    Recognizer,
    RecognizerStream,
    StreamOptions,
    Timing,
)
from offhook.pipeline.speech.remote.asr_protocol import PATH
from offhook.pipeline.speech.remote.recognizer_io import RemoteRecognizer
from offhook.pipeline.speech.streams.speech_gate_io import GatedRecognizer
from offhook.pipeline.speech.timing import GRAIN, STAGES, Arrivals, Stages, routed
from offhook.web.speech_api.sockets.engine_metrics import SAMPLED, AsrMetrics
from offhook.web.workers.worker_io import Worker, WorkerSettings
from tests.pipeline.speech.openai.openai_server import openai_stub, saying
from tests.support.waiting import HANGS_S
from tests.web.workers.workers import LosableServer, open_stream, served, told

PIECE = RATE_IN // 50
TIMED = StreamOptions(update_ms=100, timing=True)
TIMES = st.floats(0, 1e5).map(lambda ms: round(ms, 2))
UNTOLD = Timing(0.0, 0.0, 0.0, 0.0)


# --- arrivals ---


PIECES = st.lists(st.integers(GRAIN, 4000), min_size=1, max_size=30)


@given(PIECES, st.lists(st.integers(1, 100_000), max_size=8), st.integers(1, 8000))
def test_an_update_begins_with_the_first_sound_that_is_new_to_it(
    sizes: list[int], ends: list[int], step: int
) -> None:
    arrivals = Arrivals()
    came = np.repeat(np.arange(len(sizes)), sizes)  # of every sample
    for at, size in enumerate(sizes):
        arrivals.add(size, float(at))
    arrivals.ended(float(len(sizes)))
    covered = 0
    for end in sorted({min(end, len(came)) for end in ends}):
        timing = arrivals.update(end, covered + step, 90.0, 99.0)
        needed = covered + step
        due = float(came[needed - 1]) if needed <= len(came) else float(len(sizes))
        assert (timing.begun, timing.buffered) == (came[covered], due)
        assert (timing.started, timing.done) == (90.0, 99.0)
        assert arrivals.update(end, end + step, 91.0, 99.5) == Timing(
            timing.begun, timing.buffered, 91.0, 99.5
        ), "without new sound it still waits since then"
        covered = end
    final = arrivals.final(90.0, 99.0)
    assert final.buffered == len(sizes)
    assert final.begun == (came[covered] if covered < len(came) else len(sizes))


def test_sound_in_tiny_pieces_takes_no_more_memory() -> None:
    arrivals = Arrivals()
    for at in range(10 * GRAIN):
        arrivals.add(1, float(at))
    assert len(arrivals._pieces) == 10
    timing = arrivals.update(2 * GRAIN, 2 * GRAIN, 1e3, 1e3)
    assert (timing.begun, timing.buffered) == (GRAIN - 1, 2 * GRAIN - 1)


def test_an_utterance_that_an_engine_ends_was_there_with_its_last_sound() -> None:
    arrivals = Arrivals()
    arrivals.add(PIECE, 1.0)
    arrivals.add(PIECE, 2.0)
    assert arrivals.final(3.0, 4.0) == Timing(1.0, 2.0, 3.0, 4.0)


def test_what_an_utterance_forgets_counts_no_more() -> None:
    arrivals = Arrivals()
    for at in range(4):
        arrivals.add(PIECE, float(at))
    arrivals.forget(2 * PIECE)
    arrivals.add(PIECE, 4.0)
    assert arrivals.update(PIECE, PIECE, 9.0, 9.0).buffered == 2.0
    assert arrivals.update(3 * PIECE, 3 * PIECE, 9.0, 9.0).begun == 3.0


# --- stages ---


@given(TIMES, TIMES, TIMES, TIMES, TIMES, st.floats(0, 1e6))
def test_stages_are_the_same_on_another_clock(
    buffering: float, queued: float, gpu: float, way: float, sent: float, came: float
) -> None:
    there = Stages(buffering, queued, gpu, way, sent)
    timing = there.until(came)
    assert timing.routed == came
    here = Stages.of(timing, came + 0.007)
    expected = Stages(buffering, queued, gpu, way + sent, 7.0)
    for name, ms in vars(expected).items():
        assert vars(here)[name] == pytest.approx(ms, abs=0.02), name


def test_an_event_without_timing_is_routed_as_it_is() -> None:
    event = Partial("a", 0, 9)
    assert routed(event, 5.0) is event
    timed = routed(Final("a", 9, timing=UNTOLD), 5.0)
    assert timed.timing == Timing(0.0, 0.0, 0.0, 0.0, 5.0)
    assert timed == Final("a", 9), "when it was says nothing of what was said"


# --- engines ---


async def talk(
    stream: RecognizerStream, pcm: Pcm, pace: float = 1.0, fed_at: list[float] | None = None
) -> list[Partial | Final]:
    """Say it, as fast as people talk, and hear all of it; `fed_at` gets the time of each piece."""

    async def say() -> None:
        due = time.monotonic()
        for at in range(0, len(pcm), PIECE):
            due += pace * PIECE / RATE_IN
            await asyncio.sleep(max(0.0, due - time.monotonic()))
            if fed_at is not None:
                fed_at.append(time.monotonic())
            stream.feed(pcm[at : at + PIECE])
        stream.finish()

    talking = asyncio.create_task(say())
    found: list[Partial | Final] = []
    async with asyncio.timeout(HANGS_S):
        async for event in stream.events():
            found.append(event)
            if isinstance(event, Final):
                break
    await talking
    await stream.close()
    return found


def check(timing: Timing | None, after: float) -> Timing:
    """It is of this test, in order, and in the mailbox."""
    assert timing is not None
    at = (after, timing.begun, timing.buffered, timing.started, timing.done, timing.routed)
    assert list(at) == sorted(at)
    assert timing.routed <= time.monotonic()
    return timing


@pytest.fixture(scope="module")
def voice() -> Pcm:
    return babbled(1.2)


async def test_pocketsphinx_tells_when_sound_was_where(voice: Pcm) -> None:
    recognizer = PocketSphinxRecognizer(1)
    await recognizer.start()
    try:
        began = time.monotonic()
        fed_at: list[float] = []
        events = await talk(await recognizer.open(TIMED), voice, fed_at=fed_at)
        timings = [check(event.timing, began) for event in events]
        final = timings[-1]
        assert final.buffered > fed_at[-8]
        assert final.done > final.started
        events = await talk(await recognizer.open(), voice, pace=0)
        assert {event.timing for event in events} == {None}
    finally:
        await recognizer.close()


async def test_a_server_elsewhere_is_the_model_from_the_request_to_the_answer() -> None:
    async with openai_stub() as stub:
        recognizer = OpenAiRecognizer(stub.url)
        began = time.monotonic()
        stream = await recognizer.open(StreamOptions(update_ms=80, timing=True))
        fed_at: list[float] = []
        events = await talk(stream, saying(1, 2, 3), fed_at=fed_at)
        await recognizer.close()
    timings = [check(event.timing, began) for event in events]
    assert len(timings) > 1
    assert timings[0].buffered < fed_at[-1] <= timings[-1].buffered


async def test_the_official_package_is_timed_in_its_turn() -> None:
    recognizer = OfficialRecognizer(AsrModels("tiny"), lambda fraction, doing: None)

    runs: list[tuple[float, float]] = []

    def transcribe(*given: Any, **how: Any) -> list[Any]:
        started = time.monotonic()
        time.sleep(0.1)
        runs.append((started, time.monotonic()))
        return [SimpleNamespace(text="go", time_stamps=None, language="English")]

    recognizer._model = SimpleNamespace(backend="transformers", transcribe=transcribe)
    streams = [await recognizer.open(TIMED) for _ in range(2)]
    began = time.monotonic()
    heard = await asyncio.gather(*(talk(stream, babbled(0.2), pace=0) for stream in streams))
    await recognizer.close()
    first, second = (check(events[-1].timing, began) for events in heard)
    for timing, (started, done) in zip((first, second), runs, strict=True):
        assert timing.started <= started < done <= timing.done
    assert second.buffered < runs[0][1] <= second.started


# --- in front of engines ---


class Timed(Recognizer):
    """Tells a word for each piece of sound at once, as if each step of it had taken so long."""

    name = "timed"

    def __init__(self, step_s: float = 0.01) -> None:
        self.step_s = step_s
        self.asked: list[StreamOptions] = []

    async def start(self) -> None: ...

    async def open(self, options: StreamOptions = DEFAULT_OPTIONS) -> "TimedStream":
        self.asked.append(options)
        return TimedStream(options.timing, self.step_s)

    async def close(self) -> None: ...


class TimedStream:
    def __init__(self, timed: bool, step_s: float) -> None:
        self._timed, self._step_s = timed, step_s
        self._fed = 0
        self._events: asyncio.Queue[Partial | Final | None] = asyncio.Queue()

    def _timing(self) -> Timing | None:
        now = time.monotonic()
        at = (now - steps * self._step_s for steps in (4, 2, 1, 0, 0))
        return Timing(*at) if self._timed else None

    def feed(self, pcm: Pcm) -> None:
        self._fed += len(pcm)
        self._events.put_nowait(Partial("a", 0, self._fed // 16, self._timing()))

    def finish(self) -> None:
        self._events.put_nowait(Final("a", self._fed // 16, timing=self._timing()))
        self._fed = 0

    def cancel(self) -> None:
        self._fed = 0

    async def events(self) -> AsyncIterator[Partial | Final]:
        while (event := await self._events.get()) is not None:
            yield event

    async def close(self) -> None:
        self._events.put_nowait(None)


async def test_before_a_gate_sound_has_waited_since_it_came_to_the_gate(voice: Pcm) -> None:
    recognizer = GatedRecognizer(Timed(0.0))
    began = time.monotonic()
    stream = await recognizer.open(StreamOptions(gate=True, timing=True, update_ms=100))
    quiet = np.zeros(RATE_IN // 2, np.int16)
    pcm = np.concatenate((quiet, voice, quiet, quiet))
    events = await talk(stream, pcm)
    timings = [check(event.timing, began) for event in events]
    silent, loud = (
        [t.buffered - t.begun for e, t in zip(events, timings, strict=True) if bool(e.text) is text]
        for text in (False, True)
    )
    assert silent[0] > 0, "an update of silence is told when it was judged"
    # The engine begins when it is given a window; its first sound has been there for longer.
    assert np.median(loud) > 0
    silence = await talk(
        await recognizer.open(StreamOptions(gate=True, timing=True)), pcm[:8000], 0
    )
    check(silence[-1].timing, began)
    await recognizer.close()


@asynccontextmanager
async def remote(engine: Timed, path: Path) -> AsyncIterator[Recognizer]:
    server = LosableServer(path / "s")
    settings = WorkerSettings("timed", "1", drain_seconds=0)
    await server.serve(Worker(settings, lambda progress: engine, AsrMetrics()))
    recognizer = RemoteRecognizer(server.url)
    try:
        yield recognizer
    finally:
        await recognizer.close()
        await server.down()


async def test_what_a_worker_says_is_passed_on_with_its_way_to_us(tmp_path: Path) -> None:
    engine = Timed()
    async with remote(engine, tmp_path) as recognizer:
        began = time.monotonic() - 0.1
        stream = await recognizer.open(TIMED)
        coming, events = stream.events(), []
        for _ in range(6):
            stream.feed(np.zeros(PIECE, np.int16))
            events.append(await asyncio.wait_for(anext(coming), HANGS_S))
        stream.finish()
        events.append(await asyncio.wait_for(anext(coming), HANGS_S))
        await stream.close()
        plain = await talk(await recognizer.open(), np.zeros(RATE_IN // 4, np.int16))
    assert engine.asked[0] == TIMED
    for event in events:
        timing = check(event.timing, began)
        assert timing.buffered - timing.begun == pytest.approx(0.02, abs=1e-4)
        assert timing.done - timing.started == pytest.approx(0.01, abs=1e-4)
        assert timing.done < timing.routed
    assert {event.timing for event in plain} == {None}


# --- the worker ---


def observed(metrics: AsrMetrics, stage: str) -> float:
    registry: CollectorRegistry = metrics.registry
    return registry.get_sample_value("offhook_asr_stage_seconds_count", {"stage": stage}) or 0.0


async def said(client: Any, **query: str) -> list[dict[str, Any]]:
    """The messages of an utterance of three pieces."""
    async with open_stream(client, PATH, **query) as socket:
        await told(socket, "ready")
        found: list[dict[str, Any]] = []
        for _ in range(3):
            await socket.send_bytes(bytes(2 * PIECE))
            found.append(await told(socket, "partial"))
        await socket.send_json({"type": "flush"})
        found.append(await told(socket, "final"))
    return found


def worker(engine: Timed) -> tuple[Worker[Recognizer], AsrMetrics]:
    metrics = AsrMetrics()
    settings = WorkerSettings("timed", "1")
    return Worker(settings, lambda progress: engine, metrics), metrics


async def test_a_client_is_told_the_stages_it_asks_for() -> None:
    made, metrics = worker(Timed())
    async with served(made) as (client, _):
        messages = await said(client, timing="true")
        plain = await said(client)
    for message in messages:
        stages = message["timing"]
        assert list(stages) == [f"{stage}_ms" for stage in STAGES]
        assert [stages[name] for name in list(stages)[:3]] == pytest.approx([20, 10, 10], abs=0.1)
        assert stages["sent_ms"] >= 0
    assert all("timing" not in message for message in plain)
    assert all(observed(metrics, stage) >= 4 for stage in STAGES)


async def test_prometheus_sees_one_stream_in_some_without_being_asked() -> None:
    engine = Timed()
    made, metrics = worker(engine)
    async with served(made) as (client, _):
        for _ in range(SAMPLED + 1):
            await said(client)
        assert observed(metrics, "gpu") == 8
        await said(client, live="false", timing="true")
        assert observed(metrics, "gpu") == 8, "how long a file waits says nothing"
    assert [options.timing for options in engine.asked] == [
        *(True, *[False] * (SAMPLED - 1), True),
        True,
    ]


def test_the_histogram_counts_each_stage_in_seconds() -> None:
    metrics = AsrMetrics()
    metrics.observe(Stages(80.0, 2.0, 5.0, 0.5, 0.1))
    sums: Sequence[float | None] = [
        metrics.registry.get_sample_value("offhook_asr_stage_seconds_sum", {"stage": stage})
        for stage in STAGES
    ]
    assert sums == pytest.approx([0.08, 0.002, 0.005, 0.0005, 0.0001])
    assert json.dumps(vars(Stages(1, 2, 3, 4, 5))).startswith('{"buffering_ms": 1')
