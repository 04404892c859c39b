"""`offhook bench asr_call`: from the caller's last sound to the final text, in real calls.

Callers in a process of their own speak over WebRTC on loopback. Here is a server's way of sound, in
one process: ICE, SRTP, jitter buffer, Opus, voice detector, end-of-turn model, turn table, and the
Qwen3-ASR engine at the real dimensions, in its own thread beside the event loop. Its weights are
random: how many tokens it says, and how many of a draft hold, is simulated (engine/simulated.py);
no agent answers.

    asr_final     from the caller's last packet with sound to the final text of the turn
    turn_decided  from the same to the turn going to the agent
    parts         of asr_final: the sound's wait in the jitter buffer, the silence that the turn
                  table waits for before it asks for the final words (the voice detector's own delay
                  and the network included), and the recogniser from that to the text
    latency       of the turn as the server itself tells it: spans by the names of its stamps,
                  counted from packet_in
    partial       of every 20 ms of sound: from its packet to the first partial that covers it
"""

import asyncio
import json
import sys
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from time import monotonic
from typing import Any

import torch
from loguru import logger

from benchmarks.command import command
from benchmarks.processes.process import Child, LoopLag, child, say, thread_cpu_s
from benchmarks.recognition.asr_passes import MODELS
from benchmarks.table import percentiles
from offhook.media.clock_io import PacketClock
from offhook.media.pcm import PACKET_MS, RATE_IN, Pcm
from offhook.pipeline.conversation.turns.user_turn_io import (
    TurnDetection,
    UserTurnController,
    UserTurnListener,
)
from offhook.pipeline.conversation.turns.utterance_feed import PRE_ROLL_MS
from offhook.pipeline.engines.qwen3_asr.engine import AsrEngine
from offhook.pipeline.engines.qwen3_asr.loading_io import (
    COST_STREAMS,
    Loading,
    measured_cost,
)
from offhook.pipeline.engines.qwen3_asr.model.checkpoint import random_model
from offhook.pipeline.engines.qwen3_asr.model.model import AsrConfig
from offhook.pipeline.engines.qwen3_asr.recognition import Recognition
from offhook.pipeline.engines.qwen3_asr.simulated import SimulatedRunner, Simulation, WordTokenizer
from offhook.pipeline.engines.qwen3_asr.word_times_io import Command
from offhook.pipeline.engines.shared.asr_models import AsrModels, Device
from offhook.pipeline.engines.shared.capacity import PAGES_PER_STREAM
from offhook.pipeline.engines.shared.recognition.streams_io import EngineRecognizer
from offhook.pipeline.speech.recognizer import Final, Partial, RecognizerStream
from offhook.pipeline.speech.vad.smart_turn_io import SmartTurn
from offhook.pipeline.speech.vad.vad_io import VadBatch
from offhook.signaling.peer_io import PeerLeg, use_addresses
from offhook.web.http.loop_io import freeze_loaded_objects, run

Tell = Callable[[int, Partial | Final], None]

START_S = 60
"""The longest the callers may take to come up and connect."""
EARLY_S = 0.2
"""The voice detector may find a line over so long before its last audible sound."""
LAST_S = 1.2
"""Lines that end so near to the end of a run may have no answer yet."""


class RandomWeights(Loading):
    """A model of the real size and so many streams, from no files."""

    def __init__(self, config: AsrConfig, streams: int, device: Device) -> None:
        super().__init__(AsrModels("random weights", device), lambda fraction, doing: None)
        self._config, self._streams = config, max(streams, COST_STREAMS)

    def load(self, tell: Tell, submit: Callable[[Command], None]) -> Recognition:
        torch.set_num_threads(1)
        weights, words = random_model(self._config, self.device, self._dtype), WordTokenizer()
        pages = self._streams * PAGES_PER_STREAM + 1
        runner = SimulatedRunner(weights, self._streams, pages, words, Simulation())
        runner.warm_up()
        cost, most = measured_cost(runner), (self._streams, 0, runner.max_batch, runner.max_tokens)
        return Recognition(tell, lambda told: AsrEngine(runner, words, pages, cost, *most, told))


class SimulatedRecognizer(EngineRecognizer):
    """Qwen3-ASR with random weights, as it serves calls in all else."""

    def __init__(self, config: AsrConfig, streams: int, device: Device) -> None:
        super().__init__("Qwen3-ASR (random)", RandomWeights(config, streams, device).load)


@dataclass(frozen=True)
class Asked:
    """The final words were asked for."""

    at: float
    buffer_ms: float


class TimedStream:
    """A recogniser's stream of one leg, with the times of what passes."""

    def __init__(self, stream: RecognizerStream, leg: PeerLeg) -> None:
        self.final = Asked(0.0, 0.0), 0.0
        """The last one: when it was asked for and when it came."""
        self.partial_ms: list[float] = []
        self._stream, self._leg = stream, leg
        self._asked: deque[Asked] = deque()
        self._came: list[float] = []
        """When the packet of each 20 ms of the utterance came, s."""
        self._told = PRE_ROLL_MS // PACKET_MS  # what is before speech is no word

    def feed(self, pcm: Pcm) -> None:
        newest = monotonic() - self._leg.statistics().buffer_ms / 1000
        ticks = len(pcm) * 1000 // RATE_IN // PACKET_MS
        self._came += [newest - i * PACKET_MS / 1000 for i in reversed(range(ticks))]
        self._stream.feed(pcm)

    def finish(self) -> None:
        self._asked.append(Asked(monotonic(), self._leg.statistics().buffer_ms))
        self._stream.finish()
        self._forget()

    def cancel(self) -> None:
        self._stream.cancel()
        self._forget()

    def _forget(self) -> None:
        self._came, self._told = [], PRE_ROLL_MS // PACKET_MS

    async def events(self) -> AsyncIterator[Partial | Final]:
        async for event in self._stream.events():
            now = monotonic()
            if isinstance(event, Final):
                self.final = self._asked.popleft(), now
            elif not self._asked:  # of the utterance being fed
                covered = self._came[self._told : event.audio_ms // PACKET_MS]
                self.partial_ms += [1000 * (now - came) for came in covered]
                self._told += len(covered)
            yield event

    async def close(self) -> None:
        await self._stream.close()


@dataclass(frozen=True)
class Turn:
    """A turn that went to the agent."""

    at: float
    asked: Asked
    final_at: float
    spans: dict[str, int]


class Call(UserTurnListener):
    """The server's side of one call."""

    def __init__(
        self, leg: PeerLeg, turn_detection: TurnDetection, stream: RecognizerStream
    ) -> None:
        self.leg = leg
        self.stream = TimedStream(stream, leg)
        self.turns: list[Turn] = []
        self._hearing = UserTurnController(
            leg, turn_detection, self.stream, lambda event: None, lambda occasion: None
        )
        self._hearing.listener = self

    def on_commit(self, text: str) -> None:
        now = monotonic()
        self._hearing.reply.busy = False  # nobody answers
        watch = self._hearing.watch
        watch.stamp("first_packet", now)
        spans = dict(watch.latency(0).spans)
        del spans["first_packet"]
        self.turns.append(Turn(now, *self.stream.final, spans))

    async def close(self) -> None:
        await self._hearing.close()
        await self.leg.hang_up("done")


class Server:
    """What all calls share."""

    def __init__(self, recognizer: EngineRecognizer) -> None:
        self._recognizer = recognizer
        self._turn_detection = TurnDetection(VadBatch(), SmartTurn())
        self.clock = PacketClock()
        self.clock.after = self._turn_detection.vad.run

    @asynccontextmanager
    async def calls(self, callers: Child, count: int) -> AsyncIterator[list[Call]]:
        """The callers' offers answered."""
        calls: list[Call] = []
        try:
            for number in range(count):
                offer = callers.hello if not number else await callers.line(START_S)
                leg = PeerLeg(f"call {number}")
                callers.send(json.dumps({"answer": await leg.answer(offer["offer"])}))
                calls.append(Call(leg, self._turn_detection, await self._recognizer.open()))
                self.clock.add(leg)
            yield calls
        finally:
            for call in calls:
                self.clock.remove(call.leg)
            await asyncio.gather(*(call.close() for call in calls))

    async def close(self) -> None:
        await self._turn_detection.close()


@dataclass
class Result:
    """ms, of the lines of all callers."""

    lines: int = 0
    answered: int = 0
    """Lines at whose end a turn went to the agent."""
    split: int = 0
    """Turns decided inside a line."""
    asr_final: list[float] = field(default_factory=list)
    turn_decided: list[float] = field(default_factory=list)
    parts: dict[str, list[float]] = field(default_factory=dict)
    latency: dict[str, list[float]] = field(default_factory=dict)

    def add(self, said: Sequence[Sequence[float]], turns: Sequence[Turn], until: float) -> None:
        """One call: when its lines began and ended, and the turns that were heard; lines that
        end after `until` do not count."""
        begins = [line[0] for line in said[1:]] + [float("inf")]
        for line, following in zip(said, begins, strict=True):
            end = line[-1]
            if len(line) < 2 or end > until:
                continue
            self.lines += 1
            self.split += sum(line[0] < t.at < end - EARLY_S for t in turns)
            heard = [t for t in turns if end - EARLY_S < t.at < following]
            if heard:
                self.answered += 1
                self._add_turn(end, heard[-1])

    def _add_turn(self, end: float, turn: Turn) -> None:
        self.asr_final.append(1000 * (turn.final_at - end))
        self.turn_decided.append(1000 * (turn.at - end))
        asked_ms = 1000 * (turn.asked.at - end)
        parts = {
            "jitter_buffer": turn.asked.buffer_ms,
            "silence": asked_ms - turn.asked.buffer_ms,
            "recognizer": 1000 * (turn.final_at - turn.asked.at),
        }
        for name, ms in parts.items():
            self.parts.setdefault(name, []).append(ms)
        for name, ms in turn.spans.items():
            self.latency.setdefault(name, []).append(ms)


async def measure(server: Server, count: int, seconds: float) -> dict[str, Any]:
    """So many calls for so long."""
    options = ("--calls", str(count), "--seconds", str(seconds))
    async with (
        child("benchmarks.calls.asr_callers", *options) as callers,
        server.calls(callers, count) as calls,
    ):
        sound = await callers.line(START_S)
        lag = LoopLag()
        watching = asyncio.create_task(lag.watch())
        cpu, began = thread_cpu_s(), time.perf_counter()
        heard = await callers.line(START_S + seconds)
        watching.cancel()
        wall, ended = time.perf_counter() - began, monotonic()
        spent = {name: s - cpu.get(name, 0.0) for name, s in thread_cpu_s().items()}
        result = Result()
        for call, said in zip(calls, heard["said"], strict=True):
            result.add(said, call.turns, ended - LAST_S)
        return {
            "calls": count,
            "sound": "recorded speech" if sound["recorded"] else "synthetic vowels",
            "lines_s": sound["lines_s"],
            "lines": result.lines,
            "answered": result.answered,
            "split": result.split,
            "asr_final_ms": percentiles(result.asr_final),
            "turn_decided_ms": percentiles(result.turn_decided),
            "parts_ms": {name: percentiles(ms) for name, ms in result.parts.items()},
            "latency_ms": {name: percentiles(ms) for name, ms in result.latency.items()},
            "partial_ms": percentiles([ms for call in calls for ms in call.stream.partial_ms]),
            "loop_late_ms": lag.read_ms(),
            "tick_late_ms": {f"p{q}": round(server.clock.lateness_ms(q), 2) for q in (50, 99)},
            "callers_tick_late_ms": heard["late_ms"],
            "concealed_ms": sum(c.leg.statistics().concealed_ms for c in calls),
            "cpu_share": {name: round(s / wall, 3) for name, s in spent.items() if s > 0.01 * wall},
        }


async def bench(
    config: AsrConfig, model: str, counts: Sequence[int], seconds: float, device: Device = "auto"
) -> list[dict[str, Any]]:
    """One row for each number of calls."""
    use_addresses(["127.0.0.1"])
    recognizer = SimulatedRecognizer(config, max(counts), device)
    began = time.perf_counter()
    await recognizer.start()
    server = Server(recognizer)
    freeze_loaded_objects()
    path = "WebRTC on loopback: ICE, DTLS, SRTP, RTP, jitter buffer, Opus"
    weights = "random, so texts are simulated; recogniser in a thread of the server's process"
    took = round(time.perf_counter() - began, 1)
    say({"what": "ready", "model": model, "path": path, "weights": weights, "start_s": took})
    rows = []
    try:
        for count in counts:
            row = {"what": "calls", "model": model, **await measure(server, count, seconds)}
            say(row)
            rows.append(row)
    finally:
        await server.close()
        await recognizer.close()
    return rows


def main(argv: Sequence[str] | None = None) -> int:
    parser = command("asr_call", __doc__)
    parser.add_argument("--model", choices=tuple(MODELS), default="0.6B")
    parser.add_argument("--calls", default="1,8,32")
    parser.add_argument("--seconds", type=float, default=20.0)
    arguments = parser.parse_args(argv)
    logger.remove()
    logger.add(sys.stderr, level="WARNING")
    counts = [int(n) for n in arguments.calls.split(",")]
    run(bench(MODELS[arguments.model], arguments.model, counts, arguments.seconds))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
