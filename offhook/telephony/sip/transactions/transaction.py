"""The four transaction machines of SIP, as tables: state × event → state, actions.

RFC 3261 §17.1.1 (INVITE client), §17.1.2 (non-INVITE client), §17.2.1 (INVITE server) and §17.2.2
(non-INVITE server) with the changes of RFC 6026 (the state Accepted) and RFC 4320 (provisional and
late answers to other requests). What has no row is ignored: that is how repeats are absorbed.
`transactions.py` carries the actions out.
"""

from collections.abc import Mapping
from enum import Enum, auto
from math import inf

from offhook.telephony.sip.messages.flow import Flow
from offhook.telephony.sip.messages.message import Request, Response

T1 = 0.5
"""Seconds; the estimate of a round trip that all else is counted in (RFC 3261 §17.1.1.1)."""
T2 = 4.0
"""Seconds; the longest wait between two repeats of a non-INVITE request or a final response."""
T4 = 5.0
"""Seconds; the longest that a message stays in the network."""
TRANSACTION_S = 64 * T1
"""How long anybody waits for the other side: 32 s."""
TRYING_S = 0.2
"""From an INVITE to 100 Trying when the user has said nothing yet (§17.2.1)."""
LATE_S = 7 * T1
"""From another request to 100 Trying: when the client's timer E has grown to T2 (RFC 4320 §4.1)."""

Key = tuple[str, ...]
"""By what a transaction is found."""


class TransactionState(Enum):
    CALLING = auto()
    TRYING = auto()
    PROCEEDING = auto()
    COMPLETED = auto()
    CONFIRMED = auto()
    ACCEPTED = auto()
    TERMINATED = auto()


class Timer(Enum):
    """The timers of RFC 3261 table 4 and RFC 6026, and those that have no letter."""

    A = "INVITE is repeated"
    B = "INVITE had no answer"
    D = "no more repeats of the final response are awaited"
    E = "request is repeated"
    F = "request had no final response"
    G = "final response is repeated"
    H = "no ACK came"
    I = "no more repeats of the ACK are awaited"  # noqa: E741
    J = "no more repeats of the request are awaited"
    K = "no more repeats of the response are awaited"
    L = "no more repeats of the accepted INVITE are awaited"
    M = "no more 2xx of other branches are awaited"
    TRYING = "100 Trying is due"
    CANCEL = "the cancelled INVITE had no final response"
    LATE = "the client has given up waiting"


class Event(Enum):
    """What a machine sees besides its timers: for a client what comes from the network, for a
    server the request's repeats and what its user answers."""

    START = auto()
    REQUEST = auto()
    ACK = auto()
    PROVISIONAL = auto()
    SUCCESS = auto()
    FAILURE = auto()
    CANCEL = auto()
    BROKEN = auto()
    """The flow is gone."""


class Action(Enum):
    SEND = auto()
    """Send the message at hand and keep it for repeats."""
    REPEAT = auto()
    """Send again what was sent last."""
    AGAIN = auto()
    """Start the timer that fired again, with twice the time up to its limit."""
    PASS = auto()
    """Give the message at hand to the user."""
    ACK = auto()
    """Acknowledge the final response at hand (§17.1.1.3)."""
    TRYING = auto()
    """Answer 100."""
    CANCEL = auto()
    """Send a CANCEL, or note that one is to be sent with the first provisional response (§9.1)."""
    FAIL = auto()
    """Tell the user that there will be no final response: nobody answered."""
    BREAK = auto()
    """Tell the user that the way to the peer is gone."""


Row = tuple[TransactionState, tuple[Action | Timer, ...]]
"""The next state and what to do, a timer meaning: start it."""
Table = Mapping[tuple[TransactionState, Event | Timer], Row]

FIRST_S: Mapping[Timer, tuple[float, float | None]] = {
    # over UDP, over streams; None: not used there (RFC 3261 table 4)
    Timer.A: (T1, None),
    Timer.B: (TRANSACTION_S, TRANSACTION_S),
    Timer.D: (TRANSACTION_S, 0.0),
    Timer.E: (T1, None),
    Timer.F: (TRANSACTION_S, TRANSACTION_S),
    Timer.G: (T1, None),
    Timer.H: (TRANSACTION_S, TRANSACTION_S),
    Timer.I: (T4, 0.0),
    Timer.J: (TRANSACTION_S, 0.0),
    Timer.K: (T4, 0.0),
    Timer.L: (TRANSACTION_S, TRANSACTION_S),  # RFC 6026 §8.7
    Timer.M: (TRANSACTION_S, TRANSACTION_S),  # RFC 6026 §8.4
    Timer.CANCEL: (TRANSACTION_S, TRANSACTION_S),  # RFC 3261 §9.1
    Timer.LATE: (TRANSACTION_S, TRANSACTION_S),  # RFC 4320 §4.2
}
LONGEST_S: Mapping[Timer, float] = {Timer.A: inf, Timer.E: T2, Timer.G: T2}
"""Up to where a repeated timer doubles."""

_S, _E, _T = TransactionState, Event, Timer

INVITE_CLIENT: Table = {
    # RFC 3261 §17.1.1.2, figure 5, with RFC 6026 §7.2 and §8.4
    (_S.CALLING, _E.START): (_S.CALLING, (Action.SEND, _T.A, _T.B)),
    (_S.CALLING, _T.A): (_S.CALLING, (Action.REPEAT, Action.AGAIN)),
    (_S.CALLING, _T.B): (_S.TERMINATED, (Action.FAIL,)),
    (_S.CALLING, _E.BROKEN): (_S.TERMINATED, (Action.BREAK,)),
    (_S.CALLING, _E.PROVISIONAL): (_S.PROCEEDING, (Action.PASS,)),
    (_S.CALLING, _E.SUCCESS): (_S.ACCEPTED, (Action.PASS, _T.M)),
    (_S.CALLING, _E.FAILURE): (_S.COMPLETED, (Action.ACK, Action.PASS, _T.D)),
    (_S.CALLING, _E.CANCEL): (_S.CALLING, (Action.CANCEL,)),
    (_S.PROCEEDING, _E.PROVISIONAL): (_S.PROCEEDING, (Action.PASS,)),
    (_S.PROCEEDING, _E.SUCCESS): (_S.ACCEPTED, (Action.PASS, _T.M)),
    (_S.PROCEEDING, _E.FAILURE): (_S.COMPLETED, (Action.ACK, Action.PASS, _T.D)),
    (_S.PROCEEDING, _E.CANCEL): (_S.PROCEEDING, (Action.CANCEL, _T.CANCEL)),
    (_S.PROCEEDING, _T.CANCEL): (_S.TERMINATED, (Action.FAIL,)),
    # Not in the figure: over a stream nothing more can come once the connection is gone.
    (_S.PROCEEDING, _E.BROKEN): (_S.TERMINATED, (Action.BREAK,)),
    (_S.COMPLETED, _E.FAILURE): (_S.COMPLETED, (Action.REPEAT,)),
    (_S.COMPLETED, _T.D): (_S.TERMINATED, ()),
    (_S.ACCEPTED, _E.SUCCESS): (_S.ACCEPTED, (Action.PASS,)),
    (_S.ACCEPTED, _T.M): (_S.TERMINATED, ()),
}

CLIENT: Table = {
    # RFC 3261 §17.1.2.2, figure 6
    (_S.TRYING, _E.START): (_S.TRYING, (Action.SEND, _T.E, _T.F)),
    (_S.TRYING, _T.E): (_S.TRYING, (Action.REPEAT, Action.AGAIN)),
    (_S.TRYING, _T.F): (_S.TERMINATED, (Action.FAIL,)),
    (_S.TRYING, _E.BROKEN): (_S.TERMINATED, (Action.BREAK,)),
    (_S.TRYING, _E.PROVISIONAL): (_S.PROCEEDING, (Action.PASS,)),
    (_S.TRYING, _E.SUCCESS): (_S.COMPLETED, (Action.PASS, _T.K)),
    (_S.TRYING, _E.FAILURE): (_S.COMPLETED, (Action.PASS, _T.K)),
    (_S.PROCEEDING, _T.E): (_S.PROCEEDING, (Action.REPEAT, Action.AGAIN)),
    (_S.PROCEEDING, _T.F): (_S.TERMINATED, (Action.FAIL,)),
    (_S.PROCEEDING, _E.BROKEN): (_S.TERMINATED, (Action.BREAK,)),
    (_S.PROCEEDING, _E.PROVISIONAL): (_S.PROCEEDING, (Action.PASS,)),
    (_S.PROCEEDING, _E.SUCCESS): (_S.COMPLETED, (Action.PASS, _T.K)),
    (_S.PROCEEDING, _E.FAILURE): (_S.COMPLETED, (Action.PASS, _T.K)),
    (_S.COMPLETED, _T.K): (_S.TERMINATED, ()),
}

INVITE_SERVER: Table = {
    # RFC 3261 §17.2.1, figure 7, with RFC 6026 §7.1 and §8.7
    (_S.PROCEEDING, _E.START): (_S.PROCEEDING, (Action.PASS, _T.TRYING)),
    (_S.PROCEEDING, _T.TRYING): (_S.PROCEEDING, (Action.TRYING,)),
    (_S.PROCEEDING, _E.REQUEST): (_S.PROCEEDING, (Action.REPEAT,)),
    (_S.PROCEEDING, _E.PROVISIONAL): (_S.PROCEEDING, (Action.SEND,)),
    (_S.PROCEEDING, _E.SUCCESS): (_S.ACCEPTED, (Action.SEND, _T.L)),
    (_S.PROCEEDING, _E.FAILURE): (_S.COMPLETED, (Action.SEND, _T.G, _T.H)),
    (_S.PROCEEDING, _E.BROKEN): (_S.TERMINATED, (Action.BREAK,)),
    (_S.COMPLETED, _E.REQUEST): (_S.COMPLETED, (Action.REPEAT,)),
    (_S.COMPLETED, _T.G): (_S.COMPLETED, (Action.REPEAT, Action.AGAIN)),
    (_S.COMPLETED, _E.ACK): (_S.CONFIRMED, (_T.I,)),
    (_S.COMPLETED, _T.H): (_S.TERMINATED, ()),
    (_S.CONFIRMED, _T.I): (_S.TERMINATED, ()),
    # The user repeats its 2xx until an ACK comes, which goes to the user.
    (_S.ACCEPTED, _E.SUCCESS): (_S.ACCEPTED, (Action.SEND,)),
    (_S.ACCEPTED, _E.ACK): (_S.ACCEPTED, (Action.PASS,)),
    (_S.ACCEPTED, _T.L): (_S.TERMINATED, ()),
}

SERVER: Table = {
    # RFC 3261 §17.2.2, figure 8, with RFC 4320 §4
    (_S.TRYING, _E.START): (_S.TRYING, (Action.PASS, _T.TRYING, _T.LATE)),
    (_S.TRYING, _T.TRYING): (_S.PROCEEDING, (Action.TRYING,)),
    (_S.TRYING, _T.LATE): (_S.TERMINATED, ()),
    (_S.TRYING, _E.PROVISIONAL): (_S.PROCEEDING, (Action.SEND,)),
    (_S.TRYING, _E.SUCCESS): (_S.COMPLETED, (Action.SEND, _T.J)),
    (_S.TRYING, _E.FAILURE): (_S.COMPLETED, (Action.SEND, _T.J)),
    (_S.PROCEEDING, _E.REQUEST): (_S.PROCEEDING, (Action.REPEAT,)),
    (_S.PROCEEDING, _T.LATE): (_S.TERMINATED, ()),
    (_S.PROCEEDING, _E.PROVISIONAL): (_S.PROCEEDING, (Action.SEND,)),
    (_S.PROCEEDING, _E.SUCCESS): (_S.COMPLETED, (Action.SEND, _T.J)),
    (_S.PROCEEDING, _E.FAILURE): (_S.COMPLETED, (Action.SEND, _T.J)),
    (_S.COMPLETED, _E.REQUEST): (_S.COMPLETED, (Action.REPEAT,)),
    (_S.COMPLETED, _T.J): (_S.TERMINATED, ()),
}

KEPT: frozenset[tuple[TransactionState, Timer]] = frozenset(
    # Timers that go on in the state after the one that started them; all others stop with theirs.
    {(_S.PROCEEDING, _T.E), (_S.PROCEEDING, _T.F), (_S.PROCEEDING, _T.LATE)}
)


class Alarm:
    """A timer that runs."""

    __slots__ = ("seconds", "timer", "transaction")

    def __init__(self, transaction: "Transaction", timer: Timer, seconds: float) -> None:
        self.transaction: Transaction | None = transaction
        """None when it was stopped."""
        self.timer = timer
        self.seconds = seconds
        """From its start."""


class Transaction:
    """One request and what belongs to it; its state moves only by the rows of its table."""

    table: Table

    def __init__(self, request: Request, flow: Flow, key: Key, state: TransactionState) -> None:
        self.request = request
        self.flow = flow
        """The request's: where it came from, or went."""
        self.key = key
        self.state = state
        self.alarms: dict[Timer, Alarm] = {}
        """Of the timers that run."""
        self.sent = b""
        """What a repeat sends: the request, the response or the ACK, whichever was last."""
        self.broken = ""
        """Why its flow failed, in words, as far as it is known."""

    def __repr__(self) -> str:
        name = type(self).__name__
        return f"<{name} {self.request.method} {self.state.name} {self.flow.transport}>"

    def stop(self, timer: Timer) -> None:
        alarm = self.alarms.pop(timer, None)
        if alarm is not None:
            alarm.transaction = None


class ClientTransaction(Transaction):
    """A request of ours."""

    def __init__(self, request: Request, flow: Flow, key: Key) -> None:
        invite = request.method == "INVITE"
        self.first = TransactionState.CALLING if invite else TransactionState.TRYING
        """The state that it begins in."""
        super().__init__(request, flow, key, self.first)
        self.table = INVITE_CLIENT if invite else CLIENT
        self.cancelled = False
        """The user wants no answer any more."""


class ServerTransaction(Transaction):
    """A request of a peer's."""

    def __init__(self, request: Request, flow: Flow, key: Key, way_back: Flow) -> None:
        invite = request.method == "INVITE"
        super().__init__(
            request, flow, key, TransactionState.PROCEEDING if invite else TransactionState.TRYING
        )
        self.table = INVITE_SERVER if invite else SERVER
        self.way_back = way_back
        """Where responses go (§18.2.2): the request's flow but for peers without rport."""
        self.merged = False
        """The same request came by another way before: 482 (§8.2.2.2)."""
        self.to_tag = ""
        """The To tag of the last response with one."""
        self.weight = 0
        """Bytes, as counted against the limit for all."""


def response_event(response: Response) -> Event:
    if response.status < 200:
        return Event.PROVISIONAL
    return Event.SUCCESS if response.status < 300 else Event.FAILURE
