"""Serves the console at `/console`, and signs in and out."""

import json
import time
from importlib.resources import files
from pathlib import Path

from aiohttp import web
from loguru import logger

from offhook.web.edge.http_io import error
from offhook.web.edge.page.page_io import OF_PAGE, POLICY, add_page, files_in
from offhook.web.http.access import Head, is_foreign
from offhook.web.http.access_io import ACCESS, head_of, is_operator, peer_of
from offhook.web.http.session_cookie import COOKIE, SESSION_S, issue_session

STATIC = Path(str(files("offhook.web.edge.console") / "static"))
OF_CONSOLE = {
    **{name: value for name, value in OF_PAGE.items() if name != "Permissions-Policy"},
    "Cache-Control": "no-cache",
}
"""Headers of the console beside those of every response and its policy."""


def _holder(request: web.Request, head: Head) -> str:
    """Returns whose session a request has: "admin", "reader" or ""."""
    who = request.app[ACCESS]().key_holder(head, time.time())
    return "admin" if not who and is_operator(request) else who


async def session(request: web.Request) -> web.Response:
    """GET /console/session: who asks: "admin", "reader", or "" for nobody; and whether that is by
    a session, which can be ended."""
    who = _holder(request, head_of(request))
    return web.json_response({"who": who, "signed_in": bool(who and request.cookies.get(COOKIE))})


async def sign_in(request: web.Request) -> web.Response:
    """POST /console/session with {"key": …}: sets the cookie of a session."""
    head, policy = head_of(request), request.app[ACCESS]()
    if is_foreign(head.origin, head.host):
        return error(403, "a page of another site may not sign in")
    try:
        key = json.loads(await request.read())["key"]
    except (ValueError, KeyError, TypeError):
        return error(400, 'the body is {"key": "…"}')
    keyed = Head("GET", head.peer, {"Authorization": f"Bearer {key}"})
    who = policy.key_holder(keyed, time.time()) if isinstance(key, str) else ""
    if not who:
        logger.bind(a_minute="sign-in").warning("console: a wrong key from {}", peer_of(request))
        return error(401, "this is neither the operator's key nor the reader's")
    logger.info("console: {} signs in from {}", who, peer_of(request))
    response = web.json_response({"who": who})
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
