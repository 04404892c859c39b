"""One call: what its session says done to its line, what its line asks said by its session.

    state        event                                  → state
    dialing      the far end rings                      → ringing
    dialing …    sound comes before the answer          → early_media
    any of these the far end takes the call             → answered
    any          either end hangs up, or it fails       → ended

A call that comes in is answered at once, so it begins as answered.
"""

import asyncio
from collections.abc import AsyncGenerator, Sequence
from time import monotonic
from typing import Literal, Protocol

from loguru import logger

from offhook.media.clock_io import PacketClock
from offhook.media.end_reason import End
from offhook.media.leg import CallInfo, Leg, LegError, LegStatistics
from offhook.media.tasks_io import TaskSet
from offhook.telephony.call_progress_io import CallHistory, CallProgress, DialError, State
from offhook.telephony.call_record import Attempt, CallRecord, wall_clock
from offhook.telephony.sip.media.keying import Profile
from offhook.telephony.sip.media.leg_io import SipLeg
from offhook.telephony.sip.media.media_plan import NotAcceptable
from offhook.telephony.sip.media.offer_answer import holds, wants_ice, worth_trying
from offhook.telephony.sip.media.rtp_ports_io import NoPorts
from offhook.telephony.sip.messages.flow import Flow
from offhook.telephony.sip.messages.grammar import SipError
from offhook.telephony.sip.messages.message import Request, sdp_of
from offhook.telephony.sip.messages.uri import Uri
from offhook.telephony.sip.sessions.ending import shown
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
from offhook.telephony.sip.trunks.trunks import Trunk

OFFER_S = 10.0
"""For the far end to answer an offer of ours in a call that is up."""
ANSWER_S = 20.0
"""For a browser's line to answer an offer, ICE candidates and all."""
NOT_ACCEPTABLE = frozenset({488, 606})
"""Answers to an INVITE whose media do not suit."""


class WebRtcLeg(Protocol):
    """A browser's line: what the edge makes for a call whose media are WebRTC."""

    async def answer(self, sdp: str) -> str: ...


class Phone(Protocol):
    """The endpoint, as its calls see it."""

    @property
    def clock(self) -> PacketClock: ...
    def touched(self, session: Session) -> None: ...
    def begin(
        self,
        call: "SipCall",
        target: Uri,
        flow: Flow,
        sdp: str | None,
        headers: Sequence[tuple[str, str]] = (),
    ) -> None: ...
    async def ways_to(self, target: Uri, trunk: Trunk | None) -> Sequence[Flow]: ...
    def new_leg(self, call_id: str, trunk: Trunk | None, flow: Flow) -> SipLeg: ...
    def webrtc_leg(self, call_id: str) -> Leg: ...
    def adopt(self, call: "SipCall", session: Session) -> None: ...
    async def transfer(self, call: "SipCall", target: str) -> None: ...


class SipCall:
    """A call of ours with one far end, either way. Serves its leg as LegControl."""

    def __init__(
        self,
        phone: Phone,
        call_id: str,
        trunk: Trunk | None,
        info: CallInfo,
        ring_seconds: float,
    ) -> None:
        self.call_id = call_id
        self.trunk = trunk
        self.info = info
        self.agent = ""
        """Who has the call on our side, by name; "" for the usual one."""
        self.session: Session | None = None
        self.leg: Leg | None = None
        self.ring_seconds = ring_seconds
        self.transport = ""
        """Of its signalling, as far as any has gone out or come in."""
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
        """Why it came to nothing, where that is more than its session says."""
        self.transferred_to = ""
        self.attempts: list[Attempt] = []
        """INVITEs of ours that have come to something."""
        self._given_up = ""
        """Why nobody is to be called any more."""
        self._phone = phone
        self._progress = CallHistory()
        self._outcome: asyncio.Future[Answered | Ended] | None = None
        self._offered: asyncio.Future[None] | None = None
        self._direction: Literal["sendrecv", "sendonly"] = "sendrecv"
        self._tasks = TaskSet()
        self._sounds_early = False
        """The line is ticked here, to be heard by who listens before the call is answered."""
        self._followed: Session | None = None
        """Who asked us to call somebody else, while we do."""
        self._followed_end: Ended | None = None
        """How that call ended meanwhile."""
        self._early: str | None = None
        """What the other says of its sound before it takes the call; until then ours stays where
        it is."""
        self.refer: asyncio.Queue[ReferProgress | Ended] | None = None
        """Fed while a transfer is under way."""

    # --- how it goes ---

    @property
    def state(self) -> State:
        return self._progress.state

    @property
    def progress(self) -> tuple[CallProgress, ...]:
        """Every state so far, the last PROGRESS_KEPT of them."""
        return self._progress.past

    def events(self) -> AsyncGenerator[CallProgress, None]:
        """Every state from the beginning on, until it ended."""
        return self._progress.events()

    def _move(self, state: State, status: int = 0, reason: str = "") -> None:
        if self.state == "ended" or (state == self.state and state != "dialing"):
            return
        if state in ("answered", "ended"):
            self._end_early_sound()
        if state == "answered":
            self.answered_at, self.answered_time = monotonic(), wall_clock()
        elif state == "ended":
            self.ended_at, self.ended_time = monotonic(), wall_clock()
        self._progress.add(CallProgress(state, status, reason))

    def _end_early_sound(self) -> None:
        """Whoever has the line next ticks it, and its own time begins then."""
        if self._sounds_early and self.leg is not None:
            self._sounds_early = False
            self._phone.clock.remove(self.leg)
            self.leg.ticks = 0

    def failed(self, error: DialError) -> None:
        """It came to nothing."""
        self.reason = str(error)
        self._move("ended", error.status, self.reason)
        if self.leg is not None:
            self.leg.close(self.reason)

    # --- beginning ---

    async def take(self, session: Session, request: Request, flow: Flow) -> bool:
        """Answer a call that came in; False when it was refused or given up meanwhile."""
        if self.ended is not None:
            return False
        self.transport = flow.transport
        sdp = sdp_of(request)
        try:
            if sdp is not None and wants_ice(sdp):
                leg = self._phone.webrtc_leg(self.call_id)
                self._use(leg)
                async with asyncio.timeout(ANSWER_S):
                    answer = await _webrtc(leg).answer(sdp)
            else:
                sip_leg = self._phone.new_leg(self.call_id, self.trunk, flow)
                self._use(sip_leg)
                await sip_leg.bind()
                answer = sip_leg.offer() if sdp is None else sip_leg.answer(sdp)
        except NotAcceptable as error:
            self._refuse(error.status, str(error))
            return False
        except NoPorts as error:
            self._refuse(503, str(error))
            return False
        except TimeoutError:
            self._refuse(500, "the line did not come up")
            return False
        except ValueError as error:  # not SDP, or not what WebRTC can answer
            self._refuse(400 if isinstance(error, SipError) else 488, str(error))
            return False
        if self.ended is not None:
            return False
        session.accept(answer, monotonic())
        self._move("answered", 200, "OK")
        self._phone.touched(session)
        return True

    async def place(
        self, target: Uri, flow: Flow, headers: Sequence[tuple[str, str]] = ()
    ) -> Answered:
        """Call `target` by `flow` and wait until it is taken; a far end to which our media are not
        acceptable is offered the next that we may. Raises DialError."""
        if self._given_up:
            raise DialError(487, self._given_up)
        self.transport = self.transport or flow.transport
        leg = self.leg
        if leg is None:
            leg = self._phone.new_leg(self.call_id, self.trunk, flow)
            self._use(leg)
            try:
                await leg.bind()
            except NoPorts as error:
                raise DialError(503, str(error)) from error
        assert isinstance(leg, SipLeg)
        profile, *left = leg.profiles or (None,)
        while True:
            outcome = await self._invite(leg, target, flow, headers, profile)
            if isinstance(outcome, Answered):
                return outcome
            # Who took the call and gave an answer that does not fit is not rung again.
            refused = outcome.by == "remote" and outcome.status in NOT_ACCEPTABLE
            again = refused and self.state == "dialing"
            left = worth_trying(left, outcome.sdp) if again else []
            if not left:
                raise DialError(outcome.status, outcome.reason)
            logger.info("{}: {} did not suit, now {}", self.call_id, profile, left[0])
            profile, *left = left

    async def _invite(
        self,
        leg: SipLeg,
        target: Uri,
        flow: Flow,
        headers: Sequence[tuple[str, str]],
        profile: Profile | None,
    ) -> Answered | Ended:
        """One INVITE, to its end. Raises DialError."""
        self.ended = None
        self._outcome = asyncio.get_running_loop().create_future()
        try:
            self._phone.begin(self, target, flow, leg.offer(profile=profile), headers)
            outcome = await self._outcome
        except SipError as error:  # a number that no URI can be made of
            raise DialError(0, str(error)) from error
        finally:
            self._outcome = None
        if isinstance(outcome, Ended):
            leg.rollback()
        self._note(flow, profile, outcome)
        return outcome

    def _note(self, flow: Flow, profile: Profile | None, outcome: Answered | Ended) -> None:
        host, port = flow.remote
        server = f"{f'[{host}]' if ':' in host else host}:{port} {flow.transport}"
        status, reason = 200, "OK"
        if isinstance(outcome, Ended):
            status, reason = outcome.status, outcome.reason
        call_id = self.session.call_id if self.session is not None else ""
        self.attempts.append(Attempt(call_id, server, profile or "", status, reason))

    def _use(self, leg: Leg) -> None:
        self.leg = leg
        leg.info = self.info
        if isinstance(leg, SipLeg):
            leg.control = self

    def _refuse(self, status: int, reason: str) -> None:
        if self.session is not None and self.ended is None:
            warning = ("Warning", f'399 offhook "{_quoted(reason)}"')
            self.session.refuse(status, "", monotonic(), headers=[warning])
            self._phone.touched(self.session)

    # --- what the session says ---

    def happened(self, session: Session, event: SessionEvent) -> None:
        """Never raises: what the far end says wrong ends the call, and only this one."""
        if isinstance(event, ReferProgress) and self.refer is not None:
            self.refer.put_nowait(event)
        if session is self._followed and isinstance(event, Ended):
            self._followed_end = event  # it need not wait for whom it gave us to
            return
        if session is not self.session:  # one that another has taken, or may take, the place of
            if isinstance(event, OfferReceived):
                session.refuse_offer(491, monotonic())
                self._phone.touched(session)
            return
        try:
            self._take(event)
        except (NotAcceptable, SipError) as error:
            logger.info("{}: {}", self.call_id, shown(str(error)))
            self._leave(session, f"the media do not fit: {error}", 488)
        except Exception:  # of this call; the others go on
            logger.exception("{}: the call failed", self.call_id)
            self.end(End.SERVER_FAILED, 500)

    def _take(self, event: SessionEvent) -> None:
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
                _settle(self._offered, None)
            case OfferRefused(status, reason):
                if isinstance(self.leg, SipLeg):
                    self.leg.rollback()
                _settle(self._offered, LegError(f"the far end refused: {status} {reason}"))
            case RefreshDue():
                self._refresh()
            case Dtmf(digit):
                if self.leg is not None:
                    self.leg.listener.on_dtmf(digit)
            case ReferReceived():
                self._take_refer(event)
            case Ended():
                self._over(event)

    def _proceed(self, status: int, reason: str, sdp: str | None) -> None:
        if self._followed is not None:
            self._early = sdp or self._early
        elif sdp is not None and isinstance(self.leg, SipLeg):
            self.leg.accept(sdp)
            if not self._sounds_early:
                self._sounds_early = True
                self._phone.clock.add(self.leg)
            self._move("early_media", status, reason)
        elif status == 180:
            self._move("ringing", status, reason)

    def _answered(self, event: Answered, sdp: str | None) -> None:
        sdp = sdp or self._early
        if sdp is not None and isinstance(self.leg, SipLeg):
            self.leg.accept(sdp)
        self._move("answered", 200, "OK")
        if self._outcome is not None and not self._outcome.done():
            self._outcome.set_result(event)
        if self.leg is not None:
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
        except NotAcceptable as error:
            session.refuse_offer(error.status, monotonic())
        except SipError:
            session.refuse_offer(400, monotonic())
        self._phone.touched(session)

    async def _answer_webrtc(self, sdp: str | None) -> None:
        session, leg = self.session, self.leg
        assert session is not None
        assert leg is not None
        try:
            if sdp is None:
                raise ValueError("a browser's line is offered by the browser")
            async with asyncio.timeout(ANSWER_S):
                answer = await _webrtc(leg).answer(sdp)
            session.answer_offer(answer, monotonic())
            leg.set_held(holds(sdp))
        except (ValueError, TimeoutError):
            session.refuse_offer(488, monotonic())
        except Exception:
            logger.exception("{}: an offer could not be answered", self.call_id)
            session.refuse_offer(500, monotonic())
        self._phone.touched(session)

    def _refresh(self) -> None:
        if self.session is not None and isinstance(self.leg, SipLeg):
            self.session.reoffer(self.leg.offer(self._direction), monotonic())
            self._phone.touched(self.session)

    def _over(self, event: Ended) -> None:
        self.ended = event
        _settle(self._offered, LegError("the call is over"))
        if self.refer is not None:
            self.refer.put_nowait(event)
        if self._outcome is not None and not self._outcome.done():
            self._outcome.set_result(event)
            return
        self._move("ended", event.status, event.reason)
        if self.leg is not None:
            self.leg.close(event.reason)

    # --- what the far end asks for ---

    def _take_refer(self, asked: ReferReceived) -> None:
        session = self.session
        assert session is not None
        fits = isinstance(self.leg, SipLeg) and self._may_follow(asked.target)
        if fits and not self.transferring:
            self._followed, self._followed_end, self._early = session, None, None
            session.refers.accept(monotonic())
            self._tasks.spawn(self._follow(session, asked), f"sip {self.call_id}")
        else:
            session.refers.refuse(603, monotonic())
        self._phone.touched(session)

    async def _follow(self, old: Session, asked: ReferReceived) -> None:
        """Go on with the same line at another far end, as the far end asked (RFC 3515 §2.4). Until
        somebody answers there the line is with the old one, which may hang up already."""
        headers = [("Referred-By", asked.referred_by)] if asked.referred_by else []
        if asked.replaces:
            headers.append(("Replaces", asked.replaces))
        try:
            flows = await self._phone.ways_to(asked.target, self.trunk)
            await self.place(asked.target, flows[0], headers)
        except DialError as error:
            self._follow_no_more(old, error)
        except asyncio.CancelledError:  # our side has hung up
            old.refers.notify(487, "", monotonic())
            self._phone.touched(old)
            raise
        else:
            self._followed = None
            old.refers.notify(200, "OK", monotonic())
            self._leave(old, "transferred")
        self._early = None

    def _follow_no_more(self, old: Session, error: DialError) -> None:
        """All is as it was, unless the old far end has gone."""
        self.session, self.ended, self._followed = old, None, None
        old.refers.notify(error.status or 503, "", monotonic())
        self._phone.touched(old)
        if self._followed_end is not None:
            self._over(self._followed_end)

    def _may_follow(self, target: Uri) -> bool:
        """Only to numbers of the trunk that the call is on, and only where that is wanted: nobody
        calls the world at our cost."""
        trunk = self.trunk
        wanted = trunk is not None and trunk.follow and bool(trunk.server)
        return wanted and trunk is not None and target.host == trunk.host

    def take_over(self, session: Session, replaced: Session, request: Request) -> None:
        """Go on with the same line in a call that replaces this one (RFC 3891 §3)."""
        old, leg = self.session, self.leg
        if old is not replaced or self._followed is not None or not isinstance(leg, SipLeg):
            session.refuse(481, "", monotonic())
            self._phone.touched(session)
            return
        sdp = sdp_of(request)
        try:
            answer = leg.offer() if sdp is None else leg.answer(sdp)
        except NotAcceptable as error:
            session.refuse(error.status, "", monotonic())
        except SipError:
            session.refuse(400, "", monotonic())
        else:
            self._phone.adopt(self, session)
            session.accept(answer, monotonic())
            old.hang_up(monotonic(), End.REPLACED)
            self._phone.touched(old)
        self._phone.touched(session)

    # --- what the line asks for ---

    @property
    def transferring(self) -> bool:
        """It is being given to somebody else, whoever asked for that."""
        return self.refer is not None or self._followed is not None

    def end(self, reason: str, status: int = 0) -> None:
        """Refuse, give up or hang up, as the state demands. No-op when it is over."""
        self._given_up = self._given_up or reason
        if self._followed is not None:
            self._leave(self._followed, reason, status)
        if self.session is not None and self.ended is None:
            self._leave(self.session, reason, status)

    def _leave(self, session: Session, reason: str, status: int = 0) -> None:
        session.hang_up(monotonic(), reason, status=status)
        self._phone.touched(session)

    async def hang_up(self, reason: str) -> None:
        self.end(reason)

    async def hold(self) -> None:
        """Ask the far end not to send. Raises LegError."""
        await self._reoffer("sendonly")

    async def resume(self) -> None:
        """Raises LegError."""
        await self._reoffer("sendrecv")

    async def _reoffer(self, direction: Literal["sendrecv", "sendonly"]) -> None:
        session, leg = self.session, self.leg
        if session is None or not isinstance(leg, SipLeg) or self.state != "answered":
            raise LegError("there is no call to put on hold")
        if self._offered is not None or self._followed is not None:
            raise LegError("a change is under way")
        self._offered = asyncio.get_running_loop().create_future()
        try:
            session.reoffer(leg.offer(direction), monotonic())
            self._phone.touched(session)
            async with asyncio.timeout(OFFER_S):
                await self._offered
        except TimeoutError:
            raise LegError(f"no answer to the change after {OFFER_S:.0f} s") from None
        finally:
            self._offered = None
        self._direction = direction

    def send_info_dtmf(self, digit: str) -> None:
        if self.session is not None and self.ended is None:
            self.session.info_dtmf(digit, monotonic())
            self._phone.touched(self.session)

    async def transfer(self, target: str) -> None:
        """Raises LegError."""
        await self._phone.transfer(self, target)

    def record(self) -> CallRecord:
        """The call detail record, once the call is over."""
        ended, info = self.ended, self.info
        line = self.leg.statistics() if self.leg is not None else LegStatistics()
        leg = self.leg if isinstance(self.leg, SipLeg) else None
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
        """All that is still under way for the call ends."""
        await self._tasks.close()
        self._move("ended", 0, self.reason or self._given_up)


def _webrtc(leg: Leg) -> WebRtcLeg:
    return leg  # type: ignore[return-value]


def _settle(future: asyncio.Future[None] | None, error: Exception | None) -> None:
    if future is not None and not future.done():
        if error is None:
            future.set_result(None)
        else:
            future.set_exception(error)


def _quoted(text: str) -> str:
    return shown(text).replace("\\", " ").replace('"', "'")
