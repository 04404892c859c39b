"""Rings all phones of an extension: an INVITE for each binding, over the flow that it registered
over. The one that answers first becomes the call; see `forked_call`."""

import asyncio
from dataclasses import replace

from loguru import logger

from offhook.media.end_reason import End
from offhook.telephony.call_progress_io import CallState, DialError
from offhook.telephony.sip.call_io import Endpoint, SipCall
from offhook.telephony.sip.calls_io import SipCalls
from offhook.telephony.sip.extensions.forked_call import ForkedCall, ForkState
from offhook.telephony.sip.extensions.registrar import Binding
from offhook.telephony.sip.invites_io import Invites
from offhook.telephony.sip.stack_io import SipStack

CALL_HEADER = "X-Offhook-Call"
"""Header that tells a desk our id of the call, for what it shows beside it."""

HeaderLines = tuple[tuple[str, str], ...]


class _Branch(SipCall):
    """One phone that rings for a call."""

    def __init__(self, endpoint: Endpoint, of: SipCall, ring_seconds: float) -> None:
        super().__init__(endpoint, of.call_id, of.trunk, of.info, ring_seconds)
        self._of = of

    def set_state(self, state: CallState, status: int = 0, reason: str = "") -> None:
        super().set_state(state, status, reason)
        if state in ("ringing", "early_media"):
            self._of.set_state("ringing", 180, "Ringing")


class Ringer:
    """Rings the phones of extensions."""

    def __init__(
        self, calls: SipCalls, stack: SipStack, invites: Invites, endpoint: Endpoint
    ) -> None:
        self._calls = calls
        self._stack = stack
        self._invites = invites
        self._endpoint = endpoint

    async def ring(self, call: SipCall, headers: HeaderLines = ()) -> None:
        """Ring the phones of the extension that is the call's trunk; returns when one has answered.
        Raises DialError."""
        assert call.trunk is not None
        if busy := self._calls.busy_reason(call.trunk, 1):
            raise DialError(503, busy)
        # Removed from the settings meanwhile, it has no phones either.
        phones = self._stack.agent.phones.registrar.bindings(call.trunk.extension)
        if not phones:
            raise DialError(480, End.NOT_AVAILABLE + ": no phone is registered")
        longest = self._stack.settings.extensions[call.trunk.extension].ring_seconds
        ring_seconds = min(call.ring_seconds, longest)
        branches = [_Branch(self._endpoint, call, ring_seconds) for _ in phones]
        ringing = {
            asyncio.create_task(
                self._ring(branch, phone, headers), name=f"ring {call.call_id}"
            ): branch
            for branch, phone in zip(branches, phones, strict=True)
        }
        ending = asyncio.create_task(call.history.until("ended"), name=f"caller {call.call_id}")
        fork, winner = ForkedCall(len(phones)), None
        try:
            winner = await self._first(fork, ringing, ending)
        finally:
            for task in (*ringing, ending):
                task.cancel()
            await asyncio.gather(*ringing, ending, return_exceptions=True)
            for branch in branches:
                call.attempts += branch.attempts
                if branch is not winner:
                    await self._drop(branch, answered=winner is not None)
        if winner is not None:
            self._hand_over(winner, call)
        elif fork.state is ForkState.GIVEN_UP:
            raise DialError(487, call.abandoned or "cancelled")
        else:
            raise fork.refusal

    async def _first(
        self,
        fork: ForkedCall,
        ringing: dict[asyncio.Task[None], _Branch],
        ending: asyncio.Task[None],
    ) -> _Branch | None:
        """Wait for the first phone that answers; None if none does."""
        left = set(ringing)
        winner = None
        while fork.state is ForkState.RINGING:
            done, _ = await asyncio.wait((*left, ending), return_when=asyncio.FIRST_COMPLETED)
            if ending in done:
                fork.give_up()
            for task in [task for task in ringing if task in done]:
                left.discard(task)
                try:
                    task.result()
                except DialError as error:
                    fork.refused(error)
                except Exception:
                    logger.exception("{}: a phone could not be rung", ringing[task].call_id)
                    fork.refused(DialError(500, End.SERVER_FAILED))
                else:
                    if fork.answered():
                        winner = ringing[task]
        return winner

    async def _ring(self, branch: _Branch, phone: Binding, headers: HeaderLines) -> None:
        way = tuple(("Route", each) for each in phone.path)
        target = replace(phone.contact, headers=(), password=None)  # RFC 3261 §19.1.1
        desk = ((CALL_HEADER, branch.call_id),) if phone.flow.extension else ()
        await self._invites.place(branch, target, phone.flow, (*way, *headers, *desk))

    async def _drop(self, branch: _Branch, *, answered: bool) -> None:
        """End the ringing of one phone: completed elsewhere, or the caller has given up."""
        reason, status = (End.ANSWERED_ELSEWHERE, 200) if answered else (End.CALLER_HUNG_UP, 0)
        branch.end(reason, status)
        if branch.leg is not None:
            await branch.leg.hang_up(reason)
        await branch.close()
        self._calls.release(branch)

    def _hand_over(self, winner: _Branch, call: SipCall) -> None:
        """Have the call go on with the phone that has answered."""
        assert winner.leg is not None
        assert winner.session is not None
        self._calls.release(winner)
        call.transport = winner.transport
        call.use_leg(winner.leg)
        self._calls.adopt(call, winner.session)
        call.set_state("answered", 200, "OK")
        if winner.ended is not None:  # it has hung up at once
            call.handle_ended(winner.ended)
