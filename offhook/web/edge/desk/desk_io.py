"""Serves the desk at `/desk`: a page with a phone of an extension, for whoever signs in with its
number and password. The page registers over `/desk/sip` like any other phone; the cookie of its
session is its password there."""

import asyncio
import time
from importlib.resources import files
from pathlib import Path
from time import monotonic
from typing import Any

from aiohttp import web
from loguru import logger

from offhook.telephony.sip.admission.access_policy import Refusal as SipRefusal
from offhook.telephony.sip.endpoint_io import SipEndpoint
from offhook.telephony.sip.messages.flow import Flow
from offhook.telephony.sip.network.udp_io import host_port
from offhook.telephony.sip.network.websocket_io import offers_sip, sip_websocket
from offhook.web.edge.http_io import EDGE, error, json_of
from offhook.web.edge.page.page_io import OF_PAGE, add_page, files_in
from offhook.web.edge.refusals import RETRY_AFTER_S, NoPhones
from offhook.web.http.access import is_foreign
from offhook.web.http.access_io import ACCESS, FORWARDED_FOR, GRANT, head_of, peer_of
from offhook.web.http.session_cookie import DESK_COOKIE, SESSION_S, issue_desk_session
from offhook.web.http.shares import caller_address

STATIC = Path(str(files("offhook.web.edge.desk") / "static"))
NOTHING = {"number": "", "name": ""}
"""The body of a session that there is not."""
THIS_MACHINE = "127.0.0.1", 0
"""Address of either end of a Unix socket."""


def _phones(request: web.Request) -> SipEndpoint:
    """Raises NoPhones."""
    sip = request.app[EDGE].sip
    if sip is None:
        raise NoPhones
    return sip


def address_of(request: web.Request) -> str:
    """Returns the address of whoever asks: the proxy's if it does not say for whom."""
    forwarded_for = request.headers.getall(FORWARDED_FOR, ())
    peer = peer_of(request)
    return caller_address(peer, forwarded_for, request.app[ACCESS]().proxies) or peer


async def session(request: web.Request) -> web.Response:
    """GET /desk/session: whose desk this is, "" for nobody's."""
    sip = _phones(request)
    number, _ = request.app[ACCESS]().desk_of(head_of(request), time.time())
    if not number:
        return web.json_response(NOTHING)
    return web.json_response(_shown(request, sip, number))


async def sign_in(request: web.Request) -> web.Response:
    """POST /desk/session with {"number": …, "password": …}: sets the cookie of a session."""
    head = head_of(request)
    if is_foreign(head.origin, head.host):
        return error(403, "a page of another site may not sign in")
    sip = _phones(request)
    try:
        given = await json_of(request)
        number, password = given["number"], given["password"]
    except (ValueError, KeyError, TypeError):
        return error(400, 'the body is {"number": "…", "password": "…"}')
    if not isinstance(number, str) or not isinstance(password, str):
        return error(400, "number and password are texts")
    address = address_of(request)
    proved = sip.user_agent.access.sign_in(number, password, address, monotonic())
    if isinstance(proved, SipRefusal):
        words = "too many wrong passwords came from this address: try again in five minutes"
        return error(429, words, **{"Retry-After": str(RETRY_AFTER_S)})
    if not proved:
        logger.bind(a_minute="desk").warning("desk: a wrong password from {}", address)
        return error(401, "there is no extension with this number and password")
    logger.info("desk: extension {} signs in from {}", number, address)
    response = web.json_response(_shown(request, sip, number))
    value = issue_desk_session(number, password, int(time.time()) + SESSION_S)
    secure = request.secure or request.headers.get("X-Forwarded-Proto") == "https"
    response.set_cookie(
        *(DESK_COOKIE, value), max_age=SESSION_S, httponly=True, samesite="Strict", secure=secure
    )
    return response


def _shown(request: web.Request, sip: SipEndpoint, number: str) -> dict[str, Any]:
    """Returns what the page is told of its extension."""
    return {
        "number": number,
        "name": sip.stack.settings.extensions[number].name,
        "ice_servers": request.app[EDGE].browsers.ice_servers(),
    }


async def sign_out(request: web.Request) -> web.Response:
    """DELETE /desk/session."""
    head = head_of(request)
    if is_foreign(head.origin, head.host):
        return error(403, "a page of another site may not sign out")
    response = web.json_response(NOTHING)
    response.del_cookie(DESK_COOKIE, httponly=True, samesite="Strict")
    return response


async def sip(request: web.Request) -> web.StreamResponse:
    """GET /desk/sip: SIP over WebSocket (RFC 7118), until the session ends."""
    phones, grant = _phones(request), request[GRANT]
    if not offers_sip(request):
        return error(400, "this is SIP over WebSocket (subprotocol sip)")
    socket = sip_websocket()
    await socket.prepare(request)
    transport = request.transport
    if transport is None:  # gone already
        return socket
    ends = map(transport.get_extra_info, ("sockname", "peername"))
    local, peer = (host_port(end) if isinstance(end, tuple) else THIS_MACHINE for end in ends)
    remote = address_of(request) or peer[0], peer[1]
    secure = request.secure or request.headers.get("X-Forwarded-Proto") == "https"
    flow = Flow("WSS" if secure else "WS", remote, local, extension=grant.extension)
    try:
        async with asyncio.timeout(grant.expires_at - time.time()):
            await phones.stack.transports.serve_desk(socket, transport, flow)
    except TimeoutError:
        logger.info("desk: the session of extension {} is over", grant.extension)
    return socket


def is_of_desk(request: web.Request) -> bool:
    """Returns whether a request concerns a desk, and not only the files of its page."""
    resource = request.match_info.route.resource
    path = resource.canonical if resource is not None else ""
    return path.startswith("/desk/") and path != "/desk/{name}"


def add_routes(router: web.UrlDispatcher) -> None:
    """Adds `/desk`, `/desk/NAME` for each of its files, its session and its phone."""
    router.add_get("/desk/session", session)
    router.add_post("/desk/session", sign_in)
    router.add_delete("/desk/session", sign_out)
    router.add_get("/desk/sip", sip)
    add_page(router, files_in(STATIC), "/desk", "/desk", {**OF_PAGE, "Cache-Control": "no-cache"})
