"""What a caller writes down, in groups with pauses: telephone, card and account numbers, codes,
spelled names. And the numbers of emergency services, and abbreviated days of the week.

The rules are the same in all languages; each spells the groups in its own words.
"""

import re
from collections.abc import Callable, Mapping
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
    "mobiel rekening kaart"
)
"""Words before a telephone number."""
_SPELLED = re.compile(r"[^\W\d_](?:-[^\W\d_]){2,}")
_CODE = re.compile(r"(?P<mark>#?)(?P<parts>[A-Z0-9]+(?:[-/][A-Z0-9]+)*)")
_BOTH = re.compile(r"(?=.*\d)(?=.*[A-Z]).{2,}")
_DAYS = re.compile(r"(?P<first>\w{1,5})\.?[-–—](?P<last>\w{1,5})")
CODE_DIGITS = 5
"""Fewest digits of a code without letters: 5-10 and 2/3 are none."""
EMERGENCIES = words("000 061 091 110 111 112 113 115 118 119 190 192 193 911 999")
"""Numbers that are called in an emergency, of all countries."""


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
    return Groups(_chunks(reading.core, 4)) if _ACCOUNT.fullmatch(reading.core) else None


def telephone(
    reading: Reading, mobile: str = "", apart: Callable[[str], list[str]] = split
) -> Groups | None:
    """A number written in groups that is no amount: +49 30 1234567, (030) 123 45 67, 0800 123 456.

    `mobile` are first digits of numbers of nine that a country writes as it does amounts; `apart`
    splits a long group."""
    first = reading.word.lstrip("\"'“„«")
    start = _START.match(first)
    called = any(word.lower().strip(".,:;()") in CALL_WORDS for word in reading.before)
    if not start or _DAY.fullmatch(start[0]):
        return None
    if _DATE.fullmatch(start[0].rstrip(".-/")) and not (called and "-" in start[0]):
        return None
    parts, trail = [start[0].rstrip(".-/")], first[len(start[0].rstrip(".-/")) :]
    while not trail.strip(")") and len(parts) < MAX_GROUPS:
        word = reading.following(len(parts) - 1)
        group = _GROUP.match(word)
        rest = word[group.end() :] if group else word or "end"
        digits = sum(map(str.isdecimal, "".join([*parts, word])))
        if rest.strip(_PUNCTUATION) or digits > MAX_DIGITS:
            break
        parts.append(word[: len(word) - len(rest)] if rest else word)
        trail = rest
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
