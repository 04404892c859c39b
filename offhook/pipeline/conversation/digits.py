"""Keys pressed on a telephone, gathered into entries: a number, a choice, a code.

An entry ends with the finish key, with the key that was counted on, or when no key follows for a
while. Pure policy as a table of state x event -> state, actions; times are ms of the line.
"""

import re
from dataclasses import dataclass
from enum import Enum, auto

from offhook.media.dtmf import DIGITS as KEYS

INTER_KEY_MS = 2000
"""Silence of the keys that ends an entry of unknown length."""
INTER_KEY_ASKED_MS = 5000
"""The same where it was said how the entry ends: the caller may be reading from a card."""
MAX_KEYS = 40
"""The longest entry: a key beyond it begins the next."""


@dataclass(frozen=True)
class GatherOptions:
    """How an entry ends. The defaults are for keys that nobody asked for."""

    count: int = 0
    """Keys that make it complete, 1 to MAX_KEYS; 0: as many as come."""
    finish_key: str = "#"
    """"" for none: then every key belongs to the entry."""
    inter_key_ms: int = INTER_KEY_MS

    def __post_init__(self) -> None:
        """Raises ValueError."""
        if not 0 <= self.count <= MAX_KEYS:
            raise ValueError(f"count is not 0 to {MAX_KEYS}")
        if len(self.finish_key) > 1 or self.finish_key not in KEYS:
            raise ValueError("finish_key is not a key")


class DigitState(Enum):
    EMPTY = auto()
    """No key is waiting."""
    COLLECTING = auto()
    COUNTED = auto()
    """An entry was complete by its count. Who presses the finish key all the same means it."""


class Event(Enum):
    KEY = auto()
    LAST_KEY = auto()
    """The key that makes the count, or fills the longest entry."""
    FINISH_KEY = auto()
    TIMEOUT = auto()


class Action(Enum):
    ADD = auto()
    END = auto()


S, E, A = DigitState, Event, Action
TABLE: dict[tuple[DigitState, Event], tuple[DigitState, tuple[Action, ...]]] = {
    (S.EMPTY, E.KEY): (S.COLLECTING, (A.ADD,)),
    (S.EMPTY, E.LAST_KEY): (S.COUNTED, (A.ADD, A.END)),
    # A finish key alone is an answer too: "to go on, press pound".
    (S.EMPTY, E.FINISH_KEY): (S.EMPTY, (A.ADD, A.END)),
    (S.COLLECTING, E.KEY): (S.COLLECTING, (A.ADD,)),
    (S.COLLECTING, E.LAST_KEY): (S.COUNTED, (A.ADD, A.END)),
    (S.COLLECTING, E.FINISH_KEY): (S.EMPTY, (A.ADD, A.END)),
    (S.COLLECTING, E.TIMEOUT): (S.EMPTY, (A.END,)),
    (S.COUNTED, E.KEY): (S.COLLECTING, (A.ADD,)),
    (S.COUNTED, E.LAST_KEY): (S.COUNTED, (A.ADD, A.END)),
    # Out of habit, after the entry had ended: it must not cut the answer.
    (S.COUNTED, E.FINISH_KEY): (S.EMPTY, ()),
    (S.COUNTED, E.TIMEOUT): (S.EMPTY, ()),
}


class Digits:
    """The keys of one call. Sans-io: keys and the time in, entries out.

    `next_entry` gives each completed entry once, in order: its keys, the finish key with them.
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
        """An entry has begun and is not complete."""
        return self.state is DigitState.COLLECTING

    def expect(self, options: GatherOptions) -> None:
        """How the next entry ends, or the one that has begun; the one after it ends as usual."""
        self._options = options
        if self.collecting and options.count and len(self._keys) >= options.count:
            self.state = DigitState.COUNTED
            self._end()

    def press(self, key: str, now: int) -> bool:
        """One of KEYS was pressed. False: it meant nothing."""
        finish_key = self._habit if self.state is DigitState.COUNTED else self._options.finish_key
        if key == finish_key:
            event = Event.FINISH_KEY
        elif len(self._keys) + 1 >= (self._options.count or MAX_KEYS):
            event = Event.LAST_KEY
        else:
            event = Event.KEY
        return bool(self._apply(event, key, now))

    def get_timer(self) -> int | None:
        """When `handle_timer` is due."""
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
    """An entry as a turn of the caller, told from words by its brackets: no speech has any."""
    return f"[pressed {keys}]"


_AS_TEXT = re.compile(r"\[pressed ([0-9*#A-D]+)\]")


def pressed_in(text: str) -> str:
    """The keys of all entries in a turn; "" when there is none."""
    return "".join(_AS_TEXT.findall(text))


def without_keys(text: str) -> str:
    """The words of a turn."""
    return _AS_TEXT.sub(" ", text)
