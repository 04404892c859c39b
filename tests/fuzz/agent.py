"""Two user agents that call one another over a network that means ill.

One registers with a registrar and calls by a trunk, the other is that trunk and may ask for a
password. Calls of all kinds come and go between them while the network does its worst, and
strangers send what they like. The run is a row of epochs, each with user agents and settings of its
own. At the end of each all hang up and nothing arrives any more; QUIET_S later there must be
nothing left of it.

All of it follows from the seed, so that what was slow can be measured again.
"""

import gc
import random
import secrets
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

from offhook.telephony.sip.admission.rate_limiter import MAX_OFFENDERS, MAX_SOURCES
from offhook.telephony.sip.agent.session_routes import STALE_ALARMS
from offhook.telephony.sip.auth.digest import MAX_CHAINS, MAX_NONCES, MAX_REALMS, DigestServer
from offhook.telephony.sip.messages.flow import Flow
from offhook.telephony.sip.messages.message import MessageError, Request, parse_message, respond
from offhook.telephony.sip.network.next_hops import MAX_LOCATED, MAX_LOOKUPS
from offhook.telephony.sip.trunks.registration import Registration
from offhook.telephony.sip.trunks.routes import Route
from offhook.telephony.sip.trunks.server_choice import MAX_TARGETS
from offhook.telephony.sip.trunks.trunks import SipSettings, Trunk
from tests.fuzz.damage import damage, twist
from tests.fuzz.desk import Desk
from tests.fuzz.leftovers import SHARED, sizes
from tests.fuzz.network import Network, Weather, way
from tests.fuzz.result import Result, resident_kb
from tests.support.sip_messages import TORTURE, TYPICAL

EPOCH = 10_000
"""Messages of one epoch."""
QUIET_S = 102.0
"""After which nothing may be left of calls that were all hung up: 96 s, in which three transactions
one after the other come to nothing (RFC 3261 §17), and a little. A call that we took and whose ACK
never comes, then its BYE, too large for a datagram, by TCP, and the same by UDP."""
MAX_GROWTH_KB = 8192.0
"""Of the resident size after the first tenth: the interpreter's arenas are given back only when
all in them is gone."""
CHECK_MESSAGES = 500
"""From one look at what the calls keep to the next."""
MAX_KEPT = 160
"""Entries of any container in one session."""
MAX_STALE = 4096
"""Entries beyond twice the calls that a list of the user agent's may have."""
CACHES = {
    ".access._rate_limiter._sources": MAX_SOURCES,
    ".access._rate_limiter._offenders": MAX_OFFENDERS,
    ".access._digest._used": MAX_NONCES,
    ".access._attempts": 1,
    ".next_hops._located": MAX_LOCATED,
    ".next_hops._looked_up": MAX_LOOKUPS,
    ".upkeep.registrations._by_call_id[].requests._digest._nonces": MAX_REALMS,
    ".upkeep.registrations._by_call_id[].requests._digest._chains": MAX_CHAINS,
    ".upkeep.registrations._by_call_id[].requests._digest._chains[].answered": MAX_REALMS,
    ".upkeep.registrations._by_call_id[].servers._tried": MAX_TARGETS,
    ".upkeep.registrations._by_call_id[].servers._busy_until": MAX_TARGETS,
    ".upkeep.registrations._reported": 1,
    ".upkeep._reported_states": 1,
    ".routes._wake_ups": STALE_ALARMS,
    "._sender._large._without_tcp_until": 2,
    "._sender._counts.requests": 16,
    "._sender._counts.responses": 6,
}
"""What may stay, and how many at most."""
PASSWORD = "a secret"
FAMILIES = (
    ("198.51.100.1", "198.51.100.2", "198.51.100.3"),
    ("198.51.100.1", "10.0.0.2", "198.51.100.3"),
    ("2001:db8::1", "2001:db8::2", "2001:db8::3"),
)
"""Office, carrier, registrar."""
CALL_S = 1.0
STRANGER_S = 0.5
TROUBLE_S = 5.0
"""Mean times from one to the next."""


class Registrar:
    """Takes registrations, when it feels like it."""

    def __init__(self, network: Network, host: str) -> None:
        self.host = host
        self._network = network
        self._digest = DigestServer("registrar", ("SHA-256", "MD5"))
        network.ends[host] = self

    def receive(self, data: bytes, flow: Flow) -> None:
        chance = self._network.chance
        try:
            request = parse_message(data)
        except MessageError:
            return
        if not isinstance(request, Request) or chance.random() < 0.1:
            return
        headers: list[tuple[str, str]] = []
        status = chance.choice((200, 200, 200, 200, 401, 403, 423, 500, 503, 302, 100))
        if not self._digest.check(request, lambda user: PASSWORD, self._network.now).ok:
            status = 401
        if status == 401:
            headers = self._digest.challenge(request, self._network.now)
        elif status == 423:
            headers = [("Min-Expires", chance.choice(("60", "1800", "99999999999")))]
        elif status == 503:
            headers = [("Retry-After", chance.choice(("1", "30", "x")))]
        elif status == 200:
            headers = [
                ("Contact", str(c.with_parameter("expires", chance.choice(("20", "300", "0")))))
                for c in request.contacts
            ]
        answer = respond(request, status, to_tag="r", headers=headers).serialize()
        self._network.send(answer, way("UDP", self.host, flow.remote[0]), self.host)

    def flow_failed(self, flow: Flow) -> None: ...

    def get_timer(self) -> float | None:
        return None

    def handle_timer(self) -> None: ...


class Epoch:
    """All of it, once."""

    def __init__(self, seed: int, result: Result) -> None:
        self.chance = chance = random.Random(seed)
        self.received = 0
        self._result = result
        changed = chance.choice((0.02, 0.1, 0.1, 0.3, 0.6))
        self.network = Network(chance, Weather(changed, storm=chance.choice((0, 0.002, 0.01))))
        office, carrier, registrar = chance.choice(FAMILIES)
        known = chance.random() < 0.6
        mine = Trunk(
            "carrier",
            addresses=(carrier,),
            username="office",
            password=PASSWORD,
            server=f"[{registrar}]" if ":" in registrar else registrar,
            register=True,
            expires_seconds=120,
            headers=("X-Queue", "P-Asserted-Identity"),
            options_seconds=chance.choice((0, 20)),
            **self._timers(),
        )
        theirs = Trunk(
            "office",
            addresses=(office,) if known else (),
            username="office",
            password=PASSWORD,
            **self._timers(),
        )
        self.office = self._desk(office, carrier, mine)
        self.carrier = self._desk(carrier, office, theirs)
        self.registrar = Registrar(self.network, registrar)
        self._register(mine, registrar)
        self._before = {desk.host: sizes(desk.agent) for desk in self.desks}
        for seconds, action in (
            (CALL_S, self._place),
            (STRANGER_S, self._stranger),
            (TROUBLE_S, self._trouble),
        ):
            self._again(seconds, action)

    @property
    def desks(self) -> tuple[Desk, Desk]:
        return self.office, self.carrier

    def _timers(self) -> dict[str, Any]:
        """Of a trunk."""
        chance = self.chance
        return {"session_seconds": chance.choice((0, 90, 1800)), "reliable": chance.random() < 0.8}

    def _desk(self, host: str, other: str, trunk: Trunk) -> Desk:
        chance = self.chance
        settings = SipSettings(
            host=host,
            trunks=(trunk,),
            routes=(Route("a", called="1*"), Route("b", header="X-Queue: a*?b*"), Route()),
            unknown=chance.choice(("drop", "refuse")),
            browsers=chance.random() < 0.5,
            allow_anonymous=chance.random() < 0.3,
            requests_per_second=chance.choice((20.0, 1000.0, 1000.0)),
            invites_per_second=chance.choice((5.0, 1000.0)),
            ring_seconds=20.0,
        )
        return Desk(self.network, host, other, settings, trunk, self._result, self._next)

    def _next(self) -> int:
        self.received += 1
        return self.received

    def _register(self, trunk: Trunk, registrar: str) -> None:
        agent, now = self.office.agent, self.network.now
        second = self.chance.choice(("192.0.2.9", self.carrier.host))
        flows = [way("UDP", self.office.host, host) for host in (registrar, second)]
        agent.use_targets(trunk.name, flows, now)
        agent.register(Registration(trunk, agent.addresses.contact(flows[0], trunk)), now)
        self.office.work()

    def _again(self, seconds: float, action: Callable[[], None]) -> None:
        """Now and then."""

        def act() -> None:
            action()
            self._again(seconds, action)

        self.network.after(self.chance.expovariate(1 / seconds), act)

    def _place(self) -> None:
        self.chance.choice(self.desks).place()

    def _stranger(self) -> None:
        """A message that nobody of the two has sent, to one of them."""
        chance, pool = self.chance, self.network.pool
        desk = chance.choice(self.desks)
        seeds = [*TYPICAL.values(), *TORTURE.values()]
        match chance.randrange(4):
            case 0:
                data = chance.choice(seeds)
            case 1:
                data = damage(seeds, chance)
            case 2:
                data = twist(chance.choice(seeds), chance.choice(pool or seeds), chance)
            case _:
                data = chance.choice((b"", b"\r\n\r\n", b"\0", chance.randbytes(40)))
        address = chance.choice((*self.network.ends, "203.0.113.9", "2001:db8:9::9"))
        port = chance.choice((5060, 1, 65_535))
        self.network.inject(data, Flow("UDP", (address, port), (desk.host, 5060)))

    def _trouble(self) -> None:
        chance, network = self.chance, self.network
        desk = chance.choice(self.desks)
        match chance.randrange(6):
            case 0 if network.connections:
                network.disconnect(chance.choice(list(network.connections)))
            case 1:
                other = chance.choice(list(network.ends))
                desk.flow_failed(way("UDP", desk.host, other))
            case 2:
                network.now += chance.expovariate(1 / 20)  # the process was stopped
            case 3:
                others = [self.registrar.host, self.carrier.host][: chance.randrange(1, 3)]
                flows = [way("UDP", self.office.host, other) for other in others]
                self.office.agent.use_targets("carrier", flows, network.now)
                self.office.work()

    # --- how it went ---

    def run(self, messages: int) -> None:
        """So many messages, then the end."""
        target = self.received + messages
        looked = 0

        def done() -> bool:
            nonlocal looked
            if self.received >= looked + CHECK_MESSAGES:
                looked = self.received
                gc.collect(1)
                self._look()
            return self.received >= target

        self.network.run(done)

    def _look(self) -> None:
        """What a call keeps has a bound, whatever comes, and what is kept of all calls too."""
        left = self._result.left
        for desk in self.desks:
            lines = desk.agent.routes
            for line in lines:
                for path, number in sizes(line.of, apart=SHARED).items():
                    if number > MAX_KEPT:
                        left[f"session{path}"] = max(number, left.get(f"session{path}", 0))
            due = lines.alarms
            if due > 2 * len(lines) + MAX_STALE:
                left["timers of sessions"] = max(due, left.get("timers of sessions", 0))

    def end(self) -> None:
        network = self.network
        network.silence()
        for desk in self.desks:
            desk.hang_up_all()
            network.silence()
        self.office.agent.unregister(network.now)
        self.office.work()
        until = network.now + QUIET_S
        network.weather = Weather(0, 1, 0, 0, 0, 0)
        network.ends = {desk.host: desk for desk in self.desks}
        for number in tuple(network.connections):
            network.connections.pop(number)
        network.run(lambda: False, until)
        for desk in self.desks:
            self._left(desk)
            desk.trace.render("")
            desk.trace.as_dicts()

    def _left(self, desk: Desk) -> None:
        left, agent = self._result.left, desk.agent
        if agent.get_timer() is not None:
            left["a timer"] = left.get("a timer", 0) + 1
        for what, number in (("sessions", agent.sessions), ("transactions", agent.transactions)):
            if number:
                left[what] = left.get(what, 0) + number
        for line in agent.routes:
            timer = line.of.get_timer()
            due = "no timer" if timer is None else f"in {timer - self.network.now:.0f} s"
            left[f"a session {line.of.state.name}, next {due}"] = 1
        before = self._before[desk.host]
        for path, number in sizes(agent).items():
            if number > max(before.get(path, 0), CACHES.get(path, 0)):
                left[path] = max(number, left.get(path, 0))


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Tags, branches and nonces follow from the seed too; the garbage collector waits."""
    chance = random.Random(seed)
    random.seed(seed)
    gc.disable()
    try:
        with (
            mock.patch.object(secrets, "token_hex", lambda n=32: chance.randbytes(n).hex()),
            mock.patch.object(secrets, "token_bytes", lambda n=32: chance.randbytes(n)),
        ):
            yield
    finally:
        gc.enable()


def _run_epoch(seed: int, messages: int, result: Result) -> Epoch:
    with seeded(seed):
        epoch = Epoch(seed, result)
        epoch.run(messages)
        epoch.end()
    return epoch


def _measure_again(seed: int, messages: int, slow: dict[int, float]) -> float:
    """ms of what took longest, as it takes in a second and a third run of the same epoch: once,
    something else may have had its turn."""
    for _ in range(2):
        with seeded(seed):
            epoch = Epoch(seed, Result("again"))
            for desk in epoch.desks:
                desk.watched = slow.keys()
            epoch.run(min(messages, max(slow)))
        for desk in epoch.desks:
            slow = {n: min(ms, desk.times.get(n, ms)) for n, ms in slow.items()}
    return max(slow.values())


def run(messages: int, seed: int, show: bool = False) -> Result:
    """Push that many through; progress goes to standard error."""
    result = Result("agent", most_growth_kb=MAX_GROWTH_KB)
    size = min(EPOCH, max(messages // 10, 20))
    resident = 0.0
    while result.messages < messages:
        before, result.slowest_ms = result.slowest_ms, 0.0
        epoch_seed = seed * 1_000_003 + result.messages
        epoch = _run_epoch(epoch_seed, size, result)
        slow = {n: ms for desk in epoch.desks for n, ms in desk.times.items()}
        if slow:
            result.slowest_ms = _measure_again(epoch_seed, size, slow)
            result.slowest = f"epoch of seed {epoch_seed}, messages {sorted(slow)}"
        result.slowest_ms = max(before, result.slowest_ms)
        result.messages += epoch.received
        for desk in epoch.desks:
            result.counts["malformed"] += desk.agent.counts.malformed
            result.counts["dropped"] += desk.agent.access.dropped
            result.counts["refused"] += desk.agent.access.refused
        del epoch
        if not resident and result.messages >= messages // 10:
            resident = resident_kb()
        if show:
            print(f"{result.messages} messages, {resident_kb():.0f} KB resident", file=sys.stderr)
    result.finish(resident)
    return result
