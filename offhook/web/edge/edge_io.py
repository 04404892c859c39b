"""The edge: all calls of one process and what they share. The composition root."""

import asyncio
import time
import uuid
from collections.abc import Mapping, Sequence
from secrets import token_urlsafe
from typing import Any

from loguru import logger

from offhook.media.answer_status import AnswerStatus
from offhook.media.clock_io import PacketClock
from offhook.media.codecs.opus import OpusSettings
from offhook.media.end_reason import End
from offhook.media.leg import CallInfo, Claim, Leg
from offhook.media.memory_io import give_back_memory
from offhook.media.tasks_io import TaskSet
from offhook.pipeline.conversation.bot_io import BOT_TITLE, Bot, BotCall
from offhook.pipeline.conversation.call_io import Call
from offhook.signaling.peer_io import PeerLeg
from offhook.telephony.call_record import CallRecord
from offhook.telephony.carriers.call_io import CarrierCall
from offhook.telephony.sip.call_io import SipCall
from offhook.telephony.sip.endpoint_io import SipEndpoint
from offhook.telephony.sip.outgoing_calls_io import Dial
from offhook.telephony.sip.siprec.recorded_leg_io import RecordedLeg
from offhook.web.config.config import Config, ConfigError
from offhook.web.config.plugins import key_path
from offhook.web.config.reading.faults import placed
from offhook.web.edge.admission_io import CallAdmission
from offhook.web.edge.agents_io import CallAgents
from offhook.web.edge.calls import tracing_io
from offhook.web.edge.calls.browser_calls_io import BrowserCalls
from offhook.web.edge.calls.draining_io import drain_calls, running
from offhook.web.edge.calls.live_call_io import Direct, LiveCall
from offhook.web.edge.calls.program_calls_io import ProgramCalls
from offhook.web.edge.calls.recorded_call_io import RecordedCall
from offhook.web.edge.calls.records_io import CallRecords
from offhook.web.edge.calls.whip_calls_io import WhipCalls
from offhook.web.edge.carriers.carriers_io import Carriers
from offhook.web.edge.doors_io import open_carriers, open_phones, open_speech_api
from offhook.web.edge.placing.requests import DialRequest
from offhook.web.edge.queues.queues_io import Queues
from offhook.web.edge.refusals import Busy, NoPhones
from offhook.web.edge.resume.recovery_io import Recovery
from offhook.web.edge.resume.resumption_io import Resumption
from offhook.web.edge.resume.saved_call import SavedCall
from offhook.web.edge.rooms.rooms_io import Rooms
from offhook.web.edge.transfers.transfers_io import Transfers
from offhook.web.http.access import AccessPolicy
from offhook.web.http.loop_io import collect_between_packets, freeze_loaded_objects
from offhook.web.http.metrics import Metrics, Reason
from offhook.web.http.queue_metrics import QueueMetrics
from offhook.web.http.shares import Holders, by_address
from offhook.web.realtime.calls_io import RealtimeCalls
from offhook.web.realtime.protocol.frozen import fault_of_frozen
from offhook.web.speech_api.server_io import SpeechServer
from offhook.web.workers.engines.call_engines_io import CallEngines
from offhook.web.workers.engines.choice import AutoWorker

GOODBYE_S = 0.2
"""Time in s for the farewell to leave before the lines close."""
CARRIER_RING_S = 60.0
"""Default ringing time in s of a call over a carrier."""
QUALITY_S = 2
"""Interval in s at which callers' programs get statistics of their line."""


class Edge:
    """Everything one process needs to handle calls."""

    call_class: type[LiveCall] = LiveCall
    """What a call does; benchmarks have others."""

    def __init__(
        self,
        config: Config,
        bot: Bot | None = None,
        secret_key: str = "",
        auto: Sequence[AutoWorker] = (),
        prefix: str = "",
    ) -> None:
        """`secret_key`: key of client secrets where the configuration has none; "" for a random
        one. `auto`: workers of the engines that take over from the embedded ones. `prefix`: with
        which the ids of calls begin, where several processes have to tell whose a call is."""
        self.config = config
        self.prefix = prefix
        self.bot = bot
        """Converses in place of the configured agents."""
        self.programs = ProgramCalls(self, secret_key or token_urlsafe())
        """The calls on which programs decide."""
        self.clock = PacketClock()
        self.calls: dict[str, LiveCall] = {}
        """All calls with a line, by id; those by phone begin when they are answered."""
        self.sip: SipEndpoint | None = None
        """SIP phones, if configured."""
        self.carriers: Carriers | None = None
        """Carriers' streams, if configured."""
        self.browsers = BrowserCalls(self)
        self.whip = WhipCalls(self)
        self.rooms = Rooms(self.clock, self.calls, lambda: self.config.rooms)
        self.metrics = Metrics(
            lambda: [leg.statistics() for leg in self.legs],
            self.clock.lateness_ms,
            lambda: len(asyncio.all_tasks()),
            lambda: self.overloaded,
        )
        self.records = CallRecords(self.metrics, lambda: self.config, self)
        redis = "" if bot is not None else config.server.redis
        self.resumption = Resumption(redis, self.metrics) if redis else None
        """Calls that can continue at another server, if configured."""
        self.recovery: Recovery | None = None
        """The same for phone calls, if configured."""
        self.admission = CallAdmission(
            self.clock,
            lambda reason: self.metrics.refused.labels(reason).inc(),
            config.server.max_lateness_ms,
            lambda: len(self.calls),
            *(lambda: self.config.tenants, lambda: held_lines(self)),
        )
        self.metrics.registry.register(self.admission.tenants)
        self.speech: SpeechServer | None = None
        """The speech API on the same engines, if enabled and available."""
        self.realtime = RealtimeCalls(
            config.server.max_call_minutes * 60, lambda: self.config.realtime.mcp_servers
        )
        self.agents = CallAgents(lambda: self.config, self.records)
        self.engines = CallEngines(config, self.metrics, auto)
        self.queues = Queues(self, Transfers(self), QueueMetrics(self.metrics.registry))
        self.ready = False
        self.draining = False
        self._tasks = TaskSet()

    @property
    def access(self) -> AccessPolicy:
        """Returns the access policy of the current configuration."""
        return self.programs.access

    @property
    def opus(self) -> OpusSettings:
        return self.config.opus.settings()

    # --- life ---

    async def start(self) -> None:
        """Loads all engines of this process. Raises EngineError."""
        config = self.config
        tracing_io.set_up(config.tracing, lambda: self.config.log.has_words)
        check_realtime(config)
        self.agents.load(config)
        check_mcp(config)
        check_knowledge(config)
        await self.browsers.start()
        started = time.perf_counter()
        if self.resumption is not None:
            self.resumption.start()
        agent = "your bot"
        if self.bot is None:  # a bot brings its own
            agent = f"{await self.engines.open()}, agent {config.agent.kind}"
            await self.agents.start()
            self.clock.after = self.engines.configured.turn_detection.vad.run
            if config.speech.enabled:
                self.speech = open_speech_api(config, self.engines, self.metrics)
        await self.queues.start()
        if config.records_calls:
            self.records.open_recordings(config.recording)
        if config.sip is not None:
            self.sip = await open_phones(config.sip, self)
            self.recovery = self._open_recovery(self.sip, config.sip.recovery_seconds)
        if config.carriers:
            self.carriers = await open_carriers(config.carriers, self)
            self.clock.add_source(self.carriers.connections)
        freeze_loaded_objects()
        give_back_memory()
        in_progress = self.admission.until_in_progress
        self._tasks.spawn(self._send_quality(), "quality")
        self._tasks.spawn(self.admission.measure(), "load")
        self._tasks.spawn(
            collect_between_packets(self.clock.send_ahead, in_progress), "garbage collection"
        )
        self.agents.probes.start()
        self.engines.start_auto()
        self.ready = not self.engines.awaits_workers
        if not self.ready:
            self._tasks.spawn(self._wait_for_workers(), "speech workers")
        how = "ready" if self.ready else "waiting for the speech worker, all else ready"
        logger.info("{} in {:.1f} s: {}", how, time.perf_counter() - started, agent)

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
        if self.admission.reason(len(self.lines), coming, most):
            return 0
        return most - len(self.lines) - coming

    def health(self) -> dict[str, Any]:
        """Returns the body of GET /healthz."""
        parts = {"engines": self.engines.health(), "workers": self.engines.worker_counts()}
        state = {"status": "ok", "overloaded": self.overloaded}
        return {**state, **{name: part for name, part in parts.items() if part}}

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
        await drain_calls(
            self.calls, self.config.server.drain_seconds, self.resumption, self.recovery
        )

    async def close(self) -> None:
        """Ends remaining calls and releases everything."""
        self.ready = False
        reason = End.SHUTTING_DOWN
        for call in self.calls.values():
            call.send({"type": "goodbye", "reason": reason})
        if self.calls:
            await asyncio.sleep(GOODBYE_S)
        for leg in self.legs:
            leg.close(reason)
        await asyncio.gather(*running(self.calls, self.calls), return_exceptions=True)
        await self.whip.close()
        await self.queues.close()
        for part in (self.rooms, self.recovery, self.resumption, self.sip, self.carriers):
            if part is not None:
                await part.close()
        await self.agents.close()
        await self.browsers.close()
        await self.programs.incoming.close()
        await self._tasks.close()
        if self.speech is not None:
            self.speech.stop_streams()
            await self.speech.close()
        if self.bot is None:
            await self.engines.close()
        await self.records.close()

    # --- admission ---

    def default_agent_name(self) -> dict[str, str] | None:
        """Returns agent and engines as shown to callers before a call; None while loading."""
        if not self.ready:
            return None
        if self.bot is not None:
            return {"title": BOT_TITLE}
        kind, names = self.config.agent.of_kind, self.engines.names()
        who = {"agent": kind.name, "title": kind.title}
        return who if kind.own_voice else {**who, "hears": names["asr"], "speaks": names["tts"]}

    @property
    def overloaded(self) -> bool:
        """Whether new calls are refused because packets of those in progress leave late."""
        return self.admission.sheds(len(self.calls))

    def admit(
        self, holders: Holders | None = None, coming: Sequence[Claim | None] = ()
    ) -> Claim | None:
        """Raises Busy if another call would harm those in progress and the `coming` ones, which are
        admitted but have no line yet, or if its `holders` have their share; None: those of a trunk
        or carrier, which has a limit of its own. Returns `Leg.claim`. May close one that waits."""
        makes_room = self.check_room(holders, coming)
        if makes_room is not None:
            makes_room.close(End.GAVE_WAY)
        return None if holders is None else Claim(holders, time.monotonic())

    def check_room(
        self, holders: Holders | None = None, coming: Sequence[Claim | None] = ()
    ) -> Leg | None:
        """Raises Busy if `admit` would; returns the leg that would be closed."""
        if self.draining:
            raise self.refusal("draining")
        if not self.ready:
            raise self.refusal("loading")
        server = self.config.server
        return self.admission.check(self.legs, coming, server.max_calls, holders, server.shares)

    def refusal(self, reason: Reason) -> Busy:
        """Counts a refusal and returns the exception to raise."""
        return self.admission.refusal(reason)

    def admit_stranger(self, address: str) -> Claim:
        """Admits a call by phone that is no trunk's; returns `Leg.claim`. Raises Busy."""
        claim = self.admit(by_address(address))
        assert claim is not None
        return claim

    # --- calls ---

    @property
    def legs(self) -> list[Leg]:
        """Returns the legs of all calls."""
        return [call.leg for call in self.calls.values()]

    @property
    def conversations(self) -> dict[str, Call | BotCall]:
        """Returns the conversations of the calls, by id."""
        calls = self.calls.items()
        return {call_id: c.conversation for call_id, c in calls if c.conversation is not None}

    @property
    def lines(self) -> set[str]:
        """Returns the ids of the calls that hold a line: those that have ended do not, though their
        conversations take a moment to end."""
        return {call_id for call_id, call in self.calls.items() if call.leg.closed is None}

    def call_ids(self) -> list[str]:
        """Returns the ids of all calls in progress, those by phone also before they are
        answered."""
        phones = self.sip.calls if self.sip is not None else ()
        carried = self.carriers.calls.in_progress() if self.carriers is not None else ()
        browsers = (call_id for call_id, call in self.calls.items() if call.peer is not None)
        return [*phones, *(c.call_id for c in carried), *browsers]

    def new_id(self) -> str:
        """Returns an id for a call of this process."""
        return self.prefix + uuid.uuid4().hex[:12]

    def hold(
        self,
        leg: Leg,
        agent: str = "",
        *,
        body: Mapping[str, Any] | None = None,
        direct: Direct | None = None,
        returned: SavedCall | None = None,
    ) -> LiveCall:
        """Takes a line for a call, which `begin` starts: see `LiveCall`."""
        leg.info = self.admission.tenants.named(leg.info, agent)
        person = self.queues.transfers.people.find(leg.call_id)
        direct = direct if person is None else person.agent
        call_class = RecordedCall if isinstance(leg, RecordedLeg) else self.call_class
        call = call_class(self, leg, agent, body=body, direct=direct, returned=returned)
        call.answer_policy = None if person is None else person.policy
        self.calls[call.id] = call
        return call

    def begin(self, call: LiveCall) -> asyncio.Task[None]:
        """Starts a call and returns its task, which the call owns."""
        self.admission.begin()
        return call.begin()

    async def run_call(self, leg: Leg, agent: str, *, returned: SavedCall | None = None) -> None:
        """Runs a call with the named agent ("" for the default) to its end. `returned` is the
        conversation with a caller who was transferred in vain."""
        await self.begin(self.hold(leg, agent, returned=returned))

    def webrtc_leg(self, call_id: str) -> PeerLeg:
        """Returns a leg that answers a browser's offer by SIP."""
        return self.browsers.leg(PeerLeg, call_id)

    def dial(self, dial: Dial) -> SipCall:
        """Calls a phone over SIP. Raises NoPhones, Busy, and DialError if it cannot be
        attempted."""
        if self.sip is None:
            raise NoPhones
        self.agents.check(dial.agent)
        if len(self.lines | self.sip.lines) >= self.config.server.max_calls:
            raise self.refusal("full")
        return self.sip.dial(dial)

    async def dial_by_carrier(self, asked: DialRequest, call_id: str = "") -> CarrierCall:
        """Calls a phone over a carrier; see `dial`. Raises NoPhones, Busy, and DialError."""
        if self.carriers is None:
            raise NoPhones
        self.agents.check(asked.agent)
        return await self.carriers.calls.dial(
            asked.carrier,
            *(asked.to, asked.caller, asked.agent),
            asked.ring_seconds or CARRIER_RING_S,
            asked.variables,
            *(AnswerStatus(asked.machine_detection, asked.message), call_id),
        )

    def saved(self, call_id: str, agent: str) -> SavedCall | None:
        """Returns the conversation of a call as it is now; None if it has none that can be
        continued."""
        call = self.calls.get(call_id)
        return call.saved(agent) if call is not None else None

    def record(self, record: CallRecord) -> None:
        """Records a phone or carrier call that has ended."""
        self.rooms.forget(record.call_id, record.end_reason)
        self.forget(record.call_id)
        if self.recovery is not None:
            self.recovery.forget(record.call_id)
        self.records.add(record, self.sip, self.config.log.calls)

    def forget(self, call_id: str) -> None:
        """Drops what waits for a call that is over: a program's decision, its conversation, and the
        token with which it comes back."""
        self.programs.incoming.forget(call_id)
        self.realtime.drop(call_id)
        if self.resumption is not None:
            self.resumption.forget(call_id)

    async def _send_quality(self) -> None:
        while True:
            await self.admission.until_in_progress()
            await asyncio.sleep(QUALITY_S)
            for call in tuple(self.calls.values()):
                call.send_quality()


def held_lines(edge: Edge) -> dict[str, CallInfo]:
    """Returns the calls that hold a line, those by phone also before they are answered."""
    held = {leg.call_id: leg.info for leg in edge.legs if leg.closed is None}
    phones = edge.sip.calls.values() if edge.sip is not None else ()
    carried = edge.carriers.calls.in_progress() if edge.carriers is not None else ()
    for call in (*phones, *carried):
        if call.state != "ended":
            held[call.call_id] = call.info
    return held


def check_realtime(config: Config) -> None:
    """Checks the fields that are frozen. Raises ConfigError."""
    if fault := fault_of_frozen(config.realtime.frozen):
        raise ConfigError(fault)


def check_mcp(config: Config) -> None:
    """Loads what connects to MCP servers, if there are any: later, it would hold up calls. Raises
    ConfigError."""
    of_sessions = bool(config.realtime.mcp_servers)
    if not of_sessions and not config.mcp:
        return
    try:
        import offhook.web.realtime.mcp_io
        import offhook.web.tools.mcp_servers_io  # noqa: F401
    except ModuleNotFoundError as error:
        what = "realtime.mcp_servers" if of_sessions else "[mcp]"
        words = f"{what} needs the mcp package: run .venv/bin/pip install mcp"
        raise ConfigError(words) from error


def check_knowledge(config: Config) -> None:
    """Looks whether the agents have documents. Raises ConfigError."""
    with_documents = {n: agent for n, agent in config.named_agents().items() if agent.knowledge}
    if with_documents:  # what reads them takes memory
        from offhook.web.tools.knowledge.reading_io import fault_of
    for where, agent in with_documents.items():
        if fault := fault_of(agent.knowledge):
            words = f"{where}.knowledge: {fault}"
            raise ConfigError(placed(key_path(where), words, config.places))
