"""What calls of phones and of carriers have in common: their ids, their states and their record."""

from collections.abc import AsyncGenerator

from offhook.media.answer_status import AnswerStatus
from offhook.media.leg import CallInfo, Claim, Leg, LegStatistics, ModelTokens
from offhook.telephony.call_progress_io import CallHistory, CallProgress, CallState, Moment
from offhook.telephony.call_record import CallRecord, EndedBy


class TelephoneCall:
    """One call of a phone, inbound or outbound, from the first request to its end."""

    def __init__(self, call_id: str, info: CallInfo, agent: str = "") -> None:
        self.call_id = call_id
        """Our id of the call."""
        self.info = info
        self.agent = agent
        """Name of the agent that handles the call; "" for the default."""
        self.answer_status = AnswerStatus()
        """Of a call that we place."""
        self.claim: Claim | None = None
        """Of its leg."""
        self.history = CallHistory()
        self.transferred_to = ""
        """The target, from the request to transfer the call until that has failed."""

    @property
    def state(self) -> CallState:
        return self.history.state

    @property
    def progress(self) -> tuple[CallProgress, ...]:
        """Every state so far, the last MAX_HISTORY of them."""
        return self.history.past

    def events(self) -> AsyncGenerator[CallProgress, None]:
        """Yield every state from the beginning until the call has ended."""
        return self.history.events()


def record_of(
    call: TelephoneCall,
    leg: Leg | None,
    remote_id: str,
    status: int,
    reason: str,
    ended_by: EndedBy,
) -> CallRecord:
    """Return a call's record so far; `status` is that of a call that was not answered."""
    info, history, answer = call.info, call.history, call.answer_status
    line = leg.statistics() if leg is not None else LegStatistics()
    tokens = leg.tokens if leg is not None else ModelTokens()
    return CallRecord(
        call_id=call.call_id,
        edge=info.edge,
        remote_call_id=remote_id,
        direction=info.direction,
        started=history.began.time,
        ended=(history.ended or Moment.now()).time,
        end_reason=reason,
        ended_by=ended_by,
        status=200 if history.answered is not None else status,
        answered=history.answered.time if history.answered is not None else None,
        duration_seconds=history.duration_s,
        setup_ms=history.setup_ms,
        trunk=info.trunk,
        caller=info.caller,
        called=info.called,
        diverted_from=info.diverted_from,
        agent=(leg.answered_by if leg is not None else "") or call.agent,
        packets_sent=line.packets_sent,
        packets_received=line.packets_received,
        packets_lost=line.packets_lost,
        jitter_ms=line.jitter_ms,
        mos=line.mos,
        input_tokens=tokens.input,
        cached_tokens=tokens.cached,
        output_tokens=tokens.output,
        cost=tokens.cost,
        answered_by=answer.result or "",
        answered_by_ms=answer.after_ms,
        message_left=answer.message_left,
        collected=dict(leg.collected) if leg is not None else {},
        transferred_to=call.transferred_to,
        tenant=info.tenant,
    )
