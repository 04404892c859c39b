"""Elements of SSML 1.1 in a text: pauses, spelling, other words, phonemes, rate, language.

Of a text that comes in any pieces, `tag` finds one where a "<" is. What else looks like a tag is no
element here, and left to whoever reads the text.
"""

import html
import re
from dataclasses import dataclass

MAX_TAG = 1500
"""Maximum characters of a tag; a longer one is text."""
MAX_CONTENT = 500
"""Maximum characters in an element that is said otherwise; of a longer one the text is read."""
MAX_BREAK_MS = 10_000
"""Maximum length of a pause in ms; a longer one is as long as that."""
STRENGTHS_MS = {"none": 0, "x-weak": 250, "weak": 500, "medium": 750, "strong": 1000}
STRENGTHS_MS["x-strong"] = 1250
RATES = {"x-slow": 0.5, "slow": 0.75, "medium": 1.0, "default": 1.0, "fast": 1.5, "x-fast": 2.0}

_NAMES = ("speak", "break", "say-as", "sub", "phoneme", "prosody", "lang")
_ATTRIBUTE = r"""\s+[\w:.-]{1,40}\s*=\s*(?:"[^"<>]*"|'[^'<>]*')"""
_TAG = re.compile(
    rf"<(?P<end>/?)(?P<name>{'|'.join(_NAMES)})(?P<attributes>(?:{_ATTRIBUTE})*)\s*(?P<empty>/?)>",
    re.IGNORECASE,
)
_PARTIAL = re.compile(r"</?(?P<name>[a-z-]{0,8})(?P<more>[\s/][^<>]*)?\Z", re.IGNORECASE)
_PARTS = re.compile(r"""\s([\w:.-]{1,40})\s*=\s*(?:"([^"<>]*)"|'([^'<>]*)')""")
_CONTENT = re.compile(r"([^<]*)</([a-z-]+)\s*>", re.IGNORECASE)
_PARTIAL_CONTENT = re.compile(r"[^<]*(?:<(?:/[a-z-]{0,8}\s*)?)?\Z", re.IGNORECASE)
_TIME = re.compile(r"\+?([0-9]{0,9}(?:\.[0-9]{0,9})?)\s*(ms|s)")
_PERCENT = re.compile(r"([+-]?)([0-9]{1,4}(?:\.[0-9]{0,4})?)(%?)")


@dataclass(frozen=True)
class Tag:
    written: str
    name: str
    attributes: dict[str, str]
    is_end: bool
    is_empty: bool


def tag(text: str, place: int, final: bool) -> Tag | bool | None:
    """Returns the element's tag at a place; False if there is none, None if that is not known
    yet."""
    start = text[place : place + MAX_TAG]
    if found := _TAG.match(start):
        values = {
            name: value or other for name, value, other in _PARTS.findall(found["attributes"])
        }
        attributes = {name.lower(): html.unescape(value) for name, value in values.items()}
        name = found["name"].lower()
        return Tag(found[0], name, attributes, bool(found["end"]), bool(found["empty"]))
    partial = None if final or len(start) == MAX_TAG else _PARTIAL.match(start)
    if partial is None:
        return False
    name = partial["name"].lower()
    known = name in _NAMES if partial["more"] else any(each.startswith(name) for each in _NAMES)
    return None if known else False


def content(text: str, place: int, name: str, final: bool) -> tuple[str, str] | bool | None:
    """Returns the text up to the end of an element that begins before a place, as written with the
    end's tag, and alone; False if it has other elements, or no end; None if that is not known
    yet."""
    inside = text[place : place + MAX_CONTENT]
    found = _CONTENT.match(inside)
    if found and found[2].lower() == name:
        return found[0], html.unescape(found[1])
    if final or found or len(inside) == MAX_CONTENT or not _PARTIAL_CONTENT.match(inside):
        return False
    return None


def break_ms(attributes: dict[str, str]) -> int:
    """Returns the length of a pause."""
    found = _TIME.fullmatch(attributes.get("time", "").strip().lower())
    if found and found[1].strip("."):
        ms = float(found[1]) * (1000 if found[2] == "s" else 1)
    else:
        ms = STRENGTHS_MS.get(attributes.get("strength", "").lower(), STRENGTHS_MS["medium"])
    return round(min(ms, MAX_BREAK_MS))


def rate(attributes: dict[str, str]) -> float:
    """Returns how much faster than around it a text is spoken; 1 for what is no rate."""
    value = attributes.get("rate", "").strip().lower()
    found = _PERCENT.fullmatch(value)
    if value in RATES or not found:
        return RATES.get(value, 1.0)
    sign, number, percent = found.groups()
    share = float(number) / (100 if percent else 1)
    return {"": share, "+": 1 + share, "-": 1 - share}[sign]


def spelled(text: str, attributes: dict[str, str], language: str) -> str:
    """Returns the content of `<say-as>` in a form that is read so."""
    form = attributes.get("format", "").lower()
    match attributes.get("interpret-as", "").lower():
        case "characters" | "spell-out" | "verbatim":
            return ", ".join(char.upper() for char in text if not char.isspace())
        case "digits":
            return " ".join(char for char in text if not char.isspace())
        case "telephone" if text.strip().isdecimal():
            digits = text.strip()
            return ", ".join(" ".join(digits[at : at + 3]) for at in range(0, len(digits), 3))
        case "cardinal" | "number":
            return re.sub(r"(?<=\d)[\s,.'](?=\d{3}\b)", "", text)
        case "ordinal" if text.strip().isdecimal():
            return _ordinal(int(text), language)
        case "date":
            return _date(text, form)
    return text


def _ordinal(number: int, language: str) -> str:
    match language:
        case "" | "en":
            teens = 10 <= number % 100 < 20
            ending = "th" if teens else {1: "st", 2: "nd", 3: "rd"}.get(number % 10, "th")
            return f"{number}{ending}"
        case "fr" | "nl":
            return f"{number}e"
        case "es" | "it" | "pt":
            return f"{number}º"
    return f"{number}."


def _date(text: str, form: str) -> str:
    """Returns a whole date as ISO 8601 has it, which is read in any language; others as they
    are."""
    numbers = re.findall(r"\d+", text)
    if form not in ("ymd", "dmy", "mdy", "ydm"):
        return text
    if len(numbers) == 1 and len(numbers[0]) == 8:
        lengths = [4 if part == "y" else 2 for part in form]
        starts = [sum(lengths[:at]) for at in range(3)]
        pairs = zip(starts, lengths, strict=True)
        numbers = [numbers[0][start : start + length] for start, length in pairs]
    if len(numbers) != 3:
        return text
    parts = dict(zip(form, numbers, strict=True))
    return f"{parts['y']}-{int(parts['m']):02}-{int(parts['d']):02}"
