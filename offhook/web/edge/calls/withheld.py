"""Keeps what was said while a recording was paused out of the log, the store, webhooks, timelines.

What is withheld, by what it is and when it began and ended:

    words of the caller      begun or ended while paused
    words of a member        likewise
    words of the agent       begun or ended while paused
    a tool, a detail, …      called or answered while paused
    numbers, all call long   four digits of which were in any of these, written or spoken
    secret details           everywhere

Since the model still knows a card number after the pause, and may repeat it or tell it a tool, the
digits are remembered, while the call lasts, to be masked wherever they come again.
"""

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import fields, replace
from typing import Any

from offhook.pipeline.conversation.events import (
    AgentTurn,
    CallerPartial,
    CallerTurn,
    CallerTyped,
    DetailNoted,
    Dtmf,
    Event,
    Interrupted,
    MemberTurn,
    PlayoutPaused,
    PlayoutResumed,
    RecordingPaused,
    RecordingResumed,
    SpeechStarted,
    ToolUsed,
    TurnDiscarded,
)
from offhook.pipeline.speech.redact import MASK
from offhook.web.http.logs import WORDS
from offhook.web.records.entries import NOT_KEPT

LIKE = 4
"""Digits in a row that make a number one that was withheld."""
MAX_RUNS = 5000
"""Runs of LIKE digits remembered of a call; with more, every number of LIKE digits is masked."""
SHORTEST_PHRASE = 3
"""Characters from which on a secret detail is masked as it stands; in words a shorter one would be
everywhere."""
MAX_PHRASES = 200
"""Secret details remembered of a call; the first ones stay."""
LATE_MS = 30_000
"""Time in ms after a pause in which a turn of which the beginning was not noticed is withheld."""
_ONES = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")
_TEENS = (
    *("ten", "eleven", "twelve", "thirteen", "fourteen", "fifteen", "sixteen"),
    *("seventeen", "eighteen", "nineteen"),
)
_TENS = ("twenty", "thirty", "forty", "fifty", "sixty", "seventy", "eighty", "ninety")
_DIGITS = {
    "oh": "0",
    **{word: str(n) for n, word in enumerate(_ONES)},
    **{word: str(n + 10) for n, word in enumerate(_TEENS)},
    **{word: str(n * 10) for n, word in enumerate(_TENS, 2)},
}
_TIMES = {"double": 2, "triple": 3}
_WORD = "|".join((*_DIGITS, *_TIMES, "hundred", "thousand"))
_PART = rf"(?:\d|\b(?:{_WORD})\b)"
_NUMBER = re.compile(rf"(?i){_PART}(?:[\s.,/:_-]{{0,3}}(?:and\s)?{_PART})*")
_PARTS = re.compile(rf"(?i)\d+|\b(?:{_WORD})\b")


def digits_of(number: str) -> str:
    """Returns the digits of a number, written or spoken in English.

    >>> digits_of("4111 double one forty-two")
    '41111142'
    """
    digits, times = "", 1
    after_ten = False
    for part in _PARTS.findall(number.lower()):
        if part in _TIMES:
            times = _TIMES[part]
            continue
        found = part if part.isdigit() else _DIGITS.get(part, "")
        if after_ten and part in _ONES[1:]:  # forty-two
            digits = digits[:-1]
        after_ten = part in _TENS
        digits += found * times
        times = 1
    return digits


class Withheld:
    """What is kept of the events of one call, which pass through here in order."""

    def __init__(self, speaks: Callable[[], bool] = lambda: False) -> None:
        """`speaks` returns whether the agent is saying something."""
        self._speaks = speaks
        self.paused = False
        self._turn_open = self._turn_bare = False
        """Whether the caller's turn has begun, and whether all of it may be kept."""
        self._reply_withheld = False
        """The agent's reply in progress had begun while paused."""
        self._since = self._until = -1
        """When the last pause began and ended, in ms."""
        self._runs: set[str] = set()
        self._tail = ""
        """The last digits of the caller that were withheld: a number may come in several turns."""
        self._phrases: list[str] = []

    def withhold(self, words: str) -> None:
        """Keeps these words, and their numbers, out of all that follows."""
        for number in _NUMBER.finditer(words):
            digits = digits_of(number[0])
            if len(self._runs) < MAX_RUNS:
                self._runs.update(digits[i : i + LIKE] for i in range(len(digits) - LIKE + 1))

    def withhold_secret(self, words: str) -> None:
        """The same of a secret detail, which is masked as it stands, too."""
        self.withhold(words)
        if len(words) >= SHORTEST_PHRASE and len(self._phrases) < MAX_PHRASES:
            self._phrases.append(words)

    def kept(self, event: Event) -> Event:
        """Returns an event as it is kept; the same one if nothing of it is withheld."""
        self._follow(event)
        if self._is_withheld(event):
            event = self._emptied(event)
        self._end(event)
        return self._masked_event(event) if self._runs or self._phrases else event

    def masked(self, value: Any) -> Any:
        """Returns a value without the numbers and secrets that were withheld."""
        match value:
            case str():
                for phrase in self._phrases:
                    value = re.sub(re.escape(phrase), MASK, value, flags=re.IGNORECASE)
                return _NUMBER.sub(self._mask, value)
            case Mapping():
                return {name: self.masked(one) for name, one in value.items()}
            case list() | tuple():
                return type(value)(map(self.masked, value))
            case bool():
                return value
            case int() | float() if self._is_like(f"{value:.0f}"):
                return MASK
        return value

    # --- what happens ---

    def _follow(self, event: Event) -> None:
        match event:
            case RecordingPaused(at_ms=at_ms):
                self.paused, self._since = True, at_ms
                self._turn_bare = False
            case RecordingResumed(at_ms=at_ms):
                self.paused, self._until = False, at_ms
                self._reply_withheld = self._speaks()
            case PlayoutPaused(onset_ms=began) | SpeechStarted(at_ms=began):
                self._begin_turn(began)
            case CallerPartial() | Dtmf():
                self._begin_turn(event.at_ms)
            case CallerTurn() if not self._turn_open:
                self._begin_turn(event.at_ms - LATE_MS)

    def _begin_turn(self, at_ms: int) -> None:
        if not self._turn_open:
            self._turn_open = True
            self._turn_bare = not self.paused and at_ms > self._until

    def _end(self, event: Event) -> None:
        if isinstance(event, CallerTurn | TurnDiscarded | PlayoutResumed):
            self._turn_open = False
        elif isinstance(event, AgentTurn) and not self.paused:
            self._reply_withheld = False

    def _is_withheld(self, event: Event) -> bool:
        if isinstance(event, RecordingPaused | RecordingResumed):
            return False
        if self.paused:
            return True
        match event:
            case CallerTurn() | CallerPartial():
                return self._since >= 0 and not self._turn_bare
            case MemberTurn(began_ms=began_ms):
                return began_ms <= self._until
            case AgentTurn() | Interrupted():
                return self._reply_withheld
            case ToolUsed(at_ms=at_ms):
                return self._since <= at_ms <= self._until
        return False

    def _emptied(self, event: Event) -> Event:
        changes: dict[str, Any] = {}
        for name in _words_of(event):
            words = getattr(event, name)
            if not words:
                continue
            if isinstance(event, CallerTurn | CallerTyped | MemberTurn):
                self._withhold_turn(words)
            elif isinstance(event, ToolUsed | DetailNoted):
                self.withhold(words)
            changes[name] = NOT_KEPT
        return replace(event, **changes) if changes else event

    def _withhold_turn(self, words: str) -> None:
        digits = "".join(digits_of(number[0]) for number in _NUMBER.finditer(words))
        self.withhold(words)
        self.withhold(self._tail + digits)
        self._tail = (self._tail + digits)[1 - LIKE :]

    def _masked_event(self, event: Event) -> Event:
        changes = {}
        for one in fields(event):
            if one.name in ("at_ms", "by", "reason", "statistics"):
                continue
            value = getattr(event, one.name)
            if isinstance(value, str | Mapping) and (masked := self.masked(value)) != value:
                changes[one.name] = masked
        return replace(event, **changes) if changes else event

    def _mask(self, number: re.Match[str]) -> str:
        return MASK if self._is_like(digits_of(number[0])) else number[0]

    def _is_like(self, digits: str) -> bool:
        if len(digits) < LIKE:
            return False
        if len(self._runs) >= MAX_RUNS:
            return True
        return any(digits[i : i + LIKE] in self._runs for i in range(len(digits) - LIKE + 1))


def _words_of(event: Event) -> Iterator[str]:
    names = {one.name for one in fields(event)}
    yield from (name for name in (*WORDS, "cause") if name in names)
