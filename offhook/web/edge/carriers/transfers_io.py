"""Transfers by carriers, which ring at the target themselves and then ask us what to do next.

POST /carriers/NAME/transfer/CALL?target=    how the transfer is carried out, which some ask
POST /carriers/NAME/transfer/CALL            how the call to the target goes, or has ended

    it was not answered, and the caller is there   → our stream again: the conversation goes on
    it has ended, or the caller has                → the call ends
    it goes on, which some say too                 → nothing
"""

from dataclasses import replace

from aiohttp import web
from loguru import logger

from offhook.media.end_reason import End
from offhook.media.leg import CallInfo
from offhook.telephony.carriers.auth.signatures import SignedRequest
from offhook.telephony.carriers.call_io import STATUSES, CarrierCall
from offhook.telephony.carriers.webhook import Reply, WebhookCall
from offhook.web.edge.carriers.calls_io import CarrierCalls
from offhook.web.edge.carriers.requests_io import (
    Carrier,
    CarrierRequests,
    base_url,
    parsed,
    without_tries,
)


class CarrierTransfers:
    """Continues calls whose transfer has failed, and ends the others."""

    def __init__(self, calls: CarrierCalls, requests: CarrierRequests) -> None:
        self._calls, self._requests = calls, requests

    async def webhook(self, request: web.Request) -> web.Response:
        """Responds to what a provider says of a transfer."""
        carrier = self._requests.carrier(request, lambda provider: provider.reports)
        call = self._calls.call_of(carrier, request.match_info["call"])
        provider = call.provider if call is not None else carrier.provider

        async def respond(signed: SignedRequest) -> Reply:
            signed, tries = without_tries(signed)
            base = base_url(provider.settings, signed, request)
            call_id = request.match_info["call"]
            where = f"{base}/carriers/{provider.settings.name}/transfer/{call_id}"
            how = provider.transfer_answer(dict(signed.query), where)
            if how is not None:
                return how
            report = parsed(provider, request, signed)
            if isinstance(report, Reply):
                return report
            status = provider.dial_status(report)
            is_there = _ended(provider.caller_status(report)) is None
            if is_there and (tries or _ended(status)):
                return await self._continue(carrier, call, report, base, where, tries, status)
            # Others say that and why a call has ended in any order.
            if call is not None and (provider.continues or not is_there):
                self._calls.away.pop(call_id, None)
                call.end_away()
            return provider.hang_up() if provider.continues else Reply()

        calls = (call,) if call is not None else ()
        return await self._requests.once(carrier, request, calls, respond)

    async def _continue(
        self,
        carrier: Carrier,
        call: CarrierCall | None,
        report: WebhookCall,
        base: str,
        where: str,
        tries: int,
        status: str,
    ) -> Reply:
        """Connects the call again, for the conversation to go on, or begin anew after a restart."""
        settings, agent = carrier.settings, ""
        info = CallInfo(
            settings.provider, caller=report.caller, called=report.called, trunk=settings.name
        )
        report = replace(report, parameters={})
        if call is not None:
            if call.transferred_to and call.leg is not None:
                call.leg.release(End.TRANSFERRED)
                await call.until_away()
            if not call.transferred_to:
                return Reply()  # it is back already
            info, agent = call.info, call.agent
            # The report may be of the target's call.
            report = WebhookCall(call.provider_call_id, info.caller, info.called)
        if (busy := self._calls.later(carrier, report, where, tries)) is not None:
            return busy
        saved = None
        if call is not None:
            logger.info("{}: not transferred to {}: {}", call.call_id, call.transferred_to, status)
            saved = self._calls.away.pop(call.call_id, None)
            call.come_back()
        if call is None or call.state == "ended":
            call = self._calls.call_again(carrier, info, agent, saved)
        return await self._calls.reconnect(carrier, call, report, base, saved)


def _ended(status: str) -> int | None:
    """Returns the equivalent SIP status of a call that has ended, 0 if it was answered; None for
    one that has not."""
    state, number = STATUSES.get(status.lower(), ("dialing", 0))
    return number if state == "ended" else None
