"""Which of the words being said are over, from the sound itself.

A voice model says the words in order and does not tell when. Each word has a length by its letters
and syllables; a clock that runs with the speech (speech_clock.py) is where the voice is among them.
How slow the voice is against these lengths, and after which words it paused, is found out on the
way: a pause is most likely where punctuation is. A few hypotheses of where the last pause was are
kept, each with a Kalman filter of the slowness (one state: slowness; one observation a pause: the
speech since the pause before it).
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
"""What a letter adds to a word, and a group of vowels; of no voice in particular."""
SPELT_MS = 230.0
"""A letter said by its name, or a digit."""
HAN_MS, KANA_MS, HANGUL_MS = 230.0, 130.0, 190.0
LAST_MS = 150.0
"""A word is drawn out before a pause."""
SLOWNESS_DEVIATION = 0.2
"""Of an unknown voice against the lengths above."""
LEAST_DEVIATION = 0.05
"""Of a voice that has been heard: nobody speaks always alike."""
MOST_SURPRISE = 2.0
"""Standard deviations of a reply that are learnt from."""
WORD_VARIANCE = 30.0
"""ms² of deviation for each ms of length: a word of 330 ms is 100 ms off."""
PAUSES = {"": 0.02, ",": 0.6, ".": 0.93}
"""How likely a voice pauses after a word without punctuation, with a comma, with a full stop."""
NO_WORD = 0.02
"""How likely a pause is not between words at all: a long stop, a breath."""
HYPOTHESES = 4
FARTHEST = 4.0
"""Standard deviations between where the clock is and a word that may have just ended."""
HELD = {",": 0.55, ".": 1.5}
"""Standard deviations the voice may seem to be past punctuation without a pause: as long as it is
likelier that it is not there yet."""

_FULL_STOP = re.compile(r"[.!?…。！？]['\"”’»)\]」』]*$")
_COMMA = re.compile(r"[,;:—–，、；：]['\"”’»)\]」』]*$")
_VOWELS = re.compile(r"[aeiouyæœøаеёиоуыэюяіїєαεηιουω]+")


@lru_cache(4096)
def length_ms(spoken: str) -> float:
    """How long the word takes to say, about, without what punctuation adds."""
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
    """What a word ends with: "." for a full stop or its like, "," for a comma or its like."""
    if _FULL_STOP.search(spoken):
        return "."
    return "," if _COMMA.search(spoken) else ""


class Pace:
    """How slow a voice is, learnt from its replies: one for each voice, handed to its next."""

    def __init__(self) -> None:
        self.slowness = 1.0
        self.variance = SLOWNESS_DEVIATION**2

    def learn(self, heard_ms: float, length: float) -> None:
        """A whole reply: the speech in it and the length of its words."""
        spread = self.variance * length**2 + WORD_VARIANCE * length
        gain = self.variance * length / spread
        # A reply that broke off, or of which words were left out, shall not be learnt from much.
        most = MOST_SURPRISE * sqrt(spread)
        error = min(max(heard_ms - self.slowness * length, -most), most)
        self.slowness += gain * error
        self.variance = max(self.variance * (1 - gain * length), LEAST_DEVIATION**2)


@dataclass(frozen=True)
class _Hypothesis:
    """Where the last pause was."""

    word: int
    """The number of the first word after it."""
    at: float
    """The length of the words before it, ms."""
    since: float
    """What the clock showed at the pause."""
    slowness: float
    variance: float
    likelihood: float
    """Logarithm, but for a constant."""

    def spread(self, length: float) -> float:
        """Variance of the speech that so long a stretch of words takes, ms²."""
        return self.variance * length**2 + WORD_VARIANCE * length


class WordMarks:
    """Words in as they are written, sound in as it is played; words out as they end."""

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

    def written(self, word: SpokenWord) -> None:
        mark = punctuation(word.spoken)
        before = self._ends[-1] if self._ends else 0.0
        self._ends.append(before + length_ms(word.spoken) + (LAST_MS if mark else 0.0))
        self._texts.append(word.text)
        self._punctuation.append(mark)

    def heard(self, pcm: Pcm) -> list[str]:
        """The texts of the words that end in this piece (24 kHz). The last word written ends with
        a pause or with `finish`: until then nobody knows that it is the last."""
        ms, before_pause = self._clock.hear(pcm)
        if before_pause is not None:
            self._heard_ms += before_pause
            self._pause()
            ms -= before_pause
        self._heard_ms += ms
        return self._told_up_to(self._words_over())

    def finish(self) -> list[str]:
        """The texts of the words left, once all the sound has been heard."""
        if self._ends and self._ends[-1]:
            self._pace.learn(self._heard_ms, self._ends[-1])
        return self._told_up_to(len(self._texts))

    def _told_up_to(self, words: int) -> list[str]:
        texts = self._texts[self._told : words]
        self._told = max(self._told, words)
        return texts

    def _words_over(self) -> int:
        best = self._hypotheses[0]
        place = best.at + (self._heard_ms - best.since) / best.slowness
        over = best.word
        while over < len(self._ends) - 1 and self._ends[over] <= place:
            if self._holds(best, over, place):
                break
            over += 1
        return over

    def _holds(self, best: _Hypothesis, word: int, place: float) -> bool:
        """Whether the word's end, of which a pause should tell, has likely not been reached."""
        deviations = HELD.get(self._punctuation[word])
        if deviations is None:
            return False
        deviation = sqrt(best.spread(self._ends[word] - best.at)) / best.slowness
        return place - self._ends[word] < deviations * deviation

    def _pause(self) -> None:
        """A pause has been heard: every hypothesis puts it after each word it can be after."""
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
