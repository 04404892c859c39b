"""Transfers by carriers, which ring at the target themselves and then ask us what to do next.

POST /carriers/NAME/transfer/CALL?target=    how the transfer is carried out, which Plivo asks
POST /carriers/NAME/transfer/CALL            how the call to the target goes, or has ended

    it was not answered, and the caller is there   → our stream again: the conversation goes on
    it has ended, or the caller has                → the call ends
    it goes on, which Vonage says too              → nothing
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Protocol

from aiohttp import web
from loguru import logger

from offhook.media.end_reason import End
from offhook.media.leg import CallInfo, LegError
from offhook.telephony.carriers.auth.signatures import SignedRequest
from offhook.telephony.carriers.call_io import STATUSES, CarrierCall
from offhook.telephony.carriers.rest.markup import (
    CONTINUING,
    REPORTING,
    WebhookCall,
    caller_status,
    dial_status,
    hang_up,
)
from offhook.telephony.carriers.rest.plivo import TRANSFER_PARAMETER, transfer_markup
from offhook.telephony.carriers.rest.request import RestError
from offhook.web.edge.carriers.requests_io import (
    Answer,
    Carrier,
    CarrierRequests,
    base_url,
    parsed,
    without_tries,
)
from offhook.web.edge.resume.saved_call import SavedCall

MAX_AWAY = 500
"""Maximum conversations kept of callers who are being transferred; of the oldest beyond that the
caller would begin anew if the transfer failed."""


class Calls(Protocol):
    """The calls of an edge's carriers."""

    def call_of(self, carrier: Carrier, call_id: str) -> CarrierCall | None:
        """Returns a current or ended call of this carrier, or None."""

    def later(
        self, carrier: Carrier, incoming: WebhookCall, where: str, tries: int
    ) -> Answer | None:
        """Returns None if there is a free line, else what the provider is answered."""

    def continue_call(
        self,
        carrier: Carrier,
        incoming: WebhookCall,
        base: str,
        info: CallInfo,
        agent: str,
        saved: SavedCall | None,
        *,
        transferred: bool,
    ) -> Answer:
        """Answers a call that was here before with our stream."""


class CarrierTransfers:
    """Has calls transferred, and continues those whose transfer has failed."""

    def __init__(
        self,
        calls: Calls,
        requests: CarrierRequests,
        save: Callable[[str, str], SavedCall | None],
    ) -> None:
        """`save` returns the conversation of a call, by its id and its agent's name."""
        self._calls, self._requests, self._save = calls, requests, save
        self._away: dict[str, SavedCall] = {}
        """The conversations of callers who were transferred, by the ids of their calls."""

    async def transfer(self, call: CarrierCall, target: str) -> None:
        """Has the provider transfer a call. Raises LegError."""
        if call.rest is None:
            raise LegError(f"{call.carrier.provider} cannot be asked to transfer a call")
        # Before the request: how it ends may be told before the request is answered.
        call.transferred_to = target
        saved = self._save(call.call_id, call.agent) if call.outcome_url else None
        if saved is not None:
            self._away[call.call_id] = saved
            if len(self._away) > MAX_AWAY:
                del self._away[next(iter(self._away))]
        try:
            await call.rest.control(call.provider_call_id).transfer(target, call.outcome_url)
        except LegError:
            self._away.pop(call.call_id, None)
            call.transferred_to = ""
            raise

    async def webhook(self, request: web.Request) -> web.Response:
        """Responds to what a provider says of a transfer."""
        carrier = self._requests.carrier(request, REPORTING)
        call = self._calls.call_of(carrier, request.match_info["call"])
        settings = call.carrier if call is not None else carrier.settings

        async def respond(signed: SignedRequest) -> Answer:
            signed, tries = without_tries(signed)
            base = base_url(settings, signed, request)
            where = f"{base}/carriers/{settings.name}/transfer/{request.match_info['call']}"
            target = dict(signed.query).get(TRANSFER_PARAMETER)
            if target is not None and settings.provider == "plivo":
                return _plivo_markup(target, where)
            report = parsed(settings, request, signed)
            if isinstance(report, Answer):
                return report
            status = dial_status(settings, report)
            is_there = _ended(caller_status(settings, report)) is None
            if not is_there or not (tries or _ended(status)):
                if settings.provider not in CONTINUING:
                    return Answer()  # Vonage says that and why a call has ended in any order
                self._away.pop(request.match_info["call"], None)
                return Answer(*hang_up())
            return self._continue(carrier, call, report, base, where, tries, status)

        calls = (call,) if call is not None else ()
        return await self._requests.once(carrier, request, calls, respond)

    def _continue(
        self,
        carrier: Carrier,
        call: CarrierCall | None,
        report: WebhookCall,
        base: str,
        where: str,
        tries: int,
        status: str,
    ) -> Answer:
        """Answers with our stream, for the conversation to go on, or begin anew after a restart."""
        settings, agent = carrier.settings, ""
        info = CallInfo(
            settings.provider, caller=report.caller, called=report.called, trunk=settings.name
        )
        report = replace(report, parameters={})
        if call is not None:
            if not call.transferred_to:
                return Answer()  # it is back already
            info, agent = call.info, call.agent
            # Vonage reports on the target's call.
            report = WebhookCall(call.provider_call_id, info.caller, info.called)
            if call.leg is not None:
                call.leg.release(End.TRANSFERRED)
        if (busy := self._calls.later(carrier, report, where, tries)) is not None:
            return busy
        saved = None
        if call is not None:
            logger.info("{}: not transferred to {}: {}", call.call_id, call.transferred_to, status)
            call.transferred_to, saved = "", self._away.pop(call.call_id, None)
        return self._calls.continue_call(
            carrier, report, base, info, agent, saved, transferred=True
        )


def _plivo_markup(target: str, outcome_url: str) -> Answer:
    try:
        return Answer("application/xml", transfer_markup(target, outcome_url))
    except RestError as fault:
        return Answer(text=str(fault), status=400)


def _ended(status: str) -> int | None:
    """Returns the equivalent SIP status of a call that has ended, 0 if it was answered; None for
    one that has not."""
    state, number = STATUSES.get(status.lower(), ("dialing", 0))
    return number if state == "ended" else None
