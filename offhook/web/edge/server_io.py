"""HTTP routes of the edge: the page, SmallWebRTC signalling, health and metrics; see calls_io for
phone calls."""

import time
import uuid
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from socket import SOCK_DGRAM, SOCK_STREAM, SocketKind
from typing import Any

from aiohttp import web
from loguru import logger

from offhook.media.leg import LegError
from offhook.pipeline.conversation.bot_io import load_bot
from offhook.signaling.sdp import OfferError
from offhook.signaling.smallwebrtc import (
    MAX_BODY_BYTES,
    RequestError,
    parse_candidates,
    parse_offer,
    parse_start,
)
from offhook.signaling.whip.fragment import FragmentError
from offhook.signaling.whip.offer import OfferRefusal
from offhook.telephony.call_progress_io import DialError
from offhook.telephony.carriers.providers import provider_called
from offhook.telephony.sip.network.udp_io import listening_hosts
from offhook.web.campaigns.errors import CampaignError, UnknownCampaign, WrongState
from offhook.web.config.config import Config, ConfigError
from offhook.web.config.server import Server
from offhook.web.edge import calls_io, history_io, voicemails_io, whip_io
from offhook.web.edge.builder import routes_io as builder_routes
from offhook.web.edge.builder.drafts import BUILDER, draft_of
from offhook.web.edge.builder.watch_io import watching
from offhook.web.edge.calls.browser_calls_io import UnknownPeer
from offhook.web.edge.calls.whip_calls_io import WhipRefusal
from offhook.web.edge.campaigns import routes_io as campaign_routes
from offhook.web.edge.campaigns.requests import CSV
from offhook.web.edge.carriers import routes_io as carrier_routes
from offhook.web.edge.carriers.routes_io import OF_CARRIERS
from offhook.web.edge.console import console_io, live_events_io, states_io
from offhook.web.edge.desk import desk_io, panels_io
from offhook.web.edge.edge_io import Edge
from offhook.web.edge.http_io import EDGE, Handler, busy, error
from offhook.web.edge.page import page_io
from offhook.web.edge.placing.requests import DialRequestError, fault_of_doors, operator_access
from offhook.web.edge.queues import routes_io as queue_routes
from offhook.web.edge.queues.queues_io import UnknownQueue
from offhook.web.edge.realtime_io import add_conversations
from offhook.web.edge.refusals import Busy, NoPhones
from offhook.web.edge.reload_io import Read, Reload
from offhook.web.edge.rooms import routes_io as room_routes
from offhook.web.edge.rooms.requests import RoomError
from offhook.web.edge.rooms.rooms_io import UnknownMember
from offhook.web.edge.tenants.asked import check_token
from offhook.web.edge.tenants.scope_io import restrict
from offhook.web.http.access import (
    Refusal,
    Token,
    TokenRequestError,
    issue_token,
    parse_token_request,
)
from offhook.web.http.access_io import GRANT, Door, admit, holders_of, is_operator, open_door
from offhook.web.http.connection_io import has_disconnected
from offhook.web.http.health_io import Health, add_health_routes
from offhook.web.http.listening_io import Address, BodyTimeoutError, Runner, kept_port, listener
from offhook.web.http.stop_io import Stop
from offhook.web.realtime import call_control_io
from offhook.web.realtime.http_io import guard as realtime_guard
from offhook.web.realtime.protocol.frozen import fault_of_frozen
from offhook.web.speech_api.errors import ApiError
from offhook.web.speech_api.server_io import GONE, answer_of
from offhook.web.speech_api.server_io import guard as speech_guard
from offhook.web.workers.engines.abilities_io import check_engines
from offhook.web.workers.local_worker_io import auto_workers, local_workers
from offhook.web.workers.routes_io import is_speech_route, mount
from offhook.web.workers.wyoming.door_io import wyoming_clients

BAD_REQUESTS = (
    *(RequestError, OfferError, FragmentError),
    *(DialRequestError, DialError, TokenRequestError, CampaignError),
)
"""Exceptions that are answered with 400."""


@web.middleware
async def guard(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Checks access and converts exceptions to responses."""
    try:
        return await _answer(request, handler)
    except ConnectionError:
        if not has_disconnected(request):
            raise
        return web.Response(status=GONE)  # the client left before the end of its request


async def _answer(request: web.Request, handler: Handler) -> web.StreamResponse:
    if request.match_info.handler in OF_CARRIERS:
        return await handler(request)  # carriers come from elsewhere and are verified individually
    if request.match_info.handler in call_control_io.HANDLERS:
        return await realtime_guard(request, handler)
    if is_speech_route(request):
        return await speech_guard(request, handler)
    if request.path.startswith("/v1/"):
        none = ApiError(404, "there is no speech API here: see [speech] enabled")
        return answer_of(none, **{"X-Request-Id": uuid.uuid4().hex})
    try:
        admit(request)
    except Refusal as refusal:
        return error(refusal.status, str(refusal), **refusal.headers)
    accepted = whip_io.MEDIA_TYPES.get(request.match_info.handler, "application/json")
    if request.match_info.handler in campaign_routes.WITH_CSV and request.content_type == CSV:
        accepted = CSV
    is_known = request.match_info.http_exception is None  # otherwise 404 or 405
    if is_known and request.method in ("POST", "PATCH") and request.content_type != accepted:
        # A form of another site cannot send this type without asking first (CORS).
        return error(415, f"Content-Type is not {accepted}")
    try:
        await restrict(request)
        return await handler(request)
    except WrongState as fault:
        return error(409, str(fault))
    except BAD_REQUESTS as fault:
        return error(400, str(fault))
    except Refusal as refusal:  # of what a request asks for
        return error(refusal.status, str(refusal), **refusal.headers)
    except (OfferRefusal, WhipRefusal) as fault:
        return error(fault.status, str(fault), **getattr(fault, "headers", {}))
    except UnknownPeer:
        return error(404, "unknown pc_id")
    except whip_io.UnknownSession:
        return error(404, "unknown session")
    except calls_io.UnknownCall:
        return error(404, "unknown call_id")
    except UnknownMember:
        return error(404, "unknown member")
    except RoomError as fault:
        return error(409, str(fault))
    except UnknownQueue as fault:
        return error(404, fault.args[0])
    except UnknownCampaign:
        return error(404, "unknown campaign_id")
    except history_io.NoRecords as fault:
        return error(409 if str(fault) == history_io.NOT_KEPT else 503, str(fault))
    except NoPhones:
        return error(409, "this server has no phones: its configuration has no [sip]")
    except LegError as fault:
        return error(502, str(fault))
    except Busy as fault:
        return busy(fault)
    except BodyTimeoutError as fault:
        return error(408, str(fault))
    except web.HTTPRequestEntityTooLarge:
        return error(413, f"the body is over {MAX_BODY_BYTES} bytes")


async def start(request: web.Request) -> web.Response:
    asked = parse_start(await request.read())
    edge = request.app[EDGE]
    edge.admission.tenants.check_agent(request[GRANT].agent)
    edge.check_room(holders_of(request))
    servers = request.app[EDGE].browsers.ice_servers() if asked.default_ice_servers else []
    answer = {"sessionId": str(uuid.uuid4()), "iceConfig": {"iceServers": servers}}
    return web.json_response(answer)


async def offer(request: web.Request) -> web.Response:
    offer = parse_offer(await request.read())
    edge, is_operators, draft = request.app[EDGE], is_operator(request), None
    is_call = offer.pc_id is None or offer.restart_pc  # otherwise one that goes on
    if is_call and edge.bot is None and BUILDER in offer.request_data:
        if not is_operators:
            raise Refusal(403, "only the operator may try an agent's settings")
        draft = draft_of(offer.request_data[BUILDER], edge.config)
    agent = request[GRANT].agent if draft is None else draft.route
    sdp, pc_id = await edge.browsers.offer(
        offer,
        agent,
        holders_of(request),
        variables=request[GRANT].variables,
        is_operators=is_operators,
        draft=draft,
    )
    if has_disconnected(request):  # nobody would connect
        await edge.browsers.cancel(pc_id)
        raise ConnectionError("the caller left before the answer")
    answer: dict[str, Any] = {"sdp": sdp, "type": "answer", "pc_id": pc_id}
    if edge.resumption is not None:
        answer["resumable"] = True
    return web.json_response(answer)


async def candidates(request: web.Request) -> web.Response:
    await request.app[EDGE].browsers.add_candidates(parse_candidates(await request.read()))
    return web.json_response({"status": "success"})


async def cancelled(request: web.Request) -> web.Response:
    """DELETE /api/offer/{pc_id}: the caller hangs up, connected or not."""
    await request.app[EDGE].browsers.cancel(request.match_info["pc_id"])
    return web.json_response({"status": "success"})


async def status(request: web.Request) -> web.Response:
    """Tells who answers; the operator also learns what `auto` is doing, or could do."""
    edge = request.app[EDGE]
    told: dict[str, Any] = {
        "status": "ready",
        "transports": ["webrtc"],
        "answers": edge.default_agent_name(),
    }
    if is_operator(request):
        told["operator"] = True
        if edge.engines.auto:
            told["engines"] = edge.engines.report()
    return web.json_response(told)


async def accepted(request: web.Request) -> web.Response:
    """POST /engines: uses the engines that `auto` would choose, for calls from when they are
    ready."""
    edge = request.app[EDGE]
    if not edge.engines.auto:
        return error(409, "no other engine is on offer here: see offhook doctor")
    for engine in edge.engines.auto:
        engine.want()
    return web.json_response({"engines": edge.engines.report()}, status=202)


def readiness(edge: Edge) -> dict[str, Any]:
    """Returns the body of GET /readyz."""
    gone = edge.agents.probes.gone
    down = edge.sip.lookup.trunks_down() if edge.sip is not None else []
    ready = edge.ready and not edge.draining and not gone and not down
    state: dict[str, Any] = {"ready": ready, "calls": len(edge.lines)}
    state["max_calls"] = edge.config.server.max_calls
    state["overloaded"] = edge.overloaded
    if gone:
        state["agents_without_model"] = gone
    if down:
        state["trunks_down"] = down
    return state


async def tokens(request: web.Request) -> web.Response:
    """POST /tokens: issues a temporary caller's key that all processes accept."""
    config, asked = request.app[EDGE].config, parse_token_request(await request.read())
    if not config.server.admin_key:
        return error(409, "tokens are made with the operator's key: set [server] admin_key")
    check_token(config, request[GRANT].tenant, asked)
    if asked.agent and asked.agent not in config.agents:
        raise TokenRequestError(f"agent: no agent is called {asked.agent!r}")
    expires_at = int(time.time()) + asked.ttl_seconds
    token = Token(
        asked.scope,
        asked.agent,
        expires_at,
        max_sessions=asked.max_sessions,
        variables=asked.variables,
    )
    text = issue_token(config.server.admin_key, token)
    return web.json_response({"token": text, "expires_at": token.expires_at}, status=201)


def application(edge: Edge, door: Door = "public") -> web.Application:
    """Builds the application of an edge for one door; the speech API is not on the operator's."""
    app = web.Application(middlewares=[guard], client_max_size=MAX_BODY_BYTES)
    app[EDGE] = edge
    for prefix in ("", "/sessions/{session}"):
        app.router.add_post(f"{prefix}/api/offer", offer)
        app.router.add_patch(f"{prefix}/api/offer", candidates)
        app.router.add_delete(f"{prefix}/api/offer/{{pc_id}}", cancelled)
    app.router.add_post("/start", start)
    app.router.add_get("/status", status)
    health = Health(edge.health, partial(readiness, edge), edge.metrics.registry)
    add_health_routes(app, health)
    live_events_io.add_routes(app.router)
    history_io.add_routes(app.router)  # before /calls/{call}
    calls_io.add_routes(app.router)
    room_routes.add_routes(app.router)
    campaign_routes.add_routes(app.router)
    voicemails_io.add_routes(app.router)
    carrier_routes.add_routes(app.router)
    whip_io.add_routes(app.router)
    app.router.add_post("/tokens", tokens)
    app.router.add_post("/engines", accepted)
    builder_routes.add_routes(app.router)
    call_control_io.add_routes(app, edge.programs)
    if edge.speech is not None and door != "admin":
        mount(app, edge.speech)
        add_conversations(app)
    page_io.add_routes(app.router)
    console_io.add_routes(app.router, edge.config.s3.links_from)
    states_io.add_routes(app.router)
    queue_routes.add_routes(app.router)
    panels_io.add_routes(app)  # before the files of /desk
    desk_io.add_routes(app.router)
    open_door(app, lambda: edge.access, door)
    return app


def check(config: Config) -> None:
    """Raises ConfigError if strangers could place calls at the operator's cost, the fields that
    they cannot change are none of a session, or an engine is asked for what it cannot do."""
    if fault := fault_of_doors(config) or fault_of_frozen(config.realtime.frozen):
        raise ConfigError(fault)
    check_engines(config)


@asynccontextmanager
async def kept_addresses(config: Config) -> AsyncIterator[int]:
    """Yields the port of HTTP, and keeps it bound meanwhile; the other addresses are free. All that
    before engines load for nothing. Raises OSError, which names the key and the remedy."""
    server = config.server
    for key, host, port, kind in _other_addresses(config):
        async with kept_port(host, port, key, key, kind):
            pass
    async with kept_port(server.host, server.port, "server.host", "server.port") as port:
        yield port


def _other_addresses(config: Config) -> Iterator[tuple[str, str, int, SocketKind]]:
    """Yields the addresses beside that of HTTP: the configuration's key, host, port and kind."""
    server, speech, sip = config.server, config.speech, config.sip
    if server.admin_listen and not (operator := Address.parse(server.admin_listen)).path:
        yield "server.admin_listen", operator.host, operator.port, SOCK_STREAM
    if speech.enabled and speech.wyoming:
        yield "speech.wyoming", *speech.wyoming_address, SOCK_STREAM
    for carrier in config.carriers:
        if provider_called(carrier.provider).listens:
            yield f"carriers.{carrier.name}.port", server.host, carrier.port, SOCK_STREAM
    if sip is None:
        return
    ports = {"udp": sip.udp, "tcp": sip.tcp, "tls": sip.tls, "ws": sip.ws, "wss": sip.wss}
    for name, port in ports.items():
        if port is not None:
            for host in listening_hosts(sip.host):
                yield f"sip.{name}", host, port, SOCK_DGRAM if name == "udp" else SOCK_STREAM


def say_where(config: Config, port: int) -> None:
    server = config.server
    name = "localhost" if server.local else server.host
    logger.bind(port=port).info("call me at http://{}:{}/", name, port)
    if config.records.url:
        logger.info("calls are kept: find them at http://{}:{}/console", name, port)
    logger.info("who may use /calls, /sip/trace and /tokens: {}", operator_access(config))
    if not server.local and not server.api_key:
        logger.warning("anyone who can reach this server may call it: see [server] api_key")


async def listen_for_operator(server: Server, runner: Runner) -> None:
    """Listens at `admin_listen`, if set. Raises OSError."""
    if server.admin_listen:
        await runner.setup()
        where = await listener(Address.parse(server.admin_listen))(runner)
        logger.info("the operator's routes are at {}", where)


@asynccontextmanager
async def listen_for_wyoming(edge: Edge) -> AsyncIterator[None]:
    """Serves Home Assistant while inside, if configured. Raises ConfigError, OSError."""
    if edge.speech is None:
        yield
        return
    async with wyoming_clients(edge.speech, edge.config.speech):
        yield


@asynccontextmanager
async def _watched(reload: Reload | None, file: Path | None) -> AsyncIterator[None]:
    """Reloads the configuration inside whenever this file, or one that it names, changes."""
    if reload is None or file is None:
        yield
        return
    async with watching(file, reload):
        yield


async def serve(
    config: Config,
    bot_file: Path | None = None,
    read: Read | None = None,
    watched: Path | None = None,
) -> None:
    """Runs until SIGTERM or SIGINT, then drains; a second signal ends at once. SIGHUP reloads the
    configuration, and so does a change of `watched` or of a file that it names."""
    check(config)
    async with kept_addresses(config):
        pass  # they are free
    bot = load_bot(bot_file) if bot_file is not None else None
    stop = Stop()
    stop.on_signals()
    as_read = config
    async with local_workers(config) as config, auto_workers(config) as auto:
        edge = Edge(config, bot, auto=auto)
        edge.records.open_store(config)
        await edge.start()
        reload = Reload(edge, as_read, read) if read is not None else None
        if reload is not None:
            stop.reload = reload
        runner, of_operator = Runner(application(edge)), Runner(application(edge, "admin"))
        await runner.setup()
        try:
            await runner.listen(config.server.host, config.server.port)
            await listen_for_operator(config.server, of_operator)
            say_where(config, runner.addresses[0][1])
            async with listen_for_wyoming(edge), _watched(reload, watched):
                await stop.until_drained(edge.drain)
        finally:
            await edge.close()
            await runner.cleanup()
            await of_operator.cleanup()
