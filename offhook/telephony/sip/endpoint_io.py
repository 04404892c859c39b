"""The SIP edge of one process: sockets and timers around the user agent, and its calls.

Everything SIP runs on the event loop: a message comes in, the user agent says what it means and
what is to be sent, and `_work` does that at once. What takes time (opening media, DNS, the
conversation) is a task of the call it belongs to.
"""

import asyncio
import ssl
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from ipaddress import ip_address
from time import monotonic
from typing import Any, Protocol

from loguru import logger

from offhook.media.clock_io import PacketClock
from offhook.media.codecs.opus import OpusSettings
from offhook.media.end_reason import End
from offhook.media.leg import CallInfo, Leg, LegStatistics
from offhook.media.tasks_io import TaskSet
from offhook.telephony.call_progress_io import DialError
from offhook.telephony.call_record import CallRecord
from offhook.telephony.sip.call_io import SipCall
from offhook.telephony.sip.media.dtls_io import local_fingerprint
from offhook.telephony.sip.media.leg_io import SipLeg
from offhook.telephony.sip.media.media_plan import MediaSettings
from offhook.telephony.sip.media.rtp_ports_io import RtpPorts
from offhook.telephony.sip.messages.flow import Flow, TransportName
from offhook.telephony.sip.messages.grammar import SipError
from offhook.telephony.sip.messages.headers import NameAddr
from offhook.telephony.sip.messages.message import Request
from offhook.telephony.sip.messages.uri import Uri
from offhook.telephony.sip.network.resolver_io import ResolveError, Resolver
from offhook.telephony.sip.network.stream_io import trusting
from offhook.telephony.sip.network.transport_io import Transports
from offhook.telephony.sip.network.udp_io import LocalAddresses, listening_hosts
from offhook.telephony.sip.sessions.ending import printable, shown
from offhook.telephony.sip.sessions.session import Session
from offhook.telephony.sip.trace import Trace
from offhook.telephony.sip.transfer_io import Transfers
from offhook.telephony.sip.trunks.keep_alive import KEEP_ALIVE
from offhook.telephony.sip.trunks.registration import Registration, RegistrationStatus
from offhook.telephony.sip.trunks.trunk_watch import TrunkState
from offhook.telephony.sip.trunks.trunks import (
    SipSettings,
    Trunk,
    caller_of,
    presented,
    route,
)
from offhook.telephony.sip.trunks.upkeep import RegistrationChanged, TrunkChanged
from offhook.telephony.sip.user_agent import (
    IncomingCall,
    Locate,
    SessionHappened,
    UserAgent,
)

RETRY_AFTER_S = 10
"""What a caller is told who comes when all lines are busy."""
RESOLVE_AGAIN_S = 300.0
"""How often the addresses of the trunks' servers are looked up anew..."""
RESOLVE_RETRY_S = 30.0
"""...and after a look-up that failed."""
WATCH_S = 1.0
"""How often it is looked whether a call's media have fallen silent."""
NOISE_TRACE_S = 1.0
"""Between two messages of strangers that got no answer and are traced all the same: one is enough
to see why, and a scanner's thousands must not wash out the calls."""
END_S = 2.0
"""For the far ends and the registrars to answer our goodbye."""
TRY_NEXT = frozenset({408, 500, 502, 503, 504})
"""Of a server that has not rung yet: another one of the trunk may do better (RFC 3263 §4.3)."""


class Host(Protocol):
    """What the edge gives the endpoint."""

    clock: PacketClock
    opus: OpusSettings

    def admit(self) -> None:
        """Raises what says in a word why no more calls are taken: "full", "late"."""

    async def take_call(self, leg: Leg, agent: str) -> None:
        """Run the conversation to its end."""

    def webrtc_leg(self, call_id: str) -> Leg:
        """A line that answers a browser's offer."""

    def record(self, record: CallRecord) -> None:
        """A call is over."""


@dataclass(frozen=True)
class Dial:
    """A call to be placed."""

    to: str
    """A number, or a SIP URI."""
    trunk: str = ""
    """By name; "" for the first that has a server."""
    caller: str = ""
    """Number to show; "" for the trunk's."""
    caller_name: str = ""
    agent: str = ""
    ring_seconds: float = 60.0
    variables: Mapping[str, Any] = field(default_factory=dict)
    headers: Mapping[str, str] = field(default_factory=dict)
    """To be put into the INVITE, as X-Order: 17."""


class SipEndpoint:
    """Takes and places calls."""

    def __init__(self, settings: SipSettings, host: Host) -> None:
        self.trace = Trace(settings.trace_messages)
        self.calls: dict[str, SipCall] = {}
        """By our own call id, from the INVITE to the end of the conversation."""
        self.bound: list[tuple[str, str, int]] = []
        """Transport, host and port of each listener."""
        self.on_setup: Callable[[float], None] = lambda seconds: None
        """Told of each call that was answered how many seconds that took."""
        self._settings = settings
        self._host = host
        self._transports = Transports(self._received, self._failed)
        self._agent = UserAgent(settings, self._address_of, self._transports.flow_to)
        self._resolver = Resolver()
        self._local_addresses = LocalAddresses()
        self._nowhere: dict[str, str] = {}
        """Trunks whose server was not found yet → why."""
        self._ports = {
            ":" in host: RtpPorts(host, *settings.rtp_ports)
            for host in listening_hosts(settings.host)
        }
        """Whether they are of IPv6 → the ports of media."""
        self._transfers = Transfers(self, host.clock)
        self._by_session: dict[Session, SipCall] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at: float | None = None
        self._working = False
        self._noise_traced_at = 0.0
        self._tasks = TaskSet()
        self._looking_up: dict[str, asyncio.Task[None]] = {}
        """Of the tasks those that look trunks up, by their names."""
        self._tls: ssl.SSLContext | None = None
        """Of the listeners."""
        self._closing = False

    # --- life ---

    async def start(self) -> None:
        """Listen, look the trunks up, register. Raises OSError, SipError."""
        s = self._settings
        if s.authorities is not None:
            self._transports.trust(trusting(s.authorities))
        local_fingerprint()  # the first call shall not wait for the certificate
        context = self._tls_context(s) if s.tls is not None or s.wss is not None else None
        self._tls = context
        ports: dict[TransportName, int | None] = {
            "UDP": s.udp,
            "TCP": s.tcp,
            "TLS": s.tls,
            "WS": s.ws,
            "WSS": s.wss,
        }
        for transport, port in ports.items():
            if port is not None:
                secured = context if transport in ("TLS", "WSS") else None
                for host in listening_hosts(s.host):
                    bound = await self._transports.listen(transport, host, port, secured)
                    self.bound.append((transport, *bound))
                    port = bound[1]
        for trunk in s.trunks:
            self._look_up(trunk)
        self._tasks.spawn(self._watch_media(), "sip media watch")
        listening = ", ".join(f"{t.lower()} {h}:{p}" for t, h, p in self.bound)
        logger.info("phones reach me by SIP at {}", listening or "no transport")

    async def close(self) -> None:
        """Hang up what is left, take the registrations back, close."""
        self._closing = True
        now = monotonic()
        for call in tuple(self.calls.values()):
            call.end(End.SHUTTING_DOWN, 503)
        self._agent.unregister(now)
        self._work()
        deadline = now + END_S
        while (self.calls or self._agent.busy) and monotonic() < deadline:
            await asyncio.sleep(0.02)
        await self._transfers.close()
        await self._tasks.close()
        for call in tuple(self.calls.values()):
            await call.close()
        if self._timer is not None:
            self._timer.cancel()
        await self._transports.close()

    def reload(self, settings: SipSettings) -> None:
        """Use other trunks, routes and rules, and read the certificate again. Calls in progress
        and listeners stay as they are. Raises SipError, and then nothing has changed."""
        if self._tls is not None:
            self._tls_context(settings)  # a pair that does not fit must not reach the one in use
            self._tls.load_cert_chain(str(settings.certificate), str(settings.key))
        before = {trunk.name: trunk for trunk in self._settings.trunks}
        there = {trunk.name: trunk for trunk in settings.trunks}
        self._settings = settings
        for name in [n for n, trunk in before.items() if there.get(n) != trunk]:
            if (looking_up := self._looking_up.pop(name, None)) is not None:
                looking_up.cancel()
            self._nowhere.pop(name, None)
        self._agent.use(settings, monotonic())
        for name, trunk in there.items():
            if before.get(name) != trunk:
                self._look_up(trunk)
        self._work()

    def _look_up(self, trunk: Trunk) -> None:
        if trunk.server:
            task = self._tasks.spawn(self._keep_looking_up(trunk), f"trunk {trunk.name}")
            self._looking_up[trunk.name] = task

    def _tls_context(self, settings: SipSettings) -> ssl.SSLContext:
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        try:
            context.load_cert_chain(str(settings.certificate), str(settings.key))
        except (OSError, ssl.SSLError) as error:
            raise SipError(f"the certificate cannot be used: {error}") from error
        return context

    def registrations(self) -> list[RegistrationStatus]:
        return self._agent.registrations()

    def trunk_states(self) -> list[TrunkState]:
        """Of the trunks that have a server: whether there is a way for calls, and why not."""
        return [
            TrunkState(trunk.name, "down", self._nowhere[trunk.name])
            if trunk.name in self._nowhere
            else self._agent.upkeep.state(trunk)
            for trunk in self._settings.trunks
            if trunk.server
        ]

    @property
    def clock(self) -> PacketClock:
        """Of the lines that sound before they are answered; others tick the rest."""
        return self._host.clock

    @property
    def user_agent(self) -> UserAgent:
        """For its counts."""
        return self._agent

    # --- in and out ---

    def _received(self, data: bytes, flow: Flow) -> None:
        now, dropped = monotonic(), self._agent.gate.dropped
        self._agent.receive(data, flow, now)
        noise = self._agent.gate.dropped != dropped
        if not noise or now >= self._noise_traced_at + NOISE_TRACE_S:
            self.trace.take(data, flow, sent=False, wall_time=time.time())
            self._noise_traced_at = now if noise else self._noise_traced_at
        self._work()

    def _failed(self, flow: Flow) -> None:
        self._agent.flow_failed(flow, monotonic(), self._transports.fault_of(flow))
        self._work()

    def _work(self) -> None:
        """Send what is to be sent, hand out what happened, and set the next timer."""
        if self._working:  # what an event led to is done by the loop that handed it out
            return
        self._working = True
        try:
            while True:
                for data, flow in self._agent.messages_to_send():
                    self.trace.take(data, flow, sent=True, wall_time=time.time())
                    self._transports.send(data, flow)
                event = self._agent.next_event()
                if event is None:
                    break
                self._happened(event)
        finally:
            self._working = False
        for flow in self._agent.upkeep.keep_alives_to_send(monotonic()):
            self._transports.send(KEEP_ALIVE, flow)
        self._set_timer()

    def _set_timer(self) -> None:
        at = self._agent.get_timer()
        if at == self._timer_at:
            return
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._timer_at = at
        if at is not None:
            wait = max(0.0, at - monotonic())
            self._timer = asyncio.get_running_loop().call_later(wait, self._due)

    def _due(self) -> None:
        self._timer = self._timer_at = None
        self._agent.handle_timer(monotonic())
        self._work()

    def _happened(self, event: object) -> None:
        match event:
            case SessionHappened(session, what):
                if (call := self._by_session.get(session)) is not None:
                    call.happened(session, what)
            case IncomingCall():
                self._arrived(event)
            case RegistrationChanged(status):
                log = logger.bind(trunk=status.trunk, state=status.state)
                log.info("trunk {}: {} {}", status.trunk, status.state, status.detail)
            case TrunkChanged(TrunkState(trunk, reach, detail)):
                log = logger.bind(trunk=trunk, state=reach)
                words = f"is {reach}: {detail}" if detail else f"is {reach}"
                log.log("WARNING" if detail else "INFO", "trunk {} {}", trunk, words)
            case Locate(hop):
                self._tasks.spawn(self._locate(hop), "sip look-up")

    def _address_of(self, flow: Flow) -> tuple[str, int]:
        """Ours, for Via, Contact and SDP."""
        public = self._settings.public_address
        host = public if (":" in public) == (":" in flow.remote[0]) else ""
        host = host or flow.local[0]
        if not host or ip_address(host).is_unspecified:
            host = self._local_addresses.towards(flow.remote[0])
        ports = {transport: port for transport, _, port in self.bound}
        port = ports.get(flow.transport) or flow.local[1]
        # Of a connection of ours where we do not listen: the far end answers by it (RFC 5923).
        return host, port or (5061 if flow.secure else 5060)

    # --- where things are ---

    async def _keep_looking_up(self, trunk: Trunk) -> None:
        registration: Registration | None = None
        found = False
        while True:
            try:
                flows = await self._find(trunk.server_uri, trunk)
            except DialError as error:
                logger.warning("trunk {}: {}", trunk.name, error)
                if not found:
                    self._nowhere[trunk.name] = str(error)
                await asyncio.sleep(RESOLVE_RETRY_S)
                continue
            found = True
            self._nowhere.pop(trunk.name, None)
            self._agent.use_targets(trunk.name, flows, monotonic())
            if trunk.register and registration is None:
                contact = self._agent.contact(flows[0], trunk)
                registration = Registration(trunk, contact, self._settings.user_agent)
                self._agent.register(registration, monotonic())
            self._work()
            await asyncio.sleep(RESOLVE_AGAIN_S)

    async def ways_to(self, target: Uri, trunk: Trunk | None) -> Sequence[Flow]:
        """To where a request for `target` goes first, in the order of trying. Raises DialError."""
        flows = await self._find(target, trunk)
        if trunk is None or not trunk.server:
            return flows
        return self._agent.upkeep.sorted(trunk, flows)

    async def _find(self, target: Uri, trunk: Trunk | None) -> Sequence[Flow]:
        """The same, whatever is known of the servers. Raises DialError."""
        hop = trunk.server_uri if trunk is not None and trunk.server else target
        usual = trunk.transport if trunk is not None else "UDP"
        try:
            targets = await self._resolver.resolve(hop, usual)
        except ResolveError as error:
            raise DialError(0, str(error)) from error
        verify = trunk.tls_verify if trunk is not None else True
        # The sound goes by the same kind of address.
        reachable = [t for t in targets if (":" in t.host) in self._ports]
        if not reachable:
            there, here = ("IPv4", "IPv6") if True in self._ports else ("IPv6", "IPv4")
            raise DialError(0, f"{hop.host} has only {there} addresses, and we listen on {here}")
        return [
            self._transports.flow_to(t.transport, t.host, t.port, t.server_name, verify)
            for t in reachable
        ]

    async def _locate(self, hop: Uri) -> None:
        found = None
        try:
            found = (await self.ways_to(hop, None))[0]
        except DialError as error:
            logger.info("the next hop {} of a call: {}", hop.host, error)
        finally:
            self._agent.located(hop, found)
        loop = asyncio.get_running_loop()
        loop.call_later(RESOLVE_AGAIN_S, self._agent.located, hop, None)

    # --- calls that come in ---

    def _arrived(self, event: IncomingCall) -> None:
        """The call is known from now on: its end may be the very next thing that happens."""
        session, request, trunk = event.session, event.request, event.trunk
        if event.replaces is not None:
            replaced = self._by_session.get(event.replaces)
            if replaced is not None:
                replaced.take_over(session, event.replaces, request)
            else:
                session.refuse(481, "", monotonic())
                self.touched(session)
            return
        call = self._new_call(trunk, self._info(request, trunk))
        self.adopt(call, session)
        agent = self._agent_for(call.info)
        call.agent = agent or ""
        admitted = self._admit(call, session, agent)
        self._tasks.spawn(self._take(call, event, admitted), f"sip call {call.call_id}")

    async def _take(self, call: SipCall, event: IncomingCall, admitted: bool) -> None:
        try:
            if admitted and await call.take(event.session, event.request, event.flow):
                self.on_setup(monotonic() - call.began_at)
                logger.info("{}: {} calls {}", call.call_id, call.info.caller, call.info.called)
                assert call.leg is not None
                await self._host.take_call(call.leg, call.agent)
        except Exception:
            logger.exception("{}: the call failed", call.call_id)
        finally:
            await self.finish(call)

    def _admit(self, call: SipCall, session: Session, agent: str | None) -> bool:
        """Refuse what there is no agent or no room for."""
        if agent is None:
            session.refuse(404, "", monotonic())
        elif self._closing:
            self._refuse_busy(call, session, "draining")
        elif no_line := self._no_line(call.trunk, 1):
            self._refuse_busy(call, session, no_line)
        else:
            try:
                self._host.admit()
            except Exception as busy:
                self._refuse_busy(call, session, str(busy))
            else:
                return True
        self.touched(session)
        return False

    def _no_line(self, trunk: Trunk | None, counted: int) -> str:
        """Why there is no line for a call, which `counted` says has been counted already; "" when
        there is one."""
        limit = self._settings.max_calls
        if len(self.calls) - counted >= limit:
            return f"all {limit} lines are in use"
        if trunk is not None and trunk.max_calls:
            here = (c for c in self.calls.values() if c.info.trunk == trunk.name)
            if sum(c.state != "ended" for c in here) - counted >= trunk.max_calls:
                return f"all {trunk.max_calls} lines of the trunk {trunk.name!r} are in use"
        return ""

    def _refuse_busy(self, call: SipCall, session: Session, why: str) -> None:
        """The caller hears only that the service is unavailable; the log and the record say why."""
        logger.warning("{}: refused: {}", call.call_id, why)
        call.reason = End.REFUSED + f": 503 ({why})"
        retry = [("Retry-After", str(RETRY_AFTER_S))]
        session.refuse(503, "", monotonic(), headers=retry)

    def _info(self, request: Request, trunk: Trunk | None) -> CallInfo:
        names = trunk.headers if trunk is not None else ()
        headers = {name: printable(value) for name in names if (value := request.headers.get(name))}
        caller = caller_of(request, trunk)
        return CallInfo(
            edge="sip",
            direction="inbound",
            caller=shown(caller.uri.number or caller.uri.host),
            caller_name=shown(caller.display_name),
            called=shown(request.uri.number or request.to.uri.number),
            trunk=trunk.name if trunk is not None else "",
            headers=headers,
        )

    def _agent_for(self, info: CallInfo) -> str | None:
        """The name of the agent that takes the call; "" for the usual one, None for nobody."""
        if not self._settings.routes:
            return ""
        found = route(self._settings.routes, info)
        return None if found is None else found.agent

    # --- calls that we place ---

    def dial(self, dial: Dial) -> SipCall:
        """Begin a call; how it goes, `SipCall.events` tells. Raises DialError when it cannot even
        be tried."""
        if self._closing:
            raise DialError(503, End.SHUTTING_DOWN)
        trunk = self._trunk_for(dial)
        try:
            target = self.target_of(dial.to, trunk)
            headers = [_header(name, value) for name, value in dial.headers.items()]
        except SipError as error:
            raise DialError(0, str(error)) from error
        if no_line := self._no_line(trunk, 0):
            raise DialError(0, no_line)
        self._host.admit()
        info = CallInfo(
            edge="sip",
            direction="outbound",
            caller=dial.caller or trunk.caller_id or trunk.username,
            caller_name=dial.caller_name,
            called=target.number,
            trunk=trunk.name,
            variables=dial.variables,
        )
        call = self._new_call(trunk, info)
        call.ring_seconds, call.agent = dial.ring_seconds, dial.agent
        self._tasks.spawn(self._place(call, target, headers), f"sip call {call.call_id}")
        return call

    async def _place(self, call: SipCall, target: Uri, headers: Sequence[tuple[str, str]]) -> None:
        try:
            flows = await self.ways_to(target, call.trunk)
            await self.place(call, target, flows, headers)
            self.on_setup(monotonic() - call.began_at)
            assert call.leg is not None
            await self._host.take_call(call.leg, call.agent)
        except DialError as error:
            call.failed(error)
        except Exception:
            logger.exception("{}: the call failed", call.call_id)
            call.failed(DialError(500, End.SERVER_FAILED))
        finally:
            await self.finish(call)

    async def place(
        self,
        call: SipCall,
        target: Uri,
        flows: Sequence[Flow],
        headers: Sequence[tuple[str, str]] = (),
    ) -> None:
        """Try one server after the other until one rings or refuses for good. Raises DialError."""
        if no_line := self._no_line(call.trunk, 1):
            raise DialError(0, no_line)
        for flow in flows:
            try:
                await call.place(target, flow, headers)
                return
            except DialError as error:
                if call.trunk is not None and error.status in TRY_NEXT:
                    self._agent.upkeep.doubt(call.trunk, flow, monotonic())
                    self._work()
                if flow is flows[-1] or call.state != "dialing" or error.status not in TRY_NEXT:
                    raise

    def begin(
        self,
        call: SipCall,
        target: Uri,
        flow: Flow,
        sdp: str | None,
        headers: Sequence[tuple[str, str]] = (),
    ) -> None:
        """Send the INVITE; the session is the call's from now on."""
        trunk, info = call.trunk, call.info
        number, name = info.called, ""  # of a call that came in, and that we are sent on from
        if info.direction == "outbound":
            number, name = info.caller, info.caller_name
        caller, shown_by = presented(
            trunk or Trunk("nobody's"), number, name, self._address_of(flow)[0]
        )
        session = self._agent.call(
            target,
            flow,
            trunk,
            caller,
            NameAddr(target),
            sdp,
            monotonic(),
            (*shown_by, *headers),
            call.ring_seconds,
        )
        self.adopt(call, session)
        self._work()

    def target_of(self, to: str, trunk: Trunk | None) -> Uri:
        """A number at the trunk, or a SIP URI as it is. Raises SipError."""
        to = to.strip()
        if to.lower().startswith(("sip:", "sips:")):
            return Uri.parse(to)
        number = to.removeprefix("tel:")
        if not number or trunk is None:
            raise SipError(f"{to!r} is neither a number nor a SIP URI")
        kept = "".join(c for c in number if c not in " -./()")
        if not all(c.isalnum() or c in "+*#_" for c in kept):
            raise SipError(f"{to!r} is not a number")
        server = trunk.server_uri if trunk.server else None
        port = server.port if server is not None and not trunk.domain else None
        return Uri("sip", user=kept, host=trunk.host, port=port)

    def _trunk_for(self, dial: Dial) -> Trunk:
        trunks = [t for t in self._settings.trunks if t.server]
        for trunk in trunks:
            if dial.trunk in ("", trunk.name):
                return trunk
        there = ", ".join(t.name for t in trunks) or "none"
        wanted = f"called {dial.trunk!r} " if dial.trunk else ""
        raise DialError(0, f"no trunk {wanted}has a server to call through (there: {there})")

    # --- what calls ask for ---

    def adopt(self, call: SipCall, session: Session) -> None:
        """The session is the call's from now on."""
        self._by_session[session] = call
        call.session = session

    def touched(self, session: Session) -> None:
        self._agent.touched(session, monotonic())
        self._work()

    def new_leg(self, call_id: str, trunk: Trunk | None, flow: Flow) -> SipLeg:
        media = MediaSettings()
        if trunk is not None:
            media = MediaSettings(codecs=trunk.codecs, srtp=trunk.srtp)
        host = self._agent.contact(flow, trunk).host
        return SipLeg(call_id, media, self._ports[":" in flow.remote[0]], host, self._host.opus)

    def webrtc_leg(self, call_id: str) -> Leg:
        return self._host.webrtc_leg(call_id)

    async def transfer(self, call: SipCall, target: str) -> None:
        await self._transfers.transfer(call, target)

    def second_call(self, first: SipCall, target: Uri) -> SipCall:
        """A call to somebody that `first` is to be connected with."""
        inbound = first.info.direction == "inbound"
        info = CallInfo(
            edge="sip",
            direction="outbound",
            caller=first.info.caller if inbound else first.info.called,
            caller_name=first.info.caller_name if inbound else "",
            called=target.number,
            trunk=first.info.trunk,
        )
        return self._new_call(first.trunk, info)

    def _new_call(self, trunk: Trunk | None, info: CallInfo) -> SipCall:
        call = SipCall(self, uuid.uuid4().hex[:12], trunk, info, self._settings.ring_seconds)
        self.calls[call.call_id] = call
        return call

    # --- ends ---

    async def finish(self, call: SipCall, reason: str = "the call is over") -> None:
        """The call is over: nobody speaks of it any more, but for its record."""
        if call.leg is not None:
            await call.leg.hang_up(reason)
        call.end(reason)
        await call.close()
        self._host.record(self._record(call))
        self.calls.pop(call.call_id, None)
        for session in [s for s, c in self._by_session.items() if c is call]:
            del self._by_session[session]

    def _record(self, call: SipCall) -> CallRecord:
        ended, info = call.ended, call.info
        line = call.leg.statistics() if call.leg is not None else LegStatistics()
        leg = call.leg if isinstance(call.leg, SipLeg) else None
        answered, ended_at = call.answered_at, call.ended_at or monotonic()
        return CallRecord(
            call_id=call.call_id,
            edge=info.edge,
            remote_call_id=call.session.call_id if call.session is not None else "",
            direction=info.direction,
            started=call.began_time,
            ended=call.ended_time or "",
            end_reason=call.reason or (ended.reason if ended is not None else ""),
            ended_by=ended.by if ended is not None else "local",
            status=200 if answered is not None else (ended.status if ended is not None else 0),
            answered=call.answered_time,
            duration_seconds=ended_at - answered if answered is not None else 0.0,
            setup_ms=(answered - call.began_at) * 1000 if answered is not None else None,
            trunk=info.trunk,
            caller=info.caller,
            called=info.called,
            agent=call.agent,
            transport=call.transport,
            codec=leg.codec if leg is not None else "",
            srtp=leg.srtp if leg is not None else "",
            packets_sent=line.packets_sent,
            packets_received=line.packets_received,
            packets_lost=line.packets_lost,
            jitter_ms=line.jitter_ms,
            mos=line.mos,
            transferred_to=call.transferred_to,
            attempts=tuple(call.attempts),
        )

    async def _watch_media(self) -> None:
        """Calls whose media have fallen silent are over, whatever the signalling says."""
        s = self._settings
        limits = s.initial_media_timeout_seconds, s.media_timeout_seconds
        while True:
            await asyncio.sleep(WATCH_S)
            now = monotonic()
            for call in tuple(self.calls.values()):
                leg = call.leg
                if isinstance(leg, SipLeg) and call.state == "answered":
                    silent = leg.media_timeout(now, *limits)
                    if silent is not None:
                        call.end(End.NO_SOUND if silent == "initial" else "the sound stopped")


def _header(name: str, value: str) -> tuple[str, str]:
    """A header of the caller's own. Raises SipError for what would be more than that."""
    if not name.lower().startswith("x-") or not name.replace("-", "").isalnum():
        raise SipError(f"{name!r}: only headers of your own, X-Something, can be given")
    if not value.isprintable():
        raise SipError(f"{name}: the value has characters that cannot be printed")
    return name, value
