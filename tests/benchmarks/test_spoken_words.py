"""Words are compared as they sound, however they are written."""

import pytest

from benchmarks.speech.spoken_words import spoken_words, word_errors


@pytest.mark.parametrize(
    ("heard", "said"),
    [
        ("Your code is 4471.", "your code is four four seven one"),
        ("Your code is 44-71.", "your code is forty-four seventy-one"),
        ("Your code is 4.471.", "your code is four four seven one"),
        ("Your code is 4-4-7-1.", "your code is four four seven one"),
        ("From 10-15.", "from ten to fifteen"),
        ("It is $1,249.50.", "it is one thousand two hundred forty nine dollars and fifty cents"),
        ("1,000,500", "one million five hundred"),
        ("At 3:45 p.m. on July 3rd.", "at three forty-five PM on july third"),
        ("Since 1905.", "since nineteen oh five"),
        ("Flight BA 2490.", "flight b a twenty-four ninety"),
        ("The K7PQ2 code.", "the k seven p q two code"),
        ("My PIN is 0926.", "my pin is zero nine two six"),
        ("On the 20th, then on the 12th.", "on the twentieth then on the twelfth"),
        ("Write to anna.berg@mail.org!", "write to anna dot berg at mail dot org"),
        ("It\u2019s John's.", "it's johns"),
    ],
)  # fmt: skip
def test_what_sounds_alike_is_alike(heard: str, said: str) -> None:
    assert spoken_words(heard) == spoken_words(said)
    assert word_errors(heard, said) == 0


@pytest.mark.parametrize(
    ("heard", "said", "wrong"),
    [
        ("Your code is 4417.", "your code is four four seven one", 2),
        ("Please hold.", "please hold the line", 2),
        ("", "please hold the line", 4),
        ("I see the point.", "i see a point", 1),
        ("Two and three.", "23", 1),
    ],
)
def test_what_sounds_different_is_counted(heard: str, said: str, wrong: int) -> None:
    assert word_errors(heard, said) == wrong
