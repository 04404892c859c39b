"""Serves the console at `/console`, and signs in and out."""

import time
from importlib.resources import files
from pathlib import Path

from aiohttp import web
from loguru import logger

from offhook.web.edge.http_io import error, json_of
from offhook.web.edge.page.page_io import OF_PAGE, POLICY, add_page, files_in
from offhook.web.http.access import Head, KeyHolder, is_foreign
from offhook.web.http.access_io import ACCESS, head_of, is_operator, peer_of
from offhook.web.http.session_cookie import COOKIE, SESSION_S, issue_session

STATIC = Path(str(files("offhook.web.edge.console") / "static"))
OF_CONSOLE = {
    **{name: value for name, value in OF_PAGE.items() if name != "Permissions-Policy"},
    "Cache-Control": "no-cache",
}
"""Headers of the console beside those of every response and its policy."""


def _holder(request: web.Request, head: Head) -> KeyHolder | None:
    """Returns whose session a request has; None for nobody's."""
    holder = request.app[ACCESS]().key_holder(head, time.time())
    return KeyHolder("admin") if holder is None and is_operator(request) else holder


def _shown(holder: KeyHolder | None) -> dict[str, str]:
    """Returns who that is: "admin", "reader", or "" for nobody; and of which tenant."""
    return (
        {"who": "", "tenant": ""}
        if holder is None
        else {
            "who": holder.role,
            "tenant": holder.tenant,
        }
    )


async def session(request: web.Request) -> web.Response:
    """GET /console/session: who asks, and whether that is by a session, which can be ended."""
    holder = _holder(request, head_of(request))
    signed_in = holder is not None and COOKIE in request.cookies
    return web.json_response({**_shown(holder), "signed_in": signed_in})


async def sign_in(request: web.Request) -> web.Response:
    """POST /console/session with {"key": …}: sets the cookie of a session."""
    head, policy = head_of(request), request.app[ACCESS]()
    if is_foreign(head.origin, head.host):
        return error(403, "a page of another site may not sign in")
    try:
        key = (await json_of(request))["key"]
    except (ValueError, KeyError, TypeError):
        return error(400, 'the body is {"key": "…"}')
    keyed = Head("GET", head.peer, {"Authorization": f"Bearer {key}"})
    holder = policy.key_holder(keyed, time.time()) if isinstance(key, str) else None
    if holder is None:
        logger.bind(a_minute="sign-in").warning("console: a wrong key from {}", peer_of(request))
        return error(401, "this is neither the operator's key nor a reader's")
    who = f"{holder.tenant} {holder.role}".strip()
    logger.info("console: {} signs in from {}", who, peer_of(request))
    response = web.json_response(_shown(holder))
    value = issue_session(key, int(time.time()) + SESSION_S)
    secure = request.secure or request.headers.get("X-Forwarded-Proto") == "https"
    response.set_cookie(
        *(COOKIE, value), max_age=SESSION_S, httponly=True, samesite="Strict", secure=secure
    )
    return response


async def sign_out(request: web.Request) -> web.Response:
    """DELETE /console/session."""
    head = head_of(request)
    if is_foreign(head.origin, head.host):
        return error(403, "a page of another site may not sign out")
    response = web.json_response({"who": ""})
    response.del_cookie(COOKIE, httponly=True, samesite="Strict")
    return response


def add_routes(router: web.UrlDispatcher, sounds_from: str = "") -> None:
    """Adds `/console`, `/console/NAME` for each of its files, and the routes of a session.
    `sounds_from` is from where else it loads recordings."""
    router.add_get("/console/session", session)
    router.add_post("/console/session", sign_in)
    router.add_delete("/console/session", sign_out)
    policy = {**POLICY, "media-src": f"'self' blob: {sounds_from}".rstrip()}
    words = "; ".join(f"{name} {value}" for name, value in policy.items())
    headers = {**OF_CONSOLE, "Content-Security-Policy": words}
    add_page(router, files_in(STATIC), "/console", "/console", headers)
