"""A `Synthesizer` backed by a remote worker over `tts_protocol`.

The text of a reply is kept until its marks arrive. After a lost connection the text without a mark
is sent again to the restarted worker: no word is lost, and only the word in which it happened may
be started twice. Unread audio of that word is discarded.
"""

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable, Sequence

import numpy as np
from loguru import logger

from offhook.media.pcm import RATE_OUT, Pcm
from offhook.pipeline.speech.recognizer import EngineError
from offhook.pipeline.speech.remote.pool_io import Workers
from offhook.pipeline.speech.remote.tts_connection_io import Connection, ConnectionPool
from offhook.pipeline.speech.remote.tts_protocol import MAX_WAITING_CHARS, Command, End, Text
from offhook.pipeline.speech.remote.voices_io import RemoteClone, RemoteVoices
from offhook.pipeline.speech.remote.worker_client_io import (
    LOST,
    RECONNECT_S,
    START_TIMEOUT_S,
    WorkerRefused,
    as_error,
    in_words,
    is_hopeless,
)
from offhook.pipeline.speech.remote.worker_protocol import ProtocolError
from offhook.pipeline.speech.streams.retry import SPREAD_S, Losses, RetryPolicy
from offhook.pipeline.speech.synthesizer import DEFAULT_VOICE, Speech, TextTooLong, VoiceOptions
from offhook.pipeline.speech.voice_cloning import KnownVoice, Sample

MAX_UNREAD_S = 30
"""Unread audio of one reply in s beyond which the connection is no longer read, which throttles the
worker."""
GIVE_UP_S = 30.0
"""Time in s without a connection, or while refused, after which a reply is given up; waiting for a
worker to load counts as connected."""
TEXT_CHARS = 1 << 14
"""Maximum characters of one message."""
NO_SOUND = np.zeros(0, np.int16)


class RemoteSynthesizer:
    """The workers at `url`, see `worker_list_io`.

    `start` waits until it has loaded. Without it, replies open at once and wait for the worker.
    """

    def __init__(self, url: str | Sequence[str], api_key: str = "", name: str = "") -> None:
        self.workers = Workers("tts", url, api_key)
        self.url = self.workers.url
        self.name = name or self.url
        self._connections = ConnectionPool(self.workers)

    def voices(self) -> list[str]:
        """Returns the worker's voices, known after the first connection."""
        return list(self._connections.voices)

    async def start(self, options: VoiceOptions = DEFAULT_VOICE) -> None:
        """Connects for replies with these options as a test. Raises UnsupportedRequest,
        EngineError."""
        with self.workers.starting(options.demands()):
            async with asyncio.timeout(START_TIMEOUT_S):
                connection = await self._connections.connect(options)
            self.name = connection.ready.engine
            self._connections.spare(connection)

    def open(self, options: VoiceOptions = DEFAULT_VOICE) -> "RemoteSpeech":
        """Opens a reply; unsupported options raise UnsupportedRequest from the reply."""
        return RemoteSpeech(self._connections, options)

    # --- voices; see VoiceCloner ---

    async def known_voices(self) -> list[KnownVoice]:
        known = await RemoteVoices(self.workers).known()
        self._connections.voices = tuple(voice.name for voice in known)
        return known

    async def add_voice(self, name: str, sample: Sample, language: str = "") -> KnownVoice:
        added = await RemoteVoices(self.workers).add(name, sample, language)
        await self.known_voices()
        return added

    async def remove_voice(self, name: str) -> None:
        await RemoteVoices(self.workers).remove(name)
        await self.known_voices()

    async def open_clone(self, sample: Sample, options: VoiceOptions) -> RemoteClone:
        return RemoteClone(self.workers, sample, options)

    async def close(self) -> None:
        """Closes the client; replies in progress fail."""
        await self._connections.close()


class RemoteSpeech:
    """One reply; implements `SynthesizerStream`."""

    def __init__(self, connections: ConnectionPool, options: VoiceOptions) -> None:
        self._connections = connections
        self._options = options
        self._unsent: deque[str] = deque()
        self._unmarked: deque[str] = deque()
        """Text sent on the current connection that has no mark yet."""
        self._waiting_chars = 0
        """Characters in `_unsent` and `_unmarked`."""
        self._complete = False
        self._begun = False
        """Whether anything was sent on the current connection."""
        self._end_sent = False
        self._pieces: deque[Speech] = deque()
        """Pieces not read yet."""
        self._unread_samples = 0
        """Samples of the unread pieces."""
        self._over = False
        self._error: EngineError | None = None
        self._heard = asyncio.Event()
        self._taken = asyncio.Event()
        self._losses = Losses()
        """Lost connections since the last word."""
        self._leave_quarantine: Callable[[], None] = _nothing
        """Ends the turn of suspected text."""
        self._refused_at: float | None = None
        """When the reply was first refused since its last audio."""
        self._retry = RetryPolicy(first_s=RECONNECT_S, spread_s=SPREAD_S)
        self._pause = 0.0
        """Delay in s before the next connection attempt."""
        self._said = ""
        """The last error logged."""
        self._connecting: asyncio.Task[None] | None = None
        self._connection = connections.acquire(options)
        if self._connection is not None:
            self._connection.begin(self)
        else:
            self._connecting = connections.run(self._connect(), "connect")

    # --- the contract ---

    def write(self, text: str) -> None:
        if self._over or not text:
            return
        if self._waiting_chars + len(text) > MAX_WAITING_CHARS:
            raise TextTooLong(f"more than {MAX_WAITING_CHARS} characters are waiting to be spoken")
        self._waiting_chars += len(text)
        self._unsent.append(text)
        if self._connection is not None:
            self._connection.wake()

    def end(self) -> None:
        if self._over or self._complete:
            return
        self._complete = True
        if self._nothing_to_say() and not self._begun:
            self.finish()
        elif self._connection is not None:
            self._connection.wake()

    def cancel(self) -> None:
        self._pieces.clear()
        self._stop()

    async def __aiter__(self) -> AsyncIterator[Speech]:
        while True:
            while self._pieces:
                piece = self._pieces.popleft()
                self._unread_samples -= len(piece.pcm)
                self._taken.set()
                yield piece
            if self._error is not None:
                raise self._error
            if self._over:
                return
            self._heard.clear()
            await self._heard.wait()

    # --- called by its connection, see tts_connection_io.Reply ---

    def next_command(self) -> Command | None:
        """Returns the next command for the worker."""
        self._begun |= bool(self._unsent) or self._complete
        if self._unsent:
            text = _up_to(self._unsent, TEXT_CHARS)
            self._unmarked.append(text)
            return Text(text)
        if self._complete and not self._end_sent:
            self._end_sent = True
            return End()
        return None

    async def receive_audio(self, pcm: Pcm) -> None:
        """Adds audio, waiting for room."""
        self._retry.reset()
        self._pause, self._said, self._refused_at = 0.0, "", None
        self._pieces.append(Speech(pcm, ""))
        self._unread_samples += len(pcm)
        self._heard.set()
        while self._unread_samples > MAX_UNREAD_S * RATE_OUT and not self._over:
            self._taken.clear()
            await self._taken.wait()

    def mark(self, text: str) -> None:
        """Marks text as spoken. Raises ProtocolError."""
        if (written := _up_to(self._unmarked, len(text))) != text:
            self._unmarked.appendleft(written)
            raise ProtocolError("a mark does not match the text written")
        self._waiting_chars -= len(text)
        if self._losses.count:
            self._losses.clear()
            self._leave_quarantine()
        pcm = NO_SOUND
        if self._pieces and not self._pieces[-1].text:
            pcm = self._pieces.pop().pcm
        self._pieces.append(Speech(pcm, text))
        self._heard.set()

    def finish(self) -> None:
        """Completes the reply."""
        if rest := "".join((*self._unmarked, *self._unsent)):
            self._pieces.append(Speech(NO_SOUND, rest))
        self._stop()

    def lose(self, error: Exception) -> None:
        """Handles the loss of the connection."""
        self._connection = None
        self._leave_quarantine()
        now = asyncio.get_running_loop().time()
        while self._pieces and not self._pieces[-1].text:
            self._unread_samples -= len(self._pieces.pop().pcm)
        self._unsent.extendleft(reversed(self._unmarked))
        self._unmarked.clear()
        self._begun = self._end_sent = False
        hopeless = False
        if isinstance(
            error, WorkerRefused
        ):  # it says why it goes, and was not broken by this reply
            self._refused_at = self._refused_at or now
            hopeless = now - self._refused_at > GIVE_UP_S
        else:
            self._losses.add(now, self._connections.workers.url)
        if self._connections.closed:
            self._fail("the synthesizer is closed", error)
        elif self._complete and self._nothing_to_say():
            self.finish()
        elif self._losses.are_too_many(now):
            times = self._losses.count
            words = f"it was lost {times} times over the same words: {in_words(error)}"
            self._fail(words, error)
        elif not self._fails_for(error, hopeless):
            self._pause = max(self._pause, self._losses.pause_s(now))
            self._connecting = self._connections.run(self._connect(), "connect")

    # --- connecting ---

    async def _connect(self) -> None:
        """Connects, retrying until it succeeds or the reply is given up."""
        loop = asyncio.get_running_loop()
        until = loop.time() + GIVE_UP_S
        try:
            while True:
                await asyncio.sleep(self._pause)
                connection = self._connections.acquire(self._options)
                try:
                    connection = connection or await self._connections.connect(self._options)
                except LOST as error:
                    if self._fails_for(error, hopeless=loop.time() > until):
                        return
                    continue
                if await self._may_begin(connection):
                    self._connection = connection
                    connection.begin(self)
                    return
        except asyncio.CancelledError as error:
            self._fail("the synthesizer is closed", error)
            raise

    async def _may_begin(self, connection: Connection) -> bool:
        """Waits for the turn of suspected text; returns False if the connection was lost
        meanwhile."""
        if not self._losses.is_suspect:
            return True
        try:
            self._leave_quarantine = await self._connections.quarantine.enter()
        except asyncio.CancelledError:
            connection.hang_up()
            raise
        if connection.is_lost:
            self._leave_quarantine()
            return False
        return True

    def _fails_for(self, error: Exception, hopeless: bool = False) -> bool:
        """Fails the reply if a retry cannot help, and returns whether it did."""
        if hopeless or is_hopeless(error):
            self._fail(in_words(error), error)
            return True
        if (words := in_words(error)) != self._said:
            logger.warning("x the speech worker at {}: {}", self._connections.workers.url, words)
            self._said = words
        self._pause = self._retry.next_s()
        return False

    def _fail(self, words: str, error: BaseException) -> None:
        if not self._over:
            url = self._connections.workers.url
            demands = self._options.demands()
            self._error = as_error(error, f"the speech worker at {url}: {words}", demands)
            self._stop()

    def _stop(self) -> None:
        """Ends the reply and releases its connection."""
        if self._over:
            return
        self._over = True
        self._leave_quarantine()
        self._unsent.clear()
        self._unmarked.clear()
        if self._connecting is not None:
            self._connecting.cancel()
        if self._connection is not None:
            self._connection.leave(self)
            self._connection = None
        self._heard.set()
        self._taken.set()

    def _nothing_to_say(self) -> bool:
        return not any(text.strip() for text in self._unsent)


def _nothing() -> None:
    pass


def _up_to(texts: deque[str], chars: int) -> str:
    """Removes and returns up to `chars` characters from the front."""
    taken: list[str] = []
    while texts and chars:
        text = texts.popleft()
        if len(text) > chars:
            texts.appendleft(text[chars:])
            text = text[:chars]
        taken.append(text)
        chars -= len(text)
    return "".join(taken)
