"""Common parts of all worker streams: one WebSocket between a client and an engine."""

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from contextlib import contextmanager, suppress
from typing import Any, TypeVar

from aiohttp import WSCloseCode, WSMessage, WSMsgType, web
from loguru import logger

from offhook.media.fair_websocket_io import FairWebSocket
from offhook.pipeline.speech.remote.worker_protocol import (
    IDLE_S,
    MAX_TEXT_CHARS,
    MAX_UNREAD_S,
    Error,
    ErrorCode,
    ProtocolError,
)
from offhook.web.speech_api.errors import ApiError

E = TypeVar("E")

MAX_MESSAGE_BYTES = 1 << 20
"""Messages up to this size are rejected with an error; for longer ones the connection is closed
with code 1009."""
CLOSE_S = 5.0
"""Time limit in s for a client to read its last messages before the connection is aborted."""
CLOSE_CODES = {
    ErrorCode.FULL: WSCloseCode.TRY_AGAIN_LATER,
    ErrorCode.STOPPING: WSCloseCode.GOING_AWAY,
    ErrorCode.ENGINE: WSCloseCode.INTERNAL_ERROR,
    ErrorCode.TOO_LONG: WSCloseCode.MESSAGE_TOO_BIG,
}
"""Close codes of errors; all others are policy violations."""


class Refused(Exception):
    """Raised to end a stream with this error."""

    def __init__(self, code: ErrorCode, message: str) -> None:
        super().__init__(message)
        self.error = Error(code, message)


@contextmanager
def refusing() -> Iterator[None]:
    """Converts errors of a request or message inside to Refused."""
    try:
        yield
    except ProtocolError as error:
        raise Refused(ErrorCode.BAD_REQUEST, str(error)) from error
    except ApiError as error:
        code = ErrorCode.STOPPING if error.status == 503 else ErrorCode.BAD_REQUEST
        if error.code == "streams_full":
            code = ErrorCode.FULL
        raise Refused(code, str(error)) from error


class IdleTimer:
    """Calls `run_out` when an activity has lasted `seconds`, repeatedly. A single timer serves all
    activities, since one per message would cost as much as the message."""

    def __init__(self, seconds: float, run_out: Callable[[], None]) -> None:
        self._seconds, self._run_out = seconds, run_out
        self._loop = asyncio.get_running_loop()
        self._under_way = 0
        self._since = 0.0
        """When the last activity began or ended, in s of the loop's clock."""
        self._timer: asyncio.TimerHandle | None = None

    def begin(self) -> None:
        self._under_way += 1
        self._since = self._loop.time()
        if self._timer is None:
            self._timer = self._loop.call_later(self._seconds, self._look)

    def end(self) -> None:
        self._under_way -= 1
        self._since = self._loop.time()

    def stop(self) -> None:
        """Cancels the timer."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _look(self) -> None:
        self._timer = None
        if not self._under_way:
            return
        left = self._since + self._seconds - self._loop.time()
        if left <= 0:
            self._since, left = self._loop.time(), self._seconds
            self._run_out()
        self._timer = self._loop.call_later(left, self._look)


class WorkerStream(ABC):
    """One WebSocket from its start to its close."""

    expects: str
    """What an idle client should send, for the error message."""

    def __init__(self, socket: web.WebSocketResponse) -> None:
        self.received = 0
        """Messages from the client; pings, which only say that it is there, are none."""
        self.sent = 0
        """Messages to the client."""
        self.stopped: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        """Set to an exception, it ends the stream."""
        self._socket = socket
        self._draining_text = ""
        """What tells the client that the server drains; empty: nothing, at least not yet."""
        self._announcing: asyncio.Task[None] | None = None
        self._receive_timer = IdleTimer(IDLE_S, self._receive_timed_out)
        self._send_timer = IdleTimer(MAX_UNREAD_S, self._send_timed_out)

    def stop(self) -> None:
        """Ends the stream because the server stops; the client is told to reconnect."""
        self._refuse(ErrorCode.STOPPING, "the server has stopped: connect again")

    def end_silent(self, words: str) -> None:
        """Ends the stream because nothing came; `words` say for how long."""
        self._refuse(ErrorCode.IDLE, f"{words}: send {self.expects}, or connect when there is some")

    def give_way(self) -> None:
        """Ends the stream, which was not used, for another client."""
        words = "the stream was not used, and others wait for one"
        self._refuse(ErrorCode.FULL, f"{words}: connect when there is {self.expects}")

    @property
    def activity(self) -> int:
        """A number that changes with each message either way; 0 until the client has sent one."""
        return self.received and self.received + self.sent

    def announce_drain(self) -> None:
        """Tells the client that the server will stop, if it has been greeted and understands."""
        if self._draining_text and self._announcing is None:
            self._announcing = asyncio.create_task(self.send(self._draining_text), name="draining")

    def _receive_timed_out(self) -> None:
        if not self.may_be_idle():
            words = f"nothing came for {IDLE_S} s: send {self.expects}, or a ping"
            self._refuse(ErrorCode.IDLE, words)

    def _send_timed_out(self) -> None:
        self._refuse(ErrorCode.BEHIND, f"nothing was taken for {MAX_UNREAD_S} s")

    def _refuse(self, code: ErrorCode, words: str) -> None:
        if not self.stopped.done():
            self.stopped.set_exception(Refused(code, words))

    @abstractmethod
    async def run(self) -> None:
        """Runs until the client closes. Raises Refused, EngineError, and ConnectionError when the
        client has disconnected."""

    async def receive_bytes(self, data: bytes) -> None:
        """Handles a binary message. Raises Refused, ProtocolError."""
        raise ProtocolError(f"{len(data)} bytes that are not text")

    def receive_text(self, text: str) -> bool:
        """Handles a text message; False when it ends the stream. Raises Refused, ProtocolError."""
        raise ProtocolError("text is not understood here")

    def may_be_idle(self) -> bool:
        """Returns whether the client may be silent because it waits for the server."""
        return False

    async def loaded(self, loading: Awaitable[E]) -> E:
        waiting = asyncio.ensure_future(loading)
        try:
            await self._first_of(waiting)
            return waiting.result()
        finally:
            if waiting is not loading:
                waiting.cancel()

    async def run_both(self, *ways: Coroutine[Any, Any, None]) -> None:
        """Runs both until one ends or the stream is stopped. Raises the first exception."""
        tasks = [asyncio.create_task(way) for way in ways]
        try:
            await self._first_of(*tasks)
        finally:
            if self._announcing is not None:
                tasks.append(self._announcing)
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            self._receive_timer.stop()
            self._send_timer.stop()

    async def _first_of(self, *tasks: asyncio.Future[Any]) -> None:
        waits = {*tasks, self.stopped}
        done, _ = await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        for ended in done:
            ended.result()

    async def receive_all(self) -> None:
        """Reads the client's messages until it closes. Raises Refused."""
        with refusing():
            while True:
                await self.wait_for_room()
                self._receive_timer.begin()
                try:
                    message = await self._socket.receive()
                finally:
                    self._receive_timer.end()
                if message.type is WSMsgType.PING:
                    await self._sent(self._socket.pong(message.data))
                elif message.type is not WSMsgType.PONG:
                    self.received += 1
                    if not await self.receive(message):
                        return

    async def wait_for_room(self) -> None:  # noqa: B027 - most have room always
        """Waits until the next message may be read. Raises Refused if none ever may."""

    async def receive(self, message: WSMessage) -> bool:
        """Handles a message; False when it ends the stream. Raises Refused, ProtocolError."""
        match message.type:
            case WSMsgType.BINARY:
                await self.receive_bytes(message.data)
            case WSMsgType.TEXT:
                _check_length(message.data)
                return self.receive_text(message.data)
            case _:
                return False
        return True

    async def send(self, message: str | bytes) -> None:
        """Sends one message; waits while the client does not read."""
        self.sent += 1
        if isinstance(message, str):
            await self._sent(self._socket.send_str(message))
        else:
            await self._sent(self._socket.send_bytes(message))

    async def _sent(self, sending: Awaitable[None]) -> None:
        self._send_timer.begin()
        try:
            await sending
        finally:
            self._send_timer.end()


def _check_length(text: str) -> None:
    if len(text) > MAX_TEXT_CHARS:
        words = f"a message of {len(text)} characters, not at most {MAX_TEXT_CHARS}"
        raise Refused(ErrorCode.TOO_LONG, words)


# --- the WebSocket from its opening to its end ---


async def upgraded(
    request: web.Request, max_bytes: int = MAX_MESSAGE_BYTES, protocols: tuple[str, ...] = ()
) -> web.WebSocketResponse:
    """Upgrades the connection to a WebSocket whose messages have up to `max_bytes`."""
    socket = FairWebSocket(  # a stream sees its pings: they keep it alive
        max_msg_size=max_bytes,
        timeout=CLOSE_S,
        protocols=protocols,
    )
    await socket.prepare(request)
    return socket


async def run_socket(
    request: web.Request,
    socket: web.WebSocketResponse,
    conversation: Awaitable[None],
    ended: Callable[[str], object],
    error_text: Callable[[Error], str] = Error.to_text,
) -> None:
    """Awaits the conversation, sends the client the error of a Refused, and closes the socket.
    `ended` is called with the error's code, `gone` after a ConnectionError, or `none`."""
    code = "none"
    try:
        await conversation
    except Refused as refused:
        code = refused.error.code.value
        line = logger.bind(a_minute=code)
        line.info("stream of {}: {}", request.remote or "a local client", refused)
        await _send_error(socket, refused.error, error_text)
    except ConnectionError:
        code = "gone"
    finally:
        ended(code)
        await _close(request, socket)


async def _send_error(
    socket: web.WebSocketResponse, error: Error, error_text: Callable[[Error], str]
) -> None:
    code = CLOSE_CODES.get(error.code, WSCloseCode.POLICY_VIOLATION)
    with suppress(ConnectionError, TimeoutError):
        async with asyncio.timeout(CLOSE_S):
            await socket.send_str(error_text(error))
            await socket.close(code=code)


async def _close(request: web.Request, socket: web.WebSocketResponse) -> None:
    try:
        async with asyncio.timeout(CLOSE_S):
            await socket.close()
    except TimeoutError:
        if request.transport is not None:
            request.transport.abort()  # the client reads nothing, not even the close frame
