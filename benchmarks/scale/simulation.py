"""Calls over many edges and workers on a virtual clock, without sockets.

The pool of an edge (`WorkerPool`), a worker's admission of streams (`Admission`) and an edge's of
calls (`CallAdmission`) are the real ones; callers, time, lists and connections are simulated. A
call keeps one stream, which is in use while its caller speaks, as recognition does.
"""

import heapq
from collections import Counter, defaultdict
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from functools import partial
from random import Random
from typing import Literal

from offhook.media.clock_io import PacketClock
from offhook.pipeline.engines.shared.capacity import open_streams
from offhook.pipeline.speech.remote import pool as pools
from offhook.pipeline.speech.remote.pool import (
    LOOK_S,
    SUBSET,
    Action,
    PooledWorker,
    WorkerAddress,
    WorkerEvent,
    WorkerPool,
)
from offhook.web.edge.admission_io import CallAdmission
from offhook.web.speech_api.admission import Admission, Limits, Ticket
from offhook.web.speech_api.errors import ApiError

CALL_S = 180.0
SPEAKS_S, LISTENS_S = 3.2, 4.8
"""Means of exponential times: a caller speaks for 40 % of the time."""
RAMP_S = 30.0
"""Time in s before 0 in which the first calls come."""
SETTLED_S = 20.0
"""Time in s from which balance is reported: the first calls had no poll to go by."""
RECONNECT_S = (0.05, 0.15)
"""Range of times in s from a closed connection to the next attempt."""
ATTEMPTS = 4
"""Workers tried in a row."""
RETRY_S = 0.5
SAMPLE_S = 1.0
SPARE_LINES = 1.5
"""Lines of an edge, as a multiple of its share of the calls."""


@dataclass(frozen=True)
class Scenario:
    """A cluster and what happens to it."""

    name: str = ""
    calls: int = 10_000
    edges: int = 400
    workers: int = 20
    used: float = 0.7
    """Share of all streams of the workers that is in use."""
    subset: int = SUBSET
    poll_s: float = 1.0
    list_s: float = 5.0
    """Interval in s at which an edge reads the list."""
    list_lag_s: float = 0.0
    """Time in s after which a change is in the list."""
    seconds: float = 100.0
    event_s: float = 0.0
    """When what follows happens, in s; 0: never."""
    vanish: int = 0
    """Workers that fall silent, with all connections open."""
    kill: int = 0
    """Workers whose connections are closed."""
    add: int = 0
    """Workers that are started."""
    polls_only: bool = False
    """Whether a worker says how free it is to polls only, and not to streams that open."""
    in_use_only: bool = False
    """Whether idle streams count as free."""
    seed: int = 1


@dataclass(frozen=True)
class Sample:
    """The streams of each worker that lives, at one moment."""

    at: float
    held: list[int]
    in_use: list[int]


@dataclass
class Result:
    scenario: Scenario
    samples: list[Sample] = field(default_factory=list)
    moves: Counter[int] = field(default_factory=Counter)
    """Calls by how often they changed their worker."""
    outages_s: list[float] = field(default_factory=list)
    """Times in s without a worker that answers, of callers who spoke."""
    refusals: int = 0
    """Attempts that a full worker refused."""
    waited: int = 0
    """Utterances that found no worker at once."""
    calls_refused: int = 0

    def ratios(
        self, of: Literal["held", "in_use"], since: float, until: float = float("inf")
    ) -> list[float]:
        """Returns most loaded ÷ mean at each moment from `since` to before `until`, in s."""
        loads = [getattr(s, of) for s in self.samples if since <= s.at < until]
        return [max(load) * len(load) / sum(load) for load in loads]


class SimulatedWorker:
    def __init__(self, number: int, max_streams: int) -> None:
        self.address = WorkerAddress(f"http://10.{number >> 8}.{number & 255}.1:7861")
        self.max_streams = max_streams
        limits = Limits({}, 0, max_streams, open_streams(max_streams) - max_streams)
        self.admission = Admission(limits, {})
        self._lane = self.admission.lanes["transcription"]
        self.lives = self.is_connected = True
        """Whether it answers; whether its connections are open all the same."""

    @property
    def in_use(self) -> int:
        return len(self._lane.streams)

    @property
    def held(self) -> int:
        return len(self._lane.streams) + len(self._lane.idle)

    def free(self, in_use_only: bool) -> float:
        if in_use_only:
            return 1 - self.in_use / self.max_streams
        return self.admission.free_share("transcription")


class PunctualClock(PacketClock):
    """A packet clock that does not run and is never late."""

    def __init__(self) -> None:
        pass

    def recent_lateness_ms(self) -> float:
        return 0.0


class SimulatedEdge:
    def __init__(self, number: int, refuse: Callable[[object], None], seed: int) -> None:
        self.pool = WorkerPool(f"edge {number}", Random(f"{seed} {number}"))
        self.admission = CallAdmission(PunctualClock(), refuse, 0, lambda: self.calls)
        self.streams: defaultdict[WorkerAddress, dict[SimulatedCall, None]] = defaultdict(dict)
        self.calls = 0


@dataclass(eq=False)
class SimulatedCall:
    edge: SimulatedEdge
    ends_at: float
    worker: SimulatedWorker | None = None
    ticket: Ticket | None = None
    speaking: bool = False
    since: float = 0.0
    """When the caller last began to speak."""
    moves: int = 0


class Simulation:
    """Runs one scenario. What will happen is kept in a heap, by its time in s."""

    def __init__(self, scenario: Scenario) -> None:
        s = self._scenario = scenario
        self.result = Result(s)
        self._chance = Random(s.seed)
        self._now = -RAMP_S
        self._future: list[tuple[float, int, Callable[[], None]]] = []
        self._planned = 0
        speaking = s.calls * SPEAKS_S / (SPEAKS_S + LISTENS_S)
        self._max_streams = max(1, round(speaking / s.used / s.workers))
        self._workers: dict[WorkerAddress, SimulatedWorker] = {}
        self._listed: tuple[WorkerAddress, ...] = ()
        self._lost: list[WorkerAddress] = []
        self._max_calls = round(SPARE_LINES * s.calls / s.edges)
        self._edges = [SimulatedEdge(n, self._count_refused, s.seed) for n in range(s.edges)]
        self._add_workers(s.workers)

    def run(self) -> Result:
        pools.SUBSET, usual = self._scenario.subset, pools.SUBSET
        try:
            self._run()
        finally:
            pools.SUBSET = usual
        return self.result

    def _run(self) -> None:
        s, chance = self._scenario, self._chance
        self._publish()
        for edge in self._edges:
            edge.pool.replace_list(self._listed, self._now)
            self._after(chance.uniform(0, s.poll_s), partial(self._poll, edge))
            self._after(chance.uniform(0, s.list_s), partial(self._read_list, edge))
            self._after(chance.uniform(0, LOOK_S), partial(self._look, edge))
        for _ in range(s.calls):
            self._after(chance.uniform(0, RAMP_S), self._begin_call)
        self._after(RAMP_S, self._next_call)
        self._after(RAMP_S, self._sample)
        if s.event_s:
            self._after(RAMP_S + s.event_s, self._event)
        while self._future[0][0] <= s.seconds:
            self._now, _, happen = heapq.heappop(self._future)
            happen()

    def _after(self, seconds: float, happen: Callable[[], None]) -> None:
        self._planned += 1
        heapq.heappush(self._future, (self._now + seconds, self._planned, happen))

    def _exponential(self, mean_s: float) -> float:
        return self._chance.expovariate(1 / mean_s)

    def _sample(self) -> None:
        alive = [worker for worker in self._workers.values() if worker.lives]
        held, in_use = [w.held for w in alive], [w.in_use for w in alive]
        self.result.samples.append(Sample(self._now, held, in_use))
        self._after(SAMPLE_S, self._sample)

    # --- workers ---

    def _add_workers(self, count: int) -> None:
        for number in range(len(self._workers), len(self._workers) + count):
            worker = SimulatedWorker(number, self._max_streams)
            self._workers[worker.address] = worker

    def _publish(self) -> None:
        self._listed = tuple(a for a, worker in self._workers.items() if worker.lives)

    def _event(self) -> None:
        s, chance = self._scenario, self._chance
        lost = chance.sample(list(self._workers.values()), s.vanish + s.kill)
        for worker in lost:
            worker.lives = False
            self._lost.append(worker.address)
        for worker in lost[s.vanish :]:
            worker.is_connected = False
            for edge in self._edges:
                for call in edge.streams[worker.address]:
                    self._after(chance.uniform(*RECONNECT_S), partial(self._leave_lost, call))
        self._add_workers(s.add)
        self._after(s.list_lag_s, self._publish)

    # --- edges ---

    def _read_list(self, edge: SimulatedEdge) -> None:
        edge.pool.replace_list(self._listed, self._now)
        for known in list(edge.pool.workers.values()):
            if not known.listed and not edge.streams[known.address]:
                edge.pool.forget(known.address)
        self._after(self._scenario.list_s, partial(self._read_list, edge))

    def _poll(self, edge: SimulatedEdge) -> None:
        pool = edge.pool
        polled = pool.watched()
        used = (pool.workers[a] for a, calls in edge.streams.items() if calls and a in pool.workers)
        polled += [known for known in used if known not in polled]
        pool.expire(polled, self._now)
        for known in polled:
            worker = self._workers[known.address]
            if worker.lives:
                self._receive_free(edge, worker, to_poll=True)
            else:
                pool.receive(known.address, WorkerEvent.UNANSWERED, self._now)
        self._after(self._scenario.poll_s, partial(self._poll, edge))

    def _receive_free(self, edge: SimulatedEdge, worker: SimulatedWorker, *, to_poll: bool) -> None:
        s, pool, address = self._scenario, edge.pool, worker.address
        if to_poll or not s.polls_only:
            free = worker.free(s.in_use_only)
            pool.receive_free(address, free, 1 / worker.max_streams if to_poll else None)
            if to_poll:
                event = WorkerEvent.READY if free > 0 else WorkerEvent.FULL
                pool.receive(address, event, self._now)

    def _look(self, edge: SimulatedEdge) -> None:
        """Workers that live are left out: nothing comes of a look at them."""
        for address in self._lost:
            calls, known = edge.streams[address], edge.pool.workers.get(address)
            if calls and known is not None:
                is_awaited = any(call.speaking for call in calls)
                self._act(edge, known, edge.pool.look(known, is_awaited, self._now))
        self._after(LOOK_S, partial(self._look, edge))

    def _act(self, edge: SimulatedEdge, known: PooledWorker, action: Action) -> None:
        if action is Action.STAY:
            return
        replays = action is Action.REPLAY
        for call in [c for c in edge.streams[known.address] if c.speaking or not replays]:
            if not edge.pool.may_move(self._now):
                break
            edge.pool.count_move()
            self._leave_lost(call)

    # --- calls ---

    def _count_refused(self, reason: object) -> None:
        self.result.calls_refused += 1

    def _next_call(self) -> None:
        self._begin_call()
        self._after(self._exponential(CALL_S / self._scenario.calls), self._next_call)

    def _begin_call(self) -> None:
        """Begins a call at the emptier of two edges."""
        edge = min(self._chance.sample(self._edges, 2), key=lambda e: e.calls)
        if reason := edge.admission.reason(edge.calls, 0, self._max_calls):
            self._count_refused(reason)
            return
        edge.calls += 1
        call = SimulatedCall(edge, self._now + self._exponential(CALL_S))
        self._connect(call)
        self._after(self._exponential(LISTENS_S), partial(self._speak, call))

    def _speak(self, call: SimulatedCall) -> None:
        if self._now >= call.ends_at:
            self._leave(call)
            call.edge.calls -= 1
            return
        call.speaking, call.since = True, self._now
        if call.worker is None:
            self.result.waited += 1
        elif call.worker.lives and call.ticket is not None:
            call.worker.admission.use(call.ticket, always=True)
        self._after(self._exponential(SPEAKS_S), partial(self._rest, call))

    def _rest(self, call: SimulatedCall) -> None:
        call.speaking = False
        if call.worker is not None and call.ticket is not None and call.ticket.lane == "stream":
            call.worker.admission.rest(call.ticket, self._now)
        self._after(self._exponential(LISTENS_S), partial(self._speak, call))

    def _leave_lost(self, call: SimulatedCall) -> None:
        """Leaves a worker that is lost, unless it has done so."""
        worker = call.worker
        if worker is None or worker.lives:
            return
        if not worker.is_connected:
            call.edge.pool.receive(worker.address, WorkerEvent.LOST, self._now)
        if call.speaking:
            began = max(call.since, self._scenario.event_s)
            self.result.outages_s.append(self._now - began)
        self._leave(call)
        self._count_move(call)
        self._connect(call, {worker.address})

    def _count_move(self, call: SimulatedCall) -> None:
        moves = self.result.moves
        if call.moves:
            moves[call.moves] -= 1
        call.moves += 1
        moves[call.moves] += 1

    def _leave(self, call: SimulatedCall) -> None:
        worker, ticket = call.worker, call.ticket
        if worker is not None and ticket is not None:
            worker.admission.release(ticket, self._now)
            call.edge.streams[worker.address].pop(call, None)
            call.worker = call.ticket = None

    def _connect(self, call: SimulatedCall, avoid: Collection[WorkerAddress] = ()) -> None:
        edge, tried = call.edge, set(avoid)
        for _ in range(ATTEMPTS):
            known = edge.pool.choose(tried)
            if known is None:
                break
            tried.add(known.address)
            if self._open(call, self._workers[known.address]):
                return
        self.result.waited += call.speaking
        self._after(RETRY_S, partial(self._retry, call))

    def _retry(self, call: SimulatedCall) -> None:
        if self._now < call.ends_at:
            self._connect(call)

    def _open(self, call: SimulatedCall, worker: SimulatedWorker) -> bool:
        pool, address, idle = call.edge.pool, worker.address, not call.speaking
        if not worker.lives:
            pool.receive(address, WorkerEvent.LOST, self._now)
            return False
        try:
            ticket = worker.admission.open("transcription", "", self._now, idle=idle)
        except ApiError:
            self.result.refusals += 1
            pool.receive(address, WorkerEvent.FULL, self._now)
            return False
        call.worker, call.ticket = worker, ticket
        call.edge.streams[address][call] = None
        self._receive_free(call.edge, worker, to_poll=False)
        return True
