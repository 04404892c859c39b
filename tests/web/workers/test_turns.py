"""Whether a caller's turn is over, as a recognizer's worker says it: calls of an edge on workers,
with the real end-of-turn model on a CPU, and clients that mean ill."""

import asyncio
import threading
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

from benchmarks.servers.scripted import ScriptedRecognizer
from offhook.media.pcm import RATE_IN, Pcm
from offhook.pipeline.conversation.events import CallerTurn
from offhook.pipeline.conversation.turns import end_of_turn, end_questions_io
from offhook.pipeline.conversation.turns.end_of_turn import end_silence
from offhook.pipeline.conversation.turns.facts import Facts
from offhook.pipeline.conversation.turns.patience import Doubt
from offhook.pipeline.conversation.turns.turn import TurnSettings
from offhook.pipeline.engines.embedded.flite_io import FliteSynthesizer
from offhook.pipeline.engines.nemotron.recognizer_io import NemotronRecognizer
from offhook.pipeline.engines.shared.asr_models import AsrModels
from offhook.pipeline.engines.shared.recognition.turns_io import TurnJudge
from offhook.pipeline.speech.errors import EngineError
from offhook.pipeline.speech.recognizer import Final, Recognizer
from offhook.pipeline.speech.remote.asr_connection_io import MAX_QUESTIONS as MAX_ASKED
from offhook.pipeline.speech.remote.asr_protocol import PATH
from offhook.pipeline.speech.remote.recognizer_io import RemoteRecognizer, RemoteStream
from offhook.pipeline.speech.streams.speech_gate_io import GatedRecognizer
from offhook.pipeline.speech.vad.smart_turn_io import SECONDS, SmartTurn, TurnQuestions
from offhook.web.speech_api.sockets.engine_metrics import AsrMetrics
from offhook.web.workers.worker_io import Worker, WorkerSettings
from tests.pipeline.conversation.phone import Answerer, Phone, phone_call
from tests.support.waiting import HANGS_S, until
from tests.web.workers.workers import LosableServer, open_stream, served, told

torch = pytest.importorskip("torch")
tiny_nemotron = pytest.importorskip(
    "tests.pipeline.engines.nemotron.model.tiny", exc_type=ImportError
)
TURNS = TurnSettings()
SILENCE_MS = 1200
FLOOD = 100


@pytest.fixture(scope="module")
def phrase() -> Pcm:
    """Words at 16 kHz."""
    try:
        sound = FliteSynthesizer().sound(["tell", "me", "about", "your", "opening", "hours"], "slt")
    except EngineError as error:
        pytest.skip(str(error))
    places = np.arange(0, len(sound.pcm) - 1, sound.rate / RATE_IN)
    return np.interp(places, np.arange(len(sound.pcm)), sound.pcm).astype(np.int16)


class Answers(TurnQuestions):
    """Says the same about every turn, once it is let."""

    def __init__(self, probability: float) -> None:
        super().__init__(max_batch=8, max_waiting=8)
        self.asked: list[Pcm] = []
        self.let = threading.Event()
        self.let.set()
        self._probability = probability

    def judge_all(self, questions: Sequence[Pcm]) -> Sequence[float]:
        self.let.wait(HANGS_S)
        self.asked += questions
        return [self._probability] * len(questions)


class Hears(ScriptedRecognizer):
    """The same words always; judges turns if it has what does."""

    turns: TurnQuestions | None = None

    def __init__(self, turns: TurnQuestions | None) -> None:
        self.turns = turns


def worker(recognizer: Recognizer) -> Worker[Recognizer]:
    return Worker(WorkerSettings("test", "none"), lambda progress: recognizer, AsrMetrics())


@asynccontextmanager
async def answers(probability: float) -> AsyncIterator[Answers]:
    judge = Answers(probability)
    yield judge
    judge.let.set()
    await judge.close()


@asynccontextmanager
async def reached(server: LosableServer, engine: Recognizer) -> AsyncIterator[RemoteRecognizer]:
    """An edge's recognizer, on a worker with this engine."""
    await server.serve(worker(engine))
    recognizer = RemoteRecognizer(server.url)
    async with asyncio.timeout(HANGS_S):
        await recognizer.start()
    yield recognizer
    await recognizer.close()


@pytest.fixture
async def server(tmp_path: Path) -> AsyncIterator[LosableServer]:
    server = LosableServer(tmp_path / "worker")
    yield server
    if server._runner is not None:
        await server.down()


async def says(phone: Phone, pcm: Pcm) -> None:
    """Says it and is silent; the time of the line stands still while a question is open."""
    phone.leg.feed(np.concatenate((np.zeros(RATE_IN // 2, np.int16), pcm)))
    for _ in range(len(pcm) // 320 + (500 + SILENCE_MS) // 20):
        await phone.pass_ms(20)
        async with asyncio.timeout(HANGS_S):
            while phone.call.hearing.asks_for_the_end:
                await asyncio.sleep(0.002)


class Spoken(NamedTuple):
    """A call in which one thing was said."""

    answers: dict[str, int]
    """Who said whether the turn was over."""
    silence_ms: int
    """What had to be waited for therefore."""
    loaded: bool
    """Whether the edge's own model was."""


async def spoken(recognizer: RemoteRecognizer, pcm: Pcm) -> Spoken:
    agent = Answerer()
    async with phone_call(lambda call: agent.agent(), recognizer=recognizer) as phone:
        stream: Any = phone.call.hearing.utterances.recognizer
        await phone.until(lambda: stream._connection is not None)
        await says(phone, pcm)
        await phone.until(lambda: phone.of(CallerTurn))
        detection = phone._turn_detection
        return Spoken(
            dict(detection.answers),
            phone.call.hearing.watch.silence_ms,
            detection.model._model._session is not None,
        )


# --- calls ---


async def test_a_turn_ends_by_what_the_worker_says(
    server: LosableServer, phrase: Pcm, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The worker has the real models: recognition, and the end of turns on a CPU. Its random words
    come sooner or later, so they do not say when it is asked."""
    monkeypatch.setattr(end_questions_io, "ASK_ENGINE_MS", 1000 * HANGS_S)
    monkeypatch.setattr(end_of_turn, "doubt", lambda *about: Doubt.NONE)
    model = str(tiny_nemotron.write(tmp_path))
    engine = NemotronRecognizer(AsrModels(model, "cpu"))
    engine.turns = TurnJudge(torch.device("cpu"))
    heard: list[Pcm] = []
    found: list[float] = []
    judges = engine.turns.judge_all

    def judge_all(questions: Sequence[Pcm]) -> Sequence[float]:
        heard.extend(questions)
        found.extend(judges(questions))
        return found[-len(questions) :]

    monkeypatch.setattr(engine.turns, "judge_all", judge_all)
    async with reached(server, GatedRecognizer(engine)) as recognizer:
        call = await spoken(recognizer, phrase)
        (pcm,), (probability,) = heard, found
        expected = SmartTurn().judge(pcm)
        assert probability == pytest.approx(expected, abs=0.2)
        over = end_silence(TURNS, Facts(text="words", end_probability=probability))
        assert call == Spoken({"engine": 1}, over, loaded=False)
        # All of it, with a little before, and nothing of what the line was before that.
        assert len(phrase) * 0.8 < len(pcm) < len(phrase) + RATE_IN


@pytest.mark.parametrize(("probability", "silence_ms"), [(1.0, 340), (0.0, 520)])
async def test_the_worker_decides_how_long_silence_lasts(
    server: LosableServer,
    phrase: Pcm,
    probability: float,
    silence_ms: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(end_questions_io, "ASK_ENGINE_MS", 1000 * HANGS_S)
    monkeypatch.setattr(end_of_turn, "doubt", lambda *about: Doubt.NONE)
    async with answers(probability) as judge, reached(server, Hears(judge)) as recognizer:
        assert await spoken(recognizer, phrase) == Spoken({"engine": 1}, silence_ms, loaded=False)


async def test_a_worker_that_stalls_leaves_the_answer_to_the_edge(
    server: LosableServer, phrase: Pcm, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(end_questions_io, "ASK_ENGINE_MS", 20)
    monkeypatch.setattr(SmartTurn, "judge", lambda self, pcm: 1.0)
    monkeypatch.setattr(end_of_turn, "doubt", lambda *about: Doubt.NONE)
    async with answers(0.1) as judge, reached(server, Hears(judge)) as recognizer:
        judge.let.clear()
        assert (await spoken(recognizer, phrase))[:2] == ({"late": 1}, 340)
        judge.let.set()


async def test_a_worker_that_does_not_judge_turns_is_not_asked(
    server: LosableServer, phrase: Pcm
) -> None:
    async with reached(server, Hears(None)) as recognizer:
        call = await spoken(recognizer, phrase)
        assert (call.answers, call.loaded) == ({"edge": 1}, True)


# --- streams that move ---


async def final_of(stream: RemoteStream) -> Final:
    async with asyncio.timeout(HANGS_S):
        async for event in stream.events():
            if isinstance(event, Final):
                return event
    raise AssertionError("it ended without a final")


async def test_a_question_to_a_worker_that_is_lost_has_no_answer(server: LosableServer) -> None:
    async with answers(0.9) as judge, reached(server, Hears(judge)) as recognizer:
        stream = await recognizer.open()
        await until(lambda: stream.judges_turns)
        stream.feed(np.ones(RATE_IN, np.int16))
        judge.let.clear()
        asking = asyncio.create_task(stream.turn_probability())
        await until(lambda: judge._busy)
        judge.let.set()
        lost = asyncio.create_task(server.down())
        async with asyncio.timeout(HANGS_S):
            assert await asking is None or judge.asked
            await lost
        assert not stream.judges_turns
        assert await stream.turn_probability() is None
        await stream.close()


async def test_a_worker_that_has_not_heard_what_was_before_is_not_asked(
    server: LosableServer,
) -> None:
    """The utterance before has its final, so it is not sent to the worker that comes back."""
    async with answers(0.9) as judge, reached(server, Hears(judge)) as recognizer:
        stream = await recognizer.open()
        await until(lambda: stream.judges_turns)
        stream.feed(np.ones(RATE_IN, np.int16))
        stream.finish()
        assert isinstance(await final_of(stream), Final)
        assert await stream.turn_probability() == 0.9
        await server.down()
        async with answers(0.8) as other:
            await server.serve(worker(Hears(other)))
            await until(lambda: stream.judges_turns)
            stream.feed(np.full(RATE_IN, 2, np.int16))
            assert await stream.turn_probability() is None
            stream.feed(np.full((SECONDS - 1) * RATE_IN, 2, np.int16))
            assert await stream.turn_probability() == 0.8
            (pcm,) = other.asked
            assert pcm.tolist() == [2] * (SECONDS * RATE_IN)
            await stream.close()


async def test_what_a_worker_owes_bounds_what_it_is_asked(server: LosableServer) -> None:
    async with answers(0.9) as judge, reached(server, Hears(judge)) as recognizer:
        stream = await recognizer.open()
        await until(lambda: stream.judges_turns)
        stream.feed(np.ones(RATE_IN, np.int16))
        judge.let.clear()
        asking = [asyncio.create_task(stream.turn_probability()) for _ in range(MAX_ASKED)]
        connection = stream._connection
        assert connection is not None
        await until(lambda: len(connection._asked) == MAX_ASKED)
        assert await stream.turn_probability() is None
        for task in asking:
            task.cancel()  # nobody waits, and the worker owes them still
        assert await stream.turn_probability() is None
        judge.let.set()
        await until(lambda: not connection._asked)
        assert await stream.turn_probability() == 0.9
        await stream.close()


# --- the worker's side ---


def turn(question: int, at_ms: int, **more: object) -> dict[str, object]:
    return {"type": "turn", "question": question, "at_ms": at_ms, **more}


def turn_answer(question: int, probability: float | None) -> dict[str, object]:
    return {"type": "turn", "question": question, "probability": probability}


async def test_a_worker_announces_that_it_judges_turns() -> None:
    async with answers(0.9) as judge:
        for turns in (judge, None):
            async with served(worker(Hears(turns))) as (client, _):
                async with open_stream(client, PATH) as socket:
                    assert (await told(socket, "ready"))["turns"] is (turns is not None)
                async with open_stream(client, PATH, live="false") as socket:
                    assert (await told(socket, "ready"))["turns"] is False
                async with client.get("/readyz") as answer:
                    assert (await answer.json())["turns"] is (turns is not None)


async def test_only_audio_that_is_there_is_judged() -> None:
    async with answers(0.25) as judge, served(worker(Hears(judge))) as (client, _):
        async with open_stream(client, PATH) as socket:
            await told(socket, "ready")
            places = [0, 1000, 750, 1001, 10**9]
            await socket.send_bytes(np.arange(RATE_IN, dtype="<i2").tobytes())
            for number, at_ms in enumerate(places):
                await socket.send_json(turn(number, at_ms))
                expected = 0.25 if number in (1, 2) else None
                assert await told(socket, "turn") == turn_answer(number, expected)
            assert [(pcm[0], len(pcm)) for pcm in judge.asked] == [(0, 16_000), (0, 12_000)]
            for _ in range(SECONDS):  # so that the first is forgotten
                await socket.send_bytes(np.ones(RATE_IN, "<i2").tobytes())
            await socket.send_json(turn(7, 7999))
            assert (await told(socket, "turn"))["probability"] is None
            for number, at_ms, length in ((8, 9000, SECONDS * 1000), (9, 8900, 7900)):
                await socket.send_json(turn(number, at_ms))
                assert (await told(socket, "turn"))["probability"] == 0.25
                assert len(judge.asked[-1]) == length * RATE_IN // 1000
        async with client.get("/metrics") as answer:
            scrape = await answer.text()
    assert "offhook_asr_turn_seconds_count 4.0" in scrape
    assert "offhook_asr_turns_unanswered_total 4.0" in scrape


@pytest.mark.parametrize(
    ("message", "says"),
    [
        (turn(0, -1), "at_ms is not greater than or equal to 0"),
        (turn(0, 2**60), "at_ms is not less than"),
        (turn(0, 100, probability=1), "has no field 'probability'"),
        ({"type": "turn", "question": 0}, "at_ms"),
        ({"type": "turn", "question": "0", "at_ms": 0}, "question is not"),
    ],
)
async def test_a_question_that_is_none_ends_the_stream(
    message: dict[str, object], says: str
) -> None:
    async with answers(0.9) as judge, served(worker(Hears(judge))) as (client, _):
        async with open_stream(client, PATH) as socket:
            await told(socket, "ready")
            await socket.send_json(message)
            error = await socket.receive_json()
            assert (error["type"], error["code"]) == ("error", "bad_request")
            assert says in error["message"]
        assert not judge.asked


async def test_a_worker_that_does_not_judge_turns_says_so() -> None:
    async with served(worker(Hears(None))) as (client, _), open_stream(client, PATH) as socket:
        await told(socket, "ready")
        await socket.send_json(turn(0, 0))
        assert (await socket.receive_json())["code"] == "bad_request"


async def test_of_a_flood_of_questions_only_the_newest_waits() -> None:
    async with (
        answers(0.9) as judge,
        served(worker(Hears(judge))) as (client, _),
        open_stream(client, PATH) as flood,
        open_stream(client, PATH) as other,
    ):
        for socket in (flood, other):
            await told(socket, "ready")
            await socket.send_bytes(bytes(2 * RATE_IN))
        judge.let.clear()
        await other.send_json(turn(0, 1000))
        await until(lambda: judge._busy)
        for number in range(FLOOD):
            await flood.send_json(turn(number, 1000))
        replaced = [await told(flood, "turn") for _ in range(FLOOD - 1)]
        assert [answer["question"] for answer in replaced] == list(range(FLOOD - 1))
        assert {answer["probability"] for answer in replaced} == {None}
        assert len(judge._waiting) == 1
        judge.let.set()
        assert (await told(other, "turn"))["probability"] == 0.9
        assert await told(flood, "turn") == turn_answer(FLOOD - 1, 0.9)
        assert len(judge.asked) == 2
