"""Whatever the end-of-turn model does, or without one, the turn ends: in virtual time."""

import asyncio
import threading
from collections import Counter
from collections.abc import Callable, Hashable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from benchmarks.servers.scripted import ScriptedRecognizerStream
from offhook.media.pcm import RATE_IN, Pcm
from offhook.pipeline.conversation.events import CallerTurn
from offhook.pipeline.conversation.turns import end_of_turn
from offhook.pipeline.conversation.turns.end_questions_io import EndQuestions
from offhook.pipeline.conversation.turns.patience import Doubt
from offhook.pipeline.conversation.turns.turn import TurnSettings
from offhook.pipeline.speech.vad.turn_model_io import OnnxTurnModel, open_turn_model
from tests.pipeline.conversation.turns.test_user_turn import Conversation, Judge, Said
from tests.support.turn_models import loudness

TURNS = TurnSettings()
SENTENCE = Said(((20, 0),), 0.99, 0)


@pytest.fixture(autouse=True, scope="module")
def words_decide_nothing() -> Iterator[None]:
    """The words of these callers are letters."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(end_of_turn, "doubt", lambda *about: Doubt.NONE)
        yield


@dataclass
class With(Conversation):
    """A call of which each turn's silence is kept."""

    model: Any = None
    silences: list[int] = field(default_factory=list)

    def _model(self) -> Any:
        return self.model

    class _Listener(Conversation._Listener):
        def on_commit(self, text: str) -> None:
            super().on_commit(text)
            conversation: Any = self._conversation
            conversation.silences.append(conversation._hearing.watch.silence_ms)


async def silences(model: Any, sentences: int = 1) -> list[int]:
    """Returns the silence that ended each turn of a call, all of whose words were passed on."""
    call = With(partial_ms=0, final_ms=40, answer=0.0, model=model)
    expected = await call.run([SENTENCE] * sentences)
    turns = [event.text for event in call.events if isinstance(event, CallerTurn)]
    assert [{turn} for turn in turns] == expected
    return call.silences


@given(st.floats() | st.none())
@example(0.5)
@example(float("nan"))
@example(float("inf"))
@example(-0.001)
@example(1.001)
def test_any_answer_ends_the_turn(answer: float | None) -> None:
    """What is no probability counts as no answer."""
    (silence,) = asyncio.run(silences(Judge(answer)))  # type: ignore[arg-type]
    if answer is None or not 0 <= answer <= 1:
        assert silence == TURNS.end_answer
    else:
        middle = (TURNS.end_silence + TURNS.end_silence_unsure) / 2
        assert TURNS.end_silence <= silence <= TURNS.end_silence_unsure
        assert (silence < middle) == (answer > 0.3)


def test_without_a_model_a_turn_ends_by_silence() -> None:
    """It waits for no answer, and no longer than for a model that cannot say."""
    call = With(partial_ms=0, final_ms=40, answer=0.0)
    asyncio.run(call.run([SENTENCE] * 2))
    assert call.silences == [TURNS.end_answer] * 2
    assert not call._hearing.asks_for_the_end


class Answers(Judge):
    """Whatever `says` returns or raises."""

    def __init__(self, says: Callable[[], Any]) -> None:
        super().__init__(0.0)
        self.says = says

    async def probability(self, pcm: Pcm, call_id: str) -> Any:
        return self.says()


def raises() -> float:
    raise RuntimeError("out of order\n at line 2")


class Hangs(Judge):
    """Never answers."""

    def __init__(self) -> None:
        super().__init__(0.0)

    async def probability(self, pcm: Pcm, call_id: str) -> float:
        await asyncio.Event().wait()
        return 1.0


@pytest.mark.parametrize(
    ("model", "says"),
    [
        (Answers(raises), "failed: out of order at line 2"),
        (Answers(lambda: 7.5), "failed: 7.5 is no probability"),
        (Answers(lambda: float("nan")), "failed: nan is no probability"),
        (Answers(lambda: "yes"), "failed: could not convert string to float: 'yes'"),
        (Answers(lambda: [0.5, 0.5]), "failed: float() argument must be a string or a real number"),
        (Hangs(), "has not answered in "),
    ],
)
async def test_who_fails_lies_or_hangs_is_named_once_a_call(
    model: Judge, says: str, caplog: pytest.LogCaptureFixture
) -> None:
    for call in (1, 2):
        assert await silences(model, 3) == [TURNS.end_answer] * 3
        warnings = [r.getMessage() for r in caplog.records if r.levelname == "WARNING"]
        assert len(warnings) == call
        assert warnings[-1].startswith(f"call: the end-of-turn model judge {says}")
        assert warnings[-1].endswith("; the words and silence decide")


let = threading.Event()


class Blocks:
    """Somebody else's, which blocks its thread once it was checked."""

    name = "blocks"
    window_s = 1.0

    def __init__(self) -> None:
        self.asked = 0

    async def probability(self, pcm: Pcm) -> float:
        self.asked += 1
        if self.asked > 2:
            let.wait(60)
        return 0.9


async def test_a_model_that_blocks_its_thread_holds_up_no_call() -> None:
    model = open_turn_model(f"{__name__}:Blocks")
    assert model is not None
    try:
        assert await silences(model, 3) == [TURNS.end_answer] * 3
    finally:
        let.set()
        await model.close()


async def test_a_file_that_blocks_holds_up_no_call(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = OnnxTurnModel(loudness(tmp_path / "eou.onnx", 1, "N"))
    let = threading.Event()
    monkeypatch.setattr(model, "_last", lambda pcm: let.wait(60) and 0.9)
    try:
        assert await silences(model, 3) == [TURNS.end_answer] * 3
    finally:
        let.set()
        await model.close()


class Patient(With):
    """Time stands still while the model is asked."""

    async def _pass(self, packets: int) -> None:
        for _ in range(packets):
            await super()._pass(1)
            while self._hearing.asks_for_the_end:
                await asyncio.sleep(0.001)


@pytest.mark.parametrize(("times", "least", "most"), [(15.0, 340, 360), (1.0, 500, 520)])
async def test_a_file_decides_how_long_silence_lasts(
    tmp_path: Path, times: float, least: int, most: int
) -> None:
    """It hears 0.4 s at a quarter of full scale within two seconds."""
    model = OnnxTurnModel(loudness(tmp_path / "eou.onnx", 1, 2 * RATE_IN, times=times))
    call = Patient(partial_ms=0, final_ms=40, answer=0.0, model=model)
    await call.run([SENTENCE] * 2)
    assert len(call.silences) == 2
    assert all(least <= silence <= most for silence in call.silences)
    await model.close()


async def test_a_good_answer_is_not_logged(caplog: pytest.LogCaptureFixture) -> None:
    await silences(Judge(0.9), 2)
    assert not [record for record in caplog.records if record.levelname == "WARNING"]


@dataclass
class Long(Judge):
    """Keeps what it was asked about."""

    window_s: float = 12.0
    asked: list[int] = field(default_factory=list)

    async def probability(self, pcm: Pcm, call_id: Hashable) -> float:
        self.asked.append(len(pcm))
        return self.answer


async def test_a_model_hears_as_much_as_it_wants() -> None:
    model = Long(0.9)
    await silences(model, 6)
    assert model.asked[-1] == 12 * RATE_IN


class Engine(ScriptedRecognizerStream):
    """Says that every turn is over."""

    judges_turns = True

    async def turn_probability(self) -> float | None:
        return 1.0


@pytest.mark.parametrize(
    ("ask_engine", "model", "answer", "counted"),
    [
        (True, Judge(0.1), 1.0, {"engine": 1}),
        (False, Judge(0.1), 0.1, {"edge": 1}),
        (True, None, 1.0, {"engine": 1}),
        (False, None, "not asked", {}),
    ],
)
async def test_another_model_than_the_engines_is_asked_alone(
    ask_engine: bool, model: Any, answer: float | str, counted: dict[str, int]
) -> None:
    counts: Counter[Any] = Counter()
    questions = EndQuestions("call", Engine(), model, counts, ask_engine)
    answers: list[Any] = []
    questions.ask(0, lambda samples: np.zeros(samples, np.int16), answers.append)
    while questions.open:
        await asyncio.sleep(0)
    assert (answers or ["not asked"]) == [answer]
    assert counts == counted
