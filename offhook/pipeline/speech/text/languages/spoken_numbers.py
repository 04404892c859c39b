"""Numbers in words in ten languages, spelled by num2words with its gaps filled.

Text is as written in the language, with its decimal mark and without grouping. Gender is that of
the noun counted, "m", "f" or "n"; empty for a number alone.
"""

import re
from decimal import Decimal
from functools import lru_cache

from num2words import num2words

LONGEST_COUNT = 12
"""Maximum digits of a cardinal; a longer number is read digit by digit."""
_HAN_DIGITS = "零一二三四五六七八九"
_HAN_PLACES = ("", "十", "百", "千")
_HAN_GROUPS = ("", "万", "亿", "兆")
_KOREAN_TENS = ("", "열", "스물", "서른", "마흔", "쉰", "예순", "일흔", "여든", "아흔")
_KOREAN_ONES = ("", "한", "두", "세", "네", "다섯", "여섯", "일곱", "여덟", "아홉")
_ONES = {
    "de": (("eins", {"m": "ein", "f": "eine", "n": "ein"}),),
    "es": (("veintiuno", {"m": "veintiún", "f": "veintiuna"}), ("uno", {"m": "un", "f": "una"})),
    "fr": (("un", {"m": "un", "f": "une"}),),
    "it": (("uno", {"m": "un", "f": "una"}),),
    "nl": (("een", {"m": "een"}),),
    "pt": (("um", {"m": "um", "f": "uma"}), ("dois", {"m": "dois", "f": "duas"})),
}
"""Endings of numbers that agree with the noun counted."""


@lru_cache(2048)
def cardinal(language: str, number: int, gender: str = "") -> str:
    if language == "zh":
        return chinese(number)
    if language == "ru":
        return str(num2words(number, lang="ru", gender=gender or "m"))
    words = str(num2words(number, lang=language))
    if language in ("ja", "ko") or not gender:
        return words
    if gender == "f" and language in ("es", "pt"):
        words = re.sub(r"entos\b", "entas", words)
    for ending, forms in _ONES[language]:
        alone = words == ending or language not in ("de", "it")
        if words.endswith(ending) and alone:
            return words.removesuffix(ending) + forms.get(gender, forms["m"])
    return words


def digits(language: str, text: str) -> str:
    """Returns each digit as a word; other characters are dropped."""
    if language == "zh":
        return "".join(_HAN_DIGITS[int(char)] for char in text)
    spelt = (
        "ゼロ" if language == "ja" and char == "0" else _digit(language, char) for char in text
    )
    return ("" if language in ("ja", "ko") else " ").join(spelt)


def _digit(language: str, char: str) -> str:
    return cardinal(language, int(char))


def spelt(language: str, point: str, text: str, gender: str = "") -> str:
    """Returns a cardinal, with decimals after a comma or dot; digits if it starts with a zero or is
    too long."""
    whole, _, fraction = re.sub(r"[.,]", ".", text).partition(".")
    if len(whole) > LONGEST_COUNT or (len(whole) > 1 and whole[0] == "0"):
        return digits(language, whole + fraction)
    if not fraction:
        return cardinal(language, int(whole), gender)
    if language == "ru":
        return str(num2words(Decimal(f"{whole}.{fraction}"), lang="ru"))
    in_one = language in ("fr", "es", "it", "pt") and fraction[0] != "0" and len(fraction) <= 2
    after = cardinal(language, int(fraction)) if in_one else digits(language, fraction)
    space = "" if language in ("zh", "ja") else " "
    return f"{cardinal(language, int(whole))}{space}{point}{space}{after}"


def ordinal(language: str, number: int, gender: str = "m") -> str:
    words = str(num2words(number, lang=language, to="ordinal"))
    if gender == "f" and language in ("es", "it", "pt"):
        return re.sub(r"o\b", "a", words)
    if gender == "f" and language == "fr":
        return words.replace("premier", "première")
    return words


def russian_ordinal(number: int, case: str, gender: str = "m", plural: bool = False) -> str:
    """`case` is its first letter in Latin: n, g, d, a, i or p."""
    kind = {"case": case, "gender": gender, "plural": plural, "animate": False}
    return str(num2words(number, lang="ru", to="ordinal", **kind))


def chinese(number: int) -> str:
    """Returns a cardinal from 0 to 10¹⁶: 105 一百零五, 20010 两万零一十."""
    groups = []
    rest, place = number, 0
    while rest:
        rest, group = divmod(rest, 10_000)
        if group:
            # A gap between two groups is a single zero: 1 0005, 2 0010.
            gap = rest and group < 1000
            groups.append(("零" if gap else "") + _han_group(group) + _HAN_GROUPS[place])
        elif groups and rest and not groups[-1].startswith("零"):
            groups.append("零")
        place += 1
    words = "".join(reversed(groups)).replace("零零", "零")
    if number >= 2000:
        words = re.sub(r"^二(?=[千万亿])", "两", words)
    return words.removeprefix("一") if words.startswith("一十") else words or "零"


def _han_group(group: int) -> str:
    """Returns a group, 1 to 9999."""
    words, zero = "", False
    for place in range(3, -1, -1):
        digit = group // 10**place % 10
        if digit:
            words += ("零" if zero and words else "") + _HAN_DIGITS[digit] + _HAN_PLACES[place]
        zero = not digit
    return words


def korean_count(number: int) -> str | None:
    """Returns a native Korean numeral before a counter, 1 to 99: 세 (개), 스무 (살)."""
    if not 1 <= number <= 99:
        return None
    return "스무" if number == 20 else _KOREAN_TENS[number // 10] + _KOREAN_ONES[number % 10]
