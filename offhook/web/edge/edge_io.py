"""The edge: all calls of one process and what they share. The composition root."""

import asyncio
import json
import os
import time
import uuid
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from secrets import token_urlsafe
from typing import Any, TypeVar

import numpy as np
from aioice.ice import get_host_addresses
from aiortc import RTCIceServer
from loguru import logger

from offhook.media.clock_io import PacketClock
from offhook.media.end_reason import FAILURES, End, EndReason
from offhook.media.leg import Claim, Leg, LegError, NoPorts
from offhook.media.memory_io import give_back_memory
from offhook.media.pcm import Pcm
from offhook.media.recording_io import RecordingWriter, check_writable
from offhook.pipeline.conversation.bot_io import Bot, BotCall
from offhook.pipeline.conversation.call_info import as_dict
from offhook.pipeline.conversation.call_io import Agent, Call
from offhook.pipeline.conversation.events import CallEnded, CallStarted, Event, TurnLatency
from offhook.pipeline.conversation.sentences import USUAL_LANGUAGE, Occasion, sentence
from offhook.signaling.ice.port_io import IcePort
from offhook.signaling.peer_io import PeerLeg, use_addresses
from offhook.signaling.sdp import check_offer
from offhook.signaling.smallwebrtc import Candidates, Offer
from offhook.telephony.call_record import CallRecord
from offhook.telephony.carriers.call_io import CarrierCall
from offhook.telephony.carriers.leg_io import CarrierLeg
from offhook.telephony.carriers.settings import CarrierSettings
from offhook.telephony.sip.call_io import SipCall
from offhook.telephony.sip.endpoint_io import Dial, SipEndpoint
from offhook.telephony.sip.media.leg_io import SipLeg
from offhook.telephony.sip.trunks.trunks import SipSettings
from offhook.web.config.config import Agent as AgentSettings
from offhook.web.config.config import Config, ConfigError, WebRtc
from offhook.web.edge import tracing_io
from offhook.web.edge.admission_io import CallAdmission
from offhook.web.edge.agent_probe_io import AgentProbes
from offhook.web.edge.agents_io import CallAgents
from offhook.web.edge.carriers.carriers_io import Carriers
from offhook.web.edge.page_messages import for_the_page
from offhook.web.edge.phones import DialRequest, EndedCall, callers_allowed, is_risky
from offhook.web.edge.program_calls_io import ProgramCalls
from offhook.web.edge.refusals import Busy, NoPhones
from offhook.web.edge.resume.recovery_io import Recovery
from offhook.web.edge.resume.resumption_io import Resumption
from offhook.web.edge.resume.saved_call import SEPARATOR, WEBRTC, SavedCall
from offhook.web.edge.whip_calls_io import WhipCalls
from offhook.web.engines.call_engines_io import CallEngines
from offhook.web.engines.choice import AutoWorker
from offhook.web.engines.engines_io import open_synthesizer
from offhook.web.http.access import AccessPolicy
from offhook.web.http.shares import NOBODY, Holders, by_address
from offhook.web.process.logs import brief, for_log, for_recording, kind
from offhook.web.process.loop_io import collect_between_packets, freeze_loaded_objects
from offhook.web.process.metrics import Metrics
from offhook.web.realtime.calls_io import RealtimeCalls
from offhook.web.realtime.protocol.frozen import fault_of_frozen
from offhook.web.speech_api.server_io import SpeechServer

E = TypeVar("E")
P = TypeVar("P", bound=PeerLeg)

Direct = Callable[[Call, Agent], Agent]
"""Puts a call under the direction of a program: returns the call's agent with a `direction`."""

FAREWELL_S = 10.0
"""Time limit in s for the announcement to callers that they are being disconnected; then they are
disconnected without its rest."""
MOVE_S = 3.0
"""Time limit in s for calls to continue at another server before this one ends; then those that
have not moved are ended."""
GOODBYE_S = 0.2
"""Time in s for the farewell to leave before the lines close."""
CARRIER_RING_S = 60.0
"""Default ringing time in s of a call over a carrier."""
QUALITY_S = 2
"""Interval in s at which callers' programs get statistics of their line."""
ENDED_CALLS = 500
"""Ended phone calls remembered for programs that ask later, about 1 MB; the oldest are dropped."""


@dataclass(frozen=True)
class Past:
    """The conversation that a call continues."""

    saved: SavedCall
    opening: Occasion
    """What the sentence with which it goes on is about."""


class UnknownPeer(KeyError):
    """Raised for an unknown pc_id."""


class Edge:
    """Everything one process needs to handle calls."""

    def __init__(
        self,
        config: Config,
        bot: Bot | None = None,
        secret_key: str = "",
        auto: Sequence[AutoWorker] = (),
    ) -> None:
        """`secret_key`: key of client secrets where the configuration has none; "" for a random
        one. `auto`: workers of the engines that take over from the embedded ones."""
        self.config = config
        self.secret_key = secret_key or token_urlsafe()
        self._bot = bot
        self.programs = ProgramCalls(self)
        """The calls on which programs decide."""
        self._access = config, self._access_of(config)
        self.clock = PacketClock()
        self.opus = config.opus.settings()
        self.legs: dict[str, Leg] = {}
        self.sip: SipEndpoint | None = None
        """SIP phones, if configured."""
        self.carriers: Carriers | None = None
        """Carriers' streams, if configured."""
        self.whip = WhipCalls(self)
        self.ice_port: IcePort | None = None
        """The port of all WebRTC calls, if configured."""
        self.ended: dict[str, EndedCall] = {}
        """The last ENDED_CALLS phone calls, by their ids."""
        self.metrics = Metrics(
            lambda: [leg.statistics() for leg in self.legs.values()],
            self.clock.lateness_ms,
            lambda: len(asyncio.all_tasks()),
            lambda: self.overloaded,
        )
        redis = "" if bot is not None else config.server.redis
        self.resumption = Resumption(redis, self.metrics) if redis else None
        """Calls that can continue at another server, if configured."""
        self.recovery: Recovery | None = None
        """The same for phone calls, if configured."""
        self._room = CallAdmission(
            self.clock,
            lambda reason: self.metrics.refused.labels(reason).inc(),
            config.server.max_lateness_ms,
        )
        self.speech: SpeechServer | None = None
        """The speech API on the same engines, if enabled and available."""
        self.probes = AgentProbes(config)
        self.realtime = RealtimeCalls(
            config.server.max_call_minutes * 60, lambda: self.config.realtime.mcp_servers
        )
        self.agents = CallAgents(lambda: self.config)
        self.ready = False
        self.draining = False
        self._peers: dict[str, PeerLeg] = {}
        """Legs whose signalling also passes through us, by pc_id."""
        self._calls: dict[str, asyncio.Task[None]] = {}
        self.conversations: dict[str, Call | BotCall] = {}
        """The conversations of the calls."""
        self._not_logged: dict[str, CallStarted] = {}
        """The beginnings of calls that nobody has said anything in: logged with the first that
        happens, so that whoever calls and says nothing writes one line a minute."""
        self._started: set[str] = set()
        """Calls whose CallStarted was emitted, so CallEnded must be too."""
        self._recordings: RecordingWriter | None = None
        self._writer = ThreadPoolExecutor(1, "call records")
        self.engines = CallEngines(config, self.metrics, auto)
        self._tracing = False
        self._quality: asyncio.Task[None]
        self._measuring: asyncio.Task[None]
        self._collecting: asyncio.Task[None]
        self._call_begun = asyncio.Event()
        self._loading: asyncio.Task[None] | None = None
        """The task that waits for them."""

    @property
    def access(self) -> AccessPolicy:
        """Returns the access policy of the current configuration."""
        of, policy = self._access
        if of is not self.config:
            policy = self._access_of(self.config)
            self._access = self.config, policy
        return policy

    def _access_of(self, config: Config) -> AccessPolicy:
        return replace(config.access(), secret_called=self.programs.secrets_of(config).find)

    # --- life ---

    async def start(self) -> None:
        """Loads all engines of this process. Raises EngineError."""
        config = self.config
        self._tracing = tracing_io.set_up(config.tracing)
        check_realtime(config)
        if config.webrtc.addresses:
            use_addresses(config.webrtc.addresses)
        elif config.server.local:
            # aioice omits loopback, the only address without a network.
            use_addresses(["127.0.0.1", "::1", *get_host_addresses(True, True)])
        if config.webrtc.port:
            self.ice_port = await self._open_ice_port(config.webrtc)
            self.clock.add_source(self.ice_port)
        started = time.perf_counter()
        if self.resumption is not None:
            self.resumption.start()
        agent = "your bot"
        if self._bot is None:  # a bot brings its own
            agent = f"{await self.engines.open()}, agent {config.agent.kind}"
            self.clock.after = self.engines.configured.turn_detection.vad.run
            if config.speech.enabled:
                self.speech = self._serve_programs()
        if config.recording.enabled:
            self._recordings = self._open_recordings(config.recording.directory)
        if config.sip is not None:
            self.sip = await self._open_phones(config.sip)
            self.recovery = self._open_recovery(self.sip, config.sip.recovery_seconds)
        if config.carriers:
            self.carriers = await self._open_carriers(config.carriers)
        freeze_loaded_objects()
        give_back_memory()
        self._quality = asyncio.create_task(self._send_quality(), name="quality")
        self._measuring = asyncio.create_task(
            self._room.measure(lambda: len(self.legs), self._call_in_progress), name="load"
        )
        self._collecting = asyncio.create_task(
            collect_between_packets(self.clock.send_ahead, self._call_in_progress),
            name="garbage collection",
        )
        self.probes.start()
        self.engines.start_auto()
        self.ready = not self.engines.awaits_workers
        if not self.ready:
            self._loading = asyncio.create_task(self._wait_for_workers(), name="speech workers")
        how = "ready" if self.ready else "waiting for the speech worker, all else ready"
        logger.info("{} in {:.1f} s: {}", how, time.perf_counter() - started, agent)

    def _open_recordings(self, directory: Path) -> RecordingWriter:
        try:
            check_writable(directory)
        except OSError as error:
            logger.error("calls are not recorded until this is fixed: {}", error)
        return RecordingWriter(directory, self.metrics.recordings_failed.inc)

    async def _open_ice_port(self, settings: WebRtc) -> IcePort:
        """Raises ConfigError."""
        public = [settings.public_address] if settings.public_address else []
        port = IcePort(settings.port, public)
        try:
            await port.open()
        except OSError as error:
            raise ConfigError(f"webrtc.port: {error.strerror}") from error
        self.metrics.add_ice_port(port)
        return port

    async def _open_phones(self, settings: SipSettings) -> SipEndpoint:
        """Raises ConfigError."""
        sip = SipEndpoint(settings, self)
        try:
            await sip.start()
        except (OSError, ValueError) as error:
            await sip.close()
            reason = error.strerror if isinstance(error, OSError) else str(error)
            raise ConfigError(f"sip: {reason} (offhook doctor says more)") from error
        sip.user_agent.accepts_calls = lambda: self.ready and not self.draining
        sip.decision = self.programs.decision
        self.metrics.add_phone_collector(sip)
        level = "WARNING" if is_risky(settings) else "INFO"
        logger.log(level, "who may call by phone: {}", callers_allowed(settings))
        return sip

    def _open_recovery(self, sip: SipEndpoint, lease_s: float) -> Recovery | None:
        """Raises ConfigError."""
        if self.resumption is None or not lease_s:
            return None
        redis = self.config.server.redis
        recovery = Recovery(
            redis, sip, self.resumption, self.metrics, lease_s, self._lines_for_recovery
        )
        recovery.start()
        return recovery

    def _lines_for_recovery(self, coming: int) -> int:
        """Number of calls of other edges that this one can continue now."""
        if self.draining or not self.ready:
            return 0
        most = self.config.server.max_calls
        if self._room.reason(len(self.lines), coming, most):
            return 0
        return most - len(self.lines) - coming

    async def _open_carriers(self, settings: tuple[CarrierSettings, ...]) -> Carriers:
        """Raises ConfigError."""
        carriers = Carriers(settings, self.config.server.host, self)
        try:
            await carriers.start()
        except (OSError, ValueError, LegError) as error:
            await carriers.close()
            reason = error.strerror if isinstance(error, OSError) else str(error)
            raise ConfigError(f"carriers: {reason}") from error
        carriers.calls.decision = self.programs.decision
        self.clock.add_source(carriers.connections)
        return carriers

    def health(self) -> dict[str, Any]:
        """Returns the body of GET /healthz."""
        parts = {"engines": self.engines.health(), "workers": self.engines.worker_counts()}
        state = {"status": "ok", "overloaded": self.overloaded}
        return {**state, **{name: part for name, part in parts.items() if part}}

    def _serve_programs(self) -> SpeechServer:
        """Builds the speech API on the engines of the calls, which have priority."""
        engines, registry = self.engines.for_programs(), self.metrics.registry
        settings = self.config
        tts = settings.tts
        speech = SpeechServer(
            *(settings.speech, *engines, registry, tts.audio_cache),
            audio_cache_mb=tts.audio_cache_mb,
        )
        speech.calls_come_first = True
        speech.admission.shares = settings.server.shares
        return speech

    async def _wait_for_workers(self) -> None:
        """Waits for required workers; no call is admitted before."""
        await self.engines.wait()
        self.ready = True

    async def drain(self) -> None:
        """Stops admitting calls and waits for those in progress up to the configured time.
        Remaining callers are told, unless that time is 0."""
        self.draining = True
        if self.speech is not None:
            self.speech.begin_drain()
        if self._calls:
            logger.info("draining {} calls", len(self._calls))
            seconds = self.config.server.drain_seconds
            await asyncio.wait(self._calls.values(), timeout=seconds)
            if self.resumption is not None:
                await self._move_calls(self.resumption)
            if seconds and self.conversations:
                words = (call.end_with_a_word() for call in self.conversations.values())
                with suppress(TimeoutError):
                    async with asyncio.timeout(FAREWELL_S):
                        told = await asyncio.gather(*words, return_exceptions=True)
                        for fault in filter(None, told):
                            logger.error(
                                "a caller was disconnected without an announcement: {}", fault
                            )

    async def _move_calls(self, resumption: Resumption) -> None:
        """Sends the callers who can continue elsewhere to another server."""
        legs = await resumption.movable()
        handing = None
        if self.recovery is not None:
            handing = asyncio.create_task(self.recovery.hand_over(MOVE_S), name="hand over")
        legs = [leg for leg in legs if not isinstance(leg, SipLeg)]
        for leg in legs:
            if isinstance(leg, PeerLeg):
                self._send(leg, {"type": "reconnect"})
            elif isinstance(leg, CarrierLeg):
                leg.release(End.CONTINUED_ELSEWHERE)
        if moving := [self._calls[leg.call_id] for leg in legs if leg.call_id in self._calls]:
            logger.info("{} calls are sent to another server", len(moving))
            await asyncio.wait(moving, timeout=MOVE_S)
            for leg in legs:  # a stock client connects anew once its connection is lost
                leg.close(End.CONTINUED_ELSEWHERE)
            await asyncio.wait(moving, timeout=MOVE_S)
        if handing is not None:
            gone = [self._calls[call_id] for call_id in await handing if call_id in self._calls]
            if gone:
                await asyncio.wait(gone, timeout=MOVE_S)

    async def close(self) -> None:
        """Ends remaining calls and releases everything."""
        self.ready = False
        reason = End.SHUTTING_DOWN
        for leg in self.legs.values():
            self._send(leg, {"type": "goodbye", "reason": reason})
        if self.legs:
            await asyncio.sleep(GOODBYE_S)
        for leg in tuple(self.legs.values()):
            leg.close(reason)
        await asyncio.gather(*self._calls.values(), return_exceptions=True)
        await self.whip.close()
        if self.recovery is not None:
            await self.recovery.close()
        if self.resumption is not None:
            await self.resumption.close()
        if self.sip is not None:
            await self.sip.close()
        if self.carriers is not None:
            await self.carriers.close()
        await self.agents.close()
        if self.ice_port is not None:
            await self.ice_port.close()
        await self.probes.close()
        await self.programs.incoming.close()
        tasks = (self._quality, self._measuring, self._collecting, self._loading)
        own = [t for t in tasks if t is not None]
        for task in own:
            task.cancel()
        await asyncio.gather(*own, return_exceptions=True)
        if self.speech is not None:
            self.speech.stop_streams()
            await self.speech.close()
        if self._bot is None:
            await self.engines.close()
        await asyncio.to_thread(self._writer.shutdown)
        if self._recordings is not None:
            await asyncio.to_thread(self._recordings.close)

    # --- signalling ---

    def ice_servers(self) -> list[dict[str, Any]]:
        return [s.model_dump(exclude_none=True) for s in self.config.webrtc.ice_servers]

    def default_agent_name(self) -> dict[str, str] | None:
        """Returns the agent and engines as shown to callers before the call; None while loading."""
        if not self.ready:
            return None
        if self._bot is not None:
            return {"agent": "bot", "hears": "its own", "speaks": "its own"}
        names = self.engines.names()
        return {"agent": self.config.agent.kind, "hears": names["asr"], "speaks": names["tts"]}

    @property
    def overloaded(self) -> bool:
        """Whether new calls are refused because packets of those in progress leave late."""
        return self._room.sheds(len(self.legs))

    def admit(
        self, holders: Holders | None = None, coming: Sequence[Claim | None] = ()
    ) -> Claim | None:
        """Raises Busy if another call would harm those in progress and the `coming` ones, which are
        admitted but have no line yet, or if its `holders` have their share; None: those of a trunk
        or carrier, whose lines have a limit of their own. Returns `Leg.claim`. A caller who waits
        for too long may be disconnected for it."""
        makes_room = self.check_room(holders, coming)
        if makes_room is not None:
            makes_room.close(End.GAVE_WAY)
        return None if holders is None else Claim(holders, time.monotonic())

    def check_room(
        self, holders: Holders | None = None, coming: Sequence[Claim | None] = ()
    ) -> Leg | None:
        """Raises Busy if `admit` would; returns the leg that would be closed."""
        if self.draining:
            raise self._room.refusal("draining")
        if not self.ready:
            raise self._room.refusal("loading")
        server = self.config.server
        legs = self.legs.values()
        return self._room.check(legs, coming, server.max_calls, holders, server.shares)

    def admit_stranger(self, address: str) -> Claim:
        """Admits a call by phone that is no trunk's; returns `Leg.claim`. Raises Busy."""
        claim = self.admit(by_address(address))
        assert claim is not None
        return claim

    async def offer(
        self,
        offer: Offer,
        agent: str = "",
        holders: Holders = NOBODY,
        *,
        is_operators: bool = False,
    ) -> tuple[str, str]:
        """Answers an SDP offer and returns the answer and the pc_id. `agent` is a name ("" for the
        default), and `holders` are those for whom the line is counted; the operator's page is told
        what fails. Raises OfferError, UnknownPeer, Busy, and DialError for an unknown agent. With
        `resumption` the pc_id has a token with which the caller may come back to any server."""
        self.agents.check(agent)
        check_offer(offer.sdp)
        if offer.pc_id is not None and not offer.restart_pc:
            leg = self._leg(offer.pc_id)
            return await leg.answer(offer.sdp), offer.pc_id
        if offer.pc_id is not None and (known := self._peer(offer.pc_id)) is not None:
            # The client has a new peer connection, with which DTLS begins anew: it is a new call.
            known.close(End.RECONNECTED)
            claim: Claim | None = Claim(holders, time.monotonic())
        else:
            claim = self.admit(holders)
        leg = self.webrtc_leg(uuid.uuid4().hex[:12])
        leg.claim, leg.is_operators = claim, is_operators
        pc_id = leg.call_id
        if self.resumption is not None:
            returning = (offer.pc_id or "").partition(SEPARATOR)[2]
            pc_id += SEPARATOR + self.resumption.expect(leg.call_id, WEBRTC, agent, returning)
        try:
            return await self.begin_peer(leg, offer.sdp, offer.request_data, agent), pc_id
        except BaseException:
            if self.resumption is not None:
                self.resumption.forget(leg.call_id)
            raise

    async def begin_peer(
        self,
        leg: PeerLeg,
        sdp: str,
        body: dict[str, Any],
        agent: str = "",
        direct: Direct | None = None,
    ) -> str:
        """Answers an admitted caller's offer on a new leg and begins the call. Raises OfferError,
        Busy if there is no UDP port for it, and DialError for an unknown agent."""
        self.agents.check(agent)
        self.legs[leg.call_id] = self._peers[leg.call_id] = leg
        try:
            answer = await leg.answer(sdp)
        except BaseException as error:
            del self.legs[leg.call_id], self._peers[leg.call_id]
            await leg.hang_up("the offer was refused")
            if isinstance(error, NoPorts):
                raise self.no_ports() from error
            raise
        self._begin(leg, body, agent, direct)
        return answer

    def no_ports(self) -> Busy:
        """Counts a refusal for want of a UDP port, says it in the log, and returns what to
        raise."""
        logger.bind(a_minute="ports").error(
            "calls are refused: no UDP port could be opened: see ulimit -n and "
            "net.ipv4.ip_local_port_range, or set [webrtc] port, which all calls share"
        )
        return self._room.refusal("ports")

    async def cancel(self, pc_id: str) -> None:
        """Ends the call on the caller's request; needed while its connection is not up. Raises
        UnknownPeer."""
        await self._leg(pc_id).hang_up(End.CALLER_HUNG_UP)

    async def candidates(self, request: Candidates) -> None:
        """Adds trickled ICE candidates. Raises OfferError, UnknownPeer."""
        leg = self._leg(request.pc_id)
        for c in request.candidates:
            await leg.add_candidate(c.candidate, c.sdp_mid, c.sdp_mline_index)

    def _leg(self, pc_id: str) -> PeerLeg:
        leg = self._peer(pc_id)
        if leg is None or leg.closed is not None:
            raise UnknownPeer(pc_id)
        return leg

    def _peer(self, pc_id: str) -> PeerLeg | None:
        call_id, _, token = pc_id.partition(SEPARATOR)
        if self.resumption is not None and not self.resumption.admits(call_id, WEBRTC, token):
            return None
        return self._peers.get(call_id)

    def webrtc_leg(self, call_id: str) -> PeerLeg:
        """Returns a leg that answers a browser's offer."""
        return self.peer_leg(PeerLeg, call_id)

    def peer_leg(self, kind: type[P], call_id: str) -> P:
        """Returns a leg of this class that answers an offer."""
        settings = self.config.webrtc
        servers = [RTCIceServer(s.urls, s.username, s.credential) for s in settings.ice_servers]
        return kind(call_id, servers, self.opus, settings.ping_timeout_seconds, self.ice_port)

    # --- calls ---

    def call_ids(self) -> list[str]:
        """Returns the public ids of all calls in progress."""
        phones = self.sip.calls if self.sip is not None else ()
        carried = self.carriers.calls.in_progress() if self.carriers is not None else ()
        return [*phones, *(c.call_id for c in carried), *map(self.name_of, self._peers)]

    def name_of(self, call_id: str) -> str:
        """Returns the public id of a call that is not by phone."""
        return call_id

    @property
    def lines(self) -> set[str]:
        """Returns the ids of the calls that hold a line: those that have ended do not, though their
        conversations take a moment to end."""
        return {call_id for call_id, leg in self.legs.items() if leg.closed is None}

    def public_id(self, leg: Leg) -> str:
        """Returns the public id of a leg's call; those of calls by phone are public."""
        return self.name_of(leg.call_id) if leg.call_id in self._peers else leg.call_id

    def line(self, call_id: str) -> Leg | None:
        """Returns the leg of a call that is not by phone."""
        return self._peers.get(call_id)

    def dial(self, dial: Dial) -> SipCall:
        """Calls a phone over SIP. Raises NoPhones, Busy, and DialError if it cannot be
        attempted."""
        if self.sip is None:
            raise NoPhones
        self.agents.check(dial.agent)
        if len(self.lines | self.sip.lines) >= self.config.server.max_calls:
            raise self._room.refusal("full")
        return self.sip.dial(dial)

    async def dial_by_carrier(self, asked: DialRequest) -> CarrierCall:
        """Calls a phone over a carrier. Raises NoPhones, Busy, and DialError."""
        if self.carriers is None:
            raise NoPhones
        self.agents.check(asked.agent)
        return await self.carriers.calls.dial(
            asked.carrier,
            asked.to,
            asked.caller,
            asked.agent,
            asked.ring_seconds or CARRIER_RING_S,
            asked.variables,
        )

    async def run_call(
        self,
        leg: Leg,
        agent: str,
        direct: Direct | None = None,
        *,
        returned: SavedCall | None = None,
    ) -> None:
        """Runs a call with the named agent ("" for the default) to its end. With `direct`, the
        agent only answers what a program asks it. `returned` is the conversation with a caller who
        was transferred in vain."""
        await self.begin_call(leg, agent, direct, returned)

    def begin_call(
        self,
        leg: Leg,
        agent: str,
        direct: Direct | None = None,
        returned: SavedCall | None = None,
    ) -> asyncio.Task[None]:
        """Starts a call as `run_call` does and returns its task, which the edge owns."""
        self.legs[leg.call_id] = leg
        return self._begin(leg, dict(leg.info.variables), agent, direct, returned)

    def saved(self, call_id: str, agent: str) -> SavedCall | None:
        """Returns the conversation of a call as it is now; None for a bot's, and for one that a
        program directs."""
        call = self.conversations.get(call_id)
        if not isinstance(call, Call) or call.is_directed:
            return None
        seconds, messages = int(call.duration_s), tuple(call.transcript())
        return SavedCall(agent, call.leg.info, seconds, call.dialog(), messages)

    # --- records ---

    def record(self, record: CallRecord) -> None:
        """Records a phone or carrier call that has ended."""
        self.programs.incoming.forget(record.call_id)
        self.realtime.drop(record.call_id)
        if self.recovery is not None:
            self.recovery.forget(record.call_id)
        if self.resumption is not None:
            self.resumption.forget(record.call_id)
        line = logger.bind(call=record.call_id, record=record.as_dict())
        if EndReason.of(record.end_reason).end is End.REFUSED:
            line = line.bind(a_minute=record.trunk)
        line.info(
            "{}: {} called {}, {:.1f} s: {}",
            record.call_id,
            (record.caller or "somebody") if record.direction == "inbound" else "we",
            record.called or "us",
            record.duration_seconds,
            record.end_reason,
        )
        call = self.sip.calls.get(record.call_id) if self.sip is not None else None
        if call is not None:
            if isinstance(call.leg, SipLeg):
                self.metrics.count_call(call.leg)
            self.ended[record.call_id] = EndedCall(record, call.progress)
            if len(self.ended) > ENDED_CALLS:
                del self.ended[next(iter(self.ended))]
        path = self.config.log.calls
        if record.edge == "sip" and record.end_reason == End.CONTINUED_ELSEWHERE:
            path = None  # the server that ends the call records all of it
        if path is not None:  # in a thread: a slow disk must not interrupt the audio of all calls
            self._writer.submit(_append, path, record.line())

    def _begin(
        self,
        leg: Leg,
        body: dict[str, Any],
        agent: str = "",
        direct: Direct | None = None,
        returned: SavedCall | None = None,
    ) -> asyncio.Task[None]:
        self._room.begin()
        running = self._run_call(leg, body, agent, direct, returned)
        with logger.contextualize(call=leg.call_id):  # of all lines of the task and of its tasks
            task = asyncio.create_task(running, name=f"call {leg.call_id}")
        self._calls[leg.call_id] = task
        self._call_begun.set()
        return task

    async def _run_call(
        self,
        leg: Leg,
        body: dict[str, Any],
        agent: str,
        direct: Direct | None,
        returned: SavedCall | None,
    ) -> None:
        try:
            if isinstance(leg, PeerLeg) and not await leg.until_connected():
                self._count_unconnected(leg)
                return
            self.clock.add(leg)
            saved = returned
            if self.recovery is not None and direct is None:
                self.recovery.expect(leg, agent)
            if self.resumption is not None and direct is None:
                saved = await self.resumption.restore(leg) or returned
            settings = self.agents.called(agent if saved is None else saved.agent)
            if settings.kind == "webhook":
                call_id = self.public_id(leg)
                decided = direct is not None or self.programs.incoming.state(call_id) is not None
                if not decided and not await self.programs.decide_connected(leg, settings):
                    return
                settings = self.programs.answering(call_id, settings)
                if (conversation := self.realtime.find(call_id)) is not None:
                    direct = conversation.direct
            if self._bot is not None:
                await self._run_bot(self._bot, leg, body)
            else:
                opening = Occasion.RESUMED if returned is None else Occasion.NOT_TRANSFERRED
                past = None if saved is None or direct is not None else Past(saved, opening)
                await self._converse(leg, settings, direct, past)
        except Exception:
            logger.exception("{}: the call failed", leg.call_id)
            if leg.call_id not in self._started:
                self.metrics.count_call_end(End.SERVER_FAILED)
        finally:
            try:
                await leg.hang_up(End.SERVER_FAILED)
            finally:
                await self._forget(leg)

    async def _forget(self, leg: Leg) -> None:
        """Drops all that there is of a call."""
        call_id, public_id = leg.call_id, self.public_id(leg)
        self._started.discard(call_id)
        self.clock.remove(leg)
        self.programs.incoming.forget(public_id)
        if self.resumption is not None:
            self.resumption.forget(call_id)
        try:
            await self.realtime.close(public_id)
        finally:
            for known in (self.legs, self._peers, self._calls):
                known.pop(call_id, None)

    def _count_unconnected(self, leg: PeerLeg) -> None:
        """Counts a caller that never connected."""
        assert leg.closed is not None
        reason = leg.closed
        level = "WARNING" if reason.end in FAILURES else "INFO"
        line = logger.bind(call=leg.call_id, a_minute=reason.end)
        line.log(level, "{}: no call: {}", leg.call_id, reason)
        self.metrics.count_call_end(reason)

    async def _run_bot(self, bot: Bot, leg: Leg, body: dict[str, Any]) -> None:
        def report(event: Event) -> None:
            self.metrics.record(event)
            self._report(leg, event)

        known = as_dict(leg.info)
        report(CallStarted(leg.heard_ms, "bot", "its own", "its own", **known))
        agent, language = self.config.agent, self.config.tts.language
        closing = sentence(Occasion.CLOSING, language or USUAL_LANGUAGE, agent.sentences)
        call = self.conversations[leg.call_id] = BotCall(bot, leg, body, closing, self._spoken)
        try:
            await call.run()
        finally:
            del self.conversations[leg.call_id]
            reason = leg.closed or End.BOT_ENDED
            report(CallEnded(leg.heard_ms, reason, leg.statistics().as_dict()))

    async def _spoken(self, text: str) -> Pcm:
        """Synthesizes a text where no bot has a voice for it. Raises EngineError."""
        synthesizer = open_synthesizer()
        await synthesizer.start()
        try:
            stream = synthesizer.open()
            stream.write(text if text.isascii() else sentence(Occasion.CLOSING, USUAL_LANGUAGE))
            stream.end()
            return np.concatenate([speech.pcm async for speech in stream])
        finally:
            await synthesizer.close()

    async def _converse(
        self,
        leg: Leg,
        agent: AgentSettings,
        direct: Direct | None = None,
        past: Past | None = None,
    ) -> None:
        resumption = self.resumption if direct is None else None

        def make_agent(call: Call) -> Agent:
            made = self.agents.make(agent, call)
            if past is not None:
                try:
                    made.restore(past.saved.dialog)
                except ValueError as error:
                    logger.warning("{}: the agent begins anew: {}", leg.call_id, error)
            return made if direct is None else direct(call, made)

        minutes = self.config.server.max_call_minutes
        limit_s = 60 * min(minutes, agent.max_minutes or minutes)
        call = Call(
            leg,
            self.agents.engines(agent, self.engines.of_new_calls()),
            make_agent,
            limit_s,
            self._tracing,
            agent.sentences,
            *(() if past is None else (past.saved.messages, past.opening, past.saved.seconds)),
        )
        call.listeners.append(self.metrics.record)
        call.listeners.append(lambda event: self._report(leg, event))
        if self._recordings is not None:
            self._record(leg, call)
        if resumption is not None:
            resumption.watch(leg, call)
            if self.recovery is not None:
                self.recovery.watch(leg, call)
        self.conversations[leg.call_id] = call
        try:
            await call.run()
        finally:
            del self.conversations[leg.call_id]

    def _record(self, leg: Leg, call: Call) -> None:
        """Starts the recording; the call continues if that fails."""
        assert self._recordings is not None
        try:
            name = leg.call_id if leg.part == 1 else f"{leg.call_id}-{leg.part}"
            recorder = self._recordings.open(name, time.time())
        except OSError as error:
            self.metrics.recordings_failed.inc()
            logger.error("{}: the call is not recorded: {}", leg.call_id, error)
            return
        leg.listen(lambda heard, said, now: recorder.tick(heard, said))

        def note(event: Event) -> None:
            fields = for_recording(asdict(event), self.config.recording.keys)
            recorder.timeline.write(kind(event), fields.pop("at_ms"), **fields)
            if isinstance(event, CallEnded):
                recorder.close()

        call.listeners.append(note)

    def _report(self, leg: Leg, event: Event) -> None:
        """Reports an event to the log, the caller's page and listeners."""
        if isinstance(event, CallStarted):
            self._started.add(leg.call_id)
        self._log(leg, event)
        message = for_the_page(event, operator=leg.is_operators)
        if message is not None:
            self._send(leg, message)
        if self._tracing and isinstance(event, TurnLatency):
            tracing_io.latency_spans(leg.call_id, event)

    def _log(self, leg: Leg, event: Event) -> None:
        silent = leg.claim is not None and leg.waits
        if silent and isinstance(event, CallStarted):
            self._not_logged[leg.call_id] = event
            return
        started = self._not_logged.pop(leg.call_id, None)
        if started is not None and not silent:
            self._log(leg, started)
        fields = for_log(asdict(event), self.config.log.has_words)
        line = logger.bind(call=leg.call_id, event=kind(event), **fields)
        if silent:
            line = line.bind(a_minute=kind(event))
        level = "DEBUG" if kind(event) in ("caller_partial", "speech_started", "dtmf") else "INFO"
        line.log(level, "{}: {} {}", leg.call_id, kind(event), brief(fields))

    def _send(self, leg: Leg, data: dict[str, Any]) -> None:
        leg.send_message(json.dumps({"label": "rtvi-ai", "type": "server-message", "data": data}))

    async def _call_in_progress(self) -> None:
        """Waits for a call if there is none, so that an idle process sleeps."""
        if not self._calls:
            self._call_begun.clear()
            await self._call_begun.wait()

    async def _send_quality(self) -> None:
        while True:
            await self._call_in_progress()
            await asyncio.sleep(QUALITY_S)
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
                    self._send(leg, {"type": "quality", **quality})


def check_realtime(config: Config) -> None:
    """Checks the fields that are frozen, and loads what connects to MCP servers, if there are any:
    later, it would hold up calls. Raises ConfigError."""
    if fault := fault_of_frozen(config.realtime.frozen):
        raise ConfigError(fault)
    if not config.realtime.mcp_servers:
        return
    try:
        import offhook.web.realtime.mcp_io  # noqa: F401
    except ModuleNotFoundError as error:
        words = "realtime.mcp_servers needs the mcp package: run .venv/bin/pip install mcp"
        raise ConfigError(words) from error


def _append(path: Path, line: str) -> None:
    """Appends to a file that, if it is new, only our user can read: it says who called whom."""
    try:
        with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600), "a") as file:
            file.write(line + "\n")
    except OSError as error:
        logger.error("the record of a call is lost: {}", error)
