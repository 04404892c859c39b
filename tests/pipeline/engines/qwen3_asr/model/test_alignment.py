"""Words of a text and the order of times, without the model."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from offhook.pipeline.engines.qwen3_asr.model.alignment import (
    LANGUAGES,
    AlignmentError,
    longest_rise,
    repair,
    split,
    timed,
)

LETTERS = "aZé'ßщ中一あかーカ々한국9½"
SIGNS = ' \n\u3000.,!?-—_¿()「」『』“”„«»"’。、・\u0301€'
TEXTS = st.text(st.sampled_from(LETTERS + SIGNS), max_size=40) | st.text(max_size=20)
TIMES = st.lists(st.integers(0, 4999).map(lambda n: 80 * n), max_size=40)


def texts(text: str, language: str) -> list[str]:
    return [unit.text for unit in split(text, language)]


def spoken(text: str, language: str) -> list[str]:
    return [unit.spoken for unit in split(text, language)]


# --- words ---


@pytest.mark.parametrize(
    ("language", "text", "expected"),
    [
        ("en", "Well, isn't it 3.14?", ["Well,", "isn't", "it", "3.14?"]),
        (
            "en",
            '  He said "yes" (twice) - then $5.  ',
            ["He", "said", '"yes"', "(twice) -", "then", "$5."],
        ),
        ("es", "¿Qué tal? ¡Bien!", ["¿Qué", "tal?", "¡Bien!"]),
        ("fr", "« Bonjour », dit-il — quoi !", ["« Bonjour »,", "dit-il —", "quoi !"]),
        ("de", "„Hallo“ Welt", ["„Hallo“", "Welt"]),
        ("zh", "他说：“你好，world。”", ["他", "说：", "“你", "好，", "world。”"]),
        ("yue", "係 iPhone15呀", ["係", "iPhone15", "呀"]),
        ("ko", "학교에 갔어요.", ["학교에", "갔어요."]),
        (
            "ja",
            "私はラーメンを三ヶ月、食べた。",
            ["私", "は", "ラーメン", "を", "三ヶ月、", "食", "べた。"],
        ),
        ("ja", "「時々USB-C」らーめん", ["「時々", "USB-C」", "らーめん"]),
        ("ru", "", []),
        ("en", " ...?! — ", []),
    ],
)
def test_words_keep_their_signs(language: str, text: str, expected: list[str]) -> None:
    assert texts(text, language) == expected


def test_the_model_is_given_letters_and_digits() -> None:
    assert spoken("Well, isn't it 3.14?", "en") == ["Well", "isn't", "it", "314"]
    assert spoken("well-known a_b", "en") == ["wellknown", "ab"]
    assert spoken("「時々USB-C」", "ja") == ["時々", "USBC"]


@given(text=TEXTS, language=st.sampled_from(sorted(LANGUAGES)))
def test_no_word_is_lost(text: str, language: str) -> None:
    units = split(text, language)
    assert all(unit.spoken and unit.text == unit.text.strip() for unit in units)
    if units:
        assert "".join("".join(u.text for u in units).split()) == "".join(text.split())
        heard = "".join(c for c in text if c.isalnum() or c == "'")
        assert "".join(c for u in units for c in u.spoken if c.isalnum() or c == "'") == heard


@pytest.mark.parametrize("language", ["nl", "und", "English", ""])
def test_other_languages_are_refused(language: str) -> None:
    with pytest.raises(AlignmentError, match="cannot be aligned, only of de, en"):
        split("word", language)


# --- times ---


@pytest.mark.parametrize(
    ("times", "expected"),
    [
        ([0, 80, 80, 240], [0, 80, 80, 240]),
        ([0, 80, 4000, 160, 240], [0, 80, 80, 160, 240]),
        ([0, 80, 4000, 3920, 160, 240], [0, 80, 80, 160, 160, 240]),
        ([0, 80, 4000, 3920, 3840, 400, 480, 560], [0, 80, 160, 240, 320, 400, 480, 560]),
        ([4000, 80, 160, 240], [80, 80, 160, 240]),
        ([80, 160, 240, 0, 0, 0], [80, 160, 240, 240, 240, 240]),
        ([], []),
    ],
)
def test_what_is_out_of_order_is_replaced(times: list[int], expected: list[int]) -> None:
    assert repair(times) == expected


@given(times=TIMES)
def test_repaired_times_never_fall(times: list[int]) -> None:
    repaired = repair(times)
    assert len(repaired) == len(times)
    assert repaired == sorted(repaired)
    assert repair(repaired) == repaired
    if times == sorted(times):
        assert repaired == times
    if times:
        assert min(times) <= repaired[0]
        assert repaired[-1] <= max(times)


@given(values=st.lists(st.integers(0, 9), max_size=9))
def test_no_rise_is_longer(values: list[int]) -> None:
    rise = [values[i] for i in longest_rise(values)]
    assert rise == sorted(rise)
    longer = itertools.combinations(values, len(rise) + 1)
    assert not any(list(some) == sorted(some) for some in longer)


@given(text=TEXTS, data=st.data(), audio_ms=st.integers(0, 180_000))
def test_each_word_has_a_place_in_the_audio(text: str, data: st.DataObject, audio_ms: int) -> None:
    units = split(text, "ja")
    count = 2 * len(units)
    raw = st.integers(0, 4999).map(lambda n: 80 * n)
    words = timed(units, data.draw(st.lists(raw, min_size=count, max_size=count)), audio_ms)
    assert [word.text for word in words] == [unit.text for unit in units]
    times = [t for word in words for t in (word.start_ms, word.end_ms)]
    assert times == sorted(times)
    assert all(0 <= t <= audio_ms for t in times)
