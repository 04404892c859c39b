"""Words that are said and not understood are counted."""

import json
import re

import numpy as np
import pytest

from benchmarks.calls import understood
from benchmarks.calls.understood import hard_replies, through
from benchmarks.speech.http_load import texts
from benchmarks.speech.spoken_words import spoken_words, word_errors


def test_what_should_be_heard_of_hard_replies_is_in_plain_words() -> None:
    replies = hard_replies()
    assert len({text for text, _ in replies}) == 60
    assert all(re.fullmatch(r"[a-z' ]+", said) for _, said in replies)


def test_a_telephone_line_takes_the_high_tones() -> None:
    tone = (9000 * np.sin(2 * np.pi * 6000 * np.arange(24_000) / 24_000)).astype(np.int16)
    assert np.abs(through(tone, 16_000)[2000:-2000]).max() > 8000
    assert np.abs(through(tone, 8_000)[2000:-2000]).max() < 100
    assert len(through(tone, 8_000)) == 16_000


@pytest.mark.slow
def test_the_embedded_voice_is_understood_in_part(capsys: pytest.CaptureFixture[str]) -> None:
    assert understood.main(["--sentences", "2", "--json"]) == 0
    *rows, total = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [row["words"] for row in rows] == [len(spoken_words(text)) for text in texts()[:2]]
    assert [row["wrong"] for row in rows] == [
        word_errors(row["text"], text) for text, row in zip(texts(), rows, strict=False)
    ]
    assert total["words"] == sum(row["words"] for row in rows)
    assert total["wrong"] == sum(row["wrong"] for row in rows)
    assert total["wrong_percent"] < 70
    assert 3 < total["seconds"] < 20
