"""The SIP endpoint of one process: the calls it receives and places, over one SipStack.

Slow work (opening media, DNS, the conversation) runs in tasks owned by the call.
"""

import asyncio
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from time import monotonic
from typing import Any, Protocol

from loguru import logger

from offhook.media.clock_io import PacketClock
from offhook.media.codecs.opus import OpusSettings
from offhook.media.end_reason import End
from offhook.media.leg import CallInfo, Claim, Leg
from offhook.media.ringback import Ringback
from offhook.media.tasks_io import TaskSet
from offhook.telephony.call_progress_io import Decision, DialError
from offhook.telephony.call_record import CallRecord
from offhook.telephony.sip.call_io import SipCall
from offhook.telephony.sip.dial_plan import (
    custom_header,
    incoming_info,
    outbound_trunk,
    request_uri,
)
from offhook.telephony.sip.media.dtls_io import local_fingerprint
from offhook.telephony.sip.media.latch import Address, MediaSources
from offhook.telephony.sip.media.leg_io import SipLeg
from offhook.telephony.sip.media.media_plan import MediaSettings
from offhook.telephony.sip.media.rtp_ports_io import RtpPorts
from offhook.telephony.sip.messages.flow import Flow
from offhook.telephony.sip.messages.grammar import SipError
from offhook.telephony.sip.messages.headers import NameAddr
from offhook.telephony.sip.messages.uri import Uri
from offhook.telephony.sip.network.udp_io import listening_hosts
from offhook.telephony.sip.ringbacks_io import Ringbacks
from offhook.telephony.sip.server_lookup_io import ServerLookup
from offhook.telephony.sip.sessions.ending import reason_header
from offhook.telephony.sip.sessions.saved_dialog import SavedDialog
from offhook.telephony.sip.sessions.session import Session
from offhook.telephony.sip.sessions.session_route import flow_address, transport_of
from offhook.telephony.sip.stack_io import SipStack
from offhook.telephony.sip.trace import Trace
from offhook.telephony.sip.transfer_io import Transfers
from offhook.telephony.sip.trunks.registration import RegistrationStatus
from offhook.telephony.sip.trunks.trunk_watch import TrunkState
from offhook.telephony.sip.trunks.trunks import (
    SipSettings,
    Trunk,
    caller_identity,
    route,
)
from offhook.telephony.sip.trunks.upkeep import RegistrationChanged, TrunkChanged
from offhook.telephony.sip.user_agent import (
    IncomingCall,
    Locate,
    SessionHappened,
    UserAgent,
    UserAgentEvent,
)

RETRY_AFTER_S = 10
"""Retry-After for callers when all lines are busy."""
FULL = (34, "all lines are busy")
OVERLOADED = (42, "overloaded")
REFUSALS = {
    "full": FULL,
    "connecting": FULL,
    "share": FULL,
    "late": OVERLOADED,
    "busy": OVERLOADED,
    "loading": (41, "starting"),
    "draining": (41, "shutting down"),
}
"""Q.850 cause and text of a 503 (RFC 6432), by what `Host.admit` says: no circuit available,
congestion, or temporary failure."""
MEDIA_CHECK_INTERVAL_S = 1.0
"""Interval of checking calls for media timeouts."""
SHUTDOWN_TIMEOUT_S = 2.0
"""Time limit in s for far ends and registrars to answer when shutting down; then it goes on without
their answers."""
NOT_RECOVERED = End.CONNECTION_LOST + ": another server could not continue the call"
MAX_REDIRECTS = 3
"""Times that a call follows "moved" (3xx); then it has failed."""
TRY_NEXT = frozenset({408, 500, 502, 503, 504})
"""Failures before ringing after which another server of the trunk is tried (RFC 3263 §4.3)."""


Decide = Callable[[SipCall, Sequence[tuple[str, str]]], Decision | None]
"""Returns what decides whether a call is answered or placed; None to do so at once."""


class Host(Protocol):
    """What the edge provides to the endpoint."""

    clock: PacketClock

    @property
    def opus(self) -> OpusSettings: ...

    def admit(self) -> object:
        """Raises an exception whose text says why no more calls are accepted: "full", "late"."""

    def admit_stranger(self, address: str) -> Claim:
        """The same for a call that is no trunk's, from this address; returns for whom its line is
        counted."""

    async def run_call(self, leg: Leg, agent: str) -> None:
        """Run the conversation to its end."""

    def webrtc_leg(self, call_id: str) -> Leg:
        """Return a leg that answers a browser's offer."""

    def record(self, record: CallRecord) -> None:
        """Store the record of a finished call."""


@dataclass(frozen=True)
class Dial:
    """Parameters of an outbound call."""

    to: str
    """A number or a SIP URI."""
    trunk: str = ""
    """Name of the trunk; "" for the first that has a server."""
    caller: str = ""
    """Number to present; "" for the trunk's."""
    caller_name: str = ""
    agent: str = ""
    ring_seconds: float = 60.0
    variables: Mapping[str, Any] = field(default_factory=dict)
    headers: Mapping[str, str] = field(default_factory=dict)
    """Custom headers for the INVITE, such as X-Order: 17."""


class SipEndpoint:
    """Receives and places SIP calls."""

    def __init__(self, settings: SipSettings, host: Host) -> None:
        self.calls: dict[str, SipCall] = {}
        """Calls by our own id, from the INVITE to the end of the conversation."""
        self.on_setup: Callable[[float], None] = lambda seconds: None
        """Called with the setup time in seconds of each answered call."""
        self.decision: Decide = lambda call, headers: None
        """Called with each incoming call and the headers of its INVITE, and with each call that is
        about to be placed."""
        self.media_changed: Callable[[SipCall], None] = lambda call: None
        """Called with each call whose media were renegotiated."""
        self.may_be_elsewhere: Callable[[], bool] = lambda: False
        """Whether another server may continue our calls by now: one whose media have stopped is
        then left without a BYE."""
        self._call_begun = asyncio.Event()
        self.stack = SipStack(settings, self._on_event)
        self._settings = settings
        self._host = host
        self._agent = self.stack.agent
        self._ports = {
            6 if ":" in host else 4: RtpPorts(host, *settings.rtp_ports)
            for host in listening_hosts(settings.host)
        }
        """RTP ports by IP version."""
        self.lookup = ServerLookup(self.stack, self._ports)
        self._transfers = Transfers(self, host.clock)
        self._ringbacks = Ringbacks()
        self._by_session: dict[Session, SipCall] = {}
        self._tasks = TaskSet()
        self._closing = False

    # --- life ---

    async def start(self) -> None:
        """Listen, resolve the trunks and register. Raises OSError or SipError."""
        local_fingerprint()  # make the certificate now, not in the first call
        await self._ringbacks.load(self._settings.trunks)
        await self.stack.start()
        self.lookup.use(self._settings)
        for ports in self._ports.values():
            self.clock.add_source(ports.reader)
        self._tasks.spawn(self._watch_media(), "sip media watch")
        listening = ", ".join(f"{t.lower()} {h}:{p}" for t, h, p in self.stack.bound)
        logger.info("listening for SIP at {}", listening or "no transport")

    async def close(self) -> None:
        """Hang up all calls, unregister and close."""
        self._closing = True
        now = monotonic()
        for call in tuple(self.calls.values()):
            call.end(End.SHUTTING_DOWN, 503)
        self._agent.unregister(now)
        self.stack.process()
        deadline = now + SHUTDOWN_TIMEOUT_S
        while (self.calls or self._agent.busy) and monotonic() < deadline:
            await asyncio.sleep(0.02)
        await self._transfers.close()
        await self.lookup.close()
        await self._tasks.close()
        for call in tuple(self.calls.values()):
            await call.close()
        await self.stack.close()

    def reload(self, settings: SipSettings) -> None:
        """Apply other trunks, routes and rules, and reload the certificate and the ringback files.
        Calls in progress and listeners are not affected. Raises SipError, and then nothing has
        changed."""
        self._ringbacks.check(settings.trunks)
        self.stack.use(settings)
        self._settings = settings
        self.lookup.use(settings)
        self._tasks.spawn(self._ringbacks.reload(settings.trunks), "ringback files")
        self.stack.process()

    def registrations(self) -> list[RegistrationStatus]:
        """Return the status of each trunk that registers."""
        return self.lookup.registrations()

    def trunk_states(self) -> list[TrunkState]:
        """Return the state of each trunk with a server: whether it can place calls, and why not."""
        return self.lookup.trunk_states()

    @property
    def bound(self) -> list[tuple[str, str, int]]:
        """Transport, host and port of each listener."""
        return self.stack.bound

    @property
    def trace(self) -> Trace:
        return self.stack.trace

    @property
    def clock(self) -> PacketClock:
        """The packet clock for legs with early media; others tick the rest."""
        return self._host.clock

    @property
    def user_agent(self) -> UserAgent:
        """The user agent, for its counters."""
        return self._agent

    # --- stack events ---

    def _on_event(self, event: UserAgentEvent) -> None:
        match event:
            case SessionHappened(session, what):
                if (call := self._by_session.get(session)) is not None:
                    call.handle_session_event(session, what)
            case IncomingCall():
                self._handle_incoming(event)
            case RegistrationChanged(status):
                log = logger.bind(trunk=status.trunk, state=status.standing)
                words = f"{status.standing}: {status.detail}".removesuffix(": ")
                log.log("WARNING" if status.detail else "INFO", "trunk {} {}", status.trunk, words)
            case TrunkChanged(TrunkState(trunk, reach, detail)):
                log = logger.bind(trunk=trunk, state=reach)
                words = f"is {reach}: {detail}" if detail else f"is {reach}"
                log.log("WARNING" if detail else "INFO", "trunk {} {}", trunk, words)
            case Locate(hop):
                self.lookup.locate(hop)

    # --- inbound calls ---

    def _handle_incoming(self, event: IncomingCall) -> None:
        """Register a new call at once: the very next event may be its end."""
        session, request, trunk = event.session, event.request, event.trunk
        if event.replaces is not None:
            replaced = self._by_session.get(event.replaces)
            if replaced is not None:
                replaced.accept_replacement(session, event.replaces, request)
            else:
                session.refuse(481, "", monotonic())
                self.session_changed(session)
            return
        call = self._new_call(trunk, incoming_info(request, trunk))
        self.adopt(call, session)
        agent = self._agent_for(call.info)
        call.agent = agent or ""
        admitted = self._admit(call, event, agent)
        self._tasks.spawn(self._run_incoming(call, event, admitted), f"sip call {call.call_id}")

    async def _run_incoming(self, call: SipCall, event: IncomingCall, admitted: bool) -> None:
        try:
            if not admitted or call.ended is not None:
                return
            decision = self.decision(call, event.request.headers.items())
            if decision is not None:
                if not await call.ring_until(decision):
                    return
                if not self._admit(call, event, call.agent):  # others came meanwhile
                    return
            if await call.accept_incoming(event.session, event.request, event.flow):
                self.on_setup(monotonic() - call.began_at)
                logger.info("{}: {} calls {}", call.call_id, call.info.caller, call.info.called)
                assert call.leg is not None
                call.leg.claim = call.claim
                await self._host.run_call(call.leg, call.agent)
        except Exception:
            logger.exception("{}: the call failed", call.call_id)
        finally:
            await self.finish(call)

    def _admit(self, call: SipCall, event: IncomingCall, agent: str | None) -> bool:
        """Refuse the call if there is no agent or no capacity for it."""
        session = event.session
        if agent is None:
            session.refuse(404, "", monotonic())
        elif self._closing:
            self._refuse_busy(call, session, "draining")
        elif busy := self._busy_reason(call.trunk, 1):
            self._refuse_busy(call, session, busy)
        else:
            try:
                if call.trunk is None:
                    call.claim = self._host.admit_stranger(event.flow.remote[0])
                else:
                    self._host.admit()
            except Exception as busy:
                self._refuse_busy(call, session, str(busy))
            else:
                return True
        self.session_changed(session)
        return False

    def _busy_reason(self, trunk: Trunk | None, counted: int) -> str:
        """Return why no line is free, or "". `counted` is 1 if the call itself is already
        counted."""
        limit = self._settings.max_calls
        if len(self.lines) - counted >= limit:
            return f"all {limit} lines are in use"
        if trunk is not None and trunk.max_calls:
            here = sum(self.calls[each].info.trunk == trunk.name for each in self.lines)
            if here - counted >= trunk.max_calls:
                return f"all {trunk.max_calls} lines of the trunk {trunk.name!r} are in use"
        return ""

    def _refuse_busy(self, call: SipCall, session: Session, why: str) -> None:
        """Refuse with 503. The caller learns whether all lines are busy or the server is overloaded
        or restarts; the log and the record say precisely why."""
        logger.bind(a_minute=why).warning("{}: refused: {}", call.call_id, why)
        call.reason = End.REFUSED + f": 503 ({why})"
        cause, text = REFUSALS.get(why, FULL)
        headers = [("Retry-After", str(RETRY_AFTER_S)), reason_header(cause, text)]
        session.refuse(503, "", monotonic(), headers=headers)

    def _agent_for(self, info: CallInfo) -> str | None:
        """Return the agent for the call; "" for the default, None if no route matches."""
        if not self._settings.routes:
            return ""
        found = route(self._settings.routes, info)
        return None if found is None else found.agent

    # --- calls of other servers ---

    @property
    def free_lines(self) -> int:
        """Number of calls that the settings still allow."""
        return 0 if self._closing else max(0, self._settings.max_calls - len(self.lines))

    @property
    def lines(self) -> set[str]:
        """The ids of the calls that hold a line: not those whose conversation still ends after the
        call has."""
        return {call_id for call_id, call in self.calls.items() if call.state != "ended"}

    def recover(
        self,
        saved: SavedDialog,
        info: CallInfo,
        agent: str,
        report: Callable[[SipCall, DialError | None], None],
    ) -> SipCall:
        """Continue the established call of another server; `report` is called with the outcome.
        The call runs then, or is recorded as lost. Raises SipError if its trunk is unknown here."""
        trunk = next((t for t in self._settings.trunks if t.name == info.trunk), None)
        if trunk is None:
            raise SipError(f"no trunk is named {info.trunk[:48]!r}")
        call = self._new_call(trunk, info)
        call.agent = agent
        running = self._recover(call, saved, trunk, report)
        self._tasks.spawn(running, f"sip call {call.call_id}")
        return call

    async def _recover(
        self,
        call: SipCall,
        saved: SavedDialog,
        trunk: Trunk,
        report: Callable[[SipCall, DialError | None], None],
    ) -> None:
        failure: DialError | None = None
        try:
            try:
                await call.recover(saved, await self._recovery_flow(saved, trunk), trunk)
            except DialError as error:
                failure = DialError(error.status, f"{NOT_RECOVERED}: {error}")
            except Exception:
                logger.exception("{}: the call failed", call.call_id)
                failure = DialError(500, End.SERVER_FAILED)
            report(call, failure)
            if failure is not None:
                call.failed(failure)
                return
            assert call.leg is not None
            await self._host.run_call(call.leg, call.agent)
        finally:
            await self.finish(call)

    async def _recovery_flow(self, saved: SavedDialog, trunk: Trunk) -> Flow:
        """The flow to the next hop, which must be an address of the trunk: whoever can write what
        is saved must not direct us elsewhere. Raises DialError."""
        try:
            hop = saved.next_hop()
            address = flow_address(hop, saved.transport)
            if address is not None:
                flow = self._agent.flow_to(transport_of(hop, saved.transport), address)
            else:
                flow = (await self.lookup.flows_to(hop, None))[0]
        except SipError as error:
            raise DialError(0, str(error)) from error
        if not self._agent.access.is_address_of(trunk, flow.remote[0]):
            raise DialError(0, f"{hop.host} is no address of the trunk {trunk.name!r}")
        return flow

    def restore(self, call: SipCall, saved: SavedDialog, flow: Flow, trunk: Trunk) -> Session:
        """Attach the session of another server's call. Raises SipError."""
        dialog = saved.dialog(self._agent.contact(flow, trunk))
        session = self._agent.restore(dialog, saved.we_called, flow, trunk, monotonic())
        self.adopt(call, session)
        return session

    # --- outbound calls ---

    def dial(self, dial: Dial) -> SipCall:
        """Place a call; `SipCall.events` reports its progress. Raises DialError if it cannot be
        attempted."""
        if self._closing:
            raise DialError(503, End.SHUTTING_DOWN)
        try:
            trunk = outbound_trunk(self._settings.trunks, dial.trunk)
            target = request_uri(dial.to, trunk)
            headers = [custom_header(name, value) for name, value in dial.headers.items()]
        except SipError as error:
            raise DialError(0, str(error)) from error
        if busy := self._busy_reason(trunk, 0):
            raise DialError(0, busy)
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
            if (decision := self.decision(call, ())) is not None:
                await call.dial_after(decision)
            await self._place_or_follow(call, target, headers)
            self.on_setup(monotonic() - call.began_at)
            assert call.leg is not None
            await self._host.run_call(call.leg, call.agent)
        except DialError as error:
            call.failed(error)
        except Exception:
            logger.exception("{}: the call failed", call.call_id)
            call.failed(DialError(500, End.SERVER_FAILED))
        finally:
            await self.finish(call)

    async def _place_or_follow(
        self, call: SipCall, target: Uri, headers: Sequence[tuple[str, str]]
    ) -> None:
        """Place a call, and again where it has moved to, if its trunk allows that. Raises
        DialError."""
        tried = {target.number}
        while True:
            try:
                await self.place(call, target, await self.flows_to(target, call.trunk), headers)
                return
            except DialError as error:
                number, may = error.moved_to, call.trunk is not None and call.trunk.redirects
                written = not set(":@;?") & set(number)  # as a number of this trunk
                follows = may and number and written and number not in tried
                if not follows or len(tried) > MAX_REDIRECTS:
                    raise
                tried.add(number)
                try:
                    target = request_uri(number, call.trunk)
                except SipError:
                    raise error from None
                logger.info("{}: moved to {}", call.call_id, number)

    async def place(
        self,
        call: SipCall,
        target: Uri,
        flows: Sequence[Flow],
        headers: Sequence[tuple[str, str]] = (),
    ) -> None:
        """Try the servers in order until one rings or rejects finally. Raises DialError."""
        if busy := self._busy_reason(call.trunk, 1):
            raise DialError(0, busy)
        for flow in flows:
            last = flow is flows[-1]
            patience = None if last or call.trunk is None else call.trunk.failover_seconds
            try:
                await call.place(target, flow, headers, patience)
                if call.trunk is not None:
                    self._agent.upkeep.call_taken(call.trunk, flow)
                return
            except DialError as error:
                if call.trunk is not None and error.status in TRY_NEXT:
                    why = str(error) if error.silent else ""
                    self._agent.upkeep.call_failed(call.trunk, flow, why, monotonic())
                    self.stack.process()
                if last or call.state != "dialing" or error.status not in TRY_NEXT:
                    raise

    def begin(
        self,
        call: SipCall,
        target: Uri,
        flow: Flow,
        sdp: str | None,
        headers: Sequence[tuple[str, str]] = (),
        response_seconds: float | None = None,
    ) -> None:
        """Send the INVITE and attach its session to the call."""
        trunk, info = call.trunk, call.info
        number, name = info.called, ""  # for an inbound call that we are referred on from
        if info.direction == "outbound":
            number, name = info.caller, info.caller_name
        caller, shown_by = caller_identity(
            trunk or Trunk("nobody's"), number, name, self.stack.address_of(flow)[0]
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
            response_seconds,
        )
        self.adopt(call, session)
        self.stack.process()

    # --- called by calls ---

    async def flows_to(self, target: Uri, trunk: Trunk | None) -> Sequence[Flow]:
        """Return the flows to try for a request to `target`, in order. Raises DialError."""
        return await self.lookup.flows_to(target, trunk)

    def adopt(self, call: SipCall, session: Session) -> None:
        """Attach a session to the call."""
        self._by_session[session] = call
        call.session = session

    def session_changed(self, session: Session) -> None:
        self._agent.session_changed(session, monotonic())
        self.stack.process()

    def new_leg(self, call_id: str, trunk: Trunk | None, flow: Flow) -> SipLeg:
        media, anywhere = MediaSettings(), False
        if trunk is not None:
            media = MediaSettings(trunk.codecs, trunk.srtp, tones=trunk.dtmf_tones)
            anywhere = trunk.media_from == "anywhere"
        host, _ = self._agent.address(flow, trunk)
        signalling = flow.remote[0]
        ports = self._ports[6 if ":" in signalling else 4]
        sources = MediaSources(signalling, anywhere)
        leg = SipLeg(call_id, media, ports, host, self._host.opus, sources)
        if self.stack.hep.on:
            leg.observe_rtcp(partial(self._export_rtcp, call_id))
        return leg

    def _export_rtcp(
        self, call_id: str, data: bytes, sent: bool, local: Address, remote: Address
    ) -> None:
        call = self.calls.get(call_id)
        if call is not None and call.session is not None:
            self.stack.hep.send_rtcp(data, sent, local, remote, call.session.call_id)

    def webrtc_leg(self, call_id: str) -> Leg:
        return self._host.webrtc_leg(call_id)

    async def transfer(self, call: SipCall, target: str) -> None:
        await self._transfers.transfer(call, target)

    def trunk_towards(self, target: Uri, usual: Trunk | None) -> Trunk | None:
        """Return the trunk to call a URI over: the usual one, unless its server would be asked for
        a host that is another's."""
        if usual is None or not usual.server or usual.is_host(target.host):
            return usual
        others = (t for t in self._settings.trunks if t.server and t.is_host(target.host))
        return next(others, usual)

    def ringback(self, trunk: Trunk | None) -> Ringback:
        return self._ringbacks.of(trunk)

    def consultation_call(self, first: SipCall, target: Uri) -> SipCall:
        """Create the consultation call to connect `first` with."""
        trunk = self.trunk_towards(target, first.trunk)
        inbound = first.info.direction == "inbound"
        info = CallInfo(
            edge="sip",
            direction="outbound",
            caller=first.info.caller if inbound else first.info.called,
            caller_name=first.info.caller_name if inbound else "",
            called=target.number,
            trunk=trunk.name if trunk is not None else "",
        )
        return self._new_call(trunk, info)

    def _new_call(self, trunk: Trunk | None, info: CallInfo) -> SipCall:
        call = SipCall(self, uuid.uuid4().hex[:12], trunk, info, self._settings.ring_seconds)
        self.calls[call.call_id] = call
        self._call_begun.set()
        return call

    # --- end of calls ---

    async def finish(self, call: SipCall, reason: str = "the call is over") -> None:
        """End a call, write its record and forget it."""
        if call.leg is not None:
            await call.leg.hang_up(reason)
        call.end(reason)
        await call.close()
        self._host.record(call.record())
        self.calls.pop(call.call_id, None)
        for session in [s for s, c in self._by_session.items() if c is call]:
            del self._by_session[session]

    async def _watch_media(self) -> None:
        """End calls whose media have timed out, whatever the signalling says."""
        while True:
            if not self.calls:  # an idle process sleeps
                self._call_begun.clear()
                await self._call_begun.wait()
            await asyncio.sleep(MEDIA_CHECK_INTERVAL_S)
            now, s = monotonic(), self._settings
            for call in tuple(self.calls.values()):
                leg, own = call.leg, call.trunk.media_timeout_seconds if call.trunk else None
                limit = s.media_timeout_seconds if own is None else own
                if isinstance(leg, SipLeg) and call.state == "answered":
                    silent = leg.media_timeout(now, s.initial_media_timeout_seconds, limit)
                    if silent is not None:
                        reason = End.NO_SOUND if silent == "initial" else "the sound stopped"
                        gone = self.may_be_elsewhere()
                        call.end(End.CONTINUED_ELSEWHERE if gone else reason)
