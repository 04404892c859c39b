"""HTTP client of an OpenAI-compatible audio server: one session, concurrency limits, time limits
and errors.

Redirects are not followed: audio and key go to the configured address only. Responses are bounded,
and the API key never appears in a message.
"""

from asyncio import timeout
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from typing import Any, Literal
from urllib.parse import urlsplit

import aiohttp

from offhook.pipeline.speech.openai.answers import failure, model_ids, plain
from offhook.pipeline.speech.streams.priority_semaphore_io import MAX_REQUESTS, PrioritySemaphore
from offhook.pipeline.speech.streams.retry import AttemptFailed

CONNECT_TIMEOUT_S = 10.0
"""Time limit in s for connecting; then the server counts as unreachable."""
BODY_TIMEOUT_S = 10.0
"""Maximum time in s between two chunks of a response; then the request has failed."""
LIST_TIMEOUT_S = 10.0
"""Time limit in s for listing models or voices; then the server cannot be used."""
MAX_ANSWER_BYTES = 1 << 22
"""Maximum size of a JSON response, an hour of words with times; with a longer one the request has
failed."""
MAX_ERROR_BYTES = 1 << 14
"""Maximum size read of an error response; the rest is ignored."""
PIECE_BYTES = 1 << 16
PING_S = 15.0
"""Ping interval in s of a WebSocket; without a pong within half of it the connection is considered
lost."""
MAX_MESSAGE_BYTES = 1 << 20
"""Maximum size of a WebSocket message; with a larger one the connection is lost."""
CLOSE_TIMEOUT_S = 1.0
"""Time limit in s for the server's close; then the connection is dropped."""
USUAL_MODEL = {"asr": "whisper-1", "tts": "tts-1"}
"""Default model if none is configured and the server has several: OpenAI's names, which most
servers accept."""
HUNG_UP = (aiohttp.ClientPayloadError, aiohttp.ServerDisconnectedError, OSError)
NO_HEADERS: Mapping[str, str] = {}
BROKEN = (aiohttp.ClientError, OSError, TimeoutError)


class OpenAiServer:
    """The server at `url`, e.g. ``http://host:8000/v1``; `kind` is its use, asr or tts."""

    def __init__(
        self,
        kind: Literal["asr", "tts", "agent"],
        url: str,
        api_key: str = "",
        model: str = "",
        max_requests: int = MAX_REQUESTS,
        section: str = "",
        headers: Mapping[str, str] = NO_HEADERS,
        query: Mapping[str, str] = NO_HEADERS,
        secrets: Sequence[str] = (),
    ) -> None:
        """`section` is that of the configuration, for messages; empty: `kind`. `headers` and
        `query` are sent with each request; `secrets`, what may be a key in them, is in no
        message."""
        self.kind = kind
        self._section = section or kind
        self.url = url.rstrip("/")
        self.place = urlsplit(url).netloc.rpartition("@")[2]
        self.turns = PrioritySemaphore(max_requests)
        self._api_key = api_key
        self._headers, self._query = headers, query
        self._secrets = (*secrets, api_key)
        self._model = model
        self._session: aiohttp.ClientSession | None = None
        self._closed = False

    @property
    def name(self) -> str:
        return f"{self._model or 'openai'} at {self.place}"

    @asynccontextmanager
    async def ask(
        self,
        method: str,
        path: str,
        within_s: float,
        *,
        json: Mapping[str, Any] | None = None,
        form: Callable[[], aiohttp.FormData] | None = None,
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        """Sends a request and yields its response once it has started with a good status; the
        connection is closed if the block ends early. Raises AttemptFailed, also for errors inside
        the block."""
        response: aiohttp.ClientResponse | None = None
        try:
            async with timeout(within_s):
                response = await self._open_session().request(
                    method,
                    self.url + path,
                    params=self._query,
                    json=json,
                    data=form() if form else None,
                    allow_redirects=False,
                )
                if not 200 <= response.status < 300:
                    raise await self._failure(response)
            yield response
        except BROKEN as error:
            raise self._broken(error, within_s) from error
        finally:
            if response is not None:
                response.close()

    async def socket(self, path: str, within_s: float) -> aiohttp.ClientWebSocketResponse:
        """Opens a WebSocket. Raises AttemptFailed."""
        try:
            async with timeout(within_s):
                return await self._open_session().ws_connect(
                    self.url + path,
                    compress=0,
                    heartbeat=PING_S,
                    max_msg_size=MAX_MESSAGE_BYTES,
                    timeout=aiohttp.ClientWSTimeout(ws_close=CLOSE_TIMEOUT_S),
                )
        except aiohttp.WSServerHandshakeError as error:
            raise failure(
                error.status, error.headers or NO_HEADERS, b"", datetime.now(UTC)
            ) from error
        except BROKEN as error:
            raise self._broken(error, within_s) from error

    async def body(self, response: aiohttp.ClientResponse, within_s: float) -> bytes:
        """Reads a whole JSON response within the time limit. Raises AttemptFailed."""
        data = bytearray()
        while piece := await self.piece(response, BODY_TIMEOUT_S if data else within_s):
            data += piece
            if len(data) > MAX_ANSWER_BYTES:
                raise AttemptFailed(f"the response is too long ({MAX_ANSWER_BYTES} bytes so far)")
        return bytes(data)

    async def piece(self, response: aiohttp.ClientResponse, within_s: float) -> bytes:
        """Reads the next chunk of a response; empty at its end. Raises AttemptFailed."""
        try:
            async with timeout(within_s):
                return await response.content.read(PIECE_BYTES)
        except BROKEN as error:
            raise self._broken(error, within_s) from error

    async def model(self) -> str:
        """Returns the configured model, the server's only one, or the default. Raises AttemptFailed
        if the server cannot be asked."""
        if not self._model:
            models: list[str] = []
            try:
                async with self.ask("GET", "/models", LIST_TIMEOUT_S) as response:
                    models = model_ids(await self.body(response, LIST_TIMEOUT_S))
            except AttemptFailed as failed:
                if failed.status not in (404, 405, 501):
                    raise
            self._model = models[0] if len(models) == 1 else USUAL_MODEL[self.kind]
        return self._model

    async def close(self) -> None:
        """Closes the client; requests in progress fail."""
        self._closed = True
        if self._session is not None:
            await self._session.close()

    def explain(self, failed: AttemptFailed) -> str:
        """Returns a message for the operator: which server, what it says, what to do."""
        words = str(failed)
        agent = self.kind == "agent"
        if failed.status in (401, 403):
            words += f": set [{self._section}] api_key"
        elif failed.status == 404 and agent:
            words += f": mend [{self._section}] model, or base_url, which mostly ends with /v1"
        elif failed.status == 404:
            words += f": mend [{self._section}] url or model"
        parts = urlsplit(self.url)
        where = parts._replace(netloc=self.place, query="").geturl()
        words = f"the {'model' if agent else 'speech'} server at {where}: {words}"
        for secret in filter(None, self._secrets):
            words = words.replace(secret, "***")
        return words

    def _open_session(self) -> aiohttp.ClientSession:
        if self._closed:
            raise AttemptFailed("we are closing", hopeless=True)
        if self._session is None:
            headers = {"Accept-Encoding": "identity", **self._headers}
            if self._api_key:
                headers["Authorization"] = f"Bearer {self._api_key}"
            self._session = aiohttp.ClientSession(
                # `PrioritySemaphore` limits, and each WebSocket has a connection of its own.
                connector=aiohttp.TCPConnector(limit=0),
                headers=headers,
                timeout=aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_TIMEOUT_S),
            )
        return self._session

    async def _failure(self, response: aiohttp.ClientResponse) -> AttemptFailed:
        body = b""
        while len(body) < MAX_ERROR_BYTES and (piece := await self.piece(response, BODY_TIMEOUT_S)):
            body += piece
        now = datetime.now(UTC)
        return failure(response.status, response.headers, body[:MAX_ERROR_BYTES], now)

    def _broken(self, error: BaseException, within_s: float) -> AttemptFailed:
        if self._closed:
            return AttemptFailed("we are closing", hopeless=True)
        if isinstance(error, aiohttp.ClientConnectorError | aiohttp.ConnectionTimeoutError):
            return AttemptFailed(f"no server responds there ({plain(error)})", fault="unreachable")
        if isinstance(error, TimeoutError):
            return AttemptFailed(f"it took longer than {within_s:g} s", fault="timeout")
        if isinstance(error, HUNG_UP):
            return AttemptFailed("it closed the connection early")
        return AttemptFailed(f"it sent an invalid HTTP response ({plain(error)})")
