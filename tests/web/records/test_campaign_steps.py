"""Whatever happens to a campaign, in whatever order: its limits and windows are kept, nobody is
called more often than allowed, and it comes to its end. The store is real, the time is virtual."""

import atexit
import itertools
from collections import Counter
from dataclasses import replace
from datetime import datetime
from functools import cache
from tempfile import TemporaryDirectory
from typing import Any
from zoneinfo import ZoneInfo

from hypothesis import given, settings
from hypothesis import strategies as st

from offhook.web.campaigns.errors import WrongState
from offhook.web.campaigns.pacing import Lines
from offhook.web.campaigns.recipients import recipient
from offhook.web.records.campaigns.calling import DueCall
from offhook.web.records.entries import Recorded
from offhook.web.records.store import CallStore
from tests.web.records.made_calls import HERE, NOON, RECORD

ZONES = ("Europe/Berlin", "America/New_York", "Asia/Tokyo")
NUMBER, AT_ONCE, PER_SECOND = 6, 3, 2.0
RETRIES = {"busy": {"times": 2, "after_minutes": 5}, "no_answer": {"times": 1, "after_minutes": 60}}
RETRIES |= {name: {"times": 0} for name in ("machine", "failed", "unknown")}
MOST_ATTEMPTS = 3
ENDS: list[dict[str, Any]] = [
    {"answered_by": "human"},
    {"answered_by": "machine"},
    {"answered": None, "status": 486},
    {"answered": None, "status": 480},
    {"answered": None, "status": 503},
]
HOUR_S, SLACK_S = 3600.0, 1e-6
NUMBERS = itertools.count()

steps = st.one_of(
    st.tuples(st.just("claim"), st.integers(0, 5)),
    st.tuples(st.just("end"), st.integers(0, len(ENDS) - 1)),
    st.tuples(st.just("wait"), st.floats(0.1, 8 * HOUR_S)),
    st.tuples(st.sampled_from(["crash", "pause", "resume", "no line"]), st.just(0)),
    st.tuples(st.just("forbid"), st.integers(0, NUMBER - 1)),
)


@cache
def one_store() -> CallStore:
    """For all examples: SQLAlchemy makes its statements once a store."""
    folder = TemporaryDirectory()
    store = CallStore(f"sqlite:///{folder.name}/calls.db")
    atexit.register(folder.cleanup)
    store.prepare()
    return store


class World:
    """A campaign of its own in a store, a clock and calls in progress."""

    def __init__(self, store: CallStore) -> None:
        self.store, self.now = store, NOON
        self.id = f"campaign{next(NUMBERS)}"
        for before in store.campaigns.listed():
            if before["state"] in ("running", "paused"):  # of an example that has failed
                store.campaigns.act(before["campaign_id"], "cancel", NOON)
        for each in store.do_not_call.listed()[0]:
            store.do_not_call.remove(each["number"])
        self.calls: list[DueCall] = []
        self.placed: list[DueCall] = []
        self.lost: set[str] = set()
        """Numbers of those who may have been called when the server was killed."""
        some = [recipient(f"+4930{n}", time_zone=ZONES[n % 3]) for n in range(100, 100 + NUMBER)]
        asked = {"at_once": AT_ONCE, "per_second": PER_SECOND, "retries": RETRIES}
        asked |= {"windows": ["Mon-Fri 09:00-12:00", "daily 22:00-02:00"], "time_zone": "UTC"}
        self.store.campaigns.add(self.id, asked, some, self.now)
        self.store.seen(HERE, self.now)

    def step(self, what: str, how: float) -> None:
        match what:
            case "claim":
                self.claim(int(how))
            case "end" if self.calls:
                self.end(self.calls.pop(0), ENDS[int(how)])
            case "wait":
                self.now += how
            case "crash":
                self.lost |= {due.to for due in self.calls}
                self.calls.clear()
                self.store.close_lost(self.now, 60.0, HERE)
                self.store.seen(HERE, self.now)
            case "no line" if self.calls:
                due = self.calls.pop()
                self.placed.remove(due)
                self.store.calling.release([due], self.now)
            case "forbid":
                self.store.do_not_call.add([f"004930{100 + int(how)}"], "", self.now)
            case "pause" | "resume":
                try:
                    self.store.campaigns.act(self.id, what, self.now)  # type: ignore[arg-type]
                except WrongState:
                    assert self.shown()["state"] == "completed"

    def claim(self, free: int) -> None:
        lines = Lines(free, {"": free})
        found = self.store.calling.claim(lines, "here:7860", 1, self.new_id, self.now)
        forbidden = {each["number"][-3:] for each in self.store.do_not_call.listed()[0]}
        assert not [due for due in found if due.to[-3:] in forbidden]
        assert not {due.to for due in found} & self.lost
        self.calls += found
        self.placed += found
        assert len(found) <= free
        assert len(self.calls) == self.shown()["states"]["dialling"] <= AT_ONCE
        assert len({due.to for due in self.calls}) == len(self.calls)

    def end(self, due: DueCall, how: dict[str, Any]) -> None:
        record = replace(RECORD, direction="outbound", call_id=due.call, **how)
        self.store.write([Recorded(record, "")], HERE, self.now)

    def new_id(self) -> str:
        return f"call{next(NUMBERS)}"

    def shown(self) -> dict[str, Any]:
        return self.store.campaigns.show(self.id)

    def check(self) -> None:
        assert max(Counter(due.to for due in self.placed).values(), default=0) <= MOST_ATTEMPTS
        times = [due.at for due in self.placed]
        assert all(b - a > 1 / PER_SECOND - SLACK_S for a, b in itertools.pairwise(times))
        for due in self.placed:
            zone = ZONES[int(due.to[-3:]) % 3]
            assert windows_are_open(due.at, zone), (due, zone)


def windows_are_open(at: float, zone: str) -> bool:
    """Without the code that is tested."""
    now = datetime.fromtimestamp(at, ZoneInfo(zone))
    morning = now.weekday() < 5 and 9 <= now.hour < 12
    return morning or now.hour >= 22 or now.hour < 2


@settings(max_examples=20)
@given(st.lists(steps, max_size=25))
def test_any_order_of_events(some: list[tuple[str, float]]) -> None:
    world = World(one_store())
    for what, how in some:
        world.step(what, how)
    world.step("resume", 0)
    for _ in range(50):  # and at last all have a window, and answer
        if world.shown()["state"] == "completed":
            break
        world.step("claim", 5)
        while world.calls:
            world.step("end", 0)
        world.now += 2 * HOUR_S
    found = world.shown()
    assert (found["state"], found["states"]["waiting"]) == ("completed", 0)
    assert found["calls"] == len(world.placed)
    world.check()
