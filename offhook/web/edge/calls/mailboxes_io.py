"""Has the phones of extensions show how many messages wait for them."""

import asyncio
from collections.abc import Mapping

from loguru import logger

from offhook.telephony.sip.endpoint_io import SipEndpoint
from offhook.web.edge.calls.records_io import CallRecords

LOOK_S = 3.0
"""Interval in s at which the mailboxes are looked at: messages are left and heard at any process of
any server that shares the store."""

Counts = Mapping[str, tuple[int, int]]
"""New messages and those that were heard, by extension."""


async def watch_mailboxes(sip: SipEndpoint, records: CallRecords) -> None:
    """Tells the phones whenever the messages have changed; returns at once if no calls are kept."""
    if records.kept is None:
        return
    from offhook.web.records.errors import StoreError

    voicemails = records.kept.store.voicemails
    shown: Counts | None = None
    while True:
        if any(one.voicemail for one in sip.stack.settings.extensions.values()):
            try:
                async with records.looking:
                    found = await asyncio.to_thread(voicemails.counts)
            except StoreError as error:
                logger.bind(a_minute="mailboxes").warning("no mailbox can be read: {}", error)
            else:
                if found != shown:
                    shown = found
                    sip.show_messages(found)
        await asyncio.sleep(LOOK_S)
