"""A call that rings at all phones of an extension at once: forking as in RFC 3261 §16.7, in short.

Sans-io; the INVITEs are sent in `ringing_io`.

    state      event                              → state      action
    ringing    a phone answers                    → answered   cancel the others (elsewhere)
    ringing    a phone declines for all (6xx)     → failed     cancel the others
    ringing    a phone refuses, others ring       → ringing    remember its refusal
    ringing    the last phone refuses             → failed     the best refusal is the call's
    ringing    the caller gives up                → given up   cancel all
    answered   another answers all the same       → answered   hang it up: completed elsewhere
"""

from collections.abc import Mapping
from enum import Enum, auto

from offhook.telephony.call_progress_io import DialError


class ForkState(Enum):
    RINGING = auto()
    ANSWERED = auto()
    FAILED = auto()
    GIVEN_UP = auto()


class Event(Enum):
    ANSWERED = auto()
    DECLINED = auto()
    REFUSED = auto()
    EXHAUSTED = auto()
    GIVEN_UP = auto()


TRANSITIONS: Mapping[tuple[ForkState, Event], ForkState] = {
    (ForkState.RINGING, Event.ANSWERED): ForkState.ANSWERED,
    (ForkState.RINGING, Event.DECLINED): ForkState.FAILED,  # RFC 3261 §16.7, step 5
    (ForkState.RINGING, Event.REFUSED): ForkState.RINGING,
    (ForkState.RINGING, Event.EXHAUSTED): ForkState.FAILED,  # step 6
    (ForkState.RINGING, Event.GIVEN_UP): ForkState.GIVEN_UP,
}

_LITTLE_SAID = frozenset({0, 408, 480, 487})
"""Refusals that say only that nobody was there: any other of their class says more."""


class ForkedCall:
    """Decides what becomes of a call that rings at several phones."""

    def __init__(self, phones: int) -> None:
        self.state = ForkState.RINGING
        self._left = phones
        self._refusals: list[DialError] = []

    def answered(self) -> bool:
        """A phone has answered. Returns whether it gets the call; else it is to be hung up."""
        wins = self.state is ForkState.RINGING
        self._apply(Event.ANSWERED)
        return wins

    def refused(self, error: DialError) -> None:
        """A phone has refused the call, or could not be reached."""
        self._left -= 1
        self._refusals.append(error)
        if error.status // 100 == 6:
            self._apply(Event.DECLINED)
        else:
            self._apply(Event.REFUSED if self._left else Event.EXHAUSTED)

    def give_up(self) -> None:
        """The caller has hung up."""
        self._apply(Event.GIVEN_UP)

    @property
    def refusal(self) -> DialError:
        """The refusal that is passed on: 6xx before all, then the lowest class, and in it one that
        says more than that nobody was there."""
        return min(self._refusals, key=_rank)

    def _apply(self, event: Event) -> None:
        self.state = TRANSITIONS.get((self.state, event), self.state)


def _rank(error: DialError) -> tuple[int, bool]:
    of_class = error.status // 100 or 9
    return (0 if of_class == 6 else of_class), error.status in _LITTLE_SAID
