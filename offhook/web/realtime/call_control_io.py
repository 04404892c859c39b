"""Routes by which programs make client secrets and decide on calls.

POST /v1/realtime/client_secrets          a temporary key for one agent
POST /v1/realtime/calls/{call}/accept     the body is a session object
POST /v1/realtime/calls/{call}/reject     status_code, the SIP status
POST /v1/realtime/calls/{call}/refer      target_uri, tel: or sip:
POST /v1/realtime/calls/{call}/hangup
POST /v1/realtime/calls/{call}/leave      by the page that called, which is being closed
"""

import re
from collections.abc import Collection, Mapping
from secrets import token_hex
from time import time
from typing import Any, Protocol

from aiohttp import web

from offhook.media.leg import LegError
from offhook.media.untrusted_json import read_json
from offhook.web.realtime.http_io import call_not_found
from offhook.web.realtime.incoming import DECLINED
from offhook.web.realtime.incoming_io import CALL_PREFIX
from offhook.web.realtime.secrets import ClientSecrets, agent_of_model, parse_secret_request
from offhook.web.realtime.sessions import validated_session
from offhook.web.speech_api.errors import ApiError

TARGET = re.compile(r"(?:tel|sips?):[^\s<>\"]{1,512}", re.IGNORECASE)


class NotRinging(Exception):
    """Raised when a call was decided before."""


class CallControl(Protocol):
    """The calls of an edge, as these routes control them. `call_id` is our id. Every method raises
    KeyError for a call that is unknown or has ended."""

    @property
    def secrets(self) -> ClientSecrets: ...

    def agent_names(self) -> Collection[str]: ...

    async def accept(self, call_id: str, session: Mapping[str, Any]) -> None:
        """Accepts a ringing call and starts the conversation. Does nothing for one that was
        accepted before."""

    async def reject(self, call_id: str, status: int) -> None:
        """Rejects a ringing call. Raises NotRinging."""

    async def refer(self, call_id: str, target: str) -> None:
        """Transfers an answered call. Raises LegError."""

    async def hang_up(self, call_id: str) -> None:
        """Ends a call, ringing or answered."""

    async def leave(self, call_id: str) -> None:
        """Ends a browser's call, as its caller."""


CONTROL: web.AppKey[CallControl] = web.AppKey("call_control")


async def client_secrets(request: web.Request) -> web.Response:
    control = request.app[CONTROL]
    wanted = parse_secret_request(await request.read())
    session, shown = validated_session(wanted.session)
    agent = agent_of_model(session.get("model"), control.agent_names())
    lifetime_s = wanted.expires_after.seconds
    text, expires_at = control.secrets.create(
        session, agent, lifetime_s, time(), wanted.max_sessions
    )
    shown = {"id": f"sess_{token_hex(12)}", "expires_at": expires_at, **shown}
    answer = {"value": text, "expires_at": expires_at, "session": shown}
    return web.json_response(answer, headers={"Cache-Control": "no-store"})


async def accept(request: web.Request) -> web.Response:
    session, _ = validated_session(await body_of(request))
    if session["type"] != "realtime":
        raise ApiError(400, "session.type is not realtime", "session.type", "invalid_value")
    control = request.app[CONTROL]
    agent_of_model(session.get("model"), control.agent_names())
    try:
        await control.accept(call_of(request), session)
    except KeyError as error:
        raise call_not_found(request.match_info["call"]) from error
    return web.Response()


async def reject(request: web.Request) -> web.Response:
    status = (await body_of(request)).get("status_code", DECLINED)
    if type(status) is not int or not 300 <= status <= 699:
        raise ApiError(400, "status_code is not 300 to 699", "status_code", "invalid_value")
    try:
        await request.app[CONTROL].reject(call_of(request), status)
    except KeyError as error:
        raise call_not_found(request.match_info["call"]) from error
    except NotRinging as error:
        words = "the call is answered: hang it up instead"
        raise ApiError(400, words, None, "call_already_accepted") from error
    return web.Response()


async def refer(request: web.Request) -> web.Response:
    target = (await body_of(request)).get("target_uri")
    if target is None:
        words = "target_uri is missing"
        raise ApiError(400, words, "target_uri", "missing_required_parameter")
    if not isinstance(target, str) or not TARGET.fullmatch(target) or not target.isprintable():
        words = "target_uri is not tel:NUMBER or sip:USER@HOST"
        raise ApiError(400, words, "target_uri", "invalid_value")
    try:
        await request.app[CONTROL].refer(call_of(request), target)
    except KeyError as error:
        raise call_not_found(request.match_info["call"]) from error
    except LegError as error:
        raise ApiError(
            400, f"the call was not transferred: {error}", code="refer_failed"
        ) from error
    return web.Response()


async def hangup(request: web.Request) -> web.Response:
    await request.read()  # clients send anything, or nothing
    try:
        await request.app[CONTROL].hang_up(call_of(request))
    except KeyError as error:
        raise call_not_found(request.match_info["call"]) from error
    return web.Response()


async def leave(request: web.Request) -> web.Response:
    await request.read()
    try:
        await request.app[CONTROL].leave(call_of(request))
    except KeyError as error:
        raise call_not_found(request.match_info["call"]) from error
    return web.Response()


def call_of(request: web.Request) -> str:
    """Returns our id of the call in the path. Raises KeyError if it cannot be one."""
    given = request.match_info["call"]
    if not given.startswith(CALL_PREFIX):
        raise KeyError(given)
    return given.removeprefix(CALL_PREFIX)


async def body_of(request: web.Request) -> dict[str, Any]:
    """Returns the JSON object in the body; an empty one is {}. Raises ApiError 400."""
    body = await request.read()
    if not body.strip():
        return {}
    try:
        table = read_json(body)
    except ValueError as error:
        raise ApiError(400, "the body is not JSON", code="invalid_json") from error
    if not isinstance(table, dict):
        raise ApiError(400, "the body is not a JSON object", code="invalid_json")
    return table


OF_CALLS = frozenset({accept, reject, refer, hangup, leave})
"""Handlers about one call, which is in one process."""
HANDLERS = OF_CALLS | {client_secrets}


def add_routes(app: web.Application, control: CallControl) -> None:
    app[CONTROL] = control
    app.router.add_post("/v1/realtime/client_secrets", client_secrets)
    for handler in (accept, reject, refer, hangup, leave):
        app.router.add_post(f"/v1/realtime/calls/{{call}}/{handler.__name__}", handler)
