"""Asks whether a caller who is silent has finished: the recognizer's engine or the end-of-turn
model of this process. Neither can hurt the call: who fails, is late or gives no probability leaves
the decision to the words and silence."""

import asyncio
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from typing import Literal

from loguru import logger

from offhook.media.pcm import RATE_IN, Pcm
from offhook.media.tasks_io import TaskSet
from offhook.pipeline.speech.recognizer import JudgesTurns, RecognizerStream
from offhook.pipeline.speech.vad.smart_turn_io import SharedTurnModel, SmartTurn
from offhook.pipeline.speech.vad.turn_model_io import as_probability

ASK_ENGINE_MS = 100
"""Time in ms for the recognizer's engine to say whether the turn is over, if it says so; then the
model of this process is asked, which still answers before silence alone decides."""
LATE_MS = 300
"""ms of the caller's silence after which a model that has still not answered at the end of the turn
is named in the log."""

TurnAnswerer = Literal["engine", "late", "edge"]
"""Who said whether a turn was over: the recognizer's engine; the model of this process because the
engine did not, or not in time; or that model because the engine never does."""


class EndQuestions:
    """The questions of one call, one at a time."""

    def __init__(
        self,
        call_id: str,
        recognizer: RecognizerStream,
        model: SharedTurnModel | None,
        answers: Counter[TurnAnswerer],
        ask_engine: bool,
    ) -> None:
        """`answers` counts who is asked. Without `ask_engine` only the model is."""
        self._call_id, self._recognizer, self._model = call_id, recognizer, model
        self._answers, self._ask_engine = answers, ask_engine
        self.tasks = TaskSet()
        """To be closed by the owner of the questions."""
        self._question: asyncio.Task[None] | None = None
        self._asked_ms = 0
        self._warned = False

    @property
    def window_s(self) -> float:
        """Seconds of audio that are judged."""
        return 0 if self._model is None else self._model.window_s

    @property
    def open(self) -> bool:
        """Whether an answer is to come."""
        return self._question is not None and not self._question.done()

    @property
    def engine(self) -> JudgesTurns | None:
        """The recognizer's engine, if it would answer now."""
        stream = self._recognizer
        if not self._ask_engine:
            return None
        return stream if isinstance(stream, JudgesTurns) and stream.judges_turns else None

    def ask_of(self, recognizer: RecognizerStream) -> None:
        """Ask the engine of another stream from now on."""
        self.withdraw()
        self._recognizer = recognizer

    def prepare(self) -> None:
        """Loads the model if it will run at the first pause: somebody begins to speak."""
        if self._model is not None and self.engine is None:
            self._model.load()

    def ask(
        self, now_ms: int, sound: Callable[[int], Pcm], answered: Callable[[float | None], None]
    ) -> None:
        """Asks in place of the last question, if there is anybody to ask. `sound` returns so many
        of the samples before this moment; `answered` gets the answer, None if there is none."""
        self.withdraw()
        engine = self.engine
        if engine is None and self._model is None:
            return
        self._asked_ms = now_ms
        asking = self._ask(engine, sound, answered)
        self._question = self.tasks.spawn(asking, f"end? {self._call_id}")

    def withdraw(self) -> None:
        """Drops the question."""
        if self._question is not None:
            self._question.cancel()
            self._question = None

    def decided(self, now_ms: int) -> None:
        """The turn is over; a question that is open was not needed."""
        waited = now_ms - self._asked_ms
        # Ours is late only where the machine is: while it loads, or is overloaded.
        if self.open and waited >= LATE_MS and not isinstance(self._model, SmartTurn):
            self._warn(f"has not answered in {waited} ms")
        self.withdraw()

    async def _ask(
        self,
        engine: JudgesTurns | None,
        sound: Callable[[int], Pcm],
        answered: Callable[[float | None], None],
    ) -> None:
        probability = await self._of_engine(engine) if engine is not None else None
        if probability is None and self._model is not None:
            self._answers["edge" if engine is None else "late"] += 1
            probability = await self._of_model(self._model, sound)
        answered(probability)

    async def _of_engine(self, engine: JudgesTurns) -> float | None:
        """Returns None if the recognizer's engine cannot say, or not in time."""
        with suppress(TimeoutError):
            async with asyncio.timeout(ASK_ENGINE_MS / 1000):
                probability = await engine.turn_probability()
                if probability is not None:
                    self._answers["engine"] += 1
                return probability
        return None

    async def _of_model(self, model: SharedTurnModel, sound: Callable[[int], Pcm]) -> float | None:
        try:
            pcm = sound(round(model.window_s * RATE_IN))
            answer = await model.probability(pcm, self._call_id)
            return None if answer is None else as_probability(answer)
        except Exception as error:  # whatever somebody else's model does
            self._warn(f"failed: {' '.join(str(error).split()) or type(error).__name__}")
            return None

    def _warn(self, what: str) -> None:
        """Logs what was wrong first in this call."""
        if not self._warned and self._model is not None:
            self._warned = True
            name = self._model.name
            words = "the words and silence decide"
            logger.warning("{}: the end-of-turn model {} {}; {}", self._call_id, name, what, words)
