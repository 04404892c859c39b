"""A transfer with a briefing: who is rung when, and what becomes of each. Sans-io.

What a person goes through is the table below; the caller hears music until one is connected, or is
back with the agent once nobody is left.

    WAITING → RINGING → BRIEFING → CHOSEN → CONNECTED
                  ↘  AGREED ↗↘        ↘ OVER, and the next is rung

All at once, several may be briefed at a time; the first who accepts has the caller.
"""

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum, auto
from typing import Literal, NamedTuple

from offhook.pipeline.conversation.events import TransferState


class Stage(Enum):
    """How far one person is."""

    WAITING = auto()
    RINGING = auto()
    AGREED = auto()
    """Has accepted at a desk, while the phone still rings; nobody is briefed."""
    BRIEFING = auto()
    CHOSEN = auto()
    """Has accepted, and is about to be connected."""
    CONNECTED = auto()
    OVER = auto()


class Event(Enum):
    TURN = auto()
    """It is this person's turn to be rung."""
    ANSWERED = auto()
    AGREED = auto()
    """Accepted at a desk, before the call is answered: ACCEPTED follows once it is."""
    UNREACHED = auto()
    """Busy, no answer, or the call failed."""
    ACCEPTED = auto()
    DECLINED = auto()
    MACHINE = auto()
    """A machine has answered; its call is hung up already."""
    HUNG_UP = auto()
    UNDECIDED = auto()
    """The time for a decision is over."""
    BRIDGED = auto()
    CALLER_GONE = auto()
    OTHER_CHOSEN = auto()
    """Another person has accepted."""


class Action(Enum):
    RING = auto()
    CONNECT = auto()
    CANCEL = auto()
    """End a call that has not been answered, or that no person has answered."""
    SAY_DECLINED = auto()
    """Say goodbye to the person, and hang up; the others are the same with other words."""
    SAY_UNDECIDED = auto()
    SAY_CALLER_GONE = auto()
    SAY_OTHER_CHOSEN = auto()


class Transition(NamedTuple):
    stage: Stage
    event: Event
    next: Stage
    action: Action | None
    report: TransferState | None
    reason: str


S, E, A = Stage, Event, Action
TABLE = (
    Transition(S.WAITING, E.TURN, S.RINGING, A.RING, "ringing", ""),
    Transition(S.WAITING, E.CALLER_GONE, S.OVER, None, None, ""),
    Transition(S.WAITING, E.OTHER_CHOSEN, S.WAITING, None, None, ""),
    Transition(S.RINGING, E.ANSWERED, S.BRIEFING, None, "briefing", ""),
    Transition(S.RINGING, E.UNREACHED, S.OVER, None, "rejected", "not reached"),
    Transition(S.RINGING, E.HUNG_UP, S.OVER, None, "rejected", "hung up"),
    Transition(S.RINGING, E.MACHINE, S.OVER, None, "rejected", "a machine answered"),
    Transition(S.RINGING, E.CALLER_GONE, S.OVER, A.CANCEL, None, ""),
    Transition(S.RINGING, E.OTHER_CHOSEN, S.OVER, A.CANCEL, None, ""),
    Transition(S.RINGING, E.AGREED, S.AGREED, None, None, ""),
    Transition(S.RINGING, E.DECLINED, S.OVER, A.CANCEL, "rejected", "declined"),
    Transition(S.AGREED, E.ACCEPTED, S.CHOSEN, A.CONNECT, "accepted", ""),
    Transition(S.AGREED, E.DECLINED, S.OVER, A.CANCEL, "rejected", "declined"),
    Transition(S.AGREED, E.UNDECIDED, S.OVER, A.CANCEL, "rejected", "no decision"),
    Transition(S.AGREED, E.UNREACHED, S.OVER, None, "rejected", "not reached"),
    Transition(S.AGREED, E.HUNG_UP, S.OVER, None, "rejected", "hung up"),
    Transition(S.AGREED, E.CALLER_GONE, S.OVER, A.CANCEL, None, ""),
    Transition(S.AGREED, E.OTHER_CHOSEN, S.OVER, A.CANCEL, None, ""),
    Transition(S.BRIEFING, E.ACCEPTED, S.CHOSEN, A.CONNECT, "accepted", ""),
    Transition(S.BRIEFING, E.DECLINED, S.OVER, A.SAY_DECLINED, "rejected", "declined"),
    Transition(S.BRIEFING, E.UNDECIDED, S.OVER, A.SAY_UNDECIDED, "rejected", "no decision"),
    Transition(S.BRIEFING, E.MACHINE, S.OVER, None, "rejected", "a machine answered"),
    Transition(S.BRIEFING, E.HUNG_UP, S.OVER, None, "rejected", "hung up"),
    Transition(S.BRIEFING, E.UNREACHED, S.OVER, None, "rejected", "the call failed"),
    Transition(S.BRIEFING, E.CALLER_GONE, S.OVER, A.SAY_CALLER_GONE, None, ""),
    Transition(S.BRIEFING, E.OTHER_CHOSEN, S.OVER, A.SAY_OTHER_CHOSEN, None, ""),
    Transition(S.CHOSEN, E.BRIDGED, S.CONNECTED, None, "bridged", ""),
    Transition(S.CHOSEN, E.HUNG_UP, S.OVER, None, "rejected", "hung up"),
    Transition(S.CHOSEN, E.CALLER_GONE, S.OVER, A.SAY_CALLER_GONE, None, ""),
)
"""Every other event changes nothing: it comes late, as a key behind a decision."""
_ROWS = {(row.stage, row.event): row for row in TABLE}
_AWAITED = (S.RINGING, S.AGREED, S.BRIEFING, S.CHOSEN)


@dataclass(frozen=True)
class Report:
    """The transfer has come to a state."""

    state: TransferState
    person: int | None = None
    """Whom it is about, by position; None: the transfer as a whole."""
    reason: str = ""


class BriefedTransfer:
    """Of one caller, to `people` persons; `next_action` and `next_report` say what is to be done
    after each event."""

    def __init__(self, people: int, *, all_at_once: bool) -> None:
        self.stages = [S.WAITING] * people
        self.result: Literal["connected", "failed", "canceled"] | None = None
        """None while it is under way."""
        self._all_at_once = all_at_once
        self._actions: deque[tuple[Action, int]] = deque()
        self._reports: deque[Report] = deque([Report("requested")])
        self._ring_next()

    def receive(self, event: Event, person: int, reason: str = "") -> None:
        """Something has become of a person; `reason` says more than the table, if it is known."""
        row = _ROWS.get((self.stages[person], event))
        if row is None:
            return
        self.stages[person] = row.next
        if row.action is not None:
            self._actions.append((row.action, person))
        if row.report is not None:
            self._reports.append(Report(row.report, person, reason or row.reason))
        if event is E.ACCEPTED:
            for other in self._others(person):
                self.receive(E.OTHER_CHOSEN, other)
        elif row.next is S.CONNECTED:
            self.result = "connected"
        elif row.next is S.OVER and self.result is None:
            self._ring_next()

    def caller_gone(self) -> None:
        """The caller has hung up: nobody is rung any more, and whoever is briefed is released."""
        if self.result is not None:
            return
        self.result = "canceled"
        self._reports.append(Report("canceled", reason="the caller hung up"))
        for person in range(len(self.stages)):
            self.receive(E.CALLER_GONE, person)

    def next_action(self) -> tuple[Action, int] | None:
        """Returns what is to be done, and for whom; None: nothing more."""
        return self._actions.popleft() if self._actions else None

    def next_report(self) -> Report | None:
        return self._reports.popleft() if self._reports else None

    def _others(self, person: int) -> Iterator[int]:
        return (other for other in range(len(self.stages)) if other != person)

    def _ring_next(self) -> None:
        """Ring who is next, or all; nobody is left: the transfer has failed."""
        if any(stage in _AWAITED for stage in self.stages):
            return
        waiting = [person for person, stage in enumerate(self.stages) if stage is S.WAITING]
        if not waiting:
            self.result = "failed"
            self._reports.append(Report("failed", reason="nobody accepted the call"))
        for person in waiting if self._all_at_once else waiting[:1]:
            self.receive(E.TURN, person)
