"""Has the phones of extensions show how many messages wait for them."""

import asyncio
from collections.abc import Callable, Mapping

from loguru import logger

from offhook.web.records.errors import StoreError
from offhook.web.records.voicemails import Voicemails

LOOK_S = 3.0
"""Interval in s at which the mailboxes are looked at: messages are left and heard at any process of
any server that shares the store."""

Counts = Mapping[str, tuple[int, int]]
"""New messages and those that were heard, by extension."""


async def watch_mailboxes(
    voicemails: Voicemails, looking: asyncio.Semaphore, show: Callable[[Counts], None]
) -> None:
    """Calls `show` with the messages of all mailboxes whenever they have changed."""
    shown: Counts | None = None
    while True:
        try:
            async with looking:
                found = await asyncio.to_thread(voicemails.counts)
        except StoreError as error:
            logger.bind(a_minute="mailboxes").warning("no mailbox can be looked at: {}", error)
        else:
            if found != shown:
                shown = found
                show(found)
        await asyncio.sleep(LOOK_S)
