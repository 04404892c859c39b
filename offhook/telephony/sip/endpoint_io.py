"""The SIP edge of one process: the calls it receives and places, on one SipStack.

What takes time (opening media, DNS, the conversation) is a task of the call it belongs to.
"""

import asyncio
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from time import monotonic
from typing import Any, Protocol

from loguru import logger

from offhook.media.clock_io import PacketClock
from offhook.media.codecs.opus import OpusSettings
from offhook.media.end_reason import End
from offhook.media.leg import CallInfo, Leg
from offhook.media.tasks_io import TaskSet
from offhook.telephony.call_progress_io import DialError
from offhook.telephony.call_record import CallRecord
from offhook.telephony.sip.call_io import SipCall
from offhook.telephony.sip.dial_plan import (
    custom_header,
    incoming_info,
    outbound_trunk,
    request_uri,
)
from offhook.telephony.sip.media.dtls_io import local_fingerprint
from offhook.telephony.sip.media.leg_io import SipLeg
from offhook.telephony.sip.media.media_plan import MediaSettings
from offhook.telephony.sip.media.rtp_ports_io import RtpPorts
from offhook.telephony.sip.messages.flow import Flow
from offhook.telephony.sip.messages.grammar import SipError
from offhook.telephony.sip.messages.headers import NameAddr
from offhook.telephony.sip.messages.uri import Uri
from offhook.telephony.sip.network.udp_io import listening_hosts
from offhook.telephony.sip.server_lookup_io import ServerLookup
from offhook.telephony.sip.sessions.session import Session
from offhook.telephony.sip.stack_io import SipStack
from offhook.telephony.sip.trace import Trace
from offhook.telephony.sip.transfer_io import Transfers
from offhook.telephony.sip.trunks.registration import RegistrationStatus
from offhook.telephony.sip.trunks.trunk_watch import TrunkState
from offhook.telephony.sip.trunks.trunks import (
    SipSettings,
    Trunk,
    presented,
    route,
)
from offhook.telephony.sip.trunks.upkeep import RegistrationChanged, TrunkChanged
from offhook.telephony.sip.user_agent import (
    Happening,
    IncomingCall,
    Locate,
    SessionHappened,
    UserAgent,
)

RETRY_AFTER_S = 10
"""What a caller is told who comes when all lines are busy."""
WATCH_S = 1.0
"""How often it is looked whether a call's media have fallen silent."""
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
        self.calls: dict[str, SipCall] = {}
        """By our own call id, from the INVITE to the end of the conversation."""
        self.on_setup: Callable[[float], None] = lambda seconds: None
        """Told of each call that was answered how many seconds that took."""
        self.stack = SipStack(settings, self._on_event)
        self._settings = settings
        self._host = host
        self._agent = self.stack.agent
        self._ports = {
            6 if ":" in host else 4: RtpPorts(host, *settings.rtp_ports)
            for host in listening_hosts(settings.host)
        }
        """By IP version."""
        self.lookup = ServerLookup(self.stack, self._ports)
        self._transfers = Transfers(self, host.clock)
        self._by_session: dict[Session, SipCall] = {}
        self._tasks = TaskSet()
        self._closing = False

    # --- life ---

    async def start(self) -> None:
        """Listen, look the trunks up, register. Raises OSError, SipError."""
        local_fingerprint()  # the first call shall not wait for the certificate
        await self.stack.start()
        self.lookup.use(self._settings)
        self._tasks.spawn(self._watch_media(), "sip media watch")
        listening = ", ".join(f"{t.lower()} {h}:{p}" for t, h, p in self.stack.bound)
        logger.info("listening for SIP at {}", listening or "no transport")

    async def close(self) -> None:
        """Hang up what is left, take the registrations back, close."""
        self._closing = True
        now = monotonic()
        for call in tuple(self.calls.values()):
            call.end(End.SHUTTING_DOWN, 503)
        self._agent.unregister(now)
        self.stack.work()
        deadline = now + END_S
        while (self.calls or self._agent.busy) and monotonic() < deadline:
            await asyncio.sleep(0.02)
        await self._transfers.close()
        await self.lookup.close()
        await self._tasks.close()
        for call in tuple(self.calls.values()):
            await call.close()
        await self.stack.close()

    def reload(self, settings: SipSettings) -> None:
        """Use other trunks, routes and rules, and read the certificate again. Calls in progress
        and listeners stay as they are. Raises SipError, and then nothing has changed."""
        self.stack.use(settings)
        self._settings = settings
        self.lookup.use(settings)
        self.stack.work()

    def registrations(self) -> list[RegistrationStatus]:
        return self._agent.registrations()

    def trunk_states(self) -> list[TrunkState]:
        """Of the trunks that have a server: whether there is a way for calls, and why not."""
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
        """Of the lines that sound before they are answered; others tick the rest."""
        return self._host.clock

    @property
    def user_agent(self) -> UserAgent:
        """For its counts."""
        return self._agent

    # --- what the stack reports ---

    def _on_event(self, event: Happening) -> None:
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
                self.lookup.locate(hop)

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
        call = self._new_call(trunk, incoming_info(request, trunk))
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
        try:
            trunk = outbound_trunk(self._settings.trunks, dial.trunk)
            target = request_uri(dial.to, trunk)
            headers = [custom_header(name, value) for name, value in dial.headers.items()]
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
                    self.stack.work()
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
        )
        self.adopt(call, session)
        self.stack.work()

    # --- what calls ask for ---

    async def ways_to(self, target: Uri, trunk: Trunk | None) -> Sequence[Flow]:
        """To where a request for `target` goes first, in the order of trying. Raises DialError."""
        return await self.lookup.ways_to(target, trunk)

    def adopt(self, call: SipCall, session: Session) -> None:
        """The session is the call's from now on."""
        self._by_session[session] = call
        call.session = session

    def touched(self, session: Session) -> None:
        self._agent.touched(session, monotonic())
        self.stack.work()

    def new_leg(self, call_id: str, trunk: Trunk | None, flow: Flow) -> SipLeg:
        media = MediaSettings()
        if trunk is not None:
            media = MediaSettings(codecs=trunk.codecs, srtp=trunk.srtp)
        host = self._agent.contact(flow, trunk).host
        return SipLeg(
            call_id, media, self._ports[6 if ":" in flow.remote[0] else 4], host, self._host.opus
        )

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
        self._host.record(call.record())
        self.calls.pop(call.call_id, None)
        for session in [s for s, c in self._by_session.items() if c is call]:
            del self._by_session[session]

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
