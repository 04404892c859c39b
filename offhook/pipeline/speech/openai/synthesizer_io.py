"""A `Synthesizer` backed by an OpenAI-compatible server: vLLM-Omni, Kokoro, OpenAI, another
offhook.

A reply is sent clause by clause (`clauses`), each by POST /audio/speech, whose raw PCM is passed on
as it arrives. The next clause is requested when the previous one has started to sound, so that it
is ready in time; at most two clauses are in flight, and none while much audio is unread.

Marks are exact at the end of a clause. Within one, word positions are unknown and estimated by
letters: in proportion once the clause is complete, before that from the pace of earlier clauses.

A failed request is repeated for the words without a mark. No word is lost; the one in which it
failed may start twice.
"""

import asyncio
import re
from collections import deque
from collections.abc import AsyncIterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from loguru import logger

from offhook.media.codecs.resample import Resampler
from offhook.media.pcm import RATE_OUT, Pcm
from offhook.media.tasks_io import TaskSet
from offhook.pipeline.speech.errors import EngineError
from offhook.pipeline.speech.openai.answers import sound_fault, sound_rate, voice_names
from offhook.pipeline.speech.openai.client_io import (
    BODY_TIMEOUT_S,
    LIST_TIMEOUT_S,
    OpenAiServer,
)
from offhook.pipeline.speech.streams.priority_semaphore_io import MAX_REQUESTS, Priority
from offhook.pipeline.speech.streams.retry import SPREAD_S, AttemptFailed, Losses, RetryPolicy
from offhook.pipeline.speech.synthesizer import (
    DEFAULT_VOICE,
    Speech,
    Synthesizer,
    TextTooLong,
    UnknownVoice,
    VoiceOptions,
)
from offhook.pipeline.speech.text.spoken_text import SpokenWord, TextReader, with_rules
from offhook.pipeline.speech.voice.clauses import pause_after_ms
from offhook.pipeline.speech.voice.silence import SilenceTrimmer
from offhook.pipeline.speech.voice.spoken_clauses import SpokenClauses

PATH = "/audio/speech"
USUAL_VOICE = "alloy"
"""Default voice, OpenAI's first, which most servers know; a server that lists voices uses its
first."""
MAX_WAITING_CHARS = 100_000
"""Maximum text not yet spoken, in characters, about two hours; further text is refused, and the
stream gets the error `behind`."""
MAX_UNREAD_S = 30
"""Unread audio of one reply in s beyond which the server's response is no longer read."""
MAX_CLAUSE_S = 120
"""Maximum audio of one clause of up to 400 characters, in s; a longer response is an error."""
SOUND_TIMEOUT_S = 20.0
"""Time limit in s until the response starts, as some servers synthesize the whole clause first;
then the request has failed."""
FILE_SOUND_TIMEOUT_S = 300.0
"""The same for a reply that is not live; a longer wait is an error."""
GIVE_UP_S = 15.0
"""Time in s after the first failure of a clause at which a live reply gives up."""
FILE_GIVE_UP_S = 120.0
WARM_UP = "Hello."
USUAL_LANGUAGE = "en"
"""Language by whose rules a text is read if none is set."""
USUAL_LETTERS_PER_S = 13.0
"""Assumed pace of a new voice."""
LEARN = 0.3
"""Weight of the latest clause in the estimated pace."""
NO_SOUND = np.zeros(0, np.int16)


class OpenAiSynthesizer(Synthesizer):
    """The server at `url`, e.g. ``http://host:8000/v1``; an empty `model` means its only or default
    one."""

    def __init__(
        self,
        url: str,
        api_key: str = "",
        model: str = "",
        max_requests: int = MAX_REQUESTS,
        *,
        normalise: bool = False,
    ) -> None:
        """With `normalise`, numbers, dates and signs are sent as words, and no markup."""
        self._normalise = normalise
        self._server = OpenAiServer("tts", url, api_key, model, max_requests)
        self.name = self._server.name
        self._voices: list[str] = []
        self._takes_more = True
        """Whether the server accepts fields beyond OpenAI's."""
        self._streams: set[OpenAiSpeech] = set()
        self.letters_per_s = USUAL_LETTERS_PER_S
        """Pace at speed 1."""

    def voices(self) -> list[str]:
        """Returns the voices that the server lists, once started; OpenAI's own lists none."""
        return list(self._voices)

    async def start(self, options: VoiceOptions = DEFAULT_VOICE) -> None:
        """Lists the voices and synthesizes a word as a test. Raises EngineError."""
        try:
            try:
                async with self._server.ask("GET", "/audio/voices", LIST_TIMEOUT_S) as response:
                    self._voices = voice_names(await self._server.body(response, LIST_TIMEOUT_S))
            except AttemptFailed as failed:
                if failed.status not in (400, 404, 405, 501):
                    raise
            of_file = replace(options, live=False)  # the server may load its model first
            await self.speak(Clause(as_written(WARM_UP), asyncio.Event()), of_file)
        except AttemptFailed as failed:
            raise failed.as_error(self._server.explain(failed), options.demands()) from failed
        self.name = self._server.name

    def open(self, options: VoiceOptions = DEFAULT_VOICE) -> "OpenAiSpeech":
        if self._voices and options.voice and options.voice not in self._voices:
            names = ", ".join(self._voices[:20])
            raise UnknownVoice(f"there is no voice {options.voice!r}, only {names}")
        stream = OpenAiSpeech(self, options)
        self._streams.add(stream)
        return stream

    async def close(self) -> None:
        """Closes the client; replies in progress fail."""
        tasks: list[asyncio.Task[None]] = []
        for stream in tuple(self._streams):
            tasks += stream.tasks
            stream.fail(EngineError("the synthesizer is closed"))
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._server.close()

    # --- for its streams ---

    def clauses(self, options: VoiceOptions) -> SpokenClauses:
        """Returns the clauses of a reply."""
        if not (self._normalise and options.normalise):
            return SpokenClauses()
        return SpokenClauses(TextReader(with_rules(options.language or USUAL_LANGUAGE)))

    def forget(self, stream: "OpenAiSpeech") -> None:
        self._streams.discard(stream)

    def explain(self, failed: AttemptFailed) -> str:
        return self._server.explain(failed)

    async def speak(self, clause: "Clause", options: VoiceOptions) -> None:
        """Synthesizes the rest of the clause. Raises AttemptFailed."""
        async with self._server.turns.turn(Priority.LIVE if options.live else Priority.FILE):
            if self._takes_more:
                try:
                    return await self._post(clause, options, more=True)
                except AttemptFailed as failed:
                    if failed.status not in (400, 422):
                        raise
                    refused = failed
            await self._post(clause, options, more=False)
            if self._takes_more:
                self._takes_more = False
                logger.info("{} takes OpenAI's own fields only ({})", self.name, refused)

    async def _post(self, clause: "Clause", options: VoiceOptions, more: bool) -> None:
        """Sends the request. Raises AttemptFailed."""
        body: dict[str, Any] = {
            "model": await self._server.model(),
            "input": clause.left.strip(),
            "voice": options.voice or next(iter(self._voices), USUAL_VOICE),
            "response_format": "pcm",
        }
        if options.speed != 1.0:
            body["speed"] = options.speed
        if options.instructions:
            body["instructions"] = options.instructions
        if more:
            body |= _more(options)
        within_s = SOUND_TIMEOUT_S if options.live else FILE_SOUND_TIMEOUT_S
        async with self._server.ask("POST", PATH, within_s, json=body) as response:
            kind = response.headers.get("Content-Type", "")
            sound, trimmer = RawSound(sound_rate(kind, RATE_OUT)), SilenceTrimmer()
            piece = await self._server.piece(response, within_s)
            if fault := sound_fault(kind, piece):
                raise AttemptFailed(fault, hopeless=True)
            came = 0
            while piece:
                came += len(pcm := sound.pcm(piece))
                if came > MAX_CLAUSE_S * RATE_OUT:
                    words = f"its audio is too long ({MAX_CLAUSE_S} s for {clause.letters} letters)"
                    raise AttemptFailed(words, hopeless=True)
                await clause.receive_audio(trimmer.push(pcm))
                piece = await self._server.piece(response, BODY_TIMEOUT_S)
            await clause.receive_audio(trimmer.finish())
        if not came:
            raise AttemptFailed("it sent no audio")
        if not clause.samples:
            return  # it was silent
        pace = clause.letters / (clause.samples / RATE_OUT) / options.speed
        self.letters_per_s += LEARN * (pace - self.letters_per_s)


def _more(options: VoiceOptions) -> dict[str, Any]:
    """Returns the fields that offhook and some other servers accept and OpenAI rejects."""
    more: dict[str, Any] = {"stream": True}
    if options.language:
        more["language"] = options.language
    if not options.normalise:
        more["normalise"] = False
    if options.seed is not None:
        more["seed"] = options.seed
    return more


def _letters(word: SpokenWord) -> int:
    return len(word.spoken.strip())


def _words(part: SpokenWord) -> list[SpokenWord]:
    """Returns the words of a part that is spoken as written."""
    return as_written(part.text) if part.spoken == part.text else [part]


def as_written(text: str) -> list[SpokenWord]:
    """Returns the words of a text that are spoken as written."""
    return [SpokenWord(word, word) for word in re.findall(r"\s*\S+\s*", text) or [text]]


class RawSound:
    """Converts chunks of 16-bit little-endian PCM bytes to samples at 24 kHz."""

    def __init__(self, rate: int) -> None:
        self._rest = b""
        self._resampler = Resampler(rate, RATE_OUT) if rate != RATE_OUT else None
        self._step = 2 * (rate // int(np.gcd(rate, RATE_OUT))) if self._resampler else 2

    def pcm(self, data: bytes) -> Pcm:
        data = self._rest + data
        whole = len(data) // self._step * self._step
        self._rest = data[whole:]
        pcm: Pcm = np.frombuffer(data[:whole], "<i2").astype(np.int16)
        if self._resampler is not None and len(pcm):
            return self._resampler.process(pcm)
        return pcm


class Clause:
    """One clause from its request to its last piece; `news` is set when it has more audio."""

    def __init__(self, words: Sequence[SpokenWord], news: asyncio.Event) -> None:
        self.words = deque(words)
        """Words without a mark."""
        self.text = "".join(word.text for word in words)
        """All of it, as written."""
        self.letters = self._letters_left
        self.samples = 0
        """Samples received for these letters since the clause was started or restarted."""
        self.begun = asyncio.Event()
        """Set when audio has arrived or the clause has ended without any."""
        self.over = asyncio.Event()
        """Set when all audio has arrived."""
        self._news = news
        self._room = asyncio.Event()
        self._pcm: deque[Pcm] = deque()
        self._unread_samples = 0
        self._taken = 0
        """Samples since the last mark."""

    @property
    def left(self) -> str:
        """Returns what has not been spoken of it, as the server is to say it."""
        return "".join(word.spoken for word in self.words)

    @property
    def _letters_left(self) -> int:
        return sum(map(_letters, self.words))

    @property
    def has_sound(self) -> bool:
        """Whether audio has arrived that has not been read."""
        return self._unread_samples > 0

    @property
    def unread_s(self) -> float:
        return self._unread_samples / RATE_OUT

    @property
    def says_nothing(self) -> bool:
        return not any(map(str.isalnum, self.left))

    @property
    def is_done(self) -> bool:
        """Whether everything has been read."""
        return self.over.is_set() and not self.words

    async def receive_audio(self, pcm: Pcm) -> None:
        """Adds audio, waiting for room."""
        if not len(pcm):
            return
        self.samples += len(pcm)
        self._pcm.append(pcm)
        self._unread_samples += len(pcm)
        self.begun.set()
        self._news.set()
        while self.unread_s > MAX_UNREAD_S:
            self._room.clear()
            await self._room.wait()

    def end(self) -> None:
        self.over.set()
        self.begun.set()
        self._news.set()

    def lose(self) -> None:
        """Discards unread audio after a failure, so that the remaining words are requested
        again."""
        self._pcm.clear()
        self._unread_samples = self._taken = self.samples = 0
        self.letters = self._letters_left

    def next_piece(self, letters_per_s: float) -> Speech | None:
        """Returns the next word, or a part of it; None if there is nothing at present."""
        over = self.over.is_set()
        if not self._unread_samples:
            if not over or not self.words:
                return None
            text = "".join(word.text for word in self.words)
            self.words.clear()
            return Speech(NO_SOUND, text)
        is_last = len(self.words) == 1
        letters = max(1, _letters(self.words[0]))
        if over:
            end = (self._taken + self._unread_samples) * letters // max(letters, self._letters_left)
        else:
            end = round(letters / letters_per_s * RATE_OUT)
        size = max(0, end - self._taken)
        # Until the clause is complete, the end of its last word is unknown.
        if size > self._unread_samples or (is_last and not over):
            self._taken += self._unread_samples
            return Speech(self._cut(self._unread_samples), "")
        self._taken = 0
        return Speech(self._cut(size), self.words.popleft().text)

    def _cut(self, size: int) -> Pcm:
        """Removes and returns the first `size` samples."""
        pcm = np.concatenate((NO_SOUND, *self._pcm))
        self._pcm.clear()
        if len(pcm) > size:
            self._pcm.append(pcm[size:])
        self._unread_samples = len(pcm) - size
        self._room.set()
        return pcm[:size]


class OpenAiSpeech:
    """One reply; implements `SynthesizerStream`."""

    def __init__(self, synthesizer: OpenAiSynthesizer, options: VoiceOptions) -> None:
        self._synthesizer = synthesizer
        self._options = options
        self._texts = synthesizer.clauses(options)
        """Clauses not yet requested."""
        self._pause_ms = 0
        """Pause due before the next clause sounds."""
        self._all_asked = False
        """Whether the whole text was requested."""
        self._waiting_chars = 0
        self._clauses: deque[Clause] = deque()
        """Clauses requested, oldest first."""
        self._complete = False
        self._over = False
        self._error: EngineError | None = None
        self._said = ""
        """The last error logged."""
        self._text_news = asyncio.Event()
        self._sound_news = asyncio.Event()
        self._room = asyncio.Event()
        self.tasks = TaskSet()
        self.tasks.spawn(self._ask_for_all(), "openai synthesizer")

    # --- the contract ---

    def write(self, text: str) -> None:
        if self._over or self._complete or not text:
            return
        if self._waiting_chars + len(text) > MAX_WAITING_CHARS:
            raise TextTooLong(f"more than {MAX_WAITING_CHARS} characters are waiting to be spoken")
        self._waiting_chars += len(text)
        self._texts.write(text)
        self._text_news.set()

    def end(self) -> None:
        if self._over or self._complete:
            return
        self._complete = True
        self._texts.end()
        self._text_news.set()
        self._sound_news.set()

    def cancel(self) -> None:
        self._clauses.clear()
        self._stop()

    async def __aiter__(self) -> AsyncIterator[Speech]:
        """Yields the pieces of speech. Raises EngineError."""
        while True:
            while (piece := self._next_piece()) is not None:
                self._waiting_chars -= len(piece.text)
                self._room.set()
                yield piece
            if self._error is not None:
                raise self._error
            if self._all_asked and not self._clauses:
                self._stop()
            if self._over:
                return
            self._sound_news.clear()
            await self._sound_news.wait()

    def _next_piece(self) -> Speech | None:
        while self._clauses:
            if self._pause_ms and self._clauses[0].has_sound:
                pause, self._pause_ms = np.zeros(self._pause_ms * RATE_OUT // 1000, np.int16), 0
                return Speech(pause, "")
            pace = self._synthesizer.letters_per_s * self._options.speed
            if (piece := self._clauses[0].next_piece(pace)) is not None:
                return piece
            if not self._clauses[0].is_done:
                return None
            self._pause_ms = pause_after_ms(self._clauses.popleft().text)
        return None

    # --- requests ---

    async def _ask_for_all(self) -> None:
        before: Clause | None = None
        while True:
            while (words := self._texts.pop()) is None:
                if self._complete:
                    self._all_asked = True
                    self._sound_news.set()
                    return
                self._text_news.clear()
                await self._text_news.wait()
            clause = Clause([word for part in words for word in _words(part)], self._sound_news)
            self._clauses.append(clause)
            if clause.says_nothing:
                clause.end()
                continue
            self.tasks.spawn(self._ask_for(clause), "openai clause")
            await clause.begun.wait()
            if before is not None:
                await before.over.wait()
            before = clause
            while sum(each.unread_s for each in self._clauses) > MAX_UNREAD_S:
                self._room.clear()
                await self._room.wait()

    async def _ask_for(self, clause: Clause) -> None:
        """Requests the clause until all its audio has arrived or it is given up."""
        loop = asyncio.get_running_loop()
        give_up_s = GIVE_UP_S if self._options.live else FILE_GIVE_UP_S
        patience = RetryPolicy(give_up_s, spread_s=SPREAD_S)
        losses = Losses()
        while not clause.says_nothing:
            try:
                await self._synthesizer.speak(clause, self._options)
                break
            except AttemptFailed as failed:
                now = loop.time()
                if clause.samples:
                    losses.add(now)
                pause = patience.pause_s(failed, now)
                words = self._synthesizer.explain(failed)
                if pause is None or losses.are_too_many(now):
                    self.fail(failed.as_error(words, self._options.demands()))
                    return
                if words != self._said:
                    logger.warning("{}", words)
                    self._said = words
                clause.lose()
                await asyncio.sleep(max(pause, losses.pause_s(now)))
        clause.end()

    # --- its end ---

    def fail(self, error: EngineError) -> None:
        """Ends the reply with an error, raised after the audio received so far has been read."""
        if not self._over:
            self._error = error
            self._stop()

    def _stop(self) -> None:
        """Stops all requests."""
        self._over = True
        self._texts.clear()
        for task in self.tasks:
            task.cancel()
        self._synthesizer.forget(self)
        self._sound_news.set()
