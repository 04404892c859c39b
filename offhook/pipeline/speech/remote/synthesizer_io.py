"""A `Synthesizer` backed by a remote worker over `tts_protocol`.

The text of a reply is kept until its marks arrive. After a lost connection the text without a mark
is sent again, to another worker or the restarted one: no word is lost, and only the word in which
it happened may be started twice. Unread audio of that word is discarded. While a worker is silent,
another gets the text as well, and the one that answers first goes on.
"""

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import suppress

import numpy as np
from loguru import logger

from offhook.media.pcm import RATE_OUT, Pcm
from offhook.pipeline.speech.errors import EngineError
from offhook.pipeline.speech.remote.pool_io import Workers
from offhook.pipeline.speech.remote.tts_connection_io import Connection, ConnectionPool
from offhook.pipeline.speech.remote.tts_protocol import MAX_WAITING_CHARS, Command, End, Text
from offhook.pipeline.speech.remote.voices_io import RemoteClone, RemoteVoices
from offhook.pipeline.speech.remote.worker_client_io import (
    LOST,
    RECONNECT_S,
    START_TIMEOUT_S,
    WorkerClient,
    WorkerRefused,
    as_error,
    in_words,
    is_hopeless,
)
from offhook.pipeline.speech.remote.worker_protocol import ProtocolError
from offhook.pipeline.speech.streams.retry import SPREAD_S, Losses, RetryPolicy
from offhook.pipeline.speech.synthesizer import (
    DEFAULT_VOICE,
    KnownVoice,
    Speech,
    Synthesizer,
    TextTooLong,
    VoiceOptions,
)
from offhook.pipeline.speech.voice_cloning import Sample

MAX_UNREAD_S = 30
"""Unread audio of one reply in s beyond which the connection is no longer read, which throttles the
worker."""
GIVE_UP_S = 30.0
"""Time in s without a connection, or while refused, after which a reply is given up; waiting for a
worker to load counts as connected."""
TEXT_CHARS = 1 << 14
"""Maximum characters of one message; more is sent in several."""
NO_SOUND = np.zeros(0, np.int16)


class RemoteSynthesizer(Synthesizer):
    """The workers at `url`, see `worker_list_io`.

    `start` waits until it has loaded. Without it, replies open at once and wait for the worker.
    """

    takes_ipa = True
    """The worker's engine may not: it reads the text in between then."""

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
        self._text = ""
        """Text without a mark."""
        self._complete = False
        self._attempt: Attempt | None = None
        self._hedge: Attempt | None = None
        """A second attempt, at another worker, while that of the first is silent: the one that
        answers first goes on."""
        self._is_third = False
        """Whether a second attempt was not answered before that one."""
        self._hedging: asyncio.Task[None] | None = None
        """Opens the connection of the second attempt."""
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
        self._lost_at: tuple[WorkerClient, ...] = ()
        """The workers last lost or silent, which the next connection avoids if there are others."""
        self._refused_at: float | None = None
        """When the reply was first refused since its last audio."""
        self._retry = RetryPolicy(first_s=RECONNECT_S, spread_s=SPREAD_S)
        self._pause = 0.0
        """Delay in s before the next connection attempt."""
        self._said = ""
        """The last error logged."""
        self._connecting: asyncio.Task[None] | None = None
        connection = connections.acquire(options)
        if connection is not None:
            self._begin(connection)
        else:
            self._connecting = connections.run(self._connect(), "connect")

    # --- the contract ---

    def write(self, text: str) -> None:
        if self._over or not text:
            return
        if len(self._text) + len(text) > MAX_WAITING_CHARS:
            raise TextTooLong(f"more than {MAX_WAITING_CHARS} characters are waiting to be spoken")
        self._text += text
        self._wake()

    def end(self) -> None:
        if self._over or self._complete:
            return
        self._complete = True
        if self._attempt is not None and self._attempt.begun:
            self._wake()
        elif not self._text.strip():
            self.finish()
        else:
            self._wake()

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

    # --- called by its attempts ---

    def next_command(self, attempt: "Attempt") -> Command | None:
        """Returns the next command for the worker."""
        text = self._text[attempt.sent_chars : attempt.sent_chars + TEXT_CHARS]
        attempt.begun |= bool(text) or self._complete
        if text:
            attempt.sent_chars += len(text)
            return Text(text)
        if self._complete and not attempt.end_sent:
            attempt.end_sent = True
            return End()
        return None

    async def receive_audio(self, attempt: "Attempt", pcm: Pcm) -> None:
        """Adds audio, waiting for room."""
        self._go_on_with(attempt)
        self._retry.reset()
        self._pause, self._said, self._refused_at = 0.0, "", None
        self._pieces.append(Speech(pcm, ""))
        self._unread_samples += len(pcm)
        self._heard.set()
        while self._unread_samples > MAX_UNREAD_S * RATE_OUT and not self._over:
            self._taken.clear()
            await self._taken.wait()

    def mark(self, attempt: "Attempt", text: str) -> None:
        """Marks text as spoken. Raises ProtocolError."""
        self._go_on_with(attempt)
        if len(text) > attempt.sent_chars or not self._text.startswith(text):
            raise ProtocolError("a mark does not match the text written")
        self._text = self._text[len(text) :]
        attempt.sent_chars -= len(text)
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
        if self._text:
            self._pieces.append(Speech(NO_SOUND, self._text))
        self._stop()

    def lose(self, attempt: "Attempt", error: Exception) -> None:
        """Handles the loss of a connection."""
        if attempt is self._hedge:
            self._hedge = None
            return
        self._attempt = None
        self._discard_unmarked()
        self._leave_quarantine()
        self._cancel_hedging()
        self._lost_at = (attempt.connection.worker,)
        now = asyncio.get_running_loop().time()
        hopeless = False
        if isinstance(
            error, WorkerRefused
        ):  # it says why it goes, and was not broken by this reply
            self._refused_at = self._refused_at or now
            hopeless = now - self._refused_at > GIVE_UP_S
        else:
            self._losses.add(now, attempt.connection.worker.url)
        if self._connections.closed:
            self._fail("the synthesizer is closed", error)
        elif self._complete and not self._text.strip():
            self.finish()
        elif self._losses.are_too_many(now, has_others=self._connections.workers.several):
            times = self._losses.count
            words = f"it was lost {times} times over the same words: {in_words(error)}"
            self._fail(words, error)
        elif not self._fails_for(error, hopeless):
            self._pause = max(self._pause, self._losses.pause_s(now))
            if self._hedge is not None:
                self._attempt, self._hedge = self._hedge, None
                return
            if self._losses.count <= 1 and (other := self._acquire_elsewhere()) is not None:
                self._begin(other)
                return
            self._connecting = self._connections.run(self._connect(), "connect")

    def hedge(self, attempt: "Attempt") -> bool:
        """Requests the text without a mark from another worker as well; see `Reply`. If that one is
        silent, too, a third takes its place, and no fourth: the text may be what hangs them."""
        workers = self._connections.workers
        if self._over or self._hedging is not None:
            return False
        if self._hedge is not None and self._hedge.connection.is_lost:
            self._hedge = None
        if attempt is self._attempt and self._hedge is None:
            self._lost_at = (attempt.connection.worker,)
        elif attempt is self._hedge and self._attempt is not None and not self._is_third:
            silent = (self._attempt.connection.worker, attempt.connection.worker)
            if not workers.several or not workers.has_ready(silent):
                return False
            self._lost_at = silent
        else:
            return False
        if (other := self._acquire_elsewhere()) is not None:
            self._begin_hedge(other)
        else:
            self._hedging = self._connections.run(self._connect_hedge(), "hedge")
        return True

    async def _connect_hedge(self) -> None:
        try:
            with suppress(*LOST):
                # An only address may lead to another worker, too.
                avoid = self._lost_at if self._connections.workers.several else ()
                self._begin_hedge(await self._connections.connect(self._options, avoid))
        finally:
            if self._hedging is asyncio.current_task():
                self._hedging = None

    def _begin_hedge(self, connection: Connection) -> None:
        self._is_third = self._hedge is not None
        if self._hedge is not None:
            self._hedge.connection.abandon()
        self._hedge = Attempt(self, connection)
        connection.begin(self._hedge)

    def _go_on_with(self, attempt: "Attempt") -> None:
        """Ends the other attempt: this one has answered first."""
        self._cancel_hedging()
        if attempt is self._attempt:
            if self._hedge is not None:
                self._hedge.connection.leave(self._hedge)
                self._hedge = None
            return
        assert attempt is self._hedge
        if self._attempt is not None:
            now = asyncio.get_running_loop().time()
            self._losses.add(now, self._attempt.connection.worker.url)
            self._attempt.connection.abandon()
        self._attempt, self._hedge = attempt, None
        self._discard_unmarked()
        self._connections.prepare_other(attempt.connection)

    def _cancel_hedging(self) -> None:
        if self._hedging is not None:
            self._hedging.cancel()
            self._hedging = None

    def _discard_unmarked(self) -> None:
        """Discards unread audio of the word that is spoken again."""
        while self._pieces and not self._pieces[-1].text:
            self._unread_samples -= len(self._pieces.pop().pcm)

    # --- connecting ---

    def _begin(self, connection: Connection) -> None:
        self._attempt = Attempt(self, connection)
        connection.begin(self._attempt)
        self._connections.prepare_other(connection)

    def _acquire_elsewhere(self) -> Connection | None:
        """Returns an idle connection to another worker than the one lost, if there is one."""
        if not self._connections.workers.several:
            return None
        return self._connections.acquire(self._options, self._lost_at)

    async def _connect(self) -> None:
        """Connects, retrying until it succeeds or the reply is given up."""
        loop = asyncio.get_running_loop()
        until = loop.time() + GIVE_UP_S
        try:
            while True:
                await asyncio.sleep(self._pause)
                avoid = self._lost_at if self._connections.workers.several else ()
                connection = self._connections.acquire(self._options, avoid)
                try:
                    connection = connection or await self._connections.connect(self._options, avoid)
                except LOST as error:
                    self._lost_at = ()
                    if self._fails_for(error, hopeless=loop.time() > until):
                        return
                    continue
                if await self._may_begin(connection):
                    self._begin(connection)
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
            logger.warning("the speech worker at {}: {}", self._connections.workers.url, words)
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
        """Ends the reply and releases its connections."""
        if self._over:
            return
        self._over = True
        self._leave_quarantine()
        self._text = ""
        if self._connecting is not None:
            self._connecting.cancel()
        self._cancel_hedging()
        for attempt in (self._attempt, self._hedge):
            if attempt is not None:
                attempt.connection.leave(attempt)
        self._attempt = self._hedge = None
        self._heard.set()
        self._taken.set()

    def _wake(self) -> None:
        for attempt in (self._attempt, self._hedge):
            if attempt is not None:
                attempt.connection.wake()


class Attempt:
    """A reply on one connection; implements `tts_connection_io.Reply`."""

    def __init__(self, speech: RemoteSpeech, connection: Connection) -> None:
        self.connection = connection
        self.sent_chars = 0
        """Characters of the text without a mark that were sent."""
        self.begun = False
        """Whether anything was sent."""
        self.end_sent = False
        self._speech = speech

    def next_command(self) -> Command | None:
        return self._speech.next_command(self)

    async def receive_audio(self, pcm: Pcm) -> None:
        await self._speech.receive_audio(self, pcm)

    def mark(self, text: str) -> None:
        self._speech.mark(self, text)

    def finish(self) -> None:
        self._speech.finish()

    def lose(self, error: Exception) -> None:
        self._speech.lose(self, error)

    def hedge(self) -> bool:
        return self._speech.hedge(self)


def _nothing() -> None:
    pass
