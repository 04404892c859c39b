"""Tokenizes text that is still being written, emitting tokens as soon as no later text can change
them.

Concatenated, they equal the tokens of the whole text, for two reasons:

- BPE splits a text into pieces before merging, and a piece is complete where the next one begins;
- in an incomplete last piece (Chinese has no spaces), the whole text has some token that starts at
  a place in it and extends beyond its end, so the rest of the piece from there is a prefix of a
  vocabulary token. The tokens before such a place are those of the text before it, since no merge
  crosses it. What all possible places have in common is certain.
"""

import unicodedata
from bisect import bisect_left
from itertools import takewhile

import tokenizers


class Vocabulary:
    """Vocabulary of a byte-level BPE, whose tokens are written with one letter per byte."""

    def __init__(self, bpe: tokenizers.Tokenizer) -> None:
        self.bpe = bpe
        self._tokens = sorted(bpe.get_vocab(with_added_tokens=False))

    def begins_token(self, letters: str) -> bool:
        """Returns whether a longer token starts with these letters."""
        at = bisect_left(self._tokens, letters + "\0")
        return at < len(self._tokens) and self._tokens[at].startswith(letters)

    def merge(self, letters: str) -> list[tuple[int, str]]:
        """Tokenizes a piece; returns token ids with their letters."""
        return [(token.id, token.value) for token in self.bpe.model.tokenize(letters)]

    def certain(self, letters: str) -> list[tuple[int, str]]:
        """Returns the certain tokens of an incomplete piece."""
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
        """Text from the start of the first piece that is not completely tokenized."""
        self._done = 0
        """Letters of that piece that are tokenized."""
        self.waiting = 0
        """Letters of the text fed that are in no token yet."""

    def feed(self, text: str, over: bool) -> list[tuple[int, int]]:
        """Adds text and returns the tokens that are now certain, with their numbers of letters.
        `over` means that a single space follows, or nothing at all."""
        normal: str = self._normalizer.normalize_str(self._rest + text)
        pieces = self._cutter.pre_tokenize_str(normal)
        # The last character may still combine with an accent that follows.
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
        """Returns the certain tokens of an incomplete piece; `safe` is the part whose characters
        are final."""
        left = len(safe.encode()) - self._done
        found = []
        for number, of in self._vocabulary.certain(letters[self._done :]):
            left -= len(of)
            if left < 0:
                break
            found.append((number, of))
        return found


def _last_starter(text: str) -> int:
    """Returns the start of the last character that others may combine with."""
    at = len(text)
    while at and unicodedata.combining(text[at - 1]):
        at -= 1
    return max(0, at - 1)
