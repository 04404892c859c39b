"""The four SIP transaction state machines, as tables: state × event → state, actions.

RFC 3261 §17.1.1 (INVITE client), §17.1.2 (non-INVITE client), §17.2.1 (INVITE server) and §17.2.2
(non-INVITE server) with the changes of RFC 6026 (state Accepted) and RFC 4320 (provisional and late
responses to non-INVITE requests). Events without a row are ignored, which absorbs retransmissions.
`transactions.py` carries out the actions.
"""

from collections.abc import Mapping, Sequence
from enum import Enum, auto
from math import inf

from offhook.telephony.sip.messages.flow import Flow
from offhook.telephony.sip.messages.message import Request, Response

T1 = 0.5
"""Seconds; the round-trip estimate that other timers are based on (RFC 3261 §17.1.1.1)."""
T2 = 4.0
"""Seconds; longest interval between retransmissions of a non-INVITE request or a final response."""
T4 = 5.0
"""Seconds; longest time a message stays in the network."""
TRANSACTION_S = 64 * T1
"""How long either side waits for the other: 32 s."""
TRYING_S = 0.2
"""Delay of 100 Trying after an INVITE the user has not responded to (§17.2.1)."""
LATE_S = 7 * T1
"""Delay of 100 Trying after another request: when the client's timer E has grown to T2 (RFC 4320
§4.1)."""

Key = tuple[str, ...]
"""What a transaction is matched by."""


class TransactionState(Enum):
    CALLING = auto()
    TRYING = auto()
    PROCEEDING = auto()
    COMPLETED = auto()
    CONFIRMED = auto()
    ACCEPTED = auto()
    TERMINATED = auto()


class Timer(Enum):
    """The timers of RFC 3261 table 4 and RFC 6026, and some without a letter."""

    A = "INVITE is retransmitted"
    B = "INVITE had no response"
    D = "no more retransmissions of the final response are expected"
    E = "request is retransmitted"
    F = "request had no final response"
    G = "final response is retransmitted"
    H = "no ACK came"
    I = "no more retransmissions of the ACK are expected"  # noqa: E741
    J = "no more retransmissions of the request are expected"
    K = "no more retransmissions of the response are expected"
    L = "no more retransmissions of the accepted INVITE are expected"
    M = "no more 2xx of other branches are expected"
    TRYING = "100 Trying is due"
    CANCEL = "the cancelled INVITE had no final response"
    LATE = "the client has given up waiting"


class Event(Enum):
    """What drives a state machine besides its timers: for a client, network events; for a server,
    retransmissions and its user's responses."""

    START = auto()
    REQUEST = auto()
    ACK = auto()
    PROVISIONAL = auto()
    SUCCESS = auto()
    FAILURE = auto()
    CANCEL = auto()
    BROKEN = auto()
    """The flow has failed."""


class Action(Enum):
    SEND = auto()
    """Send the message at hand and keep it for retransmission."""
    REPEAT = auto()
    """Retransmit the last message sent."""
    RESTART_TIMER = auto()
    """Restart the timer that fired, doubling its time up to its limit."""
    PASS = auto()
    """Pass the message at hand to the user."""
    ACK = auto()
    """Acknowledge the final response at hand (§17.1.1.3)."""
    TRYING = auto()
    """Send 100 Trying."""
    CANCEL = auto()
    """Send a CANCEL, now or with the first provisional response (§9.1)."""
    FAIL = auto()
    """Report to the user that no final response came."""
    BREAK = auto()
    """Report to the user that the flow has failed."""


Row = tuple[TransactionState, tuple[Action | Timer, ...]]
"""The next state and the actions; a timer means: start it."""
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
"""Limits up to which retransmission timers double."""

_S, _E, _T = TransactionState, Event, Timer

INVITE_CLIENT: Table = {
    # RFC 3261 §17.1.1.2, figure 5, with RFC 6026 §7.2 and §8.4
    (_S.CALLING, _E.START): (_S.CALLING, (Action.SEND, _T.A, _T.B)),
    (_S.CALLING, _T.A): (_S.CALLING, (Action.REPEAT, Action.RESTART_TIMER)),
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
    # Not in the figure: over a stream nothing more can arrive once the connection is gone.
    (_S.PROCEEDING, _E.BROKEN): (_S.TERMINATED, (Action.BREAK,)),
    (_S.COMPLETED, _E.FAILURE): (_S.COMPLETED, (Action.REPEAT,)),
    (_S.COMPLETED, _T.D): (_S.TERMINATED, ()),
    (_S.ACCEPTED, _E.SUCCESS): (_S.ACCEPTED, (Action.PASS,)),
    (_S.ACCEPTED, _T.M): (_S.TERMINATED, ()),
}

CLIENT: Table = {
    # RFC 3261 §17.1.2.2, figure 6
    (_S.TRYING, _E.START): (_S.TRYING, (Action.SEND, _T.E, _T.F)),
    (_S.TRYING, _T.E): (_S.TRYING, (Action.REPEAT, Action.RESTART_TIMER)),
    (_S.TRYING, _T.F): (_S.TERMINATED, (Action.FAIL,)),
    (_S.TRYING, _E.BROKEN): (_S.TERMINATED, (Action.BREAK,)),
    (_S.TRYING, _E.PROVISIONAL): (_S.PROCEEDING, (Action.PASS,)),
    (_S.TRYING, _E.SUCCESS): (_S.COMPLETED, (Action.PASS, _T.K)),
    (_S.TRYING, _E.FAILURE): (_S.COMPLETED, (Action.PASS, _T.K)),
    (_S.PROCEEDING, _T.E): (_S.PROCEEDING, (Action.REPEAT, Action.RESTART_TIMER)),
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
    (_S.COMPLETED, _T.G): (_S.COMPLETED, (Action.REPEAT, Action.RESTART_TIMER)),
    (_S.COMPLETED, _E.ACK): (_S.CONFIRMED, (_T.I,)),
    (_S.COMPLETED, _T.H): (_S.TERMINATED, ()),
    (_S.CONFIRMED, _T.I): (_S.TERMINATED, ()),
    # The user retransmits its 2xx until an ACK comes, which goes to the user.
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
    # Timers kept when entering a state; all others stop with the state that started them.
    {(_S.PROCEEDING, _T.E), (_S.PROCEEDING, _T.F), (_S.PROCEEDING, _T.LATE)}
)


class Alarm:
    """A running timer."""

    __slots__ = ("seconds", "timer", "transaction")

    def __init__(self, transaction: "Transaction", timer: Timer, seconds: float) -> None:
        self.transaction: Transaction | None = transaction
        """None once it is stopped."""
        self.timer = timer
        self.seconds = seconds
        """Seconds it runs for."""


class Transaction:
    """One request and its state machine; the state changes only by the rows of its table."""

    table: Table

    def __init__(self, request: Request, flow: Flow, key: Key, state: TransactionState) -> None:
        self.request = request
        self.flow = flow
        """Flow the request was received or sent by."""
        self.key = key
        self.state = state
        self.alarms: dict[Timer, Alarm] = {}
        """Its running timers."""
        self.sent = b""
        """What to retransmit: request, response or ACK, whichever was last."""
        self.broken = ""
        """Why its flow failed, if known."""

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
        """Initial state."""
        super().__init__(request, flow, key, self.first)
        self.table = INVITE_CLIENT if invite else CLIENT
        self.cancelled = False
        """The user no longer wants a response."""
        self.cancel_headers: Sequence[tuple[str, str]] = ()
        """Headers of the CANCEL: the Reason (RFC 3326)."""
        self.inner = False
        """A CANCEL of ours, which is not reported to the user."""
        self.answered_from: tuple[str, int] | None = None
        """Where the last response came from."""


class ServerTransaction(Transaction):
    """A request of a peer."""

    def __init__(self, request: Request, flow: Flow, key: Key, response_flow: Flow) -> None:
        invite = request.method == "INVITE"
        super().__init__(
            request, flow, key, TransactionState.PROCEEDING if invite else TransactionState.TRYING
        )
        self.table = INVITE_SERVER if invite else SERVER
        self.response_flow = response_flow
        """Where responses go (§18.2.2): the request's flow, except for peers without rport."""
        self.merged = False
        """The same request was received by another path before: 482 (§8.2.2.2)."""
        self.to_tag = ""
        """The To tag of the last response with one."""
        self.weight = 0
        """Bytes, counted against the limit for all."""


def response_event(response: Response) -> Event:
    if response.status < 200:
        return Event.PROVISIONAL
    return Event.SUCCESS if response.status < 300 else Event.FAILURE
