"""One timer tells what goes on for too long, however much begins and ends."""

import asyncio
import gc
import weakref

import pytest

from offhook.web.speech_api.sockets.worker_stream_io import IdleTimer

pytestmark = pytest.mark.asyncio

SECONDS = 0.5


class Watched:
    def __init__(self) -> None:
        self.run_out = 0
        self.timer = IdleTimer(SECONDS, self._count)

    def _count(self) -> None:
        self.run_out += 1


async def test_what_goes_on_for_too_long_is_told_and_told_again() -> None:
    watched = Watched()
    watched.timer.begin()
    await asyncio.sleep(0.4 * SECONDS)
    assert watched.run_out == 0
    async with asyncio.timeout(20 * SECONDS):
        while watched.run_out < 2:
            await asyncio.sleep(0.01)
    watched.timer.stop()


async def test_what_begins_and_ends_in_time_is_not_told() -> None:
    watched = Watched()
    for _ in range(8):
        watched.timer.begin()
        await asyncio.sleep(0.2 * SECONDS)
        watched.timer.end()
    assert watched.run_out == 0


async def test_of_two_at_once_the_one_that_goes_on_is_told() -> None:
    watched = Watched()
    watched.timer.begin()
    watched.timer.begin()
    watched.timer.end()
    await asyncio.sleep(1.5 * SECONDS)
    assert watched.run_out
    watched.timer.stop()


async def test_what_never_began_or_is_over_is_held_by_nobody() -> None:
    never, over = Watched(), Watched()
    over.timer.begin()
    over.timer.end()
    gone = [weakref.ref(never), weakref.ref(over)]
    del never, over
    await asyncio.sleep(1.5 * SECONDS)
    gc.collect()
    assert [ref() for ref in gone] == [None, None]
