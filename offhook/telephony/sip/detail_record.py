"""The call detail record of a SIP call."""

from offhook.media.leg import LegStatistics, ModelTokens
from offhook.media.rtp.rtp_leg import RtpLeg
from offhook.telephony.call_record import CallRecord
from offhook.telephony.sip.call_io import SipCall
from offhook.telephony.sip.siprec.recorded_leg_io import RecordedLeg


def detail_record(call: SipCall) -> CallRecord:
    """Return the record of a call that has ended."""
    ended, info, history = call.ended, call.info, call.history
    line = call.leg.statistics() if call.leg is not None else LegStatistics()
    tokens = call.leg.tokens if call.leg is not None else ModelTokens()
    leg = call.leg if isinstance(call.leg, RtpLeg | RecordedLeg) else None
    status = ended.status if ended is not None else 0
    return CallRecord(
        call_id=call.call_id,
        edge=info.edge,
        remote_call_id=call.session.call_id if call.session is not None else "",
        direction=info.direction,
        started=history.began.time,
        ended=history.ended.time if history.ended is not None else "",
        end_reason=call.reason or (ended.reason if ended is not None else ""),
        ended_by=ended.by if ended is not None else "local",
        status=200 if history.answered is not None else status,
        answered=history.answered.time if history.answered is not None else None,
        duration_seconds=history.duration_s,
        setup_ms=history.setup_ms,
        trunk=info.trunk,
        caller=info.caller,
        called=info.called,
        diverted_from=info.diverted_from,
        agent=(call.leg.answered_by if call.leg is not None else "") or call.agent,
        transport=call.transport,
        codec=leg.codec if leg is not None else "",
        srtp=leg.srtp if leg is not None else "",
        packets_sent=line.packets_sent,
        packets_received=line.packets_received,
        packets_lost=line.packets_lost,
        jitter_ms=line.jitter_ms,
        mos=line.mos,
        input_tokens=tokens.input,
        cached_tokens=tokens.cached,
        output_tokens=tokens.output,
        cost=tokens.cost,
        answered_by=call.answer_status.result or "",
        answered_by_ms=call.answer_status.after_ms,
        message_left=call.answer_status.message_left,
        collected=dict(call.leg.collected) if call.leg is not None else {},
        transferred_to=call.transferred_to,
        tenant=info.tenant,
        attempts=tuple(call.attempts),
    )
