"""Tasks end with their owner."""

import asyncio

import pytest

from offhook.media.tasks_io import TaskSet, end_all, first_of, unended
from tests.support.waiting import HANGS_S

pytestmark = pytest.mark.usefixtures("nothing_left")


async def test_tasks_leave_when_done_and_the_rest_ends_with_the_owner() -> None:
    tasks, ended = TaskSet(), []

    async def work(name: str, seconds: float) -> None:
        try:
            await asyncio.sleep(seconds)
            if name == "fails":
                raise ValueError(name)
        finally:
            ended.append(name)

    short, fails = tasks.spawn(work("short", 0), "short"), tasks.spawn(work("fails", 0), "fails")
    tasks.spawn(work("long", 3600), "long")
    await asyncio.wait((short, fails))
    await asyncio.sleep(0)
    assert isinstance(fails.exception(), ValueError)
    assert [task.get_name() for task in tasks] == ["long"]
    await tasks.close()
    assert sorted(ended) == ["fails", "long", "short"]
    assert not tasks


async def test_tasks_that_begin_while_others_end_are_ended_too() -> None:
    tasks, ended = TaskSet(), []

    async def work(more: int) -> None:
        try:
            await asyncio.sleep(3600)
        finally:
            ended.append(more)
            if more:
                tasks.spawn(work(more - 1), "another")

    tasks.spawn(work(3), "first")
    await asyncio.sleep(0)
    await tasks.close()
    assert ended == [3, 2, 1, 0]
    assert not tasks


async def test_a_task_that_does_not_end_is_named_counted_and_left(
    caplog: pytest.LogCaptureFixture,
) -> None:
    tasks, go, stubborn = TaskSet(), asyncio.Event(), asyncio.Event()

    async def deaf() -> None:
        while not go.is_set():
            try:
                stubborn.set()
                await go.wait()
            except asyncio.CancelledError:
                continue

    task = tasks.spawn(deaf(), "deaf")
    await stubborn.wait()
    await end_all(lambda: tasks, end_s=0.01)
    assert "deaf" in caplog.text
    assert unended() == 1
    go.set()
    await task
    await asyncio.sleep(0)
    assert unended() == 0


async def test_an_owner_may_be_closed_by_a_task_of_its_own() -> None:
    tasks = TaskSet()
    await asyncio.wait_for(tasks.spawn(tasks.close(), "closer"), HANGS_S)


async def test_the_first_of_two_ends_the_other() -> None:
    ended = asyncio.Event()

    async def works_on() -> None:
        try:
            await asyncio.sleep(3600)
        finally:
            ended.set()

    assert await first_of(asyncio.sleep(0, "first"), works_on()) == ("first", None)
    assert ended.is_set()


async def test_the_first_of_two_may_fail_and_both_end_with_who_waits() -> None:
    ended: list[str] = []

    async def works_on(name: str) -> None:
        try:
            await asyncio.sleep(3600)
        finally:
            ended.append(name)

    async def fails() -> None:
        raise ValueError("fails")

    with pytest.raises(ValueError, match="fails"):
        await first_of(works_on("one"), fails())
    waiting = asyncio.create_task(first_of(works_on("two"), works_on("three")))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)
    assert waiting.cancelled()
    assert sorted(ended) == ["one", "three", "two"]
