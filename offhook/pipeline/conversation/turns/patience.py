"""What a caller's words say about the end of the turn: one pure function of what the caller has
said and what the agent has asked.

The model hears how a sentence is spoken and is often wrong: it takes "my phone number is four one
five" for a whole one. So the words come first: a sentence that breaks off, a number or a name that
is being dictated, and a caller who looks something up are waited for, whatever the model says. A
question and a short answer are whole; any other sentence may go on with another.
"""

import re
from enum import Enum, auto
from functools import lru_cache
from itertools import pairwise

from offhook.pipeline.conversation.turns.unfinished_words import (
    ALPHABET,
    ENGLISH,
    LANGUAGES,
    Words,
)

SHORT_ANSWER_WORDS = 4
"""Longest answer in which a verb behind a pronoun ends the sentence: "yes, I can"."""
MANY_DIGITS = 16
"""A number of unknown length with so many digits is complete."""
FEW_DIGITS = 3
"""So many digits at the end, one by one, are dictated, whatever the agent has asked; a year or an
amount has fewer words."""
UNKNOWN = ("", "und")
"""Codes of a language that nobody has determined."""
REFUSALS = frozenset(("no", "nope", "nein", "nee", "non"))
REFUSAL_WORDS = 3
"""A refusal of so many words dictates nothing."""
CORRECTION_WORDS = 1
"""A word of correction alone, such as "sorry?", is a question."""
WHOLE_WORDS = 2
"""Longest answer that is whole whatever its words."""
YES_NO_WORDS = 4
"""Longest answer that is one by itself if it begins with "yes", "no" or "thanks"."""
PART_WORDS = 3
"""Longest part of a sentence that is taken for one by its first word."""
QUESTION_WORDS = 3
"""Shortest question that is whole: "could you" goes on."""
CLAUSE_WORDS = 7
"""A sentence that begins with "if" and has no more words than these lacks its main clause..."""
REMARK_WORDS = 3
"""...unless it has no more than these behind it: "if that's possible"."""


class Doubt(Enum):
    """What the words say about the end of a turn."""

    NONE = auto()
    """They say nothing: the language is not known here."""
    COMPLETE = auto()
    """A number has as many digits as were asked for, or an e-mail address its ending."""
    WHOLE = auto()
    """A question, or a short answer: they are all."""
    ANSWER = auto()
    """An answer of a few words, or a name, behind which a sentence or a spelling often follows."""
    OPEN = auto()
    """A sentence that another may follow."""
    HESITANT = auto()
    """Such a sentence of a caller who thinks while speaking ("well, I would say the red one"), or a
    part of one: "on Monday"."""
    LISTING = auto()
    """Things are named, of which the last is not known to be named, or the time to a day."""
    DICTATING = auto()
    """A number, a name, an address or an e-mail address is not known to be complete."""
    BREAKS_OFF = auto()
    """The sentence is incomplete."""
    SEARCHING = auto()
    """The caller thinks, or looks something up."""


class _Dictated(Enum):
    NOTHING = auto()
    NUMBER = auto()
    LETTERS = auto()
    EMAIL = auto()
    ADDRESS = auto()


def words_of(text: str) -> list[str]:
    """Returns the words in lower case, without punctuation but apostrophes and hyphens in them."""
    plain = text.lower().replace("\u2019", "'")
    return [word.strip("'-") for word in re.findall(r"[\w'@.+-]*[\w@]", plain)]


@lru_cache(512)
def doubt(text: str, asked: str = "", language: str = "en") -> Doubt:
    """Returns what the words of a turn so far say about its end. `asked` is what the agent said
    last, `language` an ISO 639 code; the words of languages without lists say nothing."""
    known = LANGUAGES.get(language[:2]) if language not in UNKNOWN else ENGLISH
    if known is None:
        return Doubt.NONE
    said = words_of(text)
    if not said:
        return Doubt.BREAKS_OFF
    tail = " ".join(said)
    if said[-1] in known.fillers or known.holding.search(tail):
        return Doubt.SEARCHING
    if len(said) > CORRECTION_WORDS and _ends_with(tail, known.correcting + known.tails):
        return Doubt.BREAKS_OFF
    if _is_email(said, known):
        return Doubt.COMPLETE
    about = _about(asked, known)
    if tail in known.opening and not _is_answer(asked, known):
        return Doubt.BREAKS_OFF
    counted = about is _Dictated.NUMBER and said[-1] in known.digits
    if about is not _Dictated.LETTERS and not counted and _dangles(said, known):
        return Doubt.BREAKS_OFF
    if _is_dictating(said, asked, about, known):
        return Doubt.DICTATING
    if _is_listing(said, asked, known) or _lacks_of_a_date(tail, asked, known):
        return Doubt.LISTING
    expected = _expected(asked, known) if about is _Dictated.NUMBER else known.phone_digits
    if digits_at_end(said, known) >= expected:
        return Doubt.COMPLETE
    if _ends_with(tail, known.announcing) and not text.rstrip().endswith("?"):
        return Doubt.HESITANT
    if _is_question(text, said, known) or _ends_with(tail, known.closing):
        return Doubt.WHOLE
    if (answer := _short_answer(said, asked, known)) is not None:
        return answer
    hesitates = said[0] in known.hesitant or not known.fillers.isdisjoint(said)
    is_round = said[-1] in known.rounds  # "two hundred"
    is_part = is_round or _is_part(said, known) or _names_a_day(tail, asked, known)
    return Doubt.HESITANT if hesitates or is_part else Doubt.OPEN


_REQUEST = re.compile(
    r"\?|\b(?:please|tell me|give me|enter|say|go ahead|i(?:'ll| will)? need|let me have|"
    r"bitte|nennen|sagen|geben|ich (?:brauche|bräuchte)|por favor|diga|dígame|necesit[oa]|deme|"
    r"s'il (?:vous|te) plaît|dites|donnez|il me (?:faut|faudrait)|indiquez|épelez)\b"
)


def question_of(said: str) -> str:
    """Returns the last question or request of what the agent said, in lower case; empty if there is
    none."""
    sentences = re.findall(r"[^.!?;\n]+[.!?;]*", said.lower())
    asked = [sentence for sentence in sentences if _REQUEST.search(sentence)]
    last: str = asked[-1] if asked else ""
    return last.strip(" ¿¡")


def _ends_with(tail: str, phrases: tuple[str, ...]) -> bool:
    return any(tail == phrase or tail.endswith(f" {phrase}") for phrase in phrases)


def _is_answer(asked: str, known: Words) -> bool:
    """Whether a pronoun and a verb answer a question that begins with such a verb."""
    first = words_of(question_of(asked))[:1]
    return bool(first) and first[0] in known.auxiliary


def _dangles(said: list[str], known: Words) -> bool:
    last = said[-1]
    if _lacks_the_main_clause(said, known):
        return True
    if _ends_with(" ".join(said), known.complete):
        return False
    if last in known.auxiliary and known.subordinators:
        return known.subordinators.isdisjoint(said)
    if last in known.auxiliary and len(said) > 1:
        if said[-2] in known.auxiliary:  # "what I can do", but "it could be"
            return last not in known.main_verbs
        if said[-2] in known.pronouns and not known.asking.isdisjoint(said[:-2]):
            return False  # "when you are"
        subordinate = len(said) > 2 and said[-3] in known.dangling
        is_short = len(said) <= SHORT_ANSWER_WORDS and not subordinate
        return not (said[-2] in known.pronouns and is_short)
    before = " ".join(said[:-1])
    if last in known.asking:
        return bool(before) and not _ends_with(before, known.unknown)
    if known.between in said[-4:] and known.last_joint not in said[-4:]:
        return True
    if said[0] in known.since and known.until.isdisjoint(said):
        return True
    asks = any(first in known.asking and verb in known.auxiliary for first, verb in pairwise(said))
    if (asks or not known.asking.isdisjoint(said[:2])) and last in known.prepositions:
        return False  # "who is it for"
    return last in known.dangling


def _lacks_the_main_clause(said: list[str], known: Words) -> bool:
    rest = _behind_the_opener(said, known)
    if rest[0] not in known.conditional or known.question.match(" ".join(rest)):
        return False
    return REMARK_WORDS < len(rest) - 1 <= CLAUSE_WORDS


def _behind_the_opener(said: list[str], known: Words) -> list[str]:
    """Returns the words without "yes", "and" and the like before them; the last is always left."""
    first = next((i for i, word in enumerate(said[:-1]) if word not in known.openers), -1)
    return said[first:]


def _is_question(text: str, said: list[str], known: Words) -> bool:
    rest = _behind_the_opener(said, known)
    if text.rstrip().endswith("?"):
        return True
    return len(rest) >= QUESTION_WORDS and bool(known.question.match(" ".join(rest)))


def _short_answer(said: list[str], asked: str, known: Words) -> Doubt | None:
    if said[0] in known.yes_no and len(said) <= YES_NO_WORDS:
        return Doubt.WHOLE if len(said) <= WHOLE_WORDS else Doubt.ANSWER
    if len(said) > WHOLE_WORDS or _is_part(said, known):
        return None
    names = any(words in question_of(asked) for words in known.questions.name)
    return Doubt.ANSWER if names else Doubt.WHOLE


def _is_part(said: list[str], known: Words) -> bool:
    """Whether it is a part of a sentence, such as "on Monday" or "two tickets", which others like
    it may follow."""
    first = said[0]
    begins = first in known.dangling - known.pronouns and "'" not in first
    counts = first in known.digits or known.tens.fullmatch(first) is not None
    return 1 < len(said) <= PART_WORDS and (begins or counts)


def _names_a_day(tail: str, asked: str, known: Words) -> bool:
    """Whether the agent has asked when, and the answer ends with a day or an hour, which others or
    a time of the day may follow."""
    asks = re.search(known.questions.when, question_of(asked))
    return asks is not None and known.times.search(tail) is not None


def _lacks_of_a_date(tail: str, asked: str, known: Words) -> bool:
    """Whether the agent has asked when, and the caller has named the day and not yet the month; or
    a date of birth and not yet the year."""
    question = question_of(asked)
    if re.search(known.questions.birth, question):
        return not known.year.search(tail)
    if not re.search(known.questions.when, question):
        return False
    return not known.month.search(tail) and known.day.search(tail) is not None


def _about(asked: str, known: Words) -> _Dictated:
    question = question_of(asked)
    whether = re.search(known.questions.whether, question)
    for kind, words in (
        (_Dictated.LETTERS, known.questions.letters),
        (_Dictated.EMAIL, known.questions.email),
        (_Dictated.ADDRESS, known.questions.address),
        (_Dictated.NUMBER, known.questions.number),
    ):
        if any(word in question for word in words):
            if kind is _Dictated.NUMBER and any(word in question for word in known.questions.count):
                continue
            return _Dictated.NOTHING if whether and kind is not _Dictated.NUMBER else kind
    return _Dictated.NOTHING


def _is_dictating(said: list[str], asked: str, about: _Dictated, known: Words) -> bool:
    if said[-1] in known.joints:
        return True
    if said[0] in REFUSALS and len(said) <= REFUSAL_WORDS:
        return False
    if about in (_Dictated.EMAIL, _Dictated.LETTERS, _Dictated.ADDRESS) or _spells(said, known):
        return True
    whether = re.search(known.questions.whether, question_of(asked))
    if about is not _Dictated.NOTHING and not whether and known.yes_no.issuperset(said):
        return True  # "sure"
    digits = digits_at_end(said, known)
    if about is _Dictated.NUMBER:
        is_letter = len(said[-1]) == 1 or said[-1] in ALPHABET
        return 0 < digits < _expected(asked, known) or is_letter
    one_by_one = all(len(word) == 1 or word in known.digits for word in said[-FEW_DIGITS:])
    return one_by_one and FEW_DIGITS <= digits < known.phone_digits


def _is_listing(said: list[str], asked: str, known: Words) -> bool:
    """Whether things are named, and not yet the last, which stands behind "and"."""
    question = question_of(asked)
    return known.last_joint not in said and any(
        re.search(p, question) for p in known.questions.several
    )


def _spells(said: list[str], known: Words) -> bool:
    """Whether it ends with two letters by themselves, or with "N as in November"."""
    last = said[-2:]
    letters = len(last) == 2 and all(len(word) == 1 and word.isalpha() for word in last)
    return letters or known.as_in.search(" ".join(said)) is not None


def _is_email(said: list[str], known: Words) -> bool:
    """Whether there is a domain with an ending behind the sign."""
    text = " ".join(said)
    if re.search(r"@[\w-]+\.[\w.-]*\w$", text):
        return True
    behind = [index for index, word in enumerate(said) if word in known.at]
    if not behind:
        return False
    domain = said[behind[-1] + 1 :]
    if len(domain) == 1:
        return "." in domain[0]
    return len(domain) >= 3 and domain[-2] in known.dot and domain[-1] not in known.dot


def _expected(asked: str, known: Words) -> int:
    """Returns how many digits the agent has asked for, as in "the last four digits"."""
    question = question_of(asked)
    for word, following in pairwise(words_of(question.replace("-", " "))):
        if following.startswith(known.questions.digit):
            if word.isdecimal() and len(word) < 3:
                return int(word)
            if word in known.questions.numerals:
                return known.questions.numerals.index(word)
    for words, digits in known.questions.lengths:
        if any(word in question for word in words):
            return digits
    return known.phone_digits if re.search(known.questions.whether, question) else MANY_DIGITS


_NUMERAL = re.compile(r"\+?\d[\d.+-]*")


def digits_at_end(said: list[str], known: Words = ENGLISH) -> int:
    """Returns how many digits of a dictated number the words end with."""
    digits, after = 0, ""
    for word in reversed(said):
        if _NUMERAL.fullmatch(word):
            digits += sum(map(str.isdecimal, word))
        elif word in known.digits:
            digits += 1
        elif known.tens.fullmatch(word):
            digits += 1 if after in known.digits and "-" not in word else 2
        elif not (word in known.joints or len(word) == 1):
            break
        after = word
    return digits
