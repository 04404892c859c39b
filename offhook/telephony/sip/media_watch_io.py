"""Ends calls whose media have stopped, whatever the signalling says."""

import asyncio
from time import monotonic

from offhook.media.end_reason import End
from offhook.telephony.sip.calls_io import SipCalls
from offhook.telephony.sip.offers_io import SdpLeg
from offhook.telephony.sip.stack_io import SipStack

MEDIA_CHECK_INTERVAL_S = 1.0
"""Interval of checking calls for media timeouts."""


async def watch_media(calls: SipCalls, stack: SipStack) -> None:
    """End calls whose media have timed out, forever."""
    while True:
        if not calls.by_id:  # an idle process sleeps
            calls.begun.clear()
            await calls.begun.wait()
        await asyncio.sleep(MEDIA_CHECK_INTERVAL_S)
        now, settings = monotonic(), stack.settings
        for call in tuple(calls.by_id.values()):
            leg, own = call.leg, call.trunk.media_timeout_seconds if call.trunk else None
            limit = settings.media_timeout_seconds if own is None else own
            if isinstance(leg, SdpLeg) and call.state == "answered":
                silent = leg.media_timeout(now, settings.initial_media_timeout_seconds, limit)
                if silent is not None:
                    reason = End.NO_SOUND if silent == "initial" else "the sound stopped"
                    gone = calls.hooks.may_be_elsewhere()
                    call.end(End.CONTINUED_ELSEWHERE if gone else reason)
