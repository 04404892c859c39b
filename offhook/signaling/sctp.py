"""What an SCTP association receives (RFC 9260 §6): which TSNs have come, and the messages that
their chunks make. A peer decides neither how much memory that takes nor how much time.

Chunks are taken in the order of their TSNs, in which the fragments of a message follow each other
(§6.9), so that there is never more than one message of which a part is missing, however many
streams there are; each fragment is appended to it. Chunks that came early wait in a window. Of
those, a message in one chunk that needs no order is delivered at once.
"""

from bisect import bisect_right
from dataclasses import dataclass, field

MAX_MESSAGE_BYTES = 256 * 1024
"""Maximum size of a message to us, as in our SDP (a=max-message-size): what browsers send at most,
whatever is allowed, and more than an image in an event of OpenAI's. A longer one aborts the
association, with which its data channels close; the call goes on."""
MAX_EARLY_BYTES = 256 * 1024
"""Maximum bytes of chunks after a gap; further ones are dropped, and come again."""
MAX_EARLY_TSNS = 2048
"""How far after the first gap a TSN may be; chunks beyond are dropped, and come again. It bounds
the memory of chunks of a few bytes."""
MAX_GAPS = 32
"""Gap blocks of an acknowledgement, the first ones: more do not fit beside others in a packet, and
chunks that they would acknowledge are sent again."""
MAX_DUPLICATES = 16
"""Duplicate TSNs of an acknowledgement; further ones are not reported, which nobody needs."""
MAX_OPEN_BYTES = 1024
"""Maximum size of a DATA_CHANNEL_OPEN (RFC 8832 §5.1), label and protocol included; a longer one
aborts the association."""
DCEP = 50
"""Payload protocol of messages that open channels (RFC 8832 §8.1)."""

_HALF = 1 << 31
_MASK = (1 << 32) - 1


class SctpViolation(Exception):
    """The peer breaks the protocol or a limit; the message says which."""


@dataclass(slots=True)
class Data:
    """A DATA chunk (RFC 9260 §3.3.1)."""

    tsn: int
    stream: int
    protocol: int
    """Payload protocol identifier."""
    first: bool
    last: bool
    unordered: bool
    payload: bytes


@dataclass(slots=True)
class Message:
    stream: int
    protocol: int
    data: bytes


@dataclass(slots=True)
class _Partial:
    """A message whose first fragments are there."""

    stream: int
    protocol: int
    data: bytearray = field(default_factory=bytearray)


class Inbound:
    """The receiving side of an association."""

    def __init__(self, last_tsn: int) -> None:
        """`last_tsn` is the one before the peer's first."""
        self._next = last_tsn + 1
        """The first TSN that is missing. TSNs are counted on beyond 32 bits here."""
        self._early: dict[int, Data | None] = {}
        """Chunks after it; None of what was delivered."""
        self._early_bytes = 0
        self._runs: list[list[int]] = []
        """First and last TSN of the runs of these, in order."""
        self._partial: _Partial | None = None
        self.duplicates: list[int] = []
        """TSNs that came twice since the last acknowledgement, at most MAX_DUPLICATES."""

    @property
    def last_tsn(self) -> int:
        """The cumulative TSN."""
        return (self._next - 1) & _MASK

    @property
    def window(self) -> int:
        """The receiver window in bytes (a_rwnd)."""
        partial = len(self._partial.data) if self._partial is not None else 0
        return max(0, MAX_MESSAGE_BYTES + MAX_EARLY_BYTES - self._early_bytes - partial)

    def gaps(self) -> list[tuple[int, int]]:
        """Returns the first gap blocks (§3.3.4): runs of what has come, counted from the cumulative
        TSN."""
        before = self._next - 1
        return [(first - before, last - before) for first, last in self._runs[:MAX_GAPS]]

    def receive(self, data: Data) -> list[Message]:
        """Takes a chunk; returns the messages that it completes. Raises SctpViolation."""
        if not data.payload:
            raise SctpViolation("a DATA chunk without data")
        tsn = self._number(data.tsn)
        if tsn == self._next:
            self._next += 1
            return [*self._process(data), *self._advance()]
        if tsn > self._next and not self._fits(tsn, data):
            return []
        if tsn < self._next or not self._note(tsn):
            if len(self.duplicates) < MAX_DUPLICATES:
                self.duplicates.append(data.tsn)
            return []
        if data.first and data.last and data.unordered:
            self._early[tsn] = None
            return self._whole(data.stream, data.protocol, data.payload)
        self._early[tsn] = data
        self._early_bytes += len(data.payload)
        return []

    def skip(self, tsn: int) -> list[Message]:
        """Gives up what has not come up to a TSN, which the peer sends no more (FORWARD TSN, RFC
        3758 §3.6); returns the messages that this lets through. Raises SctpViolation."""
        to, messages = self._number(tsn), []
        while self._next <= to:
            self._partial = None
            self._next = min(self._runs[0][0], to + 1) if self._runs else to + 1
            messages += self._advance()
        return messages

    def _number(self, tsn: int) -> int:
        """The TSN as one counted on from ours."""
        return self._next + ((tsn - self._next + _HALF) & _MASK) - _HALF

    def _fits(self, tsn: int, data: Data) -> bool:
        """Whether the window has room for a chunk that is early."""
        room = self._early_bytes + len(data.payload) <= MAX_EARLY_BYTES
        return room and tsn - self._next < MAX_EARLY_TSNS

    def _note(self, tsn: int) -> bool:
        """Adds an early TSN to the runs; False if it is in one already."""
        runs = self._runs
        at = bisect_right(runs, tsn, key=lambda run: run[0])
        if at and runs[at - 1][1] >= tsn:
            return False
        joins = at > 0 and runs[at - 1][1] == tsn - 1
        if at < len(runs) and runs[at][0] == tsn + 1:
            if joins:
                runs[at - 1][1] = runs.pop(at)[1]
            else:
                runs[at][0] = tsn
        elif joins:
            runs[at - 1][1] = tsn
        else:
            runs.insert(at, [tsn, tsn])
        return True

    def _advance(self) -> list[Message]:
        """Takes the chunks that are no longer early."""
        messages: list[Message] = []
        if self._runs and self._runs[0][0] == self._next:
            first, last = self._runs.pop(0)
            self._next = last + 1
            for tsn in range(first, last + 1):
                data = self._early.pop(tsn)
                if data is None:
                    self._partial = None
                else:
                    self._early_bytes -= len(data.payload)
                    messages += self._process(data)
        return messages

    def _process(self, data: Data) -> list[Message]:
        """Takes the next chunk in order."""
        if data.first and data.last:
            self._partial = None
            return self._whole(data.stream, data.protocol, data.payload)
        if data.first:
            self._partial = _Partial(data.stream, data.protocol)
        partial = self._partial
        if partial is None or partial.stream != data.stream:
            self._partial = None  # the rest of a message that was given up
            return []
        partial.data += data.payload
        self._check_size(partial.protocol, len(partial.data))
        if not data.last:
            return []
        self._partial = None
        return [Message(partial.stream, partial.protocol, bytes(partial.data))]

    def _whole(self, stream: int, protocol: int, payload: bytes) -> list[Message]:
        self._check_size(protocol, len(payload))
        return [Message(stream, protocol, payload)]

    def _check_size(self, protocol: int, size: int) -> None:
        opens = protocol == DCEP
        limit = MAX_OPEN_BYTES if opens else MAX_MESSAGE_BYTES
        if size > limit:
            kind = "DATA_CHANNEL_OPEN" if opens else "message"
            raise SctpViolation(f"a {kind} of more than {limit} bytes")
