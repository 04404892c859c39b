"""What callers hear of every dialect of a model's server, at the start of an answer, in its middle
and after a tool: `python -m tests.web.edge.agents.model_dialects [WORD …]`.

A real edge is called over WebRTC and over the Realtime API. The table has the words as their marks
were played, and the longest silence. The exit status is 1 if one is longer than MAX_SILENCE_S.
"""

import asyncio
import base64
import json
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from itertools import pairwise
from time import monotonic
from typing import Any

from aiohttp import web
from aiohttp.test_utils import TestServer
from openai import AsyncOpenAI

from offhook.media.clock_io import PacketClock
from offhook.media.leg import LegListener
from offhook.media.pcm import RATE_OUT
from offhook.pipeline.conversation.agents.agent_faults import Place
from offhook.signaling.peer_io import use_addresses
from offhook.signaling.smallwebrtc import Offer
from offhook.web.app.cli.caller_io import CallerLeg
from offhook.web.config.config import Agent, Config
from offhook.web.config.server import Server, WebRtc
from offhook.web.edge.edge_io import Edge
from offhook.web.edge.server_io import application
from tests.pipeline.conversation.agents.test_agent_faults import CHINESE, DONE, FAULTS, Ills
from tests.pipeline.conversation.agents.test_model_dialects import (
    CALLS,
    DTMF,
    NO_CALL,
    OPTIONS,
    REFUSALS,
    SHAPES,
    THOUGHTS,
    TWO_CALLS,
    ended,
    streamed,
)
from tests.pipeline.conversation.agents.test_spoken_content import CONTENTS
from tests.pipeline.conversation.phone import calls, chunk, says, stream

MAX_SILENCE_S = 8.0
AT_A_TIME = 6
FIRST_SOUND_S = 15.0
"""Time in s without any sound after which a turn is given up."""
QUIET_S = 4.0
"""Time in s without sound after which a turn is over: longer than a stall takes to be noticed."""
ROUNDS = 4
"""Maximum responses of a turn over the Realtime API."""
PREFIX = "We are here. "
QUESTION = "When do you open?"
PRESS: dict[str, Any] = {
    "type": "function",
    "name": DTMF,
    "description": "Press keys.",
    "parameters": {"type": "object", "properties": {"digits": {"type": "string"}}},
}
Step = Callable[[web.Request], Awaitable[web.StreamResponse]]


@dataclass(frozen=True)
class Dialect:
    """How a server answers the caller's turn."""

    name: str
    body: bytes = b""
    kind: str = ""
    """Content type of a body that is no stream."""
    refuses: tuple[str, int, Any] | None = None
    """A parameter that it refuses, with the status and body of the error."""
    ills: Ills | None = None
    """How it misbehaves."""

    def places(self) -> tuple[Place, ...]:
        """Where in a turn it can occur."""
        once = self.kind or self.refuses or self.body.startswith(b"\xef")
        return (Place.START, Place.TOOL) if once else tuple(Place)

    def step(self, place: Place) -> Step:
        speaking = place is Place.SPEAKING

        async def answer(request: web.Request) -> web.StreamResponse:
            if self.ills is not None and not speaking:
                return await self.ills.silent(request)
            if self.kind:
                return web.Response(body=self.body, content_type=self.kind)
            response = await stream(request)
            if speaking:
                await response.write(chunk(says(PREFIX)))
            if self.ills is not None:
                await self.ills.speaking(response, request)
            else:
                await response.write(self.body)
            return response

        return answer


def dialects() -> list[Dialect]:
    called = {
        name: b"".join(chunk({"tool_calls": delta}) for delta in deltas) + DONE
        for name, deltas in (CALLS | TWO_CALLS).items()
    }
    thoughts = {
        name: chunk(thought) + streamed("At nine.") for name, (thought, _) in THOUGHTS.items()
    }
    cut = {reason: chunk(says("We open at")) + ended(reason) + DONE for reason in ("length",)}
    cut["content_filter"] = chunk(says("We open at")) + ended("content_filter") + DONE
    return [
        *(Dialect(f"content: {text[:40]!r}", streamed(text)) for text in CONTENTS),
        *(Dialect(f"shape: {name}", body, kind) for name, (body, kind) in SHAPES.items()),
        *(Dialect(f"call: {name}", body) for name, body in called.items()),
        *(Dialect(f"no call: {name}", body + DONE) for name, body in NO_CALL.items()),
        *(Dialect(f"thought: {name}", body) for name, body in thoughts.items()),
        *(Dialect(f"cut off: {name}", body) for name, body in cut.items()),
        *(
            Dialect(f"refused: {name}", streamed("At nine."), refuses=(param, *error))
            for name, (param, error, _) in REFUSALS.items()
        ),
        *(Dialect(f"fault: {name}", ills=ills) for name, ills in FAULTS.items()),
        Dialect("voice: Chinese", streamed(CHINESE)),
        Dialect("voice: a face", streamed("🙂")),
    ]


@dataclass
class Turn:
    """A dialect at a place of a turn, by one door; `steps` are the server's answers."""

    dialect: Dialect
    place: Place
    door: str
    steps: list[Step] = field(default_factory=list)
    heard: str = ""
    silence_s: float = 0.0

    @property
    def key(self) -> str:
        return f"{abs(hash((self.dialect.name, self.place, self.door))):x}"

    def begin(self) -> None:
        if self.door == "WebRTC":
            self.steps.append(Dialect("", streamed("Hello.")).step(Place.START))
        if self.place is Place.TOOL:
            called = chunk(calls(DTMF, digits="1")) + DONE
            self.steps.append(Dialect("", called).step(Place.START))
        self.steps.append(self.dialect.step(self.place))

    async def answer(self, request: web.Request) -> web.StreamResponse:
        asked = await request.json()
        if self.dialect.refuses is not None and self.dialect.refuses[0] in asked:
            _, status, body = self.dialect.refuses
            text = body if isinstance(body, str) else json.dumps(body)
            return web.Response(status=status, text=text)
        if not self.steps:
            return await Dialect("", streamed("And now?")).step(Place.START)(request)
        last = len(self.steps) == 1 and self.dialect.ills is not None  # until it is over
        return await (self.steps[0] if last else self.steps.pop(0))(request)


class Listener(LegListener):
    """Keeps the words that the caller hears."""

    def __init__(self) -> None:
        self.words: list[str] = []

    def on_message(self, text: str) -> None:
        message = json.loads(text)
        if message.get("type") == "bot-tts-text":
            self.words.append(message["data"]["text"])


async def over_webrtc(edge: Edge, turn: Turn, clock: PacketClock) -> None:
    leg, listener = CallerLeg(turn.key), Listener()
    leg.listener = listener
    sdp, _ = await edge.browsers.offer(Offer(await leg.offer(), None, False, {}), turn.key)
    await leg.accept(sdp)
    await leg.until_connected()
    clock.add(leg)
    try:
        _tell(leg, "client-ready", {"version": "2.1.0"})
        await _until_quiet(leg, monotonic())
        listener.words.clear()
        asked = monotonic()
        _tell(leg, "send-text", {"content": QUESTION})
        turn.silence_s = await _until_quiet(leg, asked)
        turn.heard = " ".join(listener.words)
    finally:
        await leg.hang_up("goodbye")
        clock.remove(leg)


def _tell(leg: CallerLeg, kind: str, data: dict[str, Any]) -> None:
    leg.send_message(json.dumps({"label": "rtvi-ai", "type": kind, "id": kind, "data": data}))


async def _until_quiet(leg: CallerLeg, since: float) -> float:
    """Waits until the agent has spoken; returns the longest silence before or within that."""
    while True:
        await asyncio.sleep(0.1)
        sounds = [since, *(at for at in leg.sounded if at > since)]
        wait_s = FIRST_SOUND_S if len(sounds) == 1 else QUIET_S
        if monotonic() - sounds[-1] > wait_s or leg.closed is not None:
            if len(sounds) == 1:
                return monotonic() - since
            return max(b - a for a, b in pairwise(sounds))


async def over_realtime(client: AsyncOpenAI, turn: Turn) -> None:
    async with client.realtime.connect(model=turn.key) as connection:
        session: Any = {"type": "realtime", "tools": [PRESS]}
        await connection.send({"type": "session.update", "session": session})
        part = {"type": "input_text", "text": QUESTION}
        item: Any = {"type": "message", "role": "user", "content": [part]}
        await connection.send({"type": "conversation.item.create", "item": item})
        playing_until = monotonic()
        for _ in range(ROUNDS):
            await connection.send({"type": "response.create"})
            results = []
            async for event in connection:
                now = monotonic()
                if event.type in ("response.output_audio.delta", "response.done"):
                    turn.silence_s = max(turn.silence_s, now - playing_until)
                if event.type == "response.output_audio.delta":
                    seconds = len(base64.b64decode(event.delta)) / 2 / RATE_OUT
                    playing_until = max(playing_until, now) + seconds
                elif event.type == "response.output_audio_transcript.delta":
                    turn.heard += event.delta
                elif event.type == "response.done":
                    results = _results(turn, event.response)
                    break
            if not results:
                break
            for result in results:
                await connection.send({"type": "conversation.item.create", "item": result})


def _results(turn: Turn, response: Any) -> list[Any]:
    """Returns the results of the functions that a response calls; notes how it ended."""
    if response.status != "completed":
        error = getattr(response.status_details, "error", None)
        turn.heard += f" ({response.status}: {getattr(error, 'message', '')})"
    made = [item.call_id for item in response.output if item.type == "function_call"]
    return [{"type": "function_call_output", "call_id": each, "output": "{}"} for each in made]


@asynccontextmanager
async def model_server(turns: list[Turn]) -> AsyncIterator[str]:
    """Yields the URL under which each turn has a server of its own, by its key."""
    by_key = {turn.key: turn for turn in turns}

    async def answer(request: web.Request) -> web.StreamResponse:
        return await by_key[request.match_info["key"]].answer(request)

    app = web.Application()
    app.router.add_post("/{key}/chat/completions", answer)
    runner = web.AppRunner(app, shutdown_timeout=0.1, handler_cancellation=True)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    try:
        yield f"http://127.0.0.1:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()


async def play(words: list[str]) -> list[Turn]:
    """Plays all dialects whose names have one of the words; all without words."""
    chosen = [d for d in dialects() if not words or any(word in d.name for word in words)]
    turns = [
        Turn(dialect, place, door)
        for dialect in chosen
        for place in dialect.places()
        for door in ("WebRTC", "Realtime")
    ]
    for turn in turns:
        turn.begin()
    async with model_server(turns) as url:
        agents = {
            turn.key: Agent(
                kind="openai",
                think_ahead=False,
                base_url=f"{url}/{turn.key}",
                model="scripted",
                **OPTIONS.parameters() | {"extra_body": dict(OPTIONS.extra_body)},
            )
            for turn in turns
        }
        use_addresses(["127.0.0.1"])
        here = Server(port=0, max_calls=2 * AT_A_TIME, drain_seconds=0, max_lateness_ms=0)
        edge = Edge(Config(webrtc=WebRtc(addresses=["127.0.0.1"]), server=here, agents=agents))
        await edge.start()
        serving = TestServer(application(edge))
        await serving.start_server()
        clock, few = PacketClock(), asyncio.Semaphore(AT_A_TIME)

        async def play_one(turn: Turn) -> None:
            async with few:
                with suppress(ConnectionError):
                    if turn.door == "WebRTC":
                        await over_webrtc(edge, turn, clock)
                    else:
                        await over_realtime(client, turn)

        base = str(serving.make_url("/v1"))
        try:
            async with AsyncOpenAI(base_url=base, api_key="none") as client:
                await asyncio.gather(*map(play_one, turns))
        finally:
            await serving.close()
            await edge.close()
    return turns


def main(words: list[str]) -> int:
    turns = asyncio.run(play(words))
    print("| dialect | place | door | heard | longest silence in s |\n|---|---|---|---|---|")
    for turn in turns:
        print(
            f"| {turn.dialect.name} | {turn.place} | {turn.door} | {turn.heard.strip()} "
            f"| {turn.silence_s:.1f} |"
        )
    longest = max(turn.silence_s for turn in turns)
    print(
        f"\n{len(turns)} turns, {len({t.dialect.name for t in turns})} dialects, "
        f"longest silence {longest:.1f} s"
    )
    return int(longest > MAX_SILENCE_S)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
