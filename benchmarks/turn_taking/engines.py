"""Recognizers in virtual time: one that knows the words, and real ones, whose results come as late
as the engine took to compute them, or after a given latency.

Real engines recognize each utterance while the clock stands still. Each caller has an engine to
itself: the time that one result takes delays the caller's next result, but nobody else's.
"""

import asyncio
import hashlib
import io
import time
import wave
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, field
from functools import partial

import openai

from benchmarks.turn_taking.clock import Clock
from benchmarks.turn_taking.script import Utterance, Word
from offhook.media.pcm import RATE_IN, Pcm
from offhook.pipeline.engines.embedded.pocketsphinx_io import (
    PlacedUtterance,
    PocketSphinxRecognizer,
    PocketSphinxStream,
    Worker,
)
from offhook.pipeline.engines.embedded.pocketsphinx_worker import (
    MAX_DECODERS,
    Frame,
    Kind,
    Listener,
    new_decoder,
)
from offhook.pipeline.speech.openai.answers import Transcript
from offhook.pipeline.speech.openai.recognizer_io import OpenAiRecognizer
from offhook.pipeline.speech.recognizer import Final, Partial, RecognizerStream, StreamOptions
from offhook.pipeline.speech.streams.utterance_stream_io import UtteranceStream, WholeUtterance

MS = RATE_IN // 1000
KNOWN_MS = 100
"""From the request of a final to it, of the recognizer that knows the words."""
PARTIAL_MS = 250
"""How old in ms a word is before that recognizer has it."""
CALLS = 64
"""Calls at a time."""
TOOK = "openai-processing-ms"
"""Header in which a server says how many ms a request took it."""

Position = Callable[[], int]
"""Returns how much of a call's sound was heard, in samples."""


class Engine:
    """Opens the recognizer streams of calls in virtual time, between `begin` and `end`."""

    calls = CALLS
    """Calls at a time that it can hear."""

    def __init__(self, latency_ms: int | None = None) -> None:
        """`latency_ms` is that of each result; None: as long as the engine takes here."""
        self.latency_ms = latency_ms
        self.finals_ms: list[int] = []
        """How late each final was after it was asked for."""
        self.clock = Clock()

    def begin(self, clock: Clock) -> None:
        self.clock = clock

    def open(self, utterance: Utterance, position: Position) -> RecognizerStream:
        raise NotImplementedError

    async def end(self) -> None:
        """Frees what was opened. Raises the error of an engine that has failed."""


class KnownWords(Engine):
    """Knows the words, and where they are in the sound."""

    def __init__(self, latency_ms: int = KNOWN_MS, lag_ms: int = PARTIAL_MS) -> None:
        """`lag_ms` is how old a word is before it is known."""
        super().__init__(latency_ms)
        self.final_ms, self.lag_ms = latency_ms, lag_ms

    def open(self, utterance: Utterance, position: Position) -> RecognizerStream:
        return _Oracle(self, utterance.words, position, utterance.language)


@dataclass
class _Oracle:
    """A `RecognizerStream` that knows the words and where they are."""

    engine: KnownWords
    words: Sequence[Word]
    position: Position
    language: str
    _events: asyncio.Queue[Partial | Final | None] = field(default_factory=asyncio.Queue)
    _start: int | None = None
    _told: str = ""

    def feed(self, pcm: Pcm) -> None:
        end = self.position()
        if self._start is None:
            self._start, self._told = end - len(pcm), ""
        text = self._text(self._start, end - self.engine.lag_ms * MS)
        if text != self._told:
            self._told = text
            self._events.put_nowait(Partial(text, 0, (end - self._start) // MS))

    def finish(self) -> None:
        end = self.position()
        start = end if self._start is None else self._start
        self._start = None
        final = Final(self._text(start, end), (end - start) // MS, language=self.language)
        last = max((word.end for word in self.words if word.end <= end), default=0)
        wait_ms = max(self.engine.final_ms, self.engine.lag_ms - (end - last) // MS)
        self.engine.finals_ms.append(wait_ms)
        self.engine.clock.later(wait_ms, lambda: self._events.put_nowait(final))

    def cancel(self) -> None:
        self._start = None

    async def events(self) -> AsyncIterator[Partial | Final]:
        while (event := await self._events.get()) is not None:
            yield event

    async def close(self) -> None:
        self._events.put_nowait(None)

    def _text(self, start: int, end: int) -> str:
        middles = ((word, (word.start + word.end) // 2) for word in self.words)
        return " ".join(plain(word.text) for word, middle in middles if start <= middle < end)


def plain(word: str) -> str:
    """As recognizers without punctuation write it."""
    return word.strip(".,?!;:¿¡").lower()


class PocketSphinx(Engine):
    """The embedded recognizer, English only; its results take the CPU time of decoding."""

    calls = MAX_DECODERS

    def begin(self, clock: Clock) -> None:
        super().begin(clock)
        self._recognizer = _Sphinx(self)

    def open(self, utterance: Utterance, position: Position) -> RecognizerStream:
        return PocketSphinxStream(self._recognizer, StreamOptions(language=utterance.language))


class _Sphinx(PocketSphinxRecognizer):
    """Has one worker, in this process."""

    def __init__(self, engine: PocketSphinx) -> None:
        super().__init__(1)
        self._here = _SphinxWorker(self, engine)

    def _least_loaded(self) -> Worker:
        return self._here


class _SphinxWorker(Worker):
    """Decodes what it is sent at once, and answers when its CPU time is over."""

    def __init__(self, recognizer: PocketSphinxRecognizer, engine: PocketSphinx) -> None:
        super().__init__(recognizer)
        self._engine = engine
        self._listener = Listener()
        # Loading takes no part in the times: a server has done it before the call.
        self._listener._free += [new_decoder() for _ in range(MAX_DECODERS - 1)]
        self._listener._decoders = MAX_DECODERS
        self._free_at: dict[int, int] = {}
        """When an utterance's last result has been computed."""
        self._finished: dict[int, int] = {}

    def assign(self, utterance: PlacedUtterance) -> None:
        self.utterances[utterance.frame_number] = utterance
        self.send(utterance)

    def send(self, utterance: PlacedUtterance) -> None:
        while frame := utterance.next_frame():
            if frame.kind is Kind.FINISH:
                self._finished[frame.utterance] = self._engine.clock.now
            self._listener.receive(frame)
        self._decode()

    def drop(self, utterance: PlacedUtterance) -> None:
        if self.utterances.pop(utterance.frame_number, None):
            self._listener.receive(Frame(utterance.frame_number, Kind.CANCEL))

    def _decode(self) -> None:
        clock = self._engine.clock
        began = time.thread_time()
        while told := self._listener.decode():
            due = clock.now + (self._engine.latency_ms or 0)
            if self._engine.latency_ms is None:
                took = round(1000 * (time.thread_time() - began))
                due = max(clock.now, self._free_at.get(told.utterance, 0)) + took
            self._free_at[told.utterance] = due
            if told.kind is Kind.FINAL:
                self._engine.finals_ms.append(due - self._finished[told.utterance])
            clock.later(due - clock.now, partial(self._receive, told))
            began = time.thread_time()


class Transcripts:
    """Those of a server with OpenAI's API, which is asked once for each sound."""

    def __init__(self, url: str, model: str) -> None:
        self._client = openai.OpenAI(base_url=url, api_key="none")
        self._model = model
        self._known: dict[bytes, tuple[str, int]] = {}

    def __call__(self, pcm: bytes, language: str) -> tuple[str, int]:
        """Returns the text and how many ms it took: as the server says in its header TOOK, or as it
        was waited for. Raises openai.APIError."""
        key = hashlib.sha1(pcm + language.encode()).digest()
        if key not in self._known:
            sound = io.BytesIO()
            with wave.open(sound, "wb") as file:
                file.setnchannels(1)
                file.setsampwidth(2)
                file.setframerate(RATE_IN)
                file.writeframes(pcm)
            began = time.monotonic()
            answer = self._client.audio.transcriptions.with_raw_response.create(
                file=("speech.wav", sound.getvalue()), model=self._model, language=language
            )
            waited = 1000 * (time.monotonic() - began)
            took = round(float(answer.headers.get(TOOK, waited)))
            self._known[key] = answer.parse().text, took
        return self._known[key]


class ByUrl(Engine):
    """A server with OpenAI's API that transcribes one sound at a time, as `[asr] url` has it."""

    def __init__(
        self,
        transcripts: Transcripts,
        latency_ms: int | None = None,
        *,
        partials: bool = True,
        whole_turns: bool = True,
    ) -> None:
        """`partials` and `whole_turns` as in `[asr]`."""
        super().__init__(latency_ms)
        self._transcripts = transcripts
        self._partials, self._whole_turns = partials, whole_turns
        self._recognizers: list[OpenAiRecognizer] = []
        self._failure: openai.APIError | None = None

    def open(self, utterance: Utterance, position: Position) -> RecognizerStream:
        recognizer = _Requests(self, self._partials, self._whole_turns)
        self._recognizers.append(recognizer)
        return UtteranceStream(recognizer, StreamOptions(language=utterance.language))

    def ask(self, pcm: bytes, language: str) -> tuple[str, int]:
        try:
            text, took = self._transcripts(pcm, language)
        except openai.APIError as error:
            self._failure = error
            raise
        return text, took if self.latency_ms is None else self.latency_ms

    async def end(self) -> None:
        for recognizer in self._recognizers:
            await recognizer.close()
        self._recognizers.clear()
        if self._failure is not None:
            raise self._failure


class _Requests(OpenAiRecognizer):
    """One caller's, whose requests are answered one after another in virtual time."""

    def __init__(self, engine: ByUrl, partials: bool, whole_turns: bool) -> None:
        super().__init__("http://in.virtual.time/v1", partials=partials, whole_turns=whole_turns)
        self._realtime = False
        self._engine = engine
        self._free_at = 0

    async def _post(
        self, pcm: bytes, options: StreamOptions, within_s: float, words: bool
    ) -> Transcript:
        text, took = self._engine.ask(pcm, options.language_code or "en")
        now = self._engine.clock.now
        self._free_at = max(now, self._free_at) + took
        await self._engine.clock.sleep(self._free_at - now)
        return Transcript(text)

    async def _final(self, utterance: WholeUtterance, options: StreamOptions) -> Final:
        asked = self._engine.clock.now
        final = await super()._final(utterance, options)
        self._engine.finals_ms.append(self._engine.clock.now - asked)
        return final
