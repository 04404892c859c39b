"""Words that are said and not understood are counted."""

import json

import numpy as np
import pytest

from benchmarks.calls import understood
from benchmarks.calls.understood import through, wrong
from offhook.bench.speech.http_load import texts
from offhook.bench.transcript import words


def test_words_that_differ_are_counted_whatever_their_case_and_marks() -> None:
    assert wrong("Please hold the line.", "please hold the line") == 0
    assert wrong("Please hold the line.", "peas hold line now") == 3
    assert wrong("Please hold the line.", "") == 4


def test_a_telephone_line_takes_the_high_tones() -> None:
    tone = (9000 * np.sin(2 * np.pi * 6000 * np.arange(24_000) / 24_000)).astype(np.int16)
    assert np.abs(through(tone, 16_000)[2000:-2000]).max() > 8000
    assert np.abs(through(tone, 8_000)[2000:-2000]).max() < 100
    assert len(through(tone, 8_000)) == 16_000


@pytest.mark.slow
def test_the_embedded_voice_is_understood_in_part(capsys: pytest.CaptureFixture[str]) -> None:
    assert understood.main(["--sentences", "2", "--json"]) == 0
    *rows, total = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [row["words"] for row in rows] == [len(words(text)) for text in texts()[:2]]
    assert [row["wrong"] for row in rows] == [
        wrong(text, row["text"]) for text, row in zip(texts(), rows, strict=False)
    ]
    assert total["words"] == sum(row["words"] for row in rows)
    assert total["wrong"] == sum(row["wrong"] for row in rows)
    assert total["wrong_percent"] < 70
    assert 3 < total["seconds"] < 20
