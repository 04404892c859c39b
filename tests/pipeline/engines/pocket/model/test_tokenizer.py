"""Clauses as Pocket TTS was trained to read them."""

from functools import cache
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")
pytest.importorskip("tokenizers")

from hypothesis import given
from hypothesis import strategies as st

from offhook.pipeline.engines.pocket.model.config import CONFIGS, frame_limit
from offhook.pipeline.engines.pocket.model.tokenizer import PocketTokenizer
from offhook.pipeline.speech.errors import EngineError
from tests.support import pocket_checkpoint


def prepare(name: str, clause: str) -> str:
    tokenizer = PocketTokenizer(CONFIGS[name], lambda text: [], lambda tokens: "", 0)
    return tokenizer.prepare(clause)


@cache
def settings(name: str) -> Any:
    """Returns the package's configuration."""
    from pocket_tts.utils.config import CONFIGS_DIR, load_config

    return load_config(CONFIGS_DIR / f"{name}.yaml")


@pytest.mark.parametrize(
    ("clause", "read"),
    [
        ("  hello   there\n", "Hello there."),
        ("hello,", "Hello."),
        ("one moment –", "One moment."),
        ("is it?", "Is it?"),
        ("he said “no”", "He said “no”."),
        ("he said “no,”", "He said “no.”"),
        ("(so it is.)", "(so it is.)"),
        ("it’s", "It's."),
        ("7 o'clock", "7 o'clock."),
        ("?!", ""),
        ("", ""),
    ],
)
def test_english_clauses_begin_and_end_as_sentences(clause: str, read: str) -> None:
    assert prepare("english", clause) == read


@pytest.mark.parametrize(
    ("name", "clause", "read"),
    [
        ("french", "« Bonjour » : c’est moi ; merci", "Bonjour , c'est moi , merci."),
        ("french", "« Oui ? », dit-elle", "Oui ? dit-elle."),
        ("german", "„Gut“ — (vielleicht); ja", "Gut , vielleicht, ja."),
        ("spanish", "¿qué tal?", "Qué tal?"),
        ("italian", "“sì”; va bene", "Sì; va bene."),
        ("english_2m_refl_2026-10", "yes — no", "Yes , no."),
    ],
)
def test_characters_that_the_training_lacked_are_replaced(
    name: str, clause: str, read: str
) -> None:
    assert prepare(name, clause) == read


@given(st.text(alphabet="ab Z1.,;:!?…–—-\"'“”’«»()[]¡¿\nß", max_size=20))
def test_every_clause_is_prepared_as_by_the_package(clause: str) -> None:
    pytest.importorskip("pocket_tts")
    from pocket_tts.models.text_chunking import prepare_text_prompt

    for name in ("english", "english_18m_refl_2026-10", "french", "german", "spanish"):
        ours = prepare(name, clause)
        if not ours:
            continue  # the package says marks, or raises
        c = settings(name)
        theirs, _ = prepare_text_prompt(
            clause,
            pad_with_spaces_for_short_inputs=False,
            remove_semicolons=c.remove_semicolons,
            replace_characters=c.replace_characters,
        )
        assert ours == theirs, name


def test_the_configurations_are_those_of_the_package() -> None:
    pytest.importorskip("pocket_tts")
    for name, ours in CONFIGS.items():
        theirs = settings(name)
        replaced = dict(theirs.replace_characters)
        replaced |= {";": ","} if theirs.remove_semicolons else {}
        assert ours.replaced == replaced, name
        assert ours.end_threshold == theirs.default_eos_threshold, name
        assert ours.temperature == theirs.default_temperature, name
        assert ours.drifting == (theirs.flow_lm.flow.type == "drifting"), name
        decoder = theirs.mimi.decoder_transformer or theirs.mimi.transformer
        assert ours.decoder_context == decoder.context, name
        assert ours.decoder_head_size == decoder.d_model // decoder.num_heads, name
        assert theirs.append_terminal_punctuation
        assert theirs.capitalize_first_letter
        assert not theirs.pad_with_spaces_for_short_inputs
        assert theirs.model_recommended_frames_after_eos is None


@pytest.mark.parametrize("name", ["english", "english_18m_refl_2026-10"])
def test_both_kinds_of_tokenizers_are_read(tmp_path: Path, name: str) -> None:
    """Those of the small models are SentencePiece's."""
    if name != "english":
        pytest.importorskip("sentencepiece")
    folder = pocket_checkpoint.write(tmp_path, name)
    tokenizer = PocketTokenizer.load(folder, CONFIGS[name])
    assert tokenizer.vocab_size == pocket_checkpoint.PIECES
    tokens = tokenizer.encode("what can I do for you")
    assert 6 < len(tokens) < 26
    assert max(tokens) < tokenizer.vocab_size
    assert tokens == tokenizer.encode("What  can I do for you.")
    assert tokenizer.encode("–") == []
    assert tokenizer.frames_after_end(tokens) == 3
    assert tokenizer.frames_after_end(tokenizer.encode("what can I do")) == 5


def test_a_missing_or_damaged_tokenizer_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(EngineError, match=r"lacks a tokenizer: tokenizer.json or tokenizer.model"):
        PocketTokenizer.load(tmp_path, CONFIGS["english"])
    (tmp_path / "tokenizer.model").write_bytes(b"nonsense")
    pytest.importorskip("sentencepiece")
    with pytest.raises(EngineError, match=r"tokenizer.model cannot be read"):
        PocketTokenizer.load(tmp_path, CONFIGS["english"])
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(EngineError, match=r"tokenizer.json cannot be read"):
        PocketTokenizer.load(tmp_path, CONFIGS["english"])


def test_a_clause_may_take_three_tokens_a_second_and_two_seconds_more() -> None:
    assert frame_limit(3) == 38
    assert CONFIGS["english"].max_frames == frame_limit(50) == 234
