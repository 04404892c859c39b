"""Asks a program by webhook whether it accepts a call, and waits for its decision."""

import asyncio
from collections.abc import Mapping
from time import time
from typing import Any

from loguru import logger

from offhook.media.leg import CallInfo
from offhook.media.tasks_io import TaskSet
from offhook.web.realtime.incoming import IncomingCall, IncomingEvent, IncomingState
from offhook.web.realtime.webhooks import Event, SipHeaders, Webhook, incoming_call
from offhook.web.realtime.webhooks_io import NotDelivered, WebhookSender

CALL_PREFIX = "rtc_"
"""Prefix of a call's id in the Realtime API; what follows is our id of the call."""


class IncomingCalls:
    """The calls on which programs decide, from their beginning to their end."""

    def __init__(self) -> None:
        self._calls: dict[str, IncomingCall] = {}
        """By our ids. A decided call stays until `forget`."""
        self._decided: dict[str, asyncio.Event] = {}
        self._sender = WebhookSender()
        self._tasks = TaskSet()

    async def close(self) -> None:
        await self._tasks.close()
        await self._sender.close()

    def state(self, call_id: str) -> IncomingState | None:
        """Returns the state of a call; None if no program was asked about it."""
        call = self._calls.get(call_id)
        return None if call is None else call.state

    def session(self, call_id: str) -> Mapping[str, Any] | None:
        """Returns the session object with which the call was accepted; None if it was not."""
        call = self._calls.get(call_id)
        return None if call is None else call.session

    async def decide(
        self, call_id: str, webhook: Webhook, headers: SipHeaders, accept_s: float
    ) -> IncomingCall:
        """Asks by webhook and returns the call once it is decided, after `accept_s` at the latest.
        Cancel this if the caller hangs up."""
        call = self._calls[call_id] = IncomingCall()
        decided = self._decided[call_id] = asyncio.Event()
        event = incoming_call(CALL_PREFIX + call_id, headers, time())
        # Not cancelled by the decision: the program may decide before it answers the webhook.
        self._tasks.spawn(
            self._ask(call_id, call, webhook, event, accept_s), f"webhook of {call_id}"
        )
        logger.info("{}: webhook {} asks who accepts the call", call_id, event.id)
        try:
            async with asyncio.timeout(accept_s):
                await decided.wait()
        except TimeoutError:
            call.apply(IncomingEvent.TIMEOUT)
        finally:
            call.apply(IncomingEvent.CANCEL)  # unless it is decided
            del self._decided[call_id]
            logger.info("{}: {}", call_id, call.state.value)
        return call

    async def _ask(
        self, call_id: str, call: IncomingCall, webhook: Webhook, event: Event, accept_s: float
    ) -> None:
        try:
            ringing = IncomingState.RINGING
            await self._sender.deliver(webhook, event, accept_s, lambda: call.state is ringing)
        except NotDelivered as error:
            if self._apply(call_id, IncomingEvent.UNDELIVERED):
                logger.error("{}: no program was asked to accept the call: {}", call_id, error)

    def accept(self, call_id: str, session: Mapping[str, Any]) -> bool:
        """Accepts a ringing call; returns whether it was ringing."""
        if not self._apply(call_id, IncomingEvent.ACCEPT):
            return False
        self._calls[call_id].session = session
        return True

    def reject(self, call_id: str, status: int) -> bool:
        """Rejects a ringing call; returns whether it was ringing."""
        call = self._calls.get(call_id)
        if call is None or call.state is not IncomingState.RINGING:
            return False
        call.status = status
        return self._apply(call_id, IncomingEvent.REJECT)

    def forget(self, call_id: str) -> None:
        """Drops a call that has ended."""
        self._calls.pop(call_id, None)

    def _apply(self, call_id: str, event: IncomingEvent) -> bool:
        call = self._calls.get(call_id)
        if call is None or not call.apply(event):
            return False
        if call_id in self._decided:
            self._decided[call_id].set()
        return True


def headers_of(info: CallInfo) -> SipHeaders:
    """Returns headers like those of an INVITE for a call that had none."""
    caller = f'"{info.caller_name}" ' if info.caller_name else ""
    named = {**info.headers, **info.variables}
    others = [(name, str(value)) for name, value in named.items() if name.isprintable()]
    return [("From", f"{caller}<tel:{info.caller}>"), ("To", f"<tel:{info.called}>"), *others]
