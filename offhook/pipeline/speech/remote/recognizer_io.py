"""A `Recognizer` backed by a remote worker over `asr_protocol`.

Each stream uses one WebSocket. The audio of an utterance is kept (bounds below) until its final
arrives: it is the queue to a slow or loading worker, and is sent again after a lost connection, so
that no words are lost if a worker fails.
"""

import asyncio
import itertools
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from time import monotonic

import aiohttp
from loguru import logger

from offhook.media.pcm import RATE_IN
from offhook.pipeline.speech.recognizer import (
    DEFAULT_OPTIONS,
    Final,
    Loss,
    StreamOptions,
    Word,
)
from offhook.pipeline.speech.remote.asr_protocol import (
    PATH,
    Command,
    Ready,
    RecognitionResult,
    Request,
    ServerMessage,
    command_text,
    parse_server,
)
from offhook.pipeline.speech.remote.pool_io import Workers
from offhook.pipeline.speech.remote.worker_client_io import (
    HUNG_LOOKS,
    LOOK_S,
    LOST,
    PING_S,
    RECONNECT_S,
    SILENCE_S,
    START_TIMEOUT_S,
    WorkerRefused,
    as_error,
    content_of,
    in_words,
    is_hopeless,
    message_of,
)
from offhook.pipeline.speech.remote.worker_protocol import Error, ProtocolError
from offhook.pipeline.speech.streams.languages import UNKNOWN
from offhook.pipeline.speech.streams.quarantine_io import Quarantine
from offhook.pipeline.speech.streams.queued_stream_io import QueuedStream
from offhook.pipeline.speech.streams.retry import SPREAD_S, RetryPolicy
from offhook.pipeline.speech.streams.utterance_queue import (
    Utterance,
    UtteranceQueue,
    UtteranceState,
)

GIVE_UP_S = 30.0
"""Time in s without a connection after which finished utterances are given up; waiting for a worker
to load counts as connected. A call continues, and the caller can repeat; a stream that is not live
ends with an EngineError."""
AUDIO_BYTES = 1 << 15
"""Maximum audio bytes of one message: 1 s."""


@dataclass(eq=False)
class WireUtterance(Utterance):
    """An utterance on a worker's stream; given up after too many lost connections."""

    wire_number: int | None = None
    """Its number on the current connection; None: not sent yet."""
    shift_ms: int = 0
    """Offset in ms from the connection's times to the stream's."""

    def in_stream(self, final: Final) -> Final:
        words = (
            Word(w.text, w.start_ms + self.shift_ms, w.end_ms + self.shift_ms) for w in final.words
        )
        return replace(final, words=tuple(words))


class HungError(TimeoutError):
    """Raised when the connection is up but the worker does not answer."""


class RemoteRecognizer:
    """The workers at `url`, see `worker_list_io`.

    `start` waits until it has loaded. Without it, streams open at once and buffer their audio.
    """

    def __init__(self, url: str | Sequence[str], api_key: str = "", name: str = "") -> None:
        self.workers = Workers("asr", url, api_key)
        self.url = self.workers.url
        self.name = name or self.url
        self.losses: Counter[Loss] = Counter()
        """Connections lost while results were due."""
        self.quarantine = Quarantine()

    async def start(self, options: StreamOptions = DEFAULT_OPTIONS) -> None:
        """Opens and closes a stream with these options as a test. Raises UnsupportedRequest,
        EngineError."""
        with self.workers.starting(options.demands()):
            async with asyncio.timeout(START_TIMEOUT_S):
                socket, ready = await self.connect(options)
                self.name = ready.engine
                await socket.close()

    async def open(self, options: StreamOptions = DEFAULT_OPTIONS) -> "RemoteStream":
        return RemoteStream(self, options)

    async def close(self) -> None:
        await self.workers.close()

    async def connect(
        self, options: StreamOptions
    ) -> tuple[aiohttp.ClientWebSocketResponse, Ready]:
        """Opens a stream of a loaded worker. Raises any of LOST."""
        query = Request(options=options).query()
        _, socket, ready = await self.workers.connect(PATH, query, ready_of, autoping=False)
        return socket, ready


async def receive(socket: aiohttp.ClientWebSocketResponse, within_s: float) -> ServerMessage:
    """Receives the next message. Raises any of LOST."""
    return read(await message_of(socket, within_s))


def read(data: str | bytes) -> ServerMessage:
    """Parses a message of the worker. Raises ProtocolError, WorkerRefused."""
    if isinstance(data, bytes):
        raise ProtocolError("it sent bytes that are not text")
    message = parse_server(data)
    if isinstance(message, Error):
        raise WorkerRefused(message)
    return message


async def ready_of(socket: aiohttp.ClientWebSocketResponse) -> Ready:
    """Waits until the worker has loaded. Raises any of LOST."""
    message = await receive(socket, START_TIMEOUT_S)
    if not isinstance(message, Ready):
        raise ProtocolError("the first message is not ready")
    return message


def _nothing() -> None:
    pass


class RemoteStream(QueuedStream[WireUtterance]):
    """A `RecognizerStream` that survives lost connections."""

    def __init__(self, recognizer: RemoteRecognizer, options: StreamOptions) -> None:
        language = options.language_code or UNKNOWN
        name = f"the speech worker at {recognizer.url}"
        super().__init__(name, options, UtteranceQueue(WireUtterance, language=language))
        self._recognizer = recognizer
        self._numbers = itertools.count()
        self._on_wire: dict[int, WireUtterance] = {}
        self._to_cancel = False
        """Whether the utterance in progress on the connection must be cancelled."""
        self._wire_samples = 0
        self._leave_quarantine: Callable[[], None] = _nothing
        """Ends the turn of a suspected utterance."""
        self._news = asyncio.Event()
        """Set when there is something to send."""
        self.run(self._stay_connected(), "remote recognizer")

    def changed(self) -> None:
        self._news.set()

    def withdraw(self, utterance: WireUtterance) -> None:
        if utterance.wire_number is not None:
            # Results that still arrive for it are ignored.
            self._on_wire.pop(utterance.wire_number, None)
            self._to_cancel |= not utterance.finish_sent
        self._news.set()

    def _give_up(self, why: str, lost: Exception, utterances: list[WireUtterance]) -> None:
        if utterances and not self._options.live:
            words = f"{self._name}: {why}"
            self.mailbox.fail(as_error(lost, words, self._options.demands()))
            return
        for utterance in utterances:
            self.give_up(utterance)
        if utterances:
            logger.error("x {} utterances given up: {}", len(utterances), why)

    # --- the connection ---

    async def _stay_connected(self) -> None:
        loop = asyncio.get_running_loop()
        retry, said = RetryPolicy(first_s=RECONNECT_S, spread_s=SPREAD_S), ""
        lost: Exception = ConnectionError("it is not connected")
        lost_at = loop.time()
        while True:
            hopeless = connected = ready = False
            try:
                socket, _ = await self._recognizer.connect(self._options)
                connected = True
                try:
                    retry.reset()
                    said, ready = "", True
                    if any(utterance.losses.is_suspect for utterance in self.queue):
                        self._leave_quarantine = await self._recognizer.quarantine.enter()
                    await self._converse(socket)
                finally:
                    self._leave_quarantine()
                    with suppress(*LOST):
                        await socket.close()
            except LOST as error:
                lost, hopeless = error, is_hopeless(error)
                if self._on_wire:
                    how: Loss = "hung" if isinstance(error, HungError) else "crashed"
                    self._recognizer.losses[how] += 1
                if ready or (connected and not isinstance(error, WorkerRefused)):
                    lost_at = loop.time()
                if (words := in_words(error)) != said:
                    logger.warning("x {}: {}", self._name, words)
                    said = words
            self._forget_connection(lost)
            if hopeless or loop.time() - lost_at > GIVE_UP_S:
                self._give_up(
                    said, lost, [u for u in self.queue if u.state is UtteranceState.FINISHED]
                )
            await asyncio.sleep(retry.next_s())
            await self._until_allowed()

    async def _until_allowed(self) -> None:
        """Waits until utterances that were lost too often may be tried again."""
        loop = asyncio.get_running_loop()
        while pause_s := max((u.losses.pause_s(loop.time()) for u in self.queue), default=0.0):
            self._news.clear()
            with suppress(TimeoutError):
                async with asyncio.timeout(pause_s):
                    await self._news.wait()

    def _forget_connection(self, error: Exception) -> None:
        now, url = asyncio.get_running_loop().time(), self._recognizer.url
        hopeless = [u for u in self._on_wire.values() if not self.queue.lose(u, now, url)]
        for utterance in self._on_wire.values():
            utterance.wire_number = None
        self._numbers = itertools.count()
        self._on_wire.clear()
        self._to_cancel = False
        self._wire_samples = 0
        times = max((utterance.losses.count for utterance in hopeless), default=0)
        self._give_up(f"the worker was lost {times} times while recognizing them", error, hopeless)

    async def _converse(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        """Runs until the connection is lost. Raises any of LOST."""
        sending = asyncio.create_task(self._send(socket), name="remote recognizer send")
        silent = waited = 0
        """Checks without incoming messages: in a row, and those while results were due. They are
        counted rather than timed, so a stall of this process does not count."""
        try:
            while True:
                try:
                    frame = await socket.receive(LOOK_S)
                except TimeoutError:
                    silent += 1
                    waited = waited + 1 if self._on_wire else 0
                    if silent > SILENCE_S / LOOK_S or (self._options.live and waited > HUNG_LOOKS):
                        raise HungError(f"no data from it for {silent * LOOK_S:g} s") from None
                    if waited:
                        await asyncio.wait_for(socket.ping(), LOOK_S)
                    continue
                silent = waited = 0
                if frame.type is aiohttp.WSMsgType.PING:
                    await socket.pong(frame.data)
                elif frame.type is not aiohttp.WSMsgType.PONG:
                    message = read(content_of(socket, frame))
                    if isinstance(message, RecognitionResult):
                        self._receive(message)
        finally:
            sending.cancel()
            await asyncio.gather(sending, return_exceptions=True)

    def _receive(self, message: RecognitionResult) -> None:
        event = message.event
        utterance = self._on_wire.get(message.utterance)
        if utterance is None:
            return  # cancelled in the meantime
        if message.stages is not None:
            event = replace(event, timing=message.stages.until(monotonic()))
        if isinstance(event, Final):
            event = utterance.in_stream(event)
        self.emit(utterance, event)
        if utterance.state is UtteranceState.DONE:
            del self._on_wire[message.utterance]
            if utterance.losses.is_suspect:
                self._leave_quarantine()

    async def _send(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        while True:
            self._news.clear()
            while (message := self._next_message()) is not None:
                if isinstance(message, bytes):
                    await socket.send_bytes(message)
                else:
                    await socket.send_str(message)
            try:
                async with asyncio.timeout(PING_S):
                    await self._news.wait()
            except TimeoutError:
                await socket.ping()

    def _next_message(self) -> bytes | str | None:
        """Returns the next message for the worker."""
        if self._to_cancel:
            self._to_cancel = False
            return command_text(Command.CANCEL)
        for utterance in self.queue:
            if (piece := utterance.next_to_send(AUDIO_BYTES)) is not None:
                self._put_on_wire(utterance)
                self._wire_samples += len(piece) // 2
                return piece or command_text(Command.FLUSH)
        return None

    def _put_on_wire(self, utterance: WireUtterance) -> None:
        if utterance.wire_number is None:
            utterance.wire_number = next(self._numbers)
            shift = utterance.start * 1000 // RATE_IN - self._wire_samples * 1000 // RATE_IN
            utterance.shift_ms = shift
            self._on_wire[utterance.wire_number] = utterance
