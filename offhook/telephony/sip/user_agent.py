"""The SIP user agent core: dispatches messages, and answers what needs no session.

Sans-io: messages come in with their flow, messages with their flow go out, along with events: calls
and registrations. A request passes the access policy, then goes to its session; one outside a
dialog is checked in the order of RFC 3261 §8.2, and has a transaction only if it is an INVITE:

    unknown or unsupported method   405, 501
    unsupported URI scheme          416
    merged request                  482
    unsupported extension           420
    unsupported body                415
    SDP not acceptable              406
    INVITE                          a new session (481 if it replaces an unknown one)
    OPTIONS                         200 with our capabilities
    anything else                   481: its dialog does not exist

Max-Forwards is not checked: it only concerns proxies (RFC 3261 §16.3).
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
from offhook.telephony.sip.sessions.dialog import Dialog
from offhook.telephony.sip.sessions.dialog_requests import ALLOWED, KNOWN
from offhook.telephony.sip.sessions.refer import Replaces
from offhook.telephony.sip.sessions.session import Session
from offhook.telephony.sip.sessions.session_events import SessionEvent, SessionSettings
from offhook.telephony.sip.sessions.session_route import SessionRoute, is_numeric
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
MAX_LOCATED = 1000
"""Limit of next-hop names whose addresses are cached; the oldest are dropped."""
MAX_LOOKUPS = 32
"""Limit of simultaneous look-ups; further ones are skipped, since far ends choose the names."""
STALE_ALARMS = 64
"""Stale entries left in the heap before it is cleaned up."""


@dataclass(frozen=True)
class IncomingCall:
    """An inbound call; its session waits for an answer."""

    session: Session
    request: Request
    flow: Flow
    trunk: Trunk | None
    """None if anonymous calls are allowed."""
    replaces: Session | None
    """The call that this one replaces (RFC 3891)."""


@dataclass(frozen=True)
class SessionHappened:
    """An event of an existing call."""

    session: Session
    event: SessionEvent


@dataclass(frozen=True)
class Locate:
    """The address of this next hop is needed: see `UserAgent.located`."""

    hop: Uri


UserAgentEvent = IncomingCall | SessionHappened | RegistrationChanged | TrunkChanged | Locate


@dataclass
class MessageCounters:
    """Message counters since the start, for metrics."""

    requests: dict[str, int] = field(default_factory=dict)
    """Received, by method."""
    responses: dict[str, int] = field(default_factory=dict)
    """Sent and received, by class such as "4xx"."""
    malformed: int = 0
    """Messages that could not be parsed."""


class UserAgent:
    """The SIP user agent of one process. After every call that takes `now`, drain
    `messages_to_send` and `next_event`, and call `handle_timer` when `get_timer` says so."""

    def __init__(
        self,
        settings: SipSettings,
        address_of: Callable[[Flow], tuple[str, int]],
        flow_to: Callable[[TransportName, str, int], Flow],
    ) -> None:
        """`address_of` returns our host and port as the far end of a flow reaches them. `flow_to`
        returns the flow to a numeric address."""
        self.counts = MessageCounters()
        self.accepts_calls: Callable[[], bool] = lambda: True
        """Whether calls are accepted now. OPTIONS gets the status an INVITE would get (RFC 3261
        §11.2), so that a load balancer sends its calls elsewhere."""
        self._settings = settings
        self._address_of = address_of
        self._flow_to = flow_to
        self._transactions = Transactions(self._sent_by)
        self.access = AccessPolicy(settings, self._call_of, self._transactions.follows)
        self._routes: dict[tuple[str, str], SessionRoute] = {}
        """By Call-ID and our tag."""
        self._ringing: dict[Key, SessionRoute] = {}
        """By the transaction of an inbound INVITE, which a CANCEL refers to."""
        self.upkeep = Upkeep(settings, self.send_request, address_of, self._introduction)
        self._large = LargeRequests(self.upkeep.is_target, flow_to)
        self._located: dict[str, Flow] = {}
        """Flows of next hops that are names."""
        self._looked_up: set[str] = set()
        """Names being looked up."""
        self._wake_ups: list[tuple[float, int, SessionRoute]] = []
        """A heap of wake-up times of sessions, including some since postponed."""
        self._order = itertools.count()
        self._events: deque[UserAgentEvent] = deque()

    @property
    def sessions(self) -> int:
        return len(self._routes)

    @property
    def transactions(self) -> int:
        return len(self._transactions)

    @property
    def alarms(self) -> int:
        """Number of entries in the heap of session timers."""
        return len(self._wake_ups)

    @property
    def busy(self) -> bool:
        """Whether calls or registrations are still in progress."""
        return bool(self._routes) or self.upkeep.busy

    # --- input and output ---

    def receive(self, data: bytes, flow: Flow, now: float) -> None:
        """Process one received message. Never raises."""
        if not data.strip(b"\r\n\0"):  # a keep-alive (RFC 5626 §3.5.1) or similar
            return
        try:
            message = parse_message(data)
        except MessageError as error:
            self.counts.malformed += 1
            request = error.request
            if request is not None and self.access.authorize_malformed(flow, now):
                self._respond_stateless(request, flow, error.status, error.reason)
            return
        if isinstance(message, Response):
            _increment(self.counts.responses, f"{message.status // 100}xx")
            self._transactions.receive(message, flow, now)
        else:
            _increment(self.counts.requests, message.method if message.method in KNOWN else "other")
            decision = self.access.authorize(message, flow, now)
            if isinstance(decision, Refusal):
                self._respond_stateless(message, flow, decision.status, "", decision.headers)
            if decision is not True:
                return
            if not message.to.tag and message.method not in ("INVITE", "ACK", "CANCEL"):
                self._respond_at_once(message, flow)
                return
            self._transactions.receive(message, flow, now)
        self._process_events(now)

    def flow_failed(self, flow: Flow, now: float, why: str = "") -> None:
        """Handle a flow that failed: a message was not sent, or its connection is gone; `why` says
        the reason."""
        for route in self._routes.values():
            if route.flow == flow:
                route.lost = True
                self._look_up_next_hop(route)
        self.upkeep.flow_failed(flow, why, now)
        self._transactions.flow_failed(flow, now, why)
        self._process_events(now)

    def messages_to_send(self) -> list[tuple[bytes, Flow]]:
        return self._transactions.messages_to_send()

    def next_event(self) -> UserAgentEvent | None:
        return self._events.popleft() if self._events else None

    def get_timer(self) -> float | None:
        timers = [self._transactions.get_timer(), self.upkeep.get_timer(), self._large.get_timer()]
        while self._wake_ups and self._wake_ups[0][0] != self._wake_ups[0][2].wake_at:
            heapq.heappop(self._wake_ups)
        if self._wake_ups:
            timers.append(self._wake_ups[0][0])
        return min((t for t in timers if t is not None), default=None)

    def handle_timer(self, now: float) -> None:
        for transaction in self._large.overdue(now):
            self._send_by_fallback(transaction, now)
        self._transactions.handle_timer(now)
        while self._wake_ups and self._wake_ups[0][0] <= now:
            at, _, route = heapq.heappop(self._wake_ups)
            if at != route.wake_at:  # postponed, or ended
                continue
            route.wake_at = None
            assert route.session is not None
            timer = route.session.get_timer()
            if timer is not None and timer <= now:
                route.session.handle_timer(now)
            self._process_session(route)
        self.upkeep.handle_timer(now)
        self._process_events(now)

    # --- for the owner ---

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
        response_seconds: float | None = None,
    ) -> Session:
        """Place a call to `target` over `flow`. `sdp` is our offer; None asks for theirs. Without
        any response after `response_seconds` the call has failed."""
        digest = None
        if trunk is not None and trunk.password:
            digest = DigestClient(trunk.username, trunk.password, trunk.realm)
        route = SessionRoute(self, flow, trunk)
        session = Session.outgoing(
            route,
            target,
            from_,
            to,
            self.contact(flow, trunk),
            sdp,
            replace(self._session_settings(trunk, ring_seconds), response_seconds=response_seconds),
            now,
            headers=headers,
            digest=digest,
        )
        self._add_route(route, session)
        self._process_session(route)
        return session

    def restore(
        self, dialog: Dialog, we_called: bool, flow: Flow, trunk: Trunk, now: float
    ) -> Session:
        """Continue another server's call in its dialog, towards `flow`; a re-INVITE must follow."""
        digest = None
        if we_called and trunk.password:
            digest = DigestClient(trunk.username, trunk.password, trunk.realm)
        route = SessionRoute(self, flow, trunk)
        settings = self._session_settings(trunk, None)
        session = Session.restored(route, dialog, we_called, settings, now, digest)
        self._add_route(route, session)
        return session

    def session_changed(self, session: Session, now: float) -> None:
        """Process a session after its owner has called a method of it."""
        route = self._routes.get((session.call_id, session.local_tag))
        if route is not None:
            self._process_session(route)
        self._process_events(now)

    def use_targets(self, trunk: str, flows: Sequence[Flow], now: float) -> None:
        """Set the flows to a trunk's servers, in the order to try: they identify its calls, and its
        registration goes there."""
        self.access.trust(trunk, {flow.remote[0] for flow in flows})
        self.upkeep.use_targets(trunk, flows, now)
        self._process_events(now)

    def register(self, registration: Registration, now: float) -> None:
        """Start a registration and maintain it; `use_targets` must have been called."""
        self.upkeep.register(registration, now)
        self._process_events(now)

    def unregister(self, now: float) -> None:
        self.upkeep.unregister(now)
        self._process_events(now)

    def registrations(self) -> list[RegistrationStatus]:
        return self.upkeep.registrations

    def located(self, hop: Uri, flow: Flow | None) -> None:
        """Set the flow to a next hop that `Locate` asked for; None if it was not found or is
        outdated: it is looked up again when needed."""
        name = _hop_name(hop)
        self._looked_up.discard(name)
        if flow is None:
            self._located.pop(name, None)
            return
        if len(self._located) >= MAX_LOCATED:
            del self._located[next(iter(self._located))]
        self._located[name] = flow

    def address(self, flow: Flow, trunk: Trunk | None) -> tuple[str, int]:
        """Return our address, as the far end of the flow reaches us."""
        host, port = self._address_of(flow)
        return self.upkeep.public_address_of(trunk, host) or (host, port)

    def contact(self, flow: Flow, trunk: Trunk | None) -> Uri:
        """Return our Contact: our address, or the name by which the trunk knows us."""
        if trunk is not None and trunk.public_name:
            host, port = trunk.public_name, self._address_of(flow)[1]
        else:
            host, port = self.address(flow, trunk)
        user = trunk.username if trunk is not None and trunk.username else None
        uri = Uri("sip", user=user, host=host, port=port)
        if flow.transport == "UDP":
            return uri
        return uri.with_parameter("transport", flow.transport.lower())

    def _sent_by(self, flow: Flow) -> str:
        host, port = self._address_of(flow)
        for trunk in self._settings.trunks:
            if trunk.public_name and self.access.is_address_of(trunk, flow.remote[0]):
                return f"{trunk.public_name}:{port}"
        return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"

    def use(self, settings: SipSettings, now: float) -> None:
        """Apply other trunks and rules from now on; existing sessions are not affected."""
        self._settings = settings
        self.access.use(settings)
        self.upkeep.use(settings, now)
        self._process_events(now)

    def _session_settings(self, trunk: Trunk | None, ring_seconds: float | None) -> SessionSettings:
        settings = SessionSettings(
            self._settings.user_agent, ring_seconds=ring_seconds or self._settings.ring_seconds
        )
        if trunk is None:
            return settings
        seconds = trunk.session_seconds if trunk.reinvites else 0
        return replace(settings, session_seconds=seconds, reliable=trunk.reliable)

    # --- shared by session routes ---

    def send_request(self, request: Request, flow: Flow, now: float) -> ClientTransaction:
        way = self._large.flow_for(request, flow, now)
        transaction = self._transactions.send_request(request, way, now)
        if way != flow:
            self._large.sent_over_tcp(transaction, flow, now)
        return transaction

    def send_ack(self, request: Request, flow: Flow) -> None:
        self._transactions.send_ack(request, flow)

    def respond(self, transaction: ServerTransaction, response: Response, now: float) -> None:
        _increment(self.counts.responses, f"{response.status // 100}xx")
        self._transactions.respond(transaction, response, now)

    def cancel(self, transaction: ClientTransaction, now: float) -> None:
        self._transactions.cancel(transaction, now)

    def flow_to(self, transport: TransportName, remote: tuple[str, int]) -> Flow:
        return self._flow_to(transport, *remote)

    def cached_flow(self, hop: Uri) -> Flow | None:
        """Return the flow to a name, if it has been looked up."""
        return self._located.get(_hop_name(hop))

    def look_up(self, hop: Uri) -> Flow | None:
        """Return the flow to a name; if unknown, start a look-up."""
        name = _hop_name(hop)
        known = self._located.get(name)
        if known is None and name not in self._looked_up and len(self._looked_up) < MAX_LOOKUPS:
            self._looked_up.add(name)
            self._events.append(Locate(hop))
        return known

    def _look_up_next_hop(self, route: SessionRoute) -> None:
        """Look up where the requests of a call go whose connection is gone: the far end may well
        accept another."""
        dialog = route.of.dialog
        connectable = route.flow.transport in ("TCP", "TLS")
        if dialog is not None and connectable and not is_numeric(dialog.next_hop.host):
            self.look_up(dialog.next_hop)

    # --- dispatch ---

    def _call_of(self, request: Request) -> SessionRoute | None:
        """The call a request belongs to, whoever sent it; a CANCEL belongs to an INVITE."""
        if request.method == "CANCEL":
            route = self._ringing.get((*server_key(request)[:-1], "INVITE"))
            if route is not None:
                return route
        return self._routes.get((request.call_id, request.to.tag))

    def _process_events(self, now: float) -> None:
        """Process events of the transactions until there are no more."""
        self._update_upkeep(now)
        while (event := self._transactions.next_event()) is not None:
            match event:
                case RequestReceived(transaction, request, flow):
                    self._handle_request(transaction, request, flow, now)
                case ResponseReceived(transaction, response):
                    self._handle_response(transaction, response, now)
                case AckReceived(request, _):
                    if route := self._routes.get((request.call_id, request.to.tag)):
                        route.of.receive_ack(request, now)
                        self._process_session(route)
                case Cancelled(transaction, cancel):
                    route = self._ringing.get(transaction.key)
                    invite = transaction.request
                    if route := route or self._routes.get((invite.call_id, invite.to.tag)):
                        route.of.cancelled(transaction, now, cancel)
                        self._process_session(route)
                case Failed(transaction, reason):
                    self._handle_failure(transaction, reason, now)
            self._update_upkeep(now)

    def _update_upkeep(self, now: float) -> None:
        self.upkeep.update(now)
        while (event := self.upkeep.next_event()) is not None:
            self._events.append(event)

    def _handle_request(
        self, transaction: ServerTransaction, request: Request, flow: Flow, now: float
    ) -> None:
        if request.to.tag:
            route = self._routes.get((request.call_id, request.to.tag))
            if route is None:
                self._reply(transaction, 481, now)
            else:
                if route.of.receive_request(request, transaction, now):
                    route.heard(request, flow)
                self._process_session(route)
            return
        fault = Refusal(482) if transaction.merged else self._request_error(request)
        if fault is not None:
            self._reply(transaction, fault.status, now, fault.headers)
        else:
            self._start_incoming(transaction, request, flow, now)

    def _respond_at_once(self, request: Request, flow: Flow) -> None:
        """Respond to a request that starts nothing, without a transaction: a retransmission gets
        the same response. So nobody can fill the table with queries and leave no room for calls."""
        fault = self._request_error(request)
        if fault is None and request.method != "OPTIONS":
            fault = Refusal(481)
        elif fault is None and not self.accepts_calls():
            fault = Refusal(503, [("Retry-After", str(RETRY_AFTER_S))])
        elif fault is None:
            fault = Refusal(200, self._capabilities())
        self._respond_stateless(request, flow, fault.status, "", fault.headers)

    def _request_error(self, request: Request) -> Refusal | None:
        """Check a request outside a dialog. Returns the rejection, or None."""
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
        if request.method == "INVITE" and not _accepts_sdp(request):
            return Refusal(406)
        return None

    def _start_incoming(
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
        route = SessionRoute(self, flow, trunk)
        contact, settings = self.contact(flow, trunk), self._session_settings(trunk, None)
        session = Session.incoming(route, transaction, request, contact, settings, now)
        route.heard(request, flow)
        route.invite = transaction.key
        self._add_route(route, session)
        self._ringing[transaction.key] = route
        self._events.append(IncomingCall(session, request, flow, trunk, replaced))
        self._process_session(route)

    def _replaced(self, request: Request, flow: Flow) -> Session | int:
        """The session that Replaces identifies (RFC 3891 §3), or the status that rejects it.
        Knowing a call's tags proves nothing: only its own trunk may replace it (§5)."""
        try:
            [value] = request.headers.all("Replaces")
            named = Replaces.parse(value)
        except ValueError:
            return 400
        route = self._routes.get((named.call_id, named.to_tag))
        if route is None or route.of.dialog is None or not self._may_replace(route, request, flow):
            return 481
        if route.of.dialog.id.remote_tag != named.from_tag:
            return 481
        if route.of.state in OVER:
            return 603
        if route.of.state not in (SessionState.ANSWERED, SessionState.ESTABLISHED):
            return 481
        return 486 if named.early_only else route.of

    def _may_replace(self, route: SessionRoute, request: Request, flow: Flow) -> bool:
        return (
            self.access.is_party(route, flow) or self.access.trunk_of(request, flow) is route.trunk
        )

    def _handle_response(
        self, transaction: ClientTransaction, response: Response, now: float
    ) -> None:
        self._large.answered(transaction)
        if route := self._routes.get((response.call_id, response.from_.tag)):
            route.of.receive_response(transaction, response, now)
            self._process_session(route)
        else:
            self.upkeep.answered(response, now)

    def _handle_failure(
        self, transaction: ClientTransaction | ServerTransaction, reason: str, now: float
    ) -> None:
        if isinstance(transaction, ClientTransaction) and self._send_by_fallback(transaction, now):
            return
        request = transaction.request
        route = self._ringing.get(transaction.key)
        route = route or self._routes.get((request.call_id, request.from_.tag))
        if route is not None:
            route.of.failed(transaction, reason, now)
            self._process_session(route)
        else:
            self.upkeep.failed(request, reason, transaction.broken, now)

    def _send_by_fallback(self, transaction: ClientTransaction, now: float) -> bool:
        """Resend an unanswered request over another flow. Returns whether there is one."""
        way = self._large.failed(transaction, now)
        if way is not None:
            self._transactions.resend(transaction, way, now)
        return way is not None

    def _add_route(self, route: SessionRoute, session: Session) -> None:
        route.session = session
        self._routes[session.call_id, session.local_tag] = route

    def _process_session(self, route: SessionRoute) -> None:
        """Process a session after any activity: its events, its timer, its end."""
        session = route.of
        while (event := session.next_event()) is not None:
            self._events.append(SessionHappened(session, event))
        if session.over:
            route.session = route.wake_at = None
            self._routes.pop((session.call_id, session.local_tag), None)
            if route.invite is not None:
                self._ringing.pop(route.invite, None)
            return
        timer = session.get_timer()
        if timer is not None and (route.wake_at is None or timer < route.wake_at):
            route.wake_at = timer
            heapq.heappush(self._wake_ups, (timer, next(self._order), route))
            if len(self._wake_ups) > 2 * len(self._routes) + STALE_ALARMS:
                self._wake_ups = [alarm for alarm in self._wake_ups if alarm[0] == alarm[2].wake_at]
                heapq.heapify(self._wake_ups)

    # --- stateless responses ---

    def _introduction(self, flow: Flow, trunk: Trunk) -> list[tuple[str, str]]:
        """Headers of our OPTIONS: where we are reached, and by which methods."""
        return [("Contact", f"<{self.contact(flow, trunk)}>"), ("Allow", ", ".join(ALLOWED))]

    def _capabilities(self) -> HeaderLines:
        """Headers that describe our capabilities (RFC 3261 §11.2)."""
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

    def _respond_stateless(
        self, request: Request, flow: Flow, status: int, reason: str = "", headers: HeaderLines = ()
    ) -> None:
        """Send a stateless response (RFC 3261 §8.2.7)."""
        _increment(self.counts.responses, f"{status // 100}xx")
        self._transactions.refuse(request, flow, status, reason, headers)


def _accepts_sdp(request: Request) -> bool:
    """Whether the sender accepts SDP (RFC 3261 §20.1); without an Accept header it does."""
    accepted = request.headers.all("Accept")
    kinds = {value.partition(";")[0].strip().lower() for value in accepted}
    return not accepted or bool(kinds & {"application/sdp", "application/*", "*/*"})


def _increment(counts: dict[str, int], what: str) -> None:
    counts[what] = counts.get(what, 0) + 1


def _hop_name(hop: Uri) -> str:
    return f"{hop.scheme}:{hop.host}:{hop.port}:{hop.parameter('transport')}"
