"""An office and a carrier that call one another, and the office's registrar: see sip_timers."""

from collections import Counter
from collections.abc import Callable

from benchmarks.callers.rtp import offer
from benchmarks.sip.world import Party, World
from offhook.telephony.sip.auth.digest import DigestServer
from offhook.telephony.sip.messages.flow import Flow, TransportName
from offhook.telephony.sip.messages.headers import NameAddr
from offhook.telephony.sip.messages.message import Request, parse_message, respond
from offhook.telephony.sip.messages.uri import Uri
from offhook.telephony.sip.sessions.session import Session
from offhook.telephony.sip.sessions.session_events import (
    Answered,
    Dtmf,
    Ended,
    OfferReceived,
    ReferReceived,
    RefreshDue,
)
from offhook.telephony.sip.trunks.keep_alive import KEEP_ALIVE
from offhook.telephony.sip.trunks.trunks import SipSettings, Trunk
from offhook.telephony.sip.user_agent import CallReceived, SessionHappened, UserAgent

EXPIRES_S = 300
TALK_S = 150.0
"""Mean length of a usual call; lengths are exponentially distributed."""
LONG_S = (2000.0, 6000.0)
"""Beyond a session interval (RFC 4028) of 1800 s."""
KINDS = {
    "talk": 50,
    "long": 8,
    "held": 8,
    "keys": 8,
    "busy": 6,
    "given-up": 6,
    "unanswered": 4,
    "lost": 4,
    "unheard": 2,
}
"""Kinds of calls, and how many of each a round has. A long one is refreshed; a held one is put on
hold and taken back; in one with keys they are pressed. Of the others the callee is busy, the caller
gives up, nobody answers, one end vanishes in mid-call, and no message of it ever arrives."""
ANSWERED = frozenset({"talk", "long", "held", "keys", "lost"})

OFFICE, CARRIER, REGISTRAR = (f"198.51.100.{n}" for n in (1, 2, 3))
PASSWORD = "a secret"
CARRIER_TRUNK = Trunk(
    "carrier",
    addresses=(CARRIER,),
    username="office",
    password=PASSWORD,
    server=REGISTRAR,
    register=True,
    expires_seconds=EXPIRES_S,
)
OFFICE_TRUNK = Trunk("office", username="office", password=PASSWORD)
SDP = offer(40_000)


class Registrar(Party):
    """Keeps one binding."""

    def __init__(self, world: World) -> None:
        super().__init__(world, REGISTRAR)
        self.accepted = 0
        self.lapsed = 0
        """Times that the binding had ended before it was refreshed."""
        self.stale = 0
        self.bound_until: float | None = None
        self._digest = DigestServer("registrar")

    def receive(self, data: bytes, source: str) -> None:
        if data == KEEP_ALIVE:
            return
        request, now = parse_message(data), self.world.now
        assert isinstance(request, Request)
        verdict = self._digest.check(request, lambda user: PASSWORD, now)
        if not verdict.ok:
            self.stale += verdict.stale
            headers = self._digest.challenge(request, now, verdict.stale)
            response = respond(request, 401, to_tag="r", headers=headers)
        else:
            self.accepted += 1
            if self.bound_until is not None and now > self.bound_until:
                self.lapsed += 1
            seconds = request.expires or 0
            self.bound_until = now + seconds if seconds else None
            contact = str(request.contacts[0].with_parameter("expires", str(seconds)))
            response = respond(request, 200, to_tag="r", headers=[("Contact", contact)])
        self.world.send(response.serialize(), self.address, source)


class Office(Party):
    """A user agent and whoever calls and answers by it."""

    def __init__(self, world: World, address: str, other: str, trunk: Trunk) -> None:
        super().__init__(world, address)
        self.ended: Counter[tuple[str, str, int, str]] = Counter()
        """Calls by kind, who called, status, and who ended it."""
        self.placed = 0
        self.offers = 0
        """That came within calls."""
        self.keys = 0
        self._other = other
        self._trunk = trunk
        self._talks: dict[Session, tuple[str, str]] = {}
        """Kind, and who called."""
        settings = SipSettings(host=address, udp=5060, tcp=None, trunks=(trunk,))
        self.agent = UserAgent(settings, lambda flow: flow.local, self._flow_to)

    def flow(self, to: str) -> Flow:
        return Flow("UDP", (to, 5060), (self.address, 5060))

    def _flow_to(self, transport: TransportName, host: str, port: int) -> Flow:
        return Flow(transport, (host, port), (self.address, 5060))

    # --- in and out ---

    def receive(self, data: bytes, source: str) -> None:
        self.agent.receive(data, self.flow(source), self.world.now)
        self.work()

    def get_timer(self) -> float | None:
        return self.agent.get_timer()

    def handle_timer(self) -> None:
        self.agent.handle_timer(self.world.now)
        for flow in self.agent.upkeep.keep_alives_to_send(self.world.now):
            self.world.send(KEEP_ALIVE, self.address, flow.remote[0])
        self.work()

    def work(self) -> None:
        while True:
            for data, flow in self.agent.messages_to_send():
                self.world.send(data, self.address, flow.remote[0])
            event = self.agent.next_event()
            if event is None:
                return
            match event:
                case CallReceived(session, request):
                    self._talks[session] = request.uri.user or "", "they"
                    self._called(session, request.uri.user or "")
                case SessionHappened(session, what):
                    self._happened(session, what)

    def _happened(self, session: Session, event: object) -> None:
        now = self.world.now
        match event:
            case Answered():
                self._begin(session)
            case OfferReceived():
                self.offers += 1
                session.answer_offer(SDP, now)
                self._touched(session)
            case RefreshDue():
                session.reoffer(SDP, now)
                self._touched(session)
            case Dtmf():
                self.keys += 1
            case ReferReceived():
                session.refers.refuse(603, now)
                self._touched(session)
            case Ended(status, _, by):
                kind, caller = self._talks.pop(session)
                self.ended[kind, caller, status, by] += 1

    def _touched(self, session: Session) -> None:
        self.agent.session_changed(session, self.world.now)
        self.work()

    # --- a call's life ---

    def place(self, kind: str) -> None:
        self.placed += 1
        target, caller = Uri("sip", kind, self._other), Uri("sip", "office", self.address)
        session = self.agent.call(
            target,
            self.flow(self._other),
            self._trunk,
            NameAddr(caller),
            NameAddr(target),
            SDP,
            self.world.now,
        )
        self._talks[session] = kind, "we"
        if kind == "unheard":
            self.world.gone.add(session.call_id)
        if kind == "given-up":
            self._soon(session, self.world.chance.uniform(0.05, 8), self._hang_up)
        self.work()

    def _called(self, session: Session, kind: str) -> None:
        chance = self.world.chance
        if kind == "busy":
            session.refuse(486, "", self.world.now)
        else:
            session.ring(self.world.now)
        self._touched(session)
        if kind in ANSWERED:
            self._soon(session, chance.uniform(0.1, 6), self._accept)

    def _accept(self, session: Session) -> None:
        session.accept(SDP, self.world.now)
        self._touched(session)
        if self.world.chance.random() < 0.5 and self._talks.get(session, ("lost",))[0] != "lost":
            self._soon(session, self._length(self._talks[session][0]), self._hang_up)

    def _begin(self, session: Session) -> None:
        """Taken at the other end."""
        chance, kind = self.world.chance, self._talks[session][0]
        self._soon(session, self._length(kind), self._hang_up)
        match kind:
            case "held":
                for at in (2.0, 9.0):
                    self._soon(session, at + chance.random(), self._reoffer)
            case "keys":
                for at in range(4):
                    self._soon(session, 1.0 + at, self._press)
            case "lost":
                self._soon(session, chance.uniform(0, 20), self._vanish)

    def _length(self, kind: str) -> float:
        chance = self.world.chance
        if kind == "long":
            return chance.uniform(*LONG_S)
        return 12.0 + chance.expovariate(1 / TALK_S)

    def _soon(self, session: Session, seconds: float, action: Callable[[Session], None]) -> None:
        def act() -> None:
            if session in self._talks:
                action(session)

        self.world.after(seconds, act)

    def _hang_up(self, session: Session) -> None:
        session.hang_up(self.world.now)
        self._touched(session)

    def _reoffer(self, session: Session) -> None:
        session.reoffer(SDP, self.world.now)
        self._touched(session)

    def _press(self, session: Session) -> None:
        session.info_dtmf("5", self.world.now)
        self._touched(session)

    def _vanish(self, session: Session) -> None:
        self.world.gone.add(session.call_id)

    def hang_up_all(self) -> None:
        for session in tuple(self._talks):
            self._hang_up(session)
