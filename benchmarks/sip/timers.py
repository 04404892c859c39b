"""Eight hours of calls in a minute: two user agents joined in memory, on a clock that only jumps.

One is an office that registers with a registrar and calls through a carrier, the other that
carrier, which asks for a password and calls the office. The network between them loses, doubles
and delays. Calls of all kinds come and go (`sip_offices.KINDS`), some so long that they have to be
refreshed. After the first hour, and again at the end, no more calls are placed and those there are
hang up; then, once every timer has run out, what the two still hold is compared.
"""

import gc
import time
import tracemalloc
from collections import Counter, deque
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from random import Random
from typing import Any

from benchmarks.sip.offices import (
    CARRIER,
    CARRIER_TRUNK,
    KINDS,
    OFFICE,
    OFFICE_TRUNK,
    REGISTRAR,
    Office,
    Registrar,
)
from benchmarks.sip.world import World
from offhook.telephony.sip.trunks.registration import Registration
from offhook.telephony.sip.trunks.registration_table import RegistrationState

HOUR = 3600.0
WARM_UP_HOURS = 1.0
REST_S = 3 * HOUR
"""The longest waited for the last timer: of a call whose far end is gone, its session timer."""
SMALL = 64
"""Entries that a container may keep when there are no calls."""
GROWTH_KB = 64.0
"""More left behind than this, between the two rests, is a leak."""


@dataclass(frozen=True)
class Rest:
    """Both user agents without calls, every timer of theirs run out."""

    hours: float
    settled_s: float | None
    """From the last hang-up to no session and no transaction; None: never."""
    sizes: dict[str, int]
    """Entries of every dict, list, queue and heap that is not empty, by where it is."""
    traced_kb: float
    """Allocated by Python for code of the SIP edge, after a collection."""


@dataclass
class Result:
    hours: float = 0.0
    seconds: float = 0.0
    """It took."""
    placed: int = 0
    ended: dict[str, int] = field(default_factory=dict)
    """Ends of calls, each counted at both ends, by kind, who called, status and who ended it."""
    wrong: list[str] = field(default_factory=list)
    """What should not have happened."""
    messages: dict[str, int] = field(default_factory=dict)
    repeated: int = 0
    """Of the messages: repetitions of others."""
    keys: int = 0
    offers: int = 0
    registrations: int = 0
    stale: int = 0
    """REGISTERs with a nonce that was too old."""
    rests: list[Rest] = field(default_factory=list)

    @property
    def left(self) -> dict[str, int]:
        """What is large at a rest, when nothing is going on."""
        return {name: n for rest in self.rests for name, n in rest.sizes.items() if n > SMALL}

    @property
    def grown_kb(self) -> float:
        return round(self.rests[-1].traced_kb - self.rests[0].traced_kb, 1)

    @property
    def passed(self) -> bool:
        settled = all(rest.settled_s is not None for rest in self.rests)
        return settled and not self.wrong and not self.left and self.grown_kb <= GROWTH_KB


def sizes(root: object, name: str) -> dict[str, int]:
    """Entries of the containers in an object of the SIP edge and in those it is made of; of objects
    in a container, all together."""
    found: Counter[str] = Counter()
    seen: set[int] = set()
    waiting = [(name, root)]
    while waiting:
        path, thing = waiting.pop()
        if id(thing) in seen:
            continue
        seen.add(id(thing))
        if isinstance(thing, dict | list | set | deque):
            found[path] += len(thing)
            values = thing.values() if isinstance(thing, dict) else thing
            waiting += [(f"{path}[]", value) for value in values]
        elif type(thing).__module__.startswith("offhook.telephony"):
            waiting += [(f"{path}.{key}", value) for key, value in _attributes(thing)]
    return {path: n for path, n in sorted(found.items()) if n}


def _attributes(thing: object) -> Iterator[tuple[str, object]]:
    names = [*getattr(thing, "__dict__", ())]
    for base in type(thing).__mro__:
        names += base.__dict__.get("__slots__", ())
    for name in names:
        if hasattr(thing, name):
            yield name, getattr(thing, name)


class Day:
    """Everything there is."""

    def __init__(self, seed: int, calls_per_hour: float) -> None:
        self.world = World(Random(seed))
        self.registrar = Registrar(self.world)
        self.office = Office(self.world, OFFICE, CARRIER, CARRIER_TRUNK)
        self.carrier = Office(self.world, CARRIER, OFFICE, OFFICE_TRUNK)
        flow = self.office.flow(REGISTRAR)
        contact = self.office.agent.addresses.contact(flow, CARRIER_TRUNK)
        self.registered = Registration(CARRIER_TRUNK, contact)
        self._calls_per_hour = calls_per_hour
        self._round: list[str] = []
        self.office.agent.use_targets("carrier", [flow], self.world.now)
        self.office.agent.register(self.registered, self.world.now)
        self.office.work()

    def calls(self, hours: float) -> None:
        world = self.world
        end = world.now + hours * HOUR

        def place() -> None:
            if world.now >= end:
                return
            world.chance.choice((self.office, self.carrier)).place(self._kind())
            world.after(world.chance.expovariate(self._calls_per_hour / HOUR), place)

        place()
        world.run(end)

    def _kind(self) -> str:
        if not self._round:
            self._round = [kind for kind, number in KINDS.items() for _ in range(number)]
            self.world.chance.shuffle(self._round)
        return self._round.pop()

    def rest(self) -> Rest:
        world, agents = self.world, (self.office.agent, self.carrier.agent)
        self.office.hang_up_all()
        self.carrier.hang_up_all()
        began = world.now

        def quiet() -> bool:
            return not any(agent.sessions or agent.transactions for agent in agents)

        world.run(began + REST_S, quiet)
        settled = round(world.now - began, 1) if quiet() else None
        world.forget()
        gc.collect()
        found = sizes(self.office.agent, "office") | sizes(self.carrier.agent, "carrier")
        return Rest(round(world.now / HOUR, 2), settled, found, round(traced_kb(), 1))

    def unregister(self) -> None:
        self.office.agent.unregister(self.world.now)
        self.office.work()
        self.world.run(self.world.now + 60)

    def wrong(self) -> Iterator[str]:
        status = self.registered.status
        if self.registrar.lapsed or status.state is not RegistrationState.UNREGISTERED:
            yield f"the registration lapsed {self.registrar.lapsed} times and is {status.state}"
        for office, name in ((self.office, "office"), (self.carrier, "carrier")):
            for (kind, _, code, by), n in office.ended.items():
                if kind not in ("lost", "unheard", "unanswered") and by in ("timeout", "transport"):
                    yield f"{name}: {n} calls of the kind {kind} ended by {by}, {code}"


def traced_kb() -> float:
    """Of the code of the SIP edge."""
    snapshot = tracemalloc.take_snapshot()
    edge = snapshot.filter_traces([tracemalloc.Filter(True, "*/telephony/sip/*")])
    return sum(trace.size for trace in edge.traces) / 1024


def measure(hours: float, calls_per_hour: float, seed: int) -> Result:
    result, began = Result(), time.monotonic()
    tracemalloc.start()
    try:
        day = Day(seed, calls_per_hour)
        warm_up = min(WARM_UP_HOURS, hours / 2)
        for part in (warm_up, hours - warm_up):
            day.calls(part)
            result.rests.append(day.rest())
        day.unregister()
    finally:
        tracemalloc.stop()
    world = day.world
    result.hours, result.seconds = hours, round(time.monotonic() - began, 1)
    result.placed = day.office.placed + day.carrier.placed
    ended = day.office.ended + day.carrier.ended
    result.ended = {" ".join(map(str, key)): n for key, n in sorted(ended.items())}
    result.wrong = list(day.wrong())
    result.messages = dict(world.messages.most_common())
    result.repeated = world.repeated
    result.keys = day.office.keys + day.carrier.keys
    result.offers = day.office.offers + day.carrier.offers
    result.registrations, result.stale = day.registrar.accepted, day.registrar.stale
    return result


def report(result: Result) -> dict[str, Any]:
    """For --json."""
    plain = asdict(result)
    more = {"left": result.left, "grown_kb": result.grown_kb, "passed": result.passed}
    return {**plain, **more}


def print_result(result: Result) -> None:
    print(
        f"{result.hours:g} hours in {result.seconds} s: {result.placed} calls, "
        f"{sum(result.messages.values())} messages of which {result.repeated} repeated; "
        f"{result.registrations} registrations, {result.stale} with a stale nonce; "
        f"{result.messages.get('UPDATE', 0)} UPDATE, {result.offers} re-INVITEs taken, "
        f"{result.keys} keys"
    )
    print("ends of calls at both ends: kind, who called there, status, who ended it")
    for how, n in result.ended.items():
        print(f"{n:7}  {how}")
    for rest in result.rests:
        held = ", ".join(f"{name} {n}" for name, n in rest.sizes.items())
        print(
            f"at {rest.hours} h, {rest.settled_s} s after the last hang-up: "
            f"{rest.traced_kb} KB; {held or 'nothing'}"
        )
    for what in result.wrong:
        print(f"x {what}")
    print(f"grown by {result.grown_kb} KB since the first hour; kept without calls: {result.left}")
    print("passed" if result.passed else "FAILED")
