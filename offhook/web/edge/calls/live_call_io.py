"""A call in progress, and all that belongs to it."""

import asyncio
import json
import time
from collections.abc import Awaitable, Callable, Mapping
from contextlib import AsyncExitStack
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Any, Protocol

from loguru import logger

from offhook.media.clock_io import PacketClock
from offhook.media.end_reason import FAILURES, End
from offhook.media.leg import Leg, ModelTokens
from offhook.media.line_recording import Wanted
from offhook.media.pcm import Pcm
from offhook.pipeline.conversation.agents.kinds.conference import CONFERENCE, ConferenceSettings
from offhook.pipeline.conversation.answering.policy import AnswerPolicy
from offhook.pipeline.conversation.bot_io import Bot, BotCall
from offhook.pipeline.conversation.call_info import as_dict
from offhook.pipeline.conversation.call_io import Agent, Call, Engines
from offhook.pipeline.conversation.directed_io import Infer
from offhook.pipeline.conversation.events import (
    CallEnded,
    CallerTurn,
    CallStarted,
    Event,
    RoomTurn,
    TokensUsed,
    TurnLatency,
)
from offhook.pipeline.conversation.sentences import USUAL_LANGUAGE, Occasion, sentence
from offhook.pipeline.speech.synthesizer import sound_of
from offhook.signaling.peer_io import PeerLeg
from offhook.web.config.agents import DEFAULT
from offhook.web.config.config import Agent as AgentSettings
from offhook.web.config.config import Config
from offhook.web.edge.admission_io import CallAdmission
from offhook.web.edge.agents_io import CallAgents
from offhook.web.edge.builder.drafts import Draft
from offhook.web.edge.builder.shown_requests import shown_request
from offhook.web.edge.calls import tracing_io
from offhook.web.edge.calls.answering import answer_policy
from offhook.web.edge.calls.call_recording_io import CallRecording
from offhook.web.edge.calls.handoffs_io import Handoffs
from offhook.web.edge.calls.page_messages import for_the_page, of_quality
from offhook.web.edge.calls.program_calls_io import ProgramCalls
from offhook.web.edge.calls.records_io import CallRecords
from offhook.web.edge.queues.queues_io import Queues
from offhook.web.edge.resume.recovery_io import Recovery
from offhook.web.edge.resume.resumption_io import Resumption
from offhook.web.edge.resume.saved_call import SavedCall
from offhook.web.edge.rooms.conferences_io import ConferenceLeg
from offhook.web.edge.rooms.hosted_io import Seat
from offhook.web.edge.rooms.rooms_io import Rooms
from offhook.web.http.logs import brief, for_log, kind
from offhook.web.http.metrics import Metrics
from offhook.web.realtime.calls_io import RealtimeCalls
from offhook.web.records.writing.kept_call import KeptCall
from offhook.web.workers.engines.call_engines_io import CallEngines
from offhook.web.workers.engines.engines_io import open_synthesizer

QUIET_EVENTS = ("caller_partial", "speech_started", "dtmf", "tokens_used")
"""Events that are logged at DEBUG."""

MEMBER = "(member)"
"""In the place of an agent's name, of a call that is a member of another one."""

Direct = Callable[[Call, Agent], Agent]
"""Puts a call under the direction of a program: returns the call's agent with a `direction`."""


@dataclass(frozen=True)
class Past:
    """The conversation that a call continues."""

    saved: SavedCall
    opening: Occasion
    """What the sentence with which it goes on is about."""


class Host(Protocol):
    """What an edge provides to each of its calls."""

    config: Config
    bot: Bot | None
    clock: PacketClock
    metrics: Metrics
    engines: CallEngines
    agents: CallAgents
    admission: CallAdmission
    programs: ProgramCalls
    realtime: RealtimeCalls
    resumption: Resumption | None
    recovery: Recovery | None
    rooms: Rooms
    records: CallRecords
    queues: Queues
    calls: dict[str, "LiveCall"]

    def new_id(self) -> str: ...

    def hold(self, leg: Leg, agent: str = "") -> "LiveCall":
        """Takes a line for a call."""

    def begin(self, call: "LiveCall") -> "asyncio.Task[None]":
        """Starts a call that holds a line."""

    def forget(self, call_id: str) -> None:
        """Drops what waits for a call that is over."""


class LiveCall:
    """A call from the moment it holds a line until nothing of it is left: its leg, its agent, its
    conversation, its recording, and what the log and the caller's page are told of it."""

    def __init__(
        self,
        host: Host,
        leg: Leg,
        agent: str = "",
        *,
        body: Mapping[str, Any] | None = None,
        direct: Direct | None = None,
        returned: SavedCall | None = None,
    ) -> None:
        """`agent` is a name, "" for the default; with `direct`, the agent only answers what a
        program asks it. `body` is for a bot, the variables of the call by default. `returned` is
        the conversation with a caller who was transferred in vain."""
        self.leg = leg
        self.id = leg.call_id
        self.peer: PeerLeg | None = None
        """The leg again, if it is a browser's that has called here."""
        self.conversation: Call | BotCall | None = None
        self.running: asyncio.Task[None] | None = None
        """The call's task; None while it only holds its line."""
        self.direct = direct
        self.answer_policy: AnswerPolicy | None = None
        """What is done about who answers a call that we have placed for a caller."""
        self.observers: list[Callable[[Call], object]] = []
        """Are told the conversation before it begins, so that they miss nothing of it."""
        self._host = host
        self._noted_by: Engines | None = None
        self._agent = agent
        self._draft: Draft | None = None
        self._body = body
        self._handoffs: Handoffs | None = None
        self._past = Past(returned, Occasion.NOT_TRANSFERRED) if returned is not None else None
        self.has_started = False
        """Whether CallStarted was emitted, so that CallEnded must be too."""
        self._recording: CallRecording | None = None
        self._kept: KeptCall | None = None
        """What takes the events for the store, once there are any."""
        self._not_logged: CallStarted | None = None
        """Logged with the first event of a caller who was silent so far, so that whoever calls and
        says nothing writes one line a minute."""

    def begin(self) -> asyncio.Task[None]:
        """Runs the call to its end in a task of its own."""
        with logger.contextualize(call=self.id):  # of all lines of the task and of its tasks
            self.running = asyncio.create_task(self._run(), name=f"call {self.id}")
        return self.running

    def try_out(self, draft: Draft) -> None:
        """Has an agent of the operator's answer, at whatever hour, and the page told what goes to
        its model."""
        self._draft = draft
        self.leg.shown_to = lambda request, secrets: self.send(
            {"type": "model-request", **shown_request(request, secrets)}
        )

    def _settings_of(self, name: str) -> AgentSettings | None:
        """Returns an agent as this call has it; None if it was removed since the call began."""
        if self._draft is not None and (name or DEFAULT) == self._draft.agent:
            return self._draft.settings
        return self._host.agents.find(name or DEFAULT)

    @property
    def agent_now(self) -> str:
        """The name of the agent that has the call now."""
        last = None if self._handoffs is None else self._handoffs.last
        return self.leg.answered_by if last is None else last.agent

    @property
    def infer(self) -> Infer | None:
        """What answers outside the conversation; None if the agent is no language model."""
        return None if self._handoffs is None else self._handoffs.infer

    @property
    def notes_by(self) -> Engines | None:
        """What recognizes each member of this call; None if words are not kept."""
        records = self._host.config.records
        if isinstance(self.conversation, Call) and records.url and records.words:
            return self.conversation.engines
        return self._noted_by

    async def hand_over(self, agent: str, mailbox: str, reason: str) -> None:
        """See `Handoffs.hand_over`."""
        assert self._handoffs is not None
        await self._handoffs.hand_over(agent, self.conversation, mailbox, reason)

    def discard(self) -> None:
        """Gives up the line of a call that was not begun."""
        self._host.calls.pop(self.id, None)

    def saved(self, agent: str) -> SavedCall | None:
        """Returns the conversation as it is now; None for a bot's, and for one that a program
        directs."""
        call = self.conversation
        if not isinstance(call, Call) or call.is_directed:
            return None
        seconds, messages = int(call.duration_s), tuple(call.transcript())
        handoff = None if self._handoffs is None else self._handoffs.last
        about = agent, self.leg.info, seconds, call.dialog(), messages, handoff
        return SavedCall(*about, dict(self.leg.collected), self.leg.tokens, self.leg.place)

    def send(self, data: Mapping[str, Any]) -> None:
        """Sends a message to the caller's page."""
        message = {"label": "rtvi-ai", "type": "server-message", "data": data}
        self.leg.send_message(json.dumps(message))

    def send_quality(self) -> None:
        """Sends the caller's page statistics of the line."""
        if self.leg.closed is None and (message := of_quality(self.leg.statistics())):
            self.send(message)

    # --- life ---

    async def _run(self) -> None:
        host, leg = self._host, self.leg
        async with AsyncExitStack() as ends:
            ends.callback(self.discard)
            ends.callback(host.forget, self.id)
            ends.callback(host.rooms.forget, self.id)
            ends.push_async_callback(host.realtime.close, self.id)  # before it would be dropped
            ends.push_async_callback(leg.hang_up, End.SERVER_FAILED)
            try:
                if isinstance(leg, PeerLeg) and not await leg.until_connected():
                    _count_unconnected(leg, host.metrics)
                    return
                host.clock.add(leg)
                ends.callback(host.clock.remove, leg)
                ends.callback(host.rooms.leave, self)
                if host.rooms.expects(self.id):
                    await self._attend()
                    return
                if (settings := await self._answering()) is None:
                    return
                if host.bot is not None:
                    await self._run_bot(host.bot)
                elif settings.kind == CONFERENCE.name:
                    await self._enter_conference(settings)
                else:
                    await self.converse(settings)
            except Exception:
                logger.exception("{}: the call failed", self.id)
                if not self.has_started:
                    host.metrics.count_call_end(End.SERVER_FAILED)

    async def _attend(self) -> None:
        """Is a member of another call, which is recorded if that is."""
        self._agent = MEMBER
        wanted: Wanted = "always" if self._host.rooms.is_recorded(self.id) else "never"
        await self._run_without_agent(self._host.rooms.attend(self), wanted)

    async def _enter_conference(self, agent: AgentSettings) -> None:
        """Comes into the conference with this agent, or begins to be it."""
        host, leg, name = self._host, self.leg, self._agent or DEFAULT
        engines = host.agents.engines(agent, host.engines.of_new_calls())
        if isinstance(leg, ConferenceLeg):
            if ConferenceSettings.model_validate(agent.settings).notes:
                self._noted_by = engines
            wanted = agent.record or host.config.recording.enabled
            await self._run_without_agent(leg.until_closed(), wanted)
            return
        if room := await host.rooms.conferences.enter(host, leg, name, agent, engines):
            host.rooms.expect(self.id, Seat(room, self.id, "speak", "", False, leg.info.caller))
            await self._attend()

    async def _run_without_agent(self, until: Awaitable[object], recorded: Wanted) -> None:
        """Keeps a call that has no conversation of its own."""
        host, leg = self._host, self.leg
        settings = host.config.recording.model_copy(update={"enabled": recorded})
        recording = self._recording = CallRecording(
            leg, host.records, settings, AgentSettings(), {}, goes_on=True
        )
        recording.begin()
        name = self._agent or DEFAULT
        self.report(CallStarted(leg.heard_ms, name, "", "", **as_dict(leg.info)))
        try:
            await until
            await host.rooms.finish_words(self.id)
        finally:
            reason = leg.closed or End.OTHER_END_HUNG_UP
            self.report(CallEnded(leg.heard_ms, reason, leg.statistics().as_dict()))
            recording.close()

    async def _answering(self) -> AgentSettings | None:
        """Returns the agent that answers; None if a program has refused the call."""
        host, leg = self._host, self.leg
        if self.direct is None:
            await self._restore()
        past = self._past
        if past is None and self.direct is None and self._draft is None:
            called, self._agent = self._agent, host.agents.on_duty(self._agent, leg.info)
            if called != self._agent:
                words = "{}: outside of the hours of {}: {} answers"
                logger.info(words, self.id, called or DEFAULT, self._agent)
        leg.answered_by = self._agent if past is None else past.saved.answering
        settings = self._settings_of(leg.answered_by) or host.agents.called(leg.answered_by)
        if settings.of_kind.answers:
            return settings
        decided = self.direct is not None or host.programs.incoming.state(self.id) is not None
        if not decided and not await host.programs.decide_connected(leg, settings):
            return None
        if (conversation := host.realtime.find(self.id)) is not None:
            self.direct = conversation.direct
        return host.programs.answering(self.id, settings)

    async def _restore(self) -> None:
        """Takes over the conversation that the caller comes back to, if there is one."""
        host = self._host
        if host.recovery is not None:
            host.recovery.expect(self.leg, self._agent)
        if host.resumption is not None:
            saved = await host.resumption.restore(self.leg)
            if saved is not None:
                opening = Occasion.RESUMED if self._past is None else self._past.opening
                self._past = Past(saved, opening)

    async def _run_bot(self, bot: Bot) -> None:
        leg, config = self.leg, self._host.config
        body = dict(leg.info.variables if self._body is None else self._body)
        self.report(CallStarted(leg.heard_ms, "bot", "its own", "its own", **as_dict(leg.info)))
        language = config.tts.language or USUAL_LANGUAGE
        closing = sentence(
            Occasion.CLOSING, language, self._host.agents.sentences(config.agent, leg.info)
        )
        call = self.conversation = BotCall(bot, leg, body, closing, _spoken)
        try:
            await call.run()
        finally:
            self.conversation = None
            reason = leg.closed or End.BOT_ENDED
            self.report(CallEnded(leg.heard_ms, reason, leg.statistics().as_dict()))

    async def converse(self, agent: AgentSettings) -> None:
        """Runs the conversation with this agent to its end."""
        host, leg = self._host, self.leg
        past = None if self.direct is not None else self._past
        await host.admission.until_may_begin()
        engines = host.engines.of_new_calls()
        last = None if past is None else past.saved.handoff
        name = self._agent if past is None else past.saved.answering
        handoffs = self._handoffs = Handoffs(host.agents, engines, name, last, self._settings_of)
        settings, goes_on = host.config.recording, past is not None
        sentences = host.agents.sentences(agent, leg.info)
        recording = self._recording = CallRecording(
            leg, host.records, settings, agent, sentences, goes_on=goes_on
        )
        try:
            recording.begin()
            call = self._make_call(agent, handoffs, engines, past, recording.notice)
            recording.follow(call.emit, lambda: call.hearing.reply.written)
            self.conversation = call
            await call.run()
        finally:
            self.conversation = None
            recording.close()
            await handoffs.close()

    def _make_call(
        self,
        agent: AgentSettings,
        handoffs: Handoffs,
        engines: Engines,
        past: Past | None,
        notice: str,
    ) -> Call:
        """Returns the conversation, with all that observes it."""
        host, leg = self._host, self.leg
        minutes = host.config.server.max_call_minutes
        leg.destinations = host.queues.destinations(self, lambda: call)
        leg.accompanied = host.queues.accompanied(self, lambda: call)
        call = Call(
            leg,
            host.agents.engines(agent, engines),
            lambda call: replace(self._make_agent(agent, handoffs, call), notice=notice),
            60 * min(minutes, agent.max_minutes or minutes),
            bool(host.config.tracing.otlp_endpoint),
            host.agents.sentences(agent, leg.info),
            *(() if past is None else (past.saved.messages, past.opening, past.saved.seconds)),
        )
        policy = self.answer_policy
        if past is None and self.direct is None:
            policy = answer_policy(agent, call, host.agents)
        if policy is not None:
            call.opening.watch_answer(call, call.engines.turn_detection.vad, policy)
        call.listeners.append(self.report)
        call.absence.until_noted = partial(host.rooms.finish_words, self.id)
        if leg.place:
            call.listeners.append(self._wait_again)
        for observe in self.observers:
            observe(call)
        if host.resumption is not None and self.direct is None:
            host.resumption.watch(leg, call)
            if host.recovery is not None:
                host.recovery.watch(leg, call)
        return call

    def _wait_again(self, event: Event) -> None:
        """Has a caller who has waited in a queue at another server wait here."""
        if isinstance(event, CallStarted) and isinstance(self.conversation, Call):
            self._host.queues.go_on(self.conversation, with_model=self.infer is not None)

    def _make_agent(self, settings: AgentSettings, handoffs: Handoffs, call: Call) -> Agent:
        if self.direct is not None:  # the program decides what the call is about
            return self.direct(call, self._host.agents.make(settings, call))
        made = handoffs.make(settings, call)
        if self._past is not None:
            try:
                made.restore(self._past.saved.dialog)
            except ValueError as error:
                logger.warning("{}: the agent begins anew: {}", self.id, error)
        return made

    # --- what is told of it ---

    def report(self, event: Event) -> None:
        """Reports an event to metrics, the log, the caller's page and the trace."""
        self._host.metrics.record(event)
        if isinstance(event, CallStarted):
            self.has_started = True
            self._kept = self._host.records.kept_call(self.leg, self._recording)
        elif isinstance(event, TokensUsed):
            _add_tokens(self.leg.tokens, event, self._host)
        kept = event if self._recording is None else self._recording.kept(event)
        if isinstance(kept, CallerTurn) and self._host.rooms.has_words(self.id):
            kept = RoomTurn(kept.at_ms, kept.turn, kept.text)
        if self._kept is not None:
            self._kept.note(kept, self._agent or DEFAULT, time.time())
        self._log(kept)
        if self._recording is not None:
            self._recording.note(kept)
        message = for_the_page(event, operator=self.leg.is_operators)
        if message is not None:
            self.send(message)
        if self._host.config.tracing.otlp_endpoint and isinstance(event, TurnLatency):
            tracing_io.latency_spans(self.id, event)

    def _log(self, event: Event) -> None:
        silent = self.leg.claim is not None and self.leg.waits
        if silent and isinstance(event, CallStarted):
            self._not_logged = event
            return
        if self._not_logged is not None and not silent:
            started, self._not_logged = self._not_logged, None
            self._log(started)
        fields = for_log(asdict(event), self._host.config.log.has_words)
        line = logger.bind(call=self.id, event=kind(event), **fields)
        if silent:
            line = line.bind(a_minute=kind(event))
        level = "DEBUG" if kind(event) in QUIET_EVENTS else "INFO"
        line.log(level, "{}: {} {}", self.id, kind(event), brief(fields))


async def _spoken(text: str) -> Pcm:
    """Synthesizes a text where no bot has a voice for it. Raises EngineError."""
    synthesizer = open_synthesizer()
    await synthesizer.start()
    try:
        speakable = text if text.isascii() else sentence(Occasion.CLOSING, USUAL_LANGUAGE)
        return await sound_of(synthesizer.open(), speakable)
    finally:
        await synthesizer.close()


def _count_unconnected(leg: Leg, metrics: Metrics) -> None:
    """Counts a caller that never connected."""
    reason = leg.closed
    assert reason is not None
    level = "WARNING" if reason.end in FAILURES else "INFO"
    line = logger.bind(call=leg.call_id, a_minute=reason.end)
    line.log(level, "{}: no call: {}", leg.call_id, reason)
    metrics.count_call_end(reason)


def _add_tokens(tokens: ModelTokens, used: TokensUsed, host: Host) -> None:
    """Adds what an answer took to what the call has taken."""
    tokens.input += used.input_tokens
    tokens.cached += used.cached_tokens
    tokens.output += used.output_tokens
    if (prices := host.config.prices.get(used.model)) is None:
        tokens.unpriced.add(used.model)
        return
    cost = prices.cost(used)
    tokens.priced = (tokens.priced or 0.0) + cost
    host.metrics.cost.labels(used.model).inc(cost)
