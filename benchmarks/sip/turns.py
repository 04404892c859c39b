"""A spoken conversation by SIP beside the same by WebRTC: `offhook bench sip turns`.

One real server, the same sentences in the same voice, one way after the other. What SIP does not
tell the caller is the server's log's to say, and for both alike: what it understood, how long its
steps took, which words it keeps of a reply that was cut short.
"""

import asyncio
import json
import random
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from time import monotonic
from typing import Any

import numpy as np

from benchmarks.calls.call_turns import ASK, EARLY_TICKS, server
from benchmarks.processes.own_server import free_port
from benchmarks.speech.lines import CONVERSATION, voiced
from benchmarks.speech.transcript import WordEnd, recognise, words, words_beyond
from benchmarks.table import percentiles
from offhook.media.pcm import PACKET_MS, Pcm, dbfs
from offhook.pipeline.engines.embedded.pocketsphinx_io import PocketSphinxRecognizer
from offhook.signaling.peer_io import use_addresses
from offhook.web.app.cli.caller_io import (
    AUDIBLE_DBFS,
    GREETING_S,
    REPLY_S,
    ScriptedCall,
    ScriptLine,
)

CODECS = ("pcmu",)
"""What most phones speak."""
TRUNKS = [{"name": "loopback", "addresses": ["127.0.0.0/8"]}]
INTO_REPLY_S = (1.5, 3.0)
"""How far into a reply the caller breaks in."""
LOG_S = 3.0
"""The server's word on an interruption comes within this, or it was none."""


class ServerLog:
    """What a server writes, one JSON object a line, as it is written."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._read = 0

    def take(self) -> list[dict[str, Any]]:
        """The events of calls since the last time."""
        with self._path.open("rb") as file:
            file.seek(self._read)
            whole, _, _ = file.read().rpartition(b"\n")
        self._read += len(whole) + 1 if whole else 0
        lines = [json.loads(line) for line in whole.splitlines() if line.startswith(b"{")]
        return [line for line in lines if "event" in line]


@dataclass
class Turn:
    said: str
    heard: str
    """As the server understood it."""
    response_ms: int | None
    """At the caller: from its last packet with sound to the agent's first."""
    total_ms: int | None
    """The server's own account of the same, and below its parts."""
    spans: dict[str, int]


@dataclass
class BargeIn:
    stop_ms: float | None = None
    """From the caller's first sound to the agent's last."""
    decision_ms: float | None = None
    """...to the server's word that it was interrupted."""
    context: str = ""
    """The words that the server takes for heard."""
    heard: str = ""
    """Those found in the sound that came, by a recogniser."""
    words_off: int | None = None
    """Words in the context less those in the sound; the one cut short may count or not."""


@dataclass
class Way:
    """One way to call, and what came of it."""

    name: str
    url: str
    turns: list[Turn] = field(default_factory=list)
    barge_ins: list[BargeIn] = field(default_factory=list)
    lines: list[dict[str, Any]] = field(default_factory=list)
    """Statistics of each call's line at the caller's end."""

    def of_lines(self) -> str:
        """What to say of the lines."""
        mos = [line["mos"] for line in self.lines if line["mos"]]
        return f"MOS {min(mos):.2f}" if mos else "MOS -"

    def of_words(self, off: Sequence[int]) -> str:
        """What was found of the words in the context: by a recogniser, they are so many off."""
        return f"heard {off}"


class Conversation(ScriptedCall):
    """The script, with the server's account of each turn out of its log."""

    def __init__(self, way: Way, lines: list[ScriptLine], log: ServerLog) -> None:
        super().__init__(way.url, lines, codecs=CODECS)
        self._way, self._log = way, log

    async def _listen(self, cut: float | None) -> None:
        await super()._listen(cut)
        assert self._turn is not None
        said = Turn(self._turn.said, "", self._turn.response_ms, None, {})
        self._way.turns.append(said)
        for event in self._log.take():
            if event["event"] == "caller_turn":
                said.heard = f"{said.heard} {event['text']}".strip()
            elif event["event"] == "turn_latency":
                said.total_ms, said.spans = event["total_ms"], dict(event["spans"])


class BargeIns(ScriptedCall):
    """A long reply, broken into by the question it answers, again and again. Told by ear and by
    the server's log alone, whichever the way."""

    def __init__(
        self,
        way: Way,
        question: Pcm,
        times: int,
        log: ServerLog,
        recognizer: PocketSphinxRecognizer,
    ) -> None:
        super().__init__(way.url, [], codecs=CODECS)
        self._way, self._question, self._times = way, question, times
        self._log, self._recognizer = log, recognizer
        self._random = random.Random(1)
        if self._sip is None:
            self.leg.listen(self._by_ear.tick)

    def on_message(self, text: str) -> None:
        """Not listened to: a phone has no such thing."""

    async def _converse(self) -> None:
        if await self._within(self._agent_speaks, GREETING_S):
            await self._within(self._agent_silent, REPLY_S)
        await self._ask()
        for _ in range(self._times):
            if self.leg.closed is None:
                await self._break_in()

    async def _ask(self) -> None:
        self.leg.playout.write(self._question)
        while self.leg.playout.queued and self.leg.closed is None:
            await asyncio.sleep(0.01)
        self._by_ear.forget()

    async def _break_in(self) -> None:
        trial = BargeIn()
        self._way.barge_ins.append(trial)
        if not await self._within(self._agent_speaks, REPLY_S):
            await self._ask()
            return
        began = max(0, self.leg.ticks - EARLY_TICKS)
        await asyncio.sleep(self._random.uniform(*INTO_REPLY_S))
        self._log.take()
        onset, wall = monotonic(), time.time()
        await self._ask()
        heard = self.leg.heard[began:]
        trial.stop_ms = (self.leg.last_sound_before(monotonic()) - onset) * 1000
        cut = await self._interrupted()
        if cut is None:
            return
        trial.decision_ms = (datetime.fromisoformat(cut["time"]).timestamp() - wall) * 1000
        trial.context = cut["heard"]
        await self._compare(trial, heard, cut["unheard"])

    async def _interrupted(self) -> dict[str, Any] | None:
        deadline = monotonic() + LOG_S
        while monotonic() < deadline:
            for event in self._log.take():
                if event["event"] == "interrupted":
                    return event
            await asyncio.sleep(0.05)
        return None

    async def _compare(self, trial: BargeIn, heard: list[Pcm], unheard: str) -> None:
        loud = [tick for tick, pcm in enumerate(heard, 1) if dbfs(pcm) > AUDIBLE_DBFS]
        cut_ms = loud[-1] * PACKET_MS if loud else 0
        found = list((await recognise(self._recognizer, np.concatenate(heard))).words)
        trial.heard = " ".join(word.text for word in found)
        said = [WordEnd(word, None) for word in words(f"{trial.context} {unheard}")]
        trial.words_off = words_beyond(len(words(trial.context)), found, said, cut_ms)


async def measure(rounds: int, barge_ins: int) -> list[Way]:
    """Both ways, one after the other, so many times."""
    use_addresses(["127.0.0.1"])
    lines, recognizer = await voiced(ASK, *CONVERSATION, apart=True), PocketSphinxRecognizer(1)
    await recognizer.start()
    port = free_port()
    environment = {
        "OFFHOOK_LOG_JSON_LINES": "true",
        "OFFHOOK_LOG_WORDS": "true",
        "OFFHOOK_SIP_UDP": str(port),
        "OFFHOOK_SIP_TCP": str(port),
        "OFFHOOK_SIP_TRUNKS": json.dumps(TRUNKS),
    }
    try:
        with tempfile.TemporaryDirectory() as directory:
            path = Path(directory) / "log"
            async with server(path, **environment) as url:
                log = ServerLog(path)
                ways = [Way("WebRTC", url), Way("SIP", f"sip:100@127.0.0.1:{port}")]
                for _ in range(rounds):
                    for way in ways:
                        log.take()
                        script = [ScriptLine(text, lines[text]) for text in CONVERSATION]
                        report = await Conversation(way, script, log).run()
                        way.lines.append(report.statistics)
                for way in ways:
                    await BargeIns(way, lines[ASK], barge_ins, log, recognizer).run()
    finally:
        await recognizer.close()
    return ways


def print_ways(ways: Sequence[Way]) -> None:
    width = 1 + max(len(way.name) for way in ways)
    print("response in ms: at the caller, by the server's account, its parts; what was understood")
    for number, said in enumerate(CONVERSATION):
        print(f"  {said}")
        for way in ways:
            for turn in way.turns[number :: len(CONVERSATION)]:
                spans = "  ".join(f"{name} {ms}" for name, ms in turn.spans.items())
                times = f"{turn.response_ms or '-':>6}{turn.total_ms or '-':>6}"
                print(f"    {way.name:{width}}{times}  {spans}  {turn.heard!r}")
    for way in ways:
        here = percentiles([t.response_ms for t in way.turns if t.response_ms is not None])
        there = percentiles([t.total_ms for t in way.turns if t.total_ms is not None])
        print(f"{way.name:{width}} at the caller {here}; by the server {there}; {way.of_lines()}")
    print("barge-in, ms after the caller's first sound: the agent's last, the decision; words")
    for way in ways:
        cut = [t for t in way.barge_ins if t.decision_ms is not None]
        print(
            f"{way.name:{width}} {len(cut)} of {len(way.barge_ins)} recognised as such; stop "
            f"{percentiles([t.stop_ms for t in cut if t.stop_ms])}; decision "
            f"{percentiles([t.decision_ms for t in cut])}; words in the context less words "
            f"{way.of_words([t.words_off for t in cut if t.words_off is not None])}"
        )
