"""The SIP endpoint of one process: the calls it receives and places, over one SipStack.

Slow work (opening media, DNS, the conversation) runs in tasks owned by the call.

    SipStack         the user agent with its sockets
    ServerLookup     DNS for trunks and next hops
    SipCalls         the calls, and the lines they hold
    IncomingCalls    admission and answer
    OutgoingCalls    trunks, servers, INVITEs
    ExtensionCalls   calls between our own phones, and from them outside
    RecoveredCalls   calls of other servers
    Transfers        our REFERs, and bridges
    ReferFollower    the far ends' REFERs
"""

import asyncio
from collections.abc import Mapping
from functools import partial
from time import monotonic, time

from loguru import logger

from offhook.media.clock_io import PacketClock
from offhook.media.end_reason import End
from offhook.media.tasks_io import TaskSet
from offhook.telephony.sip.call_io import SipCall
from offhook.telephony.sip.calls_io import Hooks, Host, SipCalls
from offhook.telephony.sip.extensions.calls_io import ExtensionCalls
from offhook.telephony.sip.extensions.pairs_io import Pairs
from offhook.telephony.sip.following_io import ReferFollower
from offhook.telephony.sip.incoming_calls_io import IncomingCalls
from offhook.telephony.sip.media.dtls_io import local_fingerprint
from offhook.telephony.sip.media.latch import Address, MediaSources
from offhook.telephony.sip.media.leg_io import SipLeg
from offhook.telephony.sip.media.media_plan import MediaSettings
from offhook.telephony.sip.media.rtp_ports_io import RtpPorts
from offhook.telephony.sip.media_watch_io import watch_media
from offhook.telephony.sip.messages.flow import Flow
from offhook.telephony.sip.network.udp_io import listening_hosts
from offhook.telephony.sip.outgoing_calls_io import Dial, OutgoingCalls
from offhook.telephony.sip.recovered_calls_io import RecoveredCalls
from offhook.telephony.sip.ringbacks_io import Ringbacks
from offhook.telephony.sip.server_lookup_io import ServerLookup
from offhook.telephony.sip.sessions.session import Session
from offhook.telephony.sip.sessions.session_events import ReferReceived
from offhook.telephony.sip.stack_io import SipStack
from offhook.telephony.sip.transfer_io import Transfers
from offhook.telephony.sip.trunks.registration import RegistrationStatus
from offhook.telephony.sip.trunks.registrations import RegistrationChanged
from offhook.telephony.sip.trunks.trunk_history import TrunkHistory
from offhook.telephony.sip.trunks.trunk_watch import TrunkState
from offhook.telephony.sip.trunks.trunks import SipSettings, Trunk
from offhook.telephony.sip.trunks.upkeep import TrunkChanged
from offhook.telephony.sip.user_agent import (
    CallReceived,
    ExtensionChanged,
    Locate,
    SessionHappened,
    UserAgent,
    UserAgentEvent,
)

SHUTDOWN_TIMEOUT_S = 2.0
"""Time limit in s for far ends and registrars to answer when shutting down; then it goes on without
their answers."""


class SipEndpoint:
    """Receives and places SIP calls."""

    def __init__(self, settings: SipSettings, host: Host) -> None:
        self.hooks = Hooks(self._new_leg)
        self.stack = SipStack(settings, self._on_event)
        self._host = host
        self._ports = {
            6 if ":" in host else 4: RtpPorts(host, *settings.rtp_ports)
            for host in listening_hosts(settings.host)
        }
        """RTP ports by IP version."""
        self.lookup = ServerLookup(self.stack, self._ports, self._trunk_changed)
        self._histories: dict[str, TrunkHistory] = {}
        """By the names of trunks with a server."""
        self._tasks = TaskSet()
        self._ringbacks = Ringbacks()
        calls = self._calls = SipCalls(self.stack, host, self.hooks, self)
        tasks, ringbacks = self._tasks, self._ringbacks
        self._outgoing = OutgoingCalls(calls, self.stack, host, self.lookup, tasks, self)
        self.pairs = Pairs(host.clock)
        """Calls that are connected with each other here."""
        self.extension_calls = ExtensionCalls(
            *(calls, self.stack, self._outgoing, self.pairs, ringbacks, tasks)
        )
        """Connects extensions with each other, and more of them in one call."""
        self._incoming = IncomingCalls(calls, self.stack, host, tasks, self.extension_calls)
        self.recovered = RecoveredCalls(calls, self.stack, self.lookup, tasks)
        self._transfers = Transfers(calls, self.stack, self._outgoing, ringbacks, self.pairs)
        self._follower = ReferFollower(self.stack, self.lookup, self._outgoing.invites)

    # --- life ---

    async def start(self) -> None:
        """Listen, resolve the trunks and register. Raises OSError or SipError."""
        local_fingerprint()  # make the certificate now, not in the first call
        await self._ringbacks.load(self.stack.settings.trunks)
        await self.stack.start()
        self.lookup.use(self.stack.settings)
        for ports in self._ports.values():
            self.clock.add_source(ports.reader)
        self._tasks.spawn(watch_media(self._calls, self.stack), "sip media watch")
        listening = ", ".join(f"{t.lower()} {h}:{p}" for t, h, p in self.stack.bound)
        logger.info("listening for SIP at {}", listening or "no transport")

    async def close(self) -> None:
        """Hang up all calls, unregister and close."""
        self._calls.closing = True
        agent, now = self.stack.agent, monotonic()
        for call in tuple(self.calls.values()):
            call.end(End.SHUTTING_DOWN, 503)
        agent.unregister(now)
        self.stack.process()
        deadline = now + SHUTDOWN_TIMEOUT_S
        while (self.calls or agent.busy) and monotonic() < deadline:
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
        self.lookup.use(settings)
        self._tasks.spawn(self._ringbacks.reload(settings.trunks), "ringback files")
        self.stack.process()

    # --- status ---

    @property
    def calls(self) -> dict[str, SipCall]:
        """Calls by our own id, from the INVITE to the end of the conversation."""
        return self._calls.by_id

    def caller_of(self, call_id: str) -> str:
        """The id of the call whose caller a call is placed for; its own if it is for itself."""
        return self._calls.callers.get(call_id, call_id)

    @property
    def lines(self) -> set[str]:
        """The ids of the calls that hold a line."""
        return self._calls.lines

    @property
    def free_lines(self) -> int:
        """Number of calls that the settings still allow."""
        return self._calls.free_lines

    def registrations(self) -> list[RegistrationStatus]:
        """Return the status of each trunk that registers."""
        return self.lookup.registrations()

    def trunk_states(self) -> list[TrunkState]:
        """Return the state of each trunk with a server: whether it can place calls, and why not."""
        return self.lookup.trunk_states()

    def trunk_histories(self) -> dict[str, TrunkHistory]:
        """Return since when each trunk with a server is as it is, and what was wrong with it last,
        by name."""
        now, states = time(), self.trunk_states()
        self._histories = {s.trunk: self._histories.get(s.trunk, TrunkHistory()) for s in states}
        for state in states:
            self._histories[state.trunk].note(state.state, state.detail, now)
        return self._histories

    @property
    def bound(self) -> list[tuple[str, str, int]]:
        """Transport, host and port of each listener."""
        return self.stack.bound

    @property
    def clock(self) -> PacketClock:
        """The packet clock for legs with early media; others tick the rest."""
        return self._host.clock

    @property
    def user_agent(self) -> UserAgent:
        """The user agent, for its counters."""
        return self.stack.agent

    # --- calls ---

    def dial(self, dial: Dial) -> SipCall:
        """Place a call; `SipCall.events` reports its progress. Raises DialError if it cannot be
        attempted."""
        return self._outgoing.dial(dial)

    def show_messages(self, counts: Mapping[str, tuple[int, int]]) -> None:
        """Have the phones of extensions show how many messages wait, new and heard ones."""
        self.stack.agent.phones.show(counts, monotonic())
        self.stack.process()

    def _on_event(self, event: UserAgentEvent) -> None:
        match event:
            case SessionHappened(session, what):
                if (call := self._calls.of(session)) is not None:
                    call.handle_session_event(session, what)
            case CallReceived():
                self._incoming.receive(event)
            case RegistrationChanged(status):
                log = logger.bind(trunk=status.trunk, state=status.standing)
                words = f"{status.standing}: {status.detail}".removesuffix(": ")
                log.log("WARNING" if status.detail else "INFO", "trunk {} {}", status.trunk, words)
                self._trunk_changed(status.trunk)
            case TrunkChanged(TrunkState(trunk, reach, detail)):
                log = logger.bind(trunk=trunk, state=reach)
                words = f"is {reach}: {detail}" if detail else f"is {reach}"
                log.log("WARNING" if detail else "INFO", "trunk {} {}", trunk, words)
                self._trunk_changed(trunk)
            case ExtensionChanged(number):
                phones = len(self.stack.agent.phones.registrar.bindings(number))
                logger.info("extension {}: registered phones: {}", number, phones)
            case Locate(hop):
                self.lookup.locate(hop)

    def _trunk_changed(self, name: str) -> None:
        """Note what is seen of the trunks, and report this one if it has come up or gone down."""
        history = self.trunk_histories().get(name)
        state = next((s for s in self.trunk_states() if s.trunk == name), None)
        if history is not None and state is not None and history.turned(state.state, state.detail):
            self.hooks.trunk_turned(state)

    def _new_leg(self, call_id: str, trunk: Trunk | None, flow: Flow) -> SipLeg:
        media, anywhere = MediaSettings(), False
        if trunk is not None:
            media = MediaSettings(trunk.codecs, trunk.srtp, tones=trunk.dtmf_tones)
            anywhere = trunk.media_from == "anywhere"
        host, _ = self.stack.agent.addresses.address(flow, trunk)
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

    # --- called by calls ---

    def session_changed(self, session: Session) -> None:
        self.stack.session_changed(session)

    def media_changed(self, call: SipCall) -> None:
        self.hooks.media_changed(call)

    def handle_refer(self, call: SipCall, refer: ReferReceived) -> None:
        if self.extension_calls.transfers(call):
            self.extension_calls.receive_refer(call, refer)
        else:
            self._follower.receive(call, refer)

    async def transfer(self, call: SipCall, target: str) -> None:
        await self._transfers.transfer(call, target)
