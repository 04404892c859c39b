"""Provisional responses that are acknowledged (RFC 3262), and responses repeated by the session.

Sans-io. The one who is called numbers its 18x and repeats each until a PRACK names it; the caller
acknowledges them in their order.
"""

from collections import deque
from dataclasses import dataclass, field
from math import inf

from offhook.telephony.sip.messages.grammar import SipError, is_token
from offhook.telephony.sip.messages.message import Request, Response
from offhook.telephony.sip.transactions.transaction import (
    T1,
    T2,
    TRANSACTION_S,
    ServerTransaction,
)

MAX_WAITING = 8
"""Provisional responses that wait for the PRACK of the one before; later ones are left out."""
MAX_RSEQ = 2**32 - 1
FIRST_RSEQ_MOST = 2**31 - 1
"""RFC 3262 §3: a first number this low leaves room to count up."""


@dataclass(slots=True)
class Repetition:
    """A response that is sent until it is acknowledged: a 2xx to an INVITE at T1 … T2 (RFC 3261
    §13.3.1.4), a reliable provisional one at T1 and ever twice that (RFC 3262 §3)."""

    response: Response
    started: float
    longest: float = T2
    wait: float = T1
    next_at: float = field(init=False)

    def __post_init__(self) -> None:
        self.next_at = self.started + self.wait

    @property
    def gives_up_at(self) -> float:
        return self.started + TRANSACTION_S

    def get_timer(self) -> float:
        return min(self.next_at, self.gives_up_at)

    def due(self, now: float) -> bool:
        """Is it to be sent again?"""
        if now < self.next_at:
            return False
        self.wait = min(2 * self.wait, self.longest)
        self.next_at = now + self.wait
        return True


@dataclass(frozen=True, slots=True)
class RAck:
    """What a PRACK acknowledges (RFC 3262 §7.2)."""

    rseq: int
    cseq: int
    method: str

    @classmethod
    def of(cls, request: Request) -> "RAck":
        """Raises SipError."""
        parts = (request.headers.get("RAck") or "").split()
        if len(parts) != 3 or not is_token(parts[2]):
            raise SipError("RAck is not two numbers and a method")
        return cls(_number(parts[0]), _number(parts[1]), parts[2])

    def __str__(self) -> str:
        return f"{self.rseq} {self.cseq} {self.method}"


def rseq_of(response: Response) -> int | None:
    """The number of a reliable provisional response; None for another."""
    if not 100 < response.status < 200 or "100rel" not in response.require:
        return None
    try:
        return _number((response.headers.get("RSeq") or "").strip())
    except SipError:
        return None


class ReliableSender:
    """The provisional responses of one INVITE that we are called by: one at a time is out."""

    def __init__(self, invite: Request, first_rseq: int) -> None:
        self._cseq = invite.cseq.number
        self._next_rseq = first_rseq
        self._waiting: deque[Response] = deque()
        self._out: Repetition | None = None
        self._acknowledged: int | None = None

    @property
    def blocks_answer(self) -> bool:
        """A 2xx must wait: a session description is on its way unacknowledged (RFC 3262 §3)."""
        out = [self._out.response] if self._out else []
        return any(response.body for response in (*out, *self._waiting))

    def send(self, response: Response, now: float) -> Response | None:
        """Number it. None: it waits until the one before is acknowledged."""
        if self._out is not None:
            if len(self._waiting) < MAX_WAITING:
                self._waiting.append(response)
            return None
        response.headers.add("Require", "100rel")
        response.headers.set("RSeq", str(self._next_rseq))
        self._next_rseq += 1
        self._out = Repetition(response, now, longest=inf)
        return response

    def acknowledge(self, request: Request, now: float) -> tuple[Response, Response | None]:
        """The response that a PRACK is for, and the one that may be sent now. Raises SipError when
        it is for none: 481."""
        rack = RAck.of(request)
        out = self._out
        named = (rack.cseq, rack.method) == (self._cseq, "INVITE")
        if out is None or not named or rack.rseq != self._next_rseq - 1:
            raise SipError("no response waits for this PRACK")
        self._out = None
        following = self._waiting.popleft() if self._waiting else None
        return out.response, self.send(following, now) if following else None

    def stop(self) -> None:
        """The final response is out; a PRACK may still come for what was sent."""
        self._waiting.clear()
        if self._out is not None:
            self._out.next_at = self._out.started = inf

    def get_timer(self) -> float | None:
        if self._out is None or self._out.started == inf:
            return None
        return self._out.get_timer()

    def gave_up(self, now: float) -> bool:
        """No PRACK came in 64·T1: the INVITE is to be refused with a 5xx (RFC 3262 §3)."""
        return self._out is not None and now >= self._out.gives_up_at

    def repeat(self, now: float) -> Response | None:
        """What to send again."""
        return self._out.response if self._out is not None and self._out.due(now) else None


class SuccessSender:
    """The 2xx of ours to an INVITE, sent again until its ACK comes (RFC 3261 §13.3.1.4)."""

    def __init__(self) -> None:
        self._out: tuple[ServerTransaction, Repetition] | None = None

    @property
    def cseq(self) -> int | None:
        """Of the INVITE whose 2xx is unacknowledged; None: there is none."""
        return self._out[0].request.cseq.number if self._out else None

    def sent(self, transaction: ServerTransaction, response: Response, now: float) -> None:
        self._out = transaction, Repetition(response, now)

    def stop(self) -> None:
        self._out = None

    def get_timer(self) -> float | None:
        return self._out[1].get_timer() if self._out else None

    def gave_up(self, now: float) -> bool:
        return self._out is not None and now >= self._out[1].gives_up_at

    def repeat(self, now: float) -> tuple[ServerTransaction, Response] | None:
        """What to send again now."""
        if self._out is None or not self._out[1].due(now):
            return None
        return self._out[0], self._out[1].response


class ReliableReceiver:
    """The order of the reliable provisional responses of one early dialog (RFC 3262 §4)."""

    def __init__(self) -> None:
        self._last: int | None = None

    def accept(self, rseq: int) -> bool:
        """Is it the next one, to be acknowledged? Repeats, and those that come before what
        precedes them, are dropped: the far end sends them again."""
        if self._last is not None and rseq != self._last + 1:
            return False
        self._last = rseq
        return True


def _number(text: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) <= 10) or int(text) > MAX_RSEQ:
        raise SipError(f"{text[:24]!r} is not a number of RFC 3262")
    return int(text)
