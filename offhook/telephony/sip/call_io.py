"""One SIP call: connects its session's events to its leg, and its leg's operations to its session.

    state        event                                  → state
    dialing      the far end rings                      → ringing
    dialing …    media before the answer                → early_media
    any of these the far end answers                    → answered
    any          either end hangs up, or it fails       → ended

How a call comes to be is in `incoming_calls_io`, `outgoing_calls_io` and `recovered_calls_io`.
"""

import asyncio
from dataclasses import dataclass
from time import monotonic
from typing import Literal, Protocol

from loguru import logger

from offhook.media.clock_io import PacketClock
from offhook.media.end_reason import End, EndReason
from offhook.media.leg import CallInfo, Leg, LegError
from offhook.media.tasks_io import TaskSet
from offhook.telephony.call_progress_io import CallProgress, CallState, DialError
from offhook.telephony.call_record import Attempt
from offhook.telephony.sip.media.leg_io import SipLeg
from offhook.telephony.sip.media.media_plan import NotAcceptable
from offhook.telephony.sip.messages.grammar import SipError
from offhook.telephony.sip.offers_io import (
    OFFER_TIMEOUT_S,
    OurOffers,
    SdpLeg,
    answer_offer,
    answer_recorded_offer,
    answer_webrtc_offer,
)
from offhook.telephony.sip.sessions.ending import shown
from offhook.telephony.sip.sessions.session import Session
from offhook.telephony.sip.sessions.session_events import (
    Answered,
    AnswerReceived,
    Confirmed,
    Dtmf,
    Ended,
    MetadataReceived,
    OfferReceived,
    OfferRefused,
    Progress,
    ReferProgress,
    ReferReceived,
    RefreshDue,
    SessionEvent,
)
from offhook.telephony.sip.siprec.recorded_leg_io import RecordedLeg
from offhook.telephony.sip.siprec.recording_session import recorded_info
from offhook.telephony.sip.trunks.trunks import Trunk
from offhook.telephony.telephone_call import TelephoneCall


class Endpoint(Protocol):
    """The endpoint's interface to its calls."""

    @property
    def clock(self) -> PacketClock: ...
    def session_changed(self, session: Session) -> None: ...
    def media_changed(self, call: "SipCall") -> None: ...
    def handle_refer(self, call: "SipCall", refer: ReferReceived) -> None: ...
    async def transfer(self, call: "SipCall", target: str) -> None: ...


@dataclass
class Followed:
    """The session whose REFER a call follows, until the new far end answers."""

    session: Session
    end: Ended | None = None
    """How it has ended meanwhile."""


class SipCall(TelephoneCall):
    """One call with one far end, inbound or outbound. Implements LegControl for its leg."""

    def __init__(
        self,
        phone: Endpoint,
        call_id: str,
        trunk: Trunk | None,
        info: CallInfo,
        ring_seconds: float,
    ) -> None:
        super().__init__(call_id, info)
        self.trunk = trunk
        self.session: Session | None = None
        self.leg: Leg | None = None
        self.ring_seconds = ring_seconds
        self.transport = ""
        """Transport of the signalling, once any was sent or received."""
        self.ended: Ended | None = None
        self.reason = ""
        """Why the call failed, if that is more specific than the session's reason."""
        self.attempts: list[Attempt] = []
        """Completed INVITE attempts."""
        self.abandoned = ""
        """Why no further attempt is to be made."""
        self.outcome: asyncio.Future[Answered | Ended] | None = None
        """Of the INVITE that we have sent, until its final response."""
        self.early: str | None = None
        """SDP of the new far end before its answer, as until then our audio stays with the old one;
        or the answer to a WebRTC offer until it is applied."""
        self.offers = OurOffers()
        self.followed: Followed | None = None
        self.refer: asyncio.Queue[ReferProgress | Ended] | None = None
        """Receives events while a transfer is in progress."""
        self.tasks = TaskSet()
        self._endpoint = phone
        self._early_media = False
        """The leg is ticked here, so that early media is audible before the answer."""

    # --- state ---

    def set_state(self, state: CallState, status: int = 0, reason: str = "") -> None:
        """Change the state. No-op if it is the same, or the call has ended."""
        if self.state == "ended" or (state == self.state and state != "dialing"):
            return
        if state in ("answered", "ended") and self._early_media and self.leg is not None:
            self._early_media = False  # the leg's next owner ticks it, and its time starts at zero
            self._endpoint.clock.remove(self.leg)
            self.leg.ticks = 0
        self.history.add(CallProgress(state, status, reason))

    def failed(self, error: DialError) -> None:
        """End a call that could not be placed."""
        self.reason = str(error)
        self.set_state("ended", error.status, self.reason)
        if self.leg is not None:
            self.leg.close(self.reason)

    def use_leg(self, leg: Leg) -> None:
        """Set the call's leg."""
        self.leg = leg
        leg.info, leg.answer_status = self.info, self.answer_status
        if isinstance(leg, SipLeg):
            leg.control = self
        elif not isinstance(leg, RecordedLeg):
            leg.transfer_by = self.transfer

    # --- session events ---

    def handle_session_event(self, session: Session, event: SessionEvent) -> None:
        """Handle an event of one of the call's sessions. Never raises: a failure ends this call
        only."""
        if isinstance(event, ReferProgress) and self.refer is not None:
            self.refer.put_nowait(event)
        followed = self.followed
        if followed is not None and session is followed.session and isinstance(event, Ended):
            followed.end = event  # it need not wait for the new far end
            return
        if session is not self.session:  # a session that another has replaced, or may replace
            if isinstance(event, OfferReceived):
                session.refuse_offer(491, monotonic())
                self._endpoint.session_changed(session)
            return
        try:
            self._handle_event(session, event)
        except (NotAcceptable, SipError) as error:
            logger.info("{}: {}", self.call_id, shown(str(error)))
            self.hang_up_session(session, f"no acceptable media: {error}", 488)
        except Exception:  # of this call; the others continue
            logger.exception("{}: the call failed", self.call_id)
            self.end(End.SERVER_FAILED, 500)

    def _handle_event(self, session: Session, event: SessionEvent) -> None:
        match event:
            case Progress(status, reason, sdp):
                self._proceed(status, reason, sdp)
            case Answered(sdp):
                self._answered(event, sdp)
            case Confirmed(sdp):
                if isinstance(self.leg, SdpLeg):
                    if sdp is not None:
                        self.leg.accept(sdp)
                    self.leg.connect()
            case OfferReceived(sdp):
                self._receive_offer(session, sdp)
            case AnswerReceived(sdp):
                if isinstance(self.leg, SdpLeg):
                    self.leg.accept(sdp)
                    self._endpoint.media_changed(self)
                self.offers.accepted()
            case OfferRefused(status, reason):
                if isinstance(self.leg, SipLeg):
                    self.leg.negotiation.rollback()
                elif isinstance(self.leg, RecordedLeg):
                    self.leg.rollback()
                self.offers.refused(f"the offer was rejected: {status} {reason}")
            case RefreshDue():
                allowed = self.trunk is None or self.trunk.reinvites
                if allowed and isinstance(self.leg, SdpLeg):
                    self.offer(session, self.leg, self.offers.direction)
            case MetadataReceived(metadata):
                if isinstance(self.leg, RecordedLeg):
                    self.leg.update(metadata)
                    describe_recorded(self)
            case Dtmf(digit):
                if self.leg is not None:
                    self.leg.receive_digit(digit)
            case ReferReceived():
                self._endpoint.handle_refer(self, event)
            case Ended():
                self.handle_ended(event)

    def _proceed(self, status: int, reason: str, sdp: str | None) -> None:
        if self.followed is not None or not isinstance(self.leg, SipLeg):
            self.early = sdp or self.early
            if self.followed is None and status in (180, 183):
                self.set_state("ringing", status, reason)
        elif sdp is not None:
            self.leg.accept(sdp)
            if not self._early_media:
                self._early_media = True
                self._endpoint.clock.add(self.leg)
            self.set_state("early_media", status, reason)
        elif status == 180:
            self.set_state("ringing", status, reason)

    def _answered(self, event: Answered, sdp: str | None) -> None:
        sdp = sdp or self.early
        if isinstance(self.leg, SipLeg):
            if sdp is not None:
                self.leg.accept(sdp)
            self.set_state("answered", 200, "OK")
        else:
            self.early = sdp
        if self.outcome is not None and not self.outcome.done():
            self.outcome.set_result(event)
        if isinstance(self.leg, SipLeg):
            self.leg.connect()

    def _receive_offer(self, session: Session, sdp: str | None) -> None:
        at_once = isinstance(self.leg, SipLeg) or (sdp is None and isinstance(self.leg, SdpLeg))
        if not at_once:
            self.tasks.spawn(self._answer_later(session, sdp), f"sip {self.call_id}")
            return
        assert isinstance(self.leg, SdpLeg)
        if answer_offer(session, self.leg, self.offers.direction, sdp):
            self._endpoint.media_changed(self)
        self._endpoint.session_changed(session)

    async def _answer_later(self, session: Session, sdp: str | None) -> None:
        assert self.leg is not None
        if isinstance(self.leg, RecordedLeg):
            assert sdp is not None  # else it was answered at once
            await answer_recorded_offer(session, self.leg, sdp)
            describe_recorded(self)
        else:
            await answer_webrtc_offer(session, self.leg, sdp)
        self._endpoint.session_changed(session)

    def offer(
        self,
        session: Session,
        leg: SdpLeg,
        direction: Literal["sendrecv", "sendonly"] = "sendrecv",
    ) -> None:
        """Send an offer in the session's dialog."""
        session.reoffer(leg.offer(direction), monotonic())
        self._endpoint.session_changed(session)

    def handle_ended(self, event: Ended) -> None:
        """Handle the end of the session."""
        self.ended = event
        self.offers.refused("the call is over")
        if self.refer is not None:
            self.refer.put_nowait(event)
        if self.outcome is not None and not self.outcome.done():
            self.outcome.set_result(event)
            return
        self.set_state("ended", event.status, event.reason)
        if self.leg is not None:
            self.leg.close(event.reason)

    # --- operations of the leg ---

    @property
    def transferring(self) -> bool:
        """Whether a transfer is in progress, requested by either side."""
        return self.refer is not None or self.followed is not None

    def end(self, reason: str, status: int = 0) -> None:
        """Reject, cancel or hang up, depending on the state. No-op once the call has ended."""
        self.abandoned = self.abandoned or reason
        if self.followed is not None:
            self.hang_up_session(self.followed.session, reason, status)
        if self.session is None:
            self.set_state("ended", status or 487, reason)
        elif self.ended is None:
            self.hang_up_session(self.session, reason, status)

    def hang_up_session(self, session: Session, reason: str, status: int = 0) -> None:
        """End one of the call's sessions."""
        if EndReason.of(reason).end is End.CONTINUED_ELSEWHERE:
            session.leave(monotonic(), reason)
        else:
            session.hang_up(monotonic(), reason, status=status)
        self._endpoint.session_changed(session)

    async def hang_up(self, reason: str) -> None:
        self.end(reason)

    async def hold(self) -> None:
        """Put the far end on hold with a re-INVITE. Raises LegError."""
        await self._reoffer("sendonly")

    async def resume(self) -> None:
        """Take the far end off hold with a re-INVITE. Raises LegError."""
        await self._reoffer("sendrecv")

    async def _reoffer(self, direction: Literal["sendrecv", "sendonly"]) -> None:
        session, leg = self.session, self.leg
        if session is None or not isinstance(leg, SipLeg) or self.state != "answered":
            raise LegError("no established call to put on hold")
        if self.trunk is not None and not self.trunk.reinvites:
            raise LegError("the far end cannot be put on hold: its trunk has reinvites = false")
        if self.offers.open or self.followed is not None:
            raise LegError("another change is in progress")
        try:
            await self.offers.exchange(lambda: self.offer(session, leg, direction))
        except TimeoutError:
            raise LegError(f"no answer to the re-INVITE after {OFFER_TIMEOUT_S:.0f} s") from None
        self.offers.direction = direction

    def send_info_dtmf(self, digit: str) -> None:
        if self.session is not None and self.ended is None:
            self.session.info_dtmf(digit, monotonic())
            self._endpoint.session_changed(self.session)

    async def transfer(self, target: str) -> None:
        """Transfer the far end to `target`. Raises LegError."""
        await self._endpoint.transfer(self, target)

    # --- tasks ---

    async def close(self) -> None:
        """Cancel the call's tasks."""
        await self.tasks.close()
        if self.leg is not None:
            self.leg.transfer_by = None
        self.set_state("ended", 0, self.reason or self.abandoned)


def describe_recorded(call: SipCall) -> None:
    """Take whom a recorded call is between from what its client says of it."""
    leg = call.leg
    if isinstance(leg, RecordedLeg):
        call.info = leg.info = recorded_info(call.info, leg.metadata, leg.labels)
