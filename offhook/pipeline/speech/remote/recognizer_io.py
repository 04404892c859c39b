"""A `Recognizer` backed by remote workers over `asr_protocol`.

Each stream uses one connection. The audio of an utterance is kept (bounds below) until its final
arrives: it is the queue to a slow or loading worker, and is sent again after a lost connection, so
that no words are lost if a worker fails.

A stream has a second connection, to another worker, in two cases; see `pool`:

- its worker is suspected: what has no final is sent to both, and the first to answer is heard from
  then on, alone. If the second is suspected as well, a third takes its place, and no fourth: what
  three do not answer may be what hangs them;
- its worker drains: the second takes over between two utterances, so nothing is sent again.
"""

import asyncio
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from time import monotonic

from loguru import logger

from offhook.media.pcm import Pcm
from offhook.media.tasks_io import TaskSet
from offhook.pipeline.speech.recognizer import (
    DEFAULT_OPTIONS,
    Loss,
    Recognizer,
    StreamOptions,
    Word,
)
from offhook.pipeline.speech.remote.alignments_io import align
from offhook.pipeline.speech.remote.asr_connection_io import (
    AsrConnection,
    AsrConnections,
    HungError,
)
from offhook.pipeline.speech.remote.asr_protocol import RecognitionResult
from offhook.pipeline.speech.remote.pool_io import READY_TIMEOUT_S, Workers
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


class RemoteRecognizer(Recognizer):
    """The workers at `url`, see `worker_list_io`.

    `start` waits until one has loaded. Without it, streams open at once and buffer their audio.
    """

    def __init__(self, url: str | Sequence[str], api_key: str = "", name: str = "") -> None:
        self.workers = Workers("asr", url, api_key)
        self.url = self.workers.url
        self.name = name or self.url
        self._losses: Counter[Loss] = Counter()
        self.quarantine = Quarantine()
        self.connections = AsrConnections(self.workers)

    @property
    def losses(self) -> Counter[Loss]:
        """Connections lost while results were due."""
        return self._losses

    async def start(self, options: StreamOptions = DEFAULT_OPTIONS) -> None:
        """Opens and closes a stream with these options as a test. Raises UnsupportedRequest,
        EngineError."""
        with self.workers.starting(options.demands()):
            async with asyncio.timeout(START_TIMEOUT_S):
                self.name = await self.connections.test(options)

    async def open(self, options: StreamOptions = DEFAULT_OPTIONS) -> "RemoteStream":
        return RemoteStream(self, options)

    async def align(self, pcm: Pcm, text: str, language: str) -> tuple[Word, ...]:
        """Returns the words of a known text with their times; see `AlignsText`."""
        return await align(self.workers, pcm, text, language)

    async def close(self) -> None:
        await self.connections.close()
        await self.workers.close()


def _nothing() -> None:
    pass


class RemoteStream(QueuedStream[Utterance]):
    """A `RecognizerStream` that survives lost connections."""

    def __init__(self, recognizer: RemoteRecognizer, options: StreamOptions) -> None:
        language = options.language_code or UNKNOWN
        name = f"the speech worker at {recognizer.url}"
        super().__init__(name, options, UtteranceQueue(Utterance, language=language))
        self._recognizer = recognizer
        self._connection: AsrConnection | None = None
        """The one whose results are used."""
        self._other: AsrConnection | None = None
        """One to another worker, which will take over or has the same audio."""
        self._is_replaying = False
        """Whether the other one gets the audio, too."""
        self._is_third = False
        """Whether another one did not answer before."""
        self._tasks = TaskSet()
        self._opening: asyncio.Task[None] | None = None
        """Opens the other one."""
        self._was_connected = False
        """Whether the attempt in progress reached a worker."""
        self._loss: Exception = ConnectionError("it is not connected")
        self._lost = asyncio.Event()
        """Set when the connection is lost and no other takes over."""
        self._leave_quarantine: Callable[[], None] = _nothing
        """Ends the turn of a suspected utterance."""
        self._is_in_quarantine = False
        """Whether nothing may be sent yet."""
        self._news = asyncio.Event()
        """Set when an utterance changed."""
        self.run(self._stay_connected(), "remote recognizer")

    def changed(self) -> None:
        self._news.set()
        if self._connection is not None:
            self._connection.wake()
        if self._other is not None:
            self._other.wake()

    def withdraw(self, utterance: Utterance) -> None:
        for connection in (self._connection, self._other):
            if connection is not None:
                connection.sender.withdraw(utterance)
        self._switch_if_idle()
        self.changed()

    @property
    def judges_turns(self) -> bool:
        return self._connection is not None and self._connection.judges_turns

    async def turn_probability(self) -> float | None:
        """Asks the worker whose results are used. None if it changes meanwhile, and until the next
        one has heard enough itself."""
        if self._connection is None:
            return None
        return await self._connection.turn_probability(self.queue.samples)

    def _give_up(self, why: str, lost: Exception, utterances: list[Utterance]) -> None:
        if utterances and not self._options.live:
            words = f"{self._name}: {why}"
            self.mailbox.fail(as_error(lost, words, self._options.demands()))
            return
        for utterance in utterances:
            self.give_up(utterance)
        if utterances:
            logger.error("{} utterances given up: {}", len(utterances), why)

    # --- staying connected ---

    async def _stay_connected(self) -> None:
        loop = asyncio.get_running_loop()
        retry, said = RetryPolicy(first_s=RECONNECT_S, spread_s=SPREAD_S), ""
        lost_at = loop.time()
        try:
            while True:
                try:
                    self._was_connected = False
                    await self._connect()
                    retry.reset()
                    said = ""
                    await self._lost.wait()
                    raise self._loss
                except LOST as error:
                    self._loss = error
                    if self._was_connected:
                        lost_at = loop.time()
                    if (words := in_words(error)) != said:
                        logger.warning("{}: {}", self._name, words)
                        said = words
                finally:
                    self._leave_quarantine()
                if is_hopeless(self._loss) or loop.time() - lost_at > GIVE_UP_S:
                    finished = [u for u in self.queue if u.state is UtteranceState.FINISHED]
                    self._give_up(said, self._loss, finished)
                await asyncio.sleep(retry.next_s())
                await self._until_allowed()
        finally:
            self._drop_other()
            await self._tasks.close()
            if self._connection is not None:
                await self._connection.close()

    async def _connect(self) -> None:
        """Raises any of LOST."""
        connections = self._recognizer.connections
        has_losses = any(utterance.losses.count for utterance in self.queue)
        connection = connections.acquire(self._options, self) if has_losses else None
        try:
            connection = connection or await connections.open(
                self._options, self, reached=self._reached
            )
        except WorkerRefused:
            self._was_connected = False
            raise
        self._was_connected = True
        self._lost.clear()
        self._connection = connection
        if any(utterance.losses.is_suspect for utterance in self.queue):
            self._is_in_quarantine = True
            try:
                self._leave_quarantine = await self._recognizer.quarantine.enter()
            finally:
                self._is_in_quarantine = False
        connection.wake()

    def _reached(self) -> None:
        self._was_connected = True

    async def _until_allowed(self) -> None:
        """Waits until utterances that were lost too often may be tried again."""
        loop = asyncio.get_running_loop()
        while pause_s := max((u.losses.pause_s(loop.time()) for u in self.queue), default=0.0):
            self._news.clear()
            with suppress(TimeoutError):
                async with asyncio.timeout(pause_s):
                    await self._news.wait()

    # --- its connections, see asr_connection_io.ConnectionOwner ---

    def next_message(self, connection: AsrConnection) -> bytes | str | None:
        if connection is self._connection:
            return None if self._is_in_quarantine else connection.sender.next_message(self.queue)
        if connection is self._other and self._is_replaying:
            return connection.sender.next_message(self.queue)
        return None

    def receive(self, connection: AsrConnection, result: RecognitionResult) -> None:
        received = connection.sender.receive(result)
        if received is None:
            return  # cancelled in the meantime
        if connection is self._other:  # the first to answer
            self._count_losses("hung")
            self._switch()
        elif connection is not self._connection:
            return
        elif self._is_replaying:
            self._drop_other()
        utterance, event = received
        if result.stages is not None:
            event = replace(event, timing=result.stages.until(monotonic()))
        self.emit(utterance, event)
        if utterance.state is UtteranceState.DONE:
            connection.sender.complete(utterance)
            if utterance.losses.is_suspect:
                self._leave_quarantine()
        self._switch_if_idle()

    def lose(self, connection: AsrConnection, error: Exception) -> None:
        if connection is self._other:
            self._drop_other()
        if connection is not self._connection:
            return
        hopeless = self._count_losses("hung" if isinstance(error, HungError) else "crashed")
        self._connection = None
        times = max((utterance.losses.count for utterance in hopeless), default=0)
        self._give_up(f"the worker was lost {times} times while recognizing them", error, hopeless)
        if self._other is not None and not any(u.losses.is_suspect for u in self.queue):
            self._switch()
        else:
            self._drop_other()
            self._loss = error
            self._lost.set()

    def replay(self, connection: AsrConnection) -> bool:
        if not self._options.live:
            return False
        if connection is self._other and self._recognizer.workers.several:
            may_replace = self._is_replaying and not self._is_third
            return may_replace and self._open_other(is_replaying=True)
        if connection is not self._connection or self._is_replaying:
            return False
        if self._other is not None:
            self._is_replaying = True
            self._other.wake()
            return True
        return self._open_other(is_replaying=True)

    def move(self, connection: AsrConnection) -> bool:
        if connection is not self._connection or self._other is not None:
            return False
        return self._open_other(is_replaying=False)

    # --- the other connection ---

    def _open_other(self, is_replaying: bool) -> bool:
        """Starts to open a connection to another worker, or if there is one address another one to
        it, unless none is ready or this is under way."""
        workers = self._recognizer.workers
        used = (self._connection, self._other) if workers.several else ()
        avoid = [connection.client for connection in used if connection is not None]
        if self._opening is not None or (avoid and not workers.has_ready(avoid)):
            return False
        self._is_replaying = is_replaying
        work = self._connect_other(avoid)
        self._opening = self._tasks.spawn(work, "remote recognizer, other worker")
        return True

    async def _connect_other(self, avoid: Sequence[WorkerClient]) -> None:
        connections = self._recognizer.connections
        try:
            async with asyncio.timeout(READY_TIMEOUT_S):
                other = connections.acquire(self._options, self, avoid)
                other = other or await connections.open(self._options, self, avoid)
        except LOST as error:  # tried again at the next look
            self._is_replaying = self._is_replaying and self._other is not None
            logger.debug("no other worker: {}", in_words(error))
            return
        finally:
            if self._opening is asyncio.current_task():
                self._opening = None
        self._is_third = self._other is not None
        if self._other is not None:
            self._other.hang_up()
        self._other = other
        other.wake()
        self._switch_if_idle()

    def _switch_if_idle(self) -> None:
        """Changes to the other connection if no result is due on this one."""
        connection = self._connection
        if self._other is not None and connection is not None and not connection.sender.is_awaited:
            self._switch()

    def _switch(self) -> None:
        self._stop_opening()
        if self._connection is not None:
            self._connection.hang_up()
        self._connection, self._other, self._is_replaying = self._other, None, False
        if self._connection is not None:
            self._connection.wake()

    def _drop_other(self) -> None:
        self._is_replaying = False
        self._stop_opening()
        if self._other is not None:
            self._other.hang_up()
            self._other = None

    def _stop_opening(self) -> None:
        if self._opening is not None:
            self._opening.cancel()
            self._opening = None

    def _count_losses(self, how: Loss) -> list[Utterance]:
        """Counts the loss of the connection, and returns the utterances to be given up."""
        assert self._connection is not None
        awaited, workers = self._connection.sender.awaited, self._recognizer.workers
        if awaited:
            self._recognizer.losses[how] += 1
        now, address = asyncio.get_running_loop().time(), str(self._connection.client.address)
        several = workers.several
        return [u for u in awaited if not self.queue.lose(u, now, address, has_others=several)]
