"""Spoken English: quantities, addresses, abbreviations and symbols in words.

A list of rules, each for one shape of a written word. A rule that does not apply leaves the word to
the next; a word without a rule is spoken as written. American English where variants differ.
"""

import re

from offhook.pipeline.speech.text.codes import find_code, mixed_code, number_to_call
from offhook.pipeline.speech.text.digit_groups import spelled, weekday, weekdays
from offhook.pipeline.speech.text.english.english_numbers import (
    NUMBER,
    cardinal,
    code,
    count,
    digits,
    name,
    ordinal,
)
from offhook.pipeline.speech.text.english.english_quantities import RULES as QUANTITIES
from offhook.pipeline.speech.text.english.english_quantities import before
from offhook.pipeline.speech.text.english.english_tables import (
    ABBREVIATIONS,
    AFTER_NAME,
    BEFORE_NUMBER,
    CAPITAL_ONLY,
    DAY_NAMES,
    IDENTIFIERS,
    KEYS,
    MONTH_NAMES,
    NEVER_APART,
    NEVER_LAST,
    NUMBERED,
    NUMBERED_THINGS,
    RELATIONS,
    RULERS,
    SIGNS,
    STARTERS,
    STREET_WORDS,
    STREETS,
    TITLES,
    UNITS,
    WITHOUT_DOT,
)
from offhook.pipeline.speech.text.english.english_times import ends_sentence
from offhook.pipeline.speech.text.reading import Reading
from offhook.pipeline.speech.text.spoken_addresses import spoken_address
from offhook.pipeline.speech.text.transliteration import GREEK, greek_name
from offhook.pipeline.speech.text.word_lists import table
from offhook.pipeline.speech.text.written_words import SUPERSCRIPTS

ADDRESS_SIGNS = table(
    ". = dot | / = slash | - = dash | _ = underscore | + = plus | @ = at | : = port"
)
_COMPOUND = re.compile(rf"(?P<number>{NUMBER})-(?P<rest>[A-Za-z][A-Za-z-]*)")
_POWER = re.compile(
    rf"(?P<sign>[-+±]?)(?:(?P<times>{NUMBER})[x×·*])?(?P<base>{NUMBER}|[A-Za-z]+)"
    r"(?:\^(?P<power>-?\d+)|(?P<mark>[⁺⁻]?[⁰¹²³⁴⁵⁶⁷⁸⁹]+))"
)
_SIDES = table(
    "N = North | S = South | E = East | W = West | NE = Northeast | NW = Northwest | "
    "SE = Southeast | SW = Southwest"
)
"""Parts of a street's name."""
_RANK = re.compile(r"\d+(?:st|nd|rd|th)\b")
_RANGE = re.compile(r"\d.*[-–].*\d")
_FOOTNOTE = re.compile(r"(?P<word>[A-Za-z'’-]*[a-z]{3,})[¹²³⁴⁵⁶⁷⁸⁹⁰]+")
_SCIENTIFIC = re.compile(rf"(?P<number>{NUMBER})[eE](?P<power>[-+]?\d{{1,3}})")
_ALPHANUMERIC = re.compile(r"(?=.*\d)(?=.*[A-Za-z])[A-Za-z0-9]+(?:-[A-Za-z0-9]+)*")
_COMMA = re.compile(r"(?P<whole>-?\d{1,3}),(?P<part>\d{1,2})(?P<unit>%|[a-zA-Zµμ/°]*)")
MAX_UNGROUPED = 7
"""Characters of a code that is spoken without a pause."""
_INITIALS = re.compile(r"(?:[A-Za-z]\.)+[A-Za-z]")
_BETWEEN = (
    (re.compile(r"(?<=\w)&(?=\w)"), " and "),
    (re.compile(r"(?<=[A-Za-z])\+\+"), " plus plus"),
    (re.compile(r"(?<=\w)\+$"), " plus"),
    (re.compile(r"(?<=\w)\+(?=\w)"), " plus "),
    (re.compile(r"(?<=[\w⁰-⁹)])[*×·](?=[\w(])"), " times "),
    (re.compile(r"(?<=[\w⁰-⁹)])÷(?=[\w(])"), " divided by "),
    (re.compile(r"(?<=[\w²³⁰-⁹)])=(?=-?[\w(])"), " equals "),
    (re.compile(r"(?<=[\w²³⁰-⁹)])(?:≠|!=)(?=-?[\w(])"), " is not "),
    (re.compile(r"(?<=[\w²³⁰-⁹)])≈(?=-?[\w(])"), " is about "),
    (re.compile(r"(?<=[\w²³⁰-⁹)])(?:≤|<=)(?=-?[\w(])"), " is at most "),
    (re.compile(r"(?<=[\w²³⁰-⁹)])(?:≥|>=)(?=-?[\w(])"), " is at least "),
    (re.compile(r"(?<=[\w²³⁰-⁹)])<(?=-?[\w(])"), " less than "),
    (re.compile(r"(?<=[\w²³⁰-⁹)])>(?=-?[\w(])"), " greater than "),
    (re.compile(r"(?<=[\w²³⁰-⁹)])±(?=[\w(])"), " plus or minus "),
    (re.compile(r"(?<=[\w²³⁰-⁹)])→(?=[\w(])"), " to "),
    (re.compile(r"√(?=[\w(])"), " the square root of "),
    (re.compile(r"§+(?=\w)"), " section "),
    (re.compile(r"©(?=\w)"), " copyright "),
    (re.compile(r"№(?=\w)"), " number "),
    (re.compile(r"(?<=[a-z]s)/(?:yr|year)$"), " per year"),
    (re.compile(r"(?<=[a-z]s)/(?:mo|month)$"), " per month"),
    (re.compile(r"(?<=[a-z]s)/(?=(?:day|week|night|hour|minute|person)$)"), " per "),
    (re.compile(r"(?<=[A-Za-z])[/_\\|](?=[A-Za-z0-9])"), " "),
)


def read_english(reading: Reading) -> str:
    """Returns the spoken form of the word and of the words consumed with it."""
    for rule in RULES:
        spoken = rule(reading)
        if spoken is not None:
            if before(reading) == "between" and _RANGE.search(reading.core):
                spoken = spoken.replace(" to ", " and ", 1)
            return f"{reading.lead}{spoken}{reading.trail}"
    return reading.word


def _plain(reading: Reading) -> str | None:
    """Most words: only letters, and no abbreviation."""
    core = reading.core
    if not core.isalpha() or not core.isascii() or core.isupper() or reading.trail.startswith("."):
        return None
    known = core.lower()
    special = any(known in words for words in (TITLES, MONTH_NAMES, DAY_NAMES, WITHOUT_DOT))
    return None if special else core


def _address(reading: Reading) -> str | None:
    return spoken_address(reading.core, ADDRESS_SIGNS, digits)


def _phone_keys(reading: Reading) -> str | None:
    """*9, *31#: keys of a telephone."""
    match = re.fullmatch(r"\*(\d+)(#?)", reading.core)
    if not match:
        return None
    return f"{KEYS['*']} {_by_each(match[1])}" + f" {KEYS['#']}" * bool(match[2])


def _written_code(reading: Reading) -> str | None:
    """A7-55X/19, invoice 2024-00187, your PIN is 4821, 5500#."""
    found = find_code(reading, "en")
    if found is None:
        return None
    mark, keyed = "number " * found.marked, f" {KEYS['#']}" * found.keyed
    return f"{mark}{found.spoken(digits)}{keyed}"


def _weekdays(reading: Reading) -> str | None:
    if days := weekdays(reading, DAY_NAMES | {"m": "Monday", "f": "Friday"}):
        spoken: str | None = f"{days[0]} {'and' if days[1] == '/' else 'to'} {days[2]}"
    else:
        spoken = weekday(reading, DAY_NAMES, MONTH_NAMES)
    dotted = spoken and reading.trail.startswith(".")
    if dotted and (reading.following()[:1] == "&" or not ends_sentence(reading)):
        reading.drop_dot()
    return spoken


def _about(reading: Reading) -> None:
    """~8:00 is about eight, as ~5 km is about five kilometers."""
    if re.match(r"~\d", reading.core):
        reading.core = reading.core[1:]
        reading.surround(f"{reading.lead}about ", reading.trail)


def _house(reading: Reading) -> str | None:
    """1420 Elm Street: the number of a house is read in two parts."""
    if not re.fullmatch(r"[1-9]\d{0,4}", reading.core) or reading.trail:
        return None
    first = reading.following()
    side = _SIDES.get(first.rstrip("."), "")
    for number in range(bool(side), STREET_WORDS):
        word = reading.following(number)
        if number > bool(side) and word.lower().rstrip(".,;:!?") in STREETS:
            house = name(reading.core) if len(reading.core) > 2 else cardinal(int(reading.core))
            if side:
                reading.consume()
                reading.surround(reading.lead, "")
            return f"{house} {side}".rstrip()
        if not (word[:1].isupper() or _RANK.match(word)) or word[-1] in ",;:!?":
            return None
    return None


def _plate(reading: Reading) -> str | None:
    """Licence plate ABC 1234, flight LH 455."""
    if not reading.core.isdecimal() or not re.fullmatch("[A-Z]{2,3}", reading.before[-1]):
        return None
    if before(reading, 2) in ("plate", "plates", "registration"):
        return digits(reading.core)
    return name(reading.core) if before(reading, 2) == "flight" else None


def _number_to_call(reading: Reading) -> str | None:
    found = number_to_call(reading, "en")
    return code(found) if found else None


def _greek(reading: Reading) -> str | None:
    """A Greek letter by itself, as in formulas."""
    return greek_name(reading.core) if GREEK.fullmatch(reading.core) else None


def _decimal_comma(reading: Reading) -> None:
    """Writes 10,5 km, as the continent has it, with a point for the rules that follow."""
    match = _COMMA.fullmatch(reading.core)
    unit = match and (match["unit"] or reading.after().core)
    if match and (unit in UNITS or unit == "%"):
        reading.core = f"{match['whole']}.{match['part']}{match['unit']}"


def _tagged(reading: Reading) -> str | None:
    """#5, #hashtag, @name."""
    match = re.fullmatch(r"([#@])(\w+)", reading.core)
    if not match:
        return None
    if match[2].isupper() and any(map(str.isdecimal, match[2])):
        return f"number {_by_each(match[2])}"
    if match[2].isdecimal():
        return f"{'number' if match[1] == '#' else 'at'} {name(match[2])}"
    return f"{'hashtag' if match[1] == '#' else 'at'} {match[2].replace('_', ' ')}"


def _compound(reading: Reading) -> str | None:
    """5-year-old, 20-minute."""
    match = _COMPOUND.fullmatch(reading.core)
    if not match:
        return None
    unit, dash, rest = match["rest"].partition("-")
    if unit in UNITS and unit not in NEVER_APART:
        unit = UNITS[unit][0]
    return f"{count(match['number'])}-{unit}{dash}{rest}"


def _power(reading: Reading) -> str | None:
    if match := _SCIENTIFIC.fullmatch(reading.core):
        return f"{count(match['number'])} times ten to the {_signed(int(match['power']))}"
    return _power_words(reading.core)


def _power_words(text: str) -> str | None:
    """10⁻³, 5×10⁶, x², 2^10, km²; after a longer word the number is a footnote's."""
    if text in UNITS and text.endswith(("²", "³")):
        return UNITS[text][0]
    if re.fullmatch("[⁰¹²³⁴⁵⁶⁷⁸⁹]+", text):
        return ""
    if match := _FOOTNOTE.fullmatch(text):
        return match["word"]
    match = _POWER.fullmatch(text)
    if not match:
        return None
    base = match["base"] if match["base"].isalpha() else count(match["base"])
    if match["times"]:
        base = f"{count(match['times'])} times {base}"
    base = {"": "", "-": "minus ", "+": "plus ", "±": "plus or minus "}[match["sign"]] + base
    power = int(match["power"] or match["mark"].translate(SUPERSCRIPTS))
    if power in (2, 3):
        return f"{base} {'squared' if power == 2 else 'cubed'}"
    return f"{base} to the power of {_signed(power)}"


def _signed(number: int) -> str:
    return f"{'minus ' if number < 0 else ''}{cardinal(abs(number))}"


def _by_each(text: str) -> str:
    """Returns each character of a code; of a long one in groups of four."""
    size = 4 if len(text) > MAX_UNGROUPED else len(text)
    groups = [text[at : at + size] for at in range(0, len(text), size)]
    return ", ".join(
        " ".join(digits(char) if char.isdecimal() else char for char in group) for group in groups
    )


def _alphanumeric(reading: Reading) -> str | None:
    """4B "four B", GPT-4 "GPT four"; mixed codes character by character."""
    found = mixed_code(reading.core)
    if found:
        return found.spoken(digits)
    if not _ALPHANUMERIC.fullmatch(reading.core):
        return None
    groups = re.findall(r"\d+|[A-Za-z]+", reading.core)
    if len(groups) > 2 and reading.core.isupper() and len(reading.core) > 4:
        return ", ".join(map(_by_each, reading.core.split("-")))
    return " ".join(name(group) if group.isdecimal() else group for group in groups)


def _abbreviation(reading: Reading) -> str | None:
    key, dotted = reading.core.lower(), reading.trail.startswith(".")
    if key == "min" and dotted and before(reading) == "per":
        reading.drop_dot()
        return "minute"
    if key in TITLES and (dotted or key in ("dr", "mr", "mrs")):
        return _title(reading, key)
    if key in MONTH_NAMES and reading.core != MONTH_NAMES[key]:
        return _short_month(reading, key)
    if dotted and key in BEFORE_NUMBER:
        return _before_number(reading, key)
    if key in CAPITAL_ONLY and not reading.core[0].isupper():
        return None
    spoken = ABBREVIATIONS.get(key) if dotted or key in WITHOUT_DOT else None
    if reading.core.isupper() and len(key) > 2 and key.isalpha():
        return None
    if spoken is None and _INITIALS.fullmatch(reading.core):
        spoken = " ".join(reading.core.replace(".", "").upper())
        if reading.trail == "." and reading.following().lower() not in STARTERS | {""}:
            reading.drop_dot()
    named = key in ("jr", "sr") and reading.following().lower() not in STARTERS | {""}
    if spoken is not None and dotted and (named or key in NEVER_LAST or not ends_sentence(reading)):
        reading.drop_dot()
    return spoken


def _title(reading: Reading, key: str) -> str | None:
    """Dr. Smith is a doctor, Main Dr. a drive."""
    if not reading.core[0].isupper():
        return None
    previous = reading.before[-1]
    after_name = previous[:1].isupper() or previous[:1].isdecimal()
    named = len(reading.trail) <= 1 and reading.next_char().isupper()
    street = after_name and previous[-1] not in ".,!?:;"
    if key in AFTER_NAME and (street or not named):
        if not ends_sentence(reading):
            reading.drop_dot()
        return AFTER_NAME[key]
    if not named and not reading.trail.startswith("."):
        return None
    reading.drop_dot()
    return TITLES[key]


def _short_month(reading: Reading, key: str) -> str | None:
    """Jan 5, Jan. 5, 5 Jan, Sept. 2024."""
    day_before = re.fullmatch(r"\d\d?(?:st|nd|rd|th)?", reading.before[-1])
    dotted = reading.trail.startswith(".")
    if not reading.core[0].isupper() or reading.core == "May":
        return None
    if not (dotted or day_before or reading.after().core[:1].isdecimal()):
        return None
    if not ends_sentence(reading):
        reading.drop_dot()
    return MONTH_NAMES[key]


def _before_number(reading: Reading, key: str) -> str | None:
    """ "No. 5" is number five, "order no. is" too; "No." alone is no."""
    following = reading.following()
    code = re.match(r"#?[A-Z]+-?\d", following) or (key == "no" and following in ("is", "on"))
    if reading.trail != "." or not (code or reading.next_char().isdecimal()):
        return None
    reading.drop_dot()
    spoken = BEFORE_NUMBER[key]
    return spoken.capitalize() if reading.core[0].isupper() else spoken


_ROMAN = re.compile(r"(X{0,3})(IX|IV|V?I{0,3})")


def _roman_value(text: str) -> int:
    """Returns 1 to 39; 0 if it is not a Roman numeral."""
    match = _ROMAN.fullmatch(text)
    if not match:
        return 0
    ones = {"IX": 9, "IV": 4}.get(match[2], 5 * match[2].count("V") + match[2].count("I"))
    return 10 * len(match[1]) + ones


def _roman(reading: Reading) -> str | None:
    """Chapter IV, World War II, Henry VIII; elsewhere letters stay letters."""
    number, previous = _roman_value(reading.core), reading.before[-1]
    if not number:
        return None
    if previous[:1].isupper() and before(reading) in NUMBERED | {"war"}:
        return cardinal(number)
    if previous in RULERS and reading.core not in ("I", "X"):
        return f"the {ordinal(number)}"
    return None


def _signs(reading: Reading) -> str | None:
    """Symbols alone or inside a word: &, and/or, C#, x=5, snake_case."""
    if reading.core == "#" and before(reading) in IDENTIFIERS | NUMBERED_THINGS:
        return "number"
    if reading.core in KEYS and not _is_operand(reading.before[-1]):
        return KEYS[reading.core]
    if reading.core in SIGNS:
        related = reading.core in RELATIONS and _is_operand(reading.before[-1])
        return ("is " if related else "") + SIGNS[reading.core]
    core = reading.core
    for pattern, spoken in _BETWEEN:
        core = pattern.sub(spoken, core)
    if core == reading.core:
        return None
    return " ".join(map(_piece, core.split()))


def _is_operand(word: str) -> bool:
    return bool(word) and (len(word) == 1 or any(map(str.isdecimal, word)))


def _piece(text: str) -> str:
    if number := re.fullmatch(rf"(-?)({NUMBER})", text):
        return f"{'minus ' if number[1] else ''}{count(number[2])}"
    return _power_words(text) or text


class _Alone:
    """A single word as a text; see `Words`."""

    def __init__(self, text: str) -> None:
        self._text = text

    def word(self, number: int) -> str:
        return "" if number else self._text

    def first(self, number: int) -> str:
        return ""


_ENDS = re.compile(r"([^-–]*\d[^-–]*)[-–]([^-–]*\d[^-–]*)")


def _ends(reading: Reading) -> str | None:
    """A range with a unit at both ends: 5kg–10kg, $1.2m–$1.5m."""
    match = _ENDS.fullmatch(reading.core)
    if not match:
        return None
    spoken = []
    for text in match.groups():
        alone = Reading(_Alone(text), ("", "", ""))
        found = next((said for rule in QUANTITIES if (said := rule(alone))), None)
        if found is None or alone.trail or text.isdecimal():
            return None
        spoken.append(found)
    return " to ".join(spoken)


def _times(reading: Reading) -> str | None:
    """A lone x between two numbers."""
    numbers = reading.before[-1][-1:].isdecimal() and reading.next_char().isdecimal()
    return "times" if reading.word == "x" and numbers else None


def _dash(reading: Reading) -> str | None:
    """A dash between two numbers, alone: 10 - 15, 9:00 – 18:00, 5 - 3 = 2."""
    if reading.word not in ("-", "–", "—") or reading.before[-1][-1:] in tuple(".,;:!?"):
        return None
    earlier = "".join(list(reading.before)[-2:])
    if not any(map(str.isdecimal, earlier)) or not reading.next_char().isdecimal():
        return None
    return "minus" if reading.following(1) in ("=", "-", "+") else "to"


RULES = (
    *(
        _times,
        _plain,
        _address,
        _dash,
        _phone_keys,
        spelled,
        _written_code,
        _weekdays,
        _about,
        _house,
        _plate,
        _number_to_call,
        _decimal_comma,
        *QUANTITIES,
        _ends,
        _tagged,
        _compound,
        _power,
        _alphanumeric,
    ),
    *(_greek, _abbreviation, _roman, _signs),
)
"""Rules in the order in which they are tried."""
