"""Those who have things said, and listen; and the engine that serves them.

`Serving` is the engine in its inference thread, as a worker runs it, with its clients on an event
loop in the same process; no socket is between them. `Rehearsal` is the same on a simulated runner
and a simulated clock, as fast as the computer goes: nothing of it is a measurement.
"""

import asyncio
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Sequence
from heapq import heappop, heappush
from time import monotonic
from typing import Any, Self

from benchmarks.speech.texts import Word
from benchmarks.voices.listening import Listener, Tally
from benchmarks.voices.tts_runners import Machine
from offhook.pipeline.engines.qwen3_tts.engine import TtsEngine
from offhook.pipeline.engines.qwen3_tts.prompts import VoicePrompt
from offhook.pipeline.engines.shared.inference_io import Inference
from offhook.pipeline.engines.shared.synthesis.messages import (
    FRAME_SAMPLES,
    Ended,
    EngineEvent,
    Reason,
    Sampling,
    Spoken,
)
from offhook.pipeline.speech.errors import EngineFailed, EngineOverloaded

POLL_S = 0.01
"""Between two looks at whether a run is over."""


def never() -> bool:
    return False


# --- who listens ---


class Reply:
    """One stream, from its client's side."""

    def __init__(
        self,
        serving: "Serving",
        tally: Tally,
        buffer: float = 0.0,
        live: bool = True,
        heard: "Callable[[Spoken], None] | None" = None,
        ended: Callable[[], None] = lambda: None,
    ) -> None:
        """`heard` and `ended` are called with each piece of sound and after the last."""
        self.listener = Listener(tally, buffer)
        self.live = live
        self.asked = 0.0
        """When the first of its text was given. s."""
        self.first: float | None = None
        self.told_first: float | None = None
        """By the engine."""
        self.ended: float | None = None
        self.reason: Reason | None = None
        self.refused = False
        """There was no slot for it."""
        self.starved = 0
        """Times."""
        self.number = 0
        self.opened = 0.0
        """When it had a slot."""
        self.wasted = 0
        """Frames that were made for it and never told."""
        self._serving = serving
        self._tally = tally
        self._heard = heard
        self._ended = ended
        self._cancelled = False

    @property
    def over(self) -> bool:
        return self.ended is not None or self.refused

    # --- what it asks ---

    def open(self, voice: VoicePrompt) -> None:
        self._serving.order(lambda: self._serving.open(self, voice))

    def write(self, said: Sequence[Word], end: bool = False) -> None:
        if not self.asked:
            self.asked = self._serving.now()
        self._serving.order(lambda: self._serving.write(self, said, end))

    def say(self, voice: VoicePrompt, said: Sequence[Word]) -> None:
        """All at once."""
        self.open(voice)
        self.write(said, end=True)

    def cancel(self) -> None:
        self._cancelled = True
        self._serving.order(lambda: self._serving.cancel(self))

    # --- what it is told ---

    def receive(self, told: EngineEvent) -> None:
        if self._cancelled:
            return
        now = self._serving.now()
        if isinstance(told, Spoken):
            self._take_sound(told, now)
        elif isinstance(told, Ended):
            self.ended, self.reason = now, told.reason
            self._ended()
        else:
            self.starved += 1

    def _take_sound(self, spoken: Spoken, now: float) -> None:
        if spoken.first_frame != self.listener.frames:
            raise RuntimeError(f"frame {spoken.first_frame} came for {self.listener.frames}")
        if self.first is None:
            self.first = now
            if self._tally.counting:
                self._tally.first_ms.append(1000 * (now - self.asked))
                assert self.told_first is not None
                self._tally.engine_ms.append(1000 * (self.told_first - self.asked))
        self.listener.hear(len(spoken.pcm) // FRAME_SAMPLES, now)
        if self._heard is not None:
            self._heard(spoken)


# --- the engine ---


class Serving(ABC):
    """An engine on a machine. What is `order`ed is done between its turns; what it tells reaches
    the replies afterwards."""

    engine: TtsEngine
    busy = 0.0
    """s of turns in which there was something to do."""

    def __init__(self, machine: Machine) -> None:
        self.machine = machine
        self._speaking: dict[int, Reply] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    @abstractmethod
    def now(self) -> float: ...

    @abstractmethod
    def at(self, when: float, do: Callable[[], None]) -> None:
        """On the clients' side."""

    @abstractmethod
    def order(self, do: Callable[[], None]) -> None: ...

    @abstractmethod
    def run(self, seconds: float, over: Callable[[], bool] = never) -> None:
        """For so long, or until it is over. Raises what anything in it raised."""

    def close(self) -> None:
        self.order(self._silence)

    def _silence(self) -> None:
        for reply in list(self._speaking.values()):
            self.cancel(reply)

    # --- orders of replies, in the engine's thread ---

    def open(self, reply: Reply, voice: VoicePrompt) -> None:
        seed = len(self._speaking) + self.engine.counters.segments
        try:
            reply.number = self.engine.open(voice, Sampling(), seed, reply.live)
        except EngineOverloaded:
            reply.refused = True  # the engine knows no such number, and ignores what follows
            return
        reply.opened = self.now()
        self._speaking[reply.number] = reply

    def write(self, reply: Reply, said: Sequence[Word], end: bool) -> None:
        now = self.now()
        for word in said:
            self.engine.write(reply.number, word.tokens, word.ends, now)
        if end:
            self.engine.end(reply.number, now)

    def cancel(self, reply: Reply) -> None:
        before = self.engine.counters.wasted_frames
        self.engine.cancel(reply.number)
        reply.wasted = self.engine.counters.wasted_frames - before
        self._speaking.pop(reply.number, None)

    def _of(self, told: EngineEvent) -> Reply | None:
        """Whom it is told."""
        reply = self._speaking.get(told.number)
        if reply is not None:
            if isinstance(told, Spoken) and reply.told_first is None:
                reply.told_first = self.now()
            elif isinstance(told, Ended):
                del self._speaking[told.number]
        return reply


class Served(Serving):
    """In real time."""

    def __init__(self, machine: Machine, streams: int = 0) -> None:
        super().__init__(machine)
        self._runner = asyncio.Runner(loop_factory=_loop_factory())
        self._loop = self._runner.get_loop()
        self._fault: BaseException | None = None
        self._loop.set_exception_handler(self._fail)
        self._inference: Inference[tuple[Reply, EngineEvent]] = Inference(
            "bench", lambda news: news[0].receive(news[1]), self._break
        )
        self._runner.run(self._inference.start(lambda: self._load(streams)))

    def _load(self, streams: int) -> "_Turns":
        self.engine = self.machine.engine(self._tell, monotonic, streams)
        return _Turns(self)

    def _tell(self, told: EngineEvent) -> None:
        reply = self._of(told)
        if reply is not None:
            self._inference.post((reply, told))

    def _fail(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        self._fault = self._fault or context.get("exception") or RuntimeError(context["message"])

    def _break(self, error: EngineFailed) -> None:
        self._fault = error

    def now(self) -> float:
        return monotonic()

    def at(self, when: float, do: Callable[[], None]) -> None:
        self._loop.call_later(max(0.0, when - monotonic()), do)

    def order(self, do: Callable[[], None]) -> None:
        self._inference.submit(do)

    def run(self, seconds: float, over: Callable[[], bool] = never) -> None:
        self._runner.run(self._until(monotonic() + seconds, over))

    async def _until(self, end: float, over: Callable[[], bool]) -> None:
        while not over() and (left := end - monotonic()) > 0:
            if self._fault is not None:
                raise self._fault
            await asyncio.sleep(min(POLL_S, left))

    def close(self) -> None:
        if self._inference.failed is None:
            super().close()
        self._runner.run(self._inference.close())
        self._runner.close()
        self.machine.synchronize()


def _loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    """As a worker's."""
    try:
        import uvloop
    except ImportError:
        return None
    factory: Callable[[], asyncio.AbstractEventLoop] = uvloop.new_event_loop
    return factory


class _Turns:
    """As `Inference` calls them."""

    def __init__(self, serving: Served) -> None:
        self.timer = serving.engine.timer
        self._turn = serving.engine.turn
        self._serving = serving

    def turn(self, clock: Callable[[], float]) -> bool:
        began = clock()
        done = self._turn(began)
        if done:
            self._serving.busy += clock() - began
        return done


class Rehearsal(Serving):
    """On a simulated clock, which stands still but for what the cost model says."""

    def __init__(self, machine: Machine, streams: int = 0) -> None:
        super().__init__(machine)
        self._now = 0.0
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._order = 0
        self._news: deque[tuple[Reply, EngineEvent]] = deque()
        self.engine = machine.engine(self._tell, self.now, streams)

    def _tell(self, told: EngineEvent) -> None:
        reply = self._of(told)
        if reply is not None:
            self._news.append((reply, told))

    def now(self) -> float:
        return self._now

    def at(self, when: float, do: Callable[[], None]) -> None:
        self._order += 1
        heappush(self._events, (when, self._order, do))

    def order(self, do: Callable[[], None]) -> None:
        do()

    def run(self, seconds: float, over: Callable[[], bool] = never) -> None:
        end = self._now + seconds
        while not over() and self._now < end:
            while self._events and self._events[0][0] <= self._now:
                heappop(self._events)[2]()
            if self._turn():
                continue
            times = [self._events[0][0]] if self._events else []
            timer = self.engine.timer()
            if timer is not None:
                times.append(timer)
            if not times or min(times) > end:
                self._now = end
                return
            self._now = max(self._now + 1e-5, min(times))

    def _turn(self) -> bool:
        counters, cost = self.engine.counters, self.machine.cost
        steps, frames = counters.steps, counters.frames
        done = self.engine.turn(self._now)
        if counters.steps > steps:
            streams = counters.frames - frames
            took = (cost.launch_ms + streams * cost.launch_stream_ms) / 1000
            self._now += took
            self.busy += took
        while self._news:
            reply, told = self._news.popleft()
            reply.receive(told)
        return done


def serve(machine: Machine, streams: int = 0) -> Serving:
    """`streams`: slots, instead of all that there are."""
    return Rehearsal(machine, streams) if machine.simulated else Served(machine, streams)
