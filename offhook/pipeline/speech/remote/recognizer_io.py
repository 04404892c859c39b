"""A `Recognizer` that is a worker elsewhere, reached by the protocol of `asr_protocol`.

One WebSocket a stream. The sound of every utterance is kept until its final comes (bounds below):
it is the queue to a worker that lags or still loads, and what is played again when a connection is
lost, so that the words of a turn are whole whatever happens to the worker.
"""

import asyncio
import itertools
from collections import Counter, deque
from collections.abc import AsyncIterator
from contextlib import suppress
from dataclasses import dataclass, field, replace
from time import monotonic

import aiohttp
from loguru import logger

from offhook.media.pcm import RATE_IN, Pcm
from offhook.pipeline.speech.recognizer import (
    DEFAULT_OPTIONS,
    Final,
    Loss,
    Partial,
    StreamOptions,
    Word,
)
from offhook.pipeline.speech.remote.asr_protocol import (
    MAX_UNHEARD_S,
    PATH,
    Cancel,
    Flush,
    Ready,
    RecognitionResult,
    Request,
    ServerMessage,
    command_text,
    parse_server,
)
from offhook.pipeline.speech.remote.worker_client_io import (
    HUNG_LOOKS,
    LOOK_S,
    LOST,
    PING_S,
    RECONNECT_MAX_S,
    RECONNECT_S,
    SILENCE_S,
    START_TIMEOUT_S,
    Refused,
    WorkerClient,
    as_error,
    content_of,
    in_words,
    is_hopeless,
    message_of,
)
from offhook.pipeline.speech.remote.worker_protocol import Error, ProtocolError
from offhook.pipeline.speech.streams.event_mailbox_io import EventMailbox
from offhook.pipeline.speech.streams.partials import following

MAX_UTTERANCE_S = 60
"""A longer utterance is ended here and goes on as the next one: its first Final `continues`."""
MAX_KEPT_S = MAX_UNHEARD_S
"""Sound of one stream without a final. Beyond, sound is dropped until one comes."""
MAX_LOSSES = 3
"""An utterance whose connection was lost so often while it was heard is given up: its Final is
empty."""
GIVE_UP_S = 30.0
"""Finished utterances are given up when there was no connection for so long. To wait for a worker
that loads is to have one. A caller can say it again, and a call goes on; a stream that is not live
ends with an EngineError instead."""
AUDIO_BYTES = 1 << 15
"""Of sound in one message: 1 s."""
NOTHING = Partial("", 0, 0)


@dataclass(eq=False)
class PendingUtterance:
    """One utterance of a stream until its final comes."""

    start: int
    """In samples of the stream."""
    pcm: bytearray = field(default_factory=bytearray)
    finished: bool = False
    continues: bool = False
    """Ended by MAX_UTTERANCE_S, and not by `finish`."""
    losses: int = 0
    shown: Partial = NOTHING
    """The last partial told."""
    # On the present connection:
    number: int | None = None
    """None: nothing was sent."""
    wire_start: int = 0
    """In samples of the connection."""
    sent: int = 0
    flushed: bool = False

    @property
    def audio_ms(self) -> int:
        return len(self.pcm) // 2 * 1000 // RATE_IN

    def forget_connection(self) -> None:
        self.losses += self.number is not None
        self.number, self.sent, self.flushed = None, 0, False

    def show(self, partial: Partial) -> Partial | None:
        """The partial as it may be told: what was stable stays, whichever worker says so. None
        when it says nothing new, as while a lost utterance is heard again."""
        if (told := following(self.shown, partial)) is not None:
            self.shown = told
        return told

    def drop(self, audio_ms: int) -> None:
        """Forget the beginning: it has its Final."""
        size = min(len(self.pcm), audio_ms * RATE_IN // 1000 * 2)
        del self.pcm[:size]
        self.sent -= size
        self.start += size // 2
        self.wire_start += size // 2
        self.shown = NOTHING

    def in_stream(self, final: Final) -> Final:
        """With the times of words in the stream instead of the connection."""
        shift = self.start * 1000 // RATE_IN - self.wire_start * 1000 // RATE_IN
        words = (Word(w.text, w.start_ms + shift, w.end_ms + shift) for w in final.words)
        return replace(final, words=tuple(words), continues=final.continues or self.continues)


class HungError(TimeoutError):
    """The worker does not answer, though the connection is there."""


class RemoteRecognizer:
    """The worker at `url`: ``http://host:port`` or ``unix:PATH``.

    `start` waits until it has loaded. Without, streams are taken at once, and what is said waits
    in them for the worker.
    """

    def __init__(self, url: str, api_key: str = "", name: str = "") -> None:
        self.name = name or url
        self.url = url
        self.losses: Counter[Loss] = Counter()
        """Connections lost while words were due."""
        self._client = WorkerClient("asr", url, api_key)

    async def start(self, options: StreamOptions = DEFAULT_OPTIONS) -> None:
        """Open a stream with these options and close it: all is well then. Raises NotPossible,
        EngineError."""
        with self._client.starting(options.demands()):
            async with asyncio.timeout(START_TIMEOUT_S):
                socket = await self.connect(options)
                try:
                    self.name = (await ready_of(socket)).engine
                finally:
                    await socket.close()

    async def open(self, options: StreamOptions = DEFAULT_OPTIONS) -> "RemoteStream":
        return RemoteStream(self, options)

    async def close(self) -> None:
        await self._client.close()

    async def connect(self, options: StreamOptions) -> aiohttp.ClientWebSocketResponse:
        """A new stream of the worker. Raises what is in LOST."""
        query = Request(options=options).query()
        return await self._client.connect(PATH, query, autoping=False)


async def told(socket: aiohttp.ClientWebSocketResponse, within_s: float) -> ServerMessage:
    """The next message. Raises what is in LOST."""
    return read(await message_of(socket, within_s))


def read(data: str | bytes) -> ServerMessage:
    """A message of the worker. Raises ProtocolError, Refused."""
    if isinstance(data, bytes):
        raise ProtocolError("it sent bytes that are not text")
    message = parse_server(data)
    if isinstance(message, Error):
        raise Refused(message)
    return message


async def ready_of(socket: aiohttp.ClientWebSocketResponse) -> Ready:
    """Wait for the worker to have loaded. Raises what is in LOST."""
    message = await told(socket, START_TIMEOUT_S)
    if not isinstance(message, Ready):
        raise ProtocolError("the first message is not ready")
    return message


class RemoteStream:
    """A `RecognizerStream`."""

    def __init__(self, recognizer: RemoteRecognizer, options: StreamOptions) -> None:
        self._recognizer = recognizer
        self._options = options
        self._utterances: deque[PendingUtterance] = deque()
        """Without a final, oldest first; only the last can be in progress."""
        self._numbers = itertools.count()
        self._on_wire: dict[int, PendingUtterance] = {}
        self._to_cancel = False
        """The utterance in progress on the wire is not wanted any more."""
        self._wire_samples = 0
        self._samples = 0
        self._dropping = False
        self._mailbox = EventMailbox()
        self._news = asyncio.Event()
        """Something is to be sent."""
        self._task = asyncio.create_task(self._stay_connected(), name="remote recognizer")

    # --- the contract ---

    def feed(self, pcm: Pcm) -> None:
        self._samples += len(pcm)
        if self._mailbox.closed or self._is_full(2 * len(pcm)):
            return
        data = memoryview(pcm.astype("<i2", copy=False).tobytes())
        while data:
            utterance = self._current() or self._begin(len(data) // 2)
            room = MAX_UTTERANCE_S * RATE_IN * 2 - len(utterance.pcm)
            utterance.pcm += data[:room]
            data = data[room:]
            if data:
                utterance.finished = utterance.continues = True
        self._news.set()

    def finish(self) -> None:
        if self._mailbox.closed:
            return
        (self._current() or self._begin(0)).finished = True
        self._news.set()

    def cancel(self) -> None:
        if not self._utterances:
            return
        utterance = self._utterances.pop()
        self._mailbox.drop_partial()
        if utterance.number is not None:
            # What the worker still says of it is for nobody.
            del self._on_wire[utterance.number]
            self._to_cancel |= not utterance.flushed
        self._news.set()

    def events(self) -> AsyncIterator[Partial | Final]:
        """Raises EngineError when a stream that is not live cannot be heard."""
        return self._mailbox.events()

    async def close(self) -> None:
        self._mailbox.close()
        self._utterances.clear()
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)

    # --- utterances ---

    def _current(self) -> PendingUtterance | None:
        """The utterance in progress."""
        newest = self._utterances[-1] if self._utterances else None
        return None if newest is None or newest.finished else newest

    def _begin(self, fed: int) -> PendingUtterance:
        self._utterances.append(PendingUtterance(self._samples - fed))
        return self._utterances[-1]

    def _is_full(self, more_bytes: int) -> bool:
        kept = sum(len(utterance.pcm) for utterance in self._utterances)
        full = kept + more_bytes > MAX_KEPT_S * RATE_IN * 2
        if full and not self._dropping:
            logger.error(
                "x the speech worker is {} s behind a caller: sound is dropped", MAX_KEPT_S
            )
        self._dropping = full
        return full

    def _give_up(self, why: str, lost: Exception, utterances: list[PendingUtterance]) -> None:
        if utterances and not self._options.live:
            words = f"the speech worker at {self._recognizer.url}: {why}"
            self._mailbox.fail(as_error(lost, words, self._options.demands()))
            return
        for utterance in utterances:
            self._utterances.remove(utterance)
            final = Final("", utterance.audio_ms, continues=utterance.continues, lost=True)
            self._mailbox.put(final)
        if utterances:
            logger.error("x {} utterances given up: {}", len(utterances), why)

    # --- the connection ---

    async def _stay_connected(self) -> None:
        loop = asyncio.get_running_loop()
        pause, said = RECONNECT_S, ""
        lost: Exception = ConnectionError("it is not connected")
        lost_at = loop.time()
        while True:
            hopeless = connected = ready = False
            try:
                socket = await self._recognizer.connect(self._options)
                connected = True
                try:
                    await ready_of(socket)
                    pause, said, ready = RECONNECT_S, "", True
                    await self._converse(socket)
                finally:
                    with suppress(*LOST):
                        await socket.close()
            except LOST as error:
                lost, hopeless = error, is_hopeless(error)
                if self._on_wire:
                    how: Loss = "hung" if isinstance(error, HungError) else "crashed"
                    self._recognizer.losses[how] += 1
                if ready or (connected and not isinstance(error, Refused)):
                    lost_at = loop.time()
                if (words := in_words(error)) != said:
                    logger.warning("x the speech worker at {}: {}", self._recognizer.url, words)
                    said = words
            self._forget_connection(lost)
            if hopeless or loop.time() - lost_at > GIVE_UP_S:
                self._give_up(said, lost, [u for u in self._utterances if u.finished])
            await asyncio.sleep(pause)
            pause = min(2 * pause, RECONNECT_MAX_S)

    def _forget_connection(self, error: Exception) -> None:
        self._numbers = itertools.count()
        self._on_wire.clear()
        self._to_cancel = False
        self._wire_samples = 0
        for utterance in self._utterances:
            utterance.forget_connection()
        lost = [u for u in self._utterances if u.losses >= MAX_LOSSES]
        for utterance in lost:
            utterance.continues |= not utterance.finished
        self._give_up(f"the worker was lost {MAX_LOSSES} times while it heard them", error, lost)

    async def _converse(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        """Until the connection is lost. Raises what is in LOST."""
        sending = asyncio.create_task(self._send(socket), name="remote recognizer send")
        silent = waited = 0
        """Looks at which nothing had come: in a row, and those of them while words were due. They
        are counted, not timed: if it is us who stood still, none was made."""
        try:
            while True:
                try:
                    frame = await socket.receive(LOOK_S)
                except TimeoutError:
                    silent += 1
                    waited = waited + 1 if self._on_wire else 0
                    if silent > SILENCE_S / LOOK_S or (self._options.live and waited > HUNG_LOOKS):
                        raise HungError(f"nothing came of it for {silent * LOOK_S:g} s") from None
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
            return  # cancelled while this was under way
        if message.stages is not None:
            event = replace(event, timing=message.stages.until(monotonic()))
        if isinstance(event, Partial):
            if partial := utterance.show(event):
                self._mailbox.put(partial)
            return
        self._mailbox.put(utterance.in_stream(event))
        if event.continues:
            utterance.drop(event.audio_ms)
        else:
            del self._on_wire[message.utterance]
            self._utterances.remove(utterance)

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
        """What the worker is to be told next."""
        if self._to_cancel:
            self._to_cancel = False
            return command_text(Cancel())
        for utterance in self._utterances:
            if utterance.sent < len(utterance.pcm):
                self._put_on_wire(utterance)
                data = bytes(utterance.pcm[utterance.sent : utterance.sent + AUDIO_BYTES])
                utterance.sent += len(data)
                self._wire_samples += len(data) // 2
                return data
            if utterance.finished and not utterance.flushed:
                self._put_on_wire(utterance)
                utterance.flushed = True
                return command_text(Flush())
        return None

    def _put_on_wire(self, utterance: PendingUtterance) -> None:
        if utterance.number is None:
            utterance.number = next(self._numbers)
            utterance.wire_start = self._wire_samples
            self._on_wire[utterance.number] = utterance
