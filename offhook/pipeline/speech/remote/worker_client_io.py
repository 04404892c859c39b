"""What the clients of all workers share: the way to a worker, and what may happen on it."""

from asyncio import timeout
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import aiohttp

from offhook.pipeline.speech.recognizer import EngineError, NotPossible
from offhook.pipeline.speech.redact import names_no_place
from offhook.pipeline.speech.remote.worker_protocol import Error, ErrorCode, ProtocolError

UNIX = "unix:"
RECONNECT_S = 0.05
"""The pause before a connection is tried again: twice as long each time, see RetryPolicy."""
CONNECT_TIMEOUT_S = 30.0
"""A process that is being started answers after some seconds."""
PING_S = 15.0
"""A ping goes after so long with nothing to send."""
LOOK_S = 1.0
"""How often a stream to which words are due asks a silent worker whether it is there."""
HUNG_LOOKS = 5
"""So many questions without an answer, and the worker hangs."""
SILENCE_S = 2 * PING_S
"""A worker of which nothing comes for so long, not even the answer to a ping, is gone."""
START_TIMEOUT_S = 900.0
"""The longest a worker may load: it may have to fetch the model first."""
CLOSE_TIMEOUT_S = 1.0

MAX_WORDS = 300

LOST = (aiohttp.ClientError, OSError, TimeoutError, ProtocolError)
"""What a connection may end with; all are tried again."""
HOPELESS = (ErrorCode.BAD_REQUEST, ErrorCode.ENGINE)
"""But these come again."""


class Refused(OSError):
    """The worker ended the stream, and says why."""

    def __init__(self, error: Error) -> None:
        super().__init__(error.message)
        self.code = error.code


class Forbidden(Refused):
    """The worker does not let us in."""


def is_hopeless(error: BaseException) -> bool:
    return isinstance(error, Refused) and error.code in HOPELESS


def as_error(error: BaseException, words: str, demands: str) -> EngineError:
    """For whoever asked for speech. `words`: for whoever runs us; `demands`: what was asked of the
    worker beyond the usual. It says only then that it cannot, or when it does not understand us."""
    if isinstance(error, Refused) and error.code is ErrorCode.BAD_REQUEST:
        if demands and not isinstance(error, Forbidden):
            said = str(error)
            ours = f"the speech engine cannot do what was asked for: {demands}"
            return NotPossible(said if names_no_place(said) else ours)
        return EngineError(words, "refused")
    if isinstance(error, Refused):
        return EngineError(words, "full" if error.code is ErrorCode.FULL else "failed")
    if isinstance(error, aiohttp.ClientConnectorError | aiohttp.ConnectionTimeoutError):
        return EngineError(words, "unreachable")
    return EngineError(words, "timeout" if isinstance(error, TimeoutError) else "failed")


def in_words(error: BaseException) -> str:
    """Short, for some quote an address with all that is in its query."""
    return str(error)[:MAX_WORDS] or type(error).__name__


class WorkerClient:
    """The worker at `url`: ``http://host:port``, with or without the ``/v1`` of OpenAI's clients,
    or ``unix:PATH``. `kind`: asr or tts."""

    def __init__(self, kind: str, url: str, api_key: str) -> None:
        self.kind = kind
        self.url = url if url.startswith(UNIX) else url.rstrip("/").removesuffix("/v1")
        self._headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
        self._session: aiohttp.ClientSession | None = None

    async def connect(
        self, path: str, query: Mapping[str, str], *, autoping: bool = True
    ) -> aiohttp.ClientWebSocketResponse:
        """A new stream of the worker; without `autoping` its pings and pongs are to be read. Raises
        what is in LOST."""
        try:
            async with timeout(CONNECT_TIMEOUT_S):
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
            raise Forbidden(Error(ErrorCode.BAD_REQUEST, words)) from error

    async def ask(
        self, method: str, path: str, form: aiohttp.FormData | None = None
    ) -> aiohttp.ClientResponse:
        """The head of an answer, to be closed by who asks. Raises what is in LOST."""
        limits = aiohttp.ClientTimeout(sock_connect=CONNECT_TIMEOUT_S, sock_read=START_TIMEOUT_S)
        return await self._http().request(method, path, data=form, timeout=limits)

    def _http(self) -> aiohttp.ClientSession:
        if self._session is None:
            socket = self.url.removeprefix(UNIX)
            self._session = aiohttp.ClientSession(
                "http://localhost" if socket != self.url else self.url,
                # A connection of its own to each stream, however many there are.
                connector=aiohttp.UnixConnector(socket, limit=0)
                if socket != self.url
                else aiohttp.TCPConnector(limit=0),
                headers=self._headers,
            )
        return self._session

    async def close(self) -> None:
        if self._session is not None:
            await self._session.close()
            self._session = None

    @contextmanager
    def starting(self, demands: str) -> Iterator[None]:
        """What goes wrong inside is an EngineError; but a worker full of streams has started.
        `demands`: as of `as_error`."""
        try:
            yield
        except Refused as refused:
            if refused.code is not ErrorCode.FULL:
                words = f"the speech worker at {self.url}: {refused}"
                raise as_error(refused, words, demands) from refused
        except LOST as error:
            words = (
                f"no speech worker at {self.url}: {in_words(error)}. Start one there with "
                f"`offhook worker {self.kind}`, or mend the address"
            )
            raise as_error(error, words, demands) from error


async def message_of(socket: aiohttp.ClientWebSocketResponse, within_s: float) -> str | bytes:
    """The next message. Raises what is in LOST."""
    frame = await socket.receive(within_s)
    while frame.type in (aiohttp.WSMsgType.PING, aiohttp.WSMsgType.PONG):  # without autoping
        if frame.type is aiohttp.WSMsgType.PING:
            await socket.pong(frame.data)
        frame = await socket.receive(within_s)
    return content_of(socket, frame)


def content_of(socket: aiohttp.ClientWebSocketResponse, frame: aiohttp.WSMessage) -> str | bytes:
    """Of a frame that is a message. Raises what is in LOST."""
    if frame.type not in (aiohttp.WSMsgType.TEXT, aiohttp.WSMsgType.BINARY):
        raise ConnectionError(f"it hung up ({socket.close_code})")
    data: str | bytes = frame.data
    return data
