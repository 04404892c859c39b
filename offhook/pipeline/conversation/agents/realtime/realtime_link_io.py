"""The WebSocket of a Realtime session. aiohttp's client is used, which the server needs anyway:
OpenAI's own takes 14 MB a process and adds nothing to a socket with JSON in it."""

import asyncio
import socket
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field

from aiohttp import (
    ClientConnectorDNSError,
    ClientError,
    ClientSession,
    ClientWebSocketResponse,
    ClientWSTimeout,
    WSMsgType,
    WSServerHandshakeError,
)
from yarl import URL

from offhook.pipeline.conversation.agents.agent_faults import Fault
from offhook.pipeline.conversation.agents.model_options import ModelOptions
from offhook.pipeline.conversation.agents.realtime.realtime_session import (
    MAX_WORDS_CHARS,
    ErrorReported,
    RealtimeSession,
    Report,
    ResponseEvent,
    UsageReported,
    WordsPlayed,
)

CONNECT_S = 10.0
"""Time limit in s for connecting; then the server counts as unreachable."""
WRITE_S = 10.0
"""Time limit in s for one write, and for the server's close; then the connection is lost."""
HEARTBEAT_S = 20.0
"""Interval in s between pings; a server that answers none is gone."""
MAX_EVENT_BYTES = 16 << 20
"""Maximum size of a server's event; with a larger one the connection is lost."""
_STATUSES = {401: Fault.UNAUTHORIZED, 403: Fault.UNAUTHORIZED, 404: Fault.NO_MODEL}


@dataclass(frozen=True)
class RealtimeModel:
    """A speech-to-speech model behind OpenAI's Realtime API. Of its options headers and query are
    sent."""

    model: str
    base_url: str
    api_key: str = field(repr=False)
    options: ModelOptions = field(default_factory=ModelOptions, kw_only=True)

    @property
    def url(self) -> URL:
        """The URL of its WebSocket. Raises ValueError."""
        return URL(self.base_url.rstrip("/") + "/realtime") % {
            "model": self.model,
            **self.options.query,
        }


def fault_of(error: Exception) -> Fault:
    """Returns the fault of a connection's exception."""
    match error:
        case WSServerHandshakeError(status=429):
            return Fault.RATE_LIMITED
        case WSServerHandshakeError(status=status):
            return _STATUSES.get(status, Fault.SERVER_ERROR if status >= 500 else Fault.REFUSED)
        case ClientConnectorDNSError() | socket.gaierror():
            return Fault.NO_NAME
        case ClientError() | OSError():  # a time-out too
            return Fault.UNREACHABLE
    return Fault.UNEXPECTED


async def _connect(model: RealtimeModel, http: ClientSession) -> ClientWebSocketResponse:
    headers = {"Authorization": f"Bearer {model.api_key}"} if model.api_key else {}
    headers |= model.options.headers
    async with asyncio.timeout(CONNECT_S):
        return await http.ws_connect(
            model.url,
            headers=headers,
            heartbeat=HEARTBEAT_S,
            max_msg_size=MAX_EVENT_BYTES,
            timeout=ClientWSTimeout(ws_close=WRITE_S),
        )


async def check_model(model: RealtimeModel) -> None:
    """Opens a session and closes it. Raises OSError if the server or the model cannot be used."""
    try:
        async with ClientSession() as http, await _connect(model, http) as socket:
            first = await socket.receive_str(timeout=CONNECT_S)
    except WSServerHandshakeError as error:
        raise ConnectionRefusedError(f"status {error.status}: {fault_of(error)}") from error
    except TimeoutError as error:
        raise ConnectionError(f"no answer within {CONNECT_S:g} s") from error
    except (ClientError, TypeError, ValueError) as error:  # TypeError: the server has closed it
        raise ConnectionError(str(error)) from error
    if '"session.created"' not in first:
        raise ConnectionError(first[:MAX_WORDS_CHARS])


class RealtimeLink:
    """Connects at once. Whatever fails ends the session with that fault."""

    def __init__(
        self, model: RealtimeModel, session: RealtimeSession, report: Callable[[Report], None]
    ) -> None:
        """`report` receives the events that no response waits for."""
        self.session = session
        self._model = model
        self._report = report
        self._events: deque[ResponseEvent] = deque()
        self._unsent = asyncio.Event()
        self._received = asyncio.Event()
        self._task = asyncio.create_task(self._run(), name=f"realtime {model.model}")

    def flush(self) -> None:
        """Sends what the session has to send, and hands on its events."""
        self._unsent.set()
        while (event := self.session.next_event()) is not None:
            if isinstance(event, WordsPlayed | ErrorReported | UsageReported):
                self._report(event)
            else:
                self._events.append(event)
                self._received.set()

    async def next_event(self) -> ResponseEvent:
        """Waits for the next event of a response."""
        while not self._events:
            self._received.clear()
            await self._received.wait()
        return self._events.popleft()

    async def close(self) -> None:
        self.session.over = True
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)

    async def _run(self) -> None:
        fault, words = Fault.UNREACHABLE, "the connection has closed"
        try:
            async with ClientSession() as http:
                socket = await _connect(self._model, http)
                writer = asyncio.create_task(self._write(socket), name="realtime writer")
                try:
                    await self._read(socket)
                finally:
                    writer.cancel()
                    await asyncio.gather(writer, return_exceptions=True)
                    with suppress(TimeoutError):
                        async with asyncio.timeout(WRITE_S):
                            await socket.close()
                words += f" with {socket.close_code}"
        except Exception as error:
            fault, words = fault_of(error), str(error) or type(error).__name__
        self.session.close(fault, words)
        self.flush()

    async def _read(self, socket: ClientWebSocketResponse) -> None:
        async for message in socket:
            if message.type is WSMsgType.TEXT:
                self.session.receive(message.data)
                self.flush()
            if self.session.over:
                return
            await asyncio.sleep(0)  # a server may send much at once: let the packets out between

    async def _write(self, socket: ClientWebSocketResponse) -> None:
        try:
            while True:
                for message in self.session.messages_to_send():
                    async with asyncio.timeout(WRITE_S):
                        await socket.send_str(message)
                await self._unsent.wait()
                self._unsent.clear()
        except (OSError, ClientError):
            await socket.close()
