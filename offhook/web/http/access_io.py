"""The access policy at aiohttp's door: what is known of a request, and what pages of other sites
are told."""

import os
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Literal

from aiohttp import web

from offhook.web.http.access import AccessPolicy, Grant, Head, Role

Door = Literal["public", "admin", "siblings"]

ACCESS: web.AppKey[Callable[[], AccessPolicy]] = web.AppKey("access")
"""Gives the policy of now."""
DOOR: web.AppKey[Door] = web.AppKey("door")
"""Whom the application listens for: everybody, the operator, or the server's other processes, which
have admitted what they pass on."""
GRANT: web.RequestKey[Grant] = web.RequestKey("grant", Grant)

PEER_HEADER = "X-Offhook-Peer"
"""In what a sibling passes on to us: who asked it."""
CONNECTIONS = (Path("/proc/net/tcp"), Path("/proc/net/tcp6"))
"""Where Linux says whose each end of a connection is (proc(5))."""
ROOT = 0


def peer_of(request: web.Request) -> str:
    """The address of who asks. Only a Unix socket has none, and only siblings get at ours."""
    return request.remote or request.headers.get(PEER_HEADER) or ""


def head_of(request: web.Request) -> Head:
    return Head(
        request.method,
        request.remote or "",
        request.headers,
        request.version < (1, 1),
        lambda: is_same_user(request),
    )


def role_of(request: web.Request) -> Role:
    """Whose the route is that takes the request; of a path without one, whose those beside it are:
    who may not ask there does not learn what is not there."""
    policy, resource = request.app[ACCESS](), request.match_info.route.resource
    if resource is None:
        return policy.role_of(request.path, otherwise=Role.PUBLIC)
    return policy.role_of(resource.canonical)


def admit(request: web.Request) -> Grant:
    """Also to be found as `request[GRANT]`. Raises Refusal."""
    policy, head, role = request.app[ACCESS](), head_of(request), role_of(request)
    door = request.app[DOOR]
    if door == "siblings" and not head.peer:  # a connection that was handed over has its peer
        scope: Literal["call", "speech"] = "speech" if role is Role.SPEECH else "call"
        grant = policy.grant(scope, head, time.time(), keyed=False)
    else:
        grant = policy.admit(role, head, time.time(), admin=door == "admin")
    request[GRANT] = grant
    return grant


def is_same_user(request: web.Request) -> bool:
    """Whether the other end of a connection within this machine is this user's, or root's: a proxy
    that says nothing of those it speaks for mostly runs as a user of its own. True where the system
    does not tell."""
    transport = request.transport
    peer = transport.get_extra_info("peername") if transport is not None else None
    here = transport.get_extra_info("sockname") if transport is not None else None
    if not isinstance(peer, tuple) or not isinstance(here, tuple):
        return True  # a Unix socket: whoever may open its file
    for path in CONNECTIONS:
        with suppress(OSError):
            for line in path.read_text().splitlines()[1:]:
                fields = line.split()
                ports = (int(end.rpartition(":")[2], 16) for end in fields[1:3])
                if tuple(ports) == (peer[1], here[1]):
                    return int(fields[7]) in (ROOT, os.geteuid())
    return True


# --- pages of other sites ---


async def on_prepare(request: web.Request, response: web.StreamResponse) -> None:
    """Lets the pages that may be callers read what they are answered, refusals too."""
    if request.app[DOOR] == "public" and role_of(request) in (Role.CALL, Role.SPEECH):
        for name, value in request.app[ACCESS]().cors_headers(head_of(request)).items():
            response.headers.add(name, value)


async def preflight(request: web.Request) -> web.Response:
    """OPTIONS, by which a browser asks whether a page may."""
    headers = request.app[ACCESS]().preflight_headers(head_of(request))
    return web.Response(status=204, headers=headers)


def open_door(
    app: web.Application, access: Callable[[], AccessPolicy], door: Door = "public"
) -> None:
    """What an application needs whose guard asks `admit`, once it has its routes."""
    app[ACCESS], app[DOOR] = access, door
    app.on_response_prepare.append(on_prepare)
    for_pages: set[str] = set()
    for resource in tuple(app.router.resources()):
        path = resource.canonical
        if access().role_of(path) in (Role.CALL, Role.SPEECH) and path not in for_pages:
            for_pages.add(path)
            assert isinstance(resource, web.Resource)
            resource.add_route("OPTIONS", preflight)
