"""Incoming SIP calls: whether there is a line for them, where they go, ringing, and the answer."""

import asyncio
from dataclasses import replace
from functools import partial
from time import monotonic

from loguru import logger

from offhook.media.end_reason import End
from offhook.media.leg import CallInfo, NoPorts
from offhook.media.tasks_io import TaskSet
from offhook.telephony.call_progress_io import Decision, DialError
from offhook.telephony.sip.call_io import SipCall, describe_recorded
from offhook.telephony.sip.calls_io import Host, SipCalls
from offhook.telephony.sip.dial_plan import Destination, destination, incoming_info
from offhook.telephony.sip.extensions.calls_io import ExtensionCalls
from offhook.telephony.sip.media.leg_io import SipLeg
from offhook.telephony.sip.media.media_plan import NotAcceptable, warning
from offhook.telephony.sip.media.offer_answer import wants_ice
from offhook.telephony.sip.messages.flow import Flow
from offhook.telephony.sip.messages.grammar import SipError
from offhook.telephony.sip.messages.message import sdp_of
from offhook.telephony.sip.messages.recording_metadata import metadata_of
from offhook.telephony.sip.offers_io import ANSWER_TIMEOUT_S, webrtc
from offhook.telephony.sip.sessions.ending import reason_header, shown
from offhook.telephony.sip.sessions.session import Session
from offhook.telephony.sip.siprec.recorded_leg_io import RecordedLeg
from offhook.telephony.sip.siprec.recorded_streams import offered_streams
from offhook.telephony.sip.siprec.recording_session import recorded_info
from offhook.telephony.sip.stack_io import SipStack
from offhook.telephony.sip.user_agent import CallReceived

RETRY_AFTER_S = 10
"""Retry-After for callers when all lines are busy."""
FULL = (34, "all lines are busy")
OVERLOADED = (42, "overloaded")
REFUSALS = {
    "full": FULL,
    "tenant": (17, "all lines of this customer are busy"),
    "foreign": (21, "this number is not for these callers"),
    "connecting": FULL,
    "share": FULL,
    "late": OVERLOADED,
    "busy": OVERLOADED,
    "loading": (41, "starting"),
    "draining": (41, "shutting down"),
}
"""Q.850 cause and text of a refusal (RFC 6432), by what `Host.admit` and `Tenants.check` say: no
circuit available, congestion, temporary failure, user busy, or call rejected."""
STATUSES = {"tenant": 486, "foreign": 403}
"""Status by the same where it is not 503, after which some proxies send nobody's calls any more."""


class IncomingCalls:
    """Takes the incoming calls of an endpoint."""

    def __init__(
        self,
        calls: SipCalls,
        stack: SipStack,
        host: Host,
        tasks: TaskSet,
        extensions: ExtensionCalls,
    ) -> None:
        self._extensions = extensions
        self._calls = calls
        self._stack = stack
        self._host = host
        self._tasks = tasks

    def receive(self, event: CallReceived) -> None:
        """Register a new call at once: the very next event may be its end."""
        if event.replaces is not None:
            self._replace(self._calls.of(event.replaces), event, event.replaces)
            return
        settings = self._stack.settings
        call = self._calls.new(event.trunk, self._info(event))
        self._calls.adopt(call, event.session)
        where = destination(settings, call.info, event.trunk, self._calls.hooks.conditions)
        call.agent = where.agent or ""
        call.info = self._calls.hooks.tenants.named(call.info, where.agent)
        admitted = self._admit(call, event, where)
        self._tasks.spawn(self._run(call, event, where, admitted), f"sip call {call.call_id}")

    def _info(self, event: CallReceived) -> CallInfo:
        info = incoming_info(event.request, event.trunk, self._stack.settings)
        if not event.recording:
            return info
        try:
            offered = offered_streams(sdp_of(event.request) or "")
            labels = tuple(s.label for s in offered if s.media.kind == "audio")
            return recorded_info(info, metadata_of(event.request), labels)
        except SipError:  # the call is refused for it
            return recorded_info(info, None, ())

    async def _run(
        self, call: SipCall, event: CallReceived, where: Destination, admitted: bool
    ) -> None:
        try:
            if not admitted or call.ended is not None:
                return
            if where.agent is None:
                if not await self._connect(call, event, where):
                    return
            elif (decision := self._decision(call, event)) is not None:
                if not await self._ring_until(call, event.session, decision):
                    return
                if not self._admit(call, event, where):  # others came meanwhile
                    return
            if call.state == "answered" or await self._accept(call, event):
                self._calls.hooks.on_setup(monotonic() - call.history.began.at)
                logger.info("{}: {} calls {}", call.call_id, call.info.caller, call.info.called)
                assert call.leg is not None
                call.leg.claim = call.claim
                await self._calls.run(call)
        except Exception:
            logger.exception("{}: the call failed", call.call_id)
        finally:
            await self._calls.finish(call)

    def _decision(self, call: SipCall, event: CallReceived) -> Decision | None:
        if event.recording:
            return None
        return self._calls.hooks.decision(call, event.request.headers.items())

    async def _connect(self, call: SipCall, event: CallReceived, where: Destination) -> bool:
        """Connect the call with an extension, or a number outside, until it is over. Returns
        whether an agent is to have it instead: a voicemail, or to whom it was transferred."""
        session = event.session
        session.ring(monotonic())
        call.set_state("ringing", 180, "Ringing")
        self._stack.session_changed(session)
        accept = partial(self._accept, call, event)
        try:
            return await self._extensions.connect(call, where, accept)
        except DialError as error:
            extension = self._stack.settings.extensions.get(where.extension)
            if call.ended is not None:
                return False
            if extension is not None and extension.voicemail:
                logger.info("{}: voicemail of {}: {}", call.call_id, where.extension, error)
                call.agent = extension.voicemail
                call.info = replace(call.info, diverted_from=where.extension)
                return True
            call.reason = str(error)
            session.refuse(_passed_on(error.status), "", monotonic())
            self._stack.session_changed(session)
            return False

    # --- admission ---

    def _admit(self, call: SipCall, event: CallReceived, where: Destination) -> bool:
        """Refuse the call if it goes nowhere, or if there is no capacity for it."""
        session = event.session
        if where.status:
            session.refuse(where.status, "", monotonic())
        elif self._calls.closing:
            self._refuse_busy(call, session, "draining")
        elif busy := self._calls.busy_reason(call.trunk, 1):
            self._refuse_busy(call, session, busy)
        elif self._extensions.is_foreign(call, where):
            self._refuse_busy(call, session, "foreign")
        else:
            try:
                self._calls.hooks.tenants.check(call.info, where.agent, call.call_id)
                if call.trunk is None:
                    call.claim = self._host.admit_stranger(event.flow.remote[0])
                else:
                    self._host.admit()
            except Exception as busy:
                self._refuse_busy(call, session, str(busy))
            else:
                return True
        self._stack.session_changed(session)
        return False

    def _refuse_busy(self, call: SipCall, session: Session, why: str) -> None:
        """Refuse with 503, or as STATUSES has it. The caller learns whether all lines are busy or
        the server is overloaded or restarts; the log and the record say precisely why."""
        status = STATUSES.get(why, 503)
        logger.bind(a_minute=why).warning("{}: refused: {}", call.call_id, why)
        call.reason = End.REFUSED + f": {status} ({why})"
        cause, text = REFUSALS.get(why, FULL)
        headers = [("Retry-After", str(RETRY_AFTER_S)), reason_header(cause, text)]
        session.refuse(status, "", monotonic(), headers=headers)

    # --- the answer ---

    async def _ring_until(self, call: SipCall, session: Session, decision: Decision) -> bool:
        """Ring at the caller's side until the decision: 0 to answer the call, else the status with
        which it is refused. Returns False if it was refused, or cancelled by the caller, which
        cancels the decision."""
        session.ring(monotonic())
        call.set_state("ringing", 180, "Ringing")
        self._stack.session_changed(session)
        status = await call.history.decided(decision)
        if status and call.ended is None:
            session.refuse(status, "", monotonic())
            self._stack.session_changed(session)
        return status == 0 and call.ended is None

    async def _accept(self, call: SipCall, event: CallReceived) -> bool:
        """Answer a call. Returns False if it was refused or cancelled meanwhile."""
        if call.ended is not None:
            return False
        session, flow = event.session, event.flow
        call.transport = flow.transport
        try:
            if event.recording:
                answer = await self._answer_recording(call, event)
            else:
                answer = await self._answer(call, sdp_of(event.request), flow)
        except NotAcceptable as error:
            self._refuse(call, session, error.status, str(error), error.warning)
            return False
        except NoPorts as error:
            self._refuse(call, session, 503, str(error))
            return False
        except TimeoutError:
            self._refuse(call, session, 500, "the leg did not connect")
            return False
        except ValueError as error:  # invalid SDP, or an offer WebRTC cannot answer
            status = 400 if isinstance(error, SipError) else 488
            self._refuse(call, session, status, str(error))
            return False
        if call.ended is not None:
            return False
        session.accept(answer, monotonic())
        call.set_state("answered", 200, "OK")
        self._stack.session_changed(session)
        return True

    async def _answer(self, call: SipCall, sdp: str | None, flow: Flow) -> str:
        """Make the call's leg, and return its answer, or our offer if there is none of theirs."""
        if sdp is not None and wants_ice(sdp):
            leg = self._host.webrtc_leg(call.call_id)
            call.use_leg(leg)
            async with asyncio.timeout(ANSWER_TIMEOUT_S):
                return await webrtc(leg).answer(sdp)
        sip_leg = self._calls.hooks.new_leg(call.call_id, call.trunk, flow)
        call.use_leg(sip_leg)
        await sip_leg.bind()
        return sip_leg.offer() if sdp is None else sip_leg.answer(sdp)

    async def _answer_recording(self, call: SipCall, event: CallReceived) -> str:
        """Make the leg of a call that we record, and return its answer."""
        sdp = sdp_of(event.request)
        if sdp is None:
            raise NotAcceptable(304, "a recording session begins with an offer of its streams")
        new_leg, flow = self._calls.hooks.new_leg, event.flow
        leg = RecordedLeg(call.call_id, lambda: new_leg(call.call_id, call.trunk, flow))
        leg.metadata = metadata_of(event.request)
        call.use_leg(leg)
        answer = await leg.answer(sdp)
        describe_recorded(call)
        return answer

    def _refuse(
        self, call: SipCall, session: Session, status: int, reason: str, words: str = ""
    ) -> None:
        if call.ended is None:
            call.reason = End.REFUSED + f": {status} ({shown(reason)})"
            logger.info("{}: {}", call.call_id, call.reason)
            headers = [("Warning", words or warning(399, reason))]
            session.refuse(status, "", monotonic(), headers=headers)
            self._stack.session_changed(session)

    def _replace(self, call: SipCall | None, event: CallReceived, replaced: Session) -> None:
        """Continue with the same leg in a session that replaces the call's (RFC 3891 §3)."""
        session, leg = event.session, call.leg if call is not None else None
        unchanged = call is not None and call.session is replaced and call.followed is None
        if call is None or not unchanged or not isinstance(leg, SipLeg):
            session.refuse(481, "", monotonic())
            self._stack.session_changed(session)
            return
        sdp = sdp_of(event.request)
        try:
            answer = leg.offer() if sdp is None else leg.answer(sdp)
        except NotAcceptable as error:
            session.refuse(error.status, "", monotonic())
        except SipError:
            session.refuse(400, "", monotonic())
        else:
            self._calls.adopt(call, session)
            session.accept(answer, monotonic())
            replaced.hang_up(monotonic(), End.REPLACED)
            self._stack.session_changed(replaced)
        self._stack.session_changed(session)


def _passed_on(status: int) -> int:
    """Return what a caller gets of the status of the one who was called: not that somebody else
    wants a password, or has moved."""
    if not status:
        return 503
    return 480 if status < 400 or status in (401, 407) else status
