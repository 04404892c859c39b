"""Tokens of text that comes in pieces are those of the whole text."""

from itertools import pairwise

import pytest
import tokenizers
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import decoders, models, normalizers, pre_tokenizers, trainers

from offhook.pipeline.engines.shared.qwen3.token_stream import TokenStream, Vocabulary
from offhook.pipeline.engines.shared.qwen3.tokenizer import SPLIT

TEXT = (
    "the cat sat on the mat, isn't it? They're saying we'll see... in 2024! 你好世界，你好吗？"
    "世界很大。今日は良い天気です。今日も東京は良い天気。 안녕하세요 세계 été naïve ÄÖÜ ((hello)) "
)
LETTERS = "aetsh  '(),.!?—-0123é你好世界吗。，今日は良い天気です東京안녕세요\u0301\u0323ñx"


def trained(merges: int) -> tokenizers.Tokenizer:
    bpe = tokenizers.Tokenizer(models.BPE())
    bpe.normalizer = normalizers.NFC()
    cut = pre_tokenizers.Split(tokenizers.Regex(SPLIT), behavior="isolated")
    to_bytes = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    bpe.pre_tokenizer = pre_tokenizers.Sequence([cut, to_bytes])
    bpe.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=256 + merges, initial_alphabet=alphabet, show_progress=False
    )
    bpe.train_from_iterator([TEXT * 3], trainer)
    return bpe


VOCABULARIES = [Vocabulary(trained(merges)) for merges in (0, 40, 400)]
vocabularies = st.sampled_from(VOCABULARIES)
texts = st.text(st.sampled_from(LETTERS), max_size=40) | st.integers(0, len(TEXT)).map(
    lambda at: TEXT[at:] + TEXT[:at]
)


def fed(vocabulary: Vocabulary, parts: list[str]) -> list[int]:
    stream = TokenStream(vocabulary)
    ids = [token for part in parts for token, _ in stream.feed(part, over=False)]
    return ids + [token for token, _ in stream.feed("", over=True)]


@given(vocabularies, texts, st.lists(st.integers(0, 60), max_size=30))
def test_tokens_do_not_hang_on_the_pieces(
    vocabulary: Vocabulary, text: str, places: list[int]
) -> None:
    cuts = [0, *sorted(min(place, len(text)) for place in places), len(text)]
    parts = [text[a:b] for a, b in pairwise(cuts)]
    assert fed(vocabulary, parts) == vocabulary.bpe.encode(text).ids


@given(vocabularies, st.lists(st.text(st.sampled_from(LETTERS.replace(" ", "")), min_size=1)))
def test_a_word_is_over_where_a_space_comes(vocabulary: Vocabulary, words: list[str]) -> None:
    stream = TokenStream(vocabulary)
    ids = []
    for i, word in enumerate(words):
        ids += stream.feed(" " * (i > 0) + word, over=True)
        assert stream.waiting == 0
    assert [token for token, _ in ids] == vocabulary.bpe.encode(" ".join(words)).ids


@given(vocabularies, texts)
def test_every_letter_is_in_a_token_or_waits(vocabulary: Vocabulary, text: str) -> None:
    stream = TokenStream(vocabulary)
    letters = 0
    for i, letter in enumerate(text):
        letters += sum(n for _, n in stream.feed(letter, over=False))
        normal = vocabulary.bpe.normalizer.normalize_str(text[: i + 1])
        assert letters + stream.waiting == len(normal.encode())


@pytest.mark.parametrize("vocabulary", VOCABULARIES)
def test_little_is_held_back(vocabulary: Vocabulary) -> None:
    """Of a text without spaces: what might be in one token with what comes."""
    longest = max(len(token) for token in vocabulary.bpe.get_vocab())
    stream = TokenStream(vocabulary)
    for letter in "你好世界你好吗世界很大今日は良い天気です" * 3:
        stream.feed(letter, over=False)
        assert stream.waiting < longest + 2 * len(letter.encode())
