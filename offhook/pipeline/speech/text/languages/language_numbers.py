"""Numbers as written in ten languages, in words that agree with the noun counted."""

import re
from functools import lru_cache

from offhook.pipeline.speech.text.languages.language_tables import (
    CURRENCY_SIGNS,
    CYRILLIC_UNITS,
    UNIT_IDS,
    Language,
)
from offhook.pipeline.speech.text.languages.spoken_numbers import cardinal, digits, ordinal, spelt
from offhook.pipeline.speech.text.reading import Reading
from offhook.pipeline.speech.text.word_lists import words

_COMMA = r"(?:\d{1,3}(?:[.\u00a0\u202f']\d{3})+|\d+)(?:[.,]\d+)?"
_POINT = r"(?:\d{1,3}(?:,\d{3})+|\d+)(?:\.\d+)?"
_SIGN = "|".join(re.escape(sign) for sign in sorted(CURRENCY_SIGNS, key=len, reverse=True))
_UNIT = "|".join(re.escape(unit) for unit in sorted({*UNIT_IDS, *CYRILLIC_UNITS}, key=len)[::-1])
_DASH = "[-–~～]"
_MINUS = "[-−+±≈~<>≤≥]"


@lru_cache
def shapes(decimal: str) -> dict[str, re.Pattern[str]]:
    number = _COMMA if decimal == "," else _POINT
    signed = rf"(?P<sign>{_MINUS}?)(?P<number>{number})"
    upto = rf"(?:{_DASH}(?P<until>{number}))?"
    return {
        "number": re.compile(signed + upto),
        "percent": re.compile(rf"{signed}{upto}%"),
        "money": re.compile(rf"(?P<sign>{_MINUS}?)(?P<symbol>{_SIGN})(?P<number>{number}){upto}"),
        "money_after": re.compile(rf"{signed}{upto}(?P<symbol>{_SIGN})"),
        "unit": re.compile(rf"{signed}{upto}(?P<unit>{_UNIT})"),
    }


def joined(language: Language, *words: str) -> str:
    """Joins words, with spaces where the language uses them."""
    space = "" if language.code in ("zh", "ja") else " "
    return space.join(word for word in words if word)


def ungrouped(language: Language, text: str) -> str:
    """Removes grouping from a written number: "1.234,5" is "1234,5", and "3.5" stays."""
    if language.decimal == ".":
        return text.replace(",", "")
    text = re.sub(r"[\u00a0\u202f']", "", text)
    return re.sub(r"\.(?=\d{3}(?:\D|$))", "", text)


def number_words(language: Language, text: str, gender: str = "") -> str:
    return spelt(language.code, language.point, ungrouped(language, text), gender)


def value_of(language: Language, text: str) -> float:
    return float(ungrouped(language, text).replace(",", "."))


def sign_of(language: Language, match: re.Match[str]) -> str:
    sign = match["sign"]
    if not sign:
        return ""
    if sign == "+":
        return language.signs["+"]
    return language.minus if sign in "-−" else language.more_signs.get(sign, language.minus)


def both_ends(language: Language, match: re.Match[str], gender: str = "") -> str:
    """Returns the number, or both ends of a range, in words."""
    number = number_words(language, match["number"], gender)
    if not match["until"]:
        return number
    return joined(language, number, language.to, number_words(language, match["until"], gender))


_FEMININE_ENDS = {
    "de": ("e", "ung", "heit", "keit", "ion", "schaft", "tät", "person", "woche"),
    "es": ("a", "ión", "dad"),
    "it": ("a", "ione", "tà"),
    "pt": ("a", "ção", "dade", "vez"),
    "fr": ("ion", "té", "ette", "ence", "ance", "ine", "onne"),
    "ru": ("а", "я"),
}
_MASCULINE = re.compile(
    r"día|dia|(?:kilo|quilo|mili)?grama|problema|programa|sistema|tema|franken|евро"
)


def gender_of(language: Language, noun: str) -> str:
    """Returns the gender of a noun by the ending of its singular."""
    head = noun.split()[0].lower() if noun.strip() else ""
    feminine = head.endswith(_FEMININE_ENDS.get(language.code, ())) or head in language.feminine
    if _MASCULINE.fullmatch(head):
        return "m"
    if feminine:
        return "f"
    return "n" if language.code == "ru" and head.endswith(("о", "е")) else "m"


def agreeing_gender(language: Language, number: str, noun: str) -> str:
    """Returns the gender that a number takes from the following noun; empty if it does not
    inflect."""
    number = ungrouped(language, number)
    last = number[-1:] if number.isdecimal() else ""
    if language.code in ("de", "it"):
        counts = number == "1" and noun.isalpha() and noun.istitle() == (language.code == "de")
        return gender_of(language, noun) if counts else ""
    if (
        not noun.isalpha()
        or noun == "para"
        or language.code not in _FEMININE_ENDS
        or number[-2:] in ("11", "12")
    ):
        return ""
    if language.code == "ru" and last == "2":
        return "f" if noun.endswith(("ы", "и")) else "m"
    plain = last == "1" or (language.code == "pt" and last == "2") or number.endswith("00")
    singular = noun if language.code == "ru" else noun.removesuffix("s")
    return gender_of(language, singular) if plain else ""


def year_words(language: Language, text: str) -> str:
    if language.code == "zh":
        return digits("zh", text)
    if language.code == "de" and 1100 <= int(text) < 2000:
        hundreds, rest = divmod(int(text), 100)
        return cardinal("de", hundreds) + "hundert" + (cardinal("de", rest) if rest else "")
    return cardinal(language.code, int(text))


GERMAN_DATIVE = words("am vom zum dem den des im beim ab bis seit zur keinem jedem")
GERMAN_ARTICLES = words("der die das")


def german_rank(number: int, reading: Reading) -> str:
    before = reading.before[-1].lower()
    ending = "n" if before in GERMAN_DATIVE else "" if before in GERMAN_ARTICLES else "r"
    return ordinal("de", number) + ending
