"""Reliable provisional responses (RFC 3262), and responses retransmitted by the session.

Sans-io. The callee numbers its 18x and retransmits each until a PRACK; the caller acknowledges them
in order.
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
"""Provisional responses that may wait behind an unacknowledged one; later ones are dropped."""
MAX_RSEQ = 2**32 - 1
"""Largest RSeq (RFC 3262 §7.1); a message with a larger one is invalid."""
MAX_FIRST_RSEQ = 2**31 - 1
"""Largest RSeq that our first reliable response may have, which leaves room to count up (RFC 3262
§3); a random number up to it is chosen."""


@dataclass(slots=True)
class Retransmission:
    """A response retransmitted until it is acknowledged: a 2xx to an INVITE at T1 … T2 (RFC 3261
    §13.3.1.4), a reliable provisional one at T1, always doubling (RFC 3262 §3)."""

    response: Response
    started: float
    longest: float = T2
    wait: float = T1
    next_at: float = field(init=False)

    def __post_init__(self) -> None:
        self.next_at = self.started + self.wait

    @property
    def deadline(self) -> float:
        return self.started + TRANSACTION_S

    def get_timer(self) -> float:
        return min(self.next_at, self.deadline)

    def due(self, now: float) -> bool:
        """Return whether to retransmit now."""
        if now < self.next_at:
            return False
        self.wait = min(2 * self.wait, self.longest)
        self.next_at = now + self.wait
        return True


@dataclass(frozen=True, slots=True)
class RAck:
    """The response a PRACK acknowledges (RFC 3262 §7.2)."""

    rseq: int
    cseq: int
    method: str

    @classmethod
    def of(cls, request: Request) -> "RAck":
        """Parse the RAck header. Raises SipError."""
        parts = (request.headers.get("RAck") or "").split()
        if len(parts) != 3 or not is_token(parts[2]):
            raise SipError("RAck is not two numbers and a method")
        return cls(_number(parts[0]), _number(parts[1]), parts[2])

    def __str__(self) -> str:
        return f"{self.rseq} {self.cseq} {self.method}"


def rseq_of(response: Response) -> int | None:
    """Return the RSeq of a reliable provisional response; None for any other."""
    if not 100 < response.status < 200 or "100rel" not in response.require:
        return None
    try:
        return _number((response.headers.get("RSeq") or "").strip())
    except SipError:
        return None


class ReliableSender:
    """Sends the reliable provisional responses to one inbound INVITE, one at a time."""

    def __init__(self, invite: Request, first_rseq: int) -> None:
        self._cseq = invite.cseq.number
        self._next_rseq = first_rseq
        self._waiting: deque[Response] = deque()
        self._out: Retransmission | None = None
        self._acknowledged: int | None = None

    @property
    def blocks_answer(self) -> bool:
        """Whether a 2xx must wait, because SDP was sent and is unacknowledged (RFC 3262 §3)."""
        out = [self._out.response] if self._out else []
        return any(response.body for response in (*out, *self._waiting))

    def send(self, response: Response, now: float) -> Response | None:
        """Number a response and return it; None if it must wait for the one before."""
        if self._out is not None:
            if len(self._waiting) < MAX_WAITING:
                self._waiting.append(response)
            return None
        response.headers.add("Require", "100rel")
        response.headers.set("RSeq", str(self._next_rseq))
        self._next_rseq += 1
        self._out = Retransmission(response, now, longest=inf)
        return response

    def acknowledge(self, request: Request, now: float) -> tuple[Response, Response | None]:
        """Return the response a PRACK acknowledges, and the next one to send. Raises SipError, for
        481, if there is none."""
        rack = RAck.of(request)
        out = self._out
        named = (rack.cseq, rack.method) == (self._cseq, "INVITE")
        if out is None or not named or rack.rseq != self._next_rseq - 1:
            raise SipError("no response matches this PRACK")
        self._out = None
        following = self._waiting.popleft() if self._waiting else None
        return out.response, self.send(following, now) if following else None

    def stop(self) -> None:
        """Stop retransmitting: the final response was sent. A late PRACK is still accepted."""
        self._waiting.clear()
        if self._out is not None:
            self._out.next_at = self._out.started = inf

    def get_timer(self) -> float | None:
        if self._out is None or self._out.started == inf:
            return None
        return self._out.get_timer()

    def timed_out(self, now: float) -> bool:
        """Whether no PRACK came within 64·T1: reject the INVITE with a 5xx (RFC 3262 §3)."""
        return self._out is not None and now >= self._out.deadline

    def retransmit(self, now: float) -> Response | None:
        """Return the response to retransmit now, if any."""
        return self._out.response if self._out is not None and self._out.due(now) else None


class SuccessSender:
    """Retransmits our 2xx to an INVITE until its ACK (RFC 3261 §13.3.1.4)."""

    def __init__(self) -> None:
        self._out: tuple[ServerTransaction, Retransmission] | None = None

    @property
    def cseq(self) -> int | None:
        """CSeq of the INVITE whose 2xx is unacknowledged; None if there is none."""
        return self._out[0].request.cseq.number if self._out else None

    def sent(self, transaction: ServerTransaction, response: Response, now: float) -> None:
        self._out = transaction, Retransmission(response, now)

    def stop(self) -> None:
        self._out = None

    def get_timer(self) -> float | None:
        return self._out[1].get_timer() if self._out else None

    def timed_out(self, now: float) -> bool:
        return self._out is not None and now >= self._out[1].deadline

    def retransmit(self, now: float) -> tuple[ServerTransaction, Response] | None:
        """Return the 2xx to retransmit now, if any, with its transaction."""
        if self._out is None or not self._out[1].due(now):
            return None
        return self._out[0], self._out[1].response


class ReliableReceiver:
    """Orders the reliable provisional responses of one early dialog (RFC 3262 §4)."""

    def __init__(self) -> None:
        self._last: int | None = None

    def accept(self, rseq: int) -> bool:
        """Return whether it is the next response, to be acknowledged. Repeated and early ones are
        dropped: the far end retransmits them."""
        if self._last is not None and rseq != self._last + 1:
            return False
        self._last = rseq
        return True


def _number(text: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) <= 10) or int(text) > MAX_RSEQ:
        raise SipError(f"{text[:24]!r} is not a number of RFC 3262")
    return int(text)
