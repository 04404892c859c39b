"""The event loop keeps the timer of a core that only knows the time at which something is due."""

import asyncio
from time import monotonic

from offhook.telephony.sip.network.timer_io import CoreTimer


class Core:
    """Is due at these times."""

    def __init__(self, *times: float) -> None:
        self.times = list(times)
        self.fired: list[float] = []
        self.done = asyncio.Event()
        self.timer = CoreTimer(self.get_timer, self.due)

    def get_timer(self) -> float | None:
        return self.times[0] if self.times else None

    def due(self) -> None:
        self.fired.append(self.times.pop(0))
        self.timer.update()
        if not self.times:
            self.done.set()


async def test_each_time_that_comes_due_is_told_once_and_in_order() -> None:
    now = monotonic()
    core = Core(now - 1, now + 0.01, now + 0.01, now + 0.02)
    expected = list(core.times)
    core.timer.update()
    core.timer.update()
    await core.done.wait()
    assert core.fired == expected


async def test_an_earlier_time_replaces_a_later_one_and_none_cancels_it() -> None:
    now = monotonic()
    core = Core(now + 3600)
    core.timer.update()
    core.times.insert(0, now)
    core.times.pop()
    core.timer.update()
    await core.done.wait()
    assert core.fired == [now]
    again = Core(monotonic())
    again.timer.update()
    again.times.clear()
    again.timer.update()
    await asyncio.sleep(0.01)
    assert again.fired == []


async def test_what_is_cancelled_is_not_told() -> None:
    core = Core(monotonic())
    core.timer.update()
    core.timer.cancel()
    await asyncio.sleep(0.01)
    assert core.fired == []
