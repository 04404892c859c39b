"""A `Recognizer` whose engine gets only audio with speech, for streams that request it.

The engine then spends no time on silence and noise and recognizes no words in them. Omitted audio
is answered at once: by a `Partial` that covers it without new words, or an empty `Final` for an
utterance without speech. Times refer to the whole audio.

One batched Silero VAD serves all streams of the process; it is loaded when the first stream
requests it.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from time import monotonic
from typing import ClassVar

import numpy as np

from offhook.media.pcm import RATE_IN, Pcm
from offhook.pipeline.speech.engines import no_aligner
from offhook.pipeline.speech.errors import EngineError, UnsupportedRequest
from offhook.pipeline.speech.recognizer import (
    DEFAULT_OPTIONS,
    AlignsText,
    Final,
    Loss,
    Partial,
    Recognizer,
    RecognizerStream,
    StreamOptions,
    Timing,
    TurnAnswers,
    Word,
)
from offhook.pipeline.speech.streams.queued_stream_io import QueuedStream
from offhook.pipeline.speech.streams.speech_gate import SpeechGate, Splices
from offhook.pipeline.speech.streams.utterance_queue import (
    SAMPLES_PER_MS,
    Utterance,
    UtteranceQueue,
    UtteranceState,
)
from offhook.pipeline.speech.vad.vad import WINDOW
from offhook.pipeline.speech.vad.vad_io import VadBatch


class GatedRecognizer(Recognizer):
    """Wraps `engine`; streams without `StreamOptions.gate` use it directly."""

    def __init__(self, engine: Recognizer) -> None:
        self.name = engine.name
        self.engine = engine
        self._vad: VadBatch | None = None

    @property
    def languages(self) -> tuple[str, ...]:
        """The engine's languages as BCP 47 tags; empty: unknown."""
        return self.engine.languages

    @property
    def max_streams(self) -> int | None:
        """Streams that the engine's device follows in real time; None: unknown."""
        return self.engine.max_streams

    @property
    def max_open_streams(self) -> int | None:
        """Streams for which the engine has memory; None: unknown."""
        return self.engine.max_open_streams

    @property
    def turns(self) -> TurnAnswers | None:
        """What answers whether speakers' turns are over; None: nothing does."""
        return self.engine.turns

    @property
    def losses(self) -> Mapping[Loss, int]:
        return self.engine.losses

    async def start(self) -> None:
        await self.engine.start()
        self.name = self.engine.name

    async def align(self, pcm: Pcm, text: str, language: str) -> tuple[Word, ...]:
        """Returns the words of a known text with their times; see `AlignsText`."""
        if not isinstance(self.engine, AlignsText):
            raise UnsupportedRequest(no_aligner())
        return await self.engine.align(pcm, text, language)

    async def open(self, options: StreamOptions = DEFAULT_OPTIONS) -> RecognizerStream:
        """Opens a stream. Raises EngineError, also if the VAD model is missing."""
        if not options.gate:
            return await self.engine.open(options)
        if self._vad is None:
            try:
                self._vad = VadBatch()
            except (OSError, ValueError) as error:
                raise EngineError(f"gate needs pipecat-ai here ({error})") from error
        stream = await self.engine.open(replace(options, gate=False))
        return GatedStream(stream, self._vad, options)

    async def close(self) -> None:
        await self.engine.close()
        if self._vad is not None:
            self._vad.close()


@dataclass(eq=False)
class GatedUtterance(Utterance):
    """An utterance whose `pcm` awaits the VAD; the engine keeps what it was given. Counts are in
    samples."""

    replays: ClassVar[bool] = False
    gate: SpeechGate = field(default_factory=SpeechGate)
    judged: int = 0
    given: int = 0
    given_from: int = 0
    """Start in the audio given to the engine by this stream."""
    heard: int = 0
    """Given samples covered by the engine's events."""
    final_heard: int = 0
    """Given samples covered by Finals that do not end the utterance."""
    told: int = 0
    """Processed samples covered by emitted events."""

    @property
    def coverable(self) -> int:
        """Samples that an event may cover: all processed ones except those pending in the
        engine."""
        return max(self.told, self.judged - (self.given - self.heard))

    def timing(self, of_engine: Timing | None, final: bool) -> Timing | None:
        """Returns the timing of an event emitted now that covers `told` samples: the engine's,
        starting at the arrival of the audio, or our own for an event without the engine."""
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
    """A `RecognizerStream` in front of the engine's."""

    def __init__(self, hears: RecognizerStream, vad: VadBatch, options: StreamOptions) -> None:
        super().__init__("the gate", options, UtteranceQueue(GatedUtterance, timed=options.timing))
        self._hears = hears
        self._vad = vad
        vad.watch(self)
        self._update = options.update_ms * SAMPLES_PER_MS
        self._asked: tuple[GatedUtterance, Pcm] | None = None
        """The window being processed by the VAD."""
        self._splices = Splices()
        self.run(self._listen(), "gated stream")

    def changed(self) -> None:
        self._end_complete()
        self._vad.ready(self)
        self._vad.judge()

    def withdraw(self, utterance: GatedUtterance) -> None:
        if utterance.given:
            self._hears.cancel()

    async def close(self) -> None:
        self._vad.forget(self)
        await super().close()
        await self._hears.close()

    # --- what is judged ---

    def next_window(self) -> Pcm | None:
        utterance = next((u for u in self.queue if not u.finish_sent), None)
        if utterance is None:
            return None
        size = len(utterance.pcm)
        if size < 2 * WINDOW and not (utterance.state is UtteranceState.FINISHED and size):
            return None
        pcm = np.frombuffer(utterance.next_to_send(2 * WINDOW) or b"", np.int16)
        self._asked = utterance, pcm
        self._vad.ready(self)
        return np.pad(pcm, (0, WINDOW - len(pcm)))

    def receive_probability(self, probability: float, level: float) -> None:
        assert self._asked is not None
        utterance, pcm = self._asked
        self._asked = None
        if utterance.state is UtteranceState.CANCELLED:
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
        self._emit_silence(utterance)
        self._end_complete()

    def _emit_silence(self, utterance: GatedUtterance) -> None:
        """Emits only for the oldest utterance, to keep their order."""
        if utterance.gate.is_open or utterance is not self.queue.oldest:
            return
        if utterance.coverable - utterance.told >= self._update:
            self._show(utterance, replace(utterance.shown, timing=None))

    def _end_complete(self) -> None:
        """Ends the utterances that are completely processed."""
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
                self.emit(utterance, Final("", utterance.audio_ms, timing=timing))

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
            return  # of a cancelled utterance
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
        self.emit(utterance, replace(event, audio_ms=audio_ms, words=words, timing=timing))

    def _show(self, utterance: GatedUtterance, partial: Partial) -> None:
        utterance.told = utterance.coverable
        audio_ms = (utterance.told - utterance.forgotten) // SAMPLES_PER_MS
        timing = utterance.timing(partial.timing, final=False)
        self.emit(utterance, replace(partial, audio_ms=audio_ms, timing=timing))
