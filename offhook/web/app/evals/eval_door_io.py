"""The WebSocket at which Pipecat's eval harness calls an agent of a configuration.

GET /AGENT      the named agent; / the default one
"""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from functools import partial
from time import monotonic
from typing import Any

from aiohttp import WSMsgType, web

from offhook.media.end_reason import End
from offhook.media.leg import CallInfo
from offhook.media.tasks_io import TaskSet
from offhook.pipeline.conversation.call_io import Call
from offhook.pipeline.conversation.events import AgentTurn, Event
from offhook.web.app.evals.coverage import Coverage
from offhook.web.app.evals.eval_leg_io import EvalLeg, leaves
from offhook.web.app.evals.eval_line_io import EvalLine, LineError
from offhook.web.app.evals.scenarios_io import Scenario
from offhook.web.app.evals.sounds import Sounds
from offhook.web.app.evals.stage_io import Stage
from offhook.web.app.evals.visit_io import Visit
from offhook.web.config.agents import DEFAULT
from offhook.web.edge.calls.live_call_io import LiveCall
from offhook.web.edge.edge_io import Edge
from offhook.web.edge.text.text_edge_io import RUNNING
from offhook.web.http.listening_io import Runner

MAX_MESSAGE_BYTES = 16 << 20
"""Maximum size of a message of the harness, such as an image; a longer one ends its call."""
POLL_S = 0.02
SETTLES_S = 5.0
"""Time limit in s for an answer that the harness has read to be in the conversation before what it
says next."""
QUIET_S = 0.3
"""Time in s in which the agent begins nothing, for it to have said everything."""
LAST_WORDS_S = 60.0
"""Time limit in s for the agent's last words, where the caller waits for them."""
GREETS_S = 1.0
"""Time in s from the beginning of a call in which an agent has begun to speak that may speak
first."""
GREETED_S = 45.0
"""Time limit in s for a greeting; then the caller speaks over it."""
ANSWERS_S = 5.0
"""Time in s after which a caller without a script begins, if the agent does not."""
SILENCE = "(silence)"
"""What the model that plays such a caller is told of it."""


class EvalDoor:
    """Takes calls of the harness."""

    def __init__(
        self, edge: Edge, line: EvalLine | None = None, coverage: Coverage | None = None
    ) -> None:
        """`line`: by which the agent is called; None: as it is in this process. `coverage` is told
        of the tools that there are."""
        self.url = ""
        self._edge = edge
        self._line = line
        self._visits: dict[str, Visit] = {}
        """By their numbers."""
        self._stage = Stage(edge.config, coverage or Coverage())
        edge.agents.stand_in(self._stage.stand_in)
        self._listeners: dict[str, tuple[Callable[[Event], None], ...]] = {}
        """What receives the events of calls, by their ids."""
        edge.call_class = _reporting(edge.call_class, self._receive)

    def visit(self, agent: str, scenario: Scenario) -> Visit:
        """Returns what comes of a conversation, with the URL for it."""
        number = str(len(self._visits))
        agents = {DEFAULT: self._edge.config.agent, **self._edge.config.agents}
        flows = {name: one.loaded_flow for name, one in agents.items()}
        name, flow = agent or DEFAULT, flows[agent or DEFAULT]
        visit = Visit(
            f"{self.url}/{agent}?visitor={number}",
            scenario,
            name,
            {name: flow.initial for name, flow in flows.items() if flow is not None},
            greets=bool(agents[name].greeting or (flow is not None and flow.first_words)),
        )
        self._visits[number] = visit
        return visit

    def application(self) -> web.Application:
        application = web.Application()
        application.router.add_get("/{agent:[^/]*}", self._serve)
        return application

    async def _serve(self, request: web.Request) -> web.WebSocketResponse:
        agent = request.match_info["agent"]
        if "Origin" in request.headers:  # a page, which would not be the harness
            raise web.HTTPForbidden(text="pages have no business here")
        if agent and agent not in self._edge.config.agents:
            raise web.HTTPNotFound(text=f"no agent is called {agent!r}")
        socket = web.WebSocketResponse(max_msg_size=MAX_MESSAGE_BYTES, compress=False)
        await socket.prepare(request)
        sends_audio = request.query.get("capture_bot_audio") == "true"
        leg = EvalLeg(self._edge.new_id(), CallInfo(edge="eval"), sends_audio=sends_audio)
        visit = self._visits.get(request.query.get("visitor", ""))
        if visit is not None:
            leg.sounds, leg.has_answers_spoken = visit.sounds, True
            leg.reports_words = visit.scenario.is_played
            if visit.waits_for_greeting:
                leg.hold_back()
        try:
            async with self._calling(leg, agent, visit) as live:
                silent = request.query.get("skip_tts") == "true" and self._line is None
                await self._converse(live, leg, socket, visit, silent=silent)
        except LineError as error:
            if visit is not None:
                visit.refusal = str(error)
            await socket.close()
        finally:
            if visit is not None:
                visit.over.set()
        return socket

    @asynccontextmanager
    async def _calling(
        self, leg: EvalLeg, agent: str, visit: Visit | None
    ) -> AsyncIterator[LiveCall]:
        """Has the agent called while inside. Raises LineError."""
        on_call = partial(self._enter, visit, leg)
        if self._line is not None:
            async with self._line.calling(leg, on_call) as live:
                yield live
            return
        on_call(leg.call_id)
        live = self._edge.hold(leg, agent)
        running = self._edge.begin(live)
        leg.connect()
        try:
            yield live
        finally:
            leg.close(End.CALLER_HUNG_UP)
            await asyncio.wait((running,))

    def _enter(self, visit: Visit | None, leg: EvalLeg, call_id: str) -> None:
        if visit is not None:
            self._stage.enter(call_id, visit)
            self._listeners[call_id] = visit.note, _report_sentences(leg)

    def _receive(self, call_id: str, event: Event) -> None:
        for listener in self._listeners.get(call_id, ()):
            listener(event)

    async def _converse(
        self,
        live: LiveCall,
        leg: EvalLeg,
        socket: web.WebSocketResponse,
        visit: Visit | None,
        *,
        silent: bool,
    ) -> None:
        """Passes on what the harness says until it or the agent leaves."""
        tasks = TaskSet()
        if visit is not None:
            tasks.spawn(self._follow(live, leg, visit), "eval events")
        telling = tasks.spawn(leg.send_to(socket), "eval messages")
        tasks.spawn(self._close_with(leg, socket), "eval socket")
        try:
            async for message in socket:
                if message.type is not WSMsgType.TEXT:
                    continue
                if leaves(message.data):
                    telling.cancel()  # the harness reads no more, and could not read our farewell
                    await socket.close()
                    break
                call = await _begun(live)
                over = leg.has_answered and not (visit is not None and visit.interrupts)
                if silent and over and isinstance(call, Call):
                    limit_s = LAST_WORDS_S if leg.has_answers_spoken else SETTLES_S
                    await _settled(call, visit, limit_s)
                frame = await leg.receive(message.data)
                if frame is not None and isinstance(call, Call):
                    call.queue(frame)
            if visit is not None and isinstance(live.conversation, Call):
                await _heard(live.conversation, leg.sounds, to_end=visit.stays_to_end)
        finally:
            leg.close(End.CALLER_HUNG_UP)
            await tasks.close()

    async def _follow(self, live: LiveCall, leg: EvalLeg, visit: Visit) -> None:
        """Has the harness begin when the caller would, and tells it what a caller hears who is
        played."""
        call = await _begun(live)
        if not isinstance(call, Call):
            leg.release()
            return
        if visit.scenario.is_played:
            await _report_replies(call, leg, visit)
        else:
            await _greeted(call, visit)
            leg.release()

    async def _close_with(self, leg: EvalLeg, socket: web.WebSocketResponse) -> None:
        """Closes the socket when the agent hangs up."""
        await leg.until_closed()
        await socket.close()


def _reporting(base: Any, receive: Callable[[str, Event], None]) -> type[LiveCall]:
    """Returns what calls are of which `receive` gets all events."""

    class ReportingCall(base):  # type: ignore[misc]
        def report(self, event: Event) -> None:
            super().report(event)
            receive(self.id, event)

    return ReportingCall


async def _begun(live: LiveCall) -> object:
    """Returns the conversation, once it has begun."""
    while live.conversation is None and live.leg.closed is None:
        await asyncio.sleep(POLL_S)
    return live.conversation


def _report_sentences(leg: EvalLeg) -> Callable[[Event], None]:
    """Returns a listener that tells the harness of what a call says by itself, such as the
    greeting: it would know only what a model has written."""

    def listen(event: Event) -> None:
        if isinstance(event, AgentTurn):
            if not leg.model_writes and not leg.reports_words:
                leg.report(event.text)
            leg.model_writes = False

    return listen


async def _report_replies(call: Call, leg: EvalLeg, visit: Visit) -> None:
    """Tells the model that plays the caller what was heard of the agent, once that has said
    everything: it answers at once."""
    told, begins, quiet_since = 0, True, monotonic()
    while call.leg.closed is None:
        await asyncio.sleep(POLL_S)
        now, new = monotonic(), visit.replies[told:]
        if _is_busy(call) or visit.changes:
            quiet_since = now
        elif new and now - quiet_since > QUIET_S:
            leg.report(" ".join(new))
            told, begins = told + len(new), False
        elif begins and now - quiet_since > ANSWERS_S:
            leg.report(SILENCE)
            begins = False


async def _greeted(call: Call, visit: Visit) -> None:
    """Waits until the agent has greeted the caller, or is not about to."""
    began, begins_s = monotonic(), GREETED_S if visit.greets else GREETS_S
    while call.leg.closed is None and (waited := monotonic() - began) < GREETED_S:
        if not _is_busy(call) and (visit.replies or waited > begins_s):
            return
        await asyncio.sleep(POLL_S)


def _is_busy(call: Call) -> bool:
    """Whether the agent is about to answer, or speaks, or a tool runs."""
    if call.leg.closed is not None:
        return False
    messages = (m for m in call.context.messages if isinstance(m, dict))
    running = any(message.get("content") == RUNNING for message in messages)
    return call.hearing.reply.busy or running or call.leg.playout.queued > 0


async def _settled(call: Call, visit: Visit | None, limit_s: float) -> None:
    """Waits until an answer that is complete is in the conversation: by text it is read sooner."""
    with suppress(TimeoutError):
        async with asyncio.timeout(limit_s):
            while _is_busy(call) or (visit is not None and visit.changes):
                await asyncio.sleep(POLL_S)


async def _heard(call: Call, sounds: Sounds, *, to_end: bool) -> None:
    """Waits until the agent has said everything, and nothing more begins; or only until its answer
    begins, if one is under way."""
    until = monotonic() + LAST_WORDS_S
    quiet_since = monotonic()
    while call.leg.closed is None and (now := monotonic()) < until:
        busy = _is_busy(call)
        if not to_end and (sounds.answered or not busy):
            return
        if busy:
            quiet_since = now
        elif now - quiet_since > (QUIET_S if sounds.answered else SETTLES_S):
            return
        await asyncio.sleep(POLL_S)


@asynccontextmanager
async def eval_door(
    edge: Edge, line: EvalLine | None = None, coverage: Coverage | None = None
) -> AsyncIterator[EvalDoor]:
    """Serves the door to this machine; see EvalDoor."""
    door = EvalDoor(edge, line, coverage)
    runner = Runner(door.application(), shutdown_timeout=1)
    await runner.setup()
    try:
        await runner.listen("127.0.0.1", 0)
        door.url = f"ws://127.0.0.1:{runner.addresses[0][1]}"
        yield door
    finally:
        await runner.cleanup()
