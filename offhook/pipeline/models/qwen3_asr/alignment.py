"""Forced alignment beside the model: a text cut in words, and the times found put in order.

The rules are those Qwen3-ForcedAligner was published with (qwen-asr 0.0.6, transformers): words
are what white space leaves, an ideograph is a word by itself, and the model is given letters,
digits and apostrophes only. Two languages are cut without the libraries used there:

- Japanese: between kanji, hiragana, katakana and other letters, which is near the short words of
  nagisa (it splits some hiragana further); nagisa brings a neural network library of its own.
- Korean: at white space. soynlp may cut an ending off ("학교에" as "학교" and "에") if given a
  dictionary of 275 KB, and brings scikit-learn. Without the dictionary it cuts at white space.
"""

import re
import unicodedata
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from offhook.pipeline.speech.recognizer import Word

LANGUAGES = frozenset({"de", "en", "es", "fr", "it", "ja", "ko", "pt", "ru", "yue", "zh"})
"""ISO 639 codes, by the model card."""
SNAPPED = 2
"""Times in a row that take a neighbour's value when wrong; more than these are spread evenly."""

_IDEOGRAPH = (
    "\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff"
    "\U00020000-\U0002a6df\U0002a700-\U0002ceaf\U0002f800-\U0002fa1f"
)
_HIRAGANA = "ぁ-ゖゝ-ゟ"
_KATAKANA = "ァ-ヺー-ヿㇰ-ㇿｦ-ﾟ"
_SIGN = re.compile(rf"[^\w'{_IDEOGRAPH}]|_")


def _run(apart: str) -> str:
    """Letters of all but the scripts in `apart`, with the signs between them."""
    letter = rf"(?:[^\W_{apart}]|')"
    return rf"{letter}(?:[^\s{apart}]*{letter})?"


_WORD = re.compile(rf"[{_IDEOGRAPH}]|{_run(_IDEOGRAPH)}")
_JAPANESE_WORD = re.compile(
    rf"[{_IDEOGRAPH}々〆〇][{_IDEOGRAPH}々〆〇ヵヶ]*|[{_HIRAGANA}][{_HIRAGANA}ー]*|[{_KATAKANA}]+"
    rf"|{_run(_IDEOGRAPH + '々〆〇' + _HIRAGANA + _KATAKANA)}"
)


class AlignmentError(ValueError):
    """Sound, text or language that the aligner does not take; the message says why."""


# --- words ---


@dataclass(frozen=True)
class Unit:
    """What gets a time of its own."""

    text: str
    """As it is written, with the signs before and after it."""
    spoken: str
    """Its letters and digits: what the model is given."""


def split(text: str, language: str) -> list[Unit]:
    """Words in order. Their texts are slices of `text` that leave out white space only; none when
    there is nothing to say in it.

    language: ISO 639. Raises AlignmentError for one that is not of LANGUAGES.
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
    """How many of the signs between two words go with the first of them: what touches it, and
    what stands alone unless it opens a bracket or a quotation."""
    spaces = [i for i, c in enumerate(between) if c.isspace()]
    least, cut = (spaces[0], spaces[-1] + 1) if spaces else (0, len(between))
    while cut > least and (between[cut - 1].isspace() or _opens(between[cut - 1])):
        cut -= 1
    return cut


def _opens(sign: str) -> bool:
    return unicodedata.category(sign) in ("Ps", "Pi")


# --- times ---


def timed(units: Sequence[Unit], times: Sequence[int], audio_ms: int) -> tuple[Word, ...]:
    """Words with the times the model gave, a beginning and an end for each, in ms, in any order.
    Theirs never fall from one to the next, and lie within the audio."""
    within = [min(t, audio_ms) for t in repair(times)]
    spans = zip(within[::2], within[1::2], strict=True)
    return tuple(Word(u.text, start, end) for u, (start, end) in zip(units, spans, strict=True))


def repair(times: Sequence[int]) -> list[int]:
    """The times that are in order as they are, and others in place of those that are not.

    Right are the times of the longest rise. One or two wrong ones between two right ones take the
    value of the nearer, the earlier if both are as near; more in a row are spread evenly between
    them; before the first and after the last right one they take its value.
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
    """Indices of the longest subsequence that never falls; of several, the one that, read from its
    end, always takes the earliest. n log n steps (Schensted 1961)."""
    ends: list[list[int]] = []  # [k]: where rises of k + 1 values end; their values strictly fall
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
