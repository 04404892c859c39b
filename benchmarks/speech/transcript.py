"""Compares recognized words with the words that were spoken."""

import re
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from itertools import accumulate

from offhook.media.pcm import RATE_IN, Pcm
from offhook.pipeline.speech.recognizer import (
    DEFAULT_OPTIONS,
    Final,
    Recognizer,
    StreamOptions,
    Word,
)

CUT_MS = 50
"""A word that ends this close to the cut did not end by itself."""

CHANCE_LETTERS = 2
"""Difference in letters below which neither of two alignments is better."""


@dataclass(frozen=True)
class WordEnd:
    """One word of the agent."""

    text: str
    end_ms: int | None
    """End position in the audio according to the server; None if it was never completed."""


def words(text: str) -> list[str]:
    return re.findall(r"[a-z']+", text.lower())


async def recognise(
    recognizer: Recognizer, pcm: Pcm, options: StreamOptions = DEFAULT_OPTIONS
) -> Final:
    """Recognizes 16 kHz samples as one utterance, fed 100 ms at a time."""
    stream = await recognizer.open(options)
    for start in range(0, len(pcm), RATE_IN // 10):
        stream.feed(pcm[start : start + RATE_IN // 10])
    stream.finish()
    final = Final("", 0)
    async for event in stream.events():
        if isinstance(event, Final):
            final = event
            break
    await stream.close()
    return final


def prefix_distances(heard: Sequence[str], reference: Sequence[str]) -> list[int]:
    """Returns the edit distances between `heard` and each prefix of `reference`, in words or
    letters."""
    row = list(range(len(reference) + 1))
    for i, word in enumerate(heard, 1):
        before, row = row, [i] + [0] * len(reference)
        for j, other in enumerate(reference, 1):
            row[j] = min(before[j] + 1, row[j - 1] + 1, before[j - 1] + (word != other))
    return row


def reached(heard: Sequence[str], reference: Sequence[str], around: int | None = None) -> int:
    """Returns how many words of `reference` the recognized beginning covers.

    Letters rather than words are aligned, since recognizers split and join words, and a truncated
    word shares its first letters with the whole. More than half of a word's letters cover it. Among
    equally good prefixes the longest is chosen, since a misrecognized word was still spoken. If
    about `around` words are expected, the nearest prefix within CHANCE_LETTERS is chosen.
    """
    distances = prefix_distances("".join(heard), "".join(reference))
    least = min(distances)
    middles = [end - len(word) / 2 for end, word in zip(_ends(reference), reference, strict=True)]
    if around is None:
        return max(bisect_left(middles, n) for n, d in enumerate(distances) if d == least)
    near = (n for n, d in enumerate(distances) if d <= least + CHANCE_LETTERS)
    return min((bisect_left(middles, n) for n in near), key=lambda n: (abs(n - around), -n))


def _ends(reference: Sequence[str]) -> Iterator[int]:
    return accumulate(len(word) for word in reference)


def words_beyond(context: int, heard: Sequence[Word], said: Sequence[WordEnd], cut_ms: int) -> int:
    """Returns the words in the context minus those in the audio, which is silent from `cut_ms` on;
    `said` is the whole reply with word ends as far as it was spoken. The word at the cut may count
    or not."""
    if not heard:
        return context
    middle = (heard[-1].start_ms + heard[-1].end_ms) / 2
    over = sum(word.end_ms is not None and word.end_ms <= middle for word in said)
    around = over + 1 if over else None
    most = reached([word.text for word in heard], [word.text for word in said], around)
    cut_short = most > 0 and heard[-1].end_ms > cut_ms - CUT_MS
    return context - max(most - cut_short, min(context, most))


def mark_errors(heard: Sequence[Word], said: Sequence[WordEnd]) -> list[int]:
    """Returns by how many ms the server's word ends are later than in the audio, for every
    correctly recognized word."""
    alike = SequenceMatcher(None, [w.text for w in said], [w.text for w in heard], autojunk=False)
    pairs = (
        (said[a + i].end_ms, heard[b + i].end_ms)
        for a, b, size in alike.get_matching_blocks()
        for i in range(size)
    )
    return [mark - end for mark, end in pairs if mark is not None]
