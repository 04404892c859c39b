"""English telephone numbers, dates and times of day in words.

Each rule handles one shape of a written word: it returns the spoken form, having consumed the
following words that belong to it, or None if it does not apply.
"""

import re

from offhook.pipeline.speech.text.english.english_numbers import cardinal, clock, date, digits
from offhook.pipeline.speech.text.reading import Reading
from offhook.pipeline.speech.text.word_lists import words

DASH = "[-–]"

_PHONE = re.compile(
    r"(?:\+?\d{1,3}[-.])?(?:\(\d{3}\)[-.]?|\d{3}[-.])\d{3}[-.]\d{4}|\d{3}-\d{4}|\+\d{8,15}"
)
_PHONE_START = re.compile(r"\(\d{3}\)|\+\d{1,3}|1|\d{3}")
_PHONE_GROUP = re.compile(r"\(?\d{1,5}\)?(?:[-.]\d{2,5})*")
_NATIONAL = ([3, 3, 4], [1, 3, 3, 4])
"""Digits per group of North American numbers."""
_VANITY = re.compile(r"(?P<digits>(?:1-)?8\d\d)-(?P<word>[A-Z]{3,})")
MAX_PHONE_GROUPS = 6


def phone(reading: Reading) -> str | None:
    quoted = reading.word.lstrip("\"'“‘")
    word = quoted.rstrip(".,;:!?\"'”’")
    if _PHONE.fullmatch(word):
        reading.surround(reading.word[: -len(quoted)], quoted[len(word) :])
        return _phone_groups(word)
    if vanity := _VANITY.fullmatch(reading.core):
        return f"{_phone_groups(vanity['digits'])}, {vanity['word']}"
    if not _PHONE_START.fullmatch(reading.word):
        return None
    lead, trail = reading.lead, reading.trail
    reading.surround("", "")
    groups = [word]
    while len(groups) < MAX_PHONE_GROUPS:
        found = reading.after(len(groups) - 1)
        if not _PHONE_GROUP.fullmatch(found.core):
            break
        groups.append(found.core)
    lengths = [len(group) for group in re.findall(r"\d+", " ".join(groups))]
    abroad = word[0] == "+" and len(lengths) > 2 and 8 <= sum(lengths) <= 15
    if lengths not in _NATIONAL and not abroad:
        reading.surround(lead, trail)
        return None
    reading.consume(len(groups) - 1)
    return _phone_groups(" ".join(groups))


def _phone_groups(text: str) -> str:
    groups = ("eight hundred" if g == "800" else digits(g) for g in re.findall(r"\d+", text))
    return ("plus " if text[0] == "+" else "") + ", ".join(groups)


# --- dates and times

_ISO_DATE = re.compile(r"(\d{4})([-/.])(\d\d?)\2(\d\d?)(?:T(\d\d):(\d\d)(?::[\d.]+)?Z?)?")
_SLASH_DATE = re.compile(r"(\d\d?)([-/.])(\d\d?)\2(\d{4}|\d\d)")
_HALF = r"[ap]\.?m"
_TIME = re.compile(
    rf"(?P<hour>[01]?\d|2[0-4])(?::(?P<minute>[0-5]\d))?(?::(?P<second>[0-5]\d))?(?P<half>{_HALF})?",
    re.IGNORECASE,
)
_TIMES = re.compile(
    rf"(?P<start>[\d:]+(?:{_HALF})?){DASH}(?P<end>[\d:]+(?:{_HALF})?)", re.IGNORECASE
)


_DOTTED = re.compile(rf"\d\d?\.[0-5]\d(?P<half>{_HALF})?", re.IGNORECASE)
ZONES = words("ET EST EDT CT CST CDT MT MST MDT PT PST PDT GMT UTC BST CET CEST")
_UNTIL = ("-", "–", "to", "until", "till")


def written_date(reading: Reading) -> str | None:
    """2024-01-15, 2024-01-15T10:30, 1/15/2024, 15.01.2024; month first where possible."""
    if match := _ISO_DATE.fullmatch(reading.core):
        in_year, month, day = (int(match[number]) for number in (1, 3, 4))
        spoken = date(day, month, in_year)
        at = f", {clock(int(match[5]), int(match[6]), half_day=False)}" if match[5] else ""
        return spoken and spoken + at
    if match := _SLASH_DATE.fullmatch(reading.core):
        month, day, in_year = int(match[1]), int(match[3]), int(match[4])
        if match[2] == "." or month > 12:
            month, day = day, month
        if in_year < 100:
            in_year += 2000 if in_year < 70 else 1900
        return date(day, month, in_year)
    return None


def time_of_day(reading: Reading) -> str | None:
    """3:30pm, 10:30 a.m., 14:05, 9-5pm, 10:00-12:30."""
    if match := _TIMES.fullmatch(reading.core):
        return _time_range(reading, match)
    if (dotted := _DOTTED.fullmatch(reading.core)) and (
        dotted["half"] or re.fullmatch(_HALF, reading.after().core, re.IGNORECASE)
    ):
        reading.core = reading.core.replace(".", ":", 1)
    match = _TIME.fullmatch(reading.core)
    if not match or not (match["minute"] or match["half"]):
        return None
    if match["half"]:
        _drop_dot(reading, match["half"])
        return _spoken_time(match, half_day=True)
    linked = reading.after().core in _UNTIL
    end = _TIME.fullmatch(reading.after(1).core) if linked else None
    if end and end["minute"]:
        reading.consume(2)
        return _from_to(reading, match, end)
    half = consume_half_day(reading)
    return _spoken_time(match, bool(half)) + half


def _time_range(reading: Reading, match: re.Match[str]) -> str | None:
    start, end = _TIME.fullmatch(match["start"]), _TIME.fullmatch(match["end"])
    if not (start and end and (end["half"] or ":" in match[0])):
        return None
    return _from_to(reading, start, end)


def _from_to(reading: Reading, start: re.Match[str], end: re.Match[str]) -> str:
    if end["half"]:
        _drop_dot(reading, end["half"])
    half = "" if end["half"] else consume_half_day(reading)
    if not (half or end["half"] or start["half"]) and int(end["hour"]) > 12:
        return f"{_in_half_days(start)} to {_in_half_days(end)}"
    short = bool(half or end["half"])
    return f"{_spoken_time(start, short)} to {_spoken_time(end, short)}{half}"


def _in_half_days(match: re.Match[str]) -> str:
    """18:30 is "six thirty PM"."""
    hour = int(match["hour"])
    half = "PM" if 12 <= hour < 24 else "AM"
    return f"{clock(hour % 12 or 12, int(match['minute'] or 0), half_day=True)} {half}"


def consume_half_day(reading: Reading) -> str:
    """Consumes "AM" or "PM" if it is the next word, and returns it with a leading space."""
    found = reading.after()
    if not re.fullmatch(_HALF, found.core, re.IGNORECASE):
        return ""
    reading.consume()
    _drop_dot(reading, found.core)
    return f" {found.core[0].upper()}M"


def _drop_dot(reading: Reading, abbreviation: str) -> None:
    zone = reading.following().rstrip(".,;:!?)") in ZONES
    if "." in abbreviation and (zone or not ends_sentence(reading)):
        reading.drop_dot()


def ends_sentence(reading: Reading) -> bool:
    """Returns whether an abbreviation's dot also ends the sentence: nothing follows, or a capital
    letter does."""
    if reading.trail == "." and reading.following() == "&":
        return False
    following = reading.next_char() if reading.trail == "." else "a"
    return not following or following.isupper()


def _spoken_time(match: re.Match[str], half_day: bool) -> str:
    spoken = clock(int(match["hour"]), int(match["minute"] or 0), half_day)
    if match["second"]:
        second = int(match["second"])
        spoken += f" and {cardinal(second)} second{'' if second == 1 else 's'}"
    return f"{spoken} {match['half'][0].upper()}M" if match["half"] else spoken
