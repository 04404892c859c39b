"""Collects DTMF digits into entries: a number, a choice, a code.

An entry ends with the finish key, with the expected count, or after a pause. Pure policy as a table
of state x event -> state, actions; times are ms of the call.
"""

import re
from dataclasses import dataclass
from enum import Enum, auto

from offhook.media.telephone_tones.dtmf import DIGITS as KEYS

INTER_KEY_MS = 2000
"""Pause in ms that ends an entry of unknown length."""
INTER_KEY_ASKED_MS = 5000
"""The same if the end of the entry was specified: the caller may be reading from a card."""
MAX_KEYS = 40
"""Maximum digits of an entry; the next digit starts another."""


@dataclass(frozen=True)
class GatherOptions:
    """How an entry ends. The defaults apply to unsolicited digits."""

    count: int = 0
    """Digits that complete it, 1 to MAX_KEYS; 0: any number."""
    finish_key: str = "#"
    """Key that ends the entry; "" for none, so that every key belongs to it."""
    inter_key_ms: int = INTER_KEY_MS

    def __post_init__(self) -> None:
        """Raises ValueError for invalid values."""
        if not 0 <= self.count <= MAX_KEYS:
            raise ValueError(f"count is not 0 to {MAX_KEYS}")
        if len(self.finish_key) > 1 or self.finish_key not in KEYS:
            raise ValueError("finish_key is not a key")


class DigitState(Enum):
    EMPTY = auto()
    """No digit is waiting."""
    COLLECTING = auto()
    COUNTED = auto()
    """An entry was complete by its count; a finish key now belongs to it."""


class Event(Enum):
    KEY = auto()
    LAST_KEY = auto()
    """The digit that completes the count or fills the longest entry."""
    FINISH_KEY = auto()
    TIMEOUT = auto()


class Action(Enum):
    ADD = auto()
    END = auto()


S, E, A = DigitState, Event, Action
TABLE: dict[tuple[DigitState, Event], tuple[DigitState, tuple[Action, ...]]] = {
    (S.EMPTY, E.KEY): (S.COLLECTING, (A.ADD,)),
    (S.EMPTY, E.LAST_KEY): (S.COUNTED, (A.ADD, A.END)),
    # A finish key alone is an answer too: "to continue, press pound".
    (S.EMPTY, E.FINISH_KEY): (S.EMPTY, (A.ADD, A.END)),
    (S.COLLECTING, E.KEY): (S.COLLECTING, (A.ADD,)),
    (S.COLLECTING, E.LAST_KEY): (S.COUNTED, (A.ADD, A.END)),
    (S.COLLECTING, E.FINISH_KEY): (S.EMPTY, (A.ADD, A.END)),
    (S.COLLECTING, E.TIMEOUT): (S.EMPTY, (A.END,)),
    (S.COUNTED, E.KEY): (S.COLLECTING, (A.ADD,)),
    (S.COUNTED, E.LAST_KEY): (S.COUNTED, (A.ADD, A.END)),
    # Pressed out of habit after the entry had ended: it must not interrupt the answer.
    (S.COUNTED, E.FINISH_KEY): (S.EMPTY, ()),
    (S.COUNTED, E.TIMEOUT): (S.EMPTY, ()),
}


class Digits:
    """The digits of one call. Sans-io: keys and times in, entries out.

    `next_entry` returns each completed entry once, in order, including the finish key.
    """

    def __init__(self) -> None:
        self.state = DigitState.EMPTY
        self._options = GatherOptions()
        self._habit = ""
        """The finish key of the entry that ended by its count."""
        self._keys = ""
        self._timer: int | None = None
        self._entries: list[str] = []

    @property
    def collecting(self) -> bool:
        """Whether an entry has begun and is not complete."""
        return self.state is DigitState.COLLECTING

    def expect(self, options: GatherOptions) -> None:
        """Sets how the next or current entry ends; later ones end as by default."""
        self._options = options
        if self.collecting and options.count and len(self._keys) >= options.count:
            self.state = DigitState.COUNTED
            self._end()

    def press(self, key: str, now: int) -> bool:
        """Handles a key of KEYS; returns False if it has no effect."""
        finish_key = self._habit if self.state is DigitState.COUNTED else self._options.finish_key
        if key == finish_key:
            event = Event.FINISH_KEY
        elif len(self._keys) + 1 >= (self._options.count or MAX_KEYS):
            event = Event.LAST_KEY
        else:
            event = Event.KEY
        return bool(self._apply(event, key, now))

    def get_timer(self) -> int | None:
        """Returns when `handle_timer` is due."""
        return self._timer

    def handle_timer(self, now: int) -> None:
        if self._timer is not None and now >= self._timer:
            self._apply(Event.TIMEOUT, "", now)

    def next_entry(self) -> str | None:
        return self._entries.pop(0) if self._entries else None

    def _apply(self, event: Event, key: str, now: int) -> tuple[Action, ...]:
        wait = self._options.inter_key_ms
        self.state, actions = TABLE[self.state, event]
        if Action.ADD in actions:
            self._keys += key
        if Action.END in actions:
            self._end()
        self._timer = None if self.state is DigitState.EMPTY else now + wait
        return actions

    def _end(self) -> None:
        self._entries.append(self._keys)
        self._habit = self._options.finish_key
        self._keys, self._options = "", GatherOptions()


def as_text(keys: str) -> str:
    """Returns an entry as text of a turn, in brackets, which never occur in speech."""
    return f"[pressed {keys}]"


_AS_TEXT = re.compile(r"\[pressed ([0-9*#A-D]+)\]")


def pressed_in(text: str) -> str:
    """Returns the digits of all entries in a turn; "" if there are none."""
    return "".join(_AS_TEXT.findall(text))


def without_keys(text: str) -> str:
    """Returns the words of a turn without entries."""
    return _AS_TEXT.sub(" ", text)
