"""Numbers in American English: cardinals, ordinals, years, digits, dates and clock times."""

import re
import unicodedata
from fractions import Fraction
from functools import lru_cache

from offhook.pipeline.speech.text.digit_groups import split
from offhook.pipeline.speech.text.word_lists import table

NUMBER = r"(?:\d{1,3}(?:,\d{3})+|\d+)(?:\.\d+)?|\.\d+"
"""Matches a written number: 5, 1,234, 3.50, .5."""
MONTHS = (
    *("January", "February", "March", "April", "May", "June"),
    *("July", "August", "September", "October", "November", "December"),
)
LONGEST_COUNT = 15
"""Maximum digits of a cardinal; a longer number is read digit by digit."""
FRACTIONS = {2: ("half", "halves"), 4: ("quarter", "quarters")}
FRACTION_DENOMINATORS = (2, 3, 4, 5, 6, 7, 8, 9, 10, 12, 16, 32, 64, 100)
"""Denominators read as fractions; others are read as "out of"."""
VULGAR = {
    char: Fraction(unicodedata.numeric(char)).limit_denominator(10) for char in "½⅓⅔¼¾⅕⅖⅗⅘⅙⅚⅐⅛⅜⅝⅞⅑⅒"
}


_ONES = (
    *("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten"),
    *("eleven", "twelve", "thirteen", "fourteen", "fifteen", "sixteen", "seventeen", "eighteen"),
    "nineteen",
)
_TENS = ("", "", "twenty", "thirty", "forty", "fifty", "sixty", "seventy", "eighty", "ninety")
_GROUPS = ("", " thousand", " million", " billion", " trillion")
_ORDINALS = table(
    "one = first | two = second | three = third | five = fifth | eight = eighth | nine = ninth | "
    "twelve = twelfth"
)


@lru_cache(4096)
def _spelt(number: int) -> str:
    """Spells a number below 10¹⁵."""
    if number < 20:
        return _ONES[number]
    if number < 100:
        tens, one = divmod(number, 10)
        return f"{_TENS[tens]}-{_ONES[one]}" if one else _TENS[tens]
    if number < 1000:
        hundreds, rest = divmod(number, 100)
        return f"{_ONES[hundreds]} hundred" + (f" {_spelt(rest)}" if rest else "")
    words: list[str] = []
    for group in _GROUPS:
        number, rest = divmod(number, 1000)
        if rest:
            words.insert(0, _spelt(rest) + group)
    return " ".join(words)


def digits(text: str, zero: str = "zero") -> str:
    """Returns each digit as a word; other characters are dropped."""
    return " ".join(_ONES[int(char)] if char != "0" else zero for char in text)


def cardinal(number: int) -> str:
    """Returns a cardinal: "one hundred five"."""
    if number >= 10**LONGEST_COUNT:
        return digits(str(number))
    return _spelt(number)


def ordinal(number: int) -> str:
    """Returns an ordinal: "fifth"."""
    return re.sub(r"\w+$", lambda last: _rank(last[0]), cardinal(number))


def _rank(word: str) -> str:
    return _ORDINALS.get(word) or re.sub("y$", "ie", word) + "th"


def year(number: int) -> str:
    """Returns a year: "nineteen eighty-four"."""
    high, low = divmod(number, 100)
    if not high or (high % 10 == 0 and low < 10) or high >= 100:
        return cardinal(number)
    if low < 10:
        return f"{_spelt(high)} {f'oh-{_spelt(low)}' if low else 'hundred'}"
    return f"{_spelt(high)} {_spelt(low)}"


def count(text: str) -> str:
    """Returns a number as matched by NUMBER: "1,234.50" is "one thousand two hundred thirty-four
    point five zero". A leading zero means digits."""
    whole, _, fraction = text.replace(",", "").partition(".")
    if len(whole) > 1 and whole[0] == "0":
        spoken = digits(whole)
    else:
        spoken = cardinal(int(whole)) if whole else ""
    return f"{spoken} point {digits(fraction)}".strip() if fraction else spoken


def code(text: str) -> str:
    """Returns a code that is written down digit by digit, in groups of three or four."""
    return ", ".join(map(digits, split(text)))


def name(text: str) -> str:
    """Returns a number used as a name (a room, flight or error): 404 "four oh four", 1234 "twelve
    thirty-four", 500 "five hundred"; five digits and more one by one."""
    if text[0] == "0" or len(text) > 4:
        return code(text)
    number = int(text)
    if len(text) == 3 and number % 100:
        rest = number % 100
        return f"{cardinal(number // 100)} {'oh ' if rest < 10 else ''}{cardinal(rest)}"
    if len(text) == 4:
        return pairs(number)
    return cardinal(number)


def pairs(number: int) -> str:
    """Returns four digits in pairs: 1234 "twelve thirty-four", 1905 "nineteen oh five", 1200
    "twelve hundred"."""
    high, low = divmod(number, 100)
    if high % 10 == 0 and low < 10:
        return cardinal(number)
    if not low:
        return f"{cardinal(high)} hundred"
    return f"{cardinal(high)} {'oh ' if low < 10 else ''}{cardinal(low)}"


def decade(number: int) -> str:
    """Returns a decade: 1990 "nineteen nineties", 90 "nineties", 1800 "eighteen hundreds"."""
    high, low = divmod(number, 100)
    if not low:
        return f"{cardinal(high) + ' hundred' if high % 10 else cardinal(number)}s"
    tens = "tens" if low == 10 else cardinal(low)[:-1] + "ies"
    return f"{cardinal(high)} {tens}" if high else tens


def fraction(numerator: int, denominator: int) -> str | None:
    """Returns a fraction ("two thirds", "one half"); None for an uncommon one."""
    if denominator not in FRACTION_DENOMINATORS or not 0 < numerator < denominator:
        return None
    part = ordinal(denominator)
    one, many = FRACTIONS.get(denominator, (part, part + "s"))
    return f"{cardinal(numerator)} {one if numerator == 1 else many}"


def mixed(whole: int, numerator: int, denominator: int) -> str | None:
    """Returns a mixed number: "one and a half", "two and three quarters"."""
    part = fraction(numerator, denominator)
    if part is None:
        return None
    part = re.sub(r"^one (?!eighth)", "a ", part).replace("one eighth", "an eighth")
    return f"{cardinal(whole)} and {part}"


def date(day: int, month: int, in_year: int | None = None) -> str | None:
    """Returns a date: "January fifteenth, twenty twenty-four"; None if there is no such day."""
    if not (1 <= month <= 12 and 1 <= day <= 31):
        return None
    spoken = f"{MONTHS[month - 1]} {ordinal(day)}"
    return spoken if in_year is None else f"{spoken}, {year(in_year)}"


def clock(hour: int, minute: int, half_day: bool) -> str:
    """Returns a time of day; with `half_day`, "AM" or "PM" follows."""
    if not minute:
        if half_day:
            return cardinal(hour)
        if hour == 0:
            return "midnight"
        return f"{cardinal(hour)} o'clock" if hour <= 12 else f"{cardinal(hour)} hundred"
    return f"{cardinal(hour)} {'oh ' if minute < 10 else ''}{cardinal(minute)}"
