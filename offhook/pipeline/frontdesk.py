"""The front desk: a rule-based receptionist, for a server without network or language model.

It gives opening hours, address and departments, takes a message, transfers the call and is honest
about being a machine. Pure and deterministic: words in, words out; the time is an argument. What a
caller may say in which state, what is answered and where that leads is `TABLE`; how words become
an `Intent` is in `frontdesk_language`.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import date, datetime, timedelta
from enum import Enum, auto
from typing import NamedTuple

from offhook.pipeline import frontdesk_language as language
from offhook.pipeline.frontdesk_language import DAYS, SURE, Intent

MAX_MESSAGE_CHARS = 500
"""Of a message; the rest is cut off at a word."""
MAX_READ_BACK_CHARS = 160
"""Of a message read back to the caller."""
MISSES_BEFORE_GIVING_UP = 3
SILENCES_BEFORE_GOODBYE = 3
PATIENCE = 2
"""Silences that pass without a word after the caller asked to wait."""
DAYS_AHEAD = 14
"""How far the next opening is looked for."""


# The business ------------------------------------------------------------------------------------


class BusinessError(ValueError):
    """A setting of the business is wrong; the message begins with its key."""


Span = tuple[int, int]
"""Opening and closing in minutes since midnight; 1440 is the midnight that ends the day."""


@dataclass(frozen=True)
class Department:
    name: str
    number: str
    """Where its calls are transferred to: a telephone number or SIP address."""
    words: tuple[str, ...] = ()
    """Other words callers use for it."""


@dataclass(frozen=True)
class Business:
    """Whom the front desk speaks for."""

    name: str
    hours: tuple[tuple[Span, ...], ...]
    """Seven days from Monday; a day without spans is closed."""
    address: str
    directions: str = ""
    about: str = ""
    """What is told at "tell me about the company": a few sentences."""
    closing: str = "Thank you for calling."
    departments: tuple[Department, ...] = ()
    holidays: frozenset[date] = frozenset()

    @classmethod
    def from_table(cls, table: Mapping[str, object]) -> "Business":
        """From a TOML table, laid out as `DEMO_TABLE`; raises BusinessError naming the key."""
        unknown = sorted(set(table) - set(DEMO_TABLE) - {"holidays"})
        if unknown:
            raise BusinessError(f"{unknown[0]}: no such setting")
        holidays = table.get("holidays", [])
        if not isinstance(holidays, list) or any(type(day) is not date for day in holidays):
            raise BusinessError("holidays: must be a list of dates such as 2027-01-01")
        return cls(
            name=_text(table, "name", 60, required=True),
            hours=_hours(table.get("hours", {})),
            address=_text(table, "address", 160, required=True),
            directions=_text(table, "directions", 160),
            about=_text(table, "about", 1000),
            closing=_text(table, "closing", 100) or cls.closing,
            departments=_departments(table.get("departments", {})),
            holidays=frozenset(holidays),
        )

    def spans(self, day: date) -> tuple[Span, ...]:
        return () if day in self.holidays else self.hours[day.weekday()]


def _text(table: Mapping[str, object], key: str, limit: int, required: bool = False) -> str:
    text = table.get(key, "")
    if not isinstance(text, str) or (required and not text.strip()):
        raise BusinessError(f"{key}: must be a text")
    if len(text) > limit:
        raise BusinessError(f"{key}: longer than {limit} characters")
    return language.say_plainly(text)


def _hours(table: object) -> tuple[tuple[Span, ...], ...]:
    if not isinstance(table, Mapping):
        raise BusinessError("hours: must be a table of weekdays")
    for day in table:
        if day not in DAYS:
            raise BusinessError(f"hours.{day}: no such day")
    return tuple(_spans(f"hours.{day}", table.get(day, "closed")) for day in DAYS)


def _spans(key: str, text: object) -> tuple[Span, ...]:
    if text == "closed":
        return ()
    clock = r"(\d{1,2}):([0-5]\d)"
    spans: list[Span] = []
    for part in str(text).split(","):
        match = re.fullmatch(rf"\s*{clock}\s*-\s*{clock}\s*", part, re.ASCII)
        if not match:
            raise BusinessError(f'{key}: must be like "9:00-12:00, 13:00-17:30" or "closed"')
        h1, m1, h2, m2 = map(int, match.groups())
        opens, closes = h1 * 60 + m1, h2 * 60 + m2
        if not (spans[-1][1] if spans else 0) <= opens < closes <= 24 * 60:
            raise BusinessError(f"{key}: times must rise and end by 24:00")
        spans.append((opens, closes))
    return tuple(spans)


def _departments(table: object) -> tuple[Department, ...]:
    if not isinstance(table, Mapping) or len(table) > 8:
        raise BusinessError("departments: must be a table of at most 8 departments")
    departments = []
    for name, entry in table.items():
        key = f"departments.{name}"
        if not isinstance(entry, Mapping) or set(entry) - {"number", "words"}:
            raise BusinessError(f"{key}: must have a number and may have words")
        number, words = entry.get("number"), entry.get("words", [])
        if not isinstance(number, str) or not number.strip():
            raise BusinessError(f"{key}.number: must be a text such as '+12025550110'")
        if not isinstance(words, list) or not all(isinstance(word, str) for word in words):
            raise BusinessError(f"{key}.words: must be a list of texts")
        name = language.say_plainly(str(name))[:20]
        departments.append(Department(name, number.strip(), tuple(map(str.lower, words))))
    return tuple(departments)


DEMO_TABLE: dict[str, object] = {
    "name": "Lighthouse Bicycles",
    "hours": {**dict.fromkeys(DAYS[:5], "9:00-18:00"), "saturday": "10:00-14:00"},
    "address": "12 Harbour Street, next to the old lighthouse",
    "directions": "Take tram 4 to the harbour, then walk towards the lighthouse.",
    "about": "We are a small bicycle shop by the harbour. It was founded by two sisters who wanted "
    "to see more people ride and fewer people walk uphill. We sell city bikes, cargo bikes and "
    "children's bikes, and our workshop repairs anything that has two wheels. Every Saturday "
    "morning there is a free class on mending a flat tyre. In winter we store your bicycle, clean "
    "it and have it ready for the first warm day. And if you are ever near, come in for a coffee.",
    "closing": "Thank you for calling Lighthouse Bicycles.",
    "departments": {
        "sales": {"number": "+12025550110", "words": ["sale", "buy", "shop"]},
        "the workshop": {"number": "+12025550111", "words": ["repairs", "repair", "support"]},
        "billing": {"number": "+12025550112", "words": ["accounts", "invoice", "bailing"]},
    },
}
"""The settings of a business as the user writes them, and the one that is there to be tried."""
DEMO = Business.from_table(DEMO_TABLE)


# Replies -----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Hangup:
    """End the call once the reply has been heard to its end; void when it is interrupted."""


@dataclass(frozen=True)
class Transfer:
    """Transfer the call once the reply has been heard to its end; void when it is interrupted."""

    to: str


@dataclass(frozen=True)
class TakeMessage:
    """Keep this message, at once. `name` and `number` (digits) are empty when not given."""

    name: str
    number: str
    text: str


Action = Hangup | Transfer | TakeMessage


@dataclass(frozen=True)
class Reply:
    text: str
    """Plain sentences for a synthesiser: no markup, digits in words."""
    action: Action | None = None


class State(Enum):
    OPEN = auto()
    """Anything may be asked."""
    ASK_NAME = auto()
    CONFIRM_NAME = auto()
    SPELL_NAME = auto()
    """The caller is asked to spell the name."""
    NAME_TO_SPELL = auto()
    """The caller is asked for the name they want spelled."""
    ASK_NUMBER = auto()
    CONFIRM_NUMBER = auto()
    ASK_TEXT = auto()
    CONFIRM_TEXT = auto()
    ASK_DEPARTMENT = auto()
    CONFIRM_TRANSFER = auto()
    OFFER = auto()
    """A message or a transfer was offered, after too much was not understood."""
    MORE = auto()
    """"Is there anything else?" """
    ENDED = auto()


@dataclass(frozen=True)
class Dialog:
    """All that the front desk remembers of a call."""

    state: State = State.OPEN
    name: str = ""
    number: str = ""
    text: str = ""
    to_spell: str = ""
    department: Department | None = None
    misses: int = 0
    """Turns in a row that were not understood."""
    silences: int = 0
    rejections: int = 0
    """How often the thing being confirmed was refused."""
    heard_question: bool = True
    """Whether the caller heard the question that is open."""
    said: str = "How can I help you?"
    """The last reply without an introduction such as "once more"."""
    last: str = ""
    """The last reply as it was said."""
    turns: int = 0


@dataclass(frozen=True)
class Turn:
    """What a line of the table may look at."""

    business: Business
    dialog: Dialog
    words: Sequence[str]
    now: datetime
    seed: int

    def pick(self, *variants: str) -> str:
        """One of the variants, in turn, but not what was said just before."""
        start = self.seed + self.dialog.turns
        ordered = [variants[(start + i) % len(variants)] for i in range(len(variants))]
        return next((text for text in ordered if text not in self.dialog.last), ordered[0])


Line = Callable[[Turn], str]


def says(*variants: str) -> Line:
    return lambda turn: turn.pick(*variants)


# What it says about the business and itself ------------------------------------------------------


def part_of_day(now: datetime) -> str:
    return "morning" if now.hour < 12 else "afternoon" if now.hour < 18 else "evening"


def greeting(turn: Turn) -> str:
    good, name = f"Good {part_of_day(turn.now)}", turn.business.name
    return f"{good}, this is the automatic front desk of {name}. How can I help you?"


def _join(parts: Sequence[str], last: str = "and") -> str:
    return ", ".join(parts[:-1]) + f" {last} " + parts[-1] if len(parts) > 1 else "".join(parts)


def _say_spans(spans: Sequence[Span]) -> str:
    return _join([f"from {language.say_clock(a)} to {language.say_clock(b)}" for a, b in spans])


def _next_opening(business: Business, now: datetime) -> str:
    minutes = now.hour * 60 + now.minute
    for ahead in range(DAYS_AHEAD):
        day = now.date() + timedelta(days=ahead)
        for opens, _ in business.spans(day):
            if ahead or opens > minutes:
                names = {0: "today", 1: "tomorrow"}
                name = names.get(ahead, f"on {DAYS[day.weekday()].title()}")
                return f"We open again {name} at {language.say_clock(opens)}."
    return "I cannot say when we open again."


def opening_hours(turn: Turn) -> str:
    when = language.day_in(turn.words)
    today = turn.now.date()
    if when is None:
        return _week(turn.business)
    if when in ("now", "today"):
        return _hours_today(turn, when)
    if when == "tomorrow":
        return _hours_on(turn.business, today + timedelta(days=1), "tomorrow")
    names = ("saturday", "sunday") if when == "weekend" else (when,)
    lines = []
    for name in names:
        ahead = (DAYS.index(name) - today.weekday()) % 7
        lines.append(_hours_on(turn.business, today + timedelta(days=ahead), f"on {name.title()}"))
    return " ".join(lines)


def _hours_today(turn: Turn, when: str) -> str:
    minutes = turn.now.hour * 60 + turn.now.minute
    spans = turn.business.spans(turn.now.date())
    for opens, closes in spans:
        if opens <= minutes < closes:
            return f"Yes, we are open now. We close at {language.say_clock(closes)}."
    again = _next_opening(turn.business, turn.now)
    if when == "today" and spans and minutes < spans[0][0]:
        return f"Today we are open {_say_spans(spans)}."
    return f"We are closed {'right now' if spans else 'today'}. {again}"


def _hours_on(business: Business, day: date, name: str) -> str:
    spans = business.spans(day)
    return f"We are open {name} {_say_spans(spans)}." if spans else f"We are closed {name}."


def _week(business: Business) -> str:
    groups: list[tuple[int, int]] = []
    for day in range(7):
        if groups and business.hours[day] == business.hours[groups[-1][0]]:
            groups[-1] = (groups[-1][0], day)
        else:
            groups.append((day, day))
    parts = []
    for first, last in groups:
        days = DAYS[first].title() + (f" to {DAYS[last].title()}" if last > first else "")
        parts.append(f"{days} {_say_spans(business.hours[first]) or 'closed'}")
    if len(parts) > 4:
        return "Our hours differ from day to day. Ask me about the day you want."
    return f"Our opening hours are {_join(parts)}."


def where(turn: Turn) -> str:
    return f"You find us at {turn.business.address}. {turn.business.directions}".strip()


def _names(business: Business, last: str = "and") -> str:
    return _join([department.name for department in business.departments], last)


def departments(turn: Turn) -> str:
    if not turn.business.departments:
        return "There is only me, and I can take a message."
    return f"I can put you through to {_names(turn.business, 'or')}."


def clock(turn: Turn) -> str:
    minutes = turn.now.hour * 60 + turn.now.minute
    return f"It is {language.say_clock(minutes)} in the {part_of_day(turn.now)}."


def calendar(turn: Turn) -> str:
    day = language.say_ordinal(turn.now.day)
    return f"Today is {turn.now:%A}, the {day} of {turn.now:%B}."


def who(turn: Turn) -> str:
    return f"I am the automatic front desk of {turn.business.name}. I have no other name."


def about(turn: Turn) -> str:
    return turn.business.about or f"This is {turn.business.name}. " + where(turn)


def count(turn: Turn) -> str:
    top = min(max(language.cardinal_in(turn.words) or 10, 2), 30)
    return ", ".join(map(language.say_cardinal, range(1, top + 1))) + "."


def spell(turn: Turn) -> str:
    return f"{turn.dialog.to_spell} is spelled {language.say_letters(turn.dialog.to_spell)}."


def read_number(turn: Turn) -> str:
    number = turn.dialog.number
    return f"I have {language.say_number(number)}." if number else "You have not given me a number."


can_do = says(
    "I can tell you our opening hours and our address, take a message, or put you through.",
    "You can ask when we are open or where we are, leave a message, or ask for a department.",
)


def again(turn: Turn) -> str:
    return turn.pick("I said: ", "Once more: ", "Again: ") + turn.dialog.said


def slowly(turn: Turn) -> str:
    words = turn.dialog.said.split()
    slow = [w + "," if i % 2 and w[-1].isalpha() else w for i, w in enumerate(words[:-1])]
    return turn.pick("More slowly: ", "Slowly now: ") + " ".join([*slow, *words[-1:]])


def goodbye(turn: Turn) -> str:
    return f"{turn.business.closing} " + turn.pick("Goodbye.", "Goodbye, and take care.")


# What it asks ------------------------------------------------------------------------------------


def read_name(turn: Turn) -> str:
    name = turn.dialog.name
    return f"{name}, spelled {language.say_letters(name)}. Is that right?"


def read_number_back(turn: Turn) -> str:
    lead = turn.pick("I have", "Your number is", "That makes")
    return f"{lead} {language.say_number(turn.dialog.number)}. Is that right?"


def read_text(turn: Turn) -> str:
    text = language.say_plainly(turn.dialog.text)
    if len(text) > MAX_READ_BACK_CHARS:
        text = text[:MAX_READ_BACK_CHARS].rpartition(" ")[0] + ", and so on"
    return f"Your message is: {text.rstrip('.,;:!?')}. Shall I pass it on?"


def which_department(turn: Turn) -> str:
    names = _names(turn.business, "or")
    return turn.pick(f"Who would you like, {names}?", f"Shall it be {names}?")


def confirm_transfer(turn: Turn) -> str:
    name = turn.dialog.department.name if turn.dialog.department else ""
    closed = not any(
        opens <= turn.now.hour * 60 + turn.now.minute < closes
        for opens, closes in turn.business.spans(turn.now.date())
    )
    warning = "We are closed now, so perhaps nobody answers. " if closed else ""
    return warning + turn.pick(f"Shall I put you through to {name}?", f"To {name}, is that right?")


QUESTIONS: dict[State, Line] = {
    State.OPEN: says("How can I help you?", "What can I do for you?"),
    State.ASK_NAME: says("What is your name?", "May I have your name?"),
    State.CONFIRM_NAME: read_name,
    State.SPELL_NAME: says("Please spell your name, letter by letter.", "How is it spelled?"),
    State.NAME_TO_SPELL: says("Which name shall I spell?", "What is the name to spell?"),
    State.ASK_NUMBER: says("What number can we call you on?", "What is your telephone number?"),
    State.CONFIRM_NUMBER: read_number_back,
    State.ASK_TEXT: says("What is the message?", "What shall I pass on?"),
    State.CONFIRM_TEXT: read_text,
    State.ASK_DEPARTMENT: which_department,
    State.CONFIRM_TRANSFER: confirm_transfer,
    State.OFFER: says("Shall I take a message?", "Would you like to leave a message?"),
    State.MORE: says("Is there anything else?", "Anything else I can do?"),
}

HINTS: dict[State, str] = {
    State.ASK_NAME: "Your first and last name is all I need.",
    State.CONFIRM_NAME: "You can say yes, no, or spell it.",
    State.SPELL_NAME: "You can say J as in John, and so on.",
    State.ASK_NUMBER: "Please say the digits one by one.",
    State.CONFIRM_NUMBER: "You can say yes, or, the last digit is five.",
    State.CONFIRM_TEXT: "Please say yes or no.",
    State.CONFIRM_TRANSFER: "Please say yes or no.",
}
"""Said before the question when it was not understood twice; elsewhere `can_do` is."""


# The table: state x intent -> state, reply -------------------------------------------------------


class Row(NamedTuple):
    to: State | None
    """None: stay, and ask the open question again after the answer."""
    say: Line
    act: Callable[[Turn], Action | None] = lambda turn: None
    asks: bool = True
    """Whether staying asks the open question again."""
    forgets: str = ""
    """The field of `Dialog` that is emptied."""


def _then(state: State, *leads: str, forgets: str = "") -> Row:
    """To another state: a few words, then its question."""
    lead = says(*leads)
    if state is State.ASK_NUMBER:
        forgets = "number"
    say: Line = lambda turn: f"{lead(turn)} {QUESTIONS[state](turn)}".strip()  # noqa: E731
    return Row(state, say, forgets=forgets)


def _hang_up(turn: Turn) -> Action:
    return Hangup()


def _transfer(turn: Turn) -> Action | None:
    return Transfer(turn.dialog.department.number) if turn.dialog.department else None


def _take_message(turn: Turn) -> Action:
    return TakeMessage(turn.dialog.name, turn.dialog.number, turn.dialog.text)


_BYE = Row(State.ENDED, goodbye, _hang_up)
_GIVE_UP = Row(State.ENDED, says("I am sorry, the line is too bad. Please call again. Goodbye."),
               _hang_up)  # fmt: skip
_MESSAGE = {
    Intent.MESSAGE: _then(State.ASK_NAME, "I will take a message.", "Yes, a message."),
    Intent.MESSAGE_NAMED: _then(State.CONFIRM_NAME, "I will take a message. I have the name"),
}
_TRANSFER = {
    Intent.TRANSFER: _then(State.ASK_DEPARTMENT, "Of course.", "Gladly."),
    Intent.TRANSFER_NAMED: _then(State.CONFIRM_TRANSFER, "", "Gladly."),
}
_CONTROL = {
    Intent.REPEAT: Row(None, again, asks=False),
    Intent.SLOWER: Row(None, slowly, asks=False),
    Intent.WAIT: Row(None, says("Take your time.", "Of course, I will wait."), asks=False),
    Intent.GOODBYE: _BYE,
}
_INFO = {
    Intent.HOURS: Row(None, opening_hours),
    Intent.ADDRESS: Row(None, where),
    Intent.DEPARTMENTS: Row(None, departments),
    Intent.TIME: Row(None, clock),
    Intent.DATE: Row(None, calendar),
    Intent.WHO: Row(None, who),
    Intent.ROBOT: Row(None, says("Yes, I am a machine, with a simple set of rules.",
                                 "I am a computer program, not a person.")),
    Intent.HELP: Row(None, can_do),
}  # fmt: skip
_ANYTHING = _CONTROL | _INFO | _MESSAGE | _TRANSFER | {
    Intent.GREETING: Row(None, says("Hello. How can I help you?", "Hello. What can I do for you?")),
    Intent.HOW_ARE_YOU: Row(None, says("I am well, thank you. How can I help you?",
                                       "Very well, thanks. What can I do for you?")),
    Intent.THANKS: _then(State.MORE, "You are welcome.", "My pleasure."),
    Intent.ABOUT: Row(None, about),
    Intent.COUNT: Row(None, count),
    Intent.SPELL: _then(State.NAME_TO_SPELL, "Gladly.", "Of course."),
    Intent.READ_NUMBER: Row(None, read_number),
    Intent.GIVES_NAME: Row(None, lambda turn: f"Hello {turn.dialog.name}. How can I help you?"),
    Intent.GIVES_SPELLING: Row(State.OPEN, spell),
    Intent.CANCEL: Row(State.OPEN, says("All right. What else can I do?", "As you wish.")),
    Intent.DONE: _BYE,
    Intent.YES: Row(State.OPEN, says("Yes? What can I do for you?", "I am listening.")),
    Intent.NO: _then(State.MORE, "All right.", "I see."),
    Intent.UNKNOWN: _then(State.OFFER, "I am sorry, I still do not understand.",
                          "I am afraid this is beyond me."),
}  # fmt: skip
_ASKED = _CONTROL | _INFO | {
    Intent.CANCEL: _then(State.MORE, "All right, I let that be.", "I have dropped it."),
}  # fmt: skip
_NAME_KEPT = _then(State.ASK_NUMBER, "I note the name as I heard it.")
_NO_NAME = _then(State.ASK_NUMBER, "Then without a name.", "I leave the name out.")
_NO_NUMBER = _then(
    State.ASK_TEXT, "Then without a number.", "I leave the number out.", forgets="number"
)
_SENT = Row(State.MORE, says("Thank you, I pass your message on. Is there anything else?",
                             "Your message is noted. Is there anything else?"),
            _take_message)  # fmt: skip

TABLE: dict[State, dict[Intent, Row]] = {
    # UNKNOWN is what happens at the last of MISSES_BEFORE_GIVING_UP; before, the question is asked
    # again in other words.
    State.OPEN: _ANYTHING,
    State.ENDED: _ANYTHING,
    State.MORE: _ANYTHING | {
        Intent.YES: _then(State.OPEN, "Yes.", "Gladly."),
        Intent.NO: _BYE,
        Intent.THANKS: _BYE,
    },
    State.OFFER: _CONTROL | _INFO | _MESSAGE | _TRANSFER | {
        Intent.YES: _MESSAGE[Intent.MESSAGE],
        Intent.NO: _then(State.MORE, "All right.", "As you wish."),
        Intent.CANCEL: _then(State.MORE, "All right.", "As you wish."),
        Intent.DONE: _BYE,
        Intent.UNKNOWN: _GIVE_UP,
    },
    State.NAME_TO_SPELL: _ASKED | {
        Intent.GIVES_NAME: Row(State.OPEN, spell),
        Intent.GIVES_SPELLING: Row(State.OPEN, spell),
        Intent.UNKNOWN: _then(State.OFFER, "I am sorry, I do not get the name."),
    },
    State.ASK_NAME: _ASKED | {
        Intent.GIVES_NAME: _then(State.CONFIRM_NAME, "I have", "I heard"),
        Intent.GIVES_SPELLING: _then(State.CONFIRM_NAME, "I have", "I heard"),
        Intent.SKIP: _NO_NAME,
        Intent.UNKNOWN: _NO_NAME,
    },
    State.CONFIRM_NAME: _ASKED | {
        Intent.YES: _then(State.ASK_NUMBER, "Good.", "Thank you."),
        Intent.NO: _then(State.SPELL_NAME, "I am sorry.", "Then I misheard."),
        Intent.NO_AGAIN: _then(State.ASK_NUMBER,
                               "I am sorry, names are hard for me. Your number will do."),
        Intent.GIVES_NAME: _then(State.CONFIRM_NAME, "Now I have", "I changed it to"),
        Intent.GIVES_SPELLING: _then(State.CONFIRM_NAME, "Now I have", "I changed it to"),
        Intent.SKIP: _NAME_KEPT,
        Intent.UNKNOWN: _NAME_KEPT,
    },
    State.SPELL_NAME: _ASKED | {
        Intent.GIVES_NAME: _then(State.CONFIRM_NAME, "Now I have", "I changed it to"),
        Intent.GIVES_SPELLING: _then(State.CONFIRM_NAME, "Now I have", "I changed it to"),
        Intent.SKIP: _NAME_KEPT,
        Intent.UNKNOWN: _NAME_KEPT,
    },
    State.ASK_NUMBER: _ASKED | {
        Intent.GIVES_NUMBER: _then(State.CONFIRM_NUMBER, "", "Thank you."),
        Intent.GIVES_PART: Row(State.ASK_NUMBER, lambda turn:
            f"I have {language.say_number(turn.dialog.number)} so far. What comes next?"),
        Intent.GIVES_TOO_MANY: _then(State.ASK_NUMBER, "That is too long for a number."),
        Intent.DONE: _then(State.CONFIRM_NUMBER, "All right."),
        Intent.SKIP: _NO_NUMBER,
        Intent.UNKNOWN: _NO_NUMBER,
    },
    State.CONFIRM_NUMBER: _ASKED | {
        Intent.YES: _then(State.ASK_TEXT, "Good.", "Thank you."),
        Intent.NO: _then(State.ASK_NUMBER, "I am sorry, once more from the start.", "Again then."),
        Intent.NO_AGAIN: _then(State.ASK_TEXT, "I am sorry, I note the number as I have it."),
        Intent.GIVES_NUMBER: _then(State.CONFIRM_NUMBER, "I changed it.", "Changed."),
        Intent.GIVES_TOO_MANY: _then(State.ASK_NUMBER, "That is too long for a number."),
        Intent.SKIP: _NO_NUMBER,
        Intent.UNKNOWN: _then(State.ASK_TEXT, "I note the number as I have it."),
    },
    State.ASK_TEXT: _CONTROL | {
        Intent.HELP: Row(None, says("Say all you want me to write down, in one go.")),
        Intent.CANCEL: _ASKED[Intent.CANCEL],
        Intent.YES: Row(State.ASK_TEXT, says("Go ahead, I am listening.", "Please speak.")),
        Intent.NO: _then(State.MORE, "No message then."),
        Intent.GIVES_TEXT: _then(State.CONFIRM_TEXT, "", "Thank you."),
        Intent.UNKNOWN: _then(State.OFFER, "I am sorry, I heard no message."),
    },
    State.CONFIRM_TEXT: _CONTROL | {
        Intent.YES: _SENT,
        Intent.DONE: _SENT,
        Intent.THANKS: _SENT,
        Intent.NO: _then(State.ASK_TEXT, "Then once more.", "Let us try again."),
        Intent.CANCEL: _ASKED[Intent.CANCEL],
        Intent.GIVES_TEXT: _then(State.CONFIRM_TEXT, "I changed it.", "Changed."),
        Intent.UNKNOWN: _SENT,
    },
    State.ASK_DEPARTMENT: _ASKED | _MESSAGE | {
        Intent.TRANSFER_NAMED: _TRANSFER[Intent.TRANSFER_NAMED],
        Intent.NO: _then(State.MORE, "All right."),
        Intent.UNKNOWN: _then(State.OFFER, "I am sorry, I do not know who that is."),
    },
    State.CONFIRM_TRANSFER: _ASKED | _MESSAGE | _TRANSFER | {
        Intent.YES: Row(State.ENDED, lambda turn:
            f"I put you through to {turn.dialog.department.name}. One moment, please."
            if turn.dialog.department else "One moment, please.", _transfer),
        Intent.NO: _then(State.ASK_DEPARTMENT, "All right.", "Somebody else then."),
        Intent.UNKNOWN: _then(State.OFFER, "I am sorry, I cannot follow."),
    },
}  # fmt: skip

SILENT: tuple[Row, ...] = (
    Row(None, says("Are you still there?", "Hello?", "I am listening.")),
    Row(None, can_do),
    Row(State.ENDED, lambda turn: "I cannot hear you. " + goodbye(turn), _hang_up),
)
assert len(SILENT) == SILENCES_BEFORE_GOODBYE


# What is given: names, numbers, messages, departments --------------------------------------------

Given = tuple[Intent, float, Dialog]
"""An intent, its score, and the dialog with what was given in it."""


def _give_name(dialog: Dialog, words: Sequence[str]) -> Given | None:
    known = dialog.state in (State.CONFIRM_NAME, State.SPELL_NAME)
    if known and (spelled := language.spelling_in(words)):
        name = language.respell(dialog.name, spelled)
        return Intent.GIVES_SPELLING, SURE, replace(dialog, name=name)
    name, said_so = language.name_in(words)
    if not name or (dialog.state is State.CONFIRM_NAME and not said_so and words[0] != "no"):
        return None
    return Intent.GIVES_NAME, SURE if said_so else 0.75, replace(dialog, name=name)


def _give_number(dialog: Dialog, words: Sequence[str]) -> Given | None:
    if dialog.state is State.CONFIRM_NUMBER:
        if corrected := language.correct_number(dialog.number, words):
            return Intent.GIVES_NUMBER, SURE, replace(dialog, number=corrected)
        if words[:1] == ["no"]:
            return None
    if not language.is_mostly_number(words):
        return None
    number = dialog.number + language.digits_in(words).lstrip("+" if dialog.number else "")
    digits = len(number.lstrip("+"))
    if digits > language.MAX_NUMBER_DIGITS:
        return Intent.GIVES_TOO_MANY, SURE, replace(dialog, number="")
    enough = digits >= language.MIN_NUMBER_DIGITS
    intent = Intent.GIVES_NUMBER if enough else Intent.GIVES_PART
    return (intent, SURE, replace(dialog, number=number)) if number else None


def _give_text(dialog: Dialog, heard: str) -> Given | None:
    text = " ".join(heard.split())
    words = language.words_of(text)
    if dialog.state is State.CONFIRM_TEXT:
        if len(words) < 4:
            return None
        if words[0] in ("and", "also", "add", "plus"):
            text = f"{dialog.text} {text}"
        else:
            text = re.sub(r"^(no|now|know)\b\W*", "", text, flags=re.IGNORECASE)
    if not words:
        return None
    if len(text) > MAX_MESSAGE_CHARS:
        text = text[:MAX_MESSAGE_CHARS].rpartition(" ")[0] or text[:MAX_MESSAGE_CHARS]
    return Intent.GIVES_TEXT, SURE, replace(dialog, text=text)


def find_department(
    business: Business, words: Sequence[str], anyone: bool = False
) -> Department | None:
    """The department named; with `anyone`, the first when it is all the same to the caller."""
    for department in business.departments:
        names = {*language.words_of(department.name), *department.words} - {"the"}
        if any(language.same_word(word, name) for word in words for name in names):
            return department
    whoever = {"anyone", "anybody", "whoever", "any", "matter", "care"}
    if anyone and business.departments and (whoever & set(words) or len(business.departments) == 1):
        return business.departments[0]
    return None


# The front desk ----------------------------------------------------------------------------------

_NAME_STATES = (State.ASK_NAME, State.CONFIRM_NAME, State.SPELL_NAME, State.NAME_TO_SPELL)
_NUMBER_STATES = (State.ASK_NUMBER, State.CONFIRM_NUMBER)
_TEXT_STATES = (State.ASK_TEXT, State.CONFIRM_TEXT)
_OPEN_STATES = (State.OPEN, State.MORE, State.ENDED)


def understand(business: Business, dialog: Dialog, heard: str) -> tuple[Intent, Dialog]:
    """What these words mean in this state of the dialog, and the dialog with what they gave."""
    words = language.words_of(heard)
    if not words:
        return Intent.UNKNOWN, dialog
    rows = TABLE[dialog.state]
    intent, sure = language.recognise(words, rows)
    given: Given | None = None
    if dialog.state in _NAME_STATES:
        given = _give_name(dialog, words)
    elif dialog.state in _NUMBER_STATES:
        given = _give_number(dialog, words)
    elif dialog.state in _TEXT_STATES:
        given = _give_text(dialog, heard)
    if given and given[1] > sure:
        # An answer to a question that was never heard is no answer, unless it says what it is.
        asked = dialog.heard_question or dialog.state in _NUMBER_STATES
        asked = asked or (dialog.state in _NAME_STATES and given[1] >= SURE)
        return (given[0], replace(given[2], to_spell=given[2].name)) if asked else _nothing(dialog)
    if intent is Intent.YES and not dialog.heard_question:
        return _nothing(dialog)
    return _settle(business, dialog, words, intent, sure)


def _nothing(dialog: Dialog) -> tuple[Intent, Dialog]:
    return Intent.UNKNOWN, dialog


def _settle(
    business: Business, dialog: Dialog, words: Sequence[str], intent: Intent, sure: float
) -> tuple[Intent, Dialog]:
    """The intents that depend on what is known: a name, a department, an earlier refusal."""
    rows = TABLE[dialog.state]
    if Intent.TRANSFER_NAMED in rows:
        wanted = intent is Intent.TRANSFER or dialog.state is State.ASK_DEPARTMENT
        if wanted and not business.departments:
            return Intent.DEPARTMENTS, dialog
        short = len(words) <= 3 and sure < 1
        department = find_department(business, words, anyone=wanted) if wanted or short else None
        if department:
            return Intent.TRANSFER_NAMED, replace(dialog, department=department)
    named = dialog.state in _OPEN_STATES and sure < SURE and "name is" in " ".join(words)
    if named and (name := language.name_in(words)[0]):
        return Intent.GIVES_NAME, replace(dialog, name=name)
    if intent is Intent.MESSAGE and dialog.name:
        return Intent.MESSAGE_NAMED, dialog
    if intent is Intent.SPELL:
        asked = words[words.index("spell") + 1 :] if "spell" in words else []
        to_spell = language.name_in(asked)[0] or dialog.name
        if to_spell:
            return Intent.GIVES_SPELLING, replace(dialog, to_spell=to_spell)
    if intent is Intent.DONE and dialog.state is State.ASK_NUMBER and not dialog.number:
        return Intent.SKIP, dialog
    if intent is Intent.NO and dialog.rejections and Intent.NO_AGAIN in rows:
        return Intent.NO_AGAIN, dialog
    return intent, dialog


class FrontDesk:
    """One call. Say `greeting`, then answer each turn of the caller with `reply`.

    `now` is the local time of the business. `seed` varies the phrasing between calls.
    """

    def __init__(self, business: Business = DEMO, seed: int = 0) -> None:
        self._business = business
        self._seed = seed
        self._dialog = Dialog()
        self._before = self._dialog
        """As it was before the last reply, in case nothing of that was heard."""
        self._action: Action | None = None
        self._heard = ""
        """The words answered last; those of an unheard answer are answered with the next."""
        self._unanswered = ""

    @property
    def state(self) -> State:
        return self._dialog.state

    def greeting(self, now: datetime) -> Reply:
        return self._say(greeting(self._turn(self._dialog, [], now)), self._dialog)

    def reply(self, heard: str, now: datetime) -> Reply:
        """The answer to one turn of the caller, as recognised; any text will do."""
        heard = f"{self._unanswered} {heard}".strip()[-language.MAX_HEARD_CHARS :]
        self._unanswered, self._heard = "", heard
        intent, dialog = understand(self._business, self._dialog, heard)
        dialog = replace(dialog, silences=-PATIENCE if intent is Intent.WAIT else 0)
        turn = self._turn(dialog, language.words_of(heard), now)
        if intent is Intent.UNKNOWN:
            return self._not_understood(turn)
        return self._take(turn, TABLE[dialog.state][intent], intent)

    def silence(self, now: datetime) -> Reply | None:
        """What to say when the caller has been silent for a while; None for nothing."""
        dialog = replace(self._dialog, silences=self._dialog.silences + 1)
        if dialog.state is State.ENDED or dialog.silences <= 0:
            self._dialog = dialog
            return None
        self._heard = ""
        row = SILENT[min(dialog.silences, SILENCES_BEFORE_GOODBYE) - 1]
        return self._take(self._turn(dialog, [], now), row, Intent.UNKNOWN)

    def interrupted(self, heard_text: str) -> None:
        """The last reply was cut; `heard_text` is the beginning of it that was heard.

        Of nothing heard nothing stays: the caller's words are answered together with the next. An
        open question must have been reached to count as asked. A hang-up or transfer is off.
        """
        heard = len(heard_text.split())
        if not heard and not isinstance(self._action, TakeMessage):
            self._dialog, self._unanswered = self._before, self._heard
        elif isinstance(self._action, Hangup | Transfer):
            self._dialog = replace(self._dialog, state=State.OPEN)
        else:
            statement = re.split(r"(?<=[.?!]) ", self._dialog.last)[:-1]
            reached = heard > len(" ".join(statement).split())
            self._dialog = replace(self._dialog, heard_question=reached)
        self._action = None

    def _turn(self, dialog: Dialog, words: Sequence[str], now: datetime) -> Turn:
        return Turn(self._business, dialog, words, now, self._seed)

    def _not_understood(self, turn: Turn) -> Reply:
        dialog = turn.dialog
        question = QUESTIONS[State.OPEN if dialog.state is State.ENDED else dialog.state](turn)
        if not dialog.heard_question:
            return self._say(f"{turn.pick('Sorry.', 'Excuse me.')} {question}", dialog)
        dialog = replace(dialog, misses=dialog.misses + 1)
        turn = replace(turn, dialog=dialog)
        if dialog.misses >= MISSES_BEFORE_GIVING_UP:
            return self._take(turn, TABLE[dialog.state][Intent.UNKNOWN], Intent.YES)
        if dialog.misses == 1:
            lead = turn.pick("Sorry, I did not catch that.", "I did not understand you, sorry.")
        else:
            lead = HINTS.get(dialog.state) or can_do(turn)
        return self._say(f"{lead} {question}", dialog)

    def _take(self, turn: Turn, row: Row, intent: Intent) -> Reply:
        before = turn.dialog.state
        state = row.to or before
        if row.to is None and row.asks and before in _OPEN_STATES:
            state = State.OPEN
        dialog = replace(turn.dialog, state=state)
        if intent is not Intent.UNKNOWN:
            dialog = replace(dialog, misses=0)
        same = any(before in s and state in s for s in (_NAME_STATES, _NUMBER_STATES))
        refused = dialog.rejections + (intent is Intent.NO)
        dialog = replace(dialog, rejections=refused if same else 0)
        if row.forgets == "number":
            dialog = replace(dialog, number="")
        elif row.forgets == "name":
            dialog = replace(dialog, name="")
        turn = replace(turn, dialog=dialog)
        text = row.say(turn)
        if row.to is None and row.asks and state is not State.OPEN:
            text = f"{text} {QUESTIONS[state](turn)}"
        said = text if row.asks else dialog.said
        return self._say(text, dialog, row.act(turn), said)

    def _say(
        self, text: str, dialog: Dialog, action: Action | None = None, said: str | None = None
    ) -> Reply:
        said = text if said is None else said
        if text == dialog.last:
            text = f"As I said: {text}"
        self._before, self._action = self._dialog, action
        self._dialog = replace(
            dialog, said=said, last=text, turns=dialog.turns + 1, heard_question=True
        )
        return Reply(text, action)
