"""Time limits of asyncio, beside Pipecat's."""

import asyncio
import subprocess
import sys
from contextlib import suppress

import pipecat  # noqa: F401
import pytest

import offhook.pipeline.conversation  # noqa: F401
from tests.support.waiting import HANGS_S

REPLACED = "offhook.pipeline.conversation.wait_for_io"


async def test_who_waits_is_not_cancelled_when_the_limit_ends_with_the_wait() -> None:
    loop = asyncio.get_running_loop()
    done: asyncio.Future[None] = loop.create_future()

    def at_once() -> None:
        done.set_result(None)
        limit.reschedule(loop.time())

    with suppress(TimeoutError):
        async with asyncio.timeout(None) as limit:
            loop.call_soon(at_once)
            await asyncio.wait_for(done, HANGS_S)


async def test_waiting_ends() -> None:
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(asyncio.sleep(60), 0.01)
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(asyncio.sleep(60), 0)
    assert await asyncio.wait_for(asyncio.sleep(0, "done"), None) == "done"


@pytest.mark.parametrize("first", ["pipecat", "offhook.pipeline.conversation"])
def test_the_order_of_imports_does_not_matter(first: str) -> None:
    code = f"import {first}, pipecat, offhook.pipeline.conversation, asyncio;"
    code += "print(asyncio.wait_for.__module__)"
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ran.stdout.strip() in (REPLACED, "asyncio.tasks")
