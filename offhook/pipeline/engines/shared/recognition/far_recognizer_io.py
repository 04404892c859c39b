"""Streams of a recognition engine for sockets in another process.

`FarRecognizer` is in the process with the sockets, a `RecognizerDoor` for it in the one with the
engine; what each `send`s is for the other to `receive`.
"""

import asyncio
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from itertools import count
from typing import NamedTuple, Protocol

import numpy as np

from offhook.media.pcm import Pcm
from offhook.media.tasks_io import TaskSet
from offhook.pipeline.engines.shared.process_link_io import Failed
from offhook.pipeline.engines.shared.recognition.engine_stream_io import (
    EngineStream,
    StreamCommands,
    StreamListener,
)
from offhook.pipeline.speech.errors import EngineError, EngineFailed
from offhook.pipeline.speech.recognizer import (
    DEFAULT_OPTIONS,
    Final,
    Partial,
    Recognizer,
    StreamOptions,
    TurnAnswers,
)


class StreamOpened(NamedTuple):
    """A stream is wanted; the number is the sockets' own."""

    number: int
    options: StreamOptions


class AudioFed(NamedTuple):
    number: int
    audio: bytes
    """16 kHz int16 samples in this machine's byte order."""
    arrived_at: float


class UtteranceFinished(NamedTuple):
    number: int
    arrived_at: float


class UtteranceCancelled(NamedTuple):
    number: int


class StreamClosed(NamedTuple):
    number: int


class TurnJudgementWanted(NamedTuple):
    """Whether a speaker's turn is over; a newer question of the same stream replaces an older."""

    number: int
    stream: int
    audio: bytes


class StreamReady(NamedTuple):
    """Answers a `StreamOpened`."""

    number: int
    error: EngineError | None


class Heard(NamedTuple):
    """An event of a stream; None: an utterance was cancelled."""

    number: int
    event: Partial | Final | None


class TurnJudged(NamedTuple):
    number: int
    probability: float | None


ToRecognizer = (
    StreamOpened
    | AudioFed
    | UtteranceFinished
    | UtteranceCancelled
    | StreamClosed
    | TurnJudgementWanted
)
FromRecognizer = StreamReady | Heard | Failed | TurnJudged
SendTo = Callable[[ToRecognizer], None]
SendFrom = Callable[[FromRecognizer], None]


@dataclass(frozen=True)
class RecognizerSettings:
    """What another process knows of a loaded engine."""

    name: str
    languages: tuple[str, ...]
    judges_turns: bool

    async def connect(
        self, send: SendTo
    ) -> "tuple[FarRecognizer, Callable[[FromRecognizer], None]]":
        """Returns the recognizer and what receives for it."""
        recognizer = FarRecognizer(self, send)
        return recognizer, recognizer.receive


# --- in the process with the sockets ---


class FarRecognizer(Recognizer):
    """The engine of another process as a `Recognizer`."""

    languages: tuple[str, ...] = ()
    turns: "FarTurns | None" = None

    def __init__(self, settings: RecognizerSettings, send: SendTo) -> None:
        self.name, self.languages = settings.name, settings.languages
        self.turns = FarTurns(send) if settings.judges_turns else None
        self._commands = FarCommands(send, self._remove)
        self._send = send
        self._numbers = count()
        self._opening: dict[int, asyncio.Future[None]] = {}
        self._streams: dict[int, EngineStream] = {}

    async def start(self) -> None:
        """The engine has been started."""

    async def open(self, options: StreamOptions = DEFAULT_OPTIONS) -> EngineStream:
        """Opens a stream. Raises EngineError."""
        number = next(self._numbers)
        opened = self._opening[number] = asyncio.get_running_loop().create_future()
        self._streams[number] = stream = EngineStream(self._commands, number)
        self._send(StreamOpened(number, options))
        try:
            await opened
        except BaseException:
            self._commands.close(number)
            raise
        finally:
            del self._opening[number]
        return stream

    async def close(self) -> None:
        """The engine ends with its own process."""

    def _remove(self, number: int) -> None:
        self._streams.pop(number, None)

    def receive(self, said: FromRecognizer) -> None:
        match said:
            case Heard(number, event) if number in self._streams:
                self._streams[number].receive(event)
            case StreamReady(number, error) if number in self._opening:
                opened = self._opening[number]
                if opened.done():
                    return
                if error is None:
                    opened.set_result(None)
                else:
                    opened.set_exception(error)
            case Failed(number, error) if number in self._streams:
                self._streams[number].fail(error)
            case TurnJudged() if self.turns is not None:
                self.turns.receive(said)


class FarCommands:
    """`StreamCommands` for an engine in another process."""

    def __init__(self, send: SendTo, remove: Callable[[int], None]) -> None:
        self._send, self._remove = send, remove

    def feed(self, number: int, pcm: Pcm, arrived_at: float) -> None:
        self._send(AudioFed(number, pcm.tobytes(), arrived_at))

    def finish(self, number: int, arrived_at: float) -> None:
        self._send(UtteranceFinished(number, arrived_at))

    def cancel(self, number: int) -> None:
        self._send(UtteranceCancelled(number))

    def close(self, number: int) -> None:
        self._send(StreamClosed(number))
        self._remove(number)


class FarTurns:
    """Asks the engine of another process whether turns are over; implements `TurnAnswers`."""

    def __init__(self, send: SendTo) -> None:
        self._send = send
        self._numbers = count()
        self._asked: dict[int, asyncio.Future[float | None]] = {}

    async def probability(self, pcm: Pcm, call: Hashable) -> float | None:
        number = next(self._numbers)
        answer: asyncio.Future[float | None] = asyncio.get_running_loop().create_future()
        self._asked[number] = answer
        self._send(TurnJudgementWanted(number, id(call), pcm.tobytes()))
        try:
            return await answer
        finally:
            del self._asked[number]

    def receive(self, said: TurnJudged) -> None:
        answer = self._asked.get(said.number)
        if answer is not None and not answer.done():
            answer.set_result(said.probability)


# --- in the process with the engine ---


class OpensStreams(Protocol):
    """An `EngineRecognizer`."""

    @property
    def commands(self) -> StreamCommands: ...

    @property
    def turns(self) -> TurnAnswers | None: ...

    async def open_stream(self, options: StreamOptions) -> int: ...

    def listen(self, number: int, listener: StreamListener) -> None: ...


class RecognizerDoor:
    """The streams of the sockets of one other process."""

    def __init__(self, recognizer: OpensStreams, send: SendFrom) -> None:
        self._recognizer = recognizer
        self._commands = recognizer.commands
        self._send = send
        self._numbers: dict[int, int] = {}
        """The engine's, by the sockets'."""
        self._opening: dict[int, bool] = {}
        """Whether it is still wanted when it is open."""
        self._tasks = TaskSet()

    def receive(self, said: ToRecognizer) -> None:
        if isinstance(said, TurnJudgementWanted):
            self._tasks.spawn(self._judge(said), "turn?")
            return
        try:
            if isinstance(said, AudioFed):  # nearly always: worth less time than a pattern takes
                self._feed(said)
            else:
                self._obey(said)
        except EngineFailed as error:
            self._send(Failed(said.number, error))

    def _feed(self, said: AudioFed) -> None:
        """Raises EngineFailed."""
        if (own := self._numbers.get(said.number)) is not None:
            self._commands.feed(own, np.frombuffer(said.audio, np.int16), said.arrived_at)

    def _obey(self, said: ToRecognizer) -> None:
        """Raises EngineFailed."""
        match said:
            case UtteranceFinished(number, arrived_at) if number in self._numbers:
                self._commands.finish(self._numbers[number], arrived_at)
            case UtteranceCancelled(number) if number in self._numbers:
                self._commands.cancel(self._numbers[number])
            case StreamClosed(number):
                self._close(number)
            case StreamOpened(number, options):
                self._opening[number] = True
                self._tasks.spawn(self._open(number, options), "open")

    async def _open(self, number: int, options: StreamOptions) -> None:
        try:
            own = await self._recognizer.open_stream(options)
        except EngineError as error:
            del self._opening[number]
            self._send(StreamReady(number, error))
            return
        if not self._opening.pop(number):
            self._commands.close(own)
            return
        self._numbers[number] = own
        self._recognizer.listen(own, _FarListener(number, self._send))
        self._send(StreamReady(number, None))

    def _close(self, number: int) -> None:
        if number in self._opening:
            self._opening[number] = False
        if (own := self._numbers.pop(number, None)) is not None:
            self._commands.close(own)

    async def _judge(self, question: TurnJudgementWanted) -> None:
        turns = self._recognizer.turns
        assert turns is not None
        pcm = np.frombuffer(question.audio, np.int16)
        probability = await turns.probability(pcm, (self, question.stream))
        self._send(TurnJudged(question.number, probability))

    async def close(self) -> None:
        """Closes all streams: the other process has ended."""
        for number in [*self._numbers, *self._opening]:
            self._close(number)
        await asyncio.gather(*self._tasks, return_exceptions=True)


class _FarListener:
    """Implements `StreamListener`."""

    def __init__(self, number: int, send: SendFrom) -> None:
        self._number, self._send = number, send

    def receive(self, event: Partial | Final | None) -> None:
        self._send(Heard(self._number, event))

    def fail(self, error: EngineError) -> None:
        self._send(Failed(self._number, error))
