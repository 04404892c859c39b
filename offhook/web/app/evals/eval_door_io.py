"""The WebSocket at which Pipecat's eval harness calls an agent of a configuration.

GET /AGENT      the named agent; / the default one
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from time import monotonic

from aiohttp import WSMsgType, web

from offhook.media.end_reason import End
from offhook.media.leg import CallInfo
from offhook.media.tasks_io import TaskSet
from offhook.pipeline.conversation.call_io import Call
from offhook.web.app.evals.eval_leg_io import EvalLeg
from offhook.web.app.evals.eval_line_io import EvalLine, LineError
from offhook.web.app.evals.scenarios_io import Scenario
from offhook.web.app.evals.sounds import Sounds
from offhook.web.app.evals.visit_io import Visit
from offhook.web.edge.calls.live_call_io import LiveCall
from offhook.web.edge.edge_io import Edge
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


class EvalDoor:
    """Takes calls of the harness."""

    def __init__(self, edge: Edge, line: EvalLine | None = None) -> None:
        """`line`: by which the agent is called; None: as it is in this process."""
        self.url = ""
        self._edge = edge
        self._line = line
        self._visits: dict[str, Visit] = {}
        """By their numbers."""

    def visit(self, agent: str, scenario: Scenario) -> Visit:
        """Returns what comes of a conversation, with the URL for it."""
        number = str(len(self._visits))
        visit = Visit(f"{self.url}/{agent}?visitor={number}", scenario)
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
            visit.sounds, leg.has_answers_spoken = leg.sounds, visit.stays_to_end
        try:
            async with self._calling(leg, agent) as live:
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
    async def _calling(self, leg: EvalLeg, agent: str) -> AsyncIterator[LiveCall]:
        """Has the agent called while inside. Raises LineError."""
        if self._line is not None:
            async with self._line.calling(leg) as live:
                yield live
            return
        live = self._edge.hold(leg, agent)
        running = self._edge.begin(live)
        leg.connect()
        try:
            yield live
        finally:
            leg.close(End.CALLER_HUNG_UP)
            await asyncio.wait((running,))

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
            tasks.spawn(self._note_events(live, visit), "eval events")
        tasks.spawn(leg.send_to(socket), "eval messages")
        tasks.spawn(self._close_with(leg, socket), "eval socket")
        try:
            async for message in socket:
                if message.type is not WSMsgType.TEXT:
                    continue
                call = await self._begun(live)
                over = leg.has_answered and not (
                    visit is not None and visit.stays_to_end and visit.interrupts
                )
                if silent and over and isinstance(call, Call):
                    await _settled(call, LAST_WORDS_S if leg.has_answers_spoken else SETTLES_S)
                frame = await leg.receive(message.data)
                if leg.cancelled:
                    await socket.close()
                    break
                if frame is not None and isinstance(call, Call):
                    call.queue(frame)
            if visit is not None and visit.stays_to_end and isinstance(live.conversation, Call):
                await _heard_to_end(live.conversation, leg.sounds)
        finally:
            leg.close(End.CALLER_HUNG_UP)
            await tasks.close()

    async def _begun(self, live: LiveCall) -> object:
        """Returns the conversation, once it has begun."""
        while live.conversation is None and live.leg.closed is None:
            await asyncio.sleep(POLL_S)
        return live.conversation

    async def _note_events(self, live: LiveCall, visit: Visit) -> None:
        """Notes what happens in the call."""
        if isinstance(call := await self._begun(live), Call):
            call.listeners.append(visit.note)

    async def _close_with(self, leg: EvalLeg, socket: web.WebSocketResponse) -> None:
        """Closes the socket when the agent hangs up."""
        await leg.until_closed()
        await socket.close()


def _is_busy(call: Call) -> bool:
    """Whether the agent is about to answer, or speaks."""
    return call.leg.closed is None and (call.hearing.reply.busy or call.leg.playout.queued > 0)


async def _settled(call: Call, limit_s: float) -> None:
    """Waits until an answer that is complete is in the conversation: by text it is read sooner."""
    with suppress(TimeoutError):
        async with asyncio.timeout(limit_s):
            while _is_busy(call):
                await asyncio.sleep(POLL_S)


async def _heard_to_end(call: Call, sounds: Sounds) -> None:
    """Waits until the agent has said everything, and nothing more begins."""
    until = monotonic() + LAST_WORDS_S
    quiet_since = monotonic()
    while call.leg.closed is None and (now := monotonic()) < until:
        if _is_busy(call):
            quiet_since = now
        elif now - quiet_since > (QUIET_S if sounds.answered else SETTLES_S):
            return
        await asyncio.sleep(POLL_S)


@asynccontextmanager
async def eval_door(edge: Edge, line: EvalLine | None = None) -> AsyncIterator[EvalDoor]:
    """Serves the door to this machine; see EvalDoor."""
    door = EvalDoor(edge, line)
    runner = Runner(door.application(), shutdown_timeout=1)
    await runner.setup()
    try:
        await runner.listen("127.0.0.1", 0)
        door.url = f"ws://127.0.0.1:{runner.addresses[0][1]}"
        yield door
    finally:
        await runner.cleanup()
