"""A network in memory on a clock that only jumps: it loses, doubles and delays what is sent."""

import heapq
from collections import Counter, OrderedDict
from collections.abc import Callable
from itertools import count
from random import Random

DELAY_S = (0.005, 0.150)
LOSS, DOUBLING = 0.03, 0.02
"""Of the messages."""
AT_ONCE = 10_000
"""So many things in one moment are one thing again and again."""
RECENT = 4096
"""Messages remembered, to know one that is repeated."""


class World:
    """The clock, and the network."""

    def __init__(self, chance: Random) -> None:
        self.now = 1000.0
        self.chance = chance
        self.parties: dict[str, Party] = {}
        self.gone: set[str] = set()
        """Call-IDs of which nothing arrives any more."""
        self.messages: Counter[str] = Counter()
        self.repeated = 0
        self._queue: list[tuple[float, int, Callable[[], None]]] = []
        self._order = count()
        self._at_once = 0
        self._recent: OrderedDict[int, None] = OrderedDict()

    def after(self, seconds: float, action: Callable[[], None]) -> None:
        heapq.heappush(self._queue, (self.now + seconds, next(self._order), action))

    def send(self, data: bytes, source: str, to: str) -> None:
        self._count(data)
        if not self.chance.random() < LOSS:
            self._deliver(data, source, to)
            if self.chance.random() < DOUBLING:
                self._deliver(data, source, to)

    def _deliver(self, data: bytes, source: str, to: str) -> None:
        def arrive() -> None:
            if _call_id(data) not in self.gone:
                self.parties[to].receive(data, source)

        self.after(self.chance.uniform(*DELAY_S), arrive)

    def _count(self, data: bytes) -> None:
        if not data.strip():
            self.messages["keep-alive"] += 1
            return
        start = data[: data.index(b"\r\n")].split()
        kind = start[1] if start[0] == b"SIP/2.0" else start[0]
        self.messages[kind.decode()] += 1
        known = hash(data)
        self.repeated += known in self._recent
        self._recent[known] = None
        if len(self._recent) > RECENT:
            self._recent.popitem(last=False)

    def run(self, until: float, done: Callable[[], bool] = lambda: False) -> None:
        """Jump from one thing that is due to the next."""
        while not done():
            timers = [party.get_timer() for party in self.parties.values()]
            due = min((t for t in timers if t is not None), default=until)
            queued = self._queue[0][0] if self._queue else until
            if min(due, queued) >= until:
                break
            self._go_on(min(due, queued))
            if queued <= due:
                heapq.heappop(self._queue)[2]()
            else:
                for party in self.parties.values():
                    party.handle_timer()
        else:
            return
        self.now = max(self.now, until)

    def forget(self) -> None:
        """What was to happen yet: it is of calls that have ended."""
        self._queue.clear()
        self.gone.clear()

    def _go_on(self, to: float) -> None:
        self._at_once = self._at_once + 1 if to <= self.now else 0
        if self._at_once > AT_ONCE:
            raise RuntimeError("a timer stays due however often it is handled")
        self.now = max(self.now, to)


def _call_id(data: bytes) -> str:
    if not data.strip():
        return ""
    start = data.index(b"\r\nCall-ID: ") + 11
    return data[start : data.index(b"\r\n", start)].decode()


class Party:
    """Somebody on the network."""

    def __init__(self, world: World, address: str) -> None:
        self.world, self.address = world, address
        world.parties[address] = self

    def receive(self, data: bytes, source: str) -> None:
        """A message has come."""

    def get_timer(self) -> float | None:
        return None

    def handle_timer(self) -> None:
        """Its timer may be due."""
