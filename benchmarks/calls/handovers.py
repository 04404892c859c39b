"""The silence while one agent hands a call over to another: from the last sound of the first one to
the first sound of the second, with language models that answer at once and the embedded voice, in
one process.
"""

import asyncio
import json
import statistics
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from time import monotonic
from typing import Any

import numpy as np
from aiohttp import web

from benchmarks.command import command
from offhook.media.leg import Leg
from offhook.media.pcm import SAMPLES_IN, Pcm
from offhook.pipeline.conversation.events import AgentChanged, AgentTurn, Event
from offhook.web.config.config import Agent, Config
from offhook.web.config.server import Server, WebRtc
from offhook.web.edge.edge_io import Edge
from offhook.web.http.logs import Log
from offhook.web.http.logs_io import set_up

AUDIBLE = 200
"""Amplitude from which a sample counts as sound."""
SOON_S = 60
ANNOUNCEMENT = "One moment, I put you through to billing."
ANSWERS: dict[str, list[dict[str, Any]]] = {
    "front": [
        {"content": ANNOUNCEMENT},
        {
            "tool_calls": [
                {
                    "index": 0,
                    "id": "call",
                    "function": {"name": "hand_over_to_billing", "arguments": '{"reason": "x"}'},
                }
            ]
        },
    ],
    "billing": [{"content": "This is billing, which bill is it?"}],
}


class Line(Leg):
    """A caller who types; notes when there was sound."""

    def __init__(self) -> None:
        super().__init__("caller")
        self.sounds: list[float] = []
        """Times of the packets with sound."""

    @property
    def carries_messages(self) -> bool:
        return True

    def send_message(self, text: str) -> bool:
        return True

    def types(self, text: str) -> None:
        message = {"label": "rtvi-ai", "type": "send-text", "id": "1", "data": {"content": text}}
        self.listener.on_message(json.dumps(message))

    def _receive(self, now: float) -> Pcm:
        return np.zeros(SAMPLES_IN, np.int16)

    def _send(self, said: Pcm | None, now: float) -> None:
        if said is not None and np.abs(said).max() > AUDIBLE:
            self.sounds.append(monotonic())


@asynccontextmanager
async def models() -> AsyncIterator[str]:
    """A server with a model of each agent's name."""

    async def complete(request: web.Request) -> web.StreamResponse:
        asked = await request.json()
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        for delta in ANSWERS[asked["model"]]:
            choices: list[dict[str, Any]] = [{"index": 0, "delta": delta, "finish_reason": None}]
            await response.write(b"data: " + json.dumps({"choices": choices}).encode() + b"\n\n")
        await response.write(b"data: [DONE]\n\n")
        return response

    app = web.Application()
    app.router.add_post("/v1/chat/completions", complete)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    try:
        yield f"http://127.0.0.1:{runner.addresses[0][1]}/v1"
    finally:
        await runner.cleanup()


async def handed_over(edge: Edge) -> float:
    """Returns the silence of one hand-over in ms."""
    line, events = Line(), list[Event]()
    call = asyncio.create_task(edge.run_call(line, "front"))
    line.connect()
    async with asyncio.timeout(SOON_S):
        while line.call_id not in edge.conversations:
            await asyncio.sleep(0.02)
        conversation: Any = edge.conversations[line.call_id]
        conversation.listeners.append(events.append)
        while not any(isinstance(event, AgentTurn) for event in events):
            await asyncio.sleep(0.02)
        line.types("My bill is too high.")
        while not any(isinstance(event, AgentChanged) for event in events):
            await asyncio.sleep(0.001)
        last, before = line.sounds[-1], len(line.sounds)
        while len(line.sounds) == before:
            await asyncio.sleep(0.02)
        silence = 1000 * (line.sounds[before] - last)
        line.close("measured")
        await call
    return silence


async def measure(calls: int, language: str) -> list[float]:
    async with models() as url:
        front = Agent(
            kind="openai", base_url=url, model="front", greeting="Hello.", handoffs=("billing",)
        )
        billing = Agent(kind="openai", base_url=url, model="billing", language=language)
        edge = Edge(
            Config(
                webrtc=WebRtc(addresses=["127.0.0.1"]),
                server=Server(port=0, drain_seconds=0),
                agents={"front": front, "billing": billing},
            )
        )
        await edge.start()
        try:
            return sorted([await handed_over(edge) for _ in range(calls)])
        finally:
            await edge.close()


def main(arguments: Sequence[str]) -> int:
    parser = command("handovers", __doc__)
    parser.add_argument("--calls", type=int, default=20)
    parser.add_argument(
        "--language", default="", help="of the second agent: its words have a recognizer of its own"
    )
    options = parser.parse_args(arguments)
    set_up(Log(level="ERROR"))
    found = asyncio.run(measure(options.calls, options.language))
    print(
        f"{len(found)} hand-overs: silence p50 {statistics.median(found):.0f}, "
        f"p95 {found[-1 - len(found) // 20]:.0f} ms"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
