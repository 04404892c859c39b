"""One call: what its session says done to its line, what its line asks said by its session.

    state        event                                  → state
    dialing      the far end rings                      → ringing
    dialing …    sound comes before the answer          → early_media
    any of these the far end takes the call             → answered
    any          either end hangs up, or it fails       → ended

A call that comes in is answered at once, so it begins as answered.
"""

import asyncio
from collections.abc import AsyncGenerator, Coroutine, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from time import monotonic
from typing import Any, Literal, Protocol

from loguru import logger

from offhook.media.leg import CallInfo, Leg, LegError
from offhook.telephony.sip.flow import Flow
from offhook.telephony.sip.grammar import SipError
from offhook.telephony.sip.leg_io import SipLeg
from offhook.telephony.sip.media_plan import NotAcceptable
from offhook.telephony.sip.message import Request, sdp_of
from offhook.telephony.sip.offer_answer import holds, wants_ice
from offhook.telephony.sip.rtp_ports_io import NoPorts
from offhook.telephony.sip.session import Session
from offhook.telephony.sip.session_events import (
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
from offhook.telephony.sip.trunks import Trunk
from offhook.telephony.sip.uri import Uri

OFFER_SECONDS = 10.0
"""For the far end to answer an offer of ours in a call that is up."""
PROGRESS_KEPT = 64
"""States of a call that are kept for who asks late; the oldest are forgotten."""

State = Literal["dialing", "ringing", "early_media", "answered", "ended"]


class DialError(RuntimeError):
    """The call was not made or not taken; the message says why in plain words."""

    def __init__(self, status: int, reason: str) -> None:
        """`status`: of SIP, 0 where it never got so far."""
        super().__init__(reason)
        self.status = status


@dataclass(frozen=True)
class CallProgress:
    """Where a call is now."""

    state: State
    status: int = 0
    """Of SIP, which says so; 0 without one."""
    reason: str = ""


class WebRtcLeg(Protocol):
    """A browser's line: what the edge makes for a call whose media are WebRTC."""

    async def answer(self, sdp: str) -> str: ...


class Phone(Protocol):
    """The endpoint, as its calls see it."""

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
        self.state: State = "dialing"
        self.session: Session | None = None
        self.leg: Leg | None = None
        self.ring_seconds = ring_seconds
        self.answered_at: float | None = None
        """Monotonic seconds."""
        self.answered_time: str | None = None
        """ISO 8601."""
        self.ended: Ended | None = None
        self.reason = ""
        """Why it came to nothing, where no session ended."""
        self.transferred_to = ""
        self._given_up = ""
        """Why nobody is to be called any more."""
        self._phone = phone
        self._progress: list[CallProgress] = [CallProgress("dialing")]
        self._readers: set[asyncio.Queue[CallProgress]] = set()
        self._outcome: asyncio.Future[Answered | Ended] | None = None
        self._offered: asyncio.Future[None] | None = None
        self._direction: Literal["sendrecv", "sendonly"] = "sendrecv"
        self._tasks: set[asyncio.Task[None]] = set()
        self.refer: asyncio.Queue[ReferProgress | Ended] | None = None
        """Fed while a transfer is under way."""

    # --- how it goes ---

    @property
    def progress(self) -> tuple[CallProgress, ...]:
        """Every state so far, the last PROGRESS_KEPT of them."""
        return tuple(self._progress)

    async def events(self) -> AsyncGenerator[CallProgress, None]:
        """Every state from the beginning on, until it ended."""
        queue: asyncio.Queue[CallProgress] = asyncio.Queue(PROGRESS_KEPT)
        for progress in self._progress[-PROGRESS_KEPT:]:
            queue.put_nowait(progress)
        self._readers.add(queue)
        try:
            while True:
                progress = await queue.get()
                yield progress
                if progress.state == "ended":
                    return
        finally:
            self._readers.discard(queue)

    def _move(self, state: State, status: int = 0, reason: str = "") -> None:
        if self.state == "ended" or (state == self.state and state != "dialing"):
            return
        self.state = state
        if state == "answered":
            self.answered_at = monotonic()
            self.answered_time = datetime.now(UTC).isoformat(timespec="milliseconds")
        progress = CallProgress(state, status, reason)
        self._progress.append(progress)
        del self._progress[:-PROGRESS_KEPT]
        for queue in self._readers:
            if queue.full():
                queue.get_nowait()
            queue.put_nowait(progress)

    def failed(self, error: DialError) -> None:
        """It came to nothing."""
        self.reason = str(error)
        self._move("ended", error.status, self.reason)
        if self.leg is not None:
            self.leg.close(self.reason)

    # --- beginning ---

    async def take(self, session: Session, request: Request, flow: Flow) -> bool:
        """Answer a call that came in; False when it was refused or given up meanwhile."""
        self.session = session
        sdp = sdp_of(request)
        try:
            if sdp is not None and wants_ice(sdp):
                leg = self._phone.webrtc_leg(self.call_id)
                self._use(leg)
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
        """Call `target` by `flow` and wait until it is taken. Raises DialError."""
        if self._given_up:
            raise DialError(487, self._given_up)
        leg = self.leg
        if leg is None:
            leg = self._phone.new_leg(self.call_id, self.trunk, flow)
            self._use(leg)
            try:
                await leg.bind()
            except NoPorts as error:
                raise DialError(503, str(error)) from error
        assert isinstance(leg, SipLeg)
        self.ended = None
        self._outcome = asyncio.get_running_loop().create_future()
        try:
            self._phone.begin(self, target, flow, leg.offer(), headers)
            outcome = await self._outcome
        except SipError as error:  # a number that no URI can be made of
            raise DialError(0, str(error)) from error
        finally:
            self._outcome = None
        if isinstance(outcome, Ended):
            leg.rollback()
            raise DialError(outcome.status, outcome.reason)
        return outcome

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
        if session is not self.session:  # one that another has taken the place of
            return
        try:
            self._take(event)
        except (NotAcceptable, SipError) as error:
            logger.info("{}: {}", self.call_id, error)
            self.end(f"the media do not fit: {error}", 488)

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
                    self.leg.on_dtmf(digit)
            case ReferReceived():
                self._spawn(self._follow(event))
            case Ended():
                self._over(event)

    def _proceed(self, status: int, reason: str, sdp: str | None) -> None:
        if sdp is not None and isinstance(self.leg, SipLeg):
            self.leg.accept(sdp)
            self._move("early_media", status, reason)
        elif status == 180:
            self._move("ringing", status, reason)

    def _answered(self, event: Answered, sdp: str | None) -> None:
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
            self._spawn(self._answer_webrtc(sdp))
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
            session.answer_offer(await _webrtc(leg).answer(sdp), monotonic())
            leg.set_held(holds(sdp))
        except ValueError:
            session.refuse_offer(488, monotonic())
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
        if self._outcome is not None:
            if not self._outcome.done():
                self._outcome.set_result(event)
            return
        self._move("ended", event.status, event.reason)
        if self.leg is not None:
            self.leg.close(event.reason)

    # --- what the far end asks for ---

    async def _follow(self, asked: ReferReceived) -> None:
        """Go on with the same line at another far end, as the far end asked (RFC 3515 §2.4)."""
        old, leg = self.session, self.leg
        assert old is not None
        if not isinstance(leg, SipLeg) or not self._may_follow(asked.target):
            old.refuse_refer(603, monotonic())
            self._phone.touched(old)
            return
        old.accept_refer(monotonic())
        self._phone.touched(old)
        headers = [("Referred-By", asked.referred_by)] if asked.referred_by else []
        if asked.replaces:
            headers.append(("Replaces", asked.replaces))
        try:
            flows = await self._phone.ways_to(asked.target, self.trunk)
            await self.place(asked.target, flows[0], headers)
        except DialError as error:
            self.session = old
            old.notify_refer(error.status or 503, "", monotonic())
            self._phone.touched(old)
            return
        old.notify_refer(200, "OK", monotonic())
        old.hang_up(monotonic(), "transferred")
        self._phone.touched(old)

    def _may_follow(self, target: Uri) -> bool:
        """Only to numbers of the trunk that the call is on: nobody calls the world at our cost."""
        trunk = self.trunk
        return trunk is not None and bool(trunk.server) and target.host == trunk.host

    def take_over(self, session: Session, request: Request) -> None:
        """Go on with the same line in a call that replaces this one (RFC 3891 §3)."""
        old, leg = self.session, self.leg
        if old is None or not isinstance(leg, SipLeg):
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
            self.session = session
            session.accept(answer, monotonic())
            old.hang_up(monotonic(), "replaced")
            self._phone.touched(old)
        self._phone.touched(session)

    # --- what the line asks for ---

    def end(self, reason: str, status: int = 0) -> None:
        """Refuse, give up or hang up, as the state demands. No-op when it is over."""
        self._given_up = self._given_up or reason
        if self.session is not None and self.ended is None:
            self.session.hang_up(monotonic(), reason, status=status)
            self._phone.touched(self.session)

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
        if self._offered is not None:
            raise LegError("a change is under way")
        self._offered = asyncio.get_running_loop().create_future()
        try:
            session.reoffer(leg.offer(direction), monotonic())
            self._phone.touched(session)
            async with asyncio.timeout(OFFER_SECONDS):
                await self._offered
        except TimeoutError:
            raise LegError(f"no answer to the change after {OFFER_SECONDS:.0f} s") from None
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

    # --- tasks ---

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work, name=f"sip {self.call_id}")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def close(self) -> None:
        """All that is still under way for the call ends."""
        for task in tuple(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
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
    return text.replace("\\", " ").replace('"', "'")[:200]
