"""Admission control: which requests and streams run, wait or are rejected.

Times are seconds of a monotonic clock, passed as arguments. A request is first received, however
long its body takes, without using the engine, and then queued: a fixed number of each kind run at a
time, a fixed number wait in order, and further ones are rejected with Retry-After. Streams never
wait.
"""

import math
from collections import deque
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Literal

from offhook.web.http.shares import (
    NOBODY,
    Holders,
    ShareExceeded,
    Shares,
    makes_room,
    waiting_is_full,
    waits_too_often,
)
from offhook.web.speech_api.errors import ApiError

Kind = Literal["transcription", "speech"]
KINDS: tuple[Kind, ...] = ("transcription", "speech")
RECENT = 20
"""Number of recent requests whose mean duration predicts the next."""
USUAL_S = 2.0
"""Assumed duration in s before any request has finished."""
RETRY_MAX_S = 60
"""Maximum Retry-After in s; a longer estimated wait is shortened to this."""
RETRY_SHARE_S = 10
"""Retry-After in s of a stream that is refused because its holder has its whole share (429), or
because too many streams are open and unused (503)."""
MAX_RECEIVING = 256
"""Maximum requests of a kind whose bodies are being received; further ones are refused with 503 and
Retry-After."""
MINUTE_S = 60.0


@dataclass(frozen=True)
class Limits:
    """Limits of the whole server; see Speech in config."""

    running: Mapping[Kind, int]
    queue: int
    streams: int
    """Maximum streams in use."""
    idle_streams: int = 0
    """Maximum idle streams in addition to `streams`."""
    streams_setting: str = "streams of [speech]"
    """Name of the setting for `streams`, for messages."""

    @property
    def open(self) -> int:
        """Maximum streams, in use or idle."""
        return self.streams + self.idle_streams


@dataclass(frozen=True)
class KeyLimits:
    """Limits of one API key; 0: unlimited."""

    max_requests: int = 0
    requests_per_minute: int = 0


@dataclass(eq=False)
class Ticket:
    """A request or stream from its admission to its end."""

    kind: Kind
    key: str
    lane: Literal["receiving", "running", "waiting", "idle", "stream", "left"]
    on_start: Callable[[], None]
    began_at: float = 0.0
    holders: Holders | None = None
    """Those for whom it is counted; None: one of our own servers."""
    waits: bool = True
    """Whether a stream has sent nothing yet that could be answered."""
    give_way: Callable[[], None] | None = None
    """Ends a stream that waits, for another client."""


class RequestQueue:
    """The requests and streams of one kind."""

    def __init__(self) -> None:
        self.receiving: set[Ticket] = set()
        self.running: set[Ticket] = set()
        self.waiting: deque[Ticket] = deque()
        self.idle: set[Ticket] = set()
        self.streams: set[Ticket] = set()
        self._took: deque[float] = deque(maxlen=RECENT)

    def record(self, seconds: float) -> None:
        self._took.append(seconds)

    def mean_s(self) -> float:
        return sum(self._took) / len(self._took) if self._took else USUAL_S


class KeyUsage:
    """Requests of one key: those in progress, and the times of those in the last minute."""

    def __init__(self, limits: KeyLimits) -> None:
        self.limits = limits
        self.busy = 0
        self.asked: deque[float] = deque()

    def forget_before(self, now: float) -> None:
        while self.asked and now - self.asked[0] >= MINUTE_S:
            self.asked.popleft()


class Admission:
    def __init__(self, limits: Limits, keys: Mapping[str, KeyLimits]) -> None:
        self._limits = limits
        self.lanes: dict[Kind, RequestQueue] = {kind: RequestQueue() for kind in KINDS}
        self._keys = {name: KeyUsage(usage) for name, usage in keys.items()}
        self.shares = Shares()
        self.idle_since = -math.inf
        """When the last request or use by a stream ended."""

    def limit(self, limits: Limits) -> None:
        """Replaces the limits; requests and streams in progress stay."""
        self._limits = limits

    @property
    def max_open(self) -> int:
        """Returns how many streams may be open, in use or idle."""
        return self._limits.open

    def use_keys(self, keys: Mapping[str, KeyLimits]) -> None:
        """Replaces the keys and their limits; requests in progress stay counted."""
        known, self._keys = self._keys, {}
        for name, limits in keys.items():
            usage = self._keys[name] = known.get(name) or KeyUsage(limits)
            usage.limits = limits

    @property
    def is_busy(self) -> bool:
        return any(
            lane.receiving or lane.running or lane.waiting or lane.streams
            for lane in self.lanes.values()
        )

    def receive(self, kind: Kind, key: str, now: float, *, holders: Holders = NOBODY) -> Ticket:
        """Admits a request whose body has not been received. Raises ApiError 429, 503."""
        lane = self.lanes[kind]
        self._check_room(kind)
        if len(lane.receiving) >= MAX_RECEIVING:
            raise ApiError(
                503,
                f"{MAX_RECEIVING} {kind} requests are being received: try again later",
                code="queue_full",
                retry_after_s=_retry(lane.mean_s()),
            )
        self._check_share(holders, lane.receiving, MAX_RECEIVING, f"uploads for {kind}")
        self._count(key, now)
        ticket = Ticket(kind, key, "receiving", _nothing, holders=holders)
        lane.receiving.add(ticket)
        return ticket

    def enqueue(self, ticket: Ticket, now: float, on_start: Callable[[], None]) -> None:
        """Queues a received request; `on_start` is called when it may run, possibly at once. Raises
        ApiError 503."""
        lane = self.lanes[ticket.kind]
        self._check_room(ticket.kind)
        lane.receiving.remove(ticket)
        ticket.lane, ticket.on_start = "waiting", on_start
        lane.waiting.append(ticket)
        self._next(ticket.kind, now)

    def open(
        self,
        kind: Kind,
        key: str,
        now: float,
        *,
        idle: bool = False,
        holders: Holders | None = None,
    ) -> Ticket:
        """Admits a stream, in use unless `idle`. `holders`: those for whom it is counted, of which
        none may have more than its share, and only some streams may wait for their first use; None:
        one of our own servers. Raises ApiError 429, 503."""
        lane = self.lanes[kind]
        if holders is not None:
            self._make_room(kind, holders, now)
        has_room = len(lane.idle) + len(lane.streams) < self._limits.open
        self._check_streams(kind, has_room)
        self._count(key, now)
        ticket = Ticket(kind, key, "idle", _nothing, now, holders)
        lane.idle.add(ticket)
        if not idle:
            self.use(ticket)
        return ticket

    def use(self, ticket: Ticket, *, always: bool = False) -> None:
        """Marks an idle stream as in use. Raises ApiError 503, but not if it is to be used
        `always`: a caller who begins to speak is heard, however many others speak."""
        lane = self.lanes[ticket.kind]
        if not always:
            self._check_streams(ticket.kind)
        lane.idle.remove(ticket)
        lane.streams.add(ticket)
        ticket.lane = "stream"

    def rest(self, ticket: Ticket, now: float) -> None:
        """Marks a stream as idle."""
        lane = self.lanes[ticket.kind]
        lane.streams.remove(ticket)
        lane.idle.add(ticket)
        ticket.lane, self.idle_since = "idle", now

    def free_share(self, kind: Kind) -> float:
        """Returns the share of the streams of a kind that are free, 0.0–1.0; 0.0 if none can be
        opened and used.

        Idle streams count too. How many of a server's callers speak at a moment is chance: clients
        that chose among servers by it alone would spread their calls less evenly.
        """
        lane, limits = self.lanes[kind], self._limits
        in_use, held = len(lane.streams), len(lane.streams) + len(lane.idle)
        if in_use >= limits.streams or held >= limits.open:
            return 0.0
        return 1 - (in_use + held) / (limits.streams + limits.open)

    def _check_streams(self, kind: Kind, has_room: bool = True) -> None:
        """Raises ApiError 503."""
        lane, most = self.lanes[kind], self._limits.streams
        in_use = len(lane.streams) >= most
        if in_use or not has_room:
            which = (
                f"{most} streams are in use" if in_use else f"{self._limits.open} streams are open"
            )
            raise ApiError(
                503,
                f"all {which}: try again later, or raise {self._limits.streams_setting}",
                code="streams_full",
                retry_after_s=_retry(lane.mean_s()),
            )

    def _make_room(self, kind: Kind, holders: Holders, now: float) -> None:
        """Has the stream that waits the longest leave if all are open, or if too many wait. Raises
        ApiError 429 if one of the holders has its share, and 503 if none has waited for long."""
        lane, most = self.lanes[kind], self._limits.open
        opened = lane.idle | lane.streams
        self._check_share(holders, opened, most, f"streams for {kind}")
        waiting = [ticket for ticket in opened if ticket.waits and ticket.holders is not None]
        of_waiting = (ticket.holders or NOBODY for ticket in waiting)
        refused = waits_too_often(holders, of_waiting, most)
        if not refused and (waiting_is_full(len(waiting), most) or len(opened) >= most):
            patient = [t for t in waiting if t.give_way and makes_room(now - t.began_at)]
            longest = min(patient, key=lambda ticket: ticket.began_at, default=None)
            if longest is not None and longest.give_way is not None:
                longest.give_way()
                lane.idle.discard(longest)
                lane.streams.discard(longest)
                longest.lane = "left"
            else:
                refused = waiting_is_full(len(waiting), most)
        if refused:
            words = f"{len(waiting)} streams have been opened and not used: use them, or try later"
            raise ApiError(503, words, code="streams_full", retry_after_s=RETRY_SHARE_S)

    def _check_share(
        self, holders: Holders, tickets: Collection[Ticket], places: int, what: str
    ) -> None:
        """Raises ApiError 429."""
        try:
            held = (ticket.holders or NOBODY for ticket in tickets)
            self.shares.check(holders, held, places, what)
        except ShareExceeded as fault:
            code = "rate_limit_exceeded"
            raise ApiError(429, str(fault), code=code, retry_after_s=RETRY_SHARE_S) from fault

    def release(self, ticket: Ticket, now: float) -> None:
        """Ends a request or stream, or withdraws it."""
        lane = self.lanes[ticket.kind]
        if ticket.lane != "idle":
            self.idle_since = now
        match ticket.lane:
            case "receiving":
                lane.receiving.remove(ticket)
            case "waiting":
                lane.waiting.remove(ticket)
            case "idle":
                lane.idle.remove(ticket)
            case "stream":
                lane.streams.remove(ticket)
            case "running":
                lane.running.remove(ticket)
                lane.record(now - ticket.began_at)
        if ticket.key in self._keys:
            self._keys[ticket.key].busy -= 1
        self._next(ticket.kind, now)

    def headers(self, key: str, now: float) -> dict[str, str]:
        """Returns OpenAI's rate-limit headers for this key; empty without a limit."""
        usage = self._keys.get(key)
        if usage is None or not (most := usage.limits.requests_per_minute):
            return {}
        usage.forget_before(now)
        reset = MINUTE_S - (now - usage.asked[0]) if usage.asked else 0.0
        return {
            "x-ratelimit-limit-requests": str(most),
            "x-ratelimit-remaining-requests": str(max(0, most - len(usage.asked))),
            "x-ratelimit-reset-requests": f"{math.ceil(reset)}s",
        }

    def _check_room(self, kind: Kind) -> None:
        """Raises ApiError 503 if the queue is full."""
        lane, most = self.lanes[kind], self._limits.running[kind]
        if len(lane.running) >= most and len(lane.waiting) >= self._limits.queue:
            seconds = lane.mean_s() * (len(lane.waiting) + 1) / most
            raise ApiError(
                503,
                f"{most} {kind} requests run and {len(lane.waiting)} wait: try again later, or "
                f"raise {_setting(kind)} or queue of [speech]",
                code="queue_full",
                retry_after_s=_retry(seconds),
            )

    def _count(self, key: str, now: float) -> None:
        """Counts a request of this key. Raises ApiError 429."""
        usage = self._keys.get(key)
        if usage is None:
            return
        usage.forget_before(now)
        at_once, a_minute = usage.limits.max_requests, usage.limits.requests_per_minute
        if at_once and usage.busy >= at_once:
            words = f"the key {key!r} may have {at_once} requests at a time"
            raise ApiError(429, words, code="rate_limit_exceeded", retry_after_s=1)
        if a_minute and len(usage.asked) >= a_minute:
            words = f"the key {key!r} may ask {a_minute} times a minute"
            wait = _retry(MINUTE_S - (now - usage.asked[0]))
            raise ApiError(429, words, code="rate_limit_exceeded", retry_after_s=wait)
        usage.busy += 1
        if a_minute:
            usage.asked.append(now)

    def _next(self, kind: Kind, now: float) -> None:
        lane = self.lanes[kind]
        while lane.waiting and len(lane.running) < self._limits.running[kind]:
            ticket = lane.waiting.popleft()
            ticket.lane, ticket.began_at = "running", now
            lane.running.add(ticket)
            ticket.on_start()


def _nothing() -> None:
    pass


def _setting(kind: Kind) -> str:
    return "transcriptions" if kind == "transcription" else "speeches"


def _retry(seconds: float) -> int:
    return max(1, min(RETRY_MAX_S, math.ceil(seconds)))


class ByteBudget:
    """A limit on the total bytes stored for all requests."""

    def __init__(self, most: int) -> None:
        self._most = most
        self.taken = 0

    def reserve(self, more: int) -> None:
        """Reserves bytes. Raises ApiError 503."""
        if self.taken + more > self._most:
            words = f"all uploads together have {self._most >> 20} MB: try again later"
            raise ApiError(503, words, code="uploads_full", retry_after_s=RETRY_MAX_S)
        self.taken += more

    def release(self, some: int) -> None:
        self.taken -= some
