"""Qwen's byte-level BPE tokenizer."""

import json
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Self

import tokenizers
from tokenizers import decoders, models, normalizers, pre_tokenizers

from offhook.pipeline.engines.shared.qwen3.token_stream import Vocabulary
from offhook.pipeline.speech.errors import EngineError

# Qwen 2's pre-tokenization: contractions, words with a preceding space, single digits, runs of
# punctuation, line ends.
SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


class TextTokenizer:
    """Encodes plain text: control token names in it (`<|im_end|>`) are spelled out, so
    user-supplied context cannot end the prompt. Control tokens are inserted by id."""

    def __init__(self, bpe: tokenizers.Tokenizer) -> None:
        self._bpe = bpe
        self._bpe.encode_special_tokens = True
        self.endoftext = self.id("<|endoftext|>")
        self.im_start = self.id("<|im_start|>")
        self.im_end = self.id("<|im_end|>")

    @cached_property
    def vocabulary(self) -> Vocabulary:
        return Vocabulary(self._bpe)

    @classmethod
    def load(cls, folder: Path) -> Self:
        """Loads tokenizer.json, or else vocab.json, merges.txt and tokenizer_config.json. Raises
        EngineError if they are missing, damaged, or of another model."""
        try:
            if (folder / "tokenizer.json").is_file():
                bpe = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
            else:
                bpe = _from_vocabulary(folder)
        except FileNotFoundError as error:
            raise EngineError(
                f"the tokenizer of {folder} lacks a file: {error.filename}"
            ) from error
        except Exception as error:  # the library raises bare Exception for what it cannot parse
            raise EngineError(f"the tokenizer in {folder} cannot be read: {error}") from error
        return cls(bpe)

    def id(self, token: str) -> int:
        """Returns the id of a control token. Raises EngineError if there is none of this name."""
        number: int | None = self._bpe.token_to_id(token)
        if number is None:
            raise EngineError(f"the tokenizer has no token {token}: it is of another model")
        return number

    def encode(self, text: str) -> list[int]:
        ids: list[int] = self._bpe.encode(text, add_special_tokens=False).ids
        return ids

    def decode(self, ids: Sequence[int]) -> str:
        """Decodes ids without control tokens (but with `<asr_text>`). An incomplete character at
        either end becomes U+FFFD."""
        text: str = self._bpe.decode(ids, skip_special_tokens=True)
        return text


class Tokenizer(TextTokenizer):
    """The tokenizer of Qwen3-ASR and its aligner."""

    def __init__(self, bpe: tokenizers.Tokenizer) -> None:
        super().__init__(bpe)
        self.audio_start = self.id("<|audio_start|>")
        self.audio_end = self.id("<|audio_end|>")
        self.audio_pad = self.id("<|audio_pad|>")
        self.asr_text = self.id("<asr_text>")


def _from_vocabulary(folder: Path) -> tokenizers.Tokenizer:
    config = json.loads((folder / "tokenizer_config.json").read_text("utf-8"))
    vocabulary = json.loads((folder / "vocab.json").read_text("utf-8"))
    lines = (folder / "merges.txt").read_text("utf-8").split("\n")
    pairs = (line.partition(" ") for line in lines if line and not line.startswith("#version"))
    merges = [(left, right) for left, _, right in pairs]
    bpe = tokenizers.Tokenizer(models.BPE(vocab=vocabulary, merges=merges))
    bpe.normalizer = normalizers.NFC()
    cut = pre_tokenizers.Split(tokenizers.Regex(SPLIT), behavior="isolated")
    to_bytes = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    bpe.pre_tokenizer = pre_tokenizers.Sequence([cut, to_bytes])
    bpe.decoder = decoders.ByteLevel()
    added = sorted(config["added_tokens_decoder"].items(), key=lambda item: int(item[0]))
    for number, token in added:
        word, special = token["content"], token["special"]
        bpe.add_tokens([tokenizers.AddedToken(word, special=special, normalized=False)])
        if bpe.token_to_id(word) != int(number):
            raise ValueError(f"{word} should be token {number}, not {bpe.token_to_id(word)}")
    return bpe
