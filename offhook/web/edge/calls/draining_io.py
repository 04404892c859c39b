"""How the calls of an edge end before it does."""

import asyncio
from collections.abc import Iterable, Mapping
from contextlib import suppress

from loguru import logger

from offhook.media.end_reason import End
from offhook.telephony.carriers.leg_io import CarrierLeg
from offhook.telephony.sip.media.leg_io import SipLeg
from offhook.web.edge.calls.live_call_io import LiveCall
from offhook.web.edge.resume.recovery_io import Recovery
from offhook.web.edge.resume.resumption_io import Resumption

FAREWELL_S = 10.0
"""Time limit in s for the announcement to callers that they are being disconnected; then they are
disconnected without its rest."""
MOVE_S = 3.0
"""Time limit in s for calls to continue at another server before this one ends; then those that
have not moved are ended."""

Calls = Mapping[str, LiveCall]


def running(calls: Calls, call_ids: Iterable[str]) -> list[asyncio.Task[None]]:
    """Returns the tasks of the calls among these that have begun."""
    known = (calls.get(call_id) for call_id in call_ids)
    return [call.running for call in known if call is not None and call.running is not None]


async def drain_calls(
    calls: Calls, seconds: float, resumption: Resumption | None, recovery: Recovery | None
) -> None:
    """Waits for the calls, then sends those to another server that can continue there, and ends
    the others with a sentence, unless `seconds` is 0."""
    tasks = running(calls, calls)
    if not tasks:
        return
    logger.info("draining {} calls", len(tasks))
    await asyncio.wait(tasks, timeout=seconds)
    if resumption is not None:
        await _move(calls, resumption, recovery)
    if seconds:
        await _say_goodbye(calls)


async def _move(calls: Calls, resumption: Resumption, recovery: Recovery | None) -> None:
    legs = await resumption.movable()
    handing = None
    if recovery is not None:
        handing = asyncio.create_task(recovery.hand_over(MOVE_S), name="hand over")
    legs = [leg for leg in legs if not isinstance(leg, SipLeg)]
    for leg in legs:
        if isinstance(leg, CarrierLeg):
            leg.release(End.CONTINUED_ELSEWHERE)
        elif (call := calls.get(leg.call_id)) is not None:
            call.send({"type": "reconnect"})
    if moving := running(calls, [leg.call_id for leg in legs]):
        logger.info("{} calls are sent to another server", len(moving))
        await asyncio.wait(moving, timeout=MOVE_S)
        for leg in legs:  # a stock client connects anew once its connection is lost
            leg.close(End.CONTINUED_ELSEWHERE)
        await asyncio.wait(moving, timeout=MOVE_S)
    if handing is not None and (gone := running(calls, await handing)):
        await asyncio.wait(gone, timeout=MOVE_S)


async def _say_goodbye(calls: Calls) -> None:
    conversations = [call.conversation for call in calls.values()]
    words = (c.end_with_a_word() for c in conversations if c is not None)
    with suppress(TimeoutError):
        async with asyncio.timeout(FAREWELL_S):
            for fault in filter(None, await asyncio.gather(*words, return_exceptions=True)):
                logger.error("a caller was disconnected without an announcement: {}", fault)
