"""Calls by WHIP and WHEP: rooms with one publisher and its players."""

import asyncio
from collections.abc import Mapping
from dataclasses import replace
from time import monotonic
from typing import Protocol
from uuid import uuid4

from loguru import logger

from offhook.media.end_reason import End
from offhook.media.leg import Claim, NoPorts
from offhook.media.tasks_io import TaskSet
from offhook.signaling import sdp as descriptions
from offhook.signaling.peer_io import PeerLeg
from offhook.signaling.sdp import OfferError
from offhook.signaling.whip.fragment import Fragment, TrickledCandidate, write_fragment
from offhook.signaling.whip.leg_io import MAX_PLAYERS, PlayerLeg, PublisherLeg
from offhook.signaling.whip.offer import Protocol as WhipProtocol
from offhook.signaling.whip.offer import check_offer, ipv4_first
from offhook.signaling.whip.session import Session, SessionTable
from offhook.web.config.config import Config
from offhook.web.edge.admission_io import CallAdmission
from offhook.web.edge.calls.browser_calls_io import BrowserCalls
from offhook.web.edge.refusals import RETRY_AFTER_S
from offhook.web.http.shares import Holders, ShareExceeded

NO_PUBLISHER_RETRY_S = 2
"""Retry-After in s of a player whose publisher is not there yet."""
NO_PUBLISHER = "nobody publishes to this room"
REFUSED = "the offer was refused"


class Host(Protocol):
    """What the edge provides to these calls."""

    @property
    def config(self) -> Config: ...

    admission: CallAdmission

    def admit(self, holders: Holders | None = None) -> Claim | None:
        """Raises Busy if those for whom it is counted may not begin another call. Returns
        `Leg.claim`."""

    @property
    def browsers(self) -> BrowserCalls: ...


class WhipRefusal(Exception):
    """Raised to refuse a request with `status`."""

    def __init__(self, status: int, message: str, retry_after_s: int | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.headers = {} if retry_after_s is None else {"Retry-After": str(retry_after_s)}


class WhipCalls:
    """The rooms of one process. A publisher's call is as any other call of a browser; players join
    and leave while it lasts, and end with it."""

    def __init__(self, host: Host) -> None:
        self._host = host
        self.sessions: SessionTable[PeerLeg] = SessionTable()
        self._tasks = TaskSet()
        """One for each session, until its leg has closed."""

    async def open(
        self,
        protocol: WhipProtocol,
        room: str,
        sdp: str,
        agent: str,
        holders: Holders,
        variables: Mapping[str, str],
    ) -> tuple[Session[PeerLeg], str]:
        """Answers an offer; returns the session and the answer. `variables` are what is known of
        the caller. Raises OfferRefusal, OfferError, WhipRefusal, Busy and DialError."""
        offered = check_offer(sdp, protocol)
        descriptions.check_offer(sdp)
        leg: PeerLeg
        if protocol is WhipProtocol.WHIP:
            leg = self._new_publisher(room, holders, agent)
            leg.info = replace(leg.info, variables=variables)
        else:
            leg = self._new_player(room, holders)
        session: Session[PeerLeg] = Session(protocol, room, offered[0], leg)
        self.sessions.add(session)
        self._tasks.spawn(self._watch(session), name=f"{protocol.value} {leg.call_id}")
        try:
            if protocol is WhipProtocol.WHIP:
                answer = await self._host.browsers.begin(leg, sdp, agent)
            else:
                answer = await leg.answer(sdp)
        except BaseException as error:
            publisher_left = protocol is WhipProtocol.WHEP and leg.closed is not None
            await leg.hang_up(REFUSED)
            if isinstance(error, NoPorts):
                raise self._host.browsers.no_ports() from error
            if isinstance(error, OfferError) and publisher_left:
                raise WhipRefusal(409, NO_PUBLISHER, NO_PUBLISHER_RETRY_S) from error
            raise
        return session, ipv4_first(answer)

    def _new_publisher(self, room: str, holders: Holders, agent: str) -> PublisherLeg:
        """Raises WhipRefusal if the room has a publisher, and Busy."""
        if self._publisher(room) is not None:
            raise WhipRefusal(409, "this room has a publisher", RETRY_AFTER_S)
        self._host.admission.tenants.check_agent(agent)
        claim = self._host.admit(holders)
        leg = self._host.browsers.leg(PublisherLeg)
        leg.claim = claim
        return leg

    def _new_player(self, room: str, holders: Holders) -> PlayerLeg:
        """Raises WhipRefusal if the room has no publisher, or too many players, or if this caller
        has its share of them."""
        publisher = self._publisher(room)
        if publisher is None:
            raise WhipRefusal(409, NO_PUBLISHER, NO_PUBLISHER_RETRY_S)
        if len(publisher.players) >= MAX_PLAYERS:
            raise WhipRefusal(503, f"this room has {MAX_PLAYERS} players", RETRY_AFTER_S)
        held = (player.claim.holders for player in publisher.players if player.claim is not None)
        try:
            self._host.config.server.shares.check(
                holders, held, MAX_PLAYERS, "players of this room"
            )
        except ShareExceeded as fault:
            raise WhipRefusal(429, str(fault), RETRY_AFTER_S) from fault
        leg = self._host.browsers.leg(PlayerLeg, f"{publisher.call_id}-{uuid4().hex[:4]}")
        leg.claim = Claim(holders, monotonic())
        publisher.players.append(leg)
        logger.info("{}: {} plays the call", publisher.call_id, leg.call_id)
        return leg

    def _publisher(self, room: str) -> PublisherLeg | None:
        session = self.sessions.publisher(room)
        if session is None or session.leg.closed is not None:
            return None
        assert isinstance(session.leg, PublisherLeg)
        return session.leg

    async def _watch(self, session: Session[PeerLeg]) -> None:
        """Ends the session when its leg closes; a publisher's ends those of its players."""
        leg = session.leg
        reason = await leg.until_closed()
        self.sessions.end(session, monotonic())
        if isinstance(leg, PublisherLeg):
            await asyncio.gather(*(player.hang_up(reason) for player in leg.players))
        elif (publisher := self.sessions.publisher(session.room)) is not None:
            assert isinstance(publisher.leg, PublisherLeg)
            if leg in publisher.leg.players:
                publisher.leg.players.remove(leg)
                logger.info("{}: {} has left: {}", publisher.leg.call_id, leg.call_id, reason)
        await leg.hang_up(reason)

    async def add_candidates(self, session: Session[PeerLeg], fragment: Fragment) -> None:
        """Adds trickled candidates. Their end is ignored: a peer behind a NAT may still send a
        check from an address that it does not know. Raises OfferError."""
        for c in fragment.candidates:
            if c.transport == "udp":
                index = c.index if c.mid is None else None
                await session.leg.ice.add_candidate(c.candidate, c.mid, index)

    async def restart(self, session: Session[PeerLeg], fragment: Fragment) -> str:
        """Restarts ICE and returns our fragment; if that fails, the session continues as it is.
        Raises WhipRefusal."""
        if not fragment.pwd:
            raise WhipRefusal(400, "an ICE restart needs a=ice-pwd")
        candidates = [c.candidate for c in fragment.candidates if c.transport == "udp"]
        try:
            ours = await session.leg.ice.restart(fragment.ufrag, fragment.pwd, candidates)
        except OfferError as error:
            raise WhipRefusal(422, str(error)) from error
        session.restarted(fragment.ufrag)
        answered = tuple(
            TrickledCandidate(f"candidate:{candidate}", session.media.mid, 0)
            for candidate in ours.candidates
        )
        answer = Fragment(ours.ufrag, ours.password, answered, ended=True)
        return write_fragment(answer, session.media.kind, session.media.mid)

    async def end(self, session: Session[PeerLeg]) -> None:
        """Ends a session as its client wishes."""
        await session.leg.hang_up(End.CALLER_HUNG_UP)
        self.sessions.end(session, monotonic())

    async def close(self) -> None:
        """Ends all sessions."""
        for session in self.sessions:
            session.leg.close(End.SHUTTING_DOWN)
        await asyncio.gather(*self._tasks)
