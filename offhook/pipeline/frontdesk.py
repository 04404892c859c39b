"""The front desk: a rule-based receptionist, for a server without network or language model.

It gives opening hours, address and departments, takes a message, transfers the call and is honest
about being a machine. Pure and deterministic: words in, words out; the time is an argument. What a
caller may say in which state, what is answered and where that leads is `frontdesk_table`; how words
become an `Intent` is `frontdesk_intents`; whom it speaks for is `frontdesk_business`.
"""

import re
from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime

from offhook.pipeline import frontdesk_language as language
from offhook.pipeline.digits import pressed_in, without_keys
from offhook.pipeline.frontdesk_business import DEMO, Business, BusinessError, Department
from offhook.pipeline.frontdesk_intents import SURE, Intent, recognise
from offhook.pipeline.frontdesk_table import (
    HINTS,
    QUESTIONS,
    SILENCES_BEFORE_GOODBYE,
    SILENT,
    TABLE,
    Action,
    Dialog,
    Hangup,
    Reply,
    Row,
    State,
    TakeMessage,
    Transfer,
    Turn,
    can_do,
    greeting,
    not_transferred,
)

__all__ = [
    "DEMO",
    "Action",
    "Business",
    "BusinessError",
    "FrontDesk",
    "Hangup",
    "Reply",
    "TakeMessage",
    "Transfer",
    "understand",
]

MAX_MESSAGE_CHARS = 500
"""Of a message; the rest is cut off at a word."""
MISSES_BEFORE_GIVING_UP = 3
PATIENCE = 2
"""Silences that pass without a word after the caller asked to wait."""


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
_NUMBER_STATES = (State.CALLER_NUMBER, State.ASK_NUMBER, State.CONFIRM_NUMBER)
_RETRIES = (_NAME_STATES, _NUMBER_STATES[1:])
"""States between which one thing is asked for until it is right."""
_TEXT_STATES = (State.ASK_TEXT, State.CONFIRM_TEXT)
_OPEN_STATES = (State.OPEN, State.MORE, State.ENDED)


def understand(business: Business, dialog: Dialog, heard: str) -> tuple[Intent, Dialog]:
    """What these words mean in this state of the dialog, and the dialog with what they gave. Keys
    are a number where one is asked for, and mean nothing elsewhere."""
    keys = pressed_in(heard) if dialog.state in _NUMBER_STATES else ""
    heard = f"{without_keys(heard)} {keys}"
    words = language.words_of(heard)
    if not words:
        return Intent.UNKNOWN, dialog
    rows = TABLE[dialog.state]
    intent, sure = recognise(words, rows)
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

    def not_transferred(self, reason: str, now: datetime) -> Reply:
        """What to say when the transfer of the last reply did not succeed."""
        self._heard = ""
        dialog = replace(self._dialog, state=State.OFFER)
        return self._say(not_transferred(self._turn(dialog, [], now), reason), dialog)

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
        if state is State.ASK_NUMBER and before in _NAME_STATES and turn.dialog.caller:
            state = State.CALLER_NUMBER
        dialog = replace(turn.dialog, state=state)
        if before is State.CALLER_NUMBER and intent is Intent.YES:
            dialog = replace(dialog, number=dialog.caller)
        if intent is not Intent.UNKNOWN:
            dialog = replace(dialog, misses=0)
        same = any(before in s and state in s for s in _RETRIES)
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
