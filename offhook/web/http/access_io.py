"""Access control in aiohttp: extracts what `access` checks, and answers CORS requests."""

import os
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Literal

from aiohttp import web

from offhook.web.http.access import AccessPolicy, Grant, Head, Refusal, Role
from offhook.web.http.shares import Holder, Holders, by_address, caller_address

Door = Literal["public", "admin", "siblings"]

ACCESS: web.AppKey[Callable[[], AccessPolicy]] = web.AppKey("access")
"""Returns the current policy."""
DOOR: web.AppKey[Door] = web.AppKey("door")
"""Who the application listens to: the public, the operator, or sibling processes, which have
checked what they forward."""
GRANT: web.RequestKey[Grant] = web.RequestKey("grant", Grant)

FOR_PAGES = (Role.CALL, Role.SESSION, Role.SPEECH, Role.REALTIME)
"""Roles whose routes pages of other sites may use, if their origin is configured."""
PEER_HEADER = "X-Offhook-Peer"
"""Header in which a sibling forwards the peer's address."""
OPERATOR_HEADER = "X-Offhook-Operator"
"""Header in which a sibling forwards whether the request could use the operator's routes."""
TENANT_HEADER = "X-Offhook-Tenant"
"""Header in which a sibling forwards for which tenant the request was admitted."""
FORWARDED_FOR = "X-Forwarded-For"
"""Header in which proxies append the address that they forward for."""
CONNECTIONS = (Path("/proc/net/tcp"), Path("/proc/net/tcp6"))
"""Linux's tables of connections with their owners (proc(5))."""
ROOT = 0


def peer_of(request: web.Request) -> str:
    """Returns the peer's address; empty for a Unix socket, which only siblings can open."""
    return request.remote or request.headers.get(PEER_HEADER) or ""


def holders_of(request: web.Request) -> Holders:
    """Returns who is counted for the line or stream that an admitted request asks for: the key, if
    it has one, as its owner's backend has the calls of many; else the address, and with it the
    token or client secret."""
    grant = request[GRANT]
    if grant.key and grant.token is None:
        return frozenset((Holder("key", grant.key),))
    forwarded_for = request.headers.getall(FORWARDED_FOR, ())
    proxies = request.app[ACCESS]().proxies
    holders = by_address(caller_address(peer_of(request), forwarded_for, proxies))
    if grant.token is None:
        return holders
    return holders | {Holder("secret", grant.token.id, grant.token.max_sessions)}


def head_of(request: web.Request) -> Head:
    return Head(
        request.method,
        request.remote or "",
        request.headers,
        request.version < (1, 1) or not request.raw_path.startswith(("/", "*")),
        lambda: is_same_user(request),
    )


def role_of(request: web.Request) -> Role:
    """Returns the role of the route; an unknown path gets the role of its neighbours, so that
    unauthorized clients cannot probe for routes."""
    policy, resource = request.app[ACCESS](), request.match_info.route.resource
    if resource is None:
        return policy.role_of(request.path, otherwise=Role.PUBLIC)
    return policy.role_of(resource.canonical)


def admit(request: web.Request) -> Grant:
    """Admits the request and stores the grant as `request[GRANT]`. Raises Refusal."""
    policy, head, role = request.app[ACCESS](), head_of(request), role_of(request)
    door, resource = request.app[DOOR], request.match_info.route.resource
    if door == "siblings" and not head.peer:  # an adopted connection has its peer
        grant = policy.grant(role, head, time.time(), keyed=False)
        grant = replace(grant, tenant=head.headers.get(TENANT_HEADER, ""))
    else:
        path = resource.canonical if resource is not None else ""
        grant = policy.admit(role, head, time.time(), admin=door == "admin", path=path)
    request[GRANT] = grant
    return grant


def forwarded(request: web.Request) -> dict[str, str]:
    """Returns the headers by which a sibling knows as what a request was admitted."""
    grant = request.get(GRANT)
    operator = {OPERATOR_HEADER: "yes" if is_operator(request) else "no"}
    return operator | ({TENANT_HEADER: grant.tenant} if grant is not None and grant.tenant else {})


def is_operator(request: web.Request) -> bool:
    """Returns whether the request could use all of the operator's routes."""
    if request.app[DOOR] == "siblings" and not request.remote:
        return request.headers.get(OPERATOR_HEADER) == "yes"
    try:
        policy, admin = request.app[ACCESS](), request.app[DOOR] == "admin"
        policy.admit(Role.OPERATOR, head_of(request), time.time(), admin=admin)
    except Refusal:
        return False
    return True


def is_same_user(request: web.Request) -> bool:
    """Returns whether a local peer is the same user or root: a proxy that hides its clients usually
    runs as another user. True if the system does not tell."""
    transport = request.transport
    peer = transport.get_extra_info("peername") if transport is not None else None
    here = transport.get_extra_info("sockname") if transport is not None else None
    if not isinstance(peer, tuple) or not isinstance(here, tuple):
        return True  # a Unix socket: protected by file permissions
    for path in CONNECTIONS:
        with suppress(OSError):
            for line in path.read_text().splitlines()[1:]:
                fields = line.split()
                ports = (int(end.rpartition(":")[2], 16) for end in fields[1:3])
                if tuple(ports) == (peer[1], here[1]):
                    return int(fields[7]) in (ROOT, os.geteuid())
    return True


# --- browsers ---

IN_BROWSERS: Mapping[str, str] = {
    "X-Content-Type-Options": "nosniff",
    "Content-Security-Policy": "default-src 'none'; frame-ancestors 'none'",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
}
"""Headers of every response that has none of its own: where a browser is led to one, it takes it
for nothing but what it is, runs and loads nothing, shows it in no frame, and other sites cannot
load it as a script or an image (Fetch Standard, CSP Level 3)."""


async def on_prepare(request: web.Request, response: web.StreamResponse) -> None:
    """Adds the headers that browsers obey, those of CORS too, also to refusals."""
    for name, value in IN_BROWSERS.items():
        response.headers.setdefault(name, value)
    if request.app[DOOR] == "public" and role_of(request) in FOR_PAGES:
        for name, value in request.app[ACCESS]().cors_headers(head_of(request)).items():
            response.headers.add(name, value)


async def preflight(request: web.Request) -> web.Response:
    """Handles OPTIONS, a browser's CORS preflight."""
    headers = request.app[ACCESS]().preflight_headers(head_of(request))
    return web.Response(status=204, headers=headers)


def open_door(
    app: web.Application, access: Callable[[], AccessPolicy], door: Door = "public"
) -> None:
    """Sets up access control of an application, once it has its routes."""
    app[ACCESS], app[DOOR] = access, door
    app.on_response_prepare.append(on_prepare)
    for_pages: set[str] = set()
    for resource in tuple(app.router.resources()):
        path = resource.canonical
        if access().role_of(path) in FOR_PAGES and path not in for_pages:
            for_pages.add(path)
            assert isinstance(resource, web.Resource)
            if all(route.method != "OPTIONS" for route in resource):
                resource.add_route("OPTIONS", preflight)
