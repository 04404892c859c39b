"""The phone calls of an edge that others continue when it dies or drains, and theirs that it
continues: see `recovery` for who has which call.

One task exchanges all of it with Redis: it renews the lease, saves what has changed, and looks for
calls to continue.
"""

import asyncio
import secrets
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from time import monotonic

from loguru import logger

from offhook.media.end_reason import End
from offhook.media.leg import Leg
from offhook.pipeline.conversation.call_io import Call
from offhook.pipeline.conversation.events import CallEnded, CallTransferred, Event
from offhook.telephony.call_progress_io import DialError
from offhook.telephony.sip.call_io import SipCall
from offhook.telephony.sip.endpoint_io import SipEndpoint
from offhook.telephony.sip.media.leg_io import SipLeg
from offhook.telephony.sip.recovered_calls_io import saved_dialog, saved_version
from offhook.web.edge.resume.recovery import (
    CallAction,
    CallEvent,
    CallTable,
    Lease,
    SavedCallState,
)
from offhook.web.edge.resume.recovery_store_io import RecoveryStore
from offhook.web.edge.resume.resumption_io import Resumption
from offhook.web.edge.resume.saved_phone_call import SavedPhoneCall, unpack
from offhook.web.edge.resume.store_io import MAX_WORDS_CHARS, make_room
from offhook.web.http.metrics import Metrics

ROUNDS = 6
"""Exchanges with Redis in the duration of a lease, at least."""
MAX_ROUND_S = 0.5
"""Maximum interval in s between two exchanges, also where the lease would allow a longer one: so
soon are the calls of a draining edge claimed."""
EXCHANGE_S = 1.0
"""Time limit in s of one exchange, half the lease if that is shorter; then Redis counts as failing,
a warning is logged once, and the exchange is repeated."""
OFFER_ROUND_S = 0.1
"""Interval in s of the exchanges while the edge drains."""
PHONE = "sip"
"""Owner of the tokens of phone calls."""


@dataclass(eq=False)
class _PhoneCall:
    """A call of this edge that others can continue."""

    id: str
    """Its id in Redis, the same at all edges."""
    token: str
    sip: SipCall
    version: tuple[object, ...] = ()
    """`saved_version` when it was last saved."""
    unusable: bool = False
    """What is known of it cannot be saved; the log has said so."""


class Recovery:
    """Phone calls that outlive their edge. Raises ConfigError like `RecoveryStore`."""

    def __init__(
        self,
        url: str,
        sip: SipEndpoint,
        resumption: Resumption,
        metrics: Metrics,
        lease_s: float,
        free_lines: Callable[[int], int],
    ) -> None:
        """`free_lines` returns how many calls the edge can accept now, beside those that are being
        recovered, whose number it is given."""
        self.name = secrets.token_hex(8)
        self._store = RecoveryStore(url, self.name)
        self._sip, self._resumption, self._free_lines = sip, resumption, free_lines
        self._lease = Lease(lease_s)
        self._table = CallTable()
        self._calls: dict[str, _PhoneCall] = {}
        """By id."""
        self._by_leg: dict[str, _PhoneCall] = {}
        """By the call ids of this edge."""
        self._waiting: dict[str, bytes | None] = {}
        """To be saved, or with None deleted, by id; longest waiting first."""
        self._work = asyncio.Event()
        self._up: bool | None = None
        self._count = metrics.add_recovery(lambda: self._lease.valid(monotonic()))
        self._running: asyncio.Task[None]
        sip.hooks.media_changed = self._media_changed
        sip.hooks.may_be_elsewhere = lambda: self._lease.lapsed(monotonic())

    def start(self) -> None:
        self._running = asyncio.create_task(self._run(), name="saved phone calls")

    async def close(self) -> None:
        """Deletes what is saved: the calls have ended or are elsewhere."""
        self._running.cancel()
        await asyncio.gather(self._running, return_exceptions=True)
        try:
            async with asyncio.timeout(self._limit_s if self._up else 0):
                await self._store.withdraw()
        except Exception as error:  # redis-py's own, OSError, TimeoutError
            logger.debug(
                "saved phone calls expire by themselves: {}", str(error) or type(error).__name__
            )
        await self._store.close()

    # --- a call's life ---

    def expect(self, leg: Leg, agent: str) -> None:
        """Prepares to save a new call of this edge."""
        call = self._sip.calls.get(leg.call_id)
        if call is None or leg.call_id in self._by_leg or not isinstance(leg, SipLeg):
            return
        self._add(secrets.token_hex(12), call, agent)

    def _add(self, call_id: str, sip: SipCall, agent: str, returning: str = "") -> None:
        token = self._resumption.expect(sip.call_id, PHONE, agent, returning)
        call = _PhoneCall(call_id, token, sip)
        self._calls[call_id] = self._by_leg[sip.call_id] = call

    def watch(self, leg: Leg, conversation: Call) -> None:
        """Saves a call until its conversation ends."""
        call = self._by_leg.get(leg.call_id)
        if call is None:
            return

        def follow(event: Event) -> None:
            if isinstance(event, (CallEnded, CallTransferred)):
                self._apply(call.id, CallEvent.ENDED)

        conversation.listeners.append(follow)
        self._apply(call.id, CallEvent.BEGUN)

    def forget(self, call_id: str) -> None:
        """Forgets a call of this edge that has ended."""
        if (call := self._by_leg.get(call_id)) is not None:
            self._apply(call.id, CallEvent.ENDED)
            del self._by_leg[call_id]
            self._calls.pop(call.id, None)

    def _media_changed(self, sip: SipCall) -> None:
        if (call := self._by_leg.get(sip.call_id)) is not None:
            self._apply(call.id, CallEvent.CHANGED)

    def _apply(self, call_id: str, event: CallEvent) -> None:
        match self._table.apply(call_id, event):
            case CallAction.SAVE:
                self._save(self._calls[call_id])
            case CallAction.FORGET:
                self._put(call_id, None)
            case CallAction.LEAVE:
                sip = self._calls[call_id].sip
                logger.info("{}: continues at another server", sip.call_id)
                sip.end(End.CONTINUED_ELSEWHERE)

    def _save(self, call: _PhoneCall) -> None:
        sip = call.sip
        call.version = saved_version(sip)
        dialog, history = saved_dialog(sip), sip.history
        if dialog is None or history.answered is None:
            return
        try:
            times = history.began.time, history.answered.time
            began, answered = map(datetime.fromisoformat, times)
            saved = SavedPhoneCall(call.token, sip.agent, began, answered, sip.info, dialog)
            self._put(call.id, saved.pack())
            call.unusable = False
        except ValueError as error:
            if not call.unusable:
                logger.warning("{}: it is not saved: {}", sip.call_id, error)
                self._put(call.id, None)  # an older state is outdated
            call.unusable = True

    def _put(self, call_id: str, state: bytes | None) -> None:
        self._waiting.pop(call_id, None)
        make_room(self._waiting)
        self._waiting[call_id] = state
        self._work.set()

    # --- exchanges with Redis ---

    @property
    def _limit_s(self) -> float:
        return min(EXCHANGE_S, self._lease.seconds / 2)

    async def _run(self) -> None:
        pause_s = min(MAX_ROUND_S, self._lease.seconds / ROUNDS)
        while True:
            try:
                async with asyncio.timeout(self._limit_s):
                    await self._exchange(self._lease.seconds)
                self._answered()
                await self._claim()
            except Exception as error:  # redis-py's own, OSError, TimeoutError
                self._failed(error)
                await asyncio.sleep(pause_s)
                continue
            try:
                async with asyncio.timeout(pause_s):
                    await self._work.wait()
            except TimeoutError:
                self._save_changed()

    def _save_changed(self) -> None:
        for call in self._calls.values():
            if call.version != saved_version(call.sip):
                self._apply(call.id, CallEvent.CHANGED)

    async def _exchange(self, lease_s: float) -> None:
        """Renews the lease, or with 0 does not, and writes what waits."""
        self._work.clear()
        written, sent_at = dict(self._waiting), monotonic()
        renewal = await self._store.renew(lease_s, written)
        if lease_s:
            self._lease.renewed(sent_at)
        for call_id, state in written.items():
            if call_id in self._waiting and self._waiting[call_id] is state:
                del self._waiting[call_id]
        claimed = {*renewal.claimed, *renewal.refused}
        for call_id in claimed:
            self._apply(call_id, CallEvent.CLAIMED_ELSEWHERE)
        if renewal.claimed:
            await self._store.settled(renewal.claimed)
        ours = self._table.calls(SavedCallState.HELD, SavedCallState.OFFERED)
        saved = [call_id for call_id in ours if not self._calls[call_id].unusable]
        if not claimed and renewal.held < len(saved) and not self._waiting:
            for call_id in saved:  # Redis has forgotten some, or could not be given them before
                self._apply(call_id, CallEvent.CHANGED)
        if lease_s and renewal.held > len(self._table.calls()) and not self._waiting:
            held = await self._store.held()  # claimed, but the reply got lost
            for call_id, data in held[: self._table.free]:
                self._recover(call_id, data)

    def _failed(self, error: Exception) -> None:
        if self._up is not False:
            logger.bind(a_minute="saved phone calls").warning(
                "phone calls go on, but no other server can continue them: Redis fails: {}",
                repr(error)[:MAX_WORDS_CHARS],
            )
        self._up = False

    def _answered(self) -> None:
        if self._up is False:
            line = logger.bind(a_minute="saved phone calls again")
            line.info("Redis answers again: other servers can continue phone calls")
        self._up = True

    # --- calls of other edges ---

    async def _claim(self) -> None:
        recovering = len(self._table.calls(SavedCallState.RECOVERING))
        free = min(self._table.free, self._sip.free_lines, self._free_lines(recovering))
        if free <= 0 or not self._lease.may_claim(monotonic()):
            return
        async with asyncio.timeout(self._limit_s):
            found = await self._store.claim(free)
        for call_id, data in found:
            self._recover(call_id, data)

    def _recover(self, call_id: str, data: bytes) -> None:
        if self._table.apply(call_id, CallEvent.CLAIMED) is not CallAction.REINVITE:
            return
        try:
            if not data:
                raise ValueError("it was claimed too often, or is no saved call")
            saved = unpack(data)
            seconds = (datetime.now(UTC) - saved.answered).total_seconds()
            report = partial(self._recovered, call_id)
            sip = self._sip.recovered.recover(
                saved.dialog, saved.info, saved.agent, (saved.began, saved.answered), report
            )
        except Exception as error:  # ValueError, SipError, and whatever else was made of it
            reason = str(error).split("\n")[0][:MAX_WORDS_CHARS]
            line = logger.bind(a_minute="a saved phone call")
            line.warning("a call of another server cannot be continued: {}", reason)
            self._table.apply(call_id, CallEvent.REFUSED)
            self._put(call_id, None)
            self._count("refused")
            return
        logger.bind(call=sip.call_id).info(
            "{}: continues a call of another server with {}, {:.0f} s old",
            *(sip.call_id, saved.info.caller or "somebody", max(0.0, seconds)),
        )
        self._add(call_id, sip, saved.agent, saved.token)

    def _recovered(self, call_id: str, sip: SipCall, failure: DialError | None) -> None:
        if failure is None:
            self._apply(call_id, CallEvent.ANSWERED)
        else:
            logger.warning("{}: the call is lost: {}", sip.call_id, failure)
            self._apply(call_id, CallEvent.REFUSED)
        self._count("lost" if failure is not None else "recovered")
        self._work.set()  # another may be claimed now

    # --- before the edge ends ---

    async def hand_over(self, limit_s: float) -> list[str]:
        """Offers the calls to other edges and leaves those that they claim; after `limit_s` the
        others stay. Returns the call ids of those left."""
        offered = self._table.calls(SavedCallState.HELD)
        if not offered or not self._up:
            return []
        self._running.cancel()
        await asyncio.gather(self._running, return_exceptions=True)
        self._lease.give_up()
        for call_id in offered:
            self._apply(call_id, CallEvent.DRAINED)
        left: Sequence[str] = ()
        try:
            async with asyncio.timeout(limit_s):
                await self._exchange(0)
                await self._store.offer()
                while self._table.calls(SavedCallState.OFFERED):
                    await asyncio.sleep(OFFER_ROUND_S)
                    await self._exchange(0)
        except Exception as error:
            if not isinstance(error, TimeoutError):
                self._failed(error)
        try:
            async with asyncio.timeout(self._limit_s):
                left = await self._store.withdraw()
        except Exception as error:
            self._failed(error)
        for call_id in left:
            self._apply(call_id, CallEvent.CLAIMED_ELSEWHERE)
        kept = set(self._table.calls(SavedCallState.OFFERED))
        for call_id in kept:
            self._apply(call_id, CallEvent.KEPT)
        gone = [call.sip.call_id for call in self._calls.values() if call.id not in kept]
        logger.info("{} of {} phone calls continue at other servers", len(gone), len(offered))
        return gone
