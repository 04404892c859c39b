"""A call over a carrier's media stream, inbound or outbound."""

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from offhook.media.end_reason import End
from offhook.media.leg import CallInfo, Collected, ModelTokens
from offhook.telephony.call_progress_io import (
    CallProgress,
    CallState,
    Decision,
)
from offhook.telephony.call_record import CallRecord, EndedBy
from offhook.telephony.carriers.leg_io import CarrierLeg
from offhook.telephony.carriers.provider import Provider
from offhook.telephony.carriers.rest.client_io import CarrierRestClient
from offhook.telephony.carriers.streams.stream import Started
from offhook.telephony.telephone_call import TelephoneCall, record_of

# Call status reported by providers → (state, equivalent SIP status).
STATUSES: Mapping[str, tuple[CallState, int]] = {
    "ringing": ("ringing", 180),
    "in-progress": ("answered", 200),
    "answered": ("answered", 200),
    "completed": ("ended", 0),
    "complete": ("ended", 0),
    "busy": ("ended", 486),
    "no-answer": ("ended", 480),
    "timeout": ("ended", 480),
    "unanswered": ("ended", 480),
    "rejected": ("ended", 603),
    "canceled": ("ended", 487),
    "cancelled": ("ended", 487),
    "cancel": ("ended", 487),
    "failed": ("ended", 500),
    "machine": ("answered", 200),
}
"""Other statuses ("queued", "initiated", "started") change nothing: the call is being dialled."""


class CarrierCall(TelephoneCall):
    """One call of a carrier, from its first webhook or dial request to its end."""

    def __init__(
        self,
        call_id: str,
        provider: Provider,
        rest: CarrierRestClient | None,
        info: CallInfo,
        agent: str,
        on_ended: Callable[[CallRecord], None],
    ) -> None:
        super().__init__(call_id, info, agent)
        self.provider = provider
        """With the carrier's settings when the call began."""
        self.rest = rest
        """None for carriers without a REST API."""
        self.provider_call_id = ""
        self.leg: CarrierLeg | None = None
        """Set while the call has a stream."""
        self.outcome_url = ""
        """Where the provider says how a transfer has ended; "" if it does not."""
        self.part = 1
        """Number of its stream: there is another after each transfer that failed."""
        self.record: CallRecord | None = None
        """Set once the call has ended."""
        self._tokens = ModelTokens()
        """Of all its streams, one after the other."""
        self._collected: Collected = {}
        self._on_ended = on_ended
        self._left: CallRecord | None = None
        """Its record as of when it last left us by a transfer."""
        self._here, self._away, self._settled = asyncio.Event(), asyncio.Event(), asyncio.Event()

    @property
    def carrier(self) -> str:
        """Name of the carrier."""
        return self.provider.settings.name

    @property
    def is_away(self) -> bool:
        """The call was transferred, and may come back."""
        left = self._left is not None and self.leg is None and self.state != "ended"
        return left and self.transferred_to != ""

    async def until_begun(self) -> None:
        """Wait until the call has its stream, or has ended."""
        await self._here.wait()

    async def until_away(self) -> None:
        """Wait until its stream has ended."""
        await self._away.wait()

    async def until_settled(self) -> None:
        """Wait until a call that is away has come back or ended."""
        await self._settled.wait()

    async def decided(self, decision: Decision) -> int | None:
        """Await the decision on the call; None if the call ends before, which cancels it."""
        return await self.history.decided(decision)

    def set_state(
        self, state: CallState, status: int = 0, reason: str = "", ended_by: EndedBy = "local"
    ) -> None:
        """Change the state. No-op if it is the same, the call has ended, or "ringing" is late."""
        if self.state in (state, "ended") or (self.state == "answered" and state == "ringing"):
            return
        self.history.add(CallProgress(state, status, reason))
        if state == "ended":
            self.record = self._make_record(status, reason, ended_by)
            self.leg = None
            for event in (self._here, self._away, self._settled):
                event.set()
            self._on_ended(self.record)

    def receive_status(self, status: str) -> None:
        """Apply the call status the provider reports; "answered" only counts once the stream is
        up."""
        state, number = STATUSES.get(status.lower(), (self.state, 0))
        if state == "answered" and self.leg is None:
            return
        if state == "ended" and self.leg is not None and self.leg.closed is None:
            return  # the stream will end by itself, with a better reason
        if state == "ended":
            self.end_away()
        self.set_state(state, number, status.lower() if state == "ended" else "", "remote")

    def start(self, leg: CarrierLeg, started: Started, variables: Mapping[str, Any]) -> None:
        """Attach the stream that has started."""
        self.leg = leg
        leg.tokens, leg.collected = self._tokens, self._collected
        leg.answer_status = self.answer_status
        self._here.set()
        self._away.clear()
        self.provider_call_id = started.call_id
        info = self.info
        leg.info = self.info = replace(
            info,
            caller=info.caller or started.caller,
            called=info.called or started.called,
            variables={**started.parameters, **info.variables, **variables},
        )
        self.set_state("answered", 200)

    def leave(self, leg: CarrierLeg) -> None:
        """Detach the stream, which has ended since the call is transferred: the provider will say
        how that ends."""
        self._left = self._make_record(200, leg.closed or End.SERVER_STOPS, leg.ended_by)
        self.leg = None
        self.part += 1
        self._here.clear()
        self._settled.clear()
        self._away.set()

    def come_back(self) -> None:
        """The transfer has failed: a new stream is expected."""
        self.transferred_to = ""
        self._settled.set()

    def end_away(self) -> None:
        """End the call if it is away for good, as of when it left."""
        if self.is_away and self._left is not None:
            self.set_state("ended", 0, self._left.end_reason, self._left.ended_by)

    def _make_record(self, status: int, reason: str, ended_by: EndedBy) -> CallRecord:
        leg, left = self.leg, self._left
        if leg is None and left is not None:
            to = self.transferred_to
            return replace(left, end_reason=reason, ended_by=ended_by, transferred_to=to)
        record = record_of(self, leg, self.provider_call_id, status, reason, ended_by)
        return replace(
            record,
            codec=leg.codec if leg is not None else "",
            packets_sent=record.packets_sent + (left.packets_sent if left else 0),
            packets_received=record.packets_received + (left.packets_received if left else 0),
            packets_lost=record.packets_lost + (left.packets_lost if left else 0),
        )
