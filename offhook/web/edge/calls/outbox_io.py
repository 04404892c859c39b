"""Takes webhooks about calls from the store to their receivers, each at its own pace."""

import asyncio
import time
from collections.abc import Callable
from urllib.parse import urlsplit

from loguru import logger

from offhook.media.tasks_io import TaskSet
from offhook.web.realtime.webhooks import Event, Webhook
from offhook.web.realtime.webhooks_io import WebhookSender
from offhook.web.records.errors import StoreError
from offhook.web.records.outbox import Outbox
from offhook.web.records.webhooks import Delivery, Receiver

LOOK_S = 1.0
"""Interval in s at which the store is asked for webhooks."""


class OutboxSender:
    """Delivers the webhooks of one store; a task for each receiver, so that one that is slow or
    dead delays no other."""

    def __init__(self, outbox: Outbox, ready: Callable[[], bool]) -> None:
        """`ready` says whether the store's tables are there."""
        self._outbox = outbox
        self._ready = ready
        self._sender = WebhookSender()
        self._tasks = TaskSet()

    def start(self) -> None:
        for receiver in self._outbox.receivers:
            self._tasks.spawn(self._serve(receiver), f"webhooks to {urlsplit(receiver.url).netloc}")

    async def close(self) -> None:
        """Ends deliveries; what is not delivered waits in the store."""
        await self._tasks.close()
        await self._sender.close()

    async def _serve(self, receiver: Receiver) -> None:
        while not self._ready():
            await asyncio.sleep(LOOK_S)
        while True:
            due: list[Delivery] = []
            try:
                due = await asyncio.to_thread(self._outbox.claim, receiver.url, time.time())
                await asyncio.gather(*(self._deliver(receiver, delivery) for delivery in due))
            except StoreError as error:  # the writer tells of it too
                logger.bind(a_minute="webhooks").warning("webhooks wait: {}", error)
                due = []
            if not due:
                await asyncio.sleep(LOOK_S)

    async def _deliver(self, receiver: Receiver, delivery: Delivery) -> None:
        webhook = Webhook(receiver.url, receiver.secrets)
        failed = await self._sender.attempt(webhook, Event(delivery.id, delivery.body))
        if failed is None:
            await asyncio.to_thread(self._outbox.delivered, delivery)
            return
        host = urlsplit(receiver.url).netloc  # the rest may be a secret
        line = logger.bind(a_minute=f"webhook {receiver.url} {failed}")
        if await asyncio.to_thread(self._outbox.failed, delivery, str(failed), time.time()):
            logger.error("webhook {} to {} is given up: {}", delivery.id, host, failed)
        else:
            line.warning("webhook {} to {} is tried again: {}", delivery.id, host, failed)
