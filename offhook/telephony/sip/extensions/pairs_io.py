"""Calls that are connected with each other here, and change partners: a phone transfers by giving
its partner to another (RFC 5589, with us in the middle), or more are added, who all hear each other
until fewer than two are left."""

import asyncio
from collections.abc import Callable
from contextlib import ExitStack

from offhook.media.bridge_io import Bridge
from offhook.media.clock_io import PacketClock
from offhook.media.end_reason import End
from offhook.media.leg import Leg
from offhook.media.rooms.room import Member, Room
from offhook.telephony.sip.call_io import SipCall

MAX_TOGETHER = 6
"""Maximum calls that hear each other; a further one is refused."""


class Pair:
    """Two calls that hear each other, or more."""

    def __init__(self, first: SipCall, second: SipCall, on_over: Callable[[], None]) -> None:
        self.members = [first, second]
        self._first_two = (first, second)
        self._on_over = on_over
        self.changed = asyncio.Event()
        self.leaving: SipCall | None = None
        """Who transfers the other, and may hang up before that is done (RFC 5589 §6.1)."""
        self.called = 0
        """How many are being called, to be added."""
        self.over = False
        self.separated = asyncio.Event()
        """Set when they hear each other no longer, and others may have their legs."""

    def other(self, call: SipCall) -> SipCall:
        return self.members[1 if call is self.members[0] else 0]

    def report_over(self) -> None:
        """Report, once, that the two do not talk any more, whoever talks in their place."""
        on_over, self._on_over = self._on_over, lambda: None
        on_over()

    @property
    def is_two(self) -> bool:
        return len(self.members) == 2

    def add(self, call: SipCall) -> None:
        """Have another call hear all of them, and be heard."""
        self.members.append(call)
        self.changed.set()

    def leave_out(self, closed: list[SipCall]) -> None:
        """Have the others go on without those whose calls have ended."""
        if any(call in self._first_two for call in closed):
            self.report_over()
        self.members = [call for call in self.members if call not in closed]

    def replace(self, before: SipCall, after: SipCall) -> None:
        """Have `after` take the place of `before`, whose leg stays up."""
        self.members[self.members.index(before)] = after
        self.leaving = None
        self.changed.set()

    def dissolve(self) -> None:
        """Separate the two, and leave their legs up."""
        self.over = True
        self.changed.set()


class Pairs:
    """The pairs of an endpoint."""

    def __init__(self, clock: PacketClock) -> None:
        self._clock = clock
        self._pairs: list[Pair] = []

    def of(self, call: SipCall) -> Pair | None:
        """Return the pair that a call belongs to."""
        return next((pair for pair in self._pairs if call in pair.members), None)

    async def talk(
        self, first: SipCall, second: SipCall, on_over: Callable[[], None] = lambda: None
    ) -> None:
        """Connect two answered calls until one of them ends, or their pair is dissolved. The other
        is hung up then; whoever made the calls finishes them. `on_over` is called when either of
        the two leaves, before anybody who awaits that."""
        pair = Pair(first, second, on_over)
        self._pairs.append(pair)
        for call in pair.members:  # a call that had an agent is ticked already
            self._clock.remove(_leg(call))
        try:
            while not pair.over:
                await self._until_changed(pair)
        finally:
            self._pairs.remove(pair)
            pair.separated.set()

    async def _until_changed(self, pair: Pair) -> None:
        pair.changed.clear()
        legs = [_leg(call) for call in pair.members]
        waiting: list[asyncio.Task[object]] = [
            asyncio.create_task(leg.until_closed()) for leg in legs
        ]
        waiting.append(asyncio.create_task(pair.changed.wait()))
        with ExitStack() as connected:
            for leg in legs:
                leg.playout.flush()
            if pair.is_two:
                self._bridge(legs, pair.report_over, connected)
            else:
                self._mix(legs, connected)
            try:
                await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
                if pair.leaving is not None and _leg(pair.leaving).closed is not None:
                    left = waiting[1 - pair.members.index(pair.leaving)], waiting[-1]
                    await asyncio.wait(left, return_when=asyncio.FIRST_COMPLETED)
            finally:
                for task in waiting:
                    task.cancel()
                await asyncio.gather(*waiting, return_exceptions=True)
        if len(legs) > 2 or not pair.is_two:
            pair.leave_out([call for call in pair.members if _leg(call).closed is not None])
            if len(pair.members) > 1:
                return
            pair.changed.clear()
        pair.report_over()
        if not pair.changed.is_set():
            pair.over = True
            for leg in legs:
                await leg.hang_up(End.OTHER_END_HUNG_UP)

    def _bridge(self, legs: list[Leg], on_over: Callable[[], None], until: ExitStack) -> None:
        for leg in legs:
            self._clock.add(leg)
            until.callback(self._clock.remove, leg)
        until.callback(Bridge(legs[0], legs[1], on_over).close)

    def _mix(self, legs: list[Leg], until: ExitStack) -> None:
        room = Room(legs[0].call_id)
        for leg in legs:
            room.join(Member(leg.call_id, leg))
            until.callback(room.leave, leg.call_id)
        self._clock.add(room)
        until.callback(self._clock.remove, room)


def _leg(call: SipCall) -> Leg:
    assert call.leg is not None
    return call.leg
