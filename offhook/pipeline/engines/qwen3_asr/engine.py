"""The recognition engine, between the streams, the scheduler and the model runner.

One thread owns it and calls `turn` repeatedly. A turn runs the batch of most urgent updates through
the model: mel, encoder, prefill with the previous hypothesis as a draft, and decode steps until
every text has ended. Each stream's result is emitted as soon as it is known.
"""

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from offhook.media.pcm import RATE_IN, Pcm
from offhook.pipeline.engines.qwen3_asr.hypothesis import Hypothesis, HypothesisUpdate
from offhook.pipeline.engines.qwen3_asr.passes import (
    SECOND_SAMPLES,
    Pass,
    Second,
    Span,
    Stem,
    Verdict,
)
from offhook.pipeline.engines.qwen3_asr.scheduler import (
    DECODE_STEPS,
    Cost,
    Job,
    Scheduler,
    StreamState,
)
from offhook.pipeline.engines.qwen3_asr.windows import (
    HOP,
    MAX_PENDING,
    SECOND_FRAMES,
    WINDOW_S,
    WINDOW_TOKENS,
    AudioStep,
    Windows,
    WindowStep,
)
from offhook.pipeline.engines.shared.pages import OutOfPages, Pages
from offhook.pipeline.speech.errors import AudioOverrun
from offhook.pipeline.speech.streams.transcript import most_tokens, repeats

FILE_STEPS = 2
"""Decode steps of a batch that holds only files, while a caller is speaking."""
MIN_SAMPLES = 8000
"""Minimum input in samples (0.5 s). Shorter utterances are zero-padded, as in the official
package."""
WINDOWS_TOGETHER = 2
"""Windows of one stream that pass through mel and stem together. The runner keeps RING_S seconds,
while one update may cover a minute, e.g. when an utterance is recognized again."""


class Tokenizer(Protocol):
    """The part of `shared.qwen3.tokenizer.Tokenizer` that the engine uses."""

    im_start: int
    im_end: int
    audio_start: int
    audio_end: int
    asr_text: int

    def encode(self, text: str) -> list[int]: ...

    def decode(self, ids: Sequence[int]) -> str: ...


class AsrRunner(Protocol):
    """The model runner's interface; `runner.Runner` implements it."""

    eos_ids: frozenset[int]

    def assign(self, slot: int, pages: Sequence[int]) -> None: ...

    def mel(self, passes: Sequence[Pass]) -> NDArray[np.generic]: ...

    def encode(self, passes: Sequence[Pass]) -> None: ...

    def prefill(self, passes: Sequence[Pass]) -> Callable[[], list[Verdict]]: ...

    def decode(self, slots: Sequence[int]) -> Callable[[], list[int]]: ...


class TextUpdate(NamedTuple):
    """A new text of a stream; `final` marks the last one of the utterance."""

    stream: int
    heard: HypothesisUpdate
    final: bool
    tokens: Sequence[int]
    """Token ids of the header and the text as generated, without an evicted beginning."""
    samples: int
    """Samples of the utterance that the text covers."""
    started: float
    done: float
    """Completion time of its batch, on the clock given to `AsrEngine.turn`, in s."""


@dataclass
class _Stream:
    """A caller or a file, with its utterance in progress."""

    slot: int
    live: bool
    language: str
    header: list[int]
    tail: list[int]
    windows: Windows
    hypothesis: Hypothesis
    pages: list[int] = field(default_factory=list)
    cached: int = 0
    """Header tokens in the KV cache: all or none."""
    maximum: float = float("-inf")
    """Maximum log-mel value of the utterance so far."""
    active: Span = field(default_factory=lambda: Span(0, 0))
    """Audio tokens last encoded for the incomplete window."""
    refill: bool = False
    """Windows were evicted, so the remaining ones must be prefilled again at new positions."""
    unread: bool = False
    """The last update stopped before end-of-text, so there is more to decode even without new
    audio."""
    waiting: deque[Callable[[], None]] = field(default_factory=deque)
    """Calls for later utterances, deferred until the current one is settled."""
    ahead: int = 0
    """Samples of the last deferred utterance."""


@dataclass
class _Work:
    """One stream's part of the current batch."""

    job: Job
    stream: _Stream
    step: AudioStep
    pass_: Pass
    started: float
    most: int
    """Tokens at which decoding ends."""
    forced: int = 0
    """Tokens at the beginning of the text that the prompt forces."""
    text: list[int] = field(default_factory=list)
    """Forced, then accepted draft tokens, then decoded tokens, without end-of-text."""
    ended: bool = False
    """The model ended its text, or decoding was stopped."""


class AsrEngine:
    """Turns audio streams into texts. Call all methods from one thread.

    `tell(TextUpdate)` is called for every new text. Times are seconds of one monotonic clock.
    """

    def __init__(
        self,
        runner: AsrRunner,
        tokenizer: Tokenizer,
        pages: int,
        cost: Cost,
        max_streams: int,
        max_files: int,
        max_batch: int,
        max_tokens: int,
        tell: Callable[[TextUpdate], None],
    ) -> None:
        self._runner = runner
        self._tokenizer = tokenizer
        self._pages = Pages(pages)
        self._scheduler = Scheduler(cost, max_streams, max_files, max_batch, max_tokens)
        self._tell = tell
        self._streams: dict[int, _Stream] = {}
        self._ahead: list[_Work] = []
        """The next batch, already encoded but not yet prefilled."""
        self._free_slots = list(range(max_streams + max_files, 0, -1))

    # --- streams ---

    def open(
        self,
        update_ms: int = 400,
        context: str = "",
        language: str = "",
        live: bool = True,
        guess: Sequence[int] = (),
    ) -> int:
        """Opens a stream and returns its number. `guess` holds token ids expected in the first
        utterance (see `TextUpdate.tokens`); each correct one saves a decode step. Raises
        EngineOverloaded."""
        scheduler = self._scheduler
        number = scheduler.open(update_ms) if live else scheduler.open_file()
        self._streams[number] = _Stream(
            slot=self._free_slots.pop(),
            live=live,
            language=language,
            header=self._header(context),
            tail=self._tail(language),
            windows=Windows(),
            hypothesis=Hypothesis(
                self._tokenizer.decode, self._tokenizer.asr_text, language, guess
            ),
        )
        return number

    def feed(self, number: int, pcm: Pcm, now: float) -> None:
        """Adds 16 kHz int16 samples to the utterance, which nobody changes any more. Raises
        AudioOverrun, adding nothing, beyond MAX_PENDING samples of backlog (a caller) or of the
        utterance (a file)."""
        stream = self._streams[number]
        if stream.waiting or not self._scheduler.settled(number):
            if stream.ahead + len(pcm) > MAX_PENDING:
                raise AudioOverrun(f"{stream.ahead} samples are waiting for the previous utterance")
            stream.ahead += len(pcm)
            stream.waiting.append(lambda: self._feed(number, pcm, now))
            return
        if not stream.live and stream.windows.samples + len(pcm) > MAX_PENDING:
            raise AudioOverrun(f"an utterance of a file is limited to {MAX_PENDING // RATE_IN} s")
        self._feed(number, pcm, now)

    def _feed(self, number: int, pcm: Pcm, now: float) -> None:
        self._streams[number].windows.feed(pcm)
        self._scheduler.audio(number, len(pcm), now)

    def finish(self, number: int, now: float) -> None:
        """Ends the utterance; its final text follows."""
        stream = self._streams[number]
        if stream.waiting or not self._scheduler.settled(number):
            stream.waiting.append(lambda: self._finish(number, now))
            stream.ahead = 0
        else:
            self._finish(number, now)

    def _finish(self, number: int, now: float) -> None:
        fed = self._streams[number].windows.samples
        if 0 < fed < MIN_SAMPLES:
            self._feed(number, np.zeros(MIN_SAMPLES - fed, np.int16), now)
        self._scheduler.finish(number, now)

    def cancel(self, number: int) -> None:
        """Discards the utterance; no final text follows."""
        stream = self._streams[number]
        if stream.waiting:
            stream.waiting.append(lambda: self._cancel(number))
            stream.ahead = 0
        else:
            self._cancel(number)

    def _cancel(self, number: int) -> None:
        self._scheduler.cancel(number)
        if self._scheduler.settled(number):  # otherwise when the running batch is done
            self._begin_utterance(number)

    def close(self, number: int) -> None:
        stream = self._streams.get(number)
        if stream is not None:
            stream.waiting.clear()
            self._scheduler.close(number)
            if self._scheduler.state(number) is StreamState.CLOSED:
                self._drop(number)

    def timer(self) -> float | None:
        """Returns when `turn` may have work without further input, in s; None for never."""
        return self._scheduler.timer()

    @property
    def pages_left(self) -> int:
        return self._pages.left

    @property
    def late(self) -> int:
        """Number of live updates completed after their deadline."""
        return self._scheduler.late

    # --- one batch ---

    def turn(self, clock: Callable[[], float]) -> bool:
        """Runs the most urgent batch and returns whether there was one. The next batch is encoded
        while this one decodes; the ends of turns that came since then join it."""
        works: list[_Work] | None = self._ahead
        self._ahead = []
        works = self._joined(works, clock) if works else self._next(clock)
        if works is None:
            return False
        self._read(self._lay_out(works, clock), clock)
        return True

    def _next(self, clock: Callable[[], float], ahead: bool = False) -> list[_Work] | None:
        """Returns the most urgent batch after encoding it, or None if nothing is due."""
        batch = self._scheduler.next_batch(clock(), ahead)
        return self._encoded(batch, clock, {}) if batch else None

    def _joined(self, works: list[_Work], clock: Callable[[], float]) -> list[_Work]:
        """Returns a batch that was encoded ahead together with the ends of turns since then."""
        ends = self._scheduler.join([work.job for work in works])
        if not ends:
            return works
        before = {work.job.stream: work for work in works}
        ended = {job.stream for job in ends}
        others = [work for work in works if work.job.stream not in ended]
        return others + self._encoded(ends, clock, before)

    def _encoded(
        self, jobs: Sequence[Job], clock: Callable[[], float], before: Mapping[int, _Work]
    ) -> list[_Work]:
        """Returns the work of the jobs after encoding it, without those that have no new audio.
        `before` has, by stream, encoded work that a job replaces."""
        started = clock()
        works = [
            work
            for job in jobs
            if (work := self._plan(job, started, clock, before.get(job.stream))) is not None
        ]
        self._encode(works)
        return works

    def _plan(
        self, job: Job, started: float, clock: Callable[[], float], before: _Work | None
    ) -> _Work | None:
        """Plans the encoder work for the audio since `before`, if that is given, or since the last
        update; None if the text is unchanged."""
        stream = self._streams[job.stream]
        step = stream.windows.step(job.end, job.final)
        most = most_tokens(step.audio_ms)
        work = _Work(job, stream, step, Pass(stream.slot), started, most)
        if before is not None:
            again = step.windows[0].index if step.windows else None
            work.pass_.audio = [span for span in before.pass_.audio if span.window != again]
            return work
        unverified = job.final and bool(stream.hypothesis.prompt()[0])
        if not (step.windows or stream.refill or stream.unread or unverified):
            forced, draft = stream.hypothesis.prompt()
            work.forced, work.text = len(forced), forced + draft
            work.ended = True
            self._settle(work, clock())
            return None
        return work

    def _encode(self, works: list[_Work]) -> None:
        """Encodes new audio, a few windows at a time."""
        most = max((len(work.step.windows) for work in works), default=0)
        for first in range(0, most, WINDOWS_TOGETHER):
            last = first + WINDOWS_TOGETHER
            self._encode_windows([(w, w.step.windows[first:last]) for w in works])

    def _encode_windows(self, parts: list[tuple[_Work, tuple[WindowStep, ...]]]) -> None:
        """Computes mel, then, once the maxima are known, stem and encoder."""
        passes = []
        for work, windows in parts:
            pass_ = work.pass_
            pass_.seconds = [second for window in windows for second in _seconds(window)]
            pass_.stems, pass_.encode = [], []
            passes.append(pass_)
        maxima, at = self._runner.mel(passes).tolist(), 0
        for work, windows in parts:
            stream, pass_ = work.stream, work.pass_
            for window in windows:
                first, at = at, at + len(window.seconds)
                stream.maximum = max(stream.maximum, *maxima[first:at])
                for second in stream.windows.to_convolve(window, stream.maximum):
                    frames = min(SECOND_FRAMES, window.frames - second * SECOND_FRAMES)
                    number = window.index * WINDOW_S + second
                    pass_.stems.append(Stem(number, frames, stream.maximum))
                heard = Span(window.index, window.tokens)
                pass_.encode.append(heard)
                stream.active = Span(window.index, 0) if window.complete else heard
            pass_.audio += pass_.encode
        self._runner.encode(passes)

    def _lay_out(self, works: list[_Work], clock: Callable[[], float]) -> list[_Work]:
        """Lays out prefill tokens and allocates KV pages; streams that get no pages are
        postponed."""
        ready: list[_Work] = []
        evicted: set[int] = set()
        for work in works:
            if work.job.stream in evicted:
                continue
            self._write_pass(work)
            stream = work.stream
            if self._hold(stream, work.pass_, evicted, clock):
                stream.cached = len(stream.header)
                stream.refill = stream.unread = False
                ready.append(work)
            else:
                self._postpone(work, clock())
        return [work for work in ready if work.job.stream not in evicted]

    def _write_pass(self, work: _Work) -> None:
        stream, pass_ = work.stream, work.pass_
        heard = stream.windows
        if not stream.cached:
            pass_.before = stream.header
        first = pass_.audio[0].window if pass_.audio else heard.completed
        pass_.audio = pass_.audio or [stream.active]
        if stream.refill:
            pass_.audio[:0] = [Span(i, WINDOW_TOKENS) for i in range(heard.dropped, first)]
        kept = 0 if stream.refill else (first - heard.dropped) * WINDOW_TOKENS
        pass_.start = stream.cached + kept
        pass_.decode = stream.live or work.job.final
        if pass_.decode:
            if work.job.final:
                stream.hypothesis.reopen()
            work.text, pass_.draft = stream.hypothesis.prompt()
            work.forced = len(work.text)
            pass_.after = stream.tail + work.text

    def _hold(
        self, stream: _Stream, pass_: Pass, evicted: set[int], clock: Callable[[], float]
    ) -> bool:
        """Allocates the pages that the pass writes; files are evicted in favour of live streams."""
        wanted = self._pages.needed(pass_.start + pass_.tokens + DECODE_STEPS + 1)
        while True:
            try:
                more = self._pages.allocate(max(0, wanted - len(stream.pages)))
                break
            except OutOfPages:
                victim = self._scheduler.evict(clock()) if stream.live else None
                if victim is None:
                    return False
                self._restart(victim)
                evicted.add(victim)
        if more:
            stream.pages += more
            self._runner.assign(stream.slot, stream.pages)
        return True

    def _restart(self, number: int) -> None:
        """Frees the file's pages; its encoded audio will be prefilled again."""
        self._ahead = [w for w in self._ahead if w.job.stream != number]
        stream = self._streams[number]
        self._pages.free(stream.pages)
        stream.pages, stream.cached = [], 0
        stream.refill = True

    def _postpone(self, work: _Work, now: float) -> None:
        """No memory now: encoded audio is prefilled with the next update."""
        work.stream.refill = work.stream.unread = True
        self._scheduler.postpone(work.job.stream, now)

    def _read(self, works: list[_Work], clock: Callable[[], float]) -> None:
        """Prefills and verifies drafts, then decodes until every text has ended, one step ahead of
        the known results."""
        if not works:
            return
        verdicts = self._runner.prefill([w.pass_ for w in works])
        going = [w for w in works if w.pass_.decode]
        step = self._runner.decode([w.stream.slot for w in going]) if going else None
        of_step = going
        self._ahead = self._next(clock, ahead=True) or []
        for work in works:
            work.ended = not work.pass_.decode
        for work, verdict in zip(going, verdicts(), strict=True):
            work.text += work.pass_.draft[: verdict.accepted]
            self._extend(work, verdict.token)
        going = self._settle_ended(works, clock)
        for count in range(DECODE_STEPS):
            if step is None or not going:
                break
            if count >= FILE_STEPS and self._only_files_wait_for(going):
                break
            last = count == DECODE_STEPS - 1
            ahead = None if last else self._runner.decode([w.stream.slot for w in going])
            for work, token in zip(of_step, step(), strict=True):
                if not work.ended:
                    self._extend(work, token)
            step, of_step = ahead, going
            going = self._settle_ended(going, clock)
        for work in going:
            self._settle(work, clock())

    def _only_files_wait_for(self, going: list[_Work]) -> bool:
        """Only file texts are still decoding and would delay a speaker; they continue in the next
        batch."""
        return self._scheduler.has_live_speech and not any(w.job.live for w in going)

    def _extend(self, work: _Work, token: int) -> None:
        """Appends the next token, unless it ends the text or continues a repetition loop."""
        text = work.text
        if token in self._runner.eos_ids or token < 0 or len(text) >= work.most:
            work.ended = True
            return
        text.append(token)
        looping = repeats(text) is not None  # `Hypothesis.update` decides what is kept of a loop
        work.ended = looping or len(text) == work.most

    def _settle_ended(self, works: list[_Work], clock: Callable[[], float]) -> list[_Work]:
        """Settles the ended ones and returns the others."""
        going = []
        for work in works:
            if work.ended:
                self._settle(work, clock())
            else:
                going.append(work)
        return going

    def _settle(self, work: _Work, now: float) -> None:
        """Completes an update: stores and emits its text, then lets the stream continue."""
        job, stream = work.job, work.stream
        stream.unread = not work.ended
        wanted = self._scheduler.done(job.stream, now, work.ended)
        if wanted and (job.live or job.final):
            final = job.final and work.ended
            new = work.text[work.forced :]
            heard = stream.hypothesis.update(new, work.step.audio_ms, final)
            if final:
                self._begin_utterance(job.stream)
            else:
                self._drop_windows(stream)
            # Last, because the listener may close the stream.
            text = TextUpdate(job.stream, heard, final, work.text, job.end, work.started, now)
            self._tell(text)
        elif not wanted:
            self._begin_utterance(job.stream)

    def _drop_windows(self, stream: _Stream) -> None:
        dropped = stream.hypothesis.evict()
        if dropped:
            stream.windows.drop(dropped)
            stream.refill = True

    def _begin_utterance(self, number: int) -> None:
        """Keeps the cached header for the next utterance and predicts the same language."""
        stream = self._streams[number]
        guess = stream.hypothesis.header
        stream.windows = Windows()
        stream.hypothesis = Hypothesis(
            self._tokenizer.decode, self._tokenizer.asr_text, stream.language, guess
        )
        stream.maximum, stream.active = float("-inf"), Span(0, 0)
        stream.refill = stream.unread = False
        kept = self._pages.needed(stream.cached)
        self._pages.free(stream.pages[kept:])
        del stream.pages[kept:]
        if self._scheduler.state(number) is StreamState.CLOSED:
            self._drop(number)
            return
        while stream.waiting and self._scheduler.settled(number):
            stream.waiting.popleft()()
        if not stream.waiting:
            stream.ahead = 0

    def _drop(self, number: int) -> None:
        stream = self._streams.pop(number, None)
        if stream is not None:
            self._pages.free(stream.pages)
            self._free_slots.append(stream.slot)

    # --- the prompt ---

    def _header(self, context: str) -> list[int]:
        """Returns the prompt before the audio. `context` (as named in qwen-asr) lists names and
        terms that may occur."""
        t = self._tokenizer
        system = [t.im_start, *t.encode(f"system\n{context}"), t.im_end, *t.encode("\n")]
        return [*system, t.im_start, *t.encode("user\n"), t.audio_start]

    def _tail(self, language: str) -> list[int]:
        """Returns the prompt between the audio and the text."""
        t = self._tokenizer
        turn = [t.im_end, *t.encode("\n"), t.im_start, *t.encode("assistant\n")]
        named = [*t.encode(f"language {language}"), t.asr_text] if language else []
        return [t.audio_end, *turn, *named]


def _seconds(window: WindowStep) -> list[Second]:
    """Returns the window's seconds that have new frames."""
    seconds, first = [], window.first
    for number in window.seconds:
        frames = min(SECOND_FRAMES, window.frames - number * SECOND_FRAMES)
        begin = (number * SECOND_FRAMES - first) * HOP
        pcm = window.pcm[begin : begin + SECOND_SAMPLES]
        seconds.append(Second(window.index * WINDOW_S + number, pcm, frames))
    return seconds
