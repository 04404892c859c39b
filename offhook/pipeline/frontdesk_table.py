"""What the front desk says and does: state x intent -> state, reply.

`TABLE` is the whole of its behaviour; the lines and questions it is made of stand before it.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import Enum, auto
from typing import NamedTuple

from offhook.pipeline import frontdesk_language as language
from offhook.pipeline.frontdesk_business import Business, Department, say_hours
from offhook.pipeline.frontdesk_intents import Intent

MAX_READ_BACK_CHARS = 160
"""Of a message read back to the caller."""
SILENCES_BEFORE_GOODBYE = 3

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
    CALLER_NUMBER = auto()
    """The number of this call is offered as the one to call back."""
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
    caller: str = ""
    """The number of this call, as digits; empty when it is not known."""
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


def opening_hours(turn: Turn) -> str:
    return say_hours(turn.business, language.day_in(turn.words), turn.now)


def where(turn: Turn) -> str:
    return f"You find us at {turn.business.address}. {turn.business.directions}".strip()


def _names(business: Business, last: str = "and") -> str:
    return language.say_list([department.name for department in business.departments], last)


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


_REFUSALS = (
    ("busy", "is busy"),
    ("no answer", "does not answer"),
    ("temporarily unavailable", "does not answer"),
)


def not_transferred(turn: Turn, reason: str) -> str:
    """In the words of a receptionist: the reason is the telephone network's."""
    name = turn.dialog.department.name if turn.dialog.department else "that line"
    what = "cannot be reached just now"
    for sign, meaning in _REFUSALS:
        if sign in reason.lower():
            what = meaning
    return f"I am sorry, {name} {what}. {QUESTIONS[State.OFFER](turn)}"


def goodbye(turn: Turn) -> str:
    return f"{turn.business.closing} " + turn.pick("Goodbye.", "Goodbye, and take care.")


# What it asks ------------------------------------------------------------------------------------


def read_name(turn: Turn) -> str:
    name = turn.dialog.name
    return f"{name}, spelled {language.say_letters(name)}. Is that right?"


def read_number_back(turn: Turn) -> str:
    lead = turn.pick("I have", "Your number is", "That makes")
    return f"{lead} {language.say_number(turn.dialog.number)}. Is that right?"


def offer_caller_number(turn: Turn) -> str:
    number = language.say_number(turn.dialog.caller)
    lead = turn.pick("Shall we call you back on", "Is the best number for you")
    return f"{lead} {number}?"


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
    is_open = turn.business.is_open(turn.now)
    warning = "" if is_open else "We are closed now, so perhaps nobody answers. "
    return warning + turn.pick(f"Shall I put you through to {name}?", f"To {name}, is that right?")


QUESTIONS: dict[State, Line] = {
    State.OPEN: says("How can I help you?", "What can I do for you?"),
    State.ASK_NAME: says("What is your name?", "May I have your name?"),
    State.CONFIRM_NAME: read_name,
    State.SPELL_NAME: says("Please spell your name, letter by letter.", "How is it spelled?"),
    State.NAME_TO_SPELL: says("Which name shall I spell?", "What is the name to spell?"),
    State.CALLER_NUMBER: offer_caller_number,
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
    State.CALLER_NUMBER: "You can say yes, no, or another number.",
    State.ASK_NUMBER: "Please say the digits one by one, or press the keys.",
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
    """To another state: a few words, then the question of the state that comes of it."""
    lead = says(*leads)
    if state is State.ASK_NUMBER:
        forgets = "number"

    def say(turn: Turn) -> str:
        return f"{lead(turn)} {QUESTIONS[turn.dialog.state](turn)}".strip()

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
_PART = Row(
    State.ASK_NUMBER,
    lambda turn: f"I have {language.say_number(turn.dialog.number)} so far. What comes next?",
)
_TOO_MANY = _then(State.ASK_NUMBER, "That is too long for a number.")
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
    State.CALLER_NUMBER: _ASKED | {
        Intent.YES: _then(State.ASK_TEXT, "Good.", "Thank you."),
        Intent.NO: _then(State.ASK_NUMBER, "All right.", "Another one then."),
        Intent.GIVES_NUMBER: _then(State.CONFIRM_NUMBER, "", "Thank you."),
        Intent.GIVES_PART: _PART,
        Intent.GIVES_TOO_MANY: _TOO_MANY,
        Intent.SKIP: _NO_NUMBER,
        Intent.UNKNOWN: _then(State.ASK_TEXT, "I note the number that you are calling from."),
    },
    State.ASK_NUMBER: _ASKED | {
        Intent.GIVES_NUMBER: _then(State.CONFIRM_NUMBER, "", "Thank you."),
        Intent.GIVES_PART: _PART,
        Intent.GIVES_TOO_MANY: _TOO_MANY,
        Intent.DONE: _then(State.CONFIRM_NUMBER, "All right."),
        Intent.SKIP: _NO_NUMBER,
        Intent.UNKNOWN: _NO_NUMBER,
    },
    State.CONFIRM_NUMBER: _ASKED | {
        Intent.YES: _then(State.ASK_TEXT, "Good.", "Thank you."),
        Intent.NO: _then(State.ASK_NUMBER, "I am sorry, once more from the start.", "Again then."),
        Intent.NO_AGAIN: _then(State.ASK_TEXT, "I am sorry, I note the number as I have it."),
        Intent.GIVES_NUMBER: _then(State.CONFIRM_NUMBER, "I changed it.", "Changed."),
        Intent.GIVES_TOO_MANY: _TOO_MANY,
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
