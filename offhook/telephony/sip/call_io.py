"""One SIP call: connects its session's events to its leg, and its leg's operations to its session.

    state        event                                  → state
    dialing      the far end rings                      → ringing
    dialing …    media before the answer                → early_media
    any of these the far end answers                    → answered
    any          either end hangs up, or it fails       → ended

An incoming call is answered at once, or rings while it is decided whether it is answered.
"""

import asyncio
from collections.abc import AsyncGenerator, Sequence
from datetime import UTC, datetime
from time import monotonic
from typing import Literal, Protocol

from loguru import logger

from offhook.media.clock_io import PacketClock
from offhook.media.end_reason import End, EndReason
from offhook.media.leg import CallInfo, Claim, Leg, LegError, LegStatistics, NoPorts
from offhook.media.rtp.rtp_leg import RtpLeg
from offhook.media.tasks_io import TaskSet
from offhook.telephony.call_progress_io import (
    CallHistory,
    CallProgress,
    CallState,
    Decision,
    DialError,
)
from offhook.telephony.call_record import Attempt, CallRecord, wall_clock
from offhook.telephony.sip.media.keying import Profile
from offhook.telephony.sip.media.leg_io import SipLeg
from offhook.telephony.sip.media.media_plan import NotAcceptable, warning
from offhook.telephony.sip.media.offer_answer import is_hold, remaining_profiles, wants_ice
from offhook.telephony.sip.messages.flow import Flow
from offhook.telephony.sip.messages.grammar import SipError
from offhook.telephony.sip.messages.message import Request, sdp_of
from offhook.telephony.sip.messages.uri import Uri
from offhook.telephony.sip.sessions.ending import shown
from offhook.telephony.sip.sessions.saved_dialog import SAVED_TRANSPORTS, SavedDialog
from offhook.telephony.sip.sessions.session import Session
from offhook.telephony.sip.sessions.session_events import (
    Answered,
    AnswerReceived,
    Confirmed,
    Dtmf,
    Ended,
    OfferReceived,
    OfferRefused,
    Progress,
    ReferProgress,
    ReferReceived,
    RefreshDue,
    SessionEvent,
)
from offhook.telephony.sip.sessions.session_table import SessionState
from offhook.telephony.sip.trunks.trunks import CODECS, Trunk

OFFER_TIMEOUT_S = 10.0
"""Time limit in s for the far end to answer a re-INVITE; then holding or resuming has failed, and a
call of another server is not continued."""
ANSWER_TIMEOUT_S = 20.0
"""Time limit in s for a browser's leg to answer an offer, ICE gathering included; then the call is
refused with 500, and a re-INVITE with 488."""
WEBRTC_PROFILE = "UDP/TLS/RTP/SAVPF"
"""Profile of WebRTC media (RFC 8834 §4.2), as the record of a call has it."""
NOT_ACCEPTABLE = frozenset({488, 606})
"""Responses to an INVITE whose media are not acceptable."""


class WebRtcLeg(Protocol):
    """A leg with WebRTC media, created by the edge. All raise ValueError for what cannot be
    used."""

    async def answer(self, sdp: str) -> str: ...
    async def offer_audio(self, codecs: Sequence[str]) -> str: ...
    async def accept(self, sdp: str) -> None: ...


class Endpoint(Protocol):
    """The endpoint's interface to its calls."""

    @property
    def clock(self) -> PacketClock: ...
    def session_changed(self, session: Session) -> None: ...
    def begin(
        self,
        call: "SipCall",
        target: Uri,
        flow: Flow,
        sdp: str | None,
        headers: Sequence[tuple[str, str]] = (),
        response_seconds: float | None = None,
    ) -> None: ...
    async def flows_to(self, target: Uri, trunk: Trunk | None) -> Sequence[Flow]: ...
    def new_leg(self, call_id: str, trunk: Trunk | None, flow: Flow) -> SipLeg: ...
    def webrtc_leg(self, call_id: str) -> Leg: ...
    def adopt(self, call: "SipCall", session: Session) -> None: ...
    def restore(self, call: "SipCall", saved: SavedDialog, flow: Flow, trunk: Trunk) -> Session: ...
    def media_changed(self, call: "SipCall") -> None: ...
    async def transfer(self, call: "SipCall", target: str) -> None: ...


class SipCall:
    """One call with one far end, inbound or outbound. Implements LegControl for its leg."""

    def __init__(
        self,
        phone: Endpoint,
        call_id: str,
        trunk: Trunk | None,
        info: CallInfo,
        ring_seconds: float,
    ) -> None:
        self.call_id = call_id
        self.trunk = trunk
        self.claim: Claim | None = None
        """Of its leg."""
        self.info = info
        self.agent = ""
        """Name of the agent that handles the call; "" for the default."""
        self.session: Session | None = None
        self.leg: Leg | None = None
        self.ring_seconds = ring_seconds
        self.transport = ""
        """Transport of the signalling, once any was sent or received."""
        self.began_at = monotonic()
        self.answered_at: float | None = None
        """Monotonic seconds."""
        self.ended_at: float | None = None
        self.began_time = wall_clock()
        self.answered_time: str | None = None
        """ISO 8601."""
        self.ended_time: str | None = None
        self.ended: Ended | None = None
        self.reason = ""
        """Why the call failed, if that is more specific than the session's reason."""
        self.transferred_to = ""
        self.attempts: list[Attempt] = []
        """Completed INVITE attempts."""
        self._abandoned = ""
        """Why no further attempt is to be made."""
        self._endpoint = phone
        self._progress = CallHistory()
        self._outcome: asyncio.Future[Answered | Ended] | None = None
        self._offered: asyncio.Future[None] | None = None
        self._direction: Literal["sendrecv", "sendonly"] = "sendrecv"
        self._tasks = TaskSet()
        self._early_media = False
        """The leg is ticked here, so that early media is audible before the answer."""
        self._followed: Session | None = None
        """The session of the REFER we are following; None if there is none."""
        self._followed_end: Ended | None = None
        """How that session ended meanwhile."""
        self._early: str | None = None
        """SDP of the new far end before its answer, as until then our audio stays with the old one;
        or the answer to a WebRTC offer until it is applied."""
        self.refer: asyncio.Queue[ReferProgress | Ended] | None = None
        """Receives events while a transfer is in progress."""

    # --- state ---

    @property
    def state(self) -> CallState:
        return self._progress.state

    @property
    def progress(self) -> tuple[CallProgress, ...]:
        """Every state so far, the last MAX_HISTORY of them."""
        return self._progress.past

    def events(self) -> AsyncGenerator[CallProgress, None]:
        """Yield every state from the beginning until the call has ended."""
        return self._progress.events()

    def _set_state(self, state: CallState, status: int = 0, reason: str = "") -> None:
        if self.state == "ended" or (state == self.state and state != "dialing"):
            return
        if state in ("answered", "ended"):
            self._end_early_media()
        if state == "answered" and self.answered_at is None:
            self.answered_at, self.answered_time = monotonic(), wall_clock()
        elif state == "ended":
            self.ended_at, self.ended_time = monotonic(), wall_clock()
        self._progress.add(CallProgress(state, status, reason))

    def _end_early_media(self) -> None:
        """Stop ticking the leg here: its next owner does, and its time starts at zero."""
        if self._early_media and self.leg is not None:
            self._early_media = False
            self._endpoint.clock.remove(self.leg)
            self.leg.ticks = 0

    def failed(self, error: DialError) -> None:
        """End a call that could not be placed."""
        self.reason = str(error)
        self._set_state("ended", error.status, self.reason)
        if self.leg is not None:
            self.leg.close(self.reason)

    # --- setup ---

    async def ring_until(self, decision: Decision) -> bool:
        """Ring at the caller's side until the decision: 0 to answer the call, else the status with
        which it is refused. Returns False if it was refused, or cancelled by the caller, which
        cancels the decision."""
        assert self.session is not None
        self.session.ring(monotonic())
        self._set_state("ringing", 180, "Ringing")
        self._endpoint.session_changed(self.session)
        status = await self._progress.decided(decision)
        if status and self.ended is None:
            self.session.refuse(status, "", monotonic())
            self._endpoint.session_changed(self.session)
        return status == 0 and self.ended is None

    async def dial_after(self, decision: Decision) -> None:
        """Wait for the decision whether the call is placed: 0, or the status with which it ends.
        Raises DialError if it is not."""
        status = await self._progress.decided(decision)
        if status is None:
            raise DialError(487, self._abandoned)
        if status:
            raise DialError(status, End.DECLINED)

    async def accept_incoming(self, session: Session, request: Request, flow: Flow) -> bool:
        """Answer an incoming call. Returns False if it was refused or cancelled meanwhile."""
        if self.ended is not None:
            return False
        self.transport = flow.transport
        sdp = sdp_of(request)
        try:
            if sdp is not None and wants_ice(sdp):
                leg = self._endpoint.webrtc_leg(self.call_id)
                self._set_leg(leg)
                async with asyncio.timeout(ANSWER_TIMEOUT_S):
                    answer = await _webrtc(leg).answer(sdp)
            else:
                sip_leg = self._endpoint.new_leg(self.call_id, self.trunk, flow)
                self._set_leg(sip_leg)
                await sip_leg.bind()
                answer = sip_leg.offer() if sdp is None else sip_leg.answer(sdp)
        except NotAcceptable as error:
            self._refuse(error.status, str(error), error.warning)
            return False
        except NoPorts as error:
            self._refuse(503, str(error))
            return False
        except TimeoutError:
            self._refuse(500, "the leg did not connect")
            return False
        except ValueError as error:  # invalid SDP, or an offer WebRTC cannot answer
            status = 400 if isinstance(error, SipError) else 488
            self._refuse(status, str(error))
            return False
        if self.ended is not None:
            return False
        session.accept(answer, monotonic())
        self._set_state("answered", 200, "OK")
        self._endpoint.session_changed(session)
        return True

    # --- continued at another server ---

    def saved(self) -> SavedDialog | None:
        """Return what another server needs to continue the call; None if it cannot: before the
        call is established or while it is transferred, with DTLS, over TLS or WebSocket, and for
        callers who belong to no trunk."""
        session, leg, trunk = self.session, self.leg, self.trunk
        if session is None or trunk is None or not isinstance(leg, SipLeg) or self.transferring:
            return None
        dialog, transport = session.dialog, SAVED_TRANSPORTS.get(self.transport)
        if session.state is not SessionState.ESTABLISHED or dialog is None:
            return None
        media = leg.saved_media()
        if media is None or transport is None:
            return None
        return SavedDialog.of(dialog, session.we_called, transport, media)

    def continue_times(self, began: datetime, answered: datetime) -> None:
        """Set when the call that this one continues began and was answered, for the record."""
        now, wall = monotonic(), datetime.now(UTC)
        self.began_at = now - (wall - began).total_seconds()
        self.answered_at = now - max(0.0, (wall - answered).total_seconds())
        self.began_time = began.isoformat(timespec="milliseconds")
        self.answered_time = answered.isoformat(timespec="milliseconds")

    @property
    def saved_version(self) -> tuple[object, ...]:
        """Changes whenever `saved` does; cheaper to compare."""
        session, leg = self.session, self.leg
        dialog = session.dialog if session is not None else None
        if session is None or dialog is None or not isinstance(leg, SipLeg):
            return ()
        return (
            *(session.call_id, session.local_tag, session.state, self.transferring),
            *(dialog.local_cseq, dialog.remote_cseq, dialog.remote_target, leg.media_version),
        )

    async def recover(self, saved: SavedDialog, flow: Flow, trunk: Trunk) -> None:
        """Continue another server's call: send a re-INVITE in its dialog (RFC 3261 §14.1), and wait
        for the answer. Raises DialError if the far end refuses it, or if our settings exclude the
        call's media."""
        self.transport = saved.transport
        leg = self._endpoint.new_leg(self.call_id, trunk, flow)
        self._set_leg(leg)
        self._offered = asyncio.get_running_loop().create_future()
        try:
            await leg.bind(saved.media)
            session = self._endpoint.restore(self, saved, flow, trunk)
            session.reoffer(leg.offer(), monotonic())
            self._endpoint.session_changed(session)
            async with asyncio.timeout(OFFER_TIMEOUT_S):
                await self._offered
        except (SipError, NotAcceptable, NoPorts) as error:
            raise DialError(0, str(error)) from error
        except LegError as error:
            if self.ended is None:
                raise DialError(0, str(error)) from error
            reason = f"{self.ended.status} {self.ended.reason}"
            raise DialError(self.ended.status, reason) from error
        except TimeoutError:
            raise DialError(408, "no answer to the re-INVITE") from None
        finally:
            self._offered = None
        self._set_state("answered", 200, "OK")
        leg.connect()

    async def place(
        self,
        target: Uri,
        flow: Flow,
        headers: Sequence[tuple[str, str]] = (),
        response_seconds: float | None = None,
    ) -> Answered:
        """Call `target` over `flow` and wait for the answer, for the first response of any kind at
        most `response_seconds`. If our media are not acceptable to the far end, the next permitted
        profile is offered. Raises DialError."""
        if self._abandoned:
            raise DialError(487, self._abandoned)
        self.transport = self.transport or flow.transport
        leg = self.leg or await self._leg_to_offer(flow)
        profile, *left = (leg.profiles if isinstance(leg, SipLeg) else ()) or (None,)
        while True:
            outcome = await self._invite(leg, target, flow, headers, profile, response_seconds)
            if isinstance(outcome, Answered):
                if not isinstance(leg, SipLeg):
                    await self._use_webrtc_answer(leg)
                return outcome
            # A far end that answered with unusable SDP is not called again.
            refused = outcome.by == "remote" and outcome.status in NOT_ACCEPTABLE
            again = refused and self.state == "dialing"
            left = remaining_profiles(left, outcome.sdp) if again else []
            if not left:
                session = self.session
                silent = session is not None and not session.heard and outcome.by != "local"
                contacts = session.moved_to if session is not None else ()
                moved_to = next((uri.number for uri in contacts if uri.number), "")
                raise DialError(outcome.status, outcome.reason, silent, moved_to)
            logger.info("{}: {} was not acceptable, trying {}", self.call_id, profile, left[0])
            profile, *left = left

    async def _leg_to_offer(self, flow: Flow) -> Leg:
        """Make the leg of an outbound call. Raises DialError."""
        if self.trunk is not None and self.trunk.webrtc:
            peer_leg = self._endpoint.webrtc_leg(self.call_id)
            self._set_leg(peer_leg)
            return peer_leg
        leg = self._endpoint.new_leg(self.call_id, self.trunk, flow)
        self._set_leg(leg)
        try:
            await leg.bind()
        except NoPorts as error:
            raise DialError(503, str(error)) from error
        return leg

    async def _offer(self, leg: Leg, profile: Profile | None) -> str:
        """Return our first offer. Raises DialError."""
        if isinstance(leg, SipLeg):
            return leg.offer(profile=profile)
        try:
            async with asyncio.timeout(ANSWER_TIMEOUT_S):
                codecs = self.trunk.codecs if self.trunk is not None else CODECS
                return await _webrtc(leg).offer_audio(codecs)
        except NoPorts as error:
            raise DialError(503, str(error)) from error
        except TimeoutError:
            raise DialError(500, "the leg made no offer") from None

    async def _use_webrtc_answer(self, leg: Leg) -> None:
        """Apply the answer, from the 2xx or before it. Raises DialError."""
        sdp, self._early = self._early, None
        try:
            await _webrtc(leg).accept(sdp or "")
        except ValueError as error:
            raise DialError(488, f"no acceptable media: {error}") from error
        self._set_state("answered", 200, "OK")

    async def _invite(
        self,
        leg: Leg,
        target: Uri,
        flow: Flow,
        headers: Sequence[tuple[str, str]],
        profile: Profile | None,
        response_seconds: float | None,
    ) -> Answered | Ended:
        """Send one INVITE and wait for its outcome. Raises DialError."""
        sdp = await self._offer(leg, profile)
        if self._abandoned:
            raise DialError(487, self._abandoned)
        self.ended = None
        self._outcome = asyncio.get_running_loop().create_future()
        try:
            self._endpoint.begin(self, target, flow, sdp, headers, response_seconds)
            outcome = await self._outcome
        except SipError as error:  # a number that cannot be written as a URI
            raise DialError(0, str(error)) from error
        finally:
            self._outcome = None
        if isinstance(outcome, Ended) and isinstance(leg, SipLeg):
            leg.rollback()
        media = (profile or "") if isinstance(leg, SipLeg) else WEBRTC_PROFILE
        self._record_attempt(flow, media, outcome)
        return outcome

    def _record_attempt(self, flow: Flow, media: str, outcome: Answered | Ended) -> None:
        host, port = flow.remote
        server = f"{f'[{host}]' if ':' in host else host}:{port} {flow.transport}"
        status, reason = 200, "OK"
        if isinstance(outcome, Ended):
            status, reason = outcome.status, outcome.reason
        call_id = self.session.call_id if self.session is not None else ""
        self.attempts.append(Attempt(call_id, server, media, status, reason))

    def _set_leg(self, leg: Leg) -> None:
        self.leg = leg
        leg.info = self.info
        if isinstance(leg, SipLeg):
            leg.control = self
        else:
            leg.transfer_by = self.transfer

    def _refuse(self, status: int, reason: str, words: str = "") -> None:
        if self.session is not None and self.ended is None:
            self.reason = End.REFUSED + f": {status} ({shown(reason)})"
            logger.info("{}: {}", self.call_id, self.reason)
            headers = [("Warning", words or warning(399, reason))]
            self.session.refuse(status, "", monotonic(), headers=headers)
            self._endpoint.session_changed(self.session)

    # --- session events ---

    def handle_session_event(self, session: Session, event: SessionEvent) -> None:
        """Handle an event of one of the call's sessions. Never raises: a failure ends this call
        only."""
        if isinstance(event, ReferProgress) and self.refer is not None:
            self.refer.put_nowait(event)
        if session is self._followed and isinstance(event, Ended):
            self._followed_end = event  # it need not wait for the new far end
            return
        if session is not self.session:  # a session that another has replaced, or may replace
            if isinstance(event, OfferReceived):
                session.refuse_offer(491, monotonic())
                self._endpoint.session_changed(session)
            return
        try:
            self._handle_event(event)
        except (NotAcceptable, SipError) as error:
            logger.info("{}: {}", self.call_id, shown(str(error)))
            self._hang_up_session(session, f"no acceptable media: {error}", 488)
        except Exception:  # of this call; the others continue
            logger.exception("{}: the call failed", self.call_id)
            self.end(End.SERVER_FAILED, 500)

    def _handle_event(self, event: SessionEvent) -> None:
        match event:
            case Progress(status, reason, sdp):
                self._proceed(status, reason, sdp)
            case Answered(sdp):
                self._answered(event, sdp)
            case Confirmed(sdp):
                if isinstance(self.leg, SipLeg):
                    if sdp is not None:
                        self.leg.accept(sdp)
                    self.leg.connect()
            case OfferReceived(sdp):
                self._answer_offer(sdp)
            case AnswerReceived(sdp):
                if isinstance(self.leg, SipLeg):
                    self.leg.accept(sdp)
                    self._endpoint.media_changed(self)
                _resolve(self._offered, None)
            case OfferRefused(status, reason):
                if isinstance(self.leg, SipLeg):
                    self.leg.rollback()
                _resolve(self._offered, LegError(f"the offer was rejected: {status} {reason}"))
            case RefreshDue():
                self._refresh()
            case Dtmf(digit):
                if self.leg is not None:
                    self.leg.receive_digit(digit)
            case ReferReceived():
                self._handle_refer(event)
            case Ended():
                self._handle_ended(event)

    def _proceed(self, status: int, reason: str, sdp: str | None) -> None:
        if self._followed is not None or not isinstance(self.leg, SipLeg):
            self._early = sdp or self._early
            if self._followed is None and status in (180, 183):
                self._set_state("ringing", status, reason)
        elif sdp is not None:
            self.leg.accept(sdp)
            if not self._early_media:
                self._early_media = True
                self._endpoint.clock.add(self.leg)
            self._set_state("early_media", status, reason)
        elif status == 180:
            self._set_state("ringing", status, reason)

    def _answered(self, event: Answered, sdp: str | None) -> None:
        sdp = sdp or self._early
        if isinstance(self.leg, SipLeg):
            if sdp is not None:
                self.leg.accept(sdp)
            self._set_state("answered", 200, "OK")
        else:
            self._early = sdp
        if self._outcome is not None and not self._outcome.done():
            self._outcome.set_result(event)
        if isinstance(self.leg, SipLeg):
            self.leg.connect()

    def _answer_offer(self, sdp: str | None) -> None:
        session, leg = self.session, self.leg
        assert session is not None
        if not isinstance(leg, SipLeg):
            self._tasks.spawn(self._answer_webrtc(sdp), f"sip {self.call_id}")
            return
        try:
            answer = leg.offer(self._direction) if sdp is None else leg.answer(sdp)
            session.answer_offer(answer, monotonic())
            self._endpoint.media_changed(self)
        except NotAcceptable as error:
            session.refuse_offer(error.status, monotonic())
        except SipError:
            session.refuse_offer(400, monotonic())
        self._endpoint.session_changed(session)

    async def _answer_webrtc(self, sdp: str | None) -> None:
        session, leg = self.session, self.leg
        assert session is not None
        assert leg is not None
        try:
            if sdp is None:
                raise ValueError("a WebRTC leg cannot make an offer")
            async with asyncio.timeout(ANSWER_TIMEOUT_S):
                answer = await _webrtc(leg).answer(sdp)
            session.answer_offer(answer, monotonic())
            leg.set_held(is_hold(sdp))
        except (ValueError, TimeoutError):
            session.refuse_offer(488, monotonic())
        except Exception:
            logger.exception("{}: failed to answer an offer", self.call_id)
            session.refuse_offer(500, monotonic())
        self._endpoint.session_changed(session)

    def _refresh(self) -> None:
        allowed = self.trunk is None or self.trunk.reinvites
        if allowed and self.session is not None and isinstance(self.leg, SipLeg):
            self.session.reoffer(self.leg.offer(self._direction), monotonic())
            self._endpoint.session_changed(self.session)

    def _handle_ended(self, event: Ended) -> None:
        self.ended = event
        _resolve(self._offered, LegError("the call is over"))
        if self.refer is not None:
            self.refer.put_nowait(event)
        if self._outcome is not None and not self._outcome.done():
            self._outcome.set_result(event)
            return
        self._set_state("ended", event.status, event.reason)
        if self.leg is not None:
            self.leg.close(event.reason)

    # --- requests of the far end ---

    def _handle_refer(self, asked: ReferReceived) -> None:
        session = self.session
        assert session is not None
        fits = isinstance(self.leg, SipLeg) and self._may_follow(asked.target)
        if fits and not self.transferring:
            self._followed, self._followed_end, self._early = session, None, None
            session.refers.accept(monotonic())
            self._tasks.spawn(self._follow(session, asked), f"sip {self.call_id}")
        else:
            session.refers.refuse(603, monotonic())
        self._endpoint.session_changed(session)

    async def _follow(self, old: Session, asked: ReferReceived) -> None:
        """Follow a REFER: continue with the same leg at another far end (RFC 3515 §2.4). Until that
        answers the leg stays with the old one, which may hang up already."""
        headers = [("Referred-By", asked.referred_by)] if asked.referred_by else []
        if asked.replaces:
            headers.append(("Replaces", asked.replaces))
        try:
            flows = await self._endpoint.flows_to(asked.target, self.trunk)
            await self.place(asked.target, flows[0], headers)
        except DialError as error:
            self._restore_session(old, error)
        except asyncio.CancelledError:  # our side hung up
            old.refers.notify(487, "", monotonic())
            self._endpoint.session_changed(old)
            raise
        else:
            self._followed = None
            old.refers.notify(200, "OK", monotonic())
            self._hang_up_session(old, "transferred")
        self._early = None

    def _restore_session(self, old: Session, error: DialError) -> None:
        """Restore the old session, unless its far end has hung up."""
        self.session, self.ended, self._followed = old, None, None
        old.refers.notify(error.status or 503, "", monotonic())
        self._endpoint.session_changed(old)
        if self._followed_end is not None:
            self._handle_ended(self._followed_end)

    def _may_follow(self, target: Uri) -> bool:
        """Follow only to numbers of the call's own trunk, and only if configured: nobody may place
        calls at our expense."""
        trunk = self.trunk
        wanted = trunk is not None and trunk.follow and bool(trunk.server)
        return wanted and trunk is not None and trunk.is_host(target.host)

    def accept_replacement(self, session: Session, replaced: Session, request: Request) -> None:
        """Continue with the same leg in a session that replaces this one (RFC 3891 §3)."""
        old, leg = self.session, self.leg
        if old is not replaced or self._followed is not None or not isinstance(leg, SipLeg):
            session.refuse(481, "", monotonic())
            self._endpoint.session_changed(session)
            return
        sdp = sdp_of(request)
        try:
            answer = leg.offer() if sdp is None else leg.answer(sdp)
        except NotAcceptable as error:
            session.refuse(error.status, "", monotonic())
        except SipError:
            session.refuse(400, "", monotonic())
        else:
            self._endpoint.adopt(self, session)
            session.accept(answer, monotonic())
            old.hang_up(monotonic(), End.REPLACED)
            self._endpoint.session_changed(old)
        self._endpoint.session_changed(session)

    # --- operations of the leg ---

    @property
    def transferring(self) -> bool:
        """Whether a transfer is in progress, requested by either side."""
        return self.refer is not None or self._followed is not None

    def end(self, reason: str, status: int = 0) -> None:
        """Reject, cancel or hang up, depending on the state. No-op once the call has ended."""
        self._abandoned = self._abandoned or reason
        if self._followed is not None:
            self._hang_up_session(self._followed, reason, status)
        if self.session is None:
            self._set_state("ended", status or 487, reason)
        elif self.ended is None:
            self._hang_up_session(self.session, reason, status)

    def _hang_up_session(self, session: Session, reason: str, status: int = 0) -> None:
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
        if self._offered is not None or self._followed is not None:
            raise LegError("another change is in progress")
        self._offered = asyncio.get_running_loop().create_future()
        try:
            session.reoffer(leg.offer(direction), monotonic())
            self._endpoint.session_changed(session)
            async with asyncio.timeout(OFFER_TIMEOUT_S):
                await self._offered
        except TimeoutError:
            raise LegError(f"no answer to the re-INVITE after {OFFER_TIMEOUT_S:.0f} s") from None
        finally:
            self._offered = None
        self._direction = direction

    def send_info_dtmf(self, digit: str) -> None:
        if self.session is not None and self.ended is None:
            self.session.info_dtmf(digit, monotonic())
            self._endpoint.session_changed(self.session)

    async def transfer(self, target: str) -> None:
        """Transfer the far end to `target`. Raises LegError."""
        await self._endpoint.transfer(self, target)

    def record(self) -> CallRecord:
        """Return the call detail record, once the call has ended."""
        ended, info = self.ended, self.info
        line = self.leg.statistics() if self.leg is not None else LegStatistics()
        leg = self.leg if isinstance(self.leg, RtpLeg) else None
        answered, ended_at = self.answered_at, self.ended_at or monotonic()
        return CallRecord(
            call_id=self.call_id,
            edge=info.edge,
            remote_call_id=self.session.call_id if self.session is not None else "",
            direction=info.direction,
            started=self.began_time,
            ended=self.ended_time or "",
            end_reason=self.reason or (ended.reason if ended is not None else ""),
            ended_by=ended.by if ended is not None else "local",
            status=200 if answered is not None else (ended.status if ended is not None else 0),
            answered=self.answered_time,
            duration_seconds=ended_at - answered if answered is not None else 0.0,
            setup_ms=(answered - self.began_at) * 1000 if answered is not None else None,
            trunk=info.trunk,
            caller=info.caller,
            called=info.called,
            diverted_from=info.diverted_from,
            agent=self.agent,
            transport=self.transport,
            codec=leg.codec if leg is not None else "",
            srtp=leg.srtp if leg is not None else "",
            packets_sent=line.packets_sent,
            packets_received=line.packets_received,
            packets_lost=line.packets_lost,
            jitter_ms=line.jitter_ms,
            mos=line.mos,
            transferred_to=self.transferred_to,
            attempts=tuple(self.attempts),
        )

    # --- tasks ---

    async def close(self) -> None:
        """Cancel the call's tasks."""
        await self._tasks.close()
        if self.leg is not None:
            self.leg.transfer_by = None
        self._set_state("ended", 0, self.reason or self._abandoned)


def _webrtc(leg: Leg) -> WebRtcLeg:
    return leg  # type: ignore[return-value]


def _resolve(future: asyncio.Future[None] | None, error: Exception | None) -> None:
    if future is not None and not future.done():
        if error is None:
            future.set_result(None)
        else:
            future.set_exception(error)
