"""The ICE of one peer connection: trickled candidates, restarts, ports."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from aiortc import RTCPeerConnection
from aiortc.rtcicetransport import candidate_from_aioice, candidate_to_aioice
from aiortc.sdp import SessionDescription, candidate_from_sdp, candidate_to_sdp

from offhook.media.leg import NoPorts
from offhook.signaling.ice.agent_io import IceAgent
from offhook.signaling.sdp import MAX_CANDIDATES, OfferError, check_candidate


@dataclass(frozen=True)
class IceDescription:
    """What a session description or an SDP fragment (RFC 8840) says of one side's ICE."""

    ufrag: str
    password: str
    candidates: tuple[str, ...]
    """Values of a=candidate, as "1 1 udp 2130706431 192.0.2.1 7861 typ host"."""


class PeerIce:
    """The agents of a peer connection, as what its session description says concerns them."""

    def __init__(
        self, pc: RTCPeerConnection, agents: Sequence[IceAgent], is_up: Callable[[], bool]
    ) -> None:
        """`is_up` returns whether the leg is not closed."""
        self._pc = pc
        self._agents = agents
        self._is_up = is_up
        self._trickled = 0

    async def add_candidate(self, candidate: str, mid: str | None, index: int | None) -> None:
        """Add a trickled candidate; an empty one ends them (RFC 8840 §4.4). Raises OfferError."""
        self._trickled += 1
        if self._trickled > MAX_CANDIDATES:
            raise OfferError(f"more than {MAX_CANDIDATES} ICE candidates")
        parsed, value = None, candidate.removeprefix("candidate:")
        if value:
            check_candidate(value)
        try:
            if value:
                parsed = candidate_from_sdp(value)
                parsed.sdpMid, parsed.sdpMLineIndex = mid, index
            await self._pc.addIceCandidate(parsed)
        except Exception as error:  # aiortc raises exceptions of any type
            message = f"cannot use the ICE candidate {candidate[:80]!r}: {reason_of(error)}"
            raise OfferError(message) from error

    async def restart(
        self, ufrag: str, password: str, candidates: Sequence[str] = ()
    ) -> IceDescription:
        """Restarts ICE to the peer's new credentials and candidates (values of a=candidate) and
        returns ours. DTLS and media go on, on the old path until there is a new one. Raises
        OfferError."""
        transceivers: list[Any] = self._pc.getTransceivers()
        if not transceivers or not self._is_up():
            raise OfferError("no ICE to restart")
        agent: IceAgent = transceivers[0].receiver.transport.transport._connection
        if len(candidates) > MAX_CANDIDATES:
            raise OfferError(f"more than {MAX_CANDIDATES} ICE candidates")
        values = [candidate.removeprefix("candidate:") for candidate in candidates]
        for value in values:
            check_candidate(value)
        try:
            parsed = [candidate_to_aioice(candidate_from_sdp(value)) for value in values]
            await agent.connections.restart(ufrag, password, parsed)
        except Exception as error:  # aiortc raises exceptions of any type
            await agent.connections.cancel_restart()
            raise OfferError(f"cannot restart ICE: {reason_of(error)}") from error
        self._trickled = len(candidates)
        return IceDescription(
            agent.local_username,
            agent.local_password,
            tuple(candidate_to_sdp(candidate_from_aioice(c)) for c in agent.local_candidates),
        )

    async def restart_if_requested(self, sdp: str) -> None:
        """Restarts the ICE of m-lines for which an offer has other credentials than before (RFC
        8839 §4.4.1.1.1)."""
        transports: dict[str | None, Any] = {
            t.mid: t.receiver.transport.transport for t in self._pc.getTransceivers()
        }
        if self._pc.sctp is not None:
            transports[self._pc.sctp.mid] = self._pc.sctp.transport.transport
        for media in SessionDescription.parse(sdp).media:
            if media.rtp.muxId not in transports or media.ice is None:
                continue
            agent: IceAgent = transports[media.rtp.muxId]._connection
            ufrag, password = media.ice.usernameFragment, media.ice.password
            if ufrag and password and agent.remote_username not in (None, ufrag):
                candidates = list(map(candidate_to_aioice, media.ice_candidates))
                await agent.connections.restart(ufrag, password, candidates)
                self._trickled = 0

    async def cancel_restart(self) -> None:
        """End restarts that have not connected."""
        for agent in self._agents:
            await agent.connections.cancel_restart()

    def check_answerable(self) -> None:
        """Raise OfferError if the leg has been closed, which leaves no candidates either, and
        NoPorts."""
        if not self._is_up():
            raise OfferError("the call has ended")
        self.check_ports()

    def check_ports(self) -> None:
        """Raise NoPorts if there is no candidate of ours."""
        if any(a.has_gathered for a in self._agents) and not any(
            agent.local_candidates for agent in self._agents
        ):
            raise NoPorts("no UDP port could be opened for this call")


def reason_of(error: Exception) -> str:
    """Return the exception's message, or its type if it has none, as an assertion of aiortc's."""
    return str(error) or type(error).__name__
