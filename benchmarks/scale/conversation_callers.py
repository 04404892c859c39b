"""Far edges of `conversations`, in a child process: so many conversations with two speech workers,
through the clients that an edge uses, without packets, turn detection or a language model.

On standard input the first line is an `EdgePlan`. Then a line "measure" starts what is counted
anew, a line "report" asks for it, and a line with a number makes it so many conversations. All
conversations end when the input closes.
"""

import argparse
import asyncio
import json
import time
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from random import Random
from typing import Any

import numpy as np
from loguru import logger

from benchmarks.processes.process import input_lines, say
from benchmarks.speech.recordings import VOWELS_S, babbled, recorded
from benchmarks.speech.stream_callers import LatencyRecorder, Plan
from benchmarks.speech.stream_result import Result
from benchmarks.speech.texts import SENTENCES
from benchmarks.voices.listening import Listener, Tally
from offhook.media.pcm import RATE_IN, Pcm
from offhook.pipeline.engines.shared.synthesis.messages import FRAME_SAMPLES
from offhook.pipeline.speech.errors import EngineError
from offhook.pipeline.speech.recognizer import Final, Recognizer, RecognizerStream, StreamOptions
from offhook.pipeline.speech.remote.recognizer_io import RemoteRecognizer
from offhook.pipeline.speech.remote.synthesizer_io import RemoteSynthesizer
from offhook.pipeline.speech.synthesizer import Synthesizer, SynthesizerStream, VoiceOptions
from offhook.web.http.loop_io import freeze_loaded_objects, run

UTTERANCE_S = (2.0, 6.0)
DECIDED_S = 1.0
"""From the end of an utterance to the first token of the reply: silence that ends the turn, and the
language model. Words that take longer delay the reply."""
PAUSE_S = 0.8
"""Between a reply and the next utterance."""
TURN_S = 10.0
"""About as long as a turn with both; conversations begin spread over it."""
TOKEN_S = 0.02
TOKEN_CHARS = 4
BUFFER_S = 0.08
"""Of a caller's phone, in front of what it plays."""
INTERRUPTED = 0.2
"""Share of the replies that the caller interrupts,"""
CUT_S = (0.5, 2.0)
"""so long after their first sound: the shortest lasts two seconds."""
RETRY_S = 1.0


@dataclass(frozen=True)
class EdgePlan(Plan):
    """`url` is the recognizers', separated by commas, `callers` the conversations at the beginning;
    they begin at `at`, spread over `stagger_s`, and nobody begins an utterance after `until`."""

    voice_url: str
    """The voices'."""


@dataclass
class Measured:
    """What was counted since the last "measure"; times in ms."""

    results: Result = field(default_factory=Result)
    voices: Tally = field(default_factory=Tally)
    finals: list[float] = field(default_factory=list)
    """From the end of an utterance to its final words."""
    firsts: list[float] = field(default_factory=list)
    """From the first token of a reply to its first sound."""
    shares: list[float] = field(default_factory=list)
    """Both of one turn."""
    interruptions: int = 0
    uttered_s: float = 0.0
    failures: Counter[str] = field(default_factory=Counter)

    def as_json(self) -> dict[str, Any]:
        return {
            "finals": self.finals,
            "firsts": self.firsts,
            "shares": self.shares,
            "interruptions": self.interruptions,
            "uttered_s": self.uttered_s,
            "failures": self.failures,
            "updates": [update.total for update in self.results.updates],
            "updates_due": self.results.due,
            "updates_late": self.results.late,
            "without_text": self.results.without_text,
            "caller_late": self.results.client_late,
            "frames": self.voices.frames,
            "frames_late": self.voices.late_frames,
            "gaps": self.voices.gaps,
        }


async def sleep_until(when: float) -> None:
    await asyncio.sleep(max(0.0, when - time.monotonic()))


def speech_around(seconds: float = 30.0) -> Pcm:
    """Returns speech to cut utterances from."""
    sounds = recorded() or [babbled(each) for each in VOWELS_S]
    return np.resize(np.concatenate(sounds), round(seconds * RATE_IN))


def tokens(text: str) -> list[str]:
    return [text[at : at + TOKEN_CHARS] for at in range(0, len(text), TOKEN_CHARS)]


class Edge:
    """The engines of its conversations, and what is counted of them."""

    def __init__(
        self, plan: EdgePlan, recognizer: Recognizer, synthesizer: Synthesizer, speech: Pcm
    ) -> None:
        self.plan = plan
        self.recognizer = recognizer
        self.synthesizer = synthesizer
        self.speech = speech
        self.measured = Measured()


class Conversation:
    """One caller and an agent: utterance, reply, and again."""

    def __init__(self, number: int, edge: Edge) -> None:
        self._random = Random(number)
        self._edge = edge
        self._plan = edge.plan
        self._recorder = LatencyRecorder(edge.plan, Result())
        self._final: asyncio.Future[float]
        """When the words of the utterance were final."""

    async def run(self, begin_at: float) -> None:
        """Talks until no utterance may begin any more, whatever fails meanwhile."""
        options = StreamOptions(update_ms=self._plan.update_ms)
        stream = await self._edge.recognizer.open(options)
        hearing = asyncio.create_task(self._hear(stream))
        try:
            due = begin_at
            while due < self._plan.until:
                await sleep_until(due)
                due = await self._turn(stream)
        finally:
            hearing.cancel()
            await asyncio.gather(hearing, return_exceptions=True)
            await stream.close()

    async def _turn(self, stream: RecognizerStream) -> float:
        """Returns when the next utterance begins."""
        ended = await self._utter(stream)
        final_ms = 1000 * (await self._final - ended)
        self._edge.measured.finals.append(final_ms)
        await sleep_until(ended + DECIDED_S)
        reply = AgentReply(self._edge, self._random)
        try:
            await reply.listen()
        except EngineError as error:
            self._edge.measured.failures[str(error)] += 1
            return time.monotonic() + RETRY_S
        if reply.first_ms is not None:
            self._edge.measured.shares.append(final_ms + reply.first_ms)
        return reply.over_at if reply.interrupted else reply.over_at + PAUSE_S

    # --- the caller ---

    async def _utter(self, stream: RecognizerStream) -> float:
        """Says something in real time, and returns when it was over."""
        measured, monotonic = self._edge.measured, time.monotonic
        self._final = asyncio.get_running_loop().create_future()
        self._recorder = LatencyRecorder(self._plan, measured.results)
        due = monotonic()
        utterance = self._recorder.begin(due, counts=True)
        size = self._plan.chunk_ms * RATE_IN // 1000
        sound = self._utterance()
        for at in range(0, len(sound), size):
            due += size / RATE_IN  # sent when its last sample was spoken
            await sleep_until(due)
            now = monotonic()
            utterance.sent.append(now)
            measured.results.client_late.append(1000 * (now - due))
            stream.feed(sound[at : at + size])
        self._edge.measured.uttered_s += len(sound) / RATE_IN
        utterance.flushed = monotonic()
        stream.finish()
        return utterance.flushed

    def _utterance(self) -> Pcm:
        size = self._plan.chunk_ms * RATE_IN // 1000
        count = round(self._random.uniform(*UTTERANCE_S) * RATE_IN) // size * size
        begin = self._random.randrange(len(self._edge.speech) - count)
        return self._edge.speech[begin : begin + count]

    async def _hear(self, stream: RecognizerStream) -> None:
        async for event in stream.events():
            now = time.monotonic()
            is_final = isinstance(event, Final)
            told = {"type": "final" if is_final else "partial", "utterance": 0}
            told |= {"text": event.text, "audio_ms": event.audio_ms}
            self._recorder.record(told, now)
            if isinstance(event, Final):
                if event.lost:
                    self._edge.measured.failures["an utterance was given up"] += 1
                self._final.set_result(now)


class AgentReply:
    """One reply, written token by token and played as it comes."""

    def __init__(self, edge: Edge, random: Random) -> None:
        self.interrupted = False
        self.first_ms: float | None = None
        self.over_at = 0.0
        """When its last sample was played."""
        self._edge = edge
        self._listener = Listener(edge.measured.voices, BUFFER_S)
        self._text = random.choice(SENTENCES)
        self._cut_s = random.uniform(*CUT_S) if random.random() < INTERRUPTED else None

    async def listen(self) -> None:
        """Hears it to its end. Raises EngineError."""
        speech = self._edge.synthesizer.open(VoiceOptions(cache=False))
        began = time.monotonic()
        writing = asyncio.create_task(self._write(speech, began))
        cutting: asyncio.TimerHandle | None = None
        try:
            async for piece in speech:
                if not len(piece.pcm):
                    continue
                now = time.monotonic()
                self._listener.hear(len(piece.pcm) / FRAME_SAMPLES, now)
                if self.first_ms is None:
                    self.first_ms = 1000 * (now - began)
                    self._edge.measured.firsts.append(self.first_ms)
                    if self._cut_s is not None:
                        loop = asyncio.get_running_loop()
                        cutting = loop.call_later(self._cut_s, self._cut, speech)
            if not self.interrupted:
                await sleep_until(self._listener.plays_until)
            self.over_at = time.monotonic()
        finally:
            if cutting is not None:
                cutting.cancel()
            writing.cancel()
            speech.cancel()
            await asyncio.gather(writing, return_exceptions=True)

    async def _write(self, speech: SynthesizerStream, began: float) -> None:
        for number, token in enumerate(tokens(self._text)):
            await sleep_until(began + number * TOKEN_S)
            speech.write(token)
        speech.end()

    def _cut(self, speech: SynthesizerStream) -> None:
        if time.monotonic() < self._listener.plays_until:
            self.interrupted = True
            self._edge.measured.interruptions += 1
            speech.cancel()


class Conversations:
    """Those of one child, more of them when asked."""

    def __init__(self, edge: Edge) -> None:
        self._edge = edge
        self._running: list[asyncio.Task[None]] = []

    def grow(self, count: int, begin: float) -> None:
        """Adds conversations until there are `count`."""
        plan = self._edge.plan
        for number in range(plan.first + len(self._running), plan.first + count):
            at = begin + Random(-number).random() * plan.stagger_s
            one = Conversation(number, self._edge)
            self._running.append(asyncio.create_task(one.run(at), name="conversation"))

    async def close(self) -> None:
        for task in self._running:
            task.cancel()
        for end in await asyncio.gather(*self._running, return_exceptions=True):
            if isinstance(end, Exception):
                logger.error("a conversation ended early: {!r}", end)


@asynccontextmanager
async def opened(plan: EdgePlan) -> AsyncIterator[Edge]:
    """Raises EngineError if a worker does not answer."""
    recognizer = RemoteRecognizer(plan.url.split(","))
    synthesizer = RemoteSynthesizer(plan.voice_url.split(","))
    try:
        await asyncio.gather(recognizer.start(), synthesizer.start())
        yield Edge(plan, recognizer, synthesizer, speech_around())
    finally:
        await asyncio.gather(recognizer.close(), synthesizer.close())


async def _obey(edge: Edge, orders: asyncio.StreamReader) -> None:
    conversations = Conversations(edge)
    conversations.grow(edge.plan.callers, edge.plan.at)
    try:
        while order := (await orders.readline()).decode().strip():
            match order:
                case "measure":
                    edge.measured = Measured()
                case "report":
                    say(edge.measured.as_json())
                case _:
                    conversations.grow(int(order), time.monotonic())
    finally:
        await conversations.close()


async def _child() -> None:
    orders = await input_lines()
    say({"recorded": bool(recorded())})
    if line := await orders.readline():
        async with opened(EdgePlan(**json.loads(line))) as edge:
            freeze_loaded_objects()
            await _obey(edge, orders)


def main(argv: Sequence[str] | None = None) -> None:
    argparse.ArgumentParser(description=__doc__).parse_args(argv)
    run(_child())


if __name__ == "__main__":
    main()
