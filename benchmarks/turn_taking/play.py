"""Plays utterances to the turn-taking of the server in virtual time.

VAD, end-of-turn model, echo detector and turn table are the server's; the recognizer knows the
words and says them with a given latency, or is a real one (`engines.py`), and the agent answers
every turn after a given time. All calls go through one loop, 20 ms a step, and nothing waits for
the machine: the result is the same on a busy one.
"""

import asyncio
import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import cycle
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.turn_taking.clock import Clock
from benchmarks.turn_taking.engines import MS, Engine, KnownWords
from benchmarks.turn_taking.script import Utterance
from offhook.media.leg import Leg
from offhook.media.pcm import RATE_OUT, SAMPLES_IN, Pcm
from offhook.media.playout import PlayoutListener
from offhook.pipeline.conversation.events import CallerTurn, Event
from offhook.pipeline.conversation.turns.end_of_turn import answer_silence, end_silence
from offhook.pipeline.conversation.turns.facts import Facts
from offhook.pipeline.conversation.turns.pace import Pace
from offhook.pipeline.conversation.turns.turn import TurnSettings, TurnState
from offhook.pipeline.conversation.turns.user_turn_io import (
    TurnDetection,
    UserTurnController,
    UserTurnListener,
)
from offhook.pipeline.speech.enhancement.enhancer import EnhancementSettings
from offhook.pipeline.speech.vad.smart_turn_io import SmartTurn
from offhook.pipeline.speech.vad.turn_model_io import SMART_TURN, OnnxTurnModel, open_turn_model
from offhook.pipeline.speech.vad.vad_io import VadBatch

AFTER_MS = 4000
"""Silence in ms after an utterance until its call ends: nobody waits longer for an answer."""
DEFAULTS = TurnSettings()
JUDGES_MS = 60
"""Latency in ms of the end-of-turn model, on a process with some calls."""
ANSWER_MS, ANSWER_LEVEL = 2000, 2000


def _answer() -> Pcm:
    """The agent's, in syllables of noise, which is echo of nothing else."""
    time = np.arange(ANSWER_MS * RATE_OUT // 1000) / RATE_OUT
    noise = np.random.default_rng(2).normal(0, ANSWER_LEVEL, len(time))
    return (
        (noise * (0.55 - 0.45 * np.cos(2 * np.pi * 4 * time))).clip(-32768, 32767).astype(np.int16)
    )


ANSWER = _answer()


class Judge:
    """The end-of-turn model, whose answers to a sound are known from then on; those of Smart Turn
    are kept in a file."""

    def __init__(self, clock: Clock, model: SmartTurn | OnnxTurnModel, file: Path | None) -> None:
        self.name, self.window_s = model.name, model.window_s
        self._clock, self._model = clock, model
        self._file = file if isinstance(model, SmartTurn) else None
        self._known: dict[str, float] = {}
        if self._file is not None and self._file.exists():
            kept = np.load(self._file)
            self._known = dict(zip(kept["keys"].tolist(), kept["values"].tolist(), strict=True))

    def load(self) -> None:
        pass

    async def probability(self, pcm: Pcm, call: object) -> float | None:
        key = hashlib.sha1(pcm.tobytes()).hexdigest()
        if key not in self._known:
            self._known[key] = float(self._model.judge_all([pcm])[0])
        await self._clock.sleep(JUDGES_MS)
        return self._known[key]

    async def close(self) -> None:
        keys, values = list(self._known), list(self._known.values())
        if self._file is not None:
            np.savez(self._file, keys=np.array(keys), values=np.array(values))
        await self._model.close()


class Line(Leg):
    """A caller who says one utterance, and then nothing."""

    def __init__(self, name: str, sound: Pcm) -> None:
        super().__init__(name)
        self._sound, self.at = sound, 0
        self.sounds: list[int] = []
        """When the agent began to be heard, in ms."""
        self._sounding = False
        self.levels: list[float] = []
        """Of the agent's sound in each 20 ms, RMS."""

    def _receive(self, now: float) -> Pcm:
        heard = self._sound[self.at : self.at + SAMPLES_IN]
        self.at += SAMPLES_IN
        return np.pad(heard, (0, SAMPLES_IN - len(heard)))

    def _send(self, said: Pcm | None, now: float) -> None:
        sounding = said is not None and bool(said.any())
        if sounding and not self._sounding:
            self.sounds.append(self.at // MS)
        self._sounding = sounding
        level = np.sqrt(np.square(said.astype(np.float64)).mean()) if said is not None else 0.0
        self.levels.append(float(level))

    def send_message(self, text: str) -> bool:
        return False


@dataclass(frozen=True)
class Waiting:
    """How long a silence the server wants, with what it knows at a moment of one."""

    at_ms: int
    """Of the line."""
    given_ms: int
    """Until the agent is given the turn."""
    heard_ms: int
    """Until the agent may be heard."""


@dataclass
class Heard:
    """What a caller noticed of an utterance."""

    utterance: Utterance
    commits: list[tuple[int, str]] = field(default_factory=list)
    """When the agent was given a turn, in ms of the line, and its text."""
    sounds: list[int] = field(default_factory=list)
    """When the agent began to be heard, in ms."""
    events: list[Event] = field(default_factory=list)
    levels: list[float] = field(default_factory=list)
    """Of the agent's sound in each 20 ms of the line, RMS."""
    interrupted_ms: int | None = None
    """When the agent's first sound was dropped, in ms of the line."""
    silences: list[Facts] = field(default_factory=list)
    """What was known at the end of each silence of the caller in which the turn might be over."""
    waitings: list[Waiting] = field(default_factory=list)
    """What the settings by default want, in each 20 ms of those silences from the final words on:
    without them no turn ends."""

    @property
    def end_ms(self) -> int:
        return self.utterance.end // MS

    @property
    def given_early(self) -> bool:
        """Whether the turn was given to the agent before its last word was over."""
        return any(at < self.end_ms for at, _ in self.commits)

    @property
    def cut_off(self) -> bool:
        """Whether the agent's answer was heard before the last word was over."""
        answered = min((at for at, _ in self.commits), default=self.end_ms)
        return any(answered <= at < self.end_ms for at in self.sounds)

    @property
    def delay_ms(self) -> int | None:
        """From the end of the last word to the turn's; None if nobody answers."""
        last = max((at for at, _ in self.commits), default=0)
        return last - self.end_ms if last >= self.end_ms else None


class _Call(UserTurnListener):
    def __init__(
        self,
        clock: Clock,
        detection: TurnDetection,
        utterance: Utterance,
        options: "Options",
        pace: Pace,
    ) -> None:
        self.heard = Heard(utterance)
        self._clock, self._reply_ms = clock, options.reply_ms
        silence = np.zeros(AFTER_MS * MS, np.int16)
        self.line = Line(utterance.name, np.concatenate([utterance.sound, silence]))
        nobody: Any = lambda occasion: None  # noqa: E731
        stream = options.engine.open(utterance, lambda: self.line.at)
        self.hearing = UserTurnController(self.line, detection, stream, self._note, nobody)
        self.hearing.listener = self
        self.hearing.reader.language = utterance.language
        self.hearing.pace = pace
        self._answering: asyncio.Task[None] | None = None
        self._silence: Facts | None = None
        reply = self.hearing.reply
        reply.begin()
        for word in utterance.asked.split():
            reply.queue(word)
            reply.say()
        if utterance.question is None:
            reply.finish()
        else:
            self.line.playout.listener = _Asking(self)
            self.line.playout.begin()
            self.line.playout.write(utterance.question)
            self.line.playout.end()

    def tick(self, now: float) -> None:
        self.line.tick(now)
        if self.hearing.state is TurnState.ENDING:
            self._silence = facts = replace(self.hearing._facts)
            if facts.final:
                given_ms = end_silence(DEFAULTS, facts)
                heard_ms = max(given_ms, answer_silence(DEFAULTS, facts))
                self.heard.waitings.append(Waiting(self.line.at // MS, given_ms, heard_ms))
        elif self._silence is not None:
            self.heard.silences.append(self._silence)
            self._silence = None

    @property
    def over(self) -> bool:
        return self.line.at >= len(self.heard.utterance.sound) + AFTER_MS * MS

    def _note(self, event: Event) -> None:
        self.heard.events.append(event)
        if isinstance(event, CallerTurn):
            self.heard.commits.append((event.at_ms, event.text))

    def on_commit(self, text: str) -> None:
        self._answering = asyncio.ensure_future(self._answer())

    def on_interrupt(self) -> None:
        if self.heard.interrupted_ms is None:
            self.heard.interrupted_ms = self.line.at // MS
        if self._answering is not None:
            self._answering.cancel()

    async def _answer(self) -> None:
        await self._clock.sleep(self._reply_ms)
        self.line.playout.begin()
        self.line.playout.write(ANSWER)

    async def close(self) -> None:
        if self._answering is not None:
            self._answering.cancel()
        await self.hearing.close()
        self.heard.sounds, self.heard.levels = self.line.sounds, self.line.levels


class _Asking(PlayoutListener):
    """The agent asks its question: as the transport does, its reply ends with its sound."""

    def __init__(self, call: _Call) -> None:
        self._call = call

    def on_stopped(self) -> None:
        self._call.hearing.reply.finish()


@dataclass(frozen=True)
class Options:
    engine: Engine = field(default_factory=KnownWords)
    reply_ms: int = 400
    """From a turn's end to the agent's first sound."""
    settings: TurnSettings = field(default_factory=TurnSettings)
    turn_model: str = SMART_TURN
    """As `[turn] model`, but no object, which would answer in its own time."""
    callers: int | None = None
    """How many callers say the utterances one after another, from whose pauses the server learns;
    None: each is another caller's."""


async def play(said: Sequence[Utterance], options: Options, judged: Path | None) -> list[Heard]:
    """Plays the utterances, each on a call of its own. `judged` is the file that keeps the answers
    of the end-of-turn model; None: they are not kept. Raises openai.APIError if an engine by URL
    fails."""
    clock = Clock()
    options.engine.begin(clock)
    model = open_turn_model(options.turn_model)
    assert model is None or isinstance(model, SmartTurn | OnnxTurnModel)
    judge = None if model is None else Judge(clock, model, judged)
    vad = VadBatch()
    enhancement = EnhancementSettings()
    detection = TurnDetection(vad, judge, options.settings, enhancement)
    heard: list[Heard] = []
    together = options.callers or options.engine.calls
    paces = [Pace() for _ in range(options.callers or len(said))]
    turns = list(zip(said, cycle(paces), strict=False))
    try:
        for first in range(0, len(said), together):
            calls = [
                _Call(clock, detection, one, options, pace)
                for one, pace in turns[first : first + together]
            ]
            while not all(call.over for call in calls):
                for call in calls:
                    if not call.over:
                        call.tick(clock.now / 1000)
                vad.run()
                while vad._due is not None:
                    await asyncio.sleep(0)
                await clock.step()
            for call in calls:
                await call.close()
                heard.append(call.heard)
    finally:
        await detection.close()
    await options.engine.end()
    return heard
