"""Numbers in American English: cardinals, ordinals, years, digits, dates and clock times.

num2words spells the numbers; its "and" and commas, which make a voice pause, are removed.
"""

import re
import unicodedata
from fractions import Fraction
from functools import lru_cache

from num2words import num2words

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
    char: Fraction(unicodedata.numeric(char)).limit_denominator(8) for char in "½⅓⅔¼¾⅕⅖⅗⅘⅙⅚⅛⅜⅝⅞"
}


@lru_cache(4096)
def _spelt(number: int, kind: str) -> str:
    words: str = num2words(number, lang="en", to=kind)
    return words.replace(",", "").replace(" and ", " ")


def digits(text: str, zero: str = "zero") -> str:
    """Returns each digit as a word; other characters are dropped."""
    spelt = (_spelt(int(char), "cardinal") if char != "0" else zero for char in text)
    return " ".join(spelt)


def cardinal(number: int) -> str:
    """Returns a cardinal: "one hundred five"."""
    if number >= 10**LONGEST_COUNT:
        return digits(str(number))
    return _spelt(number, "cardinal")


def ordinal(number: int) -> str:
    """Returns an ordinal: "fifth"."""
    return _spelt(number, "ordinal")


def year(number: int) -> str:
    """Returns a year: "nineteen eighty-four"."""
    return _spelt(number, "year")


def count(text: str) -> str:
    """Returns a number as matched by NUMBER: "1,234.50" is "one thousand two hundred thirty-four
    point five zero". A leading zero means digits."""
    whole, _, fraction = text.replace(",", "").partition(".")
    if len(whole) > 1 and whole[0] == "0":
        spoken = digits(whole)
    else:
        spoken = cardinal(int(whole)) if whole else ""
    return f"{spoken} point {digits(fraction)}".strip() if fraction else spoken


def name(text: str) -> str:
    """Returns a number used as a name (a room, flight or error): 404 "four oh four", 1234 "twelve
    thirty-four", 500 "five hundred"; five digits and more one by one."""
    if text[0] == "0" or len(text) > 4:
        return digits(text)
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
