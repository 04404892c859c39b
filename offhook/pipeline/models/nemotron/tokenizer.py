"""The labels of Nemotron streaming to text: pieces of words from SentencePiece."""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Self

import tokenizers

from offhook.pipeline.speech.recognizer import EngineError

SPACE = "▁"
"""Stands for a space in a piece; a piece that begins with it begins a word."""
TAG = re.compile(r"<([a-z]{2,3})-[A-Za-z]{2}>")
"""Of a language, as <en-US>, which a model of several languages writes behind a sentence."""
SPELLED_TAG = re.compile(rf" *{TAG.pattern}| *<[a-z]{{0,3}}(-[A-Za-z]{{0,2}})?$")
"""Languages without a piece of their own (Maltese) are spelt out in several, and a stream can end
in the middle of them."""


class LabelTokenizer:
    """Labels are numbers of pieces, the blank is none of them: the model's config.json says which
    number that is, not the tokenizer."""

    def __init__(self, pieces: Sequence[str], silent: frozenset[int] = frozenset()) -> None:
        """silent: labels that are no text, as <unk>."""
        tags = [TAG.fullmatch(piece) for piece in pieces]
        self._pieces = tuple(piece.replace(SPACE, " ") for piece in pieces)
        self._begins = tuple(piece.startswith(SPACE) for piece in pieces)
        self._texts = tuple(
            "" if tag or label in silent else piece
            for label, (piece, tag) in enumerate(zip(self._pieces, tags, strict=True))
        )
        self._tagged = any(tags)

    @classmethod
    def load(cls, folder: Path) -> Self:
        """From tokenizer.json. Raises EngineError when it is missing, broken, or of another kind of
        tokenizer."""
        path = folder / "tokenizer.json"
        if not path.is_file():
            raise EngineError(f"the tokenizer of {folder} lacks a file: tokenizer.json")
        try:
            model = tokenizers.Tokenizer.from_file(str(path))
        except Exception as error:  # the library raises bare Exception for what it cannot parse
            raise EngineError(f"the tokenizer in {folder} cannot be read: {error}") from error
        vocabulary: dict[str, int] = model.get_vocab(with_added_tokens=True)
        pieces = {number: piece for piece, number in vocabulary.items()}
        if sorted(pieces) != list(range(len(vocabulary))):
            raise EngineError(f"the tokenizer in {folder} leaves out numbers of its pieces")
        if not any(piece.startswith(SPACE) for piece in vocabulary):
            raise EngineError(
                f"the tokenizer in {folder} has no piece that begins a word ({SPACE}): it is of "
                "another model"
            )
        added = model.get_added_tokens_decoder().items()
        silent = frozenset(number for number, token in added if token.special)
        return cls([pieces[number] for number in range(len(pieces))], silent)

    @property
    def vocab_size(self) -> int:
        """Pieces, and behind them what is padding to the tokenizer and the blank to the model."""
        return len(self._texts)

    def text(self, ids: Sequence[int]) -> str:
        """Of an utterance from its beginning, or of a word: without spaces around it and without
        tags of languages. More labels never change the text of those before them."""
        text = "".join(self._texts[label] for label in ids)
        if self._tagged:
            text = SPELLED_TAG.sub("", text)
        return re.sub(" {2,}", " ", text).strip(" ")

    def begins_word(self, id: int) -> bool:
        return self._begins[id]

    def language(self, ids: Sequence[int]) -> str | None:
        """The ISO 639 code of the last tag, of one piece or spelt out; None: there is none."""
        if not self._tagged:
            return None
        codes = TAG.findall("".join(self._pieces[label] for label in ids))
        return codes[-1] if codes else None
