"""Streams of a sherpa-onnx model: batches chunks of audio and reports the words.

One thread owns it and calls `turn` repeatedly. A stream is due when the model has all the sound of
its next chunk; whoever is due goes into the next batch, ends of utterances first and files last.
While a batch runs, others become due, so batches grow with load.

Each utterance is a stream of the model of its own, since the state of one must not change the next.
At its end silence is fed, so that the model, which looks ahead, says the last words.

Greedy search only appends: the text grows and never changes.
"""

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, NamedTuple, Protocol

import numpy as np

from offhook.media.pcm import RATE_IN, Pcm
from offhook.pipeline.engines.sherpa.model import NOTHING, Hypothesis
from offhook.pipeline.speech.errors import AudioOverrun, EngineOverloaded
from offhook.pipeline.speech.recognizer import Final, Partial, StreamOptions, Timing, Word
from offhook.pipeline.speech.streams.languages import UNKNOWN

SAMPLES_PER_MS = RATE_IN // 1000
LARGEST_BATCH = 8
"""Chunks in a batch; more cost hardly less each and make the ends of utterances wait longer."""
MAX_WAITING = 180 * RATE_IN
"""Limit of a stream's samples not yet decoded; beyond it `feed` raises AudioOverrun."""
LONG_PIECES = 256
"""Word pieces, about a minute of speech, after which a Final comes at the next pause; its utterance
continues in the next Final."""
PAUSE_MS = 500
"""Audio without new words that counts as a pause."""
MAX_PIECES = 4 * LONG_PIECES
"""Word pieces after which a Final comes in any case."""
FILE_WAIT_S = 0.25
"""Maximum time in s that a file waits while others speak without a pause."""


class Model(Protocol):
    """Streams of a model; `model.SherpaStreams` implements it."""

    def open(self, language: str = "") -> Any: ...

    def feed(self, stream: Any, pcm: Pcm) -> None: ...

    def is_ready(self, stream: Any) -> bool: ...

    def decode(self, streams: Sequence[Any]) -> None: ...

    def hypothesis(self, stream: Any) -> Hypothesis: ...

    def reset(self, stream: Any) -> None: ...


@dataclass(eq=False)
class _Utterance:
    decoding: Any
    """The model's stream."""
    start_ms: int
    """When it begins in its speaker's audio."""
    fed: int = 0
    """Samples, without the silence at its end."""
    decoded: int = 0
    """Samples decoded or in the silence at its end."""
    ended: bool = False
    begun: float = 0.0
    """When the first sample arrived that is not decoded yet, in s."""
    hypothesis: Hypothesis = NOTHING
    final_ms: int = 0
    """Audio covered by Finals that did not end the utterance."""
    grown: int = 0
    """Samples decoded when the text grew last."""
    reset_ms: int = 0
    """When the model's times begin, in the utterance."""

    @property
    def waiting(self) -> int:
        return max(0, self.fed - self.decoded)


@dataclass(eq=False)
class _Stream:
    number: int
    live: bool
    timing: bool
    prompt: str
    language: str
    utterances: deque[_Utterance] = field(default_factory=deque)
    """Utterances without a Final, oldest first; only the last may be in progress."""
    samples: int = 0
    """Samples of the stream in utterances before the last one."""
    is_due: bool = False
    due: float = 0.0
    """When its due chunk became due, in s."""


class _Started(NamedTuple):
    """The times of a stream's part of a batch."""

    begun: float
    due: float


class SherpaEngine:
    """Audio streams in, recognition events out. Call all methods from one thread.

    `report(stream, event)` is called for every event. Times are seconds of time.monotonic().
    """

    def __init__(
        self,
        model: Model,
        chunk_ms: int,
        tail_ms: int,
        frame_ms: int,
        max_streams: int,
        max_files: int,
        report: Callable[[int, Partial | Final], None],
        largest_batch: int = LARGEST_BATCH,
    ) -> None:
        self._model = model
        self._chunk = chunk_ms * SAMPLES_PER_MS
        self._frame_ms = frame_ms
        self._silence = np.zeros(self._chunk + tail_ms * SAMPLES_PER_MS, np.int16)
        self._room = {True: max_streams, False: max_files}
        self._report = report
        self._largest = largest_batch
        self._streams: dict[int, _Stream] = {}
        self._count = 0
        self._ends: dict[int, _Stream] = {}
        """Streams with a due chunk, in the order in which they became due; these are live and at
        the end of an utterance."""
        self._live: dict[int, _Stream] = {}
        self._files: dict[int, _Stream] = {}
        self.batches = self.chunks = 0
        """How many were decoded."""

    # --- streams ---

    def open(self, options: StreamOptions, prompt: str = "", language: str = UNKNOWN) -> int:
        """Opens a stream and returns its number. `prompt` is the language that the model is told,
        `language` that of the Finals. Raises EngineOverloaded."""
        if not self._room[options.live]:
            raise EngineOverloaded(
                f"all {'streams' if options.live else 'files'} that there is room for are open"
            )
        self._room[options.live] -= 1
        self._count += 1
        stream = _Stream(self._count, options.live, options.timing, prompt, language)
        self._streams[stream.number] = stream
        return stream.number

    def feed(self, number: int, pcm: Pcm, now: float) -> None:
        """Adds 16 kHz samples that arrived at `now`. Raises AudioOverrun, adding none."""
        stream = self._streams[number]
        waiting = sum(utterance.waiting for utterance in stream.utterances)
        if waiting + len(pcm) > MAX_WAITING:
            raise AudioOverrun(f"{waiting // RATE_IN} s of audio are pending")
        if not len(pcm):
            return
        utterance = self._current(stream)
        self._model.feed(utterance.decoding, pcm)
        utterance.fed += len(pcm)
        utterance.begun = utterance.begun or now
        self._consider(stream, now)

    def finish(self, number: int, now: float) -> None:
        """Ends the utterance; its Final follows."""
        stream = self._streams[number]
        utterance = self._current(stream)
        utterance.ended = True
        stream.samples += utterance.fed
        if utterance.fed:
            self._model.feed(utterance.decoding, self._silence)
        if stream.is_due and stream.utterances[0] is utterance:
            self._leave_queue(stream)
        self._consider(stream, now)

    def cancel(self, number: int) -> None:
        """Discards the utterance in progress, if any; no Final follows."""
        stream = self._streams[number]
        if not stream.utterances or stream.utterances[-1].ended:
            return
        stream.samples += stream.utterances.pop().fed
        if not stream.utterances:
            self._leave_queue(stream)

    def close(self, number: int) -> None:
        stream = self._streams.pop(number, None)
        if stream is not None:
            self._leave_queue(stream)
            self._room[stream.live] += 1

    def _current(self, stream: _Stream) -> _Utterance:
        """Returns the utterance in progress, a new one if there is none."""
        if not stream.utterances or stream.utterances[-1].ended:
            decoding = self._model.open(stream.prompt)
            stream.utterances.append(_Utterance(decoding, stream.samples // SAMPLES_PER_MS))
        return stream.utterances[-1]

    # --- what is due ---

    def _consider(self, stream: _Stream, now: float) -> None:
        """Queues the stream's next chunk if it is due and completes ended utterances."""
        while not stream.is_due and stream.utterances:
            utterance = stream.utterances[0]
            if self._model.is_ready(utterance.decoding):
                stream.is_due, stream.due = True, now
                self._queue(stream)[stream.number] = stream
            elif utterance.ended:  # it is shorter than what the model looks ahead
                stream.utterances.popleft()
                self._report(stream.number, self._final(stream, utterance, None))
            else:
                break

    def _queue(self, stream: _Stream) -> dict[int, _Stream]:
        """Returns the queue in which the stream waits with its oldest utterance."""
        if not stream.live:
            return self._files
        return self._ends if stream.utterances[0].ended else self._live

    def _leave_queue(self, stream: _Stream) -> None:
        for queue in (self._ends, self._live, self._files):
            queue.pop(stream.number, None)
        stream.is_due = False

    def timer(self) -> float | None:
        """Returns when `turn` has work without further input, in s; None for never."""
        return None

    def _next(self, now: float) -> list[_Stream]:
        """Removes the streams of the next batch from their queues."""
        queues = [self._ends, self._live]
        oldest_file = next(iter(self._files.values()), None)
        if oldest_file and (not any(queues) or now > oldest_file.due + FILE_WAIT_S):
            queues = [self._files]
        streams = [stream for queue in queues for stream in queue.values()]
        streams = list(islice(streams, self._largest))
        for stream in streams:
            self._leave_queue(stream)
        return streams

    # --- a batch ---

    def turn(self, clock: Callable[[], float]) -> bool:
        """Decodes the next batch and returns whether there was one."""
        started = clock()
        streams = self._next(started)
        if not streams:
            return False
        works = [(stream, self._start(stream, started)) for stream in streams]
        self._model.decode([stream.utterances[0].decoding for stream in streams])
        self.batches += 1
        self.chunks += len(streams)
        now = clock()
        for stream, work in works:
            timing = Timing(work.begun, work.due, started, now) if stream.timing else None
            self._collect(stream, timing)
            self._consider(stream, now)
        return True

    def _start(self, stream: _Stream, now: float) -> _Started:
        utterance = stream.utterances[0]
        work = _Started(utterance.begun, stream.due)
        utterance.decoded += self._chunk
        utterance.begun = now if utterance.waiting else 0.0
        return work

    def _collect(self, stream: _Stream, timing: Timing | None) -> None:
        utterance = stream.utterances[0]
        before = len(utterance.hypothesis.pieces)
        utterance.hypothesis = self._model.hypothesis(utterance.decoding)
        pieces = len(utterance.hypothesis.pieces)
        if pieces > before:
            utterance.grown = utterance.decoded
        if utterance.ended and not self._model.is_ready(utterance.decoding):
            stream.utterances.popleft()
            self._report(stream.number, self._final(stream, utterance, timing))
            return
        pauses = utterance.decoded - utterance.grown >= PAUSE_MS * SAMPLES_PER_MS
        if pieces > MAX_PIECES or (pieces > LONG_PIECES and pauses):
            self._report(stream.number, self._cut(stream, utterance, timing))
        if stream.live:
            heard = utterance.hypothesis
            covered_ms = self._covered_ms(utterance)
            partial = Partial(heard.text, heard.stable_chars, covered_ms, timing)
            self._report(stream.number, partial)

    # --- its words ---

    def _covered_ms(self, utterance: _Utterance) -> int:
        """Returns the audio in ms that the text covers since the last Final."""
        return min(utterance.fed, utterance.decoded) // SAMPLES_PER_MS - utterance.final_ms

    def _final(self, stream: _Stream, utterance: _Utterance, timing: Timing | None) -> Final:
        """Returns the last Final of the utterance."""
        audio_ms = utterance.fed // SAMPLES_PER_MS - utterance.final_ms
        text, words = utterance.hypothesis.text, self._words(utterance)
        return Final(text, audio_ms, words, stream.language, timing=timing)

    def _cut(self, stream: _Stream, utterance: _Utterance, timing: Timing | None) -> Final:
        """Returns a Final of the text so far; the rest continues in the next one."""
        audio_ms = self._covered_ms(utterance)
        text, words = utterance.hypothesis.text, self._words(utterance)
        final = Final(text, audio_ms, words, stream.language, continues=True, timing=timing)
        self._model.reset(utterance.decoding)
        utterance.hypothesis = NOTHING
        utterance.final_ms += audio_ms
        utterance.reset_ms = utterance.decoded // SAMPLES_PER_MS
        return final

    def _words(self, utterance: _Utterance) -> tuple[Word, ...]:
        """Returns the words of the hypothesis, times within the sound that was fed."""
        begin = utterance.start_ms + utterance.reset_ms
        end = utterance.start_ms + utterance.fed // SAMPLES_PER_MS
        return tuple(
            Word(w.text, min(begin + w.start_ms, end), min(begin + w.end_ms, end))
            for w in utterance.hypothesis.words(self._frame_ms)
        )
