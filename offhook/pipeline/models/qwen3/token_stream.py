"""Tokens of a text that is still being written, as early as nothing that may come changes them.

Joined, they are the tokens of the whole text. Two things make that so:

- A text is cut into pieces before the merges, and a piece is over where the next one begins.
- In the last piece, where nothing says that it is over (Chinese is written without spaces), the
  whole text has a token that begins at some place and goes on beyond the end: so what is left of
  the piece from there begins a token of the vocabulary. Up to such a place the tokens are those of
  what is before it, since no merge reaches across. What all the places have in common is certain.
"""

import unicodedata
from bisect import bisect_left
from itertools import takewhile

import tokenizers


class Vocabulary:
    """Of a byte-level BPE; tokens are written in its letters, one for each byte."""

    def __init__(self, bpe: tokenizers.Tokenizer) -> None:
        self.bpe = bpe
        self._tokens = sorted(bpe.get_vocab(with_added_tokens=False))

    def begins_token(self, letters: str) -> bool:
        """Whether a longer token begins with them."""
        at = bisect_left(self._tokens, letters + "\0")
        return at < len(self._tokens) and self._tokens[at].startswith(letters)

    def merge(self, letters: str) -> list[tuple[int, str]]:
        """A piece, in letters, to its tokens and their letters."""
        return [(token.id, token.value) for token in self.bpe.model.tokenize(letters)]

    def certain(self, letters: str) -> list[tuple[int, str]]:
        """Tokens of a piece of which more may come."""
        found: list[tuple[int, str]] | None = None
        for place in range(len(letters), -1, -1):
            if place < len(letters) and not self.begins_token(letters[place:]):
                continue
            tokens = self.merge(letters[:place]) if place else []
            pairs = zip(found if found is not None else tokens, tokens, strict=False)
            found = [a for a, _ in takewhile(lambda pair: pair[0] == pair[1], pairs)]
            if not found:
                break
        return found or []


class TokenStream:
    def __init__(self, vocabulary: Vocabulary) -> None:
        self._vocabulary = vocabulary
        self._normalizer = vocabulary.bpe.normalizer
        self._cutter = vocabulary.bpe.pre_tokenizer
        self._rest = ""
        """Text from the beginning of the first piece that is not wholly in tokens."""
        self._done = 0
        """Letters of that piece that are."""
        self.waiting = 0
        """Letters of the text fed that are in no token yet."""

    def feed(self, text: str, over: bool) -> list[tuple[int, int]]:
        """The tokens that are certain now, and how many letters each has. `over`: a single space
        comes next, or nothing at all."""
        normal: str = self._normalizer.normalize_str(self._rest + text)
        pieces = self._cutter.pre_tokenize_str(normal)
        # The last character may yet be one with an accent that comes.
        safe = len(normal) if over else _last_starter(normal)
        whole = [piece for piece in pieces[:-1] if piece[1][1] <= safe]
        if over:
            whole = pieces
        tokens: list[tuple[int, str]] = []
        for letters, _ in whole:
            tokens += self._vocabulary.merge(letters[self._done :])
            self._done = 0
        rest = pieces[len(whole) :]
        self._rest = normal[rest[0][1][0] :] if rest else ""
        if len(rest) == 1:
            certain = self._certain(rest[0][0], self._rest[: safe - len(normal)])
            tokens += certain
            self._done += sum(len(letters) for _, letters in certain)
        self.waiting = sum(len(letters) for letters, _ in rest) - self._done
        return [(number, len(letters)) for number, letters in tokens]

    def _certain(self, letters: str, safe: str) -> list[tuple[int, str]]:
        """Tokens of a piece of which more may come; `safe`: as far as its characters stand."""
        left = len(safe.encode()) - self._done
        found = []
        for number, of in self._vocabulary.certain(letters[self._done :]):
            left -= len(of)
            if left < 0:
                break
            found.append((number, of))
        return found


def _last_starter(text: str) -> int:
    """Where the last character begins that others may be combined with."""
    at = len(text)
    while at and unicodedata.combining(text[at - 1]):
        at -= 1
    return max(0, at - 1)
