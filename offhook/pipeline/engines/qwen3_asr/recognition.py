"""Turns a stream's audio into its events with one or two models and a forced aligner.

One engine recognizes every utterance while it is spoken and produces the partials. An optional
second, larger model gets the ended utterance as a whole with the first model's text as a draft:
where they agree, one prefill verifies the text; decode steps are needed only where they differ
(speculative decoding, Leviathan et al. 2022, with a draft that exists anyway). Finally the words
are aligned with the audio if the stream wants word times.

A stream's events come in the order of its utterances, however long each step takes.
"""

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import chain

import numpy as np
from loguru import logger

from offhook.media.pcm import RATE_IN, Pcm
from offhook.pipeline.engines.qwen3_asr.engine import AsrEngine, TextUpdate
from offhook.pipeline.engines.qwen3_asr.model.alignment import LANGUAGES
from offhook.pipeline.engines.qwen3_asr.scheduler import FIRST_UPDATE_MS
from offhook.pipeline.engines.qwen3_asr.windows import MAX_PENDING
from offhook.pipeline.speech.errors import EngineOverloaded, UnsupportedRequest
from offhook.pipeline.speech.recognizer import (
    DEFAULT_OPTIONS,
    Final,
    Partial,
    StreamOptions,
    Timing,
    Word,
)
from offhook.pipeline.speech.streams.languages import CODES, NAMES, UNKNOWN
from offhook.pipeline.speech.timing import Arrivals

MAX_KEPT = MAX_PENDING
"""Samples of an utterance kept for the second engine and for word alignment: the largest input of
an engine, longer than callers talk without a pause. A longer utterance has the first engine's text
and no word times."""

Align = Callable[[Pcm, str, str, Callable[[Sequence[Word]], None]], None]
"""Called with (pcm, text, ISO 639 code, callback); finds word times in ms of that audio without
blocking, and later calls `callback` in the inference thread."""


@dataclass(eq=False)
class _Utterance:
    """An utterance whose final event has not been emitted."""

    start: int
    """Start in samples of the stream."""
    sound: list[Pcm] | None
    """The utterance's audio, if it is needed and not too long."""
    arrivals: Arrivals | None
    """Arrival times for a `Timing`, if requested."""
    samples: int = 0
    final: Final | None = None

    def keep(self, pcm: Pcm, arrived_at: float) -> None:
        self.samples += len(pcm)
        if self.arrivals is not None:
            self.arrivals.add(len(pcm), arrived_at)
        if self.samples > MAX_KEPT:
            self.sound = None
        elif self.sound is not None:
            self.sound.append(pcm)


@dataclass(eq=False)
class _Stream:
    number: int
    options: StreamOptions
    language: str
    """Language name in English; empty for automatic detection."""
    words: bool
    """Whether word times are requested and available in the language."""
    keeps: bool
    """Whether the audio is kept."""
    current: _Utterance = field(init=False)
    ended: deque[_Utterance] = field(default_factory=deque)
    """Ended utterances whose final has not been emitted, oldest first."""
    unheard: deque[_Utterance] = field(default_factory=deque)
    """Those that still lack the first engine's final text."""
    partial: tuple[_Utterance, Partial] | None = None
    """The newest partial, held back until earlier utterances have been emitted."""

    def __post_init__(self) -> None:
        self.current = self.utterance(0)

    def begin(self) -> None:
        """Starts the next utterance."""
        self.current = self.utterance(self.current.start + self.current.samples)

    def utterance(self, start: int) -> _Utterance:
        arrivals = Arrivals() if self.options.timing else None
        return _Utterance(start, [] if self.keeps else None, arrivals)


@dataclass(frozen=True)
class _Revision:
    """An utterance for the second engine."""

    stream: _Stream
    utterance: _Utterance
    said: TextUpdate
    """The first engine's text."""


class Recognition:
    """Audio streams in, recognition events out. Call all methods from one thread; none blocks.

    `tell(stream, event)` is called for every event. `first` and `second` build the engines from a
    callback. Without `align`, opening a stream with word times fails.
    """

    def __init__(
        self,
        tell: Callable[[int, Partial | Final], None],
        first: Callable[[Callable[[TextUpdate], None]], AsrEngine],
        second: Callable[[Callable[[TextUpdate], None]], AsrEngine] | None = None,
        align: Align | None = None,
    ) -> None:
        self._tell = tell
        self._first = first(self._receive_update)
        self._second = second(self._revised) if second else None
        self._align = align
        self._streams: dict[int, _Stream] = {}
        self._to_revise: deque[_Revision] = deque()
        """Utterances for which the second engine has no free stream yet."""
        self._revising: dict[int, _Revision] = {}
        """Running revisions by the second engine's stream number."""
        self._clock: Callable[[], float] = lambda: 0.0
        """The clock of the last `turn`."""

    # --- streams ---

    def open(self, options: StreamOptions = DEFAULT_OPTIONS) -> int:
        """Opens a stream and returns its number. Raises UnsupportedRequest or EngineOverloaded."""
        if options.words and self._align is None:
            raise UnsupportedRequest(
                "for the times of words an aligner is needed: set [asr] aligner, or "
                "--aligner, to Qwen/Qwen3-ForcedAligner-0.6B or a folder with it"
            )
        code = options.language_code
        if code is not None and code not in NAMES:
            known = ", ".join(sorted(NAMES))
            raise UnsupportedRequest(f"Qwen3-ASR does not know {code!r}; it knows {known}")
        language = NAMES[code] if code else ""
        number = self._first.open(options.update_ms, options.context, language, options.live)
        words = options.words and (code is None or code in LANGUAGES)
        keeps = words or self._second is not None
        self._streams[number] = _Stream(number, options, language, words, keeps)
        return number

    def feed(self, number: int, pcm: Pcm, arrived_at: float) -> None:
        """Adds 16 kHz samples that arrived at this time (monotonic s). Raises AudioOverrun."""
        self._first.feed(number, pcm, arrived_at)
        self._streams[number].current.keep(pcm, arrived_at)

    def finish(self, number: int, arrived_at: float) -> None:
        stream = self._streams[number]
        if stream.current.arrivals is not None:
            stream.current.arrivals.ended(arrived_at)
        stream.ended.append(stream.current)
        stream.unheard.append(stream.current)
        stream.begin()
        self._first.finish(number, arrived_at)

    def cancel(self, number: int) -> None:
        """Discards the utterance in progress, if any."""
        stream = self._streams[number]
        if not stream.current.samples:
            return
        if stream.partial is not None and stream.partial[0] is stream.current:
            stream.partial = None
        stream.begin()
        self._first.cancel(number)

    def close(self, number: int) -> None:
        if self._streams.pop(number, None) is None:
            return
        self._first.close(number)
        if self._second is not None:
            self._to_revise = deque(r for r in self._to_revise if r.stream.number != number)
            for second, revision in tuple(self._revising.items()):
                if revision.stream.number == number:
                    del self._revising[second]
                    self._second.close(second)

    # --- batches ---

    def turn(self, clock: Callable[[], float]) -> bool:
        """Runs a batch of each engine and returns whether there was one. The second engine goes
        first, because its texts are final and awaited."""
        self._clock = clock
        revised = False
        if self._second is not None:
            self._revise(clock())
            revised = self._second.turn(clock)
        return self._first.turn(clock) or revised

    def timer(self) -> float | None:
        """Returns when `turn` may have work without further input, in s; None for never."""
        timers = [e.timer() for e in (self._first, self._second) if e is not None]
        return min((t for t in timers if t is not None), default=None)

    # --- results of the engines ---

    def _receive_update(self, said: TextUpdate) -> None:
        stream = self._streams.get(said.stream)
        if stream is None:
            return
        if not said.final:
            heard = said.heard
            of = stream.unheard[0] if stream.unheard else stream.current
            timing = self._timing(stream, of, said)
            # The second engine may write anything: nothing of the first is sure to stay.
            stable = heard.stable_chars if self._second is None else 0
            stream.partial = of, Partial(heard.text, stable, heard.audio_ms, timing)
            self._emit_partial(stream)
            return
        utterance = stream.unheard.popleft()
        if self._second is None or not utterance.samples:
            self._settle(stream, utterance, said, said.started)
        elif utterance.sound is None:
            seconds = utterance.samples // RATE_IN
            logger.warning(
                "an utterance of {} s keeps the first model's text",
                seconds,
            )
            self._settle(stream, utterance, said, said.started)
        else:
            self._to_revise.append(_Revision(stream, utterance, said))

    def _revise(self, now: float) -> None:
        """Starts as many waiting revisions as the second engine has streams for."""
        assert self._second is not None
        while self._to_revise:
            revision = self._to_revise[0]
            stream, options = revision.stream, revision.stream.options
            try:
                number = self._second.open(
                    context=options.context,
                    language=stream.language,
                    live=options.live,
                    guess=revision.said.tokens,
                )
            except EngineOverloaded:
                return
            self._to_revise.popleft()
            self._revising[number] = revision
            for pcm in revision.utterance.sound or ():
                self._second.feed(number, pcm, now)
            self._second.finish(number, now)

    def _revised(self, said: TextUpdate) -> None:
        if said.final and (revision := self._revising.pop(said.stream, None)):
            assert self._second is not None
            self._second.close(said.stream)
            self._settle(revision.stream, revision.utterance, said, revision.said.started)

    # --- events of a stream ---

    def _timing(self, stream: _Stream, utterance: _Utterance, said: TextUpdate) -> Timing | None:
        """Returns the timing of a partial."""
        if (arrivals := utterance.arrivals) is None:
            return None
        wait_ms = stream.options.update_ms if arrivals.covered else FIRST_UPDATE_MS
        needs = arrivals.covered + wait_ms * RATE_IN // 1000
        return arrivals.update(said.samples, needs, said.started, said.done)

    def _settle(
        self, stream: _Stream, utterance: _Utterance, said: TextUpdate, started: float
    ) -> None:
        """Handles a final text whose first batch began at `started`; word times may still
        follow."""
        heard, arrivals = said.heard, utterance.arrivals
        code = CODES.get(heard.language, UNKNOWN)
        sound, utterance.sound = utterance.sound, None

        def deliver(words: Sequence[Word], done: float) -> None:
            before = utterance.start * 1000 // RATE_IN
            placed = tuple(Word(w.text, before + w.start_ms, before + w.end_ms) for w in words)
            timing = arrivals.final(started, done) if arrivals is not None else None
            utterance.final = Final(heard.text, heard.audio_ms, placed, code, timing=timing)
            self._emit_finals(stream)

        if stream.words and sound and heard.text and code in LANGUAGES:
            assert self._align is not None
            whole = np.concatenate(sound)
            self._align(whole, heard.text, code, lambda words: deliver(words, self._clock()))
        else:
            deliver((), said.done)

    def _emit_finals(self, stream: _Stream) -> None:
        if stream.number not in self._streams:
            return  # closed in the meantime
        while stream.ended and stream.ended[0].final is not None:
            self._tell(stream.number, stream.ended[0].final)
            told = stream.ended.popleft()
            if stream.partial is not None and stream.partial[0] is told:
                stream.partial = None
        self._emit_partial(stream)

    def _emit_partial(self, stream: _Stream) -> None:
        """Emits the newest partial as soon as earlier utterances have been emitted."""
        if stream.partial is None:
            return
        utterance, partial = stream.partial
        if next(chain(stream.ended, (stream.current,))) is utterance:
            self._tell(stream.number, partial)
            stream.partial = None
