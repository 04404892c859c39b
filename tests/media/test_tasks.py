"""Tasks end with their owner."""

import asyncio

import pytest

from offhook.media.tasks_io import TaskSet

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
