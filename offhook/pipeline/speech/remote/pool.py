"""Which worker a stream goes to, and what its streams do when it drains or falls silent. Sans-io:
time is given, in s of a monotonic clock.

`TABLE` is what can happen to a worker. Each edge uses a subset of the workers, by rendezvous
hashing of edge and worker, so that connections and polls do not grow as edges × workers; the others
are for when these are full. Of two ready workers at random the one with the larger free share is
chosen, since the least loaded of all would be chosen by every edge at once.
"""

import random
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from enum import Enum, auto
from hashlib import blake2b
from typing import NamedTuple

SUBSET = 4
"""Workers that an edge uses, as long as they are not full."""
MAX_WATCHED = 16
"""Maximum workers polled in search of a subset; the others are polled only if streams are on them,
and get new ones only where none of these can be used."""
LOOK_S = 0.2
"""Interval in s of looks at the workers with streams; a worker that was silent in the last one is
pinged."""
SILENT_LOOKS = 4
"""Looks without any data, even a pong, while a result is due, after which a worker is suspected:
0.8 s. They are counted rather than timed, so that a stall of this process does not count."""
MOVES_PER_S = 25
"""Streams that an edge moves or plays again elsewhere, so that the others of a worker that only
paused are not killed by its refugees."""
FORGET_S = 5.0
"""Time in s after which the result of a failed attempt with a worker that is not polled is
forgotten."""


class WorkerState(Enum):
    UNKNOWN = "unknown"
    LOADING = "loading"
    READY = "ready"
    FULL = "full"
    DRAINING = "draining"
    """It is stopping, or no longer listed: its streams go on until they have moved."""
    SUSPECTED = "suspected"
    """It does not answer; it gets no new streams."""
    GONE = "gone"


class WorkerEvent(Enum):
    READY = auto()
    LOADING = auto()
    FULL = auto()
    DRAINING = auto()
    """The four answers of a worker, when polled or in a stream."""
    UNANSWERED = auto()
    """A poll had no answer in time."""
    LOST = auto()
    """A connection failed or was refused."""
    DATA = auto()
    """Anything came from it since the last look."""
    IDLE = auto()
    """Nothing came from it, and nothing is due."""
    SILENT = auto()
    """Nothing came from it for SILENT_LOOKS while a result was due."""
    UNLISTED = auto()
    EXPIRED = auto()
    """What is known of it is too old."""


class Action(Enum):
    """What the streams of a worker do."""

    STAY = auto()
    MOVE = auto()
    """Those without a result due go to another worker."""
    REPLAY = auto()
    """Those with a result due send what has none to another worker as well: the first to answer is
    heard."""


_S, _E, _A = WorkerState, WorkerEvent, Action
TABLE: dict[tuple[WorkerState, WorkerEvent], tuple[WorkerState, Action]] = {
    **{(state, _E.READY): (_S.READY, _A.STAY) for state in _S},
    **{(state, _E.LOADING): (_S.LOADING, _A.STAY) for state in _S},
    **{(state, _E.FULL): (_S.FULL, _A.STAY) for state in _S},
    **{(state, _E.DRAINING): (_S.DRAINING, _A.MOVE) for state in _S},
    **{(state, _E.UNLISTED): (_S.DRAINING, _A.MOVE) for state in _S},
    **{(state, _E.EXPIRED): (_S.UNKNOWN, _A.STAY) for state in _S},
    # A poll or a connection is refused: the next answer to a poll brings it back.
    **{(state, _E.LOST): (_S.GONE, _A.STAY) for state in _S},
    (_S.UNKNOWN, _E.UNANSWERED): (_S.GONE, _A.STAY),
    (_S.LOADING, _E.UNANSWERED): (_S.SUSPECTED, _A.STAY),
    (_S.READY, _E.UNANSWERED): (_S.SUSPECTED, _A.STAY),
    (_S.FULL, _E.UNANSWERED): (_S.SUSPECTED, _A.STAY),
    (_S.SUSPECTED, _E.UNANSWERED): (_S.GONE, _A.MOVE),
    (_S.DRAINING, _E.UNANSWERED): (_S.DRAINING, _A.MOVE),
    (_S.GONE, _E.UNANSWERED): (_S.GONE, _A.MOVE),
    **{(state, _E.SILENT): (_S.SUSPECTED, _A.REPLAY) for state in _S},
    (_S.DRAINING, _E.SILENT): (_S.DRAINING, _A.REPLAY),
    (_S.GONE, _E.SILENT): (_S.GONE, _A.REPLAY),
    # It had only paused; the next poll says whether it is full.
    (_S.SUSPECTED, _E.DATA): (_S.READY, _A.STAY),
    (_S.DRAINING, _E.DATA): (_S.DRAINING, _A.MOVE),
    (_S.DRAINING, _E.IDLE): (_S.DRAINING, _A.MOVE),
    (_S.GONE, _E.IDLE): (_S.GONE, _A.MOVE),
}
"""A missing transition changes nothing, and the streams stay."""
UNUSABLE = (WorkerState.DRAINING, WorkerState.GONE)
PREFERENCE = (
    (WorkerState.READY, WorkerState.UNKNOWN),
    (WorkerState.FULL,),
    (WorkerState.LOADING,),
    (WorkerState.SUSPECTED,),
    (WorkerState.GONE,),
)
"""The states of a worker that a new stream may go to, best first. A full one refuses, and its
client tries again; at one that is loading the stream waits."""


class WorkerAddress(NamedTuple):
    url: str
    """``http(s)://host:port`` or ``unix:PATH``."""
    ip: str = ""
    """One of the addresses of a host that has several; empty: whatever the name resolves to."""

    def __str__(self) -> str:
        return f"{self.url} ({self.ip})" if self.ip else self.url


@dataclass(eq=False)
class PooledWorker:
    """What an edge knows of a worker."""

    address: WorkerAddress
    state: WorkerState = WorkerState.UNKNOWN
    since: float = 0.0
    """Time in s of its last event."""
    free: float = 1.0
    """Free share of its streams, 0.0–1.0, less what was opened since it said so."""
    stream_share: float = 0.0
    """The share of one stream; 0: unknown."""
    listed: bool = True
    received: bool = False
    """Whether anything came from it since the last look."""
    silent_looks: int = 0

    def apply(self, event: WorkerEvent, now: float) -> Action:
        self.state, action = TABLE.get((self.state, event), (self.state, Action.STAY))
        self.since = now
        return action


class WorkerPool:
    """The workers of one kind that are listed, and those no longer listed that have streams."""

    def __init__(self, edge: str, chance: random.Random | None = None) -> None:
        self._edge = edge
        """Name of this edge, random and constant."""
        self._chance = chance or random.Random()
        self.workers: dict[WorkerAddress, PooledWorker] = {}
        self._ranked: list[PooledWorker] = []
        """The listed ones in the order of the hash."""
        self._moves = float(MOVES_PER_S)
        self._moves_at = 0.0

    # --- the list ---

    def replace_list(self, addresses: Iterable[WorkerAddress], now: float) -> None:
        """Those that are new are unknown; those no longer listed drain, see `forget`."""
        listed = set(addresses)
        if listed == {worker.address for worker in self._ranked}:
            return
        for worker in self.workers.values():
            if worker.listed and worker.address not in listed:
                worker.listed = False
                worker.apply(WorkerEvent.UNLISTED, now)
        for address in listed:
            worker = self.workers.setdefault(address, PooledWorker(address, since=now))
            if not worker.listed:
                worker.listed = True
                worker.apply(WorkerEvent.EXPIRED, now)
        self._ranked = sorted(
            (worker for worker in self.workers.values() if worker.listed), key=self._rank
        )

    def forget(self, address: WorkerAddress) -> None:
        """Removes a worker that is no longer listed and has no streams."""
        del self.workers[address]

    def _rank(self, worker: PooledWorker) -> bytes:
        return blake2b(f"{self._edge} {worker.address}".encode(), digest_size=8).digest()

    # --- events ---

    def receive(self, address: WorkerAddress, event: WorkerEvent, now: float) -> None:
        """Handles what a poll or a stream said; actions follow at the next look."""
        worker = self.workers.get(address)
        if worker is None:
            return
        if event is WorkerEvent.DATA:
            worker.received = True
        elif worker.listed:
            worker.apply(event, now)

    def receive_free(
        self, address: WorkerAddress, free: float, stream_share: float | None = None
    ) -> None:
        """Handles what a worker says of itself, to a poll or to a stream that it has opened, which
        does not say `stream_share`. When a worker is lost many streams open within a second, and
        with polls alone each edge would send its own to whichever was freest before."""
        if (worker := self.workers.get(address)) is not None:
            worker.free = free
            if stream_share is not None:
                worker.stream_share = stream_share

    def look(self, worker: PooledWorker, is_awaited: bool, now: float) -> Action:
        """Returns what the streams of a worker do, asked each LOOK_S; `is_awaited` is whether a
        result is due from it. If it `is_silent` then, it is to be pinged."""
        event = WorkerEvent.IDLE
        if worker.received:
            worker.silent_looks = 0
            event = WorkerEvent.DATA
        elif is_awaited:
            worker.silent_looks += 1
            if worker.silent_looks < SILENT_LOOKS:
                return Action.STAY
            event = WorkerEvent.SILENT
        elif worker.state is not WorkerState.SUSPECTED:
            worker.silent_looks = 0
        worker.received = False
        return worker.apply(event, now)

    def may_move(self, now: float) -> bool:
        """Returns whether one of MOVES_PER_S is left."""
        added = (now - self._moves_at) * MOVES_PER_S
        self._moves = min(float(MOVES_PER_S), self._moves + added)
        self._moves_at = now
        return self._moves >= 1

    def count_move(self) -> None:
        self._moves -= 1

    # --- choice ---

    def choose(self, avoid: Collection[WorkerAddress] = ()) -> PooledWorker | None:
        """Returns the worker for a new stream, or None if there is none but those to avoid."""
        for some in (self._subset(), self._ranked):
            for states in PREFERENCE:
                group = [w for w in some if w.state in states and w.address not in avoid]
                ready = [w for w in group if w.state is WorkerState.READY]
                if group := ready or group:
                    pair = self._chance.sample(group, min(2, len(group)))
                    chosen = max(pair, key=lambda worker: worker.free)
                    chosen.free -= chosen.stream_share
                    return chosen
                if some is not self._ranked:
                    break  # of the subset only those that take streams
        return None

    def has_ready(self, avoid: Collection[WorkerAddress] = ()) -> bool:
        """Returns whether a worker may take a stream, but for those to avoid."""
        return any(
            worker.state in PREFERENCE[0] and worker.address not in avoid for worker in self._ranked
        )

    def watched(self) -> list[PooledWorker]:
        """Returns the subset, and those that would be in it if they were usable."""
        watched: list[PooledWorker] = []
        usable = 0
        for worker in self._ranked[:MAX_WATCHED]:
            watched.append(worker)
            usable += worker.state not in UNUSABLE
            if usable == SUBSET:
                break
        return watched

    def expire(self, polled: Collection[PooledWorker], now: float) -> None:
        """Forgets what attempts at workers that are not polled have said."""
        for worker in self._ranked:
            is_known = worker.state is not WorkerState.UNKNOWN
            if is_known and now - worker.since > FORGET_S and worker not in polled:
                worker.apply(WorkerEvent.EXPIRED, now)

    def _subset(self) -> list[PooledWorker]:
        return [worker for worker in self.watched() if worker.state not in UNUSABLE]

    def counts(self) -> dict[WorkerState, int]:
        """Returns the number of workers in each state."""
        states = [worker.state for worker in self.workers.values()]
        return {state: states.count(state) for state in WorkerState}
