"""SIP calls that another edge continues when theirs has died or drains: who has which call.

Each edge holds a lease in Redis, which it renews, and saves its calls under it. When the lease runs
out, or a draining edge gives it up, other edges claim the calls, each call at one edge, and send
re-INVITEs (RFC 3261 §14.1).

    state         event                                         → state
    (none)        a call of this edge can be continued          → HELD
    (none)        a call of another edge is claimed             → RECOVERING
    RECOVERING    the far end accepts the re-INVITE             → HELD
    RECOVERING    it refuses it, or nothing can be read         → OVER
    HELD          this edge drains                              → OFFERED
    HELD …        another edge has claimed it                   → ELSEWHERE
    HELD …        it ends, or is transferred                    → OVER

Sans-io: times are monotonic seconds.
"""

from collections.abc import Mapping
from enum import Enum, auto
from typing import NamedTuple

MAX_RECOVERING = 8
"""Calls that an edge claims at once: their re-INVITEs, engines and first words all come together,
beside the calls that it has. More are claimed as these are answered."""
MAX_CLAIMS = 3
"""Claims of one call without an answered re-INVITE, after which it is given up: what ends one edge
must not end all."""


class SavedCallState(Enum):
    """Of a call, as this edge sees it."""

    HELD = auto()
    """Its conversation runs here, and it is saved."""
    OFFERED = auto()
    """The same, at an edge that drains: any other may claim it."""
    RECOVERING = auto()
    """It was claimed from another edge; the re-INVITE is unanswered."""
    ELSEWHERE = auto()
    """Another edge continues it."""
    OVER = auto()
    """It has ended, or is not to be continued any more."""


class CallEvent(Enum):
    BEGUN = auto()
    """The conversation of a call begins that another edge could continue."""
    CLAIMED = auto()
    """This edge has claimed it from another one."""
    ANSWERED = auto()
    """The far end has accepted the re-INVITE."""
    REFUSED = auto()
    """It has refused it or not answered, or what was saved is unusable."""
    CHANGED = auto()
    """What another edge needs has changed."""
    DRAINED = auto()
    """This edge is about to end."""
    CLAIMED_ELSEWHERE = auto()
    """Another edge has claimed it from this one."""
    KEPT = auto()
    """No other edge has claimed it before this one ends."""
    ENDED = auto()
    """It has ended here, or was transferred."""


class CallAction(Enum):
    NOTHING = auto()
    SAVE = auto()
    """Save it as it is now."""
    REINVITE = auto()
    """Read what is saved and send the re-INVITE."""
    FORGET = auto()
    """Delete what is saved."""
    LEAVE = auto()
    """End it here without a message to the far end."""


class CallTransition(NamedTuple):
    state: SavedCallState
    action: CallAction


_S, _E, _A = SavedCallState, CallEvent, CallAction

TABLE: Mapping[tuple[SavedCallState | None, CallEvent], CallTransition] = {
    (None, _E.BEGUN): CallTransition(_S.HELD, _A.SAVE),
    (None, _E.CLAIMED): CallTransition(_S.RECOVERING, _A.REINVITE),
    (_S.RECOVERING, _E.ANSWERED): CallTransition(_S.HELD, _A.SAVE),
    (_S.RECOVERING, _E.REFUSED): CallTransition(_S.OVER, _A.FORGET),
    (_S.RECOVERING, _E.ENDED): CallTransition(_S.OVER, _A.FORGET),
    (_S.RECOVERING, _E.CLAIMED_ELSEWHERE): CallTransition(_S.ELSEWHERE, _A.LEAVE),
    (_S.RECOVERING, _E.KEPT): CallTransition(_S.OVER, _A.NOTHING),
    (_S.HELD, _E.CHANGED): CallTransition(_S.HELD, _A.SAVE),
    (_S.HELD, _E.DRAINED): CallTransition(_S.OFFERED, _A.SAVE),
    (_S.HELD, _E.CLAIMED_ELSEWHERE): CallTransition(_S.ELSEWHERE, _A.LEAVE),
    (_S.HELD, _E.KEPT): CallTransition(_S.OVER, _A.NOTHING),
    (_S.HELD, _E.ENDED): CallTransition(_S.OVER, _A.FORGET),
    (_S.OFFERED, _E.CHANGED): CallTransition(_S.OFFERED, _A.SAVE),
    (_S.OFFERED, _E.CLAIMED_ELSEWHERE): CallTransition(_S.ELSEWHERE, _A.LEAVE),
    (_S.OFFERED, _E.KEPT): CallTransition(_S.OVER, _A.NOTHING),
    (_S.OFFERED, _E.ENDED): CallTransition(_S.OVER, _A.FORGET),
}
"""Events without a row come too late and are ignored."""

_FINAL = (SavedCallState.ELSEWHERE, SavedCallState.OVER)


class CallTable:
    """The calls of one edge by their ids; those that are over here are forgotten."""

    def __init__(self) -> None:
        self._states: dict[str, SavedCallState] = {}

    def apply(self, call: str, event: CallEvent) -> CallAction:
        """Return what is to be done."""
        row = TABLE.get((self._states.get(call), event))
        if row is None:
            return CallAction.NOTHING
        if row.state in _FINAL:
            self._states.pop(call, None)
        else:
            self._states[call] = row.state
        return row.action

    def state(self, call: str) -> SavedCallState | None:
        return self._states.get(call)

    def calls(self, *states: SavedCallState) -> list[str]:
        """Return the calls in these states; all without any."""
        return [call for call, state in self._states.items() if not states or state in states]

    @property
    def free(self) -> int:
        """Number of calls that may be claimed now."""
        return max(0, MAX_RECOVERING - len(self.calls(SavedCallState.RECOVERING)))


class Lease:
    """The lease of one edge, which lasts `seconds` from each renewal."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self._renewed_at: float | None = None
        self._since = 0.0
        """Since when it is renewed without a gap."""
        self._given_up = False

    def renewed(self, sent_at: float) -> None:
        """Apply a renewal that was sent to Redis at that time."""
        if not self.valid(sent_at):
            self._since = sent_at
        self._renewed_at = sent_at

    def give_up(self) -> None:
        """End it: this edge drains."""
        self._given_up = True

    def valid(self, now: float) -> bool:
        """Return whether no other edge can have claimed our calls."""
        renewed_at = self._renewed_at
        return not self._given_up and renewed_at is not None and now < renewed_at + self.seconds

    def lapsed(self, now: float) -> bool:
        """Return whether others may have claimed our calls because we could not renew it."""
        renewed_at = self._renewed_at
        return not self._given_up and renewed_at is not None and now >= renewed_at + self.seconds

    def may_claim(self, now: float) -> bool:
        """Return whether to claim calls of others. Not before our own lease was renewed for its
        whole duration: after an outage of Redis all leases have run out, and each edge needs time
        to renew its own."""
        return self.valid(now) and now >= self._since + self.seconds
