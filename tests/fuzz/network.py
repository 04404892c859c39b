"""A network in memory that means ill, on a clock that only jumps.

It loses, doubles, delays, changes and mixes up what is sent over it, lets it come from elsewhere
than it does, and breaks connections. Messages that nobody sent come too.
"""

import heapq
import random
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from itertools import count
from typing import Protocol

from offhook.telephony.sip.messages.flow import Flow, TransportName
from offhook.telephony.sip.messages.framing import FramingError, StreamFramer
from tests.fuzz.damage import storm, twist

PORTS: dict[str, int] = {"UDP": 5060, "TCP": 5060, "TLS": 5061, "WS": 80, "WSS": 443}
FRAMED = frozenset({"TCP", "TLS"})
POOL = 256
"""Messages sent last, of which others are made."""
AT_ONCE = 10_000
"""So many timers in one moment are one timer again and again."""
CONNECTIONS = 64
"""Beyond that the oldest breaks."""


@dataclass(frozen=True)
class Weather:
    """How likely is what, for each message that is sent."""

    changed: float = 0.2
    lost: float = 0.04
    """Only of datagrams."""
    doubled: float = 0.08
    late: float = 0.04
    """By seconds, up to longer than a transaction waits."""
    elsewhere: float = 0.02
    """It comes by another way than it went."""
    storm: float = 0.002
    """It comes many times, each time a little different."""


class End(Protocol):
    """Somebody on the network."""

    host: str

    def receive(self, data: bytes, flow: Flow) -> None: ...
    def flow_failed(self, flow: Flow) -> None: ...
    def get_timer(self) -> float | None: ...
    def handle_timer(self) -> None: ...


class Connection:
    """Between the one who made it and the one who was called."""

    def __init__(self, number: int, transport: TransportName, hosts: tuple[str, str]) -> None:
        self.number = number
        self.transport = transport
        self.hosts = hosts
        self.framers = {host: StreamFramer() for host in hosts}
        """Of what arrives there."""

    def flow(self, host: str) -> Flow:
        """As one of the two sees it."""
        caller, called = (self.hosts[0], 40_000 + self.number), (self.hosts[1], self._port)
        ends = (called, caller) if host == self.hosts[0] else (caller, called)
        return Flow(self.transport, *ends, self.number)

    def unnamed(self) -> Flow:
        """As whoever made it wrote it before it was there."""
        return way(self.transport, *self.hosts)

    @property
    def _port(self) -> int:
        return PORTS[self.transport]


def way(transport: TransportName, host: str, other: str, port: int | None = None) -> Flow:
    """From one to the other; a connection is yet to be made."""
    return Flow(transport, (other, port or PORTS[transport]), (host, PORTS[transport]))


class Network:
    """The clock and all who are joined by it."""

    def __init__(self, chance: random.Random, weather: Weather) -> None:
        self.now = 1000.0
        self.chance = chance
        self.weather = weather
        self.ends: dict[str, End] = {}
        self.pool: deque[bytes] = deque(maxlen=POOL)
        self.connections: dict[int, Connection] = {}
        self._numbers = count(1)
        self._queue: list[tuple[float, int, Callable[[], None]]] = []
        self._order = count()
        self._at_once = 0

    def after(self, seconds: float, action: Callable[[], None]) -> None:
        heapq.heappush(self._queue, (self.now + seconds, next(self._order), action))

    # --- what is sent ---

    def send(self, data: bytes, flow: Flow, host: str) -> None:
        """`host` sends it by this flow of its own."""
        self.pool.append(data)
        arriving = self._arriving(flow, host)
        if arriving is None:
            self.after(0.0, lambda: self.ends[host].flow_failed(flow))
            return
        chance, weather = self.chance, self.weather
        if flow.transport == "UDP" and chance.random() < weather.lost:
            return
        for copy in self._copies(data):
            self._deliver(copy, arriving)
        if chance.random() < weather.storm:
            self._rage(storm(data, chance.choice((20, 80, 300)), chance), arriving)

    def inject(self, data: bytes, flow: Flow) -> None:
        """Nobody sent it, and it arrives by this flow."""
        self._deliver(data, flow)

    def _copies(self, data: bytes) -> list[bytes]:
        chance, weather = self.chance, self.weather
        copies = [data]
        if chance.random() < weather.changed:
            copies[0] = twist(data, chance.choice(self.pool), chance)
        if chance.random() < weather.doubled:
            again = chance.choice((data, copies[0], twist(data, chance.choice(self.pool), chance)))
            copies.insert(chance.randrange(2), again)
        return copies

    def _arriving(self, flow: Flow, host: str) -> Flow | None:
        """As the one sees it to whom it goes; None when there is no way."""
        if flow.transport == "UDP":
            return Flow("UDP", (host, flow.local[1]), flow.remote)
        connection = self.connections.get(flow.connection)
        if not flow.connection and flow.remote[0] in self.ends and flow.remote[0] != host:
            made = (c for c in self.connections.values() if c.unnamed() == flow)
            connection = next(made, None) or self._connect(flow, host)
        if connection is None or host not in connection.hosts:
            return None
        other = connection.hosts[connection.hosts[0] == host]
        return connection.flow(other)

    def _connect(self, flow: Flow, host: str) -> Connection | None:
        if flow.remote[1] != PORTS[flow.transport]:
            return None
        if len(self.connections) >= CONNECTIONS:
            self.disconnect(next(iter(self.connections)))
        number = next(self._numbers)
        connection = Connection(number, flow.transport, (host, flow.remote[0]))
        self.connections[number] = connection
        return connection

    def disconnect(self, number: int) -> None:
        """Both ends are told."""
        connection = self.connections.pop(number, None)
        if connection is None:
            return
        for host in connection.hosts:
            if host in self.ends:
                self.ends[host].flow_failed(connection.flow(host))
        if connection.hosts[0] in self.ends:
            self.ends[connection.hosts[0]].flow_failed(connection.unnamed())

    def _deliver(self, data: bytes, flow: Flow) -> None:
        chance, weather = self.chance, self.weather
        delay = chance.uniform(0.002, 0.15)
        if chance.random() < weather.late:
            delay += chance.expovariate(1 / 8)
        if chance.random() < weather.elsewhere:
            flow = self._elsewhere(flow)
        self.after(delay, lambda: self._arrive(data, flow))

    def _rage(self, copies: list[bytes], flow: Flow) -> None:
        """In their order."""
        delay = self.chance.uniform(0.002, 0.15)
        for number, copy in enumerate(copies):
            self.after(delay + number / 1000, lambda c=copy: self._arrive(c, flow))  # type: ignore[misc]

    def _elsewhere(self, flow: Flow) -> Flow:
        others = [c for c in self.connections.values() if flow.local[0] in c.hosts]
        if others and self.chance.random() < 0.5:
            return self.chance.choice(others).flow(flow.local[0])
        host = self.chance.choice((*self.ends, "203.0.113.77", "2001:db8:7::7"))
        return Flow("UDP", (host, self.chance.choice((5060, 5061, 1))), flow.local)

    def _arrive(self, data: bytes, flow: Flow) -> None:
        end = self.ends.get(flow.local[0])
        if end is None:
            return
        if not flow.connection:
            end.receive(data, flow)
            return
        connection = self.connections.get(flow.connection)
        if connection is None:  # broken meanwhile
            return
        if connection.transport not in FRAMED:
            end.receive(data, flow)
            return
        cut = self.chance.randrange(len(data) + 1) if self.chance.random() < 0.2 else len(data)
        try:
            for part in (data[:cut], data[cut:]):
                for piece in connection.framers[end.host].receive(part):
                    if isinstance(piece, bytes):
                        end.receive(piece, flow)
        except FramingError:
            self.disconnect(connection.number)

    # --- time ---

    def run(self, done: Callable[[], bool], until: float = float("inf")) -> None:
        """Go from one thing that is due to the next."""
        while not done():
            timers = [end.get_timer() for end in self.ends.values()]
            timer = min((t for t in timers if t is not None), default=until)
            queued = self._queue[0][0] if self._queue else until
            to = min(timer, queued)
            if to >= until:
                self.now = max(self.now, until)
                return
            self._at_once = self._at_once + 1 if to <= self.now else 0
            if self._at_once > AT_ONCE + 64 * len(self._queue):
                raise RuntimeError("a timer stays due however often it is handled")
            self.now = max(self.now, to)
            if queued <= timer:
                heapq.heappop(self._queue)[2]()
            else:
                for end in tuple(self.ends.values()):
                    end.handle_timer()

    def silence(self) -> None:
        """What is under way is lost, and what was to be done is not done any more."""
        self._queue.clear()
