"""Call transfer.

    blind       ask the far end to call the target (REFER, RFC 3515) and follow its progress
    attended    call the target first, and ask the far end to take over that call (REFER with
                Replaces, RFC 5589)
    bridge      call the target and connect the two legs here: if the far end does not support
                transfers, or the trunk is configured so

After a blind or attended transfer the far end's call with us ends. A bridged one continues without
the agent until either side hangs up. Until the target has answered, the far end hears our ringback,
or the target's early media. A URI whose host is that of another trunk's server is called over that
one, and always bridged; so is an extension, whose phones ring all at once.

A far end need not say how a transfer has ended:

    202 with Refer-Sub: false, or no NOTIFY within FIRST_NOTIFY_S    done: the far end has taken it
    it reports no more, and sends nothing for GONE_S                 done: its caller is elsewhere
    it reports no more, and still sends                              failed: its caller is here
    it hangs up once it has accepted                                 done
"""

import asyncio
from collections.abc import Callable
from contextlib import aclosing
from functools import partial
from time import monotonic

from loguru import logger

from offhook.media.end_reason import End
from offhook.media.leg import CallInfo, Leg, LegError
from offhook.media.pcm import Pcm
from offhook.media.ringback import Ringback
from offhook.media.tasks_io import TaskSet, first_of
from offhook.telephony.call_progress_io import DialError
from offhook.telephony.sip.call_io import SipCall
from offhook.telephony.sip.calls_io import SipCalls
from offhook.telephony.sip.dial_plan import (
    extension_called,
    outbound_trunk,
    own_uri,
    request_uri,
)
from offhook.telephony.sip.extensions.pairs_io import Pairs
from offhook.telephony.sip.media.leg_io import SipLeg
from offhook.telephony.sip.messages.grammar import SipError
from offhook.telephony.sip.messages.uri import Uri
from offhook.telephony.sip.outgoing_calls_io import OutgoingCalls
from offhook.telephony.sip.ringbacks_io import Ringbacks
from offhook.telephony.sip.sessions.session_events import Ended, ReferProgress
from offhook.telephony.sip.stack_io import SipStack
from offhook.telephony.sip.trunks.trunks import Trunk

REFER_TIMEOUT_S = 70.0
"""Time limit in s for a transfer to be decided, longer than the target may ring; then it has
failed, and the call goes on, unless the far end sends nothing more."""
GONE_S = 8.0
"""Time in s without a packet after which a far end that does not say how the transfer ended has
given its caller away. RTCP of one who is silent comes within 7.5 s (RFC 3550 §6.2)."""
GONE_INTERVAL_S = 0.1
"""Interval in s at which packets are looked for meanwhile."""
UNSUPPORTED = frozenset({403, 405, 408, 481, 489, 500, 501, 503, 603})
"""Responses to a REFER that mean it is not supported: the target can still be called from here."""


class Transfers:
    """Carries out the transfers of an endpoint's calls."""

    def __init__(
        self,
        calls: SipCalls,
        stack: SipStack,
        outgoing: OutgoingCalls,
        ringbacks: Ringbacks,
        pairs: Pairs,
    ) -> None:
        self._calls = calls
        self._stack = stack
        self._outgoing = outgoing
        self._ringbacks = ringbacks
        self._pairs = pairs
        self._bridges = TaskSet()

    async def transfer(self, call: SipCall, target: str) -> None:
        """Transfer a call; returns when `target` has it. Raises LegError, leaving the call as it
        was."""
        if call.transferring:
            raise LegError("a transfer is in progress")
        if call.session is None or call.leg is None or call.state != "answered":
            raise LegError("no established call to transfer")
        try:
            uri = self._uri_of(target, call.trunk)
        except SipError as error:
            raise LegError(str(error)) from error
        call.refer = asyncio.Queue()
        ringback = self._ringbacks.of(call.trunk)
        try:
            with call.leg.playing(ringback):
                await self._transfer(call, uri, ringback)
        finally:
            call.refer = None
        call.transferred_to = target

    def _uri_of(self, target: str, trunk: Trunk | None) -> Uri:
        """Return what a target is called at. Raises SipError."""
        if number := extension_called(target, self._stack.settings):
            return own_uri(number)
        return request_uri(target, self._way_outside(trunk))

    def _way_outside(self, trunk: Trunk | None) -> Trunk | None:
        """Return the trunk of a call that goes elsewhere: that of an extension, which is none by
        itself. Raises SipError."""
        if trunk is None or not trunk.extension:
            return trunk
        settings = self._stack.settings
        extension = settings.extensions.get(trunk.extension)
        if extension is None or not extension.outside:
            raise SipError(f"extension {trunk.extension} may not call outside")
        return outbound_trunk(settings.trunks, extension.outside)

    async def _transfer(self, call: SipCall, target: Uri, ringback: Ringback) -> None:
        way = call.trunk.transfer if call.trunk is not None else "blind"
        elsewhere = self._trunk_towards(target, call.trunk) is not call.trunk
        if way == "bridge" or elsewhere:
            self._connect(call, await self._call(call, target, ringback))
        elif way == "attended":
            await self._attended(call, target, ringback)
        else:
            refused = await self._refer(call, target)
            if refused is not None and refused.status in UNSUPPORTED:
                logger.info("{}: no transfer by REFER: {}", call.call_id, refused.reason)
                self._connect(call, await self._call(call, target, ringback))
            elif refused is not None:
                raise LegError(f"the transfer failed: {refused.status} {refused.reason}")

    async def _refer(self, call: SipCall, target: Uri, replaces: str = "") -> ReferProgress | None:
        """Send a REFER and follow it to its end. Returns None if the far end took the other call,
        its response if it did not try. Raises LegError if it tried and failed."""
        session = call.session
        assert session is not None
        assert call.refer is not None
        if not session.supports_refer:
            return ReferProgress(405, "REFER is not in its Allow", final=True)
        if not session.refer(target, monotonic(), replaces=replaces):
            raise LegError("the call has ended")
        self._stack.session_changed(session)
        trying = False
        try:
            async with asyncio.timeout(REFER_TIMEOUT_S):
                while True:
                    news = await call.refer.get()
                    if isinstance(news, Ended):
                        if trying and news.by == "remote":  # it no longer needs us
                            return None
                        raise LegError(f"the call has ended: {news.reason}")
                    if news.final:
                        break
                    trying = True
        except TimeoutError:
            news = ReferProgress(408, "the transfer timed out", final=True, is_known=False)
        if 200 <= news.status < 300 or (not news.is_known and await _sends_nothing(call.leg)):
            call.end(End.TRANSFERRED)  # RFC 5589 §6.1: it is up to us to hang up, if it has not
            return None
        if trying:
            raise LegError(f"the transfer failed: {news.status} {news.reason}")
        return news

    async def _attended(self, call: SipCall, target: Uri, ringback: Ringback) -> None:
        second = await self._call(call, target, ringback)
        assert second.session is not None
        assert second.session.dialog is not None
        try:
            refused = await self._refer(call, target, second.session.dialog.replaces)
        except LegError as error:
            refused = ReferProgress(0, str(error), final=True)
        except asyncio.CancelledError:
            await self._calls.finish(second, "the call is over")
            raise
        if refused is None:
            await self._calls.finish(second, End.TRANSFERRED)
            return
        logger.info("{}: no transfer by REFER: {}", call.call_id, refused.reason)
        if second.ended is not None:  # the target waited no longer
            await self._calls.finish(second, End.OTHER_END_HUNG_UP)
            raise LegError(f"the transfer failed: {End.OTHER_END_HUNG_UP}")
        self._connect(call, second)

    async def _call(self, first: SipCall, target: Uri, ringback: Ringback) -> SipCall:
        """Call the target; returns when it has answered. Its early media go to `ringback`. Raises
        LegError, also if the first call ends before."""
        assert first.leg is not None
        second = self._consultation_call(first, target)
        tasks, taken = TaskSet(), False
        tasks.spawn(_follow_early_media(second, ringback), f"early media {second.call_id}")
        try:
            placed, _ = await first_of(self._place(second, target), first.leg.until_closed())
            if not placed:
                raise LegError("the call has ended")
            taken = True
        except DialError as error:
            second.failed(error)
            raise LegError(str(error)) from error
        finally:
            await tasks.close()
            if not taken:
                await self._calls.finish(second, "the call is over")
        return second

    def _trunk_towards(self, target: Uri, usual: Trunk | None) -> Trunk | None:
        """Return the trunk to call a URI over: the usual one, unless its server would be asked for
        a host that is another's."""
        if not target.host and target.user:
            return self._stack.settings.phones[target.user]
        usual = self._way_outside(usual)
        if usual is None or not usual.server or usual.is_host(target.host):
            return usual
        others = (t for t in self._stack.settings.trunks if t.server and t.is_host(target.host))
        return next(others, usual)

    def _consultation_call(self, first: SipCall, target: Uri) -> SipCall:
        """Create the consultation call to connect `first` with."""
        trunk = self._trunk_towards(target, first.trunk)
        inbound = first.info.direction == "inbound"
        info = CallInfo(
            edge="sip",
            direction="outbound",
            caller=first.info.caller if inbound else first.info.called,
            caller_name=first.info.caller_name if inbound else "",
            called=target.number,
            trunk=trunk.name if trunk is not None else "",
            tenant=first.info.tenant,
        )
        return self._calls.new(trunk, info, of_caller=first.call_id)

    async def _place(self, second: SipCall, target: Uri) -> bool:
        await self._outgoing.reach(second, target)
        return True

    def _connect(self, call: SipCall, second: SipCall) -> None:
        self._bridges.spawn(self._pairs.talk(call, second), f"bridge {call.call_id}")
        finishing = self._calls.finish_when_over(second)
        self._bridges.spawn(finishing, f"sip call {second.call_id}")

    async def close(self) -> None:
        """End all bridges."""
        await self._bridges.close()


async def _follow_early_media(call: SipCall, ringback: Ringback) -> None:
    """Pass a call's early media on to `ringback`, until it is answered."""
    stop: Callable[[], None] | None = None
    try:
        async with aclosing(call.events()) as events:
            async for progress in events:
                if progress.state == "answered":
                    break
                if progress.state == "early_media" and isinstance(call.leg, SipLeg) and not stop:
                    stop = call.leg.listen(partial(_pass_on, call.leg, ringback))
    finally:
        if stop is not None:
            stop()
        ringback.end_early()


def _pass_on(leg: SipLeg, ringback: Ringback, heard: Pcm, said: Pcm | None, now: float) -> None:
    ringback.receive(heard, leg.last_packet_at, now)


async def _sends_nothing(leg: Leg | None) -> bool:
    """Return whether no packet comes for GONE_S, or the far end hangs up meanwhile."""
    if not isinstance(leg, SipLeg):
        return False
    since = monotonic()
    while leg.closed is None and monotonic() - since < GONE_S:
        if leg.last_packet_at > since:
            return False
        await asyncio.sleep(GONE_INTERVAL_S)
    return True
