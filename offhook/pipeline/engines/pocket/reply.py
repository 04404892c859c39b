"""One reply of Pocket TTS between its text and its audio: clauses go to the engine as tokens."""

import re
from collections import deque
from collections.abc import Iterator
from typing import Protocol

from offhook.pipeline.engines.pocket.messages import Clause, ClauseSound, PocketEvent
from offhook.pipeline.engines.shared.synthesis.reply import (
    NO_SOUND,
    NOT_LATIN,
    EngineReply,
    VoiceProfile,
)
from offhook.pipeline.speech.synthesizer import VoiceOptions
from offhook.pipeline.speech.text.spoken_text import SpokenWord
from offhook.pipeline.speech.voice.clauses import ClauseSplitter, ends_clause, pause_after_ms
from offhook.pipeline.speech.voice.word_marks import WordMarks

LEAST_WORDS = 3
"""Words of a clause, if more text follows: the model is weak below five."""
FIRST_WORDS = 12
"""Words of the first clause at most. It is longer than that of embedded voices, because the model
speaks what it gets as a whole sentence."""
TOKENS_AHEAD = 128
"""Tokens given to the engine whose clauses have not begun: at least two clauses."""


class ClauseTokenizer(Protocol):
    def encode(self, clause: str) -> list[int]:
        """Returns the tokens of a clause, prepared for the model; none if nothing is spoken."""


class PocketReply(EngineReply[Clause, PocketEvent]):
    def __init__(
        self,
        tokenizer: ClauseTokenizer,
        max_tokens: int,
        language: str,
        options: VoiceOptions,
        profile: VoiceProfile,
    ) -> None:
        """`max_tokens` are those of the longest clause. Text is read as of `language`, an ISO 639
        code."""
        super().__init__(language, (language,), options, profile, TOKENS_AHEAD)
        self._tokenizer = tokenizer
        self._max_tokens = max_tokens
        self._speed = options.speed
        self._splitter = ClauseSplitter(LEAST_WORDS, FIRST_WORDS)
        self._read_words: deque[SpokenWord] = deque()
        """Words that are not in a clause yet, spoken with the white space after them."""
        self._spaced = True
        """Whether the last of them, or of those before, ended with white space."""
        self._unspoken: list[SpokenWord] = []
        """Words of clauses in which nothing is spoken; they go with the next clause."""
        self._clauses: deque[list[SpokenWord]] = deque()
        """Words of the clauses that have not been spoken."""
        self._marks: WordMarks | None = None
        """Those of the clause that is being spoken."""

    # --- text ---

    @property
    def holds_sentence(self) -> bool:
        """Whether a whole sentence waits for more text only because it is short."""
        return not self._unread and self._splitter.holds_sentence

    def flush(self) -> None:
        """Gives the engine the text so far, however short."""
        for clause in self._splitter.end():
            self._add(clause)

    def _say(self, words: list[SpokenWord]) -> None:
        for word in words:
            for part in _single_words(word, self._spaced):
                self._spaced = part.spoken[-1:].isspace()
                self._read_words.append(part)
                for clause in self._splitter.write(part.spoken):
                    self._add(clause)

    def _say_rest(self) -> None:
        self.flush()
        self._unspoken += self._read_words

    def _add(self, clause: str) -> None:
        """Adds a clause, in parts if it is too long."""
        for words in self._fitting(self._words_of(clause)):
            spoken = _joined(words)
            tokens = self._tokenizer.encode(spoken)
            if not tokens:
                self._unspoken += words
                continue
            self._clauses.append([*self._unspoken, *words])
            self._unspoken = []
            self._waiting.append(Clause(tokens, pause_after_ms(spoken)))

    def _words_of(self, clause: str) -> list[SpokenWord]:
        """Removes the words of a clause from those that were read."""
        words: list[SpokenWord] = []
        left = len(clause)
        while self._read_words:
            word = self._read_words.popleft()
            if len(word.spoken) > left:
                if left:
                    words.append(SpokenWord("", word.spoken[:left]))
                self._read_words.appendleft(SpokenWord(word.text, word.spoken[left:]))
                break
            words.append(word)
            left -= len(word.spoken)
        return words

    def _fitting(self, words: list[SpokenWord]) -> Iterator[list[SpokenWord]]:
        """Yields the words in clauses that the model can speak."""
        if len(self._tokenizer.encode(_joined(words))) <= self._max_tokens:
            yield words
            return
        for half in _halves(words):
            yield from self._fitting(half)

    # --- sound ---

    def receive(self, told: PocketEvent) -> None:
        if isinstance(told, ClauseSound):
            self._taken = told.tokens
            if self._marks is None:
                self._marks = WordMarks(self._speed, self._profile.pace)
                for word in self._clauses.popleft():
                    self._marks.write(SpokenWord(word.text, word.spoken.strip()))
            self._track_words(self._marks, told.pcm)
            if told.last:
                self._put(NO_SOUND, self._marks.finish())
                self._profile.gain = told.gain
                self._marks = None
        else:
            self._put(NO_SOUND, [*(word.text for word in self._unspoken), *self._unread_text()])
            self.over = True


def _single_words(word: SpokenWord, spaced: bool) -> Iterator[SpokenWord]:
    """Yields the words of a spoken form, each with the white space after it, which the text has.
    If it had none, so that the word before is not `spaced`, the first has it in front. The last one
    has the text. Letters of other scripts than Latin, which no model knows, are not spoken."""
    space = word.text[len(word.text.rstrip()) :]
    after = "\n" if "\n" in space else " " if space else ""
    spoken = NOT_LATIN.sub("", word.spoken).split()
    if spoken and word.spoken[0].isspace() and not spaced:
        spoken[0] = f" {spoken[0]}"
    for one in spoken[:-1]:
        yield SpokenWord("", f"{one} ")
    yield SpokenWord(word.text, (spoken[-1] if spoken else "") + after)


def _joined(words: list[SpokenWord]) -> str:
    """Returns what is spoken. A full stop that came late stands after its word."""
    spoken = "".join(word.spoken for word in words)
    return re.sub(r"\s+([.,;:!?…])", r"\1", spoken).lstrip(" .")


def _halves(words: list[SpokenWord]) -> tuple[list[SpokenWord], list[SpokenWord]]:
    """Splits a clause near its middle, rather after a comma."""
    count = len(words)
    if count == 1:
        word = words[0]
        middle = len(word.spoken) // 2
        return [SpokenWord("", word.spoken[:middle])], [SpokenWord(word.text, word.spoken[middle:])]
    near = range(1 + count // 4, count - count // 4)
    places = [i for i in near if ends_clause(words[i - 1].spoken.strip())] or range(1, count)
    place = min(places, key=lambda i: abs(2 * i - count))
    return words[:place], words[place:]
