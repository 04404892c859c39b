"""What a caller writes down, in groups with pauses: telephone, card and account numbers, spelled
names. And abbreviated days of the week.

The rules are the same in all languages; each spells the groups in its own words.
"""

import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass

from offhook.pipeline.speech.text.reading import Reading
from offhook.pipeline.speech.text.word_lists import words

_START = re.compile(r"\(?\+?\(?\d[\d()/.-]*")
_GROUP = re.compile(r"\(?\d{1,10}\)?(?:[-/.]?\(?\d{1,10}\)?)*")
_DATE = re.compile(r"\d\d?([-/.])\d\d?\1(?:\d\d){1,2}|(?:\d\d){1,2}([-/.])\d\d?\2\d\d?")
_DAY = re.compile(r"\d\d?[./]\d\d?[./]?")
_ACCOUNT = re.compile(r"[A-Z]{2}\d{2}(?:[A-Z0-9]{4}){2,7}[A-Z0-9]{0,4}")
_ACCOUNT_START = re.compile(r"[A-Z]{2}\d{2}(?:[A-Z0-9]{4})*")
_ACCOUNT_GROUP = re.compile(r"[A-Z0-9]{1,4}|[A-Z0-9]{5,30}")
_THOUSANDS = re.compile(r"[1-9]\d{0,2}(?: \d{3})+")
_YEAR = re.compile(r"(?:1[1-9]|20)\d\d")
_SYMBOL = r"[$€£¥₹₽]"
_GROUPED_START = re.compile(rf"[-+±~≈<>≤≥]?{_SYMBOL}?[1-9]\d{{0,2}}")
_GROUPED_NEXT = re.compile(rf"\d{{3}}(?:[.,]\d+)?(?:{_SYMBOL}|%|°[CF]?)?")
_PUNCTUATION = ".,;:!?…\"'”“’»)]"
MAX_GROUPS = 12
MAX_DIGITS = 30
LONG_GROUP = 6
"""Digits from which a group is split."""
CALL_WORDS = words(
    "phone telephone tel number code isbn ref card account call dial fax mobile cell whatsapp "
    "hotline line ring telefon telefonnummer rufnummer nummer handy mobil mobilnummer ruf anrufen "
    "konto karte téléphone tél numéro appelez appeler portable composez compte carte cuenta "
    "tarjeta teléfono número móvil llame llamar llámenos marque fijo otp passcode password tan "
    "rufen wählen wählt appelle chiami chiama chiamare componga telefono cellulare numero conto "
    "ligue ligar liguem telefone celular telemóvel conta cartão bel bellen belt telefoonnummer "
    "mobiel rekening kaart text звоните позвоните звонить наберите набрать телефон тел номер счёт "
    "карта код"
)
"""Words before a telephone number."""
_OR = words("or oder ou o of and und et y e en")
_SPELLED = re.compile(r"[^\W\d_](?:-[^\W\d_]){2,}")
_HOURS = re.compile(r"\d{1,2}(?:[:.h]\d\d|h)?(?:[-–]\d|h)|\d{1,2}[:h]\d\d")
_HOUR_WORDS = words("uhr Uhr h uur am pm AM PM a.m. p.m. heures horas ore - – to bis")
_CLOSED = words("closed geschlossen fermé cerrado chiuso fechado gesloten")
_UNTIL = words("to through thru until - – & and und bis au à et a al até y e tot t/m en")
_DAYS = re.compile(r"(?P<first>\w{1,5})\.?(?P<mark>[-–—/])(?P<last>\w{1,5})")


@dataclass(frozen=True)
class Groups:
    """A number in groups as they are spoken, of digits and capital letters."""

    groups: list[str]
    plus: bool = False


def split(digits: str) -> list[str]:
    """Splits digits into groups of three and four that are easy to write down."""
    if len(digits) < LONG_GROUP:
        return [digits]
    if len(digits) in (7, 10):
        return [*_chunks(digits[:-4], 3), digits[-4:]]
    return _chunks(digits, 4 if len(digits) in (8, 12, 16) or len(digits) > 12 else 3)


def _chunks(text: str, size: int) -> list[str]:
    return [text[at : at + size] for at in range(0, len(text), size)]


def spell(groups: Groups, plus: str, spelt: Callable[[str], str]) -> str:
    """Returns the groups in words; `spelt` spells one of digits, letters are spoken as they are."""
    said = ", ".join(
        " ".join(spelt(part) if part.isdecimal() else " ".join(part) for part in _runs(group))
        for group in groups.groups
    )
    return f"{plus} {said}" if groups.plus else said


def _runs(group: str) -> list[str]:
    return re.findall(r"\d+|[A-Z]+", group)


def account(reading: Reading) -> Groups | None:
    """An IBAN, with or without spaces."""
    word = reading.core
    if reading.trail == "" and _ACCOUNT_START.fullmatch(word):
        taken = 0
        while taken < MAX_GROUPS and _ACCOUNT_GROUP.fullmatch(reading.after(taken).core):
            word += reading.after(taken).core
            taken += 1
        if len(word) > 14 and taken and _ACCOUNT.fullmatch(word):
            reading.consume(taken)
            return Groups(_chunks(word, 4))
    whole = _ACCOUNT.fullmatch(reading.core) and len(reading.core) > 14
    return Groups(_chunks(reading.core, 4)) if whole else None


def telephone(
    reading: Reading, mobile: str = "", apart: Callable[[str], list[str]] = split
) -> Groups | None:
    """A number written in groups that is no amount: +49 30 1234567, (030) 123 45 67, 0800 123 456.

    `mobile` are first digits of numbers of nine that a country writes as it does amounts; `apart`
    splits a long group."""
    first = reading.word.lstrip("\"'“„«")
    start = _START.match(first)
    before = reading.sentence()
    listed = len(before) > 2 and before[-1] in _OR and before[-2].isdecimal()
    called = any(word in CALL_WORDS for word in (before if listed else before[-3:]))
    if not start or _DAY.fullmatch(start[0]):
        return None
    if _DATE.fullmatch(start[0].rstrip(".-/")) and not (called and "-" in start[0]):
        return None
    parts, trail = [start[0].rstrip(".-/")], first[len(start[0].rstrip(".-/")) :]
    while not trail.strip(")") and len(parts) < MAX_GROUPS:
        word = reading.following(len(parts) - 1)
        if word in ("-", "–", "/") and parts[0][:1] in ("0", "+", "(") and parts[-1] not in "-–/":
            parts.append(word)
            continue
        group = _GROUP.match(word)
        rest = word[group.end() :] if group else word or "end"
        digits = sum(map(str.isdecimal, "".join([*parts, word])))
        if rest.strip(_PUNCTUATION) or digits > MAX_DIGITS:
            break
        parts.append(word[: len(word) - len(rest)] if rest else word)
        trail = rest
    if parts[-1] in "-–/":
        parts.pop()
    if trail.strip(_PUNCTUATION):
        return None
    international = parts[0].lstrip("(").startswith("+")
    written = " ".join(parts).replace("(0)", " " if international else "0")
    groups = re.findall(r"\d+", written)
    if not _is_telephone(parts, groups, called, mobile, reading):
        return None
    if len(parts) > 1:
        reading.consume(len(parts) - 1)
    reading.surround("", trail.lstrip(")"))
    plain = [part for group in groups for part in apart(group)]
    return Groups(plain, plus=international)


def _is_telephone(
    parts: list[str], groups: list[str], called: bool, mobile: str, reading: Reading
) -> bool:
    text, digits = " ".join(parts), sum(map(len, groups))
    if parts[0].lstrip("(").startswith("+"):
        return 7 <= digits <= 16
    dotted = len(parts) == 1 and "." in text
    if groups[0].startswith("0"):
        return digits >= 6 and not (dotted and len(groups) == 2)
    if len(groups) == 1 or dotted:
        return False
    if called and digits >= 6:
        return True
    if _THOUSANDS.fullmatch(text):
        alone = not reading.following(len(parts) - 1)[:1].isalpha()
        return bool(mobile) and digits == 9 and text[0] in mobile and alone
    if len(groups) == 2:
        lengths = [len(group) for group in groups]
        years = all(map(_YEAR.fullmatch, groups)) or _YEAR.fullmatch(groups[0])
        return lengths in ([3, 4], [4, 4]) and len(parts) == 2 and not years
    short = len(parts) == 1 or max(map(len, groups)) <= 4
    return digits >= 9 and short and not _YEAR.fullmatch(groups[0])


def join_thousands(reading: Reading, mark: str) -> None:
    """Joins an amount grouped by spaces, 1 234,56 €, into the current word, grouped by `mark`."""
    if reading.trail or not _GROUPED_START.fullmatch(reading.core):
        return
    taken, core = 0, reading.core
    while re.fullmatch(r"\d{3}", reading.after(taken).core):
        core += mark + reading.after(taken).core
        taken += 1
    last = reading.after(taken).core
    if _GROUPED_NEXT.fullmatch(last):
        core += mark + last
        taken += 1
    if taken:
        reading.consume(taken)
        reading.core = core


def spelled(reading: Reading) -> str | None:
    """K-O-W-A-L-S-K-I: the letters, with a pause behind each."""
    if not _SPELLED.fullmatch(reading.core):
        return None
    return ", ".join(letter.upper() for letter in reading.core.split("-"))


def weekdays(reading: Reading, names: Mapping[str, str]) -> tuple[str, str, str] | None:
    """Mon–Fri, Mo.-Fr., Sa/So: the two days in full and the mark between. `names` are those of the
    days, by their abbreviations in lower case and without a dot."""
    match = _DAYS.fullmatch(reading.core)
    if not match:
        return None
    first, last = (names.get(match[end].lower()) for end in ("first", "last"))
    return (first, match["mark"], last) if first and last else None


def weekday(reading: Reading, names: Mapping[str, str], months: Collection[str]) -> str | None:
    """A single abbreviated day, before hours or a date, or as an end of a range: Sa 10–14 Uhr, Fri
    5 May, lun. au ven."""
    day = names.get(reading.core.lower())
    if day is None or (day[0].isupper() and not reading.core[0].isupper()):
        return None
    following = reading.following()
    if following == "the" and re.match(r"\d\d?(?:st|nd|rd|th)", reading.following(1)):
        return day
    lower = following[:1].islower() or following[:1].isdecimal() or following[:1] == "&"
    dotted = reading.trail.startswith(".") and (reading.trail != "." or lower)
    if dotted or _HOURS.match(following) or following.lower().rstrip(".,;") in _CLOSED:
        return day
    month = following if following[:1].isalpha() else ""
    if following[:1].isdecimal():
        if re.fullmatch(r"\d\d?/\d\d?\W*", following):
            return day
        month = reading.following(1)
        if month in _HOUR_WORDS:
            return day
    if month.lower().rstrip(".,;") in months:
        return day
    earlier = [word.lower().strip(".,") for word in list(reading.before)[-2:]]
    days = {*names, *map(str.lower, names.values())}
    if earlier[1] in _UNTIL and earlier[0] in days:
        return day
    last = reading.following(1).rstrip(".,:;") if following in _UNTIL else ""
    return day if last.lower() in days and last[0].isupper() >= day[0].isupper() else None
