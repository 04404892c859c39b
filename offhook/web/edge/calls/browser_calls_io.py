"""Calls of browsers: SDP offers answered on legs of their own."""

import time
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Protocol, TypeVar

from aioice.ice import get_host_addresses
from aiortc import RTCIceServer
from loguru import logger

from offhook.media.clock_io import PacketClock
from offhook.media.codecs.opus import OpusSettings
from offhook.media.end_reason import End
from offhook.media.leg import Claim, Leg, NoPorts
from offhook.signaling.ice.port_io import IcePort
from offhook.signaling.peer_io import PeerLeg, use_addresses
from offhook.signaling.sdp import check_offer
from offhook.signaling.smallwebrtc import Candidates, Offer
from offhook.web.config.config import Config, ConfigError
from offhook.web.edge.admission_io import CallAdmission
from offhook.web.edge.agents_io import CallAgents
from offhook.web.edge.builder.drafts import Draft
from offhook.web.edge.calls.live_call_io import Direct, LiveCall
from offhook.web.edge.refusals import Busy
from offhook.web.edge.resume.resumption_io import Resumption
from offhook.web.edge.resume.saved_call import SEPARATOR, WEBRTC
from offhook.web.http.metrics import Metrics, Reason
from offhook.web.http.shares import NOBODY, Holders

P = TypeVar("P", bound=PeerLeg)


class UnknownPeer(KeyError):
    """Raised for an unknown pc_id."""


class Host(Protocol):
    """What an edge provides to these calls."""

    config: Config
    clock: PacketClock
    metrics: Metrics
    resumption: Resumption | None
    agents: CallAgents
    admission: CallAdmission
    calls: dict[str, LiveCall]

    @property
    def opus(self) -> OpusSettings: ...

    def new_id(self) -> str: ...

    def admit(self, holders: Holders | None = None) -> Claim | None:
        """Raises Busy. Returns `Leg.claim`."""

    def refusal(self, reason: Reason) -> Busy:
        """Counts a refusal and returns what to raise."""

    def hold(
        self,
        leg: Leg,
        agent: str = "",
        *,
        body: dict[str, Any] | None = None,
        direct: Direct | None = None,
    ) -> LiveCall:
        """Takes a line for a call."""

    def begin(self, call: LiveCall) -> Any:
        """Starts a call that holds a line."""


class BrowserCalls:
    """Answers offers, also for the other ways in which browsers call."""

    def __init__(self, host: Host) -> None:
        self.port: IcePort | None = None
        """The port of all calls, if configured."""
        self._host = host

    async def start(self) -> None:
        """Raises ConfigError."""
        config = self._host.config
        settings = config.webrtc
        if settings.addresses:
            use_addresses(settings.addresses)
        elif config.server.local:
            # aioice omits loopback, the only address without a network.
            use_addresses(["127.0.0.1", "::1", *get_host_addresses(True, True)])
        if not settings.port:
            return
        public = [settings.public_address] if settings.public_address else []
        port = IcePort(settings.port, public)
        try:
            await port.open()
        except OSError as error:
            raise ConfigError(f"webrtc.port: {error.strerror}") from error
        self._host.metrics.add_ice_port(port)
        self._host.clock.add_source(port)
        self.port = port

    async def close(self) -> None:
        if self.port is not None:
            await self.port.close()

    def ice_servers(self) -> list[dict[str, Any]]:
        """Returns the STUN and TURN servers for browsers."""
        return [s.model_dump(exclude_none=True) for s in self._host.config.webrtc.ice_servers]

    async def offer(
        self,
        offer: Offer,
        agent: str = "",
        holders: Holders = NOBODY,
        *,
        variables: Mapping[str, str] | None = None,
        is_operators: bool = False,
        draft: Draft | None = None,
    ) -> tuple[str, str]:
        """Answers an SDP offer and returns the answer and the pc_id. `agent` is a name ("" for the
        default), `holders` are those for whom the line is counted, and `variables` what is known of
        the caller; the operator's page is told what fails, and may bring a draft of its agent.
        Raises OfferError, UnknownPeer, Busy, and DialError for an unknown agent. With `resumption`
        the pc_id has a token with which the caller may come back to any server."""
        host = self._host
        host.agents.check(agent)
        check_offer(offer.sdp)
        if offer.pc_id is not None and not offer.restart_pc:
            leg = self._current(offer.pc_id)
            return await leg.answer(offer.sdp), offer.pc_id
        if offer.pc_id is not None and (known := self._known(offer.pc_id)) is not None:
            # The client has a new peer connection, with which DTLS begins anew: it is a new call.
            known.close(End.RECONNECTED)
            claim: Claim | None = Claim(holders, time.monotonic())
        else:
            host.admission.tenants.check_agent(agent)
            claim = host.admit(holders)
        leg = self.leg(PeerLeg)
        leg.claim, leg.is_operators = claim, is_operators
        leg.info = replace(leg.info, variables=variables or {})
        pc_id = leg.call_id
        if host.resumption is not None:
            returning = (offer.pc_id or "").partition(SEPARATOR)[2]
            pc_id += SEPARATOR + host.resumption.expect(leg.call_id, WEBRTC, agent, returning)
        try:
            answer = await self.begin(leg, offer.sdp, agent, body=offer.request_data, draft=draft)
        except BaseException:
            if host.resumption is not None:
                host.resumption.forget(leg.call_id)
            raise
        return answer, pc_id

    async def begin(
        self,
        leg: PeerLeg,
        sdp: str,
        agent: str = "",
        *,
        body: dict[str, Any] | None = None,
        direct: Direct | None = None,
        draft: Draft | None = None,
    ) -> str:
        """Answers an admitted caller's offer on a new leg and begins the call. Raises OfferError,
        Busy if there is no UDP port for it, and DialError for an unknown agent."""
        self._host.agents.check(agent)
        call = self._host.hold(leg, agent, body=body or {}, direct=direct)
        call.peer = leg
        if draft is not None:
            call.try_out(draft)
        try:
            answer = await leg.answer(sdp)
        except BaseException as error:
            call.discard()
            await leg.hang_up("the offer was refused")
            if isinstance(error, NoPorts):
                raise self.no_ports() from error
            raise
        self._host.begin(call)
        return answer

    def no_ports(self) -> Busy:
        """Counts a refusal for want of a UDP port, says it in the log, and returns what to
        raise."""
        logger.bind(a_minute="ports").error(
            "calls are refused: no UDP port could be opened: see ulimit -n and "
            "net.ipv4.ip_local_port_range, or set [webrtc] port, which all calls share"
        )
        return self._host.refusal("ports")

    async def cancel(self, pc_id: str) -> None:
        """Ends the call on the caller's request; needed while its connection is not up. Raises
        UnknownPeer."""
        await self._current(pc_id).hang_up(End.CALLER_HUNG_UP)

    async def add_candidates(self, request: Candidates) -> None:
        """Adds trickled ICE candidates. Raises OfferError, UnknownPeer."""
        leg = self._current(request.pc_id)
        for c in request.candidates:
            await leg.ice.add_candidate(c.candidate, c.sdp_mid, c.sdp_mline_index)

    def _current(self, pc_id: str) -> PeerLeg:
        """Raises UnknownPeer."""
        leg = self._known(pc_id)
        if leg is None or leg.closed is not None:
            raise UnknownPeer(pc_id)
        return leg

    def _known(self, pc_id: str) -> PeerLeg | None:
        call_id, _, token = pc_id.partition(SEPARATOR)
        resumption = self._host.resumption
        if resumption is not None and not resumption.admits(call_id, WEBRTC, token):
            return None
        return self.find(call_id)

    def find(self, call_id: str) -> PeerLeg | None:
        """Returns the leg of a browser's call."""
        call = self._host.calls.get(call_id)
        return call.peer if call is not None else None

    def leg(self, kind: type[P], call_id: str = "") -> P:
        """Returns a leg of this class that answers an offer."""
        host, settings = self._host, self._host.config.webrtc
        servers = [RTCIceServer(s.urls, s.username, s.credential) for s in settings.ice_servers]
        call_id = call_id or host.new_id()
        return kind(call_id, servers, host.opus, settings.ping_timeout_seconds, self.port)
