"""HTTP and WebSocket client of a speech worker, shared by ASR and TTS."""

import json
import socket
from asyncio import timeout
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any

import aiohttp
from aiohttp.abc import AbstractResolver, ResolveResult

from offhook.pipeline.speech.errors import EngineError, UnsupportedRequest
from offhook.pipeline.speech.redact import without_locations
from offhook.pipeline.speech.remote.pool import WorkerAddress
from offhook.pipeline.speech.remote.worker_list_io import (
    RESOLVE_S,
    UNIX,
    read_up_to,
    worker_url,
)
from offhook.pipeline.speech.remote.worker_protocol import (
    ACCEPT_HEADER,
    DRAINING,
    Error,
    ErrorCode,
    ProtocolError,
)

RECONNECT_S = 0.05
"""First pause in s before reconnecting; it doubles each time, see RetryPolicy."""
CONNECT_TIMEOUT_S = 30.0
"""Time limit in s for connecting, as a worker process that is starting answers after a few seconds;
then the attempt has failed, and the next one follows."""
PING_S = 15.0
"""Time in s without sending after which a ping is sent."""
LOOK_S = 1.0
"""Interval in s at which a silent worker with results due is pinged."""
HUNG_LOOKS = 5
"""Unanswered pings after which a worker counts as hung."""
SILENCE_S = 2 * PING_S
"""Time in s without any data, even a pong, after which a worker counts as lost, and its streams go
on at another connection."""
START_TIMEOUT_S = 900.0
"""Maximum loading time of a worker in s, including a model download; then the attempt has failed,
and the next one follows."""
CLOSE_TIMEOUT_S = 1.0
"""Time limit in s for the worker's close; then the connection is dropped."""
MAX_STATE_BYTES = 1 << 14
"""Maximum size of the body of a /readyz; a larger one is not read, or counts as that of a worker
that is not ready."""

MAX_WORDS_CHARS = 300
"""Maximum characters of an error's text quoted in ours; the rest is cut off."""

LOST = (aiohttp.ClientError, OSError, TimeoutError, ProtocolError)
"""Exceptions that end a connection; all are retried,"""
HOPELESS = (ErrorCode.BAD_REQUEST, ErrorCode.ENGINE)
"""except for these error codes, which would recur."""


class WorkerRefused(OSError):
    """Raised when the worker ends the stream with an error."""

    def __init__(self, error: Error) -> None:
        super().__init__(error.message)
        self.code = error.code


class WorkerForbidden(WorkerRefused):
    """Raised when the worker denies access."""


def is_hopeless(error: BaseException) -> bool:
    return isinstance(error, WorkerRefused) and error.code in HOPELESS


def as_error(error: BaseException, words: str, demands: str) -> EngineError:
    """Converts an error to an EngineError. `words` is for the operator; `demands` describes the
    special requirements of the request, which are only blamed if the worker rejects it."""
    if isinstance(error, WorkerRefused) and error.code is ErrorCode.BAD_REQUEST:
        if demands and not isinstance(error, WorkerForbidden):
            said = str(error)
            ours = f"the speech engine cannot do what was asked for: {demands}"
            return UnsupportedRequest(said if without_locations(said) else ours)
        return EngineError(words, "refused")
    if isinstance(error, WorkerRefused):
        return EngineError(words, "full" if error.code is ErrorCode.FULL else "failed")
    if isinstance(error, aiohttp.ClientConnectorError | aiohttp.ConnectionTimeoutError):
        return EngineError(words, "unreachable")
    return EngineError(words, "timeout" if isinstance(error, TimeoutError) else "failed")


def in_words(error: BaseException) -> str:
    """Returns a short description; some exceptions quote a URL with its query."""
    return str(error)[:MAX_WORDS_CHARS] or type(error).__name__


class OneAddress(AbstractResolver):
    """Resolves every name to one IP address; the Host header and the name in TLS stay the name."""

    def __init__(self, ip: str) -> None:
        self._ip = ip

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_UNSPEC
    ) -> list[ResolveResult]:
        family = socket.AF_INET6 if ":" in self._ip else socket.AF_INET
        flags = socket.AI_NUMERICHOST
        return [
            ResolveResult(
                hostname=host, host=self._ip, port=port, family=family, proto=0, flags=flags
            )
        ]

    async def close(self) -> None:
        pass


@contextmanager
def starting(kind: str, url: str, demands: str) -> Iterator[None]:
    """Converts errors inside the block to EngineError, except that an overloaded worker counts as
    started. See `as_error` for `demands`."""
    try:
        yield
    except WorkerRefused as refused:
        if refused.code is not ErrorCode.FULL:
            words = f"the speech worker at {url}: {refused}"
            raise as_error(refused, words, demands) from refused
    except LOST as error:
        words = (
            f"no speech worker at {url}: {in_words(error)}. Start one there with "
            f"`offhook worker {kind}`, or mend the address"
        )
        raise as_error(error, words, demands) from error


class WorkerClient:
    """The worker at `url`, ``http://host:port`` with or without the ``/v1`` of OpenAI clients, or
    ``unix:PATH``; at `ip`, if its host has several addresses. `kind` is asr or tts."""

    def __init__(self, kind: str, url: str, api_key: str, ip: str = "") -> None:
        self.kind = kind
        self.url = worker_url(url)
        self.address = WorkerAddress(self.url, ip)
        self.connect_timeout_s = CONNECT_TIMEOUT_S
        self._headers = {ACCEPT_HEADER: DRAINING}
        if api_key:
            self._headers["Authorization"] = f"Bearer {api_key}"
        self._session: aiohttp.ClientSession | None = None

    async def connect(
        self, path: str, query: Mapping[str, str], *, autoping: bool = True
    ) -> aiohttp.ClientWebSocketResponse:
        """Opens a stream. Without `autoping` the caller reads pings and pongs. Raises any of
        LOST."""
        try:
            async with timeout(self.connect_timeout_s):
                return await self._http().ws_connect(
                    path,
                    params=query,
                    compress=0,
                    autoping=autoping,
                    timeout=aiohttp.ClientWSTimeout(ws_close=CLOSE_TIMEOUT_S),
                )
        except aiohttp.WSServerHandshakeError as error:
            if error.status not in (401, 403):
                raise
            words = f"it wants a valid API key ([{self.kind}] api_key)"
            if error.status == 403:
                words = "it does not answer to this name or from this place"
            raise WorkerForbidden(Error(ErrorCode.BAD_REQUEST, words)) from error

    async def ask(
        self, method: str, path: str, form: aiohttp.FormData | None = None
    ) -> aiohttp.ClientResponse:
        """Sends a request and returns the response, which the caller closes. Raises any of LOST."""
        limits = aiohttp.ClientTimeout(sock_connect=CONNECT_TIMEOUT_S, sock_read=START_TIMEOUT_S)
        return await self._http().request(method, path, data=form, timeout=limits)

    async def readiness(self) -> tuple[bool, dict[str, Any]]:
        """Returns whether the worker has loaded, and the body of its /readyz; empty if it is
        away."""
        state: object = None
        is_loaded = False
        with suppress(*LOST, ValueError, RecursionError):
            answer = await self.ask("GET", "/readyz")
            async with answer:
                if (answer.content_length or 0) <= MAX_STATE_BYTES:
                    state = json.loads(await read_up_to(answer, MAX_STATE_BYTES))
                is_loaded = answer.status == 200
        return is_loaded, state if isinstance(state, dict) else {}

    def _http(self) -> aiohttp.ClientSession:
        if self._session is None:
            path = self.url.removeprefix(UNIX)
            connector: aiohttp.BaseConnector
            # A connection per stream, without limit.
            if path != self.url:
                connector = aiohttp.UnixConnector(path, limit=0)
            elif ip := self.address.ip:
                connector = aiohttp.TCPConnector(limit=0, resolver=OneAddress(ip))
            else:
                connector = aiohttp.TCPConnector(limit=0, ttl_dns_cache=int(RESOLVE_S))
            base = "http://localhost" if path != self.url else self.url
            self._session = aiohttp.ClientSession(base, connector=connector, headers=self._headers)
        return self._session

    async def close(self) -> None:
        if self._session is not None:
            await self._session.close()
            self._session = None


async def message_of(socket: aiohttp.ClientWebSocketResponse, within_s: float) -> str | bytes:
    """Receives the next message. Raises any of LOST."""
    frame = await socket.receive(within_s)
    while frame.type in (aiohttp.WSMsgType.PING, aiohttp.WSMsgType.PONG):  # if autoping is off
        if frame.type is aiohttp.WSMsgType.PING:
            await socket.pong(frame.data)
        frame = await socket.receive(within_s)
    return content_of(socket, frame)


def content_of(socket: aiohttp.ClientWebSocketResponse, frame: aiohttp.WSMessage) -> str | bytes:
    """Returns the content of a data frame. Raises any of LOST."""
    if frame.type not in (aiohttp.WSMsgType.TEXT, aiohttp.WSMsgType.BINARY):
        raise ConnectionError(f"it hung up ({socket.close_code})")
    data: str | bytes = frame.data
    return data
