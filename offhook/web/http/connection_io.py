"""One HTTP connection: aiohttp's, whose defaults suit a process that sends packets meanwhile.

aiohttp decompresses bodies on the event loop, reads the rest of a body that nobody wants, counts
parts of a form and not its bytes, buffers heads of megabytes, and says its version in each
response. None of that is done here. It relies on private names of aiohttp's RequestHandler and
Request; tests/web/http/test_connection.py fails if they change.
"""

import asyncio
import json
import select
from collections.abc import Awaitable, Callable
from typing import Any

from aiohttp import StreamReader, hdrs, web
from aiohttp.http_parser import RawRequestMessage
from aiohttp.streams import EMPTY_PAYLOAD
from aiohttp.web_protocol import RequestHandler
from loguru import logger
from yarl import URL

MAX_HEAD_BYTES = 128 << 10
"""Maximum head of a request, all headers together; a longer one is refused with 431."""
MAX_HEADERS = 128
"""Maximum number of headers of a request; more are refused with 400."""
MAX_LINE_BYTES = 1 << 16
"""Maximum request line, refused with 400 if it is longer; a stream's context is in its query, 4000
characters of up to 12 bytes each."""
MAX_TYPE_BYTES = 256
"""Maximum Content-Type, refused with 400 if it is longer: the boundary of a form has 70 characters
at most (RFC 2046 §5.1.1). Python's parser takes time by the square of its length, 2 s for 16 kB."""
MAX_FIELD_BYTES = 16 << 10
"""Maximum header, refused with 400 if it is longer; a client secret with its session is in one."""
FRAMING_SHARE = 2
FRAMING_BYTES = 64 << 10
"""A chunked body may have FRAMING_SHARE times its limit and FRAMING_BYTES on the wire; beyond that
it is refused with 413, as its chunks are mostly framing."""
DRAIN_BYTES = 16 << 10
"""Maximum rest of an unread body that is still read, so that the connection can be used again.
Before a longer rest the connection is closed."""
LINGER_S = 2.0
"""Time in s for which a connection with an unread body stays open after its response, without being
read: closing at once would reset it, and the client might lose the response."""
LINGER_LOOK_S = 0.05
"""Interval in s at which a lingering connection is checked for having been closed by the client."""

_TOO_LARGE_HEAD = b"HTTP/1.1 431 Request Header Fields Too Large\r\nConnection: close\r\n\r\n"
Serve = Callable[[Any], Awaitable[web.StreamResponse]]


def allow_body(request: web.Request, most_bytes: int) -> None:
    """Lets the request have a body of up to `most_bytes`; call it before the body is read. Reading
    a longer one raises web.HTTPRequestEntityTooLarge."""
    request._client_max_size = most_bytes


def has_disconnected(request: web.BaseRequest) -> bool:
    """Returns whether the client has closed its connection. asyncio does not notice while a body is
    unread, so the socket is asked, which knows once everything sent has been read."""
    transport = request.transport
    if transport is None or transport.is_closing():
        return True
    socket = transport.get_extra_info("socket")
    if socket is None or not hasattr(select, "POLLRDHUP"):
        return False
    poll = select.poll()
    poll.register(socket.fileno(), select.POLLRDHUP)
    return bool(poll.poll(0))


class Connection(RequestHandler):
    """Serves the requests of one connection and counts what it receives."""

    __slots__ = ("_body_bytes", "_head_bytes", "_last_body", "_requests_seen")

    def __init__(self, server: web.Server, **settings: Any) -> None:
        super().__init__(
            server,
            **settings,
            auto_decompress=False,
            lingering_time=0.0,
            max_headers=MAX_HEADERS,
            max_line_size=MAX_LINE_BYTES,
            max_field_size=MAX_FIELD_BYTES,
        )
        self._requests_seen = 0
        self._last_body: StreamReader = EMPTY_PAYLOAD
        """Body of the last request whose head is complete."""
        self._head_bytes = 0
        """Bytes of an incomplete head."""
        self._body_bytes = 0
        """Bytes of the current body on the wire."""

    @property
    def is_idle(self) -> bool:
        """Whether it waits for a request."""
        return self._waiter is not None and not self._waiter.done()

    def data_received(self, data: bytes) -> None:
        in_body = not self._last_body.is_eof()
        super().data_received(data)
        if self._payload_parser is not None or self._upgraded:  # a WebSocket has limits of its own
            return
        if self._request_count != self._requests_seen:
            self._requests_seen = self._request_count
            self._head_bytes = self._body_bytes = 0
            if self._messages:
                self._last_body = self._messages[-1][1]
        elif in_body:
            self._count_body(len(data))
        else:
            self._count_head(len(data))

    def _count_head(self, size: int) -> None:
        self._head_bytes += size
        if self._head_bytes > MAX_HEAD_BYTES and self.transport is not None:
            if self.is_idle:
                self.transport.write(_TOO_LARGE_HEAD)
            self.force_close()

    def _count_body(self, size: int) -> None:
        self._body_bytes += size
        request, body = self._current_request, self._last_body
        if request is None or request.content is not body:
            return  # it waits, or has been answered: aiohttp stops reading it soon
        limit = request.client_max_size
        most = FRAMING_SHARE * limit + FRAMING_BYTES
        if (body.total_bytes > limit or self._body_bytes > most) and body.exception() is None:
            body.set_exception(web.HTTPRequestEntityTooLarge(limit, body.total_bytes))

    def handle_error(
        self,
        request: web.BaseRequest,
        status: int = 500,
        exc: BaseException | None = None,
        message: str | None = None,
    ) -> web.StreamResponse:
        if status >= 500:
            return super().handle_error(request, status, exc, message)
        # What strangers send is no fault of ours: no traceback.
        logger.debug("{}: {}", request.remote, (message or "").partition("\n")[0][:200])
        response = web.Response(status=status, text=message)
        response.headers["X-Content-Type-Options"] = "nosniff"
        response.force_close()
        return response

    async def finish_response(
        self, request: web.BaseRequest, resp: web.StreamResponse, start_time: float | None
    ) -> tuple[web.StreamResponse, bool]:
        if _is_long(request) and isinstance(resp, web.StreamResponse):
            resp.force_close()
        finished = await super().finish_response(request, resp, start_time)
        if not request.content.is_eof() and self.transport is not None:
            await self._leave_body(request, finished[0])
        _drop(request.content)
        return finished

    def connection_lost(self, exc: BaseException | None) -> None:
        super().connection_lost(exc)
        if not self._last_body.is_eof():
            _drop(self._last_body)

    async def _leave_body(self, request: web.BaseRequest, response: web.StreamResponse) -> None:
        """Reads the short rest of a body, or leaves it and ends the connection."""
        body, transport = request.content, self.transport
        assert transport is not None
        if response.keep_alive:
            try:
                async with asyncio.timeout(LINGER_S):
                    while not body.is_eof():
                        await body.readany()
            except TimeoutError:
                pass  # aiohttp closes the connection, as the body is not complete
            return
        transport.pause_reading()
        if transport.can_write_eof():
            transport.write_eof()
        for _ in range(round(LINGER_S / LINGER_LOOK_S)):
            if has_disconnected(request):
                break
            await asyncio.sleep(LINGER_LOOK_S)


def _drop(body: StreamReader) -> None:
    """Frees what nobody will read: a request and its connection refer to each other, so both stay
    until a full collection."""
    if body is not EMPTY_PAYLOAD:
        body._buffer.clear()


def _is_long(request: web.BaseRequest) -> bool:
    """Returns whether more of the body is unread than DRAIN_BYTES, or it failed."""
    body = request.content
    if body.is_eof():
        return False
    announced = request.content_length
    rest = None if announced is None else announced - body.total_bytes
    return rest is None or rest > DRAIN_BYTES or body.exception() is not None


class Request(web.Request):
    """A request whose response does not say which server sent it."""

    def __init__(self, message: RawRequestMessage, *arguments: Any, **options: Any) -> None:
        if message.url is None:  # "CONNECT" without a target, on which aiohttp's task would end
            message = message._replace(url=URL("/"))
        super().__init__(message, *arguments, **options)

    async def _prepare_hook(self, response: web.StreamResponse) -> None:
        response.headers.popall(hdrs.SERVER, None)
        await super()._prepare_hook(response)


def refusing_unreadable(serve: Serve) -> Serve:
    """Wraps a server's handler: compressed bodies are refused with 415 and not read (RFC 9110
    §15.5.16), as a small one can be hundreds of megabytes; a head of more than MAX_HEAD_BYTES with
    431; a Content-Type of more than MAX_TYPE_BYTES with 400; transfer codings but chunked with 501
    (RFC 9112 §6.1); headers that are not UTF-8 with 400, as aiohttp quotes them in texts that it
    cannot encode."""

    async def answer(request: web.BaseRequest) -> web.StreamResponse:
        coding = request.headers.get(hdrs.CONTENT_ENCODING, "").strip().lower()
        if _head_bytes(request) > MAX_HEAD_BYTES:  # which came in few pieces
            words = f"the head has more than {MAX_HEAD_BYTES} bytes"
            return _refusal(request, 431, words, "head_too_large")
        if not all(map(_is_unicode, request.headers.values())):
            return _refusal(request, 400, "a header is not UTF-8", "invalid_header")
        if len(request.headers.get(hdrs.CONTENT_TYPE, "")) > MAX_TYPE_BYTES:
            words = f"the Content-Type has more than {MAX_TYPE_BYTES} bytes"
            return _refusal(request, 400, words, "invalid_header")
        transfer = request.headers.get(hdrs.TRANSFER_ENCODING, "chunked").strip().lower()
        if transfer != "chunked":
            words = f"Transfer-Encoding {transfer[:40]!r} is not supported"
            return _refusal(request, 501, words, "unsupported_encoding")
        if coding in ("", "identity"):
            return await serve(request)
        words = f"Content-Encoding {coding[:40]!r} is not supported: send the body uncompressed"
        response = _refusal(request, 415, words, "unsupported_encoding")
        response.headers[hdrs.ACCEPT_ENCODING] = "identity"
        return response

    return answer


def _head_bytes(request: web.BaseRequest) -> int:
    return sum(len(name) + len(value) + len(": \r\n") for name, value in request.raw_headers)


def _is_unicode(text: str) -> bool:
    """Whether it has no lone surrogates, which stand for bytes that are not UTF-8."""
    return text.isascii() or not any("\ud800" <= char <= "\udfff" for char in text)


def _refusal(request: web.BaseRequest, status: int, words: str, code: str) -> web.Response:
    """The connection closes after it."""
    fault: object = words
    if request.path.startswith("/v1/"):  # as OpenAI's API says it
        fault = {"message": words, "type": "invalid_request_error", "param": None, "code": code}
    response = web.Response(
        status=status,
        text=json.dumps({"error": fault}),
        content_type="application/json",
        headers={"X-Content-Type-Options": "nosniff"},
    )
    response.force_close()
    return response
