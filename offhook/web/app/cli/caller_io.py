"""The scripted caller: a real client that calls over WebRTC or SIP, speaks, listens and reports.

It uses the server's own peer on the other side of the offer, so a call exercises signalling, ICE,
DTLS, SRTP, jitter buffer, codecs and turn-taking end to end. Over SIP it is a phone, and the report
lacks what only the server knows: transcripts and its own latencies.
"""

import asyncio
import json
import wave
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import av
import numpy as np

from offhook.media.clock_io import PacketClock
from offhook.media.codecs.downmix import MonoConverter
from offhook.media.leg import LegListener
from offhook.media.pcm import RATE_IN, RATE_OUT, Pcm
from offhook.media.tasks_io import first_of
from offhook.media.untrusted_json import read_json
from offhook.pipeline.speech.synthesizer import DEFAULT_VOICE, Synthesizer, VoiceOptions, sound_of
from offhook.telephony.call_progress_io import DialError
from offhook.telephony.sip.messages.grammar import SipError
from offhook.telephony.sip.trunks.trunks import CODECS
from offhook.web.app.callers.caller_leg import AUDIBLE_DBFS as AUDIBLE_DBFS
from offhook.web.app.callers.caller_sip_io import AgentByEar, SipCaller, SipCallerLeg, is_sip
from offhook.web.app.callers.caller_webrtc_io import CallerLeg, WebRtcCaller
from offhook.web.app.callers.caller_webrtc_io import CallError as CallError

GREETING_S = 4
"""Time in s to wait for an agent that speaks first."""
REPLY_S = 20
"""How long to wait for a reply to begin, and how long for the server to say it has ended."""
PAUSE_S = 0.4
"""Pause in s between the agent's last word and the caller's next."""


@dataclass(frozen=True)
class ScriptLine:
    """One thing that the caller says."""

    label: str
    pcm: Pcm
    """24 kHz samples, trimmed."""


@dataclass
class TurnReport:
    """The report of one turn."""

    said: str
    heard: str = ""
    """The server's final transcript of it."""
    reply: str = ""
    response_ms: int | None = None
    """Time in ms from the last packet of the caller's speech to the first of the agent's, at this
    end."""
    latency: dict[str, Any] = field(default_factory=dict)
    """The server's own latency breakdown."""
    interrupted: dict[str, str] | None = None


@dataclass
class CallReport:
    """The report of a whole call."""

    url: str
    greeting: str = ""
    turns: list[TurnReport] = field(default_factory=list)
    events: list[dict[str, Any]] = field(default_factory=list)
    statistics: dict[str, Any] = field(default_factory=dict)
    ended_by: str = ""

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


def read_audio(path: Path) -> Pcm:
    """Reads any audio file that PyAV supports as 24 kHz mono."""
    try:
        with av.open(str(path)) as container:
            mono: MonoConverter | None = None
            blocks: list[Pcm] = []
            for frame in container.decode(audio=0):
                mono = mono or MonoConverter(frame, RATE_OUT)
                blocks += mono.convert(frame)
            blocks += mono.convert(None) if mono is not None else []
    except (av.FFmpegError, OSError, IndexError) as error:
        raise CallError(f"cannot read {path}: {error}") from error
    return np.concatenate(blocks) if blocks else np.zeros(0, np.int16)


def trimmed(pcm: Pcm, threshold: int = 300) -> Pcm:
    """Trims silence, so that latency counts from the last sound."""
    loud = np.flatnonzero(np.abs(pcm.astype(np.int32)) > threshold)
    return pcm[loud[0] : loud[-1] + 1] if len(loud) else pcm


async def spoken(synthesizer: Synthesizer, text: str, options: VoiceOptions = DEFAULT_VOICE) -> Pcm:
    """Synthesizes a text to 24 kHz samples."""
    sound = await sound_of(synthesizer.open(options), text)
    if not len(sound):
        raise CallError(f"there is nothing to say in {text!r}")
    return sound


def _sip_line(url: str, clock: PacketClock, codecs: tuple[str, ...]) -> SipCaller:
    try:
        return SipCaller(url, clock, codecs)
    except SipError as error:
        raise CallError(f"{url}: {error}") from error


class ScriptedCall(LegListener):
    """One call that follows a script of lines."""

    def __init__(
        self,
        url: str,
        lines: list[ScriptLine],
        interrupt_after: float | None = None,
        api_key: str = "",
        show: Callable[[str], None] = lambda text: None,
        codecs: tuple[str, ...] = CODECS,
    ) -> None:
        """`codecs` applies to SIP calls. Raises CallError for an invalid sip: URL."""
        self.report = CallReport(url)
        self._clock = PacketClock()
        self._sip: SipCaller | None = None
        self.leg: CallerLeg | SipCallerLeg
        if is_sip(url):
            self._sip = _sip_line(url, self._clock, codecs)
            self.leg = self._sip.leg
        else:
            self.leg = CallerLeg("caller")
        self._api_key = api_key
        self._lines = lines
        self._interrupt_after = interrupt_after
        self._show = show
        self._agent_speaks = asyncio.Event()
        self._agent_silent = asyncio.Event()
        self._agent_silent.set()
        self._turn: TurnReport | None = None
        self._reply: list[str] = []
        self._answering = False
        """Whether the agent is preparing an answer."""
        self._reason = ""
        """Why the server has no answer, in its words."""
        self._by_ear = AgentByEar(self._agent_speaks, self._agent_silent)
        if self._sip is not None:
            self.leg.listen(self._by_ear.tick)
        self.leg.listener = self

    async def run(self) -> CallReport:
        """Places the call and runs the script. Raises CallError."""
        try:
            if self._sip is not None:
                await self._connect_by_sip(self._sip)
                await self._go_through()
            else:
                assert isinstance(self.leg, CallerLeg)
                await self._run_by_webrtc(self.leg)
        finally:
            self.report.statistics |= self.leg.statistics().as_dict()
            await self.leg.hang_up("goodbye")
            self._clock.remove(self.leg)
            if self._sip is not None:
                await self._sip.close()
        return self.report

    async def _run_by_webrtc(self, leg: CallerLeg) -> None:
        line = WebRtcCaller(self.report.url, self._api_key, leg)
        try:
            await line.call()
            await self._go_through()
        finally:
            await line.close()

    async def _go_through(self) -> None:
        self._clock.add(self.leg)
        await self._converse()
        self.report.ended_by = "caller" if self.leg.closed is None else "server"

    async def _connect_by_sip(self, line: SipCaller) -> None:
        try:
            await line.call()
        except (DialError, OSError) as error:
            raise CallError(f"{self.report.url}: {error}") from error
        codec, srtp = line.leg.codec, line.leg.srtp
        self.report.statistics |= {"setup_ms": line.setup_ms, "codec": codec, "srtp": srtp}

    # --- the script ---

    async def _converse(self) -> None:
        if await self._within(self._agent_speaks, GREETING_S):
            await self._within(self._agent_silent, REPLY_S)
        self.report.greeting = self._end_reply()
        if self.report.greeting:
            self._show(f"agent: {self.report.greeting}")
        for number, line in enumerate(self._lines):
            if self.leg.closed is not None:
                return
            interrupts = self._interrupt_after is not None and number > 0
            if not interrupts:
                await self._within(self._agent_silent, REPLY_S)
                await asyncio.sleep(PAUSE_S)
            await self._say(line)
            last = number == len(self._lines) - 1
            await self._listen(cut=self._interrupt_after if not last else None)

    async def _say(self, line: ScriptLine) -> None:
        self._turn = TurnReport(line.label)
        self.report.turns.append(self._turn)
        self._show(f"caller: {line.label}")
        self._agent_speaks.clear()
        for second in range(0, len(line.pcm), RATE_OUT):
            while self.leg.playout.queued > RATE_OUT and self.leg.closed is None:
                await asyncio.sleep(0.01)
            if self.leg.closed is None:
                self.leg.playout.write(line.pcm[second : second + RATE_OUT])
        while self.leg.playout.queued and self.leg.closed is None:
            await asyncio.sleep(0.01)
        self._speech_end = self.leg.said_until
        if self._sip is not None:
            self._by_ear.forget()

    async def _listen(self, cut: float | None) -> None:
        turn = self._turn
        assert turn is not None
        started = await self._within(self._agent_speaks, REPLY_S)
        if started and cut is not None:
            await asyncio.sleep(cut)
        elif started:
            await self._within(self._agent_silent, REPLY_S)
            await self._await_answer()
            await asyncio.sleep(0.1)
        after = (t for t in self.leg.speech_arrivals if t > self._speech_end)
        if started and (arrived := next(after, None)) is not None:
            turn.response_ms = round((arrived - self._speech_end) * 1000)
        if self._sip is not None:
            here = f"  answered after {turn.response_ms} ms"
            self._show(here if turn.response_ms is not None else "  no answer")
        elif cut is None:
            turn.reply = self._end_reply()
            self._show(f"agent: {turn.reply}" if turn.reply else self._no_answer())

    async def _await_answer(self) -> None:
        """Waits for the answer, if what was heard so far is said while the agent prepares it."""
        while self._answering and self.leg.closed is None:
            self._agent_speaks.clear()
            if not await self._within(self._agent_speaks, REPLY_S):
                return
            await self._within(self._agent_silent, REPLY_S)

    def _no_answer(self) -> str:
        return f"  no answer: {self._reason}" if self._reason else "  no answer"

    async def _within(self, event: asyncio.Event, seconds: float) -> bool:
        """Waits for the event; returns whether it came in time and before the call ended."""
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await first_of(event.wait(), self.leg.until_closed())
        return event.is_set()

    def _end_reply(self) -> str:
        text = "".join(self._reply).strip()
        self._reply = []
        return text

    # --- messages of the server ---

    def on_message(self, text: str) -> None:
        message = read_json(text)
        kind, data = message.get("type"), message.get("data") or {}
        at_ms = self.leg.heard_ms
        if kind not in ("metrics", "bot-llm-text"):
            self.report.events.append({"at_ms": at_ms, "type": kind, "data": data})
        match kind:
            case "bot-started-speaking":
                self._agent_speaks.set()
                self._agent_silent.clear()
            case "bot-stopped-speaking":
                self._agent_silent.set()
            case "bot-llm-started":
                self._answering = True
            case "bot-llm-stopped":
                self._answering = False
            case "error":
                self._reason = str(data.get("error", ""))
            case "bot-tts-text":
                self._reply.append(data["text"] + " ")
            case "user-transcription" if data.get("final") and self._turn is not None:
                self._turn.heard = f"{self._turn.heard} {data['text']}".strip()
                self._show(f"  heard as: {data['text']}")
            case "server-message":
                self._server_message(data)

    def _server_message(self, data: dict[str, Any]) -> None:
        turn = self._turn
        match data.get("type"):
            case "goodbye":
                self._reason = f"the call has ended: {data.get('reason', '')}"
            case "turn-latency" if turn is not None:
                turn.latency = {k: v for k, v in data.items() if k != "type"}
                self._show(f"  answered in {data['total_ms']} ms")
            case "interrupted":
                if len(self.report.turns) > 1:
                    cut = self.report.turns[-2]
                    cut.interrupted = {"heard": data["heard"], "unheard": data["unheard"]}
                    cut.reply = self._end_reply()
                self._show(f"  interrupted after: {data['heard']!r}")
            case "backchannel" | "false-interruption":
                self._show(f"  (paused and went on: {data.get('text', '')!r})")

    def save(self, directory: Path) -> None:
        """Writes both sides' audio and the events into `directory`."""
        directory.mkdir(parents=True, exist_ok=True)
        for name, rate, pieces in (
            ("agent", RATE_IN, self.leg.heard),
            ("caller", RATE_OUT, self.leg.said),
        ):
            with wave.open(str(directory / f"{name}.wav"), "wb") as file:
                file.setnchannels(1)
                file.setsampwidth(2)
                file.setframerate(rate)
                file.writeframes(np.concatenate(pieces).tobytes() if pieces else b"")
        report = json.dumps(self.report.as_dict(), indent=1)
        (directory / "report.json").write_text(report)
