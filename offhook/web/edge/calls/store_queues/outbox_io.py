"""Takes webhooks about calls, and mail, from the store to their receivers, each at its own pace."""

import asyncio
import time
from functools import partial
from urllib.parse import urlsplit

from loguru import logger

from offhook.web.edge.calls.store_queues.mail_io import SCHEME, Mailer
from offhook.web.edge.calls.store_queues.queue_io import StoreQueues
from offhook.web.realtime.webhooks import Event, Webhook
from offhook.web.realtime.webhooks_io import WebhookSender
from offhook.web.records.outbox import Outbox
from offhook.web.records.webhooks import Delivery, Receiver


class OutboxSender:
    """Delivers the webhooks of one store, those of each receiver by themselves, so that one that is
    slow or dead delays no other."""

    def __init__(self, outbox: Outbox, mailer: Mailer) -> None:
        self._outbox = outbox
        self._mailer = mailer
        self._sender = WebhookSender()

    def start(self, queues: StoreQueues) -> None:
        for receiver in self._outbox.receivers:
            queues.serve(
                f"webhooks to {_host_of(receiver.url)}",
                partial(self._outbox.claim, receiver.url),
                partial(self._deliver, receiver),
            )

    async def close(self) -> None:
        """Closes the connections; deliveries are ended before."""
        await self._sender.close()

    async def _deliver(self, receiver: Receiver, delivery: Delivery) -> None:
        failed = await self._attempt(receiver, delivery)
        if not failed:
            await asyncio.to_thread(self._outbox.delivered, delivery)
            return
        host = _host_of(receiver.url)
        line = logger.bind(a_minute=f"webhook {receiver.url} {failed}")
        if await asyncio.to_thread(self._outbox.failed, delivery, str(failed), time.time()):
            logger.error("webhook {} to {} is given up: {}", delivery.id, host, failed)
        else:
            line.warning("webhook {} to {} is tried again: {}", delivery.id, host, failed)

    async def _attempt(self, receiver: Receiver, delivery: Delivery) -> str:
        """Delivers a webhook or a mail; returns why that failed, "" if it did not."""
        if receiver.url.startswith(SCHEME):
            address = receiver.url.removeprefix(SCHEME)
            return await asyncio.to_thread(self._mailer.send, address, delivery)
        webhook = Webhook(receiver.url, receiver.secrets)
        failed = await self._sender.attempt(webhook, Event(delivery.id, delivery.body))
        return "" if failed is None else str(failed)


def _host_of(url: str) -> str:
    """Returns what is no secret of a receiver's URL."""
    return url if url.startswith(SCHEME) else urlsplit(url).netloc
