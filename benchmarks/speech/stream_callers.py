"""Callers of `bench stream`, in a child process: each sends one phrase after another over its own
WebSocket, in chunks sent when their last sample was spoken, and records when texts arrive.

The child reads its plan from standard input, one line of JSON, and prints its results as another.
"""

import argparse
import asyncio
import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import ceil
from random import Random
from typing import Any

import aiohttp

from benchmarks.processes.process import input_lines, say
from benchmarks.speech.recordings import VOWELS_S, babbled, phrases, recorded
from benchmarks.speech.stream_result import First, Result, Update
from offhook.media.pcm import RATE_IN
from offhook.pipeline.speech.remote.asr_protocol import PATH, Command, command_text
from offhook.web.http.loop_io import run

GOLDEN_RATIO = 0.618
PAUSE_S = (0.3, 0.9)
"""Range in s of the pause between two phrases, during which nothing is sent."""
READY_S = 60.0
FINALS_S = 30.0
"""Time limit in s for outstanding finals at the end."""
STAGES = ("queued", "gpu", "routed", "sent")


class Failed(Exception):
    """Raised when a stream fails; the message says why."""


@dataclass(frozen=True)
class Plan:
    """The plan of one child's callers; times in s of time.monotonic()."""

    url: str
    api_key: str
    first: int
    """Number of the first caller; the others are consecutive."""
    callers: int
    update_ms: int
    chunk_ms: int
    at: float
    """Time of the first audio."""
    stagger_s: float
    """Callers start within this time in s, each at its own moment; phrases started meanwhile do not
    count."""
    until: float
    """No phrase starts after this time."""


@dataclass
class UtteranceTimes:
    """One utterance in progress."""

    begun: float
    """When its first sample was spoken."""
    counts: bool
    sent: list[float] = field(default_factory=list)
    """When each chunk was sent."""
    flushed: float = 0.0
    covered_ms: int = 0
    """Audio covered by its partials, in ms."""
    updates: int = 0
    has_text: bool = False


def stages_of(event: Mapping[str, Any]) -> dict[str, float]:
    """Returns ms per stage after the audio was complete; empty if the server does not report it."""
    told = event.get("timing", {})
    return {name: told.get(f"{name}_ms", 0.0) for name in STAGES}


class LatencyRecorder:
    """Records the latencies of one caller's utterances; times are arguments."""

    def __init__(self, plan: Plan, result: Result) -> None:
        self._update_ms = plan.update_ms
        self._chunk_samples = plan.chunk_ms * RATE_IN // 1000
        self._result = result
        self._utterances: dict[int, UtteranceTimes] = {}
        """Utterances without a final, by number."""
        self._count = 0

    @property
    def waiting(self) -> int:
        return len(self._utterances)

    def begin(self, begun: float, counts: bool) -> UtteranceTimes:
        utterance = self._utterances[self._count] = UtteranceTimes(begun, counts)
        self._count += 1
        return utterance

    def record(self, event: Mapping[str, Any], now: float) -> None:
        """Handles a partial or final. Raises Failed for an unknown utterance."""
        utterance = self._utterances.get(event["utterance"])
        if utterance is None:
            raise Failed(f"a {event['type']} of utterance {event['utterance']}, which there is not")
        if event["type"] == "partial":
            utterance.updates += 1
            self._update(utterance, event, now)
        if not utterance.has_text and event["text"].strip():
            utterance.has_text = True
            if utterance.counts:
                self._result.firsts.append(self._first(utterance, event, now))
        if event["type"] == "final" and not event.get("continues"):
            del self._utterances[event["utterance"]]
            if utterance.counts:
                self._result.finals.append(1000 * (now - utterance.flushed))
                self._result.without_text += not utterance.has_text

    def _sent_at(self, utterance: UtteranceTimes, audio_ms: float) -> float:
        """Returns when its audio up to this position was sent."""
        piece = ceil(audio_ms * RATE_IN / 1000 / self._chunk_samples) - 1
        return utterance.sent[min(max(0, piece), len(utterance.sent) - 1)]

    def _first(self, utterance: UtteranceTimes, event: Mapping[str, Any], now: float) -> First:
        final = event["type"] == "final"
        sent = utterance.flushed if final else self._sent_at(utterance, event["audio_ms"])
        stages = stages_of(event)
        inside = sum(stages.values()) / 1000
        # A text that waited contains newer audio than it needed.
        heard = min(sent, now - inside)
        return First(
            total=1000 * (now - utterance.begun),
            audio=1000 * (heard - utterance.begun),
            network=1000 * (now - inside - heard),
            **stages,
            update=0 if final else utterance.updates,
            sound=event["audio_ms"],
        )

    def _update(self, utterance: UtteranceTimes, event: Mapping[str, Any], now: float) -> None:
        audio_ms = event["audio_ms"]
        before, utterance.covered_ms = utterance.covered_ms, max(audio_ms, utterance.covered_ms)
        if not utterance.counts or audio_ms <= before:
            return
        latency = 1000 * (now - self._sent_at(utterance, audio_ms))
        self._result.updates.append(Update(latency, **stages_of(event)))
        # One latency per update of audio: a text may cover several, and the older ones are later.
        count = max(1, round((audio_ms - before) / self._update_ms)) if before else 1
        for back in range(count):
            sent = self._sent_at(utterance, audio_ms - back * self._update_ms)
            self._result.late += 1000 * (now - sent) > self._update_ms
        self._result.due += count


class Caller:
    def __init__(self, number: int, lines: Sequence[bytes], plan: Plan, result: Result) -> None:
        self._number = number
        self._lines = lines
        self._plan = plan
        self._result = result
        self._notes = LatencyRecorder(plan, result)
        self._random = Random(number)
        self._said_all = False

    async def run(self, http: aiohttp.ClientSession) -> None:
        """Runs until everything is said and all finals have arrived."""
        try:
            await self._run(http)
        except aiohttp.WSServerHandshakeError as error:
            self._result.fail(f"{error.status}: {error.message}")
        except (aiohttp.ClientError, OSError, Failed) as error:
            self._result.fail(str(error) or type(error).__name__)

    async def _run(self, http: aiohttp.ClientSession) -> None:
        query = f"?rate={RATE_IN}&timing=true&update_ms={self._plan.update_ms}"
        async with http.ws_connect(PATH + query, compress=0) as socket:
            await self._ready(socket)
            hearing = asyncio.create_task(self._receive(socket))
            try:
                await self._talk(socket, hearing)
                async with asyncio.timeout(FINALS_S):
                    await hearing
            except TimeoutError as error:
                words = f"{self._notes.waiting} finals missing after {FINALS_S:g} s"
                raise Failed(words) from error
            finally:
                hearing.cancel()
                await asyncio.gather(hearing, return_exceptions=True)

    async def _ready(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        try:
            event = _event(await socket.receive(READY_S), socket)
        except TimeoutError as error:
            raise Failed(f"not ready after {READY_S:g} s") from error
        if event["type"] != "ready":
            raise Failed(f"{event['type']} came first")

    async def _talk(
        self, socket: aiohttp.ClientWebSocketResponse, hearing: "asyncio.Task[None]"
    ) -> None:
        plan, late = self._plan, self._result.client_late
        size = plan.chunk_ms * RATE_IN // 1000 * 2
        due, line = plan.at + self._number * GOLDEN_RATIO % 1 * plan.stagger_s, self._number
        flush, monotonic = command_text(Command.FLUSH), time.monotonic
        while due < plan.until and not hearing.done():
            sound = self._lines[line % len(self._lines)]
            line += 1
            utterance = self._notes.begin(due, due >= plan.at + plan.stagger_s)
            for at in range(0, len(sound), size):
                piece = sound[at : at + size]
                due += len(piece) / 2 / RATE_IN  # sent when its last sample was spoken
                await asyncio.sleep(max(0.0, due - monotonic()))
                now = monotonic()
                utterance.sent.append(now)
                await socket.send_bytes(piece)
                if utterance.counts:
                    late.append(1000 * max(0.0, now - due))
            utterance.flushed = monotonic()
            await socket.send_str(flush)
            due += self._random.uniform(*PAUSE_S)
        self._said_all = True
        if not self._notes.waiting:
            await socket.send_str(command_text(Command.CLOSE))

    async def _receive(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        """Receives until the last final. Raises Failed."""
        while not (self._said_all and not self._notes.waiting):
            message = await socket.receive()
            now = time.monotonic()
            if message.type is not aiohttp.WSMsgType.TEXT and self._said_all:
                return
            self._notes.record(_event(message, socket), now)


def _event(message: aiohttp.WSMessage, socket: aiohttp.ClientWebSocketResponse) -> dict[str, Any]:
    """Parses a message. Raises Failed."""
    if message.type is not aiohttp.WSMsgType.TEXT:
        raise Failed(f"the socket closed ({socket.close_code})")
    event: dict[str, Any] = json.loads(message.data)
    if event["type"] == "error":
        raise Failed(f"{event['code']}: {event['message']}")
    return event


def spoken_phrases() -> list[bytes]:
    """Returns the phrases that callers say."""
    sounds = recorded() or [babbled(seconds) for seconds in VOWELS_S]
    return [pcm.astype("<i2").tobytes() for pcm in phrases(sounds)]


async def call(plan: Plan, lines: Sequence[bytes]) -> Result:
    result = Result()
    headers = {"Authorization": f"Bearer {plan.api_key}"} if plan.api_key else {}
    connector = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(plan.url, headers=headers, connector=connector) as http:
        numbers = range(plan.first, plan.first + plan.callers)
        callers = [Caller(number, lines, plan, result) for number in numbers]
        await asyncio.gather(*(caller.run(http) for caller in callers))
    return result


async def _child() -> None:
    lines = spoken_phrases()
    orders = await input_lines()
    say({"phrases": len(lines), "recorded": bool(recorded())})
    if order := await orders.readline():
        result = await call(Plan(**json.loads(order)), lines)
        say(result.as_json())
        await orders.read()


def main() -> None:
    argparse.ArgumentParser(description=__doc__).parse_args()
    run(_child())


if __name__ == "__main__":
    main()
