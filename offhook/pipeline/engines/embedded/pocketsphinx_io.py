"""PocketSphinx as a `Recognizer`: distributes utterances over worker processes.

The audio of an utterance is kept until its result: it is the queue to a slow worker, and is sent to
a new worker if one crashes.
"""

import asyncio
import itertools
import json
import os
import subprocess
import sys
import time
from collections import Counter, deque
from dataclasses import dataclass, field
from importlib.util import find_spec
from typing import Any

from loguru import logger

from offhook.media.tasks_io import TaskSet
from offhook.pipeline.engines.embedded.pocketsphinx_worker import (
    READ_BYTES,
    SLICE_BYTES,
    Frame,
    FrameError,
    FrameReader,
    Kind,
    unpack_partial,
)
from offhook.pipeline.speech.errors import EngineError, UnsupportedRequest
from offhook.pipeline.speech.recognizer import (
    DEFAULT_OPTIONS,
    Final,
    Loss,
    Partial,
    Recognizer,
    StreamOptions,
    Word,
)
from offhook.pipeline.speech.streams.queued_stream_io import QueuedStream
from offhook.pipeline.speech.streams.retry import Losses
from offhook.pipeline.speech.streams.utterance_queue import (
    SAMPLES_PER_MS,
    Utterance,
    UtteranceQueue,
)
from offhook.processes.child_io import Child

MAX_LOSSES = 2
"""Crashes of workers, with an utterance in progress, after which it is given up."""
PIPE_BYTES = 1 << 16
"""Limit of data buffered for a worker; beyond it, audio waits in its utterance."""
AUDIO_BYTES = 1 << 14
"""Maximum audio bytes of a frame; more is sent in several."""
STABLE_AFTER = 3
"""Consecutive hypotheses that must agree on a word, and all before it, to make it stable."""
START_TIMEOUT_S = 120.0
"""Time limit in s for a worker to load; then it is killed, and its utterances have failed."""
CLOSE_TIMEOUT_S = 2.0
"""Time limit in s for a worker to exit; then it is killed."""
PING_S = 1.0
"""Interval in s at which a worker with utterances is pinged."""
MAX_UNANSWERED = 5
"""Pings after which a worker that neither answers nor uses CPU time counts as hung and is killed
(one that is loading, after START_TIMEOUT_S). They are counted rather than timed, so a stall of the
server does not count. A working but slow worker answers between two turns."""
MAX_SILENT_CPU_S = 10.0
"""CPU time in s that a worker may use without answering, of which a decoding turn needs at most 0.3
s. Beyond it the worker is in an endless loop, counts as hung, and is killed."""
COMMAND = (sys.executable, "-m", "offhook.pipeline.engines.embedded.pocketsphinx_worker")


class StableText:
    """Determines the stable words of an utterance's hypotheses."""

    def __init__(self) -> None:
        self._stable: list[str] = []
        self._recent: deque[list[str]] = deque(maxlen=STABLE_AFTER)

    def update(self, hypothesis: str) -> tuple[str, int]:
        """Adds a hypothesis; returns the text to show and its number of stable characters. Stable
        words remain even if the hypothesis differs."""
        words = hypothesis.split()
        self._recent.append(words)
        if len(self._recent) == STABLE_AFTER:
            alike = (len(set(place)) == 1 for place in zip(*self._recent, strict=False))
            agreed = sum(itertools.takewhile(bool, alike))
            self._stable += words[len(self._stable) : agreed]
        text = " ".join(self._stable + words[len(self._stable) :])
        return text, len(" ".join(self._stable))


@dataclass(eq=False, kw_only=True)
class PlacedUtterance(Utterance):
    """An utterance assigned to a worker; given up if it was in progress in too many crashes."""

    losses: Losses = field(default_factory=lambda: Losses(MAX_LOSSES, within_s=0.0))
    frame_number: int
    """Number in its frames, unique in the process."""
    stream: "PocketSphinxStream"
    mean: str
    stable: StableText = field(default_factory=StableText)
    worker: "Worker | None" = None
    begun: bool = False
    """Whether its worker has been told of it."""

    def next_frame(self) -> Frame | None:
        """Returns the next frame for the worker."""
        if not self.begun:
            self.begun = True
            return Frame(self.frame_number, Kind.BEGIN, self.mean.encode())
        if (piece := self.next_to_send(AUDIO_BYTES)) is None:
            return None
        return Frame(self.frame_number, Kind.AUDIO if piece else Kind.FINISH, piece)


def cpu_seconds(pid: int) -> float:
    """Returns a process's CPU time in s; 0 where the system provides no clock for it."""
    try:
        return time.clock_gettime((~pid << 3) | 2)  # clock_getcpuclockid(3) of Linux
    except OSError:
        return 0.0


class Worker(asyncio.BaseProtocol):
    """A child process and the utterances assigned to it; the protocol of its input."""

    def __init__(self, recognizer: "PocketSphinxRecognizer") -> None:
        self._recognizer = recognizer
        self._reader = FrameReader()
        self.child: Child | None = None
        self._stdin: asyncio.WriteTransport | None = None
        self._paused = False
        self._ending = False
        self._unanswered = 0
        """Pings since the worker answered or used CPU time."""
        self._cpu_s = self._cpu_s_at_word = 0.0
        """CPU time at the last ping, and at the last ping before its last answer."""
        self._next_ping: asyncio.TimerHandle | None = None
        self.hung = False
        self.utterances: dict[int, PlacedUtterance] = {}
        self.ready = asyncio.Event()
        self.exited = asyncio.Event()

    async def run(self) -> None:
        """Starts the process, and returns when it has ended; its frames wait in the utterances
        until it runs."""
        try:
            self.child = Child(COMMAND, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        except OSError as error:
            logger.error("pocketsphinx worker does not start: {}", error)
        else:
            await self._exchange(self.child)
        self._stdin = None
        if self._next_ping is not None:
            self._next_ping.cancel()
        self.exited.set()
        self.ready.set()
        self._recognizer.worker_exited(self)

    async def _exchange(self, child: Child) -> None:
        self._stdin = await child.open_input(self)
        self._stdin.set_write_buffer_limits(high=PIPE_BYTES)
        try:
            if self._ending:
                self._stdin.close()
            for utterance in list(self.utterances.values()):
                self.send(utterance)
            output = await child.reader(child.stdout)
            while data := await output.read(READ_BYTES):
                self._unanswered = 0
                self._cpu_s_at_word = self._cpu_s
                for frame in self._reader.receive(data):
                    self._receive(frame)
        except FrameError as error:
            logger.error("{}", error)
            child.kill()
        finally:
            self.end()
            await child.end(CLOSE_TIMEOUT_S)

    def pause_writing(self) -> None:
        self._paused = True

    def resume_writing(self) -> None:
        self._paused = False
        # The one that has waited longest goes first, then to the end of the queue.
        for number in list(self.utterances):
            utterance = self.utterances.pop(number)
            self.utterances[number] = utterance
            self.send(utterance)

    def assign(self, utterance: PlacedUtterance) -> None:
        """Assigns an utterance."""
        self.utterances[utterance.frame_number] = utterance
        if self._next_ping is None:
            self._unanswered = 0
            self._ping_later()
        self.send(utterance)

    def _ping_later(self) -> None:
        self._next_ping = asyncio.get_running_loop().call_later(PING_S, self._ping)

    def _ping(self) -> None:
        self._next_ping = None
        if not self.utterances or self._ending or self.exited.is_set():
            return
        self._look_at_progress()
        patience = MAX_UNANSWERED if self.ready.is_set() else START_TIMEOUT_S / PING_S
        if self._unanswered >= patience:
            logger.error("a pocketsphinx worker hangs: it is killed, and started again")
            self.hung = True
            self.kill()
            return
        self._unanswered += 1
        if self._stdin:
            self._stdin.write(bytes(Frame(0, Kind.PING)))
        self._ping_later()

    def _look_at_progress(self) -> None:
        used = cpu_seconds(self.child.pid) if self.child else 0.0
        if used > self._cpu_s and used - self._cpu_s_at_word < MAX_SILENT_CPU_S:
            self._unanswered = 0
        self._cpu_s = used

    def send(self, utterance: PlacedUtterance) -> None:
        """Sends an utterance's new audio, as far as the pipe accepts it."""
        while (
            self._stdin and not (self._paused or self._ending) and (frame := utterance.next_frame())
        ):
            self._stdin.write(bytes(frame))

    def drop(self, utterance: PlacedUtterance) -> None:
        """Drops an utterance whose result is no longer wanted."""
        if self.utterances.pop(utterance.frame_number, None) and utterance.begun and self._stdin:
            self._stdin.write(bytes(Frame(utterance.frame_number, Kind.CANCEL)))

    def _receive(self, frame: Frame) -> None:
        if frame.kind is Kind.READY:
            self.ready.set()
            return
        utterance = self.utterances.get(frame.utterance)
        if utterance is None:
            return  # cancelled while the frame was in flight
        if frame.kind is Kind.PARTIAL:
            utterance.stream.receive_partial(utterance, *unpack_partial(frame.payload))
        elif frame.kind is Kind.FINAL:
            del self.utterances[frame.utterance]
            utterance.stream.receive_final(utterance, json.loads(frame.payload))

    def end(self) -> None:
        """Closes its standard input, whereupon it exits."""
        self._ending = True
        if self._stdin:
            self._stdin.close()

    def kill(self) -> None:
        if self.child:
            self.child.kill()


class PocketSphinxRecognizer(Recognizer):
    """A `Recognizer` with up to `processes` workers, by default one less than the number of cores.

    A worker is started when an utterance begins while all others are busy, and stays. One core
    handles about six concurrent speakers; with more, results are delayed.
    """

    name = "pocketsphinx"
    languages = ("en",)
    """BCP 47 tags."""

    def __init__(self, processes: int | None = None) -> None:
        self.processes = processes or max(1, (os.cpu_count() or 1) - 1)
        self._losses: Counter[Loss] = Counter()
        self._workers: list[Worker] = []
        self._running = TaskSet()
        self._numbers = itertools.count(1)
        self._closing = False

    @property
    def losses(self) -> Counter[Loss]:
        """Workers that exited by themselves or had to be killed."""
        return self._losses

    async def start(self) -> None:
        """Starts the first worker and waits for its model. Raises EngineError."""
        if find_spec("pocketsphinx") is None:
            raise EngineError("PocketSphinx is missing: install the Python package pocketsphinx")
        worker = self._least_loaded()
        try:
            async with asyncio.timeout(START_TIMEOUT_S):
                await worker.ready.wait()
        except TimeoutError as error:
            raise EngineError(f"PocketSphinx did not load in {START_TIMEOUT_S:.0f} s") from error
        if worker.exited.is_set():
            raise EngineError("PocketSphinx ended while loading: see its words in the log above")

    async def open(self, options: StreamOptions = DEFAULT_OPTIONS) -> "PocketSphinxStream":
        """Opens a stream, for English only. The update interval follows decoding, word times are
        always included, and context has no effect."""
        if options.language_code not in (None, "en"):
            raise UnsupportedRequest(
                f"PocketSphinx hears English (en) only, not {options.language}"
            )
        return PocketSphinxStream(self, options)

    async def close(self) -> None:
        """Stops the workers; utterances in progress get no `Final`."""
        self._closing = True
        workers = list(self._workers)
        for worker in workers:
            worker.end()
        try:
            async with asyncio.timeout(CLOSE_TIMEOUT_S):
                await asyncio.gather(*(worker.exited.wait() for worker in workers))
        except TimeoutError:
            for worker in workers:
                worker.kill()
        await asyncio.gather(*(worker.exited.wait() for worker in workers))

    def begin(self, stream: "PocketSphinxStream", start: int, mean: str) -> PlacedUtterance:
        """Creates an utterance of the stream on the worker with the fewest."""
        number = next(self._numbers)
        utterance = PlacedUtterance(start=start, frame_number=number, stream=stream, mean=mean)
        self._place(utterance)
        return utterance

    def _place(self, utterance: PlacedUtterance) -> None:
        utterance.begun = False
        utterance.worker = self._least_loaded()
        utterance.worker.assign(utterance)

    def _least_loaded(self) -> Worker:
        least = min(self._workers, key=lambda worker: len(worker.utterances), default=None)
        if least is not None and (not least.utterances or len(self._workers) >= self.processes):
            return least
        worker = Worker(self)
        self._workers.append(worker)
        self._running.spawn(worker.run(), "pocketsphinx worker")
        return worker

    def worker_exited(self, worker: Worker) -> None:
        """Moves the utterances of a worker that has exited to another one."""
        self._workers.remove(worker)
        if self._closing:
            return
        self._losses["hung" if worker.hung else "crashed"] += 1
        logger.error("pocketsphinx worker ended with {} utterances", len(worker.utterances))
        # Data still in its pipe is ignored.
        orphans, worker.utterances = worker.utterances, {}
        for utterance in orphans.values():
            if utterance.stream.queue.lose(utterance, time.monotonic()):
                self._place(utterance)
            else:
                logger.error("pocketsphinx gives up an utterance after crashes of its worker")
                utterance.stream.give_up(utterance)


class PocketSphinxStream(QueuedStream[PlacedUtterance]):
    """A `RecognizerStream`. The speaker's cepstral mean passes from each result to the next
    utterance; one started before the result uses the earlier mean."""

    def __init__(self, recognizer: PocketSphinxRecognizer, options: StreamOptions) -> None:
        def begin(start: int) -> PlacedUtterance:
            return recognizer.begin(self, start, self._mean)

        queue = UtteranceQueue(begin, timed=options.timing, language="en")
        super().__init__("pocketsphinx", options, queue)
        self._mean = ""

    def changed(self) -> None:
        for utterance in self.queue:
            if utterance.worker is not None:
                utterance.worker.send(utterance)

    def withdraw(self, utterance: PlacedUtterance) -> None:
        if utterance.worker is not None:
            utterance.worker.drop(utterance)

    def receive_partial(
        self,
        utterance: PlacedUtterance,
        samples: int,
        started: float,
        done: float,
        hypothesis: str,
    ) -> None:
        """Handles the hypothesis so far, and when it was decoded."""
        text, stable_chars = utterance.stable.update(hypothesis)
        timing = None
        if (arrivals := utterance.arrivals) is not None:
            needs = arrivals.covered + SLICE_BYTES // 2
            timing = arrivals.update(samples, needs, started, done)
        if text:
            self.emit(utterance, Partial(text, stable_chars, samples // SAMPLES_PER_MS, timing))

    def receive_final(self, utterance: PlacedUtterance, result: dict[str, Any]) -> None:
        """Handles the worker's result, see `Kind.FINAL`."""
        self._mean = result["mean"]
        offset = utterance.start // SAMPLES_PER_MS
        words = tuple(Word(text, offset + a, offset + b) for text, a, b in result["words"])
        text = " ".join(word.text for word in words)
        timing = None
        if utterance.arrivals is not None:
            timing = utterance.arrivals.final(result["started"], result["done"])
        audio_ms = result["samples"] // SAMPLES_PER_MS
        self.emit(utterance, Final(text, audio_ms, words, timing=timing))
