"""Whole sentences as agents write them, and how they are read, in eleven languages."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from offhook.pipeline.speech.text.spoken_text import TextReader


def sentences() -> Iterator[tuple[str, str, str]]:
    """Yields language, written and spoken text of each line of the table."""
    language = ""
    for line in (Path(__file__).parent / "sentences.txt").read_text().splitlines()[1:]:
        if line.startswith("[") and line.endswith("]"):
            language = line[1:-1]
        elif line:
            written, _, spoken = line.partition(" => ")
            yield language, written.replace("⏎", "\n"), spoken


SENTENCES = list(sentences())


def said(language: str, deltas: list[str]) -> str:
    reader = TextReader(language)
    words = [word for delta in deltas for word in reader.feed(delta)] + reader.finish()
    assert "".join(word.text for word in words) == "".join(deltas)
    return "".join(word.spoken for word in words)


@pytest.mark.parametrize(("language", "written", "spoken"), SENTENCES)
def test_a_sentence_is_read(language: str, written: str, spoken: str) -> None:
    assert said(language, [written]) == spoken
    assert said(language, list(written)) == spoken


def test_there_are_many_of_each_language() -> None:
    languages = [language for language, _, _ in SENTENCES]
    counts = {language: languages.count(language) for language in languages}
    assert counts["en"] >= 300
    assert all(counts[language] >= 140 for language in ("de", "fr", "es", "it", "pt", "nl"))
