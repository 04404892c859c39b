"""The messages of one mailbox, as whoever they are for hears them by phone.

state     event                                   → state
count     it was heard, or a key was pressed      → message, or over if there are none
message   it was heard                            → menu
message   the key to hear it again                → message
menu      likewise                                → message
message   the key to delete it, or for the next   → message, the next, or over after the last
menu      likewise                                → the same
menu      no key, fewer than TRIES times          → menu
menu      no key, TRIES times                     → over
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import Enum, auto
from typing import Protocol

from offhook.media.pcm import Pcm

TRIES = 3
"""Times that the keys are announced to somebody who presses none; then the call ends."""


@dataclass(frozen=True)
class Message:
    id: str
    caller: str
    """Name or number; "" if unknown."""
    left_at: datetime
    text: str
    """Its words, as they were recognized."""
    heard: bool


class MailboxFault(Exception):
    """The messages cannot be reached now; says why."""


class Mailbox(Protocol):
    """One mailbox. Methods raise MailboxFault."""

    async def messages(self) -> Sequence[Message]:
        """Return the messages in the order in which they are played."""

    async def listen(self, message: str) -> Pcm | None:
        """Return the sound of a message at 24 kHz, None if there is none; it counts as heard."""

    async def delete(self, message: str) -> None:
        """Delete a message with all that is known of its call."""


class InboxState(Enum):
    COUNT = auto()
    MESSAGE = auto()
    MENU = auto()
    OVER = auto()


class Event(Enum):
    HEARD = auto()
    AGAIN = auto()
    DELETE = auto()
    NEXT = auto()
    SILENT = auto()


KEYS = {"1": Event.AGAIN, "2": Event.DELETE, "3": Event.NEXT}

_ADVANCES = (Event.DELETE, Event.NEXT)
TRANSITIONS: Mapping[tuple[InboxState, Event], InboxState] = {
    (InboxState.COUNT, Event.HEARD): InboxState.MESSAGE,
    (InboxState.MESSAGE, Event.HEARD): InboxState.MENU,
    (InboxState.MENU, Event.SILENT): InboxState.MENU,
    **{
        (state, event): InboxState.MESSAGE
        for state in (InboxState.COUNT, InboxState.MESSAGE, InboxState.MENU)
        for event in (Event.AGAIN, *_ADVANCES)
    },
}


class Inbox:
    """Which message is played, and what comes after it."""

    def __init__(self, messages: Sequence[Message]) -> None:
        self._messages = messages
        self._position = 0
        self._silences = 0
        self.state = InboxState.COUNT if messages else InboxState.OVER

    @property
    def number(self) -> int:
        """Which message is played, from 1 on."""
        return self._position + 1

    @property
    def message(self) -> Message:
        return self._messages[self._position]

    @property
    def is_at_end(self) -> bool:
        """Whether no message is left."""
        return self._position == len(self._messages)

    def apply(self, event: Event) -> Message | None:
        """Go on; return the message that is to be deleted."""
        before, self.state = self.state, TRANSITIONS[self.state, event]
        self._silences = self._silences + 1 if event is Event.SILENT else 0
        if self._silences == TRIES:
            self.state = InboxState.OVER
        if before is InboxState.COUNT or event not in _ADVANCES:
            return None
        message = self.message
        self._position += 1
        if self.is_at_end:
            self.state = InboxState.OVER
        return message if event is Event.DELETE else None
