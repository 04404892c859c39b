"""Splits streaming text into words: exact slices, and their content without markup.

Words are those of the text without what markup.py leaves out or replaces.

The end of a word depends only on the text up to the next character (in Chinese and Japanese the
next three), so the words do not depend on how the text was split.
"""

import re
import unicodedata
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

from offhook.pipeline.speech.text.markup import IPA_BEGINS, Markup

MAX_WORD = 200
"""Maximum characters of a word or of white space; a longer run is split."""
IDEOGRAPHS = "\u2e80-\u2fdf\u3000-\u312f\u3190-\u31ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff"
IDEOGRAPHS += "\uff01-\uff04\uff06\uff08-\uff0a\uff0c\uff1a-\uff1f\uff3b-\uff3d\uff5b-\uff5d"
IDEOGRAPHS += "\uff5f-\uff9f\U00020000-\U0003ffff"
"""Characters written without spaces between words: Han, kana and their punctuation."""
LOOK_AHEAD = 2
"""Characters after the first of a word that BudouX uses to decide whether it starts one."""
LOOK_BACK = 3
USUAL_PHRASE, MAX_PHRASE = 4, 16
"""Typical and maximum number of ideographs in a word."""

_WORD = re.compile(rf"(\s{{0,{MAX_WORD}}})([^\s—{IDEOGRAPHS}]{{0,{MAX_WORD}}})")
_PHRASE = re.compile(rf"[{IDEOGRAPHS}]{{1,{MAX_PHRASE + LOOK_AHEAD}}}")
_FIRST = re.compile(rf"\s*[^\s—{IDEOGRAPHS}A-Za-z0-9]*([A-Za-z0-9]|[\s—{IDEOGRAPHS}])?")


@dataclass(frozen=True)
class Written:
    """One word of the text."""

    text: str
    """The exact slice: pending white space, the word, one white space character."""
    source: str
    """What the slice says: without tags and the like. Empty if it is nothing else."""
    plain: str
    """The word without white space and markup; empty if nothing remains."""
    starts_line: bool

    @property
    def ends_line(self) -> bool:
        return self.source.endswith(("\n", "\r"))

    @property
    def is_silent(self) -> bool:
        """Whether it is no word, but a tag or white space."""
        return not self.source.strip()


@dataclass
class _Replaced:
    """Markup, and the characters in its place."""

    start: int
    written: str
    length: int


@cache
def _phrases(language: str) -> Callable[[str], list[str]]:
    """Returns what splits ideographs into phrases."""
    try:
        import budoux
    except ImportError:  # it comes with the engines that speak Chinese and Japanese
        return lambda text: [text]
    if language == "ja":
        return budoux.load_default_japanese_parser().parse
    return budoux.load_default_simplified_chinese_parser().parse


class WordCutter:
    """Streaming text in, words out. `rest` is what the text says that is not yet emitted as
    words."""

    def __init__(self, language: str, markup: bool, ipa: bool = False) -> None:
        """With `markup` it is left out; with `ipa`, `<phoneme>` becomes its words in IPA."""
        self.language = language
        self._markup = Markup(ipa) if markup else None
        self._context = ""
        self._new_line = True
        self.rest = ""
        self._replaced: deque[_Replaced] = deque()

    def feed(self, text: str) -> list[Written]:
        return self._add(text, final=False)

    def finish(self) -> list[Written]:
        return self._add("", final=True)

    def _add(self, text: str, final: bool) -> list[Written]:
        for written, said in self._markup.feed(text, final) if self._markup else [(text, text)]:
            if written != said:
                self._replaced.append(_Replaced(len(self.rest), written, len(said)))
            self.rest += said
        return self._cut(final)

    def _cut(self, final: bool) -> list[Written]:
        words, place = [], 0
        while place < len(self.rest) or self._replaced:
            end = self._silent_end(place)
            if end is None and not (end := self._end(place, final)):
                break
            text = self._written(place, end)
            words.append(self._word(text, self.rest[place:end]))
            place = end
        self.rest = self.rest[place:]
        for replaced in self._replaced:
            replaced.start -= place
        return words

    def _silent_end(self, place: int) -> int | None:
        """Returns the end of white space with markup that says nothing else, which waits for no
        word."""
        if not self._replaced:
            return None
        end = self._replaced[0].start + self._replaced[0].length
        return end if end == place or self.rest[place:end].isspace() else None

    def _written(self, place: int, end: int) -> str:
        """Returns the text as written of a slice of `rest`; of an empty one, what says nothing
        there."""
        written = ""
        while self._replaced and (self._replaced[0].start < end or place == end):
            replaced = self._replaced.popleft()
            written += self.rest[place : replaced.start] + replaced.written
            rest = replaced.start + replaced.length - end
            if rest > 0:  # it says several words: all of it is of the first
                self._replaced.appendleft(_Replaced(end, "", rest))
            place = min(end, end + rest)
            if place == end:
                break
        return written + self.rest[place:end]

    def _word(self, written: str, text: str) -> Written:
        if not text:
            return Written(written, "", "", self._new_line)
        body = text.lstrip()
        starts_line = self._new_line or "\n" in text[: len(text) - len(body)]
        ideographic = bool(body) and _PHRASE.match(body) is not None
        self._context = (self._context + text)[-LOOK_BACK:] if ideographic else ""
        plain = without_markup(text.strip(), starts_line) if self._markup else text.strip()
        self._new_line = text.endswith(("\n", "\r")) or (starts_line and not body)
        return Written(written, text, plain, starts_line)

    def _end(self, place: int, final: bool) -> int:
        """Returns the end of the word that starts at `place` of the rest; 0 if unknown yet."""
        rest = self.rest
        match = _WORD.match(rest, place)
        assert match
        end = match.end()
        if end == len(rest) and len(match[2]) < MAX_WORD:
            return end if final else 0
        if not match[2] and end < len(rest) and _PHRASE.match(rest, end):
            return self._phrase_end(end, "" if match[1] else self._context, final)
        if len(match[2]) == MAX_WORD or (not match[2] and len(match[1]) == MAX_WORD):
            return end
        return end + (rest[end].isspace() or rest[end] == "—")

    def _phrase_end(self, place: int, context: str, final: bool) -> int:
        """The same for ideographs; `context` is the text directly before them."""
        run = _PHRASE.match(self.rest, place)
        assert run
        # Most words are short: look no further than they reach first.
        for chars in (min(USUAL_PHRASE + LOOK_AHEAD, len(run[0])), len(run[0])):
            end = self._first_phrase(context, run[0][:chars])
            if end + LOOK_AHEAD < chars:
                return place + end
        if len(run[0]) == MAX_PHRASE + LOOK_AHEAD:
            return place + MAX_PHRASE
        return place + end if final or run.end() < len(self.rest) else 0

    def _first_phrase(self, context: str, text: str) -> int:
        end = -len(context)
        for phrase in _phrases(self.language)(context + text):
            end += len(phrase)
            if end > 0:
                break
        return end


def first_letter(text: str) -> str | None:
    """Returns the first ASCII letter or digit of the first word of `text`; empty if it has none,
    None if unknown yet."""
    match = _FIRST.match(text)
    assert match
    if match[1] is None:
        return None
    return match[1] if match[1].isalnum() and match[1].isascii() else ""


_USUAL = str.maketrans(
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
    return _DASH_OF_A_NUMBER.sub("-", _DEGREE.sub("°", word.translate(_USUAL)))


_BULLET = re.compile(r"#{1,6}|[-*+•‣◦▪–]|>+")
_RULE = re.compile(r"([-*_=~])\1{2,}|\|[|:\s-]*|:?-+:?\|[|:\s-]*|(?:`{3,}|~{3,})\w*")
_EMPHASIS = re.compile(
    r"\*\*+|~~|`+"
    r"|(?<![^\W_])(?!\*\d+#?(?![\w*#]))[*_]+(?=\w)"  # but in *9, keys of a telephone
    r"|(?<=[^\s\d(=/x×])[*_]+(?![^\W_])"
)
_KEPT_SYMBOLS = "°℃℉№→×÷©♯♭"
_WIDE = {code: code - 0xFEE0 for code in range(0xFF01, 0xFF5F)}
_WIDE = {
    code: plain
    for code, plain in _WIDE.items()
    if chr(plain).isalnum() or chr(plain) in "%+-.~#@&/"
}


def without_markup(word: str, starts_line: bool) -> str:
    """Returns the word without emphasis, bullets and emoji; full-width digits and letters become
    ASCII."""
    if (word.isascii() and word.isalpha()) or IPA_BEGINS in word:
        return word
    if _RULE.fullmatch(word) or (starts_line and _BULLET.fullmatch(word)):
        return ""
    if starts_line:
        word = word.lstrip(">")
    word = _EMPHASIS.sub("", word.removeprefix("![").strip("[]|")).strip("[]|")
    if not word.isascii():
        word = in_usual_shape(word.translate(_WIDE))
        word = "".join(char for char in word if not _is_picture(char))
    return word


def _is_picture(char: str) -> bool:
    """Returns whether it is an emoji, a pictogram, or a modifier of one."""
    if char in _KEPT_SYMBOLS or char < "\x80":
        return False
    kind = unicodedata.category(char)
    return (
        kind in ("So", "Cf", "Co", "Cs", "Cn")
        or char in "\ufe0e\ufe0f\u20e3"
        or "🏻" <= char <= "🏿"
    )
