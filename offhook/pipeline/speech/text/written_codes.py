"""What is spoken sign by sign in every language: spelled names, codes of letters and digits, and
the numbers of emergency services. And abbreviated days of the week.

The rules are the same in all languages; each speaks the parts in its own words.
"""

import re
from collections.abc import Mapping

from offhook.pipeline.speech.text.digit_groups import CALL_WORDS
from offhook.pipeline.speech.text.reading import Reading
from offhook.pipeline.speech.text.word_lists import words

_SPELLED = re.compile(r"[^\W\d_](?:-[^\W\d_]){2,}")
_CODE = re.compile(r"(?P<mark>#?)(?P<parts>[A-Z0-9]+(?:[-/][A-Z0-9]+)*)")
_BOTH = re.compile(r"(?=.*\d)(?=.*[A-Z]).{2,}")
_DAYS = re.compile(r"(?P<first>\w{1,5})\.?[-–—](?P<last>\w{1,5})")
CODE_DIGITS = 5
"""Fewest digits of a code without letters: 5-10 and 2/3 are none."""
EMERGENCIES = words("000 061 091 110 111 112 113 115 118 119 190 192 193 911 999")
"""Numbers that are called in an emergency, of all countries."""


def spelled(reading: Reading) -> str | None:
    """K-O-W-A-L-S-K-I: the letters, with a pause behind each."""
    if not _SPELLED.fullmatch(reading.core):
        return None
    return ", ".join(letter.upper() for letter in reading.core.split("-"))


def code_parts(reading: Reading, *, known: bool) -> tuple[bool, list[str]] | None:
    """A7-55X/19, #A7, and, where a word before says that it is a code (`known`), 73-9428: whether
    it begins with #, and its parts."""
    match = _CODE.fullmatch(reading.core)
    if not match:
        return None
    parts = re.split("[-/]", match["parts"])
    digits = sum(map(str.isdecimal, match["parts"]))
    mixed = len(parts) > 1 and any(map(_BOTH.fullmatch, parts))
    marked = bool(match["mark"]) and (len(parts) > 1 or _BOTH.fullmatch(parts[0]) is not None)
    known = known and len(parts) > 1 and digits >= CODE_DIGITS
    return (bool(match["mark"]), parts) if mixed or marked or known else None


def is_emergency(reading: Reading) -> bool:
    """Call 911, dial 112 or 999."""
    if reading.core not in EMERGENCIES:
        return False
    before = [word.lower().strip(".,:;()") for word in reading.before]
    return any(word in CALL_WORDS or word in EMERGENCIES for word in before)


def weekdays(reading: Reading, names: Mapping[str, str]) -> tuple[str, str] | None:
    """Mon–Fri, Mo.-Fr.: the two days in full. `names` are those of the days, by their
    abbreviations in lower case and without a dot."""
    match = _DAYS.fullmatch(reading.core)
    if not match:
        return None
    first, last = (names.get(match[end].lower()) for end in ("first", "last"))
    return (first, last) if first and last else None
