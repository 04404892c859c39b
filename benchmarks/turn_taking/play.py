"""Plays utterances to the turn-taking of the server in virtual time.

VAD, end-of-turn model, echo detector and turn table are the server's; the recognizer knows the
words and says them with a given latency, and the agent answers every turn after a given time. All
calls go through one loop, 20 ms a step, and nothing waits for the machine: the result is the same
on a busy one.
"""

import asyncio
import hashlib
import heapq
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, field, replace
from itertools import count, cycle
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.turn_taking.script import Utterance, Word
from offhook.media.leg import Leg, LegStatistics
from offhook.media.pcm import PACKET_MS, RATE_IN, RATE_OUT, SAMPLES_IN, Pcm
from offhook.media.playout import PlayoutListener
from offhook.pipeline.conversation.events import CallerTurn, Event
from offhook.pipeline.conversation.turns.facts import Facts
from offhook.pipeline.conversation.turns.pace import Pace
from offhook.pipeline.conversation.turns.turn import TurnSettings, TurnState
from offhook.pipeline.conversation.turns.user_turn_io import (
    TurnDetection,
    UserTurnController,
    UserTurnListener,
)
from offhook.pipeline.speech.enhancement.enhancer import EnhancementSettings
from offhook.pipeline.speech.recognizer import Final, Partial, RecognizerStream
from offhook.pipeline.speech.vad.smart_turn_io import SmartTurn
from offhook.pipeline.speech.vad.turn_model_io import SMART_TURN, OnnxTurnModel, open_turn_model
from offhook.pipeline.speech.vad.vad_io import VadBatch

MS = RATE_IN // 1000
AFTER_MS = 4000
"""Silence in ms after an utterance until its call ends: nobody waits longer for an answer."""
JUDGES_MS = 60
"""Latency in ms of the end-of-turn model, on a process with some calls."""
PARTIAL_MS = 250
"""How old in ms a word is before a partial has it."""
ROUNDS = 6
"""Rounds of the event loop after a step, in which everything that is due has happened."""
CALLS = 64
"""Calls at a time."""
ANSWER_MS, ANSWER_LEVEL = 2000, 2000


def _answer() -> Pcm:
    """The agent's, in syllables of noise, which is echo of nothing else."""
    time = np.arange(ANSWER_MS * RATE_OUT // 1000) / RATE_OUT
    noise = np.random.default_rng(2).normal(0, ANSWER_LEVEL, len(time))
    return (
        (noise * (0.55 - 0.45 * np.cos(2 * np.pi * 4 * time))).clip(-32768, 32767).astype(np.int16)
    )


ANSWER = _answer()


class Clock:
    """The virtual time of all calls, in ms."""

    def __init__(self) -> None:
        self.now = 0
        self._due: list[tuple[int, int, asyncio.Future[None]]] = []
        self._numbers = count()

    async def sleep(self, ms: int) -> None:
        future = asyncio.get_running_loop().create_future()
        heapq.heappush(self._due, (self.now + ms, next(self._numbers), future))
        await future

    async def step(self) -> None:
        self.now += PACKET_MS
        while self._due and self._due[0][0] <= self.now:
            future = heapq.heappop(self._due)[2]
            if not future.done():
                future.set_result(None)
        for _ in range(ROUNDS):
            await asyncio.sleep(0)


class Judge:
    """The end-of-turn model, whose answers to a sound are known from then on; those of Smart Turn
    are kept in a file."""

    def __init__(self, clock: Clock, model: SmartTurn | OnnxTurnModel, file: Path) -> None:
        self.name, self.window_s = model.name, model.window_s
        self._clock, self._model = clock, model
        self._file = file if isinstance(model, SmartTurn) else None
        self._known: dict[str, float] = {}
        if self._file is not None and file.exists():
            kept = np.load(file)
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


@dataclass
class Oracle:
    """A recognizer of one call that knows the words and where they are: a `RecognizerStream`."""

    clock: Clock
    words: Sequence[Word]
    position: Callable[[], int]
    """Of the call's sound, in samples."""
    latency_ms: int
    """From the request of a final to it."""
    language: str
    _events: asyncio.Queue[Partial | Final | None] = field(default_factory=asyncio.Queue)
    _start: int | None = None
    _told: str = ""
    _tasks: set[asyncio.Task[None]] = field(default_factory=set)

    def feed(self, pcm: Pcm) -> None:
        end = self.position()
        if self._start is None:
            self._start, self._told = end - len(pcm), ""
        text = self._text(self._start, end - PARTIAL_MS * MS)
        if text != self._told:
            self._told = text
            self._events.put_nowait(Partial(text, 0, (end - self._start) // MS))

    def finish(self) -> None:
        end = self.position()
        start = end if self._start is None else self._start
        self._start = None
        final = Final(self._text(start, end), (end - start) // MS, language=self.language)
        task = asyncio.ensure_future(self._say(final))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def cancel(self) -> None:
        self._start = None

    async def events(self) -> AsyncIterator[Partial | Final]:
        while (event := await self._events.get()) is not None:
            yield event

    async def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        self._events.put_nowait(None)

    async def _say(self, final: Final) -> None:
        await self.clock.sleep(self.latency_ms)
        self._events.put_nowait(final)

    def _text(self, start: int, end: int) -> str:
        middles = ((word, (word.start + word.end) // 2) for word in self.words)
        return " ".join(plain(word.text) for word, middle in middles if start <= middle < end)


Transcribe = Callable[[Pcm], str]


@dataclass
class WholeUtterances:
    """A recognizer of one call that hears each utterance at its end, as servers without streams do:
    a `RecognizerStream`, and one of `WholeTurns`."""

    clock: Clock
    transcribe: Transcribe
    latency_ms: int
    whole_turns: bool
    language: str
    _sound: list[Pcm] = field(default_factory=list)
    _due: list[asyncio.Task[None]] = field(default_factory=list)
    _events: asyncio.Queue[Partial | Final | None] = field(default_factory=asyncio.Queue)

    def feed(self, pcm: Pcm) -> None:
        self._sound.append(pcm)

    def finish(self) -> None:
        sound = np.concatenate([np.zeros(0, np.int16), *self._sound])
        self._sound.clear()
        final = Final(self.transcribe(sound), len(sound) // MS, language=self.language)
        self._due.append(asyncio.ensure_future(self._say(final)))

    def cancel(self) -> None:
        self._sound.clear()

    def drop_finished(self) -> int:
        dropped = [task for task in self._due if not task.done()]
        for task in dropped:
            task.cancel()
        self._due.clear()
        return len(dropped)

    async def events(self) -> AsyncIterator[Partial | Final]:
        while (event := await self._events.get()) is not None:
            yield event

    async def close(self) -> None:
        self.drop_finished()
        self._events.put_nowait(None)

    async def _say(self, final: Final) -> None:
        await self.clock.sleep(self.latency_ms)
        self._events.put_nowait(final)


def plain(word: str) -> str:
    """As recognizers without punctuation write it."""
    return word.strip(".,?!;:¿¡").lower()


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

    def statistics(self) -> LegStatistics:
        return LegStatistics()

    async def hang_up(self, reason: str) -> None:
        self.close(reason)


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
        stream = self._recognizer(clock, utterance, options)
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

    def _recognizer(
        self, clock: Clock, utterance: Utterance, options: "Options"
    ) -> RecognizerStream:
        about = options.latency_ms, utterance.language
        if options.transcribe is None:
            return Oracle(clock, utterance.words, lambda: self.line.at, *about)
        latency_ms, language = about
        whole = options.whole_turns
        return WholeUtterances(clock, options.transcribe, latency_ms, whole, language)

    def tick(self, now: float) -> None:
        self.line.tick(now)
        if self.hearing.state is TurnState.ENDING:
            self._silence = replace(self.hearing._facts)
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
    latency_ms: int = 100
    """Of the recognizer's finals."""
    reply_ms: int = 400
    """From a turn's end to the agent's first sound."""
    settings: TurnSettings = field(default_factory=TurnSettings)
    transcribe: Transcribe | None = None
    """Recognizes the audio of an utterance; None: the words are known."""
    whole_turns: bool = True
    """As `[asr] whole_turns`."""
    turn_model: str = SMART_TURN
    """As `[turn] model`, but no object, which would answer in its own time."""
    callers: int | None = None
    """How many callers say the utterances one after another, from whose pauses the server learns;
    None: each is another caller's."""


async def play(said: Sequence[Utterance], options: Options, judged: Path) -> list[Heard]:
    """Plays the utterances, each on a call of its own. `judged` is the file that keeps the answers
    of the end-of-turn model."""
    clock = Clock()
    model = open_turn_model(options.turn_model)
    assert model is None or isinstance(model, SmartTurn | OnnxTurnModel)
    judge = None if model is None else Judge(clock, model, judged)
    vad = VadBatch()
    enhancement = EnhancementSettings()
    detection = TurnDetection(vad, judge, options.settings, enhancement)
    heard: list[Heard] = []
    together = options.callers or CALLS
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
    return heard
