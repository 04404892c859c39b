"""English text in ASCII, for voices that read nothing else: symbols by name, letters of other
alphabets as English spells them."""

import re
import unicodedata

from offhook.pipeline.speech.text.english.english_numbers import VULGAR, fraction
from offhook.pipeline.speech.text.word_lists import table

_PUNCTUATION = str.maketrans(
    {
        **dict.fromkeys("‘’‚‛′ʼ`´", "'"),
        **dict.fromkeys("“”„‟«»‹›″", '"'),
        **dict.fromkeys("‐‑‒–", "-"),
        **dict.fromkeys("—―、，", ","),
        **dict.fromkeys("。", "."),
        **dict.fromkeys("！", "!"),
        **dict.fromkeys("？", "?"),
        **dict.fromkeys("：", ":"),
        **dict.fromkeys("；", ";"),
        "…": "...",
    }
)
NAMES = table(
    "& = and | + = plus | @ = at | % = percent | ‰ = per mille | # = number | $ = dollars | "
    "€ = euros | £ = pounds | ¥ = yen | ₹ = rupees | ₩ = won | ₽ = rubles | ₺ = lira | "
    "₴ = hryvnia | ₪ = shekels | ₫ = dong | ₱ = pesos | ฿ = baht | ₿ = bitcoin | ¢ = cents | "
    "¤ = currency | ^ = to the power of | < = less than | > = greater than | ° = degrees | "
    "§ = section | ¶ = paragraph | © = copyright | × = times | · = times | ÷ = divided by | "
    "± = plus or minus | ∓ = minus or plus | − = minus | ≠ = is not | ≈ = about | ≃ = about | "
    "≅ = about | ∼ = about | ≤ = at most | ≥ = at least | ≪ = much less than | "
    "≫ = much greater than | ≡ = is identical to | ∝ = is proportional to | ∞ = infinity | "
    "√ = the square root of | ∛ = the cube root of | ∑ = the sum of | ∏ = the product of | "
    "∫ = the integral of | ∂ = partial | ∇ = nabla | ∈ = in | ∉ = not in | ⊂ = a subset of | "
    "∪ = union | ∩ = intersection | ∅ = the empty set | ∀ = for all | ∃ = there is | "
    "¬ = not | ∧ = and | ∨ = or | → = to | ← = from | ↔ = to and from | ⇔ = if and only if | "
    "↑ = up | ↓ = down | № = number | ℃ = degrees Celsius | ℉ = degrees Fahrenheit | "
    "µ = micro | Ω = ohms | ♯ = sharp | ♭ = flat"
) | {"=": "equals"}


def _alphabet(letters: str, spelt: str) -> dict[str, str]:
    """Returns the spelling of each letter; a star stands for none."""
    return {char: text.strip("*") for char, text in zip(letters, spelt.split(), strict=True)}


_LETTERS = (
    _alphabet(
        "абвгдеёжзийклмнопрстуфхцчшщъыьэюяґєіїўђјљњћџѓќѕ",
        "a b v g d e yo zh z i y k l m n o p r s t u f kh ts ch sh shch * y * e yu ya "
        "g ye i yi u dj j lj nj c dz gj kj dz",
    )
    | _alphabet("αβγδεζηθικλμνξοπρσςτυφχψω", "a v g d e z i th i k l m n x o p r s s t y f ch ps o")
    | _alphabet("ßøæœđðþłıħŋəĸſ", "ss o ae oe d d th l i h ng e k s")
)
_LATIN = re.compile(
    r"LATIN (?:SMALL |CAPITAL )?(?:LETTER |LIGATURE )?(?:\w+ )*?(\w\w?)(?: WITH .*)?"
)
GREEK = re.compile("(?<![^\\W\\d_])[\u0391-\u03c9](?![^\\W\\d_])")
_LETTER_BY_LETTER = table("AM = A.M. | US = U.S. | IT = I.T. | ID = I.D.")
"""Abbreviations that are also words."""
_CAPITALS = re.compile(rf"\b(?:{'|'.join(_LETTER_BY_LETTER)})\b(?!\.\w)")
_SILENT = frozenset("*`~|\\{}[]_")
"""What is left of markup."""


def in_ascii(text: str) -> str:
    """Returns the text as an English voice reads it; what has neither a name nor a spelling is left
    out, see `unspeakable`."""
    if not text.isascii():
        text = GREEK.sub(lambda found: f" {greek_name(found[0])} ", text.translate(_PUNCTUATION))
    if not any(map(str.isalnum, text)) and text.strip() not in NAMES:
        # Of faces and rules nothing is said.
        return "".join(char for char in text if char in ".,;:!?-'\"() ")
    spelt = "".join(map(_spelt, text))
    return " ".join(_CAPITALS.sub(lambda found: _LETTER_BY_LETTER[found[0]], spelt).split())


def unspeakable(text: str) -> str:
    """Returns the letters for which there is no spelling."""
    if text.isascii():
        return ""
    return "".join(
        char for char in text if char.isalpha() and not _spelt(char) and char not in "ъь"
    )


def greek_name(char: str) -> str:
    """Returns a Greek letter's English name."""
    name = unicodedata.name(char).removesuffix(" WITH TONOS").split()[-1].lower()
    return name.replace("lamda", "lambda")


def _spelt(char: str) -> str:
    if char in NAMES:
        return f" {NAMES[char]} "
    if char in VULGAR:
        return f" {fraction(*VULGAR[char].as_integer_ratio())} "
    if char in _SILENT:
        return ""
    if char < "\x80":
        return char if char.isprintable() else " "
    if char.isspace():
        return " "
    lower = char.lower()
    if lower in _LETTERS:
        spelt = _LETTERS[lower]
        return spelt if lower == char else spelt.capitalize()
    plain = unicodedata.normalize("NFKD", char)
    if plain != char:
        return "".join(map(_spelt, plain))
    if found := _LATIN.fullmatch(unicodedata.name(char, "")):
        return found[1].lower() if lower == char else found[1].capitalize()
    return ""
