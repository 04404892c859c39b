"""Routes of WHIP (RFC 9725) and WHEP (draft-ietf-wish-whep).

POST   /whip/{room}, /whep/{room}        publish to a room, or play its call
PATCH  /whip/{room}/{session}, …         trickle ICE
DELETE                                   end the session
"""

from time import monotonic

from aiohttp import web

from offhook.signaling.peer_io import PeerLeg
from offhook.signaling.whip import fragment, offer
from offhook.signaling.whip.fragment import parse_fragment
from offhook.signaling.whip.links import ice_server_link
from offhook.signaling.whip.offer import OfferRefusal, Protocol
from offhook.signaling.whip.session import PatchAction, Session
from offhook.web.edge.http_io import EDGE, Handler, error
from offhook.web.http.access_io import GRANT, holders_of, preflight
from offhook.web.http.connection_io import has_disconnected

ROOM = r"{room:[\w.~-]{1,64}}"
"""A room's name in a path: unreserved characters (RFC 3986 §2.3)."""


async def publish(request: web.Request) -> web.Response:
    """POST /whip/{room}."""
    return await _open(request, Protocol.WHIP)


async def play(request: web.Request) -> web.Response:
    """POST /whep/{room}."""
    return await _open(request, Protocol.WHEP)


async def _open(request: web.Request, protocol: Protocol) -> web.Response:
    edge = request.app[EDGE]
    sdp, room = await _text(request), request.match_info["room"]
    grant, holders = request[GRANT], holders_of(request)
    session, answer = await edge.whip.open(
        protocol, room, sdp, grant.agent, holders, grant.variables
    )
    if has_disconnected(request):  # nobody would connect
        await edge.whip.end(session)
        raise ConnectionError("the client left before the answer")
    headers = {
        "Content-Type": offer.MEDIA_TYPE,
        "Location": session.path,
        "ETag": session.etag,
        "Accept-Patch": fragment.MEDIA_TYPE,
    }
    response = web.Response(status=201, body=answer.encode(), headers=headers)
    _add_links(request, response)
    return response


async def patch(request: web.Request) -> web.Response:
    """PATCH of a session: candidates, or an ICE restart."""
    session, calls = _session(request), request.app[EDGE].whip
    received = parse_fragment(await _text(request))
    if_match = ",".join(request.headers.getall("If-Match", ())) or None
    match session.action(received, if_match):
        case PatchAction.STALE:
            return error(412, "If-Match names an earlier ICE session", ETag=session.etag)
        case PatchAction.UNCONDITIONAL:
            return error(428, 'an ICE restart needs "If-Match: *"')
        case PatchAction.RESTART:
            answer = await calls.restart(session, received)
            headers = {"ETag": session.etag, "Content-Type": fragment.MEDIA_TYPE}
            return web.Response(body=answer.encode(), headers=headers)
        case PatchAction.TRICKLE:
            await calls.add_candidates(session, received)
            return web.Response(status=204)


async def end(request: web.Request) -> web.Response:
    """DELETE of a session; for a while also of one that has ended."""
    edge = request.app[EDGE]
    session = edge.whip.sessions.find(request.path)
    if session is not None:
        await edge.whip.end(session)
    elif not edge.whip.sessions.has_ended(request.path, monotonic()):
        raise UnknownSession
    return web.Response(status=200)


async def exists(request: web.Request) -> web.Response:
    """GET and HEAD of a room or a session: nothing to show."""
    if "session" in request.match_info:
        _session(request)
    return web.Response(status=204)


async def options(request: web.Request) -> web.Response:
    """OPTIONS: what may be posted and the ICE servers, and CORS preflights."""
    answer = await preflight(request)
    answer.headers["Accept-Post"] = offer.MEDIA_TYPE
    answer.headers["Accept-Patch"] = fragment.MEDIA_TYPE
    preflighted = "Access-Control-Request-Method" in request.headers
    if not preflighted and "session" not in request.match_info:  # it carries the caller's key
        _add_links(request, answer)
    return answer


class UnknownSession(KeyError):
    """Raised for a session that is not there."""


def _session(request: web.Request) -> Session[PeerLeg]:
    """Raises UnknownSession."""
    session = request.app[EDGE].whip.sessions.find(request.path)
    if session is None:
        raise UnknownSession
    return session


async def _text(request: web.Request) -> str:
    """Raises OfferRefusal if the body is not UTF-8."""
    try:
        return (await request.read()).decode()
    except UnicodeDecodeError as fault:
        raise OfferRefusal(400, "the body is not UTF-8") from fault


def _add_links(request: web.Request, response: web.Response) -> None:
    """Adds a Link header for each URL of the ICE servers."""
    for server in request.app[EDGE].config.webrtc.ice_servers:
        for url in [server.urls] if isinstance(server.urls, str) else server.urls:
            link = ice_server_link(url, server.username, server.credential)
            response.headers.add("Link", link)


MEDIA_TYPES: dict[Handler, str] = {
    publish: offer.MEDIA_TYPE,
    play: offer.MEDIA_TYPE,
    patch: fragment.MEDIA_TYPE,
}
"""Content types that handlers accept."""
OF_ROOMS: frozenset[Handler] = frozenset({publish, play, patch, end, exists})
"""Handlers of requests for the process that has the room."""


def add_routes(router: web.UrlDispatcher) -> None:
    for protocol, post in ((Protocol.WHIP, publish), (Protocol.WHEP, play)):
        endpoint = router.add_resource(f"/{protocol.value}/{ROOM}")
        endpoint.add_route("POST", post)
        session = router.add_resource(f"/{protocol.value}/{ROOM}/{{session}}")
        session.add_route("PATCH", patch)
        session.add_route("DELETE", end)
        for resource in (endpoint, session):
            resource.add_route("GET", exists)
            resource.add_route("HEAD", exists)
            resource.add_route("OPTIONS", options)
