"""Understands callers of the front desk: the intent, and the day, number or name in the words.

Words come from a small recognizer, one in five wrong. A sentence has the intent of the example in
frontdesk_dialog.toml with which it shares most words, if there are enough.
"""

import re
import tomllib
from collections.abc import Mapping, Sequence
from difflib import SequenceMatcher
from enum import Enum
from functools import lru_cache, partial
from importlib import resources
from typing import Literal, NamedTuple, get_args

Day = Literal["monday", "tuesday", "wednesday", "thursday", "friday", "saturday", "sunday"]
DAYS = get_args(Day)
UNKNOWN = "unknown"
"""The intent of a sentence that resembles no example."""
ALIKE = 0.6
"""Minimum share of words (0 to 1) that a sentence has in common with an example of its intent."""
SAME_WORD = 0.84
"""Minimum similarity in spelling (0 to 1) of words that count as equal."""
STRANGE = 1.5
"""Weight of a word that only one of the two sentences has; a shared word has 1."""
MAX_NAME_WORDS = 4
"""Maximum words of a caller's name; a longer answer is no name."""


class Step(Enum):
    """What the front desk is waiting for; frontdesk_dialog.toml has each step's question."""

    OPEN = "open"
    MORE = "more"
    OFFER = "offer"
    NAME = "name"
    NUMBER = "number"
    TEXT = "text"
    CONFIRM = "confirm"
    DEPARTMENT = "department"
    CONNECT = "connect"
    ENDED = "ended"


class Answer(NamedTuple):
    """An intent: what callers say, and the answer."""

    said: Sequence[str] = ()
    misheard: Sequence[str] = ()
    answer: str = ""
    """A template with the fields of `FrontDesk._fields`."""
    to: str = ""
    """The next step, whose question follows the answer; "": stay. "confirm" first asks for the
    missing fields of the message, "name" for all of them."""
    act: Literal["", "hang up", "transfer", "take message"] = ""
    asks: bool = True
    """Whether the open question is asked again."""
    kind: Literal["control", "question", "chat"] = "chat"


class Prompt(NamedTuple):
    """A step: its question, and the kinds of intents that are understood in answer to it."""

    question: str
    understands: Sequence[str] = ("control", "question", "chat")
    means: Mapping[str, str] = {}
    """Intents that mean another one at this step."""
    gives_up: str = "lost"
    """The intent that follows after too many turns not understood."""

    def meaning(self, intent: str) -> str:
        """Returns what an intent means at this step; UNKNOWN if it is not understood here."""
        known = intent != UNKNOWN and INTENTS[intent].kind in self.understands
        return self.means.get(intent, intent if known else UNKNOWN)


_TABLE = tomllib.loads((resources.files(__package__) / "frontdesk_dialog.toml").read_text())
INTENTS = {name: Answer(**row) for name, row in _TABLE["intents"].items()}
STEPS = {step: Prompt(**_TABLE["steps"][step.value]) for step in Step}
_EXAMPLES = [
    (name, text.split()) for name, row in INTENTS.items() for text in (*row.said, *row.misheard)
]
_VOCABULARY = dict.fromkeys(word for _, words in _EXAMPLES for word in words)
_FILLERS, _QUESTIONS = _TABLE["fillers"].split(), _TABLE["questions"].split()
_FUNCTION_WORDS = {*_FILLERS, *_QUESTIONS, *_TABLE["function_words"].split()}
_WHEN = {"now": "now", "currently": "now", "still": "now", "today": "today", "tonight": "today",
         "late": "today", "tomorrow": "tomorrow", "weekend": "weekend", "christmas": "holiday",
         "easter": "holiday", "holiday": "holiday", "holidays": "holiday"}  # fmt: skip
_WEIGHTS = dict.fromkeys(_FUNCTION_WORDS, 0.2)
_WEIGHTS |= dict.fromkeys(_QUESTIONS, 0.6)
_WEIGHTS |= dict.fromkeys((*_FILLERS, *_WHEN, *DAYS, *(f"{day}s" for day in DAYS)), 0.05)
_OPENING = {"hours", "open", "opening", "closed", "close"}
_NUMBERS: list[str] = _TABLE["numbers"].split()
_TENS: list[str] = _TABLE["tens"].split()
_DIGITS = {word: str(number) for number, word in enumerate(_NUMBERS)}
_DIGITS |= {word: f"{tens}0" for tens, word in enumerate(_TENS, 2)}
_DIGITS |= {"oh": "0", "o": "0", "won": "1", "to": "2", "too": "2", "for": "4"}
_TIMES = {"double": 2, "triple": 3}
_NAME = re.compile(r"\b(?:name is|this is|i am|it is|call me) (.*)")
_NO_NAMES = _FUNCTION_WORDS | _DIGITS.keys() | {"name", "message"}
_FULL = {"can't": "can not", "won't": "will not", "n't": " not", "'s": " is", "'m": " am",
         "'re": " are", "'d": " would", "'ll": " will", "'ve": " have"}  # fmt: skip
_CONTRACTION = re.compile("|".join(rf"{short}\b" for short in _FULL))


def words_of(text: str) -> list[str]:
    """Returns lower-case words without punctuation, with contractions expanded and digits
    separated."""
    text = _CONTRACTION.sub(lambda match: _FULL[match[0]], text.lower().replace("\u2019", "'"))
    return re.findall(r"[^\W\d_]+|\d|\+", text)


@lru_cache(maxsize=16384)
def same_word(heard: str, meant: str) -> bool:
    """Returns whether a recognizer may have written `heard` for `meant`."""
    if heard == meant or heard[0] != meant[0] or heard in _FUNCTION_WORDS:
        return heard == meant
    if min(len(heard), len(meant)) < 5:  # "sell" is not "spell"
        return heard == meant + "s" or meant == heard + "s"
    return SequenceMatcher(None, heard, meant).ratio() >= SAME_WORD


@lru_cache(maxsize=4096)
def _meant(word: str) -> str:
    """Returns the word of the examples that was probably meant; otherwise the word itself."""
    return (
        word if word in _VOCABULARY else next(filter(partial(same_word, word), _VOCABULARY), word)
    )


def recognise(words: list[str]) -> tuple[str, float]:
    """Returns the best matching intent or UNKNOWN, and its score (0 to 1)."""
    said = {_meant(word) for word in words}
    likely = [(_alike(said, example), intent) for intent, example in _EXAMPLES]
    share, intent = max(likely, key=lambda each: each[0])
    return (intent, share) if share >= ALIKE else (UNKNOWN, 0.0)


def _alike(said: set[str], example: list[str]) -> float:
    both = sum(_WEIGHTS.get(word, 1.0) for word in said.intersection(example))
    rest = sum(_WEIGHTS.get(word, STRANGE) for word in said.symmetric_difference(example))
    return both / (both + rest / 2)


def may_ask_for_hours(words: list[str]) -> bool:
    """Returns whether the words name a day of the week and opening hours, or hardly anything
    else."""
    others = [word for word in words if word not in _FUNCTION_WORDS and day_in([word]) not in DAYS]
    return day_in(words) in DAYS and (len(others) <= 1 or not _OPENING.isdisjoint(others))


def day_in(words: list[str]) -> str:
    """Returns the day mentioned: one of `DAYS`, "now", "today", "tomorrow", "weekend", "holiday" or
    ""."""
    for word in words:
        day = next((day for day in DAYS if same_word(word.removesuffix("s") or word, day)), "")
        if found := _WHEN.get(word, day):
            return found
    return ""


def number_in(words: list[str]) -> str:
    """Returns the digits of a sentence that is mostly a number: "+4911" for "plus four nine double
    one"; otherwise ""."""
    digits, known = "", 0
    for before, word in zip(["", *words], words, strict=False):
        digit = str(int(word)) if word.isdecimal() else _DIGITS.get(word, "")
        if before in _TENS and "1" <= digit <= "9" and len(digit) == 1:
            digits = digits[:-1]
        digits += digit * _TIMES.get(before, 1)
        known += bool(digit) or word in _TIMES
    sign = "+" if {"plus", "+"} & {*words} else ""
    return sign + digits if digits and known * 2 >= len(words) else ""


def name_in(words: list[str]) -> str:
    """Returns a caller's name in title case, all words or those after "my name is"; "" for none."""
    said = _NAME.search(" ".join(words))
    name = [word for word in (said[1].split() if said else words) if word not in _FILLERS]
    if len(name) > MAX_NAME_WORDS or any(w in _NO_NAMES or not w.isalpha() for w in name):
        return ""
    return " ".join(name).title()


def spoken_cardinal(number: int) -> str:
    """Returns 0 to 99 in words."""
    tens, unit = divmod(number, 10)
    if tens < 2:
        return _NUMBERS[number]
    return f"{_TENS[tens - 2]} {_NUMBERS[unit]}".removesuffix(" zero")


def spoken_time(minutes: int) -> str:
    """Returns a time of day, in minutes since midnight, as spoken: "five thirty", "noon"."""
    hour, minute = divmod(minutes, 60)
    if not minute and hour % 12 == 0:
        return "noon" if hour == 12 else "midnight"
    past = f" {'oh ' if minute < 10 else ''}{spoken_cardinal(minute)}" if minute else ""
    return spoken_cardinal((hour - 1) % 12 + 1) + past


def spoken_digits(number: str) -> str:
    """Returns a telephone number digit by digit in groups of three, the last of up to five."""
    groups = re.findall(r"\d{3}(?=\d{3})|\d+", number)
    spoken = ", ".join(" ".join(_NUMBERS[int(digit)] for digit in group) for group in groups)
    return f"plus {spoken}" if number.startswith("+") else spoken
