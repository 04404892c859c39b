"""Common parts of the embedded voices: reads text in the voice's language, runs a C library on one
thread and splits its audio at words.

C synthesis libraries keep their state in globals, so each has its own thread and speaks one clause
at a time; calls take turns clause by clause. One thread is dozens of times faster than real time,
and ctypes releases the GIL.
"""

import asyncio
import re
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
import soxr
from loguru import logger

from offhook.media.pcm import RATE_OUT, Pcm, dbfs
from offhook.pipeline.speech.errors import EngineError
from offhook.pipeline.speech.synthesizer import (
    DEFAULT_VOICE,
    KnownVoice,
    Speech,
    Synthesizer,
    TextTooLong,
    UnknownVoice,
    VoiceOptions,
)
from offhook.pipeline.speech.text.markup import IPA_BEGINS
from offhook.pipeline.speech.text.spoken_text import SpokenWord, TextReader
from offhook.pipeline.speech.text.transliteration import in_ascii, unspeakable
from offhook.pipeline.speech.voice.clauses import pause_after_ms
from offhook.pipeline.speech.voice.spoken_clauses import SpokenClauses

LEVEL_DBFS = -20.0
PEAK = 0.9
"""Peak relative to full scale; a louder clause is attenuated as a whole rather than clipped."""
LEAD_SILENCE_DB = -40.0
TAIL_SILENCE_DB = -36.0
"""Level below the loudest frame at which a 5 ms frame at a clause's edges is silence. The trailing
breath may be lost."""
LEAD_MS = 10
TAIL_MS = 25
"""Audio kept around what is louder than silence, since soft consonants are there."""
FADE_MS = 5
"""Length in ms of the fade at both edges of a clause."""
MAX_WAITING_CHARS = 100_000
"""Maximum text not yet spoken, in characters, about two hours; further text is refused, and the
stream gets the error `behind`."""
MAX_LISTED = 40
"""Names in an error message; of more, the number is given."""

CALIBRATION = "The quick brown fox jumps over the lazy dog, and nobody minds at all."


@dataclass(frozen=True)
class Sound:
    """A C library's audio of a clause."""

    pcm: Pcm
    rate: int
    """Sample rate in Hz."""
    word_ends: list[int]
    """For each word, the sample at which it ends; non-decreasing."""


def written_words(clause: str) -> list[str]:
    """Splits a clause into words with the white space after them (the first also with that before
    it); concatenated they are the clause. Empty for white space alone. A long dash ends a word."""
    return re.findall(r"\s*(?:[^\s—]+—*|—+)\s*", clause)


def speakable_words(
    words: Sequence[SpokenWord], language: str = "en"
) -> list[tuple[str, list[str]]]:
    """Returns pairs of a slice of the text and its spoken words, for English in ASCII or
    in IPA. Slices with nothing to speak are merged with a neighbour; empty if there is nothing to
    speak at all."""
    pairs: list[tuple[str, list[str]]] = []
    silent = ""
    for word in words:
        spoken: list[str] = []
        spelt = language == "en" and IPA_BEGINS not in word.spoken
        for part in (in_ascii(word.spoken) if spelt else word.spoken).split():
            before = spoken or (pairs[-1][1] if pairs else [])
            if any(map(str.isalnum, part)):
                spoken.append(part)
            elif before and not part.strip(".,;:!?"):
                before[-1] += part
        if spoken:
            pairs.append((silent + word.text, spoken))
            silent = ""
        elif pairs:
            pairs[-1] = (pairs[-1][0] + word.text, pairs[-1][1])
        else:
            silent += word.text
    return pairs


def voiced_span(pcm: Pcm, rate: int) -> tuple[int, int]:
    """Returns the audible range of `pcm`, with lead and tail."""
    frame = rate // 200
    frames = pcm[: len(pcm) // frame * frame].reshape(-1, frame).astype(np.float32)
    power = np.einsum("ij,ij->i", frames, frames)
    if not len(power) or not power.max():
        return 0, len(pcm)
    loudest = power.max()
    first = np.flatnonzero(power > loudest * 10 ** (LEAD_SILENCE_DB / 10))[0]
    last = np.flatnonzero(power > loudest * 10 ** (TAIL_SILENCE_DB / 10))[-1]
    start = int(first) * frame - rate * LEAD_MS // 1000
    stop = (int(last) + 1) * frame + rate * TAIL_MS // 1000
    return max(0, start), min(len(pcm), stop)


def speech_pcm(pcm: Pcm, rate: int, gain: float) -> Pcm:
    """Resamples to 24 kHz with the gain, fading both edges in and out of silence."""
    sound = soxr.resample(pcm.astype(np.float32), rate, RATE_OUT, quality="HQ")
    peak = float(np.abs(sound).max(initial=1.0))
    sound *= min(gain, PEAK * 32767 / peak)
    fade = min(RATE_OUT * FADE_MS // 1000, len(sound) // 2)
    if fade:
        ramp = np.linspace(0, 1, fade, dtype=np.float32)
        sound[:fade] *= ramp
        sound[-fade:] *= ramp[::-1]
    pcm24: Pcm = np.rint(sound).astype(np.int16)
    return pcm24


def cut_at_words(sound: Sound, slices: list[str], gain: float) -> list[Speech]:
    """Splits a clause's audio, without surrounding silence, at the ends of its words."""
    start, stop = voiced_span(sound.pcm, sound.rate)
    pcm = speech_pcm(sound.pcm[start:stop], sound.rate, gain)
    pieces = []
    begin = 0
    for number, (text, end) in enumerate(zip(slices, sound.word_ends, strict=True), 1):
        cut = len(pcm)
        if number < len(slices):
            cut = min(cut, max(begin, (end - start) * RATE_OUT // sound.rate))
        pieces.append(Speech(pcm[begin:cut], text))
        begin = cut
    return pieces


class EmbeddedSynthesizer(Synthesizer, ABC):
    """A `Synthesizer` on a C library; `load` and `sound` run on the library's thread."""

    name: str
    spoken: Mapping[str, tuple[str, ...]]
    """The voices, the default first, and the ISO 639 codes of what each speaks, its own first."""

    def __init__(self) -> None:
        self._thread = ThreadPoolExecutor(1, thread_name_prefix=self.name)
        self._gains: dict[str, float] = {}

    @abstractmethod
    def load(self) -> None:
        """Loads the library. Raises EngineError."""

    @abstractmethod
    def sound(self, words: list[str], voice: str, speed: float = 1.0) -> Sound:
        """Synthesizes words without white space, at least one; for an English voice in ASCII. Of a
        voice that takes IPA, they may be between IPA_BEGINS and IPA_ENDS. Raises EngineError."""

    @property
    def languages(self) -> tuple[str, ...]:
        """ISO 639 codes of the languages."""
        return tuple(dict.fromkeys(code for codes in self.spoken.values() for code in codes))

    def voices(self) -> list[str]:
        return list(self.spoken)

    async def known_voices(self) -> list[KnownVoice]:
        """Returns the voices, the default first."""
        return [KnownVoice(name, languages=codes) for name, codes in self.spoken.items()]

    def voice_of(self, language: str) -> str:
        """Returns the voice for a language, the default one for "". Raises ValueError."""
        for voice, codes in self.spoken.items():
            if language in ("", *codes):
                return voice
        raise ValueError(f"{self.name} speaks {listed(self.languages)}, not {language!r}")

    async def start(self) -> None:
        loop = asyncio.get_running_loop()
        await loop.run_in_executor(self._thread, self.load)
        await loop.run_in_executor(self._thread, self.speak, CALIBRATION, self.voice_of(""))

    def open(self, options: VoiceOptions = DEFAULT_VOICE) -> "EmbeddedSpeech":
        voice, speed = options.voice or self.voice_of(options.language), options.speed
        if voice not in self.spoken:
            raise UnknownVoice(f"{self.name} has no voice {voice!r}, only {listed(self.spoken)}")
        codes = self.spoken[voice]
        if options.language not in ("", *codes):
            speaks = f"the voice {voice} speaks {listed(codes)}"
            raise ValueError(f"{self.name}: {speaks}, not {options.language!r}")
        language = options.language or codes[0]
        reader = self._reader(language, options.normalise)
        return EmbeddedSpeech(
            lambda words: self.speak_words(words, voice, speed, language),
            *(self._thread, speed, reader),
            warns=language == "en",
        )

    async def close(self) -> None:
        """Stops the thread after the current clause; replies in progress end there."""
        self._thread.shutdown(wait=False, cancel_futures=True)

    def speak(self, text: str, voice: str, speed: float = 1.0) -> list[Speech]:
        """Synthesizes a short text on the library's thread into pieces whose texts concatenate to
        it."""
        language = self.spoken[voice][0]
        reader = self._reader(language)
        return self.speak_words(reader.feed(text) + reader.finish(), voice, speed, language)

    def speak_words(
        self, words: Sequence[SpokenWord], voice: str, speed: float = 1.0, language: str = "en"
    ) -> list[Speech]:
        """Synthesizes words on the library's thread into pieces whose texts concatenate to
        theirs."""
        pairs = speakable_words(words, language)
        if not pairs:
            text = "".join(word.text for word in words)
            return [Speech(np.empty(0, np.int16), text, any(map(str.isalnum, text)))]
        sound = self.sound([word for _, spoken in pairs for word in spoken], voice, speed)
        last = np.cumsum([len(spoken) for _, spoken in pairs]) - 1
        ends = [sound.word_ends[number] for number in last]
        slices = [text for text, _ in pairs]
        return cut_at_words(Sound(sound.pcm, sound.rate, ends), slices, self._gain(voice))

    def _reader(self, language: str, normalise: bool = True) -> TextReader:
        return TextReader(language, normalise, ipa=self.takes_ipa)

    def _gain(self, voice: str) -> float:
        # One gain per voice rather than per clause: a short "Yes." must not be as loud as a
        # sentence.
        if voice not in self._gains:
            sound = self.sound(CALIBRATION.split(), voice)
            start, stop = voiced_span(sound.pcm, sound.rate)
            self._gains[voice] = 10 ** ((LEVEL_DBFS - dbfs(sound.pcm[start:stop])) / 20)
        return self._gains[voice]


def listed(names: Collection[str]) -> str:
    """Returns the names in a sentence, of many the first ones."""
    shown = ", ".join(list(names)[:MAX_LISTED])
    return shown if len(names) <= MAX_LISTED else f"{shown} and {len(names) - MAX_LISTED} more"


class EmbeddedSpeech:
    """One reply, spoken clause by clause as fast as it is iterated; implements `SynthesizerStream`.

    The pause before each clause but the first is a piece without text, so a reply ends with its
    last word. A clause with nothing to speak is a piece without audio. A word that may yet be read
    with the next ones is spoken with the next clause.
    """

    def __init__(
        self,
        speak: Callable[[list[SpokenWord]], list[Speech]],
        thread: Executor,
        speed: float = 1.0,
        reader: TextReader | None = None,
        warns: bool = False,
    ) -> None:
        """Without a reader the engine reads each clause, a single word here, by itself. `warns`:
        the voice speaks English, and leaves out what cannot be spelled in ASCII."""
        self._speak = speak
        self._warns = warns
        """Whether the first letters that are not spoken are still to be logged."""
        self._thread = thread
        self._speed = speed
        self._clauses = SpokenClauses(reader)
        self._waiting_chars = 0
        self._ended = False
        self._wake = asyncio.Event()
        self._cancelled: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def write(self, text: str) -> None:
        """Adds text. Raises TextTooLong if 100 000 characters are waiting."""
        if self._waiting_chars + len(text) > MAX_WAITING_CHARS:
            raise TextTooLong(f"more than {MAX_WAITING_CHARS} characters are waiting to be spoken")
        self._waiting_chars += len(text)
        self._clauses.write(text)
        self._wake.set()

    def end(self) -> None:
        self._clauses.end()
        self._ended = True
        self._wake.set()

    def cancel(self) -> None:
        if not self._cancelled.done():
            self._cancelled.set_result(None)
        self._clauses.clear()
        self._wake.set()

    async def __aiter__(self) -> AsyncIterator[Speech]:
        pause_ms = 0.0
        while (words := await self._next_words()) is not None:
            pieces = await self._spoken(words)
            for piece in _after_pause(pieces, pause_ms):
                if self._cancelled.done():
                    return
                yield piece
            if any(len(piece.pcm) for piece in pieces):
                pause_ms = pause_after_ms("".join(word.text for word in words)) / self._speed

    async def _next_words(self) -> list[SpokenWord] | None:
        while (words := self._clauses.pop()) is None:
            if self._ended or self._cancelled.done():
                return None
            self._wake.clear()
            await self._wake.wait()
        self._waiting_chars -= sum(len(word.text) for word in words)
        self._warn(words)
        return words

    def _warn(self, words: list[SpokenWord]) -> None:
        """Logs the first letters that are not spoken within a clause; a whole one is reported."""
        read = (word.spoken for word in words if IPA_BEGINS not in word.spoken)
        letters = unspeakable("".join(read)) if self._warns else ""
        if letters and speakable_words(words):
            self._warns = False
            logger.warning("the voice speaks English only, and leaves out {}", letters[:20])

    async def _spoken(self, words: list[SpokenWord]) -> list[Speech]:
        """Returns the clause's pieces; none if the reply is cancelled or the engine closed
        meanwhile."""
        try:
            work = asyncio.get_running_loop().run_in_executor(self._thread, self._speak, words)
        except RuntimeError as error:
            raise EngineError("the synthesizer is closed") from error
        try:
            await asyncio.wait((work, self._cancelled), return_when=asyncio.FIRST_COMPLETED)
        finally:
            # A clause waiting for the thread is withdrawn; one being spoken is dropped.
            abandoned = not work.done()
            work.cancel()
        return [] if abandoned or work.cancelled() else work.result()


def _after_pause(pieces: list[Speech], pause_ms: float) -> Iterator[Speech]:
    for piece in pieces:
        if pause_ms and len(piece.pcm):
            yield Speech(np.zeros(round(RATE_OUT * pause_ms / 1000), np.int16), "")
            pause_ms = 0
        yield piece
