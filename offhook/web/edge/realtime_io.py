"""The doors of Realtime conversations: WS /v1/realtime, with audio of its own or beside a call, and
POST /v1/realtime/calls, a WebRTC call."""

import asyncio
import re
import time
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any

from aiohttp import WSCloseCode, web
from aiortc import RTCDataChannel

from offhook.media.end_reason import End
from offhook.media.leg import Claim
from offhook.media.silence_io import SilenceWatch
from offhook.media.tasks_io import TaskSet
from offhook.media.untrusted_json import read_json
from offhook.signaling.event_channel_io import EventChannel
from offhook.signaling.peer_io import PeerLeg
from offhook.signaling.sdp import OfferError, check_offer
from offhook.web.edge.calls.live_call_io import LiveCall
from offhook.web.edge.edge_io import Edge
from offhook.web.edge.http_io import EDGE
from offhook.web.edge.refusals import RETRY_AFTER_S, Busy
from offhook.web.http.access import Role
from offhook.web.http.access_io import ACCESS, GRANT, head_of, holders_of
from offhook.web.realtime.call_io import RealtimeCall
from offhook.web.realtime.connection_io import MAX_EVENT_BYTES, Connection
from offhook.web.realtime.conversation.scope import Transport
from offhook.web.realtime.http_io import call_not_found
from offhook.web.realtime.incoming_io import CALL_PREFIX
from offhook.web.realtime.leg_io import SocketLeg
from offhook.web.realtime.protocol.client_events import Dialect
from offhook.web.realtime.protocol.conversation_session import (
    ConversationSession,
    full_session,
    updated,
)
from offhook.web.realtime.protocol.frozen import NONE_FROZEN, FrozenFields
from offhook.web.realtime.protocol.server_events import error
from offhook.web.realtime.protocol.session_object import EventError
from offhook.web.realtime.secrets import agent_of_model
from offhook.web.realtime.transcription.server_io import CONVERSATIONS, PROTOCOLS
from offhook.web.speech_api.errors import ApiError
from offhook.web.speech_api.http.form_io import read_form
from offhook.web.speech_api.sockets.worker_stream_io import run_socket, upgraded

REALTIME_MODEL = re.compile(r"default|gpt-(4o-|4o-mini-)?realtime(?!.*(whisper|transcribe)).*")
"""OpenAI's speech-to-speech models: by their names [agent] is meant."""


BETA_PROTOCOL = "openai-beta.realtime-v1"
BETA_PATHS = ("", "/sessions", "/transcription_sessions")
"""Where clients of the beta send offers and ask for secrets, below /v1/realtime."""
BETA_REFUSAL = "beta_api_shape_disabled"
BETA_WORDS = "the beta's events and paths are not served: use the API of the general availability"
REFUSED = 4000
"""WebSocket close code of a session that OpenAI refuses."""


class Conversations:
    """The Realtime conversations of an edge."""

    def __init__(self, edge: Edge) -> None:
        self._edge = edge
        self._reading = TaskSet()
        """Readers of data channels."""

    def wants(self, request: web.Request) -> bool:
        """Whether a WebSocket of /v1/realtime is a conversation rather than a transcription."""
        query = request.query
        if "call_id" in query:
            return True
        if (secret := request[GRANT].secret) is not None:
            return "call" in secret.scopes
        if query.get("intent", "") == "transcription":
            return False
        if not (model := query.get("model", "")):  # the first event says it
            return "speech" not in request[GRANT].scopes
        agents = self._edge.programs.agent_names()
        return model in agents or REALTIME_MODEL.fullmatch(model) is not None

    async def serve(self, request: web.Request) -> web.StreamResponse:
        """Raises Refusal, and ApiError 403, 404 or 503, before the upgrade."""
        if _is_beta(request):
            return await _refuse_beta(request)
        if "call_id" in request.query:
            return await self._serve_beside(request, request.query["call_id"])
        return await self._serve_own(request)

    async def _serve_beside(self, request: web.Request, call_id: str) -> web.StreamResponse:
        # It controls somebody else's call, so a caller's token or client secret is not enough.
        request.app[ACCESS]().admit(Role.CONTROL, head_of(request), time.time())
        call = self._edge.realtime.find(call_id.removeprefix(CALL_PREFIX))
        if call is None:
            raise call_not_found(call_id)
        socket = await upgraded(request, MAX_EVENT_BYTES, PROTOCOLS)
        await run_socket(
            request, socket, self._attend(socket, call, owner=False), lambda code: None
        )
        return socket

    async def _serve_own(self, request: web.Request) -> web.StreamResponse:
        edge, model = self._edge, request.query.get("model", "")
        agent, holders = self._agent_for(request, model), holders_of(request)
        frozen = self.frozen_for(request)
        session = _session_for(request, {"model": model or agent or "default"}, frozen)
        try:
            edge.admission.tenants.check_agent(agent)
            claim = edge.admit(holders)
        except Busy as busy:
            raise _busy(busy) from busy
        # Others are admitted while it is upgraded.
        leg, live = self._held(claim, agent, request[GRANT].variables)
        try:
            socket = await upgraded(request, MAX_EVENT_BYTES, PROTOCOLS)
        except BaseException:
            live.discard()
            raise
        call = edge.realtime.open(leg.call_id, session, Transport.WEBSOCKET, frozen)
        await run_socket(request, socket, self._run(socket, leg, live, call), lambda code: None)
        return socket

    def _held(
        self, claim: Claim | None, agent: str, variables: Mapping[str, str]
    ) -> tuple[SocketLeg, LiveCall]:
        """Returns a leg, and its call that holds a line."""
        leg = SocketLeg(self._edge.new_id())
        leg.claim = claim
        leg.info = replace(leg.info, variables=variables)
        return leg, self._edge.hold(leg, agent)

    async def serve_opened(
        self, request: web.Request, socket: web.WebSocketResponse, event: str
    ) -> None:
        """Serves a conversation that the first event begins, a session.update, on a socket that is
        open and has its session.created."""
        edge, model = self._edge, read_json(event)["session"].get("model") or ""
        try:
            agent, holders = self._agent_for(request, str(model)), holders_of(request)
            edge.admission.tenants.check_agent(agent)
            claim = edge.admit(holders)
        except ApiError as refusal:
            await _refuse(socket, refusal.code or "invalid_model", str(refusal))
        except Busy as busy:
            await _refuse(socket, _code(busy), busy.sentence, WSCloseCode.TRY_AGAIN_LATER)
        else:
            session = full_session({"model": str(model) or agent or "default"})
            leg, live = self._held(claim, agent, request[GRANT].variables)
            call = edge.realtime.open(leg.call_id, session, Transport.WEBSOCKET)
            await self._run(socket, leg, live, call, event)

    async def _run(
        self,
        socket: web.WebSocketResponse,
        leg: SocketLeg,
        live: LiveCall,
        call: RealtimeCall,
        first: str | None = None,
    ) -> None:
        def end_silent(words: str) -> None:
            leg.close(End.NOTHING_HEARD + f": {words}")

        leg.connect()
        live.direct = call.direct
        running = self._edge.begin(live)
        watch = SilenceWatch(lambda: call.activity, end_silent)
        try:
            await self._attend(socket, call, owner=True, first=first)
        finally:
            watch.stop()
            leg.close(End.CALLER_HUNG_UP)
            await asyncio.wait((running,))

    async def close(self, app: web.Application) -> None:
        await self._reading.close()

    # --- what the key allows ---

    def _agent_for(self, request: web.Request, model: str) -> str:
        """Returns the name of the agent that answers, "" for the default. Raises ApiError 403 if
        the key is not for conversations, or for those with another agent, and 404 for a model that
        is no agent."""
        grant, asked = request[GRANT], agent_of_model(model, self._edge.programs.agent_names())
        if "call" not in grant.scopes:
            words = "this key is not for conversations"
            raise ApiError(403, words, code="insufficient_scope")
        if grant.secret is None and not grant.agent:
            return asked
        if grant.agent and grant.agent not in self._edge.config.agents:
            words = f"this key is for conversations with {grant.agent!r}, who is not there any more"
            raise ApiError(404, words, "model", "model_not_found")
        if asked not in ("", grant.agent):
            words = f"this key is not for conversations with {asked!r}"
            raise ApiError(403, words, "model", "insufficient_scope")
        return grant.agent

    def frozen_for(self, request: web.Request) -> FrozenFields:
        """Returns the fields of the session that the request's key may not change."""
        if request[GRANT].secret is None:
            return NONE_FROZEN
        return FrozenFields(self._edge.config.realtime.frozen)

    # --- WebRTC ---

    async def ice_servers(self, request: web.Request) -> web.Response:
        """GET /v1/realtime/ice_servers: the STUN and TURN servers for a call, as browsers' own
        RTCConfiguration has them."""
        servers = self._edge.browsers.ice_servers()
        headers = {"Cache-Control": "no-store"}
        return web.json_response({"ice_servers": servers}, headers=headers)

    async def call(self, request: web.Request) -> web.Response:
        """POST /v1/realtime/calls: answers an SDP offer. Raises ApiError 400, 401 or 503."""
        sdp, table = await _offered(request)
        edge = self._edge
        frozen = self.frozen_for(request)
        session = _session_for(request, table, frozen)
        agent = self._agent_for(request, table.get("model") or "")
        holders = holders_of(request)
        try:
            check_offer(sdp)
        except OfferError as error:
            raise _invalid(error) from error
        try:
            edge.admission.tenants.check_agent(agent)
            claim = edge.admit(holders)
        except Busy as busy:
            raise _busy(busy) from busy
        leg = edge.browsers.leg(PeerLeg)
        leg.claim = claim
        leg.info = replace(leg.info, variables=request[GRANT].variables)
        call = edge.realtime.open(leg.call_id, session, Transport.RTP, frozen)
        leg.on_channel = partial(self._use_channel, call)
        try:
            answer = await edge.browsers.begin(leg, sdp, agent, direct=call.direct)
        except BaseException as error:  # also a client that leaves before the answer
            edge.realtime.drop(leg.call_id)
            if isinstance(error, OfferError):
                raise _invalid(error) from error
            if isinstance(error, Busy):
                raise _busy(error) from error
            raise
        return web.Response(
            status=201,
            text=answer,
            content_type="application/sdp",
            headers={"Location": f"/v1/realtime/calls/{CALL_PREFIX}{leg.call_id}"},
        )

    def _use_channel(self, call: RealtimeCall, channel: RTCDataChannel) -> None:
        if call.has_owner:  # a call has one channel for events, however many are opened
            return
        events = EventChannel(channel)
        number = call.attach(events, owner=True)
        self._reading.spawn(events.run(partial(call.receive, number)), "events of a data channel")

    async def _attend(
        self,
        socket: web.WebSocketResponse,
        call: RealtimeCall,
        *,
        owner: bool,
        first: str | None = None,
    ) -> None:
        """`first`: an event that was read before, by who has greeted the client."""
        connection = Connection(socket)
        number = call.attach(connection, owner=owner, greeted=first is not None)
        try:
            await connection.run(
                lambda text: call.receive(number, text), lambda: call.refuse_bytes(number), first
            )
        finally:
            call.detach(number)


async def _offered(request: web.Request) -> tuple[str, dict[str, Any]]:
    """Returns the SDP offer and the session object of a request, which is SDP alone or a form with
    both. Raises ApiError."""
    if request.content_type == "application/sdp":
        model = request.query.get("model", "")
        sdp = (await request.read()).decode(errors="replace")
        return sdp, {"model": model} if model else {}
    if request.content_type != "multipart/form-data":
        words = "send the offer as application/sdp, or as multipart/form-data with sdp and session"
        raise ApiError(400, words, "sdp")
    most = request.client_max_size
    form = await read_form(request, most, lambda name: most)
    sdp, session = (form.get(name, b"").decode(errors="replace") for name in ("sdp", "session"))
    if not sdp:
        raise ApiError(400, "sdp is missing: the offer", "sdp")
    try:
        table = read_json(session or "{}")
    except ValueError as error:
        raise ApiError(400, f"session is not valid JSON: {error}", "session") from error
    if not isinstance(table, dict):
        raise ApiError(400, "session is no JSON object", "session")
    return sdp, table


def _session_for(
    request: web.Request, table: dict[str, Any], frozen: FrozenFields
) -> ConversationSession:
    """Returns the session that the request begins: that of its client secret, if it has one, with
    what the client sent. Its model only names the agent, and is not taken over where it is frozen.
    Raises ApiError 400."""
    secret = request[GRANT].secret
    try:
        if secret is None:
            return full_session(table)
        begun = full_session(dict(secret.session or {}))
        table = {"type": "realtime", **table}
        if frozen.touch("model"):
            table["model"] = begun.model
        return frozen.kept(begun, updated(begun, table), "session")
    except EventError as error:
        raise ApiError(400, str(error), error.param, error.code) from error


def _is_beta(request: web.Request) -> bool:
    """Whether the client speaks the API as it was before general availability."""
    asked = (
        request.headers.get("OpenAI-Beta", ""),
        request.headers.get("Sec-WebSocket-Protocol", ""),
    )
    return "realtime=v1" in asked[0] or BETA_PROTOCOL in asked[1]


async def _refuse_beta(request: web.Request) -> web.StreamResponse:
    """Refuses a client of the beta as OpenAI does."""
    socket = await upgraded(request, protocols=PROTOCOLS)
    await _refuse(socket, BETA_REFUSAL, BETA_WORDS)
    return socket


def _invalid(error: OfferError) -> ApiError:
    return ApiError(400, str(error), "sdp", "invalid_offer")


def _busy(busy: Busy) -> ApiError:
    return ApiError(busy.status, busy.sentence, code=_code(busy), retry_after_s=RETRY_AFTER_S)


def _code(busy: Busy) -> str:
    return "rate_limit_exceeded" if busy.reason == "share" else f"server_{busy.code}"


async def _refuse(
    socket: web.WebSocketResponse, code: str, words: str, close: int = REFUSED
) -> None:
    await socket.send_str(error(Dialect.OPENAI, EventError(words, code)))
    await socket.close(code=close, message=f"invalid_request_error.{code}".encode())


async def _refuse_beta_request(request: web.Request) -> web.StreamResponse:
    """Raises ApiError 400, as OpenAI does."""
    words = f"{BETA_WORDS}: /v1/realtime/calls, /v1/realtime/client_secrets"
    raise ApiError(400, words, code=BETA_REFUSAL)


def add_conversations(app: web.Application) -> None:
    """Serves conversations at /v1/realtime beside its transcriptions."""
    app[CONVERSATIONS] = conversations = Conversations(app[EDGE])
    app.router.add_post("/v1/realtime/calls", conversations.call)
    app.router.add_get("/v1/realtime/ice_servers", conversations.ice_servers)
    for path in BETA_PATHS:
        app.router.add_post(f"/v1/realtime{path}", _refuse_beta_request)
    app.on_cleanup.append(conversations.close)
