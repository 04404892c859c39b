"""Texts to synthesize, and the simulated length of their speech.

With random weights a model never ends its text, so the length of the speech is simulated as
FRAMES_PER_TOKEN per token. There is no tokenizer either: each word gets a typical number of
arbitrary tokens.
"""

import zlib
from collections.abc import Sequence
from math import ceil
from random import Random
from typing import TYPE_CHECKING, NamedTuple

from offhook.pipeline.engines.shared.synthesis.messages import Break

if TYPE_CHECKING:
    from offhook.pipeline.engines.qwen3_tts.model.config import TtsConfig

FRAMES_PER_TOKEN = 3.5
LONG_WORD = 8
"""Minimum letters of a word with two tokens."""
SENTENCES = (
    "The parcel was left with the neighbour on the ground floor.",
    "She has never missed the first train.",
    "Please hold the line while I look up your booking.",
    "He painted the old wooden boat in a deep shade of green last summer.",
    "After the storm had passed, the whole village came out to clear the fallen branches "
    "from the road.",
    "My grandmother keeps the best recipes in a small tin above the stove.",
    "The museum opens at ten, but the garden behind it is never closed.",
    "Nobody could explain why the lights in the tower went on every evening at the same hour.",
    "We will have to change trains twice before we reach the coast.",
    "Your appointment has been moved to Thursday afternoon.",
    "The children built a bridge of stones across the shallow part of the river, and then they "
    "were too proud of it to go home.",
    "It rained for three days without a break.",
    "If the door does not open, press the handle down firmly and push with your shoulder.",
    "The committee has agreed to publish the results before the end of the month.",
    "There is fresh coffee in the kitchen and some bread left from this morning.",
    "A light wind carried the smell of cut grass through the open window of the classroom.",
    "I would like to speak to somebody about the last bill.",
    "The ferry leaves from the second pier.",
    "In the autumn the hills behind the town turn red, and people come from far away to walk "
    "there.",
    "He closed the book, put on his coat, and walked out without another word.",
    "The new engine is quieter than the old one and needs about half as much fuel.",
    "Could you spell your family name for me, please?",
    "Most of the letters were written by candle light, in a hand that is hard to read today.",
    "We counted the birds on the island twice, once at dawn and once in the late evening.",
)
"""About as long as the English sentences of Seed-TTS: 2 to 8 s, half of them over 4 s."""


class Word(NamedTuple):
    text: str
    """The word with the following space."""
    tokens: Sequence[int]
    ends: Break


def words(text: str, config: "TtsConfig") -> list[Word]:
    found = []
    for word in text.split():
        bare = word.rstrip(".,;:!?")
        mark = word[len(bare) :]
        count = 1 + (len(bare) >= LONG_WORD) + bool(mark)
        ends = Break.WORD if not mark else Break.CLAUSE if mark in ",;:" else Break.SENTENCE
        ids = [token_id(f"{word}{i}", config) for i in range(count)]
        found.append(Word(f"{word} ", ids, ends))
    return found


def even_words(count: int, sentence: int, config: "TtsConfig") -> list[Word]:
    """Returns `count` one-token words, in sentences of `sentence` words with a comma in the
    middle."""
    found = []
    for i in range(1, count + 1):
        full, comma = i % sentence == 0, i % sentence == sentence // 2
        ends = Break.SENTENCE if full else Break.CLAUSE if comma else Break.WORD
        word = ("tree", "stone", "river", "small", "bird", "light")[i % 6]
        text = f"{word}{'.' if full else ',' if comma else ''} "
        found.append(Word(text, [token_id(word, config)], ends))
    return found


def token_id(text: str, config: "TtsConfig") -> int:
    """Returns a token id without special meaning for the model."""
    return zlib.crc32(text.encode()) % min(config.tts_bos, config.tts_eos, config.tts_pad)


def frames_of(tokens: int) -> int:
    """Returns the frames of the speech of `tokens` tokens."""
    return ceil(FRAMES_PER_TOKEN * tokens)


class Talk:
    """Repeats the sentences in an order determined by the seed."""

    def __init__(self, config: "TtsConfig", seed: int) -> None:
        self._sentences = [words(sentence, config) for sentence in SENTENCES]
        self._random = Random(seed)
        self._left: list[list[Word]] = []

    def sentence(self) -> list[Word]:
        if not self._left:
            self._left = self._random.sample(self._sentences, len(self._sentences))
        return self._left.pop()
