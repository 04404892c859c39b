"""The running timers of all transactions (RFC 3261 table 4)."""

from heapq import heapify, heappop, heappush
from itertools import count

from offhook.telephony.sip.transactions.transaction import (
    FIRST_S,
    LATE_S,
    LONGEST_S,
    TRYING_S,
    Alarm,
    Timer,
    Transaction,
    TransactionState,
)

STOPPED_ALARMS = 1024
"""Stopped timers left in the heap before it is cleaned up."""


class Alarms:
    """When each timer fires."""

    def __init__(self) -> None:
        self._deadlines: list[tuple[float, int, Alarm]] = []
        """A heap; stopped timers remain in it and are skipped."""
        self._order = count()

    def start(self, transaction: Transaction, timer: Timer, now: float) -> bool:
        """Start a timer, if its transport has it. Returns whether it fires at once."""
        if timer is Timer.TRYING:
            invite = transaction.request.method == "INVITE"
            wait: float | None = TRYING_S if invite else LATE_S
        else:
            wait = FIRST_S[timer][transaction.flow.reliable]
        if wait:
            self._arm(transaction, timer, wait, now)
        return wait == 0

    def restart(self, transaction: Transaction, fired: Alarm, now: float) -> None:
        """Start a timer again, with twice its interval; in Proceeding the longest interval applies
        at once (§17.1.2.2)."""
        longest = LONGEST_S[fired.timer]
        wait = (
            longest
            if transaction.state is TransactionState.PROCEEDING
            else min(2 * fired.seconds, longest)
        )
        self._arm(transaction, fired.timer, wait, now)

    def _arm(self, transaction: Transaction, timer: Timer, wait: float, now: float) -> None:
        alarm = transaction.alarms[timer] = Alarm(transaction, timer, wait)
        heappush(self._deadlines, (now + wait, next(self._order), alarm))

    def clean_up(self, transactions: int) -> None:
        """Remove stopped timers if there are too many for this number of transactions, each of
        which has at most two running."""
        if len(self._deadlines) > 4 * transactions + STOPPED_ALARMS:
            self._deadlines = [d for d in self._deadlines if d[2].transaction is not None]
            heapify(self._deadlines)

    def get_timer(self) -> float | None:
        """When the next timer fires, in monotonic seconds."""
        deadlines = self._deadlines
        while deadlines and deadlines[0][2].transaction is None:
            heappop(deadlines)
        return deadlines[0][0] if deadlines else None

    def pop_due(self, now: float) -> Alarm | None:
        """Return the next timer that fires now, until there are no more."""
        due = self.get_timer()
        return heappop(self._deadlines)[2] if due is not None and due <= now else None
