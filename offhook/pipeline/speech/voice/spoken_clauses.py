"""The clauses of an agent's streaming text, read as spoken words."""

from collections import deque
from collections.abc import Sequence

from offhook.pipeline.speech.text.spoken_text import SpokenWord, TextReader
from offhook.pipeline.speech.voice.clauses import READ_CHARS, ClauseSplitter


class SpokenClauses:
    """The clauses of a text that is still being written, split and read as they are popped.

    A word that is read together with words of the next clause is in that one.
    """

    def __init__(self, reader: TextReader | None = None) -> None:
        """Without a reader a clause is a single word, spoken as written."""
        self._splitter = ClauseSplitter()
        self._reader = reader
        self._unread: deque[str] = deque()
        self._clauses: deque[str] = deque()
        self._words: deque[SpokenWord] = deque()
        self._word_chars = 0
        """Length of the words not popped."""
        self._due_chars = 0
        """Length of the clauses popped whose words were not."""
        self._ended = False
        self._finished = False
        """Whether all of the text has been split and read."""

    def write(self, text: str) -> None:
        self._unread.extend(text[at : at + READ_CHARS] for at in range(0, len(text), READ_CHARS))

    def end(self) -> None:
        self._ended = True

    def clear(self) -> None:
        """Drops what was not popped."""
        self._unread.clear()
        self._clauses.clear()
        self._words.clear()
        self._splitter.end()
        self._finished = True

    def pop(self) -> list[SpokenWord] | None:
        """Returns the words of the next clause; None if there is none yet, or no more."""
        while True:
            if not self._clauses:
                if self._read():
                    continue
                if not (self._finished and self._words):
                    return None
                rest = list(self._words)
                self._words.clear()
                return rest
            if self._word_chars < self._due_chars + len(self._clauses[0]) and self._read():
                continue
            self._due_chars += len(self._clauses.popleft())
            words = []
            while self._words and self._due_chars > 0:
                words.append(self._words.popleft())
                self._due_chars -= len(words[-1].text)
                self._word_chars -= len(words[-1].text)
            if words:
                return words

    def _read(self) -> bool:
        """Splits and reads more of the text; returns whether there was more."""
        if self._unread:
            text = self._unread.popleft()
            self._add(self._splitter.write(text), self._reader.feed(text) if self._reader else ())
        elif self._ended and not self._finished:
            self._finished = True
            self._add(self._splitter.end(), self._reader.finish() if self._reader else ())
        else:
            return False
        return True

    def _add(self, clauses: Sequence[str], words: Sequence[SpokenWord]) -> None:
        self._clauses += clauses
        if not self._reader:
            words = [SpokenWord(clause, clause) for clause in clauses]
        self._words += words
        self._word_chars += sum(len(word.text) for word in words)
