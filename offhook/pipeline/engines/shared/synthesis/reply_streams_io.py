"""The streams of a voice engine, as the replies of an event loop use them: text in, audio out.

`ThreadStreams` has the engine in the inference thread of this process; `far_streams_io` has it in
another process.
"""

from collections.abc import Callable, Sequence
from time import monotonic
from typing import Any, Generic, Protocol, TypeVar

from offhook.pipeline.engines.shared.inference_io import Inference
from offhook.pipeline.engines.shared.synthesis.messages import Ended
from offhook.pipeline.speech.errors import EngineError, EngineFailed, EngineOverloaded


class Numbered(Protocol):
    """An event of a stream; an `Ended` is its last."""

    @property
    def number(self) -> int: ...


P = TypeVar("P")
P_contra = TypeVar("P_contra", contravariant=True)
E = TypeVar("E", bound=Numbered)
E_co = TypeVar("E_co", bound=Numbered, covariant=True)
E_contra = TypeVar("E_contra", contravariant=True)


class Listener(Protocol[E_contra]):
    """A reply, which gets the events of its stream on the event loop."""

    def receive(self, told: E_contra) -> None: ...

    def fail(self, error: EngineError) -> None:
        """The stream has failed; no events follow."""


class ReplyStreams(Protocol[P_contra, E_co]):
    """Streams by the replies that they belong to. All methods but `cancel` raise EngineFailed once
    the engine has failed; then each open stream has failed, too."""

    def open(self, listener: Listener[E_co], request: Any) -> None:
        """Opens the stream of a reply as the engine's `request` says; its failure is told to the
        listener."""

    def write(self, listener: Listener[E_co], parts: Sequence[P_contra], *, last: bool) -> None:
        """Adds parts of the text, with `last` the last ones."""

    def cancel(self, listener: Listener[E_co]) -> None:
        """Frees the stream; no further events follow."""


class SpeakingEngine(Protocol[P_contra]):
    """Text in, audio out, for numbered streams. All methods are called by the inference thread;
    times are time.monotonic() in s. Calls for an ended stream are ignored."""

    def write(self, number: int, part: P_contra, now: float) -> None: ...

    def end(self, number: int, now: float) -> None: ...

    def cancel(self, number: int) -> None: ...

    def turn(self, clock: Callable[[], float]) -> bool: ...

    def timer(self) -> float | None: ...


class ThreadStreams(Generic[P, E]):
    """The streams of an engine in an inference thread; implements `ReplyStreams`. `open_stream`
    opens a stream in that thread as a request says and returns its number, or raises
    EngineError."""

    def __init__(self, name: str, open_stream: Callable[[Any], int]) -> None:
        self.inference: Inference[tuple[Listener[E], E]] = Inference(
            name, self._receive, self._break
        )
        self._name = name
        self._open_stream = open_stream
        self._listeners: set[Listener[E]] = set()
        """Those whose streams have not ended."""
        # Owned by the inference thread:
        self._engine: SpeakingEngine[P]
        self._numbers: dict[Listener[E], int] = {}
        self._by_number: dict[int, Listener[E]] = {}

    # --- on the event loop ---

    async def load(self, load: Callable[[], SpeakingEngine[P]]) -> None:
        """Builds the engine in the inference thread. Raises EngineError."""

        def begin() -> SpeakingEngine[P]:
            self._engine = load()
            return self._engine

        await self.inference.start(begin)

    def open(self, listener: Listener[E], request: Any) -> None:
        def command() -> None:
            try:
                number = self._open_stream(request)
            except EngineOverloaded as error:
                self._fail(listener, EngineOverloaded(f"{self._name}: {error}"))
            except EngineError as error:
                self._fail(listener, error)
            else:
                self._numbers[listener] = number
                self._by_number[number] = listener

        self.inference.submit(command)
        self._listeners.add(listener)

    def write(self, listener: Listener[E], parts: Sequence[P], *, last: bool) -> None:
        def command() -> None:
            number = self._numbers.get(listener)
            if number is not None:
                now = monotonic()
                for part in parts:
                    self._engine.write(number, part, now)
                if last:
                    self._engine.end(number, now)

        self.inference.submit(command)

    def cancel(self, listener: Listener[E]) -> None:
        self._listeners.discard(listener)

        def command() -> None:
            number = self._numbers.pop(listener, None)
            if number is not None:
                del self._by_number[number]
                self._engine.cancel(number)

        self.inference.put(command)

    async def close(self) -> None:
        await self.inference.close()

    def _receive(self, news: tuple[Listener[E], E]) -> None:
        listener, told = news
        if isinstance(told, Ended):
            self._listeners.discard(listener)
        listener.receive(told)

    def _break(self, error: EngineFailed) -> None:
        """Fails every reply after the inference thread has failed."""
        for listener in list(self._listeners):
            self._fail_here(listener, error)

    def _fail_here(self, listener: Listener[E], error: EngineError) -> None:
        self._listeners.discard(listener)
        listener.fail(error)

    # --- in the inference thread ---

    def deliver(self, told: E) -> None:
        """Sends an event to its reply."""
        listener = self._by_number.get(told.number)
        if listener is not None:
            self.inference.post((listener, told))
            if isinstance(told, Ended):
                del self._by_number[told.number], self._numbers[listener]

    def fail_stream(self, number: int, error: EngineError) -> None:
        """Fails one reply; the others go on."""
        listener = self._by_number.pop(number, None)
        if listener is not None:
            self._fail(listener, error)

    def _fail(self, listener: Listener[E], error: EngineError) -> None:
        self.inference.call_soon(lambda: self._fail_here(listener, error))
