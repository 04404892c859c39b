"""What a session talks to in tests: a far end written by hand, or another session over a network
that loses, delays, doubles and reorders."""

import heapq
import itertools
import random
from collections.abc import Callable

from offhook.telephony.sip.messages.flow import Flow
from offhook.telephony.sip.messages.headers import NameAddr
from offhook.telephony.sip.messages.message import Request, Response, parse_message, respond
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
    SessionEvent,
    SessionSettings,
)
from offhook.telephony.sip.transactions.transaction import ClientTransaction, ServerTransaction
from offhook.telephony.sip.transactions.transactions import (
    AckReceived,
    Cancelled,
    Failed,
    RequestReceived,
    ResponseReceived,
    Transactions,
)

FLOW = Flow("UDP", ("192.0.2.2", 5060), ("192.0.2.1", 5060))
US = Uri.parse("sip:us@192.0.2.1")
THEM = Uri.parse("sip:them@192.0.2.2")
OFFER = "v=0\r\no=- 1 1 IN IP4 192.0.2.1\r\ns=offer\r\n"
ANSWER = "v=0\r\no=- 1 1 IN IP4 192.0.2.2\r\ns=answer\r\n"
OTHER = "v=0\r\no=- 1 2 IN IP4 192.0.2.2\r\ns=other\r\n"
THIRD = "v=0\r\no=- 1 3 IN IP4 192.0.2.1\r\ns=third\r\n"
NO_TIMER = SessionSettings(session_seconds=0)

Header = tuple[str, str]


class FarEnd:
    """The core of one session and, by the test's hand, everybody beyond it."""

    def __init__(self) -> None:
        self.requests: list[Request] = []
        """Sent by the session, as they are read again at the other end."""
        self.transactions: list[ClientTransaction] = []
        self.acks: list[Request] = []
        self.responses: list[Response] = []
        self.cancelled: list[ClientTransaction] = []
        self.hops: list[Uri] = []
        self._branch = itertools.count(1)
        self.cseq = 100

    # --- the core ---

    def request(self, request: Request, hop: Uri, now: float) -> ClientTransaction:
        self.hops.append(hop)
        request = self._read(request)
        transaction = ClientTransaction(request, FLOW, (request.via.branch or "", request.method))
        self.requests.append(request)
        self.transactions.append(transaction)
        return transaction

    def ack(self, request: Request, hop: Uri) -> None:
        self.hops.append(hop)
        self.acks.append(self._read(request))

    def respond(self, transaction: ServerTransaction, response: Response, now: float) -> None:
        read = parse_message(response.serialize())
        assert isinstance(read, Response)
        self.responses.append(read)

    def cancel(self, transaction: ClientTransaction, now: float) -> None:
        self.cancelled.append(transaction)

    def _read(self, request: Request) -> Request:
        headers = request.headers.copy()
        headers.prepend("Via", f"SIP/2.0/UDP 192.0.2.1;branch=z9hG4bK{next(self._branch)};rport")
        copy = Request(request.method, request.uri, headers, request.body)
        read = parse_message(copy.serialize())
        assert isinstance(read, Request)
        return read

    # --- what it has been sent ---

    @property
    def methods(self) -> list[str]:
        return [request.method for request in self.requests]

    @property
    def statuses(self) -> list[int]:
        return [response.status for response in self.responses]

    # --- what it says ---

    def answer(
        self,
        session: Session,
        now: float,
        status: int,
        *headers: Header,
        sdp: str | None = None,
        tag: str = "them",
        to: int = -1,
        contact: str = "<sip:them@192.0.2.2>",
        reason: str = "",
    ) -> None:
        """Answer the request number `to` of those that the session has sent."""
        transaction = self.transactions[to]
        fields = list(headers)
        if contact and 100 < status < 300 and "Contact" not in dict(fields):
            fields.append(("Contact", contact))
        response = respond(
            transaction.request,
            status,
            reason,
            to_tag=tag,
            headers=fields,
            body=sdp.encode() if sdp else b"",
            content_type="application/sdp" if sdp else "",
        )
        read = parse_message(response.serialize())
        assert isinstance(read, Response)
        session.responses.receive(transaction, read, now)

    def ask(
        self,
        session: Session,
        now: float,
        method: str,
        *headers: Header,
        sdp: str | None = None,
        body: bytes = b"",
        content_type: str = "application/sdp",
        tag: str = "them",
        cseq: int | None = None,
        contact: str = "<sip:them@192.0.2.2>",
    ) -> ServerTransaction:
        """Send the session a request within its dialog."""
        self.cseq = self.cseq + 1 if cseq is None else cseq
        request = made(
            method,
            [*headers] if "Contact" in dict(headers) else [("Contact", contact), *headers],
            sdp.encode() if sdp else body,
            content_type,
            call_id=session.call_id,
            from_tag=tag,
            to_tag=session.local_tag,
            cseq=self.cseq,
        )
        transaction = arrived(request)
        session.requests.receive(request, transaction, now)
        return transaction

    def acknowledge(
        self, session: Session, now: float, sdp: str | None = None, cseq: int = 1
    ) -> None:
        session.requests.receive_ack(
            made(
                "ACK",
                [],
                sdp.encode() if sdp else b"",
                call_id=session.call_id,
                from_tag="them",
                to_tag=session.local_tag,
                cseq=cseq,
            ),
            now,
        )


def made(
    method: str,
    headers: list[Header],
    body: bytes = b"",
    content_type: str = "application/sdp",
    call_id: str = "call",
    from_tag: str = "them",
    to_tag: str = "",
    cseq: int = 1,
) -> Request:
    """A request of the far end, written and read."""
    to = f"<sip:us@192.0.2.1>;tag={to_tag}" if to_tag else "<sip:us@192.0.2.1>"
    lines = [
        f"{method} sip:us@192.0.2.1 SIP/2.0",
        f"Via: SIP/2.0/UDP 192.0.2.2;branch=z9hG4bKthem{method}{cseq}",
        f"From: <sip:them@192.0.2.2>;tag={from_tag}",
        f"To: {to}",
        f"Call-ID: {call_id}",
        f"CSeq: {cseq} {method}",
        *(f"{name}: {value}" for name, value in headers),
    ]
    if body:
        lines.append(f"Content-Type: {content_type}")
    read = parse_message("\r\n".join([*lines, "", ""]).encode() + body)
    assert isinstance(read, Request)
    return read


def arrived(request: Request) -> ServerTransaction:
    key = (request.via.branch or "", request.method)
    return ServerTransaction(request, FLOW, key, FLOW)


def events(session: Session) -> list[SessionEvent]:
    taken = []
    while (event := session.next_event()) is not None:
        taken.append(event)
    return taken


def ended(session: Session) -> Ended:
    """The one Ended among the events, which are taken."""
    (end,) = [event for event in events(session) if isinstance(event, Ended)]
    return end


def run(session: Session, until: float) -> float:
    """Let its timers fire up to then; the time of the last."""
    last = 0.0
    for _ in range(1000):
        timer = session.get_timer()
        if timer is None or timer > until:
            return last
        last = timer
        session.handle_timer(timer)
    raise AssertionError("it never comes to rest")


def called(
    *headers: Header,
    sdp: str | None = OFFER,
    settings: SessionSettings = NO_TIMER,
) -> tuple[Session, FarEnd]:
    """Somebody calls us."""
    far = FarEnd()
    lines = [("Contact", "<sip:them@192.0.2.2>"), ("Max-Forwards", "70"), *headers]
    request = made("INVITE", lines, sdp.encode() if sdp else b"")
    session = Session.incoming(
        far, arrived(request), request, US, settings, 0.0, random=random.Random(1).random
    )
    return session, far


def calls(
    *headers: Header,
    sdp: str | None = OFFER,
    settings: SessionSettings = NO_TIMER,
    **others: object,
) -> tuple[Session, FarEnd]:
    """We call somebody."""
    far = FarEnd()
    session = Session.outgoing(
        far,
        THEM,
        NameAddr(US),
        NameAddr(THEM),
        US,
        sdp,
        settings,
        0.0,
        headers=headers,
        random=random.Random(1).random,
        **others,  # type: ignore[arg-type]
    )
    return session, far


ALLOW_UPDATE = ("Allow", "INVITE, ACK, BYE, CANCEL, UPDATE")


def talking(
    *headers: Header, settings: SessionSettings = NO_TIMER, **others: object
) -> tuple[Session, FarEnd]:
    """A call of ours that has been taken. `headers`: of the 200."""
    session, far = calls(settings=settings, **others)
    far.answer(session, 0.1, 200, *headers, sdp=ANSWER)
    events(session)
    return session, far


def talked_to(*headers: Header, settings: SessionSettings = NO_TIMER) -> tuple[Session, FarEnd]:
    """A call to us that we took. `headers`: of the INVITE."""
    session, far = called(*headers, settings=settings)
    session.accept(ANSWER, 0.1)
    far.acknowledge(session, 0.2)
    events(session)
    return session, far


# --- two sessions ---


class End:
    """One user agent with one call: real transactions, and a user who answers offers."""

    def __init__(self, network: "Network", name: str, address: str, settings: SessionSettings):
        self.network = network
        self.name = name
        self.address = (address, 5060)
        self.uri = Uri.parse(f"sip:{name}@{address}")
        self.settings = settings
        self.transactions = Transactions(lambda flow: f"{address}:5060")
        self.session: Session | None = None
        self.events: list[SessionEvent] = []
        self.described: tuple[str | None, str | None] = (None, None)
        """What we said last and what they said last, of an offer and its answer."""
        self.offering: str | None = None
        self.versions = itertools.count(1)
        self.random = random.Random(name)
        self.decide: Callable[[End, OfferReceived], None] = lambda end, offer: end.answer(offer)

    def sdp(self) -> str:
        return f"v=0\r\no=- 1 {next(self.versions)} IN IP4 {self.address[0]}\r\ns={self.name}\r\n"

    # --- the core ---

    def _flow(self, uri: Uri) -> Flow:
        return Flow("UDP", (uri.host, uri.port or 5060), self.address)

    def request(self, request: Request, hop: Uri, now: float) -> ClientTransaction:
        return self.transactions.send_request(request, self._flow(hop), now)

    def ack(self, request: Request, hop: Uri) -> None:
        self.transactions.send_once(request, self._flow(hop))

    def respond(self, transaction: ServerTransaction, response: Response, now: float) -> None:
        self.transactions.respond(transaction, response, now)

    def cancel(self, transaction: ClientTransaction, now: float) -> None:
        self.transactions.cancel(transaction, now)

    # --- the user ---

    def call(self, other: "End", now: float, offer: bool = True) -> None:
        self.offering = self.sdp() if offer else None
        self.session = Session.outgoing(
            self,
            other.uri,
            NameAddr(self.uri),
            NameAddr(other.uri),
            self.uri,
            self.offering,
            self.settings,
            now,
            random=self.random.random,
        )

    def reoffer(self, now: float) -> None:
        """As an owner does: only one at a time, and none before the call has media."""
        if self.session is not None and self.offering is None and None not in self.described:
            self.offering = self.sdp()
            self.session.reoffer(self.offering, now)

    def accept(self, now: float) -> None:
        """Take a call, with our answer or our offer."""
        session = self.session
        if session is None or session.state.name != "RECEIVED" or self.taken:
            return
        self.taken = True
        sdp = self.sdp()
        if self.their_first is not None:
            self.described = sdp, self.their_first
        elif self.described == (None, None) and self.offering is None:
            self.offering = sdp
        session.accept(sdp, now)

    taken = False
    their_first: str | None = None

    def ring(self, now: float, early: bool) -> None:
        session = self.session
        if session is None or session.state.name != "RECEIVED" or self.taken:
            return
        if not early or self.described != (None, None) or self.offering is not None:
            session.ring(now)
            return
        sdp = self.sdp()
        reliable = session.life.incoming is not None and session.life.incoming.reliable is not None
        session.ring(now, sdp)
        if reliable and self.their_first is not None:
            self.described = sdp, self.their_first
            self.their_first = None
        elif reliable:
            self.offering = sdp

    def answer(self, offer: OfferReceived) -> None:
        assert self.session is not None
        sdp = self.sdp()
        if offer.sdp is None:
            self.offering = sdp
        else:
            self.described = sdp, offer.sdp
        self.session.answer_offer(sdp, self.network.now)

    # --- what happens ---

    def work(self) -> None:
        """Until all is at rest."""
        now = self.network.now
        while True:
            while (event := self.transactions.next_event()) is not None:
                self._take(event, now)
            if self.session is None or (happened := self.session.next_event()) is None:
                break
            self._see(happened)
        for data, flow in self.transactions.messages_to_send():
            self.network.send(data, flow)

    def _take(self, event: object, now: float) -> None:
        session = self.session
        match event:
            case RequestReceived(transaction, request, _):
                if request.to.tag:
                    if session is None or request.to.tag != session.local_tag or session.over:
                        self.respond(transaction, respond(request, 481, to_tag="none"), now)
                    else:
                        session.requests.receive(request, transaction, now)
                elif request.method == "INVITE" and session is None:
                    self.session = Session.incoming(
                        self,  # type: ignore[arg-type]
                        transaction,
                        request,
                        self.uri,
                        self.settings,
                        now,
                        random=self.random.random,
                    )
                    self.their_first = request.body.decode() or None
                else:
                    self.respond(transaction, respond(request, 486, to_tag="none"), now)
            case ResponseReceived(transaction, response) if session and not session.over:
                session.responses.receive(transaction, response, now)
            case AckReceived(request, _) if session and request.to.tag == session.local_tag:
                session.requests.receive_ack(request, now)
            case Cancelled(transaction, request) if session:
                session.requests.cancelled(transaction, now, request)
            case Failed(transaction, reason) if session and not session.over:
                session.responses.failed(transaction, reason, now)

    def _see(self, event: SessionEvent) -> None:
        self.events.append(event)
        match event:
            case OfferReceived():
                self.decide(self, event)
            case Answered(sdp) if sdp is not None and self.offering is None:
                assert self.session is not None
                mine = self.sdp()
                self.described = mine, sdp
                self.session.answer_offer(mine, self.network.now)
            case Progress(_, _, sdp) | Confirmed(sdp) if sdp is None:
                pass
            case Answered(sdp) | AnswerReceived(sdp) | Confirmed(sdp) | Progress(_, _, sdp):
                if sdp is not None and self.offering is not None:
                    self.described = self.offering, sdp
                if not isinstance(event, Progress):
                    self.offering = None
            case OfferRefused():
                self.offering = None

    @property
    def ends(self) -> list[Ended]:
        return [event for event in self.events if isinstance(event, Ended)]

    def get_timer(self) -> float | None:
        timers = [self.transactions.get_timer()]
        if self.session is not None and not self.session.over:
            timers.append(self.session.get_timer())
        return min((t for t in timers if t is not None), default=None)

    def handle_timer(self, now: float) -> None:
        self.transactions.handle_timer(now)
        session = self.session
        if session is not None and not session.over:
            timer = session.get_timer()
            if timer is not None and timer <= now:
                session.handle_timer(now)


class Network:
    """Carries datagrams between ends in virtual time."""

    def __init__(
        self,
        seed: int = 0,
        loss: float = 0.0,
        double: float = 0.0,
        delay: float = 0.02,
        jitter: float = 0.0,
    ) -> None:
        self.now = 0.0
        self.ends: dict[tuple[str, int], End] = {}
        self.random = random.Random(seed)
        self.loss, self.double, self.delay, self.jitter = loss, double, delay, jitter
        self.drop: Callable[[bytes], bool] = lambda data: False
        self.log: list[str] = []
        self._order = itertools.count()
        self._queue: list[tuple[float, int, bytes, Flow]] = []

    def end(self, name: str, address: str, settings: SessionSettings = NO_TIMER) -> End:
        end = End(self, name, address, settings)
        self.ends[end.address] = end
        return end

    def send(self, data: bytes, flow: Flow) -> None:
        self.log.append(data.partition(b"\r\n")[0].decode())
        copies = 2 if self.random.random() < self.double else 1
        for _ in range(copies):
            if self.drop(data) or self.random.random() < self.loss:
                continue
            arrival = self.now + self.delay + self.random.random() * self.jitter
            heapq.heappush(self._queue, (arrival, next(self._order), data, flow))

    def run(self, until: float) -> None:
        """Let everything happen up to then."""
        for _ in range(20_000):
            for end in self.ends.values():
                end.work()
            times = [end.get_timer() for end in self.ends.values()]
            if self._queue:
                times.append(self._queue[0][0])
            following = min((t for t in times if t is not None), default=None)
            if following is None or following > until:
                self.now = max(self.now, until)
                return
            self.now = max(self.now, following)
            while self._queue and self._queue[0][0] <= self.now:
                _, _, data, flow = heapq.heappop(self._queue)
                end = self.ends[flow.remote]
                back = Flow(flow.transport, flow.local, flow.remote)
                end.transactions.receive(parse_message(data), back, self.now)
                end.work()
            for end in self.ends.values():
                timer = end.get_timer()
                if timer is not None and timer <= self.now:
                    end.handle_timer(self.now)
                    end.work()
        raise AssertionError("it never comes to rest")
