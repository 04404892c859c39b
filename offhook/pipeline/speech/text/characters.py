"""Characters that say the same in another shape: minus signs, subscripts, ligatures, squared units.

The readers know one shape of each.
"""

import re
import unicodedata

_PLAIN = str.maketrans(
    {
        **dict.fromkeys("−‐‑﹣⁃", "-"),
        "‒": "–",
        **dict.fromkeys("∕⁄", "/"),
        **dict.fromkeys("⋅∙", "·"),
        **dict.fromkeys("⇒⟶➔➜➝➡", "→"),
        **{chr(0x2080 + digit): str(digit) for digit in range(10)},
        **dict.fromkeys("®™\u00ad\u200b\u2060\ufeff"),
    }
)
_COMPATIBLE = re.compile(
    "[\u2160-\u217f\u2460-\u2473\u3371-\u33df\ufb00-\ufb06\U0001d400-\U0001d7ff]+"
)
"""Roman numerals, circled numbers, squared units, ligatures and mathematical letters."""
_DEGREE = re.compile(r"(?<=\d)º(?=[CF]\b)|^º(?=[CF]\b)")
_DASH_OF_A_NUMBER = re.compile(r"^–(?=[.\d$€£])")
SUPERSCRIPTS = str.maketrans("⁰¹²³⁴⁵⁶⁷⁸⁹⁺⁻", "0123456789+-")


def in_usual_shape(word: str) -> str:
    """Returns the word with one shape of each character."""
    if word.isascii() or word == "−":  # alone it is no hyphen
        return word
    word = _COMPATIBLE.sub(lambda found: unicodedata.normalize("NFKC", found[0]), word)
    return _DASH_OF_A_NUMBER.sub("-", _DEGREE.sub("°", word.translate(_PLAIN)))
