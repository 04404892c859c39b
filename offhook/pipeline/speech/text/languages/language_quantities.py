"""Percentages, money, measures, ordinals and plain numbers of ten languages in words.

Names of units and rarer currencies come from Babel. Each rule handles one shape of a written word,
as in english_quantities.py.
"""

import re
from functools import lru_cache

from babel import Locale
from babel.dates import get_month_names
from babel.numbers import get_currency_name
from babel.units import format_unit

from offhook.pipeline.speech.text.codes import CODE_WORDS, is_counted
from offhook.pipeline.speech.text.digit_groups import split
from offhook.pipeline.speech.text.languages.language_numbers import (
    GERMAN_ARTICLES,
    GERMAN_DATIVE,
    agreeing_gender,
    both_ends,
    gender_of,
    german_rank,
    joined,
    number_words,
    shapes,
    sign_of,
    ungrouped,
    value_of,
    year_words,
)
from offhook.pipeline.speech.text.languages.language_tables import (
    CURRENCY_CODES,
    CURRENCY_SIGNS,
    CYRILLIC_UNITS,
    UNIT_IDS,
    Language,
)
from offhook.pipeline.speech.text.languages.spoken_numbers import (
    cardinal,
    chinese,
    digits,
    ordinal,
    russian_ordinal,
)
from offhook.pipeline.speech.text.reading import Reading
from offhook.pipeline.speech.text.word_lists import words


def percent(language: Language, reading: Reading) -> str | None:
    match = shapes(language.decimal)["percent"].fullmatch(reading.core)
    if not match:
        number = shapes(language.decimal)["number"].fullmatch(reading.core)
        if not number or reading.after().core != "%":
            return None
        reading.consume()
        match = number
    if language.code == "zh":
        return sign_of(language, match) + language.signs["%"] + both_ends(language, match)
    word = language.signs["%"]
    if language.code == "ru":
        word = _russian(("процент", "процента", "процентов"), language, match["number"])
    return joined(language, sign_of(language, match), both_ends(language, match, "m"), word)


def _russian(forms: tuple[str, ...], language: Language, number: str) -> str:
    """Selects one, few or many; a number with decimals takes the genitive singular, the form of
    "few"."""
    value = value_of(language, number)
    kind = Locale.parse("ru").plural_form(value if value % 1 else int(value))
    return forms[{"one": 0, "few": 1, "other": 1}.get(kind, 2)]


def _currency(language: Language, code: str, number: str) -> str:
    forms = language.money.get(code)
    if forms is None:
        amount = value_of(language, number)
        return str(get_currency_name(code, amount, language.code)).lower()
    if len(forms) == 3:
        return _russian(forms, language, number)
    one = value_of(language, number) == 1
    return forms[0] if one else forms[1]


def _amount(language: Language, sign: str, number: str, code: str) -> str:
    whole, _, cents = ungrouped(language, number).partition(language.decimal)
    if len(cents) == 2 and language.cents:
        if cents == "00":
            return _amount(language, sign, whole, code)
        if whole == "0" and code in ("EUR", "USD") and language.code in _CENTS:
            one, many = _CENTS[language.code]
            count = cardinal(language.code, int(cents), "m")
            return joined(language, sign, count, one if cents == "01" else many)
        name = _currency(language, code, whole)
        spoken = number_words(language, whole, gender_of(language, _currency(language, code, "1")))
        minor = cardinal(language.code, int(cents))
        pause = "," if len(whole) > 3 and language.code in CODE_WORDS else ""
        return joined(language, sign, f"{spoken} {name}{pause}{language.cents}{minor}")
    name = _currency(language, code, number)
    gender = gender_of(language, _currency(language, code, "1"))
    return joined(language, sign, number_words(language, number, gender), name)


def _code(language: Language, written: str) -> str:
    """Returns the ISO 4217 code of a currency sign or code."""
    if language.code == "zh" and written in "¥￥":
        return "CNY"
    return CURRENCY_SIGNS.get(written, written)


def money(language: Language, reading: Reading) -> str | None:
    """3,50 €, $5, R$ 3,50, 2 millones €."""
    patterns = shapes(language.decimal)
    core, per = _per(language, reading.core)
    match = patterns["money"].fullmatch(core) or patterns["money_after"].fullmatch(core)
    if match:
        code = _code(language, match["symbol"])
        if match["until"]:
            of_them = _currency(language, code, "5")
            return joined(language, both_ends(language, match), of_them, per)
        sign = sign_of(language, match)
        return joined(language, _amount(language, sign, match["number"], code), per)
    if core in CURRENCY_SIGNS or core in CURRENCY_CODES:
        after, per = _per(language, re.sub(",[-–]+$", "", reading.after().core))
        amount = patterns["number"].fullmatch(after)
        if not amount or amount["until"]:
            return None
        reading.consume()
        spoken = _amount(
            language, sign_of(language, amount), amount["number"], _code(language, core)
        )
        return joined(language, spoken, per)
    match = patterns["number"].fullmatch(core)
    return _money_behind(language, reading, match) if match else None


_CENTS = {
    "de": ("Cent", "Cent"),
    "fr": ("centime", "centimes"),
    "es": ("céntimo", "céntimos"),
}
_SHORT_SCALES = {
    "fr": {"M": "millions", "Md": "milliards"},
    "es": {"M": "millones"},
    "it": {"mln": "milioni", "mld": "miliardi", "M": "milioni"},
    "pt": {"mi": "milhões", "bi": "bilhões"},
    "nl": {"mln": "miljoen", "mld": "miljard"},
    "de": {"Mio": "Millionen", "Mrd": "Milliarden"},
}
_PER = {"de": "pro", "fr": "par", "es": "por", "it": "al", "pt": "por", "nl": "per"}


def _per(language: Language, text: str) -> tuple[str, str]:
    """Returns what stands before "/month", and "per month"; or the text and nothing."""
    amount, _, unit = text.partition("/")
    if not (unit.isalpha() and language.code in _PER):
        return text, ""
    return amount, f"{_PER[language.code]} {unit}"


def _money_behind(language: Language, reading: Reading, match: re.Match[str]) -> str | None:
    """A number with the currency in the next word, or after a scale such as "million"."""
    scale, found = "", reading.after().core
    short = _SHORT_SCALES.get(language.code, {})
    if found in language.scales or found in short:
        scale, found = short.get(found, found), reading.after(1).core
    elif found[-1:] in CURRENCY_SIGNS and found[:-1] in short:  # 1,2 M€
        reading.consume()
        name = _currency(language, _code(language, found[-1]), "5")
        amount = number_words(language, match["number"], "m")
        return f"{amount} {short[found[:-1]]} {_of(language, name)}{name}"
    found, per = _per(language, found)
    if found not in CURRENCY_SIGNS and found not in CURRENCY_CODES:
        return None
    reading.consume(2 if scale else 1)
    code = _code(language, found)
    if match["until"]:
        of_them = _currency(language, code, "5")
        return joined(language, both_ends(language, match), scale, of_them, per)
    if not scale:
        sign = sign_of(language, match)
        return joined(language, _amount(language, sign, match["number"], code), per)
    name = _currency(language, code, "5")
    of = _of(language, name)
    scale = {"тыс": "тысяч", "млн": "миллионов", "млрд": "миллиардов"}.get(scale, scale)
    return f"{number_words(language, match['number'], 'm')} {scale} {of}{name}"


def _of(language: Language, name: str) -> str:
    """Returns the word between a million and a currency, with its space."""
    if language.code == "fr" and name[0] in "aeiouy":
        return "d'"
    return {"fr": "de ", "es": "de ", "pt": "de ", "it": "di "}.get(language.code, "")


def measure(language: Language, reading: Reading) -> str | None:
    match = shapes(language.decimal)["unit"].fullmatch(reading.core)
    if match:
        unit = match["unit"]
    else:
        match = shapes(language.decimal)["number"].fullmatch(reading.core)
        unit = reading.after().core if match else ""
        year = unit == "г" and re.fullmatch(r"[12]\d{3}", reading.core)
        has = unit == "ha" and language.code in ("es", "it")
        if not match or year or has or not (unit in UNIT_IDS or unit in CYRILLIC_UNITS):
            return None
        reading.consume()
        if reading.trail.startswith(".") and reading.next_char():
            reading.drop_dot()
    unit = CYRILLIC_UNITS.get(unit, unit)
    pattern = unit_pattern(language, unit, value_of(language, match["until"] or match["number"]))
    noun = unit_pattern(language, unit, 1).replace("{}", "")
    number = both_ends(language, match, gender_of(language, noun))
    return joined(language, sign_of(language, match), pattern.format(number))


@lru_cache(256)
def unit_pattern(language: Language, unit: str, value: float) -> str:
    """Returns a pattern around the number: "{} Kilogramm", "시속 {} 킬로미터"."""
    if unit in language.units:
        return language.units[unit]
    written = format_unit(value, UNIT_IDS[unit], "long", format="#.###", locale=language.code)
    space = "" if language.code in ("zh", "ja") else " "
    return re.sub(r"\s*-?[\d.,]+\s*", f"{space}{{}}{space}", written).strip()


# --- plain numbers

_RANKS = {
    "nl": re.compile(r"(?P<number>\d{1,4})(?P<end>ste|de|e)"),
    "es": re.compile(r"(?P<number>\d+)\.?(?P<end>º|°|ª|er|o|a)"),
    "pt": re.compile(r"(?P<number>\d+)\.?(?P<end>º|°|ª|o|a)"),
    "it": re.compile(r"(?P<number>\d+)(?P<end>º|°|ª)"),
    "fr": re.compile(r"(?P<number>\d+)(?P<end>er|re|ère|e|ème|eme|nd|nde)"),
    "ru": re.compile(r"(?P<number>\d+)-(?P<end>й|ый|ой|ий|я|ая|е|ое|го|ого|му|м|ом|х|ых|ми)"),
}
_RANKED = words("piano posto giorno anno livello turno premio capitolo piso puesto andar lugar")
"""Nouns before which 2° is an ordinal."""
_RUSSIAN_ENDS = {
    "я": ("n", "f"),
    "ая": ("n", "f"),
    "е": ("n", "n"),
    "ое": ("n", "n"),
    "го": ("g", "m"),
    "ого": ("g", "m"),
    "му": ("d", "m"),
    "м": ("p", "m"),
    "ом": ("p", "m"),
}
_RUSSIAN_YEARS = {"год": "n", "года": "g", "году": "p", "годом": "i", "г": "g"}
_CHINESE_MEASURES = frozenset("个位只本张条件杯瓶次天年种家辆块台把双岁")


def rank(language: Language, reading: Reading) -> str | None:
    if language.code == "de":
        articles = GERMAN_ARTICLES | GERMAN_DATIVE
        ranked = re.fullmatch(r"\d{1,4}", reading.core) and reading.trail == "."
        goes_on = len(reading.core) < 3 and ranked and reading.following()[:1].islower()
        named = reading.before[-1].lower() in articles and ranked and reading.next_char()
        if not (goes_on or named):
            return None
        reading.drop_dot()
        return german_rank(int(reading.core), reading)
    if language.code not in _RANKS:
        return None
    match = _RANKS[language.code].fullmatch(reading.core)
    if not match or (
        match["end"] == "°" and not _is_ranked(language, match["number"], reading.after().core)
    ):
        return None
    number, end = int(match["number"]), match["end"]
    if language.code == "ru":
        case, gender = _RUSSIAN_ENDS.get(end, ("n", "m"))
        return russian_ordinal(number, case, gender, plural=end in ("х", "ых", "ми"))
    spoken = ordinal(language.code, number, "f" if end in ("ª", "a", "re", "ère", "nde") else "m")
    return spoken.removesuffix("o") if end == "er" and language.code == "es" else spoken


def _is_ranked(language: Language, number: str, noun: str) -> bool:
    """Returns whether 2° before it is an ordinal, and not an angle."""
    if number == "1" and noun == "de":  # 1° de mayo
        return True
    return noun in _RANKED or noun in get_month_names("wide", "format", language.code).values()


def number(language: Language, reading: Reading) -> str | None:
    match = shapes(language.decimal)["number"].fullmatch(reading.core)
    if not match:
        return None
    number = match["number"]
    if match["until"] or match["sign"]:
        return joined(language, sign_of(language, match), both_ends(language, match))
    if re.fullmatch(r"1[1-9]\d\d|20\d\d", number):
        counted = language.code in ("es", "fr", "it", "pt") and is_counted(
            reading, CODE_WORDS[language.code]
        )
        if not counted:
            return _perhaps_year(language, reading, number)
    if language.code == "zh" and number == "2" and reading.after().core[:1] in _CHINESE_MEASURES:
        return "两" if reading.after().core else "二"
    if len(number) > 8 and number.isdecimal() and not number.endswith("000000"):
        groups = split(number) if language.code in CODE_WORDS else [number]
        return ", ".join(digits(language.code, group) for group in groups)
    named = reading.before[-1].lower() in ("número", "numero", "numéro", "nummer")
    counted_noun = "" if named else reading.after().core
    return number_words(language, number, agreeing_gender(language, number, counted_noun))


def _perhaps_year(language: Language, reading: Reading, text: str) -> str:
    following = reading.after().core
    if language.code == "ru" and following in _RUSSIAN_YEARS:
        reading.consume()
        in_year = reading.before[-1].lower() in ("в", "о", "об", "при")
        case = "p" if in_year and following == "г" else _RUSSIAN_YEARS[following]
        word = {"n": "год", "g": "года", "p": "году", "i": "годом"}[case]
        if following == "г" and reading.next_char():
            reading.drop_dot()
        return f"{russian_ordinal(int(text), case)} {word}"
    if language.code == "zh":
        return digits("zh", text) if following.startswith("年") else chinese(int(text))
    return year_words(language, text)
