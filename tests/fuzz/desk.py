"""Who calls and is called by a user agent under test, and does with each call what occurs to him.

What the far end says is taken as the edge takes it: offers and answers go through MediaNegotiation,
a description that does not fit ends the call or is refused.
"""

import random
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from offhook.media.leg import CallInfo
from offhook.telephony.sip.media.offer_answer import (
    MediaNegotiation,
    MediaSettings,
    NotAcceptable,
    SdpError,
    is_hold,
    wants_ice,
)
from offhook.telephony.sip.messages.flow import Flow, TransportName
from offhook.telephony.sip.messages.headers import NameAddr
from offhook.telephony.sip.messages.message import Request, sdp_of
from offhook.telephony.sip.messages.uri import Uri
from offhook.telephony.sip.sessions.session import Session
from offhook.telephony.sip.sessions.session_events import (
    Answered,
    AnswerReceived,
    Confirmed,
    Ended,
    OfferReceived,
    OfferRefused,
    Progress,
    ReferProgress,
    ReferReceived,
    RefreshDue,
    SessionEvent,
)
from offhook.telephony.sip.trunks.routes import route
from offhook.telephony.sip.trunks.trunks import SipSettings, Trunk
from offhook.telephony.sip.trunks.upkeep import TrunkChanged
from offhook.telephony.sip.user_agent import CallReceived, Locate, SessionHappened, UserAgentEvent
from tests.fuzz.network import Network, way
from tests.fuzz.result import Result
from tests.fuzz.subject import Subject

CODECS = ("opus", "g722", "pcmu", "pcma")
FINGERPRINT = "sha-256 " + ":".join(["5A"] * 32)
REFUSALS = (302, 400, 404, 480, 486, 488, 503, 600, 603, 699)
WORDS = ("", "later", 'a "word"\r\nX: y', "ä\\" * 150)
TRANSPORTS: tuple[TransportName, ...] = ("UDP", "UDP", "UDP", "UDP", "TCP", "TLS", "WS", "WSS")
TALKS = 120
"""Calls at a time, beyond which no more are placed."""


@dataclass
class Talk:
    """What a desk knows of a call."""

    media: MediaNegotiation
    asked_by: Session | None = None
    """The call whose far end wanted this one."""
    answer: str | None = field(default=None, repr=False)


class Desk(Subject):
    """One end of the network."""

    def __init__(
        self,
        network: Network,
        host: str,
        other: str,
        settings: SipSettings,
        trunk: Trunk,
        result: Result,
        number: Callable[[], int],
    ) -> None:
        super().__init__(network, host, settings, result, number)
        self.talks: dict[Session, Talk] = {}
        self.asked: deque[Session] = deque(maxlen=TALKS)
        """Calls whose far ends wanted a transfer."""
        self._other = other
        self._settings = settings
        self._trunk = trunk

    # --- what happens ---

    def _happened(self, event: UserAgentEvent) -> None:
        match event:
            case CallReceived():
                self._called(event)
            case SessionHappened(session, what):
                self._result.counts[type(what).__name__] += 1
                if session in self.talks:
                    self._heard(session, what)
            case TrunkChanged():
                self.agent.upkeep.state(self._trunk)
            case Locate(hop):
                found = self._way() if self._chance.random() < 0.8 else None
                self._soon(2.0, lambda: self.agent.next_hops.located(hop, found))

    def _called(self, event: CallReceived) -> None:
        session, request, chance = event.session, event.request, self._chance
        self._result.counts["calls"] += 1
        self.talks[session] = Talk(self._media())
        route(self._settings.routes, _info(request, event.trunk))
        match chance.choice(("take", "take", "take", "ring", "ring", "early", "refuse", "silent")):
            case "take":
                self._with(session, lambda: self._accept(session, request), 0.0)
            case "ring":
                self._with(session, lambda: session.ring(self._now), 0.0)
                self._with(session, lambda: self._accept(session, request), 4.0)
            case "early":
                self._with(session, lambda: self._early(session, request), 0.5)
                self._with(session, lambda: self._accept(session, request), 6.0)
            case "refuse":
                status, words = chance.choice(REFUSALS), chance.choice(WORDS)
                self._with(session, lambda: session.refuse(status, words, self._now), 1.0)

    def _heard(self, session: Session, event: SessionEvent) -> None:
        talk, now = self.talks[session], self._now
        try:
            match event:
                case Progress(_, _, sdp) | Confirmed(sdp) if sdp is not None:
                    talk.media.accept(sdp)
                case AnswerReceived(sdp):
                    talk.media.accept(sdp)
                case Answered(sdp):
                    self._answered(session, talk, sdp)
                case OfferReceived(sdp):
                    self._offered(session, talk, sdp)
                case OfferRefused():
                    talk.media.rollback()
                case RefreshDue():
                    session.reoffer(talk.media.offer(), now)
                case ReferReceived():
                    self._referred(session, event)
                case ReferProgress(_, _, True):
                    self._with(session, lambda: session.hang_up(self._now, "transferred"), 1.0)
                case Ended():
                    self._over(session, talk, event)
        except (NotAcceptable, SdpError):
            session.hang_up(now, "no acceptable media", 488)
        self.agent.session_changed(session, now)
        early = isinstance(event, Progress) and self._chance.random() < 0.3
        if early or isinstance(event, Confirmed | Answered):
            self._live(session)

    def _answered(self, session: Session, talk: Talk, sdp: str | None) -> None:
        late = session.dialog is not None and sdp_of(session.invite) is None
        if sdp is not None and late and self._chance.random() < 0.9:
            session.answer_offer(talk.media.answer(sdp), self._now)
        elif sdp is not None:
            talk.media.accept(sdp)
        if talk.asked_by is not None:
            talk.asked_by.refers.notify(200, "OK", self._now)
            talk.asked_by.hang_up(self._now, "transferred")
            self.agent.session_changed(talk.asked_by, self._now)

    def _offered(self, session: Session, talk: Talk, sdp: str | None) -> None:
        def answer() -> None:
            try:
                text = talk.media.offer() if sdp is None else talk.media.answer(sdp)
                session.answer_offer(text, self._now)
            except NotAcceptable as error:
                session.refuse_offer(error.status, self._now)
            except SdpError:
                session.refuse_offer(400, self._now)

        match self._chance.random():
            case n if n < 0.7:
                answer()
            case n if n < 0.85:
                self._with(session, answer, 8.0)
            case n if n < 0.93:
                session.refuse_offer(self._chance.choice((488, 491, 606)), self._now)

    def _referred(self, session: Session, event: ReferReceived) -> None:
        match self._chance.random():
            case n if n < 0.5:
                session.refers.accept(self._now)
                self.asked.append(session)
                session.refers.notify(180, "Ringing", self._now)
                headers = [("Referred-By", event.referred_by)] if event.referred_by else []
                if event.replaces:
                    headers.append(("Replaces", event.replaces))
                target = event.target
                self._soon(1.0, lambda: self.place(target, headers, session))
            case n if n < 0.8:
                session.refers.refuse(603, self._now)

    def _over(self, session: Session, talk: Talk, event: Ended) -> None:
        del self.talks[session]
        if talk.asked_by is not None:
            talk.asked_by.refers.notify(event.status or 503, event.reason, self._now)
            self.agent.session_changed(talk.asked_by, self._now)
        if self._chance.random() < 0.1:  # asked too late
            self._with(session, lambda: self._act(session, talk), 3.0)

    # --- what a call is like ---

    def _accept(self, session: Session, request: Request) -> None:
        talk = self.talks.get(session)
        if talk is None:
            return
        try:
            session.accept(self._answer_to(talk, request), self._now)
        except NotAcceptable as error:
            warning = [("Warning", error.warning)]
            session.refuse(error.status, "", self._now, headers=warning)
        except SdpError:
            session.refuse(400, "", self._now)

    def _early(self, session: Session, request: Request) -> None:
        talk = self.talks.get(session)
        if talk is None:
            return
        try:
            session.ring(self._now, self._answer_to(talk, request))
        except (NotAcceptable, SdpError):
            session.refuse(488, "", self._now)

    def _answer_to(self, talk: Talk, request: Request) -> str:
        """To the INVITE, once."""
        if talk.answer is None:
            sdp = sdp_of(request)
            if sdp is not None:
                wants_ice(sdp)
                is_hold(sdp)
            talk.answer = talk.media.offer() if sdp is None else talk.media.answer(sdp)
        return talk.answer

    def _live(self, session: Session) -> None:
        """It is up: some things are done with it, and mostly it is hung up in the end."""
        talk, chance = self.talks.get(session), self._chance
        if talk is None:
            return
        for _ in range(chance.choice((0, 1, 1, 2, 4, 8))):
            self._with(session, lambda: self._act(session, talk), chance.choice((0.5, 12.0)))
        seconds = chance.choice((40.0, 40.0, 400.0))
        if chance.random() < 0.7:
            self._with(session, lambda: session.hang_up(self._now, chance.choice(WORDS)), seconds)

    def _act(self, session: Session, talk: Talk) -> None:
        chance, now = self._chance, self._now
        match chance.choice(("hold", "hold", "resume", "key", "key", "refer", "attended", "ring")):
            case "hold":
                session.reoffer(talk.media.offer(chance.choice(("sendonly", "inactive"))), now)
            case "resume":
                session.reoffer(talk.media.offer(), now)
            case "key":
                for digit in chance.choice(("5", "123#")):
                    session.info_dtmf(digit, now)
            case "refer":
                by = chance.choice(("", f"<sip:boss@{self._shown(self.host)}>"))
                session.refer(self._target(), now, referred_by=by)
            case "attended":
                others = [s for s in self.talks if s.dialog is not None]
                dialog = chance.choice(others).dialog if others else None
                if dialog is not None:
                    session.refer(self._target(), now, dialog.replaces)
            case "ring":  # in the wrong moment, as is all that a session is asked when it is over
                session.ring(now, "v=0\r\n")
                session.answer_offer("v=0\r\n", now)
                session.refers.notify(100, "", now)

    def place(
        self,
        target: Uri | None = None,
        headers: list[tuple[str, str]] | None = None,
        asked_by: Session | None = None,
    ) -> None:
        """Call somebody."""
        if len(self.talks) >= TALKS:
            return
        chance, media = self._chance, self._media()
        sdp = None if chance.random() < 0.15 else media.offer()
        lines = list(headers or ())
        if chance.random() < 0.1:
            lines.append(("Route", f"<sip:{self._shown(self._other)};lr>"))
        if chance.random() < 0.1:  # so long that it had better not go by UDP
            lines.append(("X-Story", "so on and " * 120))
        if chance.random() < 0.1 and self.talks:
            dialog = chance.choice(list(self.talks)).dialog
            lines.append(("Replaces", "x;to-tag=y" if dialog is None else dialog.replaces))
        me = NameAddr(Uri("sip", "office", self.host), chance.choice(("", 'The "desk", ä')))
        to = target or self._target()

        def call() -> None:
            agent, flow = self.agent, self._way()
            flow = agent.upkeep.sorted(self._trunk, [flow])[0]
            if chance.random() < 0.1:
                agent.upkeep.call_failed(
                    self._trunk, flow, chance.choice(("", "silent")), self._now
                )
            session = agent.call(
                to, flow, self._trunk, me, NameAddr(to), sdp, self._now, lines, 20.0
            )
            self.talks[session] = Talk(media, asked_by)
            if chance.random() < 0.2:
                self._with(session, lambda: session.hang_up(self._now), 5.0)

        self._do(call, to)

    def hang_up_all(self) -> None:
        """And tell those who wanted to be transferred that it comes to nothing."""
        for session in (*self.talks, *self.asked):
            self._do(lambda s=session: self._leave(s), session)  # type: ignore[misc]
        self.talks.clear()

    def _leave(self, session: Session) -> None:
        session.refers.notify(503, "", self._now)
        session.hang_up(self._now)
        self.agent.session_changed(session, self._now)

    # --- odds and ends ---

    def _soon(self, seconds: float, action: Callable[[], None]) -> None:
        delay = self._chance.uniform(0, seconds)
        self._network.after(delay, lambda: self._do(action, "something planned"))

    def _with(self, session: Session, action: Callable[[], None], seconds: float) -> None:
        """Within so many seconds, whether the call is still up or not."""

        def act() -> None:
            action()
            self.agent.session_changed(session, self._now)

        if seconds:
            self._soon(seconds, act)
        else:
            act()

    def _way(self) -> Flow:
        return way(self._chance.choice(TRANSPORTS), self.host, self._other)

    def _target(self) -> Uri:
        user = self._chance.choice(("100", "+1 555-0100", "a b%;x", "é"))
        return Uri("sip", user, self._other)

    def _media(self) -> MediaNegotiation:
        chance = self._chance
        codecs = tuple(chance.sample(CODECS, chance.randrange(1, 5)))
        settings = MediaSettings(codecs, srtp=chance.choice(("off", "optional", "required")))
        port = chance.randrange(10_000, 60_000, 2)
        return MediaNegotiation(
            settings, self.host, port, port + 1, chance.getrandbits(62), FINGERPRINT, _key(chance)
        )

    @staticmethod
    def _shown(host: str) -> str:
        return f"[{host}]" if ":" in host else host


def _key(chance: random.Random) -> Callable[[int], bytes]:
    return chance.randbytes


def _info(request: Request, trunk: Trunk | None) -> CallInfo:
    """What the edge tells of who calls."""
    names = trunk.headers if trunk is not None else ()
    return CallInfo(
        caller=request.from_.uri.number or request.from_.uri.host,
        caller_name=request.from_.display_name,
        called=request.uri.number or request.to.uri.number,
        trunk=trunk.name if trunk is not None else "",
        headers={name: value for name in names if (value := request.headers.get(name))},
    )
