"""Converts labels of Nemotron streaming to text (SentencePiece pieces)."""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Self

import tokenizers

from offhook.pipeline.speech.errors import EngineError

SPACE = "▁"
"""Represents a space in a piece; a piece that starts with it starts a word."""
TAG = re.compile(r"<([a-z]{2,3})-[A-Za-z]{2}>")
"""Matches a language tag such as <en-US>, which multilingual models write after a sentence."""
SPELLED_TAG = re.compile(rf" *{TAG.pattern}| *<[a-z]{{0,3}}(-[A-Za-z]{{0,2}})?$")
"""Matches tags including those of languages without a piece of their own (e.g. Maltese), which are
spelled in several pieces and may be incomplete at the end of a stream."""


class LabelTokenizer:
    """Converts labels to text. Labels are piece numbers; the blank is not a piece, and its number
    is in the model's config.json."""

    def __init__(self, pieces: Sequence[str], silent: frozenset[int] = frozenset()) -> None:
        """`silent` are labels without text, such as <unk>."""
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
        """Loads tokenizer.json. Raises EngineError if it is missing, damaged, or of another
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
        """Number of pieces; later numbers are padding for the tokenizer and the blank for the
        model."""
        return len(self._texts)

    def text(self, ids: Sequence[int]) -> str:
        """Returns the text of an utterance from its start, or of a word, without surrounding spaces
        and language tags. More labels never change the text of earlier ones."""
        text = "".join(self._texts[label] for label in ids)
        if self._tagged:
            text = SPELLED_TAG.sub("", text)
        return re.sub(" {2,}", " ", text).strip(" ")

    def begins_word(self, id: int) -> bool:
        return self._begins[id]

    def language(self, ids: Sequence[int]) -> str | None:
        """Returns the ISO 639 code of the last language tag, or None."""
        if not self._tagged:
            return None
        codes = TAG.findall("".join(self._pieces[label] for label in ids))
        return codes[-1] if codes else None
