"""A tokenizer in place of a voice model's, which is in its checkpoint."""

import tokenizers
from tokenizers import normalizers, pre_tokenizers

from benchmarks.speech.texts import LONG_WORD, token_id
from offhook.pipeline.engines.qwen3_tts.model.config import TtsConfig
from offhook.pipeline.engines.shared.qwen3.token_stream import Vocabulary
from offhook.pipeline.engines.shared.qwen3.tokenizer import SPLIT, TextTokenizer

SPACE = "Ġ"
"""A space, in the letters of a byte-level BPE."""


class _WordVocabulary(Vocabulary):
    """A token a word or punctuation mark, and two for a long word; ids are without meaning."""

    def __init__(self, config: TtsConfig) -> None:
        self.bpe = tokenizers.Tokenizer(tokenizers.models.BPE())
        self.bpe.normalizer = normalizers.NFC()
        cut = pre_tokenizers.Split(tokenizers.Regex(SPLIT), behavior="isolated")
        to_bytes = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
        self.bpe.pre_tokenizer = pre_tokenizers.Sequence([cut, to_bytes])
        self._config = config

    def merge(self, letters: str) -> list[tuple[int, str]]:
        at = len(letters) // 2 if len(letters.lstrip(SPACE)) >= LONG_WORD else len(letters)
        parts = filter(None, (letters[:at], letters[at:]))
        return [(token_id(part, self._config), part) for part in parts]

    def certain(self, letters: str) -> list[tuple[int, str]]:
        return []  # the word may be long


class WordTokenizer(TextTokenizer):
    """In place of the model's tokenizer, which is of the checkpoint."""

    im_start, im_end = 1, 2

    def __init__(self, config: TtsConfig) -> None:
        self.vocabulary = _WordVocabulary(config)

    def encode(self, text: str) -> list[int]:
        pieces = self.vocabulary.bpe.pre_tokenizer.pre_tokenize_str(text)
        return [id for letters, _ in pieces for id, _ in self.vocabulary.merge(letters)]
