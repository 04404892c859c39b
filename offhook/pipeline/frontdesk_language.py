"""Numbers, letters, names and days, out of badly recognised words and back into sentences.

Everything here is a pure function of text as a small recogniser writes it: lower case, no
punctuation, about one word in five wrong, and wrong by its sound.
"""

import re
from collections import Counter
from collections.abc import Sequence
from difflib import SequenceMatcher, get_close_matches
from functools import lru_cache

MAX_HEARD_CHARS = 1000
"""More of one turn than this is not looked at."""
MAX_NUMBER_DIGITS = 15
"""The longest telephone number (ITU-T E.164)."""
MIN_NUMBER_DIGITS = 5
MAX_NAME_WORDS = 4
MAX_NAME_CHARS = 40
SAME_WORD = 0.84
"""How alike two words must be spelled (0 to 1) to be taken for the same."""

DAYS = ("monday", "tuesday", "wednesday", "thursday", "friday", "saturday", "sunday")

_CONTRACTIONS = tuple(
    (re.compile(short + r"\b"), full)
    for short, full in (
        ("can't", "can not"), ("won't", "will not"), ("n't", " not"), ("'s", " is"), ("'m", " am"),
        ("'re", " are"), ("'d", " would"), ("'ll", " will"), ("'ve", " have"),
    )
)  # fmt: skip


def words_of(text: str) -> list[str]:
    """Lower-case words without punctuation, contractions spelled out, each digit on its own."""
    text = text[:MAX_HEARD_CHARS].lower().replace("’", "'")
    for short, full in _CONTRACTIONS if "'" in text else ():
        text = short.sub(full, text)
    return re.findall(r"[^\W\d_]+|\d|\+", text)


_SOUNDS = tuple(
    (re.compile(pattern), sound)
    for pattern, sound in (
        (r"tion", "shn"), (r"ght", "t"), (r"ph", "f"), (r"wh", "w"), (r"\bkn", "n"),
        (r"\bwr", "r"), (r"qu", "kw"), (r"x", "ks"), (r"[sc]h", "j"), (r"ge\b|dge?", "j"),
        (r"c(?=[eiy])|z", "s"), (r"[cgq]", "k"), (r"th|d", "t"), (r"b", "p"), (r"v", "f"),
        (r"h", ""), (r"\s+", ""), (r"[eiy][aeiouy]*", "e"), (r"[ou][aeiouy]*", "o"),
        (r"a[aeiouy]*", "a"), (r"(.)\1+", r"\1"),
    )
)  # fmt: skip


@lru_cache(maxsize=4096)
def sound_of(text: str) -> str:
    """A rough phonetic spelling: voiced and voiceless alike, three vowels, no spaces."""
    for pattern, sound in _SOUNDS:
        text = pattern.sub(sound, text)
    return text


@lru_cache(maxsize=4096)
def letters_of(text: str) -> int:
    """The letters as one number, counted in unary, so that comparing two is one operation."""
    counts = Counter(ord(char) % 32 for char in text)  # letters beyond z share the places of a to z
    return sum(((1 << min(count, 64)) - 1) << 64 * place for place, count in counts.items())


def likeness_bound(a: str, b: str) -> float:
    """What `SequenceMatcher.ratio` of two texts cannot exceed, whatever the order of letters."""
    return 2 * (letters_of(a) & letters_of(b)).bit_count() / (len(a) + len(b))


@lru_cache(maxsize=16384)
def same_word(heard: str, meant: str) -> bool:
    """Whether a recogniser may have written `heard` for `meant`; short words must be equal."""
    if heard == meant:
        return True
    if min(len(heard), len(meant)) < 4 or heard[0] != meant[0]:
        return False
    sound = sound_of(heard)
    if len(sound) >= 4 and sound == sound_of(meant):
        return True
    if len(meant) < 5 or likeness_bound(heard, meant) < SAME_WORD:
        return False
    return SequenceMatcher(None, heard, meant).ratio() >= SAME_WORD


# Days ------------------------------------------------------------------------------------------


def day_in(words: Sequence[str]) -> str | None:
    """The day spoken of: a name of `DAYS`, "now", "today", "tomorrow" or "weekend"."""
    for word in words:
        if word in ("now", "today", "tomorrow", "weekend", "weekends", "currently", "still"):
            return {"weekends": "weekend", "currently": "now", "still": "now"}.get(word, word)
        if word in ("tonight", "late"):
            return "today"
        for day in DAYS:
            if same_word(word, day) or same_word(word, day + "s"):
                return day
    return None


# Numbers ---------------------------------------------------------------------------------------

_UNITS = {"zero": "0", "one": "1", "two": "2", "three": "3", "four": "4", "five": "5",
          "six": "6", "seven": "7", "eight": "8", "nine": "9", "oh": "0", "nil": "0",
          "nought": "0", "niner": "9", "fife": "5"}  # fmt: skip
_TEENS = {"ten": "10", "eleven": "11", "twelve": "12", "thirteen": "13", "fourteen": "14",
          "fifteen": "15", "sixteen": "16", "seventeen": "17", "eighteen": "18",
          "nineteen": "19"}  # fmt: skip
_TENS = {"twenty": "2", "thirty": "3", "forty": "4", "fifty": "5", "sixty": "6",
         "seventy": "7", "eighty": "8", "ninety": "9"}  # fmt: skip
_MAYBE = {"o": "0", "or": "0", "owe": "0", "won": "1", "to": "2", "too": "2", "tree": "3",
          "for": "4", "fore": "4", "sex": "6", "sicks": "6", "ate": "8", "hate": "8",
          "nein": "9", "mine": "9"}  # fmt: skip
"""Words a digit is mistaken for; they count only next to a digit."""
_TIMES = {"double": 2, "triple": 3, "treble": 3}


def digits_in(words: Sequence[str]) -> str:
    """All digits in spoken order ("double five oh twenty three" is "55023"); "+" may lead."""
    out: list[str] = []
    for i, word in enumerate(words):
        before = words[i - 1] if i else ""
        if before in _TENS and word in _UNITS and _UNITS[word] != "0":
            out[-1] = _TENS[before] + _UNITS[word]
        elif digit := _digit(words, i):
            out.append(digit * _TIMES.get(before, 1))
        elif word == "hundred" and out:
            out.append("00")
        elif word == "thousand" and out:
            out.append("000")
        elif word in ("+", "plus") and not out:
            out.append("+")
    digits = "".join(out)
    return "" if digits == "+" else digits


def _digit(words: Sequence[str], i: int) -> str:
    word = words[i]
    if word.isdecimal():
        return str(int(word))
    if word in _TENS:
        return _TENS[word] + "0"
    if word in _MAYBE:
        near = [*words[max(0, i - 1) : i], *words[i + 1 : i + 2]]
        return _MAYBE[word] if any(_is_number(other) for other in near) else ""
    return _UNITS.get(word) or _TEENS.get(word, "")


def _is_number(word: str) -> bool:
    return word in _UNITS or word in _TEENS or word in _TENS or word in _TIMES or word.isdecimal()


def is_mostly_number(words: Sequence[str]) -> bool:
    """Whether the sentence gives a number, not merely uses one ("just one moment")."""
    known = sum(_is_number(word) or word in _MAYBE for word in words)
    return len(digits_in(words)) >= 3 or (known > 0 and known * 2 >= len(words))


_ORDINALS = ("first", "second", "third", "fourth", "fifth", "sixth", "seventh", "eighth",
             "ninth", "tenth", "eleventh", "twelfth")  # fmt: skip


def correct_number(number: str, words: Sequence[str]) -> str | None:
    """The number as corrected by "the last digit is five", "it ends in four two", "six, not
    nine" or a whole new number; None when these words correct nothing."""
    said = digits_in(words)
    if not said:
        return None
    sentence = " ".join(words)
    if " not " in f" {sentence} " or "instead of" in sentence:
        if (swapped := _swap(number, sentence)) is not None:
            return swapped
    elif (place := _place(number, words, len(said))) is not None:
        return number[:place] + said + number[place + len(said) :]
    return said if MIN_NUMBER_DIGITS <= len(said) <= MAX_NUMBER_DIGITS else None


def _swap(number: str, sentence: str) -> str | None:
    if "instead of" in sentence:
        right, _, wrong = sentence.partition("instead of")
    elif match := re.search(r"\bnot\b(.*?)\b(?:but|it is|is)\b(.*)", sentence):
        wrong, right = match.groups()
    else:
        right, _, wrong = sentence.partition(" not ")
    old, new = digits_in(wrong.split()), digits_in(right.split())
    return number.replace(old, new) if old and new and number.count(old) == 1 else None


def _place(number: str, words: Sequence[str], count: int) -> int | None:
    """Where in `number` the `count` corrected digits stand."""
    last = "last" in words or "end" in words or "ends" in words or "ending" in words
    ordinals = [_ORDINALS.index(word) for word in words if word in _ORDINALS]
    if last:
        # "second to last" and "next to last" name the digit before the last one.
        back = 1 if (ordinals == [1] or "next" in words) else 0
        place = len(number) - back - count
    elif ordinals:
        place = ordinals[0]
    elif "starts" in words or "start" in words or "begins" in words:
        place = 0
    else:
        return None
    return place if place >= 0 and place + count <= len(number) else None


def cardinal_in(words: Sequence[str]) -> int | None:
    """The last plain number below a hundred: 20 in "count from one to twenty"."""
    found = None
    for i, word in enumerate(words):
        if i and words[i - 1] in _TENS and word in _UNITS:
            found = int(_TENS[words[i - 1]] + _UNITS[word])
        elif i and words[i - 1].isdecimal() and word.isdecimal():
            found = int(words[i - 1] + word)
        elif digits := (_digit(words, i) if _is_number(word) else ""):
            found = int(digits)
    return found


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
_NATO_HEARD = {"alfa": "a", "eco": "e", "whisky": "w", "kilos": "k", "leema": "l", "juliette": "j"}
_BETWEEN = {"and", "then", "capital", "letter", "dash", "space", "with", "spelled", "spelt"}


def spelling_in(words: Sequence[str]) -> str:
    """The word spelled out at the end of a sentence, lower case; "" when nothing is spelled.

    Takes letters ("j o h n"), letters written as words ("jay oh"), the NATO alphabet, "b as in
    boy" and "double l". Two letters at least, one of them beyond doubt.
    """
    letters: list[str] = []
    sure = 0
    i = len(words) - 1
    while i >= 0:
        if i >= 3 and words[i - 2 : i] in (["as", "in"], ["like", "in"]):
            # The example word is recognised better than the letter before it.
            letters.append(words[i][0])
            sure, i = sure + 1, i - 4
            continue
        if i >= 1 and words[i - 1] == "double" and words[i] in ("you", "u"):
            letters.append("w")
            sure, i = sure + 1, i - 2
            continue
        letter, is_sure = _letter(words[i])
        if not letter and words[i] not in _BETWEEN:
            break
        if letter and i and words[i - 1] in ("double", "triple"):
            letter, is_sure, i = letter * _TIMES[words[i - 1]], True, i - 1
        letters.append(letter)
        sure, i = sure + is_sure, i - 1
    spelled = "".join(reversed(letters))
    return spelled if sure and sure * 2 >= len(spelled) - 1 and len(spelled) >= 2 else ""


def _letter(word: str) -> tuple[str, bool]:
    """The letter a word stands for and whether that is beyond doubt."""
    if len(word) == 1 and word.isalpha():
        return word, word not in "ai"
    if word in _NATO_HEARD:
        return _NATO_HEARD[word], True
    for nato in _NATO:
        if same_word(word, nato):
            return nato[0], True
    return _LETTERS.get(word, ""), False


_NAME_LEADS = ("my name is", "the name is", "name is", "this is", "i am called", "i am",
               "it is for", "it is", "call me", "you are talking to", "the caller is")  # fmt: skip
_NOT_IN_NAMES = frozenset(
    re.findall(
        r"\w+",
        """what when where who why how which do does did not can could would will should you your my
    me it that this there is are was be the a an to of for from with about want need have has
    like tell give take leave say know think please and or but if then so because on in at up
    hello hi hey yes no yeah okay well um uh sure sorry thanks thank number name message help
    we they he she his her them i open close closed hours speak talk talking today tomorrow""",
    )
)
_NAME_TRIM = frozenset(
    re.findall(
        r"\w+",
        """hello hi hey yes no now yeah okay well um uh sure sorry thanks thank you oh so please
    speaking here and good morning""",
    )
)


def name_in(words: Sequence[str]) -> tuple[str, bool]:
    """A caller's name in title case ("" when there is none) and whether they said it was one."""
    sentence = " ".join(words)
    lead = next((lead for lead in _NAME_LEADS if f" {lead} " in f" {sentence} "), "")
    rest = f" {sentence} ".partition(f" {lead} ")[2].split() if lead else list(words)
    if spelled := spelling_in(rest):
        said, _ = name_in(_without_spelling(rest))
        return respell(said, spelled) if said else spelled.title(), True
    while rest and rest[0] in _NAME_TRIM:
        rest.pop(0)
    while rest and rest[-1] in _NAME_TRIM:
        rest.pop()
    name = " ".join(rest)
    fits = 0 < len(rest) <= MAX_NAME_WORDS and 1 < len(name) <= MAX_NAME_CHARS
    if not fits or any(w in _NOT_IN_NAMES or w in _UNITS or not w.isalpha() for w in rest):
        return "", False
    return name.title(), bool(lead)


def _without_spelling(words: Sequence[str]) -> list[str]:
    kept = list(words)
    while kept and (_letter(kept[-1])[0] or kept[-1] in _BETWEEN or kept[-2:-1] == ["in"]):
        kept.pop()
    return kept


def respell(name: str, spelled: str) -> str:
    """The name with the spelled word put for the word of it that it must correct."""
    parts = name.split()
    if near := get_close_matches(spelled.title(), parts, 1, 0.5):
        parts[parts.index(near[0])] = spelled.title()
        return " ".join(parts)[:MAX_NAME_CHARS]
    return spelled.title()[:MAX_NAME_CHARS]


# Saying ----------------------------------------------------------------------------------------

_SAID_UNITS = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")


def say_cardinal(number: int) -> str:
    """0 to 99 in words."""
    if number < 10:
        return _SAID_UNITS[number]
    if number < 20:
        return list(_TEENS)[number - 10]
    tens = list(_TENS)[number // 10 - 2]
    return tens if number % 10 == 0 else f"{tens} {_SAID_UNITS[number % 10]}"


def say_ordinal(number: int) -> str:
    """1 to 31 in words."""
    if number <= 12:
        return _ORDINALS[number - 1]
    if number < 20:
        return say_cardinal(number) + "th"
    if number % 10 == 0:
        return say_cardinal(number)[:-1] + "ieth"
    return f"{say_cardinal(number - number % 10)} {_ORDINALS[number % 10 - 1]}"


def plain_number(text: str) -> str:
    """A telephone number as written, as its digits; "" for what is none that can be called."""
    number = re.sub(r"[\s().-]", "", text)
    digits = number.removeprefix("+")
    fits = MIN_NUMBER_DIGITS <= len(digits) <= MAX_NUMBER_DIGITS
    return number if fits and digits.isascii() and digits.isdigit() else ""


def say_number(number: str) -> str:
    """A telephone number digit by digit in groups of at most four, the shorter ones first."""
    digits = number.lstrip("+")
    count = max(1, -(-len(digits) // 4))
    short, longer = divmod(len(digits), count)
    groups, start = [], 0
    for group in range(count):
        end = start + short + (group >= count - longer)
        groups.append(" ".join(_SAID_UNITS[int(digit)] for digit in digits[start:end]))
        start = end
    return ("plus " if number.startswith("+") else "") + ", ".join(groups)


def say_list(parts: Sequence[str], last: str = "and") -> str:
    """ "one, two and three" """
    return ", ".join(parts[:-1]) + f" {last} " + parts[-1] if len(parts) > 1 else "".join(parts)


def say_letters(name: str) -> str:
    """A name letter by letter: "J, O, H, N, then S, M, I, T, H"."""
    return ", then ".join(", ".join(part.upper()) for part in name.split())


def say_clock(minutes: int) -> str:
    """A time of day, in minutes since midnight, as people say it: "five thirty", "noon"."""
    if minutes in (0, 24 * 60):
        return "midnight"
    if minutes == 12 * 60:
        return "noon"
    hour, minute = divmod(minutes, 60)
    spoken = say_cardinal((hour - 1) % 12 + 1)
    if minute == 0:
        return spoken
    return f"{spoken} {'oh ' if minute < 10 else ''}{say_cardinal(minute)}"


def say_plainly(text: str) -> str:
    """Text fit to be spoken: numbers in words (to 99, else digit by digit), no markup."""
    text = re.sub(r"[^\w\s.,;:!?'’-]|_", " ", text)
    text = re.sub(r"\b(0*[1-9]|[12]\d|3[01])(?:st|nd|rd|th)\b", _say_ordinal, text)
    return " ".join(re.sub(r"\d+", _say_digits, text).split())


def _say_ordinal(match: re.Match[str]) -> str:
    return say_ordinal(int(match[1]))


def _say_digits(match: re.Match[str]) -> str:
    if len(match[0]) <= 2 and not match[0].startswith("0"):
        return f" {say_cardinal(int(match[0]))} "
    return " " + " ".join(_SAID_UNITS[int(digit)] for digit in match[0]) + " "
