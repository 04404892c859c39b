"""From the sound of a stream to its events: who hears it, who has the last word, and when its words
were said.

One engine hears every utterance as it is spoken, and partials are its texts. If there is a second
one, a larger model, an utterance that has ended goes to it as a whole, with what the first made of
it as a draft: where the two agree, one prefill verifies the text, and only where they differ are
there decode steps. (Speculative decoding, Leviathan et al. 2022, with a draft that was there
anyway.) Last, the words are aligned with the sound if the stream wants their times.

Events of a stream come in the order of its utterances, however long each of these steps takes.
"""

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import chain

import numpy as np
from loguru import logger

from offhook.media.pcm import RATE_IN, Pcm
from offhook.pipeline.engine.asr.engine import AsrEngine, TextUpdate
from offhook.pipeline.engine.asr.scheduler import FIRST_UPDATE_MS
from offhook.pipeline.engine.asr.windows import MAX_PENDING
from offhook.pipeline.models.qwen3_asr.alignment import LANGUAGES
from offhook.pipeline.speech.recognizer import (
    DEFAULT_OPTIONS,
    EngineFull,
    Final,
    NotPossible,
    Partial,
    StreamOptions,
    Timing,
    Word,
)
from offhook.pipeline.speech.streams.languages import CODES, NAMES, UNKNOWN
from offhook.pipeline.speech.timing import Arrivals

MAX_KEPT = MAX_PENDING
"""Samples of an utterance that are kept for the second engine and for the times of its words: what
an engine takes in one piece, and as much as a caller says without a pause. A longer utterance has
the first engine's text and no times."""

Align = Callable[[Pcm, str, str, Callable[[Sequence[Word]], None]], None]
"""(sound, text, ISO 639 code, told): find the words' times, in ms of that sound, without waiting;
`told` is called with them later, by the thread that calls everything here."""


@dataclass(eq=False)
class _Utterance:
    """One utterance until its Final is told."""

    start: int
    """In samples of the stream."""
    sound: list[Pcm] | None
    """What was fed, where somebody needs it and it is not too much."""
    arrivals: Arrivals | None
    """For a `Timing`, where one is asked for."""
    samples: int = 0
    final: Final | None = None

    def keep(self, pcm: Pcm, came: float) -> None:
        self.samples += len(pcm)
        if self.arrivals is not None:
            self.arrivals.came(len(pcm), came)
        if self.samples > MAX_KEPT:
            self.sound = None
        elif self.sound is not None:
            self.sound.append(pcm)


@dataclass(eq=False)
class _Stream:
    number: int
    options: StreamOptions
    language: str
    """In English; empty: what the model finds."""
    words: bool
    """Whether times of words are wanted, and to be had in the language."""
    keeps: bool
    """Whether its sound is kept."""
    current: _Utterance = field(init=False)
    ended: deque[_Utterance] = field(default_factory=deque)
    """Not told yet, oldest first."""
    unheard: deque[_Utterance] = field(default_factory=deque)
    """Of those: without the first engine's final text."""
    partial: tuple[_Utterance, Partial] | None = None
    """The newest, held back while an utterance before it has not been told."""

    def __post_init__(self) -> None:
        self.current = self.utterance(0)

    def begin(self) -> None:
        """The next utterance."""
        self.current = self.utterance(self.current.start + self.current.samples)

    def utterance(self, start: int) -> _Utterance:
        arrivals = Arrivals() if self.options.timing else None
        return _Utterance(start, [] if self.keeps else None, arrivals)


@dataclass(frozen=True)
class _Revision:
    """An utterance that the second engine is to hear."""

    stream: _Stream
    utterance: _Utterance
    said: TextUpdate
    """By the first engine."""


class Recognition:
    """Streams in, events out. All methods are to be called by one thread, and none waits.

    `tell(stream, event)` is called for every event; `first` and `second` make the engines, given
    whom to tell. Without `align` no stream is opened that wants words.
    """

    def __init__(
        self,
        tell: Callable[[int, Partial | Final], None],
        first: Callable[[Callable[[TextUpdate], None]], AsrEngine],
        second: Callable[[Callable[[TextUpdate], None]], AsrEngine] | None = None,
        align: Align | None = None,
    ) -> None:
        self._tell = tell
        self._first = first(self._said)
        self._second = second(self._revised) if second else None
        self._align = align
        self._streams: dict[int, _Stream] = {}
        self._to_revise: deque[_Revision] = deque()
        """For whom the second engine has no room yet."""
        self._revising: dict[int, _Revision] = {}
        """By the number of the second engine's stream."""
        self._clock: Callable[[], float] = lambda: 0.0
        """That of the last `turn`."""

    # --- what a stream says ---

    def open(self, options: StreamOptions = DEFAULT_OPTIONS) -> int:
        """A new stream. Raises NotPossible when it cannot be heard as asked, and EngineFull."""
        if options.words and self._align is None:
            raise NotPossible(
                "for the times of words an aligner is needed: set [asr] aligner, or "
                "--aligner, to Qwen/Qwen3-ForcedAligner-0.6B or a folder with it"
            )
        code = options.language_code
        if code is not None and code not in NAMES:
            known = ", ".join(sorted(NAMES))
            raise NotPossible(f"Qwen3-ASR does not know {code!r}; it knows {known}")
        language = NAMES[code] if code else ""
        number = self._first.open(options.update_ms, options.context, language, options.live)
        words = options.words and (code is None or code in LANGUAGES)
        keeps = words or self._second is not None
        self._streams[number] = _Stream(number, options, language, words, keeps)
        return number

    def feed(self, number: int, pcm: Pcm, came: float) -> None:
        """Sound that came at this time. Raises AudioOverrun."""
        self._first.feed(number, pcm, came)
        self._streams[number].current.keep(pcm, came)

    def finish(self, number: int, came: float) -> None:
        stream = self._streams[number]
        if stream.current.arrivals is not None:
            stream.current.arrivals.ended(came)
        stream.ended.append(stream.current)
        stream.unheard.append(stream.current)
        stream.begin()
        self._first.finish(number, came)

    def cancel(self, number: int) -> None:
        """Drop the utterance in progress, if there is one."""
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
        """A batch of each engine; whether there was one. The second's come first: for a final text
        somebody waits."""
        self._clock = clock
        revised = False
        if self._second is not None:
            self._revise(clock())
            revised = self._second.turn(clock)
        return self._first.turn(clock) or revised

    def timer(self) -> float | None:
        """When `turn` may have something to do without anything new being fed."""
        timers = [e.timer() for e in (self._first, self._second) if e is not None]
        return min((t for t in timers if t is not None), default=None)

    # --- what the engines say ---

    def _said(self, said: TextUpdate) -> None:
        stream = self._streams.get(said.stream)
        if stream is None:
            return
        if not said.final:
            heard = said.heard
            of = stream.unheard[0] if stream.unheard else stream.current
            timing = self._timing(stream, of, said)
            stream.partial = of, Partial(heard.text, heard.stable_chars, heard.audio_ms, timing)
            self._emit_partial(stream)
            return
        utterance = stream.unheard.popleft()
        if self._second is None or not utterance.samples:
            self._settle(stream, utterance, said, said.started)
        elif utterance.sound is None:
            seconds = utterance.samples // RATE_IN
            logger.warning("an utterance of {} s keeps the first model's text", seconds)
            self._settle(stream, utterance, said, said.started)
        else:
            self._to_revise.append(_Revision(stream, utterance, said))

    def _revise(self, now: float) -> None:
        """Give the second engine what it has room for."""
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
            except EngineFull:
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

    # --- what the stream is told ---

    def _timing(self, stream: _Stream, utterance: _Utterance, said: TextUpdate) -> Timing | None:
        """Of a partial."""
        if (arrivals := utterance.arrivals) is None:
            return None
        wait_ms = stream.options.update_ms if arrivals.covered else FIRST_UPDATE_MS
        needs = arrivals.covered + wait_ms * RATE_IN // 1000
        return arrivals.update(said.samples, needs, said.started, said.done)

    def _settle(
        self, stream: _Stream, utterance: _Utterance, said: TextUpdate, started: float
    ) -> None:
        """The text is final, for which the first batch began at `started`; its words may need their
        times yet."""
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
            return  # closed meanwhile
        while stream.ended and stream.ended[0].final is not None:
            self._tell(stream.number, stream.ended[0].final)
            told = stream.ended.popleft()
            if stream.partial is not None and stream.partial[0] is told:
                stream.partial = None
        self._emit_partial(stream)

    def _emit_partial(self, stream: _Stream) -> None:
        """Now, or when the utterances before it are told."""
        if stream.partial is None:
            return
        utterance, partial = stream.partial
        if next(chain(stream.ended, (stream.current,))) is utterance:
            self._tell(stream.number, partial)
            stream.partial = None
