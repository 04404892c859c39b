"""Words, numbers, letters and names out of badly recognised speech, and back into sentences.

Everything here is a pure function of text as a small recogniser writes it: lower case, no
punctuation, about one word in five wrong, and wrong by its sound.
"""

import re
from collections.abc import Sequence
from difflib import SequenceMatcher, get_close_matches
from functools import lru_cache
from typing import Literal, get_args

MAX_NUMBER_DIGITS = 15
"""The longest telephone number (ITU-T E.164)."""
MIN_NUMBER_DIGITS = 5
MAX_NAME_WORDS = 4
MAX_NAME_CHARS = 40
SAME_WORD = 0.84
"""How alike two words must be spelled (0 to 1) to be taken for the same."""

Day = Literal["monday", "tuesday", "wednesday", "thursday", "friday", "saturday", "sunday"]
DAYS = get_args(Day)

_FULL = {"can't": "can not", "won't": "will not", "n't": " not", "'s": " is", "'m": " am",
         "'re": " are", "'d": " would", "'ll": " will", "'ve": " have"}  # fmt: skip
_CONTRACTION = re.compile("|".join(rf"{short}\b" for short in _FULL))


def word_set(text: str) -> frozenset[str]:
    return frozenset(text.split())


FILLERS = word_set("please um uh well so oh hello hi hey sorry")
FUNCTION_WORDS = FILLERS | word_set(
    """a an the to of for in on at is are am was be been do does did can could will would should i
    you we it he she they my your our me us this that there here and or but what when where who how
    which whether if with about by from has have had like want need get just any some not no yes
    yeah thank thanks good today tomorrow now very much stop wait"""
)
"""They say little of what a sentence is about. "Stop" and "wait" interrupt before a question."""


def words_of(text: str) -> list[str]:
    """Lower-case words without punctuation, contractions spelled out, each digit on its own."""
    text = _CONTRACTION.sub(lambda match: _FULL[match[0]], text.lower().replace("\u2019", "'"))
    return re.findall(r"[^\W\d_]+|\d|\+", text)


_SOUNDS = tuple(
    (re.compile(pattern), sound)
    for pattern, sound in (
        (r"tion", "shn"), (r"ght", "t"), (r"ph", "f"), (r"wh", "w"), (r"\bkn", "n"),
        (r"\bwr", "r"), (r"qu", "kw"), (r"x", "ks"), (r"[sc]h", "j"), (r"ge\b|dge?", "j"),
        (r"c(?=[eiy])|z", "s"), (r"[cgq]", "k"), (r"th|d", "t"), (r"b", "p"), (r"v", "f"),
        (r"h|\s+", ""), (r"[eiy][aeiouy]*", "e"), (r"[ou][aeiouy]*", "o"),
        (r"a[aeiouy]*", "a"), (r"(.)\1+", r"\1"),
    )
)  # fmt: skip


@lru_cache(maxsize=4096)
def sound_of(text: str) -> str:
    """A rough phonetic spelling: voiced and voiceless alike, three vowels, no spaces."""
    for pattern, sound in _SOUNDS:
        text = pattern.sub(sound, text)
    return text


@lru_cache(maxsize=16384)
def same_word(heard: str, meant: str) -> bool:
    """Whether a recogniser may have written `heard` for `meant`. Short words and
    those of FUNCTION_WORDS must be equal."""
    short = min(len(heard), len(meant)) < 4
    if heard == meant or short or heard[0] != meant[0] or heard in FUNCTION_WORDS:
        return heard == meant
    sound = sound_of(heard)
    if len(sound) >= 4 and sound == sound_of(meant):
        return True
    if min(len(heard), len(meant)) < 5:  # "sell" is not "spell"
        return heard == meant + "s" or meant == heard + "s"
    return SequenceMatcher(None, heard, meant).ratio() >= SAME_WORD


_WHEN = {"now": "now", "currently": "now", "still": "now", "today": "today", "tonight": "today",
         "late": "today", "tomorrow": "tomorrow", "weekend": "weekend", "weekends": "weekend",
         "christmas": "holiday", "easter": "holiday", "holiday": "holiday",
         "holidays": "holiday"}  # fmt: skip


def day_in(words: Sequence[str]) -> str:
    """The day spoken of: one of `DAYS`, "now", "today", "tomorrow", "weekend", "holiday" or ""."""
    for word in words:
        if word in _WHEN:
            return _WHEN[word]
        for day in DAYS:
            if same_word(word, day) or same_word(word, day + "s"):
                return str(day)
    return ""


# Numbers ---------------------------------------------------------------------------------------

_NUMBERS = (
    *("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten"),
    *("eleven", "twelve", "thirteen", "fourteen", "fifteen", "sixteen", "seventeen"),
    *("eighteen", "nineteen"),
)
_TENS = ("twenty", "thirty", "forty", "fifty", "sixty", "seventy", "eighty", "ninety")
_UNITS = dict(zip(_NUMBERS, map(str, range(20)), strict=True))
_UNITS |= {"oh": "0", "nil": "0", "nought": "0", "niner": "9", "fife": "5"}
_MAYBE = {"o": "0", "or": "0", "owe": "0", "won": "1", "to": "2", "too": "2", "tree": "3",
          "for": "4", "fore": "4", "sex": "6", "sicks": "6", "ate": "8", "hate": "8",
          "nein": "9", "mine": "9"}  # fmt: skip
"""Words a digit is mistaken for; they count only next to a digit."""
_TIMES = {"double": 2, "triple": 3, "treble": 3}
_ORDINALS = ("first", "second", "third", "fourth", "fifth", "sixth", "seventh", "eighth",
             "ninth", "tenth", "eleventh", "twelfth")  # fmt: skip


def _is_number(word: str) -> bool:
    return word in _UNITS or word in _TENS or word in _TIMES or word.isdecimal()


def digits_in(words: Sequence[str]) -> str:
    """All digits in spoken order ("double five oh twenty three" is "55023"); "+" may lead."""
    out: list[str] = []
    for i, word in enumerate(words):
        before, after = words[i - 1] if i else "", words[i + 1] if i + 1 < len(words) else ""
        if before in _TENS and 0 < int(_UNITS.get(word, "0")) < 10:
            out[-1] = out[-1][0] + _UNITS[word]
        elif word in _UNITS or word.isdecimal():
            out.append((_UNITS.get(word) or str(int(word))) * _TIMES.get(before, 1))
        elif word in _TENS:
            out.append(f"{_TENS.index(word) + 2}0")
        elif word in _MAYBE and (_is_number(before) or _is_number(after)):
            out.append(_MAYBE[word] * _TIMES.get(before, 1))
        elif word in ("hundred", "thousand") and out:
            out.append("00" if word == "hundred" else "000")
        elif word in ("+", "plus") and not out:
            out.append("+")
    digits = "".join(out)
    return "" if digits == "+" else digits


def cardinal_in(words: Sequence[str]) -> int:
    """The last plain number below a hundred: 20 in "count from one to twenty"; 0 for none."""
    at = next((i for i in reversed(range(len(words))) if _is_number(words[i])), -1)
    pair = words[at - 1 : at + 1] if at > 0 and words[at - 1] in _TENS else words[at : at + 1]
    return int(digits_in(pair) or 0) % 100 if at >= 0 else 0


def is_mostly_number(words: Sequence[str]) -> bool:
    """Whether the sentence gives a number, not merely uses one ("just one moment")."""
    known = sum(_is_number(word) or word in _MAYBE for word in words)
    return len(digits_in(words)) >= 3 or (known > 0 and known * 2 >= len(words))


def correct_number(number: str, words: Sequence[str]) -> str:
    """The number as corrected by "the last digit is five", "it ends in four two", "six, not
    nine" or a whole new number; "" when these words correct nothing."""
    said, sentence, place = digits_in(words), f" {' '.join(words)} ", -1
    ordinals = [_ORDINALS.index(word) for word in words if word in _ORDINALS]
    right, no, wrong = sentence.replace(" instead of ", " not ").partition(" not ")
    if no:
        if but := re.search(r"(.*)\b(?:but|is)\b(.*)", wrong):
            wrong, right = but.groups()
        old, new = digits_in(wrong.split()), digits_in(right.split())
        if old and new and number.count(old) == 1:
            return number.replace(old, new)
    elif re.search(r" (last|end|ends|ending) ", sentence):
        # "second to last" and "next to last" name the digit before the last one.
        place = len(number) - len(said) - (ordinals == [1] or "next" in words)
    elif ordinals:
        place = ordinals[0]
    elif re.search(r" (starts?|begins) ", sentence):
        place = 0
    if said and 0 <= place <= len(number) - len(said):
        return number[:place] + said + number[place + len(said) :]
    return said if MIN_NUMBER_DIGITS <= len(said) <= MAX_NUMBER_DIGITS else ""


# Letters and names -----------------------------------------------------------------------------

_LETTERS = {"hey": "a", "be": "b", "bee": "b", "see": "c", "sea": "c", "dee": "d", "he": "e",
            "eff": "f", "gee": "g", "aitch": "h", "eye": "i", "jay": "j", "kay": "k",
            "okay": "ok", "el": "l", "ell": "l", "elle": "l", "em": "m", "him": "m", "en": "n",
            "end": "n", "oh": "o", "owe": "o", "pee": "p", "pea": "p", "peak": "p", "cue": "q",
            "queue": "q", "are": "r", "our": "r", "ass": "s", "yes": "s", "tea": "t",
            "tee": "t", "to": "t", "you": "u", "the": "v", "vee": "v", "we": "v", "ex": "x",
            "why": "y", "said": "z", "zed": "z", "zee": "z"}  # fmt: skip
_NATO = ("alpha", "bravo", "charlie", "delta", "echo", "foxtrot", "golf", "hotel", "india",
         "juliet", "kilo", "lima", "mike", "november", "oscar", "papa", "quebec", "romeo",
         "sierra", "tango", "uniform", "victor", "whiskey", "xray", "yankee", "zulu")  # fmt: skip
_BETWEEN = {"and", "then", "capital", "letter", "dash", "space", "with", "spelled", "spelt"}


def _letter(word: str) -> tuple[str, bool]:
    """The letter a word stands for and whether that is beyond doubt."""
    if len(word) == 1 and word.isalpha():
        return word, word not in "ai"
    if any(same_word(word, nato) for nato in _NATO):
        return word[0], True
    return _LETTERS.get(word, ""), False


def _spelling_at_the_end(words: Sequence[str]) -> tuple[int, str]:
    """Where the spelling begins that ends the sentence, and the word spelled."""
    letters: list[str] = []
    sure, i = 0, len(words)
    while i:
        word, before = words[i - 1], words[i - 2] if i > 1 else ""
        if i >= 4 and before == "in" and words[i - 3] in ("as", "like"):
            # The example word is recognised better than the letter before it.
            letter, is_sure, i = word[0], True, i - 4
        elif before == "double" and word in ("you", "u"):
            letter, is_sure, i = "w", True, i - 2
        else:
            letter, is_sure = _letter(word)
            if not letter and word not in _BETWEEN:
                break
            i -= 1
            if letter and before in _TIMES:
                letter, is_sure, i = letter * _TIMES[before], True, i - 1
        letters.append(letter)
        sure += is_sure
    spelled = "".join(reversed(letters))
    if len(spelled) < 2 or not sure or sure * 2 < len(spelled) - 1:
        return len(words), ""
    return i, spelled


def spelling_in(words: Sequence[str]) -> str:
    """The word spelled out at the end of a sentence, lower case; "" when nothing is spelled.

    Takes letters ("j o h n"), letters written as words ("jay oh"), the NATO alphabet, "b as in
    boy" and "double l". Two letters at least, one of them beyond doubt.
    """
    return _spelling_at_the_end(words)[1]


_NAME_LEADS = ("my name is", "the name is", "name is", "this is", "i am called", "i am",
               "it is for", "it is", "call me", "you are talking to", "the caller is")  # fmt: skip
_NO_NAMES = word_set(
    """what when where who how why which do does did not can could would will should you your my
    me it that this there is are was be the a an to of for from with about want need have has like
    tell give take leave say know think please and or but if then so because on in at up hello hi
    hey yes no yeah okay well um uh sure sorry thanks thank number name message help we they he she
    his her them i open close closed hours speak talk talking today tomorrow"""
)
_NAME_TRIM = word_set(
    """hello hi hey yes no now yeah okay well um uh sure sorry thanks thank you oh so please
    speaking here and good morning"""
)


def name_in(words: Sequence[str]) -> tuple[str, bool]:
    """A caller's name in title case ("" when there is none) and whether they said it was one."""
    sentence = f" {' '.join(words)} "
    lead = next((lead for lead in _NAME_LEADS if f" {lead} " in sentence), "")
    rest = sentence.partition(f" {lead} ")[2].split() if lead else list(words)
    start, spelled = _spelling_at_the_end(rest)
    if spelled:
        said = name_in(rest[:start])[0]
        return respell(said, spelled) if said else spelled.title(), True
    while rest and rest[0] in _NAME_TRIM:
        rest.pop(0)
    while rest and rest[-1] in _NAME_TRIM:
        rest.pop()
    name = " ".join(rest)
    fits = 0 < len(rest) <= MAX_NAME_WORDS and 1 < len(name) <= MAX_NAME_CHARS
    if not fits or any(w in _NO_NAMES or w in _UNITS or not w.isalpha() for w in rest):
        return "", False
    return name.title(), bool(lead)


def respell(name: str, spelled: str) -> str:
    """The name with the spelled word put for the word of it that it must correct."""
    parts = name.split()
    if near := get_close_matches(spelled.title(), parts, 1, 0.5):
        parts[parts.index(near[0])] = spelled.title()
        return " ".join(parts)[:MAX_NAME_CHARS]
    return spelled.title()[:MAX_NAME_CHARS]


# Saying ----------------------------------------------------------------------------------------


def say_cardinal(number: int) -> str:
    """0 to 99 in words."""
    if number < 20:
        return _NUMBERS[number]
    return f"{_TENS[number // 10 - 2]} {_NUMBERS[number % 10] if number % 10 else ''}".strip()


def say_ordinal(number: int) -> str:
    """1 to 31 in words."""
    if number > 20 and number % 10:
        return f"{say_cardinal(number // 10 * 10)} {_ORDINALS[number % 10 - 1]}"
    if number <= 12:
        return _ORDINALS[number - 1]
    return re.sub("y$", "ie", say_cardinal(number)) + "th"


def plain_number(text: str) -> str:
    """A telephone number as written, as its digits; "" for what is none that can be called."""
    number = re.sub(r"[\s().-]", "", text)
    return number if re.fullmatch(r"\+?[0-9]{5,15}", number) else ""


def say_digits(digits: str) -> str:
    return " ".join(_NUMBERS[int(digit)] for digit in digits)


def say_number(number: str) -> str:
    """A telephone number digit by digit in groups of at most four, the shorter ones first."""
    digits = number.lstrip("+")
    count = max(1, -(-len(digits) // 4))
    ends = [len(digits) * (group + 1) // count for group in range(count)]
    groups = [digits[a:b] for a, b in zip([0, *ends], ends, strict=False)]
    return ("plus " if number.startswith("+") else "") + ", ".join(map(say_digits, groups))


def say_list(parts: Sequence[str], last: str = "and") -> str:
    """ "one, two and three" """
    return ", ".join(parts[:-1]) + f" {last} " + parts[-1] if len(parts) > 1 else "".join(parts)


def say_letters(name: str) -> str:
    """A name letter by letter: "J, O, H, N, then S, M, I, T, H"."""
    return ", then ".join(", ".join(part.upper()) for part in name.split())


def say_clock(minutes: int) -> str:
    """A time of day, in minutes since midnight, as people say it: "five thirty", "noon"."""
    hour, minute = divmod(minutes, 60)
    if not minute and hour % 12 == 0:
        return "noon" if hour == 12 else "midnight"
    spoken = say_cardinal((hour - 1) % 12 + 1)
    if not minute:
        return spoken
    return f"{spoken} {'oh ' if minute < 10 else ''}{say_cardinal(minute)}"


def say_plainly(text: str) -> str:
    """Text fit to be spoken: each digit as a word, no markup."""
    text = re.sub(r"[^\w\s.,;:!?'’-]|_", " ", text)
    return " ".join(re.sub(r"\d", lambda match: f" {say_digits(match[0])} ", text).split())
