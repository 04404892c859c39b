"""The front desk: a table-driven receptionist that needs no network and no language model.

It answers questions about a business from the configuration, takes messages, transfers callers, and
admits what it does not know. Sans-io: words in, words and an action out; the time is an argument.
Everything that it says and understands is in frontdesk_dialog.toml.
"""

import re
import textwrap
from copy import deepcopy
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from pydantic import TypeAdapter

from offhook.pipeline.conversation.agents import frontdesk_intents as intents
from offhook.pipeline.conversation.agents.frontdesk_business import (
    DEMO,
    Business,
    spoken_hours,
    spoken_list,
)
from offhook.pipeline.conversation.agents.frontdesk_intents import INTENTS, STEPS, UNKNOWN, Step
from offhook.pipeline.conversation.digits import pressed_in, without_keys

MAX_HEARD_CHARS = 1000
"""Maximum length of a turn; of a longer one the end is used."""
MAX_READ_BACK_CHARS = 160
"""Maximum characters of a message that are read back to the caller; the rest is replaced by "and so
on"."""
MIN_NUMBER_CHARS = 5
"""Characters of a telephone number; a shorter one counts as its beginning."""
MAX_CHARS = {Step.NAME: 40, Step.NUMBER: 16, Step.TEXT: 500}
"""Maximum lengths of a message's fields; a telephone number is "+" and 15 digits at most (ITU-T
E.164)."""
MAX_MISSES = 3
"""Consecutive turns not understood after which the current question is abandoned."""
WAIT_PROMPTS = 2
"""Prompts skipped after the caller asked to wait."""
UNCLEAR_WORDS = 2
"""With more words than this the topic, rather than the recognition, is the problem."""
SURE = 0.95
"""Minimum score (0 to 1) of an intent where the caller may be dictating."""


@dataclass(frozen=True)
class Hangup:
    """End the call once the reply has been heard to its end; cancelled by an interruption."""


@dataclass(frozen=True)
class Transfer:
    """Transfer the call once the reply has been heard to its end; cancelled by an interruption."""

    to: str


@dataclass(frozen=True)
class StoreMessage:
    """Store this message at once. `name` and `number` (digits) are empty if not given."""

    name: str
    number: str
    text: str


Action = Hangup | Transfer | StoreMessage


@dataclass(frozen=True)
class Reply:
    """What the front desk says, and does."""

    text: str
    """Plain sentences for synthesis: no markup, digits as words."""
    action: Action | None = None


FORM = (Step.NAME, Step.NUMBER, Step.TEXT)
"""The fields of a message, in the order of the questions."""
IDLE = (Step.OPEN, Step.MORE, Step.ENDED)


@dataclass
class Dialog:
    """The state of a call's dialog."""

    step: Step = Step.OPEN
    given: dict[Step, str] = field(default_factory=dict)
    """By NAME, NUMBER (possibly incomplete), TEXT, DEPARTMENT; "" for what was not given."""
    misses: int = 0
    """Consecutive turns not understood."""
    silences: int = 0
    heard_question: bool = True
    """Whether the caller heard the open question."""
    said: str = ""
    """The last reply without an introduction such as "once more"."""
    last: str = ""
    """The last reply as spoken."""


_DIALOG = TypeAdapter(Dialog)


class FrontDesk:
    """The front desk of one call. Say `greeting`, then answer each turn with `reply`.

    `now` is the local time of the business; `caller` is the caller's number, if known.
    """

    def __init__(self, business: Business = DEMO, caller: str = "") -> None:
        self._business = business
        number = re.sub(r"[\s().-]", "", caller)
        self._caller = number if re.fullmatch(r"\+?[0-9]{5,15}", number) else ""
        self._dialog = Dialog()
        self._before = Dialog()
        """The state before the last reply, restored if nothing of that was heard."""
        self._action: Action | None = None
        self._words: list[str] = []
        self._heard = ""
        """The turn being answered, or answered last."""
        self._unanswered = ""
        """Words before an answer of which nothing was heard; they are part of the next turn."""

    @property
    def step(self) -> Step:
        return self._dialog.step

    def dialog(self) -> dict[str, Any]:
        """Returns the state of the dialog as JSON."""
        dialog: dict[str, Any] = _DIALOG.dump_python(self._dialog, mode="json")
        return dialog

    def restore(self, dialog: dict[str, Any]) -> None:
        """Restores what `dialog` returned elsewhere. Raises ValueError, changing nothing."""
        restored = _DIALOG.validate_python(dialog)
        if restored.given.get(Step.DEPARTMENT, "") not in (*self._business.departments, ""):
            raise ValueError("a department that this business does not have")
        self._dialog = restored

    def greeting(self, now: datetime) -> Reply:
        return self._say("welcome", now)

    def reply(self, heard: str, now: datetime) -> Reply:
        """Answers one recognized turn of the caller."""
        self._begin(f"{self._unanswered} {heard}".strip()[-MAX_HEARD_CHARS:])
        keys = pressed_in(self._heard) if self.step is Step.NUMBER else ""
        self._words = intents.words_of(f"{without_keys(self._heard)} {keys}")
        intent = self._understand() if self._words else UNKNOWN
        self._dialog.silences = -WAIT_PROMPTS if intent == "wait" else 0
        self._dialog.misses = self._dialog.misses + 1 if intent == UNKNOWN else 0
        return self._say(self._not_understood() if intent == UNKNOWN else intent, now)

    def silence(self, now: datetime) -> Reply | None:
        """Returns what to say when the caller has been silent for a while; None for nothing."""
        self._begin("")
        self._dialog.silences += 1
        if self.step is Step.ENDED or self._dialog.silences <= 0:
            return None
        return self._say(f"silent_{min(self._dialog.silences, 3)}", now)

    def not_transferred(self, reason: str, now: datetime) -> Reply:
        """Returns what to say when the transfer of the last reply failed."""
        self._begin("")
        return self._say("is_busy" if "busy" in reason.lower() else "not_reached", now)

    def interrupted(self, heard_text: str) -> None:
        """Handles an interruption of the last reply after `heard_text`.

        If nothing was heard, the reply is undone: the caller's words are answered together with the
        next ones. An open question counts as asked only if it was reached. A hang-up or transfer is
        cancelled.
        """
        heard = len(heard_text.split())
        if not heard and not isinstance(self._action, StoreMessage):
            self._dialog, self._unanswered = self._before, self._heard
        elif isinstance(self._action, Hangup | Transfer):
            self._dialog.step = Step.OPEN
        else:
            statement = re.split(r"(?<=[.?!]) ", self._dialog.last)[:-1]
            self._dialog.heard_question = heard > len(" ".join(statement).split())
        self._action = None

    def _begin(self, heard: str) -> None:
        self._before = deepcopy(self._dialog)
        self._heard, self._unanswered = heard, ""

    def _understand(self) -> str:
        """Extracts what the words contain; returns the intent of the answer, UNKNOWN for none."""
        asked, words = STEPS[self.step], self._words
        intent, sure = intents.recognise(words)
        if asked.meaning(intent) == UNKNOWN:
            intent, sure = UNKNOWN, 0.0
        if self.step in FORM and sure < SURE and (noted := self._fill()):
            return noted
        if asked.meaning("transfer") != UNKNOWN and (named := self._department(intent)):
            return named
        if intent == "yes" and not self._dialog.heard_question:
            return UNKNOWN
        if intent == UNKNOWN and self.step is not Step.TEXT:
            if "name is" in " ".join(words):
                return "greeting"
            if self._business.fact_in(words):
                return "fact"
            return "hours" if self.step in IDLE and intents.may_ask_for_hours(words) else UNKNOWN
        return asked.meaning(intent)

    def _fill(self) -> str:
        """Fills in what is asked for if the words contain it; returns the intent of the answer, ""
        for none. Any word can be a name or message, but not in answer to a question that was not
        heard."""
        given, step, value = self._dialog.given, self.step, ""
        if step is Step.NUMBER:
            value = intents.number_in(self._words)
        elif self._dialog.heard_question:
            text = " ".join(without_keys(self._heard).split())
            value = intents.name_in(self._words) if step is Step.NAME else text
        if not value:
            return ""
        given[step] = (given.get(step, "") + value)[: MAX_CHARS[step]]
        is_part = step is Step.NUMBER and len(given[step]) < MIN_NUMBER_CHARS
        return "number_so_far" if is_part else "noted"

    def _department(self, intent: str) -> str:
        """Extracts a named department; returns the intent of the answer, "" if none is wanted."""
        named, rest = self._business.department_in(self._words)
        if named and intent == UNKNOWN:
            intent = "transfer" if len(rest) < 2 else intents.recognise(rest)[0]
        if intent != "transfer" and self.step is not Step.DEPARTMENT:
            return ""
        if named:
            self._dialog.given[Step.DEPARTMENT] = named
            return "department_named"
        return "" if self._business.departments else "help"

    def _not_understood(self) -> str:
        if self._dialog.misses >= MAX_MISSES:
            self._dialog.misses = 0
            return STEPS[self.step].gives_up
        again = "_again" if self._dialog.misses > 1 else ""
        is_subject = len(self._words) > UNCLEAR_WORDS or again
        return ("not_known" if self.step in IDLE and is_subject else "unclear") + again

    def _say(self, intent: str, now: datetime) -> Reply:
        """Executes the intent, takes its step, and returns its answer and the open question."""
        dialog, row = self._dialog, INTENTS[intent]
        self._action = self._do(row.act)
        dialog.step = self._next_step(intent)
        asks = row.asks and "{question}" not in row.answer and self.step is not Step.ENDED
        question = " {question}" if asks and (row.to or self.step not in IDLE) else ""
        text = " ".join((row.answer + question).format_map(self._fields(now)).split())
        dialog.said = text if row.asks else dialog.said
        dialog.last = text if text != dialog.last else f"Once more: {dialog.said}"
        dialog.heard_question = True
        return Reply(dialog.last, self._action)

    def _do(self, act: str) -> Action | None:
        given = self._dialog.given
        if act == "transfer":
            return Transfer(self._business.departments[given[Step.DEPARTMENT]].number)
        if act == "take message":
            return StoreMessage(*(given[slot] for slot in FORM))
        return Hangup() if act else None

    def _next_step(self, intent: str) -> Step:
        given, row = self._dialog.given, INTENTS[intent]
        to = Step(row.to) if row.to else None
        if to is Step.NAME:
            given.clear()
            given |= {Step.NUMBER: self._caller} if intent == "message" and self._caller else {}
        if to is Step.CONFIRM:
            if self.step in FORM:
                given[self.step] = given[self.step] if intent == "noted" else ""
            return next((slot for slot in FORM if slot not in given), to)
        if to is None and self.step in IDLE and row.asks:
            return Step.OPEN
        return to or self.step

    def _fields(self, now: datetime) -> dict[str, object]:
        """Returns the fields for templates, including those of `Business`."""
        business, given = self._business, self._dialog.given
        number = intents.spoken_digits(given.get(Step.NUMBER, ""))
        sender = ", ".join(filter(None, (given.get(Step.NAME), number)))
        either = spoken_list(list(business.departments), "or")
        can_do = ["tell you our opening hours and our address", "take a message", "put you through"]
        text = re.sub(r"[^\w\s.,;:!?'’-]|_", " ", given.get(Step.TEXT, ""))
        text = re.sub(r"\d", lambda digit: f" {intents.spoken_cardinal(int(digit[0]))} ", text)
        fields = {
            **dict(business),
            "about": business.about or f"This is {business.name}, {business.address}.",
            "can_do": f"I can {spoken_list(can_do if either else can_do[:2], 'or')}.",
            "clock": intents.spoken_time(now.hour * 60 + now.minute),
            "closed": "" if business.closes(now) else "We are closed now; nobody may answer. ",
            "day": f"{now:%A}",
            "department": given.get(Step.DEPARTMENT, "that line"),
            "either": either or "nobody else",
            "fact": business.fact_in(self._words),
            "hours": spoken_hours(business, intents.day_in(self._words), now),
            "number": number,
            "part_of_day": ("morning", "afternoon", "evening")[(now.hour > 11) + (now.hour > 17)],
            "said": self._dialog.said,
            "sender": f" from {sender}" if sender else "",
            "text": textwrap.shorten(text, MAX_READ_BACK_CHARS, placeholder=", and so on"),
        }
        return fields | {"question": STEPS[self.step].question.format_map(fields)}
