"""English quantities in words: money, measures and plain numbers.

Each rule handles one shape of a written word: it returns the spoken form, having consumed the
following words that belong to it, or None if it does not apply.
"""

import re

from offhook.pipeline.speech.text.codes import CODE_WORDS, is_counted
from offhook.pipeline.speech.text.digit_groups import account, join_thousands, spell, telephone
from offhook.pipeline.speech.text.english.english_numbers import (
    MONTHS,
    NUMBER,
    VULGAR,
    cardinal,
    code,
    count,
    date,
    decade,
    digits,
    fraction,
    mixed,
    name,
    ordinal,
    year,
)
from offhook.pipeline.speech.text.english.english_tables import (
    CURRENCIES,
    CURRENCY_CODES,
    DAY_NAMES,
    DECADE_WORDS,
    IDENTIFIERS,
    MONTH_NAMES,
    NEVER_APART,
    NUMBERED,
    PER_WORDS,
    PORTIONED,
    SCALES,
    SHORT_SCALES,
    UNITS,
    YEAR_WORDS,
    Currency,
)
from offhook.pipeline.speech.text.english.english_times import (
    DASH,
    consume_half_day,
    ends_sentence,
    phone,
    time_of_day,
    written_date,
)
from offhook.pipeline.speech.text.reading import Reading
from offhook.pipeline.speech.text.word_lists import words

_SIGN = "[-+±~≈<>≤≥]"
_SIGN_WORDS = {
    "-": "minus ",
    "+": "plus ",
    "±": "plus or minus ",
    "~": "about ",
    "≈": "about ",
    "<": "less than ",
    ">": "more than ",
    "≤": "at most ",
    "≥": "at least ",
    "": "",
}
_PART = f"[{''.join(VULGAR)}]"


def _sign(match: re.Match[str]) -> str:
    return _SIGN_WORDS[match["sign"] or ""]


def before(reading: Reading, back: int = 1) -> str:
    """Returns an earlier word in lower case, without surrounding punctuation."""
    return reading.before[-back].lower().strip("\"'“”‘’()[].,:#")


# --- money

_SYMBOL = "|".join(re.escape(symbol) for symbol in sorted(CURRENCIES, key=len, reverse=True))
_MONEY = re.compile(
    rf"(?P<sign>{_SIGN}?)(?P<symbol>{_SYMBOL})(?P<minus>-?)(?P<amount>{NUMBER})"
    rf"(?:{DASH}(?:{_SYMBOL})?(?P<until>{NUMBER}))?(?P<scale>{'|'.join(SHORT_SCALES)})?"
    r"(?P<tail>\+|/[A-Za-z]+|-[a-z-]+)?"
)
_MONEY_AFTER = re.compile(
    rf"(?P<sign>{_SIGN}?)(?P<amount>{NUMBER})(?:{DASH}(?P<until>{NUMBER}))?(?P<symbol>{_SYMBOL}|¢)"
    r"(?:/(?P<per>[A-Za-z]+))?"
)


def money(reading: Reading) -> str | None:
    if match := _MONEY.fullmatch(reading.core):
        return _spoken_money(reading, match, CURRENCIES[match["symbol"]])
    if match := _MONEY_AFTER.fullmatch(reading.core):
        if match["symbol"] == "¢":
            return f"{count(match['amount'])} cent{'' if match['amount'] == '1' else 's'}"
        currency = CURRENCIES[match["symbol"]]
        if match["until"]:
            ends = f"{count(match['amount'])} to {count(match['until'])}"
            return f"{_sign(match)}{ends} {currency.many}"
        unit = UNITS.get(match["per"] or "")
        per = f" per {unit[0] if unit else match['per']}" if match["per"] else ""
        return _sign(match) + _amount(match["amount"], currency) + per
    if reading.core in CURRENCY_CODES or reading.core in CURRENCIES:
        found = re.fullmatch(rf"(?P<sign>{_SIGN}?)(?P<number>{NUMBER})", reading.after().core)
        if found:
            currency = CURRENCY_CODES.get(reading.core) or CURRENCIES[reading.core]
            reading.consume()
            return _sign(found) + _scaled(reading, found["number"], currency)
    return None


def _spoken_money(reading: Reading, match: re.Match[str], currency: Currency) -> str:
    amount, until, tail = match["amount"], match["until"], match["tail"] or ""
    if tail.startswith("-"):  # $100-a-day
        return f"{count(amount)} {currency.one}{tail.replace('-', ' ')}"
    upto = f" to {count(until)}" if until else ""
    if match["scale"]:
        spoken = f"{_short(amount)}{upto} {SHORT_SCALES[match['scale']]} {currency.many}"
    elif until:
        spoken = f"{count(amount)}{upto} {_consume_scale(reading)}{currency.many}"
    else:
        spoken = _scaled(reading, amount, currency)
    if tail.startswith("/"):
        unit = UNITS.get(tail[1:])
        spoken += f" per {unit[0] if unit else tail[1:]}"
        if unit and not ends_sentence(reading):
            reading.drop_dot()
    minus = "minus " if match["minus"] else ""
    return _sign(match) + minus + spoken + (" plus" if tail == "+" else "")


def _consume_scale(reading: Reading) -> str:
    """Consumes a scale such as "million" if it is the next word, and returns " million "."""
    found = reading.after().core
    if found not in SCALES:
        return ""
    reading.consume()
    return f"{SCALES[found]} "


def _short(amount: str) -> str:
    """Returns the 3.50 of "3.50 million" as "three point five"."""
    return count(amount.rstrip("0").rstrip(".") if "." in amount else amount)


def _scaled(reading: Reading, amount: str, currency: Currency) -> str:
    if scale := _consume_scale(reading):
        return f"{_short(amount)} {scale}{currency.many}"
    return _amount(amount, currency)


def _amount(amount: str, currency: Currency) -> str:
    whole, _, cents = amount.replace(",", "").partition(".")
    if cents and (len(cents) != 2 or not currency.cents):
        return f"{count(amount)} {currency.many}"
    spoken = count(whole or "0")
    if len(whole) > 4:
        spoken = re.sub(r"(thousand|illion) (?=\w)", r"\1, ", spoken)
    major = f"{spoken} {currency.one if whole == '1' else currency.many}"
    if not int(cents or 0):
        return major
    minor = f"{cardinal(int(cents))} {currency.cent if int(cents) == 1 else currency.cents}"
    pause = "," if len(whole) > 3 else ""
    return f"{major}{pause} and {minor}" if int(whole or 0) else minor


# --- measures

_PERCENT = re.compile(
    rf"(?P<sign>{_SIGN}?)(?P<number>{NUMBER})(?:%?{DASH}(?P<until>{NUMBER}))?(?P<mark>[%‰])"
)
_DEGREES = re.compile(
    rf"(?P<sign>[-+]?)(?P<number>{NUMBER})(?:°?{DASH}(?P<until>{NUMBER}))?"
    r"(?:°(?P<scale>[CFK]?)|(?P<sealed>[℃℉]))"
)
_SCALE_NAMES = {"C": " Celsius", "F": " Fahrenheit", "K": " Kelvin", "℃": " Celsius"}
_SCALE_NAMES |= {"℉": " Fahrenheit", "": ""}
_ROUND_FEET = re.compile(r"(?P<feet>\d{1,2})['′’](?P<trail>[.,;:!?]*)")
_FEET = re.compile(r"""(?P<feet>\d+)['′’](?P<inches>\d+(?:\.\d+)?)(?:["″”]|''|’’)?""")
_PRODUCT = re.compile(rf"(?:{NUMBER})(?:[x×](?:{NUMBER}))+", re.IGNORECASE)
_MULTIPLE = re.compile(rf"(?P<number>{NUMBER})[x×](?:/(?P<per>[a-z]+))?")
_ATTACHED = re.compile(rf"(?P<sign>{_SIGN}?)(?P<number>{NUMBER})(?P<unit>[A-Za-zµμΩ²³/]+)")
_ARC = re.compile(
    rf"(?P<degrees>{NUMBER})°(?P<minutes>\d{{1,2}}(?:\.\d+)?)['′’]"
    r"(?:(?P<seconds>\d{1,2}(?:\.\d+)?)(?:[\"″”]|''))?(?P<trail>[.,;:!?]*)"
)


def percent(reading: Reading) -> str | None:
    match = _PERCENT.fullmatch(reading.core)
    if not match:
        return None
    until = f" to {count(match['until'])}" if match["until"] else ""
    mark = "percent" if match["mark"] == "%" else "per mille"
    return f"{_sign(match)}{count(match['number'])}{until} {mark}"


def degrees(reading: Reading) -> str | None:
    if match := _ARC.fullmatch(reading.word):
        reading.surround("", match["trail"])
        spoken = f"{count(match['degrees'])} degrees {count(match['minutes'])} minutes"
        return spoken + (f" {count(match['seconds'])} seconds" if match["seconds"] else "")
    match = _DEGREES.fullmatch(reading.core)
    if not match:
        return None
    scale = match["sealed"] or match["scale"]
    if not scale and reading.after().core in ("C", "F"):
        scale = reading.after().core
        reading.consume()
    until = f" to {count(match['until'])}" if match["until"] else ""
    degree = "degree" if match["number"] == "1" and not until else "degrees"
    return f"{_sign(match)}{count(match['number'])}{until} {degree}{_SCALE_NAMES[scale]}"


def feet_and_inches(reading: Reading) -> str | None:
    if match := _ROUND_FEET.fullmatch(reading.word):
        reading.surround("", match["trail"])
        return f"{cardinal(int(match['feet']))} feet"
    match = _FEET.match(reading.word)
    if not match or reading.word[match.end() :].strip(".,;:!?)"):
        return None
    reading.surround("", reading.word[match.end() :])
    return f"{cardinal(int(match['feet']))} foot {count(match['inches'])}"


def with_unit(reading: Reading) -> str | None:
    """A number and its unit in one word: 5kg, 100km/h, 32GB, 10k, 3x, 4x4."""
    if match := _PRODUCT.fullmatch(reading.core):
        sides = re.findall(NUMBER, match[0])
        return " by ".join(map(count, sides)) + _unit_behind(reading, sides[-1])
    if match := _MULTIPLE.fullmatch(reading.core):
        per = f" a {match['per']}" if match["per"] else ""
        return f"{count(match['number'])} times{per}"
    match = _ATTACHED.fullmatch(reading.core)
    if not match:
        return None
    number, unit = match["number"], match["unit"]
    if unit in ("k", "M", "bn") or (unit == "B" and "." in number):
        return f"{_sign(match)}{_short(number)} {SHORT_SCALES[unit]}"
    if is_unit(unit) and unit not in ("A", "V", "W"):
        return f"{_sign(match)}{count(number)} {unit_name(number, unit)}"
    return None


def is_unit(text: str) -> bool:
    """Returns whether it is a unit of measure, or one per another: mg/dL, kg/day."""
    one, _, other = text.partition("/")
    return text in UNITS or (one in UNITS and (other in UNITS or other in PER_WORDS))


def unit_name(number: str, unit: str) -> str:
    if unit in UNITS:
        one, many = UNITS[unit]
        return one if number == "1" else many
    over, _, under = unit.partition("/")
    return f"{unit_name(number, over)} per {UNITS[under][0] if under in UNITS else under}"


# --- plain numbers

_DECADE = re.compile(r"(\d{2})?(\d)0['’]?s")
_ORDINAL = re.compile(r"(\d{1,3}(?:,\d{3})+|\d+)(?:st|nd|rd|th)", re.IGNORECASE)
_FRACTION = re.compile(r"(?P<sign>-?)(?P<upper>\d{1,3})[/⁄](?P<lower>\d{1,3})")
_VULGAR = re.compile(
    rf"(?P<sign>{_SIGN}?)(?P<symbol>(?:{_SYMBOL})?)(?P<number>\d*{_PART})"
    rf"(?:{DASH}(?P<until>\d*{_PART}|\d+))?(?P<unit>[%x\"″]|°[CF]?|-?[A-Za-zµμ²³/-]*)"
)
_VULGAR_END = re.compile(rf"(?P<start>\d+){DASH}(?P<number>\d*{_PART})")
_DOTTED = re.compile(r"(?P<v>[vV]\.?)?(?P<number>\d+(?:\.\d+)*)(?P<rest>[a-z]\d*|-[a-z]+\d*)?")
_RANGE = re.compile(rf"(?P<start>{NUMBER}){DASH}(?P<end>{NUMBER})(?P<unit>[A-Za-zµμ/²³]*)")
_OTHER_COMMAS = re.compile(
    r"(?P<before>\D{0,3})(?P<number>\d+(?P<cents>,\d\d)|\d\d?(?:,\d\d)+,\d{3})(?P<after>\D{0,3})"
)
_ORDINALS = re.compile(rf"(\d+)(?:st|nd|rd|th){DASH}(\d+)(?:st|nd|rd|th)")
_RATIO = re.compile(r"(\d{1,3}):(\d{1,3})")
_SIGNED = re.compile(rf"(?P<sign>{_SIGN}?)(?P<number>{NUMBER})")


_DAYS = DAY_NAMES.keys() | {day.lower() for day in DAY_NAMES.values()}
_DUE = words("due date dated deadline")
_EXPIRY = words("expires expiry expiration exp valid thru")
"""Words before a month and a year: 05/27."""


def decades(reading: Reading) -> str | None:
    """The 1990s, her 30s, '80s, '85."""
    apostrophe = reading.lead.endswith(("'", "’"))
    if apostrophe and re.fullmatch(r"\d\d", reading.core) and reading.trail[:1] not in ("'", "’"):
        reading.surround(reading.lead[:-1], reading.trail)
        return cardinal(int(reading.core))
    match = _DECADE.fullmatch(reading.core)
    if not match or (match[1] is None and match[2] in "01"):
        return None
    if match[1] is None and not apostrophe and before(reading) not in DECADE_WORDS:
        return None
    if apostrophe:
        reading.surround(reading.lead[:-1], reading.trail)
    return decade(int((match[1] or "") + match[2] + "0"))


def rank(reading: Reading) -> str | None:
    if match := _ORDINALS.fullmatch(reading.core):
        return f"{ordinal(int(match[1]))} to {ordinal(int(match[2]))}"
    match = _ORDINAL.fullmatch(reading.core)
    return ordinal(int(match[1].replace(",", ""))) if match else None


def parts_of_one(reading: Reading) -> str | None:
    """1/2, ½, 1½, 24/7, 4/20, and dates without a year ("on 1/15")."""
    if match := _VULGAR_END.fullmatch(reading.core):
        return f"{count(match['start'])} to {_vulgar(match['number'])}{_behind_part(reading, '2')}"
    if match := _VULGAR.fullmatch(reading.core):
        return _with_part(reading, match)
    match = _FRACTION.fullmatch(reading.core)
    if not match:
        return None
    if reading.core in ("24/7", "9/11"):
        return {"24/7": "twenty-four seven", "9/11": "nine eleven"}[reading.core]
    upper, lower = int(match["upper"]), int(match["lower"])
    if (reading.core[0] == "0" or before(reading) in _EXPIRY) and 0 < upper < 13 <= lower < 50:
        return f"{MONTHS[upper - 1]} {year(2000 + lower)}"
    parted = is_unit(reading.after().core) or reading.after().core in PORTIONED
    dated = before(reading) in YEAR_WORDS or before(reading) in _DAYS | _DUE
    if dated and not parted and (day := date(lower, upper)):
        return day
    if spoken := fraction(upper, lower):
        return _sign(match) + spoken + _unit_behind(reading, "1")
    if upper == lower:
        return f"{cardinal(upper)} {cardinal(lower)}"
    return f"{_sign(match)}{cardinal(upper)} out of {cardinal(lower)}"


def _vulgar(text: str) -> str:
    """Returns 2½ as "two and a half", ½ as "one half"."""
    if text.isdecimal():
        return count(text)
    whole, (upper, lower) = text[:-1], VULGAR[text[-1]].as_integer_ratio()
    spoken = mixed(int(whole), upper, lower) if int(whole or 0) else fraction(upper, lower)
    assert spoken
    return spoken


def _with_part(reading: Reading, match: re.Match[str]) -> str | None:
    """½, -2½, 2½%, ½–¾, 2½kg, a 2½-hour, £2½."""
    number, until, unit = match["number"], match["until"] or "", match["unit"]
    spoken = _sign(match) + _vulgar(number) + (f" to {_vulgar(until)}" if until else "")
    value = "1" if len(number) == 1 and not until else "2"
    if match["symbol"]:
        many = CURRENCIES[match["symbol"]].many
        return None if unit else f"{spoken} {_consume_scale(reading)}{many}"
    if not unit:
        return spoken + _behind_part(reading, value)
    if unit[0] == "-":
        first, dash, rest = unit[1:].partition("-")
        return f"{spoken} {UNITS[first][0] if first in UNITS else first}{dash}{rest}"
    names = {"%": "percent", "x": "times", "°": "degrees", '"': "inches", "″": "inches"}
    if unit not in names and not is_unit(unit):
        return None
    return f"{spoken} {names.get(unit) or unit_name(value, unit)}"


def _behind_part(reading: Reading, number: str) -> str:
    """Consumes what is counted after a number with a fraction."""
    if scale := _consume_scale(reading):
        return f" {scale.rstrip()}"
    found = reading.after().core
    if found in CURRENCIES or found in CURRENCY_CODES:
        reading.consume()
        return f" {(CURRENCY_CODES.get(found) or CURRENCIES[found]).many}"
    if found == "%":
        reading.consume()
        return " percent"
    return _unit_behind(reading, number)


def version(reading: Reading) -> str | None:
    """v1.2, Python 3.11, 1.2.3, and IP addresses."""
    match = _DOTTED.fullmatch(reading.core)
    if not match:
        return None
    groups = match["number"].split(".")
    if len(groups) == 4 and not match["v"] and all(int(group) < 256 for group in groups):
        return " dot ".join(name(group) for group in groups)
    if not (match["v"] or len(groups) > 2 or (len(groups) == 2 and before(reading) in NUMBERED)):
        return None
    rest = re.sub(r"\d+", lambda number: f" {cardinal(int(number[0]))}", match["rest"] or "")
    spoken = " point ".join(cardinal(int(group)) for group in groups)
    version_word = "version " if match["v"] and before(reading) != "version" else ""
    return f"{version_word}{spoken} {rest.lstrip('-')}".rstrip()


def number_range(reading: Reading) -> str | None:
    if match := _RATIO.fullmatch(reading.core):
        return f"{cardinal(int(match[1]))} to {cardinal(int(match[2]))}"
    match = _RANGE.fullmatch(reading.core)
    if not match or (match["unit"] and not is_unit(match["unit"])):
        return None
    start, end = match["start"], match["end"]
    if _is_year(start) and (_is_year(end) or len(end) == 2):
        return f"{year(int(start))} to {year(int(end))}"
    spoken = f"{count(start)} to {count(end)}"
    unit = match["unit"] or _consume_unit(reading)
    return f"{spoken} {unit_name('2', unit)}" if unit else spoken


def number(reading: Reading) -> str | None:
    match = _SIGNED.fullmatch(reading.core)
    if not match:
        return None
    if match["sign"]:
        return _sign(match) + _measured(reading, match["number"])
    return _in_context(reading, match["number"]) or _measured(reading, match["number"])


def _is_year(text: str) -> bool:
    return len(text) == 4 and text.isdecimal() and 1100 <= int(text) < 2100


def _in_context(reading: Reading, text: str) -> str | None:
    """A number that is a day, year, hour or name in its context."""
    if not text.isdecimal():
        return None
    word, value = before(reading), int(text)
    if word in MONTH_NAMES and reading.before[-1][0].isupper():
        if 1 <= value <= 31 and len(text) <= 2:
            return ordinal(value)
        if _is_year(text):
            return year(value)
    state = len(text) == 5 and re.fullmatch("[A-Z]{2}", reading.before[-1])
    linked = word in ("is", "was") and len(text) > 2 and before(reading, 2) in IDENTIFIERS
    if (word in IDENTIFIERS or linked or state) and not is_counted(reading, CODE_WORDS["en"]):
        return name(text)
    if _is_year(text) and (value >= 1900 or _means_year(reading, word)):
        return None if _is_counted(reading) else year(value)
    month = reading.after().core
    if 1 <= value <= 31 and month.istitle() and month.lower() in MONTH_NAMES:
        return _day_of_month(reading, value, word)
    if 1 <= value <= 12 and (half := consume_half_day(reading)):
        return cardinal(value) + half
    if len(text) > 6 and not text.endswith("000"):
        return code(text)
    return None


def _is_counted(reading: Reading) -> bool:
    """Returns whether a unit, currency or the like follows, or a noun in the plural that no year
    is of."""
    if before(reading) not in YEAR_WORDS | _OF_A_YEAR and is_counted(reading, CODE_WORDS["en"]):
        return True
    found = reading.after().core
    unit = is_unit(found) and found not in NEVER_APART
    return unit or found == "%" or found in CURRENCIES or found in CURRENCY_CODES


_OF_A_YEAR = words("the a an my your his her our their its this these those last new and or &")
"""Words before a year before a plural: the 2024 elections."""


def _means_year(reading: Reading, word: str) -> bool:
    if word in YEAR_WORDS or reading.after().core in ("BC", "BCE", "AD", "CE"):
        return True
    day = re.fullmatch(r"\d\d?(?:st|nd|rd|th)?", word)
    return bool(day) and before(reading, 2) in MONTH_NAMES


def _day_of_month(reading: Reading, day: int, word: str) -> str:
    """ "15 January" becomes "the fifteenth of January"."""
    month = reading.after().core
    reading.consume()
    if month not in MONTHS and not ends_sentence(reading):
        reading.drop_dot()
    return f"{'' if word == 'the' else 'the '}{ordinal(day)} of {MONTH_NAMES[month.lower()]}"


def _consume_unit(reading: Reading) -> str:
    """Consumes a unit of measure, with its dot, if it is the next word."""
    found = reading.after().core
    if not is_unit(found) or found in NEVER_APART:
        return ""
    reading.consume()
    if not ends_sentence(reading):
        reading.drop_dot()
    return found


def _unit_behind(reading: Reading, number: str) -> str:
    unit = _consume_unit(reading)
    return f" {unit_name(number, unit)}" if unit else ""


def _measured(reading: Reading, text: str) -> str:
    """A number with the following fraction, scale, currency or unit."""
    part = _FRACTION.fullmatch(reading.after().core)
    if part and text.isdecimal():
        spoken = mixed(int(text), int(part["upper"]), int(part["lower"]))
        if spoken:
            reading.consume()
            return spoken + _unit_behind(reading, "2")
    if text.isdecimal() and re.fullmatch(_PART, reading.after().core):
        text += reading.after().core
        reading.consume()
        return _vulgar(text) + _behind_part(reading, "2")
    scale = _consume_scale(reading)
    spoken = f"{_short(text)} {scale}".rstrip() if scale else count(text)
    found = reading.after().core
    if found in CURRENCY_CODES or found in CURRENCIES:
        reading.consume()
        currency = CURRENCY_CODES.get(found) or CURRENCIES[found]
        return f"{spoken} {currency.many}" if scale else _amount(text, currency)
    if found in ("%", "°"):
        reading.consume()
        return f"{spoken} {'percent' if found == '%' else 'degrees'}"
    return spoken + _unit_behind(reading, "" if scale else text)


def written_down(reading: Reading) -> str | None:
    """Telephone numbers of other countries, card numbers and IBANs."""
    groups = account(reading) or telephone(reading)
    return spell(groups, "plus", digits) if groups else None


def _thousands(reading: Reading) -> None:
    """Writes 1 000, 1,50 and 1,00,000 as 1,000, 1.50 and 100,000 for the rules that follow."""
    join_thousands(reading, ",")
    if match := _OTHER_COMMAS.fullmatch(reading.core):
        number = match["number"].replace(",", "")
        if match["cents"]:
            number = f"{number[:-2]}.{number[-2:]}"
        reading.core = match["before"] + number + match["after"]


RULES = (
    *(phone, written_date, written_down, _thousands, time_of_day, money, percent, degrees),
    *(feet_and_inches, decades, rank),
    *(parts_of_one, version, number_range, with_unit, number),
)
"""Rules in the order in which they are tried."""
