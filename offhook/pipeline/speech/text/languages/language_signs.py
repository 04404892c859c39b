"""Fractions, powers, telephone numbers and signs of the languages whose tables have words for
them."""

import re
import unicodedata
from fractions import Fraction
from functools import partial

from offhook.pipeline.speech.text.codes import CODE_WORDS
from offhook.pipeline.speech.text.digit_groups import (
    account,
    join_thousands,
    spell,
    split,
    telephone,
)
from offhook.pipeline.speech.text.languages.language_numbers import (
    gender_of,
    joined,
    number_words,
    shapes,
    sign_of,
)
from offhook.pipeline.speech.text.languages.language_quantities import measure, unit_pattern
from offhook.pipeline.speech.text.languages.language_tables import (
    CURRENCY_SIGNS,
    UNIT_IDS,
    Language,
)
from offhook.pipeline.speech.text.languages.spoken_numbers import cardinal, digits
from offhook.pipeline.speech.text.reading import Reading
from offhook.pipeline.speech.text.word_lists import words
from offhook.pipeline.speech.text.written_words import SUPERSCRIPTS

_VULGAR = "½⅓⅔¼¾⅕⅖⅗⅘⅙⅚⅛⅜⅝⅞⅒"
_PART = re.compile(
    rf"(?P<sign>[-−+±~≈<>≤≥]?)(?P<whole>\d{{0,3}})(?P<part>[{_VULGAR}])(?P<rest>%|-?[^\W\d_]*)"
)
_SLASH = re.compile(r"(?P<sign>[-−+±]?)(?P<upper>\d{1,3})/(?P<lower>\d{1,3})")
_POWER = re.compile(
    r"(?:(?P<times>\d+(?:[.,]\d+)?)[x×·*])?(?P<base>\d+(?:[.,]\d+)?|[^\W\d_]{1,2})"
    r"(?:\^(?P<power>-?\d+)|(?P<mark>[⁺⁻]?[⁰¹²³⁴⁵⁶⁷⁸⁹]+))"
)
_PRODUCT = re.compile(
    r"(?P<first>(?:[1-9]\d*(?:[.,]\d+)?[x×])+)(?P<last>[1-9]\d*(?:[.,]\d+)?[^\W\d]*)"
)
_FOOTNOTE = re.compile(r"(?P<word>[^\W\d_]{3,})[⁰¹²³⁴⁵⁶⁷⁸⁹]+")
SPANISH_MOBILE = "679"
_LITTLE = words(
    "de du des del la le les el y et und oder o ou von vom der die das den en in im à a al est es "
    "ist bis di do da del della"
)
"""Words that are not counted."""
_DUTCH_NEUTER = words("uur jaar kwartier glas pond brood pak blik kilo percent procent")
_NEUTER = words("kilo kilogramm gramm pfund jahr glas brot")


def written_down(language: Language, reading: Reading) -> str | None:
    """Telephone and account numbers, digit by digit; in French in pairs."""
    if language.code not in CODE_WORDS:
        return None
    plus = language.signs["+"]
    by_digit = partial(digits, language.code)
    if groups := account(reading):
        return spell(groups, plus, by_digit)
    french = language.code == "fr"
    mobile = SPANISH_MOBILE if language.code == "es" else ""
    groups = telephone(reading, mobile, _pairs if french else split)
    return spell(groups, plus, _french_group if french else by_digit) if groups else None


def _pairs(text: str) -> list[str]:
    if len(text) < 5:
        return [text]
    return [text[at : at + 2] for at in range(0, len(text), 2)]


def _french_group(text: str) -> str:
    zeros = text[: len(text) - len(text.lstrip("0"))]
    rest = text[len(zeros) :]
    if len(text) > 3:
        return digits("fr", text)
    return f"{digits('fr', zeros)} {cardinal('fr', int(rest)) if rest else ''}".strip()


def thousands(language: Language, reading: Reading) -> None:
    """Joins 1 000 to one number for the rules that follow, and turns 1,234.56 round."""
    if language.decimal == ",":
        reading.core = re.sub(r"(?<=\d),[-–]{1,2}(?=€?$)", "", reading.core)
        join_thousands(reading, ".")
        if re.fullmatch(r"\D?\d{1,3}(?:,\d{3})+\.\d+\D?", reading.core):
            reading.core = reading.core.translate({ord(","): ".", ord("."): ","})


def part(language: Language, reading: Reading) -> str | None:
    """½, 2½, 2 ½, 1/2, 2 1/2."""
    if not language.parts:
        return None
    sign, whole, fraction, rest = _part_of(reading.core)
    if fraction is None and reading.core.isdecimal():
        sign, _, fraction, rest = _part_of(reading.after().core)
        if fraction is None or sign or _part_of(reading.after().core)[1]:
            return None
        whole = int(reading.core)
        reading.consume()
    if fraction is None or fraction.denominator not in language.parts:
        return None
    noun = rest.strip("-%")
    if not rest:
        found = reading.after().core
        noun = found if found.isalpha() and found.lower() not in _LITTLE else ""
    counted = noun
    if noun in UNIT_IDS:
        value = float(whole + fraction) if whole > 1 else 1.0
        counted = unit_pattern(language, noun, value).replace("{}", "").strip()
    spoken, with_noun = _in_words(language, whole, fraction, counted)
    if not rest and (with_noun or noun in UNIT_IDS):
        reading.consume()
    end = "" if with_noun else language.signs["%"] if rest == "%" else ""
    if not with_noun and (rest.strip("%") or noun in UNIT_IDS):
        end = counted
    minus = {"": "", "+": language.signs["+"]}.get(sign) or (
        language.minus if sign in ("-", "−") else language.more_signs.get(sign, "")
    )
    return joined(language, minus if sign else "", spoken, end)


def _part_of(text: str) -> tuple[str, int, Fraction | None, str]:
    if match := _PART.fullmatch(text):
        value = Fraction(unicodedata.numeric(match["part"])).limit_denominator(10)
        return match["sign"], int(match["whole"] or 0), value, match["rest"]
    match = _SLASH.fullmatch(text)
    if match and 0 < int(match["upper"]) < int(match["lower"]):
        return match["sign"], 0, Fraction(int(match["upper"]), int(match["lower"])), ""
    return "", 0, None, ""


def _in_words(language: Language, whole: int, fraction: Fraction, noun: str) -> tuple[str, bool]:
    """Returns the words, and whether the noun is among them."""
    half = fraction == Fraction(1, 2)
    one, many = language.parts[fraction.denominator]
    upper = fraction.numerator
    spoken = one if upper == 1 else f"{cardinal(language.code, upper)} {many}"
    if language.code == "de":
        if half and whole:
            return f"{cardinal('de', whole, 'm')}einhalb", False
        if half and noun:
            head = noun.lower()
            neuter = "ein halbes" if head in _NEUTER else "ein halber"
            return ("eine halbe" if gender_of(language, noun) == "f" else neuter), False
        if not whole:
            return spoken, False
        return cardinal("de", whole, "m") + spoken.replace(" ", "").lower(), False
    if language.code == "nl":
        inflected = noun and noun not in _DUTCH_NEUTER
        if half and whole == 1:
            return ("anderhalve" if inflected else "anderhalf"), False
        if whole:
            return f"{cardinal('nl', whole)} en {spoken}", False
        return ("een halve" if half and inflected else spoken), False
    one_of_them = _singular(language, noun)
    gender = gender_of(language, one_of_them) if noun else "m"
    number = cardinal(language.code, whole, gender if noun else "") if whole else ""
    and_word, *middle = _HALVES.get(language.code, ("", "", ""))
    if not half or (middle[0] and not noun and not whole):
        of = _OF[language.code] if noun and not whole else ""
        link = f" {and_word}" if and_word and whole else ""
        return joined(language, number + link, spoken + of), False
    if middle[0]:
        medio = middle[gender == "f"]
        counted = one_of_them if whole == 1 else noun
        if whole:
            return joined(language, number, counted, and_word, medio), bool(noun)
        return joined(language, medio, noun), bool(noun)
    if whole:
        return joined(language, number, noun, "et demie" if gender == "f" else "et demi"), bool(
            noun
        )
    if not noun:
        return spoken, False
    return f"{'une' if gender == 'f' else 'un'} demi-{noun}", True


_HALVES = {
    "es": ("y", "medio", "media"),
    "it": ("e", "mezzo", "mezza"),
    "pt": ("e", "meio", "meia"),
}
"""And, and a half of a masculine and of a feminine noun."""
_OF = {"fr": " de", "es": " de", "it": " di", "pt": " de"}


def _singular(language: Language, noun: str) -> str:
    if language.code == "it":
        return re.sub("i$", "o", re.sub("e$", "a", noun))
    return noun.removesuffix("s")


def product(language: Language, reading: Reading) -> str | None:
    """40x30x20 cm."""
    match = _PRODUCT.fullmatch(reading.core)
    if not match or "×" not in language.more_signs:
        return None
    reading.core = match["last"]
    last = measure(language, reading) or _piece(language, reading.core)
    first = (number_words(language, number) for number in re.split("[x×]", match["first"])[:-1])
    return joined(language, *(f"{number} {language.more_signs['×']}" for number in first), last)


def power(language: Language, reading: Reading) -> str | None:
    """10⁻³, 5×10⁶, 2^10, x²; after a word the number is a footnote's."""
    if not language.power:
        return None
    if match := _FOOTNOTE.fullmatch(reading.core):
        return match["word"]
    match = _POWER.fullmatch(reading.core)
    if not match:
        return None
    times, base = match["times"], match["base"]
    number = int(match["power"] or match["mark"].translate(SUPERSCRIPTS))
    return joined(
        language,
        f"{number_words(language, times)} {language.more_signs['×']}" if times else "",
        base if base.isalpha() else number_words(language, base),
        language.power,
        language.minus if number < 0 else "",
        cardinal(language.code, abs(number)),
    )


def dash(language: Language, reading: Reading) -> str | None:
    """A dash between two numbers, alone: 10 - 15, 9:00 – 18:00."""
    if reading.word not in ("-", "–") or reading.before[-1][-1:] in tuple(".,;:!?"):
        return None
    earlier = "".join(list(reading.before)[-2:])
    if not any(map(str.isdecimal, earlier)) or not reading.next_char().isdecimal():
        return None
    return language.minus if reading.following(1) == "=" else language.to


def times(language: Language, reading: Reading) -> str | None:
    """A lone x between two numbers."""
    if reading.word != "x" or "×" not in language.more_signs:
        return None
    number = reading.next_char().isdecimal() or reading.following() in CURRENCY_SIGNS
    numbers = number and reading.before[-1][-1:].isdecimal()
    return language.more_signs["×"] if numbers else None


def signs(language: Language, reading: Reading) -> str | None:
    """Signs alone, between and before numbers and letters: 3×4, a≠b, √16, §5."""
    names = language.more_signs | {"=": language.signs["="], "&": language.signs["&"]}
    if not language.more_signs:
        return None
    core = reading.core
    if core == "*" and language.keys[0] and not reading.before[-1][-1:].isdecimal():
        return language.keys[0]
    if core in language.more_signs:
        return language.more_signs[core]
    marks = [char for char in core if char in names and char not in "*°"]
    if not marks or not any(map(str.isalnum, core)):
        return None
    pieces = re.split(f"([{re.escape(''.join(set(marks)))}])", core)
    return joined(language, *(names.get(piece) or _piece(language, piece) for piece in pieces))


def _piece(language: Language, text: str) -> str:
    match = shapes(language.decimal)["number"].fullmatch(text)
    if match and not match["until"]:
        return joined(language, sign_of(language, match), number_words(language, match["number"]))
    return text
