"""Turns clauses into the tokens of Pocket TTS: text as in its training data, then pieces."""

import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Self

from offhook.pipeline.engines.pocket.model.config import PocketConfig
from offhook.pipeline.speech.errors import EngineError

JSON = "tokenizer.json"
SENTENCEPIECE = "tokenizer.model"
SENTENCE_ENDS = ".!?…"
WEAK_ENDS = ",;:-–—"
"""Marks that become a full stop at the end of a clause."""
CLOSING = "\"'”’)]»"
"""Marks that may follow the end of a sentence."""
FEW_WORDS = 4
FRAMES_AFTER_END = 3
FRAMES_AFTER_SHORT_END = 5
"""Frames from the one with the logit of the end until the clause is cut; those of a clause of up to
FEW_WORDS words come early."""


class PocketTokenizer:
    """Tokenizer of one model."""

    def __init__(
        self,
        config: PocketConfig,
        encode: Callable[[str], list[int]],
        decode: Callable[[list[int]], str],
        vocab_size: int,
    ) -> None:
        self._config, self._encode, self._decode = config, encode, decode
        self._replaced = str.maketrans(dict(config.replaced))
        self.vocab_size = vocab_size

    @classmethod
    def load(cls, folder: Path, config: PocketConfig) -> Self:
        """Loads tokenizer.json or tokenizer.model. Raises EngineError if both are missing, or the
        first is damaged."""
        if (folder / JSON).is_file():
            return cls(config, *_read_json(folder / JSON))
        if (folder / SENTENCEPIECE).is_file():
            return cls(config, *_read_sentencepiece(folder / SENTENCEPIECE))
        raise EngineError(f"{folder} lacks a tokenizer: {JSON} or {SENTENCEPIECE}")

    def encode(self, clause: str) -> list[int]:
        """Returns the tokens of a clause, prepared as in `prepare`; none if nothing can be
        said."""
        text = self.prepare(clause)
        return self._encode(text) if text else []

    def prepare(self, clause: str) -> str:
        """Returns the clause as the model knows text: its own characters, a capital at the start
        and a full stop or similar at the end. Empty if no letter or digit is left."""
        text = " ".join(clause.translate(self._replaced).split())
        if self._replaced:
            # What stood between the marks is gone: "Hi?", she -> Hi?, she -> Hi? she
            text = re.sub(rf"([{SENTENCE_ENDS}])\s*[,;:]", r"\1", text)
        if not any(c.isalnum() for c in text):
            return ""
        return _with_end(text[0].upper() + text[1:])

    def frames_after_end(self, tokens: Sequence[int]) -> int:
        """Returns the frames of the clause from the one with the logit of the end on."""
        words = len(self._decode(list(tokens)).split())
        return FRAMES_AFTER_SHORT_END if words <= FEW_WORDS else FRAMES_AFTER_END


def _with_end(text: str) -> str:
    """Returns the text with a mark that ends a sentence, before closing quotes and brackets where
    it replaces another mark, else behind them."""
    core = text.rstrip(CLOSING + " ")
    if not core or core[-1] in SENTENCE_ENDS:
        return text
    if core[-1] in WEAK_ENDS:
        return core.rstrip(WEAK_ENDS + " ") + "." + text[len(core) :].strip()
    return text + "."


Reader = tuple[Callable[[str], list[int]], Callable[[list[int]], str], int]
"""Functions that encode and decode, and the number of pieces."""


def _read_json(path: Path) -> Reader:
    import tokenizers

    try:
        model = tokenizers.Tokenizer.from_file(str(path))
    except Exception as error:  # the library raises bare Exception for what it cannot parse
        raise EngineError(f"{path} cannot be read: {error}") from error
    return lambda text: model.encode(text).ids, model.decode, model.get_vocab_size()


def _read_sentencepiece(path: Path) -> Reader:
    try:
        import sentencepiece
    except ImportError as error:
        raise EngineError(f"{path} needs the package sentencepiece") from error
    try:
        model = sentencepiece.SentencePieceProcessor(str(path))
    except (OSError, RuntimeError) as error:
        raise EngineError(f"{path} cannot be read: {error}") from error
    return model.encode, model.decode, model.vocab_size()
