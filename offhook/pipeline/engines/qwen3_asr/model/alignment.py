"""Text and time rules of forced alignment: splits a text into words and repairs predicted times.

The rules are those published with Qwen3-ForcedAligner (qwen-asr 0.0.6, transformers): words are
separated by white space, an ideograph is a word, and the model gets only letters, digits and
apostrophes. Two languages are split without the libraries used there:

- Japanese: between kanji, hiragana, katakana and other letters, which is close to the short words
  of nagisa (it splits some hiragana further); nagisa depends on its own neural network library;
- Korean: at white space. With a dictionary of 275 KB soynlp can split off endings
  ("학교에" into "학교" and "에"), and it depends on scikit-learn;
  without the dictionary it also splits at white space.
"""

import re
import unicodedata
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from offhook.pipeline.speech.recognizer import Word

LANGUAGES = frozenset({"de", "en", "es", "fr", "it", "ja", "ko", "pt", "ru", "yue", "zh"})
"""Supported ISO 639 codes, from the model card."""
SNAPPED = 2
"""Maximum run of wrong times that take a neighbour's value; longer runs are spread evenly."""

_IDEOGRAPH = (
    "\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff"
    "\U00020000-\U0002a6df\U0002a700-\U0002ceaf\U0002f800-\U0002fa1f"
)
_HIRAGANA = "ぁ-ゖゝ-ゟ"
_KATAKANA = "ァ-ヺー-ヿㇰ-ㇿｦ-ﾟ"
_SIGN = re.compile(rf"[^\w'{_IDEOGRAPH}]|_")


def _run(apart: str) -> str:
    """Returns a pattern for letters outside the scripts in `apart`, with the punctuation between
    them."""
    letter = rf"(?:[^\W_{apart}]|')"
    return rf"{letter}(?:[^\s{apart}]*{letter})?"


_WORD = re.compile(rf"[{_IDEOGRAPH}]|{_run(_IDEOGRAPH)}")
_JAPANESE_WORD = re.compile(
    rf"[{_IDEOGRAPH}々〆〇][{_IDEOGRAPH}々〆〇ヵヶ]*|[{_HIRAGANA}][{_HIRAGANA}ー]*|[{_KATAKANA}]+"
    rf"|{_run(_IDEOGRAPH + '々〆〇' + _HIRAGANA + _KATAKANA)}"
)


class AlignmentError(ValueError):
    """Raised for audio, text or a language that cannot be aligned; the message says why."""


# --- words ---


@dataclass(frozen=True)
class Unit:
    """A word that gets its own times."""

    text: str
    """The word as written, with surrounding punctuation."""
    spoken: str
    """Its letters and digits, the model's input."""


def split(text: str, language: str) -> list[Unit]:
    """Splits a text into words, which are slices of `text` that omit only white space; empty if
    nothing is spoken.

    `language` is an ISO 639 code. Raises AlignmentError if it is not in LANGUAGES.
    """
    if language not in LANGUAGES:
        known = ", ".join(sorted(LANGUAGES))
        raise AlignmentError(f"words of {language!r} cannot be aligned, only of {known}")
    word = _JAPANESE_WORD if language == "ja" else _WORD
    found = list(word.finditer(text))
    if not found:
        return []
    cuts = [a.end() + _cut(text[a.end() : b.start()]) for a, b in pairwise(found)]
    slices = pairwise((0, *cuts, len(text)))
    return [
        Unit(text[start:end].strip(), _SIGN.sub("", match[0]))
        for match, (start, end) in zip(found, slices, strict=True)
    ]


def _cut(between: str) -> int:
    """Returns how many of the characters between two words belong to the first: those touching it
    and free-standing ones that do not open a bracket or quotation."""
    spaces = [i for i, c in enumerate(between) if c.isspace()]
    least, cut = (spaces[0], spaces[-1] + 1) if spaces else (0, len(between))
    while cut > least and (between[cut - 1].isspace() or _opens(between[cut - 1])):
        cut -= 1
    return cut


def _opens(sign: str) -> bool:
    return unicodedata.category(sign) in ("Ps", "Pi")


# --- times ---


def timed(units: Sequence[Unit], times: Sequence[int], audio_ms: int) -> tuple[Word, ...]:
    """Returns words with start and end times in ms that never decrease and lie within the audio,
    from the predicted `times` (two per word, in any order)."""
    within = [min(t, audio_ms) for t in repair(times)]
    spans = zip(within[::2], within[1::2], strict=True)
    return tuple(Word(u.text, start, end) for u, (start, end) in zip(units, spans, strict=True))


def repair(times: Sequence[int]) -> list[int]:
    """Replaces times that are out of order.

    Times in the longest non-decreasing subsequence are right. One or two wrong ones between two
    right ones take the nearer value (the earlier on a tie); longer runs are spread evenly; those
    before the first and after the last right one take its value.
    """
    if not times:
        return []
    right = longest_rise(times)
    first, last = times[right[0]], times[right[-1]]
    repaired = [first] * right[0]
    for a, b in pairwise(right):
        repaired += [times[a], *_fill(times[a], times[b], b - a - 1)]
    return [*repaired, *[last] * (len(times) - right[-1])]


def _fill(left: int, right: int, count: int) -> list[int]:
    if count <= SNAPPED:
        nearer_left = (count + 1) // 2
        return [left] * nearer_left + [right] * (count - nearer_left)
    return [left + (right - left) * k // (count + 1) for k in range(1, count + 1)]


def longest_rise(values: Sequence[int]) -> list[int]:
    """Returns the indices of the longest non-decreasing subsequence; among several, the one with
    the earliest indices read from its end. O(n log n) (Schensted 1961)."""
    # [k]: where subsequences of k + 1 values end; their values strictly decrease
    ends: list[list[int]] = []
    before: list[int] = []
    for i, value in enumerate(values):
        k = bisect_right(ends, value, key=lambda row: values[row[-1]])
        if k == len(ends):
            ends.append([])
        ends[k].append(i)
        shorter = ends[k - 1] if k else []
        at = bisect_left(shorter, -value, key=lambda j: -values[j])
        before.append(shorter[at] if k else -1)
    rise = []
    at = ends[-1][0] if ends else -1
    while at >= 0:
        rise.append(at)
        at = before[at]
    return rise[::-1]
