"""The calls of a SIP endpoint, and what it shares with those who make them."""

import asyncio
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from offhook.media.clock_io import PacketClock
from offhook.media.codecs.opus import OpusSettings
from offhook.media.end_reason import End
from offhook.media.leg import CallInfo, Claim, Leg
from offhook.telephony.call_progress_io import Decision
from offhook.telephony.call_record import CallRecord
from offhook.telephony.sip.call_io import Endpoint, SipCall
from offhook.telephony.sip.detail_record import detail_record
from offhook.telephony.sip.media.leg_io import SipLeg
from offhook.telephony.sip.messages.flow import Flow
from offhook.telephony.sip.sessions.session import Session
from offhook.telephony.sip.stack_io import SipStack
from offhook.telephony.sip.trunks.routes import Conditions, NoConditions
from offhook.telephony.sip.trunks.trunk_watch import TrunkState
from offhook.telephony.sip.trunks.trunks import Trunk


class Host(Protocol):
    """What the edge provides to the endpoint."""

    clock: PacketClock

    @property
    def opus(self) -> OpusSettings: ...

    def admit(self) -> object:
        """Raises an exception whose text says why no more calls are accepted: "full", "late"."""

    def admit_stranger(self, address: str) -> Claim:
        """The same for a call that is no trunk's, from this address; returns for whom its line is
        counted."""

    async def run_call(self, leg: Leg, agent: str) -> None:
        """Run the conversation to its end."""

    def webrtc_leg(self, call_id: str) -> Leg:
        """Return a leg that answers a browser's offer."""

    def record(self, record: CallRecord) -> None:
        """Store the record of a finished call."""


Decide = Callable[[SipCall, Sequence[tuple[str, str]]], Decision | None]
"""Returns what decides whether a call is answered or placed; None to do so at once."""


@dataclass
class Hooks:
    """What the endpoint's owner may set."""

    new_leg: Callable[[str, Trunk | None, Flow], SipLeg]
    """Makes the leg of a call by its id, trunk and signalling."""
    on_setup: Callable[[float], None] = lambda seconds: None
    """Called with the setup time in seconds of each answered call."""
    decision: Decide = lambda call, headers: None
    """Called with each incoming call and the headers of its INVITE, and with each call that is
    about to be placed."""
    media_changed: Callable[[SipCall], None] = lambda call: None
    """Called with each call whose media were renegotiated."""
    trunk_turned: Callable[[TrunkState], None] = lambda state: None
    """Called with each trunk that has come up or gone down, or is down for another reason."""
    conditions: Conditions = field(default_factory=NoConditions)
    """What routes ask that is not in the call."""
    may_be_elsewhere: Callable[[], bool] = lambda: False
    """Whether another server may continue our calls by now: one whose media have stopped is then
    left without a BYE."""


class SipCalls:
    """The calls of one endpoint, from the INVITE to the end of the conversation."""

    def __init__(self, stack: SipStack, host: Host, hooks: Hooks, phone: Endpoint) -> None:
        self.by_id: dict[str, SipCall] = {}
        """By our own id."""
        self.callers: dict[str, str] = {}
        """The calls that are placed for another call's caller, by their ids: the id of that one."""
        self.begun = asyncio.Event()
        """Set when a call begins."""
        self.closing = False
        """No more calls are accepted."""
        self.hooks = hooks
        self._stack = stack
        self._host = host
        self._endpoint = phone
        self._by_session: dict[Session, SipCall] = {}

    def new(
        self, trunk: Trunk | None, info: CallInfo, call_id: str = "", of_caller: str = ""
    ) -> SipCall:
        """Make a call, with this id if there is one; `finish` must follow. `of_caller` is the id of
        the call whose caller it is placed for."""
        ring_seconds = self._stack.settings.ring_seconds
        call_id = call_id or uuid.uuid4().hex[:12]
        call = SipCall(self._endpoint, call_id, trunk, info, ring_seconds)
        self.by_id[call.call_id] = call
        if of_caller:
            self.callers[call.call_id] = of_caller
        self.begun.set()
        return call

    def adopt(self, call: SipCall, session: Session) -> None:
        """Attach a session to the call."""
        self._by_session[session] = call
        call.session = session

    def of(self, session: Session) -> SipCall | None:
        """Return the call that a session is attached to."""
        return self._by_session.get(session)

    def release(self, call: SipCall) -> None:
        """Detach all sessions from a call."""
        for session in [s for s, c in self._by_session.items() if c is call]:
            del self._by_session[session]

    async def run(self, call: SipCall) -> None:
        """Run the conversation of a call that was answered to its end."""
        assert call.leg is not None
        await self._host.run_call(call.leg, call.agent)

    async def finish(self, call: SipCall, reason: str = "the call is over") -> None:
        """End a call, write its record and forget it."""
        if call.leg is not None:
            await call.leg.hang_up(reason)
        call.end(reason)
        await call.close()
        self._host.record(detail_record(call))
        self.by_id.pop(call.call_id, None)
        self.callers.pop(call.call_id, None)
        self.release(call)

    async def finish_when_over(self, call: SipCall) -> None:
        """Finish a call that was placed here, once its leg is closed."""
        assert call.leg is not None
        try:
            await call.leg.until_closed()
        finally:
            await self.finish(call, End.OTHER_END_HUNG_UP)

    # --- lines ---

    @property
    def lines(self) -> set[str]:
        """The ids of the calls that hold a line: not those whose conversation still ends after the
        call has."""
        return {call_id for call_id, call in self.by_id.items() if call.state != "ended"}

    @property
    def free_lines(self) -> int:
        """Number of calls that the settings still allow."""
        return 0 if self.closing else max(0, self._stack.settings.max_calls - len(self.lines))

    def busy_reason(self, trunk: Trunk | None, counted: int) -> str:
        """Return why no line is free, or "". `counted` is 1 if the call itself is already
        counted."""
        lines, limit = self.lines, self._stack.settings.max_calls
        if len(lines) - counted >= limit:
            return f"all {limit} lines are in use"
        if trunk is not None and trunk.max_calls:
            here = sum(self.by_id[each].info.trunk == trunk.name for each in lines)
            if here - counted >= trunk.max_calls:
                return f"all {trunk.max_calls} lines of the trunk {trunk.name!r} are in use"
        return ""
