"""Digits that a caller writes down are spoken in groups, with a comma between them."""

import pytest

from offhook.pipeline.speech.text.digit_groups import split
from offhook.pipeline.speech.text.spoken_text import TextReader


def said(text: str, language: str) -> str:
    reader = TextReader(language)
    return "".join(word.spoken for word in reader.feed(text) + reader.finish())


@pytest.mark.parametrize(
    ("digits", "groups"),
    [
        ("1", "1"),
        ("12345", "12345"),
        ("123456", "123 456"),
        ("1234567", "123 4567"),
        ("12345678", "1234 5678"),
        ("123456789", "123 456 789"),
        ("1234567890", "123 456 7890"),
        ("123456789012", "1234 5678 9012"),
        ("1234567890123456", "1234 5678 9012 3456"),
    ],
)
def test_long_numbers_are_split(digits: str, groups: str) -> None:
    assert " ".join(split(digits)) == groups


WRITTEN_DOWN = {
    "en": (
        ("0800 123 456", 3),
        ("(020) 7946 0958", 3),
        ("+49 30 1234567", 4),
        ("+33 1 23 45 67 89", 6),
        ("555-123-4567", 3),
        ("1-800-555-0199", 4),
        ("555 1234", 2),
        ("call 600 123 456", 3),
        ("07911123456", 4),
        ("4111 1111 1111 1111", 4),
        ("4111-1111-1111-1111", 4),
        ("DE89 3704 0044 0532 0130 00", 6),
        ("DE89370400440532013000", 6),
        ("code 482193", 2),
        ("your code is: 48219374", 2),
        ("tracking number 1Z999AA10123", 3),
        ("serial AB12-CD34-EF56", 3),
        ("$1,234.56", 2),
        ("$12,345.67", 3),
        ("$1,234,567", 3),
    ),
    "de": (
        ("030 1234567", 3),
        ("030/1234567", 3),
        ("(030) 123 45 67", 4),
        ("+49 (0)30 1234567", 4),
        ("0171-1234567", 3),
        ("Ihr Code lautet 482193", 2),
        ("Kundennummer 12345678", 2),
        ("DE89 3704 0044 0532 0130 00", 6),
        ("1.234,56 €", 2),
    ),
    "fr": (
        ("01 23 45 67 89", 5),
        ("01.23.45.67.89", 5),
        ("0123456789", 5),
        ("+33 1 23 45 67 89", 6),
        ("votre code est 482193", 2),
        ("1 234,56 €", 2),
    ),
    "es": (
        ("91 123 45 67", 4),
        ("600 123 456", 3),
        ("llame al 900 123 456", 3),
        ("+34 600 123 456", 4),
        ("su código es 482193", 2),
        ("1.234,56 €", 2),
    ),
}


@pytest.mark.parametrize(
    ("language", "written", "groups"),
    [(language, *case) for language, cases in WRITTEN_DOWN.items() for case in cases],
)
def test_groups_have_pauses(language: str, written: str, groups: int) -> None:
    assert said(written, language).count(",") == groups - 1, said(written, language)


@pytest.mark.parametrize(
    ("language", "written"),
    [
        ("en", "in 2024 500 people came"),
        ("en", "1 000 kg"),
        ("en", "1 000 000 people"),
        ("en", "0.123456"),
        ("en", "192.168.100.100"),
        ("en", "release 10.15.7"),
        ("en", "007"),
        ("en", "3 1/2 cups"),
        ("en", "$20.50"),
        ("en", "1990-1995"),
        ("de", "1.234.567 Leute"),
        ("de", "1 000 kg"),
        ("de", "der 01.05. ist frei"),
        ("fr", "10 000 habitants"),
        ("fr", "1 234 567 habitants"),
        ("es", "600 123 456 personas"),
    ],
)
def test_amounts_versions_and_dates_are_not_taken_apart(language: str, written: str) -> None:
    assert "," not in said(written, language)
