"""A server that plays one scripted call to the page, for trying the page by hand.

``python -m tests.web.edge.page.page_stub [PORT]`` then open ``http://localhost:PORT/``; the page's
query chooses what happens: ``?full``, ``?overloaded``, ``?loading``, ``?draining``, ``?refused``,
``?no-path``, ``?goodbye``, ``?fatal``, ``?drop`` (the path breaks, a new one is found), ``?lost``
(the path breaks for good).
"""

import asyncio
import fractions
import itertools
import json
import shutil
import sys
import tempfile
import time
import uuid
import wave
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import numpy as np
from aiohttp import web
from aiortc import (
    MediaStreamTrack,
    RTCConfiguration,
    RTCDataChannel,
    RTCPeerConnection,
    RTCSessionDescription,
)
from aiortc.sdp import candidate_from_sdp
from av import AudioFrame

PAGE = Path(__file__).parents[4] / "offhook" / "web" / "page" / "static"
RATE = 48000
FRAME = RATE // 50
CSP = "default-src 'self'"


class Voice(MediaStreamTrack):
    """The agent's sound: silence, or what was last given to ``play``."""

    kind = "audio"

    def __init__(self) -> None:
        super().__init__()
        self._pcm = np.zeros(0, np.int16)
        self._sent = 0
        self._started = time.monotonic()

    def play(self, pcm: np.ndarray) -> None:
        self._pcm = pcm

    def hush(self) -> None:
        self._pcm = np.zeros(0, np.int16)

    async def recv(self) -> AudioFrame:
        self._sent += FRAME
        await asyncio.sleep(max(0.0, self._started + self._sent / RATE - time.monotonic()))
        pcm, self._pcm = self._pcm[:FRAME], self._pcm[FRAME:]
        frame = AudioFrame.from_ndarray(
            np.pad(pcm, (0, FRAME - len(pcm)))[np.newaxis], format="s16", layout="mono"
        )
        frame.sample_rate = RATE
        frame.pts = self._sent
        frame.time_base = fractions.Fraction(1, RATE)
        return frame


async def speak(text: str) -> np.ndarray:
    """``text`` by Flite where it is installed, else a hum as long as the text would take."""
    if shutil.which("flite") is None:
        t = np.arange(int(RATE * len(text) / 15)) / RATE
        return (3000 * np.sin(2 * np.pi * 180 * t) * np.sin(2 * np.pi * 2 * t)).astype(np.int16)
    with tempfile.NamedTemporaryFile(suffix=".wav") as file:
        flite = await asyncio.create_subprocess_exec(
            "flite", "-voice", "slt", "-t", text, "-o", file.name
        )
        await flite.wait()
        with wave.open(file.name) as sound:
            rate = sound.getframerate()
            pcm = np.frombuffer(sound.readframes(sound.getnframes()), np.int16)
    at = np.arange(0, len(pcm), rate / RATE)
    return np.interp(at, np.arange(len(pcm)), pcm).astype(np.int16)


class ScriptedCall:
    """One peer connection, and the RTVI messages of the conversation on it."""

    def __init__(self, scenario: str) -> None:
        self.scenario = scenario
        self.pc = RTCPeerConnection(RTCConfiguration(iceServers=[]))
        self.voice = Voice()
        self.channel: RTCDataChannel | None = None
        self.tasks: set[asyncio.Task[None]] = set()
        self.script: asyncio.Task[None] | None = None
        self.turn = 0

    async def answer(self, sdp: str) -> RTCSessionDescription:
        self.pc.on("datachannel", self.open)
        self.pc.addTrack(self.voice)
        await self.pc.setRemoteDescription(RTCSessionDescription(sdp, "offer"))
        await self.pc.setLocalDescription(await self.pc.createAnswer())
        return self.pc.localDescription

    def open(self, channel: RTCDataChannel) -> None:
        self.channel = channel
        channel.on("message", self.receive)

    def send(self, type_: str, **data: object) -> None:
        if self.channel is not None and self.channel.readyState == "open":
            message = {"label": "rtvi-ai", "type": type_, "id": uuid.uuid4().hex, "data": data}
            self.channel.send(json.dumps(message))

    def own(self, type_: str, **data: object) -> None:
        self.send("server-message", type=type_, **data)

    def receive(self, text: str) -> None:
        if text.startswith("ping"):
            return
        message = json.loads(text)
        match message["type"]:
            case "client-ready":
                self.send("bot-ready", version="2.1.0", about={"library": "page-stub"})
                self.start(self.measure())
                self.script = self.start(SCRIPTS.get(self.scenario, ScriptedCall.talk)(self))
            case "send-text":
                self.interrupt()
                self.script = self.start(self.reply(f"You typed: {message['data']['content']}"))
            case "disconnect-bot":
                self.start(self.pc.close())

    def interrupt(self) -> None:
        if self.script is not None:
            self.script.cancel()
        self.voice.hush()
        self.send("bot-interrupted")
        self.send("bot-stopped-speaking")

    def start(self, work: Awaitable[None]) -> asyncio.Task[None]:
        async def run() -> None:
            await work

        task = asyncio.create_task(run())
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)
        return task

    async def measure(self) -> None:
        for n in itertools.count():
            quality = {"mos": 4.3 - n % 3 / 10, "loss": 0.004, "jitter_ms": 6 + n % 4}
            self.own("quality", **quality, round_trip_ms=38 + n % 5, buffer_ms=34)
            await asyncio.sleep(2)

    async def hear(self, text: str) -> None:
        """The caller says ``text``: partials word by word, then the final."""
        self.send("user-started-speaking")
        words = text.split()
        for n in range(1, len(words) + 1):
            await asyncio.sleep(0.22)
            self.transcribe(" ".join(words[:n]).lower().strip("?.,"), final=False)
        await asyncio.sleep(0.25)
        self.transcribe(text, final=True)
        self.send("user-stopped-speaking")

    def transcribe(self, text: str, final: bool) -> None:
        self.send("user-transcription", text=text, final=final, user_id="", timestamp="")

    def latency(self) -> None:
        self.turn += 1
        k = self.turn
        spans = {
            "silence": 190 + 20 * k,
            "turn_decided": 35,
            "asr_final": 64 + 9 * k,
            "llm_first_token": 4 * k,
            "tts_first_audio": 41 + k,
            "first_packet": 12,
        }
        listed = [{"name": name, "ms": ms} for name, ms in spans.items()]
        self.own("turn-latency", turn=k, spans=listed, total_ms=sum(spans.values()))

    async def reply(self, text: str, cut_after: int | None = None, latency: bool = True) -> None:
        """The agent says ``text``; ``cut_after`` words it is interrupted."""
        self.send("bot-llm-started")
        for token in text.split(" "):
            self.send("bot-llm-text", text=token + " ")
        self.send("bot-llm-stopped")
        pcm = await speak(text)
        if latency:
            self.latency()
        self.send("bot-started-speaking")
        self.voice.play(pcm)
        words = text.split()
        for n, word in enumerate(words):
            if n == cut_after:
                self.voice.hush()
                self.send("bot-interrupted")
                self.own("interrupted", heard=" ".join(words[:n]), unheard=" ".join(words[n:]))
                self.send("bot-stopped-speaking")
                return
            self.send("bot-tts-text", text=word)
            await asyncio.sleep(len(pcm) / RATE * (len(word) + 1) / len(text))
        self.send("bot-stopped-speaking")

    async def talk(self) -> None:
        await self.reply("Good morning, this is the front desk. How can I help?", latency=False)
        await asyncio.sleep(0.8)
        await self.hear("What are your opening hours?")
        await self.reply(
            "We are open from nine to six on weekdays, and from ten to four on Saturdays. "
            "On Sundays and on public holidays we are closed, but you can leave a message.",
            cut_after=17,
        )
        await self.hear("Saturday is fine, can you take a message?")
        await self.reply("Of course. Whom shall I say it is from?")
        self.send("user-started-speaking")
        self.transcribe("uh-huh", final=False)
        await asyncio.sleep(0.4)
        self.own("backchannel", text="uh-huh")
        await asyncio.sleep(0.6)
        await self.hear("My name is Maria Keller")
        await self.reply("Maria Keller: that is K, E, double L, E, R. And the message?")
        self.send("user-started-speaking")
        await asyncio.sleep(0.3)
        self.transcribe("please tell them that", final=False)
        await asyncio.sleep(60)

    async def goodbye(self) -> None:
        await self.reply("Good morning, this is the front desk.", latency=False)
        await self.hear("Wrong number, sorry")
        await self.reply("No problem at all. Goodbye.")
        self.own("goodbye", reason="agent hung up")
        await asyncio.sleep(0.3)
        await self.pc.close()

    async def fatal(self) -> None:
        await self.reply("Good morning, this is the front desk.", latency=False)
        self.send("error", error="The speech engine stopped: out of memory.", fatal=True)

    async def lost(self) -> None:
        await self.reply("Good morning, this is the front desk.", latency=False)
        assert self.pc.sctp is not None
        await self.pc.sctp.transport.transport.stop()  # no ICE: nothing gets through any more


SCRIPTS: dict[str, Callable[[ScriptedCall], Awaitable[None]]] = {
    "goodbye": ScriptedCall.goodbye,
    "fatal": ScriptedCall.fatal,
    "drop": ScriptedCall.lost,
    "lost": ScriptedCall.lost,
}


class Stub:
    def __init__(self) -> None:
        self.calls: dict[str, ScriptedCall] = {}

    async def index(self, request: web.Request) -> web.FileResponse:
        return web.FileResponse(PAGE / "index.html")

    async def status(self, request: web.Request) -> web.Response:
        answers = {
            "agent": "frontdesk",
            "title": "The front desk answers",
            "hears": "pocketsphinx",
            "speaks": "flite",
        }
        return web.json_response({"status": "ready", "answers": answers})

    async def start(self, request: web.Request) -> web.Response:
        scenario = request.headers.get("Referer", "").partition("?")[2]
        if scenario in ("full", "connecting", "overloaded", "loading", "draining"):
            body = {"error": "no call is taken now", "reason": scenario}
            return web.json_response(body, status=503, headers={"Retry-After": "12"})
        if scenario == "refused":
            return web.json_response({"detail": "The agent could not be loaded."}, status=500)
        session = {"sessionId": f"{scenario or 'talk'}.{uuid.uuid4()}"}
        return web.json_response({**session, "iceConfig": {"iceServers": []}})

    async def offer(self, request: web.Request) -> web.Response:
        body = await request.json()
        scenario = request.match_info["session"].partition(".")[0]
        if scenario == "lost" and body["restart_pc"]:
            return web.json_response({"detail": "gone"}, status=404)
        call = ScriptedCall(scenario)
        answer = await call.answer(body["sdp"])
        pc_id = uuid.uuid4().hex
        self.calls[pc_id] = call
        sdp = answer.sdp
        if scenario == "no-path":  # an answer that nobody stands behind
            await call.pc.close()
        return web.json_response({"sdp": sdp, "type": answer.type, "pc_id": pc_id})

    async def trickle(self, request: web.Request) -> web.Response:
        body: dict[str, Any] = await request.json()
        pc = self.calls[body["pc_id"]].pc
        for item in body["candidates"]:
            candidate = candidate_from_sdp(item["candidate"].removeprefix("candidate:"))
            candidate.sdpMid = item["sdp_mid"]
            candidate.sdpMLineIndex = item["sdp_mline_index"]
            await pc.addIceCandidate(candidate)
        return web.json_response({"status": "success"})


async def secured(request: web.Request, response: web.StreamResponse) -> None:
    response.headers["Content-Security-Policy"] = CSP


def app() -> web.Application:
    stub = Stub()
    app = web.Application()
    app.on_response_prepare.append(secured)
    app.router.add_get("/", stub.index)
    app.router.add_static("/page", PAGE)
    app.router.add_get("/status", stub.status)
    app.router.add_post("/start", stub.start)
    app.router.add_post("/sessions/{session}/api/offer", stub.offer)
    app.router.add_patch("/sessions/{session}/api/offer", stub.trickle)
    return app


if __name__ == "__main__":
    web.run_app(app(), host="127.0.0.1", port=int(sys.argv[1]) if len(sys.argv) > 1 else 7860)
