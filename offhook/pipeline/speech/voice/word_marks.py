"""Finds which words have been spoken, from the audio.

A voice model speaks the words in order but does not say when. Each word has an expected length by
its letters and syllables; a clock that runs with the speech (speech_clock.py) gives the position
among them. The voice's slowness relative to these lengths, and the words after which it paused, are
estimated on the way: pauses are most likely at punctuation. Several hypotheses of the last pause's
position are kept, each with a Kalman filter of the slowness (one state; one observation per pause:
the speech since the previous pause).
"""

import re
import unicodedata
from dataclasses import dataclass
from functools import lru_cache
from math import log, sqrt

from offhook.media.pcm import Pcm
from offhook.pipeline.speech.streams.speech_clock import SpeechClock
from offhook.pipeline.speech.text.spoken_text import SpokenWord

LETTER_MS, SYLLABLE_MS = 50.0, 40.0
"""Expected length of a letter and of a vowel group, for an average voice."""
SPELT_MS = 230.0
"""Expected length of a spelled letter or a digit."""
HAN_MS, KANA_MS, HANGUL_MS = 230.0, 130.0, 190.0
LAST_MS = 150.0
"""Lengthening of a word before a pause."""
SLOWNESS_DEVIATION = 0.2
"""Standard deviation of an unknown voice's slowness."""
LEAST_DEVIATION = 0.05
"""Minimum standard deviation of a known voice, since nobody speaks uniformly."""
MOST_SURPRISE = 2.0
"""Maximum standard deviations that one reply may teach."""
WORD_VARIANCE = 30.0
"""Variance in ms² per ms of length: a word of 330 ms is off by 100 ms."""
PAUSES = {"": 0.02, ",": 0.6, ".": 0.93}
"""Probability of a pause after a word without punctuation, with a comma, with a full stop."""
NO_WORD = 0.02
"""Probability that a pause is not between words: a long stop, a breath."""
HYPOTHESES = 4
FARTHEST = 4.0
"""Maximum distance, in standard deviations, between the clock and the end of a word that may just
have ended."""
HELD = {",": 0.55, ".": 1.5}
"""How far, in standard deviations, the voice may seem to be past punctuation without a pause; until
then it more likely has not reached it."""

_FULL_STOP = re.compile(r"[.!?…。！？]['\"”’»)\]」』]*$")
_COMMA = re.compile(r"[,;:—–，、；：]['\"”’»)\]」』]*$")
_VOWELS = re.compile(r"[aeiouyæœøаеёиоуыэюяіїєαεηιουω]+")


@lru_cache(4096)
def length_ms(spoken: str) -> float:
    """Returns the approximate length of a word, without the effect of punctuation."""
    total = 0.0
    for word in spoken.split():
        if word.isupper() and 1 < len(word) <= 5 and word.isascii():
            total += SPELT_MS * sum(map(str.isalpha, word))
            continue
        plain = unicodedata.normalize("NFD", word.lower())
        total += sum(map(_letter_ms, plain)) + SYLLABLE_MS * len(_VOWELS.findall(plain))
    return total


def _letter_ms(char: str) -> float:
    if "a" <= char <= "z" or "\u0370" <= char <= "\u04ff":
        return LETTER_MS
    if char.isdecimal():
        return SPELT_MS
    if "\u3041" <= char <= "\u30ff":
        return KANA_MS
    if "\u1100" <= char <= "\u1112":
        return HANGUL_MS
    if "\u3400" <= char <= "\u9fff" or char == "々":
        return HAN_MS
    return LETTER_MS if unicodedata.category(char) in ("Ll", "Lo") and char > "\u11ff" else 0.0


def punctuation(spoken: str) -> str:
    """Returns the punctuation that ends a word: "." for a full stop or similar, "," for a comma or
    similar."""
    if _FULL_STOP.search(spoken):
        return "."
    return "," if _COMMA.search(spoken) else ""


class Pace:
    """A voice's slowness, learned from its replies and passed from one to the next."""

    def __init__(self) -> None:
        self.slowness = 1.0
        self.variance = SLOWNESS_DEVIATION**2

    def learn(self, heard_ms: float, length: float) -> None:
        """Learns from a whole reply: the ms of speech and the expected length of its words."""
        spread = self.variance * length**2 + WORD_VARIANCE * length
        gain = self.variance * length / spread
        # A reply that broke off, or omitted words, must not teach much.
        most = MOST_SURPRISE * sqrt(spread)
        error = min(max(heard_ms - self.slowness * length, -most), most)
        self.slowness += gain * error
        self.variance = max(self.variance * (1 - gain * length), LEAST_DEVIATION**2)


@dataclass(frozen=True)
class _Hypothesis:
    """A hypothesis of where the last pause was."""

    word: int
    """Index of the first word after it."""
    at: float
    """Length of the words before it, in ms."""
    since: float
    """The clock at the pause."""
    slowness: float
    variance: float
    likelihood: float
    """Log-likelihood up to a constant."""

    def spread(self, length: float) -> float:
        """Returns the variance, in ms², of the speech over words of this length."""
        return self.variance * length**2 + WORD_VARIANCE * length


class WordMarks:
    """Written words and played audio in; words out as they end."""

    def __init__(self, speed: float = 1.0, pace: Pace | None = None) -> None:
        self._clock = SpeechClock(speed)
        self._pace = pace or Pace()
        self._texts: list[str] = []
        self._ends: list[float] = []
        self._punctuation: list[str] = []
        self._told = 0
        self._heard_ms = 0.0
        start = _Hypothesis(0, 0.0, 0.0, self._pace.slowness, self._pace.variance, 0.0)
        self._hypotheses = [start]

    def write(self, word: SpokenWord) -> None:
        mark = punctuation(word.spoken)
        before = self._ends[-1] if self._ends else 0.0
        self._ends.append(before + length_ms(word.spoken) + (LAST_MS if mark else 0.0))
        self._texts.append(word.text)
        self._punctuation.append(mark)

    def feed(self, pcm: Pcm) -> list[str]:
        """Returns the texts of the words that end in this piece (24 kHz). The last word ends with a
        pause or with `finish`, since it is not known to be the last before."""
        return self._advance(*self._clock.feed(pcm))

    def feed_parts(self, pcm: Pcm, size: int) -> list[list[str]]:
        """Adds a piece of audio and returns for each `size` samples of it what `feed` would."""
        parts = self._clock.feed_parts(pcm, size) if len(pcm) else []
        return [self._advance(*part) for part in parts]

    def _advance(self, ms: float, before_pause: float | None) -> list[str]:
        if before_pause is not None:
            self._heard_ms += before_pause
            self._pause()
            ms -= before_pause
        self._heard_ms += ms
        return self._reported_up_to(self._words_over())

    def finish(self) -> list[str]:
        """Returns the texts of the remaining words, once all audio has been heard."""
        if self._ends and self._ends[-1]:
            self._pace.learn(self._heard_ms, self._ends[-1])
        return self._reported_up_to(len(self._texts))

    def _reported_up_to(self, words: int) -> list[str]:
        texts = self._texts[self._told : words]
        self._told = max(self._told, words)
        return texts

    def _words_over(self) -> int:
        best = self._hypotheses[0]
        place = best.at + (self._heard_ms - best.since) / best.slowness
        over = best.word
        while over < len(self._ends) - 1 and self._ends[over] <= place:
            if self._punctuation[over] and self._holds(best, over, place):
                break
            over += 1
        return over

    def _holds(self, best: _Hypothesis, word: int, place: float) -> bool:
        """Returns whether the end of a word with punctuation, which should be followed by a pause,
        has probably not been reached."""
        deviations = HELD[self._punctuation[word]]
        deviation = sqrt(best.spread(self._ends[word] - best.at)) / best.slowness
        return place - self._ends[word] < deviations * deviation

    def _pause(self) -> None:
        """Handles a pause: every hypothesis places it after each possible word."""
        candidates = [new for old in self._hypotheses for new in self._after_pause(old)]
        candidates.sort(key=lambda hypothesis: -hypothesis.likelihood)
        best: dict[tuple[int, float], _Hypothesis] = {}
        for candidate in candidates:
            best.setdefault((candidate.word, candidate.since), candidate)
        self._hypotheses = list(best.values())[:HYPOTHESES]

    def _after_pause(self, old: _Hypothesis) -> list[_Hypothesis]:
        new = [_moved(old, log(NO_WORD))]
        heard, passed = self._heard_ms - old.since, 0.0
        for word in range(old.word, len(self._ends)):
            length = self._ends[word] - old.at
            spread = old.spread(length)
            error = heard - old.slowness * length
            pauses = PAUSES[self._punctuation[word]]
            if length and error * error < FARTHEST**2 * spread:
                gain = old.variance * length / spread
                fit = log(pauses) + passed - error * error / (2 * spread) - log(spread / 1e4) / 2
                new.append(
                    _Hypothesis(
                        word + 1,
                        self._ends[word],
                        self._heard_ms,
                        old.slowness + gain * error,
                        old.variance * (1 - gain * length),
                        old.likelihood + fit,
                    )
                )
            elif error < 0:
                break
            passed += log(1 - pauses)
        return new


def _moved(old: _Hypothesis, likelihood: float) -> _Hypothesis:
    return _Hypothesis(
        old.word, old.at, old.since, old.slowness, old.variance, old.likelihood + likelihood
    )
