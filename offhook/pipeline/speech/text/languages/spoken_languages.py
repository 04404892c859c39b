"""Ten spoken languages: dates, times, quantities, links and abbreviations in words.

All share the same rules with the tables of language_tables.py; month names come from Babel.
Language-specific rules are marked by the language's code.
"""

import re
from collections.abc import Callable
from functools import lru_cache, partial

from babel.dates import get_day_names, get_month_names

from offhook.pipeline.speech.text.codes import (
    CODE_WORDS,
    EMERGENCIES,
    find_code,
    is_counted,
    mixed_code,
    number_to_call,
)
from offhook.pipeline.speech.text.digit_groups import spelled, split, weekday, weekdays
from offhook.pipeline.speech.text.languages.language_numbers import (
    GERMAN_ARTICLES,
    GERMAN_DATIVE,
    german_rank,
    joined,
    number_words,
    year_words,
)
from offhook.pipeline.speech.text.languages.language_quantities import (
    measure,
    money,
    number,
    percent,
    rank,
)
from offhook.pipeline.speech.text.languages.language_signs import (
    dash,
    part,
    power,
    product,
    signs,
    thousands,
    times,
    written_down,
)
from offhook.pipeline.speech.text.languages.language_tables import LANGUAGES, Language
from offhook.pipeline.speech.text.languages.spoken_numbers import (
    cardinal,
    digits,
    korean_count,
    ordinal,
    russian_ordinal,
)
from offhook.pipeline.speech.text.reading import Reading
from offhook.pipeline.speech.text.spoken_addresses import spoken_address
from offhook.pipeline.speech.text.word_lists import table, words

Rule = Callable[[Language, Reading], str | None]

_KOREAN_COUNTERS = (
    *("개월", "번째", "시간", "개", "명", "시", "살", "마리", "번", "잔", "권", "대", "병", "달"),
    *("가지", "곳", "그릇", "사람"),
)


_UNDOTTED = words("dr dra sr sra mme mmes mlle mm me pr st ste bd av dhr mevr")
"""Abbreviations that stand without a dot before a name."""
_MAY_END = words("etc usw ecc enz")
"""Abbreviations that may end a sentence."""
_SHORT_ENDS = {
    "de": {"str": "straße", "nr": "nummer"},
    "nl": {"str": "straat", "nr": "nummer"},
}
_OFTEN = table("de = mal | nl = keer | fr = fois | es = veces | it = volte | pt = vezes")
"""Words behind the number of 3x."""
_VERSIONED = words(
    "version kapitel abschnitt chapitre section versión capítulo sección versione capitolo sezione "
    "versão capítulo secção seção versie hoofdstuk paragraaf raum zimmer saal"
)
_FLIGHTS = words("zug train tren treno trein comboio flug vol vuelo volo voo vlucht")
_EASTERN_CODES = re.compile(
    "(?:验证码|校验码|密码|号码|单号|编号|账号|卡号|代码|电话|尾号|"
    "番号|コード|パスワード|電話|"
    "번호|코드|암호|전화)[^0-9]{0,5}$"
)
_EASTERN_CALLS = re.compile("(?:打|拨|叫)[^0-9]{0,2}$|전화|신고")
_EASTERN_TELEPHONE = re.compile(r"0\d{1,3}-\d{3,8}(?:-\d{3,4})?|[48]00-\d{3,4}-\d{3,4}")
_BETWEEN = ("zwischen", "entre")
"""Words before a range of which the ends are joined by "and"."""
_RANGE = re.compile(r"\d.*[-–].*\d")


def read_language(language: Language, reading: Reading) -> str:
    """Returns the spoken form of the word and of the words consumed with it."""
    if reading.core in language.greek:
        return f"{reading.lead}{language.greek[reading.core]}{reading.trail}"
    plain = reading.core.isalpha() and not reading.trail.startswith(".")
    letters = reading.core.isupper() and len(reading.core) < 4 and language.code in CODE_WORDS
    if plain and not letters and reading.core.lower() not in _not_plain(language.code):
        return reading.word
    for rule in RULES:
        spoken = rule(language, reading)
        if spoken is not None:
            if reading.before[-1].lower() in _BETWEEN and _RANGE.search(reading.core):
                to, both = f" {language.to} ", f" {language.signs['&']} "
                spoken = spoken.replace(to, both, 1)
            return f"{reading.lead}{spoken}{reading.trail}"
    return reading.word


@lru_cache
def _not_plain(code: str) -> frozenset[str]:
    """Returns words of letters that are not always spoken as they are written."""
    days = _days(code) if code in CODE_WORDS else {}
    return _UNDOTTED.union(("x", "nº"), days)


# --- links, dates, times


def _address(language: Language, reading: Reading) -> str | None:
    space = "" if language.code in ("zh", "ja") else " "
    return spoken_address(
        reading.core, language.signs, lambda text: space + digits(language.code, text)
    )


_ISO_DATE = re.compile(r"(?P<year>\d{4})[-/.](?P<month>\d\d?)[-/.](?P<day>\d\d?)")
_DATE = re.compile(r"(?P<day>\d\d?)(?P<mark>[-/.])(?P<month>\d\d?)(?P=mark)(?P<year>\d{4})")
_DAY_MONTH = re.compile(r"(?P<day>\d\d?)(?P<mark>[-/])(?P<month>\d\d?)")
_ON = words("le du au el al del día il dal dia em do ao op van")
"""Words before a date without a year."""
_PARTED = words("de des du del di dei della do dos da van")
"""Words behind a fraction."""
_ONE_TIME = r"(?P<{0}hour>[01]?\d|2[0-4])(?:[:h](?P<{0}minute>[0-5]\d)(?::[0-5]\d)?|h)"
_TIME = re.compile(_ONE_TIME.format(""))
_TIMES = re.compile(f"{_ONE_TIME.format('')}[-–]{_ONE_TIME.format('to_')}")
_LATE_TIMES = re.compile(
    r"(?P<hour>[01]?\d|2[0-4])[-–](?P<to_hour>[01]?\d|2[0-4])[:h.](?P<minute>)(?P<to_minute>[0-5]\d)"
)
"""9–17.30: minutes at the end only."""
_ONE_DOTTED = r"(?P<{0}hour>[01]?\d|2[0-4])\.(?P<{0}minute>[0-5]\d)"
_DOTTED_TIMES = re.compile(f"{_ONE_DOTTED.format('')}[-–]{_ONE_DOTTED.format('to_')}")
_HOURS = ("Uhr", "heures", "horas", "uur", "часов", "h", "hs")
_AT = words("um von bis ab gegen alle dalle ore le las às om van vanaf tot")
"""Words before a time of day."""
_DOTTED_TIME = re.compile(r"(?P<hour>[01]?\d|2[0-4])\.(?P<minute>[0-5]\d)")


def _date(language: Language, reading: Reading) -> str | None:
    day_month = re.fullmatch(r"(\d\d?)\.(0\d|1[0-2]|\d)", reading.core)
    if day_month and not day_month[2].startswith("0"):
        word = reading.before[-1].lower().rstrip(".,")
        known = word in GERMAN_DATIVE | GERMAN_ARTICLES or word in _days("de")
        day_month = day_month if known else None
    if language.code == "de" and day_month and reading.trail.startswith("."):
        day, month = int(day_month[1]), int(day_month[2])
        if 1 <= month <= 12 and 1 <= day <= 31:
            if reading.next_char():
                reading.drop_dot()
            return f"{_day(language, day, reading)} {_month(language, month)}"
    match = _ISO_DATE.fullmatch(reading.core) or _DATE.fullmatch(reading.core)
    if not match:
        return _date_without_year(language, reading)
    day, month, year = int(match["day"]), int(match["month"]), int(match["year"])
    if not (1 <= month <= 12 and 1 <= day <= 31):
        return None
    names = {"day": _day(language, day, reading), "month": _month(language, month)}
    if language.code == "ru":
        return language.date.format(**names, year=russian_ordinal(year, "g"))
    return language.date.format(**names, year=year_words(language, str(year)))


def _date_without_year(language: Language, reading: Reading) -> str | None:
    """Le 14/3, op 14-3."""
    match = _DAY_MONTH.fullmatch(reading.core)
    before = reading.before[-1].lower().rstrip(".,")
    dated = before in _ON or before in map(str.lower, _days(language.code).values())
    if not match or not dated or (match["mark"] == "-") != (language.code == "nl"):
        return None
    day, month, noun = int(match["day"]), int(match["month"]), reading.after().core.lower()
    if not (1 <= month <= 12 and 1 <= day <= 31) or noun in _PARTED | _lower_months(language.code):
        return None
    pattern = language.date.partition("{month}")[0] + "{month}"
    return pattern.format(day=_day(language, day, reading), month=_month(language, month))


@lru_cache
def _short_months(code: str) -> dict[str, str]:
    """Returns the names of the months by their abbreviations, without a dot."""
    short = get_month_names("abbreviated", "format", code).items()
    return {name.rstrip("."): _month(LANGUAGES[code], number) for number, name in short}


@lru_cache
def _months(code: str) -> dict[str, int]:
    return {name: number for number, name in get_month_names("wide", "format", code).items()}


@lru_cache
def _lower_months(code: str) -> frozenset[str]:
    return frozenset(map(str.lower, _months(code)))


def _month(language: Language, number: int) -> str:
    if language.code in ("zh", "ja", "ko"):
        month = {"ko": "월"}.get(language.code, "月")
        irregular = {6: "유월", 10: "시월"} if language.code == "ko" else {}
        return irregular.get(number, cardinal(language.code, number) + month)
    return next(name for name, month in _months(language.code).items() if month == number)


def _day(language: Language, day: int, reading: Reading) -> str:
    if language.code == "de":
        return german_rank(day, reading)
    if language.code == "ru":
        return russian_ordinal(day, "g")
    if day == 1 and language.code in ("fr", "it", "pt", "es"):
        return ordinal(language.code, 1)
    return cardinal(language.code, day)


def _day_and_month(language: Language, reading: Reading) -> str | None:
    """15 janvier, 1er déc., 15. Januar 2024, 15 января."""
    day = re.fullmatch(r"(\d\d?)(?:er|º)?", reading.core)
    if not day or reading.trail not in ("", "."):
        return None
    de = " de " if language.code in ("es", "pt") else " "
    following = [reading.following(0)]
    if de.strip() and following[0] == "de":
        following.append(reading.following(1))
    elif (reading.trail == ".") != (language.code == "de"):
        return None
    name, dot, _ = following[-1].partition(".")
    if de.strip() and len(following) == 1 and not dot:
        return None
    month = _short_months(language.code).get(name) if dot else None
    if month is None:
        month = re.sub(r"\W.*", "", following[-1])
    if month not in _months(language.code):
        return None
    reading.surround(reading.lead, "")
    reading.consume(len(following))
    if month != name and reading.following() and not reading.following()[0].isupper():
        reading.drop_dot()
    return f"{_day(language, int(day[1]), reading)}{de}{month}"


def _time(language: Language, reading: Reading) -> str | None:
    """14:30, 14h30, 9h, 9:00–18:00, 14.30 Uhr."""
    core = reading.core.lstrip("~≈")
    match = _TIME.fullmatch(core) or _TIMES.fullmatch(core) or _DOTTED_TIMES.fullmatch(core)
    if language.code in CODE_WORDS:
        match = match or _LATE_TIMES.fullmatch(core)
    dotted = None if match else _DOTTED_TIME.fullmatch(core)
    if dotted and language.code in CODE_WORDS:
        at = reading.before[-1].lower() in _AT
        at = at and not is_counted(reading, CODE_WORDS[language.code])
        match = dotted if at or reading.after().core in _HOURS else None
    if not match:
        return None
    if reading.after().core in _HOURS:
        reading.consume()
    groups = match.groupdict()
    about = language.more_signs.get("~", "") if core != reading.core else ""
    start = _clock(language, int(groups["hour"]), int(groups["minute"] or 0))
    if "to_hour" not in groups:
        return joined(language, about, start)
    end = _clock(language, int(groups["to_hour"]), int(groups["to_minute"] or 0))
    return joined(language, about, start, language.to, end)


def _clock(language: Language, hour: int, minute: int) -> str:
    gender = "f" if language.code in ("fr", "pt", "es") else "m" if language.code == "de" else ""
    spoken_hour = cardinal(language.code, hour, gender)
    if language.code == "ko" and hour <= 12:
        spoken_hour = korean_count(hour) or spoken_hour
    if language.code == "zh" and hour == 2:
        spoken_hour = "两"
    spoken_minute = cardinal(language.code, minute)
    if minute < 10 and language.code in ("zh", "ru"):
        spoken_minute = ("零" if language.code == "zh" else "ноль ") + spoken_minute
    pattern = language.minute if minute else language.hour
    if language.code == "fr" and hour < 2:
        pattern = pattern.replace("heures", "heure")
    return pattern.format(hour=spoken_hour, minute=spoken_minute)


def _korean(language: Language, reading: Reading) -> str | None:
    """A counter or particle directly after a number: 3개를, 2:30에."""
    match = re.fullmatch(r"(?P<number>[^가-힣]*\d[^가-힣]*)(?P<rest>[가-힣]+)", reading.core)
    if language.code != "ko" or not match:
        return None
    number, rest = match["number"], match["rest"]
    if number.isdecimal() and rest.startswith(_KOREAN_COUNTERS) and not rest.startswith("개월"):
        if number == "1" and rest.startswith("번째"):
            return f"첫 {rest}"
        if native := korean_count(int(number)):
            return f"{native} {rest}"
    if rest.startswith("월") and number in ("6", "10"):
        return {"6": "유", "10": "시"}[number] + rest
    reading.core, trail = number, reading.trail
    reading.surround(reading.lead, rest)
    spoken = next((said for rule in _QUANTITIES if (said := rule(language, reading))), number)
    reading.surround(reading.lead, trail)
    space = " " if rest.startswith("원") and len(spoken) > 2 else ""
    return spoken + space + rest


def _version(language: Language, reading: Reading) -> str | None:
    """Kapitel 3.2, version 1.10."""
    versioned = reading.before[-1].lower() in _VERSIONED
    if not versioned or not re.fullmatch(r"\d+(?:\.\d+)+", reading.core):
        return None
    point = f" {language.signs['.']} "
    return point.join(
        digits(language.code, part) if part[0] == "0" else number_words(language, part)
        for part in reading.core.split(".")
    )


def _fraction(language: Language, reading: Reading) -> str | None:
    match = re.fullmatch(r"(\d{1,3})/(\d{1,3})", reading.core)
    if not match:
        return None
    if match[1][0] == "0" and 0 < int(match[1]) < 13 <= int(match[2]) < 50:
        # a card's expiry
        return joined(language, digits(language.code, match[1]), number_words(language, match[2]))
    upper, lower = (cardinal(language.code, int(match[number])) for number in (1, 2))
    between = {"zh": "分之", "ja": "分の", "ko": "분의 "}
    if language.code in between:
        return f"{lower}{between[language.code]}{upper}"
    return f"{upper} {language.signs['/']} {lower}"


# --- codes and days


def _written_code(language: Language, reading: Reading) -> str | None:
    """K-O-W-A-L-S-K-I, A7-55X/19, Nr. 73-9428, 5500#."""
    if language.code not in CODE_WORDS:
        return None
    if letters := spelled(reading):
        return letters
    found = find_code(reading, language.code)
    if found is None:
        return None
    mark, keyed = language.number * found.marked, language.keys[1] * found.keyed
    return joined(language, mark, found.spoken(partial(digits, language.code)), keyed)


def _house(language: Language, reading: Reading) -> str | None:
    """15/A."""
    match = re.fullmatch(r"(\d{1,4})/([A-Za-z]|bis|ter)", reading.core)
    if not match or language.code not in CODE_WORDS:
        return None
    return joined(language, number_words(language, match[1]), language.signs["/"], match[2])


def _eastern_code(language: Language, reading: Reading) -> str | None:
    """Telephone numbers and codes in Chinese, Japanese and Korean: 验证码是4821, 02-1234-5678."""
    pause = {"zh": "，", "ja": "、", "ko": ", "}.get(language.code)
    if not pause or not re.fullmatch(r"\d{2,}(?:-\d{2,})*", reading.core):
        return None
    if language.code == "zh" and reading.core.isdecimal() and len(reading.core) > 8:
        return None  # of a telephone, which is spoken in one go
    written = "".join(list(reading.before)[-4:])
    named = len(reading.core) > 3 and _EASTERN_CODES.search(written)
    dialled = reading.core in EMERGENCIES and _EASTERN_CALLS.search(written)
    if not (named or dialled or _EASTERN_TELEPHONE.fullmatch(reading.core)):
        return None
    groups = (part for group in reading.core.split("-") for part in split(group))
    spoken = pause.join(digits(language.code, group) for group in groups)
    return spoken.replace("영", "공")


def _postcode(language: Language, reading: Reading) -> str | None:
    """1012 AB Amsterdam, 1250-096 Lisboa, 28013 Madrid; in German behind the street only."""
    if not re.fullmatch(r"\d{4,5}(?:-\d{3})?", reading.core):
        return None
    code, city = language.code, reading.after().core
    spell = partial(digits, code)
    if code == "pt" and "-" in reading.core:
        return ", ".join(map(spell, reading.core.split("-")))
    if code == "nl" and len(reading.core) == 4 and re.fullmatch("[A-Z]{2}", city):
        reading.consume()
        return f"{spell(reading.core)}, {' '.join(city)}"
    if len(reading.core) != 5 or not re.match("[A-ZÄÖÜÁÉÍÓÚ][a-zà-ÿ]", city):
        return None
    before = reading.before[-1]
    behind_street = before.endswith(",") or before.lower() in ("in", "nach", "d")
    placed = behind_street or (not before and not reading.following(1))
    return spell(reading.core) if code in ("es", "it") or (code == "de" and placed) else None


def _flight(language: Language, reading: Reading) -> str | None:
    """Flug LH 1482, Zug ICE 1482."""
    match = re.fullmatch(r"([A-Z]{2})?(\d{2,4})", reading.core)
    before = [word.lower() for word in list(reading.before)[-2:]]
    if not match:
        return None
    line = re.fullmatch(r"[A-Z][A-Z0-9]{1,2}|[0-9][A-Z]", reading.before[-1])
    named = before[1] in _FLIGHTS if match[1] else line and before[0] in _FLIGHTS
    if not named and (match[1] or reading.before[-1] not in ("ICE", "IC", "TGV", "AVE")):
        return None
    return joined(language, " ".join(match[1] or ""), digits(language.code, match[2]))


def _number_to_call(language: Language, reading: Reading) -> str | None:
    """110, 116 117; in French those of three digits are numbers and of four are pairs."""
    found = number_to_call(reading, language.code) if language.code in CODE_WORDS else None
    if found is None or (language.code == "fr" and len(found) == 3 and found != "911"):
        return None
    if language.code == "fr" and len(found) == 4:
        return " ".join(number_words(language, found[at : at + 2]) for at in (0, 2))
    return ", ".join(digits(language.code, group) for group in split(found))


@lru_cache
def _days(code: str) -> dict[str, str]:
    short, wide = (get_day_names(width, "format", code) for width in ("abbreviated", "wide"))
    return {name.lower().strip("."): wide[day] for day, name in short.items()}


def _weekdays(language: Language, reading: Reading) -> str | None:
    """Mo–Fr, lun.-ven."""
    names = _days(language.code)
    days = weekdays(reading, names)
    if days is None and language.code not in CODE_WORDS:
        return None
    if days:
        link = language.signs["&"] if days[1] == "/" else language.to
        spoken: str | None = joined(language, days[0], link, days[2])
    else:
        spoken = weekday(reading, names, _lower_months(language.code))
    if spoken and reading.next_char():
        reading.drop_dot()
    return spoken


# --- words


def _abbreviation(language: Language, reading: Reading) -> str | None:
    key = reading.core.lower()
    if reading.trail == "." and len(key) <= 2:
        spaced = f"{key}. {reading.following().lower().rstrip('.,;:')}"
        if spaced in language.abbreviations:
            reading.surround(reading.lead, "")
            reading.consume()
            if reading.next_char():
                reading.drop_dot()
            return language.abbreviations[spaced]
    spoken = language.abbreviations.get(key) or _whole_word(language, reading.core)
    capital = reading.core[:1].isupper()
    undotted = (
        key in _UNDOTTED and (capital or key in ("bd", "av")) and reading.next_char().isupper()
    )
    dotted = reading.trail.startswith(".")
    if not spoken or not (dotted or undotted or any(mark in key for mark in "º°./")):
        return None
    if key == "r" and reading.before[-1][:1].isupper() and reading.before[-1][-1] != ",":
        return None  # an initial
    following = reading.next_char()
    ended = not following or (following.isupper() and key in _MAY_END)
    if not (reading.trail == "." and ended) or capital:
        reading.drop_dot()
    return spoken


def _whole_word(language: Language, core: str) -> str:
    """Returns Hauptstraße for Hauptstr, Kundennummer for Kundennr; empty for other words."""
    for short, whole in _SHORT_ENDS.get(language.code, {}).items():
        if core.endswith(short) and len(core) > len(short) + 1:
            return core.removesuffix(short) + whole
    return ""


def _keys(language: Language, reading: Reading) -> str | None:
    """*9, *31#: keys of a telephone."""
    match = re.fullmatch(r"\*(\d+)(#?)", reading.core)
    if not match or not language.keys[0]:
        return None
    star, hash_key = language.keys
    spoken = joined(language, star, digits(language.code, match[1]))
    return joined(language, spoken, hash_key) if match[2] else spoken


def _saint(language: Language, reading: Reading) -> str | None:
    """St-Denis, in French."""
    match = re.fullmatch(r"(Ste?)-(?=[A-Z])(.+)", reading.core)
    if not match or language.code != "fr":
        return None
    return f"{language.abbreviations[match[1].lower()]}-{match[2]}"


def _sign_word(language: Language, reading: Reading) -> str | None:
    if match := re.fullmatch(r"(?:#|№)(\d+)", reading.core):
        return joined(language, language.number, number_words(language, match[1]))
    if reading.word in ("№", "#", "n°", "N°") and reading.after().core[:1].isdecimal():
        return language.number
    if reading.word.rstrip(".,;:!?") == "#" and language.keys[1]:
        reading.surround("", reading.word[1:])
        return language.keys[1]
    if reading.word in ("&", "+", "=", "%"):
        reading.surround("", "")
        return language.signs[reading.word]
    if match := re.fullmatch(r"(\w+)&(\w+)", reading.core):
        return joined(language, match[1], language.signs["&"], match[2])
    return None


def _mixed(language: Language, reading: Reading) -> str | None:
    """Letters and digits in one word: A320, GPT-4, 5G, 4-stellig."""
    compound = re.fullmatch(r"(\d{1,3})-([a-zäöüß]{4,})", reading.core)
    if compound and language.code in ("de", "nl"):
        return number_words(language, compound[1]) + compound[2]
    if (often := re.fullmatch(r"(\d+)[x×]", reading.core)) and language.code in _OFTEN:
        return joined(language, number_words(language, often[1]), _OFTEN[language.code])
    match = re.fullmatch(r"\+?[^\W_]+(?:[-.][^\W_]+)*", reading.core)
    if not match or not any(map(str.isdecimal, reading.core)):
        return None
    if code := mixed_code(reading.core):
        return code.spoken(partial(digits, language.code))
    groups = re.findall(r"\d+|[^\W\d_]+|(?<=\d)\.(?=\d)", reading.core)
    groups = [language.signs.get(group, group) for group in groups]
    if reading.core[0] == "+":
        groups.insert(0, language.signs["+"])
    return joined(language, *(number_words(language, g) if g.isdecimal() else g for g in groups))


_QUANTITIES: tuple[Rule, ...] = (_eastern_code, _date, _time, percent, money, measure, number)
RULES: tuple[Rule, ...] = (
    *(
        _address,
        _keys,
        _written_code,
        _eastern_code,
        _number_to_call,
        _postcode,
        _flight,
        _weekdays,
        _version,
        _date,
        _day_and_month,
        written_down,
        product,
        thousands,
        part,
        _time,
        percent,
        money,
    ),
    *(
        rank,
        measure,
        number,
        _house,
        _korean,
        _fraction,
        power,
        dash,
        _sign_word,
        _abbreviation,
        _saint,
        _mixed,
    ),
    *(times, signs),
)
"""Rules in the order in which they are tried."""
