"""All SIP of one process: whose a message is, and what is answered by itself.

Sans-io: messages come in with the way they came by, messages with the way they go come out, and in
between is what happened: calls, and registrations. A request passes the access policy, then goes to
its session; one that begins something is looked at in the order of RFC 3261 §8.2, and has a
transaction only when it is an INVITE:

    a method that is not ours     405, 501
    another scheme                416
    the same by another way       482
    an extension we do not have   420
    a body we cannot read         415
    no answer it could read       406
    an INVITE                     a new session (481 when it replaces one that is not there)
    OPTIONS                       200, what we can do
    anything else                 481: it is of a dialog that is not there

Max-Forwards is not looked at: it tells a proxy what it may still pass on (RFC 3261 §16.3), and
here the request has arrived.
"""

import heapq
import itertools
import secrets
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from offhook.telephony.sip.admission.access_policy import AccessPolicy, HeaderLines, Refusal
from offhook.telephony.sip.auth.digest import DigestClient
from offhook.telephony.sip.messages.flow import Flow, TransportName
from offhook.telephony.sip.messages.headers import NameAddr
from offhook.telephony.sip.messages.message import (
    MessageError,
    Request,
    Response,
    parse_message,
    respond,
    sdp_of,
)
from offhook.telephony.sip.messages.uri import Uri
from offhook.telephony.sip.sessions.dialog_requests import ALLOWED, KNOWN
from offhook.telephony.sip.sessions.line import Line
from offhook.telephony.sip.sessions.refer import Replaces
from offhook.telephony.sip.sessions.session import Session
from offhook.telephony.sip.sessions.session_events import SessionEvent, SessionSettings
from offhook.telephony.sip.sessions.session_table import OVER, SessionState
from offhook.telephony.sip.transactions.large_requests import LargeRequests
from offhook.telephony.sip.transactions.matching import server_key
from offhook.telephony.sip.transactions.transaction import ClientTransaction, Key, ServerTransaction
from offhook.telephony.sip.transactions.transactions import (
    RETRY_AFTER_S,
    AckReceived,
    Cancelled,
    Failed,
    RequestReceived,
    ResponseReceived,
    Transactions,
)
from offhook.telephony.sip.trunks.registration import Registration, RegistrationStatus
from offhook.telephony.sip.trunks.trunks import SipSettings, Trunk
from offhook.telephony.sip.trunks.upkeep import RegistrationChanged, TrunkChanged, Upkeep

EXTENSIONS = ("100rel", "timer", "replaces")
LOCATED_LIMIT = 1000
"""Names of next hops whose addresses are kept; the oldest are forgotten."""
LOOKUPS_LIMIT = 32
"""Names that are looked up at a time; while there are so many, no others are. Far ends choose
them."""
STALE_ALARMS = 64
"""That many may lie in the heap beside those of the sessions that are there."""


@dataclass(frozen=True)
class IncomingCall:
    """Somebody calls; the session waits for an answer."""

    session: Session
    request: Request
    flow: Flow
    trunk: Trunk | None
    """None where everybody may call."""
    replaces: Session | None
    """The call that this one takes the place of (RFC 3891)."""


@dataclass(frozen=True)
class SessionHappened:
    """Something happened in a call that is known."""

    session: Session
    event: SessionEvent


@dataclass(frozen=True)
class Locate:
    """The address of this next hop is wanted: see `UserAgent.located`."""

    hop: Uri


Happening = IncomingCall | SessionHappened | RegistrationChanged | TrunkChanged | Locate


@dataclass
class Counts:
    """Since the start, for the metrics."""

    requests: dict[str, int] = field(default_factory=dict)
    """Received, by method."""
    responses: dict[str, int] = field(default_factory=dict)
    """Sent and received, by class as "4xx"."""
    malformed: int = 0
    """Messages that could not be understood."""


class UserAgent:
    """After every call that takes `now` the caller empties `messages_to_send` and `next_event`,
    and comes back by `get_timer`."""

    def __init__(
        self,
        settings: SipSettings,
        address_of: Callable[[Flow], tuple[str, int]],
        flow_to: Callable[[TransportName, str, int], Flow],
    ) -> None:
        """`address_of`: our host and port as a peer at the far end of a flow reaches them.
        `flow_to`: the way to a numeric address."""
        self.counts = Counts()
        self.takes_calls: Callable[[], bool] = lambda: True
        """Whether calls are taken now. Who asks by OPTIONS is told what an INVITE would be
        (RFC 3261 §11.2): a balancer then sends its calls elsewhere."""
        self._settings = settings
        self._address_of = address_of
        self._flow_to = flow_to
        self._transactions = Transactions(self._sent_by)
        self.access = AccessPolicy(settings, self._call_of, self._transactions.follows)
        self._lines: dict[tuple[str, str], Line] = {}
        """By Call-ID and our own tag."""
        self._ringing: dict[Key, Line] = {}
        """By the transaction of an INVITE that came in, which a CANCEL is for."""
        self.upkeep = Upkeep(settings, self.send_request, address_of)
        self._large = LargeRequests(self.upkeep.is_target, flow_to)
        self._located: dict[str, Flow] = {}
        """Next hops that are names."""
        self._looked_up: set[str] = set()
        """Those that are being looked for."""
        self._due: list[tuple[float, int, Line]] = []
        """A heap of when sessions want to be woken, with some that were put off since."""
        self._order = itertools.count()
        self._events: deque[Happening] = deque()

    @property
    def sessions(self) -> int:
        return len(self._lines)

    @property
    def transactions(self) -> int:
        return len(self._transactions)

    @property
    def alarms(self) -> int:
        """Entries in the heap of what sessions wait for."""
        return len(self._due)

    @property
    def busy(self) -> bool:
        """Something is still to be answered."""
        return bool(self._lines) or self.upkeep.busy

    # --- in and out ---

    def receive(self, data: bytes, flow: Flow, now: float) -> None:
        """One whole message as it came. Never raises."""
        if not data.strip(b"\r\n\0"):  # a keep-alive (RFC 5626 §3.5.1) or what passes for one
            return
        try:
            message = parse_message(data)
        except MessageError as error:
            self.counts.malformed += 1
            request = error.request
            if request is not None and self.access.authorize_malformed(flow, now):
                self._answer(request, flow, error.status, error.reason)
            return
        if isinstance(message, Response):
            _count(self.counts.responses, f"{message.status // 100}xx")
            self._transactions.receive(message, flow, now)
        else:
            _count(self.counts.requests, message.method if message.method in KNOWN else "other")
            judged = self.access.authorize(message, flow, now)
            if isinstance(judged, Refusal):
                self._answer(message, flow, judged.status, "", judged.headers)
            if judged is not True:
                return
            if not message.to.tag and message.method not in ("INVITE", "ACK", "CANCEL"):
                self._answer_at_once(message, flow)
                return
            self._transactions.receive(message, flow, now)
        self._work(now)

    def flow_failed(self, flow: Flow, now: float, why: str = "") -> None:
        """A message could not be sent by it, or its connection is gone; `why` in words."""
        for line in self._lines.values():
            line.lost |= line.flow == flow
        self._transactions.flow_failed(flow, now, why)
        self._work(now)

    def messages_to_send(self) -> list[tuple[bytes, Flow]]:
        return self._transactions.messages_to_send()

    def next_event(self) -> Happening | None:
        return self._events.popleft() if self._events else None

    def get_timer(self) -> float | None:
        timers = [self._transactions.get_timer(), self.upkeep.get_timer(), self._large.get_timer()]
        while self._due and self._due[0][0] != self._due[0][2].due:
            heapq.heappop(self._due)
        if self._due:
            timers.append(self._due[0][0])
        return min((t for t in timers if t is not None), default=None)

    def handle_timer(self, now: float) -> None:
        for transaction in self._large.overdue(now):
            self._send_otherwise(transaction, now)
        self._transactions.handle_timer(now)
        while self._due and self._due[0][0] <= now:
            at, _, line = heapq.heappop(self._due)
            if at != line.due:  # put off, or over
                continue
            line.due = None
            assert line.session is not None
            timer = line.session.get_timer()
            if timer is not None and timer <= now:
                line.session.handle_timer(now)
            self._attend(line)
        self.upkeep.handle_timer(now)
        self._work(now)

    # --- what the owner asks for ---

    def call(
        self,
        target: Uri,
        flow: Flow,
        trunk: Trunk | None,
        from_: NameAddr,
        to: NameAddr,
        sdp: str | None,
        now: float,
        headers: Sequence[tuple[str, str]] = (),
        ring_seconds: float | None = None,
    ) -> Session:
        """Begin a call to `target` by `flow`. `sdp`: our offer; None asks for theirs."""
        digest = None
        if trunk is not None and trunk.password:
            digest = DigestClient(trunk.username, trunk.password, trunk.realm)
        line = Line(self, flow, trunk)
        session = Session.outgoing(
            line,
            target,
            from_,
            to,
            self.contact(flow, trunk),
            sdp,
            self._session_settings(trunk, ring_seconds),
            now,
            headers=headers,
            digest=digest,
        )
        self._begin(line, session)
        self._attend(line)
        return session

    def touched(self, session: Session, now: float) -> None:
        """The owner has asked something of the session."""
        line = self._lines.get((session.call_id, session.local_tag))
        if line is not None:
            self._attend(line)
        self._work(now)

    def use_targets(self, trunk: str, flows: Sequence[Flow], now: float) -> None:
        """Where a trunk's server is, in the order of trying: its calls are known by these
        addresses, and its registration goes there."""
        self.access.trust(trunk, {flow.remote[0] for flow in flows})
        self.upkeep.use_targets(trunk, flows, now)
        self._work(now)

    def register(self, registration: Registration, now: float) -> None:
        """Begin it and keep it up; `use_targets` has been called."""
        self.upkeep.register(registration, now)
        self._work(now)

    def unregister(self, now: float) -> None:
        self.upkeep.unregister(now)
        self._work(now)

    def registrations(self) -> list[RegistrationStatus]:
        return self.upkeep.registrations

    def located(self, hop: Uri, flow: Flow | None) -> None:
        """Where a next hop is that `Locate` asked for; None when it was not found, or what was
        found is old: it is asked for again when it is needed."""
        name = _hop_name(hop)
        self._looked_up.discard(name)
        if flow is None:
            self._located.pop(name, None)
            return
        if len(self._located) >= LOCATED_LIMIT:
            del self._located[next(iter(self._located))]
        self._located[name] = flow

    def contact(self, flow: Flow, trunk: Trunk | None) -> Uri:
        """Ours, as a peer at the far end of the flow reaches us."""
        host, port = self._address_of(flow)
        host, port = self.upkeep.seen_at(trunk, host) or (host, port)
        user = trunk.username if trunk is not None and trunk.username else None
        uri = Uri("sip", user=user, host=host, port=port)
        if flow.transport == "UDP":
            return uri
        return uri.with_parameter("transport", flow.transport.lower())

    def _sent_by(self, flow: Flow) -> str:
        host, port = self._address_of(flow)
        return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"

    def use(self, settings: SipSettings, now: float) -> None:
        """Other trunks and other rules, from now on; sessions go on as they began."""
        self._settings = settings
        self.access.use(settings)
        self.upkeep.use(settings, now)

    def _session_settings(self, trunk: Trunk | None, ring_seconds: float | None) -> SessionSettings:
        settings = SessionSettings(
            self._settings.user_agent, ring_seconds=ring_seconds or self._settings.ring_seconds
        )
        if trunk is None:
            return settings
        return replace(settings, session_seconds=trunk.session_seconds, reliable=trunk.reliable)

    # --- what lines share ---

    def send_request(self, request: Request, flow: Flow, now: float) -> ClientTransaction:
        way = self._large.way(request, flow, now)
        transaction = self._transactions.send_request(request, way, now)
        if way != flow:
            self._large.begun(transaction, flow, now)
        return transaction

    def send_ack(self, request: Request, flow: Flow) -> None:
        self._transactions.send_ack(request, flow)

    def respond(self, transaction: ServerTransaction, response: Response, now: float) -> None:
        _count(self.counts.responses, f"{response.status // 100}xx")
        self._transactions.respond(transaction, response, now)

    def cancel(self, transaction: ClientTransaction, now: float) -> None:
        self._transactions.cancel(transaction, now)

    def flow_to(self, transport: TransportName, remote: tuple[str, int]) -> Flow:
        return self._flow_to(transport, *remote)

    def found(self, hop: Uri) -> Flow | None:
        """Where a name was found to be, if somebody has looked."""
        return self._located.get(_hop_name(hop))

    def where(self, hop: Uri) -> Flow | None:
        """The same; if nobody has, it is looked up."""
        name = _hop_name(hop)
        known = self._located.get(name)
        if known is None and name not in self._looked_up and len(self._looked_up) < LOOKUPS_LIMIT:
            self._looked_up.add(name)
            self._events.append(Locate(hop))
        return known

    # --- whose a message is ---

    def _call_of(self, request: Request) -> Line | None:
        """The call that it names, whoever sent it; a CANCEL names an INVITE."""
        if request.method == "CANCEL":
            line = self._ringing.get((*server_key(request)[:-1], "INVITE"))
            if line is not None:
                return line
        return self._lines.get((request.call_id, request.to.tag))

    def _work(self, now: float) -> None:
        """Hand out what the transactions have, until all is at rest."""
        self._tend(now)
        while (event := self._transactions.next_event()) is not None:
            match event:
                case RequestReceived(transaction, request, flow):
                    self._take(transaction, request, flow, now)
                case ResponseReceived(transaction, response):
                    self._take_response(transaction, response, now)
                case AckReceived(request, _):
                    if line := self._lines.get((request.call_id, request.to.tag)):
                        line.of.receive_ack(request, now)
                        self._attend(line)
                case Cancelled(transaction, cancel):
                    line = self._ringing.get(transaction.key)
                    invite = transaction.request
                    if line := line or self._lines.get((invite.call_id, invite.to.tag)):
                        line.of.cancelled(transaction, now, cancel)
                        self._attend(line)
                case Failed(transaction, reason):
                    self._take_failure(transaction, reason, now)
            self._tend(now)

    def _tend(self, now: float) -> None:
        self.upkeep.tend(now)
        while (event := self.upkeep.next_event()) is not None:
            self._events.append(event)

    def _take(
        self, transaction: ServerTransaction, request: Request, flow: Flow, now: float
    ) -> None:
        if request.to.tag:
            line = self._lines.get((request.call_id, request.to.tag))
            if line is None:
                self._reply(transaction, 481, now)
            else:
                line.of.receive_request(request, transaction, now)
                self._attend(line)
            return
        fault = Refusal(482) if transaction.merged else self._fault(request)
        if fault is not None:
            self._reply(transaction, fault.status, now, fault.headers)
        else:
            self._take_call(transaction, request, flow, now)

    def _answer_at_once(self, request: Request, flow: Flow) -> None:
        """What begins nothing needs no transaction: a repeated question gets the same answer
        again. So nobody fills the table with questions and leaves no room for calls."""
        fault = self._fault(request)
        if fault is None and request.method != "OPTIONS":
            fault = Refusal(481)
        elif fault is None and not self.takes_calls():
            fault = Refusal(503, [("Retry-After", str(RETRY_AFTER_S))])
        elif fault is None:
            fault = Refusal(200, self._capabilities())
        self._answer(request, flow, fault.status, "", fault.headers)

    def _fault(self, request: Request) -> Refusal | None:
        """What is wrong with a request outside a dialog."""
        if request.method not in ALLOWED:
            allowed = [("Allow", ", ".join(ALLOWED))]
            return Refusal(405 if request.method in KNOWN else 501, allowed)
        if request.uri.scheme not in ("sip", "sips", "tel"):
            return Refusal(416)
        unknown = [tag for tag in request.require if tag not in EXTENSIONS]
        if unknown:
            return Refusal(420, [("Unsupported", ", ".join(unknown))])
        encoding = (request.headers.get("Content-Encoding") or "identity").strip().lower()
        if encoding != "identity":
            return Refusal(415, [("Accept-Encoding", "identity")])
        if request.method == "INVITE" and request.body and sdp_of(request) is None:
            return Refusal(415, [("Accept", "application/sdp")])
        if request.method == "INVITE" and not _takes_sdp(request):
            return Refusal(406)
        return None

    def _take_call(
        self, transaction: ServerTransaction, request: Request, flow: Flow, now: float
    ) -> None:
        replaced: Session | None = None
        if "Replaces" in request.headers:
            found = self._replaced(request, flow)
            if isinstance(found, int):
                self._reply(transaction, found, now)
                return
            replaced = found
        trunk = self.access.trunk_of(request, flow)
        line = Line(self, flow, trunk)
        contact, settings = self.contact(flow, trunk), self._session_settings(trunk, None)
        session = Session.incoming(line, transaction, request, contact, settings, now)
        line.invite = transaction.key
        self._begin(line, session)
        self._ringing[transaction.key] = line
        self._events.append(IncomingCall(session, request, flow, trunk, replaced))
        self._attend(line)

    def _replaced(self, request: Request, flow: Flow) -> Session | int:
        """The session that a Replaces names (RFC 3891 §3), or the status that says why not. Who
        knows a call's tags has not shown that it is theirs: only its trunk may replace it (§5)."""
        try:
            [value] = request.headers.all("Replaces")
            named = Replaces.parse(value)
        except ValueError:
            return 400
        line = self._lines.get((named.call_id, named.to_tag))
        if line is None or line.of.dialog is None or not self._may_replace(line, request, flow):
            return 481
        if line.of.dialog.id.remote_tag != named.from_tag:
            return 481
        if line.of.state in OVER:
            return 603
        if line.of.state not in (SessionState.ANSWERED, SessionState.ESTABLISHED):
            return 481
        return 486 if named.early_only else line.of

    def _may_replace(self, line: Line, request: Request, flow: Flow) -> bool:
        return self.access.is_party(line, flow) or self.access.trunk_of(request, flow) is line.trunk

    def _take_response(
        self, transaction: ClientTransaction, response: Response, now: float
    ) -> None:
        self._large.heard(transaction)
        if line := self._lines.get((response.call_id, response.from_.tag)):
            line.of.receive_response(transaction, response, now)
            self._attend(line)
        else:
            self.upkeep.answered(response, now)

    def _take_failure(
        self, transaction: ClientTransaction | ServerTransaction, reason: str, now: float
    ) -> None:
        if isinstance(transaction, ClientTransaction) and self._send_otherwise(transaction, now):
            return
        request = transaction.request
        line = self._ringing.get(transaction.key)
        line = line or self._lines.get((request.call_id, request.from_.tag))
        if line is not None:
            line.of.failed(transaction, reason, now)
            self._attend(line)
        else:
            self.upkeep.failed(request, reason, transaction.broken, now)

    def _send_otherwise(self, transaction: ClientTransaction, now: float) -> bool:
        """Whether a request that was not heard goes by another way now."""
        way = self._large.failed(transaction, now)
        if way is not None:
            self._transactions.send_anew(transaction, way, now)
        return way is not None

    def _begin(self, line: Line, session: Session) -> None:
        line.session = session
        self._lines[session.call_id, session.local_tag] = line

    def _attend(self, line: Line) -> None:
        """After anything was done with a session: its events, its timer, its end."""
        session = line.of
        while (event := session.next_event()) is not None:
            self._events.append(SessionHappened(session, event))
        if session.over:
            line.session = line.due = None
            self._lines.pop((session.call_id, session.local_tag), None)
            if line.invite is not None:
                self._ringing.pop(line.invite, None)
            return
        timer = session.get_timer()
        if timer is not None and (line.due is None or timer < line.due):
            line.due = timer
            heapq.heappush(self._due, (timer, next(self._order), line))
            if len(self._due) > 2 * len(self._lines) + STALE_ALARMS:
                self._due = [alarm for alarm in self._due if alarm[0] == alarm[2].due]
                heapq.heapify(self._due)

    # --- answers without a session ---

    def _capabilities(self) -> HeaderLines:
        """RFC 3261 §11.2."""
        return [
            ("Allow", ", ".join(ALLOWED)),
            ("Accept", "application/sdp"),
            ("Supported", ", ".join(EXTENSIONS)),
            ("User-Agent", self._settings.user_agent),
        ]

    def _reply(
        self, transaction: ServerTransaction, status: int, now: float, headers: HeaderLines = ()
    ) -> None:
        tag = secrets.token_hex(8)
        response = respond(transaction.request, status, to_tag=tag, headers=headers)
        self.respond(transaction, response, now)

    def _answer(
        self, request: Request, flow: Flow, status: int, reason: str = "", headers: HeaderLines = ()
    ) -> None:
        """An answer without state (RFC 3261 §8.2.7)."""
        _count(self.counts.responses, f"{status // 100}xx")
        self._transactions.refuse(request, flow, status, reason, headers)


def _takes_sdp(request: Request) -> bool:
    """Whether its sender can read our answer (RFC 3261 §20.1); without an Accept it can."""
    accepted = request.headers.all("Accept")
    kinds = {value.partition(";")[0].strip().lower() for value in accepted}
    return not accepted or bool(kinds & {"application/sdp", "application/*", "*/*"})


def _count(counts: dict[str, int], what: str) -> None:
    counts[what] = counts.get(what, 0) + 1


def _hop_name(hop: Uri) -> str:
    return f"{hop.scheme}:{hop.host}:{hop.port}:{hop.parameter('transport')}"
