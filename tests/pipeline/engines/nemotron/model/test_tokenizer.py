"""Labels to text: as transformers does it, and without what is not text."""

import random
from pathlib import Path

import pytest

pytest.importorskip("torch")
pytest.importorskip("tokenizers")
transformers = pytest.importorskip("transformers")
# A transformers that knows no Nemotron does not do.
tiny_nemotron = pytest.importorskip(
    "tests.pipeline.engines.nemotron.model.tiny", exc_type=ImportError
)

from hypothesis import given  # noqa: E402
from hypothesis import strategies as st  # noqa: E402

from offhook.pipeline.engines.nemotron.model.tokenizer import LabelTokenizer  # noqa: E402
from offhook.pipeline.speech.errors import EngineError  # noqa: E402

TEXTS = ["The cat sat on the mat, isn't it?", "Was die Katze tat.", "a 0123 cat", "the", ""]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("english")
    tiny_nemotron.tokenizer().save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def reference() -> "transformers.ParakeetTokenizer":
    return tiny_nemotron.tokenizer(tiny_nemotron.TAGS)


@pytest.fixture(scope="module")
def multilingual(
    reference: "transformers.ParakeetTokenizer", tmp_path_factory: pytest.TempPathFactory
) -> LabelTokenizer:
    folder = tmp_path_factory.mktemp("multilingual")
    reference.save_pretrained(folder)
    return LabelTokenizer.load(folder)


@pytest.mark.parametrize("text", TEXTS)
def test_text_is_that_of_the_reference(folder: Path, text: str) -> None:
    theirs = transformers.ParakeetTokenizer.from_pretrained(folder)
    ids = theirs.encode(text, add_special_tokens=False)
    assert LabelTokenizer.load(folder).text(ids) == text
    assert theirs.decode(ids, group_tokens=False) == text


def test_so_is_that_of_labels_at_random(
    reference: "transformers.ParakeetTokenizer", multilingual: LabelTokenizer
) -> None:
    """But for spaces, which are one between words and none at the ends, and half tags."""
    chance = random.Random(1)
    for _ in range(300):
        ids = [chance.randrange(tiny_nemotron.LABELS) for _ in range(chance.randrange(20))]
        theirs = reference.decode(ids, skip_special_tokens=True, group_tokens=False)
        if "<" not in theirs:
            assert multilingual.text(ids) == " ".join(theirs.split())


def test_where_words_begin(folder: Path) -> None:
    tokenizer = LabelTokenizer.load(folder)
    reference = transformers.ParakeetTokenizer.from_pretrained(folder)
    ids = reference.encode("The cat sat on the mat", add_special_tokens=False)
    begins = [i for i, label in enumerate(ids) if tokenizer.begins_word(label)]
    assert begins[0] == 0
    words = [tokenizer.text(ids[a:b]) for a, b in zip(begins, [*begins[1:], None], strict=True)]
    assert words == ["The", "cat", "sat", "on", "the", "mat"]


def test_the_models_blank_is_a_padding_here(folder: Path) -> None:
    tokenizer = LabelTokenizer.load(folder)
    assert tokenizer.vocab_size == tiny_nemotron.LABELS + 2
    assert tokenizer.text([tiny_nemotron.ENGLISH.blank, tiny_nemotron.LABELS + 1, 0]) == ""


def test_tags_of_languages_are_told_and_not_written(
    reference: "transformers.ParakeetTokenizer", multilingual: LabelTokenizer
) -> None:
    english, german, slovene = map(reference.convert_tokens_to_ids, tiny_nemotron.TAGS)
    assert [multilingual.language([i]) for i in (english, german, slovene)] == ["en", "de", "sl"]
    cat = reference.encode("The cat sat.", add_special_tokens=False)
    katze = reference.encode("Was die Katze tat.", add_special_tokens=False)
    assert multilingual.language(cat) is None
    both = [*cat, english, *katze, german]
    assert multilingual.text(both) == "The cat sat. Was die Katze tat."
    assert multilingual.language(both) == "de"


def test_a_tag_that_is_spelt_out_is_not_written_either(
    reference: "transformers.ParakeetTokenizer", multilingual: LabelTokenizer
) -> None:
    """As of Maltese, which has no piece of its own."""

    def spelt(text: str) -> str:
        return multilingual.text(reference.encode(text, add_special_tokens=False))

    assert spelt("The cat <mt-IS> sat.") == "The cat sat."
    ids = reference.encode("The cat sat. <mt-IS>", add_special_tokens=False)
    assert multilingual.language(ids) == "mt"
    for cut in ("<", "<m", "<mt-", "<mt-S", "<mt-SI", "<mt-SI>"):
        assert spelt(f"The cat {cut}") == "The cat"
    assert spelt("The cat <on the mat") == "The cat <on the mat"


@given(ids=st.lists(st.integers(0, tiny_nemotron.LABELS - 1), max_size=30), cut=st.integers(0, 30))
def test_more_labels_take_nothing_back(
    multilingual: LabelTokenizer, ids: list[int], cut: int
) -> None:
    whole, part = multilingual.text(ids), multilingual.text(ids[:cut])
    assert whole.startswith(part)
    assert whole == whole.strip()
    assert "  " not in whole


def test_what_is_no_such_tokenizer(tmp_path: Path) -> None:
    with pytest.raises(EngineError, match=r"lacks a file: tokenizer\.json"):
        LabelTokenizer.load(tmp_path)
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(EngineError, match="cannot be read"):
        LabelTokenizer.load(tmp_path)


def test_a_tokenizer_of_qwen_is_of_another_model(tmp_path: Path) -> None:
    from tests.pipeline.engines.shared.model import tiny

    tiny.tokenizer().save(str(tmp_path / "tokenizer.json"))
    with pytest.raises(EngineError, match="of another model"):
        LabelTokenizer.load(tmp_path)
