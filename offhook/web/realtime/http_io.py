"""What the HTTP routes of the Realtime API share: the guard around every handler."""

import uuid
from collections.abc import Awaitable, Callable

from aiohttp import web
from loguru import logger

from offhook.web.http.access_io import admit
from offhook.web.http.connection_io import has_disconnected
from offhook.web.speech_api.errors import ApiError
from offhook.web.speech_api.server_io import GONE, answer_of, fault_of

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


async def guard(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Checks access, runs the handler and converts exceptions to errors in OpenAI's format."""
    request_id = uuid.uuid4().hex
    try:
        admit(request)
        response = await handler(request)
    except Exception as error:
        if isinstance(error, ConnectionError) and has_disconnected(request):
            return web.Response(status=GONE)
        fault = fault_of(error, request_id)
        if fault.status == 500:
            logger.opt(exception=error).error("{} {} failed", request.method, request.path)
        response = answer_of(fault)
    if not response.prepared:
        response.headers["X-Request-Id"] = request_id
    return response


def call_not_found(call_id: str) -> ApiError:
    """Returns the error for a call that is unknown or has ended."""
    words = f"no call has the id {call_id[:80]!r}, or it has ended"
    return ApiError(404, words, "", "call_id_not_found")
