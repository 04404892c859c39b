"""Delivers webhooks."""

import asyncio
from collections.abc import Callable
from time import monotonic, time
from urllib.parse import urlsplit

import aiohttp
from loguru import logger

from offhook.pipeline.speech.streams.retry import AttemptFailed
from offhook.web.http.webhook_signature import signed_headers
from offhook.web.realtime.webhooks import Event, Webhook, failure_of, retry_policy

MAX_PENDING = 200
"""Maximum deliveries under way; further ones fail at once."""
CONNECT_TIMEOUT_S = 3.0
"""Time limit in s for connecting; then the attempt has failed."""
ATTEMPT_TIMEOUT_S = 8.0
"""Time limit in s of one attempt, from connecting to the head of the response; then the attempt has
failed, and the next one follows."""


class NotDelivered(Exception):
    """Raised when a webhook was not delivered; the message says why."""


class WebhookSender:
    """Delivers the webhooks of a process."""

    def __init__(self) -> None:
        self._http: aiohttp.ClientSession | None = None
        """Created with the first delivery."""
        self._pending = 0

    async def close(self) -> None:
        if self._http is not None:
            await self._http.close()

    async def deliver(
        self, webhook: Webhook, event: Event, give_up_s: float, wanted: Callable[[], bool]
    ) -> None:
        """Delivers an event, with retries for `give_up_s` and while it is `wanted`. Raises
        NotDelivered."""
        if self._pending >= MAX_PENDING:
            raise NotDelivered(f"{MAX_PENDING} others are being delivered")
        self._pending += 1
        policy = retry_policy(give_up_s)
        try:
            while True:
                started = monotonic()
                failed = await self.attempt(webhook, event)
                if failed is None or not wanted():
                    return
                pause = policy.pause_s(failed, started)
                host = urlsplit(webhook.url).netloc  # the rest may be a secret
                logger.warning("webhook {} to {}: {}", event.id, host, failed)
                if pause is None:
                    raise NotDelivered(str(failed)) from failed
                await asyncio.sleep(pause)
                if not wanted():
                    return
        finally:
            self._pending -= 1

    async def attempt(self, webhook: Webhook, event: Event) -> AttemptFailed | None:
        """Sends an event once; returns how that failed, None if it is delivered."""
        if self._http is None:
            self._http = aiohttp.ClientSession()
        timeout = aiohttp.ClientTimeout(ATTEMPT_TIMEOUT_S, connect=CONNECT_TIMEOUT_S)
        try:
            async with self._http.post(
                webhook.url,
                data=event.body,
                headers=signed_headers(event.id, event.body, webhook.secrets, time()),
                timeout=timeout,
                allow_redirects=False,
            ) as answer:
                after = answer.headers.get("Retry-After", "")
                return failure_of(answer.status, float(after) if after.isdecimal() else 0.0)
        except TimeoutError:
            return AttemptFailed(f"no answer within {ATTEMPT_TIMEOUT_S:g} s")
        except (aiohttp.ClientError, OSError) as error:
            return AttemptFailed(f"{type(error).__name__}: {error}"[:200])
