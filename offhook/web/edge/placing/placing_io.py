"""Places calls, for whoever asks for them: a program, or a campaign."""

from dataclasses import replace
from typing import Protocol

from offhook.telephony.carriers.call_io import CarrierCall
from offhook.telephony.sip.call_io import SipCall
from offhook.telephony.sip.outgoing_calls_io import Dial
from offhook.web.config.config import Config
from offhook.web.edge.placing.requests import DialRequest, DialRequestError, by_sip


class Placer(Protocol):
    """The edge, as far as it places calls."""

    config: Config

    def dial(self, dial: Dial) -> SipCall:
        """Raises NoPhones, Busy, and DialError."""

    async def dial_by_carrier(self, asked: DialRequest, call_id: str = "") -> CarrierCall:
        """Raises NoPhones, Busy, and DialError."""


async def place_call(
    placer: Placer, asked: DialRequest, call_id: str = ""
) -> SipCall | CarrierCall:
    """Places a call over a trunk or carrier, with this id if there is one. Raises DialRequestError,
    NoPhones, Busy, and DialError."""
    if asked.carrier:
        return await placer.dial_by_carrier(asked, call_id)
    if placer.config.sip is None:
        raise DialRequestError("carrier: which one is to place the call?")
    dial = by_sip(asked, placer.config.sip.ring_seconds)
    return placer.dial(replace(dial, call_id=call_id))
