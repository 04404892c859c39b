"""Short answers at the end of the agent's question in real calls: a real server, called by WebRTC
over loopback, that asks first and answers whatever is said."""

import asyncio
import json
import os
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.calls.call_turns import server
from benchmarks.processes.process import child
from benchmarks.speech.recordings import resample
from benchmarks.table import progress
from benchmarks.turn_taking.script import OFFSETS_MS, short_pieces
from offhook.media.pcm import RATE_IN, RATE_OUT, Pcm
from offhook.signaling.peer_io import use_addresses
from offhook.web.app.cli.caller_io import ScriptedCall, TurnReport

QUESTION = "Your table is by the window. Shall I book it for you?"
QUESTION_S = 20.0
"""Time limit in s for the question to be over."""
ANSWERED_S = 6.0
"""Time in s after the answer within which a caller expects to hear something."""
SETTLED_S = 1.0
"""Silence in s after which the question is over."""
GROUPS = 4
"""Rows of the table, each of a range of offsets."""
LOAD_S = 120.0
"""Time limit in s for the engine to load."""


@dataclass(frozen=True)
class Answer:
    """What became of one answer."""

    offset_ms: int
    """Its begin after the question's last sound; negative: before that."""
    text: str
    understood: str
    answered_ms: int | None
    """From its end to the agent's reply; None: there was none."""


class Caller(ScriptedCall):
    """Says one thing about when the question ends, which lasts `question_s`; without it, only
    listens to how long that is."""

    def __init__(self, url: str, pcm: Pcm | None = None, at_s: float = 0.0) -> None:
        """`at_s` is when `pcm`, 24 kHz samples, begins after the question's first sound."""
        super().__init__(url, [])
        self._pcm, self._at_s = pcm, at_s
        self.said = TurnReport("")
        self.question_s = 0.0
        self.answered_ms: int | None = None

    async def _converse(self) -> None:
        loop = asyncio.get_running_loop()
        async with asyncio.timeout(QUESTION_S):
            while not self.leg.sounded:
                await asyncio.sleep(0.005)
            if self._pcm is None:
                while loop.time() < self.leg.sounded[-1] + SETTLED_S:
                    await asyncio.sleep(0.05)
        if self._pcm is None:
            self.question_s = self.leg.sounded[-1] - self.leg.sounded[0]
            return
        await asyncio.sleep(self.leg.sounded[0] + self._at_s - loop.time())
        self._turn = self.said
        self.leg.playout.write(self._pcm)
        ends = loop.time() + len(self._pcm) / RATE_OUT
        # The server tells the latency of a turn when the reply to it is first heard.
        while loop.time() < ends + ANSWERED_S and not self.said.latency:
            await asyncio.sleep(0.01)
        if self.said.latency:
            self.answered_ms = round(1000 * (loop.time() - ends))
            await asyncio.sleep(0.1)


async def real_answers(folder: Path, calls: int, settings: Mapping[str, str]) -> list[Answer]:
    """Calls a server with these variables of its environment so often, one call after another, with
    answers evenly between the first and the last of OFFSETS_MS."""
    use_addresses(["127.0.0.1"])
    pieces = list(short_pieces(folder))
    chance = random.Random(1)
    chance.shuffle(pieces)
    offsets = [round(ms) for ms in np.linspace(OFFSETS_MS[0], OFFSETS_MS[-1], calls)]
    heard = []
    async with child("benchmarks.servers.model") as model:
        agent = {
            "OFFHOOK_AGENT_KIND": "openai",
            "OFFHOOK_AGENT_MODEL": "bench",
            "OFFHOOK_AGENT_BASE_URL": f"http://127.0.0.1:{model.hello['port']}/v1",
            "OFFHOOK_AGENT_GREETING": QUESTION,
            "OFFHOOK_SERVER_MAX_LATENESS_MS": "0",
        }
        async with server(None, LOAD_S, **agent, **settings) as url:
            listener = Caller(url)
            await listener.run()
            progress(f"the question lasts {listener.question_s:.2f} s")
            for number, offset_ms in enumerate(offsets):
                _, text, piece = pieces[number % len(pieces)]
                pcm = resample(piece, RATE_IN, RATE_OUT)
                call = Caller(url, pcm, listener.question_s + offset_ms / 1000)
                await call.run()
                answer = Answer(offset_ms, text, call.said.heard, call.answered_ms)
                heard.append(answer)
                became = "not answered" if answer.answered_ms is None else "answered"
                progress(f"{offset_ms} ms {text} -> {answer.understood!r}: {became}")
                if answer.answered_ms is None:
                    events = [e for e in call.report.events if e["type"] != "bot-tts-text"]
                    progress(json.dumps(events))
    return heard


def by_offset(heard: Sequence[Answer]) -> list[dict[str, Any]]:
    """Returns how many answers were answered, by when they began, and together; with the load of
    the machine, on which the delays depend."""
    parts = [*np.array_split(np.arange(len(heard)), GROUPS), np.arange(len(heard))]
    rows = []
    for part in parts:
        of = [heard[number] for number in part]
        delays = [one.answered_ms for one in of if one.answered_ms is not None]
        rows.append(
            {
                "begin after the question": f"{of[0].offset_ms} to {of[-1].offset_ms} ms",
                "calls": len(of),
                "answered": len(delays),
                "in words": sum(bool(one.understood) for one in of),
                "end of the answer to the reply p50 ms": round(np.median(delays)) if delays else "",
                "load": round(os.getloadavg()[0], 1),
            }
        )
    return rows
