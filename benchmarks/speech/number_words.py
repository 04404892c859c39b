"""Speech whose words can be counted exactly, and the engines that hear and speak it.

A word is 200 ms of a synthetic voice at one of six levels, 3.5 dB apart. The voice is vowels that
change as fast as the sounds of speech, so a voice activity detector takes it for speech, at a
constant level, so the level survives resampling, G.711 and Opus. Adjacent words of a line differ;
what a recognizer lost, repeated or misheard is therefore exactly the difference between two lists
of words.

    python -m benchmarks.speech.number_words asr|tts --listen HOST:PORT

runs one of the engines as an ordinary worker, which edges use by its URL.
"""

import argparse
import asyncio
import math
import re
from collections.abc import AsyncIterator, Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from random import Random
from typing import Any
from zlib import crc32

import numpy as np
import numpy.typing as npt

from offhook.media.pcm import RATE_IN, RATE_OUT, Pcm
from offhook.pipeline.speech.recognizer import (
    DEFAULT_OPTIONS,
    Final,
    Partial,
    Recognizer,
    StreamOptions,
)
from offhook.pipeline.speech.synthesizer import DEFAULT_VOICE, Speech, Synthesizer, VoiceOptions
from offhook.web.config.config import Log
from offhook.web.http.listening_io import Address, listener
from offhook.web.http.logs_io import set_up
from offhook.web.http.stop_io import Stop
from offhook.web.speech_api.sockets.engine_metrics import AsrMetrics, TtsMetrics
from offhook.web.workers.worker_io import Worker, WorkerSettings, run_to_end, serve

NUMBERS = ("zero", "one", "two", "three", "four", "five")
"""The words of callers, loudest first."""
LETTERS = ("alpha", "bravo", "charlie", "delta", "echo", "foxtrot")
"""The words of agents, which sound the same: an agent that repeated the caller's own words could be
taken for their echo."""
WORD_MS = 200
LEAD_MS = 300
"""The first word of a caller's line lasts this much longer, so that it is not lost while a voice
activity detector makes up its mind."""
ONSET_MS = 40
"""The same of an agent's replies: what an encoder takes to settle."""
LOUDEST_DBFS = -10.0
STEP_DB = 3.5
QUIETEST_DBFS = LOUDEST_DBFS - (len(NUMBERS) - 0.5) * STEP_DB
"""Below it is silence."""
BLOCK_MS = 10
SMOOTHED_BLOCKS = 2
"""Blocks over which a level is averaged: 20 ms, as the voice is levelled."""
CONFIRMED_BLOCKS = 8
"""Blocks of a level that make a word, not necessarily in a row: a packet lost within a word, and
what a decoder makes of the one after it, neither hide it nor make another."""
VOICE_S = 10
"""Length of the voice, which then starts again."""
VOWEL_MS = 60
"""Length of a vowel, which glides into the next. Speech has about fifteen sounds a second. Silero
takes up to half of slower vowels for no speech, more the longer a call lasts: the turn then ends
before the line, and its last words are lost."""

Floats = npt.NDArray[np.float64]

_LEVEL = {word: level for names in (NUMBERS, LETTERS) for level, word in enumerate(names)}
_FORMANTS = np.array(
    ((730, 1090, 2440), (270, 2290, 3010), (530, 1840, 2480), (300, 870, 2240), (570, 840, 2410))
)
"""Formants in Hz of the vowels a, i, e, u, o (Peterson and Barney 1952, rounded)."""
CALLER_HZ = 113.0
"""Pitch, which also seeds the voice."""
AGENT_HZ = 170.0
"""Agents have another voice, lest a caller be taken for the agent's echo."""
_HIGHEST_HZ = 3700.0
"""Within the band of a telephone."""


def level_of(word: str) -> int:
    """Returns the level of a word, 0 the loudest; words of neither list have one too."""
    plain = word.strip(" .,;:!?").lower()
    return _LEVEL.get(plain, crc32(plain.encode()) % len(NUMBERS))


def letters(text: str) -> list[str]:
    """Returns an agent's words for those of a caller: they sound the same."""
    return [LETTERS[level_of(word)] for word in text.split()]


def line(words: int, chance: Random) -> list[str]:
    """Returns random words of a caller, adjacent ones different."""
    said: list[str] = []
    while len(said) < words:
        word = chance.choice(NUMBERS)
        if not said or said[-1] != word:
            said.append(word)
    return said


@cache
def voice(rate: int, pitch_hz: float = CALLER_HZ) -> Floats:
    """Returns VOICE_S of a voice at `rate`, each 20 ms at a level of 1."""
    chance = np.random.default_rng(round(pitch_hz))
    samples = VOICE_S * rate
    places = VOICE_S * 1000 // VOWEL_MS
    where = np.linspace(0, places - 1, samples)
    order: list[int] = []
    while len(order) < places:
        vowel = int(chance.integers(0, len(_FORMANTS)))
        if order[-1:] != [vowel]:
            order.append(vowel)
    vowels = _FORMANTS[order]
    formants = [np.interp(where, np.arange(places), vowels[:, n]) for n in range(3)]
    bend = np.interp(where, np.arange(places), chance.uniform(-0.15, 0.15, places))
    pitch = pitch_hz * (1 + bend)
    phase = 2 * np.pi * np.cumsum(pitch) / rate
    sound = np.zeros(samples)
    for harmonic in range(1, int(_HIGHEST_HZ / (0.85 * pitch_hz))):
        at = harmonic * pitch
        loudness = sum(
            gain / (1 + ((at - formant) / width) ** 2)
            for formant, width, gain in zip(formants, (60, 80, 120), (1.0, 0.6, 0.3), strict=True)
        )
        audible = (at < _HIGHEST_HZ) / harmonic
        sound += loudness * audible * np.sin(harmonic * phase + harmonic**2)
    window = np.hanning(rate // 50)
    level = np.sqrt(np.convolve(sound**2, window / window.sum(), "same"))
    levelled: Floats = sound / np.maximum(level, 1e-3 * level.max())
    return levelled


def sound(
    words: Iterable[str],
    rate: int = RATE_OUT,
    first: int = 0,
    lead_ms: int = 0,
    pitch_hz: float = CALLER_HZ,
) -> Pcm:
    """Returns the sound of words; `first` is the place of the first within the voice, in words, so
    that the pieces of a line fit. The first one lasts `lead_ms` longer."""
    samples = rate * WORD_MS // 1000
    all_of_it = voice(rate, pitch_hz)
    words = list(words)
    pieces = []
    if words and lead_ms:
        gain = 32768 * 10 ** ((LOUDEST_DBFS - STEP_DB * level_of(words[0])) / 20)
        pieces.append(gain * all_of_it[-(rate * lead_ms // 1000) :])
    for number, word in enumerate(words, first):
        start = number * samples % len(all_of_it)
        gain = 32768 * 10 ** ((LOUDEST_DBFS - STEP_DB * level_of(word)) / 20)
        pieces.append(gain * all_of_it[start : start + samples])
    whole = np.concatenate(pieces) if pieces else np.zeros(0)
    return whole.clip(-32768, 32767).astype(np.int16)


class WordCounter:
    """Hears levels in sound that comes in pieces of any length."""

    def __init__(self, rate: int = RATE_IN) -> None:
        self.levels: list[int] = []
        """The words so far; the last one may still be going on."""
        self._block = rate * BLOCK_MS // 1000
        self._rest = np.zeros(0, np.int16)
        self._power = 0.0
        """Of the block before."""
        self._last = -1
        self._others = [0] * (len(NUMBERS) + 1)
        """Blocks of each other level, silence the last, since the current one was steady."""
        self._current = -1
        """Level of the word that goes on; -1 in silence."""
        self._length = 0
        """Blocks of it so far."""
        self._lead = 0
        """Blocks by which the word may be longer, as the first one after silence."""
        self._counted = 0
        """How often it was counted: a level that lasts for two words is two."""

    def feed(self, pcm: Pcm) -> None:
        samples = np.concatenate((self._rest, pcm)) if len(self._rest) else pcm
        whole = len(samples) // self._block * self._block
        self._rest = samples[whole:]
        blocks = samples[:whole].reshape(-1, self._block).astype(np.float64) / 32768
        for power in (blocks**2).mean(axis=1).tolist():
            mean = (power + self._power) / SMOOTHED_BLOCKS
            self._power = power
            self._add(level_at(mean))

    def _add(self, level: int) -> None:
        steady, self._last = level == self._last, level
        if level == self._current:
            self._length += 1
            if steady:
                self._others = [0] * len(self._others)
        else:
            self._others[level] += 1
            if self._others[level] == CONFIRMED_BLOCKS:
                self._lead = LEAD_MS // BLOCK_MS if self._current < 0 else 0
                self._current, self._length, self._counted = level, CONFIRMED_BLOCKS, 0
                self._others = [0] * len(self._others)
        if self._current < 0:
            return
        # Blocks between two words may count for either: a second word needs most of its length.
        words = max(1, ((self._length - self._lead) * BLOCK_MS + WORD_MS // 3) // WORD_MS)
        if words > self._counted:
            self._counted = words
            self.levels.append(self._current)

    def text(self) -> str:
        return " ".join(NUMBERS[level] for level in self.levels)


def level_at(power: float) -> int:
    """Returns the level of a mean square of samples -1..1; -1 is silence."""
    dbfs = 10 * math.log10(power + 1e-12)
    if dbfs < QUIETEST_DBFS:
        return -1
    return min(max(round((LOUDEST_DBFS - dbfs) / STEP_DB), 0), len(NUMBERS) - 1)


@dataclass(frozen=True)
class Comparison:
    """Words said beside words heard."""

    right: int = 0
    lost: int = 0
    twice: int = 0
    """Words heard that were not said: repeated, or invented."""
    wrong: int = 0
    inaudible: int = 0
    """Words said whose sound did not arrive whole, and which were not heard right."""

    def __add__(self, other: "Comparison") -> "Comparison":
        return Comparison(
            self.right + other.right,
            self.lost + other.lost,
            self.twice + other.twice,
            self.wrong + other.wrong,
            self.inaudible + other.inaudible,
        )


_ERROR, _EXCUSED = 1000, 1
"""Costs of a difference, and of one at an inaudible word."""


def compare(
    said: Sequence[int],
    heard: Sequence[int],
    inaudible: Collection[int] = (),
    due: int | None = None,
) -> Comparison:
    """Aligns two lists of words with the fewest differences. `inaudible` has places in `said`: such
    a word may be missing, or heard as another, or in pieces. Only the first `due` words said need
    have been heard; None: all."""
    first = 0  # what is equal at the beginning is aligned so at no cost
    while first < min(len(said), len(heard)) and said[first] == heard[first]:
        first += 1
    rows, columns = len(said) + 1 - first, len(heard) + 1 - first
    remove = [_EXCUSED if first + i in inaudible else _ERROR for i in range(rows - 1)]

    def insert(i: int, level: int) -> int:
        """Returns the cost of a word heard between two that were said: pieces of an inaudible one
        sound like itself or like its neighbour."""
        around = [at for at in (first + i - 1, first + i) if 0 <= at < len(said)]
        excused = any(at in inaudible for at in around) and level in [said[at] for at in around]
        return _EXCUSED if excused else _ERROR

    cost = [[0] * columns for _ in range(rows)]
    for i in range(rows):
        for j in range(columns):
            ways = []
            if i and j:
                same = said[first + i - 1] == heard[first + j - 1]
                ways.append(cost[i - 1][j - 1] + (0 if same else remove[i - 1]))
            if i:
                ways.append(cost[i - 1][j] + remove[i - 1])
            if j:
                ways.append(cost[i][j - 1] + insert(i, heard[first + j - 1]))
            cost[i][j] = min(ways, default=0)
    i, j = rows - 1, columns - 1
    least = max(0, (len(said) if due is None else due) - first)
    for row in range(i, least - 1, -1):
        if cost[row][j] < cost[i][j]:
            i = row
    right = first
    lost = twice = wrong = unheard = 0
    while i or j:
        audible = first + i - 1 not in inaudible
        same = bool(i and j) and said[first + i - 1] == heard[first + j - 1]
        if i and j and cost[i][j] == cost[i - 1][j - 1] + (0 if same else remove[i - 1]):
            i, j = i - 1, j - 1
            right, wrong = right + same, wrong + (audible and not same)
            unheard += not (same or audible)
        elif i and cost[i][j] == cost[i - 1][j] + remove[i - 1]:
            i, lost, unheard = i - 1, lost + audible, unheard + (not audible)
        else:
            j -= 1
            twice += insert(i, heard[first + j]) == _ERROR
    return Comparison(right, lost, twice, wrong, unheard)


class NumberRecognizer(Recognizer):
    """Hears the words above; everything else is silence."""

    name = "number-words"
    languages = ("en",)

    async def start(self) -> None:
        pass

    async def open(self, options: StreamOptions = DEFAULT_OPTIONS) -> "NumberRecognizerStream":
        return NumberRecognizerStream(options.update_ms)

    async def close(self) -> None:
        pass


class NumberRecognizerStream:
    def __init__(self, update_ms: int) -> None:
        self._events: asyncio.Queue[Partial | Final | None] = asyncio.Queue()
        self._update = update_ms * RATE_IN // 1000
        self._begin()

    def _begin(self) -> None:
        self._heard = WordCounter()
        self._samples = self._told = 0

    def feed(self, pcm: Pcm) -> None:
        self._heard.feed(pcm)
        self._samples += len(pcm)
        if self._samples - self._told >= self._update:
            self._told = self._samples
            text = self._heard.text()
            self._events.put_nowait(Partial(text, len(text), self._audio_ms()))

    def finish(self) -> None:
        self._events.put_nowait(Final(self._heard.text(), self._audio_ms()))
        self._begin()

    def cancel(self) -> None:
        self._begin()

    def _audio_ms(self) -> int:
        return self._samples * 1000 // RATE_IN

    async def events(self) -> AsyncIterator[Partial | Final]:
        while (event := await self._events.get()) is not None:
            yield event

    async def close(self) -> None:
        self._events.put_nowait(None)


class NumberSynthesizer(Synthesizer):
    """Speaks the words above, and any other word at some level of its own."""

    name = "number-words"

    def __init__(self, pace: float = 0.25) -> None:
        """`pace` is the time a word takes to synthesize, of the time that it sounds."""
        self._word_s = pace * WORD_MS / 1000

    async def start(self) -> None:
        voice(RATE_OUT, AGENT_HZ)

    def voices(self) -> list[str]:
        return ["number-words"]

    def open(self, options: VoiceOptions = DEFAULT_VOICE) -> "NumberSynthesizerStream":
        return NumberSynthesizerStream(self._word_s)

    async def close(self) -> None:
        pass


class NumberSynthesizerStream:
    def __init__(self, word_s: float) -> None:
        self._text: asyncio.Queue[str | None] = asyncio.Queue()
        self._word_s = word_s
        self._cancelled = False

    def write(self, text: str) -> None:
        self._text.put_nowait(text)

    def end(self) -> None:
        self._text.put_nowait(None)

    def cancel(self) -> None:
        self._cancelled = True
        self._text.put_nowait(None)

    async def __aiter__(self) -> AsyncIterator[Speech]:
        pending, spoken, ended = "", 0, False
        while not ended and not self._cancelled:
            text = await self._text.get()
            ended = text is None
            pending += text or ""
            # The last word may go on in the next text until white space ends it.
            words = re.findall(r"\s*\S+\s+" if not ended else r"\s*\S+\s*", pending)
            pending = pending[sum(map(len, words)) :]
            for word in words:
                if self._cancelled:
                    return
                lead_ms = ONSET_MS if spoken == 0 else 0
                pcm = sound([word.strip()], RATE_OUT, spoken, lead_ms, AGENT_HZ)
                yield Speech(pcm, word)
                spoken += 1
                await asyncio.sleep(self._word_s)


def worker(kind: str, settings: WorkerSettings, pace: float = 0.25) -> Worker[Any]:
    """Returns a worker with one of these engines, `kind` asr or tts."""
    if kind == "asr":
        return Worker(settings, lambda told: NumberRecognizer(), AsrMetrics())
    make: Callable[..., NumberSynthesizer] = lambda told: NumberSynthesizer(pace)  # noqa: E731
    return Worker(settings, make, TtsMetrics())


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.speech.number_words")
    parser.add_argument("kind", choices=("asr", "tts"))
    parser.add_argument("--listen", default="127.0.0.1:7870", metavar="ADDRESS")
    parser.add_argument("--max-streams", type=int, default=400)
    parser.add_argument("--drain-seconds", type=float, default=30.0)
    parser.add_argument(
        "--pace", type=float, default=0.25, help="seconds of synthesis for a second of sound (0.25)"
    )
    parser.add_argument("--log-level", default="WARNING")
    a = parser.parse_args(argv)
    set_up(Log.model_validate({"level": a.log_level}))
    address = Address.parse(a.listen)
    settings = WorkerSettings(
        "number-words",
        "",
        a.max_streams,
        drain_seconds=a.drain_seconds,
        local=address.local,
        audio_cache="off",
    )

    async def work() -> None:
        stop = Stop()
        stop.on_signals()
        await serve(worker(a.kind, settings, a.pace), listener(address), stop)

    run_to_end(work())


if __name__ == "__main__":
    main()
