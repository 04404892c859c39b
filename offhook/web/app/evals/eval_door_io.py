"""The WebSocket at which Pipecat's eval harness calls an agent of a configuration.

GET /AGENT      the named agent; / the default one
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

from aiohttp import WSMsgType, web

from offhook.media.end_reason import End
from offhook.media.leg import CallInfo
from offhook.media.tasks_io import TaskSet
from offhook.pipeline.conversation.call_io import Call
from offhook.pipeline.conversation.events import AgentFailed, Event
from offhook.web.app.evals.eval_leg_io import EvalLeg
from offhook.web.edge.calls.live_call_io import LiveCall
from offhook.web.edge.edge_io import Edge
from offhook.web.http.listening_io import Runner

MAX_MESSAGE_BYTES = 16 << 20
"""Maximum size of a message of the harness, such as an image; a longer one ends its call."""
POLL_S = 0.02
SETTLES_S = 5.0
"""Time limit in s for an answer that the harness has read to be in the conversation before what it
says next."""


class EvalDoor:
    """Takes calls of the harness."""

    def __init__(self, edge: Edge) -> None:
        self.url = ""
        self._edge = edge
        self._faults: dict[str, list[str]] = {}
        """Of the visitors, by their numbers."""

    def visitor(self, agent: str) -> tuple[str, list[str]]:
        """Returns the URL for one conversation, and the list to which what fails in it is added."""
        number = str(len(self._faults))
        faults = self._faults[number] = []
        return f"{self.url}/{agent}?visitor={number}", faults

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
        silent = request.query.get("skip_tts") == "true"
        sends_audio = request.query.get("capture_bot_audio") == "true"
        leg = EvalLeg(self._edge.new_id(), CallInfo(edge="eval"), sends_audio=sends_audio)
        live = self._edge.hold(leg, agent)
        running = self._edge.begin(live)
        leg.connect()
        faults = self._faults.get(request.query.get("visitor", ""), [])
        tasks = TaskSet()
        tasks.spawn(self._note_faults(live, faults), "eval faults")
        tasks.spawn(leg.send_to(socket), "eval messages")
        tasks.spawn(self._close_with(leg, socket), "eval socket")
        try:
            async for message in socket:
                if message.type is not WSMsgType.TEXT:
                    continue
                call = await self._begun(live)
                if silent and leg.has_answered and isinstance(call, Call):
                    await _settled(call)
                frame = await leg.receive(message.data)
                if frame is not None and isinstance(call, Call):
                    call.queue(frame)
        finally:
            leg.close(End.CALLER_HUNG_UP)
            await asyncio.wait((running,))
            await tasks.close()
        return socket

    async def _begun(self, live: LiveCall) -> object:
        """Returns the conversation, once it has begun."""
        while live.conversation is None and live.leg.closed is None:
            await asyncio.sleep(POLL_S)
        return live.conversation

    async def _note_faults(self, live: LiveCall, faults: list[str]) -> None:
        """Notes what fails of the agent."""

        def note(event: Event) -> None:
            if isinstance(event, AgentFailed):
                faults.append(f"{event.fault}: {event.cause}")

        if isinstance(call := await self._begun(live), Call):
            call.listeners.append(note)

    async def _close_with(self, leg: EvalLeg, socket: web.WebSocketResponse) -> None:
        """Closes the socket when the agent hangs up."""
        await leg.until_closed()
        await socket.close()


async def _settled(call: Call) -> None:
    """Waits until an answer that is complete is in the conversation: by text it is read sooner."""
    with suppress(TimeoutError):
        async with asyncio.timeout(SETTLES_S):
            while call.hearing.reply.busy or call.leg.playout.queued:
                await asyncio.sleep(POLL_S)


@asynccontextmanager
async def eval_door(edge: Edge) -> AsyncIterator[EvalDoor]:
    """Serves the door to this machine."""
    door = EvalDoor(edge)
    runner = Runner(door.application(), shutdown_timeout=1)
    await runner.setup()
    try:
        await runner.listen("127.0.0.1", 0)
        door.url = f"ws://127.0.0.1:{runner.addresses[0][1]}"
        yield door
    finally:
        await runner.cleanup()
