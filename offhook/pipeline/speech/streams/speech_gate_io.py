"""A `Recognizer` whose engine hears only sound with speech in it, where the stream asks for that.

The engine then neither works on silence and noise nor hears words in them. What is left out is
answered at once: a `Partial` that covers it and has no new words in it, and for an utterance
without any speech an empty `Final`. Times are those of the whole sound.

One model judges for all streams of the process (Silero VAD), in batches; it is loaded when the
first stream asks.
"""

import asyncio
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from time import monotonic
from typing import ClassVar

import numpy as np
import numpy.typing as npt

from offhook.media.pcm import RATE_IN, Pcm, dbfs
from offhook.pipeline.speech.recognizer import (
    DEFAULT_OPTIONS,
    EngineError,
    Final,
    Partial,
    Recognizer,
    RecognizerStream,
    StreamOptions,
    Timing,
)
from offhook.pipeline.speech.streams.queued_stream_io import QueuedStream
from offhook.pipeline.speech.streams.speech_gate import SpeechGate, Splices
from offhook.pipeline.speech.streams.utterance_queue import (
    SAMPLES_PER_MS,
    State,
    Utterance,
    UtteranceQueue,
)
from offhook.pipeline.speech.vad.onnx_io import OnnxModel

WINDOW = 512
CONTEXT = 64
STATE = 128
BATCH = 64
"""Streams judged at once, at most."""
BY_THE_LOOP = 4
"""So few are judged on the event loop: that takes 0.3 ms, and to go to the thread and come back as
long again."""
QUIET_PROBABILITY = 0.1
QUIET_WINDOWS = 125
"""After 4 s of nothing like speech the model's memory is made fresh, as in `vad_io`: music and
long noise leave it hard of hearing."""
SILENT_DBFS = -60.0
SILENT_WINDOWS = 4
"""After so many windows below that, none is judged until one is louder."""

Floats = npt.NDArray[np.float32]


class GatedRecognizer:
    """`engine` for streams without `StreamOptions.gate` as it is."""

    def __init__(self, engine: Recognizer) -> None:
        self.name = engine.name
        self.engine = engine
        self._judge: Judge | None = None

    async def start(self) -> None:
        await self.engine.start()
        self.name = self.engine.name

    async def open(self, options: StreamOptions = DEFAULT_OPTIONS) -> RecognizerStream:
        """Raises EngineError, also when there is no model to judge with."""
        if not options.gate:
            return await self.engine.open(options)
        if self._judge is None:
            try:
                judge = await asyncio.to_thread(Judge)
            except (ImportError, OSError) as error:
                words = f"gate needs onnxruntime and pipecat-ai here ({error})"
                raise EngineError(words) from error
            self._judge = self._judge or judge
        stream = await self.engine.open(replace(options, gate=False))
        return GatedStream(stream, self._judge, options)

    async def close(self) -> None:
        await self.engine.close()
        if self._judge is not None:
            await self._judge.close()


@dataclass(eq=False)
class Ear:
    """What the model carries from window to window of one stream."""

    state: Floats = field(default_factory=lambda: np.zeros((2, 1, STATE), np.float32))
    context: Floats = field(default_factory=lambda: np.zeros(CONTEXT, np.float32))
    quiet: int = 0
    """Windows since something was a little like speech, or the memory was made fresh."""
    silent: int = 0
    """Windows in a row that were silent."""

    def take(self, pcm: Pcm) -> Floats | None:
        """The model's input; None when it need not be asked: there is nothing to hear."""
        samples = pcm * np.float32(1 / 32768)
        row = np.concatenate((self.context, samples))
        self.context = samples[-CONTEXT:]
        self.silent = self.silent + 1 if dbfs(pcm) < SILENT_DBFS else 0
        if self.silent <= SILENT_WINDOWS:
            return row
        self.note(0.0)
        return None

    def note(self, probability: float) -> None:
        self.quiet = self.quiet + 1 if probability < QUIET_PROBABILITY else 0
        if self.quiet >= QUIET_WINDOWS:
            self.state = np.zeros((2, 1, STATE), np.float32)
            self.quiet = self.silent = 0


class Judge:
    """The model and its thread. Building it loads the model: 30 ms. Raises ImportError, OSError."""

    def __init__(self) -> None:
        self._model = OnnxModel("pipecat.audio.vad.data", "silero_vad.onnx")
        self._model.load()
        self._rate = np.array(RATE_IN, np.int64)
        self._thread = ThreadPoolExecutor(1, "speech gate")
        self._ready: dict[GatedStream, None] = {}
        """Streams that may have a window, those that wait longest first."""
        self._busy = False

    def listen(self, stream: "GatedStream") -> None:
        """It has more to judge."""
        self._ready[stream] = None
        self._judge_next()

    def forget(self, stream: "GatedStream") -> None:
        self._ready.pop(stream, None)

    async def close(self) -> None:
        await asyncio.to_thread(self._thread.shutdown)

    def _judge_next(self) -> None:
        """A window of each stream that has one, in the thread."""
        batch: list[tuple[GatedStream, Floats]] = []
        while not self._busy and self._ready and len(batch) < BATCH:
            stream = next(iter(self._ready))
            del self._ready[stream]
            if (row := stream.next_row()) is not None:
                batch.append((stream, row))
        if batch:
            self._busy = True
            rows = np.stack([row for _, row in batch])
            states = np.concatenate([stream.ear.state for stream, _ in batch], axis=1)
            streams = [stream for stream, _ in batch]
            loop = asyncio.get_running_loop()
            if len(batch) <= BY_THE_LOOP:
                loop.call_soon(self._tell, streams, *self._run(rows, states))
                return
            job = loop.run_in_executor(self._thread, self._run, rows, states)
            job.add_done_callback(
                lambda done: None if done.cancelled() else self._tell(streams, *done.result())
            )

    def _run(self, rows: Floats, states: Floats) -> tuple[Floats, Floats]:
        inputs = {"input": rows, "state": states, "sr": self._rate}
        output, states = self._model.run(inputs)
        return output[:, 0], states

    def _tell(self, streams: "list[GatedStream]", probabilities: Floats, states: Floats) -> None:
        self._busy = False
        for place, stream in enumerate(streams):
            stream.ear.state = states[:, place : place + 1].copy()
            stream.judged(float(probabilities[place]))
            self._ready[stream] = None
        self._judge_next()


@dataclass(eq=False)
class GatedUtterance(Utterance):
    """Its `pcm` is not judged yet; the engine keeps what it was given. In samples."""

    replays: ClassVar[bool] = False
    gate: SpeechGate = field(default_factory=SpeechGate)
    judged: int = 0
    given: int = 0
    given_from: int = 0
    """In all that the stream gave."""
    heard: int = 0
    """Of the given, covered by the engine's events."""
    final_heard: int = 0
    """Of those, by Finals that do not end it."""
    told: int = 0
    """Of the judged, covered by what was told."""

    @property
    def coverable(self) -> int:
        """All that was judged, but what the engine has still to hear."""
        return max(self.told, self.judged - (self.given - self.heard))

    def timing(self, of_engine: Timing | None, final: bool) -> Timing | None:
        """Of an event told now that covers `told`: that of the engine, begun when the sound came to
        us; or, of an event without the engine, ours."""
        if self.arrivals is None:
            return None
        started, done = (of_engine.started, of_engine.done) if of_engine else (monotonic(),) * 2
        if final:
            timing = self.arrivals.final(started, done)
        else:
            covered = self.told - self.forgotten
            timing = self.arrivals.update(covered, covered, started, done)
        if of_engine is None:
            return timing
        return replace(of_engine, begun=min(timing.begun, of_engine.begun))


class GatedStream(QueuedStream[GatedUtterance]):
    """A `RecognizerStream` before that of the engine."""

    def __init__(self, hears: RecognizerStream, judge: Judge, options: StreamOptions) -> None:
        super().__init__("the gate", options, UtteranceQueue(GatedUtterance, timed=options.timing))
        self.ear = Ear()
        self._hears = hears
        self._judge = judge
        self._update = options.update_ms * SAMPLES_PER_MS
        self._asked: tuple[GatedUtterance, Pcm] | None = None
        """The window that is being judged."""
        self._splices = Splices()
        self.run(self._listen(), "gated stream")

    def changed(self) -> None:
        self._end_complete()
        self._judge.listen(self)

    def withdraw(self, utterance: GatedUtterance) -> None:
        if utterance.given:
            self._hears.cancel()

    async def close(self) -> None:
        self._judge.forget(self)
        await super().close()
        await self._hears.close()

    # --- what is judged ---

    def next_row(self) -> Floats | None:
        """The model's next input; None when it waits for one's answer, or there is no sound."""
        while not self.mailbox.closed and self._asked is None:
            utterance = next((u for u in self.queue if not u.finish_sent), None)
            if utterance is None or not self._take_window(utterance):
                return None
            assert self._asked is not None
            _, pcm = self._asked
            if (row := self.ear.take(np.pad(pcm, (0, WINDOW - len(pcm))))) is not None:
                return row
            self._place(0.0)
        return None

    def _take_window(self, utterance: GatedUtterance) -> bool:
        """False when there is none yet."""
        size = len(utterance.pcm)
        if size < 2 * WINDOW and not (utterance.state is State.FINISHED and size):
            return False
        self._asked = utterance, np.frombuffer(utterance.next_to_send(2 * WINDOW) or b"", np.int16)
        return True

    def judged(self, probability: float) -> None:
        """The answer to the last row."""
        if not self.mailbox.closed:
            self.ear.note(probability)
            self._place(probability)

    def _place(self, probability: float) -> None:
        assert self._asked is not None
        utterance, pcm = self._asked
        self._asked = None
        if utterance.state is State.CANCELLED:
            return
        utterance.judged += len(pcm)
        given = utterance.gate.window(pcm, probability)
        if not utterance.given:
            utterance.given_from = self._splices.given
        begin = utterance.start - utterance.forgotten
        at = begin + utterance.judged - sum(map(len, given))
        for piece in given:
            self._splices.give(at, len(piece))
            at += len(piece)
            utterance.given += len(piece)
            self._hears.feed(piece)
        self._tell_of_silence(utterance)
        self._end_complete()

    def _tell_of_silence(self, utterance: GatedUtterance) -> None:
        """Of several utterances under way only the oldest is told of, as their order is."""
        if utterance.gate.is_open or utterance is not self.queue.oldest:
            return
        if utterance.coverable - utterance.told >= self._update:
            self._show(utterance, replace(utterance.shown, timing=None))

    def _end_complete(self) -> None:
        """Those of which all is judged."""
        for utterance in self.queue:
            if utterance.finish_sent:
                continue
            judging = self._asked is not None and self._asked[0] is utterance
            if judging or utterance.pcm or utterance.next_to_send(WINDOW) is None:
                break
            if utterance.given:
                self._hears.finish()
            else:
                timing = utterance.timing(None, final=True)
                self.heard(utterance, Final("", utterance.audio_ms, timing=timing))

    # --- what the engine says ---

    async def _listen(self) -> None:
        try:
            async for event in self._hears.events():
                self._receive(event)
        except EngineError as error:
            self.mailbox.fail(error)

    def _receive(self, event: Partial | Final) -> None:
        utterance = self.queue.oldest
        if utterance is None or not utterance.given:
            return  # of one that was cancelled
        utterance.heard = utterance.final_heard + event.audio_ms * SAMPLES_PER_MS
        if isinstance(event, Partial):
            self._show(utterance, event)
            return
        words = tuple(self._splices.in_stream(word, RATE_IN) for word in event.words)
        all_of_it = utterance.forgotten + utterance.fed
        utterance.told = utterance.coverable if event.continues else all_of_it
        utterance.final_heard = utterance.heard
        self._splices.forget_before(utterance.given_from + utterance.heard)
        audio_ms = (utterance.told - utterance.forgotten) // SAMPLES_PER_MS
        timing = utterance.timing(event.timing, final=not event.continues)
        self.heard(utterance, replace(event, audio_ms=audio_ms, words=words, timing=timing))

    def _show(self, utterance: GatedUtterance, partial: Partial) -> None:
        utterance.told = utterance.coverable
        audio_ms = (utterance.told - utterance.forgotten) // SAMPLES_PER_MS
        timing = utterance.timing(partial.timing, final=False)
        self.heard(utterance, replace(partial, audio_ms=audio_ms, timing=timing))
