"""The call detail record of a SIP call."""

from dataclasses import replace

from offhook.media.rtp.rtp_leg import RtpLeg
from offhook.telephony.call_record import CallRecord
from offhook.telephony.sip.call_io import SipCall
from offhook.telephony.sip.siprec.recorded_leg_io import RecordedLeg
from offhook.telephony.telephone_call import record_of


def detail_record(call: SipCall) -> CallRecord:
    """Return the record of a call that has ended."""
    ended, session = call.ended, call.session
    leg = call.leg if isinstance(call.leg, RtpLeg | RecordedLeg) else None
    record = record_of(
        call,
        call.leg,
        session.call_id if session is not None else "",
        ended.status if ended is not None else 0,
        call.reason or (ended.reason if ended is not None else ""),
        ended.by if ended is not None else "local",
    )
    return replace(
        record,
        transport=call.transport,
        codec=leg.codec if leg is not None else "",
        srtp=leg.srtp if leg is not None else "",
        attempts=tuple(call.attempts),
    )
