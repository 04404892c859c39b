"""The front desk: a rule-based receptionist, for a server without network or language model.

It gives opening hours, address and other facts of a business, takes a message, transfers the call,
says what it does not know, and is honest about being a machine. Pure and deterministic: words in,
words out; the time is an argument. `STEPS` is what it asks for, `TABLE` what it answers; how words
become an `Intent` is `frontdesk_intents`, and the business is `frontdesk_business`.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from enum import Enum, auto
from typing import NamedTuple

from offhook.pipeline import frontdesk_language as language
from offhook.pipeline.digits import pressed_in, without_keys
from offhook.pipeline.frontdesk_business import DEMO, Business, say_hours
from offhook.pipeline.frontdesk_intents import SURE, Intent, recognise

MAX_HEARD_CHARS = 1000
"""More of one turn than this is not looked at."""
MAX_MESSAGE_CHARS = 500
"""Of a message; the rest is cut off at a word."""
MAX_READ_BACK_CHARS = 160
"""Of a message read back to the caller."""
MISSES_BEFORE_GIVING_UP = 3
PATIENCE = 2
"""Silences that pass without a word after the caller asked to wait."""
UNCLEAR_WORDS = 2
"""More words than these were heard well enough: it is their subject that is not known."""


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


class Step(Enum):
    """What the front desk is waiting for."""

    OPEN = auto()
    """Anything may be asked."""
    MORE = auto()
    """"Is there anything else?" """
    OFFER = auto()
    """A message was offered, after too much was not understood."""
    ENDED = auto()
    NAME = auto()
    NUMBER = auto()
    TEXT = auto()
    """The message itself."""
    DEPARTMENT = auto()
    SPELLING = auto()
    """The name that the caller wants spelled."""


@dataclass(frozen=True)
class Dialog:
    """All that the front desk remembers of a call."""

    step: Step = Step.OPEN
    checking: bool = False
    """What was given is read back, and waits for a yes."""
    given: Mapping[Step, str] = field(default_factory=dict)
    caller: str = ""
    """The number of this call, as digits; empty when it is not known."""
    misses: int = 0
    """Turns in a row that were not understood."""
    silences: int = 0
    refusals: int = 0
    """How often what was read back at this step was refused."""
    heard_question: bool = True
    """Whether the caller heard the question that is open."""
    said: str = "How can I help you?"
    """The last reply without an introduction such as "once more"."""
    last: str = ""
    """The last reply as it was said."""
    turns: int = 0

    def with_given(self, step: Step, value: str) -> "Dialog":
        return replace(self, given={**self.given, step: value})


# What is given in answer to a question -----------------------------------------------------------

Given = tuple[str, float]
"""The value, and how surely it is one."""


def _read_name(dialog: Dialog, words: Sequence[str], heard: str) -> Given | None:
    old = dialog.given.get(Step.NAME, "")
    if dialog.step is Step.NAME and old and (spelled := language.spelling_in(words)):
        return language.respell(old, spelled), SURE
    name, said_so = language.name_in(words)
    if not name or (dialog.checking and not said_so and words[0] != "no"):
        return None
    return name, SURE if said_so else 0.75


def _read_number(dialog: Dialog, words: Sequence[str], heard: str) -> Given | None:
    number = dialog.given.get(Step.NUMBER, "")
    if dialog.checking and (corrected := language.correct_number(number, words)):
        return corrected, SURE
    if (dialog.checking and words[0] == "no") or not language.is_mostly_number(words):
        return None
    before = "" if dialog.checking else number
    return before + language.digits_in(words).lstrip("+" if before else ""), SURE


def _read_text(dialog: Dialog, words: Sequence[str], heard: str) -> Given | None:
    text = " ".join(heard.split())
    if dialog.checking:
        if len(words) < 4:
            return None
        if words[0] in ("and", "also", "add", "plus"):
            text = f"{dialog.given[Step.TEXT]} {text}"
        else:
            text = re.sub(r"^(no|now|know)\b\W*", "", text, flags=re.IGNORECASE)
    return _shortened(text, MAX_MESSAGE_CHARS, ""), SURE


def _shortened(text: str, limit: int, ending: str) -> str:
    return (
        text if len(text) <= limit else (text[:limit].rpartition(" ")[0] or text[:limit]) + ending
    )


class Asked(NamedTuple):
    """One thing that is asked for, read back and asked again until it is right."""

    question: tuple[str, ...]
    hint: str
    """Said before the question when the answer was not understood twice."""
    read: Callable[[Dialog, Sequence[str], str], Given | None] | None = None
    """None: what is given is found by its intent."""
    check: tuple[str, ...] = ()
    """Reads it back; empty: it is not read back."""
    refused: tuple[str, ...] = ()
    """When that was not right."""
    let_be: str = ""
    """When it was not right again, or nothing was understood."""
    skipped: str = "All right."
    """When it is not given."""
    then: Step = Step.MORE
    """What is asked next, given or not."""


STEPS: dict[Step, Asked] = {
    Step.OPEN: Asked(("How can I help you?", "What can I do for you?"), ""),
    Step.ENDED: Asked(("How can I help you?", "What can I do for you?"), ""),
    Step.MORE: Asked(("Is there anything else?", "Anything else I can do?"), ""),
    Step.OFFER: Asked(("Shall I take a message?", "Would you like to leave a message?"), ""),
    Step.SPELLING: Asked(
        ("Which name shall I spell?", "What is the name to spell?"),
        "Your first or last name is all I need.",
        _read_name,
    ),
    Step.NAME: Asked(
        ("What is your name?", "May I have your name?"),
        "Your first and last name is all I need.",
        _read_name,
        ("I have {name}, spelled {letters}. Is that right?",
         "I heard {name}, spelled {letters}. Is that right?"),
        ("I am sorry. Please spell it, letter by letter.", "Then I misheard. How is it spelled?"),
        "I am sorry, names are hard for me. Your number will do.",
        "Then without a name.",
        Step.NUMBER,
    ),
    Step.NUMBER: Asked(
        ("What number can we call you on?", "What is your telephone number?"),
        "Please say the digits one by one, or press the keys.",
        _read_number,
        ("I have {number}. Is that right?", "Your number is {number}. Is that right?"),
        ("I am sorry, once more from the start. {question}", "Again then. {question}"),
        "I note the number as I have it.",
        "Then without a number.",
        Step.TEXT,
    ),
    Step.TEXT: Asked(
        ("What is the message?", "What shall I pass on?"),
        "Say all that you want me to write down.",
        _read_text,
        ("Your message is: {text}. Shall I pass it on?",),
        ("Then once more. {question}", "Let us try again. {question}"),
        "Then I pass it on as I have it.",
        "No message then.",
    ),
    Step.DEPARTMENT: Asked(
        ("Who would you like, {either}?", "Shall it be {either}?"),
        "I can put you through to {either}.",
        None,
        ("{closed}Shall I put you through to {department}?",
         "{closed}To {department}, is that right?"),
        ("All right. {question}", "Somebody else then. {question}"),
    ),
}  # fmt: skip
CALLERS_NUMBER = ("Shall we call you back on {number}?", "Is the best number for you {number}?")
"""Instead of asking for it, when the number of the call is known."""
CHECK_HINT = "You can say yes or no, or tell me what to change."


# What is answered --------------------------------------------------------------------------------


class Row(NamedTuple):
    say: tuple[str, ...]
    """Variants. Fields in braces are those of `_Turn.fields`."""
    to: Step | None = None
    """The step to which this leads, its question said after the words; None: stay."""
    asks: bool = True
    """Whether the question that was open is asked again, if it was one of a message."""


_GREETING = "Good {part_of_day}, this is the automatic front desk of {business}. {question}"
_CAN_DO = (
    "I can tell you our opening hours and our address, {or_take}take a message{or_through}.",
    "You can ask when we are open or where we are, {or_take}leave a message{or_department}.",
)
_MESSAGE = Row(("I will take a message.", "Yes, a message."), Step.NAME)
_TRANSFER = Row(("Of course.", "Gladly."), Step.DEPARTMENT)
_BYE = Row(("{closing} Goodbye.", "{closing} Goodbye, and take care."), Step.ENDED)
_LET_BE = Row(("All right, I let that be.", "I have dropped it."), Step.MORE)
_AS_YOU_WISH = Row(("All right.", "As you wish."), Step.MORE)

CONTROL = {
    Intent.REPEAT: Row(("I said: {said}", "Once more: {said}", "Again: {said}"), asks=False),
    Intent.SLOWER: Row(("More slowly: {slowly}", "Slowly now: {slowly}"), asks=False),
    Intent.WAIT: Row(("Take your time.", "Of course, I will wait."), asks=False),
    Intent.GOODBYE: _BYE,
}
"""Understood at any time."""
INFORMATION = {
    Intent.HOURS: Row(("{hours}",)),
    Intent.ADDRESS: Row(("You find us at {address}. {directions}",)),
    Intent.FACT: Row(("{fact}",)),
    Intent.DEPARTMENTS: Row(("{departments}",)),
    Intent.TIME: Row(("It is {clock} in the {part_of_day}.",)),
    Intent.DATE: Row(("Today is {date}.",)),
    Intent.WHO: Row(("I am the automatic front desk of {business}. I have no other name.",)),
    Intent.ROBOT: Row(("Yes, I am a machine, with a simple set of rules.",
                       "I am a computer program, not a person.")),
    Intent.HEAR_ME: Row(("Yes, I can hear you. {question}", "I hear you well. {question}")),
    Intent.HELP: Row(_CAN_DO),
}  # fmt: skip
"""Understood at any time but while a message is dictated."""
ANYTHING = CONTROL | INFORMATION | {
    Intent.MESSAGE: _MESSAGE,
    Intent.TRANSFER: _TRANSFER,
    Intent.SPELL: Row(("Gladly.", "Of course."), Step.SPELLING),
    Intent.GREETING: Row(("Hello. {question}", "Hello again. {question}")),
    Intent.HOW_ARE_YOU: Row(("I am well, thank you. {question}", "Very well, thanks. {question}")),
    Intent.THANKS: Row(("You are welcome.", "My pleasure."), Step.MORE),
    Intent.ABOUT: Row(("{about}",)),
    Intent.COUNT: Row(("{count}",)),
    Intent.READ_NUMBER: Row(("{number_given}",)),
    Intent.GIVES_NAME: Row(("Hello {name}. {question}",)),
    Intent.CANCEL: Row(("All right.", "As you wish."), Step.OPEN),
    Intent.DONE: _BYE,
    Intent.YES: Row(("Yes?", "I am listening."), Step.OPEN),
    Intent.NO: Row(("All right.", "I see."), Step.MORE),
}  # fmt: skip
MORE = {
    Intent.YES: Row(("Yes.", "Gladly."), Step.OPEN),
    Intent.NO: _BYE,
    Intent.THANKS: _BYE,
}
OFFER = CONTROL | INFORMATION | {
    Intent.MESSAGE: _MESSAGE,
    Intent.TRANSFER: _TRANSFER,
    Intent.YES: _MESSAGE,
    Intent.NO: _AS_YOU_WISH,
    Intent.CANCEL: _AS_YOU_WISH,
    Intent.DONE: _BYE,
}  # fmt: skip
ASKED = CONTROL | INFORMATION | {Intent.CANCEL: _LET_BE}
DICTATING = CONTROL | {
    Intent.CANCEL: _LET_BE,
    Intent.HELP: Row(("Say all that you want me to write down, in one go.",)),
    Intent.YES: Row(("Go ahead, I am listening.", "Please speak.")),
}
TABLE: dict[Step, Mapping[Intent, Row]] = {
    Step.OPEN: ANYTHING,
    Step.ENDED: ANYTHING,
    Step.MORE: ANYTHING | MORE,
    Step.OFFER: OFFER,
    Step.SPELLING: ASKED,
    Step.NAME: ASKED,
    Step.NUMBER: ASKED,
    Step.TEXT: DICTATING,
    Step.DEPARTMENT: ASKED | {Intent.MESSAGE: _MESSAGE, Intent.TRANSFER: _TRANSFER},
}
"""What is answered at each step, beside what is given there and yes or no to it."""
WITH_READING = (Step.NAME, Step.NUMBER, Step.TEXT, Step.DEPARTMENT, Step.SPELLING)
WHILE_ASKING = frozenset((Intent.NO, Intent.SKIP, Intent.DONE))
WHILE_CHECKING = WHILE_ASKING | {Intent.YES, Intent.THANKS}
"""What else is understood then; `FrontDesk._decide` acts on it."""
SENT = ("Thank you, I pass your message on.", "Your message is noted.")
PUT_THROUGH = ("I put you through to {department}. One moment, please.",)
SPELLED = ("{name} is spelled {letters}.",)
PART = ("I have {number} so far. What comes next?",)
TOO_LONG = ("That is too long for a number.",)
GIVE_UP = ("I am sorry, I still do not understand.", "I am afraid this is beyond me.")
LINE_IS_BAD = ("I am sorry, the line is too bad. Please call again. Goodbye.",)
UNCLEAR = ("Sorry, I did not catch that.", "I did not understand you, sorry.")
NOT_KNOWN = ("I do not know about that, sorry. {can_do}",)
SILENT = (
    Row(("Are you still there?", "Hello?", "I am listening.")),
    Row(_CAN_DO),
    Row(("I cannot hear you. {closing} Goodbye.",), Step.ENDED),
)
"""One after the other, while the caller says nothing."""
REFUSED = {"busy": "is busy", "no answer": "does not answer",
           "temporarily unavailable": "does not answer"}  # fmt: skip
"""What a transfer failed of, in the words of the telephone network and in ours."""


def _deciding(dialog: Dialog) -> frozenset[Intent]:
    if dialog.step not in WITH_READING:
        return frozenset()
    return WHILE_CHECKING if dialog.checking else WHILE_ASKING


# The front desk ----------------------------------------------------------------------------------

_OPEN = (Step.OPEN, Step.MORE, Step.ENDED)


class FrontDesk:
    """One call. Say `greeting`, then answer each turn of the caller with `reply`.

    `now` is the local time of the business. `seed` varies the phrasing between calls. `caller` is
    the number of the call, if it has one.
    """

    def __init__(self, business: Business = DEMO, seed: int = 0, caller: str = "") -> None:
        self._business = business
        self._seed = seed
        self._dialog = Dialog(caller=language.plain_number(caller))
        self._before = self._dialog
        """As it was before the last reply, in case nothing of that was heard."""
        self._action: Action | None = None
        self._words: Sequence[str] = ()
        self._heard = ""
        """What is answered now, or was answered last."""
        self._unanswered = ""
        """What was said before an answer of which nothing was heard: part of the next turn."""

    @property
    def step(self) -> Step:
        return self._dialog.step

    @property
    def checking(self) -> bool:
        """Whether what was given at this step is being read back."""
        return self._dialog.checking

    def greeting(self, now: datetime) -> Reply:
        return self._say(self._dialog, Row((_GREETING,)), now)

    def reply(self, heard: str, now: datetime) -> Reply:
        """The answer to one turn of the caller, as recognised; any text will do."""
        heard = f"{self._unanswered} {heard}".strip()[-MAX_HEARD_CHARS:]
        self._unanswered, self._heard = "", heard
        intent, dialog = self.understand(heard)
        dialog = replace(dialog, silences=-PATIENCE if intent is Intent.WAIT else 0)
        if intent is Intent.UNKNOWN:
            return self._not_understood(dialog, now)
        dialog = replace(dialog, misses=0)
        if intent is Intent.GIVES:
            return self._given(dialog, now)
        if intent in _deciding(dialog):
            return self._decide(dialog, intent, now)
        return self._say(dialog, TABLE[dialog.step][intent], now)

    def silence(self, now: datetime) -> Reply | None:
        """What to say when the caller has been silent for a while; None for nothing."""
        dialog = replace(self._dialog, silences=self._dialog.silences + 1)
        if dialog.step is Step.ENDED or dialog.silences <= 0:
            self._dialog = dialog
            return None
        self._heard = ""
        return self._say(dialog, SILENT[min(dialog.silences, len(SILENT)) - 1], now)

    def not_transferred(self, reason: str, now: datetime) -> Reply:
        """What to say when the transfer of the last reply did not succeed."""
        self._heard = ""
        what = next((ours for sign, ours in REFUSED.items() if sign in reason.lower()), "")
        text = f"I am sorry, {{department}} {what or 'cannot be reached just now'}."
        return self._say(self._dialog, Row((text,), Step.OFFER), now)

    def interrupted(self, heard_text: str) -> None:
        """The last reply was cut; `heard_text` is the beginning of it that was heard.

        Of nothing heard nothing stays: the caller's words are answered together with the next. An
        open question must have been reached to count as asked. A hang-up or transfer is off.
        """
        heard = len(heard_text.split())
        if not heard and not isinstance(self._action, TakeMessage):
            self._dialog, self._unanswered = self._before, self._heard
        elif isinstance(self._action, Hangup | Transfer):
            self._dialog = replace(self._dialog, step=Step.OPEN)
        else:
            statement = re.split(r"(?<=[.?!]) ", self._dialog.last)[:-1]
            reached = heard > len(" ".join(statement).split())
            self._dialog = replace(self._dialog, heard_question=reached)
        self._action = None

    # --- what was meant ---

    def understand(self, heard: str) -> tuple[Intent, Dialog]:
        """What these words mean at this point of the call, and the dialog with what they gave.
        Keys are a number where one is asked for, and mean nothing elsewhere."""
        dialog = self._dialog
        keys = pressed_in(heard) if dialog.step is Step.NUMBER else ""
        heard = f"{without_keys(heard)} {keys}"
        words = self._words = language.words_of(heard)
        if not words:
            return Intent.UNKNOWN, dialog
        read, rows = STEPS[dialog.step].read, TABLE[dialog.step]
        intent, sure = recognise(words, rows.keys() | _deciding(dialog))
        given = read(dialog, words, heard) if read is not None else None
        if given is not None and given[1] > sure:
            # An answer to a question that was never heard is no answer, unless it says what it is.
            said_so = dialog.step is Step.NUMBER or (given[1] >= SURE and dialog.step is Step.NAME)
            if not dialog.heard_question and not said_so:
                return Intent.UNKNOWN, dialog
            step = Step.NAME if dialog.step is Step.SPELLING else dialog.step
            return Intent.GIVES, dialog.with_given(step, given[0])
        if intent is Intent.YES and not dialog.heard_question:
            return Intent.UNKNOWN, dialog
        if Intent.TRANSFER in rows and (found := self._department(dialog, words, intent, sure)):
            return found
        name = language.name_in(words)[0] if "name is" in " ".join(words) else ""
        if dialog.step in _OPEN and sure < SURE and name:
            return Intent.GIVES_NAME, dialog.with_given(Step.NAME, name)
        if intent is Intent.SPELL:
            asked = words[words.index("spell") + 1 :] if "spell" in words else []
            if name := language.name_in(asked)[0] or dialog.given.get(Step.NAME, ""):
                dialog = replace(dialog, step=Step.SPELLING)
                return Intent.GIVES, dialog.with_given(Step.NAME, name)
        if intent is Intent.UNKNOWN and Intent.FACT in rows and self._business.fact_in(words):
            return Intent.FACT, dialog
        return intent, dialog

    def _department(
        self, dialog: Dialog, words: Sequence[str], intent: Intent, sure: float
    ) -> tuple[Intent, Dialog] | None:
        """When a department is named, or one is asked for where there is none to choose."""
        wanted = intent is Intent.TRANSFER or dialog.step is Step.DEPARTMENT
        named = self._business.department_in(words)
        names = list(self._business.departments)
        if wanted and not names:
            return Intent.DEPARTMENTS, dialog
        whoever = {"anyone", "anybody", "whoever", "any", "matter", "care"} & set(words)
        if wanted and not named and (whoever or len(names) == 1):
            named = names[0]
        if not named or not (wanted or (len(words) <= 3 and sure < 1)):
            return None
        dialog = replace(dialog, step=Step.DEPARTMENT, checking=False)
        return Intent.GIVES, dialog.with_given(Step.DEPARTMENT, named)

    # --- what follows from it ---

    def _given(self, dialog: Dialog, now: datetime) -> Reply:
        if dialog.step is Step.SPELLING:
            return self._say(replace(dialog, step=Step.OPEN), Row(SPELLED), now)
        digits = len(dialog.given.get(Step.NUMBER, "").lstrip("+"))
        if dialog.step is Step.NUMBER and digits > language.MAX_NUMBER_DIGITS:
            dialog = dialog.with_given(Step.NUMBER, "")
            return self._say(replace(dialog, checking=False), Row(TOO_LONG), now)
        if dialog.step is Step.NUMBER and digits < language.MIN_NUMBER_DIGITS:
            return self._say(replace(dialog, checking=False), Row(PART, asks=False), now)
        return self._say(replace(dialog, checking=True), Row(("",)), now)

    def _decide(self, dialog: Dialog, intent: Intent, now: datetime) -> Reply:
        """Yes, no and the like, where something is asked for or read back."""
        asked, step = STEPS[dialog.step], dialog.step
        if intent is Intent.DONE and not dialog.checking and dialog.given.get(step):
            return self._say(replace(dialog, checking=True), Row(("All right.",)), now)
        if not dialog.checking or intent is Intent.SKIP:
            return self._go_on(dialog.with_given(step, ""), asked.skipped, now)
        if intent is not Intent.NO:
            return self._accept(dialog, now)
        if dialog.refusals and asked.then is not Step.MORE:
            return self._go_on(dialog, asked.let_be, now)
        lead = asked.refused
        if step is Step.NUMBER:
            lead = ("All right. {question}",) if self._is_callers(dialog) else lead
            dialog = dialog.with_given(step, "")
        dialog = replace(dialog, checking=False, refusals=dialog.refusals + 1)
        return self._say(dialog, Row(lead, asks=False), now)

    def _accept(self, dialog: Dialog, now: datetime, lead: str = "") -> Reply:
        if dialog.step is Step.DEPARTMENT:
            number = self._business.departments[dialog.given[Step.DEPARTMENT]].number
            return self._say(dialog, Row(PUT_THROUGH, Step.ENDED), now, Transfer(number))
        if dialog.step is Step.TEXT:
            message = TakeMessage(
                *(dialog.given.get(step, "") for step in (Step.NAME, Step.NUMBER, Step.TEXT))
            )
            return self._say(dialog, Row(SENT, Step.MORE), now, message)
        return self._go_on(dialog, lead or "Thank you.", now)

    def _go_on(self, dialog: Dialog, lead: str, now: datetime) -> Reply:
        return self._say(dialog, Row((lead,), STEPS[dialog.step].then), now)

    def _not_understood(self, dialog: Dialog, now: datetime) -> Reply:
        if not dialog.heard_question:
            return self._say(dialog, Row(("Sorry. {question}", "Excuse me. {question}")), now)
        dialog = replace(dialog, misses=dialog.misses + 1)
        if dialog.misses >= MISSES_BEFORE_GIVING_UP:
            return self._give_up(replace(dialog, misses=0), now)
        if dialog.step in _OPEN and len(self._words) > UNCLEAR_WORDS:
            return self._say(dialog, Row(NOT_KNOWN), now)
        hint = CHECK_HINT if dialog.checking else STEPS[dialog.step].hint or "{can_do}"
        leads = UNCLEAR if dialog.misses == 1 else (hint,)
        return self._say(dialog, Row(tuple(f"{lead} {{question}}" for lead in leads)), now)

    def _give_up(self, dialog: Dialog, now: datetime) -> Reply:
        asked = STEPS[dialog.step]
        if dialog.step is Step.OFFER:
            return self._say(dialog, Row(LINE_IS_BAD, Step.ENDED), now, Hangup())
        if dialog.checking and asked.let_be:
            return self._accept(dialog, now, asked.let_be)
        if not dialog.checking and asked.then is not Step.MORE:
            return self._go_on(dialog.with_given(dialog.step, ""), asked.skipped, now)
        return self._say(dialog, Row(GIVE_UP, Step.OFFER), now)

    # --- saying it ---

    def _say(self, dialog: Dialog, row: Row, now: datetime, action: Action | None = None) -> Reply:
        """Take the step of the row and say its words, and the question that is then open."""
        dialog = self._enter(dialog, row)
        if row.to is Step.ENDED and action is None:
            action = Hangup()
        template = self._pick(dialog, row.say)
        asks = row.asks and "{question}" not in template
        if asks and dialog.step is not Step.ENDED and (row.to or dialog.step not in _OPEN):
            template += " {question}"
        text = " ".join(template.format_map(self._fields(dialog, now)).split())
        said = text if row.asks else dialog.said
        if text == dialog.last:
            text = f"As I said: {text}"
        self._before, self._action = self._dialog, action
        self._dialog = replace(
            dialog, said=said, last=text, turns=dialog.turns + 1, heard_question=True
        )
        return Reply(text, action)

    def _enter(self, dialog: Dialog, row: Row) -> Dialog:
        if row.to is None:
            stays = dialog.step not in _OPEN or not row.asks
            return dialog if stays else replace(dialog, step=Step.OPEN)
        if row.to is Step.NUMBER and not dialog.given.get(Step.NUMBER):
            dialog = dialog.with_given(Step.NUMBER, dialog.caller)
        elif row.to in (Step.TEXT, Step.DEPARTMENT):
            dialog = dialog.with_given(row.to, "")
        known = row.to in (Step.NAME, Step.NUMBER) and bool(dialog.given.get(row.to))
        return replace(dialog, step=row.to, checking=known, refusals=0)

    def _pick(self, dialog: Dialog, variants: Sequence[str]) -> str:
        """One of the variants, in turn."""
        return variants[(self._seed + dialog.turns) % len(variants)]

    def _is_callers(self, dialog: Dialog) -> bool:
        return bool(dialog.caller) and dialog.given.get(Step.NUMBER) == dialog.caller

    def _fields(self, dialog: Dialog, now: datetime) -> dict[str, str]:
        """All that a line may speak of."""
        business, given, asked = self._business, dialog.given, STEPS[dialog.step]
        number, name = given.get(Step.NUMBER, ""), given.get(Step.NAME, "")
        either = language.say_list(list(business.departments), "or")
        question = self._pick(dialog, asked.check if dialog.checking else asked.question)
        if dialog.checking and dialog.step is Step.NUMBER and self._is_callers(dialog):
            question = self._pick(dialog, CALLERS_NUMBER)
        text = language.say_plainly(given.get(Step.TEXT, ""))
        words = dialog.said.split()
        slowly = [w + "," if i % 2 and w[-1].isalpha() else w for i, w in enumerate(words[:-1])]
        top = min(max(language.cardinal_in(self._words) or 10, 2), 30)
        half = "morning" if now.hour < 12 else "afternoon" if now.hour < 18 else "evening"
        closed = "We are closed now, so perhaps nobody answers. "
        about = f"This is {business.name}. You find us at {business.address}."
        fields = {
            "about": business.about or about,
            "address": business.address,
            "business": business.name,
            "clock": language.say_clock(now.hour * 60 + now.minute),
            "closed": "" if business.is_open(now) else closed,
            "closing": business.closing,
            "count": ", ".join(map(language.say_cardinal, range(1, top + 1))) + ".",
            "date": f"{now:%A}, the {language.say_ordinal(now.day)} of {now:%B}",
            "department": given.get(Step.DEPARTMENT) or "that line",
            "departments": f"I can put you through to {either}." if either
            else "There is only me, and I can take a message.",
            "directions": business.directions,
            "either": either,
            "fact": business.fact_in(self._words),
            "hours": say_hours(business, language.day_in(self._words), now),
            "letters": language.say_letters(name),
            "name": name,
            "number": language.say_number(number),
            "number_given": f"I have {language.say_number(number)}." if number
            else "You have not given me a number.",
            "or_department": ", or ask for a department" if either else "",
            "or_take": "" if either else "or ",
            "or_through": ", or put you through" if either else "",
            "part_of_day": half,
            "said": dialog.said,
            "slowly": " ".join([*slowly, *words[-1:]]),
            "text": _shortened(text, MAX_READ_BACK_CHARS, ", and so on").rstrip(".,;:!?"),
        }  # fmt: skip
        fields["can_do"] = self._pick(dialog, _CAN_DO).format_map(fields)
        fields["question"] = question.format_map(fields)
        return fields
