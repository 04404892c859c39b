"""One WebSocket to a recognizer's worker, and the spare ones that are kept at other workers."""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Collection
from contextlib import suppress
from dataclasses import dataclass
from itertools import count
from typing import Protocol

import aiohttp
from loguru import logger

from offhook.media.tasks_io import TaskSet
from offhook.pipeline.speech.recognizer import StreamOptions
from offhook.pipeline.speech.remote.asr_protocol import (
    PATH,
    Ready,
    RecognitionResult,
    Request,
    ServerMessage,
    TurnAnswer,
    TurnQuestion,
    command_text,
    parse_server,
)
from offhook.pipeline.speech.remote.asr_sender import UtteranceSender
from offhook.pipeline.speech.remote.pool import WorkerEvent
from offhook.pipeline.speech.remote.pool_io import Socket, Workers
from offhook.pipeline.speech.remote.worker_client_io import (
    HUNG_LOOKS,
    LOOK_S,
    LOST,
    PING_S,
    SILENCE_S,
    START_TIMEOUT_S,
    WorkerClient,
    WorkerRefused,
    content_of,
    in_words,
    message_of,
)
from offhook.pipeline.speech.remote.worker_protocol import Draining, Error, ProtocolError
from offhook.pipeline.speech.vad.smart_turn_io import SAMPLES

SPARES = 2
"""Spare connections, at different workers: one is left whichever worker is lost."""
MAX_QUESTIONS = 2
"""Questions about turns that a worker may owe an answer; one that is so late gets no more, and the
turn is judged without it."""
REFILL_S = 1.0
"""Pause in s after a spare connection was lost or could not be opened."""


class HungError(TimeoutError):
    """Raised when the connection is up but the worker does not answer."""


def read(data: str | bytes) -> ServerMessage:
    """Parses a message of the worker. Raises ProtocolError, WorkerRefused."""
    if isinstance(data, bytes):
        raise ProtocolError("it sent bytes that are not text")
    message = parse_server(data)
    if isinstance(message, Error):
        raise WorkerRefused(message)
    return message


async def ready_of(socket: Socket) -> Ready:
    """Waits until the worker has loaded. Raises any of LOST."""
    message = read(await message_of(socket, START_TIMEOUT_S))
    if not isinstance(message, Ready):
        raise ProtocolError("the first message is not ready")
    return message


class ConnectionOwner(Protocol):
    """Who uses a connection."""

    def next_message(self, connection: "AsrConnection") -> bytes | str | None:
        """Returns the next message for the worker."""

    def receive(self, connection: "AsrConnection", result: RecognitionResult) -> None: ...

    def lose(self, connection: "AsrConnection", error: Exception) -> None:
        """Handles the loss of the connection, unless it was closed here."""

    def replay(self, connection: "AsrConnection") -> bool:
        """See `pool_io.WorkerStream`."""

    def move(self, connection: "AsrConnection") -> bool:
        """See `pool_io.WorkerStream`."""


@dataclass(eq=False)
class _Question:
    """Is the turn over at sample `end` of the stream?"""

    number: int
    end: int
    answer: "asyncio.Future[float | None]"


class AsrConnection:
    """A connection to a loaded worker, until it is lost or closed."""

    def __init__(
        self,
        workers: Workers,
        client: WorkerClient,
        socket: Socket,
        ready: Ready,
        options: StreamOptions,
        owner: ConnectionOwner,
        tasks: TaskSet,
    ) -> None:
        self.client = client
        self.options = options
        self.owner = owner
        self.judges_turns = ready.turns
        self.sender = UtteranceSender()
        self._questions: deque[_Question] = deque()
        """Those that wait for their audio to be sent."""
        self._asked: dict[int, _Question] = {}
        """Those that the worker owes an answer, also for who no longer waits."""
        self._numbers = count()
        self._workers = workers
        self._socket = socket
        self._news = asyncio.Event()
        """Set when there may be something to send."""
        self._to_ping = False
        workers.join(client, self)
        self._task = tasks.spawn(self._run(), "remote recognizer connection")

    def wake(self) -> None:
        """Signals that there may be something to send."""
        self._news.set()

    def hang_up(self) -> None:
        self._task.cancel()

    async def close(self) -> None:
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)

    # --- turns ---

    async def turn_probability(self, end: int) -> float | None:
        """Returns the probability that the turn is over at sample `end` of the stream; None if the
        worker cannot say, or the connection ends before it does."""
        if not self.judges_turns or len(self._asked) >= MAX_QUESTIONS or self._task.done():
            return None
        answer: asyncio.Future[float | None] = asyncio.get_running_loop().create_future()
        question = _Question(next(self._numbers), end, answer)
        self._questions.append(question)
        self.wake()
        try:
            return await answer
        finally:
            if question in self._questions:
                self._questions.remove(question)

    def _next_question(self) -> str | None:
        """Returns the next question whose audio has been sent."""
        while self._questions and self.sender.has_sent(self._questions[0].end):
            question = self._questions.popleft()
            at_ms = self.sender.place_ms(question.end, SAMPLES)
            if at_ms is not None:
                self._asked[question.number] = question
                return command_text(TurnQuestion(question.number, at_ms))
            if not question.answer.done():  # another worker had what was before
                question.answer.set_result(None)
        return None

    def _receive_answer(self, message: TurnAnswer) -> None:
        question = self._asked.pop(message.question, None)
        if question is not None and not question.answer.done():
            question.answer.set_result(message.probability)

    def _end_questions(self) -> None:
        for question in (*self._questions, *self._asked.values()):
            if not question.answer.done():
                question.answer.set_result(None)

    # --- WorkerStream ---

    def is_awaited(self) -> bool:
        # A file's worker may read no further for a while, and then answers no ping.
        return self.options.live and self.sender.is_awaited

    def ping(self) -> None:
        self._to_ping = True
        self._news.set()

    def replay(self) -> bool:
        return self.owner.replay(self)

    def move(self) -> bool:
        return self.owner.move(self)

    # --- the socket ---

    async def _run(self) -> None:
        sending = asyncio.create_task(self._send(), name="remote recognizer send")
        try:
            await self._receive()
        except LOST as error:
            self._workers.report_failure(self.client, error)
            self.owner.lose(self, error)
        finally:
            self._workers.leave(self.client, self)
            self._end_questions()
            sending.cancel()
            await asyncio.gather(sending, return_exceptions=True)
            with suppress(*LOST):
                await self._socket.close()

    async def _receive(self) -> None:
        """Runs until the connection is lost. Raises any of LOST."""
        silent = waited = 0
        """Checks without incoming messages: in a row, and those while results were due. They are
        counted rather than timed, so a stall of this process does not count."""
        socket = self._socket
        while True:
            try:
                frame = await socket.receive(LOOK_S)
            except TimeoutError:
                silent += 1
                waited = waited + 1 if self.sender.is_awaited else 0
                if silent > SILENCE_S / LOOK_S or (self.options.live and waited > HUNG_LOOKS):
                    raise HungError(f"no data from it for {silent * LOOK_S:g} s") from None
                if waited:
                    self.ping()
                continue
            silent = waited = 0
            self._workers.report(self.client, WorkerEvent.DATA)
            if frame.type is aiohttp.WSMsgType.PING:
                await socket.pong(frame.data)
            elif frame.type is not aiohttp.WSMsgType.PONG:
                message = read(content_of(socket, frame))
                if isinstance(message, RecognitionResult):
                    self.owner.receive(self, message)
                elif isinstance(message, TurnAnswer):
                    self._receive_answer(message)
                elif isinstance(message, Draining):
                    self._workers.report(self.client, WorkerEvent.DRAINING)

    async def _send(self) -> None:
        socket = self._socket
        with suppress(*LOST):  # the receiving side detects it too
            while True:
                self._news.clear()
                if self._to_ping:
                    self._to_ping = False
                    await socket.ping()
                while (message := self._next_message()) is not None:
                    if isinstance(message, bytes):
                        await socket.send_bytes(message)
                    else:
                        await socket.send_str(message)
                try:
                    async with asyncio.timeout(PING_S):
                        await self._news.wait()
                except TimeoutError:
                    self._to_ping = True

    def _next_message(self) -> bytes | str | None:
        message = self.owner.next_message(self)
        return self._next_question() if message is None else message


class AsrConnections:
    """Opens the connections of one recognizer, and keeps spare ones at other workers for streams
    that lose theirs: no handshake then stands between a loss and the replay."""

    def __init__(self, workers: Workers) -> None:
        self._workers = workers
        self._spare: list[AsrConnection] = []
        self._options: StreamOptions | None = None
        """Those of the last live stream."""
        self._tasks = TaskSet()
        """Those of all connections."""
        self._keeping: asyncio.Task[None] | None = None
        self._refill = asyncio.Event()

    async def open(
        self,
        options: StreamOptions,
        owner: ConnectionOwner,
        avoid: Collection[WorkerClient] = (),
        reached: Callable[[], None] | None = None,
    ) -> AsrConnection:
        """Opens a connection; `reached` is called when a worker is connected that may still be
        loading. Raises any of LOST."""

        async def ready(socket: Socket) -> Ready:
            if reached is not None:
                reached()
            return await ready_of(socket)

        connected = await self._connect(options, ready, avoid)
        if options.live and self._workers.several:
            self._keep_spares(options)
        return self._connection(*connected, options, owner)

    async def test(self, options: StreamOptions) -> str:
        """Opens and closes a connection, and returns the name of the engine. Raises any of
        LOST."""
        _, socket, ready = await self._connect(options, ready_of)
        await socket.close()
        return ready.engine

    async def _connect(
        self,
        options: StreamOptions,
        ready: Callable[[Socket], Awaitable[Ready]],
        avoid: Collection[WorkerClient] = (),
    ) -> tuple[WorkerClient, Socket, Ready]:
        query = Request(options=options).query()
        return await self._workers.connect(PATH, query, ready, avoid, autoping=False)

    def _connection(
        self,
        client: WorkerClient,
        socket: Socket,
        ready: Ready,
        options: StreamOptions,
        owner: ConnectionOwner,
    ) -> AsrConnection:
        return AsrConnection(self._workers, client, socket, ready, options, owner, self._tasks)

    def acquire(
        self, options: StreamOptions, owner: ConnectionOwner, avoid: Collection[WorkerClient] = ()
    ) -> AsrConnection | None:
        """Returns a spare connection with these options at a ready worker, if there is one."""
        usable = {
            spare.client: spare
            for spare in self._spare
            if spare.options == options and spare.client not in avoid
        }
        client = self._workers.choose_among(usable.keys())
        if client is None:
            return None
        spare = usable[client]
        self._spare.remove(spare)
        self._refill.set()
        spare.owner = owner
        return spare

    async def close(self) -> None:
        self._spare.clear()
        await self._tasks.close()

    # --- spare connections, whose owner this is ---

    def next_message(self, connection: AsrConnection) -> None:
        return None

    def receive(self, connection: AsrConnection, result: RecognitionResult) -> None:
        pass

    def lose(self, connection: AsrConnection, error: Exception) -> None:
        if connection in self._spare:
            self._spare.remove(connection)
            self._refill.set()

    def replay(self, connection: AsrConnection) -> bool:
        return False

    def move(self, connection: AsrConnection) -> bool:
        """Gives it up, at a worker that is draining or gone."""
        if connection in self._spare:
            self._spare.remove(connection)
            connection.hang_up()
            self._refill.set()
        return False

    def _keep_spares(self, options: StreamOptions) -> None:
        if options != self._options:
            self._options = options
            self._refill.set()
        if self._keeping is None:
            self._keeping = self._tasks.spawn(self._keep(), "spare recognizer connections")

    async def _keep(self) -> None:
        while True:
            await self._refill.wait()
            self._refill.clear()
            options = self._options
            assert options is not None
            for spare in [spare for spare in self._spare if spare.options != options]:
                self._spare.remove(spare)
                spare.hang_up()
            used = [spare.client for spare in self._spare]
            while len(self._spare) < SPARES and self._workers.has_ready(used):
                try:
                    connected = await self._connect(options, ready_of, used)
                except LOST as error:
                    logger.debug("no spare connection: {}", in_words(error))
                    break
                spare = self._connection(*connected, options, self)
                used.append(spare.client)
                self._spare.append(spare)
            if len(self._spare) < SPARES:
                self._refill.set()
            await asyncio.sleep(REFILL_S)
