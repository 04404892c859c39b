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

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from offhook.telephony.sip.admission.access_policy import AccessPolicy, Refusal
from offhook.telephony.sip.agent.new_requests import (
    capabilities,
    new_request_error,
    replaced_session,
)
from offhook.telephony.sip.agent.own_addresses import OwnAddresses
from offhook.telephony.sip.agent.session_routes import SessionRoutes
from offhook.telephony.sip.auth.digest import DigestClient
from offhook.telephony.sip.extensions.phones import Phones
from offhook.telephony.sip.messages.flow import Flow, TransportName
from offhook.telephony.sip.messages.headers import NameAddr
from offhook.telephony.sip.messages.message import (
    MessageError,
    Request,
    Response,
    parse_message,
)
from offhook.telephony.sip.messages.uri import Uri
from offhook.telephony.sip.network.latest_flows import LatestFlows, Party
from offhook.telephony.sip.network.next_hops import NextHops
from offhook.telephony.sip.sessions.dialog import Dialog
from offhook.telephony.sip.sessions.dialog_requests import KNOWN
from offhook.telephony.sip.sessions.session import Session
from offhook.telephony.sip.sessions.session_events import SessionEvent, SessionSettings
from offhook.telephony.sip.sessions.session_route import SessionRoute
from offhook.telephony.sip.siprec.recording_session import begins_recording
from offhook.telephony.sip.transactions.message_sender import MessageCounters, MessageSender
from offhook.telephony.sip.transactions.transaction import ClientTransaction, ServerTransaction
from offhook.telephony.sip.transactions.transactions import (
    RETRY_AFTER_S,
    AckReceived,
    Cancelled,
    Failed,
    RequestReceived,
    ResponseReceived,
    Transactions,
)
from offhook.telephony.sip.trunks.keep_alive import KeepAlives, is_keep_alive
from offhook.telephony.sip.trunks.registration import Registration
from offhook.telephony.sip.trunks.registrations import RegistrationChanged, Registrations
from offhook.telephony.sip.trunks.trunk_servers import TrunkServers
from offhook.telephony.sip.trunks.trunks import SipSettings, Trunk
from offhook.telephony.sip.trunks.upkeep import TrunkChanged, Upkeep

MAKE_CALLS = frozenset({"INVITE", "ACK", "CANCEL"})
"""Methods of requests outside a dialog that start a call, or belong to one that starts."""


@dataclass(frozen=True)
class CallReceived:
    """An inbound call; its session waits for an answer."""

    session: Session
    request: Request
    flow: Flow
    trunk: Trunk | None
    """None if anonymous calls are allowed."""
    replaces: Session | None
    """The call that this one replaces (RFC 3891)."""
    recording: bool = False
    """The caller is a recording client, whose call we record (RFC 7866)."""


@dataclass(frozen=True)
class SessionHappened:
    """An event of an existing call."""

    session: Session
    event: SessionEvent


@dataclass(frozen=True)
class Locate:
    """The address of this next hop is needed: see `NextHops.located`."""

    hop: Uri


@dataclass(frozen=True)
class ExtensionChanged:
    """A phone of an extension has come or gone."""

    number: str


UserAgentEvent = (
    CallReceived | SessionHappened | RegistrationChanged | TrunkChanged | ExtensionChanged | Locate
)


class UserAgent:
    """The SIP user agent of one process. After every call that takes `now`, drain
    `messages_to_send` and `next_event`, and call `handle_timer` when `get_timer` says so."""

    def __init__(
        self,
        settings: SipSettings,
        address_of: Callable[[Flow], tuple[str, int]],
        flow_to: Callable[[TransportName, str, int], Flow],
        later_flows: Callable[[Flow], Sequence[Flow]] = lambda flow: (),
    ) -> None:
        """`address_of` returns our host and port as the far end of a flow reaches them. `flow_to`
        returns the flow to a numeric address, `later_flows` those of connections opened to us from
        the same address as a flow, and after it."""
        self.counts = MessageCounters()
        self.accepts_calls: Callable[[], bool] = lambda: True
        """Whether calls are accepted now. OPTIONS gets the status an INVITE would get (RFC 3261
        §11.2), so that a load balancer sends its calls elsewhere."""
        self._settings = settings
        self._address_of = address_of
        self._events: deque[UserAgentEvent] = deque()
        self._transactions = Transactions(self._sent_by)
        servers = TrunkServers()
        self._sender = MessageSender(
            self._transactions, self.counts, servers.is_server, flow_to, later_flows
        )
        self.routes = SessionRoutes()
        self._flows = LatestFlows()
        self.next_hops = NextHops(flow_to, lambda hop: self._events.append(Locate(hop)))
        known = self._transactions.table.follows
        self.phones = Phones(
            settings,
            self._sender,
            lambda flow: self.addresses.contact(flow, None),
            lambda number: self._events.append(ExtensionChanged(number)),
        )
        registrar = self.phones.registrar
        self.access = AccessPolicy(settings, self.routes.of_request, known, registrar.has_flow)
        send = self._sender.request
        registrations = Registrations(settings, servers, send, address_of)
        self.addresses = OwnAddresses(address_of, registrations)
        keep_alives = KeepAlives(
            lambda: len(self.routes) + len(registrar),
            lambda: self.routes.behind_nat() | registrar.behind_nat(),
        )
        introduction = self.addresses.introduction
        self.upkeep = Upkeep(settings, servers, registrations, send, introduction, keep_alives)

    @property
    def sessions(self) -> int:
        return len(self.routes)

    @property
    def transactions(self) -> int:
        return len(self._transactions)

    @property
    def busy(self) -> bool:
        """Whether calls or registrations are still in progress."""
        return bool(len(self.routes)) or self.upkeep.registrations.busy

    # --- input and output ---

    def receive(self, data: bytes, flow: Flow, now: float) -> None:
        """Process one received message. Never raises."""
        if is_keep_alive(data):
            self._flows.seen(flow, None)
            return
        sender = self._sender
        try:
            message = parse_message(data)
        except MessageError as error:
            self.counts.malformed += 1
            request = error.request
            if request is not None and self.access.authorize_malformed(flow, now):
                sender.respond_stateless(request, flow, error.status, error.reason)
            return
        if isinstance(message, Response):
            self.counts.add_response(message.status)
            self._transactions.receive(message, flow, now)
        else:
            self.counts.add_request(message.method if message.method in KNOWN else "other")
            if self._flows.is_known(flow):
                self._flows.seen(flow, Party.of_request(message))
            decision = self.access.authorize(message, flow, now)
            if isinstance(decision, Refusal):
                sender.respond_stateless(message, flow, decision.status, "", decision.headers)
            if decision is not True:
                return
            of_phone = self.access.serves_phones(message.method)
            if of_phone and message.method == "REGISTER":
                number = self.access.extension_of(message, flow)
                self.phones.register(message, number, flow, now)
            elif not message.to.tag and message.method not in MAKE_CALLS and not of_phone:
                self._respond_at_once(message, flow)
                return
            else:
                self._transactions.receive(message, flow, now)
        self._process_events(now)

    def flow_failed(self, flow: Flow, now: float, why: str = "") -> None:
        """Handle a flow that failed: a message was not sent, or its connection is gone; `why` says
        the reason."""
        for route in self.routes.over(flow):
            route.connection_lost()
        self.phones.flow_failed(flow)
        self.upkeep.flow_failed(flow, why, now)
        self._transactions.flow_failed(flow, now, why)
        self._process_events(now)

    def messages_to_send(self) -> list[tuple[bytes, Flow]]:
        return self._transactions.messages_to_send()

    def next_event(self) -> UserAgentEvent | None:
        return self._events.popleft() if self._events else None

    def get_timer(self) -> float | None:
        parts = self._transactions, self.upkeep, self._sender, self.routes, self.phones
        timers = (part.get_timer() for part in parts)
        return min((t for t in timers if t is not None), default=None)

    def handle_timer(self, now: float) -> None:
        self._sender.handle_timer(now)
        self._transactions.handle_timer(now)
        for route in self.routes.due(now):
            timer = route.of.get_timer()
            if timer is not None and timer <= now:
                route.of.handle_timer(now)
            self._process_session(route)
        self.upkeep.handle_timer(now)
        self.phones.handle_timer(now)
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
        settings = _session_settings(self._settings, trunk, ring_seconds)
        route = SessionRoute(self._sender, self.next_hops, self._flows, flow, trunk)
        session = Session.outgoing(
            route,
            target,
            from_,
            to,
            self.addresses.contact(flow, trunk),
            sdp,
            replace(settings, response_seconds=response_seconds),
            now,
            headers=headers,
            digest=digest,
        )
        self.routes.add(route, session)
        self._process_session(route)
        return session

    def restore(
        self, dialog: Dialog, we_called: bool, flow: Flow, trunk: Trunk, now: float
    ) -> Session:
        """Continue another server's call in its dialog, towards `flow`; a re-INVITE must follow."""
        digest = None
        if we_called and trunk.password:
            digest = DigestClient(trunk.username, trunk.password, trunk.realm)
        route = SessionRoute(self._sender, self.next_hops, self._flows, flow, trunk)
        settings = _session_settings(self._settings, trunk)
        session = Session.restored(route, dialog, we_called, settings, now, digest)
        self.routes.add(route, session)
        return session

    def session_changed(self, session: Session, now: float) -> None:
        """Process a session after its owner has called a method of it."""
        route = self.routes.of(session.call_id, session.local_tag)
        if route is not None:
            self._process_session(route)
        self._process_events(now)

    def use_targets(self, trunk: str, flows: Sequence[Flow], now: float) -> None:
        """Set the flows to a trunk's servers, in the order to try: they identify its calls, and its
        registration goes there."""
        self.access.trust(trunk, {flow.remote[0] for flow in flows})
        self.upkeep.use_servers(trunk, flows, now)
        self._process_events(now)

    def register(self, registration: Registration, now: float) -> None:
        """Start a registration and maintain it; `use_targets` must have been called."""
        self.upkeep.registrations.register(registration, now)
        self._process_events(now)

    def unregister(self, now: float) -> None:
        """Remove all registrations, and stop probing the trunks' servers."""
        self.upkeep.close(now)
        self._process_events(now)

    def use(self, settings: SipSettings, now: float) -> None:
        """Apply other trunks and rules from now on; existing sessions are not affected."""
        self._settings = settings
        self.access.use(settings)
        self.phones.use(settings)
        self.upkeep.use(settings, now)
        self._process_events(now)

    def _sent_by(self, flow: Flow) -> str:
        host, port = self._address_of(flow)
        for trunk in self._settings.trunks:
            if trunk.public_name and self.access.is_address_of(trunk, flow.remote[0]):
                return f"{trunk.public_name}:{port}"
        return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"

    # --- dispatch ---

    def _process_events(self, now: float) -> None:
        """Process events of the upkeep and the transactions until there are no more."""
        while True:
            self.upkeep.update(now)
            while (change := self.upkeep.next_event()) is not None:
                self._events.append(change)
            match self._transactions.next_event():
                case None:
                    return
                case RequestReceived(transaction, request, flow):
                    self._handle_request(transaction, request, flow, now)
                case ResponseReceived(transaction, response):
                    self._handle_response(transaction, response, now)
                case AckReceived(request, _):
                    if route := self.routes.of(request.call_id, request.to.tag):
                        route.of.requests.receive_ack(request, now)
                        self._process_session(route)
                case Cancelled(transaction, cancel):
                    route = self.routes.of_invite(transaction.key)
                    invite = transaction.request
                    if route := route or self.routes.of(invite.call_id, invite.to.tag):
                        route.of.requests.cancelled(transaction, now, cancel)
                        self._process_session(route)
                case Failed(transaction, reason):
                    self._handle_failure(transaction, reason, now)

    def _handle_request(
        self, transaction: ServerTransaction, request: Request, flow: Flow, now: float
    ) -> None:
        if request.method == "SUBSCRIBE" and self.access.serves_phones("SUBSCRIBE"):
            self.phones.subscribe(transaction, self.access.extension_of(request, flow), flow, now)
            return
        if request.to.tag:
            route = self.routes.of(request.call_id, request.to.tag)
            if route is None:
                self._sender.reply(transaction, 481, now)
            else:
                if route.of.requests.receive(request, transaction, now):
                    route.follow(request, flow)
                self._process_session(route)
            return
        recorder = _may_record(self.access.trunk_of(request, flow))
        error = new_request_error(request, recorder=recorder)
        fault = Refusal(482) if transaction.merged else error
        if fault is not None:
            self._sender.reply(transaction, fault.status, now, fault.headers)
        else:
            self._start_incoming(transaction, request, flow, now)

    def _respond_at_once(self, request: Request, flow: Flow) -> None:
        """Respond to a request that starts nothing, without a transaction: a retransmission gets
        the same response. So nobody can fill the table with queries and leave no room for calls."""
        recorder = _may_record(self.access.trunk_of(request, flow))
        fault = new_request_error(request, recorder=recorder)
        if fault is None and request.method != "OPTIONS":
            fault = Refusal(481)
        elif fault is None and not self.accepts_calls():
            fault = Refusal(503, [("Retry-After", str(RETRY_AFTER_S))])
        elif fault is None:
            fault = Refusal(200, capabilities(self._settings.user_agent, recorder=recorder))
        self._sender.respond_stateless(request, flow, fault.status, "", fault.headers)

    def _start_incoming(
        self, transaction: ServerTransaction, request: Request, flow: Flow, now: float
    ) -> None:
        replaced: Session | None = None
        if "Replaces" in request.headers:
            found = replaced_session(request, flow, self.routes, self.access.may_replace)
            if isinstance(found, int):
                self._sender.reply(transaction, found, now)
                return
            replaced = found
        trunk = self.access.trunk_of(request, flow)
        route = SessionRoute(self._sender, self.next_hops, self._flows, flow, trunk)
        contact = self.addresses.contact(flow, trunk)
        settings = _session_settings(self._settings, trunk)
        recording = begins_recording(request, trunk)
        settings = replace(settings, recorder=recording)
        session = Session.incoming(route, transaction, request, contact, settings, now)
        route.follow(request, flow)
        self.routes.add(route, session, transaction.key)
        self._events.append(CallReceived(session, request, flow, trunk, replaced, recording))
        self._process_session(route)

    def _handle_response(
        self, transaction: ClientTransaction, response: Response, now: float
    ) -> None:
        if not self._sender.answered(transaction, response, now):
            return
        if route := self.routes.of(response.call_id, response.from_.tag):
            route.of.responses.receive(transaction, response, now)
            self._process_session(route)
        else:
            if response.status >= 400:
                self.phones.refused(response.cseq.method, response.call_id)
            self.upkeep.answered(response, now)

    def _handle_failure(
        self, transaction: ClientTransaction | ServerTransaction, reason: str, now: float
    ) -> None:
        if isinstance(transaction, ClientTransaction) and self._sender.fall_back(transaction, now):
            return
        request = transaction.request
        route = self.routes.of_invite(transaction.key)
        route = route or self.routes.of(request.call_id, request.from_.tag)
        if route is not None:
            route.of.responses.failed(transaction, reason, now)
            self._process_session(route)
        else:
            self.phones.refused(request.method, request.call_id)
            self.upkeep.failed(request, reason, transaction.broken, now)

    def _process_session(self, route: SessionRoute) -> None:
        """Process a session after any activity: its events, its timer, its end."""
        session = route.of
        while (event := session.next_event()) is not None:
            self._events.append(SessionHappened(session, event))
        self.routes.update(route)


def _may_record(trunk: Trunk | None) -> bool:
    return trunk is not None and trunk.siprec


def _session_settings(
    settings: SipSettings, trunk: Trunk | None, ring_seconds: float | None = None
) -> SessionSettings:
    session = SessionSettings(
        settings.user_agent, ring_seconds=ring_seconds or settings.ring_seconds
    )
    if trunk is None:
        return session
    seconds = trunk.session_seconds if trunk.reinvites else 0
    return replace(session, session_seconds=seconds, reliable=trunk.reliable)
