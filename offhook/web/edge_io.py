"""The edge: all calls of one process, and what they share. The composition root."""

import asyncio
import json
import time
import uuid
from collections.abc import Awaitable, Callable
from dataclasses import asdict
from typing import Any

from aioice.ice import get_host_addresses
from aiortc import RTCIceServer
from loguru import logger

from offhook.media.clock_io import PacketClock
from offhook.media.leg import Leg
from offhook.media.recording_io import RecordingWriter
from offhook.pipeline.agents_io import FrontDeskAgent, SilentAgent
from offhook.pipeline.bot_io import Bot, run_bot
from offhook.pipeline.call_io import Agent, Call, Engines
from offhook.pipeline.events import (
    CallEnded,
    CallStarted,
    Event,
    Interrupted,
    PlayoutResumed,
    TurnLatency,
)
from offhook.pipeline.frontdesk import Action, Hangup
from offhook.pipeline.hearing_io import Ears
from offhook.pipeline.pocketsphinx_io import PocketSphinxRecognizer
from offhook.pipeline.recognizer import EngineError, Recognizer
from offhook.pipeline.remote_recognizer_io import RemoteRecognizer
from offhook.pipeline.remote_synthesizer_io import RemoteSynthesizer
from offhook.pipeline.smart_turn_io import SmartTurn
from offhook.pipeline.synthesizer import Synthesizer
from offhook.pipeline.vad_io import VadBatch
from offhook.signaling.peer_io import PeerLeg, use_addresses
from offhook.signaling.smallwebrtc import Candidates, Offer
from offhook.web import tracing_io
from offhook.web.config import Config, ConfigError
from offhook.web.engines_io import open_synthesizer
from offhook.web.logs import kind
from offhook.web.loop_io import spare_what_is_loaded
from offhook.web.memory_io import give_back_freed, let_go_of_code
from offhook.web.metrics import Metrics

LATE_MS = 40
"""Packets leaving this late (99th percentile) mean the process is full, whatever the count."""
RETRY_AFTER_SECONDS = 10
WORKER_RETRY_SECONDS = 5
"""How often a speech worker that is not there is looked for, before any call is taken."""
GOODBYE_SECONDS = 0.2
"""For the goodbye to leave before the lines close."""
QUALITY_SECONDS = 2
"""How often callers' programs are told how their line is doing."""


class Busy(Exception):
    """No more calls now."""


class UnknownPeer(KeyError):
    """There is no such pc_id."""


class Edge:
    """Everything one process needs to take calls."""

    def __init__(self, config: Config, bot: Bot | None = None) -> None:
        self.config = config
        self._bot = bot
        self.clock = PacketClock()
        self.legs: dict[str, PeerLeg] = {}
        self.metrics = Metrics(
            lambda: [leg.statistics() for leg in self.legs.values()],
            self.clock.lateness_ms,
            lambda: len(asyncio.all_tasks()),
        )
        self.ready = False
        self.draining = False
        self._calls: dict[str, asyncio.Task[None]] = {}
        self._closing: set[asyncio.Task[None]] = set()
        self._recordings: RecordingWriter | None = None
        self._engines: Engines
        self._tracing = False
        self._quality: asyncio.Task[None]
        self._awaited: list[Callable[[], Awaitable[str]]] = []
        """Workers without which no call is taken; each gives the name of its engine."""
        self._loading: asyncio.Task[None] | None = None
        """Waits for them."""

    # --- life ---

    async def start(self) -> None:
        """Load every engine of this process before the first call. Raises EngineError."""
        config = self.config
        self._tracing = tracing_io.set_up(config.tracing)
        if config.webrtc.addresses:
            use_addresses(config.webrtc.addresses)
        elif config.server.local:
            # aioice leaves out loopback, the one address that is there without any network.
            use_addresses(["127.0.0.1", "::1", *get_host_addresses(True, True)])
        started = time.perf_counter()
        agent = "your bot"
        if self._bot is None:  # a bot brings its own
            agent = await self._load_engines()
        if config.recording.enabled:
            self._recordings = RecordingWriter(config.recording.directory)
        spare_what_is_loaded()
        give_back_freed()
        let_go_of_code()
        self._quality = asyncio.create_task(self._tell_quality(), name="quality")
        self.ready = not self._awaited
        if self._awaited:
            self._loading = asyncio.create_task(self._wait_for_workers(), name="speech workers")
        how = "ready" if self.ready else "waiting for the speech worker, all else ready"
        logger.info("{} in {:.1f} s: {}", how, time.perf_counter() - started, agent)

    async def _load_engines(self) -> str:
        """Load and warm up what all calls share; what that is, in words. Raises EngineError."""
        engines = self.config.engines
        ears = Ears(VadBatch(), SmartTurn(), self.config.turn_settings())
        recognizer = await self._open_recognizer()
        synthesizer = await self._open_synthesizer()
        options = engines.stream_options(), engines.voice_options()
        self._engines = Engines(ears, recognizer, synthesizer, *options)
        self.clock.after = ears.vad.run
        names = f"hears with {recognizer.name}, speaks with {synthesizer.name}"
        return f"{names}, agent {self.config.agent.kind}"

    async def _open_recognizer(self) -> Recognizer:
        """PocketSphinx, or whatever the worker at the configured address runs."""
        engines = self.config.engines
        if not engines.asr_url:
            if engines.asr != "pocketsphinx":
                raise ConfigError("engines.asr_url: this engine runs in a worker")
            recognizer = PocketSphinxRecognizer(engines.asr_processes)
            await recognizer.start()
            return recognizer
        name = "" if engines.asr == "pocketsphinx" else engines.asr
        remote = RemoteRecognizer(engines.asr_url, engines.asr_api_key, name)

        async def start() -> str:
            await remote.start(engines.stream_options())
            return remote.name

        if engines.asr_preload is not False:
            self._awaited.append(start)
        return remote

    async def _open_synthesizer(self) -> Synthesizer:
        """A voice of this process, or whatever the worker at the configured address runs."""
        engines = self.config.engines
        if not engines.tts_url:
            if engines.tts == "qwen3-tts":
                raise ConfigError("engines.tts_url: this engine runs in a worker")
            synthesizer = open_synthesizer(engines.tts, engines.tts_models())
            await synthesizer.start()
            try:
                synthesizer.open(engines.voice_options()).cancel()
            except ValueError as error:
                raise ConfigError(f"engines.tts: {error}") from error
            return synthesizer
        name = engines.tts if engines.tts == "qwen3-tts" else ""
        remote = RemoteSynthesizer(engines.tts_url, engines.tts_api_key, name)

        async def start() -> str:
            await remote.start(engines.voice_options())
            return remote.name

        if engines.tts_preload is not False:
            self._awaited.append(start)
        return remote

    async def _wait_for_workers(self) -> None:
        """Until they have loaded no call is taken."""

        async def started(start: Callable[[], Awaitable[str]]) -> str:
            while True:
                try:
                    return await start()
                except EngineError as error:
                    logger.error("not ready: {}", error)
                    await asyncio.sleep(WORKER_RETRY_SECONDS)

        names = await asyncio.gather(*map(started, self._awaited))
        self.ready = True
        logger.info("ready: the speech worker runs {}", ", ".join(names))

    async def drain(self) -> None:
        """Take no more calls and wait for those in progress, up to the configured time."""
        self.draining = True
        if self._calls:
            logger.info("draining {} calls", len(self._calls))
            await asyncio.wait(self._calls.values(), timeout=self.config.server.drain_seconds)

    async def close(self) -> None:
        """End what is left of the calls and free everything."""
        self.ready = False
        reason = "the server is shutting down"
        for leg in self.legs.values():
            self._tell(leg, {"type": "goodbye", "reason": reason})
        if self.legs:
            await asyncio.sleep(GOODBYE_SECONDS)
        for leg in tuple(self.legs.values()):
            leg.close(reason)
        await asyncio.gather(*self._calls.values(), *self._closing, return_exceptions=True)
        own = [task for task in (self._quality, self._loading) if task is not None]
        for task in own:
            task.cancel()
        await asyncio.gather(*own, return_exceptions=True)
        if self._bot is None:
            await self._engines.close()
        if self._recordings is not None:
            await asyncio.to_thread(self._recordings.close)

    # --- signalling ---

    def ice_servers(self) -> list[dict[str, Any]]:
        return [s.model_dump(exclude_none=True) for s in self.config.webrtc.ice_servers]

    def admit(self) -> None:
        """Raises Busy when one more call would harm those in progress."""
        reason = None
        if self.draining:
            reason = "draining"
        elif not self.ready:
            reason = "loading"
        elif len(self.legs) >= self.config.server.max_calls:
            reason = "full"
        elif self.legs and self.clock.lateness_ms() > LATE_MS:
            reason = "late"
        if reason is not None:
            self.metrics.refused.labels(reason).inc()
            raise Busy(reason)

    async def offer(self, offer: Offer) -> tuple[str, str]:
        """Answer an offer: our SDP and the pc_id. Raises OfferError, UnknownPeer, Busy."""
        if offer.pc_id is not None and not offer.restart_pc:
            leg = self._leg(offer.pc_id)
            return await leg.answer(offer.sdp), leg.call_id
        if offer.pc_id in self.legs:
            # aiortc cannot restart ICE: the client gets a fresh call.
            self.legs[offer.pc_id].close("the caller reconnects")
        else:
            self.admit()
        call_id = uuid.uuid4().hex[:12]
        servers = self.config.webrtc.ice_servers
        leg = PeerLeg(
            call_id,
            [RTCIceServer(s.urls, s.username, s.credential) for s in servers],
            self.config.opus.settings(),
            self.config.webrtc.ping_timeout_seconds,
        )
        self.legs[call_id] = leg
        try:
            answer = await leg.answer(offer.sdp)
        except BaseException:
            del self.legs[call_id]
            await leg.hang_up("the offer was refused")
            raise
        self._calls[call_id] = asyncio.create_task(
            self._run_call(leg, offer.request_data), name=f"call {call_id}"
        )
        return answer, call_id

    async def candidates(self, request: Candidates) -> None:
        """Take trickled candidates. Raises OfferError, UnknownPeer."""
        leg = self._leg(request.pc_id)
        for c in request.candidates:
            await leg.add_candidate(c.candidate, c.sdp_mid, c.sdp_mline_index)

    def _leg(self, pc_id: str) -> PeerLeg:
        leg = self.legs.get(pc_id)
        if leg is None or leg.closed is not None:
            raise UnknownPeer(pc_id)
        return leg

    # --- calls ---

    async def _run_call(self, leg: PeerLeg, body: dict[str, Any]) -> None:
        self.clock.add(leg)
        try:
            if self._bot is not None:
                await self._run_bot(self._bot, leg, body)
            else:
                await self._converse(leg)
        except Exception:
            logger.exception("{}: the call failed", leg.call_id)
        finally:
            await leg.hang_up("the server failed")
            self.clock.remove(leg)
            self.legs.pop(leg.call_id, None)
            self._calls.pop(leg.call_id, None)

    async def _run_bot(self, bot: Bot, leg: PeerLeg, body: dict[str, Any]) -> None:
        def tell(event: Event) -> None:
            self.metrics.take(event)
            self._report(leg, event)

        tell(CallStarted(leg.heard_ms, "bot", "its own", "its own"))
        try:
            await run_bot(bot, leg, body)
        finally:
            reason = leg.closed or "the bot ended"
            tell(CallEnded(leg.heard_ms, reason, leg.statistics().as_dict()))

    async def _converse(self, leg: PeerLeg) -> None:
        call = Call(
            leg,
            self._engines,
            self._make_agent,
            self.config.server.max_call_minutes * 60,
            self._tracing,
        )
        call.listeners.append(self.metrics.take)
        call.listeners.append(lambda event: self._report(leg, event))
        if self._recordings is not None:
            self._record(leg, call)
        await call.run()

    def _make_agent(self, call: Call) -> Agent:
        config = self.config
        if config.agent.kind == "openai":
            from offhook.pipeline.openai_agent_io import OpenAIAgentSettings, openai_agent

            a = config.agent
            settings = OpenAIAgentSettings(a.model, a.base_url, a.api_key, a.instructions)
            llm, end_call = openai_agent(settings, call.hang_up)
            return Agent("openai", llm, [end_call])

        async def act(action: Action) -> None:
            logger.bind(call=call.leg.call_id, action=asdict(action)).info(
                "{}: front desk: {}", call.leg.call_id, action
            )
            if isinstance(action, Hangup):
                await call.hang_up()

        if config.agent.kind == "silent":
            return Agent("silent", SilentAgent())
        desk = FrontDeskAgent(config.business(), act)
        return Agent("frontdesk", desk, on_cut=desk.cut, on_idle=desk.prompt)

    def _record(self, leg: Leg, call: Call) -> None:
        assert self._recordings is not None
        recorder = self._recordings.open(leg.call_id, time.time())
        leg.listen(lambda heard, said, now: recorder.tick(heard, said))

        def note(event: Event) -> None:
            fields = asdict(event)
            recorder.timeline.write(kind(event), fields.pop("at_ms"), **fields)
            if isinstance(event, CallEnded):
                recorder.close()

        call.listeners.append(note)

    def _report(self, leg: Leg, event: Event) -> None:
        """To the log, to the caller's page, to whoever listens."""
        fields = asdict(event)
        line = logger.bind(call=leg.call_id, event=kind(event), **fields)
        level = "DEBUG" if kind(event) in ("caller_partial", "speech_started") else "INFO"
        line.log(level, "{}: {} {}", leg.call_id, kind(event), _brief(fields))
        message = _for_the_page(event)
        if message is not None:
            self._tell(leg, message)
        if self._tracing and isinstance(event, TurnLatency):
            tracing_io.latency_spans(leg.call_id, event)

    def _tell(self, leg: Leg, data: dict[str, Any]) -> None:
        leg.send_message(json.dumps({"label": "rtvi-ai", "type": "server-message", "data": data}))

    async def _tell_quality(self) -> None:
        while True:
            await asyncio.sleep(QUALITY_SECONDS)
            for leg in tuple(self.legs.values()):
                s = leg.statistics()
                if s.mos is not None and leg.closed is None:
                    quality = {
                        "mos": round(s.mos, 2),
                        "loss": round(s.loss, 4),
                        "jitter_ms": round(s.jitter_ms, 1),
                        "round_trip_ms": s.round_trip_ms and round(s.round_trip_ms),
                        "buffer_ms": round(s.buffer_ms),
                    }
                    self._tell(leg, {"type": "quality", **quality})


def _brief(fields: dict[str, Any]) -> str:
    shown = (f"{k}={v!r}" for k, v in fields.items() if k not in ("at_ms", "statistics"))
    return " ".join(shown)


def _for_the_page(event: Event) -> dict[str, Any] | None:
    """Our own messages beside RTVI's."""
    match event:
        case TurnLatency(turn=turn, spans=spans, total_ms=total):
            listed = [{"name": name, "ms": ms} for name, ms in spans]
            return {"type": "turn-latency", "turn": turn, "spans": listed, "total_ms": total}
        case Interrupted(heard=heard, unheard=unheard):
            return {"type": "interrupted", "heard": heard, "unheard": unheard}
        case PlayoutResumed(text=""):
            return {"type": "false-interruption"}
        case PlayoutResumed(text=text):
            return {"type": "backchannel", "text": text}
        case CallEnded(reason=reason):
            return {"type": "goodbye", "reason": reason}
        case CallStarted(agent=agent, recognizer=recognizer, synthesizer=synthesizer):
            return {"type": "welcome", "agent": agent, "hears": recognizer, "speaks": synthesizer}
    return None
